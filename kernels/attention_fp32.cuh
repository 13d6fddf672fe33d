// attention_fp32.cuh: attention on the CPU in fp32 arithmetic, for tensors of every dtype, and parts that
// attention_bf16.cuh also uses: shapes, heads, dropout, packing. Formulas and interface are in attention.cuh.
#pragma once
#include "ops_attention.h"
#include <float.h>
#include "random.h"
#include "formulas.cuh"

static const int ATTENTION_QUERIES = 2 * VF, ATTENTION_KEYS = 64;  // one tile; keys a multiple of queries, both of VF

// ---- matrix multiply of a tile --------------------------------------------------------------------------------------
// c[i][j] = start + sum over k < n, ascending, of a(i,k) b[k][j]. Any number of rows and any n; columns in whole
// vectors.
// a(i,k) is a[i + k*lda] with A_ADJACENT (the rows of c are adjacent in a), else a[i*lda + k].
// START_ZERO: 0, START_C: c itself, START_SCALED: c times scale, one factor per column.
enum AttentionStart { START_ZERO, START_C, START_SCALED };
struct AttentionProduct {
  float *c; int64_t ldc;
  const float *a; int64_t lda;
  const float *b; int64_t ldb;
  int64_t n;
  AttentionStart start;
  const float *scale;
};

static const int ATTENTION_ROWS = VF_ROWS, ATTENTION_VECTORS = VF_VECTORS;        // of c held in registers

// Single loops over all registers, and the function inlined into the loop below: inside other loops gcc unrolls only
// the innermost loops before it allocates registers.
template <int ROWS, int VECTORS, bool A_ADJACENT> INLINE void attention_product_block(const AttentionProduct *p) {
  const int N = ROWS * VECTORS;
  const int64_t lda = p->lda, ldb = p->ldb, ldc = p->ldc;
  const float *a = p->a, *b = p->b, *scale = p->scale;
  float *c = p->c;
  vf acc[N];
  if (p->start == START_ZERO)
    for (int i = 0; i < N; i++) acc[i] = vf_zero();
  else if (p->start == START_C)
    for (int i = 0; i < N; i++) acc[i] = vf_load(c + i / VECTORS * ldc + i % VECTORS * VF);
  else
    for (int i = 0; i < N; i++)
      acc[i] = vf_mul(vf_load(c + i / VECTORS * ldc + i % VECTORS * VF), vf_load(scale + i % VECTORS * VF));
  for (int64_t k = p->n; k > 0; k--) {
    vf row[VECTORS];
    for (int j = 0; j < VECTORS; j++) row[j] = vf_load(b + j * VF);
    for (int i = 0; i < N; i++)
      acc[i] = vf_fma(vf_set1(A_ADJACENT ? a[i / VECTORS] : a[i / VECTORS * lda]), row[i % VECTORS], acc[i]);
    a += A_ADJACENT ? lda : 1;
    b += ldb;
  }
  for (int i = 0; i < N; i++) vf_store(c + i / VECTORS * ldc + i % VECTORS * VF, acc[i]);
}
// Rows in blocks of ROWS; the remaining rows in one smaller block.
template <int ROWS, int VECTORS, bool A_ADJACENT> static void attention_product_rows(AttentionProduct p, int64_t rows) {
  for (; rows >= ROWS; rows -= ROWS) {
    attention_product_block<ROWS, VECTORS, A_ADJACENT>(&p);
    p.a += A_ADJACENT ? ROWS : ROWS * p.lda;
    p.c += ROWS * p.ldc;
  }
  if constexpr (ROWS > 1) if (rows > 0) attention_product_rows<ROWS - 1, VECTORS, A_ADJACENT>(p, rows);
}
template <bool A_ADJACENT> static void attention_product(AttentionProduct p, int64_t rows, int64_t vectors) {
  while (vectors > 0) {
    const int step = vectors >= ATTENTION_VECTORS ? ATTENTION_VECTORS : 1;
    if (step == 1) attention_product_rows<ATTENTION_ROWS, 1, A_ADJACENT>(p, rows);
    else attention_product_rows<ATTENTION_ROWS, ATTENTION_VECTORS, A_ADJACENT>(p, rows);
    vectors -= step;
    p.b += step * VF;
    p.c += step * VF;
    if (p.start == START_SCALED) p.scale += step * VF;
  }
}

