// token_files.h: a stream of tokens, in memory or in files that are read where they are.
//
//   1 a split      one stream of ids, with a mask; in memory
//   2 kinds        the files of llm.c and modded-nanogpt, llmq, Megatron, nanoGPT: detected by their first bytes
//   3 reading      ids of a stretch of the stream, across files; what identifies a stream
//
// Conventions
//   - Token files are opened once and read by pread: never mapped, copied whole, or scanned. The page cache holds them,
//     once for all processes of a host. A file that shrinks is a read that comes short, not a signal; one that is
//     removed or replaced stays open as it was.
//   - Where a stream is cut into files makes no difference: token i is the same, and so is split_hash of the stream.
//   - An id that is not below the vocabulary, or a read that fails, ends all ranks with a line that names the file.
#pragma once
#include <sys/resource.h>

#include "tokens.h"

// ================================================================================================ 1 a split
size_t split_bytes(const Split *s) {
  const size_t bits = (size_t)(s->tokens_numel + 7) / 8;
  return (size_t)s->tokens_numel * (size_t)s->token_bytes + (s->masked ? bits : 0) + (s->documents ? bits : 0);
}
uint8_t *split_bits(const Split *s, bool begins) {
  return (uint8_t *)s->tokens + s->tokens_numel * s->token_bytes + (begins ? (s->tokens_numel + 7) / 8 : 0);
}
bool split_begins(const Split *s, int64_t i) {
  return s->documents && (split_bits(s, true)[i / 8] >> i % 8 & 1);
}
// A conversation ends where the next one begins, and at the end of the split. With pairs every second of these ends is
// that of a pair, which has two first tokens that are no targets, where a conversation has one: hence - s->pairs.
int64_t split_longest(const Split *s) {
  int64_t longest = 0, from = 0, ends = 0;       // ends: conversations that have ended so far
  for (int64_t i = 1; s->documents && i <= s->tokens_numel; i++) {
    if ((i < s->tokens_numel && !split_begins(s, i)) || (++ends % 2 && s->pairs)) continue;
    const int64_t n = i - from - s->pairs;
    longest = n > longest ? n : longest, from = i;
  }
  return longest;
}
static inline void split_read(const Split *s, int64_t first, int64_t n, int32_t *ids, bool targets = false);
int32_t split_token(const Split *s, int64_t i) {
  int32_t id = 0;
  if (s->files) split_read(s, i, 1, &id);
  else id = s->token_bytes == 2 ? ((const uint16_t *)s->tokens)[i] : (int32_t)((const uint32_t *)s->tokens)[i];
  return id;
}
// Token i as a target: -1, which the loss ignores, where it is not trained on.
static inline int32_t split_target(const Split *s, int64_t i) {
  int32_t id = 0;
  if (s->files) split_read(s, i, 1, &id, true);
  else id = !s->masked || (split_bits(s, false)[i / 8] >> i % 8 & 1) ? split_token(s, i) : -1;
  return id;
}
bool split_trained(const Split *s, int64_t i) { return !s->masked || split_target(s, i) >= 0; }

void split_free(Split *s) {
  free(s->owned);
  for (int i = 0; s->file && i < s->files; i++) if (s->file[i].fd >= 0) close(s->file[i].fd);
  free(s->file);
  *s = {};
}

// ================================================================================================ 2 kinds
// The llm.c token file: 256 int32 (magic, version, count, zeros), then the tokens. modded-nanogpt's is the first kind.
struct TokenFileKind { int32_t magic, version; int token_bytes; const char *name; };
static const TokenFileKind token_file_kinds[] = {{20240520, 1, 2, "GPT-2"}, {20240801, 7, 4, "Llama 3"}};
static const char token_file_llmq[] = "BIN.TOK\n";
enum { TOKEN_FILE_HEAD_BYTES = 4096 };           // what tells its kind

