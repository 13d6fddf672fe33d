// heartbeats.h: no rank waits forever. A heartbeat thread of each rank tells rank 0 four times a second that the rank
// lives and where its main thread is. If a rank died, was stopped, or keeps all others waiting, a report names it, and
// every rank ends.
//
// What ends a run, all ranks with EXIT_LOST and one report on stderr; each that still can writes OUT/flight-RANK.json:
//   died       a rank's connection closes and it has not said goodbye: at once, whatever --timeout says
//   silent     no beat of a rank came for --timeout seconds and MARGIN_TICKS more, since beats may be late: its process
//              was stopped (SIGSTOP), or its host is out of reach. After WARNING_TICKS a warning says so
//   stuck      every rank sends beats, but none has made progress for --timeout seconds. Ranks depend on each other at
//              least once per step, so a rank that is stuck soon stops all. Progress of one rank is enough: rank 0 may
//              tokenize for an hour while the others wait for it. Code that takes long must therefore call
//              liveness_progress. The report says what each rank waits for, which shows which rank is stuck
//
// Conventions
//   - Time is counted in ticks: wake-ups of the heartbeat thread that judges, at least TICK_MS apart. Time in which all
//     ranks were stopped (Ctrl-Z and fg), or had no core on a busy machine, has no ticks and does not count.
//   - The thread calls neither MPI (which was not asked for MPI_THREAD_MULTIPLE) nor CUDA nor stdio, so it can end the
//     process, by _exit, whatever the main thread is blocked in. ncclCommAbort is for processes that continue; a
//     process that ends frees its communicators with its CUDA context, so nothing is aborted here.
//   - Ranks on rank 0's host reach it by a socket without a file (abstract, AF_UNIX), others by TCP, at whichever of
//     rank 0's addresses answers first. Every user of the host can see the socket's name, and every host can reach a
//     port. So rank 0 accepts connections to the socket only from its own user, and on every connection both ends prove
//     that they know a random key that rank 0 has broadcast over MPI (prove.h). Until then rank 0 does nothing that a
//     connection asks for. Later frames are not signed: whoever can change packets between hosts can also end their
//     connections.
//   - The main thread reports about itself in single words (LivenessWords), read and written atomically.
#pragma once
#include "base/net/net.h"
#include "flight_file.h"
#include "liveness.h"
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

// ---- frames and links -----------------------------------------------------------------------------------------------
// Kinds of frames. First come those of the handshake: another rank connects, and its hello says which rank it is. Then
// beats, in both directions; FRAME_ASK asks for a beat now. The last frame is a goodbye or an end.
enum LivenessKind { FRAME_BEAT = PROVE_KINDS, FRAME_ASK, FRAME_GOODBYE, FRAME_END };
struct LivenessFrame {
  uint64_t progress;
  int64_t step;
  int32_t kind, rank, paused, waits;
  int32_t begun, in;                             // collectives of this step: last one started; waited for, or 0
  char collective[64];                           // the one that is waited for: "the gather of block 2"
  union {
    char place[224];                             // "microbatch 0, forward, waits for the gather of block 2"
    uint8_t proof[PROVE_NONCE];                  // of the handshake
  };
};
// A connection. rank: the peer's, -1: it has not proved the key yet; claims: the rank that its hello names, -1: no
// hello yet. joined: a beat came, so the peer has chosen this connection.
struct LivenessLink {
  int fd, rank, claims;
  bool joined;
  NetGuest guest;
  Prove prove;
  char in[sizeof(LivenessFrame)], out[sizeof(LivenessFrame)];
  size_t in_bytes, out_bytes, out_at;
};
enum LivenessState { PEER_EXPECTED, PEER_HERE, PEER_LEFT, PEER_DIED };
struct LivenessPeer {
  int pid, host;                                 // host: the lowest rank on it
  char host_name[64];
  LivenessState state;
  int64_t silent;                                // ticks since the last frame
  bool noticed;
  LivenessFrame last;
};
// A rank whose beats are late by LOST_TICKS does not count as one that waits; a rank that is late by --timeout and
// MARGIN_TICKS ends the run.
enum { TICKS_PER_S = 4, TICK_MS = 1000 / TICKS_PER_S, WARNING_TICKS = 10 * TICKS_PER_S, LOST_TICKS = 2 * TICKS_PER_S,
       MARGIN_TICKS = 2 * TICKS_PER_S, LINKS_SPARE = 32, ACCEPTS_MAX = 16, CONNECT_AGAIN_MS = 50,
       WRITE_MS = 1000, REPORTER_MS = 2000, LEAVE_MS = 1000, REPORT_BYTES = 8192, FLIGHT_S = 5 };
static double liveness_connect_ms = 30000;       // a rank tries to reach rank 0 for so long

struct Liveness {
  int64_t timeout;                               // seconds, 0: never; atomic
  int quiet, closing;                            // all ranks are being ended; the thread must end; atomic
  int wake;                                      // eventfd
  pid_t pid;                                     // of the process that has the thread; 0: none
  pthread_t thread;
  pthread_mutex_t lock;                          // all below: the thread's while it is awake
  bool open, left;                               // connected; rank 0 has said goodbye (other ranks only)
  int rank, world;
  int64_t idle;                                  // ticks without progress of any rank
  bool reports;                                  // if rank 0 is lost, this rank prints the report for its host
  uint64_t run, progress_before;                 // run: random, the same on all ranks, no secret
  ProveKey key;                                  // what only ranks of this run know
  uint64_t device_seen;
  const uint32_t *device;                        // [MARKS] that the device writes; NULL: none
  LivenessPeer *peer;                            // [world]; other ranks but 0 use only their own and rank 0's
  LivenessLink *link;
  int links, links_most, listeners, listener[1 + NET_ADDRESSES_MAX];              // the first is on the host
  uint64_t links_made;
  char me[160];
  char flight[FLIGHT_PATH_BYTES];                // where the flight record goes; "": nowhere
  const char *version;
};
static Liveness liveness = {600, 0, 0, -1, 0, 0, PTHREAD_MUTEX_INITIALIZER, false, false, 0, 1, 0, true, 0, 0, {}, 0,
                            NULL, NULL, NULL, 0, 0, 0, {}, 0, "", "", ""};

