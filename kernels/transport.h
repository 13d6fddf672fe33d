// transport.h: how ranks reach each other. Part 4 of fsdp.h, which includes it: the comm table and its three rows.
//
//   self   one rank: units are read in place, contributions are the own ones
//   mpi    ranks of one host read each other's windows, ranks of different hosts exchange nonblocking messages. A
//          device that the host cannot write has a mirror of its shared memory in a pinned window, and copies both
//          ways; the host then waits for copies (so such a step cannot be captured), and any number of ranks can share
//          a device
//   nccl   two communicators, one for gathers and one for reductions, each on its stream. Only events order them; the
//          host enqueues alike on all ranks, which is the one launch order that keeps two communicators from deadlock
//
// All traffic is counted here.
#pragma once

// What a transport does. Sections 5 to 7 know no other way to reach a peer.
struct Comm {
  const char *name;
  void (*open)(Fsdp *f);                                           // takes working memory, windows, communicators
  void (*close)(Fsdp *f);
  void (*step_begin)(Fsdp *f);                                     // orders the side streams behind what came before
  void (*step_end)(Fsdp *f);                                       // new shards are written: peers may gather them
  void (*gather_start)(Fsdp *f, int u, GatherSlot *s);             // begins to make unit u whole
  void (*gather_finish)(Fsdp *f, int u, GatherSlot *s);            // the model may read s->whole from here on
  void (*reduce_start)(Fsdp *f);                                   // the job's gradient buffer is complete
  bool (*round_free)(Fsdp *f, uint64_t round);                     // may the memory of this round be written again?
  void (*round_send)(Fsdp *f, uint64_t round, int64_t first, int64_t n);       // own contributions lie ready: give them
  bool (*round_arrived)(Fsdp *f, uint64_t round);                  // are all contributions to the own shard here?
  const char *(*round_input)(const Fsdp *f, uint64_t round, int r, int64_t first);     // rank r's, in the wire dtype
  void (*round_done)(Fsdp *f, uint64_t round);                     // the own shard has them: peers may go on
  void (*reduce_end)(Fsdp *f);                                     // all rounds of the job
  bool (*grads_free)(Fsdp *f, int slot);                           // has everybody read this gradient slot?
  void (*reduce_join)(Fsdp *f);                                    // the model may read the gradient shards
  void (*small_all_gather)(Fsdp *f, const void *mine, void *all, size_t bytes);        // device memory, order of ranks
  void (*progress)(Fsdp *f);                                       // lets messages move, notices what failed
};

static inline void step_event_open(Ctx *c, StepEvent *e, const char *name) {
  c->ops->event_open(c, &e->event, name);
  e->recorded = false;
}
static inline void step_event_record(Ctx *c, StepEvent *e) {
  c->ops->event_record(c, e->event);
  e->recorded = true;
}
static inline void step_event_wait(Ctx *c, const StepEvent *e) {
  if (e->recorded) c->ops->event_wait(c, e->event);
}

static inline MPI_Datatype fsdp_mpi_type(Dtype t) { return dtype_bytes(t) == 4 ? MPI_FLOAT : MPI_UINT16_T; }
static inline int fsdp_mpi_count(int64_t n) {
  CHECK(n <= INT32_MAX, "message of %lld elements", (long long)n);
  return (int)n;
}

