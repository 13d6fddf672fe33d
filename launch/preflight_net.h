// preflight_net.h: what the network between hosts does, and --preflight.
//
// --preflight does not trust the network. Ranks talk to rank 0 and in pairs by messages that have a deadline, and do
// nothing collective: a collective over a network that drops messages never ends. The rest waits for what rank 0 calls
// for: a pair to measure, its clock, whether it sees a file. A rank that hears nothing of rank 0 says so on stderr,
// which mpirun carries by another way.
#pragma once
#include "base/newfile/newfile.h"
#include "preflight.h"
#include <sys/stat.h>

enum PreflightTag { TAG_HELLO = 71, TAG_FACTS, TAG_CALL, TAG_ANSWER, TAG_SMALL, TAG_LARGE };
enum PreflightOp { CALL_HEARD, CALL_PAIR, CALL_CLOCK, CALL_LOOK, CALL_END };
// What rank 0 asks of a rank. peer, leads: of a pair; code: how the program ends; text: a file to look for.
struct PreflightCall { int op, peer, leads, code; char text[1100]; };
struct PreflightAnswer { int fault, sees; double latency_us, bytes_per_s, clock_s; };
enum { PREFLIGHT_SMALL_BYTES = 8, PREFLIGHT_LARGE_BYTES = 4 << 20, PREFLIGHT_PINGS = 64, PREFLIGHT_LARGE = 4 };
static const int64_t PREFLIGHT_DEADLINE_S = 15;
enum { PREFLIGHT_RANKS_MAX = 8 };               // as many ranks are measured by pairs of ranks

// ---- messages with a deadline ---------------------------------------------------------------------------------------
// Whether the message is through before `limit_ms` have passed; if not, its buffer stays in use. pause: sleep between
// two looks, for what may take long.
static inline bool preflight_through(MPI_Request *q, double limit_ms, bool pause) {
  for (const double begun = now_ms();;) {
    int done = 0;
    MPI_Test(q, &done, MPI_STATUS_IGNORE);
    if (done) return true;
    if (now_ms() - begun > limit_ms) return false;
    if (pause) usleep(200);
    else sched_yield();                          // ranks may share a core
  }
}
// `data` must outlive a message that does not get through, so it is copied to memory that is never freed.
static inline bool preflight_send(int to, PreflightTag tag, const void *data, size_t bytes, double limit_ms) {
  MPI_Request q;
  void *kept = malloc(bytes);
  memcpy(kept, data, bytes);
  MPI_Isend(kept, (int)bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, &q);
  const bool through = preflight_through(&q, limit_ms, true);
  if (through) free(kept);
  return through;
}
static inline bool preflight_receive(int from, PreflightTag tag, void *data, size_t bytes, double limit_ms) {
  MPI_Request q;
  void *kept = malloc(bytes);
  MPI_Irecv(kept, (int)bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &q);
  const bool through = preflight_through(&q, limit_ms, true);
  if (!through) return false;
  memcpy(data, kept, bytes);
  free(kept);
  return true;
}
// A message of `bytes` to `peer` and one back, or the other way round. buffer: bytes for each way, never freed.
static inline bool preflight_exchange(int peer, bool leads, PreflightTag tag, char *buffer, size_t bytes,
                                      double limit_ms) {
  MPI_Request in, out;
  MPI_Irecv(buffer, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &in);
  if (!leads && !preflight_through(&in, limit_ms, false)) return false;
  MPI_Isend(buffer + bytes, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &out);
  return preflight_through(&out, limit_ms, false) && (!leads || preflight_through(&in, limit_ms, false));
}
// Latency: half the median time there and back of a small message; bandwidth: the bytes of a large one over half the
// least time. The first of each opens connections and is not counted. Both ends call it, one leads. small_ms, large_ms:
// how long a message may take.
static inline PreflightAnswer preflight_measure(int peer, bool leads, double small_ms, double large_ms) {
  static char *buffer;
  if (!buffer) buffer = (char *)calloc(2, PREFLIGHT_LARGE_BYTES);
  PreflightAnswer a = {PAIR_NO_MESSAGE, 0, 0, 0, 0};
  double ms[PREFLIGHT_PINGS], least = INFINITY;
  for (int i = -1; i < PREFLIGHT_PINGS; i++) {
    const double begun = now_ms();
    if (!preflight_exchange(peer, leads, TAG_SMALL, buffer, PREFLIGHT_SMALL_BYTES, small_ms)) return a;
    if (i >= 0) ms[i] = now_ms() - begun;
  }
  a.latency_us = preflight_median(ms, PREFLIGHT_PINGS) / 2 * 1e3;
  a.fault = PAIR_NO_LARGE_MESSAGE;
  for (int i = -1; i < PREFLIGHT_LARGE; i++) {
    const double begun = now_ms();
    if (!preflight_exchange(peer, leads, TAG_LARGE, buffer, PREFLIGHT_LARGE_BYTES, large_ms)) return a;
    if (i >= 0) least = fmin(least, now_ms() - begun);
  }
  a.bytes_per_s = PREFLIGHT_LARGE_BYTES / (least / 2 * 1e-3);
  a.fault = PAIR_WORKS;
  return a;
}
static inline double preflight_clock_s() { return (double)wall_ns() * 1e-9; }
// Exchanges with `peer`; the one that does not lead sends its clock. Of the fastest exchange: how far its clock is
// ahead, assuming equal ways, and half the time that it took (as NTP does: RFC 5905, clock filter).
enum { PREFLIGHT_CLOCKS = 8 };
static inline bool preflight_clock(int peer, bool leads, double limit_ms, double *ahead_s, double *error_s) {
  *error_s = INFINITY;
  for (int i = 0; i < PREFLIGHT_CLOCKS; i++) {
    double theirs = 0;
    const double sent = preflight_clock_s();
    if (leads && !preflight_send(peer, TAG_SMALL, &sent, sizeof sent, limit_ms)) return false;
    if (!preflight_receive(peer, TAG_SMALL, &theirs, sizeof theirs, limit_ms)) return false;
    const double now = preflight_clock_s(), half = (now - sent) / 2;
    if (!leads && !preflight_send(peer, TAG_SMALL, &now, sizeof now, limit_ms)) return false;
    if (!leads || half >= *error_s) continue;
    *error_s = half;
    *ahead_s = theirs - (sent + half);
  }
  return true;
}

