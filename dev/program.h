// program.h: the whole program as one object, so that a test, a fuzzer or a bench can call what no door shows.
#define PART_LAUNCH 1
#define TRAINER_AS_LIBRARY 1
#include "kernels/cpu/threads.cc"
#include "kernels/kernels.cc"
#include "base/base.cc"
#include "launch/launch.cc"
// Records and placement are computed again for each plan of a test. Clang knows no such pragma.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O2")
#endif
#include "fsdp/placement.h"
#if !defined(__clang__)
#pragma GCC pop_options
#endif
#include "fsdp/fsdp.cc"
#include "data/data.cc"
#include "data/checkpoint/checkpoint.cc"
#include "run/run.cc"
#include "train_gpt_fsdp.cu"
