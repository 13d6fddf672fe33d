// saved.h: the format of a checkpoint, its directory, and loading.
//
//   OUT/ckpt/step_%08d/   model.safetensors   parameters, fp32, logical shapes, matrices as (out, in)
//                         optim.safetensors   exp_avg.NAME and exp_avg_sq.NAME; of SGD and of Muon's matrices
//                                             momentum_buffer.NAME
//                         tokenizer.json      where the data is text
//                         trainer.json        configuration, step, what changes from step to step, checksums
//   OUT/ckpt/latest, best                     symbolic links
//
//   1 maps         which byte belongs to which tensor: from shapes alone, so it is the same for every number of ranks
//   2 trainer.json written last; its last line is the checksum of all before it
//   3 directory    what is there, which is newest, what is removed
//   4 loading      checkpoint_load          (saving: run/saver.h)
//
// A checkpoint gets its name step_* by rename, when all its files are whole and on the disk, and loses it by rename
// before any of its files is removed. So a process that is killed at any instant leaves whole checkpoints, and names
// that start with a dot, which the next save removes. The newest checkpoint is the one saved last (`serial`), not the
// one of the highest step: a run may resume from an earlier step.
#pragma once
#include "base/newfile/newfile.h"
#include "store.h"

static const char *const checkpoint_files[] = {"model.safetensors", "optim.safetensors"};
static_assert((int)CHECKPOINT_FILES <= (int)MAP_MAX_FILES, "a checkpoint's map has both files");
static const int64_t CHECKPOINT_MOST_STEPS = (int64_t)1 << 40;   // so that samples can still be counted

// ================================================================================================ 1 maps
static bool checkpoint_has(const Saved *saved, int state, int param) {
  const Param *p = fsdp_param(saved->fsdp, param);
  if (saved->part == SAVED_ADAPTERS ? !param_trains_beside(p) : saved->part == SAVED_BASE && p->adapter) return false;
  return !state || state <= fsdp_param_state(saved->fsdp, param).moments;
}
void checkpoint_map(const Saved *saved, const char *directory, TensorMap *m, char *header[CHECKPOINT_FILES]) {
  const Fsdp *f = saved->fsdp;
  typedef char Name[96];
  Name *names = (Name *)malloc(sizeof(Name) * (size_t)(MAP_STATES * fsdp_params(f)));
  SafetensorsTensor *list = (SafetensorsTensor *)calloc((size_t)(MAP_STATES * fsdp_params(f)),
                                                        sizeof(SafetensorsTensor));
  char heads[16];
  snprintf(heads, sizeof heads, "%d", saved->heads);
  const char *const metadata[] = {"format", "pt", "layout", "out,in", saved->heads ? "n_head" : NULL, heads, NULL};
  tensor_map_open(m, fsdp_params(f));
  m->files = CHECKPOINT_FILES;
  for (int file = 0; file < CHECKPOINT_FILES; file++) {
    const int from = file == CHECKPOINT_MODEL ? 0 : 1, to = file == CHECKPOINT_MODEL ? 1 : MAP_STATES;
    int count = 0;
    for (int i = 0; i < (to - from) * fsdp_params(f); i++) {
      const int number = i % fsdp_params(f), state = from + i / fsdp_params(f);
      const Param *p = fsdp_param(f, number);
      if (!checkpoint_has(saved, state, number)) continue;
      const char *first = fsdp_param_state(f, number).moments == 1 ? "momentum_buffer." : "exp_avg.";     // SGD, Muon
      snprintf(names[count], sizeof names[count], "%s%s", !state ? "" : state == 1 ? first : "exp_avg_sq.", p->name);
      list[count] = SafetensorsTensor{};
      list[count].name = names[count];
      list[count].dtype = F32;
      list[count].ndim = p->ndim;
      for (int d = 0; d < p->ndim; d++) list[count].shape[d] = p->shape[d];
      count++;
    }
    header[file] = safetensors_header(list, count, metadata, &m->data_at[file]);
    for (int i = 0, at = 0; i < (to - from) * fsdp_params(f); i++)
      if (checkpoint_has(saved, from + i / fsdp_params(f), i % fsdp_params(f)))
        *tensor_place(m, from + i / fsdp_params(f), i % fsdp_params(f)) = {file, F32, false, list[at++].at, 0, 0};
    m->file_bytes[file] = count ? list[count - 1].at + list[count - 1].bytes : m->data_at[file];
    path_join(m->path[file], MAP_PATH_BYTES, directory, checkpoint_files[file]);
  }
  free(names);
  free(list);
}

