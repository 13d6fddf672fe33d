// out.h: OUT belongs to one run, which overwrites its own files and nothing else. Whether a file that is there already
// is a run's is detected by its content, before the corpus is read and memory is taken.
#pragma once
#include "run.h"

// Marks that this program's files have within their first 64 KiB.
static const char mark_of_export[] = "\"written_by\":\t\"train_gpt_fsdp ";
static const char mark_of_adapter[] = "\"train_gpt_fsdp_base_hash\"";
static const char mark_of_options[] = "# Options of a run of train_gpt_fsdp ";
static const char mark_of_metrics[] = "{\"kind\":\"run\",\"version\":";

// The first of `names` (which NULL ends) that is a regular file in `directory` and not empty; NULL: none is.
static inline const char *overwrite_there(const char *directory, const char *const *names) {
  char path[OPTION_TEXT_BYTES + 64];
  struct stat st;
  for (; *names; names++) {
    snprintf(path, sizeof path, "%s/%s", directory, *names);
    if (!stat(path, &st) && S_ISREG(st.st_mode) && st.st_size) return *names;
  }
  return NULL;
}
// Whether a run of this program has written into OUT. If so, all files there with names that a run writes are its own.
static bool overwrite_out_is_ours(const char *out) {
  char path[OPTION_TEXT_BYTES + 64];
  struct stat st;
  snprintf(path, sizeof path, "%s/ckpt", out);
  if (!stat(path, &st)) return true;
  snprintf(path, sizeof path, "%s/options.txt", out);
  if (file_has_mark(path, mark_of_options, true)) return true;
  snprintf(path, sizeof path, "%s/metrics.jsonl", out);
  return file_has_mark(path, mark_of_metrics, true);
}
// Where PATH leads, of which the end need not be there yet.
static void path_leads(const char *path, char *to, size_t room) {
  char head[OPTION_TEXT_BYTES], there[PATH_MAX];
  size_t n = (size_t)snprintf(head, sizeof head, "%s", path);
  while (!realpath(n ? head : ".", there)) {
    if (!n) { snprintf(there, sizeof there, "."); break; }         // nor is the current directory there
    while (n && head[n - 1] == '/') n--;
    while (n && head[n - 1] != '/') n--;
    head[n] = 0;
  }
  size_t length = (size_t)snprintf(to, room, "%s", strcmp(there, "/") ? there : "");
  for (const char *at = path + n; *at; at += strspn(at, "/")) {
    const int part = (int)strcspn(at, "/");
    if (part && (part > 1 || *at != '.')) length += (size_t)snprintf(to + length, room - length, "/%.*s", part, at);
    at += part;
  }
}
// Whether a path is DIRECTORY/NAME, or below it. Both as path_leads has them.
static bool path_is_in(const char *path, const char *directory, const char *name) {
  char at[PATH_MAX + OPTION_TEXT_BYTES + 64];
  const size_t n = (size_t)snprintf(at, sizeof at, "%s/%s", directory, name);
  return !strncmp(path, at, n) && (!path[n] || path[n] == '/');
}
// Rejects a run of which one output would replace another. written: the names in OUT, ended by NULL.
static bool overwrite_own_reject(const Options *o, const char *const *written, Error *error) {
  char out[PATH_MAX + OPTION_TEXT_BYTES], hf[sizeof out] = "", trace[sizeof out] = "";
  path_leads(o->out, out, sizeof out);
  if (o->export_hf[0]) path_leads(o->export_hf, hf, sizeof hf);
  if (o->trace[0]) path_leads(o->trace, trace, sizeof trace);
  REJECT(path_is_in(hf, out, "ckpt"), "--export_hf %.900s would write among checkpoints: give it another directory",
         o->export_hf);
  REJECT(o->export_hf[0] && !strcmp(hf, out) && o->save_model && (!o->lora || o->merge), "--save_model and --export_hf "
         "%.900s would both write model.safetensors there: give --export_hf another directory", o->export_hf);
  bool twice = path_is_in(trace, out, "ckpt") || path_is_in(trace, out, "metrics.jsonl");
  for (; *written; written++) twice = twice || path_is_in(trace, out, *written);
  REJECT(twice, "--trace %.900s is where this run writes something else: name another file", o->trace);
  return true;
}
// Rejects a run that would overwrite a file that this program has not written. False with one line in `error`.
static bool overwrite_reject(const Options *o, Error *error) {
  static const char *const exported[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                         "tokenizer_config.json", NULL};
  static const char *const adapter[] = {"adapter_config.json", "adapter_model.safetensors",
                                        o->train_rows[0] || o->add_tokens[0] ? "tokenizer.json" : NULL, NULL};
  const char *written[7] = {}, **next = written;
  if (run_trains(o)) *next++ = "options.txt", *next++ = "tokenizer.json";
  if (!strcmp(o->report, "on")) *next++ = "report.html";
  if (sample_file(o)) *next++ = sample_file(o);
  if (o->save_model) *next++ = "model.safetensors";
  if (o->export_gguf != OPT_export_gguf_off) *next++ = o->lora && !o->merge ? "adapter.gguf" : "model.gguf";
  if (!overwrite_own_reject(o, written, error)) return false;
  char path[OPTION_TEXT_BYTES + 64];
  struct stat st;
  const bool there = o->trace[0] && !stat(o->trace, &st);
  REJECT(there && !S_ISREG(st.st_mode), "--trace %.900s is %s: name a file", o->trace, file_type_words(st.st_mode));
  REJECT(there && !trace_is_ours(o->trace), "--trace %.900s is there, and no trace of this program: name another file",
         o->trace);
  for (const char *name : {"metrics.jsonl", sample_file(o)}) {   // written in place
    snprintf(path, sizeof path, "%s/%s", o->out, name ? name : "");
    const char *other = name ? file_other_words(path) : NULL;
    REJECT(other, "%.900s is %s, and a run writes a file there: remove it, or name another directory by --out", path,
           other);
  }
  const char *name = overwrite_out_is_ours(o->out) ? NULL : overwrite_there(o->out, written);
  REJECT(name, "--out %.900s has a %s, and nothing tells that a run of this program has written it: name another "
         "directory", o->out, name);
  snprintf(path, sizeof path, "%s/trainer.json", o->export_hf);
  const bool checkpoint = !access(path, F_OK);   // which saver_check rejects in its own words
  snprintf(path, sizeof path, "%s/config.json", o->export_hf);
  const bool free = !o->export_hf[0] || checkpoint || file_has_mark(path, mark_of_export, false);
  name = free ? NULL : overwrite_there(o->export_hf, exported);
  snprintf(path, sizeof path, "%s/adapter_model.safetensors", o->export_hf);
  if (!name && o->export_hf[0] && !file_has_mark(path, mark_of_adapter, false))
    name = overwrite_there(o->export_hf, adapter);
  REJECT(name, "--export_hf %.900s has a%s %s that this program has not written: name another directory", o->export_hf,
         *name == 'a' ? "n" : "", name);
  return true;
}

