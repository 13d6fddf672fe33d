// checkpoint.h: the door of data/checkpoint/: weights and what goes with them, in files.
//
// A checkpoint is a directory of safetensors files (Saved); a TensorMap says which tensor of the model is which of a
// file, a Store moves shards between both, at once or while the training goes on. Models of other programs come in and
// go out by interchange_*, gguf_* and lora_*; ModelShape says what a model is.
#pragma once
#include "data/data.h"
#include "fsdp.h"
#include <pthread.h>

// ---- safetensors.h --------------------------------------------------------------------------------------------------
// The reference implementation refuses longer headers, too.
enum { SAFETENSORS_MAX_HEADER_BYTES = 100000000, SAFETENSORS_MAX_DIMS = 8 };
// `at` counts from the start of the file, not of the data. Dtypes other than ours are legal and their sizes checked.
struct SafetensorsTensor {
  const char *name;
  Dtype dtype;                                   // where known_dtype
  bool known_dtype;                              // F32, BF16, F16, I32; false: only dtype_text is known
  char dtype_text[12];
  int ndim;
  int64_t shape[SAFETENSORS_MAX_DIMS];
  int64_t at, bytes;
  int32_t ggml = 0;                              // of a GGUF: its type of blocks (ggml_types.h); 0: it has none
};
struct SafetensorsPair { const char *key, *value; };
// An open file; zeroed: no file. The tensors are in the order of their bytes.
struct SafetensorsFile {
  const uint8_t *map;                            // the whole file
  size_t bytes, data_at;
  SafetensorsTensor *tensor;
  int count;
  SafetensorsTensor **by_name;                   // (count) sorted
  SafetensorsPair *metadata;                     // (metadata_count) sorted by key
  int metadata_count;
  char *text;                                    // the header; its strings are unescaped in place
  char error[1400];
};

// ---- crc32c.h -------------------------------------------------------------------------------------------------------
// The checksum of the bytes that had checksum `crc` (0: of none), followed by these. "123456789" has e3069283.
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

// ---- tensor_map.h ---------------------------------------------------------------------------------------------------
enum { MAP_MAX_FILES = 64, MAP_PATH_BYTES = 1280 };
// By ShardState: parameters, first moment (SGD: momentum), second moment.
enum { MAP_STATES = 3, MAP_PARTS = 3 };
// at: byte of the file where the tensor's first element is. file < 0: not in any file. rows: of the parameter that this
// part has; 0: all that are left. half_rows: runs of so many rows are in the file in exchanged pairs, or with in_turn a
// row of one and of the other in turn; 0: as they are. ggml: type of the blocks that it is in (ggml_types.h); 0: dtype.
// plus: what the parameter has more than the file.
struct TensorPlace {
  int32_t file;
  Dtype dtype;
  bool transposed;
  int64_t at, rows, half_rows;
  bool in_turn = false;
  int32_t ggml = 0;
  float plus = 0;
  int32_t scales = 0, scale_block = 0;           // of NF4: its scales in the map, from 1; how many numbers share one
};
// Where scales of bitsandbytes' NF4 lie (nf4.h): those of `block` numbers each, in fp32, or with a nested_block as
// bytes, which are numbers of `map`, times the second ones, of nested_block each, plus offset.
struct Nf4Place { int file; int64_t at; };
struct Nf4Scales { Nf4Place absmax, second; int32_t block, nested_block; float offset, map[256]; };
// Zeroed, it is empty. Freed by tensor_map_free.
struct TensorMap {
  int files, params;
  char path[MAP_MAX_FILES][MAP_PATH_BYTES];
  int64_t file_bytes[MAP_MAX_FILES];             // of the whole file: another size is refused before it is read
  int64_t data_at[MAP_MAX_FILES];                // where tensors begin: blocks with checksums are counted from here
  TensorPlace *place;                            // [MAP_STATES][params][MAP_PARTS]
  Nf4Scales *scales;                             // (scales_count)
  int scales_count;
};
void tensor_map_free(TensorMap *m);
// The first part's place; the other parts' follow.
TensorPlace *tensor_place(const TensorMap *m, int state, int param);
// Gives every rank rank 0's map. Collective.
void tensor_map_share(TensorMap *m, MPI_Comm comm);

