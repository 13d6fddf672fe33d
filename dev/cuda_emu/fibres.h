// fibres.h: the threads of one block. Each is a fibre (a stack and a saved stack pointer). It runs until it must wait
// for others; then the next fibre that can run does. Blocks run one after the other.
//
// Speed: a thread that never waits needs no switch, because the stack continues with the next thread. A waiting thread
// switches straight to its successor. A bit mask per warp says which threads can run.
// Adversary: at every wait the next warp is random; at every block the lane direction (up or down) is random. So a
// missing __syncthreads or __syncwarp shows as NaN or as an old value in one order or another.
// Divergence: when no thread can run and some thread waits, the block is stuck. The process ends and reports who waits
// where. A thread that has ended does not count as arrived anywhere, which is stricter than sm_70 and later.
#pragma once
#include "intrinsics.h"
#include <sys/mman.h>

#if !defined(__x86_64__)
#error "the emulation switches stacks in x86-64 assembly"
#endif
// emu_switch(save, to): pushes the callee-saved registers, stores the stack pointer, loads another.
extern "C" void emu_switch(void **save, void *to);
__asm__(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
        "popq %rcx\njmp *%rcx\n.size emu_switch,.-emu_switch\n");  // a jump: a ret here would always be mispredicted

enum : size_t {
#if defined(__SANITIZE_ADDRESS__)
  EMU_STACK_BYTES = (256 << 10) + 1088,
#else
  EMU_STACK_BYTES = (64 << 10) + 1088,           // 17 odd lines keep stacks out of each other's cache sets
#endif
  EMU_CANARY_BYTES = 64,
  EMU_STATIC_LIMIT = 48 << 10,                   // bytes of static shared memory
  EMU_SHARED_REGION = 256 << 10,                 // for each of static and dynamic shared memory
  EMU_GUARD = 16,                                // bytes after a static shared array
};
enum { EMU_MAX_THREADS = 1024, EMU_MAX_WARPS = 32, EMU_MAX_ARRAYS = 64 };

typedef void (*EmuWarpOp)(void **operands, uint32_t lanes);
struct EmuMeeting { uint32_t mask, here; EmuWarpOp op; const char *what; void *operands[32]; };
struct EmuWarp {
  uint32_t live, ready, started;                 // lanes that exist, can run, have a stack
  uint32_t meeting_count;                        // meetings with a waiting thread; each has another mask
  EmuMeeting meeting[32];
};
struct EmuThread { void *sp; char *stack; uint3 id; unsigned index; const char *waits_in; };
struct EmuBody { void (*call)(const void *args); const void *args; };

static EmuThread emu_threads[EMU_MAX_THREADS], *emu_thread;        // the running one; NULL: the host
static EmuWarp emu_warps[EMU_MAX_WARPS];
static uint32_t emu_ready_warps;
static bool emu_downwards;
static unsigned emu_thread_count, emu_finished, emu_at_barrier, emu_barrier_votes, emu_barrier_result;
static char *emu_stacks, *emu_free_stacks[EMU_MAX_THREADS];
static unsigned emu_free_stack_count;
static void *emu_host_sp;
static EmuBody emu_body;
static uint3 emu_block_index;
static dim3 emu_block_dim, emu_grid_dim;
#define threadIdx (emu_thread->id)
#define blockIdx emu_block_index
#define blockDim emu_block_dim
#define gridDim emu_grid_dim
__attribute__((unused)) static const int warpSize = 32;

EMU(void) emu_print_thread() {
  if (!emu_thread) return;
  fprintf(stderr, ", block (%u,%u,%u), thread (%u,%u,%u)", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
          threadIdx.z);
}

// ---- shared memory
// Static arrays follow each other, each with a guard after it; the dynamic array ends where the next page faults.
struct EmuShared { uint64_t block; char *data; size_t bytes; };  // one per place in the source: its array
static EmuShared *emu_arrays[EMU_MAX_ARRAYS];    // of the running block
static unsigned emu_array_count;
static uint64_t emu_block_serial;
static char *emu_static, *emu_dynamic_end;
static size_t emu_static_used, emu_static_bytes, emu_dynamic_bytes;
static size_t emu_shared_limit_now = 99 << 10;   // the limit of every architecture since sm_80, by opting in

