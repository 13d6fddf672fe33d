// test_fallback.h: tokenizers by characters with byte_fallback, as Llama 2's, Mistral 7B's, Gemma's and Phi-3's: ids,
// texts and masks of Hugging Face tokenizers, llama.cpp's scores there and back. Fixtures are written by
// dev/make_fallback_fixture.py.
#pragma once

// fallback.json with fields replaced, as a file that is loaded. False: `error`.
static bool fallback_load(Tokenizer *t, const cJSON *change, const char *in_model, Error *error) {
  const TokText file = tok_fixture("fallback.json");
  cJSON *root = cJSON_Parse((const char *)file.bytes), *to = in_model ? cJSON_GetObjectItem(root, in_model) : root;
  const cJSON *x;
  cJSON_ArrayForEach(x, change) {
    cJSON_DeleteItemFromObjectCaseSensitive(to, x->string);
    cJSON_AddItemToObject(to, x->string, cJSON_Duplicate(x, true));
  }
  char *text = cJSON_PrintUnformatted(root);
  tok_write(cli_path("fallback.json"), text, strlen(text));
  free(text);
  free(file.bytes);
  cJSON_Delete(root);
  return tokenizer_load(t, cli_path("fallback.json"), error);
}
static cJSON *fallback_forms(const char *list, cJSON **root) {
  const TokText file = tok_fixture("fallback_forms.json");
  *root = cJSON_Parse((const char *)file.bytes);
  free(file.bytes);
  return cJSON_GetObjectItem(*root, list);
}
// What ids are decoded to: the bytes of each, without a space at the start where the tokenizer puts one there.
static TokText fallback_decoded(const Tokenizer *t, const int32_t *ids, int64_t count) {
  TokText all = {(uint8_t *)malloc(64 * (size_t)count + 1), 0};
  for (int64_t i = 0; i < count; i++) {
    int n;
    const uint8_t *p = tokenizer_token_bytes(t, ids[i], &n);
    const int blank = !i && t->strips && n && *p == ' ';
    memcpy(all.bytes + all.count, p + blank, (size_t)(n - blank));
    all.count += (size_t)(n - blank);
  }
  return all;
}
// The ids of a text are `want`'s; they are decoded to the text that tokenizers makes of them.
static void fallback_expect(const Tokenizer *t, TokText text, const cJSON *want, const char *name) {
  int32_t *ids = (int32_t *)malloc((tokenizer_ids_most(t, text.count) + 1) * sizeof *ids);
  const int64_t count = tokenizer_encode(t, text.bytes, text.count, ids);
  EXPECT(count == (int64_t)cJSON_GetObjectItem(want, "count")->valuedouble &&
         tok_fold_ids(ids, count) == fallback_hash(want, "ids"), "%s: %lld ids, others than tokenizers'", name,
         (long long)count);
  TokText decoded = fallback_decoded(t, ids, count);
  EXPECT(tok_fold_bytes(decoded) == fallback_hash(want, "decoded"), "%s: decoded to another text", name);
  free(decoded.bytes);
  free(ids);
}

