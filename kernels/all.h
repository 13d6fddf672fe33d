// all.h: every op, by family (FAMILY in ops.h). What is often edited or slow to compile has a family of its own: an #if
// here and a word in the Makefile's FAMILIES. Family `device` is what cpu.cc and cuda.cu have themselves.
#include "random.h"
#include "ops.h"
#if FAMILY(norms)
#include "embedding.cuh"
#include "layernorm.cuh"
#include "rope.cuh"
#if PART_CUDA // kernels that are files of their own
#include "embedding_cuda.cuh"
#include "layernorm_cuda.cuh"
#include "rope_cuda.cuh"
#endif
FAMILY_OPS(norms, NormsOps)
#endif
#if FAMILY(pointwise)
#include "gelu.cuh"
#include "activation.cuh"
#include "softcap.cuh"
#include "lora.cuh"
#include "elementwise.cuh"
FAMILY_OPS(pointwise, PointwiseOps)
#endif
#if FAMILY(loss)
#include "cross_entropy.cuh"
#include "preference.cuh"
#include "fp8.cuh"
FAMILY_OPS(loss, LossOps)
#endif
#if PART_CPU && FAMILY(gemm) // what the families below multiply with
#include "kernels/cpu/gemm.h"
#endif
#if FAMILY(matmul)
#include "matmul.cuh"
#if PART_CUDA
#include "matmul_cuda.cuh"
#endif
FAMILY_OPS(matmul, MatmulOps)
#endif
#if FAMILY(muon) || (PART_CUDA && FAMILY(matmul)) // CUDA's uses kernels of matmul
#include "muon.cuh"
#if PART_CUDA
#include "muon_cuda.cuh"
#endif
FAMILY_OPS(muon, MuonOps)
#endif
#if FAMILY(attention)
#include "attention.cuh"
#include "attention_cached.cuh"
#include "window.cuh"
#if PART_CUDA
#include "attention_cuda.cuh"
#endif
FAMILY_OPS(attention, AttentionOps)
#endif
#if PART_CUDA && FAMILY(wgmma) // what only Hopper has
#include "attention_wgmma.cuh"
#endif
#if FAMILY(optimizer)
#include "master.cuh"
#include "optimizer.cuh"
#include "step.cuh"
#if PART_CUDA
#include "optimizer_cuda.cuh"
#endif
FAMILY_OPS(optimizer, OptimizerOps)
#endif
#if FAMILY(blocks)
#include "blocks.cuh"
#include "matmul_blocks.cuh"
FAMILY_OPS(blocks, BlocksOps)
#endif
