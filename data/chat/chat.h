// chat.h: the public header of data/chat/: records in the common dataset formats, and conversations as tokens with a
// loss mask, by a model's chat template.
//
// records_of_json and records_of_table make lines of JSON of what a file has. chat_open takes a template and a
// tokenizer; chat_line then gives the ids and the mask of a record, chat_prompt the ids before an answer.
#pragma once
#include "data/tokenizer/tokenizer.h"

// ---- chat_tools.h ---------------------------------------------------------------------------------------------------
// A stretch of text, and growing text.
struct ChatSpan { const char *p; size_t n; };
static inline ChatSpan chat_span(const char *text) { return ChatSpan{text, strlen(text)}; }

// ---- records.h ------------------------------------------------------------------------------------------------------
enum FormKind { FORM_MESSAGES, FORM_ASK, FORM_PAIR, FORM_TEXT, FORM_PREFERENCE };
// A schema fits a record that has both keys.
struct RecordForm { const char *name; FormKind kind; const char *first, *second; };
// What else is read of a record, beside the keys of its schema: of a table only these columns are.
static const char *const record_beside[] = {"system", "history", "input", "context", "tools", "functions", "prompt",
                                            "instruction", "question", "output", "response", "answer", "completion"};
// Keys that are not read, and of how many records: of the first names, and of the others together.
enum { RECORD_UNREAD_MAX = 32 };
struct RecordUnread { int names; int64_t more; struct { char name[64]; int64_t records; } of[RECORD_UNREAD_MAX]; };
void record_unread_add(RecordUnread *u, const char *name, int64_t records);
// What is said of them, as a line. False: there are none.
bool record_unread_say(const RecordUnread *u, char *line, size_t bytes);
// Whether a key that is not read would change what a record means; whether it is an image or its like.
bool record_changes(const char *name);
bool record_is_other(const char *name);
// Whether no key of a record, or of what is in it, comes twice. False: `fault`.
bool record_is_single(const cJSON *json, Error *fault);
// What was seen of many records; fields: those of the keys that --fields names which one had, by bits. A record's
// own is added to that of others: names of keys that are not read, each ended by a zero and all by another.
struct RecordsSeen { RecordUnread unread; uint64_t fields; int64_t rewritten, endless; };
void records_seen_add(RecordsSeen *to, const char *unread, uint64_t fields);
// The first of the keys that fields name which no record had, in `missing`. False: there is none.
bool record_fields_missing(const char *fields, uint64_t seen, char *missing, size_t bytes);
// Where a JSON text is; zeroed: at its start. depth: of brackets; array: the records are elements of one.
struct RecordLines { int64_t depth; bool begun, array, ended, string, escaped, behind; };
// What is wrong with the value of --fields; NULL: nothing.
const char *record_fields_fault(const char *fields);
// The key of a record that is called `name` here; given: fields name it. NULL: it is not there.
const cJSON *record_member(const cJSON *json, const char *fields, const char *name, bool *given = NULL);
// Its text; NULL: it is none, or not there.
const char *record_text(const cJSON *json, const char *fields, const char *name);
// The schema of a record; NULL: none fits, or two do (*several): `fault` says which is nearest and what is missing.
const RecordForm *record_form(const cJSON *json, const char *fields, Error *fault, bool *several = NULL);
// Makes lines of the `n` bytes at p that follow, in place: spaces for the brackets of the one array and for the ends of
// lines within a record, a newline for each comma between records. False: more stands after the array.
bool records_of_json(RecordLines *s, uint8_t *p, size_t n);
// A table of values, which is made lines of JSON as it comes: an object of texts for each row. separator: set it. out:
// lines, or what there is of them yet; the caller takes them and sets bytes to 0. row: of the table's, from 1.
struct ValueTable {
  char separator, words[24];
  bool begun, filled, quoted, closed, waits, ended;              // of the value; waits: for what is behind a " or a \r
  int column, names;
  int64_t row;
  char **name;
  uint8_t *out;
  size_t bytes, room;
};
// Takes the bytes that follow; ends: they are the last. False: `fault`.
bool records_of_table(ValueTable *t, const uint8_t *p, size_t n, bool ends, Error *fault);
void records_table_free(ValueTable *t);

// ---- chat_template.h ------------------------------------------------------------------------------------------------
// The text of a template that comes with the program, data/chat/templates/NAME.jinja; NULL: there is none of that name.
const char *chat_template_text(const char *name);
static const char chat_names[] = "chatml, qwen2.5, qwen3, qwen3-2507, qwen3-free, smollm2, smollm3, llama3, llama3.0, "
                                 "zephyr, gemma, gemma3, mistral-v1, mistral-v3, mistral-nemo";