// ---- small parts ---------------------------------------------------------------------------------------------------
// 2^x for x <= 0: x = n + f with |f| <= 1/2, exponent by integer add. x is clamped at -125, which avoids subnormals;
// 2^-125 is negligible beside the largest term, which is 1.
INLINE vf attention_exp2(vf x) {
  x = vf_max(vf_set1(-125.0f), x);               // in this order a NaN in x survives
  const vf n = vf_round(x), p = vf_exp2_fraction(vf_sub(x, n));
  return vi_as_float(vi_add(vf_bits(p), vi_shl(vf_to_int(n), 23)));
}

// Copies rows x columns of in as fp32: to[row][column]. If ldto has room, columns from `columns` up to a whole vector
// are written as zero.
template <class T>
static void attention_pack(float *to, int64_t ldto, const T *in, int64_t ld, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j += VF)
      vf_store_n(to + i * ldto + j, vf_load_n(in + i * ld + j, columns - j), ldto - j);
}
// attention_pack, transposed and scaled, for a panel of queries: to[column][ATTENTION_QUERIES]. Missing rows become
// zero.
template <class T>
static void attention_pack_transposed(float *to, const T *in, int64_t ld, int64_t rows, int64_t columns, float scale) {
  const vf s = vf_set1(scale);
  for (int64_t j = 0; j < columns; j += VF)
    for (int64_t i = 0; i < ATTENTION_QUERIES; i += VF) {
      vf r[VF];
      for (int l = 0; l < VF; l++)
        r[l] = i + l < rows ? vf_mul(vf_load_n(in + (i + l) * ld + j, columns - j), s) : vf_zero();
      vf_transpose(r);
      for (int l = 0; l < VF; l++) vf_store(to + (j + l) * ATTENTION_QUERIES + i, r[l]);
    }
}
// The inverse: out[query][column] = from[column][query] * scale[query] for the first `rows` queries.
template <class T>
static void attention_unpack_transposed(T *out, int64_t ld, const float *from, int64_t rows, int64_t columns,
                                        const float *scale) {
  for (int64_t i = 0; i < rows; i += VF) {
    const vf s = vf_load(scale + i);
    for (int64_t j = 0; j < columns; j += VF) {
      vf r[VF];
      for (int l = 0; l < VF; l++) r[l] = vf_mul(vf_load(from + (j + l) * ATTENTION_QUERIES + i), s);
      vf_transpose(r);
      for (int l = 0; l < VF && i + l < rows; l++) vf_store_n(out + (i + l) * ld + j, r[l], columns - j);
    }
  }
}

// Rows of one head are a whole token's row apart, a stride that the hardware prefetcher does not follow. A thread
// therefore prefetches the rows that it will read and write: those of this head from `row` on, then those of the next
// head up to `end` - len. The first `turned` rows of a head are prefetched last row first. Prefetches are one row at a
// time, spread over a head's units of work: a burst would fill all of a core's line fill buffers, and loads from L2
// would wait too. Against bursts for 32 keys at a time and no prefetch for stores, bf16 attention without its matrix
// multiplies takes 0.7 times as long, with them 0.9 (Zen 5, B 32, T 256).
template <class T> struct AttentionAhead {
  const T *rows[2][8];                           // of this head and the next
  int64_t ld[8];
  int arrays;
  int64_t row, end, len, turned, columns;        // len: rows of a head
  int64_t units, due;                            // units of a head; units done since the last row, times len
};
template <class T> INLINE void attention_ahead_row(AttentionAhead<T> *a) {
  const int64_t next = a->row >= a->len, at = a->row - next * a->len, row = at < a->turned ? a->turned - 1 - at : at;
  for (int i = 0; i < a->arrays; i++)
    for (int64_t j = 0; j < a->columns; j += 64 / (int64_t)sizeof(T))
      __builtin_prefetch(a->rows[next][i] + row * a->ld[i] + j, 0, 2);
  a->row++;
}
template <class T> INLINE void attention_ahead(AttentionAhead<T> *a, int64_t units) {
  for (a->due += units * a->len; a->due >= a->units && a->row < a->end; a->due -= a->units) attention_ahead_row(a);
}
// Items that a thread takes at a time: several, so that the next head, whose rows it prefetches, is usually also its
// own; at most a quarter of its share, so that all threads finish at about the same time.
static int attention_chunk(int64_t items, int threads) {
  const int64_t n = items / (4 * threads);
  return n < 1 ? 1 : (int)n;
}
// In forward an item is a whole head if there are several heads per thread. Otherwise a head is also split into runs of
// query tiles, and each run packs the keys that it needs.
static int64_t attention_runs(const Ctx *c, int64_t heads, int64_t tiles) {
  const int64_t runs = (4 * c->threads + heads - 1) / heads;
  return heads >= 4 * c->threads ? 1 : runs < tiles ? runs : tiles;
}
static void *attention_thread_memory(const Ctx *c, size_t bytes) {
  return (char *)c->workspace + (size_t)thread_number * bytes;
}

