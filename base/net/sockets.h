// sockets.h: listening, connecting, and the addresses of this host.
#pragma once
#include "net.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

// ---- addresses ------------------------------------------------------------------------------------------------------
static inline NetAddress net_address(const sockaddr *a, in_port_t port) {
  NetAddress to = {};
  if (a && a->sa_family == AF_INET) to.bytes = sizeof(sockaddr_in);
  if (a && a->sa_family == AF_INET6) to.bytes = sizeof(sockaddr_in6);
  if (!to.bytes) return to;
  memcpy(&to.to, a, to.bytes);
  ((sockaddr_in *)&to.to)->sin_port = port;      // at the same place for IPv6
  return to;
}
static inline in_port_t net_port(const NetAddress *a) { return ((const sockaddr_in *)&a->to)->sin_port; }
void *net_bytes(const sockaddr *a, size_t *bytes) {
  *bytes = a->sa_family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
  if (a->sa_family == AF_INET) return &((sockaddr_in *)a)->sin_addr;
  return a->sa_family == AF_INET6 ? &((sockaddr_in6 *)a)->sin6_addr : NULL;
}
void net_address_text(const sockaddr *a, char *to, size_t room) {
  size_t bytes;
  const void *at = net_bytes(a, &bytes);
  to[0] = 0;
  if (at) inet_ntop(a->sa_family, at, to, (socklen_t)room);
  if (a->sa_family == AF_UNIX) snprintf(to, room, "this machine");
}
bool net_same_host(const sockaddr *a, const sockaddr *b) {
  size_t bytes;
  const void *x = net_bytes(a, &bytes), *y = net_bytes(b, &bytes);
  return a->sa_family == b->sa_family && x && !memcmp(x, y, bytes);
}
bool net_address_of(const char *text, int port, NetAddress *a) {
  sockaddr_in four = {};
  sockaddr_in6 six = {};
  four.sin_family = AF_INET, six.sin6_family = AF_INET6;
  const bool is_four = inet_pton(AF_INET, text, &four.sin_addr) == 1;
  const bool is_six = !is_four && inet_pton(AF_INET6, text, &six.sin6_addr) == 1;
  *a = is_four || is_six ? net_address(is_four ? (sockaddr *)&four : (sockaddr *)&six, htons((uint16_t)port))
                         : NetAddress{};
  return a->bytes != 0;
}
NetInterface *net_interfaces(int *count) {
  ifaddrs *all = NULL;
  NetInterface *list = NULL;
  *count = 0;
  if (getifaddrs(&all)) return NULL;
  for (const ifaddrs *a = all; a; a = a->ifa_next) {
    NetInterface x = {};
    x.at = net_address(a->ifa_addr, 0);
    if (!x.at.bytes) continue;
    x.mask = net_address(a->ifa_netmask, 0);
    snprintf(x.name, sizeof x.name, "%.*s", (int)strcspn(a->ifa_name, ":"), a->ifa_name);
    const bool link_local = x.at.to.ss_family == AF_INET6 &&
                            IN6_IS_ADDR_LINKLOCAL(&((const sockaddr_in6 *)&x.at.to)->sin6_addr);
    x.loopback = (a->ifa_flags & IFF_LOOPBACK) != 0;
    x.leads = a->ifa_flags & IFF_UP && !x.loopback && !link_local;
    list = (NetInterface *)realloc(list, sizeof x * (size_t)(*count + 1));
    if (!list) abort();
    list[(*count)++] = x;
  }
  freeifaddrs(all);
  return list;
}
void net_interface(const sockaddr *a, char *name, bool *loopback) {
  int count;
  NetInterface *all = net_interfaces(&count);
  name[0] = 0;
  *loopback = false;
  for (int i = 0; i < count && !name[0]; i++) {
    if (!net_same_host((const sockaddr *)&all[i].at.to, a)) continue;
    strcpy(name, all[i].name);
    *loopback = all[i].loopback;
  }
  free(all);
}
void net_own_addresses(char *to, size_t room) {
  int count;
  NetInterface *all = net_interfaces(&count);
  to[0] = 0;
  for (int i = 0; i < count; i++) {
    char text[INET6_ADDRSTRLEN];
    net_address_text((const sockaddr *)&all[i].at.to, text, sizeof text);
    if (!all[i].leads || strlen(to) + strlen(text) + 2 > room) continue;
    text_add(to, room, "%s%s", to[0] ? " " : "", text);
  }
  free(all);
}
bool net_resolve(const char *host, int port, NetAddresses *to, Error *error) {
  addrinfo hints = {}, *found = NULL;
  char service[8];
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  to->count = 0;
  snprintf(service, sizeof service, "%d", port);
  const int fault = getaddrinfo(host, service, &hints, &found);
  REJECT(fault, "%.200s is not known here: %s", host, gai_strerror(fault));
  for (addrinfo *a = found; a && to->count < NET_ADDRESSES_MAX; a = a->ai_next) {
    if (a->ai_addrlen > sizeof(sockaddr_storage)) continue;
    memcpy(&to->at[to->count].to, a->ai_addr, a->ai_addrlen);
    to->at[to->count++].bytes = (socklen_t)a->ai_addrlen;
  }
  freeaddrinfo(found);
  return true;
}
NetAddress net_local(const char *fmt, ...) {
  NetAddress a = {};
  sockaddr_un *u = (sockaddr_un *)&a.to;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(u->sun_path + 1, sizeof u->sun_path - 1, fmt, ap);
  va_end(ap);
  u->sun_family = AF_UNIX;
  a.bytes = (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + strlen(u->sun_path + 1));
  return a;
}

