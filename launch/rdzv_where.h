// rdzv_where.h: where host 0 of a rendezvous is, who is expected there, and what is sent to it.
//
// If all processes are on one machine (a loopback address, or LOCAL_WORLD_SIZE = WORLD_SIZE), they rendezvous at a
// local socket without a file: the kernel says which user the other process belongs to, so no token is needed. Else one
// is.
#pragma once
#include "rdzv_wire.h"
#include <sys/stat.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/un.h>

enum RdzvKind { RDZV_TCP, RDZV_FILE };
// Where host 0 is, and which process this one is. members: how many processes the rendezvous has; index: this one's
// number; ranks: how many ranks run in its place. local: all processes are on one machine. numbered: the index is RANK
// (env://), not --node_rank. text: where host 0 is, in words.
struct RdzvWhere {
  RdzvKind kind;
  bool local, numbered;
  int64_t index, members, ranks;
  int port;
  char host[256], dir[1024], text[1300];
  ProveKey token;
};
static const char RDZV_TOKEN_VARIABLE[] = "RDZV_TOKEN";

static double rdzv_proof_ms = 10000;             // a connection that has not proved the token by then is closed

// Reads a whole number of at most nine digits; -1: the text is not one.
static inline int64_t rdzv_number(const char *text) {
  const size_t n = text ? strspn(text, "0123456789") : 0;
  return n && n < 10 && !text[n] ? strtoll(text, NULL, 10) : -1;
}

