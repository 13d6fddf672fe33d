// streams.h: streams are queues of closures; nothing runs before the host waits or queries. Then the adversary
// repeatedly picks one stream whose first operation can run:
//   seed 0       the oldest such stream: side streams lag as far as events let them
//   seed 1       the newest such stream: side streams run ahead
//   from 2 on    an order that changes at random
// 0 and 1 together show any missing wait between two streams; the others add combinations of more streams.
//
//   emu_push(stream, name, f)     queues f, which returns false while it has not finished (messages of other ranks).
//                                 State that f keeps between calls must be held by value (a mutable lambda), because a
//                                 captured f is copied for every launch of the graph
#pragma once
#include "memory.h"
#include "emu.h"
#include <deque>
#include <functional>
#include <sched.h>
#include <string>
#include <time.h>

// Numbers are those of the CUDA runtime.
#define EMU_ERRORS(X) \
  X(cudaSuccess, 0, "no error") \
  X(cudaErrorInvalidValue, 1, "invalid argument") \
  X(cudaErrorMemoryAllocation, 2, "out of memory") \
  X(cudaErrorInitializationError, 3, "initialization error") \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument") \
  X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version") \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function") \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected") \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal") \
  X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device") \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle") \
  X(cudaErrorNotReady, 600, "device not ready") \
  X(cudaErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped") \
  X(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region") \
  X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing") \
  X(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture") \
  X(cudaErrorStreamCaptureMerge, 902, "operation would result in a merge of separate capture sequences") \
  X(cudaErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it started") \
  X(cudaErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work") \
  X(cudaErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream") \
  X(cudaErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a capturing stream") \
  X(cudaErrorUnknown, 999, "unknown error")
enum cudaError_t {
#define X(name, number, words) name = number,
  EMU_ERRORS(X)
#undef X
};

struct EmuEvent;
struct EmuCapture;
struct EmuOp { std::function<bool()> run; const char *name; const EmuEvent *waits_for; };
struct EmuStream {
  std::deque<EmuOp> queue;
  std::string name;
  unsigned index;                                // age: 0 is the oldest
  bool destroyed, claimed;                       // claimed: NCCL is about to enqueue to it, nobody else may
  EmuCapture *capture;                           // it is being captured into this
  std::vector<int> tail;                         // graph nodes that the next captured operation depends on
};
struct EmuEvent {
  std::string name;
  uint64_t recorded, reached;                    // records queued, and records run
  const EmuStream *stream;                       // of the last record; NULL: never recorded
  uint64_t capture;                              // serial number of the capture it was last recorded in; 0: none
  std::vector<int> tail;
  uint64_t time;                                 // total operations finished when it was reached
  bool timing, destroyed;
};
typedef EmuStream *cudaStream_t;
typedef EmuEvent *cudaEvent_t;

inline std::vector<EmuStream *> emu_streams;     // open, or destroyed and not yet empty; by age
inline unsigned emu_streams_made;
inline std::vector<unsigned> emu_order;          // positions in emu_streams; the first that can run goes next
inline cudaError_t emu_last_error;
inline uint64_t emu_progress;                    // operations and graph nodes finished
inline std::vector<EmuWait> emu_wait_pairs;
inline std::string emu_skip_event, emu_skip_stream;
enum { EMU_PATIENCE_S = 120 };

EMU(cudaError_t) emu_error(cudaError_t e) { if (e != cudaSuccess) emu_last_error = e; return e; }
EMU(EmuStream *) emu_stream(cudaStream_t s) {
  if (!s) emu_fail("the default stream orders every other one: work must be queued on a stream of its own");
  if (s->destroyed) emu_fail("stream %s was destroyed", s->name.c_str());
  if (s->claimed) emu_fail("stream %s is used while NCCL still enqueues to it", s->name.c_str());
  return s;
}

// ---- the adversary
EMU(void) emu_set_order() {
  const unsigned n = (unsigned)emu_streams.size();
  emu_order.resize(n);
  for (unsigned i = 0; i < n; i++) emu_order[i] = emu_seed_now == 1 ? n - 1 - i : i;
  if (emu_seed_now < 2) return;
  for (unsigned i = n; i > 1; i--) std::swap(emu_order[i - 1], emu_order[emu_random(i)]);
}
// Runs the first operation of a stream: true if anything was done.
EMU(bool) emu_step(EmuStream *s) {
  EmuOp *op = &s->queue.front();
  const uint64_t before = emu_progress;
  emu_running = op->name;
  const bool finished = op->run();
  if (finished || emu_progress != before) emu_check_guards();
  emu_running = "";
  if (finished) { s->queue.pop_front(); emu_progress++; }
  return emu_progress != before;
}
EMU(void) emu_forget_destroyed() {
  for (size_t i = emu_streams.size(); i-- > 0;)
    if (emu_streams[i]->destroyed && emu_streams[i]->queue.empty()) {
      emu_streams.erase(emu_streams.begin() + (long)i);
      emu_order.clear();
    }
}
// Runs one operation of some stream; false: none can run.
EMU(bool) emu_move() {
  if (emu_order.size() != emu_streams.size() || (emu_seed_now >= 2 && !emu_random(4))) emu_set_order();
  for (unsigned i : emu_order) if (!emu_streams[i]->queue.empty() && emu_step(emu_streams[i])) return true;
  return false;
}
// Nothing can run. If every stream waits for an event, that is a deadlock, and it is reported. Otherwise the streams
// wait for other ranks, which after a while get the core.
struct EmuPatience { timespec since; unsigned idle; };
EMU(void) emu_idle(EmuPatience *p) {
  if (++p->idle % 256) { sched_yield(); return; }
  std::string waits;
  bool others = false;
  for (const EmuStream *s : emu_streams) {
    if (s->queue.empty()) continue;
    const EmuOp &op = s->queue.front();
    others |= !op.waits_for;
    const std::string where = op.waits_for ? "waits for event " + op.waits_for->name : std::string("is in ") + op.name;
    waits += " " + s->name + " " + where + ";";
  }
  if (!others) emu_fail("deadlock:%s nothing can continue", waits.c_str());
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!p->since.tv_sec) p->since = now;
  if (now.tv_sec - p->since.tv_sec > EMU_PATIENCE_S) emu_fail("no progress for %d s:%s", EMU_PATIENCE_S, waits.c_str());
  usleep(20);
}
template <class Done> static void emu_drain(Done done) {
  if (done()) return;
  emu_enter();
  EmuPatience patience = {};
  while (!done()) {
    if (emu_move()) patience = {};
    else emu_idle(&patience);
  }
  emu_leave();
  emu_forget_destroyed();
}
EMU(bool) emu_all_empty() {
  for (const EmuStream *s : emu_streams) if (!s->queue.empty()) return false;
  return true;
}

