// dataloader.h: reads a corpus that corpus_find.h has found and turns text into tokens. data/tokens/ reads token files,
// and cuts streams of tokens into samples and validation windows.
//
//   1 text              words and lines, encoding
//   2 generated text    a source of sentences whose entropy is known exactly
//   3 cache             tokenizer and ids of a text, found again by its hash
//   4 corpus            the order of the search; hashing, passing to other processes
//
// Conventions
//   - One process loads (corpus_load); the others get the result as one block of bytes (corpus_to_block,
//     corpus_of_block). No communication happens here and nothing here knows a rank.
//   - A split is one stream of ids. A text's stream starts with one context token, so that each token of the text has a
//     token before it and is predicted exactly once; a token file has no context token and its first token is not
//     predicted. The context token is <|endoftext|> if the tokenizer divides documents, which then also stands before
//     every other document; else a newline. In both cases tokens 1 .. tokens_numel-1 are the targets, or, with a loss
//     mask, those of them that it marks.
//   - A tokenizer is trained on the text, or given (CorpusOptions.tokenizer). With token files and random tokens a
//     given tokenizer is used only for prompts and samples.
//   - No library random generator is used: all choices are functions of (seed, stream, counter).
//   - A function that can fail because of the user's input returns false with one line and the exit code in an Error.
//     It then leaves nothing allocated.
#pragma once
#include <time.h>

#include "records_find.h"

// ================================================================================================ 1 text
// Counts words, as wc does, and lines; a last line without '\n' counts as one.
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

// If words are longer than this on average, the text does not separate words by spaces (Chinese, genomes), and the
// count of words is left out.
enum { MOST_BYTES_A_WORD = 32 };

// Encodes a text, after one token of context (what the tokenizer starts a text with, or a newline), into memory that
// the split owns, with <|endoftext|> before each document after the first where the tokenizer divides them.
static inline void split_encode(Split *s, const Tokenizer *t, const Text *text, int threads) {
  enum { BLOCK_BYTES = 16 << 20 };               // the ids of a block exist twice
  static Encoding c;
  EncodeOptions o = {};
  EncodePieces l = {};
  TokenStream to = {};
  int32_t context[16 * NFC_MOST_GROWTH];
  Error none;
  o.threads = threads, o.documents = DOCUMENTS_BEFORE;
  c = Encoding{};
  c.o = &o, c.tokenizer = *t, c.sink = &to, c.document_id = t->divides ? 0 : -1;
  to.plain = true, to.token_bytes = t->vocab_size <= 65536 ? 2 : 4;
  const int64_t n = tokenizer_begin(t, text->bytes, 0, context);
  CHECK(n == 1, "a newline is %lld tokens", (long long)n);
  token_stream_ids(&to, context, 1, 0);
  const size_t documents = t->divides ? text->documents : 0;
  bool begins = false;
  for (size_t at = 0, d = 0; at < text->numel; liveness_progress()) {
    l.count = 0;
    for (const size_t from = at; at < text->numel && at - from < BLOCK_BYTES;) {
      const size_t stop = d < documents ? text->document[d] : text->numel;
      EncodePiece *p = encode_piece(&l);
      p->p = text->bytes + at, p->begins = begins;
      at = stop - at > ENCODE_PIECE_BYTES ? tokenizer_cut(t, text->bytes, stop, at + ENCODE_PIECE_BYTES) : stop;
      p->bytes = (size_t)(text->bytes + at - p->p);
      begins = at == stop && d < documents;
      d += begins;
    }
    encode_pieces(&c, &l, "", &none);
  }
  free(l.piece);
  s->token_bytes = to.token_bytes;
  s->tokens_numel = to.count;
  s->tokens = s->owned = bpe_resize(to.tokens, (size_t)to.count, (size_t)to.token_bytes);
}

// ================================================================================================ 2 generated text
// Sentences such as " the old miller carries a lantern under the bridge .\n", from a source that remembers in which
// part of the sentence it is and what that part depends on. Each word is sampled from a few weighted successors:
//   det1 -> adjective -> subject -> verb -> det2 -> object -> stop -> newline
//   det1 -> subject without adjective; object -> preposition -> det3 -> place -> stop
// An object depends on the verb before the determiner, a place on the preposition: a bigram model cannot reach the
// source's entropy. A state's successors are different words, so the state is a function of the
// text so far and the entropy of the text is that of the chain. Sentences are independent, so by renewal the entropy
// rate is
//   (expected nats of a sentence) / (expected tokens of a sentence), and both are finite sums over the states.
// A word is always written " word", which is one pre-token, so its number of tokens does not depend on its neighbours.
// Only Llama's pre-tokenizer makes the full stop and its newline one pre-token.
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

struct GenState { const char *word; int edges, next[GEN_MAX_EDGES]; uint32_t weight[GEN_MAX_EDGES], total; };
struct GenSource { GenState state[GEN_STATES]; };

