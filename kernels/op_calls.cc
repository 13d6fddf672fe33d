// op_calls.cc: op_calls.h, as one object: the lines of all families are expanded here once, for all who want to know
// what a call touches.
#define PART_LAUNCH 1
#include "op_calls.h"
#include "ops_all.h"

// X of every op, with the lists that a macro of OP_FAMILIES makes.
#define EACH_OP(family, Table, isa) OPS_##family(X)

TouchSink *touch_of_host;

const char *op_word(int op) {
  switch (op) {
#define X(op, args, touches) case OP_##op: return #op;
    OP_FAMILIES(EACH_OP)
#undef X
    case OP_COPY: return "copy";
    case OP_ZERO: return "zero";
    case OP_GIVE: return "give";
    case OP_TAKE: return "take";
    default: return "host";
  }
}
void touch(OpTouch *x, AccessKind kind, const void *p, size_t bytes) {
  if (!p || !bytes) return;
  for (int i = 0; i < x->count; i++)             // in a dry run the contributions of all ranks may be at one place
    if (x->access[i].kind == kind && x->access[i].at == (uintptr_t)p && x->access[i].bytes == bytes) return;
  CHECK(x->count < ACCESSES_MAX, "%s touches more than %d tensors", op_word(x->op), (int)ACCESSES_MAX);
  x->access[x->count++] = Access{kind, (uintptr_t)p, bytes};
}
static void touch_bytes(OpTouch *x, AccessKind kind, const void *p, size_t bytes) {
  touch(x, kind, p, bytes);
  x->bytes += (kind == ACCESS_UPDATE ? 2 : 1) * (double)bytes;
}
static void touch_tensor(OpTouch *x, const char *name, AccessKind kind, Tensor t) {
  CHECK(x->args < ARGS_MAX, "%s has more than %d tensors", op_word(x->op), (int)ARGS_MAX);
  x->arg[x->args++] = OpArg{name, kind, t};
  if (t.data) touch_bytes(x, kind, t.data, (size_t)numel(t) * dtype_bytes(t.dtype));
}
static void touch_context(OpTouch *x, AccessKind kind, const void *p, size_t bytes) {
  if (!x->context) x->context = x->count;        // every op has an argument
  touch(x, kind, p, bytes);
}
static void touch_in_place(OpTouch *x, const void *written, const void *read) {
  x->in_place[x->pairs][0] = (uintptr_t)written;
  x->in_place[x->pairs++][1] = (uintptr_t)read;
}
static void touch_summands(OpTouch *x, Summands s, Tensor sum) {
  for (int i = 0; i < s.count; i++) {
    touch_bytes(x, ACCESS_READ, s.data[i], (size_t)numel(sum) * dtype_bytes(s.dtype));
    touch_in_place(x, sum.data, s.data[i]);
  }
}
void touch_tell(const Ctx *c, const OpTouch *x) {
  TouchSink *to = c->device ? (TouchSink *)c->device : touch_of_host;
  if (to) to->take(to, c, x);
}
#define READS(t) touch_tensor(&touched, #t, ACCESS_READ, t);
#define WRITES(t) touch_tensor(&touched, #t, ACCESS_WRITE, t);
#define UPDATES(t) touch_tensor(&touched, #t, ACCESS_UPDATE, t);
#define SUMS(t, mode_) touch_tensor(&touched, #t, (mode_) == ADD ? ACCESS_UPDATE : ACCESS_WRITE, t);
#define SUMMANDS(s, sum_) touch_summands(&touched, s, sum_);
#define READS_BYTES(p, n) touch_bytes(&touched, ACCESS_READ, p, n);
#define WRITES_BYTES(p, n) touch_bytes(&touched, ACCESS_WRITE, p, n);
#define UPDATES_BYTES(p, n) touch_bytes(&touched, ACCESS_UPDATE, p, n);
#define IN_PLACE(written, read) touch_in_place(&touched, (written).data, (read).data);
#define READS_VALUE(x, if_) if (if_) touch_context(&touched, ACCESS_READ, &(x), sizeof(x));
#define USES_WORKSPACE \
  touched.workspace = true; \
  touch_context(&touched, ACCESS_WRITE, c->workspace, c->workspace_bytes);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define X(op_, args, touches) \
  static void op_##_touches args { \
    OpTouch touched = {}; \
    touched.op = OP_##op_; \
    touches \
    touch_tell(c, &touched); \
  }
