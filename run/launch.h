// launch.h: who started this process, whether it is alone by mistake, and what signals ask of it.
//
//   launch_rendezvous     meets the other processes that were started, where --rdzv or the environment says so
//   launch_forget         what a rank does not need to know of that
//   launch_no_daemon      a rank that no launcher started needs none of Open MPI's processes
//   launch_one_host       ranks of one host listen at no port
//   launch_notice_pmi     says what to type where MPI_Init may fail under srun
//   launch_refuse_alone   refuses a start that was meant for several ranks and would be several runs of one rank
//   catch_stop_signals    which signals end training after its step, and which of them with a checkpoint
//
// Ranks find each other by PMIx, which Open MPI's mpirun and `srun --mpi=pmix` provide. Any other launcher starts
// programs that do not know of each other: they meet (launch/rdzv.h), or each would train the whole model, all of them
// into the same OUT.
#pragma once
#include "fsdp.h"
#include "option_file.h"
#include "options.h"
#include "launch/rdzv.h"
#include "sharding.h"
#include "launch/terminal.h"
#include "version.h"
#include <signal.h>
#include <sys/statvfs.h>

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
    {"WORLD_SIZE", "RANK", true, "torchrun or another launcher of PyTorch",
     "mpirun -np %lld ./train_gpt_fsdp ..., or set MASTER_ADDR and MASTER_PORT too"}};

// Options about the meeting of processes, which differ between them and say nothing about the run.
static const OptionId launch_options[] = {OPT_rdzv, OPT_nnodes, OPT_node_rank, OPT_nproc_per_node, OPT_rdzv_token};
static bool launch_is_about(int id) {
  for (OptionId own : launch_options) if (own == id) return true;
  return false;
}
// In a rank that took its place at a meeting: as if these options had not been given.
static void launch_forget(Options *o) {
  if (!getenv("TRAIN_GPT_FSDP_RDZV")) return;
  for (OptionId id : launch_options) option_forget(o, id);
}
// The options that all processes must have been given alike, a line for each. Static.
static const char *launch_lines(const Options *o) {
  static char text[OPTION_COUNT * (OPTION_TEXT_BYTES + 64)];
  size_t n = 0;
  for (int i = 0; i < OPTION_COUNT; i++) {
    char value[OPTION_TEXT_BYTES];
    if (launch_is_about(i)) continue;
    option_print(value, sizeof value, o, &option_specs[i]);
    n += (size_t)snprintf(text + n, sizeof text - n, "--%s %s\n", option_specs[i].name, value);
  }
  text_to_line(text, "\n");                      // of --prompt
  return text;
}
// The two commands by which mpirun starts this program for --rdzv.
static int launch_hidden(Call *call) { return rdzv_hidden(call->argc, call->argv); }
// The command --rdzv: this process is to meet others, and what follows is the whole run of ranks in their places. The
// file of --config is read for what it says about this; whether it is right is found out later.
static int launch_rendezvous(Call *call) {
  static Options seen;
  const Options *o = &call->o;
  char error[1024] = "", mpi[MPI_MAX_LIBRARY_VERSION_STRING];
  int length;
  const bool is_rank = getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK");
  if (call->error[0] && !call->launched) die_user("train_gpt_fsdp: %s", call->error);
  seen = *o;
  if (!is_rank) options_read_config(&seen, error, sizeof error);
  const bool automatic = !strcmp(seen.rdzv, "auto"), none = !strcmp(seen.rdzv, "none");
  if (is_rank) {
    if (automatic || none || getenv("TRAIN_GPT_FSDP_RDZV")) return -1;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank && strcmp(rank, "0")) sleep(1), exit(EXIT_USAGE);   // mpirun ends all when the first one ends
    die_user("train_gpt_fsdp: --rdzv %.200s is for processes that no launcher of MPI has started, but mpirun or srun "
             "has started this: leave --rdzv out", seen.rdzv);
  }
  const bool chosen = automatic && rdzv_env_is_set() && !getenv("PMI_RANK");
  for (OptionId id : launch_options)
    if (id != OPT_rdzv && seen.given[id] && (none || (automatic && !chosen)))
      die_user("train_gpt_fsdp: --%s belongs to --rdzv tcp://HOST:PORT or file:///shared/dir", option_specs[id].name);
  if (none || (automatic && !chosen)) return -1;
  MPI_Get_library_version(mpi, &length);
  RdzvAsk ask = {};
  ask.rdzv = chosen ? "env://" : seen.rdzv;
  ask.token_file = seen.rdzv_token;
  ask.build = PROGRAM_VERSION " (" BUILD_ID ")", ask.mpi = mpi, ask.options = launch_lines(o);
  ask.nnodes = seen.given[OPT_nnodes] ? seen.nnodes : -1;
  ask.node_rank = seen.given[OPT_node_rank] ? seen.node_rank : -1;
  ask.nproc_per_node = seen.given[OPT_nproc_per_node] ? seen.nproc_per_node : -1;
  ask.timeout_s = seen.timeout;
  ask.restarts = o->restarts, ask.wait_s = seen.restart_wait;
  if (seen.given[OPT_restart_wait] && !o->restarts)
    die_user("train_gpt_fsdp: --restart_wait belongs to --restarts, on the command line");
  int replicas, shards;
  ask.mesh = mesh_parse(seen.mesh, &replicas, &shards) ? (int64_t)replicas * shards : 0;
  ask.batch_size = seen.batch_size, ask.global_batch = seen.global_batch, ask.grad_accum = seen.grad_accum;
  ask.resumes = seen.resume[0] != 0;
  ask.out = seen.out;
  ask.argc = call->argc, ask.argv = call->argv;
  return rdzv_main(&ask);
}

