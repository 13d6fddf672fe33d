// data.h: the door of data/: text, conversations and tokens; files.
//
// load_data finds a corpus, whatever its form, and makes token ids of it in one image that is mapped by all ranks; a
// Sampler says which of its tokens are which sample of which microbatch. tokenizer_* is the byte-level BPE, chat_* are
// templates, file_* the system calls for files: all that this program makes is made by them, and nothing else is
// written over. Functions that may fail give one line in DataError.
#pragma once
#include "kernels/device.h"
#include <cjson/cJSON.h>
#include <sys/stat.h>

// ---- file_kinds.h ---------------------------------------------------------------------------------------------------
// What a path is if it is not a regular file; NULL: a regular file.
const char *file_type_words(mode_t mode);
enum { FILE_FOREIGN_BYTES = 512 };                // file_foreign needs no more of a file's beginning
// What a file that begins with the `n` bytes at `p` is, and what to do, to end a sentence "FILE is ...". NULL: it is
// none of these kinds.
const char *file_foreign(const void *p, size_t n);

// ---- nfc.h ----------------------------------------------------------------------------------------------------------
// The characters of a part that is being normalised: class << 56 | place << 21 | code point, so that sorting by value
// is the canonical order.
struct NfcWork { uint64_t *chars; size_t count, capacity; };

// ---- tokenizer.h ----------------------------------------------------------------------------------------------------
// Two neighbours, the id they become, and when: rank 0 was learnt first.
struct BpeMerge { int32_t left, right, result; };
struct BpeMergeSlot { uint64_t pair; int32_t rank, result; };
// A token that is looked for in the text before it is cut into pieces, as Tokenizer.bytes[at .. at+bytes). lstrip,
// rstrip: white space before it, behind it, is lost.
struct BpeAddedToken { int32_t id; bool special, normalized, in_vocab, lstrip, rstrip; size_t at, bytes; };
// A word and its value, and a table of them (part 2).
struct BpeWord { uint64_t key[2]; size_t length; uint64_t value; };
struct BpeTable { BpeWord *slots; int bits; size_t used; };
// Words of a pattern that knows upper and lower case: without English endings (Tekken), or with them (o200k).
enum BpeCased { CASED_NOT, CASED_PLAIN, CASED_ENDINGS };
// Before which parts of a text, between added tokens, a tokenizer by characters puts a blank: before all (PREPEND); all
// that do not begin with one (ALWAYS); such a one at the beginning of the text (FIRST).
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
  bool by_line;                // pieces end after '\n' and do not look past it
  bool divides;                // token 0, <|endoftext|>, stands before each document of a text
  int digits_together;         // pieces by the pattern of Llama 3, of at most so many digits; 0: by that of GPT-2
  BpeCased cased;              // with digits_together: words end where upper case follows lower case
  bool digits_alone;           // each digit is a piece, and ends what is before it (SmolLM2)
  bool nfc;                    // a text is normalised, after the added tokens in it are found that are not normalised
  bool ignore_merges;          // a piece that is a token as a whole is that token, whatever the merges say
  bool adds_bos;               // a text begins with token bos_id
  int32_t bos_id;
  // SentencePiece's BPE: merges start from characters, and a character without a token from its bytes; a blank and
  // U+2581 are the same, in a token a blank.
  bool byte_fallback, strips;  // strips: a blank that a decoded text begins with is not of it
  BpePrefix prefix;
  BpeTable joins;              // of it: characters with the blank or newline that some token has behind them
  BpeTable whole;              // ignore_merges: the bytes of each token of the vocabulary -> its id; byte_fallback:
                               // those of each token that is one character
  char *file;                  // the tokenizer.json it was read from, which is what is saved; NULL: none
  size_t file_bytes;
};
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
  const uint8_t *text;         // where the text begins
  bool continues;              // it is not the beginning of one
  int64_t *ends;               // NULL, or of byte_fallback for each id the byte of the text that its own end at
  uint8_t *prefixed;           // memory for a piece with a blank before it
};
// At most so many ids come from `bytes` bytes: a token has at least one byte of the text, or of the normalised one, or
// is a blank before a byte.
size_t tokenizer_ids_most(const Tokenizer *t, size_t bytes);
// Encodes a text. ids: room for tokenizer_ids_most(t, bytes) ids; those past the count returned are overwritten too.
// The ids are the same for every number of threads. continues: the text goes on from another, and may be cut there
// (tokenizer_cut).
int64_t tokenizer_encode(const Tokenizer *t, const uint8_t *text, size_t bytes, int32_t *ids, int threads,
                         bool continues = false);
