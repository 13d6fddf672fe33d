// bpe.h: byte-level BPE: trains, encodes and decodes the vocabulary of a GPT-2-style model; and BPE by
// characters with byte_fallback (SentencePiece's), which is loaded only: no pattern cuts it, bpe_joined_end does.
//
// A text is cut into pre-tokens (letters, numbers, punctuation, white space: the GPT-2 pattern, or a family's own);
// each pre-token, alone, becomes tokens: it starts as its bytes, and merges join neighbours, the earliest-learnt merge
// first.
//
// Conventions
//   - A tokenizer works by line or not. By line, as training made them to version 0.6 and makes them of generated text,
//     every line ends after its '\n' and no pre-token holds or depends on what follows. Not by line, as GPT-2's
//     published one, white space may run over newlines.
//   - Every pre-token ends before white space that follows another character, whatever is around it. Texts are cut
//     there (tokenizer_cut) and the parts are done separately, so ids and merges are the same for every number of
//     threads.
//   - Ids and merges are those of Hugging Face tokenizers given the same whole text (BPE model, trainer with its
//     byte-level initial alphabet, ByteLevel pre-tokenizer without prefix space; by line: after a Split that ends each
//     pre-token with its newline), and tokenizer.json is byte for byte the file it writes.
//   - Any bytes round-trip, but for a loaded tokenizer that normalises (NFC) or whose vocabulary lacks a byte. A byte
//     that belongs to no well-formed UTF-8 sequence is one character of class "other".
//   - Training not by line adds one special token, 0, <|endoftext|>, which stands before each document of a text. Those
//     of a loaded file are kept and matched as Hugging Face matches them: in the whole text, before lines and
//     pre-tokens.
//
// Parts: 1 characters and pre-tokens   2 a table of words   3 a heap   4 merging one pre-token   5 encode, decode, hash
//        6 train   (tokenizer_json.h: 7 save   8 load)
// Sources: Sennrich et al. 2016 (BPE); Radford et al. 2019 (bytes, pattern); Hugging Face tokenizers (counts and ties).
#pragma once
#include <stdbool.h>

#include "kernels/cpu/threads.h"
#include "nfc.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are compared eight bytes at a time, lowest byte first");

void *bpe_resize(void *old, size_t count, size_t each_bytes) {
  void *p = count <= SIZE_MAX / 2 / each_bytes ? realloc(old, count ? count * each_bytes : 1) : NULL;
  if (!p) die_missing("tokenizer: no memory for %zu x %zu bytes; use a smaller text or vocabulary", count, each_bytes);
  return p;
}

// ---- 1 characters and pre-tokens ------------------------------------------------------------------------------------
// The class of the character at p < end, and its bytes.
static inline int bpe_class_at(const uint8_t *p, const uint8_t *end, int *char_bytes) {
  *char_bytes = 1;
  if (*p < 0x80) return unicode_class(*p);
  const uint32_t c = utf8_char(p, end, char_bytes);
  return c < UTF8_BYTE ? unicode_class(c) : UNICODE_OTHER;
}
// Where the character that ends at `at` > text begins, if it is well formed.
static inline const uint8_t *bpe_char_before(const uint8_t *text, const uint8_t *at) {
  const uint8_t *first = at - 1;
  while (first > text && at - first < 4 && (*first & 0xc0) == 0x80) first--;     // back over continuation bytes
  return first;
}

// Past the longest run of characters of one class that starts at p.
static inline const uint8_t *bpe_run_end(const uint8_t *p, const uint8_t *end, int its_class) {
  while (p < end) {
    int n;
    if (bpe_class_at(p, end, &n) != its_class) return p;
    p += n;
  }
  return p;
}

