// conversations.h: conversations, one JSON object per line, as tokens with a loss mask.
//
//   messages, in any schema of records.h     rendered by the model's chat template
//   a prompt with its completion             as they are, each encoded alone, then EOS
//   a text                                   as it is, then EOS
//   a preference                             two records of these kinds: the chosen and the rejected answer
// Other keys of a record are ignored. Thoughts, tools and calls that the template would leave out are an error. Calls
// are answers and trained on; results of tools are context only. A message with train false, masked true, weight 0 or
// loss_weight 0 is context and not trained on. A text that already starts with BOS or ends with EOS gets no second one.
//
// A conversation is rendered whole by the model's template (jinja_render.h), and encoded as transformers'
// apply_chat_template does. The loss mask follows from renderings alone (rendered.h).
#pragma once
#include "rendered.h"

void chat_how(const ChatOptions *o, const char *how[CHAT_HOW]) {
  const char *const ours = chat_template_text(o->template_name);
  const char *const words[CHAT_HOW] = {o->words ? o->words : ours ? ours : "", o->kwargs, o->date, o->train_all
                                       ? "all" : o->last ? "last" : "assistant",
                                       o->preferences ? o->pairs ? "preferences, chats" : "preferences"
                                       : o->pairs ? "pairs" : "", o->fields};
  memcpy(how, words, sizeof words);
}
int32_t chat_token(const Tokenizer *t, const char *text) {
  for (int i = 0; i < t->added_count; i++) {
    int n;
    const uint8_t *p = tokenizer_token_bytes(t, t->added[i].id, &n);
    if ((size_t)n == strlen(text) && !memcmp(p, text, (size_t)n)) return t->added[i].id;
  }
  return -1;
}
static const char *const chat_text_ends[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
static const char *const chat_turn_ends[] = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>", "<|call|>",
    "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|assistant_end|>", "<|eot|>", "<|eom|>", "[e~["};