// ================================================================================================ 2 trainer.json
// The start of a checkpoint's quality in the text of trainer.json; with its newline it cannot be inside a JSON string.
static const char checkpoint_quality[] = "\n\"quality\":{\"loss\":";
static void checkpoint_write_quality(FILE *f, CheckpointQuality q) {
  json_number(f, "valid_loss", q.valid_loss);
  json_number(f, "best_valid_loss", q.best_loss);
  fprintf(f, ",\"evaluated_step\":%lld,\"best\":%s", (long long)q.evaluated_step, q.best ? "true" : "false");
}
void checkpoint_write_head(FILE *f, const Saved *saved, int64_t serial, CheckpointQuality q) {
  const StepState *s = saved->state;
  const int64_t step = *saved->step, epoch = max64(1, saved->steps_per_epoch);
  const time_t now = time(NULL);
  char date[32];
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
  fprintf(f, "{\n\"format\":\"train_gpt_fsdp checkpoint\",\"format_version\":%d,\"program\":\"%s\",\"build\":\"%s\",\n",
          CHECKPOINT_VERSION, saved->program, saved->build);
  fprintf(f, "\"written\":\"%s\",\"serial\":%lld,\"ranks\":%d,\"ops\":\"%s\",\"device\":", date, (long long)serial,
          fsdp_world(saved->fsdp), saved->ctx->ops->name);
  json_text(f, saved->device_words);
  fprintf(f, ",\"gpu_head_chunk_bytes\":%lld", (long long)saved->gpu_head_chunk_bytes);
  fprintf(f, ",\n\"step\":%lld,\"steps_total\":%lld,\"epoch\":%lld,\"step_in_epoch\":%lld,\"samples\":%lld,\n",
          (long long)step, (long long)saved->steps_total, (long long)(step / epoch), (long long)(step % epoch),
          (long long)(step * saved->global_batch));
  fprintf(f, "\"state\":{\"updates\":%lld,\"good_steps\":%d", (long long)s->updates, s->good_steps);
  json_number(f, "loss_scale", s->loss_scale);
  json_number(f, "beta1_power", s->beta1_power);
  json_number(f, "beta2_power", s->beta2_power);
  fprintf(f, "},%s%.17g", checkpoint_quality, isfinite(s->loss) ? s->loss : 0);
  checkpoint_write_quality(f, q);
  fprintf(f, "},\n\"corpus\":{\"hash\":\"%016llx\",\"source\":", (unsigned long long)saved->corpus->hash);
  json_text(f, saved->corpus->source);
  fprintf(f, ",\"vocab_size_asked\":%lld", (long long)saved->vocab_size_asked);
  fprintf(f, "%s},\n", saved->corpus->split[SPLIT_TRAIN].texts ? ",\"divided\":true" : "");
  if (saved->part == SAVED_ADAPTERS)
    fprintf(f, "\"base\":{\"hash\":\"%016llx\"},\n", (unsigned long long)saved->base_hash);
  if (saved->reference_hash)
    fprintf(f, "\"reference\":{\"hash\":\"%016llx\"},\n", (unsigned long long)saved->reference_hash);
  char *published = saved->published ? cJSON_PrintUnformatted(saved->published) : NULL;
  if (published) fprintf(f, "\"published\":%s,\n", published);
  cJSON_free(published);
  if (saved->chat) fprintf(f, "\"chat\":%s,\n", saved->chat);
  if (saved->algorithms) {
    fprintf(f, "\"matmul_algorithms\":");
    json_text(f, saved->algorithms);
    fprintf(f, ",\n");
  }
  fprintf(f, "\"config\":{");
  saved->write_config(f, saved->options);
  fprintf(f, "},\n");
}
void checkpoint_write_tail(FILE *f, const TensorMap *m, const uint32_t *checksums, const char *tokenizer,
                           int64_t tokenizer_bytes, uint64_t tokenizer_hash_) {
  if (tokenizer)
    fprintf(f, "\"tokenizer\":{\"bytes\":%lld,\"crc32c\":\"%08x\",\"hash\":\"%016llx\"},\n", (long long)tokenizer_bytes,
            crc32c(0, tokenizer, (size_t)tokenizer_bytes), (unsigned long long)tokenizer_hash_);
  fprintf(f, "\"files\":{");
  for (int i = 0; i < CHECKPOINT_FILES; i++) {
    fprintf(f, "%s\n\"%s\":{\"bytes\":%lld,\"header_bytes\":%lld,\"block_bytes\":%d,\"crc32c\":\"", i ? "," : "",
            checkpoint_files[i], (long long)m->file_bytes[i], (long long)m->data_at[i], STORE_BLOCK_BYTES);
    for (int64_t b = 0; b < map_blocks(m, i); b++) fprintf(f, "%08x", *checksums++);
    fprintf(f, "\"}");
  }
  fprintf(f, "},\n");
}
static const char checkpoint_seal[] = "\"crc32c\":\"";
// The last line: the checksum of all bytes before it. Returns malloc'ed text of *bytes.
enum { CHECKPOINT_SEAL_BYTES = sizeof checkpoint_seal - 1 + 8 + 3 };           // "crc32c":"01234567"}\n
static void checkpoint_seal_of(const char *text, size_t text_bytes, char seal[CHECKPOINT_SEAL_BYTES + 1]) {
  snprintf(seal, CHECKPOINT_SEAL_BYTES + 1, "%s%08x\"}\n", checkpoint_seal, crc32c(0, text, text_bytes));
}
char *checkpoint_sealed(const char *text, size_t text_bytes, size_t *bytes) {
  char *all = (char *)malloc(text_bytes + CHECKPOINT_SEAL_BYTES + 1);
  memcpy(all, text, text_bytes);
  checkpoint_seal_of(text, text_bytes, all + text_bytes);
  *bytes = text_bytes + CHECKPOINT_SEAL_BYTES;
  return all;
}