// ---- store.h --------------------------------------------------------------------------------------------------------
enum {
  STORE_BLOCK_BYTES = 1 << 20,
  STORE_CHUNK_BYTES = 2 << 20,                   // whole blocks, so that a reader can check what it reads
  STORE_ERROR_BYTES = 508
};
struct ChunkCursor { int state, param; int64_t done; };
// Bytes that this rank writes or reads.
int64_t store_own_bytes(const Fsdp *f, const TensorMap *m, unsigned states);
// (rows, cols) of any floating dtype -> (cols, rows) fp32. Tiles of 16 x 16 keep both sides in cache.
void transpose_to_f32(float *to, const void *from, Dtype dtype, int64_t rows, int64_t cols);
struct StoreRecord { int32_t failed; char error[STORE_ERROR_BYTES]; };
enum StorePhase { STORE_IDLE, STORE_WRITING, STORE_AGREEING, STORE_COMMITTING, STORE_TELLING };
struct Stream { char *data; MPI_Request request; int state; };     // a Span, then its bytes
// What rank 0 does, perhaps in a thread, when all ranks have finished writing: gives the files their names, or removes
// them. checksums: one CRC-32C per block, the files' blocks one after the other.
struct StoreCommit {
  bool (*commit)(void *to, const uint32_t *checksums, char *error, size_t error_bytes);
  void (*discard)(void *to);
  void *to;
};
struct StoreRequest {
  unsigned states;                               // a bit each
  bool background;                               // from a snapshot; else store_poll writes straight from the shards
  bool checksums;
  const char *header[MAP_MAX_FILES];             // rank 0: first bytes of each file, up to data_at
  StoreCommit end;
};
struct Store {
  Fsdp *f;
  MPI_Comm comm;                                 // of checkpoints alone
  size_t bytes;                                  // taken, from one block:
  char *memory, *scratch[2], *snapshot;          // STORE_CHUNK_BYTES each; all that is written, or NULL
  int64_t *snapshot_at;                          // [states * params] elements
  Stream stream[2];                              // several hosts only
  uint32_t *parts, *checksums;                   // [blocks] this rank's contributions; of all ranks
  StoreRecord *records;                          // [world + 1]; the last is the save's result
  int64_t blocks;
  // The save in flight.
  StorePhase phase;
  TensorMap map;
  StoreRequest request;
  ChunkCursor cursor;
  int fd[MAP_MAX_FILES];
  bool direct, own_done, cancelled;              // direct: this rank sees the files
  int remote_left;                               // rank 0: ranks that still stream
  pthread_t thread;
  bool threaded;
  int thread_done;                               // atomic
  int64_t bytes_done, bytes_total;               // of this rank: written (atomic); planned
  MPI_Request requests[2];
  StoreRecord *result;                           // of the last save, on every rank
  double ended_ms;                               // when it was known
  uint64_t base_hash;                            // of what adapters are for; 0: there are none
  uint64_t reference_hash;                       // of the weights that preferences are compared with; 0: there are none
  // NULL, or adds to elements [first, first + n) of a parameter what its adapters change; all are whole in `adapters`.
  void (*merge)(const Fsdp *f, int param, int64_t first, float *values, int64_t n, const void *merge_of);
  const void *merge_of;
  float *adapters;
};
size_t store_plan_bytes(const Fsdp *f, bool background);
// s->memory has store_plan_bytes and stays the caller's. Collective.
void store_open(Store *s, Fsdp *f, bool background);
void store_close(Store *s);
__attribute__((format(printf, 2, 3))) bool store_fail(StoreRecord *r, const char *fmt, ...);
// Starts writing the states of `map` (taken over) to its files. Collective. Returns false on every rank, with the
// reason in s->result, when the files cannot be made; else the save is in flight until store_poll says otherwise.
bool store_save_begin(Store *s, TensorMap *map, StoreRequest request);
// Advances the save in flight without waiting. Returns true once there is none; s->result then says how it went. Every
// rank must keep calling it; it may be called at any time from the main thread.
bool store_poll(Store *s);
static inline void store_background(void *to) { if (((Store *)to)->phase != STORE_IDLE) store_poll((Store *)to); }
// Waits for the save in flight. progress: NULL, or called now and then.
void store_wait(Store *s, void (*progress)(Store *s));
// checksums: NULL, or a CRC-32C a block as store_conclude leaves them.
// seen: a checksum of a file beside them, which also shows whether a rank sees rank 0's files.
struct StoreLoad {
  const TensorMap *map;
  const uint32_t *checksums;
  uint32_t seen;
  ValuePass pass;                                // the first of two where frozen matrices need their scales
  bool direct;                                   // this rank sees the files
  int fd[MAP_MAX_FILES];
  int held_file;                                 // scratch[0] holds bytes [held_from, held_to) of this file's tensors
  int64_t held_from, held_to;
  int64_t bytes_done, bytes_total;
};
// Reads the wanted states of this rank's shards from the files of l.map. Collective; every rank returns, and one that
// could not read all of it has the reason (tensor, file, place) in `error`, which is "" otherwise. Afterwards call
// fsdp_publish and fsdp_step_end. Frozen E4M3 matrices are read twice: their scales come first.
void store_load(Store *s, StoreLoad l, unsigned states, char *error, size_t error_bytes,
                void (*progress)(const StoreLoad *l, void *to), void *to);