// Makes a text of another process end within `bytes`, and harmless to a terminal.
static inline void peer_text(char *text, size_t bytes) {
  text[bytes - 1] = 0;
  for (char *c = text; *c; c++) if (*c < 32 || *c > 126) *c = '?';
}
// Reads bytes that have arrived into the frame; 1: the frame is complete, 0: not yet, -1: the connection has ended.
static inline int link_read(LivenessLink *k, LivenessFrame *frame) {
  const ssize_t n = recv(k->fd, k->in + k->in_bytes, sizeof k->in - k->in_bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) return -1;
  k->in_bytes += (size_t)n;
  if (k->in_bytes < sizeof k->in) return 0;
  memcpy(frame, k->in, sizeof *frame);
  peer_text(frame->collective, sizeof frame->collective);
  if (frame->kind >= FRAME_BEAT) peer_text(frame->place, sizeof frame->place);
  k->in_bytes = 0;
  return 1;
}
// Sends a frame, unless the frame before is not sent yet: a peer that does not read misses beats, and takes no memory.
static inline void link_send(LivenessLink *k, const LivenessFrame *frame) {
  for (int turn = 0; turn < 2; turn++) {
    while (k->out_at < k->out_bytes) {
      const ssize_t n = send(k->fd, k->out + k->out_at, k->out_bytes - k->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n <= 0) return;
      k->out_at += (size_t)n;
    }
    if (turn) return;
    memcpy(k->out, frame, sizeof *frame);
    k->out_bytes = sizeof *frame;
    k->out_at = 0;
  }
}
// Sends a frame over all connections that have proved the key.
static inline void links_send(Liveness *l, const LivenessFrame *frame) {
  for (int i = 0; i < l->links; i++) if (l->link[i].rank >= 0) link_send(&l->link[i], frame);
}
// Closes connection i. First reads, for a limited time, data that is left: the kernel resets a connection that is
// closed with unread data, and drops what was sent.
static inline void link_close(Liveness *l, int i) {
  char rest[4096];
  for (int pieces = 0; pieces < 64 && recv(l->link[i].fd, rest, sizeof rest, MSG_DONTWAIT) > 0; pieces++) {}
  shutdown(l->link[i].fd, SHUT_WR);
  close(l->link[i].fd);
  l->link[i] = l->link[--l->links];
}
// Closes a connection that has not proved the key: strangers, however many, keep no rank out.
static inline void link_make_room(Liveness *l) {
  const NetGuest **guest = (const NetGuest **)calloc((size_t)l->links, sizeof(NetGuest *));
  int *at = (int *)calloc((size_t)l->links, sizeof(int)), n = 0;
  for (int i = 0; i < l->links; i++) if (l->link[i].rank < 0) guest[n] = &l->link[i].guest, at[n++] = i;
  if (n) link_close(l, at[net_crowd(guest, n)]);
  free(guest);
  free(at);
}
// Adds a connection; l->link has space for one more than links_most.
static inline void link_add(Liveness *l, int fd, int rank, const NetAddress *from) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);      // a goodbye must not wait for an answer to a beat
  LivenessLink *k = &l->link[l->links++];
  memset(k, 0, sizeof *k);
  k->fd = fd;
  k->rank = k->claims = rank;
  k->guest = NetGuest{*from, l->links_made++};
  if (l->links > l->links_most) link_make_room(l);
}
// The key of a rank's connection, derived from the run's key: so the proof is valid only for the rank that the hello
// names.
static inline ProveKey link_key(const ProveKey *run, int rank) {
  ProveKey key;
  const ProvePart part = {&rank, sizeof rank};
  prove_hmac(key.bytes, run, &part, 1);
  return key;
}
static inline void link_say(LivenessLink *k, const ProveMessage *message) {
  LivenessFrame f = {};
  f.kind = message->kind;
  f.rank = k->claims;
  memcpy(f.proof, message->bytes, PROVE_NONCE);
  if (f.kind) link_send(k, &f);
}
// Takes a frame of the handshake, and answers it. False: it is not the frame that must come now.
static inline bool link_prove(LivenessLink *k, const LivenessFrame *f) {
  const ProveMessage answer = prove_take(&k->prove, f->kind, f->proof, PROVE_NONCE);
  link_say(k, &answer);
  return k->prove.phase != PHASE_BROKEN;
}

