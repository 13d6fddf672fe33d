// predict.h: how long a training step would take on a machine that is not here. The step is run once more with a table
// of ops (fsdp/record.h) that advance clocks instead of computing: what overlaps, and what waits for what, follows from
// the program's own schedule. Everything here is a prediction.
//
//   1 work        FLOPs and bytes of a call, from the tensors that its line of ops.h names
//   2 messages    time of a collective: latency and bytes, inside a host and between hosts
//   3 clocks      a dry run of the step on three clocks: the model's, the gathers', the reductions'
//
// An op takes max(FLOPs / rate, bytes / bandwidth) + launch. A call on a stream starts when the call before it has
// ended; events order streams as they do on the device. docs/plan.md describes this model.
#pragma once
#include "machines.h"

// ================================================================================================ 1 work
enum StepPart { STEP_PRODUCTS, STEP_ATTENTION, STEP_ELEMENTWISE, STEP_OPTIMIZER, STEP_SUMS, STEP_COPIES,
                STEP_LAUNCHES, STEP_GATHERS_EXPOSED, STEP_REDUCTIONS_EXPOSED, STEP_EXCHANGE, STEP_PARTS };
static const char *const step_part_words[STEP_PARTS] = {
    "matrix multiplies", "attention", "element-wise", "optimizer and norm", "sums of gradients",
    "copies to and from the host", "launches", "waiting for gathers", "waiting for reductions",
    "exchange of norm and losses"};

