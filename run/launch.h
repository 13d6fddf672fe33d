// launch.h: who started this process, whether it is alone by mistake, and what signals ask of it.
//
//   launch_no_daemon      a rank that no launcher started needs none of Open MPI's processes
//   launch_refuse_alone   refuses a start that was meant for several ranks and would be several runs of one rank
//   catch_stop_signals    which signals end training after its step, and which of them with a checkpoint
//
// Ranks find each other by PMIx, which Open MPI's mpirun and `srun --mpi=pmix` provide. Any other launcher starts
// programs that do not know of each other: each would train the whole model, all of them into the same OUT.
#pragma once
#include "fsdp.h"
#include "options.h"
#include "terminal.h"
#include <signal.h>

// What a signal asks for; the highest value over all ranks counts.
enum Stop { STOP_NOT, STOP_END, STOP_SAVE };     // STOP_SAVE: with a checkpoint
static volatile sig_atomic_t stop_asked;         // enum Stop; the ranks agree on it in the step's small all-gather
static bool under_mpirun;                        // mpirun kills its ranks a second after SIGTERM: no time to save
static bool alone;                               // one rank that no launcher started: on Ctrl-C it has time to save

// The variables in which a launcher passes the number of its processes, and how to start as many ranks here.
struct Launcher { const char *size, *rank; bool rank_too; const char *name, *line; };
static const Launcher launchers[] = {
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", false, "srun", "srun --mpi=pmix -n %lld ./train_gpt_fsdp ..."},
    {"PMI_SIZE", "PMI_RANK", false, "another MPI's mpiexec (MPICH, Intel MPI)",
     "Open MPI's mpirun -np %lld ./train_gpt_fsdp ..."},
    {"WORLD_SIZE", "RANK", true, "torchrun or another launcher of PyTorch", "mpirun -np %lld ./train_gpt_fsdp ..."}};

// Before MPI_Init. Beside a rank that no launcher started, Open MPI 4 starts a daemon and makes directories in /tmp:
// 0.1 s. Only MPI_Comm_spawn needs them. Without the daemon all such ranks of a user would share the directories,
// and one that ends would remove them while another opens its own: so both are left out.
static void launch_no_daemon() {
  static const char *const launched[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
  for (const char *name : launched) if (getenv(name)) return;
  setenv("OMPI_MCA_ess_singleton_isolated", "1", 1);
  setenv("OMPI_MCA_orte_create_session_dirs", "0", 1);
}

// Ends a process that a launcher started together with others, although MPI has one rank, unless --rdzv none; the first
// of them prints the error. `before` MPI_Init only if nothing can make them ranks of one job: MPI_Init may fail there.
static void launch_refuse_alone(const Options *o, bool before) {
  const bool may_be_ranks = getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK") || getenv("PMI_RANK");
  if (!strcmp(o->rdzv, "none") || (before && may_be_ranks)) return;
  for (const Launcher &l : launchers) {
    const char *size = getenv(l.size), *rank = getenv(l.rank);
    const long long count = size ? strtoll(size, NULL, 10) : 0;
    char line[128];
    if (count <= 1 || (l.rank_too && !rank)) continue;
    snprintf(line, sizeof line, l.line, count);
    if (!before) {                               // this process is alone: there is no rank to name, and none to end
      MPI_Finalize();
      who_am_i = NULL, die_hook = NULL;
    }
    if (rank && strtoll(rank, NULL, 10)) exit(EXIT_USAGE);
    die_user("train_gpt_fsdp: %s started %lld programs that do not know of each other (%s=%lld, but MPI has one rank): "
             "start them with %s; --rdzv none starts each alone", l.name, count, l.size, count, line);
  }
}

// mpirun kills its ranks soon after it has passed Ctrl-C or SIGTERM on; a rank without a launcher has time to save.
static void on_stop_signal(int signal) {
  const bool has_time = signal == SIGINT ? alone : !under_mpirun;
  const int asked = signal == SIGUSR1 || has_time ? STOP_SAVE : STOP_END;
  if (asked > stop_asked) stop_asked = asked;
  if (signal != SIGUSR1) liveness_quiet();       // whoever is killed now was to end
  if (signal == SIGINT || (signal == SIGTERM && under_mpirun)) {
    if (under_mpirun) terminal_end_line_at_once();               // it may end us any moment
    terminal_last_signal(signal);
  }
  static const char word[] = "stopping after this step, with a checkpoint; Ctrl-C again ends at once\n";
  if (signal != SIGINT || !alone || !terminal.out) return;
  terminal_end_line_at_once();
  if (write(STDOUT_FILENO, word, sizeof word - 1) < 0) return;   // nobody reads it
}
// A signal asks the training loop to end after its step. A second SIGINT ends the process at once; other signals
// may come any number of times. SIGINT and SIGTERM interrupt a write that waits for a terminal: mpirun stops reading
// what its ranks print before it passes these signals on.
static void catch_signal(int signal, int flags) {
  struct sigaction a = {};
  a.sa_handler = on_stop_signal;
  a.sa_flags = flags;
  sigaction(signal, &a, NULL);
}
static void catch_stop_signals() {
  catch_signal(SIGINT, 0);
  catch_signal(SIGTERM, 0);                      // schedulers send it twice while we save
  if (signal(SIGHUP, SIG_IGN) != SIG_IGN) catch_signal(SIGHUP, 0);               // nohup: stays ignored
}
