// op_calls.h: public header of what each call of an op reads and writes, as its line says (ops.h): for all who want to
// know, the record and the placement, predictions, the trace, the search for what is not finite.
#pragma once
#include "ops.h"

enum AccessKind { ACCESS_READ, ACCESS_WRITE, ACCESS_UPDATE };
struct Access { AccessKind kind; uintptr_t at; size_t bytes; };
enum { ACCESSES_MAX = 24, ARGS_MAX = 16, IN_PLACE_MAX = SUMMANDS_MAX };
// What is no op, after the numbers that ops have in the headers of their families, of which some are of none.
enum { OP_COPY = FAMILY_COUNT * OPS_OF_A_FAMILY, OP_ZERO, OP_GIVE, OP_TAKE, OP_HOST, OP_COUNT };
static_assert(OP_COUNT <= 256, "records and traces keep the number in a byte");
const char *op_word(int op);                     // "matmul_forward", "copy"
// A tensor by the name that the line gives it; an absent one has no data.
struct OpArg { const char *name; AccessKind kind; Tensor t; };
// What one call of an op touches. in_place: pairs of what is written and what is read that may be the same memory.
// Those accesses from `context` on are of its context: c->state, and the workspace, if it uses that. arg: its tensors,
// in the order of the line. bytes: that its arguments move; what is updated counts twice.
struct OpTouch {
  int op;                                        // OP_<op>
  int count, pairs, context, args;
  bool workspace;
  double bytes;
  Access access[ACCESSES_MAX];
  uintptr_t in_place[IN_PLACE_MAX][2];
  OpArg arg[ARGS_MAX];
};
// Receives what each call touches. Ctx.device of a planning table's context points to one.
struct TouchSink { void (*take)(TouchSink *to, const Ctx *c, const OpTouch *x); };
// before, after: called around each call, or NULL. c: the call's own context, over the real table. The first member of
// what they need besides.
struct OpWatch {
  Ops ops;
  const Ops *real;
  void (*before)(OpWatch *w, Ctx *c, const OpTouch *x), (*after)(OpWatch *w, Ctx *c, const OpTouch *x);
};
extern TouchSink *touch_of_host;                 // of contexts without a device, an optimizer's on the host; NULL: none
// Adds an access to what a call touches, if it is none that is there already.
void touch(OpTouch *x, AccessKind kind, const void *p, size_t bytes);
// Tells it to the TouchSink that c's device points to.
void touch_tell(const Ctx *c, const OpTouch *x);
// Sets ops that compute nothing: each call is told.
void touch_ops(Ops *t);
// Ops that tell w before and after `real` makes each call. A context that has w->ops must have a device of `real`.
// Copies are not watched: see watch_copies.
void watch_table(OpWatch *w, const Ops *real);
// Also of copies and zeroing: every context for which they are called has a table that is watched.
void watch_copies(OpWatch *w);