// ---- one tile -------------------------------------------------------------------------------------------------------
struct AttentionShape {
  int64_t T, hs, width, C;                       // width: hs rounded up to whole vectors
  int64_t n_head, group, ld;                     // group: heads of q for one of k and v; ld: columns of qkv
  float scale;                                   // 1/sqrt(hs)
  const int32_t *starts;                         // of the sequence at work; NULL: it is one document
};
static AttentionShape attention_shape_of(int64_t T, int64_t hs, int64_t n_head, int64_t kv_heads) {
  const float scale = vf_first_lane(vf_div(vf_set1(1.0f), vf_sqrt(vf_set1((float)hs))));
  return AttentionShape{T, hs, (hs + VF - 1) / VF * VF, n_head * hs, n_head, n_head / kv_heads,
                        (n_head + 2 * kv_heads) * hs, scale, NULL};
}
static AttentionShape attention_shape(Tensor out, Tensor qkv, int n_head) {
  return attention_shape_of(out.shape[1], out.shape[2] / n_head, n_head, attention_kv_heads(out, qkv, n_head));
}
static int64_t attention_min(int64_t a, int64_t b) { return a < b ? a : b; }
// Sequence b's starts.
static const int32_t *attention_starts(Tensor starts, int64_t b) {
  return starts.data ? (const int32_t *)starts.data + b * starts.shape[1] : NULL;
}
// The first key to which any query from `query` on attends.
static int64_t attention_first_key(const AttentionShape *s, int64_t query) { return s->starts ? s->starts[query] : 0; }

// The columns of one head of q, and of its k and v, in the arrays of its sequence: rows of q, k, v and of dq, dk, dv
// are ld apart, the others C. item counts the heads of q of all sequences.
template <class T> struct AttentionHead { T *dq, *dk, *dv; const T *q, *k, *v, *dout, *out; const float *lse; };
template <class T>
static AttentionHead<T> attention_head(const AttentionShape *s, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out,
                                       Tensor lse, int64_t item) {
  const int64_t rows = item / s->n_head * s->T, h = item % s->n_head, at = rows * s->C + h * s->hs;
  const int64_t q = rows * s->ld + h * s->hs, k = rows * s->ld + s->C + h / s->group * s->hs;
  const int64_t v = k + (s->ld - s->C) / 2;
  T *const d = (T *)dqkv.data;
  const T *const x = (const T *)qkv.data;
  return AttentionHead<T>{d + q, d + k, d + v, x + q, x + k, x + v, (const T *)dout.data + at,
                          (const T *)out.data + at, (const float *)lse.data + item * s->T};
}
// The rows that a pass reads and writes of this head and of the next. first: rows of a head that are prefetched before
// the head starts.
template <class T>
static AttentionAhead<T> attention_ahead_of(const AttentionShape *s, const AttentionHead<T> *head,
                                            const AttentionHead<T> *next, bool backward, int64_t first, int64_t units,
                                            bool last) {
  AttentionAhead<T> a = {};
  a.arrays = backward ? 8 : 4;
  a.row = first;
  a.end = s->T + (last ? 0 : first);
  a.len = s->T;
  a.columns = s->hs;
  a.units = units;
  for (int i = 0; i < 2; i++) {
    const AttentionHead<T> h = i == 0 ? *head : *next;
    const T *const rows[] = {h.q, h.k, h.v, h.out, h.dout, h.dq, h.dk, h.dv};
    for (int x = 0; x < a.arrays; x++) {
      a.rows[i][x] = rows[x];
      a.ld[x] = x == 3 || x == 4 ? s->C : s->ld;
    }
  }
  return a;
}