TEST(fallback_ids,
     "the forms of Llama 2, Phi-3, Gemma and Mistral give tokenizers' ids of hostile texts, and texts; "
     "wherever a text may be cut, the ids of both parts are those of the whole; files are kept, hashes differ") {
  const TokText text = tok_fixture("fallback.txt"), hostile = tok_fixture("tokenizer_hostile.txt");
  cJSON *root, *x;
  const cJSON *forms = fallback_forms("forms", &root);
  Error error = {};
  uint64_t seen[8], cuts = 0;
  int count = 0;
  cJSON_ArrayForEach(x, forms) {
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(x, "name"));
    Tokenizer t;
    REQUIRE(fallback_load(&t, cJSON_GetObjectItem(x, "change"), NULL, &error), "%s: %s", name, error.text);
    fallback_expect(&t, text, cJSON_GetObjectItem(x, "text"), name);
    fallback_expect(&t, hostile, cJSON_GetObjectItem(x, "hostile"), name);
    const TokText file = tok_read(test_tmp(), "fallback.json");
    size_t bytes;
    char *again = tokenizer_text(&t, &bytes);
    EXPECT(bytes == file.count && !memcmp(again, file.bytes, bytes), "%s: written as another file", name);
    free(again);
    free(file.bytes);
    seen[count++] = tokenizer_hash(&t);
    for (int i = 0; i + 1 < count; i++) EXPECT(seen[i] != seen[count - 1], "%s has the hash of form %d", name, i);
    const size_t n = 3000, most = tokenizer_ids_most(&t, n) + 1;
    int32_t *ids = (int32_t *)malloc(2 * most * sizeof *ids), *parts = ids + most;
    const int64_t all = tokenizer_encode(&t, text.bytes, n, ids);
    for (size_t at = 1; (at = tokenizer_cut(&t, text.bytes, n, at)) < n; at++, cuts++) {
      const int64_t k = tokenizer_encode(&t, text.bytes, at, parts);
      const int64_t both = k + tokenizer_encode(&t, text.bytes + at, n - at, parts + k, true);
      EXPECT(both == all && !memcmp(ids, parts, (size_t)all * sizeof *ids), "%s: cut at %zu the ids differ", name, at);
    }
    const int64_t begins = tokenizer_begin(&t, (const uint8_t *)"", 0, ids);
    EXPECT(begins == 1 && ids[0] == 1, "%s: a text starts with %d", name, ids[0]);
    t.adds_bos = false;
    const bool one = tokenizer_begin(&t, (const uint8_t *)"", 0, ids) == 1;
    EXPECT(one && t.bytes[t.byte_start[ids[0]]] == '\n', "%s: without that with %d", name, ids[0]);
    free(ids);
    tokenizer_free(&t);
  }
  EXPECT(count == 6 && cuts > 200, "%d forms, %llu cuts", count, (unsigned long long)cuts);
  cJSON_Delete(root);
  free(text.bytes);
  free(hostile.bytes);
}

TEST(fallback_bytes,
     "any bytes come back, those that are no character too; a text that nothing cuts is one pre-token, in n log n "
     "steps") {
  enum { MOST = 1 << 17 };
  Tokenizer t;
  Error error = {};
  REQUIRE(fallback_load(&t, NULL, NULL, &error), "%s", error.text);
  static uint8_t text[MOST];
  static int32_t ids[2][2 * MOST];
  uint64_t seed = 3;
  for (uint8_t &x : text) x = (uint8_t)tok_random(&seed);
  int64_t n = tokenizer_encode(&t, text, 4096, ids[0]);
  const TokText back = fallback_decoded(&t, ids[0], n);
  EXPECT(back.count == 4096 && !memcmp(back.bytes, text, 4096), "random bytes are decoded to others");
  free(back.bytes);
  for (uint8_t &x : text) x = (uint8_t)("thean "[tok_random(&seed) % 5]);
  EXPECT(bpe_joined_end(&t, text, text + MOST) == text + MOST, "a text without spaces is cut");
  EXPECT(tokenizer_cut(&t, text, MOST, 1) == MOST, "it may be cut");
  for (int size = 1 << 9, bits = 9; size <= MOST; size *= 4, bits += 2) {
    int64_t steps;
    const size_t first = bpe_first_ids(&t, text, (size_t)size, ids[0]);
    const size_t left = bpe_merge_long(&t, ids[0], first, &steps), other = bpe_merge(&t, text, (size_t)size, ids[1]);
    EXPECT(first == (size_t)size && steps <= 3 * size * (2 * bits + 4), "%d characters: %lld steps", size,
           (long long)steps);
    EXPECT(left == other && !memcmp(ids[0], ids[1], left * sizeof **ids), "%d characters: other ids", size);
  }
  tokenizer_free(&t);
}

