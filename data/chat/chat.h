// chat.h: the door of data/chat/: records in the forms that people keep, and conversations as tokens with a mask, by a
// model's template.
//
// form_of, records_of_json and records_of_table make lines of JSON of what a file has. chat_open takes a template and a
// tokenizer; chat_line then gives the ids and the mask of a record, chat_prompt the ids before an answer.
#pragma once
#include "data/tokenizer/tokenizer.h"

// ---- forms.h --------------------------------------------------------------------------------------------------------
enum DataContainer { CONTAINER_TEXT, CONTAINER_JSON_LINES, CONTAINER_JSON_ARRAY, CONTAINER_JSON_SPREAD, CONTAINER_CSV,
                     CONTAINER_TSV };            // SPREAD: objects over several lines
// keys: those of the first record, with commas, as far as they fit; "": there are none.
struct FileForm { DataContainer container; char keys[160]; };
// A member, or column, that holds a conversation.
bool form_is_chat_key(const char *key);
// Whether a name ends so, with .gz or .zst behind it or not.
bool form_name_ends(const char *name, const char *end);
// Whether a name says that what is inside is text, whatever it looks like.
bool form_name_is_text(const char *name);
// What the file is that has this name and begins with the `n` bytes at `p`.
FileForm form_of(const char *name, const uint8_t *p, size_t n);
// What to do with a file that is not read as it is: one line, which begins with its path. NULL: it is read. lines: it
// is asked for as records, else as text.
const char *form_refusal(const FileForm *f, const char *path, bool lines, char *to, size_t bytes);

// ---- chat_tools.h ---------------------------------------------------------------------------------------------------
// A stretch of text, and growing text.
struct ChatSpan { const char *p; size_t n; };
static inline ChatSpan chat_span(const char *text) { return ChatSpan{text, strlen(text)}; }

// ---- records.h ------------------------------------------------------------------------------------------------------
struct RecordFault { char *text; size_t bytes; };
enum FormKind { FORM_MESSAGES, FORM_ASK, FORM_PAIR, FORM_TEXT, FORM_PREFERENCE };
// A form fits a record that has both members.
struct RecordForm { const char *name; FormKind kind; const char *first, *second; };
// What else is read of a record, beside the members of its form: of a table only these columns are.
static const char *const record_beside[] = {"system", "history", "input", "context", "tools", "functions", "prompt",
                                            "instruction", "question", "output", "response", "answer", "completion"};
// Members that are not read, and of how many records: of the first names, and of the others together.
enum { RECORD_UNREAD_MOST = 32 };
struct RecordUnread { int names; int64_t more; struct { char name[64]; int64_t records; } of[RECORD_UNREAD_MOST]; };
void record_unread_add(RecordUnread *u, const char *name, int64_t records);
// What is said of them, as a line. False: there are none.
bool record_unread_say(const RecordUnread *u, char *line, size_t bytes);
// Whether a member that is not read would change what a record means; whether it is an image or its like.
bool record_changes(const char *name);
bool record_is_other(const char *name);
// Whether no member of a record, or of what is in it, comes twice. False: `fault`.
bool record_is_single(const cJSON *json, RecordFault fault);
// What was seen of many records; fields: those of the members that --fields names which one had, by bits. A record's
// own is added to that of others: names of members that are not read, each ended by a zero and all by another.
struct RecordsSeen { RecordUnread unread; uint64_t fields; };
void records_seen_add(RecordsSeen *to, const char *unread, uint64_t fields);
// The first of the members that fields name which no record had, in `missing`. False: there is none.
bool record_fields_missing(const char *fields, uint64_t seen, char *missing, size_t bytes);
// Where a JSON text is; zeroed: at its beginning. depth: of brackets; array: the records are elements of one.
struct RecordLines { int64_t depth; bool begun, array, ended, string, escaped, behind; };
// What is wrong with the value of --fields; NULL: nothing.
const char *record_fields_fault(const char *fields);
// The member of a record that is called `name` here; given: fields name it. NULL: it is not there.
const cJSON *record_member(const cJSON *json, const char *fields, const char *name, bool *given = NULL);
// Its text; NULL: it is none, or not there.
const char *record_text(const cJSON *json, const char *fields, const char *name);
// The form of a record; NULL: none fits, or two do (*several): `fault` says which is nearest and what is missing.
const RecordForm *record_form(const cJSON *json, const char *fields, RecordFault fault, bool *several = NULL);
// Makes lines of the `n` bytes at p that follow, in place: blanks for the brackets of the one array and for the ends of
// lines within a record, an end of a line for each comma between records. False: more stands behind the array.
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
bool records_of_table(ValueTable *t, const uint8_t *p, size_t n, bool ends, RecordFault fault);
void records_table_free(ValueTable *t);

