// dataloader.h: what the model trains on: reads a corpus that corpus_find.h has found, turns text into tokens, cuts the
// tokens into samples and validation windows.
//
//   1 random numbers, hashes
//   2 token files       llm.c, llmq and nanoGPT .bin, mapped and checked
//   3 text              words and lines, encoding; conversations
//   4 generated text    a source of sentences whose entropy is known exactly
//   5 cache             tokenizer and ids of a text, found again by its hash
//   6 corpus            the order of the search; hashing, passing to other processes
//   7 sampler           how conversations are packed, and which samples make a microbatch
//   8 evaluation        windows that cover every token once
//
// Conventions
//   - One process loads (corpus_load); the others get the result as one block of bytes (corpus_image, corpus_adopt).
//     No communication happens here and nothing here knows a rank.
//   - A split is one stream of ids. Text is preceded by one newline as context, so each of its tokens has a token in
//     front and is predicted exactly once; a token file has no such context and its first token is not predicted.
//     Either way tokens 1 .. tokens_numel-1 are the targets, or those of them that a mask says are trained on.
//   - A tokenizer is trained on the text, or given (CorpusOptions.tokenizer). With token files and random tokens a
//     given one only serves prompts and samples.
//   - No library random generator is used: all choices are functions of (seed, stream, counter).
//   - A function that can fail because of what the user gave returns false with one line and the exit code in a
//     DataError. It leaves nothing allocated.
//
// Defines: Split, Corpus, corpus_load, corpus_load_tokenizer, corpus_image_bytes, corpus_image,
// corpus_adopt, corpus_free, Sampler, sampler_bytes, sampler_init, sampler_set_epoch, sampler_steps_per_epoch,
// microbatch_fill, eval_windows_numel, eval_window_fill.
#pragma once
#include <time.h>

#include "chat.h"
#include "corpus_find.h"
#include "files.h"
#include "tokenizer_json.h"

// ================================================================================================ 1 random, hashes
// SplitMix64 (Steele, Lea, Flood 2014) read by position: the generator that starts in state `key`, at its i-th output.
static inline uint64_t data_mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
static const uint64_t DATA_GOLDEN = 0x9e3779b97f4a7c15u;
static inline uint64_t data_random(uint64_t key, uint64_t i) { return data_mix(key + (i + 1) * DATA_GOLDEN); }
// The key of stream `stream` of a seed. Streams and seeds may be small consecutive numbers.
static inline uint64_t data_key(uint64_t seed, uint64_t stream) {
  return data_mix(data_mix(seed + DATA_GOLDEN) ^ (stream * DATA_GOLDEN + 0x2545f4914f6cdd1du));
}
// Uniform over 0 .. n-1, n > 0; the bias is below n / 2^64.
static inline uint64_t data_below(uint64_t random, uint64_t n) {
  __extension__ typedef unsigned __int128 Wide;
  return (uint64_t)((Wide)random * n >> 64);
}

// A 64-bit hash that detects damage (not an attacker): four lanes of multiply and rotate, as in Collet's XXH64.
static inline uint64_t data_hash_round(uint64_t lane, uint64_t word) {
  lane += word * 0xc2b2ae3d27d4eb4fu;
  return (lane << 31 | lane >> 33) * 0x9e3779b185ebca87u;
}
enum : size_t { DATA_PIECE_BYTES = 1 << 26 };     // what is read before progress is counted: a disk may be slow
static inline uint64_t data_hash(uint64_t seed, const void *data, size_t bytes) {
  const uint8_t *p = (const uint8_t *)data;
  uint64_t lane[4] = {seed + 1, seed ^ 0x27d4eb2f165667c5u, seed + 0x85ebca77c2b2ae63u, ~seed}, words[4];
  size_t left = bytes;
  for (; left >= sizeof words; liveness_progress())
    for (size_t end = left - (left < DATA_PIECE_BYTES ? left : DATA_PIECE_BYTES);
         left >= end + sizeof words; p += sizeof words, left -= sizeof words) {
      memcpy(words, p, sizeof words);
      for (int i = 0; i < 4; i++) lane[i] = data_hash_round(lane[i], words[i]);
    }
  memset(words, 0, sizeof words);
  if (left) memcpy(words, p, left);
  uint64_t h = bytes;
  for (int i = 0; i < 4; i++) h = data_mix(data_hash_round(lane[i], words[i]) + h * 5);
  return h;
}

// ================================================================================================ 2 token files
// One stream of tokens. Zeroed, it is an absent split.
struct Split {
  const void *tokens;          // (tokens_numel) uint16_t or uint32_t
  int token_bytes;             // 2 or 4
  int64_t tokens_numel;        // context token included
  bool masked;                 // behind the tokens lies a bit for each, lowest first: whether it is trained on
  int64_t documents;           // conversations; then behind the mask lies a bit for each token: whether one begins
  bool has_context;            // token 0 is not of the text: a newline, or what it begins with
  int64_t words, lines;        // white-space separated words and lines of the text; 0 where unknown (token files, or
                               // no blanks between words)
  int64_t text_bytes;          // 0 where unknown
  double oracle_nats;          // generated text: mean nats a target costs the source itself on this split; else 0
  uint64_t hash;               // of the tokens (sampled, see split_hash)
  // Where the tokens lie: in `owned` memory, or in the mapped file `path` behind offset_bytes.
  void *owned;
  char path[DATA_PATH_BYTES];
  size_t file_bytes, offset_bytes;
  void *mapped;
};

static inline int32_t split_token(const Split *s, int64_t i) {
  return s->token_bytes == 2 ? ((const uint16_t *)s->tokens)[i] : (int32_t)((const uint32_t *)s->tokens)[i];
}
// Bytes of tokens and mask, which lie one behind the other: in memory, in the cache, in llmq's files.
static inline size_t split_bytes(const Split *s) {
  const size_t bits = (size_t)(s->tokens_numel + 7) / 8;
  return (size_t)s->tokens_numel * (size_t)s->token_bytes + (s->masked ? bits : 0) + (s->documents ? bits : 0);
}
static inline uint8_t *split_bits(const Split *s, bool begins) {
  return (uint8_t *)s->tokens + s->tokens_numel * s->token_bytes + (begins ? (s->tokens_numel + 7) / 8 : 0);
}
static inline bool split_trained(const Split *s, int64_t i) {
  return !s->masked || (split_bits(s, false)[i / 8] >> i % 8 & 1);
}
static inline bool split_begins(const Split *s, int64_t i) {
  return s->documents && (split_bits(s, true)[i / 8] >> i % 8 & 1);
}
// Token i as a target: -1, which the loss ignores, where it is not trained on.
static inline int32_t split_target(const Split *s, int64_t i) { return split_trained(s, i) ? split_token(s, i) : -1; }
// Tokens that are predicted: all but the first.
static inline int64_t split_targets_numel(const Split *s) { return s->tokens_numel > 0 ? s->tokens_numel - 1 : 0; }

static inline void split_free(Split *s) {
  free(s->owned);
  if (s->mapped) munmap(s->mapped, s->file_bytes);
  *s = {};
}

// Identifies a stream and its mask without reading gigabytes: their length, and 256 evenly spaced blocks of 64 KiB (all
// of a stream of up to 16 MiB).
static inline uint64_t split_hash(const Split *s) {
  const size_t block = 65536, blocks = 256, bytes = split_bytes(s);
  const uint8_t *p = (const uint8_t *)s->tokens;
  uint64_t h = data_mix(bytes * 8 + (uint64_t)s->token_bytes);
  if (bytes <= block * blocks) return data_hash(h, p, bytes);
  for (size_t i = 0; i < blocks; i++) h = data_hash(h, p + (bytes - block) / (blocks - 1) * i, block);
  return h;
}

// The llm.c token file: 256 int32 (magic, version, count, zeros), then the tokens.
struct TokenFileKind { int32_t magic, version; int token_bytes; const char *name; };
static const TokenFileKind token_file_kinds[] = {{20240520, 1, 2, "GPT-2"}, {20240801, 7, 4, "Llama 3"}};
enum { TOKEN_FILE_HEADER_BYTES = 1024 };