// ---- the ranks that are called --------------------------------------------------------------------------------------
static inline bool preflight_sees(const char *path) { return !access(path, F_OK); }
// Sends what this rank is, then does what rank 0 calls for. Returns the program's exit code.
static inline int preflight_serve(const PreflightFacts *mine, double limit_ms) {
  PreflightCall c = {};
  double ahead, within;
  MPI_Request first;
  preflight_send(0, TAG_HELLO, mine->host, sizeof mine->host, limit_ms / 2);
  preflight_send(0, TAG_FACTS, mine, sizeof *mine, limit_ms / 2);
  MPI_Irecv(&c, (int)sizeof c, MPI_BYTE, 0, TAG_CALL, MPI_COMM_WORLD, &first);
  if (!preflight_through(&first, limit_ms / 2, true)) {          // before rank 0 gives up and ends all
    char networks[512] = "";
    for (int i = 0; i < mine->nets; i++)
      text_add(networks, sizeof networks, "%s%s %s", i ? ", " : "", mine->net[i].name, mine->net[i].network);
    warn("no word of rank 0 yet; networks of this host: %s", mine->nets ? networks : "none");
    if (!preflight_through(&first, 3 * limit_ms, true)) die_missing("no word of rank 0: see what it says");
  }
  while (c.op != CALL_END) {
    PreflightAnswer a = {};
    if (c.op == CALL_PAIR) a = preflight_measure(c.peer, c.leads, limit_ms, limit_ms);
    if (c.op == CALL_CLOCK) preflight_clock(0, false, limit_ms, &ahead, &within);
    if (c.op == CALL_LOOK) a.sees = preflight_sees(c.text);
    const bool answers = (c.op == CALL_PAIR && c.leads) || c.op == CALL_LOOK;
    if (answers) preflight_send(0, TAG_ANSWER, &a, sizeof a, limit_ms);
    preflight_receive(0, TAG_CALL, &c, sizeof c, INFINITY);
  }
  return c.code;
}

