// memory_plan.h: every byte is planned under a name, printed, then allocated under that name.
#pragma once
#include <errno.h>
#include "kernels/ops.h"

// X(identifier, use, words). Lines of working memory lie on the device; on a CPU with --comm mpi those marked "shared"
// lie in a window that the other ranks of the host read. "host" lines are host memory on every device. The use is
// what the start of a run adds lines up to.
#define MEMORY_LINES(X) \
  X(MEM_PARAMS,       MEMORY_PARAMETERS,  "parameter shards, shared") \
  X(MEM_SECONDARY,    MEMORY_PARAMETERS,  "blocks kept after forward, shared") \
  X(MEM_MASTER,       MEMORY_PARAMETERS,  "fp32 master shards") \
  X(MEM_MASTER_LOW,   MEMORY_PARAMETERS,  "low halves of fp32 masters") \
  X(MEM_OPTIMIZER,    MEMORY_OPTIMIZER,   "optimizer state shards") \
  X(MEM_GRADS,        MEMORY_GRADIENTS,   "gradient shards, fp32, shared") \
  X(MEM_GATHER_SLOTS, MEMORY_PARAMETERS,  "gather slots, blocks") \
  X(MEM_ROOT_PARAMS,  MEMORY_PARAMETERS,  "gathered outside the blocks") \
  X(MEM_EXPANDED,     MEMORY_PARAMETERS,  "weights in the compute dtype") \
  X(MEM_GRAD_SLOTS,   MEMORY_GRADIENTS,   "gradient slots, blocks, shared") \
  X(MEM_ROOT_GRADS,   MEMORY_GRADIENTS,   "whole gradients, fp32, shared") \
  X(MEM_PEERS_GRADS,  MEMORY_GRADIENTS,   "peers' parts of gradients, shared") \
  X(MEM_STAGING_OUT,  MEMORY_BUFFERS,     "reduction staging out, shared") \
  X(MEM_STAGING_IN,   MEMORY_BUFFERS,     "reduction staging in") \
  X(MEM_UPDATES,      MEMORY_BUFFERS,     "Muon's matrices, shared") \
  X(MEM_ORTHOGONAL,   MEMORY_BUFFERS,     "Muon's updates and scratch") \
  X(MEM_SCALES,       MEMORY_PARAMETERS,  "E4M3 scales") \
  X(MEM_OFFLOAD,      MEMORY_BUFFERS,     "offloading: sums of a round") \
  X(MEM_CONTROL,      MEMORY_BUFFERS,     "control block, shared") \
  X(MEM_ACTIVATIONS,  MEMORY_ACTIVATIONS, "activations") \
  X(MEM_SLOTS_SHARED, MEMORY_BUFFERS,     "gradient slots, or activations, shared") \
  X(MEM_WORKSPACE,    MEMORY_BUFFERS,     "kernel workspace") \
  X(MEM_STEP,         MEMORY_BUFFERS,     "step state and exchange") \
  X(MEM_CUBLASLT,     MEMORY_LIBRARIES,   "CUDA's streams and cuBLASLt") \
  X(MEM_NCCL,         MEMORY_LIBRARIES,   "NCCL's buffers") \
  X(MEM_MIRROR,       MEMORY_BUFFERS,     "host: mirror of the shared lines") \
  X(MEM_LANDING,      MEMORY_BUFFERS,     "host: landing of messages") \
  X(MEM_HOST_PARAMS,  MEMORY_OFFLOADED,   "host: offloaded parameter shards") \
  X(MEM_HOST_STATE,   MEMORY_OFFLOADED,   "host: offloaded optimizer") \
  X(MEM_CHECKPOINT,   MEMORY_SAVING,      "host: checkpoint buffers") \
  X(MEM_TRACE,        MEMORY_BUFFERS,     "host: events of --trace") \
  X(MEM_DATA,         MEMORY_DATA,        "host: tokens, batches, sample order")

enum MemoryName {
#define X(id, use, words) id,
  MEMORY_LINES(X)
#undef X
  MEM_COUNT
};
static const char *const memory_words[] = {
#define X(id, use, words) words,
  MEMORY_LINES(X)
#undef X
};
enum MemoryUse { MEMORY_PARAMETERS, MEMORY_GRADIENTS, MEMORY_OPTIMIZER, MEMORY_ACTIVATIONS, MEMORY_BUFFERS,
                  MEMORY_LIBRARIES, MEMORY_OFFLOADED, MEMORY_SAVING, MEMORY_DATA, MEMORY_USES };
static const char *const memory_use_words[] = {"parameters", "gradients", "optimizer", "activations", "buffers",
                                                "libraries", "offloaded", "saving", "data"};
static const MemoryUse memory_uses[] = {
#define X(id, use, words) use,
  MEMORY_LINES(X)
#undef X
};
// There is no formula for what libraries allocate for themselves. It is measured after they have been opened, before
// the rest of the plan is allocated.
static inline bool memory_measured(int line) { return memory_uses[line] == MEMORY_LIBRARIES; }
static inline bool memory_on_host(int line) { return !strncmp(memory_words[line], "host:", 5); }