// llmq's token file: "BIN.TOK\n", int32 version (1, 2), bytes of a token, count, vocabulary, whether there are masks;
// from byte 1024 on int32 tokens, then the mask as a Split has it. Bit i is of token i, as llmq's tokenizer writes it.
static const char token_file_llmq[] = "BIN.TOK\n";
static inline bool token_file_llmq_layout(Split *s, DataError *e) {
  int32_t header[7] = {};
  memcpy(header, s->mapped, s->file_bytes < sizeof header ? s->file_bytes : sizeof header);
  s->token_bytes = 4;
  s->offset_bytes = TOKEN_FILE_HEADER_BYTES;
  s->tokens_numel = header[4];
  s->masked = header[6] == 1;
  if ((header[2] != 1 && header[2] != 2) || header[3] != 4 || header[4] < 2)
    return data_fail(e, EXIT_MISSING, "%s: llmq's token file of version %d with %d tokens of %d bytes; expected: "
                     "version 1 or 2, at least 2 tokens of 4 bytes", s->path, header[2], header[4], header[3]);
  if (s->file_bytes != TOKEN_FILE_HEADER_BYTES + split_bytes(s))
    return data_fail(e, EXIT_MISSING, "%s: its header counts %d tokens of 4 bytes%s, so the file should have %zu "
                     "bytes, but it has %zu; copy or write it again", s->path, header[4],
                     s->masked ? " and a mask" : "",
                     TOKEN_FILE_HEADER_BYTES + split_bytes(s), s->file_bytes);
  return true;
}

// What a .bin that is not an llm.c token file clearly is instead; NULL: it may be bare uint16 tokens (nanoGPT).
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
static inline bool token_file_has_layout(const int32_t header[3], long long bytes) {
  const long long rest = bytes - TOKEN_FILE_HEADER_BYTES, count = header[2];
  return header[1] > 0 && header[1] < 1000 && count > 0 && (rest == 2 * count || rest == 4 * count);
}

// Fills token_bytes, offset_bytes, tokens_numel from the first bytes and the size of a mapped file.
static inline bool token_file_layout(Split *s, DataError *e) {
  const uint8_t *p = (const uint8_t *)s->mapped;
  const long long bytes = (long long)s->file_bytes;
  int32_t header[3] = {};
  if (s->file_bytes >= sizeof header) memcpy(header, p, sizeof header);
  if (s->file_bytes >= 8 && !memcmp(p, token_file_llmq, 8)) return token_file_llmq_layout(s, e);
  for (const TokenFileKind &k : token_file_kinds) {
    if (header[0] != k.magic) continue;
    if (header[1] != k.version)
      return data_fail(e, EXIT_MISSING, "%s: llm.c token file of version %d; magic %d goes with version %d, which this "
                       "program reads: write the file again with llm.c's current dev/data script", s->path, header[1],
                       k.magic, k.version);
    long long want = TOKEN_FILE_HEADER_BYTES + (long long)header[2] * k.token_bytes;
    if (header[2] < 2)
      return data_fail(e, EXIT_MISSING, "%s: its header counts %d tokens; at least 2 are needed", s->path, header[2]);
    if (bytes != want)
      return data_fail(e, EXIT_MISSING,
                       "%s %s: its header counts %d %s tokens of %d bytes, so the file should have %lld "
                       "bytes, but it has %lld; copy or write it again",
                       s->path, bytes < want ? "is cut short" : "is longer than it says", header[2], k.name,
                       k.token_bytes, want, bytes);
    s->token_bytes = k.token_bytes;
    s->offset_bytes = TOKEN_FILE_HEADER_BYTES;
    s->tokens_numel = header[2];
    return true;
  }
  const char *misnomer = token_file_misnomer(p, s->file_bytes);
  if (misnomer)
    return data_fail(e, EXIT_MISSING, "%s is %s; expected: an llm.c token file (magic %d or %d) or bare uint16 tokens "
                     "(nanoGPT)", s->path, misnomer, token_file_kinds[0].magic, token_file_kinds[1].magic);
  if (token_file_has_layout(header, bytes))
    return data_fail(e, EXIT_MISSING, "%s has the header of an llm.c token file, version %d, %d tokens, but the "
                     "unknown magic %d; expected %d (GPT-2) or %d (Llama 3)", s->path, header[1], header[2],
                     header[0], token_file_kinds[0].magic, token_file_kinds[1].magic);
  if (bytes % 2)
    return data_fail(e, EXIT_MISSING,
                     "%s is cut short: %lld bytes is not a whole number of uint16 tokens (and there is no "
                     "llm.c header)",
                     s->path, bytes);
  if (bytes < 4) return data_fail(e, EXIT_MISSING, "%s holds 1 token; at least 2 are needed", s->path);
  s->token_bytes = 2;
  s->offset_bytes = 0;
  s->tokens_numel = bytes / 2;
  return true;
}

// Reads every token once. Refuses ids that are not below vocab_size, and names the first of them and the largest.
static inline bool split_check_ids(const Split *s, int vocab_size, int threads, DataError *e) {
  if (s->token_bytes == 2 && vocab_size > 65535) return true;
  uint32_t largest = 0, *const of_all = &largest;
  parallel(threads, [=](int thread, int all) {
    const ThreadShare share = thread_share(s->tokens_numel, 1, thread, all);
    uint32_t mine = 0;
    for (int64_t i = share.begin; i < share.end; i++) {
      const uint32_t id = (uint32_t)split_token(s, i);
      mine = id > mine ? id : mine;
    }
    thread_max(of_all, mine);
  });
  if (largest < (uint32_t)vocab_size) return true;
  int64_t at = 0;
  while ((uint32_t)split_token(s, at) < (uint32_t)vocab_size) at++;
  return data_fail(e, EXIT_USAGE,
                   "%s: token %lld is %u, not below --vocab_size %d: the file has another vocabulary; its "
                   "largest token is %u, so --vocab_size must be at least %u (GPT-2's is 50257)",
                   s->path, (long long)at, (uint32_t)split_token(s, at), vocab_size, largest, largest + 1);
}

// Refuses a split none of whose targets is trained on.
static inline bool split_check_mask(const Split *s, const char *name, DataError *e) {
  int64_t i = 1;
  while (i < s->tokens_numel && !split_trained(s, i)) i++;
  return i < s->tokens_numel || s->tokens_numel < 2 ||
         data_fail(e, EXIT_USAGE, "%s: none of its %lld tokens is trained on", name, (long long)s->tokens_numel);
}

// Opens the token file s->path. Does not check the ids.
static inline bool split_map(Split *s, DataError *e) {
  s->mapped = data_map(s->path, &s->file_bytes, e);
  if (!s->mapped) return false;
  if (!token_file_layout(s, e)) { split_free(s); return false; }
  s->tokens = (const uint8_t *)s->mapped + s->offset_bytes;
  s->hash = split_hash(s);
  return true;
}

// ================================================================================================ 3 text
// Words as wc counts them, and lines; a last line without '\n' counts.
static inline void text_count(const uint8_t *p, size_t bytes, int64_t *words, int64_t *lines) {
  int64_t w = 0, l = 0;
  bool space = true;
  for (size_t i = 0; i < bytes; liveness_progress())
    for (const size_t end = bytes - i < DATA_PIECE_BYTES ? bytes : i + DATA_PIECE_BYTES; i < end; i++) {
      bool now = p[i] == ' ' || (p[i] >= '\t' && p[i] <= '\r');
      w += space && !now;
      l += p[i] == '\n';
      space = now;
    }
  *words = w;
  *lines = l + (bytes && p[bytes - 1] != '\n');
}

// If words are longer than this on average, blanks do not separate them (Chinese, genomes): they are not counted.
enum { MOST_BYTES_A_WORD = 32 };

