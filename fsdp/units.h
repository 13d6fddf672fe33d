// units.h: which parameters are gathered together, and which rank of a shard group owns which elements of them. All of
// this is decided once, before memory is taken. No other file needs to know how a unit is laid out.
//
//   stage   the parameters that the model needs at one time. Stage 1 + l is block l. Stage 0 has all parameters that
//           belong to no block or are needed by several; it is gathered once per step and stays whole
//   unit    the parameters of one gather and one reduction; the wrap policy (--wrap) chooses them
//   piece   a run of a unit's elements, cut into S equal parts, one for each rank of the shard group (--shard)
//             flat   one piece for all parameters with equal dtype, weight decay, rate, optimizer and `frozen`: FSDP's
//                    FlatParameter
//             dim0   one piece per parameter, ceil(rows / S) rows per rank, the last parts padded or empty: FSDP2's
//                    layout
//           Frozen matrices kept quantized (Param.kept) are in a piece per type, cut between quantization blocks; dim0
//           has one piece per matrix. Elements are counted as in other pieces; piece_at gives bytes
//
// A gathered unit holds its pieces one after the other, and each piece holds the parts of ranks 0 .. S-1 in order. So
// when each piece has been gathered, every parameter is whole and dense where it is, and nothing need be copied.
// Parameters start at multiples of 256 bytes. Ranks that read each other's memory may store their shards in this order
// in one memory, each part between its neighbours' parts: then the unit is always whole, without a gather.
#pragma once
#include "types.h"

static inline bool piece_trains(const Piece *c) { return !c->like->param->frozen; }
// piece_at: bytes of the first n elements of a piece. piece_bytes: bytes of one rank's part.
static inline size_t piece_at(const Piece *c, int64_t n) {
  return c->type ? (size_t)blocks_bytes(c->type, n) : (size_t)n * dtype_bytes(c->like->dtype);
}
static inline size_t piece_bytes(const Piece *c) { return piece_at(c, c->numel); }

static inline int64_t piece_align(Dtype dtype) { return dtype == F8 ? PARAM_ALIGN_BYTES : PARAM_ALIGN_NUMEL; }
enum { BLOCKS_ALIGN = 16 };                      // a rank's part is a multiple of 16 blocks: whole words in every type
static inline size_t align_bytes(size_t n) { return (size_t)round_up((int64_t)n, PARAM_ALIGN_BYTES); }

// The most runs of a parameter's elements in a shard: one per matrix that is kept quantized, else one.
static inline int param_runs(const Param *p) { return p->keeps ? p->keeps : 1; }
bool param_in_blocks(const Param *p) {
  bool blocks = p->keeps > 0;
  for (int k = 0; k < p->keeps; k++) blocks = blocks && block_values(p->kept[k]) > 1;
  return blocks;
}

// ---- wrapping: parameters -> units
// Whether p is a parameter of the module `prefix`, or of a module inside it; "" is the model.
static inline bool param_is_under(const Param *p, const char *prefix) {
  const size_t n = strlen(prefix);
  return !n || (!strncmp(p->name, prefix, n) && p->name[n] == '.');
}

struct Wrapping { ParamPlace *place; int params, units; Unit *unit; };

// Adds an empty unit. Returns its number.
static inline int wrap_unit(Wrapping *w, const char *name) {
  w->unit = (Unit *)realloc(w->unit, sizeof(Unit) * (size_t)(w->units + 1));
  memset(&w->unit[w->units], 0, sizeof(Unit));
  snprintf(w->unit[w->units].name, sizeof w->unit->name, "%s", name);
  return w->units++;
}
// Puts all parameters of module `prefix` that have no unit yet into unit u.
static inline void wrap_take(Wrapping *w, const char *prefix, int u) {
  for (int i = 0; i < w->params; i++)
    if (w->place[i].unit < 0 && param_is_under(w->place[i].param, prefix)) w->place[i].unit = u;
}
// torch.distributed.fsdp.wrap.size_based_auto_wrap_policy: looks at a module's children first; then the module becomes
// a unit if its parameters that are in no unit yet have `least` elements or more. "h", the list of blocks, never
// becomes a unit. Returns the number of elements of module `prefix` that are in units now.
static inline int64_t wrap_by_size(Wrapping *w, const char *prefix, int64_t least) {
  int64_t total = 0, wrapped = 0;
  for (int i = 0; i < w->params; i++)
    if (param_is_under(w->place[i].param, prefix)) total += param_numel(w->place[i].param);
  if (total < least) return 0;
  char last[64] = "";
  for (int i = 0; i < w->params; i++) {
    if (!param_is_under(w->place[i].param, prefix)) continue;
    char child[64];
    snprintf(child, sizeof child, "%s", w->place[i].param->name);
    char *end = strchr(child + strlen(prefix) + (prefix[0] != 0), '.');
    if (!end) continue;                          // the module's own parameter
    *end = 0;
    if (!strcmp(child, last)) continue;
    snprintf(last, sizeof last, "%s", child);
    wrapped += wrap_by_size(w, child, least);
  }
  if (!prefix[0] || !strcmp(prefix, "h") || total - wrapped < least) return wrapped;
  wrap_take(w, prefix, wrap_unit(w, prefix));
  return total;
}

