// tokenizer_json.h: saves and loads tokenizer.json, the file of Hugging Face tokenizers, and loads its forerunner,
// vocab.json with merges.txt, and the tokenizer of a GGUF.
//
// What is written is byte for byte what Hugging Face writes for the same tokenizer, or the tokenizer.json that was
// read. What is read is untrusted: a file that is cut short, damaged, inconsistent, or asks for what this tokenizer
// does not do is rejected with one line.
//
// Parts: 7 save   8 load tokenizer.json   9 load vocab.json and merges.txt   10 load a GGUF's   11 tokens that other
// files add   12 tokens of one's own
#pragma once
#include "data/gguf/gguf.h"
#include "bpe.h"

// ---- 7 save --------------------------------------------------------------------------------------------------------
static inline int bpe_compare_added(const void *a, const void *b) {
  int32_t x = ((const BpeAddedToken *)a)->id, y = ((const BpeAddedToken *)b)->id;
  return (x > y) - (x < y);
}
// A token as the file writes it: an added one as it is, any other with a character for each byte.
static inline void bpe_write_token(FILE *f, const Tokenizer *t, const uint16_t *char_of_byte, int32_t id) {
  const uint8_t *p = t->bytes + t->byte_start[id];
  size_t n = t->byte_start[id + 1] - t->byte_start[id];
  BpeAddedToken what = {};                                 // added tokens are in the order of ids
  what.id = id;
  if (bsearch(&what, t->added, (size_t)t->added_count, sizeof what, bpe_compare_added)) {
    json_string(f, p, n, JSON_LETTERS);
    return;
  }
  fputc('"', f);
  for (size_t i = 0; i < n; i++) {
    int c = char_of_byte[p[i]];
    if (c == '"' || c == '\\') fputc('\\', f);
    if (c >= 0x80) fputc(0xc0 | c >> 6, f);
    fputc(c >= 0x80 ? 0x80 | (c & 0x3f) : c, f);
  }
  fputc('"', f);
}

static inline void bpe_write_added(FILE *f, const Tokenizer *t) {
  fprintf(f, "[");
  for (int i = 0; i < t->added_count; i++) {
    const BpeAddedToken *a = &t->added[i];
    fprintf(f, "%s\n    {\n      \"id\": %d,\n      \"content\": ", i ? "," : "", a->id);
    json_string(f, t->bytes + t->byte_start[a->id], t->byte_start[a->id + 1] - t->byte_start[a->id], JSON_LETTERS);
    fprintf(f, ",\n      \"single_word\": false,\n      \"lstrip\": false,\n      \"rstrip\": false,\n"
            "      \"normalized\": %s,\n      \"special\": %s\n    }",
            a->normalized ? "true" : "false", a->special ? "true" : "false");
  }
  fprintf(f, t->added_count ? "\n  ]" : "]");
}

// A ByteLevel component; `indent` is the line break before its fields.
static inline void bpe_write_byte_level(FILE *f, const char *indent, bool add_prefix_space) {
  fprintf(f, "{%s  \"type\": \"ByteLevel\",%s  \"add_prefix_space\": %s,%s  \"trim_offsets\": true,%s  \"use_regex\": "
          "true%s}", indent, indent, add_prefix_space ? "true" : "false", indent, indent, indent);
}

static inline void bpe_write_json(FILE *f, const Tokenizer *t) {
  uint16_t char_of_byte[256];
  bpe_alphabet(char_of_byte);
  fprintf(f, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ");
  bpe_write_added(f, t);
  fprintf(f, ",\n  \"normalizer\": null,\n  \"pre_tokenizer\": ");
  if (t->by_line)
    fprintf(f, "{\n    \"type\": \"Sequence\",\n    \"pretokenizers\": [\n      {\n        \"type\": \"Split\",\n"
            "        \"pattern\": {\n          \"String\": \"\\n\"\n        },\n"
            "        \"behavior\": \"MergedWithPrevious\",\n        \"invert\": false\n      },\n      ");
  bpe_write_byte_level(f, t->by_line ? "\n      " : "\n  ", false);
  fprintf(f, "%s,\n  \"post_processor\": null,\n  \"decoder\": ", t->by_line ? "\n    ]\n  }" : "");
  bpe_write_byte_level(f, "\n  ", true);
  fprintf(f, ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
          "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
          "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {");
  const char *comma = "";
  for (int id = 0, added = 0; id < t->vocab_size; id++) {
    if (added < t->added_count && t->added[added].id == id && !t->added[added++].in_vocab) continue;
    fprintf(f, "%s\n      ", comma);
    bpe_write_token(f, t, char_of_byte, id);
    fprintf(f, ": %d", id);
    comma = ",";
  }
  fprintf(f, "\n    },\n    \"merges\": [");
  for (int i = 0; i < t->merge_count; i++) {
    fprintf(f, "%s\n      [\n        ", i ? "," : "");
    bpe_write_token(f, t, char_of_byte, t->merges[i].left);
    fprintf(f, ",\n        ");
    bpe_write_token(f, t, char_of_byte, t->merges[i].right);
    fprintf(f, "\n      ]");
  }
  fprintf(f, t->merge_count ? "\n    ]\n  }\n}" : "]\n  }\n}");
}

char *tokenizer_text(const Tokenizer *t, size_t *bytes) {
  char *text = NULL;
  if (t->file) {
    text = (char *)bpe_resize(NULL, t->file_bytes + 1, 1);
    *bytes = t->file_bytes;
    return (char *)memcpy(text, t->file, t->file_bytes + 1);
  }
  FILE *f = open_memstream(&text, bytes);
  if (f) bpe_write_json(f, t);
  if (!f || fclose(f) != 0)
    die_missing("tokenizer: no memory for the tokenizer.json of %d tokens; use a smaller vocabulary", t->vocab_size);
  return text;
}

bool tokenizer_save(const Tokenizer *t, const char *path, Error *error) {
  char directory[4096];
  const int n = snprintf(directory, sizeof directory, "%s", path);
  if (n < 0 || (size_t)n >= sizeof directory)
    return fail_at(error, "tokenizer", "the path is too long");
  char *slash = strrchr(directory, '/');
  strcpy(slash ? slash + (slash == directory) : directory, slash ? "" : ".");
  size_t bytes;
  char *text = tokenizer_text(t, &bytes);
  const bool ok = file_put(path, directory, text, (int64_t)bytes);
  const int why = errno;
  free(text);
  return ok || fail_at(error, path, "cannot write the tokenizer: %s", strerror(why));
}

// ---- 8 load tokenizer.json -----------------------------------------------------------------------------------------
// One tokenizer being read. Texts belong to `root`.
struct BpeLoad {
  Tokenizer *t;
  const char *path;            // the file that is read now
  const char *vocab_name;      // what errors call the vocabulary
  Error *error;
  char *file;                  // its bytes, then a NUL
  size_t file_bytes;
  cJSON *root, *made;          // what the file says; an added token that no file lists
  const cJSON *vocab, *merges, *added;
  BpeTable id_of_text;         // of the vocab, as the file writes it
  const char **text_of_id;     // of every token; NULL while unknown
  char *scratch;               // room for two texts of the file
  bool all_bytes;              // the vocabulary must have each byte
};
#define BPE_REJECT(l, ...) fail_at((l)->error, (l)->path, __VA_ARGS__)

static inline bool bpe_read_file(BpeLoad *l) {
  struct stat s;
  int64_t got;
  if (stat(l->path, &s) != 0) return BPE_REJECT(l, "cannot read the tokenizer: %s", strerror(errno));
  if (!S_ISREG(s.st_mode)) return BPE_REJECT(l, "is %s; give the path of a tokenizer.json", file_type_words(s.st_mode));
  if (s.st_size > 1 << 30)
    return BPE_REJECT(l, "has %lld bytes; a tokenizer has less than 1 GiB", (long long)s.st_size);
  free(l->file);
  free(l->scratch);
  l->scratch = NULL;
  l->file = file_get(l->path, 1 << 30, &got);
  if (!l->file) return BPE_REJECT(l, "cannot read the tokenizer: %s", strerror(errno));
  l->file_bytes = (size_t)got;
  l->scratch = (char *)bpe_resize(NULL, l->file_bytes + 1, 1);
  const char *foreign = file_foreign(l->file, l->file_bytes);
  return !foreign || BPE_REJECT(l, "is %s", foreign);
}

// cJSON ends a string at a NUL, so a file that has one, plain or as \u0000, would be misread.
static inline bool bpe_has_nul(const char *json, size_t bytes) {
  if (memchr(json, 0, bytes)) return true;
  for (const char *p = json; (p = (const char *)memmem(p, (size_t)(json + bytes - p), "\\u0000", 6)); p++) {
    const char *first = p; // backslashes escape each other in pairs: after an even number this one counts
    while (first > json && first[-1] == '\\') first--;
    if ((p - first) % 2 == 0) return true;
  }
  return false;
}

const cJSON *bpe_field(const cJSON *object, const char *name) {
  const cJSON *x = cJSON_GetObjectItemCaseSensitive(object, name);
  return x && !cJSON_IsNull(x) ? x : NULL;
}

// Whether a field is this text.
static inline bool bpe_says(const cJSON *x, const char *name, const char *text) {
  const cJSON *y = bpe_field(x, name);
  return cJSON_IsString(y) && !strcmp(y->valuestring, text);
}
static inline bool bpe_is_type(const cJSON *object, const char *type) { return bpe_says(object, "type", type); }

static inline bool bpe_is_id(const cJSON *x) {
  return cJSON_IsNumber(x) && x->valuedouble >= 0 && x->valuedouble < INT32_MAX && x->valuedouble == x->valueint;
}

// A Split that ends every pre-token with its newline.
static inline bool bpe_is_line_split(const cJSON *x) {
  const cJSON *pattern = bpe_field(x, "pattern");
  const bool newline = cJSON_IsString(bpe_field(pattern, "String"))
                           ? bpe_says(pattern, "String", "\n")
                           : bpe_says(pattern, "Regex", "\n") || bpe_says(pattern, "Regex", "\\n");
  return newline && bpe_is_type(x, "Split") && bpe_says(x, "behavior", "MergedWithPrevious") &&
         cJSON_IsFalse(bpe_field(x, "invert"));
}

// Rejects a field by its value, as JSON.
static inline bool bpe_reject_value(const BpeLoad *l, const char *field, const cJSON *x, const char *supported) {
  char *value = x ? cJSON_PrintUnformatted(x) : NULL;
  const bool cut = value && strlen(value) > 120;
  BPE_REJECT(l, "%s is %.120s%s; supported: %s", field, value ? value : "none", cut ? "..." : "", supported);
  cJSON_free(value);
  return false;
}

// The patterns of a Split, but for what follows and is the same in each, and how many digits they take together.
#define BPE_CASED(endings, numbers) \
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" endings \
  "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" endings \
  "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct BpePattern { const char *regex; int digits; BpeCased cased = CASED_NOT; } bpe_patterns[] = {
    {BPE_CASED("", "\\p{N}"), 1, CASED_PLAIN},                           // Tekken: Mistral NeMo, Ministral 3
    {BPE_CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\p{N}{1,3}"), 3, CASED_ENDINGS},     // o200k: gpt-oss, Phi-4-mini
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", 3},                                              // Llama 3
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", 1},                                              // Qwen 2, 2.5, 3
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,2}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
     "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+", 2}};                                              // nanochat: the same pre-tokens

