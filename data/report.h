// report.h: what a run says while it runs: the progress line and OUT/metrics.jsonl, one JSON object a line. Part 8 of
// the trainer, which includes it there: it reads the Trainer and nothing reads it.
//
//   print_start   what is run on what: build, device, model, data, configuration, sharding, units, memory plan
//   log_open      the record that makes the run repeatable: version, configuration, ranks, memory plan
//   log_step, log_eval, log_checkpoint, log_close       a record each, and what the terminal shows
//   log_save_progress, log_load_progress                for what takes more than a second
//   lock_out      OUT is one training run's; before its checkpoints are looked at
//   check_out     whether OUT can be written, before memory is taken
//
// A disk that fills up ends neither the run nor the file's whole lines.
#pragma once
#include <sys/file.h>

struct Log {
  FILE *metrics;                                 // rank 0 only, else NULL
  off_t whole_bytes;                             // of metrics.jsonl that hold whole lines
  bool terminal, line_open, lost;                // lost: metrics.jsonl could not be written to its end
  bool plans_known;
  double start_ms, step_ms;                      // step_ms: smoothed
  int64_t every;
};

// mpirun gives its ranks a pseudo-terminal whatever its own output is; then that of mpirun, our parent, decides.
static bool stdout_is_terminal() {
  char path[64];
  if (!isatty(STDOUT_FILENO) || !getenv("OMPI_COMM_WORLD_RANK")) return isatty(STDOUT_FILENO);
  snprintf(path, sizeof path, "/proc/%d/fd/1", launcher_pid());
  int fd = open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK);
  const bool terminal = fd >= 0 && isatty(fd);
  if (fd >= 0) close(fd);
  return terminal;
}

// Any bytes as a JSON string; what is not UTF-8 becomes U+FFFD.
static void json_text(FILE *f, const char *s) {
  fputc('"', f);
  const uint8_t *p = (const uint8_t *)s, *end = p + strlen(s);
  for (int bytes = 1; p < end; p += bytes) {
    bpe_class_at(p, end, &bytes);
    if (*p >= 128 && bytes == 1) fputs("\\ufffd", f);
    else if (*p == '"' || *p == '\\') fprintf(f, "\\%c", *p);
    else if (*p < 32) fprintf(f, "\\u%04x", *p);
    else fwrite(p, 1, (size_t)bytes, f);
  }
  fputc('"', f);
}
// ,"name":x with all digits. JSON knows no infinity and no NaN: null.
static void json_number(FILE *f, const char *name, double x) {
  if (isfinite(x)) fprintf(f, ",\"%s\":%.17g", name, x);
  else fprintf(f, ",\"%s\":null", name);
}

// Ends the progress line, so that other text starts on a line of its own.
static void log_line_end(Log *log) {
  if (log->line_open) printf("\n");
  log->line_open = false;
}

// A full disk must not end a run, nor pass in silence; the file keeps its whole lines.
static void log_flush(Log *log, const Trainer *t) {
  if (!fflush(log->metrics) && !ferror(log->metrics)) { log->whole_bytes = ftello(log->metrics); return; }
  char path[OPTION_TEXT_BYTES + 32];
  snprintf(path, sizeof path, "%s/metrics.jsonl", t->opt.out);
  log_line_end(log);
  fprintf(stderr, "notice: %s cannot be written any more (%s); training goes on without it\n", path, strerror(errno));
  fclose(log->metrics);
  log->metrics = NULL;
  log->lost = true;
  if (truncate(path, log->whole_bytes)) fprintf(stderr, "notice: the last line of %s may be incomplete\n", path);
}

