// safetensors_set.h: weights in one safetensors file, or in several that a model.safetensors.index.json names (what
// transformers' save_pretrained writes above max_shard_size). Reading tensors by name is the same for both.
//
// Every function that can fail returns false and leaves one line in `error`. Call set_close in any case.
#pragma once
#include "safetensors.h"
#include "tensor_map.h"

// Reads a file of at most `most` bytes that is one JSON object. JSON that is nested deeply cannot exhaust the stack:
// cJSON has a limit for it.
cJSON *import_read_json(const char *path, int64_t most, Error *error) {
  int64_t bytes;
  char *text = file_get(path, most, &bytes);
  if (!text && errno == EFBIG)
    fail(error, "%s: has more than %lld bytes, too many for such a file", path, (long long)most);
  else if (!text) fail(error, "%s: cannot read it: %s", path, file_get_fault());
  if (!text) return NULL;
  const char *foreign = file_foreign(text, (size_t)bytes), *stopped = text;    // stopped: where JSON stops being valid
  const bool plain = !foreign && !memchr(text, 0, (size_t)bytes);
  cJSON *root = plain ? cJSON_ParseWithLengthOpts(text, (size_t)bytes + 1, &stopped, true) : NULL;
  if (foreign) fail(error, "%s: is %s", path, foreign);
  else if (!root)
    fail(error, "%s: is not JSON from byte %td of %lld on", path, stopped - text, (long long)bytes);
  else if (!cJSON_IsObject(root)) fail(error, "%s: is not a JSON object", path);
  free(text);
  if (cJSON_IsObject(root)) return root;
  cJSON_Delete(root);
  return NULL;
}

void set_close(SafetensorsSet *s) {
  for (int i = 0; i < s->count; i++) safetensors_close(&s->shard[i].file);
  free(s->shard);
  *s = {};
}
SafetensorsShard *set_grow(SafetensorsSet *s, const char *path) {
  s->shard = (SafetensorsShard *)realloc(s->shard, sizeof *s->shard * (size_t)(s->count + 1));
  if (!s->shard) die_missing("no memory for the names of %d files of weights", s->count + 1);
  SafetensorsShard *x = &s->shard[s->count];
  *x = {};
  snprintf(x->path, sizeof x->path, "%s", path);
  return x;
}
bool set_open(SafetensorsSet *s, const char *path, Error *error) {
  REJECT(strlen(path) >= MAP_PATH_BYTES, "%.60s...: the path is too long", path);
  SafetensorsShard *x = set_grow(s, path);
  REJECT(!safetensors_open(&x->file, path), "%s", x->file.error);
  s->count++;
  return true;
}
const SafetensorsTensor *set_entry(const SafetensorsSet *s, const char *name, int *shard) {
  for (int i = 0; i < s->count; i++) {
    const SafetensorsTensor *t = safetensors_entry(&s->shard[i].file, name);
    if (!t) continue;
    if (shard) *shard = i;
    return t;
  }
  return NULL;
}
bool set_rename(SafetensorsSet *s, size_t more, void (*to)(char *name, const void *with), const void *with,
                Error *error) {
  for (int k = 0; k < s->count; k++) {
    SafetensorsFile *f = &s->shard[k].file;
    size_t bytes = 1;
    for (int i = 0; i < f->count; i++) bytes += strlen(f->tensor[i].name) + 1 + more;
    char *at = f->names = (char *)malloc(bytes);
    if (!at) die_missing("no memory for the names of %d tensors", f->count);
    for (int i = 0; i < f->count; i++, at += strlen(at) + 1) {
      strcpy(at, f->tensor[i].name);
      to(at, with);
      f->tensor[i].name = at;
    }
    if (f->count) qsort(f->by_name, (size_t)f->count, sizeof *f->by_name, safetensors_order_names);
    for (int i = 1; i < f->count; i++)
      REJECT(!strcmp(f->by_name[i - 1]->name, f->by_name[i]->name), "%s: two tensors are %s but for what was put into "
             "their names", s->shard[k].path, safetensors_quoted(f->by_name[i]->name).text);
    for (int i = 0, first = k; i < f->count; i++)
      REJECT(set_entry(s, f->by_name[i]->name, &first) && first != k, "%s: tensor %s is in %s too, but for what was "
             "put into the names", s->shard[k].path, safetensors_quoted(f->by_name[i]->name).text,
             s->shard[first].path);
  }
  return true;
}