void token_file_header(int32_t header[TOKEN_FILE_WORDS], int64_t numel, int token_bytes, int vocab_size, bool masked,
                       int rest) {
  const TokenFileKind *k = &token_file_kinds[token_bytes == 4];
  const int32_t low = (int32_t)(numel & INT32_MAX), high = (int32_t)(numel >> 31);
  const int32_t llmc[] = {k->magic, k->version, low, high};
  const int32_t llmq[] = {0, 0, 2, token_bytes, low, vocab_size, 1, rest, high};
  memset(header, 0, TOKEN_FILE_HEADER_BYTES);
  if (masked) memcpy(header, llmq, sizeof llmq), memcpy(header, token_file_llmq, 8);
  else memcpy(header, llmc, sizeof llmc);
}
static inline int64_t token_file_count(int32_t low, int32_t high) { return low + ((int64_t)high << 31); }

static inline int64_t token_file_end(const TokenFile *f) {
  return f->offset_bytes + f->tokens_numel * f->token_bytes + (f->masked ? (f->tokens_numel + 7) / 8 : 0);
}
static inline bool token_file_llmq_layout(TokenFile *f, const uint8_t *head, size_t bytes, Error *e) {
  int32_t header[9] = {};
  memcpy(header, head, bytes < sizeof header ? bytes : sizeof header);
  f->token_bytes = header[3] == 2 ? 2 : 4;
  f->offset_bytes = TOKEN_FILE_HEADER_BYTES;
  f->tokens_numel = token_file_count(header[4], header[8]);
  f->masked = header[6] == 1;
  const long long count = f->tokens_numel, want = token_file_end(f) + header[7];
  if ((header[2] != 1 && header[2] != 2) || header[3] != f->token_bytes || header[4] < 0 || count < 2)
    return fail_with(e, EXIT_MISSING, "%s: llmq's token file of version %d with %lld tokens of %d bytes; expected: "
                     "version 1 or 2, at least 2 tokens of 4 bytes", f->path, header[2], count, header[3]);
  if (f->file_bytes != want)
    return fail_with(e, EXIT_MISSING, "%s: its header counts %lld tokens of %d bytes%s, so the file should have %lld "
                     "bytes, but it has %lld; copy or write it again", f->path, count, header[3], f->masked ? " and a "
                     "mask" : "", want, (long long)f->file_bytes);
  return true;
}
// What is wrong with `n` lengths and offsets of a Megatron index, whose sequences must follow each other without gaps;
// NULL: nothing.
static inline const char *megatron_fault(const int32_t *length, const int64_t *offset, int64_t n, int width) {
  for (int64_t i = 0; i < n; i++)
    if (length[i] < 0 || (i && offset[i] != offset[i - 1] + (int64_t)length[i - 1] * width))
      return length[i] < 0 ? "a sequence has a negative length" : "its sequences are not stored one after another";
  return NULL;
}
// Checks an index whose size is right: all of up to a million (256 x 4096) entries, else 256 evenly spaced blocks of
// 4096.
static inline const char *megatron_check(int fd, int64_t at, int64_t sequences, int64_t documents, int width) {
  enum { BLOCK = 4096, BLOCKS = 256 };
  int32_t *length = (int32_t *)data_alloc(BLOCK, sizeof *length);
  int64_t *offset = (int64_t *)data_alloc(BLOCK, sizeof *offset), last = 0;
  const char *fault = NULL;
  for (int pass = 0; pass < 2 && !fault; pass++) {               // sequences, documents
    const int64_t all = pass ? documents : sequences, n = min64(all, BLOCK);
    const int64_t blocks = min64((all + BLOCK - 1) / BLOCK, BLOCKS);
    for (int64_t b = 0; b < blocks && !fault; b++) {
      const int64_t first = blocks > 1 ? (all - n) / (blocks - 1) * b : 0;
      const int64_t from = at + sequences * (pass ? 12 : 4) + 8 * first;
      if ((!pass && !file_read(fd, length, 4 * n, at + 4 * first)) || !file_read(fd, offset, 8 * n, from))
        fault = strerror(errno);
      else if (!pass) fault = !first && offset[0] ? "its first sequence is not at byte 0"
                                                  : megatron_fault(length, offset, n, width);
      for (int64_t i = 0; pass && i < n && !fault; i++, last = offset[i - 1])
        if (offset[i] < last || offset[i] > sequences) fault = "its documents do not end at sequences in their order";
      liveness_progress();
    }
  }
  free(length);
  free(offset);
  return fault;
}
// Megatron's index file (.idx), which belongs to a file of bare tokens: "MMIDIDX\0\0", uint64 1, uint8 dtype, uint64
// sequences, uint64 documents; int32 length of each sequence, int64 offset of each in bytes, int64 ends of documents.
// The last sequence ends at the end of the tokens.
enum { MEGATRON_HEADER_BYTES = 34 };
static const char megatron_magic[] = "MMIDIDX\0";
static inline bool token_file_megatron_layout(TokenFile *f, const char *idx, int fd, Error *e) {
  uint8_t head[MEGATRON_HEADER_BYTES];
  uint64_t version, sequences, documents;
  struct stat st;
  int32_t length = 0;
  int64_t offset = 0;
  bool ok = !fstat(fd, &st) && file_read(fd, head, sizeof head, 0);
  if (ok) memcpy(&version, head + 9, 8), memcpy(&sequences, head + 18, 8), memcpy(&documents, head + 26, 8);
  ok = ok && version == 1 && sequences >= 1 && sequences < (1ull << 40) && documents < (1ull << 40) &&
       (uint64_t)st.st_size == sizeof head + sequences * 12 + documents * 8 &&
       file_read(fd, &length, 4, (int64_t)(sizeof head + 4 * (sequences - 1))) &&
       file_read(fd, &offset, 8, (int64_t)(sizeof head + 4 * sequences + 8 * (sequences - 1)));
  if (!ok)
    return fail_with(e, EXIT_MISSING, "%s is a Megatron index that is damaged, cut short or of another version than 1; "
                     "write it again", idx);
  if (head[17] != 4 && head[17] != 8)
    return fail_with(e, EXIT_MISSING, "%s: a Megatron index of tokens of dtype %d; expected: 4 (int32) or 8 (uint16)",
                     idx, head[17]);
  f->token_bytes = head[17] == 4 ? 4 : 2;
  const char *fault = megatron_check(fd, sizeof head, (int64_t)sequences, (int64_t)documents, f->token_bytes);
  if (fault)
    return fail_with(e, EXIT_MISSING, "%s is a Megatron index that is damaged: %s; write it again", idx, fault);
  f->tokens_numel = f->file_bytes / f->token_bytes;
  if (offset + (int64_t)length * f->token_bytes != f->file_bytes || f->tokens_numel < 2)
    return fail_with(e, EXIT_MISSING, "%s has %lld bytes, but its index %s ends at byte %lld: they do not belong "
                     "together, or one is cut short", f->path, (long long)f->file_bytes, idx, (long long)(offset +
                     (int64_t)length * f->token_bytes));
  return true;
}