int32_t chat_end(const Tokenizer *t) {
  int32_t id = -1;
  for (const char *name : chat_text_ends) if (id < 0) id = chat_token(t, name);
  return id;
}
bool chat_ends(const Tokenizer *t, int32_t id) {
  int n;
  const char *p = (const char *)tokenizer_token_bytes(t, id, &n);
  const auto ends = [&](const char *name) { return (size_t)n == strlen(name) && !memcmp(p, name, (size_t)n); };
  for (const char *name : chat_text_ends) if (ends(name)) return chat_token(t, name) == id;
  for (const char *name : chat_turn_ends) if (ends(name)) return chat_token(t, name) == id;
  return false;
}
// The first special token in a text other than the two given; -1: there is none.
static inline int32_t chat_first_special(const Tokenizer *t, const char *text, int32_t not_this, int32_t nor_this) {
  for (int32_t id = -1; *text; text++) {
    for (int i = 0, longest = 0, n; i < t->added_count; i++) {
      const BpeAddedToken *a = &t->added[i];
      const uint8_t *p = tokenizer_token_bytes(t, a->id, &n);
      if (n <= longest || !a->special || a->id == not_this || a->id == nor_this) continue;
      if (!strncmp(text, (const char *)p, (size_t)n)) id = a->id, longest = n;
    }
    if (id >= 0) return id;
  }
  return -1;
}
// Renders the shortest conversation, and finds in it stop_id, the token after an answer's text, which ends answers, and
// mark_id, a token that only chats have. -1: the template writes no token there, or text that is no token of this
// tokenizer (then c->lacks is the text).
static inline void chat_find_marks(Chat *c) {
  cJSON *messages = cJSON_CreateArray();
  ChatRender r;
  c->stop_id = c->mark_id = -1;
  record_add(messages, "user", "?");
  record_add(messages, "assistant", "\1");
  if (chat_render_open(&r, c->form, c->o.date, messages, NULL) && chat_render(&r, 2, false)) {
    chat_put(&r.j.out, ChatSpan{"", 1});
    const char *tail = strrchr(r.j.out.p, '\1');
    if (!tail) tail = "";
    c->stop_id = chat_first_special(c->tokenizer, tail, -1, -1);
    c->mark_id = chat_first_special(c->tokenizer, r.j.out.p, c->tokenizer->adds_bos ? c->tokenizer->bos_id : -1,
                                    c->end_id);
    const ChatSpan said = chat_strip(chat_span(*tail ? tail + 1 : tail), false);
    if (c->stop_id < 0 && said.n && said.p[0] == '<') snprintf(c->lacks, sizeof c->lacks, "%.*s", (int)said.n, said.p);
  }
  chat_render_close(&r);
  cJSON_Delete(messages);
}
Chat chat_open(const ChatOptions *o, const Tokenizer *t) {
  Chat c = {*o, chat_form(o), t, -1, chat_end(t), -1, NULL, {}, false};
  if (c.form && c.form->fault[0]) c.o.why = c.form->fault, c.form = NULL;
  const char *eos = c.form ? cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(c.form->json, "eos_token")) : NULL;
  if (c.end_id < 0 && eos) c.end_id = chat_token(t, eos);        // DeepSeek's, OpenChat's
  if (c.form) chat_find_marks(&c);
  return c;
}
static inline bool chat_is_added(const Tokenizer *t, int32_t id) {
  for (int i = 0; i < t->added_count; i++) if (t->added[i].id == id) return true;
  return false;
}
static inline bool chat_fail(ChatTokens *k, const char *fmt, const char *what = "") {
  return fail(&k->fault, fmt, what);
}
// Grows k->ids for the tokens of a text of `bytes` bytes. Returns where they are to be written.
static inline int32_t *chat_room(const Chat *c, ChatTokens *k, size_t bytes) {
  const int64_t most = k->count + (int64_t)tokenizer_ids_most(c->tokenizer, bytes) + 2;
  if (most > k->room) {
    k->room = most + most / 2;
    k->ids = (int32_t *)bpe_resize(k->ids, (size_t)k->room, sizeof *k->ids);
    k->trained = (uint8_t *)bpe_resize(k->trained, (size_t)k->room, 1);
  }
  return k->ids + k->count;
}
static inline void chat_append_text(ChatTokens *k, const char *text, size_t bytes, size_t from, bool all) {
  if (k->text_bytes + bytes > k->text_room) {
    k->text_room = 2 * (k->text_bytes + bytes);
    k->text = (uint8_t *)bpe_resize(k->text, k->text_room, 1);
    k->marks = (uint8_t *)bpe_resize(k->marks, k->text_room, 1);
  }
  if (bytes) memcpy(k->text + k->text_bytes, text, bytes);
  for (size_t i = 0; i < bytes; i++) k->marks[k->text_bytes++] = all || i >= from;
}
// Appends the tokens of a text. ends[i]: the byte of the text at which token i ends; if the tokenizer normalises the
// text, that is approximate between two special tokens, which are not normalised.
static inline int64_t chat_encode(const Chat *c, ChatTokens *k, const uint8_t *text, size_t bytes, int64_t *ends) {
  BpeEncoder own, *e = c->encoder ? c->encoder : &own;
  int32_t *to = chat_room(c, k, bytes);
  if (e == &own) bpe_encoder_open(e, c->tokenizer);
  e->ends = c->tokenizer->byte_fallback ? ends : NULL;
  const int64_t n = bpe_encoder_run(e, text, bytes, to);
  e->ends = NULL;
  if (e == &own) bpe_encoder_close(e);
  size_t at = 0;
  bool astray = false;
  for (int64_t i = 0; !c->tokenizer->byte_fallback && i < n; i++) {
    int length;
    const uint8_t *p = tokenizer_token_bytes(c->tokenizer, to[i], &length);
    const bool as_it_is = at + (size_t)length <= bytes && !memcmp(text + at, p, (size_t)length);
    const void *found = astray && chat_is_added(c->tokenizer, to[i]) ? memmem(text + at, bytes - at, p,
        (size_t)length) : NULL;
    if (found) at = (size_t)((const uint8_t *)found - text), astray = false;
    else astray = astray || !as_it_is;
    at += astray ? 0 : (size_t)length;
    ends[i] = (int64_t)(at + (astray && at < bytes));
  }
  k->count += n;
  return n;
}
// Encodes k->text, the bytes that are not tokens yet.
static inline void chat_flush(const Chat *c, ChatTokens *k) {
  if (k->text_bytes) {
    int64_t *ends = (int64_t *)bpe_resize(NULL, tokenizer_ids_most(c->tokenizer, k->text_bytes), sizeof *ends);
    const int64_t n = chat_encode(c, k, k->text, k->text_bytes, ends);
    for (int64_t i = 0; i < n; i++) k->trained[k->count - n + i] = ends[i] && k->marks[ends[i] - 1];
    free(ends);
  }
  free(k->text);
  free(k->marks);
  k->text = k->marks = NULL;
  k->text_bytes = k->text_room = 0;
}
// Appends the tokens of a text. Tokens are trained on from the token on that contains byte `from`; bytes before `from`
// are ASCII, which no normalising changes.
static inline void chat_append(const Chat *c, ChatTokens *k, const char *text, size_t bytes, size_t from, bool all) {
  if (c->tokenizer->byte_fallback) { chat_append_text(k, text, bytes, from, all); return; }
  int32_t *to = chat_room(c, k, bytes);
  const int64_t n = c->encoder ? bpe_encoder_run(c->encoder, (const uint8_t *)text, bytes, to)
                               : tokenizer_encode(c->tokenizer, (const uint8_t *)text, bytes, to);
  size_t at = 0;
  for (int64_t i = k->count; i < k->count + n; i++) {
    int length;
    tokenizer_token_bytes(c->tokenizer, k->ids[i], &length);
    at += (size_t)length;
    k->trained[i] = all || at > from;
  }
  k->count += n;
}
static inline void chat_append_id(const Chat *c, ChatTokens *k, int32_t id, bool trained) {
  chat_flush(c, k);
  *chat_room(c, k, 0) = id;
  k->trained[k->count++] = trained;
}

