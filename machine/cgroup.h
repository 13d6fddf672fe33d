// cgroup.h: which cores and memory of the host control groups allow this process: `docker --cpus=2 --memory=8g`, a
// Kubernetes limit, a systemd slice. Versions 1 and 2, and machines that have both (Linux: cgroup-v2.rst, cgroup-v1/).
//
// Limits of all groups above the process's own count as well. `root` goes before every path: "" except in tests.
#pragma once
#include "machine.h"

size_t file_number(const char *path, const char *key) {
  FILE *f = fopen(path, "r");
  char line[256];
  size_t value = SIZE_MAX;
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), "%zu", &value) != 1) value = SIZE_MAX;
  if (f) fclose(f);
  return value;
}

// The directory of this process's group in a controller's hierarchy. Groups above it are the parents of `dir`, up to
// its first `top` bytes, the mount point. v2: cgroup version 2.
struct CgroupPlace { char dir[2048]; size_t top; bool v2; };

static inline bool cgroup_lists(const char *names, const char *name) {           // "cpu" in "cpu,cpuacct"
  const size_t n = strlen(name);
  for (const char *c = names; c; c = strchr(c, ',') ? strchr(c, ',') + 1 : NULL)
    if (!strncmp(c, name, n) && (!c[n] || c[n] == ',')) return true;
  return false;
}
// The group's path of version 1's `controller`, or of version 2, in /proc/self/cgroup: "4:cpu,cpuacct:/a/b", "0::/a/b".
static inline bool cgroup_path(const char *root, const char *controller, bool v2, char *path, size_t bytes) {
  char line[2048];
  snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
  FILE *f = fopen(line, "r");
  bool found = false;
  while (f && !found && fgets(line, sizeof line, f)) {
    line[strcspn(line, "\n")] = 0;
    char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL;
    if (!at) continue;
    *at++ = 0;
    found = v2 ? !names[1] : cgroup_lists(names + 1, controller);
    if (found) snprintf(path, bytes, "%s", at);
  }
  if (f) fclose(f);
  return found;
}
// Finds where the controller is mounted, from /proc/self/mountinfo: "31 23 0:28 ROOT POINT rw - cgroup cgroup rw,cpu".
// In a container that sees only its own group, ROOT is that group's path on the host.
static inline bool cgroup_mount(const char *root, const char *controller, bool v2, const char *path, CgroupPlace *p) {
  char line[4096], from[1024], point[1024], type[64], with[1024];
  snprintf(line, sizeof line, "%s/proc/self/mountinfo", root);
  FILE *f = fopen(line, "r");
  bool found = false;
  while (f && !found && fgets(line, sizeof line, f)) {
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(line, "%*s %*s %*s %1023s %1023s", from, point) != 2) continue;
    if (sscanf(rest, " - %63s %*s %1023s", type, with) != 2) continue;
    found = v2 ? !strcmp(type, "cgroup2") : !strcmp(type, "cgroup") && cgroup_lists(with, controller);
    const size_t n = strcmp(from, "/") ? strlen(from) : 0;
    const bool below = !strncmp(path, from, n) && (!path[n] || path[n] == '/');
    if (!found) continue;
    p->top = (size_t)snprintf(p->dir, sizeof p->dir, "%.500s%s", root, point);
    snprintf(p->dir + p->top, sizeof p->dir - p->top, "%.900s", below ? path + n : "");
    for (size_t end = strlen(p->dir); end > p->top && p->dir[end - 1] == '/';) p->dir[--end] = 0;
  }
  if (f) fclose(f);
  p->v2 = v2;
  return found;
}
// Version 1's hierarchy of the controller where there is one, else version 2's.
static inline bool cgroup_find(const char *root, const char *controller, CgroupPlace *p) {
  char path[1024];
  for (int version = 1; version <= 2; version++)
    if (cgroup_path(root, controller, version == 2, path, sizeof path) &&
        cgroup_mount(root, controller, version == 2, path, p))
      return true;
  return false;
}
// Goes to the group above. False at the top.
static inline bool cgroup_up(CgroupPlace *p) {
  char *last = strrchr(p->dir + p->top, '/');
  if (last) *last = 0;
  return last;
}
static inline size_t cgroup_number(const CgroupPlace *p, const char *file, const char *key) {
  char path[2200];
  snprintf(path, sizeof path, "%s/%s", p->dir, file);
  return file_number(path, key);
}

double cgroup_cores(const char *root) {
  CgroupPlace p;
  double least = INFINITY;
  if (!cgroup_find(root, "cpu", &p)) return least;
  do {
    char path[2200];
    double quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", p.dir);            // "200000 100000", "max 100000"
    FILE *f = p.v2 ? fopen(path, "r") : NULL;
    if (f && fscanf(f, "%lf %lf", &quota, &period) != 2) quota = period = 0;
    if (f) fclose(f);
    if (!p.v2) {                                 // -1, read as a number without sign: none
      quota = (double)cgroup_number(&p, "cpu.cfs_quota_us", "");
      period = (double)cgroup_number(&p, "cpu.cfs_period_us", "");
    }
    const bool limits = quota > 0 && quota < 0x1p62 && period > 0 && period < 0x1p62;
    if (limits && quota / period < least) least = quota / period;
  } while (cgroup_up(&p));
  return least;
}
// Bytes that the memory limits of this process's groups leave, SIZE_MAX: no limit. Inactive page cache does not count
// as used: the kernel frees it when memory is needed.
static inline size_t cgroup_memory_left(const char *root) {
  CgroupPlace p;
  size_t least = SIZE_MAX;
  if (!cgroup_find(root, "memory", &p)) return least;
  do {
    const size_t limit = cgroup_number(&p, p.v2 ? "memory.max" : "memory.limit_in_bytes", "");
    size_t used = cgroup_number(&p, p.v2 ? "memory.current" : "memory.usage_in_bytes", "");
    const size_t cached = cgroup_number(&p, "memory.stat", p.v2 ? "inactive_file " : "total_inactive_file ");
    if (limit == SIZE_MAX || used == SIZE_MAX || limit > SIZE_MAX / 4) continue;
    if (cached != SIZE_MAX) used -= cached < used ? cached : used;
    const size_t left = limit > used ? limit - used : 0;
    if (left < least) least = left;
  } while (cgroup_up(&p));
  return least;
}