// Keeps other runs from training into the same OUT, if there is one by now, until this process ends. One that is just
// being killed is waited for: it may still finish a checkpoint. False and one line in `error`: another run has it.
static bool lock_out(const Options *o, char *error, size_t error_bytes) {
  static int held = -1;
  if (held >= 0 || !trainer_trains(o)) return true;
  held = open(o->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int tries = 0; held >= 0 && flock(held, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; tries++) {
    REFUSE(tries == 50, "--out %.800s: another run is writing there; give this one a directory of its own", o->out);
    usleep(100000);
  }
  return true;                                   // a file system without locks has none to offer
}
// Makes the directories OUT and that of --export_hf. Whether they can be written is known before the corpus is read and
// memory is taken. One line in `error`.
static void check_out(const Options *o, char *error, size_t bytes) {
  const struct { const char *option, *path; bool wanted; } directories[] = {
      {"--out", o->out, true}, {"--export_hf", o->export_hf, o->export_hf[0] != 0}};
  for (const auto &d : directories) {
    char inside[OPTION_TEXT_BYTES + 4];
    snprintf(inside, sizeof inside, "%s/.", d.path);
    if (!d.wanted || error[0]) continue;
    if (!make_directories(d.path))
      snprintf(error, bytes, "%s %.800s cannot be made: %s", d.option, d.path, strerror(errno));
    else if (access(inside, W_OK | X_OK))
      snprintf(error, bytes, "%s %.800s cannot be written: %s", d.option, d.path, strerror(errno));
  }
  if (!error[0]) lock_out(o, error, bytes);
}

// Every option by name, inside an object.
static void log_config(FILE *f, const Options *o) {
  for (const OptionSpec &s : option_specs) {
    char value[OPTION_TEXT_BYTES];
    option_print(value, sizeof value, o, &s);
    fprintf(f, "%s\"%s\":", &s == option_specs ? "" : ",", s.name);
    const bool long_int = s.type == OPTION_INT && fabs(strtod(value, NULL)) > 0x1p53;          // a reader's double
    if (s.type == OPTION_TEXT || long_int) json_text(f, value);
    else fprintf(f, "%s", s.type != OPTION_FLAG ? value : !strcmp(value, "on") ? "true" : "false");
  }
}

// Opens a file of lines: empty, or (append) to add to: a last line that a killed run left unfinished goes. Writes at
// the end, wherever that is: while a run trains, another may evaluate its checkpoints into the same file.
static FILE *log_file(const char *path, bool append) {
  FILE *f = fopen(path, append ? "a+" : "w");
  if (!f || !append) return f ? freopen(path, "a", f) : NULL;
  off_t whole = 0, all = 0;
  for (int c; (c = fgetc(f)) != EOF;) if (all++, c == '\n') whole = all;
  if ((whole == all || !ftruncate(fileno(f), whole)) && !fseeko(f, 0, SEEK_END)) return f;
  fclose(f);
  return NULL;
}

// Opens OUT/metrics.jsonl with the record that makes the run repeatable: version, configuration, ranks, memory plan.
// append: behind what an earlier run wrote. from: what the run starts from, or "".
// One line in `error` when it cannot be written; --eval_only and --sample_only have a terminal, too, and go on.
static void log_open(Log *log, const Trainer *t, bool append, const char *from, char *error, size_t error_bytes) {
  memset(log, 0, sizeof *log);
  log->start_ms = now_ms();
  log->terminal = stdout_is_terminal();
  log->every = t->opt.log_every ? t->opt.log_every : max64(1, t->steps_total / 50);
  if (t->fsdp.mesh.rank) return;
  char path[OPTION_TEXT_BYTES + 32];
  snprintf(path, sizeof path, "%s/metrics.jsonl", t->opt.out);
  char aside[OPTION_TEXT_BYTES + 64];
  struct stat st;
  if (!append && !stat(path, &st) && st.st_size && file_move_aside(path, aside, sizeof aside))
    printf("notice: %s is of an earlier run; it is now %s\n", path, aside);
  log->metrics = log_file(path, append);
  if (!log->metrics) { snprintf(error, error_bytes, "cannot write %s: %s", path, strerror(errno)); return; }
  log->whole_bytes = ftello(log->metrics);
  FILE *f = log->metrics;
  fprintf(f, "{\"kind\":\"run\",\"version\":\"%s\",\"build\":\"%s\"", PROGRAM_VERSION, BUILD_ID);
  fprintf(f, ",\"ranks\":%d,\"hosts\":%d,\"threads\":%d", t->fsdp.mesh.world, t->fsdp.mesh.hosts, t->ctx.threads);
  fprintf(f, ",\"ops\":\"%s\",\"device\":", t->ctx.ops->name);
  json_text(f, t->device.words);
  fprintf(f, ",\"corpus\":");
  json_text(f, t->corpus->source);
  int64_t text_bytes = 0;
  for (const Split &split : t->corpus->split) text_bytes += split.text_bytes;
  fprintf(f, ",\"text_bytes\":%lld,\"tokenizer_ms\":%.1f,\"encode_ms\":%.1f", (long long)text_bytes,
          t->corpus->tokenizer_ms, t->corpus->encode_ms);
  fprintf(f, ",\"corpus_hash\":\"%016llx\",\"parameters\":%lld,\"steps\":%lld,\"config\":{",
          (unsigned long long)t->corpus->hash, (long long)model_numel(&t->model), (long long)t->steps_total);
  log_config(f, &t->opt);
  const MeshShape mesh = t->fsdp.cfg.mesh;
  fprintf(f, "},\"mesh\":{\"replicas\":%d,\"shards\":%d,\"kept\":%d},\"units\":%d", mesh.replicas, mesh.shards,
          mesh.kept, t->fsdp.units);
  fprintf(f, ",\"starts_from\":");
  json_text(f, from);
  fprintf(f, ",\"first_step\":%lld,\"memory_plan_bytes\":{", (long long)t->step + 1);
  for (int i = 0; i < MEM_COUNT; i++)
    fprintf(f, "%s\"%s\":%zu", i ? "," : "", memory_words[i], t->plan.planned_bytes[i]);
  fprintf(f, ",\"total\":%zu}}\n", memory_planned_total(&t->plan, MEMORY_ALL));
  if (trainer_trains(&t->opt) && (fflush(f) || ferror(f)))
    snprintf(error, error_bytes, "cannot write %s: %s", path, strerror(errno));
  else log_flush(log, t);
}

// Model FLOP/s utilisation: the share of the peak of all devices that the model's own operations reach.
static double log_mfu(const Trainer *t, double tokens_per_s) {
  return tokens_per_s * model_flops_per_token(&t->model) / (t->device.peak_flops * t->device.gpus);
}

// How matrix products are computed: one string a shape. Known once a step has run; a resume by other algorithms would
// not give the same bits.
static void log_plans(Log *log, const Trainer *t) {
  enum { PLANS_BYTES = 1 << 16 };
  char *text = (char *)calloc(1, PLANS_BYTES), *save = NULL;
  Ctx c = t->ctx;
  c.ops->plans_text(&c, text, PLANS_BYTES);
  if (text[0]) fprintf(log->metrics, "{\"kind\":\"matmul_plans\",\"plans\":[");
  const bool any = text[0];
  for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    if (line != text) fputc(',', log->metrics);
    json_text(log->metrics, line);
  }
  if (any) fprintf(log->metrics, "]}\n");
  free(text);
}