// *off: whether a message's train, masked or weight says that it is not trained on. False: these have invalid values.
static inline bool chat_flags(ChatTokens *k, const cJSON *m, bool assistant, bool *off) {
  const cJSON *train = bpe_field(m, "train"), *masked = bpe_field(m, "masked");
  *off = cJSON_IsFalse(train) || cJSON_IsTrue(masked);
  if ((train && !cJSON_IsBool(train)) || (masked && !cJSON_IsBool(masked)))
    return chat_fail(k, "a message has %s that is neither true nor false", train && !cJSON_IsBool(train) ? "train"
                                                                                                         : "masked");
  bool on = cJSON_IsTrue(train);
  for (const char *name : {"weight", "loss_weight"}) {
    const cJSON *x = bpe_field(m, name);
    if (!x) continue;
    if (!cJSON_IsNumber(x) || (x->valuedouble != 0 && x->valuedouble != 1))
      return chat_fail(k, "a message has a %s that is neither 0 nor 1", name);
    *off = *off || x->valuedouble == 0;
    on = on || (x->valuedouble == 1 && name[0] == 'l');
  }
  return !on || assistant || chat_fail(k, "a message that is no answer is to be trained on: that is --train_on all");
}
// Checks that the messages are well formed, and that the template has names for the record's thoughts, tools and calls.
// False: k->fault.
static inline bool chat_check(const Chat *c, ChatTokens *k, const cJSON *messages, const cJSON *tools) {
  if (!c->form)
    return chat_fail(k, "has messages, but no chat template is known: %s; name one by --chat_template", c->o.why);
  if (c->lacks[0])
    return chat_fail(k, "has messages, but the tokenizer has no token %s, which the chat template needs", c->lacks);
  const char *const of = c->form->text[tools != NULL];
  if (tools && !chat_mentions(of, "tools")) return chat_fail(k, "it has tools, which the chat template leaves out; "
                                                             "qwen2.5, "
                                                      "qwen3, qwen3-2507 and llama3 render them");
  const cJSON *m;
  cJSON_ArrayForEach(m, messages) {
    const char *role = chat_text(m, "role"), *thoughts = NULL;
    const bool assistant = chat_is(m, "assistant"), calls = !record_is_empty(bpe_field(m, "tool_calls"));
    bool off;
    if (strcmp(role, "system") && strcmp(role, "user") && !assistant && !chat_mentions(of, role))
      return chat_fail(k, "role '%.40s' is not system, user or assistant", role);
    if (calls && !assistant) return chat_fail(k, "a message that is no answer has tool_calls");
    if (calls && !chat_mentions(of, "tool_calls"))
      return chat_fail(k, "a message has tool_calls, which this chat template leaves out: write them in its content");
    for (const char *name : {"reasoning_content", "reasoning", "thinking"}) {
      const cJSON *x = bpe_field(m, name);
      const char *text = cJSON_GetStringValue(x);
      if (record_is_empty(x)) continue;
      const bool renders = chat_mentions(of, "reasoning_content") || chat_mentions(of, "reasoning") ||
                           chat_mentions(of, "thinking");
      if (!text || !renders || !assistant)
        return chat_fail(k, !text ? "a message has %s, which is no text"
                         : assistant ? "a message has %s, which this chat template leaves out"
                         : "a message that is no answer has %s", name);
      if (thoughts && strcmp(thoughts, text))
        return chat_fail(k, "a message has two different thoughts, one of them under %s", name);
      thoughts = text;
    }
    if (!chat_flags(k, m, assistant, &off)) return false;
  }
  return messages->child || chat_fail(k, "messages is empty");
}
static inline bool chat_has(const ChatText *whole, const char *text) {
  const ChatSpan s = chat_strip(chat_span(text ? text : ""), false);
  return memmem(whole->p, whole->n, s.p, s.n) != NULL;
}
// Rejects what a template leaves out without a word: tools, a call or text beside it, a system message that is not the
// first. asks: the message has text that some templates leave out.
static inline bool chat_check_rendered(ChatTokens *k, ChatRender *r, const cJSON *messages, const cJSON *tools) {
  const cJSON *m, *x;
  size_t at = 0;
  cJSON_ArrayForEach(x, tools) {
    const char *name = chat_text(bpe_field(x, "function"), "name");
    if (name && !chat_has(&r->whole, name)) return chat_fail(k, "it has tools, which the chat template leaves out "
                                                             "here");
  }
  cJSON_ArrayForEach(m, messages) {
    const cJSON *calls = bpe_field(m, "tool_calls");
    const char *text = chat_text(m, "content") ? chat_text(m, "content") : "";
    for (const char *thoughts; (thoughts = strstr(text, "</think>"));) text = thoughts + 8;
    const ChatSpan said = chat_strip(chat_span(text), false);
    const bool later = m != messages->child && chat_is(m, "system"), asks = said.n && (calls || later);
    cJSON_ArrayForEach(x, calls)
      if (!chat_has(&r->whole, chat_text(x, "name")))
        return chat_fail(k, "a message has tool_calls, which this chat template leaves out");
    if (asks && chat_leaves_out(r, at))
      return chat_fail(k, later ? "a system message that is not the first, which this chat template leaves out"
                                : "a message has content beside tool_calls, which this chat template leaves out");
    at++;
  }
  return true;
}
// Appends the tokens of the rendered conversation, and marks as trained those in r->range. A token that is partly in a
// range is trained on. With range.ends, a range reaches to its last stop token: the last c->stop_id in it, or, if there
// is none, the last token that ends a text or a turn by any template; range.first: the first such token instead.
static inline void chat_put_rendered(const Chat *c, ChatTokens *k, const ChatRender *r) {
  const size_t bytes = r->whole.n;
  int64_t *ends = (int64_t *)bpe_resize(NULL, tokenizer_ids_most(c->tokenizer, bytes) + 1, sizeof *ends);
  const int64_t n = chat_encode(c, k, (const uint8_t *)r->whole.p, bytes, ends), first = k->count - n;
  memset(k->trained + first, 0, (size_t)n);
  for (size_t x = 0; x < r->ranges; x++) {
    const ChatRange range = r->range[x];
    int64_t from = 0, to, stop = -1;
    while (from < n && ends[from] <= (int64_t)range.from) from++;
    for (to = from; to < n && (to ? ends[to - 1] : 0) < (int64_t)range.to && !(range.first && stop >= 0); to++) {
      const int32_t id = k->ids[first + to];
      const bool sure = stop >= 0 && k->ids[first + stop] == c->stop_id;
      if (id == c->stop_id || (!sure && chat_ends(c->tokenizer, id))) stop = to;
    }
    if (range.ends && stop >= 0) to = stop + 1;
    k->endless += range.ends && stop < 0;
    if (range.from < range.to) memset(k->trained + first + from, 1, (size_t)(to - from));
  }
  k->rewritten += (int64_t)r->rewritten;
  free(ends);
}
static inline bool chat_messages(const Chat *c, ChatTokens *k, const cJSON *messages, const cJSON *tools, bool prompt) {
  if (!chat_check(c, k, messages, tools)) return false;
  ChatRender r;
  const size_t n = (size_t)cJSON_GetArraySize(messages);
  bool *off = (bool *)data_alloc(2 * n, sizeof *off), *answers = off + n, found = false;
  const bool ok = (chat_render_open(&r, c->form, c->o.date, messages, tools) && chat_render(&r, n, prompt)) ||
                  chat_rendered_fault(&r.fault, &k->fault);
  r.whole = r.j.out, r.j.out = {};
  if (ok) {
    size_t i = n;
    for (const cJSON *m = messages->child ? messages->child->prev : NULL; i-- > 0; m = m->prev) {
      answers[i] = chat_is(m, "assistant");
      chat_flags(k, m, answers[i], &off[i]);
      off[i] = off[i] || (c->o.last && answers[i] && found);
      found = found || answers[i];
    }
    if (!prompt) chat_ranges(&r, off, answers, c->o.train_all);
    if (chat_check_rendered(k, &r, messages, tools) && r.whole.n) chat_put_rendered(c, k, &r);
  }
  chat_render_close(&r);
  free(off);
  return !k->fault.text[0];
}
bool chat_next(const Chat *c, ChatTokens *k, const cJSON *messages) { return chat_messages(c, k, messages, NULL,
    true); }
