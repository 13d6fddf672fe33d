// chat_template.h: chat templates that are known: how messages become text, as a table, and as the text that
// transformers and llama.cpp render; how a model's own is recognised.
//
// What the texts render, dev/make_chat_fixture.py compares with what published ones do: with tools, without images.
//
// Defines: chat_templates, chat_names, chat_template_named, _of, _in, _text.
#pragma once

#include "chat.h"
#include "data/files/files.h"

#define CHAT_ML "<|im_start|>", "\n", "<|im_end|>", "\n"
#define CHAT_ML_TURN "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'"
#define CHAT_ML_ASKS "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
#define CHAT_QWEN "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
#define CHAT_QWEN_SYSTEM "'<|im_start|>system\\n" CHAT_QWEN "<|im_end|>\\n'"
#define CHAT_QWEN_TURN "'<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n'"
#define CHAT_SMOL "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define CHAT_PLAIN "{% for message in messages %}{{" CHAT_ML_TURN "}}{% endfor %}"
#define CHAT_LLAMA "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", ""
#define CHAT_LLAMA_TURN "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ " \
  "message['content'] | trim + '<|eot_id|>'"
#define CHAT_LLAMA_ASKS "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}" \
  "{%- endif %}"
// What stands around tools, in what is rendered and in the text of a template.
#define CHAT_TOOLS_CALL "For each function call, return a json object with function name and arguments within " \
  "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n" \
  "</tool_call>"
#define CHAT_TOOLS_XML "You are provided with function signatures within <tools></tools> XML tags:\n"
#define CHAT_TOOLS_QWEN "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" \
  CHAT_TOOLS_XML "<tools>"
#define CHAT_TOOLS_SMOL "### Tools\n\nYou may call one or more functions to assist with the user query.\n" \
  CHAT_TOOLS_XML "\n<tools>\n"
#define CHAT_TOOLS_LLAMA "Given the following functions, please respond with a JSON for a function call with its " \
  "proper arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function name, " \
  "\"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n"
#define CHAT_SMOL3_DATE "## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: "
#define CHAT_SMOL3_THINKS CHAT_SMOL ". Your role as an assistant involves thoroughly exploring questions through a " \
  "systematic thinking process before providing the final precise and accurate solutions. This requires engaging in " \
  "a comprehensive cycle of analysis, summarizing, exploration, reassessment, reflection, backtracking, and " \
  "iteration to develop well-considered thinking process. Please structure your response into two main sections: " \
  "Thought and Solution using the specified format: <think> Thought section </think> Solution section. In the " \
  "Thought section, detail your reasoning process in steps. Each step should include detailed considerations such as " \
  "analysing questions, summarizing relevant findings, brainstorming new ideas, verifying the accuracy of the " \
  "current steps, refining any errors, and revisiting previous steps. In the Solution section, based on various " \
  "attempts, explorations, and reflections from the Thought section, systematically present the final solution that " \
  "you deem correct. The Solution section should be logical, accurate, and concise and detail necessary steps needed " \
  "to reach the conclusion."
// A template of Qwen's: what a system turn with tools begins with, what stands there without tools, and answers, whose
// `content` is set.
#define CHAT_QWEN_TEXT(with, without, answer) \
  "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content }}" \
  "{%- endif %}" with "{{- '" CHAT_TOOLS_QWEN "' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}" \
  "{%- endfor %}{{- '\n</tools>\n\n" CHAT_TOOLS_CALL "<|im_end|>\\n' }}{%- endif %}" without \
  "{%- for message in messages %}{%- set content = message.content or '' %}{%- if message.role == 'tool' %}" \
  "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}" \
  "{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}" \
  "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}" \
  "{%- elif message.role == 'assistant' %}" answer "{%- for call in message.tool_calls or [] %}" \
  "{%- set call = call.function or call %}{%- if content or not loop.first %}{{- '\\n' }}{%- endif %}" \
  "{{- '<tool_call>\\n{\"name\": \"' + call.name + '\", \"arguments\": ' }}" \
  "{%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}" \
  "{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}" \
  "{%- elif not (tools and loop.first and message.role == 'system') %}{{- " CHAT_QWEN_TURN " }}{%- endif %}" \
  "{%- endfor %}" CHAT_ML_ASKS
#define CHAT_QWEN_LINES "{%- if messages[0].role == 'system' %}{{- '\\n\\n' }}{%- endif %}"
#define CHAT_QWEN_ANSWER "{{- '<|im_start|>' + message.role + '\\n' + content }}"
#define CHAT_QWEN_THINKS "'\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + " \
  "content.lstrip('\\n')"
static const char chat_qwen3_text[] =
    R"({%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == "user" and
