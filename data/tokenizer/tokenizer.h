// tokenizer.h: public header of data/tokenizer/: byte-level BPE, and BPE by characters with bytes to fall back on.
//
// tokenizer_train or tokenizer_load_any makes one, tokenizer_encode gives the ids of a text, tokenizer_token_bytes the
// bytes of an id, tokenizer_save writes tokenizer.json.
#pragma once
#include "data/files/files.h"
#include <cjson/cJSON.h>

// ---- nfc.h ----------------------------------------------------------------------------------------------------------
enum { NFC_MOST_GROWTH = 3 };  // NFC has at most 3 times the bytes (U+1D160: 4 bytes become 12)
// The characters of a part that is being normalised: class << 56 | place << 21 | code point, so that sorting by value
// is the canonical order.
struct NfcWork { uint64_t *chars; size_t count, capacity; };

// ---- bpe.h ----------------------------------------------------------------------------------------------------------
static const char bpe_end_of_text[] = "<|endoftext|>";
// Two neighbours, the id they become, and when: rank 0 was learnt first.
struct BpeMerge { int32_t left, right, result; };
struct BpeMergeSlot { uint64_t pair; int32_t rank, result; };
// A token that is looked for in the text before it is cut into pre-tokens, as Tokenizer.bytes[at .. at+bytes). lstrip,
// rstrip: white space before it, after it, is lost.
struct BpeAddedToken { int32_t id; bool special, normalized, in_vocab, lstrip, rstrip; size_t at, bytes; };
// A word and its value, and a table of them (part 2).
struct BpeWord { uint64_t key[2]; size_t length; uint64_t value; };
struct BpeTable { BpeWord *slots; int bits; size_t used; };
// Words of a pattern that knows upper and lower case: without English endings (Tekken), or with them (o200k).
enum BpeCased { CASED_NOT, CASED_PLAIN, CASED_ENDINGS };
// Before which parts of a text, between added tokens, a tokenizer by characters puts a space: before all (PREPEND); all
// that do not start with one (ALWAYS); such a one at the start of the text (FIRST).
enum BpePrefix { PREFIX_NONE, PREFIX_PREPEND, PREFIX_ALWAYS, PREFIX_FIRST };
// A vocabulary and its merges. Zero-initialised it is empty and may be freed; train and load overwrite without freeing.
struct Tokenizer {
  int vocab_size;              // ids are 0 .. vocab_size-1, added tokens included
  int merge_count, added_count;
  uint8_t *bytes;              // the bytes of all tokens, in the order of ids
  size_t *byte_start;          // token id owns bytes[byte_start[id] .. byte_start[id+1])
  BpeMerge *merges;            // in the order of ranks
  BpeMergeSlot *merge_slots;   // pair -> rank, result: open addressing, 2^merge_slot_bits slots
  int merge_slot_bits;
  bool in_order;               // no merge has a part that a later merge makes: true of every trained tokenizer
  BpeAddedToken *added;
  int32_t byte_id[256];        // the token of one byte; -1: none, and the byte is left out
  bool by_line;                // pre-tokens end after '\n' and do not look past it
  bool divides;                // token 0, <|endoftext|>, stands before each document of a text
  int digits_together;         // pre-tokens by the pattern of Llama 3, of at most so many digits; 0: by that of GPT-2
  BpeCased cased;              // with digits_together: words end where upper case follows lower case
  bool digits_alone;           // each digit is a pre-token, and ends what is before it (SmolLM2)
  bool nfc;                    // a text is normalised, after the added tokens in it are found that are not normalised
  bool ignore_merges;          // a pre-token that is a token as a whole is that token, whatever the merges say
  bool adds_bos;               // a text starts with token bos_id
  int32_t bos_id;
  // SentencePiece's BPE: merges start from characters, and a character without a token from its bytes; a space and
  // U+2581 are the same, in a token a space.
  bool byte_fallback, strips;  // strips: a space that a decoded text starts with is not of it
  BpePrefix prefix;
  BpeTable joins;              // of it: characters with the space or newline that some token has after them
  BpeTable whole;              // ignore_merges: the bytes of each token of the vocabulary -> its id; byte_fallback:
                               // those of each token that is one character
  char *file;                  // the tokenizer.json it was read from, which is what is saved; NULL: none
  size_t file_bytes;
  const char *ignored;         // what the file asks of batches, which transformers leaves in it and does not follow
};
// realloc; the rank ends where there is no memory.
void *bpe_resize(void *old, size_t count, size_t each_bytes);
// The character that stands for a byte in tokenizer.json: itself where it is visible, else the next free one from
// U+0100 on (Radford et al. 2019). All are below U+0144.
void bpe_alphabet(uint16_t char_of_byte[256]);
struct BpeEncoder {
  const Tokenizer *t;
  BpeTable cache;              // word -> id << 1 | 1 for one token, else first cached id << 32 | count << 1
  int32_t *cached_ids;
  size_t cached_count, cached_capacity;
  const uint8_t *text_end, *readable_end;  // of the text, and of what is encoded now: the text or what is normalised
  NfcWork nfc;
  uint8_t *normal, *normal_next, *normal_end;  // memory for all that is normalised, which the cache points into
  int32_t *ids;                // where the next id goes
  uint8_t added_first[256];    // bit `pass`: an added token of that pass starts with this byte
  uint8_t added_passes;        // the bits of all bytes
  bool passing;                // texts do not stay where they are: only words that the cache itself holds are kept
  const uint8_t *text;         // where the text starts
  bool continues;              // it is not the start of one
  int64_t *ends;               // NULL, or of byte_fallback for each id the byte of the text that its own end at
  uint8_t *prefixed;           // memory for a pre-token with a space before it
};
// At most so many ids come from `bytes` bytes: a token has at least one byte of the text, or of the normalised one, or
// is a space before a byte.
size_t tokenizer_ids_most(const Tokenizer *t, size_t bytes);
// The most bytes without a space or newline among them, which a text can be cut at: memory for the tokens of one
// word is many times its size.
enum : size_t { TEXT_WORD_BYTES = 64 << 20 };
// Encodes a text. ids: room for tokenizer_ids_most(t, bytes) ids; those past the count returned are overwritten too.
// continues: the text continues from another, and may be cut there (tokenizer_cut).
int64_t tokenizer_encode(const Tokenizer *t, const uint8_t *text, size_t bytes, int32_t *ids, bool continues = false);
// Encodes the start of a document: after the token that the tokenizer starts a text with, if it does; else, where
// there is no text, the token that stands before documents, or a newline. ids: room for 1 + tokenizer_ids_most(t,
// bytes).
int64_t tokenizer_begin(const Tokenizer *t, const uint8_t *text, size_t bytes, int32_t *ids);
// The bytes of one token, owned by the tokenizer. A character may be split over tokens: print bytes as they come.
const uint8_t *tokenizer_token_bytes(const Tokenizer *t, int32_t id, int *length_bytes);
// A hash of everything that decides ids: tokens, merges, added tokens, how pre-tokens are cut and encoded. What
// tokenizers of the GPT-2 pattern do not have counts only where it is there: checkpoints and caches hold their hashes.
uint64_t tokenizer_hash(const Tokenizer *t);
// Frees what train or load allocated and empties t.
void tokenizer_free(Tokenizer *t);
// Whether a text may be cut at `at`, between 0 and `bytes`: the ids of the whole are those of both parts, one after the
// other. That is before a space or newline that follows a character other than white space: no pre-token holds both,
// and none depends on what follows, since white space and the text's end both end it; by Llama's pattern, where
// punctuation takes the line ends after it, before a newline only after a letter or digit. Where no pattern cuts, it is
// where no token joins the two. Normalising joins neither of the two to anything.
bool tokenizer_cuts_at(const Tokenizer *t, const uint8_t *text, size_t bytes, size_t at);
// The first such place from `at` on; `bytes`: there is none.
size_t tokenizer_cut(const Tokenizer *t, const uint8_t *text, size_t bytes, size_t at);
// An encoder remembers the words of the texts that it has run over, which stay where they are until it is closed, or
// else it is told so (`passing`).
void bpe_encoder_open(BpeEncoder *e, const Tokenizer *t);
// ids receives the ids of a text; returns how many. continues: as of tokenizer_encode.
int64_t bpe_encoder_run(BpeEncoder *e, const uint8_t *text, size_t bytes, int32_t *ids, bool continues = false);
void bpe_encoder_close(BpeEncoder *e);
// Trains on a text: <|endoftext|> unless by line, the 256 bytes, then merges until there are vocab_size tokens or no
// two tokens are neighbours any more. vocab_size >= 257, by line 256; t->vocab_size is what was reached. Overwrites t.
// The same for every number of threads.
void tokenizer_train(Tokenizer *t, const uint8_t *text, size_t bytes, int vocab_size, int threads,
                     bool by_line = false);