// ---- model.safetensors.index.json: {"metadata": {...}, "weight_map": {"tensor": "file", ...}} -----------------------
struct SetPlace { const char *tensor, *file; };
static inline int set_order(const void *a, const void *b) {
  return strcmp(((const SetPlace *)a)->tensor, ((const SetPlace *)b)->tensor);
}
// Whether a name can only be a file beside the index. Any file that is named there is opened.
static inline bool set_is_plain_name(const char *name) {
  const size_t n = strlen(name), end = sizeof ".safetensors" - 1;
  for (const char *c = name; *c; c++) if ((unsigned char)*c < 32 || *c == 127 || *c == '/') return false;
  return n > end && n < 200 && name[0] != '.' && !strcmp(name + n - end, ".safetensors");
}
static inline const char *set_base(const SafetensorsShard *x) { return strrchr(x->path, '/') + 1; }

// Opens every file that the weight_map's places name, each once.
static inline bool set_open_places(SafetensorsSet *s, const char *directory, const char *index, const SetPlace *place,
                                   int count, Error *error) {
  char path[MAP_PATH_BYTES];
  for (int i = 0; i < count; i++) {
    struct stat st;
    bool known = false;
    for (int k = 0; k < s->count; k++) known = known || !strcmp(set_base(&s->shard[k]), place[i].file);
    if (known) continue;
    REJECT(!set_is_plain_name(place[i].file), "%s: weight_map names the file %s, which is not the plain name of a "
           ".safetensors file beside it", index, safetensors_quoted(place[i].file).text);
    REJECT(s->count == MAP_MAX_FILES, "%s: weight_map names more than %d files; at most that many are read", index,
           (int)MAP_MAX_FILES);
    REJECT((size_t)snprintf(path, sizeof path, "%s/%s", directory, place[i].file) >= sizeof path, "%.60s...: the path "
           "is too long", directory);
    REJECT(stat(path, &st), "%s: this shard, which %s names for tensor %s, cannot be read: %s; fetch it", path,
           set_index_name, safetensors_quoted(place[i].tensor).text, strerror(errno));
    if (!set_open(s, path, error)) return false;
  }
  return true;
}
// Checks that each tensor of the index is in the file that it names, and that no file has one that it does not name.
static inline bool set_check_places(const SafetensorsSet *s, const char *index, const SetPlace *place, int count,
                                    Error *error) {
  int found = 0;
  for (int k = 0; k < s->count; k++)
    for (int i = 0; i < s->shard[k].file.count; i++, found++) {
      const SetPlace key = {s->shard[k].file.tensor[i].name, NULL};
      const SetPlace *p = (const SetPlace *)bsearch(&key, place, (size_t)count, sizeof key, set_order);
      const char *file = set_base(&s->shard[k]);
      REJECT(!p, "%s: weight_map does not name tensor %s, which %s has", index, safetensors_quoted(key.tensor).text,
             file);
      REJECT(strcmp(p->file, file), "%s: tensor %s is in %s, but weight_map says %s", index,
             safetensors_quoted(key.tensor).text, file, safetensors_quoted(p->file).text);
    }
  for (int i = 0; found != count && i < count; i++)
    REJECT(!set_entry(s, place[i].tensor, NULL), "%s: weight_map says that tensor %s is in %s, which has no such "
           "tensor", index, safetensors_quoted(place[i].tensor).text, safetensors_quoted(place[i].file).text);
  return true;
}
static inline bool set_open_map(SafetensorsSet *s, const char *directory, const char *index, const cJSON *map,
                                SetPlace *place, Error *error) {
  int count = 0;
  const cJSON *x;
  cJSON_ArrayForEach(x, map) {
    REJECT(!x->string || !cJSON_IsString(x), "%s: weight_map does not give the name of a file for tensor %s", index,
           safetensors_quoted(x->string ? x->string : "").text);
    place[count++] = SetPlace{x->string, x->valuestring};
  }
  qsort(place, (size_t)count, sizeof *place, set_order);
  for (int i = 1; i < count; i++)
    REJECT(!strcmp(place[i - 1].tensor, place[i].tensor), "%s: weight_map names tensor %s twice", index,
           safetensors_quoted(place[i].tensor).text);
  return set_open_places(s, directory, index, place, count, error) &&
         set_check_places(s, index, place, count, error);
}
bool set_open_index(SafetensorsSet *s, const char *directory, Error *error) {
  enum { HIGHEST_BYTES = 16 << 20 };
  char index[MAP_PATH_BYTES + 64];
  snprintf(index, sizeof index, "%s/%s", directory, set_index_name);
  cJSON *root = import_read_json(index, HIGHEST_BYTES, error);
  if (!root) return false;
  const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
  const int count = cJSON_IsObject(map) ? cJSON_GetArraySize(map) : 0;
  SetPlace *place = (SetPlace *)calloc((size_t)count + 1, sizeof *place);
  bool ok = place && count;
  if (!ok) fail(error, "%s: has no weight_map of tensors and their files", index);
  ok = ok && set_open_map(s, directory, index, map, place, error);
  free(place);
  cJSON_Delete(root);
  return ok;
}