// Encodes the beginning of a document: behind the token that the tokenizer begins a text with, if it does; else, where
// there is no text, the token that stands before documents, or a newline. ids: room for 1 + tokenizer_ids_most(t,
// bytes).
int64_t tokenizer_begin(const Tokenizer *t, const uint8_t *text, size_t bytes, int32_t *ids);
// The bytes of one token, owned by the tokenizer. A character may be split over tokens: print bytes as they come.
const uint8_t *tokenizer_token_bytes(const Tokenizer *t, int32_t id, int *length_bytes);
// A hash of everything that decides ids: tokens, merges, added tokens, how pieces are cut and encoded. What tokenizers
// of the GPT-2 pattern do not have counts only where it is there: checkpoints and caches hold their hashes.
uint64_t tokenizer_hash(const Tokenizer *t);
// Frees what train or load allocated and empties t.
void tokenizer_free(Tokenizer *t);

// ---- chat_tools.h ---------------------------------------------------------------------------------------------------
// A stretch of text, and growing text.
struct ChatSpan { const char *p; size_t n; };
static inline ChatSpan chat_span(const char *text) { return ChatSpan{text, strlen(text)}; }

// ---- records.h ------------------------------------------------------------------------------------------------------
const char *record_fields_fault(const char *fields);

// ---- corpus_find.h --------------------------------------------------------------------------------------------------
struct DataError { int exit_code; char text[1536]; };  // EXIT_USAGE or EXIT_MISSING, and one line
__attribute__((format(printf, 3, 4))) bool data_fail(DataError *e, int exit_code, const char *fmt, ...);
// Lines, each ended by '\n', that the user should see; often none.
struct DataNotices { char text[4096]; };
enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_COUNT };
static const char *const split_names[] = {"train", "valid", "test"};
enum { DATA_PATH_BYTES = 1024 };
const char *data_mapped_path(const void *at);
// Whether a name ends so.
bool name_ends(const char *name, const char *end);
// A part of a mixture of token files: where it lies in the stream of all. Of the samples it has weight / all weights.
enum { SOURCES_MOST = 64 };
struct SplitSource { char name[104]; int64_t first, tokens_numel, weight; };
// Whether --data PATH names records: a file by its name, a .json that has them, or a directory with train.jsonl or its
// like.
bool data_is_chats(const char *path, bool as_text);

// ---- random.h -------------------------------------------------------------------------------------------------------
// SplitMix64 (Steele, Lea, Flood 2014) read by position: the generator that starts in state `key`, at its i-th output.
uint64_t data_mix(uint64_t x);
uint64_t data_hash(uint64_t seed, const void *data, size_t bytes);

