// run.h: what the start, the reports and the files of a run may know of it, whatever its model computes.
//
//   Device                     where a rank computes
//   ModelFigures               the model's shape and size, for people
//   StepResult, EvalResult     what a step and an evaluation give
//   RunView                    a view of the trainer: pointers to what it owns. The trainer fills it in
#pragma once
#include "launch/cores.h"
#include "data/checkpoint/checkpoint.h"
#include "data/dataloader.h"
#include "launch.h"
#include "sharding.h"
#include "trace_file.h"

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

// A device that needs no choice: the CPU, or the only GPU.
static Device device_of(const Ops *ops) {
  Device d = {ops, ops, 0, 1, 0, "", 1, false, 0, 0};
  snprintf(d.words, sizeof d.words, "%s", ops->name);
  return d;
}

// Vp: the vocabulary in memory. FLOPs of a training step per token, as model_flops_per_token counts them.
struct ModelFigures {
  int L, H;
  int64_t C, T, P, V, Vp, parameters;
  double flops_per_token;
};

// rewards: of pairs, as in StepState. skipped: not finite. untrained: targets that a mask left out; where all are, the
// step changed nothing either.
struct StepResult { double loss, grad_norm, lr; bool skipped; Stop stop; int64_t untrained; double rewards[3]; };
// Of pairs `tokens` counts them, and accuracy is the share that is told apart.
struct EvalResult { double loss, accuracy; int64_t tokens; double ms; };
// Perplexity per word of the text. Each end of line counts as a word, as in reported WikiText-2 results (Merity et al.
// 2016).
static double word_perplexity(const EvalResult *e, const Split *s) {
  return exp(e->loss * (double)e->tokens / (double)(s->words + s->lines));
}
static double bits_per_byte(const EvalResult *e, const Split *s) {
  return e->loss * (double)e->tokens / M_LN2 / (double)s->text_bytes;
}
// What --eval makes of a file; name NULL: there is no such number.
struct EvalNumber { const char *name; double x; };
enum { EVAL_NUMBERS = 3 };

struct RunView {
  const Options *opt;                            // resolved
  ModelFigures model;
  Dtype dtype;                                   // of activations
  Ctx *ctx;
  Fsdp *fsdp;
  Store *store;
  const MemoryPlan *plan;
  const Placement *placement;
  const Packing *packing;                        // [SPLIT_COUNT]
  const Corpus *corpus;                          // NULL in plans
  const Device *device;
  const Cores *cores;                            // NULL in plans and in tests that take none
  bool crowded;                                  // ranks or threads outnumber the cores that this rank may use
  int64_t *step, steps_total, steps_per_epoch;
  float *loss_scale;                             // after the last step
  const Traffic *step_traffic;                   // of the last step
  StepState *state, *state_on_device;            // what changes from step to step
  Trace *trace;                                  // of --trace
  const cJSON *published;                        // what came with the weights (interchange.h), rank 0's; NULL: nothing
  const char *name;                              // of the model, for people; NULL: its preset's
  size_t device_free_bytes;                      // before anything but CUDA's context was allocated; 0 on a CPU
};

// Device memory taken since the plan was made: the plan, and what NCCL and CUDA took for themselves. It is this rank's
// only if no other rank uses the GPU. 0 on a CPU.
static inline size_t run_device_bytes(const RunView *run) {
  size_t now = 0, total = 0;
  Ctx c = *run->ctx;
  c.ops->memory_left(&c, &now, &total);
  return run->device_free_bytes > now ? run->device_free_bytes - now : 0;
}
