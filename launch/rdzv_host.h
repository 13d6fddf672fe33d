// rdzv_host.h: host 0 of a rendezvous. It waits for all processes, prints which are missing or differ, gives each its
// ranks, and runs mpirun, whose daemons on other hosts it has the processes there start.
//
// Host 0 trusts no connection that has not proved the token: such a connection may send 64 bytes within ten seconds. If
// there are too many of them, the oldest one of the address that has most is closed; after the plan only a few are
// kept, for processes that come too late. Each process of host 0's table may connect once.
#pragma once
#include "restart_rules.h"
#include "rdzv_file.h"
#include <ctype.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { RDZV_WARNING_MS = 10000, RDZV_AGAIN_MS = 60000, RDZV_READY_MS = 60000, RDZV_GONE_MS = 5000,
       RDZV_SPARE_CLIENTS = 128, RDZV_LATE_CLIENTS = 8, RDZV_REPEAT_MS = 10000, RDZV_LINGER_MS = 30000 };

// A process that is expected. here: it is there; ready: its seats are open; client: its connection; NULL: it is this
// process, or not there. lead: it runs the daemon of its machine, whose number is `machine`, -1: it has no rank in this
// start. ranks, first: how many ranks it has in this start, and the first one; offers: how many ranks it was started
// for.
struct RdzvClient;
struct RdzvMember {
  bool here, ready, lead;
  RdzvClient *client;
  int64_t ranks, offers, first, pid, died;       // died: as of RdzvInfo
  int machine;
  char before[RDZV_JOB_BYTES];
  char host[65], machine_id[200], label[80];     // label: the machine's name for mpirun, if lead
};
// A connection. member: the number of its process, -1: not known yet; until: the time at which it is closed if that is
// still not known.
struct RdzvClient { int fd; RdzvLink link; size_t used; double until; int64_t member; bool closes; NetGuest guest; };
struct RdzvHost {
  const RdzvAsk *ask;
  RdzvWhere *where;
  RdzvInfo *me, *theirs;
  RdzvOffer offer;                               // of file://
  RdzvMember *member;
  int64_t here, machines, world;
  RdzvClient **client;
  int clients, listener[NET_ADDRESSES_MAX], listeners, signals, hand;
  char job[RDZV_JOB_BYTES], interface[NET_ADDRESSES_MAX * (IF_NAMESIZE + 1)];
  RdzvChild mpirun;
  RdzvSeats seats;
  bool planned, over, said;
  int code;
  char daemon_gone[600];
  double daemon_gone_ms;                         // when a daemon was lost (described by daemon_gone); 0: none was
  char text[1024];
  int last_signal;
  int64_t last_signal_from;
  double last_signal_ms;
  int strangers;                                 // connections with another token
  uint64_t came;                                 // connections so far
  RestartState *restart;                         // of --restarts; NULL: nothing is started again
  RdzvPlan own;                                  // this process's
  bool stopped, lost_one, goes_on;               // a user's signal came; a process with ranks was lost; starts again
  bool agent_left;                               // mpirun's remote agent did not wait for its answer
};

// The name of a process in messages: "node 1 (host, pid 7)", with env:// "RANK 1 (host, pid 7)".
static inline const char *rdzv_name(const RdzvHost *h, int64_t index, const char *host, int64_t pid) {
  static char text[4][160];
  static int turn;
  char *to = text[turn = (turn + 1) % 4];
  snprintf(to, sizeof text[0], "%s %lld (%.64s, pid %lld)", h->where->numbered ? "RANK" : "node", (long long)index,
           host, (long long)pid);
  return to;
}
// Notes exit code and reason of the end of this start. The first reason counts.
__attribute__((format(printf, 3, 4))) static inline void rdzv_host_end(RdzvHost *h, int code, const char *fmt, ...) {
  if (h->over) return;
  h->over = true;
  h->code = code;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(h->text, sizeof h->text, fmt, ap);
  va_end(ap);
}
// Prints the reason, once.
static inline void rdzv_host_tell(RdzvHost *h) {
  if (h->text[0] && !h->said) rdzv_say("%s", h->text);
  h->said = true;
}
// Prepares h for the processes that are expected. listener: open sockets, which h owns from here on.
static inline void rdzv_host_open(RdzvHost *h, const RdzvAsk *ask, RdzvWhere *w, RdzvInfo *me,
                                  const int *listener, int listeners) {
  uint8_t nonce[RDZV_JOB_BYTES / 2];
  *h = RdzvHost{};
  h->ask = ask, h->where = w, h->me = me;
  h->theirs = (RdzvInfo *)malloc(sizeof(RdzvInfo));
  h->member = (RdzvMember *)calloc((size_t)w->members, sizeof(RdzvMember));
  for (int i = 0; i < listeners; i++) h->listener[i] = listener[i];
  h->listeners = listeners;
  h->hand = h->signals = -1;
  prove_random(nonce, sizeof nonce);
  rdzv_hex(h->job, nonce, sizeof nonce);
  RdzvMember *m = &h->member[w->index];
  m->here = m->ready = true;
  m->ranks = m->offers = w->ranks, m->pid = me->pid;
  snprintf(m->host, sizeof m->host, "%s", me->host);
  snprintf(m->machine_id, sizeof m->machine_id, "%s", me->machine);
  h->here = 1;
}

