// records.h: a record of data in the forms that people keep, as what conversations.h renders; and the containers that
// records come in, as lines of JSON.
//
//   form        members of a record                                             becomes
//   messages    messages: [{role, content}, ...]                                messages
//   ShareGPT    conversations (or conversation, items): [{from, value}]; system messages
//   Alpaca      instruction, output                                             messages
//   Dolly       instruction, response                                           messages
//   question    question, answer                                                messages
//   response    prompt, response                                                messages
//   pair        prompt, completion: TEXT                                        as they are, or messages (--pairs chat)
//               prompt, completion: [{role, content}, ...]                      messages
//   text        text                                                            as it is, where no other form fits
//   preference  chosen, rejected: TEXT, a message or messages, behind any of these questions, or behind what both have
//               in common at their beginning                                    two records (record_answer)
//
// The four that ask a question may also have input or context, which goes below it, a system message, and history,
// [[question, answer], ...], which goes before it. The option --fields gives other names of these members
// (prompt=q,completion=a). A record that fits two forms is refused unless --fields names the members of one.
//
// Calls of tools, in OpenAI's shape or as the roles function_call and observation have them, become a message's
// tool_calls, [{name, arguments, text}], text being arguments that were JSON in a text; messages may have tools, or
// functions as OpenAI had them before.
//
// Defines: ChatRecord, record_read, record_answer, record_free, record_fields_fault, records_of_json,
// records_of.
#pragma once
#include "chat.h"
#include "forms.h"
#include "chat_tools.h"
#include <cjson/cJSON.h>
#include <stdlib.h>

// What a record is: messages, with tools or NULL, or prompt and completion, or text. Pointers into the JSON but for
// `made` and `tools`.
struct ChatRecord { const cJSON *messages; const char *prompt, *completion, *text; cJSON *made, *tools; };
static inline bool record_fail(RecordFault f, const char *fmt, const char *what = "", const char *more = "") {
  snprintf(f.text, f.bytes, fmt, what, more);
  return false;
}
static inline void record_free(ChatRecord *r) {
  cJSON_Delete(r->made);
  cJSON_Delete(r->tools);
}

// ---- members
const cJSON *record_member(const cJSON *json, const char *fields, const char *name,
                           bool *given) {
  const size_t n = strlen(name);
  for (const char *at = fields; *at; at += strcspn(at, ","), at += *at == ',') {
    if (strncmp(at, name, n) || at[n] != '=') continue;
    char key[128];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(at + n + 1, ","), at + n + 1);
    if (given) *given = true;
    return cJSON_GetObjectItemCaseSensitive(json, key);
  }
  return cJSON_GetObjectItemCaseSensitive(json, name);
}
const char *record_text(const cJSON *json, const char *fields, const char *name) {
  return cJSON_GetStringValue(record_member(json, fields, name));
}
// The names that fields may give members to. What is wrong with a list of them, or NULL.
static const char *const record_names[] = {"messages", "conversations", "role", "content", "from", "value", "system",
                                           "instruction", "input", "output", "history", "context", "response",
                                           "question", "answer", "prompt", "completion", "chosen", "rejected",
                                           "text"};
const char *record_fields_fault(const char *fields) {
  for (const char *at = fields; *at; at += strcspn(at, ","), at += *at == ',') {
    const size_t name = strcspn(at, "=,"), all = strcspn(at, ",");
    bool known = false;
    for (const char *n : record_names) known = known || (strlen(n) == name && !strncmp(n, at, name));
    if (at[name] != '=' || name + 1 >= all) return "is not NAME=MEMBER, with commas between several";
    if (!known)
      return "names no member: choose from messages, conversations, role, content, from, value, system, instruction, "
             "input, output, history, context, response, question, answer, prompt, completion, text";
  }
  return NULL;
}

