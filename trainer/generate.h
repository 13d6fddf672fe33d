// generate.h: text from a model, token by token. A part of train_gpt_fsdp.cu.
//
//   draw          the next token from logits: penalty, temperature, top_k, top_p, min_p; Philox by seed, text and place
//   passes        a prompt in one pass, which leaves k and v of every block in the KV cache; then one token per pass
//   texts         a batch of texts until each ends: at an end token, a stop text, or its length
//   print_sample  --prompt to the terminal and OUT/sample.txt, --prompts to OUT/samples.jsonl
//
// Every rank takes part in every pass, because the model is sharded, each with texts of its own; rank 0, which has the
// tokenizer, prints the texts. A text depends on neither the number of ranks nor the other texts of its batch. On a CPU
// in fp32 its logits are bitwise identical to those of one pass over all of its tokens (attention_cached.cuh, gemm.h).
// Beyond the model's P positions, each further token computes the last P tokens again, at positions 0 to P - 1.
#pragma once

// ---- draw
struct Candidate { double logit; int32_t id; };
// Writes the k most probable of V tokens into c, most probable first, ties by id. seen: NULL, or for each token whether
// --repetition_penalty applies to its logit.
static void candidates_take(Candidate *c, int64_t k, const float *logits, int64_t V, const uint8_t *seen,
                            double penalty) {
  int64_t n = 0;
  for (int64_t i = 0; i < V; i++) {
    const double x = logits[i], logit = !seen || !seen[i] ? x : x < 0 ? x * penalty : x / penalty;
    if (n == k && logit <= c[n - 1].logit) continue;
    int64_t low = 0, high = n < k ? n : n - 1;
    for (int64_t end = high, middle; low < end;) {
      middle = (low + end) / 2;
      if (c[middle].logit >= logit) low = middle + 1;
      else end = middle;
    }
    n += n < k;
    memmove(c + low + 1, c + low, sizeof *c * (size_t)(n - 1 - low));
    c[low] = Candidate{logit, (int32_t)i};
  }
}
static int candidate_order(const void *a, const void *b) {     // most probable first, ties by id
  const Candidate *x = (const Candidate *)a, *y = (const Candidate *)b;
  return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->id - y->id;
}
// How many of k candidates, from the first on, top_p and min_p keep, by probabilities of logits / temperature.
static int64_t candidates_cut(const Candidate *c, int64_t k, double temperature, double top_p, double min_p) {
  double total = 0, sum = 0;
  for (int64_t i = 0; i < k; i++) total += exp((c[i].logit - c[0].logit) / temperature);
  int64_t n = 0;
  while (n < k && (!n || (sum < top_p * total || top_p == 1))) sum += exp((c[n++].logit - c[0].logit) / temperature);
  while (n > 1 && exp((c[n - 1].logit - c[0].logit) / temperature) < min_p) n--;
  return n;
}
// Samples the next token from logits (V), as the options say; `uniform` in [0, 1). seen: see candidates_take. The order
// is that of transformers: penalty, temperature, top_k, top_p of the tokens that are left, min_p. With --sampler
// llama_cpp, top_p and min_p use probabilities without the temperature.
static int32_t sample_token(const float *logits, int64_t V, const Options *o, const uint8_t *seen, double uniform) {
  const int64_t most = o->temperature == 0 ? 1 : o->top_k && o->top_k < V ? o->top_k : V;
  Candidate *c = (Candidate *)malloc(sizeof(Candidate) * (size_t)V);
  const double T = o->temperature, cuts_at = o->sampler == OPT_sampler_llama_cpp ? 1 : T;
  if (most <= 1024) {
    candidates_take(c, most, logits, V, seen, o->repetition_penalty);
  } else {
    for (int64_t i = 0; i < V; i++) candidates_take(c + i, 1, logits + i, 1, seen ? seen + i : NULL,
                                                    o->repetition_penalty), c[i].id = (int32_t)i;
    qsort(c, (size_t)V, sizeof *c, candidate_order);
  }
  const int64_t k = most == 1 ? 1 : candidates_cut(c, most, cuts_at, o->top_p, o->min_p);
  double total = 0, sum = 0;
  for (int64_t i = 0; i < k; i++) total += k == 1 ? 1 : exp((c[i].logit - c[0].logit) / T);
  int64_t pick = 0;
  for (; pick < k - 1; pick++) {
    sum += exp((c[pick].logit - c[0].logit) / T);
    if (sum > uniform * total) break;
  }
  const int32_t id = c[pick].id;
  free(c);
  return id;
}

