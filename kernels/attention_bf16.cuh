// attention_bf16.cuh: bf16 attention on the CPU in bf16 arithmetic, on AVX-512 BF16 (vdpbf16ps) and AMX tiles. The
// formulas and the interface are in attention.cuh, the parts shared with the fp32 form in attention_fp32.cuh.
// dev/test/test_attention.h has plain loops that give the same bits.
//
// Arithmetic: products of bf16 pairs are summed in fp32. Probabilities (dropped and scaled) and ds are rounded to bf16
// before they are multiplied, as in attention_tensorcore.cuh; everything else is fp32. 1/sqrt(hs) multiplies the fp32
// scores, dq and dk. Subnormals of bf16 count as zero in products.
//
// Everything is cut into blocks of 32 x 32, in the two layouts that tiles take and that suit vdpbf16ps as well:
//   left    [32 rows][16 words]        a word holds two neighbours along the summed index, the even one in the low half
//   right   [16 words][32 columns]
// Blocks that follow each other along the summed index are adjacent in memory, so every matrix multiply is one call
// (attention_blocks). T and hs are padded to 32 with zeros. Blocks of future keys are skipped; the block on the
// diagonal is computed and masked.
//   forward, 32 queries     S = Q K^T        all scores of a row at once: one maximum, no running correction
//                           out = P V        softmax stores P as a left form; V is interleaved by pairs of keys
//   backward, 32 keys       S^T = K Q^T, dP^T = V dO^T       P^T and dS^T come out as left forms, of
//                           dV = P^T dO, dK = dS^T Q         with dO, Q interleaved by pairs of queries
//                           dQ^T = K^T dS^T                  dS^T a second time, as a right form
// So only arrays linear in T are ever transposed, none that is quadratic in T.
//
// Order of sums: within a block multiply, one chain of pairs over the head, over keys or over queries, ascending. In
// forward the chain spans all keys; in backward 256 keys or queries (ATTENTION_GROUP blocks), and the groups' sums are
// added ascending in fp32. The softmax sum: lanes are keys mod 32, ascending, then halves, then vf_sum's tree. Shapes
// alone decide all of this. The two instruction sets may round the sum of a pair differently, so each has its own bits.
//
// Speed against fp32 arithmetic on the same data (B 32, H 8, T 256, hs 64; one Zen 4 core, AVX-512 BF16): forward is
// 1.75 times as fast, backward 1.73; matrix multiplies are 70 % of the time and run at 95 % of the peak of vdpbf16ps.
#pragma once
#include "attention_fp32.cuh"
#include "kernels/cpu/amx.h"

// A block's edge, its words as an operand, its sums as a result. GROUP: blocks of keys (or queries) that backward sums
// in one chain. It is large enough that sums are seldom loaded and stored, and small enough that ds of a group stays in
// L2 (128 KB).
enum { ATTENTION_BLOCK = 32, ATTENTION_WORDS = 512, ATTENTION_SUMS = 1024, ATTENTION_GROUP = 8 };

// ---- matrix multiply ------------------------------------------------------------------------------------------------
// c (32 x 32) = or += the sum over n left blocks a and n right blocks b.
// AMX: 2 x 2 tiles. Sums start at zero and are added afterwards, because loading tiles of sums costs more (gemm.h).
#if AMX_TILES
static void attention_blocks(float *c, const uint32_t *a, const uint32_t *b, int64_t n, bool add) {
  alignas(64) float sums[ATTENTION_SUMS];
  float *to = add ? sums : c;
  amx_zero(0); amx_zero(1); amx_zero(2); amx_zero(3);
  for (int64_t k = 0; k < n; k++, a += ATTENTION_WORDS, b += ATTENTION_WORDS) {
    amx_load(4, a, 64);
    amx_load(6, b, 128);
    amx_dot(0, 4, 6);
    amx_load(7, b + 16, 128);
    amx_dot(1, 4, 7);
    amx_load(5, a + 256, 64);
    amx_dot(2, 5, 6);
    amx_dot(3, 5, 7);
  }
  amx_store_sums(to);
  if (add) for (int i = 0; i < ATTENTION_SUMS; i += VF) vf_store(c + i, vf_add(vf_load(c + i), vf_load(sums + i)));
}
#else
// ROWS rows of c: 2 ROWS of the 32 registers hold sums, enough to hide the latency. b is read again for each run of
// rows.
template <int ROWS>
INLINE void attention_block_rows(float *c, const uint32_t *a, const uint32_t *b, int64_t n, bool add) {
  vf sum[ROWS][2];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++) sum[i][0] = sum[i][1] = vf_zero();
  for (int64_t k = 0; k < n; k++, a += ATTENTION_WORDS)
