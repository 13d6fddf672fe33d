// option_values.h: from the command line to struct Options, all by the table in option_table.h. Names of options in
// other programs are in option_names.h, --config in option_file.h, --help in option_help.h.
//
// Values are stored as the table spells them, however they were typed: what is printed, saved in a checkpoint and
// compared between ranks has one spelling.
#pragma once
#include "option_names.h"
#include <ctype.h>

const OptionSpec option_specs[OPTION_COUNT] = {
#define CHOICE_JOINED(name, choice) "|" #choice
#define CHOICE_WORD(name, choice) #choice "\0"
#define OPTION_SPEC(name, type, def, lo, hi, text, choices, words, resume, ...) \
  {#name, type, offsetof(Options, name), (double)(def), (double)(lo), (double)(hi), text, choices, words, \
   RESUME_##resume, __VA_ARGS__},
#define OPTION_SPEC_INT(name, def, lo, hi, ...) OPTION_SPEC(name, OPTION_INT, def, lo, hi, 0, 0, 0, __VA_ARGS__)
#define OPTION_SPEC_NUM(name, def, lo, hi, ...) OPTION_SPEC(name, OPTION_NUM, def, lo, hi, 0, 0, 0, __VA_ARGS__)
#define OPTION_SPEC_TEXT(name, def, choices, ...) OPTION_SPEC(name, OPTION_TEXT, 0, 0, 0, def, choices, 0, __VA_ARGS__)
#define OPTION_SPEC_CHOICE(name, def, choices, ...) \
  OPTION_SPEC(name, OPTION_CHOICE, OPT_##name##_##def, 0, 0, 0, &(CHOICES(CHOICE_JOINED, name, choices))[1], \
              CHOICES(CHOICE_WORD, name, choices), __VA_ARGS__)
#define PAIR_JOINED(name, pair) PAIR_JOINED_ pair
#define PAIR_JOINED_(word, value) "|" #word
#define PAIR_WORD(name, pair) PAIR_WORD_ pair
#define PAIR_WORD_(word, value) #word "\0"
#define OPTION_SPEC_ENUM(name, enum_type, def, pairs, ...) \
  OPTION_SPEC(name, OPTION_CHOICE, def, 0, 0, 0, &(CHOICES(PAIR_JOINED, name, pairs))[1], \
              CHOICES(PAIR_WORD, name, pairs), __VA_ARGS__)
#define OPTION_SPEC_FLAG(name, ...) OPTION_SPEC(name, OPTION_FLAG, 0, 0, 0, 0, 0, 0, __VA_ARGS__)
  OPTIONS(OPTION_NOTHING, OPTION_SPEC_INT, OPTION_SPEC_NUM, OPTION_SPEC_TEXT, OPTION_SPEC_CHOICE, OPTION_SPEC_ENUM,
          OPTION_SPEC_FLAG)
};

static const struct { int first; const char *title; } option_groups[] = {
#define OPTION_GROUP(id, title) {GROUP_##id, title},
  OPTIONS(OPTION_GROUP, OPTION_NOTHING, OPTION_NOTHING, OPTION_NOTHING, OPTION_NOTHING, OPTION_NOTHING,
          OPTION_NOTHING)
};

// --dtype is a shorthand: it sets the three options dtype_options, except those that are given too.
static const OptionSpec dtype_spec = {"dtype", OPTION_TEXT, 0, 0, 0, 0, "", "fp32|bf16|fp16", NULL,
                                      RESUME_OWN, "sets param_, reduce_ and buffer_dtype; one that is given too wins"};
static const OptionId dtype_options[] = {OPT_param_dtype, OPT_reduce_dtype, OPT_buffer_dtype};
enum { OPTION_DTYPE = OPTION_COUNT };
static const OptionSpec *option_spec(int id) { return id == OPTION_DTYPE ? &dtype_spec : &option_specs[id]; }

const char *sample_file(const Options *o) {
  const bool none = o->eval_only || o->eval[0] || o->interactive || !o->sample_tokens;
  return none ? NULL : o->prompts[0] ? "samples.jsonl" : "sample.txt";
}

// ---- values ---------------------------------------------------------------------------------------------------------
// option_choice: the number of the choice that an option has, -1 if the preset is still to decide. choice_word: choice
// k as a word, "" for -1.
static int option_choice(const Options *o, const OptionSpec *s) {
  int k;
  memcpy(&k, (const char *)o + s->offset, sizeof k);
  return k;
}
static void option_choose(Options *o, const OptionSpec *s, int k) { memcpy((char *)o + s->offset, &k, sizeof k); }
static const char *choice_word(const OptionSpec *s, int k) {
  const char *word = s->words;
  for (int i = 0; i < k; i++) word += strlen(word) + 1;
  return k < 0 ? "" : word;
}
const char *option_word(const Options *o, OptionId id) {
  return choice_word(&option_specs[id], option_choice(o, &option_specs[id]));
}
void options_default(Options *o, const TrainerTable *trainer) {
  memset(o, 0, sizeof *o);
  o->trainer = trainer;
  o->gpu_head_chunk_bytes = (int64_t)2 << 30;
  for (const OptionSpec &s : option_specs) {
    char *field = (char *)o + s.offset;
    if (s.type == OPTION_INT) *(int64_t *)field = (int64_t)s.def;
    if (s.type == OPTION_NUM) *(double *)field = s.def;
    if (s.type == OPTION_CHOICE) option_choose(o, &s, (int)s.def);
    if (s.type == OPTION_TEXT) snprintf(field, OPTION_TEXT_BYTES, "%s", s.text_def);
  }
}

void option_print(char *to, size_t bytes, const Options *o, const OptionSpec *s) {
  const char *field = (const char *)o + s->offset;
  if (s->type == OPTION_INT) snprintf(to, bytes, "%lld", (long long)*(const int64_t *)field);
  if (s->type == OPTION_NUM) snprintf(to, bytes, "%.17g", *(const double *)field);
  if (s->type == OPTION_TEXT) snprintf(to, bytes, "%s", field);
  if (s->type == OPTION_CHOICE) snprintf(to, bytes, "%s", choice_word(s, option_choice(o, s)));
  if (s->type == OPTION_FLAG) snprintf(to, bytes, "%s", *(const bool *)field ? "on" : "off");
}

// Whether a word is the choice of n bytes, whatever its case, hyphens and underscores.
static bool choice_is(const char *choice, size_t n, const char *word) {
  const char *c = choice, *end = choice + n;
  for (;; c++, word++) {
    while (c < end && (*c == '-' || *c == '_')) c++;
    while (*word == '-' || *word == '_') word++;
    if (c == end || !*word) return c == end && !*word;
    if (tolower((unsigned char)*c) != tolower((unsigned char)*word)) return false;
  }
}
// The place in `choices` of the choice that a word means, and its length *n; NULL: none. "..." is not a choice.
static const char *choice_find(const char *choices, const char *word, size_t *n) {
  for (const char *c = choices; c; c = c[*n] ? c + *n + 1 : NULL) {
    *n = strcspn(c, "|");
    if (strncmp(c, "...", 3) && *n && choice_is(c, *n, word)) return c;
  }
  return NULL;
}
static bool choices_open(const char *choices) { return !choices || strstr(choices, "..."); }
// Writes a word to `to` as the table spells it, and returns true, if it is one of the choices, by any name
// (option_values has names of other programs). If the option also takes other values ("..."), a word that starts with a
// digit is such a value.
static bool choice_take(const char *choices, const char *word, char *to, size_t bytes) {
  size_t n;
  const char *found = choice_find(choices, word, &n);
  const bool other = choices_open(choices) && isdigit((unsigned char)word[0]);
  for (const OptionValue &v : option_values)
    if (!found && !other && choice_is(v.value, strlen(v.value), word)) found = choice_find(choices, v.is, &n);
  if (found) snprintf(to, bytes, "%.*s", (int)n, found);
  return found != NULL;
}
// Whether a word stands for on or off.
static bool word_is_bool(const char *word) {
  char is[8];
  return choice_take("on|off", word, is, sizeof is);
}
static bool option_has(const OptionSpec *s, const char *choice) {
  size_t n;
  return s->type == OPTION_FLAG || (s->choices && choice_find(s->choices, choice, &n));
}

// A whole number: digits, optionally with _ between them, or as 1e6. False: it is not one. *fits: int64_t holds it.
static bool whole_number(const char *text, int64_t *n, bool *fits) {
  char plain[512], *end;
  size_t length = 0;
  for (const char *c = text; *c && length < sizeof plain - 1; c++) {
    const bool joins = *c == '_' && c > text && isdigit((unsigned char)c[-1]) && isdigit((unsigned char)c[1]);
    if (!joins) plain[length++] = *c;
  }
  plain[length] = 0;
  if (length == sizeof plain - 1 || !length || plain[strspn(plain, "0123456789+-.eE")]) return false;
  errno = 0;
  *n = strtoll(plain, &end, 10);
  *fits = errno != ERANGE;
  if (!*end) return end > plain && isdigit(end[-1]);
  const double x = strtod(plain, &end);
  *fits = fabs(x) < 0x1p63;
  if (*fits) *n = (int64_t)x;
  return !*end && x == floor(x) && !strpbrk(plain, "xX");         // 1e6, and 3.0 as YAML has it; no 0x10
}
// The range of an option's number, in words.
static void option_range(const OptionSpec *s, bool below, char *to, size_t bytes) {
  const bool whole = s->type == OPTION_INT, open = s->hi >= (whole ? 0x1p63 : 1e30);
  if (whole && open && below) snprintf(to, bytes, "%lld or more", (long long)s->lo);
  else if (whole) snprintf(to, bytes, "%lld to %lld", (long long)s->lo, open ? INT64_MAX : (long long)s->hi);
  else if (open && below) snprintf(to, bytes, "%.10g or more", s->lo);
  else snprintf(to, bytes, "%.10g to %.10g", s->lo, s->hi);
}

static bool option_set_number(char *field, const OptionSpec *s, const char *value, bool may_be_default, Error *error) {
  const bool whole = s->type == OPTION_INT;
  int64_t n = 0;
  double x = 0;
  bool fits = true, is;
  char range[96], *end;
  if (whole) {
    is = whole_number(value, &n, &fits);
    x = fits ? (double)n : *value == '-' ? -HUGE_VAL : HUGE_VAL;
  } else {
    x = strtod(value, &end);
    is = *value && !value[strspn(value, "0123456789+-.eE")] && !*end;
  }
  REJECT(!is, "--%s needs %s, not '%.200s'", s->name, whole ? "a whole number" : "a number", value);
  option_range(s, x < s->lo, range, sizeof range);
  const bool is_default = may_be_default && x == s->def;         // a default below the range stands for "not given"
  REJECT((x < s->lo && !is_default) || x > s->hi || !fits, "--%s %.200s is out of range: %s%s", s->name, value, range,
         x < s->lo && s->def < s->lo ? "; leave it out for the default" : "");
  if (whole) *(int64_t *)field = n;
  else *(double *)field = x;
  return true;
}
static bool option_set_text(char *field, const OptionSpec *s, const char *value, Error *error) {
  REJECT(strlen(value) >= OPTION_TEXT_BYTES, "--%s is longer than %d bytes", s->name, OPTION_TEXT_BYTES - 1);
  const bool known = s->choices && choice_take(s->choices, value, field, OPTION_TEXT_BYTES);
  const bool device = s == &option_specs[OPT_device];
  const bool nth = device && !strncasecmp(value, "cuda:", 5) && isdigit((unsigned char)value[5]);
  REJECT(!known && nth, "--device %.40s: ranks take a host's GPUs in order; CUDA_VISIBLE_DEVICES=%.40s --device cuda "
         "computes on this one", value, value + 5);
  REJECT(!known && !choices_open(s->choices), "--%s '%.200s' is not known: choose one of %s", s->name, value,
         s->choices);
  if (known) return true;
  for (const char *c = value; *c && s != &option_specs[OPT_prompt]; c++)       // a message may quote it, on one line
    REJECT((unsigned char)*c < 32 || *c == 127, "--%s '%.200s': byte 0x%02x is not allowed in a name", s->name, value,
           (unsigned char)*c);
  strcpy(field, value);
  return true;
}
bool option_put(Options *o, int i, const char *value, Error *error) {
  const OptionSpec *s = &option_specs[i];
  char *field = (char *)o + s->offset, is[OPTION_TEXT_BYTES];
  if (i == OPT_batch_size && !strcmp(value, "auto")) value = "0";
  if (s->type == OPTION_TEXT) return option_set_text(field, s, value, error);
  if (s->type == OPTION_CHOICE) {
    if (!option_set_text(is, s, value, error)) return false;
    int k = 0;
    while (strcmp(choice_word(s, k), is)) k++;
    option_choose(o, s, k);
    return true;
  }
  if (s->type != OPTION_FLAG) return option_set_number(field, s, value, !o->given[i], error);
  REJECT(!choice_take("on|off", value, is, sizeof is), "--%s is on or off, not '%.200s'", s->name, value);
  *(bool *)field = !strcmp(is, "on");
  return true;
}
bool option_set(Options *o, int i, const char *value, Error *error) {
  o->given[i] = true;
  return option_put(o, i, value, error);
}

// Copies option i of `from`, and whether it was given.
static void option_copy(Options *o, const Options *from, int i) {
  static const size_t bytes[] = {sizeof(int64_t), sizeof(double), OPTION_TEXT_BYTES, sizeof(int), sizeof(bool)};
  const OptionSpec *s = &option_specs[i];
  memcpy((char *)o + s->offset, (const char *)from + s->offset, bytes[s->type]);
  o->given[i] = from->given[i], o->in_file[i] = from->in_file[i];
}
void option_forget(Options *o, int i) {
  static Options plain;
  options_default(&plain, o->trainer);
  option_copy(o, &plain, i);
}

// ---- names ----------------------------------------------------------------------------------------------------------
// Whether `typed` is name b with one typo: one letter more, less or other, or two swapped, in names of five letters or
// more; in shorter names only a letter doubled, or two swapped. A changed digit is no typo, since digits distinguish
// names (beta1, beta2). Underscores are ignored.
static bool is_slip(const char *typed, const char *b) {
  char x[OPTION_NAME_BYTES], y[OPTION_NAME_BYTES], *to = x;
  for (const char *c = typed; *c; c++) if (*c != '_') *to++ = *c;
  *to = 0, to = y;
  for (const char *c = b; *c; c++) if (*c != '_') *to++ = *c;
  *to = 0;
  const size_t m = strlen(x), n = strlen(y);
  size_t at = 0;
  while (x[at] && x[at] == y[at]) at++;
  if (!x[at] && !y[at]) return true;
  const bool more = m == n + 1 && !strcmp(x + at + 1, y + at), less = n == m + 1 && !strcmp(x + at, y + at + 1);
  const bool other = m == n && !strcmp(x + at + 1, y + at + 1);
  const bool swapped = m == n && m > 2 && x[at] == y[at + 1] && x[at + 1] == y[at] && !strcmp(x + at + 2, y + at + 2);
  const bool doubled = more && at && x[at] == x[at - 1];
  const char *odd = less ? &y[at] : &x[at];
  if (isdigit((unsigned char)*odd) || (!more && isdigit((unsigned char)y[at]))) return false;
  return swapped || doubled || ((more || less || other) && m > 4 && n > 4);
}

// The option that a name on the command line stands for, an OptionId or OPTION_DTYPE; off: the name was --no_NAME.
struct OptionUse { int id; bool off; };

// Copies the next of several names, separated by spaces, and moves *names past it; false at the end.
static bool name_next(const char **names, char word[OPTION_NAME_BYTES]) {
  *names += strspn(*names, " ");
  const int n = (int)strcspn(*names, " ");
  snprintf(word, OPTION_NAME_BYTES, "%.*s", n, *names);
  *names += n;
  return n > 0;
}
static bool names_have(const char *names, const char *name) {
  char word[OPTION_NAME_BYTES];
  while (name_next(&names, word)) {
    char *star = strchr(word, '*');
    if (star ? !strncmp(word, name, (size_t)(star - word)) : !strcmp(word, name)) return true;
  }
  return false;
}
// What to type instead of the name of an option of another program; NULL: no such name is known.
static const char *option_instead(const char *name) {
  for (const OptionName &n : option_names) if (names_have(n.names, name)) return n.say;
  return NULL;
}
// The option with this name, here or in another program, llm.c's with its dash; -1: none.
static int option_index(const char *name) {
  for (int i = 0; i <= OPTION_COUNT; i++)
    if (!strcmp(option_spec(i)->name, name) || names_have(option_spec(i)->also, name)) return i;
  return -1;
}
// The name of the option that `name` is with one typo, by its own name or one of other programs; NULL: none. Looser
// similarity would suggest options with other meanings: --val_size is not --vocab_size.
static const char *option_nearest(const char *name) {
  for (int i = 0; i <= OPTION_COUNT; i++) {
    char word[OPTION_NAME_BYTES];
    const char *names[] = {option_spec(i)->name, option_spec(i)->also};
    for (const char *list : names)
      while (name_next(&list, word)) if (*word != '-' && is_slip(name, word)) return option_spec(i)->name;
  }
  return NULL;
}
// The options whose names start with `name`, which must have two words or more, as text; "" if there are none. One word
// is too little: --weight does not mean --weight_decay.
static const char *options_beginning(const char *name) {
  static char list[512];
  const size_t n = strlen(name);
  list[0] = 0;
  for (const OptionSpec &s : option_specs)
    if (strchr(name, '_') && !strncmp(s.name, name, n) && s.name[n] == '_')
      text_add(list, sizeof list, "%s--%s", list[0] ? ", " : "", s.name);
  return list;
}
// Writes a name in the form that is compared: hyphens become underscores, and the name ends at a '='.
static void option_name_plain(char to[OPTION_NAME_BYTES], const char *typed) {
  snprintf(to, OPTION_NAME_BYTES, "%.*s", (int)strcspn(typed, "="), typed);
  for (char *c = to; *c; c++) if (*c == '-') *c = '_';
}
// What `name` stands for: an option, another program's name of it, or --no_OPTION. False with one line in `error` that
// suggests what was meant: by meaning first, then by spelling.
static bool option_find(const char *name, OptionUse *use, Error *error) {
  *use = OptionUse{option_index(name), false};
  if (use->id >= 0) return true;
  const char *instead = option_instead(name);
  REJECT(instead, "unknown option --%s: %s", name, instead);
  if (!strncmp(name, "no_", 3)) {
    *use = OptionUse{option_index(name + 3), true};
    if (use->id >= 0 && option_has(option_spec(use->id), "off")) return true;
    REJECT(use->id >= 0, "unknown option --%s: --%s is not on or off; see --help %s", name, option_spec(use->id)->name,
           option_spec(use->id)->name);
  }
  const char *like = option_nearest(name);
  REJECT(like, "unknown option --%s: did you mean --%s? See --help", name, like);
  const char *begin = options_beginning(name);
  REJECT(*begin, "unknown option --%s: see %s", name, begin);
  REJECT(true, "unknown option --%s: see --help", name);
}

// ---- the command line -----------------------------------------------------------------------------------------------
// What one command line, or one file, has set so far.
struct OptionSource { bool here[OPTION_COUNT]; char dtype[OPTION_TEXT_BYTES]; };

// Whether the value of --init_from is one of nanoGPT's words, scratch or resume, and not a file or directory here.
static bool init_from_other(const char *value) {
  return (!strcmp(value, "scratch") || !strcmp(value, "resume")) && access(value, F_OK);
}
// Sets an option from a source. value: NULL if the option stands alone; next: then the word after it, or NULL.
static bool source_take(Options *o, OptionSource *from, OptionUse use, const char *value, const char *next,
                        Error *error) {
  const OptionSpec *s = option_spec(use.id);
  REJECT(use.off && value, "--no_%s takes no value, not '%.200s'", s->name, value);
  if (use.off) value = "off";
  else if (!value && option_has(s, "on")) value = "on";
  else if (!value && use.id == OPT_resume) value = "auto";
  REJECT(!value, "--%s needs a value%s", s->name, next && (s->type == OPTION_TEXT || s->type == OPTION_CHOICE) ? " "
         "(one that starts with -- goes after =)" : "");
  if (use.id == OPTION_DTYPE) return option_set_text(from->dtype, s, value, error);
  REJECT(use.id == OPT_init_from && init_from_other(value), "--init_from names weights; %s: %s", value, *value == 's' ?
         "leave it out, new weights are the default" : "type --resume");
  REJECT(use.id == OPT_config && from->here[OPT_config], "--config is given twice: give one file of options");
  from->here[use.id] = true;
  return option_set(o, use.id, value, error);
}
// The end of a source: --dtype sets what the source has not set.
static bool source_end(Options *o, const OptionSource *from, Error *error) {
  int set = 0;
  if (!from->dtype[0]) return true;
  for (OptionId i : dtype_options)
    if (!from->here[i]) set += option_set(o, i, from->dtype, error);
  REJECT(!set, "--dtype %s sets nothing: --param_dtype, --reduce_dtype and --buffer_dtype are all given; leave it out",
         from->dtype);
  return true;
}

// Adds an error about one option, or word, to the line with all errors: the whole message `why`, or only `name` if the
// line gets long. `at`: "PATH:LINE: " of the option, or "".
static void wrong_add(Error *all, const char *at, const char *name, const char *why) {
  char *text = all->text;
  const bool whole = !text[0] || strlen(text) + strlen(at) + strlen(why) < sizeof all->text / 2;
  text_add(text, sizeof all->text, "%s%s", text[0] ? "; " : "", at);
  text_add(text, sizeof all->text, whole ? "%s" : "%.60s too", whole ? why : name);
}
// The error line for an argument that is not an option.
static void reject_word(const char *word, const char *next, Error *error) {
  char name[OPTION_NAME_BYTES];
  const bool dashes = !strncmp(word, "--", 2), dash = word[0] == '-' && !dashes;
  const int letter = dash ? option_index(word) : -1;
  const char *instead = dash ? option_instead(word) : NULL;
  option_name_plain(name, word + (dash ? 1 : 0));
  const int meant = name[0] ? option_index(name) : -1;
  const char *begin = "is not an option: ", *const equals = strchr(word, '=');
  if (dashes)
    fail(error, "'%.200s' names no option: options are like --lr 0.001, see --help", word);
  else if (letter >= 0)
    fail(error, "'%s' %sllm.c's %s is --%s%s%.100s here", word, begin, word, option_specs[letter].name, next ? " " : "",
         next ? next : "");
  else if (instead) fail(error, "'%s' %sllm.c's %s %s", word, begin, word, instead);
  else if (meant >= 0)
    fail(error, "'%.200s' %sdid you mean --%s%.100s? See --help", word, begin, option_spec(meant)->name, equals ?
         equals : "");
  else if (!strncmp(word, "\xe2\x80\x93", 3) || !strncmp(word, "\xe2\x80\x94", 3) || !strncmp(word, "\xe2\x88\x92", 3))
    fail(error, "'%.200s' %sits dash is a longer character than -; type it again", word, begin);
  else if (!dash && !access(word, R_OK))
    fail(error, "'%.200s' %sa file of options goes after --config, see --help", word, begin);
  else fail(error, "'%.200s' %soptions start with --, see --help", word, begin);
}
// Whether the argument after an option is its value. Flags take only words like true.
static bool value_follows(OptionUse use, const char *next) {
  if (!next || use.off) return false;
  return option_spec(use.id)->type == OPTION_FLAG ? word_is_bool(next) : strncmp(next, "--", 2) != 0;
}
// Whether an empty value for an option can only be an unset shell variable: the option names a file or other thing, and
// one leaves it out to name none.
static bool option_names_a_thing(int id) {
  const OptionSpec *s = option_spec(id);
  const bool means_none = id == OPT_prompt || id == OPT_stop || id == OPT_freeze || id == OPT_no_decay ||
                          id == OPT_lr_scale;
  return s->type == OPTION_TEXT && s->text_def && !s->text_def[0] && !means_none;
}
// For --encode OUT and --flight FILE, which take further words: moves *a past them. Those of --encode are counted,
// those of --flight are joined by commas into *value. False: they have too many bytes.
static bool options_take_list(Options *o, int id, int argc, char **argv, int *a, const char **value) {
  static char list[OPTION_TEXT_BYTES];
  bool fits = true;
  if (id == OPT_encode)
    for (o->encode_at = *a + 1; *a + 1 < argc && strncmp(argv[*a + 1], "--", 2); ++*a) o->encode_files++;
  if (id != OPT_flight) return true;
  fits = snprintf(list, sizeof list, "%s", *value) < (int)sizeof list;         // the shell made them of one pattern
  while (*a + 1 < argc && strncmp(argv[*a + 1], "--", 2) && fits)
    fits = text_add(list, sizeof list, ",%s", argv[++*a]);
  *value = list;
  return fits;
}
// Takes the option at argv[*a], and moves *a to its last word. *last: the option before it, or -1; becomes this option.
// False with one line in `error`.
static bool options_take_one(Options *o, OptionSource *from, int argc, char **argv, int *a, int *last, Error *error) {
  const char *word = argv[*a], *next = *a + 1 < argc ? argv[*a + 1] : NULL, *value = strchr(word, '=');
  const bool apart = !value && next && strncmp(next, "--", 2);
  char name[OPTION_NAME_BYTES];
  OptionUse use;
  const int before = *last;
  *last = -1;
  if (strncmp(word, "--", 2) || !word[2] || word[2] == '=') {
    REJECT((before == OPT_data || before == OPT_val_data) && word[0] != '-' && !access(word, R_OK), "'%.200s' stands "
           "after --%s's value: of a pattern the shell makes several words; write it in quotes, --%s 'DIR/*.jsonl', "
           "or names with commas between them", word, option_specs[before].name, option_specs[before].name);
    reject_word(word, next, error);
    option_name_plain(name, word);
    *a += apart && strncmp(word, "--", 2) && (word[0] == '-' || word[0] == '\xe2' || option_index(name) >= 0);
    return false;
  }
  option_name_plain(name, word + 2);
  if (!option_find(name, &use, error)) {
    *a += apart;
    return false;
  }
  if (value) value++;
  else if (value_follows(use, next)) value = next, ++*a;
  REJECT(value && !*value && option_names_a_thing(use.id), "--%s is empty, as a shell variable is that was not set: "
         "give its value, or leave the option out", option_spec(use.id)->name);
  *last = use.id;
  REJECT(value && !options_take_list(o, use.id, argc, argv, a, &value), "--flight: these names have more than %d "
         "bytes: give their directory", OPTION_TEXT_BYTES - 1);
  return source_take(o, from, use, value, next, error);
}
// Takes the options of the command line. All that are wrong are in `error`.
static bool options_take(Options *o, int argc, char **argv, Error *error) {
  OptionSource from = {};
  Error all = {};
  for (int a = 1, last = -1; a < argc; a++) {
    const int first = a;
    if (!options_take_one(o, &from, argc, argv, &a, &last, error))
      wrong_add(&all, "", argv[first], error->text);
  }
  if (!all.text[0]) return source_end(o, &from, error);
  return fail(error, "%s", all.text);
}

// Rejects options of the group "plan" without --plan, since they would have no effect; --json also belongs to
// --interactive and --show_chats.
static bool options_check_plan(const Options *o, Error *error) {
  for (int i = GROUP_PLAN; i < GROUP_OTHER && o->plan == OPT_plan_off; i++)
    REJECT(o->given[i] && i != OPT_plan && !(i == OPT_json && (o->interactive || o->show_chats)), "--%s belongs to "
           "--plan: give that too, or leave it out", option_specs[i].name);
  return true;
}
// --flight reads files of a run that has ended: nothing else has an effect beside it.
static bool options_check_flight(const Options *o, Error *error) {
  for (int i = 0; i < OPTION_COUNT && o->given[OPT_flight]; i++) {
    REJECT(o->given[i] && i != OPT_flight, "--flight compares files and does nothing else: leave --%s out",
           option_specs[i].name);
    REJECT(!o->flight[0], "--flight needs files, OUT/flight-RANK.json, or the directory that they are in");
  }
  return true;
}
bool options_parse(Options *o, const TrainerTable *trainer, int argc, char **argv, Error *error) {
  options_default(o, trainer);
  if (options_take(o, argc, argv, error) && options_check_plan(o, error) && options_check_flight(o, error)) return true;
  text_to_line(error->text, "");
  return false;
}
