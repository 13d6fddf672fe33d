// cuda_device.h: what a CUDA device keeps between ops (Ctx.device): one per rank, shared by its streams, used by one
// host thread. Opened and closed by device_open and device_close.
#pragma once
#include "gpu.h"
#include "kernels/ops.h"
#include <cublasLt.h>

struct MatmulPlans;                              // matmul_plans.h: GEMMs already planned, by shape

struct CudaDevice {
  int index;                                     // of the device among those this process sees
  int major, minor, sms;
  bool clusters;                                 // the GPU has clusters of blocks, and this build has code for them
  bool integrated;                               // its memory is the host's
  bool wgmma;                                    // the GPU has WGMMA instructions, and this build has code for them
  size_t shared_most, shared_all;                // shared memory: of a block at most; of an SM
  cublasLtHandle_t blas;
  size_t opened_bytes;                           // device memory that opening took, mostly cuBLASLt's
  MatmulPlans *plans;
};
#define DEVICE(c) ((CudaDevice *)(c)->device)
// The library of matrix multiplies and the plans of a device (matmul_plans.h): opened and closed with it.
IMPL(matmul_open, , void matmul_open(Ctx *c))
IMPL(matmul_close, , void matmul_close(Ctx *c))
