// test_param_groups.h: --no_decay and --lr_scale are what --weight_decay and --lr are, for the parameters they name.
#pragma once

// Settings of all parameters together have the bits of the plain option; mixed ones those of one rank.
TEST_MPI(param_groups_are_plain_options, 3,
         "--no_decay '*' has the bits of --weight_decay 0, and --lr_scale '*=0.5' those of half the learning rate, for "
         "each optimizer; mixed settings have one rank's bits on two and three ranks") {
  static const char *const modes[] = {"--optimizer adamw --param_dtype bf16", "--optimizer sgd --shard dim0",
                                      "--optimizer muon"};
  static const char *const pairs[][2] = {{"--no_decay * --weight_decay 0.3", "--weight_decay 0"},
                                         {"--lr_scale *.weight=0.5,*.bias=0.5 --lr 0.02", "--lr 0.01"}};
  static const char mixed[] = "--no_decay wte,h.0.*,*.c_fc --lr_scale wte=0.25,h.1.*=2,h.1.attn.*=0.7,ln_f=3";
  static Corpus corpus;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  for (const char *mode : modes) {
    WorldResult r[2], one = {};
    char extra[256];
    for (const auto &pair : pairs) {
      bool here = false;
      for (int i = 0; i < 2; i++) {
        snprintf(extra, sizeof extra, "%s %s", mode, pair[i]);
        here = world_run(&r[i], &corpus, 2, 1, 3, extra, true);
      }
      if (here) EXPECT(!memcmp(&r[0], &r[1], sizeof r[0]), "%s: %s is not %s: losses %.17g and %.17g", mode, pair[0],
                       pair[1], r[0].loss[2], r[1].loss[2]);
    }
    snprintf(extra, sizeof extra, "%s %s", mode, mixed);
    for (int world = 1; world <= 3; world++) {
      const bool here = world_run(&r[0], &corpus, world, 1, 3, extra, true);
      if (world == 1) one = r[0], MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
      else if (here) EXPECT(!memcmp(&one, &r[0], sizeof one), "N=%d %s: losses %.17g (%.17g), weights %s", world, extra,
                            r[0].loss[2], one.loss[2], r[0].weights == one.weights ? "equal" : "differ");
    }
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// All parameters after one step, one after the other.
static inline float *param_groups_step(const Corpus *corpus, const char *extra, Param *param, int *params) {
  static Trainer t;
  Options o;
  test_options(&o, 1, "%s --dropout 0 %s", world_shapes, extra);
  trainer_open(&t, &o, corpus, MPI_COMM_SELF, device_of(cpu_tables[0].ops), 1);
  train_step(&t, false);
  int64_t n = 0;
  for (int p = 0; p < t.fsdp->lay.params; p++) n += param_numel_padded(&t.fsdp->lay.param[p]);
  float *all = (float *)malloc((size_t)n * sizeof(float)), *at = all;
  for (int p = 0; p < t.fsdp->lay.params; p++, at += param_numel_padded(&param[p - 1])) {
    param[p] = t.fsdp->lay.param[p];
    fsdp_read_param(t.fsdp, STATE_MASTER, p, at);
  }
  *params = t.fsdp->lay.params;
  trainer_close(&t);
  return all;
}
TEST_MPI(param_groups_are_by_name, 1,
         "after one step parameters that --no_decay or --lr_scale names are those of a run with this decay or rate for "
         "all, the others those of a run without: by whole names and by names without .weight; the last glob counts") {
  static const char *const optimizers[] = {"--optimizer adamw --param_dtype bf16", "--optimizer sgd",
                                           "--optimizer muon"};
  static Corpus corpus;
  static Param param[64];
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  for (const char *optimizer : optimizers)
    for (int decay = 0; decay < 2; decay++) {
      static const char *const options[2][3] = {
          {"", "--lr 0.005", "--lr_scale wte=7,h.0.*=0.5,*.c_fc.weight=0.5,wte=0.5"},
          {"--weight_decay 5", "--weight_decay 0", "--weight_decay 5 --no_decay wte,h.0.*,*.c_fc.weight"}};
      float *w[3];
      int params = 0, wrong = 0, named = 0;
      for (int i = 0; i < 3; i++) {
        char extra[200];
        snprintf(extra, sizeof extra, "%s %s", optimizer, options[decay][i]);
        w[i] = param_groups_step(&corpus, extra, param, &params);
      }
      int64_t at = 0;
      for (int p = 0; p < params; at += param_numel_padded(&param[p++])) {
        const char *name = param[p].name;
        const bool is = !strncmp(name, "wte", 3) || !strncmp(name, "h.0.", 4) || strstr(name, ".c_fc.weight");
        const size_t bytes = (size_t)param_numel(&param[p]) * sizeof(float);
        named += is && memcmp(w[0] + at, w[1] + at, bytes);
        if (memcmp(w[2] + at, w[is] + at, bytes)) wrong++;
        EXPECT(!memcmp(w[2] + at, w[is] + at, bytes), "%s %s: %s is not that of '%s'", optimizer, options[decay][2],
               name, options[decay][is]);
      }
      EXPECT(named > 4 && !wrong, "%s: %d parameters differ between the plain runs", optimizer, named);
      for (float *x : w) free(x);
    }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