// Encodes a text, after one token of context (what the tokenizer begins a text with, or a newline), into memory that
// the split owns. It works in chunks that end where the tokenizer allows a cut, so the four-byte ids of the encoder
// exist for one chunk at a time.
static inline void split_encode(Split *s, const Tokenizer *t, const Text *text, int threads) {
  const size_t chunk_bytes = 16 << 20;
  s->token_bytes = t->vocab_size <= 65536 ? 2 : 4;
  s->has_context = true;
  s->text_bytes = (int64_t)text->numel;
  text_count(text->bytes, text->numel, &s->words, &s->lines);
  int32_t *ids = NULL;
  size_t room = 0, capacity = 0, at = 0;
  uint8_t *out = NULL;
  int64_t n = -1;                                // the context token is encoded first
  do {
    const uint8_t *from = text->bytes + at;
    size_t bytes = n < 0 ? 0 : text->numel - at;
    if (bytes > chunk_bytes) bytes = tokenizer_cut(t, text->bytes, text->numel, at + chunk_bytes) - at;
    const size_t most = 1 + tokenizer_ids_most(t, bytes);
    if (most > room) { free(ids); ids = (int32_t *)data_alloc(room = most, sizeof *ids); }
    int64_t count = n < 0 ? tokenizer_begin(t, from, 0, ids) : tokenizer_encode(t, from, bytes, ids, threads);
    if (n < 0) { CHECK(count == 1, "a newline is %lld tokens", (long long)count); n = 0; }
    at += bytes;
    liveness_progress();
    size_t need = (size_t)(n + count) * (size_t)s->token_bytes;
    if (need > capacity) {
      capacity = need + need / 2;
      if (!(out = (uint8_t *)realloc(out, capacity))) die_missing("data: no memory for %zu bytes of tokens", capacity);
    }
    for (int64_t i = 0; i < count; i++, n++) {
      if (s->token_bytes == 2) ((uint16_t *)out)[n] = (uint16_t)ids[i];
      else ((uint32_t *)out)[n] = (uint32_t)ids[i];
    }
  } while (at < text->numel);
  free(ids);
  uint8_t *fitted = (uint8_t *)realloc(out, (size_t)n * (size_t)s->token_bytes);
  s->tokens = s->owned = fitted ? fitted : out;
  s->tokens_numel = n;
  s->hash = split_hash(s);
}

// Tokens of conversations before they are a Split's. flags: 1 trained on, 2 a conversation begins.
struct ChatStream { int32_t *ids; uint8_t *flags; int64_t count, room; };
static inline void chat_stream_add(ChatStream *s, const ChatTokens *k) {
  if (s->count + k->count > s->room) {
    s->room = 2 * (s->count + k->count);
    s->ids = (int32_t *)bpe_resize(s->ids, (size_t)s->room, sizeof *s->ids);
    s->flags = (uint8_t *)bpe_resize(s->flags, (size_t)s->room, 1);
  }
  memcpy(s->ids + s->count, k->ids, (size_t)k->count * sizeof *k->ids);
  for (int64_t i = 0; i < k->count; i++) s->flags[s->count + i] = (uint8_t)(k->trained[i] | (i ? 0 : 2));
  s->count += k->count;
}
// Encodes lines of conversations into memory that the split owns. line: that of the file before the first; counted on.
static inline bool split_encode_chats(Split *s, const Chat *c, const Text *text, const char *path, int64_t *line,
                                      int threads, DataError *e) {
  enum { LINES = 4096 };
  ChatTokens *const k = (ChatTokens *)calloc(LINES, sizeof *k);
  const uint8_t **const at = (const uint8_t **)data_alloc(LINES + 1, sizeof *at), *p = text->bytes;
  const uint8_t *const end = p + text->numel;
  ChatStream all = {};
  bool ok = k != NULL;
  while (ok && p < end) {
    int count = 0;
    for (at[0] = p; count < LINES && p < end; at[++count] = p) {
      const uint8_t *newline = (const uint8_t *)memchr(p, '\n', (size_t)(end - p));
      p = newline ? newline + 1 : end;
    }
    parallel_for(threads, 0, count, 1, [=](int64_t i) {
      size_t n = (size_t)(at[i + 1] - at[i]);
      while (n && strchr(" \t\r\n", at[i][n - 1])) n--;
      if (n) chat_line(c, &k[i], at[i], n);
    });
    for (int i = 0; i < count; i++) {
      ++*line;
      if (ok && k[i].fault[0])
        ok = data_fail(e, EXIT_MISSING, "%s, line %lld: %s", path, (long long)*line, k[i].fault);
      if (ok && k[i].count) chat_stream_add(&all, &k[i]), s->documents++;
      free(k[i].ids);
      free(k[i].trained);
      k[i] = ChatTokens{};
    }
    liveness_progress();
  }
  if (ok && !s->documents) ok = data_fail(e, EXIT_MISSING, "%s: no line is a conversation", path);
  if (ok) {
    s->masked = true;
    s->token_bytes = c->tokenizer->vocab_size <= 65536 ? 2 : 4;
    s->tokens_numel = all.count;
    s->tokens = s->owned = data_alloc(split_bytes(s), 1);
    memset(split_bits(s, false), 0, (size_t)(all.count + 7) / 8 * 2);
    for (int64_t i = 0; i < all.count; i++) {
      if (s->token_bytes == 2) ((uint16_t *)s->owned)[i] = (uint16_t)all.ids[i];
      else ((uint32_t *)s->owned)[i] = (uint32_t)all.ids[i];
      split_bits(s, false)[i / 8] |= (uint8_t)((all.flags[i] & 1) << i % 8);
      split_bits(s, true)[i / 8] |= (uint8_t)((all.flags[i] >> 1) << i % 8);
    }
  }
  free(all.ids);
  free(all.flags);
  free(k);
  free(at);
  return ok;
}

// ================================================================================================ 4 generated text
// Sentences such as " the old miller carries a lantern under the bridge .\n", from a source that remembers in which
// part of the sentence it is and what that part depends on. Each word is drawn from a few weighted successors:
//   det1 -> adjective -> subject -> verb -> det2 -> object -> stop -> newline
//   det1 -> subject without adjective; object -> preposition -> det3 -> place -> stop
// An object depends on the verb across the determiner, a place on the preposition: a model that looks at the last token
// alone stays above the source's entropy. A state's successors are different words, so the state is a function of the
// text so far and the entropy of the text is that of the chain. Every sentence starts afresh, so by renewal the rate is
//   (expected nats of a sentence) / (expected tokens of a sentence), and both are finite sums over the states.
// A word is always written " word", which is one piece, so its number of tokens does not depend on its neighbours; only
// by Llama's pattern are the stop and its newline one piece.
enum { GEN_DETS = 4, GEN_ADJS = 16, GEN_NOUNS = 32, GEN_VERBS = 16, GEN_PREPS = 6, GEN_MAX_EDGES = 8 };
enum { // states, in an order that every edge but the last one follows
  GEN_NEWLINE,
  GEN_DET1,
  GEN_ADJ = GEN_DET1 + GEN_DETS,
  GEN_SUBJECT = GEN_ADJ + GEN_ADJS,
  GEN_VERB = GEN_SUBJECT + GEN_NOUNS,
  GEN_DET2 = GEN_VERB + GEN_VERBS,
  GEN_OBJECT = GEN_DET2 + GEN_VERBS * GEN_DETS,
  GEN_PREP = GEN_OBJECT + GEN_NOUNS,
  GEN_DET3 = GEN_PREP + GEN_PREPS,
  GEN_PLACE = GEN_DET3 + GEN_PREPS * GEN_DETS,
  GEN_STOP = GEN_PLACE + GEN_NOUNS,
  GEN_STATES
};
static const char *const gen_dets[GEN_DETS] = {" the", " this", " every", " one"};
static const char *const gen_adjs[GEN_ADJS] = {" old",  " small",  " quiet",  " bright", " tired",  " tall",
                                               " grey", " clever", " young",  " heavy",  " broken", " gentle",
                                               " cold", " proud",  " hidden", " swift"};
static const char *const gen_nouns[GEN_NOUNS] = {
    " miller",  " river", " lantern", " fox",    " bridge", " sailor", " garden", " letter",
    " teacher", " stone", " horse",   " window", " baker",  " forest", " boat",   " clock",
    " child",   " hill",  " bell",    " crow",   " doctor", " road",   " basket", " singer",
    " tower",   " coat",  " farmer",  " island", " mirror", " wolf",   " kettle", " market"};
static const char *const gen_verbs[GEN_VERBS] = {" carries", " follows", " finds", " watches", " paints", " remembers",
  " leaves", " mends", " hears", " sells", " crosses", " guards", " wants", " counts", " hides", " opens"};
static const char *const gen_preps[GEN_PREPS] = {" under", " near", " behind", " beyond", " inside", " above"};

// A tokenizer trained on the text ends with so many tokens: each word is one then. A plan knows it without the text.
enum { GEN_VOCAB_MOST = 484 };
struct GenState { const char *word; int edges, next[GEN_MAX_EDGES]; uint32_t weight[GEN_MAX_EDGES], total; };
struct GenSource { GenState state[GEN_STATES]; };

