// preflight.h: whether hosts, libraries and the network between them fit together: the facts of a host, what is wrong
// (findings), and how both are printed. launch/preflight_net.h measures the network, and has --preflight itself.
#pragma once
#include "launch.h"
#include <glob.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

// ---- facts ----------------------------------------------------------------------------------------------------------
// An address of an interface: text and bits of its network's prefix; mtu in bytes, mbps 0: not known.
struct PreflightNet { char name[16], address[46], network[64]; int prefix, mtu, mbps; };
enum { PREFLIGHT_NETS = 16 };
// The facts that a rank finds about its host. memory, shm_*: bytes; files, memlock: limits of the process (open files,
// locked bytes), INT64_MAX: none. infiniband: number of active ports. gpu_missing: why no GPU can be used, "" if one
// can or none was looked for.
struct PreflightFacts {
  char host[64], boot[40], build[64], mpi[64], kernel[64], cpu[64], isa[16], gpu[64], gpu_missing[192], shm_dir[64];
  int rank, cores, cpus, gpus, driver, runtime, cublaslt, nccl, infiniband, nets;
  bool lost;                                     // a short message of this rank arrived, its facts did not
  int64_t memory, shm_bytes, shm_free, files, memlock;
  PreflightNet net[PREFLIGHT_NETS];
};