// The tile of keys from first_key on and queries from first_query on: how much of it is on or below the diagonal. Rows
// 0 .. rows[0] of S^T need every vector of queries; rows rows[0] .. rows[1] only the last vector (the block above the
// diagonal is skipped). first_key <= first_query, so neither range is empty.
// cut: some query does not attend to the first keys, because its document starts after them, at `starts`.
struct AttentionTile { int64_t first_key, first_query, vectors, rows[2]; bool cut; int32_t starts[2 * VF]; };
static AttentionTile attention_tile(const AttentionShape *s, int64_t first_key, int64_t first_query) {
  AttentionTile t = {first_key, first_query, attention_min(2, (s->T - first_query + VF - 1) / VF), {0, 0}, false, {}};
  for (int i = 0; s->starts && i < 2 * VF; i++) {                // after the last query: as there
    t.starts[i] = s->starts[attention_min(first_query + i, s->T - 1)];
    t.cut |= t.starts[i] > first_key;
  }
  for (int v = 0; v < t.vectors; v++) {
    t.rows[v] = attention_min(attention_min(first_key + ATTENTION_KEYS, s->T), first_query + (v + 1) * VF) - first_key;
  }
  if (t.vectors == 1) t.rows[1] = t.rows[0];
  return t;
}

static int64_t attention_tiles(const AttentionShape *s) {
  int64_t n = 0;
  for (int64_t query = 0; query < s->T; query += ATTENTION_QUERIES) n += query / ATTENTION_KEYS + 1;
  return n;
}

// out^T[key][query] = a[key] . panel^T[][query] over the head, for the needed part of the tile.
static void attention_scores(float *out, const AttentionTile *t, const float *a, const float *panel, int64_t hs) {
  AttentionProduct p = {out, ATTENTION_QUERIES, a, hs, panel, ATTENTION_QUERIES, hs, START_ZERO, NULL};
  attention_product<false>(p, t->rows[0], t->vectors);
  p.c += t->rows[0] * ATTENTION_QUERIES + VF;
  p.a += t->rows[0] * hs;
  p.b += VF;
  attention_product<false>(p, t->rows[1] - t->rows[0], 1);
}
// sum^T[d][query] = start + sum over the keys of a[key][d] weight^T[key][query].
static void attention_over_keys(float *sum, const AttentionTile *t, const float *a, const float *weight, int64_t hs,
                                AttentionStart start, const float *scale) {
  AttentionProduct p = {sum, ATTENTION_QUERIES, a, hs, weight, ATTENTION_QUERIES, t->rows[0], start, scale};
  attention_product<true>(p, hs, t->vectors);
  if (t->rows[1] == t->rows[0]) return;
  p.c += VF;
  p.a += t->rows[0] * hs;
  p.b += t->rows[0] * ATTENTION_QUERIES + VF;
  p.n = t->rows[1] - t->rows[0];
  p.start = START_C;
  attention_product<true>(p, hs, 1);
}
// sum[key][d] += sum over the queries of weight^T[key][query] b[query][d].
static void attention_over_queries(float *sum, const AttentionTile *t, const AttentionShape *s, const float *weight,
                                   const float *b) {
  const int64_t queries = attention_min(ATTENTION_QUERIES, s->T - t->first_query);
  AttentionProduct p = {sum, s->width, weight, ATTENTION_QUERIES, b, s->width, queries, START_C, NULL};
  attention_product<false>(p, t->rows[0], s->width / VF);
  p.c += t->rows[0] * s->width;
  p.a += t->rows[0] * ATTENTION_QUERIES + VF;
  p.b += VF * s->width;
  p.n = queries - VF;
  attention_product<false>(p, t->rows[1] - t->rows[0], s->width / VF);
}

// The first row of vector v that is in the future of some of its queries, or in a document before theirs.
static int64_t attention_first_masked(const AttentionTile *t, int v) {
  int64_t row = t->first_query + v * VF + 1 - t->first_key;
  return row < 0 || t->cut ? 0 : attention_min(row, t->rows[v]);
}
// x in lanes whose query attends to this row's key, else `other`.
INLINE vf attention_causal(const AttentionTile *t, int v, int64_t row, vf x, vf other) {
  x = vf_select(vm_first(t->first_key + row - t->first_query - v * VF), other, x);
  if (!t->cut) return x;
  return vf_select(vi_gt(vi_load(t->starts + v * VF), vi_set1((int32_t)(t->first_key + row))), other, x);
}