static void log_step(Log *log, const Trainer *t, const StepResult *r, double ms) {
  if (t->fsdp.mesh.rank) return;
  const double tokens = (double)t->opt.global_batch * (double)t->model.T;
  log->step_ms = log->step_ms > 0 ? 0.9 * log->step_ms + 0.1 * ms : ms;
  if (log->metrics && !log->plans_known) log_plans(log, t);
  log->plans_known = true;
  if (log->metrics) {
    fprintf(log->metrics, "{\"kind\":\"step\",\"step\":%lld,\"epoch\":%lld", (long long)t->step,
            (long long)((t->step - 1) / t->steps_per_epoch));
    json_number(log->metrics, "loss", r->loss);
    json_number(log->metrics, "lr", r->lr);
    json_number(log->metrics, "grad_norm", r->grad_norm);
    fprintf(log->metrics, ",\"tokens_per_s\":%.1f,\"ms\":%.3f", tokens / ms * 1e3, ms);
    if (t->device.peak_flops > 0) json_number(log->metrics, "mfu", log_mfu(t, tokens / ms * 1e3));
    const Traffic *w = &t->step_traffic;
    fprintf(log->metrics, ",\"gathers\":%lld,\"reductions\":%lld,\"gather_bytes\":%lld,\"reduce_bytes\":%lld,"
            "\"replicate_bytes\":%lld", (long long)w->gathers, (long long)w->reductions, (long long)w->gather_bytes,
            (long long)w->reduce_bytes, (long long)w->replicate_bytes);
    if (t->dtype == F16)
      fprintf(log->metrics, ",\"loss_scale\":%.9g,\"skipped\":%s", t->loss_scale, r->skipped ? "true" : "false");
    fprintf(log->metrics, "}\n");
    log_flush(log, t);
  }
  const bool last = t->step == t->steps_total;
  if (!log->terminal && t->step % log->every && t->step != 1 && !last) return;
  const int64_t left_s = (int64_t)(log->step_ms * (double)(t->steps_total - t->step) / 1e3);
  char bar[21] = "....................";
  for (int i = 0; i < 20 && i * t->steps_total < t->step * 20; i++) bar[i] = '#';
  char mfu[24] = "";
  if (t->device.peak_flops > 0)
    snprintf(mfu, sizeof mfu, "  MFU %.1f %%", 100 * log_mfu(t, tokens / log->step_ms * 1e3));
  const char *fault = !r->skipped ? "" : t->dtype == F16 && isfinite(r->loss) ? "  skipped: overflow" : "  not finite";
  printf("%s[%s] step %lld/%lld  loss %.4f  lr %.2e  |g| %.3f  %.0f tok/s%s  ETA %lld:%02lld  %.0f MiB%s",
         log->terminal ? "\r" : "", bar, (long long)t->step, (long long)t->steps_total, r->loss, r->lr, r->grad_norm,
         tokens / log->step_ms * 1e3, mfu, (long long)(left_s / 60), (long long)(left_s % 60),
         (double)memory_planned_total(&t->plan, MEMORY_ALL) / 0x1p20, fault);
  const int64_t saved = __atomic_load_n(&t->store.bytes_done, __ATOMIC_RELAXED);
  if (t->store.phase != STORE_IDLE)
    printf("  saving %lld %%", (long long)(100 * saved / max64(1, t->store.bytes_total)));
  printf(log->terminal ? "\033[K" : "\n");
  log->line_open = log->terminal;
  fflush(stdout);
}

