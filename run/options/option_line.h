// option_line.h: translates a command line of llm.c (short options) or nanoGPT (--init_from scratch or resume) to a
// whole command line of this program, so that nobody has to correct one option after the other.
#pragma once
#include "option_values.h"
#include <limits.h>

enum { LINE_WORDS_MAX = 256, LEFT_WHOLE_BYTES = 300 };         // from so many bytes of `left` on words get no reason
// The translated line. word: what to type after the program's name. left: text that lists, and explains, the `lefts`
// words that have no counterpart. ranks, tokens, seq_len: values of llm.c's -pn, -d, -t; 0: not given.
struct OptionLine {
  char *word[LINE_WORDS_MAX + 1];
  int words;
  FILE *left;
  int lefts;
  int64_t ranks, tokens, seq_len;
};
__attribute__((format(printf, 2, 3))) static inline void line_add(OptionLine *l, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (l->words < LINE_WORDS_MAX && vasprintf(&l->word[l->words], fmt, ap) >= 0) l->words++;
  va_end(ap);
}
// Where to write one more word that has no counterpart.
static inline FILE *line_left(OptionLine *l) {
  if (l->lefts++) fputs(", ", l->left);
  return l->left;
}

// Values of llm.c's short options, and the words for them here; * stands for any other value.
static const struct { const char *name, *value, *words; } line_values[] = {
    {"-e", "d6", "--model gpt2 --n_layer 6 --n_head 6 --n_embd 384"}, {"-e", "d12", "--model gpt2"},
    {"-e", "d24", "--model gpt2-medium"}, {"-e", "d36", "--model gpt2-large"}, {"-e", "d48", "--model gpt2-xl"},
    {"-e", "d60", "--model gpt2-xl --n_layer 60 --n_head 30 --n_embd 1920"}, {"-z", "0", "--strategy ddp"},
    {"-z", "1", "--strategy zero1"}, {"-z", "2", "--strategy zero2"}, {"-z", "3", "--strategy zero3"},
    {"-r", "0", "--recompute none"}, {"-r", "1", "--recompute gelu"}, {"-r", "2", "--recompute norm"},
    {"-y", "0", ""}, {"-y", "*", "--resume"}, {"-f", "0", ""}, {"-f", "*", "--matmul_precision high"},
    {"-x", "-1", ""}, {"-x", "0", ""},           // it ends with the epoch
    {"-n", "0", "--save_every -1"}, {"-v", "0", "--eval_every -1"}};           // never; 0 is an epoch here
