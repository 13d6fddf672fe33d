// text_stream.h: reads a text file from its beginning to its end, plain or compressed by gzip or zstd, whose libraries
// (libz.so.1, libzstd.so.1) are opened when such a file is read.
//
// Defines: TextStream, text_stream_open, text_stream_read, text_stream_close, text_name_kind.
#pragma once
#include <dlfcn.h>

#include "corpus_find.h"
#include "files.h"

enum TextKind { TEXT_PLAIN, TEXT_JSONL, TEXT_NONE };
enum TextPacking { TEXT_UNPACKED, TEXT_GZIP, TEXT_ZSTD };
// What a file is by its name: NAME.txt, NAME.jsonl, each also with .gz or .zst behind. TEXT_NONE: another one.
static inline TextKind text_name_kind(const char *name, TextPacking *packing) {
  char plain[DATA_PATH_BYTES];
  *packing = name_ends(name, ".gz") ? TEXT_GZIP : name_ends(name, ".zst") ? TEXT_ZSTD : TEXT_UNPACKED;
  data_format(plain, sizeof plain, "%.*s", (int)strlen(name) - (*packing ? *packing == TEXT_GZIP ? 3 : 4 : 0), name);
  if (name_ends(plain, ".jsonl") || name_ends(plain, ".ndjson")) return TEXT_JSONL;
  for (const char *end : {".txt", ".md", ".raw", ".tokens", ".text"}) if (name_ends(plain, end)) return TEXT_PLAIN;
  return TEXT_NONE;
}

// zlib's and libzstd's functions that are used here, by their documented interfaces.
struct ZstdBuffer { void *data; size_t bytes, at; };
struct TextLibraries {
  void *(*gzdopen)(int fd, const char *mode);
  int (*gzread)(void *gz, void *to, unsigned bytes);
  const char *(*gzerror)(void *gz, int *number);
  int (*gzclose)(void *gz), (*gzbuffer)(void *gz, unsigned bytes);
  void *(*ZSTD_createDStream)();
  size_t (*ZSTD_decompressStream)(void *z, ZstdBuffer *out, ZstdBuffer *in);
  size_t (*ZSTD_freeDStream)(void *z);
  unsigned (*ZSTD_isError)(size_t code);
  const char *(*ZSTD_getErrorName)(size_t code);
};
static TextLibraries text_libraries;
static inline bool text_library_open(TextPacking packing, const char *path, DataError *e) {
  TextLibraries *l = &text_libraries;
  const char *const file = packing == TEXT_GZIP ? "libz.so.1" : "libzstd.so.1";
  const struct { const char *name; void **to; TextPacking of; } names[] = {
      {"gzdopen", (void **)&l->gzdopen, TEXT_GZIP}, {"gzread", (void **)&l->gzread, TEXT_GZIP},
      {"gzerror", (void **)&l->gzerror, TEXT_GZIP}, {"gzclose", (void **)&l->gzclose, TEXT_GZIP},
      {"gzbuffer", (void **)&l->gzbuffer, TEXT_GZIP},
      {"ZSTD_createDStream", (void **)&l->ZSTD_createDStream, TEXT_ZSTD},
      {"ZSTD_decompressStream", (void **)&l->ZSTD_decompressStream, TEXT_ZSTD},
      {"ZSTD_freeDStream", (void **)&l->ZSTD_freeDStream, TEXT_ZSTD},
      {"ZSTD_isError", (void **)&l->ZSTD_isError, TEXT_ZSTD},
      {"ZSTD_getErrorName", (void **)&l->ZSTD_getErrorName, TEXT_ZSTD}};
  if (packing == TEXT_GZIP ? l->gzread != NULL : l->ZSTD_freeDStream != NULL) return true;
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  bool ok = library != NULL;
  for (const auto &n : names)
    if (ok && n.of == packing) ok = (*n.to = dlsym(library, n.name)) != NULL;
  return ok || data_fail(e, EXIT_MISSING, "%s needs %s, which is not here: install it (Debian: %s), or unpack the file",
                         path, file, packing == TEXT_GZIP ? "zlib1g" : "libzstd1");
}