static inline void gen_edge(GenState *s, int next, uint32_t weight) {
  CHECK(s->edges < GEN_MAX_EDGES, "generated text: a state has more than %d successors", GEN_MAX_EDGES);
  s->next[s->edges] = next;
  s->weight[s->edges++] = weight;
  s->total += weight;
}
// Adds `count` different successors among states [first, first + n), chosen by `key`. Their weights are 840 / r for
// r = rank, rank + 1, ...; 840 is divisible by 1 .. 8.
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

// Sets the words and successors of all states.
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
  // After a verb the objects are the same for each determiner (one `stream`); so are the places after a preposition.
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

// Expected nats and tokens of a sentence: the sum over states of expected visits times nats, or tokens, per visit. t
// NULL: a word and a newline are one token each.
static inline void gen_expectation(const GenSource *g, const Tokenizer *t, double *nats, double *tokens) {
  double visits[GEN_STATES] = {};
  int32_t ids[16 * NFC_MOST_GROWTH];
  visits[GEN_NEWLINE] = 1;
  *nats = *tokens = 0;
  for (int i = 0; i < GEN_STATES; i++) {
    const GenState *s = &g->state[i];
    size_t bytes = strlen(s->word);
    CHECK(bytes <= 16, "generated text: '%s' is too long", s->word);
    *tokens += visits[i] * (t ? (double)tokenizer_encode(t, (const uint8_t *)s->word, bytes, ids, true) : 1.0);
    for (int k = 0; k < s->edges; k++) {
      double p = (double)s->weight[k] / s->total;
      *nats -= visits[i] * p * log(p);
      if (s->next[k] != GEN_NEWLINE) visits[s->next[k]] += visits[i] * p;
    }
  }
  if (!t || !t->digits_together) return;
  const char *end[] = {" .\n", " .", "\n"};
  for (int i = 0; i < 3; i++)
    *tokens += (i ? -1 : 1) * (double)tokenizer_encode(t, (const uint8_t *)end[i], strlen(end[i]), ids);
}

// Writes `sentences` sentences into memory that the text owns; text.nats: minus their log-probability under the source.
// The i-th choice uses the i-th random number of the stream `key`, whatever sentence it is in.
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

// ================================================================================================ 3 cache
// Two files for a text and a vocabulary size, named by the hash of both: tokenizer-KEY.json, and tokens-KEY.bin, a
// token file (data/tokens/) of all splits, one after the other. With a given tokenizer KEY is the hash of the text and
// the tokenizer, and there is only tokens-KEY.bin. Files that do not match exactly are made again.
//
// CacheMark is in the free words of the token file's header. hash: of the header with this field 0, of the splits as
// stored in memory, and, for conversations, of RecordsSeen and RecordParts, which follow the masks in the file.
struct CacheMark { uint64_t key, tokenizer_hash; int64_t tokens_numel[SPLIT_COUNT]; uint64_t hash; };
union CacheHeader {
  int32_t word[TOKEN_FILE_WORDS];
  struct { int32_t kind[TOKEN_FILE_FREE_WORD]; CacheMark mark; } is;
};
static inline uint64_t cache_hash(CacheHeader h, const Corpus *c, const RecordPart *part, size_t parts) {
  h.is.mark.hash = 0;
  uint64_t hash = data_hash(0, &h, sizeof h);
  for (const Split &s : c->split) hash = data_hash(hash, s.tokens, split_bytes(&s));
  return parts ? data_hash(data_hash(hash, &c->seen, sizeof c->seen), part, sizeof *part * parts) : hash;
}
// Copies the loss masks, or (begins) the bits of documents' first tokens, from the splits to the file's stream of bits;
// with `back` from the stream to the splits, counting documents.
static inline void cache_bits(Corpus *c, bool begins, uint8_t *stream, bool back) {
  int64_t at = 0;
  for (Split &s : c->split)
    for (int64_t i = 0; i < s.tokens_numel; i++, at++) {
      uint8_t *const own = split_bits(&s, begins) + i / 8, *const all = stream + at / 8;
      const int bit = back ? *all >> at % 8 & 1 : *own >> i % 8 & 1;
      if (back) *own = (uint8_t)((i % 8 ? *own : 0) | bit << i % 8);
      else *all = (uint8_t)((at % 8 ? *all : 0) | bit << at % 8);
      if (back && begins) s.documents += bit;
    }
}
// Reads the splits of an open cache file, and, for conversations, the data after the masks. Returns NULL, or what is
// wrong.
static inline const char *cache_read_file(Corpus *c, const TokenFile *f, uint64_t key, Found *found) {
  const size_t parts = found ? (size_t)found->tokens[SPLIT_TRAIN].count : 0;
  const int64_t bits = found ? (f->tokens_numel + 7) / 8 : 0, part_bytes = (int64_t)(sizeof(RecordPart) * parts);
  CacheHeader h;
  int64_t at = sizeof h, numel = 0;
  if (f->offset_bytes != at || f->masked != !!found || !file_read(f->fd, &h, at, 0) || h.is.mark.key != key)
    return "it belongs to something else";
  bool ok = true;
  for (int i = 0; ok && i < SPLIT_COUNT; i++) {
    Split *s = &c->split[i];
    s->token_bytes = f->token_bytes;
    s->tokens_numel = h.is.mark.tokens_numel[i];
    ok = s->tokens_numel >= 0 && (numel += s->tokens_numel) <= f->tokens_numel;
    s->documents = ok && found && s->tokens_numel;               // until they are counted
    s->masked = s->documents;
    const int64_t bytes = s->tokens_numel * s->token_bytes;
    if (ok && bytes) s->tokens = s->owned = data_alloc(split_bytes(s), 1);
    ok = ok && file_read(f->fd, s->owned, bytes, at);
    at += bytes;
  }
  if (!ok || numel != f->tokens_numel) return "its header is damaged";
  for (int begins = 0; ok && begins < 2 && found; begins++, at += bits) {
    uint8_t *stream = (uint8_t *)data_alloc((size_t)bits, 1);
    for (Split &s : c->split) if (begins && s.documents) s.documents = 0;
    if ((ok = file_read(f->fd, stream, bits, at))) cache_bits(c, begins, stream, true);
    free(stream);
  }
  ok = ok && (!found || (file_read(f->fd, &c->seen, sizeof c->seen, at) &&
                         file_read(f->fd, found->part, part_bytes, at + (int64_t)sizeof c->seen)));
  if (!ok || cache_hash(h, c, found ? found->part : NULL, parts) != h.is.mark.hash)
    return "its checksum does not match";
  return tokenizer_hash(&c->tokenizer) == h.is.mark.tokenizer_hash ? NULL
                                                                   : "it does not belong to the tokenizer beside it";
}
// Reads tokenizer and ids if both files are there, whole, and match each other. If the corpus has a tokenizer, only the
// ids are read, which must be that tokenizer's. Returns NULL on success; "" if there are no files; else what is wrong.
static inline const char *cache_read(Corpus *c, const char *json, const char *bin, uint64_t key, Found *found) {
  static Error e;
  TokenFile f = {};
  if (access(bin, F_OK)) return "";
  data_format(f.path, sizeof f.path, "%s", bin);
  const char *fault = token_file_open(&f, &e) ? NULL : e.text;
  if (!fault && !c->has_tokenizer && !tokenizer_load(&c->tokenizer, json, &e)) fault = e.text;
  if (!fault) fault = cache_read_file(c, &f, key, found);
  if (f.fd >= 0) close(f.fd);
  if (!fault) return NULL;
  for (Split &s : c->split) split_free(&s);
  if (!c->has_tokenizer) tokenizer_free(&c->tokenizer);
  return fault;
}