// The end of the pre-token that starts at p < end:
//   's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ | ?\p{N}+ | ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+
// where, by line, the text ends after each '\n'. The last two: white space before a word leaves its last character to
// the word.
static inline const uint8_t *bpe_piece_end(const uint8_t *p, const uint8_t *end, bool by_line) {
  if (*p == '\'' && end - p >= 2) {
    uint8_t a = p[1], b = end - p >= 3 ? p[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
  }
  int n, its_class = bpe_class_at(p, end, &n);
  if (its_class != UNICODE_SPACE) return bpe_run_end(p + n, end, its_class);
  if (*p == ' ' && p + 1 < end) {
    its_class = bpe_class_at(p + 1, end, &n);
    if (its_class != UNICODE_SPACE) return bpe_run_end(p + 1 + n, end, its_class);
  }
  const uint8_t *last = p, *q = p;
  while (q < end && bpe_class_at(q, end, &n) == UNICODE_SPACE) {
    last = q;
    q += n;
    if (by_line && *last == '\n') return q;
  }
  return q == end || last == p ? q : last;
}

// The end of the English ending that starts at *p == '\'', in letters of either case: (?i:'s|'t|'re|'ve|'m|'ll|'d).
// NULL: there is none. Without case, U+017F is an s.
static inline const uint8_t *bpe_ending_end(const uint8_t *p, const uint8_t *end) {
  uint8_t a = end - p >= 2 ? p[1] : 0, b = end - p >= 3 ? p[2] : 0;
  if (a == 0xc5 && b == 0xbf) return p + 3;
  a |= a < 0x80 ? 0x20 : 0;
  b |= b < 0x80 ? 0x20 : 0;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? p + 3 : NULL;
}

// The end of the pre-token that starts at p < end, by the pattern of Llama 3 (3 digits together), nanochat (2), Qwen 2
// (1):
//   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,digits} | ?[^\s\p{L}\p{N}]+[\r\n]* | \s*[\r\n]+ |
//   \s+(?!\S) | \s+
static inline const uint8_t *bpe_llama_end(const uint8_t *p, const uint8_t *end, int digits) {
  const uint8_t *ending = *p == '\'' ? bpe_ending_end(p, end) : NULL, *line = NULL, *last = p, *q;
  if (ending) return ending;
  int n, m = 0, its_class = bpe_class_at(p, end, &n);
  if (its_class == UNICODE_LETTER) return bpe_run_end(p + n, end, UNICODE_LETTER);
  if (its_class == UNICODE_NUMBER) {
    for (q = p + n; --digits > 0 && q < end && bpe_class_at(q, end, &n) == UNICODE_NUMBER;) q += n;
    return q;
  }
  const int next = p + n < end ? bpe_class_at(p + n, end, &m) : UNICODE_SPACE;
  if (next == UNICODE_LETTER && *p != '\r' && *p != '\n') return bpe_run_end(p + n + m, end, UNICODE_LETTER);
  if (its_class == UNICODE_OTHER || (*p == ' ' && next == UNICODE_OTHER)) {
    q = bpe_run_end(p + n, end, UNICODE_OTHER);
    while (q < end && (*q == '\r' || *q == '\n')) q++;
    return q;
  }
  for (q = p; q < end && bpe_class_at(q, end, &n) == UNICODE_SPACE; q += n) {
    last = q;
    if (*q == '\r' || *q == '\n') line = q + 1;
  }
  return line ? line : q == end || last == p ? q : last;
}

// Letters of which case, by bits, the character at p < end may be in a word: marks, as letters without case, of both.
enum { BPE_UPPER = 1, BPE_LOWER = 2 };
static inline int bpe_cases_at(const uint8_t *p, const uint8_t *end, int *char_bytes) {
  const uint32_t c = utf8_char(p, end, char_bytes);
  if (c >= UTF8_BYTE) return 0;
  const int its_case = unicode_case(c);
  if (its_case == CASE_UPPER) return BPE_UPPER;
  if (its_case == CASE_LOWER) return BPE_LOWER;
  return its_case == CASE_MARK || unicode_class(c) == UNICODE_LETTER ? BPE_UPPER | BPE_LOWER : 0;
}
// The end of [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at p, as a pattern finds it that goes back; or,
// with `upper`, of the first part alone, of one character at least. NULL: there is none.
static inline const uint8_t *bpe_cased_run(const uint8_t *p, const uint8_t *end, bool upper) {
  const uint8_t *both = NULL, *q = p;            // both: after the last character that is of both parts
  int n, cases = 0;
  for (; q < end && (cases = bpe_cases_at(q, end, &n)) & BPE_UPPER; q += n)
    if (cases & BPE_LOWER) both = q + n;
  if (upper) return q > p ? q : NULL;
  if (q == end || !(cases & BPE_LOWER)) return both;
  while (q < end && bpe_cases_at(q, end, &n) & BPE_LOWER) q += n;
  return q;
}
// The end of the pre-token that starts at p < end, by the pattern of Tekken or, with endings, of o200k:
//   [^\r\n\p{L}\p{N}]?U*L+(ending)? | [^\r\n\p{L}\p{N}]?U+L*(ending)? | \p{N}{1,digits} | ?[^\s\p{L}\p{N}]+[\r\n/]* |
//   \s*[\r\n]+ | \s+(?!\S) | \s+       U, L: as above; the last three and digits are Llama 3's
static inline const uint8_t *bpe_cased_end(const uint8_t *p, const uint8_t *end, int digits, bool endings) {
  int n, m;
  const int its_class = bpe_class_at(p, end, &n);
  const bool leads = its_class != UNICODE_LETTER && its_class != UNICODE_NUMBER && *p != '\r' && *p != '\n';
  const uint8_t *word = NULL;
  for (int upper = 0; upper < 2 && !word; upper++) {
    if (leads) word = bpe_cased_run(p + n, end, upper);
    if (!word) word = bpe_cased_run(p, end, upper);
  }
  const uint8_t *const ending = word && endings && word < end && *word == '\'' ? bpe_ending_end(word, end) : NULL;
  if (word) return ending ? ending : word;
  const bool blank = *p == ' ' && p + n < end && bpe_class_at(p + n, end, &m) == UNICODE_OTHER;
  if (its_class != UNICODE_OTHER && !blank) return bpe_llama_end(p, end, digits);
  const uint8_t *q = bpe_run_end(p + n, end, UNICODE_OTHER);
  while (q < end && (*q == '\r' || *q == '\n' || *q == '/')) q++;
  return q;
}

// The first digit of p..end as Rust's char::is_numeric has it, and its bytes; `end` if there is none. It knows 13
// digits of Unicode 17, which the patterns do not.
static inline const uint8_t *bpe_first_digit(const uint8_t *p, const uint8_t *end, int *digit_bytes) {
  for (int n; p < end; p += n) {
    const uint32_t c = utf8_char(p, end, &n);
    *digit_bytes = n;
    if (c < UTF8_BYTE && (unicode_class(c) == UNICODE_NUMBER || c - 0x11de0 < 10 || c - 0x16ff4 < 3)) return p;
  }
  *digit_bytes = 0;
  return end;
}

void bpe_alphabet(uint16_t char_of_byte[256]) {
  uint16_t next = 256;
  for (int b = 0; b < 256; b++)
    char_of_byte[b] = (b >= 33 && b <= 126) || (b >= 161 && b != 173) ? (uint16_t)b : next++;
}

// ---- 2 a table of words --------------------------------------------------------------------------------------------
// Word -> 64-bit value. A word of up to 16 bytes is its own key; a longer one is its hash and a pointer to its bytes,
// which must stay where they are. Open addressing; length 0 marks a free slot, so a slot fills half a cache line.
static inline uint64_t bpe_mix(uint64_t a, uint64_t b) {  // the upper bits depend on every bit of a and b
  a = (a ^ b) * 0x9e3779b97f4a7c15u;
  return (a ^ (a >> 32)) * 0xd6e8feb86659fd93u;
}

// Fills the key of the word at p, whose bytes may be read up to readable_end; returns its hash.
static inline uint64_t bpe_word_key(BpeWord *w, const uint8_t *p, size_t length, const uint8_t *readable_end) {
  w->key[0] = w->key[1] = 0;
  w->length = length;
  if (length <= 16) {
    if ((size_t)(readable_end - p) >= 16) {
      memcpy(w->key, p, 16);
      if (length < 8) w->key[0] &= ((uint64_t)1 << (8 * length)) - 1;
      if (length <= 8) w->key[1] = 0;
      else if (length < 16) w->key[1] &= ((uint64_t)1 << (8 * (length - 8))) - 1;
    } else {
      memcpy(w->key, p, length);
    }
    return bpe_mix(bpe_mix(w->key[0], length), w->key[1]);
  }
  uint64_t h = length, chunk;
  for (size_t i = 0; i + 8 <= length; i += 8) { memcpy(&chunk, p + i, 8); h = bpe_mix(h, chunk); }
  memcpy(&chunk, p + length - 8, 8);
  w->key[0] = bpe_mix(h, chunk);
  w->key[1] = (uint64_t)(uintptr_t)p;
  return w->key[0];
}

static inline const uint8_t *bpe_word_bytes(const BpeWord *w) {
  return w->length <= 16 ? (const uint8_t *)w->key : (const uint8_t *)(uintptr_t)w->key[1];
}

static inline bool bpe_same_word(const BpeWord *a, const BpeWord *b) {
  if (a->length != b->length || a->key[0] != b->key[0]) return false;
  return a->key[1] == b->key[1] || (a->length > 16 && memcmp(bpe_word_bytes(a), bpe_word_bytes(b), a->length) == 0);
}

// The slot that holds w, or the free one where it belongs.
static inline BpeWord *bpe_table_slot(const BpeTable *t, const BpeWord *w, uint64_t hash) {
  size_t mask = ((size_t)1 << t->bits) - 1, i = (size_t)(hash >> (64 - t->bits));
  while (t->slots[i].length && !bpe_same_word(&t->slots[i], w)) i = (i + 1) & mask;
  return &t->slots[i];
}

static inline void bpe_table_init(BpeTable *t, int bits) {
  t->bits = bits;
  t->used = 0;
  t->slots = (BpeWord *)calloc((size_t)1 << bits, sizeof *t->slots);
  if (!t->slots) die_missing("tokenizer: no memory for a table of %zu words", (size_t)1 << bits);
}

// Puts w into the free slot that bpe_table_slot found. If half is used, it grows first and finds the slot again.
static inline BpeWord *bpe_table_add(BpeTable *t, BpeWord *free_slot, const BpeWord *w, uint64_t hash) {
  if (2 * (t->used + 1) > (size_t)1 << t->bits) {
    BpeTable grown;
    bpe_table_init(&grown, t->bits + 1);
    for (size_t i = 0; i < (size_t)1 << t->bits; i++) {
      const BpeWord *old = &t->slots[i];
      if (!old->length) continue;
      uint64_t h = old->length <= 16 ? bpe_mix(bpe_mix(old->key[0], old->length), old->key[1]) : old->key[0];
      *bpe_table_slot(&grown, old, h) = *old;
    }
    free(t->slots);
    t->slots = grown.slots;
    t->bits = grown.bits;
    free_slot = bpe_table_slot(t, w, hash);
  }
  t->used++;
  *free_slot = *w;
  return free_slot;
}

// ---- 3 a heap ------------------------------------------------------------------------------------------------------
// The smallest (first, second) on top.
struct BpeHeapItem { uint64_t first, second; uint32_t item; };
struct BpeHeap { BpeHeapItem *items; size_t count, capacity; int64_t steps; };        // steps: places looked at so far

static inline bool bpe_before(BpeHeapItem a, BpeHeapItem b) {
  return a.first != b.first ? a.first < b.first : a.second < b.second;
}

static inline void bpe_heap_push(BpeHeap *h, BpeHeapItem x) {
  if (h->count == h->capacity) {
    h->capacity = h->capacity ? 2 * h->capacity : 64;
    h->items = (BpeHeapItem *)bpe_resize(h->items, h->capacity, sizeof *h->items);
  }
  size_t i = h->count++;
  for (h->steps++; i > 0 && bpe_before(x, h->items[(i - 1) / 2]); i = (i - 1) / 2, h->steps++)
    h->items[i] = h->items[(i - 1) / 2];
  h->items[i] = x;
}

// Replaces the top by x.
static inline void bpe_heap_replace(BpeHeap *h, BpeHeapItem x) {
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < h->count; i = child, h->steps++) {
    if (child + 1 < h->count && bpe_before(h->items[child + 1], h->items[child])) child++;
    if (!bpe_before(h->items[child], x)) break;
    h->items[i] = h->items[child];
  }
  h->items[i] = x;
}

