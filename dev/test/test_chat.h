// test_chat.h: tokens with masks, conversations: what is trained on, and that it depends on no number of ranks.
#pragma once

// ---- masks ----------------------------------------------------------------------------------------------------------

// llmq's token file of `count` tokens. version 1: without masks.
static void chat_llmq_file(const char *path, int version, int count, int masks, long extra) {
  uint8_t b[4096] = {};
  int32_t header[7] = {0, 0, version, 4, count, 300, masks};
  memcpy(header, "BIN.TOK\n", 8);
  memcpy(b, header, sizeof header);
  for (int32_t i = 0; i < count; i++) {
    const int32_t id = i * 37 % 299;
    memcpy(b + 1024 + 4 * i, &id, 4);
    if (masks == 1 && chat_some(i)) b[1024 + 4 * count + i / 8] |= (uint8_t)(1 << i % 8);
  }
  data_write(path, b, (size_t)(1024 + 4 * count + (masks == 1 ? (count + 7) / 8 : 0) + extra));
}
TEST(chat_llmq_files,
     "llmq's token files, with and without masks, hold the tokens and masks that were written, here and as passed to "
     "other ranks; damaged ones are rejected by name; another mask is another corpus") {
  const char *train = data_path("q_train.bin"), *valid = data_path("q_val.bin");
  uint64_t hash[2];
  for (int masks = 0; masks < 2; masks++) {
    Corpus c, there;
    Error e;
    chat_llmq_file(train, 1 + masks, 203, masks, 0);
    chat_llmq_file(valid, 2, 99, masks, 0);
    REQUIRE(corpus_load(&c, data_options(train), &e), "%s", e.text);
    void *image = calloc(1, corpus_block_bytes(&c));
    corpus_to_block(&c, image);
    REQUIRE(corpus_of_block(&there, image, corpus_block_bytes(&c), &e), "%s", e.text);
    hash[masks] = c.hash;
    for (const Split *s : {&c.split[SPLIT_TRAIN], &there.split[SPLIT_TRAIN]}) {
      int32_t inputs[16], targets[16];
      EXPECT(s->tokens_numel == 203 && s->masked == masks, "%lld tokens", (long long)s->tokens_numel);
      for (int i = 0; i < 203; i++)
        EXPECT(split_token(s, i) == i * 37 % 299 && split_trained(s, i) == (!masks || chat_some(i)), "token %d", i);
      eval_window_fill(s, 16, 1, inputs, targets);
      for (int t = 0; t < 16; t++)
        EXPECT(targets[t] == (masks && !chat_some(17 + t) ? -1 : (17 + t) * 37 % 299), "target %d: %d", t, targets[t]);
    }
    corpus_free(&there);
    corpus_free(&c);
  }
  EXPECT(hash[0] != hash[1], "one hash");
  const CorpusOptions o = data_options(train);
  chat_llmq_file(train, 3, 203, 1, 0); data_expect_rejected(o, 3, "version 3", "expected: version 1 or 2");
  chat_llmq_file(train, 2, 203, 1, -1); data_expect_rejected(o, 3, "and a mask", "1862 bytes, but it has 1861");
  chat_llmq_file(train, 2, 203, 0, 1); data_expect_rejected(o, 3, "counts 203 tokens of 4 bytes, ", "it has 1837");
  uint8_t none[1024 + 12 + 1] = {'B', 'I', 'N', '.', 'T', 'O', 'K', '\n', 2, 0, 0, 0, 4, 0, 0, 0, 3};
  none[24] = 1;
  data_write(train, none, sizeof none);
  data_expect_rejected(o, 2, "none of its 3 tokens is trained on", "q_train.bin");
}