// ---- passes
// Zeroes the first `positions` positions of each text in the KV cache, which are all that these texts will read. The
// others are not touched: where memory is new to the process, the operating system would take longer to give it a whole
// cache than the first token takes.
static void trainer_clear_cache(Trainer *t, int64_t positions) {
  for (int l = 0; l < t->model.L; l++) {
    const Tensor cache = t->acts.block[l].cache;
    const size_t row = (size_t)cache.shape[2] * dtype_bytes(cache.dtype), text = (size_t)cache.shape[1] * row;
    for (int64_t b = 0; b < cache.shape[0]; b++)
      t->ctx.ops->zero(&t->ctx, (char *)cache.data + (size_t)b * text, (size_t)positions * row);
  }
}
// Enqueues the logits of `rows` rows of ln_f, from row `first` on, and their copy to t->host.logits, from text `text`
// on.
static void trainer_enqueue_logits(Trainer *t, int64_t first, int64_t rows, int64_t text) {
  Tensor logits = tensor_of(t->acts.logits.data, F32, rows, t->model.Vp);
  head_logits(t, logits, rows_of(rows2d(t->acts.ln_f), first, rows));
  fsdp_release(t->fsdp, 0);
  t->ctx.ops->copy(&t->ctx, t->host.logits + text * t->model.Vp, logits.data, sizeof(float) * (size_t)numel(logits));
}
// Enqueues a pass over the T tokens of text `text`, which are in t->host: it fills the text's part of the KV cache and
// computes the logits after its last token.
static void trainer_enqueue_prompt(Trainer *t, int text, int T) {
  t->fills = text;
  trainer_load_batch(t, 0, 1, T);
  gpt_forward(t, Microbatch{0, PASS_SAMPLE});
  trainer_enqueue_logits(t, T - 1, 1, text);
}
// Enqueues a pass over the last token of each of `texts` texts, which is in t->host.inputs; t->host.starts has minus
// its position.
static void trainer_enqueue_next(Trainer *t, int texts) {
  t->fills = -1;
  trainer_load_batch(t, 0, texts, 1);
  gpt_forward(t, Microbatch{0, PASS_SAMPLE});
  trainer_enqueue_logits(t, 0, texts, 0);
}

