// import_config.h: fields of another program's config.json, and complaints that name tensors. Readers of untrusted
// files: what does not fit is one line with file, field or tensor, what was expected, what was found.
#pragma once
#include "models.h"

static const char *const gpt2_dropouts[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};    // this program's rate: last
struct ImportText { char text[96]; };

// "(300,32)".
static inline ImportText import_shape_text(int ndim, const int64_t *shape) {
  ImportText t = {"("};
  for (int i = 0; i < ndim; i++) text_add(t.text, sizeof t.text - 1, "%s%lld", i ? "," : "", (long long)shape[i]);
  strcat(t.text, ")");
  return t;
}

// What is wrong with a file's tensors: the first three complaints in words, the others counted.
// instead: names of tensors of the file that the model does not have, listed when others are missing.
struct ImportComplaints { char text[1024], instead[256]; int count, missing, extra; };
// Adds one: printf's arguments.
__attribute__((format(printf, 2, 3))) static inline void import_complain(ImportComplaints *c, const char *fmt, ...) {
  if (++c->count > 3) return;
  if (c->text[0]) text_add(c->text, sizeof c->text, "; ");
  va_list ap;
  va_start(ap, fmt);
  text_add_list(c->text, sizeof c->text, fmt, ap);
  va_end(ap);
}
static inline void import_missing(ImportComplaints *c, const char *name, const char *words = "") {
  c->missing++;
  import_complain(c, "tensor %s is missing%s", name, words);
}
// Complains about a tensor that the file has and the model does not. what: "this model's".
static inline void import_extra(ImportComplaints *c, const char *name, const char *what) {
  if (c->extra++ < 2 && c->count >= 3)
    text_add(c->instead, sizeof c->instead, "%s%.110s", c->instead[0] ? ", " : "", safetensors_quoted(name).text);
  import_complain(c, "tensor %s is not one of %s", safetensors_quoted(name).text, what);
}
// Returns true if there were no complaints; else writes them to `error`.
static inline bool import_settle(const ImportComplaints *c, const char *path, Error *error) {
  if (!c->count) return true;
  char more[32] = "";
  if (c->count > 3) snprintf(more, sizeof more, "; and %d more", c->count - 3);
  fail(error, "%.600s: %s%s", path, c->text, more);
  if (c->missing && c->instead[0])
    text_add(error->text, sizeof error->text, "; the file has instead %s%s", c->instead, c->extra > 2 ? " and others" :
             "");
  return false;
}

// A config.json being read.
struct ImportConfig { const cJSON *root; const char *path; Error *error; };
#define import_config_reject(c, ...) fail_at((c)->error, (c)->path, __VA_ARGS__)

// The value of a field, NULL if it is absent or null. False if it appears twice: readers differ in which one counts.
static inline bool import_config_get(const ImportConfig *c, const char *name, const cJSON **value) {
  const cJSON *x;
  *value = NULL;
  bool found = false;
  cJSON_ArrayForEach(x, c->root) {
    if (!x->string || strcmp(x->string, name)) continue;
    if (found) return import_config_reject(c, "%s appears twice", name);
    found = true;
    *value = cJSON_IsNull(x) ? NULL : x;
  }
  return true;
}
// Reads a number; `absent` if there is none.
static inline bool import_config_number(const ImportConfig *c, const char *name, double absent, double *value) {
  const cJSON *x;
  if (!import_config_get(c, name, &x)) return false;
  if (x && !cJSON_IsNumber(x)) return import_config_reject(c, "%s is not a number", name);
  *value = x ? x->valuedouble : absent;
  return true;
}
// A size of the model: a whole number from 1 to `highest`, stored at `offset` in ModelShape. needed: it may not be
// absent; otherwise an absent field gives 0.
struct ImportField { const char *name; size_t offset; int64_t highest; bool needed; };
static inline bool import_config_size(const ImportConfig *c, const ImportField *f, ModelShape *m) {
  double value = 0;
  if (!import_config_number(c, f->name, 0, &value)) return false;
  const bool absent = !f->needed && value == 0;
  if (!absent && !(value >= 1 && value <= (double)f->highest && value == floor(value)))
    return import_config_reject(c, "%s is %s%.10g, expected a whole number from 1 to %lld", f->name,
                                value == 0 ? "missing or " : "", value, (long long)f->highest);
  *(int64_t *)((char *)m + f->offset) = (int64_t)value;
  return true;
}
// Reads true or false; `absent` if there is none.
static inline bool import_config_flag(const ImportConfig *c, const char *name, bool absent, bool *value) {
  const cJSON *x;
  if (!import_config_get(c, name, &x)) return false;
  if (x && !cJSON_IsBool(x)) return import_config_reject(c, "%s is neither true nor false", name);
  *value = x ? cJSON_IsTrue(x) : absent;
  return true;
}
// Fails if weights are quantized; NF4 of bitsandbytes (data/tensors/nf4.h) is accepted if `nf4` is true.
static inline bool import_config_quantized(const ImportConfig *c, bool nf4) {
  const cJSON *x;
  if (!import_config_get(c, "quantization_config", &x)) return false;
  if (!x) return true;
  const auto text = [x](const char *name, const char *absent) {
    const char *is = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(x, name));
    return is ? is : absent;
  };
  const char *method = text("quant_method", "bitsandbytes"), *type = text("bnb_4bit_quant_type", "fp4");
  const char *storage = text("bnb_4bit_quant_storage", "uint8");
  const bool four = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(x, "load_in_4bit"));
  const bool bits = !strcmp(method, "bitsandbytes");
  if (nf4 && four && bits && !strcmp(type, "nf4") && !strcmp(storage, "uint8")) return true;
  return import_config_reject(c, "quantization_config says %s%s%s: of quantized weights bitsandbytes' in nf4, with "
                              "bytes of uint8, are read, of Llama's class and its like",
                              safetensors_quoted(method).text,
                              bits ? four ? " in 4 bits, " : " in 8 bits" : "",
                              bits && four ? strcmp(storage, "uint8") ? storage : type : "");
}
