// ops_device.h: what a device offers besides ops: memory, streams, events, graphs, NCCL; and its limits. Its calls are
// members of struct Ops (ops.h).
#pragma once
#include "device.h"

// Shapes that determine the largest workspace of any op in a training step. widest: the most rows or columns of a
// block's weight. Members left out are GPT-2's: 4 n_embd, heads that have the width together, as many k and v heads.
struct WorkspaceQuery {
  Dtype dtype, grad_dtype;
  int64_t batch, seq_len, n_embd, n_head, vocab_padded, head_rows;
  int64_t widest = 0, head_size = 0, n_kv_head = 0;
  int64_t q_norm = 0;                            // columns of the norm of q; 0: a head's
  int norm_sums = 2;                             // column sums of layernorm_backward: 3 with those of dbranch
};
HD int64_t query_widest(const WorkspaceQuery *q) { return q->widest ? q->widest : 4 * q->n_embd; }
HD int64_t query_head_size(const WorkspaceQuery *q) { return q->head_size ? q->head_size : q->n_embd / q->n_head; }
HD int64_t query_q_norm(const WorkspaceQuery *q) { return q->q_norm ? q->q_norm : query_head_size(q); }
HD int64_t query_kv_heads(const WorkspaceQuery *q) { return q->n_kv_head ? q->n_kv_head : q->n_head; }

// Limits of the CUDA kernels, checked at start-up: columns that fit in a block's registers, for odd widths (not a
// multiple of 8) and others; sequences that a grid can number.
enum { CUDA_MAX_COLUMNS = 16384, CUDA_MAX_ODD_COLUMNS = 4096, CUDA_MAX_BATCH = 65535 };
// Device: the device's own memory, zeroed. Pinned: host memory that the device can copy from and to directly.
enum MemoryKind { MEMORY_DEVICE, MEMORY_PINNED };

struct DeviceInfo {
  char name[64], bus_id[32];                     // bus_id: of the GPU; instances of one (MIG) have the same
  char uuid[40];                                 // of what has this memory: a GPU, or an instance of one
  int major, minor, sms;
  bool wgmma;                                    // can run attention_wgmma.cuh in this build
  bool integrated;                               // its memory is the host's
  size_t memory_bytes;
  double peak_flops[3];                          // dense, by Dtype F32, BF16, F16; 0: unknown
  double peak_tf32_flops;
};
enum { MAX_DEVICES = 64 };
struct DeviceProbe {
  int devices;
  DeviceInfo device[MAX_DEVICES];
  int driver, runtime, cublaslt, nccl;           // versions as the libraries report them; 0: not found
  char missing[512];                             // "", or one line: what is missing or too old, and what was found
  char nccl_missing[512];                        // the same for libnccl
};

// memory_opened: device memory that the libraries took for themselves while the device was opened.
// Events order streams, never the host. `side` is a Ctx with its own stream (high priority, no workspace); its name and
// an event's name are for traces. mark: *to, in pinned memory, becomes `value` when the stream reaches it, so that a
// thread that makes no CUDA call sees how far the device is. stamp: *to, in pinned memory, becomes the device's clock
// then, in nanoseconds; its zero is the device's own. On a CPU every call is done when it returns, so streams
// and events do nothing.
#define DEVICE_CALLS(X) \
  X(device_probe,    (Ctx *c, DeviceProbe *p)) \
  X(device_open,     (Ctx *c, int index)) \
  X(device_close,    (Ctx *c)) \
  X(workspace_bytes, (Ctx *c, WorkspaceQuery q, size_t *bytes)) \
  X(memory_alloc,    (Ctx *c, void **p, size_t bytes, MemoryKind kind)) \
  X(memory_free,     (Ctx *c, void *p, size_t bytes, MemoryKind kind)) \
  X(memory_pin,      (Ctx *c, void *p, size_t bytes)) \
  X(memory_unpin,    (Ctx *c, void *p)) \
  X(memory_left,     (Ctx *c, size_t *free_bytes, size_t *total_bytes)) \
  X(memory_opened,   (Ctx *c, size_t *bytes)) \
  X(copy,            (Ctx *c, void *to, const void *from, size_t bytes)) \
  X(zero,            (Ctx *c, void *to, size_t bytes)) \
  X(sync,            (Ctx *c)) \
  X(side_open,       (Ctx *c, Ctx *side, const char *name)) \
  X(side_close,      (Ctx *side)) \
  X(event_open,      (Ctx *c, void **event, const char *name)) \
  X(event_close,     (Ctx *c, void *event)) \
  X(event_record,    (Ctx *c, void *event)) \
  X(event_wait,      (Ctx *c, void *event)) \
  X(event_done,      (Ctx *c, void *event, bool *done)) \
  X(mark,            (Ctx *c, uint32_t *to, uint32_t value)) \
  X(stamp,           (Ctx *c, int64_t *to)) \
  X(graph_begin,     (Ctx *c)) \
  X(graph_end,       (Ctx *c, void **graph)) \
  X(graph_launch,    (Ctx *c, void *graph)) \
  X(graph_close,     (Ctx *c, void *graph)) \
  X(range_begin,     (Ctx *c, const char *name)) \
  X(range_end,       (Ctx *c)) \
  X(plans_tune,      (Ctx *c, bool any, char *list, size_t list_bytes)) \
  X(plans_text,      (Ctx *c, char *to, size_t bytes)) \
  X(plans_algorithms, (Ctx *c, char *to, size_t bytes)) \
  X(plans_use,       (Ctx *c, const char *text, Error *error))

// NCCL, if the device has it. Counts are bytes or elements of one rank; everything runs on c's stream.
enum { NCCL_ID_BYTES = 128 };
#define COLLECTIVES(X) \
  X(id_make,        (Ctx *c, void *id)) \
  X(comm_open,      (Ctx *c, void **comm, const void *id, int rank, int world)) \
  X(comm_split,     (Ctx *c, void **comm, void *parent, int color, int key)) \
  X(comm_close,     (Ctx *c, void *comm)) \
  X(comm_check,     (Ctx *c, void *comm)) \
  X(group_begin,    (Ctx *c)) \
  X(group_end,      (Ctx *c)) \
  X(all_gather,     (Ctx *c, void *comm, void *to, const void *from, size_t bytes)) \
  X(send,           (Ctx *c, void *comm, const void *from, size_t bytes, int to_rank)) \
  X(receive,        (Ctx *c, void *comm, void *to, size_t bytes, int from_rank)) \
  X(reduce_scatter, (Ctx *c, void *comm, Tensor to, const void *from)) \
  X(all_reduce,     (Ctx *c, void *comm, Tensor data)) \
  X(broadcast,      (Ctx *c, void *comm, void *data, size_t bytes, int root))

struct Collectives {
#define X(call, args) void (*call) args;
  COLLECTIVES(X)
#undef X
};
