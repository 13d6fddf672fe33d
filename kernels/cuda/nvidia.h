// nvidia.h: facts about NVIDIA devices and libraries that no call returns.
//
// Every compiler compiles it, so that tests can use it.
//
// Peaks are FLOP/s of dense GEMMs (data sheets quote twice as much, for 2:4 sparsity) with fp32 sums, which GeForce
// cards run at half the rate of fp16 sums. Sources: NVIDIA's data sheets of A100, A10, A30, A40, H100, H200,
// GH200, L4, L40, L40S, RTX A6000, RTX 6000 Ada, HGX and GB200/GB300; whitepapers GA102 (RTX 30), Ada (RTX 40), RTX
// Blackwell (RTX 50) and RTX Blackwell PRO, tables "Peak BF16 Tensor TFLOPS with FP32 Accumulate". GeForce cards that
// they leave out: twice fp32, which is 2 x cores x boost clock, as on all that they list. GB10: an eighth of the 1000
// TFLOP/s of sparse FP4 that NVIDIA states, the ratio of RTX PRO 6000's two figures; fp32 from its 6144 cores.
#pragma once
#include "kernels/device.h"

enum { NEEDED_MAJOR = 8 };                       // compute capability 8.0: mma of bf16, cp.async

// half: bf16 and fp16, which are equal on all of these GPUs. In TFLOP/s.
struct GpuPeak { const char *name, *also; double half, tf32, fp32; };

// `name` must match the device's name after "NVIDIA " up to a space, a dash or the end. `also`: a word that must follow
// somewhere; "" allows nothing to follow, NULL allows anything. The first match counts.
static const GpuPeak gpu_peaks[] = {
    {"A100", NULL, 312, 156, 19.5},        {"A800", NULL, 312, 156, 19.5},
    {"A30", NULL, 165, 82, 10.3},          {"A40", NULL, 149.7, 74.8, 37.4},
    {"A10", NULL, 125, 62.5, 31.2},        {"RTX A6000", "", 154.8, 77.4, 38.7},
    {"H100", "PCIe", 756, 378, 51},        {"H100", "NVL", 835, 417.5, 60},
    {"H100", "HBM3", 989.4, 494.7, 67},    {"H800", "PCIe", 756, 378, 51},
    {"H800", "", 989.4, 494.7, 67},        {"H200", "NVL", 835, 417.5, 60},
    {"H200", "", 989.4, 494.7, 67},        {"GH200", NULL, 989.4, 494.7, 67},
    {"B200", NULL, 2250, 1125, 75},        {"GB200", NULL, 2500, 1250, 80},
    {"B300", NULL, 2250, 1125, 75},        {"GB300", NULL, 2500, 1250, 80},
    {"L4", "", 121, 60, 30.3},             {"L40", "", 181, 90.5, 90.5},
    {"L40S", "", 362, 183, 91.6},          {"RTX 6000 Ada Generation", "", 364.2, 182.1, 91.1},
    {"RTX PRO 6000 Blackwell", "Max-Q", 438.9, 219.5, 109.7},
    {"RTX PRO 6000 Blackwell", "Server", 480, 240, 120},
    {"RTX PRO 6000 Blackwell", NULL, 503.8, 251.9, 126},          {"GB10", "", 125, 62.5, 31},
    {"GeForce RTX 3060", "", 25.5, 12.7, 12.7},   {"GeForce RTX 3060 Ti", "", 32.4, 16.2, 16.2},
    {"GeForce RTX 3070", "", 40.6, 20.3, 20.3},   {"GeForce RTX 3070 Ti", "", 43.5, 21.7, 21.7},
    {"GeForce RTX 3080", "", 59.5, 29.8, 29.8},   {"GeForce RTX 3080 Ti", "", 68.2, 34.1, 34.1},
    {"GeForce RTX 3090", "", 71, 35.6, 35.6},     {"GeForce RTX 3090 Ti", "", 80, 40, 40},
    {"GeForce RTX 4060", "", 30.2, 15.1, 15.1},   {"GeForce RTX 4060 Ti", "", 44.1, 22.1, 22.1},
    {"GeForce RTX 4070", "", 58.3, 29.1, 29.1},   {"GeForce RTX 4070 SUPER", "", 71, 35.5, 35.5},
    {"GeForce RTX 4070 Ti", "", 80.2, 40.1, 40.1}, {"GeForce RTX 4070 Ti SUPER", "", 88.2, 44.1, 44.1},
    {"GeForce RTX 4080", "", 97.5, 48.7, 48.7},   {"GeForce RTX 4080 SUPER", "", 104.4, 52.2, 52.2},
    {"GeForce RTX 4090", "", 165.2, 82.6, 82.6},  {"GeForce RTX 4090 D", "", 147.1, 73.5, 73.5},
    {"GeForce RTX 5060", "", 38.4, 19.2, 19.2},   {"GeForce RTX 5060 Ti", "", 47.4, 23.7, 23.7},
    {"GeForce RTX 5070", "", 61.7, 30.9, 30.9},   {"GeForce RTX 5070 Ti", "", 87.9, 43.9, 43.9},
    {"GeForce RTX 5080", "", 112.6, 56.3, 56.3},  {"GeForce RTX 5090", "", 209.5, 104.8, 104.8},
};