// Bytes of the BOS token with which a text that was rendered before starts; 0: it does not start with one.
static inline size_t chat_begun(const Chat *c, const char *text) {
  int n = 0;
  const uint8_t *p = c->tokenizer->adds_bos ? tokenizer_token_bytes(c->tokenizer, c->tokenizer->bos_id, &n) : NULL;
  return n && !strncmp(text, (const char *)p, (size_t)n) ? (size_t)n : 0;
}
// Whether a text ends with an EOS token of the tokenizer, possibly followed by white space.
static inline bool chat_ended(const Chat *c, const char *text) {
  const ChatSpan s = chat_strip(chat_span(text), false, false, true);
  auto ends = [&](const char *stop) {
    const size_t n = strlen(stop);
    return n <= s.n && !memcmp(s.p + s.n - n, stop, n) && chat_token(c->tokenizer, stop) >= 0;
  };
  for (const char *name : chat_text_ends) if (ends(name)) return true;
  for (const char *name : chat_turn_ends) if (ends(name)) return true;
  int n = 0;
  const uint8_t *own = c->end_id < 0 ? NULL : tokenizer_token_bytes(c->tokenizer, c->end_id, &n);
  return own && (size_t)n <= s.n && !memcmp(s.p + s.n - n, own, (size_t)n);
}
// Appends a prompt (NULL: none) and the text after it, as they are, then EOS.
static inline bool chat_plain(const Chat *c, ChatTokens *k, const char *prompt, const char *text) {
  const bool ended = chat_ended(c, text);
  if (c->end_id < 0 && !ended)
    return chat_fail(k, "is no chat, and the tokenizer has no <|endoftext|>, <|end_of_text|>, </s> or <eos> to end it "
                     "with");
  const char **const first = prompt ? &prompt : &text;
  *first += chat_begun(c, *first);
  if (c->tokenizer->adds_bos) chat_append_id(c, k, c->tokenizer->bos_id, false);
  if (prompt) chat_append(c, k, prompt, strlen(prompt), SIZE_MAX, c->o.train_all);
  chat_append(c, k, text, strlen(text), 0, true);
  if (!ended) chat_append_id(c, k, c->end_id, true);
  return true;
}