static inline void bpe_heap_pop(BpeHeap *h) {
  BpeHeapItem last = h->items[--h->count];
  if (h->count) bpe_heap_replace(h, last);
}

// ---- 4 merging one pre-token ----------------------------------------------------------------------------------------
enum { BPE_NO_RANK = INT32_MAX };

static inline uint64_t bpe_pair(int32_t left, int32_t right) {
  return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

// The rank of the merge of two neighbours, BPE_NO_RANK if they do not merge; *result is the id that they become.
static inline int32_t bpe_rank(const Tokenizer *t, int32_t left, int32_t right, int32_t *result) {
  uint64_t pair = bpe_pair(left, right);
  size_t mask = ((size_t)1 << t->merge_slot_bits) - 1, i = (size_t)(bpe_mix(pair, 0) >> (64 - t->merge_slot_bits));
  for (; t->merge_slots[i].pair != pair; i = (i + 1) & mask)
    if (t->merge_slots[i].rank == BPE_NO_RANK) return BPE_NO_RANK;
  *result = t->merge_slots[i].result;
  return t->merge_slots[i].rank;
}

// Fills merge_slots and in_order from merges. A pair that is listed twice has its last rank, as in Hugging Face
// tokenizers.
static inline void bpe_index_merges(Tokenizer *t) {
  t->merge_slot_bits = 4;
  while ((size_t)1 << t->merge_slot_bits < 2 * (size_t)t->merge_count) t->merge_slot_bits++;
  size_t slots = (size_t)1 << t->merge_slot_bits;
  t->merge_slots = (BpeMergeSlot *)bpe_resize(NULL, slots, sizeof *t->merge_slots);
  for (size_t i = 0; i < slots; i++) t->merge_slots[i] = {UINT64_MAX, BPE_NO_RANK, -1};
  for (int rank = 0; rank < t->merge_count; rank++) {
    uint64_t pair = bpe_pair(t->merges[rank].left, t->merges[rank].right);
    size_t i = (size_t)(bpe_mix(pair, 0) >> (64 - t->merge_slot_bits));
    while (t->merge_slots[i].pair != pair && t->merge_slots[i].rank != BPE_NO_RANK) i = (i + 1) & (slots - 1);
    t->merge_slots[i] = {pair, rank, t->merges[rank].result};
  }
  int *made = (int *)bpe_resize(NULL, (size_t)t->vocab_size, sizeof *made);    // the last merge that makes a token
  for (int id = 0; id < t->vocab_size; id++) made[id] = -1;
  for (int rank = 0; rank < t->merge_count; rank++) made[t->merges[rank].result] = rank;
  t->in_order = true;
  for (int rank = 0; rank < t->merge_count; rank++)
    t->in_order = t->in_order && made[t->merges[rank].left] < rank && made[t->merges[rank].right] < rank;
  free(made);
}

enum { BPE_SHORT_BYTES = 64, BPE_LONG_BYTES = 4096 };
enum : uint32_t { BPE_BLANK = 0x2581 };          // what stands for a space in a vocabulary of characters

// The slot of the character at p < end, and of the byte after it unless it is 0, as a token has them. NULL: p is at a
// byte of no character.
static inline const BpeWord *bpe_char_slot(const BpeTable *t, const uint8_t *p, const uint8_t *end, uint8_t behind,
                                           int *char_bytes) {
  const uint32_t c = utf8_char(p, end, char_bytes);
  const int n = c == BPE_BLANK ? 1 : *char_bytes;
  BpeWord w = {{c == BPE_BLANK ? ' ' : 0u, 0}, (size_t)n + (behind != 0), 0};
  if (c >= UTF8_BYTE) return NULL;
  for (int i = 0; c != BPE_BLANK && i < n; i++) w.key[0] |= (uint64_t)p[i] << 8 * i;
  w.key[0] |= (uint64_t)behind << 8 * n;
  return bpe_table_slot(t, &w, bpe_mix(bpe_mix(w.key[0], w.length), 0));         // as bpe_word_key
}
// Whether a token has the character at `before`, which ends at `at`, and the space or newline at `at` side by side: a
// byte of no character is a token that joins nothing.
static inline bool bpe_joins(const Tokenizer *t, const uint8_t *before, const uint8_t *at) {
  int n;
  const BpeWord *slot = bpe_char_slot(&t->joins, before, at, *at, &n);
  return slot && slot->length;
}
// The end of the pre-token that starts at p < end where no pattern cuts a text: before a space or newline that no token
// joins to the character before it, so that the ids of the whole are those of its pre-tokens.
static inline const uint8_t *bpe_joined_end(const Tokenizer *t, const uint8_t *p, const uint8_t *end) {
  int n;
  for (const uint8_t *before = NULL; p < end; before = p, p += n) {
    utf8_char(p, end, &n);
    if (before && (*p == ' ' || *p == '\n') && !bpe_joins(t, before, p)) return p;
  }
  return end;
}

// ids[0..n) hold the tokens of n <= BPE_SHORT_BYTES bytes; merges them in place and returns how many are left. Each
// turn looks at every neighbour: for pre-tokens this short that is quicker than a heap.
static inline int bpe_merge_short(const Tokenizer *t, int32_t *ids, int n) {
  int32_t ranks[BPE_SHORT_BYTES], results[BPE_SHORT_BYTES];  // of ids i and i+1
  for (int i = 0; i + 1 < n; i++) ranks[i] = bpe_rank(t, ids[i], ids[i + 1], &results[i]);
  while (n > 1) {
    int best = 0;
    for (int i = 1; i + 1 < n; i++)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == BPE_NO_RANK) break;
    ids[best] = results[best];
    n--;
    for (int i = best + 1; i < n; i++) ids[i] = ids[i + 1];
    for (int i = best + 1; i + 1 < n; i++) { ranks[i] = ranks[i + 1]; results[i] = results[i + 1]; }
    if (best > 0) ranks[best - 1] = bpe_rank(t, ids[best - 1], ids[best], &results[best - 1]);
    if (best + 1 < n) ranks[best] = bpe_rank(t, ids[best], ids[best + 1], &results[best]);
  }
  return n;
}

