// test_emulation.h: the emulation of CUDA (dev/cuda_emu) detects the faults that it is there to detect. Its small
// programs, right and wrong, are in dev/cuda_emu/selftest.h. Each runs in a separate process, because the emulation
// ends the process where a device would continue with wrong numbers.
#pragma once
#include "dev/cuda_emu/emu.h"

// Runs program i; returns its exit status, and its stderr in `said`.
static int emulation_child(int i, char *said, size_t bytes) {
  int ends[2];
  if (pipe(ends)) { EXPECT(false, "pipe: %s", strerror(errno)); return -1; }
  fflush(NULL);
  const pid_t child = fork();
  if (!child) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    _exit(emu_selftest_run(i) ? 0 : TEST_EXIT_FAILED);
  }
  close(ends[1]);
  size_t used = 0;
  char rest[4096];                               // so that a full pipe never blocks the child
  for (ssize_t n; (n = read(ends[0], rest, sizeof rest)) > 0;) {
    const size_t kept = used + (size_t)n < bytes ? (size_t)n : bytes - 1 - used;
    memcpy(said + used, rest, kept);
    used += kept;
  }
  said[used] = 0;
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}
TEST(emulation_selftest, "wrong CUDA programs are caught, right ones are not, whatever the order of threads") {
  if (!&ops_cuda_emulated) SKIP("the emulation is not linked");
  for (uint64_t seed = 0; seed < 4; seed++) {
    emu_set_seed(seed);
    for (int i = 0; const char *name = emu_selftest_name(i); i++) {
      char said[2048];
      const char *dies = emu_selftest_dies(i);
      const int status = emulation_child(i, said, sizeof said);
      if (dies)
        EXPECT(WIFSIGNALED(status) && strstr(said, dies), "%s, seed %d: status %x, wants a signal and \"%s\", says: %s",
               name, (int)seed, status, dies, said);
      else
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s, seed %d: status %x, wants success, says: %s", name,
               (int)seed, status, said);
    }
  }
}

// The two tables of the emulation differ in who computes; a program sees the same of both.
TEST(emulation_streams, "queued CPU ops on emulated streams give the CPU's bits and read device memory when they run") {
  if (!&ops_streams) SKIP("the emulation is not linked");
  const WorkspaceQuery q = {F32, F32, 1, 32, 64, 2, 128, 32};
  Ctx c = device_ctx(&ops_streams, q), cpu = op_ctx(cpu_tables[0].ops, 1, q), side = {};
  Tensor x = op_random_tensor(7, 1.0, F32, 5, 33), want = op_tensor(BF16, 5, 33);
  Tensor device_x = device_upload(&c, x), device_out = device_tensor(&c, BF16, 5, 33);
  void *written = NULL;
  convert(&cpu, want, x);
  c.ops->event_open(&c, &written, "written");
  c.ops->side_open(&c, &side, "side");
  for (uint64_t seed = 0; seed < 4; seed++) {    // compute overwrites x while side still has to convert the old values
    emu_set_seed(seed);
    device_write(&c, device_x, x);
    convert(&side, device_out, device_x);
    c.ops->event_record(&side, written);
    c.ops->event_wait(&c, written);
    fill(&c, device_x, 0.0f);
    c.ops->sync(&c);
    device_expect_same_bits("convert", &c, device_out, want);
    EXPECT(op_get(device_download(&c, device_x), 3) == 0.0, "fill did not run");
  }
  EXPECT(emu_counters().kernels == 8, "%lld ops ran, not 8", (long long)emu_counters().kernels);
  c.ops->side_close(&side);
  c.ops->event_close(&c, written);
  device_done(&c);
  op_free_all();
}
