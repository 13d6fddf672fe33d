// test_records.h: schemas and file formats of conversations (data/chat/records.h), against the messages that they are.

// All ids of a corpus, train and valid, each with bit 30 where it is trained on, malloc'ed.
static int32_t *records_ids(const char *path, const ChatOptions *chat, int64_t *n) {
  Corpus c;
  Error e;
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
// Objects of the same: %-keys of a question, more of it, and an answer.
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
     "each schema of records, as lines, as an array, as objects over several lines and as a table, has the ids and "
     "masks of the messages that it stands for; names by --fields too") {
  static const struct { const char *name, *question, *more, *answer, *fields; } forms[] = {
      {"Alpaca", "instruction", "input", "output", ""}, {"Dolly", "instruction", "context", "response", ""},
      {"questions", "question", NULL, "answer", ""}, {"responses", "prompt", NULL, "response", ""},
      {"pairs", "prompt", NULL, "completion", ""}, {"fields", "q", "m", "a", "instruction=q,input=m,output=a"},
      {"its own names", "instruction", NULL, "output", "instruction=instruction"}};
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
TEST(records_fields_choose,
     "a record that fits two schemas has the ids of the one whose keys --fields names; the rest of a question under "
     "either name; blank lines of a table, with either end, are none; --train_on all trains on lists of pairs whole") {
  static const struct { const char *fields, *text; } same[] = {
      {"", "{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}]}\n"
           "{'question': 'x\\ny', 'answer': 'z'}\n"},
      {"prompt=question,completion=answer,messages=m",
       "{'m': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}], 'chosen': 1, 'rejected': 2}\n"
       "{'question': 'x\\ny', 'answer': 'z'}\n"},
      {"", "{'question': 'q', 'answer': 'a', 'items': ['b'], 'history': null, 'system': ''}\n"
           "{'instruction': 'x', 'input': 'y', 'response': 'z', 'text': 't'}\n"},
      {"", "{'prompt': 'q', 'response': 'a', 'context': null}\n{'question': 'x', 'context': 'y', 'answer': 'z'}\n"}};
  int64_t n = 0;
  int32_t *want = NULL;
  for (const auto &x : same) {
    ChatOptions chat = {"qwen2.5", "07 Mar 2031", "none", false};
    chat.fields = x.fields, chat.pairs = true;
    const char *path = data_path("f.jsonl");
    records_write(path, x.text);
    if (!want) want = records_ids(path, &chat, &n);
    else records_expect(x.fields[0] ? x.fields : x.text, "f.jsonl", x.text, want, n, &chat);
  }
  REQUIRE(want && n > 40, "%lld ids", (long long)n);
  records_expect("blank lines", "f.csv", "\r\nprompt,response\r\n\r\nq,a\r\n\r\n'x\ny',z\r\n\r\n", want, n);
  free(want);
  ChatOptions all = {"qwen2.5", "07 Mar 2031", "none", true};
  const char *path = data_path("f.jsonl");
  records_write(path, same[0].text);
  want = records_ids(path, &all, &n);
  records_expect("--train_on all", "f.jsonl", "{'prompt': [{'role': 'user', 'content': 'q'}], 'completion': [{'role': "
                 "'assistant', 'content': 'a'}]}\n{'question': 'x', 'input': 'y', 'answer': 'z'}\n", want, n, &all);
  free(want);
}
TEST(records_are_read_whole,
     "a key that changes what a record means, under any spelling, in a record, a message or a part of it, in lines, "
     "a table of values and one of columns, is rejected by name and never passed over; empty it is nothing, beside a "
     "text "
     "it is not looked at; what else is not read is said with its number, from the cache too") {
  // Q, A: a question and its answer as messages, as texts; M: the inside of messages.
#define RECORDS_M "{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}"
#define RECORDS_LINE(more) "{'messages': [" RECORDS_M "], " more "}\n"
  static const struct { const char *name, *text, *says; } bad[] = {
      {"a.jsonl", RECORDS_LINE("'label': false"), "line 1: it has label, which changes what it means"},
      {"a.jsonl", RECORDS_LINE("'KTO_TAG': true"), "line 1: it has KTO_TAG, which changes"},
      {"a.jsonl", RECORDS_LINE("'Images': ['a.png']"), "line 1: it has Images, which changes"},
      {"a.jsonl", RECORDS_LINE("'videos': [{'path': 'a'}]"), "line 1: it has videos, which changes"},
      {"a.jsonl", RECORDS_LINE("'rejected': 'r'"), "line 1: it has rejected, which changes"},
      {"a.jsonl", RECORDS_LINE("'weight': 0.5"), "line 1: it has weight, which changes"},
      {"a.jsonl", RECORDS_LINE("'train': false"), "line 1: it has train, which changes"},
      {"a.jsonl", "{'instruction': 'q', 'output': 'a', 'audios': 'a.wav'}\n", "line 1: it has audios, which changes"},
      {"a.jsonl", "{'prompt': 'q', 'completion': 'a', 'tools': [{'name': 'f'}]}\n", "it has tools, which changes what "
       "it "
       "means and is not read: --pairs chat makes messages"},
      {"a.jsonl", "{'prompt': 'q', 'completion': 'a', 'system': 's'}\n", "it has system, which changes"},
      {"a.jsonl", "{'messages': [{'role': 'user', 'content': 'q', 'images': ['x']}]}\n", "a message has images, which "
       "is "
       "not read there"},
      {"a.jsonl", "{'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'q', 'image_url': 'x'}]}]}\n",
       "a message has content of another kind than text"},
      {"a.jsonl", "{'prompt': 'p', 'instruction': 'q', 'output': 'a'}\n", "it has both prompt and instruction"},
      {"a.jsonl", "{'prompt': 'p', 'Instruction': 'q', 'completion': 'a'}\n", "it has both prompt and Instruction"},
      {"a.jsonl", "{'text': 'a', 'text': 'b'}\n", "line 1: its key text comes twice"},
      {"a.jsonl", "{'messages': [{'role': 'user', 'role': 'system', 'content': 'q'}]}\n", "its key role comes "
       "twice"},
      {"a.jsonl", "{'messages': [" RECORDS_M "], 'Messages': []}\n", "its key messages comes twice, as Messages"},
      {"a.csv", "question,answer,answer\nq,a,b\n", "row 1 has the name answer twice"},
      {"a.csv", "Question,ANSWER,label\nq,a,1\n", "record 1: it has label, which changes"},
      {"a.json", "[{'conversations': [" RECORDS_M "], 'image': 'x'}, 1]", "record 1: it has image, which changes"}};
  for (const auto &b : bad) {
    const char *path = data_path(b.name);
    records_write(path, b.text);
    CorpusOptions o = chat_corpus_options(path, "qwen2.5", "qwen2.5");
    o.val_data = path;
    data_expect_rejected(o, 3, path, b.says);
  }
  char many[4096] = "{'text': 'x', 'Text': 'y'", keys[8192];
  for (int i = 0; i < 40; i++) snprintf(many + strlen(many), 32, ", 'k%d': {'k%d': 1}", i, i);
  snprintf(keys, sizeof keys, "%s, 'k7': 2}\n", many);
  records_write(data_path("keys.jsonl"), keys);
  CorpusOptions of_keys = chat_corpus_options(data_path("keys.jsonl"), "qwen2.5", "qwen2.5");
  char keys_path[600];
  snprintf(keys_path, sizeof keys_path, "%s", data_path("keys.jsonl"));
  of_keys.data = of_keys.val_data = keys_path;
  data_expect_rejected(of_keys, 3, "line 1: ", "its key k7 comes twice");
  // The same records, with nothing or something that is not read beside them.
  static const char *const same[] = {
      RECORDS_LINE("'source': 'x'") "{'text': 'b', 'label': 1, 'images': ['x']}\n",
      RECORDS_LINE("'label': null, 'images': [], 'videos': [null], 'tools': '[]', 'weight': 1, 'source': 5, 'train': "
           "true")
      "{'text': 'b'}\n",
      "{'messages': [{'Role': 'user', 'CONTENT': [{'type': 'text', 'value': 'q'}], 'images': []}, {'role': "
      "'assistant', "
      "'content': [{'type': 'text', 'text': 'a', 'image': null}]}], 'source': [0]}\n{'TEXT': 'b'}\n",
      "{'Question': 'q', 'ANSWER': 'a', 'Input': '', 'source': 'x'}\n{'text': 'b'}\n"};
  char cache[600];
  snprintf(cache, sizeof cache, "%s", data_path("cache"));
  uint64_t hash = 0;
  for (const char *text : same) for (int turn = 0; turn < 2; turn++) {
    Corpus c;
    Error e;
    const char *path = data_path("same.jsonl");
    records_write(path, text);
    CorpusOptions o = chat_corpus_options(path, "qwen2.5", "qwen2.5");
    o.cache_dir = cache;
    REQUIRE(corpus_load(&c, o, &e), "%s: %s", text, e.text);
    EXPECT((!hash || c.hash == hash) && c.cache_used == turn, "%s: other tokens, or the cache is used: %d", text,
           c.cache_used);
    EXPECT(strstr(c.warnings.text, ": keys that are not read, and of how many records: source (1)\n"), "%s: %s", text,
           c.warnings.text);
    hash = c.hash;
    corpus_free(&c);
  }
  // Tables of columns, read by both ways.
  static const struct { const char *name, *says; } tables[] = {
      {"unread", NULL}, {"images", "images.parquet, row 1: it has images, which changes what it means"},
      {"twice", "twice.parquet: its key answer comes twice"}};
  for (const auto &t : tables) for (int encodes = 0; encodes < 2; encodes++) {
    Corpus c = {};
    Error e;
    char path[128];
    snprintf(path, sizeof path, "dev/fixtures/parquet/%s.parquet", t.name);
    CorpusOptions o = chat_corpus_options(path, "qwen2.5", "qwen2.5");
    EncodeOptions to = encode_options(cli_path(t.name), o.data, 1);
    to.tokenizer = "dev/fixtures/chat_qwen2.5", to.chat = {"qwen2.5", chat_date, "", false};
    static char said[2048];
    said[0] = 0;
    to.say = [](const char *line) { text_add(said, sizeof said, "%s\n", line); };
    o.records = true;
    const bool ok = encodes ? encode_run(&to, &e) : corpus_load(&c, o, &e);
    EXPECT(ok == !t.says && (ok || strstr(e.text, t.says)), "%s: %s", t.name, e.text);
    EXPECT(!ok || strstr(encodes ? said : c.warnings.text, "of how many records: system_prompt (3)\n"), "%s: %s%s",
           t.name, said, c.warnings.text);
    corpus_free(&c);
  }
  static const struct { const char *fields, *says; } fields[] = {
      {"input=inputs", "--fields input=inputs: no record of --data "}, {"role=who,content=content", "--fields "
       "role=who: "}};
  for (const auto &f : fields) {
    CorpusOptions o = chat_corpus_options(data_path("same.jsonl"), "qwen2.5", "qwen2.5");
    o.chat.fields = f.fields;
    data_expect_rejected(o, 2, f.says, "has that key");
  }
  EXPECT(record_fields_fault("input=a,input=b"), "two names of one key are taken");
#undef RECORDS_LINE
#undef RECORDS_M
}
TEST(records_damaged, "arrays and tables that are cut short, or have more after them, are rejected by name") {
  static const struct { const char *name, *text, *says; } bad[] = {
      {"a.json", "[{'text': 'a'}, {'text': 'b'}", "cut short"},
      {"a.json", "[{'text': 'a'}, {'text': 'b", "cut short"},
      {"a.json", "[{'text': 'a'}] x", "more stands after"},
      {"a.json", "[{'text': 'a'}, {'text' 2}, {'text': 'c'}]", "record 2: it is not JSON"},
      {"a.csv", "text\n'a", "row 2 has a value whose \" does not end"},
      {"a.csv", "text\n'a'b\n", "row 2 has more after the \""},
      {"a.csv", "text\na,b\n", "row 2 has more values than there are names"},
      {"a.csv", "text,x\na,b\nc\n", "row 3 has fewer values than there are names"},
      {"a.csv", "text\nq\351\n", "byte 7, 0xe9, is not UTF-8"},
      {"a.csv", "text,x\rq1,a1\r", "a line break that is no newline"},
      {"a.json", "[{'question': 'a', 'answer': 'b', 'input': 5}, 1]", "record 1: its input is no text"},
      {"a.json", "[['a'], {'text': 'b'}]", "record 1: it is no object with keys"},
      {"a.csv", "a,b\nc,d\ne,f\n", "record 1: it has no known schema; its keys: a, b"}};
  for (const auto &b : bad) {
    const char *path = data_path(b.name);
    records_write(path, b.text);
    data_expect_rejected(chat_corpus_options(path, "qwen2.5", "qwen2.5"), 3, path, b.says);
  }
  for (const char *fields : {"prompt", "prompt=", "x=y", "prompt=a,b", "=a"})
    EXPECT(record_fields_fault(fields), "--fields %s is taken", fields);
  EXPECT(!record_fields_fault("") && !record_fields_fault("prompt=a,completion=b"), "good ones are rejected");
}
TEST(records_stream_as_in_memory,
     "an array and a table, packed or not, are encoded by --encode to the bytes of their lines, read in any pieces, "
     "and continuing after a stop") {
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
    Error e;
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

// A file of conversations is written by `put`, and read; what that took beside the tokens, in bytes.
static int64_t records_peak(const char *name, void (*put)(FILE *f, int i), int records, int64_t *documents) {
  static char line[128];
  char path[600];
  snprintf(path, sizeof path, "%s", data_path(name));
  FILE *f = fopen(path, "w");
  for (int i = -1; i <= records; i++) put(f, i < records ? i : -2);
  fclose(f);
  CorpusOptions o = chat_corpus_options(path, "qwen2.5", "qwen2.5");
  o.threads = 2;
  Corpus c;
  Error e;
  auto status = [](const char *key) {
    int64_t kib = 0;
    FILE *of = fopen("/proc/self/status", "r");
    while (of && fgets(line, sizeof line, of)) if (!strncmp(line, key, strlen(key))) kib = atoll(line + strlen(key));
    if (of) fclose(of);
    return kib * 1024;
  };
  FILE *reset = fopen("/proc/self/clear_refs", "w");             // the peak is that from here on
  if (reset) fputs("5", reset), fclose(reset);
  const int64_t before = status("VmRSS:");
  if (!corpus_load(&c, o, &e)) { test_fail(__FILE__, __LINE__, "%s", e.text); return 0; }
  const int64_t took = status("VmHWM:") - before;
  *documents = c.split[SPLIT_TRAIN].documents + c.split[SPLIT_VALID].documents;
  const int64_t tokens = (int64_t)(split_bytes(&c.split[SPLIT_TRAIN]) + split_bytes(&c.split[SPLIT_VALID]));
  corpus_free(&c);
  return took - 2 * tokens;
}
TEST(records_are_read_in_bounds,
     "a table of values and an array of many times the memory that reading them may take: it takes no more "
     "beside "
     "the tokens") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  SKIP("a sanitizer's memory is counted too");
#endif
  static const char text[] = "the fox sees one crow by the hill, and the crow sees the fox. the fox sees one crow by "
       "the "
                             "hill, and the crow sees the fox. the fox sees one crow by the hill, and so on for long";
  static void (*const put[])(FILE *, int) = {
      [](FILE *f, int i) { if (i == -1) fputs("question,answer\n", f); else if (i >= 0) fprintf(f, "q%d,\"%s\n%s\"\n",
                           i, text, text); },
      [](FILE *f, int i) { if (i < 0) fputs(i == -1 ? "[" : "]", f); else fprintf(f, "%s{\"question\": \"q%d\",\n"
                           "\"answer\": \"%s\\n%s\"}", i ? "," : "", i, text, text); }};
  static const char *const names[] = {"bound.csv", "bound.json"};
  enum { RECORDS = 1 << 15 };                    // 12 MB
  for (int k = 0; k < 2; k++) {
    int64_t documents = 0;
    const int64_t took = records_peak(names[k], put[k], RECORDS, &documents);
    EXPECT(documents == RECORDS && took <= (int64_t)records_reading_bytes(2), "%s: %lld records, %lld "
           "bytes beside the tokens; at most %zu", names[k], (long long)documents, (long long)took,
           records_reading_bytes(2));
    unlink(data_path(names[k]));
  }
}

TEST(cli_few_records_train,
     "one record trains, and so do eight, with as many sequences per step as there are, and 40 whose held-out one is "
     "too long: without validation, in a line that names --val_data; of 100 records with a large one few bytes are "
     "held out; "
     "what was named and does not fit is rejected, and what to raise is named") {
  static const struct { const char *name; int records, large, code; const char *options, *says[2], *lacks; } runs[] = {
      {"one", 1, -1, 0, "", {"a step has 1 sequence: the data have 1", "nothing is evaluated: the data have too few "
       "records "
       "to hold some out for validation; --val_data names what is"}, "valid:"},
      {"eight", 8, -1, 0, "", {"a step has 1 sequence: the data have 1", "held out for it"}, "nothing is evaluated"},
      {"late", 40, 39, 0, "--too_long drop", {"nothing is evaluated: no conversation that is held out for validation "
       "has a "
       "token to train on within --seq_len; --val_data", "step 1/1"}, "valid:"},
      {"late", 40, 39, 0, "--too_long cut", {"its last records (", "nothing is evaluated: no conversation"}, "valid:"},
      {"late", 40, 39, 2, "--too_long drop --val_data @/large.jsonl", {"no conversation for validation has a token to "
       "train "
       "on within --seq_len 64: --n_positions 64 lets it be no longer, or --too_long cut", "@/large.jsonl: "
       "no"}, "step 1/1"},
      {"near", 100, 96, 0, "--too_long drop", {"its last records (", "valid:"}, "nothing is evaluated"}};
  CliRun r;
  for (const auto &x : runs) for (const char *name : {x.name, "large"}) {
    char path[64];
    snprintf(path, sizeof path, "%s.jsonl", name);
    FILE *f = fopen(data_path(path), "w");
    for (int i = 0; i < (name == x.name ? x.records : 1); i++) {
      fprintf(f, "{\"prompt\": \"");
      for (int k = 0; k < (i != x.large && name == x.name ? 1 : x.records == 100 ? 4000 : 70); k++) fprintf(f, "word ");
      fprintf(f, "\", \"completion\": \"three %d\"}\n", i % 10);
    }
    fclose(f);
    if (name != x.name) {
      char says[1024];
      CLI_RUN(&r, "%s --data %s/%s.jsonl --tokenizer dev/fixtures/chat_qwen2.5 --n_layer 1 --n_head 2 --n_embd 16 "
           "--seq_len "
              "64 --n_positions 64 --threads 1 --max_steps 1 --eval_every 1 --sample_tokens 0 --report off --keep 0 "
              "--cache= "
              "--out %s %s", cli_program(), test_tmp(), x.name, cli_path(x.name), cli_expand(x.options));
      for (const char *line : x.says) {
        snprintf(says, sizeof says, "%s", cli_expand(line));
        EXPECT(strstr(r.text, says), "%s %s: expected '%s':\n%.3000s", x.name, x.options, says, r.text);
      }
      EXPECT(r.code == x.code && !strstr(r.text, x.lacks), "%s %s: exit code %d:\n%.3000s", x.name, x.options, r.code,
             r.text);
      cli_free(&r);
    }
  }
  // Which records are held out of so many bytes each.
  static const struct { int bytes[8], records, first, stop; } held[] = {
      {{10, 10, 10, 10, 10, 10, 10, 10}, 8, 7, 8}, {{10, 10, 10, 10, 900, 10, 10}, 7, 5, 7},
      {{10, 10, 10, 900}, 4, 2, 3},
      {{960, 40}, 2, 1, 2}, {{40, 960}, 2, 0, 1}, {{60, 40}, 2, 1, 2}, {{300, 300, 300, 5, 6}, 5, 3, 5}};
  for (const auto &h : held) {
    RecordPlace place[8];
    TokenStream s = {};
    int64_t at = 0, first = -1, stop = -1;
    s.place = place, s.records = h.records;
    for (int i = 0; i < h.records; i++) place[i] = RecordPlace{at, at + h.bytes[i]}, at += h.bytes[i];
    s.text_end = at - 1;
    EXPECT(records_held(&s, at, &first, &stop) && first == h.first && stop == h.stop, "%d, %d ...: %lld to %lld are "
         "held "
           "out", h.bytes[0], h.bytes[1], (long long)first, (long long)stop);
  }
}

// ---- several files
// Records `first` to `first` + `count`, a question and an answer each: lines of messages; an array of Alpaca's; a table
// of questions; lines of ShareGPT's.
static char *records_numbered(int kind, int first, int count) {
  static const char *const forms[] = {
      "{'messages': [{'role': 'user', 'content': 'q%d'}, {'role': 'assistant', 'content': 'a%d'}]}\n",
      "{'instruction': 'q%d',\n 'output': 'a%d'}", "q%d,a%d\n",
      "{'conversations': [{'from': 'human', 'value': 'q%d'}, {'from': 'gpt', 'value': 'a%d'}]}\n"};
  char *text = NULL;
  size_t bytes;
  FILE *f = open_memstream(&text, &bytes);
  if (kind == 2) fputs("question,answer\n", f);
  for (int i = first; i < first + count; i++) {
    if (kind == 1) fputs(i > first ? "," : "[", f);
    fprintf(f, forms[kind], i, i);
  }
  if (kind == 1) fputs("]", f);
  fclose(f);
  return text;
}
static void records_write_numbered(const char *name, int kind, int first, int count) {
  char *text = records_numbered(kind, first, count), command[1400];
  char path[600];
  snprintf(path, sizeof path, "%s", data_path(name));
  const bool packed = name_ends(path, ".gz");
  if (packed) path[strlen(path) - 3] = 0;
  records_write(path, text);
  snprintf(command, sizeof command, "gzip -f '%s'", path);
  if (packed) REQUIRE(!system(command), "no gzip");
  free(text);
}
TEST(records_of_several_files,
     "conversations of several files, each another schema and file format, packed or not, a table too, by list, "
     "pattern and directory, have the ids and masks of one file with all of them, read and from the cache; a fault is "
     "named by its file and line; of each file the last record is held out; each one's schema and number, and empty "
     "answers, are said") {
  static const char *const names[] = {"a.jsonl", "b.json", "c.csv.gz", "d.jsonl.gz"};
  char list[4096] = "", cache[600], val[600];
  Error e;
  Corpus c;
  snprintf(val, sizeof val, "%s", data_path("v.jsonl"));
  records_write_numbered("v.jsonl", 0, 90, 3);
  records_write_numbered("all.jsonl", 0, 0, 12);
  mkdir(data_path("several"), 0777);
  for (int i = 0; i < 4; i++) {
    char name[64];
    snprintf(name, sizeof name, "several/%s", names[i]);
    records_write_numbered(name, i, 3 * i, 3);
    snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? "," : "", data_path(name));
  }
  snprintf(cache, sizeof cache, "%s", data_path("cache"));
  CorpusOptions o = chat_corpus_options(data_path("all.jsonl"), "qwen2.5", "qwen2.5");
  o.val_data = val;
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  const uint64_t want = c.hash;
  corpus_free(&c);
  char pattern[700], asked[64 + sizeof list];
  snprintf(pattern, sizeof pattern, "%s/several/[ab]*,%s/several/[cd]*", test_tmp(), test_tmp());
  for (int turn = 0; turn < 3; turn++) {
    o.data = turn ? list : pattern, o.records = true, o.cache_dir = cache;
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    EXPECT(c.hash == want && c.cache_used == (turn > 0), "turn %d: other tokens, or cache used %d", turn, c.cache_used);
    EXPECT(strstr(c.warnings.text, "conversations of 4 files, in this order: a.jsonl: 3 as lines of messages; b.json: "
                  "3 as an array of Alpaca; c.csv.gz: 3 as a table of questions; d.jsonl.gz: 3 as lines of ShareGPT\n"),
           "%s", c.warnings.text);
    corpus_free(&c);
  }
  // A directory has no .json or .csv, and its val... for validation; by weights.
  records_write_numbered("several/val.jsonl", 3, 90, 3);
  snprintf(asked, sizeof asked, "%s/several:3,%s/several/b.json:1", test_tmp(), test_tmp());
  o.data = asked, o.val_data = "", o.cache_dir = NULL;
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  const Split *s = &c.split[SPLIT_TRAIN];
  EXPECT(s->documents == 9 && c.split[SPLIT_VALID].documents == 3 && s->sources == 2 && s->source[0].weight == 3 &&
         s->source[1].first == s->source[0].tokens_numel && split_begins(s, s->source[1].first) &&
         s->source[1].first + s->source[1].tokens_numel == s->tokens_numel, "%lld conversations, %d sources",
         (long long)s->documents, s->sources);
  // Sequences are of one source, and come by weights: each period of four has one of the second, in every epoch.
  Packing packing;
  Sampler sampler;
  static uint32_t memory[64];
  packing_make(&packing, s, 420, false);      // four in a sequence
  const SamplerOptions so = {1, 420, 1, true, true, 5};
  EXPECT(packing.rows == packing.first[2] && packing.first[1] > 1, "%lld sequences", (long long)packing.rows);
  REQUIRE(sampler_init(&sampler, s, so, memory, &e, &packing), "%s", e.text);
  for (int64_t row = 0; row < packing.rows; row++)
    for (uint32_t d = packing.head[row]; d != PACKING_NONE; d = packing.next[d])
      EXPECT((packing.start[d] < s->source[1].first) == (row < packing.first[1]), "sequence %lld has both sources'",
             (long long)row);
  int of[2] = {};
  for (int64_t p = 0; p < 8; p++) of[sampler_first(&sampler, p) >= packing.first[1]]++;
  EXPECT(of[0] == 6 && of[1] == 2, "%d and %d sequences, must be 6 and 2", of[0], of[1]);
  packing_free(&packing);
  corpus_free(&c);
  // Without files for validation one record of each is held out. One of them is damaged; answers are empty.
  o.data = list;
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  EXPECT(c.split[SPLIT_TRAIN].documents == 8 && c.split[SPLIT_VALID].documents == 4, "%lld are held out",
         (long long)c.split[SPLIT_VALID].documents);
  corpus_free(&c);
  records_write(data_path("several/a.jsonl"), "{'prompt': 'p', 'response': ' \\n'}\n\n{'question': 'q', 'answer': "
                "'b'}\n{'question': 'q', 'answer': 'b'}\n");
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  EXPECT(strstr(c.warnings.text, "1 of 8 conversations to train on have an answer without text"), "%s",
         c.warnings.text);
  corpus_free(&c);
  records_write(data_path("several/d.jsonl"), "{'question': 'q', 'answer': 'b'}\n\n{'question': 'q'}\n");
  REQUIRE(!system("gzip -f \"$TEST_TMP/several/d.jsonl\""), "no gzip");
  data_expect_rejected(o, 3, "several/d.jsonl.gz, line 3: ", "nearest is questions");
}
TEST(cli_records_mixture,
     "a mixture of conversations in several files, packed whole: a run on two ranks that continues with one ends with "
     "the checkpoint of one that was never stopped; --pack stream says what it cannot do, and a file that is not there "
     "is named") {
  CliRun r;
  char text[4096];
  records_write_numbered("a.jsonl", 0, 0, 30);
  records_write_numbered("b.csv.gz", 2, 30, 9);
  snprintf(text, sizeof text, "--data %s/a.jsonl:3,%s/b.csv.gz:1 --tokenizer dev/fixtures/chat_qwen2.5 --n_layer 1 "
           "--n_head 2 --n_embd 16 --seq_len 256 --threads 1 --batch_size 1 --global_batch 4 --sample_tokens 0 "
           "--eval_every -1 --report off --keep 0 --verbose --cache=", test_tmp(), test_tmp());
  CLI_RUN(&r, "%s %s --max_steps 4 --save_every 2 --out %s", cli_ranks(2), text, cli_path("whole"));
  cli_expect_done(&r, "a mixture");
  EXPECT(strstr(r.text, "warning: conversations of 2 files, in this order: a.jsonl: 28 as lines of messages; b.csv.gz: "
                "8 as a table of questions") && strstr(r.text, "mixture   75 % ") &&
             strstr(r.text, "conversations in 2 files,"), "%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --max_steps 4 --resume %s/ckpt/step_00000002 --out %s", cli_program(), text, cli_path("whole"),
          cli_path("again"));
  cli_expect_done(&r, "resumed");
  cli_free(&r);
  for (const char *file : {"model.safetensors", "optim.safetensors"}) {
    char a[700], b[700];
    snprintf(a, sizeof a, "%s/ckpt/latest/%s", cli_path("whole"), file);
    snprintf(b, sizeof b, "%s/ckpt/latest/%s", cli_path("again"), file);
    cli_expect_same_file("resumed on one rank", a, b);
  }
  CLI_RUN(&r, "%s %s --data %s/a.jsonl,%s/gone.jsonl --out %s", cli_program(), text, test_tmp(), test_tmp(),
          cli_path("gone"));
  cli_expect_rejection(&r, "a file that is not there", EXIT_MISSING, cli_expand("--data @/gone.jsonl: No such file or "
                     "directory"));
  cli_free(&r);
  CLI_RUN(&r, "%s %s --pack stream --out %s", cli_program(), text, cli_path("stream"));
  cli_expect_rejection(&r, "--pack stream", EXIT_MISSING, cli_expand("--data @/a.jsonl: expected token files, .bin; of "
                     "texts one can be named, or a directory; weights are for token files, and for conversations "
                     "packed whole"));
  cli_free(&r);
}
// Three pairs as TRL's messages, and the same in other schemas; the last of two texts.
static const char preference_messages[] =
    "{'prompt': [{'role': 'user', 'content': 'A?'}], 'chosen': [{'role': 'assistant', 'content': 'B.'}], "
    "'rejected': [{'role': 'assistant', 'content': 'C, no.'}]}\n"
    "{'prompt': [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'A?'}, "
    "{'role': 'assistant', 'content': 'B.'}, {'role': 'user', 'content': 'D?'}], 'chosen': "
    "[{'role': 'assistant', 'content': 'E'}], 'rejected': [{'role': 'assistant', 'content': 'F'}]}\n"
    "{'prompt': 'The sky is', 'chosen': ' bl\\u00fce', 'rejected': ' bl\\u00f6d'}\n";