// ---- memory that is shared, or could be
// Offsets of everything in working memory; counts it as taken.
static inline void fsdp_work_layout(Fsdp *f) {
  const size_t b_p = fsdp_param_bytes(f), b_r = fsdp_wire_bytes(f);
  size_t *taken = f->plan->taken_bytes, at = f->cfg.comm == COMM_MPI ? CONTROL_PAGE_BYTES : 0;
  taken[MEM_CONTROL] += f->cfg.comm == COMM_MPI ? CONTROL_BYTES : 0;
  for (int u = 0; u < f->units; u++) {
    f->params_at[u] = at;
    at += (size_t)f->unit[u].shard_numel * b_p;
    taken[MEM_PARAMS] += (size_t)f->unit[u].shard_numel * b_p;
  }
  f->grad_slots_at = f->root_grads_at = f->staging_at = at;
  for (int s = 0; s < 2 && f->units > 1 && !f->cfg.weights_only; s++) {
    at += (size_t)f->unit[1].full_numel * b_r;
    taken[MEM_GRAD_SLOTS] += (size_t)f->unit[1].full_numel * b_r;
  }
  f->root_grads_at = at;
  const size_t root_grads = f->cfg.weights_only ? 0 : (size_t)f->unit[0].full_numel * 4;
  at += root_grads;
  taken[MEM_ROOT_GRADS] += root_grads;
  f->staging_at = at;
  if (fsdp_unit_staged(f, 0) && !f->cfg.weights_only) {
    const size_t staging = 2 * (size_t)f->mesh.world * (size_t)f->chunk_numel * b_r;
    at += staging;
    taken[MEM_STAGING_OUT] += staging;
  }
  f->work_bytes = at + (f->cfg.comm == COMM_MPI ? CONTROL_BYTES - CONTROL_PAGE_BYTES : 0);
}
static inline char *fsdp_memory_or_die(Fsdp *f, size_t bytes, MemoryKind kind, const char *what) {
  void *p = NULL;
  f->ctx->ops->memory_alloc(f->ctx, &p, bytes, kind);
  if (!p) die_missing("cannot allocate %zu bytes of %s: %s", bytes, what, strerror(ENOMEM));
  return (char *)p;
}
static inline char *fsdp_own_params(const Fsdp *f, int u) { return f->work + f->params_at[u]; }

// Where a rank lays out what it contributes to `owner` in a round, from shard element `first`: an offset in working
// memory and in windows alike.
static inline size_t fsdp_contribution_at(const Fsdp *f, int owner, uint64_t round, int64_t first) {
  const Unit *u = &f->unit[f->job.unit];
  const size_t b_r = fsdp_wire_bytes(f), chunk = (size_t)f->chunk_numel;
  if (fsdp_unit_staged(f, f->job.unit)) {        // ncclReduceScatter wants the owners' parts without gaps
    const size_t stride = f->cfg.native_reduce ? (size_t)min64(f->chunk_numel, u->shard_numel - first) : chunk;
    return f->staging_at + ((round & 1) * (size_t)f->mesh.world * chunk + (size_t)owner * stride) * b_r;
  }
  return f->job.full_at + (size_t)(u->piece[0].full_offset + owner * u->piece[0].numel + first) * b_r;
}

// ================================================================================================ self
static inline void comm_self_open(Fsdp *f) {
  fsdp_work_layout(f);
  f->work = fsdp_memory_or_die(f, f->work_bytes, MEMORY_DEVICE, "shards and gradient slots");
  f->gather_ctx = f->reduce_ctx = *f->ctx;       // nothing to overlap: one stream
}
static inline void comm_self_close(Fsdp *f) { f->ctx->ops->memory_free(f->ctx, f->work, f->work_bytes, MEMORY_DEVICE); }
static inline void comm_self_nothing(Fsdp *) {}
static inline void comm_self_gather_start(Fsdp *, int, GatherSlot *) {}
static inline void comm_self_gather_finish(Fsdp *f, int u, GatherSlot *s) { s->whole = fsdp_own_params(f, u); }
static inline bool comm_self_yes(Fsdp *, uint64_t) { return true; }
static inline void comm_self_send(Fsdp *, uint64_t, int64_t, int64_t) {}
static inline const char *comm_self_input(const Fsdp *f, uint64_t round, int, int64_t first) {
  return f->work + fsdp_contribution_at(f, 0, round, first);
}
static inline void comm_self_done(Fsdp *, uint64_t) {}
static inline bool comm_self_grads_free(Fsdp *, int) { return true; }
static inline void comm_self_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  f->ctx->ops->copy(f->ctx, all, mine, bytes);
}
static const Comm comm_self = {
    "self", comm_self_open, comm_self_close, comm_self_nothing, comm_self_nothing, comm_self_gather_start,
    comm_self_gather_finish, comm_self_nothing, comm_self_yes, comm_self_send, comm_self_yes, comm_self_input,
    comm_self_done, comm_self_nothing, comm_self_grads_free, comm_self_nothing, comm_self_small, comm_self_nothing};

