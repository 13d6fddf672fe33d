// fuzz.cc: libFuzzer targets (https://llvm.org/docs/LibFuzzer.html) for every reader of files from untrusted sources.
// `make fuzz` builds this file with ASan and UBSan and runs each target for a while.
//
//   build/fuzz/fuzz list                          the targets
//   build/fuzz/fuzz seeds DIR                     small valid files of every target as seeds, in DIR/TARGET
//   FUZZ_TARGET=NAME build/fuzz/fuzz [FILE...]    libFuzzer itself; with the FILE of a finding, that input again
//
// A reader must return either a result that fulfils every promise of its header, or one printable line. It may not
// crash, hang, leak, use memory far beyond the input, or end the program (libFuzzer reports exit, too).
//
// Seeds are made in the root of the repository, where dev/fixtures is; a target without seeds is an error.
//
// Readers take paths: inputs are written into a directory of this process, in $FUZZ_DIR or /dev/shm. A target may
// compute the sizes and lengths that a header must agree with: random changes would almost never keep them right, and
// no code after the size check would be reached.
#include <initializer_list>                      // for (x : {a, b})
#include "dev/program.h"
#include <ftw.h>

const Ops ops_avx2 = {}, ops_avx512 = {}, ops_avx512_bf16 = {}, ops_amx = {};          // no arithmetic is done here

// ---- files and checks ----------------------------------------------------------------------------------------------
static char fuzz_dir[512], fuzz_seed_dir[512];
static int fuzz_seed_count;
static bool fuzz_accepted;                       // of the last reader that was called
static Error fuzz_error;
struct FuzzTarget { const char *name; void (*run)(const uint8_t *, size_t); void (*seeds)(); size_t most_bytes; };
static const FuzzTarget *fuzz_target;

struct FuzzPath { char text[600]; };
static FuzzPath fuzz_path(const char *name) {
  FuzzPath p;
  snprintf(p.text, sizeof p.text, "%s/%s", fuzz_dir, name);
  return p;
}
static void fuzz_write_file(const char *path, const void *bytes, size_t count, int64_t size) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool longer = size > (int64_t)count;
  if (fd < 0 || write(fd, bytes, count) != (ssize_t)count || (longer && ftruncate(fd, size)) || close(fd)) {
    fprintf(stderr, "fuzz: cannot write %s: %s\n", path, strerror(errno));
    abort();
  }
}
static void fuzz_write(const char *name, const uint8_t *bytes, size_t count) {
  fuzz_write_file(fuzz_path(name).text, bytes, count, 0);
}
static int fuzz_remove(const char *path, const struct stat *, int, struct FTW *) { return remove(path); }
static void fuzz_clean() { nftw(fuzz_dir, fuzz_remove, 8, FTW_DEPTH | FTW_PHYS); }