// ---- saved.h --------------------------------------------------------------------------------------------------------
enum { CHECKPOINT_VERSION = 1, CHECKPOINT_MODEL = 0, CHECKPOINT_OPTIM = 1, CHECKPOINT_FILES = 2 };
enum : unsigned { STATES_WEIGHTS = 1, STATES_ALL = (1 << MAP_STATES) - 1 };
enum { TRAINER_JSON_MOST_BYTES = 1 << 28 };
// What a checkpoint is made of, and what one is read into. All of it is the caller's.
// part: of the parameters: with adapters, a checkpoint has these alone, and one of their base has none of them.
enum SavedPart { SAVED_ALL, SAVED_BASE, SAVED_ADAPTERS };
struct Saved {
  Fsdp *fsdp;
  Store *store;
  Ctx *ctx;
  const Corpus *corpus;
  int heads;                                     // of the model: no shape tells it; 0: its block is not GPT-2's
  int64_t *step, steps_total, steps_per_epoch, global_batch, vocab_size_asked, gpu_head_chunk_bytes;
  float *loss_scale;
  bool fixed_loss_scale;                         // a checkpoint's is not taken
  const char *buffer_dtype, *device_words, *program, *build;
  StepState *state, *state_on_device;
  void (*write_config)(FILE *f, const void *options);      // every option, as members of an object
  const void *options;
  SavedPart part;
  const cJSON *published;                        // beside the weights that it was tuned from (interchange.h); or NULL
};
// Joins directory and name; a path that does not fit ends the program.
void path_join(char *to, size_t bytes, const char *directory, const char *name);
// Headers of the checkpoint in `directory` and the places of all its tensors. header: malloc'ed, one a file.
void checkpoint_map(const Saved *saved, const char *directory, TensorMap *m, char *header[CHECKPOINT_FILES]);
// What a checkpoint records besides tensors.
struct CheckpointState {
  int64_t step, serial, updates;
  int good_steps;
  float loss_scale;
  double beta1_power, beta2_power;
  double loss, valid_loss, best_loss;            // of the step; last and lowest of validation, INFINITY: none yet
  int64_t evaluated_step;                        // of the last validation; -1: none
  uint64_t corpus_hash, tokenizer_hash;
};
// How good it is. INFINITY, -1: not known. best: its validation loss is the lowest so far.
struct CheckpointQuality { double valid_loss, best_loss; int64_t evaluated_step; bool best; };
// Its first part, made when the save begins. Ends inside the object.
void checkpoint_write_head(FILE *f, const Saved *saved, int64_t serial, CheckpointQuality q);
// Its second part, when all tensors are written.
void checkpoint_write_tail(FILE *f, const TensorMap *m, const uint32_t *checksums, const char *tokenizer,
                           int64_t tokenizer_bytes, uint64_t tokenizer_hash_);
