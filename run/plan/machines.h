// machines.h: FLOP/s, bandwidths, memory and latencies of the machines that --on names, from data sheets and published
// measurements, and the shares of them that a training reaches.
#pragma once
#include "plan.h"

// The kernels that attention has (kernels/attention_cuda.cuh); of a CPU all are ATTENTION_PLAIN.
enum AttentionKind { ATTENTION_PLAIN, ATTENTION_MMA, ATTENTION_WGMMA, ATTENTION_KINDS };
static const char *const attention_kind_words[ATTENTION_KINDS] = {"plain", "mma", "wgmma"};
struct AttentionRate { double forward, backward; };              // 0: the machine has no such kernels
// What a rank has to itself. Units: FLOP/s, bytes/s, bytes, seconds.
struct Machine {
  char name[32];
  bool gpu;
  int major, minor, sms;                         // major, minor: compute capability
  int sm_margin;                                 // of the SMs, those not given to matrix multiplies
  double peak_flops;                             // dense, in the compute dtype: MFU refers to it
  double product_flops;                          // what matrix multiplies reach at best
  AttentionRate attention[ATTENTION_KINDS];      // with all that their tiles compute
  double memory_rate, launch_s;                  // what streaming ops reach; from the end of a kernel to the next
  double inside, between;                        // bytes/s into a rank, from ranks of its host and of other hosts
  double base_s, inside_s, between_s;            // latencies of a collective: start, hop inside a host, between hosts
  double pcie, host_rate;                        // bytes/s to and from host memory; a rank's share of that memory's
  double memory_bytes, reserve_bytes;            // of a GPU, or of a host for its CPU ranks; of it, what libraries take
};

