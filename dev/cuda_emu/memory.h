// memory.h: device memory. It is one reserved range of addresses in which every allocation has its own pages,
// unreadable while the host runs. The page after an allocation is never readable, and addresses are not reused. So an
// access by the host, an access far outside an allocation, and one after cudaFree all fault, and the handler explains
// the fault. The bytes around an allocation within its pages are checked after every stream operation.
//
// While streams run, allocations are opened one by one: those that an operation's arguments point to, any other at its
// first fault. Changing page tables is slow, and most operations touch only few allocations. While the host polls they
// stay open, and are closed with the answer.
//
// Pinned memory is the host's; the device may use it, and its copies run when the stream reaches them.
#pragma once
#include "fibres.h"
#include <map>
#include <signal.h>
#include <unistd.h>

struct EmuAllocation { char *data; size_t bytes; char *pages; size_t page_bytes; bool open; };
inline std::map<const char *, EmuAllocation> emu_device_memory, emu_pinned_memory;
inline char *emu_heap, *emu_heap_next, *emu_heap_end;
inline size_t emu_device_bytes_now = (size_t)16 << 30, emu_device_bytes_used, emu_cached_bytes;
inline int emu_entered;                          // > 0: streams run, device memory may be opened
inline unsigned emu_open_count;                  // allocations
enum : size_t { EMU_PAGE = 4096, EMU_HUGE_PAGE = 2 << 20, EMU_BEFORE = 256 };

EMU(EmuAllocation *) emu_find(std::map<const char *, EmuAllocation> &all, const void *p) {
  auto next = all.upper_bound((const char *)p);
  if (next == all.begin()) return NULL;
  EmuAllocation *a = &(--next)->second;
  return (const char *)p <= a->data + a->bytes ? a : NULL;
}
static inline bool emu_in_heap(const void *p) { return (const char *)p >= emu_heap && (const char *)p < emu_heap_end; }

// ---- protection: between enter and leave device memory can be opened
EMU(void) emu_protect(const EmuAllocation &a, int how) {
  if (mprotect(a.pages, a.page_bytes, how)) emu_fail("mprotect of %zu bytes failed", a.page_bytes);
}
// Allocations and the addresses between them differ in a flag of their mappings (whether a core dump has them): else
// closed ones would be merged into one mapping, and opening would split it again, which takes longer than all else.
EMU(void) emu_set_apart(void *pages, size_t bytes, bool apart) {
  madvise(pages, bytes, apart ? MADV_DODUMP : MADV_DONTDUMP);
}
EMU(void) emu_open(EmuAllocation *a) {
  if (!a || a->open) return;
  emu_protect(*a, PROT_READ | PROT_WRITE);
  a->open = true;
  emu_open_count++;
}
// Opens every allocation that any 8 bytes of `arguments` point to.
EMU(void) emu_open_arguments(const void *arguments, size_t bytes) {
  for (size_t at = 0; at + sizeof(void *) <= bytes; at += sizeof(void *)) {
    const void *p;
    memcpy(&p, (const char *)arguments + at, sizeof p);
    if (emu_in_heap(p)) emu_open(emu_find(emu_device_memory, p));
  }
}
EMU(void) emu_enter() { emu_entered++; }
EMU(void) emu_close_all() {
  if (emu_entered || !emu_open_count) return;
  for (auto &entry : emu_device_memory) {
    if (entry.second.open) emu_protect(entry.second, PROT_NONE);
    entry.second.open = false;
  }
  emu_open_count = 0;
}
EMU(void) emu_leave() { emu_entered--; emu_close_all(); }

// ---- faults
// The allocation that owns the page of p.
EMU(EmuAllocation *) emu_owner(const void *p) {
  auto next = emu_device_memory.upper_bound((const char *)p);
  if (next != emu_device_memory.end() && next->second.pages <= (const char *)p) return &next->second;
  if (next == emu_device_memory.begin()) return NULL;
  EmuAllocation *a = &(--next)->second;
  return (const char *)p < a->pages + a->page_bytes ? a : NULL;
}
EMU(void) emu_on_fault(int number, siginfo_t *info, void *) {
  char line[256];
  if (emu_entered && emu_in_heap(info->si_addr)) {
    EmuAllocation *a = emu_owner(info->si_addr);
    if (a && !a->open) { emu_open(a); return; }
  }
  const char *what = emu_in_heap(info->si_addr) && !emu_entered ? "the host touches device memory"
                     : emu_in_heap(info->si_addr) ? "an access outside every allocation of device memory"
                     : emu_thread ? "a wild, misaligned or shared-memory address in a kernel" : "a wild address";
  int n = snprintf(line, sizeof line, "cuda_emu: %s, %p", what, info->si_addr);
  if (*emu_running) n += snprintf(line + n, sizeof line - (size_t)n, "; in %s", emu_running);
  if (emu_thread)
    n += snprintf(line + n, sizeof line - (size_t)n, ", block (%u,%u,%u), thread %u", blockIdx.x, blockIdx.y,
                  blockIdx.z, emu_thread->index);
  line[n < 255 ? n : 254] = '\n';
  if (write(STDERR_FILENO, line, (size_t)(n < 255 ? n : 254) + 1) < 0) {}
  signal(number, SIG_DFL);                       // the access is repeated and ends the process
}
EMU(void) emu_memory_init() {
  if (emu_heap) return;
  size_t bytes = (size_t)1 << 41;                // addresses, not memory
  void *p = MAP_FAILED;
  while (p == MAP_FAILED && bytes > (size_t)1 << 32)
    p = mmap(NULL, bytes /= 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) emu_fail("no address space for device memory");
  emu_heap = emu_heap_next = (char *)p;
  emu_heap_end = emu_heap + bytes;
  emu_set_apart(emu_heap, bytes, false);
  static char stack[64 << 10];
  stack_t alternative = {};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, NULL);
  struct sigaction action = {};
  action.sa_sigaction = emu_on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, NULL);
  sigaction(SIGBUS, &action, NULL);
}