// The order of units a and b, whose first parameters are first_a and first_b.
static inline int unit_order(const Unit *a, int first_a, const Unit *b, int first_b) {
  return a->stage != b->stage ? a->stage - b->stage : first_a - first_b;
}
// Sorts units by stage, then by their first parameter, and drops units without parameters. A unit whose parameters are
// of several stages gets stage 0.
static inline void wrap_sort(Wrapping *w) {
  int *first = (int *)malloc(sizeof(int) * (size_t)w->units), *order = (int *)malloc(sizeof(int) * (size_t)w->units);
  int kept = 0;
  for (int u = 0; u < w->units; u++) {
    first[u] = -1;
    for (int i = w->params - 1; i >= 0; i--) {
      if (w->place[i].unit != u) continue;
      const int stage = w->place[i].param->stage;
      w->unit[u].stage = first[u] < 0 || w->unit[u].stage == stage ? stage : 0;
      w->unit[u].params++;
      first[u] = i;
    }
    if (first[u] < 0) continue;
    int at = kept++;
    for (; at > 0 && unit_order(&w->unit[u], first[u], &w->unit[order[at - 1]], first[order[at - 1]]) < 0; at--)
      order[at] = order[at - 1];
    order[at] = u;
  }
  Unit *sorted = (Unit *)calloc((size_t)kept, sizeof(Unit));
  int *now = (int *)malloc(sizeof(int) * (size_t)w->units);
  for (int i = 0; i < kept; i++) { sorted[i] = w->unit[order[i]]; now[order[i]] = i; }
  for (int i = 0; i < w->params; i++) w->place[i].unit = now[w->place[i].unit];
  free(w->unit); free(first); free(order); free(now);
  w->unit = sorted;
  w->units = kept;
}

// The places of parameters before anything is decided, malloc'ed.
static inline ParamPlace *param_places(const Param *param, int params) {
  ParamPlace *place = (ParamPlace *)calloc((size_t)params, sizeof(ParamPlace));
  for (int i = 0; i < params; i++) place[i].param = &param[i], place[i].unit = -1;
  return place;
}
// Chooses the units and fills in place[].unit. Returns a malloc'ed array of *units units, in order of stages. least:
// the elements that make a module a unit with WRAP_MIN_PARAMS.
static inline Unit *units_wrap(ParamPlace *place, int params, WrapPolicy policy, int64_t least, int *units) {
  Wrapping w = {place, params, 0, NULL};
  if (policy == WRAP_MIN_PARAMS) wrap_by_size(&w, "", least);
  for (int i = 0; i < params && policy == WRAP_BLOCK; i++) {
    char block[64];
    snprintf(block, sizeof block, "h.%d", place[i].param->stage - 1);
    if (place[i].param->stage && place[i].unit < 0) wrap_take(&w, block, wrap_unit(&w, block));
  }
  wrap_take(&w, "", wrap_unit(&w, policy == WRAP_MODEL ? "model" : "root"));
  wrap_sort(&w);
  *units = w.units;
  return w.unit;
}

// ---- laying out
// apart: masters are in host memory and parameters are not (--offload optimizer). in_place: shards are stored in the
// order of a gathered unit, of which this rank has part `me`; if not, a rank's parts follow each other. moments: number
// that the optimizer has; a matrix that Muon updates has one. in_blocks: the device multiplies quantized matrices.
struct LayoutConfig { ShardLayout layout; Dtype compute_dtype; bool apart, in_place; int me, moments; bool in_blocks; };

