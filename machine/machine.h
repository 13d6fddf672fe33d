// machine.h: public header of machine/: what this host has: cores and memory that control groups leave, CPU tables,
// GPUs; which of them a rank takes; and where text goes.
//
// Everything that a rank prints goes through say and its like, which know of the line drawn over.
#pragma once
#include "kernels/ops.h"
#include "watch/watch.h"
#include "kernels/cuda/nvidia.h"
#include <hwloc.h>
#include <signal.h>

// This rank's number in a communicator; how many ranks it has.
static inline int comm_rank(MPI_Comm comm) { int rank; MPI_Comm_rank(comm, &rank); return rank; }
static inline int comm_size(MPI_Comm comm) { int size; MPI_Comm_size(comm, &size); return size; }
// ,"name":"text"
static inline void json_words(FILE *f, const char *name, const char *text) {
  fprintf(f, ",\"%s\":", name);
  json_text(f, text);
}

// ---- cgroup.h -------------------------------------------------------------------------------------------------------
// Cores' worth of time that control groups leave this process; INFINITY: no limit. root: "", or a made-up tree.
double cgroup_cores(const char *root);
// The number after `key` at the start of a line of a small file; SIZE_MAX: there is none.
size_t file_number(const char *path, const char *key);

// ---- gpus.h ---------------------------------------------------------------------------------------------------------
// Every table of CPU kernels; a program has those of its own processor. Of these, cpu_tables, a machine runs a prefix.
struct CpuTable { const char *name; const Ops *ops; };
static const CpuTable cpu_isas[CPU_ISAS] = {{"avx2", &ops_avx2}, {"avx512", &ops_avx512},
    {"avx512_bf16", &ops_avx512_bf16}, {"amx", &ops_amx}, {"neon", &ops_neon}, {"neon_bf16", &ops_neon_bf16}};
static const CpuTable *const cpu_tables = cpu_isas + PROCESSOR_FIRST_ISA;
// Index in cpu_tables of the richest one that this machine has, and of the fastest; -1: none.
static inline int cpu_best_table() { return processor_best_isa(); }
static inline int cpu_fast_table() { return processor_fast_isa(); }
// Memory still available on this host: the kernel's estimate, or what control groups leave.
size_t host_available_bytes();
// Watches whether this rank's threads get the cores they want: the kernel counts how long a thread ran and how long it
// waited for a core (Documentation/scheduler/sched-stats.rst).
struct CoreWatch { double since_ms; uint64_t ran_ns, waited_ns; };
// At most every CORE_WATCH_MS: the share of the time since the last result, 0 to 1, that the threads waited for a core.
// In between, and where the kernel does not count, -1.
double core_watch(CoreWatch *w, double now_ms);
// Which of its visible GPUs this rank takes. sharing: ranks of this host that share its memory; on_gpu: ranks of this
// host on the same GPU, even if on different MIG instances of it with separate memories; crowded: some GPU of some
// host has more than one rank; gpus: memories that all ranks together take. error: "" or one line.
struct GpuChoice { int index, sharing; bool crowded; char error[256]; int gpus, on_gpu; };
// One rank per GPU, by rank on the host. If a launcher shows each rank a single GPU, or a MIG instance of one, it takes
// that one. Memories are told apart by UUID and GPUs by PCI bus id, which MIG instances of one GPU share: so two ranks
// on one are always seen. All ranks of comm call it; `node`: the ranks of a host.
GpuChoice choose_gpu(const DeviceProbe *p, MPI_Comm node, MPI_Comm comm);

// ---- terminal.h -----------------------------------------------------------------------------------------------------
struct Terminal {
  bool out, err;                                 // stdout, stderr end on a terminal, mpirun's if there is one
  bool launched;                                 // mpirun passes on what we print: stdout and stderr in no order
  bool transient;                                // the open line is erased, not kept, when something else is printed
  int width_fd;                                  // the terminal that is asked for its width
  volatile sig_atomic_t shown;                   // columns of the open line; 0: none is open
};
extern Terminal terminal;
// Columns of the terminal; 80 if unknown. Asked for each time, since it may have changed.
int terminal_columns();
// Ends the open line, so that the next text starts a new one.
void line_end();
// Opens or overwrites the open line, cut to the terminal's width. transient: it is erased when other text follows.
void line_draw(const char *text, bool transient);
// Bytes done and speed, once a save or load has taken a second: on a terminal a line that is overwritten, else a line
// every ten seconds.
void show_progress(const char *what, int64_t done, int64_t total);
// printf for whole lines.
__attribute__((format(printf, 1, 2))) void say(const char *fmt, ...);
// The same on stderr. mpirun may pass it on before what rank 0 printed earlier, and another rank may print while rank 0
// has a line open: then that line is erased.
__attribute__((format(printf, 1, 2))) void say_error(const char *fmt, ...);
// A text that comes in pieces, which may end inside a character. bytes NULL: the end of the text.
void say_bytes(const uint8_t *bytes, int n);
// Whether a part of what was printed is lost, although somebody reads: to a full disk.
bool terminal_lost();
void terminal_end_line_at_once();                // ends the open line; may be called in a handler
// From now on this signal ends the process, with the cursor at the start of a line. May be called in a handler.
void terminal_last_signal(int signal_);
// What stdout and stderr are. First of all.
void terminal_open();

