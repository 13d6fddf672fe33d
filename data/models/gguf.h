// gguf.h: a model as llama.cpp opens it: a GGUF file (version 3) of GPT-2, Llama, Qwen 2 or Qwen 3 with its tokenizer,
// or an adapter for one.
// Layout and names as in llama.cpp's gguf-py and conversion/ (llama-cpp-python 0.3.36 carries them).
//
// All numbers are little endian. A file is a header, keys with values, the names and shapes of tensors (fastest
// dimension first), and their data, each at a multiple of 32 bytes.
#pragma once
#include "base/newfile/newfile.h"
#include "exports.h"

enum { GGUF_BLOCK = 32 };                        // numbers that share a scale in Q8_0
struct GgufKind { uint32_t ggml, file_type; };
static const GgufKind gguf_kinds[] = {{0, 0}, {1, 1}, {30, 32}, {8, 7}};

// ================================================================================================ which models
static inline const char *gguf_architecture(const ModelShape *s) {
  const Family *f = family_of_shape(s);
  if (shape_is_gpt2(s)) return "gpt2";
  return f && !(f->qk_norm && s->block.bias != BIAS_NONE) ? f->gguf : NULL;
}
bool gguf_can(const ModelShape *s, Error *error) {
  REJECT(!gguf_architecture(s), "--export_gguf: of the blocks of this program llama.cpp has GPT-2's, Llama's, Qwen "
         "2's, and Qwen 3's, OLMo's and Gemma 3's without biases, not this one: leave it out, or choose another block");
  const Architecture *b = &s->block;
  const Family *f = family_of_shape(s);
  const double usual = b->rope_scaling.kind ? b->rope_theta : 0;
  REJECT(b->window && (!f || b->window_skip != f->full_every || !f->full_every || (f->window_theta == f->theta &&
         b->window_theta != usual)), "--export_gguf: llama.cpp has sliding windows where OLMo 3 and Gemma 3 have them, "
         "not these: leave it out");
  const double scale = s->n_layer == 62 ? floor((double)s->n_embd / (double)s->n_head) : 0;
  REJECT(f && f->gemma && (b->attention_scale != scale || b->logit_softcap > 0 || !b->window), "--export_gguf: "
         "llama.cpp has Gemma 3 with windows, scores over the root of head_size, and no cap of logits: leave it out");
  REJECT(s->tied && f && f->qk_norm == QK_NORM_ALL, "--export_gguf: llama.cpp's OLMo has an untied LM head, this "
         "model's is tied: leave it out");
  const RopeKind rope = s->block.rope_scaling.kind;
  const RopeScaling *yarn = &b->rope_scaling;    // other numbers are read of few architectures
  REJECT(rope == ROPE_YARN && (yarn->low != 1 || yarn->high != 32) && strcmp(gguf_architecture(s), "mistral3"),
         "--export_gguf: llama.cpp's yarn of %s has LOW 1 and HIGH 32, not %g and %g: leave it out",
         gguf_architecture(s), yarn->low, yarn->high);
  REJECT(rope == ROPE_YARN_EXACT, "--export_gguf: llama.cpp's yarn starts and ends at whole dimensions, yarn_exact "
         "does not: leave it out");
  REJECT(rope == ROPE_LLAMA3 && strcmp(gguf_architecture(s), "llama"), "--export_gguf: llama.cpp has Llama 3's scaling "
         "of rope in Llama's block alone, not in %s's: leave it out", gguf_architecture(s));
  return true;
}
const char *gguf_pre_tokenizer(const Tokenizer *k) {
  if (k->byte_fallback) return tokenizer_scores(k, NULL) ? "default" : NULL;
  if (k->cased) return k->ignore_merges != (k->cased == CASED_PLAIN) ? NULL : k->ignore_merges ? "tekken" : "gpt-4o";
  if (k->digits_alone) return "smollm";
  if (!k->digits_together) return k->nfc ? NULL : "gpt-2";
  if (k->digits_together == 3 && !k->nfc) return k->ignore_merges ? "llama-bpe" : "dbrx";        // OLMo 2's: dbrx
  return k->digits_together == 1 && !k->ignore_merges ? "qwen2" : NULL;
}

