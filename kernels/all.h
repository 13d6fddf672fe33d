// all.h: every op, by family (FAMILY in ops.h), with a file for each family, so that an op that is added compiles that
// family alone. What is often edited or slow to compile has a family of its own: an #if here and a word in the
// Makefile's FAMILIES. Family `device` is what cpu.cc and cuda.cu have themselves.
#include "random.h"
#include "ops.h"
#if FAMILY(norms)
#include "all_norms.h"
#endif
#if FAMILY(pointwise)
#include "all_pointwise.h"
#endif
#if FAMILY(loss)
#include "all_loss.h"
#endif
#if PART_CPU && FAMILY(gemm) // what the families below multiply with
#include "kernels/cpu/gemm.h"
#endif
#if FAMILY(matmul)
#include "all_matmul.h"
#endif
#if FAMILY(muon) || (PART_CUDA && FAMILY(matmul)) // CUDA's uses kernels of matmul
#include "all_muon.h"
#endif
#if FAMILY(attention)
#include "all_attention.h"
#endif
#if PART_CUDA && FAMILY(wgmma) // what only Hopper has
#include "attention_wgmma.cuh"
#endif
#if FAMILY(optimizer)
#include "all_optimizer.h"
#endif
#if FAMILY(blocks)
#include "all_blocks.h"
#endif
