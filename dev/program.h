// program.h: the whole program as one object, so that a fuzzer or a bench can call what no door shows.
#define PART_LAUNCH 1
#define TRAINER_AS_LIBRARY 1
#include "kernels/cpu/threads.cc"
#include "base/base.cc"
#include "launch/launch.cc"
#include "fsdp/fsdp.cc"
#include "data/data.cc"
#include "data/checkpoint/checkpoint.cc"
#include "run/run.cc"
#include "train_gpt_fsdp.cu"
