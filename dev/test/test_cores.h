// test_cores.h: which cores a rank takes (launch/cores.h), on machines that hwloc describes and nobody has here; the
// binding of threads and the exchange of masks on this one.
#include <hwloc.h>

// ---- machines -------------------------------------------------------------------------------------------------------
// Linux's numbering of hyper-threads on n cores: one CPU of every core of every socket first, then the others.
#define CORES_AS_LINUX(n) "pu:2(indexes=2*" #n ":" #n "*1)"
static void cores_describe(CoreTable *t, const char *synthetic) {  // `t` becomes that machine
  hwloc_topology_t topology;
  const bool good = !hwloc_topology_init(&topology) && !hwloc_topology_set_synthetic(topology, synthetic) &&
                    !hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) &&
                    !hwloc_topology_load(topology);
  if (!good) test_fail(__FILE__, __LINE__, "hwloc does not take %s", synthetic), exit(TEST_EXIT_FAILED);
  cores_read(t, topology);
}
static hwloc_bitmap_t cores_list(const char *list) {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  hwloc_bitmap_list_sscanf(set, list);
  return set;
}
static bool cores_are(hwloc_const_bitmap_t set, const char *list) {
  hwloc_bitmap_t other = cores_list(list);
  const bool same = hwloc_bitmap_isequal(set, other);
  hwloc_bitmap_free(other);
  return same;
}
static const char *cores_text(hwloc_const_bitmap_t set) {
  static char text[4][512];
  static int turn;
  turn = (turn + 1) % 4;
  hwloc_bitmap_list_snprintf(text[turn], sizeof text[0], set);
  return text[turn];
}
// What a host's ranks ask for; mask[r]: a list of CPUs, the last one given for all ranks after it as well.
enum { CORES_RANKS = 64 };
struct CoresHost { int ranks, threads; double quota; const char *mask[CORES_RANKS]; };
static void cores_deal_all(const CoreTable *t, const CoresHost *h, bool bind, CoreShare *share) {
  hwloc_bitmap_t mask[CORES_RANKS];
  for (int r = 0, last = 0; r < h->ranks; r++) {
    if (h->mask[r]) last = r;
    mask[r] = h->mask[last] ? cores_list(h->mask[last])
                            : hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(t->topology));
  }
  for (int r = 0; r < h->ranks; r++) {
    const CoreAsk a = {r, h->ranks, h->threads, h->quota, bind, mask};
    share[r] = cores_deal(t, &a);
  }
  for (int r = 0; r < h->ranks; r++) hwloc_bitmap_free(mask[r]);
}
// A machine, its ranks, and what they must be assigned, rank by rank: threads and CPUs ("4: 0-3"). flags: o
// outnumbered, v overlaps, p placed.
struct CoresCase { const char *machine; CoresHost host; const char *flags, *dealt[CORES_RANKS]; };
static void cores_expect(const CoreTable *t, const CoresCase *c) {
  CoreShare share[CORES_RANKS];
  cores_deal_all(t, &c->host, true, share);
  for (int r = 0; r < c->host.ranks; r++) {
    const CoreShare *s = &share[r];
    const char *what = c->dealt[r] ? c->dealt[r] : "nothing is stated";
    int threads = -1, at = 0;
    sscanf(what, "%d: %n", &threads, &at);
    EXPECT(s->threads == threads && cores_are(s->cpus, what + at), "%s, rank %d of %d: %d threads on CPUs %s, not %s",
           c->machine, r, c->host.ranks, s->threads, cores_text(s->cpus), what);
    EXPECT(s->outnumbered == !!strchr(c->flags, 'o') && s->overlaps == !!strchr(c->flags, 'v') &&
           s->placed == !!strchr(c->flags, 'p'),
           "%s, rank %d of %d: outnumbered %d, overlaps %d, placed %d, not \"%s\"", c->machine, r, c->host.ranks,
           s->outnumbered, s->overlaps, s->placed, c->flags);
  }
  for (int r = 0; r < c->host.ranks; r++) cores_share_free(&share[r]);
}
#define CORES_FREE 0, INFINITY