// The first of a Sequence of two: a Split after each newline, Digits, or a Split by a pattern above.
static inline bool bpe_take_split(const BpeLoad *l, const cJSON *x) {
  const cJSON *pattern = bpe_field(x, "pattern");
  l->t->by_line = bpe_is_line_split(x);
  l->t->digits_alone = bpe_is_type(x, "Digits") && cJSON_IsTrue(bpe_field(x, "individual_digits"));
  if (!bpe_is_type(x, "Split") || !cJSON_IsString(bpe_field(pattern, "Regex")) ||
      !cJSON_IsFalse(bpe_field(x, "invert")) || !bpe_says(x, "behavior", "Isolated"))
    return l->t->by_line || l->t->digits_alone;
  for (const BpePattern &p : bpe_patterns)
    if (bpe_says(pattern, "Regex", p.regex)) l->t->digits_together = p.digits, l->t->cased = p.cased;
  return l->t->digits_together > 0;
}

// ---- tokenizers by characters: SentencePiece's BPE, as Llama 2's, Mistral 7B's, Gemma's and Phi-3's files have it
static const char bpe_blank[] = "\xe2\x96\x81";  // BPE_BLANK
// Gives `take` each part of a Sequence, or what is none. Whether it takes all, and there are no others.
template <class Take> static inline bool bpe_each(const cJSON *x, const char *list, Take take) {
  if (!x || !bpe_is_type(x, "Sequence")) return !x || take(x);
  const cJSON *parts = bpe_field(x, list), *y;
  if (!cJSON_IsArray(parts)) return false;
  cJSON_ArrayForEach(y, parts) if (!take(y)) return false;
  return true;
}
static inline bool bpe_is_replace(const cJSON *x, const char *from, const char *to) {
  return bpe_is_type(x, "Replace") && bpe_says(bpe_field(x, "pattern"), "String", from) && bpe_says(x, "content", to);
}
// Normalizer, pre_tokenizer and decoder: spaces become U+2581 and one may be put before a text; nothing cuts it.
static inline bool bpe_check_fallback(const BpeLoad *l) {
  static const char *const schemes[] = {"never", "", "always", "first"};        // of BpePrefix
  const cJSON *x = bpe_field(l->root, "normalizer"), *cut = bpe_field(l->root, "pre_tokenizer");
  Tokenizer *t = l->t;
  bool replaces = false, known = true;
  if (!bpe_each(x, "normalizers", [&](const cJSON *y) {
        const bool prepends = bpe_is_type(y, "Prepend") && bpe_says(y, "prepend", bpe_blank) && !t->prefix;
        if (prepends) t->prefix = PREFIX_PREPEND;
        else replaces = !replaces && bpe_is_replace(y, " ", bpe_blank);
        return prepends || replaces;
      }) || (x && !replaces))
    return bpe_reject_value(l, "normalizer", x, "null and a Replace of \" \" by U+2581, with a Prepend of it or not");
  if (cut && bpe_is_type(cut, "Metaspace")) {
    known = !t->prefix && !replaces && bpe_says(cut, "replacement", bpe_blank);
    known = known && cJSON_IsFalse(bpe_field(cut, "split"));
    for (int i = 0; i < 4; i++) if (i != 1 && bpe_says(cut, "prepend_scheme", schemes[i])) t->prefix = (BpePrefix)i;
    known = known && (t->prefix || bpe_says(cut, "prepend_scheme", schemes[0]));
  } else {                                       // Gemma's Split finds no space any more
    known = replaces && (!cut || (bpe_is_type(cut, "Split") && bpe_says(bpe_field(cut, "pattern"), "String", " ") &&
                                  bpe_says(cut, "behavior", "MergedWithPrevious") &&
                                  cJSON_IsFalse(bpe_field(cut, "invert"))));
  }
  if (!known)
    return bpe_reject_value(l, "pre_tokenizer", cut, "where byte_fallback is true: none after a normalizer that "
                            "replaces spaces, or a Metaspace with prepend_scheme and split false");
  return bpe_each(bpe_field(l->root, "decoder"), "decoders", [&](const cJSON *y) {
           const cJSON *start = bpe_field(y, "start"), *stop = bpe_field(y, "stop");
           const bool strip = bpe_is_type(y, "Strip") && bpe_says(y, "content", " ") && bpe_is_id(start) &&
                              start->valueint == 1 && bpe_is_id(stop) && !stop->valueint;
           t->strips = t->strips || strip;
           return strip || bpe_is_type(y, "ByteFallback") || bpe_is_type(y, "Fuse") ||
                  bpe_is_replace(y, bpe_blank, " ");
         }) || bpe_reject_value(l, "decoder", bpe_field(l->root, "decoder"), "Replace, ByteFallback, Fuse and a Strip "
                                "of the first space where byte_fallback is true");
}

// The pre_tokenizer: ByteLevel, or a Sequence of one that splits and ByteLevel, which uses GPT-2's pattern unless the
// other has its own.
static inline bool bpe_check_pre_tokenizer(const BpeLoad *l) {
  const cJSON *x = bpe_field(l->root, "pre_tokenizer"), *level = x;
  static const char supported[] = "ByteLevel, after a Split (\"\\n\", MergedWithPrevious), Digits (individual_digits) "
                                  "or an Isolated Split by the pattern of Llama 3, Qwen 2, nanochat, Tekken or o200k";
  if (x && bpe_is_type(x, "Sequence")) {
    const cJSON *list = bpe_field(x, "pretokenizers"), *split = cJSON_IsArray(list) ? list->child : NULL;
    if (!split || !split->next || split->next->next) return bpe_reject_value(l, "pre_tokenizer", x, supported);
    if (!bpe_take_split(l, split)) return bpe_reject_value(l, "pre_tokenizer.pretokenizers[0]", split, supported);
    level = split->next;
  }
  if (!level || !bpe_is_type(level, "ByteLevel")) return bpe_reject_value(l, "pre_tokenizer", x, supported);
  if (!cJSON_IsFalse(bpe_field(level, "add_prefix_space")))
    return BPE_REJECT(l, "pre_tokenizer.add_prefix_space must be false");
  const bool own = l->t->digits_together > 0;
  const cJSON *uses = bpe_field(level, "use_regex");             // absent: true
  if (uses ? !(own ? cJSON_IsFalse(uses) : cJSON_IsTrue(uses)) : own)
    return BPE_REJECT(l, "pre_tokenizer.use_regex must be %s", own ? "false after a Split by a pattern" : "true");
  return true;
}

// A TemplateProcessing of the text alone, or of a BOS token and the text.
static inline bool bpe_take_template(const BpeLoad *l, const cJSON *x) {
  const cJSON *single = bpe_field(x, "single"), *first = cJSON_IsArray(single) ? single->child : NULL;
  const cJSON *token = first ? bpe_field(bpe_field(first, "SpecialToken"), "id") : NULL;
  const cJSON *text = first && bpe_field(first, "SpecialToken") ? first->next : first;
  if (!text || text->next || !bpe_field(text, "Sequence")) return false;
  if (text == first) return true;
  const cJSON *special = cJSON_IsString(token) ? bpe_field(bpe_field(x, "special_tokens"), token->valuestring) : NULL;
  const cJSON *ids = bpe_field(special, "ids"), *id = cJSON_IsArray(ids) ? ids->child : NULL;
  if (!id || id->next || !bpe_is_id(id) || l->t->adds_bos) return false;
  l->t->adds_bos = true;
  l->t->bos_id = id->valueint;
  return true;
}

