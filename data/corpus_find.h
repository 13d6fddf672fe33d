// corpus_find.h: finds the texts or token files that --data names, and decides which of them, or which part of one, is
// trained on and which is held out.
//
//   1 text            what is text and what is not; several files as one text; the end that is held out; what else a
//                     directory has
//   2 token files     files, directories, patterns, lists with weights; the validation files beside them
//   3 the search      a file, a directory, a list
//
// Conventions
//   - The result depends on names and bytes alone, in the order of strcmp: it is the same on every run and machine.
//   - No choice is silent: if a name could mean several things, a warning says which is taken, or an error says what to
//     type.
//   - Only regular files are opened, and never in a way that could block.
#pragma once
#include "base/newfile/newfile.h"
#include <ctype.h>
#include <glob.h>
#include <limits.h>

#include "data.h"

// TextWant: what a file must be: text; lines of JSON; any bytes, taken as text (--data_as text). Text: a text;
// document: offsets at which documents after the first start. Found: what --data resolves to: texts, or token files by
// their paths.
enum TextWant { WANT_TEXT, WANT_LINES, WANT_BYTES };
struct Text {
  const uint8_t *bytes;
  size_t numel, mapped_bytes;
  void *mapped, *owned;
  double nats;
  size_t *document, documents;
};
// A training file of conversations that was read. schema: schema of its first record; records: how many are trained on;
// held, held_bytes: records held out for validation, and their bytes of the file's `bytes`; last: these records are the
// last ones of the file.
struct RecordPart { char form[24]; DataContainer container; int64_t records, held, held_bytes, bytes; bool last; };
struct Found {
  Text text[SPLIT_COUNT];      // nats: of generated text
  DataNames tokens[SPLIT_COUNT];                 // token files or conversations; empty: text, or not found yet
  bool records;                                  // `tokens` are files of conversations
  RecordPart *part;                              // [tokens[SPLIT_TRAIN].count] of each training file of conversations
  int sources, source_files[SOURCES_MAX];       // mixture: number of sources; how many training files each has
  SplitSource mixed[SOURCES_MAX];               // mixture: names and weights of the sources
  const char *val_data;                          // --val_data, or ""
  TextWant want;                                 // what text files must be
  char source[DATA_PATH_BYTES + 128];  // where it comes from, in words
  DataWarnings *warnings;
};
static inline void text_free(Text *t) {
  free(t->owned);
  if (t->mapped) data_unmap(t->mapped, t->mapped_bytes);
  free(t->document);
  *t = {};
}
static inline void found_free(Found *f) {
  for (Text &t : f->text) text_free(&t);
  for (DataNames &n : f->tokens) data_names_free(&n);
  free(f->part);
}

// ================================================================================================ 1 text
// File names of a split's text, those of this program first.
static const char *const text_names[SPLIT_COUNT][5] = {
  {"train.txt", "wiki.train.tokens", "wiki.train.raw"},
  {"valid.txt", "validation.txt", "val.txt", "wiki.valid.tokens", "wiki.valid.raw"},
  {"test.txt", "wiki.test.tokens", "wiki.test.raw"}};

// File names of a split's conversations, without the part after the dot.
static const char *const chat_split_names[SPLIT_COUNT][3] = {{"train"}, {"valid", "validation", "val"}, {"test"}};
static inline bool text_find(const char *dir, int split, char *path, size_t path_bytes) {
  for (const char *name : text_names[split]) {
    if (!name) break;
    if (data_format(path, path_bytes, "%s/%s", dir, name) && access(path, F_OK) == 0) return true;
  }
  return false;
}

