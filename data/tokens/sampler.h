// sampler.h: which samples make a microbatch, how conversations are packed, and the windows of an evaluation.
#pragma once
#include "token_files.h"

void packing_free(Packing *p) {
  free(p->start);
  free(p->head);
  free(p->next);
  free(p->reference);
  *p = {};
}
size_t packing_bytes(const Packing *p) {
  const size_t n = p->split ? (size_t)p->split->documents : 0;
  return p->split ? (n + 1) * 8 + n * 8 + (p->reference ? n * 4 : 0) : 0;
}
// Positions that conversations d .. d + n - 1 take. *trained: their trained targets within seq_len; *least: the
// smallest number of trained targets of one of them.
static inline int64_t packing_places(const Packing *p, uint32_t d, uint32_t n, int64_t *trained, int64_t *least) {
  int64_t places = 0;
  *trained = 0, *least = INT64_MAX;
  for (const uint32_t end = d + n; d < end; d++) {
    int64_t own = 0, n_places = p->start[d + 1] - p->start[d] - 1;
    for (int64_t i = 1; i <= n_places && i <= p->seq_len; i++) own += split_trained(p->split, p->start[d] + i);
    places += n_places, *trained += own;
    if (own < *least) *least = own;
  }
  return places;
}
// Whether the two answers of pair d are the same tokens.
static inline bool packing_alike(const Packing *p, uint32_t d) {
  const int64_t a = p->start[d], b = p->start[d + 1], n = b - a;
  bool same = p->start[d + 2] - b == n;
  for (int64_t i = 1; same && i < n; i++) same = split_token(p->split, a + i) == split_token(p->split, b + i);
  return same;
}
void packing_make(Packing *p, const Split *split, int64_t seq_len, bool drop) {
  const size_t n = (size_t)split->documents;
  *p = {split, seq_len, 0, 0, 0, 0, 0, 0, 0, (int64_t *)data_alloc(n + 1, 8), (uint32_t *)data_alloc(n, 4),
        (uint32_t *)data_alloc(n, 4), {}, split->pairs ? (float *)calloc(n + 1, 4) : NULL};
  // For each number of positions left a stack of the sequences that have so many: top[left], then below[sequence].
  // last: the last conversation of each sequence.
  uint32_t *top = (uint32_t *)data_alloc((size_t)seq_len + 1, 4), *below = (uint32_t *)data_alloc(n, 4);
  uint32_t *last = (uint32_t *)data_alloc(n, 4), d = 0, each = split->pairs ? 2 : 1;
  for (int64_t i = 0; i <= seq_len; i++) top[i] = PACKING_NONE;
  for (int64_t i = 0; i < split->tokens_numel; i++) if (split_begins(split, i)) p->start[d++] = i;
  p->start[d] = split->tokens_numel;
  int source = 0;
  for (d = 0; d + each <= (uint32_t)n; d += each) {
    while (source < split->sources && p->start[d] >= split->source[source].first) {
      p->first[source++] = p->rows;
      for (int64_t i = 0; i <= seq_len; i++) top[i] = PACKING_NONE;
    }
    int64_t trained, least, places = packing_places(p, d, each, &trained, &least);
    const bool too_long = places > seq_len;
    p->dropped += too_long && (drop || split->pairs);
    if (too_long && (drop || split->pairs)) continue;
    if (too_long) places = seq_len;
    int64_t room = places;
    if (!least) { p->untrained++; continue; }
    p->cut += too_long, p->trained += trained, p->kept++;
    p->alike += split->pairs && packing_alike(p, d);
    while (room <= seq_len && top[room] == PACKING_NONE) room++;
    uint32_t row;
    if (room > seq_len) room = seq_len, row = (uint32_t)p->rows++, p->head[row] = d;
    else row = top[room], top[room] = below[row], p->next[last[row]] = d;
    last[row] = d;
    p->next[d] = PACKING_NONE;
    room -= places;
    if (room) below[row] = top[room], top[room] = row;
  }
  while (source <= split->sources) p->first[source++] = p->rows;
  free(top);
  free(below);
  free(last);
}
void packing_fill(const Packing *p, int64_t row, int32_t *inputs, int32_t *targets, int32_t *starts, float *weights) {
  int64_t t = 0;
  for (uint32_t d = row < p->rows ? p->head[row] : PACKING_NONE; d != PACKING_NONE; d = p->next[d])
    for (uint32_t k = d; k < d + (p->split->pairs ? 2 : 1); k++) {
      const int64_t begin = t;
      for (int64_t i = p->start[k]; i < p->start[k + 1] - 1 && t < p->seq_len; i++, t++) {
        inputs[t] = split_token(p->split, i);
        targets[t] = split_target(p->split, i + 1);
        starts[t] = (int32_t)begin;
        if (weights) weights[t] = t == begin ? p->reference[k] : 0;
      }
    }
  for (int64_t i = t; weights && i < p->seq_len; i++) weights[i] = 0;
  for (int64_t begin = t; t < p->seq_len; t++) inputs[t] = 0, targets[t] = -1, starts[t] = (int32_t)begin;
}

