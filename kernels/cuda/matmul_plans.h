// matmul_plans.h: cuBLASLt GEMMs, set up once per shape and chosen once per run. CUDA section of matmul.cuh.
//
//   1 GEMM       what the ops of matmul.cuh ask for, in one form
//   2 plans      matmul_plan: the plan of a GEMM, made at its first use; matmul_library: runs it
//   3 tuning     plans_tune: the fastest algorithm that gives the plan's bits, or of all
//   4 text       plans_text; plans_algorithms, plans_use: the algorithms, to be computed with again
//
// Every GEMM is out(i,j) = sum over s of a(i,s) b(j,s) with i < I, j < J, s < S. cuBLASLt is column-major: a row-major
// (I,J) matrix is its J x I matrix with leading dimension J, so our b is its A and our a its B.
//
// Order of sums: cuBLASLt's, fixed by its version, the GPU model, the shape and the algorithm (its manual, "Results
// reproducibility": the same bits in every run if the user provides the workspace). The algorithm is the heuristic's
// first, which all ranks find alike, one with its bits, or with --tune any what rank 0 found fastest. Two schemes of
// splitting S are rejected, in place and in the output's type, because both round partial sums to the dtype of `out`.
// The remaining schemes add fp32 partial sums in a fixed order. Unlike on the CPU, a row may depend on M; M is constant
// within a run.
#pragma once
#include "cuda_device.h"
#include "cuda_libraries.h"
#include "lane.cuh"
#include "kernels/gelu.cuh"
#include "kernels/workspace.h"

// =================================================================================================== 1 GEMM
// One GEMM as its op describes it. data == NULL: absent. a_rows: a is stored (I,S), else (S,I); b_rows likewise.
// a_scale, b_scale: of fp8 operands, one fp32 number each, read when the GEMM runs.
enum MatmulOp { MATMUL_FORWARD, MATMUL_BACKWARD_INPUT, MATMUL_BACKWARD_WEIGHT };
struct MatmulProduct {
  MatmulOp op;
  int64_t I, J, S;
  Tensor out, a, b;
  bool a_rows, b_rows, add;
  Tensor bias, pre_gelu, a_scale, b_scale;
  Tensor addend;                                 // (I,J), dtype of out: out = scale (a b) + add_scale addend (muon.cuh)
  float scale, add_scale;
  Tensor gelu = {};                              // (I,J): receives GELU of out
  bool gelu_again = false;                       // a backward pass recomputes it from out, so it is gelu_forward's
};

// ================================================================================================ 2 plans
// How a GEMM is computed. EPILOGUE: cuBLASLt's GEMM computes everything. AFTER: GELU' by this program's kernel after
// the GEMM. OWN: matmul_any_kernel instead of cuBLASLt. After all of these GELU is this program's op. GELU: cuBLASLt's
// epilogue computes it, with other bits (matmul_cuda.cuh): a plan of its own, which only --tune any makes.
enum MatmulWay { MATMUL_EPILOGUE, MATMUL_AFTER, MATMUL_OWN, MATMUL_GELU };
static const char *const matmul_way_names[] = {"in the product", "after the product", "own kernel", "in the product"};

// What a plan depends on. All padding is set, because keys are compared as bytes. Alignments are powers of two up to
// 256.
struct MatmulKey {
  int64_t I, J, S;
  uint8_t op, dtype, out_dtype, bias, pre_gelu, add, tf32, gelu;
  uint16_t align_out, align_a, align_b, align_bias, align_pre_gelu, reserved2[3];
};
static_assert(sizeof(MatmulKey) == 48, "MatmulKey has no padding");
struct MatmulPlan {
  MatmulKey key;
  MatmulWay way;
  cublasLtMatmulAlgo_t algo;
  size_t workspace_bytes;
  bool described;                                // descriptors exist
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, out;              // a, b: our names; cuBLASLt's B and A
  bool given;                                    // the algorithm is plans_use's
  bool gelu_again;                               // of a use
  MatmulProduct last;                            // operands of the latest use, for plans_tune
  MatmulPlan *next;
};
struct MatmulPlans {
  MatmulPlan *first, **end;
  char *given, name[256];                        // plans_use's text, or NULL; the GPU's name
};

void matmul_open(Ctx *c) {
  MatmulPlans *plans = (MatmulPlans *)calloc(1, sizeof *plans);
  CHECK(plans, "no memory for %zu bytes of matmul plans", sizeof *plans);
  plans->end = &plans->first;
  cudaDeviceProp prop = {};
  CUDA(cudaGetDeviceProperties(&prop, DEVICE(c)->index));
  snprintf(plans->name, sizeof plans->name, "%s", prop.name);
  DEVICE(c)->plans = plans;
  BLAS(cublasLtCreate(&DEVICE(c)->blas));
}
static void matmul_undescribe(MatmulPlan *plan) {
  if (!plan->described) return;
  BLAS(cublasLtMatmulDescDestroy(plan->desc));
  BLAS(cublasLtMatrixLayoutDestroy(plan->a));
  BLAS(cublasLtMatrixLayoutDestroy(plan->b));
  BLAS(cublasLtMatrixLayoutDestroy(plan->out));
  plan->described = false;
}
void matmul_close(Ctx *c) {
  MatmulPlans *plans = DEVICE(c)->plans;
  for (MatmulPlan *plan = plans->first, *next; plan; plan = next) {
    next = plan->next;
    matmul_undescribe(plan);
    free(plan);
  }
  free(plans->given);
  free(plans);
  BLAS(cublasLtDestroy(DEVICE(c)->blas));
}

