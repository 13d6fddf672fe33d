// call.h: what a command of the program needs before it runs: options, or MPI with the other ranks.
#pragma once
#include "rendezvous.h"
#include "start.h"

void call_parse(Call *call) {
  catch_signal(SIGUSR1, (int)SA_RESTART);        // early: unhandled, it would end the process
  if (!options_parse(&call->o, call->trainer, call->argc, call->argv, &call->error))
    options_whole_line(call->argc, call->argv, &call->error);
  if (call->o.interactive || call->o.eval[0]) call->o.sample_only = true;      // no data, no training
}
void call_join(Call *call) {
  static char who[128];
  char host[64] = "";
  Options *o = &call->o;
  int provided, rank, world;
  const bool watched = !call->error.text[0] &&
                       launch_watches(o->restarts, o->given[OPT_restart_wait], o->rdzv, &call->error);
  if (call->error.text[0] && !call->launched)    // no need to start MPI first
    die_user("train_gpt_fsdp: %s", call->error.text);
  const RestartsAsk ask = {o->restarts, o->resume, o->out};
  if (watched && restarts_supervise(&ask)) option_set(o, OPT_resume, "auto", &call->error);
  restarts_open();
  liveness_died = restarts_died;
  if (!o->config[0]) launch_reject_alone(o->rdzv, true);         // the file may say --rdzv none
  liveness_start(o->timeout);
  launch_no_daemon();
  launch_one_host();
  launch_warning_pmi();
  MPI_Init_thread(&call->argc, &call->argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  alone = !call->launched && world == 1, behind_first = rank > 0;
  if (alone && !o->config[0]) launch_reject_alone(o->rdzv, false);
  gethostname(host, sizeof host - 1);
  snprintf(who, sizeof who, "rank %d of %d on %s", rank, world, host);
  who_am_i = who;
  die_hook = die_everywhere;
}

// Completes call->o, the same on all ranks; `asked` receives the options as the user gave them. All ranks call it.
static void train_options(Call *call, Options *asked, Start *start) {
  Options *o = &call->o;
  Error *error = &call->error;
  agree_no_error(MPI_COMM_WORLD, error->text, EXIT_USAGE);
  take_config(o, MPI_COMM_WORLD);
  launch_forget(o);                              // the options of the rendezvous that has started this rank
  if (o->eval[0]) o->sample_only = true;         // as call_parse does for --eval on the command line
  // The program acts on these options before the file of --config is read.
  for (OptionId id : {OPT_preflight, OPT_flight, OPT_restarts, OPT_interactive, OPT_show_chats})
    if (o->in_file[id])
      fail(error, "--%s belongs on the command line, not into the file of --config", option_specs[id].name);
  agree_no_error(MPI_COMM_WORLD, error->text, EXIT_USAGE);
  if (alone) launch_reject_alone(o->rdzv, false);
  liveness_timeout(o->timeout);
  liveness_open(MPI_COMM_WORLD, error);
  agree_no_error(MPI_COMM_WORLD, error->text, EXIT_MISSING);
  mpi_abort_delay(0, MPI_PATIENCE_S);
  agree_on_options(o, asked, start, MPI_COMM_WORLD);
  restarts_batch(o->global_batch, o->batch_size);                // told to the process that restarts this run
  liveness_flight(o->out, program_build());
}
// --preflight, or its short form at the start of a run. All ranks call it.
static int preflight(const Options *o, bool at_start) {
  static DeviceProbe gpu;
  const bool may_use_gpu = !at_start && &ops_cuda && o->device != OPT_device_cpu && !o->no_cuda;
  if (may_use_gpu) ops_cuda.device_probe(NULL, &gpu);
  const PreflightAsk ask = {program_build(), o->out, may_use_gpu ? &gpu : NULL, o->timeout};
  liveness_phase("preflight");
  if (!at_start) return preflight_run(&ask);
  preflight_start(&ask, MPI_COMM_WORLD);
  return 0;
}
int preflight_main(Call *call) {
  if (!call->o.preflight || call->error.text[0]) return -1;
  const int code = preflight(&call->o, false);
  MPI_Finalize();
  return code;
}
