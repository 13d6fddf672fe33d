// cuda_runtime.h: CUDA without a GPU, on one CPU thread, for tests. g++ with this directory first in its include path
// compiles kernels/cuda/cuda.cu unchanged; exactly one translation unit, emu.cc, includes it.
//
//   base.h        failures, and the adversary's random numbers
//   intrinsics.h  types of CUDA C and its device functions
//   fibres.h      threads of a block, one fibre each; barriers, warp meetings, shared memory
//   warp.h        shuffles, votes; tensor core fragments; asynchronous copies
//   memory.h      device memory the host cannot touch, pinned memory, guards
//   streams.h     streams and events: queues, run in any order that events allow, and only when the host must wait
//   graph.h       stream capture and graphs
//   runtime.h     launches, copies, devices: the rest of the runtime's interface
//
// It tests logic, layouts and the order of streams. It says nothing about speed, and finds only the races that one of
// its orders exposes. Behaviour that the documentation leaves undefined is made visible: unwritten memory is NaN, the
// target of a copy in flight is NaN, a lane that takes no part in a shuffle gives NaN.
// It works under ASan and UBSan (frames on fibres are checked too), with larger stacks.
#pragma once
#include "base.h"
#include "intrinsics.h"
#include "fibres.h"
#include "warp.h"
#include "warpgroup.h"
#include "memory.h"
#include "streams.h"
#include "graph.h"
#include "runtime.h"
