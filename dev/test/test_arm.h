// test_arm.h: the program for ARM beside this machine's: the same losses and weights in fp32, bit for bit. Run by qemu
// where `make arm` has built it (dev/arm.sh), which CI's clean machine has not.

enum { ARM_LIMIT_S = 240 };                      // qemu is a hundred times slower than the machine it runs on
static const char arm_options[] =
    "--data random --vocab_size 300 --batch_size 2 --global_batch 4 --seq_len 40 --max_steps 4 --threads 1 "
    "--device cpu --eval_every -1 --sample_tokens 0 --save_every 2 --save_model";
// Small models that between them have most ops of a block, and both optimizers. Muon's orthogonalization is in bf16, so
// its bits are those of instruction sets without bf16.
static const char *const arm_models[] = {
    "--n_layer 2 --n_head 2 --n_embd 32 --dropout 0.1",
    "--model modern-tiny --n_layer 1 --n_head 2 --n_kv_head 1 --head_size 16 --n_embd 48 --mlp_width 96"};

static void arm_need() {
  first_need_repository();
  CliRun r;
  CLI_RUN(&r, "dev/arm.sh built");
  r.text[strcspn(r.text, "\n")] = 0;
  if (r.code) SKIP("%s", r.text);
  cli_free(&r);
}
// Trains with this machine's program (ranks 0) or ARM's, on 1 or more ranks, into the test's directory `out`.
static void arm_train(const char *out, int ranks, const char *options) {
  CliRun r;
  char start[PATH_MAX + 256];
  if (!ranks) snprintf(start, sizeof start, "%s", cli_ranks(0));
  else if (ranks == 1) snprintf(start, sizeof start, "dev/arm.sh train");
  else snprintf(start, sizeof start, "dev/arm.sh mpirun -np %d dev/arm.sh train", ranks);
  const char *isa = strstr(options, "--model modern") ? ranks ? "--isa neon" : "--isa avx2" : "";
  cli_start(&r, "%s %s %s %s --out %s", start, arm_options, options, isa, cli_path(out));
  cli_wait(&r, ARM_LIMIT_S);
  cli_expect_done(&r, options);
  cli_free(&r);
}
// Both runs printed the same digits of every loss and norm, and wrote the same weights.
static void arm_expect_same(const char *a, const char *b, const char *what) {
  CliRun r;
  CLI_RUN(&r, "cd %s && for d in %s %s; do grep -o '\"\\(loss\\|grad_norm\\)\":[^,}]*' $d/metrics.jsonl "
          ">$d/losses; done; [ $(grep -c loss %s/losses) -ge 2 ] && cmp %s/losses %s/losses && "
          "cmp %s/model.safetensors %s/model.safetensors", cli_path("."), a, b, a, a, b, a, b);
  EXPECT(!r.code, "%s: %s", what, r.text);
  cli_free(&r);
}

TEST(arm_trains_to_the_same_bits,
     "fp32 on ARM, 1 and 2 ranks, and resumed on the other processor: x86-64's losses and weights") {
  arm_need();
  char resumed[1200];
  for (const char *model : arm_models) {
    arm_train("x86", 0, model);
    arm_train("arm1", 1, model);
    arm_expect_same("x86", "arm1", "1 rank on ARM");
    if (model != arm_models[0]) break;
    arm_train("arm2", 2, model);
    arm_expect_same("x86", "arm2", "2 ranks on ARM");
    snprintf(resumed, sizeof resumed, "%s --resume %s/ckpt/step_00000002", model, cli_path("x86"));
    arm_train("moved", 1, resumed);
    CliRun r;
    CLI_RUN(&r, "cmp %s/model.safetensors %s/model.safetensors", cli_path("x86"), cli_path("moved"));
    EXPECT(!r.code, "resumed on ARM: %s", r.text);
    cli_free(&r);
    CLI_RUN(&r, "rm -r %s %s %s", cli_path("x86"), cli_path("arm1"), cli_path("arm2"));
    cli_free(&r);
  }
}

TEST(arm_bf16_without_its_instruction, "bf16 on NEON without BFDOT has AVX2's bits: conversions round alike") {
  arm_need();
  char options[512];
  for (const char *isa : {"avx2", "neon"}) {
    snprintf(options, sizeof options, "%s --dtype bf16 --isa %s", arm_models[0], isa);
    arm_train(isa, isa[0] == 'n', options);
  }
  arm_expect_same("avx2", "neon", "bf16");
}

TEST(arm_and_x86_ranks_are_rejected, "a run of ranks on both kinds of processor ends with one line that says so") {
  arm_need();
  CliRun r;
  cli_start(&r, "dev/arm.sh mpirun -np 1 %s %s %s --out %s : -np 1 dev/arm.sh train %s %s --out %s", cli_program(),
            arm_options, arm_models[0], cli_path("out"), arm_options, arm_models[0], cli_path("out"));
  cli_wait(&r, ARM_LIMIT_S);
  EXPECT(r.code == 2 && strstr(r.text, " for aarch64' here, 'build ") && strstr(r.text, " for x86-64' there"),
         "exit code %d:\n%.2000s", r.code, r.text);
  cli_free(&r);
}

// Those that take no more than a few seconds there. (Tests of ranks start themselves by mpirun, which takes no script.)
static const char arm_tests[] =
    "=adamw_fp64 =attention_bits_of_batch =attention_bits_of_tables =attention_extreme_scores =attention_is_causal "
    "=convert_every_value =crc32c_known_answers =crc32c_parts =crc32c_table_is_instruction =cross_entropy_extremes "
    "=dropout_vector_equals_scalar =embedding =gelu_every_value =layernorm_again =master_halves_are_the_master "
    "=matmul_instruction_sets =matmul_not_a_number =muon_fp64 =norm_exact =norm_partition =norm_special "
    "=philox_known_answers =safetensors_accepts =safetensors_bit_flips =safetensors_round_trip =sgd_fp64 "
    "=threads_barriers_hold =threads_regions_nest =tokenizer_any_bytes =tokenizer_families";
TEST(arm_passes_tests_of_ops, "the tests of ops, tokenizers, checksums and threads pass on ARM") {
  arm_need();
  CliRun r;
  cli_start(&r, "TEST_JOBS=1 dev/arm.sh run build/arm/test_gpt_fsdp %s", arm_tests);
  cli_wait(&r, ARM_LIMIT_S);
  EXPECT(!r.code && strstr(r.text, " passed, 0 failed"), "%.3000s", r.text);
  cli_free(&r);
}