// ---- what is asked --------------------------------------------------------------------------------------------------
// Splits "HOST:PORT" or "[IPv6]:PORT" into its parts. False: the text is neither.
static inline bool rdzv_endpoint(const char *text, char *host, size_t room, int *port) {
  const bool bracket = *text == '[';
  const char *end = bracket ? strchr(text, ']') : strrchr(text, ':'), *colon = end && bracket ? end + 1 : end;
  const char *begin = text + bracket;
  if (!end || end == begin || *colon != ':' || (size_t)(end - begin) >= room) return false;
  snprintf(host, room, "%.*s", (int)(end - begin), begin);
  static const char bytes[] = ":%abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
  if (host[strspn(host, bytes + (bracket ? 0 : 2))]) return false;
  const int64_t number = rdzv_number(colon + 1);
  *port = (int)number;
  return number > 0 && number < 65536;
}
// Whether a host's name says that it is this machine.
static inline bool rdzv_is_loopback(const char *host) {
  in_addr four;
  in6_addr six;
  if (inet_pton(AF_INET, host, &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, host, &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return !strcmp(host, "localhost");
}
// Reads the token from --rdzv_token FILE or from the environment. False with one line in `error`.
static inline bool rdzv_token_read(const RdzvAsk *ask, ProveKey *key, bool *given, Error *error) {
  char text[4098] = "";
  const char *variable = getenv(RDZV_TOKEN_VARIABLE), *file = ask->token_file;
  const bool named = file && file[0];
  *given = named || variable;
  if (named) {
    struct stat st = {};
    const int fd = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    const ssize_t n = fd < 0 || fstat(fd, &st) ? -1 : S_ISREG(st.st_mode) ? read(fd, text, sizeof text - 1) : 0;
    const int fault = errno;
    if (fd >= 0) close(fd);
    REJECT(n < 0, "--rdzv_token %.900s: %s", file, strerror(fault));
    REJECT(!S_ISREG(st.st_mode), "--rdzv_token %.900s is no regular file", file);
    REJECT(st.st_mode & 077, "--rdzv_token %.900s is for others too (mode %03o): chmod 600 it, or give the token by %s",
           file, st.st_mode & 0777, RDZV_TOKEN_VARIABLE);
    REJECT(st.st_uid != geteuid() && st.st_uid, "--rdzv_token %.900s is another user's file", file);
  } else if (variable) snprintf(text, sizeof text, "%s", variable);
  size_t n = strlen(text);
  while (n && strchr(" \t\r\n", text[n - 1])) n--;
  const char *from = named ? "the file of --rdzv_token" : RDZV_TOKEN_VARIABLE;
  REJECT(*given && n < RDZV_TOKEN_LEAST, "%s has %zu characters, a token at least %d: head -c 32 /dev/urandom | base64 "
         "makes one", from, n, RDZV_TOKEN_LEAST);
  REJECT(n > 4096, "%s is longer than 4096 characters", from);
  *key = rdzv_token_key(text, n);
  OPENSSL_cleanse(text, sizeof text);
  return true;
}

static const char *const rdzv_variables[] = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"};
bool rdzv_env_is_set() {
  for (const char *name : rdzv_variables) if (!getenv(name) || !*getenv(name)) return false;
  return rdzv_number(getenv("WORLD_SIZE")) != 1;
}
static inline bool rdzv_env(RdzvWhere *w, Error *error) {
  for (const char *name : rdzv_variables)
    REJECT(!getenv(name) || !*getenv(name), "--rdzv env:// needs %s: MASTER_ADDR and MASTER_PORT of host 0, RANK "
                "and WORLD_SIZE of this process (torchrun --no-python sets them)", name);
  static const struct { const char *name; int64_t lowest, highest; } numbers[] = {
      {"MASTER_PORT", 1, 65535}, {"WORLD_SIZE", 1, 1 << 20}, {"RANK", 0, 1 << 20}, {"LOCAL_WORLD_SIZE", 1, 1 << 20},
      {"LOCAL_RANK", 0, 1 << 20}};
  int64_t value[5];
  for (int i = 0; i < 5; i++) {
    const char *text = getenv(numbers[i].name);
    value[i] = rdzv_number(text);
    REJECT((text || i < 3) && (value[i] < numbers[i].lowest || value[i] > numbers[i].highest), "--rdzv env://: "
           "%s=%.40s is not a whole number from %lld to %lld", numbers[i].name, text ? text : "",
           (long long)numbers[i].lowest, (long long)numbers[i].highest);
  }
  REJECT(value[2] >= value[1], "--rdzv env://: RANK=%lld is not below WORLD_SIZE=%lld", (long long)value[2],
              (long long)value[1]);
  REJECT(value[3] > value[1] || (value[3] > 0 && value[4] >= value[3]), "--rdzv env://: LOCAL_RANK=%lld, "
              "LOCAL_WORLD_SIZE=%lld and WORLD_SIZE=%lld contradict each other", (long long)value[4],
              (long long)value[3], (long long)value[1]);
  snprintf(w->host, sizeof w->host, "%s", getenv("MASTER_ADDR"));
  REJECT(strlen(getenv("MASTER_ADDR")) >= sizeof w->host || strpbrk(w->host, " \t\r\n/"), "--rdzv env://: "
         "MASTER_ADDR=%.100s is no host", w->host);
  w->local = value[3] == value[1] || rdzv_is_loopback(w->host);
  const char *taken = getenv("TORCHELASTIC_USE_AGENT_STORE");    // then torchrun itself listens at MASTER_PORT
  w->port = (int)value[0] + (!w->local && taken && !strcmp(taken, "True"));
  REJECT(w->port > 65535, "--rdzv env://: torchrun listens at MASTER_PORT=65535, and the next port is taken for "
              "this: choose a lower one");
  w->members = value[1], w->index = value[2], w->ranks = 1;
  w->numbered = true;
  return true;
}
static inline bool rdzv_nodes(RdzvWhere *w, const RdzvAsk *ask, Error *error) {
  w->members = ask->nnodes > 0 ? ask->nnodes : 1;
  w->ranks = ask->nproc_per_node > 0 ? ask->nproc_per_node : 1;
  REJECT(w->members > 1 && ask->node_rank < 0, "--rdzv %.300s with --nnodes %lld needs --node_rank: 0 on host 0, then "
         "1 to %lld", ask->rdzv, (long long)w->members, (long long)w->members - 1);
  w->index = ask->node_rank > 0 ? ask->node_rank : 0;
  REJECT(w->index >= w->members, "--node_rank %lld is not below --nnodes %lld", (long long)w->index,
         (long long)w->members);
  return true;
}
// Sets w from the options, or env://'s variables, and checks it. False with one line in `error`.
static inline bool rdzv_where(const RdzvAsk *ask, RdzvWhere *w, Error *error) {
  *w = RdzvWhere{};
  bool token = false;
  const bool nodes = ask->nnodes > 0 || ask->node_rank >= 0 || ask->nproc_per_node > 0;
  if (!strcmp(ask->rdzv, "env://")) {
    REJECT(nodes, "--rdzv env:// takes ranks and hosts from RANK and WORLD_SIZE: leave --nnodes, --node_rank and "
                "--nproc_per_node out, or name host 0 by --rdzv tcp://HOST:PORT");
    if (!rdzv_env(w, error)) return false;
    snprintf(w->text, sizeof w->text, "%s port %d (MASTER_ADDR)", w->host, w->port);
  } else if (!strncmp(ask->rdzv, "tcp://", 6)) {
    REJECT(!rdzv_endpoint(ask->rdzv + 6, w->host, sizeof w->host, &w->port), "--rdzv %.300s is not tcp://HOST:PORT, "
           "such as tcp://10.0.0.1:29400 or tcp://[fd00::1]:29400", ask->rdzv);
    if (!rdzv_nodes(w, ask, error)) return false;
    w->local = rdzv_is_loopback(w->host) || w->members == 1;
    snprintf(w->text, sizeof w->text, "%s port %d", w->host, w->port);
  } else if (!strncmp(ask->rdzv, "file:///", 8)) {
    w->kind = RDZV_FILE;
    REJECT(strlen(ask->rdzv) - 7 >= sizeof w->dir - 64, "--rdzv %.60s...: this path is too long", ask->rdzv);
    snprintf(w->dir, sizeof w->dir, "%s", ask->rdzv + 7);
    if (!rdzv_nodes(w, ask, error)) return false;
    w->local = w->members == 1;
    snprintf(w->text, sizeof w->text, "directory %s", w->dir);
  } else
    REJECT(true, "--rdzv '%.200s' is not auto, none, env://, tcp://HOST:PORT or file:///shared/directory",
                ask->rdzv);
  if (!rdzv_token_read(ask, &w->token, &token, error)) return false;
  REJECT(!token && !w->local && w->kind == RDZV_TCP, "--rdzv %.300s between hosts needs a token that all processes "
         "know, of at least %d characters: --rdzv_token FILE, or %s in the environment; head -c 32 /dev/urandom | "
         "base64 makes one", ask->rdzv, RDZV_TOKEN_LEAST, RDZV_TOKEN_VARIABLE);
  return true;
}

// ---- addresses ------------------------------------------------------------------------------------------------------
static inline bool rdzv_address_is_loopback(const sockaddr *a) {
  char text[INET6_ADDRSTRLEN];
  net_address_text(a, text, sizeof text);
  return rdzv_is_loopback(text);
}
// The local socket at which the processes of one machine rendezvous; its name has the user and the port.
static inline NetAddress rdzv_local_meeting(int port) {
  return net_local("train_gpt_fsdp/rdzv/%d/%d", (int)getuid(), port);
}
// Whether `fault`, the errno of a connection to the local socket `a`, means that another user's process has taken the
// socket's name. If so, `why` gets the error.
static inline bool rdzv_is_squatted(const NetAddress *a, int fault, Error *why) {
  if (fault != EPERM || a->to.ss_family != AF_UNIX) return false;
  const char *name = ((const sockaddr_un *)&a->to)->sun_path + 1;
  fail(why, "another user's process has the name @%.100s on this machine (ss -xlp as root says which): choose another "
       "port", name);
  return true;
}
// ---- listening and connecting ---------------------------------------------------------------------------------------
// Opens host 0's listening socket: the local one, or at the first of host 0's addresses that belongs to this machine
// and is not loopback (a distribution may give the host's own name a loopback address, which no other host can reach).
// Returns it, or -1 with one line in `error`.
static inline int rdzv_listen(const RdzvWhere *w, Error *error) {
  NetAddresses all = {};
  char own[600], said[600] = "";
  if (w->local) {
    all.at[0] = rdzv_local_meeting(w->port);
    const int fd = net_listen(&all.at[0], 1024), fault = errno;
    const int other = fd < 0 && fault == EADDRINUSE ? net_connect(&all.at[0], 1000) : -1;
    if (other >= 0) close(other);
    if (fd < 0 && !(other < 0 && rdzv_is_squatted(&all.at[0], errno, error)))
      fail(error, fault == EADDRINUSE ? "port %d is in use by another rendezvous on this machine: choose another one" :
           "port %d: %s", w->port, strerror(fault));
    return fd;
  }
  if (!net_resolve(w->host, w->port, &all, error)) return -1;
  for (int i = 0; i < all.count; i++) {
    const sockaddr *a = (const sockaddr *)&all.at[i].to;
    char text[INET6_ADDRSTRLEN];
    net_address_text(a, text, sizeof text);
    if (!strstr(said, text)) text_add(said, sizeof said, "%s%s", said[0] ? " " : "", text);
    if (rdzv_address_is_loopback(a)) continue;
    const int fd = net_listen(&all.at[i], 1024);
    if (fd >= 0) return fd;
    if (errno == EADDRNOTAVAIL) continue;
    fail(error, errno == EADDRINUSE ? "port %d of %s is in use: choose another one (ss -ltnp says by whom)" : "port %d "
         "of %s: %s", w->port, text, strerror(errno));
    return -1;
  }
  net_own_addresses(own, sizeof own);
  fail(error, "%s (%.300s) is no address that leads to this host, which has %.300s: start host 0 there, or name its "
       "address", w->host, said, own[0] ? own : "none");
  return -1;
}
// Receives the bytes that have arrived into the link, at most a frame's worth; false: the connection has ended.
static inline bool rdzv_receive(int fd, RdzvLink *k) {
  uint8_t part[16384];
  for (int turn = 0; turn < 64; turn++) {
    const size_t most = k->prove.phase == PHASE_OPEN ? sizeof part : 512;
    const ssize_t n = recv(fd, part, most, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    if (!n) return false;
    rdzv_add(&k->in, part, (size_t)n);
    if ((size_t)n < most || k->prove.phase != PHASE_OPEN) break;
  }
  return true;
}
// Sends as many of the link's bytes as it can without waiting; false: the connection has ended.
static inline bool rdzv_send(int fd, RdzvLink *k) {
  while (k->out.n) {
    const ssize_t n = send(fd, k->out.p, k->out.n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    rdzv_drop(&k->out, (size_t)n);
  }
  return true;
}
// Sends all within limit_ms, whatever the other end does.
static inline void rdzv_flush(int fd, RdzvLink *k, double limit_ms) {
  for (const double begun = now_ms(); rdzv_send(fd, k) && k->out.n;) {
    pollfd p = {fd, POLLOUT, 0};
    const double left = begun + limit_ms - now_ms();
    if (left <= 0 || poll(&p, 1, (int)left + 1) < 0) return;
  }
}
