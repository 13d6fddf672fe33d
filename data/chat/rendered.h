// rendered.h: messages as a text by the model's template, and which bytes of it are trained on.
//
// The variables of a template are those that transformers gives it: messages, tools, documents, add_generation_prompt,
// the texts of special tokens, and the variables of --chat_template_kwargs. A message's thoughts get the name that the
// template reads. A call's arguments are an object, or a string if they were a string and the template has the test
// "arguments is string".
//
// Which bytes of an answer are trained on. Let whole be the rendering of all messages, before the rendering of the
// messages before the answer, prompt the same with add_generation_prompt, and d(x, y) the first byte at which x and y
// differ. If d(prompt, whole) >= d(before, prompt), training starts at byte d(prompt, whole): then the answer's header
// is not trained on, and a <think> that only the generation prompt writes does no harm. Otherwise the template renders
// earlier messages differently once another turn follows, and the answer is not trained on. Training ends with the
// token that ends turns, or, if there is none, with the end of the turn's text. If a template has {% generation %}
// blocks, these are the trained bytes instead.
#pragma once
#include "chat_template.h"
#include "records.h"

// Bytes [from, to) of the rendering that are trained on. ends: training stops after the last token in the range that
// ends turns; first: after the first such token.
struct ChatRange { size_t from, to; bool ends, first; };
struct ChatRender {
  Jinja j;
  JinjaFault fault;
  JinjaScope *globals;
  JinjaValue messages, some;                     // all messages, and the first ones, which a rendering takes
  // messages with content "\1" without calls and thoughts; messages with content "" and with calls and thoughts
  JinjaValue marked, blank;
  JinjaChunk *chunk;                             // memory up to here outlives one rendering
  size_t used;
  ChatText whole;
  ChatRange *range;
  size_t ranges, rewritten;                      // rewritten: answers that are not trained on (see above)
};
static const char *chat_text(const cJSON *m, const char *name) { return cJSON_GetStringValue(bpe_field(m, name)); }
static bool chat_is(const cJSON *m, const char *role) { return m && !strcmp(chat_text(m, "role"), role); }
// Whether a template's text has a name, as a whole word.
static bool chat_mentions(const char *of, const char *name) {
  auto inside = [](char c) { return isalnum((uint8_t)c) || c == '_'; };
  for (const char *at = of; (at = strstr(at, name)); at++)
    if ((at == of || !inside(at[-1])) && !inside(at[strlen(name)])) return true;
  return false;
}
// A tool call in OpenAI's format. of: the template's text.
static JinjaValue chat_call_value(Jinja *j, const cJSON *call, const char *of) {
  auto word = [=](const char *text) { return jinja_words(j, text); };
  JinjaValue v = bpe_field(call, "call") ? jinja_of_json(j, bpe_field(call, "call")) : jinja_dict(j), f = jinja_dict(j);
  const JinjaValue *inner = jinja_find(j, v.d, word("function"));
  const char *text = strstr(of, "arguments is string") ? chat_text(call, "text") : NULL;
  if (inner && inner->type == J_DICT) f = *inner;
  else jinja_put(j, v.d, word("type"), word("function")), jinja_put(j, v.d, word("function"), f);
  if (!jinja_find(j, f.d, word("name"))) jinja_put(j, f.d, word("name"), word(chat_text(call, "name")));
  jinja_put(j, f.d, word("arguments"), text ? word(text) : jinja_of_json(j, bpe_field(call, "arguments")));
  return v;
}
// A message as a value for the template `of`, with calls in OpenAI's format and thoughts under the name that it reads.
static JinjaValue chat_message_value(Jinja *j, const cJSON *m, const char *of) {
  static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
  JinjaValue v = jinja_dict(j);
  const char *thoughts = NULL, *own = NULL;
  for (const cJSON *x = m->child; x; x = x->next) {
    const bool calls = !strcmp(x->string, "tool_calls");
    JinjaValue y = calls ? jinja_list(j) : jinja_of_json(j, x);
    for (const cJSON *call = calls ? x->child : NULL; call; call = call->next)
      jinja_add(j, y.l, chat_call_value(j, call, of));
    jinja_put(j, v.d, jinja_words(j, x->string), y);
    for (const char *name : names)
      if (!strcmp(x->string, name) && cJSON_IsString(x) && *x->valuestring) {
        thoughts = x->valuestring;
        if (chat_mentions(of, name)) own = name;
      }
  }
  for (const char *name : names)
    if (thoughts && !own && chat_mentions(of, name)) jinja_put(j, v.d, jinja_words(j, own = name), jinja_words(j,
        thoughts));
  return v;
}
// A copy of message m with another content; all: with its calls and thoughts, too.
static JinjaValue chat_message_with(Jinja *j, JinjaValue m, const char *content, bool all) {
  JinjaValue v = jinja_dict(j);
  for (size_t i = 0; i < m.d->n; i++) {
    const JinjaText *name = m.d->p[i].key.s;
    bool stays = all;
    for (const char *kept : {"role", "name", "tool_call_id"}) stays = stays || jinja_same(name, kept);
    if (stays) jinja_put(j, v.d, m.d->p[i].key, m.d->p[i].value);
  }
  jinja_put(j, v.d, jinja_words(j, "content"), jinja_words(j, content));
  return v;
}
static bool chat_rendered_fault(const JinjaFault *f, Error *fault) {
  return f->kind == JINJA_RAISED ? fail(fault, "the chat template rejects it: %.200s", f->text)
                                 : fail(fault, "the chat template fails at line %d: %.200s", f->line, f->text);
}
// Sets a template's variables for a conversation. False: r->fault. Call chat_render_close in either case.
static bool chat_render_open(ChatRender *r, const ChatForm *form, const char *date, const cJSON *messages,
                             const cJSON *tools) {
  *r = {};
  Jinja *j = &r->j;
  const char *of = form->text[tools != NULL];
  j->fault = &r->fault, j->date = date, j->t = form->tree[tools != NULL];
  if (setjmp(j->back)) return false;
  r->globals = jinja_scope(j, NULL);
  for (const cJSON *words : {form->json, form->kwargs})
    for (const cJSON *x = words ? words->child : NULL; x; x = x->next)
      if (words == form->kwargs || (strcmp(x->string, "chat_template") && strcmp(x->string, "tool_use")))
        jinja_set_global(j, r->globals, x->string, jinja_of_json(j, x));
  for (JinjaValue *v : {&r->messages, &r->some, &r->marked, &r->blank}) *v = jinja_list(j);
  for (const cJSON *m = messages->child; m; m = m->next) {
    jinja_add(j, r->messages.l, chat_message_value(j, m, of));
    jinja_add(j, r->marked.l, chat_message_with(j, r->messages.l->v[r->messages.l->n - 1], "\1", false));
    jinja_add(j, r->blank.l, chat_message_with(j, r->messages.l->v[r->messages.l->n - 1], "", true));
  }
  jinja_set_global(j, r->globals, "messages", r->some);
  jinja_set_global(j, r->globals, "tools", tools ? jinja_of_json(j, tools) : jinja_none());
  jinja_set_global(j, r->globals, "documents", jinja_none());
  jinja_set_global(j, r->globals, "add_generation_prompt", jinja_none());
  r->chunk = j->chunks, r->used = j->chunks->used;
  return true;
}
// Renders the first `count` messages into r->j.out. False: r->fault.
static bool chat_render(ChatRender *r, size_t count, bool prompt) {
  jinja_release(&r->j, r->chunk, r->used);
  *r->some.l = JinjaList{r->messages.l->v, count, count};
  jinja_set_global(&r->j, r->globals, "add_generation_prompt", jinja_bool(prompt));
  return jinja_render(&r->j, r->globals);
}
// Renders all messages, with `other` in place of message number `at`. False: r->fault.
static bool chat_render_with(ChatRender *r, size_t at, JinjaValue other) {
  const JinjaValue own = r->messages.l->v[at];
  r->messages.l->v[at] = other;
  const bool ok = chat_render(r, r->messages.l->n, false);
  r->messages.l->v[at] = own;
  return ok;
}
static void chat_render_close(ChatRender *r) {
  jinja_release(&r->j, NULL, 0);
  free(r->j.out.p);
  free(r->j.spans);
  free(r->whole.p);
  free(r->range);
}
// Length of the common prefix of `a` and `whole`, without a cut character.
static size_t chat_common(const ChatText *a, const ChatText *whole) {
  size_t n = 0;
  while (n < a->n && n < whole->n && a->p[n] == whole->p[n]) n++;
  while (n && n < whole->n && ((uint8_t)whole->p[n] & 0xc0) == 0x80) n--;        // a character stays whole
  return n;
}
// *from: the first trained byte of the answer, message number `at`, in r->whole. False: the template renders earlier
// messages differently (see the top), so the answer is not trained on.
static bool chat_answer_begin(ChatRender *r, size_t at, size_t *from) {
  // The template rejects a conversation that ends before the answer: take the text before the answer's content.
  if (!chat_render(r, at, true)) {
    const bool ok = chat_render_with(r, at, r->marked.l->v[at]);
    *from = chat_common(&r->j.out, &r->whole);
    return ok && *from < r->j.out.n && r->j.out.p[*from] == '\1';
  }
  *from = chat_common(&r->j.out, &r->whole);
  if (*from == r->j.out.n) return true;
  ChatText prompt = r->j.out;
  r->j.out = {};
  const bool ok = chat_render(r, at, false);
  const size_t parts = ok ? chat_common(&r->j.out, &prompt) : prompt.n;
  free(r->j.out.p);
  r->j.out = prompt;
  return *from >= parts;
}
// The byte of r->whole at which the text of the first `count` messages ends. If the template renders them differently
// when they come last, the byte at which the next message's content starts. Returns `none` if neither can be found.
static size_t chat_part_end(ChatRender *r, size_t count, size_t none) {
  if (count == r->messages.l->n) return r->whole.n;
  if (chat_render(r, count, false) && chat_common(&r->j.out, &r->whole) == r->j.out.n) return r->j.out.n;
  if (!chat_render_with(r, count, r->marked.l->v[count])) return none;
  const size_t at = chat_common(&r->j.out, &r->whole);
  return at < r->j.out.n && r->j.out.p[at] == '\1' ? at : none;
}
// Whether a template leaves out the content of message number `at`.
static bool chat_leaves_out(ChatRender *r, size_t at) {
  return chat_render_with(r, at, r->blank.l->v[at]) && r->j.out.n == r->whole.n &&
         !memcmp(r->j.out.p, r->whole.p, r->whole.n);
}
// Fills in the ranges that are trained on. off[i]: message i is not trained on; answers[i]: message i is an answer;
// all: everything but the messages with `off` is trained on.
static void chat_ranges(ChatRender *r, const bool *off, const bool *answers, bool all) {
  const size_t n = r->messages.l->n, blocks = r->j.span_count / 2;
  size_t *span = r->j.spans;
  r->j.spans = NULL, r->j.span_room = 0;
  r->range = (ChatRange *)bpe_resize(NULL, n + blocks + 1, sizeof *r->range);
  size_t before = 0;
  for (size_t b = 0; !all && b < blocks; b++) r->range[r->ranges++] = ChatRange{span[2 * b], span[2 * b + 1], false,
      false};
  if (all) r->range[r->ranges++] = ChatRange{0, r->whole.n, false, false};
  for (size_t i = 0; i < n; i++) {
    if ((all || blocks) && off[i] && (all || answers[i])) {      // cut the message out of the ranges
      const size_t from = chat_part_end(r, i, before), to = chat_part_end(r, i + 1, from);
      before = to;
      for (size_t k = 0; k < r->ranges; k++) {
        ChatRange *x = &r->range[k];
        if (x->to <= from || x->from >= to) continue;
        if (x->from < from && x->to > to) {      // {% generation %} blocks may be nested
          r->range = (ChatRange *)bpe_resize(r->range, r->ranges + 1, sizeof *x);
          x = &r->range[k];
          memmove(x + 2, x + 1, (r->ranges++ - k - 1) * sizeof *x);
          x[1] = ChatRange{to, x->to, false, false};
        }
        *x = x->from < from ? ChatRange{x->from, from, false, false} : ChatRange{to < x->to ? to : x->to, x->to, false,
            false};
      }
    }
    if (all || blocks || !answers[i] || off[i]) continue;
    size_t from;
    const bool told = chat_answer_begin(r, i, &from);
    const size_t to = told ? chat_part_end(r, i + 1, SIZE_MAX) : 0;
    if (told && from < to) r->range[r->ranges++] = ChatRange{from, to < r->whole.n ? to : r->whole.n, true,
                                                             to == SIZE_MAX};
    else r->rewritten += !told;
  }
  free(span);
}
