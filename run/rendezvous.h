// rendezvous.h: from options to a rendezvous, and what signals ask of a run.
#pragma once
#include "run.h"
#include <poll.h>

volatile sig_atomic_t stop_asked;
bool under_mpirun;
static bool alone;                               // one rank that no launcher started: on Ctrl-C it has time to save
static bool behind_first, saves_nothing;         // this rank is not rank 0; the run does not train

// In a rank that a rendezvous has started, unsets the options of the group "ranks" (--rdzv, --nnodes, ...): they differ
// between the processes of the rendezvous, and say nothing about the run.
static void launch_forget(Options *o) {
  if (!getenv("TRAIN_GPT_FSDP_RDZV")) return;
  for (int id = GROUP_RANKS; id < GROUP_EVALUATION; id++) option_forget(o, id);
}
// The options that must be the same for all processes of a rendezvous, one per line, in static memory.
static const char *launch_lines(const Options *o) {
  static char text[OPTION_COUNT * (OPTION_TEXT_BYTES + 64)];
  text[0] = 0;
  for (int i = 0; i < OPTION_COUNT; i++) {
    char value[OPTION_TEXT_BYTES];
    if (i >= GROUP_RANKS && i < GROUP_EVALUATION) continue;
    option_print(value, sizeof value, o, &option_specs[i]);
    text_add(text, sizeof text, "--%s %s\n", option_specs[i].name, value);
  }
  text_to_line(text, "\n");                      // newlines of --prompt
  return text;
}
int launch_rendezvous(Call *call) {
  static Options seen;
  const Options *o = &call->o;
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING];
  Error error = {};
  int length;
  const bool is_rank = launch_has_pmix();
  if (call->error.text[0] && !call->launched) die_user("train_gpt_fsdp: %s", call->error.text);
  seen = *o;
  if (!is_rank) options_read_config(&seen, &error);
  const bool automatic = !strcmp(seen.rdzv, "auto"), none = !strcmp(seen.rdzv, "none");
  if (is_rank) {
    if (automatic || none || getenv("TRAIN_GPT_FSDP_RDZV")) return -1;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank && strcmp(rank, "0")) sleep(1), exit(EXIT_USAGE);   // mpirun ends all when the first one ends
    die_user("train_gpt_fsdp: --rdzv %.200s is for processes that no MPI launcher has started, but mpirun or srun "
             "has started this: leave --rdzv out", seen.rdzv);
  }
  const bool chosen = automatic && rdzv_env_is_set() && !getenv("PMI_RANK");
  for (int id = GROUP_RANKS; id < GROUP_EVALUATION; id++)
    if (id != OPT_rdzv && seen.given[id] && (none || (automatic && !chosen)))
      die_user("train_gpt_fsdp: --%s belongs to --rdzv tcp://HOST:PORT or file:///shared/dir", option_specs[id].name);
  if (none || (automatic && !chosen)) return -1;
  MPI_Get_library_version(mpi, &length);
  RdzvAsk ask = {};
  ask.rdzv = chosen ? "env://" : seen.rdzv;
  ask.token_file = seen.rdzv_token;
  ask.build = program_build(), ask.mpi = mpi, ask.options = launch_lines(o);
  ask.nnodes = seen.given[OPT_nnodes] ? seen.nnodes : -1;
  ask.node_rank = seen.given[OPT_node_rank] ? seen.node_rank : -1;
  ask.nproc_per_node = seen.given[OPT_nproc_per_node] ? seen.nproc_per_node : -1;
  ask.timeout_s = seen.timeout;
  ask.restarts = o->restarts, ask.wait_s = seen.restart_wait;
  if (seen.given[OPT_restart_wait] && !o->restarts)
    die_user("train_gpt_fsdp: --restart_wait belongs to --restarts, on the command line");
  int replicas, shards;
  ask.mesh = mesh_parse(seen.mesh, &replicas, &shards) ? (int64_t)replicas * shards : 0;
  ask.batch_size = max64(1, seen.batch_size), ask.global_batch = seen.global_batch, ask.grad_accum = seen.grad_accum;
  ask.resumes = seen.resume[0] != 0;
  ask.out = seen.out;
  ask.argc = call->argc, ask.argv = call->argv;
  return rdzv_main(&ask);
}

// Prints at once what a signal asks for, if the line can be printed without waiting: mpirun stops reading its ranks'
// output before it passes SIGINT and SIGTERM on. Called in a signal handler.
static void stop_say(int signal, bool saves) {
  char line[192];
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  strcpy(line, signal == SIGUSR1 ? "SIGUSR1" : signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "SIGHUP");
  strcat(line, ": the run ends after this step, or this batch of an evaluation, ");
  strcat(line, saves ? "with a checkpoint" : "without a new checkpoint");
  strcat(line, signal == SIGINT && alone ? "; Ctrl-C again ends it at once\n" : "\n");
  terminal_end_line_at_once();
  if (poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT)) return;
  if (write(STDOUT_FILENO, line, strlen(line)) < 0) return;      // nobody reads it
}
// mpirun kills its ranks soon after it has passed Ctrl-C or SIGTERM on; a rank without a launcher has time to save. If
// all ranks get the signal, from their parent or a terminal, only rank 0 prints it.
static void on_stop_signal(int signal, siginfo_t *from, void *) {
  const int fault = errno;
  const bool has_time = signal == SIGINT ? alone : !under_mpirun;
  const int asked = signal == SIGUSR1 || has_time ? STOP_SAVE : STOP_END;
  const bool news = asked > stop_asked, to_this = from->si_pid && from->si_pid != getppid();
  if (news) stop_asked = asked;
  if (signal != SIGUSR1) liveness_quiet();       // whoever is killed now was to end
  if (signal == SIGINT || (signal == SIGTERM && under_mpirun)) {
    if (under_mpirun) terminal_end_line_at_once();               // it may end us any moment
    terminal_last_signal(signal);
  }
  if (news && (to_this || !behind_first)) stop_say(signal, asked == STOP_SAVE && !saves_nothing);
  errno = fault;
}
// A signal asks the training loop to end after its step, or after this batch of an evaluation. A second SIGINT ends the
// process at once; other signals may come any number of times. SIGINT and SIGTERM interrupt a write that waits for a
// terminal: mpirun stops reading what its ranks print before it passes these signals on.
static void catch_signal(int signal, int flags) {
  struct sigaction a = {};
  a.sa_sigaction = on_stop_signal;
  a.sa_flags = flags | SA_SIGINFO;
  sigaction(signal, &a, NULL);
}
// From here on signals ask for an end between steps, or batches of an evaluation. trains: there is something to save.
static void catch_stop_signals(bool trains) {
  saves_nothing = !trains;
  catch_signal(SIGINT, 0);
  catch_signal(SIGTERM, 0);                      // schedulers send it twice while we save
  if (signal(SIGHUP, SIG_IGN) != SIG_IGN) catch_signal(SIGHUP, 0);               // nohup: stays ignored
}
