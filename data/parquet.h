// parquet.h: reads one text column of an Apache Parquet file, row by row, a page at a time.
//
//   1 Thrift    the compact protocol, in which footer and page headers are written (thrift-compact-protocol.md)
//   2 footer    columns and row groups; which column is read
//   3 pages     levels, dictionary and values (Encodings.md, parquet.thrift of apache/parquet-format 2.10)
//   4 rows
//
// What is read: a column of the top level, of strings (BYTE_ARRAY), required or optional; pages of version 1 and 2,
// plain or by dictionary; uncompressed, Snappy or Zstandard. Anything else is refused by its name. Nothing in the file
// is believed: every length is checked against what is there, checksums of pages where they are given.
//
// A row is given as its bytes and a zero; one without a value as the byte 0xff, which no UTF-8 has, and a zero.
//
// Defines: Parquet, parquet_open, parquet_read, parquet_close.
#pragma once
#include "files.h"
#include "library.h"
#include "tokenizer.h"

// ================================================================================================ 1 Thrift
// A place in the bytes of a structure. bad: they ended, or are no Thrift; every value is 0 from then on.
struct Thrift { const uint8_t *p, *end; bool bad; };
enum ThriftType { THRIFT_STOP, THRIFT_TRUE, THRIFT_FALSE, THRIFT_BYTE, THRIFT_I16, THRIFT_I32, THRIFT_I64,
                  THRIFT_DOUBLE, THRIFT_BINARY, THRIFT_LIST, THRIFT_SET, THRIFT_MAP, THRIFT_STRUCT };
enum { THRIFT_DEPTH = 32 };
static inline uint64_t thrift_varint(Thrift *t) {
  uint64_t x = 0;
  for (int shift = 0; shift < 64 && t->p < t->end; shift += 7) {
    x |= (uint64_t)(*t->p & 127) << shift;
    if (!(*t->p++ & 128)) return x;
  }
  t->bad = true;
  return 0;
}
static inline int64_t thrift_int(Thrift *t) {
  const uint64_t x = thrift_varint(t);
  return (int64_t)(x >> 1) ^ -(int64_t)(x & 1);
}
static inline const uint8_t *thrift_binary(Thrift *t, size_t *bytes) {
  const uint64_t n = thrift_varint(t);
  const uint8_t *p = t->p;
  if (t->bad || n > (uint64_t)(t->end - p)) t->bad = true, *bytes = 0;
  else *bytes = (size_t)n, t->p += n;
  return p;
}
// The next field of a structure, whose number goes on from *field; THRIFT_STOP: its end.
static inline int thrift_field(Thrift *t, int *field) {
  if (t->bad || t->p == t->end) { t->bad = true; return THRIFT_STOP; }
  const uint8_t head = *t->p++;
  const int type = head & 15;
  if (type) *field = head >> 4 ? *field + (head >> 4) : (int)thrift_int(t);
  return t->bad ? THRIFT_STOP : type;
}
// The head of a list: its elements' type; their number, no larger than the bytes that are left.
static inline int thrift_list(Thrift *t, int64_t *count) {
  *count = 0;
  if (t->bad || t->p == t->end) { t->bad = true; return THRIFT_STOP; }
  const uint8_t head = *t->p++;
  const uint64_t n = head >> 4 == 15 ? thrift_varint(t) : head >> 4;
  if (t->bad || n > (uint64_t)(t->end - t->p)) { t->bad = true; return THRIFT_STOP; }
  *count = (int64_t)n;
  return head & 15;
}
static inline void thrift_skip(Thrift *t, int type, int depth = 0) {
  int64_t count;
  size_t bytes;
  int field = 0, of;
  if (depth == THRIFT_DEPTH) t->bad = true;
  if (t->bad || type == THRIFT_TRUE || type == THRIFT_FALSE) return;
  switch (type) {
  case THRIFT_BYTE: case THRIFT_DOUBLE:
    bytes = type == THRIFT_BYTE ? 1 : 8;
    if ((size_t)(t->end - t->p) < bytes) t->bad = true;
    else t->p += bytes;
    break;
  case THRIFT_I16: case THRIFT_I32: case THRIFT_I64: thrift_varint(t); break;
  case THRIFT_BINARY: thrift_binary(t, &bytes); break;
  case THRIFT_LIST: case THRIFT_SET:
    of = thrift_list(t, &count);
    if (of == THRIFT_TRUE || of == THRIFT_FALSE) of = THRIFT_BYTE;             // in a list a bool has a byte
    for (int64_t i = 0; i < count && !t->bad; i++) thrift_skip(t, of, depth + 1);
    break;
  case THRIFT_STRUCT:
    while ((of = thrift_field(t, &field))) thrift_skip(t, of, depth + 1);
    break;
  default: t->bad = true;                        // Parquet has no maps
  }
}

