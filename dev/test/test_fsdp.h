// test_fsdp.h: sharding changes nothing but memory and traffic. N ranks give bit for bit the results of one; allocated
// bytes are the planned bytes; counted traffic equals the formula. One launch of six ranks runs the smaller worlds on
// split communicators.

struct WorldResult { double loss[4], norm[4], eval_loss; int64_t eval_tokens; uint64_t weights; };

// FNV-1a by words of eight bytes, the last one filled with zeros. High bits of a product reach the low ones.
TEST_HOT static inline uint64_t fnv_bytes(uint64_t h, const void *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    memcpy(&word, (const char *)data + i, bytes - i < 8 ? bytes - i : 8);
    h = (h ^ word) * 1099511628211ull;
    h ^= h >> 32;
  }
  return h;
}
// Hash of the parameters' values, without padding rows: of all, or only of frozen ones. All ranks call it.
static inline uint64_t params_hash(Fsdp *f, bool frozen_only) {
  uint64_t h = 14695981039346656037ull;
  for (int p = 0; p < f->lay.params; p++) {
    if (frozen_only && !f->lay.param[p].frozen) continue;
    float *full = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(&f->lay.param[p]));
    fsdp_read_param(f, STATE_MASTER, p, full);
    h = fnv_bytes(h, full, sizeof(float) * (size_t)param_numel(&f->lay.param[p]));
    free(full);
  }
  return h;
}
static inline uint64_t weights_hash(Fsdp *f) { return params_hash(f, false); }

// Checks the transport's counters for a step of A microbatches per rank against the formulas of fsdp.h.
static inline void expect_traffic(const Fsdp *f, int A, int step, const char *what) {
  const Traffic got = f->traffic, want = fsdp_formula(f, A);
  EXPECT(!memcmp(&want, &got, sizeof got),
         "N=%d %s rank %d step %d: gathers %lld (formula %lld), reductions %lld (%lld), small %lld (%lld), gathered "
         "bytes %lld (%lld), reduced bytes %lld (%lld), bytes along the replicas %lld (%lld), exchanges of "
         "updates %lld (%lld) of %lld bytes (%lld), small bytes %lld (%lld)",
         f->mesh.world, what, f->mesh.rank, step, (long long)got.gathers, (long long)want.gathers,
         (long long)got.reductions, (long long)want.reductions, (long long)got.small, (long long)want.small,
         (long long)got.gather_bytes, (long long)want.gather_bytes, (long long)got.reduce_bytes,
         (long long)want.reduce_bytes, (long long)got.replicate_bytes, (long long)want.replicate_bytes,
         (long long)got.updates, (long long)want.updates, (long long)got.update_bytes, (long long)want.update_bytes,
         (long long)got.small_bytes, (long long)want.small_bytes);
}

// The first `world` ranks of this launch as a communicator; false on the others, which only wait (test_spectates) until
// all come here again.
static inline bool world_comm(int world, MPI_Comm *comm) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Barrier(MPI_COMM_WORLD);
  test_spectates = false;                        // a split is many messages
  MPI_Comm_split(MPI_COMM_WORLD, rank < world ? 0 : MPI_UNDEFINED, rank, comm);
  return !(test_spectates = *comm == MPI_COMM_NULL);
}
// Odd on purpose: vocabulary 5003, width 60 (not a multiple of 128 or of most N), heads of 20, three blocks, sequences
// of 21 in 32 positions, dropout on. Every rank calls it; ranks at or beyond `world` only wait.
static const char world_shapes[] = "--n_layer 3 --n_head 3 --n_embd 60 --seq_len 21 --n_positions 32 --vocab_size 5003 "
                                   "--dropout 0.1 --batch_size 1 --global_batch 12 --lr 0.01 --warmup 0 --clip 0.5";
