// life.h: the life of a run, from its command line to its exit code.
#pragma once
#include "call.h"
#include "not_finite.h"

struct Run {
  RunView *view;                                 // NULL before run_ready
  Options *opt, asked;                           // complete; as they were asked for
  Start start;
  Corpus corpus;
  Cores cores;
  Saver *saver, own_saver;
  Log *log;
};

Run *run_begin(Call *call, RunStart *to) {
  static Run all;
  Run *r = &all;
  MPI_Comm node;
  Options *o = r->opt = &call->o;
  r->saver = &r->own_saver;
  train_options(call, &r->asked, &r->start);
  preflight(o, true);
  to->rank = comm_rank(MPI_COMM_WORLD), to->ranks = comm_size(MPI_COMM_WORLD);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, to->rank, MPI_INFO_NULL, &node);
  liveness_phase("looking for devices");
  to->device = agree_on_device(o, MPI_COMM_WORLD, node);
  cores_take(&r->cores, (int)o->threads, !to->device.ops->nccl, node, MPI_COMM_WORLD);
  MPI_Comm_free(&node);
  liveness_phase("reading the corpus");
  load_corpus(&r->corpus, o, &r->start, MPI_COMM_WORLD, r->cores.share.threads);
  to->asked = &r->asked, to->corpus = &r->corpus, to->threads = r->cores.share.threads;
  to->chat = r->start.chat, to->chat_why = r->start.chat_why.text;
  return r;
}
void run_check(Run *r, Error *error) {
  const Options *o = r->opt;
  if (!error->text[0]) start_check(&r->start, o, &r->corpus, error);
  const Split *chats = &r->corpus.split[SPLIT_TRAIN];
  const int rank = comm_rank(MPI_COMM_WORLD);
  if (!rank && !error->text[0] && o->show_chats && !(chats->documents && r->corpus.has_tokenizer))
    fail(error, "--show_chats needs conversations that are packed whole; this is %.900s", r->corpus.source);
  agree_no_error(MPI_COMM_WORLD, error->text, EXIT_USAGE);
}
void run_trace_check(Run *r, RunView *view) {
  Error error = {};
  r->view = view;
  view->cores = &r->cores, view->crowded = cores_are_crowded(&r->cores);
  view->name = start_model_name(&r->start, r->opt), view->published = start_published(&r->start);
  view->chat = r->start.chat;
  trace_check(view, start_step(&r->start, r->opt), &error);
  agree_no_error(MPI_COMM_WORLD, error.text, EXIT_USAGE);
}
void run_ready(Run *r) {
  RunView *view = r->view;
  SavePlan saves;
  saver_init(r->saver, view);
  const bool plans = saver_plan(r->saver, &saves);
  report_start(view, plans ? &saves : NULL);
  liveness_phase("loading");
  start_load(&r->start, view, r->saver);
  if (r->start.kind != START_FRESH) start_check_finite(&r->start, view);
  catch_stop_signals(run_trains(r->opt));
  r->log = view->log = open_files(view, &r->start);
  const bool first = !fsdp_rank(view->fsdp);
  if (first && run_trains(r->opt))
    options_save(&r->asked, r->opt, fsdp_world(view->fsdp), r->start.resume ? r->start.path : "");
  report_old_runs(view, r->start.path);
}
const char *run_algorithms(const Run *r) { return start_algorithms(&r->start); }
const char *run_goes_on(const Run *r, uint64_t *reference) {
  if (!r->start.resume) return NULL;
  json_hex(cJSON_GetObjectItemCaseSensitive(r->start.json, "reference"), "hash", reference);
  return r->start.path;
}

// ---- steps ----------------------------------------------------------------------------------------------------------
void run_step_begin(Run *r) { log_step_begin(r->log, r->view); }
void run_step(Run *r, const StepResult *s) {
  log_step(r->log, r->view, s);
  saver_poll(r->saver, r->log);
}
void run_steps_end(Run *r) { log_steps_end(r->log, r->view); }
void run_evaluation(Run *r, int split, const EvalResult *e, int64_t begin_ns) {
  log_eval(r->log, r->view, split, e, begin_ns);
}
bool run_is_validated(const Run *r) { return r->saver->evaluated_step == r->view->step; }
void run_validation(Run *r, double loss) {
  const Options *o = r->view->opt;
  if (saver_see(r->saver, r->log, loss) && o->keep_best && !saver_has(r->saver))
    saver_save(r->saver, r->log, o->save_async, true);
}
void run_save(Run *r) { saver_save(r->saver, r->log, r->view->opt->save_async, false); }

