// counter_random.h: random numbers that are functions of (seed, stream, counter), permutations without a table, and a
// hash that detects damage.
#pragma once
#include "files.h"

uint64_t data_mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
uint64_t data_key(uint64_t seed, uint64_t stream) {
  return data_mix(data_mix(seed + DATA_GOLDEN) ^ (stream * DATA_GOLDEN + 0x2545f4914f6cdd1du));
}
uint64_t data_below(uint64_t random, uint64_t n) {
  __extension__ typedef unsigned __int128 Wide;
  return (uint64_t)((Wide)random * n >> 64);
}

uint64_t data_permute(uint64_t key, uint64_t i, uint64_t n) {
  enum { ROUNDS = 8 };                           // four suffice for large halves, those of small n need more
  int half = 1;
  while (half < 31 && n > (uint64_t)1 << 2 * half) half++;
  const uint64_t mask = ((uint64_t)1 << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (int round = 0; round < ROUNDS; round++) {
      const uint64_t next = left ^ (data_random(key, right * ROUNDS + (uint64_t)round) >> 32 & mask);
      left = right;
      right = next;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}

// A 64-bit hash that detects damage (not an attacker): four lanes of multiply and rotate, as in Collet's XXH64.
static inline uint64_t data_hash_round(uint64_t lane, uint64_t word) {
  lane += word * 0xc2b2ae3d27d4eb4fu;
  return (lane << 31 | lane >> 33) * 0x9e3779b185ebca87u;
}
uint64_t data_hash(uint64_t seed, const void *data, size_t bytes) {
  const uint8_t *p = (const uint8_t *)data;
  uint64_t lane[4] = {seed + 1, seed ^ 0x27d4eb2f165667c5u, seed + 0x85ebca77c2b2ae63u, ~seed}, words[4];
  size_t left = bytes;
  for (; left >= sizeof words; liveness_progress())
    for (size_t end = left - (left < DATA_PIECE_BYTES ? left : DATA_PIECE_BYTES);
         left >= end + sizeof words; p += sizeof words, left -= sizeof words) {
      memcpy(words, p, sizeof words);
      for (int i = 0; i < 4; i++) lane[i] = data_hash_round(lane[i], words[i]);
    }
  memset(words, 0, sizeof words);
  if (left) memcpy(words, p, left);
  uint64_t h = bytes;
  for (int i = 0; i < 4; i++) h = data_mix(data_hash_round(lane[i], words[i]) + h * 5);
  return h;
}
