// saver.h: when and how a run saves: checkpoints, at once or in the background; weights alone; an export for Hugging
// Face.
#pragma once
#include "base/newfile/newfile.h"
#include "run.h"

// What outlives a save, and the save in flight. Rank 0 has all of it; the other ranks what they need to take part.
// directory: OUT/ckpt; temporary: where the save in flight writes; name: step_N, which it gets when it is whole.
struct Saver {
  RunView *run;
  char directory[MAP_PATH_BYTES], temporary[MAP_PATH_BYTES], name[32], whole_path[MAP_PATH_BYTES];   // of saved_step
  bool continues;                                // this run was resumed from OUT/ckpt: checkpoints there are its own
  bool opened;                                   // the directory is made, and has no checkpoints of other runs
  bool best;                                     // the save has the lowest validation loss so far, as far as is known
  bool pending;                                  // a save has started and its end is not reported yet
  bool whole;                                    // the last save made a whole checkpoint, or there was none
  bool pruned;                                   // rank 0: older checkpoints were removed
  int64_t serial, in_flight_step, bytes;         // bytes: of the save's files
  int64_t saved_step, evaluated_step;            // of the newest whole one, and of the last validation; -1: none
  double best_loss, valid_loss;                  // lowest validation loss so far; the last one. INFINITY: none yet
  double best_before;                            // best_loss before it was lowered last
  CheckpointQuality note;                        // validated after its save started: to be written into that checkpoint
  double start_ms, pause_ms;
  char *head, *tokenizer, *header[CHECKPOINT_FILES];             // texts of the save in flight
  size_t head_bytes, tokenizer_bytes;
  uint64_t tokenizer_hash;
};
// The dtype of exported weights.
static inline Dtype export_dtype(const Options *o) { return o->export_dtype == OPT_export_dtype_bf16 ? BF16 : F32; }

// Rank 0's progress stands for all ranks, because shares are equal. If a launcher is about to kill its ranks, the save
// is cancelled, so that the run can end in order.
static void log_save_progress(void *to) {
  const RunView *run = (const RunView *)to;
  int64_t done, total;
  if (under_mpirun && stop_asked == STOP_END) store_cancel(run->store);
  store_progress(run->store, &done, &total);
  if (!fsdp_rank(run->fsdp)) show_progress("saving", done * fsdp_world(run->fsdp), total * fsdp_world(run->fsdp));
}
static Saved saved_of(RunView *run) {
  const Options *o = run->opt;
  const ModelShape shape = shape_of(o);
  const int heads = shape_is_gpt2(&shape) ? run->model.H : 0;
  return Saved{run->fsdp, run->store, run->ctx, run->corpus, heads, &run->step, run->steps_total,
               run->steps_per_epoch, o->global_batch, o->vocab_size_asked, o->gpu_head_chunk_bytes, &run->loss_scale,
               o->loss_scale != 0, option_word(o, OPT_buffer_dtype), run->device.words, PROGRAM_VERSION, build_id,
               run->state, run->state_on_device, log_config, o,
               fsdp_has_adapters(run->fsdp) ? SAVED_ADAPTERS : SAVED_ALL, run->published,
               strcmp(o->chat_template, "auto") ? run->chat : NULL, run->base_hash, run->reference_hash,
               run->algorithms};
}

