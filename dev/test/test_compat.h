// test_compat.h: checkpoints of earlier versions are opened and continued as those versions would have, and what a
// later one writes is taken or rejected by name. The promise is in docs/checkpoints.md. dev/make_checkpoint_fixture.sh
// writes the fixtures and says what is in them. Helpers are those of cli_helpers.h.
//
// Losses, weights and moments are compared digit for digit. On the same instruction set nothing else is owed: no change
// since 0.5.0 touched the order of a sum. fp32 has the same bits on all of them (isa_changes_no_bit_in_fp32), so its
// rows run on this machine's best; bf16 on AVX-512 BF16 is compared where the CPU has it.
#include <glob.h>

// What an earlier version made of one of its checkpoints on one instruction set.
struct CompatRow { char path[128], checkpoint[128], text[128], version[32], mode[16], isa[16]; };
enum { COMPAT_MAX = 32 };
// Those of this machine. Returns how many.
static int compat_rows(CompatRow *row) {
  glob_t found;
  int count = 0;
  first_need_repository();
  if (glob("dev/test/fixtures/checkpoint-*/*/*/metrics.jsonl", 0, NULL, &found)) return 0;
  for (size_t i = 0; i < found.gl_pathc && count < COMPAT_MAX; i++) {
    CompatRow *r = &row[count];
    if (sscanf(found.gl_pathv[i], "dev/test/fixtures/checkpoint-%31[^/]/%15[^/]/%15[^/]/", r->version, r->mode,
               r->isa) != 3) continue;
    snprintf(r->checkpoint, sizeof r->checkpoint, "dev/test/fixtures/checkpoint-%s/%s", r->version, r->mode);
    snprintf(r->text, sizeof r->text, "dev/test/fixtures/checkpoint-%s/text", r->version);
    snprintf(r->path, sizeof r->path, "dev/test/fixtures/checkpoint-%s/%s/%s", r->version, r->mode, r->isa);
    int table = 0;
    while (table < PROCESSOR_ISAS && strcmp(cpu_tables[table].name, r->isa)) table++;
    EXPECT(table < PROCESSOR_ISAS, "%s: there is no instruction set %s", r->path, r->isa);
    count += table <= cpu_best_table();
  }
  globfree(&found);
  return count;
}
// What trainer.json says of the checkpoint's files: their sizes, and checksums of every block. malloc'ed.
static char *compat_files(const char *path) {
  int64_t bytes;
  char *text = file_get(path, 1 << 20, &bytes), *files = text ? strstr(text, "\"files\":{") : NULL;
  char *end = files ? strstr(files, "}}") : NULL;
  EXPECT(end, "%s cannot be read, or says nothing of its files", path);
  char *all = end ? strndup(files, (size_t)(end - files)) : strdup(path);
  free(text);
  return all;
}
static const char compat_options[] = "--device cpu --threads 1 --cache=";