// ---- ends -----------------------------------------------------------------------------------------------------------
int run_not_finite(Run *r, const NotFiniteStep *step, const StepResult *s, bool goes_on) {
  char first[512];
  RunView *view = r->view;
  const bool overflow = option_dtype(view->opt, OPT_buffer_dtype) == F16 && isfinite(s->loss);         // 50 in a row
  const NotFinite found = not_finite_find(step);
  not_finite_text(&found, first, sizeof first);
  not_finite_log(r->log, view, &found, goes_on);
  const char *what = isfinite(s->loss) ? "gradient" : isfinite(s->grad_norm) ? "loss" : "loss and gradient";
  if (goes_on && !fsdp_rank(view->fsdp))
    say_error("warning: step %lld is left out (--on_nan skip), its %s is not finite; first: %s\n",
              (long long)view->step, what, first);
  if (goes_on) return -1;
  if (!fsdp_rank(view->fsdp))
    say_error("%s: the loss or the gradient of step %lld is not finite: lower --lr%s, or raise --warmup\n  first: %s\n",
              who_am_i, (long long)view->step, overflow ? " or --loss_scale" : "", first);
  if (view->opt->on_nan == OPT_on_nan_dump) not_finite_dump(step, r->log, r->saver, &found);
  saver_finish(r->saver, r->log);
  log_close(r->log, view, "not finite");
  log_steps_end(r->log, view);
  return EXIT_NOT_FINITE;
}
int run_stop(Run *r, Stop stop) {
  if (!run_trains(r->view->opt)) {               // there is nothing to save
    log_close(r->log, r->view, "signal");
    if (!fsdp_rank(r->view->fsdp)) say("stopped by signal\n");
    return EXIT_STOPPED;
  }
  if (stop == STOP_END) log_close(r->log, r->view, "signal");          // first: mpirun may leave us little time
  const bool saved = stop == STOP_SAVE ? saver_save_now(r->saver, r->log) : (saver_give_up(r->saver), false);
  if (stop == STOP_SAVE) log_close(r->log, r->view, saved ? "saved" : "not saved");
  saver_print_stop(r->saver);
  return saved ? EXIT_SAVED : stop == STOP_SAVE ? EXIT_MISSING : EXIT_STOPPED;
}
bool run_write(Run *r) {
  const Options *o = r->view->opt;
  bool saved = saver_finish(r->saver, r->log);
  if (o->save_model) saved = save_model(r->view) && saved;
  if (o->export_hf[0]) saved = export_hf(r->view, o->export_hf) && saved;
  if (o->export_gguf != OPT_export_gguf_off) saved = export_gguf(r->view) && saved;
  terminal_last_signal(SIGINT);
  terminal_last_signal(SIGTERM);
  if (signal(SIGHUP, SIG_IGN) != SIG_IGN) terminal_last_signal(SIGHUP);          // nohup: stays ignored
  if (o->interactive) signal(SIGUSR1, SIG_IGN);  // nothing waits to be ended
  return saved;
}
// How to use what a fine-tuning has written: the last checkpoint, or an export.
static void print_use(const RunView *run, const Saver *saver) {
  const Options *o = run->opt;
  const bool saved = saver->saved_step == run->step, adapter = o->lora && !o->merge;
  if ((!o->tuning && !o->lora) || !run_trains(o) || !run->corpus->has_tokenizer) return;
  char *text = NULL;
  size_t bytes = 0;
  FILE *to = open_memstream(&text, &bytes);
  if (saved || o->export_hf[0]) fputs("to talk to it: ./train_gpt_fsdp --interactive", to);
  if (o->export_hf[0] && adapter) fputs(" --init_from", to), shell_word(to, o->init_from), fputs(" --lora_from", to);
  else if (o->export_hf[0]) fputs(" --init_from", to);
  else if (saved) fputs(" --resume", to);
  if (saved || o->export_hf[0]) shell_word(to, o->export_hf[0] ? o->export_hf : o->out), fputc('\n', to);
  if (o->export_gguf != OPT_export_gguf_off)
    fprintf(to, "with llama.cpp: llama-cli -m %s%s%s.gguf\n", adapter ? "BASE.gguf --lora " : "", o->out,
            adapter ? "/adapter" : "/model");
  fclose(to);
  if (bytes) say("%s", text);
  free(text);
}
void run_end(Run *r, bool saved, const char *sampled) {
  catch_stop_signals(run_trains(r->view->opt));  // a file that is being written is finished first
  log_end(r->log, r->view, saved, sampled);
  if (!fsdp_rank(r->view->fsdp) && saved) print_use(r->view, r->saver);
}
int run_close(Run *r, int code) {
  start_free(&r->start);
  corpus_free(&r->corpus);
  cores_give_back(&r->cores);
  leave_even_by_a_crash(code);
  MPI_Finalize();
  liveness_close();
  return code;
}