// ---- files.h --------------------------------------------------------------------------------------------------------
// An existing directory is fine.
bool file_make_directory(const char *path);
// Makes PATH for writing; it must not be there: nobody else can have put a link or a file of theirs in its place.
// `directory`: that of PATH. Returns the descriptor or -1.
int file_create(const char *path, const char *directory);
// Opens PATH, which another rank has made, for writing. Returns the descriptor or -1.
int file_open(const char *path);
// Locks PATH, which this makes, against other processes until the descriptor is closed. It is open for writing, because
// NFS then has its server lock it for all hosts. -1 with errno; EWOULDBLOCK: another process has it.
int file_lock(const char *path);
// Whether the file system with this device number, of those that a process's mountinfo lists, keeps locks within this
// host.
bool file_locks_are_local(const char *mountinfo, dev_t device);
// Gives the file its size and, where the file system can, its blocks, so that a disk that is too full fails now.
bool file_reserve(int fd, const char *path, int64_t bytes);
// Writes all bytes, and asks the kernel to start writing to the disk now and not when memory is full.
bool file_write(int fd, const char *path, const void *data, int64_t bytes, int64_t offset);
// A number for a temporary name: nanoseconds. If another host sees the name, it sees this file and never a leftover of
// an earlier run. A process id would not ensure that: in containers the same few ids come again.
static inline unsigned long long file_nonce() { return (unsigned long long)wall_ns(); }
// Reads all bytes; ENODATA if the file ends before.
bool file_read(int fd, void *data, int64_t bytes, int64_t offset);
// Adds blocks of 64 KiB of bytes [from, to) of a file to a hash: evenly spaced, at most `most`, at least 2; all bytes
// where these are enough. False with errno.
bool file_hash_blocks(int fd, int64_t from, int64_t to, int64_t most, uint64_t *hash);
// Waits until the file is on the disk.
bool file_sync(int fd, const char *path);
// Makes new names in a directory durable. File systems that cannot do this (EINVAL) do not need it.
bool file_sync_directory(const char *path);
// mkdir -p, and syncs the directory above each one that it made, where that can be read. False when a part cannot be
// made; an existing one is fine.
bool make_directories(const char *path);
// rename(2), made durable.
bool file_rename(const char *from, const char *to);
// Renames PATH to the first free name of PATH.1, PATH.2, ..., which `aside` receives.
bool file_move_aside(const char *path, char *aside, size_t aside_bytes);
// Exchanges two names atomically. False with EINVAL or ENOSYS where the file system cannot.
bool file_exchange(const char *a, const char *b);
// PATH becomes a symbolic link to `target`, atomically, whatever it was before.
bool file_link(const char *target, const char *path);
// Removes a file, a link (never what it points to), or a directory and the files in it. An absent path is fine.
bool file_remove(const char *path);
// Writes a small file under a temporary name, syncs and renames it: PATH is the whole new file, or unchanged.
// `directory`: the directory of PATH. A leftover of that name is removed: process ids come again.
bool file_put(const char *path, const char *directory, const void *data, int64_t bytes);
// The contents of a file of at most `most` bytes, malloc'ed, with a zero at the end. NULL with errno (EFBIG: larger).
char *file_get(const char *path, int64_t most, int64_t *bytes);
// Opens PATH, a file of lines of this program's own, to add to it: made where it is not there, emptied if `fresh`. It
// must be a regular file under this very name: a symbolic link leads to a file of somebody else, and a named pipe waits
// for a reader. NULL if not; file_own_fault says why.
FILE *file_own(const char *path, bool fresh);
// Whether something else than a regular file has this name, in words: to end a sentence "PATH is ...". NULL: nothing.
const char *file_other_words(const char *path);
// Why file_own(path) has just failed.
const char *file_own_fault(const char *path);
// Whether a file has a mark of this program's within its first 64 KiB: somewhere, or (begins) at its beginning, which
// may be all that a full disk has left of it.
bool file_has_mark(const char *path, const char *mark, bool begins);
// Whether PATH is a file with content that has no such mark. An empty one is as good as none.
bool file_is_foreign(const char *path, const char *mark, bool begins);

// ---- chat_template.h ------------------------------------------------------------------------------------------------
// How tools, calls and answers of tools stand in a text. QWEN3: arguments that are a text as it is.
enum ChatTools { TOOLS_NONE, TOOLS_LLAMA, TOOLS_SMOL, TOOLS_QWEN, TOOLS_QWEN3 };
// What an answer behind the last question begins with: what its content says (NOT); its thoughts, also those in its
// content, and in the last one empty ones (FORCED); its thoughts where it has some beside its content (FREE).
enum ChatThinks { THINKS_NOT, THINKS_FORCED, THINKS_FREE };
// begin, end: around a role; stop: ends a turn. system: what a conversation without a system message begins with.
// first: before the first turn. date: with a system turn always, which has today's date: this one, unless another is
// given. trims: texts lose white space at both ends. marks: what a template of that family says, as it is written
// there. text: of a template. assistant: an assistant's name. closes: stands behind what a user says, in place of
// `stop`; then no role is written, `end` stands before what a user says, and `assistant` before an answer.
enum ChatSystem { SYSTEM_TURN, SYSTEM_JOINS, SYSTEM_NONE };        // JOINS: what the first user says; NONE: refused
struct ChatTemplate {
  const char *name, *begin, *end, *stop, *behind, *system, *first, *date;
  bool trims;
  ChatThinks thinks;
  ChatTools tools;
  const char *marks[3], *text, *assistant = "assistant", *closes = NULL;
  ChatSystem system_is = SYSTEM_TURN;            // other than TURN: users and assistants take turns
};
static const char chat_date[] = "26 Jul 2024";   // of Llama 3's template where no clock is
// A token that conversations have by this template.
static inline const char *chat_mark(const ChatTemplate *t) { return t->begin[2] ? t->begin : t->stop; }
// What an option names; NULL: none.
const ChatTemplate *chat_template_named(const char *name);
// What a template's text is of: the text that is written here; or one that has all marks of a family and writes nothing
// which that does not. NULL: none that is known. Inside a string of it a newline is as good as \n.
const ChatTemplate *chat_template_of(const char *text);
// The text of a template, with `date` for its date; malloc'ed.
char *chat_template_text(const ChatTemplate *t, const char *date);
// The template that a model's directory has, in chat_template.jinja or tokenizer_config.json. NULL: none, and in `why`
// a line's end that says so. its_text: receives its text, malloc'ed, or NULL.
const ChatTemplate *chat_template_in(const char *dir, char *why, size_t why_bytes, char **its_text = NULL);

