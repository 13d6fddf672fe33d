// schedule_log.h: what the schedule did, entry by entry, so that a checker can prove its order. fsdp.h includes it. A
// run without a log pays one comparison an entry.
//
// Every access to memory that streams or ranks share is an entry, in the stream where it was enqueued and after the
// waits that order it. Nothing else than these entries orders two accesses:
//   within a stream                their order; and everything the host had done when it enqueued them
//   between streams                WAIT after the RECORD of its event; for the host DONE (it asked) or SYNC
//   between ranks of a host        OBSERVE has seen what PUBLISH has told
//   between two ranks              ARRIVED after the SEND of the same number; SENT: the buffer is free again
//   between all ranks of a group   COLLECTIVE over a communicator: what one did before precedes what another does after
// On a CPU a call is done when it returns: all streams and the host are one sequence there.
//
// Contents. A WRITE says what lies in the memory from then on, a READ what must lie there:
//   parameter shards   how often they were updated         gather slots, expanded copies   the pass and the stage
//   kept shards        the pass                            gradient buffers                how often one was begun
//   staging, inputs    the round                           gradient shards                 the last round, and replica;
//                      before, in a whole gradient: how often one was begun; lent: the pass
#pragma once

enum LogStream { STREAM_HOST, STREAM_MODEL, STREAM_GATHER, STREAM_REDUCE, STREAM_COUNT };
// X(identifier, word): fields that an entry uses are in the comments.
#define LOG_OPS(X) \
  X(LOG_READ, "read")             /* what: memory, slot: of several, rank: owner, value: content */ \
  X(LOG_WRITE, "write")           /* the same */ \
  X(LOG_RELEASE, "release")       /* slot: the gather slot, after the model's last read */ \
  X(LOG_RECORD, "record")         /* slot: event */ \
  X(LOG_WAIT, "wait")             /* slot: event */ \
  X(LOG_DONE, "done")             /* slot: event, which the host has seen to be over */ \
  X(LOG_SYNC, "sync")             /* the host has waited for the stream */ \
  X(LOG_PUBLISH, "publish")       /* what: counter, value */ \
  X(LOG_OBSERVE, "observe")       /* what: counter of rank, value: it has reached that at least */ \
  X(LOG_SEND, "send")             /* as READ of the own memory; rank: to; number */ \
  X(LOG_SENT, "sent")             /* messages up to number are gone; slot: only of even or odd ones, -1: all */ \
  X(LOG_RECEIVE, "receive")       /* messages may be written from here on; rank: from; number */ \
  X(LOG_ARRIVED, "arrived")       /* as WRITE of the own memory; rank: from; number */ \
  X(LOG_COLLECTIVE, "collective") /* what: kind, stage, slot: communicator, value: bytes this rank receives */
// A name and its mirror in the window follow each other.
#define LOG_MEMORIES(X) \
  X(LOG_PARAMS, "parameter shards") X(LOG_PARAMS_WINDOW, "parameter shards in the window") \
  X(LOG_KEPT, "kept shards") X(LOG_KEPT_WINDOW, "kept shards in the window") \
  X(LOG_GRADS, "gradients") X(LOG_GRADS_WINDOW, "gradients in the window") \
  X(LOG_STAGED, "staging") X(LOG_STAGED_WINDOW, "staging in the window") \
  X(LOG_SUM, "gradient shard") X(LOG_SUM_WINDOW, "gradient shard in the window") \
  X(LOG_SLOT, "gather slot") X(LOG_LANDING, "landing of a slot") X(LOG_EXPANDED, "expanded copy") \
  X(LOG_INPUT, "others' contributions") X(LOG_EXCHANGE, "own record") X(LOG_EXCHANGED, "all records") \
  X(LOG_PUBLISHED, "parameters on their way") X(LOG_REPORT, "the step's report")
#define LOG_COUNTERS(X) \
  X(COUNTER_READY, "ready") X(COUNTER_DONE, "done") X(COUNTER_PARTIAL, "partial") X(COUNTER_KEPT, "kept")
