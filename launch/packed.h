// packed.h: a program that was unpacked from an archive with its own Open MPI beside it (dev/dist.sh).
#pragma once
#include "launch.h"
#include <limits.h>

static const struct { const char *name, *place; } packed_variables[] = {
    {"OPAL_PREFIX", ""}, {"OPAL_SYSCONFDIR", "/etc"}, {"PMIX_MCA_mca_base_component_path", "/pmix"}};

void packed_open() {
  char directory[PATH_MAX], path[PATH_MAX + 32];
  const ssize_t n = readlink("/proc/self/exe", directory, sizeof directory - 1);
  if (n <= 0) return;
  directory[n] = 0;
  *strrchr(directory, '/') = 0;
  snprintf(path, sizeof path, "%s/openmpi/pmix", directory);     // only a packed Open MPI has its plugins there
  const bool packed = !access(path, X_OK);
  const char *theirs = getenv("OPAL_PREFIX"), *plugins = getenv("PMIX_MCA_mca_base_component_path");
  if (!packed && (!theirs || !plugins || strncmp(theirs, plugins, strlen(theirs)))) return;
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