// Translates one short option of llm.c. False: it has no counterpart.
static inline bool line_letter(OptionLine *l, const char *name, const char *value) {
  const int is = option_index(name);
  const size_t n = strlen(value);
  if (!strcmp(name, "-pn")) { l->ranks = atoll(value); return true; }
  if (!strcmp(name, "-d")) { l->tokens = atoll(value); return true; }
  if (!strcmp(name, "-t")) l->seq_len = atoll(value);
  for (const auto &v : line_values) {
    char word[OPTION_NAME_BYTES];
    if (strcmp(v.name, name) || (strcmp(v.value, value) && *v.value != '*')) continue;
    for (const char *words = v.words; name_next(&words, word);) line_add(l, "%s", word);
    return true;
  }
  const bool weights = !strcmp(name, "-e") && n > 4 && !strcmp(value + n - 4, ".bin");
  if (is < 0 && !weights) return false;
  line_add(l, "--%s", weights ? "init_from" : option_specs[is].name), line_add(l, "%s", value);
  return true;
}
// Translates one option with two dashes; next: the word after it, or NULL. Returns how many words the option has: 1, or
// 2 with its value.
static inline int line_long(OptionLine *l, const char *word, const char *next) {
  char name[OPTION_NAME_BYTES];
  Error error = {};
  OptionUse use;
  option_name_plain(name, word + 2);
  const char *equals = strchr(word, '=');
  const bool known = option_find(name, &use, &error), apart = !equals && next && next[0] != '-';
  const char *value = equals ? equals + 1 : known ? (value_follows(use, next) ? next : NULL) : apart ? next : NULL;
  const int words = 1 + (value && !equals);
  const char *instead = known ? NULL : option_instead(name);
  if (known && use.id == OPT_init_from && !use.off && value && init_from_other(value)) {
    if (!strcmp(value, "resume")) line_add(l, "--resume");
  } else if (known) {
    const bool joined = equals && (!*value || *value == '-');    // as it was, for what cannot stand apart
    line_add(l, "%.*s", joined || !equals ? INT_MAX : (int)(equals - word), word);
    if (value && !joined) line_add(l, "%s", value);
  } else if (instead == say_warmup && value) {
    line_add(l, "--warmup"), line_add(l, "%s", value);
  } else if (instead && !strstr(instead, "leave it out")) {
    fprintf(line_left(l), "--%.60s", name);
    if (ftell(l->left) < LEFT_WHOLE_BYTES) fprintf(l->left, " (%s)", instead);
  } else if (instead) fprintf(line_left(l), "--%.60s", name);
  else fprintf(line_left(l), "%.200s", ftell(l->left) < LEFT_WHOLE_BYTES ? error.text : word);
  return words;
}
// Translates the whole line; false if nothing in it is of llm.c or nanoGPT.
static inline bool line_make(OptionLine *l, int argc, char **argv) {
  bool theirs = false, letters = false, typed = false;
  for (int a = 1; a < argc;) {
    const char *word = argv[a], *next = a + 1 < argc ? argv[a + 1] : NULL;
    const bool letter = word[0] == '-' && word[1] != '-' && (option_index(word) >= 0 || option_instead(word));
    if (!strncmp(word, "--", 2) && word[2] && word[2] != '=') {
      const char *value = strchr(word, '=');
      char name[OPTION_NAME_BYTES];
      option_name_plain(name, word + 2);
      value = value ? value + 1 : next;
      theirs = theirs || (!strcmp(name, "init_from") && value && init_from_other(value));
      typed = typed || !strcmp(name, "dtype");
      a += line_long(l, word, next);
      continue;
    }
    theirs = theirs || letter, letters = letters || letter;
    if (!letter || !next || !line_letter(l, word, next)) fprintf(line_left(l), "%.100s", word);
    a += letter && next ? 2 : 1;
  }
  const int64_t T = l->seq_len ? l->seq_len : 1024;              // llm.c's default
  if (l->tokens > 0 && T > 0 && l->tokens % T == 0) {
    if (!l->seq_len) line_add(l, "--seq_len"), line_add(l, "%lld", (long long)T);
    line_add(l, "--global_batch"), line_add(l, "%lld", (long long)(l->tokens / T));
  } else if (l->tokens) fprintf(line_left(l), "-d (not a multiple of -t)");
  if (letters && !typed) line_add(l, "--dtype"), line_add(l, "bf16");            // PRECISION in llm.c's Makefile
  return theirs;
}
void options_whole_line(int argc, char **argv, Error *error) {
  static OptionLine l;
  static Options o;
  char *text = NULL, *left = NULL;
  Error why = {};
  size_t bytes = 0;
  l = OptionLine{};
  l.left = open_memstream(&left, &bytes);
  const bool theirs = line_make(&l, argc, argv);
  fclose(l.left);
  if (!theirs) return;                           // the process ends with this line or another
  FILE *f = open_memstream(&text, &bytes);
  if (l.ranks > 1 && !getenv("OMPI_COMM_WORLD_SIZE")) fprintf(f, " mpirun -np %lld", (long long)l.ranks);
  fprintf(f, " ./train_gpt_fsdp");
  for (int i = 0; i < l.words; i++)
    if (l.word[i][0] == '-') fprintf(f, " %s", l.word[i]);
    else shell_word(f, l.word[i]);
  fclose(f);
  char *words[LINE_WORDS_MAX + 2] = {argv[0]};
  for (int i = 0; i < l.words; i++) words[i + 1] = l.word[i];
  options_parse(&o, NULL, l.words + 1, words, &why);
  fail(error, "this is a command line of llm.c or nanoGPT; type:%.1000s%s%.800s%s%s", text, left[0] ? "; left out, as "
       "it has no place here: " : "", left, why.text[0] ? "; then: " : "", why.text);
  text_to_line(error->text, "");
}