EMU(size_t) emu_round(size_t n, size_t to) { return (n + to - 1) / to * to; }
EMU(bool) emu_is_shared(const void *p) {
  const char *c = (const char *)p;
  return (c >= emu_static && c < emu_static + EMU_SHARED_REGION) ||
         (c >= emu_dynamic_end - EMU_SHARED_REGION && c < emu_dynamic_end);
}
// The array of this place in the running block, filled with NaN at its first use.
EMU(void *) emu_shared(EmuShared *place, size_t bytes) {
  if (place->block == emu_block_serial) return place->data;
  if (emu_array_count == EMU_MAX_ARRAYS) emu_fail("more than %d shared arrays", EMU_MAX_ARRAYS);
  emu_static_bytes += emu_round(bytes, 16);
  if (emu_static_bytes > EMU_STATIC_LIMIT)
    emu_fail("%zu bytes of static shared memory: more than 48 KiB must be SHARED_DYNAMIC", emu_static_bytes);
  if (emu_static_bytes + emu_dynamic_bytes > emu_shared_limit_now)
    emu_fail("%zu static and %zu dynamic bytes of shared memory: more than the %zu there are", emu_static_bytes,
             emu_dynamic_bytes, emu_shared_limit_now);
  const size_t whole = emu_round(bytes, 16) + EMU_GUARD;
  *place = {emu_block_serial, emu_static + emu_static_used, bytes};
  memset(place->data, 0xff, whole);
  emu_static_used += whole;
  emu_arrays[emu_array_count++] = place;
  return place->data;
}
static inline void *emu_shared_dynamic() { return emu_dynamic_end - emu_round(emu_dynamic_bytes, 128); }

EMU(bool) emu_untouched(const char *p, size_t n) {                 // still 0xff
  uint64_t all = ~(uint64_t)0, word;
  for (; n >= 8; p += 8, n -= 8) { memcpy(&word, p, 8); all &= word; }
  for (; n; p++, n--) all &= (uint64_t)(int64_t)(int8_t)*p;
  return all == ~(uint64_t)0;
}
EMU(void) emu_check_shared() {
  for (unsigned i = 0; i < emu_array_count; i++) {
    const EmuShared *a = emu_arrays[i];
    if (!emu_untouched(a->data + a->bytes, emu_round(a->bytes, 16) + EMU_GUARD - a->bytes))
      emu_fail("block (%u,%u,%u) wrote behind a shared array of %zu bytes", blockIdx.x, blockIdx.y, blockIdx.z,
               a->bytes);
  }
  const size_t dynamic = emu_round(emu_dynamic_bytes, 128);
  if (!emu_untouched(emu_dynamic_end - dynamic + emu_dynamic_bytes, dynamic - emu_dynamic_bytes))
    emu_fail("block (%u,%u,%u) wrote behind %zu bytes of dynamic shared memory", blockIdx.x, blockIdx.y, blockIdx.z,
             emu_dynamic_bytes);
}

// ---- who runs next
[[noreturn]] EMU(void) emu_stuck() {
  char text[1024] = "";
  size_t used = 0;
  unsigned shown = 0;
  for (unsigned i = 0; i < emu_thread_count && shown < 6; i++) {
    if (!emu_threads[i].waits_in) continue;
    shown++;
    used += (size_t)snprintf(text + used, sizeof text - used, " thread %u waits in %s;", i, emu_threads[i].waits_in);
  }
  emu_fail("divergence: no thread of the block can go on:%s %u of %u threads have ended", text, emu_finished,
           emu_thread_count);
}
static inline EmuThread *emu_next() {
  if (!emu_ready_warps) return NULL;
  unsigned turn = 0;                             // a single ready warp needs no choice
  if (emu_ready_warps & (emu_ready_warps - 1)) turn = (unsigned)(emu_random64() >> 40) & 31;
  const uint32_t turned = turn ? emu_ready_warps >> turn | emu_ready_warps << (32 - turn) : emu_ready_warps;
  const unsigned warp = ((unsigned)__builtin_ctz(turned) + turn) & 31;
  const uint32_t ready = emu_warps[warp].ready;
  return &emu_threads[warp * 32 + (unsigned)(emu_downwards ? 31 - __builtin_clz(ready) : __builtin_ctz(ready))];
}
static inline EmuWarp *emu_warp_of(const EmuThread *t) { return &emu_warps[t->index / 32]; }
static inline uint32_t emu_lane_bit(const EmuThread *t) { return 1u << t->index % 32; }
static inline void emu_not_ready(EmuThread *t) {
  EmuWarp *w = emu_warp_of(t);
  w->ready &= ~emu_lane_bit(t);
  if (!w->ready) emu_ready_warps &= ~(1u << t->index / 32);
}