// ---- dealing --------------------------------------------------------------------------------------------------------
TEST(cores_are_dealt_by_socket_and_node,
     "ranks take whole cores, socket by socket and NUMA node by NUMA node, however Linux numbers the CPUs; a thread a "
     "core") {
  static const CoresCase cases[] = {
      {"pack:2 [numa] core:8 " CORES_AS_LINUX(16), {1, CORES_FREE, {}}, "p", {"16: 0-31"}},
      {"pack:2 [numa] core:8 " CORES_AS_LINUX(16), {2, CORES_FREE, {}}, "p", {"8: 0-7,16-23", "8: 8-15,24-31"}},
      {"pack:2 [numa] core:8 " CORES_AS_LINUX(16), {4, CORES_FREE, {}}, "p",
       {"4: 0-3,16-19", "4: 4-7,20-23", "4: 8-11,24-27", "4: 12-15,28-31"}},
      {"pack:2 [numa] core:8 " CORES_AS_LINUX(16), {3, CORES_FREE, {}}, "p",
       {"5: 0-4,16-20", "5: 5-9,21-25", "6: 10-15,26-31"}},
      {"pack:2 [numa] core:16 pu:2", {2, CORES_FREE, {}}, "p", {"16: 0-31", "16: 32-63"}},
      {"pack:2 [numa] core:4 pu:1(indexes=0,2,4,6,1,3,5,7)", {2, CORES_FREE, {}}, "", {"4: 0,2,4,6", "4: 1,3,5,7"}},
      {"pack:2 numa:2 core:2 " CORES_AS_LINUX(8), {4, CORES_FREE, {}}, "p",
       {"2: 0-1,8-9", "2: 2-3,10-11", "2: 4-5,12-13", "2: 6-7,14-15"}},
      {"pack:1 numa:2 core:4 pu:1(indexes=0,2,4,6,1,3,5,7)", {2, CORES_FREE, {}}, "", {"4: 0,2,4,6", "4: 1,3,5,7"}},
      {"pack:1 numa:2 core:4 pu:1(indexes=0,2,4,6,1,3,5,7)", {1, CORES_FREE, {}}, "p", {"8: 0-7"}},
      {"pack:1 core:2 pu:1", {2, CORES_FREE, {}}, "", {"1: 0", "1: 1"}},
      {"pu:4", {2, CORES_FREE, {}}, "", {"2: 0-1", "2: 2-3"}},
      {"pack:1 [numa] [numa] core:4 pu:1", {2, CORES_FREE, {}}, "", {"2: 0-1", "2: 2-3"}}};
  for (const CoresCase &c : cases) {
    CoreTable t;
    cores_describe(&t, c.machine);
    cores_expect(&t, &c);
    EXPECT(t.known == !!strstr(c.machine, "core"), "%s: cores are %sknown", c.machine, t.known ? "" : "not ");
    cores_free(&t);
  }
}

TEST(cores_that_ranks_may_use_are_respected,
     "control groups, taskset and masks that mpirun or srun gave: no rank leaves its mask; ranks with one mask share "
     "it, others keep their own; hardware threads of one core may go to several ranks") {
  const char *two = "pack:2 [numa] core:8 " CORES_AS_LINUX(16);
  static const struct { CoresHost host; const char *flags, *dealt[CORES_RANKS]; } cases[] = {
      {{2, CORES_FREE, {"4-11"}}, "", {"4: 4-7", "4: 8-11"}},                    // one CPU of each core
      {{2, CORES_FREE, {"4-7,20-23,8-9,24-25"}}, "p", {"3: 4-6,20-22", "3: 7-9,23-25"}},
      {{1, CORES_FREE, {"24-31"}}, "", {"8: 24-31"}},
      {{1, CORES_FREE, {"7-8"}}, "p", {"2: 7-8"}},                               // two sockets
      {{2, CORES_FREE, {"0-3,16-19", "4-7,20-23"}}, "p", {"4: 0-3,16-19", "4: 4-7,20-23"}},
      {{4, CORES_FREE, {"0-7", "8-15", "0-7", "8-15"}}, "", {"4: 0-3", "4: 8-11", "4: 4-7", "4: 12-15"}},
      {{4, CORES_FREE, {"0", "1", "16", "17"}}, "", {"1: 0", "1: 1", "1: 16", "1: 17"}},
      {{2, CORES_FREE, {"0-5", "2-7"}}, "v", {"6: 0-5", "6: 2-7"}},
      {{2, CORES_FREE, {"0-1,90"}}, "", {"1: 0", "1: 1"}}};                      // a CPU that hwloc does not know
  CoreTable t;
  cores_describe(&t, two);
  for (const auto &c : cases) {
    CoresCase all = {two, c.host, c.flags, {}};
    memcpy(all.dealt, c.dealt, sizeof all.dealt);
    cores_expect(&t, &all);
  }
  cores_free(&t);
}

