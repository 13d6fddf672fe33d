// model_helpers.h: what tests that look into the model ask for: an option's value, a parameter's state.
#pragma once

// Gives an option a value, as if it followed from others.
static inline void option_pick(Options *o, OptionId id, const char *value) {
  Error error = {};
  EXPECT(option_put(o, id, value, &error), "%s", error.text);
}
// Copies parameter p's state into `full` (padded_rows x cols floats) on every rank. All ranks call it.
static inline void fsdp_read_param(Fsdp *f, ShardState state, int p, float *full) {
  for (int i = 0; i < fsdp_shards(f); i++) {
    Span run;
    const int root = i;                          // of the first replica: all have the same
    for (int64_t at = 0; fsdp_span(f, p, i, &run, at); at += run.numel) {
      if (f->mesh.rank == root) fsdp_get_own(f, state, p, at, full + run.in_range, run.numel);
      if (f->mesh.world > 1) MPI_Bcast(full + run.in_range, fsdp_mpi_count(run.numel), MPI_FLOAT, root, f->mesh.comm);
    }
  }
}
// Sets the own part of parameter p's state from `full` (logical rows; padding rows stay as they are).
static inline void fsdp_write_param(Fsdp *f, ShardState state, int p, const float *full) {
  const Param *q = &f->lay.param[p];
  Span run;
  if (!fsdp_span(f, p, f->mesh.shard.me, &run)) return;
  const int64_t n = min64(run.numel, param_numel(q) - run.in_range);
  if (n > 0) fsdp_set_own(f, state, p, 0, full + run.in_range, n, PASS_STORE);
}
// The number after `key` at the start of a line of a file of /proc.
static inline size_t proc_number(const char *path, const char *key) {
  char line[256];
  size_t value = 0;
  FILE *f = fopen(path, "r");
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, key, strlen(key))) sscanf(line + strlen(key), "%zu", &value);
  if (f) fclose(f);
  return value;
}
// A run of a trainer that is open, with the saver and the log of the test.
static inline Run *test_run(Trainer *t, Saver *saver, Log *log) {
  static Run run;
  run.view = &t->run, run.opt = &t->opt, run.saver = saver, run.log = t->run.log = log;
  return &run;
}
