// chat_template.h: chat templates that are known: how messages become text, as a table, and as the text that
// transformers and llama.cpp render; how a model's own is recognised.
//
// The texts are those of dev/make_chat_fixture.py, which compares what they render with what published ones do: without
// what tools and images need.
//
// Defines: ChatTemplate, chat_templates, chat_names, chat_date, chat_template_named, _of, _in, _text.
#pragma once
#include <cjson/cJSON.h>

#include "base/text.h"
#include "corpus_find.h"
#include "files.h"

// begin, end: around a role; stop: ends a turn. system: what a conversation without a system message begins with.
// dated: with a system turn always, which begins with dates, and trimmed texts. thinks: the last answer begins with its
// thoughts, empty ones too. marks: what a template of that family says, as it is written there. text: of a template.
struct ChatTemplate {
  const char *name, *begin, *end, *stop, *behind, *system;
  bool dated, thinks;
  const char *marks[3], *text;
};
#define CHAT_ML "<|im_start|>", "\n", "<|im_end|>", "\n"
#define CHAT_ML_TURN "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'"
#define CHAT_ML_ASKS "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
#define CHAT_QWEN "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
#define CHAT_QWEN_SYSTEM "'<|im_start|>system\\n" CHAT_QWEN "<|im_end|>\\n'"
#define CHAT_QWEN_TURN "'<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n'"
#define CHAT_SMOL "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define CHAT_PLAIN "{% for message in messages %}{{" CHAT_ML_TURN "}}{% endfor %}"
#define CHAT_LLAMA_TURN "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ " \
  "message['content'] | trim + '<|eot_id|>'"
