// lent.h: insides of a module that tests of another object need too. The object that has the module defines them.
#pragma once
#include "data/checkpoint/checkpoint.h"
#include "data/models/models.h"
#include "data/data.h"
#include "data/files/file_ops.h"

// ---- model.cc -------------------------------------------------------------------------------------------------------
// Ends every rank: die_hook.
void lent_die_everywhere(int code);
// As while a corpus is loaded, on this rank alone.
void lent_catch_loading_signals();
// The number of an option; -1: there is none of this name. And its name.
int lent_option(const char *name);
const char *lent_option_name(int option);
// Whether a text whose ids these are, of which it made the last `made`, loses a space before its first byte.
bool lent_text_strips(const Tokenizer *t, int32_t *ids, int64_t count, int made, uint8_t first);
// Tensors in memory, to be changed and written. The names and data belong to `file`.
struct IxModel { SafetensorsFile file; SafetensorsTensor tensor[80]; const uint8_t *data[80]; int count; };
void ix_load(IxModel *m, const char *path);
int ix_find(const IxModel *m, const char *name);
// The parameters of a model of this shape; free() them.
Param *ix_params(ModelShape s, int *count);
// Writes PATH as llm.c does: header, then each kind of tensor for all blocks; the vocabulary padded with rows of 7.
void ix_write_llmc(const char *path, int version, const ModelShape *s, int padded_vocab, const Param *param, int params,
                   const uint32_t *values);
// Writes the GGUF of a tokenizer alone, with rows that no token has, under this name; its path.
void gguf_write_tokenizer(const Tokenizer *t, int unused, const char *name, char *path, size_t path_bytes);

// ---- data.cc --------------------------------------------------------------------------------------------------------
// A tokenizer trained on a text until it has so many tokens.
void lent_tokenizer_train(Tokenizer *t, const char *text, int vocab_size);
// A split of conversations with these numbers of tokens; ids below `vocab`; about half of them trained on.
Split chat_split(const int *length, int documents, int vocab);
void lent_split_free(Split *s);
// Sets or, with NULL, takes away the hook that data/files/disk.h calls before every system call that changes files.
void lent_file_hook(FileHook hook);