static const Ops *world_ops;                     // the table; NULL: the ranks agree on one
static inline bool world_run(WorldResult *r, const Corpus *corpus, int world, int threads, int steps, const char *extra,
                             bool check_traffic) {
  memset(r, 0, sizeof *r);
  MPI_Comm comm;
  if (!world_comm(world, &comm)) return false;
  static Trainer t;
  Options o;
  test_options(&o, world, "%s %s", world_shapes, extra);
  trainer_open(&t, &o, corpus, comm, device_of(world_ops ? world_ops : agree_on_ops(&o, comm)), threads);
  for (int s = 0; s < steps; s++) {
    t.fsdp->traffic = Traffic{};
    const StepResult x = train_step(&t, false);
    if (s < 4) { r->loss[s] = x.loss; r->norm[s] = x.grad_norm; }
    if (check_traffic) expect_traffic(t.fsdp, (int)o.grad_accum, s, extra);
  }
  const EvalResult e = trainer_eval(&t, &corpus->split[SPLIT_VALID]);
  r->eval_loss = e.loss;
  r->eval_tokens = e.tokens;
  r->weights = weights_hash(t.fsdp);
  trainer_close(&t);
  MPI_Comm_free(&comm);
  return true;
}
// A mode's memory by kind: bytes of gradients made whole, of this rank's part of them, of the shard's memory for those
// (own, with gaps) and for the others. Ranks at or beyond `world` only wait.
struct WorldBuffers { size_t whole, own, in_whole, apart; };
static inline WorldBuffers world_buffers(MemoryPlan *plan, const Corpus *corpus, int world, const char *extra) {
  MPI_Comm comm;
  WorldBuffers b = {};
  if (!world_comm(world, &comm)) return b;
  static Trainer t;
  Options o;
  test_options(&o, world, "%s %s", world_shapes, extra);
  trainer_open(&t, &o, corpus, comm, device_of(world_ops ? world_ops : agree_on_ops(&o, comm)), 1);
  *plan = t.run.plan;
  for (int u = 0; u < t.fsdp->lay.units; u++) {
    const Unit *q = &t.fsdp->lay.unit[u];
    if (q->stage && o.accumulate != OPT_accumulate_local) b.apart += (size_t)q->state_numel * 4;
    else {
      b.whole += (size_t)q->grad_numel * 4, b.in_whole += (size_t)q->state_numel * 4;
      for (int i = 0; i < q->pieces; i++) b.own += piece_trains(&q->piece[i]) ? (size_t)q->piece[i].numel * 4 : 0;
    }
  }
  trainer_close(&t);
  MPI_Comm_free(&comm);
  return b;
}
static inline void worlds_equal(const char *extra, int steps) {
  static Corpus corpus;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  WorldResult one, r;
  if (!world_run(&one, &corpus, 1, 1, steps, extra, true)) memset(&one, 0, sizeof one);
  MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
  EXPECT(one.loss[0] > 8 && one.loss[0] < 9.5, "%s: the first loss is %g, ln V is %g", extra, one.loss[0], log(5003.0));
  EXPECT(one.loss[0] != one.loss[1], "%s: the second step's loss equals the first's", extra);
  for (int world : {1, 2, 3, 4, 6}) for (int threads = 1; threads <= 2; threads++)
    if (world_run(&r, &corpus, world, threads, steps, extra, true))
      EXPECT(!memcmp(&one, &r, sizeof r),
             "%s: N=%d, %d threads differ from one rank: losses %.17g %.17g (%.17g %.17g), norms %.17g (%.17g), eval "
             "%.17g (%.17g), weights %s",
             extra, world, threads, r.loss[0], r.loss[1], one.loss[0], one.loss[1], r.norm[0], one.norm[0], r.eval_loss,
             one.eval_loss, r.weights == one.weights ? "equal" : "differ");
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(ranks_and_threads_change_no_bit_fp32, 6,
         "12 microbatches on N = 1, 2, 3, 4, 6 ranks, 1 and 2 threads: losses, norms, weights equal to the bit (fp32; "
         "shards read zero-copy, gathered through windows, by messages)") {
  for (const char *shm : {"", "--shm copy", "--shm off"}) worlds_equal(shm, 3);
}
TEST_MPI(ranks_and_threads_change_no_bit_bf16_wire, 6, "the same with bf16 on the wire") {
  for (const char *shm : {"--reduce_dtype bf16", "--reduce_dtype bf16 --shm copy", "--reduce_dtype bf16 --shm off"})
    worlds_equal(shm, 3);
}
TEST_MPI(ranks_and_threads_change_no_bit_half, 6,
         "the same with bf16 and fp16 parameters, untied head, SGD, other slot counts") {
  worlds_equal("--param_dtype bf16 --reduce_dtype bf16 --tie_head off", 2);
  worlds_equal("--param_dtype fp16 --reduce_dtype fp32 --optimizer sgd --gather_slots 1 --shm copy", 2);
  worlds_equal("--param_dtype bf16 --reduce_dtype fp32 --shm off --gather_slots 3", 2);
}

// blocks, root: whether blocks and stage 0 are reduced from a gradient buffer; in_whole: the shard of a whole gradient
// is part of it, so that it needs no separate memory.
struct OneRankMode { const char *options; int microbatches; bool blocks, root, in_whole; };
TEST_MPI(one_rank_sums_gradients_in_its_shard, 1,
         "one rank counts reductions only where a gradient is rounded for communication, or must be complete before it "
         "is added, and allocates buffers only for those that are reduced more than once per step or slot by slot") {
  static const OneRankMode modes[] = {
      {"--global_batch 1", 1, false, false, false},
      {"--global_batch 1 --reduce_dtype bf16", 1, true, true, true},
      {"--global_batch 1 --wrap model", 1, false, false, false},
      {"--global_batch 3", 3, false, true, false},
      {"--global_batch 3 --accumulate local", 3, false, false, false},
      {"--global_batch 3 --wrap min_params:1000", 3, true, true, false},
      {"--global_batch 3 --reduce_dtype bf16", 3, true, true, false},
      {"--global_batch 3 --reduce_dtype bf16 --accumulate local", 3, true, true, true}};
  static Corpus corpus;
  static Trainer t;
  test_corpus(&corpus, 503, 12 * 21 * 3 + 1, 500);
  for (const OneRankMode &m : modes) {
    Options o;
    test_options(&o, 1, "--n_layer 3 --n_head 3 --n_embd 60 --seq_len 21 --vocab_size 503 --batch_size 1 %s",
                 m.options);
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(agree_on_ops(&o, MPI_COMM_WORLD)), 1);
    Fsdp *&f = t.fsdp;
    const size_t *taken = t.run.plan.taken_bytes;
    const size_t whole = (size_t)f->lay.stage[0].grad_numel * 4, block = (size_t)f->lay.stage[1].grad_numel * 4;
    const size_t root = m.in_whole ? 0 : (m.root ? whole : 0) + (m.blocks && f->cfg.local ? 3 * block : 0);
    EXPECT(!taken[MEM_PEERS_GRADS], "%s: parts of peers, of which there are none", m.options);
    // After staging activations may be, where there are no slots.
    const size_t slots = f->lay.grad_slot_bytes ? taken[MEM_GRAD_SLOTS] + taken[MEM_SLOTS_SHARED] : 0;
    EXPECT((slots > 0) == (m.blocks && !f->cfg.local) && taken[MEM_ROOT_GRADS] == root,
           "%s: %zu and %zu bytes of gradient buffers", m.options, slots, taken[MEM_ROOT_GRADS]);
    EXPECT(!memcmp(taken, t.run.plan.planned_bytes, sizeof t.run.plan.taken_bytes), "%s: taken is not planned",
           m.options);
    t.fsdp->traffic = Traffic{};
    train_step(&t, 0);
    expect_traffic(f, m.microbatches, 0, m.options);
    const int64_t times = f->cfg.local ? 1 : m.microbatches;
    int64_t units = 0;
    for (int u = 0; u < f->lay.units; u++) units += f->lay.unit[u].stage ? m.blocks : m.root;
    EXPECT(t.fsdp->traffic.reductions == times * units, "%s: %lld reductions, must be %lld", m.options,
           (long long)t.fsdp->traffic.reductions, (long long)(times * units));
    trainer_close(&t);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// in_whole: the shards of whole gradients are this rank's parts of them. exact: the bits of one rank.
struct SumsMode { const char *options; int world, microbatches; bool in_whole, exact; };
TEST_MPI(sums_in_whole_gradients_change_no_bit, 4,
         "gradient shards are part of whole gradients if these are reduced once per step, but not along replicas: the "
         "bits of one rank, which has them apart; and no byte is left out or counted twice") {
  static const SumsMode modes[] = {
      {"", 2, 1, true, true},
      {"", 4, 1, true, true},
      {"", 2, 2, false, true},
      {"--shm off", 3, 1, true, true},
      {"--reduce_dtype bf16", 2, 1, true, true},
      {"--reduce_dtype bf16 --shm off", 4, 1, true, true},
      {"--reduce_dtype bf16", 2, 2, false, true},
      {"--shard dim0 --tie_head off --shm copy", 3, 1, true, true},
      {"--wrap model --param_dtype bf16 --reduce_dtype bf16", 3, 1, true, true},
      {"--freeze wte,ln_f,h.1.* --clip 0.1", 2, 1, true, true},
      {"--optimizer sgd --param_dtype fp16 --loss_scale 1024", 3, 1, true, true},
      {"--mesh 2x2", 4, 1, false, true},
      {"--strategy ddp", 3, 1, false, true},
      {"--strategy zero1", 3, 1, true, true},
      {"--accumulate local", 2, 2, true, false},
      {"--accumulate local --mesh 2x2", 4, 2, false, false}};
  static Corpus corpus;
  static MemoryPlan plan;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  for (const SumsMode &m : modes) {
    WorldResult one = {}, r;
    char alone[256], extra[256], text[128];
    snprintf(text, sizeof text, "%s", m.options);
    char *of_ranks = strstr(text, "--mesh") ? strstr(text, "--mesh") : strstr(text, "--strategy");
    if (of_ranks) *of_ranks = 0;                 // the last option of its line
    snprintf(alone, sizeof alone, "%s --global_batch %d", text, m.world * m.microbatches);
    snprintf(extra, sizeof extra, "%s --global_batch %d", m.options, m.world * m.microbatches);
    world_run(&one, &corpus, 1, 1, 3, alone, true);
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    const bool here = world_run(&r, &corpus, m.world, 1, 3, extra, true);
    if (here && m.exact)
      EXPECT(!memcmp(&one, &r, sizeof r), "N=%d %s: losses %.17g %.17g (%.17g %.17g), norms %.17g (%.17g), weights %s",
             m.world, extra, r.loss[1], r.loss[2], one.loss[1], one.loss[2], r.norm[0], one.norm[0],
             r.weights == one.weights ? "equal" : "differ");
    const WorldBuffers b = world_buffers(&plan, &corpus, m.world, extra);
    if (!here) continue;
    const size_t *taken = plan.taken_bytes;
    EXPECT((taken[MEM_ROOT_GRADS] == 0) == m.in_whole && taken[MEM_PEERS_GRADS] == (m.in_whole ? b.whole - b.own : 0),
           "N=%d %s: %zu bytes of whole gradients, %zu of peers' parts; whole are %zu, the own part %zu", m.world,
           extra, taken[MEM_ROOT_GRADS], taken[MEM_PEERS_GRADS], b.whole, b.own);
    EXPECT(taken[MEM_GRADS] == b.apart + (m.in_whole ? b.own : b.in_whole),
           "N=%d %s: %zu bytes of gradient shards, of which %zu belong apart, %zu to whole gradients", m.world, extra,
           taken[MEM_GRADS], b.apart, b.own);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// lends: gradient shards are reused as activation memory. exact: the bits of one rank with as many microbatches, which
// has both apart if there are several. One rank with one microbatch has no reference here, only its bytes:
// test_schedule.h, schedule_of_offload_alone, compares it with one that offloads.
struct LendMode { const char *options; int world, microbatches; bool lends, exact; };
static inline size_t lend_activations(int world, const char *extra, bool *lends) {
  static Trainer t;
  static Options o;
  test_options(&o, world, "%s %s", world_shapes, extra);
  trainer_plan_as(&t, &o, device_of(world_ops ? world_ops : cpu_tables[0].ops), 0, world, world);
  size_t bytes = 0;                              // the workspace may be where they do
  for (MemoryName line : {MEM_ACTIVATIONS, MEM_SLOTS_SHARED, MEM_WORKSPACE}) bytes += t.run.plan.planned_bytes[line];
  *lends = false;
  for (int s = 0; s < t.fsdp->lay.stages; s++) *lends = *lends || t.fsdp->shared.sums[s];
  trainer_plan_close(&t);
  return bytes;
}
TEST_MPI(gradient_shards_lend_their_memory, 4,
         "where a step writes a gradient shard once, activations are there until its reduction: the bits of one rank "
         "that has all of it apart, also in the padding between pieces, which the norm reads; not along replicas, nor "
         "where shards are added to or are part of whole gradients") {
  static const LendMode modes[] = {
      {"", 1, 1, true, true},
      {"", 2, 1, true, true},
      {"", 4, 1, true, true},
      {"--shm off", 3, 1, true, true},
      {"--recompute none --clip 0.1", 2, 1, true, true},
      {"--recompute none:1,block --param_dtype bf16", 2, 1, true, true},
      {"--recompute block:1,gelu --reduce_dtype bf16", 3, 1, true, true},
      {"--shard dim0 --tie_head off --shm copy", 3, 1, true, true},
      {"--shard dim0 --param_dtype bf16 --reduce_dtype bf16", 1, 1, true, true},
      {"--freeze h.1.*,*.bias", 2, 1, true, true},
      {"--freeze wte,wpe,h.0.*,h.1.attn.*", 1, 1, true, true},
      {"--wrap min_params:20000 --fp8 gather", 3, 1, true, true},
      {"--optimizer sgd --param_dtype fp16 --loss_scale 1024 --strategy zero2", 2, 1, true, true},
      {"", 2, 2, false, true},
      {"", 1, 2, false, true},
      {"--wrap model", 2, 1, false, true},
      {"--mesh 2x2", 4, 1, false, true},
      {"--strategy ddp", 3, 1, false, true},
      {"--strategy zero1", 3, 1, false, true},
      {"--accumulate local", 2, 2, false, false}};
  static Corpus corpus;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  for (const LendMode &m : modes) {
    WorldResult one = {}, r;
    char alone[256], extra[256], apart[256], text[128];
    snprintf(text, sizeof text, "%s", m.options);
    for (const char *name : {"--mesh", "--strategy"})              // the last option of its line
      if (strstr(text, name)) *strstr(text, name) = 0;
    snprintf(alone, sizeof alone, "%s --global_batch %d", text, m.world * m.microbatches);
    snprintf(extra, sizeof extra, "%s --global_batch %d", m.options, m.world * m.microbatches);
    snprintf(apart, sizeof apart, "%s --global_batch %d", m.options, 2 * m.world * m.microbatches);
    world_run(&one, &corpus, 1, 1, 3, alone, true);
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    const bool here = world_run(&r, &corpus, m.world, 2, 3, extra, true);
    if (here && m.exact)
      EXPECT(!memcmp(&one, &r, sizeof r), "N=%d %s: losses %.17g %.17g (%.17g %.17g), norms %.17g (%.17g), weights %s",
             m.world, extra, r.loss[1], r.loss[2], one.loss[1], one.loss[2], r.norm[2], one.norm[2],
             r.weights == one.weights ? "equal" : "differ");
    bool lends = false, lends_apart = false;
    const size_t bytes = lend_activations(m.world, extra, &lends);
    const size_t most = lend_activations(m.world, apart, &lends_apart);
    if (!here) continue;
    EXPECT(lends == m.lends && !lends_apart, "N=%d %s: gradient shards %s activations", m.world, extra,
           lends ? "hold" : "hold no");
    EXPECT(m.lends ? bytes < most : bytes == most, "N=%d %s: activations take %zu bytes, apart %zu", m.world, extra,
           bytes, most);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// A rank that checks its messages late reads its peers' gradient slots late.
static void late(void *) { usleep(1500); }
TEST_MPI(logits_wait_for_late_readers, 3,
         "logits share memory with gradient slots: they wait until the last rank has read these, whichever it is, "
         "over windows and messages, also where backward ends with a block") {
  static const char *const modes[] = {"--freeze wte,wpe,ln_f", "--freeze wte,wpe,ln_f --reduce_dtype bf16 --shm copy",
                                      "--freeze wte,wpe,ln_f,h.0.*,h.1.attn.* --shm off", "--param_dtype bf16"};
  static Corpus corpus;
  static Trainer t;
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  for (const char *mode : modes) for (int last = 0; last < 3; last++) {
    WorldResult one, r;
    Options o;
    double loss[2];
    world_run(&one, &corpus, 1, 1, 2, mode, true);
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    test_options(&o, 3, "%s %s", world_shapes, mode);
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(agree_on_ops(&o, MPI_COMM_WORLD)), 1);
    EXPECT(t.fsdp->shared.slot[0] && t.fsdp->shared.slot[1], "%s: nothing is where slots do", mode);
    if (rank == last) t.fsdp->watch.hooks.background = late;
    for (double &l : loss) l = train_step(&t, false).loss;
    r.weights = weights_hash(t.fsdp);
    EXPECT(loss[1] == one.loss[1] && r.weights == one.weights, "%s, rank %d late: loss %.17g (%.17g), weights %s", mode,
           last, loss[1], one.loss[1], r.weights == one.weights ? "equal" : "differ");
    trainer_close(&t);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(gather_slots_change_no_bit, 3,
         "1, 2, 3 and more gather slots, and none, give the same bits, and each the traffic of its formula") {
  static Corpus corpus;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  WorldResult first = {}, r;
  for (int slots = 0; slots <= 4; slots++) {
    char extra[64] = "";                         // shards read zero-copy
    if (slots) snprintf(extra, sizeof extra, "--shm copy --gather_slots %d", slots);
    world_run(&r, &corpus, 3, 1, 2, extra, true);
    if (slots == 0) first = r;
    EXPECT(!memcmp(&first, &r, sizeof r), "%s differs from shards read zero-copy", extra);
  }
}

TEST_MPI(isa_changes_no_bit_in_fp32, 1, "fp32 training gives the same bits on every instruction set of this machine") {
  static Corpus corpus;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  WorldResult first = {}, r;
  for (int i = 0; i <= cpu_best_table(); i++) {
    char extra[64];
    snprintf(extra, sizeof extra, "--isa %s", cpu_tables[i].name);
    world_run(&r, &corpus, 1, 2, 2, extra, false);
    if (i == 0) first = r;
    EXPECT(!memcmp(&first, &r, sizeof r), "%s differs from avx2: losses %.17g and %.17g, norms %.17g and %.17g",
           cpu_tables[i].name, r.loss[1], first.loss[1], r.norm[0], first.norm[0]);
  }
}

TEST_MPI(eval_depends_on_no_batch_size, 2,
         "validation loss is the same for every test_batch_size and number of ranks") {
  static Corpus corpus;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  WorldResult first = {}, r;
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int world = 1; world <= 2; world++) for (int batch : {1, 3, 8, 40}) {
    char extra[64];
    snprintf(extra, sizeof extra, "--test_batch_size %d", batch);
    if (!world_run(&r, &corpus, world, 1, 1, extra, false)) continue;
    if (world == 1 && batch == 1) first = r;
    if (rank == 0)
      EXPECT(r.eval_loss == first.eval_loss, "N=%d %s: %.17g, must be %.17g", world, extra, r.eval_loss,
             first.eval_loss);
    EXPECT(r.eval_tokens == 499, "N=%d %s: %lld tokens were predicted, the split has 499 targets", world, extra,
           (long long)r.eval_tokens);
  }
}

// Resident memory of this process that is not a file's; of shared pages its part.
static inline size_t resident_bytes() {
  static const char rollup[] = "/proc/self/smaps_rollup";
  return (proc_number(rollup, "Pss_Anon:") + proc_number(rollup, "Pss_Shmem:")) * 1024;
}

TEST_MPI(memory_is_what_was_planned, 2,
         "each plan line equals its formula written out here; the process holds that much; nothing grows from step 2 "
         "to step 20") {
  static Corpus corpus;
  static Trainer t;
  for (const char *extra :
       {"", "--param_dtype bf16 --reduce_dtype bf16", "--param_dtype fp16 --shm off --optimizer sgd --dropout 0.1",
        "--reduce_dtype bf16 --tie_head off --shm copy"}) {
    test_corpus(&corpus, 997, 40000, 500);
    Options o;
    test_options(&o, 2,
                 "--n_layer 3 --n_head 4 --n_embd 192 --seq_len 64 --n_positions 64 --vocab_size 997 --batch_size 2 "
                 "--grad_accum 2 --epochs 100 %s",
                 extra);
    const size_t before = resident_bytes();
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(agree_on_ops(&o, MPI_COMM_WORLD)), 1);
    const size_t C = 192, L = 3, T = 64, B = 2, H = 4, Vp = 1024, N = 2, b_p = strstr(extra, "param_dtype") ? 2 : 4,
                 b_r = strstr(extra, "reduce_dtype bf16") ? 2 : 4;
    const bool untied = strstr(extra, "tie_head off"), sgd = strstr(extra, "sgd"), messages = strstr(extra, "shm off"),
               gathers = strstr(extra, "shm"), half = strstr(extra, "param_dtype fp16"),
               brain = strstr(extra, "param_dtype bf16");
    // A unit is cut in two pieces, with and without weight decay; parameters start on multiples of 128 elements, and so
    // does every rank's part.
    const size_t up = 128, part = N * up, pad_c = (C + up - 1) / up * up, pad_3c = (3 * C + up - 1) / up * up;
    const size_t vectors = (6 * pad_c + pad_3c + (4 * C + up - 1) / up * up + part - 1) / part * part;
    const size_t matrices = (12 * C * C + part - 1) / part * part;
    const size_t root_matrices = ((1 + untied) * Vp * C + T * C + part - 1) / part * part;
    const size_t block = matrices + vectors, root = root_matrices + (2 * pad_c + part - 1) / part * part;
    const size_t shards = (root + L * block) / N;
    const size_t R = B * T, chunk = (size_t)min64(1 << 18, (int64_t)(root > block ? root : block) / (int64_t)N);
    const bool staged = b_r == 2;
    const size_t stream = R * C * b_p, slots = 2 * block * b_r;
    // At least what is kept is alive with the logits. Placed by hand, logits shared memory with the recomputed
    // activations of a block and the stream's gradients, and with slots after these if they took less.
    const size_t logits = (b_p == 4 ? 0 : Vp * 2) + R * Vp * 4, turns = (6 + 1 + (half ? 1 : 0)) * stream;
    const bool lends = logits > turns;
    const struct { MemoryName line; size_t bytes;
    } want[] = {{MEM_PARAMS, shards * b_p},
                {MEM_MASTER, half ? shards * 4 : 0},
                {MEM_MASTER_LOW, brain ? shards * 2 : 0},
                {MEM_OPTIMIZER, shards * (sgd ? 4 : 8)},
                {MEM_GRADS, shards * 4},
                {MEM_GATHER_SLOTS, gathers * 2 * block * b_p},
                {MEM_ROOT_PARAMS, gathers * root * b_p},
                {MEM_ROOT_GRADS, root * 4},
                {MEM_STAGING_OUT, staged ? 2 * N * chunk * b_r : 0},
                {MEM_STAGING_IN, messages ? 2 * chunk * b_r : 0}};
    const size_t kept = L * (10 * stream + 4 * R * 4 + H * R * 4) + 2 * stream + (2 + 1 + 1 + 2) * R * 4;
    const size_t workspace = t.ctx.workspace_bytes;
    const size_t other = turns + slots;
    const size_t by_hand = workspace + kept + (lends && logits > other ? logits : other);
    size_t placed = 0;
    for (MemoryName line : {MEM_ACTIVATIONS, MEM_SLOTS_SHARED, MEM_GRAD_SLOTS, MEM_WORKSPACE})
      placed += t.run.plan.taken_bytes[line];
    EXPECT(placed >= kept + logits && placed <= by_hand, "%s: %zu bytes for activations, logits, slots and workspace; "
           "%zu are live at once, %zu were placed by hand", extra, placed, kept + logits, by_hand);
    for (const auto &w : want) {
      EXPECT(t.run.plan.planned_bytes[w.line] == w.bytes, "%s: planned %s %zu, the formula gives %zu", extra,
             memory_words[w.line], t.run.plan.planned_bytes[w.line], w.bytes);
      EXPECT(t.run.plan.taken_bytes[w.line] == w.bytes, "%s: taken %s %zu, the formula gives %zu", extra,
             memory_words[w.line], t.run.plan.taken_bytes[w.line], w.bytes);
    }
    // Parameter, master, gradient, moments: 16 bytes with AdamW in fp32 and in bf16, 18 in fp16; SGD has one moment.
    size_t state = 0;
    for (MemoryName line : {MEM_PARAMS, MEM_MASTER, MEM_MASTER_LOW, MEM_OPTIMIZER, MEM_GRADS})
      state += t.run.plan.taken_bytes[line];
    EXPECT(state == shards * (half ? 18 : 16) - (sgd ? shards * 4 : 0), "%s: %zu bytes of state for %zu parameters",
           extra, state, shards);
    for (int s = 0; s < 2; s++) train_step(&t, false);
    const size_t after_2 = resident_bytes(), total = memory_planned_total(&t.run.plan, MEMORY_ALL);
    for (int s = 2; s < 20; s++) train_step(&t, false);
    const size_t after_20 = resident_bytes();
    // The allocator and MPI keep private pools, of a few MiB whatever the model; untouched pages do not count. The
    // address sanitizer keeps freed memory.
    EXPECT(TEST_SANITIZED || after_20 <= after_2 + (1 << 20),
           "%s: resident memory grew from %zu after step 2 to %zu after step 20", extra, after_2, after_20);
    EXPECT(after_20 - before <= total + (12 << 20), "%s: the process grew by %zu bytes, the plan says %zu", extra,
           after_20 - before, total);
    trainer_close(&t);
    free((void *)corpus.split[SPLIT_TRAIN].tokens);
  }
}

TEST(cli_windows_take_their_pages,
     "a call reports pages that cannot be had, where a first touch would end the process") {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  FILE *file = tmpfile();                        // of one page, mapped as two: the second behaves like a full /dev/shm
  EXPECT(file && !ftruncate(fileno(file), (off_t)page), "no temporary file");
  char *p = (char *)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
  EXPECT(p != MAP_FAILED, "no mapping: %s", strerror(errno));
  if (madvise(p, page, WINDOW_POPULATE_WRITE)) SKIP("this kernel cannot be asked for pages (Linux 5.14 can)");
  EXPECT(window_take_pages(p, page) && window_take_pages(p + 100, page - 100) && window_take_pages(p, 0),
         "pages that are there: %s", strerror(errno));
  EXPECT(!window_take_pages(p, 2 * page) && !window_take_pages(p + page, 1), "a page that is not there was given");
  munmap(p, 2 * page);
  fclose(file);
}

TEST(cores_share_the_pages_of_a_window,
     "a rank's window is touched first by all its threads in turns, so its NUMA nodes share the pages; it is zeroed") {
  enum { THREADS = 3, PIECES = 24 };
  const size_t bytes = PIECES * WINDOW_PIECE_BYTES - 4096;
  long count[2][THREADS] = {};
  char *window = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(window != MAP_FAILED, "no memory");
  Ctx ctx = {};
  Fsdp f = {};
  ctx.threads = THREADS;
  f.ctx = &ctx;
  for (int after = 0; after < 2; after++) {      // page faults of each thread until now
    long *const faults = count[after];
    if (after) comm_mpi_zero(&f, window, bytes);
    parallel(THREADS, [=](int thread, int) {
      struct rusage r;
      getrusage(RUSAGE_THREAD, &r);
      faults[thread] = r.ru_minflt;
    });
  }
  bool zero = true;
  for (size_t i = 0; i < bytes; i += 512) zero = zero && !window[i];
  for (int t = 0; t < THREADS; t++)              // one fault at least for a piece, thousands with pages of 4 KiB
    EXPECT(count[1][t] - count[0][t] >= PIECES / THREADS, "thread %d took %ld pages", t, count[1][t] - count[0][t]);
  EXPECT(zero, "not zero");
  munmap(window, bytes);
}

TEST_MPI(matmul_split_ranks, 3, "training with it: 2 ranks of 2 threads and 3 ranks give the bits of one") {
  static const char *const extra = "--matmul_precision high --n_layer 1 --vocab_size 1003";
  static Corpus corpus;
  WorldResult one, r;
  if (!split_table(0)) SKIP("this machine runs no table with tiles, not even the emulated one");
  world_ops = split_table(0);
  test_corpus(&corpus, 1003, 12 * 21 * 3 + 1, 100);
  if (!world_run(&one, &corpus, 1, 1, 2, extra, true)) memset(&one, 0, sizeof one);
  MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
  for (int world : {2, 3})
    if (world_run(&r, &corpus, world, 4 - world, 2, extra, true))
      EXPECT(!memcmp(&one, &r, sizeof r), "N=%d: losses %.17g %.17g (%.17g %.17g), norms %.17g (%.17g)", world,
             r.loss[0], r.loss[1], one.loss[0], one.loss[1], r.norm[0], one.norm[0]);
}

// Both runs are within 1e-5 of exact arithmetic: ten_steps_equal_pytorch and gpt_gradients_equal_pytorch require that
// of the plain kernel, and an error that is smaller in every GEMM meets it too.
TEST_MPI(matmul_split_trains, 1,
         "gradients and ten AdamW steps stay as near to PyTorch's as required of the plain kernel, and `tiny` as "
         "near to the plain kernel's run, without being equal to it") {
  for (int i = 0; const Ops *ops = split_table(i); i++) {
    static Fixture x;
    for (const char *name : fixture_names) {
      fixture_open(&x, name, ops, "--matmul_precision high");
      fixture_forward_backward(&x, (const int32_t *)fixture_tensor(&x, "inputs", "", I32).data,
                               (const int32_t *)fixture_tensor(&x, "targets", "", I32).data);
      fixture_compare(&x, STATE_GRAD, "grad.", 1, 1e-5);
      fixture_close(&x);
    }
    double loss[10], want[10];
    ten_steps("tied", ops, "--matmul_precision high", loss, want);
    for (int step = 0; step < 10; step++)
      EXPECT(fabs(loss[step] / want[step] - 1) <= 1e-5, "step %d: loss %.9g, PyTorch's %.9g", step, loss[step],
             want[step]);
    for (const char *precision : {"highest", "high"}) {
      static Corpus corpus;
      static Trainer t;
      Options o;
      test_corpus(&corpus, 997, 2000, 32);
      test_options(&o, 1, "--model tiny --vocab_size 997 --seq_len 32 --batch_size 2 --matmul_precision %s", precision);
      trainer_open(&t, &o, &corpus, MPI_COMM_SELF, device_of(ops), 2);
      bool differ = false;
      for (int step = 0; step < 4; step++) {
        loss[step] = train_step(&t, false).loss;
        if (!strcmp(precision, "highest")) want[step] = loss[step];
        EXPECT(fabs(loss[step] / want[step] - 1) <= 2e-5, "tiny, step %d: loss %.9g, plain %.9g", step, loss[step],
               want[step]);
        differ = differ || loss[step] != want[step];
      }
      EXPECT(differ == !strcmp(precision, "high"), "%s: the option changed %s", precision, differ ? "it" : "nothing");
      trainer_close(&t);
      free((void *)corpus.split[SPLIT_TRAIN].tokens);
    }
  }
}

// For rejections see test_modes.h: a rejection ends the process.
TEST_MPI(matmul_split_agreed, 1,
         "a checkpoint's --matmul_precision stays if the table has tiles and GEMMs are fp32, and becomes highest "
         "otherwise") {
  const struct { const Ops *ops; const char *dtype, *asked, *taken; } cases[] = {
      {&ops_amx, "fp32", "high", "high"},        {&ops_amx, "bf16", "high", "highest"},
      {&ops_amx, "fp32", "highest", "highest"},  {&ops_avx512_bf16, "fp32", "high", "highest"},
      {&ops_avx2, "bf16", "high", "highest"},    {&ops_avx2, "fp32", "highest", "highest"}};
  for (const auto &k : cases) {
    Options o;
    test_options(&o, 1, "--buffer_dtype %s", k.dtype);
    option_pick(&o, OPT_matmul_precision, k.asked);
    agree_on_precision(&o, k.ops, MPI_COMM_SELF);
    const char *taken = option_word(&o, OPT_matmul_precision);
    EXPECT(!strcmp(taken, k.taken), "%s, %s, %s: %s", k.ops->name, k.dtype, k.asked, taken);
  }
}