// What a .bin is, in words, if it is clearly another format than token files; NULL: it may be bare uint16 tokens
// (nanoGPT).
static inline const char *token_file_misnomer(const uint8_t *p, size_t bytes) {
  if (bytes < 8) return NULL;
  uint32_t first;
  memcpy(&first, p, 4);
  if (first == 20240522) return "an llm.c multiple-choice set (magic 20240522), which holds no token stream";
  if (first / 10000 == 2024) return "an llm.c file of another kind (model, tokenizer or activations)";
  for (const TokenFileKind &k : token_file_kinds)
    if (__builtin_bswap32(first) == (uint32_t)k.magic) return "an llm.c token file in big-endian byte order";
  const char *foreign = file_foreign(p, bytes);
  if (foreign) return foreign;
  size_t text = 0;
  while (text < bytes && text < 4096 && ((p[text] >= ' ' && p[text] < 127) || (p[text] >= '\t' && p[text] <= '\r')))
    text++;
  if (bytes >= 64 && text == (bytes < 4096 ? bytes : 4096)) return "plain text; give it a name that ends in .txt";
  return NULL;
}

// Whether exactly `count` tokens follow magic, version and count, which bare tokens do not do by chance.
static inline bool token_file_has_layout(const int32_t header[4], long long bytes) {
  const long long rest = bytes - TOKEN_FILE_HEADER_BYTES, count = header[2];
  return header[1] > 0 && header[1] < 1000 && count > 0 && (rest == 2 * count || rest == 4 * count);
}
// token_file_layout for llm.c's kinds.
static inline bool token_file_llmc_layout(TokenFile *f, const TokenFileKind *k, const int32_t header[4], Error *e) {
  const long long bytes = f->file_bytes, count = token_file_count(header[2], header[3]);
  const long long want = TOKEN_FILE_HEADER_BYTES + count * k->token_bytes;
  if (header[1] != k->version)
    return fail_with(e, EXIT_MISSING, "%s: llm.c token file of version %d; magic %d goes with version %d, which this "
                     "program reads: write the file again with llm.c's current dev/data script", f->path, header[1],
                     k->magic, k->version);
  if (header[2] < 0 || count < 2)
    return fail_with(e, EXIT_MISSING, "%s: its header counts %lld tokens; at least 2 are needed", f->path, count);
  if (bytes != want)
    return fail_with(e, EXIT_MISSING, "%s %s: its header counts %lld %s tokens of %d bytes, so the file should have "
                     "%lld bytes, but it has %lld; copy or write it again", f->path, bytes < want ? "is cut short" :
                     "is longer than it says", count, k->name, k->token_bytes, want, bytes);
  f->token_bytes = k->token_bytes;
  f->offset_bytes = TOKEN_FILE_HEADER_BYTES;
  f->tokens_numel = count;
  return true;
}
// Sets token_bytes, offset_bytes, tokens_numel and masked from the first bytes of a file and its size.
static inline bool token_file_layout(TokenFile *f, const uint8_t *head, size_t head_bytes, Error *e) {
  const long long bytes = f->file_bytes;
  int32_t header[4] = {};
  if (head_bytes >= sizeof header) memcpy(header, head, sizeof header);
  if (head_bytes >= 8 && !memcmp(head, token_file_llmq, 8)) return token_file_llmq_layout(f, head, head_bytes, e);
  for (const TokenFileKind &k : token_file_kinds)
    if (header[0] == k.magic) return token_file_llmc_layout(f, &k, header, e);
  const char *misnomer = token_file_misnomer(head, head_bytes);
  if (misnomer)
    return fail_with(e, EXIT_MISSING, "%s is %s; expected: an llm.c token file (magic %d or %d) or bare uint16 tokens "
                     "(nanoGPT)", f->path, misnomer, token_file_kinds[0].magic, token_file_kinds[1].magic);
  if (token_file_has_layout(header, bytes))
    return fail_with(e, EXIT_MISSING, "%s has the header of an llm.c token file, version %d, %d tokens, but the "
                     "unknown magic %d; expected %d (GPT-2) or %d (Llama 3)", f->path, header[1], header[2], header[0],
                     token_file_kinds[0].magic, token_file_kinds[1].magic);
  if (bytes % 2)
    return fail_with(e, EXIT_MISSING, "%s is cut short: %lld bytes is not a whole number of uint16 tokens (and there "
                     "is no llm.c header)", f->path, bytes);
  if (bytes < 4) return fail_with(e, EXIT_MISSING, "%s holds 1 token; at least 2 are needed", f->path);
  f->token_bytes = 2;
  f->tokens_numel = bytes / 2;
  return true;
}
bool token_file_open(TokenFile *f, Error *e) {
  uint8_t head[TOKEN_FILE_HEAD_BYTES];
  char idx[DATA_PATH_BYTES + 8];
  size_t bytes;
  f->offset_bytes = 0;
  f->masked = false;
  if ((f->fd = data_open(f->path, &bytes, e)) < 0) return false;
  f->file_bytes = (int64_t)bytes;
  const size_t n = bytes < sizeof head ? bytes : sizeof head;
  bool ok = file_read(f->fd, head, (int64_t)n, 0);
  if (!ok) fail_with(e, EXIT_MISSING, "cannot read %s: %s", f->path, strerror(errno));
  data_format(idx, sizeof idx, "%.*s.idx", (int)strlen(f->path) - (name_ends(f->path, ".bin") ? 4 : 0), f->path);
  char magic[9] = "";
  const int beside = open(idx, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const bool megatron = beside >= 0 && file_read(beside, magic, 9, 0) && !memcmp(magic, megatron_magic, 9);
  ok = ok && (megatron ? token_file_megatron_layout(f, idx, beside, e) : token_file_layout(f, head, n, e));
  if (beside >= 0) close(beside);
  const int64_t middle = f->file_bytes / 2, rest = min64(f->file_bytes - middle, (int64_t)sizeof head);
  if (ok && !(ok = file_read(f->fd, head, rest, middle)))
    fail_with(e, EXIT_MISSING, "cannot read %s: %s", f->path, strerror(errno));
  f->hash = ok ? data_hash(0, head, (size_t)rest) : 0;
  if (!ok) close(f->fd), f->fd = -1;
  return ok;
}

// ================================================================================================ 3 reading
static inline void token_file_read(const TokenFile *f, void *to, int64_t bytes, int64_t at) {
  if (file_read(f->fd, to, bytes, at)) return;
  if (errno == ENODATA)
    die_missing("%s has become shorter since the start, when it had %lld bytes: nothing could be read at byte %lld; "
                "put the whole file there and continue with --resume", f->path, (long long)f->file_bytes,
                (long long)at);
  die_missing("%s cannot be read at byte %lld: %s", f->path, (long long)at, strerror(errno));
}
// The file with token i of the stream.
static inline const TokenFile *split_file_at(const Split *s, int64_t i) {
  int low = 0, high = s->files - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (s->file[middle].first <= i) low = middle;
    else high = middle - 1;
  }
  return &s->file[low];
}
// Writes the error for token number `at` of f, whose id is not below the vocabulary. largest: the largest id that was
// read.
static inline void token_file_bad_id(const TokenFile *f, int64_t at, uint32_t id, uint32_t largest, int vocab_size,
                                     Error *e) {
  enum { VOCAB_MAX = 1 << 24 };                 // of --vocab_size
  const char *of = f->file_bytes > (1 << 24) ? " of those read" : "";
  if (largest >= VOCAB_MAX)
    fail_with(e, EXIT_USAGE, "%s: token %lld is %u, not below --vocab_size %d, and its largest token%s is %u, which no "
              "vocabulary has: it is damaged, or holds no tokens", f->path, (long long)at, id, vocab_size, of, largest);
  else
    fail_with(e, EXIT_USAGE, "%s: token %lld is %u, not below --vocab_size %d: the file has another vocabulary; its "
              "largest token%s is %u, so --vocab_size must be at least %u (GPT-2's is 50257)", f->path, (long long)at,
              id, vocab_size, of, largest, largest + 1);
}
// Ends all ranks with an error: one of `ids`, tokens [at, at + n) of f, is not below the vocabulary.
static inline void split_bad_id(const Split *s, const TokenFile *f, int64_t at, int64_t n, const int32_t *ids) {
  Error line = {};
  uint32_t largest = 0;
  int64_t first = 0;
  for (int64_t i = 0; i < n; i++) largest = (uint32_t)ids[i] > largest ? (uint32_t)ids[i] : largest;
  while ((uint32_t)ids[first] < (uint32_t)s->vocab_size) first++;
  token_file_bad_id(f, at + first, (uint32_t)ids[first], largest, s->vocab_size, &line);
  die_user("%s", line.text);
}
enum { TOKEN_READ_NUMEL = 4096 };                 // tokens of one read, a multiple of 16
// Reads the first tokens of [first, first + n) of a stream in files, up to TOKEN_READ_NUMEL or a file's end, and
// returns how many. ids: receives them; targets: NULL, or receives them as split_target gives them. Both:
// (TOKEN_READ_NUMEL).
static inline int64_t split_read_some(const Split *s, int64_t first, int64_t n, int32_t *__restrict ids,
                                      int32_t *__restrict targets) {
  alignas(64) uint32_t raw[TOKEN_READ_NUMEL];
  uint8_t bits[TOKEN_READ_NUMEL / 8 + 1];
  const TokenFile *f = split_file_at(s, first);
  const int64_t at = first - f->first, count = min64(min64(n, f->tokens_numel - at), TOKEN_READ_NUMEL);
  const uint16_t *const half = (const uint16_t *)raw;
  const uint32_t last = (uint32_t)s->vocab_size - 1;
  uint32_t outside = 0;                          // the top bit is set if an id or (last - id) is negative
  token_file_read(f, raw, count * f->token_bytes, f->offset_bytes + at * f->token_bytes);
  memset((char *)raw + count * f->token_bytes, 0, (size_t)(-count & 15) * (size_t)f->token_bytes);
  for (int64_t i = 0; i < count && f->token_bytes == 2; i += 16)       // in groups of 16, so that it is vectorised
    for (int k = 0; k < 16; k++) ids[i + k] = half[i + k];
  if (f->token_bytes == 4) memcpy(ids, raw, sizeof *ids * (size_t)((count + 15) & ~15));
  for (int64_t i = 0; i < count; i += 16)
    for (int k = 0; k < 16; k++) outside |= (uint32_t)ids[i + k] | (last - (uint32_t)ids[i + k]);
  if (s->vocab_size && outside >> 31) split_bad_id(s, f, at, count, ids);
  if (!targets) return count;
  memcpy(targets, ids, sizeof *ids * (size_t)count);
  if (!f->masked) return count;
  const int64_t masks = f->offset_bytes + f->tokens_numel * f->token_bytes;
  token_file_read(f, bits, (at + count - 1) / 8 - at / 8 + 1, masks + at / 8);
  for (int64_t i = 0; i < count; i++) if (!(bits[(at + i) / 8 - at / 8] >> (at + i) % 8 & 1)) targets[i] = -1;
  return count;
}
// Reads tokens [first, first + n) of the stream into ids (n); with `targets` as split_target gives them.
static inline void split_read(const Split *s, int64_t first, int64_t n, int32_t *ids, bool targets) {
  int32_t plain[TOKEN_READ_NUMEL], masked[TOKEN_READ_NUMEL];
  for (int64_t i = first; i < first + n && !s->files; i++)
    ids[i - first] = targets ? split_target(s, i) : split_token(s, i);
  for (int64_t count; n > 0 && s->files; first += count, ids += count, n -= count) {
    count = split_read_some(s, first, n, plain, targets ? masked : NULL);
    memcpy(ids, targets ? masked : plain, sizeof *ids * (size_t)count);
  }
}
// Reads a sample: inputs are tokens [first, first + n), targets are tokens [first + 1, first + n + 1). Both: (n).
static inline void split_read_sample(const Split *s, int64_t first, int64_t n, int32_t *inputs, int32_t *targets) {
  int32_t ids[TOKEN_READ_NUMEL], masked[TOKEN_READ_NUMEL];
  if (!s->files) {
    split_read(s, first, n, inputs);
    split_read(s, first + 1, n, targets, true);
  }
  for (int64_t at = 0, count; at <= n && s->files; at += count) {
    count = split_read_some(s, first + at, n + 1 - at, ids, masked);
    memcpy(inputs + at, ids, sizeof *ids * (size_t)min64(count, n - at));
    memcpy(targets + (at ? at - 1 : 0), masked + !at, sizeof *ids * (size_t)(count - !at));
  }
}
// Asks the kernel to read tokens [first, first + n) into the page cache, without waiting.
static inline void split_read_ahead(const Split *s, int64_t first, int64_t n) {
  for (int64_t count; n > 0 && s->files; first += count, n -= count) {
    const TokenFile *f = split_file_at(s, first);
    const int64_t at = first - f->first;
    count = min64(n, f->tokens_numel - at);
    posix_fadvise(f->fd, f->offset_bytes + at * f->token_bytes, count * f->token_bytes, POSIX_FADV_WILLNEED);
  }
}