static uint16_t matmul_alignment(Tensor t) {
  const uintptr_t p = (uintptr_t)t.data | 256;
  return t.data ? (uint16_t)(p & (~p + 1)) : 0;
}
static MatmulKey matmul_key(const Ctx *c, const MatmulProduct *p) {
  MatmulKey k = {};
  k.I = p->I, k.J = p->J, k.S = p->S;
  k.op = (uint8_t)p->op, k.dtype = (uint8_t)p->a.dtype, k.out_dtype = (uint8_t)p->out.dtype;
  k.bias = p->bias.data != NULL, k.pre_gelu = p->pre_gelu.data != NULL;
  k.add = p->add || p->addend.data, k.tf32 = c->fast_fp32 && p->a.dtype == F32;
  k.align_out = matmul_alignment(p->out), k.align_a = matmul_alignment(p->a), k.align_b = matmul_alignment(p->b);
  k.align_bias = matmul_alignment(p->bias), k.align_pre_gelu = matmul_alignment(p->pre_gelu);
  return k;
}
// The key of the plan of way MATMUL_GELU, if there is one.
static MatmulKey matmul_gelu_key(MatmulKey k, Tensor gelu) {
  const uint16_t align = matmul_alignment(gelu);
  k.gelu = 1, k.align_out = align < k.align_out ? align : k.align_out;
  return k;
}

enum { MATMUL_SCALES_BYTES = 256 };              // of cuBLASLt's workspace, for matmul_place_scales
static cudaDataType_t matmul_cuda_type(Dtype t) {
  return t == F32 ? CUDA_R_32F : t == BF16 ? CUDA_R_16BF : t == F8 ? CUDA_R_8F_E4M3 : CUDA_R_16F;
}
#define MATMUL_SET(plan, attribute, type, value) \
  do { type v_ = (value); BLAS(cublasLtMatmulDescSetAttribute((plan)->desc, attribute, &v_, sizeof v_)); } while (0)

// The descriptor holds the pointers of the epilogue and of the scales. The heuristic looks at the alignment of the
// epilogue's pointer; the GEMM uses all of them.
static void matmul_point(MatmulPlan *plan, const MatmulProduct *p) {
  if (p->bias.data) MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, const void *, p->bias.data);
  const Tensor aux = plan->way == MATMUL_GELU ? p->out : plan->way == MATMUL_EPILOGUE ? p->pre_gelu : Tensor{};
  if (aux.data) MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, const void *, aux.data);
  if (p->a.dtype != F8) return;
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, const void *, p->b_scale.data);
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, const void *, p->a_scale.data);
}
// Makes the descriptors of plan->way. Fast accumulation of fp8 GEMMs stays off (the default): partial sums of the
// tensor cores, which keep fewer bits than fp32, are then added in fp32 every few k. The number of SMs to
// plan for decides the heuristic's choice, and so the bits: it never depends on the number of ranks.
static void matmul_describe(const Ctx *c, MatmulPlan *plan, const MatmulProduct *p) {
  const MatmulKey *k = &plan->key;
  const bool grad = plan->way == MATMUL_EPILOGUE && p->pre_gelu.data, gelu = plan->way == MATMUL_GELU;
  const cudaDataType_t type = matmul_cuda_type(p->a.dtype), out = matmul_cuda_type(p->out.dtype);
  BLAS(cublasLtMatmulDescCreate(&plan->desc, k->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_TRANSA, cublasOperation_t, p->b_rows ? CUBLAS_OP_T : CUBLAS_OP_N);
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_TRANSB, cublasOperation_t, p->a_rows ? CUBLAS_OP_N : CUBLAS_OP_T);
  const cublasLtEpilogue_t epilogue =
      grad ? CUBLASLT_EPILOGUE_DGELU
      : p->bias.data ? (gelu ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_BIAS)
                     : (gelu ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_DEFAULT);
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, cublasLtEpilogue_t, epilogue);
  if (grad || gelu) MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t, p->J);
  if (c->sm_margin)
    MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, int32_t, DEVICE(c)->sms - c->sm_margin);
  matmul_point(plan, p);
  const uint64_t I = (uint64_t)p->I, J = (uint64_t)p->J, S = (uint64_t)p->S;
  BLAS(cublasLtMatrixLayoutCreate(&plan->b, type, p->b_rows ? S : J, p->b_rows ? J : S, p->b_rows ? p->S : p->J));
  BLAS(cublasLtMatrixLayoutCreate(&plan->a, type, p->a_rows ? S : I, p->a_rows ? I : S, p->a_rows ? p->S : p->I));
  BLAS(cublasLtMatrixLayoutCreate(&plan->out, out, J, I, p->J));
  plan->described = true;
}
// The heuristic's algorithms for a described plan, best first; returns their number.
// MATMUL_CANDIDATES: more than are worth timing. MATMUL_FIRST: those that tuning looks at even when its TUNE_SECONDS
// are over.
enum { MATMUL_CANDIDATES = 128, MATMUL_FIRST = 8, TUNE_SECONDS = 20 };
static int matmul_candidates(Ctx *c, MatmulPlan *plan, cublasLtMatmulHeuristicResult_t *found, int wanted) {
  const MatmulKey *k = &plan->key;
  cublasLtMatmulPreference_t pref;
  BLAS(cublasLtMatmulPreferenceCreate(&pref));
  uint64_t workspace = matmul_library_bytes(DEVICE(c)->major) - (k->dtype == F8 ? MATMUL_SCALES_BYTES : 0);
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;       // or no splitting at all
  uint32_t align_a = k->align_b, align_b = k->align_a, align_out = k->align_out;
  const struct { cublasLtMatmulPreferenceAttributes_t attribute; const void *value; size_t bytes; } set[] = {
      {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
      {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof align_a},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof align_b},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_out, sizeof align_out},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_out, sizeof align_out}};
  for (auto s : set) BLAS(cublasLtMatmulPreferenceSetAttribute(pref, s.attribute, s.value, s.bytes));
  int n = 0, usable = 0;
  const cublasStatus_t status = cublaslt()->cublasLtMatmulAlgoGetHeuristic(
      DEVICE(c)->blas, plan->desc, plan->b, plan->a, plan->out, plan->out, pref, wanted, found, &n);
  BLAS(cublasLtMatmulPreferenceDestroy(pref));
  // If an epilogue does not suit its auxiliary matrix, the manual does not say which of the two is returned.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return 0;
  CHECK(status == CUBLAS_STATUS_SUCCESS, "cublasLtMatmulAlgoGetHeuristic for %lldx%lldx%lld: %s", (long long)k->I,
        (long long)k->J, (long long)k->S, cublaslt()->cublasLtGetStatusString(status));
  for (int i = 0; i < n; i++)
    if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= workspace) found[usable++] = found[i];
  return usable;
}

