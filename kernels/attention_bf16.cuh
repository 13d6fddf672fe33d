// attention_bf16.cuh: attention of bf16 on the CPU in bf16 arithmetic, on AVX-512 BF16 (vdpbf16ps) and AMX tiles. The
// formula, the interface and what both forms share stand in attention.cuh, which includes this. Plain loops with the
// same bits stand in dev/test/test_attention.h.
//
// Arithmetic: products of bf16 pairs are summed in fp32; probabilities (dropped and scaled) and ds are rounded to bf16
// before they are multiplied, as attention_tensorcore.cuh does; everything else is fp32. 1/sqrt(hs) multiplies the fp32
// scores, dq and dk. Subnormals of bf16 count as zero in products.
//
// Everything is cut into blocks of 32 x 32, in the two forms that tiles take and that suit vdpbf16ps as well:
//   left    [32 rows][16 words]        a word holds two neighbours along the summed index: its even one is the low half
//   right   [16 words][32 columns]
// Blocks that follow each other along the summed index lie side by side in memory, so every product is one call
// (attention_blocks). T and hs are padded to 32 with zeros; of keys in the future only those of a query's own block are
// computed, and masked.
//   forward, 32 queries     S = Q K^T        all scores of a row at once: one maximum, no running correction
//                           out = P V        P is stored by the softmax as a left form, V interleaved by pairs of keys
//   backward, 32 keys       S^T = K Q^T, dP^T = V dO^T       P^T and dS^T come out as left forms, of
//                           dV = P^T dO, dK = dS^T Q         with dO, Q interleaved by pairs of queries
//                           dQ^T = K^T dS^T                  dS^T once more, as a right form
// So what is quadratic in T is never transposed, only what is linear.
//
// Order of sums: within a block product one chain of pairs, over the head, over keys or over queries ascending; forward
// it spans all keys, backward 256 keys or queries (ATTENTION_GROUP blocks), whose sums are added ascending in fp32. The
// softmax sum: lanes are keys mod 32, ascending, then halves, then vf_sum's tree. Shapes alone decide all of it. The
// two instruction sets may round the sum of a pair differently, so bits are those of the instruction set.
//
// What it gains over fp32 arithmetic on the same data (B 32, H 8, T 256, hs 64; one Zen 4 core, AVX-512 BF16): forward
// 1.75 times as fast, backward 1.73; products are 70 % of the time and run at 95 % of the peak of vdpbf16ps.
#pragma once
#include "amx.h"

// A block's edge, its words as an operand, its sums as a result. GROUP: blocks of keys (or queries) that backward sums
// in one chain: enough that sums are seldom loaded and stored, so few that ds of a group stays in L2 (128 KB).
enum { ATTENTION_BLOCK = 32, ATTENTION_WORDS = 512, ATTENTION_SUMS = 1024, ATTENTION_GROUP = 8 };