// ---- rank 0 ---------------------------------------------------------------------------------------------------------
static inline bool preflight_call(int rank, PreflightCall c, double limit_ms) {
  return preflight_send(rank, TAG_CALL, &c, sizeof c, limit_ms);
}
// Receives who the other ranks are, all of them within the deadline. False if some are missing.
static inline bool preflight_hear(PreflightFacts *facts, int world, double limit_ms) {
  typedef char Host[sizeof facts->host];
  Host *hello = (Host *)calloc((size_t)world, sizeof(Host));
  MPI_Request *q = (MPI_Request *)malloc(sizeof(MPI_Request) * 2 * (size_t)world);
  PreflightFacts *theirs = (PreflightFacts *)calloc((size_t)world, sizeof(PreflightFacts));
  const double begun = now_ms();
  bool all = true;
  for (int r = 1; r < world; r++) {
    MPI_Irecv(hello[r], (int)sizeof(Host), MPI_BYTE, r, TAG_HELLO, MPI_COMM_WORLD, &q[2 * r]);
    MPI_Irecv(&theirs[r], (int)sizeof *theirs, MPI_BYTE, r, TAG_FACTS, MPI_COMM_WORLD, &q[2 * r + 1]);
  }
  for (int r = 1; r < world; r++) {
    const bool hears = preflight_through(&q[2 * r], fmax(0, begun + limit_ms - now_ms()), true);
    const bool knows = hears && preflight_through(&q[2 * r + 1], fmax(0, begun + limit_ms - now_ms()), true);
    facts[r] = knows ? theirs[r] : PreflightFacts{};
    if (hears && !knows) memcpy(facts[r].host, hello[r], sizeof(Host)), facts[r].lost = true;
    all = all && knows;
  }
  if (!all) return false;                        // what has not come yet may still be written to
  free(theirs);
  free(q);
  free(hello);
  return true;
}
static inline void preflight_ask_clocks(PreflightFound *f, double limit_ms) {
  for (int h = 1; h < f->hosts; h++) {
    PreflightHost *x = &f->host[h];
    if (!preflight_call(x->facts->rank, PreflightCall{CALL_CLOCK, 0, 0, 0, ""}, limit_ms) ||
        !preflight_clock(x->facts->rank, true, limit_ms, &x->clock_s, &x->clock_error_s))
      x->clock_s = x->clock_error_s = 0;
  }
}
// Writes a file into OUT, or the nearest directory above it that is there, and asks the first rank of each other host
// for it. Its name is made of this host's boot id and this process's id, so that no rank finds a file that an earlier
// preflight has left.
static inline void preflight_ask_out(PreflightFound *f, const char *out, double limit_ms) {
  struct stat st;
  struct statvfs s;
  PreflightCall c = {CALL_LOOK, 0, 0, 0, ""};
  snprintf(f->out, sizeof f->out, "%s", out[0] ? out : ".");
  while (stat(f->out, &st) || !S_ISDIR(st.st_mode)) {
    char *slash = strrchr(f->out, '/');
    if (slash && slash > f->out) *slash = 0;
    else snprintf(f->out, sizeof f->out, slash ? "/" : ".");
  }
  if (!statvfs(f->out, &s)) f->out_free = (int64_t)(s.f_bavail * s.f_frsize);
  snprintf(c.text, sizeof c.text, "%s/.preflight-%.36s-%d", f->out, f->facts[0].boot, (int)getpid());
  const int fd = file_make(c.text, O_WRONLY | O_EXCL, 0600);
  if (fd < 0 || write(fd, "preflight\n", 10) != 10 || fsync(fd))
    snprintf(f->out_fault, sizeof f->out_fault, "%s", strerror(errno));
  for (int h = 1; h < f->hosts && !f->out_fault[0]; h++) {
    PreflightAnswer a;
    const int rank = f->host[h].facts->rank;
    if (preflight_call(rank, c, limit_ms) && preflight_receive(rank, TAG_ANSWER, &a, sizeof a, limit_ms))
      f->host[h].sees_out = a.sees;
  }
  if (fd >= 0) close(fd), unlink(c.text);
}
// The partner of `end` in a round of a tournament of `ends` participants, an even number (an end of a pair is a rank or
// a host, see ends_are_ranks): every two meet once in ends - 1 rounds (circle method: the last one stays, the others
// rotate).
static inline int preflight_partner(int end, int round, int ends) {
  const int n = ends - 1;
  if (end == n) return round * (n + 1) / 2 % n;  // the p with 2 p = round modulo n: n is odd, 1/2 is (n + 1) / 2
  const int other = ((round - end) % n + n) % n;
  return other == end ? n : other;
}
// Measures the pairs [from, to) of f at the same time. False: a rank is out of reach from here on.
static inline void preflight_round(PreflightFound *f, int from, int to, bool *lost, double limit_ms) {
  PreflightPair *own = NULL;
  for (int i = from; i < to; i++) {
    PreflightPair *p = &f->pair[i];
    const int a = preflight_end(f, p->a)->rank, b = preflight_end(f, p->b)->rank;
    p->fault = PAIR_NOT_TRIED;
    if (lost[a] || lost[b]) continue;
    p->fault = PAIR_NO_MESSAGE;
    if (!preflight_call(b, PreflightCall{CALL_PAIR, a, 0, 0, ""}, limit_ms)) lost[b] = true;
    else if (!a) own = p;
    else if (!preflight_call(a, PreflightCall{CALL_PAIR, b, 1, 0, ""}, limit_ms)) lost[a] = true;
  }
  for (int i = from; i < to; i++) {
    PreflightPair *p = &f->pair[i];
    PreflightAnswer got = {};
    const int a = preflight_end(f, p->a)->rank, b = preflight_end(f, p->b)->rank;
    if (p->fault == PAIR_NOT_TRIED || lost[a] || lost[b]) continue;
    if (p == own) got = preflight_measure(b, true, limit_ms, limit_ms);
    else if (!preflight_receive(a, TAG_ANSWER, &got, sizeof got, 3 * limit_ms)) lost[a] = true;
    p->fault = got.fault;
    p->latency_us = got.latency_us;
    p->bytes_per_s = got.bytes_per_s;
    if (lost[a]) p->fault = PAIR_NO_MESSAGE;
    if (p == own && got.fault != PAIR_WORKS) lost[b] = true;     // what rank 0 calls does not get through either
  }
}
// All pairs of ends. Those of hosts are measured at the same time as far as they have no host in common, those of ranks
// one by one, since ranks of a host share its network.
static inline void preflight_ask_pairs(PreflightFound *f, double limit_ms) {
  f->ends_are_ranks = f->world <= PREFLIGHT_RANKS_MAX;
  f->ends = f->ends_are_ranks ? f->world : f->hosts;
  const int even = f->ends + f->ends % 2;
  f->pair = (PreflightPair *)calloc((size_t)f->ends * (size_t)f->ends + 1, sizeof(PreflightPair));
  bool *lost = (bool *)calloc((size_t)f->world, sizeof(bool));
  for (int a = 0; a < f->ends && f->ends_are_ranks; a++) for (int b = a + 1; b < f->ends; b++, f->pairs++) {
    f->pair[f->pairs] = PreflightPair{a, b, PAIR_NOT_TRIED, 0, 0};
    preflight_round(f, f->pairs, f->pairs + 1, lost, limit_ms);
  }
  for (int round = 0; round < even - 1 && !f->ends_are_ranks; round++) {
    const int first = f->pairs;
    for (int end = 0; end < f->ends; end++) {
      const int other = preflight_partner(end, round, even);
      if (other > end && other < f->ends) f->pair[f->pairs++] = PreflightPair{end, other, PAIR_NOT_TRIED, 0, 0};
    }
    preflight_round(f, first, f->pairs, lost, limit_ms);
  }
  free(lost);
}
static inline void preflight_free(PreflightFound *f, PreflightFindings *k) {
  free(f->host);
  free(f->pair);
  free(k->finding);
}
static inline void preflight_say(const PreflightFindings *k) {
  static const char *const words[] = {"  note     ", "* wrong  ", "* mend   "};
  for (int kind = PREFLIGHT_MEND; kind >= PREFLIGHT_NOTE; kind--)
    for (int i = 0; i < k->count; i++)
      if (k->finding[i].kind == kind) say("%s %s\n", words[kind], k->finding[i].text);
}
static inline bool preflight_chosen() {
  return getenv("OMPI_MCA_btl_tcp_if_include") || getenv("OMPI_MCA_btl_tcp_if_exclude");
}
// Rank 0 of --preflight. Returns the exit code; ends all ranks at once where some cannot be told.
static inline int preflight_lead(PreflightFacts *facts, int world, const PreflightAsk *ask, double limit_ms) {
  PreflightFound f = {};
  PreflightFindings k = {};
  f.facts = facts;
  f.world = world;
  f.network_chosen = preflight_chosen();
  bool reached = preflight_hear(facts, world, limit_ms);
  preflight_group(&f);
  for (int r = 1; r < world && reached; r++)
    reached = preflight_call(r, PreflightCall{CALL_HEARD, 0, 0, 0, ""}, limit_ms);
  if (reached) {
    preflight_ask_clocks(&f, limit_ms);
    preflight_ask_out(&f, ask->out, limit_ms);
    preflight_ask_pairs(&f, limit_ms);
  }
  for (int i = 0; i < f.pairs; i++) reached = reached && f.pair[i].fault == PAIR_WORKS;
  preflight_judge(&f, &k);
  preflight_print(&f);
  preflight_say(&k);
  const PreflightFinding *first = preflight_first_to_mend(&k);
  const int code = first ? EXIT_MISSING : 0;
  if (!first) say("preflight: nothing to mend\n");
  if (!reached) die_missing("to mend first: %s", first ? first->text : "a rank that answers too late");
  for (int r = 1; r < world; r++) preflight_call(r, PreflightCall{CALL_END, 0, 0, code, ""}, limit_ms);
  if (first) warn("to mend first: %s", first->text);
  preflight_free(&f, &k);
  return code;
}
int preflight_run(const PreflightAsk *ask) {
  const int rank = comm_rank(MPI_COMM_WORLD), world = comm_size(MPI_COMM_WORLD);
  const bool sooner = ask->timeout_s > 0 && ask->timeout_s < PREFLIGHT_DEADLINE_S;
  const double limit_ms = 1e3 * (double)(sooner ? ask->timeout_s : PREFLIGHT_DEADLINE_S);
  PreflightFacts *facts = (PreflightFacts *)calloc(rank ? 1 : (size_t)world, sizeof(PreflightFacts));
  preflight_look(facts, rank, ask);
  const int code = rank ? preflight_serve(facts, limit_ms) : preflight_lead(facts, world, ask, limit_ms);
  free(facts);
  return code;
}

