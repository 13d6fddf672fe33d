// sm_margin.h: --sm_margin, the SMs of a GPU that matrix multiplies leave to NCCL's kernels.
//
// cuBLASLt's heuristic is told the number as well, and its choice of kernel changes last bits. So the number follows
// from the option and the model of the GPU, never from the number of ranks.
#pragma once
#include "option_values.h"

enum { SM_MARGIN_AUTO = -1, SM_MARGIN_WRONG = -2, SM_MARGIN_MAX = 1000 };
static inline int sm_margin_parse(const char *text) {
  if (!strcmp(text, "auto")) return SM_MARGIN_AUTO;
  const size_t digits = strspn(text, "0123456789");
  return !digits || text[digits] || digits > 4 || atoi(text) > SM_MARGIN_MAX ? SM_MARGIN_WRONG : atoi(text);
}
// Rejects what is wrong with the option whatever the GPU.
static inline bool sm_margin_reject(const Options *o, Error *error) {
  const int margin = sm_margin_parse(o->sm_margin);
  REJECT(margin == SM_MARGIN_WRONG, "--sm_margin '%.200s' is neither auto nor a number of SMs, like 16",
         o->sm_margin);
  REJECT(margin == 1, "--sm_margin 1: two kernels of NCCL run at once, a gather and a reduction, and each needs one: "
         "give 2 or more, or 0 to reserve none");
  return true;
}
int sm_margin_for(const Options *o, const char *name, int major, int minor, int sms, Error *error) {
  const int margin = sm_margin_parse(o->sm_margin);
  if (margin == SM_MARGIN_AUTO) return sm_margin_row(major, minor, sms)->margin;
  if (margin >= sms)
    fail(error, "--sm_margin %d leaves nothing for matrix multiplies: %.64s has %d SMs; give fewer, or "
         "auto", margin, name, sms);
  return margin;
}