// Which ways are possible and worth trying. cuBLASLt's table of types: out has the operands' dtype or fp32 (bf16 with
// fp8); a bias and an auxiliary matrix have out's dtype. An auxiliary matrix has a leading dimension that is a multiple
// of 8. The preferences tell cuBLASLt the alignment of out, a and b, but not of bias and auxiliary matrix: these must
// be aligned to 16 bytes. Where bf16 rows are on odd addresses, cuBLASLt 13.1 on an H100 rounds the product before it
// adds the bias, twice in all (dev/results/2026-11-26-H100-80GB-HBM3.md): a bias goes with rows of whole 16 bytes only.
static bool matmul_on_16(Tensor t) { return (uintptr_t)t.data % 16 == 0; }
static bool matmul_may(const MatmulProduct *p, MatmulWay way) {
  const bool same = p->out.dtype == p->a.dtype, grad = p->pre_gelu.data != NULL;
  if (p->a.dtype == F8) return way == MATMUL_EPILOGUE;             // matmul_forward_fp8 needs nothing else
  if (way == MATMUL_OWN) return true;
  if (!(same || p->out.dtype == F32) || (!same && (p->bias.data || grad))) return false;
  if (!matmul_on_16(p->bias)) return false;
  if (p->bias.data && p->a.dtype != F32 && (p->J % 8 || p->S % 8)) return false;
  if (way == MATMUL_AFTER) return grad;
  if (way == MATMUL_GELU)
    return p->gelu.data && same && p->a.dtype != F32 && p->J % 8 == 0 && matmul_on_16(p->out) && matmul_on_16(p->gelu);
  return !grad || (p->a.dtype != F32 && p->J % 8 == 0 && matmul_on_16(p->pre_gelu));
}
static bool matmul_try(Ctx *c, MatmulPlan *plan, const MatmulProduct *p, MatmulWay way) {
  if (!matmul_may(p, way)) return false;
  plan->way = way;
  if (way == MATMUL_OWN) return true;
  matmul_describe(c, plan, p);
  cublasLtMatmulHeuristicResult_t found = {};
  if (matmul_candidates(c, plan, &found, 1) == 0) { matmul_undescribe(plan); return false; }
  plan->algo = found.algo;
  plan->workspace_bytes = found.workspaceSize;
  return true;
}
static MatmulPlan *matmul_plan_of(MatmulPlans *plans, const MatmulKey *key) {
  for (MatmulPlan *plan = plans->first; plan; plan = plan->next)
    if (!memcmp(&plan->key, key, sizeof *key)) return plan;
  return NULL;
}
static MatmulPlan *matmul_plan_new(MatmulPlans *plans, const MatmulKey *key) {
  MatmulPlan *plan = (MatmulPlan *)calloc(1, sizeof *plan);
  CHECK(plan, "no memory for %zu bytes of a matmul plan", sizeof *plan);
  plan->key = *key;
  *plans->end = plan;
  plans->end = &plan->next;
  return plan;
}