// Temporary names of the cache files that are being written; "": none. No reader opens such names. The handler of a
// signal that ends the process removes them (corpus_abandon).
static char cache_temporary[2][PATH_MAX + 64];
void corpus_abandon() {
  for (const char *path : cache_temporary) if (path[0]) unlink(path);
}
static inline bool cache_write_file(Corpus *c, const Found *f, int fd, const char *path, uint64_t key) {
  const size_t parts = f ? (size_t)f->tokens[SPLIT_TRAIN].count : 0;
  CacheHeader h;
  int64_t at = sizeof h, numel = 0;
  for (const Split &s : c->split) numel += s.tokens_numel;
  const int64_t bits = f ? (numel + 7) / 8 : 0, part_bytes = (int64_t)(sizeof(RecordPart) * parts);
  token_file_header(h.word, numel, c->split[SPLIT_TRAIN].token_bytes, c->tokenizer.vocab_size, f,
                    f ? (int)(bits + (int64_t)sizeof c->seen + part_bytes) : 0);
  h.is.mark = CacheMark{key, tokenizer_hash(&c->tokenizer), {}, 0};
  for (int i = 0; i < SPLIT_COUNT; i++) h.is.mark.tokens_numel[i] = c->split[i].tokens_numel;
  h.is.mark.hash = cache_hash(h, c, f ? f->part : NULL, parts);
  bool ok = file_write(fd, path, &h, at, 0);
  for (const Split &s : c->split) {
    const int64_t bytes = s.tokens_numel * s.token_bytes;
    ok = ok && file_write(fd, path, s.tokens, bytes, at);
    at += bytes;
  }
  for (int begins = 0; ok && begins < 2 && f; begins++, at += bits) {
    uint8_t *stream = (uint8_t *)data_alloc((size_t)bits, 1);
    cache_bits(c, begins, stream, false);
    ok = file_write(fd, path, stream, bits, at);
    free(stream);
  }
  return ok && (!f || (file_write(fd, path, &c->seen, sizeof c->seen, at) &&
                       file_write(fd, path, f->part, part_bytes, at + (int64_t)sizeof c->seen)));
}
static inline bool cache_write(Corpus *c, const Found *f, const char *dir, const char *json, const char *bin,
                               uint64_t key, Error *why) {
  char *temporary = cache_temporary[1];
  data_format(cache_temporary[0], sizeof cache_temporary[0], "%s.tmp%d", json, (int)getpid());         // file_put's
  const bool has_json = c->has_tokenizer || tokenizer_save(&c->tokenizer, json, why);
  cache_temporary[0][0] = 0;
  if (!has_json) return false;
  data_format(temporary, sizeof cache_temporary[1], "%s.%llu.tmp", bin, file_nonce());
  const int fd = file_create(temporary, dir);
  bool ok = fd >= 0 && cache_write_file(c, f, fd, temporary, key);
  int fault = errno;
  if (fd >= 0 && close(fd) && ok) { ok = false; fault = errno; }
  if (ok && !(ok = file_rename(temporary, bin))) fault = errno;
  if (!ok) fail(why, "%s: %s", bin, strerror(fault));
  if (!ok && fd >= 0) unlink(temporary);
  temporary[0] = 0;
  return ok;
}