// Before MPI_Init. Beside a rank that no launcher started, Open MPI 4 starts a daemon and makes directories in /tmp:
// 0.1 s. Only MPI_Comm_spawn needs them. Without the daemon all such ranks of a user would share the directories,
// and one that ends would remove them while another opens its own: so both are left out.
static void launch_no_daemon() {
  static const char *const launched[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
  for (const char *name : launched) if (getenv(name)) return;
  setenv("OMPI_MCA_ess_singleton_isolated", "1", 1);
  setenv("OMPI_MCA_orte_create_session_dirs", "0", 1);
}

// Before MPI_Init. Open MPI's TCP listens at all interfaces, whether or not a rank elsewhere is to come. Ranks that are
// all on one host reach each other by shared memory, so there it is left out, unless the user has chosen, or /dev/shm
// is so small that TCP may have to stand in.
static void launch_one_host() {
  const char *world = getenv("OMPI_COMM_WORLD_SIZE"), *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const bool launched = world || getenv("PMIX_RANK") || getenv("PMI_RANK") || getenv("SLURM_PROCID");
  struct statvfs shm;
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING], version[32];
  int length;
  if (launched && (!world || !here || strcmp(world, here))) return;
  const double needs = (double)(world ? strtoll(world, NULL, 10) : 1) * (16 << 20);
  if (statvfs("/dev/shm", &shm) || (double)shm.f_bavail * (double)shm.f_frsize < needs) return;
  MPI_Get_library_version(mpi, &length);
  rdzv_mpi_version(version, sizeof version, mpi);
  setenv("OMPI_MCA_btl", version[0] == '4' ? "self,vader" : "self,sm", 0);
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

// srun --mpi=pmi2: an Open MPI that was not built for that ends in MPI_Init, with many lines about how to build Slurm.
// So the first rank says before that what to type; an Open MPI that was built for it goes on.
static void launch_notice_pmi() {
  const char *size = getenv("SLURM_STEP_NUM_TASKS"), *rank = getenv("PMI_RANK");
  if (getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK") || !size || !rank || strcmp(rank, "0")) return;
  const long long count = strtoll(size, NULL, 10);
  if (count > 1)
    fprintf(stderr, "notice: srun gave its %lld processes PMI, and few builds of Open MPI know that: if MPI_Init fails "
            "now, start them with srun --mpi=pmix -n %lld ./train_gpt_fsdp ...\n", count, count);
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