// ---- templates ------------------------------------------------------------------------------------------------------
// Options of a corpus of conversations encoded with dev/fixtures/chat_NAME's tokenizer.
static CorpusOptions chat_corpus_options(const char *data, const char *name, const char *form) {
  static char dir[256];
  snprintf(dir, sizeof dir, "dev/fixtures/chat_%s", name);
  CorpusOptions o = {data, NULL, 0, 2, 7, dir};
  o.chat = ChatOptions{form, "07 Mar 2031", "none here", false};
  return o;
}
static const char *const chat_forms[] = {"qwen2.5", "qwen3", "smollm2", "llama3", "chatml"};
TEST(chat_templates_equal_transformers,
     "a hundred conversations have the ids and masks of transformers' apply_chat_template (dev/make_chat_fixture.py) "
     "for each known template, which is recognised in the model's directory; with 1 and 3 threads, and cached") {
  char config[256], u16[256], cache[600];
  for (const char *name : chat_forms) {
    Error why = {};
    snprintf(config, sizeof config, "dev/fixtures/chat_%s", name);
    snprintf(u16, sizeof u16, "dev/fixtures/chat_%s.u16", name);
    snprintf(cache, sizeof cache, "%s/cache", test_tmp());
    char *words = chat_words_in(config, &why);
    REQUIRE(words, "%s: %s", name, why.text);
    int64_t bytes = 0;
    uint16_t *want = (uint16_t *)file_get(u16, 1 << 20, &bytes);
    REQUIRE(want, "no %s", u16);
    for (int turn = 0; turn < 3; turn++) {
      Corpus c;
      Error e;
      CorpusOptions o = chat_corpus_options("dev/fixtures/chat.jsonl", name, name);
      o.threads = turn ? 3 : 1;
      o.cache_dir = cache;
      if (!turn) o.chat.words = words;
      if (turn == 1) REQUIRE(!system("rm -r \"$TEST_TMP/cache\""), "no cache");
      REQUIRE(corpus_load(&c, o, &e), "%s: %s", name, e.text);
      EXPECT(c.cache_used == (turn == 2), "%s: turn %d: cache used %d", name, turn, c.cache_used);
      const Split *train = &c.split[SPLIT_TRAIN], *valid = &c.split[SPLIT_VALID];
      int64_t at = 0, documents = 0;
      int wrong = 0, less = 0;
      for (const Split *x : {train, valid})
        for (int64_t i = 0, left = 0; i < x->tokens_numel && wrong < 3; i++, at++, left--) {
          EXPECT(split_begins(x, i) == !left, "%s: conversation %lld starts elsewhere", name, (long long)documents);
          if (!left) left = want[at++], documents++;
          const int id = want[at] & 0x7fff;
          const bool trained = want[at] >> 15;
          // Where Qwen 3 writes an earlier answer in another way once a later one is there, the later one is left out.
          const bool aside = !strcmp(name, "qwen3") && trained && !split_trained(x, i);
          less += aside;
          if (split_token(x, i) == id && aside) continue;
          if (split_token(x, i) == id && split_trained(x, i) == trained) continue;
          wrong++;
          EXPECT(false, "%s: conversation %lld, token %lld: %d %d, transformers %d %d", name, (long long)documents,
                 (long long)i, split_token(x, i), split_trained(x, i), id, trained);
        }
      EXPECT(train->documents + valid->documents == 100 && documents == 100 && valid->documents >= 2,
             "%s: %lld and %lld conversations", name, (long long)train->documents, (long long)valid->documents);
      EXPECT(less < 700, "%s: %d tokens less", name, less);
      EXPECT((less > 0) == (strstr(c.warnings.text, "answers are not trained on: where another turn follows") != NULL),
             "%s: %d tokens less, %s", name, less, c.warnings.text);
      EXPECT(at * 2 == bytes, "%s: %lld tokens", name, (long long)(train->tokens_numel + valid->tokens_numel));
      corpus_free(&c);
    }
    free(want);
    free(words);
  }
}
TEST(chat_prompts_are_the_beginning,
     "a prompt is a user's message and the header of an answer, as in a conversation") {
  static const char line[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"  Why 12?\\n\"}, "
                             "{\"role\": \"assistant\", \"content\": \"x\"}]}";
  for (const char *name : chat_forms) {
    char path[256];
    Error error = {};
    Tokenizer t;
    snprintf(path, sizeof path, "dev/fixtures/chat_%s/tokenizer.json", name);
    REQUIRE(tokenizer_load(&t, path, &error), "%s", error.text);
    const ChatOptions o = {name, chat_date, "", false};
    const Chat c = chat_open(&o, &t);
    ChatTokens asked = {}, whole = {};
    REQUIRE(chat_prompt(&c, &asked, "  Why 12?\n") && chat_line(&c, &whole, (const uint8_t *)line, strlen(line)),
            "%s%s", asked.fault.text, whole.fault.text);
    int64_t said = 0;
    while (said < whole.count && !whole.trained[said]) said++;
    EXPECT(said == asked.count && said < whole.count && !memcmp(asked.ids, whole.ids, sizeof(int32_t) * (size_t)said),
           "%s: a prompt has %lld tokens, before an answer are %lld", name, (long long)asked.count, (long long)said);
    for (ChatTokens *k : {&asked, &whole}) free(k->ids), free(k->trained);
    tokenizer_free(&t);
  }
}
TEST(chat_lines_are_checked,
     "damaged and unsuited lines are named by file, line and what is wrong; unknown templates and tokenizers without "
     "the template's tokens too; prompt and completion, text and what is trained of them, are as stated") {
  static const struct { const char *line, *says; } bad[] = {
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}", "line 3: it is not JSON from byte "},
      {"{\"text\": \"a\"} {}", "line 3: it is not JSON from byte 15 on"},
      {"{\"text\": \"a\xff\"}", "line 3: byte 12 is not UTF-8"},
      {"{\"text\": \"a\\u0000b\"}", "line 3: it has a NUL character"},
      {"{\"messages\": []}", "line 3: messages is empty"},
      {"{\"messages\": [{\"role\": \"user\"}]}", "line 3: a message is not"},
      {"{\"messages\": [{\"role\": \"teller\", \"content\": \"x\"}]}", "line 3: role 'teller' is not"},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"tool_calls\": [1]}]}", "a call is not {"},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"reasoning_content\": \"y\"}]}",
       "reasoning_content"},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"thinking\": \"y\"}]}", "has thinking, which"},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"reasoning\": [1]}]}", "reasoning, which is no"},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"weight\": 0.5}]}", "weight that is neither"},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"train\": \"no\"}]}", "train that is neither"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"train\": true}]}", "that is --train_on all"},
      {"{\"messages\": [], \"tools\": [1]}", "line 3: its tools are no list of objects"},
      {"{\"messages\": [{\"role\": \"u\u202e\\u001b[2J\u0085\", \"content\": \"x\"}]}",
       "role 'u\\xe2\\x80\\xae\\x1b[2J\\xc2\\x85' is not"},
      {"{\"text\": \"a \\ud83d b\"}", "\\ud83d at byte 13 is half of a character"},
      {"{\"text\": \"a \\ude00 b\"}", "\\ude00 at byte 13 is half of a character"},
      {"{\"instruction\": \"x\", \"outpt\": \"y\"}", "line 3: it has no known schema: nearest is Alpaca, with "
       "instruction and output; its keys: instruction, outpt"},
      {"{\"prompt\": [], \"completion\": \"x\"}", "its prompt and completion are neither texts nor messages"},
      {"{\"messages\": [], \"chosen\": [], \"rejected\": []}", "(chosen and rejected) beside messages: --loss dpo"},
      {"{\"chosen\": \"a\", \"rejected\": \"b\"}", "line 3: it is a preference"},
      {"{\"question\": 1, \"answer\": \"b\"}", "line 3: its question or answer is no text"},
      {"{\"conversations\": [{\"from\": \"function_call\", \"value\": \"b\"}]}", "line 3: a call is not {"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}", "another kind than text"},
      {"[1]", "line 3: it is no object with keys"}};
  const char *path = data_path("c.jsonl");
  char text[1024];
  for (const auto &b : bad) {
    // A field that is null is absent; an escaped backslash before u0000 makes no NUL.
    snprintf(text, sizeof text, "{\"text\": \"fine: \\\\u0000\"}\n{\"tools\": null, \"messages\": [{\"role\": "
             "\"user\", \"content\": \"x\", \"tool_calls\": null, \"reasoning_content\": null}]}\n%s\n{\"text\": "
             "\"fine\"}\n", b.line);
    data_write(path, text, strlen(text));
    data_expect_rejected(chat_corpus_options(path, "qwen2.5", "qwen2.5"), 3, path, b.says);
  }
  snprintf(text, sizeof text, "%s", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n{\"text\": \"a\"}\n");
  data_write(path, text, strlen(text));
  data_expect_rejected(chat_corpus_options(path, "qwen2.5", "auto"), 3, "no chat template is known: none here",
                      "--chat_template");
  data_expect_rejected(chat_corpus_options(path, "qwen2.5", "llama3"), 3, "no token <|eot_id|>", "line 1");
  CorpusOptions o = chat_corpus_options(path, "qwen2.5", "qwen2.5");
  o.tokenizer = "dev/fixtures/tokenizer_llama3.json";
  data_expect_rejected(o, 3, "no token <|im_end|>", "line 1");
  o.tokenizer = NULL, o.vocab_size = 300;
  data_expect_rejected(o, 2, "--init_from", "--tokenizer");
  data_write(path, "{\"text\": \"a\"}\n", 14);
  Corpus one;
  Error fault;
  REQUIRE(corpus_load(&one, chat_corpus_options(path, "qwen2.5", "qwen2.5"), &fault), "%s", fault.text);
  EXPECT(one.split[SPLIT_TRAIN].documents == 1 && !one.split[SPLIT_VALID].tokens_numel, "one record is held out");
  corpus_free(&one);
  data_write(path, text, strlen(text));
  data_expect_rejected(chat_corpus_options(path, "qwen2.5", "qwen2.5"), 2, "is trained on", path);

  const char *dir = data_path("chats");
  data_write_text(dir, "train.jsonl",
                  "\xef\xbb\xbf{\"prompt\": \"2+2=\", \"completion\": \" four\", \"x\": 1}\r\n{\"text\": \"hi\"}");
  data_write_text(dir, "valid.jsonl", "{\"text\": \"b\"}\n");
  for (int all = 0; all < 2; all++) {
    Corpus c;
    Error e;
    o = chat_corpus_options(dir, "qwen2.5", "auto");
    o.chat.train_all = all;
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    EXPECT(strstr(c.warnings.text, ": keys that are not read, and of how many records: x (1)\n"), "warnings: %s",
           c.warnings.text);
    const Split *s = &c.split[SPLIT_TRAIN];
    int32_t ids[64], want[64];
    uint8_t trained[64];
    int n = 0, end = chat_token(&c.tokenizer, "<|endoftext|>");
    for (const char *p : {"2+2=", " four", "hi"}) {
      const int k = (int)tokenizer_encode(&c.tokenizer, (const uint8_t *)p, strlen(p), ids);
      for (int i = 0; i < k; i++) want[n] = ids[i], trained[n++] = all || p[0] != '2';
      if (p[0] != '2') want[n] = end, trained[n++] = 1;
    }
    EXPECT(s->tokens_numel == n && s->documents == 2, "%lld tokens of %d", (long long)s->tokens_numel, n);
    for (int i = 0; i < n && n == s->tokens_numel; i++)
      EXPECT(split_token(s, i) == want[i] && split_trained(s, i) == trained[i], "token %d: %d %d, not %d %d", i,
             split_token(s, i), split_trained(s, i), want[i], trained[i]);
    corpus_free(&c);
  }
}