// Whether bytes are text in units of `width` bytes: no unit is a control character, or above 0x10ffff.
static inline bool text_decodes(const uint8_t *p, size_t n, size_t width, bool big) {
  for (size_t i = 0; i + width <= n; i += width) {
    uint32_t c = 0;
    for (size_t k = 0; k < width; k++) c = c << 8 | p[i + (big ? k : width - 1 - k)];
    if (c > 0x10ffff || c == 127 || (c < 32 && !(c >= '\t' && c <= '\r') && c != 27)) return false;
  }
  return true;
}
// The encoding of a text that is clearly not UTF-8, under iconv's name; NULL: no other encoding was recognised.
static inline const char *text_encoding(const uint8_t *p, size_t n) {
  if (n >= 4 && (!memcmp(p, "\xff\xfe\0\0", 4) || !memcmp(p, "\0\0\xfe\xff", 4))) return "UTF-32";
  if (n >= 2 && (!memcmp(p, "\xff\xfe", 2) || !memcmp(p, "\xfe\xff", 2))) return "UTF-16";
  size_t zeros[4] = {}, all = 0;
  n = n < 65536 ? n / 4 * 4 : 65536;
  for (size_t i = 0; i < n; i++) zeros[i % 4] += !p[i];
  for (size_t x : zeros) all += x;
  if (n < 16 || all < n / 8) return NULL;
  const size_t even = zeros[0] + zeros[2], odd = zeros[1] + zeros[3], width = all > n * 5 / 8 ? 4 : 2;
  const bool big = width == 4 ? zeros[0] >= zeros[3] : even > odd;
  if (width == 2 && (big ? even <= 4 * odd : odd <= 4 * even)) return NULL;
  if (!text_decodes(p, n, width, big)) return NULL;              // any file of small numbers has as many zeros
  return width == 4 ? big ? "UTF-32BE" : "UTF-32LE" : big ? "UTF-16BE" : "UTF-16LE";
}
// The number of control characters that text does not have, among the first `n` bytes.
static inline size_t text_controls(const uint8_t *p, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; i++) count += (p[i] < 32 && !(p[i] >= '\t' && p[i] <= '\r') && p[i] != 27) || p[i] == 127;
  return count;
}
// Bytes of a text that are not UTF-8: `count` of `of` bytes; the first one is `first`, at byte `at`.
struct TextBad { int64_t count, of, at; uint8_t first; };
static inline void text_count_bad(TextBad *b, const uint8_t *p, size_t n) {
  for (size_t at = 0; (at = text_bad_utf8(p, n, at)) < n; at++, b->count++)
    if (!b->count) b->at = b->of + (int64_t)at, b->first = p[at];
  b->of += (int64_t)n;
  liveness_progress();
}
// Fails if more than 1 % of a text's bytes are not UTF-8; if fewer are, writes a warning to `words`. With WANT_BYTES it
// never fails.
static inline bool text_check_bad(const TextBad *b, const char *path, TextWant want, char *words, size_t room,
                                  Error *e) {
  enum { SHARE = 100 };
  words[0] = 0;
  if (!b->count) return true;
  data_format(words, room, "%s: %lld of %lld bytes are no UTF-8, the first is 0x%02x at byte %lld; if it is text in "
           "Windows-1252 or Latin-1: iconv -f WINDOWS-1252 -t UTF-8 %s > NEW.txt", path, (long long)b->count,
           (long long)b->of, b->first, (long long)b->at + 1, path);
  return b->count <= b->of / SHARE || want == WANT_BYTES ||
         fail_with(e, EXIT_MISSING, "%s; --data_as text trains on them as they are", words);
}
// Fails if bytes are not text: if more than 1 / 32 of the first, middle or last 64 KiB are control characters. The
// first byte is byte `begin` of the text.
static inline bool text_check_controls(const char *path, const uint8_t *p, size_t n, int64_t begin, Error *e) {
  const size_t looked = n < 65536 ? n : 65536, places[] = {0, (n - looked) / 2, n - looked};
  for (size_t at : places) {                     // a file of weights may start with a lot of text
    const size_t controls = text_controls(p + at, looked);
    if (controls >= 16 && controls > looked / 32)
      return fail_with(e, EXIT_MISSING, "%s is not text: %zu of %zu bytes from byte %lld on are control characters; "
                       "tokens are read from FILE.bin, text must be UTF-8", path, controls, looked, (long long)begin +
                       (long long)at);
  }
  return true;
}
// Fails if the start of a file is not text, or not what `want` asks for. *looks: for a warning, the format that a file
// named as text looks like; NULL: plain text.
static inline bool text_check(const char *path, const uint8_t *p, size_t n, TextWant want, const char **looks,
                              Error *e) {
  const char *foreign = file_foreign(p, n), *encoding = text_encoding(p, n);
  if (foreign) return fail_with(e, EXIT_MISSING, "%s is %s; expected: text", path, foreign);
  if (encoding)
    return fail_with(e, EXIT_MISSING, "%s is text in %s; expected: UTF-8; run iconv -f %s -t UTF-8 %s > NEW.txt", path,
                     encoding, encoding, path);
  if (!text_check_controls(path, p, n, 0, e)) return false;
  const FileForm form = form_of(path_base(path), p, n);
  const bool as_named = want == WANT_BYTES || (want == WANT_TEXT && form_name_is_text(path));
  *looks = want == WANT_TEXT && as_named && form.container ? container_words(form.container).what : NULL;
  return as_named || want == WANT_LINES || form_check(&form, path, e);
}
static inline void text_add_document(Text *t, size_t at) {
  if (!(t->documents & (t->documents - 1)))      // room for a power of two
    t->document = (size_t *)realloc(t->document, sizeof(size_t) * (t->documents ? 2 * t->documents : 1));
  if (!t->document) die_missing("data: no memory for the starts of %zu documents", t->documents);
  t->document[t->documents++] = at;
}
// Whether the line at p, which must end in a newline before `end`, is the title of a WikiText article, " = Title = ":
// not a section's, " = = Title = = ", and followed by a blank line, which formulas in the text are not.
static inline bool text_is_title(const uint8_t *p, const uint8_t *end) {
  const uint8_t *newline = (const uint8_t *)memchr(p, '\n', (size_t)(end - p));
  const size_t n = newline ? (size_t)(newline - p) : 0, next = newline ? (size_t)(end - newline) : 0;
  return n > 6 && !memcmp(p, " = ", 3) && p[3] != '=' && !memcmp(newline - 3, " = ", 3) && newline[-4] != '=' &&
         next >= 3 && (!memcmp(newline, "\n \n", 3) || !memcmp(newline, "\n\n", 2));
}
// The title of the article with which a text starts; NULL: it starts with none, and is one document.
static inline const uint8_t *text_first_title(const uint8_t *p, const uint8_t *end) {
  while (p < end && (*p == '\n' || (*p == ' ' && p + 1 < end && p[1] == '\n'))) p++;
  return p < end && text_is_title(p, end) ? p : NULL;
}
static inline void text_find_articles(Text *t) {
  const uint8_t *end = t->bytes + t->numel, *p = text_first_title(t->bytes, end);
  while (p && (p = (const uint8_t *)memmem(p, (size_t)(end - p), "\n = ", 4))) {
    const bool blank = p[-1] == '\n' || (p[-1] == ' ' && p[-2] == '\n');
    if (blank && text_is_title(++p, end)) text_add_document(t, (size_t)(p - t->bytes));
    else p += !blank;
  }
}
static inline bool text_check_words(const char *path, const uint8_t *p, size_t n, Error *e) {
  for (size_t at = 0; n - at > TEXT_WORD_BYTES; liveness_progress()) {
    const uint8_t *blank = (const uint8_t *)memrchr(p + at + 1, ' ', TEXT_WORD_BYTES);
    const uint8_t *line = (const uint8_t *)memrchr(p + at + 1, '\n', TEXT_WORD_BYTES);
    if (!blank && !line)
      return fail_with(e, EXIT_MISSING, "%s has no space or newline in %zu MiB after byte %zu: it is no text to "
                       "cut into words", path, TEXT_WORD_BYTES >> 20, at);
    at = (size_t)((blank > line ? blank : line) - p);
  }
  return true;
}
// Opens a text. *looks: as in text_check.
static inline bool text_open_file(Text *t, const char *path, DataWarnings *warnings, Error *e, TextWant want,
                                  const char **looks) {
  char words[1400] = "";
  TextBad bad = {};
  t->mapped = data_map(path, &t->mapped_bytes, e);
  t->bytes = (const uint8_t *)t->mapped;
  t->numel = t->mapped_bytes;
  bool ok = t->mapped && text_check(path, t->bytes, t->numel, want, looks, e);
  if (ok) {
    text_count_bad(&bad, t->bytes, t->numel);
    ok = text_check_bad(&bad, path, want, words, sizeof words, e) && text_check_words(path, t->bytes, t->numel, e);
  }
  if (!ok) { text_free(t); return false; }
  if (words[0]) data_warning(warnings, "%s", words);
  text_find_articles(t);
  return true;
}
static inline bool text_open(Text *t, const char *path, DataWarnings *warnings, Error *e,
                             TextWant want = WANT_TEXT) {
  const char *looks = NULL;
  if (!text_open_file(t, path, warnings, e, want, &looks)) return false;
  if (looks) data_warning(warnings, "%s is %s: braces and keys are trained on like text", path, looks);
  return true;
}