static int matmul_config(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  uint32_t x = 0;
  size_t written = 0;
  const cublasStatus_t s = cublaslt()->cublasLtMatmulAlgoConfigGetAttribute(algo, attribute, &x, sizeof x, &written);
  return s == CUBLAS_STATUS_SUCCESS ? (int)x : -1;
}
// Writes what a plan computes, and how, as one line without its newline; returns its length.
enum { MATMUL_LINE_BYTES = 320 };
static int matmul_line(const MatmulPlan *plan, char line[MATMUL_LINE_BYTES]) {
  static const char *const names[] = {"forward", "backward_input", "backward_weight"};
  const MatmulKey *k = &plan->key;
  char algo[128] = "";
  if (plan->way != MATMUL_OWN)
    snprintf(algo, sizeof algo, ": algorithm %d tile %d stages %d split-k %d reduction %d, workspace %llu",
             matmul_config(&plan->algo, CUBLASLT_ALGO_CONFIG_ID),
             matmul_config(&plan->algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
             matmul_config(&plan->algo, CUBLASLT_ALGO_CONFIG_STAGES_ID),
             matmul_config(&plan->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
             matmul_config(&plan->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
             (unsigned long long)plan->workspace_bytes);
  return snprintf(line, MATMUL_LINE_BYTES, "matmul_%s %lldx%lldx%lld %s%s to %s%s%s%s%s%s", names[k->op % 3],
                  (long long)k->I, (long long)k->J, (long long)k->S, dtype_name((Dtype)k->dtype),
                  k->tf32 ? " (tf32)" : "", dtype_name((Dtype)k->out_dtype), k->bias ? ", bias" : "",
                  k->add ? ", added" : "", k->pre_gelu ? ", gelu' " : k->gelu ? ", gelu "
                  : plan->way == MATMUL_OWN ? ", " : "",
                  k->pre_gelu || k->gelu || plan->way == MATMUL_OWN ? matmul_way_names[plan->way] : "", algo);
}

// cuBLASLt 13.1 rejects a scale of E4M3 operands that is not aligned to 16 bytes, which its manual does not say. Such a
// scale is copied into the workspace, after the part that the GEMM may use.
static void matmul_place_scales(Ctx *c, MatmulProduct *p) {
  char *slot = (char *)c->workspace + matmul_library_bytes(DEVICE(c)->major) - MATMUL_SCALES_BYTES;
  for (Tensor *t : {&p->a_scale, &p->b_scale}) {
    if (!t->data || matmul_on_16(*t)) continue;
    CUDA(cudaMemcpyAsync(slot, t->data, sizeof(float), cudaMemcpyDeviceToDevice, STREAM(c)));
    t->data = slot, slot += 16;
  }
}
static void matmul_library(Ctx *c, MatmulPlan *plan, const MatmulProduct *p, const cublasLtMatmulAlgo_t *algo,
                           size_t workspace_bytes) {
  const bool scaled = p->addend.data != NULL;
  const float alpha = scaled ? p->scale : 1.0f, beta = scaled ? p->add_scale : p->add ? 1.0f : 0.0f;
  void *const out = (plan->way == MATMUL_GELU ? p->gelu : p->out).data, *const addend = scaled ? p->addend.data : out;
  CHECK(workspace_bytes <= c->workspace_bytes, "a GEMM needs %zu bytes of workspace, has %zu",
        workspace_bytes, c->workspace_bytes);
  MatmulProduct placed = *p;
  if (p->a.dtype == F8) matmul_place_scales(c, &placed);
  matmul_point(plan, &placed);
  const cublasStatus_t status = cublaslt()->cublasLtMatmul(
      DEVICE(c)->blas, plan->desc, &alpha, p->b.data, plan->b, p->a.data, plan->a, &beta, addend, plan->out, out,
      plan->out, algo, workspace_bytes ? c->workspace : NULL, workspace_bytes, STREAM(c));
  if (status == CUBLAS_STATUS_SUCCESS) return;
  char line[MATMUL_LINE_BYTES];
  MatmulPlan failed = *plan;
  failed.algo = *algo, failed.workspace_bytes = workspace_bytes;
  matmul_line(&failed, line);
  die_with(EXIT_FAULT, "cublasLtMatmul: %s: %s", cublaslt()->cublasLtGetStatusString(status), line);
}
// The same, and what the plan's way leaves to this program's kernels.
static void matmul_library_and_gelu(Ctx *c, MatmulPlan *plan, const MatmulProduct *p, const cublasLtMatmulAlgo_t *algo,
                                    size_t workspace_bytes) {
  matmul_library(c, plan, p, algo, workspace_bytes);
  if (plan->way == MATMUL_AFTER) gelu_run<true>(c, p->out, p->pre_gelu);
  if (p->gelu.data && plan->way != MATMUL_GELU) gelu_run<false>(c, p->gelu, p->out);
}
// The last way of every GEMM is MATMUL_OWN, except with fp8.
static void matmul_choose(Ctx *c, MatmulPlan *plan, const MatmulProduct *p) {
  for (int way = MATMUL_EPILOGUE; way <= MATMUL_OWN; way++) if (matmul_try(c, plan, p, (MatmulWay)way)) return;
  die_missing("cuBLASLt offers no fp8 GEMM of %lldx%lldx%lld on this GPU, compute capability %d.%d: 8.9 or later "
              "is needed; train without fp8 GEMMs", (long long)p->I, (long long)p->J, (long long)p->S,
              DEVICE(c)->major, DEVICE(c)->minor);
}
// A plan's line in plans_algorithms: its key, its way, the bytes of its workspace and its algorithm, as hexadecimal
// numbers that a space ends; for people, matmul_line after them.
enum { MATMUL_HEX_BYTES = 2 * (int)(sizeof(MatmulKey) + sizeof(cublasLtMatmulAlgo_t)) + 32 };
static int matmul_hex(char *to, const void *from, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) snprintf(to + 2 * i, 3, "%02x", ((const unsigned char *)from)[i]);
  to[2 * bytes] = ' ', to[2 * bytes + 1] = 0;
  return (int)(2 * bytes) + 1;
}
static const char *matmul_unhex(const char *from, void *to, size_t bytes) {
  unsigned x;
  for (size_t i = 0; i < bytes; i++, from += 2) {
    if (!isxdigit((unsigned char)from[0]) || sscanf(from, "%2x", &x) != 1) return NULL;
    ((unsigned char *)to)[i] = (unsigned char)x;
  }
  return *from == ' ' ? from + 1 : NULL;
}
// What plans_use's text says of a plan, after its key; NULL where it does not name it.
static const char *matmul_given(const MatmulPlans *plans, const MatmulKey *of) {
  char key[2 * sizeof(MatmulKey) + 2], at[2 * sizeof(MatmulKey) + 3] = "\n";
  if (!plans->given) return NULL;
  matmul_hex(key, of, sizeof *of);
  strcat(at, key);
  const char *text = strstr(plans->given, at);
  return text ? text + strlen(at) : NULL;
}
// Gives a plan what the text says of it. False where the text does not name it.
static bool matmul_take_given(Ctx *c, MatmulPlan *plan, const MatmulProduct *p) {
  const char *text = matmul_given(DEVICE(c)->plans, &plan->key);
  if (!text) return false;
  uint8_t way = MATMUL_OWN;
  uint64_t workspace = 0;
  text = matmul_unhex(text, &way, 1);
  if (text) text = matmul_unhex(text, &workspace, sizeof workspace);
  if (text) text = matmul_unhex(text, &plan->algo, sizeof plan->algo);
  bool taken = text && way <= MATMUL_GELU && way != MATMUL_OWN && (way == MATMUL_GELU) == (plan->key.gelu == 1) &&
               matmul_may(p, (MatmulWay)way);
  if (taken) {
    cublasLtMatmulHeuristicResult_t found = {};
    matmul_undescribe(plan);
    plan->way = (MatmulWay)way, plan->workspace_bytes = workspace, plan->given = true;
    matmul_describe(c, plan, p);
    taken = cublaslt()->cublasLtMatmulAlgoCheck(DEVICE(c)->blas, plan->desc, plan->b, plan->a, plan->out, plan->out,
                                                &plan->algo, &found) == CUBLAS_STATUS_SUCCESS &&
            found.workspaceSize <= workspace && workspace <= matmul_library_bytes(DEVICE(c)->major);
  }
  if (!taken) die_missing("cuBLASLt does not take the algorithm that was chosen for matmul %lldx%lldx%lld when its "
                          "run started (--tune any, --plans): continue with --tune off", (long long)p->I,
                          (long long)p->J, (long long)p->S);
  return true;
}
// The plan of a GEMM, ready to run.
static MatmulPlan *matmul_plan(Ctx *c, const MatmulProduct *p) {
  MatmulPlans *plans = DEVICE(c)->plans;
  const MatmulKey key = matmul_key(c, p), gelu_key = matmul_gelu_key(key, p->gelu);
  const bool fused = p->gelu.data && (matmul_plan_of(plans, &gelu_key) || matmul_given(plans, &gelu_key));
  if (fused && p->gelu_again)
    die_missing("matmul %lldx%lldx%lld: GELU was chosen to be cuBLASLt's when this run started (--tune any, --plans), "
                "and --recompute gelu or norm would recompute it with other bits: leave --recompute as it was, or "
                "continue with --tune off", (long long)p->I, (long long)p->J, (long long)p->S);
  MatmulPlan *plan = matmul_plan_of(plans, fused ? &gelu_key : &key);
  if (!plan) {
    plan = matmul_plan_new(plans, fused ? &gelu_key : &key);
    if (!matmul_take_given(c, plan, p)) matmul_choose(c, plan, p);
  }
  plan->last = *p;
  plan->gelu_again |= p->gelu_again;
  return plan;
}

// ================================================================================================ 3 tuning
// Another algorithm replaces a plan's own only if it gives the same bits. cuBLASLt promises that of no two algorithms
// and does not say what a tile or a stage does to the order of a sum. So both compute the same GEMM and the bits of
// every element are compared, from operands in which an order shows. Of another split of S or another reduction the
// order is known to differ: those are not tried.
//
// Along S both operands are 256 in four places (peaks; two where S is short), with signs of `a` that cancel in pairs;
// elsewhere they are +-[1, 2) times 2^-3 to 2^-6. Between a pair a partial sum is about 65536, where fp32 numbers are
// 2^-7 apart: nearly as coarse as the terms (below 2^-4) are large, so what is left of a term depends on what it is
// added to, and when. After the pairs only the sum of what was left remains: two orders differ there in about every
// element, and by enough to outlast rounding to bf16. All dtypes hold these numbers, E4M3 too.
enum MatmulPeaks { PEAKS_NONE, PEAKS_PLUS, PEAKS_SIGNED, PEAKS_SIGNED_IN_ODD_ROWS };
HD uint32_t matmul_hash(uint32_t x) {            // as good as random, the same everywhere
  x = (x ^ x >> 16) * 0x45d9f3bu;
  x = (x ^ x >> 16) * 0x45d9f3bu;
  return x ^ x >> 16;
}
// What an operand holds in a trial: with peaks it is a or b, (rows,S) in memory if by_rows, else (S,rows).
struct MatmulPattern { uint32_t seed; MatmulPeaks peaks; int64_t S, rows; bool by_rows; };
HD float matmul_element(MatmulPattern f, int64_t i) {
  const int64_t at[] = {0, f.S - 1, f.S / 3, 2 * f.S / 3};
  const int count = f.peaks == PEAKS_NONE || f.S < 3 ? 0 : f.S < 16 ? 2 : 4;   // two terms have one order
  for (int k = 0; k < count; k++) {
    const int64_t s = f.by_rows ? i % f.S : i / f.rows, r = f.by_rows ? i / f.S : i % f.rows;
    if (s != at[k]) continue;
    const bool signs = f.peaks == PEAKS_SIGNED || (f.peaks == PEAKS_SIGNED_IN_ODD_ROWS && r % 2);
    return signs && (k == 1 || k == 2) ? -256.0f : 256.0f;
  }
  const uint32_t h = matmul_hash((uint32_t)i * 8 + f.seed);
  return (h & 1 ? -0x1p-10f : 0x1p-10f) * (float)(128 + (h >> 1 & 127)) / (float)(1 << (h >> 8 & 3));
}
template <class T>
__global__ static void __launch_bounds__(FLAT_THREADS) matmul_fill_kernel(T *to, int64_t n, MatmulPattern f) {
  const auto put = [=](int64_t i) { round_to(to + i, matmul_element(f, i)); };
  FLAT_WALK(1, n, i, put(i), put(i));
}
static void matmul_fill(Ctx *c, Tensor t, MatmulPattern f) {
  const int64_t n = numel(t);
  const unsigned blocks = flat_blocks(n, 1);
  f.rows = n / f.S;
  if (t.dtype == F8) LAUNCH(matmul_fill_kernel<fp8>, blocks, FLAT_THREADS, 0, STREAM(c), (fp8 *)t.data, n, f);
  else DISPATCH(t.dtype, T, LAUNCH(matmul_fill_kernel<T>, blocks, FLAT_THREADS, 0, STREAM(c), (T *)t.data, n, f));
}

// The bits of a result as so many numbers, each of a part of its elements: a sum of what a one-to-one function makes of
// element and place (Steele et al. 2014, "Fast splittable pseudorandom number generators"). Where one element of a part
// differs its number differs; where several do it is the same once in 2^64. A copy of the result would take memory
// that the device may not have.
enum { MATMUL_DIGESTS = 1024 };
typedef unsigned long long MatmulDigest;
HD MatmulDigest matmul_digest(MatmulDigest x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
template <class T>
__global__ static void __launch_bounds__(FLAT_THREADS) matmul_digest_kernel(MatmulDigest *to, const T *x, int64_t n) {
  MatmulDigest sum = 0;
  const auto part = [=](int64_t i) { return matmul_digest((MatmulDigest)i * 0x9e3779b97f4a7c15u ^ x[i]); };
  FLAT_WALK(1, n, i, sum += part(i), sum += part(i));
  atomicAdd(&to[blockIdx.x % MATMUL_DIGESTS], sum);
}

// A trial GEMM uses the memory of the plan's latest use with operands made here. MatmulHeld: a tensor of that use, and
// its contents, saved in host memory.
struct MatmulHeld { Tensor t; void *was; };
struct MatmulTrial {
  MatmulHeld held[9];                            // the first is `out`
  int count;
  MatmulDigest want[MATMUL_DIGESTS], got[MATMUL_DIGESTS];       // of the plan's algorithm; of another
};
static size_t matmul_bytes(Tensor t) { return (size_t)numel(t) * dtype_bytes(t.dtype); }
static void matmul_copy(Ctx *c, void *to, const void *from, size_t bytes) {
  CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, STREAM(c)));
  CUDA(cudaStreamSynchronize(STREAM(c)));
}
static void matmul_trial_open(Ctx *c, MatmulTrial *x, const MatmulProduct *p) {
  const float one = 1.0f;
  *x = MatmulTrial{};
  for (Tensor t : {p->out, p->a, p->b, p->bias, p->pre_gelu, p->addend, p->a_scale, p->b_scale, p->gelu}) {
    if (!t.data) continue;
    MatmulHeld *h = &x->held[x->count++];
    *h = MatmulHeld{t, malloc(matmul_bytes(t))};
    CHECK(h->was, "--tune: no memory for %zu bytes on the host", matmul_bytes(t));
    matmul_copy(c, h->was, t.data, matmul_bytes(t));
  }
  for (int i = 1; i < x->count; i++) {
    const Tensor t = x->held[i].t;
    const bool a = t.data == p->a.data, b = t.data == p->b.data;   // both: X X^T, where half of the elements cancel
    const MatmulPeaks peaks = a && b ? PEAKS_SIGNED_IN_ODD_ROWS : a ? PEAKS_SIGNED : b ? PEAKS_PLUS : PEAKS_NONE;
    if (t.data == p->a_scale.data || t.data == p->b_scale.data) matmul_copy(c, t.data, &one, sizeof one);
    else matmul_fill(c, t, MatmulPattern{(uint32_t)i, peaks, p->S, 0, a ? p->a_rows : p->b_rows});
  }
}
static void matmul_trial_run(Ctx *c, MatmulTrial *x, MatmulPlan *plan, const cublasLtMatmulAlgo_t *algo,
                             size_t workspace_bytes, MatmulDigest *result) {
  const Tensor out = x->held[0].t;
  const int64_t n = numel(out), S = plan->last.S;
  MatmulDigest *digests = (MatmulDigest *)c->workspace;          // no GEMM's any more
  CHECK(c->workspace_bytes >= sizeof x->want, "--tune: %zu bytes of workspace", c->workspace_bytes);
  matmul_fill(c, out, MatmulPattern{0, PEAKS_NONE, S, 0, true});
  matmul_library(c, plan, &plan->last, algo, workspace_bytes);
  CUDA(cudaMemsetAsync(digests, 0, sizeof x->want, STREAM(c)));
  if (dtype_bytes(out.dtype) == 4)
    LAUNCH(matmul_digest_kernel<uint32_t>, flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), digests,
           (const uint32_t *)out.data, n);
  else
    LAUNCH(matmul_digest_kernel<uint16_t>, flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), digests,
           (const uint16_t *)out.data, n);
  matmul_copy(c, result, digests, sizeof x->want);
}
static void matmul_trial_close(Ctx *c, MatmulTrial *x) {
  for (int i = 0; i < x->count; i++) {
    matmul_copy(c, x->held[i].t.data, x->held[i].was, matmul_bytes(x->held[i].t));
    free(x->held[i].was);
  }
}

