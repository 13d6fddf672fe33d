// matmul_plans.h: cuBLASLt GEMMs, set up once per shape and chosen once per run. CUDA section of matmul.cuh.
//
//   1 GEMM       what the ops of matmul.cuh ask for, in one form
//   2 plans      matmul_plan: the plan of a GEMM, made at its first use; matmul_library: runs it
//   3 choosing   plans_tune, plans_export, plans_import, plans_text
//
// Every GEMM is out(i,j) = sum over s of a(i,s) b(j,s) with i < I, j < J, s < S. cuBLASLt is column-major: a row-major
// (I,J) matrix is its J x I matrix with leading dimension J, so our b is its A and our a its B.
//
// Order of sums: cuBLASLt's, fixed by its version, the GPU model, the shape and the algorithm, which all ranks share
// (its manual, "Results reproducibility": the same bits in every run if the user provides the workspace). Two schemes
// of splitting S are refused, in place and in the output's type, because both round partial sums to the dtype of `out`.
// The remaining schemes add fp32 partial sums in a fixed order. Unlike on the CPU, a row may depend on M; M is constant
// within a run.
#pragma once
#include "cuda_device.h"
#include "cuda_libraries.h"

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
};

// ================================================================================================ 2 plans
// How a GEMM is computed. EPILOGUE: everything in the GEMM. AFTER: GELU' by our kernel after it. OWN:
// matmul_any_kernel. GELU itself is not part of a GEMM (matmul_cuda.cuh).
enum MatmulWay { MATMUL_EPILOGUE, MATMUL_AFTER, MATMUL_OWN };
static const char *const matmul_way_names[] = {"in the product", "after the product", "own kernel"};

// What a plan depends on. All padding is set, because keys are compared as bytes. Alignments are powers of two up to
// 256.
struct MatmulKey {
  int64_t I, J, S;
  uint8_t op, dtype, out_dtype, bias, pre_gelu, add, tf32, reserved;
  uint16_t align_out, align_a, align_b, align_bias, align_pre_gelu, reserved2[3];
};
static_assert(sizeof(MatmulKey) == 48, "MatmulKey has no padding");
struct MatmulRecord {                            // sent between ranks and stored in checkpoints
  MatmulKey key;
  uint64_t way, workspace_bytes;
  cublasLtMatmulAlgo_t algo;
};
struct MatmulPlan {
  MatmulRecord r;
  bool ready;                                    // descriptors exist; false: imported and not used yet
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, out;              // a, b: our names; cuBLASLt's B and A
  MatmulProduct last;                            // operands of the latest use, for plans_tune
  MatmulPlan *next;
};
struct MatmulPlans { MatmulPlan *first, **end; };

