// finite.h: a table of ops that looks at what every call reads and writes, until it finds a tensor that is not finite.
// A step whose norm was not finite is run again over it (run/not_finite.h); no other step pays for it.
//
// What a call touches, under which name, is what ops.h says. All that a call writes is looked at after it and all that
// it reads before it, so what is found first, as something read, was written by no call: it is a parameter.
#pragma once
#include "record.h"

struct FiniteArg { const char *name; Tensor t; AccessKind kind; };
struct FiniteList { FiniteArg arg[ACCESSES_MOST]; int count; };
// What was found: argument `name` of `op`, as it was read or written; `count` of its elements are not finite, the first
// one is number `element`. weight: of the same call, for a name; NULL: it has none.
struct Finite {
  bool found, read;
  const char *op, *name;
  Tensor t;
  const void *weight;
  int64_t element, count;
  float value;
  void (*tell)(void *to, const Finite *x);       // called once, at once: what lies where may change later
  void *to;
  float *scratch;                                // of the device, 4 bytes that nobody else touches meanwhile
};
struct FiniteTable { Ops ops; const Ops *real; Finite *finite; };

static inline void finite_arg(FiniteList *list, const char *name, Tensor t, AccessKind kind) {
  CHECK(list->count < ACCESSES_MOST, "%s is one tensor too many", name);
  if (t.data && dtype_floats(t.dtype)) list->arg[list->count++] = FiniteArg{name, t, kind};
}
#define READS(t) finite_arg((FiniteList *)c->device, #t, t, ACCESS_READ);
#define WRITES(t) finite_arg((FiniteList *)c->device, #t, t, ACCESS_WRITE);
#define UPDATES(t) finite_arg((FiniteList *)c->device, #t, t, ACCESS_UPDATE);
#define SUMS(t, mode_) finite_arg((FiniteList *)c->device, #t, t, (mode_) == ADD ? ACCESS_UPDATE : ACCESS_WRITE);
#define SUMMANDS(s, sum_)
#define READS_BYTES(p, n)
#define WRITES_BYTES(p, n)
#define UPDATES_BYTES(p, n)
#define IN_PLACE(written, read)
#define READS_VALUE(x, if_)
#define USES_WORKSPACE
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define X(op_, args, touches) static inline void op_##_names args { touches }
OPS(X)
#undef X
#pragma GCC diagnostic pop
#include "kernels/ops_touches_end.h"
// The table whose ops only fill the FiniteList that Ctx.device points to.
static inline Ops finite_names() {
  Ops t = {};
#define X(op, args, touches) t.op = op##_names;
  OPS(X)
#undef X
  return t;
}

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
static inline void finite_look(Ctx *c, Finite *x, const FiniteList *list, bool before) {
  for (int i = 0; i < list->count && !x->found; i++) {
    const FiniteArg *a = &list->arg[i];
    if ((before && a->kind == ACCESS_WRITE) || (!before && a->kind == ACCESS_READ) ||
        finite_is(c, x->scratch, a->t))
      continue;
    const size_t bytes = (size_t)numel(a->t) * dtype_bytes(a->t.dtype);
    void *host = malloc(bytes);
    c->ops->copy(c, host, a->t.data, bytes);
    c->ops->sync(c);
    x->found = true, x->read = before, x->op = WORD_GET(&flight.op), x->name = a->name, x->t = a->t;
    for (int64_t k = numel(a->t) - 1; k >= 0; k--) {
      const float value = finite_element(host, a->t.dtype, k);
      if (isfinite(value)) continue;
      x->count++, x->element = k, x->value = value;
    }
    free(host);
    for (int k = 0; k < list->count; k++) if (!strcmp(list->arg[k].name, "weight")) x->weight = list->arg[k].t.data;
    if (x->tell) x->tell(x->to, x);
  }
}
template <auto Op> struct Looked;
template <class... P, void (*Ops::*Op)(Ctx *, P...)> struct Looked<Op> {
  static void call(Ctx *c, P... p) {
    static const Ops names = finite_names();
    const FiniteTable *t = (const FiniteTable *)c->ops;
    FiniteList list = {};
    Ctx teller = *c, real = *c;
    teller.device = &list;
    real.ops = t->real;
    if (!t->finite->found) (names.*Op)(&teller, p...);
    finite_look(&real, t->finite, &list, true);
    (t->real->*Op)(&real, p...);
    finite_look(&real, t->finite, &list, false);
  }
};
// The same table, but that it looks. A context that has it must have a device of `real`.
static inline void finite_table(FiniteTable *t, const Ops *real, Finite *x) {
  *t = FiniteTable{*real, real, x};
#define X(op, args, touches) t->ops.op = Looked<&Ops::op>::call;
  OPS(X)
#undef X
}
