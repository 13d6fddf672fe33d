// emu.h: how tests control the emulation of CUDA. No CUDA header is needed. The test program links dev/cuda_emu/emu.cc;
// if it was not linked, its table ops_cuda_emulated (kernels/ops.h) is NULL, and none of these functions may be called.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(CUDA_EMULATED)
#define EMU_CALL
#else
#define EMU_CALL __attribute__((weak))
#endif

// 0: the oldest stream that can run goes first; 1: the newest; from 2 on: random orders. Also sets the order of blocks,
// warps and lanes. Default: the environment's EMU_SEED, else 1.
EMU_CALL void emu_set_seed(uint64_t seed);

// Every distinct pair (event, waiting stream) of the waits so far that order two streams, in this process. Names are
// those given to event_open and side_open; the device's own stream is "compute".
struct EmuWait { char event[64], stream[64]; int64_t count; };
EMU_CALL int emu_waits(EmuWait *to, int most);   // returns their number; writes at most `most`
// From now on waits of this pair are skipped: the mutant. NULL, NULL: none is skipped.
EMU_CALL void emu_skip_waits(const char *event, const char *stream);

// Limits of the device; requests beyond them are rejected as by a real device.
EMU_CALL void emu_set_device_bytes(size_t bytes);                  // memory (16 GiB)
EMU_CALL void emu_set_shared_limit(size_t bytes);                  // shared memory of a block after opt-in (99 KiB)
// 90: compute capability 9.0, with clusters. Default: the environment's EMU_CAPABILITY, else 80; 90 there also sets the
// shared memory of one.
EMU_CALL void emu_set_capability(int capability);
// The architecture of the PTX that all kernels were compiled from; 0: the device's own.
EMU_CALL void emu_set_built_for(int capability);
// The device's memory is the host's, and the host's page cache holds so many bytes of it; 0: memory of its own.
EMU_CALL void emu_set_integrated(size_t cached_bytes);
EMU_CALL void emu_set_devices(int count);                          // default: the environment's EMU_DEVICES, else 8
// Devices are MIG instances of a GPU, that many on each: one PCI bus id, UUIDs of their own. 1: whole GPUs.
EMU_CALL void emu_set_instances(int of_a_gpu);

// cuda_probe (kernels/cuda/probe.cuh) of an emulated device.
struct Ctx;
EMU_CALL void emu_probe(Ctx *c, int what, void *to, const void *from);

// multiplies: of tensor cores; loads: bytes that cp.async reads of device memory.
struct EmuCounters { int64_t kernels, copies, graphs, waits, waits_skipped, multiplies, loads; };
EMU_CALL EmuCounters emu_counters();             // run so far; for graphs and waits: requested so far

// Small programs, right and wrong, that show what the emulation detects: the name of the i-th, NULL after the last; and
// the message with which the process must die, NULL if it must not. emu_selftest_run: whether it went as expected.
EMU_CALL const char *emu_selftest_name(int i);
EMU_CALL const char *emu_selftest_dies(int i);
EMU_CALL bool emu_selftest_run(int i);

// From now on no NCCL call of this process finishes, and the `queries`-th query for errors reports a lost peer.
EMU_CALL void emu_nccl_lose(int queries);
// Questions for the state of a communicator that were answered "in progress", so far in this process.
EMU_CALL int64_t emu_nccl_in_progress();
// Blocks that NCCL's kernels may have at once: of all communicators that are open now, those that share buffers once
// (they run one after another). 64 of each that has no limit (maxCTAs).
EMU_CALL int emu_nccl_blocks();
// What libraries and driver say of themselves (NCCL 2.28.9, CUDA 13.0).
EMU_CALL void emu_set_nccl_version(int version);

// What the emulated cuBLASLt rejects from now on: GELU' epilogues; operands or leading dimensions that are not 16-byte
// aligned; everything. The program's own kernels then do that work. 0: it rejects nothing.
// Algorithms that the emulated heuristic returns for aligned operands; the one that tuning finds is behind the eighth.
enum { EMU_LT_CANDIDATES = 10 };
enum { EMU_LT_WITHOUT_FUSED = 1, EMU_LT_WITHOUT_UNALIGNED = 2, EMU_LT_WITHOUT_ALL = 4 };
EMU_CALL void emu_lt_without(unsigned what);
// From now on the algorithm that tuning finds, with the bits of the heuristic's first, has another last bit in this
// element of a result. -1: in none.
EMU_CALL void emu_lt_differ(int64_t element);
// The number of SMs that the latest heuristic was asked to plan for; 0: the device's.
EMU_CALL int emu_lt_sms();
// The i-th rule of the emulated cuBLASLt, NULL after the last; and whether it rejects or allows what it should.
EMU_CALL const char *emu_lt_rule_name(int i);
EMU_CALL bool emu_lt_rule_holds(int i);
