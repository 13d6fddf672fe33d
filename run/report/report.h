// report.h: the public header of run/report/: the state of a run that reports may read (RunView, which the trainer
// fills in), and what a run reports: its start, steps, evaluations, saves and end, on the terminal, in metrics.jsonl,
// in report.html, and as a trace.
#pragma once
#include "run/options/options.h"
#include "data/checkpoint/checkpoint.h"
#include "fsdp/plan.h"

// ---- view.h ---------------------------------------------------------------------------------------------------------
// What a signal asks for; the highest value over all ranks counts.
enum Stop { STOP_NOT, STOP_END, STOP_SAVE };     // STOP_SAVE: with a checkpoint
// Where a rank computes: the ops, those of its host (for an offloaded optimizer), which of the host's GPUs and how many
// ranks are on it, its dense peak in the compute dtype (0: unknown), a description for people, and the number of GPUs
// over all ranks. integrated: the GPU's memory is the host's. sm_margin: of so many SMs of the GPU, those
// left to NCCL (--sm_margin). comms_of_one: for tests, see FsdpConfig.
struct Device {
  const Ops *ops, *host_ops;
  int index, sharing;
  double peak_flops;
  char words[256];
  int gpus;
  bool comms_of_one, integrated;
  int sms, sm_margin;
};
// L: blocks; H: heads of q; C: width; T: sequence length; P: positions; V: vocabulary; Vp: the same padded, as in
// memory. flops_per_token: of a training step, as model_flops_per_token counts them.
struct ModelFigures {
  int L, H;
  int64_t C, T, P, V, Vp, parameters;
  double flops_per_token;
};
// skipped: the step was not finite and made no update. untrained: targets that a mask left out; if all were, the step
// changed nothing either. rewards: of pairs, as in StepState.
struct StepResult { double loss, grad_norm, lr; bool skipped; Stop stop; int64_t untrained; double rewards[3]; };
// With a loss of pairs, tokens is the number of pairs, and accuracy the reward accuracy. stop: a signal ended the
// evaluation, so there are no numbers.
struct EvalResult { double loss, accuracy; int64_t tokens; double ms; Stop stop; };
// A metric of a file of --eval; name NULL: the task has no further one.
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
  void *trainer;                                 // the trainer that holds it
  const Options *opt;                            // resolved
  Ctx *ctx;
  Fsdp *fsdp;
  struct Trace *trace;                           // of --trace
  struct Log *log;                               // the open log; NULL before run_ready
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
// Declares the memory of --trace, if the run has that option; calls: calls of ops in a step. Valid until trace_close.
void trace_declare(RunView *run, int64_t calls);
void trace_close(RunView *run);
// One line in `error` if the trace cannot be made, or if this run does not reach its steps; done: steps of the run that
// were made before this process started.
void trace_check(const RunView *run, int64_t done, Error *error);
// trace_graph: where the captured graph of the next step is, NULL there: none yet; `graph`, or, for a traced step, one
// of the trace's own. trace_capture: called before and after its capture. trace_replayed: called after its launch, adds
// the events of the capture once more.
void **trace_graph(void **graph);
void trace_capture(bool begins);
void trace_replayed();
// Whether PATH is a trace of this program's, or empty.
bool trace_is_ours(const char *path);

// ---- start_report.h -------------------------------------------------------------------------------------------------
// What a checkpoint will be: its bytes; those that this rank writes; the number of ranks whose host does not see OUT.
struct SavePlan { const char *directory; int64_t bytes, own_bytes; int blind; };
// Prints the startup log and warnings, on rank 0. saves NULL: no checkpoints are saved.
void report_start(const RunView *run, const SavePlan *saves);
// Parts of the startup log that --plan prints, too: the model; ranks, sharding, memory and bytes that a step moves; the
// FSDP units.
void report_model(const RunView *run);
void report_ranks(const RunView *run);
void report_units(const RunView *run);
// "  name      text", in lines of at most 80 columns, or a narrower terminal's: broken at spaces, and only there.
__attribute__((format(printf, 2, 3))) void start_line(const char *name, const char *fmt, ...);
const char *count_words(int64_t n);              // 3531519 as 3.53 M, for reading; exact below 10000
// Write every option by name, as keys of an open JSON object; the FSDP units, as elements of an open array.
void log_config(FILE *f, const void *options);
void record_units(FILE *f, const RunView *run);
void json_traffic(FILE *f, Traffic w);           // ,"step_traffic":{...}
// Prints the size of what earlier runs left in OUT, which was moved aside and is never removed automatically, and the
// command to remove it. from: a path in use that must stay.
void report_old_runs(const RunView *run, const char *from);
// --show_chats: conversations with [[ ]] around what is trained on; json: one object per line, with its bytes. Rank 0.
void report_chats(const Corpus *c, int64_t count, FILE *json);

// ---- log.h ----------------------------------------------------------------------------------------------------------
// Opens OUT/metrics.jsonl with the record that makes the run repeatable: version, configuration, ranks, memory plan.
// Also opens everything else that a run writes about its steps. append: after what an earlier run wrote. from: what the
// run starts from, or "". One line in `error` if the file cannot be written; --eval_only and --sample_only then
// continue with the terminal alone.
Log *log_open(const RunView *run, bool append, const char *from, Error *error);
// Called before and after each step: writes its record and, if due, the progress line. log_steps_end: called after the
// last step. If steps are traced, all ranks call it.
void log_step_begin(Log *log, const RunView *run);
void log_step(Log *log, const RunView *run, const StepResult *r);
void log_steps_end(Log *log, const RunView *run);
// Reports the result of an evaluation of a split, which started at begin_ns; nothing if a signal ended it.
void log_eval(Log *log, const RunView *run, int split, const EvalResult *e, int64_t begin_ns);
void log_eval_file(Log *log, const EvalFileResult *e);
// The outcome of a save. bytes: of its tensors; pause_ms: while training was paused; ms: until it had its name.
struct SaveReport { int64_t step, bytes; double pause_ms, ms; bool best; const char *path, *error; };
void log_checkpoint(Log *log, const RunView *run, const SaveReport *s);
// log_best: the saved step, evaluated after its save started, is the best so far. log_save_pause: a save has paused
// training since begin_ns.
void log_best(Log *log, const RunView *run, int64_t step, const char *path);
void log_save_pause(const RunView *run, int64_t begin_ns);
// Reports and counts a step that was not finite. left_out: the run continues. keys: what was found, as keys of a
// JSON object.
void log_not_finite(Log *log, const RunView *run, bool left_out, const char *members);
// log_close writes the last record: why the run ends. log_end also prints which memory was taken and which files were
// written, for a run that has come to its end. sampled: the file with samples, or NULL.
void log_close(Log *log, const RunView *run, const char *reason);
void log_end(Log *log, const RunView *run, bool saved, const char *sampled);
// The command --report RUN1,RUN2,...: writes one page for all these runs.
int report_compare(Call *call);

// ---- flight_report.h ------------------------------------------------------------------------------------------------
// The command --flight.
int flight_answer(Call *call);
