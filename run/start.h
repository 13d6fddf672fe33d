// start.h: what a run starts from: its tokens; and either nothing, a checkpoint to resume (--resume), or weights
// (--init_from).
#pragma once
#include "agree.h"
#include "out.h"
#include "saver.h"

enum StartKind { START_FRESH, START_CHECKPOINT, START_IMPORT };
struct Start {
  int32_t kind;                                  // StartKind
  bool resume;                                   // load optimizer and step as well; else only weights
  bool here;                                     // the checkpoint is in this run's OUT/ckpt
  char path[MAP_PATH_BYTES - 64];                // the checkpoint's directory, or the weights
  char tokenizer[MAP_PATH_BYTES];                // the tokenizer beside them, a path on rank 0's host; "": none
  char warnings[2048];                           // lines, each ended by '\n'
  char chat_template[OPTION_TEXT_BYTES];         // what --chat_template becomes; "": none
  Error chat_why;                                // why there is none
  // chat_before: the template, by its name, that an earlier version of this program rendered the checkpoint's chats
  // with, where the checkpoint's own template replaces it; "": none. chat: what renders chats (chat_words_of), rank
  // 0's.
  char chat_before[32], *chat;
  ImportFacts weights;                           // of another program; published: rank 0's
  int64_t text_bytes;                            // of `text`, without its zero
  uint32_t text_checksum;                        // CRC-32C of trainer.json as this rank's host sees it; 0: not there
  char *text;                                    // trainer.json, on every rank
  cJSON *json;                                   // text, parsed; NULL before start_share
  Import *import;                                // these weights, open; rank 0's
  bool quantized;                                // some imported matrices are quantized
  uint8_t types[BASE_MATRICES_MAX];             // of each matrix, as in Options
  // With --lora_from: what its configuration says.
  Lora lora;
  char lora_targets[OPTION_TEXT_BYTES];
  int64_t row_from, row_end;                     // rows [row_from, row_end) of --add_tokens; row_end 0: none
  bool on_base;                                  // the checkpoint has adapters only
  Start *base;                                   // the weights that those adapters are for
};
static void log_load_progress(int64_t done, int64_t total) { show_progress("loading", done, total); }

// Adds a line to s->warnings; a line for which there is too little space is cut or left out.
__attribute__((format(printf, 2, 3))) static void start_warning(Start *s, const char *fmt, ...) {
  const size_t n = strlen(s->warnings), room = sizeof s->warnings;
  if (room - n < 8) return;
  va_list ap;
  va_start(ap, fmt);
  const bool fits = text_add_list(s->warnings, room - 1, fmt, ap);
  va_end(ap);
  if (!fits) memcpy(s->warnings + room - 5, "...", 4);           // cut, but still a line
  strcat(s->warnings, "\n");
}
// Prints warnings, lines that each end in a newline.
static void print_warnings(const char *line) {
  for (const char *end; (end = strchr(line, '\n')); line = end + 1) say("warning: %.*s\n", (int)(end - line), line);
}
// Prints the warnings collected since the last call.
static void start_print_warnings(Start *s) {
  print_warnings(s->warnings);
  s->warnings[0] = 0;
}

// The texts of the published model beside the weights (models.h): from their directory, or from the checkpoint of a run
// that started from them. NULL: none, or not rank 0.
static const cJSON *start_published(const Start *s) {
  if (s->on_base) return start_published(s->base);
  return s->weights.published ? s->weights.published : cJSON_GetObjectItemCaseSensitive(s->json, "published");
}
static bool is_checkpoint(const char *path) {
  char inside[MAP_PATH_BYTES];
  path_join(inside, sizeof inside, path, "trainer.json");
  return !access(inside, F_OK);
}
// Finds the newest whole checkpoint in PATH or PATH/ckpt. Returns how many directories step_* there are; `found` is ""
// if none is whole. A warning says which were skipped.
static int start_newest(Start *s, const char *path, char *found, size_t bytes) {
  char inside[MAP_PATH_BYTES - 64], damaged[1024];
  int count = 0;
  found[0] = 0;
  static const char *const places[] = {"", "/ckpt"};
  for (const char *below : places) {
    snprintf(inside, sizeof inside, "%.1150s%s", path, below);
    Listed *list = checkpoint_list(inside, &count, damaged, sizeof damaged);
    if (count && list[0].serial >= 0) path_join(found, bytes, inside, list[0].name);
    free(list);
    if (!count) continue;
    if (damaged[0]) start_warning(s, "%s is skipped: %s", found[0] ? "a checkpoint" : "every checkpoint", damaged);
    break;
  }
  return count;
}
// Rank 0: opens the checkpoint in `path`, a directory with trainer.json.
static bool start_open_checkpoint(Start *s, const char *path, Error *error) {
  char file[MAP_PATH_BYTES];
  CheckpointState state;
  s->kind = START_CHECKPOINT;
  snprintf(s->path, sizeof s->path, "%.1200s", path);
  s->text = checkpoint_text(path, &s->text_bytes, error);
  cJSON *json = s->text ? checkpoint_parse(path, s->text, (size_t)s->text_bytes, error) : NULL;
  if (!json || !checkpoint_state(path, json, &state, error)) {
    checkpoint_hint(path, error);
    cJSON_Delete(json);
    return false;
  }
  const cJSON *tokenizer = cJSON_GetObjectItemCaseSensitive(json, "tokenizer");
  uint64_t want = 0;
  int64_t bytes = 0;
  const bool has = json_hex(tokenizer, "crc32c", &want);
  cJSON_Delete(json);
  if (!has) return true;
  path_join(s->tokenizer, sizeof s->tokenizer, path, "tokenizer.json");
  path_join(file, sizeof file, path, "tokenizer.json");
  char *text = file_get(file, TRAINER_JSON_MOST_BYTES, &bytes);
  const bool same = text && crc32c(0, text, (size_t)bytes) == want;
  if (!text) fail(error, "cannot read %s: %s", file, file_get_fault());
  else if (!same)
    fail(error, "%s is damaged: its checksum is not the one recorded in trainer.json", file);
  if (!same) checkpoint_hint(path, error);
  free(text);
  return same;
}