TEST(fallback_scores,
     "a GGUF with scores gives the ids of the tokenizer.json with the merges that they make, and what is exported "
     "comes back: with a space before a text and without, of tokens that share a score, with tokens of one's own") {
  const TokText text = tok_fixture("fallback.txt");
  char path[600];
  Error error = {};
  cJSON *root;
  const cJSON *forms = fallback_forms("forms", &root);
  Tokenizer t, u;
  REQUIRE(tokenizer_load_any(&u, "dev/fixtures/fallback.gguf", &error), "%s", error.text);
  EXPECT(u.adds_bos && u.bos_id == 1 && u.prefix == PREFIX_PREPEND && u.strips && u.added_count == 3, "not Llama 2's");
  fallback_expect(&u, text, cJSON_GetObjectItem(forms->child, "text"), "gguf");
  tokenizer_free(&u);
  for (int i : {0, 2, 5}) {                      // llama2, gemma, never
    const cJSON *form = cJSON_GetArrayItem(forms, i), *want = cJSON_GetObjectItem(form, "text");
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(form, "name"));
    REQUIRE(fallback_load(&t, cJSON_GetObjectItem(form, "change"), NULL, &error), "%s", error.text);
    EXPECT(gguf_pre_tokenizer(&t), "%s cannot be exported", name);
    gguf_write_tokenizer(&t, 3, name, path, sizeof path);
    REQUIRE(tokenizer_load_any(&u, path, &error), "%s: %s", name, error.text);
    if (i != 2) fallback_expect(&u, text, want, name);           // Gemma's token of two spaces is found first there
    EXPECT(u.vocab_size == t.vocab_size && u.added_count == t.added_count && u.adds_bos && !u.prefix == !t.prefix,
           "%s: %d tokens of %d come back", name, u.vocab_size, t.vocab_size);
    tokenizer_free(&t);
    tokenizer_free(&u);
  }
  REQUIRE(fallback_load(&t, NULL, NULL, &error), "%s", error.text);
  int two = 2;                                   // the second merge that makes a token
  while (two < t.merge_count && t.merges[two].result != t.merges[two - 1].result) two++;
  REQUIRE(two < t.merge_count && tokenizer_scores(&t, NULL), "no token has two merges");
  const BpeMerge first = t.merges[0];
  t.merges[0] = t.merges[two], t.merges[two] = first;            // another order than that of any scores
  EXPECT(!tokenizer_scores(&t, NULL), "merges that no scores make have scores");
  t.merges[two] = t.merges[0], t.merges[0] = first, t.merge_count -= 40;
  free(t.merge_slots);
  bpe_index_merges(&t);
  EXPECT(!tokenizer_scores(&t, NULL) && !gguf_pre_tokenizer(&t), "merges are missing, which llama.cpp would do");
  tokenizer_free(&t);
  cJSON_Delete(root);
  free(text.bytes);
}

