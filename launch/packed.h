// packed.h: a program that was unpacked from an archive with its own Open MPI beside it (dev/dist.sh).
//
//   packed_open   before anything else: where that Open MPI is
#pragma once
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *name, *place; } packed_variables[] = {
    {"OPAL_PREFIX", ""}, {"OPAL_SYSCONFDIR", "/etc"}, {"PMIX_MCA_mca_base_component_path", "/pmix"}};

// The archive's Open MPI was built for /usr: variables say where it lies, whatever else is installed or was named; its
// mpirun comes first in PATH, for --rdzv. Where no openmpi/ is in the directory of the program, these variables, from
// the mpirun of an archive, are taken back: this program's Open MPI is another.
static inline void packed_open() {
  char directory[PATH_MAX], path[PATH_MAX + 32];
  const ssize_t n = readlink("/proc/self/exe", directory, sizeof directory - 1);
  if (n <= 0) return;
  directory[n] = 0;
  *strrchr(directory, '/') = 0;
  snprintf(path, sizeof path, "%s/openmpi/bin/mpirun", directory);
  const bool packed = !access(path, X_OK);
  if (!packed && !getenv("PMIX_MCA_mca_base_component_path")) return;
  for (const auto &v : packed_variables) {
    snprintf(path, sizeof path, "%s/openmpi%s", directory, v.place);
    if (packed) setenv(v.name, path, 1);
    else unsetenv(v.name);
  }
  const char *others = getenv("PATH");
  char *all = NULL;
  if (packed && asprintf(&all, "%s%s%s", directory, others ? ":" : "", others ? others : "") > 0)
    setenv("PATH", all, 1);
  free(all);
}
