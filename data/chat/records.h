// records.h: converts a record in one of the common dataset schemas ("schemas") to what conversations.h renders; and
// file formats that hold records ("file formats") to lines of JSON.
//
//   schema      keys of a record                                                becomes
//   messages    messages: [{role, content}, ...]                                messages
//   ShareGPT    conversations (or conversation, items): [{from, value}]; system messages
//   Alpaca      instruction, output                                             messages
//   Dolly       instruction, response                                           messages
//   question    question, answer                                                messages
//   response    prompt, response                                                messages
//   pair        prompt, completion: TEXT                                        as they are, or messages (--pairs chat)
//               prompt, completion: [{role, content}, ...]                      messages
//   text        text                                                            as it is, where no other schema fits
//   preference  chosen, rejected: TEXT, a message or messages, after the prompt of any schema above, or after the
//               common
//               start of the two                                                two records (record_answer)
//
// Alpaca, Dolly, question and response records may also have input or context, which goes below the question, a system
// message, and history, [[question, answer], ...], which goes before it. The option --fields gives other names of these
// keys (prompt=q,completion=a). A record that fits two schemas is an error unless --fields names the keys of one.
//
// Tool calls, in OpenAI's format or as messages with the roles function_call and observation, become a message's
// tool_calls, [{name, arguments, text, call}]. text: the arguments if they were a string of JSON; call: the call in
// OpenAI's format. A record of messages may have tools, or functions, OpenAI's older name.
#pragma once
#include "chat_tools.h"

// What a record is: messages, with tools or NULL, or prompt and completion, or text. These point into the JSON, except
// `made` (messages that were made here) and `tools`.
// used: keys that were read. unread: malloc'ed names of other keys, each ended by a zero and all by another; NULL:
// none.
struct RecordUsed { const cJSON *of[24]; int count; };
struct ChatRecord {
  const cJSON *messages;
  const char *prompt, *completion, *text;
  cJSON *made, *tools;
  RecordUsed used;
  char *unread;
};
static inline bool record_fail(Error *f, const char *fmt, const char *what = "", const char *more = "") {
  fail(f, fmt, what, more);
  return false;
}
static inline void record_free(ChatRecord *r) {
  cJSON_Delete(r->made);
  cJSON_Delete(r->tools);
  free(r->unread);
}

// ---- keys
// The value with this key; else the one whose key differs only in case; else NULL.
static inline const cJSON *record_find(const cJSON *json, const char *key) {
  const cJSON *near = NULL;
  for (const cJSON *x = cJSON_IsObject(json) ? json->child : NULL; x; x = x->next) {
    if ((x->string[0] ^ key[0]) & ~32) continue;
    if (!strcmp(x->string, key)) return x;
    if (!near && !strcasecmp(x->string, key)) near = x;
  }
  return near;
}
const cJSON *record_member(const cJSON *json, const char *fields, const char *name,
                           bool *given) {
  const size_t n = strlen(name);
  for (const char *at = fields; *at; at += strcspn(at, ","), at += *at == ',') {
    if (strncmp(at, name, n) || at[n] != '=') continue;
    char key[128];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(at + n + 1, ","), at + n + 1);
    if (given) *given = true;
    return record_find(json, key);
  }
  return record_find(json, name);
}
const char *record_text(const cJSON *json, const char *fields, const char *name) {
  return cJSON_GetStringValue(record_member(json, fields, name));
}
// The names that --fields may give other keys. record_fields_fault: what is wrong with the option's value, or NULL.
static const char *const record_names[] = {"messages", "conversations", "role", "content", "from", "value", "system",
                                           "instruction", "input", "output", "history", "context", "response",
                                           "question", "answer", "prompt", "completion", "chosen", "rejected",
                                           "text"};