// ---- what is said of a rank -----------------------------------------------------------------------------------------
void liveness_stage_text(char *to, size_t bytes, int stage) {
  if (stage == STAGE_NONE) to[0] = 0;
  else if (stage) snprintf(to, bytes, " of block %d", stage - 1);
  else snprintf(to, bytes, " outside the blocks");
}
// In words: where each stream of the device is, for all of which the main thread waits.
static inline void liveness_device_text(const uint32_t *mark, char *to, size_t bytes) {
  static const char *const before[] = {"forward", "backward", "update"};
  const uint32_t model = WORD_GET(&mark[MARK_MODEL]);
  const uint32_t gather = WORD_GET(&mark[MARK_GATHER]), reduce = WORD_GET(&mark[MARK_REDUCE]);
  char microbatch[32] = "", stage[32], gathered[96] = "", reduced[96] = "";
  if (mark_number(model) && mark_code(model) != MARK_UPDATE)
    snprintf(microbatch, sizeof microbatch, " of microbatch %d", (mark_number(model) - 1) / 2);
  liveness_stage_text(stage, sizeof stage, mark_code(gather) - 1);
  if (gather)
    snprintf(gathered, sizeof gathered, "; last gather%s, collective %d", stage, mark_number(gather));
  liveness_stage_text(stage, sizeof stage, mark_code(reduce) == MARK_EXCHANGE ? STAGE_NONE : mark_code(reduce) - 1);
  if (reduce)
    snprintf(reduced, sizeof reduced, "; %s%s, collective %d",
             mark_code(reduce) == MARK_EXCHANGE ? "exchange of losses" : "last reduction", stage, mark_number(reduce));
  snprintf(to, bytes, " (in %s%s%s%s)", before[mark_code(model)], microbatch, gathered, reduced);
}
// "the gather of block 2"
static inline void liveness_collective_text(char *to, size_t bytes, FlightCollective c) {
  char stage[32];
  liveness_stage_text(stage, sizeof stage, c.stage);
  snprintf(to, bytes, "%.28s%s", c.what, stage);
}
// Where the main thread of this process is: "microbatch 0, backward of block 1, in matmul_backward_weight".
static inline void liveness_place_text(const Liveness *l, char *to, size_t bytes) {
  const LivenessWords *w = &liveness_words;
  const char *phase = WORD_GET(&w->phase), *what = WORD_GET(&w->what), *where = WORD_GET(&w->where);
  const char *op = WORD_GET(&flight.op);
  const int microbatch = WORD_GET(&flight.microbatch), in = WORD_GET(&flight.in.number);
  char stage[48], before[32] = "", number[48] = "";
  if (microbatch != MICROBATCH_NONE) snprintf(before, sizeof before, "microbatch %d, ", microbatch);
  if (in) snprintf(number, sizeof number, " (collective %d)", in);
  liveness_stage_text(stage, sizeof stage, WORD_GET(what ? &w->what_stage : &flight.stage));
  if (!what) snprintf(to, bytes, "%s%.40s%s%s%.40s", before, phase, stage, op ? ", in " : "", op ? op : "");
  else if (where) snprintf(to, bytes, "%s%.40s, in %.32s of %.40s%s", before, phase, what, where, number);
  else snprintf(to, bytes, "%s%.40s, waits for %.48s%s%s", before, phase, what, stage, number);
  const size_t used = strlen(to);
  if (l->device && what) liveness_device_text(l->device, to + used, bytes - used);
}
static inline LivenessFrame liveness_frame(const Liveness *l, LivenessKind kind) {
  const LivenessWords *w = &liveness_words;
  LivenessFrame f = {};
  const FlightCollective in = {WORD_GET(&flight.in.what), WORD_GET(&flight.in.number), WORD_GET(&flight.in.stage)};
  f.progress = WORD_GET(&w->progress);
  f.step = WORD_GET(&flight.step);
  f.kind = kind;
  f.rank = l->rank;
  f.paused = watchdog_paused();
  f.waits = WORD_GET(&w->what) != NULL;
  f.begun = WORD_GET(&flight.begun);
  if (f.waits && in.number) {
    f.in = in.number;
    liveness_collective_text(f.collective, sizeof f.collective, in);
  }
  if (l->device && f.waits) {                    // what the host has enqueued has not started
    const int gather = mark_number(WORD_GET(&l->device[MARK_GATHER]));
    const int reduce = mark_number(WORD_GET(&l->device[MARK_REDUCE]));
    f.begun = f.in = gather > reduce ? gather : reduce;
    snprintf(f.collective, sizeof f.collective, "a %s on the device", gather > reduce ? "gather" : "reduction");
  }
  liveness_place_text(l, f.place, sizeof f.place);
  return f;
}
static inline bool peer_same_place(const LivenessPeer *a, const LivenessPeer *b) {
  return a->last.step == b->last.step && a->last.waits == b->last.waits && !strcmp(a->last.place, b->last.place);
}
static inline bool peer_is_lost(const LivenessPeer *p) {
  return p->silent > LOST_TICKS || p->state != PEER_HERE;
}
static inline bool peer_is_at(const LivenessPeer *p, const LivenessPeer *place) {
  return !peer_is_lost(p) && peer_same_place(p, place);
}
// The ranks at the place where rank r, the first of them, waits: "0-2, 5".
static inline void liveness_report_ranks(const Liveness *l, int r, char *to) {
  for (int q = r; q < l->world; q++) {
    int end = q;
    if (!peer_is_at(&l->peer[q], &l->peer[r])) continue;
    while (end + 1 < l->world && peer_is_at(&l->peer[end + 1], &l->peer[r])) end++;
    text_add(to, REPORT_BYTES, end > q ? "%s%d-%d" : "%s%d", q > r ? ", " : "", q, end);
    q = end;
  }
}
// Writes where all ranks are: first those that others may wait for, then those that wait; one line for all ranks at the
// same place.
static inline void liveness_report_places(const Liveness *l, char *to) {
  static const char *const states[] = {"never came", "when last heard", "has left", "died"};
  enum { LINES_MAX = 16 };
  int lines = 0;
  for (int waits = 0; waits < 2; waits++)
    for (int r = 0; r < l->world; r++) {
      const LivenessPeer *p = &l->peer[r];
      const bool lost = peer_is_lost(p);
      bool first = waits == (p->last.waits && !lost);
      for (int q = 0; q < r && waits; q++) first = first && !peer_is_at(&l->peer[q], p);
      if (!first) continue;
      if (++lines > LINES_MAX) { text_add(to, REPORT_BYTES, "  ...\n"); return; }
      if (waits) {
        text_add(to, REPORT_BYTES, "  waiting: rank ");
        liveness_report_ranks(l, r, to);
      } else text_add(to, REPORT_BYTES, "  not there: rank %d (pid %d on %s)%s%s", r, p->pid, p->host_name,
                      lost ? ", " : "", lost ? states[p->state] : "");
      text_add(to, REPORT_BYTES, ": step %lld, %s\n", (long long)p->last.step, p->last.place);
    }
}