// The post_processor: none, ByteLevel, which adds no token, a template, or a Sequence of these.
static inline bool bpe_check_post_processor(const BpeLoad *l) {
  const cJSON *root = bpe_field(l->root, "post_processor"), *list = NULL, *x = root;
  if (root && bpe_is_type(root, "Sequence")) {
    list = bpe_field(root, "processors");
    x = cJSON_IsArray(list) ? list->child : root;
  }
  for (; x; x = list ? x->next : NULL)
    if (!bpe_is_type(x, "ByteLevel") && !(bpe_is_type(x, "TemplateProcessing") && bpe_take_template(l, x)))
      return bpe_reject_value(l, "post_processor", x, "none, ByteLevel, and a TemplateProcessing of the text, with at "
                              "most one token before it; this one may add tokens");
  return true;
}

static inline bool bpe_check_model(BpeLoad *l, const cJSON *model) {
  const cJSON *x;
  if (!cJSON_IsObject(model)) return BPE_REJECT(l, "has no model; it is not a tokenizer.json");
  if (bpe_field(model, "type") && !bpe_is_type(model, "BPE"))
    return bpe_reject_value(l, "model.type", bpe_field(model, "type"), "BPE");
  if ((x = bpe_field(model, "dropout")) && !(cJSON_IsNumber(x) && x->valuedouble == 0))
    return BPE_REJECT(l, "model.dropout must be null: ids would be random");
  static const char *const must_be_empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (const char *name : must_be_empty)
    if ((x = bpe_field(model, name)) && !(cJSON_IsString(x) && !*x->valuestring))
      return BPE_REJECT(l, "model.%s must be null or empty", name);
  if ((x = bpe_field(model, "ignore_merges")) && !cJSON_IsBool(x))
    return bpe_reject_value(l, "model.ignore_merges", x, "true and false");
  l->t->ignore_merges = cJSON_IsTrue(x);
  if (l->t->ignore_merges && l->t->byte_fallback)
    return BPE_REJECT(l, "model.ignore_merges must be false where byte_fallback is true");
  l->all_bytes = bpe_field(model, "unk_token") != NULL;
  return true;
}

// Settings that this tokenizer does not support are rejected by field and value: ids would differ from those the file
// is for.
static inline bool bpe_check_settings(BpeLoad *l) {
  const cJSON *root = l->root, *x = bpe_field(root, "version");
  if (x && !(cJSON_IsString(x) && strcmp(x->valuestring, "1.0") == 0)) return BPE_REJECT(l, "version must be \"1.0\"");
  const bool truncates = bpe_field(root, "truncation") != NULL, pads = bpe_field(root, "padding") != NULL;
  l->t->ignored = truncates && pads ? "truncation and padding" : truncates ? "truncation" : pads ? "padding" : NULL;
  const cJSON *model = bpe_field(root, "model");
  if ((x = bpe_field(model, "byte_fallback")) && !cJSON_IsBool(x))
    return bpe_reject_value(l, "model.byte_fallback", x, "true and false");
  l->t->byte_fallback = cJSON_IsTrue(x);
  if (l->t->byte_fallback)
    return bpe_check_post_processor(l) && bpe_check_fallback(l) && bpe_check_model(l, model);
  x = bpe_field(root, "normalizer");
  if (!bpe_each(x, "normalizers", [&](const cJSON *y) { return l->t->nfc = bpe_is_type(y, "NFC"); }))
    return bpe_reject_value(l, "normalizer", x, "null and NFC");
  if (!bpe_check_post_processor(l)) return false;
  if ((x = bpe_field(root, "decoder")) && !bpe_is_type(x, "ByteLevel"))
    return bpe_reject_value(l, "decoder", x, "ByteLevel");
  return bpe_check_pre_tokenizer(l) && bpe_check_model(l, model);
}

// Parses the file into l->root, an object.
static inline bool bpe_parse(BpeLoad *l) {
  if (bpe_has_nul(l->file, l->file_bytes))
    return BPE_REJECT(l, "has a NUL character, which no token has");
  const char *stopped = l->file;
  l->root = cJSON_ParseWithLengthOpts(l->file, l->file_bytes + 1, &stopped, true);
  if (!l->root)
    return BPE_REJECT(l, "is not JSON from byte %td of %zu on; is it cut short?", stopped - l->file, l->file_bytes);
  if (!cJSON_IsObject(l->root)) return BPE_REJECT(l, "is not a tokenizer's: its JSON is not an object");
  return true;
}

static inline bool bpe_find_parts(BpeLoad *l) {
  if (!bpe_check_settings(l)) return false;
  const cJSON *model = bpe_field(l->root, "model");
  l->vocab = bpe_field(model, "vocab");
  l->merges = bpe_field(model, "merges");
  l->added = bpe_field(l->root, "added_tokens");
  if (!cJSON_IsObject(l->vocab)) return BPE_REJECT(l, "model.vocab is not an object");
  if (!cJSON_IsArray(l->merges)) return BPE_REJECT(l, "model.merges is not an array");
  if (l->added && !cJSON_IsArray(l->added)) return BPE_REJECT(l, "added_tokens is not an array");
  return true;
}

// Adds a word to a table. False: it is there.
static inline bool bpe_table_put(BpeTable *t, const void *word, size_t n, uint64_t value) {
  BpeWord w;
  const uint8_t *p = (const uint8_t *)word;
  const uint64_t hash = bpe_word_key(&w, p, n, p + n);
  BpeWord *slot = bpe_table_slot(t, &w, hash);
  w.value = value;
  const bool there = slot->length;
  if (!there) bpe_table_add(t, slot, &w, hash);
  return !there;
}
// The value of a word of a table, or -1.
static inline int32_t bpe_table_get(const BpeTable *t, const void *word, size_t n) {
  BpeWord w;
  const uint8_t *p = (const uint8_t *)word;
  const uint64_t hash = n ? bpe_word_key(&w, p, n, p + n) : 0;
  const BpeWord *slot = n ? bpe_table_slot(t, &w, hash) : NULL;
  return slot && slot->length ? (int32_t)slot->value : -1;
}
// The id of a text of the vocab, or -1.
static inline int32_t bpe_id_of_text(const BpeLoad *l, const char *text, size_t bytes) {
  return bpe_table_get(&l->id_of_text, text, bytes);
}

static inline bool bpe_set_text(BpeLoad *l, const cJSON *id, const char *text) {
  if (id->valueint >= l->t->vocab_size)
    return BPE_REJECT(l, "token '%.40s' has id %d of %d tokens; ids must be 0, 1, 2 ...", text, id->valueint,
                      l->t->vocab_size);
  if (l->text_of_id[id->valueint])
    return BPE_REJECT(l, "tokens '%.40s' and '%.40s' have the same id %d", l->text_of_id[id->valueint], text,
                      id->valueint);
  l->text_of_id[id->valueint] = text;
  return true;
}

// The added token of one entry. In HF's file it may be in the vocab too; then its id must be the same.
static inline bool bpe_read_added(const BpeLoad *l, const cJSON *x, BpeAddedToken *a) {
  const cJSON *id = bpe_field(x, "id"), *content = bpe_field(x, "content");
  if (!bpe_is_id(id) || !cJSON_IsString(content) || !*content->valuestring)
    return BPE_REJECT(l, "an added token lacks an id or content");
  const bool strips[] = {cJSON_IsTrue(bpe_field(x, "lstrip")) != 0, cJSON_IsTrue(bpe_field(x, "rstrip")) != 0};
  for (const char *name : {"single_word", "lstrip", "rstrip"})
    if (bpe_field(x, name) && !cJSON_IsFalse(bpe_field(x, name)) && !(l->t->byte_fallback && name[0] != 's'))
      return BPE_REJECT(l, "added token '%.40s': %s must be false", content->valuestring, name);
  const uint8_t *p = (const uint8_t *)content->valuestring, *end = p + strlen(content->valuestring);
  for (int n; p < end; p += n) {
    bpe_class_at(p, end, &n);
    if (*p >= 0x80 && n == 1) return BPE_REJECT(l, "added token %d is not UTF-8", id->valueint);
  }
  int32_t in_vocab = bpe_id_of_text(l, content->valuestring, strlen(content->valuestring));
  if (in_vocab >= 0 && in_vocab != id->valueint)
    return BPE_REJECT(l, "added token '%.40s' has id %d, and %d in %s", content->valuestring, id->valueint, in_vocab,
                      l->vocab_name);
  bool special = cJSON_IsTrue(bpe_field(x, "special"));
  bool normalized = bpe_field(x, "normalized") ? cJSON_IsTrue(bpe_field(x, "normalized")) : !special;
  // tokenizers looks for the content's NFC. With a space in it, a cut text might have it on both sides.
  p = (const uint8_t *)content->valuestring;
  if (l->t->nfc && normalized && (strpbrk(content->valuestring, " \n") || nfc_first_unsettled(p, end, &p) != end))
    return BPE_REJECT(l, "added token '%.40s': normalized must be false where the normalizer is NFC and the token has "
                      "a space, a newline or what NFC changes", content->valuestring);
  const bool blank = strchr(content->valuestring, ' ') || strstr(content->valuestring, bpe_blank);
  if (l->t->byte_fallback && normalized && (blank || l->t->prefix == PREFIX_PREPEND || strips[0] || strips[1]))
    return BPE_REJECT(l, "added token '%.40s': normalized must be false where byte_fallback is true and spaces are "
                      "prepended or in the token, or it takes white space: tokenizers looks for another text then",
                      content->valuestring);
  *a = {id->valueint, special, normalized, in_vocab >= 0, strips[0], strips[1], 0, 0};
  return true;
}