// The same for any n, in n log n. The tokens that are left are a list: next and prev of each; one that was merged away
// becomes -1.
struct BpeList { int32_t *ids; uint32_t *next, *prev; size_t n; };
static inline BpeList bpe_list(int32_t *ids, size_t n) {
  if (n >= UINT32_MAX) die_user("tokenizer: a word of %zu bytes without a space; break it up (at most 4 GiB)", n);
  BpeList l = {ids, (uint32_t *)bpe_resize(NULL, n, 4), (uint32_t *)bpe_resize(NULL, n, 4), n};
  for (size_t i = 0; i < n; i++) l.next[i] = (uint32_t)(i + 1), l.prev[i] = (uint32_t)i - 1;
  return l;
}
// The token at i, which is not the last, and its neighbour become one.
static inline void bpe_list_join(BpeList *l, size_t i, int32_t result) {
  const size_t j = l->next[i];
  l->ids[i] = result;
  l->ids[j] = -1;
  l->next[i] = l->next[j];
  if (l->next[i] < l->n) l->prev[l->next[i]] = (uint32_t)i;
}
static inline size_t bpe_list_end(BpeList *l) {
  size_t left = 0;
  for (size_t i = 0; i < l->n; i++) if (l->ids[i] >= 0) l->ids[left++] = l->ids[i];
  free(l->next);
  free(l->prev);
  return left;
}
// For any order of merges: neighbours wait in a heap by (rank, position). steps: NULL, or receives how many it took.
static inline size_t bpe_merge_long(const Tokenizer *t, int32_t *ids, size_t n, int64_t *steps = NULL) {
  BpeList l = bpe_list(ids, n);
  BpeHeap heap = {};
  int32_t result = -1, rank;
  for (size_t i = 0; i + 1 < n; i++)
    if ((rank = bpe_rank(t, ids[i], ids[i + 1], &result)) != BPE_NO_RANK)
      bpe_heap_push(&heap, {(uint64_t)rank, i, (uint32_t)result});
  while (heap.count) {
    BpeHeapItem top = heap.items[0];
    bpe_heap_pop(&heap);
    size_t i = (size_t)top.second, j = l.next[i];
    if (ids[i] < 0 || j >= n) continue;
    // Either neighbour may have changed since this entry was made; then it names another merge.
    if (bpe_rank(t, ids[i], ids[j], &result) != (int32_t)top.first) continue;
    bpe_list_join(&l, i, result);
    if (i > 0 && (rank = bpe_rank(t, ids[l.prev[i]], ids[i], &result)) != BPE_NO_RANK)
      bpe_heap_push(&heap, {(uint64_t)rank, l.prev[i], (uint32_t)result});
    if (l.next[i] < n && (rank = bpe_rank(t, ids[i], ids[l.next[i]], &result)) != BPE_NO_RANK)
      bpe_heap_push(&heap, {(uint64_t)rank, i, (uint32_t)result});
  }
  if (steps) *steps = heap.steps;
  free(heap.items);
  return bpe_list_end(&l);
}

// Places of a long word that wait, in a list for each rank, and the ranks that have any in a heap.
struct BpeWait { uint32_t place, next; };
struct BpeWaiting {
  BpeWait *item;
  uint32_t *first, *places;                      // by rank; of one rank, in their order
  size_t count, room, places_room;
  uint32_t spare;                                // items that were used
  BpeHeap ranks;
};
static inline void bpe_wait(BpeWaiting *w, int32_t rank, uint32_t place) {
  uint32_t at = w->spare;
  if (at != UINT32_MAX) w->spare = w->item[at].next;
  else {
    if (w->count == w->room) w->item = (BpeWait *)bpe_resize(w->item, w->room = 2 * w->room + 1024, 8);
    at = (uint32_t)w->count++;
  }
  if (w->first[rank] == UINT32_MAX) bpe_heap_push(&w->ranks, {(uint64_t)rank, 0, 0});
  w->item[at].place = place, w->item[at].next = w->first[rank];
  w->first[rank] = at;
  w->ranks.steps++;
}
static inline int bpe_compare_places(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}
// Takes the places of a rank, in their order. Returns how many.
static inline size_t bpe_wait_end(BpeWaiting *w, int32_t rank) {
  size_t n = 0, falls = 0;
  for (uint32_t at = w->first[rank]; at != UINT32_MAX; at = w->item[at].next) n++;
  if (n > w->places_room) w->places = (uint32_t *)bpe_resize(w->places, w->places_room = n + n / 2, 4);
  size_t i = n;
  for (uint32_t at = w->first[rank], next; at != UINT32_MAX; at = next) {      // the last that came is the first here
    next = w->item[at].next;
    w->places[--i] = w->item[at].place;
    falls += i + 1 < n && w->places[i] > w->places[i + 1];
    w->item[at].next = w->spare, w->spare = at;
  }
  w->first[rank] = UINT32_MAX;
  if (falls) qsort(w->places, n, 4, bpe_compare_places);
  for (size_t k = n; falls && k > 1; k /= 2) w->ranks.steps += (int64_t)n;
  return n;
}
// Where merges are in_order: all places of one rank at a time, which makes pairs of later ranks only. A heap of all
// places would be as many cache misses as steps.
static inline size_t bpe_merge_by_rank(const Tokenizer *t, int32_t *ids, size_t n, int64_t *steps = NULL) {
  BpeList l = bpe_list(ids, n);
  BpeWaiting w = {};
  int32_t result = -1, rank;
  w.first = (uint32_t *)bpe_resize(NULL, (size_t)t->merge_count, 4);
  memset(w.first, 0xff, (size_t)t->merge_count * 4);
  w.spare = UINT32_MAX;
  for (size_t i = 0; i + 1 < n; i++)
    if ((rank = bpe_rank(t, ids[i], ids[i + 1], &result)) != BPE_NO_RANK) bpe_wait(&w, rank, (uint32_t)i);
  while (w.ranks.count) {
    const int32_t now = (int32_t)w.ranks.items[0].first;
    const BpeMerge m = t->merges[now];
    bpe_heap_pop(&w.ranks);
    const size_t places = bpe_wait_end(&w, now);
    liveness_progress();
    for (size_t k = 0; k < places; k++) {
      const size_t i = w.places[k], j = l.next[i];
      if (j >= n || ids[i] != m.left || ids[j] != m.right) continue;           // one of them was merged away since
      bpe_list_join(&l, i, m.result);
      if (i > 0 && (rank = bpe_rank(t, ids[l.prev[i]], ids[i], &result)) != BPE_NO_RANK) bpe_wait(&w, rank, l.prev[i]);
      if (l.next[i] < n && (rank = bpe_rank(t, ids[i], ids[l.next[i]], &result)) != BPE_NO_RANK)
        bpe_wait(&w, rank, (uint32_t)i);
    }
  }
  if (steps) *steps = w.ranks.steps;
  for (void *p : {(void *)w.item, (void *)w.first, (void *)w.places, (void *)w.ranks.items}) free(p);
  return bpe_list_end(&l);
}

// ---- 5 encode, decode, hash ----------------------------------------------------------------------------------------
// Words repeat, so each thread caches the ids of those it has seen. A full cache is emptied: its size is bounded
// whatever the text, and no result depends on it.
enum { BPE_CACHE_MAX_BITS = 18, BPE_CACHE_MAX_IDS = 1 << 20, BPE_CACHE_MAX_WORD_BYTES = 4096 };

static inline void bpe_cache_clear(BpeEncoder *e) {
  memset(e->cache.slots, 0, sizeof *e->cache.slots << e->cache.bits);
  e->cache.used = 0;
  e->cached_count = 0;
}