// ---- directories
// Kinds of files in a directory: those that could be trained on (HAS_TEXTS to HAS_TOKENS), and those that are left out.
// Directory: how many there are of each kind, and the first one's name.
enum DirectoryPart { HAS_TEXTS, HAS_RECORDS, HAS_TABLES, HAS_TOKENS, HAS_NOTES, HAS_NOTHING, HAS_SPECIAL, HAS_UPPER,
                     HAS_TESTS, HAS_HELD, HAS_UNUSED, HAS_DIRECTORIES, HAS_OTHERS, HAS_PARTS };
struct Directory { int count[HAS_PARTS]; char first[HAS_PARTS][80]; };
// Which files of a directory are read: ONE: one kind; SPLITS: one kind, and only files named for the splits; RECORDS:
// conversations in any file format; ALL: all texts.
enum DirectoryUse { DIRECTORY_ONE, DIRECTORY_SPLITS, DIRECTORY_RECORDS, DIRECTORY_ALL };
// Whether a file only describes others: LICENSE, README.txt, NOTICE-2.md and similar names.
static inline bool name_is_note(const char *name) {
  int many = 5;                                  // the first 5 words also with a suffix: LICENSE-MIT.txt
  for (const char *word : {"license", "licence", "notice", "readme", "copying", "copyright", "author", "contributor",
                           "contributing", "changelog", "citation", "security", "code_of_conduct", "requirement"}) {
    const char *rest = name + strlen(word);
    const bool variants = many-- > 0;
    if (strncasecmp(name, word, strlen(word))) continue;
    rest += (*rest | 32) == 's';
    if (!*rest || *rest == '.' || (variants && !isalpha((unsigned char)*rest))) return true;
  }
  return false;
}
static inline DirectoryPart name_part(const char *name) {
  if (form_name_ends(name, ".txt") || (!strncmp(name, "wiki.", 5) && form_name_is_text(name))) return HAS_TEXTS;
  if (form_name_ends(name, ".jsonl") || form_name_ends(name, ".ndjson")) return HAS_RECORDS;
  return name_ends(name, ".parquet") ? HAS_TABLES : name_ends(name, ".bin") ? HAS_TOKENS : HAS_OTHERS;
}
static inline bool name_is_split(const char *name) {
  bool is = false;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    for (const char *text : text_names[i]) is = is || (text && !strcmp(name, text));
    for (const char *stem : chat_split_names[i])
      is = is || (stem && !strncmp(name, stem, strlen(stem)) && name[strlen(stem)] == '.');
  }
  return is;
}
static inline Directory directory_look(const char *path, DirectoryUse use) {
  Directory d = {};
  directory_each(path, [&](const char *name, const char *at) {
    char lower[NAME_MAX + 1];
    struct stat st;
    size_t n = 0;
    if (name[0] == '.') return;
    for (; name[n] && n < NAME_MAX; n++) lower[n] = (char)tolower((unsigned char)name[n]);
    lower[n] = 0;
    DirectoryPart part = name_part(name);
    const bool spelled = part == HAS_OTHERS && name_part(lower) != HAS_OTHERS;
    if (stat(at, &st)) part = HAS_NOTHING;
    else if (S_ISDIR(st.st_mode)) part = HAS_DIRECTORIES;
    else if (!S_ISREG(st.st_mode)) part = HAS_SPECIAL;
    else if (name_is_note(name)) part = HAS_NOTES;
    else if (use == DIRECTORY_SPLITS && name_is_split(name) && part == HAS_OTHERS) part = HAS_RECORDS;
    else if (spelled) part = HAS_UPPER;
    else if (use == DIRECTORY_RECORDS && part < HAS_TOKENS && !strncmp(name, "test", 4)) part = HAS_TESTS;
    else if (use == DIRECTORY_RECORDS && part < HAS_TOKENS && !strncmp(name, "val", 3)) part = HAS_HELD;
    else if (use == DIRECTORY_SPLITS && part < HAS_TOKENS && !name_is_split(name) && part != HAS_TABLES)
      part = HAS_UNUSED;
    if (!d.count[part]++ || strcmp(name, d.first[part]) < 0) data_format(d.first[part], sizeof *d.first, "%s", name);
  });
  return d;
}
// Fails if a directory has two kinds of files that could be trained on; adds a warning of the files that are left out.
static inline bool directory_check(const char *path, const char *option, DirectoryUse use, DataWarnings *warnings,
                                   Error *e) {
  static const char *const kinds[] = {"text", "records", "tables", "tokens", "licence or note", "link to nothing",
                                      "no regular file", "ending in upper case", "named test...",
                                      "named val..., not trained on", "not named train, valid or test", "directory",
                                      "of another kind"};
  const Directory d = directory_look(path, use);
  char line[1024] = "";
  int before = -1;
  for (int i = HAS_TEXTS; i <= HAS_TOKENS && use != DIRECTORY_ALL; i++) {
    if (!d.count[i] || (use == DIRECTORY_ONE && before == HAS_TEXTS && i == HAS_TOKENS)) continue;       // find_unnamed
    if (before >= 0 && !(use == DIRECTORY_RECORDS && i == HAS_TABLES))
      return fail_with(e, EXIT_USAGE, "%s %s has %s (%s) and %s (%s): name those to train on, by a list or a pattern, "
                       "or put the others elsewhere", option, path, kinds[before], d.first[before], kinds[i],
                       d.first[i]);
    before = i;
  }
  for (int i = use == DIRECTORY_ALL ? HAS_TOKENS : HAS_NOTES; i < HAS_PARTS; i++)
    if (d.count[i] && (i != HAS_OTHERS || !d.count[HAS_TOKENS]))   // beside tokens are what made them
      text_add(line, sizeof line, "%s%d %s (%s%s)", line[0] ? ", " : "", d.count[i], kinds[i], d.first[i],
               d.count[i] > 1 ? ", ..." : "");
  if (line[0] && warnings) data_warning(warnings, "%s %s: left out: %s", option, path, line);
  return true;
}