// ---- graph.h
void emu_capture_op(EmuStream *s, const char *name, std::function<bool()> f);
cudaError_t emu_capture_record(EmuEvent *e, EmuStream *s);
cudaError_t emu_capture_wait(EmuStream *s, EmuEvent *e);
bool emu_capture_forbids();                      // something unsafe in a capture: ends it if there is one

EMU(void) emu_push(cudaStream_t stream, const char *name, std::function<bool()> f) {
  EmuStream *s = emu_stream(stream);
  if (s->capture) emu_capture_op(s, name, std::move(f));
  else s->queue.push_back({std::move(f), name, NULL});
}

// ---- streams
enum { cudaStreamNonBlocking = 1 };
EMU(cudaError_t) cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5) return emu_error(cudaErrorInvalidValue);
  emu_memory_init();
  emu_fibres_init();
  *s = new EmuStream();
  (*s)->index = emu_streams_made++;
  (*s)->name = (*s)->index ? "stream " + std::to_string((*s)->index) : "compute";
  emu_streams.push_back(*s);
  return cudaSuccess;
}
EMU(cudaError_t) cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
EMU(cudaError_t) cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
// Queued work still runs.
EMU(cudaError_t) cudaStreamDestroy(cudaStream_t s) {
  if (emu_stream(s)->capture) return emu_capture_forbids(), emu_error(cudaErrorStreamCaptureUnsupported);
  s->destroyed = true;
  emu_forget_destroyed();
  return cudaSuccess;
}
EMU(cudaError_t) cudaStreamSynchronize(cudaStream_t stream) {
  EmuStream *s = emu_stream(stream);
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  emu_drain([=] { return s->queue.empty(); });
  return cudaSuccess;
}
EMU(cudaError_t) cudaDeviceSynchronize() {
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  emu_drain(emu_all_empty);
  return cudaSuccess;
}
// A caller that polls must get its answer in the end: each query lets some work run. Until it has the answer it asks
// again, and what has been opened stays open.
template <class Done> static cudaError_t emu_query(Done done) {
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  if (!done()) {
    emu_entered++;
    for (unsigned left = emu_seed_now < 2 ? 1 : 1 + emu_random(4); left && !done(); left--)
      if (!emu_move()) sched_yield();
    emu_entered--;
    emu_forget_destroyed();
    if (!done()) return emu_error(cudaErrorNotReady);
  }
  emu_close_all();
  return cudaSuccess;
}
EMU(cudaError_t) cudaStreamQuery(cudaStream_t stream) {
  EmuStream *s = emu_stream(stream);
  return emu_query([=] { return s->queue.empty(); });
}