bool json_int(const cJSON *o, const char *key, double lo, double hi, int64_t *to) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
  if (!cJSON_IsNumber(v) || !(v->valuedouble >= lo && v->valuedouble <= hi) || v->valuedouble != floor(v->valuedouble))
    return false;
  *to = (int64_t)v->valuedouble;
  return true;
}
// null: INFINITY.
static bool json_real(const cJSON *o, const char *key, double *to) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
  if (!cJSON_IsNumber(v) && !cJSON_IsNull(v)) return false;
  *to = cJSON_IsNull(v) ? INFINITY : v->valuedouble;
  return true;
}
// Digits as "%08x" writes them; another spelling of the same number is rejected.
static bool hex_32(const char *digits, uint32_t *to) {
  *to = 0;
  for (int i = 0; i < 8; i++) {
    const char c = digits[i];
    if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return false;
    *to = *to << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return true;
}
bool json_hex(const cJSON *o, const char *key, uint64_t *to) {
  const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
  char *end = NULL;
  if (s) *to = strtoull(s, &end, 16);
  return s && *s && !*end;
}

cJSON *checkpoint_parse(const char *path, const char *text, size_t bytes, Error *error) {
  cJSON *json = NULL;
  int64_t version = 0;
  const char *line = bytes > CHECKPOINT_SEAL_BYTES ? text + bytes - CHECKPOINT_SEAL_BYTES : text;
  const char *fault = NULL;
  char seal[CHECKPOINT_SEAL_BYTES + 1];
  checkpoint_seal_of(text, (size_t)(line - text), seal);
  if (line == text || memcmp(line, checkpoint_seal, sizeof checkpoint_seal - 1))
    fault = "is cut short or was not written by this program";
  else if (memcmp(line, seal, CHECKPOINT_SEAL_BYTES)) fault = "is damaged: its checksum does not match";
  else if (!(json = cJSON_ParseWithLength(text, bytes))) fault = "is damaged: it is not JSON";
  else if (!json_int(json, "format_version", 1, 1e9, &version)) fault = "has no format_version";
  if (fault) fail(error, "%s/trainer.json %s", path, fault);
  else if (version != CHECKPOINT_VERSION)
    fail(error, "%s/trainer.json is of format %lld; this program reads %d: use a newer train_gpt_fsdp", path,
         (long long)version, CHECKPOINT_VERSION);
  else return json;
  cJSON_Delete(json);
  return NULL;
}
bool checkpoint_state(const char *directory, const cJSON *json, CheckpointState *c, Error *error) {
  const cJSON *s = cJSON_GetObjectItemCaseSensitive(json, "state");
  const cJSON *quality = cJSON_GetObjectItemCaseSensitive(json, "quality");
  double scale = 0;
  int64_t good = 0;
  uint64_t tokenizer = 0;
  const char *bad = NULL;
  if (!json_int(json, "step", 0, (double)CHECKPOINT_MOST_STEPS, &c->step)) bad = "step";
  else if (!json_int(json, "serial", 0, 0x1p53, &c->serial)) bad = "serial";
  else if (!json_int(s, "updates", 0, (double)c->step, &c->updates)) bad = "state.updates";
  else if (!json_int(s, "good_steps", 0, 1e9, &good)) bad = "state.good_steps";
  else if (!json_real(s, "loss_scale", &scale) || !(scale > 0 && scale < 1e30)) bad = "state.loss_scale";
  else if (!json_real(s, "beta1_power", &c->beta1_power) || !(c->beta1_power >= 0 && c->beta1_power <= 1))
    bad = "state.beta1_power";
  else if (!json_real(s, "beta2_power", &c->beta2_power) || !(c->beta2_power >= 0 && c->beta2_power <= 1))
    bad = "state.beta2_power";
  else if (!json_real(quality, "loss", &c->loss)) bad = "quality.loss";
  else if (!json_real(quality, "valid_loss", &c->valid_loss)) bad = "quality.valid_loss";
  else if (!json_real(quality, "best_valid_loss", &c->best_loss)) bad = "quality.best_valid_loss";
  else if (!json_hex(cJSON_GetObjectItemCaseSensitive(json, "corpus"), "hash", &c->corpus_hash)) bad = "corpus.hash";
  json_hex(cJSON_GetObjectItemCaseSensitive(json, "tokenizer"), "hash", &tokenizer);
  if (!json_int(quality, "evaluated_step", 0, 0x1p40, &c->evaluated_step)) c->evaluated_step = -1;
  c->good_steps = (int)good;
  c->loss_scale = (float)scale;
  c->tokenizer_hash = tokenizer;
  REJECT(bad, "%s/trainer.json: %s is missing or out of range", directory, bad);
  return true;
}
// Fills checksums (of the blocks of the map's files) from trainer.json in `directory`; the sizes must be the map's.
static bool checkpoint_checksums(const char *directory, const cJSON *json, const TensorMap *m, uint32_t *checksums,
                                 Error *error) {
  const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "files");
  for (int i = 0; i < m->files; i++) {
    const cJSON *file = cJSON_GetObjectItemCaseSensitive(files, checkpoint_files[i]);
    const char *hex = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(file, "crc32c"));
    int64_t bytes = 0, header = 0, block = 0;
    REJECT(!json_int(file, "bytes", 0, 0x1p53, &bytes) || !json_int(file, "header_bytes", 0, 0x1p53, &header) ||
           !json_int(file, "block_bytes", 0, 0x1p53, &block) || !hex, "%s/trainer.json: the entry of %s in files is "
           "missing or incomplete", directory, checkpoint_files[i]);
    REJECT(bytes != m->file_bytes[i] || header != m->data_at[i], "%s/trainer.json: %s is %lld bytes with a header of "
           "%lld; this model's has %lld and %lld", directory, checkpoint_files[i], (long long)bytes, (long long)header,
           (long long)m->file_bytes[i], (long long)m->data_at[i]);
    REJECT(block != STORE_BLOCK_BYTES || (int64_t)strlen(hex) != 8 * map_blocks(m, i), "%s/trainer.json: the checksums "
           "of %s are not 8 digits for each of its %lld blocks of %d bytes", directory, checkpoint_files[i],
           (long long)map_blocks(m, i), STORE_BLOCK_BYTES);
    for (int64_t b = 0; b < map_blocks(m, i); b++)
      REJECT(!hex_32(hex + 8 * b, checksums++), "%s/trainer.json: checksum %lld of %s is not hexadecimal", directory,
             (long long)b, checkpoint_files[i]);
  }
  return true;
}