// ---- messages
static inline cJSON *record_add(cJSON *messages, const char *role, const char *content) {
  cJSON *m = cJSON_CreateObject();
  cJSON_AddStringToObject(m, "role", role);
  cJSON_AddStringToObject(m, "content", content);
  cJSON_AddItemToArray(messages, m);
  return m;
}
// A role under any of its names; others are themselves.
static inline const char *record_role(const char *name) {
  static const char *const same[][7] = {{"user", "human", "Human", "User"},
                                        {"assistant", "gpt", "chatgpt", "model", "bot", "bing", "bard"},
                                        {"system", "System"},
                                        {"tool", "observation", "ipython", "function", "tool_response"}};
  for (const auto &row : same) for (const char *n : row) if (n && !strcmp(n, name)) return row[0];
  return name;
}
// A text, or the texts of a list of {"type": "text", "text"}: malloc'ed; NULL: it has something else.
static inline char *record_content(const cJSON *x) {
  if (cJSON_IsString(x)) return strdup(x->valuestring);
  if (!cJSON_IsArray(x)) return NULL;
  size_t n = 0;
  char *all = (char *)calloc(1, 1);
  const cJSON *part;
  cJSON_ArrayForEach(part, x) {
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(part, "type"));
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(part, "text"));
    if (!text || (type && strcmp(type, "text"))) { free(all); return NULL; }
    const size_t bytes = strlen(text);
    all = (char *)realloc(all, n + bytes + 1);
    if (!all) die_missing("data: no memory for a message of %zu bytes", n + bytes);
    memcpy(all + n, text, bytes + 1);
    n += bytes;
  }
  return all;
}
// Whether a member says nothing: absent, null, or empty.
static inline bool record_is_empty(const cJSON *x) {
  return !x || cJSON_IsNull(x) || ((cJSON_IsArray(x) || cJSON_IsObject(x)) && !x->child) ||
         (cJSON_IsString(x) && (!x->valuestring[0] || !strcmp(x->valuestring, "[]")));
}
// Adds a call, or a list of them, or the JSON of either, to a message's tool_calls. False: it is none.
static inline bool record_add_calls(cJSON *message, const cJSON *x, int depth = 0) {
  const cJSON *each;
  if (cJSON_IsString(x)) {
    cJSON *parsed = depth < 2 ? json_parse_spelled(x->valuestring) : NULL;
    const bool ok = parsed && record_add_calls(message, parsed, 2);
    cJSON_Delete(parsed);
    return ok;
  }
  if (cJSON_IsArray(x)) {
    cJSON_ArrayForEach(each, x) if (cJSON_IsArray(each) || !record_add_calls(message, each, depth)) return false;
    return true;
  }
  const cJSON *inner = cJSON_GetObjectItemCaseSensitive(x, "function");
  if (cJSON_IsObject(inner)) x = inner;
  const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(x, "name"));
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(x, "arguments");
  if (!given) given = cJSON_GetObjectItemCaseSensitive(x, "parameters");         // as Llama 3 writes calls
  if (record_is_empty(given)) given = NULL;      // a call without arguments
  cJSON *arguments = !given ? cJSON_CreateObject() : cJSON_IsString(given) ? json_parse_spelled(given->valuestring)
                                                                           : cJSON_Duplicate(given, 1);
  if (!name || !cJSON_IsObject(arguments)) { cJSON_Delete(arguments); return false; }
  cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls"), *call = cJSON_CreateObject();
  if (!calls) calls = cJSON_AddArrayToObject(message, "tool_calls");
  cJSON_AddStringToObject(call, "name", name);
  cJSON_AddItemToObject(call, "arguments", arguments);
  if (cJSON_IsString(given)) cJSON_AddStringToObject(call, "text", given->valuestring);
  cJSON_AddItemToArray(calls, call);
  return true;
}
// The tools of a record: a list of objects, or its JSON. bare: those without {"type": "function", "function": ...}
// around them, as ShareGPT and OpenAI's functions have them, get it. False: they are no such list.
static inline bool record_tools(ChatRecord *r, const cJSON *json, bool bare, RecordFault fault) {
  const cJSON *x = cJSON_GetObjectItemCaseSensitive(json, "tools"), *each;
  if (record_is_empty(x)) x = cJSON_GetObjectItemCaseSensitive(json, "functions"), bare = true;
  if (record_is_empty(x)) return true;
  cJSON *list = cJSON_IsString(x) ? json_parse_spelled(x->valuestring) : cJSON_Duplicate(x, 1);
  bool ok = cJSON_IsArray(list);
  r->tools = cJSON_CreateArray();
  cJSON_ArrayForEach(each, list) {
    cJSON *tool = cJSON_Duplicate(each, 1), *around = cJSON_CreateObject();
    const bool wrap = bare && !cJSON_HasObjectItem(tool, "function");
    ok = ok && cJSON_IsObject(tool);
    if (wrap) {
      cJSON_AddStringToObject(around, "type", "function");
      cJSON_AddItemToObject(around, "function", tool);
    } else cJSON_Delete(around);
    cJSON_AddItemToArray(r->tools, wrap ? around : tool);
  }
  cJSON_Delete(list);
  if (!r->tools->child) {                        // the JSON of an empty list
    cJSON_Delete(r->tools);
    r->tools = NULL;
  }
  return ok || record_fail(fault, "its tools are no list of objects, and no text with the JSON of one");
}
// Adds the messages of a list: role and content, or from and value, under the names that fields give; other members
// stay, but for null, as tables have where there is none. False: one is none.
static inline bool record_add_list(cJSON *to, const cJSON *list, const char *fields, RecordFault fault) {
  const cJSON *m, *x;
  cJSON_ArrayForEach(m, list) {
    const cJSON *role = record_member(m, fields, "role"), *content = record_member(m, fields, "content");
    if (!role) role = record_member(m, fields, "from");
    if (!content) content = record_member(m, fields, "value");
    const char *who = cJSON_GetStringValue(role);
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(m, "tool_calls");
    if (record_is_empty(calls)) calls = cJSON_GetObjectItemCaseSensitive(m, "function_call");
    const bool called = who && (!strcmp(who, "function_call") || !strcmp(who, "tool_call"));
    const bool nothing = called || cJSON_IsNull(content) || (!content && !record_is_empty(calls));
    char *said = nothing ? strdup("") : record_content(content);
    if (!who || !said) {
      free(said);
      return record_fail(fault, cJSON_IsArray(content)
                         ? "a message has content of another kind than text"
                         : "a message is not {\"role\": TEXT, \"content\": TEXT} or {\"from\": TEXT, \"value\": TEXT}");
    }
    cJSON *made = record_add(to, called ? "assistant" : record_role(who), said);
    free(said);
    if (called) calls = content;
    if ((called || !record_is_empty(calls)) &&
        (!record_add_calls(made, calls) || !cJSON_HasObjectItem(made, "tool_calls")))
      return record_fail(fault, "a call is not {\"name\": TEXT, \"arguments\": OBJECT}, in \"function\" or not, the "
                         "object as it is or as JSON in a text");
    cJSON_ArrayForEach(x, m)
      if (x != role && x != content && !cJSON_IsNull(x) && strcmp(x->string, "function_call") &&
          strcmp(x->string, "tool_calls") && !cJSON_HasObjectItem(made, x->string))
        cJSON_AddItemToObject(made, x->string, cJSON_Duplicate(x, 1));
  }
  return true;
}
// The first n messages are not trained on.
static inline void record_untrained(cJSON *made, int n) {
  for (cJSON *m = made->child; m && n > 0; m = m->next, n--) {
    cJSON_DeleteItemFromObjectCaseSensitive(m, "train");
    cJSON_AddFalseToObject(m, "train");
  }
}
// Who speaks first in a list of messages, under the name that templates have; "": it cannot be told.
static inline const char *record_first(const cJSON *list, const char *fields) {
  const cJSON *m = cJSON_IsArray(list) ? list->child : NULL;
  const char *who = m ? record_text(m, fields, "role") : NULL;
  if (m && !who) who = record_text(m, fields, "from");
  return who ? record_role(who) : "";
}