// Whether rank p has not yet started the collective that rank q waits for.
static inline bool peer_is_behind(const LivenessPeer *p, const LivenessPeer *q) {
  return p->last.step != q->last.step ? p->last.step < q->last.step : p->last.begun < q->last.in;
}
// Writes the first collective that ranks wait for: which ranks have started it, which have not, and how far the latter
// are.
static inline void liveness_report_collective(const Liveness *l, char *to) {
  const LivenessPeer *first = NULL;
  int behind = 0, lines = 0;
  for (int r = 0; r < l->world; r++) {
    const LivenessPeer *p = &l->peer[r];
    if (peer_is_lost(p) || !p->last.in) continue;
    const bool before = first && (p->last.step != first->last.step ? p->last.step < first->last.step
                                                                   : p->last.in < first->last.in);
    if (!first || before) first = p;
  }
  if (!first) return;
  for (int r = 0; r < l->world; r++) behind += peer_is_behind(&l->peer[r], first);
  text_add(to, REPORT_BYTES, "  collective %d of step %lld, %s: %d of %d ranks came to it\n", first->last.in,
             (long long)first->last.step, first->last.collective, l->world - behind, l->world);
  for (int r = 0; r < l->world && lines < 8; r++) {
    const LivenessPeer *p = &l->peer[r];
    if (!peer_is_behind(p, first)) continue;
    lines++;
    text_add(to, REPORT_BYTES, "    not rank %d (pid %d on %s), which%s had come to collective %d of step %lld\n", r,
             p->pid, p->host_name, peer_is_lost(p) ? " when last heard" : "", p->last.begun, (long long)p->last.step);
  }
  if (behind > lines) text_add(to, REPORT_BYTES, "    and %d more\n", behind - lines);
}

// ---- the end --------------------------------------------------------------------------------------------------------
void (*liveness_line_end)();              // NULL, or ends a line that stands open on the terminal; any thread
void (*liveness_died)(int rank);          // NULL, or hears of a rank that died; called by the thread
// Writes to stderr without stdio, whose locks the main thread may hold, in pieces that a pipe with any space left takes
// whole. Gives up when no piece is taken within a second.
static inline void liveness_write(const char *text, size_t n) {
  for (size_t at = 0; at < n;) {
    pollfd p = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&p, 1, WRITE_MS) <= 0 || !(p.revents & POLLOUT)) return;
    if (!at && liveness_line_end) liveness_line_end();
    const ssize_t wrote = write(STDERR_FILENO, text + at, n - at < PIPE_BUF ? n - at : PIPE_BUF);
    if (wrote <= 0) return;                      // nobody reads it
    at += (size_t)wrote;
  }
}
__attribute__((format(printf, 2, 3))) static inline void liveness_warning(const Liveness *l, const char *fmt, ...) {
  char text[512];
  snprintf(text, sizeof text, "%s: warning: ", l->me);
  va_list ap;
  va_start(ap, fmt);
  text_add_list(text, sizeof text, fmt, ap);
  va_end(ap);
  liveness_write(text, strlen(text));
}
static inline void liveness_end_at_once(int) { _exit(EXIT_LOST); }
static unsigned liveness_flight_s = FLIGHT_S;    // tests on a busy machine give more
// From here on the process ends within FLIGHT_S, whatever blocks.
static inline void liveness_arm() {
  sigset_t alarm_only;
  signal(SIGALRM, liveness_end_at_once);
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  alarm(liveness_flight_s);
  pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
}
// Writes this rank's flight record. All ranks may be waiting for the disk: after FLIGHT_S the process ends without.
static inline void liveness_write_flight(const Liveness *l, const char *cause) {
  if (!l->flight[0]) return;
  char host[64] = "", place[224];
  liveness_arm();
  gethostname(host, sizeof host - 1);
  liveness_place_text(l, place, sizeof place);
  const FlightWho who = {l->version, host, cause, place, l->run, l->rank, l->world, (int)getpid()};
  const int fault = flight_write(l->flight, &who);
  if (fault) liveness_warning(l, "%.200s cannot be written: %s\n", l->flight, strerror(fault));
}
// Ends this process; rank 0 also ends all others, another rank tells rank 0 (which may only have been stopped). cause:
// the reason to print; NULL: another rank prints it. why: the reason in the flight record; NULL: writes none.
static inline void liveness_end(Liveness *l, const char *cause, const char *why) {
  static char text[REPORT_BYTES + 1];
  LivenessFrame end = liveness_frame(l, FRAME_END);
  liveness_arm();                                // the terminal may block
  if (cause) {
    text_add(text, REPORT_BYTES, "%s: %s; %s\n", l->me, cause, l->world > 1 ? "all ranks end" : "it ends");
    if (l->open && !l->rank) {
      liveness_report_collective(l, text);
      liveness_report_places(l, text);
    } else text_add(text, REPORT_BYTES, "  this rank: step %lld, %s\n", (long long)end.step, end.place);
    const int directory = (int)(strlen(l->flight) ? strrchr(l->flight, '/') - l->flight : 0);
    if (directory && l->world > 1)
      text_add(text, REPORT_BYTES, "  what each rank did last is in %.*s/flight-*.json; --flight %.*s compares them\n",
                 directory, l->flight, directory, l->flight);
    if (text[strlen(text) - 1] != '\n') strcat(text, "\n");        // it was cut
    liveness_write(text, strlen(text));
  }
  snprintf(end.place, sizeof end.place, "%s", why ? why : "");
  links_send(l, &end);
  while (l->links) link_close(l, l->links - 1);
  if (why) liveness_write_flight(l, why);
  _exit(EXIT_LOST);
}
// Rank 0, before it reports: asks all ranks where they are now, and waits for those that can answer at once.
static inline void liveness_ask(Liveness *l) {
  enum { PATIENCE_MS = 200 };
  const LivenessFrame ask = liveness_frame(l, FRAME_ASK);
  l->peer[0].last = ask;
  links_send(l, &ask);
  for (double start = now_ms(); now_ms() - start < PATIENCE_MS; usleep(5000))
    for (int i = 0; i < l->links; i++) {
      LivenessFrame f;
      if (!l->link[i].joined || link_read(&l->link[i], &f) <= 0 || f.kind != FRAME_BEAT) continue;
      if (f.rank != l->link[i].rank) continue;
      l->peer[f.rank].last = f;
      l->peer[f.rank].silent = 0;
    }
}
// Ends all ranks because of rank r, which died or is silent.
static inline void liveness_end_by(Liveness *l, int r, bool died) {
  const LivenessPeer *p = &l->peer[r];
  char name[128], cause[256];
  snprintf(name, sizeof name, "rank %d (pid %d on %s)", r, p->pid, p->host_name);
  if (died) snprintf(cause, sizeof cause, "%s has died", name);
  else snprintf(cause, sizeof cause, "nothing was heard of %s for %lld s (--timeout)", name,
                (long long)WORD_GET(&l->timeout));
  if (!l->reports) usleep(REPORTER_MS * 1000);   // this end may have a launcher kill the rank that reports
  liveness_end(l, l->reports ? cause : NULL, cause);
}

