// nf4.h: bitsandbytes' 4-bit weights in safetensors, as QLoRA's models are published: NAME.weight has the nibbles,
// other tensors NAME.weight... the scales, in fp32 or quantized themselves ("double", nested).
//
//   value i = code[nibble i] absmax[i / block]              of the flattened matrix; even i in the high nibble
//   absmax k = map[byte k] second[k / nested_block] + offset       where it is nested; each product and sum in fp32
//
// That is what bitsandbytes' dequantize_4bit gives in fp32 (bitsandbytes 0.50, functional.py; QLoRA, Dettmers et al.
// 2023). Only NF4 is read; FP4 and other packings are rejected by name.
#pragma once
#include "safetensors_set.h"

static const float nf4_code[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
    -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
    0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

const SafetensorsTensor *nf4_entry(const SafetensorsSet *s, const char *name, const char *end,
                                   int *file) {
  char whole[256];
  snprintf(whole, sizeof whole, "%.180s%s", name, end);
  return set_entry(s, whole, file);
}
bool nf4_beside(const SafetensorsSet *s, const char *name) {
  for (const char *end : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", nf4_state}) {
    const size_t n = strlen(name), k = strlen(end);
    char base[256];
    if (n <= k || strcmp(name + n - k, end)) continue;
    snprintf(base, sizeof base, "%.*s", (int)(n - k), name);
    if (set_entry(s, base, NULL) && nf4_entry(s, base, nf4_state, NULL)) return true;
  }
  return false;
}
int nf4_count(const SafetensorsSet *s) {
  int count = 0;
  for (int k = 0; k < s->count; k++)
    for (int i = 0; i < s->shard[k].file.count; i++) {
      const char *name = s->shard[k].file.tensor[i].name;
      const size_t n = strlen(name), end = sizeof nf4_state - 1;
      count += n > end && !strcmp(name + n - end, nf4_state);
    }
  return count;
}
// A tensor beside a matrix, of this many numbers or bytes; its bytes in the mapped file. NULL: `why` says what it is.
static inline const uint8_t *nf4_bytes(const SafetensorsSet *s, const char *name, const char *end, int64_t bytes,
                                       bool floats, Nf4Place *place, char why[200]) {
  const SafetensorsTensor *t = nf4_entry(s, name, end, &place->file);
  const bool typed = t && (floats ? t->known_dtype && t->dtype == F32 : !strcmp(t->dtype_text, "U8"));
  if (!typed || t->bytes != bytes) {
    snprintf(why, 200, "%s is %s of %lld bytes, expected %s of %lld", end + 1, t ? t->dtype_text : "missing",
             (long long)(t ? t->bytes : 0), floats ? "F32" : "U8", (long long)bytes);
    return NULL;
  }
  place->at = t->at;
  return s->shard[place->file].file.map + t->at;
}
static inline double nf4_number(const cJSON *x, const char *name, double absent) {
  const cJSON *y = cJSON_GetObjectItemCaseSensitive(x, name);
  return cJSON_IsNumber(y) ? y->valuedouble : absent;
}
bool nf4_read(const SafetensorsSet *s, const char *name, const SafetensorsTensor *t, Nf4Scales *to,
              int64_t shape[2], char why[200]) {
  enum { STATE_MAX = 4096 };
  Nf4Place unused;
  int file = 0;
  const SafetensorsTensor *state = nf4_entry(s, name, nf4_state, &file);
  const int64_t bytes = min64(state->bytes, STATE_MAX);
  const char *text = (const char *)s->shard[file].file.map + state->at;
  cJSON *x = memchr(text, 0, (size_t)bytes) ? NULL : cJSON_ParseWithLength(text, (size_t)bytes);
  const cJSON *sides = cJSON_GetObjectItemCaseSensitive(x, "shape");
  const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(x, "quant_type"));
  const bool nf4 = type && !strcmp(type, "nf4") && cJSON_GetArraySize(sides) == 2;
  for (int i = 0; i < 2; i++) {
    const cJSON *side = cJSON_GetArrayItem(sides, i);
    shape[i] = cJSON_IsNumber(side) && side->valuedouble >= 1 && side->valuedouble < 1 << 24 ? side->valueint : 0;
  }
  const double block = nf4_number(x, "blocksize", 0), nested = nf4_number(x, "nested_blocksize", 0);
  const double offset = nf4_number(x, "nested_offset", 0);
  cJSON_Delete(x);
  const int64_t numel = shape[0] * shape[1];
  const auto power = [](double b) { return b >= 32 && b <= 4096 && !((int)b & ((int)b - 1)) && b == (int)b; };
  if (!nf4 || !numel || !power(block) || (nested != 0 && !power(nested)) || !(fabs(offset) < 1e30)) {
    snprintf(why, 200, "quant_state is no matrix in nf4 with blocks of 32 to 4096 numbers");
    return false;
  }
  *to = Nf4Scales{{}, {}, (int32_t)block, (int32_t)nested, (float)offset, {}};
  if (numel % to->block || t->bytes != numel / 2 || strcmp(t->dtype_text, "U8")) {
    snprintf(why, 200, "it is %s of %lld bytes, expected U8, two numbers a byte, of %lld x %lld in whole blocks of %d",
             t->dtype_text, (long long)t->bytes, (long long)shape[0], (long long)shape[1], to->block);
    return false;
  }
  const int64_t blocks = numel / to->block, share = to->nested_block;
  const uint8_t *code = nf4_bytes(s, name, ".quant_map", 16 * 4, true, &unused, why);
  const uint8_t *map = code && share ? nf4_bytes(s, name, ".nested_quant_map", 256 * 4, true, &unused, why) : code;
  if (!map || !nf4_bytes(s, name, ".absmax", share ? blocks : 4 * blocks, !share, &to->absmax, why)) return false;
  const int64_t seconds = share ? (blocks + share - 1) / share : 0;
  if (share && !nf4_bytes(s, name, ".nested_absmax", 4 * seconds, true, &to->second, why)) return false;
  if (share) memcpy(to->map, map, sizeof to->map);
  if (!memcmp(code, nf4_code, sizeof nf4_code)) return true;
  snprintf(why, 200, "its quant_map is not NF4's");
  return false;
}
void nf4_expand(float *to, const uint8_t *nibbles, const float *scale, int64_t blocks, int64_t block) {
  for (int64_t i = 0; i < blocks * block; i++)
    to[i] = nf4_code[i % 2 ? nibbles[i / 2] & 15 : nibbles[i / 2] >> 4] * scale[i / block];
}