// Whether a flat piece may take p, or a matrix of it whose bytes are kept in blocks of `type`.
static inline bool same_segment(const Piece *c, const ParamPlace *p, int type) {
  const Param *q = c->like->param, *r = p->param;
  return c->like->dtype == p->dtype && c->type == type && q->frozen == r->frozen && c->like->owned == p->owned &&
         (r->frozen || (q->decay == r->decay && q->lr_scale == r->lr_scale));
}
// Puts the unit's parameters into pieces and fills in numel. Trained pieces come before frozen ones, and among trained
// ones those with weight decay first.
static inline void unit_pieces(Unit *u, int index, ParamPlace *place, int params, ShardLayout layout, int shards) {
  u->piece = (Piece *)calloc((size_t)u->params * 3, sizeof(Piece));
  for (int order = 0; order < 3; order++) for (int i = 0; i < params; i++) {
    ParamPlace *x = &place[i];
    const Param *p = x->param;
    if (x->unit != index || order != (p->frozen ? 2 : p->decay ? 0 : 1)) continue;
    for (int k = 0; k < param_runs(p); k++) {
      const int type = p->keeps ? p->kept[k] : 0;
      const int64_t rows = p->keeps ? p->matrix_rows[k] : p->padded_rows;
      int at = layout == SHARD_DIM0 ? u->pieces : 0;
      while (at < u->pieces && !same_segment(&u->piece[at], x, type)) at++;
      Piece *c = &u->piece[at];
      if (at == u->pieces) {
        *c = Piece{};
        c->like = x, c->type = type;
        u->pieces++;
      }
      if (!k) x->piece = at, x->in_piece = c->numel;             // c->numel here: of all ranks together
      if (type) x->kept[k] = {at, c->numel};
      if (layout == SHARD_DIM0) c->numel = (rows + shards - 1) / shards * param_cols(p);
      else c->numel += type ? rows * param_cols(p) : round_up(param_numel_padded(p), piece_align(x->dtype));
    }
  }
  for (int i = 0; i < u->pieces && layout == SHARD_FLAT; i++) {
    Piece *c = &u->piece[i];
    c->numel = round_up((c->numel + shards - 1) / shards, c->type ? BLOCKS_ALIGN * block_values(c->type)
                                                                  : piece_align(c->like->dtype));
  }
}
// Gives every piece its places. Flat pieces come in the order of their first parameter, so that dtypes may alternate;
// trained pieces still come before frozen ones.
//
// Which trained pieces have a master beside the shard: fp32 parameters are their own masters, unless masters are in
// host memory. A bf16 parameter is the upper half of its master, so only the lower half is stored beside it, unless
// masters are in host memory. All other parameters have whole fp32 masters: an fp16 or E4M3 number is not the upper
// half of an fp32 number (master.cuh).
static inline void unit_layout(Unit *u, int index, ParamPlace *place, int params, LayoutConfig k, int shards) {
  unit_pieces(u, index, place, params, k.layout, shards);
  const int64_t S = shards;
  for (int i = 0; i < u->pieces; i++) {
    Piece *c = &u->piece[i];
    const int64_t part = round_up(c->numel, PARAM_ALIGN_NUMEL), whole = round_up(S * c->numel, PARAM_ALIGN_NUMEL);
    c->has_master = piece_trains(c) && (c->like->dtype != F32 || k.apart);
    c->split = c->has_master && c->like->dtype == BF16 && !k.apart;
    c->expands = c->like->dtype != k.compute_dtype;
    c->full_at = u->full_bytes;
    c->shard_at = k.in_place ? c->full_at + piece_at(c, k.me * c->numel) : u->shard_bytes;
    c->moments = !piece_trains(c) ? 0 : c->like->owned ? 1 : k.moments;
    c->state_at = u->shard_numel;
    c->second_at = u->second_numel;
    c->master_at = c->split ? u->low_numel : u->master_numel;
    c->grad_at = u->grad_numel;
    c->expand_at = u->expand_numel;
    u->full_bytes += align_bytes(piece_at(c, S * c->numel));
    u->shard_bytes += align_bytes(piece_bytes(c));
    u->shard_numel += part;
    if (piece_trains(c)) u->state_numel += part, u->grad_numel += whole;
    if (c->moments == 2) u->second_numel += part;
    if (c->has_master) *(c->split ? &u->low_numel : &u->master_numel) += part;
    if (c->expands && !c->type) u->expand_numel += whole;
  }
  for (int i = 0; i < params; i++) {             // a quantized parameter is expanded to one matrix with padding rows
    const Param *p = place[i].param;
    if (place[i].unit != index || !p->keeps) continue;
    place[i].expand_at = k.in_blocks && p->read_in_blocks && param_in_blocks(p) ? -1 : u->expand_numel;
    if (place[i].expand_at < 0) continue;
    u->expand_numel += round_up(p->padded_rows * param_cols(p), PARAM_ALIGN_NUMEL);
  }
}