// A block of memory that somebody declared. besides: bytes of it that other lines count. pointer: of the pointer that
// gets its address when it is taken; NULL where the one who declared it takes the memory himself.
struct MemoryBlock { MemoryName line; size_t bytes, besides; void *pointer; };
enum { MEMORY_BLOCKS_MOST = 64 };
// planned: of what was declared, before anything is allocated. taken: added up by the allocator. They must be equal.
struct MemoryPlan {
  size_t planned_bytes[MEM_COUNT], taken_bytes[MEM_COUNT];
  MemoryBlock block[MEMORY_BLOCKS_MOST];
  int blocks;
};
// Declares `bytes` of zeroed memory under a line. `pointer` is the address of a pointer, of any type, that
// memory_take_all sets and memory_give_back_all reads; it stays as it is for 0 bytes. besides: as many bytes more,
// which are declared under other lines, without a pointer.
static inline void memory_declare(MemoryPlan *m, MemoryName line, size_t bytes, void *pointer, size_t besides = 0) {
  m->planned_bytes[line] += bytes;
  if (!bytes && !besides) return;
  CHECK(m->blocks < MEMORY_BLOCKS_MOST, "more than %d blocks of memory", (int)MEMORY_BLOCKS_MOST);
  m->block[m->blocks++] = MemoryBlock{line, bytes, besides, pointer};
}

// MEMORY_TO_TAKE: on the device, but for what libraries have taken.
enum MemoryPart { MEMORY_ALL, MEMORY_ON_DEVICE, MEMORY_ON_HOST, MEMORY_TO_TAKE };
static inline size_t memory_planned_total(const MemoryPlan *m, MemoryPart part) {
  size_t total = 0;
  for (int i = 0; i < MEM_COUNT; i++) {
    const bool other = (part == MEMORY_ON_HOST) != memory_on_host(i) || (part == MEMORY_TO_TAKE && memory_measured(i));
    if (part == MEMORY_ALL || !other) total += m->planned_bytes[i];
  }
  return total;
}
static inline size_t memory_planned_use(const MemoryPlan *m, MemoryUse use) {
  size_t total = 0;
  for (int i = 0; i < MEM_COUNT; i++) if (memory_uses[i] == use) total += m->planned_bytes[i];
  return total;
}

// Zeroed memory of `bytes`, counted under `line`, and `besides` more: of the device, or pinned host memory for host
// lines.
static inline void *memory_take(Ctx *c, MemoryPlan *m, MemoryName line, size_t bytes, size_t besides = 0) {
  void *p = NULL;
  m->taken_bytes[line] += bytes;
  bytes += besides;
  c->ops->memory_alloc(c, &p, bytes, memory_on_host(line) ? MEMORY_PINNED : MEMORY_DEVICE);
  if (bytes && !p) die_missing("cannot allocate %zu bytes for %s: %s", bytes, memory_words[line], strerror(ENOMEM));
  return p;
}
static inline void memory_give_back(Ctx *c, MemoryName line, void *p, size_t bytes) {
  if (p) c->ops->memory_free(c, p, bytes, memory_on_host(line) ? MEMORY_PINNED : MEMORY_DEVICE);
}

// Takes, and gives back, all that was declared.
static inline void memory_take_all(Ctx *c, MemoryPlan *m) {
  for (int i = 0; i < m->blocks; i++) {
    const MemoryBlock *b = &m->block[i];
    if (!b->pointer) { m->taken_bytes[b->line] += b->bytes; continue; }
    void *p = memory_take(c, m, b->line, b->bytes, b->besides);
    memcpy(b->pointer, &p, sizeof p);
  }
}
static inline void memory_give_back_all(Ctx *c, MemoryPlan *m) {
  for (int i = m->blocks - 1; i >= 0; i--) {
    void *p = NULL;
    if (m->block[i].pointer) memcpy(&p, m->block[i].pointer, sizeof p);
    memory_give_back(c, m->block[i].line, p, m->block[i].bytes + m->block[i].besides);
  }
}

// What a library has allocated: free memory before and after. Other programs on the device may allocate or free in
// between, so the number is only printed; whether the plan fits is decided by what is free.
static inline void memory_measure(MemoryPlan *m, MemoryName line, size_t before, size_t after) {
  m->planned_bytes[line] = m->taken_bytes[line] = before > after ? before - after : 0;
}
static inline void memory_check_taken(const MemoryPlan *m) {
  for (int i = 0; i < MEM_COUNT; i++)
    CHECK(m->planned_bytes[i] == m->taken_bytes[i], "memory plan: %s was planned as %zu bytes and taken as %zu",
          memory_words[i], m->planned_bytes[i], m->taken_bytes[i]);
}