// Joins files of a directory, in the order of `names`, into one text with one document per file; a file that does not
// end in a newline gets one.
static inline bool text_join(Text *all, const char *dir, const DataNames *names, TextWant want, DataWarnings *warnings,
                             Error *e) {
  const size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *out = NULL;
  size_t n = 0, capacity = 0;
  int json = 0, first_json = 0;
  for (int i = 0; i < names->count; i++) {
    char path[PATH_MAX];
    Text t = {};
    const char *looks = NULL;
    const bool fits = data_format(path, sizeof path, "%s/%s", dir, names->name[i]);
    if (!fits) fail_with(e, EXIT_MISSING, "--data %.200s...: the path is too long", dir);
    if (!fits || !text_open_file(&t, path, warnings, e, want, &looks)) { free(out); return false; }
    if (looks && !json++) first_json = i;
    if (n + t.numel > memory) {
      free(out);
      text_free(&t);
      return fail_with(e, EXIT_MISSING, "--data %s: its .txt files have more bytes than this machine has memory (%zu): "
                       "encode them to a token FILE.bin, or give fewer", dir, memory);
    }
    if (t.numel + 1 > capacity - n) {
      capacity = n + t.numel + 1 + (n + t.numel) / 2;
      if (!(out = (uint8_t *)realloc(out, capacity))) die_missing("data: no memory for %zu bytes of text", capacity);
    }
    memcpy(out + n, t.bytes, t.numel);
    if (n) text_add_document(all, n);
    for (size_t k = 0; k < t.documents; k++) text_add_document(all, n + t.document[k]);
    n += t.numel;
    if (out[n - 1] != '\n' && i + 1 < names->count) out[n++] = '\n';
    text_free(&t);
  }
  if (json)
    data_warning(warnings, "%d of %d .txt files in %s are JSON, such as %s: braces and keys are trained on like text",
                json, names->count, dir, names->name[first_json]);
  all->bytes = (const uint8_t *)(all->owned = out);
  all->numel = n;
  return true;
}

// The byte at which the last 5 % of a text start, moved to the start of a line near it; else of a word; else of a
// character. *how: which of these, in words.
enum { TEXT_LEAST_BYTES = 200 };
static inline size_t text_cut(const uint8_t *p, size_t n, const char **how) {
  const size_t want = n - n / 20, low = want - n / 20, high = n - n / 50;
  const size_t early = n < 65536 ? n / 2 : low;  // in a short text the cut may move further
  *how = "from the start of a line on";
  for (size_t at = want; at > early; at--) if (p[at - 1] == '\n') return at;
  for (size_t at = want; at < high; at++) if (p[at - 1] == '\n') return at;
  *how = "from the start of a word on, because no line ends near there";
  for (size_t at = want; at > low; at--) if (p[at - 1] == ' ' || p[at - 1] == '\t') return at;
  *how = "from the middle of a line on, because no line or word ends near there";
  size_t at = want;
  while (at > want - 4 && (p[at] & 0xc0) == 0x80) at--;
  return at;
}
// Splits the training text: its last 5 % become the validation text, unless --val_data was given. what: the start of
// messages, "--data PATH: ".
static inline bool text_hold_out(Found *f, const char *what, Error *e) {
  if (*f->val_data) return text_open(&f->text[SPLIT_VALID], f->val_data, f->warnings, e, f->want);
  Text *t = &f->text[SPLIT_TRAIN], *v = &f->text[SPLIT_VALID];
  const char *how;
  if (t->numel < TEXT_LEAST_BYTES)
    return fail_with(e, EXIT_USAGE, "%sthe text has %zu bytes: too few to hold some out for validation; use at least "
                     "%d, or give a directory with train.txt and valid.txt", what, t->numel, TEXT_LEAST_BYTES);
  const size_t cut = text_cut(t->bytes, t->numel, &how);
  v->bytes = t->bytes + cut;                     // the training text still owns the memory
  v->numel = t->numel - cut;
  t->numel = cut;
  size_t kept = 0;
  for (size_t k = 0; k < t->documents; k++)
    if (t->document[k] < cut) kept++;
    else if (t->document[k] > cut) text_add_document(v, t->document[k] - cut);
  t->documents = kept;
  data_warning(f->warnings, "%sthere is no validation text: the last %.1f %% of the text (%zu bytes), %s, is held out "
              "for it and not trained on%s", what, 100.0 * (double)v->numel / (double)(cut + v->numel), v->numel, how,
              f->text[SPLIT_TEST].numel ? "" : "; there is no test text");
  return true;
}

