// predict.h: how long a training step would take on machines that are not here. The step is run once more over a
// planning table (fsdp/record.h) whose ops advance clocks instead of computing: what overlaps what, and who waits
// for whom, follows from the program's own schedule. Everything here is a prediction.
//
//   1 work        FLOPs and bytes of a call, from the tensors that its line of ops.h names
//   2 messages    time of a collective: latency and bytes, inside a host and between hosts
//   3 clocks      a dry run of the step on three clocks: the model's, the gathers', the reductions'
//
// An op takes the longer of FLOPs / rate and bytes / bandwidth, and a launch. A stream's next call begins when the one
// before is over; events order streams as they do on the device. docs/plan.md states the model for readers.
#pragma once
#include "plan.h"
#include "machines.h"
#include "run/options/options.h"
#include "run/report/report.h"

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
// One product of queries and keys, the causal half: B T^2 C.
static inline double attention_triangle(Tensor out) { return (double)numel(out) * (double)out.shape[1]; }
static inline double flops_forward(const OpTouch *w) { return product_flops(w, 0, w->arg[2].t.shape[1]); }
static inline double flops_fp8(const OpTouch *w) { return product_flops(w, 0, w->arg[1].t.shape[1]); }
static inline double flops_input(const OpTouch *w) { return product_flops(w, 0, w->arg[1].t.shape[1]); }
static inline double flops_weight(const OpTouch *w) { return product_flops(w, 0, w->arg[2].t.shape[0]); }
static inline double flops_attention(const OpTouch *w) { return 2 * attention_triangle(w->arg[0].t); }
static inline double flops_attention_backward(const OpTouch *w) { return 5 * attention_triangle(w->arg[3].t); }
// Five steps of three products, of which two are symmetric: muon.cuh.
static inline double flops_newton_schulz(const OpTouch *w) {
  const double rows = (double)w->arg[0].t.shape[0], cols = (double)w->arg[0].t.shape[1], m = fmin(rows, cols);
  return MUON_STEPS * m * m * (3 * fmax(rows, cols) + m);
}
// Of tables, only the rows of the batch's tokens are read, or added to in fp32.
static inline double bytes_embedding(const OpTouch *w) { return 3 * tensor_bytes(w->arg[0].t); }
static inline double bytes_embedding_backward(const OpTouch *w) {
  return tensor_bytes(w->arg[2].t) + 8.0 * (double)numel(w->arg[2].t) + tensor_bytes(w->arg[1].t);
}
// What share of a GPU's best rate a result of this shape allows: its last tiles are not full, and in the last turn not
// all multiprocessors have a tile. The library takes the tiles that lose least; smaller ones reuse less of what they
// have read (assumed).
static inline double product_fill(const Machine *m, Tensor out) {
  static const struct { double rows, cols, reuse; } tiles[] = {
      {128, 256, 1}, {256, 128, 1}, {128, 128, 0.92}, {128, 64, 0.8}, {64, 64, 0.65}, {64, 32, 0.4}};
  const double rows = (double)out.shape[0], cols = (double)(numel(out) / out.shape[0]);
  double best = 0;
  for (const auto &t : tiles) {
    const double count = ceil(rows / t.rows) * ceil(cols / t.cols);
    const double turns = ceil(count / (m->multiprocessors - m->sm_margin));
    best = fmax(best, t.reuse * rows * cols / (t.rows * t.cols) / (turns * m->multiprocessors));
  }
  return best;
}
// Bytes of passes that CUDA's matrix multiplies make besides: GELU of what was written, a bias's gradient.
static inline double passes_forward(const OpTouch *w) { return 2 * tensor_bytes(w->arg[1].t); }
static inline double passes_weight(const OpTouch *w) { return w->arg[1].t.data ? tensor_bytes(w->arg[2].t) : 0; }
// What is not element-wise. bytes: NULL where each tensor is read or written once.
// passes: NULL where there are none.
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
static inline const OpKind *op_kind(OpNumber op) {
  static OpKind kinds[OP_COUNT];                 // looked up once
  OpKind *kind = &kinds[op];
  if (kind->op) return kind;
  *kind = OpKind{op_words[op], STEP_ELEMENTWISE, NULL, NULL, NULL};
  for (const OpKind &k : op_kinds) if (!strcmp(k.op, op_words[op])) *kind = k;
  return kind;
}

