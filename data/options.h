// options.h: from argv to struct Options, and to --help. The trainer's OPTIONS table, from which all of it is made,
// comes before this file.
//
//   options_default, options_parse    values; every error is one line
//   option_print, option_set          one value as text and back
//   options_help                      the page
#pragma once

static void options_default(Options *o) {
  memset(o, 0, sizeof *o);
  for (const OptionSpec &s : option_specs) {
    char *field = (char *)o + s.offset;
    if (s.type == OPTION_INT) *(int64_t *)field = (int64_t)s.def;
    if (s.type == OPTION_NUM) *(double *)field = s.def;
    if (s.type == OPTION_TEXT) snprintf(field, OPTION_TEXT_BYTES, "%s", s.text_def);
  }
}

// One value as text; the same text gives the same value back.
static void option_print(char *to, size_t bytes, const Options *o, const OptionSpec *s) {
  const char *field = (const char *)o + s->offset;
  if (s->type == OPTION_INT) snprintf(to, bytes, "%lld", (long long)*(const int64_t *)field);
  if (s->type == OPTION_NUM) snprintf(to, bytes, "%.17g", *(const double *)field);
  if (s->type == OPTION_TEXT) snprintf(to, bytes, "%s", field);
  if (s->type == OPTION_FLAG) snprintf(to, bytes, "%s", *(const bool *)field ? "on" : "off");
}

static bool choice_has(const char *choices, const char *value) {
  size_t n = strlen(value);
  for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL)
    if (!strncmp(c, value, n) && (c[n] == '|' || !c[n]) && n) return true;
  return false;
}

// In a function that returns false and one line in `error`: refuses when cond holds. A longer line is cut.
#define REFUSE(cond, ...) do { if (cond) return snprintf(error, error_bytes, __VA_ARGS__) < 0; } while (0)

// Stores `value` for option i. False with one line in `error` when it does not fit.
static bool option_set(Options *o, int i, const char *value, char *error, size_t error_bytes) {
  const OptionSpec *s = &option_specs[i];
  char *field = (char *)o + s->offset, *end;
  o->given[i] = true;
  errno = 0;
  if (s->type == OPTION_FLAG) {
    bool on = !strcmp(value, "on");
    REFUSE(!on && strcmp(value, "off"), "--%s is on or off, not '%s'", s->name, value);
    *(bool *)field = on;
  } else if (s->type == OPTION_TEXT) {
    REFUSE(s->choices && !choice_has(s->choices, value), "--%s '%s' is not known: choose one of %s", s->name, value,
           s->choices);
    REFUSE(strlen(value) >= OPTION_TEXT_BYTES, "--%s is longer than %d bytes", s->name, OPTION_TEXT_BYTES - 1);
    strcpy(field, value);
  } else {
    double x = s->type == OPTION_INT ? (double)strtoll(value, &end, 10) : strtod(value, &end);
    REFUSE(end == value || *end || x != x, "--%s needs %s, not '%s'", s->name,
           s->type == OPTION_INT ? "a whole number" : "a number", value);
    REFUSE(x < s->lo || x > s->hi || (s->type == OPTION_INT && errno == ERANGE),
           "--%s %s is out of range: %.10g to %.10g", s->name, value, s->lo, s->hi);
    if (s->type == OPTION_INT) *(int64_t *)field = strtoll(value, NULL, 10);
    else *(double *)field = x;
  }
  return true;
}

// Edit distance, for "did you mean"; 0 when `a` only stops too early.
static int edit_distance(const char *a, const char *b) {
  int row[64], n = (int)strlen(b);
  if (n > 62) return 99;
  if (*a && !strncmp(a, b, strlen(a))) return 0;
  for (int j = 0; j <= n; j++) row[j] = j;
  for (int i = 0; a[i]; i++) {
    int diagonal = row[0];
    row[0] = i + 1;
    for (int j = 0; j < n; j++) {
      int replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      int best = row[j] < diagonal ? row[j] + 1 : diagonal + 1;
      row[j + 1] = replaced < best ? replaced : best;
    }
  }
  return row[n];
}

// Reads argv. Hyphens and underscores in names are the same. False with one line in `error`.
static bool options_parse(Options *o, int argc, char **argv, char *error, size_t error_bytes) {
  options_default(o);
  for (int a = 1; a < argc; a++) {
    char name[128];
    REFUSE(strncmp(argv[a], "--", 2) || !argv[a][2], "'%s' is not an option: options start with --, see --help",
           argv[a]);
    snprintf(name, sizeof name, "%s", argv[a] + 2);
    const char *value = strchr(argv[a], '=');
    if (strchr(name, '=')) *strchr(name, '=') = 0;
    for (char *c = name; *c; c++) if (*c == '-') *c = '_';
    int found = -1, nearest = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
      if (!strcmp(option_specs[i].name, name)) found = i;
      if (edit_distance(name, option_specs[i].name) < edit_distance(name, option_specs[nearest].name)) nearest = i;
    }
    if (found < 0) {
      const char *like = option_specs[nearest].name;
      const bool near = edit_distance(name, like) <= 1 + (int)strlen(like) / 4;
      snprintf(error, error_bytes, "unknown option --%s: %s%s%s", name, near ? "did you mean --" : "", near ? like : "",
               near ? "? See --help" : "see --help");
      return false;
    }
    if (value) value++;
    else if (option_specs[found].type == OPTION_FLAG) value = "on";
    else if (a + 1 < argc && strncmp(argv[a + 1], "--", 2)) value = argv[++a];
    else {
      const bool refused = a + 1 < argc && option_specs[found].type == OPTION_TEXT;
      snprintf(error, error_bytes, "--%s needs a value%s", name,
               refused ? " (one that starts with -- goes behind =)" : "");
      return false;
    }
    if (!option_set(o, found, value, error, error_bytes)) return false;
  }
  return true;
}

static void options_help() {
  printf("train_gpt_fsdp %s: trains a GPT-2-style model, fully sharded over MPI ranks\n"
         "usage: [mpirun -np N] ./train_gpt_fsdp [--option value]...      names take _ or -\n", PROGRAM_VERSION);
  const char *group = "";
  for (const OptionSpec &s : option_specs) {
    if (strcmp(group, s.group)) printf("\n%s\n", s.group);
    group = s.group;
    char left[160], def[64] = "";
    Options o;
    options_default(&o);
    option_print(def, sizeof def, &o, &s);
    if (s.type == OPTION_NUM) snprintf(def, sizeof def, "%g", s.def);
    const char *const value[] = {"N", "X", s.choices ? s.choices : "TEXT", ""};        // by OptionType
    snprintf(left, sizeof left, "--%s %s", s.name, value[s.type]);
    if (strlen(left) <= 34) printf("  %-34s %s", left, s.help);
    else printf("  %s\n  %-34s %s", left, "", s.help);
    if (s.type != OPTION_FLAG && def[0]) printf(" [%s]", def);
    printf("\n");
  }
  printf("\nother\n  %-34s this page\n  %-34s version\n", "--help", "--version");
}
