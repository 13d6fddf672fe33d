// safetensors.h: the safetensors file format: 8 bytes little-endian header length, a JSON header that names dtype,
// shape and byte range of every tensor, then the bytes. https://github.com/huggingface/safetensors, "Format".
//
//   SafetensorsWriter    names and shapes first, then the tensors in that order, as fp32; whole or absent: the file is
//                        written under a temporary name, synced, and renamed at the end
//   SafetensorsFile      an open file, mapped; tensors are found by name and checked before they are handed out
//
// Every function that can fail returns false and leaves one line in `error`.
#pragma once
#include "../kernels/device.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct SafetensorsWriter { FILE *file; char path[1200], temporary[1300], error[1600]; };

// Starts PATH. names[i] has shape shapes[2 i], shapes[2 i + 1] (second -1: one dimension).
static inline bool safetensors_create(SafetensorsWriter *w, const char *path, int count, const char *const *names,
                                      const int64_t *shapes) {
  memset(w, 0, sizeof *w);
  snprintf(w->path, sizeof w->path, "%s", path);
  snprintf(w->temporary, sizeof w->temporary, "%s.tmp%d", path, (int)getpid());
  cJSON *header = cJSON_CreateObject(), *meta = cJSON_AddObjectToObject(header, "__metadata__");
  cJSON_AddStringToObject(meta, "format", "pt");
  int64_t at = 0;
  for (int i = 0; i < count; i++) {
    const int64_t *d = shapes + 2 * i;
    const int64_t bytes = d[0] * (d[1] < 0 ? 1 : d[1]) * 4;
    const double shape[2] = {(double)d[0], (double)d[1]}, range[2] = {(double)at, (double)(at + bytes)};
    cJSON *t = cJSON_AddObjectToObject(header, names[i]);
    cJSON_AddStringToObject(t, "dtype", "F32");
    cJSON_AddItemToObject(t, "shape", cJSON_CreateDoubleArray(shape, d[1] < 0 ? 1 : 2));
    cJSON_AddItemToObject(t, "data_offsets", cJSON_CreateDoubleArray(range, 2));
    at += bytes;
  }
  char *text = cJSON_PrintUnformatted(header);
  cJSON_Delete(header);
  const uint64_t length = (strlen(text) + 7) / 8 * 8;            // padded with spaces: tensors start on 8 bytes
  w->file = fopen(w->temporary, "wb");
  bool ok =
      w->file && fwrite(&length, 8, 1, w->file) == 1 && fprintf(w->file, "%-*s", (int)length, text) == (int)length;
  if (!ok) snprintf(w->error, sizeof w->error, "cannot write %s: %s", w->temporary, strerror(errno));
  cJSON_free(text);
  return ok;
}
static inline bool safetensors_append(SafetensorsWriter *w, const float *data, int64_t numel_) {
  if (w->error[0]) return false;
  if (fwrite(data, 4, (size_t)numel_, w->file) == (size_t)numel_) return true;
  snprintf(w->error, sizeof w->error, "cannot write %s: %s", w->temporary, strerror(errno));
  return false;
}
// Renames to PATH if everything was written; otherwise removes the temporary file, and PATH stays what it was.
static inline bool safetensors_finish(SafetensorsWriter *w) {
  bool ok = w->file && !w->error[0] && !fflush(w->file) && !fsync(fileno(w->file));
  if (w->file && fclose(w->file)) ok = false;
  if (ok && rename(w->temporary, w->path)) ok = false;
  if (!ok && !w->error[0]) snprintf(w->error, sizeof w->error, "cannot write %s: %s", w->path, strerror(errno));
  if (!ok) unlink(w->temporary);
  return ok;
}

struct SafetensorsFile { const uint8_t *map; size_t bytes, data_at; cJSON *header; char error[1400]; };

// Maps PATH and checks its header: length, JSON, and that every byte range lies inside the file and fits its shape.
static inline bool safetensors_open(SafetensorsFile *s, const char *path) {
  memset(s, 0, sizeof *s);
  struct stat st;
  uint64_t length = 0;
  int fd = open(path, O_RDONLY);
  if (fd < 0 || fstat(fd, &st)) {
    snprintf(s->error, sizeof s->error, "cannot open %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return false;
  }
  s->bytes = (size_t)st.st_size;
  void *map = s->bytes >= 8 ? mmap(NULL, s->bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  close(fd);
  if (map == MAP_FAILED) {
    snprintf(s->error, sizeof s->error, "%s is no safetensors file: %zu bytes", path, s->bytes);
    return false;
  }
  s->map = (const uint8_t *)map;
  memcpy(&length, s->map, 8);
  if (length <= s->bytes - 8) s->header = cJSON_ParseWithLength((const char *)s->map + 8, (size_t)length);
  if (!cJSON_IsObject(s->header)) {
    snprintf(s->error, sizeof s->error, "%s: the safetensors header is damaged", path);
    return false;
  }
  s->data_at = 8 + (size_t)length;
  return true;
}
static inline void safetensors_close(SafetensorsFile *s) {
  cJSON_Delete(s->header);
  if (s->map) munmap((void *)s->map, s->bytes);
  memset(s, 0, sizeof *s);
}
// The tensor `name` (dtype "F32" or "I32" as asked), as a Tensor over the mapped bytes. False: absent or inconsistent.
static inline bool safetensors_find(SafetensorsFile *s, const char *name, Dtype dtype, Tensor *out) {
  const cJSON *t = cJSON_GetObjectItemCaseSensitive(s->header, name);
  const cJSON *type = cJSON_GetObjectItemCaseSensitive(t, "dtype"),
              *shape = cJSON_GetObjectItemCaseSensitive(t, "shape");
  const cJSON *range = cJSON_GetObjectItemCaseSensitive(t, "data_offsets");
  if (!t) { snprintf(s->error, sizeof s->error, "no tensor %s", name); return false; }
  const char *want = dtype == I32 ? "I32" : "F32";
  const cJSON *from = cJSON_GetArrayItem(range, 0), *to = cJSON_GetArrayItem(range, 1);
  if (!cJSON_IsString(type) || strcmp(type->valuestring, want) || cJSON_GetArraySize(shape) > 4 ||
      !cJSON_IsNumber(from) || !cJSON_IsNumber(to)) {
    snprintf(s->error, sizeof s->error, "tensor %s: needs dtype %s, at most 4 dimensions and a byte range", name, want);
    return false;
  }
  *out = Tensor{NULL, dtype, cJSON_GetArraySize(shape), {}};
  double elements = 1;
  for (int i = 0; i < out->ndim; i++)
    elements *= (double)(out->shape[i] = (int64_t)cJSON_GetArrayItem(shape, i)->valuedouble);
  const double a = from->valuedouble, b = to->valuedouble;
  if (!(a >= 0 && b >= a && b <= (double)(s->bytes - s->data_at) && b - a == elements * 4)) {
    snprintf(s->error, sizeof s->error, "tensor %s: bytes %.0f to %.0f do not hold its %.0f elements", name, a, b,
             elements);
    return false;
  }
  out->data = (void *)(s->map + s->data_at + (size_t)a);
  return true;
}
// A string of the header's __metadata__, or NULL.
static inline const char *safetensors_metadata(const SafetensorsFile *s, const char *key) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(s->header, "__metadata__"), key);
  return cJSON_IsString(v) ? v->valuestring : NULL;
}