// ---- gguf_file.h ----------------------------------------------------------------------------------------------------
enum GgufValue {
  GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_FLOAT, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64,
  GGUF_I64, GGUF_DOUBLE, GGUF_VALUES
};
enum { GGUF_ALIGNMENT = 32, GGUF_DIMS = 4, GGUF_FIRST_READ = 1 << 12, GGUF_HEADER_MOST = 1 << 28 };
struct GgufText { const char *at; size_t bytes; };
// type: of the value, of an array's items where is_array; count: of these, else 1. at: the first of them.
struct GgufKey { const char *name; uint32_t type; bool is_array; uint64_t count; const uint8_t *at; };
// shape: the fastest first. at: from the start of the data.
struct GgufInfo { const char *name; int dims; int64_t shape[GGUF_DIMS]; uint32_t type; int64_t at; };
// An open header. keys are sorted by name. Zeroed it has none.
struct GgufFile {
  uint8_t *header;                               // its names end in a NUL, put there
  int64_t file_bytes, data_at, alignment;
  GgufKey *key;
  GgufInfo *info;
  int keys, infos;
};
// NULL: there is no such key.
const GgufKey *gguf_find(const GgufFile *g, const char *name);
// A single number, true and false too. False: there is none of this name.
bool gguf_number(const GgufFile *g, const char *name, double *value);
// Text i of an array of texts.
GgufText gguf_text_at(const GgufKey *k, uint64_t i);
// A single text, malloc'ed; NULL: there is none of this name.
char *gguf_string(const GgufFile *g, const char *name);
void gguf_close(GgufFile *g);
// Whether PATH is a file that begins as a GGUF does.
bool gguf_is(const char *path);
// Reads the header of PATH, which gguf_is, a part of the file that grows until it is all there. False: one line in
// `error`, and nothing is left open.
bool gguf_open(GgufFile *g, const char *path, char *error, size_t error_bytes);

// ---- tokenizer_json.h -----------------------------------------------------------------------------------------------
// The bytes of tokenizer.json, *bytes of them and a NUL after them, in memory that the caller frees.
char *tokenizer_text(const Tokenizer *t, size_t *bytes);
// Writes tokenizer.json: under a temporary name beside it, then renamed, so `path` is never half a file. False, and one
// line in error, when it cannot be written; what was at `path` is then still there.
bool tokenizer_save(const Tokenizer *t, const char *path, char *error, size_t error_bytes);
// Reads the tokenizer at `path`: a tokenizer.json, a GGUF, or a directory that holds one, or else vocab.json and
// merges.txt.
// False, and one line in error, when there is none or it is refused; t is then empty. Overwrites t.
bool tokenizer_load_any(Tokenizer *t, const char *path, char *error, size_t error_bytes);
// Of one with byte_fallback: whether llama.cpp, which joins the two neighbours whose union has the highest score,
// whatever merges there are, does what its merges do. score: (vocab_size), or NULL; those that do.
bool tokenizer_scores(const Tokenizer *t, float *score);
// Adds the tokens of a file behind the tokenizer's, as tokenizers' add_tokens numbers them; those that it has keep
// their ids. They are found in a text before it is cut into pieces. False: one line in error, t is as it was.
bool tokenizer_add(Tokenizer *t, const char *path, char *error, size_t error_bytes);