// ---- forms
// A member that is a text, absent or null; in *text, "" where it is not there. False: it is something else.
static inline bool record_optional(const cJSON *json, const char *fields, const char *name, const char **text,
                                   RecordFault fault) {
  const cJSON *x = record_member(json, fields, name);
  *text = cJSON_IsString(x) ? x->valuestring : "";
  return !x || cJSON_IsNull(x) || cJSON_IsString(x) || record_fail(fault, "its %s is no text", name);
}
// A question, the rest of it under input or context, and its answer.
static inline bool record_ask(ChatRecord *r, const cJSON *json, const char *fields, const char *question,
                              const char *answer, RecordFault fault) {
  const char *said = record_text(json, fields, question), *told = record_text(json, fields, answer);
  const char *system, *input, *context;
  if (!said || !told) return record_fail(fault, "its %s or %s is no text", question, answer);
  if (!record_optional(json, fields, "system", &system, fault) ||
      !record_optional(json, fields, "input", &input, fault) ||
      !record_optional(json, fields, "context", &context, fault))
    return false;
  if (*input && *context) return record_fail(fault, "it has both input and context");
  if (*system) record_add(r->made, "system", system);
  const cJSON *turn, *history = record_member(json, fields, "history");
  if (history && !cJSON_IsNull(history) && !cJSON_IsArray(history))
    return record_fail(fault, "its history is not [[TEXT, TEXT], ...]");
  cJSON_ArrayForEach(turn, history) {
    const char *before = cJSON_GetStringValue(cJSON_GetArrayItem(turn, 0));
    const char *then = cJSON_GetStringValue(cJSON_GetArrayItem(turn, 1));
    if (!before || !then || cJSON_GetArraySize(turn) != 2)
      return record_fail(fault, "its history is not [[TEXT, TEXT], ...]");
    record_add(r->made, "user", before);
    record_add(r->made, "assistant", then);
  }
  char *whole = NULL;
  if (asprintf(&whole, "%s%s%s%s", said, *input || *context ? "\n" : "", input, context) < 0)
    die_missing("data: no memory for a question");
  record_add(r->made, "user", whole);
  record_add(r->made, "assistant", told);
  free(whole);
  return true;
}
static const RecordForm record_forms[] = {
    {"messages", FORM_MESSAGES, "messages", NULL}, {"ShareGPT", FORM_MESSAGES, "conversations", NULL},
    {"ShareGPT", FORM_MESSAGES, "conversation", NULL}, {"ShareGPT", FORM_MESSAGES, "items", NULL},
    {"preferences", FORM_PREFERENCE, "chosen", "rejected"}, {"Alpaca", FORM_ASK, "instruction", "output"},
    {"Dolly", FORM_ASK, "instruction", "response"}, {"questions", FORM_ASK, "question", "answer"},
    {"responses", FORM_ASK, "prompt", "response"}, {"pairs", FORM_PAIR, "prompt", "completion"},
    {"text", FORM_TEXT, "text", NULL}};