// ================================================================================================ 2 footer
enum { PARQUET_FOOTER_MOST = 256 << 20, PARQUET_HEADER_MOST = 16 << 20, PARQUET_PAGE_MOST = 1 << 30,
       PARQUET_BYTE_ARRAY = 6, PARQUET_UTF8 = 0, PARQUET_REPEATED = 2 };
// An element of the schema. string: it is said to be text.
struct ParquetElement { char name[256]; int type, repetition; int64_t children; bool string; };
// The column's part of a row group.
struct ParquetChunk { int type, codec; int64_t values, begin, bytes; };
struct Parquet {
  char path[DATA_PATH_BYTES], column[256];
  int fd;
  int64_t file_bytes;
  bool optional;
  ParquetChunk *chunk;
  int64_t chunks, at_chunk;                      // the one that is read
  int64_t at, end, values_left;                  // of it: bytes of the file, and values
  uint8_t *packed, *page, *dictionary;           // as they lie in the file; a page and the dictionary unpacked
  size_t packed_room, page_room, dictionary_room, dictionary_bytes;
  uint32_t *entry;                               // where each value of the dictionary begins, and its end
  int64_t entries;
  // What is left of the page.
  int64_t page_left, row;                        // values; rows before
  bool by_number;                                // of the dictionary
  struct ParquetRuns { const uint8_t *p, *end; int width; int64_t left; bool packed; uint64_t value; int bit; } present,
      numbers;
  const uint8_t *plain, *page_end;
  // What is left of the row, without its zero.
  const uint8_t *row_bytes;
  int64_t row_left;                              // -1: a new one begins
};
static inline void parquet_close(Parquet *q) {
  for (void *p : {(void *)q->chunk, (void *)q->packed, (void *)q->page, (void *)q->dictionary, (void *)q->entry})
    free(p);
  *q = {};
}
static inline bool parquet_damaged(const Parquet *q, const char *what, DataError *e) {
  return data_fail(e, EXIT_MISSING, "%s is damaged: row group %lld, column %s: %s", q->path,
                   (long long)q->at_chunk + 1, q->column, what);
}
static inline bool parquet_pread(const Parquet *q, void *to, int64_t bytes, int64_t at, DataError *e) {
  return file_read(q->fd, to, bytes, at) ||
         data_fail(e, EXIT_MISSING, "cannot read %s: %s", q->path, errno == ENODATA ? "it has become shorter"
                                                                                     : strerror(errno));
}
static inline ParquetElement parquet_element(Thrift *t) {
  ParquetElement x = {"", -1, 0, 0, false};
  const uint8_t *p;
  size_t n;
  int field = 0, inner = 0;
  for (int type; (type = thrift_field(t, &field)); inner = 0) switch (type == THRIFT_I32 ? field : -field) {
    case 1: x.type = (int)thrift_int(t); break;
    case 3: x.repetition = (int)thrift_int(t); break;
    case 5: x.children = thrift_int(t); break;
    case 6: x.string = thrift_int(t) == PARQUET_UTF8 || x.string; break;
    case -4:
      if (type != THRIFT_BINARY) { thrift_skip(t, type); break; }
      p = thrift_binary(t, &n);
      data_format(x.name, sizeof x.name, "%.*s", (int)min64((int64_t)n, 255), (const char *)p);
      break;
    case -10:                                    // a union of structures: the first is String
      if (type != THRIFT_STRUCT) { thrift_skip(t, type); break; }
      while ((type = thrift_field(t, &inner))) x.string = inner == 1 || x.string, thrift_skip(t, type);
      break;
    default: thrift_skip(t, type);
  }
  return x;
}
static inline ParquetChunk parquet_chunk(Thrift *t) {
  ParquetChunk c = {-1, 0, 0, 0, 0};
  int64_t data = 0, dictionary = 0;
  int outer = 0, field = 0;
  for (int type; (type = thrift_field(t, &outer));) {
    if (outer != 3 || type != THRIFT_STRUCT) { thrift_skip(t, type); continue; }
    while ((type = thrift_field(t, &field))) switch (type == THRIFT_I32 || type == THRIFT_I64 ? field : -1) {
      case 1: c.type = (int)thrift_int(t); break;
      case 4: c.codec = (int)thrift_int(t); break;
      case 5: c.values = thrift_int(t); break;
      case 7: c.bytes = thrift_int(t); break;
      case 9: data = thrift_int(t); break;
      case 11: dictionary = thrift_int(t); break;
      default: thrift_skip(t, type);
    }
  }
  c.begin = dictionary > 0 && dictionary < data ? dictionary : data;
  return c;
}
// Which leaf is read: `asked`, or `text`, or the only one of strings. Names the columns where that is none, and where
// conversations stand beside it, which are a list of records. -1: e.
static inline int64_t parquet_choose(Parquet *q, Thrift *t, int64_t elements, const char *asked, DataError *e) {
  char names[700] = "";
  int64_t leaf = 0, chosen = -1, strings = 0;
  bool named = false;
  const ParquetElement root = parquet_element(t);
  ParquetElement found = {};
  int64_t nested = 0;                            // elements left that lie inside a group
  bool list = false;                             // its elements are repeated
  ParquetElement group = {}, records = {};
  for (int64_t i = 1; i < elements && !t->bad; i++) {
    const ParquetElement x = parquet_element(t);
    const bool top = !nested, text = top && !x.children && x.type == PARQUET_BYTE_ARRAY;
    nested += x.children - !top;
    if (top) group = x, list = false;
    list = list || (x.repetition == PARQUET_REPEATED && strcmp(x.name, "key_value"));          // of a map
    const bool chats = top ? x.children && form_is_chat_key(x.name) : list && x.children > 1;
    if (chats && !records.name[0]) records = group;
    if (x.children < 0 || x.children > elements) t->bad = true;
    const size_t n = strlen(names);
    if (top) data_format(names + n, sizeof names - n, "%s%s", n ? ", " : "", x.name);
    const bool is = top && !strcmp(x.name, *asked ? asked : "text") && (*asked || text);
    if (is || (!named && !*asked && text && x.string)) found = x, chosen = x.children ? -2 : leaf;
    named = named || is;
    strings += text && x.string;
    leaf += !x.children;
  }
  if (t->bad || root.children < 0) return data_fail(e, EXIT_MISSING, "%s is damaged: its schema", q->path) - 1;
  if (*asked && !named)
    return data_fail(e, EXIT_USAGE, "%s has no column %s; it has: %s", q->path, asked, names) - 1;
  if (!*asked && records.name[0] && (!named || form_is_chat_key(records.name)))
    return data_fail(e, EXIT_USAGE, "%s has records in column %s, such as conversations, which are not read from "
                     "tables: write JSON lines: python3 -c \"import pandas; pandas.read_parquet('%s').to_json("
                     "'NEW.jsonl', orient='records', lines=True)\", or name the column of strings to train on by "
                     "--text_column; it has: %s", q->path, records.name, q->path, names) - 1;
  if (!named && strings != 1)
    return data_fail(e, EXIT_USAGE, "%s has %s, and none is text: name the one to read by --text_column; it has: %s",
                     q->path, strings ? "several columns of strings" : "no column of strings", names) - 1;
  snprintf(q->column, sizeof q->column, "%s", found.name);
  if (chosen < 0 || found.type != PARQUET_BYTE_ARRAY || found.repetition == PARQUET_REPEATED)
    return data_fail(e, EXIT_USAGE, "%s: column %s is no strings; name one by --text_column; it has: %s", q->path,
                     found.name, names) - 1;
  q->optional = found.repetition != 0;
  return chosen;
}
static inline bool parquet_check_chunk(Parquet *q, const ParquetChunk *c, DataError *e) {
  static const char *const codecs[] = {"", "Snappy", "GZIP", "LZO", "Brotli", "LZ4", "Zstandard", "LZ4_RAW"};
  if (c->type != PARQUET_BYTE_ARRAY || c->values < 0 || c->begin < 4 || c->bytes < 0 ||
      c->bytes > q->file_bytes - c->begin)
    return parquet_damaged(q, "it lies outside the file", e);
  if (c->codec && c->codec != 1 && c->codec != 6)
    return data_fail(e, EXIT_USAGE, "%s is compressed by %s; expected: Snappy, Zstandard, or none: write it again so",
                     q->path, c->codec > 0 && c->codec < 8 ? codecs[c->codec] : "an unknown codec");
  return library_open(c->codec == 1 ? LIBRARY_SNAPPY : c->codec ? LIBRARY_ZSTD : LIBRARY_NONE, q->path, e);
}
// Reads the footer's structure FileMetaData.
static inline bool parquet_footer(Parquet *q, Thrift t, const char *asked, DataError *e) {
  int64_t count, columns, leaf = -1, rows = -1, values = 0;
  int field = 0, inner;
  for (int type; (type = thrift_field(&t, &field));) {
    if (field == 2 && type == THRIFT_LIST) {
      if (thrift_list(&t, &count) != THRIFT_STRUCT) t.bad = true;
      if ((leaf = parquet_choose(q, &t, count, asked, e)) < 0) return false;
    } else if (field == 3 && type == THRIFT_I64) rows = thrift_int(&t);
    else if (field == 8) return data_fail(e, EXIT_USAGE, "%s is encrypted: write it again without", q->path);
    else if (field == 4 && type == THRIFT_LIST && leaf >= 0) {
      if (thrift_list(&t, &count) != THRIFT_STRUCT && count) t.bad = true;
      q->chunk = (ParquetChunk *)data_alloc((size_t)count + 1, sizeof *q->chunk);
      for (q->at_chunk = 0; q->at_chunk < count && !t.bad; q->at_chunk++) {
        ParquetChunk *c = &q->chunk[q->at_chunk];
        for (inner = 0, *c = {-1, 0, 0, 0, 0}; (type = thrift_field(&t, &inner));) {
          if (inner != 1 || type != THRIFT_LIST) { thrift_skip(&t, type); continue; }
          if (thrift_list(&t, &columns) != THRIFT_STRUCT) t.bad = true;
          for (int64_t i = 0; i < columns && !t.bad; i++)
            if (i == leaf) *c = parquet_chunk(&t);
            else thrift_skip(&t, THRIFT_STRUCT);
        }
        if (!t.bad && !parquet_check_chunk(q, c, e)) return false;
        values += c->values;
      }
      q->chunks = count;
    } else thrift_skip(&t, type);
  }
  return (!t.bad && leaf >= 0 && rows == values) || data_fail(e, EXIT_MISSING, "%s is damaged: its footer", q->path);
}
// Opens the file behind fd, which stays the caller's. asked: the column, or "". False: one line in e; close it too.
static inline bool parquet_open(Parquet *q, int fd, const char *path, int64_t file_bytes, const char *asked,
                                DataError *e) {
  uint8_t ends[12];
  uint32_t bytes;
  *q = {};
  q->fd = fd, q->file_bytes = file_bytes, q->row_left = -1;
  data_format(q->path, sizeof q->path, "%s", path);
  e->text[0] = 0;
  if (file_bytes >= 12 && (!parquet_pread(q, ends, 4, 0, e) || !parquet_pread(q, ends + 4, 8, file_bytes - 8, e)))
    return false;
  if (file_bytes >= 12 && !memcmp(ends + 8, "PARE", 4))
    return data_fail(e, EXIT_USAGE, "%s is encrypted: write it again without", path);
  if (file_bytes < 12 || memcmp(ends, "PAR1", 4) || memcmp(ends + 8, "PAR1", 4))
    return data_fail(e, EXIT_MISSING, "%s is no Parquet table, or cut short: it does not begin and end with PAR1",
                     path);
  memcpy(&bytes, ends + 4, 4);
  if (bytes > file_bytes - 12 || bytes > PARQUET_FOOTER_MOST)
    return data_fail(e, EXIT_MISSING, "%s is damaged: a footer of %u bytes", path, bytes);
  uint8_t *footer = (uint8_t *)data_alloc((size_t)bytes + 1, 1);
  const bool ok = parquet_pread(q, footer, bytes, file_bytes - 8 - bytes, e) &&
                  parquet_footer(q, Thrift{footer, footer + bytes, false}, asked, e);
  free(footer);
  q->at_chunk = -1;
  return ok;
}

