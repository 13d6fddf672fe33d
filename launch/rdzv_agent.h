// rdzv_agent.h: the agent: any process of a rendezvous but host 0's. It finds host 0, proves the shared secret (token)
// and has host 0 prove it, says who it is, keeps a place for its ranks, starts Open MPI's daemon if it is its host's
// first process, and ends with the job's exit code.
#pragma once
#include "rdzv_host.h"

enum { RDZV_TRY_MS = 3000, RDZV_PAUSE_LEAST_MS = 50, RDZV_PAUSE_MOST_MS = 1000, RDZV_ASK_MS = 1000 };
struct RdzvAgent {
  const RdzvAsk *ask;
  const RdzvWhere *where;
  RdzvInfo *me;
  int fd, signals;
  RdzvLink link;
  size_t used;                                   // bytes of the frame that was read last (rdzv_link_next)
  RdzvSeats seats;
  RdzvChild daemon;
  RdzvPlan plan;
  bool planned, over;                            // `plan` has come; `end` is set
  // --restarts: the job may start again, and this process then connects to host 0 again.
  bool again;                                    // it has to: host 0 said so, or the connection broke
  bool met_before;                               // it has been connected to host 0, whose address was then `last`
  bool link_broke;                               // the last connection broke before host 0 ended it
  bool left_out;                                 // host 0 has no place for it in this start: it asks again and again
  NetAddress last;
  char lost[200];                                // error after link_broke, if nobody listens at `last` any more
  char interface[IF_NAMESIZE];                   // network interface to host 0; "": none
  RdzvEnd end;
};

// Writes the command words and the environment with which the ranks in this process's place run. plan: of this start,
// whose options the words get. interface: the network interface to the other hosts; "": there are none.
static inline void rdzv_needs(RdzvBytes *b, const RdzvAsk *ask, const char *interface, int64_t ranks_here,
                              const RdzvPlan *plan) {
  RdzvEnv env;
  cpu_set_t cores;
  rdzv_env_copy(&env);
  rdzv_env_network(&env, interface);
  const bool crowded = !sched_getaffinity(0, sizeof cores, &cores) && CPU_COUNT(&cores) < ranks_here;
  if (crowded && rdzv_env_find(&env, "OMPI_MCA_mpi_yield_when_idle") < 0)
    rdzv_env_set(&env, "OMPI_MCA_mpi_yield_when_idle", "1");     // as mpirun --oversubscribe does
  char **words = (char **)calloc((size_t)ask->argc + 8, sizeof(char *)), numbers[2][24];
  rdzv_needs_write(b, restart_words(words, numbers, ask->argc, ask->argv, plan), words, &env);
  free(words);
  rdzv_env_free(&env);
}

// ---- to host 0 ------------------------------------------------------------------------------------------------------
static double rdzv_rejected_ms = 60000;          // for so long an agent whose token was rejected tries again

