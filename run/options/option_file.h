// option_file.h: options in a file. --config FILE reads them; every run that trains writes its own to OUT/options.txt,
// from which it can be repeated. One option per line:
//
//   lr = 0.001             # also: lr 0.001, lr: 0.001, --lr 0.001, --lr=0.001
//   save_model             # alone, as on the command line
//   prompt = "a #, a \"quote\",\n and \x01"     or 'as it is'
#pragma once
#include "option_values.h"

enum { CONFIG_MOST_BYTES = 1 << 20 };

// The text of the file of --config, malloc'ed. NULL and one line in `error`.
static char *config_read(const char *path, int64_t *bytes, Error *error) {
  char *text = file_get(path, CONFIG_MOST_BYTES, bytes);
  const char *why = errno == EISDIR ? "it is a directory" : errno == EFBIG ? "it is larger than 1 MiB"
                    : file_get_fault();
  if (!text) {
    fail(error, "--config %.800s cannot be read: %s", path, why);
    return NULL;
  }
  int line = 1;
  for (int64_t i = 0; i < *bytes; i++) {
    const unsigned char c = (unsigned char)text[i];
    line += c == '\n';
    if ((c >= 32 && c != 127) || c == '\n' || c == '\r' || c == '\t') continue;
    fail(error, "--config %.800s is not text: byte 0x%02x in line %d", path, c, line);
    free(text);
    return NULL;
  }
  return text;
}

// ---- one line -------------------------------------------------------------------------------------------------------
static char *config_skip_blanks(char *c) { return c + strspn(c, " \t\r"); }

// Unquotes a value in place: `from` is at the first quote. Returns what follows the closing quote, NULL if there is
// none. Double quotes know \\, \", \n, \t, \r and \xHH; single quotes change nothing.
static char *config_unquote(char *from, char **value) {
  const char quote = *from;
  char *to = *value = ++from;
  for (; *from && *from != quote; from++) {
    if (quote == '\'' || *from != '\\') { *to++ = *from; continue; }
    const char *const escapes = "\\\"ntr", *const means = "\\\"\n\t\r";
    const char *at = *++from ? strchr(escapes, *from) : NULL;
    if (at) *to++ = means[at - escapes];
    else if (*from == 'x' && isxdigit((unsigned char)from[1]) && isxdigit((unsigned char)from[2])) {
      const char digits[] = {from[1], from[2], 0};
      *to = (char)strtol(digits, NULL, 16);
      if (!*to++) return NULL;
      from += 2;
    } else return NULL;
  }
  if (!*from) return NULL;
  *to = 0;
  return from + 1;
}
// Splits a line in place. name: NULL if the line is empty; value: NULL if the name stands alone. False with what is
// wrong.
static bool config_split(char *line, char **name, char **value, Error *error) {
  char *c = config_skip_blanks(line), *end;
  *name = *value = NULL;
  if (!*c || *c == '#') return true;
  if (!strncmp(c, "--", 2)) c += 2;
  *name = c;
  end = c + strcspn(c, " \t\r=:");
  REJECT(end == c, "there is no option name: lines are like lr = 0.001");
  c = config_skip_blanks(end);
  const bool separated = *c == '=' || *c == ':';
  if (separated) c = config_skip_blanks(c + 1);
  REJECT(separated && *c == '#', "a value that starts with # needs quotes, and an empty one is \"\"");
  const bool nothing = !*c || *c == '#';
  *end = 0;
  if (nothing) {
    if (separated) *value = end;                 // an empty value
    return true;
  }
  if (*c == '"' || *c == '\'') {
    REJECT(!(end = config_unquote(c, value)), "the value of %.100s has no closing quote, or an escape other than \\\\, "
           "\\\", \\n, \\t, \\r, \\xHH", *name);
    end = config_skip_blanks(end);
    REJECT(*end && *end != '#', "'%.100s' follows the closing quote", end);
    return true;
  }
  *value = c;
  for (end = c; *end && !(*end == '#' && (end[-1] == ' ' || end[-1] == '\t'));) end++;
  while (strchr(" \t\r", end[-1])) end--;
  *end = 0;
  return true;
}
// Takes the option of one line.
static bool config_take(Options *o, OptionSource *from, char *line, Error *error) {
  char *typed, *value, name[OPTION_NAME_BYTES];
  OptionUse use;
  if (!config_split(line, &typed, &value, error)) return false;
  if (!typed) return true;
  if (*typed == '-' || *typed == '\xe2') {                      // -x, or a longer dash, as on a command line
    reject_word(typed, value, error);
    return false;
  }
  option_name_plain(name, typed);
  if (!option_find(name, &use, error)) return false;
  REJECT(use.id == OPT_config, "a file of options cannot name another: --config is for the command line");
  REJECT(value && !*value && option_names_a_thing(use.id), "--%s is empty: give its value, or take the line out",
         option_spec(use.id)->name);
  return source_take(o, from, use, value, NULL, error);
}

