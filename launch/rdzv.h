// rdzv.h: starts ranks without a launcher that makes them. Each process that the user started, by whatever means, joins
// the others at host 0 (--rdzv), and ranks of Open MPI take their places: with their environment, directory, cores and
// arguments. Open MPI stays in charge of ranks; only the start of its daemons, for which mpirun has ssh, is done here.
//
//   host 0: this process -- mpirun -- rank 0 ...      mpirun starts `rdzv_rank`, which becomes the rank, and
//      |                      |                       `rdzv_hand`, which hands the daemon's command to this process
//      |  (token, HMAC)       |  (Open MPI)
//   host 1: this process -- orted -- rank 1 ...
//
//   launch/rdzv_wire.h    what is said, and how the token is proved
//   launch/rdzv_where.h   options, addresses, sockets
//   launch/rdzv_file.h    a shared directory in place of an address
//   launch/rdzv_local.h   children and ranks on one host
//   launch/restart_rules.h   --restarts: what is started again
//   launch/rdzv_host.h    host 0
//   launch/rdzv_agent.h   the others
#pragma once
#include "rdzv_agent.h"

// Files that a process may have open: raised for host 0 as far as its connections need it.
static inline void rdzv_raise_files(int64_t members) {
  rlimit limit;
  const rlim_t need = (rlim_t)(members + RDZV_SPARE_CLIENTS + 512);
  if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= need) return;
  limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
  setrlimit(RLIMIT_NOFILE, &limit);
}
// A text of this process's own namespace, such as "net:[4026531840]".
static inline void rdzv_namespace(const char *name, char *to, size_t room) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/ns/%s", name);
  const ssize_t n = readlink(path, to, room - 1);
  to[n > 0 ? n : 0] = 0;
}
// Who this process is. False with one line in `error`.
static inline bool rdzv_describe(const RdzvAsk *ask, const RdzvWhere *w, RdzvInfo *me, Error *error) {
  char boot[40] = "", net[40], pid[40];
  *me = RdzvInfo{};
  me->index = w->index, me->members = w->members, me->ranks = w->ranks, me->pid = getpid();
  gethostname(me->host, sizeof me->host - 1);
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? 0 : read(fd, boot, sizeof boot - 1);
  boot[n > 0 ? strcspn(boot, "\n") : 0] = 0;
  if (fd >= 0) close(fd);
  rdzv_namespace("net", net, sizeof net);
  rdzv_namespace("pid", pid, sizeof pid);
  snprintf(me->machine, sizeof me->machine, "%s %s %s %s", boot, net, pid, me->host);
  snprintf(me->build, sizeof me->build, "%s", ask->build);
  snprintf(me->mpi, sizeof me->mpi, "%.*s", (int)strcspn(ask->mpi, ",\n"), ask->mpi);
  const ssize_t path = readlink("/proc/self/exe", me->program, sizeof me->program - 1);
  REJECT(path <= 0 || path >= (ssize_t)sizeof me->program - 1, "the path of this program is unknown or too long");
  REJECT(strlen(ask->options) >= sizeof me->options, "the options are longer than %zu bytes", sizeof me->options);
  strcpy(me->options, ask->options);
  return true;
}