TEST(cores_run_out,
     "more ranks than cores: a thread each, on any core; a quota of control groups counts as cores, rounded up, and is "
     "shared like them; --threads is taken as given") {
  static const CoresCase cases[] = {
      {"pack:1 core:2 pu:2", {3, CORES_FREE, {}}, "o", {"1: 0-3", "1: 0-3", "1: 0-3"}},
      {"pack:1 core:2 pu:1", {3, 2, INFINITY, {}}, "o", {"2: 0-1", "2: 0-1", "2: 0-1"}},
      {"pack:2 core:8 " CORES_AS_LINUX(16), {1, 0, 2, {}}, "", {"2: 0-31"}},
      {"pack:2 core:8 " CORES_AS_LINUX(16), {2, 0, 3.5, {}}, "", {"2: 0-7,16-23", "2: 8-15,24-31"}},
      {"pack:2 core:8 " CORES_AS_LINUX(16), {4, 0, 2, {}}, "o", {"1: 0-31", "1: 0-31", "1: 0-31", "1: 0-31"}},
      {"pack:2 core:8 " CORES_AS_LINUX(16), {4, 0, 4, {"0-7", "8-15", "0-7", "8-15"}}, "",
       {"1: 0-3", "1: 8-11", "1: 4-7", "1: 12-15"}},
      {"pack:2 core:8 " CORES_AS_LINUX(16), {2, 0, 16, {}}, "p", {"8: 0-7,16-23", "8: 8-15,24-31"}},
      {"pack:2 core:8 " CORES_AS_LINUX(16), {2, 4, INFINITY, {}}, "", {"4: 0-7,16-23", "4: 8-15,24-31"}},
      {"pack:2 core:8 " CORES_AS_LINUX(16), {2, 8, INFINITY, {}}, "p", {"8: 0-7,16-23", "8: 8-15,24-31"}},
      {"pack:2 core:8 " CORES_AS_LINUX(16), {2, 16, INFINITY, {}}, "p", {"16: 0-7,16-23", "16: 8-15,24-31"}}};
  for (const CoresCase &c : cases) {
    CoreTable t;
    cores_describe(&t, c.machine);
    cores_expect(&t, &c);
    cores_free(&t);
  }
  const struct { const char *machine; double quota; int ranks, together; } quotas[] = {
      {"pu:64", 2, 1, 2}, {"pu:64", 2, 2, 2}, {"pu:64", 1.5, 1, 2}, {"pu:64", 0.2, 1, 1}, {"pu:64", INFINITY, 3, 64},
      {"pu:2", 8, 1, 2}, {"pu:64", 2, 4, 4}, {"pu:7", 5.5, 4, 6}, {"pu:7", 6, 5, 6}, {"pu:8", 7, 5, 7}};
  for (const auto &q : quotas) {
    CoreTable t;
    CoreShare share[CORES_RANKS];
    const CoresHost h = {q.ranks, 0, q.quota, {}};
    cores_describe(&t, q.machine);
    cores_deal_all(&t, &h, true, share);
    int threads = 0;
    for (int r = 0; r < q.ranks; r++) {
      threads += share[r].threads;
      EXPECT(share[r].threads <= share[r].cores, "%s, quota %g: rank %d has %d threads on %d cores", q.machine, q.quota,
             r, share[r].threads, share[r].cores);
      cores_share_free(&share[r]);
    }
    EXPECT(threads == q.together, "%s, quota %g, %d ranks: %d threads", q.machine, q.quota, q.ranks, threads);
    cores_free(&t);
  }
}

