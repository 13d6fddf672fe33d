// test_sm_margin.h: --sm_margin: the table, what cuBLASLt and NCCL are told, that the number of ranks changes nothing.
// Included after test_schedule.h, test_cuda_matmul.h and test_plan_report.h.

TEST(sm_margin_table,
     "--sm_margin auto: Hopper with NVSwitch 16, H100 PCIe 8, all others and instances 0; two kernels of NCCL fit into "
     "any margin, and without one into any GPU") {
  const struct { int major, minor, sms, margin; } cases[] = {
      {9, 0, 132, 16}, {9, 0, 114, 8}, {9, 0, 16, 0}, {9, 0, 78, 0}, {10, 0, 148, 0}, {10, 3, 160, 0}, {8, 0, 108, 0},
      {8, 6, 84, 0},   {8, 9, 128, 0}, {12, 0, 170, 0}};
  for (const auto &k : cases) {
    const SmMargin *row = sm_margin_row(k.major, k.minor, k.sms);
    EXPECT(row && row->margin == k.margin && row->why[0], "sm_%d%d x %d: %d", k.major, k.minor, k.sms,
           row ? row->margin : -1);
  }
  for (int both = 2; both <= SM_MARGIN_MAX; both++) {
    const int blocks = nccl_blocks(both, 132), all = nccl_blocks(0, both + 1);
    EXPECT(blocks >= 1 && 2 * blocks <= both && !(blocks & (blocks - 1)) && (blocks == 64 || 4 * blocks > both),
           "margin %d: %d blocks", both, blocks);
    EXPECT(all == blocks, "no margin on %d SMs: %d blocks, not %d", both + 1, all, blocks);
  }
}
TEST(sm_margin_is_read, "--sm_margin: auto, or a number that leaves something of the GPU; all else is rejected") {
  const struct { const char *text; int sms, margin; const char *said; } cases[] = {
      {"0", 132, 0, ""},
      {"auto", 132, 16, ""},
      {"auto", 16, 0, ""},
      {"24", 132, 24, ""},
      {"131", 132, 131, ""},
      {"132", 132, 0,
       "--sm_margin 132 leaves nothing for matrix multiplies: GPU has 132 SMs; give fewer, or auto"},
      {"1", 132, 0,
       "--sm_margin 1: two kernels of NCCL run at once, a gather and a reduction, and each needs one: give 2 or more, "
       "or 0 to reserve none"},
      {"16x", 132, 0, "--sm_margin '16x' is neither auto nor a number of SMs, like 16"},
      {"-2", 132, 0, "--sm_margin '-2' is neither auto nor a number of SMs, like 16"},
      {"99999", 132, 0, "--sm_margin '99999' is neither auto nor a number of SMs, like 16"}};
  for (const auto &k : cases) {
    Options o;
    Error error = {};
    test_options(&o, 1, "%s", "");
    strcpy(o.sm_margin, k.text);
    const bool read = sm_margin_reject(&o, &error);
    const int margin = read ? sm_margin_for(&o, "GPU", 9, 0, k.sms, &error) : 0;
    EXPECT(!strcmp(error.text, k.said) && (error.text[0] || margin == k.margin), "--sm_margin %s: %d, '%s'", k.text,
           margin, error.text);
  }
}
TEST_MPI(sm_margin_of_a_checkpoint, 1, "a checkpoint's --sm_margin becomes 0 on a CPU") {
  for (const char *saved : {"16", "auto", "0"}) {
    Options o;
    test_options(&o, 1, "--device cpu");
    strcpy(o.sm_margin, saved);
    const Device d = agree_on_device(&o, MPI_COMM_SELF, MPI_COMM_SELF);
    EXPECT(!strcmp(o.sm_margin, "0") && !d.sm_margin, "%s: %s, %d", saved, o.sm_margin, d.sm_margin);
  }
}
TEST(sm_margin_of_plans, "a plan's matrix multiplies take the SMs that --sm_margin leaves") {
  Machine m = {};
  m.sms = 132;
  const Tensor tiles = tensor_of(NULL, BF16, 132 * 128, 256);    // of the best kind: one turn of all SMs
  const double all = product_fill(&m, tiles);
  m.sm_margin = 16;
  EXPECT(all == 1 && product_fill(&m, tiles) < 0.9, "132 tiles: %g, beside NCCL %g", all, product_fill(&m, tiles));
  const Tensor fewer = tensor_of(NULL, BF16, 116 * 128, 256);
  m.sm_margin = 0;
  const double alone = product_fill(&m, fewer);
  m.sm_margin = 16;
  EXPECT(product_fill(&m, fewer) == alone, "116 tiles fit beside NCCL");
  const struct { const char *options; int margin; const char *said; } cases[] = {
      {"--on h100", 0, ""}, {"--on h100 --sm_margin auto", 16, ""}, {"--on b200 --sm_margin auto", 0, ""},
      {"--on a100 --sm_margin 24", 24, ""},
      {"--on a100 --sm_margin 108", 0,
       "--sm_margin 108 leaves nothing for matrix multiplies: a100 has 108 SMs; give fewer, or auto"}};
  for (const auto &k : cases) {
    Options o;
    PlanDevice d = {};
    Error error = {};
    plan_asked(&o, "%s --model gpt2 --world 8", k.options);
    const bool ok = plan_resolve(&o, &d, &error);
    EXPECT(ok == !k.said[0] && !strcmp(error.text, k.said) && (!ok || d.machine.sm_margin == k.margin), "%s: %d, '%s'",
           k.options, d.machine.sm_margin, error.text);
  }
}

TEST(sm_margin_is_said, "the startup log shows how SMs are divided") {
  static RunView run;
  run.device.sms = 132, run.device.sm_margin = 16;
  char *text = words_of(&run, sm_margin_words);
  EXPECT(!strcmp(text, "116 of 132 SMs for matrix multiplies; 16 for NCCL: 8 blocks for gathers, 8 for all "
                 "else"), "%s", text);
  free(text);
}

// The emulated heuristic chooses another algorithm, of other bits, where it may not use the whole device.
TEST_MPI(sm_margin_ranks_change_no_bit_all, 4,
         "with --sm_margin N = 1, 2 and 4 ranks, replicas too, have the same bits, which are not those without it; "
         "NCCL's kernels fit into the margin together") {
  static Corpus corpus;
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  schedule_corpus(&corpus);
  WorldResult without, one, r;
  const struct { int world; const char *extra; } cases[] = {{2, ""}, {4, "--mesh 2x2"}};
  for (int margin : {0, 2}) {
    WorldResult *alone = margin ? &one : &without;
    schedule_variant.sm_margin = margin;
    if (!schedule_run(alone, &corpus, &ops_cuda_emulated, 1, "self", "")) memset(alone, 0, sizeof *alone);
    MPI_Bcast(alone, sizeof *alone, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (const auto &k : cases) {
      if (!margin && k.world != 2) continue;
      if (!schedule_run(&r, &corpus, &ops_cuda_emulated, k.world, "nccl", k.extra)) continue;
      schedule_expect(&r, alone, "margin %d, N=%d, %s", margin, k.world, k.extra);
      EXPECT(schedule_nccl_blocks == 2, "margin %d, N=%d, %s: NCCL may have %d blocks at once on 4 SMs",
             margin, k.world, k.extra, schedule_nccl_blocks);
    }
  }
  schedule_variant = ScheduleVariant{};
  EXPECT(memcmp(&one, &without, sizeof one), "a margin changes nothing: cuBLASLt was not told");
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