TEST(preference_forms_are_pairs,
     "preferences in TRL's schemas with and without a prompt, LLaMA-Factory's two, UltraFeedback's and axolotl's have "
     "the "
     "ids and masks of TRL's lists of messages; what is none, or is not told apart, is rejected by name") {
  static const char *const same[] = {
      // whole conversations, UltraFeedback's with the prompt once more
      "{'prompt': 'A?', 'prompt_id': 'x', 'chosen': [{'role': 'user', 'content': 'A?'}, {'role': 'assistant', "
      "'content': "
      "'B.'}], 'rejected': [{'role': 'user', 'content': 'A?'}, {'role': 'assistant', 'content': 'C, no.'}], "
      "'messages': "
      "[{'role': 'user', 'content': 'A?'}, {'role': 'assistant', 'content': 'B.'}], 'score_chosen': 7}\n"
      "{'system': 'Be brief.', 'chosen': [{'from': 'human', 'value': 'A?'}, {'from': 'gpt', 'value': 'B.'}, {'from': "
      "'human', 'value': 'D?'}, {'from': 'gpt', 'value': 'E'}], 'rejected': [{'from': 'human', 'value': 'A?'}, "
      "{'from': "
      "'gpt', 'value': 'B.'}, {'from': 'human', 'value': 'D?'}, {'from': 'gpt', 'value': 'F'}]}\n"
      "{'prompt': 'The sky is', 'chosen': ' bl\\u00fce', 'rejected': ' bl\\u00f6d', 'system': null}\n",
      // LLaMA-Factory's
      "{'instruction': 'A?', 'input': '', 'chosen': 'B.', 'rejected': 'C, no.'}\n"
      "{'system': 'Be brief.', 'conversations': [{'from': 'human', 'value': 'A?'}, {'from': 'gpt', 'value': 'B.'}, "
      "{'from': 'human', 'value': 'D?'}], 'chosen': {'from': 'gpt', 'value': 'E'}, 'rejected': {'from': 'gpt', "
      "'value': "
      "'F'}}\n{'prompt': 'The sky is', 'chosen': ' bl\\u00fce', 'rejected': ' bl\\u00f6d'}\n",
      // axolotl's, and history
      "{'messages': [{'role': 'user', 'content': 'A?'}], 'chosen': {'role': 'assistant', 'content': 'B.'}, 'rejected': "
      "{'role': 'assistant', 'content': 'C, no.'}}\n{'system': 'Be brief.', 'history': [['A?', 'B.']], 'question': "
      "'D?', "
      "'chosen': 'E', 'rejected': 'F'}\n{'prompt': 'The sky is', 'chosen': ' bl\\u00fce', 'rejected': ' bl\\u00f6d'}\n",
      // a text in front of messages, and a message after messages
      "{'prompt': 'A?', 'chosen': [{'role': 'assistant', 'content': 'B.'}], 'rejected': [{'role': 'assistant', "
      "'content': "
      "'C, no.'}]}\n{'system': 'Be brief.', 'prompt': [{'role': 'user', 'content': 'A?'}, {'role': 'assistant', "
      "'content': 'B.'}, {'role': 'user', 'content': 'D?'}], 'chosen': 'E', 'rejected': 'F'}\n"
      "{'prompt': 'The sky is', 'chosen': ' bl\\u00fce', 'rejected': ' bl\\u00f6d'}\n"};
  ChatOptions chat = {"qwen2.5", "07 Mar 2031", "none", false};
  chat.preferences = true;
  int64_t n, m;
  const char *path = data_path("messages.jsonl");
  records_write(path, preference_messages);
  int32_t *want = records_ids(path, &chat, &n);
  REQUIRE(want && n > 100, "%lld ids", (long long)n);
  for (const char *text : same) records_expect(text, "p.jsonl", text, want, n, &chat);
  free(want);
  // Texts without a prompt: what they have in common, but for the space; characters stay whole.
  static const char prompts[] = "{'prompt': 'Say a', 'chosen': ' b', 'rejected': ' c'}\n"
                                "{'prompt': 'The sky is bl', 'chosen': '\\u00fc', 'rejected': '\\u00f6'}\n";
  records_write(path, prompts);
  want = records_ids(path, &chat, &m);
  REQUIRE(want && m > 10, "%lld ids", (long long)m);
  records_expect("no prompt", "p.jsonl", "{'chosen': 'Say a b', 'rejected': 'Say a c'}\n{'chosen': 'The sky is "
                                         "bl\\u00fc', "
                 "'rejected': 'The sky is bl\\u00f6'}\n", want, m, &chat);
  records_expect("a table", "p.csv", "prompt,chosen,rejected\nSay a, b, c\nThe sky is bl,\303\274,\303\266\n", want, m,
                 &chat);
  chat.fields = "chosen=yes,rejected=no";
  records_expect("--fields", "p.jsonl", "{'prompt': 'Say a', 'yes': ' b', 'no': ' c'}\n"
                 "{'prompt': 'The sky is bl', 'yes': '\\u00fc', 'no': '\\u00f6'}\n", want, m, &chat);
  free(want);
  static const struct { const char *text, *says; bool chats; } bad[] = {
      {"{'prompt': 'a', 'chosen': 'b'}", "line 1: it is no preference: its rejected is no text, message", false},
      {"{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}]}",
       "it is no preference: its chosen is no text", false},
      {"{'prompt': 'a', 'chosen': 'b', 'rejected': ['c']}", "chosen and rejected are of different kinds", false},
      {"{'prompt': 'a', 'system': 's', 'chosen': 'b', 'rejected': 'c'}", "a system message beside texts: --pairs chat",
       false},
      {"{'chosen': 'b', 'rejected': 'c'}", "it has no prompt, without which --pairs chat", true},
      {"{'chosen': {'role': 'assistant', 'content': 'b'}, 'rejected': {'role': 'assistant', 'content': 'c'}}",
       "it has no prompt, messages or conversations before its answers", false},
      {"{'prompt': [{'role': 'user', 'content': 'q'}], 'chosen': [{'role': 'user', 'content': 'q'}, {'role': "
       "'assistant', 'content': 'a'}], 'rejected': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': "
       "'b'}]}", "messages as its prompt, and answers that start with a question themselves", false}};
  chat.fields = "";
  for (const auto &x : bad) {
    Corpus c;
    Error e;
    chat.pairs = x.chats;
    char two[1024];
    snprintf(two, sizeof two, "%s\n%s\n", x.text, x.text);
    records_write(path, two);
    CorpusOptions o = chat_corpus_options(path, "qwen2.5", "qwen2.5");
    o.chat = chat;
    EXPECT(!corpus_load(&c, o, &e) && strstr(e.text, x.says), "%s: %s", x.text, e.text);
  }
}

