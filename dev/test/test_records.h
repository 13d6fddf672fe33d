// test_records.h: forms and containers of conversations (data/records.h), against the messages that they are.

// All ids of a corpus, train and valid, each with bit 30 where it is trained on, malloc'ed.
static int32_t *records_ids(const char *path, const ChatOptions *chat, int64_t *n) {
  Corpus c;
  DataError e;
  CorpusOptions o = chat_corpus_options(path, "qwen2.5", "qwen2.5");
  if (chat) o.chat = *chat;
  *n = 0;
  if (!corpus_load(&c, o, &e)) { test_fail(__FILE__, __LINE__, "%s", e.text); return NULL; }
  int32_t *ids = NULL;
  for (const Split *s : {&c.split[SPLIT_TRAIN], &c.split[SPLIT_VALID]}) {
    ids = (int32_t *)realloc(ids, 4 * (size_t)(*n + s->tokens_numel + 1));
    for (int64_t i = 0; i < s->tokens_numel; i++) ids[(*n)++] = split_token(s, i) | (split_trained(s, i) << 30);
  }
  corpus_free(&c);
  return ids;
}
// Writes a text in which ' stands for ".
static void records_write(const char *path, const char *text) {
  char *copy = strdup(text);
  for (char *c = copy; *c; c++) if (*c == '\'') *c = '"';
  data_write(path, copy, strlen(copy));
  free(copy);
}
static void records_expect(const char *what, const char *name, const char *text, const int32_t *want, int64_t n,
                           const ChatOptions *chat = NULL) {
  int64_t got, at = 0;
  const char *path = data_path(name);
  records_write(path, text);
  int32_t *ids = records_ids(path, chat, &got);
  while (at < got && at < n && ids[at] == want[at]) at++;
  EXPECT(got == n && at == n, "%s: %lld ids, must be %lld; the first %lld are the same", what, (long long)got,
         (long long)n, (long long)at);
  free(ids);
}
// Three conversations of one question each, with what JSON and tables have to escape.
static const char records_messages[] =
    "{'messages': [{'role': 'user', 'content': 'Add:\\n2, 2'}, {'role': 'assistant', 'content': "
    "'4'}]}\n"
    "{'messages': [{'role': 'user', 'content': 'Say \\\"a\\\\b\\\"\\nx [1]'}, {'role': 'assistant', "
    "'content': 'a}\\\\b, {\\\"\\u00e9'}]}\n"
    "{'messages': [{'role': 'user', 'content': 'Who?'}, {'role': 'assistant', 'content': 'I.'}]}\n";