static inline void data_directory_of(const char *path, char dir[DATA_PATH_BYTES]) {
  const char *base = path_base(path);
  data_format(dir, DATA_PATH_BYTES, "%.*s", (int)(base == path ? 1 : base - path), base == path ? "." : path);
}
// Finds the splits of a single text file.
static inline bool find_text_file(Found *f, const char *path, Error *e) {
  char what[DATA_PATH_BYTES + 64], beside[DATA_PATH_BYTES], dir[DATA_PATH_BYTES];
  if (!text_open(&f->text[SPLIT_TRAIN], path, f->warnings, e, f->want)) return false;
  data_format(what, sizeof what, "--data %s: ", path);
  if (!text_hold_out(f, what, e)) return false;
  data_format(f->source, sizeof f->source, "text in %s (--data)", path);
  data_directory_of(path, dir);
  for (const char *name : text_names[SPLIT_TRAIN])
    if (name && !strcmp(name, path_base(path)) && text_find(dir, SPLIT_VALID, beside, sizeof beside))
      data_warning(f->warnings, "%s beside it is not used: --data %s takes both", path_base(beside), dir);
  return true;
}

// Finds the texts of a directory that are named for the splits. asked: how the directory was named (--data,
// WIKITEXT2_DIR, "fetched WikiText-2"); only with --data may the validation text be missing.
static inline bool find_splits(Found *f, const char *dir, const char *asked, Error *e) {
  char path[SPLIT_COUNT][DATA_PATH_BYTES], what[DATA_PATH_BYTES + 64];
  bool there[SPLIT_COUNT];
  const bool data = !strcmp(asked, "--data");
  for (int i = 0; i < SPLIT_COUNT; i++) there[i] = text_find(dir, i, path[i], sizeof path[i]);
  if (*f->val_data) there[SPLIT_VALID] = data_format(path[SPLIT_VALID], DATA_PATH_BYTES, "%s", f->val_data);
  if (data && !there[SPLIT_TRAIN])
    return fail_with(e, EXIT_MISSING, "--data %s has no train.txt (or wiki.train.tokens), but %s: a text corpus is "
                     "train.txt, valid.txt and test.txt in one directory", dir, path_base(path[there[SPLIT_VALID] ?
                     SPLIT_VALID : SPLIT_TEST]));
  for (int i = SPLIT_TRAIN; i <= SPLIT_VALID && !data; i++)
    if (!there[i])
      return fail_with(e, EXIT_MISSING, "%s %s has no %s (or %s): a text corpus is train.txt, valid.txt and test.txt "
                       "in one directory; data/get_wikitext2.sh fetches WikiText-2", asked, dir, text_names[i][0], i ?
                       "validation.txt, wiki.valid.tokens" : "wiki.train.tokens");
  for (int i = 0; i < SPLIT_COUNT; i++)
    if (there[i] && !text_open(&f->text[i], path[i], f->warnings, e, f->want)) return false;
  data_format(f->source, sizeof f->source, "text in %s (%s)", dir, asked);
  data_format(what, sizeof what, "--data %s: ", dir);
  if (!there[SPLIT_VALID]) return text_hold_out(f, what, e);
  if (!there[SPLIT_TEST])
    data_warning(f->warnings, "%s %s has no test.txt: nothing is reported for the test split", asked, dir);
  return true;
}

// ---- conversations, a JSON object per line
static const char *const record_ends[] = {".jsonl", ".ndjson", ".json", ".csv", ".tsv"};
static inline bool chats_find(const char *dir, int split, char *path, size_t path_bytes) {
  for (const char *name : chat_split_names[split])
    for (const char *end : record_ends)
      if (name && data_format(path, path_bytes, "%s/%s%s", dir, name, end) && access(path, F_OK) == 0) return true;
  return false;
}
// Finds the training conversations of a directory. A .json or .csv counts only if the directory has no texts or token
// files, since it may describe these.
static inline bool chats_find_train(const char *dir, char *path, size_t path_bytes) {
  char text[DATA_PATH_BYTES];
  if (!chats_find(dir, SPLIT_TRAIN, path, path_bytes)) return false;
  if (name_ends(path, ".jsonl") || name_ends(path, ".ndjson")) return true;
  DataNames bins = data_names(dir, ".bin"), texts = data_names(dir, ".txt");
  const bool alone = !bins.count && !texts.count && !text_find(dir, SPLIT_TRAIN, text, sizeof text);
  data_names_free(&bins);
  data_names_free(&texts);
  return alone;
}
// The file format of a regular file, by its name and first bytes; text if it cannot be read.
static inline FileForm form_of_file(const char *path) {
  enum { HEAD = 1 << 16 };
  Error none;
  size_t bytes;
  const int fd = data_open(path, &bytes, &none);
  uint8_t *head = (uint8_t *)data_alloc(HEAD, 1);
  const ssize_t n = fd >= 0 ? read(fd, head, HEAD) : -1;
  const FileForm f = form_of(path_base(path), head, n > 0 ? (size_t)n : 0);
  if (fd >= 0) close(fd);
  free(head);
  return f;
}
bool data_is_chats(const char *path, bool as_text) {
  char inside[DATA_PATH_BYTES];
  if (as_text) return false;
  for (const char *end : record_ends)
    if (name_ends(path, end) && (strcmp(end, ".json") || form_of_file(path).container != CONTAINER_TEXT)) return true;
  return chats_find_train(path, inside, sizeof inside);
}
static inline bool find_chats(Found *f, const char *path, Error *e) {
  struct stat st;
  const bool directory = !stat(path, &st) && S_ISDIR(st.st_mode);
  char file[DATA_PATH_BYTES];
  f->records = true;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    const bool given = i == SPLIT_VALID && *f->val_data;
    if (given) snprintf(file, sizeof file, "%s", f->val_data);
    else if (directory ? !chats_find(path, i, file, sizeof file) : i) continue;
    else if (!directory) snprintf(file, sizeof file, "%s", path);
    data_names_add(&f->tokens[i], file);
  }
  data_format(f->source, sizeof f->source, "conversations in %s (--data)", path);
  return f->tokens[SPLIT_TRAIN].count || fail_with(e, EXIT_MISSING, "--data %s: %s", path, strerror(ENOENT));
}