// ---- checkpoints ----------------------------------------------------------------------------------------------------
// Rank 0, before anything is allocated: whether OUT/ckpt can be written if it is there, and that --export_hf does not
// overwrite a checkpoint. One line in `error`.
static bool saver_check(const Options *o, Error *error) {
  char ckpt[MAP_PATH_BYTES], above[MAP_PATH_BYTES], damaged[1024];
  struct stat st;
  path_join(ckpt, sizeof ckpt, o->out, "ckpt");
  const bool there = !lstat(ckpt, &st), saves = run_trains(o) && o->save_every >= 0;
  REJECT(saves && there && (stat(ckpt, &st) || !S_ISDIR(st.st_mode) || access(ckpt, R_OK | W_OK | X_OK)), "%.900s "
         "cannot be written: %s; checkpoints go there (--save_every -1: none)", ckpt, !stat(ckpt, &st) &&
         !S_ISDIR(st.st_mode) ? "it is not a directory" : strerror(errno));
  const ModelShape shape = shape_of(o);
  if (o->export_gguf != OPT_export_gguf_off && !gguf_can(&shape, error)) return false;
  if (!o->export_hf[0]) return true;
  if (!export_can(&shape, error)) return false;
  snprintf(above, sizeof above, "%s", o->export_hf);             // it need not be there yet
  size_t n = strlen(above);
  while (n && above[n - 1] == '/') n--;
  while (n && above[n - 1] != '/') n--;
  snprintf(above + n, sizeof above - n, ".");
  const char *const places[] = {o->export_hf, above};
  for (const char *place : places) {
    int count;
    free(checkpoint_list(place, &count, damaged, sizeof damaged));
    path_join(ckpt, sizeof ckpt, place, "trainer.json");
    REJECT(count || !access(ckpt, F_OK), "--export_hf %.900s would write among checkpoints: give it another directory",
           o->export_hf);
  }
  return true;
}

enum { NO_STEP = -2 };                           // note.evaluated_step: there is no note
// Starts a saver: nothing is saved or validated yet.
static void saver_init(Saver *s, RunView *run) {
  memset(s, 0, sizeof *s);
  s->run = run;
  s->saved_step = s->evaluated_step = -1;
  s->note.evaluated_step = NO_STEP;
  s->whole = true;
  s->best_loss = s->valid_loss = INFINITY;
  path_join(s->directory, sizeof s->directory, run->opt->out, "ckpt");
}

// How many ranks write whose host does not see OUT, and so send their bytes to rank 0. All ranks call it.
static int saver_streaming_ranks(const Saver *s) {
  const Fsdp *f = s->run->fsdp;
  char probe[MAP_PATH_BYTES];
  snprintf(probe, sizeof probe, "%.1200s/.seen_by_all_%llu", s->run->opt->out, file_nonce());
  MPI_Bcast(probe, sizeof probe, MPI_CHAR, 0, fsdp_comm(f));
  const int fd = fsdp_rank(f) ? -1 : file_make(probe, O_WRONLY | O_EXCL, 0666);
  MPI_Barrier(fsdp_comm(f));
  int blind = fsdp_hosts(f) > 1 && !fsdp_replica(f) && access(probe, F_OK), all = 0;
  MPI_Allreduce(&blind, &all, 1, MPI_INT, MPI_SUM, fsdp_comm(f));
  if (fd >= 0) close(fd);
  if (!fsdp_rank(f)) unlink(probe);
  return all;
}
// On rank 0: where checkpoints go and how large each will be. False: none is saved, or not rank 0. All ranks call it.
static bool saver_plan(Saver *s, SavePlan *to) {
  RunView *run = s->run;
  const Saved saved = saved_of(run);
  TensorMap map;
  char *header[CHECKPOINT_FILES];
  *to = SavePlan{s->directory, 0, 0, saver_streaming_ranks(s)};
  if (fsdp_rank(run->fsdp) || !run_trains(run->opt)) return false;
  checkpoint_map(&saved, s->directory, &map, header);
  to->bytes = map.file_bytes[0] + map.file_bytes[1];
  to->own_bytes = store_own_bytes(run->fsdp, &map, STATES_ALL);
  for (char *h : header) free(h);
  tensor_map_free(&map);
  return true;
}