// ---- texts
// Called with bytes as they are made, on the rank that has the text.
typedef void (*TokenSink)(void *to, const uint8_t *bytes, int length_bytes);
enum ContinuedEnd { END_NOT, END_TOKEN, END_STOP, END_LENGTH, END_ASKED, END_NOT_FINITE };
static const char *const end_words[] = {"", "end", "stop", "length", "asked", "not_finite"};
// A text that is continued. ids: its `count` tokens, the caller's, with space for `most` generated ones, of which there
// are `made`. said: the said_bytes bytes generated, without the stop text that has ended them; the caller frees it.
// told: how many of these bytes the sink has been given. number: of the text, for its random numbers. Rank 0: first_ms
// and last_ms, the time from the start of the pass over its prompt to its first and its last token.
struct Continued {
  int32_t *ids;
  int64_t count, most;
  uint32_t number, made;
  ContinuedEnd end;
  uint8_t *said;
  size_t said_bytes, told, room;
  double first_ms, last_ms;
};
// How fast a text was generated, in words. It has at least one generated token.
static const char *rate_words(const Continued *x) {
  static char words[128];
  const int n = snprintf(words, sizeof words, "%u token%s, the first after %.3f s", x->made, x->made == 1 ? "" : "s",
                         x->first_ms / 1000);
  if (x->made > 1)
    snprintf(words + n, sizeof words - (size_t)n, ", then %.1f tokens/s",
             (x->made - 1) * 1000 / fmax(x->last_ms - x->first_ms, 1e-3));
  return words;
}
// Copies the next stop text of --stop's list from *at, which moves on, into `to`, with the escapes \\, \|, \n and \t
// replaced. Returns its length in bytes; 0: there is none.
static size_t stop_next(const char **at, char to[OPTION_TEXT_BYTES]) {
  size_t n = 0;
  for (; **at && (**at != '|' || !n); ++*at) {
    const char next = **at == '\\' ? (*at)[1] : 0;
    if (**at == '|') continue;
    to[n++] = next == 'n' ? '\n' : next == 't' ? '\t' : next == '|' || next == '\\' ? next : **at;
    if (next && strchr("nt|\\", next)) ++*at;
  }
  return n;
}
// If a stop text starts in the generated bytes that the sink has not been given, cuts the output there, ends the text,
// and returns 0. Else returns how many of the output's last bytes may be the start of a stop text, and so are held
// back.
static size_t text_stops(Continued *x, const char *stops) {
  char stop[OPTION_TEXT_BYTES];
  size_t held = 0;
  for (size_t n; (n = stop_next(&stops, stop));) {
    const uint8_t *from = x->said + x->told;
    const uint8_t *at = (const uint8_t *)memmem(from, x->said_bytes - x->told, stop, n);
    if (at) x->said_bytes = (size_t)(at - x->said), x->end = END_STOP;
    for (size_t k = min64((int64_t)n - 1, (int64_t)(x->said_bytes - x->told)); k > held; k--)
      if (!memcmp(x->said + x->said_bytes - k, stop, k)) held = k;
  }
  return x->end ? 0 : held;
}
// Whether `first`, the first byte of the output, is a space that the output does not have: after a special token, some
// tokenizers encode a text with a space before it, which decoding strips (Tokenizer.strips).
static bool text_strips(const Tokenizer *k, const Continued *x, uint8_t first) {
  bool after_special = false;
  for (int i = 0; i < k->added_count; i++) after_special = after_special || k->added[i].id == x->ids[x->count - 2];
  return k->strips && x->made == 1 && first == ' ' && after_special;
}
// The EOS tokens that the model's files name, and its chat template, beside those that have the usual names.
struct EndIds { int32_t id[16]; int count; };
// Rank 0: adds the bytes of a text's newest token to its output, ends the text if it is complete, and gives the sink
// all bytes that are not held back.
static void text_says(Trainer *t, Continued *x, const EndIds *ends, TokenSink sink, void *to) {
  const int32_t id = x->ids[x->count - 1];
  char number[16];
  int length = snprintf(number, sizeof number, " %d", id);       // without a tokenizer: the id itself
  const uint8_t *bytes = (const uint8_t *)number;
  const Tokenizer *k = t->run.corpus->has_tokenizer ? &t->run.corpus->tokenizer : NULL;
  if (k) bytes = tokenizer_token_bytes(k, id, &length);
  if (k && length && text_strips(k, x, *bytes)) bytes++, length--;
  bool last = k && chat_ends(k, id);
  for (int i = 0; i < ends->count; i++) last = last || ends->id[i] == id;
  if (last) x->end = END_TOKEN, length = 0;
  if (x->said_bytes + (size_t)length > x->room)
    x->said = (uint8_t *)bpe_resize(x->said, x->room = 2 * x->room + (size_t)length + 256, 1);
  memcpy(x->said + x->said_bytes, bytes, (size_t)length);
  x->said_bytes += (size_t)length;
  const size_t held = x->end ? 0 : text_stops(x, t->opt.stop);
  if (!x->end && x->made == x->most) x->end = END_LENGTH;
  const size_t until = x->said_bytes - (x->end ? 0 : held);
  if (sink && until > x->told) sink(to, x->said + x->told, (int)(until - x->told));
  x->told = until;
}
// Samples the next token of a text from the first V logits; NOT_DRAWN if one of them is not finite. The random number
// follows from --seed, the text's number and the token's place.
enum : int32_t { NOT_DRAWN = INT32_MAX };
static int32_t text_draw(const Trainer *t, const Continued *x, const float *logits, int64_t V) {
  const Options *o = &t->opt;
  for (int64_t i = 0; i < V; i++) if (!isfinite(logits[i])) return NOT_DRAWN;
  const Philox r = philox4x32((uint64_t)o->seed, Philox{x->made, x->number, 0, 0xfffffffeu});
  uint8_t *seen = o->repetition_penalty == 1 ? NULL : (uint8_t *)calloc((size_t)t->model.V, 1);
  const int64_t from = o->sampler == OPT_sampler_llama_cpp ? max64(0, x->count - 64) : 0;
  for (int64_t i = from; seen && i < x->count; i++) seen[x->ids[i]] = 1;
  const int32_t id = sample_token(logits, V, o, seen, r.x * 0x1p-32);
  free(seen);
  return id;
}
// Set on rank 0 to end the texts that are being generated.
static volatile sig_atomic_t generation_asked;

