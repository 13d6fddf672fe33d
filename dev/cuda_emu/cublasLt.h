// cublasLt.h of the emulation: the part of cuBLASLt that the program uses, with the rules of its manual. Anything else
// is rejected with the documented status, never guessed; GetStatusString adds the rule that was broken.
//
//   types        compute, scale, A, B, C, D and bias types: the manual's table for cublasLtMatmul()
//   fp8          A (E4M3) transposed, B (E4M3) not; m, n, k multiples of 16; operands, scales and leading dimensions on
//                16 bytes; compute type fp32 with its scales of A and B; C, D and bias bf16
//   layouts      column-major; ld >= rows; op(A) m x k, op(B) k x n, C and D m x n
//   epilogues    DEFAULT, BIAS, DGELU, GELU_AUX, GELU_AUX_BIAS; auxiliary ld >= rows and a multiple of 8
//   preferences  workspace, reduction schemes, alignments; an algorithm that needs more is not offered
//   workspace    device memory, 256-byte aligned, as large as the algorithm said
//   pointers     device memory that does not overlap the result; read when the stream reaches the call, descriptors at
//   the call
//
// Algorithms differ in their summation order, so ranks with different choices get different bits. An in-place reduction
// adds in random order: a program that allows that scheme loses reproducibility at once.
#pragma once
#include "kernels/device.h"
#include <cuda_runtime.h>
#include <string>
#include <vector>

enum { CUBLAS_VER_MAJOR = 13 };
typedef enum {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 } cublasComputeType_t;
typedef enum {
  CUBLASLT_EPILOGUE_DEFAULT = 1,
  CUBLASLT_EPILOGUE_BIAS = 4,
  CUBLASLT_EPILOGUE_DGELU = 64 | 128,
  CUBLASLT_EPILOGUE_GELU_AUX = 32 | 128,         // writes the auxiliary matrix; DGELU reads it
  CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 32 | 128 | 4
} cublasLtEpilogue_t;
typedef enum {
  CUBLASLT_MATMUL_DESC_TRANSA = 3,
  CUBLASLT_MATMUL_DESC_TRANSB = 4,
  CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,
  CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15,
  CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,
  CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18
} cublasLtMatmulDescAttributes_t;
typedef enum {
  CUBLASLT_REDUCTION_SCHEME_NONE = 0,
  CUBLASLT_REDUCTION_SCHEME_INPLACE = 1,
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
  CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4
} cublasLtReductionScheme_t;
typedef enum {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
} cublasLtMatmulPreferenceAttributes_t;
typedef enum {
  CUBLASLT_ALGO_CONFIG_ID = 0,
  CUBLASLT_ALGO_CONFIG_TILE_ID = 1,
  CUBLASLT_ALGO_CONFIG_SPLITK_NUM = 2,
  CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME = 3,
  CUBLASLT_ALGO_CONFIG_STAGES_ID = 6
} cublasLtMatmulAlgoConfigAttributes_t;