// ---- listening and connecting ---------------------------------------------------------------------------------------
static inline int net_close(int fd, int fault) {
  close(fd);
  errno = fault;
  return -1;
}
bool net_peer_is_ours(int fd, pid_t *pid) {
  ucred peer = {};
  socklen_t n = sizeof peer;
  const bool known = !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n);
  if (pid) *pid = peer.pid;
  return known && peer.uid == geteuid();
}
void net_keep_alive(int fd) {
  const struct { int level, name, value; } set[] = {
      {SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 30}, {IPPROTO_TCP, TCP_KEEPINTVL, 10},
      {IPPROTO_TCP, TCP_KEEPCNT, 6}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 90000}, {IPPROTO_TCP, TCP_NODELAY, 1}};
  for (const auto &s : set) setsockopt(fd, s.level, s.name, &s.value, sizeof s.value);
}
static inline int net_socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }
int net_listen(const NetAddress *a, int backlog) {
  const int fd = net_socket(a->to.ss_family), one = 1;
  if (fd < 0) return -1;
  if (a->to.ss_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (a->to.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
  return bind(fd, (const sockaddr *)&a->to, a->bytes) || listen(fd, backlog) ? net_close(fd, errno) : fd;
}
int net_begin(const NetAddress *a) {
  const int fd = net_socket(a->to.ss_family);
  return fd >= 0 && connect(fd, (const sockaddr *)&a->to, a->bytes) && errno != EINPROGRESS ? net_close(fd, errno) : fd;
}
bool net_begun(int fd) {
  int fault = 0;
  socklen_t n = sizeof fault;
  if (!getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &n)) errno = fault;
  else fault = errno;
  return !fault;
}
int net_connect(const NetAddress *a, double limit_ms) {
  int fd = net_begin(a);
  for (const double begun = now_ms(); fd < 0 && errno == EAGAIN && now_ms() - begun < limit_ms; fd = net_begin(a))
    usleep(10000);                               // as many wait to be let in as the kernel takes
  pollfd p = {fd, POLLOUT, 0};
  if (fd < 0) return -1;
  if (poll(&p, 1, (int)limit_ms) != 1) return net_close(fd, ETIMEDOUT);
  if (!net_begun(fd)) return net_close(fd, errno);
  if (a->to.ss_family == AF_UNIX) return net_peer_is_ours(fd, NULL) ? fd : net_close(fd, EPERM);
  net_keep_alive(fd);
  return fd;
}
int net_crowd(const NetGuest *const *guest, int count) {
  bool *seen = (bool *)calloc((size_t)count + 1, sizeof(bool));
  int pick = 0, most = 0;
  for (int i = 0; i < count; i++) {
    const sockaddr *from = (const sockaddr *)&guest[i]->from.to;
    int has = 0, oldest = i;
    for (int j = i; j < count && !seen[i]; j++) {
      const sockaddr *other = (const sockaddr *)&guest[j]->from.to;
      const bool local = from->sa_family == AF_UNIX && other->sa_family == AF_UNIX;
      if (i != j && !local && !net_same_host(from, other)) continue;
      if (guest[j]->number < guest[oldest]->number) oldest = j;
      has++;
      seen[j] = j > i;
    }
    if (has < most || (has == most && guest[oldest]->number > guest[pick]->number)) continue;
    most = has, pick = oldest;
  }
  free(seen);
  return pick;
}