// ---- the product ---------------------------------------------------------------------------------------------------
// c (32 x 32) = or += the sum over n left blocks a and n right blocks b.
// AMX: 2 x 2 tiles; sums start at zero and are added afterwards, as loading tiles of sums costs more (gemm.h).
#if defined(__AMX_BF16__) || AMX_EMULATED
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
// ROWS rows of c: 2 ROWS of 32 registers hold sums, enough to hide the latency; b is read again for each run of rows.
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
// Where 32 rows of a head lie: the first `rows` and, of each, `columns` are there; the others count as zero.
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
    attention_transpose(r);
    for (int i = 0; i < 16; i++) vf_store((float *)to + i * 32 + half * 16, r[i]);
  }
}
static void attention_right_to_left(uint32_t *to, const uint32_t *from) {
  for (int half = 0; half < 2; half++) {
    vf r[16];
    for (int i = 0; i < 16; i++) r[i] = vf_load((const float *)from + i * 32 + half * 16);
    attention_transpose(r);
    for (int i = 0; i < 16; i++) vf_store((float *)to + (half * 16 + i) * 16, r[i]);
  }
}
// Rows of c, each times its factor, as bf16 where they belong.
static void attention_put(bf16 *to, int64_t ld, const float *c, const float *factor, int64_t rows, int64_t columns) {
  const __mmask32 there = columns >= 32 ? ~0u : (1u << columns) - 1;
  for (int64_t i = 0; i < attention_min(rows, 32); i++) {
    const vf f = vf_set1(factor[i]);
    _mm512_mask_storeu_epi16(to + i * ld, there, attention_round(vf_mul(vf_load(c + i * 32), f),
                                                                vf_mul(vf_load(c + i * 32 + VF), f)));
  }
}
// The same of c^T.
static void attention_put_transposed(bf16 *to, int64_t ld, const float *c, const float *factor, int64_t rows,
                                     int64_t columns) {
  alignas(64) float t[ATTENTION_SUMS];
  for (int i = 0; i < 32; i += 16)
    for (int j = 0; j < 32; j += 16) {
      vf r[16];
      for (int l = 0; l < 16; l++) r[l] = vf_load(c + (i + l) * 32 + j);
      attention_transpose(r);
      for (int l = 0; l < 16; l++) vf_store(t + (j + l) * 32 + i, r[l]);
    }
  attention_put(to, ld, t, factor, rows, columns);
}

// 2^x: n + f = x with |f| <= 1/2, minimax polynomial of degree 4 in f with p(0) = 1 (relative error 2.9e-6: p is about
// to be rounded to 2^-9), times 2^n, which becomes 0 far below. Of x = -inf it makes NaN. Four instructions of thirteen
// less than attention_exp2: 3 % of the forward pass where products are vdpbf16ps, more where tiles make them cheaper.
INLINE vf attention_exp2_short(vf x) {
  const vf n = vf_round(x), f = vf_sub(x, n);
  vf p = vf_fma(vf_set1(0.009582852945f), f, vf_set1(0.05590642616f));
  p = vf_fma(p, f, vf_set1(0.2402409911f));
  p = vf_fma(p, f, vf_set1(0.6931241751f));
  return _mm512_scalef_ps(vf_fma(p, f, vf_set1(1.0f)), n);
}
// The score of a key in the future: 2^ of it is exactly zero, and it is finite.
static const float ATTENTION_NEVER = -0x1p126f;

// ---- scratch -------------------------------------------------------------------------------------------------------
// Blocks of T and of hs. Each array below is a number of blocks, of words or of sums.
struct AttentionBlocks { int64_t rows, columns, all; };
static AttentionBlocks attention_count(const AttentionShape *s) {
  const int64_t rows = (s->T + 31) / 32, columns = (s->hs + 31) / 32;
  return AttentionBlocks{rows, columns, rows * columns};
}
static size_t attention_bytes_of(int64_t words) { return ((size_t)words * 4 + 255) / 256 * 256; }