const RecordForm *record_form(const cJSON *json, const char *fields, RecordFault fault,
                              bool *several) {
  const RecordForm *found = NULL, *named = NULL, *near = NULL;
  bool two = false;
  for (const RecordForm &f : record_forms) {
    bool given = false;
    const cJSON *a = record_member(json, fields, f.first, &given);
    const cJSON *b = f.second ? record_member(json, fields, f.second, &given) : a;
    const bool fits = a && b && !cJSON_IsNull(a) && !cJSON_IsNull(b);
    // A list is a conversation if it has messages; under the name messages, whatever it has.
    const cJSON *first = cJSON_IsArray(a) ? a->child : NULL;
    const bool list = f.kind != FORM_MESSAGES || (cJSON_IsArray(a) && (!strcmp(f.first, "messages") || !first ||
                      record_member(first, fields, "role") || record_member(first, fields, "from")));
    if (!fits && (a || b) && f.second && !near) near = &f;
    if (!fits || !list) continue;
    if (given && !named) named = &f;
    if (found && f.kind == FORM_TEXT) continue;                // beside another form it is that, rendered
    two = two || found;
    if (found)
      record_fail(fault, "it has two forms, %s and %s: name the members of one by --fields, such as messages=messages",
                  found->name, f.name);
    else found = &f;
  }
  if (several) *several = two && !named;
  if (!cJSON_IsObject(json)) { record_fail(fault, "it is no object with members"); return NULL; }
  if (named) { fault.text[0] = 0; return named; }
  if (two) return NULL;
  if (!found) {
    char keys[100] = "";
    const cJSON *x;
    cJSON_ArrayForEach(x, json)
      if (x->string) text_add(keys, sizeof keys, "%s%s", keys[0] ? ", " : "", x->string);
    snprintf(fault.text, fault.bytes, "it has no form that is known; its members: %.90s; --fields tells their names",
             keys);
    if (near)
      snprintf(fault.text, fault.bytes, "it has no form that is known: nearest is %s, with %s and %s; its members: "
               "%.80s; --fields tells other names", near->name, near->first, near->second, keys);
  }
  return found;
}
// Reads a record. pairs_chat: prompt and completion are messages; all: everything is trained on. False: `fault`. To be
// freed in any case.
static inline bool record_read(ChatRecord *r, const cJSON *json, const char *fields, bool pairs_chat, bool all,
                               RecordFault fault) {
  *r = {};
  const RecordForm *f = record_form(json, fields, fault);
  if (!f) return false;
  const cJSON *a = record_member(json, fields, f->first);
  const cJSON *b = f->second ? record_member(json, fields, f->second) : NULL;
  if (f->kind == FORM_PREFERENCE)
    return record_fail(fault, "it is a preference (chosen and rejected): --loss dpo trains on it; to train on what was "
                       "chosen alone: --fields messages=chosen, or prompt=prompt,completion=chosen");
  if (f->kind == FORM_TEXT) return (r->text = cJSON_GetStringValue(a)) || record_fail(fault, "its text is no text");
  r->messages = r->made = cJSON_CreateArray();
  const bool bare = f->kind == FORM_ASK || (f->kind == FORM_MESSAGES && strcmp(f->first, "messages"));
  if (f->kind == FORM_ASK)
    return record_tools(r, json, bare, fault) && record_ask(r, json, fields, f->first, f->second, fault);
  const bool lists = cJSON_IsArray(a) && (f->kind == FORM_MESSAGES || cJSON_IsArray(b));
  r->prompt = cJSON_GetStringValue(a), r->completion = cJSON_GetStringValue(b);
  if (!lists && (!r->prompt || !r->completion))
    return record_fail(fault, "its prompt and completion are neither texts nor messages");
  if (!lists && !pairs_chat) { r->messages = NULL; return true; }
  if (!record_tools(r, json, bare, fault)) return false;
  // A system message beside a list of messages counts where the list has none. Beside "messages" it is another thing.
  const char *system = "";
  if (strcmp(f->first, "messages") && !record_optional(json, fields, "system", &system, fault)) return false;
  if (*system && (!lists || strcmp(record_first(a, fields), "system"))) record_add(r->made, "system", system);
  if (!lists) {
    record_add(r->made, "user", r->prompt);
    record_add(r->made, "assistant", r->completion);
    return true;
  }
  if (!record_add_list(r->made, a, fields, fault)) return false;
  if (b && !all) record_untrained(r->made, cJSON_GetArraySize(r->made));         // trained on is the completion
  return !b || record_add_list(r->made, b, fields, fault);
}