// ================================================================================================ 3 directory
char *checkpoint_text(const char *directory, int64_t *bytes, Error *error) {
  char path[MAP_PATH_BYTES];
  path_join(path, sizeof path, directory, "trainer.json");
  char *text = file_get(path, TRAINER_JSON_MOST_BYTES, bytes);
  if (!text) fail(error, "cannot read %s: %s", path, file_get_fault());
  return text;
}
bool checkpoint_note(const char *directory, CheckpointQuality q, Error *error) {
  static const char *const leftovers[] = {"trainer.json.tmp", NULL};
  char path[MAP_PATH_BYTES], *noted = NULL;
  int64_t bytes;
  size_t noted_bytes = 0;
  path_join(path, sizeof path, directory, "trainer.json");
  char *text = checkpoint_text(directory, &bytes, error);
  cJSON *json = text ? checkpoint_parse(directory, text, (size_t)bytes, error) : NULL;
  const char *from = json ? strstr(text, checkpoint_quality) : NULL, *to = from ? strchr(from + 1, '}') : NULL;
  if (to) from = strchr(from + sizeof checkpoint_quality - 1, ',');            // the training loss stays
  if (json && !to) fail(error, "%s has no quality", path);
  if (FILE *f = to ? open_memstream(&noted, &noted_bytes) : NULL) {
    fwrite(text, 1, (size_t)(from - text), f);
    checkpoint_write_quality(f, q);
    fwrite(to, 1, (size_t)(text + bytes - to) - CHECKPOINT_SEAL_BYTES, f);
    fclose(f);
    char *sealed = checkpoint_sealed(noted, noted_bytes, &noted_bytes);
    directory_sweep(directory, leftovers);       // of a process that was killed here
    if (!file_put(path, directory, sealed, (int64_t)noted_bytes))
      fail(error, "cannot write %s: %s", path, strerror(errno));
    free(sealed);
    free(noted);
  }
  cJSON_Delete(json);
  free(text);
  return !error->text[0];
}
// Whether a file of a checkpoint has the size that trainer.json records in `file`.
static bool checkpoint_has_file(const char *directory, const char *name, const cJSON *file, Error *error) {
  char path[MAP_PATH_BYTES];
  struct stat st;
  int64_t want = -1;
  json_int(file, "bytes", 0, 0x1p53, &want);
  path_join(path, sizeof path, directory, name);
  REJECT(stat(path, &st), "%.900s cannot be found: %s", path, strerror(errno));
  REJECT(!S_ISREG(st.st_mode) || st.st_size != want, "%.900s has %lld bytes, not the %lld that were written", path,
         (long long)st.st_size, (long long)want);
  return true;
}
// The serial of the checkpoint in `directory`; -1 and the reason when it is not whole: a file is missing or short.
// best: whether it was the best so far when it was saved.
static int64_t checkpoint_serial(const char *directory, bool *best, Error *error) {
  int64_t bytes, serial = -1;
  char *text = checkpoint_text(directory, &bytes, error);
  cJSON *json = text ? checkpoint_parse(directory, text, (size_t)bytes, error) : NULL;
  CheckpointState c;
  if (json && checkpoint_state(directory, json, &c, error)) serial = c.serial;
  for (int i = 0; i < CHECKPOINT_FILES && serial >= 0; i++) {
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "files");
    const cJSON *file = cJSON_GetObjectItemCaseSensitive(files, checkpoint_files[i]);
    if (!checkpoint_has_file(directory, checkpoint_files[i], file, error)) serial = -1;
  }
  const cJSON *tokenizer = cJSON_GetObjectItemCaseSensitive(json, "tokenizer");
  if (serial >= 0 && tokenizer && !checkpoint_has_file(directory, "tokenizer.json", tokenizer, error))
    serial = -1;
  *best = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(json, "quality"), "best"));
  cJSON_Delete(json);
  free(text);
  return serial;
}