// A condition that must hold for every input.
#define HOLDS(cond) \
  do { \
    if (!(cond)) { fprintf(stderr, "fuzz: does not hold: %s (%s:%d)\n", #cond, __FILE__, __LINE__); abort(); } \
  } while (0)

// One line, not empty, without control characters.
static void fuzz_check_error(const char *error) {
  HOLDS(*error);
  if (error != fuzz_error.text) fail(&fuzz_error, "%s", error);
  for (const char *c = error; *c; c++) {
    if ((uint8_t)*c < 0x20 || *c == 0x7f) fprintf(stderr, "fuzz: byte 0x%02x in the error: %s\n", *c, error);
    HOLDS((uint8_t)*c >= 0x20 && *c != 0x7f);
  }
}

// Inputs of several files are split at the bytes 0x1e, the record separator, which no JSON contains.
struct FuzzPart { const uint8_t *bytes; size_t count; };
static FuzzPart fuzz_next_part(FuzzPart *rest) {
  const uint8_t *end = rest->count ? (const uint8_t *)memchr(rest->bytes, 0x1e, rest->count) : NULL;
  const FuzzPart part = {rest->bytes, end ? (size_t)(end - rest->bytes) : rest->count};
  *rest = end ? FuzzPart{end + 1, rest->count - part.count - 1} : FuzzPart{rest->bytes + rest->count, 0};
  return part;
}

// Writes a seed. The reader must accept it: a rejected seed leads nowhere.
static void fuzz_seed(const void *bytes, size_t count) {
  char path[600];
  snprintf(path, sizeof path, "%s/%02d", fuzz_seed_dir, fuzz_seed_count++);
  fuzz_write_file(path, bytes, count, 0);
  fuzz_accepted = false;
  fuzz_target->run((const uint8_t *)bytes, count);
  if (fuzz_accepted && count <= fuzz_target->most_bytes) return;
  fprintf(stderr, "fuzz: %s, a seed of %zu bytes, is rejected: %s\n", path, count, fuzz_error.text);
  abort();
}
static void fuzz_seed_text(const char *text) { fuzz_seed(text, strlen(text)); }

// ---- safetensors ---------------------------------------------------------------------------------------------------
static void fuzz_safetensors_table(SafetensorsFile *s) {
  int64_t end = (int64_t)s->data_at;
  volatile uint8_t touched = 0;
  for (int i = 0; i < s->count; i++) {
    const SafetensorsTensor *t = &s->tensor[i];
    HOLDS(t->at == end && t->bytes >= 0 && t->ndim >= 0 && t->ndim <= SAFETENSORS_MAX_DIMS);
    HOLDS(safetensors_bytes(safetensors_dtype(t->dtype_text), t->shape, t->ndim) == t->bytes);
    HOLDS(safetensors_entry(s, t->name) == t && (i == 0 || strcmp(s->by_name[i - 1]->name, s->by_name[i]->name) < 0));
    Tensor x;
    for (Dtype d : {F32, BF16, F16, I32}) {
      if (!safetensors_find(s, t->name, d, &x)) { fuzz_check_error(s->error); continue; }
      HOLDS(t->known_dtype && t->dtype == d && x.data == s->map + t->at);
      HOLDS(numel(x) * (int64_t)dtype_bytes(d) == t->bytes && (uintptr_t)x.data % dtype_bytes(d) == 0);
    }
    if (t->bytes) touched = (uint8_t)(touched + s->map[t->at] + s->map[t->at + t->bytes - 1]);
    end += t->bytes;
  }
  HOLDS(end == (int64_t)s->bytes);
  fuzz_accepted = true;
  for (int i = 0; i < s->metadata_count; i++)
    HOLDS(safetensors_metadata(s, s->metadata[i].key) == s->metadata[i].value);
}
static void fuzz_safetensors_path(const char *path) {
  SafetensorsFile s;
  if (safetensors_open(&s, path)) fuzz_safetensors_table(&s);
  else fuzz_check_error(s.error);
  safetensors_close(&s);
}
static void fuzz_safetensors(const uint8_t *bytes, size_t count) {
  fuzz_write("file", bytes, count);
  fuzz_safetensors_path(fuzz_path("file").text);
}

// Writes a file with this header, its length before it, and zeros after it: as many as the largest number up to 65536
// that appears in the header between '[', ',' and ']', which is the end of the last tensor if there is one.
static void fuzz_write_header(const char *name, FuzzPart json) {
  static uint8_t file[8 + (1 << 16)];
  uint64_t largest = 0, number = 0, length = json.count < sizeof file - 8 ? json.count : sizeof file - 8;
  bool inside = false;
  for (size_t i = 0; i < length; i++) {
    const uint8_t c = json.bytes[i];
    if (inside && c >= '0' && c <= '9' && number <= 65536) { number = number * 10 + (c - '0'); continue; }
    if (inside && (c == ',' || c == ']') && number <= 65536 && number > largest) largest = number;
    inside = c == '[' || c == ',';
    number = 0;
  }
  memcpy(file, &length, 8);
  if (length) memcpy(file + 8, json.bytes, length);
  fuzz_write_file(fuzz_path(name).text, file, 8 + length, (int64_t)(8 + length + largest));
}
static void fuzz_safetensors_header(const uint8_t *bytes, size_t count) {
  fuzz_write_header("file", FuzzPart{bytes, count});
  fuzz_safetensors_path(fuzz_path("file").text);
}

// Two tensors and metadata; with_length: as a whole file with zeros as data.
static void fuzz_seed_safetensors(bool with_length) {
  static const char *const metadata[] = {"format", "pt", "note", "\"line\"\n", NULL};
  SafetensorsTensor t[] = {{"wte.weight", F32, false, "", 2, {3, 2}, 0, 0}, {"ids", I32, false, "", 1, {4}, 0, 0},
                           {"half", BF16, false, "", 0, {}, 0, 0}, {"none", F16, false, "", 2, {0, 5}, 0, 0}};
  for (int tensors : {0, 1, 4}) {
    int64_t bytes;
    char *header = safetensors_header(t, tensors, tensors == 1 ? NULL : metadata, &bytes);
    const int64_t data = tensors ? t[tensors - 1].at + t[tensors - 1].bytes - bytes : 0;
    header = (char *)realloc(header, (size_t)(bytes + data));
    memset(header + bytes, 0, (size_t)data);
    if (with_length) fuzz_seed(header, (size_t)(bytes + data));
    else fuzz_seed(header + 8, (size_t)bytes - 8);
    free(header);
  }
}
static void fuzz_seeds_safetensors() { fuzz_seed_safetensors(true); }
static void fuzz_seeds_safetensors_header() {
  fuzz_seed_safetensors(false);
  fuzz_seed_text("{\"\\u00e9\\ud83d\\ude00\":{\"data_offsets\":[0,8],\"shape\":[1],\"dtype\":\"F64\"},"
                 "\"b\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,2,1],\"data_offsets\":[8,12]}}");
}

// ---- tokenizers ----------------------------------------------------------------------------------------------------
static const char fuzz_text[] = "The miller's 12 bells rang, and rang;\n\n  don't we'll <|endoftext|> caf\xc3\xa9 "
                                "\xf0\x9f\x98\x80 \xff\xfe\x80 1234\t x\n = Heading = \n";

// Where tokens by characters end: in order, within the text. Scores may be asked for.
static void fuzz_tokenizer_ends(const Tokenizer *t, const int32_t *ids, int64_t n) {
  static int32_t again[3 * sizeof fuzz_text];
  static int64_t ends[3 * sizeof fuzz_text];
  BpeEncoder e;
  bpe_encoder_open(&e, t);
  e.ends = ends;
  HOLDS(bpe_encoder_run(&e, (const uint8_t *)fuzz_text, sizeof fuzz_text - 1, again) == n && e.ends == ends + n);
  HOLDS(!memcmp(ids, again, (size_t)n * sizeof *ids));
  for (int64_t i = 0; i < n; i++)
    HOLDS(ends[i] > 0 && ends[i] < (int64_t)sizeof fuzz_text && (!i || ends[i] >= ends[i - 1]));
  bpe_encoder_close(&e);
  float *score = (float *)malloc((size_t)t->vocab_size * sizeof *score);
  tokenizer_scores(t, score);
  free(score);
}
// A tokenizer that was read must encode and decode any bytes (fuzz_text is NFC) but those without a token, cut where it
// allows or not, and be the same after saving and loading.
static void fuzz_tokenizer_use(Tokenizer *t) {
  static int32_t ids[1 + NFC_MOST_GROWTH * sizeof fuzz_text], parts[NFC_MOST_GROWTH * sizeof fuzz_text];
  const uint8_t *const text = (const uint8_t *)fuzz_text;
  const int64_t n = tokenizer_encode(t, (const uint8_t *)fuzz_text, sizeof fuzz_text - 1, ids);
  HOLDS(n > 0 && n <= (int64_t)tokenizer_ids_most(t, sizeof fuzz_text - 1));
  const size_t cut = tokenizer_cut(t, text, sizeof fuzz_text - 1, sizeof fuzz_text / 3);
  const int64_t front = tokenizer_encode(t, text, cut, parts);
  HOLDS(n == front + tokenizer_encode(t, text + cut, sizeof fuzz_text - 1 - cut, parts + front, true));
  HOLDS(!memcmp(ids, parts, (size_t)n * sizeof *ids));
  char kept[sizeof fuzz_text];
  size_t at = 0, count = 0;
  for (size_t i = 0; i < sizeof fuzz_text - 1; i++)
    if (t->byte_id[(uint8_t)fuzz_text[i]] >= 0) kept[count++] = fuzz_text[i];
  if (t->byte_fallback) fuzz_tokenizer_ends(t, ids, n), at = count;  // literal names of bytes come back as these
  for (int64_t i = 0; i < n && at < count && count == sizeof fuzz_text - 1; i++) {     // an added one may have any
    int bytes;
    HOLDS(ids[i] >= 0 && ids[i] < t->vocab_size);
    const uint8_t *p = tokenizer_token_bytes(t, ids[i], &bytes);
    HOLDS(at + (size_t)bytes <= count && !memcmp(p, kept + at, (size_t)bytes));
    at += (size_t)bytes;
  }
  HOLDS(at == count || count < sizeof fuzz_text - 1);
  HOLDS(tokenizer_begin(t, (const uint8_t *)"", 0, ids) == 1 && ids[0] >= 0 && ids[0] < t->vocab_size);
  Tokenizer again;
  HOLDS(tokenizer_save(t, fuzz_path("again.json").text, &fuzz_error));
  HOLDS(tokenizer_load(&again, fuzz_path("again.json").text, &fuzz_error));
  HOLDS(tokenizer_hash(&again) == tokenizer_hash(t));
  tokenizer_free(&again);
  fuzz_accepted = true;
}
static void fuzz_tokenizer_path(const char *path) {
  Tokenizer t;
  if (tokenizer_load_any(&t, path, &fuzz_error)) fuzz_tokenizer_use(&t);
  else fuzz_check_error(fuzz_error.text);
  tokenizer_free(&t);
}
// A byte 0x01 of an input stands for the entries of all 256 bytes in a vocabulary, so that mutations hit the rest; 0x02
// for those of one with byte_fallback, from 1 on.
static char fuzz_byte_entries[8192], fuzz_fallback_entries[8192];
static void fuzz_write_tokenizer(const char *name, FuzzPart part) {
  FILE *f = fopen(fuzz_path(name).text, "wb");
  HOLDS(f);
  for (size_t i = 0, expanded = 0; i < part.count; i++) {
    if (part.bytes[i] <= 2 && part.bytes[i] && expanded++ < 4)
      fputs(part.bytes[i] == 1 ? fuzz_byte_entries : fuzz_fallback_entries, f);
    else fputc(part.bytes[i], f);
  }
  fclose(f);
}
static void fuzz_make_byte_entries() {
  uint16_t char_of_byte[256];
  size_t n = 0;
  int id = 0;
  bpe_alphabet(char_of_byte);
  for (int b = 0; b < 256; b++)
    sprintf(fuzz_fallback_entries + strlen(fuzz_fallback_entries), "%s\"<0x%02X>\":%d", b ? "," : "", b, b + 1);
  for (int c = 0; c < 0x144; c++) {              // in the order of a trained tokenizer
    bool used = false;
    for (int b = 0; b < 256; b++) used = used || char_of_byte[b] == c;
    if (!used) continue;
    const char *quote = c == '"' || c == '\\' ? "\\" : "", text[3] = {(char)(c < 0x80 ? c : 0xc0 | c >> 6),
                                                                    (char)(c < 0x80 ? 0 : 0x80 | (c & 63)), 0};
    n += (size_t)snprintf(fuzz_byte_entries + n, sizeof fuzz_byte_entries - n, "%s\"%s%s\":%d", id ? "," : "", quote,
                          text, id);
    id++;
  }
}
static void fuzz_tokenizer_json(const uint8_t *bytes, size_t count) {
  fuzz_write_tokenizer("tokenizer", FuzzPart{bytes, count});
  fuzz_tokenizer_path(fuzz_path("tokenizer").text);
}
// vocab.json, merges.txt, tokenizer_config.json
static void fuzz_tokenizer_pair(const uint8_t *bytes, size_t count) {
  FuzzPart rest = {bytes, count};
  for (const char *name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) {
    const FuzzPart part = fuzz_next_part(&rest);
    if (part.count) fuzz_write_tokenizer(name, part);
    else remove(fuzz_path(name).text);
  }
  fuzz_tokenizer_path(fuzz_dir);
}

// --add_tokens
static void fuzz_tokens(const uint8_t *bytes, size_t count) {
  Tokenizer t;
  tokenizer_train(&t, (const uint8_t *)fuzz_text, sizeof fuzz_text - 1, 260, 1);
  fuzz_write("tokens.json", bytes, count);
  fuzz_write("tokens.txt", bytes, count);
  const bool added = tokenizer_add(&t, fuzz_path("tokens.txt").text, &fuzz_error);
  if (added) fuzz_tokenizer_use(&t);
  else fuzz_check_error(fuzz_error.text);
  if (!tokenizer_add(&t, fuzz_path("tokens.json").text, &fuzz_error)) fuzz_check_error(fuzz_error.text);
  tokenizer_free(&t);
}
static void fuzz_seeds_tokens() {
  fuzz_seed_text("<a>\n</a> b\n\n<a>\r\nn\xc3\xa4her\n");
  fuzz_seed_text(" [\"<a>\", \"\\u4e2d\", \"the\"]\n");
  fuzz_seed_text("[INST]\n[/INST]");
}
// A trained tokenizer as tokenizer.json, parsed; 0x01 stands for its first 256 entries when it is printed.
static cJSON *fuzz_trained(int merges) {
  static char text[1 << 18];
  Tokenizer t;
  tokenizer_train(&t, (const uint8_t *)fuzz_text, sizeof fuzz_text - 1, 256 + merges, 1, true);
  HOLDS(tokenizer_save(&t, fuzz_path("trained").text, &fuzz_error));
  tokenizer_free(&t);
  FILE *f = fopen(fuzz_path("trained").text, "rb");
  HOLDS(f);
  const size_t bytes = fread(text, 1, sizeof text, f);
  fclose(f);
  cJSON *root = cJSON_ParseWithLength(text, bytes), *model = cJSON_GetObjectItem(root, "model");
  cJSON *vocab = cJSON_GetObjectItem(model, "vocab");
  HOLDS(cJSON_GetArraySize(vocab) == 256 + merges);
  for (int i = 0; i < 256; i++) cJSON_DeleteItemFromArray(vocab, 0);
  cJSON_InsertItemInArray(vocab, 0, cJSON_CreateNumber(0));
  vocab->child->string = strdup("\1");
  return root;
}
static char *fuzz_print(const cJSON *x) {
  static const char stand_in[] = "\"\\u0001\":0";
  char *text = cJSON_PrintUnformatted(x), *at = strstr(text, stand_in);
  HOLDS(at);
  *at = 1;
  memmove(at + 1, at + sizeof stand_in - 1, strlen(at + sizeof stand_in - 1) + 1);
  return text;
}
// Llama 2's form of normalizer, or Gemma's; a pre_tokenizer.
static void fuzz_fallback_text(char *text, size_t bytes, const char *normalizer, const char *cuts) {
  snprintf(text, bytes, R"({"added_tokens":[{"id":0,"content":"<s>","special":true,"normalized":false,"rstrip":true},)"
           R"({"id":263,"content":"rang","normalized":false,"lstrip":true}],"normalizer":%s,"pre_tokenizer":%s,)"
           R"("post_processor":null,"decoder":{"type":"Sequence","decoders":[{"type":"Replace",)"
           R"("pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},)"
           R"({"type":"Strip","content":" ","start":1,"stop":0}]},)"
           R"("model":{"type":"BPE","unk_token":"<s>","fuse_unk":true,"byte_fallback":true,"vocab":{"<s>":0,)" "\2"
           R"(,"\u2581":257,"e":258,"l":259,"ll":260,"\u2581e":261,"h":262},"merges":[["l","l"],["\u2581","e"]]}})",
           normalizer, cuts);
}
static const char fuzz_prepend[] = R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},)"
                                   R"({"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]})";
