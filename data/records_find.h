// records_find.h: conversations in several files, packed ones and tables, named by a list with commas, patterns and
// directories, and mixed by weights: as lines of JSON in memory, where they can be packed whole. Each file may be
// another form and another container.
//
// Defines: records_are_meant, find_records.
#pragma once
#include "data.h"
#include "encode.h"

// Adds the files that an element of a list names. In a directory those named val... are for validation, unless others
// are.
static inline bool records_add(Found *f, const char *element, bool valid, DataError *e) {
  DataNames held = {};
  int tests = 0;
  const bool ok = encode_add(&f->tokens[valid ? SPLIT_VALID : SPLIT_TRAIN], valid ? NULL : &held, &tests, element,
                             valid ? "--val_data" : "--data", e, f->notices, DIRECTORY_RECORDS);
  for (int i = 0; i < held.count && !*f->val_data; i++) data_names_add(&f->tokens[SPLIT_VALID], held.name[i]);
  data_names_free(&held);
  return ok;
}
bool records_are_meant(const EncodeOptions *o, bool *are, DataError *e) {
  const bool val = *o->val_data && (access(o->val_data, F_OK) || !data_is_chats(o->val_data, o->as_text));
  Found f = {};
  DataError fault = {};
  *are = false;
  if (o->as_text || (!val && !access(o->data, F_OK) && data_is_chats(o->data, false))) return true;
  f.val_data = o->val_data;
  bool ok = true, lines = find_list(&f, o->data, false, records_add, &fault);
  const DataNames *names = &f.tokens[SPLIT_TRAIN];
  TextPacking packing;
  const TextKind first = names->count ? text_name_kind(names->name[0], &packing) : TEXT_NONE;
  if (!lines && (first == TEXT_JSONL || first == TEXT_ROWS)) *e = fault, ok = false;       // of a later element
  for (int i = 0; lines && i < names->count; i++) {
    const TextKind kind = text_name_kind(names->name[i], &packing);
    lines = kind == TEXT_JSONL || kind == TEXT_ROWS;
  }
  for (int i = 0; ok && lines && i < names->count && !*are; i++) ok = encode_is_chats(names->name[i], o, e, are);
  found_free(&f);
  return ok;
}

// Appends the records of a file to a text; room: of its memory. line: of the file's lines before them, counted on.
static inline void records_append(Text *t, size_t *room, const uint8_t *p, size_t n, const char *path, int64_t *line) {
  if (t->numel + n > *room) t->owned = bpe_resize(t->owned, *room = t->numel + n + (t->numel + n) / 2, 1);
  memcpy((uint8_t *)t->owned + t->numel, p, n);
  t->bytes = (const uint8_t *)t->owned;
  t->numel += n;
  *line += text_end_part(t, path, *line);
}
// Reads a file, unpacked, as lines that end in a newline: *n bytes in *to, of which *room are there. before: bytes of
// other files, which stay in memory.
static inline bool records_read(uint8_t **to, size_t *n, size_t *room, const char *path, size_t before,
                                const EncodeOptions *o, DataContainer *container, RecordUnread *unread,
                                DataError *e) {
  const int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  const FileForm named = form_of(path_base(path), NULL, 0);
  TextStream s;
  int64_t got = 1;
  *n = 0;
  if (!text_stream_open(&s, path, o->column, e, false, o->chat.fields)) return false;
  bool ok = s.kind == TEXT_JSONL || data_fail(e, EXIT_MISSING, "%s has no conversations, which others of --data have: "
                                              "train on it apart", path);
  parquet_unread(&s.rows, unread);
  while (ok && got > 0) {
    if (*room < *n + FILE_PIECE_BYTES + 1) *to = (uint8_t *)bpe_resize(*to, *room = 2 * *n + FILE_PIECE_BYTES + 1, 1);
    got = text_stream_read(&s, *to + *n, FILE_PIECE_BYTES, e);
    *n += got > 0 ? (size_t)got : 0;
    ok = got >= 0 && ((int64_t)(before + *n) < memory / 2 ||
                      data_fail(e, EXIT_MISSING, "%s: conversations up to here have %zu MB, more than half of this "
                                "machine's memory: --pack stream encodes them to files", path, (before + *n) >> 20));
  }
  *container = s.rows.columns || named.container ? CONTAINER_CSV : !s.filtered ? CONTAINER_JSON_LINES
               : s.lines.array ? CONTAINER_JSON_ARRAY : CONTAINER_JSON_SPREAD;
  text_stream_close(&s);
  if (ok && *n && (*to)[*n - 1] != '\n') (*to)[(*n)++] = '\n';
  return ok;
}
// Finds and reads the conversations that `list` names, as Found has it for one file: f is as corpus_find takes it.
// column, fields: of tables, of records. Without files for validation the last records of each are held out. False: one
// line in e.
static inline bool find_records(Found *f, const char *list, const char *column, const char *fields, DataError *e) {
  EncodeOptions o = {};
  bool tables;
  uint8_t *memory = NULL;
  size_t n, room = 0, rooms[2] = {};
  o.column = column, o.chat.fields = fields;
  bool ok = find_list(f, list, false, records_add, e) &&
            (!*f->val_data || find_list(f, f->val_data, true, records_add, e));
  const bool held = !f->tokens[SPLIT_VALID].count;
  for (int i = SPLIT_TRAIN; ok && i <= SPLIT_VALID; i++) {
    const DataNames *names = &f->tokens[i];
    Text *to[] = {&f->text[i], &f->text[SPLIT_VALID]};
    ok = encode_check(names, &o, &tables, e);
    for (int k = 0; ok && k < names->count; k++) {
      DataContainer container = CONTAINER_JSON_LINES;
      int64_t line = 0;
      const size_t before = f->text[SPLIT_TRAIN].numel + f->text[SPLIT_VALID].numel;
      if (!(ok = records_read(&memory, &n, &room, names->name[k], before, &o, &container,
                             &f->unread, e))) break;
      const size_t cut = i || !held ? n : records_cut(memory, n), at = cut ? cut : n;    // of one record nothing
      to[0]->container = to[1]->container = container;
      records_append(to[0], &rooms[i], memory, at, names->name[k], &line);
      if (at < n) records_append(to[1], &rooms[1], memory + at, n - at, names->name[k], &line);
    }
  }
  free(memory);
  if (ok && !f->text[SPLIT_VALID].numel)
    ok = data_fail(e, EXIT_USAGE, "--data %s: no file has two records: too few to hold some out for validation; name "
                   "some by --val_data", list);
  if (ok && held)
    data_notice(f->notices, "--data %s: there are no conversations for validation: the last records of each file (a "
                "twentieth of its bytes) are held out for it and not trained on", list);
  data_format(f->source, sizeof f->source, "conversations in %d file%s, %s (--data)", f->tokens[SPLIT_TRAIN].count,
              f->tokens[SPLIT_TRAIN].count > 1 ? "s" : "", list);
  for (int i = SPLIT_TRAIN; i <= SPLIT_VALID; i++) {
    data_format(f->chats[i], sizeof f->chats[i], "%s", i && *f->val_data ? f->val_data : list);
    data_names_free(&f->tokens[i]);              // it is text now
  }
  return ok;
}
