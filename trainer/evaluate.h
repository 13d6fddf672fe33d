// evaluate.h: --eval, benchmarks as in lm-evaluation-harness. A part of train_gpt_fsdp.cu.
//
//   a line of --eval FILE                                   task         what is scored
//   {"ctx_a", "ctx_b", "activity_label", "endings", "label"}  hellaswag    each ending after the context
//   {"query", "choices", "gold"}                            choices      each choice after the query
//   {"text"}                                                lambada      the last word after the others
//   {"page"}                                                wikitext     all of the page, in windows without overlap
//
// Texts, tokens and numbers are those of lm-evaluation-harness 0.4.13 (its tasks hellaswag, lambada_openai, wikitext;
// its class HFLM, whose max_length is --seq_len here). --eval_style llmc scores hellaswag as llm.c does: the raw text,
// context and ending encoded separately, acc_norm by the mean over tokens.
// Rank 0 has the texts. Requests are sorted by length and assigned to the ranks in batches of --test_batch_size. The
// sum of a request does not depend on its batch or rank, and sums are added in the order of the file.
#pragma once
#include <locale.h>
#include <wctype.h>
#include <ctype.h>

enum EvalTask { EVAL_HELLASWAG, EVAL_CHOICES, EVAL_LAMBADA, EVAL_WIKITEXT, EVAL_TASKS };
static const struct { const char *name, *text, *more; } eval_tasks[EVAL_TASKS] = {
    {"hellaswag", "ctx_a", "endings"}, {"choices", "query", "choices"}, {"lambada", "text", "text"},
    {"wikitext", "page", "page"}};
// One sequence to score: f->ids[at, at + count), of which the last `targets` tokens are scored. sum: of their
// log-probabilities; wrong: how many were not the most probable. chars, bytes: length of a choice, for acc_norm and
// acc_bytes. EvalDoc: a line of the file, with requests [first, first + requests); gold: index of the right choice;
// words, bytes: of a page.
struct EvalRequest { int64_t at, count, targets; double sum, wrong, chars, bytes; };
struct EvalDoc { int64_t first, requests, gold, words, bytes; };
struct EvalFile {
  EvalTask task;
  int32_t *ids;
  EvalRequest *request;
  EvalDoc *doc;
  int64_t ids_count, requests, docs, rooms[3];
};
static void *eval_room(void *p, int64_t count, int64_t *room, size_t size) {
  if (count <= *room) return p;
  return bpe_resize(p, (size_t)(*room = count + count / 2 + 64), size);
}

