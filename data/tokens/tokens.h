// tokens.h: the door of data/tokens/: streams of tokens (Split), in memory or in files, and which of them are which
// sample of which microbatch (Sampler).
//
// split_open_files opens files as one stream, sampler_init deals it out, microbatch_fill gives inputs and targets.
#pragma once
#include "data/files/files.h"

// ---- token_files.h --------------------------------------------------------------------------------------------------
enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_COUNT };
static const char *const split_names[] = {"train", "valid", "test"};
// A part of a mixture of token files: where it lies in the stream of all. Of the samples it has weight / all weights.
enum { SOURCES_MAX = 64 };
struct SplitSource { char name[104]; int64_t first, tokens_numel, weight; };
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
  SplitSource source[SOURCES_MAX];
};
// Whether a document begins at token i.
bool split_begins(const Split *s, int64_t i);
// Tokens of the longest conversation, or of the longest pair less one; 0: there are none.
int64_t split_longest(const Split *s);
// Token i, and whether it is trained on.
int32_t split_token(const Split *s, int64_t i);
bool split_trained(const Split *s, int64_t i);
// The header of a token file that this program writes, before its tokens: llm.c's, or, with a mask, llmq's:
// "BIN.TOK\n", int32 version (1, 2), bytes of a token, count, vocabulary, whether there are masks; from byte 1024 on
// the tokens, then the mask as a Split has it. Bit i is of token i, as llmq's tokenizer writes it. Words that are 0 in
// their own files have what a count has above 31 bits and, of llmq's, the `rest` bytes that follow the mask; those from
// TOKEN_FILE_FREE_WORD on are the writer's.
enum { TOKEN_FILE_WORDS = 256, TOKEN_FILE_HEADER_BYTES = 1024, TOKEN_FILE_FREE_WORD = 16 };
void token_file_header(int32_t header[TOKEN_FILE_WORDS], int64_t numel, int token_bytes, int vocab_size, bool masked,
                       int rest = 0);
// Opens the token file f->path; all but `first` is overwritten. Does not check the ids.
bool token_file_open(TokenFile *f, Error *e);
// Bytes of tokens and mask, which lie one behind the other: in memory and in llmq's files; and the mask's
// bits, or those that say where documents begin.
size_t split_bytes(const Split *s);
uint8_t *split_bits(const Split *s, bool begins);
// Tokens that are predicted: all but the first.
static inline int64_t split_targets_numel(const Split *s) { return s->tokens_numel > 0 ? s->tokens_numel - 1 : 0; }
// Gives memory back and closes files; the split is absent then.
void split_free(Split *s);
// Identifies a stream and its mask without reading gigabytes: their length, and 256 evenly spaced blocks of 64 KiB (all
// of a stream of up to 16 MiB). bad: of a stream in files, what those blocks have of it.
uint64_t split_hash(const Split *s, struct BadId *bad = NULL);
// Refuses a split none of whose targets is trained on.
bool split_check_mask(const Split *s, const char *name, Error *e);
// Opens s->file[0 .. s->files), whose paths are set, as one stream. Ids that are not below vocab_size are refused here
// if they are among the blocks that identify the stream, and otherwise when they are read.
bool split_open_files(Split *s, int vocab_size, Error *e);

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
  // sequences; conversations, or pairs, in them; those too long, cut or left out; without a target; targets trained on;
  // pairs whose answers are the same
  int64_t seq_len, rows, kept, cut, dropped, untrained, trained, alike;
  int64_t *start;                                // (documents + 1) of conversations
  uint32_t *head, *next;                         // (documents) the first of a sequence; the one behind another
  int64_t first[SOURCES_MAX + 1];               // of a mixture: each source's first sequence, of which all are its
  float *reference;                              // (documents) of pairs: log-probabilities by the reference (or NULL)
};
// Packs a split. drop: leaves out what is too long, instead of cutting its end. Overwrites p; packing_free empties it.
void packing_make(Packing *p, const Split *split, int64_t seq_len, bool drop);
void packing_free(Packing *p);
// What it holds, for the memory plan.
size_t packing_bytes(const Packing *p);
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
  int64_t period, weight[SOURCES_MAX];          // of a mixture: samples until its turns repeat; each source's of them
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
bool sampler_init(Sampler *s, const Split *split, SamplerOptions o, void *memory, Error *e,
                  const Packing *packing = NULL);
// Microbatch m of a step of the current epoch; those after the step's M are empty, without targets. inputs, targets:
// (B,T), overwritten; and starts of packed conversations, weights of pairs.
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