#define LOG_COLLECTIVES(X) \
  X(COLLECTIVE_GATHER, "gather") X(COLLECTIVE_REDUCE, "reduce") X(COLLECTIVE_ROUND, "round") \
  X(COLLECTIVE_SMALL, "small") X(COLLECTIVE_BARRIER, "barrier") X(COLLECTIVE_CHAIN, "chain") \
  X(COLLECTIVE_REPLICATE, "replicate") X(COLLECTIVE_BROADCAST, "broadcast")
// LOG_COMM_NONE: only told, for the order and the bytes; messages and counters order it. Broadcasts come from the last
// rank of the group.
#define LOG_COMMUNICATORS(X) \
  X(LOG_COMM_NONE, "none") X(LOG_COMM_SHARD_GATHER, "shard group, gathers") X(LOG_COMM_KEPT, "kept group") \
  X(LOG_COMM_SHARD_REDUCE, "shard group, reductions") X(LOG_COMM_REPLICATE, "replicate group") \
  X(LOG_COMM_WORLD, "all ranks")
#define X(id, words) id,
enum LogOp { LOG_OPS(X) };
enum LogMemory { LOG_MEMORIES(X) };
enum LogCounter { LOG_COUNTERS(X) };
enum CollectiveKind { LOG_COLLECTIVES(X) };
enum LogCommunicator { LOG_COMMUNICATORS(X) };
#undef X

enum { LOG_STAGES = 256, LOG_REPLICAS = 256 };                 // what contents leave room for
enum LogMessage { MESSAGE_GATHER, MESSAGE_REDUCE, MESSAGE_CHAIN, MESSAGE_REPLICATE };

struct LogEntry { uint8_t op, stream, what; int16_t stage; int32_t slot, rank; uint64_t value, number; };
// pass: begun so far; version: updates of the parameters; begun: gradient buffers, and grads the number of
// each one's last; gathers: messages' numbers, and slot_gather that of each slot's; smalls: alike on all ranks.
struct ScheduleLog {
  LogEntry *entry;
  int count, room;
  uint64_t pass, version, begun, grads[LOG_STAGES + 2], gathers, slot_gather[LOG_STAGES + 1], smalls;
};

static inline void log_entry(ScheduleLog *log, LogEntry e) {
  if (log->count == log->room) {
    log->room = log->room ? 2 * log->room : 1024;
    log->entry = (LogEntry *)realloc(log->entry, sizeof(LogEntry) * (size_t)log->room);
  }
  log->entry[log->count++] = e;
}
static inline uint64_t log_message(LogMessage kind, uint64_t n) { return (uint64_t)kind << 60 | n; }

// ---- entries of one Fsdp
static inline LogStream log_stream(const Fsdp *f, const Ctx *c) {
  return c == &f->gather_ctx ? STREAM_GATHER : c == &f->reduce_ctx ? STREAM_REDUCE : STREAM_MODEL;
}
// slot is the event.
static inline void fsdp_log_event(const Fsdp *f, LogOp op, LogStream stream, int event) {
  if (f->log) log_entry(f->log, LogEntry{(uint8_t)op, (uint8_t)stream, 0, 0, event, 0, 0, 0});
}
static inline void fsdp_log_sync(const Fsdp *f, LogStream stream) { fsdp_log_event(f, LOG_SYNC, stream, 0); }
static inline void fsdp_log_counter(const Fsdp *f, LogOp op, LogCounter which, int rank, uint64_t value) {
  if (f->log) log_entry(f->log, LogEntry{(uint8_t)op, STREAM_HOST, (uint8_t)which, 0, 0, rank, value, 0});
}
static inline void fsdp_log_access(const Fsdp *f, LogOp op, LogStream stream, LogMemory m, int slot, int owner,
                                   uint64_t content) {
  if (f->log) log_entry(f->log, LogEntry{(uint8_t)op, (uint8_t)stream, (uint8_t)m, 0, slot, owner, content, 0});
}
static inline void fsdp_log_message(const Fsdp *f, LogOp op, LogStream stream, LogMemory m, int slot, int peer,
                                    uint64_t content, uint64_t number) {
  if (f->log) log_entry(f->log, LogEntry{(uint8_t)op, (uint8_t)stream, (uint8_t)m, 0, slot, peer, content, number});
}
static inline void fsdp_log_collective(const Fsdp *f, LogStream stream, CollectiveKind kind, int stage,
                                       LogCommunicator over, uint64_t bytes) {
  if (f->log)
    log_entry(f->log, LogEntry{LOG_COLLECTIVE, (uint8_t)stream, (uint8_t)kind, (int16_t)stage, over, 0, bytes, 0});
}
// The mirror of what peers read, where there is one.
static inline LogMemory fsdp_log_shared(const Fsdp *f, LogMemory m) {
  const bool own = !f->lay.mirrored || (m == LOG_PARAMS && f->params_home == f->window);
  return own ? m : (LogMemory)(m + 1);
}

