// text_stream.h: reads a text from start to end: a file, plain or compressed by gzip or zstd, or a Parquet table
// (parquet.h): its text column, as rows that each end in a zero byte, or its records, as lines of JSON.
#pragma once
#include "parquet.h"

enum TextKind { TEXT_PLAIN, TEXT_JSONL, TEXT_ROWS, TEXT_NONE };
enum TextPacking { TEXT_UNPACKED, TEXT_GZIP, TEXT_ZSTD };
// The kind of a file by its name: NAME.parquet; NAME.txt, NAME.jsonl, also followed by .gz or .zst. TEXT_NONE: any
// other name. as_text: any file that is no table is text.
static inline TextKind text_name_kind(const char *name, TextPacking *packing, bool as_text = false) {
  char plain[DATA_PATH_BYTES];
  *packing = name_ends(name, ".gz") ? TEXT_GZIP : name_ends(name, ".zst") ? TEXT_ZSTD : TEXT_UNPACKED;
  data_format(plain, sizeof plain, "%.*s", (int)strlen(name) - (*packing ? *packing == TEXT_GZIP ? 3 : 4 : 0), name);
  if (name_ends(name, ".parquet")) return TEXT_ROWS;
  if (as_text || form_name_is_text(plain)) return TEXT_PLAIN;
  for (const char *end : record_ends) if (name_ends(plain, end)) return TEXT_JSONL;
  return TEXT_NONE;
}