char *checkpoint_sealed(const char *text, size_t text_bytes, size_t *bytes);
bool json_int(const cJSON *o, const char *key, double lo, double hi, int64_t *to);
bool json_hex(const cJSON *o, const char *key, uint64_t *to);
// Parses the text of PATH/trainer.json. NULL and one line in `error` when it is not whole or not ours.
cJSON *checkpoint_parse(const char *path, const char *text, size_t bytes, char *error, size_t error_bytes);
// Reads what changes from step to step from `json`, trainer.json of the checkpoint in `directory`.
bool checkpoint_state(const char *directory, const cJSON *json, CheckpointState *c, char *error, size_t error_bytes);
// Reads DIR/trainer.json, malloc'ed. NULL and one line in `error`.
char *checkpoint_text(const char *directory, int64_t *bytes, char *error, size_t error_bytes);
struct Listed { char name[32]; int64_t serial; bool best; };
// The names step_* of a directory of checkpoints, newest first; those that are not whole have serial -1 and come last;
// `damaged` gets a line on the first of them. Returns a malloc'ed list.
Listed *checkpoint_list(const char *directory, int *count, char *damaged, size_t damaged_bytes);
// Removes a checkpoint: first its name, atomically, then its files.
bool checkpoint_remove(const char *directory, const char *name);
// Removes what interrupted saves and removals left: names that begin with one of `starts`, followed by digits or a
// checkpoint's name.
static const char *const checkpoint_leftovers[] = {".saving_", ".removed_", "latest.tmp", "best.tmp", NULL};
static const char *const weights_leftovers[] = {"model.safetensors.tmp", "adapter_model.safetensors.tmp", NULL};
void directory_sweep(const char *directory, const char *const *starts);
// Keeps the `keep` newest (0: all), and the best if keep_best; the links show which these are. Which one is best is
// recorded in the checkpoints, so a process that is killed before it sets the link loses nothing.
// Returns whether all others were removed.
bool checkpoint_prune(const char *directory, int64_t keep, bool keep_best);
// Adds to an error which checkpoint to take instead.
void checkpoint_hint(const char *directory, char *error, size_t error_bytes);
// Loads weights, and with `resume` also optimizer, step and all else that changes from step to step, from the
// checkpoint in `directory`. `json`: its trainer.json as rank 0 read it. Collective; ends all ranks with one line if
// anything is missing, extra, of another shape, or damaged.
void checkpoint_load(const Saved *saved, const char *directory, const cJSON *json, uint32_t json_checksum, bool resume,
                     void (*progress)(const StoreLoad *l, void *fsdp));