// ---- contents; 0 without a log
static inline uint64_t fsdp_log_params_content(const Fsdp *f, int s) {
  return f->log && f->lay.stage[s].trains ? f->log->version : 0;
}
static inline uint64_t fsdp_log_gathered_content(const Fsdp *f, int s) {
  return f->log ? f->log->pass * LOG_STAGES + (uint64_t)s : 0;
}
static inline uint64_t fsdp_log_sum_content(uint64_t round, int replica) {
  return round * LOG_REPLICAS + (uint64_t)replica;
}
// Which replica's contribution a sum must have that has all of them.
static inline int fsdp_log_last_replica(const Fsdp *f) {
  const int last = f->cfg.mesh.replicas - 1;
  return fsdp_chains(f) ? last : last ? LOG_REPLICAS - 1 : 0;
}

// ---- weights
// The model reads the stage, where it lies whole: in place, every rank's shard of it.
static inline void fsdp_log_read_stage(const Fsdp *f, int s) {
  if (!f->log) return;
  const int k = s ? (s - 1) % f->cfg.gather_slots : f->cfg.gather_slots;
  for (int i = 0; i < f->mesh.shard.size && f->lay.in_place; i++)
    fsdp_log_access(f, LOG_READ, STREAM_MODEL, LOG_PARAMS, s, f->mesh.shard.rank[i], fsdp_log_params_content(f, s));
  if (!f->lay.in_place)
    fsdp_log_access(f, LOG_READ, STREAM_MODEL, LOG_SLOT, k, f->mesh.rank, fsdp_log_gathered_content(f, s));
}
// The copy in the compute dtype is written or read. matrices: with the E4M3 ones.
static inline void fsdp_log_expanded(const Fsdp *f, LogOp op, int s, bool matrices) {
  if (f->log)
    fsdp_log_access(f, op, STREAM_MODEL, LOG_EXPANDED, s != 0, f->mesh.rank,
                    2 * fsdp_log_gathered_content(f, s) + (matrices || !s));
}
// The last read of a stage.
static inline void fsdp_log_release(const Fsdp *f, int s, int k) {
  if (!f->log || !f->lay.stage[s].units) return;
  fsdp_log_read_stage(f, s);
  if (f->lay.stage[s].expand_numel && (!s || f->expanded_stage == s))
    fsdp_log_expanded(f, LOG_READ, s, f->expanded_matrices);
  if (!f->lay.in_place)
    fsdp_log_access(f, LOG_RELEASE, STREAM_MODEL, LOG_SLOT, k, f->mesh.rank, fsdp_log_gathered_content(f, s));
}
// One rank's part of stage s, where `rank` keeps it, is read by a gather; shared: in its window.
static inline void fsdp_log_gather_read(const Fsdp *f, LogStream stream, int s, int rank, bool kept, bool shared) {
  if (!f->log) return;
  const LogMemory m = kept ? LOG_KEPT : LOG_PARAMS;
  fsdp_log_access(f, LOG_READ, stream, shared ? fsdp_log_shared(f, m) : m, s, rank,
                  kept ? f->log->pass : fsdp_log_params_content(f, s));
}
static inline void fsdp_log_gather_write(const Fsdp *f, LogStream stream, LogMemory m, int s, int k) {
  fsdp_log_access(f, LOG_WRITE, stream, m, k, f->mesh.rank, fsdp_log_gathered_content(f, s));
}
// The own part of stage s is written where it is kept.
static inline void fsdp_log_keep(const Fsdp *f, int s, int k) {
  if (!f->log) return;
  fsdp_log_access(f, LOG_READ, STREAM_GATHER, LOG_SLOT, k, f->mesh.rank, fsdp_log_gathered_content(f, s));
  fsdp_log_access(f, LOG_WRITE, STREAM_GATHER, LOG_KEPT, s, f->mesh.rank, f->log->pass);
}
// A gather's messages with `peer`.
static inline void fsdp_log_gather_message(const Fsdp *f, LogOp op, int s, int k, int peer, bool kept) {
  if (!f->log) return;
  const uint64_t number = log_message(MESSAGE_GATHER, f->log->slot_gather[k]);
  const LogMemory from = fsdp_log_shared(f, kept ? LOG_KEPT : LOG_PARAMS);
  const LogMemory to = f->lay.mirrored ? LOG_LANDING : LOG_SLOT;
  const bool sends = op == LOG_SEND || op == LOG_SENT;
  fsdp_log_message(f, op, STREAM_HOST, sends ? from : to, sends ? s : k, peer,
                   !sends ? fsdp_log_gathered_content(f, s) : kept ? f->log->pass : fsdp_log_params_content(f, s),
                   number);
}

