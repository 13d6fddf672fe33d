// fibres.h: the threads of one block. Each is a fibre (a stack and a saved stack pointer). It runs until it must wait
// for others; then the next fibre that can run does. Blocks run one after the other; those of a cluster run together.
//
// Clusters (compute capability 9.0 and later): blocks of whole warps, all of whose threads are at most EMU_MAX_THREADS.
// Each block has shared memory of its own, at the same places, and a barrier of its own; one more is the cluster's. A
// block that writes into another's shared memory must know that it has started, and no block may end before it knows
// that nobody does so any more: both by a barrier of the cluster, and both are asked for.
//
// Speed: a thread that never waits needs no switch, because the stack continues with the next thread. A waiting thread
// switches straight to its successor. A bit mask per warp says which threads can run.
// Adversary: at every wait the next warp is random; at every block the lane direction (up or down) is random. So a
// missing __syncthreads or __syncwarp shows as NaN or as an old value in one order or another.
// Divergence: when no thread can run and some thread waits, the block is stuck. The process ends and reports who waits
// where. A thread that has ended does not count as arrived anywhere, which is stricter than sm_70 and later.
#pragma once
#include "emu.h"
#include "intrinsics.h"
#include <sys/mman.h>

// emu_switch(save, to): pushes the callee-saved registers, stores the stack pointer, loads another. A new stack starts
// with EMU_SWITCH_WORDS words, of which the one numbered EMU_SWITCH_RETURN is where to go.
extern "C" void emu_switch(void **save, void *to);
#if defined(__aarch64__)
enum { EMU_SWITCH_WORDS = 20, EMU_SWITCH_RETURN = 11 };
#if EMU_ONCE
__asm__(".text\n.globl emu_switch\n.type emu_switch,%function\nemu_switch:\n"
        "sub sp,sp,160\nstp x19,x20,[sp]\nstp x21,x22,[sp,16]\nstp x23,x24,[sp,32]\nstp x25,x26,[sp,48]\n"
        "stp x27,x28,[sp,64]\nstp x29,x30,[sp,80]\nstp d8,d9,[sp,96]\nstp d10,d11,[sp,112]\nstp d12,d13,[sp,128]\n"
        "stp d14,d15,[sp,144]\nmov x2,sp\nstr x2,[x0]\nmov sp,x1\nldp x19,x20,[sp]\nldp x21,x22,[sp,16]\n"
        "ldp x23,x24,[sp,32]\nldp x25,x26,[sp,48]\nldp x27,x28,[sp,64]\nldp x29,x30,[sp,80]\nldp d8,d9,[sp,96]\n"
        "ldp d10,d11,[sp,112]\nldp d12,d13,[sp,128]\nldp d14,d15,[sp,144]\nadd sp,sp,160\nbr x30\n"
        ".size emu_switch,.-emu_switch\n");
#endif
#else
enum { EMU_SWITCH_WORDS = 8, EMU_SWITCH_RETURN = 6 };
#if EMU_ONCE
__asm__(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
        "popq %rcx\njmp *%rcx\n.size emu_switch,.-emu_switch\n");  // a jump: a ret here would always be mispredicted
#endif
#endif

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
enum { EMU_MAX_THREADS = 1024, EMU_MAX_WARPS = 32, EMU_MAX_ARRAYS = 64, EMU_MAX_CLUSTER = 8 };

typedef void (*EmuWarpOp)(void **operands, uint32_t lanes);
struct EmuMeeting { uint32_t mask, here; EmuWarpOp op; const char *what; void *operands[32]; };
struct EmuWarp {
  uint32_t live, ready, started;                 // lanes that exist, can run, have a stack
  uint32_t meeting_count;                        // meetings with a waiting thread; each has another mask
  EmuMeeting meeting[32];
};
struct EmuThread { void *sp; char *stack; uint3 id; unsigned index, rank; const char *waits_in; };
struct EmuBarrier { unsigned here, votes, result; };
struct EmuDynamic { size_t bytes, asked; };       // a launch's dynamic shared memory; what its kernel was asked to have
struct EmuBody { void (*call)(const void *args); const void *args; };

