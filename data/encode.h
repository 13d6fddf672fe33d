// encode.h: encodes texts of any size into token files that training takes: as a stream, on all cores, to the same
// bytes whatever their number; killed at any time, it goes on and writes the same bytes.
//
//   1 inputs     files, patterns and directories as a list; the sample that trains a tokenizer
//   2 writing    shards of llm.c's format, in a directory: train_000001.bin ..., val_000000.bin, tokenizer.json
//   3 encoding   block by block: pieces of documents by all threads, written in their order
//   4 the state  encode.json: how far the files are whole; the life of an encoding
//
// Conventions
//   - A document is a line of a .jsonl, or a whole file of another kind. The document token stands before each of them
//     (llm.c, nanochat), behind each (llmq), or nowhere. The ids of a text are those of encoding it at once.
//   - A shard that is not whole is called NAME.part. Input is read in order; what is known of the place is how many
//     bytes of unpacked text of which file have been encoded.
//   - A function that can fail because of what the user gave returns false with one line in a DataError.
//
// Defines: EncodeOptions, encode_run, ENCODE_DONE.
#pragma once
#include "chat.h"
#include "random.h"
#include "text_stream.h"

enum EncodeDocuments { DOCUMENTS_BEFORE, DOCUMENTS_BEHIND, DOCUMENTS_NONE };
struct EncodeOptions {
  const char *out, *data, *val_data, *tokenizer; // val_data "": one document of HELD_OUT is held out for validation
  int vocab_size, threads;
  EncodeDocuments documents;
  void (*say)(const char *line);                 // takes lines of progress
  // Smaller in tests.
  int64_t block_bytes = 32 << 20, shard_numel = 100000000, save_bytes = 256 << 20;
};
enum { HELD_OUT = 200, ENCODE_SAMPLE_BYTES = 64 << 20, ENCODE_PIECE_BYTES = 16 << 10, ENCODE_MARGIN_BYTES = 1024 };

// ================================================================================================ 1 inputs
// Adds the texts that one element of a list names.
static inline bool encode_add(DataNames *to, const char *element, const char *option, DataError *e) {
  struct stat st;
  glob_t g = {};
  char path[PATH_MAX];
  TextPacking packing;
  DataNames found = {};
  const bool there = !stat(element, &st);
  if (there && S_ISDIR(st.st_mode)) {
    DataNames names = data_names(element, "");
    for (int i = 0; i < names.count; i++) {
      const bool text = text_name_kind(names.name[i], &packing) != TEXT_NONE;
      if ((text || name_ends(names.name[i], ".parquet")) &&
          data_format(path, sizeof path, "%s%s%s", element, name_ends(element, "/") ? "" : "/", names.name[i]))
        data_names_add(&found, path);
    }
    data_names_free(&names);
  } else if (there) data_names_add(&found, element);
  else if (!glob(element, 0, NULL, &g)) for (size_t i = 0; i < g.gl_pathc; i++) data_names_add(&found, g.gl_pathv[i]);
  globfree(&g);
  for (int i = 0; i < found.count; i++) data_names_add(to, found.name[i]);
  const bool any = found.count > 0;
  data_names_free(&found);
  return any || data_fail(e, EXIT_MISSING, "%s %s: %s", option, element,
                          there ? "no text in this directory (.txt, .md, .jsonl; .gz, .zst)" : strerror(ENOENT));
}
static inline bool encode_list(DataNames *to, const char *list, const char *option, DataError *e) {
  char element[DATA_PATH_BYTES];
  const bool whole = !access(list, F_OK);
  for (const char *at = list, *comma; at; at = comma ? comma + 1 : NULL) {
    comma = whole ? NULL : strchr(at, ',');
    if (!data_format(element, sizeof element, "%.*s", comma ? (int)(comma - at) : (int)strlen(at), at))
      return data_fail(e, EXIT_MISSING, "%s: a path is too long: at most %zu bytes", option, sizeof element - 1);
    if (!encode_add(to, element, option, e)) return false;
  }
  for (int i = 0; i < to->count; i++) {          // before anything is read: a name that is no text, a missing library
    TextStream s;
    if (!text_stream_open(&s, to->name[i], e)) return false;
    text_stream_close(&s);
  }
  return true;
}