// Computes the logits after the last token of each text that this rank has, into t->host.logits. again: by a pass over
// all tokens of the text, at most the last P, which fills its KV cache; else by a pass over its last token.
static void texts_pass(Trainer *t, const Continued *text, int n, bool again) {
  static const int32_t none = 0;
  const int N = fsdp_world(t->fsdp), rows = (n + N - 1) / N;
  const int64_t P = t->model.P;
  for (int b = 0; b < rows; b++) {               // as many on all ranks: one without a text computes a token
    const int i = b * N + fsdp_rank(t->fsdp);
    const int64_t count = i < n ? text[i].count : 1, T = again ? min64(count, P) : 1;
    if (again) trainer_carve(t, 1, (int)T, PASS_SAMPLE);
    const int64_t at = again ? 0 : b;
    memcpy(t->host.inputs + at, i < n ? text[i].ids + count - T : &none, sizeof(int32_t) * (size_t)T);
    for (int64_t k = at; k < at + T; k++) t->host.starts[k] = again ? 0 : -(int32_t)(min64(count, P) - 1);
    if (!again) continue;
    trainer_enqueue_prompt(t, b, (int)T);
    fsdp_sync(t->fsdp);
  }
  if (again) return;
  trainer_carve(t, rows, 1, PASS_SAMPLE);
  trainer_enqueue_next(t, rows);
  fsdp_sync(t->fsdp);
}
// Continues n texts, at most sample_sequences per rank, until each ends. Text i is computed by rank i mod N. Afterwards
// every rank has the tokens of all texts, rank 0 also their bytes and how each ended. All ranks call it.
static void trainer_generate(Trainer *t, Continued *text, int n, TokenSink sink, void *to) {
  const int N = fsdp_world(t->fsdp), rank = fsdp_rank(t->fsdp);
  int32_t *drawn = (int32_t *)malloc(sizeof(int32_t) * (size_t)n), *ends = (int32_t *)calloc((size_t)n, sizeof *ends);
  int64_t V = t->model.V;                        // the embedding may have more rows than the tokenizer has tokens
  if (!rank && t->run.corpus->has_tokenizer) V = min64(V, t->run.corpus->tokenizer.vocab_size);
  MPI_Bcast(&V, 1, MPI_INT64_T, 0, fsdp_comm(t->fsdp));
  EndIds named = {};
  if (!rank && t->run.corpus->has_tokenizer) named.count = run_ends(&t->run, named.id, 16);
  const double began = now_ms();
  liveness_phase("sampling");
  fsdp_step_begin(t->fsdp, false);
  trainer_carve(t, 1, (int)t->model.P, PASS_SAMPLE);
  int64_t positions = 1;
  for (int i = 0; i < n; i++) positions = max64(positions, text[i].count + text[i].most);
  trainer_clear_cache(t, min64(positions, t->model.P));
  bool again = true;
  for (int left = n; left;) {
    texts_pass(t, text, n, again);
    again = false;
    for (int i = 0; i < n; i++)
      drawn[i] = i % N == rank && !ends[i] ? text_draw(t, &text[i], t->host.logits + i / N * t->model.Vp, V) : -1;
    MPI_Allreduce(MPI_IN_PLACE, drawn, n, MPI_INT32_T, MPI_MAX, fsdp_comm(t->fsdp));
    for (int i = 0; i < n; i++) {
      // After training, whose weights are saved, only the sample ends; a run that only samples ends with an error.
      const bool finite = drawn[i] != NOT_DRAWN, trained = run_trains(&t->opt);
      expect_finite(t, finite || trained, "logits of a sample");
      if (!finite && !rank && !ends[i]) say_error("warning: the sample ends here: its logits are not finite\n");
      if (!finite) text[i].end = END_NOT_FINITE, ends[i] = END_NOT_FINITE;
      if (ends[i]) continue;
      text[i].ids[text[i].count++] = drawn[i];
      text[i].made++;
      again = again || text[i].count > t->model.P;
      if (rank) continue;
      text[i].last_ms = now_ms() - began;
      if (text[i].made == 1) text[i].first_ms = text[i].last_ms;
      text_says(t, &text[i], &named, sink, to);
      if (!text[i].end && generation_asked) text[i].end = END_ASKED;
      ends[i] = text[i].end;
    }
    MPI_Bcast(ends, n, MPI_INT32_T, 0, fsdp_comm(t->fsdp));
    left = 0;
    for (int i = 0; i < n; i++) left += !ends[i];
  }
  free(drawn);
  free(ends);
}
// Continues `ids` (`count` tokens, at least one, the same on all ranks, with space for `more`) by `more` tokens or
// until the text ends. All ranks call it.
static Continued trainer_sample(Trainer *t, int32_t *ids, int64_t count, int64_t more, TokenSink sink, void *to) {
  Continued x = {};
  x.ids = ids, x.count = count, x.most = more;
  if (more) trainer_generate(t, &x, 1, sink, to);
  free(x.said);
  x.said = NULL;
  return x;
}