// shard_run for matrix number `part` of a parameter that is kept quantized; part 0 of any other is the whole parameter.
static inline bool matrix_run(const Unit *u, const ParamPlace *x, int part, int i, Span *run) {
  const Param *p = x->param;
  const KeptPlace at = p->keeps ? x->kept[part] : KeptPlace{x->piece, x->in_piece};
  const int64_t in_piece = at.in_piece, before = p->keeps ? param_part_first(p, part) : 0;
  const int64_t numel = p->keeps ? p->matrix_rows[part] * param_cols(p) : param_numel_padded(p);
  const Piece *c = &u->piece[at.piece];
  const int64_t first = i * c->numel, a = max64(first, in_piece), b = min64(first + c->numel, in_piece + numel);
  if (a >= b) return false;
  *run = Span{before + a - in_piece, a - first, b - a, part};
  return true;
}
// Fills in the run of parameter p in the shard of rank i, after the first `past` elements of p in that shard; returns
// false if there is none. If p is kept quantized, more runs may follow, in other pieces.
static inline bool shard_run(const Unit *u, const ParamPlace *p, int i, Span *run, int64_t past = 0) {
  for (int part = 0; part < param_runs(p->param); part++) {
    if (!matrix_run(u, p, part, i, run)) continue;
    if (past < run->numel) {
      *run = Span{run->in_range + past, run->in_piece + past, run->numel - past, part};
      return true;
    }
    past -= run->numel;
  }
  return false;
}

bool fsdp_span(const Fsdp *f, int p, int shard, Span *span, int64_t past) {
  const ParamPlace *q = &f->lay.place[p];
  return shard_run(&f->lay.unit[q->unit], q, shard, span, past);
}

// Fills in the run of piece i among elements [first, first + n) of a gradient shard; returns false if there is none.
static inline bool piece_run(const Unit *u, int i, int64_t first, int64_t n, PieceRun *run) {
  const Piece *c = &u->piece[i];
  const int64_t a = max64(first, c->state_at), b = min64(first + n, c->state_at + c->numel);
  if (!piece_trains(c) || a >= b) return false;
  *run = PieceRun{i, a, c->grad_at + a - c->state_at, c->numel, b - a};
  return true;
}

// Elements of a rank's gradient shard without the gaps that align pieces: what a reduction sends.
static inline int64_t unit_wire_numel(const Unit *u) {
  int64_t n = 0;
  for (int i = 0; i < u->pieces; i++) n += piece_trains(&u->piece[i]) ? u->piece[i].numel : 0;
  return n;
}
// Bytes of a rank's parameter shard without the gaps that align pieces: what a gather sends.
static inline int64_t unit_wire_bytes(const Unit *u) {
  int64_t n = 0;
  for (int i = 0; i < u->pieces; i++) n += (int64_t)piece_bytes(&u->piece[i]);
  return n;
}

// ---- units, for plans and reports
int fsdp_block_units(const Param *param, int params, int64_t least) {
  int units, inside = 0;
  ParamPlace *place = param_places(param, params);
  Unit *unit = units_wrap(place, params, WRAP_MIN_PARAMS, least, &units);
  for (int u = 0; u < units; u++) inside += unit[u].stage != 0;
  free(unit);
  free(place);
  return inside;
}
UnitFigures fsdp_unit_figures(const Fsdp *f, int u) {
  const Unit *q = &f->lay.unit[u];
  UnitFigures x = {q->name, q->stage, q->params, 0, 0, q->full_bytes, q->shard_bytes};
  for (int i = 0; i < f->lay.params; i++) {
    const Param *p = &f->lay.param[i];
    if (f->lay.place[i].unit != u) continue;
    x.numel += param_numel(p);
    x.trained += p->frozen ? 0 : p->row_end ? (p->row_end - p->row_from) * param_cols(p) : param_numel(p);
  }
  return x;
}
int fsdp_owner_of(const Fsdp *f, int p, int64_t element) {
  Span run;
  for (int i = 0; i < f->cfg.mesh.shards; i++)
    for (int64_t at = 0; fsdp_span(f, p, i, &run, at); at += run.numel)
      if (element >= run.in_range && element < run.in_range + run.numel) return i;
  return -1;
}
