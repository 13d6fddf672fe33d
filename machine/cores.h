// cores.h: which cores of its host a rank takes, and which core each of its threads.
//
// Words. A CPU is what Linux numbers (taskset, lscpu): a hardware thread. A core has one or two CPUs, which are never
// divided between ranks.
//
// How cores are assigned. Every rank knows which CPUs all ranks of its host may use. Ranks that may use the same n
// cores share them: the r-th of R takes cores r n / R to (r + 1) n / R, in hwloc's order, which goes socket by socket
// and NUMA node by NUMA node. So consecutive ranks are neighbours on the machine, and no share spans two sockets unless
// it must. (Linux numbers CPUs in another order on most machines: first one CPU of each core of all sockets, then the
// others.) Shares are equal because ranks wait for each other; a rank has a thread for each of its cores.
//
// Slower cores (Intel's E cores) are not used if the faster ones suffice: work is divided evenly, and all would wait
// for the slowest. They are used if --threads or the number of ranks asks for more threads than there are fast cores.
//
// Each thread is bound to its core if the kernel could choose badly: cores have several CPUs, or the rank several NUMA
// nodes. Threads are not bound if a rank has fewer threads than cores (--threads, a quota), nor after --bind-to none.
// Memory is placed by first touch: the ops that use it write it first, on all threads of their rank, and a rank's part
// of shared memory is zeroed by its threads alternately, 2 MiB each. Without /sys cores are asked of the CPU.
#pragma once
#include "kernels/cpu/threads.h"
#include "terminal.h"

// ---- the machine ----------------------------------------------------------------------------------------------------
// Fills in atom and mhz of the cores, from hwloc, which reads /sys/devices/cpu_atom and the frequencies.
static inline void cores_read_kinds(CoreTable *t) {
#if HWLOC_API_VERSION >= 0x00020400 && HWLOC_API_VERSION < 0x00030000
  hwloc_bitmap_t of_kind = hwloc_bitmap_alloc();
  for (int k = 0, kinds = hwloc_cpukinds_get_nr(t->topology, 0); k < kinds; k++) {
    struct hwloc_info_s *info = NULL;
    unsigned infos = 0;
    if (hwloc_cpukinds_get_info(t->topology, (unsigned)k, of_kind, NULL, &infos, &info, 0)) continue;
    for (int i = 0; i < t->count; i++) {
      if (!hwloc_bitmap_intersects(t->core[i].cpus, of_kind)) continue;
      for (unsigned n = 0; n < infos; n++) {
        if (!strcmp(info[n].name, "CoreType")) t->core[i].atom = !strcmp(info[n].value, "IntelAtom");
        if (!strcmp(info[n].name, "FrequencyMaxMHz")) t->core[i].mhz = atof(info[n].value);
      }
    }
  }
  hwloc_bitmap_free(of_kind);
#else
  (void)t;
#endif
}
// The cores of a loaded topology, in its order. The topology is owned by the table from here on.
static inline void cores_read(CoreTable *t, hwloc_topology_t topology) {
  const hwloc_obj_t root = hwloc_get_root_obj(topology);
  hwloc_obj_t before = NULL;
  *t = CoreTable{topology, NULL, 0, 0, 0, true, hwloc_topology_is_thissystem(topology) == 1};
  t->core = (Core *)calloc((size_t)hwloc_bitmap_weight(root->cpuset) + 1, sizeof(Core));
  for (hwloc_obj_t cpu = NULL; (cpu = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, cpu));) {
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, cpu);
    const hwloc_obj_t socket = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, cpu);
    t->known = t->known && core;
    if (!core) core = cpu;
    if (core == before) continue;
    before = core;
    t->core[t->count++] = Core{hwloc_bitmap_dup(core->cpuset), hwloc_bitmap_dup(core->nodeset),
                               socket ? (int)socket->os_index : -1, false, 0};
  }
  t->sockets = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
  t->nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
  cores_read_kinds(t);
}
void cores_free(CoreTable *t) {
  for (int i = 0; i < t->count; i++) hwloc_bitmap_free(t->core[i].cpus), hwloc_bitmap_free(t->core[i].nodes);
  free(t->core);
  if (t->topology) hwloc_topology_destroy(t->topology);
  *t = CoreTable{};
}
bool cores_read_machine(CoreTable *t, Error *error) {
  for (int x86 = 0; x86 < 2; x86++) {
    hwloc_topology_t topology;
    errno = 0;
    bool loads = !hwloc_topology_init(&topology);
    const bool opened = loads;
    if (loads && !x86) hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    // What this process may not use counts too: so all ranks of the host see the same machine.
    loads = loads && !hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) &&
            !hwloc_topology_load(topology);
    if (loads) cores_read(t, topology);
    if (loads && (t->known || x86)) return true;
    if (loads) cores_free(t);
    else if (opened) hwloc_topology_destroy(topology);
  }
  fail(error, "hwloc cannot read the cores of this host: %s; --threads N runs N threads per rank where the kernel puts "
       "them", errno ? strerror(errno) : "no reason given");
  return false;
}

