// cpu.cc: the CPU part of every op, compiled once per instruction set with -DISA=avx2|avx512|avx512_bf16|amx and
// explicit -m flags. Each object exports exactly one symbol, the table ops_<ISA>; everything else is static.
#define PART_CPU 1
#include "ops.h"
#include "vec.h"
#include "all.h"
#include <omp.h>

#define CPU_TABLE_NAME_(isa) ops_##isa
#define CPU_TABLE_NAME(isa) CPU_TABLE_NAME_(isa)
#define CPU_STRING_(isa) #isa
#define CPU_STRING(isa) CPU_STRING_(isa)

static void device_open_impl(Ctx *c) { matmul_open(c); }

static void workspace_bytes_impl(Ctx *c, WorkspaceQuery q, size_t *bytes) {
  const size_t wanted[] = {embedding_workspace_bytes(c, q), layernorm_workspace_bytes(c, q),
                           matmul_workspace_bytes(c, q), attention_workspace_bytes(c, q),
                           cross_entropy_workspace_bytes(c, q)};
  *bytes = 0;
  for (size_t w : wanted) if (w > *bytes) *bytes = w;
}

// Large copies are split over the threads: one core cannot draw all the memory bandwidth.
static void copy_impl(Ctx *c, void *to, const void *from, size_t bytes) {
  const size_t piece = 1 << 20;
  if (bytes < 2 * piece || c->threads == 1) { memcpy(to, from, bytes); return; }
#pragma omp parallel for schedule(static) num_threads(c->threads)
  for (size_t at = 0; at < bytes; at += piece)
    memcpy((char *)to + at, (const char *)from + at, bytes - at < piece ? bytes - at : piece);
}
static void zero_impl(Ctx *c, void *to, size_t bytes) {
  const size_t piece = 1 << 20;
#pragma omp parallel for schedule(static) num_threads(c->threads) if (bytes > 2 * piece)
  for (size_t at = 0; at < bytes; at += piece) memset((char *)to + at, 0, bytes - at < piece ? bytes - at : piece);
}
static void sync_impl(Ctx *) {}

const Ops CPU_TABLE_NAME(ISA) = OPS_TABLE(CPU_STRING(ISA));