static inline void gen_edge(GenState *s, int next, uint32_t weight) {
  CHECK(s->edges < GEN_MAX_EDGES, "generated text: a state has more than %d successors", GEN_MAX_EDGES);
  s->next[s->edges] = next;
  s->weight[s->edges++] = weight;
  s->total += weight;
}
// `count` different successors among first .. first+n, chosen by `key`; the r-th one from rank on weighs 1/r (times
// 840, which 1 .. 8 divide).
static inline void gen_edges(GenState *s, uint64_t key, int first, int n, int count, int rank) {
  int order[GEN_NOUNS];
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = 0; i < count; i++) {
    int j = i + (int)data_below(data_random(key, (uint64_t)i), (uint64_t)(n - i)), x = order[i];
    order[i] = order[j];
    order[j] = x;
    gen_edge(s, first + order[i], 840u / (uint32_t)(rank + i));
  }
}

// The words and successors of all states.
static inline void gen_source_init(GenSource *g, uint64_t seed) {
  memset(g, 0, sizeof *g);
  GenState *s = g->state;
  uint64_t stream = 0;
  s[GEN_NEWLINE].word = "\n";
  gen_edges(&s[GEN_NEWLINE], data_key(seed, stream++), GEN_DET1, GEN_DETS, GEN_DETS, 1);
  for (int i = 0; i < GEN_DETS; i++) {
    s[GEN_DET1 + i].word = gen_dets[i];
    gen_edges(&s[GEN_DET1 + i], data_key(seed, stream++), GEN_ADJ, GEN_ADJS, 3, 1);
    gen_edges(&s[GEN_DET1 + i], data_key(seed, stream++), GEN_SUBJECT, GEN_NOUNS, 5, 2);
  }
  for (int i = 0; i < GEN_ADJS; i++) {
    s[GEN_ADJ + i].word = gen_adjs[i];
    gen_edges(&s[GEN_ADJ + i], data_key(seed, stream++), GEN_SUBJECT, GEN_NOUNS, 5, 1);
  }
  for (int i = 0; i < GEN_NOUNS; i++) {
    s[GEN_SUBJECT + i].word = s[GEN_OBJECT + i].word = s[GEN_PLACE + i].word = gen_nouns[i];
    gen_edges(&s[GEN_SUBJECT + i], data_key(seed, stream++), GEN_VERB, GEN_VERBS, 4, 1);
    gen_edges(&s[GEN_OBJECT + i], data_key(seed, stream++), GEN_PREP, GEN_PREPS, 3, 1);
    gen_edge(&s[GEN_OBJECT + i], GEN_STOP, s[GEN_OBJECT + i].total);
    gen_edge(&s[GEN_PLACE + i], GEN_STOP, 1);
  }
  // A verb chooses the determiner, and the object under each determiner alike; so does a preposition with its place.
  for (int i = 0; i < GEN_VERBS + GEN_PREPS; i++) {
    bool verb = i < GEN_VERBS;
    int k = verb ? i : i - GEN_VERBS, head = verb ? GEN_VERB + k : GEN_PREP + k;
    int det = verb ? GEN_DET2 + k * GEN_DETS : GEN_DET3 + k * GEN_DETS;
    s[head].word = verb ? gen_verbs[k] : gen_preps[k];
    gen_edges(&s[head], data_key(seed, stream++), det, GEN_DETS, GEN_DETS, 1);
    for (int d = 0; d < GEN_DETS; d++) {
      s[det + d].word = gen_dets[d];
      gen_edges(&s[det + d], data_key(seed, stream), verb ? GEN_OBJECT : GEN_PLACE, GEN_NOUNS, 6, 1);
    }
    stream++;
  }
  s[GEN_STOP].word = " .";
  gen_edge(&s[GEN_STOP], GEN_NEWLINE, 1);
}

// Expected nats and tokens of a sentence: each state's expected visits times what one visit costs. t == NULL: a word
// and a newline are one token each.
static inline void gen_expectation(const GenSource *g, const Tokenizer *t, double *nats, double *tokens) {
  double visits[GEN_STATES] = {};
  int32_t ids[16 * NFC_MOST_GROWTH];
  visits[GEN_NEWLINE] = 1;
  *nats = *tokens = 0;
  for (int i = 0; i < GEN_STATES; i++) {
    const GenState *s = &g->state[i];
    size_t bytes = strlen(s->word);
    CHECK(bytes <= 16, "generated text: '%s' is too long", s->word);
    *tokens += visits[i] * (t ? (double)tokenizer_encode(t, (const uint8_t *)s->word, bytes, ids, 1) : 1.0);
    for (int k = 0; k < s->edges; k++) {
      double p = (double)s->weight[k] / s->total;
      *nats -= visits[i] * p * log(p);
      if (s->next[k] != GEN_NEWLINE) visits[s->next[k]] += visits[i] * p;
    }
  }
  if (!t || !t->digits_together) return;
  const char *end[] = {" .\n", " .", "\n"};
  for (int i = 0; i < 3; i++)
    *tokens += (i ? -1 : 1) * (double)tokenizer_encode(t, (const uint8_t *)end[i], strlen(end[i]), ids, 1);
}

// Writes `sentences` sentences into memory that the text owns, and the nats they cost the source. Sentence boundaries
// do not matter to the generator: draw i is the i-th of the stream `key`.
static inline Text gen_text(const GenSource *g, uint64_t key, int64_t sentences) {
  const size_t longest_bytes = 16 * 16;
  Text text = {};
  uint8_t *out = (uint8_t *)data_alloc((size_t)sentences, longest_bytes);
  size_t n = 0;
  uint64_t draw = 0;
  int at = GEN_NEWLINE;
  for (int64_t i = 0; i < sentences;) {
    const GenState *s = &g->state[at];
    uint64_t r = data_below(data_random(key, draw++), s->total);
    int k = 0;
    while (r >= s->weight[k]) r -= s->weight[k++];
    if (s->edges > 1) text.nats -= log((double)s->weight[k] / s->total);
    at = s->next[k];
    size_t bytes = strlen(g->state[at].word);
    memcpy(out + n, g->state[at].word, bytes);
    n += bytes;
    i += at == GEN_NEWLINE;
  }
  uint8_t *fitted = (uint8_t *)realloc(out, n);
  text.bytes = (const uint8_t *)(text.owned = fitted ? fitted : out);
  text.numel = n;
  return text;
}

// ================================================================================================ 5 cache
// Two files for a text and a vocabulary size, named by the hash of both: tokenizer-KEY.json and tokens-KEY.bin, the ids
// of all splits after this header. With a given tokenizer KEY is the hash of the text and of it, and there is only
// tokens-KEY.bin. Anything that does not fit together exactly is made again.
struct CacheHeader {
  char magic[8];
  uint64_t key, tokenizer_hash, payload_hash;
  int64_t tokens_numel[SPLIT_COUNT];
  int64_t token_bytes;
};
static const char cache_magic[8] = {'t', 'o', 'k', 'e', 'n', 's', '0', '2'};  // in every key too
static const char cache_magic_chats[8] = {'c', 'h', 'a', 't', 's', '0', '0', '1'};        // ids, masks and beginnings
static inline const char *cache_magic_of(bool chats) { return chats ? cache_magic_chats : cache_magic; }

struct CorpusOptions {
  const char *data;            // path, pattern, "random" or "generated"; NULL or "": search (see corpus_load)
  const char *cache_dir;       // where tokenizer and ids of a text are kept; made if absent; NULL or "": nowhere
  int vocab_size;              // text: at most this many tokens are made; else the ids lie below it
  int threads;
  uint64_t seed;               // of "random"
  const char *tokenizer = NULL;  // tokenizer.json or its directory; NULL or "": text trains one. If it is given, text
                               // ignores vocab_size; elsewhere it may not have more tokens than that
  ChatOptions chat = {"auto", chat_date, "", false};             // of conversations
};

struct Corpus {
  Split split[SPLIT_COUNT];    // test may be absent (tokens_numel 0), all are after corpus_load_tokenizer
  char source[DATA_PATH_BYTES + 128];  // where it comes from, in words
  DataNotices notices;
  bool generated;              // made up here: the generated text
  double entropy_nats;         // entropy rate of the source, a token: generated text and random tokens; else 0
  int vocab_size;              // text: the tokenizer's; else as asked
  uint64_t hash;               // of all tokens and the vocabulary, and of the tokenizer that made the tokens
  Tokenizer tokenizer;
  bool has_tokenizer;          // text, or one was given; and only in the process that loaded it
  bool cache_used;             // tokenizer and ids were read, not made
  double tokenizer_ms, encode_ms;  // spent training the tokenizer and encoding; 0 if read or given
};