// ---- chat.h ---------------------------------------------------------------------------------------------------------
// template_name "auto": none is known, and `why` says why. date: of templates that have one. last: of what an assistant
// says, only the last answer is trained on. fields: names of members (records.h). pairs: prompts and completions are
// messages. text: of the template that was found, NULL if it was named. preferences: each record is one, and nothing
// else is read.
struct ChatOptions {
  const char *template_name, *date, *why;
  bool train_all, last = false, pairs = false, preferences = false;
  const char *fields = "", *text = NULL;
};
struct Chat {
  ChatOptions o;
  const ChatTemplate *form;
  const Tokenizer *tokenizer;
  int32_t stop_id, end_id;                       // -1: the tokenizer has none
  BpeEncoder *encoder;                           // of this thread, which remembers words; NULL: a new one each turn
};
// The added token with this text; -1: there is none.
int32_t chat_token(const Tokenizer *t, const char *text);
// The token that ends a text, by its name; -1: the tokenizer has none.
int32_t chat_end(const Tokenizer *t);
// Whether a token ends a text, or a turn by some template.
bool chat_ends(const Tokenizer *t, int32_t id);
// The template that the options name, and its marks as tokens of a tokenizer.
Chat chat_open(const ChatOptions *o, const Tokenizer *t);
// A conversation. Zeroed it is empty; the caller frees ids and trained. second: of a preference, where the rejected one
// begins. fault: "" or what is wrong with its line. text: what is not tokens yet (of a tokenizer by characters, whose
// tokens depend on what stands beside them), and whether each of its bytes is trained on.
struct ChatTokens {
  int32_t *ids;
  uint8_t *trained;
  int64_t count, room, second;
  char fault[256];
  uint8_t *text, *marks;
  size_t text_bytes, text_room;
};
// Without white space as Python's str.strip has it, at both ends; newlines: without '\n' alone.
bool chat_is_space(uint32_t c);
ChatSpan chat_strip(ChatSpan s, bool newlines, bool left = true, bool right = true);
// Messages, and the header of the answer that is to come.
bool chat_next(const Chat *c, ChatTokens *k, const cJSON *messages);
// What the model sees before it answers a user's message. False: k->fault.
bool chat_prompt(const Chat *c, ChatTokens *k, const char *said);

// ---- token_files.h --------------------------------------------------------------------------------------------------
struct TokenFile {
  char path[DATA_PATH_BYTES];
  int fd, token_bytes;                           // 2 or 4
  int64_t first, tokens_numel;                   // where it begins in the stream
  int64_t offset_bytes, file_bytes;              // its tokens begin there
  bool masked;                                   // behind the tokens lies a bit for each, lowest first: trained on
  uint64_t hash;                                 // of a block in its middle: tells it from another one of its size
};
// One stream of tokens. Zeroed, it is an absent split.
struct Split {
  const void *tokens;          // (tokens_numel) uint16_t or uint32_t; NULL: in files
  int token_bytes;             // 2 or 4
  int64_t tokens_numel;        // context token included
  bool masked;                 // behind the tokens lies a bit for each, lowest first: whether it is trained on
  int64_t documents;           // conversations; then behind the mask lies a bit for each token: whether one begins
  bool pairs;                  // each two of them are a preference: the answer that was chosen, the rejected one
  bool has_context;            // token 0 is not of the text: a newline, or what it begins with
  int64_t texts;               // documents that <|endoftext|> stands before, token 0 included; 0: not divided
  int64_t words, lines;        // white-space separated words and lines of the text; 0 where unknown (token files, or
                               // no blanks between words)
  int64_t text_bytes;          // 0 where unknown
  double oracle_nats;          // generated text: mean nats a target costs the source itself on this split; else 0
  uint64_t hash;               // of the tokens (sampled, see split_hash)
  // Where the tokens lie: in `owned` memory, or in files.
  void *owned;
  TokenFile *file;
  int files, sources;          // sources: 0, or those that are mixed, one behind the other in the stream
  int vocab_size;              // of files: ids lie below it
  SplitSource source[SOURCES_MOST];
};
// Whether a document begins at token i.
bool split_begins(const Split *s, int64_t i);
// Tokens of the longest conversation, or of the longest pair less one; 0: there are none.
int64_t split_longest(const Split *s);
// Token i, and whether it is trained on.
int32_t split_token(const Split *s, int64_t i);
bool split_trained(const Split *s, int64_t i);

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
  bool documents_given, column_given;            // by the user, not by default
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
bool encode_run(const EncodeOptions *o, DataError *e, int *vocab_size = NULL, char *out = NULL);