// Reads vocab and added tokens and their ids, which must be dense from 0.
static inline bool bpe_read_texts(BpeLoad *l) {
  Tokenizer *t = l->t;
  const cJSON *x;
  bpe_table_init(&l->id_of_text, 10);
  cJSON_ArrayForEach(x, l->vocab) {
    if (!x->string || !*x->string || !bpe_is_id(x))
      return BPE_REJECT(l, "%s: '%.40s' has no id", l->vocab_name, x->string ? x->string : "");
    if (!bpe_table_put(&l->id_of_text, x->string, strlen(x->string), (uint64_t)x->valueint))
      return BPE_REJECT(l, "%s: '%.40s' appears twice", l->vocab_name, x->string);
    t->vocab_size++;
  }
  t->added = (BpeAddedToken *)bpe_resize(NULL, (size_t)cJSON_GetArraySize(l->added), sizeof *t->added);
  int32_t next = t->vocab_size;  // Hugging Face itself numbers added tokens that the vocabulary lacks, in this order
  cJSON_ArrayForEach(x, l->added) {
    BpeAddedToken *a = &t->added[t->added_count];
    if (!bpe_read_added(l, x, a)) return false;
    if (!a->in_vocab && a->id != next)
      return BPE_REJECT(l, "added token '%.40s' has id %d; the next id after %s is %d",
                        bpe_field(x, "content")->valuestring, a->id, l->vocab_name, next);
    if (a->id >= next) next = a->id + 1;
    t->vocab_size += !a->in_vocab;
    t->added_count++;
  }
  l->text_of_id = (const char **)calloc((size_t)t->vocab_size + 1, sizeof *l->text_of_id);
  if (!l->text_of_id) die_missing("tokenizer: no memory for %d tokens", t->vocab_size);
  cJSON_ArrayForEach(x, l->vocab) if (!bpe_set_text(l, x, x->string)) return false;
  int i = 0;
  cJSON_ArrayForEach(x, l->added) {
    if (!t->added[i++].in_vocab && !bpe_set_text(l, bpe_field(x, "id"), bpe_field(x, "content")->valuestring))
      return false;
  }
  return true;
}

// In the order of ids, each id once: saving writes them so, and a search may stop at the first.
static inline bool bpe_sort_added(const BpeLoad *l) {
  BpeAddedToken *a = l->t->added;
  qsort(a, (size_t)l->t->added_count, sizeof *a, bpe_compare_added);
  for (int i = 1; i < l->t->added_count; i++)
    if (a[i].id == a[i - 1].id) return BPE_REJECT(l, "added token %d appears twice", a[i].id);
  if (l->t->adds_bos && l->t->bos_id >= l->t->vocab_size)
    return BPE_REJECT(l, "post_processor adds token %d of %d tokens", l->t->bos_id, l->t->vocab_size);
  return true;
}

// The byte that a token of a vocabulary by characters stands for, <0x0A>; -1: none.
static inline int bpe_byte_of(const char *text) {
  char *end;
  if (strncmp(text, "<0x", 3) || strlen(text) != 6 || !strchr("0123456789abcdefABCDEF", text[3])) return -1;
  const long byte = strtol(text + 3, &end, 16);
  return end == text + 5 && *end == '>' ? (int)byte : -1;
}
// From texts to bytes where byte_fallback is true: what a decoder makes of each token. What is looked for in a text is
// kept after them.
static inline bool bpe_read_characters(BpeLoad *l) {
  Tokenizer *t = l->t;
  char text[8];
  for (int b = 0; b < 256; b++) {
    snprintf(text, sizeof text, "<0x%02X>", b);
    if ((t->byte_id[b] = bpe_id_of_text(l, text, 6)) < 0)
      return BPE_REJECT(l, "%s has no token %s; one with byte_fallback has all 256", l->vocab_name, text);
  }
  if (bpe_id_of_text(l, bpe_blank, 3) < 0)
    return BPE_REJECT(l, "%s has no token U+2581, which stands for a space", l->vocab_name);
  t->bytes = (uint8_t *)bpe_resize(NULL, l->file_bytes, 2);
  t->byte_start = (size_t *)bpe_resize(NULL, (size_t)t->vocab_size + 1, sizeof *t->byte_start);
  bpe_table_init(&t->whole, 10);
  bpe_table_init(&t->joins, 10);
  size_t at = t->byte_start[0] = 0;
  for (int id = 0, added = 0; id < t->vocab_size; id++) {
    const uint8_t *const p = (const uint8_t *)l->text_of_id[id], *const end = p + strlen(l->text_of_id[id]);
    const bool is_added = added < t->added_count && t->added[added].id == id;
    const bool in_vocab = !is_added || t->added[added].in_vocab;
    added += is_added;
    const int byte = bpe_byte_of(l->text_of_id[id]);
    if (byte >= 0) t->bytes[at++] = (uint8_t)byte;
    int n;
    for (const uint8_t *q = p; byte < 0 && q < end; q += n) {
      const bool blank = utf8_char(q, end, &n) == BPE_BLANK;
      memcpy(t->bytes + at, blank ? (const uint8_t *)" " : q, blank ? 1 : (size_t)n);
      at += blank ? 1 : (size_t)n;
    }
    const uint8_t *const first = t->bytes + t->byte_start[id], *const stop = t->bytes + at;
    t->byte_start[id + 1] = at;
    if (byte >= 0 || !in_vocab) continue;
    utf8_char(p, end, &n);
    if (p + n == end && *p != ' ') bpe_table_put(&t->whole, first, (size_t)(stop - first), (uint64_t)id);
    for (const uint8_t *q = first + 1; q < stop; q++) {
      const uint8_t *before = bpe_char_before(first, q);
      if (*q == ' ' || *q == '\n') bpe_table_put(&t->joins, before, (size_t)(q - before) + 1, 1);
    }
  }
  for (int i = 0; i < t->added_count; i++) {
    BpeAddedToken *a = &t->added[i];
    a->at = at, a->bytes = strlen(l->text_of_id[a->id]);
    memcpy(t->bytes + at, l->text_of_id[a->id], a->bytes);
    at += a->bytes;
  }
  return true;
}

