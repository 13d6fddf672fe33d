// encode.h: encodes texts of any size into token files for training: as a stream, on all cores, to the same bytes for
// every number of cores. After a kill at any time the next run continues and writes the same bytes.
//
//   1 inputs     files, patterns and directories as a list; the sample that trains a tokenizer
//   2 writing    shards in a directory: train_000001.bin ..., val_000000.bin, tokenizer.json
//   3 encoding   block by block: pieces of documents by all threads, written in their order
//   4 the state  encode.json: how far the encoding is; opening, resuming and running an encoding
//
// Conventions
//   - A document is a line of a .jsonl, a row of a table, an article of WikiText if the tokenizer divides documents, as
//     training in memory does, or a whole file of another kind. The document token stands before each document (llm.c,
//     nanochat), after each (llmq), or nowhere. The ids of a text are those of encoding it at once.
//   - Conversations (data/chat/) are encoded with a loss mask, into files of llmq's format; other text into llm.c's.
//   - An unfinished shard is called NAME.part. Input is read in order; the state saves the current file and how many
//     bytes of its uncompressed text have been encoded.
//   - A function that can fail because of the user's input returns false with one line in an Error.
#pragma once
#include "kernels/cpu/threads.h"
#include "text_stream.h"
#include <fnmatch.h>

// HELD_OUT: one document of this many is for validation. Bytes: of the sample that trains a tokenizer; of a piece that
// one thread encodes; that a cut keeps from the end of what is in memory.
enum { HELD_OUT = 200, ENCODE_SAMPLE_BYTES = 64 << 20, ENCODE_PIECE_BYTES = 16 << 10, ENCODE_MARGIN_BYTES = 1024,
       ENCODE_PIECES = 1 << 16, ENCODE_LINE_BYTES = 64 << 20,       // lines or rows cut at a time; the longest line
       ENCODE_THREAD_BYTES = 2 << 20,            // a thread's share of a block
       ENCODE_WHOLE_BYTES = 64 << 20, ENCODE_SAMPLES = 16 };         // inputs hashed whole; beyond, samples of a file

// ================================================================================================ 1 inputs
// Adds the text files of a directory to `to`. Files named val... are added to `held` instead, and files named test...
// are left out and counted in *tests; with held NULL all files are added to `to`. Notes (.md) are left out, and .json,
// .csv and .tsv, which in a directory usually describe its other files. warnings: receives what else is left out.
static inline bool encode_add_directory(DataNames *to, DataNames *held, int *tests, const char *directory,
                                        const char *option, DirectoryUse use, DataWarnings *warnings, Error *e) {
  char path[PATH_MAX];
  TextPacking packing;
  DataNames names = data_names(directory, "");
  for (int i = 0; i < names.count; i++) {
    const char *name = names.name[i];
    const bool val = held && !strncmp(name, "val", 3), test = held && !strncmp(name, "test", 4);
    bool beside = name_ends(name, ".md");
    for (const char *end : {".json", ".csv", ".tsv"}) beside = beside || form_name_ends(name, end);
    if (text_name_kind(name, &packing) == TEXT_NONE || beside || name_is_note(name) ||
        !data_format(path, sizeof path, "%s%s%s", directory, name_ends(directory, "/") ? "" : "/", name)) continue;
    if (test) ++*tests;
    else data_names_add(val ? held : to, path);
  }
  data_names_free(&names);
  return !warnings || directory_check(directory, option, use, warnings, e);
}
// Adds the texts that a path or pattern names.
static inline bool encode_add(DataNames *to, DataNames *held, int *tests, const char *element, const char *option,
                              Error *e, DataWarnings *warnings = NULL, DirectoryUse use = DIRECTORY_ALL) {
  struct stat st;
  glob_t g = {};
  const int before = to->count;
  const bool there = !stat(element, &st);
  if (there && S_ISDIR(st.st_mode)) {
    if (!encode_add_directory(to, held, tests, element, option, use, warnings, e)) return false;
  } else if (there) data_names_add(to, element);
  else if (!glob(element, 0, NULL, &g)) for (size_t i = 0; i < g.gl_pathc; i++) data_names_add(to, g.gl_pathv[i]);
  globfree(&g);
  return to->count > before ||
         fail_with(e, EXIT_MISSING, "%s %s: %s", option, element, there ? "no text to train on in this directory "
                   "(.txt, .jsonl; also .gz, .zst; .parquet)" : strerror(ENOENT));
}
// Adds the texts that a comma-separated list names; a list that is itself an existing path is one element.
static inline bool encode_add_list(DataNames *to, DataNames *held, int *tests, const char *list, const char *option,
                                   Error *e, DataWarnings *warnings = NULL) {
  char element[DATA_PATH_BYTES];
  const bool whole = !access(list, F_OK);
  for (const char *at = *list ? list : NULL, *comma; at; at = comma ? comma + 1 : NULL) {
    comma = whole ? NULL : strchr(at, ',');
    if (!data_format(element, sizeof element, "%.*s", comma ? (int)(comma - at) : (int)strlen(at), at))
      return fail_with(e, EXIT_MISSING, "%s: a path is too long: at most %zu bytes", option, sizeof element - 1);
    if (!encode_add(to, held, tests, element, option, e, warnings)) return false;
  }
  return true;
}
static inline TextWant encode_want(const EncodeOptions *o, TextKind kind) {
  return o->as_text ? WANT_BYTES : kind == TEXT_JSONL ? WANT_LINES : WANT_TEXT;
}
// Before anything is written, rejects a file that is not named like a text, a missing library, a table without the
// column, and a file whose first 64 KiB are not text. *tables becomes true if one of the files is a table.
static inline bool encode_check(const DataNames *names, const EncodeOptions *o, bool *tables, Error *e) {
  enum { HEAD = 1 << 16 };
  uint8_t *head = (uint8_t *)data_alloc(HEAD, 1);
  bool ok = true;
  for (int i = 0; ok && i < names->count; i++) {
    TextStream s;
    const char *looks = NULL;
    char line[1400];
    if (!(ok = text_stream_open(&s, names->name[i], o->column, e, o->as_text, o->chat.fields))) break;
    *tables = *tables || s.kind == TEXT_ROWS;
    int64_t n = 0, got = s.kind != TEXT_ROWS;
    while (got > 0 && n < HEAD && (got = text_stream_read(&s, head + n, HEAD - n, e)) > 0) n += got;
    ok = got >= 0 && (s.kind == TEXT_ROWS ||
                      text_check(names->name[i], head, (size_t)n, encode_want(o, s.kind), &looks, e));
    if (looks) {
      data_format(line, sizeof line, "warning: %s is %s: braces and keys are trained on like text", names->name[i],
                  looks);
      o->say(line);
    }
    text_stream_close(&s);
  }
  free(head);
  return ok;
}
bool encode_is_packed(const char *list, bool as_text) {
  DataNames names = {}, bins = {};
  Error none;
  struct stat st;
  const bool directory = !stat(list, &st) && S_ISDIR(st.st_mode);
  int texts = 0, packed = 0;
  bool in_memory = directory ? data_is_chats(list, as_text) : !access(list, F_OK);
  if (directory) bins = data_names(list, ".bin");
  if (encode_add_list(&names, NULL, NULL, list, "", &none))
    for (int i = 0; i < names.count; i++) {
      TextPacking packing;
      const TextKind kind = text_name_kind(names.name[i], &packing, as_text && !name_ends(names.name[i], ".bin"));
      texts += kind != TEXT_NONE;
      packed += packing || kind == TEXT_ROWS;
      in_memory = in_memory || (directory && kind == TEXT_PLAIN && !packing);
    }
  const bool all = texts && texts == names.count && !bins.count;
  data_names_free(&names);
  data_names_free(&bins);
  return directory ? all && !in_memory : all && (packed || !in_memory);
}

