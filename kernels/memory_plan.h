// memory_plan.h: every byte is planned under a name, printed, then taken under that name. Part 1 of fsdp.h, which
// includes it.
#pragma once

// X(identifier, words). Lines of working memory lie on the device; on a CPU with --comm mpi those marked "shared" lie
// in a window that the other ranks of the host read. "host" lines are host memory on every device.
#define MEMORY_LINES(X) \
  X(MEM_PARAMS,       "parameter shards, shared") \
  X(MEM_KEPT,         "blocks kept after forward, shared") \
  X(MEM_MASTER,       "fp32 master shards") \
  X(MEM_MASTER_LOW,   "low halves of fp32 masters") \
  X(MEM_OPTIMIZER,    "optimizer state shards") \
  X(MEM_GRADS,        "gradient shards, fp32, shared") \
  X(MEM_GATHER_SLOTS, "gather slots, blocks") \
  X(MEM_ROOT_PARAMS,  "gathered outside the blocks") \
  X(MEM_EXPANDED,     "weights in the compute dtype") \
  X(MEM_GRAD_SLOTS,   "gradient slots, blocks, shared") \
  X(MEM_ROOT_GRADS,   "whole gradients, fp32, shared") \
  X(MEM_PEERS_GRADS,  "peers' parts of gradients, shared") \
  X(MEM_STAGING_OUT,  "reduction staging out, shared") \
  X(MEM_STAGING_IN,   "reduction staging in") \
  X(MEM_SCALES,       "E4M3 scales") \
  X(MEM_OFFLOAD,      "offloading: sums of a round") \
  X(MEM_CONTROL,      "control block, shared") \
  X(MEM_ACTIVATIONS,  "activations") \
  X(MEM_ACTS_APART,   "activations not in gradient shards") \
  X(MEM_HEAD,         "logits, or what blocks reuse") \
  X(MEM_HEAD_SLOTS,   "logits, or gradient slots, shared") \
  X(MEM_WORKSPACE,    "kernel workspace") \
  X(MEM_STEP,         "step state and exchange") \
  X(MEM_MIRROR,       "host: mirror of the shared lines") \
  X(MEM_LANDING,      "host: landing of messages") \
  X(MEM_HOST_PARAMS,  "host: offloaded parameter shards") \
  X(MEM_HOST_STATE,   "host: offloaded optimizer") \
  X(MEM_CHECKPOINT,   "host: checkpoint buffers") \
  X(MEM_DATA,         "host: tokens, batches, sample order")

enum MemoryName {
#define X(id, words) id,
  MEMORY_LINES(X)
#undef X
  MEM_COUNT
};
static const char *const memory_words[] = {
#define X(id, words) words,
  MEMORY_LINES(X)
#undef X
};
static inline bool memory_on_host(int line) { return !strncmp(memory_words[line], "host:", 5); }

// planned: from the formulas, before anything is allocated. taken: added up by the allocator. They must be equal.
struct MemoryPlan { size_t planned_bytes[MEM_COUNT], taken_bytes[MEM_COUNT]; };

enum MemoryPart { MEMORY_ALL, MEMORY_ON_DEVICE, MEMORY_ON_HOST };
static inline size_t memory_planned_total(const MemoryPlan *m, MemoryPart part) {
  size_t total = 0;
  for (int i = 0; i < MEM_COUNT; i++)
    if (part == MEMORY_ALL || (part == MEMORY_ON_HOST) == memory_on_host(i)) total += m->planned_bytes[i];
  return total;
}

// Zeroed memory of `bytes`, counted under `line`: of the device, or pinned host memory for host lines.
static inline void *memory_take(Ctx *c, MemoryPlan *m, MemoryName line, size_t bytes) {
  void *p = NULL;
  m->taken_bytes[line] += bytes;
  c->ops->memory_alloc(c, &p, bytes, memory_on_host(line) ? MEMORY_PINNED : MEMORY_DEVICE);
  if (bytes && !p) die_missing("cannot allocate %zu bytes for %s: %s", bytes, memory_words[line], strerror(ENOMEM));
  return p;
}
static inline void memory_give_back(Ctx *c, MemoryName line, void *p, size_t bytes) {
  if (p) c->ops->memory_free(c, p, bytes, memory_on_host(line) ? MEMORY_PINNED : MEMORY_DEVICE);
}

static inline void memory_check_taken(const MemoryPlan *m) {
  for (int i = 0; i < MEM_COUNT; i++)
    CHECK(m->planned_bytes[i] == m->taken_bytes[i], "memory plan: %s was planned as %zu bytes and taken as %zu",
          memory_words[i], m->planned_bytes[i], m->taken_bytes[i]);
}