// The tokens that merging n bytes starts from. Returns how many.
static inline size_t bpe_first_ids(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids) {
  size_t count = 0;
  if (!t->byte_fallback)
    for (size_t i = 0; i < n; i++) {
      ids[count] = t->byte_id[p[i]];
      count += ids[count] >= 0;
    }
  int bytes;
  for (const uint8_t *const end = p + n; t->byte_fallback && p < end; p += bytes) {
    const BpeWord *slot = bpe_char_slot(&t->whole, p, end, 0, &bytes);
    if (slot && slot->length) ids[count++] = (int32_t)slot->value;
    else for (int i = 0; i < bytes; i++) ids[count++] = t->byte_id[p[i]];
  }
  return count;
}
// The tokens of a pre-token. Returns how many; ids has room for one per byte.
static inline size_t bpe_merge(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids) {
  const size_t count = bpe_first_ids(t, p, n, ids);
  return count <= BPE_SHORT_BYTES ? (size_t)bpe_merge_short(t, ids, (int)count)
         : count <= BPE_LONG_BYTES || !t->in_order ? bpe_merge_long(t, ids, count)
                                                   : bpe_merge_by_rank(t, ids, count);
}

// Encodes one pre-token that the cache does not have, and adds it to the cache.
static inline void bpe_encode_new_word(BpeEncoder *e, const uint8_t *p, size_t n, BpeWord *w, BpeWord *slot,
                                       uint64_t hash) {
  const BpeWord *whole = e->t->whole.slots ? bpe_table_slot(&e->t->whole, w, hash) : NULL;
  size_t count = 0;
  if (whole && whole->length) e->ids[count++] = (int32_t)whole->value;
  else count = bpe_merge(e->t, p, n, e->ids);
  if (n <= (e->passing ? (size_t)16 : (size_t)BPE_CACHE_MAX_WORD_BYTES)) {
    bool full =
        2 * (e->cache.used + 1) > (size_t)1 << BPE_CACHE_MAX_BITS || e->cached_count + count > BPE_CACHE_MAX_IDS;
    if (full) {
      bpe_cache_clear(e);
      slot = bpe_table_slot(&e->cache, w, hash);
    }
    if (count == 1) {
      w->value = (uint64_t)(uint32_t)e->ids[0] << 1 | 1;
    } else {
      while (e->cached_count + count >= e->cached_capacity) {
        e->cached_capacity = e->cached_capacity ? 2 * e->cached_capacity : 1024;
        e->cached_ids = (int32_t *)bpe_resize(e->cached_ids, e->cached_capacity, sizeof *e->cached_ids);
      }
      memcpy(e->cached_ids + e->cached_count, e->ids, count * sizeof *e->ids);
      w->value = (uint64_t)e->cached_count << 32 | (uint64_t)count << 1;
      e->cached_count += count;
    }
    bpe_table_add(&e->cache, slot, w, hash);
  }
  e->ids += count;
}

// Where each token from `first` on ends, of which p starts the first, or what follows its space if that was put there:
// a token of that space alone belongs to the byte after it.
static inline void bpe_put_ends(BpeEncoder *e, const int32_t *first, const uint8_t *p, const uint8_t *end, bool blank) {
  for (; e->ends && first < e->ids; first++) {
    int n;
    const uint8_t *bytes = tokenizer_token_bytes(e->t, *first, &n);
    for (int i = blank; i < n && p < end; i++) p += bytes[i] == ' ' && *p != ' ' && end - p >= 3 ? 3 : 1;
    *e->ends++ = p - e->text + (blank && n == 1);
    blank = false;
  }
}

static inline void bpe_encode_span(BpeEncoder *e, const uint8_t *p, const uint8_t *end) {
  const bool by_line = e->t->by_line, joined = e->t->byte_fallback;
  const int digits = e->t->digits_together;
  const BpeCased cased = e->t->cased;
  while (p < end) {
    const uint8_t *q = joined ? bpe_joined_end(e->t, p, end)
                       : cased ? bpe_cased_end(p, end, digits, cased == CASED_ENDINGS)
                              : digits ? bpe_llama_end(p, end, digits) : bpe_piece_end(p, end, by_line);
    const int32_t *first = e->ids;
    size_t n = (size_t)(q - p);
    BpeWord w;
    uint64_t hash = bpe_word_key(&w, p, n, e->readable_end);
    BpeWord *slot = bpe_table_slot(&e->cache, &w, hash);
    if (!slot->length) {
      bpe_encode_new_word(e, p, n, &w, slot, hash);
    } else if (slot->value & 1) {
      *e->ids++ = (int32_t)(slot->value >> 1);
    } else {
      size_t count = (uint32_t)slot->value >> 1;
      memcpy(e->ids, e->cached_ids + (slot->value >> 32), count * sizeof *e->ids);
      e->ids += count;
    }
    bpe_put_ends(e, first, p, q, false);
    p = q;
  }
}
// The same, after a space where the tokenizer puts one: with it the first pre-token is none of the text's.
static inline void bpe_encode_prefixed(BpeEncoder *e, const uint8_t *p, const uint8_t *end) {
  const BpePrefix prefix = e->t->prefix;
  const bool blank = p < end && (*p == ' ' || (end - p >= 3 && !memcmp(p, "\xe2\x96\x81", 3)));
  if (p < end && prefix && !(p == e->text && e->continues) && !(blank && prefix != PREFIX_PREPEND) &&
      (p == e->text || prefix != PREFIX_FIRST)) {
    const uint8_t *q = bpe_joined_end(e->t, p, end);
    const int32_t *first = e->ids;
    e->prefixed = (uint8_t *)bpe_resize(e->prefixed, (size_t)(q - p) + 1, 1);
    e->prefixed[0] = ' ';
    memcpy(e->prefixed + 1, p, (size_t)(q - p));
    e->ids += bpe_merge(e->t, e->prefixed, (size_t)(q - p) + 1, e->ids);
    bpe_put_ends(e, first, p, q, true);
    p = q;
  }
  bpe_encode_span(e, p, end);
}

// The same where digits are cut out first: the text ends before each.
static inline void bpe_encode_between_digits(BpeEncoder *e, const uint8_t *p, const uint8_t *end) {
  for (int n; p < end;) {
    const uint8_t *digit = bpe_first_digit(p, end, &n);
    bpe_encode_span(e, p, digit);
    bpe_encode_span(e, digit, digit + n);
    p = digit + n;
  }
}

// Makes *p..*end normalised: as stored in the text where that is so already.
static inline void bpe_normalise(BpeEncoder *e, const uint8_t **p, const uint8_t **end) {
  const uint8_t *starter;
  e->readable_end = e->text_end;
  if (nfc_first_unsettled(*p, *end, &starter) == *end) return;
  if (!e->normal) {
    const size_t room = NFC_MOST_GROWTH * (size_t)(e->text_end - *p);
    e->normal = e->normal_next = (uint8_t *)bpe_resize(NULL, room, 1);
    e->normal_end = e->normal + room;
  }
  const uint8_t *first = e->normal_next;
  e->normal_next = nfc_write(&e->nfc, e->normal_next, *p, *end);
  *p = first;
  *end = e->normal_next;
  e->readable_end = e->normal_end;
}

// Finds added tokens in p..end, leftmost first and the longest of those: first those that match the raw text (pass 0),
// then, in what is left, those that match the normalised one (pass 1).
static inline void bpe_encode_added(BpeEncoder *e, const uint8_t *p, const uint8_t *end, int pass) {
  if (pass == 0 && !(e->added_passes & 1)) pass = 1;
  if (pass == 1 && e->t->nfc) bpe_normalise(e, &p, &end);
  if (pass == 1 && !(e->added_passes & 2)) pass = 2;
  if (pass == 2 && e->t->digits_alone) { bpe_encode_between_digits(e, p, end); return; }
  if (pass == 2) { bpe_encode_prefixed(e, p, end); return; }
  const Tokenizer *t = e->t;
  const uint8_t *rest = p;
  while (p < end) {
    if (!(e->added_first[*p] >> pass & 1)) { p++; continue; }
    const BpeAddedToken *found = NULL;
    for (int i = 0; i < t->added_count; i++) {
      const BpeAddedToken *a = &t->added[i];
      const uint8_t *content = t->bytes + a->at;
      if (*content != *p || a->normalized != (pass == 1) || (found && a->bytes <= found->bytes)) continue;
      if (a->bytes <= (size_t)(end - p) && memcmp(content, p, a->bytes) == 0) found = a;
    }
    if (!found) { p++; continue; }
    const uint8_t *from = p;
    int n;
    for (const uint8_t *q; found->lstrip && from > rest; from = q)
      if (bpe_class_at(q = bpe_char_before(rest, from), from, &n) != UNICODE_SPACE || q + n != from) break;
    bpe_encode_added(e, rest, from, pass + 1);
    *e->ids++ = found->id;
    p += found->bytes;
    if (e->ends) *e->ends++ = p - e->text;
    rest = p = found->rstrip ? bpe_run_end(p, end, UNICODE_SPACE) : p;
  }
  bpe_encode_added(e, rest, end, pass + 1);
}