// ================================================================================================ 3 pages
enum { PARQUET_DATA, PARQUET_INDEX, PARQUET_DICTIONARY, PARQUET_DATA_2 };
enum { PARQUET_PLAIN = 0, PARQUET_BY_DICTIONARY_1 = 2, PARQUET_RLE = 3, PARQUET_BY_DICTIONARY = 8 };
struct ParquetPage {
  int type, encoding, level_encoding;
  int64_t values, unpacked, packed, present_bytes, repeat_bytes;       // the last two of version 2
  uint32_t crc;
  bool has_crc, compressed;
};
static inline ParquetPage parquet_page_header(Thrift *t) {
  ParquetPage h = {-1, -1, PARQUET_RLE, -1, -1, -1, 0, 0, 0, false, true};
  int outer = 0;
  for (int type; (type = thrift_field(t, &outer));) {
    int field = 0;
    const bool whole = type == THRIFT_I32;
    if (whole && outer == 1) h.type = (int)thrift_int(t);
    else if (whole && outer == 2) h.unpacked = thrift_int(t);
    else if (whole && outer == 3) h.packed = thrift_int(t);
    else if (whole && outer == 4) h.crc = (uint32_t)thrift_int(t), h.has_crc = true;
    else if (type != THRIFT_STRUCT || (outer != 5 && outer != 7 && outer != 8)) thrift_skip(t, type);
    else while ((type = thrift_field(t, &field))) {
      if (outer == 8 && field == 7) h.compressed = type != THRIFT_FALSE;
      if (type != THRIFT_I32) { thrift_skip(t, type); continue; }
      const int64_t x = thrift_int(t);
      if (field == 1) h.values = x;
      if (field == (outer == 8 ? 4 : 2)) h.encoding = (int)x;
      if (field == 3 && outer == 5) h.level_encoding = (int)x;
      if (field == 5 && outer == 8) h.present_bytes = x;
      if (field == 6 && outer == 8) h.repeat_bytes = x;
    }
  }
  return h;
}
// CRC-32 of zlib and gzip (RFC 1952).
static inline uint32_t parquet_crc(const uint8_t *p, size_t n) {
  static uint32_t table[256];
  for (uint32_t i = 0; !table[255] && i < 256; i++) {
    uint32_t x = i;
    for (int k = 0; k < 8; k++) x = x >> 1 ^ (x & 1 ? 0xedb88320u : 0);
    table[i] = x;
  }
  uint32_t crc = ~0u;
  for (size_t i = 0; i < n; i++) crc = crc >> 8 ^ table[(crc ^ p[i]) & 255];
  return ~crc;
}
static inline uint8_t *parquet_room(uint8_t **p, size_t *room, size_t bytes) {
  if (bytes + 1 > *room) *p = (uint8_t *)bpe_resize(*p, *room = bytes + bytes / 4 + 1, 1);
  return *p;
}
// The next number of a run-length and bit-packed sequence; -1: it has ended.
static inline int64_t parquet_run_next(Parquet::ParquetRuns *r) {
  if (!r->left) {
    Thrift t = {r->p, r->end, false};
    const uint64_t head = thrift_varint(&t);
    const int bytes = (r->width + 7) / 8;
    r->p = t.p, r->packed = head & 1, r->bit = 0, r->value = 0;
    r->left = (int64_t)min64((int64_t)(head >> 1), (int64_t)1 << 32) * (r->packed ? 8 : 1);
    if (t.bad || !r->left || (!r->packed && r->end - r->p < bytes)) { r->left = 0; return -1; }
    if (!r->packed) memcpy(&r->value, r->p, (size_t)bytes), r->p += bytes;
  }
  r->left--;
  if (!r->packed) return (int64_t)r->value;
  uint64_t x = 0;
  for (int k = 0; k < r->width; k++) {
    if (r->p == r->end) { r->left = 0; return -1; }
    x |= (uint64_t)(*r->p >> r->bit & 1) << k;
    if (++r->bit == 8) r->bit = 0, r->p++;
  }
  return (int64_t)x;
}
// Unpacks `bytes` bytes behind q->packed + from into exactly `want` at `to`.
static inline bool parquet_unpack(Parquet *q, int codec, size_t from, size_t bytes, uint8_t *to, size_t want) {
  size_t got = want;
  const char *p = (const char *)q->packed + from;
  if (!codec) return bytes == want && memcpy(to, p, bytes);
  if (codec == 1) return !libraries.snappy_uncompress(p, bytes, (char *)to, &got) && got == want;
  return libraries.ZSTD_decompress(to, want, p, bytes) == want;
}
// Takes the dictionary, whose page is unpacked in q->dictionary.
static inline bool parquet_dictionary(Parquet *q, int64_t values, DataError *e) {
  const uint8_t *p = q->dictionary, *end = p + q->dictionary_bytes;
  if (values < 0 || values > (int64_t)q->dictionary_bytes / 4) return parquet_damaged(q, "its dictionary", e);
  q->entry = (uint32_t *)bpe_resize(q->entry, (size_t)values + 1, sizeof *q->entry);
  for (q->entries = 0; q->entries < values; q->entries++) {
    uint32_t n;
    if (end - p < 4 || (memcpy(&n, p, 4), (uint32_t)(end - p - 4) < n)) return parquet_damaged(q, "its dictionary", e);
    q->entry[q->entries] = (uint32_t)(p - q->dictionary);
    p += 4 + n;
  }
  return true;
}
// Makes ready to read the values of a page of data, unpacked in q->page.
static inline bool parquet_data(Parquet *q, const ParquetPage *h, size_t bytes, DataError *e) {
  const uint8_t *p = q->page, *const end = p + bytes;
  const bool second = h->type == PARQUET_DATA_2;
  uint32_t n = (uint32_t)h->present_bytes;
  // Levels that are not there may have any encoding: Java's writers say BIT_PACKED.
  if (h->values < 0 || h->values > q->values_left || (q->optional && !second && h->level_encoding != PARQUET_RLE))
    return parquet_damaged(q, "a page's header", e);
  q->present = {};
  if (q->optional) {
    if (!second && (end - p < 4 || (memcpy(&n, p, 4), p += 4, false))) return parquet_damaged(q, "a page's levels", e);
    if ((size_t)(end - p) < n) return parquet_damaged(q, "a page's levels", e);
    q->present.p = p, q->present.end = p + n, q->present.width = 1;
    p += n;
  } else if (second && n) return parquet_damaged(q, "a page's levels", e);
  q->by_number = h->encoding == PARQUET_BY_DICTIONARY || h->encoding == PARQUET_BY_DICTIONARY_1;
  if (!q->by_number && h->encoding != PARQUET_PLAIN)
    return data_fail(e, EXIT_USAGE, "%s: column %s has encoding %d; expected: plain or by dictionary (pyarrow: "
                     "column_encoding)", q->path, q->column, h->encoding);
  q->numbers = {};
  if (q->by_number && p < end) {
    q->numbers.p = p + 1, q->numbers.end = end, q->numbers.width = *p;
    if (*p > 32) return parquet_damaged(q, "a page's numbers", e);
  }
  q->plain = p, q->page_end = end, q->page_left = h->values;
  q->values_left -= h->values;
  return true;
}
// Reads the next page. Its header has no length: more is read until it is whole.
static inline bool parquet_page(Parquet *q, DataError *e) {
  const ParquetChunk *c = &q->chunk[q->at_chunk];
  ParquetPage h = {};
  int64_t head = 0;
  for (int64_t have = 1 << 12;; have *= 16) {
    have = min64(have, q->end - q->at);
    if (!parquet_pread(q, parquet_room(&q->packed, &q->packed_room, (size_t)have), have, q->at, e)) return false;
    Thrift t = {q->packed, q->packed + have, false};
    h = parquet_page_header(&t);
    head = t.p - q->packed;
    if (!t.bad) break;
    if (have == q->end - q->at || have >= PARQUET_HEADER_MOST) return parquet_damaged(q, "a page's header", e);
  }
  q->at += head;
  const int64_t levels = h.type == PARQUET_DATA_2 ? h.present_bytes + h.repeat_bytes : 0;
  if (h.packed < 0 || h.packed > min64(q->end - q->at, PARQUET_PAGE_MOST) || h.unpacked < 0 ||
      h.unpacked > PARQUET_PAGE_MOST || levels < 0 ||
      h.present_bytes < 0 || h.repeat_bytes != 0 || levels > h.packed || levels > h.unpacked)
    return parquet_damaged(q, "a page's header", e);
  if (!parquet_pread(q, parquet_room(&q->packed, &q->packed_room, (size_t)h.packed), h.packed, q->at, e)) return false;
  q->at += h.packed;
  liveness_progress();
  if (h.has_crc && parquet_crc(q->packed, (size_t)h.packed) != h.crc)
    return parquet_damaged(q, "a page's checksum does not match", e);
  const bool dictionary = h.type == PARQUET_DICTIONARY;
  if (!dictionary && h.type != PARQUET_DATA && h.type != PARQUET_DATA_2) return true;
  uint8_t *to = dictionary ? parquet_room(&q->dictionary, &q->dictionary_room, (size_t)h.unpacked)
                           : parquet_room(&q->page, &q->page_room, (size_t)h.unpacked);
  memcpy(to, q->packed, (size_t)levels);
  if (h.unpacked > levels && !parquet_unpack(q, h.compressed ? c->codec : 0, (size_t)levels,
                                             (size_t)(h.packed - levels), to + levels, (size_t)(h.unpacked - levels)))
    return parquet_damaged(q, "a page does not unpack", e);
  if (!dictionary) return parquet_data(q, &h, (size_t)h.unpacked, e);
  q->dictionary_bytes = (size_t)h.unpacked;
  return parquet_dictionary(q, h.values, e);
}