static inline uint64_t cache_payload_hash(const Split *splits) {
  uint64_t h = 0;
  for (int i = 0; i < SPLIT_COUNT; i++)
    h = data_hash(h, splits[i].tokens, split_bytes(&splits[i]));
  return h;
}

// A split as a header describes it, without tokens yet; of conversations, until they are counted, with one.
static inline Split cache_split(const CacheHeader *h, int i, bool chats) {
  Split s = {};
  s.token_bytes = (int)h->token_bytes;
  s.tokens_numel = h->tokens_numel[i];
  s.masked = chats && s.tokens_numel;
  s.documents = s.masked;
  return s;
}
// Reads the ids after a header that has been checked against the file's size.
static inline bool cache_read_ids(Split *splits, const CacheHeader *h, bool chats, FILE *f) {
  bool ok = true;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    Split *s = &splits[i];
    *s = cache_split(h, i, chats);
    size_t bytes = split_bytes(s);
    if (bytes) s->tokens = s->owned = data_alloc(bytes, 1);
    for (size_t at = 0, n; ok && at < bytes; at += n, liveness_progress()) {
      n = bytes - at < DATA_PIECE_BYTES ? bytes - at : DATA_PIECE_BYTES;
      ok = fread((char *)s->owned + at, 1, n, f) == n;
    }
  }
  ok = ok && cache_payload_hash(splits) == h->payload_hash;
  for (int i = 0; ok && chats && i < SPLIT_COUNT; i++) {
    int64_t documents = 0;
    for (int64_t k = 0; k < splits[i].tokens_numel; k++) documents += split_begins(&splits[i], k);
    splits[i].documents = documents;
  }
  return ok;
}

// Reads tokenizer and ids if both files are there, whole, and belong together. If the corpus has a tokenizer, only the
// ids are read, which must come from it. Returns NULL: done; "": not there; else: why not.
static inline const char *cache_read(Corpus *c, const char *json, const char *bin, uint64_t key, bool chats) {
  static char why[512];
  const int fd = open(bin, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  FILE *f = fd >= 0 ? fdopen(fd, "rb") : NULL;
  if (!f) return "";
  struct stat st;
  CacheHeader h;
  int64_t payload = 0;
  const char *fault = NULL;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) fault = "it is not a regular file";
  else if (fread(&h, sizeof h, 1, f) != 1) fault = "it is cut short";
  else if (memcmp(h.magic, cache_magic_of(chats), sizeof h.magic) || h.key != key)
    fault = "it belongs to something else";
  else if (h.token_bytes != 2 && h.token_bytes != 4) fault = "its header is damaged";
  for (int i = 0; !fault && i < SPLIT_COUNT; i++) {
    if (h.tokens_numel[i] < 0 || h.tokens_numel[i] > st.st_size) fault = "its header is damaged";
    const Split s = cache_split(&h, i, chats);
    payload += (int64_t)split_bytes(&s);
  }
  if (!fault && st.st_size != (int64_t)sizeof h + payload) fault = "its size is not what its header says";
  if (!fault && !cache_read_ids(c->split, &h, chats, f)) fault = "its checksum does not match";
  fclose(f);
  if (!fault && !c->has_tokenizer && !tokenizer_load(&c->tokenizer, json, why, sizeof why)) fault = why;
  else if (!fault && tokenizer_hash(&c->tokenizer) != h.tokenizer_hash)
    fault = "it does not belong to the tokenizer beside it";
  if (!fault) return NULL;
  for (Split &s : c->split) split_free(&s);
  if (!c->has_tokenizer) tokenizer_free(&c->tokenizer);
  return fault;
}

// The files that are being written, under names that no reader takes; "": none. A signal that ends the process removes
// them (corpus_abandon, which may be called from a handler).
static char cache_temporary[2][PATH_MAX + 64];
static inline void corpus_abandon() {
  for (const char *path : cache_temporary) if (path[0]) unlink(path);
}
static inline bool cache_write(const Corpus *c, const char *dir, const char *json, const char *bin, uint64_t key,
                               char *why, size_t why_bytes) {
  char *temporary = cache_temporary[1];
  CacheHeader h = {};
  data_format(cache_temporary[0], sizeof cache_temporary[0], "%s.tmp%d", json, (int)getpid());         // file_put's
  const bool has_json = c->has_tokenizer || tokenizer_save(&c->tokenizer, json, why, why_bytes);
  cache_temporary[0][0] = 0;
  if (!has_json) return false;
  memcpy(h.magic, cache_magic_of(c->split[SPLIT_TRAIN].documents), sizeof h.magic);
  h.key = key;
  h.tokenizer_hash = tokenizer_hash(&c->tokenizer);
  h.payload_hash = cache_payload_hash(c->split);
  h.token_bytes = c->split[SPLIT_TRAIN].token_bytes;
  for (int i = 0; i < SPLIT_COUNT; i++) h.tokens_numel[i] = c->split[i].tokens_numel;
  data_format(temporary, sizeof cache_temporary[1], "%s.%llu.tmp", bin, file_nonce());
  const int fd = file_create(temporary, dir);
  int64_t at = sizeof h;
  bool ok = fd >= 0 && file_write(fd, temporary, &h, at, 0);
  for (int i = 0; ok && i < SPLIT_COUNT; i++) {
    const int64_t bytes = (int64_t)split_bytes(&c->split[i]);
    ok = file_write(fd, temporary, c->split[i].tokens, bytes, at);
    at += bytes;
  }
  int fault = errno;
  if (fd >= 0 && close(fd) && ok) { ok = false; fault = errno; }
  if (ok && !(ok = file_rename(temporary, bin))) fault = errno;
  if (!ok) data_format(why, why_bytes, "%s: %s", bin, strerror(fault));
  if (!ok && fd >= 0) unlink(temporary);
  temporary[0] = 0;
  return ok;
}

// Loads the given tokenizer, if any.
static inline bool corpus_take_tokenizer(Corpus *c, const CorpusOptions *o, DataError *e) {
  char why[1024];
  if (!o->tokenizer || !*o->tokenizer) return true;
  if (!tokenizer_load_any(&c->tokenizer, o->tokenizer, why, sizeof why))
    return data_fail(e, EXIT_MISSING, "tokenizer %s", why);
  int missing = 0;
  for (int32_t id : c->tokenizer.byte_id) missing += id < 0;
  if (missing)
    data_notice(&c->notices, "tokenizer %s has no token for %d of the 256 bytes: they are left out of a text, as by "
                "Hugging Face tokenizers", o->tokenizer, missing);
  return c->has_tokenizer = true;
}