struct TextStream {
  char path[DATA_PATH_BYTES];
  TextKind kind;
  TextPacking packing;
  int fd;
  int64_t file_bytes, read_bytes;                // of the file as it is, how much of it was read
  void *gz, *zstd;
  uint8_t *packed;                               // of zstd: what was read and not unpacked yet
  ZstdBuffer in;
  bool frame_open;                               // the file may not end here
};
enum { PACKED_BYTES = 1 << 20 };
static inline void text_stream_close(TextStream *s) {
  if (s->gz) text_libraries.gzclose(s->gz);
  else if (s->fd >= 0) close(s->fd);
  if (s->zstd) text_libraries.ZSTD_freeDStream(s->zstd);
  free(s->packed);
  *s = {};
  s->fd = -1;
}
// Opens a file whose name says what it is. False: one line in e.
static inline bool text_stream_open(TextStream *s, const char *path, DataError *e) {
  size_t bytes;
  *s = {};
  s->fd = -1;
  s->kind = text_name_kind(path, &s->packing);
  data_format(s->path, sizeof s->path, "%s", path);
  if (s->kind == TEXT_NONE)
    return data_fail(e, EXIT_USAGE, "%s: expected: .txt, .md or .jsonl, or one of these with .gz or .zst%s", path,
                     name_ends(path, ".parquet") ? "; of a Parquet table write the text column to a .jsonl file" : "");
  if (s->packing && !text_library_open(s->packing, path, e)) return false;
  if ((s->fd = data_open(path, &bytes, e)) < 0) return false;
  s->file_bytes = (int64_t)bytes;
  posix_fadvise(s->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  if (s->packing == TEXT_GZIP && !(s->gz = text_libraries.gzdopen(s->fd, "rb"))) die_missing("no memory for gzip");
  if (s->gz) text_libraries.gzbuffer(s->gz, 1 << 18);
  if (s->packing == TEXT_ZSTD && (!(s->zstd = text_libraries.ZSTD_createDStream()) ||
                                  !(s->packed = (uint8_t *)malloc(PACKED_BYTES)))) die_missing("no memory for zstd");
  return true;
}
// The next part of a zstd file; 0: its end, -1: one line in e.
static inline int64_t text_stream_zstd(TextStream *s, uint8_t *to, int64_t bytes, DataError *e) {
  ZstdBuffer out = {to, (size_t)bytes, 0};
  while (!out.at) {
    if (s->in.at == s->in.bytes) {
      const ssize_t n = read(s->fd, s->packed, PACKED_BYTES);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return data_fail(e, EXIT_MISSING, "cannot read %s: %s", s->path, strerror(errno)) - 1;
      if (!n && !s->frame_open) return 0;
      if (!n) return data_fail(e, EXIT_MISSING, "%s is cut short: its zstd data have no end", s->path) - 1;
      s->in = ZstdBuffer{s->packed, (size_t)n, 0};
    }
    const size_t code = text_libraries.ZSTD_decompressStream(s->zstd, &out, &s->in);
    if (text_libraries.ZSTD_isError(code))
      return data_fail(e, EXIT_MISSING, "%s is damaged: %s", s->path, text_libraries.ZSTD_getErrorName(code)) - 1;
    s->frame_open = code != 0;
  }
  return (int64_t)out.at;
}
// Reads at most `bytes` bytes of text. 0: the file has ended; -1: one line in e.
static inline int64_t text_stream_read(TextStream *s, uint8_t *to, int64_t bytes, DataError *e) {
  int64_t n;
  int number = 0;
  bytes = min64(bytes, FILE_PIECE_BYTES);
  if (s->packing == TEXT_ZSTD) n = text_stream_zstd(s, to, bytes, e);
  else if (s->gz) {
    n = text_libraries.gzread(s->gz, to, (unsigned)bytes);
    const char *why = text_libraries.gzerror(s->gz, &number);    // at the end it knows whether that was missing
    if (n < 0 || number < 0) n = data_fail(e, EXIT_MISSING, "%s is damaged or cut short: %s", s->path, why) - 1;
  } else {
    do n = read(s->fd, to, (size_t)bytes); while (n < 0 && errno == EINTR);
    if (n < 0) data_fail(e, EXIT_MISSING, "cannot read %s: %s", s->path, strerror(errno));
  }
  s->read_bytes = lseek(s->fd, 0, SEEK_CUR);
  liveness_progress();
  return n;
}