// ---- model_shape.h --------------------------------------------------------------------------------------------------
// The order of names is that of the options' choices (run/option_table.h).
enum Norm : int { NORM_LAYERNORM, NORM_RMSNORM };
enum NormPlace : int { NORM_BEFORE, NORM_BEHIND, NORM_BOTH };          // of attention and the MLP
enum Position : int { POSITION_LEARNED, POSITION_ROPE };
enum Mlp : int { MLP_GELU, MLP_RELU2, MLP_SWIGLU, MLP_GEGLU };
enum Biases : int { BIAS_ALL, BIAS_NONE, BIAS_QKV, BIAS_QKVO };        // all: of LayerNorms and the MLP too
// Changes of rope's frequencies. linear: all turn `factor` times slower. llama3 and yarn (Peng et al. 2023): long waves
// do, short ones turn as before, those between `low` and `high` waves in `original` positions in between; yarn's share
// goes by dimensions, from a whole one to a whole one unless it is yarn_exact, and cosines and sines are multiplied by
// `attention`. growth: q grows by 1 + growth ln(1 + position / original), the quotient rounded down: by nothing before
// `original`, where sequences must end.
enum RopeKind { ROPE_UNSCALED, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_YARN_EXACT, ROPE_KINDS };
struct RopeScaling { RopeKind kind; double factor, low, high; int64_t original; double attention, growth; };
struct Block {
  Norm norm;
  NormPlace norm_place;
  bool norm_weightless, norm_embedding;          // norms without a weight; an RMSNorm without one behind the embedding
  double norm_eps;
  Position position;
  double rope_theta;
  RopeScaling rope_scaling;
  int64_t rope_skip;                             // every rope_skip-th block turns nothing; 0: all turn
  int64_t window, window_skip;                   // tokens that one sees, itself among them, in all but every
                                                 // window_skip-th block; 0: all; none but sees so many
  double attention_scale;                        // scores are divided by its root; 0: a head's columns; needs rope
  bool embedding_scaled;                         // the embedding is multiplied by the root of its width
  double window_theta;                           // rope in blocks with a window: its base, unscaled; 0: as in others
  QkNorm qk_norm;
  Mlp mlp;
  Biases bias;
  double logit_softcap;                          // 0: none
};
// Low-rank adapters (Hu et al. 2021) of a block's frozen matrices, which add B A alpha / rank to them; by_root: alpha /
// sqrt(rank), rsLoRA (Kalajdzievski 2023). rank 0: none. parts: of each matrix, a bit for each of the matrices that it
// is in a file (lora.h). Rows [row_from, row_end) of embedding and head train beside them; row_end 0: none.
enum LoraMatrix { LORA_QKV, LORA_OUT, LORA_FC, LORA_PROJ, LORA_MATRICES };
struct Lora {
  int64_t rank;
  double alpha, dropout;
  unsigned parts[LORA_MATRICES];
  bool by_root;
  int64_t row_from, row_end;
};
// dropout: 0 if a file does not record it. n_positions: learned ones, or those that a file says the model is good for.
struct ModelShape {
  int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
  bool tied;
  double dropout;
  int64_t n_kv_head, head_size, mlp_width;
  Block block;
  Lora lora;
};
// GPT-2's block.
ModelShape model_shape_gpt2(int64_t n_layer, int64_t n_head, int64_t n_embd, int64_t n_positions, int64_t vocab_size,
                            bool tied, double dropout);
// Columns of q, k and v together, and rows of the MLP's first matrix: gate and up are one.
static inline int64_t model_qkv_rows(const ModelShape *s) { return (s->n_head + 2 * s->n_kv_head) * s->head_size; }
static inline bool mlp_is_gated(Mlp mlp) { return mlp == MLP_SWIGLU || mlp == MLP_GEGLU; }
int64_t model_fc_rows(const ModelShape *s);
// Whether block l turns q and k.
bool block_turns(const Block *b, int l);
// Tokens that one sees in block l; 0: all before it.
int64_t block_window(const Block *b, int l);
// "none", or a kind and its numbers, as in "llama3:FACTOR,LOW,HIGH,POSITIONS"; yarn has two more, attention (left out:
// 0.1 ln factor + 1) and growth. False: it is none of these.
bool rope_scaling_parse(const char *text, RopeScaling *s);
void rope_scaling_print(char *to, size_t bytes, const RopeScaling *s);
// Fills a table for rope.cuh of `positions` rows: cosines and sines of position times frequency, in fp32 as
// transformers computes them. Frequency i: theta^(-2i/hs), changed as RopeScaling says. window: for blocks with one,
// where window_theta is their base.
void rope_table_fill(float *table, const Block *b, int64_t positions, int64_t hs, bool window = false);

