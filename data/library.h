// library.h: functions of compression libraries, which are opened when a file needs them: libz.so.1, libzstd.so.1,
// libsnappy.so.1. By their documented interfaces (zlib.h, zstd.h, snappy-c.h).
#pragma once
#include <dlfcn.h>

#include "corpus_find.h"

enum LibraryName { LIBRARY_NONE, LIBRARY_ZLIB, LIBRARY_ZSTD, LIBRARY_SNAPPY };
struct ZstdBuffer { void *data; size_t bytes, at; };
struct ZlibStream {                              // z_stream
  const uint8_t *next_in;
  unsigned avail_in;
  unsigned long total_in;
  uint8_t *next_out;
  unsigned avail_out;
  unsigned long total_out;
  const char *msg;
  void *state, *zalloc, *zfree, *opaque;
  int data_type;
  unsigned long adler, reserved;
};
enum { ZLIB_OK = 0, ZLIB_END = 1, ZLIB_NOTHING = -5, ZLIB_GZIP = 15 + 16 };
struct Libraries {
  int (*inflateInit2_)(ZlibStream *z, int window_bits, const char *version, int stream_bytes);
  int (*inflate)(ZlibStream *z, int flush), (*inflateReset)(ZlibStream *z), (*inflateEnd)(ZlibStream *z);
  void *(*ZSTD_createDStream)();
  size_t (*ZSTD_decompressStream)(void *z, ZstdBuffer *out, ZstdBuffer *in);
  size_t (*ZSTD_freeDStream)(void *z);
  size_t (*ZSTD_decompress)(void *to, size_t room, const void *from, size_t bytes);
  unsigned (*ZSTD_isError)(size_t code);
  const char *(*ZSTD_getErrorName)(size_t code);
  int (*snappy_uncompress)(const char *from, size_t bytes, char *to, size_t *room);
  bool open[4];
};
static Libraries libraries;

// Opens a library on its first use. Returns false, with one line in e that names the file `path`, if it is missing.
static inline bool library_open(LibraryName library, const char *path, Error *e) {
  Libraries *l = &libraries;
  static const struct { const char *file, *package; } at[] = {
      {}, {"libz.so.1", "zlib1g"}, {"libzstd.so.1", "libzstd1"}, {"libsnappy.so.1", "libsnappy1v5"}};
  const struct { LibraryName of; const char *name; void **to; } functions[] = {
#define LIBRARY_FUNCTION(of, f) {of, #f, (void **)&l->f}
      LIBRARY_FUNCTION(LIBRARY_ZLIB, inflateInit2_), LIBRARY_FUNCTION(LIBRARY_ZLIB, inflate),
      LIBRARY_FUNCTION(LIBRARY_ZLIB, inflateReset), LIBRARY_FUNCTION(LIBRARY_ZLIB, inflateEnd),
      LIBRARY_FUNCTION(LIBRARY_ZSTD, ZSTD_createDStream),
      LIBRARY_FUNCTION(LIBRARY_ZSTD, ZSTD_decompressStream), LIBRARY_FUNCTION(LIBRARY_ZSTD, ZSTD_freeDStream),
      LIBRARY_FUNCTION(LIBRARY_ZSTD, ZSTD_decompress), LIBRARY_FUNCTION(LIBRARY_ZSTD, ZSTD_isError),
      LIBRARY_FUNCTION(LIBRARY_ZSTD, ZSTD_getErrorName), LIBRARY_FUNCTION(LIBRARY_SNAPPY, snappy_uncompress)};
#undef LIBRARY_FUNCTION
  if (!library || l->open[library]) return true;
  void *handle = dlopen(at[library].file, RTLD_NOW | RTLD_LOCAL);
  bool ok = handle != NULL;
  for (const auto &f : functions) if (ok && f.of == library) ok = (*f.to = dlsym(handle, f.name)) != NULL;
  l->open[library] = ok;
  return ok || fail_with(e, EXIT_MISSING, "%s needs %s, which is not here: install it (Debian: %s)%s", path,
                         at[library].file, at[library].package, library == LIBRARY_SNAPPY ? "" : ", or unpack the "
                         "file");
}
