// store.h: moves the sharded state between memory and files as a TensorMap says. Every rank writes and reads its own
// bytes; nothing is gathered and no rank holds more than its shards.
//
//   1 chunks      the elements of this rank's shards, in pieces, and their bytes in a file
//   2 memory      everything it takes: planned before, taken once
//   3 saving      store_save_begin, store_poll, store_wait: at once, or in the background from a snapshot
//   4 loading     store_load
//
// Conventions
//   - Files are in a directory that rank 0 sees. A rank whose host does not see it (no shared directory) streams its
//     chunks to rank 0, or asks rank 0 for them: two buffers of bounded size each way.
//   - No MPI outside the main thread: a background save has one thread that writes; the main thread moves messages and
//     checks whether the save is done, in store_poll, which fsdp_poll calls between ops.
//   - Checksums are CRC-32C of blocks of STORE_BLOCK_BYTES of a file's tensors. Each rank knows what its bytes
//     contribute to each block, and contributions are XORed: only checksums travel.
//   - A save ends the same way on all ranks: every rank reports, rank 0 commits or discards and broadcasts which.
#pragma once
#include "checkpoint.h"
#include "kernels/cpu/threads.h"
#include "memory/memory.h"

#include <pthread.h>
#include <signal.h>

// A chunk is whole blocks, so that a reader can check what it reads.
enum { STORE_BLOCK_BYTES = 1 << 20, STORE_CHUNK_BYTES = 2 << 20 };
struct ChunkCursor { int state, param; int64_t done; };
enum StorePhase { STORE_IDLE, STORE_WRITING, STORE_AGREEING, STORE_COMMITTING, STORE_TELLING };
struct SaveBuffer { char *data; MPI_Request request; int state; };             // a FileSpan, then its bytes
struct Store {
  Fsdp *f;
  MPI_Comm comm;                                 // of checkpoints alone
  size_t bytes;                                  // taken, from one block:
  char *memory, *scratch[2], *snapshot;          // STORE_CHUNK_BYTES each; all that is written, or NULL
  int64_t *snapshot_at;                          // [states * params] elements
  SaveBuffer buffer[2];                          // several hosts only
  uint32_t *parts, *checksums;                   // [blocks] this rank's contributions; of all ranks
  StoreRecord *records;                          // [world + 1]; the last is the save's result
  int64_t blocks;
  // The save in flight.
  StorePhase phase;
  TensorMap map;
  StoreRequest request;
  ChunkCursor cursor;
  int fd[MAP_MAX_FILES];
  bool direct, own_done, cancelled;              // direct: this rank sees the files
  int remote_left;                               // rank 0: ranks that still stream
  pthread_t thread;
  bool threaded;
  int thread_done;                               // atomic
  int64_t bytes_done, bytes_total;               // of this rank: written (atomic); planned
  MPI_Request requests[2];
  StoreRecord *result;                           // of the last save, on every rank
  double ended_ms;                               // when it was known
  bool background;                               // room for a snapshot is planned
  float *adapters;                               // whole, while they are merged
};

// ================================================================================================ 1 chunks
// Bytes of a file: rows of row_bytes, one every stride bytes. In memory the rows are back to back.
struct FileSpan { int32_t file, last; int64_t offset, rows, row_bytes, stride; };

// A chunk: numel elements of a parameter's state. They start at element in_run of the run that this rank holds and at
// element in_param of the parameter, and are elements first, first + 1, ... of a tensor in a file. If the file has the
// matrix transposed, they are whole rows of it, or a part of one row.
struct Chunk { FileSpan span; TensorPlace place; int state, param; int64_t first, numel, in_run, in_param; };

// chunk_place for GGUF tensors. In quantization blocks: a chunk has whole blocks. With rows, `cols` long, that
// alternate with other rows: a chunk has whole rows, or a part of one.
static inline void chunk_place_gguf(Chunk *k, int64_t cols, int64_t left, int64_t most) {
  const TensorPlace *at = &k->place;
  const GgmlType *t = at->ggml ? ggml_type((uint32_t)at->ggml) : NULL;
  const int64_t nf4 = at->scale_block, values = nf4 ? nf4 : t ? t->values : 1;
  const int64_t bytes = nf4 ? nf4 / 2 : t ? t->bytes : (int64_t)dtype_bytes(at->dtype);
  const int64_t in_row = k->first % cols, before = k->first % values;
  const int64_t rows = at->in_turn && !in_row ? min64(left, most) / cols : 0, row_bytes = cols / values * bytes;
  k->numel = rows ? rows * cols : min64(min64(left, at->in_turn ? cols - in_row : left), most - before);
  const int64_t blocks = (before + k->numel + values - 1) / values;
  k->span = FileSpan{at->file, 0, at->at + k->first / values * bytes, 1, blocks * bytes, 0};
  if (rows) k->span.rows = rows, k->span.row_bytes = row_bytes, k->span.stride = 2 * row_bytes;
}
// Sets how many of `left` elements from k->first on go into one chunk, and their place in the file. values: elements of
// a quantization block, if the parameter is kept quantized.
static inline void chunk_place(Chunk *k, const Param *p, int64_t data_at, int64_t left, int64_t values) {
  const TensorPlace *at = &k->place;
  const int64_t b = (int64_t)dtype_bytes(at->dtype), most = STORE_CHUNK_BYTES / 4;
  if (at->ggml || at->in_turn || at->scales) {
    chunk_place_gguf(k, param_cols(p), left, most);
    return;
  }
  k->span = FileSpan{at->file, 0, at->at + k->first * b, 1, 0, 0};
  if (at->transposed) {
    const int64_t out = p->shape[0], in = p->shape[1], o = k->first / in, i = k->first % in;
    if (i || left < in) {
      k->numel = min64(in - i, left);
      k->span = FileSpan{at->file, 0, at->at + (i * out + o) * b, k->numel, b, out * b};
    } else {
      const int64_t rows = min64(left / in, max64(1, most / in));
      k->numel = rows * in;
      k->span = FileSpan{at->file, 0, at->at + o * b, in, rows * b, out * b};
    }
    return;
  }
  const int64_t in_data = k->span.offset - data_at, to_end = STORE_CHUNK_BYTES - in_data % STORE_CHUNK_BYTES;
  k->numel = min64(min64(left, most), max64(values, to_end / b / values * values));
  k->span.row_bytes = k->span.stride = k->numel * b;
}