static bool matmul_splits_alike(const cublasLtMatmulAlgo_t *a, const cublasLtMatmulAlgo_t *b) {
  return matmul_config(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) == matmul_config(b, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) &&
         matmul_config(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ==
             matmul_config(b, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
}
// Median time of one algorithm on the operands of a trial. Four GEMMs per sample, so that an event's own cost is small
// beside them.
// An algorithm whose first sample is far above `best` is not timed again.
static float matmul_time(Ctx *c, MatmulPlan *plan, const cublasLtMatmulAlgo_t *algo, size_t workspace_bytes,
                         cudaEvent_t from, cudaEvent_t to, float best) {
  enum { SAMPLES = 5, PRODUCTS = 4 };
  float ms[SAMPLES];
  matmul_library_and_gelu(c, plan, &plan->last, algo, workspace_bytes);
  for (int i = 0; i < SAMPLES; i++) {
    CUDA(cudaEventRecord(from, STREAM(c)));
    for (int k = 0; k < PRODUCTS; k++) matmul_library_and_gelu(c, plan, &plan->last, algo, workspace_bytes);
    CUDA(cudaEventRecord(to, STREAM(c)));
    CUDA(cudaEventSynchronize(to));
    CUDA(cudaEventElapsedTime(&ms[i], from, to));
    if (!i && ms[0] > 1.25f * best) return ms[0];
    for (int k = i; k > 0 && ms[k] < ms[k - 1]; k--) { const float t = ms[k]; ms[k] = ms[k - 1]; ms[k - 1] = t; }
  }
  return ms[SAMPLES / 2];
}
// What plans_tune does: any: of other bits too; list: where not NULL, gets a line for each candidate, all of which are
// timed then. until_ms: when the plan's share of the time is over.
struct MatmulTuning { bool any; char *list; size_t list_bytes; cudaEvent_t from, to; double until_ms; };
static void matmul_list(MatmulTuning *t, const MatmulPlan *plan, const cublasLtMatmulAlgo_t *algo, size_t workspace,
                        float ms, const MatmulDigest *result, const char *word) {
  char line[MATMUL_LINE_BYTES];
  MatmulPlan shown = *plan;
  MatmulDigest all = 0;
  if (!t->list) return;
  shown.algo = *algo, shown.workspace_bytes = workspace;
  matmul_line(&shown, line);
  for (int i = 0; i < MATMUL_DIGESTS; i++) all += matmul_digest(result[i] ^ (MatmulDigest)i);
  const size_t used = strlen(t->list);
  snprintf(t->list + used, t->list_bytes - used, "%9.4f ms  bits %016llx %-9s %s\n", (double)ms / 4, all, word, line);
}
// Makes the plan with GELU in the GEMM of one without, where that is faster than best_ms, which includes GELU's op.
static void matmul_tune_gelu(Ctx *c, const MatmulPlan *plan, MatmulTrial *x, MatmulTuning *t, float best_ms) {
  static cublasLtMatmulHeuristicResult_t found[MATMUL_CANDIDATES];
  MatmulPlan fused = {};
  fused.key = matmul_gelu_key(plan->key, plan->last.gelu), fused.way = MATMUL_GELU, fused.last = plan->last;
  if (matmul_plan_of(DEVICE(c)->plans, &fused.key)) return;
  matmul_describe(c, &fused, &fused.last);
  const int n = matmul_candidates(c, &fused, found, MATMUL_CANDIDATES);
  int best = -1;
  for (int i = 0; i < n && (i < MATMUL_FIRST || t->list || now_ms() < t->until_ms); i++) {
    matmul_trial_run(c, x, &fused, &found[i].algo, found[i].workspaceSize, x->got);
    const float ms = matmul_time(c, &fused, &found[i].algo, found[i].workspaceSize, t->from, t->to,
                                 t->list ? INFINITY : best_ms);
    matmul_list(t, &fused, &found[i].algo, found[i].workspaceSize, ms, x->got, "other");
    if (t->any && ms < best_ms) best = i, best_ms = ms;
  }
  if (best < 0) { matmul_undescribe(&fused); return; }
  fused.algo = found[best].algo, fused.workspace_bytes = found[best].workspaceSize;
  *matmul_plan_new(DEVICE(c)->plans, &fused.key) = fused;
}
// A gain below 1 % is noise: the plan's algorithm stays.
static void matmul_tune(Ctx *c, MatmulPlan *plan, MatmulTuning *t) {
  static cublasLtMatmulHeuristicResult_t found[MATMUL_CANDIDATES];
  MatmulTrial x;
  matmul_trial_open(c, &x, &plan->last);
  matmul_point(plan, &plan->last);
  const int n = matmul_candidates(c, plan, found, MATMUL_CANDIDATES);
  matmul_trial_run(c, &x, plan, &plan->algo, plan->workspace_bytes, x.want);
  const float own_ms = matmul_time(c, plan, &plan->algo, plan->workspace_bytes, t->from, t->to, INFINITY);
  float best_ms = 0.99f * own_ms;
  int best = -1;
  matmul_list(t, plan, &plan->algo, plan->workspace_bytes, own_ms, x.want, "heuristic");
  for (int i = 0; i < n && (i < MATMUL_FIRST || t->list || now_ms() < t->until_ms); i++) {
    if (!memcmp(&found[i].algo, &plan->algo, sizeof plan->algo)) continue;
    bool equal = matmul_splits_alike(&found[i].algo, &plan->algo);
    if (!equal && !t->any && !t->list) continue;
    matmul_trial_run(c, &x, plan, &found[i].algo, found[i].workspaceSize, x.got);
    equal = equal && !memcmp(x.got, x.want, sizeof x.want);
    if (!equal && !t->any && !t->list) continue;
    const float ms = matmul_time(c, plan, &found[i].algo, found[i].workspaceSize, t->from, t->to,
                                 t->list ? INFINITY : best_ms);
    matmul_list(t, plan, &found[i].algo, found[i].workspaceSize, ms, x.got, equal ? "equal" : "other");
    if ((equal || t->any) && ms < best_ms) best = i, best_ms = ms;
  }
  if ((t->any || t->list) && !plan->gelu_again && matmul_may(&plan->last, MATMUL_GELU))
    matmul_tune_gelu(c, plan, &x, t, best_ms);
  matmul_trial_close(c, &x);
  if (best < 0) return;
  plan->algo = found[best].algo;
  plan->workspace_bytes = found[best].workspaceSize;
}
// Leaves all operands as they were, which for the time it takes are on the host, those of one GEMM at a time.
void plans_tune_impl(Ctx *c, bool any, char *list, size_t list_bytes) {
  MatmulTuning t = {any, list, list_bytes, NULL, NULL, 0};
  const double end_ms = now_ms() + TUNE_SECONDS * 1e3;
  int left = 0;
  if (list) *list = 0;
  CUDA(cudaEventCreate(&t.from));
  CUDA(cudaEventCreate(&t.to));
  for (MatmulPlan *plan = DEVICE(c)->plans->first; plan; plan = plan->next)
    left += plan->way < MATMUL_OWN;
  for (MatmulPlan *plan = DEVICE(c)->plans->first; plan; plan = plan->next) {
    if (plan->way >= MATMUL_OWN) continue;       // GELU: chosen with the plan without
    t.until_ms = now_ms() + (end_ms - now_ms()) / left--;
    matmul_tune(c, plan, &t);
  }
  CUDA(cudaEventDestroy(t.from));
  CUDA(cudaEventDestroy(t.to));
}

// ================================================================================================ 4 text
// One line per plan, in order of first use; cut at the end of a line if `bytes` is too small.
void plans_text_impl(Ctx *c, char *to, size_t bytes) {
  size_t used = 0;
  if (bytes) *to = 0;
  for (MatmulPlan *plan = DEVICE(c)->plans->first; plan; plan = plan->next) {
    char line[MATMUL_LINE_BYTES + 1];
    const int n = matmul_line(plan, line);
    line[n] = '\n', line[n + 1] = 0;
    if (used + (size_t)n + 1 >= bytes) return;
    memcpy(to + used, line, (size_t)n + 2);
    used += (size_t)n + 1;
  }
}
// The first line of plans_algorithms: what decides whether an algorithm means the same.
static void matmul_made_by(const Ctx *c, char *to, size_t bytes) {
  const CudaDevice *d = DEVICE(c);
  snprintf(to, bytes, "cuBLASLt %d, %s, %d SMs, %d of them for NCCL", (int)cublaslt()->cublasLtGetVersion(),
           d->plans->name, d->sms, c->sm_margin);
}
void plans_algorithms_impl(Ctx *c, char *to, size_t bytes) {
  char made[384], line[MATMUL_HEX_BYTES + MATMUL_LINE_BYTES];
  matmul_made_by(c, made, sizeof made);
  size_t used = (size_t)snprintf(to, bytes, "%s\n", made);
  for (MatmulPlan *plan = DEVICE(c)->plans->first; plan; plan = plan->next) {
    const uint8_t way = (uint8_t)plan->way;
    const uint64_t workspace = plan->workspace_bytes;
    if (plan->way == MATMUL_OWN) continue;
    int n = matmul_hex(line, &plan->key, sizeof plan->key);
    n += matmul_hex(line + n, &way, 1);
    n += matmul_hex(line + n, &workspace, sizeof workspace);
    n += matmul_hex(line + n, &plan->algo, sizeof plan->algo);
    n += matmul_line(plan, line + n);
    CHECK(used + (size_t)n + 2 <= bytes, "%zu bytes are too few for all matrix multiplies", bytes);
    used += (size_t)snprintf(to + used, bytes - used, "%s\n", line);
  }
}
// Plans that exist must be in the text.
void plans_use_impl(Ctx *c, const char *text, Error *error) {
  MatmulPlans *plans = DEVICE(c)->plans;
  char made[384], line[MATMUL_LINE_BYTES];
  const int first = (int)strcspn(text, "\n");
  matmul_made_by(c, made, sizeof made);
  if ((int)strlen(made) != first || strncmp(made, text, (size_t)first)) {
    fail(error, "they are of '%.*s', this is '%s'", first < 200 ? first : 200, text, made);
    return;
  }
  char *kept = strdup(text);
  CHECK(kept, "no memory for %zu bytes of matmul plans", strlen(text));
  free(plans->given);
  plans->given = kept;
  for (MatmulPlan *plan = plans->first; plan && !error->text[0]; plan = plan->next) {
    if (plan->way == MATMUL_OWN || plan->given || matmul_take_given(c, plan, &plan->last)) continue;
    matmul_line(plan, line);
    fail(error, "they lack %.250s", line);
  }
}