struct EmuLtMatmul {
  cublasComputeType_t compute;
  cublasOperation_t ta, tb;
  cublasLtEpilogue_t epilogue;
  const void *bias;
  const void *aux;
  int64_t aux_ld;
  const float *scale[2];                         // of A, B; NULL: 1
  int32_t sms;                                   // to plan for; 0: the device's
};
struct EmuLtLayout { cudaDataType_t type; uint64_t rows, cols; int64_t ld; };
struct EmuLtPreference { uint64_t workspace; uint32_t schemes, align[4]; };      // of A, B, C, D
struct EmuLtHandle { bool open; };
typedef EmuLtHandle *cublasLtHandle_t;
typedef EmuLtMatmul *cublasLtMatmulDesc_t;
typedef EmuLtLayout *cublasLtMatrixLayout_t;
typedef EmuLtPreference *cublasLtMatmulPreference_t;
typedef struct { uint64_t data[8]; } cublasLtMatmulAlgo_t;
typedef struct {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;

// ---- rejections -----------------------------------------------------------------------------------------------------
inline std::string emu_lt_reason;
EMU(cublasStatus_t) emu_lt_reject(cublasStatus_t status, const char *why) {
  emu_lt_reason = why;
  return status;
}
#define EMU_LT_NEED(cond, status, why) do { if (!(cond)) return emu_lt_reject(CUBLAS_STATUS_##status, why); } while (0)

EMU(size_t) cublasLtGetVersion() { return 130100; }
EMU(const char *) cublasLtGetStatusString(cublasStatus_t s) {
  static std::string text;
  text = s == CUBLAS_STATUS_SUCCESS           ? "CUBLAS_STATUS_SUCCESS"
         : s == CUBLAS_STATUS_NOT_INITIALIZED ? "CUBLAS_STATUS_NOT_INITIALIZED"
         : s == CUBLAS_STATUS_ALLOC_FAILED    ? "CUBLAS_STATUS_ALLOC_FAILED"
         : s == CUBLAS_STATUS_INVALID_VALUE   ? "CUBLAS_STATUS_INVALID_VALUE"
                                              : "CUBLAS_STATUS_NOT_SUPPORTED";
  if (s != CUBLAS_STATUS_SUCCESS) text += " (" + emu_lt_reason + ")";
  return text.c_str();
}
enum : size_t { EMU_LT_HANDLE_BYTES = 256 << 10 };               // of the device: only counted
EMU(cublasStatus_t) cublasLtCreate(cublasLtHandle_t *h) {
  EMU_LT_NEED(emu_device_bytes_used + EMU_LT_HANDLE_BYTES <= emu_device_bytes_now, ALLOC_FAILED, "no memory");
  emu_device_bytes_used += EMU_LT_HANDLE_BYTES;
  *h = new EmuLtHandle{true};
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t) cublasLtDestroy(cublasLtHandle_t h) {
  EMU_LT_NEED(h, NOT_INITIALIZED, "no handle");
  emu_device_bytes_used -= EMU_LT_HANDLE_BYTES;
  delete h;
  return CUBLAS_STATUS_SUCCESS;
}

// ---- descriptors ---------------------------------------------------------------------------------------------------
EMU(cublasStatus_t) emu_lt_set(void *to, size_t want, const void *from, size_t bytes) {
  EMU_LT_NEED(from && bytes == want, INVALID_VALUE, "an attribute's size is not that of its type");
  memcpy(to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t)
cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale) {
  EMU_LT_NEED(scale == CUDA_R_32F, NOT_SUPPORTED, "scale type of fp32 sums is fp32");
  *d = new EmuLtMatmul{compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0, {NULL, NULL}, 0};
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t) cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete d;
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t)
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *p, size_t bytes) {
  switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return emu_lt_set(&d->ta, 4, p, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return emu_lt_set(&d->tb, 4, p, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return emu_lt_set(&d->epilogue, 4, p, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return emu_lt_set(&d->bias, 8, p, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return emu_lt_set(&d->aux, 8, p, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return emu_lt_set(&d->aux_ld, 8, p, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return emu_lt_set(&d->sms, 4, p, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return emu_lt_set(&d->scale[0], 8, p, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return emu_lt_set(&d->scale[1], 8, p, bytes);
  }
  return emu_lt_reject(CUBLAS_STATUS_INVALID_VALUE, "attribute of a product that is not emulated");
}
EMU(cublasStatus_t)
cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  *l = new EmuLtLayout{type, rows, cols, ld};
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t) cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  delete l;
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t) cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
  *p = new EmuLtPreference{0, 7, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t) cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete p;
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t)
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a,
                                     const void *x, size_t bytes) {
  switch (a) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return emu_lt_set(&p->workspace, 8, x, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return emu_lt_set(&p->schemes, 4, x, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return emu_lt_set(&p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], 4, x, bytes);
  }
  return emu_lt_reject(CUBLAS_STATUS_INVALID_VALUE, "preference that is not emulated");
}

// ---- what is supported ---------------------------------------------------------------------------------------------
EMU(size_t) emu_lt_bytes(cudaDataType_t t) { return t == CUDA_R_32F ? 4 : t == CUDA_R_8F_E4M3 ? 1 : 2; }
EMU(bool) emu_lt_uses_bias(cublasLtEpilogue_t e) { return (e & 4) != 0; }
EMU(bool) emu_lt_uses_aux(cublasLtEpilogue_t e) { return (e & 128) != 0; }
EMU(bool) emu_lt_writes_aux(cublasLtEpilogue_t e) { return emu_lt_uses_aux(e) && (e & 32); }

// What fp8 kernels need. Pointers and leading dimensions are checked with the algorithm.
EMU(cublasStatus_t)
emu_lt_check_fp8(const EmuLtMatmul &o, const EmuLtLayout &a, const EmuLtLayout &d) {
  EMU_LT_NEED(o.ta == CUBLAS_OP_T && o.tb == CUBLAS_OP_N, NOT_SUPPORTED, "fp8: A is transposed and B is not");
  EMU_LT_NEED(a.rows % 16 == 0 && d.rows % 16 == 0 && d.cols % 16 == 0, NOT_SUPPORTED, "fp8: multiples of 16");
  EMU_LT_NEED(d.type == CUDA_R_16BF, NOT_SUPPORTED, "fp8: type of D");
  EMU_LT_NEED(o.compute == CUBLAS_COMPUTE_32F, NOT_SUPPORTED, "compute type beside A's type");
  EMU_LT_NEED(!emu_lt_uses_aux(o.epilogue), NOT_SUPPORTED, "fp8: epilogue");
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t)
emu_lt_check(const EmuLtMatmul &o, const EmuLtLayout &a, const EmuLtLayout &b, const EmuLtLayout &c,
             const EmuLtLayout &d) {
  const uint64_t m = o.ta ? a.cols : a.rows, k = o.ta ? a.rows : a.cols, n = o.tb ? b.rows : b.cols;
  EMU_LT_NEED((o.ta == CUBLAS_OP_N || o.ta == CUBLAS_OP_T) && (o.tb == CUBLAS_OP_N || o.tb == CUBLAS_OP_T),
              INVALID_VALUE, "an operation that is neither N nor T");
  EMU_LT_NEED(k == (o.tb ? b.cols : b.rows), INVALID_VALUE, "op(A) and op(B) differ in k");
  EMU_LT_NEED(c.rows == m && c.cols == n && d.rows == m && d.cols == n, INVALID_VALUE, "C or D is not m x n");
  for (const EmuLtLayout *l : {&a, &b, &c, &d}) {
    EMU_LT_NEED(l->rows > 0 && l->cols > 0 && l->rows < 1u << 31 && l->cols < 1u << 31, INVALID_VALUE, "empty or huge");
    EMU_LT_NEED(l->ld >= (int64_t)l->rows, INVALID_VALUE, "a leading dimension is smaller than the rows");
  }
  EMU_LT_NEED(c.type == d.type, NOT_SUPPORTED, "C and D differ in type");
  const bool two_bytes = a.type == CUDA_R_16BF || a.type == CUDA_R_16F, one_byte = a.type == CUDA_R_8F_E4M3;
  EMU_LT_NEED(a.type == b.type && (one_byte || two_bytes || a.type == CUDA_R_32F), NOT_SUPPORTED, "types of A and B");
  if (one_byte) {
    const cublasStatus_t s = emu_lt_check_fp8(o, a, d);
    if (s != CUBLAS_STATUS_SUCCESS) return s;
  } else {
    EMU_LT_NEED(d.type == a.type || (two_bytes && d.type == CUDA_R_32F), NOT_SUPPORTED, "type of D beside A's");
    EMU_LT_NEED(o.compute == CUBLAS_COMPUTE_32F || (o.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && !two_bytes),
                NOT_SUPPORTED, "compute type beside A's type");
    EMU_LT_NEED(!o.scale[0] && !o.scale[1], INVALID_VALUE, "a scale of an operand that is not fp8");
  }
  EMU_LT_NEED(!emu_lt_uses_bias(o.epilogue) || o.bias, INVALID_VALUE, "no bias pointer");
  EMU_LT_NEED(o.sms >= 0 && o.sms <= EMU_MULTIPROCESSORS, INVALID_VALUE,
              "a number of SMs that the device does not have");
  if (emu_lt_uses_aux(o.epilogue)) {
    EMU_LT_NEED(o.aux, INVALID_VALUE, "no auxiliary pointer");
    EMU_LT_NEED(o.aux_ld >= (int64_t)m, INVALID_VALUE, "the auxiliary leading dimension is smaller than D's rows");
    EMU_LT_NEED(o.aux_ld % 8 == 0, INVALID_VALUE, "the auxiliary leading dimension is no multiple of 8");
  }
  switch (o.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU: return CUBLAS_STATUS_SUCCESS;
  }
  return emu_lt_reject(CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue that is not emulated");
}

// ---- algorithms ----------------------------------------------------------------------------------------------------
enum EmuLtOrder { EMU_LT_ASCENDING, EMU_LT_DESCENDING, EMU_LT_EVEN_ODD, EMU_LT_SPLIT };
// align: of pointers and leading dimensions, in bytes. steps: stream operations per GEMM, which is what events measure
// here. The heuristic's first algorithm is not the fastest, so that tuning has something to find: the last but one has
// the bits of the third and is faster; the last has them too, but says that it splits the sum.
struct EmuLtAlgo { uint32_t magic, id, tile, stages, splits, scheme, align, order, fused, steps; };
enum : uint32_t { EMU_LT_MAGIC = 0x654c7421 };
enum { EMU_LT_FASTER_TILE = 24 };                // the last but one's
static const EmuLtAlgo emu_lt_algos[] = {
    {EMU_LT_MAGIC, 21, 15, 8, 3, CUBLASLT_REDUCTION_SCHEME_INPLACE, 16, EMU_LT_SPLIT, 1, 5},
    {EMU_LT_MAGIC, 24, 18, 12, 2, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 16, EMU_LT_SPLIT, 1, 5},
    {EMU_LT_MAGIC, 6, 20, 14, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 16, EMU_LT_EVEN_ODD, 1, 3},
    {EMU_LT_MAGIC, 31, 23, 9, 3, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 16, EMU_LT_SPLIT, 1, 2},
    {EMU_LT_MAGIC, 66, 11, 5, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 2, EMU_LT_ASCENDING, 1, 3},
    {EMU_LT_MAGIC, 2, 5, 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 2, EMU_LT_DESCENDING, 0, 1},
    {EMU_LT_MAGIC, 2, 6, 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 16, EMU_LT_DESCENDING, 0, 1},
    {EMU_LT_MAGIC, 2, 7, 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 16, EMU_LT_DESCENDING, 0, 1},
    {EMU_LT_MAGIC, 66, 12, 5, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 16, EMU_LT_ASCENDING, 1, 3},
    {EMU_LT_MAGIC, 66, 13, 5, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 16, EMU_LT_ASCENDING, 1, 3},
    {EMU_LT_MAGIC, 6, EMU_LT_FASTER_TILE, 14, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 16, EMU_LT_EVEN_ODD, 1, 2},
    {EMU_LT_MAGIC, 33, 23, 9, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 16, EMU_LT_EVEN_ODD, 1, 1}};

inline int emu_lt_planned_for;
inline unsigned emu_lt_rejected;                 // emu.h: EMU_LT_WITHOUT_*
inline int64_t emu_lt_differs = -1;
#if EMU_ONCE
int emu_lt_sms() { return emu_lt_planned_for; }
void emu_lt_without(unsigned what) { emu_lt_rejected = what; }
void emu_lt_differ(int64_t element) { emu_lt_differs = element; }
#endif

EMU(size_t) emu_lt_workspace(const EmuLtAlgo &g, const EmuLtLayout &d) {
  return g.splits > 1 ? g.splits * d.rows * d.cols * 4 : 0;
}
// align: of A, B, C, D, as promised (heuristic) or actual (call).
EMU(cublasStatus_t)
emu_lt_runs(const EmuLtAlgo &g, const EmuLtMatmul &o, const EmuLtLayout &a, const EmuLtLayout &b, const EmuLtLayout &c,
            const EmuLtLayout &d, const uint32_t *align) {
  EMU_LT_NEED(g.magic == EMU_LT_MAGIC, INVALID_VALUE, "an algorithm that no heuristic returned");
  const bool fused = emu_lt_uses_aux(o.epilogue);
  EMU_LT_NEED(!fused || (g.fused && !(emu_lt_rejected & EMU_LT_WITHOUT_FUSED)), NOT_SUPPORTED,
              "epilogue of the algorithm");
  EMU_LT_NEED(!fused || (uintptr_t)o.aux % 16 == 0, NOT_SUPPORTED, "alignment of the auxiliary matrix");
  EMU_LT_NEED(!(emu_lt_rejected & EMU_LT_WITHOUT_ALL), NOT_SUPPORTED, "a test rejects everything");
  const uint32_t need = emu_lt_rejected & EMU_LT_WITHOUT_UNALIGNED || a.type == CUDA_R_8F_E4M3 ? 16 : g.align;
  const EmuLtLayout *l[] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; i++)
    EMU_LT_NEED(align[i] >= need && (size_t)l[i]->ld * emu_lt_bytes(l[i]->type) % need == 0, NOT_SUPPORTED,
                "alignment of a pointer or a leading dimension");
  return CUBLAS_STATUS_SUCCESS;
}
// The heuristic prefers one of its two fast algorithms, depending on the shape and on whether it may use all of the
// device.
EMU(cublasStatus_t)
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t o, cublasLtMatrixLayout_t a,
                               cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t p, int wanted, cublasLtMatmulHeuristicResult_t *results,
                               int *count) {
  EMU_LT_NEED(h && h->open, NOT_INITIALIZED, "no handle");
  EMU_LT_NEED(wanted > 0 && results && count, INVALID_VALUE, "no results asked for");
  emu_lt_planned_for = o->sms;
  *count = 0;
  const cublasStatus_t s = emu_lt_check(*o, *a, *b, *c, *d);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  const bool swap = (d->rows / 8 + d->cols / 8 + (o->sms ? 1 : 0)) % 2;
  const int order[] = {0, 1, swap ? 3 : 2, swap ? 2 : 3, 4, 5, 6, 7, 8, 9, 10, 11};
  for (int i : order) {
    const EmuLtAlgo &g = emu_lt_algos[i];
    if (*count == wanted || (g.scheme && !(g.scheme & p->schemes)) || emu_lt_workspace(g, *d) > p->workspace) continue;
    if (emu_lt_runs(g, *o, *a, *b, *c, *d, p->align) != CUBLAS_STATUS_SUCCESS) continue;
    cublasLtMatmulHeuristicResult_t *r = &results[(*count)++];
    memset(r, 0, sizeof *r);
    memcpy(&r->algo, &g, sizeof g);
    r->workspaceSize = emu_lt_workspace(g, *d);
    r->wavesCount = 1.0f;
  }
  return *count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
EMU(cublasStatus_t)
cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t o, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                        cublasLtMatmulHeuristicResult_t *result) {
  EmuLtAlgo g;
  const uint32_t whole[] = {256, 256, 256, 256};
  EMU_LT_NEED(h && h->open && algo && result, INVALID_VALUE, "no handle, algorithm or result");
  memcpy(&g, algo, sizeof g);
  const cublasStatus_t s = emu_lt_check(*o, *a, *b, *c, *d);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  memset(result, 0, sizeof *result);
  memcpy(&result->algo, &g, sizeof g);
  result->state = emu_lt_runs(g, *o, *a, *b, *c, *d, whole);
  result->workspaceSize = emu_lt_workspace(g, *d);
  return result->state;
}
EMU(cublasStatus_t)
cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t a, void *to,
                                     size_t bytes, size_t *written) {
  EmuLtAlgo g;
  memcpy(&g, algo, sizeof g);
  EMU_LT_NEED(g.magic == EMU_LT_MAGIC && to && bytes == 4, INVALID_VALUE, "algorithm or size of its attribute");
  uint32_t x = 0;
  switch (a) {
    case CUBLASLT_ALGO_CONFIG_ID: x = g.id; break;
    case CUBLASLT_ALGO_CONFIG_TILE_ID: x = g.tile; break;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: x = g.splits; break;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: x = g.scheme; break;
    case CUBLASLT_ALGO_CONFIG_STAGES_ID: x = g.stages; break;
    default: return emu_lt_reject(CUBLAS_STATUS_INVALID_VALUE, "attribute of an algorithm that is not emulated");
  }
  memcpy(to, &x, 4);
  if (written) *written = 4;
  return CUBLAS_STATUS_SUCCESS;
}

// ---- matrix multiply ------------------------------------------------------------------------------------------------
EMU(float) emu_lt_get(const void *p, cudaDataType_t t, int64_t i) {
  if (t == CUDA_R_32F) return ((const float *)p)[i];
  if (t == CUDA_R_8F_E4M3) return to_f32(((const fp8 *)p)[i]);
  return t == CUDA_R_16BF ? to_f32(((const bf16 *)p)[i]) : to_f32(((const fp16 *)p)[i]);
}
EMU(void) emu_lt_put(void *p, cudaDataType_t t, int64_t i, float x) {
  if (t == CUDA_R_32F) ((float *)p)[i] = x;
  else if (t == CUDA_R_16BF) round_to((bf16 *)p + i, x);
  else round_to((fp16 *)p + i, x);
}
EMU(float) emu_lt_rounded(cudaDataType_t t, float x) {
  uint32_t word = 0;
  emu_lt_put(&word, t, 0, x);
  return emu_lt_get(&word, t, 0);
}
EMU(float) emu_lt_tf32(float x) {                // 10 bits of mantissa, ties away from zero; Inf and NaN stay
  const uint32_t u = f32_bits(x);
  return (u & 0x7f800000u) == 0x7f800000u ? x : bits_f32((u + 0x1000u) & 0xffffe000u);
}
EMU(float) emu_lt_gelu_grad(float x) {
  const float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
}

struct EmuLtCall {
  EmuLtMatmul o;
  EmuLtLayout a, b, c, d;
  EmuLtAlgo g;
  const void *A, *B, *C;
  void *D;
  float alpha, beta;
  float *workspace;
};
// acc[i] += a(i,l) b(l) for l = from, from + step, ... up to `to`; eight i at a time, so that the compiler vectorizes.
EMU(void) emu_lt_chain(float *__restrict acc, const float *__restrict a, const float *b, int64_t m, int64_t from,
                       int64_t to, int64_t step) {
  for (int64_t l = from; step > 0 ? l < to : l > to; l += step) {
    const float *column = a + l * m;
    const float x = b[l];
    int64_t i = 0;
    for (; i + 8 <= m; i += 8) for (int k = 0; k < 8; k++) acc[i + k] += column[i + k] * x;
    for (; i < m; i++) acc[i] += column[i] * x;
  }
}
// Column j of the sums, in the algorithm's order. a: op(A) by columns; b: column j of op(B).
EMU(void) emu_lt_sums(const EmuLtCall &q, float *acc, const float *a, const float *b, int64_t m, int64_t k, int64_t j) {
  std::vector<float> other((size_t)m);
  for (int64_t i = 0; i < m; i++) acc[i] = 0.0f;
  if (q.g.order == EMU_LT_ASCENDING) emu_lt_chain(acc, a, b, m, 0, k, 1);
  if (q.g.order == EMU_LT_DESCENDING) emu_lt_chain(acc, a, b, m, k - 1, -1, -1);
  if (q.g.order == EMU_LT_EVEN_ODD) {
    emu_lt_chain(acc, a, b, m, 0, k, 2);
    emu_lt_chain(other.data(), a, b, m, 1, k, 2);
    for (int64_t i = 0; i < m; i++) acc[i] += other[(size_t)i];
  }
  if (q.g.order != EMU_LT_SPLIT) return;
  const int64_t splits = q.g.splits;
  const int64_t first = q.g.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE ? (int64_t)emu_random((unsigned)splits) : 0;
  for (int64_t s = 0; s < splits; s++) {
    const int64_t part = (first + s) % splits;
    float *sum = q.workspace + (part * (int64_t)q.d.cols + j) * m;       // where the scheme keeps partial sums
    for (int64_t i = 0; i < m; i++) sum[i] = 0.0f;
    emu_lt_chain(sum, a, b, m, part * k / splits, (part + 1) * k / splits, 1);
    for (int64_t i = 0; i < m; i++)
      acc[i] += q.g.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? sum[i] : emu_lt_rounded(q.d.type, sum[i]);
  }
}
EMU(void) emu_lt_finish(const EmuLtCall &q, float x, int64_t i, int64_t j) {
  for (const float *scale : q.o.scale) if (scale) x *= *scale;
  x *= q.alpha;
  if (q.beta != 0.0f) x += q.beta * emu_lt_get(q.C, q.c.type, i + j * q.c.ld);
  if (emu_lt_uses_bias(q.o.epilogue)) {
    if (q.d.type == CUDA_R_16BF && q.d.ld % 2) x = emu_lt_rounded(q.d.type, x);  // seen on an H100, cuBLASLt 13.1
    x += emu_lt_get(q.o.bias, q.d.type, i);
  }
  if (emu_lt_writes_aux(q.o.epilogue)) {         // GELU of what is not rounded yet
    emu_lt_put(const_cast<void *>(q.o.aux), q.d.type, i + j * q.o.aux_ld, x);
    x = 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
  } else if (emu_lt_uses_aux(q.o.epilogue)) x *= emu_lt_gelu_grad(emu_lt_get(q.o.aux, q.d.type, i + j * q.o.aux_ld));
  emu_lt_put(q.D, q.d.type, i + j * q.d.ld, x);
}
EMU(void) emu_lt_run(const EmuLtCall &q) {
  const int64_t m = (int64_t)q.d.rows, n = (int64_t)q.d.cols, k = (int64_t)(q.o.ta ? q.a.rows : q.a.cols);
  const bool tf32 = q.o.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  std::vector<float> a((size_t)(m * k)), b((size_t)k), acc((size_t)m);
  for (int64_t l = 0; l < k; l++) for (int64_t i = 0; i < m; i++) {
    const float x = emu_lt_get(q.A, q.a.type, q.o.ta ? l + i * q.a.ld : i + l * q.a.ld);
    a[(size_t)(l * m + i)] = tf32 ? emu_lt_tf32(x) : x;
  }
  for (int64_t j = 0; j < n; j++) {
    for (int64_t l = 0; l < k; l++) {
      const float x = emu_lt_get(q.B, q.b.type, q.o.tb ? j + l * q.b.ld : l + j * q.b.ld);
      b[(size_t)l] = tf32 ? emu_lt_tf32(x) : x;
    }
    emu_lt_sums(q, acc.data(), a.data(), b.data(), m, k, j);
    for (int64_t i = 0; i < m; i++) emu_lt_finish(q, acc[(size_t)i], i, j);
  }
  if (emu_lt_differs >= 0 && q.g.tile == EMU_LT_FASTER_TILE)
    ((uint8_t *)q.D)[emu_lt_differs * (int64_t)emu_lt_bytes(q.d.type)] ^= 1;
}

EMU(size_t) emu_lt_extent(const EmuLtLayout &l) {
  return ((size_t)l.ld * (l.cols - 1) + l.rows) * emu_lt_bytes(l.type);
}
EMU(bool) emu_lt_overlap(const void *p, size_t bytes, const void *q, size_t other) {
  return p && q && (const char *)p < (const char *)q + other && (const char *)q < (const char *)p + bytes;
}
EMU(uint32_t) emu_lt_alignment(const void *p) {
  const uintptr_t u = (uintptr_t)p | 256;
  return (uint32_t)(u & (~u + 1));
}
// Checks of a call, in addition to those of the heuristic.
EMU(cublasStatus_t) emu_lt_check_call(const EmuLtCall &q, size_t workspace_bytes) {
  cublasStatus_t s = emu_lt_check(q.o, q.a, q.b, q.c, q.d);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  const uint32_t align[] = {emu_lt_alignment(q.A), emu_lt_alignment(q.B), emu_lt_alignment(q.C), emu_lt_alignment(q.D)};
  s = emu_lt_runs(q.g, q.o, q.a, q.b, q.c, q.d, align);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  const size_t need = emu_lt_workspace(q.g, q.d), d = emu_lt_extent(q.d);
  EMU_LT_NEED(need <= workspace_bytes, INVALID_VALUE, "the workspace is smaller than the algorithm said");
  EMU_LT_NEED(!need || (q.workspace && (uintptr_t)q.workspace % 256 == 0), INVALID_VALUE,
              "the workspace is not 256-byte aligned");
  EMU_LT_NEED(q.A && q.B && q.D && (q.C || q.beta == 0.0f), INVALID_VALUE, "an operand is missing");
  EMU_LT_NEED(q.C != q.D || !memcmp(&q.c, &q.d, sizeof q.c), INVALID_VALUE, "in place, but C and D differ in layout");
  const bool bias = emu_lt_uses_bias(q.o.epilogue), aux = emu_lt_uses_aux(q.o.epilogue);
  const size_t aux_bytes = ((size_t)q.o.aux_ld * (q.d.cols - 1) + q.d.rows) * emu_lt_bytes(q.d.type);
  if (emu_lt_overlap(q.D, d, q.A, emu_lt_extent(q.a)) || emu_lt_overlap(q.D, d, q.B, emu_lt_extent(q.b)) ||
      emu_lt_overlap(q.D, d, q.workspace, need) || (q.C != q.D && emu_lt_overlap(q.D, d, q.C, emu_lt_extent(q.c))) ||
      (bias && emu_lt_overlap(q.D, d, q.o.bias, q.d.rows * emu_lt_bytes(q.d.type))) ||
      (aux && emu_lt_overlap(q.D, d, q.o.aux, aux_bytes)))
    emu_fail("cublasLtMatmul: the result overlaps what it is computed from");
  for (const void *p : {q.A, q.B, q.beta != 0.0f ? q.C : q.D, (const void *)q.D, bias ? q.o.bias : q.D,
                        aux ? q.o.aux : q.D, need ? (const void *)q.workspace : q.D})
    emu_device_pointer(p, "cublasLtMatmul");
  for (const float *p : q.o.scale) {
    if (p) emu_device_pointer(p, "cublasLtMatmul");
    EMU_LT_NEED((uintptr_t)p % 16 == 0, NOT_SUPPORTED, "a scale that is not on 16 bytes (seen on an H100)");
  }
  return CUBLAS_STATUS_SUCCESS;
}
EMU(cublasStatus_t)
cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t o, const void *alpha, const void *A, cublasLtMatrixLayout_t a,
               const void *B, cublasLtMatrixLayout_t b, const void *beta, const void *C, cublasLtMatrixLayout_t c,
               void *D, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo, void *workspace,
               size_t workspace_bytes, cudaStream_t stream) {
  EMU_LT_NEED(h && h->open, NOT_INITIALIZED, "no handle");
  EMU_LT_NEED(algo, NOT_SUPPORTED, "an algorithm chosen by the library itself is not emulated");
  EmuLtCall q = {*o, *a, *b, *c, *d, {}, A, B, C, D, *(const float *)alpha, *(const float *)beta, (float *)workspace};
  memcpy(&q.g, algo, sizeof q.g);
  const cublasStatus_t s = emu_lt_check_call(q, workspace_bytes);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  emu_push(stream, "cublasLtMatmul", [q] {
    emu_lt_run(q);
    return true;
  });
  for (uint32_t i = 1; i < q.g.steps; i++) emu_push(stream, "cublasLtMatmul", [] { return true; });
  return CUBLAS_STATUS_SUCCESS;
}