static void matmul_open(Ctx *c) {
  MatmulPlans *plans = (MatmulPlans *)calloc(1, sizeof *plans);
  CHECK(plans, "no memory for %zu bytes of matmul plans", sizeof *plans);
  plans->end = &plans->first;
  DEVICE(c)->plans = plans;
  BLAS(cublasLtCreate(&DEVICE(c)->blas));
}
static void matmul_plan_unready(MatmulPlan *plan) {
  if (plan->ready && plan->r.way != MATMUL_OWN) {
    BLAS(cublasLtMatmulDescDestroy(plan->desc));
    BLAS(cublasLtMatrixLayoutDestroy(plan->a));
    BLAS(cublasLtMatrixLayoutDestroy(plan->b));
    BLAS(cublasLtMatrixLayoutDestroy(plan->out));
  }
  plan->ready = false;
}
static void matmul_close(Ctx *c) {
  MatmulPlans *plans = DEVICE(c)->plans;
  for (MatmulPlan *plan = plans->first, *next; plan; plan = next) {
    next = plan->next;
    matmul_plan_unready(plan);
    free(plan);
  }
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

// The workspace that cuBLAS's manual recommends (cublasSetWorkspace): 32 MiB on Hopper and Blackwell data-centre GPUs,
// 12 MiB on other Blackwell GPUs, 4 MiB elsewhere. It depends on the GPU model alone, because the plans made with it
// must.
static size_t matmul_library_workspace_bytes(const Ctx *c) {
  const int major = DEVICE(c)->major;
  return (size_t)(major == 9 || major == 10 || major == 11 ? 32 : major >= 12 ? 12 : 4) << 20;
}
static cudaDataType_t matmul_cuda_type(Dtype t) {
  return t == F32 ? CUDA_R_32F : t == BF16 ? CUDA_R_16BF : t == F8 ? CUDA_R_8F_E4M3 : CUDA_R_16F;
}
#define MATMUL_SET(plan, attribute, type, value) \
  do { type v_ = (value); BLAS(cublasLtMatmulDescSetAttribute((plan)->desc, attribute, &v_, sizeof v_)); } while (0)

// The descriptor holds the pointers of the epilogue and of the scales. The heuristic looks at the alignment of the
// epilogue's pointer; the GEMM uses all of them.
static void matmul_point(MatmulPlan *plan, const MatmulProduct *p) {
  if (p->bias.data) MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, const void *, p->bias.data);
  if (plan->r.way == MATMUL_EPILOGUE && p->pre_gelu.data)
    MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, const void *, p->pre_gelu.data);
  if (p->a.dtype != F8) return;
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, const void *, p->b_scale.data);
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, const void *, p->a_scale.data);
}
// Makes the descriptors of plan->r.way. Fast accumulation of fp8 GEMMs stays off (the default): partial sums of the
// tensor cores, which keep fewer bits than fp32, are then added in fp32 every few k.
static void matmul_describe(MatmulPlan *plan, const MatmulProduct *p) {
  const MatmulKey *k = &plan->r.key;
  const bool grad = plan->r.way == MATMUL_EPILOGUE && p->pre_gelu.data;
  const cudaDataType_t type = matmul_cuda_type(p->a.dtype), out = matmul_cuda_type(p->out.dtype);
  BLAS(cublasLtMatmulDescCreate(&plan->desc, k->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_TRANSA, cublasOperation_t, p->b_rows ? CUBLAS_OP_T : CUBLAS_OP_N);
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_TRANSB, cublasOperation_t, p->a_rows ? CUBLAS_OP_N : CUBLAS_OP_T);
  const cublasLtEpilogue_t epilogue =
      grad ? CUBLASLT_EPILOGUE_DGELU : p->bias.data ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, cublasLtEpilogue_t, epilogue);
  if (grad) MATMUL_SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t, p->J);
  matmul_point(plan, p);
  const uint64_t I = (uint64_t)p->I, J = (uint64_t)p->J, S = (uint64_t)p->S;
  BLAS(cublasLtMatrixLayoutCreate(&plan->b, type, p->b_rows ? S : J, p->b_rows ? J : S, p->b_rows ? p->S : p->J));
  BLAS(cublasLtMatrixLayoutCreate(&plan->a, type, p->a_rows ? S : I, p->a_rows ? I : S, p->a_rows ? p->S : p->I));
  BLAS(cublasLtMatrixLayoutCreate(&plan->out, out, J, I, p->J));
  plan->ready = true;
}
// The heuristic's algorithms for a described plan, best first; returns their number.
enum { MATMUL_CANDIDATES = 8 };
static int matmul_candidates(Ctx *c, MatmulPlan *plan, cublasLtMatmulHeuristicResult_t *found, int wanted) {
  const MatmulKey *k = &plan->r.key;
  cublasLtMatmulPreference_t pref;
  BLAS(cublasLtMatmulPreferenceCreate(&pref));
  uint64_t workspace = matmul_library_workspace_bytes(c);
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
// be aligned to 16 bytes.
static bool matmul_on_16(Tensor t) { return (uintptr_t)t.data % 16 == 0; }
static bool matmul_may(const MatmulProduct *p, MatmulWay way) {
  const bool same = p->out.dtype == p->a.dtype, grad = p->pre_gelu.data != NULL;
  if (p->a.dtype == F8) return way == MATMUL_EPILOGUE;             // matmul_forward_fp8 needs nothing else
  if (way == MATMUL_OWN) return true;
  if (!(same || p->out.dtype == F32) || (!same && (p->bias.data || grad))) return false;
  if (!matmul_on_16(p->bias)) return false;
  if (way == MATMUL_AFTER) return grad;
  return !grad || (p->a.dtype != F32 && p->J % 8 == 0 && matmul_on_16(p->pre_gelu));
}
static bool matmul_try(Ctx *c, MatmulPlan *plan, const MatmulProduct *p, MatmulWay way) {
  if (!matmul_may(p, way)) return false;
  plan->r.way = way;
  if (way == MATMUL_OWN) return plan->ready = true;
  matmul_describe(plan, p);
  cublasLtMatmulHeuristicResult_t found = {};
  if (matmul_candidates(c, plan, &found, 1) == 0) { matmul_plan_unready(plan); return false; }
  plan->r.algo = found.algo;
  plan->r.workspace_bytes = found.workspaceSize;
  return true;
}
// Makes a plan from an imported choice. It dies if the algorithm cannot run here, because ranks would then differ.
static void matmul_adopt(Ctx *c, MatmulPlan *plan, const MatmulProduct *p) {
  CHECK(matmul_may(p, (MatmulWay)plan->r.way), "an imported matmul plan (\"%s\") does not fit its GEMM",
        matmul_way_names[plan->r.way]);
  if (plan->r.way == MATMUL_OWN) { plan->ready = true; return; }
  matmul_describe(plan, p);
  cublasLtMatmulHeuristicResult_t r = {};
  const cublasStatus_t status = cublaslt()->cublasLtMatmulAlgoCheck(DEVICE(c)->blas, plan->desc, plan->b, plan->a,
                                                                    plan->out, plan->out, &plan->r.algo, &r);
  CHECK(status == CUBLAS_STATUS_SUCCESS && r.workspaceSize <= matmul_library_workspace_bytes(c),
        "the algorithm chosen elsewhere for %lldx%lldx%lld cannot run here (%s): train without the imported choice",
        (long long)p->I, (long long)p->J, (long long)p->S, cublaslt()->cublasLtGetStatusString(status));
  plan->r.workspace_bytes = r.workspaceSize;
}
static MatmulPlan *matmul_plan_of(MatmulPlans *plans, const MatmulKey *key) {
  for (MatmulPlan *plan = plans->first; plan; plan = plan->next)
    if (!memcmp(&plan->r.key, key, sizeof *key)) return plan;
  return NULL;
}
static MatmulPlan *matmul_plan_new(MatmulPlans *plans, const MatmulKey *key) {
  MatmulPlan *plan = (MatmulPlan *)calloc(1, sizeof *plan);
  CHECK(plan, "no memory for %zu bytes of a matmul plan", sizeof *plan);
  plan->r.key = *key;
  *plans->end = plan;
  plans->end = &plan->next;
  return plan;
}

static void matmul_library(Ctx *c, MatmulPlan *plan, const MatmulProduct *p, const cublasLtMatmulAlgo_t *algo,
                           size_t workspace_bytes) {
  const bool scaled = p->addend.data != NULL;
  const float alpha = scaled ? p->scale : 1.0f, beta = scaled ? p->add_scale : p->add ? 1.0f : 0.0f;
  void *const out = p->out.data, *const addend = scaled ? p->addend.data : out;
  CHECK(workspace_bytes <= c->workspace_bytes, "a GEMM needs %zu bytes of workspace, has %zu",
        workspace_bytes, c->workspace_bytes);
  matmul_point(plan, p);
  BLAS(cublasLtMatmul(DEVICE(c)->blas, plan->desc, &alpha, p->b.data, plan->b, p->a.data, plan->a, &beta, addend,
                      plan->out, out, plan->out, algo, workspace_bytes ? c->workspace : NULL, workspace_bytes,
                      STREAM(c)));
}
// The last way of every GEMM is MATMUL_OWN, except with fp8.
static void matmul_choose(Ctx *c, MatmulPlan *plan, const MatmulProduct *p) {
  for (int way = MATMUL_EPILOGUE; way <= MATMUL_OWN; way++) if (matmul_try(c, plan, p, (MatmulWay)way)) return;
  die_missing("cuBLASLt offers no fp8 GEMM of %lldx%lldx%lld on this GPU, compute capability %d.%d: 8.9 or later "
              "is needed; train without fp8 GEMMs", (long long)p->I, (long long)p->J, (long long)p->S,
              DEVICE(c)->major, DEVICE(c)->minor);
}
// The plan of a GEMM, ready to run.
static MatmulPlan *matmul_plan(Ctx *c, const MatmulProduct *p) {
  MatmulPlans *plans = DEVICE(c)->plans;
  const MatmulKey key = matmul_key(c, p);
  MatmulPlan *plan = matmul_plan_of(plans, &key);
  if (!plan) {
    plan = matmul_plan_new(plans, &key);
    matmul_choose(c, plan, p);
  } else if (!plan->ready) {
    matmul_adopt(c, plan, p);
  }
  plan->last = *p;
  return plan;
}

// ================================================================================================ 3 choosing
// Median time of one algorithm on the operands of the latest use. Four GEMMs per sample, so that an event's own cost is
// small beside them.
static float matmul_time(Ctx *c, MatmulPlan *plan, const cublasLtMatmulHeuristicResult_t *f, cudaEvent_t from,
                         cudaEvent_t to) {
  enum { SAMPLES = 5, PRODUCTS = 4 };
  float ms[SAMPLES];
  matmul_library(c, plan, &plan->last, &f->algo, f->workspaceSize);
  for (int i = 0; i < SAMPLES; i++) {
    CUDA(cudaEventRecord(from, STREAM(c)));
    for (int k = 0; k < PRODUCTS; k++) matmul_library(c, plan, &plan->last, &f->algo, f->workspaceSize);
    CUDA(cudaEventRecord(to, STREAM(c)));
    CUDA(cudaEventSynchronize(to));
    CUDA(cudaEventElapsedTime(&ms[i], from, to));
    for (int k = i; k > 0 && ms[k] < ms[k - 1]; k--) { const float t = ms[k]; ms[k] = ms[k - 1]; ms[k - 1] = t; }
  }
  return ms[SAMPLES / 2];
}
// Overwrites the memory of the plans' latest operands, which the caller no longer needs. A gain below 1 % is noise: the
// heuristic's first choice stays.
static void plans_tune_impl(Ctx *c) {
  cudaEvent_t from, to;
  CUDA(cudaEventCreate(&from));
  CUDA(cudaEventCreate(&to));
  for (MatmulPlan *plan = DEVICE(c)->plans->first; plan; plan = plan->next) {
    if (!plan->ready || plan->r.way == MATMUL_OWN) continue;
    cublasLtMatmulHeuristicResult_t found[MATMUL_CANDIDATES] = {};
    matmul_point(plan, &plan->last);
    const int n = matmul_candidates(c, plan, found, MATMUL_CANDIDATES);
    int best = 0;
    float first_ms = 0, best_ms = 0;
    for (int i = 0; i < n; i++) {
      const float ms = matmul_time(c, plan, &found[i], from, to);
      if (i == 0) first_ms = best_ms = ms;
      if (ms < best_ms && ms < 0.99f * first_ms) { best = i; best_ms = ms; }
    }
    if (n == 0) continue;
    plan->r.algo = found[best].algo;
    plan->r.workspace_bytes = found[best].workspaceSize;
  }
  CUDA(cudaEventDestroy(from));
  CUDA(cudaEventDestroy(to));
}

// An algorithm is an opaque byte string, valid only for the same cuBLASLt on the same GPU model. magic: "matmul" and
// the version of MatmulRecord's layout.
struct MatmulExport { char magic[8]; uint64_t library; int32_t major, minor, multiprocessors, count; };
static MatmulExport matmul_export_head(Ctx *c, int count) {
  const CudaDevice *d = DEVICE(c);
  MatmulExport h = {"matmul2", cublaslt()->cublasLtGetVersion(), d->major, d->minor, d->multiprocessors, count};
  return h;
}
// to == NULL: only the number of bytes.
static void plans_export_impl(Ctx *c, void *to, size_t *bytes) {
  int count = 0;
  for (MatmulPlan *plan = DEVICE(c)->plans->first; plan; plan = plan->next) count++;
  const size_t need = sizeof(MatmulExport) + (size_t)count * sizeof(MatmulRecord);
  if (to) {
    CHECK(*bytes >= need, "matmul plans take %zu bytes, given %zu", need, *bytes);
    const MatmulExport head = matmul_export_head(c, count);
    char *at = (char *)to;
    memcpy(at, &head, sizeof head);
    at += sizeof head;
    for (MatmulPlan *plan = DEVICE(c)->plans->first; plan; plan = plan->next, at += sizeof plan->r)
      memcpy(at, &plan->r, sizeof plan->r);
  }
  *bytes = need;
}
// Choices of another layout, library version or GPU model are ignored, with a line that says so.
static void plans_import_impl(Ctx *c, const void *from, size_t bytes) {
  MatmulExport head = {};
  CHECK(bytes >= sizeof head, "matmul plans of %zu bytes are too short", bytes);
  memcpy(&head, from, sizeof head);
  const MatmulExport mine = matmul_export_head(c, head.count);
  if (!memcmp(head.magic, mine.magic, strlen("matmul")) && memcmp(head.magic, mine.magic, sizeof head.magic)) {
    warn("matmul algorithms chosen by another version of this program are not used: results differ from that run in "
         "rounding");
    return;
  }
  CHECK(!memcmp(head.magic, mine.magic, sizeof head.magic) && head.count >= 0 &&
            bytes == sizeof head + (size_t)head.count * sizeof(MatmulRecord),
        "matmul plans of %zu bytes are damaged", bytes);
  if (memcmp(&head, &mine, sizeof head)) {
    warn("matmul algorithms chosen with cuBLASLt %llu on sm_%d%d x %d are not used with %llu on sm_%d%d x %d: results "
         "differ from that run in rounding", (unsigned long long)head.library, head.major, head.minor,
         head.multiprocessors, (unsigned long long)mine.library, mine.major, mine.minor, mine.multiprocessors);
    return;
  }
  for (int i = 0; i < head.count; i++) {
    MatmulRecord r;
    memcpy(&r, (const char *)from + sizeof head + (size_t)i * sizeof r, sizeof r);
    CHECK(r.way <= MATMUL_OWN, "matmul plan %d is damaged", i);
    MatmulPlan *plan = matmul_plan_of(DEVICE(c)->plans, &r.key);
    if (!plan) plan = matmul_plan_new(DEVICE(c)->plans, &r.key);
    matmul_plan_unready(plan);                   // made and checked again at its next use
    plan->r = r;
  }
}

static int matmul_config(const MatmulPlan *plan, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  uint32_t x = 0;
  size_t written = 0;
  const cublasStatus_t s =
      cublaslt()->cublasLtMatmulAlgoConfigGetAttribute(&plan->r.algo, attribute, &x, sizeof x, &written);
  return s == CUBLAS_STATUS_SUCCESS ? (int)x : -1;
}
// One line per plan, in order of first use; cut at the end of a line if `bytes` is too small.
static void plans_text_impl(Ctx *c, char *to, size_t bytes) {
  static const char *const names[] = {"forward", "backward_input", "backward_weight"};
  size_t used = 0;
  if (bytes) *to = 0;
  for (MatmulPlan *plan = DEVICE(c)->plans->first; plan; plan = plan->next) {
    const MatmulKey *k = &plan->r.key;
    char line[320], algo[128] = "";
    if (plan->r.way != MATMUL_OWN)
      snprintf(algo, sizeof algo, ": algorithm %d tile %d stages %d split-k %d reduction %d, workspace %llu",
               matmul_config(plan, CUBLASLT_ALGO_CONFIG_ID), matmul_config(plan, CUBLASLT_ALGO_CONFIG_TILE_ID),
               matmul_config(plan, CUBLASLT_ALGO_CONFIG_STAGES_ID),
               matmul_config(plan, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
               matmul_config(plan, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME), (unsigned long long)plan->r.workspace_bytes);
    const int n = snprintf(
        line, sizeof line, "matmul_%s %lldx%lldx%lld %s%s to %s%s%s%s%s%s%s\n", names[k->op % 3], (long long)k->I,
        (long long)k->J, (long long)k->S, dtype_name((Dtype)k->dtype), k->tf32 ? " (tf32)" : "",
        dtype_name((Dtype)k->out_dtype), k->bias ? ", bias" : "", k->add ? ", added" : "",
        k->pre_gelu ? ", gelu' " : plan->r.way == MATMUL_OWN ? ", " : "",
        k->pre_gelu || plan->r.way == MATMUL_OWN ? matmul_way_names[plan->r.way] : "", algo,
        plan->ready ? "" : " (not used yet)");
    if (n < 0 || used + (size_t)n >= bytes) return;
    memcpy(to + used, line, (size_t)n + 1);
    used += (size_t)n;
  }
}
