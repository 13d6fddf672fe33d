// log.h: what a run reports while it runs: OUT/metrics.jsonl, one JSON object per line, and what the terminal shows.
//
// A disk that fills up does not end the run; the file keeps its whole lines.
#pragma once
#include "report_html.h"
#include "start_report.h"
#include "tensorboard.h"

struct Log {
  FILE *metrics;                                 // rank 0 only, else NULL
  off_t whole_bytes;                             // of metrics.jsonl that hold whole lines
  bool lost;                                     // metrics.jsonl could not be written to its end
  Tensorboard board;                             // no file without --tensorboard
  ReportLive *page;                              // of report.html; NULL: none is written
  const char *page_said;                         // what the list of files at the end says about the page; NULL: nothing
  int64_t steps, skipped, not_finite;            // steps made; of these without update; of these with a named cause
  bool plans_known;
  CoreWatch cores;
  bool cores_told;                               // the warning is printed, or not wanted: own threads exceed cores
  double start_ms, step_ms;                      // step_ms: smoothed
  double begin_ms;                               // of the step
  int64_t every;
};
// A warning says when threads wait for a core more than this share of their time; two runs on the same cores wait half.
static const double CORES_BUSY = 0.25;

// A full disk must not end a run, nor go unnoticed; the file keeps its whole lines.
static void log_flush(Log *log, const RunView *run) {
  if (!fflush(log->metrics) && !ferror(log->metrics)) { log->whole_bytes = ftello(log->metrics); return; }
  char path[OPTION_TEXT_BYTES + 32];
  snprintf(path, sizeof path, "%s/metrics.jsonl", run->opt->out);
  say_error("warning: %s cannot be written any more (%s); training continues without it\n", path, strerror(errno));
  fclose(log->metrics);
  log->metrics = NULL;
  log->lost = true;
  if (truncate(path, log->whole_bytes)) say_error("warning: the last line of %s may be incomplete\n", path);
}

void trace_check(const RunView *run, int64_t done, Error *error) {
  if (!run->trace->path[0]) return;
  if (run->ctx->ops->nccl && !fsdp_device_sends(run->fsdp))
    fail(error, "--trace with --comm mpi on GPUs: a trace there is what the device did, and the host moves the "
         "messages; use --comm nccl, or leave it out");
  else trace_reject_steps(run->opt, max64(0, run->steps_total - done), error);
}
// Moves aside what an earlier run left at PATH.
static void log_move_aside(const char *path) {
  char aside[OPTION_TEXT_BYTES + 64];
  struct stat st;
  if (!stat(path, &st) && st.st_size && file_move_aside(path, aside, sizeof aside))
    say("warning: %s is of an earlier run; it is now %s\n", path, aside);
}
// Makes the file of --trace: an earlier trace is moved aside. One line in `error` if the file cannot be written.
static void log_open_trace(const RunView *run, Error *error) {
  run->trace->from = run->step;
  const char *path = run->trace->path;
  if (!path[0] || fsdp_rank(run->fsdp)) return;
  log_move_aside(path);
  FILE *f = file_own(path, false);
  if (f) fclose(f);
  else fail(error, "--trace %.900s cannot be written: %s", path, file_own_fault(path));
}
static const char mark_of_page[] = "<title>train_gpt_fsdp</title>";              // within its first 64 KiB
int report_compare(Call *call) {
  const Options *o = &call->o;
  char path[OPTION_TEXT_BYTES + 32] = "report.html";
  Error error = {};
  if (!strcmp(o->report, "on") || !strcmp(o->report, "off")) return -1;
  if (!call->first) return 0;
  if (call->error.text[0]) die_user("train_gpt_fsdp: %s", call->error.text);
  if (strspn(o->report, ",") == strlen(o->report))
    die_user("train_gpt_fsdp: --report is on, off, or directories of runs: A,B");
  if (o->given[OPT_out]) snprintf(path, sizeof path, "%s/report.html", o->out);
  if (o->given[OPT_out] && !make_directories(o->out))
    die_missing("train_gpt_fsdp: --out %.800s cannot be made: %s", o->out, strerror(errno));
  if (file_is_foreign(path, mark_of_page, false))
    die_user("train_gpt_fsdp: %.900s is there, and no report of this program: --out names another directory", path);
  if (!report_runs(o->report, path, PROGRAM_VERSION, &error)) die_missing("train_gpt_fsdp: %s", error.text);
  say("report: %s\n", path);
  return 0;
}