static inline bool encode_is_blank(uint8_t c) { return c == ' ' || c == '\t' || c == '\r'; }
// The text of a line of a .jsonl, malloc'ed; NULL and what is wrong in `fault`.
static inline char *encode_line(const uint8_t *line, size_t bytes, const char *fields, Error *fault) {
  if (!chat_check_line(line, bytes, fault)) return NULL;
  const char *end = NULL, *const stop = (const char *)line + bytes;
  cJSON *json = cJSON_ParseWithLengthOpts((const char *)line, bytes, &end, false);
  while (json && end < stop && encode_is_blank((uint8_t)*end)) end++;
  const bool rest = json && end < stop;
  const char *text = rest ? NULL : record_text(json, fields, "text");
  char *copy = text ? strdup(text) : NULL;
  if (!json) fail(fault, "it is not JSON");
  else if (rest)
    fail(fault, "more stands after its JSON, from byte %zu on", (size_t)(end - (const char *)line) + 1);
  else if (!record_is_single(json, fault)) { free(copy); copy = NULL; }
  else if (!text)
    fail(fault, cJSON_HasObjectItem(json, "messages") || cJSON_HasObjectItem(json, "prompt") ? "it is a conversation, "
         "and the first file has texts: encode conversations apart" : "it has no \"text\"");
  cJSON_Delete(json);
  return copy;
}
// *chats: whether the first line of a file is a conversation. Returns false, with one line in e, if it cannot be read.
static inline bool encode_is_chats(const char *path, const EncodeOptions *o, Error *e, bool *chats) {
  TextStream s;
  enum { MOST = 16 << 20 };                      // a longer first line is no conversation
  size_t n = 0, bytes = 0;
  int64_t got = 1;
  if (!text_stream_open(&s, path, o->column, e, o->as_text, o->chat.fields)) return false;
  if (s.kind != TEXT_JSONL) { text_stream_close(&s); return true; }
  uint8_t *line = (uint8_t *)data_alloc(MOST, 1);
  while (bytes == n && n < MOST && (got = text_stream_read(&s, line + n, (int64_t)(MOST - n), e)) > 0) {
    int64_t from = 0;
    while (!n && from < got && (line[from] == '\n' || encode_is_blank(line[from]))) from++;
    memmove(line + n, line + n + from, (size_t)(got - from));
    const uint8_t *end = (const uint8_t *)memchr(line + n, '\n', (size_t)(got - from));
    n += (size_t)(got - from);
    bytes = end ? (size_t)(end - line) : n;
  }
  text_stream_close(&s);
  cJSON *json = cJSON_ParseWithLength((const char *)line, bytes);
  Error fault = {};
  const RecordForm *f = record_form(json, o->chat.fields, &fault);
  *chats = f ? f->kind != FORM_TEXT : cJSON_IsObject(json) && !cJSON_HasObjectItem(json, "text");
  cJSON_Delete(json);
  free(line);
  return got >= 0;
}
// Trains a tokenizer on the first ENCODE_SAMPLE_BYTES / files bytes of each file.
static inline bool encode_train(Tokenizer *t, const DataNames *files, const char *column, const EncodeOptions *o,
                                Error *e) {
  const char *looks;
  const int64_t each = ENCODE_SAMPLE_BYTES / files->count + 1;
  uint8_t *sample = (uint8_t *)data_alloc(ENCODE_SAMPLE_BYTES + (size_t)files->count, 1);
  int64_t n = 0, got = 1;
  Error wrong = {};                              // of the first line that is no text
  for (int i = 0; i < files->count; i++) {
    TextStream s;
    const int64_t begin = n;
    if (!text_stream_open(&s, files->name[i], column, e, o->as_text, o->chat.fields)) { free(sample); return false; }
    while (n - begin < each && (got = text_stream_read(&s, sample + n, each - (n - begin), e)) > 0) n += got;
    if (got >= 0 && s.kind != TEXT_ROWS &&
        !text_check(files->name[i], sample + begin, (size_t)(n - begin), encode_want(o, s.kind), &looks, e)) got = -1;
    if (s.kind == TEXT_JSONL) {                  // whole lines, as their texts, which are shorter
      int64_t to = begin, line = 0;
      for (int64_t at = begin; at < n;) {
        const uint8_t *newline = (const uint8_t *)memchr(sample + at, '\n', (size_t)(n - at));
        Error fault = {};
        char *text = newline ? encode_line(sample + at, (size_t)(newline - sample - at), o->chat.fields, &fault) : NULL;
        at = newline ? newline - sample + 1 : n;
        line++;
        if (newline && !text && !wrong.text[0])
          fail_with(&wrong, EXIT_MISSING, "%s, line %lld: %s", files->name[i], (long long)line, fault.text);
        const size_t bytes = text ? strlen(text) : 0;
        if (text) memcpy(sample + to, text, bytes), to += (int64_t)bytes;
        if (text) sample[to++] = '\n';
        free(text);
      }
      n = to;
    }
    for (int64_t at = begin; s.kind == TEXT_ROWS && at < n; at++) if (!sample[at]) sample[at] = '\n';
    text_stream_close(&s);
    if (got < 0) { free(sample); return false; }
  }
  if (n) tokenizer_train(t, sample, (size_t)n, o->vocab_size, o->threads);
  free(sample);
  if (n) return true;
  if (!wrong.text[0]) fail_with(&wrong, EXIT_MISSING, "%s: there is no text to train a tokenizer on", files->name[0]);
  *e = wrong;
  return false;
}

