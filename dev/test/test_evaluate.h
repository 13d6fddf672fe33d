// test_evaluate.h: --eval (trainer/evaluate.h) beside lm-evaluation-harness (dev/make_eval_fixture.py makes
// dev/fixtures/eval_*), bits per byte, and conversations (trainer/interactive.h), through a pseudo terminal and a pipe.

static const char *const evaluate_tasks[] = {"hellaswag", "choices", "lambada", "wikitext"};
TEST_MPI(eval_files_equal_the_harness, 1,
         "hellaswag, multiple choice, LAMBADA and wikitext: the log-probability of every request is within 1e-5 of "
         "lm-evaluation-harness's, choices and exact words are its, perplexities and bits per byte within 1e-5") {
  static FamilyRun x;
  int64_t bytes;
  Error error = {};
  char *text = file_get("dev/fixtures/eval_expected.json", 1 << 20, &bytes);
  cJSON *expected = cJSON_Parse(text);
  family_open(&x, "dev/fixtures/eval_model", cpu_tables[cpu_best_table()].ops, "--test_batch_size 3", 40);
  Error e;
  Corpus c;
  CorpusOptions o = {};
  o.tokenizer = "dev/fixtures/eval_model", o.vocab_size = (int)x.o.vocab_size;
  REQUIRE(corpus_load_tokenizer(&c, o, &e), "%s", e.text);
  for (const char *task : evaluate_tasks) {
    char path[256];
    EvalFile f;
    EvalNumber number[EVAL_NUMBERS];
    snprintf(path, sizeof path, "dev/fixtures/eval_%s.jsonl", task);
    REQUIRE(eval_read(&f, path, &c.tokenizer, x.trainer.model.T, false, &error), "%s", error.text);
    trainer_score(&x.trainer, &f);
    eval_numbers(&f, number);
    const cJSON *want = cJSON_GetObjectItem(expected, task), *sum;
    const cJSON *numbers = cJSON_GetObjectItem(want, "numbers"), *sums = cJSON_GetObjectItem(want, "sums");
    EXPECT(!strcmp(eval_tasks[f.task].name, task), "%s is taken for %s", path, eval_tasks[f.task].name);
    const bool pages = f.task == EVAL_WIKITEXT;
    REQUIRE(cJSON_GetArraySize(sums) == (pages ? f.docs : f.requests), "%s: %lld requests, the harness has %d", task,
            (long long)f.requests, cJSON_GetArraySize(sums));
    int64_t i = 0;
    cJSON_ArrayForEach(sum, sums) {
      double got = f.request[i].sum;
      if (pages) got = 0;
      for (int64_t k = 0; pages && k < f.doc[i].requests; k++) got += f.request[f.doc[i].first + k].sum;
      EXPECT(fabs(got - sum->valuedouble) <= 1e-5 * fabs(sum->valuedouble), "%s: request %lld has %.9g, the harness's "
             "%.9g", task, (long long)i, got, sum->valuedouble);
      i++;
    }
    for (const EvalNumber &n : number) {
      const cJSON *x_ = n.name ? cJSON_GetObjectItem(numbers, n.name) : NULL;
      const bool counted = n.name && !strncmp(n.name, "acc", 3);
      EXPECT(!n.name || (x_ && fabs(n.x / x_->valuedouble - 1) <= (counted ? 1e-12 : 1e-5)) ||
             (x_ && n.x == x_->valuedouble), "%s: %s is %.9g, the harness's %.9g", task, n.name, n.x,
             x_ ? x_->valuedouble : NAN);
    }
    eval_free(&f);
  }
  corpus_free(&c);
  family_close(&x);
  cJSON_Delete(expected);
  free(text);
}
// The lines of kind "eval_file" without their seconds. malloc'ed.
static inline char *evaluate_lines(const char *out) {
  char *text = generate_file(out, "metrics.jsonl"), *all = (char *)calloc(1, strlen(text) + 1), *save = NULL;
  for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    char *seconds = strstr(line, ",\"seconds\"");
    if (!strstr(line, "\"kind\":\"eval_file\"") || !seconds) continue;
    *seconds = 0;
    strcat(all, line);
  }
  free(text);
  return all;
}
TEST(eval_files_on_any_ranks,
     "--eval: 1 to 4 ranks, in batches of any size, write the same digits; llm.c's style is other numbers and says "
     "so; a line that no task has is rejected by number") {
  // On a GPU cuBLASLt's algorithm, and with it the last digits, depend on the batch.
  static const char model[] = "--device cpu --init_from dev/fixtures/eval_model --seq_len 40 --threads 1 --cache= "
                              "--eval dev/fixtures/eval_hellaswag.jsonl,dev/fixtures/eval_lambada.jsonl,dev/fixtures/"
                              "eval_wikitext.jsonl,dev/fixtures/eval_choices.jsonl";
  char *first = NULL;
  static const struct { int ranks, texts; } cases[] = {{0, 4}, {0, 1}, {2, 3}, {3, 2}, {4, 5}};
  CliRun r;
  for (const auto &c : cases) {
    char out[600];
    snprintf(out, sizeof out, "%s/out%d-%d", test_tmp(), c.ranks, c.texts);
    CLI_RUN(&r, "%s %s --test_batch_size %d --out %s", cli_ranks(c.ranks), model, c.texts, out);
    cli_expect_done(&r, "--eval");
    char *lines = evaluate_lines(out);
    if (!first) first = strdup(lines);
    EXPECT(!strcmp(lines, first) && strlen(first) > 400, "%d ranks: '%s' is not '%s'", c.ranks, lines, first);
    free(lines);
    cli_free(&r);
  }
  CLI_RUN(&r, "%s %s --eval_style llmc --out %s", cli_ranks(0), model, cli_path("out"));
  char *lines = evaluate_lines(cli_path("out"));
  EXPECT(strstr(r.text, "hellaswag (llm.c's style)") && strcmp(lines, first), "llm.c's style:\n%s", r.text);
  cli_free(&r);
  static const struct { const char *lines, *says; } bad[] = {
      {"{\"text\":\"a b\"}\n{\"page\":\"a b\"}\n", "line 2 of %s is not what a task needs: see docs/generate.md"},
      {"{\"query\":\"a\",\"choices\":[\"b\"],\"gold\":\"\"}\n", "line 1 of %s is not what a task needs"},
      {"{\"query\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":0.5}\n", "line 1 of %s is not what a task needs"},
      {"{\"text\":\"a b\\u0000c\"}\n", "line 1 of %s: it has a NUL character"}};
  for (const auto &b : bad) {
    char says[900];
    cli_write(cli_path("bad.jsonl"), b.lines, strlen(b.lines));
    snprintf(says, sizeof says, b.says, cli_path("bad.jsonl"));
    CLI_RUN(&r, "%s --init_from dev/fixtures/eval_model --eval %s --threads 1 --cache= --out %s",
            cli_ranks(&b == bad ? 2 : 0), cli_path("bad.jsonl"), cli_path("out"));
    EXPECT(r.code == 2 && strstr(r.text, says), "exit code %d:\n%s", r.code, r.text);
    cli_free(&r);
  }
  free(lines);
  free(first);
}

