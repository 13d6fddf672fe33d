// test_templates.h: the interpreter of chat templates beside jinja2, and which tokens are trained on by any template.
#pragma once

// What a template makes of variables; NULL: *fault. malloc'ed.
static char *templates_render(const char *text, const cJSON *variables, JinjaFault *fault, size_t *spans,
                              size_t *count) {
  JinjaTemplate *t = jinja_parse(text, strlen(text), fault);
  static Jinja j;
  j = {};
  j.fault = fault, j.t = t, j.date = chat_date;
  volatile bool ok = false;
  if (t && !setjmp(j.back)) {
    JinjaScope *globals = jinja_scope(&j, NULL);
    for (const cJSON *x = variables->child; x; x = x->next)
      jinja_set_global(&j, globals, x->string, jinja_of_json(&j, x));
    ok = jinja_render(&j, globals);
  }
  char *made = ok ? strndup(j.out.p ? j.out.p : "", j.out.n) : NULL;
  *count = ok && j.span_count <= 16 ? j.span_count : 0;
  if (*count) memcpy(spans, j.spans, *count * sizeof *spans);
  jinja_release(&j, NULL, 0);
  free(j.out.p);
  free(j.spans);
  jinja_free(t);
  return made;
}
TEST(templates_equal_jinja2,
     "templates that together use every construct of the interpreter render what jinja2 does, with its blocks of "
         "what is "
     "trained on (dev/make_template_fixture.py); what jinja2 rejects is rejected with its line") {
  int64_t bytes;
  char *file = file_get("dev/fixtures/templates.jsonl", 1 << 20, &bytes), *line = file;
  REQUIRE(file, "no fixture");
  cJSON *variables = NULL;
  int count = 0, rejected = 0;
  for (char *end; (end = strchr(line, '\n')); line = end + 1) {
    *end = 0;
    cJSON *x = json_parse_spelled(line);
    REQUIRE(x, "no JSON: %s", line);
    if (!variables) { variables = x; continue; }
    JinjaFault fault = {};
    size_t spans[16], n;
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(x, "template"));
    const char *want = cJSON_GetStringValue(cJSON_GetObjectItem(x, "text"));
    char *got = templates_render(text, variables, &fault, spans, &n);
    EXPECT(want ? got && !strcmp(got, want) : !got && fault.text[0] && fault.line > 0, "%s\nmade %s\nnot  %s", text,
           got ? got : fault.text, want ? want : "an error");
    const cJSON *at = cJSON_GetObjectItem(x, "spans");
    for (size_t i = 0; got && i < n; i++)
      EXPECT((double)spans[i] == cJSON_GetNumberValue(cJSON_GetArrayItem(at, (int)i)), "%s: span %zu", text, i);
    EXPECT(!got || (int)n == cJSON_GetArraySize(at), "%s: %zu spans", text, n);
    count++, rejected += !got;
    free(got);
    cJSON_Delete(x);
  }
  EXPECT(count > 25 && rejected > 10, "%d templates, %d rejected", count, rejected);
  cJSON_Delete(variables);
  free(file);
}
TEST(templates_are_bounded, "a template that never ends, nests without end or writes without end is ended with a "
     "line") {
  static const struct { const char *text, *says; } cases[] = {
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests deeper"},
      {"{% set n = namespace(x='aaaaaaaa') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "MiB"},
      {"{{ range(1000000) }}", "range() of more"}, {"{{ 'a'.foo() }}", "'foo' is undefined"},
      {"{% set n = namespace(a=[], b=[]) %}{% for i in range(9999) %}{% set n.a = [n.a] %}{% set n.b = [n.b] %}"
       "{% endfor %}{{ n.a == n.b }}", "nests deeper"},
      {"{{ '%.999f' % 1 }}", "a number of that length"}, {"{{ '%d' % 1e300 }}", "a number of that length"}};
  cJSON *none = cJSON_CreateObject();
  for (const auto &c : cases) {
    JinjaFault fault = {};
    size_t spans[16], n;
    char *got = templates_render(c.text, none, &fault, spans, &n);
    EXPECT(!got && strstr(fault.text, c.says), "%s: %s", c.text, got ? got : fault.text);
    free(got);
  }
  JinjaFault fault = {};
  char deep[4096] = "{{ ";
  for (int i = 0; i < 4000; i++) strcat(deep, i < 2000 ? "(" : i == 2000 ? "1" : ")");
  strcat(deep, ") }}");
  EXPECT(!jinja_parse(deep, strlen(deep), &fault) && strstr(fault.text, "nests deeper"), "%s", fault.text);
  strcpy(deep, "{% set ");                       // a target of an assignment
  for (int i = 0; i < 3801; i++) strcat(deep, i < 1900 ? "(" : i == 1900 ? "x" : ")");
  strcat(deep, " = 1 %}");
  EXPECT(!jinja_parse(deep, strlen(deep), &fault) && strstr(fault.text, "nests deeper"), "%s", fault.text);
  cJSON_Delete(none);
}
// A conversation by a template: what is trained on, each stretch with | after it, is `want`.
static void templates_expect(const char *text, const char *name, const char *line, const char *want, bool last =
                             false) {
  char path[256], got[2048] = "";
  Error error = {};
  Tokenizer t;
  snprintf(path, sizeof path, "dev/fixtures/chat_%s/tokenizer.json", name);
  REQUIRE(tokenizer_load(&t, path, &error), "%s", error.text);
  char *words = chat_words_of(NULL, text);
  ChatOptions o = {"model", chat_date, "", false};
  o.words = words, o.last = last;
  const Chat c = chat_open(&o, &t);
  ChatTokens k = {};
  if (!chat_line(&c, &k, (const uint8_t *)line, strlen(line))) snprintf(got, sizeof got, "%s", k.fault.text);
  for (int64_t i = 0; i < k.count; i++) {
    int n;
    const uint8_t *p = tokenizer_token_bytes(&t, k.ids[i], &n);
    if (k.trained[i]) text_add(got, sizeof got, "%.*s%s", n, (const char *)p, i + 1 == k.count || !k.trained[i + 1]
                               ? "|" : "");
  }
  if (k.rewritten || k.endless) text_add(got, sizeof got, "%d rewritten, %d endless", (int)k.rewritten, (int)k.endless);
  EXPECT(!strcmp(got, want), "%s\nby %s\ntrains on %s\nnot       %s", line, text, got, want);
  free(k.ids);
  free(k.trained);
  free(words);
  tokenizer_free(&t);
}
TEST(templates_mask_what_is_answered,
     "by any template what is trained on decodes to each answer and its end, and nothing else: with a BOS token, a "
     "default system message, text before and after, a forced <think>, headers in words; an answer before which the "
     "template rewrites what was is left out and counted; where a template has no end, up to the next header; "
     "{% generation %} says it where it is there; --train_on last is the last") {
  static const char line[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
      "\"content\": \"a <|im_end|> "
                             "\u00e9\"}, {\"role\": \"user\", \"content\": \"r\"}, {\"role\": \"assistant\", "
                                 "\"content\": \"b\"}]}";
#define TURNS "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
#define ASKS "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
  static const char both[] = "a <|im_end|> \u00e9<|im_end|>|b<|im_end|>|";
  for (const char *text : {TURNS ASKS, "<|endoftext|>" TURNS ASKS,
                           "{% set d = 'You are kind.' %}{% if messages[0].role != 'system' %}<|im_start|>system\n{{ "
                               "d }}<|im_end|>\n"
                           "{% endif %}" TURNS ASKS, "Text before\n" TURNS ASKS,
                               TURNS "{% if add_generation_prompt %}<|im_start|>"
                           "assistant\n<think>\n{% endif %}", TURNS "{% if add_generation_prompt %}{{ "
                               "'<|im_start|>assistant\\n' }}"
                           "{% else %}{{ '<|endoftext|>' }}{% endif %}"})
    templates_expect(text, "chatml", line, both);
  templates_expect(TURNS ASKS, "chatml", line, "b<|im_end|>|", true);
  templates_expect("{% for m in messages %}{{ '[' ~ m.role ~ ']' ~ m.content }}{% endfor %}{% if "
                   "add_generation_prompt %}{{ '[assistant]' }}"
                   "{% endif %}", "chatml", line, "a <|im_end|>|b|0 rewritten, 1 endless");
  templates_expect("{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' }}{% if m.role == 'assistant' and not "
                   "loop.last %}{{ 'old: ' }}"
                   "{% endif %}{{ m.content ~ '<|im_end|>\\n' }}{% endfor %}" ASKS, "chatml",
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
                       "\"a\"}, {\"role\": "
                   "\"assistant\", \"content\": \"b\"}]}", "old: a<|im_end|>|1 rewritten, 0 endless");
  templates_expect("{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' }}{% if m.role == 'assistant' %}{% "
                   "generation %}{{ m.content }}"
                   "{% endgeneration %}{{ '<|im_end|>' }}{% else %}{{ m.content ~ '<|im_end|>' }}{% endif %}{% "
                       "endfor %}" ASKS, "chatml",
                   line, "a <|im_end|> \u00e9|b|");
  templates_expect("{{ raise_exception('Never mind') }}", "chatml", line, "the chat template rejects it: Never mind");
  templates_expect("\n\n{{ messages + 1 }}", "chatml", line, "the chat template fails at line 3: '+' of list and int");
}
TEST(templates_come_with_a_model,
     "a directory's template is chat_template.jinja, else that of tokenizer_config.json, else chat_template.json; its "
     "tokens are variables, by class where the file names none; of named ones tool_use is for tools; --chat_date is "
         "one") {
  Error why = {};
  const char *dir = data_path("model");
  data_write_text(dir, "chat_template.json", "{\"chat_template\": \"third\"}");
  char *words = chat_words_in(dir, &why);
  EXPECT(words && strstr(words, "\"chat_template\":\"third\""), "%s %s", words ? words : "", why.text);
  free(words);
  data_write_text(dir, "tokenizer_config.json", "{\"bos_token\": {\"content\": \"<b>\"}, \"eos_token\": null, "
                  "\"tokenizer_class\": "
                  "\"LlamaTokenizerFast\", \"chat_template\": [{\"name\": \"tool_use\", \"template\": \"with\"}, "
                      "{\"name\": \"default\", "
                  "\"template\": \"second\"}]}");
  words = chat_words_in(dir, &why);
  EXPECT(words && strstr(words, "\"chat_template\":\"second\"") && strstr(words, "\"tool_use\":\"with\"") &&
             strstr(words, "\"bos_token\":\"<b>\"") && !strstr(words, "eos_token"), "%s", words ? words : why.text);
  free(words);
  data_write_text(dir, "chat_template.jinja", "first");
  words = chat_words_in(dir, &why);
  EXPECT(words && strstr(words, "\"chat_template\":\"first\"") && !strstr(words, "tool_use"), "%s", words ? words
         : why.text);
  free(words);
  data_write_text(dir, "special_tokens_map.json", "{\"eos_token\":");
  words = chat_words_in(dir, &why);
  EXPECT(!words && why.code == EXIT_MISSING && strstr(why.text, "special_tokens_map.json: is not a JSON object"),
         "a damaged file is taken for none: %s", words ? words : why.text);
  free(words);
  struct tm day;
  EXPECT(chat_date_read("26 Jul 2024", &day) && day.tm_wday == 5 && chat_date_read("2024-07-26", &day)
         && day.tm_yday == 207 &&
             chat_date_read("26 July 2024", &day) && !chat_date_read("26/7", &day), "weekday %d", day.tm_wday);
  EXPECT(!chat_kwargs_fault("") && !chat_kwargs_fault("{\"a\": 1}") && chat_kwargs_fault("[1]")
         && chat_kwargs_fault("{\"tools\": 1}"),
         "variables");
  static const char tools[] = "{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], "
      "\"messages\": [{\"role\": \"user\", "
                              "\"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}";
  templates_expect("{{ tools[0].function.name }}{% for m in messages %}{{ m.content }}{{ '<|im_end|>' }}{% endfor %}",
                   "chatml", tools,
                   "a<|im_end|>|");
}
