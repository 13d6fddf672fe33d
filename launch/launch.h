// launch.h: the public header of launch/: how processes meet, become ranks and are started again; what hosts are, which
// GPU and which cores a rank takes; where printed text goes.
//
// A process that no MPI launcher has started may meet others in rdzv_main, which starts the ranks, or start the run as
// a child that it watches, in restarts_supervise. Everything that a rank prints goes through say and the functions
// beside it, which know of the open (progress) line.
#pragma once
#include "base/net/net.h"
#include "kernels/ops.h"
#include "watch/watch.h"
#include "kernels/cuda/nvidia.h"
#include <hwloc.h>
#include <signal.h>

// ---- packed.h -------------------------------------------------------------------------------------------------------
// For a program from an archive with its own Open MPI: sets the variables that say where that Open MPI is (it was built
// for /usr), and puts its mpirun first in PATH, for --rdzv. For a program without openmpi/ in its directory: removes
// these variables if the mpirun of an archive has set them, since this program has another Open MPI.
void packed_open();

// ---- cgroup.h -------------------------------------------------------------------------------------------------------
// Cores' worth of time that control groups leave this process; INFINITY: no limit. root: "", or a made-up tree.
double cgroup_cores(const char *root);

// ---- machine.h ------------------------------------------------------------------------------------------------------
// Every table of CPU kernels, of both processor families. cpu_tables: those of the program's own family, of which a
// machine can run the first ones.
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
struct CoreWatch { double since_ms; uint64_t ran_ns, waited_ns; };     // time and counters as of the last result
// At most every CORE_WATCH_MS: the share of the time since the last result, 0 to 1, that the threads waited for a core.
// In between, and where the kernel does not count, -1.
double core_watch(CoreWatch *w, double now_ms);
// Which of its visible GPUs this rank takes. sharing: ranks of this host that share its memory; on_gpu: ranks of this
// host on the same GPU, even if on different instances of it (MIG) with separate memories; crowded: some GPU of some
// host has more than one rank; gpus: memories that all ranks together take. error: "" or one line.
struct GpuChoice { int index, sharing; bool crowded; char error[256]; int gpus, on_gpu; };
// One rank per GPU, by rank on the host. If a launcher shows each rank a single GPU, or an instance of one, it takes
// that one. Memories are told apart by UUID and GPUs by PCI bus id, which instances of one GPU share: so two ranks on
// one are always seen. Collective over `comm`; `node`: the ranks of a host.
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
// Prints whole lines on stdout, like printf.
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
// Finds out what stdout and stderr are. Called before anything else of this header.
void terminal_open();

// ---- cores.h --------------------------------------------------------------------------------------------------------
// A core. cpus, nodes: its CPUs (hardware threads) and NUMA nodes, owned by the table; atom: one of Intel's E cores;
// mhz: its highest frequency, 0: not known.
struct Core { hwloc_bitmap_t cpus, nodes; int socket; bool atom; double mhz; };
// known: hwloc found cores; else each CPU counts as one. real: it is this machine, not one that HWLOC_SYNTHETIC or
// HWLOC_XMLFILE describes.
struct CoreTable { hwloc_topology_t topology; Core *core; int count, sockets, nodes; bool known, real; };
// Reads this machine. Without hwloc's x86 part, which would move this thread over every CPU to ask it what Linux has
// said already; with it where /sys is not there. False and one line in `error`.
bool cores_read_machine(CoreTable *t, Error *error);
// What the ranks of a host ask for. mask[r]: CPUs that rank r may use. threads: per rank, 0: one per core. quota: the
// CPU limit of control groups for all these ranks, in cores, INFINITY: none. bind: ranks are bound to their shares.
struct CoreAsk { int rank, ranks, threads; double quota; bool bind; const hwloc_bitmap_t *mask; };
// A rank's share. core: indices in the table, malloc'ed; cpus: those of these cores that the rank may use (owned).
// outnumbered: there are more ranks than cores, or than the quota has cores; then, and if nothing is bound, the rank
// has all cores of its mask. overlaps: ranks with another mask may use some of these CPUs too. left_out: number of
// slower cores that no rank gets. bound: the rank is bound to cpus. placed: each thread is bound to its core, because
// the kernel could put two threads on one core, or a thread on another NUMA node than its memory.
struct CoreShare {
  int threads, cores, *core, left_out;
  hwloc_bitmap_t cpus;
  bool outnumbered, overlaps, bound, placed;
};
void cores_share_free(CoreShare *s);
// The share of rank a->rank. A mask without any core of the table gives one thread (or a->threads), bound to nothing.
CoreShare cores_deal(const CoreTable *t, const CoreAsk *a);
// What rank 0 prints about the cores of each rank.
struct CoreReport {
  char words[256], fault[64];                    // fault: why it could not be bound; ""
  int threads, cores, cpus, left_out;            // cpus: that its threads may use; 0: not known
  bool outnumbered, overlaps, unknown, described;          // unknown: hwloc found no cores; described: not this machine
  bool several;                                  // its host has several sockets, NUMA nodes, or CPUs in a core
};
// This rank's share and, on rank 0 of the run, the reports of all ranks (malloc'ed; NULL elsewhere).
struct Cores { CoreTable table; CoreShare share; CoreReport mine, *all; int world; };
// The CPUs that this rank may use: its own affinity mask; if mpirun has bound the rank without being asked to, the mask
// of mpirun or its daemon. *bind: false if mpirun was told to bind nothing.
hwloc_bitmap_t cores_mask(const CoreTable *t, bool *bind);
// Takes this rank's cores and binds this thread to them; threads of the pool are bound when they start. threads:
// --threads, 0: one per core. computes: ops run on the CPU, so this thread is thread 0 of the pool, and placed like the
// others. *c must not move until cores_give_back. Collective over comm; node: the ranks of this host. If hwloc fails,
// all ranks end with one line, unless --threads gives their number.
void cores_take(Cores *c, int threads, bool computes, MPI_Comm node, MPI_Comm comm);
// On rank 0: whether it matters on some host which cores a rank has.
bool cores_differ(const Cores *c);
// Whether ranks or threads have to wait for each other's cores.
bool cores_are_crowded(const Cores *c);
void cores_give_back(Cores *c);                  // threads stay where they are
// Prints notices about the cores of all ranks, on rank 0: one for each kind of problem, naming the first rank with it.
void cores_print_notices(const Cores *c);