// Whether a directory is there but cannot be read: a disk that is not mounted, a directory of another user. Such a one
// must not be treated as empty.
static bool start_is_hidden(const char *path) {
  struct stat st;
  DIR *dir = opendir(path);
  const int fault = errno;
  if (dir) closedir(dir);
  errno = fault;
  return !dir && (!lstat(path, &st) || (errno != ENOENT && errno != ENOTDIR));
}
// Rank 0: `found` becomes PATH if that is a checkpoint, or the newest whole checkpoint in it, or "". False and one line
// in `error` if PATH has only damaged checkpoints, or cannot be read.
static bool start_locate(Start *s, const char *path, char *found, size_t bytes, Error *error) {
  char link[64] = "", above[MAP_PATH_BYTES - 128], inside[MAP_PATH_BYTES];
  struct stat at;
  found[0] = 0;
  REJECT(!stat(path, &at) && !S_ISDIR(at.st_mode) && !S_ISREG(at.st_mode), "%.900s is %s: a checkpoint is a directory, "
         "weights are a directory or a file", path, file_type_words(at.st_mode));
  if (!is_checkpoint(path)) {
    const int count = start_newest(s, path, found, bytes);
    path_join(inside, sizeof inside, path, "ckpt");
    const char *const names[] = {path, inside};
    for (const char *hidden : names) {
      struct stat st;
      const bool is_file = !stat(hidden, &st) && S_ISREG(st.st_mode) && hidden == path;        // perhaps weights
      REJECT(!count && !is_file && start_is_hidden(hidden), "%.900s is there, but cannot be read: %s", hidden,
             strerror(errno));
    }
    REJECT(count && !found[0], "no checkpoint in %.600s is whole: %.*s", path, (int)strcspn(s->warnings, "\n"),
           s->warnings);
    return true;
  }
  // A link such as `latest` moves when its run saves: follow it once, and read everything from where it points now.
  snprintf(above, sizeof above, "%.1100s", path);
  while (strlen(above) > 1 && above[strlen(above) - 1] == '/') above[strlen(above) - 1] = 0;
  const ssize_t n = readlink(above, link, sizeof link - 1);
  char *slash = strrchr(above, '/');
  if (n <= 0 || strchr(link, '/')) { snprintf(found, bytes, "%s", path); return true; }
  if (slash) slash[0] = 0;
  snprintf(found, bytes, "%s%s%s", slash ? above : "", slash ? "/" : "", link);
  return true;
}
// Rank 0, where PATH is no checkpoint: adds to the error the newest checkpoint beside it, since a link like `best` may
// be gone, or was never made.
static void start_hint_beside(const char *path, const char *option, Error *error) {
  static Start beside;                           // only its warnings are used
  char parent[MAP_PATH_BYTES - 64], newest[MAP_PATH_BYTES - 64];
  snprintf(parent, sizeof parent, "%.1100s", path);
  size_t n = strlen(parent);
  while (n && parent[n - 1] == '/') n--;
  while (n && parent[n - 1] != '/') n--;
  while (n > 1 && parent[n - 1] == '/') n--;
  snprintf(parent + n, sizeof parent - n, "%s", n ? "" : ".");
  start_newest(&beside, parent, newest, sizeof newest);
  if (newest[0]) text_add(error->text, sizeof error->text, "; the newest one beside it: %s %s", option, newest);
}
// What renders chats (chat_words_of) with the template that --chat_template names, a built-in one or a file, instead of
// the model's own. words: those of the model's own, or NULL. NULL: there is no such template, and `why`.
static char *start_words_named(const char *name, const char *words, Error *why) {
  int64_t count;
  char *file = chat_template_text(name) ? NULL : file_get(name, 1 << 24, &count);
  const char *text = file ? file : chat_template_text(name);
  cJSON *config = words ? cJSON_Parse(words) : NULL;
  char *to = text ? chat_words_of(config, text) : NULL;
  if (!text) fail(why, "--chat_template %.300s: it is no file, and none of %s", name, chat_names);
  cJSON_Delete(config);
  free(file);
  return to;
}
// An option's value in a checkpoint's record, or "".
static const char *start_recorded(const char *text, size_t bytes, const char *name, char *to, size_t to_bytes) {
  cJSON *json = cJSON_ParseWithLength(text, bytes);
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(json, "config"), name);
  if (cJSON_IsNumber(v)) snprintf(to, to_bytes, "%.17g", v->valuedouble);
  else snprintf(to, to_bytes, "%s", cJSON_IsString(v) ? v->valuestring : "");
  cJSON_Delete(json);
  return to;
}
bool data_is_packed_whole(const Options *o) {
  static char seen[3 * OPTION_TEXT_BYTES], now[sizeof seen];
  static bool are;
  const bool text = o->data_as == OPT_data_as_text;
  if (o->pack != OPT_pack_whole || !o->data[0] || text) return false;
  if (!access(o->data, F_OK) && data_is_chats(o->data, text)) return true;
  EncodeOptions e = {};
  Error none;
  e.data = o->data, e.val_data = "", e.column = o->text_column, e.chat.fields = o->fields;
  snprintf(now, sizeof now, "%s\n%s\n%s", o->data, o->text_column, o->fields);
  if (strcmp(seen, now)) records_are_meant(&e, &are, &none);
  memcpy(seen, now, sizeof seen);
  return are;
}
// Rank 0: finds the chat template: that of --chat_template, else of the checkpoint, else beside the tokenizer. It is
// looked for only if the run has conversations or prompts a model.
static void start_find_template(Start *s, const Options *o, Error *error) {
  char recorded[OPTION_TEXT_BYTES];
  const char *data = o->eval_only && !o->data[0] ? o->val_data : o->data;
  const bool text = o->data_as == OPT_data_as_text;
  const bool chats = data_is_chats(data, text) || encode_is_packed(data, text) || data_is_packed_whole(o);
  const bool asks = o->sample_only && !o->eval[0], resumes = s->resume && !o->data[0];
  if (!chats && !asks && !resumes && o->prompt_as != OPT_prompt_as_user) return;
  const char *tokenizer = o->tokenizer[0] ? o->tokenizer : s->tokenizer;
  const bool named = strcmp(o->chat_template, "auto") && strcmp(o->chat_template, "model");
  cJSON *json = s->text ? cJSON_ParseWithLength(s->text, (size_t)s->text_bytes) : NULL;          // s->json is not yet
  const cJSON *kept = cJSON_GetObjectItemCaseSensitive(json, "chat"), *published = start_published(s);
  start_recorded(s->text, (size_t)s->text_bytes, "chat_template", recorded, sizeof recorded);
  const bool had = kept || chat_template_text(recorded);         // its --data is not known yet
  if (!chats && !asks && !had && o->prompt_as != OPT_prompt_as_user) {
    cJSON_Delete(json);
    return;
  }
  if (!published) published = cJSON_GetObjectItemCaseSensitive(json, "published");
  char *words = kept ? cJSON_PrintUnformatted(kept)
                     : tokenizer[0] ? published_chat_words(tokenizer, &s->chat_why) : NULL;
  if (!words && s->chat_why.code) *error = s->chat_why;
  if (!words) words = chat_words_of(cJSON_GetObjectItemCaseSensitive(published, "tokenizer_config"), NULL);
  const bool ours = chat_template_text(recorded) && !kept;       // written by a version that knew templates by name
  const char *name = named ? o->chat_template : ours && !words ? recorded : NULL;
  if (ours && words && !named) snprintf(s->chat_before, sizeof s->chat_before, "%.31s", recorded);
  s->chat = name ? start_words_named(name, words, error) : words;
  if (name) free(words);
  if (s->chat && !chat_words_fault(s->chat, &s->chat_why)) {
    if (named) fail(error, "--chat_template %.300s: %s", name, s->chat_why.text);
    free(s->chat);
    s->chat = NULL;
  }
  if (s->chat) snprintf(s->chat_template, sizeof s->chat_template, "%s", name ? name : kept && !named && recorded[0]
                        ? recorded : "model");
  else if (asks && !strncmp(s->chat_why.text, "that of ", 8) && !named)
    start_warning(s, "no chat template is known: %s; prompts are texts unless --chat_template names one",
                 s->chat_why.text);
  cJSON_Delete(json);
}
// Rank 0: gives the embeddings rows for the tokens of --add_tokens, and for other tokens of the tokenizer without rows.
static bool start_add_tokens(Start *s, const Options *o, Error *error) {
  const char *path = o->tokenizer[0] ? o->tokenizer : s->tokenizer;
  const int64_t rows = s->weights.shape.vocab_size;
  Tokenizer t;
  REJECT(!path[0], "--add_tokens: %.900s has no tokenizer: name it by --tokenizer", s->path);
  REJECT(s->weights.kind == IMPORT_LLMC, "--add_tokens: %.900s is llm.c's, which gets no more rows: write it by "
         "--export_hf and name that directory", s->path);
  if (!tokenizer_load_any(&t, path, error)) return false;
  s->row_from = min64(t.vocab_size, rows);
  const bool added = !strcmp(o->add_tokens, "auto") || tokenizer_add(&t, o->add_tokens, error);
  s->row_end = t.vocab_size;
  tokenizer_free(&t);
  if (!added) return false;
  if (s->row_end <= s->row_from) {
    s->row_end = 0;
    start_warning(s, "--add_tokens %.300s: the tokenizer has all of them, and each has its row", o->add_tokens);
    return true;
  }
  s->weights.shape.vocab_size = max64(rows, s->row_end);
  if (s->row_end > rows) memset(s->types, BLOCK_NONE, 3);        // embeddings and head, which come first
  start_warning(s, "--add_tokens: %lld tokens, ids %lld to %lld: %lld have rows of %.300s, which stay as they are; "
               "%lld new rows start as the mean of the %lld others (transformers' mean_resizing without its random "
               "part)",
               (long long)(s->row_end - s->row_from), (long long)s->row_from, (long long)s->row_end - 1,
               (long long)(min64(rows, s->row_end) - s->row_from), s->path,
               (long long)(s->weights.shape.vocab_size - rows), (long long)rows);
  return true;
}
// Rank 0: opens the weights at PATH, which are a checkpoint's or another program's.
static bool start_find_weights(Start *s, const char *path, const Options *o, Error *error) {
  char found[MAP_PATH_BYTES - 64] = "", rank[32];
  if (!start_locate(s, path, found, sizeof found, error)) return false;
  if (found[0]) {
    if (!start_open_checkpoint(s, found, error)) return false;
    REJECT(atof(start_recorded(s->text, (size_t)s->text_bytes, "lora", rank, sizeof rank)) > 0, "--init_from %.900s: "
           "this checkpoint has adapters alone: --resume takes it, and --export_hf with --merge writes the merged "
           "model of it", found);
    REJECT(o->add_tokens[0] && !s->resume, "--add_tokens enlarges weights of other programs: write %.900s by "
           "--export_hf and name that directory", found);
    return true;
  }
  s->kind = START_IMPORT;
  snprintf(s->path, sizeof s->path, "%.1200s", path);
  s->import = import_open(path, &s->weights, error);
  if (!s->import && access(path, F_OK)) start_hint_beside(path, "--init_from", error);
  if (!s->import || !import_check(s->import, o->trainer->params, s->types, &s->quantized, error)) return false;
  memcpy(s->tokenizer, s->weights.tokenizer, sizeof s->tokenizer);
  if (s->weights.warning[0]) start_warning(s, "%s", s->weights.warning);
  if (!s->tokenizer[0] && !o->tokenizer[0])
    start_warning(s, "%s has no tokenizer: text will be encoded by one that is trained on it, whose ids do not fit "
                 "these weights; --tokenizer names theirs", path);
  return !o->add_tokens[0] || start_add_tokens(s, o, error);
}
// Rank 0: opens the weights that a checkpoint of adapters is for: those of --init_from, else those that the run which
// wrote the checkpoint had as --init_from.
static bool start_find_base(Start *s, const Options *o, Error *error) {
  char rank[32], path[OPTION_TEXT_BYTES];
  s->on_base = atof(start_recorded(s->text, (size_t)s->text_bytes, "lora", rank, sizeof rank)) > 0;
  if (!s->on_base) return true;
  start_recorded(s->text, (size_t)s->text_bytes, "init_from", path, sizeof path);
  s->base = (Start *)calloc(1, sizeof(Start));
  if (start_find_weights(s->base, o->init_from[0] ? o->init_from : path, o, error)) return true;
  text_add(error->text, sizeof error->text, "; the adapters of %.300s need these weights: --init_from says where they "
           "are", s->path);
  return false;
}
// Whether a checkpoint is in OUT/ckpt.
static bool start_is_in(const char *out, const char *checkpoint) {
  char ours[MAP_PATH_BYTES], here[PATH_MAX], there[PATH_MAX];
  path_join(ours, sizeof ours, out, "ckpt");
  return realpath(ours, here) && realpath(checkpoint, there) && !strncmp(here, there, strlen(here)) &&
         there[strlen(here)] == '/';
}
// Rank 0: finds what --resume or --init_from names. False and one line in `error` when it cannot be had.
static bool start_find(Start *s, const Options *o, Error *error) {
  char found[MAP_PATH_BYTES - 64] = "";
  const bool automatic = !strcmp(o->resume, "auto");
  const char *path = automatic ? o->out : o->resume;
  s->resume = path[0] != 0;
  if (s->resume && !start_locate(s, path, found, sizeof found, error)) return false;
  if (s->resume && !automatic && !found[0]) {
    fail(error, "--resume %.900s: no checkpoint there (a directory with trainer.json, or one that holds step_* "
         "directories)%s", path, access(path, F_OK) ? "; there is no such directory" : "");
    start_hint_beside(path, "--resume", error);
    return false;
  }
  if (found[0]) {
    s->here = start_is_in(o->out, found);
    return start_open_checkpoint(s, found, error) && start_find_base(s, o, error);
  }
  if (s->resume)
    start_warning(s, "--resume auto: no checkpoint in %s/ckpt; starting from step 0", o->out);
  s->resume = false;
  if (o->lora_from[0] && !lora_config_read(&s->lora, s->lora_targets, sizeof s->lora_targets, o->lora_from, error))
    return false;
  return !o->init_from[0] || start_find_weights(s, o->init_from, o, error);
}
// Whether `world` ranks can resume a checkpoint's run: their number must divide M = global_batch / batch_size, the
// microbatches of its step. If not, the error names a smaller --batch_size, with which it does.
static bool start_check_ranks(const Start *s, const Options *o, int world, Error *error) {
  if (s->kind != START_CHECKPOINT || !s->resume || !run_trains(o)) return true;
  const int64_t G = o->global_batch;
  int64_t B = max64(1, o->batch_size);
  REJECT(G % B, "--batch_size %lld does not divide the %lld sequences a step that %.900s was trained with",
         (long long)B, (long long)G, s->path);
  const long long M = (long long)(G / B);
  REJECT(o->given[OPT_grad_accum] && o->grad_accum * world != M && !o->fill_step, "%.900s was trained with %lld "
         "microbatch%s per step: with %d rank%s leave --grad_accum %lld out", s->path, M, M > 1 ? "es" : "", world,
         world
         > 1 ? "s" : "", (long long)o->grad_accum);
  if (!(M % world) || o->fill_step) return true;
  char smaller[192] = "";
  while (B > 1 && G % (B * world)) B--;
  if (!(G % (B * world)))
    snprintf(smaller, sizeof smaller, "--batch_size %lld continues with the same %lld sequences per step, summed in "
             "another order: last digits change from there on; ", (long long)B, (long long)G);
  REJECT(true, "%.600s was trained with %lld microbatch%s of %lld sequences per step: %d ranks cannot share %s, any "
         "number that divides %lld can continue; %s--init_from %.600s starts a new run from its weights", s->path, M, M
         > 1 ? "es" : "", (long long)(G / M), world, M > 1 ? "them" : "it", M, smaller, s->path);
  return true;
}