// The next chunk of this rank's shards in the order of (state, parameter); states: a bit for each wanted. False: none.
static inline bool chunk_next(const Fsdp *f, const TensorMap *m, unsigned states, ChunkCursor *c, Chunk *k) {
  for (; c->state < MAP_STATES; c->state++, c->param = 0) {
    for (; c->param < m->params && states >> c->state & 1; c->param++, c->done = 0) {
      const Param *p = fsdp_param(f, c->param);
      const TensorPlace *place = tensor_place(m, c->state, c->param);
      Span run;
      if (place->file < 0 && !place->rows) continue;
      int64_t left = 0, first = 0;
      const TensorPlace *parts = place;
      for (;; c->done += left) {                 // skip parts that no file has
        left = 0;
        if (!fsdp_span(f, c->param, fsdp_shard(f), &run, c->done)) break;
        left = min64(run.numel, param_numel(p) - run.in_range), first = run.in_range;
        if (left <= 0) break;
        place = tensor_part(parts, param_cols(p), &first, &left);
        if (place->file >= 0) break;
      }
      if (left <= 0) continue;
      *k = Chunk{{}, *place, c->state, c->param, first, 0, c->done, run.in_range};
      chunk_place(k, p, m->data_at[place->file], left, p->keeps ? block_values(p->kept[run.part]) : 1);
      c->done += k->numel;
      return true;
    }
  }
  return false;
}
// Blocks with a checksum of a file's tensors.
static inline int64_t map_blocks(const TensorMap *m, int file) {
  return (m->file_bytes[file] - m->data_at[file] + STORE_BLOCK_BYTES - 1) / STORE_BLOCK_BYTES;
}
static inline int64_t span_bytes(const FileSpan *s) { return s->rows * s->row_bytes; }

int64_t store_own_bytes(const Fsdp *f, const TensorMap *m, unsigned states) {
  ChunkCursor c = {};
  Chunk k;
  int64_t bytes = 0;
  while (chunk_next(f, m, states, &c, &k)) bytes += span_bytes(&k.span);
  return bytes;
}

// (rows, cols) of any floating dtype -> (cols, rows) fp32. Tiles of 16 x 16 keep both sides in cache.
static void transpose_to_f32(float *to, const void *from, Dtype dtype, int64_t rows, int64_t cols) {
  enum { TILE = 16 };
  DISPATCH(dtype, T, {
    const T *in = (const T *)from;
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)
      for (int64_t c0 = 0; c0 < cols; c0 += TILE)
        for (int64_t c = c0; c < min64(c0 + TILE, cols); c++)
          for (int64_t r = r0; r < min64(r0 + TILE, rows); r++) to[c * rows + r] = to_f32(in[r * cols + c]);
  });
}
// Whether the bytes of the span are in another order than the elements in memory.
static inline bool chunk_is_turned(const Chunk *k) { return k->place.transposed && k->span.rows < k->numel; }

// ================================================================================================ 2 memory
enum BufferState { BUFFER_FREE, BUFFER_MOVING, BUFFER_FULL };      // MOVING: MPI has it. FULL: to be written.

// Whether checkpoints have a parameter: with adapters, they have only param_trains_beside.
static inline bool store_saves(const Fsdp *f, const Param *p) {
  return !fsdp_has_adapters(f) || param_trains_beside(p);
}
// A snapshot holds the run of every such parameter in every state that this rank writes, each padded to whole cache
// lines. Fills at[state * params + param] with its offset, if `at` is not NULL; returns the total bytes. Replicas hold
// the same: the first one writes.
static inline int64_t store_snapshot_layout(const Fsdp *f, int64_t *at) {
  int64_t numel = 0;
  for (int i = 0; i < MAP_STATES * fsdp_params(f) && !fsdp_replica(f); i++) {
    const Param *p = fsdp_param(f, i % fsdp_params(f));
    const int state = i / fsdp_params(f);
    Span run;
    if (at) at[i] = numel;
    if (!store_saves(f, p) || (state > fsdp_param_state(f, i % fsdp_params(f)).moments && state)) continue;
    if (fsdp_span(f, i % fsdp_params(f), fsdp_shard(f), &run)) numel += round_up(run.numel, PARAM_ALIGN_NUMEL);
  }
  return numel * 4;
}
static inline int64_t store_snapshot_bytes(const Fsdp *f) { return store_snapshot_layout(f, NULL); }
// Blocks of all tensors of all states, over both files of a checkpoint.
static inline int64_t store_blocks(const Fsdp *f) {
  int64_t numel = 0, moments = 0;
  for (int p = 0; p < fsdp_params(f); p++) {
    numel += param_numel(fsdp_param(f, p));
    moments += fsdp_param_state(f, p).moments * param_numel(fsdp_param(f, p));
  }
  const int64_t block = STORE_BLOCK_BYTES;
  return (numel * 4 + block - 1) / block + (moments * 4 + block - 1) / block;
}
enum { BUFFER_BYTES = STORE_CHUNK_BYTES + 256 };
static size_t store_plan_bytes(const Fsdp *f, bool background) {
  return (size_t)(2 * STORE_CHUNK_BYTES + (fsdp_hosts(f) > 1 ? 2 * BUFFER_BYTES : 0) +
                  (background ? store_snapshot_bytes(f) : 0) + round_up(store_blocks(f) * 8, 256) +
                  round_up((int64_t)sizeof(StoreRecord) * (fsdp_world(f) + 1), 256));
}