static void log_eval(Log *log, const Trainer *t, const char *name, const Split *split, const EvalResult *e) {
  if (t->fsdp.mesh.rank) return;
  log_line_end(log);
  printf("%s: loss %.4f over %lld tokens, token perplexity %.2f", name, e->loss, (long long)e->tokens, exp(e->loss));
  if (split->words) printf(", word perplexity %.2f", word_perplexity(e, split));
  printf(", accuracy %.2f %%, %.1f s\n", 100 * e->accuracy, e->ms / 1e3);
  if (split->oracle_nats > 0)
    printf("  the source of this generated text itself would reach a loss of %.4f here\n", split->oracle_nats);
  fflush(stdout);
  if (!log->metrics) return;
  fprintf(log->metrics, "{\"kind\":\"eval\",\"split\":\"%s\",\"step\":%lld", name, (long long)t->step);
  json_number(log->metrics, "loss", e->loss);
  json_number(log->metrics, "perplexity", exp(e->loss));
  if (split->words) json_number(log->metrics, "word_perplexity", word_perplexity(e, split));
  json_number(log->metrics, "accuracy", e->accuracy);
  fprintf(log->metrics, ",\"tokens\":%lld,\"ms\":%.3f}\n", (long long)e->tokens, e->ms);
  log_flush(log, t);
}

// What a checkpoint came to. bytes: of its tensors; pause_ms: training stood still; ms: until it had its name.
struct SaveReport { int64_t step, bytes; double pause_ms, ms; bool best; const char *path, *error; };
static void log_checkpoint(Log *log, const Trainer *t, const SaveReport *s) {
  if (t->fsdp.mesh.rank) return;
  const bool ok = !s->error[0];
  log_line_end(log);
  if (ok)
    printf("checkpoint: %s%s, %.1f MB in %.2f s, training paused %.2f s\n", s->path, s->best ? " (best)" : "",
           (double)s->bytes * 1e-6, s->ms * 1e-3, s->pause_ms * 1e-3);
  else fprintf(stderr, "notice: the checkpoint of step %lld was not written: %s\n", (long long)s->step, s->error);
  fflush(stdout);
  if (!log->metrics) return;
  fprintf(log->metrics, "{\"kind\":\"checkpoint\",\"step\":%lld,\"ok\":%s,\"best\":%s,\"bytes\":%lld,\"pause_ms\":%.3f,"
          "\"ms\":%.3f,\"path\":", (long long)s->step, ok ? "true" : "false", s->best ? "true" : "false",
          (long long)s->bytes, s->pause_ms, s->ms);
  json_text(log->metrics, s->path);
  fprintf(log->metrics, ",\"error\":");
  json_text(log->metrics, s->error);
  fprintf(log->metrics, "}\n");
  log_flush(log, t);
}