// The class of the character that ends in front of text[at], at > 0. With NFC, a letter or digit that it may change
// counts as other: U+0958 becomes U+0915 U+093C, of which the last is no letter.
static inline int bpe_class_before(const Tokenizer *t, const uint8_t *text, size_t at) {
  const uint8_t *first = bpe_char_before(text, text + at);
  int n;
  const uint32_t c = utf8_char(first, text + at, &n);
  if (first + n != text + at || c >= UTF8_BYTE) return UNICODE_OTHER;
  const int its_class = unicode_class(c);
  return t->nfc && its_class != UNICODE_SPACE && nfc_class(c) ? UNICODE_OTHER : its_class;
}

// Whether an added token may span the place before text[at]; or end there, after which another part starts.
static inline bool bpe_added_across(const Tokenizer *t, const uint8_t *text, size_t bytes, size_t at) {
  for (int i = 0; i < t->added_count; i++) {
    const uint8_t *content = t->bytes + t->added[i].at;
    const size_t n = t->added[i].bytes;
    for (size_t before = 1; before < n + t->byte_fallback && before <= at; before++)
      if (n - before <= bytes - at && memcmp(text + at - before, content, n) == 0) return true;
  }
  return false;
}

bool tokenizer_cuts_at(const Tokenizer *t, const uint8_t *text, size_t bytes, size_t at) {
  if (text[at] != ' ' && text[at] != '\n') return false;
  const int before = bpe_class_before(t, text, at);
  const bool joined = t->byte_fallback ? bpe_joins(t, bpe_char_before(text, text + at), text + at)
                                       : t->digits_together && text[at] == '\n' && before == UNICODE_OTHER;
  return before != UNICODE_SPACE && !joined && !bpe_added_across(t, text, bytes, at);
}
size_t tokenizer_cut(const Tokenizer *t, const uint8_t *text, size_t bytes, size_t at) {
  if (at == 0) return 0;
  while (at < bytes && !tokenizer_cuts_at(t, text, bytes, at)) at++;
  return at < bytes ? at : bytes;
}

size_t tokenizer_ids_most(const Tokenizer *t, size_t bytes) {
  return bytes * (t->nfc ? (size_t)NFC_MOST_GROWTH : t->prefix ? 2 : 1);
}

// The start of part i of n of a text: equal shares of bytes, moved on to a cut. Part n starts at the end.
static inline size_t bpe_part_start(const Tokenizer *t, const uint8_t *text, size_t bytes, int i, int n) {
  return i == n ? bytes : tokenizer_cut(t, text, bytes, bytes / (size_t)n * (size_t)i);
}

void bpe_encoder_open(BpeEncoder *e, const Tokenizer *t) {
  *e = {};
  e->t = t;
  bpe_table_init(&e->cache, 10);
  for (int i = 0; i < t->added_count; i++) {
    uint8_t pass = (uint8_t)(1 << t->added[i].normalized);
    e->added_first[t->bytes[t->added[i].at]] |= pass;
    e->added_passes |= pass;
  }
}
int64_t bpe_encoder_run(BpeEncoder *e, const uint8_t *text, size_t bytes, int32_t *ids,
                        bool continues) {
  if (e->normal) {                               // it had room for one text
    bpe_cache_clear(e);
    free(e->normal);
    e->normal = NULL;
  }
  e->text = text;
  e->text_end = e->readable_end = text + bytes;
  e->continues = continues;
  e->ids = ids;
  bpe_encode_added(e, text, text + bytes, 0);
  return e->ids - ids;
}
void bpe_encoder_close(BpeEncoder *e) {
  free(e->cache.slots);
  free(e->cached_ids);
  free(e->normal);
  free(e->prefixed);
  nfc_work_free(&e->nfc);
}
int64_t tokenizer_encode(const Tokenizer *t, const uint8_t *text, size_t bytes, int32_t *ids, bool continues) {
  CHECK(t->vocab_size >= 256, "tokenizer_encode: vocabulary %d", t->vocab_size);
  BpeEncoder e;
  bpe_encoder_open(&e, t);
  const int64_t count = bpe_encoder_run(&e, text, bytes, ids, continues);
  bpe_encoder_close(&e);
  return count;
}

// Whether a tokenizer is as training makes them not by line: GPT-2's pre-tokens, and token 0 is the only added one but
// for those of tokenizer_add.
static inline bool bpe_divides(const Tokenizer *t) {
  const bool plain = !t->by_line && !t->digits_together && !t->digits_alone && !t->nfc && !t->ignore_merges &&
                     !t->byte_fallback;
  for (int i = 1; i < t->added_count; i++)
    if (t->added[i].special || t->added[i].normalized || t->added[i].in_vocab) return false;
  return plain && !t->adds_bos && t->added_count && !t->added->id && t->added->special &&
         t->byte_start[1] == strlen(bpe_end_of_text) && !memcmp(t->bytes, bpe_end_of_text, t->byte_start[1]);
}

int64_t tokenizer_begin(const Tokenizer *t, const uint8_t *text, size_t bytes, int32_t *ids) {
  const int64_t begin = t->adds_bos;
  if (begin) ids[0] = t->bos_id;
  else if (!bytes) return t->divides ? (ids[0] = 0, 1) : tokenizer_encode(t, (const uint8_t *)"\n", 1, ids, true);
  return begin + tokenizer_encode(t, text, bytes, ids + begin);
}

const uint8_t *tokenizer_token_bytes(const Tokenizer *t, int32_t id, int *length_bytes) {
  CHECK(id >= 0 && id < t->vocab_size, "token %d is not of a vocabulary of %d", id, t->vocab_size);
  *length_bytes = (int)(t->byte_start[id + 1] - t->byte_start[id]);
  return t->bytes + t->byte_start[id];
}