// Gives every rank what rank 0 found. All ranks call it.
static void start_share(Start *s, MPI_Comm comm) {
  const int rank = comm_rank(comm);
  Start own = *s;
  MPI_Bcast(s, sizeof *s, MPI_BYTE, 0, comm);
  s->import = own.import;
  s->weights.published = own.weights.published;
  s->chat = own.chat;
  s->base = own.base;
  if (s->on_base && !s->base) s->base = (Start *)calloc(1, sizeof(Start));
  if (s->on_base) start_share(s->base, comm);
  s->text = rank ? (char *)calloc(1, (size_t)s->text_bytes + 1) : own.text;
  if (s->text_bytes) MPI_Bcast(s->text, fsdp_mpi_count(s->text_bytes), MPI_BYTE, 0, comm);
  Error error = {};
  if (s->text_bytes) s->json = checkpoint_parse(s->path, s->text, (size_t)s->text_bytes, &error);
  // A rank reads the files of tensors itself only if trainer.json on its host is the same as rank 0's.
  int64_t bytes = 0;
  char *text = s->kind == START_CHECKPOINT ? checkpoint_text(s->path, &bytes, &error) : NULL;
  s->text_checksum = text ? crc32c(0, text, (size_t)bytes) : 0;
  free(text);
}

// What a checkpoint decides about an option. KEPT: its value; another would not continue the run and is rejected.
// DEFAULT: the checkpoint's value unless one is given. OWN: nothing; each run has its own value.
enum OptionOrigin { ORIGIN_OWN, ORIGIN_DEFAULT, ORIGIN_KEPT };
static OptionOrigin option_origin(const OptionSpec *s, const Start *start, const Options *o) {
  const bool resumes = start->resume, trains = resumes && run_trains(o);
  switch (s->resume) {
    case RESUME_SHAPE: return ORIGIN_KEPT;
    case RESUME_STATE: return trains ? ORIGIN_KEPT : ORIGIN_OWN;
    case RESUME_ORDER: return trains ? ORIGIN_KEPT : resumes ? ORIGIN_DEFAULT : ORIGIN_OWN;
    case RESUME_STEP: return trains ? ORIGIN_DEFAULT : ORIGIN_OWN;
    case RESUME_OWN: return ORIGIN_OWN;
    default: return resumes ? ORIGIN_DEFAULT : ORIGIN_OWN;
  }
}