TEST(preference_pairs_are_packed,
     "both answers of a pair are in one sequence, the chosen one first, each once and whole, with the reference's sums "
     "where they start; a pair that is too long, or has an answer with nothing to train on, is left out and counted") {
  static int length[120];
  uint64_t state = 6;
  for (int &n : length) n = 2 + (int)(op_random(&state) % 20);
  length[8] = length[9] = 18;
  const int64_t T = 32;
  Split s = chat_split(length, 120, 1000);
  s.pairs = true;
  Packing p;
  packing_make(&p, &s, T, false);
  int64_t kept = 0, dropped = 0, untrained = 0, longest = 0;
  for (int d = 0; d < 120; d += 2) {
    bool trained[2] = {};
    for (int k = 0; k < 2; k++)
      for (int64_t i = p.start[d + k] + 1; i < p.start[d + k + 1]; i++) trained[k] = trained[k] || split_trained(&s, i);
    const bool too_long = length[d] + length[d + 1] - 2 > T, off = !trained[0] || !trained[1];
    dropped += too_long, untrained += !too_long && off, kept += !too_long && !off;
    longest = max64(longest, length[d] + length[d + 1] - 1);
    p.reference[d] = (float)(-d - 1), p.reference[d + 1] = (float)(-d - 2);
  }
  EXPECT(p.kept == kept && p.dropped == dropped && dropped && p.untrained == untrained && untrained && !p.cut,
         "%lld kept of %lld, %lld left out of %lld, %lld without a target of %lld", (long long)p.kept, (long long)kept,
         (long long)p.dropped, (long long)dropped, (long long)p.untrained, (long long)untrained);
  EXPECT(split_longest(&s) == longest, "the longest pair: %lld, %lld", (long long)split_longest(&s),
         (long long)longest);
  int64_t seen = 0;
  for (int64_t row = 0; row < p.rows; row++) {
    int32_t inputs[32], targets[32], starts[32];
    float weights[32];
    packing_fill(&p, row, inputs, targets, starts, weights);
    for (int64_t t = 0; t < T && weights[t] != 0; seen++) {
      const int d = (int)-weights[t] - 1;
      for (int k = 0; k < 2; k++) {
        const int64_t begin = t;
        EXPECT(weights[t] == p.reference[d + k], "sequence %lld, place %lld: %g", (long long)row, (long long)t,
               (double)weights[t]);
        for (int64_t i = p.start[d + k]; i < p.start[d + k + 1] - 1; i++, t++)
          EXPECT(inputs[t] == split_token(&s, i) && targets[t] == split_target(&s, i + 1) && starts[t] == begin &&
                 (t == begin || weights[t] == 0), "sequence %lld, place %lld", (long long)row, (long long)t);
      }
    }
  }
  EXPECT(seen == kept, "%lld pairs in sequences, %lld kept", (long long)seen, (long long)kept);
  packing_free(&p);
  split_free(&s);
}