// The first line of a file, or what follows "KEY:" in the first line that starts with it; "" where there is none.
static inline void preflight_line(const char *path, const char *key, char *to, size_t bytes) {
  char line[512];
  FILE *f = fopen(path, "r");
  to[0] = 0;
  while (f && fgets(line, sizeof line, f)) {
    const char *at = key ? strchr(line, ':') : line;
    if (key && (strncmp(line, key, strlen(key)) || !at)) continue;
    at += key ? 1 : 0;
    at += strspn(at, " \t");
    snprintf(to, bytes, "%.*s", (int)strcspn(at, "\n"), at);
    break;
  }
  if (f) fclose(f);
}
// Bits of a netmask, and the network that an address is in, as "10.77.0.0/24".
static inline void preflight_network(PreflightNet *n, const NetInterface *of) {
  NetAddress part = of->at;
  size_t bytes;
  uint8_t *to = (uint8_t *)net_bytes((sockaddr *)&part.to, &bytes);
  const uint8_t *mask = (const uint8_t *)net_bytes((const sockaddr *)&of->mask.to, &bytes);
  char text[46];
  n->prefix = 0;
  for (size_t i = 0; i < bytes; i++) {
    n->prefix += __builtin_popcount(mask[i]);
    to[i] &= mask[i];
  }
  net_address_text((const sockaddr *)&part.to, text, sizeof text);
  snprintf(n->network, sizeof n->network, "%s/%d", text, n->prefix);
}
static inline void preflight_link(PreflightNet *n) {           // MTU and speed, asked of the kernel by name
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq r = {};
  snprintf(r.ifr_name, sizeof r.ifr_name, "%s", n->name);
  if (fd < 0) return;
  if (!ioctl(fd, SIOCGIFMTU, &r)) n->mtu = r.ifr_mtu;
  ethtool_cmd c = {};
  c.cmd = ETHTOOL_GSET;
  r.ifr_data = (char *)&c;
  if (!ioctl(fd, SIOCETHTOOL, &r) && ethtool_cmd_speed(&c) < 1u << 30) n->mbps = (int)ethtool_cmd_speed(&c);
  close(fd);
}
// The interfaces through which other hosts may connect.
static inline void preflight_networks(PreflightFacts *p) {
  int count;
  NetInterface *all = net_interfaces(&count);
  for (int i = 0; i < count && p->nets < PREFLIGHT_NETS; i++) {
    if (!all[i].leads || !all[i].mask.bytes) continue;
    PreflightNet *n = &p->net[p->nets++];
    *n = PreflightNet{};
    snprintf(n->name, sizeof n->name, "%.15s", all[i].name);
    net_address_text((const sockaddr *)&all[i].at.to, n->address, sizeof n->address);
    preflight_network(n, &all[i]);
    preflight_link(n);
  }
  free(all);
}
static inline int64_t preflight_limit(int resource) {
  rlimit r;
  if (getrlimit((__rlimit_resource_t)resource, &r)) return 0;
  return r.rlim_cur == RLIM_INFINITY ? INT64_MAX : (int64_t)r.rlim_cur;
}
// The active ports in `devices`, as /sys/class/infiniband has them.
static inline int preflight_infiniband(const char *devices) {
  int active = 0;
  char pattern[512], state[64];
  glob_t ports = {};
  snprintf(pattern, sizeof pattern, "%.400s/*/ports/*/state", devices);
  glob(pattern, 0, NULL, &ports);
  for (size_t i = 0; i < ports.gl_pathc; i++)
    preflight_line(ports.gl_pathv[i], "4", state, sizeof state), active += !strcmp(state, "ACTIVE");
  globfree(&ports);
  return active;
}
static inline void preflight_gpu(PreflightFacts *p, const DeviceProbe *g) {
  if (!g) return;
  p->gpus = g->devices;
  p->driver = g->driver, p->runtime = g->runtime, p->cublaslt = g->cublaslt, p->nccl = g->nccl;
  if (g->devices) snprintf(p->gpu, sizeof p->gpu, "%s", g->device[0].name);
  snprintf(p->gpu_missing, sizeof p->gpu_missing, "%.191s", g->missing);
}
// Fills in the facts of this rank's host. Sends nothing over a network.
static inline void preflight_look(PreflightFacts *p, int rank, const PreflightAsk *ask) {
  int length = 0;
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  Error error;
  utsname u;
  struct statvfs s;
  *p = PreflightFacts{};
  p->rank = rank;
  gethostname(p->host, sizeof p->host - 1);
  preflight_line("/proc/sys/kernel/random/boot_id", NULL, p->boot, sizeof p->boot);
  snprintf(p->build, sizeof p->build, "%s", ask->build);
  MPI_Get_library_version(library, &length);
  snprintf(p->mpi, sizeof p->mpi, "%.*s", (int)strcspn(library, ",\n"), library);
  if (!uname(&u)) snprintf(p->kernel, sizeof p->kernel, "%.60s", u.release);
  preflight_line("/proc/cpuinfo", "model name", p->cpu, sizeof p->cpu);
  const int table = cpu_fast_table();
  snprintf(p->isa, sizeof p->isa, "%s", table < 0 ? "none" : cpu_tables[table].name);
  CoreTable t = {};
  if (cores_read_machine(&t, &error)) {
    p->cores = t.count;
    for (int i = 0; i < t.count; i++) p->cpus += hwloc_bitmap_weight(t.core[i].cpus);
    cores_free(&t);
  }
  preflight_gpu(p, ask->gpu);
  const size_t kb = file_number("/proc/meminfo", "MemTotal:");
  p->memory = kb == SIZE_MAX ? 0 : (int64_t)kb * 1024;
  const char *dir = getenv("OMPI_MCA_osc_sm_backing_directory");
  snprintf(p->shm_dir, sizeof p->shm_dir, "%.63s", dir ? dir : "/dev/shm");
  if (!statvfs(p->shm_dir, &s)) {
    p->shm_bytes = (int64_t)(s.f_blocks * s.f_frsize);
    p->shm_free = (int64_t)(s.f_bavail * s.f_frsize);
  }
  p->files = preflight_limit(RLIMIT_NOFILE);
  p->memlock = preflight_limit(RLIMIT_MEMLOCK);
  p->infiniband = preflight_infiniband("/sys/class/infiniband");
  preflight_networks(p);
}

// ---- findings -------------------------------------------------------------------------------------------------------
// What was measured between two ends (each a host, or a rank). fault: which message did not arrive.
enum PreflightFault { PAIR_WORKS, PAIR_NO_MESSAGE, PAIR_NO_LARGE_MESSAGE, PAIR_NOT_TRIED };
struct PreflightPair { int a, b, fault; double latency_us, bytes_per_s; };               // a, b: hosts, or ranks
// A host. facts: of its first rank; ranks: how many it has; clock_s: by how much its clock is ahead of that of rank 0's
// host, within clock_error_s; sees_out: whether it sees a file in --out that rank 0 made, -1: not asked.
struct PreflightHost { const PreflightFacts *facts; int ranks, sees_out; double clock_s, clock_error_s; };
struct PreflightFound {
  const PreflightFacts *facts;                   // [world], by rank; .host "" for one that was not heard of
  int world, hosts, ends, pairs;                 // numbers of ranks, hosts, ends, measured pairs of ends
  bool ends_are_ranks, network_chosen;           // network_chosen: mpirun was told which to use
  PreflightHost *host;                           // [hosts], in the order of their first ranks
  PreflightPair *pair;
  int64_t out_free;                              // bytes below --out, on rank 0's host
  char out[1024], out_fault[256];                // the directory that was looked at; why rank 0 cannot write there
};
enum PreflightKind { PREFLIGHT_NOTE, PREFLIGHT_WRONG, PREFLIGHT_MEND };        // wrong: worth a line at each start
struct PreflightFinding { PreflightKind kind; char text[640]; };
struct PreflightFindings { int count; PreflightFinding *finding; };

