// parquet.h: reads an Apache Parquet file, row by row, a page of each column at a time: one column of text, or the
// columns that make records of a schema that data/chat/ knows.
//
//   1 Thrift    the compact protocol, in which footer and page headers are written (thrift-compact-protocol.md)
//   2 schema    columns; which of them are read
//   3 footer    row groups
//   4 pages     levels, dictionary and values (Encodings.md, parquet.thrift of apache/parquet-format 2.10)
//   5 rows      and records as JSON (LogicalTypes.md: lists and their older spellings)
//
// Supported: a text column of strings (BYTE_ARRAY) at the top level, required or optional; for records strings,
// booleans, integers, floating point, lists and structures of them, in any depth; pages of version 1 and 2, plain or
// with a dictionary; uncompressed, Snappy or Zstandard. Anything else is an error that names it. The file is not
// trusted: every length is checked against the bytes that are there, and pages' checksums if there are any.
//
// A row of text is returned as its bytes and a zero; one without a value as the byte 0xff, which is never in UTF-8, and
// a zero. A record is returned as a JSON object and a newline.
#pragma once
#include "library.h"

// ================================================================================================ 1 Thrift
// A place in the bytes of a structure. bad: the bytes ended, or are not Thrift; every value read is 0 from then on.
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
// Reads the header of the next field of a structure: returns its type, and adds to *field, the last field's number.
// THRIFT_STOP: the structure's end.
static inline int thrift_field(Thrift *t, int *field) {
  if (t->bad || t->p == t->end) { t->bad = true; return THRIFT_STOP; }
  const uint8_t head = *t->p++;
  const int type = head & 15;
  if (type) *field = head >> 4 ? *field + (head >> 4) : (int)thrift_int(t);
  return t->bad ? THRIFT_STOP : type;
}
// Reads the header of a list: returns its elements' type. *count: how many; at most the number of bytes left.
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

// ================================================================================================ 2 schema
enum { PARQUET_FOOTER_MAX = 256 << 20, PARQUET_HEADER_MAX = 16 << 20, PARQUET_PAGE_MAX = 1 << 30,
       PARQUET_ELEMENTS_MAX = 1 << 16, PARQUET_COLUMNS_MAX = 256, PARQUET_LINE_MAX = 64 << 20 };
enum { PARQUET_BOOLEAN, PARQUET_INT32, PARQUET_INT64, PARQUET_INT96, PARQUET_FLOAT, PARQUET_DOUBLE,
       PARQUET_BYTE_ARRAY };