// `bytes` bytes of a stream in files as they would be in memory (split_bytes), from `from` on. ids: scratch.
enum { COPY_SCRATCH_NUMEL = 4096 };               // tokens it has room for besides those of `bytes`
// The first id that is not below the vocabulary among those that were read, and the largest of them.
struct BadId { int vocab_size; int64_t at; uint32_t id, largest; };
static inline void split_copy(const Split *s, int64_t from, int64_t bytes, uint8_t *to, int32_t *ids, BadId *bad) {
  const int64_t width = s->token_bytes, end = from + bytes, masks = s->tokens_numel * width;
  const int64_t first = from / width, last = min64((end + width - 1) / width, s->tokens_numel);
  if (first < last) split_read(s, first, last - first, ids);
  for (int64_t i = first; i < last; i++) {
    const uint32_t id = (uint32_t)ids[i - first];
    if (id >= (uint32_t)bad->vocab_size && !bad->largest) bad->at = i, bad->id = id;
    if (id >= (uint32_t)bad->vocab_size && id > bad->largest) bad->largest = id;
    for (int64_t k = i * width; k < (i + 1) * width; k++)
      if (k >= from && k < end) to[k - from] = (uint8_t)(id >> 8 * (k - i * width));
  }
  for (int64_t at = from > masks ? from : masks, n; at < end; at += n) {
    n = min64(end - at, COPY_SCRATCH_NUMEL / 8);
    const int64_t token = (at - masks) * 8, tokens = min64(8 * n, s->tokens_numel - token);
    split_read(s, token, tokens, ids, true);
    memset(to + at - from, 0, (size_t)n);
    for (int64_t i = 0; i < tokens; i++) to[at - from + i / 8] |= (uint8_t)((ids[i] != -1) << i % 8);
  }
}
uint64_t split_hash(const Split *s, BadId *bad) {
  const size_t bytes = split_bytes(s), most = 65536, blocks = bytes <= most * 256 ? 1 : 256;
  const size_t block = blocks == 1 ? bytes : most;
  const uint8_t *p = (const uint8_t *)s->tokens;
  uint8_t *copy = s->files ? (uint8_t *)data_alloc(block, 1) : NULL;
  int32_t *ids = s->files ? (int32_t *)data_alloc(block / (size_t)s->token_bytes + COPY_SCRATCH_NUMEL, 4) : NULL;
  uint64_t h = data_mix(bytes * 8 + (uint64_t)s->token_bytes);
  for (size_t i = 0; i < blocks; i++) {
    const size_t at = blocks == 1 ? 0 : (bytes - block) / (blocks - 1) * i;
    if (s->files) split_copy(s, (int64_t)at, (int64_t)block, copy, ids, bad);
    h = data_hash(h, s->files ? copy : p + at, block);
  }
  free(copy);
  free(ids);
  return h;
}