// ================================================================================================ mpi
static inline Control *fsdp_control(const Fsdp *f, int r) { return (Control *)f->mesh.peer[r].window; }
static inline uint64_t counter_read(const uint64_t *c) { return __atomic_load_n(c, __ATOMIC_ACQUIRE); }
static inline void counter_publish(uint64_t *c, uint64_t value) { __atomic_store_n(c, value, __ATOMIC_RELEASE); }
static inline char *page_aligned(char *p) {
  return (char *)(((uintptr_t)p + CONTROL_PAGE_BYTES - 1) / CONTROL_PAGE_BYTES * CONTROL_PAGE_BYTES);
}
static inline size_t comm_mpi_shared_bytes(const Fsdp *f) {
  return f->work_bytes - (CONTROL_BYTES - CONTROL_PAGE_BYTES);
}

// Where peers' /dev/shm windows would lie, and whether they fit; called by one rank a host before allocating.
static inline void fsdp_check_window_space(const Fsdp *f, size_t bytes_of_host) {
  const char *dir = getenv("OMPI_MCA_osc_sm_backing_directory");
  if (!dir) dir = "/dev/shm";
  struct statvfs s;
  if (statvfs(dir, &s)) return;
  size_t available = (size_t)s.f_bavail * s.f_frsize;
  if (bytes_of_host > available)
    die_missing("shared-memory windows of this host's %d ranks need %.1f MiB in %s, %.1f MiB are free: give it more "
                "(docker run --shm-size=%zum), or run with --shm off",
                f->mesh.node_world, (double)bytes_of_host / 1048576.0, dir, (double)available / 1048576.0,
                bytes_of_host / 1048576 + 64);
}