#pragma GCC unroll 2
    for (int w = 0; w < 16; w++, b += 32) {
      const __m512bh b0 = (__m512bh)_mm512_loadu_ps(b), b1 = (__m512bh)_mm512_loadu_ps(b + 16);
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; i++) {
        const __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i * 16 + w]);
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
      }
    }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++)
    for (int v = 0; v < 2; v++) {
      float *to = c + i * 32 + v * VF;
      vf_store(to, add ? vf_add(vf_load(to), sum[i][v]) : sum[i][v]);
    }
}
static void attention_blocks(float *c, const uint32_t *a, const uint32_t *b, int64_t n, bool add) {
  for (int row = 0; row < 32; row += 8) attention_block_rows<8>(c + row * 32, a + row * 16, b, n, add);
}
#endif

// ---- packing -------------------------------------------------------------------------------------------------------
INLINE __m512i attention_round(vf low, vf high) {  // 32 neighbours in bf16, to nearest even; subnormals become zero
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
// Words (even[i], odd[i]): columns 0 .. 15 and 16 .. 31 of a right form whose pairs are rows even and odd.
INLINE void attention_interleave(uint32_t *to, __m512i even, __m512i odd) {
  alignas(64) static const uint16_t first[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = vi_load(first), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  vi_store(to, _mm512_permutex2var_epi16(even, low, odd));
  vi_store(to + 16, _mm512_permutex2var_epi16(even, high, odd));
}
// Where 32 rows of a head are: the first `rows` rows and their first `columns` columns exist, the rest counts as zero.
struct AttentionSource { const bf16 *from; int64_t ld, rows, columns; };
INLINE __m512i attention_row32(AttentionSource s, int64_t row) {
  if (row >= s.rows) return _mm512_setzero_si512();
  if (s.columns >= 32) return vi_load(s.from + row * s.ld);
  return _mm512_maskz_loadu_epi16((1u << s.columns) - 1, s.from + row * s.ld);
}
// Pairs along the columns: a left form.
static void attention_left(uint32_t *to, AttentionSource s) {
  for (int i = 0; i < 32; i++) vi_store(to + i * 16, attention_row32(s, i));
}
// Pairs along the rows: a right form.
static void attention_right(uint32_t *to, AttentionSource s) {
  for (int i = 0; i < 32; i += 2) attention_interleave(to + i * 16, attention_row32(s, i), attention_row32(s, i + 1));
}
// A left form of x becomes the right form of its transpose, and the other way round.
static void attention_left_to_right(uint32_t *to, const uint32_t *from) {
  for (int half = 0; half < 2; half++) {
    vf r[16];
    for (int i = 0; i < 16; i++) r[i] = vf_load((const float *)from + (half * 16 + i) * 16);
    vf_transpose(r);
    for (int i = 0; i < 16; i++) vf_store((float *)to + i * 32 + half * 16, r[i]);
  }
}
static void attention_right_to_left(uint32_t *to, const uint32_t *from) {
  for (int half = 0; half < 2; half++) {
    vf r[16];
    for (int i = 0; i < 16; i++) r[i] = vf_load((const float *)from + i * 32 + half * 16);
    vf_transpose(r);
    for (int i = 0; i < 16; i++) vf_store((float *)to + (half * 16 + i) * 16, r[i]);
  }
}
// Writes the rows of c, each times its factor, as bf16.
static void attention_put(bf16 *to, int64_t ld, const float *c, const float *factor, int64_t rows, int64_t columns) {
  const __mmask32 there = columns >= 32 ? ~0u : (1u << columns) - 1;
  for (int64_t i = 0; i < attention_min(rows, 32); i++) {
    const vf f = vf_set1(factor[i]);
    _mm512_mask_storeu_epi16(to + i * ld, there, attention_round(vf_mul(vf_load(c + i * 32), f),
                                                                vf_mul(vf_load(c + i * 32 + VF), f)));
  }
}
// attention_put for c^T.
static void attention_put_transposed(bf16 *to, int64_t ld, const float *c, const float *factor, int64_t rows,
                                     int64_t columns) {
  alignas(64) float t[ATTENTION_SUMS];
  for (int i = 0; i < 32; i += 16)
    for (int j = 0; j < 32; j += 16) {
      vf r[16];
      for (int l = 0; l < 16; l++) r[l] = vf_load(c + (i + l) * 32 + j);
      vf_transpose(r);
      for (int l = 0; l < 16; l++) vf_store(t + (j + l) * 32 + i, r[l]);
    }
  attention_put(to, ld, t, factor, rows, columns);
}

// 2^x: n + f = x with |f| <= 1/2, minimax polynomial of degree 4 in f with p(0) = 1, times 2^n, which becomes 0 for
// very negative x. The relative error is 2.9e-6, enough because p is then rounded to 2^-9. x = -inf gives NaN. It takes
// four instructions fewer than the thirteen of attention_exp2: 3 % of the forward pass with vdpbf16ps, more with AMX
// tiles, whose matrix multiplies are cheaper.
INLINE vf attention_exp2_short(vf x) {
  const vf n = vf_round(x), f = vf_sub(x, n);
  vf p = vf_fma(vf_set1(0.009582852945f), f, vf_set1(0.05590642616f));
  p = vf_fma(p, f, vf_set1(0.2402409911f));
  p = vf_fma(p, f, vf_set1(0.6931241751f));
  return _mm512_scalef_ps(vf_fma(p, f, vf_set1(1.0f)), n);
}
// The score of a future key: finite, and 2^ of it is exactly zero.
static const float ATTENTION_NEVER = -0x1p126f;

// ---- scratch -------------------------------------------------------------------------------------------------------
// Blocks of T and of hs. Sizes of the arrays below are in blocks, words or sums.
struct AttentionBlocks { int64_t rows, columns, all; };
static AttentionBlocks attention_count(const AttentionShape *s) {
  const int64_t rows = (s->T + 31) / 32, columns = (s->hs + 31) / 32;
  return AttentionBlocks{rows, columns, rows * columns};
}
static size_t attention_bytes_of(int64_t words) { return ((size_t)words * 4 + 255) / 256 * 256; }

struct AttentionForward16 {
  uint32_t *k, *v, *q, *p;                       // k^T, v: right forms; q, p: left, of one block of queries
  float *s, *out;                                // scores of one block of queries; 32 columns of out
  float max[32], total[32];                      // of its queries; scores in base 2
};
static size_t attention_forward16_bytes(const AttentionShape *s) {
  const AttentionBlocks n = attention_count(s);
  return attention_bytes_of((2 * n.all + n.columns + n.rows) * ATTENTION_WORDS + (n.rows + 1) * ATTENTION_SUMS);
}
static uint32_t *attention_take_words(float **at, int64_t blocks) {
  return (uint32_t *)attention_take(at, blocks * ATTENTION_WORDS);
}
static AttentionForward16 attention_forward16_scratch(void *memory, const AttentionShape *s) {
  float *at = (float *)memory;
  const AttentionBlocks n = attention_count(s);
  AttentionForward16 f;
  f.k = attention_take_words(&at, n.all);
  f.v = attention_take_words(&at, n.all);
  f.q = attention_take_words(&at, n.columns);
  f.p = attention_take_words(&at, n.rows);
  f.s = attention_take(&at, n.rows * ATTENTION_SUMS);
  f.out = attention_take(&at, ATTENTION_SUMS);
  return f;
}

struct AttentionBackward16 {
  uint32_t *k, *v;                               // left forms: [rows][columns]
  uint32_t *kt;                                  // k^T, left: [columns][rows]
  uint32_t *qt, *doutt;                          // q^T, dout^T, right: [rows][columns]
  uint32_t *q, *dout;                            // right: [columns][rows]
  uint32_t *p, *ds, *ds_right;                   // p^T, ds^T of one key block: [queries of the group]; [queries][keys]
  float *dqt, *dk, *dv;                          // sums: dq^T [rows][columns], dk and dv of the keys that are kept
  float *lse, *dot;                              // of each query: -lse in base 2; dot = dout . out
  float *s, *dp, *mask;                          // a block each
  float scale[32], one[32];                      // factors for the rows of dq and dk; of dv
};
// Blocks of keys whose dk and dv exist at once: all where heads share k and v.
static int64_t attention_kept_blocks(const AttentionShape *s) {
  return s->group == 1 ? (int64_t)ATTENTION_GROUP : attention_count(s).rows;
}
static size_t attention_backward16_bytes(const AttentionShape *s) {
  const AttentionBlocks n = attention_count(s);
  const int64_t group = ATTENTION_GROUP, words = 7 * n.all + 2 * group + group * group;
  return attention_bytes_of(words * ATTENTION_WORDS +
                            (n.all + 2 * attention_kept_blocks(s) * n.columns + 3) * ATTENTION_SUMS +
                            2 * n.rows * ATTENTION_BLOCK);
}
static AttentionBackward16 attention_backward16_scratch(void *memory, const AttentionShape *s) {
  float *at = (float *)memory;
  const AttentionBlocks n = attention_count(s);
  AttentionBackward16 w;
  for (int i = 0; i < 32; i++) w.scale[i] = s->scale, w.one[i] = 1.0f;
  uint32_t **const forms[] = {&w.k, &w.v, &w.kt, &w.qt, &w.doutt, &w.q, &w.dout};
  for (uint32_t **form : forms) *form = attention_take_words(&at, n.all);
  w.p = attention_take_words(&at, ATTENTION_GROUP);
  w.ds = attention_take_words(&at, ATTENTION_GROUP);
  w.ds_right = attention_take_words(&at, ATTENTION_GROUP * ATTENTION_GROUP);
  w.dqt = attention_take(&at, n.all * ATTENTION_SUMS);
  w.dk = attention_take(&at, attention_kept_blocks(s) * n.columns * ATTENTION_SUMS);
  w.dv = attention_take(&at, attention_kept_blocks(s) * n.columns * ATTENTION_SUMS);
  w.s = attention_take(&at, ATTENTION_SUMS);
  w.dp = attention_take(&at, ATTENTION_SUMS);
  w.mask = attention_take(&at, ATTENTION_SUMS);
  w.lse = attention_take(&at, n.rows * ATTENTION_BLOCK);
  w.dot = attention_take(&at, n.rows * ATTENTION_BLOCK);
  return w;
}
// Block (i,j) of a head that starts at `from`.
static AttentionSource attention_source(const AttentionShape *s, const bf16 *from, int64_t ld, int64_t i, int64_t j) {
  return AttentionSource{from + i * 32 * ld + j * 32, ld, s->T - i * 32, s->hs - j * 32};
}

// Blocks of rows are packed at their first use. With prefetches spread evenly over a head, this many rows would come
// too late, so they are prefetched during the previous head. More would not fit in L2, where rows a power of two apart
// share few sets.
static int64_t attention_first_rows(const AttentionShape *s) { return s->T / 4 + 32; }
// Units of work until all rows are packed: every block of queries, against at most `keys` blocks of keys.
static int64_t attention_units(const AttentionShape *s, int64_t keys) {
  int64_t n = 0;
  for (int64_t i = 0; i < s->T; i += 32) n += 32 * attention_min(i / 32 + 1, keys);
  return n;
}

// ---- forward -------------------------------------------------------------------------------------------------------
// Lane i of the result is OP over the lanes of r[i], in the tree of vf_sum and vf_max_of, in a third of the steps.
template <vf (*OP)(vf, vf)> INLINE vf attention_over_lanes(const vf r[16]) {
  vf eight[8], four[4], two[2];
  for (int i = 0; i < 8; i++) {
    const vf a = r[i % 4 + i / 4 * 8], b = r[i % 4 + i / 4 * 8 + 4];
    eight[i] = OP(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  for (int i = 0; i < 4; i++)
    four[i] = OP(_mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88),
                 _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xdd));
  for (int i = 0; i < 2; i++) {
    const __m512d a = _mm512_castps_pd(four[2 * i]), b = _mm512_castps_pd(four[2 * i + 1]);
    two[i] = OP(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  return OP(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
}
// The first block of keys to which queries of block i attend.
static int64_t attention_first_block(const AttentionShape *s, int64_t i) { return attention_first_key(s, i * 32) / 32; }
// Masks the scores of the queries of block i with keys of documents before theirs.
static void attention_mask_documents(AttentionForward16 *f, const AttentionShape *s, int64_t i) {
  for (int64_t row = 0; s->starts && row < attention_min(32, s->T - i * 32); row++)
    for (int64_t key = attention_first_block(s, i) * 32; key < s->starts[i * 32 + row]; key++)
      f->s[key / 32 * ATTENTION_SUMS + row * 32 + key % 32] = ATTENTION_NEVER;
}
// Masks the scores of queries row .. row+15 of block i and stores the largest of each, scaled.
static void attention_softmax_max(AttentionForward16 *f, const AttentionShape *s, int64_t i, int64_t row) {
  float *const all = f->s + row * 32, *const own = all + i * ATTENTION_SUMS;
  vf most[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++) {
    vf x[2];
    for (int v = 0; v < 2; v++) {
      float *const at = own + r * 32 + v * VF;
      x[v] = vf_select(vm_first(row + r + 1 - v * VF), vf_load(at), vf_set1(ATTENTION_NEVER));
      vf_store(at, x[v]);
    }
    most[r] = vf_max(x[0], x[1]);
  }
  for (const float *at = all + attention_first_block(s, i) * ATTENTION_SUMS; at < own; at += ATTENTION_SUMS)
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) most[r] = vf_max(most[r], vf_max(vf_load(at + r * 32), vf_load(at + r * 32 + VF)));
  vf_store(f->max + row, vf_mul(attention_over_lanes<vf_max>(most), vf_set1(s->scale * 1.44269504f)));
}
// The scores of ROWS queries of block i, from `row` on, become their (dropped) probabilities times their sum, which is
// returned per lane in `sum`. ROWS is large enough to hide latencies and small enough to keep all sums in registers.
enum { ATTENTION_SOFTMAX_ROWS = 4 };
template <bool DROPPED>
INLINE void attention_softmax_rows(vf *sum, AttentionForward16 *f, const AttentionShape *s, int64_t i, int64_t row,
                                   AttentionDrop d, AttentionAhead<bf16> *ahead) {
  enum { ROWS = ATTENTION_SOFTMAX_ROWS };
  const vf factor = vf_set1(s->scale * 1.44269504f);
  const int64_t element = (d.head * s->T + i * 32 + row) * s->T;
  vf shift[ROWS], total[ROWS][2];
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; r++) {
    shift[r] = vf_set1(-f->max[row + r]);
    total[r][0] = total[r][1] = vf_zero();
  }
  for (int64_t j = attention_first_block(s, i); j <= i; j++) {
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
      const float *const from = f->s + j * ATTENTION_SUMS + (row + r) * 32;
      vf e[2];
      for (int v = 0; v < 2; v++) {
        e[v] = attention_exp2_short(vf_fma(vf_load(from + v * VF), factor, shift[r]));
        total[r][v] = vf_add(total[r][v], e[v]);
        if (DROPPED) e[v] = vf_mul(e[v], attention_drop(d, element + r * s->T + j * 32 + v * VF));
      }
      vi_store(f->p + j * ATTENTION_WORDS + (row + r) * 16, attention_round(e[0], e[1]));
    }
    attention_ahead(ahead, ROWS);
  }
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; r++) sum[r] = vf_add(total[r][0], total[r][1]);
}
template <bool DROPPED>
static void attention_softmax(AttentionForward16 *f, const AttentionShape *s, int64_t i, AttentionDrop d,
                              AttentionAhead<bf16> *ahead) {
  for (int64_t half = 0; half < 32; half += 16) {
    vf sum[16];
    attention_softmax_max(f, s, i, half);
    for (int r = 0; r < 16; r += ATTENTION_SOFTMAX_ROWS)
      attention_softmax_rows<DROPPED>(sum + r, f, s, i, half + r, d, ahead);
    vf_store(f->total + half, attention_over_lanes<vf_add>(sum));
  }
}
// Packs block j of keys for all queries.
static void attention_forward16_pack(AttentionForward16 *f, const AttentionShape *s, const AttentionHead<bf16> *head,
                                     int64_t j) {
  const AttentionBlocks n = attention_count(s);
  for (int64_t c = 0; c < n.columns; c++) {
    alignas(64) uint32_t left[ATTENTION_WORDS];
    attention_left(left, attention_source(s, head->k, s->ld, j, c));
    attention_left_to_right(f->k + (j * n.columns + c) * ATTENTION_WORDS, left);
    attention_right(f->v + (c * n.rows + j) * ATTENTION_WORDS, attention_source(s, head->v, s->ld, j, c));
  }
}
// Block i of queries against all keys up to its last.
static void attention_forward16_block(AttentionForward16 *f, const AttentionShape *s, bf16 *out, float *lse,
                                      const bf16 *q, int64_t i, AttentionDrop d, AttentionAhead<bf16> *ahead) {
  const AttentionBlocks n = attention_count(s);
  const int64_t queries = attention_min(32, s->T - i * 32), begin = attention_first_block(s, i);
  for (int64_t c = 0; c < n.columns; c++)
    attention_left(f->q + c * ATTENTION_WORDS, attention_source(s, q, s->ld, i, c));
  for (int64_t j = begin; j <= i; j++) {
    attention_blocks(f->s + j * ATTENTION_SUMS, f->q, f->k + j * n.columns * ATTENTION_WORDS, n.columns, false);
  }
  attention_mask_documents(f, s, i);
  if (d.drop->p > 0.0f) attention_softmax<true>(f, s, i, d, ahead);
  else attention_softmax<false>(f, s, i, d, ahead);
  for (int64_t row = 0; row < queries; row += VF) {  // the largest term of a total is 1
    const vf total = vf_load(f->total + row);
    vf_store_n(lse + i * 32 + row, vf_log_sum(vf_load(f->max + row), vf_log(total)), queries - row);
    vf_store(f->total + row, vf_div(vf_set1(1.0f), total));
  }
  for (int64_t c = 0; c < n.columns; c++) {
    attention_blocks(f->out, f->p + begin * ATTENTION_WORDS, f->v + (c * n.rows + begin) * ATTENTION_WORDS,
                     i + 1 - begin, false);
    attention_put(out + i * 32 * s->C + c * 32, s->C, f->out, f->total, queries, s->hs - c * 32);
  }
}
static void attention_forward16_item(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, const Dropout *drop,
                                     Tensor starts, int64_t item, int64_t runs) {
  const int64_t len = out.shape[1], C = out.shape[2], heads = out.shape[0] * n_head;
  AttentionShape s = attention_shape(out, qkv, n_head);
  s.starts = attention_starts(starts, item / runs / n_head);
  AttentionForward16 f = attention_forward16_scratch(attention_thread_memory(c, attention_forward16_bytes(&s)), &s);
  const int64_t rows = attention_count(&s).rows;
  const int64_t b = item / runs / n_head, h = item / runs % n_head, run = runs - 1 - item % runs;  // longest first
  const AttentionHead<bf16> head = attention_head<bf16>(&s, qkv, out, qkv, out, lse, item / runs);
  const AttentionHead<bf16> next = attention_head<bf16>(&s, qkv, out, qkv, out, lse, item + 1);
  const bool last = runs > 1 || item + 1 == heads;
  AttentionAhead<bf16> ahead = attention_ahead_of(&s, &head, &next, false, attention_first_rows(&s),
                                                  attention_units(&s, rows), last);
  bf16 *to = (bf16 *)out.data + b * len * C + h * s.hs;
  float *to_lse = (float *)lse.data + (b * n_head + h) * len;
  const int64_t first = run * rows / runs;
  for (int64_t j = 0; j < first; j++) attention_forward16_pack(&f, &s, &head, j);
  for (int64_t i = first; i < (run + 1) * rows / runs; i++) {
    attention_forward16_pack(&f, &s, &head, i);
    attention_forward16_block(&f, &s, to, to_lse, head.q, i, AttentionDrop{drop, drop->sample0 + b, h}, &ahead);
  }
}
static void attention_forward16(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, const Dropout *drop,
                                Tensor starts) {
  const int64_t heads = out.shape[0] * n_head, blocks = (out.shape[1] + 31) / 32;
  const int64_t runs = attention_runs(c, heads, blocks);
  const int64_t chunk = attention_chunk(heads * runs, c->threads);
  int64_t counter = 0, *const taken = &counter;
  parallel(c->threads, [=](int, int) {
    amx_thread_begin();
    thread_tasks(taken, heads * runs, chunk, [=](int64_t item) {
      attention_forward16_item(c, out, lse, qkv, n_head, drop, starts, item, runs);
    });
    amx_thread_end();
  });
}

// ---- backward ------------------------------------------------------------------------------------------------------
// All forms of one head, and D = dout . out. Queries that pad the last block get lse = D = 0 and contribute nothing,
// because their q and dout are zero.
static void attention_backward16_pack(AttentionBackward16 *w, const AttentionShape *s, const AttentionHead<bf16> *head,
                                      int64_t i) {
  const AttentionBlocks n = attention_count(s);
  const int64_t C = s->C, ld = s->ld;
  for (int64_t c = 0; c < n.columns; c++) {
    const int64_t at = (i * n.columns + c) * ATTENTION_WORDS, across = (c * n.rows + i) * ATTENTION_WORDS;
    alignas(64) uint32_t part[ATTENTION_WORDS];
    const AttentionSource q = attention_source(s, head->q, ld, i, c), k = attention_source(s, head->k, ld, i, c);
    const AttentionSource v = attention_source(s, head->v, ld, i, c);
    const AttentionSource dout = attention_source(s, head->dout, C, i, c);
    attention_left(w->k + at, k);
    attention_left(w->v + at, v);
    attention_right(part, k);
    attention_right_to_left(w->kt + across, part);
    attention_left(part, q);
    attention_left_to_right(w->qt + at, part);
    attention_left(part, dout);
    attention_left_to_right(w->doutt + at, part);
    attention_right(w->q + across, q);
    attention_right(w->dout + across, dout);
  }
  for (int64_t row = i * 32; row < i * 32 + 32; row++) {
    vf sum = vf_zero();
    for (int64_t d = 0; row < s->T && d < s->hs; d += VF)
      sum = vf_fma(vf_load_n(head->dout + row * C + d, s->hs - d), vf_load_n(head->out + row * C + d, s->hs - d),
                   sum);
    w->dot[row] = vf_sum(sum);
    w->lse[row] = row < s->T ? head->lse[row] * -1.44269504f : 0.0f;
  }
}
// Block (keys j, queries i) of S^T and dP^T becomes p^T, ds^T and ds^T in right form; D as in attention.cuh.
static void attention_softmax16_backward(AttentionBackward16 *w, const AttentionShape *s, int64_t j, int64_t i,
                                         uint32_t *p_left, uint32_t *ds_left, uint32_t *ds_right, AttentionDrop d,
                                         AttentionAhead<bf16> *ahead) {
  const bool drops = d.drop->p > 0.0f;
  AttentionTile tile = attention_tile(s, j * 32, i * 32);        // whole: what pads it has weight 0
  tile.vectors = 2, tile.rows[0] = tile.rows[1] = 32;
  if (drops) attention_mask(w->mask, &tile, s, d);
  const vf factor = vf_set1(s->scale * 1.44269504f);
  const vf lse[2] = {vf_load(w->lse + i * 32), vf_load(w->lse + i * 32 + VF)};
  const vf dot[2] = {vf_load(w->dot + i * 32), vf_load(w->dot + i * 32 + VF)};
  __m512i even = _mm512_setzero_si512();
  for (int64_t row = 0; row < 32; row++) {
    vf p[2], ds[2];
    for (int v = 0; v < 2; v++) {
      const int64_t at = row * 32 + v * VF;
      p[v] = attention_exp2_short(vf_fma(vf_load(w->s + at), factor, lse[v]));
      if (i == j || tile.cut) p[v] = attention_causal(&tile, v, row, p[v], vf_zero());
      const vf mask = drops ? vf_load(w->mask + at) : vf_set1(1.0f), dp = vf_load(w->dp + at);
      ds[v] = vf_softmax_grad(p[v], drops ? vf_mul(dp, mask) : dp, dot[v]);
      if (drops) p[v] = vf_mul(p[v], mask);
    }
    const __m512i ds_row = attention_round(ds[0], ds[1]);
    vi_store(p_left + row * 16, attention_round(p[0], p[1]));
    vi_store(ds_left + row * 16, ds_row);
    if (row % 2) attention_interleave(ds_right + row / 2 * 32, even, ds_row);
    even = ds_row;
    attention_ahead(ahead, 1);
  }
}
// Keys of block j against the blocks of queries first .. end of one group: p and ds of all, then the group's part of dk
// and dv. The first group's keys run from last to first, so that each of them meets one block that is not packed yet.
static void attention_backward16_keys(AttentionBackward16 *w, const AttentionShape *s, const AttentionHead<bf16> *head,
                                      int64_t j, int64_t first, int64_t end, AttentionDrop d,
                                      AttentionAhead<bf16> *ahead) {
  const AttentionBlocks n = attention_count(s);
  const int64_t across = n.columns * ATTENTION_WORDS, group = j / ATTENTION_GROUP, key = j % ATTENTION_GROUP;
  const int64_t turn = d.head % s->group, kept = s->group == 1 ? key : j;
  const bool add = turn > 0 || first / ATTENTION_GROUP > group;
  for (int64_t i = first; i < end; i++) {
    if (j == attention_min(i, attention_min(ATTENTION_GROUP, n.rows) - 1)) attention_backward16_pack(w, s, head, i);
    attention_blocks(w->s, w->k + j * across, w->qt + i * across, n.columns, false);
    attention_blocks(w->dp, w->v + j * across, w->doutt + i * across, n.columns, false);
    const int64_t at = (i - first) * ATTENTION_WORDS, in_group = i % ATTENTION_GROUP * ATTENTION_GROUP + key;
    attention_softmax16_backward(w, s, j, i, w->p + at, w->ds + at, w->ds_right + in_group * ATTENTION_WORDS, d, ahead);
  }
  for (int64_t c = 0; c < n.columns; c++) {
    const int64_t at = (c * n.rows + first) * ATTENTION_WORDS, to = (kept * n.columns + c) * ATTENTION_SUMS;
    attention_blocks(w->dv + to, w->p, w->dout + at, end - first, add);
    attention_blocks(w->dk + to, w->ds, w->q + at, end - first, add);
  }
}
// Writes dk and dv of key block j from their finished sums over all queries.
static void attention_backward16_put(AttentionBackward16 *w, const AttentionShape *s, const AttentionHead<bf16> *head,
                                     int64_t j) {
  const AttentionBlocks n = attention_count(s);
  const int64_t ld = s->ld, rows = s->T - j * 32, kept = s->group == 1 ? j % ATTENTION_GROUP : j;
  for (int64_t c = 0; c < n.columns; c++) {
    const int64_t from = (kept * n.columns + c) * ATTENTION_SUMS, place = j * 32 * ld + c * 32;
    attention_put(head->dk + place, ld, w->dk + from, w->scale, rows, s->hs - c * 32);
    attention_put(head->dv + place, ld, w->dv + from, w->one, rows, s->hs - c * 32);
  }
}
static void attention_backward16_head(AttentionBackward16 *w, const AttentionShape *s, const AttentionHead<bf16> *head,
                                      AttentionDrop d, AttentionAhead<bf16> *ahead) {
  const AttentionBlocks n = attention_count(s);
  const int64_t ld = s->ld, G = ATTENTION_GROUP;
  for (int64_t keys = 0; keys < n.rows; keys += G) {
    const int64_t keys_end = attention_min(keys + G, n.rows);
    for (int64_t queries = keys; queries < n.rows; queries += G) {
      const int64_t end = attention_min(queries + G, n.rows), seen = attention_first_block(s, queries);
      if (seen >= keys_end) {                    // nor does a later group attend to these keys
        for (int64_t i = queries; keys == 0 && i < n.rows; i++) attention_backward16_pack(w, s, head, i);
        break;
      }
      for (int64_t j = keys_end - 1; j >= keys; j--)
        attention_backward16_keys(w, s, head, j, queries > j ? queries : j, end, d, ahead);
      for (int64_t i = queries; i < end; i++) for (int64_t c = 0; c < n.columns; c++) {
        const uint32_t *kt = w->kt + (c * n.rows + keys) * ATTENTION_WORDS;
        attention_blocks(w->dqt + (i * n.columns + c) * ATTENTION_SUMS, kt, w->ds_right + i % G * G * ATTENTION_WORDS,
                         attention_min(i + 1, keys_end) - keys, keys > seen / G * G);
      }
    }
    for (int64_t j = keys; j < keys_end && d.head % s->group == s->group - 1; j++)
      attention_backward16_put(w, s, head, j);
    for (int64_t i = keys; i < keys_end; i++) for (int64_t c = 0; c < n.columns; c++)
      attention_put_transposed(head->dq + i * 32 * ld + c * 32, ld, w->dqt + (i * n.columns + c) * ATTENTION_SUMS,
                               w->scale, s->T - i * 32, s->hs - c * 32);
  }
}
static void attention_backward16(Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head,
                                 const Dropout *drop, Tensor starts) {
  const AttentionShape all = attention_shape(out, qkv, n_head);
  const int64_t heads = out.shape[0] * n_head, groups = heads / all.group, chunk = attention_chunk(groups, c->threads);
  int64_t counter = 0, *const taken = &counter;
  parallel(c->threads, [=](int, int) {
    amx_thread_begin();
    AttentionBackward16 w =
        attention_backward16_scratch(attention_thread_memory(c, attention_backward16_bytes(&all)), &all);
    thread_tasks(taken, groups, chunk, [&](int64_t item) {
      AttentionShape s = all;
      s.starts = attention_starts(starts, item * s.group / n_head);
      for (int64_t i = item * s.group; i < (item + 1) * s.group; i++) {
        const AttentionHead<bf16> head = attention_head<bf16>(&s, dqkv, dout, qkv, out, lse, i);
        const AttentionHead<bf16> next = attention_head<bf16>(&s, dqkv, dout, qkv, out, lse, i + 1);
        AttentionAhead<bf16> ahead = attention_ahead_of(&s, &head, &next, true, attention_first_rows(&s),
                                                        attention_units(&s, ATTENTION_GROUP), i + 1 == heads);
        ahead.turned = attention_min(ATTENTION_GROUP * 32, s.T);
        const AttentionDrop d = {drop, drop->sample0 + i / n_head, i % n_head};
        attention_backward16_head(&w, &s, &head, d, &ahead);
      }
    });
    amx_thread_end();
  });
}
