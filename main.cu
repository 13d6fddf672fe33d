// main.cu: the program as a table of commands, what each of them needs before, and the life of a run that trains.
#include "trainer.h"
#include "launch/preflight_net.h"
#include "run/flight_report.h"
#include "run/option_help.h"
#include "run/option_line.h"
#include "run/plan_search.h"

static void call_parse(Call *call) {
  catch_signal(SIGUSR1, (int)SA_RESTART);        // early: unhandled, it would end the process
  if (!options_parse(&call->o, call->argc, call->argv, call->error, sizeof call->error))
    options_whole_line(call->argc, call->argv, call->error, sizeof call->error);
}
// This process becomes a rank.
static void call_join(Call *call) {
  static char who[128];
  char host[64] = "";
  Options *o = &call->o;
  int provided, rank, world;
  const bool watched = !call->error[0] && launch_watches(o->restarts, o->given[OPT_restart_wait], o->rdzv, call->error,
                                                         sizeof call->error);
  if (call->error[0] && !call->launched) die_user("train_gpt_fsdp: %s", call->error);    // no need to start MPI first
  const RestartsAsk ask = {o->restarts, o->resume, o->out};
  if (watched && restarts_supervise(&ask)) option_set(o, OPT_resume, "auto", call->error, sizeof call->error);
  restarts_open();
  liveness_died = restarts_died;
  if (!o->config[0]) launch_refuse_alone(o->rdzv, true);         // the file may say --rdzv none
  liveness_start(o->timeout);
  launch_no_daemon();
  launch_one_host();
  launch_notice_pmi();
  MPI_Init_thread(&call->argc, &call->argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  alone = !call->launched && world == 1;
  if (alone && !o->config[0]) launch_refuse_alone(o->rdzv, false);
  gethostname(host, sizeof host - 1);
  snprintf(who, sizeof who, "rank %d of %d on %s", rank, world, host);
  who_am_i = who;
  die_hook = die_everywhere;
}

// Options of all ranks, complete; `asked` as they were asked for. Collective.
static void train_options(Call *call, Options *asked, Start *start) {
  Options *o = &call->o;
  char *error = call->error;
  const size_t bytes = sizeof call->error;
  agree_no_error(MPI_COMM_WORLD, error, EXIT_USAGE);
  take_config(o, MPI_COMM_WORLD);
  launch_forget(o);
  if (o->preflight || o->flight[0] || o->in_file[OPT_restarts])
    snprintf(error, bytes, "--%s belongs on the command line, not into the file of --config",
             o->preflight ? "preflight" : o->flight[0] ? "flight" : "restarts");
  agree_no_error(MPI_COMM_WORLD, error, EXIT_USAGE);
  if (alone) launch_refuse_alone(o->rdzv, false);
  liveness_timeout(o->timeout);
  liveness_open(MPI_COMM_WORLD, error, bytes);
  agree_no_error(MPI_COMM_WORLD, error, EXIT_MISSING);
  mpi_abort_delay(0, MPI_PATIENCE_S);
  resolve_options(o, asked, start, MPI_COMM_WORLD);
  restarts_batch(o->global_batch, o->batch_size);
  liveness_flight(o->out, PROGRAM_VERSION " (" BUILD_ID ")");
}
// --preflight, or its short form at the start of a run. Collective.
static int preflight(const Options *o, bool at_start) {
  static DeviceProbe gpu;
  const bool may_use_gpu = !at_start && &ops_cuda && o->device != OPT_device_cpu && !o->no_cuda;
  if (may_use_gpu) ops_cuda.device_probe(NULL, &gpu);
  const PreflightAsk ask = {PROGRAM_VERSION " (" BUILD_ID ")", o->out, may_use_gpu ? &gpu : NULL, o->timeout};
  liveness_phase("preflight");
  if (!at_start) return preflight_run(&ask);
  preflight_start(&ask, MPI_COMM_WORLD);
  return 0;
}
static int preflight_main(Call *call) {
  if (!call->o.preflight || call->error[0]) return -1;
  const int code = preflight(&call->o, false);
  MPI_Finalize();
  return code;
}
static int train(Call *call) {
  static Options asked;
  static Start start;
  static Trainer t;
  static Corpus corpus;
  static Saver saver;
  static Cores cores;
  Log log;
  void *image;
  MPI_Comm node;
  int rank;
  Options *o = &call->o;
  char *error = call->error;
  train_options(call, &asked, &start);
  preflight(o, true);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  liveness_phase("looking for devices");
  const Device device = agree_on_device(o, MPI_COMM_WORLD, node);
  cores_take(&cores, (int)o->threads, !device.ops->nccl, node, MPI_COMM_WORLD);
  MPI_Comm_free(&node);
  liveness_phase("reading the corpus");
  load_corpus(&corpus, &image, o, &start, MPI_COMM_WORLD, cores.share.threads);
  if (!rank && o->prompt[0] && !corpus.has_tokenizer)
    snprintf(error, sizeof call->error, "--prompt needs text to train a tokenizer on; --data %.800s holds tokens",
             o->data);
  else start_check(&start, o, &corpus, error, sizeof call->error);
  agree_no_error(MPI_COMM_WORLD, error, EXIT_USAGE);
  liveness_phase("start-up");
  trainer_open(&t, o, &corpus, MPI_COMM_WORLD, device, cores.share.threads);
  t.run.cores = &cores;
  t.run.crowded = cores_are_crowded(&cores);
  report_check_trace(&t.run, start_step(&start, o), error, sizeof call->error);
  agree_no_error(MPI_COMM_WORLD, error, EXIT_USAGE);
  if (o->tune == OPT_tune_on) trainer_tune(&t);
  saver_init(&saver, &t.run);
  print_start(&t.run);
  saver_print_plan(&saver);
  print_details(&t.run);
  print_start_notices(&t.run);
  liveness_phase("loading");
  start_load(&start, &t.run, &saver);
  catch_stop_signals();
  t.trace.from = t.step;
  open_files(&log, &t.run, &start);
  if (!rank && run_trains(o)) options_save(&asked, o, fsdp_world(&t.fsdp), start.resume ? start.path : "");
  print_old_runs(&t.run, start.path);
  const int code = trainer_run(&t, &log, &saver);
  line_end();
  liveness_phase("end");
  trainer_close(&t);
  start_free(&start);
  corpus_free(&corpus);
  free(image);
  cores_give_back(&cores);
  MPI_Finalize();
  liveness_close();
  return code;
}

// The first that was asked for is what the program does.
static const Command commands[] = {
    {"rdzv_rank, rdzv_hand", NEEDS_NOTHING, launch_hidden},      // mpirun's, for --rdzv
    {"--help, --version", NEEDS_NOTHING, options_answer},
    {"--report RUN1,RUN2,...", NEEDS_OPTIONS, report_compare},
    {"--plan", NEEDS_OPTIONS, plan_main},
    {"--flight", NEEDS_OPTIONS, flight_answer},
    {"--rdzv", NEEDS_OPTIONS, launch_rendezvous},
    {"--preflight", NEEDS_MPI, preflight_main},
    {"train, evaluate, sample", NEEDS_MPI, train}};

// The whole program; main, unless a test includes this file.
int train_main(int argc, char **argv) {
  static Call call;
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  call.argc = argc, call.argv = argv;
  call.launched = under_mpirun = rank != NULL;
  call.first = !rank || !strcmp(rank, "0");
  terminal_open();
  int code = -1, ready = NEEDS_NOTHING;
  for (const Command *c = commands; code < 0; code = c++->run(&call))
    for (; ready < c->needs; ready++) (ready == NEEDS_NOTHING ? call_parse : call_join)(&call);
  return code;
}

#ifndef TRAINER_AS_LIBRARY
int main(int argc, char **argv) { return train_main(argc, argv); }
#endif