TEST(tokens_are_added,
     "a tokenizer gets the tokens of a file, by lines or as a JSON array, after its own, once each, and finds them in "
     "a text before it is cut; written and read again it is the same; bad files are rejected by name") {
  Tokenizer t, u;
  char path[600], saved[600];
  Error error = {};
  snprintf(path, sizeof path, "%s", data_path("tokens.txt"));
  snprintf(saved, sizeof saved, "%s", data_path("saved.json"));
  data_write(path, tokens_lines, strlen(tokens_lines));
  REQUIRE(tokenizer_load_with(&t, "dev/fixtures/hf_untied", path, &error), "%s", error.text);
  EXPECT(t.vocab_size == 303, "%d tokens, must be 303", t.vocab_size);
  const char *text = "a<tool> n\xc3\xa4her</tool> x<|endoftext|>";
  int32_t ids[64], again[64];
  const int64_t n = tokenizer_encode(&t, (const uint8_t *)text, strlen(text), ids);
  EXPECT(n >= 6 && ids[1] == 300 && ids[n - 3] == 302 && ids[n - 2] == 301 && ids[n - 1] == 299, "%lld ids: %d ... %d",
         (long long)n, ids[1], ids[n - 2]);
  REQUIRE(tokenizer_save(&t, saved, &error) && tokenizer_load_any(&u, saved, &error), "%s", error.text);
  const bool same = tokenizer_encode(&u, (const uint8_t *)text, strlen(text), again) == n;
  EXPECT(same && !memcmp(ids, again, 4 * (size_t)n) && tokenizer_hash(&t) == tokenizer_hash(&u), "other ids");
  tokenizer_free(&u);
  records_write(path, "['<tool>', '</tool> x', 'n\\u00e4her']");
  REQUIRE(tokenizer_load_with(&u, "dev/fixtures/hf_untied", path, &error), "%s", error.text);
  EXPECT(tokenizer_hash(&t) == tokenizer_hash(&u), "an array adds others");
  tokenizer_free(&u);
  tokenizer_free(&t);
  // One that divides documents still does, and after it was read again.
  static const char words[] = "the fox sees one crow by the hill, and the crow sees the fox\n";
  tokenizer_train(&t, (const uint8_t *)words, strlen(words), 270, 1);
  REQUIRE(t.divides && tokenizer_add(&t, path, &error) && t.divides, "%s", error.text);
  REQUIRE(tokenizer_save(&t, saved, &error) && tokenizer_load_any(&u, saved, &error), "%s", error.text);
  EXPECT(u.divides, "it divides no documents when it was read again");
  tokenizer_free(&u);
  static const struct { const char *name, *text, *says; } bad[] = {
      {"t.json", "{'a': 1}", "is neither lines of text nor a JSON array of texts"},
      {"t.json", "['a', 1]", "its token 2 is no text of 1 to 512 bytes"}, {"t.txt", "\n\n", "has 0 tokens"},
      {"t.txt", "ok\nbad\xff\n", "is not UTF-8"}, {"none.txt", NULL, "No such file"},
      {"t.json", "['a', '\\u00e4']", "cannot be added: it is how the tokenizer's vocabulary writes token"}};
  for (const auto &b : bad) {
    snprintf(path, sizeof path, "%s", data_path(b.name));
    if (b.text) records_write(path, b.text);
    EXPECT(!tokenizer_add(&t, path, &error) && strstr(error.text, b.says) && strstr(error.text, b.name), "%s: %s",
           b.says, error.text);
  }
  tokenizer_free(&t);
}