static void fuzz_seeds_tokenizer_json() {
  static char fallback[4096];
  fuzz_fallback_text(fallback, sizeof fallback, fuzz_prepend, "null");
  fuzz_seed_text(fallback);
  fuzz_fallback_text(fallback, sizeof fallback, "null",
                     R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":false})");
  fuzz_seed_text(fallback);
  for (int merges : {0, 5}) {
    cJSON *root = fuzz_trained(merges), *pairs = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "model"), "merges"), *x;
    char *text = fuzz_print(root), word[64];
    fuzz_seed_text(text);
    cJSON_free(text);
    cJSON *words = cJSON_CreateArray();          // the older form of merges: one string each
    cJSON_ArrayForEach(x, pairs) {
      snprintf(word, sizeof word, "%s %s", x->child->valuestring, x->child->next->valuestring);
      cJSON_AddItemToArray(words, cJSON_CreateString(word));
    }
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(root, "model"), "merges", words);
    text = fuzz_print(root);
    fuzz_seed_text(text);
    cJSON_free(text);
    cJSON_Delete(root);
  }
  static const char template_of_one[] =
      "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":["
      "{\"SpecialToken\":{\"id\":\"b\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"b\":{\"ids\":[7]}}}]}";
  for (int i = 0; i <= (int)(sizeof bpe_patterns / sizeof *bpe_patterns); i++) {         // the families, and Digits
    cJSON *root = fuzz_trained(5), *model = cJSON_GetObjectItem(root, "model");
    cJSON *both = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "pre_tokenizer"), "pretokenizers");
    cJSON *split = cJSON_Parse("{\"type\":\"Digits\",\"individual_digits\":true}");
    if (i) {
      cJSON_Delete(split);
      split = cJSON_Parse("{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\",\"invert\":false}");
      cJSON_AddStringToObject(cJSON_GetObjectItem(split, "pattern"), "Regex", bpe_patterns[i - 1].regex);
      cJSON_ReplaceItemInObject(cJSON_GetArrayItem(both, 1), "use_regex", cJSON_CreateFalse());
      cJSON_ReplaceItemInObject(root, "normalizer", cJSON_Parse("{\"type\":\"NFC\"}"));
      cJSON_ReplaceItemInObject(root, "post_processor", cJSON_Parse(template_of_one));
      cJSON_ReplaceItemInObject(model, "ignore_merges", cJSON_CreateTrue());
    }
    cJSON_ReplaceItemInArray(both, 0, split);
    char *text = fuzz_print(root);
    fuzz_seed_text(text);
    cJSON_free(text);
    cJSON_Delete(root);
  }
}
// NFC of any bytes: at most three times as many, itself normalised, and the same in two halves where the second starts
// with a character that stands alone.
static void fuzz_nfc(const uint8_t *bytes, size_t count) {
  uint8_t *once = (uint8_t *)malloc(NFC_MOST_GROWTH * count + 1), *twice = (uint8_t *)malloc(9 * count + 1);
  const uint8_t *starter;
  NfcWork w = {};
  const size_t n = (size_t)(nfc_write(&w, once, bytes, bytes + count) - once);
  HOLDS(n <= NFC_MOST_GROWTH * count);
  HOLDS((size_t)(nfc_write(&w, twice, once, once + n) - twice) == n && !memcmp(once, twice, n));
  HOLDS(nfc_first_unsettled(bytes, bytes + count, &starter) < bytes + count || (n == count && !memcmp(once, bytes, n)));
  for (size_t at = 0; at < count; at++) {
    if (bytes[at] >= 0x80) continue;
    uint8_t *end = nfc_write(&w, nfc_write(&w, twice, bytes, bytes + at), bytes + at, bytes + count);
    HOLDS((size_t)(end - twice) == n && !memcmp(once, twice, n));
    break;
  }
  nfc_work_free(&w);
  free(once);
  free(twice);
  fuzz_accepted = true;
}
static void fuzz_seeds_nfc() {
  fuzz_seed_text("e\xcc\x81 \xe2\x84\xab a\xcc\x95\xcc\x80\xd6\xae\xcc\x80 \xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8");
  fuzz_seed_text("\xe0\xa5\x98\xcd\x84 \xf0\x9d\x85\xa0 \xea\xb0\x80\xe1\x86\xa8 \xe0\xbd\xb3 \xff\xcc\x81\xed\xa0");
}
// The same as the two files in the form of the published GPT-2.
static void fuzz_seeds_tokenizer_pair() {
  cJSON *root = fuzz_trained(5), *model = cJSON_GetObjectItem(root, "model"), *x;
  cJSON *vocab = cJSON_GetObjectItem(model, "vocab");
  char merges[256] = "\x1e#version: 0.2\n", seed[2048];
  cJSON_ArrayForEach(x, cJSON_GetObjectItem(model, "merges"))
    snprintf(merges + strlen(merges), sizeof merges - strlen(merges), "%s %s\n", x->child->valuestring,
             x->child->next->valuestring);
  for (const char *config : {"", "\x1e{\"add_prefix_space\":false,\"bos_token\":\"<|endoftext|>\"}"}) {
    char *text = fuzz_print(vocab);
    snprintf(seed, sizeof seed, "%s%s%s", text, merges, config);
    fuzz_seed_text(seed);
    cJSON_free(text);
    if (!*config) cJSON_AddNumberToObject(vocab, "<|endoftext|>", 261);
  }
  cJSON_Delete(root);
}

// ---- packed texts and tables ---------------------------------------------------------------------------------------
// A stream must end, or fail with a line, after as many bytes as it likes.
static void fuzz_stream(const char *name, const uint8_t *bytes, size_t count) {
  uint8_t text[4096];
  TextStream s;
  Error e = {};
  int64_t n = 0;
  fuzz_write(name, bytes, count);
  fuzz_accepted = text_stream_open(&s, fuzz_path(name).text, "", &e);
  for (int reads = 0; fuzz_accepted && reads < 100 && (n = text_stream_read(&s, text, sizeof text, &e)) > 0; reads++);
  if (!fuzz_accepted || n < 0) fuzz_check_error(e.text);
  text_stream_close(&s);
}
static void fuzz_parquet(const uint8_t *bytes, size_t count) { fuzz_stream("x.parquet", bytes, count); }
static void fuzz_gzip(const uint8_t *bytes, size_t count) { fuzz_stream("x.txt.gz", bytes, count); }
static void fuzz_zstd(const uint8_t *bytes, size_t count) { fuzz_stream("x.jsonl.zst", bytes, count); }
static void fuzz_seeds_parquet() {
  Error e;
  for (const char *name : {"plain", "dictionary", "v2", "v2_plain", "delta", "nested_plain", "nested_v2", "chats_older",
                           "alpaca"}) {
    char path[128];
    int64_t bytes;
    const bool plain = !strcmp(name, "plain") || !strcmp(name, "delta") || !strcmp(name, "nested_plain");
    if (!plain && !library_open(LIBRARY_SNAPPY, "", &e)) continue;
    snprintf(path, sizeof path, "dev/fixtures/parquet/%s.parquet", name);
    char *file = file_get(path, 1 << 20, &bytes);
    if (file) fuzz_seed(file, (size_t)bytes);
    free(file);
  }
}
// "the fox\n{\"text\": \"a\"}\n" by gzip -n and by libzstd.
static void fuzz_seeds_gzip() {
  static const uint8_t one[] = {
      0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x2b, 0xc9, 0x48, 0x55, 0x48, 0xcb, 0xaf, 0xe0, 0xaa,
      0x56, 0x2a, 0x49, 0xad, 0x28, 0x51, 0xb2, 0x52, 0x50, 0x4a, 0x54, 0xaa, 0xe5, 0x02, 0x00, 0xd8, 0x04, 0x44, 0x1d,
      0x16, 0x00, 0x00, 0x00};
  uint8_t two[2 * sizeof one];
  memcpy(two, one, sizeof one);
  memcpy(two + sizeof one, one, sizeof one);
  fuzz_seed(one, sizeof one);
  fuzz_seed(two, sizeof two);
}
static void fuzz_seeds_zstd() {
  static const uint8_t one[] = {
      0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x16, 0xb1, 0x00, 0x00, 0x74, 0x68, 0x65, 0x20, 0x66, 0x6f, 0x78, 0x0a, 0x7b, 0x22,
      0x74, 0x65, 0x78, 0x74, 0x22, 0x3a, 0x20, 0x22, 0x61, 0x22, 0x7d, 0x0a};
  fuzz_seed(one, sizeof one);
}

