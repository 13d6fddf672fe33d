// finite.h: a table of ops that looks at what every call reads and writes, until it finds a tensor that is not finite.
// A step whose norm was not finite is run again over it (run/not_finite.h); no other step pays for it.
//
// All that a call writes is looked at after it and all that it reads before it, so what is found first, as something
// read, was written by no call: it is a parameter.
#pragma once
#include "fsdp.h"
#include "op_calls.h"

static inline float finite_element(const void *data, Dtype dtype, int64_t i) {
  if (dtype == F32) return ((const float *)data)[i];
  return dtype == BF16 ? to_f32(((const bf16 *)data)[i]) : to_f32(((const fp16 *)data)[i]);
}
// Whether all elements of a tensor of the device are finite; its largest magnitude tells. c: of the real table.
static inline bool finite_is(Ctx *c, float *scratch, Tensor t) {
  float largest = 0;
  c->ops->zero(c, scratch, sizeof(float));
  c->ops->absmax(c, tensor_of(scratch, F32, 1), reshaped(t, numel(t)));
  c->ops->copy(c, &largest, scratch, sizeof largest);
  c->ops->sync(c);
  return isfinite(largest);
}
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
    x->found = true, x->read = before, x->op = op_words[o->op], x->name = a->name, x->t = a->t;
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
void finite_table(FiniteTable *t, const Ops *real, Finite *x) {
  watch_table(&t->watch, real);
  t->finite = x;
  t->watch.before = [](OpWatch *w, Ctx *c, const OpTouch *o) { finite_look(c, ((FiniteTable *)w)->finite, o, true); };
  t->watch.after = [](OpWatch *w, Ctx *c, const OpTouch *o) { finite_look(c, ((FiniteTable *)w)->finite, o, false); };
}