// ================================================================================================ 2 token files
// The last `train` in a file's name; NULL: there is none.
static inline const char *name_train(const char *path) {
  const char *at = NULL;
  for (const char *p = path_base(path); (p = strstr(p, "train")); p++) at = p;
  return at;
}
// Whether a file is PREFIXtrain.bin or a numbered shard of it, PREFIXtrain_000001.bin; *stem: bytes of the path up to
// and including `train`.
static inline bool token_shard(const char *path, size_t *stem) {
  const char *at = name_train(path);
  if (!at || !name_ends(path, ".bin")) return false;
  *stem = (size_t)(at + 5 - path);
  return !strcmp(at + 5 + strspn(at + 5, "_-0123456789"), ".bin");
}
static inline void data_names_add_once(DataNames *n, const char *name) {
  for (int i = 0; i < n->count; i++) if (!strcmp(n->name[i], name)) return;
  data_names_add(n, name);
}
// Adds the validation files of a training file: the same name with `val`, `valid` or `validation` for the last `train`;
// for a numbered shard (x_train_000001.bin) all shards of such a name, if it is one of several or has none of its own.
// asked: --data.
static inline bool token_file_partners(DataNames *to, const char *train, bool several, const char *asked,
                                       Error *e) {
  char path[DATA_PATH_BYTES], dir[DATA_PATH_BYTES], start[DATA_PATH_BYTES];
  const char *base = path_base(train), *at = name_train(train);
  if (!at)
    return fail_with(e, EXIT_MISSING, "--data %s: no validation tokens: they are looked for under the same name with "
                     "`val` in place of `train`, and %s has no `train` in it; name them by --val_data, or rename the "
                     "pair, such as x_train.bin and x_val.bin", asked, base);
  const char *tail = at + 5;
  const bool shards = several && strcmp(tail, ".bin");
  for (const char *word : {"val", "valid", "validation"})
    if (!shards && data_format(path, sizeof path, "%.*s%s%s", (int)(at - train), train, word, tail) &&
        !access(path, F_OK))
      return data_names_add_once(to, path), true;
  data_directory_of(train, dir);
  data_format(start, sizeof start, "%.*sval", (int)(at - base), base);
  const size_t n = strlen(start);
  DataNames names = data_names(dir, ".bin");
  bool any = false;
  for (int i = 0; tail[strspn(tail, "_-0123456789")] == '.' && i < names.count; i++) {
    const char *name = names.name[i];
    if (strncmp(name, start, n) || strcmp(name + n + strspn(name + n, "_-0123456789"), ".bin")) continue;
    any = data_format(path, sizeof path, "%.*s%s", (int)(base - train), train, name);
    if (any) data_names_add_once(to, path);
  }
  data_names_free(&names);
  return any || fail_with(e, EXIT_MISSING, "--data %s: no validation tokens beside it: looked for %.*sval%s (and "
                          "valid, validation for val); put that file there, or name another by --val_data", asked,
                          (int)(at - train), train, tail);
}