TEST(fallback_chats,
     "conversations are encoded whole, with transformers' ids and masks, by templates whose turns start with no "
     "special token; the next prompt is the start of the conversation that follows") {
  cJSON *root, *x, *root2;
  const cJSON *talks = fallback_forms("chats", &root), *forms = fallback_forms("forms", &root2), *y;
  Error error = {};
  cJSON_ArrayForEach(x, talks) {
    const char *form = cJSON_GetStringValue(cJSON_GetObjectItem(x, "form"));
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(x, "template"));
    const char *line = cJSON_GetStringValue(cJSON_GetObjectItem(x, "line"));
    const cJSON *change = NULL, *ids = cJSON_GetObjectItem(x, "ids"), *trained = cJSON_GetObjectItem(x, "trained");
    cJSON_ArrayForEach(y, forms)
      if (!strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(y, "name")), form))
        change = cJSON_GetObjectItem(y, "change");
    Tokenizer t;
    REQUIRE(fallback_load(&t, change, NULL, &error), "%s", error.text);
    const ChatOptions o = {name, chat_date, "", false};
    Chat c = chat_open(&o, &t);
    for (int again = 0; again < 2; again++) {    // as lines of a file are, by an encoder that remembers
      BpeEncoder e;
      ChatTokens k = {};
      bpe_encoder_open(&e, &t);
      if (again) c.encoder = &e;
      REQUIRE(chat_line(&c, &k, (const uint8_t *)line, strlen(line)), "%s", k.fault.text);
      int64_t same = 0, masks = 0;
      for (const cJSON *a = ids->child, *b = trained->child; a && same < k.count; a = a->next, b = b->next, same++) {
        if (k.ids[same] != a->valueint) break;
        masks += k.trained[same] == b->valueint;
      }
      EXPECT(same == k.count && same == cJSON_GetArraySize(ids) && masks == same, "%s by %s: %lld ids of %d, %lld "
             "masks", form, name, (long long)same, cJSON_GetArraySize(ids), (long long)masks);
      if (again) {
        cJSON *all = cJSON_Parse(line), *messages = cJSON_GetObjectItem(all, "messages");
        ChatTokens next = {};
        cJSON_DeleteItemFromArray(messages, 3);
        REQUIRE(chat_next(&c, &next, messages), "%s", next.fault.text);
        int64_t at = 0;
        while (at < next.count && next.ids[at] == k.ids[at]) at++;
        EXPECT(at == next.count, "%s by %s: the prompt is another from token %lld on", form, name, (long long)at);
        free(next.ids);
        free(next.trained);
        cJSON_Delete(all);
      }
      free(k.ids);
      free(k.trained);
      bpe_encoder_close(&e);
    }
    EXPECT(chat_ends(&t, 2) && chat_end(&t) == 2 && !chat_ends(&t, 1), "</s> ends no text");
    int32_t got[2] = {1, t.byte_id[' ']};
    EXPECT(lent_text_strips(&t, got, 2, 1, ' ') && !lent_text_strips(&t, got, 2, 1, 'a'),
           "an answer keeps the space before it");
    got[0] = t.byte_id['a'];
    EXPECT(!lent_text_strips(&t, got, 2, 1, ' '), "a text that continues loses its space");
    tokenizer_free(&t);
  }
  cJSON_Delete(root);
  cJSON_Delete(root2);
}

TEST(fallback_files,
     "a text of many pre-tokens, as a file that is encoded in blocks and as a corpus in memory, has the ids of the "
     "whole; tokens of one's own are added") {
  enum { COPIES = 3 };
  const TokText text = tok_fixture("fallback.txt");
  Error error = {};
  Tokenizer t;
  Error e;
  REQUIRE(fallback_load(&t, NULL, NULL, &error), "%s", error.text);
  TokText long_text = {(uint8_t *)malloc(COPIES * text.count), 0};
  for (int i = 0; i < COPIES; i++, long_text.count += text.count)
    memcpy(long_text.bytes + long_text.count, text.bytes, text.count);
  cli_write(cli_path("long.txt"), (const char *)long_text.bytes, long_text.count);
  int32_t *want = (int32_t *)malloc((2 * long_text.count + 2) * sizeof *want);
  const int64_t n = tokenizer_begin(&t, long_text.bytes, long_text.count, want);
  const char *const file[] = {cli_path("long.txt")};
  EncodeOptions o = {};
  o.out = cli_path("encoded"), o.file = file, o.files = 1, o.data = o.val_data = "", o.column = "";
  o.tokenizer = cli_path("fallback.json");
  o.threads = 2, o.chat = ChatOptions{"auto", chat_date, "", false}, o.say = [](const char *) {};
  o.block_bytes = 30000;
  REQUIRE(encode_run(&o, &e), "%s", e.text);
  const TokText bin = tok_read(cli_path("encoded"), "train_000001.bin");
  const uint16_t *ids = (const uint16_t *)(bin.bytes + 1024);
  int64_t same = 0;
  while (same < n && same < (int64_t)(bin.count - 1024) / 2 && ids[same] == want[same]) same++;
  EXPECT(same == n && (int64_t)(bin.count - 1024) / 2 == n, "%lld of %lld ids in the file", (long long)same,
         (long long)n);
  free(bin.bytes);
  tok_write(cli_path("own.txt"), "<new>\n\xe2\x96\x81\n", 10);
  REQUIRE(tokenizer_add(&t, cli_path("own.txt"), &error) == false, "U+2581 is added: it has other bytes");
  tok_write(cli_path("own.txt"), "<new>\n", 6);
  REQUIRE(tokenizer_add(&t, cli_path("own.txt"), &error), "%s", error.text);
  const int64_t k = tokenizer_encode(&t, (const uint8_t *)"a<new>b", 7, want);
  EXPECT(k >= 3 && want[k - 2] == t.vocab_size - 1, "<new> is not found");
  tokenizer_free(&t);
  free(want);
  free(long_text.bytes);
  free(text.bytes);
}