Store *store_plan(Fsdp *f, MemoryPlan *plan, bool background, bool merges) {
  Store *s = (Store *)calloc(1, sizeof(Store));
  s->f = f, s->background = background;
  memory_declare(plan, MEM_CHECKPOINT, store_plan_bytes(f, background), &s->memory);
  memory_declare(plan, MEM_CHECKPOINT, merges ? sizeof(float) * (size_t)lora_numel(f, fsdp_params(f)) : 0,
                 &s->adapters);
  return s;
}
// Sets it up in its memory. store_end: the memory stays its own.
static void store_begin(Store *s, Fsdp *f, bool background) {
  char *at = s->memory;
  float *const adapters = s->adapters;
  *s = Store{};
  s->memory = at;
  s->adapters = adapters;
  s->f = f;
  MPI_Comm_dup(fsdp_comm(f), &s->comm);
  s->blocks = store_blocks(f);
  s->bytes = store_plan_bytes(f, background);
  for (int i = 0; i < 2; i++, at += STORE_CHUNK_BYTES) s->scratch[i] = at;
  for (int i = 0; i < 2 && fsdp_hosts(f) > 1; i++, at += BUFFER_BYTES) s->buffer[i].data = at;
  s->snapshot_at = (int64_t *)calloc((size_t)(MAP_STATES * fsdp_params(f)), sizeof(int64_t));
  if (background) { s->snapshot = at; at += store_snapshot_layout(f, s->snapshot_at); }
  s->records = (StoreRecord *)at;
  s->result = s->records + fsdp_world(f);
  s->parts = (uint32_t *)(at + round_up((int64_t)sizeof(StoreRecord) * (fsdp_world(f) + 1), 256));
  s->checksums = s->parts + s->blocks;
  // The first use of a page costs more than copying it: pay now, so that the first save does not pause training longer.
  for (int64_t i = 0; background && i < store_snapshot_bytes(f); i += 4096) s->snapshot[i] = 0;
}
static void store_end(Store *s) {
  CHECK(s->phase == STORE_IDLE, "%s while a save is in flight", __func__);
  tensor_map_free(&s->map);
  free(s->snapshot_at);
  MPI_Comm_free(&s->comm);
  char *memory = s->memory;
  float *const adapters = s->adapters;
  *s = Store{};
  s->memory = memory;
  s->adapters = adapters;
}
void store_open(Store *s) { store_begin(s, s->f, s->background); }
void store_close(Store *s) {
  if (s && s->snapshot_at) store_end(s);
  free(s);
}

// ================================================================================================ 3 saving
bool store_fail(StoreRecord *r, const char *fmt, ...) {
  if (r->failed) return false;                   // the first reason is the one that matters
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(r->error, sizeof r->error, fmt, ap);
  va_end(ap);
  r->failed = 1;
  return false;
}
static inline StoreRecord *store_mine(Store *s) { return &s->records[fsdp_rank(s->f)]; }

// Copies everything that will be written into the snapshot. Training waits for this.
static inline void store_take_snapshot(Store *s) {
  Fsdp *f = s->f;
  for (int i = 0; i < MAP_STATES * fsdp_params(f) && !fsdp_replica(f); i++) {
    const int state = i / fsdp_params(f), p = i % fsdp_params(f);
    if (store_saves(f, fsdp_param(f, p)))
      fsdp_snapshot_own(f, (ShardState)state, p, (float *)s->snapshot + s->snapshot_at[i]);
  }
  fsdp_snapshot_wait(f);
}

// The bytes of a chunk in the order of its span, valid until the next call. Only the main thread touches a device.
static inline const char *store_chunk_data(Store *s, const Chunk *k) {
  Fsdp *f = s->f;
  float *from = (float *)s->scratch[0];
  if (s->request.background) {
    from = (float *)s->snapshot + s->snapshot_at[k->state * fsdp_params(f) + k->param] + k->in_run;
  } else {
    float *const run = s->request.merge ? NULL : fsdp_own_on_host(f, (ShardState)k->state, k->param);
    if (run) from = run + k->in_run;
    else fsdp_get_own(f, (ShardState)k->state, k->param, k->in_run, from, k->numel);
    if (s->request.merge) lora_merge(f, s->request.merge, s->adapters, k->param, k->in_param, from, k->numel);
  }
  char *to = s->scratch[1];
  const int64_t in = fsdp_param(f, k->param)->shape[1];
  if (chunk_is_turned(k)) {
    transpose_to_f32((float *)to, from, F32, k->numel / in, in);
    from = (float *)to, to = s->scratch[0];
  }
  float *const less = (float *)s->scratch[0];
  for (int64_t i = 0; i < k->numel && k->place.plus != 0; i++) less[i] = from[i] - k->place.plus;
  if (k->place.plus != 0) from = less;
  if (k->place.dtype == F32) return (const char *)from;
  for (int64_t i = 0; i < k->numel; i++) round_to((bf16 *)to + i, from[i]);
  return to;
}

// Adds a chunk's contribution to the checksums of the blocks it touches.
static inline void store_add_checksums(Store *s, const Chunk *k, const char *data) {
  const TensorMap *m = &s->map;
  const int file = k->span.file;
  const int64_t data_bytes = m->file_bytes[file] - m->data_at[file];
  int64_t block0 = 0, at = k->span.offset - m->data_at[file];
  for (int i = 0; i < file; i++) block0 += map_blocks(m, i);
  for (int64_t left = span_bytes(&k->span); left > 0;) {
    const int64_t block = at / STORE_BLOCK_BYTES, end = min64((block + 1) * STORE_BLOCK_BYTES, data_bytes);
    const int64_t n = min64(left, end - at);
    s->parts[block0 + block] ^= crc32c_part(data, (size_t)n, (uint64_t)(end - at - n));
    data += n;
    at += n;
    left -= n;
  }
}

static inline bool store_write_span(Store *s, const FileSpan *span, const char *data) {
  const char *path = s->map.path[span->file];
  for (int64_t r = 0; r < span->rows; r++)
    if (!file_write(s->fd[span->file], path, data + r * span->row_bytes, span->row_bytes,
                    span->offset + r * span->stride))
      return store_fail(store_mine(s), "cannot write %.300s: %s", path, strerror(errno));
  return true;
}

// Writes what has arrived from a rank that does not see the files. Returns whether there was something.
static inline bool store_write_streamed(Store *s) {
  for (SaveBuffer &m : s->buffer) {
    if (__atomic_load_n(&m.state, __ATOMIC_ACQUIRE) != BUFFER_FULL) continue;
    const FileSpan *span = (const FileSpan *)m.data;
    if (!store_mine(s)->failed) store_write_span(s, span, m.data + sizeof(FileSpan));
    __atomic_store_n(&m.state, BUFFER_FREE, __ATOMIC_RELEASE);
    return true;
  }
  return false;
}