static int64_t checkpoint_step(const char *name) { return strtoll(name + strcspn(name, "0123456789"), NULL, 10); }
static int listed_order(const void *a, const void *b) {          // newest first
  const Listed *x = (const Listed *)a, *y = (const Listed *)b;
  return x->serial < y->serial ? 1 : x->serial > y->serial ? -1 : strcmp(y->name, x->name);
}
Listed *checkpoint_list(const char *directory, int *count, char *damaged, size_t damaged_bytes) {
  Listed *list = NULL;
  *count = 0;
  damaged[0] = 0;
  directory_each(directory, [&](const char *name, const char *path) {
    Error why = {};
    int digits = 0;
    if (sscanf(name, "step_%*[0-9]%n", &digits) != 0 || digits < 13 || name[digits] || digits > 31) return;
    list = (Listed *)realloc(list, sizeof(Listed) * (size_t)(*count + 1));
    Listed *l = &list[(*count)++];
    snprintf(l->name, sizeof l->name, "%.31s", name);
    l->serial = checkpoint_serial(path, &l->best, &why);
    if (l->serial < 0 && !damaged[0]) snprintf(damaged, damaged_bytes, "%s", why.text);
  });
  if (*count) qsort(list, (size_t)*count, sizeof *list, listed_order);
  return list;
}

