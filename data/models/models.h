// models.h: the public header of data/models/: imports models of other programs and exports models for them: Hugging
// Face, llm.c, GGUF, adapters.
#pragma once
#include "data/tensors/tensors.h"
#include "data/shape/shape.h"
#include "data/chat/chat.h"

// ---- families.h -----------------------------------------------------------------------------------------------------
struct Family;                                   // a class of transformers
// Whether a model has GPT-2's architecture.
bool shape_is_gpt2(const ModelShape *s);
// The model_type of the class of transformers as which a model of this shape is exported; NULL: there is none.
const char *family_name(const ModelShape *s);
// Whether some class of transformers can represent a model of this shape. False: `error` says so.
bool export_can(const ModelShape *s, Error *error);

// ---- interchange.h --------------------------------------------------------------------------------------------------
enum ImportKind { IMPORT_HF_DIRECTORY, IMPORT_SAFETENSORS, IMPORT_LLMC, IMPORT_GGUF };
struct Import;                                   // an open model of another program
struct ImportFacts {
  ImportKind kind;
  ModelShape shape;
  char tokenizer[MAP_PATH_BYTES];                // directory with tokenizer.json, or vocab.json and merges.txt; or a
                                                 // GGUF; or ""
  char warning[256];                             // for the user: what is not as the file says; or ""
  int stored;                                    // the Dtype of all its matrices; < 0: they differ, or are in blocks
  cJSON *published;                              // goes out with a model that is fine-tuned from it; NULL: nothing
};
// Finds out what PATH is and which shape its model has. facts: NULL, or filled in; the caller frees `published`. NULL:
// `error` says why. The model is freed by import_close.
Import *import_open(const char *path, ImportFacts *facts, Error *error);
void import_close(Import *s);
// The place of every parameter, as state 0 of an empty map. False: nothing is left in the map, and `error` names up to
// three tensors that are missing, extra, of another shape or of a dtype that is not read.
bool import_map(Import *s, const Param *param, int params, TensorMap *map, Error *error);
// What the file calls the tensor that has an element of a parameter.
void import_element_name(char to[128], const Import *s, const Param *p, int64_t element);
// Whether the model has every tensor that its shape asks for. types: of each matrix, its blocks' type (GGUF's number);
// quantized: some are in blocks.
bool import_check(Import *s, const ParamTable *table, uint8_t *types, bool *quantized, Error *error);
// The files that have the weights; NULL: there are no more.
const char *import_file(const Import *s, int i);

// ---- published.h ----------------------------------------------------------------------------------------------------
// What renders chats by what is beside a tokenizer, a file or a directory, or in a GGUF (chat_words_of). NULL: nothing,
// and why; a code in `why`: a file is damaged.
char *published_chat_words(const char *tokenizer, Error *why);

// ---- exports.h ------------------------------------------------------------------------------------------------------
// The places of all parameters in DIR/model.safetensors, as state 0 of an empty map, and the file's header (malloc'ed),
// as save_pretrained writes them: all in `dtype`, by name, lm_head.weight only where the head is not tied.
bool export_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *shape, Dtype dtype,
                char **header, Error *error);
// What goes out beside weights: tokenizer, what renders chats, what was published; NULL: there is none. program: this
// one's version.
struct ExportTexts {
  const Tokenizer *tokenizer;
  const ChatOptions *chat;
  const cJSON *published;
  const char *program;
};
// The EOS tokens that an export names, at most `most` of them. Returns how many.
int export_ends(const ExportTexts *x, int32_t *ids, int most);
// Writes config.json, generation_config.json, tokenizer.json and tokenizer_config.json into DIR; of adapters, for the
// weights `base` (else NULL), adapter_config.json, and those of a tokenizer with tokens of its own.
bool export_texts(const char *dir, const ModelShape *s, Dtype dtype, const ExportTexts *x, const char *base,
                  Error *error);

// ---- lora.h ---------------------------------------------------------------------------------------------------------
// Sets l->parts to what a list of names says: of a module, or of its last parts, as PEFT matches target_modules. what:
// has the list. False: one line in `error`.
bool lora_targets(Lora *l, const ModelShape *s, const char *list, Error *error, const char *what = "--lora_targets");
// What adapter_config.json of DIR says: rank and alpha of l, and the targets' names as a list. What would change the
// function computed is rejected. False: one line in `error`.
bool lora_config_read(Lora *l, char *targets, size_t targets_bytes, const char *dir, Error *error);
// The places of all factors in DIR/adapter_model.safetensors, as state 0 of an empty map, and the file's header
// (malloc'ed). hash: of the weights that they are for.
void lora_export_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *s,
                     uint64_t hash, char **header);
// The places of all factors in DIR as PEFT wrote it. hash: what the file says of its base, 0: nothing. False: `error`
// names tensors that are missing, extra, of another shape or dtype.
bool lora_import_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *s,
                     uint64_t *hash, Error *error);
// Elements of all factors; elements of those before parameter p.
int64_t lora_numel(const Fsdp *f, int p);
// Fills `to` with all factors, whole, on every rank. All ranks call it.
void lora_gather(Fsdp *f, float *to);
// Adds B A times the adapters' factor to elements [first, first + n) of a matrix that has adapters, in fp32. adapters:
// what lora_gather has given.
void lora_merge(const Fsdp *f, const ModelShape *s, const float *adapters, int p, int64_t first, float *values,
                int64_t n);

// ---- gguf.h ---------------------------------------------------------------------------------------------------------
// The order is that of --export_gguf's choices after off. ggml: the number of a tensor's type; file_type: of the file.
enum GgufType { GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0 };
// False: `error` says why llama.cpp cannot run it.
bool gguf_can(const ModelShape *s, Error *error);
// llama.cpp's name of the way in which a tokenizer cuts a text into pieces; NULL: it has none that is like this.
const char *gguf_pre_tokenizer(const Tokenizer *k);
// Writes PATH from the fp32 tensors of WEIGHTS, a model.safetensors of this program, or of a shape with adapters a file
// of these: under a temporary name, then renamed. False with one line in `error`.
bool gguf_write(const char *path, const char *weights, const ParamTable *table, const ModelShape *s,
                const ExportTexts *x, GgufType type, Error *error);