// ---- gradients
static inline void fsdp_log_grads_begin(const Fsdp *f, int slot) { if (f->log) f->log->grads[slot] = ++f->log->begun; }
static inline void fsdp_log_grads(const Fsdp *f, LogOp op, LogStream stream, LogMemory m, int slot) {
  if (f->log) fsdp_log_access(f, op, stream, m, slot, f->mesh.rank, f->log->grads[slot]);
}
// Gradient shards whose memory is the own part of a whole gradient: first that part lies there.
static inline uint64_t fsdp_log_own_part_content(const Fsdp *f, int slot) { return 1ull << 63 | f->log->grads[slot]; }
// The model's stream writes stage s's gradient.
static inline void fsdp_log_gradient(const Fsdp *f, int s, int slot) {
  fsdp_log_grads(f, LOG_WRITE, STREAM_MODEL, LOG_GRADS, slot);
  for (int j = 0; f->log && f->lay.stage[s].sums_in_whole && j < f->lay.stage[s].rounds; j++)
    fsdp_log_access(f, LOG_WRITE, STREAM_MODEL, LOG_SUM, s << 16 | j, f->mesh.rank, fsdp_log_own_part_content(f, slot));
}
// Of a round the own part is read.
static inline int fsdp_log_sum_slot(const Fsdp *f, uint64_t round);
static inline void fsdp_log_own_part_read(const Fsdp *f, uint64_t round) {
  if (f->log && f->lay.stage[f->job.stage].sums_in_whole)
    fsdp_log_access(f, LOG_READ, STREAM_REDUCE, LOG_SUM, fsdp_log_sum_slot(f, round), f->mesh.rank,
                    fsdp_log_own_part_content(f, f->job.slot));
}
// A rank's contribution to a round: staged, or the gradient itself.
struct LogContribution { LogMemory memory; int slot; uint64_t content; };
static inline LogContribution fsdp_log_contribution(const Fsdp *f, uint64_t round, bool shared) {
  const bool staged = f->lay.stage[f->job.stage].staged;
  const LogMemory m = staged ? LOG_STAGED : LOG_GRADS;
  return LogContribution{shared ? fsdp_log_shared(f, m) : m, staged ? (int)(round & 1) : f->job.slot,
                         staged ? round : f->log->grads[f->job.slot]};
}
static inline void fsdp_log_take(const Fsdp *f, uint64_t round, int rank, bool shared) {
  if (!f->log) return;
  const LogContribution c = fsdp_log_contribution(f, round, shared);
  fsdp_log_access(f, LOG_READ, STREAM_REDUCE, c.memory, c.slot, rank, c.content);
  if (c.memory == LOG_GRADS && rank == f->mesh.rank) fsdp_log_own_part_read(f, round);
}
static inline int fsdp_log_input_slot(const Fsdp *f, uint64_t round, int rank) {
  return (int)(round & 1) * f->mesh.world + rank;
}
// What arrived for a round.
static inline void fsdp_log_input(const Fsdp *f, LogOp op, uint64_t round, int rank) {
  if (f->log)
    fsdp_log_access(f, op, STREAM_REDUCE, LOG_INPUT, fsdp_log_input_slot(f, round, rank), f->mesh.rank, round);
}
// A round's messages with `peer`.
static inline void fsdp_log_round_message(const Fsdp *f, LogOp op, uint64_t round, int peer) {
  if (!f->log) return;
  LogContribution c = {LOG_INPUT, fsdp_log_input_slot(f, round, peer), round};
  if (op == LOG_SEND) c = fsdp_log_contribution(f, round, true);
  fsdp_log_message(f, op, STREAM_HOST, c.memory, c.slot, peer, c.content, log_message(MESSAGE_REDUCE, round));
}
// Messages of rounds are gone: those of a round and all before of its parity, or of all rounds.
static inline void fsdp_log_sent(const Fsdp *f, LogMessage kind, uint64_t round, bool all) {
  if (f->log)
    log_entry(f->log, LogEntry{LOG_SENT, STREAM_HOST, 0, 0, all ? -1 : (int)(round & 1), 0, 0,
                               log_message(kind, round)});
}