// ================================================================================================ 2 writing
// In a .part of conversations, the ids of tokens that are trained on have this bit.
enum { ENCODE_TRAINED = 1 << 30, ENCODE_COPY_NUMEL = 1 << 16 };
// A piece of a document, which one thread encodes: at most about ENCODE_PIECE_BYTES long, cut where the document's
// tokens stay the same. A line or a row is one whole piece. begins, ends: the piece is the first, the last one of its
// document. text: the text of a line of a .jsonl, malloc'ed. ids: [count] the piece's token ids.
struct EncodePiece {
  const uint8_t *p;
  int64_t from, to, second;                      // [from, to): its line's bytes in the file's text; second: of a
                                                 // preference, ids of the document with the chosen answer
  size_t bytes;
  bool begins, ends;
  TextKind kind;
  char *text;
  int32_t *ids;
  int64_t count, number;                         // number: of the line in the file
  char *fault, *unread;                          // malloc'ed: why it cannot be encoded, or NULL; for records_seen_add
  uint64_t fields_seen;
  int64_t rewritten, endless;                    // numbers of such answers (ChatTokens)
};
// Conversations in memory in the order in which they are read, and where each record is in the text of its file.
struct RecordPlace { int64_t from, to; };
struct TokenStream {
  uint8_t *tokens, *trained, *begins;            // a bit per token: it is trained on; a document starts with it
  int token_bytes;
  bool plain;                                    // a text's: tokens alone
  int64_t count, room, documents, records, places_room, text_end;    // text_end: of the last record
  RecordPlace *place;                            // (records)
};
static inline void token_stream_free(TokenStream *s) {
  for (void *p : {(void *)s->tokens, (void *)s->trained, (void *)s->begins, (void *)s->place}) free(p);
  *s = {};
}
static inline void token_stream_bit(uint8_t *bits, int64_t i, bool on) {
  bits[i / 8] = (uint8_t)((bits[i / 8] & ~(1 << i % 8)) | on << i % 8);
}
static inline void token_stream_room(TokenStream *s, int64_t more) {
  if (s->count + more <= s->room) return;
  s->room = (s->count + more + (s->count + more) / 4) / 8 * 8 + 4096;
  s->tokens = (uint8_t *)bpe_resize(s->tokens, (size_t)s->room, (size_t)s->token_bytes);
  if (s->plain) return;
  s->trained = (uint8_t *)bpe_resize(s->trained, (size_t)s->room / 8, 1);
  s->begins = (uint8_t *)bpe_resize(s->begins, (size_t)s->room / 8, 1);
}
static inline void token_stream_put(TokenStream *s, int64_t i, uint32_t id, bool trained, bool begins) {
  const uint16_t id16 = (uint16_t)id;
  memcpy(s->tokens + i * s->token_bytes, s->token_bytes == 2 ? (const void *)&id16 : &id, (size_t)s->token_bytes);
  if (s->plain) return;
  token_stream_bit(s->trained, i, trained);
  token_stream_bit(s->begins, i, begins);
}
// Adds ids, with the bit ENCODE_TRAINED. A document starts at the first and, unless it is 0, at id `second`.
static inline bool token_stream_ids(TokenStream *s, const int32_t *ids, int64_t n, int64_t second) {
  token_stream_room(s, n);
  for (int64_t i = 0; i < n; i++, s->count++)
    token_stream_put(s, s->count, (uint32_t)ids[i] % ENCODE_TRAINED, ids[i] / ENCODE_TRAINED, !i || i == second);
  return true;
}
// Adds a record: its ids and its place.
static inline void token_stream_add(TokenStream *s, const EncodePiece *p) {
  if (!p->count) return;
  token_stream_ids(s, p->ids, p->count, p->second);
  s->documents += p->second ? 2 : 1;
  if (s->records == s->places_room)
    s->place = (RecordPlace *)bpe_resize(s->place, (size_t)(s->places_room = 2 * s->records + 64), sizeof *s->place);
  s->place[s->records++] = RecordPlace{p->from, p->to};
  s->text_end = p->from + (int64_t)p->bytes;
}
// The shards of a split. The last shard, to which tokens are appended, has `number`, the open file `fd` (or -1), and
// numel tokens. total: tokens of all shards.
struct EncodeShards { const char *name; int number, fd; int64_t numel, total; };
struct Encoding {
  const EncodeOptions *o;
  char out[PATH_MAX];
  const char *column;                            // column of tables; "" if no file is a table
  int lock;                                      // descriptor of the lock of the directory `out`; -1: not locked
  Tokenizer tokenizer;
  int32_t document_id;                           // the document token; -1: none
  int token_bytes;
  DataNames files[2];                            // to train on; for validation
  bool chats;                                    // the files are conversations
  RecordsSeen records;                           // which fields of conversations were seen
  TokenStream *sink;                              // conversations go here; NULL: into token files
  DataContainer container;                       // file format of the current file
  char form[24];                                 // schema of its first record, only with a sink
  Chat chat;
  uint64_t hash;                                 // of all inputs and options that decide the bytes written
  EncodeShards shards[2];
  // How far the encoding is: the current split and file, the bytes and lines of its text that are encoded (at, line);
  // documents and bytes of text of all files so far.
  int split, file;
  int64_t at, line, documents, text_bytes;
  bool done, in_held_out, articles;              // the current document is held out; the current file has articles
  int64_t all_bytes, began_bytes;                // bytes of all files, compressed; those that were done at the start
  double began_ms, said_ms, saved_ms;            // times: start of this process; last progress line; last save
  // Of each file when it was hashed: its size and time.
  struct EncodeSeen { int64_t bytes, seconds, nanoseconds; } *seen[2];
};
static inline void encode_shard_path(const Encoding *c, const EncodeShards *s, const char *end, char path[PATH_MAX]) {
  data_format(path, PATH_MAX, "%s/%s_%06d.bin%s", c->out, s->name, s->number, end);
}
static inline bool encode_fail(const char *path, Error *e) {
  return fail_with(e, EXIT_MISSING, "cannot write %s: %s", path, strerror(errno));
}
// Opens the last shard, unless it is open.
static inline bool encode_shard_open(const Encoding *c, EncodeShards *s, Error *e) {
  char part[PATH_MAX];
  encode_shard_path(c, s, ".part", part);
  if (s->fd < 0) s->fd = file_make(part, O_RDWR | (s->numel ? 0 : O_TRUNC), 0666);
  return s->fd >= 0 || encode_fail(part, e);
}
// Writes the last shard as llmq's file into `fd`: tokens without the bit ENCODE_TRAINED, then the mask of these bits.
static inline bool encode_mask(const Encoding *c, const EncodeShards *s, int fd, const char *part, const char *path) {
  int32_t header[TOKEN_FILE_WORDS];
  int32_t *ids = (int32_t *)data_alloc(ENCODE_COPY_NUMEL, sizeof *ids);
  uint8_t *mask = (uint8_t *)data_alloc(ENCODE_COPY_NUMEL / 8, 1);
  token_file_header(header, s->numel, 4, c->tokenizer.vocab_size, true);
  bool ok = file_write(fd, path, header, sizeof header, 0);
  for (int64_t at = 0, n; ok && at < s->numel; at += n) {
    n = min64(s->numel - at, ENCODE_COPY_NUMEL);
    memset(mask, 0, ENCODE_COPY_NUMEL / 8);
    ok = file_read(s->fd, ids, n * 4, TOKEN_FILE_HEADER_BYTES + at * 4);
    for (int64_t i = 0; i < n; i++) {
      mask[i / 8] |= (uint8_t)((ids[i] / ENCODE_TRAINED) << i % 8);
      ids[i] %= ENCODE_TRAINED;
    }
    ok = ok && file_write(fd, path, ids, n * 4, TOKEN_FILE_HEADER_BYTES + at * 4) &&
         file_write(fd, path, mask, (n + 7) / 8, TOKEN_FILE_HEADER_BYTES + s->numel * 4 + at / 8);
  }
  free(ids);
  free(mask);
  return ok && file_sync(fd, part);
}
// Ends the last shard: writes its header, syncs it to the disk, gives it its final name. A .part of conversations stays
// until the state is written (encode_tidy), because it cannot be made again from the final file.
static inline bool encode_shard_end(Encoding *c, EncodeShards *s, Error *e) {
  char part[PATH_MAX], path[PATH_MAX], temporary[PATH_MAX];
  int32_t header[TOKEN_FILE_WORDS];
  token_file_header(header, s->numel, c->token_bytes, 0, false);
  encode_shard_path(c, s, ".part", part);
  encode_shard_path(c, s, "", path);
  encode_shard_path(c, s, ".tmp", temporary);
  if (!encode_shard_open(c, s, e)) return false;
  bool ok;
  if (c->chats) {
    const int fd = file_make_new(temporary, 0666);
    ok = fd >= 0 && encode_mask(c, s, fd, part, temporary);
    if (fd >= 0 && close(fd)) ok = false;
    ok = ok && file_rename(temporary, path);
  } else ok = file_write(s->fd, part, header, sizeof header, 0) && file_sync(s->fd, part) && file_rename(part, path);
  if (!ok) return encode_fail(path, e);
  close(s->fd);
  s->fd = -1;
  s->numel = 0;
  s->number++;
  return true;
}
// Appends n ids to the shards of a split, whose files have a header of 1024 bytes, and ends every shard that is full.
static inline bool encode_append(Encoding *c, EncodeShards *s, const int32_t *ids, int64_t n, Error *e) {
  char part[PATH_MAX];
  uint8_t *bytes = (uint8_t *)data_alloc(ENCODE_COPY_NUMEL, 4);
  bool ok = true;
  for (int64_t count; ok && n > 0; ids += count, n -= count) {
    encode_shard_path(c, s, ".part", part);
    if (!(ok = encode_shard_open(c, s, e))) break;
    count = min64(min64(n, ENCODE_COPY_NUMEL), c->o->shard_numel - s->numel);
    for (int64_t i = 0; i < count; i++) {
      const uint16_t id16 = (uint16_t)ids[i];
      memcpy(bytes + i * c->token_bytes, c->token_bytes == 2 ? (const void *)&id16 : &ids[i], (size_t)c->token_bytes);
    }
    ok = file_write(s->fd, part, bytes, count * c->token_bytes, TOKEN_FILE_HEADER_BYTES + s->numel * c->token_bytes) ||
         encode_fail(part, e);
    s->numel += count;
    s->total += count;
    if (ok && s->numel == c->o->shard_numel) ok = encode_shard_end(c, s, e);
  }
  free(bytes);
  return ok;
}