enum { PARQUET_REQUIRED, PARQUET_OPTIONAL, PARQUET_REPEATED };
enum { PARQUET_UTF8, PARQUET_MAP, PARQUET_MAP_KEY_VALUE, PARQUET_LIST };
// An element of the schema, which is a tree in preorder. annotation: -1: none of those above. end: the element after
// the last one inside it. defined, repeated: its definition and repetition levels. leaf: number of its first leaf among
// the file's columns. column: its number among the columns that are read; -1: not read.
struct ParquetElement {
  char name[256];
  int type, repetition, annotation, defined, repeated, column;
  int64_t children, end, leaf;
};
// A column's part of a row group.
struct ParquetChunk { int type, codec; int64_t values, begin, bytes; };
struct ParquetRuns { const uint8_t *p, *end; int width; int64_t left; bool packed; uint64_t value; int bit; };
struct ParquetColumn {
  char path[DATA_PATH_BYTES], name[256];
  int fd, type, defined_most, repeated_most;
  bool other;                                    // of images and their like: whether there is one
  int64_t leaf, file_bytes;
  ParquetChunk *chunk;
  int64_t chunks, at_chunk;                      // at_chunk: the chunk that is read now
  int64_t at, end, values_left;                  // its bytes [at, end) of the file, and its entries, that are left
  uint8_t *packed, *page, *dictionary;           // a page as stored; the page and the dictionary, decompressed
  size_t packed_room, page_room, dictionary_room, dictionary_bytes;
  uint32_t *entry;                               // [entries + 1] start of each value of the dictionary; its end
  int64_t entries;
  // What is left of the page.
  int64_t page_left;                             // entries
  bool by_number;                                // values are numbers of entries of the dictionary
  ParquetRuns repeats, levels, numbers;
  const uint8_t *plain, *page_end;
  // The next entry: its levels, if it was peeked at; its value, once it is taken.
  bool peeked;
  int repeated, defined;
  const uint8_t *value;
  size_t value_bytes;
};
struct Parquet {
  char path[DATA_PATH_BYTES];
  int fd;
  int64_t file_bytes, rows, row;                 // row: number of rows read
  ParquetElement *node;
  int64_t nodes;
  ParquetColumn *column;
  int columns;
  bool records;
  char *line;                                    // the current record as JSON
  size_t line_bytes, line_room;
  // The bytes of the current row that are not returned yet, without the byte that ends it.
  const uint8_t *row_bytes;
  int64_t row_left;                              // -1: the row has ended
};
static inline void parquet_close(Parquet *q) {
  for (int i = 0; i < q->columns; i++) {
    ParquetColumn *c = &q->column[i];
    for (void *p : {(void *)c->chunk, (void *)c->packed, (void *)c->page, (void *)c->dictionary, (void *)c->entry})
      free(p);
  }
  free(q->column);
  free(q->node);
  free(q->line);
  *q = {};
}
static inline bool parquet_damaged(const ParquetColumn *q, const char *what, Error *e) {
  return fail_with(e, EXIT_MISSING, "%s is damaged: row group %lld, column %s: %s", q->path, (long long)q->at_chunk + 1,
                   q->name, what);
}
static inline bool parquet_pread(const char *path, int fd, void *to, int64_t bytes, int64_t at, Error *e) {
  return file_read(fd, to, bytes, at) ||
         fail_with(e, EXIT_MISSING, "cannot read %s: %s", path, errno == ENODATA ? "it has become shorter" :
                   strerror(errno));
}
static inline ParquetElement parquet_element(Thrift *t) {
  ParquetElement x = {"", -1, 0, -1, 0, 0, -1, 0, 0, 0};
  const uint8_t *p;
  size_t n;
  int field = 0, inner = 0;
  for (int type; (type = thrift_field(t, &field)); inner = 0) switch (type == THRIFT_I32 ? field : -field) {
    case 1: x.type = (int)thrift_int(t); break;
    case 3: x.repetition = (int)thrift_int(t); break;
    case 5: x.children = thrift_int(t); break;
    case 6: x.annotation = (int)thrift_int(t); break;
    case -4:
      if (type != THRIFT_BINARY) { thrift_skip(t, type); break; }
      p = thrift_binary(t, &n);
      data_format(x.name, sizeof x.name, "%.*s", (int)min64((int64_t)n, 255), (const char *)p);
      break;
    case -10:                                    // a union of structures: String, Map, List are the first
      if (type != THRIFT_STRUCT) { thrift_skip(t, type); break; }
      for (; (type = thrift_field(t, &inner)); thrift_skip(t, type))
        if (inner <= 3) x.annotation = inner == 1 ? PARQUET_UTF8 : inner == 2 ? PARQUET_MAP : PARQUET_LIST;
      break;
    default: thrift_skip(t, type);
  }
  return x;
}
// Reads the next element of the schema and all elements inside it. in: its parent (NULL: it is the root). Returns false
// if the schema is damaged.
static inline bool parquet_tree(Parquet *q, Thrift *t, int64_t count, const ParquetElement *in, int64_t *leaf,
                                int depth = 0) {
  ParquetElement *x = &q->node[q->nodes];
  if (q->nodes++ >= count || depth == THRIFT_DEPTH) return false;
  *x = parquet_element(t);
  if (t->bad || x->children < 0 || x->repetition < 0 || x->repetition > PARQUET_REPEATED) return false;
  if (!in) x->column = x->repetition = 0, x->annotation = -1;
  else x->defined = in->defined + (x->repetition > 0), x->repeated = in->repeated + (x->repetition == PARQUET_REPEATED);
  x->leaf = *leaf;
  *leaf += !x->children;
  for (int64_t i = 0; i < x->children; i++) if (!parquet_tree(q, t, count, x, leaf, depth + 1)) return false;
  x->end = q->nodes;
  return true;
}
static inline bool parquet_schema(Parquet *q, Thrift *t, int64_t count, Error *e) {
  int64_t leaf = 0;
  if (count > PARQUET_ELEMENTS_MAX)
    return fail_with(e, EXIT_USAGE, "%s has %lld columns; at most %d are possible", q->path, (long long)count,
                     PARQUET_ELEMENTS_MAX);
  q->node = (ParquetElement *)data_alloc((size_t)count + 1, sizeof *q->node);
  return (count > 1 && parquet_tree(q, t, count, NULL, &leaf) && q->nodes == count) ||
         fail_with(e, EXIT_MISSING, "%s is damaged: its schema", q->path);
}
// Adds the leaves of node i, a column of the top level, to the columns that are read.
static inline void parquet_add(Parquet *q, int64_t i) {
  for (int64_t j = i; j < q->node[i].end; j++) {
    q->node[j].column = q->columns;
    if (q->node[j].children) continue;
    q->column = (ParquetColumn *)bpe_resize(q->column, (size_t)q->columns + 1, sizeof *q->column);
    ParquetColumn *c = &q->column[q->columns++];
    *c = {};
    memcpy(c->path, q->path, sizeof c->path);
    memcpy(c->name, q->node[i].name, sizeof c->name);
    c->fd = q->fd, c->file_bytes = q->file_bytes, c->leaf = q->node[j].leaf, c->type = q->node[j].type;
    c->defined_most = q->node[j].defined, c->repeated_most = q->node[j].repeated;
    c->other = record_is_other(c->name);
  }
}
static inline bool parquet_is_list(const Parquet *q, int64_t i) {
  const ParquetElement *x = &q->node[i];
  return x->children == 1 && x->annotation == PARQUET_LIST && x[1].repetition == PARQUET_REPEATED;
}
// Whether all leaves of node i are of types that can be read.
static inline bool parquet_is_read(const Parquet *q, int64_t i) {
  bool ok = true;
  for (int64_t j = i; j < q->node[i].end; j++) {
    const ParquetElement *x = &q->node[j];
    const bool simple = x->type >= PARQUET_BOOLEAN && x->type <= PARQUET_BYTE_ARRAY && x->type != PARQUET_INT96;
    ok = ok && (x->children ? (x->annotation != PARQUET_LIST || parquet_is_list(q, j)) &&
                x->annotation != PARQUET_MAP && x->annotation != PARQUET_MAP_KEY_VALUE : simple);
  }
  return ok;
}
// Whether the columns fit a schema of records.h; if so, adds that schema's columns. Returns false, possibly with an
// error in e, if they do not.
static inline bool parquet_choose_records(Parquet *q, const char *fields, Error *e) {
  cJSON *members = cJSON_CreateObject();
  Error fault = {};
  bool several;
  for (int64_t i = 1; i < q->nodes; i = q->node[i].end) {
    const ParquetElement *x = &q->node[i];
    const bool list = parquet_is_list(q, i) || x->repetition == PARQUET_REPEATED;
    cJSON *m = list ? cJSON_CreateArray() : x->children ? cJSON_CreateObject() : cJSON_CreateString("");
    m->valueint = (int)i;
    cJSON_AddItemToObject(members, x->name, m);
  }
  const bool single = record_is_single(members, &fault);
  const RecordForm *f = single ? record_form(members, fields, &fault, &several) : NULL;
  bool ok = single ? !several || fail_with(e, EXIT_USAGE, "%s: %s; or its text by --text_column", q->path, fault.text)
                   : fail_with(e, EXIT_USAGE, "%s: %s", q->path, fault.text);
  auto take = [&](const char *name) {
    const cJSON *m = ok && f && name ? record_member(members, fields, name) : NULL;
    if (m && f->kind == FORM_TEXT && strcmp(m->string, "text"))
      ok = fail_with(e, EXIT_USAGE, "%s: the text of a table is named by --text_column %s", q->path, m->string);
    if (!m || f->kind == FORM_TEXT) return;
    q->node[m->valueint].column = 0;
    ok = parquet_is_read(q, m->valueint) ||
         fail_with(e, EXIT_USAGE, "%s: column %s has values of another kind than text, numbers, true and false, and "
                   "lists and structures of them: write JSON lines", q->path, m->string);
  };
  if (f) take(f->first), take(f->second);
  for (const char *name : record_beside) if (!f || f->kind != FORM_TEXT) take(name);
  for (int64_t i = 1; i < q->nodes; i = q->node[i].end) if (record_changes(q->node[i].name)) take(q->node[i].name);
  for (int64_t i = 1; ok && i < q->nodes; i = q->node[i].end) if (!q->node[i].column) parquet_add(q, i);
  if (ok && q->columns > PARQUET_COLUMNS_MAX)
    ok = fail_with(e, EXIT_USAGE, "%s has records of more than %d values", q->path, PARQUET_COLUMNS_MAX);
  q->records = ok && q->columns;
  cJSON_Delete(members);
  return q->records;
}
// Adds the columns that are not read to the unread keys, each as a key of all the file's records.
static inline void parquet_unread(const Parquet *q, RecordUnread *unread) {
  for (int64_t i = 1; q->records && i < q->nodes; i = q->node[i].end)
    if (q->node[i].column < 0) record_unread_add(unread, q->node[i].name, q->rows);
}
// Which columns are read: those of records; or one of text: `asked`, or `text`, or the only one of strings. Names the
// columns where there is none. False: e.
static inline bool parquet_choose(Parquet *q, const char *asked, const char *fields, Error *e) {
  char names[700] = "";
  int64_t chosen = -1, strings = 0;
  bool named = false;
  const ParquetElement *records = NULL;          // a list of records
  if (fields && !*asked && (parquet_choose_records(q, fields, e) || e->text[0])) return q->records;
  for (int64_t i = 1; i < q->nodes; i = q->node[i].end) {
    const ParquetElement *x = &q->node[i];
    const bool text = !x->children && x->type == PARQUET_BYTE_ARRAY, string = text && x->annotation == PARQUET_UTF8;
    bool list = false, chats = x->children && form_is_chat_key(x->name);
    for (int64_t j = i; j < x->end; j++) {
      list = list || (q->node[j].repetition == PARQUET_REPEATED && strcmp(q->node[j].name, "key_value"));   // a map's
      chats = chats || (list && q->node[j].children > 1);
    }
    if (chats && !records) records = x;
    const size_t n = strlen(names);
    data_format(names + n, sizeof names - n, "%s%s", n ? ", " : "", x->name);
    const bool is = !strcmp(x->name, *asked ? asked : "text") && (*asked || text);
    if (is || (!named && !*asked && string)) chosen = i;
    named = named || is;
    strings += string;
  }
  if (*asked && !named)
    return fail_with(e, EXIT_USAGE, "%s has no column %s; it has: %s", q->path, asked, names);
  if (!*asked && records && (!named || form_is_chat_key(records->name)))
    return fail_with(e, EXIT_USAGE, "%s has records in column %s and no known schema: name it, if they are "
                     "messages, by --fields messages=%s, or a column of strings to train on by --text_column; it has: "
                     "%s", q->path, records->name, records->name, names);
  if (!named && strings != 1)
    return fail_with(e, EXIT_USAGE, "%s has %s, and none is text: name the one to read by --text_column, or those of "
                     "records by --fields; it has: %s", q->path, strings ? "several columns of strings" : "no column "
                     "of strings", names);
  const ParquetElement *x = &q->node[chosen];
  if (x->children || x->type != PARQUET_BYTE_ARRAY || x->repetition == PARQUET_REPEATED)
    return fail_with(e, EXIT_USAGE, "%s: column %s is no strings; name one by --text_column; it has: %s", q->path,
                     x->name, names);
  parquet_add(q, chosen);
  return true;
}