// The dropout factors of a tile, transposed to its layout. The mask's elements follow the keys of one query.
struct AttentionDrop { const Dropout *drop; int64_t sample, head; };
INLINE vf attention_drop(AttentionDrop d, int64_t element) {
  const Philox counter = {0, (uint32_t)d.sample, d.drop->step, d.drop->tensor};
  return drop_factor(philox_words(d.drop->seed, counter, element), dropout_threshold(d.drop->p),
                     1.0f / (1.0f - d.drop->p));
}
static void attention_mask(float *mask, const AttentionTile *t, const AttentionShape *s, AttentionDrop d) {
  for (int v = 0; v < t->vectors; v++)
    for (int64_t row = 0; row < t->rows[v]; row += VF) {
      vf r[VF];
      for (int l = 0; l < VF; l++) {
        const int64_t query = t->first_query + v * VF + l;
        r[l] = attention_drop(d, (d.head * s->T + query) * s->T + t->first_key + row);
      }
      vf_transpose(r);
      for (int l = 0; l < VF; l++) vf_store(mask + (row + l) * ATTENTION_QUERIES + v * VF, r[l]);
    }
}

// ---- forward -------------------------------------------------------------------------------------------------------
struct AttentionForward {
  float *k, *v;                                  // (T,hs)
  float *q, *sum;                                // (width,queries): the query panel, the running output
  float *p, *mask;                               // (keys,queries)
  float *max, *total, *correction;               // (queries)
};
static size_t attention_forward_bytes(const AttentionShape *s) {
  const int64_t tile = ATTENTION_KEYS * ATTENTION_QUERIES, panel = s->width * ATTENTION_QUERIES;
  const int64_t numel = 2 * (s->T * s->hs + VF) + 2 * panel + 2 * tile + 3 * ATTENTION_QUERIES;
  return ((size_t)numel * sizeof(float) + 255) / 256 * 256;
}
// Takes numel floats from the front of *at; every array starts on a cache line.
static float *attention_take(float **at, int64_t numel) {
  float *p = *at;
  *at += (numel + VF - 1) / VF * VF;
  return p;
}
static AttentionForward attention_forward_scratch(void *memory, const AttentionShape *s) {
  float *at = (float *)memory;
  const int64_t tile = ATTENTION_KEYS * ATTENTION_QUERIES, panel = s->width * ATTENTION_QUERIES;
  AttentionForward f;
  f.k = attention_take(&at, s->T * s->hs);
  f.v = attention_take(&at, s->T * s->hs);
  f.q = attention_take(&at, panel);
  f.sum = attention_take(&at, panel);
  f.p = attention_take(&at, tile);
  f.mask = attention_take(&at, tile);
  f.max = attention_take(&at, ATTENTION_QUERIES);
  f.total = attention_take(&at, ATTENTION_QUERIES);
  f.correction = attention_take(&at, ATTENTION_QUERIES);
  return f;
}

// One step of the online softmax on vector v of the tile: scores become probabilities relative to the new maximum.
// correction is the factor that rescales the earlier sums to it.
static void attention_softmax_step(AttentionForward *f, const AttentionTile *t, int v, bool dropped) {
  const int64_t rows = t->rows[v], diagonal = attention_first_masked(t, v);
  float *p = f->p + v * VF;
  const vf before = vf_load(f->max + v * VF);
  vf most = before;
  for (int64_t i = 0; i < diagonal; i++) most = vf_max(most, vf_load(p + i * ATTENTION_QUERIES));
  for (int64_t i = diagonal; i < rows; i++)
    most = vf_max(most, attention_causal(t, v, i, vf_load(p + i * ATTENTION_QUERIES), before));
  vf total = vf_zero();
  for (int64_t i = 0; i < rows; i++) {
    vf e = attention_exp2(vf_sub(vf_load(p + i * ATTENTION_QUERIES), most));
    if (i >= diagonal) e = attention_causal(t, v, i, e, vf_zero());
    total = vf_add(total, e);
    if (dropped) e = vf_mul(e, vf_load(f->mask + i * ATTENTION_QUERIES + v * VF));
    vf_store(p + i * ATTENTION_QUERIES, e);
  }
  const vf correction = attention_exp2(vf_sub(before, most));
  vf_store(f->correction + v * VF, correction);
  vf_store(f->total + v * VF, vf_fma(vf_load(f->total + v * VF), correction, total));
  vf_store(f->max + v * VF, most);
}