// ---- tokenizer_json.h -----------------------------------------------------------------------------------------------
// The bytes of tokenizer.json, *bytes of them and a NUL after them, in memory that the caller frees.
char *tokenizer_text(const Tokenizer *t, size_t *bytes);
// Writes tokenizer.json: under a temporary name beside it, then renamed, so `path` is never half a file. False, and one
// line in error, when it cannot be written; what was at `path` is then still there.
bool tokenizer_save(const Tokenizer *t, const char *path, Error *error);
// Reads the tokenizer at `path`: a tokenizer.json, a GGUF, or a directory that holds one, with the tokens that
// tokenizer_config.json adds, or else vocab.json and merges.txt. False, and one line in error, when there is none or it
// is rejected; t is then empty. Overwrites t.
bool tokenizer_load_any(Tokenizer *t, const char *path, Error *error);
// Of one with byte_fallback: whether llama.cpp, which joins the two neighbours whose union has the highest score,
// whatever merges there are, does what its merges do. score: (vocab_size), or NULL; those that do.
bool tokenizer_scores(const Tokenizer *t, float *score);
// Adds the tokens of a file behind the tokenizer's, as tokenizers' add_tokens numbers them; those that it has keep
// their ids. They are found in a text before it is cut into pre-tokens. False: one line in error, t is as it was.
bool tokenizer_add(Tokenizer *t, const char *path, Error *error);
// A key by its exact name; NULL: it is not there.
const cJSON *bpe_field(const cJSON *object, const char *name);
// Reads a byte-level BPE tokenizer.json, of tokenizer_save or of Hugging Face tokenizers. False, and one line in error,
// if it cannot be read, is damaged, or has settings that are not supported; t is then empty. Overwrites t.
bool tokenizer_load(Tokenizer *t, const char *path, Error *error);
// tokenizer_load_any, then tokenizer_add. add: a file; "" or auto: no tokens.
bool tokenizer_load_with(Tokenizer *t, const char *path, const char *add, Error *error);
