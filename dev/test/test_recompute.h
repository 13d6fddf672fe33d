// test_recompute.h: --recompute changes no result. For the memory it saves see test_modes.h, part 5; for its rejections
// test_modes.h.

TEST(recompute_levels_of_blocks,
     "--recompute LEVEL[:COUNT],... gives levels to blocks from the first on; the last takes the rest if it has no "
     "count; blocks beyond the counts keep everything") {
  static const struct { const char *text, *levels; } table[] = {      // n none, g gelu, o norm, m mlp, b block
      {"none", "nnnnnn"},           {"gelu", "gggggg"},         {"norm", "oooooo"},
      {"mlp", "mmmmmm"},            {"block", "bbbbbb"},        {"block:2,mlp", "bbmmmm"},
      {"block:2", "bbnnnn"},        {"none:5,block", "nnnnnb"}, {"block:6,mlp", "bbbbbb"},
      {"gelu:1,norm:2,mlp:1,block:1,none:1", "goombn"},         {"mlp:1,block:1,mlp", "mbmmmm"}};
  static const char letters[] = "ngomb";
  for (const auto &k : table) {
    Options o;
    test_options(&o, 1, "--n_layer 6 --recompute %s", k.text);
    const Model m = model_of(&o);
    for (int l = 0; l < 6; l++)
      EXPECT(letters[m.recompute[l]] == k.levels[l], "--recompute %s: block %d is %s", k.text, l,
             recompute_names[m.recompute[l]]);
    EXPECT(!strcmp(o.recompute, k.text), "--recompute %s is printed as %s", k.text, o.recompute);
  }
}

TEST(recompute_and_logits_auto_depend_on_the_device,
     "auto, which is the default, becomes norm on a CPU and none on a GPU; logits are in bf16 on a GPU where "
     "activations are and the loss is of tokens; what is given stays") {
  Ops gpu = *cpu_tables[0].ops;
  Collectives nccl = {};
  gpu.nccl = &nccl;
  static const struct { const char *text, *cpu, *gpu; } table[] = {
      {"", "norm", "none"}, {"--recompute auto", "norm", "none"}, {"--recompute mlp", "mlp", "mlp"}};
  for (const auto &k : table) for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
    Options o;
    test_options(&o, 1, "--n_layer 3 %s", k.text);
    choose_for_device(&o, on_gpu ? &gpu : cpu_tables[0].ops);
    const char *want = on_gpu ? k.gpu : k.cpu;
    const Model m = model_of(&o);
    EXPECT(!strcmp(o.recompute, want) && !strcmp(recompute_names[m.recompute[2]], want), "'%s' becomes %s, not %s",
           k.text, o.recompute, want);
    EXPECT(o.recompute_auto == (strcmp(want, "mlp") != 0), "'%s' is%s said to have been chosen", k.text,
           o.recompute_auto ? "" : " not");
  }
  static const struct { const char *text; bool cpu, gpu; } logits[] = {
      {"", false, false}, {"--param_dtype bf16", false, true}, {"--buffer_dtype bf16", false, true},
      {"--dtype fp16", false, false}, {"--dtype bf16 --buffer_dtype fp32", false, false},
      {"--dtype bf16 --logits_dtype fp32", false, false}, {"--dtype bf16 --logits_dtype bf16", true, true},
      {"--dtype bf16 --loss dpo --lora 2", false, false}};
  for (const auto &k : logits) for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
    Options o;
    test_options(&o, 1, "%s", k.text);
    choose_for_device(&o, on_gpu ? &gpu : cpu_tables[0].ops);
    const Dtype dtype = model_of(&o).logits_dtype;
    EXPECT((dtype == BF16) == (on_gpu ? k.gpu : k.cpu) && o.logits_dtype != OPT_logits_dtype_auto,
           "'%s' on a %s: logits in %s", k.text, on_gpu ? "GPU" : "CPU", dtype_name(dtype));
  }
}

TEST_MPI(recompute_changes_no_bit, 2,
         "each level and mixes of them, with dropout, two microbatches per rank, on one rank and two, in fp32, bf16 "
         "and E4M3, blocks frozen: losses, norms, weights and evaluation equal those of keeping everything; memory "
         "is as planned, and each level takes less than the one before") {
  static const char *const arithmetic[] = {"", "--param_dtype bf16 --fp8 gather", "--dropout 0",
                                           "--param_dtype bf16 --freeze wte,wpe,h.0.*,h.2.mlp.c_fc"};
  static const char *const levels[] = {"none", "gelu", "norm", "mlp", "block"};
  static const char *const mixes[] = {"block:2,mlp", "mlp:1,block:2", "block:1,none:2,gelu:1", "norm:4,mlp",
                                      "none:4,block"};
  static Corpus corpus;
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  for (const char *a : arithmetic) {
    WorldResult kept, r;
    char extra[256];
    const char *shapes = "--n_layer 5 --batch_size 3";
    snprintf(extra, sizeof extra, "%s %s", shapes, a);
    if (!world_run(&kept, &corpus, 1, 2, 2, extra, true)) memset(&kept, 0, sizeof kept);
    MPI_Bcast(&kept, sizeof kept, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int i = 1; i < 10; i++) {
      snprintf(extra, sizeof extra, "%s %s --recompute %s", shapes, a, i < 5 ? levels[i] : mixes[i - 5]);
      if (!world_run(&r, &corpus, 1 + i % 2, 2, 2, extra, true)) continue;
      EXPECT(!memcmp(&kept, &r, sizeof r), "%s: losses %.17g %.17g (%.17g %.17g), norms %.17g (%.17g), eval %.17g "
             "(%.17g), weights %s", extra, r.loss[0], r.loss[1], kept.loss[0], kept.loss[1], r.norm[0], kept.norm[0],
             r.eval_loss, kept.eval_loss, r.weights == kept.weights ? "equal" : "differ");
    }
  }
  size_t before = SIZE_MAX;
  for (const char *level : levels) {
    static Trainer t;
    Options o;
    test_options(&o, 2, "%s --n_layer 12 --recompute %s", world_shapes, level);
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(agree_on_ops(&o, MPI_COMM_WORLD)), 1);
    const size_t now = t.run.plan.taken_bytes[MEM_ACTIVATIONS] + t.run.plan.taken_bytes[MEM_SLOTS_SHARED];
    EXPECT(now < before, "--recompute %s takes %zu bytes, the level before %zu", level, now, before);
    before = now;
    trainer_close(&t);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
