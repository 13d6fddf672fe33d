// cores_helpers.h: what tests of placing threads on cores ask and pretend.
#pragma once

// The lists of CPUs that the test may use here: the first two of them.
static int cores_here(int cpu[2]) {
  cpu_set_t all;
  int found = 0;
  sched_getaffinity(0, sizeof all, &all);
  for (int i = 0; i < CPU_SETSIZE && found < 2; i++) if (CPU_ISSET(i, &all)) cpu[found++] = i;
  return found;
}
static void cores_use(int cpu, int other) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  CPU_SET(other, &set);
  sched_setaffinity(0, sizeof set, &set);
}
static int cores_now() {                         // the CPU that this thread is bound to; -1: several
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  for (int i = 0; i < CPU_SETSIZE; i++) if (CPU_ISSET(i, &set)) return CPU_COUNT(&set) == 1 ? i : -1;
  return -1;
}
// Makes hwloc describe `synthetic` as this machine, so that what it says is bound is bound.
static void cores_pretend(const char *synthetic) {
  setenv("HWLOC_SYNTHETIC", synthetic, 1);
  setenv("HWLOC_THISSYSTEM", "1", 1);
  unsetenv("OMPI_MCA_hwloc_base_binding_policy");          // the runner's --bind-to none
  unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");                  // so own masks count, as under srun
}