// Loads the given tokenizer, if any.
static inline bool corpus_take_tokenizer(Corpus *c, const CorpusOptions *o, Error *e) {
  Error why = {};
  if (!o->tokenizer || !*o->tokenizer) return true;
  if (!tokenizer_load_with(&c->tokenizer, o->tokenizer, o->add_tokens, &why))
    return fail_with(e, EXIT_MISSING, "tokenizer %s", why.text);
  c->tokenizer.divides &= !o->undivided;
  int missing = 0;
  if (c->tokenizer.ignored)
    data_warning(&c->warnings, "tokenizer %s has %s, which is ignored, as by transformers: texts are encoded whole",
                o->tokenizer, c->tokenizer.ignored);
  for (int32_t id : c->tokenizer.byte_id) missing += id < 0;
  if (missing)
    data_warning(&c->warnings, "tokenizer %s has no token for %d of the 256 bytes: they are left out of a text, as by "
                "Hugging Face tokenizers", o->tokenizer, missing);
  return c->has_tokenizer = true;
}

// Trains the tokenizer, unless it was given, and encodes the texts or, with f, the conversations.
static inline bool corpus_encode(Corpus *c, const Text *texts, Found *f, const EncodeOptions *of_records,
                                 const CorpusOptions *o, Error *e) {
  const double start = now_ms();
  if (!c->has_tokenizer)
    tokenizer_train(&c->tokenizer, texts[SPLIT_TRAIN].bytes, texts[SPLIT_TRAIN].numel, o->vocab_size, o->threads,
                    c->generated);
  const double trained = now_ms();
  if (f && !records_encode(c, f, of_records, e)) return false;
  for (int i = 0; i < SPLIT_COUNT && !f; i++)
    if (texts[i].numel) split_encode(&c->split[i], &c->tokenizer, &texts[i], o->threads);
  c->tokenizer_ms = c->has_tokenizer ? 0 : trained - start;
  c->encode_ms = now_ms() - trained;
  return true;
}
// Reads from the cache, or makes, the tokenizer (unless it was given) and the ids of the texts. A failure of the cache
// is a warning, never an error. f: the conversations that were found, in place of texts; else NULL.
static inline bool corpus_tokenize(Corpus *c, const Text *texts, Found *f, const CorpusOptions *o, Error *e) {
  const bool chats = f;
  EncodeOptions of_records = {};
  of_records.column = o->column, of_records.chat = o->chat, of_records.threads = o->threads;
  of_records.block_bytes = (int64_t)o->threads * RECORDS_BLOCK_BYTES;
  const bool divided = c->has_tokenizer ? c->tokenizer.divides : !c->generated;
  // A word that changes with the way in which texts are encoded.
  uint64_t key = data_hash(c->has_tokenizer, chats ? "chats006" : divided ? "tokens05" : "tokens04", 8);
  const char *how[CHAT_HOW];
  chat_how(&o->chat, how);
  for (const char *word : how) if (chats && *word) key = data_hash(key, word, strlen(word));
  key = data_mix(key ^ (c->has_tokenizer ? tokenizer_hash(&c->tokenizer) : (uint64_t)o->vocab_size));
  bool tables;
  if (f) {
    for (const DataNames &names : f->tokens) if (!encode_check(&names, &of_records, &tables, e)) return false;
    f->part = (RecordPart *)calloc((size_t)f->tokens[SPLIT_TRAIN].count, sizeof *f->part);
    key = data_hash(key, o->column, strlen(o->column));
    if (!f->part || !records_hash(f, &key, e)) return false;
  }
  for (int i = 0; i < SPLIT_COUNT && !f; i++) {
    key = data_hash(key, texts[i].bytes, texts[i].numel);
    if (divided) key = data_hash(key, texts[i].document, texts[i].documents * sizeof(size_t));
  }
  char json[PATH_MAX] = "", bin[PATH_MAX] = "";
  Error why = {};
  bool cached = o->cache_dir && *o->cache_dir;
  const char *fault = "";
  if (cached && !make_directories(o->cache_dir)) {
    data_warning(&c->warnings, "tokenizer and tokens are not cached: --cache %s cannot be made: %s", o->cache_dir,
                strerror(errno));
    cached = false;
  }
  if (cached) {
    data_format(json, sizeof json, "%s/tokenizer-%016llx.json", o->cache_dir, (unsigned long long)key);
    data_format(bin, sizeof bin, "%s/tokens-%016llx.bin", o->cache_dir, (unsigned long long)key);
    fault = cache_read(c, json, bin, key, f);
    if (fault && *fault)
      data_warning(&c->warnings, "cache file %s cannot be used (%s): made again", bin, fault);
  }
  c->cache_used = !fault;
  if (!c->cache_used) {
    if (!corpus_encode(c, texts, f, &of_records, o, e)) return false;
    if (cached && !cache_write(c, f, o->cache_dir, json, bin, key, &why))
      data_warning(&c->warnings, "tokenizer and tokens are not cached: %s", why.text);
  }
  c->has_tokenizer = true;
  c->vocab_size = c->tokenizer.vocab_size;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    Split *s = &c->split[i];
    if (f ? !s->tokens_numel : !texts[i].numel) continue;
    s->pairs = chats && o->chat.preferences;
    const bool given = f && f->tokens[i].count;  // else it was held out
    if (given && !split_check_mask(s, f->tokens[i].name[0], e)) return false;
    s->hash = split_hash(s);
    if (chats) continue;
    s->has_context = true;
    s->texts = divided ? (int64_t)texts[i].documents + 1 : 0;
    s->text_bytes = (int64_t)texts[i].numel;
    text_count(texts[i].bytes, texts[i].numel, &s->words, &s->lines);
    if (s->text_bytes > MOST_BYTES_A_WORD * s->words) s->words = 0;
  }
  return true;
}