inline EmuThread emu_threads[EMU_MAX_THREADS], *emu_thread;        // the running one; NULL: the host
inline EmuWarp emu_warps[EMU_MAX_WARPS];
inline uint32_t emu_ready_warps;
inline bool emu_downwards;
inline unsigned emu_thread_count, emu_finished;   // of all blocks that run together
inline unsigned emu_block_threads, emu_cluster = 1, emu_cluster_here, emu_cluster_phase;
inline bool emu_cluster_open;                    // another block's memory was asked for since the last such barrier
inline unsigned emu_cluster_arrived[EMU_MAX_THREADS];      // barriers of the cluster that a thread has arrived at
inline EmuBarrier emu_barriers[EMU_MAX_CLUSTER];
inline char *emu_stacks, *emu_free_stacks[EMU_MAX_THREADS];
inline unsigned emu_free_stack_count;
inline void *emu_host_sp;
inline EmuBody emu_body;
inline uint3 emu_block_index[EMU_MAX_CLUSTER];
inline dim3 emu_block_dim, emu_grid_dim;
#define threadIdx (emu_thread->id)
#define blockIdx (emu_block_index[emu_thread->rank])
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
inline EmuShared *emu_arrays[EMU_MAX_ARRAYS];    // of the running block
inline unsigned emu_array_count;
inline uint64_t emu_block_serial;
static const size_t EMU_SHARED_STRIDE = 2 * (size_t)EMU_SHARED_REGION + 4096;    // from a block's to the next one's
inline char *emu_static, *emu_dynamic_end;       // of the cluster's first block
inline size_t emu_static_used, emu_static_bytes;
inline EmuDynamic emu_dynamic;
inline int emu_capability_now = getenv("EMU_CAPABILITY") ? atoi(getenv("EMU_CAPABILITY")) : 80;    // major, minor
inline int emu_built_for_now;
inline EmuCounters emu_count;
// By opting in: the limit of every architecture since sm_80, and of 9.0.
inline size_t emu_shared_limit_now = (emu_capability_now == 90 ? 227 : 99) << 10;

EMU(size_t) emu_round(size_t n, size_t to) { return (n + to - 1) / to * to; }
// Of the running thread's block.
EMU(bool) emu_is_shared(const void *p) {
  const char *c = (const char *)p - emu_thread->rank * EMU_SHARED_STRIDE;
  return c >= emu_static && c < emu_dynamic_end;
}
// The array of this place in the running blocks, filled with NaN at its first use.
EMU(void *) emu_shared(EmuShared *place, size_t bytes) {
  if (place->block == emu_block_serial) return place->data + emu_thread->rank * EMU_SHARED_STRIDE;
  if (emu_array_count == EMU_MAX_ARRAYS) emu_fail("more than %d shared arrays", EMU_MAX_ARRAYS);
  emu_static_bytes += emu_round(bytes, 16);
  if (emu_static_bytes > EMU_STATIC_LIMIT)
    emu_fail("%zu bytes of static shared memory: more than 48 KiB must be SHARED_DYNAMIC", emu_static_bytes);
  // A device rejects such launches; here a kernel's static bytes are known when it runs.
  if (emu_static_bytes + emu_dynamic.bytes > EMU_STATIC_LIMIT && emu_dynamic.bytes > emu_dynamic.asked)
    emu_fail("invalid argument: %zu static and %zu dynamic bytes of shared memory, more than 48 KiB together, and %zu "
             "dynamic ones asked for", emu_static_bytes, emu_dynamic.bytes, emu_dynamic.asked);
  const size_t most = emu_dynamic.bytes > emu_dynamic.asked ? emu_dynamic.bytes : emu_dynamic.asked;
  if (emu_static_bytes + most > emu_shared_limit_now)
    emu_fail("invalid argument: %zu static and %zu dynamic bytes of shared memory: more than the %zu there are",
             emu_static_bytes, most, emu_shared_limit_now);
  const size_t whole = emu_round(bytes, 16) + EMU_GUARD;
  *place = {emu_block_serial, emu_static + emu_static_used, bytes};
  for (unsigned r = 0; r < emu_cluster; r++) memset(place->data + r * EMU_SHARED_STRIDE, 0xff, whole);
  emu_static_used += whole;
  emu_arrays[emu_array_count++] = place;
  return place->data + emu_thread->rank * EMU_SHARED_STRIDE;
}
static inline void *emu_shared_dynamic() {
  return emu_dynamic_end + emu_thread->rank * EMU_SHARED_STRIDE - emu_round(emu_dynamic.bytes, 1024);
}