// ================================================================================================ keys
static inline void gguf_u32(FILE *f, uint32_t x) { fwrite(&x, sizeof x, 1, f); }
static inline void gguf_u64(FILE *f, uint64_t x) { fwrite(&x, sizeof x, 1, f); }
static inline void gguf_text(FILE *f, const char *text, size_t bytes) {
  gguf_u64(f, bytes);
  fwrite(text, 1, bytes, f);
}
// Writes keys and counts them; their number is stored before them in the file.
struct GgufKeys { FILE *f; uint64_t count; const char *architecture; };
// Writes a key's name and type. If `name` starts with a dot, the architecture's name goes before it.
static inline void gguf_key(GgufKeys *k, const char *name, uint32_t type) {
  char whole[128];
  snprintf(whole, sizeof whole, "%s%s", *name == '.' ? k->architecture : "", name);
  gguf_text(k->f, whole, strlen(whole));
  gguf_u32(k->f, type);
  k->count++;
}
static inline void gguf_key_u32(GgufKeys *k, const char *name, int64_t x) {
  gguf_key(k, name, GGUF_U32);
  gguf_u32(k->f, (uint32_t)x);
}
static inline void gguf_key_float(GgufKeys *k, const char *name, double x) {
  const float value = (float)x;
  gguf_key(k, name, GGUF_FLOAT);
  fwrite(&value, sizeof value, 1, k->f);
}
static inline void gguf_key_bool(GgufKeys *k, const char *name, bool x) {
  gguf_key(k, name, GGUF_BOOL);
  fputc(x, k->f);
}
static inline void gguf_key_text(GgufKeys *k, const char *name, const char *text) {
  gguf_key(k, name, GGUF_STRING);
  gguf_text(k->f, text, strlen(text));
}
static inline void gguf_key_array(GgufKeys *k, const char *name, uint32_t type, int64_t count) {
  gguf_key(k, name, GGUF_ARRAY);
  gguf_u32(k->f, type);
  gguf_u64(k->f, (uint64_t)count);
}