// ================================================================================================ 2 messages
// Of a group of ranks: how many, on how many hosts, and how many of them on this rank's host, itself included.
struct GroupPlace { int size, hosts, here; };
static inline GroupPlace group_place(const Mesh *m, const RankGroup *g) {
  GroupPlace p = {g->size, 0, 0};
  for (int i = 0, last = -1; i < g->size; i++) {
    const int host = m->peer[g->rank[i]].host;
    p.hosts += host != last;
    p.here += host == m->peer[m->rank].host;
    last = host;
  }
  return p;
}
// Time of a message or collective: before it moves bytes, and while it does.
struct CommTime { double latency, moving; };
static inline CommTime comm_time_add(CommTime a, CommTime b) {
  return CommTime{a.latency + b.latency, a.moving + b.moving};
}
// A ring over a group into every rank of which `bytes` come: each link of the ring carries as many, and between two
// hosts the adapters of all the group's ranks there share it. As NCCL's model: a hop for each step.
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
// A message of `bytes` from rank `from`.
static inline CommTime message_time(const Machine *m, const Mesh *mesh, int from, double bytes) {
  const bool near = mesh->peer[from].host == mesh->peer[mesh->rank].host;
  return CommTime{m->base_s + (near ? m->inside_s : m->between_s), bytes / (near ? m->inside : m->between)};
}

// ================================================================================================ 3 clocks
// Seconds of the model's stream by part, and what else is added up on the way.
enum StepSum { STEP_TOTAL = STEP_PARTS, STEP_GATHERS, STEP_REDUCTIONS, STEP_PRODUCT_FLOPS, STEP_ATTENTION_FLOPS,
               STEP_SUMMED };
struct StepTimes { double at[STEP_SUMMED]; };

struct Timeline {
  Record record;                                 // first: what the contexts of a dry run point to
  const Machine *m;
  double now[RECORD_STREAMS];
  double *event;                                 // when each was recorded, and on which stream
  RecordStream *event_of;
  int events;
  double links_free, launched;                   // links are busy until; the last collective began
  bool waits[RECORD_STREAMS];                    // a collective of the stream is told by its next access
  CommTime comm[RECORD_STREAMS];
  double not_before, job_began;                  // of that collective; of the reduction in flight
  bool host_copies;                              // CPU: ranks of a host copy what they gather or send
  StepTimes sum, microbatch[TIMED_MICROBATCHES + 2];
  int microbatches;
};

// A call's time on its stream. The ops of side streams use the device that the model's use: what they compute is the
// model's time too, but not their launches.
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
  const bool fp8 = w->op == OP_matmul_forward_fp8;
  return flops / (m->product_flops * (fp8 ? 2 : 1) * (m->gpu ? product_fill(m, w->arg[0].t) : 1));
}
static inline void timeline_op(Timeline *l, const Ctx *c, const OpTouch *w) {
  const OpKind *kind = op_kind(w->op);
  const Machine *m = l->m;
  const bool host = !c->device;                  // of an offloaded optimizer
  const double flops = kind->flops ? kind->flops(w) : 0, bytes = kind->bytes ? kind->bytes(w) : w->bytes;
  double seconds = bytes / (host ? m->host_rate : m->memory_rate);
  if (kind->part == STEP_PRODUCTS) {
    seconds = fmax(seconds, product_seconds(m, w, flops));
    l->sum.at[STEP_PRODUCT_FLOPS] += flops;
  }
  if (kind->part == STEP_ATTENTION) {
    const double T = (double)w->arg[0].t.shape[1];
    seconds = fmax(seconds, flops * (1 + ATTENTION_TILE / T) / m->attention_flops);
    l->sum.at[STEP_ATTENTION_FLOPS] += flops;
  }
  timeline_spend(l, host ? RECORD_MODEL : record_stream(c), host ? STEP_OPTIMIZER : kind->part, seconds);
  const double passes = kind->passes && m->gpu ? kind->passes(w) : 0;
  if (passes > 0) timeline_spend(l, RECORD_MODEL, STEP_ELEMENTWISE, passes / m->memory_rate);
}