EMU(void) emu_cp_async_end();
static void emu_thread_main();
static inline void emu_switch_to(void **save, EmuThread *t) {
  EmuWarp *w = emu_warp_of(t);
  emu_thread = t;
  if (!(w->started & emu_lane_bit(t))) {
    w->started |= emu_lane_bit(t);
    t->stack = emu_free_stacks[--emu_free_stack_count];
    void **top = (void **)(t->stack + EMU_STACK_BYTES);
    memset(top - 8, 0, 48);
    top[-2] = (void *)emu_thread_main;
    t->sp = top - 8;
  }
  emu_switch(save, t->sp);
}
// The running thread waits until another thread makes it ready again.
static inline void emu_wait(const char *what) {
  EmuThread *self = emu_thread;
  self->waits_in = what;
  emu_not_ready(self);
  EmuThread *next = emu_next();
  if (!next) emu_stuck();
  emu_switch_to(&self->sp, next);
  self->waits_in = NULL;
}

// The function that every stack runs: one thread to its end, then the next one that has not begun.
__attribute__((no_sanitize("address"))) static void emu_thread_main() {
  void *dead;
  for (;;) {
    emu_body.call(emu_body.args);
    EmuThread *self = emu_thread;
    if (!emu_untouched(self->stack, EMU_CANARY_BYTES)) emu_fail("a thread's local memory is larger than its stack");
    emu_cp_async_end();
    emu_not_ready(self);
    emu_finished++;
    EmuThread *next = emu_next();
    if (!next && emu_finished < emu_thread_count) emu_stuck();
    if (next && !(emu_warp_of(next)->started & emu_lane_bit(next))) {
      emu_warp_of(next)->started |= emu_lane_bit(next);
      next->stack = self->stack;
      emu_thread = next;
      continue;
    }
    emu_free_stacks[emu_free_stack_count++] = self->stack;
    if (next) emu_switch_to(&dead, next);
    else emu_switch(&dead, emu_host_sp);
  }
}