__attribute__((format(printf, 3, 4))) static inline void preflight_find(PreflightFindings *to, PreflightKind kind,
                                                                         const char *fmt, ...) {
  to->finding = (PreflightFinding *)realloc(to->finding, sizeof(PreflightFinding) * (size_t)(to->count + 1));
  PreflightFinding *f = &to->finding[to->count++];
  va_list ap;
  f->kind = kind;
  va_start(ap, fmt);
  vsnprintf(f->text, sizeof f->text, fmt, ap);
  va_end(ap);
}
// The host of a pair's end.
static inline const PreflightFacts *preflight_end(const PreflightFound *f, int end) {
  return f->ends_are_ranks ? &f->facts[end] : f->host[end].facts;
}
static inline const char *preflight_end_words(const PreflightFound *f, int end, char *to, size_t bytes) {
  const PreflightFacts *p = preflight_end(f, end);
  if (f->ends_are_ranks) snprintf(to, bytes, "rank %d on %s", p->rank, p->host);
  else snprintf(to, bytes, "%s", p->host);
  return to;
}
// preflight_common_network: the first network that all hosts are in, as an index into rank 0's networks; -1: none.
static inline bool preflight_has_network(const PreflightFacts *p, const char *network) {
  for (int i = 0; i < p->nets; i++) if (!strcmp(p->net[i].network, network)) return true;
  return false;
}
static inline int preflight_common_network(const PreflightFound *f) {
  for (int i = 0; i < f->host[0].facts->nets; i++) {
    bool all = true;
    for (int h = 1; h < f->hosts && all; h++)
      all = preflight_has_network(f->host[h].facts, f->host[0].facts->net[i].network);
    if (all) return i;
  }
  return -1;
}
// What to type so that only one network is used: the one that all hosts are in. Where there is none, NETWORK/BITS
// stands for one that only the reader can choose.
static inline const char *preflight_only_words(const PreflightFound *f, char *to, size_t bytes) {
  const int common = preflight_common_network(f);
  const PreflightNet *n = common < 0 ? NULL : &f->host[0].facts->net[common];
  snprintf(to, bytes, "mpirun --mca btl_tcp_if_include %s --mca oob_tcp_if_include %s, and for GPUs -x "
           "NCCL_SOCKET_IFNAME=%s", n ? n->network : "NETWORK/BITS", n ? n->network : "NETWORK/BITS",
           n ? n->name : "NAME");
  return to;
}
static inline void preflight_find_mtu(PreflightFindings *to, const char *a, const char *b) {
  preflight_find(to, PREFLIGHT_MEND, "small messages arrive between %s and %s, large ones do not: some hop takes "
                 "smaller packets (MTU) than the hosts send; on %s: ping -M do -s 1472 %s (8972 for an MTU of 9000), "
                 "then ip link set INTERFACE mtu 1400 on both", a, b, a, b);
}
static inline void preflight_judge_pairs(const PreflightFound *f, PreflightFindings *to) {
  char a[128], b[128], only[320];
  for (int r = 0; r < f->world; r++)
    if (!f->facts[r].host[0]) {
      preflight_find(to, PREFLIGHT_MEND, "rank %d sends nothing that rank 0 on %s receives: let TCP through between "
                     "their hosts, or name the network: %s", r, f->facts[0].host,
                     preflight_only_words(f, only, sizeof only));
      break;
    }
  for (int r = 0; r < f->world; r++)
    if (f->facts[r].lost) {
      preflight_find_mtu(to, f->facts[0].host, f->facts[r].host);
      break;
    }
  for (int i = 0; i < f->pairs; i++) {
    const PreflightPair *p = &f->pair[i];
    preflight_end_words(f, p->a, a, sizeof a);
    preflight_end_words(f, p->b, b, sizeof b);
    if (p->fault == PAIR_NO_MESSAGE)
      preflight_find(to, PREFLIGHT_MEND, "no message arrives between %s and %s: let TCP through between them, or name "
                     "the network: %s", a, b, preflight_only_words(f, only, sizeof only));
    if (p->fault == PAIR_NO_LARGE_MESSAGE)
      preflight_find_mtu(to, preflight_end(f, p->a)->host, preflight_end(f, p->b)->host);
  }
}
// Compares a text of the facts, at byte `offset` of them, between host 0 and each other host. The first that differs
// makes a finding of kind `kind`: "what: HOST has TEXT, HOST has TEXT: mend".
static inline void preflight_judge_equal(const PreflightFound *f, PreflightFindings *to, PreflightKind kind,
                                         const char *what, size_t offset, const char *mend) {
  const char *first = (const char *)f->host[0].facts + offset;
  for (int h = 1; h < f->hosts; h++) {
    const char *other = (const char *)f->host[h].facts + offset;
    if (!strcmp(first, other)) continue;
    preflight_find(to, kind, "%s: %s has %s, %s has %s: %s", what, f->host[0].facts->host, first[0] ? first : "none",
                   f->host[h].facts->host, other[0] ? other : "none", mend);
    return;
  }
}
static inline void preflight_judge_gpus(const PreflightFound *f, PreflightFindings *to) {
  const PreflightFacts *first = f->host[0].facts;
  bool any = false;
  for (int h = 0; h < f->hosts; h++) any = any || f->host[h].facts->gpus;
  for (int h = 0; h < f->hosts && any; h++) {
    const PreflightFacts *p = f->host[h].facts;
    if (!p->gpus || p->gpu_missing[0]) {
      preflight_find(to, PREFLIGHT_MEND, "%s cannot compute on a GPU, others can: %s; mend that, or use --device cpu",
                     p->host, p->gpu_missing[0] ? p->gpu_missing : "it shows none (CUDA_VISIBLE_DEVICES, nvidia-smi)");
      return;
    }
    const struct { const char *what; int here, there; } versions[] = {
        {"CUDA driver", first->driver, p->driver}, {"CUDA runtime", first->runtime, p->runtime},
        {"cuBLASLt", first->cublaslt, p->cublaslt}, {"NCCL", first->nccl, p->nccl}};
    for (const auto &v : versions)
      if (v.here != v.there)
        preflight_find(to, PREFLIGHT_MEND, "%s: %s has %d, %s has %d: install the same on all hosts", v.what,
                       first->host, v.here, p->host, v.there);
    if (strcmp(first->gpu, p->gpu))
      preflight_find(to, PREFLIGHT_MEND, "GPU: %s has %s, %s has %s: all ranks need the same; choose hosts that have",
                     first->host, first->gpu, p->host, p->gpu);
  }
}
// Two hosts with one address, networks that do not join all hosts, MTUs that differ in one.
static inline void preflight_judge_networks(const PreflightFound *f, PreflightFindings *to) {
  char only[320];
  const PreflightFacts *lone = NULL;
  const PreflightNet *lonely = NULL, *twin = NULL;
  bool mtu_told = false;                         // one is enough: it says how
  for (int h = 0; h < f->hosts; h++) for (int i = 0; i < f->host[h].facts->nets; i++) {
    const PreflightFacts *p = f->host[h].facts;
    const PreflightNet *n = &p->net[i];
    int in_it = 0;
    for (int k = 0; k < f->hosts; k++) {
      const PreflightFacts *q = f->host[k].facts;
      in_it += preflight_has_network(q, n->network);
      for (int j = 0; j < q->nets && k > h; j++) {
        const PreflightNet *m = &q->net[j];
        if (!strcmp(n->address, m->address) && !twin && !f->network_chosen) {
          twin = n;
          preflight_find(to, PREFLIGHT_MEND, "%s (%s) and %s (%s) have the same address, %s, so what is sent there may "
                         "stay on its host: mpirun --mca btl_tcp_if_exclude lo,%s --mca oob_tcp_if_exclude lo,%s, and "
                         "for GPUs -x NCCL_SOCKET_IFNAME=^lo,%s", p->host, n->name, q->host, m->name, n->address,
                         n->name, n->name, n->name);
        } else if (!strcmp(n->network, m->network) && n->mtu != m->mtu && !mtu_told) {
          mtu_told = true;
          preflight_find(to, PREFLIGHT_MEND, "network %s has packets of %d bytes on %s (%s) and %d on %s (%s): ip link "
                         "set %s mtu %d on the one, or the other way round; every hop between them must take it (ping "
                         "-M do -s %d)", n->network, n->mtu, p->host, n->name, m->mtu, q->host, m->name,
                         n->mtu > m->mtu ? n->name : m->name, n->mtu < m->mtu ? n->mtu : m->mtu,
                         (n->mtu < m->mtu ? n->mtu : m->mtu) - 28);
        }
      }
    }
    if (in_it == 1 && n->prefix < (strchr(n->address, ':') ? 128 : 32) && !lonely) lone = p, lonely = n;
  }
  if (lonely && !f->network_chosen && f->hosts > 1 && preflight_common_network(f) >= 0)
    preflight_find(to, PREFLIGHT_WRONG, "%s on %s (%s) leads to none of the other hosts, yet messages may be sent by "
                   "it: %s", lonely->name, lone->host, lonely->network, preflight_only_words(f, only, sizeof only));
}
static inline void preflight_judge_limits(const PreflightFound *f, PreflightFindings *to) {
  const int64_t files = 4 * (int64_t)f->world + 128;             // connections to all ranks, heartbeats, own files
  int with = 0;
  for (int h = 0; h < f->hosts; h++) with += f->host[h].facts->infiniband > 0;
  for (int h = 0; h < f->hosts; h++) {
    const PreflightFacts *p = f->host[h].facts;
    if (p->files < files)
      preflight_find(to, PREFLIGHT_MEND, "%s allows a process %lld open files, %d ranks need %lld: ulimit -n %lld "
                     "before mpirun", p->host, (long long)p->files, f->world, (long long)files, (long long)files);
    if (p->infiniband && p->memlock < 1 << 30)
      preflight_find(to, PREFLIGHT_MEND, "%s has InfiniBand, but a process may lock only %lld KiB of memory: ulimit -l "
                     "unlimited before mpirun (limits.conf: memlock), or -x NCCL_IB_DISABLE=1 and --mca btl ^openib",
                     p->host, (long long)p->memlock / 1024);
    if (!p->infiniband && with)
      preflight_find(to, PREFLIGHT_WRONG, "%s has no active InfiniBand port, %d other host%s: ibstat, or for TCP "
                     "everywhere -x NCCL_IB_DISABLE=1", p->host, with, with > 1 ? "s have" : " has");
    if (f->host[h].ranks > 1 && p->shm_free <= 64 << 20)
      preflight_find(to, PREFLIGHT_NOTE, "%s has %lld MiB free in %s, where ranks of a host share memory: more "
                     "(docker run --shm-size=8g), or --shm off", p->host, (long long)(p->shm_free >> 20), p->shm_dir);
    if (fabs(f->host[h].clock_s) > 2 + f->host[h].clock_error_s)
      preflight_find(to, PREFLIGHT_WRONG, "the clock of %s is %.1f s %s that of %s: logs and file times will not fit "
                     "together; chronyc makestep, or timedatectl set-ntp true", p->host, fabs(f->host[h].clock_s),
                     f->host[h].clock_s > 0 ? "ahead of" : "behind", f->host[0].facts->host);
  }
}
static inline void preflight_judge_out(const PreflightFound *f, PreflightFindings *to) {
  int blind = 0;
  for (int h = 1; h < f->hosts; h++) blind += f->host[h].sees_out == 0;
  if (f->out_fault[0])
    preflight_find(to, PREFLIGHT_MEND, "rank 0 on %s cannot write to %.200s: %s; name another directory with --out",
                   f->host[0].facts->host, f->out, f->out_fault);
  else if (f->out[0] && f->out_free < 1 << 30)
    preflight_find(to, PREFLIGHT_WRONG, "%.200s has %lld MiB left on %s: --out on another disk", f->out,
                   (long long)(f->out_free >> 20), f->host[0].facts->host);
  if (blind)
    preflight_find(to, PREFLIGHT_NOTE, "%d of %d hosts do not see %.200s of %s: their ranks send what they save to "
                   "rank 0, which is slower than a shared directory", blind, f->hosts, f->out, f->host[0].facts->host);
}
static inline int preflight_by_number(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}
static inline double preflight_median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, preflight_by_number);
  return n ? x[n / 2] : 0;
}
// Finds pairs that are much slower than the median. Pairs within hosts and pairs between hosts are compared separately.
static inline void preflight_judge_speed(const PreflightFound *f, PreflightFindings *to) {
  double *x = (double *)malloc(sizeof(double) * (size_t)(f->pairs + 1));
  for (int far = 0; far < 2; far++) for (int by_bytes = 0; by_bytes < 2; by_bytes++) {
    const PreflightPair *worst = NULL;
    int n = 0;
    for (int i = 0; i < f->pairs; i++) {
      const PreflightPair *p = &f->pair[i];
      const bool crosses = strcmp(preflight_end(f, p->a)->host, preflight_end(f, p->b)->host);
      if (p->fault != PAIR_WORKS || crosses != far) continue;
      x[n++] = by_bytes ? p->bytes_per_s : p->latency_us;
      if (!worst || (by_bytes ? p->bytes_per_s < worst->bytes_per_s : p->latency_us > worst->latency_us)) worst = p;
    }
    const double median = preflight_median(x, n);
    char a[128], b[128];
    if (n < 3) continue;
    preflight_end_words(f, worst->a, a, sizeof a);
    preflight_end_words(f, worst->b, b, sizeof b);
    if (by_bytes && worst->bytes_per_s < median / 2)
      preflight_find(to, PREFLIGHT_NOTE, "%s and %s reach %.3g GB/s, half of the pairs %.3g or more: cable, switch "
                     "port, or another job; every step waits for the slowest", a, b, worst->bytes_per_s * 1e-9,
                     median * 1e-9);
    if (!by_bytes && worst->latency_us > 5 * median && worst->latency_us > 200)
      preflight_find(to, PREFLIGHT_NOTE, "messages between %s and %s take %.0f us, half of the others %.0f or less", a,
                     b, worst->latency_us, median);
  }
  free(x);
}
// Makes all findings; those that keep a run from working come first. to->finding: malloc'ed.
static inline void preflight_judge(const PreflightFound *f, PreflightFindings *to) {
  preflight_judge_pairs(f, to);
  preflight_judge_equal(f, to, PREFLIGHT_MEND, "build", offsetof(PreflightFacts, build),
                        "copy the same program to all hosts");
  preflight_judge_equal(f, to, PREFLIGHT_MEND, "MPI", offsetof(PreflightFacts, mpi),
                        "install the same version on all hosts, and see PATH and LD_LIBRARY_PATH there");
  preflight_judge_gpus(f, to);
  preflight_judge_networks(f, to);
  preflight_judge_limits(f, to);
  preflight_judge_out(f, to);
  preflight_judge_equal(f, to, PREFLIGHT_NOTE, "instruction set", offsetof(PreflightFacts, isa),
                        "all compute with the lesser one");
  preflight_judge_equal(f, to, PREFLIGHT_NOTE, "CPU", offsetof(PreflightFacts, cpu),
                        "every step waits for the slower one");
  preflight_judge_speed(f, to);
}
static inline const PreflightFinding *preflight_first_to_mend(const PreflightFindings *f) {
  for (int i = 0; i < f->count; i++) if (f->finding[i].kind == PREFLIGHT_MEND) return &f->finding[i];
  return NULL;
}