// Writes one chunk, a streamed one or this rank's next, on a rank that sees the files. False: nothing to do now.
static inline bool store_work(Store *s) {
  if (store_write_streamed(s)) return true;
  Chunk k;
  if (s->own_done) return false;
  if (__atomic_load_n(&s->cancelled, __ATOMIC_RELAXED)) store_fail(store_mine(s), "given up: the run ends");
  if (store_mine(s)->failed || !chunk_next(s->f, &s->map, s->request.states, &s->cursor, &k)) {
    s->own_done = true;
    return true;
  }
  const char *data = store_chunk_data(s, &k);
  if (s->request.checksums) store_add_checksums(s, &k, data);
  if (store_write_span(s, &k.span, data)) __atomic_add_fetch(&s->bytes_done, span_bytes(&k.span), __ATOMIC_RELAXED);
  return true;
}
static inline bool store_all_written(const Store *s) {
  bool streams = __atomic_load_n(&s->remote_left, __ATOMIC_ACQUIRE) == 0;
  for (const SaveBuffer &m : s->buffer) streams = streams && __atomic_load_n(&m.state, __ATOMIC_ACQUIRE) == BUFFER_FREE;
  return s->own_done && streams;
}
static inline void store_sync_files(Store *s) {
  for (int i = 0; i < s->map.files; i++) {
    if (s->fd[i] >= 0 && !store_mine(s)->failed && !s->result->failed && !file_sync(s->fd[i], s->map.path[i]))
      store_fail(store_mine(s), "cannot write %.300s: %s", s->map.path[i], strerror(errno));
    if (s->fd[i] >= 0 && close(s->fd[i]))
      store_fail(store_mine(s), "cannot write %.300s: %s", s->map.path[i], strerror(errno));
    s->fd[i] = -1;
  }
}
static inline void *store_write_thread(void *to) {
  Store *s = (Store *)to;
  while (!store_all_written(s))
    if (!store_work(s)) usleep(200);             // other ranks' chunks come at network speed
  store_sync_files(s);
  __atomic_store_n(&s->thread_done, 1, __ATOMIC_RELEASE);
  return NULL;
}
static inline void *store_commit_thread(void *to) {
  Store *s = (Store *)to;
  const StoreCommit *end = &s->request.end;
  Error error = {};
  if (!s->result->failed && !end->commit(end->to, &s->map, s->checksums, &error))
    store_fail(s->result, "rank 0: %s", error.text);
  if (s->result->failed) end->discard(end->to);
  __atomic_store_n(&s->thread_done, 1, __ATOMIC_RELEASE);
  return NULL;
}
// Runs `work` in a thread. If the save is not in the background or no thread can be started, a commit runs right here,
// and store_poll does the writing.
static inline void store_start(Store *s, void *(*work)(void *)) {
  sigset_t all, before;
  s->thread_done = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);   // signals go to the main thread
  if (thread_place) thread_place(-1);            // a new thread runs where the one that starts it may
  s->threaded = s->request.background && !pthread_create(&s->thread, NULL, work, s);
  if (thread_place) thread_place(0);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!s->threaded && work == store_commit_thread) work(s);
}

// store_receive, on rank 0: receives chunks into free buffers. Ranks that do not see the files send their chunks.
enum { STORE_TAG_CHUNK = 1, STORE_TAG_ASK, STORE_TAG_ANSWER };
static inline void store_receive(Store *s) {
  for (SaveBuffer &m : s->buffer) {
    int arrived = 0;
    const bool moving = __atomic_load_n(&m.state, __ATOMIC_ACQUIRE) == BUFFER_MOVING;
    if (moving) MPI_Test(&m.request, &arrived, MPI_STATUS_IGNORE);
    if (arrived && ((const FileSpan *)m.data)->last) {
      __atomic_store_n(&m.state, BUFFER_FREE, __ATOMIC_RELEASE);
      __atomic_sub_fetch(&s->remote_left, 1, __ATOMIC_RELEASE);
    } else if (arrived) {
      __atomic_store_n(&m.state, BUFFER_FULL, __ATOMIC_RELEASE);
    }
  }
  for (SaveBuffer &m : s->buffer) {
    const int state = __atomic_load_n(&m.state, __ATOMIC_ACQUIRE);
    if (s->remote_left && state == BUFFER_FREE) {
      __atomic_store_n(&m.state, BUFFER_MOVING, __ATOMIC_RELEASE);
      MPI_Irecv(m.data, BUFFER_BYTES, MPI_BYTE, MPI_ANY_SOURCE, STORE_TAG_CHUNK, s->comm, &m.request);
    }
    if (s->remote_left || state != BUFFER_MOVING) continue;
    MPI_Status status;                           // no rank sends any more: a receive that still waits is cancelled
    int taken_back;
    MPI_Cancel(&m.request);
    MPI_Wait(&m.request, &status);
    MPI_Test_cancelled(&status, &taken_back);
    __atomic_store_n(&m.state, taken_back ? BUFFER_FREE : BUFFER_FULL, __ATOMIC_RELEASE);
  }
}
static inline void store_send(Store *s) {
  for (SaveBuffer &m : s->buffer) {
    int sent = 1;
    if (m.state == BUFFER_MOVING) MPI_Test(&m.request, &sent, MPI_STATUS_IGNORE);
    if (!sent) continue;
    m.state = BUFFER_FREE;
    if (s->own_done) continue;
    Chunk k = {};
    FileSpan *head = (FileSpan *)m.data;
    if (s->cancelled) store_fail(store_mine(s), "given up: the run ends");
    if (s->cancelled || !chunk_next(s->f, &s->map, s->request.states, &s->cursor, &k)) {
      s->own_done = true;
      k.span = FileSpan{};
      k.span.last = 1;
    } else {
      const char *data = store_chunk_data(s, &k);
      if (s->request.checksums) store_add_checksums(s, &k, data);
      memcpy(m.data + sizeof(FileSpan), data, (size_t)span_bytes(&k.span));
      s->bytes_done += span_bytes(&k.span);
    }
    *head = k.span;
    m.state = BUFFER_MOVING;
    MPI_Isend(m.data, (int)sizeof(FileSpan) + (int)span_bytes(head), MPI_BYTE, 0, STORE_TAG_CHUNK, s->comm, &m.request);
  }
}

