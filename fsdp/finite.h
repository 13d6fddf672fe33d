// finite.h: a table of ops that checks what every call reads and writes, until it finds a tensor that is not finite.
// A step whose norm was not finite is run again over this table (run/not_finite.h); other steps do not use it.
//
// A call's outputs are checked after it and its inputs before it. So if an input is found first, no checked call wrote
// it: it is a parameter.
#pragma once
#include "gather.h"

static inline float finite_element(const void *data, Dtype dtype, int64_t i) {
  if (dtype == F32) return ((const float *)data)[i];
  return dtype == BF16 ? to_f32(((const bf16 *)data)[i]) : to_f32(((const fp16 *)data)[i]);
}
// Whether all elements of a tensor in device memory are finite: whether its largest magnitude is. c has the real table.
static inline bool finite_is(Ctx *c, float *scratch, Tensor t) {
  float largest = 0;
  c->ops->zero(c, scratch, sizeof(float));
  c->ops->loss->absmax(c, tensor_of(scratch, F32, 1), reshaped(t, numel(t)));
  c->ops->copy(c, &largest, scratch, sizeof largest);
  c->ops->sync(c);
  return isfinite(largest);
}
// Checks the inputs (`before` the call) or outputs of a call; fills in x and calls x->tell for the first that is not
// finite.
static inline void finite_look(Ctx *c, Finite *x, const OpTouch *o, bool before) {
  for (int i = 0; i < o->args && !x->found; i++) {
    const OpArg *a = &o->arg[i];
    if (!a->t.data || !dtype_floats(a->t.dtype) || (before && a->kind == ACCESS_WRITE) ||
        (!before && a->kind == ACCESS_READ) || finite_is(c, x->scratch, a->t))
      continue;
    const size_t bytes = (size_t)numel(a->t) * dtype_bytes(a->t.dtype);
    void *host = malloc(bytes);
    c->ops->copy(c, host, a->t.data, bytes);
    c->ops->sync(c);
    x->found = true, x->read = before, x->op = op_word(o->op), x->name = a->name, x->t = a->t;
    for (int64_t k = numel(a->t) - 1; k >= 0; k--) {
      const float value = finite_element(host, a->t.dtype, k);
      if (isfinite(value)) continue;
      x->count++, x->element = k, x->value = value;
    }
    free(host);
    for (int k = 0; k < o->args; k++) if (!strcmp(o->arg[k].name, "weight")) x->weight = o->arg[k].t.data;
    if (x->tell) x->tell(x->to, x);
  }
}
// The table; one search at a time uses it.
struct FiniteTable { OpWatch watch; Finite *finite; };
static FiniteTable finite_table;
void finite_begin(Ctx *c, Finite *x) {
  OpWatch *w = &finite_table.watch;
  watch_table(w, c->ops);
  finite_table.finite = x;
  w->before = [](OpWatch *w_, Ctx *r, const OpTouch *o) { finite_look(r, ((FiniteTable *)w_)->finite, o, true); };
  w->after = [](OpWatch *w_, Ctx *r, const OpTouch *o) { finite_look(r, ((FiniteTable *)w_)->finite, o, false); };
  c->ops = &w->ops;
}
void finite_end(Ctx *c) { c->ops = finite_table.watch.real; }
int fsdp_param_at(Fsdp *f, uintptr_t at, bool gradient, int64_t *element) {
  const int here = flight.stage > 0 ? flight.stage : 0;
  for (int i = 0; i < 2 * f->lay.params; i++) {  // of the stage at work, then of what is outside the blocks
    const int p = i % f->lay.params, s = i < f->lay.params ? here : 0;
    const GatherSlot *slot = fsdp_slot(f, s);
    if (f->lay.param[p].stage != s || slot->stage != s || !slot->in_use) continue;
    const Tensor seen[] = {gradient ? fsdp_grad(f, p) : fsdp_weight(f, p), gradient ? Tensor{} : fsdp_stored(f, p)};
    for (const Tensor &x : seen) {
      const uintptr_t from = (uintptr_t)x.data;
      const size_t b = dtype_bytes(x.dtype);
      if (!from || at < from || at >= from + (size_t)numel(x) * b) continue;
      *element = (int64_t)((at - from) / b);
      return p;
    }
  }
  return -1;
}