// One tile of queries against all keys up to its last query.
template <class T>
static void attention_forward_queries(AttentionForward *f, const AttentionShape *s, T *out, float *lse, const T *q,
                                      int64_t first_query, AttentionDrop d, AttentionAhead<T> *ahead) {
  const int64_t queries = attention_min(ATTENTION_QUERIES, s->T - first_query);
  attention_pack_transposed(f->q, q + first_query * s->ld, s->ld, queries, s->hs, s->scale * 1.44269504f);
  for (int v = 0; v < 2; v++) {
    vf_store(f->max + v * VF, vf_set1(-FLT_MAX));
    vf_store(f->total + v * VF, vf_zero());
  }
  const int64_t begin = attention_first_key(s, first_query) / ATTENTION_KEYS * ATTENTION_KEYS;
  for (int64_t key = begin; key < first_query + queries; key += ATTENTION_KEYS) {
    const AttentionTile t = attention_tile(s, key, first_query);
    attention_scores(f->p, &t, f->k + key * s->hs, f->q, s->hs);
    attention_ahead(ahead, 1);
    if (d.drop->p > 0.0f) attention_mask(f->mask, &t, s, d);
    for (int v = 0; v < t.vectors; v++) attention_softmax_step(f, &t, v, d.drop->p > 0.0f);
    const AttentionStart start = key == begin ? START_ZERO : START_SCALED;
    attention_over_keys(f->sum, &t, f->v + key * s->hs, f->p, s->hs, start, f->correction);
  }
  for (int64_t i = 0; i < queries; i += VF) {    // every query attends to itself, so total >= about 1
    const vf total = vf_load(f->total + i);
    vf_store_n(lse + first_query + i, vf_log_sum(vf_load(f->max + i), vf_log(total)), queries - i);
    vf_store(f->total + i, vf_div(vf_set1(1.0f), total));
  }
  attention_unpack_transposed(out + first_query * s->C, s->C, f->sum, queries, s->hs, f->total);
}

template <class T>
static void attention_forward_typed(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, const Dropout *drop,
                                    Tensor starts) {
  const int64_t B = out.shape[0], len = out.shape[1], C = out.shape[2];
  const AttentionShape all = attention_shape(out, qkv, n_head);
  const int64_t tiles = (len + ATTENTION_QUERIES - 1) / ATTENTION_QUERIES, heads = B * n_head;
  const int64_t runs = attention_runs(c, heads, tiles);
  parallel_tasks(c->threads, heads * runs, attention_chunk(heads * runs, c->threads), [=](int64_t item) {
    AttentionShape s = all;
    s.starts = attention_starts(starts, item / runs / n_head);
    AttentionForward f = attention_forward_scratch(attention_thread_memory(c, attention_forward_bytes(&s)), &s);
    const int64_t b = item / runs / n_head, h = item / runs % n_head, run = runs - 1 - item % runs;  // longest first
    const int64_t first = run * tiles / runs * ATTENTION_QUERIES;
    const int64_t end = attention_min((run + 1) * tiles / runs * ATTENTION_QUERIES, len);
    const AttentionHead<T> head = attention_head<T>(&s, qkv, out, qkv, out, lse, item / runs);
    const AttentionHead<T> next = attention_head<T>(&s, qkv, out, qkv, out, lse, item + 1);
    const bool last = runs > 1 || item + 1 == heads;
    AttentionAhead<T> ahead = attention_ahead_of(&s, &head, &next, false, len, attention_tiles(&s), last);
    attention_pack(f.k, s.hs, head.k, s.ld, end, s.hs);
    attention_pack(f.v, s.hs, head.v, s.ld, end, s.hs);
    T *to = (T *)out.data + b * len * C + h * s.hs;
    float *to_lse = (float *)lse.data + (b * n_head + h) * len;
    for (int64_t query = first; query < end; query += ATTENTION_QUERIES)
      attention_forward_queries(&f, &s, to, to_lse, head.q, query, AttentionDrop{drop, drop->sample0 + b, h}, &ahead);
  });
}