static const char chat_date[] = "26 Jul 2024";   // of Llama 3's template where no clock is
static const char chat_qwen3_text[] =
    R"({%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == "user" %}{%- set ns.multi_step_tool = false %}
{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- set content = message.content %}{%- if message.role != "assistant" %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}{%- else %}
{%- set reasoning_content = '' %}{%- if message.reasoning_content %}
{%- set reasoning_content = message.reasoning_content %}{%- elif '</think>' in content %}
{%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
{{- '<|im_start|>' + message.role +
'\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";
static const char chat_llama3_text[] =
    R"({%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{{- "<|begin_of_text|>" }}{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}
{%- set system_message = "" %}{%- endif %}{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}{{- "<|eot_id|>" }}{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %})";
static const ChatTemplate chat_templates[] = {
    {"qwen2.5", CHAT_ML, CHAT_QWEN, false, false, {CHAT_QWEN_SYSTEM, CHAT_QWEN_TURN, ""},
     "{%- if messages[0]['role'] != 'system' %}{{- " CHAT_QWEN_SYSTEM " }}{%- endif %}{%- for message in messages %}"
     "{{- " CHAT_QWEN_TURN " }}{%- endfor %}" CHAT_ML_ASKS},
    {"qwen3", CHAT_ML, NULL, false, true,
     {"'\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n')",
      "loop.index0 > ns.last_query_index", "{%- if loop.last or (not loop.last and reasoning_content) %}"},
     chat_qwen3_text},
    {"smollm2", CHAT_ML, CHAT_SMOL, false, false, {CHAT_SMOL "<|im_end|>\\n", CHAT_ML_TURN, ""},
     "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n"
     CHAT_SMOL "<|im_end|>\\n' }}{% endif %}{{" CHAT_ML_TURN "}}{% endfor %}" CHAT_ML_ASKS},
    {"llama3", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "", "", true, false,
     {"\"Cutting Knowledge Date: December 2023\\n\"", CHAT_LLAMA_TURN, ""}, chat_llama3_text},
    {"chatml", CHAT_ML, NULL, false, false, {CHAT_PLAIN, "", ""}, CHAT_PLAIN CHAT_ML_ASKS}};
static const char chat_names[] = "chatml, qwen2.5, qwen3, smollm2, llama3";

// What an option names; NULL: none.
static inline const ChatTemplate *chat_template_named(const char *name) {
  for (const ChatTemplate &t : chat_templates) if (!strcmp(t.name, name)) return &t;
  return NULL;
}
// Takes `word` from the front of a text.
static inline bool chat_eat(const char **text, const char *word) {
  const size_t n = strlen(word);
  const bool there = !strncmp(*text, word, n);
  *text += there ? n : 0;
  return there;
}
// Whether a template of this family writes such a piece: a turn's begin alone, with a role, or with all of the system
// message that it has by default; thoughts where it thinks, but not their begin alone, which asks for them.
static inline bool chat_piece_fits(const ChatTemplate *t, const char *piece) {
  static const char *const roles[] = {"system", "user", "assistant", "ipython", ""};
  const char *at = piece, *const think = strstr(piece, "<think>");
  if (think) return t->thinks && (think == piece + (piece[0] == '\n')) && strcmp(piece, "<think>\n");
  if (!strstr(piece, t->begin)) return true;
  if (!chat_eat(&at, t->begin)) return false;
  int role = 0;
  while (!chat_eat(&at, roles[role])) role++;
  if (!*at) return true;
  if (!chat_eat(&at, t->end)) return false;
  const bool system = !role && t->system && chat_eat(&at, t->system) && chat_eat(&at, t->stop);
  return !*at || (system && !strcmp(at, t->behind));
}
// Whether all that a template writes is of this family: strings inside its tags, and no turns outside of them.
static inline bool chat_pieces_fit(const ChatTemplate *t, const char *text) {
  char *piece = (char *)data_alloc(strlen(text) + 1, 1);
  bool fits = true, inside = false;
  while (*text && fits) {
    size_t n = 0;
    const char quote = inside && (*text == '\'' || *text == '"') ? *text : 0;
    if (quote) {
      for (text++; *text && *text != quote; text++) {
        const bool escaped = text[0] == '\\' && text[1];
        text += escaped;
        piece[n++] = escaped && *text == 'n' ? '\n' : *text;
      }
      piece[n] = 0;
      text += *text == quote;
      fits = chat_piece_fits(t, piece);
    } else if (inside) {
      inside = !(text[1] == '}' && (*text == '}' || *text == '%'));
      text += inside ? 1 : 2;
    } else {
      while (*text && !(text[0] == '{' && (text[1] == '{' || text[1] == '%' || text[1] == '#'))) piece[n++] = *text++;
      piece[n] = 0;
      fits = !strstr(piece, t->begin) && !strstr(piece, "<think>");
      const char *comment = text[0] && text[1] == '#' ? strstr(text, "#}") : NULL;
      inside = *text && !comment;
      text = comment ? comment + 2 : text + 2 * inside;
    }
  }
  free(piece);
  return fits;
}
// What a template's text is of: the text that is written here; or one that has all marks of a family and writes nothing
// which that does not. NULL: none that is known. Inside a string of it a newline is as good as \n.
static inline const ChatTemplate *chat_template_of(const char *text) {
  char *plain = (char *)data_alloc(2 * strlen(text) + 1, 1), *to = plain;
  for (const char *from = text; *from; from++)
    if (*from == '\n') *to++ = '\\', *to++ = 'n';
    else *to++ = *from;
  *to = 0;
  const ChatTemplate *found = NULL;
  for (const ChatTemplate &t : chat_templates) {
    bool marked = true;
    for (const char *mark : t.marks) marked = marked && strstr(plain, mark);
    if (!found && ((marked && chat_pieces_fit(&t, text)) || !strcmp(text, t.text))) found = &t;
  }
  free(plain);
  return found;
}
// The text of a template, with `date` for its date; malloc'ed.
static inline char *chat_template_text(const ChatTemplate *t, const char *date) {
  const char *at = t->dated ? strstr(t->text, chat_date) : NULL;
  char *text = NULL;
  if (asprintf(&text, "%.*s%s%s", at ? (int)(at - t->text) : 0, t->text, at ? date : "",
               at ? at + strlen(chat_date) : t->text) < 0)
    die_missing("no memory for a chat template");
  return text;
}
// The template that a model's directory has, in chat_template.jinja or tokenizer_config.json. NULL: none, and in `why`
// a line's end that says so.
static inline const ChatTemplate *chat_template_in(const char *dir, char *why, size_t why_bytes) {
  enum { MOST_BYTES = 1 << 24 };
  char path[DATA_PATH_BYTES + 32];
  int64_t bytes;
  data_format(path, sizeof path, "%s/chat_template.jinja", dir);
  char *text = file_get(path, MOST_BYTES, &bytes), *config = NULL;
  const char *found = text;
  cJSON *json = NULL;
  if (!text) {
    data_format(path, sizeof path, "%s/tokenizer_config.json", dir);
    config = file_get(path, MOST_BYTES, &bytes);
    json = config ? cJSON_ParseWithLength(config, (size_t)bytes) : NULL;
    found = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "chat_template"));
  }
  const ChatTemplate *t = found ? chat_template_of(found) : NULL;
  if (!t && found) data_format(why, why_bytes, "that of %s is none of those known", path);
  else if (!t) data_format(why, why_bytes, "%s has none (chat_template.jinja, tokenizer_config.json)", dir);
  cJSON_Delete(json);
  free(config);
  free(text);
  return t;
}