// ---- preferences
// Adds an answer: a text, a message, or messages.
static inline bool record_add_answer(cJSON *to, const cJSON *x, const char *fields, RecordFault fault) {
  if (cJSON_IsString(x)) return record_add(to, "assistant", x->valuestring);
  cJSON *one = cJSON_IsObject(x) ? cJSON_CreateArray() : NULL;
  if (one) cJSON_AddItemReferenceToArray(one, (cJSON *)x);
  const bool ok = record_add_list(to, one ? one : x, fields, fault);
  cJSON_Delete(one);
  return ok;
}
// Two texts without a prompt: it is what both begin with, but for a blank at its end, which the answers have.
static inline bool record_common_text(ChatRecord *r, const char *mine, const char *other) {
  size_t n = 0;
  while (mine[n] && mine[n] == other[n]) n++;
  while (n && ((uint8_t)mine[n] & 0xc0) == 0x80) n--;            // a character stays whole
  n -= n && mine[n - 1] == ' ';
  char *prompt = strndup(mine, n);
  r->made = cJSON_CreateArray();
  cJSON_AddItemToArray(r->made, cJSON_CreateString(prompt));
  free(prompt);
  r->prompt = r->made->child->valuestring, r->completion = mine + n;
  return true;
}
// Two whole conversations: what stands before the answers is the messages that both begin with. Each answer has one
// message at least.
static inline bool record_common_list(ChatRecord *r, const cJSON *mine, const cJSON *other, const char *fields,
                                      RecordFault fault) {
  cJSON *theirs = cJSON_CreateArray();
  int n = cJSON_GetArraySize(r->made);           // a system message beside them
  const bool ok = record_add_list(r->made, mine, fields, fault) && record_add_list(theirs, other, fields, fault);
  const cJSON *a = cJSON_GetArrayItem(r->made, n), *b = theirs->child;
  for (; ok && a && b && a->next && b->next && cJSON_Compare(a, b, 1); a = a->next, b = b->next) n++;
  record_untrained(r->made, n);
  cJSON_Delete(theirs);
  return ok;
}
// Reads one answer of a preference as the record that it would be alone. Answers that are lists beginning with a
// question or a system message are whole conversations. Else what stands before them is in prompt (a text, or
// messages), in messages, conversations or conversation, or is asked as instruction or question; of two texts it may be
// what both have in common. False: `fault`. To be freed in any case.
static inline bool record_answer(ChatRecord *r, const cJSON *json, const char *fields, bool pairs_chat, bool rejected,
                                 RecordFault fault) {
  const char *const names[] = {"chosen", "rejected"};
  const cJSON *const both[] = {record_member(json, fields, "chosen"), record_member(json, fields, "rejected")};
  const cJSON *mine = both[rejected], *other = both[!rejected], *before = NULL;
  *r = {};
  for (int i = 0; i < 2; i++)
    if (!cJSON_IsString(both[i]) && !cJSON_IsArray(both[i]) && !cJSON_IsObject(both[i]))
      return record_fail(fault, "it is no preference: its %s is no text, message or messages; --fields tells other "
                         "names", names[i]);
  if (mine->type != other->type) return record_fail(fault, "its chosen and rejected are of different kinds");
  const char *system, *prompt = record_text(json, fields, "prompt");
  if (!record_optional(json, fields, "system", &system, fault)) return false;
  for (const char *name : {"prompt", "messages", "conversations", "conversation"})
    if (!before && cJSON_IsArray(record_member(json, fields, name))) before = record_member(json, fields, name);
  const char *asked = record_text(json, fields, "instruction") ? "instruction" : "question";
  const bool text = cJSON_IsString(mine), asks = text && !before && !prompt && record_text(json, fields, asked);
  if (!prompt && !asks) prompt = record_text(json, fields, asked);
  if (text && !before && !asks && (!pairs_chat || !prompt)) {
    if (*system || pairs_chat)
      return record_fail(fault, pairs_chat
                         ? "it has no prompt, without which --pairs chat makes no messages"
                         : "it has a system message beside texts: --pairs chat makes messages of them");
    r->prompt = prompt, r->completion = mine->valuestring;
    return prompt || record_common_text(r, mine->valuestring, other->valuestring);
  }
  r->messages = r->made = cJSON_CreateArray();
  if (!record_tools(r, json, true, fault)) return false;
  if (asks) {
    if (!record_ask(r, json, fields, asked, names[rejected], fault)) return false;
    record_untrained(r->made, cJSON_GetArraySize(r->made) - 1);
    return true;
  }
  const bool whole = cJSON_IsArray(mine) && strcmp(record_first(mine, fields), "assistant");
  if (*system && strcmp(record_first(whole ? mine : before, fields), "system")) record_add(r->made, "system", system);
  if (whole && before && before == record_member(json, fields, "prompt"))
    return record_fail(fault, "it has messages as its prompt, and answers that begin with a question themselves");
  if (whole) return record_common_list(r, mine, other, fields, fault);
  if (before && !record_add_list(r->made, before, fields, fault)) return false;
  if (!before && prompt) record_add(r->made, "user", prompt);
  if (!before && !prompt) return record_fail(fault, "it has no prompt, messages or conversations before its answers");
  record_untrained(r->made, cJSON_GetArraySize(r->made));
  return record_add_answer(r->made, mine, fields, fault);
}

