// test_kill.h: a save that is cut short, at any instant and for any reason, loses only itself. data/files/disk.h calls
// a hook before every system call that changes files. Here the hook copies the directory, ends the process, or makes
// the call fail. The files on the disk are then loaded, or compared byte by byte with the saved ones. Damage to saved
// files is rejected by name. Needs test_fsdp.h and cli_helpers.h.
#pragma once
#include <sys/file.h>

// ---- a world that saves ---------------------------------------------------------------------------------------------
static const char kill_shapes[] = "--n_layer 1 --n_head 1 --n_embd 16 --seq_len 8 --n_positions 8 --vocab_size 270 "
                                  "--batch_size 1 --global_batch 6 --warmup 0";
struct KillWorld { Trainer t; Corpus corpus; Log log; Saver saver; MPI_Comm comm; int rank; };

// All ranks of comm train on the same tokens into OUT; rank 0 has a tokenizer, so that a checkpoint has all its files.
static inline void kill_world_open(KillWorld *w, MPI_Comm comm, const char *out, const char *shapes, const char *more) {
  Options o;
  int world;
  static const char text[] = "the fox sees a dog, one crow follows every wolf, this cat likes the fox";
  memset((void *)w, 0, sizeof *w);
  w->comm = comm;
  MPI_Comm_rank(comm, &w->rank);
  MPI_Comm_size(comm, &world);
  mkdir(out, 0777);
  test_options(&o, world, "%s --out %s %s", shapes, out, more);
  test_corpus(&w->corpus, (int)o.vocab_size, 2000, 100);
  if (!w->rank) lent_tokenizer_train(&w->corpus.tokenizer, text, 270);
  w->corpus.has_tokenizer = !w->rank;
  trainer_open(&w->t, &o, &w->corpus, comm, device_of(agree_on_ops(&o, comm)), 1);
  saver_init(&w->saver, &w->t.run);
  Error error = {};
  log_begin(&w->log, &w->t.run, false, "", &error);
}
static inline void kill_world_close(KillWorld *w) {
  log_close(&w->log, &w->t.run, "done");
  trainer_close(&w->t);
  free((void *)w->corpus.split[SPLIT_TRAIN].tokens);
  if (!w->rank) tokenizer_free(&w->corpus.tokenizer);
}
// Saves and waits for the end. Returns the saver's result, the same on every rank.
static inline bool kill_save(KillWorld *w, bool background, bool best) {
  const bool begun = saver_save(&w->saver, &w->log, background, best);
  for (int polls = 0; polls < 3 && w->saver.pending; polls++) saver_poll(&w->saver, &w->log);
  const bool whole = saver_finish(&w->saver, &w->log);
  return begun && whole;
}
// Weights, moments and the step's state of all ranks in one number. All ranks call it.
static inline uint64_t kill_state_hash(Trainer *t) {
  Fsdp *f = t->fsdp;
  uint64_t h = 14695981039346656037ull;
  for (int state = 0; state < MAP_STATES; state++)
    for (int p = 0; p < f->lay.params && (state == 0 || (size_t)state <= fsdp_moments(f)); p++) {
      float *full = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(&f->lay.param[p]));
      fsdp_read_param(f, (ShardState)state, p, full);
      h = fnv_bytes(h, full, sizeof(float) * (size_t)param_numel(&f->lay.param[p]));
      free(full);
    }
  const StepState *s = t->host.state;
  const double rest[] = {(double)s->updates, (double)s->good_steps, s->loss_scale, s->beta1_power, s->beta2_power};
  return fnv_bytes(h, rest, sizeof rest);
}
// Loads a checkpoint as a resumed run does. All ranks call it; a checkpoint that cannot be loaded ends the test.
static inline void kill_load(KillWorld *w, const char *directory) {
  Start s = {};
  Error error = {};
  s.resume = true;
  if (!w->rank) start_open_checkpoint(&s, directory, &error);
  agree_no_error(w->comm, error.text, TEST_EXIT_FAILED);
  start_share(&s, w->comm);
  checkpoint_load(test_saved(&w->t), s.path, s.json, s.text_checksum, true, log_load_progress);
  fsdp_publish(w->t.fsdp);
  fsdp_step_end(w->t.fsdp);
  start_free(&s);
}

// ---- directories ----------------------------------------------------------------------------------------------------
typedef char KillPath[700];
__attribute__((format(printf, 2, 3))) static inline void kill_path(KillPath to, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  const int n = vsnprintf(to, sizeof(KillPath), fmt, ap);
  va_end(ap);
  EXPECT(n < (int)sizeof(KillPath), "a path is too long: %s", to);
}
static inline const char *kill_name(const char *path) { return strrchr(path, '/') ? strrchr(path, '/') + 1 : path; }
static inline char *kill_bytes(const char *path, int64_t *bytes) { return file_get(path, 1 << 28, bytes); }
// Writes bytes at an offset of a file; at offset 0 this also restores a file that was cut.
static inline void kill_put(const char *path, const void *data, int64_t bytes, int64_t at) {
  const int fd = open(path, O_WRONLY | O_CREAT, 0666);
  if (fd < 0 || pwrite(fd, data, (size_t)bytes, at) != bytes || close(fd)) {
    test_fail(__FILE__, __LINE__, "cannot write %s", path);
    exit(TEST_EXIT_FAILED);
  }
}
// Copies a directory with its files, links and directories; `to` is created. Files of a checkpoint that has its name
// are hard-linked, because no save writes to them.
static inline void kill_copy(const char *from, const char *to) {
  DIR *dir = opendir(from);
  mkdir(to, 0777);
  for (dirent *e; dir && (e = readdir(dir));) {
    KillPath a, b, target = "";
    struct stat st;
    int64_t bytes;
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    kill_path(a, "%s/%s", from, e->d_name);
    kill_path(b, "%s/%s", to, e->d_name);
    if (lstat(a, &st)) continue;
    if (S_ISDIR(st.st_mode)) { kill_copy(a, b); continue; }
    if (S_ISLNK(st.st_mode)) {
      EXPECT(readlink(a, target, sizeof target - 1) > 0 && !symlink(target, b), "cannot copy %s", a);
      continue;
    }
    if (!strncmp(kill_name(from), "step_", 5) && !link(a, b)) continue;
    char *data = kill_bytes(a, &bytes);
    if (data) kill_put(b, data, bytes, 0);
    free(data);
  }
  if (dir) closedir(dir);
}
static inline void kill_remove(const char *path) {
  char command[800];
  snprintf(command, sizeof command, "rm -rf '%s'", path);
  EXPECT(!system(command), "%s", command);
}
static const char *const kill_files[] = {"model.safetensors", "optim.safetensors", "trainer.json", "tokenizer.json"};
// A checkpoint's files in one number; 0 if one is missing.
static inline uint64_t kill_checkpoint_hash(const char *directory) {
  uint64_t h = 14695981039346656037ull;
  for (const char *name : kill_files) {
    KillPath path;
    int64_t bytes;
    kill_path(path, "%s/%s", directory, name);
    char *data = kill_bytes(path, &bytes);
    if (!data) return 0;
    const uint32_t crc = crc32c(0, data, (size_t)bytes);
    h = fnv_bytes(h, &crc, sizeof crc);
    free(data);
  }
  return h;
}
// The newest checkpoint in OUT as --resume auto finds it ("": none); warnings: the ones it skipped.
static inline void kill_newest(const char *out, KillPath found, Start *s) {
  *s = Start{};
  start_newest(s, out, found, sizeof(KillPath));
}
// Names in OUT/ckpt that a save leaves only during its run.
static inline int kill_hidden(const char *out) {
  KillPath path;
  kill_path(path, "%s/ckpt", out);
  DIR *dir = opendir(path);
  int count = 0;
  for (dirent *e; dir && (e = readdir(dir));)
    count += (e->d_name[0] == '.' && strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) || strstr(e->d_name, ".tmp");
  if (dir) closedir(dir);
  return count;
}

// ---- the hook -------------------------------------------------------------------------------------------------------
// One call, in the order over all ranks. path: of the file or directory.
struct KillEvent { int32_t rank, op; char path[248]; };
struct KillPlan {
  int rank;                                      // of this process
  int64_t calls, die_at, fail_at;                // of this process, from 1; 0: never
  int fault;                                     // errno of a call that fails
  bool fails_on;                                 // and all calls after it
  bool no_exchange;                              // the file system cannot exchange two names
  KillEvent failed;                              // the first call that was made to fail
  char copy[300], log[300], copies[300];         // ckpt's directory; "": no record. Events; copies of it
};
static KillPlan kill_plan;
static const char *const kill_ops[] = {"make", "create", "write", "sync", "rename", "link", "remove"};