// A line that counts up, once something has taken a second: overwritten on a terminal, else one every ten seconds.
static void show_progress(const char *what, int64_t done, int64_t total) {
  static double begun_ms, next_ms;
  static int64_t before = INT64_MAX;
  const double now = now_ms();
  const bool terminal = stdout_is_terminal();
  if (done < before) { begun_ms = now; next_ms = now + 1000; }   // something new has begun
  before = done;
  if (now < next_ms || !total) return;
  next_ms = now + (terminal ? 200 : 10000);
  printf("%s%s: %lld %% of %.2f GB, %.2f GB/s%s", terminal ? "\r" : "", what, (long long)(100 * done / total),
         (double)total * 1e-9, (double)done * 1e-6 / (now - begun_ms), terminal ? "\033[K\r" : "\n");
  fflush(stdout);
}
// What rank 0 has written or read of its share stands for all: shares are equal. Where a launcher is about to kill its
// ranks the save is given up, so that the run can end as it should.
static void log_save_progress(Store *s) {
  if (under_mpirun && stop_asked == STOP_END) __atomic_store_n(&s->cancelled, true, __ATOMIC_RELAXED);
  if (!s->f->mesh.rank)
    show_progress("saving", __atomic_load_n(&s->bytes_done, __ATOMIC_RELAXED) * s->f->mesh.world,
                  s->bytes_total * s->f->mesh.world);
}
static void log_load_progress(const StoreLoad *l, void *trainer) {
  const Mesh *m = &((const Trainer *)trainer)->fsdp.mesh;
  if (!m->rank) show_progress("loading", l->bytes_done * m->world, l->bytes_total * m->world);
}

// The last record: why the run ended ("done", "signal", "saved", "not finite", "not saved") and after how many steps.
static void log_close(Log *log, const Trainer *t, const char *reason) {
  if (!log->metrics) return;
  fprintf(log->metrics, "{\"kind\":\"end\",\"reason\":\"%s\",\"step\":%lld,\"ms\":%.3f", reason, (long long)t->step,
          now_ms() - log->start_ms);
  if (const size_t taken = trainer_device_bytes(t)) fprintf(log->metrics, ",\"device_bytes\":%zu", taken);
  fprintf(log->metrics, "}\n");
  log_flush(log, t);
  if (log->metrics) fclose(log->metrics);
  log->metrics = NULL;
}