// Objects of the same: %-members of a question, more of it, and an answer.
static char *records_objects(const char *question, const char *more, const char *answer) {
  char *text = NULL;
  const int n = more ? asprintf(&text,
      "{'%s': 'Add:', '%s': '2, 2', '%s': '4'},{'x': [1], '%s': 'Say \\\"a\\\\b\\\"', '%s': 'x [1]',"
      "\n '%s': 'a}\\\\b, {\\\"\\u00e9'} ,\n{'%s': 'Who?', '%s': '', '%s': 'I.'}", question, more, answer,
      question, more, answer, question, more, answer)
      : asprintf(&text, "{'%s': 'Add:\\n2, 2', '%s': '4'},{'x': {}, '%s': 'Say \\\"a\\\\b\\\"\\nx [1]',\n"
      " '%s': 'a}\\\\b, {\\\"\\u00e9'} ,\n{'%s': 'Who?', '%s': 'I.'}", question, answer, question, answer,
      question, answer);
  return n > 0 ? text : NULL;
}
// The objects of an array without it, each on a line of its own.
static char *records_unwrap(const char *objects) {
  char *to = strdup(objects);
  size_t n = 0;
  int depth = 0;
  bool string = false;
  for (const char *c = objects; *c; c++) {
    string = string != (*c == '\'');
    depth += !string ? (*c == '{') - (*c == '}') : 0;
    if (*c == '\n' || (*c == ',' && !depth && !string)) { if (*c == ',') to[n++] = '\n'; continue; }
    to[n++] = *c;
  }
  to[n] = 0;
  return to;
}
TEST(records_forms_are_messages,
     "each form of records, as lines, as an array, as objects over several lines and as a table, has the ids and masks "
     "of the messages that it stands for; names by --fields too") {
  static const struct { const char *name, *question, *more, *answer, *fields; } forms[] = {
      {"Alpaca", "instruction", "input", "output", ""}, {"Dolly", "instruction", "context", "response", ""},
      {"questions", "question", NULL, "answer", ""}, {"responses", "prompt", NULL, "response", ""},
      {"pairs", "prompt", NULL, "completion", ""}, {"fields", "q", "m", "a", "instruction=q,input=m,output=a"},
      {"two forms", "instruction", NULL, "output", "instruction=instruction"}};
  int64_t n;
  const char *path = data_path("messages.jsonl");
  records_write(path, records_messages);
  int32_t *want = records_ids(path, NULL, &n);
  REQUIRE(want && n > 40, "%lld ids", (long long)n);
  for (const auto &f : forms) {
    char *objects = records_objects(f.question, f.more, f.answer), *lines = records_unwrap(objects), *text = NULL;
    ChatOptions chat = {"qwen2.5", "07 Mar 2031", "none", false};
    chat.pairs = !strcmp(f.name, "pairs"), chat.fields = f.fields;
    records_expect(f.name, "lines.jsonl", lines, want, n, &chat);
    records_expect(f.name, "lines.json", lines, want, n, &chat);
    REQUIRE(asprintf(&text, "\n [%s\n]\n", objects) > 0, "no memory");
    records_expect(f.name, "array.json", text, want, n, &chat);
    records_expect(f.name, "array.jsonl", text, want, n, &chat);
    for (char *c = text; *c; c++) if (*c == '[' && (c < text + 4)) *c = ' ';
    *strrchr(text, ']') = ' ';
    int depth = 0;
    bool string = false;
    for (char *c = text; *c; c++) {                // no commas between objects
      string = string != (*c == '\'');
      depth += !string ? (*c == '{') - (*c == '}') : 0;
      if (*c == ',' && !depth && !string) *c = ' ';
    }
    records_expect(f.name, "spread.json", text, want, n, &chat);
    free(text);
    for (char separator : {',', '\t'}) {
      REQUIRE(f.more ? asprintf(&text, "%s%c%s%c%s%cx\r\n'Add:'%c'2, 2'%c4%c\n'Say ''a\\b'''%cx [1]%c'a}\\b, "
                                "{''\303\251'%c1\n\nWho?%c%cI.%c", f.question, separator, f.more, separator, f.answer,
                                separator, separator, separator, separator, separator, separator, separator, separator,
                                separator, separator) > 0
                     : asprintf(&text, "%s%c%s\n'Add:\n2, 2'%c4\n'Say ''a\\b''\nx [1]'%c'a}\\b, {''\303\251'\n"
                                "Who?%cI.", f.question, separator, f.answer, separator, separator, separator) > 0,
              "no memory");
      records_expect(f.name, separator == ',' ? "table.csv" : "table.tsv", text, want, n, &chat);
      free(text);
    }
    free(objects);
    free(lines);
  }
  free(want);
}
TEST(records_lists_are_messages,
     "ShareGPT's and TRL's lists, roles under their names, a system beside them, content in parts and Alpaca's history "
     "have the ids and masks of messages; --train_on last trains on the last answer; null content is empty") {
  static const char messages[] =
      "{'messages': [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'A?'}, "
      "{'role': 'assistant', 'content': 'B.', 'weight': 0}, {'role': 'user', 'content': 'C?'}, {'role': "
      "'assistant', 'content': 'D.'}]}\n{'messages': [{'role': 'user', 'content': 'x'}, {'role': "
      "'assistant', 'content': 'y'}]}\n";
  static const char *const same[] = {
      "{'system': 'Be brief.', 'conversations': [{'from': 'human', 'value': 'A?'}, {'from': 'gpt', "
      "'value': 'B.', 'loss_weight': 0}, {'from': 'user', 'value': 'C?'}, {'from': 'chatgpt', 'value': "
      "'D.'}]}\n{'items': [{'from': 'human', 'value': 'x'}, {'from': 'bard', 'value': 'y'}]}\n",
      "{'prompt': [{'role': 'system', 'content': [{'type': 'text', 'text': 'Be '}, {'type': 'text', "
      "'text': 'brief.'}]}, {'role': 'user', 'content': 'A?'}, {'role': 'assistant', 'content': 'B.'}], "
      "'completion': [{'role': 'user', 'content': 'C?'}, {'role': 'assistant', "
      "'content': 'D.'}]}\n{'conversation': [{'role': 'user', 'content': 'x'}, {'role': 'assistant', "
      "'content': 'y'}], 'text': 'rendered'}\n"};
  int64_t n, m;
  const char *path = data_path("messages.jsonl");
  records_write(path, messages);
  int32_t *want = records_ids(path, NULL, &n);
  REQUIRE(want && n > 40, "%lld ids", (long long)n);
  for (const char *text : same) records_expect(text, "lists.jsonl", text, want, n);
  // Of all answers the last alone is what weight 0 leaves here.
  char all[sizeof messages], *weight;
  memcpy(all, messages, sizeof all);
  weight = strstr(all, ", 'weight': 0");
  memset(weight, ' ', 13);
  ChatOptions chat = {"qwen2.5", "07 Mar 2031", "none", false};
  chat.last = true;
  records_expect("--train_on last", "last.jsonl", all, want, n, &chat);
  const char *history = "{'instruction': 'C?', 'output': 'D.', 'system': 'Be brief.', 'history': [['A?', "
                        "'B.']]}\n{'question': 'x', 'answer': 'y', 'text': 'rendered'}\n";
  records_expect("history", "history.jsonl", history, want, n, &chat);
  free(want);
  static const char empty[] = "{'messages': [{'role': 'user', 'content': ''}, {'role': 'assistant', "
                              "'content': 'a'}]}\n{'text': 'b'}\n";
  records_write(path, empty);
  want = records_ids(path, NULL, &m);
  records_expect("null", "null.jsonl", "{'messages': [{'role': 'user', 'content': null}, {'role': 'assistant', "
                 "'content': 'a'}]}\n{'text': 'b'}\n", want, m);
  free(want);
}
TEST(records_damaged, "arrays and tables that are cut short, or have more behind them, are refused by name") {
  static const struct { const char *name, *text, *says; } bad[] = {
      {"a.json", "[{'text': 'a'}, {'text': 'b'}", "cut short"},
      {"a.json", "[{'text': 'a'}, {'text': 'b", "cut short"},
      {"a.json", "[{'text': 'a'}] x", "more stands behind"},
      {"a.json", "[{'text': 'a'}, {'text' 2}, {'text': 'c'}]", "record 2: it is not JSON"},
      {"a.csv", "text\n'a", "row 2 has a value whose \" does not end"},
      {"a.csv", "text\n'a'b\n", "row 2 has more behind the \""},
      {"a.csv", "text\na,b\n", "row 2 has more values than there are names"},
      {"a.csv", "text,x\na,b\nc\n", "row 3 has fewer values than there are names"},
      {"a.csv", "a,b\nc,d\ne,f\n", "record 1: it has no form that is known; its members: a, b"}};
  for (const auto &b : bad) {
    const char *path = data_path(b.name);
    records_write(path, b.text);
    data_expect_refused(chat_corpus_options(path, "qwen2.5", "qwen2.5"), 3, path, b.says);
  }
  for (const char *fields : {"prompt", "prompt=", "x=y", "prompt=a,b", "=a"})
    EXPECT(record_fields_fault(fields), "--fields %s is taken", fields);
  EXPECT(!record_fields_fault("") && !record_fields_fault("prompt=a,completion=b"), "good ones are refused");
}
TEST(records_stream_as_in_memory,
     "an array and a table, packed or not, are encoded by --encode to the bytes of their lines, read in any pieces, "
     "and going on after a stop") {
  char array[8192] = "[", lines[8192] = "", table[8192] = "text,x\n";
  for (int i = 0; i < 60; i++) {
    snprintf(array + strlen(array), 128, "%s\n{'text': 'a [%d], {\\\"',\n 'x': [1, {}]}", i ? "," : "", i);
    snprintf(lines + strlen(lines), 128, "{'text': 'a [%d], {\\\"'}\n", i);
    snprintf(table + strlen(table), 128, "'a [%d], {''',%d\r\n", i, i);
  }
  strcat(array, "\n]\n");
  const struct { const char *name, *text; } files[] = {{"in/l.jsonl", lines}, {"in/a.json", array}, {"in/t.csv", table},
                                                       {"in/b.json.gz", array}, {"in/u.csv.gz", table}};
  int64_t want_count = 0;
  int32_t *want = NULL;
  mkdir(data_path("in"), 0777);
  for (const auto &f : files) {
    char out[600], path[600], command[1400];
    DataError e;
    snprintf(path, sizeof path, "%s", data_path(f.name));
    const bool packed = name_ends(path, ".gz");
    if (packed) path[strlen(path) - 3] = 0;
    records_write(path, f.text);
    snprintf(command, sizeof command, "gzip -f '%s'", path);
    if (packed) REQUIRE(!system(command), "no gzip");
    snprintf(path, sizeof path, "%s", data_path(f.name));
    snprintf(out, sizeof out, "%s", data_path(f.name + 3));
    strcat(out, ".out");
    EncodeOptions o = encode_options(out, path, 2);
    o.block_bytes = 97;
    REQUIRE(encode_run(&o, &e), "%s: %s", f.name, e.text);
    int64_t n = 0;
    int32_t *ids = encode_read(out, "train", &n);
    if (!want) want = ids, want_count = n;
    EXPECT(n == want_count && !memcmp(ids, want, 4 * (size_t)n), "%s: other ids: %lld, not %lld", f.name, (long long)n,
           (long long)want_count);
    if (ids != want) free(ids);
  }
  EXPECT(want_count > 300, "%lld ids", (long long)want_count);
  free(want);
}