// Adds the token files that one element of a list names: a file, the .bin files of a directory, those that match a
// pattern; in the order of their names. Of a directory or pattern only those named for the split, if any is.
static inline bool find_token_element(Found *f, const char *element, bool valid, Error *e) {
  const char *const word = valid ? "val" : "train", *const option = valid ? "--val_data" : "--data";
  DataNames *to = &f->tokens[valid ? SPLIT_VALID : SPLIT_TRAIN];
  struct stat st;
  glob_t g = {};
  char path[PATH_MAX];
  DataNames all = {};
  int named = 0, others = 0;
  const bool there = !stat(element, &st), directory = there && S_ISDIR(st.st_mode);
  if (there && !directory) {
    if (!name_ends(element, ".bin"))
      return fail_with(e, EXIT_MISSING, "%s %s: expected token files, .bin; of texts one can be named, or a directory; "
                       "weights are for token files, and for conversations packed whole", option, element);
    return data_names_add(to, element), true;
  }
  DataNames inside = directory ? data_names(element, ".bin") : DataNames{};
  for (int i = 0; i < inside.count; i++)
    if (data_format(path, sizeof path, "%s%s%s", element, name_ends(element, "/") ? "" : "/", inside.name[i]))
      data_names_add(&all, path);
  data_names_free(&inside);
  if (!directory && !glob(element, 0, NULL, &g))
    for (size_t i = 0; i < g.gl_pathc; i++) {
      if (name_ends(g.gl_pathv[i], ".bin")) data_names_add(&all, g.gl_pathv[i]);
      else others++;
    }
  for (int i = 0; i < all.count; i++) named += strstr(path_base(all.name[i]), word) != NULL;
  globfree(&g);
  if (all.count) qsort(all.name, (size_t)all.count, sizeof *all.name, name_order);
  const int before = to->count;
  size_t stem = 0, theirs;
  const char *first = NULL, *other = NULL;
  for (int i = 0; i < all.count; i++) {
    const char *name = all.name[i];
    if (named && !strstr(path_base(name), word)) continue;
    data_names_add(to, name);
    if (!directory || valid || !token_shard(name, &theirs)) continue;
    if (!first) first = name, stem = theirs;
    else if (theirs != stem || strncmp(first, name, stem)) other = name;
  }
  bool ok = to->count > before && !other;
  if (other)
    fail_with(e, EXIT_MISSING, "%s %s: there are token files of several sets (%s, %s): name those to train on, by a "
              "pattern or a list", option, element, path_base(first), path_base(other));
  else if (!ok && others)
    fail_with(e, EXIT_MISSING, "%s %s: a pattern may name token files, .bin; for texts give one file, or the directory "
              "whose .txt files are joined", option, element);
  else if (!ok && strpbrk(element, "*?["))
    fail_with(e, EXIT_MISSING, "%s %s: no file matches", option, element);
  else if (!ok) fail_with(e, EXIT_MISSING, "%s %s: %s", option, element, directory ? "it has no .bin file" :
                          strerror(ENOENT));
  data_names_free(&all);
  return ok;
}
// The weight after the last colon of an element, in millionths; 0: it has none. The element is cut at that colon.
static inline int64_t token_weight(char *element) {
  char *colon = strrchr(element, ':'), *end = NULL;
  if (!colon || !access(element, F_OK) || !colon[1] || colon[1 + strspn(colon + 1, "0123456789.")]) return 0;
  const double weight = strtod(colon + 1, &end) * 1e6;
  *colon = 0;
  return *end || weight > 1e12 || weight < 1 ? -1 : (int64_t)(weight + 0.5);
}
// Divides the weights of a mixture by their greatest common divisor.
static inline bool find_weights(Found *f, const char *list, Error *e) {
  enum { PERIOD_MAX = 1 << 22 };
  int64_t divisor = 0, sum = 0;
  for (int k = 0; k < f->sources; k++)
    for (int64_t rest = f->mixed[k].weight, b; (b = rest); divisor = b) rest = divisor % b;
  for (int k = 0; k < f->sources; k++) sum += f->mixed[k].weight /= divisor;
  return sum <= PERIOD_MAX || fail_with(e, EXIT_USAGE, "--data %s: the weights repeat only after %lld samples; %d are "
                                        "possible: write them with fewer digits", list, (long long)sum, PERIOD_MAX);
}
// The files of a list: elements with commas between them, each of which `add` adds; with weights after colons a
// mixture, else one stream. valid: of --val_data.
static inline bool find_list(Found *f, const char *list, bool valid,
                             bool (*add)(Found *f, const char *element, bool valid, Error *e), Error *e) {
  const char *const option = valid ? "--val_data" : "--data";
  DataNames *to = &f->tokens[valid ? SPLIT_VALID : SPLIT_TRAIN];
  char element[DATA_PATH_BYTES];
  int elements = 0, weighted = 0;
  const char *comma, *at = list;
  for (bool whole = !access(list, F_OK); at; at = comma ? comma + 1 : NULL) {
    comma = whole ? NULL : strchr(at, ',');
    const int n = comma ? (int)(comma - at) : (int)strlen(at), before = to->count;
    if (!data_format(element, sizeof element, "%.*s", n, at))
      return fail_with(e, EXIT_MISSING, "%s: a path has %d bytes; at most %zu are possible", option, n, sizeof element
                       - 1);
    const int64_t weight = token_weight(element);
    if (!element[0] || weight < 0 || (weight && valid) || (elements && (weight > 0) != (weighted > 0)))
      return fail_with(e, EXIT_USAGE, "%s %s: expected: FILES,FILES,...%s", option, list, valid ? "" : ", or with "
                       "weights above 0 after all of them, FILES:0.7,FILES:0.3");
    if (!add(f, element, valid, e)) return false;
    weighted += weight > 0;
    if (elements++ == SOURCES_MAX && weighted)
      return fail_with(e, EXIT_USAGE, "%s: more than %d sources", option, SOURCES_MAX);
    if (!weight) continue;
    f->source_files[weighted - 1] = to->count - before;
    f->mixed[weighted - 1] = SplitSource{{}, 0, 0, weight};
    data_format(f->mixed[weighted - 1].name, sizeof f->mixed[0].name, "%s", element);
  }
  if (valid) return true;
  f->sources = weighted > 1 ? weighted : 0;
  return !f->sources || find_weights(f, list, e);
}
static inline bool find_token_list(Found *f, const char *list, bool valid, Error *e) {
  const DataNames *to = &f->tokens[SPLIT_TRAIN];
  if (!find_list(f, list, valid, find_token_element, e)) return false;
  if (valid) return true;
  if (to->count == 1) data_format(f->source, sizeof f->source, "tokens in %s", to->name[0]);
  else data_format(f->source, sizeof f->source, "tokens in %d files, %s", to->count, list);
  return true;
}
// The validation files of the training files: --val_data's, or those beside the first file of each source.
static inline bool find_tokens_beside(Found *f, const char *asked, Error *e) {
  const DataNames *train = &f->tokens[SPLIT_TRAIN];
  if (*f->val_data) return find_token_list(f, f->val_data, true, e);
  for (int k = 0, i = 0, n; i < train->count; i += n) {
    n = f->sources ? f->source_files[k++] : train->count;
    if (!token_file_partners(&f->tokens[SPLIT_VALID], train->name[i], n > 1, asked, e)) return false;
  }
  size_t stem = 0, theirs;
  int shards = 0;
  char dir[DATA_PATH_BYTES];
  if (train->count > 1 || !token_shard(train->name[0], &stem)) return true;
  data_directory_of(train->name[0], dir);
  const size_t n = stem - (size_t)(path_base(train->name[0]) - train->name[0]);
  DataNames names = data_names(dir, ".bin");
  for (int i = 0; i < names.count; i++)
    shards += token_shard(names.name[i], &theirs) && theirs == n &&
              !strncmp(names.name[i], path_base(train->name[0]), n);
  data_names_free(&names);
  if (shards > 1)
    data_warning(f->warnings, "%s holds %d shards of tokens, and only %s is trained on: --data '%.*s*.bin' takes all",
                dir, shards, path_base(train->name[0]), (int)stem, train->name[0]);
  return true;
}

