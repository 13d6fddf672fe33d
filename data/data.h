// data.h: the public header of data/: corpora.
//
// corpus_load finds a corpus, of any file format, and makes token ids of it, which all ranks then map as one block;
// encode_run makes token files of it. Functions that may fail give one line in Error.
#pragma once
#include "data/chat/chat.h"
#include "data/tokens/tokens.h"

// ---- corpus_find.h --------------------------------------------------------------------------------------------------
// Whether --data PATH names conversations: a file whose name says so (.jsonl), a .json that has them, or a directory
// with a file such as train.jsonl.
bool data_is_chats(const char *path, bool as_text);

// ---- encode.h -------------------------------------------------------------------------------------------------------
enum EncodeDocuments { DOCUMENTS_BEFORE, DOCUMENTS_BEHIND, DOCUMENTS_NONE };
struct EncodeOptions {
  const char *out, *cache;                       // out NULL: a directory in `cache`, named by a hash of the input
  const char *const *file;                       // [files] paths to encode, besides those in the list `data`
  int files;
  const char *data, *val_data, *tokenizer, *column;    // val_data "": 1 of HELD_OUT documents is for validation
  const char *add_tokens = "";                   // file of tokens that are added to the given tokenizer
  int vocab_size, threads;
  EncodeDocuments documents;
  bool documents_given, column_given, vocab_given;               // by the user, not by default
  bool as_text;                                  // files that are no tables are text, whatever they look like
  ChatOptions chat;
  void (*say)(const char *line);                 // is called with lines of progress
  // Bytes of input in memory at once; tokens of a shard; the state is saved after so many bytes or milliseconds of
  // work, which a kill may lose. Tests use smaller values.
  int64_t block_bytes = 32 << 20, shard_numel = 100000000, save_bytes = 256 << 20;
  double save_ms = 5000;
};
// Whether --data LIST names texts that are first encoded into token files: compressed files, tables, or several files.
bool encode_is_packed(const char *list, bool as_text);
// Encodes the options' files into o->out, or continues where an earlier process was ended. vocab_size: NULL, or
// receives the tokenizer's; out: NULL, or receives the directory. Returns false, with one line in e, on failure.
bool encode_run(const EncodeOptions *o, Error *e, int *vocab_size = NULL, char *out = NULL);

// ---- records_find.h -------------------------------------------------------------------------------------------------
// *are: whether o->data names conversations that find_records reads. (One plain file or directory of conversations is
// corpus_find's, and is not meant.) Returns false if a file cannot be read.
bool records_are_meant(const EncodeOptions *o, bool *are, Error *e);
// The most memory, besides tokens, that the reading of conversations takes, if no line is longer than
// RECORDS_BLOCK_BYTES; longer lines take more in proportion. It is freed before training starts.
enum { RECORDS_BLOCK_BYTES = 512 << 10 };
static inline size_t records_reading_bytes(int threads) {
  return (size_t)(8 << 20) + (size_t)threads * 32 * RECORDS_BLOCK_BYTES;
}

// ---- dataloader.h ---------------------------------------------------------------------------------------------------
// The generated text's tokenizer ends with at most this many tokens, since each word is one token then. A plan uses the
// number without making the text.
enum { GEN_VOCAB_MAX = 484 };
struct CorpusOptions {
  const char *data;            // path, pattern, "random" or "generated"; NULL or "": search (see corpus_load)
  const char *cache_dir;       // where tokenizer and ids of a text are kept; made if absent; NULL or "": nowhere
  int vocab_size;              // text: at most this many tokens are made; else the ids are below it
  int threads;
  uint64_t seed;               // of the random tokens of "random"
  const char *tokenizer = NULL;  // tokenizer.json or its directory; NULL or "": text trains one. If it is given, text
                               // ignores vocab_size unless vocab_given; elsewhere it may not have more tokens than that
  ChatOptions chat = {"auto", chat_date, "", false};             // of conversations
  const char *val_data = "";   // path of the validation data, if it is not found beside `data`
  bool as_text = false;        // files that are no tables or tokens are text, whatever they look like
  bool records = false;        // `data` names conversations in several files, packed ones or tables, by a list
  const char *column = "";     // the column of tables that is read
  const char *add_tokens = "";   // a file of tokens that the given tokenizer gets (tokenizer_add)
  bool vocab_given = false;    // vocab_size was asked for: a given tokenizer may not have more, with text too
  bool undivided = false;      // no <|endoftext|> between documents, whatever the tokenizer: as before version 0.7
};
struct Corpus {
  Split split[SPLIT_COUNT];    // test may be absent (tokens_numel 0), all are after corpus_load_tokenizer
  char source[DATA_PATH_BYTES + 128];  // where it comes from, in words
  DataWarnings warnings;
  bool generated;              // made up here: the generated text
  double entropy_nats;         // generated text, random tokens: entropy rate of the source in nats per token; else 0
  int vocab_size;              // text: the tokenizer's; else as asked
  uint64_t hash;               // of all tokens and the vocabulary, and of the tokenizer that made the tokens
  Tokenizer tokenizer;
  bool has_tokenizer;          // of text, or given; only in the process that called corpus_load
  bool cache_used;             // tokenizer and ids were read, not made
  double tokenizer_ms, encode_ms;  // spent training the tokenizer and encoding; 0 if read or given
  RecordsSeen seen;            // conversations: which fields were read, and which were not
  void *block;                 // loaded by another process: the malloc'ed block that has the tokens; else NULL
};
// Removes the temporary files of a corpus_load that a signal interrupts; for the signal's handler.
void corpus_abandon();
// Frees what corpus_load has made, also after a failure.
void corpus_free(Corpus *c);
// Finds and reads a corpus. Overwrites c; returns false, with one line in e (exit code 2 or 3), if it is not there.
// Order: o.data if given; else the directory that the environment names by WIKITEXT2_DIR; else data/wikitext-2, where
// data/get_wikitext2.sh puts it; else the generated text, with a warning. A corpus that was named explicitly is never
// replaced by another one. Nothing is downloaded here.
bool corpus_load(Corpus *c, CorpusOptions o, Error *e);
// A corpus without tokens: the given tokenizer alone, to sample with. o.data and the cache are ignored; o.vocab_size is
// the model's, 0 for the tokenizer's. Overwrites c; returns false, with one line in e, if the tokenizer cannot be
// loaded.
bool corpus_load_tokenizer(Corpus *c, CorpusOptions o, Error *e);
// A corpus as one block that other processes map. corpus_block_bytes: its size; corpus_to_block writes it to `image`,
// which has that size.
size_t corpus_block_bytes(const Corpus *c);
void corpus_to_block(const Corpus *c, void *image);
// Makes c a corpus, without tokenizer, whose tokens are in `image`. The image must outlive c and is only read; several
// processes may share one. Returns false, with one line in e, if the image's token files are not the same files here.
bool corpus_of_block(Corpus *c, const void *image, size_t bytes, Error *e);