OP_FAMILIES(EACH_OP)
#undef X
#pragma GCC diagnostic pop
#undef READS
#undef WRITES
#undef UPDATES
#undef SUMS
#undef SUMMANDS
#undef READS_BYTES
#undef WRITES_BYTES
#undef UPDATES_BYTES
#undef IN_PLACE
#undef READS_VALUE
#undef USES_WORKSPACE
static void touch_copy(Ctx *c, void *to, const void *from, size_t bytes) {
  OpTouch x = {};
  x.op = OP_COPY;
  touch(&x, ACCESS_READ, from, bytes);
  touch(&x, ACCESS_WRITE, to, bytes);
  touch_tell(c, &x);
}
static void touch_zero(Ctx *c, void *to, size_t bytes) {
  OpTouch x = {};
  x.op = OP_ZERO;
  touch(&x, ACCESS_WRITE, to, bytes);
  touch_tell(c, &x);
}
#define X(op, args, touches) op##_touches,
#define TOUCHES(family, Table, isa) static const Table family##_touches = {OPS_##family(X)};
OP_FAMILIES(TOUCHES)
#undef X
void touch_ops(Ops *t) {
#define X(family, Table, isa) t->family = &family##_touches;
  OP_FAMILIES(X)
#undef X
  t->copy = touch_copy;
  t->zero = touch_zero;
}

// ---- watching a real table ------------------------------------------------------------------------------------------
struct TouchCopy { TouchSink sink; OpTouch x; };
// What a watched table does: says what a call touches, then makes it. op_of: that call of a table.
template <class OpOf, class... P> static void watched(void (*touches)(Ctx *, P...), OpOf op_of, Ctx *c, P... p) {
  OpWatch *w = (OpWatch *)c->ops;
  TouchCopy seen = {{[](TouchSink *to, const Ctx *, const OpTouch *x) { ((TouchCopy *)to)->x = *x; }}, {}};
  Ctx teller = *c, real = *c;
  teller.device = &seen.sink;
  touches(&teller, p...);
  real.ops = w->real;
  if (w->before) w->before(w, &real, &seen.x);
  op_of(w->real)(&real, p...);
  if (w->after) w->after(w, &real, &seen.x);
}
template <auto Touches, auto InOps, auto Op> struct Watched;
template <class... P, void (*Touches)(Ctx *, P...), class T, const T *Ops::*InOps, void (*T::*Op)(Ctx *, P...)>
struct Watched<Touches, InOps, Op> {
  static void call(Ctx *c, P... p) { watched(Touches, [](const Ops *t) { return t->*InOps->*Op; }, c, p...); }
};
void watch_table(OpWatch *w, const Ops *real) {
  *w = OpWatch{*real, real, NULL, NULL};
#define X(op, args, touches) Watched<op##_touches, in_ops, &Table::op>::call,
#define WATCH(family, Table_, isa) \
  { \
    typedef Table_ Table; \
    constexpr const Table *Ops::*in_ops = &Ops::family; \
    static const Table table = {OPS_##family(X)}; \
    w->ops.family = &table; \
  }
  OP_FAMILIES(WATCH)
#undef X
}
static void watched_copy(Ctx *c, void *to, const void *from, size_t bytes) {
  watched(touch_copy, [](const Ops *t) { return t->copy; }, c, to, from, bytes);
}
static void watched_zero(Ctx *c, void *to, size_t bytes) {
  watched(touch_zero, [](const Ops *t) { return t->zero; }, c, to, bytes);
}
void watch_copies(OpWatch *w) {
  w->ops.copy = watched_copy;
  w->ops.zero = watched_zero;
}