static inline uint64_t bpe_fnv(uint64_t h, const void *data, size_t bytes) {  // FNV-1a, 64 bits
  for (size_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
  return h;
}

uint64_t tokenizer_hash(const Tokenizer *t) {
  uint64_t h = 0xcbf29ce484222325u;
  for (int id = 0; id < t->vocab_size; id++) {
    uint64_t n = t->byte_start[id + 1] - t->byte_start[id];
    h = bpe_fnv(h, &n, sizeof n);
    h = bpe_fnv(h, t->bytes + t->byte_start[id], (size_t)n);
  }
  h = bpe_fnv(h, t->merges, (size_t)t->merge_count * sizeof *t->merges);
  for (int i = 0; i < t->added_count; i++) {
    const BpeAddedToken *a = &t->added[i];
    int32_t fields[] = {a->id, a->special | a->lstrip << 1 | a->rstrip << 2, a->normalized, a->in_vocab};
    h = bpe_fnv(h, fields, sizeof fields);
  }
  h = bpe_fnv(h, &t->by_line, sizeof t->by_line);
  const int32_t more[] = {t->digits_together, t->digits_alone, t->nfc, t->ignore_merges, t->adds_bos ? t->bos_id : -1};
  const bool plain = !more[0] && !more[1] && !more[2] && !more[3] && !t->adds_bos;
  if (t->cased) h = bpe_fnv(h, &t->cased, sizeof t->cased);
  const int32_t prefix = t->prefix;
  if (t->byte_fallback) h = bpe_fnv(h, &prefix, sizeof prefix);
  return plain ? h : bpe_fnv(h, more, sizeof more);
}

void tokenizer_free(Tokenizer *t) {
  free(t->bytes);
  free(t->byte_start);
  free(t->merges);
  free(t->merge_slots);
  free(t->added);
  free(t->whole.slots);
  free(t->joins.slots);
  free(t->file);
  *t = {};
}

// ---- 6 train -------------------------------------------------------------------------------------------------------
// The distinct words are stored one after the other as symbols, each linked to its neighbours in the word. A pair
// stores how often it occurs (a word's count for each of its places, overlaps included: "aaa" has "aa" twice) and where
// it did; a symbol stores which pair it now starts, so a place that has since been merged away is recognised in one
// comparison. The whole costs time in proportion to the symbols merged, whatever the size of the vocabulary.
enum : uint32_t { BPE_NONE = UINT32_MAX };

struct BpeSymbol { int32_t id; uint32_t prev, next, pair, count; };
struct BpeCountedPair { int32_t left, right; uint64_t count; uint32_t first_place, places; };

struct BpeTrainer {
  BpeSymbol *symbols;
  size_t symbol_count;
  BpeCountedPair *pairs;
  size_t pair_count, pair_capacity;
  uint32_t *places;            // symbols, by pair; each pair's in ascending order
  size_t place_count;
  uint32_t *new_pairs, *new_places;  // made by the merge under way: the pair and its place
  size_t new_count, new_capacity;
  uint32_t *pair_of_left, *pair_of_right;  // [token x]: the last pair (x, newest token), (newest token, x)
  BpeHeap heap;                // pairs by count, then ids; a count in it may be outdated, never too small
};

static inline uint32_t bpe_new_pair(BpeTrainer *r, int32_t left, int32_t right) {
  if (r->pair_count == r->pair_capacity) {
    r->pair_capacity = r->pair_capacity ? 2 * r->pair_capacity : 65536;
    r->pairs = (BpeCountedPair *)bpe_resize(r->pairs, r->pair_capacity, sizeof *r->pairs);
  }
  r->pairs[r->pair_count] = {left, right, 0, 0, 0};
  return (uint32_t)r->pair_count++;
}

static inline void bpe_count_words(BpeTable *words, bool by_line, const uint8_t *text, size_t from, size_t to) {
  const uint8_t *p = text + from, *end = text + to;
  uint32_t count = 0;
  for (const uint8_t *q; p < end; p = q) {
    q = bpe_piece_end(p, end, by_line);
    if (!(++count & 0xffff)) liveness_progress();
    BpeWord w;
    uint64_t hash = bpe_word_key(&w, p, (size_t)(q - p), end);
    BpeWord *slot = bpe_table_slot(words, &w, hash);
    w.value = 0;
    if (!slot->length) slot = bpe_table_add(words, slot, &w, hash);
    slot->value++;
  }
}

// The distinct words of a text with their counts, by all threads. The order in the table does not matter.
static inline BpeTable bpe_words_of(const Tokenizer *t, const uint8_t *text, size_t bytes, int threads) {
  BpeTable *tables = (BpeTable *)bpe_resize(NULL, (size_t)threads, sizeof *tables);
  parallel_for(threads, 0, threads, 1, [=](int64_t part) {
    const int i = (int)part;
    bpe_table_init(&tables[i], 12);
    bpe_count_words(&tables[i], t->by_line, text, bpe_part_start(t, text, bytes, i, threads),
                    bpe_part_start(t, text, bytes, i + 1, threads));
  });
  BpeTable all = tables[0];
  for (int i = 1; i < threads; i++) {
    for (size_t s = 0; s < (size_t)1 << tables[i].bits; s++) {
      BpeWord w = tables[i].slots[s];
      if (!w.length) continue;
      uint64_t hash = w.length <= 16 ? bpe_mix(bpe_mix(w.key[0], w.length), w.key[1]) : w.key[0];
      BpeWord *slot = bpe_table_slot(&all, &w, hash);
      if (slot->length) slot->value += w.value;
      else bpe_table_add(&all, slot, &w, hash);
    }
    free(tables[i].slots);
  }
  free(tables);
  return all;
}

// Lays out the symbols of all words. Words of one byte have no pair and are left out.
static inline void bpe_lay_out_words(BpeTrainer *r, const BpeTable *words, const Tokenizer *t) {
  size_t total = 0;
  for (size_t s = 0; s < (size_t)1 << words->bits; s++)
    total += words->slots[s].length > 1 ? words->slots[s].length : 0;
  if (total >= UINT32_MAX / 3)
    die_user("tokenizer: %zu bytes of distinct words, at most 1.4e9; train on part of the text", total);
  r->symbols = (BpeSymbol *)bpe_resize(NULL, total, sizeof *r->symbols);
  for (size_t s = 0; s < (size_t)1 << words->bits; s++) {
    const BpeWord *w = &words->slots[s];
    const uint8_t *p = bpe_word_bytes(w);
    if (w->length < 2) continue;
    if (w->value > UINT32_MAX) die_user("tokenizer: a word occurs more than 4e9 times; train on part of the text");
    for (size_t i = 0; i < w->length; i++) {
      uint32_t at = (uint32_t)r->symbol_count++;
      uint32_t prev = i > 0 ? at - 1 : BPE_NONE, next = i + 1 < w->length ? at + 1 : BPE_NONE;
      r->symbols[at] = {t->byte_id[p[i]], prev, next, BPE_NONE, (uint32_t)w->value};
    }
  }
}

// Counts the pairs of bytes and lists their places. A merge removes a symbol and makes at most two places, so
// 3 x symbol_count is always enough room.
static inline void bpe_count_pairs(BpeTrainer *r) {
  enum { IDS = 257 };                            // of bytes, after <|endoftext|> or not
  uint32_t *pair_of = (uint32_t *)bpe_resize(NULL, IDS * IDS, sizeof *pair_of);
  for (int i = 0; i < IDS * IDS; i++) pair_of[i] = BPE_NONE;
  for (size_t at = 0; at < r->symbol_count; at++) {
    BpeSymbol *s = &r->symbols[at];
    if (s->next == BPE_NONE) continue;
    int32_t left = s->id, right = r->symbols[s->next].id;
    uint32_t *pair = &pair_of[left * IDS + right];
    if (*pair == BPE_NONE) *pair = bpe_new_pair(r, left, right);
    s->pair = *pair;
    r->pairs[*pair].count += s->count;
    r->pairs[*pair].places++;
  }
  free(pair_of);
  r->places = (uint32_t *)bpe_resize(NULL, 3 * r->symbol_count, sizeof *r->places);
  for (size_t i = 0; i < r->pair_count; i++) {
    r->pairs[i].first_place = (uint32_t)r->place_count;
    r->place_count += r->pairs[i].places;
    r->pairs[i].places = 0;
  }
  for (size_t at = 0; at < r->symbol_count; at++) {
    if (r->symbols[at].pair == BPE_NONE) continue;
    BpeCountedPair *pair = &r->pairs[r->symbols[at].pair];
    r->places[pair->first_place + pair->places++] = (uint32_t)at;
  }
}

static inline void bpe_queue_pair(BpeTrainer *r, uint32_t pair) {
  const BpeCountedPair *p = &r->pairs[pair];
  if (p->count) bpe_heap_push(&r->heap, {UINT64_MAX - p->count, bpe_pair(p->left, p->right), pair});
}

// The symbol at `place` now starts `pair` instead of old_pair.
static inline void bpe_repair(BpeTrainer *r, uint32_t place, uint32_t old_pair, uint32_t pair) {
  BpeSymbol *s = &r->symbols[place];
  r->pairs[old_pair].count -= s->count;
  r->pairs[pair].count += s->count;
  r->pairs[pair].places++;
  s->pair = pair;
  if (r->new_count == r->new_capacity) {
    r->new_capacity = r->new_capacity ? 2 * r->new_capacity : 65536;
    r->new_pairs = (uint32_t *)bpe_resize(r->new_pairs, r->new_capacity, sizeof *r->new_pairs);
    r->new_places = (uint32_t *)bpe_resize(r->new_places, r->new_capacity, sizeof *r->new_places);
  }
  r->new_pairs[r->new_count] = pair;
  r->new_places[r->new_count++] = place;
}

// Replaces every place of `merged` by token `id`, the newest, from left to right, and queues the pairs it makes.
static inline void bpe_apply_merge(BpeTrainer *r, uint32_t merged, int32_t id) {
  uint32_t first_new = (uint32_t)r->pair_count;
  r->new_count = 0;
  const uint32_t *places = r->places + r->pairs[merged].first_place;
  for (uint32_t i = 0, n = r->pairs[merged].places; i < n; i++) {
    uint32_t at = places[i];
    BpeSymbol *s = &r->symbols[at];
    if (s->pair != merged) continue;  // merged away, or overlapped by the one before it
    uint32_t gone = s->next, gone_pair = r->symbols[gone].pair;
    s->id = id;
    s->next = r->symbols[gone].next;
    s->pair = r->symbols[gone].pair = BPE_NONE;
    if (s->prev != BPE_NONE) {
      BpeSymbol *before = &r->symbols[s->prev];
      uint32_t *pair = &r->pair_of_left[before->id];
      if (*pair < first_new) *pair = bpe_new_pair(r, before->id, id);
      bpe_repair(r, s->prev, before->pair, *pair);
    }
    if (s->next != BPE_NONE) {
      BpeSymbol *after = &r->symbols[s->next];
      after->prev = at;
      uint32_t *pair = &r->pair_of_right[after->id];
      if (*pair < first_new) *pair = bpe_new_pair(r, id, after->id);
      bpe_repair(r, at, gone_pair, *pair);
    }
  }
  for (uint32_t pair = first_new; pair < r->pair_count; pair++) {
    r->pairs[pair].first_place = (uint32_t)r->place_count;
    r->place_count += r->pairs[pair].places;
    r->pairs[pair].places = 0;
    bpe_queue_pair(r, pair);
  }
  for (size_t i = 0; i < r->new_count; i++) {
    BpeCountedPair *pair = &r->pairs[r->new_pairs[i]];
    r->places[pair->first_place + pair->places++] = r->new_places[i];
  }
}

// The pair that occurs most, ties to the smaller (left id, right id), taken off the heap; BPE_NONE when none is left.
// Counts only fall after a pair is made, so an outdated top goes back down with its present count.
static inline uint32_t bpe_next_pair(BpeTrainer *r) {
  while (r->heap.count) {
    BpeHeapItem top = r->heap.items[0];
    uint64_t count = r->pairs[top.item].count;
    if (count && top.first == UINT64_MAX - count) {
      bpe_heap_pop(&r->heap);
      return top.item;
    }
    if (count) bpe_heap_replace(&r->heap, {UINT64_MAX - count, top.second, top.item});
    else bpe_heap_pop(&r->heap);
  }
  return BPE_NONE;
}

// <|endoftext|>, unless by line.
static inline void bpe_add_end_of_text(Tokenizer *t) {
  if (t->by_line) return;
  t->divides = true;
  t->added = (BpeAddedToken *)bpe_resize(NULL, 1, sizeof *t->added);
  t->added[t->added_count++] = {0, true, false, true, false, false, 0, strlen(bpe_end_of_text)};
  t->byte_start[++t->vocab_size] = strlen(bpe_end_of_text);
  memcpy(t->bytes, bpe_end_of_text, strlen(bpe_end_of_text));
}

// The 256 bytes as tokens, in the order of the characters that stand for them.
static inline void bpe_add_byte_tokens(Tokenizer *t) {
  uint16_t char_of_byte[256];
  bpe_alphabet(char_of_byte);
  for (int c = 0; c < 0x144; c++) {
    for (int b = 0; b < 256; b++) {
      if (char_of_byte[b] != c) continue;
      int id = t->vocab_size++;
      t->byte_id[b] = id;
      t->bytes[t->byte_start[id]] = (uint8_t)b;
      t->byte_start[id + 1] = t->byte_start[id] + 1;
    }
  }
}

void tokenizer_train(Tokenizer *t, const uint8_t *text, size_t bytes, int vocab_size, int threads,
                     bool by_line) {
  CHECK(vocab_size >= 257 - by_line && threads >= 1, "tokenizer_train: vocabulary %d, threads %d", vocab_size,
        threads);
  *t = {};
  t->by_line = by_line;
  size_t capacity = 65536;
  t->bytes = (uint8_t *)bpe_resize(NULL, capacity, 1);
  t->byte_start = (size_t *)bpe_resize(NULL, (size_t)vocab_size + 1, sizeof *t->byte_start);
  t->merges = (BpeMerge *)bpe_resize(NULL, (size_t)vocab_size - 256, sizeof *t->merges);
  t->byte_start[0] = 0;
  bpe_add_end_of_text(t);
  bpe_add_byte_tokens(t);
  BpeTrainer r = {};
  BpeTable words = bpe_words_of(t, text, bytes, threads);
  bpe_lay_out_words(&r, &words, t);
  free(words.slots);
  bpe_count_pairs(&r);
  for (uint32_t pair = 0; pair < r.pair_count; pair++) bpe_queue_pair(&r, pair);
  r.pair_of_left = (uint32_t *)calloc((size_t)vocab_size, sizeof(uint32_t));
  r.pair_of_right = (uint32_t *)calloc((size_t)vocab_size, sizeof(uint32_t));
  if (!r.pair_of_left || !r.pair_of_right) die_missing("tokenizer: no memory for a vocabulary of %d", vocab_size);
  for (uint32_t pair; t->vocab_size < vocab_size && (pair = bpe_next_pair(&r)) != BPE_NONE;) {
    BpeMerge m = {r.pairs[pair].left, r.pairs[pair].right, t->vocab_size};
    size_t at = t->byte_start[t->vocab_size];
    size_t left = t->byte_start[m.left + 1] - t->byte_start[m.left],
           right = t->byte_start[m.right + 1] - t->byte_start[m.right];
    if (at + left + right > capacity) t->bytes = (uint8_t *)bpe_resize(t->bytes, capacity = 2 * (at + left + right), 1);
    memcpy(t->bytes + at, t->bytes + t->byte_start[m.left], left);
    memcpy(t->bytes + at + left, t->bytes + t->byte_start[m.right], right);
    t->byte_start[++t->vocab_size] = at + left + right;
    t->merges[t->merge_count++] = m;
    bpe_apply_merge(&r, pair, m.result);
    liveness_progress();
  }
  bpe_index_merges(t);
  free(r.symbols);
  free(r.pairs);
  free(r.places);
  free(r.new_pairs);
  free(r.new_places);
  free(r.pair_of_left);
  free(r.pair_of_right);
  free(r.heap.items);
}