// ---- safetensors_set.h ----------------------------------------------------------------------------------------------
struct SafetensorsShard { char path[MAP_PATH_BYTES]; SafetensorsFile file; };
struct SafetensorsSet { int count; SafetensorsShard *shard; };

// ---- families.h -----------------------------------------------------------------------------------------------------
// What the class fixes of the block, and what an absent field means to it: tied, theta, head_size (0: hidden_size by
// heads), cap; Llama and NanoChat take the number of k and v heads for that of q.
struct Family {
  const char *model_type, *architecture;
  bool qkv_biased;                               // no field says so
  QkNorm qk_norm;
  bool nanochat;                                 // weightless norms, one behind the embedding, relu2, capped logits
  bool skips;                                    // some layers do not turn
  bool tied;
  double theta;
  int64_t head_size;
  double cap;
  const char *gguf;                              // llama.cpp's architecture; NULL: it has none
  double eps;
  bool biasless;                                 // no field asks for biases
  NormPlace norm_place = NORM_BEFORE;
  bool windows = false;                          // layers may have one: all, or with full_every all but every
  int64_t full_every = 0;                        // full_every-th unless the file lists them, with a base of rope of
  double window_theta = 0;                       // their own, by default this
  bool gemma = false;                            // GEGLU, a scaled embedding, and files have norms' weights less 1
};
bool shape_is_gpt2(const ModelShape *s);
// The class that an exported model is; NULL: GPT-2, or none.
const Family *family_of_shape(const ModelShape *s);
// Whether some class of transformers is this model. False: `error` says so.
bool export_can(const ModelShape *s, char *error, size_t error_bytes);

// ---- interchange.h --------------------------------------------------------------------------------------------------
enum ImportKind { IMPORT_HF_DIRECTORY, IMPORT_SAFETENSORS, IMPORT_LLMC, IMPORT_GGUF };
// An open model of another program. Closed by import_close.
struct Import {
  ImportKind kind;
  ModelShape shape;
  char path[MAP_PATH_BYTES];                     // of the file that has the weights, or of the index of several
  char tokenizer[MAP_PATH_BYTES];                // directory with tokenizer.json, or vocab.json and merges.txt; or a
                                                 // GGUF; or ""
  char notice[256];                              // for the user: what is not as the file says; or ""
  int64_t file_bytes;                            // of llm.c
  bool prefixed;                                 // GPT-2 of Hugging Face: names start with "transformer."
  const Family *family;                          // of Hugging Face; NULL: GPT-2
  bool with_images;                              // its text model is taken: names start with "language_model."
  SafetensorsSet set;                            // not of llm.c
  cJSON *published;                              // of a GGUF (gguf_published); NULL: nothing
  Dtype dtype;                                   // of llm.c
  int64_t padded_vocab;                          // of llm.c: rows of wte in the file
};
// Frees what an Import has; it is empty then, and may be closed again.
void import_close(Import *s);
// Finds out what PATH is and which shape its model has. False: `error` says why, s is closed.
bool import_open(Import *s, const char *path, char *error, size_t error_bytes);
// The place of every parameter, as state 0 of an empty map. False: nothing is left in the map, and `error` names up to
// three tensors that are missing, extra, of another shape or of a dtype that is not read.
bool import_map(Import *s, const Param *param, int params, TensorMap *map, char *error, size_t error_bytes);
// The places of all parameters in DIR/model.safetensors, as state 0 of an empty map, and the file's header (malloc'ed),
// as save_pretrained writes them: all in `dtype`, by name, lm_head.weight only where the head is not tied.
bool export_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *shape, Dtype dtype,
                char **header, int64_t *header_bytes, char *error, size_t error_bytes);