// ---- prompts
static void sink_stdout_and_file(void *to, const uint8_t *bytes, int length) {
  say_bytes(bytes, length);
  if (to) fwrite(bytes, 1, (size_t)length, (FILE *)to);
}
// Whether prompts are a user's messages: if the model was fine-tuned on conversations, or if --prompt_as says so.
static bool prompt_is_chat(const Options *o) {
  const bool chats = strcmp(o->chat_template, "auto") && (o->prompt[0] || o->prompts[0]);
  return o->prompt_as == OPT_prompt_as_user || (chats && o->prompt_as == OPT_prompt_as_auto);
}
// The template that renders chats, in words.
static const char *template_words(const Options *o) {
  static char words[OPTION_TEXT_BYTES + 32];
  snprintf(words, sizeof words, "the template of %s", o->chat_template);
  return strcmp(o->chat_template, "model") ? words : "the model's own template";
}
// Rank 0: the tokens of a prompt. False: k->fault. The caller frees k->ids and k->trained.
static bool prompt_tokens(const Options *o, const Tokenizer *t, const char *words, const char *why, const char *prompt,
                          ChatTokens *k) {
  const ChatOptions chat = chat_options(o, words, why);
  const Chat c = chat_open(&chat, t);
  if (prompt_is_chat(o)) return chat_prompt(&c, k, prompt);
  const size_t bytes = strlen(prompt);
  k->ids = (int32_t *)bpe_resize(NULL, 1 + tokenizer_ids_most(t, bytes), sizeof *k->ids);
  k->count = tokenizer_begin(t, (const uint8_t *)prompt, bytes, k->ids);
  return true;
}
// The tokens of rank 0's prompt, on every rank, with space for `more`. The caller frees them. All ranks call it.
static int32_t *prompt_ids(const Trainer *t, const char *prompt, int64_t more, int64_t *count) {
  ChatTokens k = {};
  if (t->run.corpus->has_tokenizer) prompt_tokens(&t->opt, &t->run.corpus->tokenizer, t->run.chat, "", prompt, &k);
  *count = max64(1, k.count);
  MPI_Bcast(count, 1, MPI_INT64_T, 0, fsdp_comm(t->fsdp));
  int32_t *ids = (int32_t *)calloc((size_t)(*count + more), sizeof(int32_t));
  if (k.count) memcpy(ids, k.ids, sizeof(int32_t) * (size_t)k.count);
  free(k.ids);
  free(k.trained);
  MPI_Bcast(ids, (int)*count, MPI_INT32_T, 0, fsdp_comm(t->fsdp));
  return ids;
}
// What happens to a text of `count` tokens that is longer than the model's positions, in words; "" if it is not.
static const char *positions_words(const Trainer *t, int64_t count) {
  static char words[160];
  snprintf(words, sizeof words, "; beyond %lld tokens, its positions, the model computes the last %lld for each",
           (long long)t->model.P, (long long)t->model.P);
  return count > t->model.P ? words : "";
}
// Closes rank 0's file (NULL: it could not be made). Returns whether all of it has been written; if not, rank 0 prints
// one line. All ranks call it.
static bool sample_file_close(const Trainer *t, FILE *file, const char *path) {
  int written = !fsdp_rank(t->fsdp) && file && !fflush(file) && !ferror(file);
  const int fault = errno;
  if (file && fclose(file)) written = false;
  if (!fsdp_rank(t->fsdp) && !written)
    say_error("%s: %s cannot be written: %s\n", who_am_i, path, file ? strerror(fault) : file_own_fault(path));
  MPI_Bcast(&written, 1, MPI_INT, 0, fsdp_comm(t->fsdp));
  return written;
}
// The prompt of a sample if no prompt was given in a run that fine-tunes on conversations: all of the first
// conversation for validation (else for training) before its first answer, with space for `more` tokens. The caller
// frees it. NULL: there is none, for example because the conversation starts with tokens that are trained on.
static int32_t *sample_question(const Trainer *t, int64_t more, int64_t *count) {
  const Options *o = &t->opt;
  const Split *split = t->run.corpus->split, *s = &split[split[SPLIT_VALID].documents ? SPLIT_VALID : SPLIT_TRAIN];
  if (!run_trains(o) || !s->documents || o->prompt[0] || o->prompt_as == OPT_prompt_as_text) return NULL;
  int64_t n = 1;
  while (n < s->tokens_numel && !split_begins(s, n) && !split_trained(s, n)) n++;
  if (n < 2 || n == s->tokens_numel || split_begins(s, n)) return NULL;
  int32_t *ids = (int32_t *)calloc((size_t)(n + more), sizeof *ids);
  for (int64_t i = 0; i < n; i++) ids[i] = split_token(s, i);
  *count = n;
  return ids;
}
// Streams a sample to the terminal and OUT/sample.txt. Returns whether the file was written. All ranks call it.
static bool print_sample(Trainer *t) {
  const Options *o = &t->opt;
  const bool first = fsdp_rank(t->fsdp) == 0;
  int64_t count;
  int32_t *ids = sample_question(t, o->sample_tokens, &count);
  const bool asks = ids != NULL;                 // the prompt is a question of the data
  if (!asks) ids = prompt_ids(t, o->prompt, o->sample_tokens, &count);
  FILE *file = NULL;
  char path[OPTION_TEXT_BYTES + 32];
  snprintf(path, sizeof path, "%s/sample.txt", o->out);
  if (first) {
    file = file_own(path, true);
    const bool chat = asks || prompt_is_chat(o);
    const Split *valid = &t->run.corpus->split[SPLIT_VALID];
    say("sample (temperature %g, top-k %lld%s%s%s):\n", o->temperature, (long long)o->top_k,
        !chat ? "" : !asks ? ", the prompt as a user's message by "
        : valid->documents ? ", the first question for validation" : ", the first question trained on",
        chat && !asks ? template_words(o) : "",
        positions_words(t, count + o->sample_tokens));
    if (!chat) sink_stdout_and_file(file, (const uint8_t *)o->prompt, (int)strlen(o->prompt));
    for (int64_t i = 0; chat && i < count; i++) {
      int n;
      const uint8_t *bytes = tokenizer_token_bytes(&t->run.corpus->tokenizer, ids[i], &n);
      sink_stdout_and_file(file, bytes, n);
    }
  }
  const Continued x = trainer_sample(t, ids, count, o->sample_tokens, sink_stdout_and_file, file);
  free(ids);
  if (first) say_bytes(NULL, 0);
  if (first && x.made) say("%s\n", rate_words(&x));
  return sample_file_close(t, file, path);
}