// A collective begins when its stream has come to it; NCCL also lets it begin no sooner than the one launched before.
// Links are shared: what begins while others move bytes moves its own behind them.
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
static inline void timeline_take(TouchSink *to, const Ctx *c, const OpTouch *x) {
  Timeline *l = (Timeline *)to;
  if (x->op < OP_COPY) timeline_op(l, c, x);
  if (x->op < OP_COPY || !c->device) return;     // what the host copies for itself takes no time of the device
  const RecordStream stream = record_stream(c);
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
  const double seconds = l->m->launch_s + bytes / 2 / l->m->pcie;              // of a copy engine: others go on
  l->now[stream] += seconds;
  if (stream == RECORD_MODEL) l->sum.at[STEP_COPIES] += seconds;
}
static inline void timeline_event_open(Ctx *c, void **event, const char *name) {
  plan_event_open(c, event, name);
  Timeline *l = (Timeline *)c->device;
  l->events = record_of(c)->events;
  l->event = (double *)realloc(l->event, sizeof(double) * (size_t)(l->events + 1));
  l->event_of = (RecordStream *)realloc(l->event_of, sizeof(RecordStream) * (size_t)(l->events + 1));
  l->event[l->events] = 0;
  l->event_of[l->events] = RECORD_MODEL;
}
static inline void timeline_event_record(Ctx *c, void *event) {
  Timeline *l = (Timeline *)c->device;
  l->event[(intptr_t)event] = l->now[record_stream(c)];
  l->event_of[(intptr_t)event] = record_stream(c);
}
static inline void timeline_event_wait(Ctx *c, void *event) {
  Timeline *l = (Timeline *)c->device;
  const RecordStream stream = record_stream(c);
  const double until = l->event[(intptr_t)event], waited = until - l->now[stream];
  if (waited <= 0) return;
  l->now[stream] = until;
  if (stream == RECORD_MODEL)
    l->sum.at[l->event_of[(intptr_t)event] == RECORD_GATHER ? STEP_GATHERS_EXPOSED : STEP_REDUCTIONS_EXPOSED] += waited;
}
// Notes the sums at the start of each microbatch and of the update.
static inline void timeline_range_begin(Ctx *c, const char *name) {
  Timeline *l = (Timeline *)c->device;
  if (strcmp(name, "forward") && strcmp(name, "update")) return;
  l->sum.at[STEP_TOTAL] = l->now[RECORD_MODEL];
  l->microbatch[l->microbatches++] = l->sum;
}
static inline Ops timeline_table(bool gpu) {
  Ops t = plan_table(gpu);
  t.event_open = timeline_event_open;
  t.event_record = timeline_event_record;
  t.event_wait = timeline_event_wait;
  t.range_begin = timeline_range_begin;
  return t;
}

