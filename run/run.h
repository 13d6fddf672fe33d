// run.h: the door of run/: how a run starts, agrees with its ranks, trains and saves, and ends; and commands.
//
// A command gets a Call; call_parse and call_join make options and a rank of it. A training is run_begin, a model that
// takes its memory, run_ready, steps, run_write, run_end, run_close. All of these are collective, and what cannot be
// ends all ranks with one line.
#pragma once
#include "run/report/report.h"

// ---- rendezvous.h ---------------------------------------------------------------------------------------------------
extern volatile sig_atomic_t stop_asked;         // enum Stop; the ranks agree on it in the step's small all-gather
extern bool under_mpirun;                        // mpirun kills its ranks a second after SIGTERM: no time to save
// The two commands by which mpirun starts this program for --rdzv.
static inline int launch_hidden(Call *call) { return rdzv_hidden(call->argc, call->argv); }
// The command --rdzv: this process is to meet others, and what follows is the whole run of ranks in their places. The
// file of --config is read for what it says about this; whether it is right is found out later.
int launch_rendezvous(Call *call);

// ---- agree.h --------------------------------------------------------------------------------------------------------
// Refuses a plan that this host or its devices cannot hold, before anything is allocated: first from the shapes alone,
// and again after libraries have been opened and have allocated what they need. It compares with what is free at that
// time, whoever else uses the device. Collective.
void agree_on_memory(const RunView *run);
// Ranks per host if all hosts have the same number, else 0. Collective.
int ranks_per_host(MPI_Comm comm);
// Decides for a device that is not here what ranks that have it agree on, and refuses what they would: the CPU's table
// of ops, of a GPU its host's. NULL: one line in `error`.
const Ops *device_pretend(Options *o, bool gpu, int world, Error *error);
// Refuses --fp8 on a GPU without it.
void check_fp8(const Options *o, const DeviceInfo *d, Error *error);

// ---- start.h --------------------------------------------------------------------------------------------------------
ChatOptions chat_options(const Options *o, const char *words, const char *why);  // words: RunStart.chat; or why not
// Whether --data has conversations that are packed whole, so that a sequence holds several. Files are looked into once.
bool data_is_packed_whole(const Options *o);
// How the corpus is dealt to microbatches.
SamplerOptions sampler_options(const Options *o);
// Gives the options the shape of what --init_from names, of which no more than headers is read: weights of another
// program. name: what the model is called; "": by its preset. False with one line in `error`.
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
// What there is before a model. asked: the options as they were asked for, which are saved; call->o has them complete.
// chat: what renders chats, rank 0's; NULL, and why.
struct RunStart {
  int rank, ranks, threads;
  Device device;
  Options *asked;
  const Corpus *corpus;
  const char *chat, *chat_why;
};
// Options that all ranks agree on, a device, cores, the corpus.
Run *run_begin(Call *call, RunStart *to);
// Whether the run can be of this corpus. error: one line if it cannot, which rank 0 may have already.
void run_check(Run *r, Error *error);
// The model has its memory, and a trace can be made of it. What it starts from is in its view now.
void run_trace_check(Run *r, RunView *view);
// Says what runs on what, loads the weights, and with --resume all else, and opens the files of OUT.
void run_ready(Run *r);
// The matrix multiplies' algorithms that a resumed run continues with (plans_algorithms of kernels/ops.h). NULL: none.
const char *run_algorithms(const Run *r);
// The directory of the checkpoint whose run this one goes on with; NULL: it begins. reference: becomes the hash of the
// weights that preferences were compared with, if it is recorded.
const char *run_goes_on(const Run *r, uint64_t *reference);
// Around each step, and after the last one.
void run_step_begin(Run *r);
void run_step(Run *r, const StepResult *s);
void run_steps_end(Run *r);
// An evaluation of a split, that began so.
void run_evaluation(Run *r, int split, const EvalResult *e, int64_t begin_ns);
// The validation loss of the state after the last step, which notes how good it is in the checkpoint of this step; the
// best so far, if it has none, gets one with --keep_best. Whether there is that loss.
void run_validation(Run *r, double loss);
bool run_is_validated(const Run *r);
// Saves a checkpoint, in the background or at once. A failure is reported, and training continues.
void run_save(Run *r);
// The step, and how to run it again: the trainer's. losses: [M]; inputs, targets: [A][B][T], as the step has left them
// on the host. scratch: 4 bytes of the device that no pass touches. begin, microbatch: run these parts of the step.
struct NotFiniteStep {
  RunView *run;
  StepState before;                              // that it started from
  const double *losses;
  const int32_t *inputs, *targets;
  float *scratch;
  void (*begin)(void *trainer);
  void (*microbatch)(void *trainer, int a);
  void *trainer;
};
// The last step was not finite and left out. Names the cause; returns the exit code if the run ends, -1 if it goes on.
int run_not_finite(Run *r, const NotFiniteStep *step, const StepResult *s, bool goes_on);
// Ends the run as a signal has asked for. Returns the exit code.
int run_stop(Run *r, Stop stop);
// Training is over: waits for the save in flight, writes weights and exports. Whether all are written. From here on
// signals end the process.
bool run_write(Run *r);
// The run has come to its end: its last record, and what there is now. sampled: the file of texts, or NULL.
void run_end(Run *r, bool saved, const char *sampled);
// Gives back what run_begin took, and leaves MPI. Returns the exit code.
int run_close(Run *r, int code);
