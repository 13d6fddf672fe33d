// prove.h: how processes prove to each other that they know one key, which is never sent: HMAC-SHA-256 (RFC 2104) of
// random numbers that both have chosen.
//
//   prove_random   random bytes of the kernel
//   prove_hmac     the HMAC of some parts, one after another
//   prove_same     whether two HMACs are equal, in a time that does not depend on where they differ
#pragma once
#include "watch.h"
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