struct TextStream {
  char path[DATA_PATH_BYTES];
  TextKind kind;
  TextPacking packing;
  int fd;
  int64_t file_bytes, read_bytes;                // size of the file (compressed), and how much of it was read
  ZlibStream gzip;
  void *zstd;
  Parquet rows;
  uint8_t *packed;                               // compressed bytes that were read; `in` is the part still to do
  ZstdBuffer in;
  bool frame_open;                               // inside a compressed frame: the file may not end here
  bool begun, filtered;                          // TEXT_JSONL: its file format is known; it is an array or spread
  RecordLines lines;
  ValueTable table;                             // or a table; what is read of its lines; what it is made of
  size_t table_at;
  bool table_ended;
  uint8_t *raw, character[4];                    // character: bytes of one that the last block cut
  int character_bytes;
  int64_t checked;                               // bytes that are UTF-8
};
enum { PACKED_BYTES = 1 << 20 };
static inline void text_stream_close(TextStream *s) {
  if (s->fd >= 0) close(s->fd);
  if (s->gzip.state) libraries.inflateEnd(&s->gzip);
  if (s->zstd) libraries.ZSTD_freeDStream(s->zstd);
  free(s->packed);
  free(s->raw);
  records_table_free(&s->table);
  parquet_close(&s->rows);
  *s = {};
  s->fd = -1;
}
// Opens a file, whose kind follows from its name. column: the column of a table, or "". fields: --fields, for records.
// Returns false, with one line in e, on failure.
static inline bool text_stream_open(TextStream *s, const char *path, const char *column, Error *e,
                                    bool as_text = false, const char *fields = "") {
  static const LibraryName library[] = {LIBRARY_NONE, LIBRARY_ZLIB, LIBRARY_ZSTD};
  size_t bytes;
  *s = {};
  s->fd = -1;
  s->kind = text_name_kind(path, &s->packing, as_text);
  data_format(s->path, sizeof s->path, "%s", path);
  const FileForm form = form_of(path_base(path), NULL, 0);       // by its name
  if (s->kind == TEXT_NONE)
    return fail_with(e, EXIT_USAGE, "%s: expected: .txt, .md or .jsonl, or one of these with .gz or .zst; or .parquet",
                     path);
  if (!library_open(library[s->packing], path, e)) return false;
  if ((s->fd = data_open(path, &bytes, e)) < 0) return false;
  s->file_bytes = (int64_t)bytes;
  posix_fadvise(s->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  if (s->kind == TEXT_ROWS && !parquet_open(&s->rows, s->fd, path, s->file_bytes, column, as_text ? NULL : fields, e)) {
    text_stream_close(s);
    return false;
  }
  if (s->rows.records) s->kind = TEXT_JSONL;
  if (s->kind == TEXT_JSONL && form.container) s->table.separator = form.container == CONTAINER_CSV ? ',' : '\t';
  if (s->packing && !(s->packed = (uint8_t *)malloc(PACKED_BYTES))) die_missing("no memory to unpack %s", path);
  if (s->packing == TEXT_GZIP && libraries.inflateInit2_(&s->gzip, ZLIB_GZIP, "1.2.0", (int)sizeof s->gzip))
    die_missing("no memory to unpack %s", path);
  if (s->packing == TEXT_ZSTD && !(s->zstd = libraries.ZSTD_createDStream()))
    die_missing("no memory to unpack %s", path);
  return true;
}
// Decompresses a part of s->in to `out`. Returns whether the frame (zstd) or member (gzip) continues. *why: an error.
static inline bool text_stream_zstd(TextStream *s, ZstdBuffer *out, const char **why) {
  const size_t code = libraries.ZSTD_decompressStream(s->zstd, out, &s->in);
  if (libraries.ZSTD_isError(code)) *why = libraries.ZSTD_getErrorName(code);
  if (*why && strstr(*why, "too much memory")) *why = "its window is above 128 MiB: unpack it with zstd -d --long=31";
  return code != 0;
}
// The same for gzip. A member is followed by another member or by the file's end.
static inline bool text_stream_gzip(TextStream *s, ZstdBuffer *out, const char **why) {
  ZlibStream *z = &s->gzip;
  z->next_in = (const uint8_t *)s->in.data + s->in.at, z->avail_in = (unsigned)(s->in.bytes - s->in.at);
  z->next_out = (uint8_t *)out->data, z->avail_out = (unsigned)out->bytes;
  const int code = libraries.inflate(z, 0);
  s->in.at = s->in.bytes - z->avail_in, out->at = out->bytes - z->avail_out;
  if (code != ZLIB_OK && code != ZLIB_END && code != ZLIB_NOTHING) *why = z->msg ? z->msg : "zlib cannot unpack it";
  if (code == ZLIB_END) libraries.inflateReset(z);
  return code != ZLIB_END;
}
// Reads the next bytes of a compressed file, decompressed. Returns how many; 0: its end; -1: one line in e.
static inline int64_t text_stream_unpack(TextStream *s, uint8_t *to, int64_t bytes, Error *e) {
  ZstdBuffer out = {to, (size_t)bytes, 0};
  const char *why = NULL;
  while (!out.at) {
    if (s->in.at == s->in.bytes) {
      const ssize_t n = read(s->fd, s->packed, PACKED_BYTES);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return fail_with(e, EXIT_MISSING, "cannot read %s: %s", s->path, strerror(errno)) - 1;
      if (!n && !s->frame_open) return 0;
      if (!n) return fail_with(e, EXIT_MISSING, "%s is cut short: its packed data have no end", s->path) - 1;
      s->in = ZstdBuffer{s->packed, (size_t)n, 0};
    }
    s->frame_open = s->packing == TEXT_ZSTD ? text_stream_zstd(s, &out, &why) : text_stream_gzip(s, &out, &why);
    if (why) return fail_with(e, EXIT_MISSING, "%s is damaged: %s", s->path, why) - 1;
  }
  return (int64_t)out.at;
}
// Reads at most `bytes` bytes of a file, decompressed, or of a table's column. Returns how many; 0: the file has ended;
// -1: one line in e.
static inline int64_t text_stream_bytes(TextStream *s, uint8_t *to, int64_t bytes, Error *e) {
  int64_t n;
  bytes = min64(bytes, FILE_PIECE_BYTES);
  if (s->rows.columns) n = parquet_read(&s->rows, to, bytes, e);
  else if (s->packing) n = text_stream_unpack(s, to, bytes, e);
  else {
    do n = read(s->fd, to, (size_t)bytes); while (n < 0 && errno == EINTR);
    if (n < 0) fail_with(e, EXIT_MISSING, "cannot read %s: %s", s->path, strerror(errno));
  }
  s->read_bytes = s->rows.columns ? s->rows.column->at : lseek(s->fd, 0, SEEK_CUR);
  liveness_progress();
  return n;
}
// Returns false, with one line in e, if the next block of a text is not UTF-8. A character may be cut between two
// blocks.
static inline bool text_stream_check(TextStream *s, const uint8_t *p, size_t n, Error *e) {
  const int64_t from = s->checked;
  size_t k = 0, bad = n;
  s->checked += (int64_t)n;
  for (; k < n && s->character_bytes; k++) {     // the rest of a cut character
    s->character[s->character_bytes++] = p[k];
    const int want = s->character[0] >= 0xf0 ? 4 : s->character[0] >= 0xe0 ? 3 : 2;
    if ((p[k] & 0xc0) == 0x80 && s->character_bytes < want) continue;
    if (text_bad_utf8(s->character, (size_t)s->character_bytes, 0) < (size_t)s->character_bytes) { bad = 0; break; }
    s->character_bytes = 0;
  }
  size_t end = n;
  for (size_t back = 1; back < 4 && back + k <= n; back++) {
    const uint8_t c = p[n - back];
    if (c >= 0xc0 && (size_t)(c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2) > back) end = n - back;
    if (c >= 0xc0 || c < 0x80) break;
  }
  if (bad == n && (bad = text_bad_utf8(p, end, k)) == end) bad = n;
  if (bad == n && n) memcpy(s->character, p + end, n - end), s->character_bytes += (int)(n - end);
  if (bad == n && (n || !s->character_bytes)) return true;
  const bool before = bad == 0 && s->character_bytes;            // the character started in the block before
  return fail_with(e, EXIT_MISSING, "%s: byte %lld, 0x%02x, is not UTF-8; if it is in Windows-1252, as Excel writes: "
                   "iconv -f WINDOWS-1252 -t UTF-8 %s > NEW%s", s->path, (long long)(from + (int64_t)bad + 1 - (before
                   ? s->character_bytes - (n > 0) : 0)), before ? s->character[0] : p[bad], s->path, strrchr(s->path,
                   '.'));
}
// Reads a .csv or .tsv as lines of JSON. Returns the bytes; 0: it has ended; -1: one line in e.
static inline int64_t text_stream_table(TextStream *s, uint8_t *to, int64_t bytes, Error *e) {
  enum { RAW_BYTES = 1 << 16 };
  Error fault = {};
  if (!s->raw) s->raw = (uint8_t *)data_alloc(RAW_BYTES, 1);
  while (!s->table_ended && (s->table.row <= 1 || s->table_at == s->table.bytes)) {
    if (s->table.row > 1) s->table.bytes = s->table_at = 0;
    const int64_t n = text_stream_bytes(s, s->raw, RAW_BYTES, e);
    if (n < 0 || !text_stream_check(s, s->raw, (size_t)n, e)) return -1;
    s->table_ended = !n;
    if (!records_of_table(&s->table, s->raw, (size_t)n, !n, &fault))
      return fail_with(e, EXIT_MISSING, "%s: %s", s->path, fault.text) - 1;
  }
  if (s->table.row <= 1) return 0;               // names alone
  const int64_t some = min64(bytes, (int64_t)(s->table.bytes - s->table_at));
  memcpy(to, s->table.out + s->table_at, (size_t)some);
  s->table_at += (size_t)some;
  return some;
}
// The file format of what was read.
static inline DataContainer text_stream_container(const TextStream *s) {
  return s->rows.columns || s->table.separator ? CONTAINER_CSV : !s->filtered ? CONTAINER_JSON_LINES
         : s->lines.array ? CONTAINER_JSON_ARRAY : CONTAINER_JSON_SPREAD;
}
// Reads at most `bytes` bytes of text; records as lines of JSON. Returns how many; 0: the file has ended; -1: one line
// in e.
static inline int64_t text_stream_read(TextStream *s, uint8_t *to, int64_t bytes, Error *e) {
  if (s->kind != TEXT_JSONL) return text_stream_bytes(s, to, bytes, e);
  if (s->table.separator) return text_stream_table(s, to, bytes, e);
  const int64_t n = text_stream_bytes(s, to, bytes, e);
  if (!s->begun && n > 0) {
    const DataContainer is = form_of(path_base(s->path), to, (size_t)n).container;
    s->begun = true, s->filtered = is == CONTAINER_JSON_ARRAY || is == CONTAINER_JSON_SPREAD;
  }
  if (n >= 0 && s->filtered && !text_stream_check(s, to, (size_t)n, e)) return -1;
  if (n > 0 && s->filtered && !records_of_json(&s->lines, to, (size_t)n))
    return fail_with(e, EXIT_MISSING, "%s: more stands after the end of its array", s->path) - 1;
  if (!n && s->filtered && (s->lines.depth || s->lines.string || s->lines.ended != s->lines.array))
    return fail_with(e, EXIT_MISSING, "%s: it is cut short: a bracket or a text does not end", s->path) - 1;
  return n;
}