#if EMU_ONCE
// ---- tests of the rules ---------------------------------------------------------------------------------------------
// A valid bf16 GEMM of 24 x 16 x 32; each rule changes one thing.
struct EmuLtProblem {
  EmuLtMatmul o;
  EmuLtLayout a, b, c, d;
  EmuLtPreference p;
};
struct EmuLtRule { const char *name; void (*change)(EmuLtProblem *); cublasStatus_t want; };
static void *emu_lt_somewhere() { return (void *)4096; }         // an aligned address; heuristics do not dereference it
static void emu_lt_gelu_problem(EmuLtProblem *q, const void *aux = emu_lt_somewhere(), int64_t aux_ld = 24) {
  q->o.epilogue = CUBLASLT_EPILOGUE_DGELU;
  q->o.aux = aux;
  q->o.aux_ld = aux_ld;
}
static void emu_lt_fp8_problem(EmuLtProblem *q) {                // 32 x 16 x 32
  static float scale;
  *q = {{CUBLAS_COMPUTE_32F, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS, emu_lt_somewhere(), NULL, 0,
         {&scale, &scale}, 0},
        {CUDA_R_8F_E4M3, 32, 32, 32},
        {CUDA_R_8F_E4M3, 32, 16, 32},
        {CUDA_R_16BF, 32, 16, 32},
        {CUDA_R_16BF, 32, 16, 32},
        q->p};
}
#define EMU_LT_FP8(change) [](EmuLtProblem *q) { emu_lt_fp8_problem(q); change; }
static const EmuLtRule emu_lt_rule_list[] = {
    {"a valid GEMM is accepted", [](EmuLtProblem *) {}, CUBLAS_STATUS_SUCCESS},
    {"fp32 results of bf16 operands", [](EmuLtProblem *q) { q->c.type = q->d.type = CUDA_R_32F; },
     CUBLAS_STATUS_SUCCESS},
    {"GELU' of an auxiliary matrix", [](EmuLtProblem *q) { emu_lt_gelu_problem(q); }, CUBLAS_STATUS_SUCCESS},
    {"leading dimension below the rows", [](EmuLtProblem *q) { q->a.ld--; }, CUBLAS_STATUS_INVALID_VALUE},
    {"k differs", [](EmuLtProblem *q) { q->b.rows--; }, CUBLAS_STATUS_INVALID_VALUE},
    {"D of another size", [](EmuLtProblem *q) { q->d.cols++; }, CUBLAS_STATUS_INVALID_VALUE},
    {"no columns", [](EmuLtProblem *q) { q->b.cols = q->c.cols = q->d.cols = 0; }, CUBLAS_STATUS_INVALID_VALUE},
    {"bf16 operands, fp16 result", [](EmuLtProblem *q) { q->c.type = q->d.type = CUDA_R_16F; },
     CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp32 operands, bf16 result", [](EmuLtProblem *q) { q->a.type = q->b.type = CUDA_R_32F; },
     CUBLAS_STATUS_NOT_SUPPORTED},
    {"A and B differ in type", [](EmuLtProblem *q) { q->a.type = CUDA_R_16F; }, CUBLAS_STATUS_NOT_SUPPORTED},
    {"C and D differ in type", [](EmuLtProblem *q) { q->c.type = CUDA_R_32F; }, CUBLAS_STATUS_NOT_SUPPORTED},
    {"TF32 of bf16", [](EmuLtProblem *q) { q->o.compute = CUBLAS_COMPUTE_32F_FAST_TF32; }, CUBLAS_STATUS_NOT_SUPPORTED},
    {"a bias that is nowhere", [](EmuLtProblem *q) { q->o.epilogue = CUBLASLT_EPILOGUE_BIAS; },
     CUBLAS_STATUS_INVALID_VALUE},
    {"an auxiliary matrix that is nowhere", [](EmuLtProblem *q) { emu_lt_gelu_problem(q, NULL); },
     CUBLAS_STATUS_INVALID_VALUE},
    {"an auxiliary leading dimension that is no multiple of 8",
     [](EmuLtProblem *q) { emu_lt_gelu_problem(q, emu_lt_somewhere(), 28); }, CUBLAS_STATUS_INVALID_VALUE},
    {"an auxiliary leading dimension below the rows",
     [](EmuLtProblem *q) { emu_lt_gelu_problem(q, emu_lt_somewhere(), 16); }, CUBLAS_STATUS_INVALID_VALUE},
    {"half of the SMs", [](EmuLtProblem *q) { q->o.sms = 2; }, CUBLAS_STATUS_SUCCESS},
    {"more SMs than there are", [](EmuLtProblem *q) { q->o.sms = 5; },
     CUBLAS_STATUS_INVALID_VALUE},
    {"an unknown epilogue", [](EmuLtProblem *q) { q->o.epilogue = (cublasLtEpilogue_t)2; },
     CUBLAS_STATUS_NOT_SUPPORTED},
    {"a scale of bf16", [](EmuLtProblem *q) { q->o.scale[1] = (const float *)emu_lt_somewhere(); },
     CUBLAS_STATUS_INVALID_VALUE},
    {"fp8 in order", EMU_LT_FP8((void)0), CUBLAS_STATUS_SUCCESS},
    {"fp8 without scales", EMU_LT_FP8(q->o.scale[0] = q->o.scale[1] = NULL), CUBLAS_STATUS_SUCCESS},
    {"fp8, A not transposed", EMU_LT_FP8(q->o.ta = CUBLAS_OP_N), CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8, B transposed", EMU_LT_FP8((q->o.tb = CUBLAS_OP_T, q->b = {CUDA_R_8F_E4M3, 16, 32, 16})),
     CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8, m no multiple of 16", EMU_LT_FP8(q->a.cols = q->c.rows = q->d.rows = 24), CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8, n no multiple of 16", EMU_LT_FP8(q->b.cols = q->c.cols = q->d.cols = 8), CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8, k no multiple of 16", EMU_LT_FP8(q->a.rows = q->b.rows = 24), CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8, A not on 16 bytes", EMU_LT_FP8(q->p.align[0] = 8), CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8, B not on 16 bytes", EMU_LT_FP8(q->p.align[1] = 8), CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8, D not on 16 bytes", EMU_LT_FP8(q->p.align[3] = 8), CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8, rows of A not on 16 bytes", EMU_LT_FP8(q->a.ld = 40), CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8 to fp8", EMU_LT_FP8(q->c.type = q->d.type = CUDA_R_8F_E4M3), CUBLAS_STATUS_NOT_SUPPORTED},
    {"fp8 beside bf16", EMU_LT_FP8(q->b.type = CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED},
    {"TF32 of fp8", EMU_LT_FP8(q->o.compute = CUBLAS_COMPUTE_32F_FAST_TF32), CUBLAS_STATUS_NOT_SUPPORTED},
    {"GELU of fp8 with an auxiliary matrix", EMU_LT_FP8(emu_lt_gelu_problem(q, emu_lt_somewhere(), 32)),
     CUBLAS_STATUS_NOT_SUPPORTED},
};
enum { EMU_LT_RULES = sizeof emu_lt_rule_list / sizeof *emu_lt_rule_list };

enum { EMU_LT_OFFERED = 16 };                    // at most
// The number of algorithms that the heuristic offers for a problem.
EMU(int) emu_lt_offered(EmuLtProblem *q, cublasLtMatmulHeuristicResult_t *r, cublasStatus_t *status) {
  int n = 0;
  EmuLtHandle h = {true};
  *status = cublasLtMatmulAlgoGetHeuristic(&h, &q->o, &q->a, &q->b, &q->c, &q->d, &q->p, EMU_LT_OFFERED, r, &n);
  return n;
}
EMU(EmuLtProblem) emu_lt_problem() {
  return {{CUBLAS_COMPUTE_32F, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0, {NULL, NULL}, 0},
          {CUDA_R_16BF, 32, 24, 32},
          {CUDA_R_16BF, 32, 16, 32},
          {CUDA_R_16BF, 24, 16, 24},
          {CUDA_R_16BF, 24, 16, 24},
          {1 << 20, 7, {256, 256, 256, 256}}};
}
// No offered algorithm breaks a preference.
EMU(bool) emu_lt_preferences_hold() {
  cublasLtMatmulHeuristicResult_t r[EMU_LT_OFFERED];
  cublasStatus_t status;
  EmuLtProblem q = emu_lt_problem();
  const int all = emu_lt_offered(&q, r, &status);
  bool ok = all == (int)(sizeof emu_lt_algos / sizeof *emu_lt_algos);
  for (int what = 0; what < 3; what++) {
    q = emu_lt_problem();
    if (what == 0) q.p.workspace = 0;
    if (what == 1) q.p.align[1] = 8;
    if (what == 2) q.p.schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const int n = emu_lt_offered(&q, r, &status);
    ok &= n > 0 && n < all;
    for (int i = 0; i < n; i++) {
      EmuLtAlgo g;
      memcpy(&g, &r[i].algo, sizeof g);
      ok &= r[i].workspaceSize <= q.p.workspace && g.align <= q.p.align[1] && (!g.scheme || (g.scheme & q.p.schemes));
    }
  }
  return ok;
}
const char *emu_lt_rule_name(int i) {
  return i < EMU_LT_RULES ? emu_lt_rule_list[i].name
         : i == EMU_LT_RULES ? "algorithms keep to workspace, alignment and reduction schemes"
         : i == EMU_LT_RULES + 1 ? "attributes of a wrong size or number" : NULL;
}
bool emu_lt_rule_holds(int i) {
  if (i == EMU_LT_RULES) return emu_lt_preferences_hold();
  EmuLtProblem q = emu_lt_problem();
  if (i > EMU_LT_RULES) {
    const int64_t x = 0;
    return cublasLtMatmulDescSetAttribute(&q.o, CUBLASLT_MATMUL_DESC_TRANSA, &x, 8) == CUBLAS_STATUS_INVALID_VALUE &&
           cublasLtMatmulDescSetAttribute(&q.o, (cublasLtMatmulDescAttributes_t)2, &x, 8) ==
               CUBLAS_STATUS_INVALID_VALUE &&
           cublasLtMatmulPreferenceSetAttribute(&q.p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &x, 4) ==
               CUBLAS_STATUS_INVALID_VALUE;
  }
  cublasLtMatmulHeuristicResult_t r[EMU_LT_OFFERED];
  cublasStatus_t status;
  emu_lt_rule_list[i].change(&q);
  const int n = emu_lt_offered(&q, r, &status);
  return status == emu_lt_rule_list[i].want && (n > 0) == (status == CUBLAS_STATUS_SUCCESS);
}
#endif