// ---- a whole file ---------------------------------------------------------------------------------------------------
// Options of a file's text. False with one line in `error`, of all that are wrong, each with its PATH:LINE.
static bool config_take_all(Options *o, const char *path, const char *text, Error *error) {
  OptionSource from = {};
  char at[PATH_MAX], name[OPTION_NAME_BYTES], *copy = strdup(text), *line = copy;
  Error why = {};
  int number = 0;
  error->text[0] = 0;
  if (!strncmp(line, "\xef\xbb\xbf", 3)) line += 3;              // a byte order mark
  for (char *end; line; line = end) {
    end = strchr(line, '\n');
    if (end) *end++ = 0;
    number++;
    if (error->text[0]) snprintf(at, sizeof at, "line %d: ", number);
    else snprintf(at, sizeof at, "%.800s:%d: ", path, number);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(config_skip_blanks(line), " \t\r=:"), config_skip_blanks(line));
    if (!config_take(o, &from, line, &why)) wrong_add(error, at, name, why.text);
  }
  if (!error->text[0] && !source_end(o, &from, &why)) fail(error, "%.800s: %s", path, why.text);
  free(copy);
  return !error->text[0];
}
// Adds the options of the file's text to those of the command line, which win. False with one line in `error`.
static bool options_add_config(Options *o, const char *path, const char *text, Error *error) {
  // Only one of each pair can be meant: one on the command line replaces the other in the file.
  static const OptionId pairs[][2] = {{OPT_resume, OPT_init_from}, {OPT_grad_accum, OPT_global_batch}};
  static Options file;
  options_default(&file, o->trainer);
  const bool ok = config_take_all(&file, path, text, error);
  for (const auto &pair : pairs)
    for (int i = 0; i < 2; i++) if (o->given[pair[i]]) file.given[pair[!i]] = false;
  for (int i = 0; ok && i < OPTION_COUNT; i++) {
    if (o->given[i] || !file.given[i]) continue;
    option_copy(o, &file, i);
    o->in_file[i] = true;
  }
  const bool plans = ok && o->in_file[OPT_plan] && o->plan != OPT_plan_off;     // no run may become a plan unseen
  if (plans) fail(error, "--plan is for the command line, and %.800s has it: take it out", path);
  if (ok && !plans && options_check_plan(o, error)) return true;
  text_to_line(error->text, "");
  return false;
}
bool options_read_config(Options *o, Error *error) {
  int64_t bytes;
  char *text = o->config[0] ? config_read(o->config, &bytes, error) : NULL;
  if (text) options_add_config(o, o->config, text, error);
  free(text);
  return !error->text[0];
}
void config_name_source(const Options *o, Error *error) {
  char found[1024] = "";
  for (int i = 0; i < OPTION_COUNT; i++) {
    const char *name = option_specs[i].name, *at = error->text;
    while (o->in_file[i] && (at = strstr(at, "--"))) {
      at += 2;
      const size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz_0123456789");
      if (length != strlen(name) || strncmp(at, name, length)) continue;
      text_add(found, sizeof found, "%s--%s", found[0] ? ", " : "", name);
      break;
    }
  }
  if (found[0])
    text_add(error->text, sizeof error->text, "; %.800s gives %s, which the command line may replace", o->config,
             found);
}