// ---- texts as the harness makes them
// Replaces every `from` by `to`, which is no longer, from left to right, in place.
static void eval_replace(char *text, const char *from, const char *to) {
  const size_t n = strlen(from), m = strlen(to);
  char *out = text;
  for (const char *p = text; *p;) {
    if (!strncmp(p, from, n)) memcpy(out, to, m), out += m, p += n;
    else *out++ = *p++;
  }
  *out = 0;
}
// Removes white space at both ends inside each pair of brackets or quotes: re.sub(OPEN\s*([^CLOSE]*?)\s*CLOSE, ...).
static void eval_tighten(char *text, char open, char close) {
  char *out = text;
  for (const char *p = text; *p;) {
    const char *end = *p == open ? strchr(p + 1, close) : NULL;
    *out++ = *p++;
    if (!end) continue;
    const ChatSpan inside = chat_strip(ChatSpan{p, (size_t)(end - p)}, false);
    memmove(out, inside.p, inside.n);
    out += inside.n;
    *out++ = close;
    p = end + 1;
  }
  *out = 0;
}
static void eval_detokenize(char *page) {
  static const char *const before[][2] = {
      {"s '", "s'"}, {" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "}, {" ; ", "; "},
      {" . ", ". "}, {" ! ", "! "}, {" ? ", "? "}, {" , ", ", "}};
  static const char *const after[][2] = {{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="}, {" \u00b0 ", "\u00b0"},
                                         {" \n", "\n"}, {"\n ", "\n"}, {" N ", " 1 "}, {" 's", "'s"}};
  for (const auto &x : before) eval_replace(page, x[0], x[1]);
  for (const char *pair : {"()", "[]", "{}", "\"\"", "''"}) eval_tighten(page, pair[0], pair[1]);
  for (const auto &x : after) eval_replace(page, x[0], x[1]);
}
// hellaswag's cleaning, in place; returns the text, which may start later.
static char *eval_clean(char *text) {
  const ChatSpan s = chat_strip(chat_span(text), false);
  text += s.p - text;
  text[s.n] = 0;
  eval_replace(text, " [title]", ". ");
  char *out = text;
  for (const char *p = text; *p;) {
    const char *end = *p == '[' ? strchr(p, ']') : NULL;
    if (end && !memchr(p, '\n', (size_t)(end - p))) p = end + 1;
    else *out++ = *p++;
  }
  *out = 0;
  eval_replace(text, "  ", " ");
  return text;
}
// Python's str.capitalize: the first character's upper case, lower case of all others. malloc'ed.
static char *eval_capitalize(const char *text) {
  const size_t n = strlen(text);
  const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
  uint8_t *all = (uint8_t *)malloc(4 * n + 1), *out = all;
  int bytes;
  for (const uint8_t *p = (const uint8_t *)text, *end = p + n; p < end; p += bytes) {
    const uint32_t c = utf8_char(p, end, &bytes);
    const bool known = c < 128 || (locale && c < UTF8_BYTE), first = p == (const uint8_t *)text;
    out = utf8_put(out, !known ? c : !locale ? (uint32_t)(first ? toupper((int)c) : tolower((int)c))
                        : first ? (uint32_t)towupper_l(c, locale) : (uint32_t)towlower_l(c, locale));
  }
  *out = 0;
  if (locale) freelocale(locale);
  return (char *)all;
}
// The number of pieces of re.split(r"\s+", text).
static int64_t eval_words(const char *text) {
  const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
  int64_t words = 1;
  int n;
  for (bool was = false; p < end; p += n) {
    const bool is = chat_is_space(utf8_char(p, end, &n));
    words += is && !was;
    was = is;
  }
  return words;
}
static int64_t eval_chars(const char *text) {
  int64_t n = 0;
  for (; *text; text++) n += (*text & 0xc0) != 0x80;
  return n;
}

// ---- requests
// Appends the tokens of a text to f->ids; special: with the BOS token, if the tokenizer adds one. Returns how many.
static int64_t eval_encode(EvalFile *f, const Tokenizer *t, const char *text, size_t bytes, bool special) {
  const int64_t most = f->ids_count + 2 + (int64_t)tokenizer_ids_most(t, bytes);
  f->ids = (int32_t *)eval_room(f->ids, most, &f->rooms[0], sizeof *f->ids);
  int32_t *to = f->ids + f->ids_count;
  const int64_t begins = special && t->adds_bos;
  if (begins) *to = t->bos_id;
  const int64_t n = begins + (bytes ? tokenizer_encode(t, (const uint8_t *)text, bytes, to + begins) : 0);
  f->ids_count += n;
  return n;
}
// Appends the token that stands before a text without context: BOS, else EOS, else that of a newline.
static void eval_encode_begin(EvalFile *f, const Tokenizer *t) {
  int32_t id = t->adds_bos ? t->bos_id : chat_token(t, "<|begin_of_text|>");
  if (id < 0) id = chat_end(t);
  if (id < 0) tokenizer_encode(t, (const uint8_t *)"\n", 1, &id, true);
  f->ids = (int32_t *)eval_room(f->ids, f->ids_count + 1, &f->rooms[0], sizeof *f->ids);
  f->ids[f->ids_count++] = id;
}
// Adds a request; of a sequence longer than most + 1 tokens only the last ones are used.
static EvalRequest *eval_request(EvalFile *f, int64_t at, int64_t count, int64_t targets, int64_t most) {
  f->request = (EvalRequest *)eval_room(f->request, f->requests + 1, &f->rooms[1], sizeof *f->request);
  EvalRequest *r = &f->request[f->requests++];
  const int64_t cut = max64(0, count - most - 1);
  *r = EvalRequest{at + cut, count - cut, min64(targets, count - cut - 1), 0, 0, 1, 1};
  return r;
}
// Adds a request for `text` after `context`, encoded as HFLM does: spaces at the end of the context belong to the text,
// and the text's tokens are those that the whole has more than the context. apart: each is encoded alone.
static EvalRequest *eval_pair(EvalFile *f, const Tokenizer *t, const char *context, const char *text, int64_t most,
                              bool apart) {
  const size_t bytes = apart ? strlen(context) : chat_strip(chat_span(context), false, false, true).n;
  const int64_t at = f->ids_count;
  char *whole = NULL;
  if (asprintf(&whole, "%s%s", context, text) < 0) die_missing("no memory for a text of --eval");
  if (!bytes) eval_encode_begin(f, t);
  else eval_encode(f, t, whole, bytes, !apart);
  const int64_t before = f->ids_count - at;
  if (apart || !bytes) eval_encode(f, t, bytes ? text : whole, strlen(bytes ? text : whole), false);
  else f->ids_count = at, eval_encode(f, t, whole, strlen(whole), true);
  free(whole);
  return eval_request(f, at, f->ids_count - at, f->ids_count - at - before, most);
}
// Adds a page as requests of `most` targets each. The first follows eval_encode_begin's token; the last, with fewer
// targets, has as much context as fits.
static void eval_page(EvalFile *f, const Tokenizer *t, const char *page, int64_t most) {
  const int64_t at = f->ids_count + 1;
  eval_encode_begin(f, t);
  const int64_t n = eval_encode(f, t, page, strlen(page), true);
  for (int64_t from = 0; from < n; from += most) {
    const int64_t end = min64(n, from + most), first = from ? end - most - 1 : -1;
    eval_request(f, at + first, end - first, end - from, most);
  }
}
// The index of the right choice, a whole number, also as a string; -1: it is none, as "" in HellaSwag's test split.
static int64_t eval_gold(const cJSON *x) {
  const char *text = cJSON_GetStringValue(x);
  const size_t n = text ? strspn(text, "0123456789") : 0;
  if (text) return n && n < 10 && !text[n] ? atoll(text) : -1;
  const double value = cJSON_IsNumber(x) ? x->valuedouble : -1;
  return value >= 0 && value < 1e9 && value == floor(value) ? (int64_t)value : -1;
}
// Adds the document of one line and its requests. False: the line lacks fields that its task needs.
static bool eval_line(EvalFile *f, const Tokenizer *t, const cJSON *line, int64_t most, bool llmc) {
  const auto text = [&](const char *name) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, name));
  };
  const char *a = text(eval_tasks[f->task].text), *b = text("ctx_b"), *label = text("activity_label");
  const cJSON *choices = cJSON_GetObjectItemCaseSensitive(line, eval_tasks[f->task].more), *choice;
  const cJSON *gold = cJSON_GetObjectItemCaseSensitive(line, f->task == EVAL_HELLASWAG ? "label" : "gold");
  f->doc = (EvalDoc *)eval_room(f->doc, f->docs + 1, &f->rooms[2], sizeof *f->doc);
  EvalDoc *d = &f->doc[f->docs++];
  *d = EvalDoc{f->requests, 0, gold ? eval_gold(gold) : 0, 0, 0};
  if (!a) return false;
  char *own = NULL, *context = NULL;
  if (f->task == EVAL_WIKITEXT) {
    d->words = eval_words(a), d->bytes = (int64_t)strlen(a);
    eval_detokenize(own = strdup(a));
    eval_page(f, t, own, most);
  } else if (f->task == EVAL_LAMBADA) {
    const char *last = strrchr(a, ' ');
    own = strndup(a, last ? (size_t)(last - a) : 0);
    if (asprintf(&context, " %s", last ? last + 1 : a) < 0) return false;
    eval_pair(f, t, own, context, most, false);
  } else {
    if (!gold || !cJSON_IsArray(choices) || (f->task == EVAL_HELLASWAG && (!b || !label))) return false;
    char *upper = f->task == EVAL_HELLASWAG ? eval_capitalize(b) : NULL;
    if ((upper ? asprintf(&own, "%s: %s %s", label, a, upper) : asprintf(&own, "%s", a)) < 0) return false;
    if (llmc && text("ctx")) free(own), own = strdup(text("ctx"));
    free(upper);
    char *const query = upper && !llmc ? eval_clean(own) : own;
    bool texts = true;
    cJSON_ArrayForEach(choice, choices) {
      if (!(texts = texts && cJSON_IsString(choice))) break;
      char *said = strdup(choice->valuestring), *clean = upper && !llmc ? eval_clean(said) : said, *behind = NULL;
      if (asprintf(&behind, " %s", clean) < 0) return false;
      EvalRequest *r = eval_pair(f, t, query, behind, most, llmc);
      r->chars = llmc ? (double)r->targets : (double)eval_chars(clean), r->bytes = (double)strlen(clean);
      free(said);
      free(behind);
    }
    if (!texts) return free(own), false;
  }
  d->requests = f->requests - d->first;
  free(own);
  free(context);
  return d->requests > 0 && d->gold >= 0 && d->gold < max64(1, d->requests);
}
// Reads a file and makes its requests, with windows of `most` tokens. False with one line in `error`. Rank 0.
static bool eval_read(EvalFile *f, const char *path, const Tokenizer *t, int64_t most, bool llmc, Error *error) {
  int64_t bytes, number = 1;
  char *all = file_get(path, 1LL << 32, &bytes);
  *f = EvalFile{};
  REJECT(!all, "--eval: cannot read %.900s: %s", path, file_get_fault());
  for (char *line = all, *end; line < all + bytes && !error->text[0]; line = end + 1, number++) {
    end = (char *)memchr(line, '\n', (size_t)(all + bytes - line));
    if (!end) end = all + bytes;
    Error fault;
    if (!chat_check_line((const uint8_t *)line, (size_t)(end - line), &fault)) {
      fail(error, "--eval: line %lld of %.900s: %s", (long long)number, path, fault.text);
      break;
    }
    cJSON *json = cJSON_ParseWithLength(line, (size_t)(end - line));
    int task = 0;
    while (task < EVAL_TASKS && !cJSON_HasObjectItem(json, eval_tasks[task].text)) task++;
    if (!f->docs) f->task = (EvalTask)task;
    if (f->task == EVAL_TASKS || !eval_line(f, t, json, most, llmc))
      fail(error, "--eval: line %lld of %.900s is not what a task needs: see docs/generate.md", (long long)number,
           path);
    cJSON_Delete(json);
  }
  free(all);
  REJECT(!error->text[0] && !f->docs, "--eval: %.900s is empty", path);
  return !error->text[0];
}
static void eval_free(EvalFile *f) {
  free(f->ids);
  free(f->request);
  free(f->doc);
}