static const char chat_date[] = "26 Jul 2024";   // of Llama 3's template where no clock is
// The day of a date like this one, or 2024-07-26. False: it is none.
bool chat_date_read(const char *text, struct tm *day);
// What a model brings for its chats, as one JSON object: chat_template, tool_use (that of conversations with tools) and
// the texts of its special tokens. config: tokenizer_config.json, or what says the same; text: the template in place of
// its own, or NULL. malloc'ed; NULL: there is no template.
char *chat_words_of(const cJSON *config, const char *text, const char *tool_use = NULL);
// Whether its templates are ones that can be rendered. False: `why` ends a sentence that says so.
bool chat_words_fault(const char *words, Error *why);
// The same of a model's directory: chat_template.jinja, tokenizer_config.json, chat_template.json,
// special_tokens_map.json. NULL: there is none, and in `why` the rest of a line that says so; or, with a code in `why`,
// one of them is damaged.
char *chat_words_in(const char *dir, Error *why);

// ---- conversations.h ------------------------------------------------------------------------------------------------
// words: what the model brings (above), or NULL: template_name is one of ours, or "auto": none is known, and `why` says
// why. date: what a template is told is today. kwargs: JSON of more variables, or "". last: of what an assistant says,
// only the last answer is trained on. fields: names of keys (records.h). pairs: prompts and completions are
// messages. preferences: each record is one, and nothing else is read.
struct ChatOptions {
  const char *template_name, *date, *why;
  bool train_all, last = false, pairs = false, preferences = false;
  const char *fields = "", *words = NULL, *kwargs = "";
};
struct Chat {
  ChatOptions o;
  const struct ChatForm *form;                   // its template; NULL: none is known
  const Tokenizer *tokenizer;
  int32_t stop_id, end_id, mark_id;              // the token that ends an answer; EOS; one that only chats have; -1:
                                                 // there is none
  BpeEncoder *encoder;                           // this thread's encoder, which caches words; NULL: a new one per text
  char lacks[64];                                // the text that ends an answer, if the tokenizer has no token for it
  bool notes;                                    // chat_line fills in ChatTokens.unread
};
// What is wrong with the value of --chat_template_kwargs; NULL: nothing.
const char *chat_kwargs_fault(const char *text);
// The added token with this text; -1: there is none.
int32_t chat_token(const Tokenizer *t, const char *text);
// The EOS token, found by its usual names; -1: the tokenizer has none.
int32_t chat_end(const Tokenizer *t);
// Whether a token is an EOS token, or ends a turn in some chat template.
bool chat_ends(const Tokenizer *t, int32_t id);
// Finds the template that the options name, and its special tokens. A template is parsed once and kept. Main thread
// only.
Chat chat_open(const ChatOptions *o, const Tokenizer *t);
// A conversation as tokens. Zeroed it is empty; the caller frees ids and trained. trained: whether each token is
// trained on. second: of a preference, the first id of the rejected answer. fault: "", or what is wrong with its line.
// text: bytes that are not encoded yet, and `marks`: whether each byte is trained on (only for tokenizers that encode
// characters, whose tokens depend on the neighbouring text).
struct ChatTokens {
  int32_t *ids;
  uint8_t *trained;
  int64_t count, room, second;
  Error fault = {};
  uint8_t *text, *marks;
  size_t text_bytes, text_room;
  char *unread;                                  // for records_seen_add, malloc'ed or NULL
  uint64_t fields_seen;                          // for records_seen_add: bit i: it has field i of --fields
  int64_t rewritten, endless;                    // answers not trained on (rendered.h); answers without an end token
};
// chat_is_space: whether c is white space for Python's str.strip. chat_strip: a text without white space, or (newlines)
// without '\n' only, at its ends.
bool chat_is_space(uint32_t c);
ChatSpan chat_strip(ChatSpan s, bool newlines, bool left = true, bool right = true);
// Appends the tokens of messages and of the header of the next answer.
bool chat_next(const Chat *c, ChatTokens *k, const cJSON *messages);
// Appends the tokens before the model's answer to the user's message `said`. False: k->fault says what is wrong.
bool chat_prompt(const Chat *c, ChatTokens *k, const char *said);
// The options that tokens and loss masks depend on, as words for a hash.
enum { CHAT_HOW = 6 };
void chat_how(const ChatOptions *o, const char *how[CHAT_HOW]);
// What is wrong with a line that cannot be a text: its first byte that is no UTF-8, a NUL character, half of a
// character. True: nothing.
bool chat_check_line(const uint8_t *line, size_t bytes, Error *fault);
// The conversation of one line, or its preference. False: k->fault says what is wrong.
bool chat_line(const Chat *c, ChatTokens *k, const uint8_t *line, size_t bytes);
