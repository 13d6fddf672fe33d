// ops.cc: the tests of kernels/, which need ops and public headers alone, as one object of the test program.
#include "kernels/cpu/threads.cc"
#include "kernels/ops_all.h"
// References draw the same numbers as kernels do. Clang knows no such pragma.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O2")
#endif
#include "kernels/random.h"
// What dropout multiplies element `element` of global sample `sample` by: 1/(1-p) if it is kept, 0 if it is dropped.
static inline float dropout_scale(const Dropout *d, int64_t sample, int64_t element) {
  const Philox r = philox4x32(d->seed, Philox{(uint32_t)(element >> 2), (uint32_t)sample, d->step, d->tensor});
  const uint32_t word = (element & 3) == 0 ? r.x : (element & 3) == 1 ? r.y : (element & 3) == 2 ? r.z : r.w;
  return word < dropout_threshold(d->p) ? 0.0f : 1.0f / (1.0f - d->p);
}
#if !defined(__clang__)
#pragma GCC pop_options
#endif
#include "kernels/kernels.cc"
#include "launch/launch.h"
#include "data/checkpoint/checkpoint.h"
#include "dev/test/harness.h"
#include "dev/test/lent.h"

#include "dev/test/test_threads.h"
#include "dev/test/op_helpers.h"
#include "dev/test/chat_helpers.h"
#include "dev/test/test_matmul.h"
#include "dev/test/test_attention.h"
#include "dev/test/test_ops.h"
#include "dev/test/test_fp8.h"
#include "dev/test/test_matmul_split.h"
#include "dev/test/cuda_helpers.h"
#include "dev/gpu_ops.h"
#include "dev/test/test_emulation.h"
#include "dev/test/test_cuda_runtime.h"
#include "dev/test/test_cuda_matmul.h"
#include "dev/test/test_cuda_attention.h"
#include "dev/test/test_cuda_ops.h"
#include "dev/test/test_block_ops.h"
#include "dev/test/test_matmul_blocks.h"
#include "dev/test/test_muon.h"
#include "dev/test/test_master_ops.h"
#include "dev/test/test_nccl.h"
#include "dev/test/test_hardware.h"