// Rank 0 creates the files and writes their headers. On failure r has one line.
static inline bool store_create_files(Store *s, StoreRecord *r) {
  const TensorMap *m = &s->map;
  for (int i = 0; i < m->files && !r->failed; i++) {
    char directory[MAP_PATH_BYTES];
    snprintf(directory, sizeof directory, "%s", m->path[i]);
    *strrchr(directory, '/') = 0;
    if ((s->fd[i] = file_create(m->path[i], directory)) < 0 || !file_reserve(s->fd[i], m->path[i], m->file_bytes[i]) ||
        !file_write(s->fd[i], m->path[i], s->request.header[i], m->data_at[i], 0))
      store_fail(r, "rank 0: cannot write %.300s (%lld bytes): %s", m->path[i], (long long)m->file_bytes[i],
                 strerror(errno));
  }
  return !r->failed;
}

bool store_save_begin(Store *s, TensorMap *map, StoreRequest request) {
  CHECK(s->phase == STORE_IDLE, "%s while a save is in flight", __func__);
  CHECK(!request.background || s->snapshot, "%s: no memory was taken for a snapshot", __func__);
  tensor_map_free(&s->map);
  s->map = *map;
  *map = TensorMap{};
  s->request = request;
  if (request.merge) lora_gather(s->f, s->adapters);
  if (fsdp_replica(s->f)) s->request.states = 0;            // the first replica has the same and writes it
  s->cursor = ChunkCursor{};
  s->own_done = s->cancelled = s->threaded = false;
  s->bytes_done = 0;
  s->bytes_total = store_own_bytes(s->f, &s->map, s->request.states);
  memset(s->records, 0, sizeof(StoreRecord) * (size_t)(fsdp_world(s->f) + 1));
  memset(s->parts, 0, sizeof(uint32_t) * (size_t)s->blocks);
  for (int &fd : s->fd) fd = -1;
  s->ended_ms = now_ms();
  const int rank = fsdp_rank(s->f);
  if (!rank && !store_create_files(s, s->result)) request.end.discard(request.end.to);
  MPI_Bcast(s->result, sizeof(StoreRecord), MPI_BYTE, 0, s->comm);
  const bool idle = rank && !s->bytes_total;     // it neither opens the files nor streams
  s->direct = !rank || idle || fsdp_hosts(s->f) == 1 || !access(s->map.path[0], W_OK);
  for (int i = 0; i < s->map.files && rank && !idle && s->direct && !s->result->failed; i++)
    if ((s->fd[i] = file_open(s->map.path[i])) < 0)
      store_fail(store_mine(s), "cannot write %.300s: %s", s->map.path[i], strerror(errno));
  int streams = !s->direct, all_streams = 0;
  MPI_Allreduce(&streams, &all_streams, 1, MPI_INT, MPI_SUM, s->comm);
  s->remote_left = rank ? 0 : all_streams;
  if (s->result->failed) { store_sync_files(s); return false; }
  if (request.background) store_take_snapshot(s);
  s->phase = STORE_WRITING;
  if (s->direct) store_start(s, store_write_thread);
  return true;
}

static inline bool store_written(Store *s) {
  if (!fsdp_rank(s->f) && s->buffer[0].data) store_receive(s);
  if (!s->direct) {
    store_send(s);
    return s->own_done && s->buffer[0].state == BUFFER_FREE && s->buffer[1].state == BUFFER_FREE;
  }
  if (s->threaded) {
    if (!__atomic_load_n(&s->thread_done, __ATOMIC_ACQUIRE)) return false;
    pthread_join(s->thread, NULL);
    s->threaded = false;
    return true;
  }
  store_work(s);
  if (!store_all_written(s)) return false;
  store_sync_files(s);
  return true;
}
// Finishes the checksums and finds the first rank whose part failed.
static inline void store_conclude(Store *s) {
  int64_t at = 0;
  for (int i = 0; i < s->map.files && s->request.checksums; i++) {
    const int64_t bytes = s->map.file_bytes[i] - s->map.data_at[i];
    for (int64_t from = 0; from < bytes; from += STORE_BLOCK_BYTES, at++)
      s->checksums[at] = crc32c_of_parts(s->checksums[at], (uint64_t)min64(STORE_BLOCK_BYTES, bytes - from));
  }
  for (int r = fsdp_world(s->f) - 1; r >= 0; r--)
    if (s->records[r].failed) {
      s->result->failed = 1;
      const int most = STORE_ERROR_BYTES - 32;
      snprintf(s->result->error, STORE_ERROR_BYTES, "rank %d: %.*s", r, most, s->records[r].error);
    }
}

bool store_poll(Store *s) {
  int done = 0;
  if (s->phase == STORE_WRITING && store_written(s)) {
    const int blocks = s->request.checksums ? fsdp_mpi_count(s->blocks) : 0;
    MPI_Iallreduce(s->parts, s->checksums, blocks, MPI_UINT32_T, MPI_BXOR, s->comm, &s->requests[0]);
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, s->records, sizeof(StoreRecord), MPI_BYTE, s->comm, &s->requests[1]);
    s->phase = STORE_AGREEING;
  }
  if (s->phase == STORE_AGREEING) {
    MPI_Testall(2, s->requests, &done, MPI_STATUSES_IGNORE);
    if (!done) return false;
    s->phase = STORE_COMMITTING;
    store_conclude(s);
    if (!fsdp_rank(s->f)) {
      liveness_arrived();                        // this rank waits for its disk, not for a peer
      store_start(s, store_commit_thread);
    }
  }
  if (s->phase == STORE_COMMITTING) {
    if (!fsdp_rank(s->f) && !__atomic_load_n(&s->thread_done, __ATOMIC_ACQUIRE)) return false;
    if (s->threaded && !fsdp_rank(s->f)) pthread_join(s->thread, NULL);
    s->threaded = false;
    MPI_Ibcast(s->result, sizeof(StoreRecord), MPI_BYTE, 0, s->comm, &s->requests[0]);
    s->phase = STORE_TELLING;
  }
  if (s->phase == STORE_TELLING) {
    MPI_Test(&s->requests[0], &done, MPI_STATUS_IGNORE);
    if (done) { s->phase = STORE_IDLE; s->ended_ms = now_ms(); }
  }
  return s->phase == STORE_IDLE;
}