// Trained tokens of one line by a template, as text with [ ] around them; "": the fault.
static const char *chat_marked(const char *name, const char *line, bool all = false, const char *its_text = NULL) {
  static char text[2048];
  char path[256];
  Error error = {};
  Tokenizer t;
  snprintf(path, sizeof path, "dev/fixtures/chat_%s/tokenizer.json", name);
  if (access(path, R_OK)) snprintf(path, sizeof path, "dev/fixtures/chat_others/tokenizer.json");
  if (!tokenizer_load(&t, path, &error)) return error.text[0] ? "no tokenizer" : "";
  ChatOptions o = {name, chat_date, "", all};
  char *const words = its_text ? chat_words_of(NULL, its_text) : NULL;
  o.words = words;
  const Chat c = chat_open(&o, &t);
  ChatTokens k = {};
  size_t n = 0;
  if (!chat_line(&c, &k, (const uint8_t *)line, strlen(line)))
    n = (size_t)snprintf(text, sizeof text, "%s", k.fault.text);
  for (int64_t i = 0; i < k.count; i++) {
    int bytes;
    const uint8_t *p = tokenizer_token_bytes(&t, k.ids[i], &bytes);
    const bool before = i && k.trained[i - 1], last = i + 1 == k.count;
    const char *mark = k.trained[i] == before ? "" : before ? "]" : "[";
    n += (size_t)snprintf(text + n, sizeof text - n, "%s%.*s%s", mark, bytes, (const char *)p,
                          last && k.trained[i] ? "]" : "");
  }
  free(k.ids);
  free(k.trained);
  free(words);
  tokenizer_free(&t);
  return text;
}
TEST(chat_messages_say_what_is_trained,
     "an answer with train false, masked, weight 0 or loss_weight 0 is seen and not trained on, with --train_on all "
     "too; thoughts count under each of their names; empty tools and calls, weight 1 are nothing; a text that was "
     "rendered before gets no second begin and no second end") {
  static const char plain[] = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n";
  static const char off[] = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n";
  static const struct { const char *more, *want; } flags[] = {
      {"", plain}, {", \"train\": true", plain}, {", \"weight\": 1", plain}, {", \"loss_weight\": 1.0", plain},
      {", \"masked\": false", plain}, {", \"tool_calls\": []", plain}, {", \"function_call\": {}", plain},
      {", \"reasoning_content\": \"\"", plain}, {", \"train\": false", off}, {", \"weight\": 0", off},
      {", \"loss_weight\": 0.0", off}, {", \"masked\": true", off}};
  char line[512];
  for (const auto &x : flags) {
    snprintf(line, sizeof line, "{\"tools\": %s, \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
             "\"assistant\", \"content\": \"a\"%s}]}", (&x - flags) % 2 ? "[]" : "\" [ ]\"", x.more);
    const char *got = chat_marked("chatml", line);
    EXPECT(!strcmp(got, x.want), "%s: %s", x.more, got);
  }
  const char *both = chat_marked("chatml", "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
                                 "\"assistant\", \"content\": \"a\", \"train\": false}]}", true);
  EXPECT(!strncmp(both, "[<|im_start|>user", 17) && strstr(both, "]<|im_start|>assistant\na<|im_end|>"), "%s", both);
  for (const char *name : {"reasoning_content", "reasoning", "thinking"}) {
    snprintf(line, sizeof line, "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
             "\"content\": \"a\", \"%s\": \"hm\"}]}", name);
    const char *got = chat_marked("qwen3", line);
    EXPECT(strstr(got, "assistant\n[<think>\nhm\n</think>\n\na<|im_end|>]"), "%s: %s", name, got);
  }
  const char *two = chat_marked("qwen3", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"reasoning\": "
                                "\"x\", \"thinking\": \"y\"}]}");
  EXPECT(strstr(two, "two different thoughts"), "%s", two);
  static const struct { const char *name, *line, *want; } texts[] = {
      {"llama3", "{\"text\": \"<|begin_of_text|>x<|eot_id|>\"}", "<|begin_of_text|>[x<|eot_id|>]"},
      {"llama3", "{\"text\": \"x\"}", "<|begin_of_text|>[x<|end_of_text|>]"},
      {"llama3", "{\"prompt\": \"<|begin_of_text|>x\", \"completion\": \"y<|eot_id|>\"}",
       "<|begin_of_text|>x[y<|eot_id|>]"},
      {"chatml", "{\"text\": \"<|im_start|>x<|im_end|>\\n\"}", "[<|im_start|>x<|im_end|>\n]"},
      {"chatml", "{\"text\": \"x<|endoftext|>\"}", "[x<|endoftext|>]"},
      {"chatml", "{\"text\": \"x<|eot_id|>\"}", "[x<|eot_id|><|endoftext|>]"}};          // no token of its own
  for (const auto &x : texts) {
    const char *got = chat_marked(x.name, x.line);
    EXPECT(!strcmp(got, x.want), "%s: %s", x.line, got);
  }
}