// ================================================================================================ 4 corpus
void corpus_free(Corpus *c) {
  for (Split &s : c->split) split_free(&s);
  tokenizer_free(&c->tokenizer);
  free(c->block);
  *c = {};
}

static inline void corpus_hash(Corpus *c) {
  uint64_t h = data_mix((uint64_t)c->vocab_size);
  for (const Split &s : c->split) {
    h = data_mix(h * 3 + s.hash + (uint64_t)s.tokens_numel);
    for (int k = 0; k < s.sources; k++)
      h = data_mix(h * 5 + (uint64_t)s.source[k].weight + data_mix((uint64_t)s.source[k].tokens_numel));
  }
  const Split *train = &c->split[SPLIT_TRAIN];
  const bool encoded = train->has_context || train->documents || !train->tokens_numel;
  c->hash = c->has_tokenizer && encoded ? data_mix(h ^ tokenizer_hash(&c->tokenizer)) : h;
}

static inline bool corpus_check_text_vocab(const Corpus *c, const CorpusOptions *o, Error *e) {
  const int least = c->generated ? 256 : 257;
  if (c->has_tokenizer || o->vocab_size >= least) return true;
  return fail_with(e, EXIT_USAGE, "--vocab_size %d: a byte-level tokenizer has at least %d tokens", o->vocab_size,
                   least);
}

// Data given as ids has a vocabulary of o->vocab_size; a tokenizer with more tokens would produce ids outside it.
static inline bool corpus_check_tokenizer_fits(const Corpus *c, const CorpusOptions *o, Error *e) {
  if (!c->has_tokenizer || c->tokenizer.vocab_size <= o->vocab_size) return true;
  return fail_with(e, EXIT_USAGE, "tokenizer %s has %d tokens, more than --vocab_size %d: it belongs to another model",
                   o->tokenizer, c->tokenizer.vocab_size, o->vocab_size);
}