// From texts to bytes. An added token is its text; every other has a character of the byte alphabet for each byte.
static inline bool bpe_read_bytes(BpeLoad *l) {
  Tokenizer *t = l->t;
  if (t->byte_fallback) return bpe_read_characters(l);
  uint16_t char_of_byte[256];
  int16_t byte_of_char[0x144];
  bpe_alphabet(char_of_byte);
  for (int c = 0; c < 0x144; c++) byte_of_char[c] = -1;
  for (int b = 0; b < 256; b++) byte_of_char[char_of_byte[b]] = (int16_t)b;
  for (int b = 0; b < 256; b++) {
    int c = char_of_byte[b];
    char text[2] = {(char)(c < 0x80 ? c : 0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
    t->byte_id[b] = bpe_id_of_text(l, text, c < 0x80 ? 1 : 2);
    // tokenizers leaves out a byte without a token (SmolLM2 lacks some). Without a letter of ASCII, a file is damaged.
    if (t->byte_id[b] < 0 && (l->all_bytes || b == '\n' || (b >= ' ' && b <= '~')))
      return BPE_REJECT(l, "%s has no token for byte 0x%02x; byte-level BPE has all 256", l->vocab_name, b);
  }
  t->bytes = (uint8_t *)bpe_resize(NULL, l->file_bytes, 1);  // a token has no more bytes than its text
  t->byte_start = (size_t *)bpe_resize(NULL, (size_t)t->vocab_size + 1, sizeof *t->byte_start);
  size_t at = t->byte_start[0] = 0;
  for (int id = 0, added = 0; id < t->vocab_size; id++) {
    const uint8_t *p = (const uint8_t *)l->text_of_id[id];
    bool is_added = added < t->added_count && t->added[added].id == id;
    added += is_added;
    while (*p && is_added) t->bytes[at++] = *p++;
    while (*p) {
      int c = *p;                                          // of two bytes at most
      if (c >= 0x80) c = c >= 0xc2 && c < 0xe0 && (p[1] & 0xc0) == 0x80 ? (c & 0x1f) << 6 | (p[1] & 0x3f) : INT32_MAX;
      if (c >= 0x144 || byte_of_char[c] < 0)
        return BPE_REJECT(l, "token %d '%.40s' is not in the byte-level alphabet", id, l->text_of_id[id]);
      t->bytes[at++] = (uint8_t)byte_of_char[c];
      p += c < 0x80 ? 1 : 2;
    }
    t->byte_start[id + 1] = at;
    if (is_added) t->added[added - 1].at = t->byte_start[id], t->added[added - 1].bytes = at - t->byte_start[id];
  }
  return true;
}

// Adds a merge: two texts, or one, "a b", with right NULL. `where` names it in errors.
static inline bool bpe_add_merge(BpeLoad *l, const char *where, const char *left, const char *right) {
  size_t left_bytes = left ? strlen(left) : 0;
  if (left && !right && (right = strchr(left, ' '))) {
    left_bytes = (size_t)(right++ - left);
    if (strchr(right, ' ')) right = NULL;
  }
  if (!right) return BPE_REJECT(l, "%s is not a pair of tokens", where);
  size_t right_bytes = strlen(right);
  memcpy(l->scratch, left, left_bytes);
  memcpy(l->scratch + left_bytes, right, right_bytes);
  BpeMerge m = {bpe_id_of_text(l, left, left_bytes), bpe_id_of_text(l, right, right_bytes),
                bpe_id_of_text(l, l->scratch, left_bytes + right_bytes)};
  if (m.left < 0 || m.right < 0 || m.result < 0)
    return BPE_REJECT(l, "%s: '%.40s' is not in %s", where,
                      m.left < 0 ? left : m.right < 0 ? right : "their union", l->vocab_name);
  if (l->t->byte_fallback && (bpe_byte_of(l->text_of_id[m.left]) >= 0 || bpe_byte_of(l->text_of_id[m.right]) >= 0))
    return BPE_REJECT(l, "%s: '%.40s' joins the token of a byte, which is no text", where, left);
  l->t->merges[l->t->merge_count++] = m;
  return true;
}

// Merges are pairs of texts, ["a", "b"] or "a b".
static inline bool bpe_read_merges(BpeLoad *l) {
  Tokenizer *t = l->t;
  t->merges = (BpeMerge *)bpe_resize(NULL, (size_t)cJSON_GetArraySize(l->merges), sizeof *t->merges);
  const cJSON *x;
  cJSON_ArrayForEach(x, l->merges) {
    char where[64];
    snprintf(where, sizeof where, "model.merges[%d]", t->merge_count);
    const cJSON *a = cJSON_IsArray(x) ? x->child : NULL, *b = a ? a->next : NULL;
    const char *left = cJSON_IsString(x) ? x->valuestring : NULL, *right = NULL;
    if (cJSON_IsString(a) && cJSON_IsString(b) && !b->next) {
      left = a->valuestring;
      right = b->valuestring;
    }
    if (!bpe_add_merge(l, where, left, right)) return false;
  }
  bpe_index_merges(t);
  return true;
}

// The table of pre-tokens that are a token whatever the merges say.
static inline bool bpe_index_whole(const BpeLoad *l) {
  Tokenizer *t = l->t;
  if (!t->ignore_merges) return true;
  bpe_table_init(&t->whole, 10);
  for (int id = 0, added = 0; id < t->vocab_size; id++) {
    const uint8_t *p = t->bytes + t->byte_start[id];
    const size_t n = t->byte_start[id + 1] - t->byte_start[id];
    const bool is_added = added < t->added_count && t->added[added].id == id;
    bool piece = !is_added || t->added[added].in_vocab;          // whose text is in the alphabet of bytes
    for (size_t i = 0; is_added && i < n; i++) piece = piece && p[i] > ' ' && p[i] <= '~';
    added += is_added;
    if (piece && n) bpe_table_put(&t->whole, p, n, (uint64_t)id);
  }
  return true;
}

static inline BpeLoad bpe_load_start(Tokenizer *t, const char *path, const char *vocab_name, Error *error) {
  BpeLoad l = {};
  l.t = t, l.path = path, l.vocab_name = vocab_name, l.error = error, l.all_bytes = true;
  *t = {};
  return l;
}

// Frees what reading took, and the tokenizer unless `ok`, which it returns.
static inline bool bpe_load_end(BpeLoad *l, bool ok) {
  cJSON_Delete(l->root);
  cJSON_Delete(l->made);
  for (void *p : {(void *)l->file, (void *)l->scratch, (void *)l->id_of_text.slots, (void *)l->text_of_id}) free(p);
  if (!ok) tokenizer_free(l->t);
  l->t->divides = ok && bpe_divides(l->t);
  return ok;
}

// Makes the tokenizer of the tokenizer.json in l->file, which it keeps.
static inline bool bpe_load_json(BpeLoad *l) {
  if (!(bpe_parse(l) && bpe_find_parts(l) && bpe_read_texts(l) && bpe_sort_added(l) && bpe_read_bytes(l) &&
        bpe_read_merges(l) && bpe_index_whole(l))) return false;
  l->t->file = l->file;
  l->t->file_bytes = l->file_bytes;
  l->file = NULL;
  return true;
}
bool tokenizer_load(Tokenizer *t, const char *path, Error *error) {
  BpeLoad l = bpe_load_start(t, path, "model.vocab", error);
  return bpe_load_end(&l, bpe_read_file(&l) && bpe_load_json(&l));
}

// ---- 9 load vocab.json and merges.txt ------------------------------------------------------------------------------
// The form of the published GPT-2: {"token": id, ...}, and after an optional line "#version ..." a line "left right"
// for each merge. Nothing says which tokens are special: as in transformers for GPT-2, only <|endoftext|> is.
static const char bpe_use_json[] = "load and save it with transformers' AutoTokenizer, which writes a tokenizer.json";

// Reads vocab.json at l->path: tokens, ids, and the special token where the vocabulary has it.
static inline bool bpe_read_vocab_json(BpeLoad *l) {
  if (!bpe_read_file(l) || !bpe_parse(l)) return false;
  l->vocab = l->root;
  const cJSON *special = bpe_field(l->root, bpe_end_of_text);
  if (special && bpe_is_id(special)) {
    l->added = l->made = cJSON_CreateArray();
    cJSON *x = cJSON_CreateObject();
    bool ok = l->made && x && cJSON_AddNumberToObject(x, "id", special->valueint) &&
              cJSON_AddStringToObject(x, "content", bpe_end_of_text) && cJSON_AddBoolToObject(x, "special", true) &&
              cJSON_AddItemToArray(l->made, x);
    if (!ok) die_missing("tokenizer: no memory for %s", l->path);
  }
  return bpe_read_texts(l) && bpe_sort_added(l) && bpe_read_bytes(l);
}

// Reads merges.txt at l->path. An empty line is rejected, except after the last newline.
static inline bool bpe_read_merges_txt(BpeLoad *l) {
  if (!bpe_read_file(l)) return false;
  if (memchr(l->file, 0, l->file_bytes)) return BPE_REJECT(l, "has a NUL character, which no token has");
  size_t lines = 1;
  for (const char *p = l->file; (p = strchr(p, '\n')); p++) lines++;
  l->t->merges = (BpeMerge *)bpe_resize(NULL, lines, sizeof *l->t->merges);
  int number = 1;
  for (char *p = l->file, *next; *p; p = next, number++) {
    char *newline = strchr(p, '\n'), where[64];
    next = newline ? newline + 1 : p + strlen(p);
    if (newline) newline[newline > p && newline[-1] == '\r' ? -1 : 0] = 0;
    if (number == 1 && !strncmp(p, "#version", 8)) continue;
    snprintf(where, sizeof where, "line %d", number);
    if (!bpe_add_merge(l, where, p, NULL)) return false;
  }
  bpe_index_merges(l->t);
  return true;
}

// Whether a file beside vocab.json names a special token that transformers would use besides <|endoftext|>.
static inline bool bpe_names_other_special(const cJSON *x) {
  const cJSON *content = cJSON_IsObject(x) ? bpe_field(x, "content") : x;
  return cJSON_IsString(content) && strcmp(content->valuestring, bpe_end_of_text) != 0;
}

// Rejects settings of a file beside vocab.json (`l->path`) that this tokenizer does not support.
static inline bool bpe_check_beside(BpeLoad *l) {
  if (access(l->path, F_OK) != 0) return true;
  if (!bpe_read_file(l) || !bpe_parse(l)) return false;
  const cJSON *x, *y;
  static const char *const must_be_false[] = {"add_prefix_space", "add_bos_token"};
  for (const char *name : must_be_false)
    if (cJSON_IsTrue(bpe_field(l->root, name))) return BPE_REJECT(l, "%s must be false", name);
  x = bpe_field(l->root, "tokenizer_class");
  const char *its_class = cJSON_IsString(x) ? x->valuestring : "GPT2Tokenizer";
  if (strncmp(its_class, "GPT2Tokenizer", 13) && strcmp(its_class, "PreTrainedTokenizerFast"))
    return BPE_REJECT(l, "tokenizer_class is %.40s, vocab.json is read as GPT-2's; %s", its_class, bpe_use_json);
  cJSON_ArrayForEach(x, l->root) {
    size_t n = x->string ? strlen(x->string) : 0;
    bool token = n > 6 && !strcmp(x->string + n - 6, "_token");
    bool list = n && (!strcmp(x->string, "additional_special_tokens") || !strcmp(x->string, "added_tokens_decoder"));
    bool other = token && bpe_names_other_special(x);
    if (list) cJSON_ArrayForEach(y, x) other = other || bpe_names_other_special(y);
    if (other) return BPE_REJECT(l, "%s names a special token beside %s; %s", x->string, bpe_end_of_text,
                                 bpe_use_json);
  }
  cJSON_Delete(l->root);
  l->root = NULL;
  return true;
}

// Reads the vocab.json and merges.txt of a directory.
static inline bool bpe_load_pair(Tokenizer *t, const char *dir, Error *error) {
  static const char *const names[] = {"added_tokens.json", "special_tokens_map.json", "tokenizer_config.json",
                                      "vocab.json", "merges.txt"};
  char paths[5][4096];
  BpeLoad l = bpe_load_start(t, dir, "vocab.json", error);
  for (int i = 0; i < 5; i++)
    if ((size_t)snprintf(paths[i], sizeof paths[i], "%s/%s", dir, names[i]) >= sizeof paths[i])
      return BPE_REJECT(&l, "the path is too long");
  if (access(paths[0], F_OK) == 0)
    return fail_at(error, paths[0], "adds tokens to vocab.json, which is not read; %s", bpe_use_json);
  bool ok = true;
  for (int i = 1; ok && i <= 2; i++) { l.path = paths[i]; ok = bpe_check_beside(&l); }
  if (ok) { l.path = paths[3]; ok = bpe_read_vocab_json(&l); }
  if (ok) { l.path = paths[4]; ok = bpe_read_merges_txt(&l); }
  return bpe_load_end(&l, ok);
}

// ---- 10 load a GGUF's ----------------------------------------------------------------------------------------------
// Its keys become the tokenizer.json that the model was published with, but for what makes no difference to ids.
// llama.cpp's names of ways to cut a text (src/llama-vocab.cpp). Qwen's tokenizers normalize by NFC, which llama.cpp
// leaves out and the models have learned from.
static const struct BpePre {
  const char *name;
  int digits;
  bool digits_alone, ignore_merges, nfc;
  BpeCased cased = CASED_NOT;
} bpe_pres[] = {
    {"tekken", 1, false, true, false, CASED_PLAIN}, {"gpt-4o", 3, false, false, false, CASED_ENDINGS},
    {"gpt-2", 0, false, false, false}, {"smollm", 0, true, false, false}, {"qwen2", 1, false, false, true},
    {"deepseek-r1-qwen", 1, false, false, true}, {"llama-bpe", 3, false, true, false},
    {"llama3", 3, false, true, false}, {"llama-v3", 3, false, true, false}, {"dbrx", 3, false, false, false},
    {"smaug-bpe", 3, false, false, false}};

// An array of a type, of as many items as `like` has; NULL: there is none, and why.
static inline const GgufKey *bpe_gguf_array(const BpeLoad *l, const GgufFile *g, const char *name, uint32_t type,
                                            const GgufKey *like) {
  const GgufKey *k = gguf_find(g, name);
  if (k && k->is_array && k->type == type && k->count < INT32_MAX && (!like || k->count == like->count)) return k;
  BPE_REJECT(l, "%s is %s", name, k ? "of another type, or not as long as tokenizer.ggml.tokens" : "missing");
  return NULL;
}
static inline void bpe_gguf_text(FILE *f, const char *before, GgufText t) {
  fputs(before, f);
  json_string(f, t.at, t.bytes, JSON_LETTERS);
}
enum BpeGgufType { BPE_NORMAL = 1, BPE_UNKNOWN, BPE_CONTROL, BPE_USER, BPE_UNUSED, BPE_BYTE };
// What a GGUF says of its tokenizer. pre: of byte-level BPE; NULL: its merges follow from scores. count: of tokens.
// bos: a token that starts each text; at NULL: none does.
struct BpeGguf {
  const BpePre *pre;
  const GgufKey *tokens, *types, *merges, *scores;
  uint64_t count;
  GgufText bos;
  int32_t bos_id;
  bool prefix;                                   // a space before a text
};
static inline float bpe_gguf_score(const GgufKey *scores, uint64_t i) {
  float x;
  memcpy(&x, scores->at + i * sizeof x, sizeof x);
  return x;
}
// Token `id` as a merge of two: how many characters and bytes the first of them has.
struct BpeSplit { float score; int32_t id; uint32_t chars, right_chars, bytes; };
// The order of transformers' generate_merges: high scores first; of one token, the longest first part.
static inline int bpe_compare_splits(const void *a, const void *b) {
  const BpeSplit *x = (const BpeSplit *)a, *y = (const BpeSplit *)b;
  if (x->score != y->score) return x->score > y->score ? -1 : 1;
  if (x->chars != y->chars) return x->chars > y->chars ? -1 : 1;
  if (x->right_chars != y->right_chars) return x->right_chars > y->right_chars ? -1 : 1;
  return (x->id > y->id) - (x->id < y->id);
}
// Writes the merges that llama.cpp makes of scores: of any two tokens whose texts together are one.
static inline void bpe_gguf_merges(FILE *f, const BpeGguf *g) {
  BpeTable part;
  BpeSplit *split = NULL;
  size_t count = 0, room = 0;
  const uint8_t *at = g->tokens->at;
  bpe_table_init(&part, 10);
  for (uint64_t i = 0; i < g->count; i++) {
    const GgufText t = gguf_next(&at);
    if (t.bytes && gguf_item(g->types, i) == BPE_NORMAL) bpe_table_put(&part, t.at, t.bytes, i);
  }
  const auto has = [&part](const char *p, size_t n) { return bpe_table_get(&part, p, n) >= 0; };
  at = g->tokens->at;
  for (uint64_t i = 0; i < g->count; i++) {
    const GgufText t = gguf_next(&at);
    const double type = gguf_item(g->types, i);
    uint32_t chars = 0, all = 0;
    for (size_t k = 0; k < t.bytes; k++) all += (t.at[k] & 0xc0) != 0x80;
    if (type != BPE_NORMAL && type != BPE_BYTE) continue;
    for (size_t k = 1; k < t.bytes; k++) {
      chars += (t.at[k - 1] & 0xc0) != 0x80;
      if ((t.at[k] & 0xc0) == 0x80 || !has(t.at, k) || !has(t.at + k, t.bytes - k)) continue;
      if (count == room) split = (BpeSplit *)bpe_resize(split, room = 2 * room + 1024, sizeof *split);
      split[count++] = BpeSplit{bpe_gguf_score(g->scores, i), (int32_t)i, chars, all - chars, (uint32_t)k};
    }
  }
  if (count) qsort(split, count, sizeof *split, bpe_compare_splits);
  GgufText *text = (GgufText *)bpe_resize(NULL, g->count, sizeof *text);
  at = g->tokens->at;
  for (uint64_t i = 0; i < g->count; i++) text[i] = gguf_next(&at);
  for (size_t i = 0; i < count; i++) {
    const GgufText t = text[split[i].id];
    bpe_gguf_text(f, i ? ",\n[" : "\n[", GgufText{t.at, split[i].bytes});
    bpe_gguf_text(f, ",", GgufText{t.at + split[i].bytes, t.bytes - split[i].bytes});
    fputc(']', f);
  }
  free(text);
  free(split);
  free(part.slots);
}
static const char bpe_gguf_level[] =
    R"({"type":"ByteLevel","add_prefix_space":%s,"trim_offsets":true,"use_regex":%s})";
// The normalizer and pre_tokenizer of byte-level BPE.
static inline void bpe_gguf_pre(FILE *f, const BpePre *pre) {
  const bool split = pre->digits || pre->digits_alone;
  fprintf(f, "%s,\n\"pre_tokenizer\":", pre->nfc ? R"({"type":"NFC"})" : "null");
  if (split) fputs(R"({"type":"Sequence","pretokenizers":[)", f);
  if (pre->digits_alone) fputs(R"({"type":"Digits","individual_digits":true},)", f);
  for (const BpePattern &p : bpe_patterns) {
    if (pre->digits != p.digits || pre->cased != p.cased) continue;
    bpe_gguf_text(f, R"({"type":"Split","pattern":{"Regex":)", GgufText{p.regex, strlen(p.regex)});
    fputs(R"(},"behavior":"Isolated","invert":false},)", f);
  }
  fprintf(f, bpe_gguf_level, "false", pre->digits ? "false" : "true");
  fputs(split ? "]}" : "", f);
}
// The post_processor.
static inline void bpe_gguf_begin(FILE *f, GgufText bos, int32_t bos_id) {
  if (bos.at) {
    bpe_gguf_text(f, R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"type_id":0,"id":)", bos);
    bpe_gguf_text(f, R"(}},{"Sequence":{"id":"A","type_id":0}}],"pair":[{"SpecialToken":{"type_id":0,"id":)", bos);
    bpe_gguf_text(f, R"(}},{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],)"
                  R"("special_tokens":{)", bos);
    bpe_gguf_text(f, R"(:{"id":)", bos);
    fprintf(f, ",\"ids\":[%d],\"tokens\":[", bos_id);
    bpe_gguf_text(f, "", bos);
    fputs("]}}}", f);
  } else fputs("null", f);
}
// A tokenizer.json.
static inline void bpe_gguf_json(FILE *f, const BpeGguf *g) {
  static const char blank[] = R"("pattern":{"String":"%s"},"content":"%s"})";
  const char *const fallback = g->pre ? "false" : "true";
  const uint8_t *at = g->tokens->at;
  const char *comma = "";
  fputs(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)", f);
  for (uint64_t i = 0; i < g->count; i++) {
    const GgufText t = gguf_next(&at);
    const double type = gguf_item(g->types, i);
    if (type != BPE_CONTROL && type != BPE_USER && (g->pre || type != BPE_UNKNOWN)) continue;
    fprintf(f, "%s\n{\"id\":%d,\"content\":", comma, (int)i);
    bpe_gguf_text(f, "", t);
    fprintf(f, R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":%s})",
            type == BPE_USER ? "false" : "true");
    comma = ",";
  }
  fputs("],\n\"normalizer\":", f);
  if (g->pre) bpe_gguf_pre(f, g->pre);
  else {
    fputs(R"({"type":"Sequence","normalizers":[)", f);
    if (g->prefix) fprintf(f, R"({"type":"Prepend","prepend":"%s"},)", bpe_blank);
    fputs(R"({"type":"Replace",)", f);
    fprintf(f, blank, " ", bpe_blank);
    fputs("]},\n\"pre_tokenizer\":null", f);
  }
  fputs(",\n\"post_processor\":", f);
  bpe_gguf_begin(f, g->bos, g->bos_id);
  fputs(",\n\"decoder\":", f);
  if (g->pre) fprintf(f, bpe_gguf_level, "true", "true");
  else {
    fputs(R"({"type":"Sequence","decoders":[{"type":"Replace",)", f);
    fprintf(f, blank, bpe_blank, " ");
    fputs(R"(,{"type":"ByteFallback"},{"type":"Fuse"})", f);
    fputs(g->prefix ? R"(,{"type":"Strip","content":" ","start":1,"stop":0}]})" : "]}", f);
  }
  fprintf(f, R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
          R"("end_of_word_suffix":null,"fuse_unk":%s,"byte_fallback":%s,"ignore_merges":%s,"vocab":{)",
          fallback, fallback, g->pre && g->pre->ignore_merges ? "true" : "false");
  at = g->tokens->at;
  for (uint64_t i = 0; i < g->count; i++) {
    bpe_gguf_text(f, i ? ",\n" : "\n", gguf_next(&at));
    fprintf(f, ":%d", (int)i);
  }
  fputs("},\n\"merges\":[", f);
  if (!g->pre) bpe_gguf_merges(f, g);
  else at = g->merges->at;
  for (uint64_t i = 0; g->pre && i < g->merges->count; i++) bpe_gguf_text(f, i ? ",\n" : "\n", gguf_next(&at));
  fputs("]}}\n", f);
}
// Reads the arrays and, for scores, rejects texts of which merges cannot be told in time.
static inline bool bpe_gguf_arrays(const BpeLoad *l, const GgufFile *g, bool scores, BpeGguf *to) {
  enum { MOST_BYTES = 1024 };
  to->tokens = bpe_gguf_array(l, g, "tokenizer.ggml.tokens", GGUF_STRING, NULL);
  to->types = to->tokens ? bpe_gguf_array(l, g, "tokenizer.ggml.token_type", GGUF_I32, to->tokens) : NULL;
  if (to->types && scores) to->scores = bpe_gguf_array(l, g, "tokenizer.ggml.scores", GGUF_FLOAT, to->tokens);
  if (to->types && !scores) to->merges = bpe_gguf_array(l, g, "tokenizer.ggml.merges", GGUF_STRING, NULL);
  if (!to->merges && !to->scores) return false;
  to->count = to->tokens->count;
  while (to->count && gguf_item(to->types, to->count - 1) == BPE_UNUSED) to->count--;  // rows that no token has
  const uint8_t *at = to->tokens->at;
  for (uint64_t i = 0; scores && i < to->count; i++) {
    const GgufText t = gguf_next(&at);
    const double score = bpe_gguf_score(to->scores, i);
    if (t.bytes > MOST_BYTES || !isfinite(score))
      return BPE_REJECT(l, "token %d has %zu bytes and a score of %g, expected at most %d and a number", (int)i,
                        t.bytes, score, MOST_BYTES);
  }
  return true;
}
// Writes l->file, the tokenizer.json of what g says.
static inline bool bpe_read_gguf(BpeLoad *l, const GgufFile *g) {
  char *model = gguf_string(g, "tokenizer.ggml.model"), *name = gguf_string(g, "tokenizer.ggml.pre");
  const bool scores = model && !strcmp(model, "llama");
  BpeGguf x = {};
  for (const BpePre &p : bpe_pres) if (!scores && name && !strcmp(p.name, name)) x.pre = &p;
  bool ok = true;
  if (!model || (!scores && strcmp(model, "gpt2")))
    ok = BPE_REJECT(l, "tokenizer.ggml.model is %.40s, only gpt2, byte-level BPE, and llama, SentencePiece's, are "
                    "read: --tokenizer may name another", model ? model : "missing");
  else if (!scores && !x.pre)
    ok = BPE_REJECT(l, "tokenizer.ggml.pre is %.40s, expected gpt-2, smollm, qwen2, llama-bpe, dbrx, tekken or gpt-4o: "
                    "--tokenizer may name the model's tokenizer.json", name ? name : "missing");
  free(model);
  free(name);
  double id = scores ? 1 : -1, adds = scores;    // llama.cpp's defaults
  if (ok && gguf_number(g, "tokenizer.ggml.add_space_prefix", &adds) && adds != 0 && !scores)
    return BPE_REJECT(l, "tokenizer.ggml.add_space_prefix is true, only false is read");
  x.prefix = adds != 0;
  for (const char *off : {"tokenizer.ggml.add_eos_token", "tokenizer.ggml.remove_extra_whitespaces"})
    if (ok && gguf_number(g, off, &adds) && adds != 0) return BPE_REJECT(l, "%s is true, only false is read", off);
  if (!ok || !bpe_gguf_arrays(l, g, scores, &x)) return false;
  adds = scores || x.pre->ignore_merges;         // llama.cpp's default for Llama 3 and SentencePiece
  const bool said = gguf_number(g, "tokenizer.ggml.add_bos_token", &adds);
  gguf_number(g, "tokenizer.ggml.bos_token_id", &id);
  const bool has = id >= 0 && id < (double)x.count;
  if (adds != 0 && !has)
    return BPE_REJECT(l, "tokenizer.ggml.add_bos_token is %s, but bos_token_id is %s", said ? "true"
                      : "missing, which means true", id < 0 ? "missing" : "no token");
  x.bos = has && adds != 0 ? gguf_text_at(x.tokens, (uint64_t)id) : GgufText{};
  x.bos_id = x.bos.at ? (int32_t)id : -1;
  FILE *f = open_memstream(&l->file, &l->file_bytes);
  if (f) bpe_gguf_json(f, &x);
  if (!f || fclose(f)) die_missing("tokenizer: no memory for the tokenizer of %s", l->path);
  l->scratch = (char *)bpe_resize(NULL, l->file_bytes + 1, 1);
  return true;
}
bool tokenizer_scores(const Tokenizer *t, float *score) {
  int *const last = (int *)bpe_resize(NULL, (size_t)t->vocab_size + 1, sizeof *last);  // merge that makes a token
  bool *const plain = (bool *)bpe_resize(NULL, (size_t)t->vocab_size + 1, 1);
  BpeTable ids;
  bool ok = true;
  float next = 1;
  bpe_table_init(&ids, 10);
  for (int id = 0; id < t->vocab_size; id++) plain[id] = true;
  for (int i = 0; i < t->added_count; i++) plain[t->added[i].id] = false;      // llama.cpp finds these first
  for (int b = 0; b < 256; b++) plain[t->byte_id[b]] = false;
  for (int id = 0; id < t->vocab_size; id++) {
    if (score) score[id] = 0;
    if (plain[id]) bpe_table_put(&ids, t->bytes + t->byte_start[id], t->byte_start[id + 1] - t->byte_start[id],
                                 (uint64_t)id);
  }
  for (int i = 0; i < t->merge_count; i++) last[t->merges[i].result] = i;
  // All merges that make a token stand together; tokens between them have its score, which is right of runs of spaces.
  for (int i = 0, end = -1, first = -1; ok && i < t->merge_count; i++) {
    const int32_t id = t->merges[i].result;
    if (!plain[id]) continue;
    if (i > end) next--, first = id;
    if (score) score[id] = next;
    end = end > last[id] ? end : last[id];
    for (const int32_t of : {id, first})
      for (size_t k = t->byte_start[of]; id != first && k < t->byte_start[of + 1]; k++) ok = ok && t->bytes[k] == ' ';
  }
  const auto find = [&ids](const uint8_t *p, const uint8_t *end) { return bpe_table_get(&ids, p, (size_t)(end - p)); };
  for (int id = 0; ok && id < t->vocab_size; id++) {             // and there is one for each way to make it
    const uint8_t *const p = t->bytes + t->byte_start[id], *const end = t->bytes + t->byte_start[id + 1];
    for (const uint8_t *q = p + 1; ok && plain[id] && q < end; q++) {
      const int32_t left = (*q & 0xc0) == 0x80 ? -1 : find(p, q), right = left < 0 ? -1 : find(q, end);
      int32_t result = -1;
      ok = right < 0 || (bpe_rank(t, left, right, &result) != BPE_NO_RANK && result == id);
    }
  }
  free(last);
  free(plain);
  free(ids.slots);
  return ok;
}
// Reads the tokenizer of a GGUF, as tokenizer_load does.
static inline bool tokenizer_load_gguf(Tokenizer *t, const char *path, Error *error) {
  BpeLoad l = bpe_load_start(t, path, "tokenizer.ggml.tokens", error);
  GgufFile g;
  const bool ok = gguf_open(&g, path, error) && bpe_read_gguf(&l, &g) && bpe_load_json(&l);
  gguf_close(&g);
  return bpe_load_end(&l, ok);
}

// ---- 11 tokens that other files add
// Adds a token to added_tokens. flags: an object with its flags; NULL: it has none.
static inline cJSON *bpe_new_added(cJSON *to, int32_t id, const char *text, const cJSON *flags) {
  cJSON *made = cJSON_CreateObject();
  cJSON_AddNumberToObject(made, "id", id);
  cJSON_AddStringToObject(made, "content", text);
  for (const char *name : {"single_word", "lstrip", "rstrip", "normalized", "special"})
    cJSON_AddBoolToObject(made, name, cJSON_IsTrue(bpe_field(flags, name)));
  cJSON_AddItemToArray(to, made);
  return made;
}
// The tokenizer becomes that of a changed tokenizer.json. path: what is named if it cannot.
static inline bool tokenizer_becomes(Tokenizer *t, const cJSON *root, const char *path, Error *error) {
  Tokenizer made;
  BpeLoad l = bpe_load_start(&made, path, "model.vocab", error);
  l.all_bytes = false;                           // it was read before
  l.file = cJSON_Print(root);
  if (!l.file) die_missing("tokenizer: no memory for a tokenizer.json of %d tokens", t->vocab_size);
  l.file_bytes = strlen(l.file);
  l.scratch = (char *)bpe_resize(NULL, l.file_bytes + 1, 1);
  if (!bpe_load_end(&l, bpe_load_json(&l))) return false;
  made.divides = t->divides;
  tokenizer_free(t);
  *t = made;
  return true;
}
static inline const BpeAddedToken *bpe_added_as(const Tokenizer *t, const char *text) {
  const size_t n = strlen(text);
  for (const BpeAddedToken *a = t->added; a < t->added + t->added_count; a++)
    if (a->bytes == n && !memcmp(t->bytes + a->at, text, n)) return a;
  return NULL;
}
// Adds the tokens that tokenizer_config.json in `dir` names and tokenizer.json does not add, as transformers does:
// those of its list, which have their ids there, and of the vocabulary BOS, EOS and additional ones. Which white space
// a token takes is what the list says.
static inline bool tokenizer_add_named(Tokenizer *t, const char *dir, Error *error) {
  char path[4096];
  int64_t bytes = 0;
  snprintf(path, sizeof path, "%.4000s/tokenizer_config.json", dir);
  char *text = file_get(path, 1 << 24, &bytes);
  const bool absent = !text && (errno == ENOENT || errno == ENOTDIR);
  bool ok = text || absent || fail_at(error, path, "cannot read it: %s", file_get_fault());
  cJSON *config = text && !bpe_has_nul(text, (size_t)bytes) ? cJSON_Parse(text) : NULL, *root = NULL, *to = NULL;
  const cJSON *x, *vocab = NULL, *lists[] = {bpe_field(config, "added_tokens_decoder"),
      bpe_field(config, "additional_special_tokens"), bpe_field(config, "extra_special_tokens")};
  free(text);
  int32_t next = t->vocab_size;
  ok = ok && (absent || cJSON_IsObject(config) || fail_at(error, path, "is not a JSON object"));
  const auto add = [&](const cJSON *y, bool listed) {
    const cJSON *flags = cJSON_IsObject(y) ? y : NULL;
    const char *word = cJSON_GetStringValue(flags ? bpe_field(flags, "content") : y);
    const BpeAddedToken *there = word && *word ? bpe_added_as(t, word) : NULL;
    const auto flag = [flags](const char *name) { return cJSON_IsTrue(bpe_field(flags, name)) != 0; };
    const bool other = there && (flag("lstrip") != there->lstrip || flag("rstrip") != there->rstrip ||
                                 flag("single_word"));
    if (!ok || !word || !*word || (there && !(listed && other))) return;
    if (!root) {
      root = cJSON_ParseWithLength(t->file, t->file_bytes);
      to = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
      if (!to) to = cJSON_AddArrayToObject(root, "added_tokens");
      vocab = bpe_field(bpe_field(root, "model"), "vocab");
    }
    cJSON *entry = to->child;
    while (entry && !bpe_says(entry, "content", word)) entry = entry->next;
    for (const char *name : {"lstrip", "rstrip", "single_word"})
      if (entry && there) cJSON_DeleteItemFromObject(entry, name), cJSON_AddBoolToObject(entry, name, flag(name));
    if (entry) return;
    const cJSON *known = bpe_field(vocab, word);
    if (!known && !listed) return;               // a name alone claims no row of the embedding
    const int32_t id = known ? known->valueint : next++;
    cJSON *made = bpe_new_added(to, id, word, flags);
    if (!listed) cJSON_ReplaceItemInObject(made, "special", cJSON_CreateTrue());
    if (listed && strtol(y->string, NULL, 10) != id)
      ok = fail_at(error, path, "added_tokens_decoder gives '%.40s' id %.20s, which tokenizer.json does not have: "
                   "expected %d", word, y->string, id);
  };
  if (cJSON_IsObject(lists[0])) cJSON_ArrayForEach(x, lists[0]) add(x, true);
  for (const char *name : {"bos_token", "eos_token"}) add(bpe_field(config, name), false);
  for (int i = 1; i < 3; i++) cJSON_ArrayForEach(x, lists[i]) add(x, false);
  ok = ok && (!root || tokenizer_becomes(t, root, path, error));
  cJSON_Delete(root);
  cJSON_Delete(config);
  if (!ok) tokenizer_free(t);
  return ok;
}

bool tokenizer_load_any(Tokenizer *t, const char *path, Error *error) {
  char json[4096], vocab[4096], merges[4096];
  struct stat s;
  *t = {};
  if (gguf_is(path)) return tokenizer_load_gguf(t, path, error);
  if (stat(path, &s) != 0 || !S_ISDIR(s.st_mode)) return tokenizer_load(t, path, error);
  if ((size_t)snprintf(json, sizeof json, "%s/tokenizer.json", path) >= sizeof json - 16)
    return fail_at(error, "tokenizer", "the path is too long");
  snprintf(vocab, sizeof vocab, "%s/vocab.json", path);
  snprintf(merges, sizeof merges, "%s/merges.txt", path);
  if (access(json, F_OK) == 0) return tokenizer_load(t, json, error) && tokenizer_add_named(t, path, error);
  bool has_vocab = access(vocab, F_OK) == 0, has_merges = access(merges, F_OK) == 0;
  if (has_vocab && has_merges) return bpe_load_pair(t, path, error);
  snprintf(json, sizeof json, "%s/tokenizer.model", path);
  if (access(json, F_OK) == 0)
    return fail_at(error, json, "is SentencePiece's or tiktoken's and not read; %s", bpe_use_json);
  return fail_at(error, path, "has no tokenizer: looked for tokenizer.json, and for vocab.json with "
                 "merges.txt%s", has_vocab ? ", which is missing" : has_merges ? "; vocab.json is missing" : "");
}

// ---- 12 tokens of one's own
// The tokens of a file, a line each, or a JSON array of texts. To be deleted; NULL: one line in error.
static inline cJSON *tokens_read(const char *path, Error *error) {
  enum { FILE_MAX = 1 << 20, TOKENS_MAX = 1 << 14 };
  int64_t bytes = 0;
  char *text = file_get(path, FILE_MAX, &bytes), *save = NULL;
  if (!text) {
    fail_at(error, path, "cannot read it: %s; expected: tokens, a line each, or a JSON array of texts",
            strerror(errno));
    return NULL;
  }
  const bool nul = bpe_has_nul(text, (size_t)bytes);
  cJSON *list = nul ? NULL : cJSON_ParseWithOpts(text, NULL, true);
  if (!cJSON_IsArray(list)) {                    // [INST] is none
    const size_t n = strlen(path);
    const bool json = n > 5 && !strcmp(path + n - 5, ".json");
    cJSON_Delete(list);
    list = nul || json ? NULL : cJSON_CreateArray();
    for (char *line = strtok_r(text, "\r\n", &save); list && line; line = strtok_r(NULL, "\r\n", &save))
      cJSON_AddItemToArray(list, cJSON_CreateString(line));
  }
  free(text);
  const cJSON *x;
  int number = 0, bad = 0;
  cJSON_ArrayForEach(x, list) {
    number++;
    const size_t n = cJSON_IsString(x) ? strlen(x->valuestring) : 0;
    if (!bad && (!n || n > 512)) bad = number;
  }
  if (list && number && !bad && number <= TOKENS_MAX) return list;
  if (!list) fail_at(error, path, "is neither lines of text nor a JSON array of texts");
  else if (bad) fail_at(error, path, "its token %d is no text of 1 to 512 bytes", bad);
  else fail_at(error, path, "has %d tokens, expected 1 to %d", number, TOKENS_MAX);
  cJSON_Delete(list);
  return NULL;
}
// The id of the token that is this text; -1: there is none.
static inline int32_t tokenizer_id(const Tokenizer *t, const char *text) {
  const size_t n = strlen(text);
  for (int32_t id = 0; id < t->vocab_size; id++)
    if (t->byte_start[id + 1] - t->byte_start[id] == n && !memcmp(t->bytes + t->byte_start[id], text, n)) return id;
  return -1;
}
bool tokenizer_add(Tokenizer *t, const char *path, Error *error) {
  cJSON *list = tokens_read(path, error);
  if (!list) return false;
  size_t bytes;
  char *text = tokenizer_text(t, &bytes);
  cJSON *root = cJSON_ParseWithLength(text, bytes), *to = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
  if (!to) to = cJSON_AddArrayToObject(root, "added_tokens");
  free(text);
  const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "model"), "vocab");
  cJSON *first = NULL;
  const cJSON *x;
  int32_t id = t->vocab_size;
  cJSON_ArrayForEach(x, list) {
    const cJSON *other = cJSON_GetObjectItemCaseSensitive(vocab, x->valuestring);
    if (other && tokenizer_id(t, x->valuestring) < 0) {
      fail(error, "%s: %s cannot be added: it is how the tokenizer's vocabulary writes token %d, which has other bytes",
           path, x->valuestring, other->valueint);
      cJSON_Delete(root);
      cJSON_Delete(list);
      return false;
    }
    bool there = tokenizer_id(t, x->valuestring) >= 0;
    for (const cJSON *y = first; y && !there; y = y->next)
      there = !strcmp(bpe_field(y, "content")->valuestring, x->valuestring);
    if (there) continue;
    cJSON *made = bpe_new_added(to, id++, x->valuestring, NULL);
    if (!first) first = made;
  }
  const bool ok = id == t->vocab_size || tokenizer_becomes(t, root, path, error);
  cJSON_Delete(root);
  cJSON_Delete(list);
  return ok;
}
bool tokenizer_load_with(Tokenizer *t, const char *path, const char *add, Error *error) {
  if (!tokenizer_load_any(t, path, error)) return false;
  if (!*add || !strcmp(add, "auto") || tokenizer_add(t, add, error)) return true;
  tokenizer_free(t);
  return false;
}
