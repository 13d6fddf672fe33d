// test_checkpoint.h: a checkpoint does not depend on the ranks that wrote it. Saved on N ranks and loaded on M it is
// the same state, and the resumed run equals the uninterrupted one bit for bit. Files are equal byte for byte for all
// writers, on every device, whether one host writes them or streams through another; bytes and memory are as planned.
// Then the rotation of checkpoint directories. One launch of six ranks runs the smaller worlds on split communicators.
// For what interrupted saves leave see test_kill.h, for the options of a resumed run test_resume.h.
#include <malloc.h>

// ---- helpers --------------------------------------------------------------------------------------------------------
static inline const Saved *test_saved(const Trainer *t) {
  static Saved saved;
  saved = saved_of((RunView *)&t->run);
  return &saved;
}
static inline int ckpt_rank() {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
// A path in the test's own directory. Eight can be in use.
__attribute__((format(printf, 1, 2))) static inline const char *ckpt_path(const char *fmt, ...) {
  static char path[8][MAP_PATH_BYTES];
  static int turn;
  turn = (turn + 1) % 8;
  const int n = snprintf(path[turn], sizeof path[0], "%s/", test_tmp());
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(path[turn] + n, sizeof path[0] - (size_t)n, fmt, ap);
  va_end(ap);
  return path[turn];
}
static inline void ckpt_remove(const char *path) {
  char command[MAP_PATH_BYTES + 16];
  snprintf(command, sizeof command, "rm -rf '%s'", path);
  EXPECT(!system(command), "cannot remove %s", path);
}

// Every state of every parameter, padding included: the same for every number of ranks. All ranks call it.
static inline uint64_t states_hash(Fsdp *f) {
  uint64_t h = 14695981039346656037ull;
  const int states = f->cfg.optimizer == OPTIMIZER_SGD ? 2 : 3;
  for (int s = 0; s < states; s++) for (int p = 0; p < f->lay.params; p++) {
    float *full = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(&f->lay.param[p]));
    fsdp_read_param(f, (ShardState)s, p, full);
    h = fnv_bytes(h, full, sizeof(float) * (size_t)param_numel_padded(&f->lay.param[p]));
    free(full);
  }
  return h;
}

// Says where two files first differ.
TEST_HOT static inline void ckpt_expect_same_file(const char *what, const char *a, const char *b) {
  int64_t a_bytes = 0, b_bytes = 0, at = 0;
  char *x = file_get(a, INT64_MAX, &a_bytes), *y = file_get(b, INT64_MAX, &b_bytes);
  while (x && y && at < min64(a_bytes, b_bytes) && x[at] == y[at]) at++;
  EXPECT(x && y && a_bytes == b_bytes && at == a_bytes, "%s: %s (%lld bytes) and %s (%lld bytes) differ at byte %lld",
         what, a, (long long)a_bytes, b, (long long)b_bytes, (long long)at);
  free(x);
  free(y);
}
// trainer.json without the fields that may differ: time, number of ranks, device, the options that each run sets
// itself.
static inline char *ckpt_comparable_json(const char *directory) {
  static const char *const own[] = {"out", "resume", "grad_accum", "gather_slots", "shm", "save_async", "strategy",
                                    "mesh", "reshard_after_forward", "shard", "wrap", "accumulate", "offload",
                                    "recompute"};
  Error error = {};
  int64_t bytes;
  char *text = checkpoint_text(directory, &bytes, &error);
  cJSON *json = text ? checkpoint_parse(directory, text, (size_t)bytes, &error) : NULL;
  EXPECT(json, "%s", error.text);
  for (const char *key : {"written", "serial", "ranks", "device", "ops", "crc32c"})
    cJSON_DeleteItemFromObjectCaseSensitive(json, key);
  for (const char *key : own)
    cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(json, "config"), key);
  char *plain = json ? cJSON_PrintUnformatted(json) : NULL;
  cJSON_Delete(json);
  free(text);
  return plain;
}
static inline void ckpt_expect_same_checkpoint(const char *what, const char *a, const char *b) {
  char x[MAP_PATH_BYTES], y[MAP_PATH_BYTES];
  for (const char *name : checkpoint_files) {
    path_join(x, sizeof x, a, name);
    path_join(y, sizeof y, b, name);
    ckpt_expect_same_file(what, x, y);
  }
  char *p = ckpt_comparable_json(a), *q = ckpt_comparable_json(b);
  int at = 0;
  while (p && q && p[at] && p[at] == q[at]) at++;
  EXPECT(p && q && !strcmp(p, q), "%s: trainer.json differs: ...%.120s ...%.120s", what, p ? p + max64(0, at - 30) : "",
         q ? q + max64(0, at - 30) : "");
  free(p);
  free(q);
}

// Moments of a parameter: a frozen one has none, and one those of SGD and Muon's matrices.
static inline int moments_of(const Fsdp *f, const Param *p) {
  const OptimizerKind kind = f->cfg.optimizer;
  const bool matrix = p->stage && p->ndim == 2;
  return p->frozen ? 0 : kind == OPTIMIZER_SGD || (kind == OPTIMIZER_MUON && matrix) ? 1 : 2;
}
// Elements of all states that a checkpoint has.
static inline int64_t ckpt_numel(const Fsdp *f) {
  int64_t numel = 0;
  for (int p = 0; p < f->lay.params; p++)
    numel += param_numel(&f->lay.param[p]) * (1 + moments_of(f, &f->lay.param[p]));
  return numel;
}
// The bytes written are the bytes planned: each rank of the first replica writes its own, together they are the tensors
// of both files, and each file is as long as its map says. All ranks of the trainer call it.
static inline void ckpt_expect_bytes(const char *what, Trainer *t, const char *directory) {
  const Store *s = t->run.store;
  TensorMap map;
  char *header[CHECKPOINT_FILES];
  checkpoint_map(test_saved(t), directory, &map, header);
  long long own = t->fsdp->mesh.replicate.me ? 0 : store_own_bytes(t->fsdp, &map, STATES_ALL), all = 0;
  MPI_Allreduce(&own, &all, 1, MPI_LONG_LONG, MPI_SUM, t->fsdp->mesh.comm);
  int64_t tensors = 0;
  for (int i = 0; i < CHECKPOINT_FILES; i++) {
    struct stat st = {};
    tensors += map.file_bytes[i] - map.data_at[i];
    EXPECT(!stat(map.path[i], &st) && st.st_size == map.file_bytes[i], "%s: %s has %lld bytes, its map %lld", what,
           map.path[i], (long long)st.st_size, (long long)map.file_bytes[i]);
    free(header[i]);
  }
  const int64_t numel = ckpt_numel(t->fsdp);
  EXPECT(all == tensors && tensors == 4 * numel, "%s: the ranks' own bytes are %lld, the tensors %lld of %lld elements",
         what, all, (long long)tensors, (long long)numel);
  EXPECT(s->bytes_done == own && s->bytes_total == own, "%s: %lld bytes written, %lld announced, %lld are this rank's",
         what, (long long)s->bytes_done, (long long)s->bytes_total, own);
  const size_t planned = t->run.plan.planned_bytes[MEM_CHECKPOINT], taken = t->run.plan.taken_bytes[MEM_CHECKPOINT];
  EXPECT(planned == taken && taken == s->bytes, "%s: %zu bytes of checkpoint buffers planned, %zu taken", what, planned,
         taken);
  tensor_map_free(&map);
}

// Until hold_end no thread but this one writes a file: a background save then writes after everything that this thread
// does meanwhile.
static pthread_t hold_except;
static int hold_on;                              // atomic
static int hold_hook(FileOp, const char *) {
  while (!pthread_equal(pthread_self(), hold_except) && __atomic_load_n(&hold_on, __ATOMIC_ACQUIRE)) usleep(200);
  return 0;
}
static inline void hold_begin() {
  hold_except = pthread_self();
  hold_on = 1;
  lent_file_hook(hold_hook);
}
static inline void hold_end() { __atomic_store_n(&hold_on, 0, __ATOMIC_RELEASE); }

// Whether the system can report the bytes that this rank has written, and how many.
static inline int64_t ckpt_written_bytes() {
  const size_t n = proc_number("/proc/self/io", "wchar:");
  return n == SIZE_MAX ? -1 : (int64_t)n;
}

// ---- save on N, load on M -------------------------------------------------------------------------------------------
enum { RESUME_STEPS = 5, RESUME_SEQUENCES = 30 };
// Epochs of two and a half global batches: with --drop_last off of three steps, the last of which wraps around.
static const char resume_shapes[] = "--drop_last off --epochs 2 --max_steps 5";
static inline void resume_corpus(Corpus *c) {
  test_corpus(c, 5003, 21 * RESUME_SEQUENCES + 1, 100);
  c->hash = 0x123456789abcdef0ull;
}