// The peaks of a device by its name, in FLOP/s; zeros if the name is unknown or the device is a slice of a GPU (MIG).
static inline GpuPeak gpu_peak(const char *device_name) {
  const char *name = strncmp(device_name, "NVIDIA ", 7) ? device_name : device_name + 7;
  const GpuPeak unknown = {device_name, NULL, 0, 0, 0};
  if (strstr(name, " MIG ") || strstr(name, "Laptop")) return unknown;
  for (const GpuPeak &p : gpu_peaks) {
    const size_t length = strlen(p.name);
    if (strncmp(name, p.name, length)) continue;
    const char *rest = name + length;
    if (*rest && *rest != ' ' && *rest != '-') continue;
    if (p.also && (*p.also ? !strstr(rest, p.also) : *rest != 0)) continue;
    return {p.name, p.also, p.half * 1e12, p.tf32 * 1e12, p.fp32 * 1e12};
  }
  return unknown;
}

// How each library encodes its version in one number.
enum VersionOf { VERSION_CUDA, VERSION_CUBLASLT, VERSION_NCCL };
static inline const char *version_text(VersionOf of, int v, char *text, size_t bytes) {
  if (!v) snprintf(text, bytes, "none");
  else if (of == VERSION_CUDA) snprintf(text, bytes, "%d.%d", v / 1000, v % 1000 / 10);
  else if (of == VERSION_NCCL && v < 10000) snprintf(text, bytes, "%d.%d.%d", v / 1000, v % 1000 / 100, v % 100);
  else snprintf(text, bytes, "%d.%d.%d", v / 10000, v % 10000 / 100, v % 100);
  return text;
}

// NCCL_NEEDED: older ones were never tried. NCCL_SPLIT_SHARES: before it, ncclCommSplit could corrupt memory where
// resources are shared (release notes of 2.27.3). NCCL_GRAPH_REGISTERS: before it, a replayed graph whose buffers NCCL
// has registered with a network adapter could hang in silence (NCCL issue 2389, pull request 2390; the mend is on the
// branch of an update of 2.32, which its number does not tell from 2.32 itself).
enum { NCCL_NEEDED = 22602, NCCL_SPLIT_SHARES = 22703, NCCL_SHARES_A_GPU = 23000, NCCL_GRAPH_REGISTERS = 23300 };
// Whether NCCL lets two ranks use one GPU: until 2.29 it compares PCI bus ids in ncclCommInitRank ("Duplicate GPU
// detected", src/init.cc) and rejects MIG instances of one too; from 2.30 on, experimentally, when
// NCCL_MULTI_RANK_GPU_ENABLE=1 asks for it (user guide, "Environment Variables").
static inline bool nccl_shares_a_gpu(int nccl, const char *enabled) {
  return nccl >= NCCL_SHARES_A_GPU && enabled && !strcmp(enabled, "1");
}
// --sm_margin auto: how many SMs matrix multiplies leave to NCCL, by the GPU's model alone. A row is of
// GPUs of this compute capability (of any minor version if minor is -1) with at least so many SMs; the
// first match counts. What is known, and where from:
//   sm_90     Large GEMMs are persistent: as many blocks as SMs, each for several tiles. Where NCCL holds
//             some, the last blocks wait for the first, and the GEMM takes up to twice as long; NCCL held about 10 %
//             (PyTorch issue 143988, FSDP on H100). With the target cuBLASLt launches fewer blocks (pull request
//             144974). 16 are 12 % of 132; 8 for each of the two kernels of NCCL that run at once.
//   sm_100    A cap of 16 blocks for NCCL cost more than it gave, one of 8 more still (marin issue 7012, 8 x B200), and
//             the target is for heuristics: that it changes the grid on Hopper is not meant to last (PyTorch pull
//             request 183330).
//   others    GEMMs have a block a tile: NCCL's blocks, at a higher priority, start when any of them ends.
struct SmMargin { int major, minor, sms, margin; const char *why; };
static const SmMargin sm_margins[] = {
    {9, 0, 132, 16, "large GEMMs are persistent, and NCCL takes about a tenth of the SMs"},
    {9, 0, 114, 8, "large GEMMs are persistent; without NVSwitch NCCL needs fewer SMs"},
    {9, 0, 0, 0, "too few SMs to give some away"},
    {10, -1, 0, 0, "a cap on NCCL cost more than it gave"},
    {0, -1, 0, 0, "a GEMM has a block a tile, and NCCL's blocks start when any of them ends"}};
static inline const SmMargin *sm_margin_row(int major, int minor, int sms) {
  for (const SmMargin &m : sm_margins)
    if ((!m.major || (m.major == major && (m.minor < 0 || m.minor == minor))) && sms >= m.sms)
      return &m;
  return NULL;                                   // the last row matches everything
}
// The most blocks of one kernel of NCCL (config.maxCTAs; a block takes an SM for itself, NCCL issue 689).
// Gathers have buffers of their own, all other communicators share theirs and run one after another (collectives.cuh),
// so two kernels run at once. They fit into the margin, or where there is none on the GPU: kernels that start in
// different orders on two ranks would else wait for each other for ever. A power of two, because NCCL rounds the
// channels of sends and receives up to one (ncclTopoComputeP2pChannels, src/graph/paths.cc); 64 is NCCL's own limit.
static inline int nccl_blocks(int margin, int sms) {
  const int both = margin ? margin : sms - 1;
  int blocks = 1;
  while (4 * blocks <= both && blocks < 64) blocks *= 2;
  return blocks;
}