// ---- at each start --------------------------------------------------------------------------------------------------
void preflight_start(const PreflightAsk *ask, MPI_Comm comm) {
  PreflightFound f = {};
  PreflightFindings k = {};
  int rank, first = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &f.world);
  if (f.world == 1) return;
  const double limit_ms = 1e3 * PREFLIGHT_DEADLINE_S;
  PreflightFacts mine, *all = rank ? NULL : (PreflightFacts *)calloc((size_t)f.world, sizeof(PreflightFacts));
  int *is_first = rank ? NULL : (int *)calloc((size_t)f.world, sizeof(int));
  preflight_look(&mine, rank, ask);
  MPI_Gather(&mine, (int)sizeof mine, MPI_BYTE, all, (int)sizeof mine, MPI_BYTE, 0, comm);
  f.facts = all;
  if (!rank) preflight_group(&f);
  for (int h = 1; h < f.hosts; h++) is_first[f.host[h].facts->rank] = 1;
  MPI_Scatter(is_first, 1, MPI_INT, &first, 1, MPI_INT, 0, comm);
  double ahead, within;
  if (first) preflight_clock(0, false, limit_ms, &ahead, &within);
  for (int h = 1; h < f.hosts; h++)
    preflight_clock(f.host[h].facts->rank, true, limit_ms, &f.host[h].clock_s, &f.host[h].clock_error_s);
  f.network_chosen = preflight_chosen();
  if (!rank) preflight_judge(&f, &k);
  for (int i = 0; i < k.count; i++)
    if (k.finding[i].kind != PREFLIGHT_NOTE) say("warning: %s\n", k.finding[i].text);
  preflight_free(&f, &k);
  free(is_first);
  free(all);
}
