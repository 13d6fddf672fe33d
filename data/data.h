// data.h: the door of data/: corpora.
//
// corpus_load finds a corpus, whatever its form, and makes token ids of it, which all ranks then map as one block;
// encode_run makes token files of it. Functions that may fail give one line in Error.
#pragma once
#include "data/chat/chat.h"
#include "data/tokens/tokens.h"

// ---- corpus_find.h --------------------------------------------------------------------------------------------------
// Whether --data PATH names records: a file by its name, a .json that has them, or a directory with train.jsonl or its
// like.
bool data_is_chats(const char *path, bool as_text);

// ---- encode.h -------------------------------------------------------------------------------------------------------
enum EncodeDocuments { DOCUMENTS_BEFORE, DOCUMENTS_BEHIND, DOCUMENTS_NONE };
struct EncodeOptions {
  const char *out, *cache;                       // out NULL: a directory in `cache`, found again by what is encoded
  const char *const *file;                       // what to encode, files of them; and what the list `data` names
  int files;
  const char *data, *val_data, *tokenizer, *column;    // val_data "": one document of HELD_OUT is held out
  const char *add_tokens = "";                   // to the tokenizer that is named
  int vocab_size, threads;
  EncodeDocuments documents;
  bool documents_given, column_given, vocab_given;               // by the user, not by default
  bool as_text;                                  // files that are no tables are text, whatever they look like
  ChatOptions chat;
  void (*say)(const char *line);                 // takes lines of progress
  // Smaller in tests.
  int64_t block_bytes = 32 << 20, shard_numel = 100000000, save_bytes = 256 << 20;
  double save_ms = 5000;                         // of work that a kill may cost
};
// Whether --data LIST names texts that are encoded into token files to be trained on: packed ones, tables, several.
bool encode_is_packed(const char *list, bool as_text);
// Encodes what the options name into OUT, or goes on where an earlier process was ended. vocab_size: NULL, or receives
// the tokenizer's; out: NULL, or receives the directory. False: one line in e.
bool encode_run(const EncodeOptions *o, Error *e, int *vocab_size = NULL, char *out = NULL);

// ---- records_find.h -------------------------------------------------------------------------------------------------
// Whether o->data names conversations that find_records reads, in *are: not one plain file or directory of them, which
// corpus_find knows. False: a file cannot be read.
bool records_are_meant(const EncodeOptions *o, bool *are, Error *e);
// What conversations take while they are read, beside their tokens, at most, on so many threads; of lines of up to
// RECORDS_BLOCK_BYTES: a longer one takes its own length as often again. It is given back before training begins.
enum { RECORDS_BLOCK_BYTES = 512 << 10 };
static inline size_t records_reading_bytes(int threads) {
  return (size_t)(8 << 20) + (size_t)threads * 32 * RECORDS_BLOCK_BYTES;
}

// ---- dataloader.h ---------------------------------------------------------------------------------------------------
// A tokenizer trained on the text ends with so many tokens: each word is one then. A plan knows it without the text.
enum { GEN_VOCAB_MAX = 484 };
struct CorpusOptions {
  const char *data;            // path, pattern, "random" or "generated"; NULL or "": search (see corpus_load)
  const char *cache_dir;       // where tokenizer and ids of a text are kept; made if absent; NULL or "": nowhere
  int vocab_size;              // text: at most this many tokens are made; else the ids lie below it
  int threads;
  uint64_t seed;               // of "random"
  const char *tokenizer = NULL;  // tokenizer.json or its directory; NULL or "": text trains one. If it is given, text
                               // ignores vocab_size unless vocab_given; elsewhere it may not have more tokens than that
  ChatOptions chat = {"auto", chat_date, "", false};             // of conversations
  const char *val_data = "";   // what is evaluated on, if it is not found beside `data`
  bool as_text = false;        // files that are no tables or tokens are text, whatever they look like
  bool records = false;        // `data` names conversations in several files, packed ones or tables, by a list
  const char *column = "";     // of these tables
  const char *add_tokens = "";   // a file of tokens that the given tokenizer gets (tokenizer_add)
  bool vocab_given = false;    // vocab_size was asked for: a given tokenizer may not have more, with text too
  bool undivided = false;      // no <|endoftext|> between documents, whatever the tokenizer: as before version 0.7
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
  RecordsSeen seen;            // of conversations
  void *block;                 // that its tokens lie in, malloc'ed, where another process loaded it; else NULL
};
// Ends what corpus_load has begun, from the handler of a signal: no temporary name is left.
void corpus_abandon();
// Gives back what corpus_load made, or what a failure left.
void corpus_free(Corpus *c);
// Finds and reads a corpus. Overwrites c; false and one line in e (exit code 2 or 3) when what was asked cannot be had.
// Order: o.data if given; else the directory WIKITEXT2_DIR of the environment; else data/wikitext-2, where
// data/get_wikitext2.sh puts it; else the generated text, with a notice. What was named explicitly is never replaced by
// something else. Nothing is downloaded here.
bool corpus_load(Corpus *c, CorpusOptions o, Error *e);
// A corpus without tokens: the given tokenizer alone, to sample with. o.data and the cache are ignored; o.vocab_size is
// the model's, 0 for the tokenizer's. Overwrites c; false and one line in e when the tokenizer cannot be had.
bool corpus_load_tokenizer(Corpus *c, CorpusOptions o, Error *e);
// A corpus as one block that other processes map: its bytes; writes it into `image`, which is as long.
size_t corpus_block_bytes(const Corpus *c);
void corpus_to_block(const Corpus *c, void *image);
// Makes c a corpus without tokenizer whose tokens lie in `image`. The image must outlive it and is only read; several
// processes may share one. False and one line if the image is damaged or its token file is not the same here.
bool corpus_of_block(Corpus *c, const void *image, size_t bytes, Error *e);