// ---- conversations, prompts, questions -----------------------------------------------------------------------------
static Tokenizer *fuzz_chat_tokenizer(int i) {   // of the fixtures, written here: the directory may be another later
  static const char *const names[] = {"qwen3", "llama3"};
  static Tokenizer t[2];
  char path[600];
  if (t[i].vocab_size) return &t[i];
  snprintf(path, sizeof path, "%s/dev/fixtures/chat_%s", getenv("FUZZ_ROOT") ? getenv("FUZZ_ROOT") : ".", names[i]);
  if (!tokenizer_load_any(&t[i], path, &fuzz_error)) {
    fprintf(stderr, "fuzz: %s (FUZZ_ROOT names the root of the repository)\n", fuzz_error.text);
    _exit(1);
  }
  return &t[i];
}
// A line: by a template that thinks, by one with a BOS token, by one that writes tools as Python does, and as a
// preference.
static void fuzz_chat_line(const uint8_t *bytes, size_t count) {
  static const char *const names[] = {"qwen3", "llama3", "smollm3", "llama3"};
  for (int i = 0; i < 4; i++) {
    const Tokenizer *t = fuzz_chat_tokenizer(i % 2);
    ChatOptions o = {names[i], chat_date, "", false};
    o.preferences = i == 3, o.pairs = count % 2;
    const Chat c = chat_open(&o, t);
    ChatTokens k = {};
    Error e;
    if (chat_line(&c, &k, bytes, count)) {
      fuzz_accepted = true;
      HOLDS(k.count > 0 && !k.fault.text[0] && (i < 3 ? !k.second : k.second > 0 && k.second < k.count));
      for (int64_t x = 0; x < k.count; x++) HOLDS(k.ids[x] >= 0 && k.ids[x] < t->vocab_size && k.trained[x] <= 1);
    } else {
      fail_with(&e, EXIT_MISSING, "%s", k.fault.text);
      fuzz_check_error(e.text);
    }
    free(k.ids);
    free(k.trained);
  }
  for (const char *name : {"x.json", "x.jsonl", "x.txt", "x"}) {
    const FileForm f = form_of(name, bytes, count);
    Error line = {};
    HOLDS(strlen(f.keys) < sizeof f.keys - 1);
    HOLDS(form_check(&f, name, &line) || line.text[0]);
  }
}
static void fuzz_seeds_chat_line() {
  fuzz_seed_text("{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": "
                 "\"q\"}, {\"role\": \"assistant\", \"content\": \"<think>\\nx</think>a\", \"train\": false, "
                 "\"weight\": 1}]}");
  fuzz_seed_text("{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\\ude00\"},{\"role\":\"assistant\","
                 "\"content\":\"b\",\"loss_weight\":0,\"masked\":true,\"tool_calls\":[]}],\"tools\":null}");
  fuzz_seed_text("{\"tools\": [{\"name\": \"f\", \"x\": [-1.0e5, null, true, \"it's\\u200b\"]}], \"messages\": "
                 "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"tool_calls\": [{\"function\": "
                 "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}}]}, {\"role\": \"tool\", \"content\": \"2\"}]}");
  fuzz_seed_text("{\"tools\": \"[{}]\", \"conversations\": [{\"from\": \"system\", \"value\": \"/no_think "
                 "/system_override\"}, {\"from\": \"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\"}\"}]}");
  fuzz_seed_text("{\"prompt\": \"<|begin_of_text|>p\", \"completion\": \"c<|eot_id|>\\n\"}");
  fuzz_seed_text("{\"text\": \"t\", \"id\": [1, {\"a\": \"]\"}]}");
  fuzz_seed_text("{\"prompt\": \"p\", \"chosen\": \"x\\u00e9\", \"rejected\": \"x\\u00f6\"}");
  fuzz_seed_text("{\"system\": \"s\", \"conversations\": [{\"from\": \"human\", \"value\": \"q\"}], \"chosen\": "
                 "{\"from\": \"gpt\", \"value\": \"a\"}, \"rejected\": {\"role\": \"assistant\", \"content\": \"b\"}}");
}
// A template and two conversations that it renders, with few steps: whatever it is, it ends by its end or by a line.
static void fuzz_chat_template(const uint8_t *bytes, size_t count) {
  static const char variables[] =
      "{\"messages\": [{\"role\": \"system\", \"content\": \"s \u00e9\"}, {\"role\": \"user\", \"content\": \"q\"}, "
          "{\"role\": "
      "\"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": "
          "[1, 2.5, "
      "true]}}}]}, {\"role\": \"tool\", \"content\": \"<think>t</think>\\n\"}], \"tools\": [{\"function\": "
          "{\"name\": \"f\"}}], "
      "\"eos_token\": \"</s>\", \"add_generation_prompt\": true}";
  static JinjaFault fault;
  fault = {};
  JinjaTemplate *t = jinja_parse((const char *)bytes, count, &fault);
  static Jinja j;
  j = {};
  cJSON *x = json_parse_spelled(variables);
  j.fault = &fault, j.t = t, j.date = "26 Jul 2024", j.steps_max = 20000;
  volatile bool ok = false;
  if (t && !setjmp(j.back)) {
    JinjaScope *globals = jinja_scope(&j, NULL);
    for (const cJSON *y = x->child; y; y = y->next) jinja_set_global(&j, globals, y->string, jinja_of_json(&j, y));
    ok = jinja_render(&j, globals);
  }
  fuzz_accepted = ok;
  HOLDS(ok || fault.text[0]);
  for (size_t i = 0; ok && i < j.span_count; i += 2) HOLDS(j.spans[i] <= j.spans[i + 1]);
  jinja_release(&j, NULL, 0);
  free(j.out.p);
  free(j.spans);
  jinja_free(t);
  cJSON_Delete(x);
}
static void fuzz_seeds_chat_template() {
  for (const auto &t : chat_templates) fuzz_seed_text(t.text);
  fuzz_seed_text("{%- macro m(a, b=2) %}{{ a ~ b }}{{ caller() if caller }}{% endmacro %}{% call m(1) %}x{% endcall %}"
                 "{% set ns = namespace(n=0) %}{% for k, v in {'a': 1, 'b': [2]}.items() recursive %}{% set ns.n = "
                     "ns.n + 1 %}"
                 "{{ loop.index ~ loop.cycle('x', 'y') }}{% else %}none{% endfor %}{{ ns.n }}");
  fuzz_seed_text("{{ messages[::-1] | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}"
                 "{{ tools | tojson(indent=2, sort_keys=true) }}{{ 'a,b'.split(',')[-1].strip() | upper | indent(2) "
                     "}}");
  fuzz_seed_text("{% set x %}{% generation %}{{ -7 // 2 % 3 ** 2 }}{% endgeneration %}{% endset %}{% filter trim %} "
                 "{{ x }} "
                 "{% endfilter %}{% with y = [1, (2, 3)] %}{{ y[1] in y and not y is mapping }}{% endwith %}{# c -#} "
                 "{% raw %}{{ }}{% endraw %}{{ '%s-%d' % ('a', 3) }}{{ '{} {0}'.format(1) }}{{ [3, 1] | sort | first "
                     "}}");
}
// A file of records, from the search to packed sequences: the first byte says of which name.
static void fuzz_chat_file(const uint8_t *bytes, size_t count) {
  static const char *const names[] = {"x.json", "x.csv", "x.tsv", "x.jsonl"};
  char tokenizer[600];
  snprintf(tokenizer, sizeof tokenizer, "%s", fuzz_path("tokenizer.json").text);
  if (access(tokenizer, F_OK)) HOLDS(tokenizer_save(fuzz_chat_tokenizer(0), tokenizer, &fuzz_error));
  if (!count) return;
  const char *name = names[bytes[0] % 4];
  fuzz_write(name, bytes + 1, count - 1);
  const FuzzPath path = fuzz_path(name);
  CorpusOptions o = {path.text, NULL, 0, 1, 7, tokenizer};
  o.chat = ChatOptions{"qwen3", chat_date, "", false};
  o.chat.pairs = count % 3 == 0, o.chat.last = count % 3 == 1;
  Corpus c;
  Error e;
  if (!corpus_load(&c, o, &e)) { fuzz_check_error(e.text); return; }
  fuzz_accepted = true;
  for (Split &s : c.split) {
    enum { T = 16 };
    int32_t inputs[T], targets[T], starts[T];
    Packing p;
    if (!s.documents) continue;
    packing_make(&p, &s, T, count % 2);
    HOLDS(p.kept + p.dropped + p.untrained == s.documents);
    for (int64_t row = 0; row < p.rows; row++) packing_fill(&p, row, inputs, targets, starts);
    packing_free(&p);
  }
  corpus_free(&c);
}
static void fuzz_seeds_chat_file() {
  fuzz_seed_text("p{\"text\": \"one\"}\n{\"prompt\": \"p\", \"completion\": \"c\"}\r\n\n{\"messages\": [{\"role\": "
                 "\"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"an answer\"}]}\n");
  fuzz_seed_text("p[{\"instruction\": \"a\",\n \"input\": \"\", \"output\": \"b\", \"history\": [[\"c\", \"d\"]]}, "
                 "{\"system\": \"s\", \"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", "
                 "\"value\": [{\"type\": \"text\", \"text\": \"a\"}]}]}]");
  fuzz_seed_text("p{\n \"question\": \"a\", \"answer\": \"b\"}\n{\"prompt\": [{\"role\": \"user\", \"content\": "
                 "\"a\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"b\"}]}");
  fuzz_seed_text("qprompt,response\r\n\"a\"\"b\n\",c\n\nd,\"e, f\"");
  fuzz_seed_text("rinstruction\tcontext\tresponse\na\tb\tc\nd\t\te\n");
}
static void fuzz_prompts(const uint8_t *bytes, size_t count) {
  static Options o;
  options_default(&o, &trainer_table);
  for (const char *name : {"p.jsonl", "p.txt"}) {
    char **text;
    Error error = {};
    fuzz_write(name, bytes, count);
    snprintf(o.prompts, sizeof o.prompts, "%s", fuzz_path(name).text);
    const int64_t n = prompts_read(&o, &text, &error);
    if (n < 0) { fuzz_check_error(error.text); continue; }
    fuzz_accepted = true;
    for (int64_t i = 0; i < n; i++) HOLDS(strlen(text[i]) <= count);
    free(text[0]);
    free(text);
  }
}
static void fuzz_seeds_prompts() {
  fuzz_seed_text("{\"prompt\": \"a \\u00e9\", \"id\": 1}\n{\"prompt\": \"b\"}");
  fuzz_seed_text("one\ntwo\n");
}
static void fuzz_eval(const uint8_t *bytes, size_t count) {
  EvalFile f;
  Error error = {};
  fuzz_write("x.jsonl", bytes, count);
  for (int llmc = 0; llmc < 2; llmc++) {
    if (eval_read(&f, fuzz_path("x.jsonl").text, fuzz_chat_tokenizer(1), 8, llmc, &error)) {
      fuzz_accepted = true;
      for (int64_t i = 0; i < f.requests; i++) {
        const EvalRequest *r = &f.request[i];
        HOLDS(r->at >= 0 && r->count > 0 && r->at + r->count <= f.ids_count && r->targets < r->count);
      }
      for (int64_t i = 0; i < f.docs; i++) HOLDS(f.doc[i].first + f.doc[i].requests <= f.requests);
    } else fuzz_check_error(error.text);
    eval_free(&f);
    error.text[0] = 0;
  }
}
static void fuzz_seeds_eval() {
  fuzz_seed_text("{\"ctx_a\": \"A man\", \"ctx_b\": \"he\", \"activity_label\": \"Roof\", \"endings\": [\"a [x] b\", "
                 "\"c\"], \"label\": \"1\", \"ctx\": \"A man he\"}\n");
  fuzz_seed_text("{\"query\": \"q\", \"choices\": [\"a\", \"b\"], \"gold\": 0}\n");
  fuzz_seed_text("{\"text\": \"the last word\"}\n{\"text\": \"another one\"}\n");
  fuzz_seed_text("{\"page\": \" = Title = \\n\\n one @-@ two , three of many words that make windows .\"}\n");
}
// encode.json of a directory whose encoding has this hash.
static void fuzz_encode_state(const uint8_t *bytes, size_t count) {
  static Encoding c;
  EncodeOptions o = {};
  Error e;
  bool found;
  o.tokenizer = "t";
  fuzz_write("encode.json", bytes, count);
  fuzz_write("train_000001.bin.part", (const uint8_t *)fuzz_text, sizeof fuzz_text);
  c = Encoding{};
  c.o = &o, c.hash = 0xab, c.token_bytes = 2;
  snprintf(c.out, sizeof c.out, "%s", fuzz_dir);
  data_names_add(&c.files[0], "a");
  c.shards[0] = EncodeShards{"train", 1, -1, 0, 0}, c.shards[1] = EncodeShards{"val", 0, -1, 0, 0};
  if (encode_resume(&c, &found, &e)) {
    fuzz_accepted = found;
    HOLDS(!found || (c.split >= 0 && c.split <= 2 && c.file >= 0 && c.file <= 1 && c.at >= 0 && c.line >= 0));
    for (const EncodeShards &s : c.shards) HOLDS(s.number >= 0 && s.numel >= 0 && s.numel <= o.shard_numel);
  } else fuzz_check_error(e.text);
  data_names_free(&c.files[0]);
}
static void fuzz_seeds_encode_state() {
  fuzz_seed_text("{\"encoding\":\"00000000000000ab\",\"done\":false,\"split\":0,\"file\":0,\"at\":12,\"line\":1,"
                 "\"documents\":1,\"text_bytes\":12,\"held_out\":0,\"articles\":0,\"vocab_size\":0,\"train\":[1,0,5],"
                 "\"val\":[0,0,0]}");
}