not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %})"
    CHAT_QWEN_TEXT(CHAT_QWEN_LINES, "", R"({%- set reasoning_content = '' %}{%- if message.reasoning_content %}
{%- set reasoning_content = message.reasoning_content %}{%- elif '</think>' in content %}
{%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
{{- '<|im_start|>' + message.role + )" CHAT_QWEN_THINKS " }}{%- else %}" CHAT_QWEN_ANSWER "{%- endif %}");
static const char chat_free_text[] =
    R"({%- set ns = namespace(last_query_index=messages|length - 1) %}{%- for message in messages[::-1] %}
{%- if message.role == "user" and ns.last_query_index == messages|length - 1 %}
{%- set ns.last_query_index = messages|length - 1 - loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- set content = message.content %}
{%- set reasoning_content = message.reasoning_content or '' %}
{%- if loop.index0 > ns.last_query_index and reasoning_content %}
{{- '<|im_start|>' + message.role + )" CHAT_QWEN_THINKS " }}{%- else %}" CHAT_QWEN_ANSWER "{%- endif %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}" CHAT_ML_ASKS;
static const char chat_llama3_text[] =
    R"({%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{{- "<|begin_of_text|>" }}{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}
{%- set system_message = "" %}{%- endif %}{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools %}{{- "Environment: ipython\n" }}{%- endif %}{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}{{- system_message }}{{- "<|eot_id|>" }}{%- if tools %}
{{- "<|start_header_id|>user<|end_header_id|>\n\n" }}{{- ')" CHAT_TOOLS_LLAMA R"(' }}{%- for t in tools %}
{{- t | tojson(indent=4) + '\n\n' }}{%- endfor %}{{- messages[0]['content'] | trim + "<|eot_id|>" }}
{%- set messages = messages[1:] %}{%- endif %}{%- for message in messages %}{%- if message.tool_calls %}
{%- set call = message.tool_calls[0].function or message.tool_calls[0] %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' + '{"name": "' + call.name + '", "parameters": ' }}
{%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
{{- '}<|eot_id|>' }}{%- elif message.role in ['tool', 'ipython'] %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + message.content | tojson + '<|eot_id|>' }}{%- else %}
{{- )" CHAT_LLAMA_TURN " }}{%- endif %}{%- endfor %}" CHAT_LLAMA_ASKS;
static const char chat_smollm3_text[] =
    R"({%- set mode = "/think" %}{%- set said = "" %}{{- "<|im_start|>system\n" }}
{%- if messages[0].role == "system" %}{%- set said = messages[0].content %}
{%- if "/no_think" in said %}{%- set mode = "/no_think" %}{%- endif %}{%- endif %}
{%- set own = said.replace("/no_think", "").replace("/think", "").rstrip() %}{%- if "/system_override" in said %}
{{- own.replace("/system_override", "").rstrip() + "<|im_end|>\n" }}{%- else %}
{{- ")" CHAT_SMOL3_DATE R"(26 July 2024\nReasoning Mode: " + mode + "\n\n## Custom Instructions\n\n" }}
{%- if own %}{{- own + "\n\n" }}{%- elif mode == "/think" %}{{- ")" CHAT_SMOL3_THINKS R"(\n\n" }}
{%- else %}{{- ")" CHAT_SMOL R"(.\n\n" }}{%- endif %}{%- set tools = xml_tools or tools %}{%- if tools %}
{{- ')" CHAT_TOOLS_SMOL R"(' }}{%- for tool in tools %}{{- (tool | string) + "\n" }}{%- endfor %}
{{- '</tools>

)" CHAT_TOOLS_CALL R"(\n\n<|im_end|>\n' }}{%- endif %}{%- endif %}{%- for message in messages %}
{%- set content = message.content if message.content is string else "" %}
{%- set answer = "<|im_start|>assistant\n" if mode == "/think" else "<|im_start|>assistant\n<think>\n\n</think>\n" %}
{%- if message.role == "user" or message.role == "tool" %}{{- "<|im_start|>user\n" + content + "<|im_end|>\n" }}
{%- elif message.role == "assistant" %}{{- answer + content.lstrip("\n") + "<|im_end|>\n" }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" + ("" if mode == "/think" else "<think>\n\n</think>\n") }}
{%- endif %})";
#define CHAT_EOS "{% set eos_token = '</s>' %}"
#define CHAT_GEMMA_TURN "'<start_of_turn>' + role + '\\n' + "
#define CHAT_GEMMA(begins, said) "{{ '<bos>' }}{% if messages[0]['role'] == 'system' %}" begins "{% endif %}" \
  "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}" said \
  "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
#define CHAT_MISTRAL(user, answer) CHAT_EOS "{{- '<s>' }}{%- for message in messages %}" \
  "{%- if message['role'] == 'user' %}" user "{%- else %}" answer "{%- endif %}{%- endfor %}"
#define CHAT_V1_USER "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
#define CHAT_V1_ANSWER "{{ message['content'] + eos_token}}"
#define CHAT_V3_USER "{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}"
#define CHAT_V3_ANSWER "{{- \" \" + message[\"content\"]|trim + eos_token}}"
#define CHAT_NEMO_USER "{{- \"[INST]\" + message[\"content\"] + \"[/INST]\" }}"
#define CHAT_NEMO_ANSWER "{{- message[\"content\"] + eos_token}}"
#define CHAT_ZEPHYR(role, blanks) "{{ '<|" role "|>\\n'" blanks "+ message['content'] + eos_token }}"
static const ChatTemplate chat_templates[] = {
    {"qwen2.5", CHAT_ML, CHAT_QWEN, "", NULL, false, THINKS_NOT, TOOLS_QWEN, {CHAT_QWEN_SYSTEM, CHAT_QWEN_TURN, ""},
     CHAT_QWEN_TEXT("{%- if messages[0].role != 'system' %}{{- '" CHAT_QWEN "' }}{%- endif %}{{- '\\n\\n' }}",
                    "{%- if not tools and messages[0].role != 'system' %}{{- " CHAT_QWEN_SYSTEM " }}{%- endif %}",
                    CHAT_QWEN_ANSWER)},
    {"qwen3", CHAT_ML, NULL, "", NULL, false, THINKS_FORCED, TOOLS_QWEN3,
     {CHAT_QWEN_THINKS, "loop.index0 > ns.last_query_index",
      "{%- if loop.last or (not loop.last and reasoning_content) %}"}, chat_qwen3_text},
    {"qwen3", CHAT_ML, NULL, "", NULL, false, THINKS_FORCED, TOOLS_QWEN3,         // as versions before 0.10 exported it
     {CHAT_QWEN_THINKS, "loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}", ""}, ""},
    {"qwen3-free", CHAT_ML, NULL, "", NULL, false, THINKS_FREE, TOOLS_NONE,
     {CHAT_QWEN_THINKS, "loop.index0 > ns.last_query_index and reasoning_content %}",
      "{%- set reasoning_content = message.reasoning_content or '' %}"}, chat_free_text},
    {"qwen3-2507", CHAT_ML, NULL, "", NULL, false, THINKS_NOT, TOOLS_QWEN3,
     {"You may call one or more functions", CHAT_QWEN_ANSWER, "'\\n<tool_response>\\n'"},
     CHAT_QWEN_TEXT(CHAT_QWEN_LINES, "", CHAT_QWEN_ANSWER)},
    {"smollm2", CHAT_ML, CHAT_SMOL, "", NULL, false, THINKS_NOT, TOOLS_NONE,
     {CHAT_SMOL "<|im_end|>\\n", CHAT_ML_TURN, ""},
     "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n"
     CHAT_SMOL "<|im_end|>\\n' }}{% endif %}{{" CHAT_ML_TURN "}}{% endfor %}" CHAT_ML_ASKS},
    {"smollm3", CHAT_ML, NULL, "", "26 July 2024", false, THINKS_NOT, TOOLS_SMOL,
     {"Knowledge Cutoff Date: June 2025\\n", CHAT_SMOL3_THINKS, "(tool | string)"}, chat_smollm3_text},
    {"llama3", CHAT_LLAMA, "", "<|begin_of_text|>", chat_date, true, THINKS_NOT, TOOLS_LLAMA,
     {"\"Cutting Knowledge Date: December 2023\\n\"", CHAT_LLAMA_TURN, ""}, chat_llama3_text},
    {"llama3.0", CHAT_LLAMA, NULL, "<|begin_of_text|>", NULL, true, THINKS_NOT, TOOLS_NONE,
     {"{% set content = " CHAT_LLAMA_TURN " %}", " + content %}{% endif %}{{ content }}{% endfor %}", ""},
     "{% for message in messages %}{% set content = " CHAT_LLAMA_TURN " %}{% if loop.index0 == 0 %}"
     "{% set content = '<|begin_of_text|>' + content %}{% endif %}{{ content }}{% endfor %}" CHAT_LLAMA_ASKS},
    {"zephyr", "<|", "|>\n", "</s>", "\n", NULL, "", NULL, false, THINKS_NOT, TOOLS_NONE,
     {CHAT_ZEPHYR("user", " "), CHAT_ZEPHYR("assistant", "  "), ""},
     CHAT_EOS "{% for message in messages %}{% if message['role'] == 'user' %}" CHAT_ZEPHYR("user", " ")
     "{% elif message['role'] == 'system' %}" CHAT_ZEPHYR("system", " ") "{% else %}" CHAT_ZEPHYR("assistant", "  ")
     "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
    {"gemma", "<start_of_turn>", "\n", "<end_of_turn>", "\n", NULL, "<bos>", NULL, true, THINKS_NOT, TOOLS_NONE,
     {CHAT_GEMMA_TURN "message['content'] | trim + '<end_of_turn>\\n'", "'System role not supported'", ""},
     CHAT_GEMMA("{{ raise_exception('System role not supported') }}",
                "{{ " CHAT_GEMMA_TURN "message['content'] | trim + '<end_of_turn>\\n' }}"),
     "model", NULL, SYSTEM_NONE},
    {"gemma3", "<start_of_turn>", "\n", "<end_of_turn>", "\n", NULL, "<bos>", NULL, true, THINKS_NOT, TOOLS_NONE,
     {CHAT_GEMMA_TURN "(first_user_prefix if loop.first else \"\")", "{{ message['content'] | trim }}", ""},
     CHAT_GEMMA("{% set first_user_prefix = messages[0]['content'] + '\n\n' %}{% set messages = messages[1:] %}"
                "{% else %}{% set first_user_prefix = '' %}",
                "{{ " CHAT_GEMMA_TURN "(first_user_prefix if loop.first else \"\") }}{{ message['content'] | trim }}"
                "{{ '<end_of_turn>\\n' }}"),
     "model", NULL, SYSTEM_JOINS},
    {"mistral-v1", "[INST]", " ", "</s>", "", NULL, "<s>", NULL, false, THINKS_NOT, TOOLS_NONE,
     {CHAT_V1_USER, CHAT_V1_ANSWER, ""}, CHAT_MISTRAL(CHAT_V1_USER, CHAT_V1_ANSWER), "", " [/INST]", SYSTEM_NONE},
    {"mistral-v3", "[INST]", " ", "</s>", "", NULL, "<s>", NULL, false, THINKS_NOT, TOOLS_NONE,
     {CHAT_V3_USER, CHAT_V3_ANSWER, ""}, CHAT_MISTRAL(CHAT_V3_USER, CHAT_V3_ANSWER), " ", "[/INST]", SYSTEM_NONE},
    {"mistral-nemo", "[INST]", "", "</s>", "", NULL, "<s>", NULL, false, THINKS_NOT, TOOLS_NONE,
     {CHAT_NEMO_USER, CHAT_NEMO_ANSWER, ""}, CHAT_MISTRAL(CHAT_NEMO_USER, CHAT_NEMO_ANSWER), "", "[/INST]",
     SYSTEM_NONE},
    {"chatml", CHAT_ML, NULL, "", NULL, false, THINKS_NOT, TOOLS_NONE, {CHAT_PLAIN, "", ""}, CHAT_PLAIN CHAT_ML_ASKS}};
static const char chat_names[] = "chatml, qwen2.5, qwen3, qwen3-2507, qwen3-free, smollm2, smollm3, llama3, llama3.0, "
                                 "zephyr, gemma, gemma3, mistral-v1, mistral-v3, mistral-nemo";

const ChatTemplate *chat_template_named(const char *name) {
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
  const char *const roles[] = {"system", "user", "ipython", t->assistant, ""};
  const char *at = piece, *const think = strstr(piece, "<think>");
  if (think && t->tools == TOOLS_SMOL) return true;                        // its system message explains them
  if (think) return t->thinks && (think == piece + (piece[0] == '\n')) && strcmp(piece, "<think>\n");
  if (!strstr(piece, t->begin)) return true;
  if (!chat_eat(&at, t->begin)) return false;
  int role = 0;
  while (!chat_eat(&at, roles[role])) role++;
  if (!strncmp(at, t->end, strlen(at))) return true;             // nothing, or a part of it
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
const ChatTemplate *chat_template_of(const char *text) {
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
char *chat_template_text(const ChatTemplate *t, const char *date) {
  const char *at = t->date && strcmp(date, chat_date) ? strstr(t->text, t->date) : NULL;
  char *text = NULL;
  if (asprintf(&text, "%.*s%s%s", at ? (int)(at - t->text) : 0, t->text, at ? date : "",
               at ? at + strlen(t->date) : t->text) < 0)
    die_missing("no memory for a chat template");
  return text;
}
const ChatTemplate *chat_template_in(const char *dir, char *why, size_t why_bytes, char **its_text) {
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
  if (its_text) *its_text = t ? strdup(found) : NULL;
  if (!t && found) data_format(why, why_bytes, "that of %s is none of those known", path);
  else if (!t) data_format(why, why_bytes, "%s has none (chat_template.jinja, tokenizer_config.json)", dir);
  cJSON_Delete(json);
  free(config);
  free(text);
  return t;
}