// ---- tools ----------------------------------------------------------------------------------------------------------
// FNV-1a of ids of two bytes; masked: bit 15 is set where one is trained on.
static uint64_t chat_hashed(const ChatTokens *k, bool masked) {
  uint64_t hash = 14695981039346656037u;
  for (int64_t i = 0; i < k->count; i++) {
    const int word = k->ids[i] | (masked && k->trained[i]) << 15;
    for (int byte : {word & 255, word >> 8}) hash = (hash ^ (uint64_t)byte) * 1099511628211u;
  }
  return hash;
}
TEST(chat_tools_equal_transformers,
     "a hundred conversations with tools, calls and answers of tools, in each shape that people keep them in, have the "
     "ids and masks of transformers' apply_chat_template by the published templates of Qwen 2.5, Qwen 3, SmolLM3 and "
     "Llama 3.1; those without tools the ids by further templates; what a template leaves out is rejected") {
  static const struct { const char *file, *name, *tokenizer; } cases[] = {
      {"tools", "qwen2.5", "qwen2.5"}, {"tools", "qwen3", "qwen3"}, {"tools", "qwen3-2507", "qwen2.5"},
      {"tools", "smollm3", "qwen3"}, {"tools", "llama3", "llama3"}, {"chat", "qwen3-2507", "qwen2.5"},
      {"chat", "qwen3-free", "qwen3"}, {"chat", "smollm3", "qwen3"}, {"chat", "llama3.0", "llama3"},
      {"chat", "zephyr", "others"}, {"chat", "gemma", "others"}, {"chat", "gemma3", "others"},
      {"chat", "mistral-v1", "others"}, {"chat", "mistral-v3", "others"}, {"chat", "mistral-nemo", "others"}};
  int64_t bytes = 0, at = 0;
  uint64_t *want = (uint64_t *)file_get("dev/fixtures/tools.u64", 1 << 20, &bytes);
  for (const auto &x : cases) {
    char path[256];
    Error error = {};
    Tokenizer t;
    snprintf(path, sizeof path, "dev/fixtures/chat_%s/tokenizer.json", x.tokenizer);
    REQUIRE(want && tokenizer_load(&t, path, &error), "%s", error.text);
    snprintf(path, sizeof path, "dev/fixtures/%s.jsonl", x.file);
    const ChatOptions o = {x.name, "07 Mar 2031", "", false};
    const Chat c = chat_open(&o, &t);
    FILE *f = fopen(path, "r");
    REQUIRE(f, "no %s", path);
    char *line = NULL;
    size_t room = 0;
    int wrong = 0, lines = 0;
    for (ssize_t n; (n = getline(&line, &room, f)) > 0 && at * 8 < bytes; at++, lines++) {
      ChatTokens k = {};
      const bool ok = chat_line(&c, &k, (const uint8_t *)line, (size_t)n);
      if (ok ? chat_hashed(&k, !strcmp(x.file, "tools") && strcmp(x.name, "qwen3")) != want[at] : want[at] != 0)
        EXPECT(wrong++ > 2, "%s, %s: conversation %d: %lld tokens, not those of transformers%s: %s", x.file, x.name,
               lines, (long long)k.count, want[at] ? "" : ", which leaves something out", k.fault.text);
      free(k.ids);
      free(k.trained);
    }
    EXPECT(lines == 100, "%s: %d lines", path, lines);
    free(line);
    fclose(f);
    tokenizer_free(&t);
  }
  EXPECT(at * 8 == bytes, "%lld conversations", (long long)at);
  free(want);
}
#define CHAT_TOOL "'tools': [{'type': 'function', 'function': {'name': 'f', 'n': [1.0, 1e5, {}]}}], "
#define CHAT_TURN "{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}]}"
#define CHAT_TURNS "{'messages': [{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'q'}, {'role': " \
  "'assistant', 'content': 'a'}]}"