EMU(bool) emu_untouched(const char *p, size_t n) {                 // still 0xff
  uint64_t all = ~(uint64_t)0, word;
  for (; n >= 8; p += 8, n -= 8) { memcpy(&word, p, 8); all &= word; }
  for (; n; p++, n--) all &= (uint64_t)(int64_t)(int8_t)*p;
  return all == ~(uint64_t)0;
}
EMU(void) emu_check_shared(unsigned rank) {
  const uint3 block = emu_block_index[rank];
  for (unsigned i = 0; i < emu_array_count; i++) {
    const EmuShared *a = emu_arrays[i];
    if (!emu_untouched(a->data + rank * EMU_SHARED_STRIDE + a->bytes, emu_round(a->bytes, 16) + EMU_GUARD - a->bytes))
      emu_fail("block (%u,%u,%u) wrote after a shared array of %zu bytes", block.x, block.y, block.z, a->bytes);
  }
  const size_t dynamic = emu_round(emu_dynamic.bytes, 1024);
  const char *end = emu_dynamic_end + rank * EMU_SHARED_STRIDE;
  if (!emu_untouched(end - dynamic + emu_dynamic.bytes, dynamic - emu_dynamic.bytes))
    emu_fail("block (%u,%u,%u) wrote after %zu bytes of dynamic shared memory", block.x, block.y, block.z,
             emu_dynamic.bytes);
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
  emu_fail("divergence: no thread of the block can continue:%s %u of %u threads have ended", text, emu_finished,
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

void emu_cp_async_end();
void emu_wgmma_end();
void emu_proxy_barrier();
inline void emu_thread_main();
static inline void emu_switch_to(void **save, EmuThread *t) {
  EmuWarp *w = emu_warp_of(t);
  emu_thread = t;
  if (!(w->started & emu_lane_bit(t))) {
    w->started |= emu_lane_bit(t);
    t->stack = emu_free_stacks[--emu_free_stack_count];
    void **top = (void **)(t->stack + EMU_STACK_BYTES);
    memset(top - EMU_SWITCH_WORDS, 0, EMU_SWITCH_WORDS * sizeof *top);
    top[EMU_SWITCH_RETURN - EMU_SWITCH_WORDS] = (void *)emu_thread_main;
    t->sp = top - EMU_SWITCH_WORDS;
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
__attribute__((no_sanitize("address"))) inline void emu_thread_main() {
  void *dead;
  for (;;) {
    emu_body.call(emu_body.args);
    EmuThread *self = emu_thread;
    if (!emu_untouched(self->stack, EMU_CANARY_BYTES)) emu_fail("a thread's local memory is larger than its stack");
    emu_cp_async_end();
    emu_wgmma_end();
    if (emu_cluster_open) emu_fail("a block of a cluster ends while others may write into its shared memory");
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
  const size_t shared = EMU_MAX_CLUSTER * EMU_SHARED_STRIDE, stacks = EMU_STACK_BYTES * EMU_MAX_THREADS;
  void *a = mmap(NULL, stacks, rw, flags, -1, 0), *b = mmap(NULL, shared, rw, flags, -1, 0);
  if (a == MAP_FAILED || b == MAP_FAILED) emu_fail("no memory for the threads of a block");
  emu_stacks = (char *)a;
  emu_static = (char *)b;
  emu_dynamic_end = emu_static + 2 * (size_t)EMU_SHARED_REGION;
  for (unsigned r = 0; r < EMU_MAX_CLUSTER; r++) mprotect(emu_dynamic_end + r * EMU_SHARED_STRIDE, 4096, PROT_NONE);
  for (unsigned i = EMU_MAX_THREADS; i-- > 0;) {                   // the lowest is taken first
    char *stack = emu_stacks + EMU_STACK_BYTES * i;
    memset(stack, 0xff, EMU_CANARY_BYTES);
    emu_free_stacks[emu_free_stack_count++] = stack;
  }
}
EMU(void) emu_threads_init(dim3 block, unsigned cluster) {
  emu_block_dim = block;
  emu_block_threads = block.x * block.y * block.z;
  emu_cluster = cluster;
  emu_thread_count = cluster * emu_block_threads;
  for (unsigned i = 0; i < emu_thread_count; i++) {
    const unsigned t = i % emu_block_threads;
    emu_threads[i] = {NULL, NULL, {t % block.x, t / block.x % block.y, t / block.x / block.y}, i,
                      i / emu_block_threads, NULL};
  }
  for (unsigned w = 0; w * 32 < emu_thread_count; w++) {
    const unsigned lanes = emu_thread_count - w * 32;
    emu_warps[w].live = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
    emu_warps[w].meeting_count = 0;
  }
}
// All warps of `count` threads from `first` on.
static inline void emu_all_ready(unsigned first, unsigned count) {
  for (unsigned w = first / 32; w < (first + count + 31) / 32; w++) {
    emu_warps[w].ready = emu_warps[w].live;
    emu_ready_warps |= 1u << w;
  }
}
// The blocks that run together: one, or those of a cluster.
EMU(void) emu_run_blocks() {
  const size_t dynamic = emu_round(emu_dynamic.bytes, 1024);
  for (unsigned r = 0; r < emu_cluster; r++) {
    memset(emu_dynamic_end + r * EMU_SHARED_STRIDE - dynamic, 0xff, dynamic);
    emu_barriers[r] = {};
  }
  emu_block_serial++;
  emu_array_count = 0;
  emu_static_used = emu_static_bytes = 0;
  emu_finished = emu_cluster_here = emu_cluster_phase = emu_ready_warps = 0;
  emu_cluster_open = false;
  memset(emu_cluster_arrived, 0, sizeof(unsigned) * emu_thread_count);
  emu_downwards = emu_random(2);
  emu_all_ready(0, emu_thread_count);
  for (unsigned w = 0; w * 32 < emu_thread_count; w++) emu_warps[w].started = 0;
  emu_switch_to(&emu_host_sp, emu_next());
  emu_thread = NULL;
  for (unsigned r = 0; r < emu_cluster; r++) emu_check_shared(r);
}
EMU(unsigned) emu_gcd(unsigned a, unsigned b) { return b ? emu_gcd(b, a % b) : a; }
// Runs the blocks in the adversary's order: a random start and stride. cluster: neighbours in x that run together.
EMU(void) emu_run_grid(dim3 grid, dim3 block, unsigned cluster, EmuDynamic dynamic, EmuBody body) {
  emu_grid_dim = grid;
  emu_dynamic = dynamic;
  emu_body = body;
  emu_threads_init(block, cluster);
  const unsigned blocks = grid.x * grid.y * grid.z / cluster;
  unsigned b = emu_random(blocks), stride = 1 + emu_random(blocks);
  while (emu_gcd(stride, blocks) != 1) stride++;
  for (unsigned i = 0; i < blocks; i++) {
    for (unsigned r = 0; r < cluster; r++) {
      const unsigned at = b * cluster + r;
      emu_block_index[r] = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
    }
    emu_run_blocks();
    b = (unsigned)(((uint64_t)b + stride) % blocks);
  }
}

// ---- barriers
static const char *const emu_cluster_waits = "the barrier of its cluster";
static inline unsigned emu_barrier(unsigned vote, const char *what) {
  const unsigned rank = emu_thread->rank;
  EmuBarrier *b = &emu_barriers[rank];
  b->votes += vote;
  if (++b->here < emu_block_threads) {
    emu_wait(what);
  } else {
    b->result = b->votes;
    b->votes = b->here = 0;
    emu_proxy_barrier();
    emu_all_ready(rank * emu_block_threads, emu_block_threads);
  }
  return b->result;
}
static inline void __syncthreads() { emu_barrier(0, "__syncthreads"); }
EMU(int) __syncthreads_count(int p) { return (int)emu_barrier(p != 0, "__syncthreads_count"); }
EMU(int) __syncthreads_or(int p) { return emu_barrier(p != 0, "__syncthreads_or") != 0; }
EMU(int) __syncthreads_and(int p) { return emu_barrier(p != 0, "__syncthreads_and") == emu_block_threads; }

// The cluster's barrier, in two steps: cluster_arrive and cluster_wait of kernels/cuda/gpu.h. A thread waits with
// waits_in alone; the last to arrive makes those that already wait ready again.
EMU(int) emu_built_for() { return emu_built_for_now ? emu_built_for_now : emu_capability_now; }
EMU(void) emu_cluster_arrive() {
  if (emu_built_for() < 90) emu_fail("a cluster in code that was compiled for a GPU without");
  if (emu_cluster_arrived[emu_thread->index]++ != emu_cluster_phase)
    emu_fail("a thread arrives twice at one barrier of its cluster");
  if (++emu_cluster_here < emu_thread_count) return;
  emu_cluster_here = 0;
  emu_cluster_phase++;
  emu_cluster_open = false;
  for (unsigned i = 0; i < emu_thread_count; i++)
    if (emu_threads[i].waits_in == emu_cluster_waits) {
      emu_warps[i / 32].ready |= 1u << i % 32;
      emu_ready_warps |= 1u << i / 32;
    }
}
EMU(void) emu_cluster_wait() {
  const unsigned mine = emu_cluster_arrived[emu_thread->index];
  if (mine != emu_cluster_phase + 1 && mine != emu_cluster_phase)
    emu_fail("a thread waits at a barrier of its cluster where it has not arrived");
  if (mine == emu_cluster_phase + 1) emu_wait(emu_cluster_waits);
}
// Where block `rank` of the cluster has what this block has at p.
EMU(void *) emu_cluster_at(void *p, unsigned rank) {
  if (rank >= emu_cluster || !emu_is_shared(p)) emu_fail("no shared memory of block %u of %u", rank, emu_cluster);
  if (!emu_cluster_phase) emu_fail("a block of a cluster is written into before it is known to have begun");
  emu_cluster_open = true;
  return (char *)p + ((int64_t)rank - (int64_t)emu_thread->rank) * (int64_t)EMU_SHARED_STRIDE;
}

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