// The text of a line of a .jsonl, malloc'ed; NULL and what is wrong in `fault` of 256 bytes.
static inline char *encode_line(const uint8_t *line, size_t bytes, char *fault) {
  size_t ascii = 0;                              // eight bytes at a time, as most of a text is
  for (uint64_t word; ascii + 8 <= bytes; ascii += 8) {
    memcpy(&word, line + ascii, 8);
    if (word & 0x8080808080808080u) break;
  }
  const size_t bad = ascii + chat_bad_utf8(line + ascii, bytes - ascii);
  const bool nul = memchr(line, 0, bytes) || memmem(line, bytes, "\\u0000", 6);
  if (bad < bytes || nul)
    snprintf(fault, 256, bad < bytes ? "byte %zu is not UTF-8" : "it has a NUL character", bad + 1);
  if (bad < bytes || nul) return NULL;
  cJSON *json = cJSON_ParseWithLength((const char *)line, bytes);
  const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "text"));
  char *copy = text ? strdup(text) : NULL;
  if (!json) snprintf(fault, 256, "it is not JSON");
  else if (!text)
    snprintf(fault, 256, cJSON_HasObjectItem(json, "messages") || cJSON_HasObjectItem(json, "prompt")
             ? "it is a conversation, which --data takes as it is, with a mask: no need to encode it"
             : "it has no \"text\"");
  cJSON_Delete(json);
  return copy;
}
// Trains a tokenizer on the beginnings of the files, as much of each.
static inline bool encode_train(Tokenizer *t, const DataNames *files, const EncodeOptions *o, DataError *e) {
  const int64_t each = ENCODE_SAMPLE_BYTES / files->count + 1;
  uint8_t *sample = (uint8_t *)data_alloc(ENCODE_SAMPLE_BYTES + (size_t)files->count, 1);
  int64_t n = 0, got = 1;
  for (int i = 0; i < files->count; i++) {
    TextStream s;
    const int64_t begin = n;
    if (!text_stream_open(&s, files->name[i], e)) { free(sample); return false; }
    while (n - begin < each && (got = text_stream_read(&s, sample + n, each - (n - begin), e)) > 0) n += got;
    if (s.kind == TEXT_JSONL) {                  // whole lines, as their texts, which are shorter
      int64_t to = begin;
      for (int64_t at = begin; at < n;) {
        const uint8_t *newline = (const uint8_t *)memchr(sample + at, '\n', (size_t)(n - at));
        char fault[256], *text = newline ? encode_line(sample + at, (size_t)(newline - sample - at), fault) : NULL;
        at = newline ? newline - sample + 1 : n;
        const size_t bytes = text ? strlen(text) : 0;
        if (text) memcpy(sample + to, text, bytes), to += (int64_t)bytes;
        if (text) sample[to++] = '\n';
        free(text);
      }
      n = to;
    }
    text_stream_close(&s);
    if (got < 0) { free(sample); return false; }
  }
  if (n) tokenizer_train(t, sample, (size_t)n, o->vocab_size, o->threads);
  free(sample);
  return n || data_fail(e, EXIT_MISSING, "--data %s: there is no text to train a tokenizer on", o->data);
}