static inline void gguf_shape_keys(GgufKeys *k, const ModelShape *s) {
  const bool gpt2 = shape_is_gpt2(s), llama = gguf_turns_pairs(k->architecture);
  gguf_key_u32(k, ".vocab_size", s->vocab_size);
  gguf_key_u32(k, ".block_count", s->n_layer);
  gguf_key_u32(k, ".context_length", s->n_positions);
  gguf_key_u32(k, ".embedding_length", s->n_embd);
  gguf_key_u32(k, ".feed_forward_length", s->mlp_width);
  gguf_key_u32(k, ".attention.head_count", s->n_head);
  gguf_key_float(k, gpt2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", s->block.norm_eps);
  if (gpt2) return;
  gguf_key_u32(k, ".attention.head_count_kv", s->n_kv_head);
  gguf_key_u32(k, ".attention.key_length", s->head_size);
  gguf_key_u32(k, ".attention.value_length", s->head_size);
  gguf_key_float(k, ".rope.freq_base", s->block.rope_theta);
  if (llama) gguf_key_u32(k, ".rope.dimension_count", s->head_size);
  if (s->block.window) gguf_key_u32(k, ".attention.sliding_window", s->block.window);
  if (s->block.window && s->block.window_theta > 0) gguf_key_float(k, ".rope.freq_base_swa", s->block.window_theta);
  const RopeScaling *r = &s->block.rope_scaling;
  if (!r->kind || r->kind == ROPE_LLAMA3) return;                // the latter is a tensor
  gguf_key_text(k, ".rope.scaling.type", rope_kind_name(r->kind));
  gguf_key_float(k, ".rope.scaling.factor", r->factor);
  if (r->kind != ROPE_YARN) return;
  if (r->growth > 0) gguf_key_float(k, ".attention.temperature_scale", r->growth);
  gguf_key_u32(k, ".rope.scaling.original_context_length", r->original);
  gguf_key_float(k, ".rope.scaling.yarn_beta_fast", r->high);
  gguf_key_float(k, ".rope.scaling.yarn_beta_slow", r->low);
  gguf_key_float(k, ".rope.scaling.attn_factor", r->attention / (r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1));
}

// Writes a token with one character per byte (GPT-2's byte-to-unicode table), in UTF-8. Returns how many bytes that
// takes; with f NULL it only counts them.
static inline size_t gguf_letters(FILE *f, const Tokenizer *k, const uint16_t *letter, int32_t id) {
  int bytes;
  size_t written = 0;
  const uint8_t *p = tokenizer_token_bytes(k, id, &bytes);
  for (int i = 0; i < bytes; i++) {
    const int c = letter[p[i]];
    written += c >= 0x80 ? 2 : 1;
    if (f && c >= 0x80) fputc(0xc0 | c >> 6, f);
    if (f) fputc(c >= 0x80 ? 0x80 | (c & 0x3f) : c, f);
  }
  return written;
}
enum { GGUF_NORMAL = 1, GGUF_UNKNOWN, GGUF_CONTROL, GGUF_USER, GGUF_UNUSED, GGUF_BYTE };     // of tokens
// Writes row `id` of the vocabulary: an added token as it is, any other in such characters, or with U+2581 for spaces.
static inline void gguf_token(FILE *f, const Tokenizer *k, const uint16_t *letter, int32_t id, int32_t type) {
  int bytes;
  const uint8_t *p = tokenizer_token_bytes(k, id, &bytes);
  if (type == GGUF_BYTE) {
    char text[8];
    gguf_text(f, text, (size_t)snprintf(text, sizeof text, "<0x%02X>", *p));
    return;
  }
  if (type != GGUF_NORMAL) { gguf_text(f, (const char *)p, (size_t)bytes); return; }
  if (k->byte_fallback) {
    size_t blanks = 0;
    for (int i = 0; i < bytes; i++) blanks += p[i] == ' ';
    gguf_u64(f, (size_t)bytes + 2 * blanks);
    for (int i = 0; i < bytes; i++)
      if (p[i] == ' ') fputs("\xe2\x96\x81", f);
      else fputc(p[i], f);
    return;
  }
  gguf_u64(f, gguf_letters(NULL, k, letter, id));
  gguf_letters(f, k, letter, id);
}
// Writes a merge: two tokens with a space between them.
static inline void gguf_merge(FILE *f, const Tokenizer *k, const uint16_t *letter, const BpeMerge *m) {
  gguf_u64(f, gguf_letters(NULL, k, letter, m->left) + 1 + gguf_letters(NULL, k, letter, m->right));
  gguf_letters(f, k, letter, m->left);
  fputc(' ', f);
  gguf_letters(f, k, letter, m->right);
}
// The type of each row; embeddings may have more than there are tokens.
static inline int32_t *gguf_token_types(const Tokenizer *k, int64_t vocab_size) {
  int32_t *type = (int32_t *)calloc((size_t)vocab_size, sizeof *type);
  if (!type) die_missing("no memory for the header of a GGUF file");
  for (int64_t i = 0; i < vocab_size; i++) type[i] = i < k->vocab_size ? GGUF_NORMAL : GGUF_UNUSED;
  for (int b = 0; k->byte_fallback && b < 256; b++) type[k->byte_id[b]] = GGUF_BYTE;
  for (int i = 0; i < k->added_count; i++) {
    int bytes;
    const uint8_t *p = tokenizer_token_bytes(k, k->added[i].id, &bytes);
    const bool unknown = k->byte_fallback && bytes == 5 && !memcmp(p, "<unk>", 5);
    type[k->added[i].id] = unknown ? GGUF_UNKNOWN : k->added[i].special ? GGUF_CONTROL : GGUF_USER;
  }
  return type;
}
static inline void gguf_tokenizer_keys(GgufKeys *keys, const Tokenizer *k, int64_t vocab_size, const TextEnds *ends) {
  uint16_t letter[256];
  int32_t *type = gguf_token_types(k, vocab_size);
  bpe_alphabet(letter);
  gguf_key_text(keys, "tokenizer.ggml.model", k->byte_fallback ? "llama" : "gpt2");
  gguf_key_text(keys, "tokenizer.ggml.pre", gguf_pre_tokenizer(k));
  gguf_key_array(keys, "tokenizer.ggml.tokens", GGUF_STRING, vocab_size);
  for (int64_t i = 0; i < vocab_size; i++) {
    char unused[32];
    snprintf(unused, sizeof unused, "[PAD%lld]", (long long)i);
    if (type[i] == GGUF_UNUSED) gguf_text(keys->f, unused, strlen(unused));
    else gguf_token(keys->f, k, letter, (int32_t)i, type[i]);
  }
  gguf_key_array(keys, "tokenizer.ggml.token_type", GGUF_I32, vocab_size);
  fwrite(type, sizeof *type, (size_t)vocab_size, keys->f);
  if (k->byte_fallback) {
    float *score = (float *)calloc((size_t)vocab_size, sizeof *score);
    if (!score || !tokenizer_scores(k, score)) die_missing("no scores for the header of a GGUF file");
    gguf_key_array(keys, "tokenizer.ggml.scores", GGUF_FLOAT, vocab_size);
    fwrite(score, sizeof *score, (size_t)vocab_size, keys->f);
    gguf_key_bool(keys, "tokenizer.ggml.add_space_prefix", k->prefix != PREFIX_NONE);
    free(score);
  } else {
    gguf_key_array(keys, "tokenizer.ggml.merges", GGUF_STRING, k->merge_count);
    for (int i = 0; i < k->merge_count; i++) gguf_merge(keys->f, k, letter, &k->merges[i]);
  }
  if (ends->bos >= 0) gguf_key_u32(keys, "tokenizer.ggml.bos_token_id", ends->bos);
  if (ends->eos >= 0) gguf_key_u32(keys, "tokenizer.ggml.eos_token_id", ends->eos);
  gguf_key_bool(keys, "tokenizer.ggml.add_bos_token", k->adds_bos);
  if (ends->chat) gguf_key_text(keys, "tokenizer.chat_template", ends->chat);
  if (ends->chat_tools) gguf_key_text(keys, "tokenizer.chat_template.tool_use", ends->chat_tools);
  free(type);
}

// ================================================================================================ tensors
// One tensor of the file: rows [first, first + rows) of a parameter. permuted: rows of one half of a head and of the
// other in turn, which is how llama.cpp rotates pairs for architecture llama.
struct GgufTensor { char name[64]; const Param *param; int64_t first, rows, cols, bytes, permuted; uint32_t ggml; };
// Of a shape with adapters these alone, as NAME.lora_a and NAME.lora_b of the matrices that they are for.
// Vectors, norms and positions stay fp32; rows that Q8_0 cannot cut into blocks become fp16.
static inline int gguf_tensors(GgufTensor *to, const Param *param, int params, const ModelShape *s, GgufType type) {
  const bool gpt2 = shape_is_gpt2(s), llama = gguf_turns_pairs(gguf_architecture(s));
  int count = 0;
  for (int p = 0; p < params; p++) {
    const bool adapter = param[p].adapter;
    const int parts = adapter ? param[p].matrices : gpt2 ? 1 : param[p].matrices;
    if (s->lora.rank && !adapter) continue;
    for (int64_t i = 0, first = 0; i < parts; first += to[count++].rows, i++) {
      GgufTensor *t = &to[count];
      const Param *of = &param[adapter ? param[p].adapts : p];   // the matrix, and which part of it
      const int part = adapter ? lora_part(&param[p], (int)i) : (int)i;
      const bool down = adapter && param[p].init != INIT_ZERO;
      *t = GgufTensor{};
      gguf_tensor_name(t->name, of, part, gpt2);
      if (adapter) strcat(t->name, down ? ".lora_a" : ".lora_b");
      t->param = &param[p], t->first = first, t->cols = param_cols(&param[p]);
      t->rows = parts > 1 || adapter ? param[p].matrix_rows[i] : param[p].shape[0];
      if (llama && of->matrices == 3 && part < 2 && !down) t->permuted = s->head_size;
      const bool whole = param[p].ndim == 1 || !strcmp(param[p].name, "wpe.weight");
      t->ggml = gguf_kinds[whole ? GGUF_F32 : type == GGUF_Q8_0 && t->cols % GGUF_BLOCK ? GGUF_F16 : type].ggml;
      t->bytes = param[p].ndim == 1 ? 4 * t->rows : t->rows * ggml_row_bytes(t->ggml, t->cols);
    }
  }
  return count;
}
// The row of the parameter that is row r of the tensor.
static inline int64_t gguf_row(const GgufTensor *t, int64_t r) {
  const int64_t head = t->permuted, in = head ? r % head : 0;
  return t->first + (head ? r - in + in % 2 * (head / 2) + in / 2 : r);
}
template <class T> static inline void gguf_write_rounded(FILE *f, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    T y;
    round_to(&y, x[i]);
    fwrite(&y, sizeof y, 1, f);
  }
}
static inline void gguf_write_row(FILE *f, const float *x, int64_t n, uint32_t ggml) {
  if (ggml == gguf_kinds[GGUF_F32].ggml) fwrite(x, sizeof *x, (size_t)n, f);
  for (int64_t i = 0; ggml == gguf_kinds[GGUF_Q8_0].ggml && i < n; i += GGUF_BLOCK) {
    uint8_t block[block_bytes(BLOCK_Q8_0)];
    block_make_q8_0(block, x + i);
    fwrite(block, sizeof block, 1, f);
  }
  if (ggml == gguf_kinds[GGUF_F16].ggml) gguf_write_rounded<fp16>(f, x, n);
  if (ggml == gguf_kinds[GGUF_BF16].ggml) gguf_write_rounded<bf16>(f, x, n);
}
static inline void gguf_pad(FILE *f, int64_t at) {
  for (; at % GGUF_ALIGNMENT; at++) fputc(0, f);
}