TEST(fallback_rejections, "what means another tokenizer is rejected by its field; a damaged vocabulary and scores, "
     "too") {
  static const struct { const char *model, *change, *says; } cases[] = {
      {NULL, "{\"normalizer\":null}", "pre_tokenizer is none; supported: where byte_fallback"},
      {NULL, "{\"normalizer\":{\"type\":\"NFKC\"}}", "normalizer is {\"type\":\"NFKC\"}"},
      {NULL, "{\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"}}",
       "normalizer is {\"type\":\"Prepend"},
      {NULL, "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}}",
       "normalizer is"},
      {NULL, "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"first\","
             "\"split\":false}}", "pre_tokenizer is"},            // beside a normalizer that prepends
      {NULL, "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\","
             "\"prepend_scheme\":\"first\",\"split\":true}}", "pre_tokenizer is"},
      {NULL, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}", "pre_tokenizer is"},
      {NULL, "{\"decoder\":{\"type\":\"ByteLevel\"}}", "decoder is {\"type\":\"ByteLevel\"}"},
      {NULL, "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"normalized\":true}]}", "normalized must be false"},
      {NULL, "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"single_word\":true}]}", "single_word must be false"},
      {"model", "{\"ignore_merges\":true}", "ignore_merges must be false"},
      {"model", "{\"byte_fallback\":1}", "model.byte_fallback is 1"},
      {"model", "{\"byte_fallback\":false}", "normalizer is"},
      {"model", "{\"merges\":[[\"<0x0A>\",\"a\"]]}", "model.merges[0]"},
      {"model", "{\"vocab\":{\"<unk>\":0},\"merges\":[]}", "has no token <0x00>"}};
  Error error = {};
  Tokenizer t;
  for (const auto &c : cases) {
    cJSON *change = cJSON_Parse(c.change);
    REQUIRE(change, "%s", c.change);
    EXPECT(!fallback_load(&t, change, c.model, &error) && strstr(error.text, c.says), "%s: %s", c.change, error.text);
    cJSON_Delete(change);
  }
  TokText file = tok_fixture("fallback.gguf");
  static const struct { const char *from; uint32_t to; const char *says; } bits[] = {
      {"tokenizer.ggml.scores", 0x7fc00000, "score of nan"}};
  for (const auto &b : bits) {
    uint8_t *at = (uint8_t *)memmem(file.bytes, file.count, b.from, strlen(b.from));
    REQUIRE(at, "no %s", b.from);
    memcpy(at + strlen(b.from) + 16, &b.to, 4);
    tok_write(cli_path("x.gguf"), file.bytes, file.count);
    EXPECT(!tokenizer_load_any(&t, cli_path("x.gguf"), &error) && strstr(error.text, b.says), "%s", error.text);
  }
  free(file.bytes);
}