// ---- scores
static const EvalRequest *eval_sorted;           // the requests whose indices eval_longest_first compares
static int eval_longest_first(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  const int64_t longer = eval_sorted[y].count - eval_sorted[x].count;
  return longer ? (longer > 0 ? 1 : -1) : x < y ? -1 : 1;
}
// Computes sum and wrong of every request, on every rank. Returns what a signal has asked for: then not all are
// computed. All ranks call it.
static Stop trainer_score(Trainer *t, EvalFile *f) {
  const int64_t N = fsdp_world(t->fsdp), E = t->opt.test_batch_size, batches = (f->requests + E - 1) / E;
  int64_t *order = (int64_t *)malloc(sizeof *order * (size_t)f->requests);
  double *sums = (double *)calloc((size_t)f->requests * 2, sizeof *sums);
  for (int64_t i = 0; i < f->requests; i++) order[i] = i;
  eval_sorted = f->request;
  qsort(order, (size_t)f->requests, sizeof *order, eval_longest_first);
  liveness_phase("evaluation");
  fsdp_step_begin(t->fsdp, false);
  Stop stop = STOP_NOT;
  for (int64_t round = 0; round * N < batches && !(stop = agree_on_stop(fsdp_comm(t->fsdp))); round++) {
    const int64_t first = (round * N + fsdp_rank(t->fsdp)) * E;
    const int64_t longest = first < f->requests ? f->request[order[first]].count - 1 : 1;
    const int T = (int)min64(t->model.T, round_up(longest, 16));
    trainer_carve(t, (int)E, T, PASS_EVAL);
    memset(t->host.inputs, 0, sizeof(int32_t) * (size_t)(E * T));
    for (int64_t i = 0; i < E * T; i++) t->host.targets[i] = -1;
    for (int64_t e = 0; e < E && first + e < f->requests; e++) {
      const EvalRequest *r = &f->request[order[first + e]];
      memcpy(t->host.inputs + e * T, f->ids + r->at, sizeof(int32_t) * (size_t)(r->count - 1));
      for (int64_t i = r->count - 1 - r->targets; i < r->count - 1; i++)
        t->host.targets[e * T + i] = f->ids[r->at + i + 1];
    }
    trainer_enqueue_eval(t, (int)E, T);
    fsdp_sync(t->fsdp);
    for (int64_t i = 0; i < E * T; i++) {
      if (t->host.targets[i] < 0) continue;
      double *s = sums + 2 * order[first + i / T];
      s[0] -= t->host.row_losses[i], s[1] += !t->host.row_correct[i];
    }
    char line[64];
    const double done = (double)min64(batches, (round + 1) * N) / (double)batches;
    snprintf(line, sizeof line, "evaluation: %.0f %%", 100 * done);
    if (!fsdp_rank(t->fsdp) && terminal.out) line_draw(line, true);
  }
  MPI_Allreduce(MPI_IN_PLACE, sums, fsdp_mpi_count(2 * f->requests), MPI_DOUBLE, MPI_SUM, fsdp_comm(t->fsdp));
  for (int64_t i = 0; i < f->requests; i++) f->request[i].sum = sums[2 * i], f->request[i].wrong = sums[2 * i + 1];
  for (int64_t i = 0; i < f->requests; i++) expect_finite(t, isfinite(sums[2 * i]), "log-probabilities of --eval");
  free(order);
  free(sums);
  return stop;
}
// Whether the choice with the largest score, the first of equal ones, is d->gold. Score by 0: sum; 1: sum / characters;
// 2: sum / bytes.
static bool eval_right(const EvalFile *f, const EvalDoc *d, int by) {
  int64_t best = 0;
  double most = -INFINITY;
  for (int64_t i = 0; i < d->requests; i++) {
    const EvalRequest *r = &f->request[d->first + i];
    const double x = r->sum / (by == 1 ? r->chars : by == 2 ? r->bytes : 1);
    if (x > most) most = x, best = i;
  }
  return best == d->gold;
}
// The metrics of a task, with their names in the harness.
static void eval_numbers(const EvalFile *f, EvalNumber to[EVAL_NUMBERS]) {
  double sum = 0, greedy = 0, right[3] = {}, words = 0, bytes = 0;
  const double n = (double)f->docs;
  for (int64_t k = 0; k < f->docs; k++) {
    const EvalDoc *d = &f->doc[k];
    for (int64_t i = 0; i < d->requests; i++) sum += f->request[d->first + i].sum;
    greedy += f->request[d->first].wrong == 0;
    for (int by = 0; by < 3; by++) right[by] += eval_right(f, d, by);
    words += (double)d->words, bytes += (double)d->bytes;
  }
  const EvalNumber choices[] = {{"acc", right[0] / n}, {"acc_norm", right[1] / n}, {"acc_bytes", right[2] / n}};
  const EvalNumber lambada[] = {{"acc", greedy / n}, {"perplexity", exp(-sum / n)}, {NULL, 0}};
  const EvalNumber wikitext[] = {{"word_perplexity", exp(-sum / words)}, {"byte_perplexity", exp(-sum / bytes)},
                                 {"bits_per_byte", -sum / bytes / M_LN2}};
  memcpy(to, f->task == EVAL_LAMBADA ? lambada : f->task == EVAL_WIKITEXT ? wikitext : choices,
         sizeof(EvalNumber) * EVAL_NUMBERS);
}
// Evaluates the files of --eval, separated by commas; results go to the terminal and metrics.jsonl. Returns what a
// signal has asked for: then the file that it interrupted, and those after it, have no results. All ranks call it.
static Stop trainer_eval_files(Trainer *t) {
  const int rank = fsdp_rank(t->fsdp);
  const bool llmc = t->opt.eval_style == OPT_eval_style_llmc;
  MPI_Comm comm = fsdp_comm(t->fsdp);
  char names[OPTION_TEXT_BYTES], *save = NULL;
  Error error = {};
  Stop stop = STOP_NOT;
  strcpy(names, t->opt.eval);
  for (char *path = strtok_r(names, ",", &save); path && !stop; path = strtok_r(NULL, ",", &save)) {
    EvalFile f = {};
    EvalFileResult r = {};
    const double began = now_ms();
    if (!rank) eval_read(&f, path, &t->run.corpus->tokenizer, t->model.T, llmc, &error);
    agree_no_error(comm, error.text, EXIT_USAGE);
    int64_t counts[2] = {f.ids_count, f.requests};
    MPI_Bcast(counts, 2, MPI_INT64_T, 0, comm);
    f.ids_count = counts[0], f.requests = counts[1];
    if (rank) f.ids = (int32_t *)malloc(sizeof(int32_t) * (size_t)counts[0] + 1);
    if (rank) f.request = (EvalRequest *)malloc(sizeof(EvalRequest) * (size_t)counts[1] + 1);
    MPI_Bcast(f.ids, fsdp_mpi_count(counts[0]), MPI_INT32_T, 0, comm);
    MPI_Bcast(f.request, fsdp_mpi_count(counts[1] * (int64_t)sizeof(EvalRequest)), MPI_BYTE, 0, comm);
    stop = trainer_score(t, &f);
    if (!rank) eval_numbers(&f, r.number);
    r.run = &t->run, r.path = path, r.task = eval_tasks[f.task].name, r.llmc = llmc && f.task == EVAL_HELLASWAG;
    r.texts = f.docs, r.tokens = f.ids_count, r.seconds = (now_ms() - began) / 1000;
    if (!rank && !stop) log_eval_file(t->run.log, &r);
    eval_free(&f);
  }
  return stop;
}