// Takes the window: shared with the host's ranks when there are any, private otherwise. Collective.
static inline void comm_mpi_open_window(Fsdp *f) {
  f->has_win = f->mesh.windows && f->mesh.node_world > 1;
  if (!f->has_win) {
    f->window = fsdp_memory_or_die(f, f->work_bytes, f->mirrored ? MEMORY_PINNED : MEMORY_DEVICE, "window");
    f->mesh.peer[f->mesh.rank].window = f->window;
    return;
  }
  if (f->mesh.node_rank == 0) fsdp_check_window_space(f, f->work_bytes * (size_t)f->mesh.node_world);
  MPI_Barrier(f->mesh.node);                     // nobody allocates before the host's first rank has checked
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");          // every rank's part lies the same way in its page
  MPI_Win_allocate_shared((MPI_Aint)f->work_bytes, 1, info, f->mesh.node, &f->window, &f->win);
  MPI_Info_free(&info);
  MPI_Win_lock_all(MPI_MODE_NOCHECK, f->win);
  f->window = page_aligned(f->window);
  memset(f->window, 0, comm_mpi_shared_bytes(f));
  int *world_rank = (int *)malloc(sizeof(int) * (size_t)f->mesh.node_world);
  MPI_Allgather(&f->mesh.rank, 1, MPI_INT, world_rank, 1, MPI_INT, f->mesh.node);
  for (int r = 0; r < f->mesh.node_world; r++) {
    MPI_Aint size;
    int unit;
    char *start;
    MPI_Win_shared_query(f->win, r, &size, &unit, &start);
    f->mesh.peer[world_rank[r]].window = page_aligned(start); // segments map to whole pages: the same shift everywhere
  }
  free(world_rank);
  for (int r = 0; r < f->mesh.world && f->mirrored; r++)
    if (mesh_shares_memory(&f->mesh, r))
      f->ctx->ops->memory_pin(f->ctx, f->mesh.peer[r].window, comm_mpi_shared_bytes(f));
  MPI_Barrier(f->mesh.node);
}
static inline void comm_mpi_open(Fsdp *f) {
  fsdp_work_layout(f);
  comm_mpi_open_window(f);
  f->work = f->window;
  if (f->mirrored) {
    f->work = fsdp_memory_or_die(f, f->work_bytes, MEMORY_DEVICE, "shards and gradient slots");
    f->plan->taken_bytes[MEM_MIRROR] += f->work_bytes;
    f->ctx->ops->side_open(f->ctx, &f->gather_ctx, "gather");
    f->ctx->ops->side_open(f->ctx, &f->reduce_ctx, "reduce");
  } else f->gather_ctx = f->reduce_ctx = *f->ctx;
  const int remote = f->mesh.remote;
  const bool lands = f->mirrored && remote;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    f->slot[k].requests = (MPI_Request *)calloc((size_t)(2 * remote * MAX_PIECES + 1), sizeof(MPI_Request));
    const int64_t n = k == f->cfg.gather_slots ? f->unit[0].full_numel : fsdp_block_numel(f);
    if (lands) f->slot[k].landing = (char *)memory_take(f->ctx, f->plan, MEM_LANDING, (size_t)n * fsdp_param_bytes(f));
  }
  for (int parity = 0; parity < 2; parity++) {
    f->sends[parity] = (MPI_Request *)calloc((size_t)remote + 1, sizeof(MPI_Request));
    f->receives[parity] = (MPI_Request *)calloc((size_t)remote + 1, sizeof(MPI_Request));
  }
  if (lands && !f->cfg.weights_only)
    f->landing_in = (char *)memory_take(f->ctx, f->plan, MEM_LANDING,
                                        2 * (size_t)remote * (size_t)f->chunk_numel * fsdp_wire_bytes(f));
}
static inline void comm_mpi_close(Fsdp *f) {
  const Ops *ops = f->ctx->ops;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    const int64_t n = k == f->cfg.gather_slots ? f->unit[0].full_numel : fsdp_block_numel(f);
    memory_give_back(f->ctx, MEM_LANDING, f->slot[k].landing, (size_t)n * fsdp_param_bytes(f));
    free(f->slot[k].requests);
  }
  memory_give_back(f->ctx, MEM_LANDING, f->landing_in,
                   2 * (size_t)f->mesh.remote * (size_t)f->chunk_numel * fsdp_wire_bytes(f));
  for (int parity = 0; parity < 2; parity++) { free(f->sends[parity]); free(f->receives[parity]); }
  if (f->mirrored) {
    ops->memory_free(f->ctx, f->work, f->work_bytes, MEMORY_DEVICE);
    ops->side_close(&f->gather_ctx);
    ops->side_close(&f->reduce_ctx);
  }
  for (int r = 0; r < f->mesh.world && f->mirrored && f->has_win; r++)
    if (mesh_shares_memory(&f->mesh, r)) ops->memory_unpin(f->ctx, f->mesh.peer[r].window);
  if (f->has_win) { MPI_Win_unlock_all(f->win); MPI_Win_free(&f->win); }
  else ops->memory_free(f->ctx, f->window, f->work_bytes, f->mirrored ? MEMORY_PINNED : MEMORY_DEVICE);
}

// The barrier separates the writing of shards from their reading; the step's small all-gather, which comes after the
// last gather of every rank, separates the reading from the next writing.
static inline void comm_mpi_step_end(Fsdp *f) {
  if (f->mirrored) {
    f->ctx->ops->copy(f->ctx, f->window + f->params_at[0], f->work + f->params_at[0],
                      f->grad_slots_at - f->params_at[0]);
    f->ctx->ops->sync(f->ctx);
  }
  f->traffic.small++;
  MPI_Barrier(f->mesh.comm);
}