// Data sheets: NVIDIA's of H100, H200, B200, A100 (SXM) and DGX H100, H200, B200, A100, Ada whitepaper (RTX 4090).
// memory: HBM or GDDR, GB/s. gib: as CUDA reports it. inside: NVLink, one direction (RTX 4090: PCIe 4.0 x16). network:
// a GPU's share of the host's adapters (RTX 4090: assumed). reached: of `inside` by NCCL's rings; 360 of 450 GB/s is
// what NVIDIA expects of an H100 (nccl-tests, issue 326), 230 of 300 NCCL's own model of an A100 (src/graph/tuning.cc).
//
// products: of the dense peak, at best: what cuBLAS was measured to reach for its best shape on an H100, a GH200 and an
// A100 (S. Bekman, Machine Learning Engineering, "Maximum Achievable Matmul FLOPS"); assumed for the others. A shape
// reaches less of it: product_fill.
// wgmma, mma: TFLOP/s of attention's kernels, forward and backward, of what their tiles compute (ATTENTION_TILE): what
// an H100 was measured to do (dev/results/2026-11-27-H100-attention.md, causal, head dims 64 and 128, 1024 and 4096
// tokens, within 15 %). Others: the H100's mma by SMs times clock, at most half the dense peak.
struct MachineRow {
  const char *name, *gpu;
  int major, minor, sms;
  double gib, memory, inside, reached, network, pcie, products;
  AttentionRate wgmma, mma;
};
static const MachineRow machine_rows[] = {
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 79, 3350, 450, 0.8, 50, 64, 0.8, {410, 355}, {250, 200}},
    {"h200", "NVIDIA H200", 9, 0, 132, 139.5, 4800, 450, 0.8, 50, 64, 0.83, {410, 355}, {250, 200}},
    {"b200", "NVIDIA B200", 10, 0, 148, 178, 8000, 900, 0.8, 50, 64, 0.8, {}, {285, 228}},
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 79, 2039, 300, 0.77, 25, 32, 0.87, {}, {156, 131}},
    {"4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, 23.5, 1008, 32, 0.5, 3.125, 32, 0.87, {}, {82, 82}}};

// The shares that are reached: of memory bandwidth by streaming kernels; of a network adapter by messages.
static const double MEMORY_REACHED = 0.8, NETWORK_REACHED = 0.9;
// Seconds between two kernels of a captured graph.
static const double LAUNCH_S = 1.5e-6;
// NCCL serves a group of sends and receives by so many channels at once.
enum { P2P_CHANNELS = 32 };
// GiB that CUDA, cuBLASLt and NCCL take of a GPU. A run measures this; a plan assumes it.
static const double RESERVE_GIB = 2;
// A host's memory bandwidth and number of GPUs, for an offloaded optimizer (DGX H100: two sockets of eight channels).
static const double HOST_GBS = 500, HOST_GPUS = 8;
// FLOPs of attention above those of the causal half: tiles on the diagonal are computed whole, and a block's first
// loads and last stores take time, too. Fitted to that record.
static const double ATTENTION_TILE = 256;
// Of the peak of fp32, by attention without tensor cores (assumed).
static const double ATTENTION_PLAIN_REACHED = 0.4;

// Figures of a CPU core, assumed unless --on gives others: cycles per second; FLOPs per cycle of fp32 multiply-adds on
// AVX2 (NEON: four units of four lanes) and AVX-512 (two units), with pairs of bf16 twice as many, with AMX tiles 16
// times; GB/s of memory; the share of peak FLOPs that matrix multiplies reach.
static const double CPU_HZ = 3e9, CPU_CYCLE_AVX2 = 32, CPU_CYCLE_AVX512 = 64, CPU_CORE_GBS = 10, CPU_REACHED = 0.75;
static const double CPU_CALL_S = 5e-6, CPU_MESSAGE_S = 30e-6, CPU_NETWORK_GBS = 1.25;

// cores: of a rank, less than one if ranks share cores.
static inline void machine_of_cpu(Machine *m, const Ops *ops, Dtype dtype, double cores) {
  const bool narrow = ops == &ops_avx2 || ops == &ops_neon || ops == &ops_neon_bf16;
  const bool pairs = ops != &ops_avx2 && ops != &ops_avx512 && ops != &ops_neon;
  const bool tiles = pairs && ops != &ops_avx512_bf16 && ops != &ops_neon_bf16;
  const double cycle = (narrow ? CPU_CYCLE_AVX2 : CPU_CYCLE_AVX512) * CPU_HZ * cores;
  const double halves = dtype != BF16 ? 1 : tiles ? 16 : pairs ? 2 : 1;
  m->peak_flops = cycle * halves;
  m->memory_rate = CPU_CORE_GBS * 1e9 * cores;
  m->between = CPU_NETWORK_GBS * 1e9;
  m->launch_s = CPU_CALL_S;
  m->base_s = m->inside_s = CPU_CALL_S;
  m->between_s = CPU_MESSAGE_S;
}
static inline void machine_of_gpu(Machine *m, const MachineRow *row, Dtype dtype, bool tf32) {
  const GpuPeak p = gpu_peak(row->gpu);
  m->gpu = true;
  m->major = row->major, m->minor = row->minor, m->sms = row->sms;
  m->peak_flops = dtype != F32 ? p.half : tf32 ? p.tf32 : p.fp32;
  m->memory_rate = row->memory * 1e9;
  m->inside = row->inside * 1e9 * row->reached;
  m->between = row->network * 1e9;
  m->pcie = row->pcie * 1e9 * MEMORY_REACHED;
  m->host_rate = HOST_GBS / HOST_GPUS * 1e9;
  m->launch_s = LAUNCH_S;
  // NCCL's model of its rings, protocol Simple (src/graph/tuning.cc: baseLat, hwLat).
  m->base_s = 8.4e-6, m->inside_s = 3.4e-6, m->between_s = 14e-6;
  m->memory_bytes = row->gib * 0x1p30;
  m->reserve_bytes = RESERVE_GIB * 0x1p30;
}
// The kernels that attention has for these tensors on m: as attention_cuda.cuh chooses.
static inline AttentionKind attention_kind(const Machine *m, Dtype dtype, int64_t head_dim, int64_t tokens) {
  if (!m->gpu || dtype == F32 || head_dim % 8 || head_dim > 256) return ATTENTION_PLAIN;
  const bool wgmma = m->attention[ATTENTION_WGMMA].forward > 0 && tokens >= 128 && head_dim > 32 && head_dim <= 128;
  return wgmma ? ATTENTION_WGMMA : ATTENTION_MMA;
}
// What of the peaks is reached, once all figures are there.
static inline void machine_reaches(Machine *m, const MachineRow *row) {
  m->product_flops = m->peak_flops * (row ? row->products : CPU_REACHED);
  const double plain = row ? gpu_peak(row->gpu).fp32 * ATTENTION_PLAIN_REACHED : m->product_flops / 2;
  m->attention[ATTENTION_PLAIN] = AttentionRate{plain, plain};
  if (row) {
    m->attention[ATTENTION_MMA] = AttentionRate{row->mma.forward * 1e12, row->mma.backward * 1e12};
    m->attention[ATTENTION_WGMMA] = AttentionRate{row->wgmma.forward * 1e12, row->wgmma.backward * 1e12};
  }
  m->memory_rate *= MEMORY_REACHED;
  m->between *= NETWORK_REACHED;
}

// The figures that --on NAME,KEY=X,... may replace; unit: what X is multiplied by.
struct MachineKey { const char *name; size_t offset; double unit; };
static const MachineKey machine_keys[] = {{"tflops", offsetof(Machine, peak_flops), 1e12},
                                          {"memory_gbs", offsetof(Machine, memory_rate), 1e9},
                                          {"memory_gib", offsetof(Machine, memory_bytes), 0x1p30},
                                          {"reserve_gib", offsetof(Machine, reserve_bytes), 0x1p30},
                                          {"inside_gbs", offsetof(Machine, inside), 1e9},
                                          {"between_gbs", offsetof(Machine, between), 1e9}};
static inline const MachineRow *machine_row(const char *on, size_t length) {
  for (const MachineRow &r : machine_rows) if (strlen(r.name) == length && !strncmp(r.name, on, length)) return &r;
  return NULL;
}
static inline bool machine_key_set(Machine *m, const char *key, size_t n, Error *error) {
  const size_t name = strcspn(key, "=");
  for (const MachineKey &k : machine_keys) {
    char *end;
    if (name >= n || strlen(k.name) != name || strncmp(k.name, key, name)) continue;
    const double x = strtod(key + name + 1, &end);
    REJECT(end != key + n || end == key + name + 1 || !(x > 0) || x > 1e9, "--on: '%.*s' is not a number above 0",
           (int)n, key);
    *(double *)((char *)m + k.offset) = x * k.unit;
    return true;
  }
  REJECT(true, "--on: '%.*s' is none of tflops=, memory_gbs=, memory_gib=, reserve_gib=, inside_gbs=, between_gbs=",
         (int)n, key);
}
// Reads --on. cpu, cores: table of ops and cores of a CPU rank. host_bytes: memory of a host. dtype, tf32: what matrix
// multiplies compute in. False with one line in `error`.
static inline bool machine_parse(Machine *m, const char *on, const Ops *cpu, double cores, size_t host_bytes,
                                 Dtype dtype, bool tf32, Error *error) {
  const size_t n = strcspn(on, ",");
  const MachineRow *row = machine_row(on, n);
  *m = Machine{};
  snprintf(m->name, sizeof m->name, "%.*s", (int)n, on);
  REJECT(!row && strcmp(m->name, "cpu"), "--on '%.200s' is not known: choose one of h100, h200, b200, a100, 4090, cpu",
         on);
  if (row) machine_of_gpu(m, row, dtype, tf32);
  else {
    machine_of_cpu(m, cpu, dtype, cores);
    m->memory_bytes = (double)host_bytes;
  }
  for (const char *key = on + n; *key; key += strcspn(key, ",")) {
    key++;
    if (!machine_key_set(m, key, strcspn(key, ","), error)) return false;
  }
  machine_reaches(m, row);
  if (!m->gpu && m->inside == 0) m->inside = m->memory_rate / 2;  // one rank's cores copy: a read and a write
  return true;
}