// Makes the tokenizer, unless it was given, and the ids of texts or conversations.
static inline bool corpus_encode(Corpus *c, const Text *texts, const char (*chats)[DATA_PATH_BYTES],
                                 const CorpusOptions *o, DataError *e) {
  const double start = now_ms();
  if (!c->has_tokenizer)
    tokenizer_train(&c->tokenizer, texts[SPLIT_TRAIN].bytes, texts[SPLIT_TRAIN].numel, o->vocab_size, o->threads);
  const double trained = now_ms();
  const Chat chat = chats ? chat_open(&o->chat, &c->tokenizer) : Chat{};
  int64_t line = 0;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    Split *s = &c->split[i];
    if (!texts[i].numel) continue;
    if (!chats) split_encode(s, &c->tokenizer, &texts[i], o->threads);
    else if (i && strcmp(chats[i], chats[i - 1])) line = 0;      // else it goes on in the same file
    if (chats && !split_encode_chats(s, &chat, &texts[i], chats[i], &line, o->threads, e)) return false;
  }
  c->tokenizer_ms = c->has_tokenizer ? 0 : trained - start;
  c->encode_ms = now_ms() - trained;
  return true;
}
// Reads from the cache, or makes, the tokenizer (unless it was given) and the ids of the texts. A failure of the cache
// is a notice, never an error. chats: the files' names, if they hold conversations; else NULL.
static inline bool corpus_tokenize(Corpus *c, const Text *texts, const char (*chats)[DATA_PATH_BYTES],
                                   const CorpusOptions *o, DataError *e) {
  uint64_t key = data_hash(c->has_tokenizer, cache_magic_of(chats), sizeof cache_magic);
  const char *const how[] = {o->chat.template_name, o->chat.date, o->chat.train_all ? "all" : "assistant"};
  for (const char *word : how) if (chats) key = data_hash(key, word, strlen(word));
  key = data_mix(key ^ (c->has_tokenizer ? tokenizer_hash(&c->tokenizer) : (uint64_t)o->vocab_size));
  for (int i = 0; i < SPLIT_COUNT; i++) key = data_hash(key, texts[i].bytes, texts[i].numel);
  char json[PATH_MAX] = "", bin[PATH_MAX] = "", why[1024];
  bool cached = o->cache_dir && *o->cache_dir;
  const char *fault = "";
  if (cached && !make_directories(o->cache_dir)) {
    data_notice(&c->notices, "tokenizer and tokens are not cached: --cache %s cannot be made: %s", o->cache_dir,
                strerror(errno));
    cached = false;
  }
  if (cached) {
    data_format(json, sizeof json, "%s/tokenizer-%016llx.json", o->cache_dir, (unsigned long long)key);
    data_format(bin, sizeof bin, "%s/tokens-%016llx.bin", o->cache_dir, (unsigned long long)key);
    fault = cache_read(c, json, bin, key, chats != NULL);
    if (fault && *fault)
      data_notice(&c->notices, "cache file %s cannot be used (%s): made again", bin, fault);
  }
  c->cache_used = !fault;
  if (!c->cache_used) {
    if (!corpus_encode(c, texts, chats, o, e)) return false;
    if (cached && !cache_write(c, o->cache_dir, json, bin, key, why, sizeof why))
      data_notice(&c->notices, "tokenizer and tokens are not cached: %s", why);
  }
  c->has_tokenizer = true;
  c->vocab_size = c->tokenizer.vocab_size;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    Split *s = &c->split[i];
    if (!texts[i].numel) continue;
    if (chats && !split_check_mask(s, chats[i], e)) return false;
    s->hash = split_hash(s);
    if (chats) continue;
    s->has_context = true;
    s->text_bytes = (int64_t)texts[i].numel;
    text_count(texts[i].bytes, texts[i].numel, &s->words, &s->lines);
    if (s->text_bytes > MOST_BYTES_A_WORD * s->words) s->words = 0;
  }
  return true;
}

// ================================================================================================ 6 corpus
static inline void corpus_free(Corpus *c) {
  for (Split &s : c->split) split_free(&s);
  tokenizer_free(&c->tokenizer);
  *c = {};
}

static inline void corpus_hash(Corpus *c) {
  uint64_t h = data_mix((uint64_t)c->vocab_size);
  for (const Split &s : c->split) h = data_mix(h * 3 + s.hash + (uint64_t)s.tokens_numel);
  const Split *train = &c->split[SPLIT_TRAIN];
  const bool encoded = train->has_context || train->documents || !train->tokens_numel;
  c->hash = c->has_tokenizer && encoded ? data_mix(h ^ tokenizer_hash(&c->tokenizer)) : h;
}

static inline bool corpus_check_text_vocab(const Corpus *c, const CorpusOptions *o, DataError *e) {
  if (c->has_tokenizer || o->vocab_size >= 256) return true;
  return data_fail(e, EXIT_USAGE, "--vocab_size %d: a byte-level tokenizer has at least 256 tokens", o->vocab_size);
}

// Data given as ids has a vocabulary of o->vocab_size; a tokenizer with more tokens would produce ids outside it.
static inline bool corpus_check_tokenizer_fits(const Corpus *c, const CorpusOptions *o, DataError *e) {
  if (!c->has_tokenizer || c->tokenizer.vocab_size <= o->vocab_size) return true;
  return data_fail(e, EXIT_USAGE, "tokenizer %s has %d tokens, more than --vocab_size %d: it belongs to another model",
                   o->tokenizer, c->tokenizer.vocab_size, o->vocab_size);
}

static inline bool corpus_load_token_files(Corpus *c, Found *f, const CorpusOptions *o, DataError *e) {
  Split *train = &c->split[SPLIT_TRAIN], *valid = &c->split[SPLIT_VALID];
  if (!corpus_check_tokenizer_fits(c, o, e)) return false;
  memcpy(train->path, f->train, sizeof train->path);
  if (!split_map(train, e) || !find_tokens_beside(f, e)) return false;
  memcpy(valid->path, f->valid, sizeof valid->path);
  if (!split_map(valid, e)) return false;
  for (const Split *s : {(const Split *)train, (const Split *)valid})
    if (!split_check_ids(s, o->vocab_size, o->threads, e) || !split_check_mask(s, s->path, e)) return false;
  c->vocab_size = o->vocab_size;
  return true;
}
// Loads the texts or token files that were found, and frees f.
static inline bool corpus_load_found(Corpus *c, Found *f, const CorpusOptions *o, DataError *e) {
  bool ok = f->train[0] ? corpus_load_token_files(c, f, o, e) : corpus_check_text_vocab(c, o, e);
  const bool chats = f->chats[SPLIT_TRAIN][0];
  if (ok && chats && !c->has_tokenizer)
    ok = data_fail(e, EXIT_USAGE, "--data %s: conversations are encoded by a model's own tokenizer: name the model by "
                   "--init_from, or the tokenizer by --tokenizer", o->data);
  if (ok && !f->train[0]) ok = corpus_tokenize(c, f->text, chats ? f->chats : NULL, o, e);
  memcpy(c->source, f->source, sizeof c->source);
  found_free(f);
  return ok;
}

// Independent uniform tokens: nothing can be learnt, and the loss stays at the entropy, ln(vocab_size).
static inline bool corpus_load_random(Corpus *c, const CorpusOptions *o, DataError *e) {
  const int64_t numel[SPLIT_COUNT] = {1 << 22, 1 << 16, 1 << 16};
  if (!corpus_check_tokenizer_fits(c, o, e)) return false;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    Split *s = &c->split[i];
    uint64_t key = data_key(o->seed, (uint64_t)i);
    s->token_bytes = o->vocab_size <= 65536 ? 2 : 4;
    s->tokens_numel = numel[i];
    s->tokens = s->owned = data_alloc((size_t)numel[i], (size_t)s->token_bytes);
    for (int64_t k = 0; k < numel[i]; k++) {
      uint64_t id = data_below(data_random(key, (uint64_t)k), (uint64_t)o->vocab_size);
      if (s->token_bytes == 2) ((uint16_t *)s->owned)[k] = (uint16_t)id;
      else ((uint32_t *)s->owned)[k] = (uint32_t)id;
    }
    s->oracle_nats = log((double)o->vocab_size);
    s->hash = split_hash(s);
  }
  c->vocab_size = o->vocab_size;
  c->entropy_nats = log((double)o->vocab_size);
  data_format(c->source, sizeof c->source, "random tokens, uniform over %d (--data random)", o->vocab_size);
  return true;
}

// The same text on every machine and for every seed of training, so that losses on it compare.
static inline bool corpus_load_generated(Corpus *c, const CorpusOptions *o, DataError *e) {
  const int64_t sentences[SPLIT_COUNT] = {160000, 6000, 6000};
  const uint64_t seed = 20160926;
  if (!corpus_check_text_vocab(c, o, e)) return false;
  GenSource g;
  Text texts[SPLIT_COUNT];
  double nats, tokens;
  gen_source_init(&g, seed);
  for (int i = 0; i < SPLIT_COUNT; i++) texts[i] = gen_text(&g, data_key(~seed, (uint64_t)i), sentences[i]);
  if (!corpus_tokenize(c, texts, NULL, o, e)) return false;
  gen_expectation(&g, &c->tokenizer, &nats, &tokens);
  c->generated = true;
  c->entropy_nats = nats / tokens;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    c->split[i].oracle_nats = texts[i].nats / (double)split_targets_numel(&c->split[i]);
    text_free(&texts[i]);
  }
  data_format(c->source, sizeof c->source, "generated sentences, entropy %.4f nats a token", c->entropy_nats);
  return true;
}

// A directory holding a fetched WikiText-2: data/wikitext-2 here, or beside the program.
static inline bool corpus_find_fetched(char *dir, size_t dir_bytes) {
  char program[PATH_MAX], path[DATA_PATH_BYTES];
  ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
  program[n > 0 ? n : 0] = 0;
  char *slash = strrchr(program, '/');
  if (slash) *slash = 0;
  for (int beside = 0; beside < 2; beside++) {
    if (!data_format(dir, dir_bytes, "%s%sdata/wikitext-2", beside ? program : "", beside ? "/" : "")) continue;
    bool whole = true;
    for (int i = 0; i < SPLIT_COUNT; i++) whole = whole && text_find(dir, i, path, sizeof path);
    if (whole) return true;
  }
  return false;
}