// Deals the `cores` cores of `allowed` to ranks and expects what must hold of any such dealing: all is taken, no core
// is split, shares are equal, sockets come in order. even: no share may have cores of two sockets.
static void cores_expect_exact(const CoreTable *t, const char *machine, hwloc_const_bitmap_t allowed, int cores,
                               int ranks, bool even) {
  CoreShare share[CORES_RANKS];
  char list[512], what[1024];
  hwloc_bitmap_list_snprintf(list, sizeof list, allowed);
  const CoresHost h = {ranks, CORES_FREE, {list}};
  hwloc_bitmap_t taken = hwloc_bitmap_alloc(), part = hwloc_bitmap_alloc();
  cores_deal_all(t, &h, true, share);
  for (int r = 0, last = 0; r < ranks; r++) {
    const CoreShare *s = &share[r];
    int first = -1;                              // socket of the rank's first core
    snprintf(what, sizeof what, "%s of %s, rank %d of %d, on %s", list, machine, r, ranks, cores_text(s->cpus));
    EXPECT(!hwloc_bitmap_intersects(taken, s->cpus), "%s: CPUs of another rank", what);
    hwloc_bitmap_or(taken, taken, s->cpus);
    EXPECT(s->cores == s->threads && s->cores >= cores / ranks && s->cores <= (cores + ranks - 1) / ranks,
           "%s: %d of %d cores, %d threads", what, s->cores, cores, s->threads);
    for (int i = 0; i < t->count; i++) {
      const int socket = t->core[i].socket;
      if (!hwloc_bitmap_intersects(t->core[i].cpus, s->cpus)) continue;
      hwloc_bitmap_andnot(part, t->core[i].cpus, s->cpus);
      EXPECT(!hwloc_bitmap_intersects(part, allowed), "%s: core %d is split", what, i);
      EXPECT(first < 0 || !even || socket == first, "%s: two sockets", what);
      EXPECT(socket >= last, "%s: back to socket %d", what, socket);
      first = first < 0 ? socket : first;
      last = socket > last ? socket : last;
    }
  }
  EXPECT(hwloc_bitmap_isequal(taken, allowed), "%s of %s: %d ranks take %s", list, machine, ranks, cores_text(taken));
  for (int r = 0; r < ranks; r++) cores_share_free(&share[r]);
  hwloc_bitmap_free(taken);
  hwloc_bitmap_free(part);
}
TEST(cores_are_shared_out_exactly,
     "what ranks of one mask take together is all that it allows; no core is split; shares differ by one core at most; "
     "sockets come in order, and where every socket has whole shares no share has two") {
  static const char *const machines[] = {
      "pack:2 [numa] core:6 " CORES_AS_LINUX(12), "pack:2 numa:2 core:3 " CORES_AS_LINUX(12),
      "pack:4 [numa] core:3 pu:1(indexes=0,4,8,1,5,9,2,6,10,3,7,11)", "pack:1 core:7 pu:2",
      "pack:2 [numa] l3:2 core:3 pu:2"};
  static const char *const masks[] = {NULL, "0-11", "3-8,12-23", "0,2,4,6,8,10,12,14,16,18", "5-60", "1-2,13-14"};
  for (const char *machine : machines) for (const char *mask : masks) {
    CoreTable t;
    cores_describe(&t, machine);
    hwloc_bitmap_t allowed = mask ? cores_list(mask) : hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(t.topology));
    hwloc_bitmap_and(allowed, allowed, hwloc_topology_get_topology_cpuset(t.topology));
    int cores = 0, of_socket[8] = {};
    for (int i = 0; i < t.count; i++)
      if (hwloc_bitmap_intersects(t.core[i].cpus, allowed)) cores++, of_socket[t.core[i].socket]++;
    for (int ranks = 1; ranks <= cores; ranks++) {
      bool even = cores % ranks == 0;            // every socket has whole shares: then no share has cores of two
      for (int k = 0; k < t.sockets && even; k++) even = of_socket[k] % (cores / ranks) == 0;
      cores_expect_exact(&t, machine, allowed, cores, ranks, even);
    }
    hwloc_bitmap_free(allowed);
    cores_free(&t);
  }
}