// A value of trainer.json as text; false if options have no values of its type.
static bool start_json_text(const cJSON *v, char *to, size_t bytes) {
  if (cJSON_IsString(v)) snprintf(to, bytes, "%s", v->valuestring);
  else if (cJSON_IsBool(v)) snprintf(to, bytes, "%s", cJSON_IsTrue(v) ? "on" : "off");
  else if (cJSON_IsNumber(v)) snprintf(to, bytes, "%.17g", v->valuedouble);
  else return false;
  text_to_line(to, "");
  return true;
}
// The checkpoint's value of an option as text; false if the checkpoint has none (it is an older program's).
static bool start_value(const Start *s, const OptionSpec *spec, char *to, size_t bytes) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(s->json, "config"), spec->name);
  if (!cJSON_IsNumber(v) || spec->type != OPTION_INT) return start_json_text(v, to, bytes);
  snprintf(to, bytes, "%.0f", v->valuedouble);
  return true;
}
// The version of the program that wrote the checkpoint.
static const char *start_version(const Start *s, char to[32]) {
  if (!start_json_text(cJSON_GetObjectItemCaseSensitive(s->json, "program"), to, 32)) snprintf(to, 32, "unknown");
  return to;
}
// A warning of the checkpoint's options that this version does not have and ignores: all of them, because whether a
// value was the default is not known here.
static void start_warning_unknown(Start *s) {
  char list[OPTION_TEXT_BYTES] = "", value[128], version[32];
  const cJSON *v, *config = cJSON_GetObjectItemCaseSensitive(s->json, "config");
  cJSON_ArrayForEach(v, config) {
    bool known = !v->string;
    for (int i = 0; i < OPTION_COUNT && !known; i++) known = !strcmp(option_specs[i].name, v->string);
    if (!known && start_json_text(v, value, sizeof value))
      text_add(list, sizeof list, "%s--%.64s %s", list[0] ? ", " : "", v->string, value[0] ? value : "''");
  }
  text_to_line(list, "");
  if (list[0])
    start_warning(s, "%.900s was written by version %s with options that version " PROGRAM_VERSION " does not have and "
                 "ignores: %s", s->path, start_version(s, version), list);
}
// A warning of what it does to the run that a given option replaces the checkpoint's value (theirs; "": it has none).
static void start_warning_replaced(Start *s, const OptionSpec *spec, const char *ours, const char *theirs) {
  char sequences[OPTION_TEXT_BYTES] = "";
  start_value(s, &option_specs[OPT_global_batch], sequences, sizeof sequences);
  if (!theirs[0])
    start_warning(s, "--%s %s is new, the checkpoint's run had none: the run continues differently from here on",
                 spec->name, ours);
  else if (strcmp(spec->name, "batch_size"))
    start_warning(s, "--%s %s replaces the checkpoint's %s: the run continues differently from here on", spec->name,
                 ours[0] ? ours : "''", theirs);
  else
    start_warning(s, "--batch_size %s replaces the checkpoint's %s: a step has the same %.20s sequences, but sums are "
                 "by microbatch: last digits change from here on", ours, theirs, sequences);
}
// Adjusts options that follow from others, where those differ from the checkpoint's.
static void start_adjust(Start *s, Options *o) {
  char stored[OPTION_TEXT_BYTES], computed[OPTION_TEXT_BYTES];
  const bool cpu = o->no_cuda || o->device == OPT_device_cpu;
  if (cpu && !o->given[OPT_fp8] && o->fp8 == FP8_MATMUL) {
    o->fp8 = FP8_GATHER;
    start_warning(s, "--fp8 gather replaces the checkpoint's matmul, which needs a GPU: weights are the same, "
                 "matrix multiplies are not");
  }
  // Activations that were in the parameters' dtype follow it.
  if (o->given[OPT_param_dtype] && !o->given[OPT_buffer_dtype] &&
      start_value(s, &option_specs[OPT_param_dtype], stored, sizeof stored) &&
      start_value(s, &option_specs[OPT_buffer_dtype], computed, sizeof computed) && !strcmp(stored, computed))
    o->buffer_dtype = OPT_buffer_dtype_auto;
  const OptionId dtype = o->buffer_dtype == OPT_buffer_dtype_auto ? OPT_param_dtype : OPT_buffer_dtype;
  if (!o->given[OPT_logits_dtype] && o->logits_dtype == OPT_logits_dtype_bf16 && option_dtype(o, dtype) != BF16)
    o->logits_dtype = OPT_logits_dtype_fp32;
  const bool trains = s->resume && run_trains(o);
  if (trains && o->strategy == OPT_strategy_zero1 && !o->given[OPT_accumulate] && o->accumulate != OPT_accumulate_local)
    start_warning(s, "--strategy zero1 adds gradients up before it reduces them; the checkpoint's run had --accumulate "
                 "%s: the run continues differently from here on", option_word(o, OPT_accumulate));
}
// The value of an option of the architecture for a checkpoint of a program that had only GPT-2's. The sizes of the
// model are in `o` already.
static void start_old_block(const Options *o, const OptionSpec *spec, char *to, size_t bytes) {
  static Options old;
  options_default(&old, o->trainer);
  preset_fill(&old, preset_block);
  old.n_kv_head = o->n_head, old.head_size = o->n_embd / max64(1, o->n_head), old.mlp_width = 4 * o->n_embd;
  option_print(to, bytes, &old, spec);
}
// --gpu_head_chunk_bytes of checkpoints up to 0.6.0, which do not say.
static const int64_t GPU_HEAD_CHUNK_BYTES_0_6 = (int64_t)512 << 20;
// Takes options from the checkpoint. The command that started the run may be given again, so --vocab_size may be what
// it asked for and not what its tokenizer reached.
static bool start_options_of_checkpoint(Start *s, Options *o, Error *error) {
  json_int(cJSON_GetObjectItemCaseSensitive(s->json, "corpus"), "vocab_size_asked", 0, 1 << 24, &o->vocab_size_asked);
  if (o->vocab_size == o->vocab_size_asked) o->given[OPT_vocab_size] = false;
  if (s->resume && !o->batch_size) o->given[OPT_batch_size] = false;           // auto stays as it was decided
  if (s->resume && !json_int(s->json, "gpu_head_chunk_bytes", 1, 1e15, &o->gpu_head_chunk_bytes))
    o->gpu_head_chunk_bytes = GPU_HEAD_CHUNK_BYTES_0_6;
  param_lists_trim(o);
  for (int i = 0; i < OPTION_COUNT; i++) {
    const OptionSpec *spec = &option_specs[i];
    const OptionOrigin origin = option_origin(spec, s, o);
    char theirs[OPTION_TEXT_BYTES], ours[OPTION_TEXT_BYTES];
    if (origin == ORIGIN_OWN) continue;
    if (!start_value(s, spec, theirs, sizeof theirs)) {
      if (i == OPT_freeze) theirs[0] = 0;        // from a program without --freeze
      else if (i == OPT_lora) strcpy(theirs, "0");
      else if (i == OPT_base_dtype) strcpy(theirs, o->lora ? "param" : "auto");
      else if (i == OPT_attention) strcpy(theirs, "mma");           // from a program that had no others
      else if (i == OPT_logits_dtype) strcpy(theirs, "fp32");       // likewise
      else if (i < GROUP_BLOCK || i >= GROUP_TRAINING) continue;
      else start_old_block(o, spec, theirs, sizeof theirs);
    }
    option_print(ours, sizeof ours, o, spec);
    if (!o->given[i]) {
      char version[32];
      Error fault = {};
      REJECT(!option_put(o, i, theirs, &fault), "%.900s was written by version %s with a value that version "
             PROGRAM_VERSION " does not take: %s", s->path, start_version(s, version), fault.text);
    } else if (strcmp(ours, theirs) && (origin == ORIGIN_KEPT || spec->resume != RESUME_QUIET)) {
      if (spec->type == OPTION_NUM) {            // compared with all digits, printed as people write
        snprintf(theirs, sizeof theirs, "%.10g", strtod(theirs, NULL));
        snprintf(ours, sizeof ours, "%.10g", strtod(ours, NULL));
      }
      REJECT(origin == ORIGIN_KEPT, "--%s %.300s contradicts %.900s, which has %.300s: %s", spec->name, ours[0] ? ours :
             "''", s->path, theirs[0] ? theirs : "none", s->resume ? "leave it out, or start a new run from its "
             "weights with --init_from" : "leave it out");
      start_warning_replaced(s, spec, ours, theirs);
    }
  }
  start_warning_unknown(s);
  start_adjust(s, o);
  return true;
}
// The preset whose learning rate and sequence length imported weights get: the widest one that is not wider than the
// model, of the same architecture (GPT-2's or not).
static const Preset *start_preset(const ModelShape *m) {
  const Preset *near = NULL, *first = NULL;
  for (const Preset &p : presets) {
    if (strstr(p.block, "optimizer=")) continue;                   // for training from scratch, with Muon's rates
    if (!*p.block != shape_is_gpt2(m)) continue;
    if (!first) first = &p;
    if (p.n_embd <= m->n_embd && (!near || p.n_embd > near->n_embd)) near = &p;
  }
  return near ? near : first;
}
// Takes the shape of imported weights into the options; an option that was given otherwise is an error. A preset gives
// what the weights do not record: learning rate, sequence length.
static bool start_options_of_import(Start *s, Options *o, Error *error) {
  static Options shape;
  const ModelShape *m = &s->weights.shape;
  for (const Preset &p : presets)
    REJECT(o->given[OPT_model] && !strcmp(p.name, o->model) && (p.n_layer != m->n_layer || p.n_head != m->n_head ||
           p.n_embd != m->n_embd), "--model %s contradicts %.900s: %lld blocks, %lld heads, width %lld; leave it out",
           o->model, s->path, (long long)m->n_layer, (long long)m->n_head, (long long)m->n_embd);
  if (!o->given[OPT_model]) strcpy(o->model, start_preset(m)->name);
  if (!o->given[OPT_dropout]) o->dropout = m->dropout;
  options_default(&shape, o->trainer);
  options_of_shape(&shape, m);
  for (int i = GROUP_MODEL; i < GROUP_TRAINING; i++) {
    char ours[OPTION_TEXT_BYTES], theirs[OPTION_TEXT_BYTES];
    Error fault = {};
    const bool of_rope = i == OPT_rope_theta || i == OPT_rope_scaling || i == OPT_rope_skip || i == OPT_window_theta ||
                         i == OPT_attention_scale;
    if (i == OPT_model || i == OPT_seq_len || i == OPT_dropout) continue;
    if (of_rope && m->block.position != POSITION_ROPE) continue;
    if ((i == OPT_window_skip || i == OPT_window_theta) && !m->block.window) continue;
    const OptionSpec *spec = &option_specs[i];
    option_print(ours, sizeof ours, o, spec);
    option_print(theirs, sizeof theirs, &shape, spec);
    if (spec->type == OPTION_NUM) snprintf(theirs, sizeof theirs, "%.10g", strtod(theirs, NULL));
    const bool same = spec->type == OPTION_NUM ? strtod(ours, NULL) == strtod(theirs, NULL) : !strcmp(ours, theirs);
    REJECT(o->given[i] && !same && i == OPT_tie_head, "--tie_head %s contradicts %.900s: leave it out", ours, s->path);
    REJECT(o->given[i] && !same, "--%s %.200s contradicts %.900s, which has %s: leave it out", spec->name, ours,
           s->path, theirs);
    REJECT(!option_put(o, i, theirs, &fault), "%.900s: %s", s->path, fault.text);
  }
  const char *stored = s->weights.stored < 0 ? NULL : dtype_name((Dtype)s->weights.stored);
  if (o->lora && stored && strcmp(stored, option_word(o, OPT_param_dtype)) && !o->given[OPT_param_dtype]) {
    option_put(o, OPT_param_dtype, stored, error);
    start_warning(s, "frozen weights stay in the %s of %.900s, and activations too: --param_dtype and --buffer_dtype "
                 "choose another dtype", stored, s->path);
  }
  return true;
}
// With --lora_from, rank, alpha, scale and targets are the adapter's; options that contradict them are an error.
static bool start_options_of_adapter(const Start *s, Options *o, Error *error) {
  REJECT(o->given[OPT_lora] && o->lora != s->lora.rank, "--lora %lld contradicts %.900s, whose rank is %lld: leave it "
         "out", (long long)o->lora, o->lora_from, (long long)s->lora.rank);
  REJECT(o->given[OPT_lora_alpha] && o->lora_alpha != s->lora.alpha, "--lora_alpha %g contradicts %.900s, which has "
         "%g: leave it out", o->lora_alpha, o->lora_from, s->lora.alpha);
  REJECT(o->given[OPT_lora_targets] && strcmp(o->lora_targets, s->lora_targets), "--lora_targets contradicts %.900s, "
         "which has %.300s: leave it out", o->lora_from, s->lora_targets);
  REJECT(o->given[OPT_lora_scale] && (o->lora_scale == OPT_lora_scale_root) != s->lora.by_root, "--lora_scale "
         "contradicts %.900s: leave it out", o->lora_from);
  o->lora = s->lora.rank, o->lora_alpha = s->lora.alpha;
  o->lora_scale = s->lora.by_root ? OPT_lora_scale_root : OPT_lora_scale_rank;
  strcpy(o->lora_targets, s->lora_targets);
  return true;
}
// --base_dtype auto is decided here for weights that do not train (adapters, or no training): file if they are
// quantized and --fp8 is off, else param; elsewhere it stays auto, which means param. Adapters fit the values that they
// were trained on, so a resumed run keeps the checkpoint's --base_dtype; checkpoints from before this option had param.
static void start_options_of_base(Start *s, Options *o) {
  const Start *from = s->on_base ? s->base : s;
  if (o->base_dtype == OPT_base_dtype_auto && (o->lora || !run_trains(o)) && !s->resume)
    o->base_dtype = from->quantized && o->fp8 == FP8_OFF ? OPT_base_dtype_file : OPT_base_dtype_param;
  memcpy(o->base_types, from->types, sizeof o->base_types);
  if (o->base_dtype > OPT_base_dtype_param)
    start_warning(s, "matrices of blocks become %s as they are read; embedding and head stay in --param_dtype",
                 option_word(o, OPT_base_dtype));
  else if (from->quantized)
    start_warning(s, o->base_dtype == OPT_base_dtype_file
                 ? "frozen matrices stay in the blocks of %.900s, and are dequantized where they compute: --base_dtype "
                   "param dequantizes all of them at the start"
                 : "quantized weights of %.900s are dequantized as they are read, and kept in --param_dtype",
                 from->path);
}
static const char *start_algorithms(const Start *s) {
  return s->resume ? cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(s->json, "matmul_algorithms")) : NULL;
}
// What the model is called at the start: weights of another program by their family and where they came from, also when
// a run on them is resumed. NULL: by the preset.
static const char *start_model_name(const Start *s, const Options *o) {
  static char words[MAP_PATH_BYTES + 32];
  char recorded[OPTION_TEXT_BYTES] = "";
  const ModelShape shape = shape_of(o);
  const char *family = family_name(&shape);
  const Start *from = s->on_base ? s->base : s;
  if (from->kind == START_CHECKPOINT) start_value(from, &option_specs[OPT_init_from], recorded, sizeof recorded);
  for (const Preset &p : presets)
    if (!strcmp(p.name, o->model) && p.n_layer == o->n_layer && p.n_head == o->n_head && p.n_embd == o->n_embd)
      recorded[0] = 0;
  if (from->kind != START_IMPORT && !recorded[0]) return NULL;
  snprintf(words, sizeof words, "%s of %s", family ? family : "a block",
           from->kind == START_IMPORT ? from->path : recorded);
  return words;
}
// Completes the options from what the run starts from, the same on every rank. False with one line in `error`.
static bool start_options(Start *s, Options *o, Error *error) {
  const char *only = o->eval_only ? "eval_only" : "sample_only";
  const bool nothing = !run_trains(o) && !o->show_chats && s->kind == START_FRESH;
  REJECT(nothing && o->resume[0], "--%s: there is no checkpoint in %.900s/ckpt", only, o->out);
  REJECT(nothing, "--%s needs weights: --resume CHECKPOINT or --init_from PATH", only);
  if (s->on_base && !o->init_from[0]) strcpy(o->init_from, s->base->path);       // for later checkpoints
  if (s->lora.rank && !start_options_of_adapter(s, o, error)) return false;
  REJECT((o->lora || o->lora_from[0]) && s->kind == START_FRESH, "--lora%s needs the weights that adapters are for: "
         "--init_from PATH", o->lora ? "" : "_from");
  REJECT(o->add_tokens[0] && s->kind == START_FRESH, "--add_tokens enlarges weights that are there: name them by "
         "--init_from PATH");
  if (s->row_end && o->lora && !o->given[OPT_train_rows] && s->kind == START_IMPORT)
    snprintf(o->train_rows, sizeof o->train_rows, "%lld:%lld", (long long)s->row_from, (long long)s->row_end - 1);
  if (s->kind == START_CHECKPOINT && !start_options_of_checkpoint(s, o, error)) return false;
  if (s->kind == START_IMPORT && !start_options_of_import(s, o, error)) return false;
  start_options_of_base(s, o);
  if (s->chat_template[0]) strcpy(o->chat_template, s->chat_template);
  o->tuning = run_trains(o) && s->kind != START_FRESH && !s->resume;
  return true;
}
// Has OUT/options.txt name the checkpoint itself: a link like `latest`, or a directory of several checkpoints, may lead
// to another one later. `--resume auto` stays: it looks for the newest checkpoint of OUT at each start.
static void start_exact(const Start *s, Options *asked) {
  const bool fits = s->kind == START_CHECKPOINT && strlen(s->path) < OPTION_TEXT_BYTES;
  if (fits && s->resume && strcmp(asked->resume, "auto")) strcpy(asked->resume, s->path);
  if (fits && !s->resume) strcpy(asked->init_from, s->path);
}