// Host 0: one start, from waiting for the processes to the end of the ranks. restart: NULL without --restarts. Returns
// the exit code; *goes_on: there is another start.
static inline int rdzv_host_start_once(RdzvHost *h, RestartState *restart, int signals, bool *goes_on) {
  Error error = {};
  const RdzvAsk *ask = h->ask;
  RdzvWhere *w = h->where;
  h->restart = restart;
  h->signals = signals;
  const NetAddresses at = h->offer.at;          // addresses of sockets that listen already
  if (w->members > 1 && w->kind == RDZV_FILE) {
    if (!rdzv_file_offer(w, &h->offer, h->job, &error)) rdzv_host_end(h, EXIT_USAGE, "%s", error.text);
    h->offer.at = at;
    if (at.count && !h->over) rdzv_offer_write(w, &h->offer);
  }
  if (rdzv_host_gather(h) && rdzv_host_deal(h) && rdzv_host_plan(h)) {
    RdzvMember *m = &h->member[w->index];
    int64_t ranks_here = 0;
    for (int64_t i = 0; i < w->members; i++) if (h->member[i].machine == m->machine) ranks_here += h->member[i].ranks;
    rdzv_host_interfaces(h);
    rdzv_needs(&h->seats.needs, ask, h->machines > 1 ? h->interface : "", ranks_here, &h->own);
    if (!rdzv_seats_open(&h->seats, h->job, m->first, (int)m->ranks, &error))
      rdzv_host_end(h, EXIT_MISSING, "%s", error.text);
    if (rdzv_host_ready(h)) rdzv_host_run(h);
  }
  *goes_on = rdzv_host_goes_on(h);
  if (*goes_on) rdzv_host_remember_places(h);
  const int code = rdzv_host_close(h);
  if (*goes_on) rdzv_host_remember(h);
  if (*goes_on) rdzv_keep_flights(ask->out, restart->start + 1);
  return code;
}
// Host 0. Returns the job's exit code.
static inline int rdzv_main_host(const RdzvAsk *ask, RdzvWhere *w, RdzvInfo *me) {
  RdzvHost *h = (RdzvHost *)calloc(1, sizeof(RdzvHost));
  RdzvEnv env;
  RestartState restart = {};
  Error error = {};
  int listener[NET_ADDRESSES_MAX], listeners = 0, major, code = EXIT_MISSING;
  const ProveKey token = w->token;
  rdzv_env_copy(&env);
  const bool starts = rdzv_mpirun_check(ask, &env, &major, &error);         // before anybody waits
  rdzv_env_free(&env);
  rdzv_raise_files(w->members);
  if (starts && w->members > 1 && w->kind == RDZV_TCP) {
    listener[listeners] = rdzv_listen(w, &error);
    if (listener[listeners++] < 0) code = EXIT_USAGE;
  }
  if (!starts || code == EXIT_USAGE) {
    rdzv_say("%s", error.text);
    free(h);
    return code;
  }
  restart.most = ask->restarts, restart.wait_s = ask->wait_s;
  restart.place = (RdzvPlace *)calloc((size_t)w->members, sizeof(RdzvPlace));
  const int signals = rdzv_signals_open();
  for (bool goes_on = true; goes_on; restart.start++) {
    const NetAddresses at = h->offer.at;
    w->token = token;                            // file:// has a fresh one in each start
    rdzv_host_open(h, ask, w, me, listener, listeners);
    h->offer.at = at;
    code = rdzv_host_start_once(h, ask->restarts ? &restart : NULL, signals, &goes_on);
    listeners = h->listeners;
    memcpy(listener, h->listener, sizeof listener);
  }
  close(signals);
  free(restart.place);
  free(h);
  return code;
}
// Any other process. Returns the job's exit code.
static inline int rdzv_main_agent(const RdzvAsk *ask, const RdzvWhere *w, RdzvInfo *me) {
  RdzvAgent *a = (RdzvAgent *)calloc(1, sizeof(RdzvAgent));
  int code;
  a->ask = ask, a->where = w, a->me = me, a->fd = a->signals = -1;
  for (;; rdzv_agent_renew(a)) {
    const bool met = rdzv_agent_meet(a);
    if (!met) rdzv_say("%s", a->end.text);
    code = met ? rdzv_agent_serve(a) : (int)a->end.code;
    if (!met || !a->again) break;
  }
  if (a->signals >= 0) close(a->signals);
  free(a);
  return code;
}
int rdzv_main(const RdzvAsk *ask) {
  static RdzvWhere w;
  static RdzvInfo me;
  Error error = {};
  if (!rdzv_where(ask, &w, &error) || !rdzv_describe(ask, &w, &me, &error)) {
    rdzv_say("%s", error.text);
    return EXIT_USAGE;
  }
  return w.index ? rdzv_main_agent(ask, &w, &me) : rdzv_main_host(ask, &w, &me);
}
int rdzv_hidden(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "rdzv_rank")) return rdzv_rank_main(argv[2]);
  if (argc > 3 && !strcmp(argv[1], "rdzv_hand")) return rdzv_hand_main(argc - 3, argv + 3, argv[2]);
  return -1;
}