// ---- cores.h --------------------------------------------------------------------------------------------------------
// cpus, nodes: owned by the table. atom: Intel calls it an efficient core; mhz: its highest frequency, 0: not known.
struct Core { hwloc_bitmap_t cpus, nodes; int socket; bool atom; double mhz; };
// known: hwloc found cores; else each CPU counts as one. real: it is this machine, not one that HWLOC_SYNTHETIC or
// HWLOC_XMLFILE describes.
struct CoreTable { hwloc_topology_t topology; Core *core; int count, sockets, nodes; bool known, real; };
// Reads this machine. Without hwloc's x86 part, which would move this thread over every CPU to ask it what Linux has
// said already; with it where /sys is not there. False and one line in `error`.
bool cores_read_machine(CoreTable *t, Error *error);
void cores_free(CoreTable *t);
// What the ranks of a host ask for. mask[r]: CPUs that rank r may use. threads: of a rank, 0: one a core. quota: cores'
// worth of time that control groups leave all of them, INFINITY: no limit. bind: ranks keep to their shares.
struct CoreAsk { int rank, ranks, threads; double quota; bool bind; const hwloc_bitmap_t *mask; };
// A rank's share. core: indices in the table, malloc'ed; cpus: of these cores, those that it may use (owned).
// outnumbered: there are more ranks than cores, or than the quota has cores; then, and where nothing is bound, it has
// all cores of its mask. overlaps: ranks with another mask may use some of these CPUs too. left_out: slower cores that
// nobody takes. bound: the rank keeps to cpus. placed: each thread keeps to its core, where the kernel could do worse:
// put two threads on one core, or one on another NUMA node than its memory.
struct CoreShare {
  int threads, cores, *core, left_out;
  hwloc_bitmap_t cpus;
  bool outnumbered, overlaps, bound, placed;
};
void cores_share_free(CoreShare *s);
// The share of rank a->rank. A mask without any core of the table gives one thread (or a->threads), bound to nothing.
CoreShare cores_deal(const CoreTable *t, const CoreAsk *a);
// What rank 0 prints of each rank, and with which figures.
struct CoreReport {
  char words[256], fault[64];                    // fault: why it could not be bound; ""
  int threads, cores, cpus, left_out;            // cpus: that its threads may use; 0: not known
  bool outnumbered, overlaps, unknown, described;          // unknown: hwloc found no cores; described: not this machine
  bool several;                                  // its host has several sockets, NUMA nodes, or CPUs in a core
};
// This rank's share and, on rank 0 of the run, the reports of all ranks (malloc'ed; NULL elsewhere).
struct Cores { CoreTable table; CoreShare share; CoreReport mine, *all; int world; };
// The CPUs that this rank may use: its own mask; of a rank that mpirun bound automatically, the mask of mpirun or its
// daemon. *bind: false where mpirun was told to bind nothing.
hwloc_bitmap_t cores_mask(const CoreTable *t, bool *bind);
// Takes this rank's cores and binds this thread to them; those of the pool follow when they start. threads: --threads,
// 0: one a core. computes: ops run here, so this thread is thread 0 of the pool, and placed like the others. *c stays
// where it is until cores_give_back. All ranks of comm call it; node: the ranks of this host. Where hwloc fails, all
// ranks end with one line, unless --threads says what to do without it.
void cores_take(Cores *c, int threads, bool computes, MPI_Comm node, MPI_Comm comm);
// On rank 0: whether it matters on some host which cores a rank has.
bool cores_differ(const Cores *c);
// Whether ranks or threads have to wait for each other's cores.
bool cores_are_crowded(const Cores *c);
void cores_give_back(Cores *c);                  // threads stay where they are
// The reports of all ranks as warnings, on rank 0: one a kind, with the first rank that it is about.
void cores_print_warnings(const Cores *c);
