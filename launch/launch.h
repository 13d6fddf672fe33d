// launch.h: the door of launch/: how processes meet, become ranks and are started again.
//
// A process that no launcher made a rank meets others in rdzv_main, or watches itself in restarts_supervise; both
// return in the run.
#pragma once
#include "base/net/net.h"
#include "machine/machine.h"

// ---- packed.h -------------------------------------------------------------------------------------------------------
// The archive's Open MPI was built for /usr: variables say where it lies, whatever else is installed or was named; its
// mpirun comes first in PATH, for --rdzv. Where no openmpi/ is in the directory of the program, these variables, from
// the mpirun of an archive, are taken back: this program's Open MPI is another.
void packed_open();

// ---- preflight.h ----------------------------------------------------------------------------------------------------
// What to look at: the build of this program, the directory of the run, the GPUs that were found (NULL: none was looked
// for), how long a message may take.
struct PreflightAsk { const char *build, *out; const DeviceProbe *gpu; int64_t timeout_s; };

// ---- preflight_net.h ------------------------------------------------------------------------------------------------
// --preflight, on every rank of MPI_COMM_WORLD, before anything collective. Returns the exit code.
int preflight_run(const PreflightAsk *ask);
// Notices of what is wrong with hosts and their networks. Nothing is measured but clocks. Collective over comm, and
// nothing for one rank.
void preflight_start(const PreflightAsk *ask, MPI_Comm comm);

// ---- rdzv_where.h ---------------------------------------------------------------------------------------------------
// What is asked for. rdzv, token_file: options; NULL or "": not given. Numbers below 0: not given. options: a line for
// each option that must be the same everywhere. mpi: MPI_Get_library_version. timeout_s: 0 waits for ever. restarts and
// what follows: for launch/restart_rules.h. wait_s: --restart_wait; mesh: ranks that --mesh names, 0: any number;
// resumes: --resume is given, so that a checkpoint may know other numbers than batch_size, global_batch and grad_accum
// (0: not given) say. out: --out.
struct RdzvAsk {
  const char *rdzv, *token_file, *build, *mpi, *options;
  int64_t nnodes, node_rank, nproc_per_node, timeout_s;
  int argc;
  char **argv;
  int64_t restarts, wait_s, mesh, batch_size, global_batch, grad_accum;
  bool resumes;
  const char *out;
};
// Whether all variables of env:// are there, for more than one process.
bool rdzv_env_is_set();

// ---- launchers.h ----------------------------------------------------------------------------------------------------
// Whether MPI will find the other ranks; whether anything of MPI or Slurm has started this process.
static inline bool launch_has_pmix() { return getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK"); }
// Before MPI_Init. Beside a rank that no launcher started, Open MPI 4 starts a daemon and makes directories in /tmp:
// 0.1 s. Only MPI_Comm_spawn needs them. Without the daemon all such ranks of a user would share the directories,
// and one that ends would remove them while another opens its own: so both are left out.
void launch_no_daemon();
// Before MPI_Init. Open MPI's TCP listens at all interfaces, whether or not a rank elsewhere is to come. Ranks that are
// all on one host reach each other by shared memory, so there it is left out, unless the user has chosen, or /dev/shm
// is so small that TCP may have to stand in.
void launch_one_host();
// Ends a process that a launcher started together with others, although MPI has one rank, unless --rdzv none; the first
// of them prints the error. `before` MPI_Init only if nothing can make them ranks of one job: MPI_Init may fail there.
void launch_refuse_alone(const char *rdzv, bool before);
// srun --mpi=pmi2: an Open MPI that was not built for that ends in MPI_Init, with many lines about how to build Slurm.
// So the first rank says before that what to type; an Open MPI that was built for it goes on.
void launch_notice_pmi();
// Whether this process, which meets no others, is to be watched: `most` of --restarts. waits: --restart_wait was given.
// One line in `error` where a launcher has started it.
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
// What the watching parent is told, if there is one: that the run has begun, its batch (sequences a step and a
// microbatch), its steps, its checkpoints and the directory of these.
void restarts_open();
void restarts_batch(int64_t sequences, int64_t batch);
void restarts_step(int64_t step);
void restarts_saved(int64_t step);
void restarts_ours(const char *ckpt);
// Returns in the run, which is a child of this process: whether it goes on from its own newest checkpoint (--resume
// auto). Ends this process when the run has. Before MPI and threads are started.
bool restarts_supervise(const RestartsAsk *ask);
