// memory.h: public header of memory/: every byte is planned under a name, printed, then taken under that name.
#pragma once
#include "kernels/ops.h"

// X(identifier, use, words). Lines of working memory are on the device; on a CPU with --comm mpi those marked "shared"
// are in a window that the other ranks of the host read. "host" lines are host memory on every device. The use is
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
// A block of memory that somebody declared. besides: bytes of it that other lines count. pointer: of the pointer that
// gets its address when it is taken; NULL where the one who declared it takes the memory himself.
struct MemoryBlock { MemoryName line; size_t bytes, besides; void *pointer; };
enum { MEMORY_BLOCKS_MAX = 64 };
// planned: of what was declared, before anything is allocated. taken: added up by the allocator. They must be equal.
struct MemoryPlan {
  size_t planned_bytes[MEM_COUNT], taken_bytes[MEM_COUNT];
  MemoryBlock block[MEMORY_BLOCKS_MAX];
  int blocks;
};
// MEMORY_TO_TAKE: on the device, but for what libraries have taken.
enum MemoryPart { MEMORY_ALL, MEMORY_ON_DEVICE, MEMORY_ON_HOST, MEMORY_TO_TAKE };
// Declares `bytes` of zeroed memory under a line. `pointer` is the address of a pointer, of any type, that
// memory_take_all sets and memory_give_back_all reads; it stays as it is for 0 bytes. besides: as many bytes more,
// which are declared under other lines, without a pointer.
void memory_declare(MemoryPlan *m, MemoryName line, size_t bytes, void *pointer, size_t besides = 0);
// Bytes that were declared: of a part; of a use.
size_t memory_planned_total(const MemoryPlan *m, MemoryPart part);
size_t memory_planned_use(const MemoryPlan *m, MemoryUse use);
// What a library has allocated: free memory before and after. Other programs on the device may allocate or free in
// between, so the number is only printed; whether the plan fits is decided by what is free.
void memory_measure(MemoryPlan *m, MemoryName line, size_t before, size_t after);
// Takes, and gives back, all that was declared, with c's device.
void memory_take_all(Ctx *c, MemoryPlan *m);
void memory_give_back_all(Ctx *c, MemoryPlan *m);
// Ends the run with a fault where a line has taken other bytes than were declared.
void memory_check_taken(const MemoryPlan *m);