struct AttentionForward16 {
  uint32_t *k, *v, *q, *p;                       // k^T, v: right forms; q, p: left, of one block of queries
  float *s, *out;                                // scores of one block of queries; out of 32 columns
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
  float *dqt, *dk, *dv;                          // sums: dq^T [rows][columns], dk and dv of a group of keys
  float *lse, *dot;                              // of each query: -lse in base 2; dot = dout . out
  float *s, *dp, *mask;                          // a block each
};
static size_t attention_backward16_bytes(const AttentionShape *s) {
  const AttentionBlocks n = attention_count(s);
  const int64_t group = ATTENTION_GROUP, words = 7 * n.all + 2 * group + group * group;
  return attention_bytes_of(words * ATTENTION_WORDS + (n.all + 2 * group * n.columns + 3) * ATTENTION_SUMS +
                            2 * n.rows * ATTENTION_BLOCK);
}
static AttentionBackward16 attention_backward16_scratch(void *memory, const AttentionShape *s) {
  float *at = (float *)memory;
  const AttentionBlocks n = attention_count(s);
  AttentionBackward16 w;
  uint32_t **const forms[] = {&w.k, &w.v, &w.kt, &w.qt, &w.doutt, &w.q, &w.dout};
  for (uint32_t **form : forms) *form = attention_take_words(&at, n.all);
  w.p = attention_take_words(&at, ATTENTION_GROUP);
  w.ds = attention_take_words(&at, ATTENTION_GROUP);
  w.ds_right = attention_take_words(&at, ATTENTION_GROUP * ATTENTION_GROUP);
  w.dqt = attention_take(&at, n.all * ATTENTION_SUMS);
  w.dk = attention_take(&at, ATTENTION_GROUP * n.columns * ATTENTION_SUMS);
  w.dv = attention_take(&at, ATTENTION_GROUP * n.columns * ATTENTION_SUMS);
  w.s = attention_take(&at, ATTENTION_SUMS);
  w.dp = attention_take(&at, ATTENTION_SUMS);
  w.mask = attention_take(&at, ATTENTION_SUMS);
  w.lse = attention_take(&at, n.rows * ATTENTION_BLOCK);
  w.dot = attention_take(&at, n.rows * ATTENTION_BLOCK);
  return w;
}
// Block (i,j) of a head that begins at `from`.
static AttentionSource attention_source(const AttentionShape *s, const bf16 *from, int64_t ld, int64_t i, int64_t j) {
  return AttentionSource{from + i * 32 * ld + j * 32, ld, s->T - i * 32, s->hs - j * 32};
}

