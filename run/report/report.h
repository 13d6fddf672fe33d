// report.h: the door of run/report/: what may be known of a run (RunView), and what a run tells of itself: its start,
// its steps and their records, the page, a trace. The trainer fills in the RunView.
#pragma once
#include "run/options/options.h"
#include "data/checkpoint/checkpoint.h"
#include "fsdp/plan.h"

// ---- trace.h --------------------------------------------------------------------------------------------------------
struct Trace;                                    // of --trace
enum TraceTold { TOLD_EVALUATION, TOLD_SAVE, TOLD_SAVING };
extern Trace *tracing;                           // the one whose tables are in use
// Declares the memory of a trace of steps `steps` ("A:B") of this process into file `path`; "": none. most: steps that
// the run has at most, 0: not known. on_device: a GPU computes, with streams of its own. Until trace_close.
Trace *trace_declare(const char *path, const char *steps, int64_t most, MemoryPlan *plan, int64_t calls, int stages,
                     int world, bool on_device);
void trace_close(Trace *x, Ctx *c);
// Where the graph of a traced step is; NULL there: none yet.
void **trace_graph(Trace *x);
// Something that the trainer has done since begin_ns, between the first traced step and the last. x may be NULL.
void trace_told(Trace *x, TraceTold what, int64_t begin_ns);
// Around the capture of a traced step: its events are kept for its replays.
void trace_capture_begin(Trace *x);
void trace_capture_end(Trace *x);
// The graph of a traced step was launched: its events are noted again.
void trace_replayed(Trace *x);
// Whether the step after `step`, which counts from the start of training, is traced.
bool trace_wants(const Trace *x, int64_t step);
// Replaces the op tables of c and f, and has f's notes. Collective before the first traced step.
void trace_step_begin(Trace *x, Ctx *c, Fsdp *f, int64_t step);
void trace_step_end(Trace *x, Ctx *c, Fsdp *f);

// ---- view.h ---------------------------------------------------------------------------------------------------------
// What a signal asks for; the highest value over all ranks counts.
enum Stop { STOP_NOT, STOP_END, STOP_SAVE };     // STOP_SAVE: with a checkpoint
// Where a rank computes: the ops, those of its host (for an offloaded optimizer), which of the host's GPUs and how many
// ranks are on it, its dense peak in the compute dtype (0: unknown), a description for people, and the number of GPUs
// over all ranks. sm_margin: of so many multiprocessors of the GPU, those left to NCCL (--sm_margin). comms_of_one: for
// tests, see FsdpConfig.
struct Device {
  const Ops *ops, *host_ops;
  int index, sharing;
  double peak_flops;
  char words[256];
  int gpus;
  bool comms_of_one;
  int multiprocessors, sm_margin;
};
// Vp: the vocabulary in memory. FLOPs of a training step per token, as model_flops_per_token counts them.
struct ModelFigures {
  int L, H;
  int64_t C, T, P, V, Vp, parameters;
  double flops_per_token;
};
// rewards: of pairs, as in StepState. skipped: not finite. untrained: targets that a mask left out; where all are, the
// step changed nothing either.
struct StepResult { double loss, grad_norm, lr; bool skipped; Stop stop; int64_t untrained; double rewards[3]; };
// Of pairs `tokens` counts them, and accuracy is the share that is told apart. stop: a signal ended it: no numbers.
struct EvalResult { double loss, accuracy; int64_t tokens; double ms; Stop stop; };
// What --eval makes of a file; name NULL: there is no such number.
struct EvalNumber { const char *name; double x; };
enum { EVAL_NUMBERS = 3 };
// The state of a run that does not depend on its model. The trainer holds it.
struct RunView {
  void *trainer;                                 // whose it is
  const Options *opt;                            // resolved
  Ctx *ctx;
  Fsdp *fsdp;
  Trace *trace;                                  // of --trace
  ModelFigures model;
  Device device;
  const Corpus *corpus;                          // owned by the caller; NULL in plans
  Packing packing[SPLIT_COUNT];
  Store store;
  MemoryPlan plan;
  const Cores *cores;                            // NULL in plans and in tests that take none
  bool crowded;                                  // ranks or threads outnumber the cores that this rank may use
  int64_t step, steps_total, steps_per_epoch;
  float loss_scale;                              // after the last step
  Traffic step_traffic;                          // of the last step
  StepState *state, *state_on_device;            // what changes from step to step
  const cJSON *published;                        // what came with the weights (models.h), rank 0's; NULL: nothing
  const char *chat;                              // what renders its chats (chat.h), rank 0's; NULL: nothing
  const char *name;                              // of the model, for people; NULL: its preset's
  size_t device_free_bytes;                      // before anything but CUDA's context was allocated; 0 on a CPU
};
// Device memory taken since the plan was made: the plan, and what NCCL and CUDA took for themselves. It is this rank's
// only if no other rank uses the GPU. 0 on a CPU.
size_t run_device_bytes(const RunView *run);
// A device that needs no choice: the CPU, or the only GPU.
Device device_of(const Ops *ops);

// ---- overwrite.h ----------------------------------------------------------------------------------------------------
// Whether a run of this program has written into OUT: then all names that a run writes there are a run's.
bool overwrite_out_is_ours(const char *out);
// Refuses a run that would write over what is not this program's. False with one line in `error`.
bool overwrite_refuse(const Options *o, char *error, size_t error_bytes);

// ---- progress.h -----------------------------------------------------------------------------------------------------
// Bytes done and speed, once a save or load has taken a second: on a terminal a line that is overwritten, else a line
// every ten seconds.
void show_progress(const char *what, int64_t done, int64_t total);