// ---- the thread -----------------------------------------------------------------------------------------------------
// Rank 0: takes a frame of a connection that has not yet proved that it is of this run. False: the proof is wrong.
static inline bool liveness_admit(const Liveness *l, LivenessLink *k, const LivenessFrame *f) {
  if (f->rank <= 0 || f->rank >= l->world) return false;
  if (k->claims < 0) k->prove.key = link_key(&l->key, k->claims = f->rank);
  if (!link_prove(k, f)) return false;
  if (k->prove.phase != PHASE_OPEN) return true;
  const LivenessFrame beat = liveness_frame(l, FRAME_BEAT);
  k->rank = k->claims;
  link_send(k, &beat);                           // the first beat: if this rank is stopped now, its place is known
  return true;
}
// Rank 0: accepts connections, a few at a time, since strangers may make many.
static inline void liveness_accept(Liveness *l) {
  for (int i = 0; i < l->listeners; i++)
    for (int n = 0, fd; n < ACCEPTS_MAX; n++) {
      NetAddress from = {{}, sizeof from.to};
      if ((fd = accept4(l->listener[i], (sockaddr *)&from.to, &from.bytes, SOCK_CLOEXEC)) < 0) break;
      if (i || net_peer_is_ours(fd, NULL)) link_add(l, fd, -1, &from);
      else close(fd);
    }
}
// Takes a frame of a rank that has proved itself.
static inline void liveness_take(Liveness *l, LivenessLink *k, const LivenessFrame *f) {
  LivenessPeer *p = &l->peer[f->rank];
  if (f->kind == FRAME_END) liveness_end(l, NULL, f->place[0] ? f->place : NULL);
  if (f->kind == FRAME_ASK) {
    const LivenessFrame beat = liveness_frame(l, FRAME_BEAT);
    link_send(k, &beat);
  }
  k->joined = true;
  p->silent = 0;
  p->last = *f;
  if (p->state != PEER_LEFT) p->state = f->kind == FRAME_GOODBYE ? PEER_LEFT : PEER_HERE;
  if (f->kind == FRAME_GOODBYE && l->rank) l->left = true;
  if (f->kind == FRAME_GOODBYE && f->waits) WORD_SET(&l->quiet, 1);
  if (p->noticed) liveness_warning(l, "rank %d is heard again\n", f->rank);
  p->noticed = false;
}
// Reads all frames that have arrived. If a rank's connection ends without a goodbye, the rank has died.
static inline void liveness_listen(Liveness *l) {
  if (!l->rank) liveness_accept(l);
  for (int i = l->links - 1; i >= 0; i--) {
    LivenessLink *k = &l->link[i];
    LivenessFrame f;
    int got;
    while ((got = link_read(k, &f)) > 0) {
      const bool proved = k->rank >= 0;
      const bool fits = proved ? f.rank == k->rank && f.kind >= FRAME_BEAT : liveness_admit(l, k, &f);
      if (!fits) { got = -1; break; }
      if (proved) liveness_take(l, k, &f);
    }
    if (got >= 0) continue;
    const int rank = k->joined ? k->rank : -1;
    link_close(l, i);
    if (rank < 0 || l->peer[rank].state == PEER_LEFT) continue;
    l->peer[rank].state = PEER_DIED;
    if (liveness_died && (!l->rank || !WORD_GET(&l->quiet))) liveness_died(rank);
    if (WORD_GET(&l->quiet)) liveness_end(l, NULL, NULL);        // all ranks are being ended: nothing to report
    if (!l->rank) liveness_ask(l);
    liveness_end_by(l, rank, true);
  }
}
// Progress of the device counts as progress of the main thread, which waits for it.
static inline void liveness_look_at_device(Liveness *l) {
  uint64_t seen = 0;
  for (int i = 0; i < MARKS && l->device; i++) seen = seen * 1000003 + WORD_GET(&l->device[i]);
  if (seen != l->device_seen) liveness_progress();
  l->device_seen = seen;
}
static inline void liveness_tick_peer(Liveness *l, int r) {
  LivenessPeer *p = &l->peer[r];
  const int64_t timeout = WORD_GET(&l->timeout);
  if (p->state == PEER_LEFT) return;
  p->silent++;
  const int64_t late = MARGIN_TICKS + (l->reports ? 0 : LOST_TICKS);             // the reporter's ticks may be slower
  if (timeout && p->silent > timeout * TICKS_PER_S + late) liveness_end_by(l, r, false);
  if (p->silent != WARNING_TICKS || (l->rank > 1) || WORD_GET(&l->quiet)) return;
  p->noticed = true;
  liveness_warning(l, "nothing was heard of rank %d (pid %d on %s) for %d s; then it was in step %lld, %s\n", r, p->pid,
                  p->host_name, WARNING_TICKS / TICKS_PER_S, (long long)p->last.step, p->last.place);
}
// Ends all ranks because none has made progress for --timeout seconds; the report also names the rank that is silent
// longest, if any is.
static inline void liveness_end_stuck(Liveness *l, int64_t timeout) {
  const bool judges = l->open && !l->rank;
  const LivenessPeer *silent = NULL;             // the rank that is silent longest
  char cause[256];
  if (judges) liveness_ask(l);
  for (int r = 1; r < l->world && judges; r++)
    if (l->peer[r].silent > (silent ? silent->silent : (int64_t)LOST_TICKS)) silent = &l->peer[r];
  snprintf(cause, sizeof cause, "%s progress for %lld s (--timeout)",
           judges && l->world > 1 ? "no rank has made" : "this rank has made no", (long long)timeout);
  if (silent)
    text_add(cause, sizeof cause, ", and nothing was heard of rank %d (pid %d on %s) for %lld s",
             (int)(silent - l->peer), silent->pid, silent->host_name, (long long)silent->silent / TICKS_PER_S);
  liveness_end(l, cause, cause);
}
static inline void liveness_tick(Liveness *l) {
  liveness_look_at_device(l);
  const int64_t timeout = WORD_GET(&l->timeout); // before progress, which is counted before a new deadline is set
  const LivenessFrame mine = liveness_frame(l, FRAME_BEAT);
  uint64_t progress = mine.progress;
  bool paused = mine.paused;
  if (l->open) {
    l->peer[l->rank].last = mine;
    for (int r = 0; r < (l->rank ? 1 : l->world); r++) {
      const LivenessPeer *p = &l->peer[r];
      if (r == l->rank) continue;
      if (!l->left) liveness_tick_peer(l, r);
      if (!l->rank) progress += p->last.progress, paused = paused || (p->last.paused && !peer_is_lost(p));
    }
    links_send(l, &mine);
  }
  if (progress != l->progress_before) l->idle = 0;
  else if (!paused) l->idle++;
  l->progress_before = progress;
  if (l->open && l->rank && !l->left) return;    // rank 0 judges for all
  if (timeout && l->idle > timeout * TICKS_PER_S + MARGIN_TICKS) liveness_end_stuck(l, timeout);
}
static inline void *liveness_life(void *to) {
  Liveness *l = (Liveness *)to;
  pollfd *polls = NULL;
  int polls_most = 0;
  for (double next_ms = now_ms() + TICK_MS; !WORD_GET(&l->closing);) {
    pthread_mutex_lock(&l->lock);
    if (polls_most < 1 + l->listeners + l->links_most) {
      free(polls);
      polls = (pollfd *)calloc((size_t)(polls_most = 1 + l->listeners + l->links_most), sizeof(pollfd));
    }
    int n = 0;
    polls[n++] = pollfd{l->wake, POLLIN, 0};
    for (int i = 0; i < l->listeners; i++) polls[n++] = pollfd{l->listener[i], POLLIN, 0};
    for (int i = 0; i < l->links; i++) polls[n++] = pollfd{l->link[i].fd, POLLIN, 0};
    pthread_mutex_unlock(&l->lock);
    const double wait_ms = next_ms - now_ms();
    poll(polls, (nfds_t)n, wait_ms > 0 ? (int)wait_ms + 1 : 0);
    uint64_t woken;
    if ((polls[0].revents & POLLIN) && read(l->wake, &woken, sizeof woken) < 0) {}
    if (WORD_GET(&l->closing)) break;
    pthread_mutex_lock(&l->lock);
    liveness_listen(l);                          // before counting: frames may have come while this thread had no core
    if (now_ms() >= next_ms) {
      liveness_tick(l);
      next_ms = now_ms() + TICK_MS;
    }
    pthread_mutex_unlock(&l->lock);
  }
  free(polls);
  return NULL;
}