#define CHAT_ASKED "{" CHAT_TOOL "'messages': [{'role': 'user', 'content': 'q'}, "
TEST(chat_tools_are_read,
     "calls in OpenAI's shape, alone, as its functions were, as ShareGPT has them and as Llama writes them are one "
     "text, trained on; what a tool answers is not; numbers are those of Python; thoughts stand before calls; what a "
     "template or the model's own text leaves out is rejected by name") {
  static const char tail[] =
      "\n<|im_start|>assistant\n[<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1.5, null], \"a\": \"\u00e9\"}"
      "}\n</tool_call><|im_end|>]\n<|im_start|>user\n<tool_response>\n7.0\n</tool_response>\n<tool_response>\n\n"
      "</tool_response><|im_end|>\n";
  static const char *const shapes[] = {
      "{'role': 'assistant', 'tool_calls': [{'id': 'i', 'type': 'function', 'function': {'name': 'f', 'arguments': "
      "{'x': [1.50, null], 'a': '\u00e9'}}}]}, {'role': 'tool', 'tool_call_id': 'i', 'content': '7.0'}",
      "{'role': 'assistant', 'content': null, 'tool_calls': [{'name': 'f', 'parameters': {'x': [1.50, null], 'a': "
      "'\\u00e9'}}]}, {'role': 'ipython', 'content': [{'type': 'text', 'text': '7.0'}]}",
      "{'role': 'assistant', 'content': '', 'function_call': {'name': 'f', 'arguments': '{\\'x\\': [1.50, null], "
      "\\'a\\': \\'\u00e9\\'}'}}, {'role': 'function', 'name': 'f', 'content': '7.0'}",
      "{'role': 'function_call', 'content': '[{\\'name\\': \\'f\\', \\'arguments\\': {\\'x\\': [1.50, null], "
      "\\'a\\': \\'\u00e9\\'}}]'}, {'role': 'observation', 'content': '7.0'}"};
  auto marked = [](const char *name, const char *line) {
    char *copy = strdup(line);
    for (char *c = copy; *c; c++) if (*c == '\'') *c = '"';
    const char *got = chat_marked(name, copy);
    free(copy);
    return got;
  };
  char line[1024];
  for (const char *shape : shapes) {
    snprintf(line, sizeof line, "%s%s, {'role': 'tool', 'content': ''}]}", CHAT_ASKED, shape);
    const char *got = marked("qwen2.5", line), *at = strstr(got, "\n<|im_start|>assistant");
    EXPECT(strstr(got, "<tools>\n"
                       "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"n\": [1.0, 100000.0, {}]}}\n") &&
               at && !strcmp(at, tail), "%s: %s", shape, got);
  }
  static const struct { const char *name, *line, *want; } others[] = {
      {"qwen3", CHAT_ASKED "{'role': 'assistant', 'content': '', 'reasoning': 'hm', 'tool_calls': [{'name': 'f', "
       "'arguments': '{ }'}]}]}", "assistant\n[<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
       "{ }}\n</tool_call><|im_end|>]\n"},
      {"llama3", CHAT_ASKED "{'role': 'assistant', 'tool_calls': [{'name': 'f'}]}, {'role': 'tool', 'content': "
       "' a\\n'}]}", "[{\"name\": \"f\", \"parameters\": {}}<|eot_id|>]<|start_header_id|>ipython<|end_header_id|>\n\n"
       "\" a\\n\"<|eot_id|>"},
      {"zephyr", CHAT_TURNS, "<|system|>\ns</s>\n<|user|>\nq</s>\n<|assistant|>\n[a</s>]\n"},
      {"gemma3", CHAT_TURNS, "<bos><start_of_turn>user\ns\n\nq<end_of_turn>\n<start_of_turn>model\n[a<end_of_turn>]\n"},
      {"gemma", CHAT_TURNS, "the chat template rejects it: System role not supported"},
      {"mistral-v1", CHAT_TURN, "<s>[INST] q [/INST][a</s>]"}, {"mistral-v3", CHAT_TURN, "<s>[INST] q[/INST][ a</s>]"},
      {"mistral-nemo", CHAT_TURN, "<s>[INST]q[/INST][a</s>]"},
      {"mistral-nemo", "{'messages': [{'role': 'assistant', 'content': 'a'}]}", "the chat template rejects it: "},
      {"chatml", CHAT_ASKED "{'role': 'user', 'content': ''}]}", "tools, which the chat template leaves out; qw"},
      {"chatml", "{'messages': [{'role': 'assistant', 'tool_calls': [{'name': 'f'}]}]}", "a message has tool_calls, "},
      {"qwen3", "{'messages': [{'role': 'user', 'tool_calls': [{'name': 'f'}]}]}", "that is no answer has tool_calls"},
      {"qwen3", "{'messages': [{'role': 'assistant', 'tool_calls': [{'name': 'f', 'arguments': '{'}]}]}",
       "a call is not {\"name\": TEXT"},
      {"llama3", "{" CHAT_TOOL "'messages': [{'role': 'assistant', 'content': 'x'}]}", "the chat template "},
      {"llama3", CHAT_ASKED "{'role': 'assistant', 'content': 'x', 'tool_calls': [{'name': 'f'}]}]}",
       "content beside tool_calls"}};
  for (const auto &x : others) {
    const char *got = marked(x.name, x.line);
    EXPECT(strstr(got, x.want), "%s, %s: %s", x.name, x.line, got);
  }
  const char *without = chat_marked("qwen3", "{\"tools\": [{}], \"messages\": [{\"role\": \"user\", \"content\": "
                                    "\"q\"}]}", false, "{{ messages }}");
  EXPECT(strstr(without, "it has tools, which the chat template leaves out; qwen2.5, qwen3"), "%s", without);
}