const char *record_fields_fault(const char *fields) {
  uint64_t names = 0;
  for (const char *at = fields; *at; at += strcspn(at, ","), at += *at == ',') {
    const size_t name = strcspn(at, "=,"), all = strcspn(at, ",");
    uint64_t known = 0, bit = 1;
    for (const char *n : record_names) known |= strlen(n) == name && !strncmp(n, at, name) ? bit : 0, bit <<= 1;
    if (at[name] != '=' || name + 1 >= all) return "is not NAME=MEMBER, with commas between several";
    if (!known)
      return "names no key: choose from messages, conversations, role, content, from, value, system, instruction, "
             "input, output, history, context, response, question, answer, prompt, completion, text";
    if (names & known) return "gives a key two names";
    names |= known;
  }
  return NULL;
}
// Sets bit i of *seen if a record, or one of its messages, has the key that the i-th element of --fields names.
static inline void record_note_fields(const cJSON *json, const char *fields, uint64_t *seen) {
  uint64_t bit = 1;
  for (const char *at = fields; *at; at += strcspn(at, ","), at += *at == ',', bit <<= 1) {
    char key[128];
    const size_t name = strcspn(at, "=");
    const cJSON *x, *m;
    snprintf(key, sizeof key, "%.*s", (int)strcspn(at + name + 1, ","), at + name + 1);
    if (*seen & bit) continue;
    bool has = record_find(json, key);
    cJSON_ArrayForEach(x, json) {
      has = has || record_find(x, key);          // an answer of a preference is a message
      if (cJSON_IsArray(x)) cJSON_ArrayForEach(m, x) has = has || record_find(m, key);
    }
    *seen |= has ? bit : 0;
  }
}
bool record_fields_missing(const char *fields, uint64_t seen, char *missing, size_t bytes) {
  for (const char *at = fields; *at; at += strcspn(at, ","), at += *at == ',', seen >>= 1)
    if (!(seen & 1)) return snprintf(missing, bytes, "%.*s", (int)strcspn(at, ","), at) > 0;
  return false;
}
bool record_is_single(const cJSON *json, Error *fault) {
  enum { PAIRS_MAX = 32 };
  const char *twice = NULL;
  const cJSON *x, *y;
  int n = 0;
  cJSON_ArrayForEach(x, json) {
    if ((x->type & 0xff) >= cJSON_Array && !record_is_single(x, fault)) return false;
    for (y = x->next; y && x->string && ++n < PAIRS_MAX; y = y->next)
      if (!strcmp(x->string, y->string)) twice = x->string;
  }
  if (!twice && n >= PAIRS_MAX) {               // so many are sorted
    const char **const names = (const char **)bpe_resize(NULL, (size_t)cJSON_GetArraySize(json), sizeof *names);
    n = 0;
    cJSON_ArrayForEach(x, json) names[n++] = x->string;
    qsort(names, (size_t)n, sizeof *names, name_order);
    for (int i = 1; i < n; i++) if (!strcmp(names[i - 1], names[i])) twice = names[i];
    free(names);
  }
  return !twice || record_fail(fault, "its key %.80s comes twice", twice);
}
// Whether a value is empty: absent, null, an empty string, list or object, JSON of these in a string, or a list or
// object of only these.
static inline bool record_is_nothing(const cJSON *x) {
  const cJSON *in;
  if (!x || cJSON_IsNull(x)) return true;
  if (cJSON_IsString(x)) {
    const char *p = x->valuestring + strspn(x->valuestring, " \t\r\n[]{}");
    return !*p || !strcmp(p, "null");
  }
  if (!cJSON_IsArray(x) && !cJSON_IsObject(x)) return false;
  cJSON_ArrayForEach(in, x) if (!record_is_nothing(in)) return false;
  return true;
}
// Keys that would change the loss mask but that no schema reads, and what the user should do instead. A message may
// have the keys of the first three rows.
static const struct { const char *names[7], *instead; } record_meanings[] = {
    {{"weight", "loss_weight", "weights", "sample_weight"}, "give answers \"weight\" 0 or 1"},
    {{"train"}, "give answers \"train\" true or false"}, {{"masked"}, "give answers \"masked\" true or false"},
    {{"label", "labels", "kto_tag"},
     "keep the records that are good, without it, or make preferences of them for --loss dpo"},
    {{"images", "image", "videos", "video", "audios", "audio"}, "text alone is trained on"},
    {{"chosen", "rejected"}, "--fields names the keys of one schema"},
    {{"rejected_response", "rejected_messages"}, "--fields gives rejected this name, for --loss dpo"},
    {{"tools", "functions", "system"}, "--pairs chat makes messages of texts, which have it"}};