static inline double tensor_bytes(Tensor t) { return t.data ? (double)numel(t) * (double)dtype_bytes(t.dtype) : 0; }
// FLOPs of a matrix multiply whose result is tensor `out` and whose sums have `k` terms.
static inline double product_flops(const OpTouch *w, int out, int64_t k) {
  return w->arg[out].t.data ? 2.0 * (double)numel(w->arg[out].t) * (double)k : 0;
}
// FLOPs of one product of queries and keys, the causal half: B T^2 C.
static inline double attention_triangle(Tensor out) { return (double)numel(out) * (double)out.shape[1]; }
static inline double flops_forward(const OpTouch *w) { return product_flops(w, 0, w->arg[2].t.shape[1]); }
static inline double flops_fp8(const OpTouch *w) { return product_flops(w, 0, w->arg[1].t.shape[1]); }
static inline double flops_input(const OpTouch *w) { return product_flops(w, 0, w->arg[1].t.shape[1]); }
static inline double flops_weight(const OpTouch *w) { return product_flops(w, 0, w->arg[2].t.shape[0]); }
static inline double flops_attention(const OpTouch *w) { return 2 * attention_triangle(w->arg[0].t); }
static inline double flops_attention_backward(const OpTouch *w) { return 5 * attention_triangle(w->arg[3].t); }
// MUON_STEPS steps of three matrix multiplies, of which two have symmetric results (half is computed): muon.cuh.
static inline double flops_newton_schulz(const OpTouch *w) {
  const double rows = (double)w->arg[0].t.shape[0], cols = (double)w->arg[0].t.shape[1], m = fmin(rows, cols);
  return MUON_STEPS * m * m * (3 * fmax(rows, cols) + m);
}
// Bytes of embedding lookups: only the table's rows of the batch's tokens are read, or added to in fp32.
static inline double bytes_embedding(const OpTouch *w) { return 3 * tensor_bytes(w->arg[0].t); }
static inline double bytes_embedding_backward(const OpTouch *w) {
  return tensor_bytes(w->arg[2].t) + 8.0 * (double)numel(w->arg[2].t) + tensor_bytes(w->arg[1].t);
}
// The share of a GPU's best rate that a result of this shape allows: its last tiles are not full, and in the last wave
// not all SMs have a tile. The library is taken to choose the tile size that loses least; smaller tiles reuse less of
// what they have read (`reuse`, assumed).
static inline double product_fill(const Machine *m, Tensor out) {
  static const struct { double rows, cols, reuse; } tiles[] = {
      {128, 256, 1}, {256, 128, 1}, {128, 128, 0.92}, {128, 64, 0.8}, {64, 64, 0.65}, {64, 32, 0.4}};
  const double rows = (double)out.shape[0], cols = (double)(numel(out) / out.shape[0]);
  double best = 0;
  for (const auto &t : tiles) {
    const double count = ceil(rows / t.rows) * ceil(cols / t.cols);
    const double turns = ceil(count / (m->sms - m->sm_margin));
    best = fmax(best, t.reuse * rows * cols / (t.rows * t.cols) / (turns * m->sms));
  }
  return best;
}
// Bytes of extra passes over memory after CUDA's matrix multiplies: GELU of the result, the gradient of a bias.
static inline double passes_forward(const OpTouch *w) { return 2 * tensor_bytes(w->arg[1].t); }
static inline double passes_weight(const OpTouch *w) {           // not of a bias whose sums another op made
  return w->arg[1].t.data && !w->arg[4].t.data ? tensor_bytes(w->arg[2].t) : 0;
}
// Ops that are not simply element-wise. bytes: NULL if each tensor is read or written once. passes: extra bytes, NULL:
// none.
typedef double WorkAmount(const OpTouch *w);
struct OpKind { const char *op; StepPart part; WorkAmount *flops, *bytes, *passes; };
static const OpKind op_kinds[] = {
    {"matmul_forward", STEP_PRODUCTS, flops_forward, NULL, passes_forward},
    {"matmul_forward_fp8", STEP_PRODUCTS, flops_fp8, NULL, NULL},
    {"matmul_backward_input", STEP_PRODUCTS, flops_input, NULL, NULL},
    {"matmul_backward_weight", STEP_PRODUCTS, flops_weight, NULL, passes_weight},
    {"attention_forward", STEP_ATTENTION, flops_attention, NULL, NULL},
    {"attention_backward", STEP_ATTENTION, flops_attention_backward, NULL, NULL},
    {"embedding_forward", STEP_ELEMENTWISE, NULL, bytes_embedding, NULL},
    {"embedding_backward", STEP_ELEMENTWISE, NULL, bytes_embedding_backward, NULL},
    {"adamw_update", STEP_OPTIMIZER, NULL, NULL, NULL},
    {"sgd_update", STEP_OPTIMIZER, NULL, NULL, NULL},
    {"newton_schulz", STEP_PRODUCTS, flops_newton_schulz, NULL, NULL},
    {"muon_momentum", STEP_OPTIMIZER, NULL, NULL, NULL},
    {"muon_update", STEP_OPTIMIZER, NULL, NULL, NULL},
    {"norm_change", STEP_OPTIMIZER, NULL, NULL, NULL},
    {"norm_accumulate", STEP_OPTIMIZER, NULL, NULL, NULL},
    {"step_decide", STEP_OPTIMIZER, NULL, NULL, NULL}};
static inline const OpKind *op_kind(int op) {
  static OpKind kinds[OP_COUNT];                 // looked up once
  OpKind *kind = &kinds[op];
  if (kind->op) return kind;
  *kind = OpKind{op_word(op), STEP_ELEMENTWISE, NULL, NULL, NULL};
  for (const OpKind &k : op_kinds) if (!strcmp(k.op, op_word(op))) *kind = k;
  return kind;
}