// ---- a rank's life --------------------------------------------------------------------------------------------------
void liveness_leave(bool all_end) {
  Liveness *l = &liveness;
  if (l->pid != getpid()) return;
  LivenessFrame goodbye = {};
  goodbye.kind = FRAME_GOODBYE;
  goodbye.rank = l->rank;
  goodbye.waits = all_end;
  if (all_end) WORD_SET(&l->quiet, 1);
  for (int ms = 0; pthread_mutex_trylock(&l->lock); ms++) {
    if (ms == LEAVE_MS) return;                  // a signal handler in the main thread, which has the lock itself
    usleep(1000);
  }
  links_send(l, &goodbye);
  pthread_mutex_unlock(&l->lock);
}
void liveness_quiet() { WORD_SET(&liveness.quiet, 1); }
void liveness_close() {
  Liveness *l = &liveness;
  const uint64_t one = 1;
  if (l->pid != getpid()) return;
  WORD_SET(&l->closing, 1);
  if (write(l->wake, &one, sizeof one) < 0) {}
  pthread_join(l->thread, NULL);
  liveness_leave(false);                         // again where MPI is not finalized
  l->pid = 0;
  while (l->links) link_close(l, l->links - 1);
  while (l->listeners) close(l->listener[--l->listeners]);
  close(l->wake);
  free(l->link);
  free(l->peer);
  l->link = NULL;
  l->peer = NULL;
  l->links_most = l->closing = l->idle = 0;
  l->open = l->left = false;
}
void liveness_timeout(int64_t seconds) { WORD_SET(&liveness.timeout, seconds); }
void liveness_flight(const char *out, const char *version) {
  pthread_mutex_lock(&liveness.lock);
  snprintf(liveness.flight, sizeof liveness.flight, "%.1100s/flight-%d.json", out, liveness.rank);
  liveness.version = version;
  pthread_mutex_unlock(&liveness.lock);
}
void liveness_start(int64_t timeout) {
  static bool at_exit;
  Liveness *l = &liveness;
  sigset_t all, before;
  uint8_t mac[PROVE_MAC];
  prove_hmac(mac, &l->key, NULL, 0);             // so that at exit() OpenSSL ends after this thread
  liveness_timeout(timeout);
  gethostname(l->me, 64);
  snprintf(l->me + strlen(l->me), 64, " (pid %d)", (int)getpid());
  l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);   // signals are the main thread's
  const int fault = l->wake < 0 ? errno : pthread_create(&l->thread, NULL, liveness_life, l);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (fault) die_missing("the heartbeat thread cannot be started: %s", strerror(fault));
  l->pid = getpid();
  if (!at_exit) atexit(liveness_close);
  at_exit = true;
}
void liveness_device(const uint32_t *marks) {
  pthread_mutex_lock(&liveness.lock);
  liveness.device = marks;
  pthread_mutex_unlock(&liveness.lock);
}