// A resumed run must continue with the tokens it started with: compares the hash of the corpus with the checkpoint's.
// Every rank returns the same, since all have the same checkpoint text and corpus.
static bool start_check(const Start *s, const Options *o, const Corpus *corpus, Error *error) {
  CheckpointState c = {};
  if (s->kind != START_CHECKPOINT || !s->resume || o->sample_only) return true;
  const bool fallback = !o->data[0] && !strncmp(corpus->source, "generated", 9);
  if (o->eval_only && !fallback) return true;    // evaluations may be on other data that is named
  if (!checkpoint_state(s->path, s->json, &c, error)) return false;
  const cJSON *source =
      cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(s->json, "corpus"), "source");
  REJECT(c.corpus_hash != corpus->hash && s->chat_before[0], "an earlier version trained %.600s with its chat template "
         "%s, the checkpoint's own gives other tokens: --chat_template %s continues that run; --init_from %.300s "
         "trains its weights with its own template", s->path, s->chat_before, s->chat_before, s->path);
  const bool same = cJSON_IsString(source) && !strcmp(source->valuestring, corpus->source);
  char valid[OPTION_TEXT_BYTES];
  start_recorded(s->text, (size_t)s->text_bytes, "val_data", valid, sizeof valid);
  REJECT(c.corpus_hash != corpus->hash && same && strcmp(valid, o->val_data), "%.600s was validated on %.300s, and now "
         "%.300s is to be: a run keeps its validation data, which tell its best step; leave --val_data as it was, and "
         "evaluate on others by --eval_only", s->path, valid[0] ? valid : "what is beside --data",
         o->val_data[0] ? o->val_data : "what is beside --data");
  REJECT(c.corpus_hash != corpus->hash && same, "%.600s: its files have changed since %.600s was trained on them; to "
         "train its weights on other data, use --init_from %.300s", corpus->source, s->path, s->path);
  REJECT(c.corpus_hash != corpus->hash, "the tokens of %.600s are not those that %.600s was trained on (%s): name "
         "those with --data; to train its weights on other data, use --init_from %.300s", corpus->source, s->path,
         cJSON_IsString(source) ? source->valuestring : "?", s->path);
  return true;
}

// The steps that the run has done before it starts.
static int64_t start_step(const Start *s, const Options *o) {
  CheckpointState c = {};
  Error error = {};
  const bool goes_on = s->kind == START_CHECKPOINT && s->resume && run_trains(o);
  return goes_on && checkpoint_state(s->path, s->json, &c, &error) ? c.step : 0;
}

