// rdzv_wire.h: what processes of a rendezvous send each other, and how each proves that it knows the job's token.
// No sockets and no MPI here: bytes in, bytes out (base/net/net.h carries them).
//
// Frames: type and length (4 bytes each, little-endian), payload, and, once the token is proved, 32 bytes of
// HMAC-SHA-256 (RFC 2104) under a key of this connection and direction, over the frame's number and the frame. So
// frames cannot be inserted, dropped, repeated or changed; they can be read.
//
// The token is proved by the handshake of base/net/prove.h; the hello has a magic number before its nonce. Whoever
// reads the handshake's HMACs could find a weak token by trying, so short tokens are rejected.
#pragma once
#include "launch.h"
#include <openssl/crypto.h>

enum { RDZV_HEAD = 8, RDZV_EARLY_MAX = 64, RDZV_FRAME_MAX = 1 << 20 };
enum { RDZV_TOKEN_LEAST = 16, RDZV_JOB_BYTES = 33, RDZV_WORDS_MAX = 64 };
static const uint8_t rdzv_magic[8] = {'G', 'P', 'T', 'R', 'D', 'Z', 'V', '1'};

// ---- bytes ----------------------------------------------------------------------------------------------------------
// A growing buffer: n bytes at p; gone: bytes before p that were removed; room: bytes of memory from p on. All zero:
// empty.
struct RdzvBytes { uint8_t *p; size_t n, room, gone; };
// Adds n bytes. What is there moves only when memory ends, at most half of it, or memory grows.
static inline void rdzv_add(RdzvBytes *b, const void *bytes, size_t n) {
  const bool full = b->n + n > b->room;
  if (full && b->gone) {
    memmove(b->p - b->gone, b->p, b->n);
    b->p -= b->gone, b->room += b->gone, b->gone = 0;
  }
  if (full && b->n + n > b->room / 2) {
    b->room = 2 * (b->n + n) + 256;
    b->p = (uint8_t *)realloc(b->p, b->room);
    if (!b->p) abort();
  }
  if (n) memcpy(b->p + b->n, bytes, n);
  b->n += n;
}
// Removes the first n bytes.
static inline void rdzv_drop(RdzvBytes *b, size_t n) {
  b->p += n, b->gone += n;
  b->n -= n, b->room -= n;
  if (!b->n && b->gone) b->p -= b->gone, b->room += b->gone, b->gone = 0;
}
// Gives the memory back; the buffer is empty again.
static inline void rdzv_bytes_free(RdzvBytes *b) {
  free(b->gone ? b->p - b->gone : b->p);
  *b = RdzvBytes{};
}
// A number in 8 bytes, little-endian.
static inline void rdzv_add_number(RdzvBytes *b, int64_t number) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)number >> 8 * i);
  rdzv_add(b, bytes, sizeof bytes);
}
// A text: its length, then its bytes.
static inline void rdzv_add_text(RdzvBytes *b, const char *text) {
  rdzv_add_number(b, (int64_t)strlen(text));
  rdzv_add(b, text, strlen(text));
}

// What is left to read of a payload; bad: it does not hold what was asked for. After that every read gives 0 or "".
struct RdzvReader { const uint8_t *p; size_t n; bool bad; };
// Reads a number of rdzv_add_number.
static inline int64_t rdzv_take_number(RdzvReader *r) {
  uint64_t number = 0;
  r->bad = r->bad || r->n < 8;
  if (r->bad) return 0;
  for (int i = 0; i < 8; i++) number |= (uint64_t)r->p[i] << 8 * i;
  r->p += 8, r->n -= 8;
  return (int64_t)number;
}
// Reads a text of at most room - 1 bytes into `to`. Control bytes are rejected, since texts end in messages; lines:
// except newlines.
static inline void rdzv_take_text(RdzvReader *r, char *to, size_t room, bool lines) {
  const int64_t n = rdzv_take_number(r);
  to[0] = 0;
  r->bad = r->bad || n < 0 || (uint64_t)n >= room || (uint64_t)n > r->n;
  for (int64_t i = 0; !r->bad && i < n; i++)
    r->bad = (r->p[i] < 32 && !(lines && r->p[i] == '\n')) || r->p[i] == 127;
  if (r->bad) return;
  memcpy(to, r->p, (size_t)n);
  to[n] = 0;
  r->p += n, r->n -= (size_t)n;
}
// Bytes in hexadecimal; `to` has 2 n + 1 bytes.
static inline void rdzv_hex(char *to, const uint8_t *bytes, size_t n) {
  to[0] = 0;
  for (size_t i = 0; i < n; i++) snprintf(to + 2 * i, 3, "%02x", bytes[i]);
}