// ================================================================================================ 2 writing
// The shards of a split. numel: tokens in the last one, which is open; id tokens are appended.
struct EncodeShards { const char *name; int number, fd; int64_t numel, total; };
struct Encoding {
  const EncodeOptions *o;
  Tokenizer tokenizer;
  int32_t document_id;                           // -1: none
  int token_bytes;
  DataNames files[2];                            // trained on; for validation
  uint64_t hash;                                 // of all that decides the bytes
  EncodeShards shards[2];
  // The place: split, file, bytes of its text and lines before it; documents so far.
  int split, file;
  int64_t at, line, documents, text_bytes;
  bool done, in_held_out;                        // in_held_out: the document that goes on is
  int64_t all_bytes, began_bytes;                // of all files as they are; where this process began
  double began_ms, said_ms;
};
static inline void encode_shard_path(const Encoding *c, const EncodeShards *s, const char *end, char path[PATH_MAX]) {
  data_format(path, PATH_MAX, "%s/%s_%06d.bin%s", c->o->out, s->name, s->number, end);
}
static inline bool encode_fail(const char *path, DataError *e) {
  return data_fail(e, EXIT_MISSING, "cannot write %s: %s", path, strerror(errno));
}
// Opens the last shard, unless it is open.
static inline bool encode_shard_open(const Encoding *c, EncodeShards *s, DataError *e) {
  char part[PATH_MAX];
  encode_shard_path(c, s, ".part", part);
  if (s->fd < 0) s->fd = open(part, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (s->numel ? 0 : O_TRUNC), 0666);
  return s->fd >= 0 || encode_fail(part, e);
}
// Ends the last shard: its header, to the disk, its name.
static inline bool encode_shard_end(Encoding *c, EncodeShards *s, DataError *e) {
  char part[PATH_MAX], path[PATH_MAX];
  int32_t header[256] = {20240520, 1, (int32_t)s->numel};
  if (c->token_bytes == 4) header[0] = 20240801, header[1] = 7;
  encode_shard_path(c, s, ".part", part);
  encode_shard_path(c, s, "", path);
  if (!encode_shard_open(c, s, e)) return false;
  if (!file_write(s->fd, part, header, sizeof header, 0) || !file_sync(s->fd, part) || !file_rename(part, path))
    return encode_fail(path, e);
  close(s->fd);
  s->fd = -1;
  s->numel = 0;
  s->number++;
  return true;
}
static inline bool encode_append(Encoding *c, EncodeShards *s, const int32_t *ids, int64_t n, DataError *e) {
  char part[PATH_MAX];
  enum { NUMEL = 1 << 16 };
  uint8_t *bytes = (uint8_t *)data_alloc(NUMEL, 4);
  bool ok = true;
  for (int64_t count; ok && n > 0; ids += count, n -= count) {
    encode_shard_path(c, s, ".part", part);
    if (!(ok = encode_shard_open(c, s, e))) break;
    count = min64(min64(n, NUMEL), c->o->shard_numel - s->numel);
    for (int64_t i = 0; i < count; i++) {
      const uint16_t half = (uint16_t)ids[i];
      memcpy(bytes + i * c->token_bytes, c->token_bytes == 2 ? (const void *)&half : &ids[i], (size_t)c->token_bytes);
    }
    ok = file_write(s->fd, part, bytes, count * c->token_bytes, 1024 + s->numel * c->token_bytes) ||
         encode_fail(part, e);
    s->numel += count;
    s->total += count;
    if (ok && s->numel == c->o->shard_numel) ok = encode_shard_end(c, s, e);
  }
  free(bytes);
  return ok;
}

