// records_find.h: conversations in several files, compressed ones and tables among them, named by a list with commas,
// patterns and directories, and mixed by weights. They are encoded as they are read, by encode.h's functions, and stay
// in memory, where conversations can be packed whole. Each file may have its own schema and its own file format.
#pragma once
#include "encode.h"

// Adds the files that an element of a list names. In a directory, files named val... are for validation, unless
// --val_data names other files.
static inline bool records_add(Found *f, const char *element, bool valid, Error *e) {
  DataNames held = {};
  int tests = 0;
  const bool ok = encode_add(&f->tokens[valid ? SPLIT_VALID : SPLIT_TRAIN], valid ? NULL : &held, &tests, element,
                             valid ? "--val_data" : "--data", e, f->warnings, DIRECTORY_RECORDS);
  for (int i = 0; i < held.count && !*f->val_data; i++) data_names_add(&f->tokens[SPLIT_VALID], held.name[i]);
  data_names_free(&held);
  return ok;
}
bool records_are_meant(const EncodeOptions *o, bool *are, Error *e) {
  const bool val = *o->val_data && (access(o->val_data, F_OK) || !data_is_chats(o->val_data, o->as_text));
  Found f = {};
  Error fault = {};
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

// Finds the conversations that `list` names: f is as corpus_find takes it. False: one line in e.
static inline bool find_records(Found *f, const char *list, Error *e) {
  f->records = true;
  const bool ok = find_list(f, list, false, records_add, e) &&
                  (!*f->val_data || find_list(f, f->val_data, true, records_add, e));
  data_format(f->source, sizeof f->source, "conversations in %d file%s, %s (--data)", f->tokens[SPLIT_TRAIN].count,
              f->tokens[SPLIT_TRAIN].count > 1 ? "s" : "", list);
  return ok;
}

// ---- reading
// Moves tokens [begin, end) of the stream `from`, which are `documents` whole documents, to the end of the stream `to`.
static inline void records_move(TokenStream *from, TokenStream *to, int64_t begin, int64_t end, int64_t documents) {
  auto put = [=](TokenStream *s, int64_t at, int64_t i) {
    uint32_t id = 0;
    memcpy(&id, from->tokens + i * from->token_bytes, (size_t)from->token_bytes);
    token_stream_put(s, at, id, from->trained[i / 8] >> i % 8 & 1, from->begins[i / 8] >> i % 8 & 1);
  };
  token_stream_room(to, end - begin);
  for (int64_t i = begin; i < end; i++) put(to, to->count++, i);
  for (int64_t i = end; i < from->count; i++) put(from, begin + i - end, i);
  from->count -= end - begin, from->documents -= documents, to->documents += documents;
}
// Chooses the records [*first, *stop) of a file that are held out for validation: those in the last 5 % of its `bytes`
// bytes, at least one. The record in which the last 5 % start is held out too, unless more than 20 % would be. A last
// record that is most of the file is trained on; then one earlier record, of at most the mean size, is held out. False:
// there are fewer than two records.
static inline bool records_held(const TokenStream *s, int64_t bytes, int64_t *first, int64_t *stop) {
  const RecordPlace *r = s->place;
  const int64_t n = s->records, cut = min64(bytes - bytes / 20, s->text_end);
  int64_t i = 0;
  if (n < 2) return false;
  while (i + 1 < n && r[i].to <= cut) i++;
  if (!i) i = 1;
  *stop = n;
  const int64_t last = r[n - 1].to - r[n - 1].from;
  if (i + 1 < n && bytes - r[i].from > bytes / 5) i++;
  else if (i + 1 == n && (last > bytes / 4 * 3 || (last > bytes / 4 && last * n > 2 * bytes))) {
    while (i && (r[i].to - r[i].from) * n > bytes) i--;
    *stop = i + 1;
  }
  *first = i;
  return true;
}
// Holds out records of the file that was just read: moves their tokens to `to`. begin: the first token of the file in
// `from`; bytes: of the file's text; each: documents per record (a preference has two). part: what becomes of the
// file's records. Where its last record is not held out, exactly one record is (records_held).
static inline void records_hold_out(TokenStream *from, TokenStream *to, int64_t begin, int64_t bytes, int64_t each,
                                    RecordPart *part) {
  int64_t first, stop, at = begin;
  if (!records_held(from, bytes, &first, &stop)) return;
  auto skip = [&](int64_t documents) {
    for (; documents > 0; documents--) do at++; while (at < from->count && !(from->begins[at / 8] >> at % 8 & 1));
    return at;
  };
  const int64_t a = skip(first * each), b = skip((stop - first) * each);
  records_move(from, to, a, b, (stop - first) * each);
  part->held = stop - first, part->records -= part->held, part->last = stop == from->records;
  part->held_bytes = part->last ? bytes - from->place[first].from : from->place[first].to - from->place[first].from;
}
// Turns a stream into a split. The split takes over the memory of the stream's tokens; the stream's bits `trained` and
// `begins` are stored after them.
static inline void records_split(TokenStream *s, Split *to) {
  const size_t bits = (size_t)(s->count + 7) / 8;
  if (s->count) {
    to->masked = true, to->documents = s->documents, to->token_bytes = s->token_bytes, to->tokens_numel = s->count;
    to->tokens = to->owned = bpe_resize(s->tokens, split_bytes(to), 1);
    for (uint8_t *flags : {s->trained, s->begins}) {
      if (s->count % 8) flags[bits - 1] &= (uint8_t)((1 << s->count % 8) - 1);
      memcpy(split_bits(to, flags == s->begins), flags, bits);
    }
    s->tokens = NULL;
  }
  token_stream_free(s);
}
// Reads the files of conversations that were found, encodes each split's conversations into a TokenStream, and turns
// the streams into the corpus' splits. If no file is for validation, some records of each training file are held out
// for it. False: one line in e.
static inline bool records_encode(Corpus *c, Found *f, const EncodeOptions *o, Error *e) {
  static Encoding x;
  EncodePieces pieces = {};
  TokenStream to[SPLIT_COUNT] = {};
  const bool holds_out = !f->tokens[SPLIT_VALID].count;
  bool ok = true;
  x = Encoding{};
  x.o = o, x.column = o->column, x.chats = true, x.document_id = -1, x.tokenizer = c->tokenizer;
  x.chat = chat_open(&o->chat, &c->tokenizer);
  for (TokenStream &s : to) s.token_bytes = c->tokenizer.vocab_size <= 65536 ? 2 : 4;
  for (int i = 0; ok && i < SPLIT_COUNT; i++) {
    const DataNames *names = &f->tokens[i];
    x.sink = &to[i], x.split = i != SPLIT_TRAIN, x.files[x.split] = *names;
    for (x.file = 0; ok && x.file < names->count; x.file++) {
      const int64_t begin = to[i].count;
      RecordPart *part = &f->part[x.file];
      x.at = x.line = to[i].records = 0, x.form[0] = 0;
      ok = encode_file(&x, &pieces, e);
      if (!ok || i != SPLIT_TRAIN) continue;
      *part = RecordPart{"", x.container, to[i].records, 0, 0, x.at, true};
      memcpy(part->form, x.form, sizeof part->form);
      const bool counted = names->count > 1 && to[i].records && to[i].place[to[i].records - 1].to > x.at;
      if (holds_out)
        records_hold_out(&to[i], &to[SPLIT_VALID], begin, x.at + counted, o->chat.preferences ? 2 : 1, part);
    }
    if (ok && names->count && !to[i].count)
      ok = fail_with(e, EXIT_MISSING, "%s: no line is a conversation", names->name[0]);
  }
  for (int i = 0; i < SPLIT_COUNT; i++) if (ok) records_split(&to[i], &c->split[i]); else token_stream_free(&to[i]);
  c->seen = x.records;
  free(pieces.piece);
  return ok;
}
// Adds to a hash all bytes of the files, and the ends of their names (.jsonl.gz), which say how the bytes are read.
static inline bool records_hash(const Found *f, uint64_t *hash, Error *e) {
  for (int i = 0; i < SPLIT_COUNT; i++) for (int k = 0; k < f->tokens[i].count; k++) {
    const char *name = f->tokens[i].name[k], *end = strchr(path_base(name), '.');
    size_t bytes;
    const int fd = data_open(name, &bytes, e);
    if (fd < 0) return false;
    uint8_t *block = (uint8_t *)data_alloc(FILE_PIECE_BYTES, 1);
    *hash = data_hash(*hash ^ (uint64_t)i, end, end ? strlen(end) : 0);
    bool ok = true;
    for (int64_t at = 0, n; ok && at < (int64_t)bytes; at += n) {
      n = min64((int64_t)bytes - at, FILE_PIECE_BYTES);
      if ((ok = file_read(fd, block, n, at))) *hash = data_hash(*hash, block, (size_t)n);
      else fail_with(e, EXIT_MISSING, "cannot read %s: %s", name, errno == ENODATA ? "it has become shorter" :
                     strerror(errno));
    }
    free(block);
    close(fd);
    if (!ok) return false;
  }
  return true;
}
