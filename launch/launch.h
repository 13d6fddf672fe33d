// launch.h: public header of launch/: how processes rendezvous, become ranks and are started again.
//
// A process that no launcher made a rank joins others in rdzv_main, or watches itself in restarts_supervise; both
// return in the run.
#pragma once
#include "base/net/net.h"
#include "machine/machine.h"

// ---- packed.h -------------------------------------------------------------------------------------------------------
// For a program from an archive with its own Open MPI: sets the variables that say where that Open MPI is (it was built
// for /usr), and puts its mpirun first in PATH, for --rdzv. For a program without openmpi/ in its directory: removes
// these variables if the mpirun of an archive has set them, since this program has another Open MPI.
void packed_open();

// ---- preflight.h ----------------------------------------------------------------------------------------------------
// What preflight checks: the build of this program, the directory --out, the GPUs that were found (NULL: none was
// looked for), how long a message may take.
struct PreflightAsk { const char *build, *out; const DeviceProbe *gpu; int64_t timeout_s; };

// ---- preflight_net.h ------------------------------------------------------------------------------------------------
// --preflight, on every rank of MPI_COMM_WORLD, before anything collective. Returns the exit code.
int preflight_run(const PreflightAsk *ask);
// Prints warnings of what is wrong with hosts and their networks; measures only clocks. Does nothing for one rank.
// All ranks of comm call it.
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
void launch_reject_alone(const char *rdzv, bool before);
// srun --mpi=pmi2: an Open MPI that was not built for PMI2 fails in MPI_Init, with many lines about how to build Slurm.
// So the first rank prints before MPI_Init what to type; an Open MPI that was built for PMI2 continues.
void launch_warning_pmi();
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
