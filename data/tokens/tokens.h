// tokens.h: the public header of data/tokens/: streams of tokens (Split), in memory or in files, and which tokens are
// in which sample and microbatch (Sampler).
//
// split_open_files opens files as one stream, sampler_init orders its samples, microbatch_fill gives inputs, targets.
#pragma once
#include "data/files/files.h"

// ---- token_files.h --------------------------------------------------------------------------------------------------
enum { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_COUNT };
static const char *const split_names[] = {"train", "valid", "test"};
// A mixture's source: tokens [first, first + tokens_numel) of the stream; share of samples: weight / sum of weights.
enum { SOURCES_MAX = 64 };
struct SplitSource { char name[104]; int64_t first, tokens_numel, weight; };
struct TokenFile {
  char path[DATA_PATH_BYTES];
  int fd, token_bytes;                           // 2 or 4
  int64_t first, tokens_numel;                   // first: number of its first token in the stream
  int64_t offset_bytes, file_bytes;              // where its tokens start in the file; size of the file
  bool masked;                                   // the tokens are followed by a bit per token, lowest first: trained on
  uint64_t hash;                                 // of a block in its middle: distinguishes files of the same size
};
// One stream of tokens. Zeroed, it is an absent split.
struct Split {
  const void *tokens;          // (tokens_numel) uint16_t or uint32_t; NULL: in files
  int token_bytes;             // 2 or 4
  int64_t tokens_numel;        // context token included
  bool masked;                 // the tokens are followed by a bit per token, lowest first: whether it is trained on
  int64_t documents;           // conversations; if not 0, the mask is followed by a bit per token: one starts with it
  bool pairs;                  // conversations 2i and 2i+1 are a preference: the chosen and the rejected answer
  bool has_context;            // token 0 is the context token, not of the text: a newline, or the BOS token
  int64_t texts;               // documents with <|endoftext|> before them, the first included; 0: not divided
  int64_t words, lines;        // words (at white space) and lines of the text; 0 if unknown (token files)
  int64_t text_bytes;          // 0 if unknown
  double oracle_nats;          // generated text: the source's own mean loss per target on this split, nats; else 0
  uint64_t hash;               // of the tokens (sampled, see split_hash)
  // The tokens' storage: `owned` memory, or files.
  void *owned;
  TokenFile *file;
  int files, sources;          // sources: of a mixture, one after the other in the stream; 0: no mixture
  int vocab_size;              // files: ids must be below it
  SplitSource source[SOURCES_MAX];
};
// Whether a document starts at token i.
bool split_begins(const Split *s, int64_t i);
// Tokens of the longest conversation, or of the longest pair, both answers together, less one; 0: there are none.
int64_t split_longest(const Split *s);
// Token i, and whether it is trained on.
int32_t split_token(const Split *s, int64_t i);
bool split_trained(const Split *s, int64_t i);
// The header of a token file that this program writes, before its tokens: llm.c's, or, with a mask, llmq's:
// "BIN.TOK\n", int32 version (1, 2), bytes of a token, count, vocabulary, whether there are masks; from byte 1024 on
// the tokens, then the mask as a Split has it. Bit i is of token i, as llmq's tokenizer writes it. Words that llm.c and
// llmq leave 0 have the count's bits above the lowest 31 and, in llmq's header, `rest`: the bytes that follow the mask.
// Words from TOKEN_FILE_FREE_WORD on are free for the writer.
enum { TOKEN_FILE_WORDS = 256, TOKEN_FILE_HEADER_BYTES = 1024, TOKEN_FILE_FREE_WORD = 16 };
void token_file_header(int32_t header[TOKEN_FILE_WORDS], int64_t numel, int token_bytes, int vocab_size, bool masked,
                       int rest = 0);
// Opens the token file f->path; all but `first` is overwritten. Does not check the ids.
bool token_file_open(TokenFile *f, Error *e);
// Bytes of tokens and mask, which are stored one after the other: in memory and in llmq's files; and the mask's
// bits, or those that say where documents start.
size_t split_bytes(const Split *s);
uint8_t *split_bits(const Split *s, bool begins);
// Tokens that are predicted: all but the first.
static inline int64_t split_targets_numel(const Split *s) { return s->tokens_numel > 0 ? s->tokens_numel - 1 : 0; }
// Frees memory and closes files; the split is then absent.
void split_free(Split *s);
// Identifies a stream and its mask without reading gigabytes: their length, and 256 evenly spaced blocks of 64 KiB (all
// of a stream of up to 16 MiB). bad: of a stream in files, what those blocks have of it.
uint64_t split_hash(const Split *s, struct BadId *bad = NULL);
// Rejects a split none of whose targets is trained on.
bool split_check_mask(const Split *s, const char *name, Error *e);
// Opens s->file[0 .. s->files), whose paths are set, as one stream. An id >= vocab_size is an error: here, if it is in
// the blocks that split_hash reads, else when it is read.
bool split_open_files(Split *s, int vocab_size, Error *e);

