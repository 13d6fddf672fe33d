// run.h: the public header of run/: how a run starts, agrees with its ranks, trains and saves, and ends; and commands.
//
// A command gets a Call; call_parse and call_join make options and a rank of it. A training is run_begin, a model that
// takes its memory, run_ready, steps, run_write, run_end, run_close. All ranks call all of these, and an error ends all
// ranks with one line.
#pragma once
#include "run/report/report.h"

// ---- rendezvous.h ---------------------------------------------------------------------------------------------------
extern volatile sig_atomic_t stop_asked;         // enum Stop; the ranks agree on it in the step's small all-gather
extern bool under_mpirun;                        // mpirun kills its ranks a second after SIGTERM: no time to save
// The two commands by which mpirun starts this program for --rdzv.
static inline int launch_hidden(Call *call) { return rdzv_hidden(call->argc, call->argv); }
// The command --rdzv: this process meets the others of a rendezvous, starts the ranks, and waits for the whole run.
// Returns the exit code; -1: this process is a rank, or alone. The file of --config is read only for the options of the
// rendezvous; the ranks check the rest of it.
int launch_rendezvous(Call *call);

// ---- agree.h --------------------------------------------------------------------------------------------------------
// Rejects a memory plan that this host or its devices cannot hold, before anything is allocated: first from the shapes
// alone, and again after libraries have been opened and have allocated what they need. It compares the plan with the
// memory that is free at that time, whoever else uses the device. All ranks call it.
void agree_on_memory(const RunView *run);
// Ranks per host if all hosts have the same number, else 0. All ranks call it.
int ranks_per_host(MPI_Comm comm);
// For plans: decides options as ranks with that device would agree on them, and rejects what they would reject. Returns
// the table of ops of the CPU; of a GPU, that of its host. NULL: one line in `error`.
const Ops *device_pretend(Options *o, bool gpu, int world, Error *error);
// Rejects --fp8 matmul on a GPU that cannot multiply E4M3.
void check_fp8(const Options *o, const DeviceInfo *d, Error *error);

// ---- start.h --------------------------------------------------------------------------------------------------------
ChatOptions chat_options(const Options *o, const char *words, const char *why);  // words: RunStart.chat; or why not
// Whether --data has conversations, each of which stays whole in a sequence that may hold several (--pack whole). Opens
// the files of --data only once.
bool data_is_packed_whole(const Options *o);
// How sequences of the corpus are assigned to microbatches.
SamplerOptions sampler_options(const Options *o);
// Gives the options the shape of another program's weights that --init_from names, of which only headers are read. name
// becomes what the model is called; "": as its preset. False with one line in `error`.
bool shape_of_weights(Options *o, char *name, size_t name_bytes, Error *error);

// ---- call.h ---------------------------------------------------------------------------------------------------------
// Reads the command line into call->o, or call->error.
void call_parse(Call *call);
// This process becomes a rank.
void call_join(Call *call);
// The commands --preflight and --encode.
int preflight_main(Call *call);
int encode_main(Call *call);

// ---- life.h ---------------------------------------------------------------------------------------------------------
struct Run;
// What there is before a model. asked: the options as the user gave them, which are saved; call->o has them complete.
// chat: the template and names that render chats (JSON, see chat_words_of), on rank 0 only; NULL: none, and chat_why.
struct RunStart {
  int rank, ranks, threads;
  Device device;
  Options *asked;
  const Corpus *corpus;
  const char *chat, *chat_why;
};
// Has all ranks agree on options and a device, assigns cores, and loads the corpus.
Run *run_begin(Call *call, RunStart *to);
// Ends all ranks with one line where the run cannot have this corpus. error: a line that rank 0 may have already.
void run_check(Run *r, Error *error);
// Called when the model has its memory: puts what the run starts from into `view`, and rejects --trace_steps that the
// run does not have.
void run_trace_check(Run *r, RunView *view);
// Prints the startup log, loads the weights, with --resume also optimizer and step, and opens the files of OUT.
void run_ready(Run *r);
// The matrix multiplies' algorithms that a resumed run continues with (plans_algorithms of kernels/ops.h). NULL: none.
const char *run_algorithms(const Run *r);
// The directory of the checkpoint whose run this one continues with; NULL: it starts. reference: becomes the hash of
// the weights that preferences were compared with, if it is recorded.
const char *run_goes_on(const Run *r, uint64_t *reference);
// Around each step, and after the last one.
void run_step_begin(Run *r);
void run_step(Run *r, const StepResult *s);
void run_steps_end(Run *r);
// Records an evaluation of a split, which started at begin_ns.
void run_evaluation(Run *r, int split, const EvalResult *e, int64_t begin_ns);
// Records the validation loss of the state after the last step, also in the checkpoint of this step if there is one.
// With --keep_best, a state that is the best so far and has no checkpoint is saved.
void run_validation(Run *r, double loss);
// Whether the state after the last step has a validation loss.
bool run_is_validated(const Run *r);
// Saves a checkpoint, in the background or at once. A failure is reported, and training continues.
void run_save(Run *r);
// A step that was not finite, and how the trainer runs it again. losses: [M], of all ranks' microbatches; inputs,
// targets: [A][B][T], of this rank's A microbatches, as the step has left them on the host. scratch: 4 bytes of device
// memory that no pass touches. begin, microbatch: functions of the trainer that run these parts of the step.
struct NotFiniteStep {
  RunView *run;
  StepState before;                              // the state that the step started from
  const double *losses;
  const int32_t *inputs, *targets;
  float *scratch;
  void (*begin)(void *trainer);
  void (*microbatch)(void *trainer, int a);
  void *trainer;
};
// After a last step that was not finite and was left out: names the cause. Returns the exit code if the run ends; -1 if
// it continues, because goes_on is set (--on_nan skip).
int run_not_finite(Run *r, const NotFiniteStep *step, const StepResult *s, bool goes_on);
// Ends the run as a signal has asked for. Returns the exit code.
int run_stop(Run *r, Stop stop);
// The EOS tokens that an export would name (export_ends). Rank 0, with a tokenizer.
int run_ends(RunView *view, int32_t *ids, int most);
// After training: waits for the save in flight, writes weights and exports. Returns whether all were written. From here
// on signals end the process.
bool run_write(Run *r);
// Writes the last record of the run, and prints what it has written. sampled: the file with samples, or NULL.
void run_end(Run *r, bool saved, const char *sampled);
// Gives back what run_begin took, and leaves MPI. Returns the exit code.
int run_close(Run *r, int code);
