// view.h: figures of a run that the startup log, reports and files need, whatever its model computes.
#pragma once
#include "trace_file.h"

Device device_of(const Ops *ops) {
  Device d = {ops, ops, 0, 1, 0, "", 1, false, false, 0, 0};
  snprintf(d.words, sizeof d.words, "%s", ops->name);
  return d;
}

// Perplexity per word of the text. Each end of line counts as a word, as in reported WikiText-2 results (Merity et al.
// 2016).
static double word_perplexity(const EvalResult *e, const Split *s) {
  return exp(e->loss * (double)e->tokens / (double)(s->words + s->lines));
}
static double bits_per_byte(const EvalResult *e, const Split *s) {
  return e->loss * (double)e->tokens / M_LN2 / (double)s->text_bytes;
}

// Device memory taken since the plan was made: the plan, and what NCCL and CUDA took for themselves. It is this rank's
// only if no other rank uses the GPU. 0 on a CPU.
static size_t run_device_bytes(const RunView *run) {
  size_t now = 0, total = 0;
  Ctx c = *run->ctx;
  c.ops->memory_left(&c, &now, &total);
  return run->device_free_bytes > now ? run->device_free_bytes - now : 0;
}