bool checkpoint_remove(const char *directory, const char *name) {
  char from[MAP_PATH_BYTES], to[MAP_PATH_BYTES], hidden[64];
  snprintf(hidden, sizeof hidden, ".removed_%.32s", name);
  path_join(from, sizeof from, directory, name);
  path_join(to, sizeof to, directory, hidden);
  file_remove(to);
  if (file_rename(from, to)) return file_remove(to);
  if (errno != EXDEV) return false;
  // A directory of a lower layer of overlayfs cannot be renamed. Without trainer.json it is no checkpoint any more.
  path_join(to, sizeof to, from, "trainer.json");
  return file_remove(to) && file_remove(from);
}
void directory_sweep(const char *directory, const char *const *starts) {
  directory_each(directory, [=](const char *name, const char *path) {
    const char *const *start = starts;
    while (*start && strncmp(name, *start, strlen(*start))) start++;
    if (*start && !name[strlen(*start) + strspn(name + strlen(*start), "0123456789_step")]) file_remove(path);
  });
}
// Sets a link of the directory, for people, to `name`, or removes it if that is NULL. The program uses serials.
static void checkpoint_link(const char *directory, const char *link, const char *name) {
  char path[MAP_PATH_BYTES], before[64] = "";
  path_join(path, sizeof path, directory, link);
  const ssize_t n = readlink(path, before, sizeof before - 1);
  if (!name && n >= 0) file_remove(path);
  if (name && (n < 0 || strcmp(before, name))) file_link(name, path);
}
bool checkpoint_prune(const char *directory, int64_t keep, bool keep_best) {
  char damaged[1024];
  int count, best = 0;
  bool gone = true;
  Listed *list = checkpoint_list(directory, &count, damaged, sizeof damaged);
  while (best < count && !(list[best].serial >= 0 && list[best].best)) best++;
  const bool has_best = best < count && (!keep || best < keep || keep_best);
  if (count && list[0].serial >= 0) checkpoint_link(directory, "latest", list[0].name);
  checkpoint_link(directory, "best", has_best ? list[best].name : NULL);
  for (int i = 0; i < count; i++)
    if (keep && i >= keep && list[i].serial >= 0 && !(keep_best && i == best))
      gone = checkpoint_remove(directory, list[i].name) && gone;
  free(list);
  return gone;
}
// The whole checkpoint that was saved before the one in `directory`, beside it; "" if there is none. A damaged one has
// no readable serial: then the steps in the names decide.
static void checkpoint_before(const char *directory, char *before, size_t bytes) {
  char parent[MAP_PATH_BYTES], damaged[1024];
  int count = 0;
  before[0] = 0;
  snprintf(parent, sizeof parent, "%s", directory);
  while (strlen(parent) > 1 && parent[strlen(parent) - 1] == '/') parent[strlen(parent) - 1] = 0;
  char *slash = strrchr(parent, '/');
  if (!slash || slash == parent) return;
  *slash = 0;
  Listed *list = checkpoint_list(parent, &count, damaged, sizeof damaged);
  int ours = 0, found = 0;
  while (ours < count && strcmp(list[ours].name, slash + 1)) ours++;
  const bool listed = ours < count && list[ours].serial >= 0;
  if (listed) found = ours + 1;
  while (!listed && found < count && checkpoint_step(list[found].name) >= checkpoint_step(slash + 1)) found++;
  if (found < count && ours < count && list[found].serial >= 0) path_join(before, bytes, parent, list[found].name);
  free(list);
}
void checkpoint_hint(const char *directory, Error *error) {
  char before[MAP_PATH_BYTES];
  checkpoint_before(directory, before, sizeof before);
  if (before[0]) text_add(error->text, sizeof error->text, "; --resume %s takes the one before", before);
}

