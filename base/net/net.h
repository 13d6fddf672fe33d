// net.h: public header of base/net/: stream sockets and addresses, the program's one way to listen, to connect and to
// know where this host is; and the handshake by which both ends of a connection prove that they know one key.
//
// -1 or false is a failure; errno says why. Sockets are closed on exec and never block.
#pragma once
#include "base/base.h"
#include <net/if.h>
#include <sys/socket.h>

// ---- sockets.h ------------------------------------------------------------------------------------------------------
enum { NET_ADDRESSES_MAX = 16 };
struct NetAddress { sockaddr_storage to; socklen_t bytes; };
struct NetAddresses { NetAddress at[NET_ADDRESSES_MAX]; int count; };
// Where the address itself is; NULL: it has none. *bytes: how long it is.
void *net_bytes(const sockaddr *a, size_t *bytes);
// An address as text, without its port.
void net_address_text(const sockaddr *a, char *to, size_t room);
// Whether two addresses are the same, whatever their ports.
bool net_same_host(const sockaddr *a, const sockaddr *b);
// An address and port as text into an address. False: it is not that.
bool net_address_of(const char *text, int port, NetAddress *a);
// An address of this host. leads: others may come by it, since it is up and neither loopback nor link-local.
struct NetInterface { char name[IF_NAMESIZE]; NetAddress at, mask; bool loopback, leads; };
// All of them, to be freed; NULL and *count 0: there are none, or they cannot be read.
NetInterface *net_interfaces(int *count);
// The interface of this host that has the address, IF_NAMESIZE bytes; "": none has. loopback: it is that one.
void net_interface(const sockaddr *a, char *name, bool *loopback);
// The addresses that lead others to this host, as text with spaces between.
void net_own_addresses(char *to, size_t room);
// The addresses of a host; an empty list with one line in `error` where its name is unknown.
bool net_resolve(const char *host, int port, NetAddresses *to, Error *error);
// The local socket of a name that is in no directory, since it starts with zero: the kernel forgets it with its user.
__attribute__((format(printf, 1, 2))) NetAddress net_local(const char *fmt, ...);
// Whether the process at the other end of a local socket is of this user. *pid: which it is.
bool net_peer_is_ours(int fd, pid_t *pid);
// A connection is given up when the other end has not answered for a minute and a half.
void net_keep_alive(int fd);
// A socket that listens at one address.
int net_listen(const NetAddress *a, int backlog);
// A connection to one address, made within a time. A local one must be of this user.
int net_connect(const NetAddress *a, double limit_ms);
// Its halves: a connection that is being made, which can be written to when that has ended; whether it was made, then.
int net_begin(const NetAddress *a);
bool net_begun(int fd);
// Where a connection comes from; later ones have larger numbers. The one of `count` that makes room for others: the
// oldest of the address that has most, so that whoever makes many closes his own. All local ones are of one address.
struct NetGuest { NetAddress from; uint64_t number; };
int net_crowd(const NetGuest *const *guest, int count);

// ---- prove.h --------------------------------------------------------------------------------------------------------
enum { PROVE_NONCE = 32, PROVE_MAC = 32 };
struct ProveKey { uint8_t bytes[PROVE_MAC]; };
struct ProvePart { const void *p; size_t n; };
// HMAC-SHA-256 of parts one after the other, random bytes, and a comparison that takes as long whatever differs.
void prove_random(void *to, size_t n);
void prove_hmac(uint8_t to[PROVE_MAC], const ProveKey *key, const ProvePart *part, int parts);
bool prove_same(const uint8_t a[PROVE_MAC], const uint8_t b[PROVE_MAC]);
// The handshake of a connection, in which each end proves that it knows the key:
//   client                          server
//   HELLO  nonce C          --->
//                           <---    CHALLENGE  nonce S
//   PROOF  HMAC(key, "client" C S)  --->              or <--- REJECTED
//                           <---    WELCOME  HMAC(key, "server" C S)
enum ProveKind { PROVE_HELLO = 1, PROVE_CHALLENGE, PROVE_PROOF, PROVE_WELCOME, PROVE_REJECTED, PROVE_KINDS };
// What must come: a client's hello or proof, a server's challenge or welcome; nothing: both ends have proved it, or the
// other one has not.
enum ProvePhase { PHASE_HELLO, PHASE_PROOF, PHASE_CHALLENGE, PHASE_WELCOME, PHASE_OPEN, PHASE_BROKEN };
// One end. Zeroed: a server, which may get its key with the hello. rejected: the server says that this end's key is
// another; wrong_key: a server has seen that the client's is.
struct Prove {
  ProvePhase phase;
  ProveKey key;
  uint8_t client[PROVE_NONCE], server[PROVE_NONCE];
  bool rejected, wrong_key;
};
// A message to the other end, of n bytes: PROVE_NONCE, or 0 of PROVE_REJECTED. kind 0: none.
struct ProveMessage { int kind; size_t n; uint8_t bytes[PROVE_NONCE]; };
// Makes p a client. Returns what it says first.
ProveMessage prove_hello(Prove *p, const ProveKey *key);
// Takes a message of the other end. Returns the answer.
ProveMessage prove_take(Prove *p, int kind, const uint8_t *bytes, size_t n);
// Another secret of this connection, for the use that `what` names.
void prove_derive(const Prove *p, const char *what, uint8_t to[PROVE_MAC]);
