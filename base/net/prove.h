// prove.h: how processes prove to each other that they know one key, which is never sent: HMAC-SHA-256 (RFC 2104) of
// random numbers that both have chosen.
//
// Whoever listens learns nothing but HMACs of random nonces. A server proves nothing to a client that has not proved
// itself: a stranger gets nothing from which a weak key could be guessed.
#pragma once
#include "net.h"
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

void prove_random(void *to, size_t n) {
  if (getrandom(to, n, 0) != (ssize_t)n) abort();                // up to 256 bytes it never gives fewer
}
void prove_hmac(uint8_t to[PROVE_MAC], const ProveKey *key, const ProvePart *part, int parts) {
  size_t bytes = 0;
  unsigned n = 0;
  for (int i = 0; i < parts; i++) bytes += part[i].n;
  uint8_t *all = (uint8_t *)malloc(bytes + 1), *at = all;
  if (!all) abort();
  for (int i = 0; i < parts; at += part[i++].n) if (part[i].n) memcpy(at, part[i].p, part[i].n);
  if (!HMAC(EVP_sha256(), key->bytes, PROVE_MAC, all, bytes, to, &n) || n != PROVE_MAC) abort();
  free(all);
}
bool prove_same(const uint8_t a[PROVE_MAC], const uint8_t b[PROVE_MAC]) {
  return !CRYPTO_memcmp(a, b, PROVE_MAC);
}

// ---- the handshake --------------------------------------------------------------------------------------------------
void prove_derive(const Prove *p, const char *what, uint8_t to[PROVE_MAC]) {
  const ProvePart parts[] = {{what, strlen(what) + 1}, {p->client, PROVE_NONCE}, {p->server, PROVE_NONCE}};
  prove_hmac(to, &p->key, parts, 3);
}
ProveMessage prove_hello(Prove *p, const ProveKey *key) {
  ProveMessage hello = {PROVE_HELLO, PROVE_NONCE, {}};
  *p = Prove{};
  p->key = *key;
  p->phase = PHASE_CHALLENGE;
  prove_random(p->client, PROVE_NONCE);
  memcpy(hello.bytes, p->client, PROVE_NONCE);
  return hello;
}
ProveMessage prove_take(Prove *p, int kind, const uint8_t *bytes, size_t n) {
  static const int expected[] = {PROVE_HELLO, PROVE_PROOF, PROVE_CHALLENGE, PROVE_WELCOME};      // by phase
  const ProvePhase was = p->phase;
  ProveMessage answer = {0, PROVE_NONCE, {}};
  p->phase = PHASE_BROKEN;
  p->rejected = was == PHASE_WELCOME && kind == PROVE_REJECTED;
  if (was >= PHASE_OPEN || kind != expected[was] || n != PROVE_NONCE) return answer;
  if (was == PHASE_HELLO) {
    memcpy(p->client, bytes, PROVE_NONCE);
    prove_random(p->server, PROVE_NONCE);
    memcpy(answer.bytes, p->server, PROVE_NONCE);
    answer.kind = PROVE_CHALLENGE;
    p->phase = PHASE_PROOF;
  } else if (was == PHASE_CHALLENGE) {
    memcpy(p->server, bytes, PROVE_NONCE);
    prove_derive(p, "client", answer.bytes);
    answer.kind = PROVE_PROOF;
    p->phase = PHASE_WELCOME;
  } else {
    uint8_t mac[PROVE_MAC];
    prove_derive(p, was == PHASE_PROOF ? "client" : "server", mac);
    const bool same = prove_same(mac, bytes);
    if (same) p->phase = PHASE_OPEN;
    p->wrong_key = was == PHASE_PROOF && !same;
    if (was == PHASE_PROOF) answer.kind = same ? PROVE_WELCOME : PROVE_REJECTED;
    if (same) prove_derive(p, "server", answer.bytes);
    else answer.n = 0;
  }
  return answer;
}