TEST(eval_bits_per_byte,
     "validation and test of a run on text: bits per byte are the nats of all targets over the bytes of the file") {
  CliRun r;
  CliMetrics m;
  int seen = 0;
  CLI_RUN(&r, "%s %s --max_steps 2 --sample_tokens 0 --save_every -1 --out %s", cli_ranks(2), cli_small(),
          cli_path("out"));
  cli_expect_done(&r, "training");
  cli_metrics(&m, cli_path("out"));
  for (int i = 0; i < m.lines; i++) {
    if (!cli_is_kind(m.line[i], "eval")) continue;
    const auto number = [&](const char *name) { return cJSON_GetNumberValue(cJSON_GetObjectItem(m.line[i], name)); };
    char path[700];
    struct stat st = {};
    snprintf(path, sizeof path, "%s/text/%s.txt", test_tmp(), cli_string(m.line[i], "split"));
    EXPECT(!stat(path, &st) && st.st_size > 0, "no %s", path);
    const double want = number("loss") * number("tokens") / M_LN2 / (double)st.st_size, got = number("bits_per_byte");
    EXPECT(fabs(got / want - 1) < 1e-12, "%s: %.17g bits per byte, must be %.17g", path, got, want);
    seen++;
  }
  EXPECT(seen == 2 && strstr(r.text, " bits per byte, accuracy "), "%d evaluations:\n%s", seen, r.text);
  cli_metrics_free(&m);
  cli_free(&r);
}

// ---- conversations
#define TALK_MODEL "--init_from dev/fixtures/eval_model --seq_len 40 --threads 1 --cache= --temperature 0 " \
                   "--sample_tokens 8 "