// ---- hybrid CPUs ----------------------------------------------------------------------------------------------------
static void cores_add_kind(CoreTable *t, const char *cpus, const char *name, const char *value) {
  struct hwloc_info_s info = {(char *)name, (char *)value};
  hwloc_bitmap_t set = cores_list(cpus);
  if (hwloc_cpukinds_register(t->topology, set, -1, 1, &info, 0)) test_fail(__FILE__, __LINE__, "no kind %s", value);
  hwloc_bitmap_free(set);
}
// The same machine through hwloc's XML, as HWLOC_XMLFILE would bring it.
static void cores_through_xml(CoreTable *t) {
  hwloc_topology_t copy;
  char *xml = NULL;
  int bytes = 0;
  const bool good = !hwloc_topology_export_xmlbuffer(t->topology, &xml, &bytes, 0) && !hwloc_topology_init(&copy) &&
                    !hwloc_topology_set_xmlbuffer(copy, xml, bytes) && !hwloc_topology_load(copy);
  if (!good) test_fail(__FILE__, __LINE__, "no XML"), exit(TEST_EXIT_FAILED);
  hwloc_free_xmlbuffer(t->topology, xml);
  cores_free(t);
  cores_read(t, copy);
}
TEST(cores_leave_slow_ones_out,
     "E cores, and cores with less than three quarters of the others' frequency, are left out unless --threads or the "
     "ranks need them or nothing else is allowed; a tenth less is no other kind of core; the same from hwloc's XML") {
  // 4 P cores of two CPUs, 0-7, and 8 E cores of one CPU each, 8, 10, ... 22, as on a desktop.
  const char *hybrid = "pack:1 core:12 pu:2";
  static const struct { CoresHost host; const char *flags, *dealt[CORES_RANKS]; int left_out; } cases[] = {
      {{1, CORES_FREE, {"0-7,8,10,12,14,16,18,20,22"}}, "p", {"4: 0-7"}, 8},
      {{2, CORES_FREE, {"0-7,8,10,12,14,16,18,20,22"}}, "p", {"2: 0-3", "2: 4-7"}, 8},
      {{4, 1, INFINITY, {"0-7,8,10,12,14,16,18,20,22"}}, "p", {"1: 0-1", "1: 2-3", "1: 4-5", "1: 6-7"}, 8},
      {{6, CORES_FREE, {"0-7,8,10,12,14,16,18,20,22"}}, "", {}, 0},
      {{1, 12, INFINITY, {"0-7,8,10,12,14,16,18,20,22"}}, "p", {"12: 0-7,8,10,12,14,16,18,20,22"}, 0},
      {{1, 5, INFINITY, {"0-7,8,10,12,14,16,18,20,22"}}, "", {"5: 0-7,8,10,12,14,16,18,20,22"}, 0},
      {{1, CORES_FREE, {"8,10,12,14"}}, "", {"4: 8,10,12,14"}, 0},
      {{1, CORES_FREE, {"6-7,8,10"}}, "p", {"1: 6-7"}, 2}};
  for (const bool by_name : {true, false}) for (const bool xml : {false, true}) {
    CoreTable t;
    cores_describe(&t, hybrid);
    cores_add_kind(&t, "0-3", by_name ? "CoreType" : "FrequencyMaxMHz", by_name ? "IntelCore" : "5400");
    cores_add_kind(&t, "4-7", by_name ? "CoreType" : "FrequencyMaxMHz", by_name ? "IntelCore" : "5100");
    cores_add_kind(&t, "8-23", by_name ? "CoreType" : "FrequencyMaxMHz", by_name ? "IntelAtom" : "3700");
    if (xml) cores_through_xml(&t);
    else cores_read_kinds(&t);
    for (const auto &c : cases) {
      CoreShare share[CORES_RANKS];
      CoresCase all = {hybrid, c.host, c.flags, {}};
      memcpy(all.dealt, c.dealt, sizeof all.dealt);
      if (c.dealt[0]) cores_expect(&t, &all);
      cores_deal_all(&t, &c.host, true, share);
      for (int r = 0; r < c.host.ranks; r++) {
        EXPECT(share[r].left_out == c.left_out, "rank %d of %d: %d cores are left out, not %d", r, c.host.ranks,
               share[r].left_out, c.left_out);
        EXPECT(c.dealt[0] || share[r].cores == 2, "rank %d of %d has %d cores of all 12", r, c.host.ranks,
               share[r].cores);
        cores_share_free(&share[r]);
      }
    }
    cores_free(&t);
  }
}