// ---- backward ------------------------------------------------------------------------------------------------------
struct AttentionBackward {
  float *k, *v;                                  // (T,hs)
  float *q, *dout;                               // (T,width)
  float *q_panels, *dout_panels, *dq_panels;     // (query tiles,width,queries)
  float *lse, *dot;                              // (query tiles,queries): lse in base 2; dot = dout . out
  float *dk, *dv;                                // (keys of a tile,width), or of all for a group of heads
  float *p, *ds, *mask;                          // (keys,queries)
  float *scale;                                  // (queries): 1/sqrt(hs)
};
static int64_t attention_query_tiles(const AttentionShape *s) {
  return (s->T + ATTENTION_QUERIES - 1) / ATTENTION_QUERIES;
}
// Keys whose dk and dv exist at once.
static int64_t attention_kept_keys(const AttentionShape *s) {
  return s->group == 1 ? ATTENTION_KEYS : (s->T + ATTENTION_KEYS - 1) / ATTENTION_KEYS * ATTENTION_KEYS;
}
static size_t attention_backward_bytes(const AttentionShape *s) {
  const int64_t tiles = attention_query_tiles(s), panel = s->width * ATTENTION_QUERIES;
  const int64_t numel = 2 * (s->T * s->hs + VF) + 2 * s->T * s->width + 3 * tiles * panel +
                        (2 * tiles + 1) * ATTENTION_QUERIES + 2 * attention_kept_keys(s) * s->width +
                        3 * ATTENTION_KEYS * ATTENTION_QUERIES;
  return ((size_t)numel * sizeof(float) + 255) / 256 * 256;
}
static AttentionBackward attention_backward_scratch(void *memory, const AttentionShape *s) {
  float *at = (float *)memory;
  const int64_t tiles = attention_query_tiles(s), panels = tiles * s->width * ATTENTION_QUERIES;
  AttentionBackward w;
  w.k = attention_take(&at, s->T * s->hs);
  w.v = attention_take(&at, s->T * s->hs);
  w.q = attention_take(&at, s->T * s->width);
  w.dout = attention_take(&at, s->T * s->width);
  w.q_panels = attention_take(&at, panels);
  w.dout_panels = attention_take(&at, panels);
  w.dq_panels = attention_take(&at, panels);
  w.lse = attention_take(&at, tiles * ATTENTION_QUERIES);
  w.dot = attention_take(&at, tiles * ATTENTION_QUERIES);
  w.dk = attention_take(&at, attention_kept_keys(s) * s->width);
  w.dv = attention_take(&at, attention_kept_keys(s) * s->width);
  w.p = attention_take(&at, ATTENTION_KEYS * ATTENTION_QUERIES);
  w.ds = attention_take(&at, ATTENTION_KEYS * ATTENTION_QUERIES);
  w.mask = attention_take(&at, ATTENTION_KEYS * ATTENTION_QUERIES);
  w.scale = attention_take(&at, ATTENTION_QUERIES);
  return w;
}

// All arrays of one head in fp32, and D = dout . out. Queries that pad the last tile get lse = D = 0; their
// probabilities are never used.
template <class T>
static void attention_backward_pack(AttentionBackward *w, const AttentionShape *s, const AttentionHead<T> *head) {
  const int64_t C = s->C, ld = s->ld;
  const T *q = head->q, *dout = head->dout, *out = head->out;
  attention_pack(w->k, s->hs, head->k, ld, s->T, s->hs);
  attention_pack(w->v, s->hs, head->v, ld, s->T, s->hs);
  attention_pack(w->q, s->width, q, ld, s->T, s->hs);
  attention_pack(w->dout, s->width, dout, C, s->T, s->hs);
  for (int64_t first = 0; first < s->T; first += ATTENTION_QUERIES) {
    const int64_t queries = attention_min(ATTENTION_QUERIES, s->T - first);
    float *q_panel = w->q_panels + first * s->width, *dout_panel = w->dout_panels + first * s->width;
    attention_pack_transposed(q_panel, q + first * ld, ld, queries, s->hs, s->scale * 1.44269504f);
    attention_pack_transposed(dout_panel, w->dout + first * s->width, s->width, queries, s->hs, 1.0f);
    for (int64_t i = 0; i < ATTENTION_QUERIES; i += VF)
      vf_store(w->lse + first + i, vf_mul(vf_load_n(head->lse + first + i, queries - i), vf_set1(1.44269504f)));
    for (int64_t i = 0; i < ATTENTION_QUERIES; i++) {
      vf sum = vf_zero();
      for (int64_t d = 0; i < queries && d < s->hs; d += VF)
        sum = vf_fma(vf_load(w->dout + (first + i) * s->width + d), vf_load_n(out + (first + i) * C + d, s->hs - d),
                     sum);
      w->dot[first + i] = vf_sum(sum);
    }
  }
  for (int v = 0; v < 2; v++) vf_store(w->scale + v * VF, vf_set1(s->scale));
}

// Scores and dout . v of vector v become the dropped probabilities (w->p) and ds (w->ds).
static void attention_softmax_backward(AttentionBackward *w, const AttentionTile *t, int v, bool dropped) {
  const int64_t diagonal = attention_first_masked(t, v);
  const vf lse = vf_load(w->lse + t->first_query + v * VF), dot = vf_load(w->dot + t->first_query + v * VF);
  for (int64_t i = 0; i < t->rows[v]; i++) {
    const int64_t at = i * ATTENTION_QUERIES + v * VF;
    vf p = attention_exp2(vf_sub(vf_load(w->p + at), lse)), dp = vf_load(w->ds + at);
    if (i >= diagonal) p = attention_causal(t, v, i, p, vf_zero());
    vf kept = p;
    if (dropped) {
      const vf mask = vf_load(w->mask + at);
      kept = vf_mul(p, mask);
      dp = vf_mul(dp, mask);
    }
    vf_store(w->p + at, kept);
    vf_store(w->ds + at, vf_softmax_grad(p, dp, dot));
  }
}