TEST(compat_older_versions_checkpoints_go_on,
     "checkpoints that 0.5.0 and 0.6.0 wrote, fp32 and bf16: on 1 and 2 ranks this version has the losses, norms, "
     "validations, final weights and moments that it had, and --eval_only its evaluation, digit for digit") {
  static CompatRow rows[COMPAT_MAX];
  const int count = compat_rows(rows);
  EXPECT(count >= 4, "%d fixtures, must be fp32 and bf16 of two versions at least", count);
  for (int i = 0; i < count; i++) for (int ranks : {0, 2}) {
    const CompatRow *row = &rows[i];
    char what[400], out[600], end[700];
    CliRun r;
    const char *isa = !ranks && !strcmp(row->mode, "fp32") ? "auto" : row->isa;
    snprintf(what, sizeof what, "%.127s, %d ranks, --isa %.15s", row->path, ranks, isa);
    snprintf(out, sizeof out, "%s/%d_%d", test_tmp(), i, ranks);
    CLI_RUN(&r, "%s %s --isa %s --resume %s --out %s", cli_ranks(ranks), compat_options, isa, row->checkpoint, out);
    cli_expect_done(&r, what);
    EXPECT(cli_count(r.text, "resumed from: ") == 1 && cli_count(r.text, ", step 6, read in ") == 1 &&
           cli_count(r.text, "replaces") == 0, "%s: it printed:\n%.3000s", what, r.text);
    cli_free(&r);
    CLI_RUN(&r, "%s %s --isa %s --resume %s --eval_only --out %s", cli_ranks(0), compat_options, isa, row->checkpoint,
            out);
    cli_expect_done(&r, what);
    cli_free(&r);
    cli_expect_same_series(what, row->path, out, 6);
    snprintf(end, sizeof end, "%.127s/end.json", row->path);
    char *theirs = compat_files(end);
    snprintf(end, sizeof end, "%s/ckpt/step_00000012/trainer.json", out);
    char *ours = compat_files(end);
    EXPECT(!strcmp(theirs, ours), "%s: weights or moments differ at the end:\n%.600s\n%.600s", what, theirs, ours);
    free(theirs);
    free(ours);
    int64_t bytes;                               // sums on a GPU stay those of 0.5.0
    char *text = file_get(end, 1 << 20, &bytes);
    EXPECT(text && strstr(text, ",\"gpu_head_chunk_bytes\":536870912,"), "%s: another chunk of logits: %.300s", what,
           text);
    free(text);
  }
  cli_expect_nothing_left("after them");
}

TEST(compat_older_versions_checkpoints_are_sampled_and_exported,
     "from the same checkpoints the most probable continuation is the one that version wrote, and what --export_hf "
     "writes has the evaluation that it wrote, digit for digit") {
  static CompatRow rows[COMPAT_MAX];
  const int count = compat_rows(rows);
  for (int i = 0; i < count; i++) {
    const CompatRow *row = &rows[i];
    char out[600], theirs[600], ours[700];
    CliRun r;
    snprintf(out, sizeof out, "%s/%d", test_tmp(), i);
    CLI_RUN(&r, "%s %s --isa %s --resume %s --sample_only --temperature 0 --prompt 'the fox' --export_hf %s/export "
            "--out %s", cli_ranks(0), compat_options, row->isa, row->checkpoint, out, out);
    cli_expect_done(&r, row->path);
    cli_free(&r);
    snprintf(theirs, sizeof theirs, "%.127s/sample.txt", row->path);
    snprintf(ours, sizeof ours, "%s/sample.txt", out);
    cli_expect_same_file(row->path, theirs, ours);
    CLI_RUN(&r, "%s %s --isa %s --init_from %s/export --dtype %s --seq_len 8 --data %s --eval_only --out %s",
            cli_ranks(0), compat_options, row->isa, out, row->mode, row->text, out);
    cli_expect_done(&r, row->path);
    cli_free(&r);
    char *all = cli_series(row->path), *evaluation = cli_series(out);
    const size_t n = strlen(evaluation), whole = strlen(all);
    EXPECT(cli_count(evaluation, "\"loss\":") == 2 && n < whole && !strcmp(all + whole - n, evaluation),
           "%s: the export has\n%s    its last two records must be the same as in\n%s", row->path, evaluation, all);
    free(all);
    free(evaluation);
  }
}

// A copy of the first fixture's checkpoint, with `from` in its trainer.json replaced by `to` and the seal made anew.
static void compat_make(const char *directory, const char *from, const char *to) {
  CliRun r;
  char path[700];
  int64_t bytes;
  CLI_RUN(&r, "rm -rf %s; mkdir -p %s && cp -r dev/test/fixtures/checkpoint-0.5.0/fp32/step_00000006 %s", directory,
          directory, directory);
  cli_expect_done(&r, "the copy");
  cli_free(&r);
  snprintf(path, sizeof path, "%s/step_00000006/trainer.json", directory);
  char *text = file_get(path, 1 << 20, &bytes), *at = text ? strstr(text, from) : NULL;
  REQUIRE(at, "%s: no %s", path, from);
  char *made = (char *)malloc((size_t)bytes + strlen(to));
  size_t seal;
  free(checkpoint_sealed("", 0, &seal));
  const size_t body = (size_t)snprintf(made, (size_t)bytes + strlen(to), "%.*s%s%.*s", (int)(at - text), text, to,
      (int)(bytes - (at - text) - (int64_t)strlen(from) - (int64_t)seal), at + strlen(from));
  size_t sealed;
  char *whole = checkpoint_sealed(made, body, &sealed);
  cli_write(path, whole, sealed);
  free(whole);
  free(made);
  free(text);
}