// ---- gradient shards: a shard's memory is told apart by stage and round of the stage
static inline int fsdp_log_sum_slot(const Fsdp *f, uint64_t round) {
  return f->job.stage << 16 | (int)(round - f->job.round0);
}
static inline LogMemory fsdp_log_own_sum(const Fsdp *f) {
  return fsdp_offloads(f) && f->lay.mirrored && fsdp_chains(f) ? LOG_SUM_WINDOW : LOG_SUM;
}
// The shard of `rank` takes this round, or is read as the sum that it was after `round` of replica `replica`.
static inline void fsdp_log_sum(const Fsdp *f, LogOp op, LogMemory m, int slot, int rank, uint64_t round, int replica) {
  fsdp_log_access(f, op, STREAM_REDUCE, m, slot, rank, fsdp_log_sum_content(round, replica));
}
// The own gradient shards of stage s, which the model's stream adds up.
static inline void fsdp_log_stage_sums(const Fsdp *f, LogOp op, int s) {
  for (int j = 0; j < f->lay.stage[s].rounds && f->log; j++)
    fsdp_log_access(f, op, STREAM_MODEL, LOG_SUM, s << 16 | j, f->mesh.rank,
                    fsdp_log_sum_content(f->stage_round0[s] + (uint64_t)j, 0));
}
// What the model keeps in the gradient shards of stages below s that share their memory.
static inline void fsdp_log_lent(const Fsdp *f, LogOp op, int s) {
  for (int i = 0; i < s && f->log; i++)
    for (int j = 0; j < f->lay.stage[i].rounds && f->sums_shared[i]; j++)
      fsdp_log_access(f, op, STREAM_MODEL, LOG_SUM, i << 16 | j, f->mesh.rank, 1ull << 62 | f->log->pass);
}
// All gradient shards of `rank`, as they are after the step's last reductions, summed up to replica `replica`.
static inline void fsdp_log_sums(const Fsdp *f, LogOp op, LogStream stream, LogMemory m, int rank, int replica) {
  for (int s = 0; s < f->lay.stages && f->log; s++)
    for (int j = 0; j < f->lay.stage[s].rounds; j++)
      fsdp_log_access(f, op, stream, m, s << 16 | j, rank,
                      fsdp_log_sum_content(f->stage_round0[s] + (uint64_t)j, replica));
}
// The same as messages of the step's end, one for all of them.
static inline void fsdp_log_sums_message(const Fsdp *f, LogOp op, LogMemory m, int peer) {
  if (!f->log) return;
  const uint64_t number = log_message(MESSAGE_REPLICATE, f->log->pass);
  for (int s = 0; s < f->lay.stages; s++)
    for (int j = 0; j < f->lay.stage[s].rounds; j++)
      fsdp_log_message(f, op, STREAM_HOST, m, s << 16 | j, peer,
                       fsdp_log_sum_content(f->stage_round0[s] + (uint64_t)j, f->cfg.mesh.replicas - 1), number);
}
// What this rank's sum of the round goes on from, and where that lies if replicas read each other's memory.
struct LogPartial { uint64_t round; int replica; };
static inline LogPartial fsdp_log_partial(const Fsdp *f, uint64_t round) {
  const int me = f->mesh.replicate.me;
  if (me && fsdp_chains(f)) return LogPartial{round, me - 1};
  return LogPartial{f->job.last_round0 + (round - f->job.round0), fsdp_chains(f) ? f->cfg.mesh.replicas - 1 : 0};
}
static inline void fsdp_log_partial_read(const Fsdp *f, uint64_t round, LogMemory m, int rank) {
  const LogPartial p = fsdp_log_partial(f, round);
  fsdp_log_sum(f, LOG_READ, m, fsdp_log_sum_slot(f, round), rank, p.round, p.replica);
}
// The own sum of the round is complete, as far as this replica goes.
static inline void fsdp_log_sum_write(const Fsdp *f, uint64_t round, LogMemory m) {
  fsdp_log_sum(f, LOG_WRITE, m, fsdp_log_sum_slot(f, round), f->mesh.rank, round,
               fsdp_chains(f) ? f->mesh.replicate.me : 0);
}
static inline void fsdp_log_chain_message(const Fsdp *f, LogOp op, LogStream stream, LogMemory m, uint64_t round,
                                          int peer, LogPartial p) {
  fsdp_log_message(f, op, stream, m, fsdp_log_sum_slot(f, round), peer, fsdp_log_sum_content(p.round, p.replica),
                   log_message(MESSAGE_CHAIN, round));
}