// ================================================================================================ 2 messages
// Seconds of a message or collective: latency, before it moves bytes; moving, while it does.
struct CommTime { double latency, moving; };
static inline CommTime comm_time_add(CommTime a, CommTime b) {
  return CommTime{a.latency + b.latency, a.moving + b.moving};
}
// A ring over a group, in which every rank receives `bytes`. Each link of the ring carries as many; the link between
// two hosts is shared by the adapters of all the group's ranks there. As in NCCL's model, each step is a hop.
static inline CommTime ring_time(const Machine *m, GroupPlace g, double bytes) {
  if (g.size < 2) return CommTime{};
  const double rate = g.hosts == 1 ? m->inside : fmin(m->inside, m->between * g.here);
  return CommTime{m->base_s + (g.size - g.hosts) * m->inside_s + (g.hosts - 1) * m->between_s, bytes / rate};
}
// `bytes` from every other rank of a group, each by a message of its own.
static inline CommTime messages_time(const Machine *m, GroupPlace g, double bytes) {
  if (g.size < 2) return CommTime{};
  const double turns = ceil((g.size - 1) / (double)P2P_CHANNELS), hop = g.hosts == 1 ? m->inside_s : m->between_s;
  const double inside = (g.here - 1) * bytes / m->inside, between = (g.size - g.here) * bytes / m->between;
  return CommTime{m->base_s + turns * hop, m->gpu ? fmax(inside, between) : between};
}
// A message of `bytes`, from a rank of this host or another.
static inline CommTime message_time(const Machine *m, bool near, double bytes) {
  return CommTime{m->base_s + (near ? m->inside_s : m->between_s), bytes / (near ? m->inside : m->between)};
}

// ================================================================================================ 3 clocks
// Seconds of the model's stream by part, and other sums: the step; all-gathers and reduce-scatters, hidden ones
// included (seconds); FLOPs of matrix multiplies and of attention.
enum StepSum { STEP_TOTAL = STEP_PARTS, STEP_GATHERS, STEP_REDUCTIONS, STEP_PRODUCT_FLOPS, STEP_ATTENTION_FLOPS,
               STEP_SUMMED };
struct StepTimes { double at[STEP_SUMMED]; };

// The clocks of a dry run, in seconds.
struct Timeline {
  DryWatch watch;                                // first key: callbacks get a pointer to it
  const Machine *m;
  double now[RECORD_STREAMS];                    // when each stream has done what was enqueued so far
  double *event;                                 // [events] when each event was recorded, and on which stream
  RecordStream *event_of;
  int events;
  double links_free, launched;                   // when the links are free; when the last collective started
  bool waits[RECORD_STREAMS];                    // the stream's next memory access starts the collective `comm`
  CommTime comm[RECORD_STREAMS];
  double not_before, job_began;                  // earliest start of that collective; start of the current reduction
  StepTimes sum, microbatch[TIMED_MICROBATCHES + 2];             // so far; as of the start of each microbatch
  int microbatches;
};

// Adds the time of an op to its stream's clock. Ops of side streams use the same device as the model's: their compute
// time is added to the model's clock too, but not their launches.
static inline void timeline_spend(Timeline *l, RecordStream stream, StepPart part, double seconds) {
  const bool side = stream != RECORD_MODEL;
  l->now[RECORD_MODEL] += seconds;
  l->sum.at[side ? STEP_SUMS : part] += seconds;
  if (!side) {
    l->now[RECORD_MODEL] += l->m->launch_s;
    l->sum.at[STEP_LAUNCHES] += l->m->launch_s;
  } else if (l->m->gpu) l->now[stream] += seconds + l->m->launch_s;
  else if (l->now[stream] < l->now[RECORD_MODEL]) l->now[stream] = l->now[RECORD_MODEL];       // the same cores
}
static inline double product_seconds(const Machine *m, const OpTouch *w, double flops) {
  if (!flops) return 0;
  const bool fp8 = op_kind(w->op)->flops == flops_fp8;
  return flops / (m->product_flops * (fp8 ? 2 : 1) * (m->gpu ? product_fill(m, w->arg[0].t) : 1));
}
static inline double attention_seconds(const Machine *m, const OpTouch *w, double flops) {
  const bool forward = op_kind(w->op)->flops == flops_attention;
  const Tensor out = w->arg[forward ? 0 : 3].t, lse = w->arg[forward ? 1 : 4].t;
  const int64_t tokens = out.shape[1];
  const AttentionRate r = m->attention[attention_kind(m, out.dtype, out.shape[2] / lse.shape[1], tokens)];
  return flops * (1 + ATTENTION_TILE / (double)tokens) / (forward ? r.forward : r.backward);
}
static inline void timeline_op(Timeline *l, RecordStream stream, const OpTouch *w) {
  const OpKind *kind = op_kind(w->op);
  const Machine *m = l->m;
  const bool host = stream == RECORD_HOST;       // of an offloaded optimizer
  const double flops = kind->flops ? kind->flops(w) : 0, bytes = kind->bytes ? kind->bytes(w) : w->bytes;
  double seconds = bytes / (host ? m->host_rate : m->memory_rate);
  if (kind->part == STEP_PRODUCTS) {
    seconds = fmax(seconds, product_seconds(m, w, flops));
    l->sum.at[STEP_PRODUCT_FLOPS] += flops;
  }
  if (kind->part == STEP_ATTENTION) {
    seconds = fmax(seconds, attention_seconds(m, w, flops));
    l->sum.at[STEP_ATTENTION_FLOPS] += flops;
  }
  timeline_spend(l, host ? RECORD_MODEL : stream, host ? STEP_OPTIMIZER : kind->part, seconds);
  const double passes = kind->passes && m->gpu ? kind->passes(w) : 0;
  if (passes > 0) timeline_spend(l, RECORD_MODEL, STEP_ELEMENTWISE, passes / m->memory_rate);
}