// ---- token files ---------------------------------------------------------------------------------------------------
static void fuzz_token_file(const uint8_t *bytes, size_t count) {
  enum { T = 3, B = 2, V = 300 };
  fuzz_write("tokens.bin", bytes, count);
  Split s = {};
  Error e = {};
  s.file = (TokenFile *)calloc(1, sizeof(TokenFile));
  s.files = 1;
  snprintf(s.file->path, sizeof s.file->path, "%s", fuzz_path("tokens.bin").text);
  if (!split_open_files(&s, V, &e)) {
    fuzz_check_error(e.text);
    split_free(&s);
    return;
  }
  HOLDS(s.tokens_numel >= 2 && token_file_end(s.file) <= s.file->file_bytes);
  int32_t inputs[B * T], targets[B * T];
  int64_t covered = 0;
  for (int64_t w = 0; w < eval_windows_numel(&s, T); w++) covered += eval_window_fill(&s, T, w, inputs, targets);
  HOLDS(covered == split_targets_numel(&s));
  Sampler sampler;
  const SamplerOptions o = {B, T, 1, true, false, 7};
  void *memory = malloc(sampler_bytes(&s, o) + 1);
  if (!sampler_init(&sampler, &s, o, memory, &e)) fuzz_check_error(e.text);
  else {
    for (int64_t step = 0; step < sampler.steps_per_epoch; step++)
      microbatch_fill(&sampler, step, 0, inputs, targets);
    fuzz_accepted = true;
  }
  free(memory);
  split_free(&s);
}
// The same beside a Megatron index: its bytes stand after 80 of tokens.
static void fuzz_megatron(const uint8_t *bytes, size_t count) {
  const size_t tokens = count < 80 ? count : 80;
  fuzz_write("tokens.idx", bytes + tokens, count - tokens);
  fuzz_token_file(bytes, tokens);
  remove(fuzz_path("tokens.idx").text);
}
static void fuzz_seeds_megatron() {
  for (int width : {2, 4}) {
    uint8_t file[80 + 34 + 2 * 12 + 2 * 8] = {};
    const uint64_t one = 1, counts[2] = {2, 2};
    const int32_t lengths[2] = {5, 80 / width - 5};
    const int64_t places[4] = {0, 5 * width, 0, 2};
    for (int i = 0; i < 80; i++) file[i] = (uint8_t)(i % width ? 0 : i);
    memcpy(file + 80, "MMIDIDX\0", 9), memcpy(file + 89, &one, 8), memcpy(file + 98, counts, 16);
    file[97] = width == 4 ? 4 : 8;
    memcpy(file + 114, lengths, 8), memcpy(file + 122, places, 32);
    fuzz_seed(file, sizeof file);
  }
}
static void fuzz_seeds_token_file() {
  static uint8_t file[TOKEN_FILE_HEADER_BYTES + 80];
  for (const TokenFileKind &k : token_file_kinds) {
    const int32_t tokens = 80 / k.token_bytes, header[3] = {k.magic, k.version, tokens};
    memcpy(file, header, sizeof header);
    for (int i = 0; i < 80; i++) file[TOKEN_FILE_HEADER_BYTES + i] = (uint8_t)(i % k.token_bytes ? 0 : i);
    fuzz_seed(file, sizeof file);
  }
  fuzz_seed(file + TOKEN_FILE_HEADER_BYTES, 80);
}

// ---- models of other programs --------------------------------------------------------------------------------------
// The condition: every parameter of the shape has a place inside the file.
static void fuzz_import_path(const char *path) {
  Import *s = import_open(path, NULL, &fuzz_error);
  if (!s) { fuzz_check_error(fuzz_error.text); return; }
  const ModelShape *m = &s->is.shape;
  HOLDS(m->n_layer > 0 && m->n_head > 0 && m->n_embd > 0 && m->n_positions > 0 && m->vocab_size > 0);
  if (m->n_layer <= 16) {
    const Model model = model_of_shape(m, 1);
    int params;
    Param *param = model_params(&model, &params);
    TensorMap map;
    if (import_map(s, param, params, &map, &fuzz_error)) {
      for (int p = 0; p < params; p++) {
        const TensorPlace *x = tensor_place(&map, 0, p);
        for (int64_t left = param[p].shape[0]; left > 0; left -= x->rows ? x->rows : left, x++) {
          HOLDS(x->file >= 0 && x->file < map.files && x->at >= map.data_at[x->file]);
          const int64_t rows = x->rows ? x->rows : left, cols = param_cols(&param[p]);
          const int64_t bytes = x->ggml ? rows * ggml_row_bytes((uint32_t)x->ggml, cols)
                                : x->scales ? rows * cols / 2 : rows * cols * (int64_t)dtype_bytes(x->dtype);
          HOLDS(x->scales >= 0 && x->scales <= map.scales_count);
          HOLDS(x->at + bytes <= map.file_bytes[x->file] && rows <= left);
          int same = s->is.kind == IMPORT_LLMC;
          const SafetensorsFile *file = s->is.kind == IMPORT_LLMC ? NULL : &s->set.shard[x->file].file;
          for (int i = 0; file && i < file->count; i++)
            same += file->tensor[i].at == x->at && file->tensor[i].bytes == bytes;
          HOLDS(same == 1);
        }
      }
      tensor_map_free(&map);
      fuzz_accepted = true;
    } else fuzz_check_error(fuzz_error.text);
    free(param);
  }
  import_close(s);
}

// The first 1024 bytes of a .bin file; zeros follow, as many as its shape needs, if not too many.
static void fuzz_llmc(const uint8_t *bytes, size_t count) {
  int32_t h[256] = {};
  memcpy(h, bytes, count < sizeof h ? count : sizeof h);
  const double T = h[2], L = h[4], C = h[6], V = h[7];           // double: the shape may be anything
  const double numel_ = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C, size = numel_ * (h[1] == 5 ? 2 : 4);
  const bool whole = count >= sizeof h && size > 0 && size < 1 << 24;
  fuzz_write_file(fuzz_path("model.bin").text, bytes, count, whole ? (int64_t)size + (int64_t)sizeof h : 0);
  fuzz_import_path(fuzz_path("model.bin").text);
}
static void fuzz_seeds_llmc() {
  for (int version : {3, 5}) {
    const int32_t header[256] = {20240326, version, 4, 200, 1, 2, 4, 256};
    fuzz_seed(header, sizeof header);
  }
}

// config.json, and the header of model.safetensors
static void fuzz_hf(const uint8_t *bytes, size_t count) {
  FuzzPart rest = {bytes, count};
  const FuzzPart config = fuzz_next_part(&rest);
  if (config.count) fuzz_write("config.json", config.bytes, config.count);
  else remove(fuzz_path("config.json").text);
  fuzz_write_header("model.safetensors", rest);
  fuzz_import_path(fuzz_dir);
}
static void fuzz_seeds_hf() {
  static const char *const config = "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"n_layer\":1,"
      "\"n_head\":2,\"n_embd\":4,\"n_positions\":4,\"n_ctx\":4,\"vocab_size\":6,\"n_inner\":null,"
      "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05,\"tie_word_embeddings\":true,"
      "\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1,\"torch_dtype\":\"float32\"}";
  static const char *const own[] = {"n_head", "2", NULL};
  const ModelShape shape = model_shape_gpt2(1, 2, 4, 4, 6, true, 0);
  const Model model = model_of_shape(&shape, 4);
  int params;
  Param *param = model_params(&model, &params);
  SafetensorsTensor *t = (SafetensorsTensor *)calloc((size_t)params, sizeof *t);
  for (int hf = 0; hf < 2; hf++) {
    static char seed[1 << 16];
    int64_t bytes, n = 0;
    for (int p = 0; p < params; p++) {
      const bool transposed = hf && import_is_conv1d(&param[p]);
      t[p] = SafetensorsTensor{param[p].name, F32, false, "", param[p].ndim, {param[p].shape[transposed ? 1 : 0],
                               param[p].ndim == 2 ? param[p].shape[transposed ? 0 : 1] : 1}, 0, 0};
    }
    char *header = safetensors_header(t, params, hf ? NULL : own, &bytes);
    if (hf) n = sprintf(seed, "%s", config);
    seed[n++] = 0x1e;
    memcpy(seed + n, header + 8, (size_t)bytes - 8);
    fuzz_seed(seed, (size_t)(n + bytes - 8));
    free(header);
  }
  free(t);
  free(param);
}