// ---- forward -------------------------------------------------------------------------------------------------------
// The scores of query `row` of block i become its (dropped) probabilities times their sum, which goes to total.
static void attention_softmax_row(AttentionForward16 *f, const AttentionShape *s, int64_t i, int64_t row,
                                  AttentionDrop d) {
  float *from = f->s + row * 32, *own = from + i * ATTENTION_SUMS;
  for (int v = 0; v < 2; v++)
    vf_store(own + v * VF, vf_select(vm_first(row + 1 - v * VF), vf_load(own + v * VF), vf_set1(ATTENTION_NEVER)));
  vf most = vf_max(vf_load(from), vf_load(from + VF));
  for (int64_t j = 1; j <= i; j++)
    most = vf_max(most, vf_max(vf_load(from + j * ATTENTION_SUMS), vf_load(from + j * ATTENTION_SUMS + VF)));
  const float scale = s->scale * 1.44269504f, max = vf_max_of(most) * scale;
  const vf factor = vf_set1(scale), shift = vf_set1(-max);
  const int64_t element = (d.head * s->T + i * 32 + row) * s->T;
  const bool dropped = d.drop->p > 0.0f;
  vf total[2] = {vf_zero(), vf_zero()};
  for (int64_t j = 0; j <= i; j++) {
    vf e[2];
    for (int v = 0; v < 2; v++) {
      e[v] = attention_exp2_short(vf_fma(vf_load(from + j * ATTENTION_SUMS + v * VF), factor, shift));
      total[v] = vf_add(total[v], e[v]);
      if (dropped) e[v] = vf_mul(e[v], dropout_scale16(d.drop, d.sample, element + j * 32 + v * VF));
    }
    vi_store(f->p + j * ATTENTION_WORDS + row * 16, attention_round(e[0], e[1]));
  }
  f->max[row] = max;
  f->total[row] = vf_sum(vf_add(total[0], total[1]));
}
// Block i of queries against all keys up to its last.
static void attention_forward16_block(AttentionForward16 *f, const AttentionShape *s, bf16 *out, float *lse,
                                      const bf16 *q, int64_t i, AttentionDrop d, AttentionAhead<bf16> *ahead) {
  const AttentionBlocks n = attention_count(s);
  const int64_t queries = attention_min(32, s->T - i * 32);
  for (int64_t c = 0; c < n.columns; c++)
    attention_left(f->q + c * ATTENTION_WORDS, attention_source(s, q, 3 * s->C, i, c));
  for (int64_t j = 0; j <= i; j++) {
    attention_blocks(f->s + j * ATTENTION_SUMS, f->q, f->k + j * n.columns * ATTENTION_WORDS, n.columns, false);
    attention_ahead(ahead, ATTENTION_BLOCK);
  }
  for (int64_t row = 0; row < 32; row++) attention_softmax_row(f, s, i, row, d);
  for (int64_t row = 0; row < queries; row += VF) {  // the largest term of a total is 1
    const vf total = vf_load(f->total + row);
    vf_store_n(lse + i * 32 + row, vf_fma(vf_load(f->max + row), vf_set1(0.693147181f), vf_log(total)), queries - row);
    vf_store(f->total + row, vf_div(vf_set1(1.0f), total));
  }
  for (int64_t c = 0; c < n.columns; c++) {
    attention_blocks(f->out, f->p, f->v + c * n.rows * ATTENTION_WORDS, i + 1, false);
    attention_put(out + i * 32 * s->C + c * 32, s->C, f->out, f->total, queries, s->hs - c * 32);
  }
}
// What the blocks of queries before `end` need of K and V.
static void attention_forward16_pack(AttentionForward16 *f, const AttentionShape *s, const bf16 *q, int64_t end) {
  const AttentionBlocks n = attention_count(s);
  for (int64_t j = 0; j < end; j++)
    for (int64_t c = 0; c < n.columns; c++) {
      alignas(64) uint32_t left[ATTENTION_WORDS];
      attention_left(left, attention_source(s, q + s->C, 3 * s->C, j, c));
      attention_left_to_right(f->k + (j * n.columns + c) * ATTENTION_WORDS, left);
      attention_right(f->v + (c * n.rows + j) * ATTENTION_WORDS, attention_source(s, q + 2 * s->C, 3 * s->C, j, c));
    }
}
static void attention_forward16_item(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, const Dropout *drop,
                                     int64_t item, int64_t runs) {
  const int64_t len = out.shape[1], C = out.shape[2], heads = out.shape[0] * n_head;
  const AttentionShape s = attention_shape(len, C, n_head);
  AttentionForward16 f = attention_forward16_scratch(attention_thread_memory(c, attention_forward16_bytes(&s)), &s);
  const int64_t rows = attention_count(&s).rows;
  const int64_t b = item / runs / n_head, h = item / runs % n_head, run = runs - 1 - item % runs;  // longest first
  const bf16 *q = (const bf16 *)qkv.data + b * len * 3 * C + h * s.hs;
  const bf16 *next = (const bf16 *)qkv.data + (item + 1) / n_head * len * 3 * C + (item + 1) % n_head * s.hs;
  AttentionAhead<bf16> ahead = {{next, next + C, next + 2 * C}, {3 * C, 3 * C, 3 * C}, 3, 0, len, s.hs};
  if (runs > 1 || item + 1 == heads) ahead.end = 0;
  bf16 *to = (bf16 *)out.data + b * len * C + h * s.hs;
  float *to_lse = (float *)lse.data + (b * n_head + h) * len;
  attention_forward16_pack(&f, &s, q, (run + 1) * rows / runs);
  for (int64_t i = run * rows / runs; i < (run + 1) * rows / runs; i++)
    attention_forward16_block(&f, &s, to, to_lse, q, i, AttentionDrop{drop, drop->sample0 + b, h}, &ahead);
}
static void attention_forward16(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, const Dropout *drop) {
  const int64_t heads = out.shape[0] * n_head, blocks = (out.shape[1] + 31) / 32;
  const int64_t runs = attention_runs(c, heads, blocks);
#pragma omp parallel num_threads(c->threads)
  {
    amx_thread_begin();
#pragma omp for schedule(dynamic, attention_chunk(heads * runs, c->threads)) nowait
    for (int64_t item = 0; item < heads * runs; item++)
      attention_forward16_item(c, out, lse, qkv, n_head, drop, item, runs);
    amx_thread_end();
  }
}

