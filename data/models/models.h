// models.h: the door of data/models/: what a model is (ModelShape), and how those of other programs come in and go out:
// Hugging Face's, llm.c's, GGUF, adapters.
//
// In: import_open, import_map, import_close. Out: export_map and export_*_text, gguf_write, lora_export_map.
#pragma once
#include "data/tensors/tensors.h"
#include "data/tokenizer/tokenizer.h"

// ---- model_shape.h --------------------------------------------------------------------------------------------------
// The order of names is that of the options' choices (run/options/option_table.h).
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
struct Architecture {
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
  Architecture block;
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
bool layer_rotates(const Architecture *b, int l);
// Tokens that one sees in block l; 0: all before it.
int64_t layer_window(const Architecture *b, int l);
// "none", or a kind and its numbers, as in "llama3:FACTOR,LOW,HIGH,POSITIONS"; yarn has two more, attention (left out:
// 0.1 ln factor + 1) and growth. False: it is none of these.
bool rope_scaling_parse(const char *text, RopeScaling *s);
void rope_scaling_print(char *to, size_t bytes, const RopeScaling *s);
// Fills a table for rope.cuh of `positions` rows: cosines and sines of position times frequency, in fp32 as
// transformers computes them. Frequency i: theta^(-2i/hs), changed as RopeScaling says. window: for blocks with one,
// where window_theta is their base.
void rope_table_fill(float *table, const Architecture *b, int64_t positions, int64_t hs, bool window = false);

// ---- families.h -----------------------------------------------------------------------------------------------------
struct Family;                                   // a class of transformers
// Whether its block is GPT-2's.
bool shape_is_gpt2(const ModelShape *s);
// The model_type of the class that an exported model is; NULL: there is none.
const char *family_name(const ModelShape *s);
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
// What the file calls the tensor that has an element of a parameter.
void import_element_name(char to[128], const Import *s, const Param *p, int64_t element);
// The places of all parameters in DIR/model.safetensors, as state 0 of an empty map, and the file's header (malloc'ed),
// as save_pretrained writes them: all in `dtype`, by name, lm_head.weight only where the head is not tied.
bool export_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *shape, Dtype dtype,
                char **header, int64_t *header_bytes, char *error, size_t error_bytes);
// What a directory of Hugging Face says beside the weights, which goes out with a tuned model again; NULL: nothing. A
// member `name` of its `file`.
cJSON *import_published(const char *directory);
cJSON *gguf_published(const GgufFile *g);
const cJSON *published_item(const cJSON *published, const char *file, const char *name);
// The text of a special token, NULL where there is none; the id of one, -1.
const char *published_text(const cJSON *published, const char *name);
int32_t published_id(const cJSON *published, const char *name);
// The tokens that begin and end a text: -1 and NULL where there is none, which files must say, because transformers
// takes 50256 for GPT-2 by default. other: further ends. chat, chat_tools: templates' texts, the other of conversations
// with tools; or NULL.
enum { ENDS_MAX = 16 };
struct TextEnds {
  int32_t bos, eos;
  char *bos_text, *eos_text, *chat, *chat_tools;
  const cJSON *published = NULL;
  int32_t other[ENDS_MAX] = {};
  int others = 0;
};
// Adds a further end; one that is there already stays alone.
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
// Its text. base: name or path of the weights that the adapter is for. To be freed by the caller.
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
// of these: under a temporary name, then renamed. k: NULL without a tokenizer. False with one line in `error`.
bool gguf_write(const char *path, const char *weights, const Param *param, int params, const ModelShape *s,
                const Tokenizer *k, const TextEnds *ends, GgufType type, char *error, size_t error_bytes);