// What a matrix of bitsandbytes' NF4 says of itself, in a model that is whole otherwise.
static char *fuzz_nf4_state(char **file, int64_t *bytes) {
  char path[600];
  snprintf(path, sizeof path, "%s/dev/fixtures/nf4_nested/model.safetensors",
           getenv("FUZZ_ROOT") ? getenv("FUZZ_ROOT") : ".");
  *file = file_get(path, 1 << 20, bytes);
  char *at = *file ? (char *)memmem(*file, (size_t)*bytes, "{\"quant_type\"", 13) : NULL;
  HOLDS(at);
  return at;
}
static void fuzz_nf4(const uint8_t *bytes, size_t count) {
  static const char config[] = "{\"model_type\":\"llama\",\"vocab_size\":40,\"hidden_size\":64,"
      "\"intermediate_size\":300,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
      "\"max_position_embeddings\":64,"
      "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}";
  static char *file, *state;
  static int64_t file_bytes;
  static size_t most;
  if (!file) {
    state = fuzz_nf4_state(&file, &file_bytes);
    most = (size_t)((char *)memchr(state, '}', 512) + 1 - state);
  }
  memset(state, ' ', most);
  memcpy(state, bytes, count < most ? count : most);
  fuzz_write("config.json", (const uint8_t *)config, sizeof config - 1);
  fuzz_write("model.safetensors", (const uint8_t *)file, (size_t)file_bytes);
  fuzz_import_path(fuzz_dir);
}
static void fuzz_seeds_nf4() {
  char *file;
  int64_t bytes;
  char *state = fuzz_nf4_state(&file, &bytes);
  fuzz_seed(state, (size_t)((char *)memchr(state, '}', 512) + 1 - state));
  free(file);
}