// ---- chat_template.h ------------------------------------------------------------------------------------------------
// How tools, calls and answers of tools stand in a text. QWEN3: arguments that are a text as it is.
enum ChatTools { TOOLS_NONE, TOOLS_LLAMA, TOOLS_SMOL, TOOLS_QWEN, TOOLS_QWEN3 };
// What an answer behind the last question begins with: what its content says (NOT); its thoughts, also those in its
// content, and in the last one empty ones (FORCED); its thoughts where it has some beside its content (FREE).
enum ChatThinks { THINKS_NOT, THINKS_FORCED, THINKS_FREE };
// What becomes of a system message.
enum ChatSystem { SYSTEM_TURN, SYSTEM_JOINS, SYSTEM_NONE };        // JOINS: what the first user says; NONE: refused
// begin, end: around a role; stop: ends a turn. system: what a conversation without a system message begins with.
// first: before the first turn. date: with a system turn always, which has today's date: this one, unless another is
// given. trims: texts lose white space at both ends. marks: what a template of that family says, as it is written
// there. text: of a template. assistant: an assistant's name. closes: stands behind what a user says, in place of
// `stop`; then no role is written, `end` stands before what a user says, and `assistant` before an answer.
struct ChatTemplate {
  const char *name, *begin, *end, *stop, *behind, *system, *first, *date;
  bool trims;
  ChatThinks thinks;
  ChatTools tools;
  const char *marks[3], *text, *assistant = "assistant", *closes = NULL;
  ChatSystem system_is = SYSTEM_TURN;            // other than TURN: users and assistants take turns
};
static const char chat_date[] = "26 Jul 2024";   // of Llama 3's template where no clock is
// A token that conversations have by this template.
static inline const char *chat_mark(const ChatTemplate *t) { return t->begin[2] ? t->begin : t->stop; }
// What an option names; NULL: none.
const ChatTemplate *chat_template_named(const char *name);
// What a template's text is of: the text that is written here; or one that has all marks of a family and writes nothing
// which that does not. NULL: none that is known. Inside a string of it a newline is as good as \n.
const ChatTemplate *chat_template_of(const char *text);
// The text of a template, with `date` for its date; malloc'ed.
char *chat_template_text(const ChatTemplate *t, const char *date);
// The template that a model's directory has, in chat_template.jinja or tokenizer_config.json. NULL: none, and in `why`
// a line's end that says so. its_text: receives its text, malloc'ed, or NULL.
const ChatTemplate *chat_template_in(const char *dir, char *why, size_t why_bytes, char **its_text = NULL);

// ---- conversations.h ------------------------------------------------------------------------------------------------
// template_name "auto": none is known, and `why` says why. date: of templates that have one. last: of what an assistant
// says, only the last answer is trained on. fields: names of members (records.h). pairs: prompts and completions are
// messages. text: of the template that was found, NULL if it was named. preferences: each record is one, and nothing
// else is read.
struct ChatOptions {
  const char *template_name, *date, *why;
  bool train_all, last = false, pairs = false, preferences = false;
  const char *fields = "", *text = NULL;
};
struct Chat {
  ChatOptions o;
  const ChatTemplate *form;
  const Tokenizer *tokenizer;
  int32_t stop_id, end_id;                       // -1: the tokenizer has none
  BpeEncoder *encoder;                           // of this thread, which remembers words; NULL: a new one each turn
  bool notes;                                    // chat_line says what of a record was not read
};
// The added token with this text; -1: there is none.
int32_t chat_token(const Tokenizer *t, const char *text);
// The token that ends a text, by its name; -1: the tokenizer has none.
int32_t chat_end(const Tokenizer *t);
// Whether a token ends a text, or a turn by some template.
bool chat_ends(const Tokenizer *t, int32_t id);
// The template that the options name, and its marks as tokens of a tokenizer.
Chat chat_open(const ChatOptions *o, const Tokenizer *t);
// A conversation. Zeroed it is empty; the caller frees ids and trained. second: of a preference, where the rejected one
// begins. fault: "" or what is wrong with its line. text: what is not tokens yet (of a tokenizer by characters, whose
// tokens depend on what stands beside them), and whether each of its bytes is trained on.
struct ChatTokens {
  int32_t *ids;
  uint8_t *trained;
  int64_t count, room, second;
  char fault[256];
  uint8_t *text, *marks;
  size_t text_bytes, text_room;
  char *unread;                                  // for records_seen_add, malloc'ed or NULL; and
  uint64_t fields_seen;
};
// White space of Python's str.strip; a text without it at both ends, or (newlines) without '\n' alone.
bool chat_is_space(uint32_t c);
ChatSpan chat_strip(ChatSpan s, bool newlines, bool left = true, bool right = true);
// Messages, and the header of the answer that is to come.
bool chat_next(const Chat *c, ChatTokens *k, const cJSON *messages);
// What the model sees before it answers a user's message. False: k->fault.
bool chat_prompt(const Chat *c, ChatTokens *k, const char *said);
// What of the options decides tokens and masks, for hashes.
enum { CHAT_HOW = 5 };
void chat_how(const ChatOptions *o, const char *how[CHAT_HOW]);
// What is wrong with a line that cannot be a text: its first byte that is no UTF-8, a NUL character, half of a
// character. True: nothing.
bool chat_check_line(const uint8_t *line, size_t bytes, char fault[256]);
// The conversation of one line, or its preference. False: k->fault says what is wrong.
bool chat_line(const Chat *c, ChatTokens *k, const uint8_t *line, size_t bytes);