// ---- dealing --------------------------------------------------------------------------------------------------------
void cores_share_free(CoreShare *s) {
  free(s->core);
  if (s->cpus) hwloc_bitmap_free(s->cpus);
  *s = CoreShare{};
}

// Intel's E cores, and cores whose highest frequency is below three quarters of the fastest one's: cores of one kind
// differ by up to a tenth (Turbo Boost Max, preferred cores).
static inline bool core_is_slow(const Core *c, double fastest_mhz) {
  return c->atom || (c->mhz > 0 && c->mhz < 0.75 * fastest_mhz);
}
// Writes the cores that `mask` allows to `to`, without slow ones where the others are `wanted` (> 0) or more. Returns
// how many; *left_out: slow ones that are not among them.
static inline int cores_usable(const CoreTable *t, hwloc_const_bitmap_t mask, int64_t wanted, int *to, int *left_out) {
  int count = 0, fast = 0;
  double fastest = 0;
  for (int i = 0; i < t->count; i++) {
    if (!hwloc_bitmap_intersects(t->core[i].cpus, mask)) continue;
    to[count++] = i;
    fastest = fmax(fastest, t->core[i].mhz);
  }
  for (int i = 0; i < count; i++) fast += !core_is_slow(&t->core[to[i]], fastest);
  *left_out = 0;
  if (fast == count || fast < wanted) return count;
  *left_out = count - fast;
  fast = 0;
  for (int i = 0; i < count; i++) if (!core_is_slow(&t->core[to[i]], fastest)) to[fast++] = to[i];
  return fast;
}
// How many threads the ranks that may use `mask` can have together: `usable`, the number of their cores, or their part
// of the quota, in proportion to cores and rounded up, if that is less. `docker --cpus=1.5` gives two threads, which
// the kernel stops together at times; one thread would leave half a core unused.
static inline int cores_of_quota(const CoreTable *t, const CoreAsk *a, hwloc_const_bitmap_t mask, int usable) {
  int group = 0, all = 0;
  for (int i = 0; i < t->count; i++) {
    bool any = false;
    for (int r = 0; r < a->ranks && !any; r++) any = hwloc_bitmap_intersects(t->core[i].cpus, a->mask[r]);
    all += any;
    group += hwloc_bitmap_intersects(t->core[i].cpus, mask);
  }
  if (!(a->quota < all)) return usable;
  const int budget = (int)ceil(ceil(a->quota) * group / all);
  return budget < usable ? budget : usable;
}
// Whether the share has several NUMA nodes, or several CPUs in a core.
static inline bool cores_need_placing(const CoreTable *t, const CoreShare *s) {
  bool placing = false;
  for (int i = 0; i < s->cores && !placing; i++) {
    hwloc_bitmap_t cpus = hwloc_bitmap_dup(t->core[s->core[i]].cpus);
    hwloc_bitmap_and(cpus, cpus, s->cpus);
    placing = hwloc_bitmap_weight(cpus) > 1 || !hwloc_bitmap_isequal(t->core[s->core[i]].nodes,
                                                                     t->core[s->core[0]].nodes);
    hwloc_bitmap_free(cpus);
  }
  return placing;
}
CoreShare cores_deal(const CoreTable *t, const CoreAsk *a) {
  hwloc_const_bitmap_t mask = a->mask[a->rank];
  CoreShare s = {};
  int members = 0, place = 0;                    // ranks with this mask; those of them before this rank
  for (int r = 0; r < a->ranks; r++) {
    if (!hwloc_bitmap_isequal(a->mask[r], mask)) continue;
    members++;
    place += r < a->rank;
  }
  s.core = (int *)malloc(sizeof(int) * ((size_t)t->count + 1));
  s.cpus = hwloc_bitmap_alloc();
  const int64_t n = cores_usable(t, mask, (int64_t)members * (a->threads ? a->threads : 1), s.core, &s.left_out);
  const int64_t units = cores_of_quota(t, a, mask, (int)n);      // threads, divided among ranks as evenly as cores
  s.outnumbered = n && units < members;
  const int64_t begin = s.outnumbered ? 0 : units * place / members;
  const int64_t end = s.outnumbered ? units : units * (place + 1) / members;
  const bool all = s.outnumbered || !a->bind;    // any core of the mask
  const int64_t first = all || !units ? 0 : begin * n / units;
  s.threads = a->threads ? a->threads : s.outnumbered ? 1 : (int)(end - begin);
  s.cores = (int)(all || !units ? n : end * n / units - first);
  memmove(s.core, s.core + first, sizeof(int) * (size_t)s.cores);
  for (int i = 0; i < s.cores; i++) hwloc_bitmap_or(s.cpus, s.cpus, t->core[s.core[i]].cpus);
  hwloc_bitmap_and(s.cpus, s.cpus, mask);
  s.bound = a->bind && s.cores > 0;
  s.placed = s.bound && !s.outnumbered && s.threads >= s.cores && cores_need_placing(t, &s);
  for (int r = 0; r < a->ranks && !s.outnumbered; r++)
    s.overlaps |= !hwloc_bitmap_isequal(a->mask[r], mask) && hwloc_bitmap_intersects(a->mask[r], s.cpus);
  return s;
}
// The CPUs that thread `thread` of the rank may use: of its core where threads are placed. -1: a thread that computes
// no op. `to` is overwritten.
static inline void cores_of_thread(const CoreTable *t, const CoreShare *s, int thread, hwloc_bitmap_t to) {
  hwloc_bitmap_copy(to, s->cpus);
  if (!s->placed || thread < 0 || thread >= s->threads) return;
  hwloc_bitmap_and(to, to, t->core[s->core[(int64_t)thread * s->cores / s->threads]].cpus);
}