bool split_check_mask(const Split *s, const char *name, Error *e) {
  enum { NUMEL = 4096 };
  int32_t ids[NUMEL];
  bool trained = !s->masked || s->tokens_numel < 2;
  for (int64_t at = 1; !trained && at < s->tokens_numel; at += NUMEL) {
    const int64_t n = min64(NUMEL, s->tokens_numel - at);
    split_read(s, at, n, ids, true);
    for (int64_t i = 0; i < n; i++) trained = trained || ids[i] != -1;
  }
  return trained ||
         fail_with(e, EXIT_USAGE, "%s: none of its %lld tokens is trained on", name, (long long)s->tokens_numel);
}

bool split_open_files(Split *s, int vocab_size, Error *e) {
  BadId bad = {vocab_size, 0, 0, 0};
  for (int i = 0; i < s->files; i++) s->file[i].fd = -1;
  struct rlimit limit;
  if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max && s->files > 200)
    limit.rlim_cur = limit.rlim_max, setrlimit(RLIMIT_NOFILE, &limit);
  s->tokens_numel = s->token_bytes = 0;
  s->masked = false;
  for (int i = 0; i < s->files; i++) {
    TokenFile *f = &s->file[i];
    if (!token_file_open(f, e)) return false;
    f->first = s->tokens_numel;
    s->tokens_numel += f->tokens_numel;
    s->masked = s->masked || f->masked;
    if (f->token_bytes > s->token_bytes) s->token_bytes = f->token_bytes;
    liveness_progress();
  }
  s->vocab_size = 0;                             // bad ids are named below
  s->hash = split_hash(s, &bad);
  s->vocab_size = s->token_bytes == 2 && vocab_size > 65535 ? 0 : vocab_size;
  if (!bad.largest) return true;
  const TokenFile *f = split_file_at(s, bad.at);
  token_file_bad_id(f, bad.at - f->first, bad.id, bad.largest, vocab_size, e);
  return false;
}
