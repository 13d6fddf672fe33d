// cuda_libraries.h: libcublasLt and libnccl, loaded at first use, so that one binary starts on machines without them.
// Their headers are needed to compile, the libraries only to train on GPUs. cudart is linked statically.
//
//   cublaslt(), nccl()               the tables of calls; ends the program, naming the library, if it cannot be used
//   cublaslt_open, nccl_open         the same as a query: NULL and one line of explanation
//   BLAS(call), NCCL(call)           checked calls through the tables
//   cuda_libraries_bind              binds every call of both: a test can check this without a GPU
//
// A library is searched by its soname where the loader looks (LD_LIBRARY_PATH, its cache), then in CUDA_HOME and in
// /usr/local/cuda. The soname's number is that of the headers: cuBLAS keeps its interface within a major version.
#pragma once
#include "gpu.h"
#include "kernels/ops.h"
#include <cublasLt.h>
#include <dlfcn.h>
#include <nccl.h>

#define CUBLASLT_CALLS(X) \
  X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtGetVersion) X(cublasLtGetStatusString) X(cublasLtMatmulDescCreate) \
  X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) \
  X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy) \
  X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) \
  X(cublasLtMatmulAlgoConfigGetAttribute) X(cublasLtMatmulAlgoCheck) X(cublasLtMatmul)
#define NCCL_CALLS(X) \
  X(ncclGetVersion) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommSplit) X(ncclCommFinalize) \
  X(ncclCommDestroy) X(ncclCommGetAsyncError) X(ncclGetErrorString) X(ncclGetLastError) X(ncclGroupStart) \
  X(ncclGroupEnd) X(ncclAllGather) X(ncclReduceScatter) X(ncclAllReduce) X(ncclBroadcast) X(ncclSend) X(ncclRecv)

#define X(f) decltype(&::f) f;
struct CublasLt { const char *file; CUBLASLT_CALLS(X) };
struct Nccl { const char *file; NCCL_CALLS(X) };
#undef X

static void *library_in(const char *dir, const char *soname) {
  char path[512];
  snprintf(path, sizeof path, "%s/lib64/%s", dir, soname);
  if (void *library = LIBRARY_OPEN(path)) return library;
  snprintf(path, sizeof path, "%s/targets/sbsa-linux/lib/%s", dir, soname);    // a toolkit for ARM without lib64
  return LIBRARY_OPEN(path);
}
// The library, or NULL with one line that lists the places tried.
static void *library_open(const char *soname, Error *why) {
  const char *set = getenv("CUDA_HOME"), *home = set && *set ? set : "/usr/local/cuda";
  char first[256] = "";
  void *library = LIBRARY_OPEN(soname);
  if (!library)
    if (const char *said = dlerror()) snprintf(first, sizeof first, "%s", said);
  if (!library) library = library_in(home, soname);
  if (!library) library = library_in("/usr/local/cuda", soname);
  if (!library)
    fail(why, "%s (also looked in %s/lib64; LD_LIBRARY_PATH names other places)", first, home);
  return library;
}

#define LIBRARY_STRING_(x) #x
#define LIBRARY_STRING(x) LIBRARY_STRING_(x)
#define X(f) \
  bound.f = LIBRARY_BIND(library, f); \
  if (!bound.f) { fail(why, "%s has no %s: it is too old", soname, #f); return NULL; }
static const CublasLt *cublaslt_open(Error *why) {
  static CublasLt table;
  if (table.file) return &table;
  const char *soname = "libcublasLt.so." LIBRARY_STRING(CUBLAS_VER_MAJOR);
  void *library = library_open(soname, why);
  if (!library) return NULL;
  CublasLt bound = {};
  CUBLASLT_CALLS(X)
  bound.file = soname;
  table = bound;
  return &table;
}
static const Nccl *nccl_open(Error *why) {
  static Nccl table;
  if (table.file) return &table;
  const char *soname = "libnccl.so.2";
  void *library = library_open(soname, why);
  if (!library) return NULL;
  Nccl bound = {};
  NCCL_CALLS(X)
  bound.file = soname;
  table = bound;
  return &table;
}
#undef X

static inline const CublasLt *cublaslt() {
  Error why = {};
  const CublasLt *t = cublaslt_open(&why);
  if (!t) die_missing("--device cuda needs libcublasLt for matrix multiplies: %s", why.text);
  return t;
}
static inline const Nccl *nccl() {
  Error why = {};
  const Nccl *t = nccl_open(&why);
  if (!t) die_missing("--comm nccl needs libnccl (--comm mpi does not): %s", why.text);
  return t;
}

#define BLAS(call) \
  do { \
    cublasStatus_t s_ = cublaslt()->call; \
    CHECK(s_ == CUBLAS_STATUS_SUCCESS, "%s: %s", #call, cublaslt()->cublasLtGetStatusString(s_)); \
  } while (0)
// NCCL keeps a line about its last error, which often says more than the code. Its own allocations fail as an
// "unhandled cuda error"; the amount of free memory tells that apart from other errors.
static inline void nccl_failed(const char *call, ncclResult_t r) {
  size_t left = 0, total = 0;
  const char *words = nccl()->ncclGetErrorString(r), *last = nccl()->ncclGetLastError(NULL);
  if (r == ncclUnhandledCudaError && cudaMemGetInfo(&left, &total) == cudaSuccess)
    die_missing("%s: %s: %s; %.1f of the GPU's %.1f MiB are free: where that is little, NCCL lacked memory: lower "
                "--batch_size or NCCL_BUFFSIZE, or end what else runs on this GPU; NCCL_DEBUG=INFO shows more", call,
                words, last, (double)left / 0x1p20, (double)total / 0x1p20);
  die_with(EXIT_FAULT, "%s: %s: %s; NCCL_DEBUG=INFO shows more", call, words, last);
}
// Communicators are nonblocking: a call may be in progress when it returns, and then is waited for (collectives.cuh).
#define NCCL(call) \
  do { \
    ncclResult_t r_ = nccl()->call; \
    if (r_ != ncclSuccess && r_ != ncclInProgress) nccl_failed(#call, r_); \
  } while (0)

#if FAMILY(device)                               // once in a program
// 0, or one bit for each library that is incomplete here, with the reason in error.
LIBRARY_EXPORT int cuda_libraries_bind(Error *error);
LIBRARY_EXPORT int cuda_libraries_bind(Error *error) {
  Error lt = {}, nc = {};
  const int missing = (cublaslt_open(&lt) ? 0 : 1) | (nccl_open(&nc) ? 0 : 2);
  fail(error, "%s%s%s", lt.text, lt.text[0] && nc.text[0] ? "; " : "", nc.text);
  return missing;
}
#endif