// Both ends prove the token over a fresh connection. 1: done; 0: the other end does not speak this protocol, or not in
// time; -1: it says that it does not know this token, which any process that listens at host 0's address can say.
static inline int rdzv_agent_prove(RdzvAgent *a, const ProveKey *token) {
  const double begun = now_ms();
  RdzvFrame f;
  rdzv_link_open(&a->link, token, true);
  a->used = 0;
  for (bool alive = true; alive && a->link.prove.phase != PHASE_OPEN;) {
    alive = rdzv_send(a->fd, &a->link);
    pollfd p = {a->fd, POLLIN, 0};
    const double left = begun + rdzv_proof_ms - now_ms();
    if (left <= 0 || poll(&p, 1, (int)left + 1) != 1) break;
    alive = rdzv_receive(a->fd, &a->link) && alive;
    const bool broken = rdzv_link_next(&a->link, &f, &a->used) < 0;
    if (broken) break;
  }
  return a->link.prove.phase == PHASE_OPEN ? 1 : a->link.prove.rejected ? -1 : 0;
}
// Tries each of host 0's addresses once. Returns as rdzv_agent_prove; `why` says what went wrong.
static inline int rdzv_agent_try(RdzvAgent *a, const NetAddresses *to, const ProveKey *token, Error *why) {
  int rejected = 0;
  for (int i = 0; i < to->count; i++) {
    char text[INET6_ADDRSTRLEN];
    net_address_text((const sockaddr *)&to->at[i].to, text, sizeof text);
    a->fd = net_connect(&to->at[i], RDZV_TRY_MS);
    if (a->fd < 0 && rdzv_is_squatted(&to->at[i], errno, why)) return -1;
    if (a->fd < 0) {
      if (!rejected) fail(why, "%s: %s", text, strerror(errno));
      continue;
    }
    const int proved = rdzv_agent_prove(a, token);
    if (proved > 0) return 1;
    if (proved < 0)
      fail(why, "host 0 at %.300s knows another token: give all processes the same --rdzv_token, or %s", a->where->text,
           RDZV_TOKEN_VARIABLE);
    else if (!rejected) fail(why, "%s: who answers is no train_gpt_fsdp that waits for others", text);
    close(a->fd);
    a->fd = -1;
    rdzv_link_close(&a->link);
    rejected = rejected || proved < 0 ? -1 : 0;
  }
  return rejected;
}
// Pauses between tries, longer and longer.
static inline void rdzv_agent_pause(double *pause_ms) {
  usleep((useconds_t)(*pause_ms * 1e3));
  *pause_ms *= 1.5;
  if (*pause_ms > RDZV_PAUSE_MOST_MS) *pause_ms = RDZV_PAUSE_MOST_MS;
}
// Whether a process that connects again gives up: a signal asks it to end, or host 0's process has ended. That has
// ended if nobody listens at its last address, where it listens between starts too.
static inline bool rdzv_agent_gives_up(RdzvAgent *a) {
  if (!a->met_before) return false;
  for (int s; (s = rdzv_signal_next(a->signals));) {
    if (s != SIGINT && s != SIGTERM && s != SIGHUP && s != SIGQUIT) continue;
    a->end.code = 128 + s;
    snprintf(a->end.text, sizeof a->end.text, "stopped by signal %d while it came to host 0 again", s);
    return true;
  }
  const int fd = a->last.bytes ? net_connect(&a->last, RDZV_TRY_MS) : -1;
  if (fd >= 0) close(fd);
  if (fd >= 0 || !a->last.bytes || errno != ECONNREFUSED) return false;
  snprintf(a->end.text, sizeof a->end.text, "%s", a->link_broke ? a->lost :
           "host 0 has ended before this process could come again");
  a->end.code = EXIT_LOST;
  return true;
}
// Connects to host 0 and proves the token, within --timeout. If the process at host 0's address rejects the token, the
// agent says so at once and tries for at most rdzv_rejected_ms more, as that process may be a stranger. False: a->end
// says why.
static inline bool rdzv_agent_meet(RdzvAgent *a) {
  const double begun = now_ms();
  double limit = (double)a->ask->timeout_s * 1e3;
  double pause_ms = RDZV_PAUSE_LEAST_MS, warning = begun + RDZV_WARNING_MS;
  char job[RDZV_JOB_BYTES] = "";
  a->end = RdzvEnd{};
  for (bool first = true;; first = false, rdzv_agent_pause(&pause_ms)) {
    Error why = {};
    if ((!first || a->left_out) && rdzv_agent_gives_up(a)) return false;
    NetAddresses to = {};
    RdzvOffer offer = {};
    ProveKey token = a->where->token;
    if (a->where->kind == RDZV_FILE) {
      if (rdzv_file_read(a->where, &offer, job, &why)) {
        token = rdzv_offer_key(&a->where->token, offer.token);
        to = offer.at;
        fail(&why, "host 0 has written its file, but not yet where it listens");
      }
    } else if (a->where->local) to.at[to.count++] = rdzv_local_meeting(a->where->port);
    else net_resolve(a->where->host, a->where->port, &to, &why);
    int met = rdzv_agent_try(a, &to, &token, &why);
    if (met < 0 && offer.job[0]) met = 0;        // the file may be of an earlier start
    const double now = now_ms();
    if (met < 0 && !a->end.code) {
      a->end.code = EXIT_USAGE;
      snprintf(a->end.text, sizeof a->end.text, "%.1023s", why.text);
      rdzv_say("%s; it is tried again for at most a minute, since that may be a stranger", why.text);
      const double until = now - begun + rdzv_rejected_ms;
      if (limit <= 0 || limit > until) limit = until;
    }
    const bool late = limit > 0 && now - begun >= limit;
    if (met > 0 || late) rdzv_file_leave(a->where, job);
    if (met > 0) a->end = RdzvEnd{};
    if (met > 0) return true;
    if (late && !a->end.code) {
      a->end.code = EXIT_MISSING;
      snprintf(a->end.text, sizeof a->end.text, "host 0 did not come to %.300s within %lld s (--timeout): %.600s",
               a->where->text, (long long)a->ask->timeout_s, why.text);
    }
    if (late) return false;
    if (now > warning) rdzv_say("waiting for host 0 at %s: %s", a->where->text, why.text);
    if (now > warning) warning = now + RDZV_AGAIN_MS;
  }
}
static inline void rdzv_agent_send(RdzvAgent *a, int type, RdzvBytes *payload) {
  rdzv_link_send(&a->link, type, payload ? payload->p : NULL, payload ? payload->n : 0);
  if (payload) rdzv_bytes_free(payload);
  rdzv_send(a->fd, &a->link);
}