// ---- packing --------------------------------------------------------------------------------------------------------
Split chat_split(const int *length, int documents, int vocab) {
  Split s = {};
  s.token_bytes = 4, s.masked = true, s.documents = documents;
  for (int d = 0; d < documents; d++) s.tokens_numel += length[d];
  s.tokens = s.owned = calloc(1, split_bytes(&s));
  uint64_t state = 77;
  for (int64_t i = 0, d = 0, left = 0; i < s.tokens_numel; i++, left--) {
    const uint64_t r = op_random(&state);
    ((uint32_t *)s.owned)[i] = (uint32_t)(r % (uint64_t)vocab);
    split_bits(&s, false)[i / 8] |= (uint8_t)((r >> 40 & 1) << i % 8);
    if (!left) split_bits(&s, true)[i / 8] |= (uint8_t)(1 << i % 8), left = length[d++];
  }
  return s;
}
TEST(chat_packing_is_whole,
     "every conversation is whole in one sequence, once, in an order that all ranks compute; what is too long is cut "
     "or left out and counted, and so is one with nothing to train on in what is left; each goes where the least room "
     "is left; padding has no target and sees only itself") {
  static int length[300];
  static bool trains[300];
  uint64_t state = 5;
  for (int &n : length) n = 1 + (int)(op_random(&state) % 40);
  length[7] = 34, length[8] = 33, length[9] = 90;
  const int64_t T = 32;
  Split s = chat_split(length, 300, 1000);
  for (int drop = 0; drop < 2; drop++) {
    Packing p;
    packing_make(&p, &s, T, drop);
    int64_t placed = 0, want = 0, too_long = 0, untrained = 0;
    for (int d = 0; d < 300; d++) {
      const int n = length[d], places = n > T + 1 ? drop ? 0 : (int)T : n - 1;
      bool trained = false;
      for (int i = 1; i <= places; i++) trained = trained || split_trained(&s, p.start[d] + i);
      trains[d] = trained;
      untrained += !trained && (n <= T + 1 || !drop);
      too_long += n > T + 1 && (trained || drop);
      want += trained ? places : 0;
    }
    static int seen[300];
    memset(seen, 0, sizeof seen);
    EXPECT(p.cut == (drop ? 0 : too_long) && p.dropped == (drop ? too_long : 0), "%lld cut, %lld left out of %lld",
           (long long)p.cut, (long long)p.dropped, (long long)too_long);
    EXPECT(untrained > 10 && p.untrained == untrained && p.kept == 300 - p.dropped - untrained,
           "%lld without a target of %lld, %lld kept", (long long)p.untrained, (long long)untrained, (long long)p.kept);
    for (int64_t row = 0; row <= p.rows; row++) {
      int32_t inputs[32], targets[32], starts[32];
      packing_fill(&p, row, inputs, targets, starts);
      uint32_t d = row < p.rows ? p.head[row] : PACKING_NONE;
      for (int64_t t = 0; t < T;) {
        const int64_t begin = t;
        if (d == PACKING_NONE) {
          for (; t < T; t++) EXPECT(!inputs[t] && targets[t] == -1 && starts[t] == begin, "padding");
          break;
        }
        for (int64_t i = p.start[d]; i < p.start[d + 1] - 1 && t < T; i++, t++, placed++)
          EXPECT(inputs[t] == split_token(&s, i) && targets[t] == split_target(&s, i + 1) && starts[t] == begin,
                 "sequence %lld, place %lld", (long long)row, (long long)t);
        seen[d]++;
        d = p.next[d];
      }
      EXPECT(d == PACKING_NONE, "sequence %lld overflows", (long long)row);
    }
    for (int i = 0; i < 300; i++)
      EXPECT(seen[i] == trains[i], "conversation %d: %d times", i, seen[i]);
    int room[300], rows = 0;                     // best fit, looked for among all
    for (int d = 0; d < 300; d++) {
      const int places = length[d] > T + 1 ? (int)T : length[d] - 1;
      int best = -1;
      if (!trains[d]) continue;
      for (int i = 0; i < rows; i++) if (room[i] >= places && (best < 0 || room[i] < room[best])) best = i;
      if (best < 0) room[best = rows++] = (int)T;
      room[best] -= places;
    }
    EXPECT(placed == want && p.rows == rows, "%lld places of %lld in %lld sequences of %d", (long long)placed,
           (long long)want, (long long)p.rows, rows);
    packing_free(&p);
  }
  split_free(&s);
}