// ================================================================================================ the file
static inline void gguf_tensor_info(FILE *f, const char *name, int64_t cols, int64_t rows, uint32_t ggml, int64_t at) {
  gguf_text(f, name, strlen(name));
  gguf_u32(f, rows ? 2 : 1);
  gguf_u64(f, (uint64_t)cols);
  if (rows) gguf_u64(f, (uint64_t)rows);
  gguf_u32(f, ggml);
  gguf_u64(f, (uint64_t)at);
}
static inline void gguf_header(FILE *f, const GgufTensor *t, int count, int64_t factors, const ModelShape *s,
                               const Tokenizer *k, const TextEnds *ends, GgufType type) {
  char *text = NULL;
  size_t bytes = 0;
  GgufKeys keys = {open_memstream(&text, &bytes), 0, gguf_architecture(s)};
  if (!keys.f) die_missing("no memory for the header of a GGUF file");
  const bool adapter = s->lora.rank > 0;
  gguf_key_text(&keys, "general.architecture", keys.architecture);
  gguf_key_text(&keys, "general.type", adapter ? "adapter" : "model");
  gguf_key_u32(&keys, "general.file_type", gguf_kinds[type].file_type);
  gguf_key_u32(&keys, "general.quantization_version", 2);
  if (adapter) {
    gguf_key_text(&keys, "adapter.type", "lora");
    const double root = s->lora.by_root ? sqrt((double)s->lora.rank) : 1;        // llama.cpp divides by the rank
    gguf_key_float(&keys, "adapter.lora.alpha", s->lora.alpha * root);
  } else {
    gguf_shape_keys(&keys, s);
    if (k) gguf_tokenizer_keys(&keys, k, s->vocab_size, ends);
    else gguf_key_text(&keys, "tokenizer.ggml.model", "none");
  }
  if (fclose(keys.f)) die_missing("no memory for the header of a GGUF file");
  fwrite("GGUF", 1, 4, f);
  gguf_u32(f, 3);
  gguf_u64(f, (uint64_t)(count + (factors > 0)));
  gguf_u64(f, keys.count);
  fwrite(text, 1, bytes, f);
  free(text);
  int64_t at = 0;
  if (factors) gguf_tensor_info(f, "rope_freqs.weight", factors, 0, gguf_kinds[GGUF_F32].ggml, 0);
  at = (4 * factors + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
  for (int i = 0; i < count; i++) {
    const bool vector = t[i].param->ndim == 1;
    gguf_tensor_info(f, t[i].name, vector ? t[i].rows : t[i].cols, vector ? 0 : t[i].rows, t[i].ggml, at);
    at += (t[i].bytes + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
  }
}
// A weight that fp16, or a scale in fp16, would make infinite is an error.
static inline bool gguf_data(FILE *f, const GgufTensor *t, SafetensorsFile *weights, Error *error) {
  const float fp16_most = 65504, most = t->ggml == gguf_kinds[GGUF_F16].ggml ? fp16_most :
                                        t->ggml == gguf_kinds[GGUF_Q8_0].ggml ? 127 * fp16_most : INFINITY;
  Tensor x;
  if (!safetensors_find(weights, t->param->name, F32, &x)) return false;
  for (int64_t r = 0; r < t->rows; r++, liveness_progress()) {
    const float *row = (const float *)x.data + gguf_row(t, r) * t->cols, here = block_most(row, (int)t->cols);
    REJECT(most < INFINITY && !isfinite(here), "%s has a weight that is not finite: --export_gguf f32 or bf16 keeps it",
           t->name);
    REJECT(here > most, "%s has a weight of %g, which fp16 does not hold: --export_gguf f32 or bf16 does", t->name,
           here);
    gguf_write_row(f, row, t->cols, t->ggml);
  }
  gguf_pad(f, t->bytes);
  return true;
}
bool gguf_write(const char *path, const char *weights, const ParamTable *table, const ModelShape *s,
                const ExportTexts *x, GgufType type, Error *error) {
  char temporary[MAP_PATH_BYTES + 16];
  float factor[ROPE_HEAD_MAX / 2];
  SafetensorsFile in;
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  error->text[0] = 0;
  REJECT(!safetensors_open(&in, weights), "%.900s", in.error);
  int params;
  Param *param = params_of_shape(table, s, &params);
  TextEnds ends = text_ends(x);
  GgufTensor *t = (GgufTensor *)calloc((size_t)(params * MAP_PARTS), sizeof *t);
  const int count = gguf_tensors(t, param, params, s, type);
  const int64_t factors = s->lora.rank ? 0 : gguf_rope_factors(factor, s);
  unlink(temporary);                             // of a run that was killed
  FILE *f = file_make_stream(temporary);
  bool ok = f != NULL;
  if (ok) {
    gguf_header(f, t, count, factors, s, x->tokenizer, &ends, type);
    gguf_pad(f, ftello(f));
    fwrite(factor, sizeof *factor, (size_t)factors, f);
    gguf_pad(f, 4 * factors);
    for (int i = 0; ok && i < count; i++) ok = gguf_data(f, &t[i], &in, error);
    ok = ok && !ferror(f) && !fflush(f) && file_sync(fileno(f), temporary);
    ok = !fclose(f) && ok && file_rename(temporary, path);
  }
  if (!ok && !error->text[0])
    fail(error, "cannot write %.400s: %.500s", path, in.error[0] ? in.error : strerror(errno));
  if (!ok && f) unlink(temporary);
  free(t);
  free(param);
  text_ends_free(&ends);
  safetensors_close(&in);
  return ok;
}