// A warning if another instruction set or GPU than the checkpoint's may change the last bits of results.
static void start_check_device(Start *s, const RunView *run) {
  const cJSON *ops = cJSON_GetObjectItemCaseSensitive(s->json, "ops");
  const cJSON *device = cJSON_GetObjectItemCaseSensitive(s->json, "device");
  const bool cuda = run->ctx->ops->nccl;
  if (!cJSON_IsString(ops) || !cJSON_IsString(device)) return;
  if (strcmp(ops->valuestring, run->ctx->ops->name) || (cuda && strcmp(device->valuestring, run->device.words)))
    start_warning(s, "the checkpoint was written on %s, this is %s: the run continues, but last bits may differ",
                 device->valuestring, run->device.words);
}
// Loads weights of another program.
static void start_load_import(Start *s, RunView *run) {
  Fsdp *f = run->fsdp;
  TensorMap map = {};
  Error error = {};
  if (!fsdp_rank(f)) import_map(s->import, fsdp_param(f, 0), fsdp_params(f), &map, &error);
  store_load_weights(run->store, &map, &error, log_load_progress);
}
// Ends all ranks with one line if a weight that was loaded is not finite: nothing later would report that for generated
// text, evaluations or exports. Closes the files of other programs' weights. All ranks call it.
static void start_check_finite(Start *s, RunView *run) {
  Fsdp *f = run->fsdp;
  int p;
  int64_t element;
  char name[128] = "";
  Error error = {};
  if (!fsdp_weights_finite(f, &p, &element)) {
    const Param *q = fsdp_param(f, p);
    const Start *from = s->on_base && !q->adapter ? s->base : s;
    const bool own = q->adapter || from->kind != START_IMPORT || fsdp_rank(f);
    if (!own) import_element_name(name, from->import, q, element);
    fail(&error, "%.900s: these weights are not finite, first element %lld of parameter %s%s%s%s: fetch or write them "
         "again", q->adapter && !s->on_base ? run->opt->lora_from : from->path, (long long)element, q->name, own ? "" :
         " (tensor ", name, own ? "" : ")");
  }
  agree_no_error(fsdp_comm(f), error.text, EXIT_NOT_FINITE);
  Import **open = s->on_base ? &s->base->import : &s->import;
  import_close(*open);
  *open = NULL;
}
// Loads the weights s that adapters are for: a checkpoint's without adapters, or another program's.
static void start_load_base(Start *s, RunView *run) {
  Saved saved = saved_of(run);
  saved.part = SAVED_BASE;
  if (s->kind == START_CHECKPOINT)
    checkpoint_load(&saved, s->path, s->json, s->text_checksum, false, log_load_progress);
  else start_load_import(s, run);
}
// Records the hash of the weights that the adapters are for, and loads the adapters of --lora_from. An error if the
// checkpoint, or the files of --lora_from, have recorded another hash.
static void start_load_adapters(Start *s, RunView *run) {
  Fsdp *f = run->fsdp;
  const Options *o = run->opt;
  Error error = {};
  const ModelShape shape = shape_of(o);
  uint64_t theirs = 0;
  TensorMap map = {};
  const bool file = o->lora_from[0] && !s->on_base;
  run->base_hash = fsdp_weights_hash(f);
  if (s->on_base) json_hex(cJSON_GetObjectItemCaseSensitive(s->json, "base"), "hash", &theirs);
  if (file && !fsdp_rank(f))
    lora_import_map(&map, o->lora_from, fsdp_param(f, 0), fsdp_params(f), &shape, &theirs, &error);
  if (!fsdp_rank(f) && !error.text[0] && theirs && theirs != run->base_hash)
    fail(&error, "the adapters in %.600s are for other weights than those of %.600s, or these are stored in another "
         "dtype: --init_from must name what they were trained on", file ? o->lora_from : s->path, s->on_base ?
         s->base->path : s->path);
  if (file) store_load_weights(run->store, &map, &error, log_load_progress);
  else agree_no_error(fsdp_comm(f), error.text, EXIT_MISSING);
}
// Loads the weights, with --resume also optimizer and step, into the sharded state. All ranks call it; ends all ranks
// with one line if they cannot be read.
static void start_load(Start *s, RunView *run, Saver *saver) {
  Fsdp *f = run->fsdp;
  Error error = {};
  const double start = now_ms();
  if (s->kind == START_FRESH) return;
  if (s->on_base) start_load_base(s->base, run);
  if (s->kind == START_CHECKPOINT && fsdp_has_adapters(f) && !s->on_base) start_load_base(s, run);
  else if (s->kind == START_CHECKPOINT) {
    const bool trains = s->resume && run_trains(run->opt);
    const Saved saved = saved_of(run);
    checkpoint_load(&saved, s->path, s->json, s->text_checksum, trains, log_load_progress);
    CheckpointState c = {};
    if (trains && checkpoint_state(s->path, s->json, &c, &error)) {
      saver->valid_loss = c.valid_loss;
      saver->evaluated_step = c.evaluated_step;
      saver->best_loss = c.best_loss;
    }
    if (trains && run->step >= run->steps_total)
      start_warning(s, "the checkpoint is at step %lld of %lld: nothing is left to train; a larger %s makes the run "
                   "longer", (long long)run->step, (long long)run->steps_total,
                   run->opt->max_steps == run->steps_total ? "--max_steps" : "--epochs");
    if (trains) {
      saver->continues = s->here;
      saver->saved_step = s->here ? c.step : -1;
      snprintf(saver->whole_path, sizeof saver->whole_path, "%s", s->path);
      if (s->here && !fsdp_rank(f) && run->opt->save_every >= 0) saver_tidy(saver);
      start_check_device(s, run);
    }
  } else start_load_import(s, run);
  if (fsdp_has_adapters(f)) start_load_adapters(s, run);
  fsdp_publish(f);
  fsdp_step_end(f);
  if (fsdp_rank(f)) return;
  start_print_warnings(s);
  say("%s: %s", s->resume ? "resumed from" : "weights from", s->path);
  if (s->kind == START_CHECKPOINT) say(", step %lld", (long long)(run->step ? run->step : cJSON_GetNumberValue(
                                          cJSON_GetObjectItemCaseSensitive(s->json, "step"))));
  say(", read in %.2f s\n", (now_ms() - start) / 1e3);
}
static void start_free(Start *s) {
  if (s->base) start_free(s->base);
  free(s->base);
  free(s->text);
  cJSON_Delete(s->json);
  import_close(s->import);
  cJSON_Delete(s->weights.published);
  free(s->chat);
  memset((void *)s, 0, sizeof *s);
}

// Gives every rank the corpus that rank 0 loaded, in one allocation (c->block); only rank 0 keeps the tokenizer.
// All ranks call it.
static void corpus_share(Corpus *c, MPI_Comm comm) {
  const int rank = comm_rank(comm);
  unsigned long long n = rank ? 0 : corpus_block_bytes(c);
  MPI_Bcast(&n, 1, MPI_UNSIGNED_LONG_LONG, 0, comm);
  char *const block = (char *)malloc(n);
  CHECK(block, "cannot allocate %llu bytes of tokens", n);
  Tokenizer tokenizer = {};
  bool has_tokenizer = false;
  if (!rank) {
    corpus_to_block(c, block);
    tokenizer = c->tokenizer;
    has_tokenizer = c->has_tokenizer;
    c->tokenizer = {};
    c->has_tokenizer = false;
    corpus_free(c);
  }
  const int64_t piece = 1 << 30;
  for (int64_t at = 0; at < (int64_t)n; at += piece)
    MPI_Bcast(block + at, (int)min64(piece, (int64_t)n - at), MPI_BYTE, 0, comm);
  Error e = {};
  char error[sizeof e.text] = "";
  if (!corpus_of_block(c, block, n, &e)) memcpy(error, e.text, sizeof error);
  agree_no_error(comm, error, EXIT_MISSING);
  c->block = block;
  c->tokenizer = tokenizer;
  c->has_tokenizer = has_tokenizer;
}

// While the corpus is read and a tokenizer trained, a signal ends the rank at once: there is nothing to save yet.
static const struct { int signal; const char *name; } loading_signals[] = {
    {SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}};
enum { LOADING_SIGNALS = sizeof loading_signals / sizeof *loading_signals };
static char loading_words[LOADING_SIGNALS][256];           // on rank 0, made before: a handler may not
static void on_signal_while_loading(int signal) {
  liveness_leave(true);
  corpus_abandon();
  for (int i = 0; i < LOADING_SIGNALS; i++)
    if (loading_signals[i].signal == signal && write(STDERR_FILENO, loading_words[i], strlen(loading_words[i])) < 0) {}
  _exit(EXIT_STOPPED);
}
// A text has become shorter since it was mapped.
static void on_bus_while_loading(int signal, siginfo_t *info, void *) {
  const char *path = data_mapped_path(info->si_addr);
  struct sigaction plain = {};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, NULL);               // else it comes again, and ends the process as it would have
  if (!path) return;
  liveness_leave(true);
  corpus_abandon();
  for (const char *part : {who_am_i ? who_am_i : "train_gpt_fsdp", ": ", path, " has become shorter while it was read: "
                           "put the whole file there, and start again\n"})
    if (write(STDERR_FILENO, part, strlen(part)) < 0) {}
  _exit(EXIT_MISSING);
}
// Installs the handlers; `before` receives those that were there. An ignored signal stays ignored (nohup).
static void loading_catch_signals(int rank, struct sigaction before[LOADING_SIGNALS]) {
  struct sigaction ours = {}, bus = {};
  bus.sa_sigaction = on_bus_while_loading;
  bus.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &bus, NULL);
  ours.sa_handler = on_signal_while_loading;
  fflush(stdout);
  for (int i = 0; i < LOADING_SIGNALS; i++) {
    if (!rank)
      snprintf(loading_words[i], sizeof loading_words[i], "%s: stopped by %s while the corpus was read; nothing was "
               "trained\n", who_am_i, loading_signals[i].name);
    sigaction(loading_signals[i].signal, NULL, &before[i]);
    if (before[i].sa_handler != SIG_IGN) sigaction(loading_signals[i].signal, &ours, NULL);
  }
}