// Opens the token files of a split. The sources of the training split follow each other in its stream: says where each
// begins, at its first file, and how many tokens it has.
static inline bool corpus_open_tokens(Split *s, const Found *f, int split, int vocab_size, Error *e) {
  const DataNames *names = &f->tokens[split];
  s->file = (TokenFile *)calloc((size_t)names->count, sizeof(TokenFile));
  if (!s->file) die_missing("data: no memory for the names of %d files", names->count);
  s->files = names->count;
  for (int i = 0; i < s->files; i++) data_format(s->file[i].path, DATA_PATH_BYTES, "%s", names->name[i]);
  if (!split_open_files(s, vocab_size, e)) return false;
  s->sources = split == SPLIT_TRAIN ? f->sources : 0;
  for (int k = 0, i = 0; k < s->sources; i += f->source_files[k++]) {          // i: the first file of source k
    s->source[k] = f->mixed[k];                  // its name and weight
    s->source[k].first = s->file[i].first;
    const int end = i + f->source_files[k];
    s->source[k].tokens_numel = (end < s->files ? s->file[end].first : s->tokens_numel) - s->file[i].first;
  }
  return split_check_mask(s, s->file[0].path, e);
}
static inline bool corpus_load_token_files(Corpus *c, Found *f, const CorpusOptions *o, Error *e) {
  if (!corpus_check_tokenizer_fits(c, o, e)) return false;
  c->vocab_size = o->vocab_size;
  return corpus_open_tokens(&c->split[SPLIT_TRAIN], f, SPLIT_TRAIN, o->vocab_size, e) &&
         find_tokens_beside(f, o->data, e) &&
         corpus_open_tokens(&c->split[SPLIT_VALID], f, SPLIT_VALID, o->vocab_size, e);
}
// Adds to the source which file format conversations were in, and which schema the first has; of several files to
// `words` what each one has; and what is held out.
static inline void corpus_say_form(Corpus *c, const Found *f, const CorpusOptions *o) {
  const DataNames *names = &f->tokens[SPLIT_TRAIN];
  const RecordPart *part = f->part;
  char words[DATA_PATH_BYTES] = "", more[64] = "";
  int64_t held = 0;
  for (int i = 0; i < names->count; i++) held += part[i].held;
  if (held && names->count == 1)
    data_warning(&c->warnings, "%s: there are no conversations for validation: %s (%.1f %% of its bytes) %s held out "
                "for it and not trained on", names->name[0], part->last ? "its last records" : "one of its records",
                100.0 * (double)part->held_bytes / (double)part->bytes, part->last ? "are" : "is");
  else if (held)
    data_warning(&c->warnings, "--data %s: there are no conversations for validation: the last records of each file (a "
                "twentieth of its bytes) are held out for it and not trained on", o->data);
  if (names->count == 1)
    text_add(c->source, sizeof c->source, ": %s of %s", container_words(part->container).in, part->form);
  for (int i = 0; i < names->count && !more[0]; i++) {
    const size_t n = strlen(words);
    if (data_format(words + n, sizeof words - n, "%s%s: %lld as %s of %s", i ? "; " : "", path_base(names->name[i]),
                    (long long)part[i].records, container_words(part[i].container).in, part[i].form)) continue;
    words[n] = 0;
    snprintf(more, sizeof more, "; and %d files more", names->count - i);
  }
  if (names->count > 1)
    data_warning(&c->warnings, "conversations of %d files, in this order: %s%s", names->count, words, more);
}
// Sets the places of the sources of a mixture of conversations in the stream: they follow each other, each with the
// records of its files.
static inline void corpus_place_sources(Split *s, const Found *f) {
  const RecordPart *part = f->part;
  int64_t at = 0;
  for (int k = 0; k < f->sources; k++) {
    SplitSource *source = &s->source[s->sources++];
    *source = f->mixed[k];
    source->first = at;
    for (int i = 0; i < f->source_files[k]; i++, part++)
      for (int64_t n = 0; n < part->records * (s->pairs ? 2 : 1); n++)
        do at++; while (at < s->tokens_numel && !split_begins(s, at));
    source->tokens_numel = at - source->first;
  }
}
// Whether a token is text: not white space, a special token, <think> or </think>.
static inline bool corpus_token_says(const Tokenizer *t, int32_t id) {
  int n;
  const char *p = (const char *)tokenizer_token_bytes(t, id, &n);
  if (!chat_strip(ChatSpan{p, (size_t)n}, false).n || id == chat_token(t, "<think>") || id == chat_token(t, "</think>"))
    return false;
  for (int i = 0; i < t->added_count; i++) if (t->added[i].id == id) return !t->added[i].special;
  return true;
}
// Adds a warning if conversations have empty answers: runs of trained tokens without any that is text.
static inline void corpus_warning_empty(Corpus *c) {
  const Split *s = &c->split[SPLIT_TRAIN];
  int64_t empty = 0;
  for (int64_t i = 0, counted = -1, document = 0; i < s->tokens_numel; i++) {
    document += split_begins(s, i);
    if (!split_trained(s, i)) continue;
    const int64_t begin = i;
    bool says = false;
    for (; i < s->tokens_numel && split_trained(s, i) && (i == begin || !split_begins(s, i)); i++)
      says = says || corpus_token_says(&c->tokenizer, split_token(s, i));
    i--;
    if (!says && counted != document) empty++, counted = document;
  }
  if (empty)
    data_warning(&c->warnings, "%lld of %lld conversations to train on have an answer without text: the model learns "
                "to end there; take them out, or give these answers \"weight\": 0", (long long)empty,
                (long long)s->documents);
}
// Adds a warning of the fields of conversations that were not read. Fails if --fields names a key that no record has.
static inline bool corpus_check_seen(Corpus *c, const CorpusOptions *o, Error *e) {
  char words[1024];
  if (record_fields_missing(o->chat.fields, c->seen.fields, words, sizeof words))
    return fail_with(e, EXIT_USAGE, "--fields %s: no record of --data %s has that key", words, o->data);
  if (record_unread_say(&c->seen.unread, words, sizeof words))
    data_warning(&c->warnings, "--data %s: %s", o->data, words);
  return true;
}
// Loads the texts or token files that were found, and frees f.
static inline bool corpus_load_found(Corpus *c, Found *f, const CorpusOptions *o, Error *e) {
  const bool chats = f->records, tokens = f->tokens[SPLIT_TRAIN].count && !chats;
  bool ok = tokens ? corpus_load_token_files(c, f, o, e) : corpus_check_text_vocab(c, o, e);
  if (ok && chats && !c->has_tokenizer)
    ok = fail_with(e, EXIT_USAGE, "--data %s: conversations are encoded by a model's own tokenizer: name the model by "
                   "--init_from, or the tokenizer by --tokenizer", o->data);
  if (ok && !tokens) ok = corpus_tokenize(c, f->text, chats ? f : NULL, o, e);
  memcpy(c->source, f->source, sizeof c->source);
  if (ok && chats) ok = corpus_check_seen(c, o, e);
  if (ok && chats) {
    corpus_say_form(c, f, o);
    corpus_place_sources(&c->split[SPLIT_TRAIN], f);
    corpus_warning_empty(c);
    if (c->seen.rewritten)
      data_warning(&c->warnings, "%lld answers are not trained on: where another turn follows, the chat template "
                  "writes what came before them in another way", (long long)c->seen.rewritten);
    if (c->seen.endless)
      data_warning(&c->warnings, "%lld answers have no token that ends them: the chat template writes none, and "
                  "trained on is all up to the next turn's header", (long long)c->seen.endless);
  }
  found_free(f);
  return ok;
}