static inline bool requests_done(MPI_Request *r, int *pending) {
  if (!*pending) return true;
  int flag = 0;
  MPI_Testall(*pending, r, &flag, MPI_STATUSES_IGNORE);
  if (flag) *pending = 0;
  return flag;
}
// OpenMPI moves messages only inside its calls.
static inline void comm_mpi_progress(Fsdp *f) {
  int flag;
  if (f->mesh.remote) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, f->mesh.reduce_comm, &flag, MPI_STATUS_IGNORE);
}
static inline void fsdp_poll(Fsdp *f);
// A device fetches from the landing on its own time: messages may arrive there again when it has done so.
static inline void comm_mpi_landing_free(Fsdp *f, GatherSlot *s) {
  bool done = !s->landing || !s->arrived.recorded;
  for (int spins = 0; !done; fsdp_poll(f)) {
    f->ctx->ops->event_done(f->ctx, s->arrived.event, &done);
    if (!done) mesh_pause(&f->mesh, &spins);
  }
}
static inline void comm_mpi_gather_start(Fsdp *f, int u, GatherSlot *s) {
  f->traffic.gathers++;
  comm_mpi_landing_free(f, s);
  const MPI_Datatype type = fsdp_mpi_type(f->cfg.param_dtype);
  const size_t b = fsdp_param_bytes(f);
  char *landing = f->mirrored ? s->landing : s->data;
  for (int r = 0; r < f->mesh.world && f->mesh.remote; r++) {
    if (r == f->mesh.rank || mesh_shares_memory(&f->mesh, r)) continue;
    for (int i = 0; i < f->unit[u].pieces; i++) {
      const Piece *c = &f->unit[u].piece[i];
      char *to = landing + (size_t)(c->full_offset + r * c->numel) * b;
      char *from = f->window + f->params_at[u] + (size_t)c->shard_offset * b;
      MPI_Irecv(to, fsdp_mpi_count(c->numel), type, r, u, f->mesh.gather_comm, &s->requests[s->pending++]);
      MPI_Isend(from, fsdp_mpi_count(c->numel), type, r, u, f->mesh.gather_comm, &s->requests[s->pending++]);
      f->traffic.gather_bytes += c->numel * (int64_t)b;
    }
  }
}
// Copies rank r's part of unit u to the slot; remote parts of a mirrored device come from their landing.
static inline void comm_mpi_fetch(Fsdp *f, int u, GatherSlot *s, int r) {
  const size_t b = fsdp_param_bytes(f);
  const bool local = r == f->mesh.rank || mesh_shares_memory(&f->mesh, r);
  for (int i = 0; i < f->unit[u].pieces; i++) {
    const Piece *c = &f->unit[u].piece[i];
    const size_t at = (size_t)(c->full_offset + r * c->numel) * b;
    const char *shard = r == f->mesh.rank ? f->work : local ? f->mesh.peer[r].window : NULL;
    const char *from = shard ? shard + f->params_at[u] + (size_t)c->shard_offset * b : s->landing + at;
    f->ctx->ops->copy(&f->gather_ctx, s->data + at, from, (size_t)c->numel * b);
    if (local && r != f->mesh.rank) f->traffic.gather_bytes += c->numel * (int64_t)b;
  }
}
// Shards of ranks on this host are copied here: their owners change them only between two barriers.
static inline void comm_mpi_gather_finish(Fsdp *f, int u, GatherSlot *s) {
  step_event_wait(&f->gather_ctx, &s->released);
  for (int k = 0; k < f->mesh.world; k++) {
    const int r = (f->mesh.rank + k) % f->mesh.world;          // start with the own shard: ranks do not all read one
    if (r == f->mesh.rank || mesh_shares_memory(&f->mesh, r)) comm_mpi_fetch(f, u, s, r);
  }
  for (int spins = 0; !requests_done(s->requests, &s->pending); fsdp_poll(f)) mesh_pause(&f->mesh, &spins);
  for (int r = 0; r < f->mesh.world && s->landing; r++)
    if (r != f->mesh.rank && !mesh_shares_memory(&f->mesh, r)) comm_mpi_fetch(f, u, s, r);
  step_event_record(&f->gather_ctx, &s->arrived);
  step_event_wait(f->ctx, &s->arrived);
  s->whole = s->data;
}
// A mirrored device brings the complete buffer to the window; a staged unit does so round by round.
static inline void comm_mpi_reduce_start(Fsdp *f) {
  step_event_record(f->ctx, &f->grads_ready);
  step_event_wait(&f->reduce_ctx, &f->grads_ready);
  if (!f->mirrored || fsdp_unit_staged(f, f->job.unit)) return;
  f->ctx->ops->copy(&f->reduce_ctx, f->window + f->job.full_at, f->work + f->job.full_at,
                    (size_t)f->unit[f->job.unit].full_numel * fsdp_wire_bytes(f));
  step_event_record(&f->reduce_ctx, &f->mirror_filled);
}
// Have the peers of this host added up everything before round `rounds`?
static inline bool comm_mpi_peers_done(const Fsdp *f, uint64_t rounds) {
  for (int r = 0; r < f->mesh.world; r++)
    if (r != f->mesh.rank && mesh_shares_memory(&f->mesh, r) && counter_read(&fsdp_control(f, r)->done) < rounds)
      return false;
  return true;
}
// Two rounds are in flight: round - 2 used this memory. Only staging is written per round; slots are grads_free's.
static inline bool comm_mpi_round_free(Fsdp *f, uint64_t round) {
  bool filled = true;
  if (!requests_done(f->sends[round & 1], &f->sends_pending[round & 1])) return false;
  if (fsdp_unit_staged(f, f->job.unit)) return round < 2 || comm_mpi_peers_done(f, round - 1);
  if (f->mirrored) f->ctx->ops->event_done(f->ctx, f->mirror_filled.event, &filled);
  return filled;
}
static inline char *comm_mpi_landing_in(const Fsdp *f, uint64_t round, int remote_peer) {
  const size_t chunk_bytes = (size_t)f->chunk_numel * fsdp_wire_bytes(f);
  char *base = f->mirrored ? f->landing_in : f->staging_in;
  return base + ((round & 1) * (size_t)f->mesh.remote + (size_t)remote_peer) * chunk_bytes;
}
static inline void comm_mpi_round_send(Fsdp *f, uint64_t round, int64_t first, int64_t n) {
  const int parity = (int)(round & 1), tag = (int)(round & 0x3fff), me = f->mesh.rank;
  const MPI_Datatype type = fsdp_mpi_type(f->cfg.wire_dtype);
  const bool staged = fsdp_unit_staged(f, f->job.unit);
  if (f->mirrored && staged) {
    const size_t at = fsdp_contribution_at(f, 0, round, first);
    f->ctx->ops->copy(&f->reduce_ctx, f->window + at, f->work + at,
                      (size_t)f->mesh.world * (size_t)f->chunk_numel * fsdp_wire_bytes(f));
    f->ctx->ops->sync(&f->reduce_ctx);
  }
  // A slot is complete before its first round: all of its rounds can be read from then on.
  counter_publish(&fsdp_control(f, me)->ready, staged ? round + 1 : f->rounds_started);
  for (int r = 0, k = 0; r < f->mesh.world && f->mesh.remote; r++) {
    if (r == me || mesh_shares_memory(&f->mesh, r)) continue;
    MPI_Irecv(comm_mpi_landing_in(f, round, k++), fsdp_mpi_count(n), type, r, tag, f->mesh.reduce_comm,
              &f->receives[parity][f->receives_pending[parity]++]);
    MPI_Isend(f->window + fsdp_contribution_at(f, r, round, first), fsdp_mpi_count(n), type, r, tag,
              f->mesh.reduce_comm, &f->sends[parity][f->sends_pending[parity]++]);
  }
}
static inline bool comm_mpi_round_arrived(Fsdp *f, uint64_t round) {
  for (int r = 0; r < f->mesh.world; r++)
    if (r != f->mesh.rank && mesh_shares_memory(&f->mesh, r) && counter_read(&fsdp_control(f, r)->ready) < round + 1)
      return false;
  return requests_done(f->receives[round & 1], &f->receives_pending[round & 1]);
}
static inline const char *comm_mpi_round_input(const Fsdp *f, uint64_t round, int r, int64_t first) {
  const int me = f->mesh.rank;
  if (r == me || mesh_shares_memory(&f->mesh, r))
    return f->mesh.peer[r].window + fsdp_contribution_at(f, me, round, first);
  int remote_peer = 0;
  for (int q = 0; q < r; q++) remote_peer += q != me && !mesh_shares_memory(&f->mesh, q);
  return comm_mpi_landing_in(f, round, remote_peer);
}
// Peers may write again what this rank has read: a device must have copied it by then.
static inline void comm_mpi_round_done(Fsdp *f, uint64_t round) {
  if (f->mirrored) f->ctx->ops->sync(&f->reduce_ctx);
  counter_publish(&fsdp_control(f, f->mesh.rank)->done, round + 1);
}
static inline bool comm_mpi_grads_free(Fsdp *f, int slot) {
  return comm_mpi_peers_done(f, f->slot_rounds[slot]) && requests_done(f->sends[0], &f->sends_pending[0]) &&
         requests_done(f->sends[1], &f->sends_pending[1]);
}
static inline void comm_mpi_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  const size_t everything = bytes * (size_t)f->mesh.world;
  if (!f->mirrored) {
    MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, f->mesh.comm);
    return;
  }
  f->ctx->ops->copy(f->ctx, f->small_host, mine, bytes);
  f->ctx->ops->sync(f->ctx);
  MPI_Allgather(f->small_host, (int)bytes, MPI_BYTE, f->small_host + bytes, (int)bytes, MPI_BYTE, f->mesh.comm);
  f->ctx->ops->copy(f->ctx, all, f->small_host + bytes, everything);
}
static const Comm comm_mpi = {
    "mpi", comm_mpi_open, comm_mpi_close, comm_self_nothing, comm_mpi_step_end, comm_mpi_gather_start,
    comm_mpi_gather_finish, comm_mpi_reduce_start, comm_mpi_round_free, comm_mpi_round_send, comm_mpi_round_arrived,
    comm_mpi_round_input, comm_mpi_round_done, comm_self_nothing, comm_mpi_grads_free, comm_self_nothing,
    comm_mpi_small, comm_mpi_progress};