// ================================================================================================ 4 loading
// What is wrong with tensor x of a file, or NULL; w: its entry in the expected header, NULL if there is none.
static const char *checkpoint_tensor_fault(const SafetensorsTensor *x, const cJSON *w, int64_t header_bytes) {
  const cJSON *begin = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(w, "data_offsets"), 0);
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(w, "shape");
  if (!w) return "does not belong to this model, or is frozen";
  if (!x->known_dtype || x->dtype != F32) return "is not F32";
  if (cJSON_GetArraySize(shape) != x->ndim) return "has another shape";
  for (int d = 0; d < x->ndim; d++)
    if (cJSON_GetNumberValue(cJSON_GetArrayItem(shape, d)) != (double)x->shape[d]) return "has another shape";
  return cJSON_GetNumberValue(begin) + (double)header_bytes != (double)x->at ? "is not where it was written" : NULL;
}
// Rank 0: compares a header on the disk with the one that this model has. The error names a tensor: one that is missing
// or extra if there is one, else one at another place, which may only follow from that.
static bool checkpoint_check_header(const char *path, const char *want, int64_t header_bytes, Error *error) {
  char *got = (char *)malloc((size_t)header_bytes);
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);        // a FIFO must not block
  const bool same = fd >= 0 && file_read(fd, got, header_bytes, 0) && !memcmp(got, want, (size_t)header_bytes);
  if (fd >= 0) close(fd);
  free(got);
  if (same) return true;
  SafetensorsFile there;
  if (!safetensors_open(&there, path)) { fail(error, "%s", there.error); return false; }
  cJSON *here = cJSON_ParseWithLength(want + 8, (size_t)header_bytes - 8);
  fail(error, "%s: its header is not the one that was written", path);
  for (int i = 0, told = 0; i < there.count; i++) {
    const SafetensorsTensor *x = &there.tensor[i];
    const cJSON *w = cJSON_GetObjectItemCaseSensitive(here, x->name);
    const char *fault = checkpoint_tensor_fault(x, w, header_bytes);
    if (!fault || (told && w)) continue;
    fail(error, "%s: tensor %s %s", path, x->name, fault);
    told = 1;
    if (!w) break;
  }
  const cJSON *w;
  cJSON_ArrayForEach(w, here) {
    bool found = !strcmp(w->string, "__metadata__");
    for (int i = 0; i < there.count; i++) found = found || !strcmp(there.tensor[i].name, w->string);
    if (found) continue;
    fail(error, "%s: tensor %s is missing", path, w->string);
    break;
  }
  cJSON_Delete(here);
  safetensors_close(&there);
  return false;
}