// Keeps other runs from training into the same OUT, if it exists by now, until this process ends, by a lock on
// OUT/.lock. Waits 5 s for a run that is just being killed: it may still finish a checkpoint. False and a line in
// `error`: another run has the lock. A warning says so if the file system has no locks, or none that other hosts see.
static bool lock_out(const Options *o, Error *error) {
  static int held = -1;
  static bool told;
  char path[OPTION_TEXT_BYTES + 8];
  struct stat st;
  snprintf(path, sizeof path, "%s/.lock", o->out);
  if (held >= 0 || told || !run_trains(o) || access(o->out, W_OK | X_OK)) return true;
  for (int tries = 0; (held = file_lock(path)) < 0 && errno == EWOULDBLOCK; tries++) {
    REJECT(tries == 50, "--out %.800s: another run is writing there; give this one another directory", o->out);
    usleep(100000);
  }
  const int fault = errno;
  const bool local = held >= 0 && !fstat(held, &st) && file_locks_are_local("/proc/self/mountinfo", st.st_dev);
  if (held < 0) say("warning: %s cannot be locked: %s; let no other run write to --out\n", path, strerror(fault));
  if (local)
    say("warning: %s is locked on this host only (mount options); let no run of another host write to --out\n", path);
  told = held < 0;
  return true;
}
// Makes the directories OUT and that of --export_hf and checks that they can be written, before the corpus is read and
// memory is taken. One line in `error`. Returns the exit code that goes with it.
static int check_out(const Options *o, Error *error) {
  const struct { const char *option, *path; bool wanted; } directories[] = {
      {"--out", o->out, true}, {"--export_hf", o->export_hf, o->export_hf[0] != 0}};
  for (const auto &d : directories) {
    char inside[OPTION_TEXT_BYTES + 4];
    snprintf(inside, sizeof inside, "%s/.", d.path);
    if (!d.wanted || error->text[0]) continue;
    if (!make_directories(d.path))
      fail(error, "%s %.800s cannot be made: %s", d.option, d.path, strerror(errno));
    else if (access(inside, W_OK | X_OK))
      fail(error, "%s %.800s cannot be written: %s", d.option, d.path, strerror(errno));
  }
  return !error->text[0] && !lock_out(o, error) ? EXIT_LOST : EXIT_MISSING;
}