// ---- words ----------------------------------------------------------------------------------------------------------
// " of socket 1", " of sockets 0-1": `one`, an s where there are several, and the numbers.
static inline void cores_numbers(FILE *to, const char *one, hwloc_const_bitmap_t numbers) {
  char *list = NULL;
  if (hwloc_bitmap_list_asprintf(&list, numbers) < 0) return;
  fprintf(to, "%s%s %s", one, hwloc_bitmap_weight(numbers) > 1 ? "s" : "", list);
  free(list);
}
// The share in words, malloc'ed. Cores are counted where they have several CPUs, sockets and NUMA nodes are named where
// the host has several.
static inline char *cores_words(const CoreTable *t, const CoreShare *s) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *to = open_memstream(&text, &bytes);
  hwloc_bitmap_t sockets = hwloc_bitmap_alloc(), nodes = hwloc_bitmap_alloc();
  const int cpus = hwloc_bitmap_weight(s->cpus);
  for (int i = 0; i < s->cores; i++) {
    const Core *c = &t->core[s->core[i]];
    if (c->socket >= 0) hwloc_bitmap_set(sockets, (unsigned)c->socket);
    hwloc_bitmap_or(nodes, nodes, c->nodes);
  }
  fprintf(to, "%d thread%s", s->threads, s->threads > 1 ? "s" : "");
  if (!s->cores) fprintf(to, " where the kernel puts them");
  else fprintf(to, (s->bound && !s->outnumbered) || cpus == 1 ? " on" : " on any of");
  if (s->cores && cpus > s->cores) fprintf(to, " %d core%s", s->cores, s->cores > 1 ? "s" : "");
  else if (s->cores) cores_numbers(to, " CPU", s->cpus);
  if (s->cores && t->sockets > 1) cores_numbers(to, " of socket", sockets);
  if (s->cores && t->nodes > 1) cores_numbers(to, t->sockets > 1 ? ", NUMA node" : " of NUMA node", nodes);
  if (cpus > s->cores) cores_numbers(to, " (CPU", s->cpus), fprintf(to, ")");
  hwloc_bitmap_free(sockets);
  hwloc_bitmap_free(nodes);
  fclose(to);
  return text;
}

// ---- taking ---------------------------------------------------------------------------------------------------------
static Cores *cores_placed;                      // whose threads thread_place binds