// Up to this many samples an epoch's order is a table, shuffled by Fisher and Yates; for more samples data_permute
// computes it without a table.
enum { SAMPLER_TABLE_NUMEL = 1 << 24 };

int64_t sampler_source_numel(const Split *split, int k, int64_t seq_len, const Packing *packing) {
  if (packing) return packing->first[k + 1] - packing->first[k];
  return (split->source[k].tokens_numel - 1) / seq_len;
}
static inline int64_t sampler_samples_numel(const Split *split, int64_t seq_len, const Packing *packing) {
  if (packing) return packing->rows;
  int64_t n = split->sources ? 0 : split_targets_numel(split) / seq_len;
  for (int k = 0; k < split->sources; k++) n += sampler_source_numel(split, k, seq_len, NULL);
  return n;
}
int64_t sampler_period(const Split *split) {
  int64_t sum = 0;
  for (int k = 0; k < split->sources; k++) sum += split->source[k].weight;
  return sum;
}

size_t sampler_bytes(const Split *split, SamplerOptions o, const Packing *packing) {
  const int64_t n = sampler_samples_numel(split, o.seq_len, packing);
  if (split->sources) return (size_t)sampler_period(split) * sizeof(uint32_t);
  return o.shuffle && n <= SAMPLER_TABLE_NUMEL ? (size_t)n * sizeof(uint32_t) : 0;
}

void sampler_set_epoch(Sampler *s, int64_t epoch) {
  s->epoch = epoch;
  if (!s->options.shuffle || !s->order || s->period) return;
  const uint64_t key = data_key(s->options.seed, (uint64_t)epoch);
  for (int64_t i = 0; i < s->samples_numel; i++) s->order[i] = (uint32_t)i;
  for (int64_t i = s->samples_numel - 1; i > 0; i--) {  // Fisher and Yates
    int64_t j = (int64_t)data_below(data_random(key, (uint64_t)i), (uint64_t)i + 1);
    uint32_t x = s->order[i];
    s->order[i] = s->order[j];
    s->order[j] = x;
  }
}
// Fills in s->order: for each sample of a period its source (upper bits) and how many samples that source had before
// (lower bits). With K sources, a source is eligible if it is behind its share by at least 1 / (2K - 2) of a sample; of
// the eligible ones the one with the earliest deadline is taken. Then no source is ever a whole sample off its share
// (Tijdeman 1980, the chairman assignment problem).
enum { MIXTURE_RANK_BITS = 24 };
static inline void sampler_mix(Sampler *s) {
  const int K = s->split->sources;
  const int64_t W = s->period, slack = 2 * K - 2;
  int64_t had[SOURCES_MAX] = {};
  for (int64_t i = 0; i < W; i++) {
    int next = -1;
    int64_t soonest = 0;
    for (int k = 0; k < K; k++) {
      const int64_t behind = s->weight[k] * (i + 1) - had[k] * W;            // in samples times W
      const int64_t left = W * (slack - 1) - slack * behind;                 // until it is too far behind
      if (behind * slack < W) continue;
      if (next < 0 || left * s->weight[next] < soonest * s->weight[k]) next = k, soonest = left;
    }
    CHECK(next >= 0, "sampler: no source is due at sample %lld of %lld", (long long)i, (long long)W);
    s->order[i] = (uint32_t)next << MIXTURE_RANK_BITS | (uint32_t)had[next]++;
  }
}

bool sampler_init(Sampler *s, const Split *split, SamplerOptions o, void *memory, Error *e,
                  const Packing *packing) {
  CHECK(o.batch >= 1 && o.seq_len >= 1 && o.microbatches >= 1, "sampler: batch %lld, seq_len %lld, microbatches %lld",
        (long long)o.batch, (long long)o.seq_len, (long long)o.microbatches);
  *e = {};
  *s = {split, o, sampler_samples_numel(split, o.seq_len, packing), 0, 0, NULL, packing, sampler_period(split), {}};
  if (sampler_bytes(split, o, packing)) s->order = (uint32_t *)memory;
  const int64_t n = s->samples_numel, per_step = o.batch * o.microbatches;
  if (n < per_step)
    return fail_with(e, EXIT_USAGE, "the corpus is shorter than one global batch: its %lld training tokens make %lld "
                     "sample%s of --seq_len %lld, and a step takes %lld (%lld microbatch%s of --batch_size %lld): use "
                     "a larger corpus, or a smaller --seq_len, --batch_size, --global_batch or number of ranks",
                     (long long)split->tokens_numel, (long long)n, n == 1 ? "" : "s", (long long)o.seq_len,
                     (long long)per_step, (long long)o.microbatches, o.microbatches == 1 ? "" : "es",
                     (long long)o.batch);
  for (int k = 0; k < split->sources; k++) {
    s->weight[k] = split->source[k].weight;
    if (sampler_source_numel(split, k, o.seq_len, packing) < 1)
      return fail_with(e, EXIT_USAGE, "%s has %lld tokens, %s one sample of --seq_len %lld", split->source[k].name,
                       (long long)split->source[k].tokens_numel, packing ? "none of them trained on within" : "too few "
                       "for", (long long)o.seq_len);
  }
  s->steps_per_epoch = o.drop_last ? n / per_step : (n + per_step - 1) / per_step;
  if (s->period) sampler_mix(s);
  sampler_set_epoch(s, 0);
  return true;
}