// Rank 0. At every save: removes leftovers of interrupted saves. At the first: makes OUT/ckpt; checkpoints there of an
// earlier run that this run does not continue are moved to OUT/ckpt.N, never mixed with this run's, never removed.
static bool saver_open_directory(Saver *s, StoreRecord *r) {
  char damaged[1024], aside[MAP_PATH_BYTES];
  int count;
  if (s->opened) { directory_sweep(s->directory, checkpoint_leftovers); return true; }
  Listed *list = checkpoint_list(s->directory, &count, damaged, sizeof damaged);
  for (int i = 0; i < count; i++) s->serial = max64(s->serial, list[i].serial);
  free(list);
  if (count && !s->continues) {
    char real[PATH_MAX];
    struct stat st;                              // a link to a larger disk stays a link
    const bool linked = !lstat(s->directory, &st) && S_ISLNK(st.st_mode) && realpath(s->directory, real);
    const char *from = linked ? real : s->directory;
    if (!file_move_aside(from, aside, sizeof aside) || !file_make_directory(from))
      return store_fail(r, "rank 0: cannot move %.300s of an earlier run aside: %s", from, strerror(errno));
    say("warning: %s holds checkpoints of an earlier run; they are now in %s\n", s->directory, aside);
  }
  if (!file_make_directory(s->directory) || !file_sync_directory(s->run->opt->out))
    return store_fail(r, "rank 0: cannot make %s: %s", s->directory, strerror(errno));
  directory_sweep(s->directory, checkpoint_leftovers);
  s->opened = true;
  restarts_ours(s->directory);
  return true;
}

// Writes and syncs a small file of the checkpoint.
static bool saver_put(Saver *s, const char *name, const char *text, size_t bytes, Error *error) {
  char path[MAP_PATH_BYTES];
  path_join(path, sizeof path, s->temporary, name);
  const int fd = file_create(path, s->temporary);
  bool ok = fd >= 0 && file_write(fd, path, text, (int64_t)bytes, 0) && file_sync(fd, path);
  if (fd >= 0 && close(fd)) ok = false;
  REJECT(!ok, "cannot write %s: %s", path, strerror(errno));
  return true;
}
// trainer.json: its head from the start of the save, its tail with the checksums, its seal.
static bool saver_put_trainer_json(Saver *s, const TensorMap *map, const uint32_t *checksums, Error *error) {
  char *text = NULL;
  size_t bytes = 0, sealed_bytes;
  FILE *f = open_memstream(&text, &bytes);
  fwrite(s->head, 1, s->head_bytes, f);
  checkpoint_write_tail(f, map, checksums, s->tokenizer, (int64_t)s->tokenizer_bytes, s->tokenizer_hash);
  fclose(f);
  char *sealed = checkpoint_sealed(text, bytes, &sealed_bytes);
  const bool ok = saver_put(s, "trainer.json", sealed, sealed_bytes, error);
  free(text);
  free(sealed);
  return ok;
}
// Renames the finished checkpoint from s->temporary to `final`, durably. If a checkpoint of that step is there already,
// the two are exchanged atomically. If the file system cannot do that, the new one first gets the step's name with more
// zeros, which readers accept too: at every instant a whole checkpoint has a name. False: all names are as before.
static bool saver_name(Saver *s, const char *final) {
  char name[MAP_PATH_BYTES], longer[32];
  const bool there = !access(final, F_OK), exchanged = there && file_exchange(s->temporary, final);
  if (there && !exchanged && errno != EINVAL && errno != ENOSYS && errno != EXDEV) return false;
  snprintf(name, sizeof name, "%s", final);
  for (int digits = 9; !exchanged && !access(name, F_OK); digits++) {
    if (digits > 20) { errno = EEXIST; return false; }
    snprintf(longer, sizeof longer, "step_%0*lld", digits, (long long)s->in_flight_step);
    path_join(name, sizeof name, s->directory, longer);
  }
  if (!exchanged && !file_rename(s->temporary, name)) return false;
  if (!file_sync_directory(s->directory)) {
    const int fault = errno;                     // a save reported as failed must not be found
    if (exchanged) file_exchange(s->temporary, final);
    else file_rename(name, s->temporary);
    errno = fault;
    return false;
  }
  if (exchanged) file_remove(s->temporary);
  else if (there && checkpoint_remove(s->directory, s->name) && file_rename(name, final))
    file_sync_directory(s->directory);
  return true;
}
// Rank 0, when all tensors are on the disk: the small files, the name, the links; then removes old checkpoints.
static bool saver_commit(void *to, const TensorMap *map, const uint32_t *checksums, Error *error) {
  Saver *s = (Saver *)to;
  char final[MAP_PATH_BYTES];
  path_join(final, sizeof final, s->directory, s->name);
  if (s->tokenizer && !saver_put(s, "tokenizer.json", s->tokenizer, s->tokenizer_bytes, error))
    return false;
  if (!saver_put_trainer_json(s, map, checksums, error)) return false;
  REJECT(!file_sync_directory(s->temporary), "cannot write %s: %s", s->temporary, strerror(errno));
  REJECT(!saver_name(s, final), "cannot rename %s to %s: %s", s->temporary, final, strerror(errno));
  s->pruned = checkpoint_prune(s->directory, s->run->opt->keep, s->run->opt->keep_best);
  return true;
}
static void saver_discard(void *to) { file_remove(((Saver *)to)->temporary); }