// ================================================================================================ 3 encoding
// A piece of a document, at most about ENCODE_PIECE_BYTES long: where it may be cut. text: of a line, malloc'ed.
struct EncodePiece {
  const uint8_t *p;
  size_t bytes;
  bool begins, ends, line;
  char *text;
  int32_t *ids;
  int64_t count, number;                         // number: of the line
  char fault[256];
};
struct EncodePieces { EncodePiece *piece; int64_t count, room; };
static inline EncodePiece *encode_piece(EncodePieces *l) {
  if (l->count == l->room) {
    l->room = l->room ? 2 * l->room : 1024;
    l->piece = (EncodePiece *)bpe_resize(l->piece, (size_t)l->room, sizeof *l->piece);
  }
  l->piece[l->count] = EncodePiece{};
  return &l->piece[l->count++];
}
// The last place where the first `n` bytes of a text that goes on may be cut; 0: none.
static inline size_t encode_last_cut(const Tokenizer *t, const uint8_t *p, size_t n) {
  for (size_t at = n > ENCODE_MARGIN_BYTES ? n - ENCODE_MARGIN_BYTES : 0; at > 0; at--)
    if ((p[at] == ' ' || p[at] == '\n') && tokenizer_cut(t, p, n, at) == at) return at;
  return 0;
}
// Cuts what is complete of a block into pieces. Returns how many of its bytes they are; 0: more is needed.
static inline size_t encode_cut(Encoding *c, EncodePieces *l, TextKind kind, const uint8_t *p, size_t n, bool ends) {
  const Tokenizer *t = &c->tokenizer;
  size_t at = 0;
  l->count = 0;
  for (const uint8_t *newline; kind == TEXT_JSONL && at < n; at = (size_t)(newline - p) + (newline < p + n)) {
    newline = (const uint8_t *)memchr(p + at, '\n', n - at);
    if (!newline && !ends) break;
    if (!newline) newline = p + n;
    size_t bytes = (size_t)(newline - p) - at;
    c->line++;
    while (bytes && strchr(" \t\r", p[at + bytes - 1])) bytes--;
    if (!bytes) continue;
    EncodePiece *piece = encode_piece(l);
    piece->p = p + at, piece->bytes = bytes, piece->begins = piece->ends = piece->line = true, piece->number = c->line;
  }
  if (kind == TEXT_JSONL) return at;
  const size_t end = ends ? n : encode_last_cut(t, p, n);
  for (; at < end;) {
    size_t next = end - at > ENCODE_PIECE_BYTES ? tokenizer_cut(t, p, end, at + ENCODE_PIECE_BYTES) : end;
    EncodePiece *piece = encode_piece(l);
    piece->p = p + at, piece->bytes = next - at, piece->begins = !c->at && !at, piece->ends = ends && next == n;
    at = next;
  }
  return end;
}
// Encodes the pieces on all threads, and appends them in their order.
static inline bool encode_pieces(Encoding *c, const EncodePieces *l, const char *path, DataError *e) {
  const Tokenizer *const t = &c->tokenizer;
  EncodePiece *const piece = l->piece;
  const int64_t count = l->count, most = count / (4 * c->o->threads) + 1;      // of an encoder, which remembers words
  parallel_for(c->o->threads, 0, (count + most - 1) / most, 1, [=](int64_t group) {
    BpeEncoder encoder;
    bpe_encoder_open(&encoder, t);
    for (int64_t i = group * most; i < count && i < (group + 1) * most; i++) {
      EncodePiece *p = &piece[i];
      if (p->line && !(p->text = encode_line(p->p, p->bytes, p->fault))) continue;
      const uint8_t *text = p->text ? (const uint8_t *)p->text : p->p;
      const size_t bytes = p->text ? strlen(p->text) : p->bytes;
      p->ids = (int32_t *)malloc(sizeof(int32_t) * (tokenizer_ids_most(t, bytes) + 1));
      if (!p->ids) die_missing("data: no memory for the tokens of %zu bytes", bytes);
      p->count = bpe_encoder_run(&encoder, text, bytes, p->ids);
    }
    bpe_encoder_close(&encoder);
  });
  bool ok = true;
  const bool holds_out = !c->split && !c->files[1].count;
  for (int64_t i = 0; i < l->count; i++) {
    EncodePiece *p = &piece[i];
    if (ok && p->fault[0])
      ok = data_fail(e, EXIT_MISSING, "%s, line %lld: %s", path, (long long)p->number, p->fault);
    if (p->begins) c->in_held_out = holds_out && c->documents++ % HELD_OUT == HELD_OUT - 1;
    EncodeShards *to = &c->shards[c->split || c->in_held_out];
    const bool marks = c->document_id >= 0;
    if (ok && marks && p->begins && c->o->documents == DOCUMENTS_BEFORE)
      ok = encode_append(c, to, &c->document_id, 1, e);
    ok = ok && encode_append(c, to, p->ids, p->count, e);
    if (ok && marks && p->ends && c->o->documents == DOCUMENTS_BEHIND)
      ok = encode_append(c, to, &c->document_id, 1, e);
    free(p->ids);
    free(p->text);
  }
  return ok;
}