// ================================================================================================ 3 footer
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
static inline bool parquet_check_chunk(ParquetColumn *q, const ParquetChunk *c, Error *e) {
  static const char *const codecs[] = {"", "Snappy", "GZIP", "LZO", "Brotli", "LZ4", "Zstandard", "LZ4_RAW"};
  if (c->type != q->type || c->values < 0 || c->begin < 4 || c->bytes < 0 || c->bytes > q->file_bytes - c->begin)
    return parquet_damaged(q, "it is outside the file", e);
  if (c->codec && c->codec != 1 && c->codec != 6)
    return fail_with(e, EXIT_USAGE, "%s is compressed by %s; expected: Snappy, Zstandard, or none: write it again so",
                     q->path, c->codec > 0 && c->codec < 8 ? codecs[c->codec] : "an unknown codec");
  return library_open(c->codec == 1 ? LIBRARY_SNAPPY : c->codec ? LIBRARY_ZSTD : LIBRARY_NONE, q->path, e);
}
// Reads a row group: where in it the columns are that are read. False: it is damaged, or e.
static inline bool parquet_group(Parquet *q, Thrift *t, int64_t number, Error *e) {
  int64_t leaves;
  int field = 0, at = 0;
  for (int type; (type = thrift_field(t, &field));) {
    if (field != 1 || type != THRIFT_LIST || at) { thrift_skip(t, type); continue; }
    if (thrift_list(t, &leaves) != THRIFT_STRUCT) return false;
    for (int64_t i = 0; i < leaves && !t->bad; i++) {
      ParquetColumn *c = &q->column[at];
      if (at == q->columns || i != c->leaf) { thrift_skip(t, THRIFT_STRUCT); continue; }
      if (!(number & (number - 1)))              // room for a power of two
        c->chunk = (ParquetChunk *)bpe_resize(c->chunk, number ? 2 * (size_t)number : 1, sizeof *c->chunk);
      c->chunk[number] = parquet_chunk(t);
      c->at_chunk = number, c->chunks = number + 1, at++;
      if (!t->bad && !parquet_check_chunk(c, &c->chunk[number], e)) return false;
    }
  }
  return !t->bad && at == q->columns;
}
// Reads the footer's structure FileMetaData.
static inline bool parquet_footer(Parquet *q, Thrift t, const char *asked, const char *fields, Error *e) {
  int64_t count;
  int field = 0;
  bool ok = true;
  for (int type; ok && (type = thrift_field(&t, &field));) {
    if (field == 2 && type == THRIFT_LIST && !q->columns) {
      if (thrift_list(&t, &count) != THRIFT_STRUCT) t.bad = true;
      if (!parquet_schema(q, &t, count, e) || !parquet_choose(q, asked, fields, e)) return false;
    } else if (field == 3 && type == THRIFT_I64) q->rows = thrift_int(&t);
    else if (field == 8) return fail_with(e, EXIT_USAGE, "%s is encrypted: write it again without", q->path);
    else if (field == 4 && type == THRIFT_LIST && q->columns && !q->column->chunks) {
      if (thrift_list(&t, &count) != THRIFT_STRUCT && count) t.bad = true;
      for (int64_t i = 0; ok && i < count; i++) ok = parquet_group(q, &t, i, e);
    } else thrift_skip(&t, type);
  }
  ok = ok && !t.bad && q->columns && q->rows >= 0;
  return ok || e->text[0] ? ok : fail_with(e, EXIT_MISSING, "%s is damaged: its footer", q->path);
}
// Opens the file behind fd, which stays the caller's. asked: the column of text, or "". fields: of records (--fields);
// NULL: it is text. False: one line in e; close it too.
static inline bool parquet_open(Parquet *q, int fd, const char *path, int64_t file_bytes, const char *asked,
                                const char *fields, Error *e) {
  uint8_t ends[12];
  uint32_t bytes;
  *q = {};
  q->fd = fd, q->file_bytes = file_bytes, q->row_left = q->rows = -1;
  data_format(q->path, sizeof q->path, "%s", path);
  e->text[0] = 0;
  if (file_bytes >= 12 && (!parquet_pread(path, fd, ends, 4, 0, e) ||
                           !parquet_pread(path, fd, ends + 4, 8, file_bytes - 8, e)))
    return false;
  if (file_bytes >= 12 && !memcmp(ends + 8, "PARE", 4))
    return fail_with(e, EXIT_USAGE, "%s is encrypted: write it again without", path);
  if (file_bytes < 12 || memcmp(ends, "PAR1", 4) || memcmp(ends + 8, "PAR1", 4))
    return fail_with(e, EXIT_MISSING, "%s is no Parquet table, or cut short: it does not start and end with PAR1",
                     path);
  memcpy(&bytes, ends + 4, 4);
  if (bytes > file_bytes - 12 || bytes > PARQUET_FOOTER_MAX)
    return fail_with(e, EXIT_MISSING, "%s is damaged: a footer of %u bytes", path, bytes);
  uint8_t *footer = (uint8_t *)data_alloc((size_t)bytes + 1, 1);
  const bool ok = parquet_pread(path, fd, footer, bytes, file_bytes - 8 - bytes, e) &&
                  parquet_footer(q, Thrift{footer, footer + bytes, false}, asked, fields, e);
  free(footer);
  for (int i = 0; i < q->columns; i++) q->column[i].at_chunk = -1;
  return ok;
}