TEST(compat_later_versions_checkpoints_are_named,
     "a checkpoint of another format, and one with a value that this version does not take, are rejected with file, "
     "version and value; options that it does not have are told in one warning, and the run continues") {
  first_need_repository();
  test_mpirun_patience(0);
  CliRun r;
  char out[600], at[700], line[2048];
  snprintf(out, sizeof out, "%s", cli_path("out"));
  snprintf(at, sizeof at, "%s/ckpt/step_00000006", out);
  compat_make(cli_path("out/ckpt"), "\"format_version\":1", "\"format_version\":2");
  static const struct { int ranks; const char *options, *before; } table[] = {
      {0, "--resume @/out/ckpt/step_00000006 --out @/other", ""},
      {2, "--resume @/out/ckpt/step_00000006 --out @/other", ""},
      {0, "--init_from @/out/ckpt/step_00000006 --out @/other", ""},
      {2, "--resume auto --out @/out", "no checkpoint in @/out is whole: every checkpoint is skipped: "}};
  for (const auto &row : table) {
    CLI_RUN(&r, "%s %s %s", cli_ranks(row.ranks), compat_options, cli_expand(row.options));
    snprintf(line, sizeof line, "%s%s/trainer.json is of format 2; this program reads %d: use a newer train_gpt_fsdp",
             cli_expand(row.before), at, CHECKPOINT_VERSION);
    cli_expect_rejection(&r, row.options, 3, line);
    cli_free(&r);
  }
  compat_make(cli_path("out/ckpt"), "\"schedule\":\"constant\"", "\"schedule\":\"spiral\"");
  CLI_RUN(&r, "%s %s --resume %s --out %s", cli_ranks(2), compat_options, at, cli_path("other"));
  snprintf(line, sizeof line, "%s was written by version 0.5.0 with a value that version " PROGRAM_VERSION " does not "
           "take: --schedule 'spiral' is not known: choose one of ...", at);
  cli_expect_rejection(&r, "--schedule spiral", 2, line);
  cli_free(&r);
  EXPECT(access(cli_path("other"), F_OK), "OUT was made");

  compat_make(cli_path("out/ckpt"), "\"clip\":1,", "\"clip\":1,\"z_loss\":0.5,\"rope\":true,\"note\":\"\\n\",");
  CLI_RUN(&r, "%s %s --resume %s --isa avx2 --out %s", cli_ranks(0), compat_options, at, cli_path("other"));
  cli_expect_done(&r, "options of a later version");
  snprintf(line, sizeof line, "warning: %s was written by version 0.5.0 with options that version " PROGRAM_VERSION
           " does not have and ignores: --z_loss 0.5, --rope on, --note ?\n", at);
  EXPECT(cli_count(r.text, "warning: ") == 1 && strstr(r.text, line), "not one warning:\n%.3000s", r.text);
  cli_free(&r);
}

TEST(compat_a_fixture_needs_a_version_and_a_commit,
     "dev/make_checkpoint_fixture.sh rejects wrong arguments and a commit that is not there, and touches no fixture") {
  first_need_repository();
  static const struct { const char *arguments; int code; } table[] = {
      {"", 2}, {"0.5.0", 2}, {"0.5.0 0000000000000000000000000000000000000000", 1}};
  for (const auto &row : table) {
    CliRun r;
    CLI_RUN(&r, "dev/make_checkpoint_fixture.sh %s", row.arguments);
    EXPECT(r.code == row.code, "'%s': exit code %d, must be %d:\n%.1000s", row.arguments, r.code, row.code, r.text);
    cli_free(&r);
  }
}
