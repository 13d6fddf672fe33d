// cpu.cc: the CPU part of every op, compiled for each instruction set and family (all.h) with -DISA=avx2|avx512|
// avx512_bf16|amx and explicit -m flags. Family `device` is what is here: the device's calls, and the table ops_<ISA>,
// which no other object names.
#define PART_CPU 1
#include "kernels/ops.h"
#include "kernels/all.h"

#if FAMILY(device)
#include "amx.h"
#include <sys/mman.h>

#define CPU_TABLE_NAME_(isa) ops_##isa
#define CPU_TABLE_NAME(isa) CPU_TABLE_NAME_(isa)

void workspace_bytes_impl(Ctx *c, WorkspaceQuery q, size_t *bytes) {
  *bytes = 0;
#define X(family, Table, isa) *bytes = family##_workspace(c, q) > *bytes ? family##_workspace(c, q) : *bytes;
  OP_FAMILIES(X)
#undef X
}

// Large copies are split over the threads: one core cannot use all of the memory bandwidth.
void copy_impl(Ctx *c, void *to, const void *from, size_t bytes) {
  const size_t piece = 1 << 20;
  if (bytes < 2 * piece || c->threads == 1) { memcpy(to, from, bytes); return; }
  parallel_for(c->threads, 0, bytes, piece, [=](int64_t at) {
    memcpy((char *)to + at, (const char *)from + at, bytes - at < piece ? bytes - at : piece);
  });
}
void zero_impl(Ctx *c, void *to, size_t bytes) {
  const size_t piece = 1 << 20;
  parallel_for(bytes > 2 * piece ? c->threads : 1, 0, bytes, piece, [=](int64_t at) {
    memset((char *)to + at, 0, bytes - at < piece ? bytes - at : piece);
  });
}

// ---- device calls: the host is the device, each rank is one device, and every call is done when it returns
void device_open_impl(Ctx *, int) { amx_open(); }
void device_close_impl(Ctx *) {}
void device_probe_impl(Ctx *, DeviceProbe *p) { memset(p, 0, sizeof *p); p->devices = 1; }
// Page-aligned, huge pages where the kernel grants them. *p is NULL if there is no memory.
void memory_alloc_impl(Ctx *, void **p, size_t bytes, MemoryKind) {
  *p = bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
  if (*p == MAP_FAILED) *p = NULL;
  if (*p) madvise(*p, bytes, MADV_HUGEPAGE);
}
void memory_free_impl(Ctx *, void *p, size_t bytes, MemoryKind) { if (p) munmap(p, bytes); }
void memory_pin_impl(Ctx *, void *, size_t) {}
void memory_unpin_impl(Ctx *, void *) {}
void memory_left_impl(Ctx *, size_t *free_bytes, size_t *total_bytes) { *free_bytes = *total_bytes = 0; }
void memory_opened_impl(Ctx *, size_t *bytes) { *bytes = 0; }
void sync_impl(Ctx *) {}
void side_open_impl(Ctx *c, Ctx *side, const char *) {
  *side = *c;
  side->workspace = NULL;
  side->workspace_bytes = 0;
}
void side_close_impl(Ctx *) {}
void event_open_impl(Ctx *, void **event, const char *) { *event = NULL; }
void event_close_impl(Ctx *, void *) {}
void event_record_impl(Ctx *, void *) {}
void event_wait_impl(Ctx *, void *) {}
void event_done_impl(Ctx *, void *, bool *done) { *done = true; }
// The options reject graphs on a CPU before any memory is allocated.
void graph_begin_impl(Ctx *c) { CHECK(0, "%s captures no graphs", c->ops->name); }
void graph_end_impl(Ctx *c, void **) { CHECK(0, "%s captures no graphs", c->ops->name); }
void stamp_impl(Ctx *, int64_t *to) { *to = now_ns(); }
void mark_impl(Ctx *, uint32_t *to, uint32_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
void graph_launch_impl(Ctx *c, void *) { CHECK(0, "%s captures no graphs", c->ops->name); }
void graph_close_impl(Ctx *, void *) {}
void range_begin_impl(Ctx *, const char *) {}
void range_end_impl(Ctx *) {}
void plans_tune_impl(Ctx *, bool, char *list, size_t) { if (list) *list = 0; }
void plans_algorithms_impl(Ctx *, char *to, size_t bytes) { if (bytes) *to = 0; }
void plans_use_impl(Ctx *, const char *, Error *) {}
void plans_text_impl(Ctx *, char *to, size_t bytes) { if (bytes) *to = 0; }

const Ops CPU_TABLE_NAME(ISA) = OPS_TABLE(IMPL_STRING(ISA), NULL);
#endif