// Loads what --data names, or `directory` if that is given; messages call the directory `asked`.
static inline bool corpus_load_asked(Corpus *c, const char *directory, const char *asked, const CorpusOptions *o,
                                     DataError *e) {
  Found f = {};
  f.notices = &c->notices;
  if (!directory && !strcmp(o->data, "random")) return corpus_load_random(c, o, e);
  if (!directory && !strcmp(o->data, "generated")) return corpus_load_generated(c, o, e);
  if (directory ? find_directory(&f, directory, asked, e) : corpus_find(&f, o->data, e))
    return corpus_load_found(c, &f, o, e);
  found_free(&f);
  return false;
}

// Finds and reads a corpus. Overwrites c; false and one line in e (exit code 2 or 3) when what was asked cannot be had.
// Order: o.data if given; else the directory WIKITEXT2_DIR of the environment; else data/wikitext-2, where
// data/get_wikitext2.sh puts it; else the generated text, with a notice. What was named explicitly is never replaced by
// something else. Nothing is downloaded here.
static inline bool corpus_load(Corpus *c, CorpusOptions o, DataError *e) {
  char dir[DATA_PATH_BYTES - 64];
  const char *env = getenv("WIKITEXT2_DIR");
  bool ok;
  *c = {};
  *e = {};
  bool given = o.tokenizer && *o.tokenizer;
  CHECK(o.threads >= 1 && (given || o.vocab_size >= 1), "corpus_load: threads %d, vocab_size %d", o.threads,
        o.vocab_size);
  if (!corpus_take_tokenizer(c, &o, e)) ok = false;
  else if (o.data && *o.data) ok = corpus_load_asked(c, NULL, NULL, &o, e);
  else if (env && *env) {
    struct stat st;
    ok = stat(env, &st) == 0 && S_ISDIR(st.st_mode);
    if (ok) ok = corpus_load_asked(c, env, "WIKITEXT2_DIR", &o, e);
    else
      data_fail(e, EXIT_MISSING,
                "WIKITEXT2_DIR=%s is not a directory; expected: the one with WikiText-2's train.txt, "
                "valid.txt and test.txt",
                env);
  } else if (corpus_find_fetched(dir, sizeof dir)) ok = corpus_load_asked(c, dir, "fetched WikiText-2", &o, e);
  else if ((ok = corpus_load_generated(c, &o, e)))
    data_notice(
        &c->notices,
        "no WikiText-2 here (no --data, no WIKITEXT2_DIR, no data/wikitext-2): training on generated sentences "
        "instead, of %.4f nats a token; data/get_wikitext2.sh fetches WikiText-2",
        c->entropy_nats);
  if (!ok) { corpus_free(c); return false; }
  corpus_hash(c);
  return true;
}

// A corpus without tokens: the given tokenizer alone, to sample with. o.data and the cache are ignored; o.vocab_size is
// the model's, 0 for the tokenizer's. Overwrites c; false and one line in e when the tokenizer cannot be had.
static inline bool corpus_load_tokenizer(Corpus *c, CorpusOptions o, DataError *e) {
  *c = {};
  *e = {};
  bool ok = o.tokenizer && *o.tokenizer ? corpus_take_tokenizer(c, &o, e)
                                        : data_fail(e, EXIT_USAGE, "no data and no tokenizer: give one of them");
  if (ok && o.vocab_size > 0) ok = corpus_check_tokenizer_fits(c, &o, e);
  if (!ok) { corpus_free(c); return false; }
  c->vocab_size = o.vocab_size > 0 ? o.vocab_size : c->tokenizer.vocab_size;
  data_format(c->source, sizeof c->source, "no data, the tokenizer %s", o.tokenizer);
  corpus_hash(c);
  return true;
}

// ---- passing a corpus to other processes: the struct, then the tokens that are in memory. A mapped token file is
// passed by its path: each process maps the same file, whose pages the processes of a host share.
static inline size_t corpus_image_place(const Corpus *c, int split) {  // 64-byte aligned; split == SPLIT_COUNT: the end
  size_t at = (sizeof(Corpus) + 63) / 64 * 64;
  for (int i = 0; i < split; i++)
    if (!c->split[i].path[0]) at += (split_bytes(&c->split[i]) + 63) / 64 * 64;
  return at;
}
static inline size_t corpus_image_bytes(const Corpus *c) { return corpus_image_place(c, SPLIT_COUNT); }

// Writes c into `image`, corpus_image_bytes(c) long.
static inline void corpus_image(const Corpus *c, void *image) {
  memset(image, 0, corpus_image_bytes(c));
  Corpus *head = (Corpus *)image;
  memcpy((void *)head, c, sizeof *c);
  head->tokenizer = {};
  head->has_tokenizer = false;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    Split *s = &head->split[i];
    s->tokens = s->owned = s->mapped = NULL;
    if (c->split[i].path[0] || !c->split[i].tokens_numel) continue;
    memcpy((char *)image + corpus_image_place(c, i), c->split[i].tokens, split_bytes(s));
  }
}

// Makes c a corpus without tokenizer whose tokens lie in `image`. The image must outlive it and is only read; several
// processes may share one. False and one line if the image is damaged or its token file is not the same here.
static inline bool corpus_adopt(Corpus *c, const void *image, size_t bytes, DataError *e) {
  *e = {};
  memcpy((void *)c, image, sizeof *c);
  CHECK(bytes == corpus_image_bytes(c), "corpus_adopt: %zu bytes given, the image says %zu", bytes,
        corpus_image_bytes(c));
  bool ok = true;
  for (int i = 0; ok && i < SPLIT_COUNT; i++) {
    Split *s = &c->split[i];
    if (!s->tokens_numel) continue;
    if (!s->path[0]) {
      s->tokens = (const char *)image + corpus_image_place(c, i);
      uint64_t found = split_hash(s);
      CHECK(found == s->hash, "corpus_adopt: the %s tokens arrived damaged", split_names[i]);
      continue;
    }
    uint64_t hash = s->hash;
    int64_t numel = s->tokens_numel;
    ok = split_map(s, e);
    if (ok && (s->hash != hash || s->tokens_numel != numel))
      ok = data_fail(e, EXIT_MISSING,
                     "%s here is not the file that the corpus was loaded from (%lld tokens, there %lld): "
                     "every host needs the same file under this path",
                     s->path, (long long)s->tokens_numel, (long long)numel);
  }
  if (!ok) corpus_free(c);
  return ok;
}