// The "text" of each line of a file of JSON; how many.
static inline int talk_texts(char *said[4], const char *lines) {
  int count = 0;
  char *copy = strdup(lines), *save = NULL;
  for (char *at = strtok_r(copy, "\n", &save); at && count < 4; at = strtok_r(NULL, "\n", &save)) {
    cJSON *json = cJSON_Parse(at);
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(json, "text"));
    EXPECT(text, "no \"text\": %s", at);
    said[count++] = strdup(text ? text : "");
    cJSON_Delete(json);
  }
  free(copy);
  return count;
}
TEST(interactive_on_a_pipe,
     "--interactive on a pipe: a line in, an object of --json out, and nothing else on stdout; by a chat template the "
     "answer is that of --prompts with the rendered text, the next turn's that of the whole conversation; /reset "
     "forgets it, /save writes it as it is trained on; the same on 2 ranks") {
  char *lines[2] = {}, *said[4], *want[4];
  CliRun r;
  for (int i = 0; i < 2; i++) {
    CLI_RUN(&r, "printf 'the sea\\n/save %s\\nthe wind\\n/reset\\nthe sea\\n' | %s --interactive --json "
            "--chat_template chatml " TALK_MODEL "--out %s 2>/dev/null >%s", cli_path("saved.jsonl"),
            cli_ranks(2 * i), cli_path("out"), cli_path("answers"));
    EXPECT(r.code == 0, "exit code %d", r.code);
    lines[i] = generate_file(test_tmp(), "answers");
    cli_free(&r);
  }
  REQUIRE(talk_texts(said, lines[0]) == 3 && talk_texts(want, lines[1]) == 3, "not 3 answers: %s", lines[0]);
  for (int i = 0; i < 3; i++) EXPECT(!strcmp(said[i], want[i]), "2 ranks: '%s', 1 rank: '%s'", want[i], said[i]);
  cJSON *timed = cJSON_Parse(lines[0]);
  const double first_s = cJSON_GetNumberValue(cJSON_GetObjectItem(timed, "first_s"));
  const double seconds = cJSON_GetNumberValue(cJSON_GetObjectItem(timed, "seconds"));
  EXPECT(first_s > 0 && seconds > first_s, "no times: %s", lines[0]);
  cJSON_Delete(timed);
  EXPECT(!strcmp(said[0], said[2]) && strcmp(said[0], said[1]), "'%s', then '%s', after /reset '%s'", said[0], said[1],
         said[2]);
  FILE *f = fopen(cli_path("prompts.jsonl"), "w");
  static const char turn[] = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n";
  char first[256], second[1024];
  snprintf(first, sizeof first, turn, "the sea");
  snprintf(second, sizeof second, turn, "the wind");
  fprintf(f, "{\"prompt\":");
  json_text(f, first);
  fprintf(f, "}\n{\"prompt\":\"");
  json_chars(f, first, strlen(first), 0);
  json_chars(f, said[0], strlen(said[0]), 0);
  json_chars(f, "<|im_end|>\n", 11, 0);
  json_chars(f, second, strlen(second), 0);
  fprintf(f, "\"}\n");
  fclose(f);
  CLI_RUN(&r, "%s --sample_only " TALK_MODEL "--prompts %s --out %s", cli_ranks(0), cli_path("prompts.jsonl"),
          cli_path("many"));
  char *many = generate_file(cli_path("many"), "samples.jsonl"), *saved = generate_file(test_tmp(), "saved.jsonl");
  REQUIRE(talk_texts(want, many) == 2, "%s\n%s", many, r.text);
  for (int i = 0; i < 2; i++) EXPECT(!strcmp(said[i], want[i]), "turn %d: '%s', not '%s'", i, said[i], want[i]);
  cJSON *json = cJSON_Parse(saved);
  EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(json, "messages")) == 2, "/save wrote '%s'", saved);
  cJSON_Delete(json);
  cli_free(&r);
  free(many);
  free(saved);
}