// ---- preflight.h ----------------------------------------------------------------------------------------------------
// What preflight checks: the build of this program, the directory --out, the GPUs that were found (NULL: none was
// looked for), how long a message may take.
struct PreflightAsk { const char *build, *out; const DeviceProbe *gpu; int64_t timeout_s; };

// ---- preflight_net.h ------------------------------------------------------------------------------------------------
// --preflight, on every rank of MPI_COMM_WORLD, before anything collective. Returns the exit code.
int preflight_run(const PreflightAsk *ask);
// Prints notices of what is wrong with hosts and their networks; measures only clocks. Does nothing for one rank.
// Collective over comm.
void preflight_start(const PreflightAsk *ask, MPI_Comm comm);

// ---- rdzv_where.h ---------------------------------------------------------------------------------------------------
// The options of a rendezvous. rdzv, token_file (--rdzv_token): NULL or "": not given. Numbers below 0: not given.
// options: a line for each option that must be the same for all processes. mpi: MPI_Get_library_version. timeout_s: 0
// waits forever. restarts and the fields after it are for launch/restart_rules.h: wait_s: --restart_wait; mesh: number
// of ranks that --mesh has, 0: any; batch_size, global_batch, grad_accum: 0: not given; resumes: --resume is given, so
// that a checkpoint may have other values of these three. out: --out.
struct RdzvAsk {
  const char *rdzv, *token_file, *build, *mpi, *options;
  int64_t nnodes, node_rank, nproc_per_node, timeout_s;
  int argc;
  char **argv;
  int64_t restarts, wait_s, mesh, batch_size, global_batch, grad_accum;
  bool resumes;
  const char *out;
};
// Whether all environment variables of --rdzv env:// are set, and for more than one process.
bool rdzv_env_is_set();

// ---- launchers.h ----------------------------------------------------------------------------------------------------
// Whether a launcher with PMIx (mpirun, srun --mpi=pmix) has started this process, so that MPI finds the other ranks.
static inline bool launch_has_pmix() { return getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK"); }
// Call before MPI_Init. For a rank that no launcher started, Open MPI 4 starts a daemon and makes directories in /tmp,
// which takes 0.1 s, and which only MPI_Comm_spawn needs. Without the daemon all such ranks of a user would share the
// directories, and a rank that ends would remove them while another opens its own: so this turns both off.
void launch_no_daemon();
// Call before MPI_Init. Open MPI's TCP listens at all interfaces, even if all ranks are on one host and reach each
// other by shared memory. So in that case this turns TCP off, unless the user has chosen a transport, or /dev/shm is so
// small that TCP may be needed.
void launch_one_host();
// Ends a process that a launcher started together with others, although MPI has one rank, unless --rdzv none; the first
// of them prints the error. `before` MPI_Init only if nothing can make them ranks of one job: MPI_Init may fail there.
void launch_refuse_alone(const char *rdzv, bool before);
// srun --mpi=pmi2: an Open MPI that was not built for PMI2 fails in MPI_Init, with many lines about how to build Slurm.
// So the first rank prints before MPI_Init what to type; an Open MPI that was built for PMI2 continues.
void launch_notice_pmi();
// Whether this process, which takes part in no rendezvous, is to watch its run (restarts_supervise). most: --restarts;
// waits: --restart_wait was given. One line in `error` if a launcher has started the process.
bool launch_watches(int64_t most, bool waits, const char *rdzv, Error *error);

// ---- rdzv.h ---------------------------------------------------------------------------------------------------------
// The rendezvous of this process with the others, and the run. Returns the job's exit code.
int rdzv_main(const RdzvAsk *ask);
// Whether mpirun has started this program for a rendezvous, rather than a user: its exit code; -1: a user has.
int rdzv_hidden(int argc, char **argv);

// ---- restarts.h -----------------------------------------------------------------------------------------------------
struct RestartsAsk { int64_t most; const char *resume, *out; };   // how many restarts at most; --resume, --out
// Hears of a rank that died, from the heartbeats' thread.
void restarts_died(int rank);
// Tell the process that would restart the run, if there is one: that the run has started; its batch (sequences per step
// and per microbatch); the steps it has done; the steps that have a checkpoint; the directory of checkpoints, which has
// only this run's.
void restarts_open();
void restarts_batch(int64_t sequences, int64_t batch);
void restarts_step(int64_t step);
void restarts_saved(int64_t step);
void restarts_ours(const char *ckpt);
// Forks the run, as often as needed, and returns in the child, which is the run: whether it must resume from its own
// newest checkpoint (--resume auto). The parent exits when the run has ended. Call before MPI and threads are started.
bool restarts_supervise(const RestartsAsk *ask);