static inline bool encode_put(Encoding *c, EncodeShards *s, const int32_t *ids, int64_t n, Error *e) {
  return c->sink ? token_stream_ids(c->sink, ids, n, 0) : encode_append(c, s, ids, n, e);
}

// ================================================================================================ 3 encoding
struct EncodePieces { EncodePiece *piece; int64_t count, room; };      // grows by encode_piece, which adds an empty one
static inline EncodePiece *encode_piece(EncodePieces *l) {
  if (l->count == l->room) {
    l->room = l->room ? 2 * l->room : 1024;
    l->piece = (EncodePiece *)bpe_resize(l->piece, (size_t)l->room, sizeof *l->piece);
  }
  l->piece[l->count] = EncodePiece{};
  return &l->piece[l->count++];
}
// Where to cut a text of which only the first `n` bytes are in memory: the last place, ENCODE_MARGIN_BYTES before their
// end or earlier, at which a cut changes no token; 0: there is none. articles: the cut also keeps the title of an
// article together with the blank line before it, by which encode_article finds the title.
static inline size_t encode_last_cut(const Tokenizer *t, const uint8_t *p, size_t n, bool articles) {
  for (size_t at = n > ENCODE_MARGIN_BYTES ? n - ENCODE_MARGIN_BYTES : 0; at > 0; at--) {
    if (p[at] != ' ' && p[at] != '\n') continue;
    if (articles && (memchr(p + at, '\n', 4) || !memcmp(p + at, " = ", 3))) continue;
    if (tokenizer_cuts_at(t, p, n, at)) return at;
  }
  return 0;
}
// Where the next article starts, after `at` and before `end`: at the line of its title, which ends before p + n. `end`:
// no article starts there.
static inline size_t encode_article(const uint8_t *p, size_t at, size_t end, size_t n) {
  const uint8_t *q = p + at, *const stop = p + n;
  for (; q < p + end && (q = (const uint8_t *)memmem(q, (size_t)(stop - q), "\n = ", 4)); q++) {
    const size_t line = (size_t)(q - p) + 1;
    const bool blank = line >= at + 2 && (q[-1] == '\n' || (line >= at + 3 && q[-1] == ' ' && q[-2] == '\n'));
    if (blank && line < end && text_is_title(q + 1, stop)) return line;
  }
  return end;
}
// Makes a piece of each complete line or row, at most ENCODE_PIECES of them. Returns how many bytes of the block they
// use.
static inline size_t encode_cut_lines(Encoding *c, EncodePieces *l, TextKind kind, const uint8_t *p, size_t n,
                                      bool ends) {
  size_t at = 0;
  for (const uint8_t *end; at < n && l->count < ENCODE_PIECES; at = (size_t)(end - p) + (end < p + n)) {
    end = (const uint8_t *)memchr(p + at, kind == TEXT_ROWS ? 0 : '\n', n - at);
    if (!end && !ends) break;
    if (!end) end = p + n;
    size_t bytes = (size_t)(end - p) - at;
    c->line++;
    while (kind == TEXT_JSONL && bytes && encode_is_blank(p[at + bytes - 1])) bytes--;
    if (kind == TEXT_JSONL ? !bytes : bytes == 1 && p[at] == 0xff) continue;   // blank; a row without a value
    EncodePiece *piece = encode_piece(l);
    piece->p = p + at, piece->bytes = bytes, piece->begins = piece->ends = true;
    piece->kind = kind, piece->number = c->line, piece->from = c->at + (int64_t)at;
    piece->to = c->at + (end - p) + 1;
  }
  return at;
}
// Cuts the complete part of a block into pieces. Returns how many bytes that part has; 0: more bytes are needed. ends:
// the text ends with this block.
static inline size_t encode_cut(Encoding *c, EncodePieces *l, TextKind kind, const uint8_t *p, size_t n, bool ends) {
  const Tokenizer *t = &c->tokenizer;
  l->count = 0;
  if (kind != TEXT_PLAIN) return encode_cut_lines(c, l, kind, p, n, ends);
  const size_t end = ends ? n : encode_last_cut(t, p, n, c->articles);
  const size_t title = c->articles && !c->at ? (size_t)(text_first_title(p, p + n) - p) : 0;
  bool begins = !c->at;
  for (size_t at = 0, stop; at < end; begins = true) {           // stop: where the document, or its part in p, ends
    stop = c->articles ? encode_article(p, at || title > end ? at : title, end, n) : end;
    const bool whole = stop < end || ends;
    for (size_t next; at < stop; at = next, begins = false) {
      next = stop - at > ENCODE_PIECE_BYTES ? tokenizer_cut(t, p, stop, at + ENCODE_PIECE_BYTES) : stop;
      EncodePiece *piece = encode_piece(l);
      piece->p = p + at, piece->bytes = next - at, piece->begins = begins, piece->ends = whole && next == stop;
    }
  }
  return end;
}
// Encodes one piece. p->fault says what is wrong with it.
static inline void encode_one(const Encoding *c, BpeEncoder *encoder, EncodePiece *p) {
  if (c->chats) {
    ChatTokens k = {};
    Chat chat = c->chat;
    chat.encoder = encoder, chat.notes = true;
    encoder->passing = true;                     // the rendered text is freed when the line is done
    if (!chat_line(&chat, &k, p->p, p->bytes)) p->fault = strdup(k.fault.text);
    for (int64_t i = 0; i < k.count; i++) k.ids[i] |= k.trained[i] ? ENCODE_TRAINED : 0;
    p->ids = k.ids, p->count = k.count, p->unread = k.unread, p->fields_seen = k.fields_seen;
    p->rewritten = k.rewritten, p->endless = k.endless;
    p->second = k.second;
    free(k.trained);
    return;
  }
  Error fault = {};
  const size_t bad = p->kind == TEXT_ROWS ? text_bad_utf8(p->p, p->bytes, 0) : p->bytes;
  if (p->kind == TEXT_JSONL) p->text = encode_line(p->p, p->bytes, c->o->chat.fields, &fault);
  if (bad < p->bytes) fail(&fault, "byte %zu is not UTF-8", bad + 1);
  if (fault.text[0]) { p->fault = strdup(fault.text); return; }
  const uint8_t *text = p->text ? (const uint8_t *)p->text : p->p;
  const size_t bytes = p->text ? strlen(p->text) : p->bytes;
  p->ids = (int32_t *)malloc(sizeof(int32_t) * (tokenizer_ids_most(&c->tokenizer, bytes) + 1));
  if (!p->ids) die_missing("data: no memory for the tokens of %zu bytes", bytes);
  p->count = bpe_encoder_run(encoder, text, bytes, p->ids, !p->begins || c->sink);
}
// Encodes the pieces on all threads, and appends their ids in order to the shards or to c->sink.
static inline bool encode_pieces(Encoding *c, const EncodePieces *l, const char *path, Error *e) {
  EncodePiece *const piece = l->piece;
  const int64_t count = l->count, most = count / (4 * c->o->threads) + 1;      // pieces of an encoder: it caches words
  parallel_for(c->o->threads, 0, (count + most - 1) / most, 1, [=](int64_t group) {
    BpeEncoder encoder;
    bpe_encoder_open(&encoder, &c->tokenizer);
    for (int64_t i = group * most; i < count && i < (group + 1) * most; i++) encode_one(c, &encoder, &piece[i]);
    bpe_encoder_close(&encoder);
  });
  bool ok = true;
  if (c->chats && c->sink && count && !c->form[0]) {
    Error fault = {};
    cJSON *json = cJSON_ParseWithLength((const char *)piece->p, piece->bytes);
    const RecordForm *f = record_form(json, c->o->chat.fields, &fault);
    snprintf(c->form, sizeof c->form, "%s", c->o->chat.preferences ? "preferences" : f ? f->name : "no schema");
    cJSON_Delete(json);
  }
  const bool holds_out = !c->split && !c->files[1].count;
  for (int64_t i = 0; i < l->count; i++) {
    EncodePiece *p = &piece[i];
    if (ok && p->fault)
      ok = fail_with(e, EXIT_MISSING, "%s, %s %lld: %s", path, name_ends(path, ".parquet") ? "row" : c->container >
                     CONTAINER_JSON_LINES ? "record" : "line", (long long)p->number, p->fault);
    if (ok && c->sink && c->chats) token_stream_add(c->sink, p);
    if (p->begins && !c->sink) c->in_held_out = holds_out && c->documents++ % HELD_OUT == 1;
    EncodeShards *to = &c->shards[c->split || c->in_held_out];
    const bool marks = c->document_id >= 0;
    const bool begun = !c->sink && p->count && p->ids[0] == c->document_id;      // its template has rendered the token
    const bool ended = p->count && p->ids[p->count - 1] == c->document_id;
    if (ok && marks && p->begins && !begun && c->o->documents == DOCUMENTS_BEFORE)
      ok = encode_put(c, to, &c->document_id, 1, e);
    ok = ok && ((c->sink && c->chats) || encode_put(c, to, p->ids, p->count, e));
    if (ok && marks && p->ends && !ended && c->o->documents == DOCUMENTS_BEHIND)
      ok = encode_put(c, to, &c->document_id, 1, e);
    records_seen_add(&c->records, p->unread, p->fields_seen);
    c->records.rewritten += p->rewritten, c->records.endless += p->endless;
    for (void *made : {(void *)p->ids, (void *)p->text, (void *)p->fault, (void *)p->unread}) free(made);
  }
  return ok;
}