// kept: options that a checkpoint keeps; own: options that each run sets. saved_after: steps; 3 is the end of an epoch.
// Pokes of fp16's loss scale after the first step: too high, so that steps on both sides of the save are skipped; or
// near enough to its next doubling that this comes with the first step after the save.
enum ResumePoke { POKE_NONE, POKE_OVERFLOW, POKE_DOUBLE };
struct ResumeVariant { const char *kept, *own; int saved_after; ResumePoke poke; };
static const ResumeVariant resume_variants[] = {
    {"", "", 2, POKE_NONE},
    {"--param_dtype bf16 --reduce_dtype bf16", "--save_async", 3, POKE_NONE},
    {"--param_dtype fp16", "--shm off", 2, POKE_OVERFLOW},
    {"--optimizer sgd", "--gather_slots 1", 3, POKE_NONE},
    {"--param_dtype bf16 --tie_head off", "--gather_slots 3 --shm off", 2, POKE_NONE},
    {"--param_dtype fp16 --optimizer sgd", "--save_async", 3, POKE_DOUBLE},
    {"--tie_head off --dropout 0 --shuffle off", "--save_async --gather_slots 1", 2, POKE_NONE},
    {"--param_dtype bf16 --reduce_dtype bf16", "--gather_slots 3 --shm off --save_async", 3, POKE_NONE}};
enum { RESUME_VARIANTS = sizeof resume_variants / sizeof *resume_variants };

// The results of a run by step from 0, and every state at the save and at the end.
struct ResumeTrace {
  double loss[RESUME_STEPS], norm[RESUME_STEPS], scale[RESUME_STEPS], skipped[RESUME_STEPS], eval_loss;
  uint64_t saved, last;
};

static inline void resume_poke(Trainer *t, ResumePoke poke) {
  StepState *s = t->host.state;
  if (poke == POKE_OVERFLOW) s->loss_scale = 0x1p22f;
  if (poke == POKE_DOUBLE) s->good_steps = GOOD_STEPS_TO_DOUBLE - 3;
  t->ctx.ops->copy(&t->ctx, t->buffers.state, s, sizeof *s);
  t->ctx.ops->sync(&t->ctx);
}
static inline void resume_step(Trainer *t, Saver *saver, const ResumeVariant *v, ResumeTrace *r) {
  const int at = (int)t->run.step;
  const StepResult x = train_step(t, false);
  r->loss[at] = x.loss;
  r->norm[at] = x.grad_norm;
  r->scale[at] = t->run.loss_scale;
  r->skipped[at] = x.skipped;
  if (t->run.step == 1) resume_poke(t, v->poke);
  if (t->run.step != 2 && t->run.step != 4) return;      // validated before the save, and between it and the end
  r->eval_loss = trainer_eval(t, &t->run.corpus->split[SPLIT_VALID]).loss;
  static Log quiet;
  saver_see(saver, &quiet, r->eval_loss);
}
static inline void resume_steps(Trainer *t, Saver *saver, const ResumeVariant *v, ResumeTrace *r, int64_t until) {
  while (t->run.step < until) resume_step(t, saver, v, r);
}

// A fresh run on `comm`, its checkpoints below OUT.
static inline void resume_begin(Trainer *t, Saver *saver, const Corpus *corpus, MPI_Comm comm, const ResumeVariant *v,
                                const char *out) {
  Options o;
  int world, rank;
  MPI_Comm_size(comm, &world);
  MPI_Comm_rank(comm, &rank);
  test_options(&o, world, "%s %s %s %s --out %s", world_shapes, resume_shapes, v->kept, v->own, out);
  if (!rank) make_directories(out);
  trainer_open(t, &o, corpus, comm, device_of(agree_on_ops(&o, comm)), 1);
  saver_init(saver, &t->run);
}
// Weights that no checkpoint has, so that nothing is right before the load; E4M3 scales too. All ranks call it.
static inline void resume_spoil(Fsdp *f) {
  enum { PIECE = 512 };
  float wrong[PIECE];
  for (float &x : wrong) x = 100.0f;
  if (fsdp_needs_measure(f)) fsdp_forget_scales(f);
  for (ValuePass pass : {PASS_MEASURE, PASS_STORE}) {
    for (int p = 0; p < f->lay.params; p++) {
      Span run;
      if (!fsdp_span(f, p, f->mesh.shard.me, &run)) continue;
      const int64_t n = min64(run.numel, param_numel(&f->lay.param[p]) - run.in_range);    // padding rows stay zero
      for (int64_t at = 0; at < n; at += PIECE)
        fsdp_set_own(f, STATE_MASTER, p, at, wrong, min64(PIECE, n - at), pass);
    }
    if (pass == PASS_MEASURE && fsdp_needs_measure(f)) fsdp_frozen_scales(f);
  }
  fsdp_publish(f);
  fsdp_step_end(f);
}
// Resumes from a checkpoint as the program does, with only the source, the target and the run's own options. On `ops`
// over `comm_name` if these are not NULL, else on the CPU.
static inline void resume_from(Trainer *t, Saver *saver, const Corpus *corpus, MPI_Comm comm, const char *arguments,
                               const Ops *ops = NULL, const char *comm_name = NULL) {
  static Start start;
  Options o;
  char text[2048], *argv[96] = {(char *)"test"}, *save = NULL;
  Error error = {};
  int argc = 1, world, rank;
  MPI_Comm_size(comm, &world);
  MPI_Comm_rank(comm, &rank);
  snprintf(text, sizeof text, "%s", arguments);
  for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
  memset((void *)&start, 0, sizeof start);
  if (options_parse(&o, &trainer_table, argc, argv, &error) && !rank)
    start_find(&start, &o, &error);
  agree_no_error(comm, error.text, EXIT_MISSING);
  start_share(&start, comm);
  if (start_options(&start, &o, &error) && options_resolve(&o, world, world, &error))
    start_check(&start, &o, corpus, &error);
  agree_no_error(comm, error.text, EXIT_USAGE);
  agree_on_run(comm, &o);
  if (!rank) make_directories(o.out);            // not check_out: this process writes there several times
  if (comm_name) option_pick(&o, OPT_comm, comm_name);
  trainer_open(t, &o, corpus, comm, schedule_device(ops ? ops : agree_on_ops(&o, comm)), 1);
  saver_init(saver, &t->run);
  resume_spoil(t->fsdp);
  start_load(&start, &t->run, saver);
  start_free(&start);
}

// One rank, uninterrupted; its checkpoints after saved_after steps and at the end are in ref/ckpt.
static inline ResumeTrace resume_reference(const Corpus *corpus, const ResumeVariant *v) {
  static Trainer t;
  static Saver saver;
  static Log log;
  ResumeTrace r = {};
  MPI_Comm comm;
  if (world_comm(1, &comm)) {
    ckpt_remove(ckpt_path("ref"));
    const ResumeVariant plain = {v->kept, "", v->saved_after, v->poke};
    resume_begin(&t, &saver, corpus, comm, &plain, ckpt_path("ref"));
    resume_steps(&t, &saver, v, &r, v->saved_after);
    r.saved = states_hash(t.fsdp);
    EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
    resume_steps(&t, &saver, v, &r, RESUME_STEPS);
    r.last = states_hash(t.fsdp);
    EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
    const int k = v->saved_after;
    EXPECT(r.loss[0] > 8 && r.loss[0] < 9.5 && r.loss[1] != r.loss[0], "%s: losses %g, %g", v->kept, r.loss[0],
           r.loss[1]);
    if (v->poke == POKE_OVERFLOW)
      EXPECT(r.skipped[k - 1] && r.skipped[k], "no step is skipped around the save");
    if (v->poke == POKE_DOUBLE)
      EXPECT(r.scale[k] == 2 * r.scale[k - 1], "the scale does not double after the save: %g, %g", r.scale[k - 1],
             r.scale[k]);
    trainer_close(&t);
    MPI_Comm_free(&comm);
  }
  MPI_Bcast(&r, sizeof r, MPI_BYTE, 0, MPI_COMM_WORLD);
  return r;
}
// Compares bits; all NaN (the norm of a skipped step) count as equal.
static inline bool ckpt_differ(double a, double b) { return a != b && !(a != a && b != b); }
static inline bool resume_traces_differ(const ResumeTrace *a, const ResumeTrace *b, int from, int to) {
  for (int s = from; s < to; s++)
    if (ckpt_differ(a->loss[s], b->loss[s]) || ckpt_differ(a->norm[s], b->norm[s]) || a->scale[s] != b->scale[s] ||
        a->skipped[s] != b->skipped[s]) return true;
  return false;
}

// The path of the saver's last checkpoint.
static inline const char *saver_path(const Saver *s) {
  static char path[MAP_PATH_BYTES];
  path_join(path, sizeof path, s->directory, s->name);
  return path;
}