ChatOptions chat_options(const Options *o, const char *words, const char *why) {
  ChatOptions c = {o->chat_template, o->chat_date, why, o->train_on == OPT_train_on_all};
  c.last = o->train_on == OPT_train_on_last, c.pairs = o->pairs == OPT_pairs_chat, c.fields = o->fields;
  c.words = words, c.kwargs = o->chat_template_kwargs;
  c.preferences = o->loss != PREFERENCE_NONE;
  return c;
}
static void encode_say(const char *line) { say("%s\n", line); }
// Texts that do not go into memory are encoded once, into the cache, and are token files from then on. Changes c.
// given: whether the column was named for this run, not by the checkpoint it continues from.
// asked: the vocabulary that a tokenizer is trained for. whole: conversations are not one stream, so they go into
// memory.
static bool load_packed(CorpusOptions *c, const char *column, bool given, int64_t asked, bool whole, Error *e) {
  static char out[PATH_MAX];
  EncodeOptions o = {};
  o.cache = c->cache_dir, o.data = c->data, o.val_data = c->val_data, o.tokenizer = c->tokenizer, o.column = column;
  o.as_text = c->as_text, o.column_given = given, o.vocab_size = (int)asked, o.threads = c->threads, o.chat = c->chat;
  o.add_tokens = c->add_tokens, o.vocab_given = c->vocab_given;
  o.say = encode_say;
  if (c->data && *c->data && whole && !records_are_meant(&o, &c->records, e)) return false;
  c->column = column;
  if (c->records)
    return !given || !*column ||
           fail_with(e, EXIT_USAGE, "--text_column %s is of text, and --data names conversations: --fields tells the "
                     "names of their keys", column);
  if (!c->data || !encode_is_packed(c->data, c->as_text))
    return !given || !*column ||
           fail_with(e, EXIT_USAGE, "--text_column %s belongs to .parquet files, and --data names none", column);
  if (c->chat.preferences)
    return fail_with(e, EXIT_USAGE, "--data %s has no preferences, records with chosen and rejected", c->data);
  if (!c->cache_dir || !*c->cache_dir)
    return fail_with(e, EXIT_USAGE, "--data %s is encoded into --cache, which is off: encode it by --encode OUT",
                     c->data);
  if (!encode_run(&o, e, &c->vocab_size, out)) return false;
  char held_out[PATH_MAX + 32];
  snprintf(held_out, sizeof held_out, "%s/val_000000.bin", out);
  if (access(held_out, F_OK))
    return fail_with(e, EXIT_MISSING, "--data %s is a single document, of which nothing is held out for validation: "
                     "name some text by --val_data, or unpack it: of a .txt the last 5 %% are held out", c->data);
  c->data = out;
  c->val_data = "";
  if (!*c->tokenizer) c->tokenizer = out;
  return true;
}
// Whether options of conversations fit what --data is. packed: --data was encoded into token files in --cache.
static bool load_check_chats(const Options *o, const Corpus *corpus, bool packed, Error *e) {
  static const OptionId of_chats[] = {OPT_chat_template, OPT_chat_date, OPT_chat_template_kwargs, OPT_train_on,
                                      OPT_pairs, OPT_fields,
                                       OPT_pack, OPT_too_long};
  const Split *train = &corpus->split[SPLIT_TRAIN];
  const bool stream = packed && train->masked;
  if (o->loss != PREFERENCE_NONE && !train->pairs)
    return fail_with(e, EXIT_USAGE, "--loss %s needs preferences, records with chosen and rejected; this is %.900s",
                     option_word(o, OPT_loss), corpus->source);
  for (OptionId k : of_chats) {
    const bool fits = stream ? k != OPT_too_long && (k != OPT_pack || o->pack == OPT_pack_stream) : train->documents;
    if (o->given[k] && !fits)
      return fail_with(e, EXIT_USAGE, stream ? "--%s: conversations that are encoded into files are one stream; this "
                       "is %.900s" : "--%s belongs to conversations, --data FILE.jsonl; this is %.900s",
                       option_specs[k].name, stream ? o->data : corpus->source);
  }
  if (stream)
    say("warning: conversations of %s are one stream in token files, as --pack stream has them\n", o->data);
  return true;
}
// Whether the corpus is what was asked for, and its tokenizer fits the model. alone: the only data is --val_data.
static bool load_check_fits(const Options *o, Corpus *corpus, const Start *start, bool alone, Error *e) {
  char *named = alone ? strstr(corpus->source, "(--data)") : NULL;
  if (named) snprintf(named, sizeof corpus->source - (size_t)(named - corpus->source), "(--val_data)");
  if (!o->data[0] && o->val_data[0] && !strncmp(corpus->source, "generated", 9))
    return fail_with(e, EXIT_USAGE, "--val_data %.800s: there is nothing to train on here: name it by --data",
                     o->val_data);
  if (start->kind == START_FRESH || corpus->vocab_size <= o->vocab_size) return true;
  return fail_with(e, EXIT_USAGE, "the tokenizer has %d tokens, the model of %.800s has %lld: %s%s", corpus->vocab_size,
                   start->path, (long long)o->vocab_size, o->tokenizer[0] ? "name the model's own with --tokenizer" :
                   "the last ones have no row", start->kind == START_IMPORT ? "; --add_tokens auto gives each its row" :
                   "; take them out of its tokenizer.json");
}
// Rank 0: --chat_template becomes auto, no template, if nothing that the run trains on has chat turns: a model of pairs
// or texts is prompted with texts.
static void load_settle_template(Options *o, const Corpus *corpus, const Start *start) {
  enum { LOOK_AT_MAX = 1 << 24 };               // tokens: files of tokens may be larger than memory
  const Split *s = &corpus->split[SPLIT_TRAIN];
  if (!start->chat || o->given[OPT_chat_template] || !run_trains(o) || !corpus->has_tokenizer) return;
  const ChatOptions how = chat_options(o, start->chat, "");
  const Chat c = chat_open(&how, &corpus->tokenizer);
  const int32_t mark = c.mark_id >= 0 ? c.mark_id : c.stop_id;   // of a template without tokens of its own
  for (int64_t i = 0; i < min64(s->tokens_numel, LOOK_AT_MAX); i++) if (split_token(s, i) == mark) return;
  strcpy(o->chat_template, "auto");
}
// Loads the corpus on rank 0 and passes it to all ranks. The vocabulary of a fresh model may shrink to the number of
// tokens that the trained tokenizer reached. All ranks call it.
static void load_corpus(Corpus *corpus, Options *o, const Start *start, MPI_Comm comm, int threads) {
  const char *tokenizer = o->tokenizer[0] ? o->tokenizer : start->tokenizer;
  CorpusOptions c = {o->data, o->cache, (int)o->vocab_size, threads, (uint64_t)o->seed, tokenizer,
                     chat_options(o, start->chat, start->chat_why.text),
                     o->val_data, o->data_as == OPT_data_as_text};
  c.add_tokens = o->add_tokens;
  c.vocab_given = start->kind == START_FRESH && o->given[OPT_vocab_size];
  const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(start->json, "corpus");
  const bool alone = o->eval_only && !o->data[0] && o->val_data[0];           // what is evaluated is all that is named
  if (alone) c.data = o->val_data;
  c.undivided = start->resume && !cJSON_HasObjectItem(theirs, "divided");      // a checkpoint of before version 0.7
  Error e = {};
  const int rank = comm_rank(comm), world = comm_size(comm);
  int code = 0;
  struct sigaction before[LOADING_SIGNALS];
  loading_catch_signals(rank, before);
  if (!rank && o->sample_only && !tokenizer[0]) {
    corpus->vocab_size = (int)o->vocab_size;
    snprintf(corpus->source, sizeof corpus->source, "no data and no tokenizer: tokens are numbers");
  } else if (!rank && !(o->sample_only ? corpus_load_tokenizer(corpus, c, &e)
                                       : load_packed(&c, o->text_column, o->given[OPT_text_column],
                                                       o->vocab_size_asked > 0 ? o->vocab_size_asked : o->vocab_size,
                                                       o->pack == OPT_pack_whole, &e) &&
                                           corpus_load(corpus, c, &e))) {
    code = e.code;
  }
  if (!rank && !code && !load_check_fits(o, corpus, start, alone, &e)) code = e.code;
  if (!rank && !code && !o->sample_only && !load_check_chats(o, corpus, c.data != o->data, &e)) code = e.code;
  const bool gguf = !rank && !code && o->export_gguf != OPT_export_gguf_off && corpus->has_tokenizer;
  if (gguf && !gguf_pre_tokenizer(&corpus->tokenizer)) {
    snprintf(e.text, sizeof e.text, "--export_gguf: llama.cpp cuts or merges no text as this tokenizer does: leave it "
             "out");
    code = EXIT_USAGE;
  }
  bool strips = gguf && corpus->tokenizer.prefix > PREFIX_PREPEND;
  for (int i = 0; gguf && i < corpus->tokenizer.added_count; i++)
    strips = strips || corpus->tokenizer.added[i].lstrip || corpus->tokenizer.added[i].rstrip;
  if (gguf && corpus->tokenizer.cased)
    say("warning: --export_gguf: llama.cpp tells upper and lower case apart by the letters of ASCII alone in such a "
        "tokenizer: ids of words in other letters may differ there\n");
  if (strips)
    say("warning: --export_gguf: llama.cpp puts a space after each special token, where this tokenizer puts none or "
        "takes white space away: ids differ there\n");
  if (gguf && corpus->tokenizer.by_line)
    say("warning: --export_gguf: this tokenizer ends pre-tokens at each newline and llama.cpp does not: ids differ "
        "where white space goes over it\n");
  if (!rank && !code) load_settle_template(o, corpus, start);
  MPI_Bcast(o->chat_template, sizeof o->chat_template, MPI_CHAR, 0, comm);
  MPI_Bcast(&code, 1, MPI_INT, 0, comm);
  agree_no_error(comm, e.text, code);
  corpus_share(corpus, comm);
  for (int i = 0; i < LOADING_SIGNALS; i++) sigaction(loading_signals[i].signal, &before[i], NULL);
  if (!rank) print_warnings(corpus->warnings.text);
  if (!rank && corpus->split[SPLIT_TRAIN].documents && !corpus->cache_used)
    say("conversations were read in at most %.1f MiB: %.1f MiB beside their tokens twice, given back before the memory "
        "below is taken\n", (double)(2 * corpus_block_bytes(corpus) + records_reading_bytes(threads)) / 0x1p20,
        (double)records_reading_bytes(threads) / 0x1p20);
  options_fit_corpus(o, corpus, world);
  if (start->kind != START_FRESH) return;
  if (!rank && !tokenizer[0] && corpus->vocab_size < o->vocab_size)
    say("warning: --vocab_size %lld: the training text gives a vocabulary of only %d, which the model "
        "takes\n", (long long)o->vocab_size, corpus->vocab_size);
  o->vocab_size_asked = o->vocab_size;
  if (!c.vocab_given || !tokenizer[0]) o->vocab_size = corpus->vocab_size;     // else rows after its ids are padding
}