// Starts a collective when its stream has come to it; with NCCL also not before the collective launched before it.
// Collectives share the links: one that starts while another moves bytes moves its own after that.
static inline void timeline_comm(Timeline *l, RecordStream stream) {
  const CommTime c = l->comm[stream];
  double start = fmax(l->now[stream], l->not_before);
  l->waits[stream] = false;
  l->not_before = 0;
  if (c.latency + c.moving == 0) return;
  if (l->m->gpu) start = fmax(start, l->launched);
  l->launched = start;
  const double end = fmax(start + c.latency, l->links_free) + c.moving;
  l->links_free = end;
  l->now[stream] = end;
  l->sum.at[stream == RECORD_GATHER ? STEP_GATHERS : STEP_REDUCTIONS] += c.latency + c.moving;
}
// Ops, copies, zeroing, and the accesses of collectives (fsdp/transport_plan.h: OP_GIVE, OP_TAKE).
static inline void timeline_take(DryWatch *to, RecordStream stream, const OpTouch *x) {
  Timeline *l = (Timeline *)to;
  if (x->op < OP_COPY) timeline_op(l, stream, x);
  if (x->op < OP_COPY || stream == RECORD_HOST) return;          // what the host copies for itself takes no time of the
                                                                 // device
  const bool moves = x->op == OP_GIVE || x->op == OP_TAKE;
  if (moves && l->waits[stream]) timeline_comm(l, stream);
  if (moves) return;
  double bytes = 0;
  bool crosses = false;                          // between a GPU and its host
  for (int i = 0; i < x->count; i++) {
    bytes += (double)x->access[i].bytes;
    crosses = crosses || (l->m->gpu && x->access[i].at < RECORD_ADDRESSES);
  }
  if (!crosses) {
    timeline_spend(l, stream, STEP_ELEMENTWISE, bytes / l->m->memory_rate);
    return;
  }
  const double seconds = l->m->launch_s + bytes / 2 / l->m->pcie;              // on a copy engine: streams continue
  l->now[stream] += seconds;
  if (stream == RECORD_MODEL) l->sum.at[STEP_COPIES] += seconds;
}
static inline void timeline_event(DryWatch *to, RecordStream stream, int event, bool waits) {
  Timeline *l = (Timeline *)to;
  if (event >= l->events) {
    const int n = 2 * event + 64;
    l->event = (double *)realloc(l->event, sizeof(double) * (size_t)n);
    l->event_of = (RecordStream *)realloc(l->event_of, sizeof(RecordStream) * (size_t)n);
    for (; l->events < n; l->events++) l->event[l->events] = 0, l->event_of[l->events] = RECORD_MODEL;
  }
  if (!waits) l->event[event] = l->now[stream], l->event_of[event] = stream;
  const double until = l->event[event], waited = until - l->now[stream];
  if (waited <= 0) return;
  l->now[stream] = until;
  if (stream == RECORD_MODEL)
    l->sum.at[l->event_of[event] == RECORD_GATHER ? STEP_GATHERS_EXPOSED : STEP_REDUCTIONS_EXPOSED] += waited;
}
// Stores the sums so far at the start of each microbatch and of the update.
static inline void timeline_phase(DryWatch *to, const char *name) {
  Timeline *l = (Timeline *)to;
  if (strcmp(name, "forward") && strcmp(name, "update")) return;
  l->sum.at[STEP_TOTAL] = l->now[RECORD_MODEL];
  l->microbatch[l->microbatches++] = l->sum;
}