// ---- sampler.h ------------------------------------------------------------------------------------------------------
// Sample i is tokens [i T, i T + T) as inputs and the same shifted by one as targets; samples do not overlap, and a
// rest shorter than T+1 tokens at the end of the split is not trained on. An epoch is a permutation of all samples that
// depends on (seed, epoch) alone, cut (drop_last) or wrapped around to whole global batches of M microbatches of B: the
// rule of PyTorch's DistributedSampler with set_epoch, for the M B sequences of a step. Microbatch m of step s holds
// positions [(s M + m) B, + B). Which rank takes which microbatches is decided by the caller.
//
// A mixture takes samples from its sources in proportion to their weights: after any number of samples each source's
// count is within 1 of its share. A source whose samples are used up starts over in a new order, also within an epoch:
// an epoch is as many samples as all sources have together. A packed sequence has conversations of one source only.
//
// Conversations may be packed whole (best fit): a sample is then a sequence of conversations of at most T + 1 tokens
// each. Conversations are placed in the order of the text, each in the sequence with the least space left that it fits
// into; every rank gets the same packing. A conversation of n tokens takes n - 1 positions; positions left over are a
// document of padding, without targets. A conversation without a trained target in its positions is left out. The two
// answers of a preference are placed together in one sequence; preferences are never cut, and one with an answer
// without a trained target is left out.
enum : uint32_t { PACKING_NONE = UINT32_MAX };
struct Packing {
  const Split *split;                            // NULL: not packed
  // rows: sequences; kept: conversations, or pairs, in them; cut, dropped: too long ones that were cut, left out;
  // untrained: left out for having no target; trained: targets trained on; alike: pairs with two equal answers
  int64_t seq_len, rows, kept, cut, dropped, untrained, trained, alike;
  int64_t *start;                                // (documents + 1) first token of each conversation
  uint32_t *head, *next;                         // (documents) a sequence's first conversation; the one after each
  int64_t first[SOURCES_MAX + 1];                // mixture: source k has sequences [first[k], first[k + 1])
  float *reference;                              // (documents) of pairs: log-probabilities by the reference (or NULL)
};
// Packs a split. drop: leaves out what is too long, instead of cutting its end. Overwrites p; packing_free empties it.
void packing_make(Packing *p, const Split *split, int64_t seq_len, bool drop);
void packing_free(Packing *p);
// Bytes that p has allocated, for the memory plan.
size_t packing_bytes(const Packing *p);
// Writes sequence `row`; past the last sequence all is padding. inputs, targets, starts (ops.h): (T), overwritten; for
// pairs also weights (preference.cuh).
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
  uint32_t *order;             // (samples_numel) the epoch's permutation; mixture: (period) sources; NULL: none stored
  const Packing *packing;                        // samples are its sequences; NULL: samples are cut from the stream
  int64_t period, weight[SOURCES_MAX];           // mixture: samples until the order of sources repeats; each source's
};
// Samples of a source of a mixture.
int64_t sampler_source_numel(const Split *split, int k, int64_t seq_len, const Packing *packing);
// Samples of a mixture after which the order of its sources repeats.
int64_t sampler_period(const Split *split);
// Bytes that sampler_init needs: for the permutation, or a mixture's order of sources.
size_t sampler_bytes(const Split *split, SamplerOptions o, const Packing *packing = NULL);
// Starts epoch `epoch` (from 0). Overwrites the order.
void sampler_set_epoch(Sampler *s, int64_t epoch);
// Prepares epoch 0. memory: sampler_bytes(split, o) bytes, used as long as the sampler is. False and one line when the
// split cannot fill one global batch.
bool sampler_init(Sampler *s, const Split *split, SamplerOptions o, void *memory, Error *e,
                  const Packing *packing = NULL);
// Microbatch m of a step of the current epoch; those after the step's M are empty, without targets. inputs, targets:
// (B,T), overwritten; so are starts, with packed conversations, and weights, with pairs.
void microbatch_fill(const Sampler *s, int64_t step_in_epoch, int64_t m, int32_t *inputs, int32_t *targets,
                     int32_t *starts = NULL, float *weights = NULL);
// Asks the kernel to read microbatch m of a step of the current epoch from files into the page cache ahead of its use.
void microbatch_read_ahead(const Sampler *s, int64_t step_in_epoch, int64_t m);
// Windows of T targets that cover a split once, in order; the last may be partial. A window's contents do not depend on
// the rank that takes it.
int64_t eval_windows_numel(const Split *split, int64_t seq_len);
// Window w. inputs, targets: (T), overwritten; where there is no target, target -1 (ignored by the loss) and input 0.
// Past the last window all is padding, so a batch can be filled up. Returns the number of targets, masked ones counted.
int64_t eval_window_fill(const Split *split, int64_t seq_len, int64_t w, int32_t *inputs, int32_t *targets);