// A corpus of independent uniform tokens: nothing can be learnt, and the loss stays at the entropy, ln(vocab_size).
static inline bool corpus_load_random(Corpus *c, const CorpusOptions *o, Error *e) {
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

// The generated text is the same on every machine and for every seed of training, so that losses on it can be compared.
static inline bool corpus_load_generated(Corpus *c, const CorpusOptions *o, Error *e) {
  const int64_t sentences[SPLIT_COUNT] = {160000, 6000, 6000};
  const uint64_t seed = 20160926;
  c->generated = true;
  if (!corpus_check_text_vocab(c, o, e)) return false;
  GenSource g;
  Text texts[SPLIT_COUNT];
  double nats, tokens;
  gen_source_init(&g, seed);
  for (int i = 0; i < SPLIT_COUNT; i++) texts[i] = gen_text(&g, data_key(~seed, (uint64_t)i), sentences[i]);
  if (!corpus_tokenize(c, texts, NULL, o, e)) return false;
  gen_expectation(&g, &c->tokenizer, &nats, &tokens);
  c->entropy_nats = nats / tokens;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    c->split[i].oracle_nats = texts[i].nats / (double)split_targets_numel(&c->split[i]);
    text_free(&texts[i]);
  }
  data_format(c->source, sizeof c->source, "generated sentences, entropy %.4f nats per token", c->entropy_nats);
  return true;
}

// Finds a directory with WikiText-2: data/wikitext-2 in the working directory, or beside the program.
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
                                     Error *e) {
  Found f = {};
  f.warnings = &c->warnings;
  f.val_data = o->val_data;
  f.want = o->as_text ? WANT_BYTES : WANT_TEXT;
  if (*o->val_data && !directory && (!strcmp(o->data, "random") || !strcmp(o->data, "generated")))
    return fail_with(e, EXIT_USAGE, "--val_data goes with files that are trained on, not with --data %s", o->data);
  if (!directory && !strcmp(o->data, "random")) return corpus_load_random(c, o, e);
  if (!directory && !strcmp(o->data, "generated")) return corpus_load_generated(c, o, e);
  if (directory ? find_directory(&f, directory, asked, e)
      : o->records ? find_records(&f, o->data, e) : corpus_find(&f, o->data, e))
    return corpus_load_found(c, &f, o, e);
  found_free(&f);
  return false;
}

bool corpus_load(Corpus *c, CorpusOptions o, Error *e) {
  char dir[DATA_PATH_BYTES - 64];
  const char *env = getenv("WIKITEXT2_DIR");
  bool ok;
  *c = {};
  *e = {};
  bool given = o.tokenizer && *o.tokenizer;
  CHECK(o.threads >= 1 && (given || o.vocab_size >= 1), "corpus_load: threads %d, vocab_size %d", o.threads,
        o.vocab_size);
  if (!corpus_take_tokenizer(c, &o, e) || (o.vocab_given && !corpus_check_tokenizer_fits(c, &o, e))) ok = false;
  else if (o.data && *o.data) ok = corpus_load_asked(c, NULL, NULL, &o, e);
  else if (env && *env) {
    struct stat st;
    ok = stat(env, &st) == 0 && S_ISDIR(st.st_mode);
    if (ok) ok = corpus_load_asked(c, env, "WIKITEXT2_DIR", &o, e);
    else
      fail_with(e, EXIT_MISSING, "WIKITEXT2_DIR=%s is not a directory; expected: the one with WikiText-2's train.txt, "
                "valid.txt and test.txt", env);
  } else if (corpus_find_fetched(dir, sizeof dir)) ok = corpus_load_asked(c, dir, "fetched WikiText-2", &o, e);
  else if ((ok = corpus_load_generated(c, &o, e)))
    data_warning(
        &c->warnings,
        "no WikiText-2 here (no --data, no WIKITEXT2_DIR, no data/wikitext-2): training on generated sentences "
        "instead, of %.4f nats per token; data/get_wikitext2.sh fetches WikiText-2",
        c->entropy_nats);
  if (!ok) { corpus_free(c); return false; }
  corpus_hash(c);
  return true;
}