// The sample at position p of the epoch, 0 <= p < steps_per_epoch M B. Past the last sample it wraps around. Not for
// mixtures.
static inline int64_t sampler_sample(const Sampler *s, int64_t p) {
  p %= s->samples_numel;
  if (s->order) return (int64_t)s->order[p];
  const uint64_t key = data_key(s->options.seed, (uint64_t)s->epoch);
  return s->options.shuffle ? (int64_t)data_permute(key, (uint64_t)p, (uint64_t)s->samples_numel) : p;
}
// First token in the stream of the sample at position p of the epoch; with packing the number of its sequence.
static inline int64_t sampler_first(const Sampler *s, int64_t p) {
  const SamplerOptions *o = &s->options;
  const int64_t each = s->packing ? 1 : o->seq_len;
  if (!s->period) return sampler_sample(s, p) * each;
  p += s->epoch * s->steps_per_epoch * o->batch * o->microbatches;      // a mixture's order continues over epochs
  const uint32_t turn = s->order[p % s->period];
  const int k = (int)(turn >> MIXTURE_RANK_BITS);
  const SplitSource *source = &s->split->source[k];
  const int64_t n = sampler_source_numel(s->split, k, o->seq_len, s->packing);
  const int64_t drawn = p / s->period * s->weight[k] + (turn & ((1u << MIXTURE_RANK_BITS) - 1)), pass = drawn / n;
  const uint64_t key = data_key(data_key(o->seed, (uint64_t)pass), (uint64_t)k);
  const int64_t i = o->shuffle ? (int64_t)data_permute(key, (uint64_t)(drawn % n), (uint64_t)n) : drawn % n;
  return (s->packing ? s->packing->first[k] : source->first) + i * each;
}

void microbatch_fill(const Sampler *s, int64_t step_in_epoch, int64_t m, int32_t *inputs, int32_t *targets,
                     int32_t *starts, float *weights) {
  const SamplerOptions *o = &s->options;
  CHECK(step_in_epoch >= 0 && step_in_epoch < s->steps_per_epoch && m >= 0,
        "microbatch_fill: step %lld of %lld, microbatch %lld of %lld", (long long)step_in_epoch,
        (long long)s->steps_per_epoch, (long long)m, (long long)o->microbatches);
  for (int64_t b = 0; b < o->batch; b++) {
    const int64_t p = (step_in_epoch * o->microbatches + m) * o->batch + b, to = b * o->seq_len;
    const int64_t first = m < o->microbatches ? sampler_first(s, p) : -1;
    if (s->packing)
      packing_fill(s->packing, first < 0 ? s->packing->rows : first, inputs + to, targets + to, starts + to,
                   weights ? weights + to : NULL);
    else if (first >= 0) split_read_sample(s->split, first, o->seq_len, inputs + to, targets + to);
    else for (int64_t t = to; t < to + o->seq_len; t++) inputs[t] = 0, targets[t] = -1;
  }
}
void microbatch_read_ahead(const Sampler *s, int64_t step_in_epoch, int64_t m) {
  const SamplerOptions *o = &s->options;
  const bool any = s->split->files && step_in_epoch < s->steps_per_epoch && m < o->microbatches;
  for (int64_t b = 0; b < o->batch && any; b++)
    split_read_ahead(s->split, sampler_first(s, (step_in_epoch * o->microbatches + m) * o->batch + b), o->seq_len + 1);
}

// ---- evaluation
int64_t eval_windows_numel(const Split *split, int64_t seq_len) {
  return (split_targets_numel(split) + seq_len - 1) / seq_len;
}

int64_t eval_window_fill(const Split *split, int64_t seq_len, int64_t w, int32_t *inputs, int32_t *targets) {
  const int64_t first = w * seq_len, left = split_targets_numel(split) - first;
  const int64_t count = left < 0 ? 0 : left < seq_len ? left : seq_len;
  if (count) split_read_sample(split, first, count, inputs, targets);
  for (int64_t t = count; t < seq_len; t++) inputs[t] = 0, targets[t] = -1;
  return count;
}
