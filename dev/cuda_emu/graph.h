// graph.h: stream capture and graphs, with the rules of the CUDA C++ Programming Guide ("Creating a Graph Using Stream
// Capture", "Cross-stream dependencies and events", "Prohibited and unhandled operations"):
//   - a stream joins a capture by waiting for an event recorded in it, and leaves when the capture ends
//   - every stream that joined must have been joined again to the first one, by events, when the capture ends
//   - inside, nothing may wait for work outside, and nothing outside for work inside
//   - nothing may be synchronised or queried and no memory allocated; a call that does so invalidates the capture. This
//     holds for every stream and event, not only for captured ones: stricter than the documentation
// A graph keeps its operations and their dependencies; at every launch the adversary runs them in another order.
#pragma once
#include "streams.h"
#include <algorithm>
#include <memory>

struct EmuNode { std::function<bool()> run; const char *name; unsigned stream; std::vector<int> after; };
struct EmuGraph { std::vector<EmuNode> nodes; };
struct EmuGraphExec { std::shared_ptr<const std::vector<EmuNode>> nodes; std::shared_ptr<int> running; };
typedef EmuGraph *cudaGraph_t;
typedef EmuGraphExec *cudaGraphExec_t;
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0, cudaStreamCaptureModeThreadLocal = 1, cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1, cudaStreamCaptureStatusInvalidated = 2
};
enum { cudaGraphInstantiateFlagUseNodePriority = 8 };

struct EmuCapture {
  uint64_t serial;
  cudaStreamCaptureMode mode;
  EmuStream *origin;
  std::vector<EmuStream *> streams;              // origin and all streams that joined
  std::vector<EmuNode> nodes;
  bool spoilt;
};
inline EmuCapture *emu_capture;                  // one at a time
inline uint64_t emu_captures;

EMU(cudaError_t) emu_spoil(cudaError_t e) { if (emu_capture) emu_capture->spoilt = true; return emu_error(e); }
EMU(bool) emu_capture_forbids() {
  if (emu_capture) emu_capture->spoilt = true;
  return emu_capture != NULL;
}
EMU(void) emu_depend(std::vector<int> *tail, const std::vector<int> &more) {
  for (int node : more) if (std::find(tail->begin(), tail->end(), node) == tail->end()) tail->push_back(node);
}

// ---- capture
EMU(cudaError_t) cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  EmuStream *s = emu_stream(stream);
  if (emu_capture) return emu_spoil(cudaErrorStreamCaptureUnsupported);
  emu_capture = new EmuCapture{++emu_captures, mode, s, {s}, {}, false};
  s->capture = emu_capture;
  s->tail.clear();
  return cudaSuccess;
}
EMU(void) emu_capture_op(EmuStream *s, const char *name, std::function<bool()> f) {
  s->capture->nodes.push_back({std::move(f), name, s->index, s->tail});
  s->tail = {(int)s->capture->nodes.size() - 1};
}
EMU(cudaError_t) emu_capture_record(EmuEvent *e, EmuStream *s) {
  e->capture = s->capture->serial;
  e->tail = s->tail;
  return cudaSuccess;
}
// The waiting stream is captured, or the event's last record, or both.
EMU(cudaError_t) emu_capture_wait(EmuStream *s, EmuEvent *e) {
  const bool lives = emu_capture && e->capture == emu_capture->serial;
  if (s->capture && !e->capture) return emu_spoil(cudaErrorStreamCaptureIsolation);
  if (!lives) return s->capture ? emu_spoil(cudaErrorStreamCaptureMerge) : emu_error(cudaErrorCapturedEvent);
  if (!s->capture) {
    s->capture = emu_capture;
    s->tail.clear();
    emu_capture->streams.push_back(s);
  }
  emu_depend(&s->tail, e->tail);
  return cudaSuccess;
}
// Whether the last operations of every stream come before the end of the first one.
EMU(bool) emu_joined(const EmuCapture *c) {
  std::vector<bool> reached(c->nodes.size());
  std::vector<int> left = c->origin->tail;
  while (!left.empty()) {
    const int node = left.back();
    left.pop_back();
    if (reached[(size_t)node]) continue;
    reached[(size_t)node] = true;
    for (int before : c->nodes[(size_t)node].after) left.push_back(before);
  }
  for (const EmuStream *s : c->streams) for (int node : s->tail) if (!reached[(size_t)node]) return false;
  return true;
}
EMU(cudaError_t) cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  EmuStream *s = emu_stream(stream);
  EmuCapture *c = s->capture;
  *graph = NULL;
  if (!c) return emu_error(cudaErrorInvalidValue);
  if (c->origin != s) return emu_spoil(cudaErrorStreamCaptureUnmatched);
  const cudaError_t e = c->spoilt ? cudaErrorStreamCaptureInvalidated
                        : emu_joined(c) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
  for (EmuStream *joined : c->streams) {
    if (joined->claimed) emu_fail("a capture ends while NCCL still enqueues to stream %s", joined->name.c_str());
    joined->capture = NULL;
    joined->tail.clear();
  }
  emu_capture = NULL;
  if (e == cudaSuccess) *graph = new EmuGraph{std::move(c->nodes)};
  delete c;
  return emu_error(e);
}
EMU(cudaError_t) cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
  const EmuCapture *c = emu_stream(stream)->capture;
  *status = !c ? cudaStreamCaptureStatusNone
            : c->spoilt ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