// ---- threads --------------------------------------------------------------------------------------------------------
TEST(cores_of_threads,
     "threads are placed in order over the cores of a rank, all CPUs of the core each, where cores have several CPUs "
     "or the rank several NUMA nodes, and there is a thread for each; else, and for other threads, all of the share") {
  static const struct { const char *machine; int threads; bool bind; const char *cpus[5]; } cases[] = {
      {"pack:2 [numa] core:2 " CORES_AS_LINUX(4), 0, true, {"0-7", "0,4", "1,5", "2,6", "3,7"}},
      {"pack:2 [numa] core:1 pu:1", 0, true, {"0-1", "0", "1"}},
      {"pack:1 core:2 pu:2", 4, true, {"0-3", "0-1", "0-1", "2-3", "2-3"}},
      {"pack:1 core:3 pu:2", 4, true, {"0-5", "0-1", "0-1", "2-3", "4-5"}},
      {"pack:1 core:3 pu:2", 2, true, {"0-5", "0-5", "0-5"}},
      {"pack:1 core:2 pu:1", 0, true, {"0-1", "0-1", "0-1"}},
      {"pack:2 [numa] core:2 " CORES_AS_LINUX(4), 0, false, {"0-7", "0-7", "0-7", "0-7", "0-7"}}};
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  for (const auto &c : cases) {
    CoreTable t;
    CoreShare s;
    const CoresHost h = {1, c.threads, INFINITY, {}};
    cores_describe(&t, c.machine);
    cores_deal_all(&t, &h, c.bind, &s);
    for (int thread = -1; thread < s.threads; thread++) {
      cores_of_thread(&t, &s, thread, set);
      const char *cpus = c.cpus[thread + 1] ? c.cpus[thread + 1] : "";
      EXPECT(cores_are(set, cpus), "%s: thread %d of %d may use %s, not %s", c.machine, thread, s.threads,
             cores_text(set), cpus);
    }
    EXPECT(s.bound == c.bind, "%s: bound %d", c.machine, s.bound);
    cores_share_free(&s);
    cores_free(&t);
  }
  hwloc_bitmap_free(set);
}

TEST(cores_in_words, "what the startup log shows of a share names what the machine has several of") {
  static const struct { const char *machine; CoresHost host; bool bind; const char *words; } cases[] = {
      {"pack:1 core:2 pu:1", {2, CORES_FREE, {}}, true, "1 thread on CPU 0"},
      {"pack:1 core:2 pu:1", {1, CORES_FREE, {}}, true, "2 threads on CPUs 0-1"},
      {"pack:1 core:2 pu:1", {3, CORES_FREE, {}}, true, "1 thread on any of CPUs 0-1"},
      {"pack:1 core:1 pu:1", {3, CORES_FREE, {}}, true, "1 thread on CPU 0"},
      {"pack:1 core:2 pu:1", {1, CORES_FREE, {}}, false, "2 threads on any of CPUs 0-1"},
      {"pack:1 core:2 pu:2", {1, CORES_FREE, {}}, true, "2 threads on 2 cores (CPUs 0-3)"},
      {"pack:1 core:2 pu:2", {2, 2, INFINITY, {}}, true, "2 threads on 1 core (CPUs 0-1)"},
      {"pack:2 [numa] core:8 " CORES_AS_LINUX(16), {2, CORES_FREE, {}}, true,
       "8 threads on 8 cores of socket 0, NUMA node 0 (CPUs 0-7,16-23)"},
      {"pack:2 [numa] core:8 " CORES_AS_LINUX(16), {2, CORES_FREE, {}}, false,
       "8 threads on any of 16 cores of sockets 0-1, NUMA nodes 0-1 (CPUs 0-31)"},
      {"pack:2 [numa] core:8 pu:1", {4, CORES_FREE, {}}, true, "4 threads on CPUs 0-3 of socket 0, NUMA node 0"},
      {"pack:1 numa:2 core:8 pu:1", {2, CORES_FREE, {}}, true, "8 threads on CPUs 0-7 of NUMA node 0"},
      {"pu:4", {1, 3, INFINITY, {"70"}}, true, "3 threads where the kernel puts them"}};
  for (const auto &c : cases) {
    CoreTable t;
    CoreShare share[CORES_RANKS];
    cores_describe(&t, c.machine);
    cores_deal_all(&t, &c.host, c.bind, share);
    char *words = cores_words(&t, &share[0]);
    EXPECT(!strcmp(words, c.words), "%s: \"%s\", not \"%s\"", c.machine, words, c.words);
    free(words);
    for (int r = 0; r < c.host.ranks; r++) cores_share_free(&share[r]);
    cores_free(&t);
  }
}