TEST(interactive_takes_any_line,
     "--interactive on a pipe: stdout has answers alone even if the run starts with a warning; a line with a zero byte "
     "is read whole; /save before anything was said writes no file; a file of --config cannot ask for it") {
  CliRun r;
  char *said[4];
  CLI_RUN(&r, "printf '/save %s\nthe\\000sea\nthe\357\277\275sea\n' | %s --interactive --json --resume " TALK_MODEL
          "--out %s 2>%s >%s && grep 'warning: --resume auto' %s && grep 'a zero byte' %s && [ ! -e %s ]",
          cli_path("none.jsonl"), cli_program(), cli_path("out"), cli_path("errors"), cli_path("answers"),
          cli_path("errors"), cli_path("errors"), cli_path("none.jsonl"));
  cli_expect_done(&r, "on a pipe");
  cli_free(&r);
  char *lines = generate_file(test_tmp(), "answers"), *copy = strdup(lines);
  REQUIRE(lines[0] == '{' && talk_texts(said, lines) == 2, "not 2 answers alone: %s", copy);
  EXPECT(!strcmp(said[0], said[1]) && strstr(copy, "the\xef\xbf\xbdsea"), "%s", copy);
  free(lines);
  free(copy);
  char ask[600];
  cli_write(cli_path("talk.cfg"), "interactive = on\n", 17);
  snprintf(ask, sizeof ask, "--config %s", cli_path("talk.cfg"));
  const CliRejection in_file = {0, ask, 2, "--interactive belongs on the command line, not into the file of --config"};
  cli_expect_rejections(&in_file, 1);
}

// Reads what a terminal shows until `what` is in it after `from`, NULL: 40 bytes are; returns where that ends, 0: it
// never comes.
static inline size_t talk_wait(int master, char *text, size_t *bytes, size_t from, const char *what) {
  for (double start = now_ms(); now_ms() - start < CLI_LIMIT_S * 1e3;) {
    const char *at = what ? strstr(text + from, what) : *bytes >= from + 40 ? text + from + 40 : NULL;
    if (at) return (size_t)(at - text) + (what ? strlen(what) : 0);
    struct pollfd p = {master, POLLIN, 0};
    if (poll(&p, 1, 100) <= 0 || *bytes > CLI_TEXT_BYTES - 4096) continue;
    const ssize_t n = read(master, text + *bytes, 4096);
    if (n <= 0) return 0;
    text[*bytes += (size_t)n] = 0;
  }
  return 0;
}
TEST(interactive_on_a_terminal,
     "--interactive on a pseudo terminal: text appears before it is complete, Ctrl-C ends the text and not the "
     "program, Ctrl-C at the prompt starts it again, a command is no turn, Ctrl-D ends the program with exit code 0") {
  char slave[128], *text = (char *)calloc(1, CLI_TEXT_BYTES + 1);
  size_t bytes = 0, at;
  const int master = pty_open(100, slave, sizeof slave);
  char command[1024];
  snprintf(command, sizeof command, "exec %s --interactive --init_from dev/fixtures/eval_model --seq_len 40 "
           "--threads 1 --cache= --temperature 0 --sample_tokens 1000000 --out %s", cli_program(), cli_path("out"));
  fflush(NULL);
  const pid_t pid = fork();
  if (!pid) {
    setsid();
    const int fd = open(slave, O_RDWR);
    ioctl(fd, TIOCSCTTY, 0);
    for (int i = 0; i < 3; i++) dup2(fd, i);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
  }
  const auto type = [&](const char *keys) { return write(master, keys, strlen(keys)) == (ssize_t)strlen(keys); };
  REQUIRE((at = talk_wait(master, text, &bytes, 0, "each line is continued by itself")) &&
          (at = talk_wait(master, text, &bytes, at, "> ")), "no prompt:\n%s", text);
  EXPECT(type("\x03") && (at = talk_wait(master, text, &bytes, at, "\n> ")), "Ctrl-C at the prompt:\n%s", text);
  EXPECT(type("the sea and\n") && (at = talk_wait(master, text, &bytes, at, "the sea and\r\n")), "no echo:\n%s", text);
  EXPECT(talk_wait(master, text, &bytes, at, NULL), "no text:\n%s", text);       // it continues for a million tokens
  EXPECT(type("\x03") && (at = talk_wait(master, text, &bytes, at, "\n> ")), "Ctrl-C in a text:\n%.3000s", text);
  EXPECT(type("/temperature 0\n") && (at = talk_wait(master, text, &bytes, at, "\n> ")), "a command:\n%.3000s", text);
  EXPECT(type("\x04"), "Ctrl-D");
  talk_wait(master, text, &bytes, at, "\x01");   // to the end
  int status = 0;
  EXPECT(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status), "status %d:\n%.3000s", status,
         text);
  close(master);
  free(text);
}