// Adds the call to the record, one rank at a time, and copies the directory as it is before the call.
static inline void kill_record(FileOp op, const char *path) {
  KillEvent event = {kill_plan.rank, op, ""};
  KillPath to;
  snprintf(event.path, sizeof event.path, "%s", path);
  const int log = open(kill_plan.log, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  flock(log, LOCK_EX);
  const int64_t number = lseek(log, 0, SEEK_END) / (int64_t)sizeof event;
  if (write(log, &event, sizeof event) != (ssize_t)sizeof event) abort();
  kill_path(to, "%s/%06lld", kill_plan.copies, (long long)number);
  if (kill_plan.copies[0]) {
    mkdir(to, 0777);
    kill_path(to, "%s/%06lld/ckpt", kill_plan.copies, (long long)number);
    if (!access(kill_plan.copy, F_OK)) kill_copy(kill_plan.copy, to);
  }
  close(log);
}
static inline int kill_hook(FileOp op, const char *path) {
  KillPlan *p = &kill_plan;
  const int64_t call = __atomic_add_fetch(&p->calls, 1, __ATOMIC_RELAXED);
  if (p->log[0]) kill_record(op, path);
  if (call == p->die_at) kill(getpid(), SIGKILL);
  if (p->fail_at && (call == p->fail_at || (p->fails_on && call > p->fail_at))) {
    if (call == p->fail_at) {
      p->failed = KillEvent{p->rank, op, ""};
      snprintf(p->failed.path, sizeof p->failed.path, "%s", path);
    }
    return p->fault;
  }
  const bool exchanges = op == FILE_RENAME && !strncmp(kill_name(path), "step_", 5) && !access(path, F_OK);
  return p->no_exchange && exchanges ? EINVAL : 0;
}
static inline void kill_arm(KillPlan plan, int rank) {
  kill_plan = plan;
  kill_plan.rank = rank;
  lent_file_hook(kill_hook);
}
static inline void kill_disarm() { lent_file_hook(NULL); }
// The record, malloc'ed.
static inline KillEvent *kill_events(const char *log, int *count) {
  int64_t bytes = 0;
  KillEvent *events = (KillEvent *)kill_bytes(log, &bytes);
  *count = (int)(bytes / (int64_t)sizeof(KillEvent));
  return events;
}

// ---- the order of a save --------------------------------------------------------------------------------------------
static inline bool kill_is(const KillEvent *e, int op, const char *name) {
  return e->op == op && !strcmp(kill_name(e->path), name);
}
static inline int kill_find(const KillEvent *e, int count, int rank, int op, const char *name, bool last) {
  int found = -1;
  for (int i = 0; i < count; i++)
    if ((rank < 0 || e[i].rank == rank) && kill_is(&e[i], op, name) && (last || found < 0)) found = i;
  return found;
}
// The fault in the order of a save's calls; NULL: none. Data must reach the disk before trainer.json is started,
// trainer.json before the directory gets its name, the name before anything old is removed.
static inline const char *kill_order_fault(const KillEvent *e, int count, int ranks, const char *final) {
  static char said[200];
  const char *hidden = NULL;
  int named = -1, parent = -1, of_directory = -1;
  for (int i = 0; i < count && named < 0; i++) {
    if (e[i].op == FILE_MAKE_DIRECTORY && !strncmp(kill_name(e[i].path), ".saving_", 8)) hidden = kill_name(e[i].path);
    if (hidden && e[i].op == FILE_RENAME && !strncmp(kill_name(e[i].path), final, strlen(final))) named = i;
  }
  if (!hidden || named < 0) return "no hidden directory, or it gets no name";
  for (int i = named + 1; i < count && parent < 0; i++) if (kill_is(&e[i], FILE_SYNC, "ckpt")) parent = i;
  of_directory = kill_find(e, count, 0, FILE_SYNC, hidden, true);
  const int json = kill_find(e, count, 0, FILE_CREATE, "trainer.json", false);
  for (const char *file : {"model.safetensors", "optim.safetensors"})
    for (int r = 0; r < ranks; r++) {
      const int made = kill_find(e, count, r, FILE_CREATE, file, false);
      const int sync = kill_find(e, count, r, FILE_SYNC, file, true);
      snprintf(said, sizeof said, "rank %d, %s", r, file);
      if (made < 0) continue;
      if (sync < kill_find(e, count, r, FILE_WRITE, file, true))
        return strcat(said, ": bytes are written that no sync follows");
      if (sync > json) return strcat(said, ": synced after trainer.json was begun");
    }
  for (const char *file : {"tokenizer.json", "trainer.json"}) {
    const int wrote = kill_find(e, count, 0, FILE_WRITE, file, true);
    const int sync = kill_find(e, count, 0, FILE_SYNC, file, true);
    if (wrote < 0 || sync < wrote) return "a small file is not synced";
    if (sync > of_directory) return "a small file is synced after the directory";
  }
  if (of_directory < 0 || of_directory > named) return "the directory is named before it is synced";
  if (parent < 0) return "the name is not synced";
  for (int i = 0; i < count; i++) {
    const bool goes = e[i].op == FILE_REMOVE || (e[i].op == FILE_RENAME && strstr(e[i].path, "/.removed_"));
    if (goes && i < parent) return "something is removed before the new name is synced";
    if (i > named && (e[i].op == FILE_WRITE || e[i].op == FILE_CREATE)) return "something is written after the name";
  }
  return NULL;
}

// ---- a kill at every call -------------------------------------------------------------------------------------------
// again: the step already has a checkpoint. The copies of a save are compared with the newest checkpoint before it and
// after it.
struct KillScene { const char *what; bool background, best, again, no_exchange; };
static const KillScene kill_scenes[] = {
    {"the first save", false, false, false, false},
    {"a save that prunes", false, false, false, false},
    {"the best so far", false, true, false, false},
    {"one after the best", false, false, false, false},
    {"in the background, the best", true, true, false, false},
    {"in the background", true, false, false, false},
    {"the same step again", false, false, true, false},
    {"the same step again, names cannot be exchanged", false, true, true, true}};

// The contents of a copy, kept once for equal copies: names, and which checkpoint is newest.
struct KillView { uint64_t hash; int copy; };
static inline int kill_order_of_names(const void *a, const void *b) { return strcmp((const char *)a, (const char *)b); }
static inline uint64_t kill_view_hash(const char *ckpt, uint64_t newest) {
  static char names[64][264];
  int count = 0;
  DIR *dir = opendir(ckpt);
  for (dirent *e; dir && (e = readdir(dir)) && count < 64;) snprintf(names[count++], sizeof names[0], "%s", e->d_name);
  if (dir) closedir(dir);
  qsort(names, (size_t)count, sizeof names[0], kill_order_of_names);
  uint64_t h = fnv_bytes(14695981039346656037ull, &newest, sizeof newest);
  for (int i = 0; i < count; i++) h = fnv_bytes(h, names[i], strlen(names[i]) + 1);
  return h;
}

// Checks the copies of one save: every named checkpoint is whole, byte by byte one of `known`; the newest is the one
// from before until it is the one after. Fills `views` with the first copy of each kind. Returns how many.
static inline int kill_judge(const char *copies, int count, const char *what, const uint64_t *known, int knowns,
                             uint64_t before, uint64_t after, KillView *views) {
  bool done = false;
  int kinds = 0;
  for (int c = 0; c < count; c++) {
    KillPath out, ckpt, found;
    Start s;
    int names = 0;
    char damaged[1024];
    kill_path(out, "%s/%06d", copies, c);
    kill_path(ckpt, "%s/%06d/ckpt", copies, c);
    kill_newest(out, found, &s);
    const uint64_t newest = found[0] ? kill_checkpoint_hash(found) : 0;
    EXPECT(!s.warnings[0], "%s, call %d: %s", what, c, s.warnings);
    EXPECT(newest == after || (newest == before && !done), "%s, call %d: the newest is %s%s", what, c,
           found[0] ? found : "missing", done ? ", though the new one had a name before" : "");
    done = done || newest == after;
    Listed *list = checkpoint_list(ckpt, &names, damaged, sizeof damaged);
    for (int i = 0; i < names; i++) {
      KillPath path;
      bool whole = false;
      kill_path(path, "%s/%s", ckpt, list[i].name);
      const uint64_t h = kill_checkpoint_hash(path);
      for (int k = 0; k < knowns; k++) whole = whole || h == known[k];
      EXPECT(whole, "%s, call %d: %s is none of the checkpoints that were saved", what, c, list[i].name);
    }
    free(list);
    const uint64_t view = kill_view_hash(ckpt, newest);
    int k = 0;
    while (k < kinds && views[k].hash != view) k++;
    if (k == kinds && kinds < 64) views[kinds++] = KillView{view, c};
  }
  EXPECT(done || count == 0, "%s: the new checkpoint had no name at the last call", what);
  return kinds;
}

// The newest checkpoint that was the best when it was saved; "" if there is none.
static inline void kill_best(const char *ckpt, char name[32]) {
  int count;
  char damaged[1024];
  Listed *list = checkpoint_list(ckpt, &count, damaged, sizeof damaged);
  for (int i = count - 1; i >= 0; i--) if (list[i].best && list[i].serial >= 0) snprintf(name, 32, "%s", list[i].name);
  free(list);
}
// Every kind of copy is resumed: the newest loads to the bit, and the next save there works and sweeps. All ranks call
// it.
static inline void kill_continue(KillWorld *w, const char *copies, KillView *views, int kinds, const char *what,
                                 const uint64_t *known, const uint64_t *states, int knowns) {
  const Saver saver = w->saver;
  KillPath out_before;
  kill_path(out_before, "%s", w->t.opt.out);
  MPI_Bcast(&kinds, 1, MPI_INT, 0, w->comm);
  MPI_Bcast(views, (int)sizeof(KillView) * 64, MPI_BYTE, 0, w->comm);
  for (int k = 0; k < kinds; k++) {
    KillPath out, found = "";
    Start s;
    kill_path(out, "%s/%06d", copies, views[k].copy);
    if (!w->rank) kill_newest(out, found, &s);
    MPI_Bcast(found, sizeof found, MPI_CHAR, 0, w->comm);
    if (found[0]) {
      kill_load(w, found);
      const uint64_t state = kill_state_hash(&w->t), h = w->rank ? 0 : kill_checkpoint_hash(found);
      for (int i = 0; i < knowns && !w->rank; i++)
        EXPECT(known[i] != h || states[i] == state, "%s, like call %d: not the state that was saved", what,
               views[k].copy);
    }
    train_step(&w->t, false);
    snprintf(w->t.opt.out, sizeof w->t.opt.out, "%s", out);
    saver_init(&w->saver, &w->t.run);
    char best[32] = "";
    if (!w->rank) kill_best(w->saver.directory, best);
    w->saver.continues = true;
    const bool saved = kill_save(w, false, false);
    EXPECT(saved, "%s, like call %d: the next save fails: %s", what, views[k].copy, w->t.run.store->result->error);
    if (!w->rank) {
      KillPath newest;
      kill_newest(out, newest, &s);
      char name[32];
      snprintf(name, sizeof name, "step_%08lld", (long long)w->t.run.step);
      EXPECT(!strcmp(kill_name(newest), name), "%s, like call %d: then %s is newest", what, views[k].copy, newest);
      EXPECT(!kill_hidden(out), "%s, like call %d: the next save leaves %d hidden names", what, views[k].copy,
             kill_hidden(out));
      KillPath path, linked = "";
      kill_path(path, "%s/best", w->saver.directory);
      if (readlink(path, linked, sizeof linked - 1) < 0) linked[0] = 0;
      kill_path(path, "%s/%s", w->saver.directory, best);
      EXPECT(!strcmp(best, linked) && !access(path, F_OK), "%s, like call %d: best was '%s'; then the link says '%s'",
             what, views[k].copy, best, linked);
    }
  }
  snprintf(w->t.opt.out, sizeof w->t.opt.out, "%s", out_before);
  w->saver = saver;
}

// One scene: the recorded save, and its check. All ranks call it.
static inline void kill_scene(KillWorld *w, const KillScene *scene, uint64_t *known, uint64_t *states, int *knowns) {
  KillPlan plan = {};
  KillPath newest;
  KillView views[64] = {};
  Start s;
  int count = 0, kinds = 0;
  const uint64_t before = *knowns ? known[*knowns - 1] : 0;
  plan.no_exchange = scene->no_exchange;
  snprintf(plan.copy, sizeof plan.copy, "%.250s/ckpt", w->t.opt.out);
  snprintf(plan.log, sizeof plan.log, "%.250s/events", test_tmp());
  snprintf(plan.copies, sizeof plan.copies, "%.250s/copies", test_tmp());
  if (!w->rank) mkdir(plan.copies, 0777);
  if (scene->again) {                            // one step back, but not its weights
    w->t.run.step--;
    w->t.host.state->updates--;
    w->t.ctx.ops->copy(&w->t.ctx, w->t.buffers.state, w->t.host.state, sizeof(StepState));
    w->t.ctx.ops->sync(&w->t.ctx);
  }
  train_step(&w->t, false);
  MPI_Barrier(w->comm);
  kill_arm(plan, w->rank);
  const bool saved = kill_save(w, scene->background, scene->best);
  kill_disarm();
  MPI_Barrier(w->comm);
  EXPECT(saved, "%s: %s", scene->what, w->t.run.store->result->error);
  states[*knowns] = kill_state_hash(&w->t);
  if (!w->rank) {
    KillEvent *events = kill_events(plan.log, &count);
    kill_newest(w->t.opt.out, newest, &s);
    known[*knowns] = kill_checkpoint_hash(newest);
    const char *fault = kill_order_fault(events, count, 3, w->saver.name);
    if (scene->no_exchange) fault = NULL;        // its names are checked copy by copy
    EXPECT(!fault, "%s: %s", scene->what, fault);
    EXPECT(count > 50, "%s: only %d calls were seen", scene->what, count);
    kinds = kill_judge(plan.copies, count, scene->what, known, *knowns + 1, before, known[*knowns], views);
    EXPECT(kinds >= 3, "%s: only %d kinds of directories were seen", scene->what, kinds);
    free(events);
  }
  (*knowns)++;
  kill_continue(w, plan.copies, views, kinds, scene->what, known, states, *knowns);
  MPI_Bcast(newest, sizeof newest, MPI_CHAR, 0, w->comm);
  kill_load(w, newest);
  if (!w->rank) { kill_remove(plan.copies); remove(plan.log); }
  MPI_Barrier(w->comm);
}

TEST_MPI(kill_at_every_call_leaves_a_whole_checkpoint, 3,
         "3 ranks; the directory as it is before every write, sync, rename, link, removal of a save, first, pruning, "
         "best, of a step that exists: every named checkpoint is byte by byte the older or the newer one, it loads "
         "to the bit, and the next save works and sweeps") {
  static KillWorld w;
  uint64_t known[16] = {}, states[16] = {};
  int knowns = 0;
  KillPath out;
  kill_path(out, "%s/out", test_tmp());
  kill_world_open(&w, MPI_COMM_WORLD, out, kill_shapes, "--keep 1 --keep_best --save_async --optimizer sgd");
  for (const KillScene &scene : kill_scenes) kill_scene(&w, &scene, known, states, &knowns);
  if (!w.rank) {
    KillPath best = "", latest = "", path;
    kill_path(path, "%s/ckpt/best", out);
    EXPECT(readlink(path, best, sizeof best - 1) > 0, "no link best");
    kill_path(path, "%s/ckpt/latest", out);
    EXPECT(readlink(path, latest, sizeof latest - 1) > 0, "no link latest");
    EXPECT(!strcmp(best, "step_00000006") && !strcmp(latest, "step_00000006"), "best is %s, latest %s", best, latest);
  }
  kill_world_close(&w);
}

TEST_MPI(kill_ends_one_rank_at_every_call, 1,
         "SIGKILL at every call of a save in turn, at once or in the background: another process loads the older or "
         "the newer checkpoint to the bit, and none is incomplete") {
  static KillWorld w, fresh;
  KillPath out, kept, ckpt, found;
  Start s;
  kill_path(out, "%s/out", test_tmp());
  kill_path(kept, "%s/kept", test_tmp());
  kill_path(ckpt, "%s/out/ckpt", test_tmp());
  kill_world_open(&w, MPI_COMM_WORLD, out, kill_shapes, "--keep 1 --save_async --optimizer sgd");
  kill_path(found, "%s/fresh", test_tmp());
  kill_world_open(&fresh, MPI_COMM_WORLD, found, kill_shapes, "--optimizer sgd");
  train_step(&w.t, false);
  EXPECT(kill_save(&w, false, false), "%s", w.t.run.store->result->error);
  const uint64_t older = kill_state_hash(&w.t);
  kill_copy(ckpt, kept);
  train_step(&w.t, false);
  const uint64_t newer = kill_state_hash(&w.t);
  for (int background = 0; background < 2; background++) {
    int calls = 0, olds = 0, news = 0;
    for (bool died = true; died && calls < 1000;) {
      KillPlan plan = {};
      int status;
      plan.die_at = ++calls;
      kill_remove(ckpt);
      kill_copy(kept, ckpt);
      fflush(NULL);
      const pid_t child = fork();
      if (!child) {
        kill_arm(plan, 0);
        _exit(kill_save(&w, background, false) ? 42 : 43);
      }
      waitpid(child, &status, 0);
      died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      EXPECT(died || (WIFEXITED(status) && WEXITSTATUS(status) == 42), "call %d: status %x", calls, status);
      kill_newest(out, found, &s);
      REQUIRE(found[0] && !s.warnings[0], "call %d: no whole checkpoint, or a half one: %s", calls, s.warnings);
      kill_load(&fresh, found);
      const uint64_t state = kill_state_hash(&fresh.t);
      EXPECT(state == older || state == newer, "call %d: %s is neither the older nor the newer state", calls, found);
      EXPECT(state == newer || !news, "call %d: the older state after the newer", calls);
      olds += state == older;
      news += state == newer;
    }
    EXPECT(calls > 50 && olds > 40 && news > 5, "%d calls, after %d the older, after %d the newer", calls, olds, news);
  }
  kill_world_close(&w);
  kill_world_close(&fresh);
}

// ---- killed while it evaluates --------------------------------------------------------------------------------------
// In place of the op `copy`: the `left`-th copy of evaluations ends the process; `step` is the parent's, too.
static struct { Trainer *t; void (*copy)(Ctx *c, void *to, const void *from, size_t bytes); int left; int64_t *step; }
    kill_eval;
static void kill_copy_of_eval(Ctx *c, void *to, const void *from, size_t bytes) {
  if (kill_eval.t->carved == PASS_EVAL && !--kill_eval.left) {
    *kill_eval.step = kill_eval.t->run.step;
    kill(getpid(), SIGKILL);
  }
  kill_eval.copy(c, to, from, bytes);
}
// Runs the loop in a child, from where OUT's newest checkpoint is or from the start, until the plan's call or the
// eval_at-th copy of evaluations ends it. Returns whether that was so; w stays at the start.
static inline bool kill_loop(KillWorld *w, const char *out, KillPlan plan, int eval_at) {
  int status;
  fflush(NULL);
  const pid_t child = fork();
  if (!child) {
    static Ops table;
    Start s;
    KillPath found;
    Error error = {};
    snprintf(w->t.opt.out, sizeof w->t.opt.out, "%s", out);
    saver_init(&w->saver, &w->t.run);
    kill_newest(out, found, &s);
    if (found[0]) {
      s = Start{};
      s.resume = s.here = true;
      if (!start_open_checkpoint(&s, found, &error)) _exit(44);
      start_share(&s, w->comm);
      start_load(&s, &w->t.run, &w->saver);
    }
    log_begin(&w->log, &w->t.run, found[0], "", &error);
    table = *w->t.ctx.ops;
    kill_eval.t = &w->t, kill_eval.copy = table.copy, kill_eval.left = eval_at;
    table.copy = kill_copy_of_eval;
    w->t.ctx.ops = &table;
    kill_arm(plan, 0);
    const int code = trainer_loop(&w->t, test_run(&w->t, &w->saver, &w->log));
    const bool whole = saver_finish(&w->saver, &w->log);
    log_close(&w->log, &w->t.run, "done");
    _exit(code < 0 && whole ? 42 : 43);
  }
  waitpid(child, &status, 0);
  const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT(died || (WIFEXITED(status) && WEXITSTATUS(status) == 42), "call %lld, copy %d: status %x",
         (long long)plan.die_at, eval_at, status);
  return died;
}
// What a run has left: names in ckpt, where the links lead, the quality of each checkpoint, and the last record in
// metrics.jsonl of each evaluation and step, without times.
static inline void kill_left(const char *out, char *to, size_t bytes) {
  CliRun r;
  CLI_RUN(&r, "cd %s && ls ckpt && readlink ckpt/best ckpt/latest && grep -h quality ckpt/step_*/trainer.json; "
          "grep -E '\"kind\":\"(step|eval)\"' metrics.jsonl | sed -E 's/,\"(ms|tokens_per_s)\":[0-9.]+//g' | "
          "tac | awk -F, '!seen[$1, $2, $3]++' | sort", out);
  snprintf(to, bytes, "%s", r.text);
  cli_free(&r);
}
TEST_MPI(kill_in_an_evaluation_loses_no_step, 1,
         "SIGKILL at calls of the files and within evaluations of a run that saves and evaluates after each step, with "
         "--keep 1 --keep_best, at once and in the background, where the last step is the best and where it is not: "
         "what was saved before its evaluation is there; resumed, checkpoints, best and metrics.jsonl equal those of a "
         "run that was not killed") {
  static const char *const rows[] = {"--lr 0.05", "--lr 10", "--lr 10 --save_async"};
  static char want[1 << 16], got[1 << 16];
  kill_eval.step = (int64_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(kill_eval.step != MAP_FAILED, "no memory");
  for (const char *row : rows) {
    static KillWorld w;
    KillPath out, whole, found;
    Start s;
    int calls = 0, in_evals = 0;
    char options[256];
    snprintf(options, sizeof options, "--max_steps 2 --eval_every 1 --save_every 1 --keep 1 --keep_best "
             "--optimizer sgd --report off %s", row);
    kill_path(whole, "%s/whole", test_tmp());
    kill_path(out, "%s/out", test_tmp());
    kill_remove(whole);
    kill_world_open(&w, MPI_COMM_WORLD, whole, kill_shapes, options);
    EXPECT(!kill_loop(&w, whole, KillPlan{}, 0), "%s: the whole run ended", row);
    kill_left(whole, want, sizeof want);
    EXPECT(cli_count(want, "\"kind\":\"eval\"") == 2 && strstr(want, "\"evaluated_step\":2,"), "%s: it left\n%s", row,
           want);
    const bool rises = strstr(row, "0.05") != NULL;                // the loss: random tokens teach nothing
    EXPECT(!strstr(want, "step_00000001\n") == !rises, "%s: best is another:\n%s", row, want);
    for (bool evals : {false, true})
      for (bool died = true; died && calls < 1000;) {
        KillPlan plan = {};
        if (evals) in_evals += 17;
        else plan.die_at = calls += 5;
        kill_remove(out);
        mkdir(out, 0777);
        died = kill_loop(&w, out, plan, in_evals);
        kill_newest(out, found, &s);
        const int64_t step = found[0] ? atoll(kill_name(found) + 5) : 0;
        EXPECT(!evals || !died || strstr(row, "async") || step == *kill_eval.step, "%s, copy %d: killed in the "
               "evaluation of step %lld, the newest checkpoint is of step %lld", row, in_evals,
               (long long)*kill_eval.step, (long long)step);
        if (!died) break;
        EXPECT(!kill_loop(&w, out, KillPlan{}, 0), "%s: the resumed run ended", row);
        kill_left(out, got, sizeof got);
        EXPECT(!strcmp(got, want), "%s, call %d, copy %d:\n%s\nmust be\n%s", row, calls, in_evals, got, want);
      }
    EXPECT(calls > 60 && in_evals > 30, "%s: only %d calls, %d copies", row, calls, in_evals);
    kill_world_close(&w);
  }
}

// The test below starts this under mpirun: two saves, the second with the rank and call of the environment's KILL_AT
// ("RANK CALL"), at which that rank is killed; then, without it, a load.
TEST_MPI(kill_two_ranks_save_and_load, 2, "two ranks save, train, save, and load either checkpoint to the bit") {
  static KillWorld w;
  KillPath out, first, second;
  KillPlan plan = {};
  const char *at = getenv("KILL_AT");
  int rank = -1;
  long long call = 0;
  if (at && sscanf(at, "%d %lld", &rank, &call) != 2) test_fail(__FILE__, __LINE__, "KILL_AT is '%s'", at);
  kill_path(out, "%s/out", test_tmp());
  kill_path(first, "%s/ckpt/step_00000001", out);
  kill_path(second, "%s/ckpt/step_00000002", out);
  kill_world_open(&w, MPI_COMM_WORLD, out, kill_shapes, "--keep 0 --optimizer sgd");
  train_step(&w.t, false);
  EXPECT(kill_save(&w, false, false), "%s", w.t.run.store->result->error);
  const uint64_t older = kill_state_hash(&w.t);
  train_step(&w.t, false);
  const uint64_t newer = kill_state_hash(&w.t);
  plan.die_at = w.rank == rank ? call : 0;
  kill_arm(plan, w.rank);
  EXPECT(kill_save(&w, false, false), "%s", w.t.run.store->result->error);
  kill_disarm();
  kill_load(&w, first);
  EXPECT(kill_state_hash(&w.t) == older, "the first checkpoint has another state");
  kill_load(&w, second);
  EXPECT(kill_state_hash(&w.t) == newer, "the second checkpoint has another state");
  kill_world_close(&w);
}
TEST(kill_either_of_two_ranks_all,
     "SIGKILL of either of two ranks at every call of a save, under mpirun: it ends, nothing hangs, the newest "
     "checkpoint is the first or the second, byte by byte except for trainer.json's date") {
  CliRun r;
  KillPath out, tensors, found;
  char self[PATH_MAX] = "";
  uint64_t known[2] = {};
  const char *mpirun = getenv("MPIRUN");
  test_mpirun_patience(0);
  EXPECT(readlink("/proc/self/exe", self, sizeof self - 1) > 0, "no name of this program");
  kill_path(out, "%s/out", test_tmp());
  for (int rank = 0, call = 0; rank < 2;) {
    Start s;
    kill_remove(out);
    CLI_RUN(&r, "KILL_AT='%d %d' exec %s --oversubscribe --bind-to none -np 2 %s --run kill_two_ranks_save_and_load",
            rank, call, mpirun && *mpirun ? mpirun : "mpirun", self);
    cli_expect_nothing_left("after a kill");
    for (int i = 0; i < 2 && !call; i++) {       // the run that was not killed
      kill_path(tensors, "%s/ckpt/step_%08d/model.safetensors", out, i + 1);
      int64_t bytes = 0;
      char *data = kill_bytes(tensors, &bytes);
      REQUIRE(data, "no %s:\n%.2000s", tensors, r.text);
      known[i] = fnv_bytes(1, data, (size_t)bytes);
      free(data);
    }
    kill_newest(out, found, &s);
    kill_path(tensors, "%s/model.safetensors", found);
    int64_t bytes = 0;
    char *data = kill_bytes(tensors, &bytes);
    const uint64_t h = data ? fnv_bytes(1, data, (size_t)bytes) : 0;
    free(data);
    EXPECT(!s.warnings[0] && (h == known[0] || h == known[1]), "rank %d, call %d: the newest is '%s'; %s", rank, call,
           found, s.warnings);
    const bool died = r.code == 128 + SIGKILL && call < 200;
    EXPECT(died || r.code == 0, "rank %d, call %d: exit code %d:\n%.2000s", rank, call, r.code, r.text);
    EXPECT(died || !call || call > (rank ? 10 : 25), "rank %d has only %d calls", rank, call);
    cli_free(&r);
    if (!died && call) { rank++; call = 1; }
    else call++;
  }
}

// ---- a call that fails ----------------------------------------------------------------------------------------------
// Whether a save may succeed although this call failed: a call after the checkpoint has its name.
static inline bool kill_is_harmless(const KillEvent *e) {
  const char *name = kill_name(e->path);
  return e->op == FILE_REMOVE || e->op == FILE_LINK || !strncmp(name, ".removed_", 9) || !strcmp(name, "latest") ||
         !strcmp(name, "best");
}
// One save in which a call fails, on one rank; then, now and then, one without a fault. Returns whether there was such
// a call.
static inline bool kill_save_fails(KillWorld *w, bool background, int rank, KillPlan plan, bool again) {
  KillPath found = "", newest = "", was = "";
  KillEvent failed;
  Start s;
  kill_path(was, "%s", w->t.run.store->result->error);
  if (!w->rank) kill_newest(w->t.opt.out, found, &s);
  const uint64_t before = w->rank ? 0 : kill_checkpoint_hash(found), state = kill_state_hash(&w->t);
  if (!again) w->t.run.step++;
  kill_arm(w->rank == rank ? plan : KillPlan{}, w->rank);
  int ok = kill_save(w, background, false), all = 0, any = 0;
  kill_disarm();
  failed = kill_plan.failed;
  MPI_Bcast(&failed, sizeof failed, MPI_BYTE, rank, w->comm);
  MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_MIN, w->comm);
  MPI_Allreduce(&ok, &any, 1, MPI_INT, MPI_MAX, w->comm);
  char what[400], reason[STORE_ERROR_BYTES], prefix[32];
  snprintf(what, sizeof what, "rank %d, %s %s", rank, kill_ops[failed.op], failed.path);
  EXPECT(all == any, "%s: one rank says that it worked, another that it did not", what);
  EXPECT(kill_state_hash(&w->t) == state, "%s: the state in memory is another", what);
  if (!failed.path[0]) { EXPECT(ok, "without a fault: %s", w->t.run.store->result->error); return false; }
  const bool harmless = kill_is_harmless(&failed);
  EXPECT(harmless == (ok != 0) || plan.fails_on, "%s: the save %s", what, ok ? "worked" : "failed");
  if (!ok) {
    snprintf(reason, sizeof reason, "%s", w->t.run.store->result->error);
    snprintf(prefix, sizeof prefix, "rank %d: ", rank);
    EXPECT(!strncmp(reason, prefix, strlen(prefix)) && strstr(reason, strerror(plan.fault)) &&
           strstr(reason, w->t.opt.out), "%s: the reason is '%s'", what, reason);
    MPI_Bcast(reason, sizeof reason, MPI_CHAR, 0, w->comm);
    EXPECT(!strcmp(reason, w->t.run.store->result->error), "%s: rank %d has another reason", what, w->rank);
  }
  if (!w->rank) {
    kill_newest(w->t.opt.out, newest, &s);
    const uint64_t after = kill_checkpoint_hash(newest);
    EXPECT(!s.warnings[0], "%s: %s", what, s.warnings);
    EXPECT((after == before) == !ok || (plan.fails_on && after), "%s: the newest is %s", what, newest);
    EXPECT(ok || plan.fails_on || !kill_hidden(w->t.opt.out), "%s: something hidden is left", what);
  }
  if (!ok && !plan.fails_on && plan.fail_at % 4) return true;    // the next save belongs to the next call
  EXPECT(kill_save(w, false, false), "%s: the next save fails: %s", what, w->t.run.store->result->error);
  if (!w->rank) EXPECT(!kill_hidden(w->t.opt.out), "%s: the next save leaves something hidden", what);
  return true;
}
// All calls of a rank in turn, each `stride`th.
static inline void kill_fail_every_call(bool background, bool again, bool fails_on, int stride) {
  static KillWorld w;
  KillPath out;
  kill_path(out, "%s/out", test_tmp());
  kill_world_open(&w, MPI_COMM_WORLD, out, kill_shapes, "--keep 1 --save_async --optimizer sgd");
  train_step(&w.t, false);
  EXPECT(kill_save(&w, false, false), "%s", w.t.run.store->result->error);
  for (int rank = 0; rank < 2; rank++) {
    int calls = 1;
    KillPlan plan = {};
    plan.fails_on = fails_on;
    for (bool more = true; more && calls < 1000; calls += stride) {
      plan.fail_at = calls;
      plan.fault = (calls / stride + background) % 2 ? ENOSPC : EIO;
      more = kill_save_fails(&w, background, rank, plan, again);
    }
    EXPECT(calls > (rank ? 15 : 30), "rank %d: only %d calls", rank, calls);
  }
  KillPath found = "";
  Start s;
  const double loss = train_step(&w.t, false).loss;
  EXPECT(isfinite(loss) && kill_save(&w, false, false), "then: loss %g, %s", loss, w.t.run.store->result->error);
  const uint64_t state = kill_state_hash(&w.t);
  if (!w.rank) kill_newest(out, found, &s);
  MPI_Bcast(found, sizeof found, MPI_CHAR, 0, w.comm);
  train_step(&w.t, false);
  kill_load(&w, found);
  EXPECT(kill_state_hash(&w.t) == state, "the last checkpoint has not the state that was saved");
  kill_world_close(&w);
}
TEST_MPI(kill_a_call_that_fails_costs_one_save, 2,
         "ENOSPC or EIO from every call of a save on either rank in turn: the same result and reason on all ranks, "
         "which names rank, path and errno; the newest checkpoint stays; nothing is left; training continues, the "
         "next save works") {
  kill_fail_every_call(false, false, false, 1);
}
TEST_MPI(kill_a_call_that_fails_in_the_background_costs_one_save, 2,
         "the same for saves in the background, onto a step that has a checkpoint") {
  kill_fail_every_call(true, true, false, 1);
}
TEST_MPI(kill_a_disk_that_fails_for_good_costs_one_save, 2,
         "every call fails from the k-th on: the save is reported as failed, the newest checkpoint is whole, and "
         "when the disk works again the next save works and sweeps") {
  kill_fail_every_call(false, true, true, 5);
  kill_fail_every_call(true, false, true, 5);
}

// ---- the checker of the order ---------------------------------------------------------------------------------------
// The fault that is found in a copy of a save's record in which one call is left out or moved.
static inline const char *kill_doctored(const KillEvent *e, int count, int from, int to, const char *final) {
  KillEvent *d = (KillEvent *)malloc(sizeof(KillEvent) * (size_t)count);
  int n = 0;
  for (int i = 0; i < count; i++) {
    if (i == to) d[n++] = e[from];
    if (i != from) d[n++] = e[i];
  }
  const char *fault = kill_order_fault(d, n, 3, final);
  free(d);
  return fault;
}
TEST_MPI(kill_the_order_of_a_save_is_durable, 3,
         "every rank's bytes are synced before trainer.json is started, all files before their directory, that before "
         "its name, that before anything is removed; a record with one of these left out or moved is found to be "
         "wrong") {
  static KillWorld w;
  KillPath out;
  KillPlan plan = {};
  kill_path(out, "%s/out", test_tmp());
  snprintf(plan.log, sizeof plan.log, "%.250s/events", test_tmp());
  kill_world_open(&w, MPI_COMM_WORLD, out, kill_shapes, "--keep 1");
  for (int i = 0; i < 2; i++) {
    train_step(&w.t, false);
    MPI_Barrier(w.comm);
    if (i) kill_arm(plan, w.rank);
    EXPECT(kill_save(&w, false, false), "%s", w.t.run.store->result->error);
  }
  kill_disarm();
  MPI_Barrier(w.comm);
  if (!w.rank) {
    int count;
    KillEvent *e = kill_events(plan.log, &count);
    const char *final = w.saver.name, *hidden = kill_name(w.saver.temporary);
    const char *fault = kill_order_fault(e, count, 3, final);
    EXPECT(!fault, "%s", fault);
    EXPECT(kill_doctored(e, count, 0, 0, final) == NULL, "an untouched copy is wrong");
    const int json = kill_find(e, count, 0, FILE_CREATE, "trainer.json", false);
    const int name = kill_find(e, count, 0, FILE_RENAME, final, true);
    const int of_directory = kill_find(e, count, 0, FILE_SYNC, hidden, true);
    const int parent = kill_find(e, count, 0, FILE_SYNC, "ckpt", true);
    const int gone = kill_find(e, count, 0, FILE_RENAME, ".removed_step_00000001", true);
    const struct { const char *what; int from, to; } wrong[] = {
        {"rank 1 does not sync the weights", kill_find(e, count, 1, FILE_SYNC, "model.safetensors", true), -1},
        {"rank 2 writes after its sync", kill_find(e, count, 2, FILE_WRITE, "optim.safetensors", true), json - 1},
        {"trainer.json is started before rank 1 has synced", json,
         kill_find(e, count, 1, FILE_SYNC, "optim.safetensors", true)},
        {"trainer.json is not synced", kill_find(e, count, 0, FILE_SYNC, "trainer.json", true), -1},
        {"tokenizer.json is synced late", kill_find(e, count, 0, FILE_SYNC, "tokenizer.json", true), name},
        {"the directory is not synced", of_directory, -1},
        {"the directory is named first", name, of_directory},
        {"the name is not synced", parent, -1},
        {"the one before goes first", gone, parent},
        {"bytes come after the name", kill_find(e, count, 0, FILE_WRITE, "model.safetensors", false), name + 1}};
    for (const auto &x : wrong) {
      EXPECT(x.from >= 0 && (x.to >= 0 || x.to == -1), "%s: no such call in the record", x.what);
      EXPECT(kill_doctored(e, count, x.from, x.to, final), "%s: not found to be wrong", x.what);
    }
    free(e);
  }
  kill_world_close(&w);
}

// ---- damage ---------------------------------------------------------------------------------------------------------
// Several blocks in each file, so that two ranks read some alone; tensors that share a block, and some of several.
static const char kill_wide[] = "--n_layer 1 --n_head 1 --n_embd 64 --seq_len 8 --n_positions 8 --vocab_size 20011 "
                                "--batch_size 1 --global_batch 2 --warmup 0";
// A checkpoint of the wide shapes in TEST_TMP/out, its parts as seen by a load.
struct KillDamage {
  KillWorld w;
  KillPath checkpoint, file[4];                  // by kill_files
  char *text, *header[CHECKPOINT_FILES];            // trainer.json
  int64_t text_bytes;
  cJSON *json;
  TensorMap map;
  uint32_t checksums[64];
};
static inline void kill_damage_open(KillDamage *d, MPI_Comm comm) {
  KillPath out;
  Start s;
  Error error = {};
  memset((void *)d, 0, sizeof *d);
  kill_path(out, "%s/out", test_tmp());
  kill_world_open(&d->w, comm, out, kill_wide, "--keep 0");
  for (int i = 0; i < 2; i++) {
    train_step(&d->w.t, false);
    EXPECT(kill_save(&d->w, false, false), "%s", d->w.t.run.store->result->error);
  }
  MPI_Barrier(comm);
  kill_newest(out, d->checkpoint, &s);
  for (int i = 0; i < 4; i++) kill_path(d->file[i], "%s/%s", d->checkpoint, kill_files[i]);
  d->text = checkpoint_text(d->checkpoint, &d->text_bytes, &error);
  d->json = checkpoint_parse(d->checkpoint, d->text, (size_t)d->text_bytes, &error);
  checkpoint_map(test_saved(&d->w.t), d->checkpoint, &d->map, d->header);
  EXPECT(map_blocks(&d->map, 0) + map_blocks(&d->map, 1) <= 64, "too many blocks");
  EXPECT(checkpoint_checksums(d->checkpoint, d->json, &d->map, d->checksums, &error), "%s", error.text);
}
static inline void kill_damage_close(KillDamage *d) {
  cJSON_Delete(d->json);
  free(d->text);
  for (char *h : d->header) free(h);
  tensor_map_free(&d->map);
  kill_world_close(&d->w);
}
// This rank's error when the tensors are loaded. All ranks call it.
static inline void kill_load_tensors(KillDamage *d, Error *error) {
  StoreLoad l = {};
  l.map = &d->map;
  l.checksums = d->checksums;
  store_load(d->w.t.run.store, l, STATES_ALL, error, log_load_progress);
}
// The ranks that reject, one bit each, if a rank's error names the file, a tensor and `reason`. All ranks call it.
static inline int kill_rejections(KillDamage *d, int file, const char *reason, const char *what) {
  Error error;
  int mine, all = 0;
  MPI_Barrier(d->w.comm);
  kill_load_tensors(d, &error);
  const bool tensor = strstr(error.text, "tensor ") || strstr(error.text, "moment of ");
  EXPECT(!error.text[0] || (strstr(error.text, d->file[file]) && strstr(error.text, reason) && (tensor ||
         !strstr(reason, "damaged"))), "%s: it says '%s'", what, error.text);
  mine = error.text[0] ? 1 << d->w.rank : 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_BOR, d->w.comm);
  EXPECT(all, "%s: it is loaded", what);
  return all;
}
// Flips one bit of a file.
static inline void kill_flip(const char *path, int64_t at, int bit) {
  char c = 0;
  const int fd = open(path, O_RDWR);
  EXPECT(fd >= 0 && pread(fd, &c, 1, at) == 1, "%s has no byte %lld", path, (long long)at);
  c = (char)(c ^ 1 << bit);
  EXPECT(pwrite(fd, &c, 1, at) == 1, "cannot write %s", path);
  close(fd);
}