// ---- containers
bool records_of_json(RecordLines *s, uint8_t *p, size_t n) {
  for (uint8_t *const end = p + n; p < end; p++) {
    const uint8_t c = *p;
    if (s->string) {
      if (s->escaped) s->escaped = false;
      else if (c == '\\') s->escaped = true;
      else if (c == '"') s->string = false;
      continue;
    }
    const bool blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (s->ended && !blank) return false;
    if (!s->begun && c == '[') { s->begun = s->array = true; *p = ' '; continue; }
    if (s->array && !s->depth && (c == ',' || c == ']')) { s->ended = c == ']'; *p = '\n'; continue; }
    if (blank) {
      const bool between = !s->depth && (c == '\n' || s->behind);                // of two objects on one line
      *p = s->depth || s->array || !between ? ' ' : '\n';
      continue;
    }
    if (c != 0xef && c != 0xbb && c != 0xbf) s->begun = true;    // a byte order mark
    s->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    s->behind = !s->depth && c == '}';
    s->string = c == '"';
  }
  return true;
}
// The next value of a table, in `to`: in double quotes, where "" is one, or as it is; without what ends it. True: it is
// whole.
static inline bool table_value(const uint8_t **at, const uint8_t *end, char separator, FILE *to) {
  const uint8_t *p = *at;
  const bool quoted = p < end && *p == '"';
  for (p += quoted; p < end; p++) {
    if (quoted && *p == '"' && (p + 1 == end || p[1] != '"')) break;
    if (!quoted && (*p == separator || *p == '\n' || *p == '\r')) break;
    fputc(*p, to);
    p += quoted && *p == '"';
  }
  const bool whole = !quoted || p < end;
  p += quoted && p < end;
  while (p < end && *p == '\r') p++;
  *at = p;
  return whole;
}
static inline void table_put(FILE *to, const char *text, size_t bytes) {
  for (const char *c = text; c < text + bytes; c++)
    if ((unsigned char)*c < 32 || *c == '"' || *c == '\\') fprintf(to, "\\u%04x", (unsigned char)*c);
    else fputc(*c, to);
}
// A table of values, whose first row has their names, as lines of JSON: an object of texts for each row. separator: a
// comma or a tab. malloc'ed; NULL: `fault`.
static inline char *records_of_table(const uint8_t *p, size_t n, char separator, size_t *bytes, RecordFault fault) {
  enum { NAMES = 1024 };
  const uint8_t *const end = p + n;
  char *out = NULL, *value = NULL, *name[NAMES], words[64];
  size_t value_bytes;
  FILE *to = open_memstream(&out, bytes);
  int names = 0;
  bool ok = true;
  if (n >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) p += 3;
  for (int64_t row = 1; ok && p < end; row++) {
    bool more = true;
    snprintf(words, sizeof words, "row %lld", (long long)row);
    for (int column = 0; ok && more; column++, free(value)) {
      const uint8_t *const begin = p;
      FILE *v = open_memstream(&value, &value_bytes);
      const bool whole = table_value(&p, end, separator, v);
      fclose(v);
      more = p < end && *p == separator;
      const bool line_end = p == end || *p == '\n';
      const bool blank = !column && !more && !value_bytes && (begin == end || *begin != '"');
      const bool nothing = blank && whole;       // a line without values
      if (!whole) ok = record_fail(fault, "%s has a value whose \" does not end", words);
      else if (!more && !line_end)
        ok = record_fail(fault, *begin == '"' ? "%s has more behind the \" that ends a value; a value with \" in it is "
                         "quoted whole, with \"\" for each" : "%s has a line's end that is no newline", words);
      else if (nothing && row == 1) row = 0;
      else if (row == 1 && names == NAMES) ok = record_fail(fault, "%s has more than 1024 names", words);
      else if (row == 1) name[names++] = strdup(value);
      else if (!nothing && column >= names) ok = record_fail(fault, "%s has more values than there are names", words);
      else if (!nothing) {
        fputs(column ? ",\"" : "{\"", to);
        table_put(to, name[column], strlen(name[column]));
        fputs("\":\"", to);
        table_put(to, value, value_bytes);
        fputs(more ? "\"" : "\"}", to);
        if (!more && column + 1 < names) ok = record_fail(fault, "%s has fewer values than there are names", words);
      }
      p += p < end;
    }
    if (row > 1) fputc('\n', to);                // a record is the row before its number
    liveness_progress();
  }
  for (int i = 0; i < names; i++) free(name[i]);
  fclose(to);
  if (ok) return out;
  free(out);
  return NULL;
}
bool records_of(const FileForm *f, uint8_t *p, size_t n, char **made, size_t *bytes, RecordFault fault) {
  RecordLines s = {};
  *made = NULL;
  if (f->container == CONTAINER_CSV || f->container == CONTAINER_TSV)
    return (*made = records_of_table(p, n, f->container == CONTAINER_CSV ? ',' : '\t', bytes, fault)) != NULL;
  if (!records_of_json(&s, p, n)) return record_fail(fault, "more stands behind the end of its array");
  return (!s.depth && !s.string && s.ended == s.array) ||
         record_fail(fault, "it is cut short: a bracket or a text does not end");
}