// Groups ranks by host: the same name and boot id. Fills f->host (malloc'ed) from f->facts, without ranks that sent
// nothing.
static inline void preflight_group(PreflightFound *f) {
  f->host = (PreflightHost *)calloc((size_t)f->world + 1, sizeof(PreflightHost));
  f->hosts = 0;
  for (int r = 0; r < f->world; r++) {
    const PreflightFacts *p = &f->facts[r];
    int h = 0;
    while (h < f->hosts && (strcmp(f->host[h].facts->host, p->host) || strcmp(f->host[h].facts->boot, p->boot))) h++;
    if (!p->host[0] || p->lost) continue;
    if (h == f->hosts) f->host[f->hosts++] = PreflightHost{p, 0, -1, 0, 0};
    f->host[h].ranks++;
  }
}

// ---- the table ------------------------------------------------------------------------------------------------------
// Writes names of the hosts for which same[h] is set, the first eight of them.
static inline void preflight_names(FILE *to, const PreflightFound *f, const bool *same) {
  int told = 0, more = 0;
  for (int h = 0; h < f->hosts; h++) {
    if (!same[h]) continue;
    if (told == 8) { more++; continue; }
    fprintf(to, "%s%s", told++ ? ", " : "", f->host[h].facts->host);
  }
  if (more) fprintf(to, " and %d more", more);
}
static inline const char *preflight_bytes_words(int64_t n, char *to, size_t bytes) {
  const bool gib = n >= 1LL << 30;
  if (n == INT64_MAX) snprintf(to, bytes, "unlimited");
  else snprintf(to, bytes, "%.*f %s", gib ? 1 : 0, (double)n / (gib ? 0x1p30 : 0x1p20), gib ? "GiB" : "MiB");
  return to;
}
enum { PREFLIGHT_ROWS = 7, PREFLIGHT_ROW_BYTES = 256 };
static const char *const preflight_row_names[] = {"build", "MPI", "kernel", "CPU", "GPU", "shared", "limits"};
// The facts of a host, a row each.
typedef char PreflightRows[PREFLIGHT_ROWS][PREFLIGHT_ROW_BYTES];
static inline void preflight_rows(const PreflightFacts *p, PreflightRows row) {
  const size_t n = PREFLIGHT_ROW_BYTES;
  char memory[32], shm[32], locked[32], files[32];
  preflight_bytes_words(p->memory, memory, sizeof memory);
  preflight_bytes_words(p->shm_bytes, shm, sizeof shm);
  preflight_bytes_words(p->memlock, locked, sizeof locked);
  snprintf(files, sizeof files, p->files == INT64_MAX ? "unlimited" : "%lld", (long long)p->files);
  snprintf(row[0], n, "%s", p->build);
  snprintf(row[1], n, "%s", p->mpi);
  snprintf(row[2], n, "Linux %s", p->kernel);
  snprintf(row[3], n, "%s, %d cores, %d CPUs, %s, %s", p->cpu, p->cores, p->cpus, p->isa, memory);
  if (!p->gpus) snprintf(row[4], n, "none%s%.150s", p->gpu_missing[0] ? ": " : "", p->gpu_missing);
  else
    snprintf(row[4], n, "%d x %s, driver %d.%d, runtime %d.%d, cuBLASLt %d, NCCL %d", p->gpus, p->gpu,
             p->driver / 1000, p->driver % 1000 / 10, p->runtime / 1000, p->runtime % 1000 / 10, p->cublaslt, p->nccl);
  snprintf(row[5], n, "%s of %s", shm, p->shm_dir);
  snprintf(row[6], n, "%s open files, %s of locked memory", files, locked);
}
// Prints row k: the value that all hosts have, or, marked with an asterisk, each value and the hosts that have it.
static inline void preflight_row(const PreflightFound *f, const PreflightRows *rows, int k) {
  bool *told = (bool *)calloc(2 * (size_t)f->hosts + 2, sizeof(bool)), *same = told + f->hosts + 1, differs = false;
  char *line = NULL;
  size_t bytes = 0;
  for (int h = 0; h < f->hosts; h++) differs = differs || strcmp(rows[h][k], rows[0][k]);
  FILE *to = open_memstream(&line, &bytes);
  for (int h = 0; h < f->hosts; h++) {
    if (told[h]) continue;
    for (int i = 0; i < f->hosts; i++) {
      same[i] = !strcmp(rows[i][k], rows[h][k]);
      told[i] = told[i] || same[i];
    }
    fprintf(to, "%s%s", h ? "; " : "", rows[h][k][0] ? rows[h][k] : "none");
    if (differs) fprintf(to, ": "), preflight_names(to, f, same);
  }
  fclose(to);
  say("%s %-9s %s\n", differs ? "*" : " ", preflight_row_names[k], line);
  free(line);
  free(told);
}
static inline void preflight_print_network(const PreflightFound *f) {
  for (int h = 0; h < f->hosts; h++) {
    const PreflightFacts *p = f->host[h].facts;
    if (!p->nets) say("  network   %s: none\n", p->host);
    for (int i = 0; i < p->nets; i++) {
      const PreflightNet *n = &p->net[i];
      char speed[32] = "";
      if (n->mbps > 0) snprintf(speed, sizeof speed, ", %d Mb/s", n->mbps);
      say("  network   %s: %s %s/%d, MTU %d%s\n", p->host, n->name, n->address, n->prefix, n->mtu, speed);
    }
    if (p->infiniband) say("  network   %s: %d active InfiniBand ports\n", p->host, p->infiniband);
  }
}
static inline void preflight_print_pair(const PreflightFound *f, const PreflightPair *p) {
  char a[128], b[128];
  preflight_end_words(f, p->a, a, sizeof a);
  preflight_end_words(f, p->b, b, sizeof b);
  if (p->fault == PAIR_WORKS)
    say("  between   %s and %s: %.1f us, %.3g GB/s\n", a, b, p->latency_us, p->bytes_per_s * 1e-9);
  else
    say("* between   %s and %s: %s\n", a, b, p->fault == PAIR_NOT_TRIED ? "not tried" : p->fault == PAIR_NO_MESSAGE ?
        "no message arrives" : "large messages do not arrive");
}
enum { PREFLIGHT_PAIRS_SHOWN = 28 };
// Prints every pair if there are few; else least, median and most of all pairs, and the pairs that do not work.
static inline void preflight_print_pairs(const PreflightFound *f) {
  double *us = (double *)malloc(sizeof(double) * 2 * (size_t)(f->pairs + 1)), *rate = us + f->pairs + 1;
  int n = 0;
  for (int i = 0; i < f->pairs; i++) {
    const PreflightPair *p = &f->pair[i];
    if (f->pairs <= PREFLIGHT_PAIRS_SHOWN || p->fault != PAIR_WORKS) preflight_print_pair(f, p);
    if (p->fault != PAIR_WORKS) continue;
    us[n] = p->latency_us;
    rate[n++] = p->bytes_per_s * 1e-9;
  }
  const double us_median = preflight_median(us, n), rate_median = preflight_median(rate, n);
  if (n && f->pairs > PREFLIGHT_PAIRS_SHOWN)
    say("  between   %d pairs of %s: %.1f to %.1f us, median %.1f; %.3g to %.3g GB/s, median %.3g\n", n,
        f->ends_are_ranks ? "ranks" : "hosts", us[0], us[n - 1], us_median, rate[0], rate[n - 1], rate_median);
  free(us);
}
// One table of all hosts; what differs is marked by an asterisk.
static inline void preflight_print(const PreflightFound *f) {
  PreflightRows *rows = (PreflightRows *)calloc((size_t)f->hosts + 1, sizeof(PreflightRows));
  say("preflight: %d rank%s on %d host%s\n", f->world, f->world > 1 ? "s" : "", f->hosts, f->hosts > 1 ? "s" : "");
  for (int h = 0; h < f->hosts && h < 32; h++) {
    const PreflightHost *x = &f->host[h];
    char clock[64] = "";
    if (h && x->clock_error_s > 0)
      snprintf(clock, sizeof clock, ", clock %+.6f s (within %.6f)", x->clock_s, x->clock_error_s);
    say("  host      %s: %d rank%s from rank %d on%s\n", x->facts->host, x->ranks, x->ranks > 1 ? "s" : "",
        x->facts->rank, clock);
  }
  for (int r = 0; r < f->world; r++)
    if (f->facts[r].lost) say("* host      %s: rank %d, of which only short messages arrive\n", f->facts[r].host, r);
    else if (!f->facts[r].host[0]) say("* host      not known: rank %d, of which nothing arrives\n", r);
  for (int h = 0; h < f->hosts; h++) preflight_rows(f->host[h].facts, rows[h]);
  for (int k = 0; k < PREFLIGHT_ROWS; k++) preflight_row(f, rows, k);
  free(rows);
  preflight_print_network(f);
  preflight_print_pairs(f);
  int see = 0;
  char left[32];
  for (int h = 0; h < f->hosts; h++) see += f->host[h].sees_out != 0;
  if (f->out[0])
    say("%s out       %s: %s free on %s; hosts that see it: %d of %d\n", see < f->hosts ? "*" : " ", f->out,
        preflight_bytes_words(f->out_free, left, sizeof left), f->host[0].facts->host, see, f->hosts);
}