static void saver_free_texts(Saver *s) {
  for (char *&h : s->header) { free(h); h = NULL; }
  free(s->head);
  free(s->tokenizer);
  s->head = s->tokenizer = NULL;
}
// Starts a checkpoint of the state after the last step. All ranks call it. False on every rank, with the reason in
// store_result(run->store), when it cannot even begin. best: it has the lowest validation loss so far.
static bool saver_begin(Saver *s, bool background, bool best) {
  RunView *run = s->run;
  StoreRecord *r = store_result(run->store);
  const Saved saved = saved_of(run);
  TensorMap map;
  liveness_phase("saving");
  s->start_ms = now_ms();
  s->best = best;
  s->in_flight_step = run->step;
  snprintf(s->name, sizeof s->name, "step_%08lld", (long long)run->step);
  memset(r, 0, sizeof *r);
  if (!fsdp_rank(run->fsdp)) {
    char hidden[64];
    snprintf(hidden, sizeof hidden, ".saving_%08lld_%llu", (long long)run->step, file_nonce());
    path_join(s->temporary, sizeof s->temporary, s->directory, hidden);
    if (saver_open_directory(s, r) && !file_make_directory(s->temporary))
      store_fail(r, "rank 0: cannot make %s: %s", s->temporary, strerror(errno));
    s->serial++;
    FILE *f = open_memstream(&s->head, &s->head_bytes);
    checkpoint_write_head(f, &saved, s->serial,
                          CheckpointQuality{s->valid_loss, s->best_loss, s->evaluated_step, best});
    fclose(f);
    if (run->corpus->has_tokenizer) {
      s->tokenizer = tokenizer_text(&run->corpus->tokenizer, &s->tokenizer_bytes);
      s->tokenizer_hash = tokenizer_hash(&run->corpus->tokenizer);
    }
  }
  MPI_Bcast(r, sizeof *r, MPI_BYTE, 0, fsdp_comm(run->fsdp));
  MPI_Bcast(s->temporary, sizeof s->temporary, MPI_CHAR, 0, fsdp_comm(run->fsdp));
  if (r->failed) { saver_free_texts(s); return false; }
  checkpoint_map(&saved, s->temporary, &map, s->header);
  s->bytes = map.file_bytes[0] + map.file_bytes[1];
  const bool begun = store_save_begin(run->store, &map, StoreRequest{STATES_ALL, background, true,
                                      {s->header[0], s->header[1]}, {saver_commit, saver_discard, s}});
  if (!begun) saver_free_texts(s);
  s->pause_ms = background ? now_ms() - s->start_ms : 0;
  return begun;
}
// Rank 0, no save in flight: removes leftovers, sets the links, and removes checkpoints beyond --keep and --keep_best:
// a run that was killed may not have done this. A run that resumed from an older checkpoint removes none of the newer
// ones before it has saved.
static void saver_tidy(Saver *s) {
  char damaged[1024];
  int count;
  directory_sweep(s->directory, checkpoint_leftovers);
  Listed *list = checkpoint_list(s->directory, &count, damaged, sizeof damaged);
  const bool newest = count && !strcmp(list[0].name, path_base(s->whole_path));
  checkpoint_prune(s->directory, newest ? s->run->opt->keep : 0, s->run->opt->keep_best);
  free(list);
}
// Writes s->note into the newest checkpoint, unless that is still in flight. A note that cannot be written is tried
// again before the next save, which without the note could remove the best checkpoint.
static void saver_note(Saver *s, Log *log) {
  Error error = {};
  if (fsdp_rank(s->run->fsdp) || s->pending || s->note.evaluated_step != s->saved_step) return;
  if (s->note.best && !s->best) log_best(log, s->run, s->saved_step, s->whole_path);   // first: a kill may repeat it
  if (!checkpoint_note(s->whole_path, s->note, &error)) {
    say_error("warning: %s; a run that is resumed there evaluates its step again\n", error.text);
    return;
  }
  if (s->note.best) saver_tidy(s);
  s->note.evaluated_step = NO_STEP;
}
// Reports how the last save ended. Returns whether its checkpoint is whole; the same on every rank.
static bool saver_report(Saver *s, Log *log) {
  const StoreRecord *r = store_result(s->run->store);
  char path[MAP_PATH_BYTES], last[64] = "there is none yet";
  Error error = {};
  path_join(path, sizeof path, s->directory, s->name);
  if (s->saved_step >= 0) snprintf(last, sizeof last, "the last whole one is step %lld", (long long)s->saved_step);
  const bool named = !strncmp(r->error, "rank ", 5);             // else the error is rank 0's, in names
  if (r->failed) fail(&error, "%s%s; %s", named ? "" : "rank 0: ", r->error, last);
  const double ms = fmax(0, store_ended_ms(s->run->store) - s->start_ms), pause_ms = s->pause_ms > 0 ? s->pause_ms : ms;
  s->pending = false;
  if (!r->failed) {
    s->saved_step = s->in_flight_step;
    snprintf(s->whole_path, sizeof s->whole_path, "%s", path);
    restarts_saved(s->saved_step);
  } else {
    if (s->best && s->run->opt->keep_best) s->best_loss = s->best_before;
    s->best = false;
  }
  const SaveReport report = {s->in_flight_step, r->failed ? 0 : s->bytes, pause_ms, ms, s->best, path, error.text};
  log_checkpoint(log, s->run, &report);
  if (!r->failed && !s->pruned && !fsdp_rank(s->run->fsdp))
    say_error("warning: checkpoints beyond --keep %lld could not be removed from %s\n",
            (long long)s->run->opt->keep, s->directory);
  saver_free_texts(s);
  saver_note(s, log);
  return !r->failed;
}
// Reports a save in the background that has ended. Called after every step.
static void saver_poll(Saver *s, Log *log) {
  if (s->pending && store_poll(s->run->store)) s->whole = saver_report(s, log);
}
// Waits for the save in flight, if there is one. Returns whether the last one made a whole checkpoint.
static bool saver_finish(Saver *s, Log *log) {
  if (!s->pending) return s->whole;
  liveness_phase("saving");
  store_wait(s->run->store, log_save_progress, s->run);
  return s->whole = saver_report(s, log);
}
// Ends the save in flight without a checkpoint: there is no time to finish it.
static void saver_give_up(Saver *s) {
  if (!s->pending) return;
  store_cancel(s->run->store);
  store_wait(s->run->store, NULL, NULL);
  saver_free_texts(s);
  s->pending = false;
}
// Saves a checkpoint of the state after the last step: at once, or in the background. Waits for a save that is still in
// flight. A failure is reported, and training continues. All ranks call it.
static bool saver_save(Saver *s, Log *log, bool background, bool best) {
  const int64_t began = now_ns();
  saver_finish(s, log);
  saver_note(s, log);
  s->pending = true;
  const bool begun = saver_begin(s, background, best);
  if (!begun) s->whole = saver_report(s, log);
  else if (!background) saver_finish(s, log);
  log_save_pause(s->run, began);
  return begun && background ? true : s->whole;
}
// Saves a checkpoint at once, unless the newest one is of this step already. Returns whether there is a whole one.
static bool saver_save_now(Saver *s, Log *log) {
  if (saver_finish(s, log) && s->saved_step == s->run->step) return true;
  return saver_save(s, log, false, false);
}
// The last line of a run that a signal has ended, on rank 0.
static void saver_print_stop(const Saver *s) {
  if (fsdp_rank(s->run->fsdp)) return;
  say("stopped by signal after step %lld; ", (long long)s->run->step);
  if (s->saved_step < 0) say("there is no checkpoint\n");
  else say("--resume auto continues from step %lld\n", (long long)s->saved_step);
}
// Whether the last step has a checkpoint, or one in flight.
static bool saver_has(const Saver *s) { return s->run->step == (s->pending ? s->in_flight_step : s->saved_step); }
// Records the validation loss of the state after the last step, also in its checkpoint once that is whole. Returns
// whether it is the lowest so far; with --keep_best, of those whose checkpoint was saved. All ranks call it.
static bool saver_see(Saver *s, Log *log, double loss) {
  if (s->run->opt->keep_best && !saver_has(s)) saver_finish(s, log);           // was the best so far saved?
  const bool lost = s->run->opt->keep_best && !saver_has(s) && s->in_flight_step == s->run->step;        // it failed
  const bool best = loss < s->best_loss && !lost;
  s->valid_loss = loss;
  s->evaluated_step = s->run->step;
  if (best) s->best_before = s->best_loss, s->best_loss = loss;
  if (!saver_has(s)) return best;
  s->note = CheckpointQuality{loss, s->best_loss, s->evaluated_step, best};
  saver_note(s, log);
  s->best = best;                                // logged by saver_note, or when the save is reported
  return best;
}