// ================================================================================================ 7 sampler
// Sample i is tokens [i T, i T + T) as inputs and the same shifted by one as targets; samples do not overlap, and a
// rest shorter than T+1 tokens at the end of the split is not trained on. An epoch is a permutation of all samples that
// depends on (seed, epoch) alone, cut (drop_last) or wrapped around to whole global batches of M microbatches of B: the
// rule of PyTorch's DistributedSampler with set_epoch, for the M B sequences of a step. Microbatch m of step s holds
// positions [(s M + m) B, + B). Which rank takes which microbatches is decided by the caller.
//
// Conversations may be packed whole: a sample is then a sequence of conversations of T + 1 tokens at most, each in the
// sequence with the least room that it fits in, in the order of the text (best fit), the same on every rank. A
// conversation of n tokens takes n - 1 places; places that are left are a document of padding, without targets.
enum : uint32_t { PACKING_NONE = UINT32_MAX };
struct Packing {
  const Split *split;                            // NULL: not packed
  int64_t seq_len, rows, cut, dropped, trained;  // sequences; conversations that were too long; targets trained on
  int64_t *start;                                // (documents + 1) of conversations
  uint32_t *head, *next;                         // (documents) the first of a sequence; the one behind another
};
static inline void packing_free(Packing *p) {
  free(p->start);
  free(p->head);
  free(p->next);
  *p = {};
}
static inline size_t packing_bytes(const Packing *p) {
  return p->split ? (size_t)(p->split->documents + 1) * 8 + (size_t)p->split->documents * 8 : 0;
}
// drop: leaves out what is too long, instead of cutting its end.
static inline void packing_make(Packing *p, const Split *split, int64_t seq_len, bool drop) {
  const size_t n = (size_t)split->documents;
  *p = {split, seq_len, 0, 0, 0, 0, (int64_t *)data_alloc(n + 1, 8), (uint32_t *)data_alloc(n, 4),
        (uint32_t *)data_alloc(n, 4)};
  // Of each room the sequences that have it: the top of a stack, the sequence below another. last: of a sequence.
  uint32_t *top = (uint32_t *)data_alloc((size_t)seq_len + 1, 4), *below = (uint32_t *)data_alloc(n, 4);
  uint32_t *last = (uint32_t *)data_alloc(n, 4), d = 0;
  for (int64_t i = 0; i <= seq_len; i++) top[i] = PACKING_NONE;
  for (int64_t i = 0; i < split->tokens_numel; i++) if (split_begins(split, i)) p->start[d++] = i;
  p->start[d] = split->tokens_numel;
  for (d = 0; d < (uint32_t)n; d++) {
    int64_t places = p->start[d + 1] - p->start[d] - 1;
    const bool too_long = places > seq_len;
    p->cut += too_long && !drop;
    p->dropped += too_long && drop;
    if (places < 1 || (too_long && drop)) continue;
    if (too_long) places = seq_len;
    for (int64_t i = 1; i <= places; i++) p->trained += split_trained(split, p->start[d] + i);
    int64_t room = places;
    while (room <= seq_len && top[room] == PACKING_NONE) room++;
    uint32_t row;
    if (room > seq_len) room = seq_len, row = (uint32_t)p->rows++, p->head[row] = d;
    else row = top[room], top[room] = below[row], p->next[last[row]] = d;
    last[row] = d;
    p->next[d] = PACKING_NONE;
    room -= places;
    if (room) below[row] = top[room], top[room] = row;
  }
  free(top);
  free(below);
  free(last);
}
// Sequence `row`; past the last all is padding. inputs, targets, starts (ops.h): (T), overwritten.
static inline void packing_fill(const Packing *p, int64_t row, int32_t *inputs, int32_t *targets, int32_t *starts) {
  int64_t t = 0;
  for (uint32_t d = row < p->rows ? p->head[row] : PACKING_NONE; d != PACKING_NONE; d = p->next[d]) {
    const int64_t first = p->start[d], begin = t;
    for (int64_t i = first; i < p->start[d + 1] - 1 && t < p->seq_len; i++, t++) {
      inputs[t] = split_token(p->split, i);
      targets[t] = split_target(p->split, i + 1);
      starts[t] = (int32_t)begin;
    }
  }
  for (int64_t begin = t; t < p->seq_len; t++) inputs[t] = 0, targets[t] = -1, starts[t] = (int32_t)begin;
}

struct SamplerOptions {
  int64_t batch, seq_len, microbatches;          // B, T, M (of the whole global batch)
  bool shuffle, drop_last;
  uint64_t seed;
};
struct Sampler {
  const Split *split;
  SamplerOptions options;
  int64_t samples_numel, steps_per_epoch, epoch;
  uint32_t *order;                               // (samples_numel) of this epoch; NULL: in order of the text
  const Packing *packing;                        // samples are its sequences; NULL: cuts of the stream
};

static inline int64_t sampler_samples_numel(const Split *split, int64_t seq_len, const Packing *packing) {
  return packing ? packing->rows : split_targets_numel(split) / seq_len;
}

// Memory that sampler_init needs: the permutation.
static inline size_t sampler_bytes(const Split *split, SamplerOptions o, const Packing *packing = NULL) {
  return o.shuffle ? (size_t)sampler_samples_numel(split, o.seq_len, packing) * sizeof(uint32_t) : 0;
}

// Starts epoch `epoch` (from 0). Overwrites the order.
static inline void sampler_set_epoch(Sampler *s, int64_t epoch) {
  s->epoch = epoch;
  if (!s->options.shuffle) return;
  const uint64_t key = data_key(s->options.seed, (uint64_t)epoch);
  for (int64_t i = 0; i < s->samples_numel; i++) s->order[i] = (uint32_t)i;
  for (int64_t i = s->samples_numel - 1; i > 0; i--) {  // Fisher and Yates
    int64_t j = (int64_t)data_below(data_random(key, (uint64_t)i), (uint64_t)i + 1);
    uint32_t x = s->order[i];
    s->order[i] = s->order[j];
    s->order[j] = x;
  }
}

// Prepares epoch 0. memory: sampler_bytes(split, o) bytes, used as long as the sampler is. False and one line when the
// split cannot fill one global batch.
static inline bool sampler_init(Sampler *s, const Split *split, SamplerOptions o, void *memory, DataError *e,
                                const Packing *packing = NULL) {
  CHECK(o.batch >= 1 && o.seq_len >= 1 && o.microbatches >= 1, "sampler: batch %lld, seq_len %lld, microbatches %lld",
        (long long)o.batch, (long long)o.seq_len, (long long)o.microbatches);
  *e = {};
  *s = {split, o, sampler_samples_numel(split, o.seq_len, packing), 0, 0, o.shuffle ? (uint32_t *)memory : NULL,
        packing};
  CHECK(s->samples_numel <= UINT32_MAX, "sampler: %lld samples do not fit 32 bits", (long long)s->samples_numel);
  const int64_t n = s->samples_numel, per_step = o.batch * o.microbatches;
  if (n < per_step)
    return data_fail(
        e, EXIT_USAGE,
        "the corpus is shorter than one global batch: its %lld training tokens make %lld sample%s of "
        "--seq_len %lld, and a step takes %lld (%lld microbatch%s of --batch_size %lld): use a larger corpus, or a "
        "smaller --seq_len, --batch_size, --global_batch or number of ranks",
        (long long)split->tokens_numel, (long long)n, n == 1 ? "" : "s", (long long)o.seq_len, (long long)per_step,
        (long long)o.microbatches, o.microbatches == 1 ? "" : "es", (long long)o.batch);
  s->steps_per_epoch = o.drop_last ? n / per_step : (n + per_step - 1) / per_step;
  sampler_set_epoch(s, 0);
  return true;
}

static inline int64_t sampler_steps_per_epoch(const Sampler *s) { return s->steps_per_epoch; }

// The sample at position p of the epoch, 0 <= p < steps_per_epoch M B. Past the last sample it wraps around.
static inline int64_t sampler_sample(const Sampler *s, int64_t p) {
  p %= s->samples_numel;
  return s->order ? (int64_t)s->order[p] : p;
}

// Microbatch m (0 <= m < M) of a step of the current epoch. inputs, targets: (B,T), overwritten; and starts of packed
// conversations.
static inline void microbatch_fill(const Sampler *s, int64_t step_in_epoch, int64_t m, int32_t *inputs,
                                   int32_t *targets, int32_t *starts = NULL) {
  const SamplerOptions *o = &s->options;
  CHECK(step_in_epoch >= 0 && step_in_epoch < s->steps_per_epoch && m >= 0 && m < o->microbatches,
        "microbatch_fill: step %lld of %lld, microbatch %lld of %lld", (long long)step_in_epoch,
        (long long)s->steps_per_epoch, (long long)m, (long long)o->microbatches);
  for (int64_t b = 0; b < o->batch; b++) {
    const int64_t sample = sampler_sample(s, (step_in_epoch * o->microbatches + m) * o->batch + b);
    const int64_t first = sample * o->seq_len, to = b * o->seq_len;
    if (s->packing) packing_fill(s->packing, sample, inputs + to, targets + to, starts + to);
    if (s->packing) continue;
    for (int64_t t = 0; t < o->seq_len; t++) {
      inputs[b * o->seq_len + t] = split_token(s->split, first + t);
      targets[b * o->seq_len + t] = split_target(s->split, first + t + 1);
    }
  }
}

// ================================================================================================ 8 evaluation
// Windows of T targets that cover a split once, in order; the last may be partial. A window's contents do not depend on
// the rank that takes it.
static inline int64_t eval_windows_numel(const Split *split, int64_t seq_len) {
  return (split_targets_numel(split) + seq_len - 1) / seq_len;
}

// Window w. inputs, targets: (T), overwritten; where there is no target, target -1 (ignored by the loss) and input 0.
// Past the last window all is padding, so a batch can be filled up. Returns the number of targets, masked ones counted.
static inline int64_t eval_window_fill(const Split *split, int64_t seq_len, int64_t w, int32_t *inputs,
                                       int32_t *targets) {
  const int64_t first = w * seq_len, left = split_targets_numel(split) - first;
  const int64_t count = left < 0 ? 0 : left < seq_len ? left : seq_len;
  for (int64_t t = 0; t < seq_len; t++) {
    inputs[t] = t < count ? split_token(split, first + t) : 0;
    targets[t] = t < count ? split_target(split, first + t + 1) : -1;
  }
  return count;
}