void checkpoint_load(const Saved *saved, const char *directory, const cJSON *json, uint32_t json_checksum, bool resume,
                     LoadProgress progress) {
  char *header[CHECKPOINT_FILES];
  Error error = {};
  TensorMap map;
  CheckpointState c;
  MPI_Comm comm = fsdp_comm(saved->fsdp);
  checkpoint_map(saved, directory, &map, header);
  uint32_t *checksums = (uint32_t *)calloc((size_t)(map_blocks(&map, 0) + map_blocks(&map, 1)), sizeof(uint32_t));
  if (!resume) map.files = 1;                    // model only: the file of optim may be another optimizer's
  checkpoint_state(directory, json, &c, &error);
  // Headers come before checksums: an error in a header names the tensor.
  for (int i = 0; i < map.files && !fsdp_rank(saved->fsdp) && !error.text[0]; i++)
    checkpoint_check_header(map.path[i], header[i], map.data_at[i], &error);
  if (!error.text[0]) checkpoint_checksums(directory, json, &map, checksums, &error);
  if (error.text[0]) checkpoint_hint(directory, &error);
  agree_no_error(comm, error.text, EXIT_MISSING);
  StoreLoad l = {};
  l.map = &map;
  l.checksums = checksums;
  l.seen = json_checksum;
  store_load(saved->store, l, resume ? STATES_ALL : STATES_WEIGHTS, &error, progress);
  if (error.text[0]) checkpoint_hint(directory, &error);
  agree_no_error(comm, error.text, EXIT_MISSING);
  for (char *h : header) free(h);
  free(checksums);
  tensor_map_free(&map);
  if (!resume) return;
  StepState *s = saved->state;
  s->loss = c.loss;
  s->updates = c.updates;
  const cJSON *config = cJSON_GetObjectItemCaseSensitive(json, "config");
  const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "buffer_dtype"));
  // Programs before 0.4 had one dtype for both.
  if (!dtype) dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "param_dtype"));
  if (!saved->fixed_loss_scale && dtype && !strcmp(dtype, saved->buffer_dtype)) {  // a loss scale fits only its dtype
    s->good_steps = c.good_steps;
    *saved->loss_scale = s->loss_scale = c.loss_scale;
  }
  s->beta1_power = c.beta1_power;
  s->beta2_power = c.beta2_power;
  saved->ctx->ops->copy(saved->ctx, saved->state_on_device, s, sizeof *s);
  saved->ctx->ops->sync(saved->ctx);
  *saved->step = c.step;
}