// ---- weights alone, export ------------------------------------------------------------------------------------------
// Weights alone, with --merge what the adapters change in them too, in fp32, as one safetensors file that appears whole
// or not at all. `map` has the final path and is taken over; header: malloc'ed, freed here; both rank 0's. All ranks
// call it. Every rank returns the same; the reason is in store_result.
struct WeightsFile { char temporary[MAP_PATH_BYTES], path[MAP_PATH_BYTES], directory[MAP_PATH_BYTES]; };
static bool weights_commit(void *to, const TensorMap *, const uint32_t *, Error *error) {
  WeightsFile *w = (WeightsFile *)to;
  REJECT(!file_rename(w->temporary, w->path) || !file_sync_directory(w->directory), "cannot rename %s to %s: %s",
         w->temporary, w->path, strerror(errno));
  return true;
}
static void weights_discard(void *to) { file_remove(((WeightsFile *)to)->temporary); }
static bool save_weights(RunView *run, TensorMap *map, char *header) {
  const ModelShape shape = shape_of(run->opt);
  WeightsFile w = {};
  liveness_phase("saving");
  tensor_map_share(map, fsdp_comm(run->fsdp));
  snprintf(w.path, sizeof w.path, "%s", map->path[0]);
  snprintf(w.directory, sizeof w.directory, "%s", map->path[0]);
  *strrchr(w.directory, '/') = 0;
  unsigned long long nonce = file_nonce();
  MPI_Bcast(&nonce, 1, MPI_UNSIGNED_LONG_LONG, 0, fsdp_comm(run->fsdp));
  if (!fsdp_rank(run->fsdp)) directory_sweep(w.directory, weights_leftovers);
  snprintf(w.temporary, sizeof w.temporary, "%.1255s.tmp%llu", w.path, nonce);
  snprintf(map->path[0], MAP_PATH_BYTES, "%s", w.temporary);
  const bool begun = store_save_begin(run->store, map, StoreRequest{STATES_WEIGHTS, false, false, {header, NULL},
                                                                   {weights_commit, weights_discard, &w},
                                                                   run->opt->merge ? &shape : NULL});
  if (begun) store_wait(run->store, log_save_progress, run);
  free(header);
  const StoreRecord *r = store_result(run->store);
  if (!fsdp_rank(run->fsdp) && r->failed) say_error("%s: %s\n", who_am_i, r->error);
  return !r->failed;
}
// OUT/NAME: the same bytes as a checkpoint's, or the merged model with --merge. All ranks call it.
static bool save_weights_as(RunView *run, const char *name) {
  Saved saved = saved_of(run);
  if (run->opt->merge) saved.part = SAVED_BASE;
  TensorMap map;
  char *header[CHECKPOINT_FILES];
  checkpoint_map(&saved, run->opt->out, &map, header);
  path_join(map.path[0], sizeof map.path[0], run->opt->out, name);
  map.files = 1;
  free(header[1]);
  if (fsdp_rank(run->fsdp)) tensor_map_free(&map);
  return save_weights(run, &map, header[0]);
}
// Writes the weights alone.
static bool save_model(RunView *run) {
  const bool written = save_weights_as(run, "model.safetensors");
  if (written && !fsdp_rank(run->fsdp)) say("weights: %s/model.safetensors\n", run->opt->out);
  return written;
}