// ================================================================================================ 4 rows
// The next row, in q->row_bytes and q->row_left. 1: there is one; 0: the end; -1: one line in e.
static inline int parquet_row(Parquet *q, DataError *e) {
  static const uint8_t none[] = {0xff};
  uint32_t n;
  while (!q->page_left) {
    if (q->at_chunk >= 0 && q->values_left && q->at == q->end)
      return parquet_damaged(q, "it has fewer values than the footer says", e) - 1;
    if (q->at_chunk < 0 || !q->values_left) {
      if (++q->at_chunk >= q->chunks) { q->at_chunk = q->chunks - 1; return 0; }
      const ParquetChunk *c = &q->chunk[q->at_chunk];
      q->at = c->begin, q->end = c->begin + c->bytes, q->values_left = c->values, q->entries = 0;
    } else if (!parquet_page(q, e)) return -1;
  }
  q->page_left--;
  q->row++;
  if (q->optional) {
    const int64_t present = parquet_run_next(&q->present);
    if (present < 0) return parquet_damaged(q, "a page's levels", e) - 1;
    if (!present) { q->row_bytes = none, q->row_left = 1; return 1; }
  }
  const uint8_t *p = q->plain, *end = q->page_end;
  if (q->by_number) {
    const int64_t number = q->numbers.width || q->numbers.p ? parquet_run_next(&q->numbers) : -1;
    if (number < 0 || number >= q->entries) return parquet_damaged(q, "a value is not in the dictionary", e) - 1;
    p = q->dictionary + q->entry[number], end = q->dictionary + q->dictionary_bytes;
  }
  if (end - p < 4 || (memcpy(&n, p, 4), (size_t)(end - p - 4) < n)) return parquet_damaged(q, "a value is cut", e) - 1;
  q->row_bytes = p + 4, q->row_left = n;
  if (!q->by_number) q->plain = p + 4 + n;
  if (memchr(q->row_bytes, 0, n) || (n == 1 && p[4] == 0xff))
    return data_fail(e, EXIT_MISSING, "%s, row %lld: %s", q->path, (long long)q->row,
                     n == 1 && p[4] ? "byte 1 is not UTF-8" : "it has a NUL character") - 1;
  return 1;
}
// Reads at most `bytes` bytes of rows, each ended by a zero. 0: the end; -1: one line in e.
static inline int64_t parquet_read(Parquet *q, uint8_t *to, int64_t bytes, DataError *e) {
  int64_t n = 0;
  while (n < bytes) {
    if (q->row_left < 0) {
      const int got = parquet_row(q, e);
      if (got < 0) return -1;
      if (!got) break;
    }
    const int64_t part = min64(q->row_left, bytes - n);
    memcpy(to + n, q->row_bytes, (size_t)part);
    n += part, q->row_bytes += part, q->row_left -= part;
    if (!q->row_left && n < bytes) to[n++] = 0, q->row_left = -1;
  }
  return n;
}
