// crc32c.h: CRC-32C (Castagnoli), the checksum of iSCSI (RFC 3720, B.4), of ext4 and of the crc32 instruction; and its
// algebra, by which several writers who each hold some bytes of a block find the checksum of the whole block.
//
// A block of n bytes is a polynomial D over GF(2) of degree below 8 n. Its remainder R = D x^32 mod P is linear in D:
// disjoint pieces add (XOR), and a piece with k bytes after it counts times x^(8 k). The standard checksum is
// not(R + F x^(8 n)) with F = 32 ones: the initial value that makes leading zeros count.
//
// A remainder is kept reflected, as the instruction keeps it: bit 31 is the coefficient of x^0. All tables are computed
// by the compiler and all functions are pure, so any thread may call them.
#pragma once
#include "tensors.h"

// x^32 + x^28 + x^27 + x^26 + x^25 + x^23 + x^22 + x^20 + x^19 + x^18 + x^14 + x^13 + x^11 + x^10 + x^9 + x^8 + x^6 + 1
static const uint32_t CRC32C_POLYNOMIAL = 0x82f63b78u, CRC32C_ONE = 0x80000000u;

// ---- arithmetic modulo P -------------------------------------------------------------------------------------------
constexpr uint32_t crc32c_times_x(uint32_t a) { return a >> 1 ^ (a & 1 ? CRC32C_POLYNOMIAL : 0); }

constexpr uint32_t crc32c_multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = CRC32C_ONE; bit; bit >>= 1, b = crc32c_times_x(b)) product ^= a & bit ? b : 0;
  return product;
}

// square[k] = x^(8 * 2^k); slice[k][b]: the remainder of byte b with k bytes after it.
struct Crc32cTables { uint32_t square[64], slice[8][256]; };
constexpr Crc32cTables crc32c_make_tables() {
  Crc32cTables t = {};
  t.square[0] = CRC32C_ONE >> 8;
  for (int k = 1; k < 64; k++) t.square[k] = crc32c_multiply(t.square[k - 1], t.square[k - 1]);
  for (uint32_t b = 0; b < 256; b++) {
    uint32_t r = b;
    for (int i = 0; i < 8; i++) r = crc32c_times_x(r);
    t.slice[0][b] = r;
  }
  for (int k = 1; k < 8; k++)
    for (int b = 0; b < 256; b++)
      t.slice[k][b] = t.slice[k - 1][b] >> 8 ^ t.slice[0][t.slice[k - 1][b] & 255];
  return t;
}
static constexpr Crc32cTables crc32c_tables = crc32c_make_tables();

// remainder * x^(8 bytes): the remainder after so many zero bytes.
constexpr uint32_t crc32c_shift(uint32_t remainder, uint64_t bytes) {
  for (int k = 0; bytes; k++, bytes >>= 1)
    if (bytes & 1) remainder = crc32c_multiply(remainder, crc32c_tables.square[k]);
  return remainder;
}

// ---- remainders of bytes -------------------------------------------------------------------------------------------
// Eight bytes at a time by tables ("slicing", Kounavis and Berry 2005). Both processors are little-endian.
static inline uint32_t crc32c_update_table(uint32_t r, const void *data, size_t bytes) {
  const uint8_t *p = (const uint8_t *)data;
  const Crc32cTables &t = crc32c_tables;
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint64_t word;
    memcpy(&word, p, 8);
    word ^= r;
    r = 0;
    for (int k = 0; k < 8; k++) r ^= t.slice[7 - k][word >> 8 * k & 255];
  }
  for (; bytes; p++, bytes--) r = r >> 8 ^ t.slice[0][(r ^ *p) & 255];
  return r;
}

// The instruction gives a result after three cycles and can start every cycle, so three streams run side by side.
enum { CRC32C_STREAM_BYTES = 4096 };
PROCESSOR_CRC32C static inline uint32_t crc32c_update_instruction(uint32_t r, const void *data, size_t bytes) {
  constexpr uint32_t shift_1 = crc32c_shift(CRC32C_ONE, CRC32C_STREAM_BYTES);
  constexpr uint32_t shift_2 = crc32c_shift(CRC32C_ONE, 2 * CRC32C_STREAM_BYTES);
  const uint8_t *p = (const uint8_t *)data;
  for (; bytes >= 3 * CRC32C_STREAM_BYTES; p += 3 * CRC32C_STREAM_BYTES, bytes -= 3 * CRC32C_STREAM_BYTES) {
    uint32_t a = r, b = 0, c = 0;
    uint64_t word[3];
    for (int i = 0; i < CRC32C_STREAM_BYTES; i += 8) {
      memcpy(&word[0], p + i, 8);
      memcpy(&word[1], p + i + CRC32C_STREAM_BYTES, 8);
      memcpy(&word[2], p + i + 2 * CRC32C_STREAM_BYTES, 8);
      a = processor_crc32c(a, word[0]);
      b = processor_crc32c(b, word[1]);
      c = processor_crc32c(c, word[2]);
    }
    r = crc32c_multiply(a, shift_2) ^ crc32c_multiply(b, shift_1) ^ c;
  }
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint64_t word;
    memcpy(&word, p, 8);
    r = processor_crc32c(r, word);
  }
  for (; bytes; p++, bytes--) r = processor_crc32c_byte(r, *p);
  return r;
}

// The remainder of what had remainder r, followed by these bytes.
static inline uint32_t crc32c_update(uint32_t r, const void *data, size_t bytes) {
  return processor_has_crc32c() ? crc32c_update_instruction(r, data, bytes) : crc32c_update_table(r, data, bytes);
}

// ---- checksums -----------------------------------------------------------------------------------------------------
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes) {
  return ~crc32c_update(~crc, data, bytes);
}
uint32_t crc32c_part(const void *data, size_t bytes, uint64_t bytes_behind) {
  return crc32c_shift(crc32c_update(0, data, bytes), bytes_behind);
}
uint32_t crc32c_of_parts(uint32_t xored, uint64_t block_bytes) {
  return ~(xored ^ crc32c_shift(0xffffffffu, block_bytes));
}