// Opens the event file of --tensorboard in OUT/tensorboard, on rank 0. append: after what an earlier run wrote. One
// line in `error` when it cannot be written.
static void log_open_board(Log *log, const RunView *run, bool append, Error *error) {
  if (!run->opt->tensorboard || run->opt->sample_only || fsdp_rank(run->fsdp) || error->text[0]) return;
  char path[OPTION_TEXT_BYTES + 32], aside[OPTION_TEXT_BYTES + 64];
  snprintf(path, sizeof path, "%s/tensorboard", run->opt->out);
  const int64_t first_step = !append ? -1 : run_trains(run->opt) ? run->step + 1 : 0;
  if (!tensorboard_open(&log->board, path, first_step, aside, sizeof aside))
    fail(error, "cannot write event files into %s: %s", path, strerror(errno));
  else if (aside[0]) say("warning: %s is of an earlier run; it is now %s\n", path, aside);
}
// Writes scalars of a line of metrics.jsonl to the event file, too. A full disk must not end a run.
static void log_board(Log *log, int64_t step, const TensorboardScalar *x, int count) {
  if (!tensorboard_write(&log->board, step, x, count))
    say_error("warning: %s cannot be written any more (%s); training continues without it\n", log->board.path,
              strerror(errno));
}

// Brings OUT/report.html up to date: now, or if it is time. A full disk must not end a run.
static void log_page(Log *log, bool now) {
  if (!log->page || report_live_write(log->page, now, PROGRAM_VERSION)) return;
  say_error("warning: %s cannot be written (%s); training continues without it\n", log->page->path, strerror(errno));
  free(log->page);
  log->page = NULL;
}

// The work of log_open, on a log that is there.
static void log_begin(Log *log, const RunView *run, bool append, const char *from, Error *error) {
  memset(log, 0, sizeof *log);
  log->cores_told = run->crowded;
  log->start_ms = now_ms();
  log->every = run->opt->log_every ? run->opt->log_every : max64(1, run->steps_total / 50);
  if (fsdp_rank(run->fsdp)) return;
  char path[OPTION_TEXT_BYTES + 32];
  snprintf(path, sizeof path, "%s/metrics.jsonl", run->opt->out);
  if (!append) log_move_aside(path);
  log->metrics = file_lines(path, append);
  if (!log->metrics) { fail(error, "cannot write %s: %s", path, file_own_fault(path)); return; }
  log->whole_bytes = ftello(log->metrics);
  FILE *f = log->metrics;
  fprintf(f, "{\"kind\":\"run\",\"version\":\"%s\",\"build\":\"%s\"", PROGRAM_VERSION, build_id);
  fprintf(f, ",\"ranks\":%d,\"hosts\":%d,\"threads\":%d", fsdp_world(run->fsdp), fsdp_hosts(run->fsdp),
          run->ctx->threads);
  fprintf(f, ",\"ops\":\"%s\"", run->ctx->ops->name);
  json_words(f, "device", run->device.words);
  json_words(f, "corpus", run->corpus->source);
  int64_t text_bytes = 0;
  for (const Split &split : run->corpus->split) text_bytes += split.text_bytes;
  fprintf(f, ",\"text_bytes\":%lld,\"tokenizer_ms\":%.1f,\"encode_ms\":%.1f", (long long)text_bytes,
          run->corpus->tokenizer_ms, run->corpus->encode_ms);
  fprintf(f, ",\"corpus_hash\":\"%016llx\",\"parameters\":%lld,\"steps\":%lld,\"steps_per_epoch\":%lld",
          (unsigned long long)run->corpus->hash, (long long)run->model.parameters, (long long)run->steps_total,
          (long long)run->steps_per_epoch);
  start_record(f, run);
  if (run_trains(run->opt)) fputc(',', f), run->opt->trainer->memory_map(run, f);
  json_words(f, "starts_from", from);
  fprintf(f, ",\"first_step\":%lld}\n", (long long)run->step + 1);
  if (run_trains(run->opt) && (fflush(f) || ferror(f)))
    fail(error, "cannot write %s: %s", path, strerror(errno));
  else log_flush(log, run);
  log_open_board(log, run, append, error);
  if (error->text[0] || strcmp(run->opt->report, "on") || run->opt->sample_only) return;
  log->page = (ReportLive *)calloc(1, sizeof(ReportLive));
  report_live_open(log->page, run->opt->out);
  log_page(log, true);
}