// Trains and saves on N ranks below `saved`. In the background: a step changes all states before they are written.
static inline void resume_save_at(int N, const Corpus *corpus, const ResumeVariant *v, const ResumeTrace *want,
                                  const char *what) {
  static Trainer t;
  static Saver saver;
  static Log log;
  MPI_Comm comm;
  ResumeTrace r = {};
  if (!world_comm(N, &comm)) return;
  resume_begin(&t, &saver, corpus, comm, v, ckpt_path("saved"));
  resume_steps(&t, &saver, v, &r, v->saved_after);
  EXPECT(!resume_traces_differ(&r, want, 0, v->saved_after), "%s: differs from one rank before the save", what);
  EXPECT(states_hash(t.fsdp) == want->saved, "%s: tensors differ from one rank's before the save", what);
  const int64_t before = ckpt_written_bytes();
  if (t.opt.save_async) hold_begin();
  saver_save(&saver, &log, t.opt.save_async, false);
  if (t.opt.save_async) train_step(&t, false);
  hold_end();
  EXPECT(saver_finish(&saver, &log), "%s: %s", what, t.run.store->result->error);
  const int64_t written = ckpt_written_bytes() - before;
  // MPI itself may write a byte now and then to wake a process.
  if (before >= 0 && t.fsdp->mesh.rank)
    EXPECT(written >= t.run.store->bytes_total && written < t.run.store->bytes_total + 4096,
           "%s: this rank wrote %lld bytes, its part is %lld", what, (long long)written,
           (long long)t.run.store->bytes_total);
  ckpt_expect_bytes(what, &t, saver_path(&saver));
  if (!t.fsdp->mesh.rank)
    ckpt_expect_same_checkpoint(what, ckpt_path("ref/ckpt/step_%08d", v->saved_after), saver_path(&saver));
  trainer_close(&t);
  MPI_Comm_free(&comm);
}
// Resumes from it on M ranks and trains to the end; saves at once, and at the end.
static inline void resume_load_at(int M, const Corpus *corpus, const ResumeVariant *v, const ResumeTrace *want,
                                  const char *resume, const char *what) {
  static Trainer t;
  static Saver saver;
  static Log log;
  MPI_Comm comm;
  ResumeTrace r = {};
  char arguments[2048];
  const int k = v->saved_after;
  if (!world_comm(M, &comm)) return;
  snprintf(arguments, sizeof arguments, "--resume %s --out %s %s", resume,
           ckpt_path(strcmp(resume, "auto") ? "resumed" : "saved"), v->own);
  resume_from(&t, &saver, corpus, comm, arguments);
  EXPECT(t.run.step == k && saver.best_loss < INFINITY, "%s: resumed after step %lld with best loss %g", what,
         (long long)t.run.step, saver.best_loss);
  EXPECT(states_hash(t.fsdp) == want->saved, "%s: loaded tensors differ from those saved", what);
  EXPECT(saver_save(&saver, &log, false, false), "%s: %s", what, t.run.store->result->error);
  ckpt_expect_bytes(what, &t, saver_path(&saver));
  if (!t.fsdp->mesh.rank)
    ckpt_expect_same_checkpoint(what, ckpt_path("ref/ckpt/step_%08d", k), saver_path(&saver));
  resume_steps(&t, &saver, v, &r, RESUME_STEPS);
  EXPECT(!resume_traces_differ(&r, want, k, RESUME_STEPS) && r.eval_loss == want->eval_loss,
         "%s: step %d has loss %.17g, norm %.17g, scale %g (uninterrupted: %.17g, %.17g, %g), validation %.17g (%.17g)",
         what, k + 1, r.loss[k], r.norm[k], r.scale[k], want->loss[k], want->norm[k], want->scale[k], r.eval_loss,
         want->eval_loss);
  EXPECT(states_hash(t.fsdp) == want->last, "%s: the final tensors differ from the uninterrupted run's", what);
  saver_save(&saver, &log, t.opt.save_async, false);
  EXPECT(saver_finish(&saver, &log), "%s: %s", what, t.run.store->result->error);
  if (!t.fsdp->mesh.rank)
    ckpt_expect_same_checkpoint(what, ckpt_path("ref/ckpt/step_%08d", RESUME_STEPS), saver_path(&saver));
  trainer_close(&t);
  MPI_Comm_free(&comm);
}
static inline void resume_pair(int N, int M, const Corpus *corpus, const ResumeVariant *v, const ResumeTrace *want) {
  // Everything that --resume can name: a checkpoint, the directory of them, OUT; and auto.
  const char *const named[] = {ckpt_path("saved/ckpt/step_%08d", v->saved_after), ckpt_path("saved/ckpt"),
                               ckpt_path("saved"), "auto"};
  char what[256];
  snprintf(what, sizeof what, "saved on %d, loaded on %d, %s %s", N, M, v->kept, v->own);
  resume_save_at(N, corpus, v, want, what);
  MPI_Barrier(MPI_COMM_WORLD);                   // ranks beyond N must not look before it is there
  resume_load_at(M, corpus, v, want, named[(N + M) % 4], what);
  MPI_Barrier(MPI_COMM_WORLD);
  if (!ckpt_rank()) { ckpt_remove(ckpt_path("saved")); ckpt_remove(ckpt_path("resumed")); }
}
struct ResumePair { int N, M; };
// The i-th pair with the i-th variant, counted from `first`.
static inline void resume_pairs(const ResumePair *pair, int first, int count) {
  static Corpus corpus;
  resume_corpus(&corpus);
  for (int i = first; i < first + count; i++) {
    const ResumeVariant *v = &resume_variants[i % RESUME_VARIANTS];
    const ResumeTrace want = resume_reference(&corpus, v);
    resume_pair(pair[i].N, pair[i].M, &corpus, v, &want);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
// Every N and every M of the divisors of 12 microbatches; up, down and the same; of 4 and 6 neither divides the other.
static const ResumePair resume_covering[RESUME_VARIANTS] = {{1, 6}, {6, 1}, {2, 3}, {3, 2},
                                                            {4, 6}, {6, 4}, {3, 3}, {2, 4}};

TEST_MPI(resume_at_other_ranks, 6,
         "saved on N, loaded on M ranks (1-6, 6-1, 2-3, 3-2; fp32, bf16 in the background, fp16 around skipped steps "
         "by messages, SGD with one slot): every tensor, loss, norm, scale and file equals the uninterrupted rank's") {
  resume_pairs(resume_covering, 0, 4);
}
TEST_MPI(resume_at_other_ranks_more, 6,
         "the same for 4-6, 6-4, 3-3, 2-4: untied, fp16 before its scale doubles, no dropout or shuffling, three "
         "slots, messages, in the background") {
  resume_pairs(resume_covering, 4, 4);
}
TEST_MPI(resume_at_all_ranks_all, 6, "the same for all 25 pairs of N, M in 1, 2, 3, 4, 6, each with another variant") {
  static const int worlds[] = {1, 2, 3, 4, 6};
  ResumePair pair[25];
  for (int i = 0; i < 25; i++) pair[i] = ResumePair{worlds[i / 5], worlds[i % 5]};
  resume_pairs(pair, 0, 25);
}

TEST_MPI(resume_in_another_dtype, 1,
         "--param_dtype may change at a resume: masters and moments stay, and the loss scale is the new dtype's own") {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static Log log;
  resume_corpus(&corpus);
  const struct { const char *saved, *resumed; float scale; } cases[] = {
      {"fp16", "fp32", 1.0f}, {"bf16", "fp16", 65536.0f}, {"fp32", "bf16", 1.0f}};
  for (const auto &k : cases) {
    char kept[64], arguments[1024];
    snprintf(kept, sizeof kept, "--param_dtype %s", k.saved);
    const ResumeVariant v = {kept, "", 1, POKE_NONE};
    ckpt_remove(ckpt_path("saved"));
    resume_begin(&t, &saver, &corpus, MPI_COMM_SELF, &v, ckpt_path("saved"));
    train_step(&t, false);
    const uint64_t saved = states_hash(t.fsdp);
    EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
    trainer_close(&t);
    snprintf(arguments, sizeof arguments, "--resume auto --out %s --param_dtype %s", ckpt_path("saved"), k.resumed);
    resume_from(&t, &saver, &corpus, MPI_COMM_SELF, arguments);
    EXPECT(states_hash(t.fsdp) == saved, "%s to %s: the tensors are not those saved", k.saved, k.resumed);
    EXPECT(t.run.loss_scale == k.scale && t.host.state->loss_scale == k.scale, "%s to %s: the loss scale is %g, not %g",
           k.saved, k.resumed, t.run.loss_scale, k.scale);
    const StepResult r = train_step(&t, false);
    EXPECT(r.loss > 7 && r.loss < 9 && !r.skipped, "%s to %s: the next loss is %g", k.saved, k.resumed, r.loss);
    trainer_close(&t);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- memory ---------------------------------------------------------------------------------------------------------
static inline size_t peak_bytes() { return proc_number("/proc/self/status", "VmHWM:") * 1024; }
// Sets the peak to the bytes resident now, without freed memory that could be reused unseen. False if the kernel does
// not allow it.
static inline bool peak_reset() {
  malloc_trim(0);
  FILE *f = fopen("/proc/self/clear_refs", "w");
  const bool ok = f && fputs("5", f) >= 0;
  return f && !fclose(f) && ok;
}
// Touches every page of the store's memory before anything is measured.
static inline void peak_touch(Trainer *t) { memset(t->run.store->memory, 0, t->run.store->bytes); }

TEST_MPI(checkpoint_memory_is_planned, 2,
         "checkpoint buffers are the plan's, with a snapshot and without; saving at once, in the background and "
         "loading raise the process's peak by less than 1 MiB beyond them, of 45 MB of state") {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static Log log;
  test_corpus(&corpus, 5000, 12 * 16 * 4 + 1, 50);
  if (TEST_SANITIZED) SKIP("the address sanitizer keeps freed memory");
  if (!peak_reset()) SKIP("this kernel does not let a process reset its peak memory");
  if (!ckpt_rank()) make_directories(ckpt_path("saved"));
  for (const char *extra : {"", "--save_async"}) {
    Options o;
    Error error = {};
    test_options(&o, 2, "--n_layer 1 --n_head 4 --n_embd 384 --seq_len 16 --n_positions 16 --vocab_size 5000 "
                 "--batch_size 1 --out %s %s", ckpt_path("saved"), extra);
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(agree_on_ops(&o, MPI_COMM_WORLD)), 1);
    saver_init(&saver, &t.run);
    const size_t numel = (size_t)model_numel(&t.model), MiB = 1 << 20, N = 2;
    const size_t blocks = (4 * numel + MiB - 1) / MiB + (8 * numel + MiB - 1) / MiB;
    const size_t snapshot = extra[0] ? (size_t)store_snapshot_bytes(t.fsdp) : 0;
    const size_t want = 4 * MiB + snapshot + (8 * blocks + 255) / 256 * 256 + 512 * (N + 1);
    EXPECT(t.run.plan.planned_bytes[MEM_CHECKPOINT] == want && t.run.plan.taken_bytes[MEM_CHECKPOINT] == want,
           "%s: %zu bytes of checkpoint buffers planned, %zu taken, the formula gives %zu", extra,
           t.run.plan.planned_bytes[MEM_CHECKPOINT], t.run.plan.taken_bytes[MEM_CHECKPOINT], want);
    train_step(&t, false);
    peak_touch(&t);
    const uint64_t saved = states_hash(t.fsdp);
    peak_reset();
    size_t before = peak_bytes();
    EXPECT(saver_save(&saver, &log, extra[0], false) && saver_finish(&saver, &log), "%s", t.run.store->result->error);
    size_t after = peak_bytes();
    EXPECT(after <= before + MiB, "%s: saving raised the peak from %zu to %zu bytes", extra, before, after);
    train_step(&t, false);
    EXPECT(states_hash(t.fsdp) != saved, "%s: a step changes nothing", extra);
    int64_t bytes = 0;
    const char *path = saver_path(&saver);
    char *text = checkpoint_text(path, &bytes, &error);
    cJSON *json = text ? checkpoint_parse(path, text, (size_t)bytes, &error) : NULL;
    REQUIRE(json, "%s", error.text);
    peak_reset();
    before = peak_bytes();
    checkpoint_load(test_saved(&t), path, json, crc32c(0, text, (size_t)bytes), true, log_load_progress);
    after = peak_bytes();
    EXPECT(after <= before + MiB, "%s: loading raised the peak from %zu to %zu bytes", extra, before, after);
    EXPECT(states_hash(t.fsdp) == saved && t.run.step == 1, "%s: what was loaded is not what was saved", extra);
    cJSON_Delete(json);
    free(text);
    trainer_close(&t);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- hosts that do not see the directory ----------------------------------------------------------------------------
// Blind ranks look for the files in a directory without them. The trainer's store is set up again as for several hosts.
static inline void stream_reopen(Trainer *t, bool background) {
  store_end(t->run.store);
  t->fsdp->mesh.hosts = 2;
  for (int i = 0; i < t->run.plan.blocks; i++) {
    MemoryBlock *b = &t->run.plan.block[i];
    if (b->line != MEM_CHECKPOINT) continue;
    memory_give_back(&t->ctx, b->line, t->run.store->memory, b->bytes);
    b->bytes = t->run.plan.planned_bytes[MEM_CHECKPOINT] = store_plan_bytes(t->fsdp, background);
    t->run.plan.taken_bytes[MEM_CHECKPOINT] = 0;
    t->run.store->memory = (char *)memory_take(&t->ctx, &t->run.plan, MEM_CHECKPOINT, b->bytes);
  }
  store_begin(t->run.store, t->fsdp, background);
  memory_check_taken(&t->run.plan);
}

// Two files written by the test's own StoreRequest, and its result on rank 0.
enum { STREAM_MOST_BLOCKS = 64 };
struct StreamFiles {
  char directory[MAP_PATH_BYTES], *header[CHECKPOINT_FILES];
  uint32_t checksums[STREAM_MOST_BLOCKS];
  int64_t blocks;
  int commits, discards;
};
static bool stream_commit(void *to, const TensorMap *, const uint32_t *checksums, Error *) {
  StreamFiles *w = (StreamFiles *)to;
  memcpy(w->checksums, checksums, sizeof(uint32_t) * (size_t)w->blocks);
  w->commits++;
  return true;
}
static void stream_discard(void *to) {
  StreamFiles *w = (StreamFiles *)to;
  file_remove(w->directory);
  w->discards++;
}
static inline void stream_begin(Trainer *t, StreamFiles *w, bool background, bool blind) {
  TensorMap map;
  memset(w, 0, sizeof *w);
  snprintf(w->directory, sizeof w->directory, "%s", ckpt_path("streamed"));
  if (!t->fsdp->mesh.rank) file_make_directory(w->directory);
  checkpoint_map(test_saved(t), blind ? "/nowhere/at/all" : w->directory, &map, w->header);
  w->blocks = map_blocks(&map, 0) + map_blocks(&map, 1);
  CHECK(w->blocks <= STREAM_MOST_BLOCKS, "%lld blocks", (long long)w->blocks);
  const bool begun = store_save_begin(t->run.store, &map, StoreRequest{STATES_ALL, background, true, {w->header[0],
                                      w->header[1]}, {stream_commit, stream_discard, w}});
  EXPECT(begun, "%s", t->run.store->result->error);
  EXPECT(t->run.store->direct == !blind, "this rank is taken for one that %s the files",
         blind ? "sees" : "does not see");
}
static inline void stream_end(Trainer *t, StreamFiles *w) {
  store_wait(t->run.store, NULL, NULL);
  for (char *h : w->header) free(h);
}
// Saves, and compares files and checksums with those of the checkpoint in `want`. In the background a step is trained
// meanwhile.
static inline void stream_save(Trainer *t, bool background, bool blind, const char *want, const char *what) {
  StreamFiles w;
  Error error = {};
  if (background) hold_begin();
  stream_begin(t, &w, background, blind);
  if (background) train_step(t, false);
  hold_end();
  stream_end(t, &w);
  EXPECT(!t->run.store->result->failed, "%s: %s", what, t->run.store->result->error);
  EXPECT(t->run.store->bytes_done == t->run.store->bytes_total, "%s: %lld bytes of %lld", what,
         (long long)t->run.store->bytes_done, (long long)t->run.store->bytes_total);
  if (t->fsdp->mesh.rank) return;
  EXPECT(w.commits == 1 && !w.discards, "%s: %d commits, %d discards", what, w.commits, w.discards);
  for (const char *name : checkpoint_files) {
    char a[MAP_PATH_BYTES], b[MAP_PATH_BYTES];
    path_join(a, sizeof a, w.directory, name);
    path_join(b, sizeof b, want, name);
    ckpt_expect_same_file(what, a, b);
  }
  int64_t bytes;
  char *text = checkpoint_text(want, &bytes, &error);
  cJSON *json = text ? checkpoint_parse(want, text, (size_t)bytes, &error) : NULL;
  uint32_t checksums[STREAM_MOST_BLOCKS] = {};
  EXPECT(json && checkpoint_checksums(want, json, &t->run.store->map, checksums, &error), "%s: %s", what, error.text);
  EXPECT(!memcmp(checksums, w.checksums, sizeof checksums), "%s: the checksums differ from one host's", what);
  cJSON_Delete(json);
  free(text);
}
// Loads the checkpoint in `directory`; "" or this rank's error.
static inline void stream_load(Trainer *t, const char *directory, bool blind, Error *error) {
  TensorMap map;
  char *header[CHECKPOINT_FILES];
  Error why = {};
  int64_t bytes;
  checkpoint_map(test_saved(t), directory, &map, header);
  uint32_t checksums[STREAM_MOST_BLOCKS] = {};
  char *text = checkpoint_text(directory, &bytes, &why);
  cJSON *json = text ? checkpoint_parse(directory, text, (size_t)bytes, &why) : NULL;
  EXPECT(json && checkpoint_checksums(directory, json, &map, checksums, &why), "%s", why.text);
  for (int i = 0; i < map.files && blind; i++) snprintf(map.path[i], MAP_PATH_BYTES, "/nowhere/at/all%d", i);
  StoreLoad l = {};
  l.map = &map;
  l.checksums = checksums;
  store_load(t->run.store, l, STATES_ALL, error, NULL);
  fsdp_publish(t->fsdp);
  fsdp_step_end(t->fsdp);
  tensor_map_free(&map);
  cJSON_Delete(json);
  free(text);
  for (char *h : header) free(h);
}
// A save that one rank cancels midway, or all ranks (-1): it fails on every rank and leaves nothing.
static inline void stream_cancel(Trainer *t, bool background, bool blind, int by, const char *what) {
  StreamFiles w;
  const bool gives_up = by < 0 || by == t->fsdp->mesh.rank;
  if (background) hold_begin();
  stream_begin(t, &w, background, blind);
  store_poll(t->run.store);
  if (gives_up) __atomic_store_n(&t->run.store->cancelled, true, __ATOMIC_RELAXED);
  hold_end();
  stream_end(t, &w);
  const StoreRecord *r = t->run.store->result;
  EXPECT(r->failed && strstr(r->error, "given up"), "%s, given up by %d: '%s'", what, by, r->error);
  EXPECT(!gives_up || t->run.store->bytes_done < t->run.store->bytes_total,
         "%s: written to its end all the same", what);
  if (!t->fsdp->mesh.rank)
    EXPECT(!w.commits && w.discards == 1 && access(w.directory, F_OK), "%s, given up by %d: %d commits, %d discards",
           what, by, w.commits, w.discards);
}
static inline void stream_flip(const char *directory, const char *name) {
  char path[MAP_PATH_BYTES];
  uint8_t x = 0;
  struct stat st = {};
  path_join(path, sizeof path, directory, name);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  EXPECT(fd >= 0 && !fstat(fd, &st) && pread(fd, &x, 1, st.st_size - 100) == 1, "%s", path);
  x ^= 16;
  EXPECT(pwrite(fd, &x, 1, st.st_size - 100) == 1, "%s", path);
  close(fd);
}

// N ranks, of which the blind ones stream everything.
static inline void stream_world(const Corpus *corpus, int N, bool background, bool all_blind) {
  static Trainer t;
  static Saver saver;
  static Log log;
  MPI_Comm comm;
  char what[128];
  Error error = {};
  if (!world_comm(N, &comm)) return;
  snprintf(what, sizeof what, "%d ranks, %s of them blind, %s", N, all_blind ? "all but the first" : "every second",
           background ? "in the background" : "at once");
  const ResumeVariant v = {"", background ? "--save_async" : "", 0, POKE_NONE};
  resume_begin(&t, &saver, corpus, comm, &v, ckpt_path("saved"));
  const int rank = t.fsdp->mesh.rank;
  const bool blind = all_blind ? rank > 0 : rank % 2;
  train_step(&t, false);
  const uint64_t saved = states_hash(t.fsdp);
  EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
  const char *want = ckpt_path("saved/ckpt/step_%08d", 1);
  stream_reopen(&t, background);
  for (int by = -1; by < N; by += N) stream_cancel(&t, background, blind, by, what);     // all; the last rank, blind
  stream_save(&t, background, blind, want, what);
  train_step(&t, false);
  EXPECT(states_hash(t.fsdp) != saved, "%s: a step changes nothing", what);
  stream_load(&t, want, blind, &error);
  EXPECT(!error.text[0] && states_hash(t.fsdp) == saved, "%s: loaded tensors differ from those saved; '%s'", what,
         error.text);
  MPI_Barrier(comm);
  if (!rank) stream_flip(want, "optim.safetensors");
  MPI_Barrier(comm);
  stream_load(&t, want, blind, &error);
  const bool has_last = rank == N - 1;           // a bias, so at the end of its unit, in the last rank's shard
  EXPECT(!has_last || (!strncmp(error.text, "second moment of h.", 19) && strstr(error.text, "are damaged")), "%s: "
         "'%s'", what, error.text);
  MPI_Barrier(comm);
  if (!rank) { ckpt_remove(ckpt_path("saved")); ckpt_remove(ckpt_path("streamed")); }
  trainer_close(&t);
  MPI_Comm_free(&comm);
}
TEST_MPI(hosts_without_the_directory_stream, 6,
         "ranks that do not see the files send and request their bytes: files, checksums and loaded state equal "
         "those of one host (N = 2, 3, 6, at once and in the background); a cancelled save leaves nothing; damage is "
         "named") {
  static Corpus corpus;
  resume_corpus(&corpus);
  for (int N : {2, 3, 6}) for (int background = 0; background < 2; background++) {
    stream_world(&corpus, N, background, N == 3);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- weights for other programs -------------------------------------------------------------------------------------
// Shapes whose matrices are transposed in one piece and in several (384 x 1536: 2.25 MiB), on ranks that start and end
// inside rows.
struct ExportCase { const char *shapes; int vocab; ResumePair pair[4]; };
static inline void export_case(const ExportCase *k) {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static Log log;
  MPI_Comm comm;
  test_corpus(&corpus, k->vocab, 12 * 21 + 1, 50);
  const int first = k->pair[0].N;
  uint64_t want = 0;
  for (const ResumePair &pair : k->pair) {
    if (!pair.N) break;
    if (world_comm(pair.N, &comm)) {
      Options o;
      test_options(&o, pair.N, "%s --epochs 9 --out %s", k->shapes, ckpt_path("out"));
      make_directories(ckpt_path("out"));
      make_directories(ckpt_path("hf%d", pair.N));
      trainer_open(&t, &o, &corpus, comm, device_of(agree_on_ops(&o, comm)), 1);
      saver_init(&saver, &t.run);
      train_step(&t, false);
      want = weights_hash(t.fsdp);
      const char *hf = ckpt_path("hf%d", pair.N);
      EXPECT(saver_save(&saver, &log, false, false) && save_model(&t.run) && export_hf(&t.run, hf), "%s",
             t.run.store->result->error);
      if (!t.fsdp->mesh.rank) {
        ckpt_expect_same_file("--save_model", ckpt_path("out/model.safetensors"),
                              ckpt_path("out/ckpt/step_00000001/model.safetensors"));
        for (const char *name : {"model.safetensors", "config.json", "generation_config.json"})
          ckpt_expect_same_file("--export_hf", ckpt_path("hf%d/%s", first, name), ckpt_path("hf%d/%s", pair.N, name));
      }
      trainer_close(&t);
      MPI_Comm_free(&comm);
    }
    MPI_Bcast(&want, sizeof want, MPI_BYTE, 0, MPI_COMM_WORLD);
    // Each of the three is read on other ranks: the export, the weights alone, the checkpoint.
    for (const char *from : {ckpt_path("hf%d", pair.N), ckpt_path("out/model.safetensors"), ckpt_path("out")}) {
      char arguments[1024];
      if (!world_comm(pair.M, &comm)) continue;
      snprintf(arguments, sizeof arguments, "--init_from %s --seq_len 21 --batch_size 1 --seed 9 --out %s", from,
               ckpt_path("fresh"));
      resume_from(&t, &saver, &corpus, comm, arguments);
      EXPECT(weights_hash(t.fsdp) == want && !t.run.step && !t.host.state->updates,
             "exported by %d ranks, read from %s by %d: other weights, or step %lld", pair.N, from, pair.M,
             (long long)t.run.step);
      trainer_close(&t);
      MPI_Comm_free(&comm);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!ckpt_rank()) ckpt_remove(ckpt_path("out"));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  if (!ckpt_rank()) for (const ResumePair &pair : k->pair) ckpt_remove(ckpt_path("hf%d", pair.N));
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(exports_know_no_ranks, 6,
         "N = 1, 2, 3, 6 ranks write the same export, and the same model.safetensors as in the checkpoint; other "
         "numbers of ranks read the same weights from each (tied or not; transposed matrices cut inside rows and in "
         "pieces)") {
  const ExportCase cases[] = {
      {world_shapes, 5003, {{1, 6}, {2, 3}, {3, 1}, {6, 4}}},
      {"--n_layer 2 --n_head 3 --n_embd 60 --seq_len 21 --n_positions 32 --vocab_size 301 --batch_size 1 "
       "--global_batch 12 --tie_head off", 301, {{6, 2}, {3, 6}}},
      {"--n_layer 1 --n_head 4 --n_embd 384 --seq_len 21 --n_positions 32 --vocab_size 301 --batch_size 1 "
       "--global_batch 6", 301, {{1, 3}, {2, 1}}}};
  for (const ExportCase &k : cases) export_case(&k);
}

// ---- devices --------------------------------------------------------------------------------------------------------
enum { DEVICE_SAVED_AFTER = 2 };
// Trains on `ops`, saves after two steps and at the end, below OUT; `from`: what it resumes, after two steps, or NULL.
static inline void device_run(const Ops *ops, MPI_Comm comm, const char *comm_name, const Corpus *corpus,
                              const char *extra, const char *out, const char *from) {
  static Trainer t;
  static Saver saver;
  static Log log;
  char text[1024];
  int world;
  MPI_Comm_size(comm, &world);
  if (from) {
    snprintf(text, sizeof text, "--resume %s --out %s %s", from, out, extra);
    resume_from(&t, &saver, corpus, comm, text, ops, comm_name);
  } else {
    Options o;
    test_options(&o, world, "%s --out %s %s", schedule_shapes, out, extra);
    schedule_logits(&o);
    make_directories(out);
    option_pick(&o, OPT_comm, comm_name);
    trainer_open(&t, &o, corpus, comm, schedule_device(ops), 1);
    saver_init(&saver, &t.run);
    while (t.run.step < DEVICE_SAVED_AFTER) train_step(&t, false);
  }
  EXPECT(t.run.step == DEVICE_SAVED_AFTER, "%s: after step %lld", ops->name, (long long)t.run.step);
  saver_save(&saver, &log, t.opt.save_async, false);
  while (t.run.step < SCHEDULE_STEPS) train_step(&t, false);
  EXPECT(saver_save(&saver, &log, false, false), "%s: %s", ops->name, t.run.store->result->error);
  EXPECT(t.run.plan.taken_bytes[MEM_CHECKPOINT] == t.run.store->bytes, "%s: %zu bytes", ops->name, t.run.store->bytes);
  trainer_close(&t);
}
static inline void device_expect(const char *what, const char *a, const char *b) {
  for (int step : {(int)DEVICE_SAVED_AFTER, (int)SCHEDULE_STEPS})
    for (const char *name : checkpoint_files)
      ckpt_expect_same_file(what, ckpt_path("%s/ckpt/step_%08d/%s", a, step, name),
                            ckpt_path("%s/ckpt/step_%08d/%s", b, step, name));
}
// kept: arithmetic options, which checkpoints keep. The reference is the CPU's run on one rank.
struct DeviceCase { const char *comm, *extra; int world; };
static inline void device_cases(const char *kept, const DeviceCase *cases, int count) {
  static Corpus corpus;
  MPI_Comm comm;
  schedule_corpus(&corpus);
  if (world_comm(1, &comm)) {
    ckpt_remove(ckpt_path("cpu"));
    device_run(cpu_tables[0].ops, comm, "self", &corpus, kept, ckpt_path("cpu"), NULL);
    MPI_Comm_free(&comm);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  for (const DeviceCase *k = cases; k < cases + count; k++) {
    char extra[256], what[512];
    snprintf(extra, sizeof extra, "%s %s", kept, k->extra);
    snprintf(what, sizeof what, "--comm %s, N=%d, %s", k->comm, k->world, extra);
    if (world_comm(k->world, &comm)) {
      emu_set_seed((uint64_t)(k->world + (k->extra[0] != 0)));
      device_run(&ops_streams, comm, k->comm, &corpus, extra, ckpt_path("device"), NULL);
      device_run(&ops_streams, comm, k->comm, &corpus, k->extra, ckpt_path("again"),
                 ckpt_path("cpu/ckpt/step_%08d", DEVICE_SAVED_AFTER));
      MPI_Comm_free(&comm);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!ckpt_rank()) {
      device_expect(what, "cpu", "device");
      device_expect(what, "cpu", "again");
      ckpt_remove(ckpt_path("device"));
      ckpt_remove(ckpt_path("again"));
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(devices_save_what_a_cpu_saves, 2,
         "the CPU's ops on emulated streams, one rank or two, over NCCL and over mpi, at once and in the background: "
         "saved files, and those of a run resumed from the CPU's checkpoint, equal the CPU's byte for byte") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  const DeviceCase cases[] = {{"self", "", 1}, {"self", "--save_async", 1}, {"nccl", "", 2},
                              {"nccl", "--save_async", 2}, {"mpi", "", 2}, {"mpi", "--save_async --shm off", 2}};
  for (const char *kept : {"", "--param_dtype bf16 --reduce_dtype bf16 --optimizer sgd"}) device_cases(kept, cases, 6);
}
TEST_MPI(devices_save_what_is_offloaded, 2,
         "optimizer or parameters on the host, replicas, frozen and E4M3 matrices: saved and resumed as on the CPU, "
         "byte for byte") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  const DeviceCase plain[] = {{"self", "--offload params", 1}, {"nccl", "--offload optimizer --save_async", 2},
                              {"mpi", "--offload params --strategy no_shard", 2}};
  device_cases("", plain, 3);
  const DeviceCase mixed[] = {{"self", "--offload optimizer", 1}, {"nccl", "--offload params --save_async", 2},
                              {"nccl", "--offload optimizer --strategy no_shard", 2},
                              {"mpi", "--offload optimizer --save_async", 2}};
  device_cases("--param_dtype bf16 --fp8 gather --freeze h.1.attn.*,*.bias", mixed, 4);
}
TEST_MPI(devices_resume_what_they_saved, 1,
         "CUDA kernels: a run resumed in the middle, also from a background checkpoint, with frozen and E4M3 "
         "matrices, ends like the uninterrupted run") {
  static Corpus corpus;
  schedule_corpus(&corpus);
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (const char *extra : {"", "--save_async",
                              "--param_dtype bf16 --fp8 gather --freeze h.1.attn.*,*.bias --save_async"}) {
      device_run(ops, MPI_COMM_SELF, "self", &corpus, extra, ckpt_path("device"), NULL);
      device_run(ops, MPI_COMM_SELF, "self", &corpus, extra, ckpt_path("again"),
                 ckpt_path("device/ckpt/step_%08d", DEVICE_SAVED_AFTER));
      device_expect(ops->name, "device", "again");
      ckpt_remove(ckpt_path("device"));
      ckpt_remove(ckpt_path("again"));
    }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- a directory of checkpoints -------------------------------------------------------------------------------------
// A checkpoint as its directory sees it: files of the recorded lengths and a sealed trainer.json.
static inline void dir_checkpoint(const char *directory, const char *name, int serial, bool best) {
  char path[MAP_PATH_BYTES], text[2048];
  path_join(path, sizeof path, directory, name);
  make_directories(path);
  const int n = snprintf(text, sizeof text, "{\n\"format_version\":%d,\"step\":9,\"serial\":%d,"
                         "\"state\":{\"updates\":3,\"good_steps\":3,\"loss_scale\":1,\"beta1_power\":0.5,"
                         "\"beta2_power\":0.5},\"quality\":{\"loss\":1,\"valid_loss\":null,"
                         "\"best_valid_loss\":2.5,\"best\":%s},\"corpus\":{\"hash\":\"ab\"},\"config\":{},\"files\":"
                         "{\"model.safetensors\":{\"bytes\":10},\"optim.safetensors\":{\"bytes\":20}},\n",
                         CHECKPOINT_VERSION, serial, best ? "true" : "false");
  size_t sealed_bytes;
  char *sealed = checkpoint_sealed(text, (size_t)n, &sealed_bytes), inside[MAP_PATH_BYTES];
  const struct { const char *name, *text; size_t bytes; } files[] = {
      {"trainer.json", sealed, sealed_bytes}, {"model.safetensors", text, 10}, {"optim.safetensors", text, 20}};
  for (const auto &f : files) {
    path_join(inside, sizeof inside, path, f.name);
    EXPECT(file_put(inside, path, f.text, (int64_t)f.bytes), "%s: %s", inside, strerror(errno));
  }
  free(sealed);
}
// Names in a directory, sorted, with a space after each. Four can be in use.
static inline int dir_compare(const void *a, const void *b) { return strcmp((const char *)a, (const char *)b); }
static inline const char *dir_names(const char *directory) {
  static char text[4][2048];
  static int turn;
  char names[64][256];
  int count = 0;
  turn = (turn + 1) % 4;
  text[turn][0] = 0;
  DIR *dir = opendir(directory);
  for (dirent *e; dir && count < 64 && (e = readdir(dir));)
    if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) snprintf(names[count++], sizeof names[0], "%s", e->d_name);
  if (dir) closedir(dir);
  qsort(names, (size_t)count, sizeof names[0], dir_compare);
  for (int i = 0; i < count; i++) { strcat(text[turn], names[i]); strcat(text[turn], " "); }
  return text[turn];
}
static inline const char *dir_link(const char *path) {
  static char to[2][256];
  static int turn;
  turn = !turn;
  const ssize_t n = readlink(path, to[turn], sizeof to[0] - 1);
  to[turn][n > 0 ? n : 0] = 0;
  return to[turn];
}
static inline void dir_expect(const char *what, const char *got, const char *want) {
  EXPECT(!strcmp(got, want), "%s: '%s', must be '%s'", what, got, want);
}
static inline void dir_start(Start *s, const char *resume, const char *out, Error *error) {
  Options o;
  options_default(&o, &trainer_table);
  snprintf(o.resume, sizeof o.resume, "%s", resume);
  snprintf(o.out, sizeof o.out, "%s", out);
  memset((void *)s, 0, sizeof *s);
  error->text[0] = 0;
  if (start_find(s, &o, error)) error->text[0] = 0;
}

TEST(newest_whole_checkpoint_is_found,
     "--resume auto, OUT, OUT/ckpt take the checkpoint saved last, whatever its step, and skip incomplete ones; a "
     "given name is that checkpoint; without any, auto starts a new run and a path is rejected") {
  const char *const out = ckpt_path("out"), *const directory = ckpt_path("out/ckpt");
  Error error = {};
  Start s;
  make_directories(out);
  dir_start(&s, "auto", out, &error);
  EXPECT(!error.text[0] && s.kind == START_FRESH && !s.resume && strstr(s.warnings, "starting from step 0"), "'%s' "
         "'%s'", error.text, s.warnings);
  dir_start(&s, out, out, &error);
  EXPECT(strstr(error.text, "no checkpoint there"), "'%s'", error.text);
  dir_start(&s, ckpt_path("none"), out, &error);
  EXPECT(strstr(error.text, "no checkpoint there") && strstr(error.text, "there is no such directory"), "'%s'",
         error.text);

  dir_checkpoint(directory, "step_00000010", 3, false);
  dir_checkpoint(directory, "step_00000020", 2, false);
  dir_checkpoint(directory, "step_00000005", 9, false);
  dir_checkpoint(directory, "step_123456789", 4, false);           // steps may outgrow eight digits
  for (const char *name : {"step_7", "step_0000000x", "step_00000030.tmp", ".saving_00000040_1_0", "other"})
    dir_checkpoint(directory, name, 20, false);
  const char *const first = "step_00000005";
  const char *const order[] = {"step_00000005", "step_123456789", "step_00000010", "step_00000020"};
  for (int taken = 0; taken < 4; taken++) {
    for (const char *named : {"auto", (const char *)out, (const char *)directory}) {
      dir_start(&s, named, out, &error);
      EXPECT(!error.text[0] && s.kind == START_CHECKPOINT && s.resume && s.here, "--resume %s: '%s', here %d", named,
             error.text, (int)s.here);
      const char *slash = strrchr(s.path, '/');
      dir_expect(named, slash ? slash + 1 : s.path, order[taken]);
      EXPECT((s.warnings[0] != 0) == (taken > 0) && (!taken || strstr(s.warnings, "a checkpoint is skipped: ")),
             "--resume %s, %d damaged: warnings '%s'", named, taken, s.warnings);
      free(s.text);
    }
    // Each newest checkpoint lacks something else.
    char path[MAP_PATH_BYTES];
    const char *const loses[] = {"model.safetensors", "optim.safetensors", "trainer.json", "trainer.json"};
    snprintf(path, sizeof path, "%s/%s/%s", directory, order[taken], loses[taken]);
    if (taken == 0) EXPECT(!truncate(path, 9), "%s", path);
    if (taken == 1 || taken == 2) EXPECT(!unlink(path), "%s", path);
    if (taken == 3) {
      int64_t bytes;
      char *text = file_get(path, 1 << 20, &bytes);
      text[bytes / 2] ^= 4;
      EXPECT(file_put(path, directory, text, bytes), "%s", path);
      free(text);
    }
  }
  dir_start(&s, "auto", out, &error);
  EXPECT(!strncmp(error.text, "no checkpoint in ", 17) && strstr(error.text, "is whole: every checkpoint is skipped: "),
         "'%s'", error.text);
  dir_checkpoint(directory, first, 9, false);
  dir_start(&s, ckpt_path("out/ckpt/step_00000005"), ckpt_path("elsewhere"), &error);
  EXPECT(!error.text[0] && s.resume && !s.here, "'%s', here %d", error.text, (int)s.here);
  free(s.text);
}
TEST(old_checkpoints_go,
     "--keep leaves the newest by order of saving, --keep_best the best too, and both leave incomplete and foreign "
     "ones; a sweep removes the remains of interrupted saves and removals") {
  const struct { int64_t keep; bool keep_best; const char *left, *best; } cases[] = {
      {0, false, "step_00000001 step_00000002 step_00000003 step_00000004 step_00000005 ", "step_00000002"},
      {3, false, "step_00000001 step_00000003 step_00000004 ", ""},
      {3, true, "step_00000001 step_00000002 step_00000003 step_00000004 ", "step_00000002"},
      {4, true, "step_00000001 step_00000002 step_00000003 step_00000004 ", "step_00000002"},
      {1, true, "step_00000001 step_00000002 ", "step_00000002"},
      {9, true, "step_00000001 step_00000002 step_00000003 step_00000004 step_00000005 ", "step_00000002"}};
  for (const auto &k : cases) {
    const char *const directory = ckpt_path("ckpt");
    char want[1024], broken[MAP_PATH_BYTES];
    dir_checkpoint(directory, "step_00000005", 1, true);           // the best of before, no longer
    dir_checkpoint(directory, "step_00000002", 2, true);
    dir_checkpoint(directory, "step_00000003", 3, false);
    dir_checkpoint(directory, "step_00000004", 4, false);
    dir_checkpoint(directory, "step_00000001", 5, false);          // after going back to the first step
    dir_checkpoint(directory, "step_00000009", 6, false);
    path_join(broken, sizeof broken, directory, "step_00000009/trainer.json");
    EXPECT(!unlink(broken), "%s", broken);
    dir_checkpoint(directory, "mine", 0, false);
    for (const char *name : {".saving_00000007_1_0", ".removed_step_00000006"})
      dir_checkpoint(directory, name, 7, false);
    EXPECT(!symlink("step_00000001", ckpt_path("ckpt/latest.tmp77")), "%s", strerror(errno));
    directory_sweep(directory, checkpoint_leftovers);
    checkpoint_prune(directory, k.keep, k.keep_best);
    snprintf(want, sizeof want, "%slatest mine %sstep_00000009 ", k.best[0] ? "best " : "", k.left);
    char what[64];
    snprintf(what, sizeof what, "--keep %lld, best %d", (long long)k.keep, (int)k.keep_best);
    dir_expect(what, dir_names(directory), want);
    dir_expect(what, dir_link(ckpt_path("ckpt/latest")), "step_00000001");
    dir_expect(what, dir_link(ckpt_path("ckpt/best")), k.best);
    ckpt_remove(directory);
  }
}
// Rejects the next rename once, like a file system without RENAME_EXCHANGE.
static bool dir_no_exchange;
static int dir_exchange_hook(FileOp op, const char *) {
  if (op != FILE_RENAME || !dir_no_exchange) return 0;
  dir_no_exchange = false;
  return EINVAL;
}
static int resume_no_space(FileOp op, const char *) { return op == FILE_WRITE ? ENOSPC : 0; }

TEST_MPI(checkpoints_rotate, 1,
         "saves rotate by --keep and --keep_best, links follow, a step saved again is replaced; a run that goes back "
         "continues the count, a new one moves the earlier run's checkpoints aside and loses none") {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static Log log;
  test_corpus(&corpus, 97, 2000, 32);
  Options o;
  test_options(&o, 1, "--n_layer 1 --n_head 2 --n_embd 24 --seq_len 16 --vocab_size 97 --batch_size 2 --keep 2 "
               "--keep_best --save_async --out %s", ckpt_path("out"));
  make_directories(o.out);
  trainer_open(&t, &o, &corpus, MPI_COMM_SELF, device_of(agree_on_ops(&o, MPI_COMM_SELF)), 1);
  saver_init(&saver, &t.run);
  const char *const directory = ckpt_path("out/ckpt");
  const double losses[] = {5, 6, 4, 4.5, 4.25};
  for (t.run.step = 1; t.run.step <= 5; t.run.step++)              // evaluated before and after they are saved
    if (t.run.step % 2) EXPECT(saver_save(&saver, &log, t.run.step == 3, false) &&
                               saver_see(&saver, &log, losses[t.run.step - 1]) == (t.run.step < 5), "%s",
                               t.run.store->result->error);
    else EXPECT(saver_save(&saver, &log, false, saver_see(&saver, &log, losses[t.run.step - 1])), "%s",
                t.run.store->result->error);
  dir_expect("five saves", dir_names(directory), "best latest step_00000003 step_00000004 step_00000005 ");
  dir_expect("latest", dir_link(ckpt_path("out/ckpt/latest")), "step_00000005");
  dir_expect("best", dir_link(ckpt_path("out/ckpt/best")), "step_00000003");

  t.run.step = 5;
  const int64_t serial = saver.serial;
  EXPECT(saver_save_now(&saver, &log) && saver.serial == serial, "the same step is saved twice, serial %lld of %lld",
         (long long)saver.serial, (long long)serial);
  for (float mark : {0.125f, 0.25f}) {            // the second time on a file system that cannot exchange names
    fsdp_piece_state(t.fsdp, STATE_MASTER, 0, 0)[0] = mark;
    dir_no_exchange = mark == 0.25f;
    lent_file_hook(dir_exchange_hook);
    EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
    lent_file_hook(NULL);
    EXPECT(!dir_no_exchange, "no names were to be exchanged");
    dir_expect("a step again", dir_names(directory), "best latest step_00000003 step_00000004 step_00000005 ");
    const int fd = open(ckpt_path("out/ckpt/step_00000005/model.safetensors"), O_RDONLY | O_CLOEXEC);
    float first = 0;
    EXPECT(file_read(fd, &first, 4, t.run.store->map.data_at[0]) && first == mark, "%g where %g was saved last", first,
           mark);
    close(fd);
  }

  saver_init(&saver, &t.run);                        // another process that resumes here, from an earlier step
  saver.continues = true;
  t.run.step = 2;
  EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
  dir_expect("gone back", dir_names(directory), "best latest step_00000002 step_00000003 step_00000005 ");
  dir_expect("latest", dir_link(ckpt_path("out/ckpt/latest")), "step_00000002");
  EXPECT(saver.serial == serial + 3, "serial %lld after %lld", (long long)saver.serial, (long long)serial);

  saver_init(&saver, &t.run);                        // and one that starts anew
  t.run.step = 1;
  EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
  dir_expect("a new run", dir_names(directory), "latest step_00000001 ");
  dir_expect("the old run", dir_names(ckpt_path("out/ckpt.1")),
             "best latest step_00000002 step_00000003 step_00000005 ");
  EXPECT(saver.serial == 1 || saver.serial > serial, "serial %lld", (long long)saver.serial);

  t.run.step = 2;
  lent_file_hook(resume_no_space);
  EXPECT(!saver_save(&saver, &log, false, saver_see(&saver, &log, 3)), "saved on a disk without space");
  lent_file_hook(NULL);
  EXPECT(!saver_see(&saver, &log, 3.25), "the best has no checkpoint: its save has failed before");
  t.run.step = 3;
  EXPECT(saver_save(&saver, &log, false, saver_see(&saver, &log, 3.5)) && saver.best,
         "a loss below all that were saved is not the best: a lower one was lost");
  EXPECT(!saver_see(&saver, &log, 3.75), "3.75 is the best although 3.5 is saved");
  t.run.step = 4;
  EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
  lent_file_hook(resume_no_space);               // the note of the best has no space: it comes before the next save
  EXPECT(saver_see(&saver, &log, 3) && saver.note.evaluated_step == 4, "3 is not the best, or its note is written");
  lent_file_hook(NULL);
  for (t.run.step = 5; t.run.step <= 7; t.run.step++)
    EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
  dir_expect("the best noted late", dir_link(ckpt_path("out/ckpt/best")), "step_00000004");
  trainer_close(&t);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST(cli_saved_weights_open,
     "--save_model: every parameter by name, shape and finite value; the same bytes from 1 and 2 ranks") {
  for (const char *tied : {"on", "off"}) {
    CliRun r;
    for (int ranks : {0, 2}) {
      CLI_RUN(&r, "%s %s --tie_head %s --max_steps 3 --global_batch 4 --save_model --out %s", cli_ranks(ranks),
              cli_small(), tied, cli_path(ranks ? "two" : "one"));
      cli_expect_done(&r, tied);
      cli_free(&r);
    }
    CLI_RUN(&r, "cmp %s/model.safetensors %s/model.safetensors", cli_path("one"), cli_path("two"));
    EXPECT(r.code == 0, "tied %s: the weights of 1 and 2 ranks differ: %s", tied, r.text);
    cli_free(&r);
    SafetensorsFile s;
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", cli_path("two"));
    REQUIRE(safetensors_open(&s, path), "%s", s.error);
    Options o;
    test_options(&o, 1,
                 "--n_layer 2 --n_head 2 --n_embd 24 --seq_len 8 --n_positions 16 --vocab_size 290 --tie_head %s",
                 tied);
    const Model model = model_of(&o);
    int count;
    Param *p = model_params(&model, &count);
    for (int i = 0; i < count; i++) {
      Tensor t;
      if (!safetensors_find(&s, p[i].name, F32, &t)) { test_fail(__FILE__, __LINE__, "%s", s.error); continue; }
      EXPECT(t.ndim == p[i].ndim && t.shape[0] == p[i].shape[0] && (t.ndim == 1 || t.shape[1] == p[i].shape[1]),
             "%s has another shape", p[i].name);
      double largest = 0;
      for (int64_t k = 0; k < numel(t); k++) largest = fmax(largest, fabs((double)((const float *)t.data)[k]));
      EXPECT(isfinite(largest) && largest > 0, "%s: its largest magnitude is %g", p[i].name, largest);
    }
    EXPECT(s.count == count, "%d tensors in the header, must be %d parameters", s.count, count);
    free(p);
    safetensors_close(&s);
  }
}

static int cores_of_saver;
static void *cores_save(void *) { cores_of_saver = cores_now(); return NULL; }
TEST_MPI(cores_are_bound, 1,
         "a rank on two NUMA nodes: each thread of the pool is bound to its core, the first one too; one that saves in "
         "the background is not, nor where GPUs compute; without placing, nothing is bound") {
  int cpu[2], at[2] = {-2, -2}, *const seen = at;
  if (cores_here(cpu) < 2 || cpu[0] != 0 || cpu[1] != 1) SKIP("this test needs CPUs 0 and 1");
  cores_use(0, 1);
  static Cores c;
  for (int node = 1; node <= 2; node++) {
    cores_pretend(node == 2 ? "pack:2 [numa] core:1 pu:1" : "pack:1 core:2 pu:1");
    const int first = node == 2 ? 0 : -1, second = node == 2 ? 1 : -1;
    cores_take(&c, 0, true, MPI_COMM_WORLD, MPI_COMM_WORLD);
    EXPECT(c.share.threads == 2 && c.share.placed == (node == 2), "%d threads, placed %d", c.share.threads,
           c.share.placed);
    if (node == 2) {                             // the pool's thread starts here
      parallel(2, [=](int thread, int) { seen[thread] = cores_now(); });
      EXPECT(at[0] == first && at[1] == second, "threads are on CPUs %d and %d, not %d and %d", at[0], at[1], first,
             second);
      static Store store;
      cores_of_saver = -2;
      store.request.background = true;
      store_start(&store, cores_save);
      REQUIRE(store.threaded, "no thread");
      pthread_join(store.thread, NULL);
      EXPECT(cores_of_saver == -1 && cores_now() == 0, "saving: CPU %d; this thread then %d", cores_of_saver,
             cores_now());
      cores_give_back(&c);
      cores_use(0, 1);
      cores_take(&c, 0, false, MPI_COMM_WORLD, MPI_COMM_WORLD);
      EXPECT(c.share.placed && cores_now() == -1, "a thread that computes nothing is bound to CPU %d", cores_now());
    } else EXPECT(!thread_place && cores_now() == -1, "bound to CPU %d", cores_now());
    EXPECT(c.all && c.world == 1 && !c.all[0].fault[0] && strstr(c.all[0].words, "2 threads on CPUs 0-1"), "%s: %s",
           c.all ? c.all[0].fault : "", c.all ? c.all[0].words : "no report");
    cores_give_back(&c);
    cores_use(0, 1);
  }
}

TEST_WAITS(a_signal_in_a_sample_loses_no_file,
     "SIGINT and SIGTERM while text is sampled after training: the weights, the export and the model for llama.cpp are "
     "there and whole; answers that were written stay") {
  for (int signal_ : {SIGINT, SIGTERM}) {
    CliRun r;
    struct stat st;
    cli_start(&r, "exec %s %s --max_steps 1 --sample_tokens 1048576 --out %s --save_model --export_hf %s", cli_ranks(2),
              cli_small(), cli_path("out"), cli_path("export"));
    char path[600];
    snprintf(path, sizeof path, "%s/sample.txt", cli_path("out"));
    for (double start = now_ms(); stat(path, &st) && now_ms() - start < CLI_LIMIT_S * 1e3;) usleep(20000);
    kill(r.pid, signal_);
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(r.code, "exit code 0");
    for (const char *dir : {"out", "export"}) {
      SafetensorsFile file;
      snprintf(path, sizeof path, "%s/model.safetensors", cli_path(dir));
      EXPECT(safetensors_open(&file, path), "signal %d: %s", signal_, file.error);
      safetensors_close(&file);
    }
    cli_free(&r);
    cli_expect_nothing_left("after the signal");
    CLI_RUN(&r, "rm -rf %s %s", cli_path("out"), cli_path("export"));
    cli_free(&r);
  }
}