// ---- connections ----------------------------------------------------------------------------------------------------
static inline void rdzv_client_send(RdzvClient *c, int type, RdzvBytes *payload) {
  rdzv_link_send(&c->link, type, payload ? payload->p : NULL, payload ? payload->n : 0);
  if (payload) rdzv_bytes_free(payload);
  rdzv_send(c->fd, &c->link);
}
// Tells one process that it must end, or (again) that it must connect again; closes the connection when that is sent.
static inline void rdzv_client_end(RdzvClient *c, bool again, int code, const char *text) {
  RdzvBytes b = {};
  rdzv_end_write(&b, code, text);
  rdzv_client_send(c, again ? RDZV_AGAIN : RDZV_END, &b);
  c->closes = true;
  c->until = now_ms() + rdzv_proof_ms;
}
// Closes connection i, and does what follows for its process.
static inline void rdzv_client_close(RdzvHost *h, int i) {
  RdzvClient *c = h->client[i];
  RdzvMember *m = c->member >= 0 ? &h->member[c->member] : NULL;
  if (m) m->client = NULL;
  if (m && h->planned && m->ranks) {
    h->lost_one = true;
    rdzv_host_end(h, EXIT_LOST, "%s has ended or is out of reach: all ranks end",
                  rdzv_name(h, c->member, m->host, m->pid));
  } else if (m && h->planned) {
    rdzv_say("%s, which has no rank now, has ended or is out of reach", rdzv_name(h, c->member, m->host, m->pid));
    m->here = false;
  }
  if (m && !h->planned) {                        // the process may connect again
    *m = RdzvMember{};
    h->here--;
  }
  char from[INET6_ADDRSTRLEN];
  net_address_text((const sockaddr *)&c->guest.from.to, from, sizeof from);
  if (c->link.prove.wrong_key && !h->strangers++)
    rdzv_say("a process on %s came with another token: was it given the same --rdzv_token? It is not let in", from);
  close(c->fd);
  rdzv_link_close(&c->link);
  free(c);
  h->client[i] = h->client[--h->clients];
}
// Closes a connection of an unknown process if there are too many of these. False: there are not.
static inline bool rdzv_host_make_room(RdzvHost *h) {
  const NetGuest **guest = (const NetGuest **)calloc((size_t)h->clients + 1, sizeof(NetGuest *));
  int *at = (int *)calloc((size_t)h->clients + 1, sizeof(int)), n = 0;
  for (int i = 0; i < h->clients; i++) if (h->client[i]->member < 0) guest[n] = &h->client[i]->guest, at[n++] = i;
  const bool crowded = n > (h->planned ? (int64_t)RDZV_LATE_CLIENTS : h->where->members + RDZV_SPARE_CLIENTS);
  if (crowded) rdzv_client_close(h, at[net_crowd(guest, n)]);
  free(guest);
  free(at);
  return crowded;
}
static inline void rdzv_host_accept(RdzvHost *h, int listener) {
  for (int turn = 0; turn < 256; turn++) {
    NetAddress from = {{}, sizeof from.to};
    const int fd = accept4(listener, (sockaddr *)&from.to, &from.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (from.to.ss_family == AF_UNIX && !net_peer_is_ours(fd, NULL)) { close(fd); continue; }
    if (from.to.ss_family != AF_UNIX) net_keep_alive(fd);
    RdzvClient *c = (RdzvClient *)calloc(1, sizeof(RdzvClient));
    c->fd = fd, c->member = -1;
    c->until = now_ms() + rdzv_proof_ms;
    c->guest = NetGuest{from, h->came++};
    rdzv_link_open(&c->link, &h->where->token, false);
    h->client = (RdzvClient **)realloc(h->client, sizeof(RdzvClient *) * ((size_t)h->clients + 1));
    h->client[h->clients++] = c;
    while (rdzv_host_make_room(h)) continue;
  }
}

// ---- who comes ------------------------------------------------------------------------------------------------------
// The first line in which two lists of options differ, into `theirs` and `ours`; false: they are equal.
static inline bool rdzv_differ(const char *there, const char *here, char *theirs, char *ours, size_t room) {
  for (;;) {
    const size_t a = strcspn(there, "\n"), b = strcspn(here, "\n");
    if (a != b || strncmp(there, here, a)) {
      snprintf(theirs, room, "%.*s", (int)a, there);
      snprintf(ours, room, "%.*s", (int)b, here);
      return true;
    }
    if (!there[a] && !here[b]) return false;
    if (!there[a] || !here[b]) {
      snprintf(theirs, room, "%s", there[a] ? "more options" : "fewer options");
      snprintf(ours, room, "%s", here[b] ? "more" : "fewer");
      return true;
    }
    there += a + 1, here += b + 1;
  }
}
// Whether a process may take part. False with one line in `error`; *only: the job can do without this process, since
// its number is taken.
static inline bool rdzv_host_judge(RdzvHost *h, const RdzvInfo *i, bool *only, Error *error) {
  char theirs[300], ours[300];
  const char *who = rdzv_name(h, i->index, i->host, i->pid);
  const char *us = rdzv_name(h, h->where->index, h->me->host, h->me->pid);
  const char *count = h->where->numbered ? "WORLD_SIZE" : "--nnodes";
  const bool known = i->index >= 0 && i->index < h->where->members;
  RdzvMember *m = known ? &h->member[i->index] : NULL;
  *only = false;
  REJECT(i->members != h->where->members, "%s has %s %lld, %s has %lld", who, count, (long long)i->members, us,
         (long long)h->where->members);
  REJECT(!known || i->ranks < 1 || i->ranks > 1 << 16, "%s is none of %lld", who, (long long)h->where->members);
  // With --restarts a process that was lost counts as not there; a process with its number waits for the next start.
  const bool there = m->here && (m->client || i->index == h->where->index || !h->planned || !h->restart);
  *only = there;
  REJECT(there && !strcmp(m->host, i->host) && m->pid == i->pid, "%s is there already", who);
  REJECT(there, "%s came twice: %s is there already; each process needs a number of its own (%s)", who, rdzv_name(h,
         i->index, m->host, m->pid), h->where->numbered ? "RANK" : "--node_rank");
  REJECT(strcmp(i->build, h->me->build), "%s runs build %s, %s runs %s: copy the same program to all hosts", who,
         i->build, us, h->me->build);
  REJECT(strcmp(i->mpi, h->me->mpi), "%s has %s, %s has %s: install the same on all hosts", who, i->mpi, us,
         h->me->mpi);
  REJECT(strcmp(i->program, h->me->program), "%s runs %.200s, %s runs %.200s: Open MPI needs the same path on all "
         "hosts", who, i->program, us, h->me->program);
  REJECT(rdzv_differ(i->options, h->me->options, theirs, ours, sizeof ours), "options differ: '%s' on %s, '%s' on %s",
         theirs, who, ours, us);
  return true;
}
static inline void rdzv_host_take(RdzvHost *h, RdzvClient *c, const RdzvInfo *i) {
  bool only = false;
  Error why = {};
  const bool later = h->restart && h->restart->start > 0, judged = rdzv_host_judge(h, i, &only, &why);
  if (judged && h->planned && h->restart) {        // its number is free
    RdzvPlace *p = &h->restart->place[i->index];
    if (!p->waits)
      rdzv_say("%s came while the run continues: it waits for the next start", rdzv_name(h, i->index, i->host, i->pid));
    p->waits = true;
    rdzv_client_end(c, true, 0, "");
    return;
  }
  if (!judged || h->planned) {
    if (!why.text[0]) fail(&why, "%s came after the run had started", rdzv_name(h, i->index, i->host, i->pid));
    if (only || h->planned || later) {
      rdzv_say("%s; it is sent away", why.text);
      rdzv_client_end(c, false, later ? EXIT_LOST : EXIT_USAGE, why.text);
    } else {
      rdzv_host_end(h, EXIT_USAGE, "%s", why.text);
      rdzv_client_end(c, false, EXIT_USAGE, why.text);
    }
    return;
  }
  RdzvMember *m = &h->member[i->index];
  *m = RdzvMember{};
  m->here = true;
  m->client = c;
  m->ranks = m->offers = i->ranks, m->pid = i->pid, m->died = i->died;
  snprintf(m->before, sizeof m->before, "%s", i->before);
  snprintf(m->host, sizeof m->host, "%s", i->host);
  snprintf(m->machine_id, sizeof m->machine_id, "%s", i->machine);
  c->member = i->index;
  h->here++;
  rdzv_client_send(c, RDZV_TAKEN, NULL);
}

// ---- signals --------------------------------------------------------------------------------------------------------
// Handles a signal that process `from` got. Launchers send a signal to all their processes: the same signal to another
// process within ten seconds is the same request.
static inline void rdzv_host_signal(RdzvHost *h, int signal, int64_t from) {
  const double now = now_ms();
  const bool same = h->last_signal == signal && h->last_signal_from != from && now - h->last_signal_ms < RDZV_REPEAT_MS;
  if (same) return;
  h->last_signal = signal, h->last_signal_from = from, h->last_signal_ms = now;
  h->stopped = h->stopped || (signal != SIGUSR1 && signal != SIGUSR2);
  if (h->mpirun.pid) {
    kill(h->mpirun.pid, signal == SIGQUIT ? SIGTERM : signal);
    return;
  }
  const RdzvMember *m = &h->member[from];
  if (signal != SIGUSR1 && signal != SIGUSR2)
    rdzv_host_end(h, 128 + signal, "stopped by signal %d on %s before the start", signal,
                  rdzv_name(h, from, m->host, m->pid));
}
static inline void rdzv_host_signals(RdzvHost *h) {
  for (int s; (s = rdzv_signal_next(h->signals));) {
    if (s == SIGCHLD) continue;
    if (s == SIGTSTP) {                          // Ctrl-Z: the ranks, then this process
      if (h->mpirun.pid) kill(h->mpirun.pid, SIGTSTP);
      raise(SIGSTOP);
    } else if (s == SIGCONT) {
      if (h->mpirun.pid) kill(h->mpirun.pid, SIGCONT);
    } else rdzv_host_signal(h, s, h->where->index);
  }
}

// ---- one look -------------------------------------------------------------------------------------------------------
static inline void rdzv_host_frame(RdzvHost *h, RdzvClient *c, const RdzvFrame *f) {
  RdzvMember *m = c->member >= 0 ? &h->member[c->member] : NULL;
  RdzvReader r = {f->payload, f->n, false};
  RdzvEnd end;
  if (c->closes) return;
  if (f->type == RDZV_INFO && !m && rdzv_info_read(h->theirs, f->payload, f->n)) rdzv_host_take(h, c, h->theirs);
  else if (f->type == RDZV_READY && m && h->planned) m->ready = true;
  else if (f->type == RDZV_SIGNAL && m) {
    const int64_t s = rdzv_take_number(&r);
    const bool passed = s == SIGINT || s == SIGTERM || s == SIGHUP || s == SIGQUIT || s == SIGUSR1 || s == SIGUSR2;
    if (passed) rdzv_host_signal(h, (int)s, c->member);
  } else if (f->type == RDZV_DAEMON_ENDED && m && rdzv_end_read(&end, f->payload, f->n)) {
    const char *who = rdzv_name(h, c->member, m->host, m->pid);
    if (end.code == RDZV_NEVER_STARTED) rdzv_host_end(h, EXIT_MISSING, "%s: %s", who, end.text);
    else if (!h->daemon_gone_ms) {               // mpirun ends automatically; if not, host 0 ends it later
      h->daemon_gone_ms = now_ms();
      snprintf(h->daemon_gone, sizeof h->daemon_gone, "%s: %.300s", who, end.text);
    }
  } else c->closes = true, c->until = 0;         // not a frame of the protocol
}
// Reads, answers and closes connection i as far as that goes now. False: it was closed.
static inline bool rdzv_host_client(RdzvHost *h, int i, bool readable) {
  RdzvClient *c = h->client[i];
  RdzvFrame f;
  bool alive = true;
  int got = 0;
  if (readable) alive = rdzv_receive(c->fd, &c->link);
  while (readable && (got = rdzv_link_next(&c->link, &f, &c->used)) > 0) rdzv_host_frame(h, c, &f);
  alive = rdzv_send(c->fd, &c->link) && alive && got >= 0;
  const bool late = (c->member < 0 || c->closes) && now_ms() > c->until;
  if (alive && !late) return true;
  rdzv_client_close(h, i);
  return false;
}
static inline void rdzv_host_hand(RdzvHost *h);
// Waits until something happens, at most limit_ms, and does what follows from it.
static inline void rdzv_host_look(RdzvHost *h, double limit_ms) {
  const int most = 2 + h->listeners + h->seats.count + h->clients, clients = h->clients;
  pollfd *p = (pollfd *)calloc((size_t)most, sizeof(pollfd));
  int n = 0;
  p[n++] = pollfd{h->signals, POLLIN, 0};
  p[n++] = pollfd{h->hand, POLLIN, 0};
  for (int i = 0; i < h->listeners; i++) p[n++] = pollfd{h->listener[i], POLLIN, 0};
  n += rdzv_seats_poll(&h->seats, p + n);
  const int first = n;
  for (int i = 0; i < clients; i++)
    p[n++] = pollfd{h->client[i]->fd, (short)(POLLIN | (h->client[i]->link.out.n ? POLLOUT : 0)), 0};
  poll(p, (nfds_t)n, (int)limit_ms);
  for (int i = clients - 1; i >= 0; i--) rdzv_host_client(h, i, p[first + i].revents != 0);
  for (int i = 0; i < h->listeners; i++) if (p[2 + i].revents) rdzv_host_accept(h, h->listener[i]);
  if (p[1].revents) rdzv_host_hand(h);
  if (p[0].revents) rdzv_host_signals(h);
  rdzv_seats_look(&h->seats);
  free(p);
}

// ---- until all are there --------------------------------------------------------------------------------------------
// Lists the processes that are there, or are not, at most eight of them.
static inline void rdzv_host_list(const RdzvHost *h, bool here, char *to, size_t room) {
  int64_t count = 0;
  to[0] = 0;
  for (int64_t i = 0; i < h->where->members; i++) {
    const RdzvMember *m = &h->member[i];
    if (m->here != here || ++count > 8 || strlen(to) + 100 > room) continue;
    text_add(to, room, "%s%lld", to[0] ? ", " : "", (long long)i);
    if (here) text_add(to, room, " (%s)", m->host);
  }
  if (count > 8) text_add(to, room, " and %lld more", (long long)count - 8);
}
// Whether all processes are there: in the first start all, in a later one those of the start before, and those that
// wait for this one.
static inline bool rdzv_host_all(const RdzvHost *h) {
  if (!h->restart || !h->restart->start) return h->here == h->where->members;
  for (int64_t i = 0; i < h->where->members; i++)
    if ((h->restart->place[i].here || h->restart->place[i].waits) && !h->member[i].here) return false;
  return true;
}
// In later starts: prints which processes did not come, at most eight of them.
static inline void rdzv_host_miss(const RdzvHost *h) {
  int64_t count = 0;
  for (int64_t i = 0; i < h->where->members; i++) {
    const RdzvPlace *p = &h->restart->place[i];
    if (!(p->here || p->waits) || h->member[i].here || ++count > 8) continue;
    rdzv_say("%s did not come again within %lld s (--restart_wait): it is left out", rdzv_name(h, i, p->host, p->pid),
             (long long)h->restart->wait_s);
  }
  if (count > 8) rdzv_say("and %lld more are left out", (long long)count - 8);
}
// Waits until all processes are there. False: the start has ended before that (h->code, h->text).
static inline bool rdzv_host_gather(RdzvHost *h) {
  const bool later = h->restart && h->restart->start > 0;
  const double begun = now_ms(), pause = later ? 1e3 * restart_pause_s(h->restart->fruitless) : 0;
  const double limit = fmax((double)(later ? h->restart->wait_s : h->ask->timeout_s) * 1e3, pause);
  double warning = begun + RDZV_WARNING_MS;
  char there[1000], missing[1000];
  const char *kind = h->where->numbered ? "RANK" : "node";
  while ((!rdzv_host_all(h) || now_ms() - begun < pause) && !h->over) {
    if (h->offer.job[0]) rdzv_file_look(h->where, &h->offer, h->listener, &h->listeners);
    rdzv_host_look(h, 100);
    const double now = now_ms();
    const bool late = limit > 0 && now - begun > limit;
    if (rdzv_host_all(h) || (!late && now < warning)) continue;
    if (late && later) {
      rdzv_host_miss(h);
      break;
    }
    rdzv_host_list(h, true, there, sizeof there);
    rdzv_host_list(h, false, missing, sizeof missing);
    if (late)
      rdzv_host_end(h, EXIT_MISSING, "after %lld s (--timeout) at %.300s there came %s %.300s; there did not come "
                    "%.300s", (long long)h->ask->timeout_s, h->where->text, kind, there, missing);
    else rdzv_say("waiting at %s for %s %s of %lld; there is %s", h->where->text, kind, missing,
                  (long long)h->where->members, there);
    warning = now + RDZV_AGAIN_MS;
  }
  if (h->offer.job[0]) rdzv_file_remove(h->where, &h->offer);
  return !h->over;
}
// ---- starts after the first -----------------------------------------------------------------------------------------
// After a start: stores in h->restart what the next one must know.
static inline void rdzv_host_remember(RdzvHost *h) {
  RestartState *a = h->restart;
  const RdzvHeard *now = &h->seats.heard;
  if (now->step > a->heard.step || now->saved) a->heard.step = now->step;
  if (now->saved) a->heard.saved = now->saved;
  if (now->sequences) a->heard.sequences = now->sequences, a->heard.batch = now->batch;
  a->heard.died = now->died;
  if (!a->start) a->first_world = h->world;
  snprintf(a->job, sizeof a->job, "%s", h->job);
}
// Stores in h->restart what the next start must know of each process.
static inline void rdzv_host_remember_places(RdzvHost *h) {
  for (int64_t i = 0; i < h->where->members; i++) {
    const RdzvMember *m = &h->member[i];
    RdzvPlace *p = &h->restart->place[i];
    if (m->here) p->waits = false;
    p->here = m->here, p->first = m->first, p->ranks = m->ranks;
    if (!m->here) continue;
    if (p->pid != m->pid || strcmp(p->host, m->host)) p->dead = 0;
    p->pid = m->pid;
    snprintf(p->host, sizeof p->host, "%s", m->host);
  }
}
// If the process whose rank died in the start before has come again, it gets one rank fewer.
static inline void rdzv_host_bury(RdzvHost *h) {
  RestartState *a = h->restart;
  int64_t died = a->heard.died;
  for (int64_t i = 0; i < h->where->members; i++) {
    RdzvMember *m = &h->member[i];
    RdzvPlace *p = &a->place[i];
    if (m->here && (p->pid != m->pid || strcmp(p->host, m->host))) p->dead = 0;          // started anew
    if (m->here && m->died && !strcmp(m->before, a->job)) rdzv_hear_died(&died, m->died - 1);
  }
  for (int64_t i = 0; i < h->where->members && died && a->blames; i++) {
    const RdzvMember *m = &h->member[i];
    RdzvPlace *p = &a->place[i];
    if (died - 1 < p->first || died - 1 >= p->first + p->ranks) continue;
    const bool same = m->here && p->pid == m->pid && !strcmp(p->host, m->host);
    const bool last = i == h->where->index && p->dead + 1 >= m->offers;
    if (!same) return;
    if (!last) p->dead++;
    rdzv_say("rank %lld of %s died: %s", (long long)died - 1, rdzv_name(h, i, m->host, m->pid),
             last ? "host 0 keeps its last place" : "its place is left out");
  }
}
// Assigns ranks to the processes that are there. False: the job ends.
static inline bool rdzv_host_deal(RdzvHost *h) {
  RestartState *a = h->restart;
  const RdzvAsk *k = h->ask;
  int64_t left = 0, before = 0, hosts = 0;
  if (!a || !a->start) return true;
  rdzv_host_bury(h);
  for (int64_t i = 0; i < h->where->members; i++) {
    before += a->place[i].ranks;
    if (h->member[i].here) left += h->member[i].offers - a->place[i].dead;
  }
  const bool told = a->heard.sequences > 0, known = told || !k->resumes;
  const int64_t accum = k->grad_accum > 0 ? k->grad_accum : 1, batch = told ? a->heard.batch : k->batch_size;
  const int64_t sequences = told ? a->heard.sequences : k->global_batch > 0 ? k->global_batch
                                                                             : batch * accum * a->first_world;
  const int64_t microbatches = sequences / batch, ranks = k->mesh ? k->mesh : restart_ranks(microbatches, left);
  if (ranks > left) {
    rdzv_host_end(h, EXIT_LOST, "--mesh names %lld ranks, %lld are left: nothing is started again",
                  (long long)ranks, (long long)left);
    return false;
  }
  for (int64_t i = 0, rest = ranks; i < h->where->members; i++) {
    RdzvMember *m = &h->member[i];
    const int64_t may = m->here ? m->offers - a->place[i].dead : 0;
    m->ranks = may < rest ? may : rest;
    rest -= m->ranks, hosts += m->ranks > 0;
  }
  h->own.start = a->start, h->own.resume = a->heard.saved > 0;
  // Where nothing was saved and the program chose the batch, it chooses again, the same step on any number of ranks.
  const bool chosen = told && batch != k->batch_size;
  if (known && (ranks != a->first_world || told) && (h->own.resume || !chosen))
    h->own.sequences = sequences, h->own.accum = microbatches / ranks;
  char again[64], from[128] = "where it started";
  if (a->heard.saved)
    snprintf(from, sizeof from, "the checkpoint of step %lld, %s", (long long)a->heard.saved - 1,
             steps_again(again, sizeof again, a->heard.step - (a->heard.saved - 1)));
  rdzv_say("%s after step %lld; it starts again (%lld of %lld) with %lld rank%s (before %lld) from %s", a->ended,
           (long long)a->heard.step, (long long)a->start, (long long)a->most, (long long)ranks, ranks > 1 ? "s" : "",
           (long long)before, from);
  return true;
}

// Sets h->interface: the network interfaces that lead to the other processes, separated by commas.
static inline void rdzv_host_interfaces(RdzvHost *h) {
  for (int i = 0; i < h->listeners; i++) {
    sockaddr_storage here = {};
    socklen_t bytes = sizeof here;
    char name[IF_NAMESIZE];
    bool loopback = true;
    if (getsockname(h->listener[i], (sockaddr *)&here, &bytes) || here.ss_family == AF_UNIX) continue;
    net_interface((const sockaddr *)&here, name, &loopback);
    if (name[0] && !loopback && !strstr(h->interface, name))
      text_add(h->interface, sizeof h->interface, "%s%s", h->interface[0] ? "," : "", name);
  }
}
// The name by which mpirun knows a machine: its host name where that is plain and no other machine has it, else one
// made up. Nobody looks these names up.
static inline void rdzv_label(const RdzvHost *h, RdzvMember *m) {
  const size_t n = strcspn(m->host, ".");
  bool plain = n && n < 60 && isalpha((unsigned char)m->host[0]) && strncmp(m->host, "localhost", n);
  for (size_t i = 0; i < n; i++) plain = plain && (isalnum((unsigned char)m->host[i]) || m->host[i] == '-');
  for (int64_t i = 0; i < h->where->members && plain; i++) {
    const RdzvMember *o = &h->member[i];
    plain = o->machine == m->machine || strcspn(o->host, ".") != n || strncmp(o->host, m->host, n);
  }
  if (!m->machine) snprintf(m->label, sizeof m->label, "localhost");
  else if (plain) snprintf(m->label, sizeof m->label, "%.*s", (int)n, m->host);
  else snprintf(m->label, sizeof m->label, "gptrdzv%d", m->machine);
}
// Numbers machines in the order of their first process, and ranks machine by machine, and sends each process its plan.
// Processes that are not there, or have no rank in this start, belong to no machine.
static inline bool rdzv_host_plan(RdzvHost *h) {
  const int64_t members = h->where->members;
  int64_t *ranks = (int64_t *)calloc((size_t)members, sizeof(int64_t));
  for (int64_t i = 0; i < members; i++) {
    RdzvMember *m = &h->member[i];
    m->machine = -1;
    if (!m->here || !m->ranks) continue;
    for (int64_t j = 0; j < i && m->machine < 0; j++)
      if (h->member[j].lead && !strcmp(h->member[j].machine_id, m->machine_id)) m->machine = h->member[j].machine;
    m->lead = m->machine < 0;
    if (m->lead) m->machine = (int)h->machines++;
    ranks[m->machine] += m->ranks;
    h->world += m->ranks;
  }
  h->planned = true;
  bool moved = false;
  int64_t next = 0;
  for (int64_t machine = 0; machine < h->machines; machine++)
    for (int64_t i = 0; i < members; i++) {
      RdzvMember *m = &h->member[i];
      if (m->machine != machine) continue;
      moved = moved || next != i;
      m->first = next;
      next += m->ranks;
    }
  for (int64_t i = 0; i < members; i++) {
    RdzvMember *m = &h->member[i];
    RdzvPlan q = {m->first, m->ranks, h->world, m->ranks ? ranks[m->machine] : 0, h->machines, m->lead, "", "",
                  h->own.start, h->own.resume, h->own.sequences, h->own.accum};
    if (!m->here) continue;
    if (m->lead) rdzv_label(h, m);
    RdzvBytes b = {};
    snprintf(q.job, sizeof q.job, "%s", h->job);
    snprintf(q.host, sizeof q.host, "%s", h->me->host);
    rdzv_plan_write(&b, &q);
    if (i == h->where->index) h->own = q;
    if (m->client) rdzv_client_send(m->client, RDZV_PLAN, &b);
    rdzv_bytes_free(&b);
  }
  free(ranks);
  if (moved && h->where->numbered && !h->own.start)
    rdzv_say("ranks are numbered host by host: some are not what RANK said");
  return true;
}
static inline bool rdzv_host_ready(RdzvHost *h) {
  for (const double begun = now_ms(); !h->over;) {
    int64_t late = -1;
    for (int64_t i = 0; i < h->where->members; i++) {
      const RdzvMember *m = &h->member[i];
      const bool waits = m->here && !m->ready && (m->client || m->ranks);
      if (waits && late < 0) late = i;
    }
    if (late < 0) return true;
    if (now_ms() - begun > RDZV_READY_MS)
      rdzv_host_end(h, EXIT_LOST, "%s does not answer", rdzv_name(h, late, h->member[late].host,
                    h->member[late].pid));
    rdzv_host_look(h, 100);
  }
  return false;
}

// ---- mpirun ---------------------------------------------------------------------------------------------------------
// Runs a program and reads the start of its output, at most room - 1 bytes; false: it could not be run.
static inline bool rdzv_output(char *const *words, const RdzvEnv *env, char *to, size_t room) {
  int out[2];
  size_t n = 0;
  to[0] = 0;
  if (pipe2(out, O_CLOEXEC)) return false;
  const pid_t child = fork();
  if (!child) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(out[1], STDOUT_FILENO);
    dup2(open("/dev/null", O_RDWR), STDERR_FILENO);
    execvpe(words[0], words, env->entry);
    _exit(127);
  }
  close(out[1]);
  for (ssize_t got; n + 1 < room && (got = read(out[0], to + n, room - 1 - n)) > 0;) n += (size_t)got;
  to[n] = 0;
  close(out[0]);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status);
}
// The program that starts Open MPI: MPIRUN, or mpirun in PATH.
static inline const char *rdzv_mpirun() {
  const char *named = getenv("MPIRUN");
  return named && *named ? named : "mpirun";
}
// The version, "4.1.4", in "Open MPI v4.1.4, package: ..." or "mpirun (Open MPI) 4.1.4"; "": it is another MPI.
static inline void rdzv_mpi_version(char *to, size_t room, const char *text) {
  const char *at = strstr(text, "Open MPI");
  if (at) at += strcspn(at, "0123456789\n");
  snprintf(to, room, "%.*s", at ? (int)strspn(at, "0123456789.") : 0, at ? at : "");
}
// Whether mpirun here belongs to the library that this program uses, and may start. False with one line in `error`.
static inline bool rdzv_mpirun_check(const RdzvAsk *ask, const RdzvEnv *env, int *major, Error *error) {
  char said[512], ours[32], theirs[32], *words[] = {(char *)rdzv_mpirun(), (char *)"--version", NULL};
  rdzv_mpi_version(ours, sizeof ours, ask->mpi);
  *major = ours[0] ? atoi(ours) : 0;
  REJECT(*major != 4 && *major != 5, "--rdzv starts Open MPI 4 or 5; this program uses %.60s", ask->mpi);
  REJECT(!rdzv_output(words, env, said, sizeof said), "cannot run %.200s: MPIRUN or PATH must name that of Open MPI %s",
         words[0], ours);
  rdzv_mpi_version(theirs, sizeof theirs, said);
  REJECT(strcmp(ours, theirs), "%.200s is of %s%s, this program uses Open MPI %s: MPIRUN or PATH must name that one",
         words[0], theirs[0] ? "Open MPI " : "another MPI", theirs, ours);
  REJECT(!geteuid() && (!getenv("OMPI_ALLOW_RUN_AS_ROOT") || !getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")), "Open MPI "
         "runs nothing as root unless told: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 on all "
         "hosts");
  return true;
}
// A file in memory that lists the hosts for mpirun, which opens it by `path`. -1: impossible.
static inline int rdzv_hostfile(const RdzvHost *h, char *path, size_t room) {
  const int fd = memfd_create("hosts", MFD_CLOEXEC);
  for (int64_t i = 0; i < h->where->members && fd >= 0; i++) {
    int64_t slots = 0;
    if (!h->member[i].lead) continue;
    for (int64_t j = 0; j < h->where->members; j++)
      if (h->member[j].machine == h->member[i].machine) slots += h->member[j].ranks;
    if (dprintf(fd, "%s slots=%lld\n", h->member[i].label, (long long)slots) < 0) return -1;
  }
  snprintf(path, room, "/proc/%d/fd/%d", (int)getpid(), fd);
  return fd;
}
// Makes mpirun's environment: `rdzv_hand` of this program as its remote agent; no tree of daemons (nobody would start
// those further down); no look-up of host names; no resource manager.
static inline void rdzv_mpirun_env(const RdzvHost *h, RdzvEnv *env) {
  char agent[120];
  snprintf(agent, sizeof agent, "/proc/%d/exe rdzv_hand %s", (int)getpid(), h->job);
  for (int i = env->count - 1; i >= 0; i--) {
    static const char *const managers[] = {"SLURM_", "PBS_", "LSB_", "PMI_", "PMIX_", "COBALT_"};
    for (const char *prefix : managers) {
      if (strncmp(env->entry[i], prefix, strlen(prefix))) continue;
      char *name = strndup(env->entry[i], strcspn(env->entry[i], "="));
      rdzv_env_set(env, name, NULL);
      free(name);
      break;
    }
  }
  const struct { const char *name, *value; } set[] = {
      {"OMPI_MCA_plm", "rsh"}, {"OMPI_MCA_plm_rsh_agent", agent}, {"OMPI_MCA_plm_rsh_no_tree_spawn", "1"},
      {"OMPI_MCA_if_base_do_not_resolve", "1"}, {"OMPI_MCA_orte_forward_job_control", "1"},
      {"PRTE_MCA_plm", "ssh"}, {"PRTE_MCA_plm_ssh_agent", agent}, {"PRTE_MCA_plm_ssh_no_tree_spawn", "1"},
      {"PRTE_MCA_prte_do_not_resolve", "1"}};
  for (const auto &s : set) rdzv_env_set(env, s.name, s.value);
  rdzv_env_network(env, h->machines > 1 ? h->interface : "");
}
// Starts mpirun. False: the start has ended.
static inline bool rdzv_host_start(RdzvHost *h) {
  RdzvEnv env;
  char hosts[64], ranks[24], version[32];
  rdzv_env_copy(&env);
  const NetAddress a = rdzv_hand_address(h->job);
  h->hand = h->machines > 1 ? net_listen(&a, 1024) : -1;
  const int file = rdzv_hostfile(h, hosts, sizeof hosts);
  if (file < 0 || (h->machines > 1 && h->hand < 0)) {
    rdzv_host_end(h, EXIT_MISSING, "no file in memory, or no local socket: %s", strerror(errno));
  } else {
    rdzv_mpi_version(version, sizeof version, h->ask->mpi);
    snprintf(ranks, sizeof ranks, "%lld", (long long)h->world);
    char *words[20];
    int n = 0;
    words[n++] = (char *)rdzv_mpirun();
    if (version[0] == '4') words[n++] = (char *)"--noprefix";
    for (const char *word : {(const char *)"--hostfile", (const char *)hosts, "--map-by", "slot", "--bind-to", "none",
                             "-np", (const char *)ranks, (const char *)h->me->program, "rdzv_rank",
                             (const char *)h->job}) words[n++] = (char *)word;
    words[n] = NULL;
    rdzv_mpirun_env(h, &env);
    if (!rdzv_child_start(&h->mpirun, words, &env))
      rdzv_host_end(h, EXIT_MISSING, "cannot start %.200s: %s", words[0], strerror(errno));
  }
  rdzv_env_free(&env);
  return !h->over;
}
// Takes what mpirun's remote agent brings, a host's name and a daemon's command, and sends the command to that host's
// first process. Other users can see the name of the socket, too: their connections are closed without a word.
static inline void rdzv_host_hand(RdzvHost *h) {
  const timeval limit = {5, 0};
  RdzvBytes b = {};
  RdzvWords daemon;
  char part[4096], host[80];
  int fd = accept4(h->hand, NULL, NULL, SOCK_CLOEXEC);
  for (int turn = 0; turn < 256 && fd >= 0 && !net_peer_is_ours(fd, NULL); turn++) {
    close(fd);
    fd = turn == 255 ? -1 : accept4(h->hand, NULL, NULL, SOCK_CLOEXEC);
  }
  if (fd < 0) return;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  for (ssize_t n; b.n < RDZV_FRAME_MAX && (n = read(fd, part, sizeof part)) > 0;) rdzv_add(&b, part, (size_t)n);
  RdzvReader r = {b.p, b.n, false};
  rdzv_take_text(&r, host, sizeof host, false);
  RdzvMember *to = NULL;
  for (int64_t i = 0; i < h->where->members && !r.bad; i++)
    if (h->member[i].lead && i != h->where->index && !strcmp(h->member[i].label, host)) to = &h->member[i];
  const bool known = to && rdzv_words_read(&daemon, r.p, r.n);
  const char answer = !known || !to->client;
  if (!answer) {
    RdzvBytes words = {};
    rdzv_words_write(&words, &daemon);
    rdzv_client_send(to->client, RDZV_DAEMON, &words);
  } else if (known) rdzv_host_end(h, EXIT_LOST, "%.60s has gone before mpirun could start a daemon there", host);
  else rdzv_host_end(h, 1, "mpirun starts a daemon on %.60s, which is no host of this job", host);
  if (known) rdzv_words_free(&daemon);
  rdzv_bytes_free(&b);
  if (send(fd, &answer, 1, MSG_NOSIGNAL) < 0 && !h->agent_left) {
    rdzv_say("mpirun's remote agent has gone");
    h->agent_left = true;
  }
  close(fd);
}
// Runs the job: from mpirun's start until it and all ranks have ended.
static inline void rdzv_host_run(RdzvHost *h) {
  double ended = 0;
  if (!rdzv_host_start(h)) return;
  while (!h->over && !rdzv_child_ended(&h->mpirun)) {
    rdzv_host_look(h, 500);
    if (h->daemon_gone_ms && now_ms() - h->daemon_gone_ms > RDZV_GONE_MS)
      rdzv_host_end(h, EXIT_LOST, "%s: all ranks end", h->daemon_gone);
    if (!rdzv_seats_ended(&h->seats)) ended = 0;                 // mpirun or a daemon may be stopped
    else if (!ended) ended = now_ms();
    if (ended && now_ms() - ended > RDZV_LINGER_MS)
      rdzv_host_end(h, EXIT_LOST, "ranks on host 0 have ended, but mpirun has not for %d s: is it, or one of its "
                    "daemons, stopped or out of reach?", RDZV_LINGER_MS / 1000);
  }
  if (h->over) {
    rdzv_host_tell(h);
    kill(h->mpirun.pid, SIGTERM);
    for (const double begun = now_ms(); !rdzv_child_ended(&h->mpirun) && now_ms() - begun < 10000;)
      rdzv_host_look(h, 50);
    rdzv_child_end(&h->mpirun, 0);
    return;
  }
  // mpirun of Open MPI 5 may end with 0 although one of its daemons was killed, and all ranks with it.
  for (const double begun = now_ms(); !h->mpirun.code && !h->seats.heard.done && !rdzv_seats_ended(&h->seats) &&
                                           now_ms() - begun < 2000;) rdzv_host_look(h, 50);
  if (!h->mpirun.code && !h->seats.heard.done && !h->over)
    rdzv_host_end(h, 1, "mpirun has ended with exit code 0, but rank 0 has not");
  rdzv_host_end(h, h->mpirun.code, "%s", "");
}
// Notes a checkpoint that got its name right before the end, so that no rank reported it.
static inline void rdzv_host_find(RdzvHost *h) {
  char ckpt[1100];
  RdzvHeard *now = &h->seats.heard;
  snprintf(ckpt, sizeof ckpt, "%.1000s/ckpt", h->ask->out ? h->ask->out : "");
  const int64_t newest = now->ours ? restart_newest(ckpt) : -1;
  if (newest >= now->saved) now->saved = newest + 1;
  if (newest > now->step) now->step = newest;
}
// Whether there is another start after this one, which has ended; notes for it how this one ended.
static inline bool rdzv_host_goes_on(RdzvHost *h) {
  RestartState *a = h->restart;
  rdzv_host_tell(h);
  rdzv_host_look(h, 0);                          // a signal that ended mpirun too
  if (!a || !h->planned || h->stopped || !restart_is_worth(h->code)) return false;
  snprintf(a->ended, sizeof a->ended, h->mpirun.killed && !h->text[0] ? "mpirun was killed by signal %d" :
           "the run ended with exit code %d", h->mpirun.killed && !h->text[0] ? h->code - 128 : h->code);
  rdzv_host_find(h);
  const RdzvHeard *now = &h->seats.heard;
  a->fruitless = now->saved > a->heard.saved ? 0 : a->fruitless + 1;
  const bool tired = a->fruitless >= RDZV_FRUITLESS_MAX;
  if (a->start == a->most) rdzv_say("%s; it is not started again: --restarts %lld", a->ended, (long long)a->most);
  else if (tired)
    rdzv_say("%s; it is not started again: %d starts in a row reached no new checkpoint", a->ended,
             RDZV_FRUITLESS_MAX);
  else if (a->fruitless)
    rdzv_say("%s; no new checkpoint was reached: the next start waits %.0f s", a->ended,
             restart_pause_s(a->fruitless));
  a->blames = restart_blames_rank(h->code) && !h->mpirun.killed && !h->daemon_gone_ms && !h->lost_one;
  return h->goes_on = a->start < a->most && !tired;
}
// Tells all processes how the start ended, ends ranks that are left here, and frees everything. Listeners stay open if
// there is another start. Returns the exit code.
static inline int rdzv_host_close(RdzvHost *h) {
  char again[300] = "";
  rdzv_host_tell(h);
  if (h->goes_on)
    snprintf(again, sizeof again, "%s; it starts again (%lld of %lld)", h->restart->ended,
             (long long)h->restart->start + 1, (long long)h->restart->most);
  for (int i = 0; i < h->clients; i++) {
    RdzvClient *c = h->client[i];
    const bool tells = c->member >= 0 && (!h->planned || h->member[c->member].lead);
    const char *text = h->goes_on ? again : h->text;
    if (c->member >= 0 && !c->closes) rdzv_client_end(c, h->goes_on, h->code, tells ? text : "");
    rdzv_flush(c->fd, &c->link, 1000);
  }
  rdzv_seats_close(&h->seats, h->mpirun.killed ? 0 : 2000);      // then nobody else ends them
  while (h->clients) {
    h->client[0]->member = -1;
    rdzv_client_close(h, 0);
  }
  for (int i = 0; i < h->listeners && !h->goes_on; i++) close(h->listener[i]);
  if (h->hand >= 0) close(h->hand);
  free(h->client);
  free(h->member);
  free(h->theirs);
  return h->code;
}