Log *log_open(const RunView *run, bool append, const char *from, Error *error) {
  Log *log = (Log *)calloc(1, sizeof *log);
  log_open_trace(run, error);
  if (!error->text[0]) log_begin(log, run, append, from, error);
  return log;
}

// Model FLOP/s utilisation: the share of the peak of all devices that the model's own operations reach.
static double log_mfu(const RunView *run, double tokens_per_s) {
  return tokens_per_s * run->model.flops_per_token / (run->device.peak_flops * run->device.gpus);
}

// How matrix multiplies are computed: one string per shape. Known once a step has run. Where another version of
// cuBLASLt or another GPU gives other bits, this shows what differs.
static void log_plans(Log *log, const RunView *run) {
  enum { PLANS_BYTES = 1 << 16 };
  char *text = (char *)calloc(1, PLANS_BYTES), *save = NULL;
  Ctx c = *run->ctx;
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

// The progress line after a step.
static void log_draw(const Log *log, const RunView *run, const StepResult *r) {
  const double rate = (double)run->opt->global_batch * (double)run->model.T / log->step_ms * 1e3;
  int64_t saved, to_save;
  Progress p = {run->step, run->steps_total, {"bar"}};
  enum { BYTES = PROGRESS_BYTES };
  char eta[32], line[PROGRESS_FIELDS * BYTES];
  eta_text(eta, sizeof eta, (int64_t)(log->step_ms * (double)(run->steps_total - run->step) / 1e3));
  snprintf(p.text[PROGRESS_STEP], BYTES, "step %lld/%lld", (long long)run->step, (long long)run->steps_total);
  snprintf(p.text[PROGRESS_LOSS], BYTES, "loss %.4f", r->loss);
  if (run->opt->loss != PREFERENCE_NONE)
    snprintf(p.text[PROGRESS_PAIRS], BYTES, "margin %.3f  right %.0f %%", r->rewards[0] - r->rewards[1],
             100 * r->rewards[2]);
  snprintf(p.text[PROGRESS_LR], BYTES, "lr %.2e", r->lr);
  snprintf(p.text[PROGRESS_NORM], BYTES, "|g| %.3f", r->grad_norm);
  snprintf(p.text[PROGRESS_RATE], BYTES, "%.0f tok/s", rate);
  if (run->device.peak_flops > 0) snprintf(p.text[PROGRESS_MFU], BYTES, "MFU %.1f %%", 100 * log_mfu(run, rate));
  snprintf(p.text[PROGRESS_ETA], BYTES, "ETA %s", eta);
  snprintf(p.text[PROGRESS_MEMORY], BYTES, "%.0f MiB", (double)memory_planned_total(&run->plan, MEMORY_ALL) / 0x1p20);
  const bool overflow = fsdp_config(run->fsdp)->compute_dtype == F16 && isfinite(r->loss);
  if (r->skipped) snprintf(p.text[PROGRESS_SKIPPED], BYTES, overflow ? "skipped: overflow" : "not finite");
  else if (r->untrained == run->opt->global_batch * run->model.T)
    snprintf(p.text[PROGRESS_SKIPPED], BYTES, "nothing to train on");
  if (store_progress(run->store, &saved, &to_save))
    snprintf(p.text[PROGRESS_SAVING], BYTES, "saving %lld %%", (long long)(100 * saved / max64(1, to_save)));
  progress_line(line, sizeof line, &p, terminal.out ? terminal_columns() : 0);
  if (terminal.out) line_draw(line, false);
  else say("%s\n", line);
}
// Prints one warning if other programs use the cores that this rank computes on.
static void log_watch_cores(Log *log) {
  const double waited = log->cores_told ? -1 : core_watch(&log->cores, now_ms());
  if (waited < CORES_BUSY) return;
  log->cores_told = true;
  say("warning: the cores are busy with other programs: this rank's threads waited %.0f %% of their time for a core\n",
      100 * waited);
}

// Of each unit that trains: the norm of its gradient, as "grad_norm" is that of all units', and the norm of what the
// step changed in its weights, over the norm of the weights.
static inline void log_layers(FILE *to, const RunView *run, double grad_norm) {
  const Fsdp *f = run->fsdp;
  LayerNorms x;
  if (!fsdp_layer_norms(f, -1, &x)) return;      // none are added up
  const double scale = grad_norm / x.gradient;   // loss scale: a power of two
  fprintf(to, ",\"layers\":[");
  bool any = false;
  for (int u = 0; u < fsdp_units(f); u++) {
    if (!fsdp_layer_norms(f, u, &x)) continue;
    fprintf(to, "%s{\"unit\":\"%s\"", any ? "," : "", fsdp_unit_figures(f, u).name);
    json_number(to, "grad_norm", x.gradient * scale);
    json_number(to, "update_ratio", x.change / x.weights);
    fprintf(to, "}");
    any = true;
  }
  fprintf(to, "]");
}
// Of pairs, under TRL's names.
static void log_rewards(FILE *to, const StepResult *r) {
  json_number(to, "rewards/chosen", r->rewards[0]);
  json_number(to, "rewards/rejected", r->rewards[1]);
  json_number(to, "rewards/margins", r->rewards[0] - r->rewards[1]);
  json_number(to, "rewards/accuracies", r->rewards[2]);
}
static void log_trace(Log *log, const RunView *run);
void log_step_begin(Log *log, const RunView *run) {
  const bool traced = trace_wants(run->trace, run->step);
  if (!traced) log_trace(log, run);              // the step before was the last one of the trace
  log->begin_ms = now_ms();
  if (traced) trace_step_begin(run->trace, run->ctx, run->fsdp, run->step);
}
void log_step(Log *log, const RunView *run, const StepResult *r) {
  if (tracing) trace_step_end(run->trace, run->ctx, run->fsdp);
  const double ms = now_ms() - log->begin_ms;
  if (fsdp_rank(run->fsdp)) return;
  const double tokens = (double)run->opt->global_batch * (double)run->model.T;
  const bool pairs = run->opt->loss != PREFERENCE_NONE;
  log->steps++;
  log->skipped += r->skipped;
  restarts_step(run->step);
  log->step_ms = log->step_ms > 0 ? 0.9 * log->step_ms + 0.1 * ms : ms;
  if (log->metrics && !log->plans_known) log_plans(log, run);
  log->plans_known = true;
  if (log->metrics) {
    fprintf(log->metrics, "{\"kind\":\"step\",\"step\":%lld,\"epoch\":%lld", (long long)run->step,
            (long long)((run->step - 1) / run->steps_per_epoch));
    json_number(log->metrics, "loss", r->loss);
    json_number(log->metrics, "lr", r->lr);
    json_number(log->metrics, "grad_norm", r->grad_norm);
    fprintf(log->metrics, ",\"tokens_per_s\":%.1f,\"ms\":%.3f", tokens / ms * 1e3, ms);
    if (pairs) log_rewards(log->metrics, r);
    if (run->corpus->split[SPLIT_TRAIN].masked)
      fprintf(log->metrics, ",\"%s\":%lld", pairs ? "pairs" : "trained_tokens", (long long)tokens -
              (long long)r->untrained);
    if (run->device.peak_flops > 0) json_number(log->metrics, "mfu", log_mfu(run, tokens / ms * 1e3));
    const Traffic *w = &run->step_traffic;
    fprintf(log->metrics, ",\"gathers\":%lld,\"reductions\":%lld,\"gather_bytes\":%lld,\"reduce_bytes\":%lld,"
            "\"replicate_bytes\":%lld", (long long)w->gathers, (long long)w->reductions, (long long)w->gather_bytes,
            (long long)w->reduce_bytes, (long long)w->replicate_bytes);
    if (w->updates)
      fprintf(log->metrics, ",\"updates\":%lld,\"update_bytes\":%lld", (long long)w->updates,
              (long long)w->update_bytes);
    log_layers(log->metrics, run, r->grad_norm);
    if (fsdp_config(run->fsdp)->compute_dtype == F16) fprintf(log->metrics, ",\"loss_scale\":%.9g", run->loss_scale);
    if (fsdp_config(run->fsdp)->compute_dtype == F16 || r->skipped)
      fprintf(log->metrics, ",\"skipped\":%s", r->skipped ? "true" : "false");
    fprintf(log->metrics, "}\n");
    log_flush(log, run);
  }
  const TensorboardScalar scalars[] = {{"train/loss", r->loss},
                                       {"train/lr", r->lr},
                                       {"train/grad_norm", r->grad_norm},
                                       {"train/tokens_per_s", tokens / ms * 1e3},
                                       {"train/rewards/margins", r->rewards[0] - r->rewards[1]},
                                       {"train/rewards/accuracies", r->rewards[2]}};
  log_board(log, run->step, scalars, pairs ? 6 : 4);
  const bool last = run->step == run->steps_total;
  if (terminal.out || run->step % log->every == 0 || run->step == 1 || last) log_draw(log, run, r);
  log_watch_cores(log);
  log_page(log, false);
}

void log_eval(Log *log, const RunView *run, int of, const EvalResult *e, int64_t begin_ns) {
  const char *name = split_names[of];
  const Split *split = &run->corpus->split[of];
  trace_told(run->trace, TOLD_EVALUATION, begin_ns);
  if (e->stop || fsdp_rank(run->fsdp)) return;
  const bool pairs = run->opt->loss != PREFERENCE_NONE;
  say("%s: loss %.4f over %lld %s%s", name, e->loss, (long long)e->tokens, pairs ? "pair" : "token",
      e->tokens == 1 ? "" : "s");
  if (!pairs) say(", token perplexity %.2f", exp(e->loss));
  if (split->words) say(", word perplexity %.2f", word_perplexity(e, split));
  if (split->text_bytes) say(", %.4f bits per byte", bits_per_byte(e, split));
  say(", accuracy %.2f %%, %.1f s\n", 100 * e->accuracy, e->ms / 1e3);
  if (split->oracle_nats > 0)
    say("  the source of this generated text would itself reach a loss of %.4f here\n", split->oracle_nats);
  char tags[2][32];
  snprintf(tags[0], sizeof tags[0], "%s/loss", name);
  snprintf(tags[1], sizeof tags[1], "%s/accuracy", name);
  const TensorboardScalar scalars[] = {{tags[0], e->loss}, {tags[1], e->accuracy}};
  log_board(log, run->step, scalars, 2);
  if (!log->metrics) return;
  fprintf(log->metrics, "{\"kind\":\"eval\",\"split\":\"%s\",\"step\":%lld", name, (long long)run->step);
  json_number(log->metrics, "loss", e->loss);
  if (!pairs) json_number(log->metrics, "perplexity", exp(e->loss));
  if (split->words) json_number(log->metrics, "word_perplexity", word_perplexity(e, split));
  if (split->text_bytes) json_number(log->metrics, "bits_per_byte", bits_per_byte(e, split));
  json_number(log->metrics, "accuracy", e->accuracy);
  fprintf(log->metrics, ",\"%s\":%lld,\"ms\":%.3f}\n", pairs ? "pairs" : "tokens", (long long)e->tokens, e->ms);
  log_flush(log, run);
}

void log_eval_file(Log *log, const EvalFileResult *e) {
  const EvalNumber *number = e->number;
  say("%s: %s%s, %lld texts", e->path, e->task, e->llmc ? " (llm.c's style)" : "", (long long)e->texts);
  for (int i = 0; i < EVAL_NUMBERS && number[i].name; i++) {
    const bool share = !strncmp(number[i].name, "acc", 3);
    say(share ? ", %s %.2f %%" : ", %s %.4f", number[i].name, share ? 100 * number[i].x : number[i].x);
  }
  say(", %.1f s, %.0f tokens/s\n", e->seconds, (double)e->tokens / e->seconds);
  if (!log->metrics) return;
  fprintf(log->metrics, "{\"kind\":\"eval_file\"");
  json_words(log->metrics, "file", e->path);
  fprintf(log->metrics, ",\"task\":\"%s\",\"style\":\"%s\",\"texts\":%lld,\"tokens\":%lld", e->task,
          e->llmc ? "llmc" : "harness", (long long)e->texts, (long long)e->tokens);
  for (int i = 0; i < EVAL_NUMBERS && number[i].name; i++) json_number(log->metrics, number[i].name, number[i].x);
  json_number(log->metrics, "seconds", e->seconds);
  fprintf(log->metrics, "}\n");
  log_flush(log, e->run);
}

void log_best(Log *log, const RunView *run, int64_t step, const char *path) {
  say("best so far: %s\n", path);
  if (!log->metrics) return;
  fprintf(log->metrics, "{\"kind\":\"best\",\"step\":%lld,\"path\":", (long long)step);
  json_text(log->metrics, path);
  fprintf(log->metrics, "}\n");
  log_flush(log, run);
}
void log_checkpoint(Log *log, const RunView *run, const SaveReport *s) {
  if (fsdp_rank(run->fsdp)) return;
  const bool ok = !s->error[0];
  if (ok)
    say("checkpoint: %s%s, %.1f MB in %.2f s, training paused %.2f s\n", s->path, s->best ? " (best)" : "",
           (double)s->bytes * 1e-6, s->ms * 1e-3, s->pause_ms * 1e-3);
  else say_error("warning: the checkpoint of step %lld was not written: %s\n", (long long)s->step, s->error);
  if (!log->metrics) return;
  fprintf(log->metrics, "{\"kind\":\"checkpoint\",\"step\":%lld,\"ok\":%s,\"best\":%s,\"bytes\":%lld,\"pause_ms\":%.3f,"
          "\"ms\":%.3f,\"path\":", (long long)s->step, ok ? "true" : "false", s->best ? "true" : "false",
          (long long)s->bytes, s->pause_ms, s->ms);
  json_text(log->metrics, s->path);
  json_words(log->metrics, "error", s->error);
  fprintf(log->metrics, "}\n");
  log_flush(log, run);
}

// The parts of a step whose communication is exposed longest, by stage; all of them with --verbose.
static void log_trace_stages(const RunView *run, const TraceFound *x) {
  enum { ROWS = 3 };
  const int stages = run->trace->stages, rows = run->opt->verbose ? stages : (int)min64(ROWS, stages);
  bool *shown = (bool *)calloc((size_t)stages, sizeof(bool));
  for (int row = 0; row < rows; row++) {
    int most = -1;
    double most_ms = 0;
    for (int s = 0; s < stages; s++) {
      const double *p = &x->exposed_ms[EXPOSED_PARTS * s], ms = p[EXPOSED_GATHER] + p[EXPOSED_WAIT] + p[EXPOSED_SUMS];
      const bool next = run->opt->verbose ? s == row : !shown[s] && ms > most_ms;
      if (next) most = s, most_ms = ms;
    }
    if (most < 0) break;
    const double *p = &x->exposed_ms[EXPOSED_PARTS * most];
    char name[32];
    trace_stage_text(name, sizeof name, most);
    shown[most] = true;
    say("  %-20s %8.3f ms  %5.1f %%  gathers %.3f, waits for reductions %.3f, sums %.3f\n", name, most_ms,
        100 * most_ms / x->step_ms, p[EXPOSED_GATHER], p[EXPOSED_WAIT], p[EXPOSED_SUMS]);
  }
  free(shown);
}
void log_steps_end(Log *log, const RunView *run) { log_trace(log, run); }
void log_save_pause(const RunView *run, int64_t begin_ns) { trace_told(run->trace, TOLD_SAVE, begin_ns); }
void log_not_finite(Log *log, const RunView *run, bool left_out, const char *members) {
  log->not_finite++;
  if (!log->metrics) return;
  fprintf(log->metrics, "{\"kind\":\"not_finite\",\"step\":%lld,\"left_out\":%s,%s}\n", (long long)run->step,
          left_out ? "true" : "false", members);
  log_flush(log, run);
}
// Ends a trace, if there is one, and reports what communication is exposed. All ranks call it.
static void log_trace(Log *log, const RunView *run) {
  TraceFound x = {};
  Error error = {};
  if (!trace_finish(run->trace, run->ctx, run->fsdp, &x, &error) || fsdp_rank(run->fsdp)) return;
  if (error.text[0]) say_error("warning: the trace is lost: %s\n", error.text);
  else
    say("trace: %s, steps %lld to %lld; open it in ui.perfetto.dev or chrome://tracing\n", run->trace->path,
        (long long)x.first_step, (long long)x.last_step);
  if (x.dropped) say_error("warning: the trace lacks %lld events, for which there was no room\n", (long long)x.dropped);
  say("exposed communication: %.3f ms of a step of %.3f ms, %.1f %%\n", x.total_ms, x.step_ms,
      100 * x.total_ms / x.step_ms);
  log_trace_stages(run, &x);
  if (!log->metrics) return;
  FILE *f = log->metrics;
  fprintf(f, "{\"kind\":\"trace\"");
  json_words(f, "file", run->trace->path);
  fprintf(f, ",\"first_step\":%lld,\"last_step\":%lld,\"events\":%lld,\"dropped\":%lld", (long long)x.first_step,
          (long long)x.last_step, (long long)x.events, (long long)x.dropped);
  json_number(f, "clocks_within_us", x.within_us);
  json_number(f, "step_ms", x.step_ms);
  json_number(f, "exposed_ms", x.total_ms);
  json_number(f, "exposed_percent", 100 * x.total_ms / x.step_ms);
  for (int i = 0; i < TRACE_COMMONS; i++) {
    char key[48];
    snprintf(key, sizeof key, "%s_ms", trace_common_words[i]);
    json_number(f, key, x.common_ms[i]);
  }
  fprintf(f, ",\"stages\":[");
  for (int s = 0; s < run->trace->stages; s++) {
    const double *p = &x.exposed_ms[EXPOSED_PARTS * s];
    fprintf(f, "%s{\"stage\":%d", s ? "," : "", s);
    json_number(f, "gather_ms", p[EXPOSED_GATHER]);
    json_number(f, "wait_ms", p[EXPOSED_WAIT]);
    json_number(f, "sums_ms", p[EXPOSED_SUMS]);
    json_number(f, "percent", 100 * (p[EXPOSED_GATHER] + p[EXPOSED_WAIT] + p[EXPOSED_SUMS]) / x.step_ms);
    fprintf(f, "}");
  }
  fprintf(f, "]}\n");
  log_flush(log, run);
}

// The last record: why the run ended ("done", "signal", "saved", "not finite", "not saved") and after how many steps.
static void log_last_record(Log *log, const RunView *run, const char *reason) {
  fprintf(log->metrics, "{\"kind\":\"end\",\"reason\":\"%s\",\"step\":%lld,\"ms\":%.3f", reason, (long long)run->step,
          now_ms() - log->start_ms);
  if (log->skipped) fprintf(log->metrics, ",\"skipped_steps\":%lld", (long long)log->skipped);
  if (log->not_finite) fprintf(log->metrics, ",\"not_finite_steps\":%lld", (long long)log->not_finite);
  if (const size_t taken = run_device_bytes(run)) fprintf(log->metrics, ",\"device_bytes\":%zu", taken);
  fprintf(log->metrics, "}\n");
  log_flush(log, run);
  log_page(log, true);
  log->page_said = log->page ? ", report.html" : NULL;
  if (log->page) report_live_close(log->page);
  free(log->page);
  log->page = NULL;
  if (log->metrics) fclose(log->metrics);
  log->metrics = NULL;
}
// Prints how many steps made no update: a user who reads only the end must not take the run for a good one.
static void log_left_out(const Log *log) {
  const long long of_scale = (long long)(log->skipped - log->not_finite);
  char scale[80] = "", finite[40] = "";
  if (log->not_finite) snprintf(finite, sizeof finite, "%lld not finite", (long long)log->not_finite);
  if (of_scale) snprintf(scale, sizeof scale, "%lld overflow%s of fp16, for which the loss scale fell", of_scale,
                         of_scale > 1 ? "s" : "");
  say("warning: %lld of %lld steps left out, without an update: %s%s%s\n", (long long)log->skipped,
      (long long)log->steps, finite, finite[0] && scale[0] ? ", " : "", scale);
}
void log_close(Log *log, const RunView *run, const char *reason) {
  tensorboard_close(&log->board);
  log->page_said = log->page ? ", report.html (incomplete)" : NULL;
  if (log->metrics) log_last_record(log, run, reason);
  if (log->skipped > !strcmp(reason, "not finite")) log_left_out(log);         // a run that one such step ends says so
}
void log_end(Log *log, const RunView *run, bool saved, const char *sampled) {
  const Options *o = run->opt;
  const bool trained = run_trains(o), tokenizer = run->corpus->has_tokenizer && trained;
  const size_t taken = run_device_bytes(run);
  if (taken && !fsdp_rank(run->fsdp))
    say("GPU memory: %.1f MiB planned, %.1f MiB taken in all (with NCCL's and CUDA's own)\n",
           (double)memory_planned_total(&run->plan, MEMORY_ON_DEVICE) / 0x1p20, (double)taken / 0x1p20);
  log_close(log, run, saved ? "done" : "not saved");
  if (!fsdp_rank(run->fsdp))
    say("files: %s/metrics.jsonl%s%s%s%s%s%s\n", o->out, log->lost ? " (incomplete)" : "",
        log->page_said ? log->page_said : "", trained ? ", options.txt" : "", tokenizer ? ", tokenizer.json" : "",
        sampled ? ", " : "", sampled ? sampled : "");
}