// ---- this machine ---------------------------------------------------------------------------------------------------

TEST_MPI(cores_given_by_a_launcher_are_kept, 2,
         "two ranks with one mask share it; each with its own mask keeps it; on a GPU the thread may use all of the "
         "share; rank 0 has every rank's words") {
  int cpu[2], rank;
  if (cores_here(cpu) < 2 || cpu[0] != 0 || cpu[1] != 1) SKIP("this test needs CPUs 0 and 1");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  static Cores c;
  cores_pretend("pack:1 core:2 pu:1");
  for (int turn = 0; turn < 3; turn++) {
    if (turn == 1) cores_use(!rank, !rank);                // rank 0 on CPU 1, rank 1 on CPU 0
    else cores_use(0, 1);
    const int mine = turn == 1 ? !rank : rank;
    cores_take(&c, 0, turn != 2, MPI_COMM_WORLD, MPI_COMM_WORLD);
    EXPECT(c.share.threads == 1 && cores_now() == mine && !c.share.overlaps && !c.share.outnumbered,
           "turn %d, rank %d: %d threads, CPU %d, not %d", turn, rank, c.share.threads, cores_now(), mine);
    char words[64];
    snprintf(words, sizeof words, "1 thread on CPU %d", turn == 1 ? 0 : 1);
    EXPECT(rank ? !c.all : !strcmp(c.all[1].words, words), "turn %d: rank 1 has %s, not %s", turn,
           rank ? "a list" : c.all[1].words, words);
    cores_give_back(&c);
  }
}

TEST(cores_are_bound_by_whom,
     "who has bound a rank, by what mpirun of Open MPI 4 and 5 and a rendezvous leave in its environment") {
  static const struct { const char *name, *value, *more; bool user, none; } table[] = {
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0", NULL, false, false},
      {"OMPI_MCA_orte_bound_at_launch", "1", NULL, false, false},
      {"OMPI_MCA_hwloc_base_binding_policy", "none", NULL, true, true},
      {"OMPI_MCA_hwloc_base_binding_policy", "core", "OMPI_MCA_orte_bound_at_launch", true, false},
      {"OMPI_MCA_hwloc_base_cpu_list", "0,1", NULL, true, false},
      {"OMPI_MCA_rmaps_base_mapping_policy", "slot:PE=2", NULL, true, false},
      {"OMPI_MCA_rmaps_base_mapping_policy", "slot", NULL, false, false},
      {"PRTE_LAUNCHED", "1", NULL, false, false},
      {"TRAIN_GPT_FSDP_RDZV", "a job", NULL, true, true}};
  for (const auto &t : table) {
    bool none = !t.none;
    for (const auto &other : table) unsetenv(other.name);
    setenv(t.name, t.value, 1);
    if (t.more) setenv(t.more, "1", 1);
    EXPECT(cores_user_bound(&none) == t.user && none == t.none, "%s=%s: %s", t.name, t.value,
           none ? "nobody may bind" : "");
  }
}

TEST_MPI(cores_without_hwloc, 1,
         "where hwloc reads nothing there is one line with a way to go; with --threads that many run, not bound") {
  static Cores c;
  CoreTable t = {};
  Error error = {};
  cores_pretend("pack:1 core:2 pu:1");
  unsetenv("HWLOC_SYNTHETIC");
  setenv("HWLOC_COMPONENTS", "stop", 1);
  const bool reads = cores_read_machine(&t, &error);
  EXPECT(!reads && strstr(error.text, "hwloc cannot read the cores of this host: ") &&
         strstr(error.text, "--threads N"),
         "it reads %d cores: %s", t.count, error.text);
  cores_take(&c, 3, true, MPI_COMM_WORLD, MPI_COMM_WORLD);
  EXPECT(c.share.threads == 3 && !c.share.bound && !cores_are_crowded(&c) && !thread_place, "%d threads, bound %d",
         c.share.threads, c.share.bound);
  EXPECT(!strcmp(c.all[0].words, "3 threads where the kernel puts them") && c.all[0].fault[0], "%s: %s",
         c.all[0].words, c.all[0].fault);
  cores_give_back(&c);
}