TEST_MPI(kill_a_flipped_bit_in_tensors_is_rejected, 2,
         "one bit of any block of either file, first and last bytes and block borders among them: the rank that "
         "reads it reports file, tensor, place; rank 1 alone finds errors in what only it reads; unflipped, both "
         "load") {
  static KillDamage d;
  Error error;
  kill_damage_open(&d, MPI_COMM_WORLD);
  kill_load_tensors(&d, &error);
  EXPECT(!error.text[0], "undamaged: %s", error.text);
  int by_rank[4] = {};
  for (int file = 0; file < 2; file++) {
    const int64_t from = d.map.data_at[file], to = d.map.file_bytes[file], block = STORE_BLOCK_BYTES;
    EXPECT(to - from > block, "%s has one block", kill_files[file]);
    const int64_t places[] = {from, to - 1, from + block - 1, from + block, from + (to - from) / block * block};
    uint64_t seed = 7 + (uint64_t)file;
    for (int i = 0; i < 5 + 12; i++) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      const int64_t at = i < 5 ? places[i] : from + (int64_t)((seed >> 20) % (uint64_t)(to - from));
      char what[64];
      snprintf(what, sizeof what, "%s, byte %lld", kill_files[file], (long long)at);
      if (!d.w.rank) kill_flip(d.file[file], at, (int)(seed >> 60) % 8);
      by_rank[kill_rejections(&d, file, "are damaged: their CRC-32C is ", what)]++;
      MPI_Barrier(MPI_COMM_WORLD);
      if (!d.w.rank) kill_flip(d.file[file], at, (int)(seed >> 60) % 8);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  kill_load_tensors(&d, &error);
  EXPECT(!error.text[0], "undamaged again: %s", error.text);
  EXPECT(by_rank[2] > 0 && by_rank[1] > 0, "found by rank 0 alone %d times, by rank 1 alone %d times, by both %d",
         by_rank[1], by_rank[2], by_rank[3]);
  kill_damage_close(&d);
}

// Exchanges the bytes of two tensors of the same size.
static inline void kill_swap(const char *path, int64_t a, int64_t b, int64_t n) {
  int64_t bytes;
  char *all = kill_bytes(path, &bytes);
  kill_put(path, all + b, n, a);
  kill_put(path, all + a, n, b);
  free(all);
}
TEST_MPI(kill_swapped_cut_and_missing_tensors_are_rejected, 2,
         "two swapped tensors; a file that is a byte short, half, empty or missing: each rank reports which file and "
         "what is wrong; the list of checkpoints skips the short and the missing") {
  static KillDamage d;
  char what[64];
  Error why = {};
  bool best;
  kill_damage_open(&d, MPI_COMM_WORLD);
  Fsdp *&f = d.w.t.fsdp;
  int weight = 0, bias = 0;
  for (int p = 0; p < f->lay.params; p++) {
    if (strstr(f->lay.param[p].name, "ln_1.weight")) weight = p;
    if (strstr(f->lay.param[p].name, "ln_2.weight")) bias = p;
  }
  for (int state = 0; state < 3; state++) {
    const TensorPlace *a = tensor_place(&d.map, state, weight), *b = tensor_place(&d.map, state, bias);
    for (int back = 0; back < 2; back++) {
      snprintf(what, sizeof what, "state %d, two tensors swapped", state);
      if (!d.w.rank) kill_swap(d.file[a->file], a->at, b->at, param_numel(&f->lay.param[weight]) * 4);
      if (!back) kill_rejections(&d, a->file, "are damaged: their CRC-32C is ", what);
      MPI_Barrier(MPI_COMM_WORLD);
    }
  }
  for (int file = 0; file < 2; file++) {
    int64_t bytes = 0;
    char *all = kill_bytes(d.file[file], &bytes);
    const int64_t lengths[] = {bytes - 1, bytes / 2, 0, -1};
    MPI_Barrier(MPI_COMM_WORLD);
    for (int64_t length : lengths) {
      snprintf(what, sizeof what, "%s of %lld bytes", kill_files[file], (long long)length);
      if (!d.w.rank && (length < 0 ? unlink(d.file[file]) : truncate(d.file[file], length)))
        test_fail(__FILE__, __LINE__, "%s: %s", what, strerror(errno));
      // A file that cannot be opened or has another size is rejected before any tensor of it is read.
      const int all_ranks = kill_rejections(&d, file, length < 0 ? "cannot open" : "it is not whole", what);
      EXPECT(all_ranks == 3, "%s: ranks %x reject, must be both", what, all_ranks);
      if (!d.w.rank) {
        EXPECT(checkpoint_serial(d.checkpoint, &best, &why) < 0 && strstr(why.text, d.file[file]),
               "%s: it counts as whole, or '%s'", what, why.text);
        kill_put(d.file[file], all, bytes, 0);
      }
      MPI_Barrier(MPI_COMM_WORLD);
    }
    free(all);
  }
  kill_damage_close(&d);
}

// trainer.json with every `from` replaced by `to`, and a new seal. malloc'ed.
static inline char *kill_reseal(const KillDamage *d, const char *from, const char *to, size_t *bytes) {
  const size_t body = (size_t)d->text_bytes - CHECKPOINT_SEAL_BYTES, n = strlen(from);
  char *text = (char *)malloc(2 * (size_t)d->text_bytes + 64 * strlen(to) + 1);
  size_t out = 0, found = 0;
  for (size_t i = 0; i < body;) {
    if (found < 64 && !strncmp(d->text + i, from, n)) {
      memcpy(text + out, to, strlen(to));
      out += strlen(to);
      i += n;
      found++;
    } else {
      text[out++] = d->text[i++];
    }
  }
  EXPECT(found, "trainer.json has no %s", from);
  char *sealed = checkpoint_sealed(text, out, bytes);
  free(text);
  return sealed;
}
// The error for a trainer.json of these bytes; "" if it is accepted.
static inline void kill_read_json(const KillDamage *d, const char *text, size_t bytes, Error *error) {
  CheckpointState c;
  uint32_t checksums[64];
  error->text[0] = 0;
  char *copy = (char *)calloc(1, bytes + 1);     // as file_get leaves it; not longer, for sanitizers
  memcpy(copy, text, bytes);
  cJSON *json = checkpoint_parse(d->checkpoint, copy, bytes, error);
  if (json && checkpoint_state(d->checkpoint, json, &c, error))
    checkpoint_checksums(d->checkpoint, json, &d->map, checksums, error);
  if (json && !error->text[0]) {                       // an accepted one must not harm the code that completes options
    Start s = {};
    Options o;
    char *argv[] = {(char *)"test", NULL};
    s.kind = START_CHECKPOINT;
    s.resume = true;
    s.json = json;
    kill_path(s.path, "%s", d->checkpoint);
    if (options_parse(&o, &trainer_table, 1, argv, error)) start_options(&s, &o, error);
  }
  cJSON_Delete(json);
  free(copy);
}
TEST_MPI(kill_a_damaged_trainer_json_is_rejected, 1,
         "one bit of every byte of trainer.json and every bit of its seal, any length: rejected by name") {
  static KillDamage d;
  Error error = {};
  kill_damage_open(&d, MPI_COMM_WORLD);
  kill_read_json(&d, d.text, (size_t)d.text_bytes, &error);
  EXPECT(!error.text[0], "undamaged: %s", error.text);
  char *text = (char *)malloc((size_t)d.text_bytes);
  for (int64_t at = 0; at < d.text_bytes; at++) {
    const bool seal = at >= d.text_bytes - CHECKPOINT_SEAL_BYTES;
    for (int bit = seal ? 0 : (int)(at % 8); bit < (seal ? 8 : (int)(at % 8) + 1); bit++) {
      memcpy(text, d.text, (size_t)d.text_bytes);
      text[at] = (char)(text[at] ^ 1 << bit);
      kill_read_json(&d, text, (size_t)d.text_bytes, &error);
      EXPECT(strstr(error.text, d.file[2]), "bit %d of byte %lld: '%s'", bit, (long long)at, error.text);
    }
  }
  for (int64_t length = 0; length < d.text_bytes; length += 1 + length / 300) {
    kill_read_json(&d, d.text, (size_t)length, &error);
    EXPECT(strstr(error.text, d.file[2]), "cut to %lld bytes: '%s'", (long long)length, error.text);
  }
  free(text);
  kill_damage_close(&d);
}
TEST_MPI(kill_a_hostile_trainer_json_is_rejected, 1,
         "a trainer.json with a correct seal, but of another version, with huge, negative, missing, ill-typed "
         "fields, short or ill-spelt checksums, deep nesting: rejected with file and field") {
  static KillDamage d;
  static char deep[200000], many[64];
  Error error = {};
  kill_damage_open(&d, MPI_COMM_WORLD);
  memset(deep, '[', sizeof deep - 1);
  snprintf(many, sizeof many, "\"block_bytes\":%d,\"crc32c\":\"", STORE_BLOCK_BYTES);
  const struct { const char *from, *to, *says; } hostile[] = {
      {"\"format_version\":1", "\"format_version\":2", "is of format 2; this program reads 1: use a newer"},
      {"\"format_version\":1", "\"format_version\":\"1\"", "has no format_version"},
      {"\"step\":2", "\"step\":1e300", "step is missing or out of range"},
      {"\"step\":2", "\"step\":9007199254740993", "step is missing or out of range"},
      {"\"step\":2", "\"step\":-2", "step is missing or out of range"},
      {"\"step\":2", "\"step\":2.5", "step is missing or out of range"},
      {"\"step\":2", "\"step\":\"2\"", "step is missing or out of range"},
      {"\"step\":2", "\"stop\":2", "step is missing or out of range"},
      {"\"serial\":2", "\"serial\":-1", "serial is missing or out of range"},
      {"\"updates\":2", "\"updates\":3", "state.updates is missing or out of range"},
      {"\"good_steps\":", "\"good_steps\":-1", "state.good_steps is missing or out of range"},
      {"\"loss_scale\":1", "\"loss_scale\":0", "state.loss_scale is missing or out of range"},
      {"\"loss_scale\":1", "\"loss_scale\":1e999", "state.loss_scale is missing or out of range"},
      {"\"beta1_power\":", "\"beta1_power\":1e9,\"x\":", "state.beta1_power is missing or out of range"},
      {"\"beta2_power\":", "\"beta3_power\":", "state.beta2_power is missing or out of range"},
      {"\"state\":{", "\"state\":[{},{", "trainer.json is damaged: it is not JSON"},
      {"\"state\":{", "\"state\":7,\"states\":{", "state.updates is missing or out of range"},
      {"\"best_valid_loss\":", "\"best_valid_loss\":\"low\",\"x\":", "quality.best_valid_loss is missing or out of"},
      {"\"corpus\":{\"hash\":\"", "\"corpus\":{\"hash\":\"z", "corpus.hash is missing or out of range"},
      {"\"quality\":", deep, "trainer.json is damaged: it is not JSON"},
      {"\"files\":{", "\"files\":{},\"old\":{", "the entry of model.safetensors in files is missing or incomplete"},
      {"\"optim.safetensors\":{\"bytes\":", "\"optim.safetensors\":{\"bytes\":1", "optim.safetensors is 1"},
      {"\"header_bytes\":", "\"header_bytes\":1", "bytes with a header of 1"},
      {"\"block_bytes\":", "\"block_bytes\":1", "are not 8 digits for each of its"},
      {many, "\"block_bytes\":1048576,\"crc32c\":\"0", "are not 8 digits for each of its"},
      {many, "\"block_bytes\":1048576,\"crc32c\":\"\",\"old\":\"", "are not 8 digits for each of its"},
      {many, "\"block_bytes\":1048576,\"crc32c\":7,\"old\":\"",
       "the entry of model.safetensors in files is missing or incomplete"}};
  for (const auto &h : hostile) {
    size_t bytes;
    char *sealed = kill_reseal(&d, h.from, h.to, &bytes);
    kill_read_json(&d, sealed, bytes, &error);
    EXPECT(strstr(error.text, h.says) && strstr(error.text, d.file[2]), "%s -> %.60s: '%s', must say '%s'", h.from,
           h.to, error.text, h.says);
    free(sealed);
  }
  for (const char *digits : {"-0000001", " 1234567", "0x123456", "zzzzzzzz", "1234567A"}) {
    const char *at = strstr(d.text, many) + strlen(many);
    char from[128], to[128];
    size_t bytes;
    snprintf(from, sizeof from, "%s%.8s", many, at);
    snprintf(to, sizeof to, "%s%s", many, digits);
    char *sealed = kill_reseal(&d, from, to, &bytes);
    kill_read_json(&d, sealed, bytes, &error);
    EXPECT(strstr(error.text, " of model.safetensors is not hexadecimal"), "checksum '%s': '%s'", digits, error.text);
    free(sealed);
  }
  kill_damage_close(&d);
}

// Replaces text in a header on the disk, at the same length, and reads the error.
static inline void kill_check_header(KillDamage *d, int file, const char *from, const char *to, Error *error) {
  int64_t all_bytes = 0;
  char *all = kill_bytes(d->file[file], &all_bytes);
  char *at = (char *)memmem(all, (size_t)d->map.data_at[file], from, strlen(from));
  error->text[0] = 0;
  EXPECT(at && strlen(from) == strlen(to), "%s: no %s, or %s is of another length", kill_files[file], from, to);
  if (at) kill_put(d->file[file], to, (int64_t)strlen(to), at - all);
  checkpoint_check_header(d->file[file], d->header[file], d->map.data_at[file], error);
  if (at) kill_put(d->file[file], from, (int64_t)strlen(from), at - all);
  free(all);
}
TEST_MPI(kill_a_damaged_header_is_rejected, 1,
         "any byte of a header, one bit: rejected by file; another dtype, shape, name, two entries exchanged, a "
         "bigger model's file: the tensor is named too") {
  static KillDamage d;
  static KillWorld bigger;
  Error why = {};
  Error error = {};
  bool best;
  kill_damage_open(&d, MPI_COMM_WORLD);
  for (int file = 0; file < 2; file++) {
    EXPECT(checkpoint_check_header(d.file[file], d.header[file], d.map.data_at[file], &error), "%s", error.text);
    for (int64_t at = 0; at < d.map.data_at[file]; at++) {
      error.text[0] = 0;
      kill_flip(d.file[file], at, (int)(at * 5 % 8));
      const bool same = checkpoint_check_header(d.file[file], d.header[file], d.map.data_at[file], &error);
      kill_flip(d.file[file], at, (int)(at * 5 % 8));
      EXPECT(!same && strstr(error.text, d.file[file]), "%s, byte %lld: '%s'", kill_files[file], (long long)at,
             error.text);
    }
  }
  const struct { int file; const char *from, *to, *says; } changed[] = {
      {0, "F32\",\"shape\":[20011,64]", "I32\",\"shape\":[20011,64]", "tensor wte.weight is not F32"},
      {0, "\"shape\":[20011,64]", "\"shape\":[64,20011]", "tensor wte.weight has another shape"},
      {0, "ln_1.weight", "ln_9.weight", "tensor h.0.ln_"},
      {1, "exp_avg.wpe", "exp_avg.wpq", "tensor exp_avg.wp"}};
  for (const auto &c : changed) {
    kill_check_header(&d, c.file, c.from, c.to, &error);
    EXPECT(strstr(error.text, c.says) && strstr(error.text, d.file[c.file]), "%s -> %s: '%s', must say '%s'", c.from,
           c.to, error.text, c.says);
  }
  int64_t bytes = 0;
  char *all = kill_bytes(d.file[0], &bytes);
  char *one = (char *)memmem(all, (size_t)d.map.data_at[0], "ln_1.weight", 11);
  char *two = (char *)memmem(all, (size_t)d.map.data_at[0], "ln_2.weight", 11);
  if (one && two) { kill_put(d.file[0], "2", 1, one - all + 3); kill_put(d.file[0], "1", 1, two - all + 3); }
  const bool same = checkpoint_check_header(d.file[0], d.header[0], d.map.data_at[0], &error);
  EXPECT(one && two && !same && strstr(error.text, "ln_") && strstr(error.text, "is not where it was written"),
         "two entries exchanged: '%s'", error.text);
  kill_put(d.file[0], all, bytes, 0);
  KillPath out, found;
  Start s;
  kill_path(out, "%s/bigger", test_tmp());
  kill_world_open(&bigger, MPI_COMM_WORLD, out, kill_wide, "--n_embd 96");
  train_step(&bigger.t, false);
  EXPECT(kill_save(&bigger, false, false), "%s", bigger.t.run.store->result->error);
  kill_newest(out, found, &s);
  kill_path(out, "%s/model.safetensors", found);
  free(all);
  all = kill_bytes(out, &bytes);
  kill_put(d.file[0], all, bytes, 0);
  EXPECT(!checkpoint_check_header(d.file[0], d.header[0], d.map.data_at[0], &error) &&
         strstr(error.text, "tensor wte.weight has another shape"), "a bigger model's weights: '%s'", error.text);
  EXPECT(checkpoint_serial(d.checkpoint, &best, &why) < 0 && strstr(why.text, d.file[0]),
         "a bigger model's file counts as whole, or '%s'", why.text);
  free(all);
  kill_world_close(&bigger);
  kill_damage_close(&d);
}
TEST_MPI(kill_a_damaged_tokenizer_is_rejected, 1,
         "tokenizer.json flipped: rejected by name, with the checkpoint before it; cut, missing: skipped") {
  static KillDamage d;
  Error why = {};
  Error error = {};
  bool best;
  kill_damage_open(&d, MPI_COMM_WORLD);
  int64_t bytes = 0;
  char *all = kill_bytes(d.file[3], &bytes);
  for (int64_t at = 0; at < bytes; at += 1 + bytes / 60) {
    Start s = {};
    kill_flip(d.file[3], at, (int)(at % 8));
    EXPECT(!start_open_checkpoint(&s, d.checkpoint, &error) && strstr(error.text, d.file[3]) &&
           strstr(error.text, "step_00000001 takes the one before"), "byte %lld: '%s'", (long long)at, error.text);
    kill_flip(d.file[3], at, (int)(at % 8));
    start_free(&s);
  }
  const int64_t lengths[] = {bytes - 1, bytes / 2, 0, -1};
  for (int64_t length : lengths) {
    KillPath found;
    Start s = {}, newest;
    EXPECT(!(length < 0 ? unlink(d.file[3]) : truncate(d.file[3], length)), "%s", strerror(errno));
    EXPECT(!start_open_checkpoint(&s, d.checkpoint, &error) && strstr(error.text, d.file[3]),
           "%lld bytes: '%s'", (long long)length, error.text);
    EXPECT(checkpoint_serial(d.checkpoint, &best, &why) < 0 && strstr(why.text, d.file[3]),
           "%lld bytes: it counts as whole, or '%s'", (long long)length, why.text);
    kill_newest(d.w.t.opt.out, found, &newest);
    EXPECT(strstr(found, "step_00000001") && strstr(newest.warnings, d.file[3]), "%lld bytes: %s, %s",
           (long long)length, found, newest.warnings);
    kill_put(d.file[3], all, bytes, 0);
    start_free(&s);
  }
  free(all);
  kill_damage_close(&d);
}

// ---- the program ----------------------------------------------------------------------------------------------------
// A run of the program that saves at every step. M = 6: 1, 2 or 3 ranks can resume it.
static inline const char *kill_command(int ranks, const char *out, int steps, const char *more) {
  static char text[2][PATH_MAX + 4096];
  static int turn;
  turn = !turn;
  snprintf(text[turn], sizeof text[0], "exec %s %s --global_batch 12 --epochs 1000 --eval_every 1000000 --max_steps %d "
           "--save_every 1 --sample_tokens 0 --log_every 1000000 --out %s %s", cli_ranks(ranks), cli_small(), steps,
           out, more);
  return text[turn];
}
TEST(kill_damage_ends_every_rank,
     "1 and 2 ranks, --resume auto: damage in a tensor ends all ranks with one line and code 3, which names the "
     "checkpoint before; a short file or a damaged trainer.json is skipped with a warning; --resume of the one before "
     "works; no rank hangs") {
  CliRun r;
  KillPath out, one, two, hint;
  kill_path(out, "%s/out", test_tmp());
  kill_path(one, "%s/ckpt/step_00000001", out);
  kill_path(two, "%s/ckpt/step_00000002", out);
  CLI_RUN(&r, "%s", kill_command(0, out, 2, "--keep 2"));
  cli_expect_done(&r, "two steps");
  cli_free(&r);
  struct stat st;
  KillPath model, json;
  kill_path(model, "%s/optim.safetensors", two);
  kill_path(json, "%s/trainer.json", two);
  REQUIRE(!stat(model, &st), "no %s", model);
  for (int ranks : {0, 2}) {
    kill_flip(model, st.st_size - 5, 3);
    CLI_RUN(&r, "%s", kill_command(ranks, out, 3, "--resume auto"));
    kill_path(hint, "--resume %s takes the one before", one);
    EXPECT(r.code == 3 && cli_count(r.text, "are damaged: their CRC-32C is ") == 1 && strstr(r.text, hint),
           "%d ranks: exit code %d, must be 3 and one line with a hint:\n%.3000s", ranks, r.code, r.text);
    cli_free(&r);
    kill_flip(model, st.st_size - 5, 3);
  }
  kill_flip(json, 100, 1);
  CLI_RUN(&r, "%s", kill_command(2, out, 1, "--resume auto"));
  EXPECT(r.code == 0 && strstr(r.text, "warning: a checkpoint is skipped: ") && strstr(r.text, json) &&
         strstr(r.text, "resumed from: ") && strstr(r.text, "step_00000001, step 1"), "exit code %d:\n%.3000s", r.code,
         r.text);
  cli_free(&r);
  kill_flip(json, 100, 1);
  EXPECT(!truncate(model, st.st_size - 1), "truncate");
  CLI_RUN(&r, "%s", kill_command(0, out, 1, "--resume auto"));
  EXPECT(r.code == 0 && strstr(r.text, "warning: a checkpoint is skipped: ") && strstr(r.text, model),
         "exit code %d:\n%.3000s", r.code, r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s --resume %s", kill_command(2, out, 2, ""), two);
  EXPECT(r.code == 3 && strstr(r.text, "it is not whole"), "exit code %d:\n%.3000s", r.code, r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s --resume %s", kill_command(0, out, 2, ""), one);
  cli_expect_done(&r, "the one before");
  cli_free(&r);
  cli_expect_nothing_left("after the damage");
}

// When OUT/metrics.jsonl was last written to.
static inline double kill_log_time(const char *out) {
  KillPath path;
  struct stat st;
  kill_path(path, "%s/metrics.jsonl", out);
  return stat(path, &st) ? 0 : (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec;
}
// `kills` processes die at random instants during training. Each time the next one resumes from the files, with another
// number of ranks. The weights at the end equal those of a run that was not killed. background: -1: both kinds.
static inline void kill_at_random(int kills, int background, uint64_t seed) {
  const int steps = 150;
  CliRun r;
  KillPath out, whole, found;
  int killed = 0, finished = 0, resumed = 0;
  kill_path(whole, "%s/whole", test_tmp());
  kill_path(out, "%s/out", test_tmp());
  test_mpirun_patience(0);
  CLI_RUN(&r, "%s", kill_command(0, whole, steps, "--save_model"));
  cli_expect_done(&r, "the whole run");
  const double whole_ms = r.ms;
  cli_free(&r);
  while (killed < kills || !finished) {          // the last run is not killed
    char more[128];
    Start s;
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    const int ranks = (int)(seed >> 33) % 3 ? (int)(seed >> 33) % 3 + 1 : 0;
    const bool early = (seed >> 57) % 8 == 0;    // perhaps before anything is loaded
    const double wait_ms = (double)((seed >> 40) % 1000) * 0.5e-3 * whole_ms;
    const bool async = background < 0 ? killed / 2 % 2 : background;
    snprintf(more, sizeof more, "--resume auto --save_model --keep %d %s", killed % 2 + 1, async ? "--save_async" : "");
    kill_newest(out, found, &s);
    const bool had = found[0], last = killed == kills;
    const double log_time = kill_log_time(out);
    cli_start(&r, "%s", kill_command(ranks, out, steps, more));
    double start = now_ms();
    siginfo_t ended = {};
    while (!last && !ended.si_pid && now_ms() - start < wait_ms) {
      usleep(1000);
      if (!early && kill_log_time(out) <= log_time) start = now_ms();
      waitid(P_PID, (id_t)r.pid, &ended, WEXITED | WNOHANG | WNOWAIT);
    }
    const int rank = ranks ? (int)((seed >> 50) % (uint64_t)ranks) : -1;
    // One rank alone only when all are past MPI_Init: mpirun may wait without end for a rank that dies inside.
    const bool one = (seed >> 60) % 2 && kill_log_time(out) > log_time;
    const int victim = one ? cli_find_process(rank, false) : 0;
    if (!last && !ended.si_pid) {
      killed++;
      if (victim) kill(victim, SIGKILL);
      else cli_find_process(-1, true);
    }
    r.since = test_clock();
    cli_wait(&r, CLI_LIMIT_S);
    cli_expect_nothing_left("after a kill");
    kill_newest(out, found, &s);
    EXPECT(!s.warnings[0], "kill %d: %s", killed, s.warnings);
    EXPECT(found[0] || !had, "kill %d: no checkpoint is left:\n%.2000s", killed, r.text);
    resumed += had;                              // the output of a killed process may be lost
    if (last || ended.si_pid) {
      finished++;
      EXPECT(r.code == 0, "after %d kills: exit code %d:\n%.3000s", killed, r.code, r.text);
      cli_free(&r);
      CLI_RUN(&r, "cmp %s/model.safetensors %s/model.safetensors", whole, out);
      EXPECT(r.code == 0, "after %d kills the weights differ: %s", killed, r.text);
      kill_remove(out);
    }
    cli_free(&r);
  }
  EXPECT(resumed > kills / 3, "only %d of %d runs continued from a checkpoint", resumed, kills);
}
TEST_WAITS(kill_at_random_instants,
     "6 SIGKILLs of a rank or of all at random instants, 1 to 3 ranks, saves at once and in the background: --resume "
     "auto resumes each time, and the weights at the end equal those of a run that was not killed") {
  kill_at_random(6, -1, 1);
}
TEST(kill_100_times_at_once_all, "the same with 100, saved at once") { kill_at_random(100, 0, 2); }
TEST(kill_100_times_in_the_background_all, "the same with 100, saved in the background") {
  kill_at_random(100, 1, 3);
}
