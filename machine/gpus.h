// gpus.h: what this machine can run, and which of its GPUs a rank takes. (Its cores: cores.h.)
#pragma once
#include "base/newfile/newfile.h"
#include "cgroup.h"

enum { CPU_TABLES = PROCESSOR_ISAS };

// The process that started this one: mpirun or its daemon on this host, even if a shell or debugger is between them.
// The parent if none of these is among its ancestors.
static inline int launcher_pid() {
  static const char *const launchers[] = {"mpirun", "mpiexec", "orterun", "prterun", "orted", "prted", "slurmstepd"};
  int pid = (int)getppid();
  for (int generation = 0; generation < 16 && pid > 1; generation++) {
    char path[64], text[256], name[17] = "";     // pid (name) state parent ...; a name may hold anything
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (!open || !close || close < open || sscanf(close + 1, " %*c %d", &parent) != 1) break;
    snprintf(name, sizeof name, "%.*s", (int)(close - open - 1), open + 1);
    for (const char *l : launchers) if (!strcmp(name, l)) return pid;
    pid = parent;
  }
  return (int)getppid();
}
size_t host_available_bytes() {
  const size_t kb = file_number("/proc/meminfo", "MemAvailable:"), left = cgroup_memory_left("");
  return kb == SIZE_MAX || left < kb * 1024 ? left : kb * 1024;
}

enum { CORE_WATCH_MS = 5000 };
double core_watch(CoreWatch *w, double now_ms) {
  if (w->since_ms > 0 && now_ms - w->since_ms < CORE_WATCH_MS) return -1;
  uint64_t ran = 0, waited = 0;
  directory_each("/proc/self/task", [&](const char *, const char *task) {
    char path[300];
    unsigned long long on, off;
    snprintf(path, sizeof path, "%.255s/schedstat", task);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%llu %llu", &on, &off) == 2) ran += on, waited += off;
    if (f) fclose(f);
  });
  const double on = (double)(ran - w->ran_ns), off = (double)(waited - w->waited_ns);
  const bool first = w->since_ms == 0 || ran < w->ran_ns || waited < w->waited_ns;     // fell: a thread ended
  *w = CoreWatch{now_ms, ran, waited};
  return first || on + off <= 0 ? -1 : off / (on + off);
}

GpuChoice choose_gpu(const DeviceProbe *p, MPI_Comm node, MPI_Comm comm) {
  struct Name { char bus[sizeof p->device[0].bus_id], uuid[sizeof p->device[0].uuid]; };
  struct Seen { int n; Name gpu[MAX_DEVICES]; };
  GpuChoice g = {};
  const int rank = comm_rank(node), ranks = comm_size(node);
  Seen *all = (Seen *)calloc((size_t)ranks + 1, sizeof(Seen)), *mine = all + ranks;
  mine->n = p->devices;
  for (int i = 0; i < p->devices; i++) {
    memcpy(mine->gpu[i].bus, p->device[i].bus_id, sizeof mine->gpu[i].bus);
    memcpy(mine->gpu[i].uuid, p->device[i].uuid, sizeof mine->gpu[i].uuid);
  }
  MPI_Allgather(mine, (int)sizeof *mine, MPI_BYTE, all, (int)sizeof *mine, MPI_BYTE, node);
  bool same = true, single = true;
  for (int r = 0; r < ranks; r++) {
    same = same && !memcmp(&all[r], mine, sizeof *mine);
    single = single && all[r].n == 1;
  }
  if (same && mine->n) g.index = rank % mine->n;
  else if (!single)
    snprintf(g.error, sizeof g.error, "the ranks of this host see different GPUs: show all of them the same ones, or "
             "one each (CUDA_VISIBLE_DEVICES)");
  g.gpus = 1;                                    // counted by the first rank on it
  const Name *own = &mine->gpu[g.index];
  for (int r = 0; r < ranks && !g.error[0]; r++) {
    const Name *other = &all[r].gpu[same ? r % mine->n : 0];
    const bool shared = !strcmp(other->bus, own->bus) && !strcmp(other->uuid, own->uuid);
    g.on_gpu += !strcmp(other->bus, own->bus);
    g.sharing += shared;
    if (shared && r < rank) g.gpus = 0;
  }
  free(all);
  MPI_Allreduce(MPI_IN_PLACE, &g.gpus, 1, MPI_INT, MPI_SUM, comm);
  int crowded = g.on_gpu > 1;
  MPI_Allreduce(MPI_IN_PLACE, &crowded, 1, MPI_INT, MPI_MAX, comm);
  g.crowded = crowded;
  return g;
}
