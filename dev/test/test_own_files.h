// test_own_files.h: what others have put where the program reads or writes: other weights under the same path on one
// host, links and pipes in OUT, files in the directory of --encode; and results that cannot be written. Helpers are
// those of cli_helpers.h.

// The start of a command in which the second of two ranks runs in `other`, so that relative paths lead there.
static inline const char *own_two_places(const char *options, const char *other) {
  static char text[4 * PATH_MAX];
  const char *mpirun = getenv("MPIRUN");
  snprintf(text, sizeof text, "cd %s && %s --oversubscribe --bind-to none -np 1 %s %s : -np 1 --wdir %s/%s %s %s",
           test_tmp(), mpirun && *mpirun ? mpirun : "mpirun", cli_program(), options, test_tmp(), other, cli_program(),
           options);
  return text;
}
// Changes `n` bytes of a file at `at`; at < 0: adds them at its end.
static inline void own_damage(const char *path, int64_t at, int n) {
  static const char changed[64] = {1, 2, 3};
  const int fd = open(path, O_WRONLY);
  struct stat st = {};
  const bool changes = fd >= 0 && !fstat(fd, &st) && pwrite(fd, changed, (size_t)n, at < 0 ? st.st_size : at) == n;
  EXPECT(changes, "cannot change %s", path);
  if (fd >= 0) close(fd);
}
TEST(ranks_read_the_same_weights,
     "--init_from and --lora_from of which one rank sees another file under the same path, with another header, one "
     "other byte in the middle, or another size: one line with the path, no rank left; equal copies train") {
  static const struct { const char *what, *file; int64_t at; int bytes; bool rejected; } table[] = {
      {"equal copies", "model/model.safetensors", 0, 0, false},
      {"a byte of a tensor", "model/model.safetensors", 30001, 1, true},
      {"its header", "model/model.safetensors", 40, 1, true},
      {"its size", "model/model.safetensors", -1, 4, true},
      {"a byte of an adapter", "adapter/adapter_model.safetensors", 1501, 1, true}};
  CliRun r;
  char options[1024];
  test_mpirun_patience(0);
  snprintf(options, sizeof options, "--init_from model --dropout 0 --lora_from adapter --data generated --max_steps 1 "
           "--threads 1 --sample_tokens 0 --cache= --seq_len 8 --batch_size 2 --out %s", cli_path("out"));
  CLI_RUN(&r, "cp -r dev/fixtures/hf_untied %s && cp -r dev/fixtures/lora_gpt2 %s", cli_path("model"),
          cli_path("adapter"));
  cli_free(&r);
  for (const auto &k : table) {
    char path[600], line[700];
    CLI_RUN(&r, "rm -rf %s; mkdir %s && cp -r %s %s %s", cli_path("other"), cli_path("other"), cli_path("model"),
            cli_path("adapter"), cli_path("other"));
    cli_free(&r);
    snprintf(path, sizeof path, "%s/%s", cli_path("other"), k.file);
    if (k.bytes) own_damage(path, k.at, k.bytes);
    CLI_RUN(&r, "%s", own_two_places(options, "other"));
    snprintf(line, sizeof line, "%s here is not the file that rank 0 reads under this path: its size, its header or "
             "its tensors differ; copy it again", k.file);
    if (k.rejected) cli_expect_rejection(&r, k.what, EXIT_MISSING, line);
    else cli_expect_done(&r, k.what);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the rejections");
}

// TEST_TMP/w: weights.
static inline void own_weights() {
  CliRun r;
  CLI_RUN(&r, "%s %s --max_steps 1 --sample_tokens 0 --save_model --out %s", cli_ranks(0), cli_small(), cli_path("w"));
  cli_expect_done(&r, "weights");
  cli_free(&r);
}
TEST(own_files_are_no_links,
     "where a link or a named pipe has the name of a file that a run writes in place, the startup log shows so: the "
     "target keeps its bytes and nothing hangs; the same of /save and --trace") {
  static const struct { const char *name, *options; } table[] = {
      {"sample.txt", "--max_steps 1"}, {"metrics.jsonl", "--max_steps 1"},
      {"metrics.jsonl", "--init_from @/w --sample_only"},
      {"samples.jsonl", "--init_from @/w --sample_only --prompts @/p"}};
  CliRun r;
  own_weights();
  cli_write(cli_path("p"), "a\nb\n", 4);
  cli_write(cli_path("theirs"), "theirs\n", 7);
  for (const auto &k : table)
    for (const char *how : {"ln -s @/theirs", "mkfifo"}) {
      char line[900];
      const bool link = *how == 'l';
      snprintf(line, sizeof line, "%s/%s is a %s, and a run writes a file there: remove it, or name another directory "
               "by --out", cli_path("out"), k.name, link ? "symbolic link" : "named pipe");
      CLI_RUN(&r, "rm -rf %s; mkdir -p %s/ckpt && %s %s/%s && exec %s %s --out %s %s", cli_path("out"), cli_path("out"),
              cli_expand(how), cli_path("out"), k.name, cli_ranks(0), cli_small(), cli_path("out"),
              cli_expand(k.options));
      cli_expect_rejection(&r, k.name, 2, line);
      cli_free(&r);
    }
  CLI_RUN(&r, "rm -rf %s; mkdir %s && mkfifo %s/options.txt && exec timeout 20 %s %s --max_steps 1 --sample_tokens 0 "
          "--out %s", cli_path("out"), cli_path("out"), cli_path("out"), cli_ranks(0), cli_small(), cli_path("out"));
  cli_expect_done(&r, "a pipe where a file of the run is replaced");
  cli_free(&r);
  CLI_RUN(&r, "ln -s %s %s", cli_path("theirs"), cli_path("link"));
  cli_free(&r);
  FILE *f = file_own(cli_path("link"), true);
  EXPECT(!f && !strcmp(file_own_fault(cli_path("link")), "it is a symbolic link"), "a link was opened");
  CLI_RUN(&r, "rm -rf %s; printf 'a\\n/save %s\\n/save %s\\n/save %s\\n' | %s %s --interactive --init_from %s "
          "--sample_only --out %s", cli_path("out"), cli_path("theirs"), cli_path("link"), cli_path("saved"),
          cli_ranks(0), cli_small(), cli_path("w"), cli_path("out"));
  EXPECT(r.code == 0 && strstr(r.text, "theirs is there, and no conversations: name another file") &&
             strstr(r.text, "messages in "), "exit code %d:\n%.3000s", r.code, r.text);
  cli_free(&r);
  int64_t bytes;
  char *theirs = file_get(cli_path("theirs"), 100, &bytes), *saved = file_get(cli_path("saved"), 4096, &bytes);
  EXPECT(theirs && !strcmp(theirs, "theirs\n"), "another's file is now '%s'", theirs ? theirs : "");
  EXPECT(saved && !strncmp(saved, "{\"messages\":[", 13), "what /save wrote is '%s'", saved ? saved : "");
  free(theirs);
  free(saved);
}

TEST(own_outputs_are_apart,
     "of one run no output takes the place of another, by whatever path it is named: --export_hf among checkpoints or "
     "over --save_model's file, --trace over a file of OUT") {
  static const char *const table[][2] = {
      {"--export_hf @/out//./ckpt/step_00000001", "--export_hf ..."},
      {"--export_hf @/out --save_model", "--save_model and --export_hf ..."},
      {"--trace @/out/../out/options.txt --trace_steps 1:1", "--trace ..."}};
  CliRun r;
  for (const auto &row : table) {
    CLI_RUN(&r, "mkdir -p %s && exec %s %s --max_steps 1 --out %s %s", cli_path("out"), cli_program(), cli_small(),
            cli_path("out"), cli_expand(row[0]));
    cli_expect_rejection(&r, row[0], EXIT_USAGE, row[1]);
    cli_free(&r);
  }
}

TEST(encode_writes_over_nothing,
     "--encode into a directory with a tokenizer, shards or a state that no encoding has written is rejected by that "
     "name and changes nothing; in its own, files of others stay; one that was killed before its tokenizer continues") {
  static const char *const names[] = {"tokenizer.json", "train_000001.bin", "val_000000.bin", "train_000003.bin.part",
                                      "train_000003.bin.tmp", "encode.json"};
  static const char *const kept[] = {"notes.tmp", "a.bin.tmp", "a.bin.part", "train_a.bin.part"};
  CliRun r;
  char command[1024], path[600];
  snprintf(command, sizeof command, "%s --threads 1 --vocab_size 290 --encode %s %s", cli_program(), cli_path("out"),
           cli_path("text"));
  cli_text(60);
  for (const char *name : names) {
    char line[900];
    CLI_RUN(&r, "rm -rf %s; mkdir %s; echo theirs >%s/%s; %s; code=$?; ls -A %s | sed s/^/left:/; exit $code",
            cli_path("out"), cli_path("out"), cli_path("out"), name, command, cli_path("out"));
    snprintf(line, sizeof line, "--encode: %s/%s is there, and nothing tells that an encoding has written it: name "
             "another directory", cli_path("out"), name);
    cli_expect_rejection(&r, name, 2, line);
    EXPECT(cli_count(r.text, "left:") == 1, "%s: files were made:\n%.2000s", name, r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "rm -rf %s; mkdir %s", cli_path("out"), cli_path("out"));
  cli_free(&r);
  for (const char *name : kept) {
    snprintf(path, sizeof path, "%s/%s", cli_path("out"), name);
    cli_write(path, "theirs", 6);
  }
  for (const char *before : {"true", "cp -r @/out @/first; rm @/out/tokenizer.json"}) {
    CLI_RUN(&r, "%s; %s", cli_expand(before), command);
    EXPECT(!r.code, "exit code %d:\n%.2000s", r.code, r.text);
    cli_free(&r);
  }
  for (const char *name : kept) {
    snprintf(path, sizeof path, "%s/%s", cli_path("out"), name);
    EXPECT(!access(path, F_OK), "%s of others is gone", name);
  }
  for (const char *name : {"tokenizer.json", "train_000001.bin"}) {
    char a[600], b[600];
    snprintf(a, sizeof a, "%s/%s", cli_path("first"), name);
    snprintf(b, sizeof b, "%s/%s", cli_path("out"), name);
    cli_expect_same_file("an encoding that continued", a, b);
  }
}

TEST(answers_are_added_to_their_file,
     "OUT/samples.jsonl keeps the answers of an earlier call, and those of one that was killed, without its unfinished "
     "line") {
  CliRun r;
  char path[600];
  own_weights();
  cli_write(cli_path("p"), "a\nb\nc\n", 6);
  snprintf(path, sizeof path, "%s/samples.jsonl", cli_path("out"));
  for (int call = 0; call < 2; call++) {
    CLI_RUN(&r, "%s %s --init_from %s --sample_only --out %s --prompts %s", cli_ranks(2), cli_small(), cli_path("w"),
            cli_path("out"), cli_path("p"));
    cli_expect_done(&r, "answers");
    cli_free(&r);
    EXPECT(cli_lines(path) == 3 * (call + 1), "%d lines after call %d", cli_lines(path), call + 1);
    FILE *f = fopen(path, "a");
    REQUIRE(f && fprintf(f, "{\"prompt\":\"d") > 0 && !fclose(f), "no file");
  }
}

TEST(results_that_are_not_written_are_an_error,
     "a full disk under OUT/samples.jsonl and sample.txt, under stdout of --interactive, --plan and --help, and ulimit "
     "-f under a save and --encode: one line, exit code 3; a reader that leaves is none") {
  static const struct { const char *what, *command, *line; } table[] = {
      {"answers to a full disk",
       "printf 'a\\nb\\n' | %s %s --init_from @/w --sample_only --interactive --json --out %s >/dev/full",
       "answers cannot be written: No space left on device"},
      {"a plan to a full disk", "%s %s --plan --out %s >/dev/full", "what was printed could not be written in whole: "
       "is the disk full?"},
      {"a sample to a full disk", "%s %s --init_from @/w --sample_only --out %s >/dev/full", "what was printed could "
       "not be written in whole: is the disk full?"},
      {"a save beyond ulimit -f", "ulimit -f 20; %s %s --n_embd 64 --max_steps 2 --save_every 1 --out %s",
       "File too large"}};
  CliRun r;
  test_mpirun_patience(0);
  own_weights();
  for (const auto &k : table) {
    char command[8192];
    const char *program = cli_ranks(0), *out = cli_path("out");
    size_t n = 0;
    const char *parts[] = {program, cli_small(), out}, **part = parts;
    for (const char *c = k.command; *c; c++)
      if (c[0] == '%' && c[1] == 's') n += (size_t)snprintf(command + n, sizeof command - n, "%s", *part++), c++;
      else command[n++] = *c;
    command[n] = 0;
    CLI_RUN(&r, "rm -rf %s; %s", out, cli_expand(command));
    EXPECT(r.code == EXIT_MISSING && cli_count(r.text, k.line) >= 1, "%s: exit code %d:\n%.3000s", k.what, r.code,
           r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "%s --help >/dev/full", cli_ranks(0));
  EXPECT(r.code == EXIT_MISSING, "help to a full disk: exit code %d:\n%.2000s", r.code, r.text);
  cli_free(&r);
  CLI_RUN(&r, "rm -rf %s; (%s %s --plan --out %s; echo code $? >&2) | head -1", cli_path("out"), cli_ranks(0),
          cli_small(), cli_path("out"));
  EXPECT(strstr(r.text, "code 0") && !strstr(r.text, "could not be written"), "a reader that leaves:\n%.2000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "ulimit -f 8; %s --threads 1 --vocab_size 290 --encode %s %s", cli_ranks(0), cli_path("encoded"),
          cli_text(4000));
  EXPECT(r.code == EXIT_MISSING && cli_count(r.text, "File too large") == 1, "--encode beyond ulimit -f: exit code "
         "%d:\n%.2000s", r.code, r.text);
  cli_free(&r);
  cli_need_mount_namespace();
  static char many[1200];
  for (size_t i = 0; i < sizeof many; i += 2) memcpy(many + i, "a\n", 2);
  cli_write(cli_path("p"), many, sizeof many);
  for (const char *options : {"--prompts @/p", "--sample_tokens 5000"}) {
    CLI_RUN(&r, "unshare -m sh -c 'mount -t tmpfs -o size=8k tmpfs %s && exec %s %s --init_from %s --sample_only "
            "--out %s %s'", cli_path("mnt"), cli_ranks(2), cli_small(), cli_path("w"), cli_path("mnt"),
            cli_expand(options));
    EXPECT(r.code == EXIT_MISSING && strstr(r.text, "cannot be written: No space left on device"),
           "%s: exit code %d:\n%.3000s", options, r.code, r.text);
    cli_free(&r);
  }
}