bool corpus_load_tokenizer(Corpus *c, CorpusOptions o, Error *e) {
  *c = {};
  *e = {};
  bool ok = o.tokenizer && *o.tokenizer ? corpus_take_tokenizer(c, &o, e)
                                        : fail_with(e, EXIT_USAGE, "no data and no tokenizer: give one of them");
  if (ok && o.vocab_size > 0) ok = corpus_check_tokenizer_fits(c, &o, e);
  if (!ok) { corpus_free(c); return false; }
  c->vocab_size = o.vocab_size > 0 ? o.vocab_size : c->tokenizer.vocab_size;
  data_format(c->source, sizeof c->source, "no data, the tokenizer %s", o.tokenizer);
  corpus_hash(c);
  return true;
}

// ---- passing a corpus to other processes: the struct, then the tokens that are in memory. Token files are passed by
// their paths: each process opens the same ones, and reads what it needs.
static inline size_t corpus_block_split_bytes(const Split *s) {
  return s->files ? sizeof(TokenFile) * (size_t)s->files : split_bytes(s);
}
static inline size_t corpus_block_place(const Corpus *c, int split) {  // 64-byte aligned; split == SPLIT_COUNT: the end
  size_t at = (sizeof(Corpus) + 63) / 64 * 64;
  for (int i = 0; i < split; i++) at += (corpus_block_split_bytes(&c->split[i]) + 63) / 64 * 64;
  return at;
}
size_t corpus_block_bytes(const Corpus *c) { return corpus_block_place(c, SPLIT_COUNT); }

void corpus_to_block(const Corpus *c, void *image) {
  memset(image, 0, corpus_block_bytes(c));
  Corpus *head = (Corpus *)image;
  memcpy((void *)head, c, sizeof *c);
  head->tokenizer = {};
  head->has_tokenizer = false;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    Split *s = &head->split[i];
    s->tokens = s->owned = s->file = NULL;
    if (!c->split[i].tokens_numel) continue;
    memcpy((char *)image + corpus_block_place(c, i), s->files ? c->split[i].file : c->split[i].tokens,
           corpus_block_split_bytes(s));
  }
}

// Opens the token files of a split that another process has opened under the same names; they must be the same files.
static inline bool corpus_of_block_files(Split *s, const TokenFile *theirs, Error *e) {
  const Split there = *s;
  s->file = (TokenFile *)data_alloc((size_t)s->files, sizeof(TokenFile));
  memcpy((void *)s->file, theirs, sizeof(TokenFile) * (size_t)s->files);
  if (!split_open_files(s, s->vocab_size ? s->vocab_size : INT_MAX, e)) return false;
  s->vocab_size = there.vocab_size;
  for (int i = 0; i < s->files; i++)
    if (s->file[i].tokens_numel != theirs[i].tokens_numel || s->file[i].hash != theirs[i].hash)
      return fail_with(e, EXIT_MISSING, "%s here is not the file that the corpus was loaded from (%lld tokens, there "
                       "%lld): every host needs the same file under this path", s->file[i].path,
                       (long long)s->file[i].tokens_numel, (long long)theirs[i].tokens_numel);
  return s->hash == there.hash ||
         fail_with(e, EXIT_MISSING, "%s%s here is not the file that the corpus was loaded from: of %d files of the "
                   "same sizes one has other tokens; copy them again", s->file[0].path, s->files > 1 ? " or another" :
                   "", s->files);
}
bool corpus_of_block(Corpus *c, const void *image, size_t bytes, Error *e) {
  *e = {};
  memcpy((void *)c, image, sizeof *c);
  CHECK(bytes == corpus_block_bytes(c), "corpus_of_block: %zu bytes given, the image says %zu", bytes,
        corpus_block_bytes(c));
  bool ok = true;
  for (Split &s : c->split) s.file = NULL;
  for (int i = 0; ok && i < SPLIT_COUNT; i++) {
    Split *s = &c->split[i];
    if (!s->tokens_numel) continue;
    const char *const at = (const char *)image + corpus_block_place((const Corpus *)image, i);
    if (s->files) { ok = corpus_of_block_files(s, (const TokenFile *)at, e); continue; }
    s->tokens = at;
    CHECK(split_hash(s) == s->hash, "corpus_of_block: the %s tokens arrived damaged", split_names[i]);
  }
  if (!ok) corpus_free(c);
  return ok;
}

