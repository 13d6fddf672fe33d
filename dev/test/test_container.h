// test_container.h: what dev/Containerfile copies is there and is all that building takes, and its default command
// trains. Without a network and without a container: in a directory that holds only what its COPY lines name.

// The lines of dev/Containerfile that start with `word` and a space, without it, continued lines joined. malloc'ed.
static char *container_lines(const char *word) {
  CliRun r;
  CLI_RUN(&r, "sed -e '/^#/d' -e ':a' -e '/\\\\$/{N;s/\\\\\\n//;ba}' dev/Containerfile | sed -n 's/^%s  *//p'", word);
  cli_expect_done(&r, word);
  EXPECT(r.text[0], "dev/Containerfile has no %s", word);
  return r.text;
}
// Copies as the COPY lines do, into `directory`.
static void container_copy(const char *directory) {
  char *lines = container_lines("COPY"), *save = NULL;
  for (char *line = strtok_r(lines, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    CliRun r;
    char *to = strrchr(line, ' ');
    REQUIRE(to && !strstr(line, "--"), "COPY %s: not of the kind that this test reads", line);
    *to++ = 0;
    CLI_RUN(&r, "mkdir -p %s/%s && for f in %s; do [ -e $f ] || { echo there is no $f; exit 1; }; "
            "if [ -d $f ]; then cp -r $f/. %s/%s; else cp $f %s/%s; fi; done", directory, to, line, directory, to,
            directory, to);
    cli_expect_done(&r, line);
    cli_free(&r);
  }
  free(lines);
}

TEST(container_file_copies_what_its_lines_need,
     "dev/Containerfile: each file that it copies is in the repository; among them is every script that it runs, what "
     "its make target needs, and every header that is included") {
  first_need_repository();
  const char *train = cli_path("train");
  CliRun r;
  container_copy(train);
  char *run = container_lines("RUN"), *command = container_lines("CMD");
  CLI_RUN(&r, "cd %s && printf '%%s\\n' '%s' '%s' | grep -oE '\\b(dev|data|kernels)/[A-Za-z0-9_./-]+[.][a-z]+' | "
          "while read f; do [ -x $f ] || echo $f is not copied, or cannot be run; done", train, run, command);
  EXPECT(r.code == 0 && !r.text[0], "%s", r.text);
  cli_free(&r);
  const char *goal = strstr(run, "make ");
  REQUIRE(goal, "no RUN line makes anything");
  CLI_RUN(&r, "cd %s && env -u SAN -u B %s -n %.*s", train, plain_make, (int)strcspn(goal + 5, " \n"), goal + 5);
  cli_expect_done(&r, "its make target");
  EXPECT(strstr(r.text, "-o train_gpt_fsdp"), "it does not link the program:\n%.2000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "cd %s && n=0; for f in $(find . -name '*.h' -o -name '*.cuh' -o -name '*.cu' -o -name '*.cc'); do for i "
          "in $(sed -n 's/^ *#include \"\\(.*\\)\".*/\\1/p' $f); do n=$((n + 1)); [ -e $i ] || [ -e ${f%%/*}/$i ] || "
          "echo $f includes $i, which is not copied; done; done; [ $n -gt 50 ] || echo $n includes", train);
  EXPECT(r.code == 0 && !r.text[0], "%s", r.text);
  cli_free(&r);
  free(run);
  free(command);
}

TEST(container_default_command_trains,
     "the CMD of dev/Containerfile, run where only its files are: NP ranks train and save into out/, ARGS are taken") {
  first_need_repository();
  const char *train = cli_path("train");
  char word[2][1024] = {};
  CliRun r;
  container_copy(train);
  char *command = container_lines("CMD");
  cJSON *words = cJSON_Parse(command);
  REQUIRE(cJSON_GetArraySize(words) == 3, "CMD is no JSON array of sh, -c and a line: %s", command);
  for (int i = 1; i < 3; i++) snprintf(word[i - 1], sizeof *word, "%s", cJSON_GetArrayItem(words, i)->valuestring);
  cli_write(cli_path("command.sh"), word[1], strlen(word[1]));
  CLI_RUN(&r, "cd %s && ln -s %s train_gpt_fsdp && NP=3 WIKITEXT2_DIR=%s ARGS='--max_steps 2 --n_layer 1 --threads 1 "
          "--batch_size 1 --sample_tokens 0 --device cpu' sh ../command.sh", train, cli_program(), cli_text(400));
  cli_expect_done(&r, word[1]);
  EXPECT(!strcmp(word[0], "-c") && cli_count(r.text, "  ranks     3 on 1 host") == 1 &&
         cli_count(r.text, "checkpoint: out/ckpt/step_00000002") == 1, "it printed:\n%.3000s", r.text);
  cli_free(&r);
  cJSON_Delete(words);
  free(command);
}