// ---- the planning transport, with times
static inline Timeline *timeline_of(const Fsdp *f) { return (Timeline *)f->ctx->device; }
static inline void timeline_expect(Timeline *l, RecordStream stream, CommTime c) {
  l->waits[stream] = true;
  l->comm[stream] = c;
}
// What CPU ranks of a host copy from each other, their cores copy.
static inline void timeline_host_copies(Timeline *l, GroupPlace g, double bytes) {
  if (!l->m->gpu && l->host_copies)
    timeline_spend(l, RECORD_MODEL, STEP_ELEMENTWISE, (g.here - 1) * bytes / l->m->inside);
}
static inline void timed_gather_start(Fsdp *f, int s, GatherSlot *slot) {
  Timeline *l = timeline_of(f);
  const GatherSource g = fsdp_source(f, slot->from_secondary);
  const GroupPlace place = group_place(&f->mesh, g.group);
  double part = 0;
  EACH_PIECE_OF_STAGE(f, s, u, i) part += (double)fsdp_gather_piece(f, g, u, i).bytes;
  CommTime t = l->m->gpu ? ring_time(l->m, place, (place.size - 1) * part) : messages_time(l->m, place, part);
  if (f->cfg.offload == OFFLOAD_PARAMS && !g.secondary)
    t = comm_time_add(t, CommTime{l->m->launch_s, part / l->m->pcie});
  timeline_host_copies(l, place, part);
  timeline_expect(l, RECORD_GATHER, t);
  comm_plan.gather_start(f, s, slot);
}
static inline void timed_reduce_start(Fsdp *f) {
  comm_plan.gradient_ready(f);
  timeline_of(f)->job_began = timeline_of(f)->now[RECORD_REDUCE];
}
static inline void timed_round_send(Fsdp *f, uint64_t round, ReduceSpan x) {
  Timeline *l = timeline_of(f);
  const GroupPlace place = group_place(&f->mesh, &f->mesh.shard);
  double part = 0;
  EACH_RUN(f, x, run) part += (double)run.numel * (double)fsdp_wire_bytes(f);
  timeline_host_copies(l, place, f->mesh.windows ? 0 : part);
  const HostsLayout *h = &f->lay.hosts;
  const GroupPlace host = {h->ranks, 1, h->ranks};
  if (h->hosts) timeline_expect(l, RECORD_REDUCE, messages_time(l->m, host, l->m->gpu ? h->parts * part : 0));
  else
    timeline_expect(l, RECORD_REDUCE, f->cfg.native_reduce ? ring_time(l->m, place, (place.size - 1) * part)
                                                           : messages_time(l->m, place, part));
  comm_plan.round_send(f, round, x);
}
// Along hosts, for x elements: a message between two, and when it begins that of a reduction's first part, which comes
// through the hosts before. Links carry what is sent and received at once; the first host only sends.
static inline CommTime hosts_time(const Machine *m, ReduceSpan x) {
  return CommTime{m->base_s + m->between_s, (double)x.numel * 4 / m->between};
}
static inline void timed_hosts_begin(Fsdp *f, uint64_t round, ReduceSpan x) {
  timeline_expect(timeline_of(f), RECORD_REDUCE, hosts_time(timeline_of(f)->m, x));
  comm_plan.hosts_begin(f, round, x);
  timeline_of(f)->waits[RECORD_REDUCE] = false;
}
static inline bool timed_part_arrived(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  Timeline *l = timeline_of(f);
  const CommTime t = hosts_time(l->m, x);
  if (!f->lay.hosts.hosts) return comm_plan.part_arrived(f, round, part, x);
  timeline_expect(l, RECORD_REDUCE, t);
  if (!f->job.past[REDUCE_FOLD] && !part && hosts_receives_part(f, part))
    l->not_before = l->job_began + f->lay.hosts.me * (t.latency + t.moving);
  const bool arrived = comm_plan.part_arrived(f, round, part, x);
  l->waits[RECORD_REDUCE] = false;
  return arrived;
}
static inline void timed_hosts_give(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  Timeline *l = timeline_of(f);
  if (!f->lay.hosts.me) timeline_expect(l, RECORD_REDUCE, hosts_time(l->m, x));
  comm_plan.hosts_give(f, round, part, x);
  l->waits[RECORD_REDUCE] = false;
}
// The result has come through the hosts behind.
static inline bool timed_hosts_back(Fsdp *f, uint64_t round, ReduceSpan x) {
  Timeline *l = timeline_of(f);
  CommTime t = hosts_time(l->m, x);
  t.latency += (f->lay.hosts.hosts - 1 - f->lay.hosts.me) * (t.latency + t.moving);
  timeline_expect(l, RECORD_REDUCE, t);
  const bool back = comm_plan.hosts_back(f, round, x);
  l->waits[RECORD_REDUCE] = false;
  return back;
}
// Sums come along the replicas one after the other: a round's at this rank when those before it have had it.
static inline void timed_chain_take(Fsdp *f, uint64_t round, ReduceSpan x, float *sum) {
  Timeline *l = timeline_of(f);
  const CommTime t = message_time(l->m, &f->mesh, chain_before(f), (double)x.numel * 4);
  timeline_expect(l, RECORD_REDUCE, t);
  l->not_before = l->job_began + fsdp_replica(f) * (t.latency + t.moving);
  comm_plan.chain_take(f, round, x, sum);
}
// A unit's sum goes back to all replicas round a ring.
static inline void timed_return_start(Fsdp *f, SumReturn *r) {
  Timeline *l = timeline_of(f);
  const GroupPlace place = group_place(&f->mesh, &f->mesh.replicate);
  const double bytes = (double)fsdp_unit(f, r->unit)->state_numel * 4;
  timeline_expect(l, RECORD_REDUCE,
                  ring_time(l->m, place, f->cfg.native_reduce ? 2 * bytes * (place.size - 1) / place.size : bytes));
  comm_plan.return_start(f, r);
  l->waits[RECORD_REDUCE] = false;
}
// A round of Muon's matrices, one way: links carry what is sent and what is received at once.
static inline CommTime updates_time(const Machine *m, const Fsdp *f, int round, bool back) {
  const int S = fsdp_shards(f), me = fsdp_rank(f), host = f->mesh.peer[me].host;
  double bytes[2][2] = {};                       // sent, received; between hosts, inside
  Span run;
  EACH_OWNED(f, round, x) {
    const bool own = x->owner == me;
    for (int r = back ? 0 : me / S * S; r < (back ? fsdp_world(f) : me / S * S + S) && own; r++)
      if (r != me && owned_run(f, x, r % S, &run))
        bytes[!back][f->mesh.peer[r].host == host] += (double)owned_bytes(run.numel);
    if (!own && (back || owned_gives(f, x)) && owned_run(f, x, fsdp_shard(f), &run))
      bytes[back][f->mesh.peer[x->owner].host == host] += (double)owned_bytes(run.numel);
  }
  const double between = fmax(bytes[0][0], bytes[1][0]) / m->between;
  const double inside = fmax(bytes[0][1], bytes[1][1]) / m->inside;
  return CommTime{m->base_s + (between > 0 ? m->between_s : m->inside_s), m->gpu ? fmax(inside, between) : between};
}
static inline void timed_updates(Fsdp *f, UpdateMove move, int round) {
  const bool starts = move == UPDATES_GIVE || move == UPDATES_BACK, back = move == UPDATES_BACK;
  if (starts && !f->lay.owned.in_place && updates_move(f, round, back))
    timeline_expect(timeline_of(f), RECORD_REDUCE, updates_time(timeline_of(f)->m, f, round, back));
  comm_plan.updates(f, move, round);
  timeline_of(f)->waits[RECORD_REDUCE] = false;
}
static inline void timed_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  Timeline *l = timeline_of(f);
  RankGroup world = rank_group(0, 1, fsdp_world(f), fsdp_rank(f));
  const GroupPlace place = group_place(&f->mesh, &world);
  const CommTime t = ring_time(l->m, place, (double)bytes * (place.size - 1));
  free(world.rank);
  l->now[RECORD_MODEL] += t.latency + t.moving;
  l->sum.at[STEP_EXCHANGE] += t.latency + t.moving;
  comm_plan.small_all_gather(f, mine, all, bytes);
}
static inline Comm timeline_comm_table() {
  Comm c = comm_plan;
  c.gather_start = timed_gather_start;
  c.gradient_ready = timed_reduce_start;
  c.round_send = timed_round_send;
  c.chain_take = timed_chain_take;
  c.hosts_begin = timed_hosts_begin;
  c.part_arrived = timed_part_arrived;
  c.hosts_give = timed_hosts_give;
  c.hosts_back = timed_hosts_back;
  c.return_start = timed_return_start;
  c.small_all_gather = timed_small;
  c.updates = timed_updates;
  return c;
}

// A training step of a planned rank on machine m. Other microbatches repeat those between the first, which overwrites
// sums, and the last, whose sums go back to all replicas.
static inline StepTimes step_predict(const RunView *run, const Machine *m) {
  static Comm comm;
  Timeline l = {};
  const Ops table = timeline_table(run->ctx->ops->nccl);
  comm = timeline_comm_table();
  record_open(&l.record);
  l.record.sink.take = timeline_take;
  l.m = m;
  l.host_copies = run->fsdp->cfg.copies || !run->fsdp->mesh.windows;
  touch_of_host = &l.record.sink;
  const int64_t more = run->opt->grad_accum - run->opt->trainer->plan_step(run, &l.record, &table, &comm);
  const int64_t last = l.microbatches - 1;
  l.sum.at[STEP_TOTAL] = l.now[RECORD_MODEL];
  for (double *x = l.sum.at; more > 0 && x < l.sum.at + STEP_SUMMED; x++) {
    const int64_t i = x - l.sum.at;
    *x += (double)more * (l.microbatch[last - 1].at[i] - l.microbatch[last - 3].at[i]) / 2;
  }
  touch_of_host = NULL;
  record_close(&l.record);
  free(l.event);
  free(l.event_of);
  return l.sum;
}