EMU(cudaError_t) cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                          unsigned long long *id = NULL) {
  if (id) *id = emu_stream(stream)->capture ? emu_stream(stream)->capture->serial : 0;
  return cudaStreamIsCapturing(stream, status);
}

// ---- graphs
EMU(cudaError_t) cudaGraphInstantiate(cudaGraphExec_t *to, cudaGraph_t graph, unsigned long long flags = 0) {
  if (!graph || (flags && flags != cudaGraphInstantiateFlagUseNodePriority)) return emu_error(cudaErrorInvalidValue);
  *to = new EmuGraphExec{std::make_shared<const std::vector<EmuNode>>(graph->nodes), std::make_shared<int>(0)};
  return cudaSuccess;
}
EMU(cudaError_t) cudaGraphInstantiateWithFlags(cudaGraphExec_t *to, cudaGraph_t graph, unsigned long long flags = 0) {
  return cudaGraphInstantiate(to, graph, flags);
}
EMU(cudaError_t) cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  if (!exec) return emu_error(cudaErrorInvalidValue);
  emu_push(stream, "cudaGraphUpload", [] { return true; });
  return cudaSuccess;
}
EMU(cudaError_t) cudaGraphDestroy(cudaGraph_t graph) { delete graph; return cudaSuccess; }
EMU(cudaError_t) cudaGraphExecDestroy(cudaGraphExec_t exec) { delete exec; return cudaSuccess; }

// One launch: which nodes are done, and a fresh copy of each node's closure.
struct EmuGraphRun {
  std::vector<EmuNode> nodes;
  std::vector<bool> done;
  size_t left;
};
EMU(bool) emu_node_ready(const EmuGraphRun *r, size_t i) {
  if (r->done[i]) return false;
  for (int before : r->nodes[i].after) if (!r->done[(size_t)before]) return false;
  return true;
}
// Runs one node, chosen as streams are: by age of the stream that it was captured from, or at random.
EMU(void) emu_graph_step(EmuGraphRun *r) {
  std::vector<size_t> ready;
  for (size_t i = 0; i < r->nodes.size(); i++) if (emu_node_ready(r, i)) ready.push_back(i);
  if (emu_seed_now < 2)
    std::stable_sort(ready.begin(), ready.end(), [=](size_t a, size_t b) {
      const unsigned x = r->nodes[a].stream, y = r->nodes[b].stream;
      return emu_seed_now == 0 ? x < y : x > y;
    });
  else
    for (size_t i = ready.size(); i > 1; i--) std::swap(ready[i - 1], ready[emu_random((unsigned)i)]);
  const char *graph = emu_running;
  for (size_t i : ready) {
    emu_running = r->nodes[i].name;
    if (!r->nodes[i].run()) continue;
    emu_check_guards();
    r->done[i] = true;
    r->left--;
    emu_progress++;
    break;
  }
  emu_running = graph;
}
EMU(cudaError_t) cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (!exec) return emu_error(cudaErrorInvalidValue);
  if (emu_stream(stream)->capture) return emu_spoil(cudaErrorStreamCaptureUnsupported);
  emu_count.graphs++;
  auto nodes = exec->nodes;
  auto running = exec->running;
  auto run = std::make_shared<EmuGraphRun>();
  emu_push(stream, "cudaGraphLaunch", [=] {
    if (run->done.empty()) {
      if (*running) return false;                // launches of one graph follow each other
      *run = {*nodes, std::vector<bool>(nodes->size() + 1), nodes->size()};
      *running = 1;
    }
    if (run->left) emu_graph_step(run.get());
    if (!run->left) *running = 0;
    return !run->left;
  });
  return cudaSuccess;
}