// ---- start_report.h -------------------------------------------------------------------------------------------------
void print_start(const RunView *run);            // the head of every run, on rank 0
// --show_chats: conversations with [[ ]] around what is trained on; json: one object a line, with its bytes. Rank 0.
void print_chats(const Corpus *c, int64_t count, FILE *json);
void print_details(const RunView *run);          // --verbose: every figure, on rank 0
// Notices about this start, on rank 0.
void print_start_notices(const RunView *run);
// What earlier runs left in OUT is moved aside and never removed automatically. Prints its size and how to remove it.
void print_old_runs(const RunView *run, const char *from);
// What `write` prints about the run, malloc'ed.
char *words_of(const RunView *run, void (*write)(FILE *to, const RunView *run));
const char *count_words(int64_t n);             // 3531519 as 3.53 M, for reading; exact below 10000
int64_t model_parameters(const RunView *run);   // without those of adapters
// Every option by name, inside an object.
void log_config(FILE *f, const void *options);
// The units, as a member of an object.
void record_units(FILE *f, const RunView *run);
// "  name      text", in lines of at most 80 columns, or a narrower terminal's: broken at spaces, and only there.
__attribute__((format(printf, 2, 3))) void start_line(const char *name, const char *fmt, ...);
// Parts of the start report that --plan prints, too: its units, ranks, shards and memory.
void units_words(FILE *to, const RunView *run);
void ranks_words(FILE *to, const RunView *run);
void shards_words(FILE *to, const RunView *run);
void memory_short_words(FILE *to, const RunView *run);
// What a step of training moves, by the formula with which tests compare the counters.
void moved_words(FILE *to, const RunView *run);
// start_line of what `write` prints.
void start_words(const char *name, const RunView *run, void (*write)(FILE *to, const RunView *run));
// The line `block` where it is not GPT-2's.
void print_block(const RunView *run);

// ---- tensorboard.h --------------------------------------------------------------------------------------------------
struct Tensorboard {
  FILE *file;                                    // NULL: none is written
  off_t whole_bytes;                             // of whole records
  char path[PATH_MAX];
};

// ---- log.h ----------------------------------------------------------------------------------------------------------
// The outcome of a save. bytes: of its tensors; pause_ms: while training was paused; ms: until it had its name.
struct SaveReport { int64_t step, bytes; double pause_ms, ms; bool best; const char *path, *error; };
struct Log {
  FILE *metrics;                                 // rank 0 only, else NULL
  off_t whole_bytes;                             // of metrics.jsonl that hold whole lines
  bool lost;                                     // metrics.jsonl could not be written to its end
  Tensorboard board;                             // no file without --tensorboard
  struct ReportLive *page;                       // of report.html; NULL: none is written
  const char *page_said;                         // what the list of files says of it at the end; NULL: nothing
  int64_t steps, skipped, not_finite;            // of this run: made; without an update; of those, a cause was named
  bool plans_known;
  CoreWatch cores;
  bool cores_told;                               // the notice is printed, or not wanted: own threads exceed cores
  double start_ms, step_ms;                      // step_ms: smoothed
  int64_t every;
};
// Whether the trace can be made and its steps come: `done` of the run's were taken before. One line in `error`.
void report_check_trace(const RunView *run, int64_t done, char *error, size_t error_bytes);
// The command --report RUN1,RUN2,...: one page for all. Starts nothing.
int report_compare(Call *call);
// Opens a file of lines: empty, or (append) to add to. A last line that a killed run left unfinished is removed. Writes
// go to the current end: while a run trains, another may evaluate its checkpoints into the same file.
FILE *log_file(const char *path, bool append);
// A record of metrics.jsonl and, where due, the progress line.
void log_step(Log *log, const RunView *run, const StepResult *r, double ms);
void log_eval(Log *log, const RunView *run, const char *name, const Split *split, const EvalResult *e);
// The numbers of a file of --eval.
void log_eval_file(Log *log, const RunView *run, const char *path, const char *task, bool llmc, int64_t texts,
                   int64_t tokens, const EvalNumber number[EVAL_NUMBERS], double seconds);
// Ends a trace, if there is one, and reports what communication is exposed. Collective.
void log_trace(Log *log, const RunView *run);
void log_close(Log *log, const RunView *run, const char *reason);
// A full disk must not end a run, nor go unnoticed; the file keeps its whole lines.
void log_flush(Log *log, const RunView *run);
// Keeps other runs from training into the same OUT, if it exists by now, until this process ends, by a lock on
// OUT/.lock. Waits for a run that is just being killed: it may still finish a checkpoint. False and a line in `error`:
// another run has it. A notice says where no lock can be had, or none that other hosts see.
bool lock_out(const Options *o, char *error, size_t error_bytes);
// Makes the directories OUT and that of --export_hf and checks that they can be written, before the corpus is read and
// memory is taken. One line in `error`. Returns the exit code that goes with it.
int check_out(const Options *o, char *error, size_t bytes);
// Makes room for the trace of this run: an earlier one is set aside. One line in `error` if it cannot be written.
void report_open_trace(const RunView *run, char *error, size_t error_bytes);
// Opens OUT/metrics.jsonl with the record that makes the run repeatable: version, configuration, ranks, memory plan.
// append: after what an earlier run wrote. from: what the run starts from, or "".
// One line in `error` when it cannot be written; --eval_only and --sample_only continue with the terminal alone.
void log_open(Log *log, const RunView *run, bool append, const char *from, char *error, size_t error_bytes);
// A record of a save, and a line; of one whose step, evaluated since then, is the best so far.
void log_best(Log *log, const RunView *run, int64_t step, const char *path);
void log_checkpoint(Log *log, const RunView *run, const SaveReport *s);

// ---- flight_report.h ------------------------------------------------------------------------------------------------
// The command --flight.
int flight_answer(Call *call);