// ---- where Open MPI's daemon connects to ----------------------------------------------------------------------------
// Whether an address at which mpirun listens is host 0's: the address of the peer of this connection, or, if that is a
// local socket, an address of this machine.
static inline bool rdzv_is_peer(const char *text, const sockaddr *peer) {
  char interface[IF_NAMESIZE];
  bool loopback;
  NetAddress a;
  if (!net_address_of(text, 1, &a)) return false;
  if (peer->sa_family != AF_UNIX) return net_same_host((const sockaddr *)&a.to, peer);
  net_interface((const sockaddr *)&a.to, interface, &loopback);
  return interface[0] != 0;
}
// Copies one part of mpirun's URI, tcp://A,B:PORT or tcp6://[A,B]:PORT (Open MPI 5 adds :MASK,MASK), with no address
// but the peer's. False: the part does not have the peer's address.
static inline bool rdzv_uri_part(char *to, size_t room, char *part, const sockaddr *peer) {
  char *hosts = strstr(part, "://"), *port, *masks, *address, *mask;
  if (!hosts) return false;
  *hosts = 0, hosts += 3;
  const bool six = *hosts == '[';
  char *end = six ? strchr(++hosts, ']') : strchr(hosts, ':');
  port = end && six ? end + 1 : end;
  if (!port || *port != ':') return false;
  *end = 0, *port++ = 0;
  masks = strchr(port, ':');
  if (masks) *masks++ = 0;
  while ((address = strsep(&hosts, ","))) {
    mask = masks ? strsep(&masks, ",") : NULL;
    if (!rdzv_is_peer(address, peer)) continue;
    snprintf(to, room, ";%s://%s%s%s:%s%s%s", part, six ? "[" : "", address, six ? "]" : "", port, mask ? ":" : "",
             mask ? mask : "");
    return true;
  }
  return false;
}
// Copies mpirun's URI, JOB;PART;PART..., with no address but the peer's: only the peer has proved the token. False: the
// URI does not have the peer's address.
static inline bool rdzv_uri_of_peer(char *to, size_t room, const char *uri, const sockaddr *peer) {
  char *text = strdup(uri), *rest = text, *part = strsep(&rest, ";");
  size_t n = (size_t)snprintf(to, room, "%s", part), job = n;
  while (n < room && (part = strsep(&rest, ";")))
    if (rdzv_uri_part(to + n, room - n, part, peer)) n += strlen(to + n);
  free(text);
  return n > job && n + 1 < room;
}
// Puts the URI with the peer's address only into the daemon's command. Returns an error, or NULL. uri: memory for it,
// of `room` bytes.
static inline const char *rdzv_daemon_to_peer(RdzvWords *w, const sockaddr *peer, char *uri, size_t room) {
  static char why[300];
  char at[INET6_ADDRSTRLEN];
  for (int i = 2; i + 1 < w->count; i++) {
    if (strcmp(w->word[i], "orte_hnp_uri") && strcmp(w->word[i], "prte_hnp_uri")) continue;
    net_address_text(peer, at, sizeof at);
    snprintf(why, sizeof why, "%s: mpirun listens at %.120s, but host 0's process is at %s: let Open MPI use that "
             "network (OMPI_MCA_oob_tcp_if_include)", w->word[0], w->word[i + 1], at);
    if (!rdzv_uri_of_peer(uri, room, w->word[i + 1], peer)) return why;
    w->word[i + 1] = uri;
  }
  return NULL;
}

