// report.h: the door of run/report/: what may be known of a run (RunView), and what a run tells of itself: its start,
// its steps, evaluations and saves, its end; and while it does, records, the page, a trace. The trainer fills in the
// RunView.
#pragma once
#include "run/options/options.h"
#include "data/checkpoint/checkpoint.h"
#include "fsdp/plan.h"

// ---- view.h ---------------------------------------------------------------------------------------------------------
// What a signal asks for; the highest value over all ranks counts.
enum Stop { STOP_NOT, STOP_END, STOP_SAVE };     // STOP_SAVE: with a checkpoint
// Where a rank computes: the ops, those of its host (for an offloaded optimizer), which of the host's GPUs and how many
// ranks are on it, its dense peak in the compute dtype (0: unknown), a description for people, and the number of GPUs
// over all ranks. integrated: the GPU's memory is the host's. sm_margin: of so many multiprocessors of the GPU, those
// left to NCCL (--sm_margin). comms_of_one: for tests, see FsdpConfig.
struct Device {
  const Ops *ops, *host_ops;
  int index, sharing;
  double peak_flops;
  char words[256];
  int gpus;
  bool comms_of_one, integrated;
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
struct EvalFileResult {
  const struct RunView *run;
  const char *path, *task;
  bool llmc;                                     // --eval_style llmc
  int64_t texts, tokens;
  EvalNumber number[EVAL_NUMBERS];
  double seconds;
};
// The state of a run that does not depend on its model. The trainer holds it.
struct RunView {
  void *trainer;                                 // whose it is
  const Options *opt;                            // resolved
  Ctx *ctx;
  Fsdp *fsdp;
  struct Trace *trace;                           // of --trace
  struct Log *log;                               // what the run tells while it runs; NULL before
  ModelFigures model;
  Device device;
  const Corpus *corpus;                          // owned by the caller; NULL in plans
  Packing packing[SPLIT_COUNT];
  Store *store;
  uint64_t base_hash, reference_hash;            // of the weights: see Saved
  MemoryPlan plan;
  const Cores *cores;                            // NULL in plans and in tests that take none
  bool crowded;                                  // ranks or threads outnumber the cores that this rank may use
  int64_t step, steps_total, steps_per_epoch;
  float loss_scale;                              // after the last step
  Traffic step_traffic;                          // of the last step
  StepState *state, *state_on_device;            // what changes from step to step
  const cJSON *published;                        // what came with the weights (models.h), rank 0's; NULL: nothing
  const char *chat;                              // what renders its chats (chat.h), rank 0's; NULL: nothing
  const char *name, *algorithms;                 // of the model, NULL: its preset's; of GEMMs that the run keeps
  size_t device_free_bytes;                      // before anything but CUDA's context was allocated; 0 on a CPU
};
// A device that needs no choice: the CPU, or the only GPU.
Device device_of(const Ops *ops);

// ---- trace.h --------------------------------------------------------------------------------------------------------
// Declares the memory of --trace, if the run has one, whose steps have so many calls of ops. Until trace_close.
void trace_declare(RunView *run, int64_t calls);
void trace_close(RunView *run);
// Whether the trace can be made and its steps come: `done` of the run's were taken before. One line in `error`.
void trace_check(const RunView *run, int64_t done, Error *error);
// Where a step's graph is, NULL there: none yet. A traced step has one of its own, else it is `graph`. Around its
// capture, and behind its launch: the trace repeats the events of the capture.
void **trace_graph(void **graph);
void trace_capture(bool begins);
void trace_replayed();
// Whether PATH is a trace of this program's, or empty.
bool trace_is_ours(const char *path);

// ---- start_report.h -------------------------------------------------------------------------------------------------
// What a checkpoint will be: its bytes, those that this rank writes; ranks whose host does not see the directory.
struct SavePlan { const char *directory; int64_t bytes, own_bytes; int blind; };
// What runs on what, and notices about it, on rank 0. saves: NULL: nothing is saved.
void report_start(const RunView *run, const SavePlan *saves);
// Parts of it that --plan prints, too: the model; ranks, sharding, memory and what a step moves; the units.
void report_model(const RunView *run);
void report_ranks(const RunView *run);
void report_units(const RunView *run);
// "  name      text", in lines of at most 80 columns, or a narrower terminal's: broken at spaces, and only there.
__attribute__((format(printf, 2, 3))) void start_line(const char *name, const char *fmt, ...);
const char *count_words(int64_t n);              // 3531519 as 3.53 M, for reading; exact below 10000
// Every option by name, inside an object; the units, as a member of one.
void log_config(FILE *f, const void *options);
void record_units(FILE *f, const RunView *run);
// What earlier runs left in OUT is moved aside and never removed automatically. Prints its size and how to remove it.
void report_old_runs(const RunView *run, const char *from);
// --show_chats: conversations with [[ ]] around what is trained on; json: one object a line, with its bytes. Rank 0.
void report_chats(const Corpus *c, int64_t count, FILE *json);

// ---- progress.h -----------------------------------------------------------------------------------------------------
// Bytes done and speed, once a save or load has taken a second: on a terminal a line that is overwritten, else a line
// every ten seconds.
void show_progress(const char *what, int64_t done, int64_t total);

// ---- log.h ----------------------------------------------------------------------------------------------------------
// Opens OUT/metrics.jsonl with the record that makes the run repeatable: version, configuration, ranks, memory plan.
// append: after what an earlier run wrote. from: what the run starts from, or "". And all else that a run writes of its
// steps. One line in `error` when it cannot be written; --eval_only and --sample_only continue with the terminal alone.
Log *log_open(const RunView *run, bool append, const char *from, Error *error);
// Around a step: its record and, where due, the progress line. Collective where the step is traced, as log_steps_end,
// after the last step.
void log_step_begin(Log *log, const RunView *run);
void log_step(Log *log, const RunView *run, const StepResult *r);
void log_steps_end(Log *log, const RunView *run);
// What an evaluation of a split has given, that began so. One that a signal ended has no numbers.
void log_eval(Log *log, const RunView *run, int split, const EvalResult *e, int64_t begin_ns);
void log_eval_file(Log *log, const EvalFileResult *e);
// The outcome of a save. bytes: of its tensors; pause_ms: while training was paused; ms: until it had its name.
struct SaveReport { int64_t step, bytes; double pause_ms, ms; bool best; const char *path, *error; };
void log_checkpoint(Log *log, const RunView *run, const SaveReport *s);
// A save whose step, evaluated since then, is the best so far. A save paused the training, since begin_ns.
void log_best(Log *log, const RunView *run, int64_t step, const char *path);
void log_save_pause(const RunView *run, int64_t begin_ns);
// The last step was not finite; left_out: the run goes on. members: what is known of it, of a JSON object. Counts.
void log_not_finite(Log *log, const RunView *run, bool left_out, const char *members);
// The last record: why the run ends. log_end: it has come to its end; says what memory was taken and which files there
// are. sampled: one of them, or NULL.
void log_close(Log *log, const RunView *run, const char *reason);
void log_end(Log *log, const RunView *run, bool saved, const char *sampled);
// The command --report RUN1,RUN2,...: one page for all. Starts nothing.
int report_compare(Call *call);

// ---- flight_report.h ------------------------------------------------------------------------------------------------
// The command --flight.
int flight_answer(Call *call);