// ---- allocations
// The data ends less than 256 bytes before its last page ends. Large ones get huge pages: faster to open and close.
EMU(bool) emu_device_alloc(void **p, size_t bytes) {
  emu_memory_init();
  if (bytes > emu_device_bytes_now || emu_device_bytes_used + bytes > emu_device_bytes_now) return false;
  const size_t page = bytes >= EMU_HUGE_PAGE / 4 ? EMU_HUGE_PAGE : EMU_PAGE, data = emu_round(bytes, 256);
  const size_t page_bytes = emu_round(data + EMU_BEFORE, page);
  char *pages = (char *)emu_round((size_t)emu_heap_next, page);
  if (pages + page_bytes + EMU_PAGE > emu_heap_end) emu_fail("out of device addresses");
  emu_heap_next = pages + page_bytes + EMU_PAGE;
  emu_set_apart(pages, page_bytes, true);
  if (page == EMU_HUGE_PAGE) madvise(pages, page_bytes, MADV_HUGEPAGE);
  EmuAllocation a = {pages + page_bytes - data, bytes, pages, page_bytes, false};
  emu_device_bytes_used += bytes;
  emu_protect(a, PROT_READ | PROT_WRITE);
  memset(a.data - EMU_BEFORE, 0xff, data + EMU_BEFORE);
  emu_protect(a, PROT_NONE);
  emu_device_memory[a.data] = a;
  *p = a.data;
  return true;
}
static inline bool emu_guards_hold(const EmuAllocation &a) {
  return emu_untouched(a.data - EMU_BEFORE, EMU_BEFORE) &&
         emu_untouched(a.data + a.bytes, emu_round(a.bytes, 256) - a.bytes);
}
EMU(void) emu_check_guards() {                   // an unopened one was not written
  for (auto &entry : emu_device_memory)
    if (entry.second.open && !emu_guards_hold(entry.second))
      emu_fail("a write beside an allocation of %zu bytes", entry.second.bytes);
}
EMU(bool) emu_device_free(void *p) {
  auto found = emu_device_memory.find((const char *)p);
  if (found == emu_device_memory.end()) return false;
  const EmuAllocation a = found->second;
  emu_device_bytes_used -= a.bytes;
  emu_open_count -= a.open;
  emu_device_memory.erase(found);
  madvise(a.pages, a.page_bytes, MADV_DONTNEED);
  emu_protect(a, PROT_NONE);
  emu_set_apart(a.pages, a.page_bytes, false);
  return true;
}
EMU(bool) emu_pin(void *p, size_t bytes) {
  char *data = (char *)p;
  for (auto &a : emu_pinned_memory)
    if (data < a.second.data + a.second.bytes && a.second.data < data + bytes) return false;
  emu_pinned_memory[data] = {data, bytes, data, bytes, true};
  return true;
}

// ---- pointers passed to the device
// Device memory or pinned memory, allocated and not freed; NULL passes, for optional arguments.
EMU(void) emu_device_pointer(const void *p, const char *who) {
  if (!p || emu_find(emu_device_memory, p) || emu_find(emu_pinned_memory, p)) return;
  emu_fail("%s is given %s pointer %p", who, emu_in_heap(p) ? "an unallocated or freed device" : "a pageable host", p);
}
enum EmuPlace { EMU_ON_DEVICE, EMU_PINNED, EMU_PAGEABLE };
// Where [p, p + bytes) is; the whole range must be there.
EMU(EmuPlace) emu_place(const void *p, size_t bytes, const char *who) {
  const EmuAllocation *a = emu_find(emu_device_memory, p), *pinned = emu_find(emu_pinned_memory, p);
  if (!a && emu_in_heap(p)) emu_fail("%s: %p is device memory that is not allocated", who, p);
  if (!a) a = pinned;
  if (a && (const char *)p + bytes > a->data + a->bytes) {
    if (a == pinned && (const char *)p == a->data + a->bytes) return EMU_PAGEABLE;   // starts where pinned memory ends
    emu_fail("%s: %zu bytes from %p on go beyond an allocation of %zu bytes", who, bytes, p, a->bytes);
  }
  return !a ? EMU_PAGEABLE : a == pinned ? EMU_PINNED : EMU_ON_DEVICE;
}