// ---- records_find.h -------------------------------------------------------------------------------------------------
// Whether o->data names conversations that find_records reads, in *are: not one plain file or directory of them, which
// corpus_find knows. False: a file cannot be read.
bool records_are_meant(const EncodeOptions *o, bool *are, DataError *e);

// ---- sampler.h ------------------------------------------------------------------------------------------------------
// Sample i is tokens [i T, i T + T) as inputs and the same shifted by one as targets; samples do not overlap, and a
// rest shorter than T+1 tokens at the end of the split is not trained on. An epoch is a permutation of all samples that
// depends on (seed, epoch) alone, cut (drop_last) or wrapped around to whole global batches of M microbatches of B: the
// rule of PyTorch's DistributedSampler with set_epoch, for the M B sequences of a step. Microbatch m of step s holds
// positions [(s M + m) B, + B). Which rank takes which microbatches is decided by the caller.
//
// A mixture takes its sources' samples in turns, by their weights: after any number of samples each source has had its
// share to within one. A source that ends starts over, in a new order, whatever the epoch: an epoch is as many samples
// as all sources have together. Conversations of one source alone share a sequence.
//
// Conversations may be packed whole: a sample is then a sequence of conversations of T + 1 tokens at most, each in the
// sequence with the least room that it fits in, in the order of the text (best fit), the same on every rank. A
// conversation of n tokens takes n - 1 places; places that are left are a document of padding, without targets. A
// conversation that has nothing to train on in its places is left out. A preference is both its answers, side by side
// in one sequence; none is cut, and one of which an answer has nothing to train on is left out.
enum : uint32_t { PACKING_NONE = UINT32_MAX };
struct Packing {
  const Split *split;                            // NULL: not packed
  // sequences; conversations, or pairs, in them; those too long, cut or left out; without a target; targets trained on
  int64_t seq_len, rows, kept, cut, dropped, untrained, trained;
  int64_t *start;                                // (documents + 1) of conversations
  uint32_t *head, *next;                         // (documents) the first of a sequence; the one behind another
  int64_t first[SOURCES_MOST + 1];               // of a mixture: each source's first sequence, of which all are its
  float *reference;                              // (documents) of pairs: log-probabilities by the reference (or NULL)
};
void packing_free(Packing *p);
size_t packing_bytes(const Packing *p);
// drop: leaves out what is too long, instead of cutting its end.
void packing_make(Packing *p, const Split *split, int64_t seq_len, bool drop);
// Sequence `row`; past the last all is padding. inputs, targets, starts (ops.h): (T), overwritten; of pairs weights too
// (preference.cuh).
void packing_fill(const Packing *p, int64_t row, int32_t *inputs, int32_t *targets, int32_t *starts,
                  float *weights = NULL);
struct SamplerOptions {
  int64_t batch, seq_len, microbatches;          // B, T, M (of the whole global batch)
  bool shuffle, drop_last;
  uint64_t seed;
};
struct Sampler {
  const Split *split;
  SamplerOptions options;
  int64_t samples_numel, steps_per_epoch, epoch;
  uint32_t *order;             // (samples_numel) of this epoch; of a mixture (period) its turns; NULL: neither
  const Packing *packing;                        // samples are its sequences; NULL: cuts of the stream
  int64_t period, weight[SOURCES_MOST];          // of a mixture: samples until its turns repeat; each source's of them
};
// Samples of a source of a mixture.
int64_t sampler_source_numel(const Split *split, int k, int64_t seq_len, const Packing *packing);
// Samples after which the order repeats.
int64_t sampler_period(const Split *split);
// Memory that sampler_init needs: the permutation, or the turns of a mixture.
size_t sampler_bytes(const Split *split, SamplerOptions o, const Packing *packing = NULL);
// Starts epoch `epoch` (from 0). Overwrites the order.
void sampler_set_epoch(Sampler *s, int64_t epoch);
// Prepares epoch 0. memory: sampler_bytes(split, o) bytes, used as long as the sampler is. False and one line when the
// split cannot fill one global batch.
bool sampler_init(Sampler *s, const Split *split, SamplerOptions o, void *memory, DataError *e,
                  const Packing *packing = NULL);