StoreRecord *store_result(Store *s) { return s->result; }
double store_ended_ms(const Store *s) { return s->ended_ms; }
void store_background(void *to) { if (((Store *)to)->phase != STORE_IDLE) store_poll((Store *)to); }
bool store_progress(const Store *s, int64_t *done, int64_t *total) {
  *done = __atomic_load_n(&s->bytes_done, __ATOMIC_RELAXED), *total = s->bytes_total;
  return s->phase != STORE_IDLE;
}
void store_cancel(Store *s) { __atomic_store_n(&s->cancelled, true, __ATOMIC_RELAXED); }
void store_wait(Store *s, void (*progress)(void *to), void *to) {
  for (int spins = 0, looks = 0; !store_poll(s);) {
    if (progress) progress(to);
    if (s->threaded && !__atomic_load_n(&s->thread_done, __ATOMIC_ACQUIRE)) {
      usleep(500);                               // for its own thread: a report must not say that it waits for others
    } else if (s->phase != STORE_WRITING || s->own_done) {
      liveness_pause(&spins, "the end of a save", STAGE_NONE);
      if (looks < 1000) looks++;
      else usleep(500);
    }
  }
  liveness_arrived();
}

// ================================================================================================ 4 loading
// checksums: NULL, or a CRC-32C a block as store_conclude leaves them.
// seen: a checksum of a file beside them, which also shows whether a rank sees rank 0's files.
struct StoreLoad {
  const TensorMap *map;
  const uint32_t *checksums;
  uint32_t seen;
  ValuePass pass;                                // the first of two where frozen matrices need their scales
  bool direct;                                   // this rank sees the files
  int fd[MAP_MAX_FILES];
  int held_file;                                 // scratch[0] holds bytes [held_from, held_to) of this file's tensors
  int64_t held_from, held_to;
  int64_t bytes_done, bytes_total;
};
static inline bool store_open_files(StoreLoad *l, StoreRecord *r) {
  const TensorMap *m = l->map;
  for (int i = 0; i < m->files && !r->failed; i++) {
    struct stat st;
    if ((l->fd[i] = open(m->path[i], O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0 || fstat(l->fd[i], &st))
      return store_fail(r, "cannot open %.300s: %s", m->path[i], strerror(errno));
    if (st.st_size != m->file_bytes[i])
      return store_fail(r, "%.300s has %lld bytes, not the %lld it should have: it is not whole", m->path[i],
                        (long long)st.st_size, (long long)m->file_bytes[i]);
  }
  return true;
}

// Reads whole blocks around [from, to) of a file's tensors into scratch[0] and checks them.
static inline bool store_read_blocks(Store *s, StoreLoad *l, int file, int64_t from, int64_t to, StoreRecord *r) {
  const TensorMap *m = l->map;
  const int64_t data_bytes = m->file_bytes[file] - m->data_at[file], block = STORE_BLOCK_BYTES;
  if (l->held_file == file && l->held_from <= from && to <= l->held_to) return true;
  l->held_file = -1;
  const int64_t a = from / block * block, b = min64((to + block - 1) / block * block, data_bytes);
  if (!file_read(l->fd[file], s->scratch[0], b - a, m->data_at[file] + a))
    return store_fail(r, "cannot read %.300s: %s", m->path[file], strerror(errno));
  int64_t block0 = 0;
  for (int i = 0; i < file; i++) block0 += map_blocks(m, i);
  for (int64_t at = a; at < b; at += block) {
    const int64_t n = min64(block, b - at);
    const uint32_t want = l->checksums[block0 + at / block], got = crc32c(0, s->scratch[0] + (at - a), (size_t)n);
    if (want != got)
      return store_fail(r, "bytes %lld to %lld of %s are damaged: their CRC-32C is %08x, not the recorded %08x",
                        (long long)(m->data_at[file] + at), (long long)(m->data_at[file] + at + n), m->path[file], got,
                        want);
  }
  l->held_file = file;
  l->held_from = a;
  l->held_to = b;
  return true;
}
// Reads the bytes of a span into scratch[0] and returns them; on failure NULL, with the reason in r.
static inline const char *store_read_span(Store *s, StoreLoad *l, const FileSpan *span, StoreRecord *r) {
  if (l->checksums && span->rows == 1) {
    const int64_t from = span->offset - l->map->data_at[span->file];
    if (!store_read_blocks(s, l, span->file, from, from + span->row_bytes, r)) return NULL;
    return s->scratch[0] + (from - l->held_from);
  }
  l->held_file = -1;
  for (int64_t row = 0; row < span->rows; row++)
    if (!file_read(l->fd[span->file], s->scratch[0] + row * span->row_bytes, span->row_bytes,
                   span->offset + row * span->stride)) {
      store_fail(r, "cannot read %.300s: %s", l->map->path[span->file], strerror(errno));
      return NULL;
    }
  return s->scratch[0];
}

// store_read_span for a rank that does not see the files: rank 0 reads the bytes and sends them.
static inline const char *store_ask(Store *s, const FileSpan *span, StoreRecord *r) {
  MPI_Send(span, sizeof *span, MPI_BYTE, 0, STORE_TAG_ASK, s->comm);
  if (span->last) return NULL;
  char *answer = s->buffer[0].data;
  MPI_Recv(answer, BUFFER_BYTES, MPI_BYTE, 0, STORE_TAG_ANSWER, s->comm, MPI_STATUS_IGNORE);
  if (*(int32_t *)answer) { store_fail(r, "%s", answer + 4); return NULL; }
  return answer + 8;
}
// Rank 0: answers requests until every asking rank has reported that it is done.
static inline void store_serve(Store *s, StoreLoad *l, int asking) {
  while (asking) {
    FileSpan span;
    MPI_Status from;
    StoreRecord r = {};
    MPI_Recv(&span, sizeof span, MPI_BYTE, MPI_ANY_SOURCE, STORE_TAG_ASK, s->comm, &from);
    if (span.last) { asking--; continue; }
    const char *data = store_read_span(s, l, &span, &r);
    char *answer = s->buffer[0].data;
    *(int32_t *)answer = r.failed;
    if (r.failed) snprintf(answer + 4, STORE_ERROR_BYTES, "%s", r.error);
    else memcpy(answer + 8, data, (size_t)span_bytes(&span));
    const int64_t bytes = r.failed ? 4 + STORE_ERROR_BYTES : 8 + span_bytes(&span);
    MPI_Send(answer, (int)bytes, MPI_BYTE, from.MPI_SOURCE, STORE_TAG_ANSWER, s->comm);
  }
}

static inline const char *store_get(Store *s, StoreLoad *l, const FileSpan *span, StoreRecord *r) {
  return l->direct ? store_read_span(s, l, span, r) : store_ask(s, span, r);
}
// The scales of a chunk's NF4 blocks, malloc'ed; NULL: the chunk is not in NF4, or reading failed (r says why).
static inline float *store_scales(Store *s, StoreLoad *l, const Chunk *k, StoreRecord *r) {
  if (!k->place.scales) return NULL;
  const Nf4Scales *x = &l->map->scales[k->place.scales - 1];
  const int64_t first = k->first / x->block, n = span_bytes(&k->span) / (x->block / 2), each = x->nested_block ? 1 : 4;
  float *scale = (float *)malloc((size_t)n * sizeof *scale);
  if (!scale) die_missing("no memory for the scales of %lld blocks", (long long)n);
  FileSpan span = {x->absmax.file, 0, x->absmax.at + first * each, 1, n * each, 0};
  const char *data = store_get(s, l, &span, r);
  if (data && !x->nested_block) memcpy(scale, data, (size_t)n * sizeof *scale);
  for (int64_t i = 0; data && x->nested_block && i < n; i++) scale[i] = x->map[(uint8_t)data[i]];
  if (data && x->nested_block) {
    const int64_t from = first / x->nested_block, end = (first + n - 1) / x->nested_block + 1;
    span = FileSpan{x->second.file, 0, x->second.at + 4 * from, 1, 4 * (end - from), 0};
    data = store_get(s, l, &span, r);
    for (int64_t i = 0; data && i < n; i++) {
      float second;
      memcpy(&second, data + 4 * ((first + i) / x->nested_block - from), 4);
      scale[i] = scale[i] * second + x->offset;
    }
  }
  if (data) return scale;
  free(scale);
  return NULL;
}

// Puts a chunk that was read into its shard: converted to fp32, and transposed back if the file has it transposed.
// scale: of blocks of NF4.
static inline void store_put_chunk(Store *s, const Chunk *k, const char *data, const float *scale, ValuePass pass) {
  Fsdp *f = s->f;
  if (scale) {
    const int64_t block = k->place.scale_block;
    float *to = (float *)s->scratch[1];
    nf4_expand(to, (const uint8_t *)data, scale, span_bytes(&k->span) / (block / 2), block);
    fsdp_set_own(f, (ShardState)k->state, k->param, k->in_run, to + k->first % block, k->numel, pass);
    return;
  }
  const Param *p = fsdp_param(f, k->param);
  const GgmlType *blocks = k->place.ggml ? ggml_type((uint32_t)k->place.ggml) : NULL;
  const int kept = p->keeps ? fsdp_own_type(f, k->param, k->in_run) : 0;
  if (kept && kept == (blocks ? k->place.ggml : block_of_dtype(k->place.dtype)) && !chunk_is_turned(k)) {
    if (pass == PASS_STORE) fsdp_set_own_blocks(f, k->param, k->in_run, data, k->numel);
    return;
  }
  if (blocks) {
    float *to = (float *)s->scratch[1];
    for (int64_t i = 0; i < span_bytes(&k->span) / blocks->bytes; i++)
      blocks->expand((const uint8_t *)data + i * blocks->bytes, to + i * blocks->values);
    fsdp_set_own(f, (ShardState)k->state, k->param, k->in_run, to + k->first % blocks->values, k->numel, pass);
    return;
  }
  const bool as_it_is = k->place.dtype == F32 && !chunk_is_turned(k) && k->place.plus == 0;
  const int64_t cols = chunk_is_turned(k) ? p->shape[1] : 1;
  float *const turned = (float *)s->scratch[1];
  if (!as_it_is) transpose_to_f32(turned, data, k->place.dtype, cols, k->numel / cols);
  for (int64_t i = 0; i < k->numel && k->place.plus != 0; i++) turned[i] += k->place.plus;
  fsdp_set_own(f, (ShardState)k->state, k->param, k->in_run, as_it_is ? (const float *)data : turned, k->numel, pass);
}

// What a rank finds under the paths of the files that rank 0 has opened.
enum FileSeen { FILE_SAME, FILE_MISSING, FILE_OTHER };
// A hash that identifies a file: of its size, its header and evenly spaced blocks after that, for all files of a map
// together up to 16 MiB. (It is weaker than checksums of all blocks.) 0: the file cannot be read.
static inline uint64_t store_file_hash(const TensorMap *m, int file) {
  enum { LOOKS = 256 };
  struct stat st = {};
  const int fd = open(m->path[file], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  uint64_t hash = 0;
  bool ok = fd >= 0 && !fstat(fd, &st);
  const int64_t head = min64(m->data_at[file], st.st_size);
  hash = data_mix((uint64_t)st.st_size + 1);
  ok = ok && file_hash_blocks(fd, 0, head, INT64_MAX, &hash) &&
       file_hash_blocks(fd, head, st.st_size, LOOKS / m->files, &hash);
  if (fd >= 0) close(fd);
  return ok ? hash | 1 : 0;
}
// Compares this rank's view of the files with rank 0's, by hashes and l->seen. *other: the first file that differs.
// All ranks call it.
static inline FileSeen store_look(Store *s, const StoreLoad *l, int *other) {
  const TensorMap *m = l->map;
  uint64_t mine[MAP_MAX_FILES + 1] = {}, first[MAP_MAX_FILES + 1];
  FileSeen found = FILE_SAME;
  for (int i = 0; i < m->files; i++) mine[i] = store_file_hash(m, i);
  mine[m->files] = l->seen;
  memcpy(first, mine, sizeof first);
  MPI_Bcast(first, sizeof first, MPI_BYTE, 0, s->comm);
  for (int i = m->files; i >= 0; i--)
    if (mine[i] != first[i]) found = mine[i] || i == m->files ? FILE_OTHER : FILE_MISSING, *other = i;
  return found;
}

// Whether a pass needs a chunk: only frozen E4M3 matrices are measured.
static inline bool store_pass_takes(const Fsdp *f, ValuePass pass, const Chunk *k) {
  return pass == PASS_STORE || (fsdp_param(f, k->param)->frozen && fsdp_param_state(f, k->param).dtype == F8);
}
// One pass of store_load, over the wanted states.
static inline void store_load_pass(Store *s, StoreLoad l, unsigned states, Error *error,
                              LoadProgress progress) {
  StoreRecord r = {};
  const int rank = fsdp_rank(s->f);
  const TensorMap *map = l.map;
  l.held_file = -1;
  for (int &fd : l.fd) fd = -1;
  int other = 0;
  const FileSeen seen = store_look(s, &l, &other);
  // Without checksums another file would be read as if it were rank 0's.
  const bool rejected = seen == FILE_OTHER && !l.checksums && rank;
  if (rejected)
    store_fail(&r, "%.250s here is not the file that rank 0 reads under this path: its size, its header or its tensors "
               "differ; copy it again", map->path[other]);
  l.direct = rejected || seen == FILE_SAME || !rank || fsdp_hosts(s->f) == 1;
  int asks = !l.direct, asking = 0;
  MPI_Allreduce(&asks, &asking, 1, MPI_INT, MPI_SUM, s->comm);
  if (l.direct && !rejected) store_open_files(&l, &r);
  l.bytes_total = store_own_bytes(s->f, map, states);
  ChunkCursor c = {};
  for (Chunk k; !r.failed && chunk_next(s->f, map, states, &c, &k); l.bytes_done += span_bytes(&k.span)) {
    if (!store_pass_takes(s->f, l.pass, &k)) continue;
    float *scale = store_scales(s, &l, &k, &r);
    const char *data = r.failed ? NULL : store_get(s, &l, &k.span, &r);
    if (data) store_put_chunk(s, &k, data, scale, l.pass);
    free(scale);
    if (progress && !rank) progress(l.bytes_done * fsdp_world(s->f), l.bytes_total * fsdp_world(s->f));
    if (!data) {
      const char *const of[] = {"tensor", "first moment of", "second moment of"};
      char reason[STORE_ERROR_BYTES];
      snprintf(reason, sizeof reason, "%s", r.error);
      r.failed = 0;
      store_fail(&r, "%s %s: %.300s", of[k.state], fsdp_param(s->f, k.param)->name, reason);
    }
  }
  FileSpan last = {};
  last.last = 1;
  if (asks) store_ask(s, &last, &r);
  if (!rank) store_serve(s, &l, asking);
  for (int fd : l.fd) if (fd >= 0) close(fd);
  fail(error, "%s", r.failed ? r.error : "");
}

// Reads the wanted states of this rank's shards from the files of l.map. All ranks call it; every rank returns, and one
// that could not read all of it has the reason (tensor, file, place) in `error`, which is "" otherwise. Afterwards call
// fsdp_publish and fsdp_step_end. Frozen E4M3 matrices are read twice: their scales come first.
static void store_load(Store *s, StoreLoad l, unsigned states, Error *error, LoadProgress progress) {
  bool measures = false;                         // adapters have no scales, and leave their weights' alone
  for (int p = 0; p < l.map->params; p++)
    measures = measures || (fsdp_param_state(s->f, p).dtype == F8 && tensor_place(l.map, STATE_MASTER, p)->file >= 0);
  if (fsdp_needs_measure(s->f) && measures) {
    fsdp_forget_scales(s->f);
    l.pass = PASS_MEASURE;
    store_load_pass(s, l, 1u << STATE_MASTER, error, NULL);
    int failed = error->text[0] != 0, any;
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, s->comm);
    if (any) return;
    fsdp_frozen_scales(s->f);
  }
  l.pass = PASS_STORE;
  store_load_pass(s, l, states, error, progress);
}

// The mean of the rows that a file has of a matrix, summed in their order in fp64 by rank 0. All ranks call it; what
// cannot be read ends all ranks.
static void store_mean_row(Fsdp *f, const TensorMap *map, const TensorPlace *place, int64_t cols, float *mean) {
  Error error = {};
  const int64_t bytes = cols * (int64_t)dtype_bytes(place->dtype);
  const int fd = fsdp_rank(f) ? -1 : open(map->path[place->file], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  double *sum = (double *)calloc((size_t)cols, sizeof *sum);
  char *row = (char *)malloc((size_t)bytes);
  for (int64_t r = 0; !fsdp_rank(f) && !error.text[0] && r < place->rows; r++, liveness_progress()) {
    if (!file_read(fd, row, bytes, place->at + r * bytes))
      fail(&error, "cannot read %.900s: %s", map->path[place->file], strerror(errno));
    transpose_to_f32(mean, row, place->dtype, 1, cols);
    for (int64_t i = 0; i < cols; i++) sum[i] += (double)mean[i];
  }
  for (int64_t i = 0; i < cols; i++) mean[i] = (float)(sum[i] / (double)place->rows);
  if (fd >= 0) close(fd);
  free(sum);
  free(row);
  agree_no_error(fsdp_comm(f), error.text, EXIT_MISSING);
  MPI_Bcast(mean, (int)cols, MPI_FLOAT, 0, fsdp_comm(f));
}
// Rows after those that a file has of parameter p become their mean. All ranks call it.
static void store_fill_rows(Fsdp *f, const TensorMap *map, int p) {
  const TensorPlace *place = tensor_place(map, 0, p);
  const Param *q = fsdp_param(f, p);
  if (place->file < 0 || q->matrices > 1 || !place->rows || place->rows == q->shape[0]) return;
  const int64_t cols = param_cols(q);
  float *mean = (float *)malloc(sizeof(float) * (size_t)cols);
  Span run;
  store_mean_row(f, map, place, cols, mean);
  if (fsdp_span(f, p, fsdp_shard(f), &run)) {
    const int64_t end = min64(run.in_range + run.numel, param_numel(q));
    for (int64_t at = max64(run.in_range, place->rows * cols), n; at < end; at += n) {
      n = min64(end - at, cols - at % cols);
      fsdp_set_own(f, STATE_MASTER, p, at - run.in_range, mean + at % cols, n, PASS_STORE);
    }
  }
  free(mean);
}
void store_load_weights(Store *s, TensorMap *map, Error *error, LoadProgress progress) {
  Fsdp *f = s->f;
  agree_no_error(fsdp_comm(f), error->text, EXIT_MISSING);
  tensor_map_share(map, fsdp_comm(f));
  StoreLoad l = {};
  l.map = map;
  store_load(s, l, STATES_WEIGHTS, error, progress);
  agree_no_error(fsdp_comm(f), error->text, EXIT_MISSING);
  for (int p = 0; p < map->params; p++) store_fill_rows(f, map, p);
  tensor_map_free(map);
}