// Reads the lines of --prompts; in a .jsonl the key "prompt" has the text. Returns how many; -1: `error` says what is
// wrong. The caller frees *text and (*text)[0], which is the memory of all texts.
static int64_t prompts_read(const Options *o, char ***text, Error *error) {
  enum { MOST_BYTES = 1 << 30 };
  const bool json = name_ends(o->prompts, ".jsonl");
  int64_t bytes, count = 0;
  char *all = file_get(o->prompts, MOST_BYTES, &bytes);
  *text = NULL;
  if (!all) fail(error, "--prompts: cannot read %.900s: %s", o->prompts, file_get_fault());
  if (!all) return -1;
  if (!strncmp(all, "\xef\xbb\xbf", 3)) memmove(all, all + 3, (size_t)(bytes -= 3) + 1);  // a byte order mark
  for (char *line = all, *end, *next; line < all + bytes; line = next) {
    end = (char *)memchr(line, '\n', (size_t)(all + bytes - line));
    if (!end) end = all + bytes;
    next = end + 1;
    if (end > line && end[-1] == '\r') end--;     // of a line that ends as on Windows
    *end = 0;
    *text = (char **)bpe_resize(*text, (size_t)count + 1, sizeof **text);
    Error fault;
    const bool whole = !json || chat_check_line((const uint8_t *)line, (size_t)(end - line), &fault);
    cJSON *parsed = json && whole ? cJSON_Parse(line) : NULL;
    const char *prompt = json ? cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(parsed, "prompt")) : line;
    if (!whole)
      fail(error, "--prompts: line %lld of %.900s: %s", (long long)count + 1, o->prompts, fault.text);
    else if (!prompt || memchr(line, 0, (size_t)(end - line)))
      fail(error, "--prompts: line %lld of %.900s is not %s", (long long)count + 1, o->prompts, json ? "{\"prompt\": "
           "TEXT}" : "text");
    else (*text)[count++] = (char *)memmove(line, prompt, strlen(prompt) + 1);    // never longer than its line
    cJSON_Delete(parsed);
    if (error->text[0]) break;
  }
  if (!count && !error->text[0]) fail(error, "--prompts: %.900s is empty", o->prompts);
  if (!error->text[0]) return count;
  free(all);
  free(*text);
  return -1;
}
// Checks that this corpus and these files have what prompts, --interactive and --eval need; else one line in `error`.
// words: the template that renders chats (Start.chat); why: why there is none.
static void generate_check(const Options *o, const Corpus *corpus, const char *words, const char *why, Error *error) {
  ChatTokens k = {};
  const bool asks = o->prompt[0] || o->prompts[0], needs = o->interactive || o->eval[0];
  char **text = NULL;
  if (needs && !corpus->has_tokenizer)
    fail(error, "--%s needs the model's tokenizer: --tokenizer PATH", o->interactive ? "interactive" : "eval");
  else if (asks && !corpus->has_tokenizer)
    fail(error, "--%s needs text to train a tokenizer on; --data %.800s holds tokens", o->prompt[0] ? "prompt" :
         "prompts", o->data);
  else if (o->prompts[0] && prompts_read(o, &text, error) > 0) free(text[0]), free(text);
  if (error->text[0] || !prompt_is_chat(o)) return;
  if (!corpus->has_tokenizer || !prompt_tokens(o, &corpus->tokenizer, words, why, o->prompt, &k))
    fail(error, "--prompt_as user: the prompt %s", corpus->has_tokenizer ? k.fault.text : "needs the tokenizer of "
         "conversations");
  free(k.ids);
  free(k.trained);
}
// Continues the prompts of --prompts, sample_sequences per rank at once, and adds the results to OUT/samples.jsonl in
// the order of the prompts, until a signal asks for an end (*stop). Whether all were written. All ranks call it.
static bool print_samples(Trainer *t, Stop *stop) {
  const Options *o = &t->opt;
  const int rank = fsdp_rank(t->fsdp), most = (int)sample_sequences(t) * fsdp_world(t->fsdp);
  char **prompt = NULL, path[OPTION_TEXT_BYTES + 32];
  Error error = {};
  int64_t count = rank ? 0 : prompts_read(o, &prompt, &error), made = 0, longest = 0;
  agree_no_error(fsdp_comm(t->fsdp), error.text, EXIT_USAGE);
  MPI_Bcast(&count, 1, MPI_INT64_T, 0, fsdp_comm(t->fsdp));
  snprintf(path, sizeof path, "%s/samples.jsonl", o->out);
  FILE *file = rank ? NULL : file_lines(path, true);
  Continued *text = (Continued *)calloc((size_t)most, sizeof *text);
  const double began = now_ms();
  double first_ms = 0;                           // of all texts
  for (int64_t first = 0; first < count; first += most) {
    if ((*stop = agree_on_stop(fsdp_comm(t->fsdp)))) { count = first; break; }
    const int n = (int)min64(count - first, most);
    for (int i = 0; i < n; i++) {
      text[i] = Continued{};
      text[i].ids = prompt_ids(t, rank ? "" : prompt[first + i], o->sample_tokens, &text[i].count);
      text[i].most = o->sample_tokens, text[i].number = (uint32_t)(first + i);
    }
    trainer_generate(t, text, n, NULL, NULL);
    for (int i = 0; i < n; i++) {
      const Continued *x = &text[i];
      made += x->made, longest = max64(longest, x->count), first_ms += x->first_ms;
      if (file) {
        fprintf(file, "{\"prompt\":");
        json_text(file, prompt[first + i]);
        fprintf(file, ",\"text\":");
        json_string(file, x->said, x->told, 0);
        fprintf(file, ",\"tokens\":%u,\"end\":\"%s\"}\n", x->made, end_words[x->end]);
        fflush(file);                            // what is complete stays, however the run ends
      }
      free(x->ids);
      free(x->said);
    }
  }
  const double seconds = (now_ms() - began) / 1000;
  free(text);
  const bool written = sample_file_close(t, file, path);
  if (rank) return written;
  free(prompt[0]);
  free(prompt);
  say("samples: %lld texts, %lld tokens in %.1f s, the first of a text after %.3f s, %.1f tokens/s%s: %s\n",
      (long long)count, (long long)made, seconds, first_ms / 1000 / (double)max64(1, count), (double)made / seconds,
      positions_words(t, longest), written ? path : "not all are written");
  return written;
}