// ---- backward ------------------------------------------------------------------------------------------------------
// All forms of one head, and D = dout . out. Queries that pad the last block get lse = D = 0 and count for nothing,
// because their q and dout are zero.
static void attention_backward16_pack(AttentionBackward16 *w, const AttentionShape *s,
                                      const AttentionHead<bf16> *head) {
  const AttentionBlocks n = attention_count(s);
  const int64_t C = s->C, ld = 3 * C;
  for (int64_t i = 0; i < n.rows; i++) {
    for (int64_t c = 0; c < n.columns; c++) {
      const int64_t at = (i * n.columns + c) * ATTENTION_WORDS, across = (c * n.rows + i) * ATTENTION_WORDS;
      alignas(64) uint32_t part[ATTENTION_WORDS];
      const AttentionSource q = attention_source(s, head->q, ld, i, c), k = attention_source(s, head->q + C, ld, i, c);
      const AttentionSource v = attention_source(s, head->q + 2 * C, ld, i, c);
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
}
// Block (keys j, queries i) of S^T and dP^T becomes p^T, ds^T and ds^T in right form; D as attention.cuh has it.
static void attention_softmax16_backward(AttentionBackward16 *w, const AttentionShape *s, int64_t j, int64_t i,
                                         uint32_t *p_left, uint32_t *ds_left, uint32_t *ds_right, AttentionDrop d) {
  const bool dropped = d.drop->p > 0.0f;
  const AttentionTile tile = {j * 32, i * 32, 2, {32, 32}};
  if (dropped) attention_mask(w->mask, &tile, s, d);
  const vf factor = vf_set1(s->scale * 1.44269504f);
  const vf lse[2] = {vf_load(w->lse + i * 32), vf_load(w->lse + i * 32 + VF)};
  const vf dot[2] = {vf_load(w->dot + i * 32), vf_load(w->dot + i * 32 + VF)};
  __m512i even = _mm512_setzero_si512();
  for (int64_t row = 0; row < 32; row++) {
    vf p[2], ds[2];
    for (int v = 0; v < 2; v++) {
      const int64_t at = row * 32 + v * VF;
      p[v] = attention_exp2_short(vf_fma(vf_load(w->s + at), factor, lse[v]));
      if (i == j) p[v] = vf_select(vm_first(row - v * VF), vf_zero(), p[v]);
      const vf mask = dropped ? vf_load(w->mask + at) : vf_set1(1.0f), dp = vf_load(w->dp + at);
      ds[v] = vf_mul(p[v], vf_sub(dropped ? vf_mul(dp, mask) : dp, dot[v]));
      if (dropped) p[v] = vf_mul(p[v], mask);
    }
    const __m512i ds_row = attention_round(ds[0], ds[1]);
    vi_store(p_left + row * 16, attention_round(p[0], p[1]));
    vi_store(ds_left + row * 16, ds_row);
    if (row % 2) attention_interleave(ds_right + row / 2 * 32, even, ds_row);
    even = ds_row;
  }
}
// Keys of block j against the blocks of queries first .. end of one group: p and ds of all, then their share of dk, dv.
static void attention_backward16_keys(AttentionBackward16 *w, const AttentionShape *s, int64_t j, int64_t first,
                                      int64_t end, AttentionDrop d, AttentionAhead<bf16> *ahead) {
  const AttentionBlocks n = attention_count(s);
  const int64_t across = n.columns * ATTENTION_WORDS, group = j / ATTENTION_GROUP, key = j % ATTENTION_GROUP;
  const bool add = first / ATTENTION_GROUP > group;
  for (int64_t i = first; i < end; i++) {
    attention_blocks(w->s, w->k + j * across, w->qt + i * across, n.columns, false);
    attention_blocks(w->dp, w->v + j * across, w->doutt + i * across, n.columns, false);
    attention_ahead(ahead, ATTENTION_BLOCK);
    const int64_t at = (i - first) * ATTENTION_WORDS, in_group = i % ATTENTION_GROUP * ATTENTION_GROUP + key;
    attention_softmax16_backward(w, s, j, i, w->p + at, w->ds + at, w->ds_right + in_group * ATTENTION_WORDS, d);
  }
  for (int64_t c = 0; c < n.columns; c++) {
    const int64_t at = (c * n.rows + first) * ATTENTION_WORDS, to = (key * n.columns + c) * ATTENTION_SUMS;
    attention_blocks(w->dv + to, w->p, w->dout + at, end - first, add);
    attention_blocks(w->dk + to, w->ds, w->q + at, end - first, add);
  }
}
static void attention_backward16_head(AttentionBackward16 *w, const AttentionShape *s, const AttentionHead<bf16> *head,
                                      AttentionDrop d, AttentionAhead<bf16> *ahead) {
  const AttentionBlocks n = attention_count(s);
  const int64_t ld = 3 * s->C, G = ATTENTION_GROUP;
  alignas(64) float scale[32], one[32];
  for (int i = 0; i < 32; i++) scale[i] = s->scale, one[i] = 1.0f;
  attention_backward16_pack(w, s, head);
  for (int64_t keys = 0; keys < n.rows; keys += G) {
    const int64_t keys_end = attention_min(keys + G, n.rows);
    for (int64_t queries = keys; queries < n.rows; queries += G) {
      const int64_t end = attention_min(queries + G, n.rows);
      for (int64_t j = keys; j < keys_end; j++)
        attention_backward16_keys(w, s, j, queries > j ? queries : j, end, d, ahead);
      for (int64_t i = queries; i < end; i++) for (int64_t c = 0; c < n.columns; c++) {
        const uint32_t *kt = w->kt + (c * n.rows + keys) * ATTENTION_WORDS;
        attention_blocks(w->dqt + (i * n.columns + c) * ATTENTION_SUMS, kt, w->ds_right + i % G * G * ATTENTION_WORDS,
                         attention_min(i + 1, keys_end) - keys, keys > 0);
      }
    }
    for (int64_t i = keys; i < keys_end; i++) for (int64_t c = 0; c < n.columns; c++) {
      bf16 *to = head->dq + i * 32 * ld + c * 32;
      const int64_t at = ((i - keys) * n.columns + c) * ATTENTION_SUMS, rows = s->T - i * 32, columns = s->hs - c * 32;
      attention_put_transposed(to, ld, w->dqt + (i * n.columns + c) * ATTENTION_SUMS, scale, rows, columns);
      attention_put(to + s->C, ld, w->dk + at, scale, rows, columns);
      attention_put(to + 2 * s->C, ld, w->dv + at, one, rows, columns);
    }
  }
}
static void attention_backward16(Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head,
                                 const Dropout *drop) {
  const int64_t heads = out.shape[0] * n_head;
  const AttentionShape s = attention_shape(out.shape[1], out.shape[2], n_head);
#pragma omp parallel num_threads(c->threads)
  {
    amx_thread_begin();
    AttentionBackward16 w =
        attention_backward16_scratch(attention_thread_memory(c, attention_backward16_bytes(&s)), &s);
#pragma omp for schedule(dynamic, attention_chunk(heads, c->threads)) nowait
    for (int64_t item = 0; item < heads; item++) {
      const AttentionHead<bf16> head = attention_head<bf16>(&s, dqkv, dout, qkv, out, lse, n_head, item);
      const AttentionHead<bf16> next = attention_head<bf16>(&s, dqkv, dout, qkv, out, lse, n_head, item + 1);
      AttentionAhead<bf16> ahead = attention_ahead_of(&s, &next, item + 1 == heads);
      const AttentionDrop d = {drop, drop->sample0 + item / n_head, item % n_head};
      attention_backward16_head(&w, &s, &head, d, &ahead);
    }
    amx_thread_end();
  }
}