// ---- how the run is sharded
struct UnitFigures { int64_t params, numel, trained; };
static UnitFigures unit_figures(const Fsdp *f, int u) {
  UnitFigures x = {f->unit[u].params, 0, 0};
  for (int p = 0; p < f->params; p++) {
    if (f->param[p].unit != u) continue;
    x.numel += param_numel(&f->param[p]);
    x.trained += f->param[p].frozen ? 0 : param_numel(&f->param[p]);
  }
  return x;
}
// A unit's name without its block's number: "h.12.attn" has the kind ".attn" and the block 12. Block -1: of no block.
struct UnitName { const char *kind; int block; };
static UnitName unit_name(const Unit *u) {
  char *end;
  if (strncmp(u->name, "h.", 2)) return UnitName{u->name, -1};
  const long block = strtol(u->name + 2, &end, 10);
  return UnitName{end, (int)block};
}
static bool units_are_alike(const Fsdp *f, int a, int b) {
  const UnitFigures x = unit_figures(f, a), y = unit_figures(f, b);
  const Unit *u = &f->unit[a], *v = &f->unit[b];
  return !memcmp(&x, &y, sizeof x) && u->full_bytes == v->full_bytes && u->shard_bytes == v->shard_bytes;
}
// The table of units: what is gathered together, and how much of it a rank holds. Alike ones of blocks that follow each
// other are one line, with the figures of one of them.
static void print_units(const Fsdp *f, FILE *to) {
  bool *told = (bool *)calloc((size_t)f->units, sizeof(bool));
  fprintf(to, "units: %d, each moved by one collective where it is moved\n", f->units);
  fprintf(to, "  %-34s %8s %12s %12s %14s %14s\n", "", "tensors", "parameters", "trained", "bytes, whole",
          "bytes, a rank");
  for (int u = 0; u < f->units; u++) {
    if (told[u]) continue;
    const UnitName first = unit_name(&f->unit[u]);
    const UnitFigures x = unit_figures(f, u);
    int last = u, block = first.block;
    for (int v = u + 1; v < f->units && first.block >= 0; v++) {
      const UnitName other = unit_name(&f->unit[v]);
      if (strcmp(other.kind, first.kind) || other.block < 0) continue;
      if (other.block != block + 1 || !units_are_alike(f, u, v)) break;
      told[last = v] = true;
      block++;
    }
    char name[160];
    snprintf(name, sizeof name, last > u ? "%s .. %s" : "%s", f->unit[u].name, f->unit[last].name);
    fprintf(to, "  %-34s %8lld %12lld %12lld %14zu %14zu%s\n", name, (long long)x.params, (long long)x.numel,
            (long long)x.trained, f->unit[u].full_bytes, f->unit[u].shard_bytes, last > u ? "  each" : "");
  }
  free(told);
}
static void print_plan(const Trainer *t) {
  printf("memory plan, bytes per rank, --recompute %s%s\n", t->opt.recompute, t->opt.recompute_auto ? " (auto)" : "");
  for (int i = 0; i < MEM_COUNT; i++)
    if (t->plan.planned_bytes[i]) printf("  %-34s %15zu\n", memory_words[i], t->plan.planned_bytes[i]);
  if (t->ctx.ops->nccl) {
    const size_t device = memory_planned_total(&t->plan, MEMORY_ON_DEVICE);
    printf("  %-34s %15zu  (%.1f MiB)\n", "on the GPU", device, (double)device / 0x1p20);
  }
  printf("  %-34s %15zu  (%.1f MiB)\n", "total", memory_planned_total(&t->plan, MEMORY_ALL),
         (double)memory_planned_total(&t->plan, MEMORY_ALL) / 0x1p20);
}
// One line: over how many ranks what is cut, and how long it stays whole.
static void print_sharding(const Trainer *t) {
  const FsdpConfig *c = &t->fsdp.cfg;
  const MeshShape m = c->mesh;
  bool in_blocks = false;
  for (int u = 0; u < t->fsdp.units; u++) in_blocks = in_blocks || t->fsdp.unit[u].stage;
  printf("sharding: %s, %d replica%s of %d shard%s, cut %s; ", strategy_of(&t->opt), m.replicas,
         m.replicas > 1 ? "s" : "", m.shards, m.shards > 1 ? "s" : "",
         c->layout == SHARD_DIM0 ? "by rows of each parameter" : "flat");
  if (t->fsdp.in_place) printf(m.shards > 1 ? "shards read in place" : "parameters lie whole on each rank");
  else if (!in_blocks || c->gather_slots == c->blocks) printf("gathered parameters stay whole for the step");
  else printf("%d of %d blocks whole at once", c->gather_slots, c->blocks);
  if (m.kept && !t->fsdp.in_place) printf(", the others cut over groups of %d ranks after their forward", m.kept);
  if (trainer_trains(&t->opt) && t->opt.grad_accum > 1)
    printf("; gradients reduced %s", c->local ? "once a step" : "every microbatch");
  if (fsdp_offloads(&t->fsdp))
    printf("; %s on the host", c->offload == OFFLOAD_PARAMS ? "optimizer and parameters" : "optimizer");
  printf("\n");
}
// Groups of `size` ranks that follow each other and lie on several hosts, although a host has room for one.
static int groups_across_hosts(const Mesh *m, int size) {
  int across = 0;
  for (int first = 0; first < m->world && size <= m->node_world; first += size) {
    bool one_host = true;
    for (int i = 1; i < size; i++) one_host = one_host && m->peer[first + i].host == m->peer[first].host;
    across += !one_host;
  }
  return across;
}
static void print_across_hosts(const Mesh *m, int size, const char *what, const char *option) {
  const int across = groups_across_hosts(m, size);
  if (!across) return;
  printf("notice: %d of %d %s cross hosts although %d ranks fit on one: their gathers go over the network; ", across,
         m->world / size, what, size);
  if (m->node_world % size) printf("choose %s that divides the ranks of a host\n", option);
  else printf("place ranks host by host (mpirun --map-by slot, srun --distribution=block)\n");
}
// What a user should know of these modes.
static void print_sharding_notices(const Trainer *t) {
  const Options *o = &t->opt;
  const Mesh *m = &t->fsdp.mesh;
  print_across_hosts(m, m->shape.shards, "shard groups", "--mesh RxS with an S");
  if (m->shape.kept)
    print_across_hosts(m, m->shape.kept, "groups that keep blocks", "a --reshard_after_forward");
  const bool slots = o->given[OPT_gather_slots];
  if (t->fsdp.in_place && m->shape.shards > 1 && (slots || o->given[OPT_reshard_after_forward]))
    printf("notice: all ranks of a shard group share this host's memory and read shards in place: nothing is gathered, "
           "--%s has nothing to hold; --shm copy gathers\n", slots ? "gather_slots" : "reshard_after_forward");
  if (!trainer_trains(o)) return;
  bool rounded = false;
  for (int p = 0; p < t->fsdp.params; p++)
    rounded = rounded || (t->fsdp.param[p].frozen && t->fsdp.param[p].dtype != F32);
  if (rounded)
    printf("notice: what --freeze names is kept in %s alone, rounded: checkpoints and exports hold it so\n",
           strcmp(o->fp8, "off") ? "E4M3 or --param_dtype" : o->param_dtype);
  if (t->fsdp.cfg.native_reduce && m->world > 1)
    printf("notice: --reduce native adds in NCCL's order: other numbers of ranks give other last bits\n");
  if (t->fsdp.cfg.local && o->grad_accum > 1)
    printf("notice: --%s adds a rank's %lld microbatches before those of other ranks: other numbers of ranks give "
           "other last bits\n", strategy_is(o, "zero1") ? "strategy zero1" : "accumulate local",
           (long long)o->grad_accum);
}