// ---- what moves
// The time of a collective or message x, from its start.
static inline CommTime move_time(const Machine *m, const DryMove *x) {
  const double others = x->group.size - 1;
  if (x->kind == MOVE_GATHER) {
    const CommTime t = m->gpu ? ring_time(m, x->group, others * x->bytes) : messages_time(m, x->group, x->bytes);
    return x->from_host ? comm_time_add(t, CommTime{m->launch_s, x->bytes / m->pcie}) : t;
  }
  if (x->kind == MOVE_SUM) return message_time(m, x->near, x->bytes);
  if (x->kind == MOVE_UPDATES) {                 // links carry what is sent and what is received at once
    const double between = x->between / m->between, inside = x->inside / m->inside;
    return CommTime{m->base_s + (between > 0 ? m->between_s : m->inside_s), m->gpu ? fmax(inside, between) : between};
  }
  return x->kind == MOVE_CONTRIBUTIONS && !x->ring ? messages_time(m, x->group, x->bytes)
                                                   : ring_time(m, x->group, x->bytes);
}
// The next access on the stream starts a collective.
static inline void timeline_expect(Timeline *l, RecordStream stream, CommTime c) {
  l->waits[stream] = true;
  l->comm[stream] = c;
}
// Takes a collective or message of the schedule; NULL: the one announced does not happen. x->hops: how many messages
// must have been passed along a chain before this one arrives.
static inline void timeline_move(DryWatch *to, RecordStream stream, const DryMove *x) {
  Timeline *l = (Timeline *)to;
  const Machine *m = l->m;
  if (!x) { l->waits[stream] = false; return; }
  if (x->kind == MOVE_START) { l->job_began = l->now[stream]; return; }
  CommTime t = move_time(m, x);
  const double before = x->hops * (t.latency + t.moving);
  if (x->kind == MOVE_SMALL) {
    l->now[stream] += t.latency + t.moving;
    l->sum.at[STEP_EXCHANGE] += t.latency + t.moving;
    return;
  }
  if (!m->gpu && x->copies) timeline_spend(l, RECORD_MODEL, STEP_ELEMENTWISE, x->copied / m->inside);
  if (x->after_start) l->not_before = l->job_began + before;
  else t.latency += before;
  timeline_expect(l, stream, t);
}

// Predicts a training step of a planned rank on machine m. Microbatches that the dry run did not have are taken to last
// as long, on average, as the two that are between its first and its last one.
static inline StepTimes step_predict(const RunView *run, const Machine *m) {
  Timeline l = {};
  l.watch = DryWatch{timeline_take, timeline_event, timeline_move, timeline_phase};
  l.m = m;
  const int64_t more = run->opt->grad_accum - run->opt->trainer->plan_step(run, &l.watch);
  const int64_t last = l.microbatches - 1;
  l.sum.at[STEP_TOTAL] = l.now[RECORD_MODEL];
  for (double *x = l.sum.at; more > 0 && x < l.sum.at + STEP_SUMMED; x++) {
    const int64_t i = x - l.sum.at;
    *x += (double)more * (l.microbatch[last - 1].at[i] - l.microbatch[last - 3].at[i]) / 2;
  }
  free(l.event);
  free(l.event_of);
  return l.sum;
}
