// conversations.h: conversations, one JSON object a line, as tokens with a mask: what the model sees, and what is
// trained on.
//
//   messages, in any form that records.h reads, by the model's chat template
//   a prompt with its completion             as they are, each encoded alone, then the end-of-text token
//   a text                                   as it is, then the end-of-text token
//   a preference                             two of these, the answer that was chosen and the one that was rejected
// Other members of a record are ignored; what a template would leave out is refused: thoughts, tools and calls where it
// renders none. Calls are answers and trained on; what tools answer is seen. A message with train false, masked true,
// weight 0 or loss_weight 0 is seen and not trained on. A text that was rendered before, with the begin token at its
// beginning or an end token at its end, gets no second one.
//
// A template is one of a table: what transformers' apply_chat_template renders from the published template of that
// family for system, user, assistant and tool messages. Each turn is encoded alone, which gives the ids of the whole
// text, because every turn begins at a special token; for a tokenizer by characters, whose turns may not, all is
// rendered and then encoded (chat_flush). Trained on: what the assistant says and the token that ends
// it (a completion, a text and their end), not the header before it; of a token that spans both, all of it. Or
// everything.
//
// Defines: chat_open, chat_token, chat_line, chat_next, chat_prompt.
#pragma once
#include "chat.h"
#include "chat_template.h"
#include "records.h"
#include "data/tokenizer/tokenizer.h"