enum { RECORD_MEANINGS = sizeof record_meanings / sizeof *record_meanings, RECORD_OF_MESSAGES = 3 };
// The row of record_meanings that has a name; RECORD_MEANINGS: none.
static inline int record_meaning(const char *name) {
  for (int i = 0; i < RECORD_MEANINGS; i++)
    for (const char *of : record_meanings[i].names) if (of && !strcasecmp(of, name)) return i;
  return RECORD_MEANINGS;
}
bool record_changes(const char *name) { return record_meaning(name) < RECORD_MEANINGS; }
bool record_is_other(const char *name) {
  for (const char *kind : {"image", "video", "audio"}) if (!strncasecmp(name, kind, 5)) return true;
  return false;
}
// Whether the value of weight (1), train (true) or masked (false), as JSON or as a string, means that the record is
// trained on as usual.
static inline bool record_counts(const cJSON *x, int meaning) {
  const char *text = cJSON_GetStringValue(x);
  if (meaning == 0) return text ? strtod(text, NULL) == 1 : cJSON_IsNumber(x) && x->valuedouble == 1;
  if (meaning >= RECORD_OF_MESSAGES) return false;
  return text ? !strcasecmp(text, meaning == 1 ? "true" : "false") : meaning == 1 ? cJSON_IsTrue(x) : cJSON_IsFalse(x);
}
// Rejects a key that changes what a record, or a message, means and is not read.
static inline bool record_check_member(const cJSON *x, bool message, Error *fault) {
  const int i = record_meaning(x->string);
  if (i == RECORD_MEANINGS || (message && i < RECORD_OF_MESSAGES) || record_is_nothing(x) || record_counts(x, i))
    return true;
  return record_fail(fault, message ? "a message has %s, which is not read there"
                                    : "it has %s, which changes what it means and is not read: %s", x->string,
                     record_meanings[i].instead);
}
// What a record has beside the keys that were read: rejected if it changes what they mean, else noted in `unread`,
// names that are each ended by a zero. apart: chosen and rejected are another schema, which fields did not choose.
static inline const cJSON *record_use(RecordUsed *u, const cJSON *x) {
  if (x) u->of[u->count++] = x;
  return x;
}
static inline bool record_beside_form(const cJSON *json, const RecordUsed *used, bool apart, char **unread,
                                      Error *fault) {
  size_t n = 0, bytes;
  const cJSON *x;
  cJSON_ArrayForEach(x, json) {
    bool read = false;
    for (int i = 0; i < used->count && !read; i++) {
      read = used->of[i] == x;
      if (!read && !strcasecmp(used->of[i]->string, x->string))
        return record_fail(fault, "its key %.80s comes twice, as %.80s too", used->of[i]->string, x->string);
    }
    if (read || record_is_nothing(x)) continue;
    const bool other = apart && (!strcasecmp(x->string, "chosen") || !strcasecmp(x->string, "rejected"));
    if (!other && !record_check_member(x, false, fault)) return false;
    if (!unread || record_counts(x, record_meaning(x->string))) continue;
    *unread = (char *)bpe_resize(*unread, n + (bytes = strlen(x->string) + 1) + 1, 1);
    memcpy(*unread + n, x->string, bytes);
    (*unread)[n += bytes] = 0;
  }
  return true;
}
void record_unread_add(RecordUnread *u, const char *name, int64_t records) {
  for (int i = 0; i < u->names; i++) if (!strcmp(u->of[i].name, name)) { u->of[i].records += records; return; }
  if (u->names == RECORD_UNREAD_MAX) { u->more += records; return; }
  snprintf(u->of[u->names].name, sizeof u->of[0].name, "%s", name);
  u->of[u->names++].records = records;
}
void records_seen_add(RecordsSeen *to, const char *unread, uint64_t fields) {
  for (const char *name = unread; name && *name; name += strlen(name) + 1) record_unread_add(&to->unread, name, 1);
  to->fields |= fields;
}
bool record_unread_say(const RecordUnread *u, char *line, size_t bytes) {
  line[0] = 0;
  for (int i = 0; i < u->names; i++)
    text_add(line, bytes, "%s%.60s (%lld)", i ? ", " : "keys that are not read, and of how many records: ",
             u->of[i].name, (long long)u->of[i].records);
  if (u->more) text_add(line, bytes, " and others");
  return u->names;
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
// A text, or the texts of a list of {"type": "text", "text"} or {"type": "text", "value"}: malloc'ed; NULL: it has
// something else.
static inline char *record_content(const cJSON *x) {
  if (cJSON_IsString(x)) return strdup(x->valuestring);
  if (!cJSON_IsArray(x)) return NULL;
  size_t n = 0;
  char *all = (char *)calloc(1, 1);
  const cJSON *part;
  cJSON_ArrayForEach(part, x) {
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(part, "type"));
    const char *text = cJSON_GetStringValue(record_find(part, "text")), *value = NULL;
    if (type) value = cJSON_GetStringValue(record_find(part, "value"));
    bool other = (type && strcmp(type, "text")) || (text && value);
    for (const cJSON *in = part->child; in; in = in->next)
      other = other || (in->string && record_is_other(in->string) && !record_is_nothing(in));
    if (!text) text = value;
    if (!text || other) { free(all); return NULL; }
    const size_t bytes = strlen(text);
    all = (char *)realloc(all, n + bytes + 1);
    if (!all) die_missing("data: no memory for a message of %zu bytes", n + bytes);
    memcpy(all + n, text, bytes + 1);
    n += bytes;
  }
  return all;
}
// Whether a key says nothing: absent, null, or empty.
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
  const cJSON *inner = cJSON_GetObjectItemCaseSensitive(x, "function"), *whole = cJSON_IsObject(inner) ? x : NULL;
  if (whole) x = inner;
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
  if (whole) cJSON_AddItemToObject(call, "call", cJSON_Duplicate(whole, 1));
  cJSON_AddItemToArray(calls, call);
  return true;
}
// The tools of a record: a list of objects, or its JSON. bare: those without {"type": "function", "function": ...}
// around them, as ShareGPT and OpenAI's functions have them, get it. False: they are no such list.
static inline bool record_tools(ChatRecord *r, const cJSON *json, bool bare, Error *fault) {
  const cJSON *x = record_find(json, "tools"), *each;
  if (record_is_empty(x)) x = record_find(json, "functions"), bare = true;
  if (record_is_empty(x)) return true;
  record_use(&r->used, x);
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
// A key of a message that templates or masks read, under their spelling; any other is itself.
static inline const char *record_spelled(const char *name) {
  for (const char *own : {"weight", "loss_weight", "train", "masked", "reasoning_content", "reasoning", "thinking"})
    if (!strcasecmp(name, own)) return own;
  return name;
}
// Adds the messages of a list: role and content, or from and value, under the names that fields give; other keys
// stay, but for null, as tables have where there is none. False: one is none.
static inline bool record_add_list(cJSON *to, const cJSON *list, const char *fields, Error *fault) {
  const cJSON *m, *x;
  cJSON_ArrayForEach(m, list) {
    const cJSON *role = record_member(m, fields, "role"), *content = record_member(m, fields, "content");
    if (!role) role = record_member(m, fields, "from");
    if (!content) content = record_member(m, fields, "value");
    const char *who = cJSON_GetStringValue(role);
    const cJSON *calls = record_find(m, "tool_calls");
    if (record_is_empty(calls)) calls = record_find(m, "function_call");
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
    const bool silent = nothing && !called && !record_is_empty(calls);         // as transformers gives it to a template
    if (silent) cJSON_DeleteItemFromObjectCaseSensitive(made, "content");
    if (silent && content) cJSON_AddNullToObject(made, "content");
    if (called) calls = content;
    if ((called || !record_is_empty(calls)) &&
        (!record_add_calls(made, calls) || !cJSON_HasObjectItem(made, "tool_calls")))
      return record_fail(fault, "a call is not {\"name\": TEXT, \"arguments\": OBJECT}, in \"function\" or not, the "
                         "object as it is or as JSON in a text");
    cJSON_ArrayForEach(x, m) {
      if (x == role || x == content || cJSON_IsNull(x) || !strcasecmp(x->string, "function_call") ||
          !strcasecmp(x->string, "tool_calls") || cJSON_HasObjectItem(made, x->string)) continue;
      if (!record_check_member(x, true, fault)) return false;
      cJSON_AddItemToObject(made, record_spelled(x->string), cJSON_Duplicate(x, 1));
    }
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
// A key that is a text, absent or null; in *text, "" where it is not there. False: it is something else.
static inline bool record_optional(ChatRecord *r, const cJSON *json, const char *fields, const char *name,
                                   const char **text, Error *fault) {
  const cJSON *x = record_use(&r->used, record_member(json, fields, name));
  *text = cJSON_IsString(x) ? x->valuestring : "";
  return !x || cJSON_IsNull(x) || cJSON_IsString(x) || record_fail(fault, "its %s is no text", name);
}
// A question, the rest of it under input or context, and its answer.
static inline bool record_ask(ChatRecord *r, const cJSON *json, const char *fields, const char *question,
                              const char *answer, Error *fault) {
  const char *said = record_text(json, fields, question), *told = record_text(json, fields, answer);
  const char *system, *input, *context;
  if (!said || !told) return record_fail(fault, "its %s or %s is no text", question, answer);
  if (!record_optional(r, json, fields, "system", &system, fault) ||
      !record_optional(r, json, fields, "input", &input, fault) ||
      !record_optional(r, json, fields, "context", &context, fault))
    return false;
  if (*input && *context) return record_fail(fault, "it has both input and context");
  if (*system) record_add(r->made, "system", system);
  const cJSON *turn, *history = record_use(&r->used, record_member(json, fields, "history"));
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

const RecordForm *record_form(const cJSON *json, const char *fields, Error *fault, bool *several) {
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
    if (found && f.kind == FORM_TEXT) continue;                // beside another schema it is that, rendered
    two = two || found;
    if (found && (found->kind == FORM_PREFERENCE || f.kind == FORM_PREFERENCE))
      record_fail(fault, "it is a preference (chosen and rejected) beside %s: --loss dpo trains on it; --fields names "
                  "the keys of the other schema to train on that alone, such as messages=messages",
                  found->kind == FORM_PREFERENCE ? f.name : found->name);
    else if (found)
      record_fail(fault, "it has two schemas, %s and %s: name the keys of one by --fields, such as messages=messages",
                  found->name, f.name);
    else found = &f;
  }
  if (several) *several = two && !named;
  if (!cJSON_IsObject(json)) { record_fail(fault, "it is no object with keys"); return NULL; }
  if (named) { fault->text[0] = 0; return named; }
  if (two) return NULL;
  if (!found) {
    char keys[100] = "";
    const cJSON *x;
    cJSON_ArrayForEach(x, json)
      if (x->string) text_add(keys, sizeof keys, "%s%s", keys[0] ? ", " : "", x->string);
    fail(fault, "it has no known schema; its keys: %.90s; --fields tells their names", keys);
    if (near)
      fail(fault, "it has no known schema: nearest is %s, with %s and %s; its keys: %.80s; --fields tells "
           "other names", near->name, near->first, near->second, keys);
  }
  return found;
}
// A question is asked once, and answered once, unless fields say under which names.
static inline bool record_asks_once(const cJSON *json, const char *fields, Error *fault) {
  static const char *const names[][4] = {{"prompt", "instruction", "question"},
                                         {"output", "response", "answer", "completion"}};
  for (const auto &row : names) {
    const cJSON *first = NULL;
    for (const char *name : row) {
      bool given = false;
      const cJSON *x = name ? record_member(json, fields, name, &given) : NULL;
      if (given) break;                          // the others are other keys
      if (record_is_nothing(x)) continue;
      if (first && !cJSON_Compare(first, x, 1))
        return record_fail(fault, "it has both %.60s and %.60s: --fields tells which one is meant, such as "
                           "instruction=instruction", first->string, x->string);
      first = x;
    }
  }
  return true;
}
// Reads the messages of a record, or makes them of its prompt and completion. False: `fault` says what is wrong.
static inline bool record_read_lists(ChatRecord *r, const RecordForm *f, const cJSON *json, const char *fields,
                                     bool lists, bool all, Error *fault) {
  const cJSON *const a = record_member(json, fields, f->first);
  const cJSON *const b = f->second ? record_member(json, fields, f->second) : NULL;
  const bool bare = f->kind == FORM_MESSAGES && strcmp(f->first, "messages");
  const char *system;
  if (!record_tools(r, json, bare, fault)) return false;
  // A system message beside a list of messages counts where the list has none.
  if (!record_optional(r, json, fields, "system", &system, fault)) return false;
  const bool none = !lists || ((a->child || strcmp(f->first, "messages")) && strcmp(record_first(a, fields), "system"));
  if (*system && none) record_add(r->made, "system", system);
  if (!lists) {
    record_add(r->made, "user", r->prompt);
    record_add(r->made, "assistant", r->completion);
    return true;
  }
  if (!record_add_list(r->made, a, fields, fault)) return false;
  if (b && !all) record_untrained(r->made, cJSON_GetArraySize(r->made));         // trained on is the completion
  return !b || record_add_list(r->made, b, fields, fault);
}
// The JSON of a line, its numbers as they are spelled. NULL: what is wrong with it in `fault` of 256 bytes.
static inline cJSON *record_parse(const uint8_t *line, size_t bytes, Error *fault) {
  const char *end = NULL;
  if (bytes > TEXT_WORD_BYTES) fail(fault, "it has more than 64 MiB");
  if (bytes > TEXT_WORD_BYTES || !chat_check_line(line, bytes, fault)) return NULL;
  char *copy = strndup((const char *)line, bytes);
  cJSON *json = copy ? json_parse_spelled(copy, &end) : NULL;
  if (!json) fail(fault, "it is not JSON from byte %zu on", end ? (size_t)(end - copy) + 1 : (size_t)1);
  free(copy);
  return json;
}
// Reads a record. pairs_chat: prompt and completion become messages; all: everything is trained on; notes: fills in
// r->unread. False: `fault` says what is wrong. Free r in either case.
static inline bool record_read(ChatRecord *r, const cJSON *json, const char *fields, bool pairs_chat, bool all,
                               bool notes, Error *fault) {
  *r = {};
  if (!record_is_single(json, fault)) return false;
  const RecordForm *f = record_form(json, fields, fault);
  if (!f) return false;
  bool given = false;
  const cJSON *a = record_use(&r->used, record_member(json, fields, f->first, &given));
  const cJSON *b = f->second ? record_use(&r->used, record_member(json, fields, f->second, &given)) : NULL;
  if (f->kind == FORM_PREFERENCE)
    return record_fail(fault, "it is a preference (chosen and rejected): --loss dpo trains on it; to train on what was "
                       "chosen alone: --fields messages=chosen, or prompt=prompt,completion=chosen");
  if (f->kind == FORM_TEXT) return (r->text = cJSON_GetStringValue(a)) || record_fail(fault, "its text is no text");
  const bool lists = cJSON_IsArray(a) && (f->kind == FORM_MESSAGES || cJSON_IsArray(b));
  r->messages = r->made = cJSON_CreateArray();
  r->prompt = cJSON_GetStringValue(a), r->completion = cJSON_GetStringValue(b);
  if (f->kind == FORM_PAIR && !lists && (!r->prompt || !r->completion))
    return record_fail(fault, "its prompt and completion are neither texts nor messages");
  if (f->kind == FORM_PAIR && !lists && !pairs_chat) r->messages = NULL;
  if (f->kind != FORM_MESSAGES && !record_asks_once(json, fields, fault)) return false;
  if (f->kind == FORM_ASK) {
    if (!record_tools(r, json, true, fault) || !record_ask(r, json, fields, f->first, f->second, fault)) return false;
  } else if (r->messages && !record_read_lists(r, f, json, fields, lists, all, fault)) return false;
  return record_beside_form(json, &r->used, given, notes ? &r->unread : NULL, fault);
}

// ---- preferences
// Adds an answer: a text, a message, or messages.
static inline bool record_add_answer(cJSON *to, const cJSON *x, const char *fields, Error *fault) {
  if (cJSON_IsString(x)) return record_add(to, "assistant", x->valuestring);
  cJSON *one = cJSON_IsObject(x) ? cJSON_CreateArray() : NULL;
  if (one) cJSON_AddItemReferenceToArray(one, (cJSON *)x);
  const bool ok = record_add_list(to, one ? one : x, fields, fault);
  cJSON_Delete(one);
  return ok;
}
// Two texts without a prompt: the prompt is their common start, without a space at its end, which belongs to the
// answers.
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
// Two whole conversations: their common first messages come before the answers. Each answer has at least one message.
static inline bool record_common_list(ChatRecord *r, const cJSON *mine, const cJSON *other, const char *fields,
                                      Error *fault) {
  cJSON *theirs = cJSON_CreateArray();
  int n = cJSON_GetArraySize(r->made);           // a system message beside them
  const bool ok = record_add_list(r->made, mine, fields, fault) && record_add_list(theirs, other, fields, fault);
  const cJSON *a = cJSON_GetArrayItem(r->made, n), *b = theirs->child;
  for (; ok && a && b && a->next && b->next && cJSON_Compare(a, b, 1); a = a->next, b = b->next) n++;
  record_untrained(r->made, n);
  cJSON_Delete(theirs);
  return ok;
}
// Reads one answer of a preference as the record that it would be alone. Answers that are lists starting with a
// question or a system message are whole conversations. Else what stands before them is in prompt (a text, or
// messages), in messages, conversations or conversation, or is asked as instruction or question; of two texts it may be
// what both have in common. False: `fault`. To be freed in any case.
static inline bool record_answer_read(ChatRecord *r, const cJSON *json, const char *fields, bool pairs_chat,
                                      bool rejected, Error *fault) {
  const char *const names[] = {"chosen", "rejected"};
  const cJSON *const both[] = {record_member(json, fields, "chosen"), record_member(json, fields, "rejected")};
  const cJSON *mine = both[rejected], *other = both[!rejected], *before = NULL;
  for (int i = 0; i < 2; i++)
    if (!cJSON_IsString(both[i]) && !cJSON_IsArray(both[i]) && !cJSON_IsObject(both[i]))
      return record_fail(fault, "it is no preference: its %s is no text, message or messages; --fields tells other "
                         "names", names[i]);
  if (mine->type != other->type) return record_fail(fault, "its chosen and rejected are of different kinds");
  const char *system, *prompt = record_text(json, fields, "prompt");
  if (!record_optional(r, json, fields, "system", &system, fault)) return false;
  for (const char *name : {"chosen", "rejected", "prompt", "messages", "conversations", "conversation", "instruction",
                           "question", "input", "context", "history"})
    record_use(&r->used, record_member(json, fields, name));     // as far as there is a place for them
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
    return record_fail(fault, "it has messages as its prompt, and answers that start with a question themselves");
  if (whole) return record_common_list(r, mine, other, fields, fault);
  if (before && !record_add_list(r->made, before, fields, fault)) return false;
  if (!before && prompt) record_add(r->made, "user", prompt);
  if (!before && !prompt) return record_fail(fault, "it has no prompt, messages or conversations before its answers");
  record_untrained(r->made, cJSON_GetArraySize(r->made));
  return record_add_answer(r->made, mine, fields, fault);
}
static inline bool record_answer(ChatRecord *r, const cJSON *json, const char *fields, bool pairs_chat, bool rejected,
                                 bool notes, Error *fault) {
  *r = {};
  if (!rejected && (!record_is_single(json, fault) || !record_asks_once(json, fields, fault))) return false;
  return record_answer_read(r, json, fields, pairs_chat, rejected, fault) &&
         record_beside_form(json, &r->used, false, notes && !rejected ? &r->unread : NULL, fault);
}

// ---- file formats
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
// ---- tables of values, whose first row has their names
static inline void table_put(ValueTable *t, const void *p, size_t n) {
  if (t->bytes + n > t->room) t->out = (uint8_t *)bpe_resize(t->out, t->room = 2 * (t->bytes + n), 1);
  memcpy(t->out + t->bytes, p, n);
  t->bytes += n;
}
// A value starts: the name of its column; in the first row it is one.
static inline bool table_begin(ValueTable *t, Error *fault) {
  t->begun = true;
  if (t->row == 1) return true;
  if (t->column >= t->names)
    return record_fail(fault, "row %s has more values than there are names", t->words);
  table_put(t, t->column ? "\",\"" : "{\"", t->column ? 3 : 2);
  table_put(t, t->name[t->column], strlen(t->name[t->column]));
  table_put(t, "\":\"", 3);
  return true;
}
// Bytes of a value as they stand in JSON.
static inline bool table_chars(ValueTable *t, const uint8_t *p, size_t n, Error *fault) {
  if (!t->begun && !table_begin(t, fault)) return false;
  t->filled = true;
  for (size_t at = 0, end; at < n; at = end) {
    char code[8];
    for (end = at; end < n && p[end] >= 32 && p[end] != '"' && p[end] != '\\';) end++;
    table_put(t, p + at, end - at);
    if (end < n && !p[end]) return record_fail(fault, "row %s has a NUL character", t->words);
    if (end < n) table_put(t, code, (size_t)snprintf(code, sizeof code, "\\u%04x", p[end++]));
  }
  return true;
}
// A value ends, and with it a row unless there is `more`.
static inline bool table_end(ValueTable *t, bool more, Error *fault) {
  enum { NAMES = 1024 };
  const bool nothing = !t->column && !more && !t->filled && !t->quoted;        // a line without values
  if (!nothing && !t->begun && !table_begin(t, fault)) return false;
  if (t->row == 1 && !nothing) {
    table_put(t, "", 1);
    for (int i = 0; i < t->names; i++)
      if (!strcmp(t->name[i], (char *)t->out)) return record_fail(fault, "row 1 has the name %.80s twice", t->name[i]);
    if (t->names == NAMES) return record_fail(fault, "row 1 has more than 1024 names");
    t->name = (char **)bpe_resize(t->name, (size_t)t->names + 1, sizeof *t->name);
    t->name[t->names++] = strdup((char *)t->out);
    t->bytes = 0;
  } else if (!nothing && !more) {
    table_put(t, "\"}", 2);
    if (t->column + 1 < t->names) return record_fail(fault, "row %s has fewer values than there are names", t->words);
  }
  t->column = more ? t->column + 1 : 0;
  t->begun = t->filled = t->quoted = t->closed = t->waits = false;
  if (more) return true;
  if (t->row > 1) table_put(t, "\n", 1);         // row r has record r - 1
  t->row += t->row > 1 || !nothing;
  snprintf(t->words, sizeof t->words, "%lld", (long long)t->row);
  return true;
}
bool records_of_table(ValueTable *t, const uint8_t *p, size_t n, bool ends, Error *fault) {
  const uint8_t *const end = p + n;
  if (!t->row) t->row = 1, strcpy(t->words, "1"), p += n >= 3 && !memcmp(p, "\xef\xbb\xbf", 3) ? 3 : 0;
  while (p < end) {
    const uint8_t *from = p;
    if (t->waits && t->quoted && !t->closed) {   // after a quotation mark
      t->waits = false, t->closed = *p != '"';
      if (!t->closed && !table_chars(t, p++, 1, fault)) return false;
    } else if (t->quoted && !t->closed) {
      if (!(p = (const uint8_t *)memchr(p, '"', (size_t)(end - p)))) p = end;
      if (p > from && !table_chars(t, from, (size_t)(p - from), fault)) return false;
      if (p < end) t->waits = true, p++;
    } else if (*p == t->separator || *p == '\n') {
      if (!table_end(t, *p++ == t->separator, fault)) return false;
      t->ended = p[-1] == '\n';
    } else if (*p == '\r') t->waits = true, p++;
    else if (t->closed || t->waits)
      return record_fail(fault, t->quoted ? "row %s has more after the \" that ends a value; a value with \" in it is "
                         "quoted whole, with \"\" for each" : "row %s has a line break that is no newline", t->words);
    else if (*p == '"' && !t->filled) t->quoted = true, t->ended = false, p++;
    else {
      while (p < end && *p != t->separator && *p != '\n' && *p != '\r') p++;
      t->ended = false;
      if (!table_chars(t, from, (size_t)(p - from), fault)) return false;
    }
  }
  if (!ends) return true;
  if (t->quoted && !t->closed && !t->waits)
    return record_fail(fault, "row %s has a value whose \" does not end", t->words);
  return t->ended || table_end(t, false, fault);
}
void records_table_free(ValueTable *t) {
  for (int i = 0; i < t->names; i++) free(t->name[i]);
  free(t->name);
  free(t->out);
  *t = {};
}