// ---- how threads find each other ------------------------------------------------------------------------------------
// Where rank 0 listens: local: a socket on its host, whose random name says nothing about the run; far: addresses for
// other hosts. run 0: rank 0 does not listen.
struct LivenessHub { uint64_t run; ProveKey key; NetAddress local; NetAddresses far; };

// Whether `word`, of Open MPI's lists, is this interface: its name, or a network that it is in: 10.0.0.0/8, 10/8.
static inline bool liveness_is_interface(const NetInterface *x, char *word) {
  static const char rest[] = ".0.0.0";
  char *slash = strchr(word, '/'), text[80];
  NetAddress net;
  size_t bytes, at = 0;
  if (!slash) return !strcmp(x->name, word);
  *slash = 0;
  for (const char *c = word; *c; c++) at += *c == '.';
  snprintf(text, sizeof text, "%.60s%s", word, strchr(word, ':') || at > 3 ? "" : rest + 2 * at);
  if (!net_address_of(text, 0, &net) || net.to.ss_family != x->at.to.ss_family) return false;
  const uint8_t *a = (const uint8_t *)net_bytes((const sockaddr *)&net.to, &bytes);
  const uint8_t *b = (const uint8_t *)net_bytes((const sockaddr *)&x->at.to, &bytes);
  const int bits = atoi(slash + 1);
  bool same = bits >= 0 && bits <= 8 * (int)bytes;
  for (int i = 0; i < bits && same; i++) same = !((a[i / 8] ^ b[i / 8]) >> (7 - i % 8) & 1);
  return same;
}
// Whether ranks use this interface, by the first of Open MPI's variables that is set; *by: its name, NULL: none is set.
static inline bool liveness_is_chosen(const NetInterface *x, const char **by) {
  static const char *const names[] = {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude",
                                      "OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_oob_tcp_if_exclude"};
  *by = NULL;
  for (int i = 0; i < 4 && !*by; i++) {
    const char *list = getenv(names[i]);
    if (!list || !*list) continue;
    char *text = strdup(list), *rest = text;
    bool is_in = false;
    for (char *word; (word = strsep(&rest, ","));) is_in = is_in || liveness_is_interface(x, word);
    free(text);
    *by = names[i];
    if (is_in == (i % 2 == 1)) return false;
    if (is_in) return true;                      // also lo, of hosts that are one machine
  }
  return x->leads;
}
// Rank 0: listens at its addresses on the interfaces that were chosen. False with one line in `error`.
static inline bool liveness_listen_far(Liveness *l, LivenessHub *hub, Error *error) {
  int count, fault = 0;
  NetInterface *all = net_interfaces(&count);
  const char *by = NULL;
  for (int i = 0; i < count && hub->far.count < NET_ADDRESSES_MAX; i++) {
    NetAddress at = all[i].at;
    if (!liveness_is_chosen(&all[i], &by)) continue;
    const int fd = net_listen(&at, 1024);
    if (fd < 0) fault = errno;
    else if (!getsockname(fd, (sockaddr *)&at.to, &at.bytes)) hub->far.at[hub->far.count++] = at;
    if (fd >= 0) l->listener[l->listeners++] = fd;
  }
  free(all);
  if (hub->far.count) return true;
  return fail(error, "this rank cannot listen to others' heartbeats: %s%s%s", fault ? strerror(fault) : "no address of "
              "it leads to them", by && !fault ? " by the network of " : "", by && !fault ? by : "");
}
// Rank 0: listens for ranks of this host and, if `far`, for those of other hosts. False with one line in `error`.
static inline bool liveness_make_hub(Liveness *l, LivenessHub *hub, bool far, Error *error) {
  prove_random(&hub->run, sizeof hub->run);
  prove_random(&hub->key, sizeof hub->key);
  uint64_t name;
  prove_random(&name, sizeof name);
  hub->local = net_local("train_gpt_fsdp-%016llx", (unsigned long long)name);
  const int fd = net_listen(&hub->local, l->world);
  REJECT(fd < 0, "this rank cannot listen to others' heartbeats: %s", strerror(errno));
  pthread_mutex_lock(&l->lock);
  l->run = hub->run;
  l->key = hub->key;
  l->listener[l->listeners++] = fd;
  const bool ok = !far || liveness_listen_far(l, hub, error);
  pthread_mutex_unlock(&l->lock);
  return ok;
}
// Another rank than 0: sends the hello, which names this rank.
static inline void link_hello(LivenessLink *k, const ProveKey *run) {
  const ProveKey key = link_key(run, k->claims);
  const ProveMessage hello = prove_hello(&k->prove, &key);
  link_say(k, &hello);
}
// Another rank than 0: connects to all addresses at once, again to those that reject, for liveness_connect_ms at most,
// and keeps the first connection on which rank 0 proves the key. Returns it; -1: there is none (for a local socket, at
// once if its name does not exist on this host).
static inline int liveness_connect(const ProveKey *key, const NetAddress *address, int count, int rank) {
  LivenessLink k[NET_ADDRESSES_MAX];
  bool spoke[NET_ADDRESSES_MAX];
  double again_ms[NET_ADDRESSES_MAX] = {};
  int chosen = -1;
  for (int i = 0; i < count; i++) k[i].fd = -1;
  for (const double start = now_ms(); count > 0 && chosen < 0 && now_ms() - start < liveness_connect_ms;) {
    pollfd polls[NET_ADDRESSES_MAX];
    for (int i = 0; i < count; i++) {
      if (k[i].fd < 0 && now_ms() >= again_ms[i]) {
        k[i] = LivenessLink{};
        k[i].claims = rank;
        k[i].fd = net_begin(&address[i]);
        if (k[i].fd < 0 && errno == ECONNREFUSED && address[i].to.ss_family == AF_UNIX) return -1;
        spoke[i] = false;
        again_ms[i] = now_ms() + CONNECT_AGAIN_MS;
      }
      polls[i] = pollfd{k[i].fd, (short)(spoke[i] ? POLLIN : POLLOUT), 0};       // fd -1 is passed over
    }
    if (poll(polls, (nfds_t)count, CONNECT_AGAIN_MS) < 0) continue;              // a signal
    for (int i = 0; i < count && chosen < 0; i++) {
      LivenessFrame f = {};
      int got = 0;
      if (k[i].fd < 0 || !polls[i].revents) continue;
      if (!spoke[i]) {
        got = net_begun(k[i].fd) ? 0 : -1;
        if (!got) link_hello(&k[i], key);
        spoke[i] = true;
      } else got = link_read(&k[i], &f);
      if (got > 0) got = link_prove(&k[i], &f) ? k[i].prove.phase == PHASE_OPEN : -1;
      if (got > 0) chosen = i;
      else if (got) { close(k[i].fd); k[i].fd = -1; }
    }
  }
  for (int i = 0; i < count; i++) if (i != chosen && k[i].fd >= 0) close(k[i].fd);
  return chosen < 0 ? -1 : k[chosen].fd;
}
// Joins rank 0, which has made `hub`. Returns whether it answered.
static inline bool liveness_join(Liveness *l, const LivenessHub *hub, bool near) {
  pthread_mutex_lock(&l->lock);
  l->run = hub->run;
  const LivenessFrame beat = liveness_frame(l, FRAME_BEAT);
  pthread_mutex_unlock(&l->lock);
  int fd = near ? liveness_connect(&hub->key, &hub->local, 1, l->rank) : -1;
  if (fd < 0) fd = liveness_connect(&hub->key, hub->far.at, hub->far.count, l->rank);
  if (fd < 0) return false;
  pthread_mutex_lock(&l->lock);
  const NetAddress none = {};
  link_add(l, fd, 0, &none);
  l->link[0].joined = true;
  link_send(&l->link[0], &beat);
  pthread_mutex_unlock(&l->lock);
  return true;
}
// Learns host and process id of all ranks of `comm`. Whether some are on other hosts than rank 0. All ranks call it.
static inline bool liveness_meet(Liveness *l, MPI_Comm comm) {
  struct Who { int pid, host; char name[64]; } mine = {};
  MPI_Comm node;
  bool far = false;
  int rank, world;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &world);
  PMPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  mine.pid = (int)getpid();
  mine.host = rank;
  gethostname(mine.name, sizeof mine.name - 1);
  PMPI_Bcast(&mine.host, 1, MPI_INT, 0, node);
  PMPI_Comm_free(&node);
  Who *all = (Who *)calloc((size_t)world, sizeof(Who));
  PMPI_Allgather(&mine, (int)sizeof mine, MPI_BYTE, all, (int)sizeof mine, MPI_BYTE, comm);
  LivenessPeer *peer = (LivenessPeer *)calloc((size_t)world, sizeof(LivenessPeer));
  int first = rank;                              // the lowest rank of this host except rank 0
  for (int r = world - 1; r >= 0; r--) {
    peer[r].pid = all[r].pid;
    peer[r].host = all[r].host;
    memcpy(peer[r].host_name, all[r].name, sizeof all[r].name);
    far = far || all[r].host;
    if (r && all[r].host == mine.host) first = r;
  }
  free(all);
  peer[rank].state = PEER_HERE;
  pthread_mutex_lock(&l->lock);
  l->rank = rank;
  l->world = world;
  l->peer = peer;
  l->reports = !rank || rank == first;
  l->links_most = rank ? 1 : 2 * world + LINKS_SPARE;
  l->link = (LivenessLink *)calloc((size_t)l->links_most + 1, sizeof(LivenessLink));
  snprintf(l->me, sizeof l->me, "rank %d of %d on %s", rank, world, mine.name);
  pthread_mutex_unlock(&l->lock);
  return far;
}
void liveness_open(MPI_Comm comm, Error *error) {
  Liveness *l = &liveness;
  LivenessHub hub = {};
  const bool far = liveness_meet(l, comm);
  bool ok = l->rank || l->world == 1 || liveness_make_hub(l, &hub, far, error);
  if (!ok) hub.run = 0;
  const uint64_t one = 1;
  if (!l->rank && write(l->wake, &one, sizeof one) < 0) {}       // the thread listens from here on
  PMPI_Bcast(&hub, (int)sizeof hub, MPI_BYTE, 0, comm);
  if (l->rank && hub.run && !liveness_join(l, &hub, !l->peer[l->rank].host)) {
    ok = false;
    fail(error, "the heartbeats of this rank (pid %d) find no way to rank 0 on %s, by none of its %d addresses: let "
         "TCP through between the hosts", l->peer[l->rank].pid, l->peer[0].host_name, hub.far.count);
  }
  pthread_mutex_lock(&l->lock);
  l->open = ok && (!l->rank || hub.run);
  pthread_mutex_unlock(&l->lock);
}

// ---- MPI ------------------------------------------------------------------------------------------------------------