// ---- OUT/options.txt ------------------------------------------------------------------------------------------------
// A value as config_split reads it back.
static void config_write_value(FILE *f, const char *value) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:,*+@%~^|-";
  if (*value && !value[strspn(value, plain)]) { fputs(value, f); return; }
  fputc('"', f);
  for (const char *c = value; *c; c++) {
    if (*c == '"' || *c == '\\') fprintf(f, "\\%c", *c);
    else if (*c == '\n') fputs("\\n", f);
    else if ((unsigned char)*c < 32 || *c == 127) fprintf(f, "\\x%02x", (unsigned char)*c);
    else fputc(*c, f);
  }
  fputc('"', f);
}
// One value; a number with the fewest digits that give the same number back.
static void option_print_short(char *to, size_t bytes, const Options *o, const OptionSpec *s) {
  option_print(to, bytes, o, s);
  if (s->type != OPTION_NUM) return;
  const double x = strtod(to, NULL);
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(to, bytes, "%.*g", digits, x);
    if (strtod(to, NULL) == x) return;
  }
}
// Whether the value of option i in a resumed run, where it was not given, can only come from the checkpoint: it is
// neither the default (plain) nor follows from other options: of_model, resolved from --model alone, which decides
// --seq_len; of_shape, resolved from the model, --param_dtype, batch size and sequence length, which decide the rest.
static bool option_is_of_checkpoint(const Options *asked, int i, const Options *plain, const Options *of_model,
                                    const Options *of_shape) {
  char value[OPTION_TEXT_BYTES], is_default[OPTION_TEXT_BYTES], follows[OPTION_TEXT_BYTES];
  const bool begins = i == OPT_model || i == OPT_param_dtype || i == OPT_batch_size;
  const Options *base = begins ? plain : i == OPT_seq_len ? of_model : of_shape;
  const bool steps = asked->schedule == OPT_schedule_step;
  if (i == OPT_gamma && !steps) return false;    // --gamma would choose --schedule step, or contradict --schedule
  if (i == OPT_schedule && asked->given[OPT_gamma]) return false;                // the schedule follows from --gamma
  option_print(value, sizeof value, asked, &option_specs[i]);
  option_print(is_default, sizeof is_default, plain, &option_specs[i]);
  option_print(follows, sizeof follows, base, &option_specs[i]);
  return strcmp(value, is_default) && strcmp(value, follows);
}
// Writes the head of OUT/options.txt. from: the checkpoint that the run continues from, or "".
static void options_write_head(FILE *f, const Options *asked, const Options *o, int ranks, const char *from) {
  char file[OPTION_TEXT_BYTES + 32];
  snprintf(file, sizeof file, "%s/options.txt", o->out);
  fprintf(f, "# Options of a run of train_gpt_fsdp %s (%s) on %d rank%s; all others have their defaults. To repeat "
          "it\n# in another directory: mpirun -np %d ./train_gpt_fsdp --config", PROGRAM_VERSION, build_id, ranks,
          ranks > 1 ? "s" : "", ranks);
  shell_word(f, file);
  if (from[0] && !strcmp(asked->resume, "auto")) {               // auto would look into the new directory
    fputs(" --resume", f);
    shell_word(f, from);
  }
  fputs(" --out DIRECTORY\n", f);
}
// Writes the options that make the run: those that were given and, for a resumed run, those of its checkpoint. `asked`
// has them unresolved, so that what was auto is auto again on another machine. The batch is written for all ranks
// together, so that another number of ranks takes the same steps. from: see options_write_head.
static void options_write(FILE *f, const Options *asked, const Options *o, int ranks, const char *from) {
  static Options plain, of_model, of_shape;
  char value[OPTION_TEXT_BYTES];
  Error error = {};
  options_default(&plain, o->trainer);
  of_model = plain;
  strcpy(of_model.model, asked->model);
  of_shape = of_model;
  of_shape.param_dtype = asked->param_dtype;
  of_shape.batch_size = asked->batch_size, of_shape.seq_len = asked->seq_len;
  options_resolve(&of_model, 1, 1, &error);
  options_resolve(&of_shape, 1, 1, &error);
  options_write_head(f, asked, o, ranks, from);
  for (int i = 0; i < OPTION_COUNT; i++) {
    const OptionSpec *s = &option_specs[i];
    option_print_short(value, sizeof value, asked, s);
    bool wanted = asked->given[i] ||
                  (asked->resume[0] && option_is_of_checkpoint(asked, i, &plain, &of_model, &of_shape));
    if (i == OPT_config || i == OPT_grad_accum || i == OPT_restarts || i == OPT_restart_wait) continue;
    if (i == OPT_global_batch) option_print_short(value, sizeof value, o, s), wanted = o->global_batch > 0;
    if (i == OPT_vocab_size && o->vocab_size_asked > 0)          // the trained tokenizer may have fewer tokens
      snprintf(value, sizeof value, "%lld", (long long)o->vocab_size_asked);
    const char *directory = i == OPT_data && !value[0] ? getenv("WIKITEXT2_DIR") : NULL;
    if (directory && *directory) snprintf(value, sizeof value, "%s", directory), wanted = true;
    if (!wanted) continue;
    fprintf(f, "%s = ", s->name);
    config_write_value(f, value);
    fputc('\n', f);
  }
}
void options_save(const Options *asked, const Options *o, int ranks, const char *from) {
  char path[OPTION_TEXT_BYTES + 32], *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  if (f) options_write(f, asked, o, ranks, from);
  const bool made = f && !fclose(f);
  snprintf(path, sizeof path, "%s/options.txt", o->out);
  if (!made || !file_put(path, o->out, text, (int64_t)bytes))
    say_error("warning: %s cannot be written: %s\n", path, strerror(errno));
  free(text);
}
void take_config(Options *o, MPI_Comm comm) {
  char *text = NULL;
  Error error = {};
  int64_t bytes = -1;
  const int rank = comm_rank(comm);
  if (!rank && o->config[0]) text = config_read(o->config, &bytes, &error);
  agree_no_error(comm, error.text, EXIT_USAGE);
  MPI_Bcast(&bytes, 1, MPI_INT64_T, 0, comm);
  if (bytes < 0) return;                         // agree_on_run reports a rank that was given another --config
  if (rank) text = (char *)calloc(1, (size_t)bytes + 1);
  MPI_Bcast(text, (int)bytes, MPI_CHAR, 0, comm);
  options_add_config(o, o->config, text, &error);
  free(text);
  agree_no_error(comm, error.text, EXIT_USAGE);
}