// ================================================================================================ 4 the state
static inline bool encode_save(Encoding *c, DataError *e) {
  char path[PATH_MAX], part[PATH_MAX], *text = NULL;
  size_t bytes;
  for (EncodeShards &s : c->shards) {
    encode_shard_path(c, &s, ".part", part);
    if (s.fd >= 0 && !file_sync(s.fd, part)) return encode_fail(part, e);
  }
  FILE *f = open_memstream(&text, &bytes);
  fprintf(f, "{\"encoding\":\"%016llx\",\"done\":%s,\"split\":%d,\"file\":%d,\"at\":%lld,\"line\":%lld,"
          "\"documents\":%lld,\"text_bytes\":%lld,\"held_out\":%d", (unsigned long long)c->hash,
          c->done ? "true" : "false", c->split, c->file, (long long)c->at, (long long)c->line, (long long)c->documents,
          (long long)c->text_bytes, c->in_held_out);
  for (const EncodeShards &s : c->shards)
    fprintf(f, ",\"%s\":[%d,%lld,%lld]", s.name, s.number, (long long)s.numel, (long long)s.total);
  fprintf(f, "}\n");
  fclose(f);
  data_format(path, sizeof path, "%s/encode.json", c->o->out);
  const bool ok = file_put(path, c->o->out, text, (int64_t)bytes) || encode_fail(path, e);
  free(text);
  return ok;
}
static inline int64_t encode_number(const cJSON *x) { return cJSON_IsNumber(x) ? (int64_t)x->valuedouble : 0; }
// Takes the state that an earlier process left in OUT, if any: `found`. What it wrote after that is written again.
static inline bool encode_resume(Encoding *c, bool *found, DataError *e) {
  char path[PATH_MAX], part[PATH_MAX];
  int64_t bytes;
  data_format(path, sizeof path, "%s/encode.json", c->o->out);
  char *text = file_get(path, 1 << 16, &bytes);
  cJSON *json = text ? cJSON_Parse(text) : NULL;
  free(text);
  *found = json != NULL;
  if (!json)
    return access(path, F_OK) || data_fail(e, EXIT_MISSING, "%s is damaged: remove %s and encode again", path,
                                           c->o->out);
  const char *hash = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "encoding"));
  const bool same = hash && strtoull(hash, NULL, 16) == c->hash;
  int64_t *const to[] = {&c->at, &c->line, &c->documents, &c->text_bytes};
  static const char *const names[] = {"at", "line", "documents", "text_bytes"};
  for (int i = 0; i < 4; i++) *to[i] = encode_number(cJSON_GetObjectItemCaseSensitive(json, names[i]));
  c->done = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "done"));
  c->split = (int)encode_number(cJSON_GetObjectItemCaseSensitive(json, "split"));
  c->file = (int)encode_number(cJSON_GetObjectItemCaseSensitive(json, "file"));
  c->in_held_out = encode_number(cJSON_GetObjectItemCaseSensitive(json, "held_out")) != 0;
  bool ok = same || data_fail(e, EXIT_USAGE, "%s has another encoding: of other files, tokenizer or options; remove "
                              "it, or name another directory", c->o->out);
  for (EncodeShards &s : c->shards) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, s.name);
    s.number = (int)encode_number(cJSON_GetArrayItem(list, 0));
    s.numel = encode_number(cJSON_GetArrayItem(list, 1));
    s.total = encode_number(cJSON_GetArrayItem(list, 2));
    encode_shard_path(c, &s, ".part", part);
    encode_shard_path(c, &s, "", path);
    const int64_t want = 1024 + s.numel * c->token_bytes;
    struct stat st;
    if (!ok || !s.numel) continue;
    if (access(part, F_OK) && rename(path, part)) part[0] = 0;   // it became whole after the state was written
    ok = (!stat(part, &st) && st.st_size >= want && !truncate(part, want)) ||
         data_fail(e, EXIT_MISSING, "%s is not as it was being written: remove %s and encode again", path, c->o->out);
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
// Encodes the file at the place, from there on.
static inline bool encode_file(Encoding *c, EncodePieces *l, DataError *e) {
  TextStream s;
  size_t room = (size_t)c->o->block_bytes, n = 0;
  const char *path = c->files[c->split].name[c->file];
  if (!text_stream_open(&s, path, e)) return false;
  uint8_t *block = (uint8_t *)data_alloc(room, 1);
  int64_t skip = c->at, got = 1, unsaved = 0;
  bool ok = true;
  if (!s.packing && lseek(s.fd, skip, SEEK_SET) == skip) skip = 0;
  for (int64_t left = skip; left > 0 && got > 0; left -= got)    // unpacked once more
    got = text_stream_read(&s, block, min64(left, (int64_t)room), e);
  ok = got >= 0;
  while (ok && (got > 0 || n)) {
    while (n < room && got > 0 && (got = text_stream_read(&s, block + n, (int64_t)(room - n), e)) > 0) n += (size_t)got;
    if ((ok = got >= 0) && !c->at && n) {
      DataNotices none = {};
      ok = text_check(path, block, n, &none, e, true);
    }
    const size_t used = ok ? encode_cut(c, l, s.kind, block, n, got == 0) : 0;
    ok = ok && encode_pieces(c, l, path, e);
    if (ok && !used && got > 0) {                // one line, or no blank: more than the block holds
      room *= 2;
      block = (uint8_t *)bpe_resize(block, room, 1);
    }
    memmove(block, block + used, n - used);
    n -= used;
    c->at += (int64_t)used, c->text_bytes += (int64_t)used, unsaved += (int64_t)used;
    if (ok && unsaved >= c->o->save_bytes) unsaved = 0, ok = encode_save(c, e);
    encode_progress(c, &s, false);
    if (ok && got == 0 && !used) break;
  }
  text_stream_close(&s);
  free(block);
  return ok;
}
// Lists the inputs, has the tokenizer, and takes up what is there.
static inline bool encode_open(Encoding *c, bool *found, DataError *e) {
  const EncodeOptions *o = c->o;
  char json[PATH_MAX], state[PATH_MAX], why[1024];
  struct stat st;
  if (!encode_list(&c->files[0], o->data, "--data", e)) return false;
  if (*o->val_data && !encode_list(&c->files[1], o->val_data, "--val_data", e)) return false;
  if (!make_directories(o->out)) return encode_fail(o->out, e);
  for (const char *left : {"encode.json.tmp*", "tokenizer.json.tmp*"}) {       // of a process that was killed
    glob_t g = {};
    data_format(json, sizeof json, "%s/%s", o->out, left);
    if (!glob(json, 0, NULL, &g)) for (size_t i = 0; i < g.gl_pathc; i++) unlink(g.gl_pathv[i]);
    globfree(&g);
  }
  data_format(json, sizeof json, "%s/tokenizer.json", o->out);
  data_format(state, sizeof state, "%s/encode.json", o->out);
  const char *given = *o->tokenizer ? o->tokenizer : !access(state, F_OK) ? json : "";
  if (*given && !tokenizer_load_any(&c->tokenizer, given, why, sizeof why))
    return data_fail(e, EXIT_MISSING, "tokenizer %s", why);
  if (!*given && o->vocab_size < 257)
    return data_fail(e, EXIT_USAGE, "--vocab_size %d: a byte-level tokenizer has at least 257 tokens", o->vocab_size);
  if (!*given && !encode_train(&c->tokenizer, &c->files[0], o, e)) return false;
  const Tokenizer *t = &c->tokenizer;
  c->token_bytes = t->vocab_size <= 65536 ? 2 : 4;
  c->document_id = o->documents == DOCUMENTS_NONE ? -1 : chat_token(t, "<|endoftext|>");
  if (c->document_id < 0 && o->documents != DOCUMENTS_NONE) c->document_id = chat_token(t, "<|end_of_text|>");
  if (t->adds_bos && o->documents == DOCUMENTS_BEFORE) c->document_id = t->bos_id;
  const int64_t numbers[] = {o->documents, o->shard_numel, c->document_id, c->files[1].count};
  c->hash = data_hash(tokenizer_hash(t), numbers, sizeof numbers);
  for (const DataNames &names : c->files) for (int i = 0; i < names.count; i++) {
    const char *base = path_base(names.name[i]);
    if (stat(names.name[i], &st)) return data_fail(e, EXIT_MISSING, "%s: %s", names.name[i], strerror(errno));
    c->hash = data_hash(data_hash(c->hash, base, strlen(base)), &st.st_size, sizeof st.st_size);
    c->all_bytes += st.st_size;
  }
  if (!encode_resume(c, found, e)) return false;
  return *found || ((tokenizer_save(t, json, why, sizeof why) || data_fail(e, EXIT_MISSING, "%s", why)) &&
                    encode_save(c, e));
}
// Encodes what the options name into OUT, or goes on where an earlier process was ended. vocab_size: NULL, or receives
// the tokenizer's. False: one line in e.
static inline bool encode_run(const EncodeOptions *o, DataError *e, int *vocab_size = NULL) {
  static Encoding c;
  EncodePieces l = {};
  bool found = false, ok;
  char line[768];
  c = Encoding{};
  c.o = o;
  c.shards[0] = EncodeShards{"train", 1, -1, 0, 0}, c.shards[1] = EncodeShards{"val", 0, -1, 0, 0};
  c.began_ms = now_ms();
  *e = {};
  if ((ok = encode_open(&c, &found, e)) && found && !c.done) {
    snprintf(line, sizeof line, "going on in %s: %.1f MB of text are encoded", o->out, (double)c.text_bytes * 1e-6);
    o->say(line);
  }
  for (; ok && !c.done && c.split < 2; c.split++, c.file = 0) {
    for (; ok && c.file < c.files[c.split].count; c.file++, c.at = c.line = 0) ok = encode_file(&c, &l, e);
    if (!ok) break;
  }
  const bool works = ok && !c.done;
  for (int i = 0; works && ok && i < 2; i++) ok = !c.shards[i].numel || encode_shard_end(&c, &c.shards[i], e);
  if (works && ok) c.done = true, ok = encode_save(&c, e);
  if (ok) {
    snprintf(line, sizeof line, "%lld tokens to train on, %lld for validation, of %.1f MB of text: --data %.200s "
             "--tokenizer %.200s --vocab_size %d", (long long)c.shards[0].total, (long long)c.shards[1].total,
             (double)c.text_bytes * 1e-6, o->out, o->out, c.tokenizer.vocab_size);
    o->say(line);
    if (!c.shards[1].total)
      o->say("notice: with fewer than 200 documents none is held out for validation: name some by --val_data");
  }
  if (vocab_size) *vocab_size = c.tokenizer.vocab_size;
  for (EncodeShards &s : c.shards) if (s.fd >= 0) close(s.fd);
  for (DataNames &n : c.files) data_names_free(&n);
  tokenizer_free(&c.tokenizer);
  free(l.piece);
  return ok;
}