// ---- blocks
EMU(void) emu_fibres_init() {
  if (emu_stacks) return;
  const int rw = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const size_t shared = 2 * (size_t)EMU_SHARED_REGION + 4096, stacks = EMU_STACK_BYTES * EMU_MAX_THREADS;
  void *a = mmap(NULL, stacks, rw, flags, -1, 0), *b = mmap(NULL, shared, rw, flags, -1, 0);
  if (a == MAP_FAILED || b == MAP_FAILED) emu_fail("no memory for the threads of a block");
  emu_stacks = (char *)a;
  emu_static = (char *)b;
  emu_dynamic_end = emu_static + 2 * (size_t)EMU_SHARED_REGION;
  mprotect(emu_dynamic_end, 4096, PROT_NONE);
  for (unsigned i = EMU_MAX_THREADS; i-- > 0;) {                   // the lowest is taken first
    char *stack = emu_stacks + EMU_STACK_BYTES * i;
    memset(stack, 0xff, EMU_CANARY_BYTES);
    emu_free_stacks[emu_free_stack_count++] = stack;
  }
}
EMU(void) emu_threads_init(dim3 block) {
  emu_block_dim = block;
  emu_thread_count = block.x * block.y * block.z;
  for (unsigned i = 0; i < emu_thread_count; i++)
    emu_threads[i] = {NULL, NULL, {i % block.x, i / block.x % block.y, i / block.x / block.y}, i, NULL};
  for (unsigned w = 0; w * 32 < emu_thread_count; w++) {
    const unsigned lanes = emu_thread_count - w * 32;
    emu_warps[w].live = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
    emu_warps[w].meeting_count = 0;
  }
}
static inline void emu_all_ready() {
  const unsigned warps = (emu_thread_count + 31) / 32;
  for (unsigned w = 0; w < warps; w++) emu_warps[w].ready = emu_warps[w].live;
  emu_ready_warps = warps == 32 ? 0xffffffffu : (1u << warps) - 1;
}
EMU(void) emu_run_block() {
  const size_t dynamic = emu_round(emu_dynamic_bytes, 128);
  memset(emu_dynamic_end - dynamic, 0xff, dynamic);
  emu_block_serial++;
  emu_array_count = 0;
  emu_static_used = emu_static_bytes = 0;
  emu_at_barrier = emu_finished = emu_barrier_votes = 0;
  emu_downwards = emu_random(2);
  emu_all_ready();
  for (unsigned w = 0; w * 32 < emu_thread_count; w++) emu_warps[w].started = 0;
  emu_switch_to(&emu_host_sp, emu_next());
  emu_thread = NULL;
  emu_check_shared();
}
EMU(unsigned) emu_gcd(unsigned a, unsigned b) { return b ? emu_gcd(b, a % b) : a; }
// Runs the blocks in the adversary's order: a random start and stride.
EMU(void) emu_run_grid(dim3 grid, dim3 block, size_t dynamic_bytes, EmuBody body) {
  emu_grid_dim = grid;
  emu_dynamic_bytes = dynamic_bytes;
  emu_body = body;
  emu_threads_init(block);
  const unsigned blocks = grid.x * grid.y * grid.z;
  unsigned b = emu_random(blocks), stride = 1 + emu_random(blocks);
  while (emu_gcd(stride, blocks) != 1) stride++;
  for (unsigned i = 0; i < blocks; i++) {
    emu_block_index = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    emu_run_block();
    b = (unsigned)(((uint64_t)b + stride) % blocks);
  }
}

// ---- barriers
static inline unsigned emu_barrier(unsigned vote, const char *what) {
  emu_barrier_votes += vote;
  if (++emu_at_barrier < emu_thread_count) {
    emu_wait(what);
  } else {
    emu_barrier_result = emu_barrier_votes;
    emu_barrier_votes = emu_at_barrier = 0;
    emu_all_ready();
  }
  return emu_barrier_result;
}
static inline void __syncthreads() { emu_barrier(0, "__syncthreads"); }
EMU(int) __syncthreads_count(int p) { return (int)emu_barrier(p != 0, "__syncthreads_count"); }
EMU(int) __syncthreads_or(int p) { return emu_barrier(p != 0, "__syncthreads_or") != 0; }
EMU(int) __syncthreads_and(int p) { return emu_barrier(p != 0, "__syncthreads_and") == emu_thread_count; }

// Every lane of `mask` gives a pointer to its operands; the last to arrive computes for all.
static inline void emu_meet(uint32_t mask, void *operands, EmuWarpOp op, const char *what) {
  EmuThread *t = emu_thread;
  EmuWarp *w = emu_warp_of(t);
  if (!(mask & emu_lane_bit(t)))
    emu_fail("divergence: %s with mask %08x, which leaves out the calling lane", what, mask);
  mask &= w->live;
  uint32_t i = 0;
  while (i < w->meeting_count && w->meeting[i].mask != mask) i++;
  EmuMeeting *m = &w->meeting[i];
  if (i == w->meeting_count) {
    w->meeting_count++;
    m->mask = mask;
    m->here = 0;
    m->op = op;
    m->what = what;
  }
  if (m->op != op) emu_fail("divergence: lanes of one warp meet in %s and in %s (mask %08x)", m->what, what, mask);
  m->operands[t->index % 32] = operands;
  m->here |= emu_lane_bit(t);
  if (m->here != mask) { emu_wait(what); return; }
  op(m->operands, mask);
  if (i != --w->meeting_count) *m = w->meeting[w->meeting_count];
  w->ready |= mask;
}