// One head of q: the one with number d.head % s->group of those that share k and v, which come in order: the first
// starts the sums dk and dv, the last ends them.
template <class T>
static void attention_backward_head(AttentionBackward *w, const AttentionShape *s, const AttentionHead<T> *head,
                                    AttentionDrop d, AttentionAhead<T> *ahead) {
  const int64_t ld = s->ld, turn = d.head % s->group;
  attention_backward_pack(w, s, head);
  for (int64_t key = 0; key < s->T; key += ATTENTION_KEYS) {
    const int64_t keys = attention_min(ATTENTION_KEYS, s->T - key), at = s->group == 1 ? 0 : key * s->width;
    float *const dk = w->dk + at, *const dv = w->dv + at;
    if (turn == 0) memset(dk, 0, (size_t)(keys * s->width) * sizeof(float));
    if (turn == 0) memset(dv, 0, (size_t)(keys * s->width) * sizeof(float));
    for (int64_t query = key; query < s->T; query += ATTENTION_QUERIES) {
      const int64_t seen = attention_first_key(s, query);
      if (seen >= key + keys) break;             // nor does any later query attend to these keys
      const AttentionTile t = attention_tile(s, key, query);
      attention_scores(w->p, &t, w->k + key * s->hs, w->q_panels + query * s->width, s->hs);
      attention_scores(w->ds, &t, w->v + key * s->hs, w->dout_panels + query * s->width, s->hs);
      attention_ahead(ahead, 1);
      if (d.drop->p > 0.0f) attention_mask(w->mask, &t, s, d);
      for (int v = 0; v < t.vectors; v++) attention_softmax_backward(w, &t, v, d.drop->p > 0.0f);
      attention_over_queries(dv, &t, s, w->p, w->dout + query * s->width);
      attention_over_queries(dk, &t, s, w->ds, w->q + query * s->width);
      const AttentionStart start = key <= seen ? START_ZERO : START_C;
      attention_over_keys(w->dq_panels + query * s->width, &t, w->k + key * s->hs, w->ds, s->hs, start, NULL);
    }
    for (int64_t i = 0; i < keys && turn == s->group - 1; i++)
      for (int64_t j = 0; j < s->hs; j += VF) {
        const int64_t to = (key + i) * ld + j;
        vf_store_n(head->dk + to, vf_mul(vf_load(dk + i * s->width + j), vf_set1(s->scale)), s->hs - j);
        vf_store_n(head->dv + to, vf_load(dv + i * s->width + j), s->hs - j);
      }
  }
  for (int64_t query = 0; query < s->T; query += ATTENTION_QUERIES)
    attention_unpack_transposed(head->dq + query * ld, ld, w->dq_panels + query * s->width,
                                attention_min(ATTENTION_QUERIES, s->T - query), s->hs, w->scale);
}

template <class T>
static void attention_backward_typed(Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head,
                                     const Dropout *drop, Tensor starts) {
  const AttentionShape all = attention_shape(out, qkv, n_head);
  const int64_t heads = out.shape[0] * n_head, groups = heads / all.group;
  parallel_tasks(c->threads, groups, attention_chunk(groups, c->threads), [=](int64_t item) {
    AttentionShape s = all;
    s.starts = attention_starts(starts, item * s.group / n_head);
    AttentionBackward w = attention_backward_scratch(attention_thread_memory(c, attention_backward_bytes(&s)), &s);
    for (int64_t i = item * s.group; i < (item + 1) * s.group; i++) {
      const AttentionHead<T> head = attention_head<T>(&s, dqkv, dout, qkv, out, lse, i);
      const AttentionHead<T> next = attention_head<T>(&s, dqkv, dout, qkv, out, lse, i + 1);
      AttentionAhead<T> ahead = attention_ahead_of(&s, &head, &next, true, s.T, attention_tiles(&s), i + 1 == heads);
      attention_backward_head(&w, &s, &head, AttentionDrop{drop, drop->sample0 + i / n_head, i % n_head}, &ahead);
    }
  });
}