TEST(cores_at_the_start,
     "--verbose and metrics.jsonl name the cores of each rank as mpirun's own mask and its options leave them; the "
     "start does on a machine where it matters; one that HWLOC_SYNTHETIC describes is said to be no real one") {
  int cpu[2];
  CliRun r;
  if (cores_here(cpu) < 2 || cpu[0] != 0 || cpu[1] != 1) SKIP("this test needs CPUs 0 and 1");
  static const struct { const char *before, *options; int ranks; const char *words; } table[] = {
      {"taskset -c 0,1", "", 2, "\nrank 0: 1 thread on CPU 0\nrank 1: 1 thread on CPU 1\n"},
      {"taskset -c 1", "", 1, "\nrank 0: 1 thread on CPU 1\n"},
      {"taskset -c 0,1", "", 1, "\nrank 0: 2 threads on CPUs 0-1\n"},
      {"taskset -c 0,1", "--bind-to core", 1, "\nrank 0: 1 thread on CPU 0\n"},
      {"taskset -c 0,1", "--bind-to none", 1, "\nrank 0: 2 threads on any of CPUs 0-1\n"},
      {"taskset -c 0,1", "--cpu-list 1", 1, "\nrank 0: 1 thread on CPU 1\n"},
      {"taskset -c 0,1", "", 3,
       "\nrank 0: 1 thread on any of CPUs 0-1\nrank 1: 1 thread on any of CPUs 0-1\nrank 2: 1 thread on any of "
       "CPUs 0-1\n"}};
  const char *mpirun = getenv("MPIRUN") && *getenv("MPIRUN") ? getenv("MPIRUN") : "mpirun";
  const char *run = "--threads 0 --max_steps 1 --verbose";
  for (const auto &row : table) {
    CLI_RUN(&r, "%s %s --oversubscribe %s -np %d env 'HWLOC_SYNTHETIC=pack:1 core:2 pu:1' HWLOC_THISSYSTEM=1 %s %s %s "
            "--out %s", row.before, mpirun, row.options, row.ranks, cli_program(), cli_small(), run, cli_path("out"));
    cli_expect_done(&r, row.words);
    EXPECT(strstr(r.text, row.words) && !strstr(r.text, "  cores  ") && !strstr(r.text, "warning: HWLOC"),
           "%s %s -np %d: not%s:\n%.3000s", row.before, row.options, row.ranks, row.words, r.text);
    EXPECT(cli_count(r.text, "warning: ranks outnumber cores on the host of rank 0") == (row.ranks == 3),
           "warnings:\n%.3000s", r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "%s -np 4 --oversubscribe env 'HWLOC_SYNTHETIC=pack:2 [numa] core:4 " CORES_AS_LINUX(8) "' %s %s %s "
          "--out %s", mpirun, cli_program(), cli_small(), run, cli_path("all"));
  cli_expect_done(&r, "a described machine");
  EXPECT(strstr(r.text, "\n  cores     rank 0: 2 threads on 2 cores of socket 0, NUMA node 0") &&
         cli_count(r.text, "warning: HWLOC_SYNTHETIC or HWLOC_XMLFILE describes the host of rank 0") == 1,
         "it printed:\n%.3000s", r.text);
  cli_free(&r);
  CliMetrics m;
  cli_metrics(&m, cli_path("all"));
  const cJSON *cores = cJSON_GetObjectItemCaseSensitive(m.line[0], "cores");
  REQUIRE(cJSON_GetArraySize(cores) == 4, "metrics.jsonl has no cores");
  const char *last = cJSON_GetArrayItem(cores, 3)->valuestring;
  EXPECT(!strcmp(last, "2 threads on 2 cores of socket 1, NUMA node 1 (CPUs 6-7,14-15)"), "metrics.jsonl: %s", last);
  cli_metrics_free(&m);
}