// ================================================================================================ 3 the search
// found: the name of a file of the directory in a format that is not read but may hold a corpus, for an error; "":
// none.
static inline void find_other_files(const char *dir, char *found, size_t bytes) {
  static const char *const ends[] = {".jsonl", ".parquet", ".arrow", ".zip", ".gz", ".zst", ".xz", ".bz2", ".json",
                                     ".csv", ".npy", ".raw", ".tokens", ".md"};
  found[0] = 0;
  for (const char *end : ends) {
    DataNames names = data_names(dir, end);
    if (names.count) data_format(found, bytes, " (but %.100s)", names.name[0]);
    data_names_free(&names);
    if (found[0]) return;
  }
}
// Finds the files of a directory whose names are not those of splits: all its texts, or all its token files.
static inline bool find_unnamed(Found *f, const char *dir, Error *e) {
  DataNames texts = {}, bins = data_names(dir, ".bin"), all = data_names(dir, ".txt");
  for (int i = 0; i < all.count; i++) if (!name_is_note(all.name[i])) data_names_add(&texts, all.name[i]);
  data_names_free(&all);
  char what[DATA_PATH_BYTES + 128], other[128];
  bool ok = false;
  if (texts.count && bins.count)
    fail_with(e, EXIT_MISSING, "--data %s: there is text (%s) and there are token files (%s): name one of them, or "
              "give a directory with train.txt and valid.txt", dir, texts.name[0], bins.name[0]);
  else if (bins.count) {
    ok = find_token_list(f, dir, false, e);
  } else if (texts.count) {
    data_format(what, sizeof what, texts.count > 1 ? "--data %s: its %d .txt files, in the order of their names, are "
                "joined; " : "--data %s: ", dir, texts.count);
    data_format(f->source, sizeof f->source, "%d .txt file%s in %s (--data)", texts.count, texts.count > 1 ? "s" : "",
                dir);
    ok = text_join(&f->text[SPLIT_TRAIN], dir, &texts, f->want, f->warnings, e) && text_hold_out(f, what, e);
  } else {
    find_other_files(dir, other, sizeof other);
    fail_with(e, EXIT_MISSING, "--data %s has no train.txt (or wiki.train.tokens), no other .txt file and no token "
              "file x_train.bin%s: a text corpus is train.txt, valid.txt and test.txt in one directory%s", dir, other,
              other[0] ? "" : "; data/get_wikitext2.sh fetches WikiText-2");
  }
  data_names_free(&texts);
  data_names_free(&bins);
  return ok;
}
// Finds the corpus of a directory. asked: how the directory was named, as in find_splits.
static inline bool find_directory(Found *f, const char *dir, const char *asked, Error *e) {
  char path[DATA_PATH_BYTES];
  bool any = strcmp(asked, "--data") != 0;
  for (int i = 0; i < SPLIT_COUNT; i++) any = any || text_find(dir, i, path, sizeof path);
  return any ? find_splits(f, dir, asked, e) : find_unnamed(f, dir, e);
}
// Finds what --data PATH names; on entry only f->warnings, f->val_data and f->want are set. False: one line in e. Call
// found_free in either case.
static inline bool corpus_find(Found *f, const char *path, Error *e) {
  static const char *const pipes[] = {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"};
  struct stat st;
  for (const char *pipe : pipes)
    if (!strcmp(path, pipe))
      return fail_with(e, EXIT_USAGE, "--data %s: text is not read from standard input, because every epoch and rank "
                       "needs it again; write it to a file and name that", path);
  if (stat(path, &st) != 0) {
    if (strpbrk(path, "*?[,:")) return find_token_list(f, path, false, e);
    return fail_with(e, EXIT_MISSING, "--data %s: %s; give a directory with train.txt, valid.txt and test.txt, a text "
                     "file, conversations in a .jsonl, a table .parquet, a token FILE.bin, random, or generated", path,
                     strerror(errno));
  }
  const bool chats = (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)) && data_is_chats(path, f->want == WANT_BYTES);
  if (S_ISDIR(st.st_mode)) {
    char split[DATA_PATH_BYTES];
    const bool splits = chats || text_find(path, SPLIT_TRAIN, split, sizeof split);
    if (!directory_check(path, "--data", splits ? DIRECTORY_SPLITS : DIRECTORY_ONE, f->warnings, e)) return false;
  }
  if (chats) return find_chats(f, path, e);
  if (S_ISDIR(st.st_mode)) return find_directory(f, path, "--data", e);
  if (!S_ISREG(st.st_mode))
    return fail_with(e, EXIT_MISSING, "--data %s is %s; expected: a directory with train.txt and valid.txt, a text "
                     "file, or a token FILE.bin", path, file_type_words(st.st_mode));
  return name_ends(path, ".bin") ? find_token_list(f, path, false, e) : find_text_file(f, path, e);
}