// ================================================================================================ 4 pages
enum { PARQUET_DATA, PARQUET_INDEX, PARQUET_DICTIONARY, PARQUET_DATA_2 };
enum { PARQUET_PLAIN = 0, PARQUET_BY_DICTIONARY_1 = 2, PARQUET_RLE = 3, PARQUET_BY_DICTIONARY = 8 };
struct ParquetPage {
  int type, encoding, level_encoding, repeat_encoding;
  int64_t values, unpacked, packed, present_bytes, repeat_bytes;       // the last two of version 2
  uint32_t crc;
  bool has_crc, compressed;
};
static inline ParquetPage parquet_page_header(Thrift *t) {
  ParquetPage h = {-1, -1, PARQUET_RLE, PARQUET_RLE, -1, -1, -1, 0, 0, 0, false, true};
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
      if (field == 4 && outer == 5) h.repeat_encoding = (int)x;
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
static inline int64_t parquet_run_next(ParquetRuns *r) {
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
// Unpacks `bytes` bytes after q->packed + from into exactly `want` at `to`.
static inline bool parquet_unpack(ParquetColumn *q, int codec, size_t from, size_t bytes, uint8_t *to, size_t want) {
  size_t got = want;
  const char *p = (const char *)q->packed + from;
  if (!codec) return bytes == want && memcpy(to, p, bytes);
  if (codec == 1) return !libraries.snappy_uncompress(p, bytes, (char *)to, &got) && got == want;
  return libraries.ZSTD_decompress(to, want, p, bytes) == want;
}
// Bytes of a value of a type; 0: they are told before each.
static inline int parquet_width(int type) {
  return type == PARQUET_INT32 || type == PARQUET_FLOAT ? 4 : type == PARQUET_INT64 || type == PARQUET_DOUBLE ? 8 : 0;
}
// Takes the dictionary, whose page is unpacked in q->dictionary.
static inline bool parquet_dictionary(ParquetColumn *q, int64_t values, Error *e) {
  const uint8_t *p = q->dictionary, *end = p + q->dictionary_bytes;
  const int width = parquet_width(q->type), each = width ? width : 4;
  if (values < 0 || values > (int64_t)q->dictionary_bytes / each) return parquet_damaged(q, "its dictionary", e);
  q->entry = (uint32_t *)bpe_resize(q->entry, (size_t)values + 1, sizeof *q->entry);
  for (q->entries = 0; q->entries < values; q->entries++) {
    uint32_t n = 0;
    if (end - p < each || (!width && (memcpy(&n, p, 4), (uint32_t)(end - p - 4) < n)))
      return parquet_damaged(q, "its dictionary", e);
    q->entry[q->entries] = (uint32_t)(p - q->dictionary);
    p += (uint32_t)each + n;
  }
  return true;
}
// Makes ready to read levels up to `most`, which start at *p: after their length, or `n` bytes. False: they are cut.
static inline bool parquet_levels(ParquetRuns *r, int most, const uint8_t **p, const uint8_t *end, bool sized,
                                  int64_t n) {
  *r = {};
  if (!most) return sized || !n;
  if (sized) {
    uint32_t bytes;
    if (end - *p < 4) return false;
    memcpy(&bytes, *p, 4);
    *p += 4, n = bytes;
  }
  if (end - *p < n) return false;
  for (; most >> r->width; r->width++);
  r->p = *p, r->end = *p += n;
  return true;
}
// Makes ready to read the values of a page of data, unpacked in q->page.
static inline bool parquet_data(ParquetColumn *q, const ParquetPage *h, size_t bytes, Error *e) {
  const uint8_t *p = q->page, *const end = p + bytes;
  const bool first = h->type != PARQUET_DATA_2, bits = q->type == PARQUET_BOOLEAN;
  // Levels that are not there may have any encoding: Java's writers say BIT_PACKED.
  if (h->values < 0 || h->values > q->values_left || (q->defined_most && first && h->level_encoding != PARQUET_RLE) ||
      (q->repeated_most && first && h->repeat_encoding != PARQUET_RLE))
    return parquet_damaged(q, "a page's header", e);
  if (!parquet_levels(&q->repeats, q->repeated_most, &p, end, first, h->repeat_bytes) ||
      !parquet_levels(&q->levels, q->defined_most, &p, end, first, h->present_bytes))
    return parquet_damaged(q, "a page's levels", e);
  q->by_number = !bits && (h->encoding == PARQUET_BY_DICTIONARY || h->encoding == PARQUET_BY_DICTIONARY_1);
  if (!q->by_number && h->encoding != PARQUET_PLAIN && !(bits && h->encoding == PARQUET_RLE))
    return fail_with(e, EXIT_USAGE, "%s: column %s has encoding %d; expected: plain or by dictionary (pyarrow: "
                     "column_encoding)", q->path, q->name, h->encoding);
  q->numbers = {};
  if (bits && h->encoding == PARQUET_RLE) {
    if (!parquet_levels(&q->numbers, 1, &p, end, true, 0) && h->values) return parquet_damaged(q, "a page's values", e);
  } else if (bits) {                             // a run of them
    q->numbers = ParquetRuns{p, end, 1, h->values, true, 0, 0};
  } else if (q->by_number && p < end) {
    q->numbers.p = p + 1, q->numbers.end = end, q->numbers.width = *p;
    if (*p > 32) return parquet_damaged(q, "a page's numbers", e);
  }
  q->plain = p, q->page_end = end, q->page_left = h->values;
  q->values_left -= h->values;
  return true;
}
// Reads the next page. Its header has no length: more is read until it is whole.
static inline bool parquet_page(ParquetColumn *q, Error *e) {
  const ParquetChunk *c = &q->chunk[q->at_chunk];
  ParquetPage h = {};
  int64_t head = 0;
  for (int64_t have = 1 << 12;; have *= 16) {
    have = min64(have, q->end - q->at);
    uint8_t *to = parquet_room(&q->packed, &q->packed_room, (size_t)have);
    if (!parquet_pread(q->path, q->fd, to, have, q->at, e)) return false;
    Thrift t = {q->packed, q->packed + have, false};
    h = parquet_page_header(&t);
    head = t.p - q->packed;
    if (!t.bad) break;
    if (have == q->end - q->at || have >= PARQUET_HEADER_MAX) return parquet_damaged(q, "a page's header", e);
  }
  q->at += head;
  const int64_t levels = h.type == PARQUET_DATA_2 ? h.present_bytes + h.repeat_bytes : 0;
  if (h.packed < 0 || h.packed > min64(q->end - q->at, PARQUET_PAGE_MAX) || h.unpacked < 0 ||
      h.unpacked > PARQUET_PAGE_MAX || levels < 0 ||
      h.present_bytes < 0 || h.repeat_bytes < 0 || levels > h.packed || levels > h.unpacked)
    return parquet_damaged(q, "a page's header", e);
  parquet_room(&q->packed, &q->packed_room, (size_t)h.packed);
  if (!parquet_pread(q->path, q->fd, q->packed, h.packed, q->at, e)) return false;
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

// ================================================================================================ 5 rows
// The next row group, number `chunk`.
static inline void parquet_begin(ParquetColumn *q, int64_t chunk) {
  const ParquetChunk *c = &q->chunk[q->at_chunk = chunk];
  q->at = c->begin, q->end = c->begin + c->bytes, q->values_left = c->values, q->entries = 0;
}
// Looks at the levels of the next entry of a row group. 1: there is one; 0: the end; -1: one line in e.
static inline int parquet_peek(ParquetColumn *q, Error *e) {
  if (q->peeked) return 1;
  while (!q->page_left) {
    if (!q->values_left) return 0;
    if (q->at == q->end) return parquet_damaged(q, "it has fewer values than the footer says", e) - 1;
    if (!parquet_page(q, e)) return -1;
  }
  const int64_t repeated = q->repeated_most ? parquet_run_next(&q->repeats) : 0;
  const int64_t defined = q->defined_most ? parquet_run_next(&q->levels) : 0;
  if (repeated < 0 || repeated > q->repeated_most || defined < 0 || defined > q->defined_most)
    return parquet_damaged(q, "a page's levels", e) - 1;
  q->page_left--;
  q->repeated = (int)repeated, q->defined = (int)defined, q->peeked = true;
  return 1;
}
// Takes the value of the entry that was looked at, which has one.
static inline bool parquet_value(ParquetColumn *q, Error *e) {
  static const uint8_t bits[] = {0, 1};
  const uint8_t *p = q->plain, *end = q->page_end;
  const int width = parquet_width(q->type);
  uint32_t n = (uint32_t)width;
  q->peeked = false;
  if (q->by_number || q->type == PARQUET_BOOLEAN) {
    const int64_t number = q->numbers.width || q->numbers.p ? parquet_run_next(&q->numbers) : -1;
    if (number < 0 || number >= (q->by_number ? q->entries : 2))
      return parquet_damaged(q, q->by_number ? "a value is not in the dictionary" : "a value is cut", e);
    if (!q->by_number) { q->value = bits + number, q->value_bytes = 1; return true; }
    p = q->dictionary + q->entry[number], end = q->dictionary + q->dictionary_bytes;
  }
  if (!width && (end - p < 4 || (memcpy(&n, p, 4), p += 4, false))) return parquet_damaged(q, "a value is cut", e);
  if ((size_t)(end - p) < n) return parquet_damaged(q, "a value is cut", e);
  q->value = p, q->value_bytes = n;
  if (!q->by_number) q->plain = p + n;
  return true;
}
// Whether the columns have another row: 1; 0: all end; -1: one line in e.
static inline int parquet_next(Parquet *q, Error *e) {
  for (ParquetColumn *const first = q->column;;) {
    int got = 0;
    for (int i = 0; i < q->columns && got >= 0; i++) {
      ParquetColumn *c = &q->column[i];
      const int more = c->at_chunk < 0 ? 0 : parquet_peek(c, e);
      if (i && more >= 0 && more != got) return parquet_damaged(c, "it has other rows than others", e) - 1;
      got = more;
    }
    q->row += got > 0;
    if (got) return got;
    if (first->at_chunk + 1 >= first->chunks)
      return q->row == q->rows ? 0 : parquet_damaged(first, "it has other rows than the footer says", e) - 1;
    for (int i = 0; i < q->columns; i++) parquet_begin(&q->column[i], q->column[i].at_chunk + 1);
  }
}
// Reads a row of text into q->row_bytes and q->row_left.
static inline bool parquet_text(Parquet *q, Error *e) {
  static const uint8_t none[] = {0xff};
  ParquetColumn *c = q->column;
  q->row_bytes = none, q->row_left = 1;
  if (c->defined < c->defined_most) { c->peeked = false; return true; }
  if (!parquet_value(c, e)) return false;
  q->row_bytes = c->value, q->row_left = (int64_t)c->value_bytes;
  const bool one = q->row_left == 1 && *c->value == 0xff;
  return (!memchr(c->value, 0, c->value_bytes) && !one) ||
         fail_with(e, EXIT_MISSING, "%s, row %lld: %s", q->path, (long long)q->row, one ? "byte 1 is not UTF-8" : "it "
                   "has a NUL character");
}
static inline bool parquet_put(Parquet *q, const void *p, size_t n, Error *e) {
  if (q->line_bytes + n > PARQUET_LINE_MAX)
    return fail_with(e, EXIT_MISSING, "%s, row %lld: it has more than 64 MiB", q->path, (long long)q->row);
  if (q->line_bytes + n > q->line_room)
    q->line = (char *)bpe_resize(q->line, q->line_room = 2 * (q->line_bytes + n) + 64, 1);
  if (n) memcpy(q->line + q->line_bytes, p, n);
  q->line_bytes += n;
  return true;
}
static inline bool parquet_put(Parquet *q, const char *text, Error *e) {
  return parquet_put(q, text, strlen(text), e);
}
// A text in quotes.
static inline bool parquet_put_text(Parquet *q, const uint8_t *p, size_t n, Error *e) {
  bool ok = parquet_put(q, "\"", e);
  for (size_t at = 0, end; ok && at < n; at = end) {
    char code[8];
    for (end = at; end < n && p[end] >= 32 && p[end] != '"' && p[end] != '\\';) end++;
    ok = parquet_put(q, p + at, end - at, e);
    if (end < n) snprintf(code, sizeof code, "\\u%04x", p[end++]), ok = ok && parquet_put(q, code, e);
  }
  return ok && parquet_put(q, "\"", e);
}
// A number as Python has it, for tools are rendered so: the fewest digits that are it, 1.0, 0.1, 100000.0, 1e+16.
static inline void parquet_number(char text[40], double d) {
  int digits = 0;
  do snprintf(text, 40, "%.*e", digits, d); while (strtod(text, NULL) != d && ++digits < 17);
  const char *e = strchr(text, 'e');
  const int power = e ? atoi(e + 1) : 0;
  if (e && power >= -4 && power < 16) snprintf(text, 40, "%.*f", digits > power + 1 ? digits - power : 1, d);
}
static inline bool parquet_put_value(Parquet *q, const ParquetColumn *c, Error *e) {
  char text[40];
  int32_t i;
  int64_t l;
  float f;
  double d = 0;
  if (c->type == PARQUET_BYTE_ARRAY)
    return parquet_put_text(q, c->other ? (const uint8_t *)"x" : c->value, c->other ? c->value_bytes != 0
                                                                                     : c->value_bytes, e);
  if (c->type == PARQUET_BOOLEAN) return parquet_put(q, *c->value ? "true" : "false", e);
  if (c->type == PARQUET_INT32) memcpy(&i, c->value, 4), snprintf(text, sizeof text, "%d", i);
  if (c->type == PARQUET_INT64) memcpy(&l, c->value, 8), snprintf(text, sizeof text, "%lld", (long long)l);
  if (c->type == PARQUET_FLOAT) memcpy(&f, c->value, 4), parquet_number(text, d = f);
  if (c->type == PARQUET_DOUBLE) memcpy(&d, c->value, 8), parquet_number(text, d);
  return parquet_put(q, isfinite(d) ? text : "null", e);
}
// Node i is nothing, which each of its columns has an entry for: below level `defined`.
static inline bool parquet_nothing(Parquet *q, int64_t i, int repeated, int defined, const char *word, Error *e) {
  for (int64_t j = i; j < q->node[i].end; j++) {
    if (q->node[j].children) continue;
    ParquetColumn *c = &q->column[q->node[j].column];
    const int got = parquet_peek(c, e);
    if (got < 0) return false;
    if (!got || c->repeated != repeated || c->defined >= defined) return parquet_damaged(c, "its levels", e);
    c->peeked = false;
  }
  return parquet_put(q, word, e);
}
// Node i as JSON; its first entry has the level `repeated`. element: of the list that it is itself, in an older
// spelling.
static inline bool parquet_json(Parquet *q, int64_t i, int repeated, bool element, Error *e) {
  const ParquetElement *x = &q->node[i];
  ParquetColumn *c = &q->column[x->column];
  const bool itself = x->repetition == PARQUET_REPEATED && !element;
  int got = parquet_peek(c, e);
  if (got <= 0) return got < 0 ? false : parquet_damaged(c, "it ends within a row", e);
  if (x->repetition == PARQUET_OPTIONAL && c->defined < x->defined)
    return parquet_nothing(q, i, repeated, x->defined, "null", e);
  if (itself || parquet_is_list(q, i)) {
    const int64_t list = i + !itself;
    const ParquetElement *in = &q->node[list];
    char tuple[264];
    snprintf(tuple, sizeof tuple, "%s_tuple", x->name);
    const bool older = itself || in->children != 1 || in[1].repetition == PARQUET_REPEATED ||
                       !strcmp(in->name, "array") || !strcmp(in->name, tuple);
    if (c->defined < in->defined) return parquet_nothing(q, list, repeated, in->defined, "[]", e);
    for (const char *before = "[";; before = ",", repeated = in->repeated) {
      if (!parquet_put(q, before, e) || !parquet_json(q, list + !older, repeated, older, e)) return false;
      if ((got = parquet_peek(c, e)) < 0) return false;
      if (!got || c->repeated != in->repeated) return parquet_put(q, "]", e);
    }
  }
  if (!x->children) {
    if (c->repeated != repeated || c->defined != x->defined) return parquet_damaged(c, "its levels", e);
    return parquet_value(c, e) && parquet_put_value(q, c, e);
  }
  const char *before = "{";
  for (int64_t j = i + 1; j < x->end; j = q->node[j].end) {
    if (q->node[j].column < 0) continue;         // of the top level, and not read
    const uint8_t *name = (const uint8_t *)q->node[j].name;
    if (!parquet_put(q, before, e) || !parquet_put_text(q, name, strlen(q->node[j].name), e) ||
        !parquet_put(q, ":", e) || !parquet_json(q, j, repeated, false, e)) return false;
    before = ",";
  }
  return parquet_put(q, "}", e);
}
// Reads at most `bytes` bytes of rows, each with its end. 0: the end; -1: one line in e.
static inline int64_t parquet_read(Parquet *q, uint8_t *to, int64_t bytes, Error *e) {
  int64_t n = 0;
  while (n < bytes) {
    if (q->row_left < 0) {
      const int got = parquet_next(q, e);
      if (!got) break;
      q->line_bytes = 0;
      if (got < 0 || !(q->records ? parquet_json(q, 0, 0, false, e) : parquet_text(q, e))) return -1;
      if (q->records) q->row_bytes = (const uint8_t *)q->line, q->row_left = (int64_t)q->line_bytes;
    }
    const int64_t part = min64(q->row_left, bytes - n);
    memcpy(to + n, q->row_bytes, (size_t)part);
    n += part, q->row_bytes += part, q->row_left -= part;
    if (!q->row_left && n < bytes) to[n++] = q->records ? '\n' : 0, q->row_left = -1;
  }
  return n;
}