cJSON *import_published(const char *directory);
const cJSON *published_item(const cJSON *published, const char *file, const char *name);
// The text of a special token, NULL where there is none; the id of one, -1.
const char *published_text(const cJSON *published, const char *name);
int32_t published_id(const cJSON *published, const char *name);
// The tokens that begin and end a text: -1 and NULL where there is none, which files must say, because transformers
// takes 50256 for GPT-2 by default. other: further ends. chat: template's text, or NULL.
enum { ENDS_MOST = 16 };
struct TextEnds {
  int32_t bos, eos;
  char *bos_text, *eos_text, *chat;
  const cJSON *published = NULL;
  int32_t other[ENDS_MOST] = {};
  int others = 0;
};
void text_ends_add(TextEnds *e, int32_t id);
// config.json. version: of this program. To be freed by the caller, as those below.
char *export_config_text(ModelShape shape, const TextEnds *ends, const char *version, Dtype dtype = F32);
// generation_config.json, what generate() starts from: the published one, if there is one, with these ends.
char *export_generation_config_text(const TextEnds *ends);
// tokenizer_config.json, for the tokenizer.json beside it. Whether a token is added to a text automatically,
// tokenizer.json says.
char *export_tokenizer_config_text(int64_t n_positions, const TextEnds *ends);

// ---- lora.h ---------------------------------------------------------------------------------------------------------
// Sets l->parts to what a list of names says: of a module, or of its last parts, as PEFT matches target_modules. what:
// has the list. False: one line in `error`.
bool lora_targets(Lora *l, const ModelShape *s, const char *list, char *error, size_t error_bytes,
                  const char *what = "--lora_targets");
// What the op needs to know of a matrix's adapters: base, that matrix.
LoraParts lora_parts_of(const ModelShape *s, int matrix, const Param *base);
// The factor A, or B with `up`, of the adapters of parameter number `number`, base.
Param lora_param(const ModelShape *s, int matrix, const Param *base, int number, bool up);
// What adapter_config.json of DIR says: rank and alpha of l, and the targets' names as a list. What would change the
// function computed is refused. False: one line in `error`.
bool lora_config_read(Lora *l, char *targets, size_t targets_bytes, const char *dir, char *error, size_t error_bytes);
// The same file. base: name or path of the weights that the adapter is for. To be freed by the caller.
char *lora_config_text(const ModelShape *s, const char *base);
// The places of all factors in DIR/adapter_model.safetensors, as state 0 of an empty map, and the file's header
// (malloc'ed). hash: of the weights that they are for.
void lora_export_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *s,
                     uint64_t hash, char **header);
// The places of all factors in DIR as PEFT wrote it. hash: what the file says of its base, 0: nothing. False: `error`
// names tensors that are missing, extra, of another shape or dtype.
bool lora_import_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *s,
                     uint64_t *hash, char *error, size_t error_bytes);
// Elements of all factors; elements of those before parameter p.
int64_t lora_numel(const Fsdp *f, int p);
// Fills `to` with all factors, whole, on every rank. Collective.
void lora_gather(Fsdp *f, float *to);
// Store's merge: adds B A times the adapters' factor to elements of a matrix that has adapters, in fp32.
struct LoraMerge { ModelShape shape; const float *adapters; };
void lora_merge(const Fsdp *f, int p, int64_t first, float *values, int64_t n, const void *merge);

// ---- gguf.h ---------------------------------------------------------------------------------------------------------
// The order is that of --export_gguf's choices behind off. ggml: the number of a tensor's type; file_type: of the file.
enum GgufType { GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0 };
// False: `error` says why llama.cpp cannot run it.
bool gguf_can(const ModelShape *s, char *error, size_t error_bytes);
// llama.cpp's name of the way in which a tokenizer cuts a text into pieces; NULL: it has none that is like this.
const char *gguf_pre_tokenizer(const Tokenizer *k);
// Writes PATH from the fp32 tensors of WEIGHTS, a model.safetensors of this program, or of a shape with adapters a file
// of these: under a temporary name, then
// renamed. k: NULL without a tokenizer. False with one line in `error`.
bool gguf_write(const char *path, const char *weights, const Param *param, int params, const ModelShape *s,
                const Tokenizer *k, const TextEnds *ends, GgufType type, char *error, size_t error_bytes);