// What a step of training moves, by the formula that the counters are held to.
static void print_traffic(const Trainer *t) {
  if (t->fsdp.mesh.world == 1 || !trainer_trains(&t->opt)) return;
  const Traffic w = fsdp_formula(&t->fsdp, (int)t->opt.grad_accum);
  printf("traffic of a step, received by rank 0: %lld gathers %.3f MB, %lld reductions %.3f MB", (long long)w.gathers,
         (double)w.gather_bytes * 1e-6, (long long)w.reductions, (double)w.reduce_bytes * 1e-6);
  if (w.replicate_bytes) printf(", along replicas %.3f MB", (double)w.replicate_bytes * 1e-6);
  printf(", %lld small %lld bytes\n", (long long)w.small, (long long)w.small_bytes);
}

// What a CPU's matrix products are made of; attention's too, but for those of fp32, always fused multiply-adds.
static const char *cpu_products(const Trainer *t) {
  const Ops *ops = t->ctx.ops;
  const bool tiles = ops != &ops_avx2 && ops != &ops_avx512 && ops != &ops_avx512_bf16;
  if (t->dtype == F32) return t->ctx.fast_fp32 ? "fp32 as six bf16 tile products" : "fp32 fused multiply-adds";
  if (t->dtype == BF16 && tiles) return "bf16 tile products";
  return t->dtype == BF16 && ops == &ops_avx512_bf16 ? "bf16 pairs" : "converted to fp32, fused multiply-adds";
}
// The head of every run, on rank 0. cores_shared: ranks outnumber the cores of this host.
static void print_start(const Trainer *t, bool cores_shared) {
  if (t->fsdp.mesh.rank) return;
  const Options *o = &t->opt;
  const CommKind comm = t->fsdp.cfg.comm;
  const Device *d = &t->device;
  printf("train_gpt_fsdp %s (%s): %s, %d rank%s on %d host%s, %d thread%s each, device %s, gradients %s\n",
         PROGRAM_VERSION, BUILD_ID, o->model, t->fsdp.mesh.world, t->fsdp.mesh.world > 1 ? "s" : "", t->fsdp.mesh.hosts,
         t->fsdp.mesh.hosts > 1 ? "s" : "", t->ctx.threads, t->ctx.threads > 1 ? "s" : "", d->words,
         comm == COMM_SELF ? "stay here" : comm == COMM_NCCL ? "by NCCL"
         : t->fsdp.mesh.remote || !t->fsdp.mesh.windows ? "by messages"
         : t->fsdp.mesh.hosts > 1 ? "by shared memory, sums of replicas by messages" : "by shared memory");
  if (d->gpus < t->fsdp.mesh.world && t->ctx.ops->nccl)
    printf("notice: %d ranks on %d GPU%s; gradients and parameters go through host memory\n", t->fsdp.mesh.world,
           d->gpus, d->gpus > 1 ? "s" : "");
  if (t->ctx.ops->nccl && d->peak_flops > 0)
    printf("peak: %.0f TFLOP/s dense %s; MFU counts %.3g FLOP a token\n", d->peak_flops * 1e-12, o->buffer_dtype,
           model_flops_per_token(&t->model));
  else if (t->ctx.ops->nccl) printf("peak: not known for this GPU; MFU is n/a\n");
  if (!t->ctx.ops->nccl) printf("products: %s; sums fp32\n", cpu_products(t));
  if (cores_shared) printf("notice: ranks outnumber cores on this host; they will wait for each other\n");
  cpu_set_t cores;
  if (!cores_shared && !sched_getaffinity(0, sizeof cores, &cores) && t->ctx.threads > CPU_COUNT(&cores))
    printf("notice: --threads %d on %d core%s of this rank; they will wait for each other\n", t->ctx.threads,
           CPU_COUNT(&cores), CPU_COUNT(&cores) > 1 ? "s" : "");
  const char *omp = getenv("OMP_NUM_THREADS");
  if (omp && !o->threads && atoi(omp) != t->ctx.threads)
    printf("notice: OMP_NUM_THREADS=%.20s is not looked at: --threads says how many, else all cores are taken\n", omp);
  printf("model: %d blocks, %d heads, width %lld, %lld positions, vocabulary %lld (%lld in memory), %lld parameters\n",
         t->model.L, t->model.H, (long long)t->model.C, (long long)t->model.P, (long long)t->model.V,
         (long long)t->model.Vp, (long long)model_numel(&t->model));
  printf("data: %s", t->corpus->source);
  if (t->steps_per_epoch)
    printf(": %lld training tokens, %lld steps an epoch of %lld sequences x %lld tokens",
           (long long)t->corpus->split[SPLIT_TRAIN].tokens_numel, (long long)t->steps_per_epoch,
           (long long)o->global_batch, (long long)t->model.T);
  printf("\n");
  if (t->corpus->tokenizer_ms > 0)
    printf("tokenizer: trained to %d tokens in %.0f ms, encoded the corpus in %.0f ms\n", t->corpus->vocab_size,
           t->corpus->tokenizer_ms, t->corpus->encode_ms);
  printf("configuration:");
  for (const OptionSpec &s : option_specs) {
    char value[OPTION_TEXT_BYTES];
    option_print(value, sizeof value, o, &s);
    if (s.type == OPTION_NUM) snprintf(value, sizeof value, "%.10g", *(const double *)((const char *)o + s.offset));
    printf(" --%s=%s", s.name, s.type == OPTION_TEXT && strchr(value, ' ') ? "'...'" : value);
  }
  printf("\n");
  print_sharding(t);
  print_sharding_notices(t);
  print_units(&t->fsdp, stdout);
  print_plan(t);
  print_traffic(t);
  fflush(stdout);
}