// ---- the token ------------------------------------------------------------------------------------------------------
// The key of a token: bytes of any length.
static inline ProveKey rdzv_token_key(const void *token, size_t n) {
  ProveKey k = {}, made;
  memcpy(k.bytes, "train_gpt_fsdp --rdzv_token 1", 29);
  const ProvePart part = {token, n};
  prove_hmac(made.bytes, &k, &part, 1);
  return made;
}

// ---- a connection ---------------------------------------------------------------------------------------------------
enum RdzvType { RDZV_INFO = 16,    // who this process is                        client to server
                RDZV_TAKEN,        // the process takes part                     server to client
                RDZV_PLAN,         // its ranks; all processes are there         server to client
                RDZV_READY,        // the seats of its ranks are open            client to server
                RDZV_DAEMON,       // start this daemon                          server to client
                RDZV_DAEMON_ENDED, // code, text                                 client to server
                RDZV_SIGNAL,       // this signal came here                      client to server
                RDZV_END,          // code, text: it is over                     server to client
                RDZV_AGAIN };      // code, text: come again (--restarts)        server to client
// Smaller types are of the handshake (ProveKind).
// One end of a connection. in: bytes received and not read yet; out: bytes to be sent.
struct RdzvLink {
  Prove prove;
  ProveKey key_in, key_out;
  uint64_t number_in, number_out;
  RdzvBytes in, out;
};
// payload: n bytes inside the link's buffer, until the next call.
struct RdzvFrame { int type; const uint8_t *payload; size_t n; };