// What an export has besides weights: tokenizer, chat template, texts of the published model. Points into `chat`.
static ExportTexts export_texts_of(RunView *run, ChatOptions *chat) {
  const bool chats = run->chat && strcmp(run->opt->chat_template, "auto");
  *chat = chat_options(run->opt, run->chat, "");
  return ExportTexts{run->corpus->has_tokenizer ? &run->corpus->tokenizer : NULL, chats ? chat : NULL, run->published,
                     PROGRAM_VERSION};
}
int run_ends(RunView *run, int32_t *ids, int most) {
  ChatOptions chat;
  const ExportTexts texts = export_texts_of(run, &chat);
  return export_ends(&texts, ids, most);
}
// Writes DIR for transformers: AutoModelForCausalLM and AutoTokenizer open it. Every rank writes its own part of the
// weights, transposed as Conv1D stores them. All ranks call it. Every rank returns the same.
static bool export_hf(RunView *run, const char *directory) {
  const Fsdp *f = run->fsdp;
  const bool adapters = fsdp_has_adapters(f) && !run->opt->merge;
  TensorMap map = {};
  const ModelShape shape = shape_of(run->opt);
  char *header = NULL;
  Error error = {};
  int ok = 1;
  if (!fsdp_rank(f) && adapters)
    lora_export_map(&map, directory, fsdp_param(f, 0), fsdp_params(f), &shape, run->base_hash, &header);
  else if (!fsdp_rank(f))
    ok = export_map(&map, directory, fsdp_param(f, 0), fsdp_params(f), &shape, export_dtype(run->opt), &header, &error);
  MPI_Bcast(&ok, 1, MPI_INT, 0, fsdp_comm(f));
  if (ok && !save_weights(run, &map, header)) return false;
  ChatOptions chat;
  const ExportTexts texts = export_texts_of(run, &chat);
  if (ok && !fsdp_rank(f))
    ok = export_texts(directory, &shape, export_dtype(run->opt), &texts, adapters ? run->opt->init_from : NULL, &error);
  MPI_Bcast(&ok, 1, MPI_INT, 0, fsdp_comm(f));
  if (!fsdp_rank(f) && !ok) say_error("%s: --export_hf: %s\n", who_am_i, error.text);
  if (!fsdp_rank(f) && ok) say("exported: %s%s\n", adapters ? "the adapter in " : "", directory);
  return ok;
}
// OUT/model.gguf for llama.cpp, or OUT/adapter.gguf, which rank 0 writes from a file of fp32 weights that all ranks
// write, and removes. All ranks call it. Every rank returns the same.
static bool export_gguf(RunView *run) {
  static const char weights_name[] = "model.gguf.fp32";
  const Fsdp *f = run->fsdp;
  char path[MAP_PATH_BYTES], weights[MAP_PATH_BYTES];
  Error error = {};
  ModelShape shape = shape_of(run->opt);
  if (!save_weights_as(run, weights_name)) return false;
  if (run->opt->merge) shape.lora = Lora{};      // adapters are merged into the weights
  path_join(path, sizeof path, run->opt->out, shape.lora.rank ? "adapter.gguf" : "model.gguf");
  path_join(weights, sizeof weights, run->opt->out, weights_name);
  int ok = 1;
  if (!fsdp_rank(f)) {
    ChatOptions chat;
    const ExportTexts texts = export_texts_of(run, &chat);
    ok = gguf_write(path, weights, run->opt->trainer->params, &shape, &texts,
                    run->opt->export_gguf == OPT_export_gguf_adapter
                        ? GGUF_F16 : (GgufType)(run->opt->export_gguf - OPT_export_gguf_f32), &error);
    file_remove(weights);
    if (!ok) say_error("%s: --export_gguf: %s\n", who_am_i, error.text);
    else say("exported: %s\n", path);
  }
  MPI_Bcast(&ok, 1, MPI_INT, 0, fsdp_comm(f));
  return ok;
}
