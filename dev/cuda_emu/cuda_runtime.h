// cuda_runtime.h: CUDA without a GPU, on one CPU thread, for tests. g++ with this directory first in its include path
// compiles kernels/cuda.cu as it stands; exactly one translation unit, emu.cc, includes it.
//
//   base.h        failing, and the adversary's random numbers
//   intrinsics.h  types of CUDA C and its device functions
//   fibres.h      threads of a block: a fibre each; barriers, warp meetings, shared memory
//   warp.h        shuffles, votes; tensor core fragments; asynchronous copies
//   memory.h      device memory the host cannot touch, pinned memory, guards
//   streams.h     streams and events: queues, run in any order that events allow, only when the host must wait
//   graph.h       stream capture and graphs
//   runtime.h     launches, copies, devices: what is left of the runtime's interface
//
// It proves logic, layouts and the order of streams; nothing about speed, and of races only those that one of its
// orders shows. What the documentation leaves undefined is made to hurt: memory never written is NaN, a copy in flight
// leaves NaN behind, a lane that takes no part in a shuffle hands over NaN.
// Under ASan and UBSan it works (frames on fibres are checked too), with larger stacks.
#pragma once
#include "base.h"
#include "intrinsics.h"
#include "fibres.h"
#include "warp.h"
#include "memory.h"
#include "streams.h"
#include "graph.h"
#include "runtime.h"