static inline void rdzv_put32(uint8_t *to, uint32_t x) { for (int i = 0; i < 4; i++) to[i] = (uint8_t)(x >> 8 * i); }
static inline uint32_t rdzv_get32(const uint8_t *p) {
  return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline void rdzv_frame_mac(uint8_t to[PROVE_MAC], const ProveKey *key, uint64_t number, const uint8_t *frame,
                                  size_t n) {
  uint8_t at[8];
  for (int i = 0; i < 8; i++) at[i] = (uint8_t)(number >> 8 * i);
  const ProvePart parts[] = {{at, sizeof at}, {frame, n}};
  prove_hmac(to, key, parts, 2);
}
// Appends a frame to k->out, with its HMAC once the link is open.
static inline void rdzv_link_send(RdzvLink *k, int type, const void *payload, size_t n) {
  uint8_t head[RDZV_HEAD], mac[PROVE_MAC];
  const size_t at = k->out.n;
  rdzv_put32(head, (uint32_t)type);
  rdzv_put32(head + 4, (uint32_t)n);
  rdzv_add(&k->out, head, sizeof head);
  rdzv_add(&k->out, payload, n);
  if (type < RDZV_INFO) return;
  rdzv_frame_mac(mac, &k->key_out, k->number_out++, k->out.p + at, k->out.n - at);
  rdzv_add(&k->out, mac, sizeof mac);
}
// Starts the handshake as the end that has connected, or as the one that has accepted.
static inline void rdzv_link_open(RdzvLink *k, const ProveKey *token, bool connects) {
  uint8_t hello[sizeof rdzv_magic + PROVE_NONCE];
  *k = RdzvLink{};
  k->prove.key = *token;
  if (!connects) return;
  const ProveMessage says = prove_hello(&k->prove, token);
  memcpy(hello, rdzv_magic, sizeof rdzv_magic);
  memcpy(hello + sizeof rdzv_magic, says.bytes, PROVE_NONCE);
  rdzv_link_send(k, PROVE_HELLO, hello, sizeof hello);
}
// Gives buffers back and forgets keys.
static inline void rdzv_link_close(RdzvLink *k) {
  rdzv_bytes_free(&k->in);
  rdzv_bytes_free(&k->out);
  OPENSSL_cleanse(k, sizeof *k);
  k->prove.phase = PHASE_BROKEN;
}
// Takes one frame of the handshake.
static inline void rdzv_link_prove(RdzvLink *k, int type, const uint8_t *p, size_t n) {
  const bool connects = k->prove.phase == PHASE_WELCOME;
  const size_t magic = k->prove.phase == PHASE_HELLO ? sizeof rdzv_magic : 0;
  if (n < magic || memcmp(p, rdzv_magic, magic)) { k->prove.phase = PHASE_BROKEN; return; }
  const ProveMessage answer = prove_take(&k->prove, type, p + magic, n - magic);
  if (answer.kind) rdzv_link_send(k, answer.kind, answer.bytes, answer.n);
  if (k->prove.phase != PHASE_OPEN) return;
  prove_derive(&k->prove, "to server", connects ? k->key_out.bytes : k->key_in.bytes);
  prove_derive(&k->prove, "to client", connects ? k->key_in.bytes : k->key_out.bytes);
}
// Takes the next frame of the bytes received. 1: `frame` has it; 0: more bytes are needed; -1: the other end violates
// the protocol, or does not know the token; nothing more is read.
static inline int rdzv_link_next(RdzvLink *k, RdzvFrame *frame, size_t *used) {
  for (rdzv_drop(&k->in, *used), *used = 0; k->prove.phase != PHASE_BROKEN;) {
    const bool open = k->prove.phase == PHASE_OPEN;
    const size_t after = open ? PROVE_MAC : 0, most = open ? RDZV_FRAME_MAX : RDZV_EARLY_MAX;
    if (k->in.n < RDZV_HEAD) return 0;
    const int type = (int)(rdzv_get32(k->in.p) & 0xffff);
    const size_t n = rdzv_get32(k->in.p + 4), all = RDZV_HEAD + n + after;
    if (rdzv_get32(k->in.p) > 0xffff || n > most || open != (type >= RDZV_INFO)) break;
    if (k->in.n < all) return 0;
    if (!open) {
      rdzv_link_prove(k, type, k->in.p + RDZV_HEAD, n);
      rdzv_drop(&k->in, all);
      continue;
    }
    uint8_t mac[PROVE_MAC];
    rdzv_frame_mac(mac, &k->key_in, k->number_in++, k->in.p, RDZV_HEAD + n);
    if (!prove_same(mac, k->in.p + RDZV_HEAD + n)) break;
    *frame = RdzvFrame{type, k->in.p + RDZV_HEAD, n};
    *used = all;
    return 1;
  }
  k->prove.phase = PHASE_BROKEN;
  return -1;
}

// ---- payloads -------------------------------------------------------------------------------------------------------
// What a process tells host 0 about itself. index: its number of `members` processes (--node_rank of --nnodes, or RANK
// of WORLD_SIZE); ranks: how many ranks replace it. machine: equal for processes that share a kernel, its network and
// its process ids. options: a line for each, in a fixed order. before: the nonce of the start that it took part in
// last, "": none; died: 1 + the rank that died in that start, as far as its ranks know, or 0.
struct RdzvInfo {
  int64_t index, members, ranks, pid;
  char host[65], machine[200], build[80], mpi[80], program[1024];
  char options[65536];
  char before[RDZV_JOB_BYTES];
  int64_t died;
};
static inline void rdzv_info_write(RdzvBytes *b, const RdzvInfo *i) {
  for (int64_t number : {i->index, i->members, i->ranks, i->pid}) rdzv_add_number(b, number);
  for (const char *text : {i->host, i->machine, i->build, i->mpi, i->program, i->options, i->before})
    rdzv_add_text(b, text);
  rdzv_add_number(b, i->died);
}
// False: these bytes are no such payload. The texts are printable.
static inline bool rdzv_info_read(RdzvInfo *i, const uint8_t *p, size_t n) {
  RdzvReader r = {p, n, false};
  i->index = rdzv_take_number(&r), i->members = rdzv_take_number(&r);
  i->ranks = rdzv_take_number(&r), i->pid = rdzv_take_number(&r);
  rdzv_take_text(&r, i->host, sizeof i->host, false);
  rdzv_take_text(&r, i->machine, sizeof i->machine, false);
  rdzv_take_text(&r, i->build, sizeof i->build, false);
  rdzv_take_text(&r, i->mpi, sizeof i->mpi, false);
  rdzv_take_text(&r, i->program, sizeof i->program, false);
  rdzv_take_text(&r, i->options, sizeof i->options, true);
  rdzv_take_text(&r, i->before, sizeof i->before, false);
  i->died = rdzv_take_number(&r);
  return !r.bad && !r.n && i->died >= 0 && i->died <= 1 << 24;
}
// What host 0 tells a process when all are there. Ranks first to first + ranks - 1 of `world` replace the process;
// here: number of ranks on its machine; machines: hosts of the job; lead: it is the first process of its machine; job:
// the nonce of this start; host: host 0's name. A start after the first (launch/restart_rules.h) has its number in
// `start`, may leave a process without ranks, and changes options of the ranks: resume: --resume from the newest
// checkpoint; sequences, accum: --global_batch and --grad_accum, 0: as the user gave them.
struct RdzvPlan {
  int64_t first, ranks, world, here, machines, lead;
  char job[RDZV_JOB_BYTES], host[65];
  int64_t start, resume, sequences, accum;
};
static inline void rdzv_plan_write(RdzvBytes *b, const RdzvPlan *q) {
  for (int64_t number : {q->first, q->ranks, q->world, q->here, q->machines, q->lead})
    rdzv_add_number(b, number);
  rdzv_add_text(b, q->job);
  rdzv_add_text(b, q->host);
  for (int64_t number : {q->start, q->resume, q->sequences, q->accum}) rdzv_add_number(b, number);
}
// False: these bytes are no such payload.
static inline bool rdzv_plan_read(RdzvPlan *q, const uint8_t *p, size_t n) {
  RdzvReader r = {p, n, false};
  q->first = rdzv_take_number(&r), q->ranks = rdzv_take_number(&r), q->world = rdzv_take_number(&r);
  q->here = rdzv_take_number(&r), q->machines = rdzv_take_number(&r), q->lead = rdzv_take_number(&r);
  rdzv_take_text(&r, q->job, sizeof q->job, false);
  rdzv_take_text(&r, q->host, sizeof q->host, false);
  q->start = rdzv_take_number(&r), q->resume = rdzv_take_number(&r);
  q->sequences = rdzv_take_number(&r), q->accum = rdzv_take_number(&r);
  const bool hex = strlen(q->job) == RDZV_JOB_BYTES - 1 && strspn(q->job, "0123456789abcdef") == RDZV_JOB_BYTES - 1;
  const bool fits = q->world <= 1 << 24 && q->first >= 0 && q->ranks >= (q->start > 0 ? 0 : 1) &&
                    q->ranks <= q->world && q->start >= 0 && q->sequences >= 0 && q->accum >= 0;
  return !r.bad && !r.n && hex && fits && q->first <= q->world - q->ranks;
}
// How the start ended, or a daemon. RDZV_NEVER_STARTED: the code of a daemon that was rejected or could not be started.
enum { RDZV_NEVER_STARTED = 127 };
struct RdzvEnd { int64_t code; char text[1024]; };
static inline void rdzv_end_write(RdzvBytes *b, int64_t code, const char *text) {
  rdzv_add_number(b, code);
  rdzv_add_text(b, text);
}
static inline bool rdzv_end_read(RdzvEnd *e, const uint8_t *p, size_t n) {
  RdzvReader r = {p, n, false};
  e->code = rdzv_take_number(&r);
  rdzv_take_text(&r, e->text, sizeof e->text, false);
  return !r.bad && !r.n;
}
// The words of a command, NULL after the last, in one malloc'ed block that word[0] starts.
struct RdzvWords { char *word[RDZV_WORDS_MAX + 1]; int count; };
static inline void rdzv_words_write(RdzvBytes *b, const RdzvWords *w) {
  rdzv_add_number(b, w->count);
  for (int i = 0; i < w->count; i++) rdzv_add_text(b, w->word[i]);
}
// False: these bytes are no such payload; nothing is allocated then.
static inline bool rdzv_words_read(RdzvWords *w, const uint8_t *p, size_t n) {
  RdzvReader r = {p, n, false};
  const int64_t count = rdzv_take_number(&r);
  *w = RdzvWords{};
  if (r.bad || count < 1 || count > RDZV_WORDS_MAX) return false;
  char *at = (char *)malloc(n), *block = at, *end = at + n;
  for (int64_t i = 0; i < count && !r.bad; i++) {
    rdzv_take_text(&r, at, (size_t)(end - at), false);           // its length took 8 bytes, so there is room for a 0
    w->word[w->count++] = at;
    at += strlen(at) + 1;
  }
  if (!r.bad && !r.n) return true;
  free(block);
  *w = RdzvWords{};
  return false;
}
static inline void rdzv_words_free(RdzvWords *w) {
  free(w->word[0]);
  *w = RdzvWords{};
}

// ---- Open MPI's daemon ----------------------------------------------------------------------------------------------
// What mpirun passes to its daemons, by version: Open MPI 4 (orted, -mca) and 5 (prted, --prtemca). A value consists
// of `bytes` only, or is `is`. needed: a daemon does not start without it.
struct RdzvParam { const char *name, *is, *bytes; bool needed; };
#define RDZV_DIGITS "0123456789"
#define RDZV_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
static const RdzvParam rdzv_params_4[] = {
    {"ess", "env", NULL, true}, {"ess_base_jobid", NULL, RDZV_DIGITS, true},
    {"ess_base_vpid", NULL, RDZV_DIGITS, true}, {"ess_base_num_procs", NULL, RDZV_DIGITS, true},
    {"orte_node_regex", NULL, RDZV_DIGITS RDZV_LETTERS "-.,:@()[]", true},
    {"orte_hnp_uri", NULL, RDZV_DIGITS RDZV_LETTERS ".;:/[],%", true}, {"plm", "rsh", NULL, true}};
static const RdzvParam rdzv_params_5[] = {
    {"ess", "env", NULL, true}, {"ess_base_nspace", NULL, RDZV_DIGITS RDZV_LETTERS "-.@_", true},
    {"ess_base_vpid", NULL, RDZV_DIGITS, true}, {"ess_base_num_procs", NULL, RDZV_DIGITS, true},
    {"prte_hnp_uri", NULL, RDZV_DIGITS RDZV_LETTERS "-@_.;:/[],%", true}, {"plm", "ssh", NULL, true}};
struct RdzvDaemon { const char *name, *flag; const RdzvParam *param; int params; };
static const RdzvDaemon rdzv_daemons[] = {
    {"orted", "-mca", rdzv_params_4, sizeof rdzv_params_4 / sizeof *rdzv_params_4},
    {"prted", "--prtemca", rdzv_params_5, sizeof rdzv_params_5 / sizeof *rdzv_params_5}};

static inline const RdzvParam *rdzv_param(const RdzvDaemon *d, const char *name) {
  for (int i = 0; i < d->params; i++) if (!strcmp(d->param[i].name, name)) return &d->param[i];
  return NULL;
}
static inline bool rdzv_param_takes(const RdzvParam *q, const char *value) {
  if (q->is) return !strcmp(q->is, value);
  return *value && strlen(value) < 65536 && strspn(value, q->bytes) == strlen(value);
}
// Checks that the words are a command of Open MPI's daemon: a name of rdzv_daemons without a directory, then parameters
// of its list, each once, with values of their form. NULL: they are; else why not, in a static text.
static inline const char *rdzv_daemon_rejected(const RdzvWords *w) {
  static char why[300];
  const RdzvDaemon *d = NULL;
  bool given[16] = {};
  for (const RdzvDaemon &x : rdzv_daemons) if (w->count && !strcmp(w->word[0], x.name)) d = &x;
  if (!d) {
    snprintf(why, sizeof why, "'%.100s' is not Open MPI's daemon", w->count ? w->word[0] : "");
    return why;
  }
  for (int i = 1; i < w->count; i += 3) {
    const RdzvParam *q = i + 2 < w->count && !strcmp(w->word[i], d->flag) ? rdzv_param(d, w->word[i + 1]) : NULL;
    const bool again = q && given[q - d->param];
    const char *name = i + 1 < w->count ? w->word[i + 1] : "", *value = i + 2 < w->count ? w->word[i + 2] : "";
    snprintf(why, sizeof why, "%s does not take '%.60s %.60s %.60s'%s", d->name, w->word[i], name, value,
             again ? " twice" : "");
    if (!q || again || !rdzv_param_takes(q, w->word[i + 2])) return why;
    given[q - d->param] = true;
  }
  for (int i = 0; i < d->params; i++) {
    snprintf(why, sizeof why, "%s lacks %s", d->name, d->param[i].name);
    if (d->param[i].needed && !given[i]) return why;
  }
  return NULL;
}
// Copies a word that mpirun quoted for a shell, without its double quotes.
static inline void rdzv_unquote(char *to, size_t room, const char *word) {
  const size_t n = strlen(word);
  const bool quoted = n > 1 && word[0] == '"' && word[n - 1] == '"';
  snprintf(to, room, "%.*s", (int)(quoted ? n - 2 : n), word + quoted);
}
// Finds the daemon and the parameters of its list in the words that mpirun passes to its remote agent. The rest is
// left out: text for a shell (PATH, .profile, libraries), --daemonize, parameters that concern mpirun. False: there is
// no daemon in it. `to` is one block as of rdzv_words_read.
static inline bool rdzv_daemon_from(RdzvWords *to, int count, char *const *words) {
  const RdzvDaemon *d = NULL;
  RdzvBytes b = {};
  int at = 0, found = 1;
  for (; at < count && !d; at++) {
    const char *last = words[at] + strlen(words[at]);            // the program ends the word: "PATH=... ; /bin/orted"
    while (last > words[at] && !strchr(" /;", last[-1])) last--;
    for (const RdzvDaemon &x : rdzv_daemons) if (!strcmp(last, x.name)) d = &x;
  }
  *to = RdzvWords{};
  if (!d) return false;
  bool given[16] = {};
  RdzvBytes all = {};
  rdzv_add_text(&b, d->name);
  for (; at + 2 < count; at++) {
    const size_t n = strlen(words[at + 2]) + 1;
    const RdzvParam *q = strcmp(words[at], d->flag) ? NULL : rdzv_param(d, words[at + 1]);
    if (!q || given[q - d->param]) continue;
    given[q - d->param] = true;
    char *value = (char *)malloc(n);
    rdzv_unquote(value, n, words[at + 2]);
    for (const char *word : {d->flag, q->name, (const char *)value}) rdzv_add_text(&b, word);
    free(value);
    found += 3;
    at += 2;
  }
  rdzv_add_number(&all, found);
  rdzv_add(&all, b.p, b.n);
  const bool read = rdzv_words_read(to, all.p, all.n);
  rdzv_bytes_free(&b);
  rdzv_bytes_free(&all);
  return read;
}