// ---- events
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaEventWaitDefault = 0 };
EMU(EmuEvent *) emu_event(cudaEvent_t e) {
  if (!e) emu_fail("no event");
  if (e->destroyed) emu_fail("event %s was destroyed", e->name.c_str());
  return e;
}
EMU(cudaError_t) cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  static unsigned made;
  *e = new EmuEvent();
  (*e)->timing = !(flags & cudaEventDisableTiming);
  (*e)->name = "event " + std::to_string(made++);
  return cudaSuccess;
}
EMU(cudaError_t) cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }
EMU(cudaError_t) cudaEventDestroy(cudaEvent_t e) { emu_event(e)->destroyed = true; return cudaSuccess; }
EMU(cudaError_t) cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  EmuEvent *e = emu_event(event);
  EmuStream *s = emu_stream(stream);
  e->stream = s;
  if (s->capture) return emu_capture_record(e, s);
  const uint64_t record = ++e->recorded;
  e->capture = 0;
  s->queue.push_back({[=] { e->reached = record; e->time = emu_progress; return true; }, "cudaEventRecord", NULL});
  return cudaSuccess;
}
// Records the pair for the tests that skip one, and says whether this one is skipped.
EMU(bool) emu_skipped(const EmuEvent *e, const EmuStream *s) {
  if (!e->stream || e->stream == s) return false;                // no-ops: nothing to order
  emu_count.waits++;
  size_t i = 0;
  while (i < emu_wait_pairs.size() && (e->name != emu_wait_pairs[i].event || s->name != emu_wait_pairs[i].stream)) i++;
  if (i == emu_wait_pairs.size()) {
    EmuWait w = {};
    snprintf(w.event, sizeof w.event, "%s", e->name.c_str());
    snprintf(w.stream, sizeof w.stream, "%s", s->name.c_str());
    emu_wait_pairs.push_back(w);
  }
  emu_wait_pairs[i].count++;
  if (e->name != emu_skip_event || s->name != emu_skip_stream) return false;
  emu_count.waits_skipped++;
  return true;
}
// Waits for the latest record known now; a later record changes nothing.
EMU(cudaError_t) cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0) {
  EmuEvent *e = emu_event(event);
  EmuStream *s = emu_stream(stream);
  if (flags) return emu_error(cudaErrorInvalidValue);
  if (emu_skipped(e, s)) return cudaSuccess;
  if (s->capture || e->capture) return emu_capture_wait(s, e);
  const uint64_t record = e->recorded;
  s->queue.push_back({[=] { return e->reached >= record; }, "cudaStreamWaitEvent", e});
  return cudaSuccess;
}
EMU(cudaError_t) cudaEventQuery(cudaEvent_t event) {
  EmuEvent *e = emu_event(event);
  if (e->capture) return emu_capture_forbids(), emu_error(cudaErrorCapturedEvent);
  return emu_query([=] { return e->reached >= e->recorded; });
}
EMU(cudaError_t) cudaEventSynchronize(cudaEvent_t event) {
  EmuEvent *e = emu_event(event);
  if (e->capture) return emu_capture_forbids(), emu_error(cudaErrorCapturedEvent);
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  emu_drain([=] { return e->reached >= e->recorded; });
  return cudaSuccess;
}
// One microsecond per operation finished between the two.
EMU(cudaError_t) cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  if (!start->timing || !end->timing || !start->recorded || !end->recorded)
    return emu_error(cudaErrorInvalidResourceHandle);
  if (start->reached < start->recorded || end->reached < end->recorded) return emu_error(cudaErrorNotReady);
  *ms = 1e-3f * (float)(1 + end->time - start->time);
  return cudaSuccess;
}
EMU(void) emu_name_event(void *event, const char *name) { emu_event((cudaEvent_t)event)->name = name; }
EMU(void) emu_name_stream(void *stream, const char *name) { emu_stream((cudaStream_t)stream)->name = name; }