// The header of a GGUF and perhaps some of its data; zeros follow, as many as its tensors need, if not too many.
static void fuzz_gguf(const uint8_t *bytes, size_t count) {
  enum { DATA_BYTES = 1 << 16 };
  fuzz_write_file(fuzz_path("x.gguf").text, bytes, count, (int64_t)count + DATA_BYTES);
  if (count < 4 || memcmp(bytes, "GGUF", 4)) return;
  GgufFile g;
  if (gguf_open(&g, fuzz_path("x.gguf").text, &fuzz_error)) {
    for (int i = 0; i < g.keys; i++) HOLDS(gguf_find(&g, g.key[i].name) == &g.key[i]);
    free(gguf_string(&g, "tokenizer.chat_template"));
    gguf_close(&g);
  } else fuzz_check_error(fuzz_error.text);
  fuzz_import_path(fuzz_path("x.gguf").text);
  const bool model = fuzz_accepted;
  fuzz_tokenizer_path(fuzz_path("x.gguf").text);
  fuzz_accepted = fuzz_accepted || model;
}
// The tokenizer with scores of a GGUF.
static void fuzz_seed_scores() {
  static char json[4096], text[1 << 16];
  Tokenizer t;
  fuzz_fallback_text(json, sizeof json, fuzz_prepend, "null");
  fuzz_write_tokenizer("tokenizer", FuzzPart{(const uint8_t *)json, strlen(json)});
  HOLDS(tokenizer_load(&t, fuzz_path("tokenizer").text, &fuzz_error));
  GgufKeys keys = {fmemopen(text, sizeof text, "wb"), 0, "llama"};
  TextEnds ends = {};
  fwrite("GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 1, 24, keys.f);
  gguf_tokenizer_keys(&keys, &t, t.vocab_size + 1, &ends);
  const long bytes = ftell(keys.f);
  fclose(keys.f);
  memcpy(text + 16, &keys.count, 8);
  fuzz_seed(text, (size_t)bytes);
  tokenizer_free(&t);
}
static void fuzz_seeds_gguf() {
  fuzz_seed_scores();
  for (const char *name : {"gpt2", "llama", "qwen2", "qwen3"}) {
    char path[600];
    int64_t bytes;
    GgufFile g;
    snprintf(path, sizeof path, "dev/fixtures/gguf_%s.gguf", name);
    char *file = file_get(path, 1 << 20, &bytes);
    if (!file || !gguf_open(&g, path, &fuzz_error)) {
      fprintf(stderr, "fuzz: %s cannot be read\n", path);
      _exit(1);
    }
    fuzz_seed(file, (size_t)g.data_at + GGUF_ALIGNMENT);   // rope's divisors are the first tensor of some
    gguf_close(&g);
    free(file);
  }
}

// model.safetensors.index.json, and the headers of two shards
static void fuzz_index(const uint8_t *bytes, size_t count) {
  FuzzPart rest = {bytes, count};
  const FuzzPart index = fuzz_next_part(&rest), a = fuzz_next_part(&rest);
  fuzz_write("model.safetensors.index.json", index.bytes, index.count);
  fuzz_write_header("a.safetensors", a);
  fuzz_write_header("b.safetensors", rest);
  SafetensorsSet set = {};
  fuzz_accepted = set_open_index(&set, fuzz_dir, &fuzz_error);
  if (!fuzz_accepted) fuzz_check_error(fuzz_error.text);
  for (int i = 0; fuzz_accepted && i < set.count; i++)
    for (int k = 0, in = -1; k < set.shard[i].file.count; k++) {
      const SafetensorsTensor *t = &set.shard[i].file.tensor[k];
      HOLDS(set_entry(&set, t->name, &in) == t && in == i);
    }
  set_close(&set);
}
static void fuzz_seeds_index() {
  fuzz_seed_text("{\"metadata\":{\"total_size\":40},"
                 "\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}\x1e"
                 "{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}\x1e"
                 "{\"y\":{\"dtype\":\"I32\",\"shape\":[4],\"data_offsets\":[0,16]}}");
  fuzz_seed_text("{\"weight_map\":{\"x\":\"a.safetensors\"}}\x1e"
                 "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}\x1e");
}

// ---- options in a file
// A --config file. Its options, written as OUT/options.txt, must give the same options again.
static void fuzz_config(const uint8_t *bytes, size_t count) {
  static Options asked, again;
  char *written = NULL;
  size_t written_bytes;
  int64_t n;
  fuzz_write("options.txt", bytes, count);
  const FuzzPath path = fuzz_path("options.txt");
  char *text = config_read(path.text, &n, &fuzz_error);
  options_default(&asked, &trainer_table);
  options_default(&again, &trainer_table);
  fuzz_accepted = text && options_add_config(&asked, path.text, text, &fuzz_error);
  free(text);
  if (!fuzz_accepted) { fuzz_check_error(fuzz_error.text); return; }
  FILE *f = open_memstream(&written, &written_bytes);
  options_write(f, &asked, &asked, 1, "");
  fclose(f);
  HOLDS(options_add_config(&again, path.text, written, &fuzz_error));
  for (int i = 0; i < OPTION_COUNT; i++) {
    char is[OPTION_TEXT_BYTES], was[OPTION_TEXT_BYTES];
    option_print(was, sizeof was, &asked, &option_specs[i]);
    option_print(is, sizeof is, &again, &option_specs[i]);
    HOLDS(!asked.given[i] || i == OPT_grad_accum || i == OPT_config || !strcmp(is, was));
  }
  free(written);
}
static void fuzz_seeds_config() {
  fuzz_seed_text("# a run\nlr = 0.001\nmax_steps: 1e3  # comment\n--model=small\nsave_model\n\n"
                 "prompt = \"a \\\"b\\\" \\n\"\n");
  fuzz_seed_text("dtype = bf16\nstrategy FULL_SHARD\nblock_size = 64\nmesh = 1x1\nout = 'a b'\nno-shuffle\nresume\n");
}

// ---- checkpoints ---------------------------------------------------------------------------------------------------
// The files of a checkpoint that the target needs.
static TensorMap fuzz_checkpoint_map() {
  TensorMap m = {};
  m.files = CHECKPOINT_FILES;
  for (int i = 0; i < CHECKPOINT_FILES; i++) { m.data_at[i] = 800; m.file_bytes[i] = 800 + (3 << 20) * (1 + i); }
  return m;
}
// trainer.json without its last line, the checksum of the rest, which is added here: step, checksums and options from
// it.
static void fuzz_checkpoint(const uint8_t *bytes, size_t count) {
  char word[] = "fuzz", *argv[] = {word};
  size_t sealed_bytes;
  char *sealed = checkpoint_sealed((const char *)bytes, count, &sealed_bytes);
  fuzz_write("trainer.json", (const uint8_t *)sealed, sealed_bytes);
  free(sealed);
  Start s = {};
  Options o;
  CheckpointState state;
  const TensorMap map = fuzz_checkpoint_map();
  uint32_t checksums[16];
  HOLDS(map_blocks(&map, 0) + map_blocks(&map, 1) <= 16);
  s.resume = true;
  bool ok = options_parse(&o, &trainer_table, 1, argv, &fuzz_error);
  HOLDS(ok);
  ok = start_open_checkpoint(&s, fuzz_dir, &fuzz_error);
  if (ok) s.json = checkpoint_parse(fuzz_dir, s.text, (size_t)s.text_bytes, &fuzz_error);
  HOLDS(!ok || s.json);
  ok = ok && checkpoint_state(fuzz_dir, s.json, &state, &fuzz_error) &&
       checkpoint_checksums(fuzz_dir, s.json, &map, checksums, &fuzz_error) &&
       start_options_of_checkpoint(&s, &o, &fuzz_error) &&
       options_resolve(&o, 1, 1, &fuzz_error);
  fuzz_accepted = ok;
  if (!ok) fuzz_check_error(fuzz_error.text);
  cJSON_Delete(s.json);
  free(s.text);
}
static void fuzz_seeds_checkpoint() {
  char word[] = "fuzz", *argv[] = {word}, *text;
  size_t bytes;
  Options o;
  const TensorMap map = fuzz_checkpoint_map();
  const uint32_t checksums[16] = {1, 2, 3};
  HOLDS(options_parse(&o, &trainer_table, 1, argv, &fuzz_error));
  HOLDS(options_resolve(&o, 1, 1, &fuzz_error));
  FILE *f = open_memstream(&text, &bytes);
  fprintf(f, "{\n\"format_version\":%d,\"serial\":3,\"step\":12,\"state\":{\"updates\":12,\"good_steps\":4,"
          "\"loss_scale\":65536,\"beta1_power\":0.25,\"beta2_power\":0.5},\"quality\":{\"loss\":3.5,"
          "\"valid_loss\":3.75,\"best_valid_loss\":null},\"corpus\":{\"hash\":\"00112233445566aa\"},\"config\":{",
          CHECKPOINT_VERSION);
  log_config(f, &o);
  fprintf(f, "},\n");
  checkpoint_write_tail(f, &map, checksums, NULL, 0, 0);
  fclose(f);
  fuzz_seed(text, bytes);
  free(text);
}

// ---- the rendezvous (launch/rdzv_wire.h, launch/rdzv_file.h) ------------------------------------------------------
// The first byte says which end hears the rest, in pieces of its low bits. Without the token no end opens, and it
// answers with no more than a challenge or a proof, and a rejection.
static void fuzz_rdzv_link(const uint8_t *bytes, size_t count) {
  const ProveKey key = rdzv_token_key("0123456789abcdef", 16);
  const size_t piece = count ? 1 + bytes[0] % 64 : 1;
  RdzvLink k;
  RdzvFrame f;
  size_t used = 0;
  rdzv_link_open(&k, &key, count && bytes[0] & 128);
  const size_t said = k.out.n;
  int got = 0;
  for (size_t at = 1; at < count && got >= 0; at += piece) {
    rdzv_add(&k.in, bytes + at, count - at < piece ? count - at : piece);
    got = rdzv_link_next(&k, &f, &used);
    HOLDS(got <= 0 && k.prove.phase != PHASE_OPEN && k.out.n - said <= 2 * RDZV_HEAD + PROVE_NONCE);
    HOLDS(got < 0 || k.in.n <= RDZV_HEAD + RDZV_EARLY_MAX + piece);
  }
  fuzz_accepted = got >= 0;
  rdzv_link_close(&k);
}
static void fuzz_seeds_rdzv_link() {
  const ProveKey key = rdzv_token_key("0123456789abcdef", 16);
  RdzvLink client;
  RdzvBytes b = {};
  rdzv_link_open(&client, &key, true);
  rdzv_add(&b, "\x07", 1);
  rdzv_add(&b, client.out.p, client.out.n);
  fuzz_seed(b.p, b.n);
  const uint8_t proof[RDZV_HEAD + PROVE_MAC] = {PROVE_PROOF, 0, 0, 0, PROVE_MAC, 0, 0, 0};
  rdzv_add(&b, proof, sizeof proof);
  fuzz_rdzv_link(b.p, b.n);                      // a proof of another token: rejected, so not a seed
  b.n = 0;
  rdzv_add(&b, "\x8f", 1);
  const uint8_t challenge[RDZV_HEAD] = {PROVE_CHALLENGE, 0, 0, 0, PROVE_NONCE, 0, 0, 0};
  rdzv_add(&b, challenge, sizeof challenge);
  rdzv_add(&b, client.prove.client, PROVE_NONCE);
  fuzz_seed(b.p, b.n);
  rdzv_bytes_free(&b);
  rdzv_link_close(&client);
}
static void fuzz_rdzv_printable(const char *text, bool lines) {
  for (const char *c = text; *c; c++) HOLDS((uint8_t)*c >= 32 ? *c != 127 : lines && *c == '\n');
}
// What a process that knows the token may send: the first byte says as what it is read.
static void fuzz_rdzv_payload(const uint8_t *bytes, size_t count) {
  static RdzvInfo i;
  RdzvPlan q;
  RdzvEnd e;
  RdzvWords w;
  if (!count) return;
  const uint8_t *p = bytes + 1;
  const size_t n = count - 1;
  if (bytes[0] == '0') fuzz_accepted = rdzv_info_read(&i, p, n);
  if (bytes[0] == '0' && fuzz_accepted)
    for (const char *text : {i.host, i.machine, i.build, i.mpi, i.program, i.before}) fuzz_rdzv_printable(text, false);
  if (bytes[0] == '0' && fuzz_accepted) fuzz_rdzv_printable(i.options, true);
  if (bytes[0] == '1') fuzz_accepted = rdzv_plan_read(&q, p, n);
  if (bytes[0] == '1' && fuzz_accepted)
    HOLDS(strlen(q.job) == 32 && !strchr(q.job, '/') && q.first >= 0 && q.ranks >= (q.start ? 0 : 1) &&
          q.first + q.ranks <= q.world && q.sequences >= 0 && q.accum >= 0);
  if (bytes[0] == '2') fuzz_accepted = rdzv_end_read(&e, p, n);
  if (bytes[0] == '2' && fuzz_accepted) fuzz_rdzv_printable(e.text, false);
  if (bytes[0] != '3' || !rdzv_words_read(&w, p, n)) return;
  fuzz_accepted = true;
  HOLDS(w.count > 0 && w.count <= RDZV_WORDS_MAX && !w.word[w.count]);
  for (int k = 0; k < w.count; k++) fuzz_rdzv_printable(w.word[k], false);
  const char *why = rdzv_daemon_rejected(&w);
  if (why) fuzz_check_error(why);
  else HOLDS(!strcmp(w.word[0], "orted") || !strcmp(w.word[0], "prted"));
  rdzv_words_free(&w);
}
static void fuzz_seeds_rdzv_payload() {
  static RdzvInfo i = {1, 2, 3, 4, "host", "machine", "build", "mpi", "/program", "--lr 1\n", "", 0};
  RdzvPlan q = {1, 2, 3, 2, 1, 1, "0123456789abcdef0123456789abcdef", "host", 1, 1, 8, 2};
  char name[] = "orted", flag[] = "-mca", ess[] = "ess", env[] = "env";
  RdzvWords w = {{name, flag, ess, env}, 4};
  for (int kind = 0; kind < 4; kind++) {
    RdzvBytes b = {};
    const char first = (char)('0' + kind);
    rdzv_add(&b, &first, 1);
    if (kind == 0) rdzv_info_write(&b, &i);
    if (kind == 1) rdzv_plan_write(&b, &q);
    if (kind == 2) rdzv_end_write(&b, 85, "text");
    if (kind == 3) rdzv_words_write(&b, &w);
    fuzz_seed(b.p, b.n);
    rdzv_bytes_free(&b);
  }
}
// Words, one per line: as a daemon's command, and as what mpirun gives its remote agent. What is taken has no word with
// a meaning for a shell, and no parameter but those that are known.
static void fuzz_rdzv_daemon(const uint8_t *bytes, size_t count) {
  char *text = (char *)malloc(count + 1), *rest = text, *word;
  RdzvWords w = {}, found;
  memcpy(text, bytes, count);
  text[count] = 0;
  while ((word = strsep(&rest, "\n")) && w.count < RDZV_WORDS_MAX) w.word[w.count++] = word;
  const char *why = rdzv_daemon_rejected(&w);
  fuzz_accepted = !why;
  for (int i = 1; i < w.count && !why; i++) {
    HOLDS(!strpbrk(w.word[i], " \t\"'`$|&<>{}*?!\\~#"));
    HOLDS(i % 3 != 1 || !strcmp(w.word[i], "-mca") || !strcmp(w.word[i], "--prtemca"));
    HOLDS(i % 3 != 2 || rdzv_param(&rdzv_daemons[0], w.word[i]) || rdzv_param(&rdzv_daemons[1], w.word[i]));
  }
  if (rdzv_daemon_from(&found, w.count, w.word)) {
    HOLDS(found.count % 3 == 1 && (!strcmp(found.word[0], "orted") || !strcmp(found.word[0], "prted")));
    rdzv_words_free(&found);
  }
  free(text);
}
static void fuzz_seeds_rdzv_daemon() {
  fuzz_seed_text("orted\n-mca\ness\nenv\n-mca\ness_base_jobid\n12\n-mca\ness_base_vpid\n1\n-mca\n"
                 "ess_base_num_procs\n2\n-mca\norte_node_regex\nvm,node-[2:10-20]@0(3)\n-mca\norte_hnp_uri\n"
                 "12.0;tcp://10.0.0.1:4\n-mca\nplm\nrsh");
  fuzz_seed_text("prted\n--prtemca\ness\nenv\n--prtemca\ness_base_nspace\nprterun-vm-7@0\n--prtemca\n"
                 "ess_base_vpid\n1\n--prtemca\ness_base_num_procs\n2\n--prtemca\nprte_hnp_uri\n"
                 "prterun-vm-7@0.0;tcp4://10.0.0.1:4\n--prtemca\nplm\nssh");
}
// Host 0's file, and HOST:PORT.
static void fuzz_rdzv_text(const uint8_t *bytes, size_t count) {
  char *text = (char *)malloc(count + 1), host[64];
  RdzvOffer o;
  int port = 0;
  memcpy(text, bytes, count);
  text[count] = 0;
  if (rdzv_endpoint(text, host, sizeof host, &port)) {
    HOLDS(*host && port > 0 && port < 65536 && !strpbrk(host, " /\n"));
    fuzz_accepted = true;
  }
  if (rdzv_offer_parse(&o, text)) {
    HOLDS(rdzv_is_hex(o.job, 32) && rdzv_is_hex(o.token, 64) && o.at.count <= NET_ADDRESSES_MAX);
    for (int i = 0; i < o.at.count; i++) HOLDS(o.at.at[i].bytes && ((sockaddr_in *)&o.at.at[i].to)->sin_port);
    fuzz_accepted = true;
  }
  free(text);
}
static void fuzz_seeds_rdzv_text() {
  fuzz_seed_text("train_gpt_fsdp rendezvous 1\njob 0123456789abcdef0123456789abcdef\n"
                 "token 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nat 10.0.0.1 29400\n"
                 "at fd00::1 29401\n");
  fuzz_seed_text("10.0.0.1:29400");
  fuzz_seed_text("[fd00::1]:29400");
}

// ---- what ranks did last
// Two flight records: each is read by itself, and what is read is compared and printed.
static void fuzz_flight(const uint8_t *bytes, size_t count) {
  static const char *const names[] = {"flight-0.json", "flight-1.json"};
  FuzzPart rest = {bytes, count};
  FlightRecord r[2];
  int good = 0;
  char *text = NULL;
  Error error = {};
  size_t text_bytes = 0;
  for (const char *name : names) {
    const FuzzPart part = fuzz_next_part(&rest);
    fuzz_write(name, part.bytes, part.count);
    FlightRecord *x = &r[good];
    if (!flight_read(x, fuzz_path(name).text, &error)) {
      fuzz_check_error(error.text);
      flight_close(x);
      continue;
    }
    HOLDS(x->rank >= 0 && x->rank < x->world && strlen(x->run) == 16 && x->rows <= FLIGHT_ROWS_MAX);
    for (int i = 0; i < x->rows; i++) {
      HOLDS((unsigned)x->row[i].kind < FLIGHT_KIND_COUNT && x->row[i].s <= 0 && (!i || x->row[i].s >= x->row[i - 1].s));
      HOLDS(x->row[i].kind != FLIGHT_BEGIN || (x->row[i].number > 0 && x->row[i].what));
    }
    good++;
  }
  fuzz_accepted = good == 2 && flight_compare(r, good, &error);
  if (good == 2 && !fuzz_accepted) fuzz_check_error(error.text);
  if (good && (good == 1 || fuzz_accepted)) {
    FILE *f = open_memstream(&text, &text_bytes);
    flight_print(f, r, good);
    fclose(f);
    for (const char *c = text; *c; c++) HOLDS(*c == '\n' || ((uint8_t)*c >= 32 && (uint8_t)*c < 127));
    free(text);
  }
  for (int i = 0; i < good; i++) flight_close(&r[i]);
}
static void fuzz_seeds_flight() {
  static char both[1 << 14];
  for (int behind = 0; behind < 2; behind++) {
    size_t n = 0;
    for (int rank = 0; rank < 2; rank++) {
      const FlightWho who = {"1.2.3", "host", "a \"cause\"", "forward", 0xabcd, rank, 2 + behind, 77};
      const FuzzPath path = fuzz_path("seed");
      int64_t bytes = 0;
      flight.events.count = flight.ops.count = 0;
      flight_step(5);
      for (int i = 0; i < 3 + rank * behind; i++) { flight_op("fill"); flight_end(flight_begin("the gather", i)); }
      if (flight_write(path.text, &who)) abort();
      char *text = file_get(path.text, sizeof both, &bytes);
      n += (size_t)snprintf(both + n, sizeof both - n, "%s%s", rank ? "\x1e" : "", text);
      free(text);
    }
    fuzz_seed(both, n);
  }
}

// ---- libFuzzer -----------------------------------------------------------------------------------------------------
static const FuzzTarget fuzz_targets[] = {
    {"safetensors", fuzz_safetensors, fuzz_seeds_safetensors, 4096},
    {"safetensors_header", fuzz_safetensors_header, fuzz_seeds_safetensors_header, 4096},
    {"tokenizer_json", fuzz_tokenizer_json, fuzz_seeds_tokenizer_json, 16384},
    {"nfc", fuzz_nfc, fuzz_seeds_nfc, 256},
    {"tokenizer_pair", fuzz_tokenizer_pair, fuzz_seeds_tokenizer_pair, 16384},
    {"tokens", fuzz_tokens, fuzz_seeds_tokens, 1024},
    {"token_file", fuzz_token_file, fuzz_seeds_token_file, 2048},
    {"megatron", fuzz_megatron, fuzz_seeds_megatron, 1024},
    {"parquet", fuzz_parquet, fuzz_seeds_parquet, 32768},
    {"gzip", fuzz_gzip, fuzz_seeds_gzip, 2048},
    {"zstd", fuzz_zstd, fuzz_seeds_zstd, 2048},
    {"chat_line", fuzz_chat_line, fuzz_seeds_chat_line, 2048},
    {"chat_template", fuzz_chat_template, fuzz_seeds_chat_template, 4096},
    {"chat_file", fuzz_chat_file, fuzz_seeds_chat_file, 2048},
    {"prompts", fuzz_prompts, fuzz_seeds_prompts, 2048},
    {"eval", fuzz_eval, fuzz_seeds_eval, 2048},
    {"encode_state", fuzz_encode_state, fuzz_seeds_encode_state, 1024},
    {"llmc", fuzz_llmc, fuzz_seeds_llmc, 2048},
    {"hf", fuzz_hf, fuzz_seeds_hf, 8192},
    {"nf4", fuzz_nf4, fuzz_seeds_nf4, 256},
    {"gguf", fuzz_gguf, fuzz_seeds_gguf, 16384},
    {"index", fuzz_index, fuzz_seeds_index, 4096},
    {"config", fuzz_config, fuzz_seeds_config, 2048},
    {"checkpoint", fuzz_checkpoint, fuzz_seeds_checkpoint, 8192},
    {"rdzv_link", fuzz_rdzv_link, fuzz_seeds_rdzv_link, 2048},
    {"rdzv_payload", fuzz_rdzv_payload, fuzz_seeds_rdzv_payload, 2048},
    {"rdzv_daemon", fuzz_rdzv_daemon, fuzz_seeds_rdzv_daemon, 2048},
    {"rdzv_text", fuzz_rdzv_text, fuzz_seeds_rdzv_text, 2048},
    {"flight", fuzz_flight, fuzz_seeds_flight, 8192}};

static void fuzz_make_seeds(const char *dir) {
  for (const FuzzTarget &t : fuzz_targets) {
    snprintf(fuzz_seed_dir, sizeof fuzz_seed_dir, "%s/%s", dir, t.name);
    fuzz_seed_count = 0;
    if (mkdir(fuzz_seed_dir, 0777) && errno != EEXIST) {
      fprintf(stderr, "fuzz: cannot make %s: %s\n", fuzz_seed_dir, strerror(errno));
      _exit(1);
    }
    fuzz_target = &t;
    t.seeds();
    if (fuzz_seed_count) continue;
    fprintf(stderr, "fuzz: %s has no seeds: run this in the root of the repository\n", t.name);
    fuzz_clean();
    _exit(1);
  }
}

extern "C" int LLVMFuzzerInitialize(int *argc, char ***argv) {
  const char *wanted = getenv("FUZZ_TARGET"), *mode = *argc > 1 ? (*argv)[1] : "", *dir = getenv("FUZZ_DIR");
  const bool list = !strcmp(mode, "list"), seeds = !strcmp(mode, "seeds") && *argc == 3;
  for (const FuzzTarget &t : fuzz_targets) {
    if (list) printf("%s\n", t.name);
    if (wanted && !strcmp(t.name, wanted)) fuzz_target = &t;
  }
  fflush(stdout);
  if (list) _exit(0);
  snprintf(fuzz_dir, sizeof fuzz_dir, "%s/fuzz_XXXXXX", dir ? dir : "/dev/shm");
  fuzz_make_byte_entries();
  if (!mkdtemp(fuzz_dir)) { fprintf(stderr, "fuzz: cannot make %s: %s\n", fuzz_dir, strerror(errno)); _exit(1); }
  if (seeds) { fuzz_make_seeds((*argv)[2]); fuzz_clean(); _exit(0); }
  atexit(fuzz_clean);
  if (fuzz_target) return 0;
  fprintf(stderr, "fuzz: FUZZ_TARGET names the target; `%s list` shows them\n", **argv);
  _exit(2);
}
// Every other mutation changes one decimal number: to a neighbour, to twice it, to 0, to 2^53, or to another number of
// the input. Random bytes would rarely keep a JSON text valid.
extern "C" size_t LLVMFuzzerMutate(uint8_t *bytes, size_t count, size_t most);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed) {
  auto number = [&](uint64_t random, size_t *at) {               // the digits near a random place; 0: there are none
    size_t n = 0;
    for (*at = count ? random % count : 0; *at < count && (bytes[*at] < '0' || bytes[*at] > '9'); ++*at) {}
    while (*at + n < count && n < 19 && bytes[*at + n] >= '0' && bytes[*at + n] <= '9') n++;
    return n;
  };
  auto value = [&](size_t at, size_t n) {
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v = v * 10 + (uint64_t)(bytes[at + i] - '0');
    return v;
  };
  size_t at, other;
  const size_t n = number(data_random(seed, 1), &at), others = number(data_random(seed, 2), &other);
  if (seed % 2 || !n) return LLVMFuzzerMutate(bytes, count, most);
  const uint64_t v = value(at, n), choices[] = {v + 1, v - 1, v * 2, 0, 1ull << 53, value(other, others)};
  char text[24];
  const int digits = snprintf(text, sizeof text, "%llu", (unsigned long long)choices[data_random(seed, 3) % 6]);
  const size_t changed = count - n + (size_t)digits;
  if (changed > most) return LLVMFuzzerMutate(bytes, count, most);
  memmove(bytes + at + digits, bytes + at + n, count - at - n);
  memcpy(bytes + at, text, (size_t)digits);
  return changed;
}
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  fuzz_error = {};
  if (count <= fuzz_target->most_bytes) fuzz_target->run(bytes, count);
  return 0;
}
