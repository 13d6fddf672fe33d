// test_report.h: what the program prints: a start that fits 80 columns, a progress line that fits any terminal and
// follows its size, no output across it, readers that go away, bytes that a terminal would obey. Terminals are real
// pseudo terminals; the screen below computes what they show.
#include <sys/ioctl.h>
#include <poll.h>

// ---- a terminal -----------------------------------------------------------------------------------------------------
// `sh -c command` on its own terminal; its output is r's text. When the output contains `at`, the terminal becomes
// `columns_then` wide; when a row drawn for that width was seen, `key` is typed.
struct PtyRun { pid_t pid; char *text; size_t bytes; int code; bool typed; };
static void pty_run(PtyRun *r, int columns, const char *at, int columns_then, char key, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
static void pty_run(PtyRun *r, int columns, const char *at, int columns_then, char key, const char *fmt, ...) {
  static char command[16384];
  char slave[128];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(command, sizeof command, fmt, ap);
  va_end(ap);
  memset(r, 0, sizeof *r);
  r->text = (char *)calloc(1, 4 * CLI_TEXT_BYTES + 1);
  const int master = pty_open(columns, slave, sizeof slave);
  fflush(NULL);
  r->pid = fork();
  if (!r->pid) {
    setsid();
    const int fd = open(slave, O_RDWR);          // the first terminal a session opens is its own
    ioctl(fd, TIOCSCTTY, 0);
    for (int i = 0; i < 3; i++) dup2(fd, i);
    if (fd > 2) close(fd);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
  }
  const double start = now_ms();
  size_t resized = 0;
  while (r->bytes < 4 * CLI_TEXT_BYTES) {
    struct pollfd p = {master, POLLIN, 0};
    if (now_ms() - start > 2.5 * CLI_LIMIT_S * 1e3 * (TEST_SANITIZED ? 4 : 1)) {
      kill(-r->pid, SIGKILL);
      cli_find_process(-1, true);
      break;
    }
    if (poll(&p, 1, 100) <= 0) continue;
    const ssize_t n = read(master, r->text + r->bytes, 4 * CLI_TEXT_BYTES - r->bytes);
    if (n <= 0) break;                           // EIO: no process has the terminal open any more
    r->bytes += (size_t)n;
    if (at && !resized && strstr(r->text, at)) {
      const struct winsize w = {24, (unsigned short)columns_then, 0, 0};
      ioctl(master, TIOCSWINSZ, &w);
      resized = r->bytes;
    }
    // A row for the new width starts again at column 0 and is short.
    for (const char *c = resized ? strchr(r->text + resized, '\r') : NULL; c && key && !r->typed;
         c = strchr(c + 1, '\r')) {
      const char *end = strstr(c, "\033[K");
      if (!end || strncmp(c + 1, "step ", 5) || end - c > columns_then) continue;
      r->typed = write(master, &key, 1) == 1;
    }
  }
  int status = 0;
  waitpid(r->pid, &status, 0);
  close(master);
  r->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// ---- the progress line ----------------------------------------------------------------------------------------------

TEST(report_line_on_terminals,
     "on terminals of 200, 80, 60, 40, 20 columns no row continues in the next, and the last row is ended; the start "
     "folds at the terminal's width, between 40 and 80") {
  static Screen s;
  for (int columns : {200, 80, 60, 40, 20}) {
    PtyRun r;
    pty_run(&r, columns, NULL, 0, 0,
            "%s %s --max_steps 12 --eval_every -1 --save_every -1 --sample_tokens 0 --out %s", cli_ranks(0),
            cli_small(), cli_path("out"));
    EXPECT(r.code == 0, "%d columns: exit code %d:\n%.2000s", columns, r.code, r.text);
    for (const char *line = r.text; *line && strncmp(line, "[#", 2); line += strcspn(line, "\n") + 1) {
      const int wide = (int)strcspn(line, "\r\n");               // a word may be wider than any line
      const bool folds = !strncmp(line, "  ", 2) && wide > 12 && memchr(line + 12, ' ', (size_t)wide - 12);
      EXPECT(!folds || wide <= (columns < 40 ? 40 : columns < 80 ? columns : 80), "%d columns: the start has a line of "
             "%d: %.*s", columns, wide, wide, line);
    }
    const char *bars = r.text, *files = NULL;
    int drawn = 0;
    for (const char *c = r.text; (c = strstr(c, "\033[K")); c++) {
      const char *from = c;
      while (from > r.text && from[-1] != '\r') from--;
      EXPECT(c - from < columns, "%d columns: a row of %d: %.*s", columns, (int)(c - from), (int)(c - from), from);
      EXPECT(columns < 40 ||
                 (memmem(from, (size_t)(c - from), "loss ", 5) && memmem(from, (size_t)(c - from), "ETA ", 4)),
             "%d columns: no loss, no ETA: %.*s", columns, (int)(c - from), from);
      if (!drawn++) bars = from - 1;
      files = c + 3;
    }
    REQUIRE(drawn == 12 && files, "%d columns: %d rows drawn, must be 12:\n%.3000s", columns, drawn,
            r.text);
    screen_open(&s, columns);
    screen_put(&s, bars, (size_t)(files - bars));
    EXPECT(s.wraps == 0 && s.row == 0, "%d columns: the line took %d rows", columns, s.row + 1);
    EXPECT(!strncmp(files, "\r\nfiles: ", 9), "%d columns: the line is not ended before %.60s", columns, files);
    free(r.text);
  }
}

TEST(report_line_follows_a_resize_and_ends_at_ctrl_c,
     "the line follows a terminal that becomes 40 columns wide during training, alone and under mpirun; Ctrl-C there "
     "ends the line, prints its message on a separate row and leaves the cursor at the start of a row") {
  for (int ranks : {0, 2}) {
    PtyRun r;
    pty_run(&r, 100, "] step 3/", 40, 3, "exec %s %s --epochs 100000 --eval_every -1 --save_every -1 --out %s",
            cli_ranks(ranks), cli_small(), cli_path("out"));
    EXPECT(r.typed, "%d ranks: no row for 40 columns", ranks);
    EXPECT(ranks || r.code == EXIT_SAVED, "exit code %d", r.code);
    const char *said = strstr(r.text, "\nstopped by signal after step ");
    EXPECT(ranks || said, "%d ranks: no word on a row of its own:\n%.500s", ranks,
           r.text + (r.bytes > 500 ? r.bytes - 500 : 0));
    EXPECT(r.bytes && r.text[r.bytes - 1] == '\n', "%d ranks: the cursor is left behind '%.80s'", ranks,
           r.text + (r.bytes > 80 ? r.bytes - 80 : 0));
    free(r.text);
    cli_expect_nothing_left("after Ctrl-C");
  }
}

// ---- readers that go away -------------------------------------------------------------------------------------------
TEST(report_readers_may_go,
     "PROGRAM | head -1, | true, 2>&1 | head -1, alone and under mpirun: it trains to its end, exit code 0, whole "
     "metrics.jsonl, checkpoint and sample") {
  static const struct { int ranks; const char *pipe, *out; } rows[] = {
      {0, "| head -1", "out"}, {0, "2>&1 | true", "out"}, {2, "| head -1", "output_dir"}, // mpirun has --output-...
      {2, "2>&1 | head -3", "out"}, {2, "2>&1 | true", "out"}};
  for (const auto &row : rows) {
    CliRun r;
    CliMetrics m;
    CLI_RUN(&r,
            "rm -rf %s; { %s %s --epochs 4 --max_steps 40 --log_every 1 --eval_every 1000 --save_every 1000 --%s %s; "
            "echo $? >%s; } %s; cat %s",
            cli_path("out"), cli_ranks(row.ranks), cli_small(), row.out, cli_path("out"), cli_path("code"), row.pipe,
            cli_path("code"));
    const size_t n = strlen(r.text);
    EXPECT(n >= 2 && !strcmp(r.text + n - 2, "0\n"), "%d ranks %s: exit code %s", row.ranks, row.pipe, r.text);
    EXPECT(!strchr(row.pipe, 'h') || strstr(r.text, "train_gpt_fsdp " PROGRAM_VERSION), "%d ranks %s: %s", row.ranks,
           row.pipe, r.text);
    cli_metrics(&m, cli_path("out"));
    EXPECT(m.lines == 1 + 40 + 2 + 1 + 1 + 1, "%d ranks %s: %d records", row.ranks, row.pipe, m.lines);
    EXPECT(m.lines && !strcmp(cli_string(m.line[m.lines - 1], "reason"), "done"), "%d ranks %s: not done", row.ranks,
           row.pipe);
    EXPECT(!access(cli_path("out/ckpt/step_00000040/trainer.json"), F_OK) && !access(cli_path("out/sample.txt"), F_OK),
           "%d ranks %s: no checkpoint, no sample", row.ranks, row.pipe);
    cli_metrics_free(&m);
    cli_free(&r);
  }
}

TEST(report_mpirun_edits_are_kept, "mpirun --tag-output still tags the output, in a pipe") {
  CliRun r;
  CLI_RUN(
      &r,
      "mpirun --tag-output --oversubscribe --bind-to none -np 2 %s %s --max_steps 2 --eval_every -1 --save_every -1 "
      "--out %s | cat",
      cli_program(), cli_small(), cli_path("out"));
  cli_expect_done(&r, "--tag-output");
  EXPECT(cli_count(r.text, "[1,0]<stdout>:train_gpt_fsdp ") == 1, "it is not tagged:\n%.2000s", r.text);
  cli_free(&r);
}

// ---- bytes that a terminal would obey -------------------------------------------------------------------------------
TEST(report_text_is_escaped,
     "control bytes, C1 controls and invalid UTF-8 become \\xNN, everything else stays, cut anywhere between two "
     "pieces") {
  static const struct { const char *from, *to;
  } rows[] = {{"a\tb\nc", "a\tb\nc"},
              {"\033[31m", "\\x1b[31m"},
              {"\r\a\b\177", "\\x0d\\x07\\x08\\x7f"},
              {"\302\205\302\240", "\\xc2\\x85\302\240"},
              {"Za\305\274\303\263\305\202\304\207 \346\235\261 \360\237\245\220",
               "Za\305\274\303\263\305\202\304\207 \346\235\261 \360\237\245\220"},
              {"\377\200x\300\257", "\\xff\\x80x\\xc0\\xaf"},
              {"\355\240\200", "\\xed\\xa0\\x80"},
              {"\364\220\200\200", "\\xf4\\x90\\x80\\x80"},
              {"ab\346\235", "ab\\xe6\\x9d"},
              {"\340\237\277", "\\xe0\\x9f\\xbf"},
              {"\346x", "\\xe6x"}};
  for (const auto &row : rows) {
    const size_t n = strlen(row.from);
    for (size_t cut = 0; cut <= n; cut++) {
      char first[256], second[256], all[512];
      const size_t used = text_escape(first, sizeof first, (const uint8_t *)row.from, cut, true);
      text_escape(second, sizeof second, (const uint8_t *)row.from + used, n - used, false);
      snprintf(all, sizeof all, "%s%s", first, second);
      EXPECT(used <= cut && cut - used < 4 && !strcmp(all, row.to), "cut at %zu: '%s', must be '%s'", cut, all, row.to);
    }
  }
}

TEST(report_samples_are_escaped_on_a_terminal,
     "a prompt and a path with control bytes: visible text on a terminal, raw in sample.txt and in a pipe") {
  static const char prompt[] = "a\033[31mb\377\302\205\303\251z";
  char out[600], quoted[700];
  snprintf(out, sizeof out, "%s", cli_path("o\302\205ut"));
  snprintf(quoted, sizeof quoted, "'%s'", out);
  const char *tail = "--max_steps 1 --eval_every -1 --save_every -1 --temperature 0 --sample_tokens 8";
  CliRun p;
  PtyRun r;
  CLI_RUN(&p, "%s %s %s --out %s --prompt '%s' | cat", cli_ranks(0), cli_small(), tail, quoted, prompt);
  cli_expect_done(&p, "in a pipe");
  EXPECT(strstr(p.text, prompt), "the prompt in a pipe is not raw");
  pty_run(&r, 80, NULL, 0, 0, "%s %s %s --out %s --prompt '%s'", cli_ranks(0), cli_small(), tail, quoted, prompt);
  EXPECT(r.code == 0 && strstr(r.text, "a\\x1b[31mb\\xff\\xc2\\x85\303\251z"),
         "exit code %d, the prompt is not visible:\n%.3000s", r.code, r.text);
  EXPECT(strstr(r.text, "metrics.jsonl is of an earlier run") && strstr(r.text, "/o\\xc2\\x85ut/"),
         "no escaped path:\n%.3000s", r.text);
  for (const char *c = r.text; (c = strchr(c, '\033')); c++)
    EXPECT(!strncmp(c, "\033[K", 3), "an escape reached the terminal: %.20s", c + 1);
  char path[700], text[4096] = "";
  snprintf(path, sizeof path, "%s/sample.txt", out);
  FILE *f = fopen(path, "rb");
  REQUIRE(f, "no sample.txt");
  EXPECT(fread(text, 1, sizeof text - 1, f) > sizeof prompt && !strncmp(text, prompt, strlen(prompt)),
         "sample.txt is not raw");
  EXPECT(strstr(p.text, text), "sample.txt is not what a pipe gets");
  fclose(f);
  free(r.text);
  cli_free(&p);
}

// ---- the start and its record ---------------------------------------------------------------------------------------
TEST(
    report_start_is_short,
    "the start of several modes: at most 16 lines of at most 80 columns, each with its name, not counting three for "
    "cores on machines where it matters which; the uses of memory add up to the total; the size of a checkpoint is its "
    "files'") {
  static const struct { int ranks; const char *options;
  } rows[] = {{0, ""},
              {2, ""},
              {2, "--strategy ddp --param_dtype bf16 --save_async"},
              {4, "--strategy hybrid_shard --mesh 2x2 --shm off --wrap model"},
              {2, "--fp8 gather --n_embd 32 --param_dtype bf16 --grad_accum 2 --keep_best --save_every 1"}};
  for (const auto &row : rows) {
    CliRun r;
    CLI_RUN(&r, "%s %s --max_steps 1 --out %s %s", cli_ranks(row.ranks), cli_small(), cli_path("out"), row.options);
    cli_expect_done(&r, row.options);
    int lines = 0, of_cores = 0;
    bool cores = false;
    for (const char *line = r.text; *line && strncmp(line, "[#", 2); line += strcspn(line, "\n") + 1) {
      if (!strncmp(line, "warning: ", 9)) continue;
      cores = !strncmp(line, "  cores  ", 9) || (cores && !strncmp(line, "     ", 5));
      (cores ? of_cores : lines)++;
      EXPECT(strcspn(line, "\n") <= 80, "%s: %d columns: %.*s", row.options, (int)strcspn(line, "\n"),
             (int)strcspn(line, "\n"), line);
    }
    EXPECT(lines >= 9 && lines <= 16 && of_cores <= 3, "%s: %d lines:\n%.3000s", row.options, lines, r.text);
    for (const char *name : {"train_gpt_fsdp " PROGRAM_VERSION, "  model  ", "  data  ", "  training  ", "  ranks  ",
                             "  sharding  ", "  memory  ", "  saves  ", "  files  "})
      EXPECT(cli_count(r.text, name) == 1, "%s: %d lines of '%s':\n%.3000s", row.options, cli_count(r.text, name), name,
             r.text);
    EXPECT(cli_count(r.text, "  moved  ") == (row.ranks > 0), "%s: what moves:\n%.3000s", row.options, r.text);
    for (const char *part : {"configuration:", "memory plan", "units:", "traffic of a step"})
      EXPECT(!strstr(r.text, part), "%s: it says '%s' without --verbose", row.options, part);
    const char *memory = strstr(r.text, "\n  memory ") + 11;
    const double total = atof(memory);
    double sum = 0;
    int uses = 0;
    for (const char *use : memory_use_words) {
      const char *at = strstr(memory, use);
      if (!at || at > strstr(memory, "\n  files ")) continue;
      sum += atof(at + strlen(use) + strspn(at + strlen(use), " \n"));
      uses++;
    }
    EXPECT(uses >= 4 && fabs(sum - total) <= 0.05 * (uses + 1),
           "%s: uses add up to %.1f MiB, the total is %.1f:\n%.2000s", row.options, sum, total, r.text);
    cli_free(&r);
  }
}

TEST(report_earlier_runs_are_counted,
     "an OUT with spaces and quotes in its name, after three runs: one warning counts the earlier runs, and its rm "
     "line, run by a shell, removes just those") {
  CliRun r;
  char out[600], quoted[700], line[4096];
  snprintf(out, sizeof out, "%s", cli_path("it's $HOME"));
  snprintf(quoted, sizeof quoted, "\"%s/it's \\$HOME\"", test_tmp());
  for (int i = 0; i < 4; i++) {
    CLI_RUN(&r,
            "%s %s --max_steps 1 --eval_every -1 --sample_tokens 0 --out %s; echo mine >%s/ckpt.mine; echo mine "
            ">%s/ckpt.1x",
            cli_ranks(0), cli_small(), quoted, quoted, quoted);
    EXPECT(cli_count(r.text, "of earlier runs, ") == (i > 0), "run %d: warnings:\n%.3000s", i + 1, r.text);
    if (i < 3) cli_free(&r);
  }
  const char *warning = strstr(r.text, "warning: 5 files or directories of earlier runs, "),
             *rm = warning ? strstr(warning, "to remove: ") : NULL;
  REQUIRE(rm, "run 4: no warning of metrics.jsonl.1 to .3, ckpt.1 and .2:\n%.3000s", r.text);
  snprintf(line, sizeof line, "%.*s", (int)strcspn(rm + 11, "\n"), rm + 11);
  cli_free(&r);
  CLI_RUN(&r, "cd / && %s && cd %s && ls -d ckpt* metrics*", line, quoted);
  EXPECT(r.code == 0 && !strcmp(r.text, "ckpt\nckpt.1x\nckpt.3\nckpt.mine\nmetrics.jsonl\n"), "after %s there are:\n%s",
         line, r.text);
  cli_free(&r);
}

TEST(report_earlier_runs_in_use_are_kept,
     "what a run reads its weights from is not among what the warning of earlier runs says to remove") {
  CliRun r;
  const char *run = "--max_steps 1 --eval_every -1 --sample_tokens 0 --out";
  CLI_RUN(&r, "cd %s && %s %s %s out && mv out/ckpt out/ckpt.10 && mkdir out/ckpt.1 out/ckpt.2 && %s %s %s out "
          "--init_from out/ckpt.10", test_tmp(), cli_program(), cli_small(), run, cli_program(), cli_small(), run);
  cli_expect_done(&r, "--init_from OUT/ckpt.10");
  const char *rm = strstr(r.text, "; to remove: rm -r "), *others = " out/metrics.jsonl.1 out/ckpt.1 out/ckpt.2\n";
  EXPECT(rm && !strncmp(rm + 18, others, strlen(others)), "no warning of the others alone:\n%.3000s", r.text);
  cli_free(&r);
}