static inline int cores_bind(const Cores *c, int thread) {
  if (!c->share.bound) return 0;
  hwloc_bitmap_t cpus = hwloc_bitmap_alloc(), now = hwloc_bitmap_alloc();
  cores_of_thread(&c->table, &c->share, thread, cpus);
  int failed = 0;
  if (hwloc_get_cpubind(c->table.topology, now, HWLOC_CPUBIND_THREAD) || !hwloc_bitmap_isequal(now, cpus))
    failed = hwloc_set_cpubind(c->table.topology, cpus, HWLOC_CPUBIND_THREAD) ? errno : 0;
  hwloc_bitmap_free(cpus);
  hwloc_bitmap_free(now);
  return failed;
}
static inline void cores_place(int thread) { cores_bind(cores_placed, thread); }

// Whether this rank is bound as its user asked, and not by mpirun's default (two ranks to a core each, more to
// sockets). *none: the user asked for --bind-to none. Open MPI 4 passes such options on in the environment; Open MPI 5
// does not, so there every binding counts as mpirun's default. A rank of a rendezvous (--rdzv) has the CPUs of the
// process that it replaces, and counts as bound by the user.
static inline bool cores_user_bound(bool *none) {
  const char *map = getenv("OMPI_MCA_rmaps_base_mapping_policy"), *bind = getenv("OMPI_MCA_hwloc_base_binding_policy");
  const bool pinned = getenv("OMPI_MCA_hwloc_base_cpu_list") || getenv("OMPI_MCA_hwloc_base_cpu_set") ||
                      getenv("OMPI_MCA_orte_rankfile") || (map && (strstr(map, "PE=") || strstr(map, "pe=")));
  const bool place_taken = getenv("TRAIN_GPT_FSDP_RDZV");
  *none = place_taken || (bind && !getenv("OMPI_MCA_orte_bound_at_launch"));
  return place_taken || bind || pinned;
}
hwloc_bitmap_t cores_mask(const CoreTable *t, bool *bind) {
  hwloc_bitmap_t mask = hwloc_bitmap_alloc(), own = hwloc_bitmap_alloc();
  bool none = false;
  const bool by_user = cores_user_bound(&none), launched = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  *bind = !(launched && none);
  if (!t->topology) { hwloc_bitmap_free(own); return mask; }     // hwloc failed: nothing is known
  hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(t->topology);
  if (hwloc_get_cpubind(t->topology, own, HWLOC_CPUBIND_THREAD)) hwloc_bitmap_copy(own, allowed);
  if (launched && !by_user &&
      !hwloc_get_proc_cpubind(t->topology, launcher_pid(), mask, HWLOC_CPUBIND_THREAD))
    hwloc_bitmap_and(mask, mask, allowed);
  if (hwloc_bitmap_iszero(mask)) hwloc_bitmap_and(mask, own, allowed);
  hwloc_bitmap_free(own);
  return mask;
}
// The masks of all ranks of a host, malloc'ed. All ranks of node call it.
static inline hwloc_bitmap_t *cores_masks(hwloc_const_bitmap_t mine, MPI_Comm node, int ranks) {
  int words = hwloc_bitmap_nr_ulongs(mine);
  words = words > 0 ? words : 1;
  MPI_Allreduce(MPI_IN_PLACE, &words, 1, MPI_INT, MPI_MAX, node);
  unsigned long *all = (unsigned long *)calloc((size_t)words * (size_t)(ranks + 1), sizeof(unsigned long));
  unsigned long *own = all + (size_t)words * (size_t)ranks;
  hwloc_bitmap_to_ulongs(mine, (unsigned)words, own);
  MPI_Allgather(own, words, MPI_UNSIGNED_LONG, all, words, MPI_UNSIGNED_LONG, node);
  hwloc_bitmap_t *mask = (hwloc_bitmap_t *)malloc(sizeof(hwloc_bitmap_t) * (size_t)ranks);
  for (int r = 0; r < ranks; r++) {
    mask[r] = hwloc_bitmap_alloc();
    hwloc_bitmap_from_ulongs(mask[r], (unsigned)words, all + (size_t)words * (size_t)r);
  }
  free(all);
  return mask;
}
static inline void cores_report(Cores *c, const char *fault, MPI_Comm comm) {
  CoreReport *m = &c->mine;
  const CoreShare *s = &c->share;
  char *words = cores_words(&c->table, s);
  const int rank = comm_rank(comm);
  MPI_Comm_size(comm, &c->world);
  *m = CoreReport{"", "", s->threads, s->cores, s->cores ? hwloc_bitmap_weight(s->cpus) : 0, s->left_out,
                  s->outnumbered, s->overlaps, c->table.topology && !c->table.known,
                  c->table.topology && !c->table.real, c->table.sockets > 1 || c->table.nodes > 1};
  for (int i = 0; i < c->table.count; i++) m->several |= hwloc_bitmap_weight(c->table.core[i].cpus) > 1;
  snprintf(m->words, sizeof m->words, "%s", words);
  snprintf(m->fault, sizeof m->fault, "%s", fault);
  free(words);
  c->all = rank ? NULL : (CoreReport *)calloc((size_t)c->world, sizeof(CoreReport));
  MPI_Gather(m, (int)sizeof *m, MPI_BYTE, c->all, (int)sizeof *m, MPI_BYTE, 0, comm);
}
void cores_take(Cores *c, int threads, bool computes, MPI_Comm node, MPI_Comm comm) {
  Error error = {};
  *c = Cores{};
  const bool read = cores_read_machine(&c->table, &error);
  if (!threads) agree_no_error(comm, error.text, EXIT_MISSING);
  CoreAsk a = {comm_rank(node), comm_size(node), threads, cgroup_cores(""), true, NULL};
  hwloc_bitmap_t mine = cores_mask(&c->table, &a.bind), *masks = cores_masks(mine, node, a.ranks);
  a.mask = masks;
  c->share = cores_deal(&c->table, &a);
  cores_placed = c;
  thread_place = c->share.placed ? cores_place : NULL;
  const int fault = cores_bind(c, computes ? 0 : -1);
  cores_report(c, !read ? "hwloc cannot read its cores" : fault ? strerror(fault) : "", comm);
  for (int r = 0; r < a.ranks; r++) hwloc_bitmap_free(masks[r]);
  free(masks);
  hwloc_bitmap_free(mine);
}
bool cores_differ(const Cores *c) {
  bool differ = false;
  for (int r = 0; r < c->world; r++) differ = differ || c->all[r].several;
  return differ;
}
bool cores_are_crowded(const Cores *c) {
  return c->mine.outnumbered || c->mine.overlaps || (c->mine.cpus && c->mine.threads > c->mine.cpus);
}
void cores_give_back(Cores *c) {
  thread_place = NULL;
  cores_share_free(&c->share);
  cores_free(&c->table);
  free(c->all);
  *c = Cores{};
}
void cores_print_warnings(const Cores *c) {
  enum { OUTNUMBERED, OVERLAP, CROWDED, SLOW, UNKNOWN, DESCRIBED, FAULT, KINDS };
  bool told[KINDS] = {};
  for (int r = 0; c->all && r < c->world; r++) {
    const CoreReport *m = &c->all[r];
    const bool crowded = !m->outnumbered && m->cpus && m->threads > m->cpus;
    const bool is[KINDS] = {m->outnumbered, m->overlaps, crowded, m->left_out > 0, m->unknown, m->described,
                            m->fault[0] != 0};
    for (int k = 0; k < KINDS; k++) {
      if (!is[k] || told[k]) continue;
      told[k] = true;
      char who[64] = "";
      snprintf(who, sizeof who, "rank %d", r);
      if (k == OUTNUMBERED)
        say("warning: ranks outnumber cores on the host of %s; they will wait for each other\n", who);
      if (k == OVERLAP) say("warning: other ranks may use CPUs of %s too; they will wait for each other\n", who);
      if (k == CROWDED)
        say("warning: --threads %d on %d CPU%s of %s; they will wait for each other\n", m->threads, m->cpus,
            m->cpus > 1 ? "s" : "", who);
      if (k == SLOW)
        say("warning: %d slower cores of the host of %s are left out; --threads above %d takes them\n", m->left_out,
            who, m->threads);
      if (k == UNKNOWN)
        say("warning: hwloc finds no cores on the host of %s, only CPUs, which count as cores; is /sys mounted?\n",
            who);
      if (k == DESCRIBED)
        say("warning: HWLOC_SYNTHETIC or HWLOC_XMLFILE describes the host of %s; no thread is bound\n", who);
      if (k == FAULT) say("warning: threads of %s run where the kernel puts them: %s\n", who, m->fault);
    }
  }
}