bool chat_check_line(const uint8_t *line, size_t bytes, Error *fault) {
  const uint8_t *const end = line + bytes, *p = line;
  const size_t bad = text_bad_utf8(line, bytes, 0);
  bool nul = memchr(line, 0, bytes);
  fault->text[0] = 0;
  if (bad < bytes) fail(fault, "byte %zu is not UTF-8", bad + 1);
  for (int step; bad == bytes && !nul && !fault->text[0] && p < end; p += step) {
    if (!(p = (const uint8_t *)memchr(p, '\\', (size_t)(end - p)))) break;
    step = 2;
    if (end - p < 6 || p[1] != 'u') continue;
    step = 6, nul = !memcmp(p + 2, "0000", 4);
    if ((p[2] | 32) != 'd' || !p[3] || !strchr("89abABcdefCDEF", p[3])) continue;
    const bool whole = strchr("89abAB", p[3]) && end - p >= 12 && p[6] == '\\' && p[7] == 'u' && (p[8] | 32) == 'd' &&
                       strchr("cdefCDEF", p[9]) && p[9];
    if (!whole)
      fail(fault, "%.6s at byte %zu is half of a character (a lone surrogate): in Python, s.encode('utf-8', "
           "'replace').decode() writes ? in its place", (const char *)p, (size_t)(p - line) + 1);
    step = 12;
  }
  if (nul && bad == bytes) fail(fault, "it has a NUL character");
  return !fault->text[0];
}
// Appends the tokens of a record: of its messages, or of its text as it is.
static inline bool chat_record(const Chat *c, ChatTokens *k, const ChatRecord *r) {
  const bool ok = r->messages ? chat_messages(c, k, r->messages, r->tools, false)
                  : r->text ? chat_plain(c, k, NULL, r->text) : chat_plain(c, k, r->prompt, r->completion);
  chat_flush(c, k);
  return ok;
}
// Appends the tokens of a preference: the record with the chosen answer, then the one with the rejected answer.
static inline bool chat_preference(const Chat *c, ChatTokens *k, const cJSON *json) {
  bool ok = true;
  for (int rejected = 0; ok && rejected < 2; rejected++) {
    ChatRecord r = {};
    if (rejected) k->second = k->count;
    ok = record_answer(&r, json, c->o.fields, c->o.pairs, rejected, c->notes, &k->fault) && chat_record(c, k, &r);
    if (!rejected) k->unread = r.unread, r.unread = NULL;
    record_free(&r);
  }
  return ok;
}
bool chat_line(const Chat *c, ChatTokens *k, const uint8_t *line, size_t bytes) {
  cJSON *json = record_parse(line, bytes, &k->fault);
  ChatRecord r = {};
  bool ok = json;
  if (!json) return false;
  if (c->o.preferences) ok = chat_preference(c, k, json);
  else
    ok = record_read(&r, json, c->o.fields, c->o.pairs, c->o.train_all, c->notes, &k->fault) && chat_record(c, k, &r);
  if (r.unread) k->unread = r.unread, r.unread = NULL;
  if (c->notes && ok) record_note_fields(json, c->o.fields, &k->fields_seen);
  record_free(&r);
  cJSON_Delete(json);
  return ok;
}

bool chat_prompt(const Chat *c, ChatTokens *k, const char *said) {
  cJSON *messages = cJSON_CreateArray();
  record_add(messages, "user", said);
  const bool ok = chat_next(c, k, messages);
  cJSON_Delete(messages);
  return ok;
}