void chat_how(const ChatOptions *o, const char *how[CHAT_HOW]) {
  const char *const words[CHAT_HOW] = {o->template_name, o->date, o->train_all ? "all" : o->last ? "last" : "assistant",
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
int32_t chat_end(const Tokenizer *t) {
  int32_t id = -1;
  for (const char *name : chat_text_ends) if (id < 0) id = chat_token(t, name);
  return id;
}
bool chat_ends(const Tokenizer *t, int32_t id) {
  for (const char *name : chat_text_ends) if (chat_token(t, name) == id) return true;
  for (const ChatTemplate &f : chat_templates) if (chat_token(t, f.stop) == id) return true;
  return false;
}
Chat chat_open(const ChatOptions *o, const Tokenizer *t) {
  Chat c = {*o, chat_template_named(o->template_name), t, -1, chat_end(t), NULL, false};
  if (c.form) c.stop_id = chat_token(t, c.form->stop);
  return c;
}

static inline bool chat_fail(ChatTokens *k, const char *fmt, const char *what = "") {
  snprintf(k->fault, sizeof k->fault, fmt, what);
  return false;
}
// Makes room for the tokens of a text, which begin there.
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
// Tokens of what is text yet.
static inline void chat_flush(const Chat *c, ChatTokens *k) {
  BpeEncoder own, *e = c->encoder ? c->encoder : &own;
  if (k->text_bytes) {
    int32_t *to = chat_room(c, k, k->text_bytes);
    int64_t *ends = (int64_t *)bpe_resize(NULL, tokenizer_ids_most(c->tokenizer, k->text_bytes), sizeof *ends);
    if (e == &own) bpe_encoder_open(e, c->tokenizer);
    e->ends = ends;
    const int64_t n = bpe_encoder_run(e, k->text, k->text_bytes, to);
    e->ends = NULL;
    if (e == &own) bpe_encoder_close(e);
    for (int64_t i = 0; i < n; i++) k->trained[k->count + i] = k->marks[ends[i] - 1];
    k->count += n;
    free(ends);
  }
  free(k->text);
  free(k->marks);
  k->text = k->marks = NULL;
  k->text_bytes = k->text_room = 0;
}
// Appends the tokens of a text. Those from the one on that byte `from` lies in are trained on; bytes before `from` are
// ASCII, which no normalising changes.
static inline void chat_append(const Chat *c, ChatTokens *k, const char *text, size_t bytes, size_t from, bool all) {
  if (c->tokenizer->byte_fallback) { chat_append_text(k, text, bytes, from, all); return; }
  int32_t *to = chat_room(c, k, bytes);
  const int64_t n = c->encoder ? bpe_encoder_run(c->encoder, (const uint8_t *)text, bytes, to)
                               : tokenizer_encode(c->tokenizer, (const uint8_t *)text, bytes, to, 1);
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

bool chat_is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
ChatSpan chat_strip(ChatSpan s, bool newlines, bool left, bool right) {
  const uint8_t *p = (const uint8_t *)s.p, *end = p + s.n, *keep = p;
  int n;
  for (; left && p < end; p += n) {
    const uint32_t c = utf8_char(p, end, &n);
    if (newlines ? c != '\n' : !chat_is_space(c)) break;
  }
  keep = right ? p : end;
  for (const uint8_t *at = p; right && at < end; at += n) {
    const uint32_t c = utf8_char(at, end, &n);
    if (newlines ? c != '\n' : !chat_is_space(c)) keep = at + n;
  }
  return ChatSpan{(const char *)p, (size_t)(keep - p)};
}

// One turn; header: what stands before what is said. Its text is in `t`, which is emptied. off: never trained on.
static inline void chat_turn(const Chat *c, ChatTokens *k, ChatText *t, size_t header, bool assistant,
                             bool off = false) {
  const ChatTemplate *f = c->form;
  const bool all = c->o.train_all && !off;
  chat_put(t, f->closes && !assistant ? f->closes : f->stop);
  const size_t said = t->n;
  const int64_t at = k->count;
  chat_put(t, f->behind);
  chat_append(c, k, t->p, t->n, assistant && !off ? header : SIZE_MAX, all);
  if (k->text_bytes && !all) memset(k->marks + k->text_bytes - (t->n - said), 0, t->n - said);
  for (int64_t i = k->count - 1; said < t->n && !all && i > at && k->ids[i] != c->stop_id; i--)
    k->trained[i] = 0;                           // the newline behind the end
  t->n = 0;
}
static inline size_t chat_header(const Chat *c, ChatText *t, const char *role) {
  const ChatTemplate *f = c->form;
  const bool assistant = !strcmp(role, "assistant");
  if (!f->closes || !assistant) chat_put(t, f->begin);
  if (!f->closes || assistant) chat_put(t, assistant ? f->assistant : role);
  if (!f->closes || !assistant) chat_put(t, f->end);
  return t->n;
}
// What an assistant says where the model thinks: thoughts of answers before the last question are left out. Returns
// whether it says anything beside them.
static inline bool chat_put_thinking(ChatText *t, ChatSpan content, const char *reasoning, bool after, bool last,
                                     bool forced) {
  ChatSpan thoughts = chat_span(reasoning ? reasoning : "");
  const char *close = reasoning || !forced ? NULL : strstr(content.p, "</think>");
  if (close) {
    thoughts = chat_strip(ChatSpan{content.p, (size_t)(close - content.p)}, true, false, true);
    for (const char *open; (open = (const char *)memmem(thoughts.p, thoughts.n, "<think>", 7));)
      thoughts = ChatSpan{open + 7, thoughts.n - (size_t)(open + 7 - thoughts.p)};
    thoughts = chat_strip(thoughts, true, true, false);
    for (const char *next; (next = strstr(close + 8, "</think>"));) close = next;
    content = chat_strip(chat_span(close + 8), true, true, false);
  }
  const bool says = content.n;
  if (after && ((last && forced) || thoughts.n)) {
    chat_put(t, "<think>\n");
    chat_put(t, chat_strip(thoughts, true));
    chat_put(t, "\n</think>\n\n");
    content = chat_strip(content, true, true, false);
  }
  chat_put(t, content);
  return says;
}

// Whether a message says of itself that it is not trained on, in *off. False: it says what cannot be done.
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
// The thoughts of a message, under any of the names that are common; NULL: it has none. False: they cannot be told.
static inline bool chat_thoughts(const Chat *c, ChatTokens *k, const cJSON *m, bool assistant, const char **thoughts) {
  *thoughts = cJSON_GetStringValue(bpe_field(m, "reasoning_content"));
  for (const char *name : {"reasoning_content", "reasoning", "thinking"}) {
    const cJSON *x = bpe_field(m, name);
    const char *text = cJSON_GetStringValue(x);
    if (record_is_empty(x)) continue;
    if (!text || !c->form->thinks || !assistant)
      return chat_fail(k, !text ? "a message has %s, which is no text"
                       : assistant ? "a message has %s, which this chat template leaves out"
                       : "a message that is no answer has %s", name);
    if (*thoughts && **thoughts && strcmp(*thoughts, text))
      return chat_fail(k, "a message has two different thoughts, one of them under %s", name);
    *thoughts = text;
  }
  return true;
}
static inline const char *chat_text(const cJSON *m, const char *name) {
  return cJSON_GetStringValue(bpe_field(m, name));
}
static inline bool chat_is(const cJSON *m, const char *role) { return m && !strcmp(chat_text(m, "role"), role); }
// Whether tools that a record has, and calls that a message has, are rendered by the template.
static inline bool chat_check_tools(const Chat *c, ChatTokens *k, const cJSON *messages, const cJSON *tools) {
  const ChatTools how = c->form->tools;
  const cJSON *first = messages->child, *m;
  const bool system = first && chat_is(first, "system");
  const char *const said = system ? chat_text(first, "content") : "";
  bool any = tools != NULL;
  cJSON_ArrayForEach(m, messages) {
    const cJSON *calls = bpe_field(m, "tool_calls");
    any = any || !record_is_empty(calls) || chat_is(m, "tool");
    if (record_is_empty(calls)) continue;
    if (!chat_is(m, "assistant")) return chat_fail(k, "a message that is no answer has tool_calls");
    if (how == TOOLS_NONE || how == TOOLS_SMOL)
      return chat_fail(k, "a message has tool_calls, which this chat template leaves out: write them in its content");
    if (how == TOOLS_LLAMA && calls->child->next)
      return chat_fail(k, "a message has several tool_calls, and this chat template takes one");
    if (how == TOOLS_LLAMA && *chat_text(m, "content"))
      return chat_fail(k, "a message has content beside tool_calls, which this chat template leaves out");
  }
  if (any && how != TOOLS_NONE && c->o.text && !strstr(c->o.text, "tool"))
    return chat_fail(k, "it has tools, which the model's own chat template leaves out; --chat_template %s renders them",
                     c->form->name);
  if (!tools) return true;
  if (how == TOOLS_SMOL && strstr(said, "/system_override"))
    return chat_fail(k, "it has tools, which this chat template leaves out at /system_override");
  return how != TOOLS_LLAMA || chat_is(system ? first->next : first, "user") ||
         chat_fail(k, "it has tools, which this chat template puts before a first user's message, and has none");
}
// The messages of a line are well formed; `user` receives the number of the last question, `count` how many there are.
static inline bool chat_check(const Chat *c, ChatTokens *k, const cJSON *messages, const cJSON *tools, int *user,
                              int *count) {
  const cJSON *m;
  *count = 0;
  if (!c->form)
    return chat_fail(k, "has messages, but no chat template is known: %s; name one by --chat_template", c->o.why);
  const char *const closes = c->form->closes ? c->form->closes + (c->form->closes[0] == ' ') : c->form->stop;
  const bool plain = c->tokenizer->byte_fallback;                // Mistral's [INST] was text before its version 3
  for (const char *token : {c->form->stop, chat_mark(c->form), closes})
    if (chat_token(c->tokenizer, token) < 0 && !(plain && token != c->form->stop))
      return chat_fail(k, "has messages, but the tokenizer has no token %s, which the chat template needs", token);
  if (tools && c->form->tools == TOOLS_NONE)
    return chat_fail(k, "it has tools, which chat template %s leaves out; qwen2.5, qwen3, qwen3-2507 and llama3 render "
                     "them", c->form->name);
  *user = cJSON_GetArraySize(messages) - 1;
  int last = -1;
  cJSON_ArrayForEach(m, messages) {
    const char *role = chat_text(m, "role"), *content = chat_text(m, "content");
    if (!role || !content) return chat_fail(k, "a message is not {\"role\": TEXT, \"content\": TEXT}");
    const bool assistant = !strcmp(role, "assistant"), tool = !strcmp(role, "tool") && c->form->tools;
    if (strcmp(role, "system") && strcmp(role, "user") && !assistant && !tool)
      return chat_fail(k, "role '%.40s' is not system, user or assistant", role);
    const bool system = !strcmp(role, "system");
    if (system && c->form->system_is == SYSTEM_NONE)
      return chat_fail(k, "a system message, which this chat template has no place for");
    if (system && *count && (c->form->tools == TOOLS_SMOL || c->form->system_is))
      return chat_fail(k, "a system message that is not the first, which this chat template leaves out");
    if (c->form->system_is && !system && assistant != (m->prev && m != messages->child && chat_is(m->prev, "user")))
      return chat_fail(k, "users and assistants do not take turns, a user first, which this chat template needs");
    const char *thoughts;
    bool off;
    if (!chat_thoughts(c, k, m, assistant, &thoughts) || !chat_flags(k, m, assistant, &off)) return false;
    // To Qwen 3 a tool's answer that a user gives is no question.
    const size_t n = strlen(content);
    const bool answer = c->form->thinks == THINKS_FORCED && !strncmp(content, "<tool_response>", 15) && n >= 16 &&
                        !strcmp(content + n - 16, "</tool_response>");
    if (!strcmp(role, "user") && !answer) last = *count;
    ++*count;
  }
  if (last >= 0) *user = last;
  return *count ? chat_check_tools(c, k, messages, tools) : chat_fail(k, "messages is empty");
}
// SmolLM3 thinks unless the system message says otherwise.
static inline bool chat_smol_thinks(const cJSON *messages) {
  return !chat_is(messages->child, "system") || !strstr(chat_text(messages->child, "content"), "/no_think");
}
// Removes each `word` from a text, in place.
static inline void chat_remove(char *text, const char *word) {
  for (char *at = text; (at = strstr(at, word));) memmove(at, at + strlen(word), strlen(at + strlen(word)) + 1);
}
// SmolLM3's system turn; said: "" without a message. Returns whether it ends with the end of a turn, which it does not
// without tools.
static inline bool chat_put_smol(const Chat *c, ChatText *t, const char *said, const cJSON *tools, bool thinks) {
  const bool whole = strstr(said, "/system_override");
  char *own = strdup(said);
  for (const char *word : {"/no_think", "/think"}) chat_remove(own, word);
  ChatSpan kept = chat_strip(chat_span(own), false, false, true);
  own[kept.n] = 0;
  if (whole) chat_remove(own, "/system_override");
  kept = chat_strip(chat_span(own), false, false, true);
  if (!whole) {
    chat_put(t, CHAT_SMOL3_DATE);
    chat_put(t, strcmp(c->o.date, chat_date) ? c->o.date : c->form->date);
    chat_put(t, thinks ? "\nReasoning Mode: /think\n\n## Custom Instructions\n\n"
                       : "\nReasoning Mode: /no_think\n\n## Custom Instructions\n\n");
    if (!kept.n) kept = chat_span(thinks ? CHAT_SMOL3_THINKS : CHAT_SMOL ".");
  }
  chat_put(t, kept);
  free(own);
  if (!whole) chat_put(t, "\n\n");
  if (!tools) return whole;
  chat_put(t, CHAT_TOOLS_SMOL);
  for (const cJSON *x = tools->child; x; x = x->next) json_put(t, x, JSON_PYTHON), chat_put(t, "\n");
  chat_put(t, "</tools>\n\n" CHAT_TOOLS_CALL "\n\n");
  return true;
}
// What stands before the messages: the system turn, with the system message (NULL: none) and what else is in it.
static inline void chat_system(const Chat *c, ChatTokens *k, const cJSON *system, const cJSON *tools, bool thinks) {
  const ChatTemplate *f = c->form;
  const bool listed = tools && f->tools >= TOOLS_QWEN;
  const char *const own = system ? chat_text(system, "content") : NULL, *const said = own ? own : f->system;
  bool off = false, stops = true;
  ChatText t = {};
  chat_put(&t, f->first);
  if (f->system_is || (!system && !f->system && !f->date && !listed)) {
    chat_append(c, k, t.p, t.n, SIZE_MAX, c->o.train_all);
    free(t.p);
    return;
  }
  if (system) chat_flags(k, system, false, &off);
  const size_t header = chat_header(c, &t, "system");
  if (f->tools == TOOLS_SMOL) stops = chat_put_smol(c, &t, said ? said : "", tools, thinks);
  else if (f->date) {
    chat_put(&t, tools ? "Environment: ipython\n" : "");
    chat_put(&t, "Cutting Knowledge Date: December 2023\nToday Date: ");
    chat_put(&t, c->o.date);
    chat_put(&t, "\n\n");
  }
  if (said && f->tools != TOOLS_SMOL) chat_put(&t, f->trims ? chat_strip(chat_span(said), false) : chat_span(said));
  if (listed) {
    chat_put(&t, said ? "\n\n" CHAT_TOOLS_QWEN : CHAT_TOOLS_QWEN);
    for (const cJSON *x = tools->child; x; x = x->next) chat_put(&t, "\n"), json_put(&t, x, JSON_DUMPS);
    chat_put(&t, "\n</tools>\n\n" CHAT_TOOLS_CALL);
  }
  if (stops) chat_turn(c, k, &t, header, false, off);
  else chat_append(c, k, t.p, t.n, SIZE_MAX, c->o.train_all && !off);
  free(t.p);
}
// The calls of an answer; says: text stands before them.
static inline void chat_put_calls(const Chat *c, ChatText *t, const cJSON *calls, bool says) {
  const bool llama = c->form->tools == TOOLS_LLAMA;
  for (const cJSON *x = calls ? calls->child : NULL; x; x = x->next, says = true) {
    const char *text = c->form->tools == TOOLS_QWEN3 ? chat_text(x, "text") : NULL;
    if (says) chat_put(t, "\n");
    chat_put(t, llama ? "{\"name\": \"" : "<tool_call>\n{\"name\": \"");
    chat_put(t, chat_text(x, "name"));
    chat_put(t, llama ? "\", \"parameters\": " : "\", \"arguments\": ");
    if (text) chat_put(t, text);
    else json_put(t, bpe_field(x, "arguments"), JSON_DUMPS);
    chat_put(t, llama ? "}" : "}\n</tool_call>");
  }
}
// An answer of a tool, which ends its turn unless the next one joins it. False: it does.
static inline bool chat_put_answer(const Chat *c, ChatText *t, const cJSON *m) {
  const ChatTools how = c->form->tools;
  const char *said = chat_text(m, "content");
  if (how < TOOLS_QWEN) {
    chat_header(c, t, how == TOOLS_LLAMA ? "ipython" : "user");
    if (how == TOOLS_LLAMA) json_put_text(t, said, JSON_DUMPS);
    else chat_put(t, said);
    return true;
  }
  if (!t->n) chat_put(t, c->form->begin), chat_put(t, "user");
  chat_put(t, "\n<tool_response>\n");
  chat_put(t, said);
  chat_put(t, "\n</tool_response>");
  return !m->next || !chat_is(m->next, "tool");
}
// What stands before an answer is that of SmolLM3 thinking or not, too.
static inline size_t chat_answer_header(const Chat *c, ChatText *t, bool thinks) {
  chat_header(c, t, "assistant");
  if (c->form->tools == TOOLS_SMOL && !thinks) chat_put(t, "<think>\n\n</think>\n");
  return c->form->closes ? 0 : t->n;             // the blank is the answer's: a prompt has none
}
static inline bool chat_messages(const Chat *c, ChatTokens *k, const cJSON *messages, const cJSON *tools = NULL) {
  const ChatTemplate *f = c->form;
  int user, count, i = 0, answer = 0;
  if (!chat_check(c, k, messages, tools, &user, &count)) return false;
  for (const cJSON *x = messages->child; x; x = x->next, i++) if (chat_is(x, "assistant")) answer = i;
  const cJSON *m = messages->child, *system = chat_is(m, "system") ? m : NULL;
  const bool thinks = f->tools == TOOLS_SMOL && chat_smol_thinks(messages);
  bool listed = tools && f->tools == TOOLS_LLAMA, joins = system && f->system_is, off, off_before = false;
  ChatText t = {};
  chat_system(c, k, system, tools, thinks);
  if (joins) chat_flags(k, system, false, &off_before);
  i = system != NULL;
  for (m = system ? m->next : m; m; m = m->next, i++) {
    const ChatSpan said = chat_span(chat_text(m, "content"));
    const bool assistant = chat_is(m, "assistant");
    const char *reasoning;
    chat_thoughts(c, k, m, assistant, &reasoning), chat_flags(k, m, assistant, &off);
    off = off || off_before || (c->o.last && i != answer);
    off_before = false;
    if (chat_is(m, "tool")) {
      if (chat_put_answer(c, &t, m)) chat_turn(c, k, &t, SIZE_MAX, false, off);
      else off_before = off;
      continue;
    }
    const size_t header = assistant ? chat_answer_header(c, &t, thinks) : chat_header(c, &t, chat_text(m, "role"));
    if (listed) {
      chat_put(&t, CHAT_TOOLS_LLAMA);
      for (const cJSON *x = tools->child; x; x = x->next) json_put(&t, x, JSON_INDENTED), chat_put(&t, "\n\n");
      listed = false;
    }
    if (joins) chat_put(&t, chat_text(system, "content")), chat_put(&t, "\n\n");
    joins = false;
    bool says = said.n;
    if (f->thinks && assistant)
      says = chat_put_thinking(&t, said, reasoning, i > user, i == count - 1, f->thinks == THINKS_FORCED);
    else if (f->tools == TOOLS_SMOL && assistant) chat_put(&t, chat_strip(said, true, true, false));
    else chat_put(&t, f->trims || (f->assistant[0] == ' ' && assistant) ? chat_strip(said, false) : said);
    chat_put_calls(c, &t, bpe_field(m, "tool_calls"), says);
    chat_turn(c, k, &t, header, assistant, off);
  }
  free(t.p);
  return true;
}
bool chat_next(const Chat *c, ChatTokens *k, const cJSON *messages) {
  ChatText t = {};
  if (!chat_messages(c, k, messages)) return false;
  if (!c->form->closes) chat_answer_header(c, &t, chat_smol_thinks(messages));
  chat_append(c, k, t.p, t.n, SIZE_MAX, false);
  chat_flush(c, k);
  free(t.p);
  return true;
}
// Bytes of a text behind the begin token that it begins with, as one that was rendered before does; 0: it has none.
static inline size_t chat_begun(const Chat *c, const char *text) {
  int n = 0;
  const uint8_t *p = c->tokenizer->adds_bos ? tokenizer_token_bytes(c->tokenizer, c->tokenizer->bos_id, &n) : NULL;
  return n && !strncmp(text, (const char *)p, (size_t)n) ? (size_t)n : 0;
}
// Whether a text ends with an end token of the tokenizer's, white space behind it or not.
static inline bool chat_ended(const Chat *c, const char *text) {
  const ChatSpan s = chat_strip(chat_span(text), false, false, true);
  auto ends = [&](const char *stop) {
    const size_t n = strlen(stop);
    return n <= s.n && !memcmp(s.p + s.n - n, stop, n) && chat_token(c->tokenizer, stop) >= 0;
  };
  for (const ChatTemplate &f : chat_templates) if (ends(f.stop)) return true;
  for (const char *name : chat_text_ends) if (ends(name)) return true;
  return false;
}
// A prompt (NULL: none) and what follows it, as they are.
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

bool chat_check_line(const uint8_t *line, size_t bytes, char fault[256]) {
  const uint8_t *const end = line + bytes, *p = line;
  const size_t bad = text_bad_utf8(line, bytes, 0);
  bool nul = memchr(line, 0, bytes);
  fault[0] = 0;
  if (bad < bytes) snprintf(fault, 256, "byte %zu is not UTF-8", bad + 1);
  for (int step; bad == bytes && !nul && !fault[0] && p < end; p += step) {
    if (!(p = (const uint8_t *)memchr(p, '\\', (size_t)(end - p)))) break;
    step = 2;
    if (end - p < 6 || p[1] != 'u') continue;
    step = 6, nul = !memcmp(p + 2, "0000", 4);
    if ((p[2] | 32) != 'd' || !p[3] || !strchr("89abABcdefCDEF", p[3])) continue;
    const bool whole = strchr("89abAB", p[3]) && end - p >= 12 && p[6] == '\\' && p[7] == 'u' && (p[8] | 32) == 'd' &&
                       strchr("cdefCDEF", p[9]) && p[9];
    if (!whole)
      snprintf(fault, 256, "%.6s at byte %zu is half of a character (a lone surrogate): in Python, "
               "s.encode('utf-8', 'replace').decode() writes ? in its place", (const char *)p, (size_t)(p - line) + 1);
    step = 12;
  }
  if (nul && bad == bytes) snprintf(fault, 256, "it has a NUL character");
  return !fault[0];
}
// A record, as messages, or as it is.
static inline bool chat_record(const Chat *c, ChatTokens *k, const ChatRecord *r) {
  const bool ok = r->messages ? chat_messages(c, k, r->messages, r->tools)
                  : r->text ? chat_plain(c, k, NULL, r->text) : chat_plain(c, k, r->prompt, r->completion);
  chat_flush(c, k);
  return ok;
}
// A preference: what was chosen, then what was rejected.
static inline bool chat_preference(const Chat *c, ChatTokens *k, const cJSON *json) {
  bool ok = true;
  for (int rejected = 0; ok && rejected < 2; rejected++) {
    ChatRecord r = {};
    if (rejected) k->second = k->count;
    ok = record_answer(&r, json, c->o.fields, c->o.pairs, rejected, c->notes, RecordFault{k->fault, sizeof k->fault}) &&
         chat_record(c, k, &r);
    if (!rejected) k->unread = r.unread, r.unread = NULL;
    record_free(&r);
  }
  return ok;
}
bool chat_line(const Chat *c, ChatTokens *k, const uint8_t *line, size_t bytes) {
  cJSON *json = record_parse(line, bytes, k->fault);
  ChatRecord r = {};
  bool ok = json;
  if (!json) return false;
  if (c->o.preferences) ok = chat_preference(c, k, json);
  else
    ok = record_read(&r, json, c->o.fields, c->o.pairs, c->o.train_all, c->notes,
                     RecordFault{k->fault, sizeof k->fault}) && chat_record(c, k, &r);
  if (r.unread) k->unread = r.unread, r.unread = NULL;
  if (c->notes && ok) record_note_fields(json, c->o.fields, &k->fields_seen);
  record_free(&r);
  cJSON_Delete(json);
  return ok;
}

bool chat_prompt(const Chat *c, ChatTokens *k, const char *said) {
  cJSON *messages = cJSON_CreateArray(), *m = cJSON_CreateObject();
  cJSON_AddStringToObject(m, "role", "user");
  cJSON_AddStringToObject(m, "content", said);
  cJSON_AddItemToArray(messages, m);
  const bool ok = chat_next(c, k, messages);
  cJSON_Delete(messages);
  return ok;
}