static inline int64_t sampler_steps_per_epoch(const Sampler *s) { return s->steps_per_epoch; }
// Microbatch m (0 <= m < M) of a step of the current epoch. inputs, targets: (B,T), overwritten; and starts of packed
// conversations, weights of pairs.
void microbatch_fill(const Sampler *s, int64_t step_in_epoch, int64_t m, int32_t *inputs, int32_t *targets,
                     int32_t *starts = NULL, float *weights = NULL);
// Has the kernel read what microbatch m of a step of the current epoch needs, while another step computes.
void microbatch_read_ahead(const Sampler *s, int64_t step_in_epoch, int64_t m);
// Windows of T targets that cover a split once, in order; the last may be partial. A window's contents do not depend on
// the rank that takes it.
int64_t eval_windows_numel(const Split *split, int64_t seq_len);
// Window w. inputs, targets: (T), overwritten; where there is no target, target -1 (ignored by the loss) and input 0.
// Past the last window all is padding, so a batch can be filled up. Returns the number of targets, masked ones counted.
int64_t eval_window_fill(const Split *split, int64_t seq_len, int64_t w, int32_t *inputs, int32_t *targets);

// ---- dataloader.h ---------------------------------------------------------------------------------------------------
// A tokenizer trained on the text ends with so many tokens: each word is one then. A plan knows it without the text.
enum { GEN_VOCAB_MOST = 484 };
struct CorpusOptions {
  const char *data;            // path, pattern, "random" or "generated"; NULL or "": search (see corpus_load)
  const char *cache_dir;       // where tokenizer and ids of a text are kept; made if absent; NULL or "": nowhere
  int vocab_size;              // text: at most this many tokens are made; else the ids lie below it
  int threads;
  uint64_t seed;               // of "random"
  const char *tokenizer = NULL;  // tokenizer.json or its directory; NULL or "": text trains one. If it is given, text
                               // ignores vocab_size; elsewhere it may not have more tokens than that
  ChatOptions chat = {"auto", chat_date, "", false};             // of conversations
  const char *val_data = "";   // what is evaluated on, if it is not found beside `data`
  bool as_text = false;        // files that are no tables or tokens are text, whatever they look like
  bool records = false;        // `data` names conversations in several files, packed ones or tables, by a list
  const char *column = "";     // of these tables
  const char *add_tokens = "";   // a file of tokens that the given tokenizer gets (tokenizer_add)
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
  void *block;                 // that its tokens lie in, malloc'ed, where another process loaded it; else NULL
};
void corpus_abandon();
// Gives back what load_data made, or what a failure left.
void corpus_free(Corpus *c);
// Finds and reads a corpus. Overwrites c; false and one line in e (exit code 2 or 3) when what was asked cannot be had.
// Order: o.data if given; else the directory WIKITEXT2_DIR of the environment; else data/wikitext-2, where
// data/get_wikitext2.sh puts it; else the generated text, with a notice. What was named explicitly is never replaced by
// something else. Nothing is downloaded here.
bool corpus_load(Corpus *c, CorpusOptions o, DataError *e);
// A corpus without tokens: the given tokenizer alone, to sample with. o.data and the cache are ignored; o.vocab_size is
// the model's, 0 for the tokenizer's. Overwrites c; false and one line in e when the tokenizer cannot be had.
bool corpus_load_tokenizer(Corpus *c, CorpusOptions o, DataError *e);
size_t corpus_block_bytes(const Corpus *c);
// Writes c into `image`, corpus_block_bytes(c) long.
void corpus_to_block(const Corpus *c, void *image);
// Makes c a corpus without tokenizer whose tokens lie in `image`. The image must outlive it and is only read; several
// processes may share one. False and one line if the image is damaged or its token file is not the same here.
bool corpus_of_block(Corpus *c, const void *image, size_t bytes, DataError *e);