SamplerOptions sampler_options(const Options *o) {
  return SamplerOptions{o->batch_size, o->seq_len, o->global_batch / o->batch_size, o->shuffle == OPT_shuffle_on,
                        o->drop_last == OPT_drop_last_on, (uint64_t)o->seed};
}

// Whether two paths lead to the same file or directory, also through links.
static bool start_same(const char *a, const char *b) {
  struct stat x, y;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
// Rank 0: an error if the run would replace or move a file of weights that it reads, and that checkpoints of its
// adapters need later.
static bool start_spares(const Start *s, const Options *o, Error *error) {
  const bool adapter = o->lora && !o->merge, gguf = o->export_gguf != OPT_export_gguf_off;
  const struct { const char *option, *name; } written[] = {
      {gguf ? "--export_gguf" : NULL, adapter ? "adapter.gguf" : "model.gguf"},
      {o->save_model ? "--save_model" : NULL, "model.safetensors"}};
  REJECT(o->export_hf[0] && o->lora_from[0] && start_same(o->export_hf, o->lora_from), "--export_hf %.900s would "
         "replace the adapter that this run reads: name another directory", o->export_hf);
  REJECT(s->kind == START_CHECKPOINT && !s->resume && o->lora && run_trains(o) && start_is_in(o->out, s->path), "a new "
         "run in --out %.600s would move %.600s aside, which checkpoints of its adapters need: name another directory "
         "by --out", o->out, s->path);
  for (const Start *from : {s, (const Start *)s->base}) {
    const char *file;
    for (int i = 0; from && from->kind == START_IMPORT && (file = import_file(from->import, i)); i++) {
      char path[MAP_PATH_BYTES], directory[MAP_PATH_BYTES];
      const char *needed = o->lora ? ", and which checkpoints of its adapters need" : "";
      snprintf(directory, sizeof directory, "%s%.*s", *file == '/' ? "" : "./", (int)(path_base(file) - file), file);
      for (const auto &w : written) {
        path_join(path, sizeof path, o->out, w.name);
        REJECT(w.option && start_same(path, file), "%s would replace %.900s, which this run reads%s: name another "
               "directory by --out", w.option, file, needed);
      }
      path_join(path, sizeof path, o->export_hf, "model.safetensors");
      const bool inside = from->weights.kind == IMPORT_HF_DIRECTORY && start_same(o->export_hf, directory);
      REJECT(o->export_hf[0] && (inside || start_same(path, file)), "--export_hf %.900s has the weights that this run "
             "reads%s: name another directory", o->export_hf, needed);
    }
  }
  return true;
}
// Completes the options from what the run starts from, resolves them and checks that all ranks agree. `asked` receives
// them unresolved. All ranks call it.
static void agree_on_options(Options *o, Options *asked, Start *start, MPI_Comm comm) {
  Error error = {};
  const int rank = comm_rank(comm), world = comm_size(comm);
  // Another run that has OUT may be this one's last start, whose rank 0 takes long to die: worth a start later. Where
  // OUT has no run, nothing in it is read, and a start that is rejected leaves no .lock there: check_out locks it.
  int code = !rank && overwrite_out_is_ours(o->out) && !lock_out(o, &error) ? EXIT_LOST : EXIT_MISSING;
  if (!rank && !error.text[0] && start_find(start, o, &error))
    start_find_template(start, o, &error);
  MPI_Bcast(&code, 1, MPI_INT, 0, comm);
  agree_no_error(comm, error.text, code);
  start_share(start, comm);
  const int per_host = ranks_per_host(comm);     // all ranks call it: before any rank may return with an error
  const bool started = start_options(start, o, &error);
  *asked = *o;
  start_exact(start, asked);
  if (started && start_check_ranks(start, o, world, &error))
    options_resolve(o, world, per_host, &error);
  if (error.text[0]) config_name_source(o, &error);
  agree_no_error(comm, error.text, EXIT_USAGE);
  agree_on_run(comm, o);
  if (!rank && start_spares(start, o, &error)) overwrite_reject(o, &error);
  agree_no_error(comm, error.text, EXIT_USAGE);
  code = EXIT_MISSING;
  if (!rank && saver_check(o, &error)) code = check_out(o, &error);
  MPI_Bcast(&code, 1, MPI_INT, 0, comm);
  agree_no_error(comm, error.text, code);
  if (!rank && start->warnings[0]) start_print_warnings(start);
}

// Writes OUT/tokenizer.json and the first record of OUT/metrics.jsonl. All ranks call it; ends all ranks with one line
// if they cannot be written.
static Log *open_files(const RunView *run, const Start *start) {
  char path[OPTION_TEXT_BYTES + 32];
  Error error = {};
  const bool trains = run_trains(run->opt), append = start->here || !trains;
  Log *log = log_open(run, append, start->path, &error);          // first: it tells whose OUT is
  snprintf(path, sizeof path, "%s/tokenizer.json", run->opt->out);
  if (!error.text[0] && !fsdp_rank(run->fsdp) && run->corpus->has_tokenizer && trains && !start->here)
    tokenizer_save(&run->corpus->tokenizer, path, &error);
  agree_no_error(fsdp_comm(run->fsdp), error.text, EXIT_MISSING);
  return log;
}

bool shape_of_weights(Options *o, char *name, size_t name_bytes, Error *error) {
  static Start s;
  if (!o->init_from[0] || o->resume[0]) return true;
  const bool ok = start_find(&s, o, error) && (s.kind != START_IMPORT || start_options(&s, o, error));
  if (ok && s.kind == START_IMPORT) {
    const char *words = start_model_name(&s, o);
    snprintf(name, name_bytes, "%s", words ? words : "");
    if (!o->given[OPT_batch_size] && !o->given[OPT_grad_accum] && !o->given[OPT_global_batch])
      o->conversations = TUNING_CONVERSATIONS;   // assumed: a start reads them
    o->given[OPT_batch_size] = true;             // else it is as many as fit
    if (!o->json) start_print_warnings(&s);
  }
  start_free(&s);
  return ok;
}