// ================================================================================================ 4 the state
static const char encode_mark[] = "{\"encoding\":\"";
// Rejects a directory with files that this encoding would overwrite, unless its encode.json says that an encoding wrote
// them.
static inline bool encode_check_out(const Encoding *c, Error *e) {
  char path[PATH_MAX], found[PATH_MAX] = "";
  data_format(path, sizeof path, "%s/encode.json", c->out);
  if (file_has_mark(path, encode_mark, true)) return true;
  directory_each(c->out, [&](const char *name, const char *at) {
    for (const char *ours : {"encode.json", "tokenizer.json", "train_[0-9]*.bin*", "val_[0-9]*.bin*"})
      if (!fnmatch(ours, name, 0)) data_format(found, sizeof found, "%s", at);
  });
  return !found[0] || fail_with(e, EXIT_USAGE, "--encode: %s is there, and nothing tells that an encoding has written "
                                "it: name another directory", found);
}
// Removes temporary files that a killed process left, and, if `parts`, the .part files of shards that are complete.
static inline void encode_tidy(const Encoding *c, bool parts) {
  directory_each(c->out, [&](const char *name, const char *path) {
    char part[PATH_MAX];
    bool left = false, open = false;
    for (const char *ours : {"encode.json.tmp*", "tokenizer.json.tmp*", "train_[0-9]*.bin.tmp", "val_[0-9]*.bin.tmp",
                             "train_[0-9]*.bin.part", "val_[0-9]*.bin.part"})
      left = left || !fnmatch(ours, name, 0);
    if (!left || (!parts && name_ends(name, ".part"))) return;
    for (const EncodeShards &s : c->shards) {
      encode_shard_path(c, &s, ".part", part);
      open = open || !strcmp(part, path);
    }
    if (!open) unlink(path);
  });
}
static inline bool encode_save(Encoding *c, Error *e) {
  char path[PATH_MAX], part[PATH_MAX], *text = NULL;
  size_t bytes;
  for (EncodeShards &s : c->shards) {
    encode_shard_path(c, &s, ".part", part);
    if (s.fd >= 0 && !file_sync(s.fd, part)) return encode_fail(part, e);
  }
  FILE *f = open_memstream(&text, &bytes);
  fprintf(f, "%s%016llx\",\"done\":%s,\"split\":%d,\"file\":%d,\"at\":%lld,\"line\":%lld,"
          "\"documents\":%lld,\"text_bytes\":%lld,\"held_out\":%d,\"articles\":%d,\"vocab_size\":%d",
          encode_mark, (unsigned long long)c->hash,
          c->done ? "true" : "false", c->split, c->file, (long long)c->at, (long long)c->line, (long long)c->documents,
          (long long)c->text_bytes, c->in_held_out, c->articles, *c->o->tokenizer ? 0 : c->o->vocab_size);
  for (const EncodeShards &s : c->shards)
    fprintf(f, ",\"%s\":[%d,%lld,%lld]", s.name, s.number, (long long)s.numel, (long long)s.total);
  cJSON *unread = cJSON_CreateObject();
  for (int i = 0; i < c->records.unread.names; i++)
    cJSON_AddNumberToObject(unread, c->records.unread.of[i].name, (double)c->records.unread.of[i].records);
  char *names = cJSON_PrintUnformatted(unread);
  fprintf(f, ",\"fields\":%lld,\"unread\":%s}\n", (long long)c->records.fields, names);
  cJSON_free(names);
  cJSON_Delete(unread);
  fclose(f);
  data_format(path, sizeof path, "%s/encode.json", c->out);
  const bool ok = file_put(path, c->out, text, (int64_t)bytes) || encode_fail(path, e);
  c->saved_ms = now_ms();
  free(text);
  if (ok && c->chats) encode_tidy(c, true);
  return ok;
}
// A number of the state; -1: x is no number that a state can have.
static inline int64_t encode_number(const cJSON *x) {
  return cJSON_IsNumber(x) && x->valuedouble >= 0 && x->valuedouble < 9e15 ? (int64_t)x->valuedouble : -1;
}
// The state in a directory; NULL: there is none, or it is damaged.
static inline cJSON *encode_state(const char *out, char path[PATH_MAX]) {
  int64_t bytes;
  data_format(path, PATH_MAX, "%s/encode.json", out);
  char *text = file_get(path, 1 << 16, &bytes);
  cJSON *json = text ? cJSON_Parse(text) : NULL;
  free(text);
  return json;
}
static inline bool encode_is(const cJSON *state, uint64_t hash) {
  const char *is = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(state, "encoding"));
  return is && strtoull(is, NULL, 16) == hash;
}
// Takes over the state that an earlier process left in OUT; *found: there is one. What that process wrote after it
// saved the state is written again.
static inline bool encode_resume(Encoding *c, bool *found, Error *e) {
  char path[PATH_MAX], part[PATH_MAX];
  cJSON *json = encode_state(c->out, path);
  *found = json != NULL;
  if (!json)
    return access(path, F_OK) || fail_with(e, EXIT_MISSING, "%s is damaged: remove %s and encode again", path, c->out);
  const auto number = [json](const char *name) { return encode_number(cJSON_GetObjectItemCaseSensitive(json, name)); };
  const bool same = encode_is(json, c->hash) && (*c->o->tokenizer || number("vocab_size") == c->o->vocab_size);
  c->at = number("at"), c->line = number("line");
  c->documents = number("documents"), c->text_bytes = number("text_bytes");
  c->done = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "done"));
  c->split = (int)number("split"), c->file = (int)number("file");
  c->in_held_out = number("held_out") != 0, c->articles = number("articles") != 0;
  const cJSON *x;
  c->records.fields = (uint64_t)max64(0, number("fields"));
  cJSON_ArrayForEach(x, cJSON_GetObjectItemCaseSensitive(json, "unread"))
    record_unread_add(&c->records.unread, x->string ? x->string : "", encode_number(x));
  bool ok = same || fail_with(e, EXIT_USAGE, "%s has another encoding: of other files, tokenizer or options, or of "
                              "an earlier version; remove it, or name another directory", c->out);
  bool fits = c->split >= 0 && c->split <= 2 && c->file >= 0 && c->file <= c->files[c->split == 1].count;
  for (const int64_t of : {c->at, c->line, c->documents, c->text_bytes}) fits = fits && of >= 0;
  for (EncodeShards &s : c->shards) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, s.name);
    s.number = (int)encode_number(cJSON_GetArrayItem(list, 0));
    s.numel = encode_number(cJSON_GetArrayItem(list, 1));
    s.total = encode_number(cJSON_GetArrayItem(list, 2));
    fits = fits && s.number >= 0 && s.numel >= 0 && s.numel <= c->o->shard_numel && s.total >= s.numel;
    if (ok && !fits) ok = fail_with(e, EXIT_MISSING, "%s/encode.json is damaged: remove %s and encode again", c->out,
                                    c->out);
    encode_shard_path(c, &s, ".part", part);
    encode_shard_path(c, &s, "", path);
    const int64_t want = TOKEN_FILE_HEADER_BYTES + s.numel * c->token_bytes;
    struct stat st;
    if (!ok || !s.numel) continue;
    if (access(part, F_OK) && rename(path, part)) part[0] = 0;   // it became whole after the state was written
    ok = (!stat(part, &st) && st.st_size >= want && !truncate(part, want)) ||
         fail_with(e, EXIT_MISSING, "%s is not as it was being written: remove %s and encode again", path, c->out);
  }
  cJSON_Delete(json);
  return ok;
}
static inline void encode_progress(Encoding *c, const TextStream *s, bool now) {
  const double ms = now_ms(), seconds = (ms - c->began_ms) / 1e3;
  char line[256];
  if (!now && ms - c->said_ms < 5000) return;
  int64_t done = s->read_bytes;
  struct stat st;
  for (int k = 0; k <= c->split; k++)
    for (int i = 0; i < (k < c->split ? c->files[k].count : c->file); i++)
      done += stat(c->files[k].name[i], &st) ? 0 : (int64_t)st.st_size;
  if (c->said_ms == 0) c->began_bytes = done;
  const double rate = (double)(done - c->began_bytes) / (seconds > 0 ? seconds : 1);
  snprintf(line, sizeof line, "encoded %.1f of %.1f MB (%.1f MB/s, %.0f s left), %lld tokens", (double)done * 1e-6,
           (double)c->all_bytes * 1e-6, rate * 1e-6, rate > 0 ? (double)(c->all_bytes - done) / rate : 0.0,
           (long long)(c->shards[0].total + c->shards[1].total));
  if (c->said_ms > 0) c->o->say(line);
  c->said_ms = ms;
}
// Whether the open current file still has the size and time that it had when it was hashed.
static inline bool encode_unchanged(const Encoding *c, const TextStream *s, Error *e) {
  const Encoding::EncodeSeen *was = &c->seen[c->split][c->file];
  struct stat st;
  return (!fstat(s->fd, &st) && st.st_size == was->bytes && st.st_mtim.tv_sec == was->seconds &&
          st.st_mtim.tv_nsec == was->nanoseconds) ||
         fail_with(e, EXIT_MISSING, "%s has changed while it was encoded: it had %lld bytes and has %lld; remove %s "
                   "and encode again when it is whole", s->path, (long long)was->bytes, (long long)st.st_size, c->out);
}
// Checks a block of a file: rejects bytes that no text has, and counts those that are not UTF-8.
static inline bool encode_check_block(const Encoding *c, const TextStream *s, const uint8_t *p, size_t n, TextBad *bad,
                                      Error *e) {
  char words[1400];
  if (s->kind == TEXT_PLAIN) text_count_bad(bad, p, n);
  return s->kind == TEXT_ROWS || (text_check_controls(s->path, p, n, c->at, e) &&
                                  text_check_bad(bad, s->path, encode_want(c->o, s->kind), words, sizeof words, e));
}
// At the end of a file, prints how many of its bytes are not UTF-8, if any.
static inline void encode_warning(const Encoding *c, const TextStream *s, const TextBad *bad) {
  char words[1400], line[1600];
  Error none;
  text_check_bad(bad, s->path, WANT_BYTES, words, sizeof words, &none);
  data_format(line, sizeof line, "warning: %s", words);
  if (words[0]) c->o->say(line);
}
// Encodes the current file from byte c->at of its text on.
static inline bool encode_file(Encoding *c, EncodePieces *l, Error *e) {
  TextStream s;
  TextBad bad = {};
  // A thread's share of a block takes a second or two, after which the state can be saved.
  size_t room = (size_t)min64(c->o->block_bytes, (int64_t)c->o->threads * ENCODE_THREAD_BYTES), n = 0;
  const char *path = c->files[c->split].name[c->file];
  if (!text_stream_open(&s, path, c->column, e, c->o->as_text, c->o->chat.fields)) return false;
  if (c->chats && s.kind != TEXT_JSONL) {
    text_stream_close(&s);
    return fail_with(e, EXIT_USAGE, "%s is no conversations, which the first file has: encode them apart", path);
  }
  if (c->chats && !c->at) parquet_unread(&s.rows, &c->records.unread);
  uint8_t *block = (uint8_t *)data_alloc(room, 1);
  int64_t skip = c->at, got = 1, unsaved = 0;
  size_t seen = 0;                               // bytes of the block that are checked
  bool ok = true;
  const bool as_it_is = s.kind == TEXT_PLAIN || (s.kind == TEXT_JSONL && form_of_file(path).container <=
                                                 CONTAINER_JSON_LINES);
  if (!s.packing && !s.rows.columns && as_it_is && lseek(s.fd, skip, SEEK_SET) == skip) skip = 0;
  for (int64_t left = skip; left > 0 && got > 0; left -= got)    // compressed: skip what was encoded
    got = text_stream_read(&s, block, min64(left, (int64_t)room), e);
  ok = got >= 0;
  while (ok && (got > 0 || n)) {
    while (n < room && got > 0 && (got = text_stream_read(&s, block + n, (int64_t)(room - n), e)) > 0) n += (size_t)got;
    if ((ok = got >= 0) && !c->at && n)
      c->articles = s.kind == TEXT_PLAIN && c->tokenizer.divides && text_first_title(block, block + n) != NULL;
    c->container = text_stream_container(&s);
    size_t used = 0, cut = 1;
    ok = ok && encode_check_block(c, &s, block + seen, n - seen, &bad, e);
    seen = n;
    for (l->count = ENCODE_PIECES; ok && cut && l->count >= ENCODE_PIECES; used += cut) {
      cut = encode_cut(c, l, s.kind, block + used, n - used, got == 0);
      ok = encode_pieces(c, l, path, e);
      c->at += (int64_t)cut, c->text_bytes += (int64_t)cut, unsaved += (int64_t)cut;
    }
    if (ok && !used && got > 0) {                // no newline, or no space, in the whole block
      if (room >= ENCODE_LINE_BYTES)
        ok = fail_with(e, EXIT_MISSING, "%s has no %s in %d MiB after byte %lld of its text", path, s.kind ==
                       TEXT_PLAIN ? "space to cut it at" : "newline or end of a row", ENCODE_LINE_BYTES >> 20,
                       (long long)c->at);
      else block = (uint8_t *)bpe_resize(block, room *= 2, 1);
    }
    memmove(block, block + used, n - used);
    n -= used, seen -= used;
    if (ok && unsaved && !c->sink && (unsaved >= c->o->save_bytes || now_ms() - c->saved_ms >= c->o->save_ms))
      unsaved = 0, ok = encode_save(c, e);
    if (!c->sink) encode_progress(c, &s, false);
    if (ok && got == 0 && !used) break;
  }
  ok = ok && (c->sink || encode_unchanged(c, &s, e));
  if (ok) encode_warning(c, &s, &bad);
  text_stream_close(&s);
  free(block);
  return ok;
}
// Sets c->hash to a hash of all input of the encoding except the tokenizer: names, sizes, times, bytes (of large
// files samples) and the options.
static inline bool encode_inputs_hash(Encoding *c, Error *e) {
  const EncodeOptions *o = c->o;
  const int64_t numbers[] = {o->documents, o->shard_numel, c->files[1].count};
  c->hash = data_hash(data_hash(0, numbers, sizeof numbers), c->column, strlen(c->column));
  const char *how[CHAT_HOW];
  chat_how(&o->chat, how);
  for (const char *word : how)
    if ((c->chats || word == o->chat.fields) && *word) c->hash = data_hash(c->hash, word, strlen(word));
  if (o->as_text) c->hash = data_hash(c->hash, "text", 4);
  for (int k = 0; k < 2; k++) {
    const DataNames *names = &c->files[k];
    c->seen[k] = (Encoding::EncodeSeen *)data_alloc((size_t)names->count, sizeof *c->seen[k]);
    for (int i = 0; i < names->count; i++) {
      const char *base = path_base(names->name[i]);
      struct stat st;
      if (stat(names->name[i], &st)) return fail_with(e, EXIT_MISSING, "%s: %s", names->name[i], strerror(errno));
      const Encoding::EncodeSeen is = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
      c->hash = data_hash(data_hash(c->hash, base, strlen(base)), &is, sizeof is);
      const int fd = open(names->name[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
      const int64_t some = ENCODE_SAMPLES, most = c->all_bytes + st.st_size <= ENCODE_WHOLE_BYTES ? INT64_MAX : some;
      const bool read = fd >= 0 && file_hash_blocks(fd, 0, st.st_size, most, &c->hash);
      if (!read) fail_with(e, EXIT_MISSING, "cannot read %s: %s", names->name[i], strerror(errno));
      if (fd >= 0) close(fd);
      if (!read) return false;
      c->seen[k][i] = is;
      c->all_bytes += st.st_size;
      liveness_progress();
    }
  }
  return true;
}
// Once the tokenizer is loaded: sets what follows from it (token_bytes, chat, document_id), and adds it to the hash.
static inline void encode_hash(Encoding *c) {
  const Tokenizer *t = &c->tokenizer;
  const EncodeDocuments documents = c->o->documents;
  c->token_bytes = t->vocab_size <= 65536 && !c->chats ? 2 : 4;
  c->chat = chat_open(&c->o->chat, t);
  const bool marks = documents != DOCUMENTS_NONE && !c->chats;
  c->document_id = marks ? chat_end(t) : -1;
  if (t->adds_bos && documents == DOCUMENTS_BEFORE && marks) c->document_id = t->bos_id;
  const uint64_t is = tokenizer_hash(t);
  c->hash = data_hash(c->hash, &is, sizeof is);
}
// Sets c->out: the directory that the user named, or one in the cache. With a given tokenizer that is named by a hash
// of inputs and tokenizer, without one by inputs and vocabulary size. A given tokenizer may be a checkpoint's that was
// trained for a directory of the second kind: then that directory is used.
static inline void encode_find(Encoding *c, uint64_t inputs) {
  const EncodeOptions *o = c->o;
  const int64_t asked = o->vocab_size;
  char of_inputs[PATH_MAX], path[PATH_MAX];
  struct stat st;
  if (o->out) { data_format(c->out, sizeof c->out, "%s", o->out); return; }
  data_format(of_inputs, sizeof of_inputs, "%s/encoded-%016llx", o->cache,
              (unsigned long long)data_hash(inputs, &asked, sizeof asked));
  data_format(c->out, sizeof c->out, "%s/encoded-%016llx", o->cache, (unsigned long long)c->hash);
  cJSON *state = !*o->tokenizer || !stat(c->out, &st) ? NULL : encode_state(of_inputs, path);
  if (!*o->tokenizer || encode_is(state, c->hash)) data_format(c->out, sizeof c->out, "%s", of_inputs);
  cJSON_Delete(state);
}
// Locks the directory, so that one process at a time writes it. If another process has it: waits, if the directory is
// in the cache, else fails. On file systems without locks it does neither.
static inline bool encode_lock(Encoding *c, Error *e) {
  char path[PATH_MAX], line[PATH_MAX + 64];
  data_format(path, sizeof path, "%s/.lock", c->out);
  for (bool told = false; (c->lock = file_lock(path)) < 0 && errno == EWOULDBLOCK; told = true) {
    if (c->o->out) return fail_with(e, EXIT_LOST, "%s: another process encodes into it", c->out);
    snprintf(line, sizeof line, "waiting: another process encodes into %s", c->out);
    if (!told) c->o->say(line);
    liveness_progress();
    usleep(100000);
  }
  return true;
}
// Lists and checks the inputs, loads or trains the tokenizer, and resumes an unfinished encoding in the directory
// (*found).
static inline bool encode_open(Encoding *c, bool *found, Error *e) {
  const EncodeOptions *o = c->o;
  char json[PATH_MAX], state[PATH_MAX];
  Error why = {};
  DataNames held = {};
  DataWarnings left = {};
  int tests = 0;
  c->lock = -1;
  for (int i = 0; i < o->files; i++)
    if (!encode_add(&c->files[0], &held, &tests, o->file[i], "--encode", e, &left)) return false;
  if (!encode_add_list(&c->files[0], &held, &tests, o->data, "--data", e, &left) ||
      !encode_add_list(&c->files[1], NULL, NULL, o->val_data, "--val_data", e, &left)) return false;
  for (char *at = left.text, *end; (end = strchr(at, '\n')); at = end + 1) {
    fail(&why, "warning: %.*s", (int)(end - at), at);
    o->say(why.text);
  }
  for (int i = 0; i < held.count && !*o->val_data; i++) data_names_add(&c->files[1], held.name[i]);
  if (tests || held.count) {
    fail(&why, "not trained on: %d files named test..., left out, and %d named val..., %s", tests, held.count,
         *o->val_data ? "left out, as --val_data names others" : "for validation");
    o->say(why.text);
  }
  data_names_free(&held);
  bool tables = false;
  if (!encode_check(&c->files[0], o, &tables, e) || !encode_check(&c->files[1], o, &tables, e)) return false;
  if (o->column_given && *o->column && !tables)
    return fail_with(e, EXIT_USAGE, "--text_column %s belongs to .parquet files, and none is named", o->column);
  c->column = tables ? o->column : "";
  const char *first = c->files[0].name[0];
  if (!encode_is_chats(first, o, e, &c->chats)) return false;
  if (c->chats && !*o->tokenizer)
    return fail_with(e, EXIT_USAGE, "%s has conversations, which are encoded by a model's own tokenizer: name the "
                     "model's directory by --tokenizer", first);
  if (c->chats && o->documents_given)
    return fail_with(e, EXIT_USAGE, "%s has conversations, which end as their template says: leave --document_token "
                     "out", first);
  if (*o->tokenizer && !tokenizer_load_with(&c->tokenizer, o->tokenizer, o->add_tokens, &why))
    return fail_with(e, EXIT_MISSING, "tokenizer %s", why.text);
  if (*o->tokenizer && o->vocab_given && c->tokenizer.vocab_size > o->vocab_size)
    return fail_with(e, EXIT_USAGE, "tokenizer %s has %d tokens, more than --vocab_size %d: leave that out",
                     o->tokenizer, c->tokenizer.vocab_size, o->vocab_size);
  if (c->tokenizer.ignored && o->out)
    o->say("warning: the tokenizer's truncation and padding are ignored, as by transformers: texts are encoded whole");
  if (!encode_inputs_hash(c, e)) return false;
  const uint64_t inputs = c->hash;
  if (*o->tokenizer) encode_hash(c);
  encode_find(c, inputs);
  if (!make_directories(c->out)) return encode_fail(c->out, e);
  if (o->out && !encode_check_out(c, e)) return false;
  if (!encode_lock(c, e)) return false;
  encode_tidy(c, false);
  data_format(json, sizeof json, "%s/tokenizer.json", c->out);
  data_format(state, sizeof state, "%s/encode.json", c->out);
  const bool has = !access(state, F_OK) && !access(json, F_OK), trained = !*o->tokenizer && has;
  if (trained && !tokenizer_load_any(&c->tokenizer, json, &why))
    return fail_with(e, EXIT_MISSING, "tokenizer %s", why.text);
  if (!*o->tokenizer && o->vocab_size < 257)
    return fail_with(e, EXIT_USAGE, "--vocab_size %d: a byte-level tokenizer has at least 257 tokens", o->vocab_size);
  if (!*o->tokenizer && !trained && !encode_train(&c->tokenizer, &c->files[0], c->column, o, e)) return false;
  if (!*o->tokenizer) encode_hash(c);
  if (!encode_resume(c, found, e)) return false;
  encode_tidy(c, *found);
  return (*found || encode_save(c, e)) &&        // first: it marks the directory as ours
         ((*found && has) || tokenizer_save(&c->tokenizer, json, &why) || fail_with(e, EXIT_MISSING, "%s", why.text));
}
bool encode_run(const EncodeOptions *o, Error *e, int *vocab_size, char *out) {
  static Encoding c;
  EncodePieces l = {};
  bool found = false, ok;
  char line[768];
  c = Encoding{};
  c.o = o;
  c.shards[0] = EncodeShards{"train", 1, -1, 0, 0}, c.shards[1] = EncodeShards{"val", 0, -1, 0, 0};
  c.began_ms = c.saved_ms = now_ms();
  *e = {};
  if ((ok = encode_open(&c, &found, e)) && found && !c.done) {
    snprintf(line, sizeof line, "continuing in %.512s: %.1f MB of text are encoded", c.out,
             (double)c.text_bytes * 1e-6);
    o->say(line);
  }
  for (; ok && !c.done && c.split < 2; c.split++, c.file = 0) {
    for (; ok && c.file < c.files[c.split].count; c.file++, c.at = c.line = 0) ok = encode_file(&c, &l, e);
    if (!ok) break;
  }
  const bool works = ok && !c.done;
  char missing[128], names[1024];
  if (ok && works && c.chats && record_fields_missing(o->chat.fields, c.records.fields, missing, sizeof missing))
    ok = fail_with(e, EXIT_USAGE, "--fields %s: no record has that key; remove %s and encode again", missing, c.out);
  if (ok && record_unread_say(&c.records.unread, names, sizeof names)) {
    snprintf(line, sizeof line, "warning: %.700s", names);
    o->say(line);
  }
  for (int i = 0; works && ok && i < 2; i++) ok = !c.shards[i].numel || encode_shard_end(&c, &c.shards[i], e);
  if (works && ok) c.done = true, ok = encode_save(&c, e);
  if (ok) {
    snprintf(line, sizeof line, "%lld tokens to train on, %lld for validation, of %.1f MB of text: --data %.200s "
             "--tokenizer %.200s --vocab_size %d", (long long)c.shards[0].total, (long long)c.shards[1].total,
             (double)c.text_bytes * 1e-6, c.out, c.out, c.tokenizer.vocab_size);
    o->say(line);
    if (!c.shards[1].total)
      o->say("warning: of a single document nothing is held out for validation: name some text by --val_data");
  }
  if (vocab_size) *vocab_size = c.tokenizer.vocab_size;
  if (out) data_format(out, PATH_MAX, "%s", c.out);
  for (EncodeShards &s : c.shards) if (s.fd >= 0) close(s.fd);
  if (c.lock >= 0) close(c.lock);
  for (DataNames &n : c.files) data_names_free(&n);
  for (Encoding::EncodeSeen *seen : c.seen) free(seen);
  tokenizer_free(&c.tokenizer);
  free(l.piece);
  return ok;
}