// ---- what host 0 asks -----------------------------------------------------------------------------------------------
__attribute__((format(printf, 3, 4))) static inline void rdzv_agent_end(RdzvAgent *a, int code, const char *fmt, ...) {
  if (a->over) return;
  a->over = true;
  a->end.code = code;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(a->end.text, sizeof a->end.text, fmt, ap);
  va_end(ap);
}
static inline void rdzv_agent_plan(RdzvAgent *a, const RdzvFrame *f) {
  Error error = {};
  if (a->planned || !rdzv_plan_read(&a->plan, f->payload, f->n) ||
      (a->plan.start ? a->plan.ranks > a->where->ranks : a->plan.ranks != a->where->ranks)) {
    rdzv_agent_end(a, EXIT_LOST, "host 0 does not speak as it should");
    return;
  }
  a->planned = true;
  rdzv_needs(&a->seats.needs, a->ask, a->plan.machines > 1 ? a->interface : "", a->plan.here, &a->plan);
  if (!rdzv_seats_open(&a->seats, a->plan.job, a->plan.first, (int)a->plan.ranks, &error)) {
    rdzv_agent_end(a, EXIT_MISSING, "%s", error.text);
    return;
  }
  if (a->plan.lead)
    rdzv_say("%lld of %lld ranks run on this host; what they print appears on %s", (long long)a->plan.here,
             (long long)a->plan.world, a->plan.host);
  if (!a->plan.ranks) rdzv_say("no rank runs in this process's place now; it waits to be needed");
  rdzv_agent_send(a, RDZV_READY, NULL);
}
// Starts Open MPI's daemon, if the frame's words are a daemon's command.
static inline void rdzv_agent_daemon(RdzvAgent *a, const RdzvFrame *f) {
  RdzvWords w;
  RdzvBytes b = {};
  char why[400] = "";
  if (!rdzv_words_read(&w, f->payload, f->n)) {
    rdzv_agent_end(a, EXIT_LOST, "host 0 does not speak as it should");
    return;
  }
  char *uri = (char *)malloc(RDZV_FRAME_MAX);
  const char *rejected = !a->planned || a->daemon.pid ? "a daemon that nobody asked for" : rdzv_daemon_rejected(&w);
  if (!rejected) rejected = rdzv_daemon_to_peer(&w, (const sockaddr *)&a->last.to, uri, RDZV_FRAME_MAX);
  if (rejected) snprintf(why, sizeof why, "refused to start %s", rejected);
  else {
    RdzvEnv env;
    rdzv_env_copy(&env);
    rdzv_env_network(&env, a->plan.machines > 1 ? a->interface : "");
    char beside[1100];
    const char *mpirun = rdzv_mpirun(), *slash = strrchr(mpirun, '/');
    snprintf(beside, sizeof beside, "%.*s%s", slash ? (int)(slash + 1 - mpirun) : 0, mpirun, w.word[0]);
    char *name = w.word[0];
    w.word[0] = beside;
    if (!rdzv_child_start(&a->daemon, w.word, &env))
      snprintf(why, sizeof why, "cannot start %.200s: %s; MPIRUN or PATH must name Open MPI", beside, strerror(errno));
    w.word[0] = name;
    rdzv_env_free(&env);
  }
  free(uri);
  rdzv_words_free(&w);
  if (!why[0]) return;
  rdzv_say("%s", why);
  rdzv_end_write(&b, RDZV_NEVER_STARTED, why);
  rdzv_agent_send(a, RDZV_DAEMON_ENDED, &b);
}
static inline void rdzv_agent_frame(RdzvAgent *a, const RdzvFrame *f) {
  if (f->type == RDZV_TAKEN) return;
  if (f->type == RDZV_PLAN) rdzv_agent_plan(a, f);
  else if (f->type == RDZV_DAEMON) rdzv_agent_daemon(a, f);
  else if ((f->type == RDZV_END || f->type == RDZV_AGAIN) && rdzv_end_read(&a->end, f->payload, f->n))
    a->over = true, a->again = f->type == RDZV_AGAIN;
  else rdzv_agent_end(a, EXIT_LOST, "host 0 does not speak as it should");
}
static inline void rdzv_agent_signals(RdzvAgent *a) {
  for (int s; (s = rdzv_signal_next(a->signals));) {
    RdzvBytes b = {};
    if (s == SIGTSTP) raise(SIGSTOP);
    if (s == SIGTSTP || s == SIGCONT || s == SIGCHLD) continue;
    rdzv_add_number(&b, s);
    rdzv_agent_send(a, RDZV_SIGNAL, &b);
  }
}
static inline void rdzv_agent_look(RdzvAgent *a) {
  pollfd *p = (pollfd *)calloc((size_t)a->seats.count + 2, sizeof(pollfd));
  RdzvFrame f;
  int n = 2, got = 0;
  p[0] = pollfd{a->fd, (short)(POLLIN | (a->link.out.n ? POLLOUT : 0)), 0};
  p[1] = pollfd{a->signals, POLLIN, 0};
  n += rdzv_seats_poll(&a->seats, p + n);
  poll(p, (nfds_t)n, 500);
  if (p[1].revents) rdzv_agent_signals(a);
  const bool alive = !p[0].revents || rdzv_receive(a->fd, &a->link);
  while (!a->over && (got = rdzv_link_next(&a->link, &f, &a->used)) > 0) rdzv_agent_frame(a, &f);
  if (!a->over && (!rdzv_send(a->fd, &a->link) || !alive || got < 0)) {
    a->link_broke = a->again = a->ask->restarts > 0;
    rdzv_agent_end(a, EXIT_LOST, "host 0%s%s has ended or is out of reach: what runs here ends",
                   a->planned ? " on " : "", a->planned ? a->plan.host : "");
  }
  rdzv_seats_look(&a->seats);
  free(p);
  if (!a->daemon.pid || !rdzv_child_ended(&a->daemon) || a->over || !a->daemon.code) return;
  RdzvBytes b = {};
  char text[120];
  snprintf(text, sizeof text, "Open MPI's daemon there ended with code %d", a->daemon.code);
  rdzv_end_write(&b, a->daemon.code == RDZV_NEVER_STARTED ? 1 : a->daemon.code, text);
  rdzv_agent_send(a, RDZV_DAEMON_ENDED, &b);
}
// Tells host 0 who this process is, over the open connection, and does what host 0 asks until the job ends. Returns the
// job's exit code.
static inline int rdzv_agent_serve(RdzvAgent *a) {
  sockaddr_storage here = {};
  socklen_t n = sizeof here;
  bool loopback = false;
  RdzvBytes b = {};
  if (!a->where->local && !getsockname(a->fd, (sockaddr *)&here, &n)) {
    net_interface((const sockaddr *)&here, a->interface, &loopback);
    if (loopback) a->interface[0] = 0;
  }
  if (a->signals < 0) a->signals = rdzv_signals_open();
  a->last.bytes = sizeof a->last.to;
  if (getpeername(a->fd, (sockaddr *)&a->last.to, &a->last.bytes)) a->last.bytes = 0;
  rdzv_info_write(&b, a->me);
  rdzv_agent_send(a, RDZV_INFO, &b);
  a->link_broke = false;
  while (!a->over) rdzv_agent_look(a);
  if (a->link_broke) snprintf(a->lost, sizeof a->lost, "%.199s", a->end.text);
  if (a->end.text[0] && !a->link_broke) rdzv_say("%s", a->end.text);
  rdzv_child_end(&a->daemon, 5000);
  rdzv_seats_close(&a->seats, 2000);
  close(a->fd);
  rdzv_link_close(&a->link);
  if (a->again && a->plan.lead) rdzv_keep_flights(a->ask->out, a->plan.start + 1);
  return (int)a->end.code;
}
// Resets the agent before it connects to host 0 again. me->before and me->died report the start that it was in.
static inline void rdzv_agent_renew(RdzvAgent *a) {
  if (a->planned) {
    snprintf(a->me->before, sizeof a->me->before, "%s", a->plan.job);
    a->me->died = a->seats.heard.died;
  }
  const bool early = a->over && !a->link_broke && !a->planned;     // the run continues without this process
  if (early && !a->left_out) rdzv_say("the run continues without this process, which waits for the next start");
  a->left_out = early;
  if (early) usleep(RDZV_ASK_MS * 1000);
  a->link = RdzvLink{};
  a->seats = RdzvSeats{};
  a->daemon = RdzvChild{};
  a->plan = RdzvPlan{};
  a->used = 0, a->fd = -1;
  a->planned = a->over = a->again = false;
  a->met_before = true;
}