// ---- the end of a step
static inline void fsdp_log_norm(const Fsdp *f) {
  const LogMemory m = fsdp_log_own_sum(f);
  const LogStream stream = fsdp_offloads(f) ? STREAM_HOST : STREAM_MODEL;
  fsdp_log_sums(f, LOG_READ, stream, m, f->mesh.rank, fsdp_log_last_replica(f));
}
// The model's stream writes what every rank gives to a small all-gather; reads what it has taken.
static inline void fsdp_log_small(const Fsdp *f, LogOp op, LogStream stream, LogMemory m) {
  if (f->log) fsdp_log_access(f, op, stream, m, 0, f->mesh.rank, f->log->smalls);
}
// What a small all-gather comes to is reported to the host by the model's stream; the host waits and reads it.
static inline void fsdp_log_report(const Fsdp *f) {
  if (f->log && f->log->smalls) fsdp_log_small(f, LOG_READ, STREAM_HOST, LOG_REPORT);
}
// The parameter shards of stage s, or of all that train, take their next version.
static inline void fsdp_log_params(const Fsdp *f, LogOp op, LogStream stream, LogMemory m, int s) {
  fsdp_log_access(f, op, stream, m, s, f->mesh.rank, fsdp_log_params_content(f, s));
}
static inline void fsdp_log_update(const Fsdp *f, bool next) {
  if (!f->log) return;
  const LogStream stream = fsdp_offloads(f) ? STREAM_HOST : STREAM_MODEL;
  if (next) {
    fsdp_log_sums(f, LOG_READ, stream, fsdp_log_own_sum(f), f->mesh.rank, fsdp_log_last_replica(f));
    f->log->version++;
  }
  for (int s = 0; s < f->lay.stages; s++)
    if (f->lay.stage[s].trains)
      fsdp_log_params(f, LOG_WRITE, f->lay.publish_bytes ? STREAM_MODEL : stream, LOG_PARAMS, s);
}