// ================================================================================================ nccl
static inline void comm_nccl_open(Fsdp *f) {
  const Collectives *nccl = f->ctx->ops->nccl;
  fsdp_work_layout(f);
  f->work = fsdp_memory_or_die(f, f->work_bytes, MEMORY_DEVICE, "shards and gradient slots");
  f->ctx->ops->side_open(f->ctx, &f->gather_ctx, "gather");
  f->ctx->ops->side_open(f->ctx, &f->reduce_ctx, "reduce");
  void **const comms[] = {&f->nccl_gather, &f->nccl_reduce};
  for (void **comm : comms) {
    char id[NCCL_ID_BYTES] = {};
    if (f->mesh.rank == 0) nccl->id_make(f->ctx, id);
    MPI_Bcast(id, NCCL_ID_BYTES, MPI_BYTE, 0, f->mesh.comm);
    nccl->comm_open(f->ctx, comm, id, f->mesh.rank, f->mesh.world);
  }
}
static inline void comm_nccl_close(Fsdp *f) {
  const Ops *ops = f->ctx->ops;
  ops->nccl->comm_close(f->ctx, f->nccl_gather);
  ops->nccl->comm_close(f->ctx, f->nccl_reduce);
  ops->side_close(&f->gather_ctx);
  ops->side_close(&f->reduce_ctx);
  ops->memory_free(f->ctx, f->work, f->work_bytes, MEMORY_DEVICE);
}
static inline void comm_nccl_step_begin(Fsdp *f) {
  step_event_record(f->ctx, &f->began);
  step_event_wait(&f->gather_ctx, &f->began);
}
static inline void comm_nccl_gather_start(Fsdp *f, int u, GatherSlot *s) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const size_t b = fsdp_param_bytes(f);
  f->traffic.gathers++;
  step_event_wait(&f->gather_ctx, &s->released);
  nccl->group_begin(&f->gather_ctx);
  for (int i = 0; i < f->unit[u].pieces; i++) {
    const Piece *c = &f->unit[u].piece[i];
    nccl->all_gather(&f->gather_ctx, f->nccl_gather, s->data + (size_t)c->full_offset * b,
                     fsdp_own_params(f, u) + (size_t)c->shard_offset * b, (size_t)c->numel * b);
    f->traffic.gather_bytes += (f->mesh.world - 1) * c->numel * (int64_t)b;
  }
  nccl->group_end(&f->gather_ctx);
  step_event_record(&f->gather_ctx, &s->arrived);
}
static inline void comm_nccl_gather_finish(Fsdp *f, int, GatherSlot *s) {
  step_event_wait(f->ctx, &s->arrived);
  s->whole = s->data;
}
static inline void comm_nccl_reduce_start(Fsdp *f) {
  step_event_record(f->ctx, &f->grads_ready);
  step_event_wait(&f->reduce_ctx, &f->grads_ready);
}
// NCCL's own sum arrives in one place, round after round.
static inline bool comm_nccl_round_free(Fsdp *f, uint64_t) {
  return !f->cfg.native_reduce || f->job.prepared == f->job.consumed;
}
static inline char *comm_nccl_staging_in(const Fsdp *f, uint64_t round, int r) {
  if (f->cfg.native_reduce) return f->staging_in;
  const size_t chunk_bytes = (size_t)f->chunk_numel * fsdp_wire_bytes(f);
  return f->staging_in + ((round & 1) * (size_t)f->mesh.world + (size_t)r) * chunk_bytes;
}
// Ordered: all-to-all, each rank's part of the own shard into its own chunk; fsdp.h adds them in order of ranks.
static inline void comm_nccl_round_send(Fsdp *f, uint64_t round, int64_t first, int64_t n) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const size_t bytes = (size_t)n * fsdp_wire_bytes(f);
  if (f->cfg.native_reduce) {
    nccl->reduce_scatter(&f->reduce_ctx, f->nccl_reduce, tensor_of(f->staging_in, f->cfg.wire_dtype, n),
                         f->work + fsdp_contribution_at(f, 0, round, first));
    return;
  }
  nccl->group_begin(&f->reduce_ctx);
  for (int r = 0; r < f->mesh.world; r++) {
    nccl->send(&f->reduce_ctx, f->nccl_reduce, f->work + fsdp_contribution_at(f, r, round, first), bytes, r);
    nccl->receive(&f->reduce_ctx, f->nccl_reduce, comm_nccl_staging_in(f, round, r), bytes, r);
  }
  nccl->group_end(&f->reduce_ctx);
}
static inline const char *comm_nccl_round_input(const Fsdp *f, uint64_t round, int r, int64_t) {
  return comm_nccl_staging_in(f, round, r);
}
static inline void comm_nccl_reduce_end(Fsdp *f) { step_event_record(&f->reduce_ctx, &f->grads_free[f->job.slot]); }
static inline bool comm_nccl_grads_free(Fsdp *f, int slot) {
  step_event_wait(f->ctx, &f->grads_free[slot]);
  return true;
}
static inline void comm_nccl_reduce_join(Fsdp *f) {
  step_event_record(&f->reduce_ctx, &f->reduced);
  step_event_wait(f->ctx, &f->reduced);
}
static inline void comm_nccl_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  step_event_record(f->ctx, &f->exchange_ready);
  step_event_wait(&f->reduce_ctx, &f->exchange_ready);
  f->ctx->ops->nccl->all_gather(&f->reduce_ctx, f->nccl_reduce, all, mine, bytes);
  step_event_record(&f->reduce_ctx, &f->exchanged);
  step_event_wait(f->ctx, &f->exchanged);
}
// A peer or a link that was lost fails no call of ours: its kernels wait on the device.
static inline void comm_nccl_progress(Fsdp *f) {
  f->ctx->ops->nccl->comm_check(f->ctx, f->nccl_gather);
  f->ctx->ops->nccl->comm_check(f->ctx, f->nccl_reduce);
}
static const Comm comm_nccl = {
    "nccl", comm_nccl_open, comm_nccl_close, comm_nccl_step_begin, comm_self_nothing, comm_nccl_gather_start,
    comm_nccl_gather_finish, comm_nccl_reduce_start, comm_nccl_round_free, comm_nccl_round_send, comm_self_yes,
    comm_nccl_round_input, comm_self_done, comm_nccl_reduce_end, comm_nccl_grads_free, comm_nccl_reduce_join,
    comm_nccl_small, comm_nccl_progress};
