// not_finite.h: --on_nan: a step whose loss or gradient is not finite.
// step_decide has left such a step out on every rank, so weights and moments are those before the step. The step is run
// again, bitwise identical, with a table of ops that checks every tensor (fsdp/finite.h). The first tensor that is not
// finite is named, with its microbatch and rank.
//
// "First" is in the order of the step's microbatches, whichever rank computes them, then of calls of ops. So the
// answer, except for the rank, is the same on any number of ranks.
#pragma once
#include "saver.h"

// What was found, the same on all ranks. rank: the rank that computed it, or, of a parameter or a sum, that holds the
// element. microbatch: its number in the step, -1: of no single one (a sum); of a parameter, the first microbatch whose
// loss is not finite. what: the tensor in words; op: the op that wrote or read it; place: pass and stage. element: the
// first of `count` that are not finite, of numel; value: its value.
struct NotFinite {
  int32_t kind, microbatch, rank, stage, param;  // param -1: none
  bool parameter;                                // it was in a parameter already before the step
  char what[192], op[40], place[48], host[64];
  int64_t element, numel, count;
  float value;
};
enum NotFiniteKind { FOUND_NOTHING, FOUND_IN_OP, FOUND_IN_SUM, FOUND_IN_LOSS };

struct NotFiniteSearch { Fsdp *f; NotFinite *x; int a; };       // a: this rank's microbatch that runs
// Called by the watching ops with the first tensor that is not finite: fills in s->x.
static void not_finite_tell(void *to, const Finite *found) {
  const NotFiniteSearch *s = (const NotFiniteSearch *)to;
  Fsdp *f = s->f;
  NotFinite *x = s->x;
  const uintptr_t at = (uintptr_t)found->t.data + (uintptr_t)found->element * dtype_bytes(found->t.dtype);
  const bool gradient = !found->read && !strncmp(found->name, "dw", 2);        // dweight, dwte, dwpe
  const bool bias = !found->read && !strcmp(found->name, "dbias");
  int64_t element = found->element, in_weight;
  x->kind = FOUND_IN_OP;
  x->microbatch = s->a * fsdp_world(f) + fsdp_rank(f);
  x->rank = fsdp_rank(f);
  x->stage = flight.stage;
  x->param = fsdp_param_at(f, at, gradient || bias, &element);
  x->numel = numel(found->t), x->count = found->count, x->value = found->value, x->element = element;
  snprintf(x->op, sizeof x->op, "%s", found->op);
  char stage[32];
  liveness_stage_text(stage, sizeof stage, flight.stage);
  snprintf(x->place, sizeof x->place, "%.15s%s", WORD_GET(&liveness_words.phase), stage);
  if (x->param >= 0) {
    const Param *q = fsdp_param(f, x->param);
    snprintf(x->what, sizeof x->what, "%s%s", gradient || bias ? "the gradient of " : "parameter ", q->name);
    x->numel = param_numel(q);
    x->parameter = !gradient && !bias;
    if (x->parameter) x->rank = fsdp_owner_of(f, x->param, element);
    return;
  }
  const int with = found->weight ? fsdp_param_at(f, (uintptr_t)found->weight, false, &in_weight) : -1;
  snprintf(x->what, sizeof x->what, "%.20s of %.40s%s%.100s", found->name, found->op, with >= 0 ? " with " : "",
           with >= 0 ? fsdp_param(f, with)->name : "");
}
// Fills in x with the first parameter that has a reduced gradient that is not finite in this rank's shards.
static void not_finite_sums(Fsdp *f, NotFinite *x) {
  enum { PIECE = 4096 };
  float piece[PIECE];
  for (int p = 0; p < fsdp_params(f) && !x->kind; p++) {
    const Param *q = fsdp_param(f, p);
    Span run;
    if (q->frozen || !fsdp_span(f, p, fsdp_shard(f), &run)) continue;
    for (int64_t i = 0; i < run.numel; i++) {
      if (i % PIECE == 0) fsdp_get_own(f, STATE_GRAD, p, i, piece, min64(PIECE, run.numel - i));
      if (isfinite(piece[i % PIECE])) continue;
      if (!x->count++) x->element = run.in_range + i, x->value = piece[i % PIECE];
    }
    if (!x->count) continue;
    x->kind = FOUND_IN_SUM, x->param = p, x->rank = fsdp_rank(f), x->microbatch = -1, x->stage = q->stage;
    x->numel = param_numel(q);
    snprintf(x->what, sizeof x->what, "the sum of the gradients of %s", q->name);
  }
}

// ---- the step once more ---------------------------------------------------------------------------------------------
// Makes s the state of the step, on host and device.
static void not_finite_state(RunView *run, const StepState *s) {
  *run->state = *s;                              // pinned: the device copies from there
  run->ctx->ops->copy(run->ctx, run->state_on_device, run->state, sizeof *s);
  run->ctx->ops->sync(run->ctx);
}
// Whether a comes before b: an op before a sum; ops by microbatch, sums by parameter and element.
static bool not_finite_before(const NotFinite *a, const NotFinite *b) {
  if (!a->kind || !b->kind) return a->kind != 0;
  if (a->kind != b->kind) return a->kind < b->kind;
  if (a->kind == FOUND_IN_SUM) return a->param != b->param ? a->param < b->param : a->element < b->element;
  return a->microbatch < b->microbatch;
}
// Runs the step again and returns the first tensor that is not finite, of all ranks. Weights, moments, state and
// counters of traffic are afterwards as before. All ranks call it.
static NotFinite not_finite_find(const NotFiniteStep *step) {
  RunView *run = step->run;
  Fsdp *f = run->fsdp;
  Ctx *c = run->ctx;
  const int A = (int)run->opt->grad_accum, N = fsdp_world(f);
  const StepState after = *run->state;
  const Traffic traffic = fsdp_traffic(f);
  StepState again = after;
  NotFinite mine = {};
  NotFiniteSearch search = {f, &mine, 0};
  Finite finite = {};
  again.loss_scale = step->before.loss_scale;    // with which the step was computed
  not_finite_state(run, &again);
  finite.tell = not_finite_tell, finite.to = &search, finite.scratch = step->scratch;
  step->begin(step->trainer);
  finite_begin(c, &finite);
  for (int a = 0; a < A; a++) {
    search.a = a;
    step->microbatch(step->trainer, a);
  }
  finite_end(c);
  liveness_microbatch(MICROBATCH_NONE);
  liveness_phase("looking for what is not finite");
  fsdp_reduce_wait(f);
  fsdp_returns_wait(f);
  fsdp_sync(f);
  if (!mine.kind) not_finite_sums(f, &mine);
  fsdp_step_end(f);
  fsdp_sync(f);
  fsdp_set_traffic(f, traffic);
  not_finite_state(run, &after);
  NotFinite *all = (NotFinite *)calloc((size_t)N, sizeof(NotFinite)), first = {};
  gethostname(mine.host, sizeof mine.host - 1);
  MPI_Allgather(&mine, (int)sizeof mine, MPI_BYTE, all, (int)sizeof mine, MPI_BYTE, fsdp_comm(f));
  for (int r = 0; r < N; r++) if (not_finite_before(&all[r], &first)) first = all[r];
  int m = 0;
  while (m < A * N && isfinite(step->losses[m])) m++;
  if (first.parameter && m < A * N) first.microbatch = m;
  if (!first.kind && m < A * N) {                // the step is finite this time: a fault of memory or device
    first.kind = FOUND_IN_LOSS, first.microbatch = m, first.rank = m % N;
    snprintf(first.what, sizeof first.what, "the loss");
  }
  if (first.kind && first.rank >= 0) memcpy(first.host, all[first.rank].host, sizeof first.host);
  free(all);
  return first;
}

// ---- what is said of it ---------------------------------------------------------------------------------------------
// One line: "out of matmul_forward with h.1.mlp.c_fc.weight, forward of block 1, microbatch 3, rank 1 on host: ...".
static void not_finite_text(const NotFinite *x, char *to, size_t bytes) {
  char where[160] = "";
  if (x->place[0]) text_add(where, sizeof where, ", %s", x->place);
  if (x->kind != FOUND_IN_SUM && x->kind) text_add(where, sizeof where, ", microbatch %d", x->microbatch);
  text_add(where, sizeof where, ", rank %d on %.63s", x->rank, x->host);
  if (x->kind == FOUND_NOTHING)
    snprintf(to, bytes, "nothing: the step, run again, is finite; the memory or a device of some rank failed");
  else if (x->kind == FOUND_IN_LOSS)
    snprintf(to, bytes, "%s%s; the step, run again, is finite: the memory or the device of this rank failed", x->what,
             where);
  else
    snprintf(to, bytes, "%s%s: element %lld of %lld is %s%s", x->what, where, (long long)x->element,
             (long long)x->numel, isnan(x->value) ? "nan" : x->value > 0 ? "inf" : "-inf",
             x->count > 1 ? ", and others" : "");
}
// The fields of a JSON object.
static void not_finite_json(FILE *f, const NotFinite *x) {
  static const char *const kinds[] = {"nothing", "op", "sum", "loss"};
  fprintf(f, "\"found\":\"%s\",\"what\":", kinds[x->kind]);
  json_text(f, x->what);
  json_words(f, "op", x->op);
  json_words(f, "place", x->place);
  json_words(f, "host", x->host);
  fprintf(f, ",\"microbatch\":%d,\"rank\":%d,\"stage\":%d,\"element\":%lld,\"numel\":%lld,\"count\":%lld,"
          "\"value\":\"%s\"", x->microbatch, x->rank, x->stage, (long long)x->element, (long long)x->numel,
          (long long)x->count, isnan(x->value) ? "nan" : x->value > 0 ? "inf" : x->value < 0 ? "-inf" : "");
}
static void not_finite_log(Log *log, RunView *run, const NotFinite *x, bool left_out) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  not_finite_json(f, x);
  fclose(f);
  log_not_finite(log, run, left_out, text);
  free(text);
}

// ---- what is needed to see it again ---------------------------------------------------------------------------------
// Writes OUT/not_finite.json on rank 0: what was found, and the tokens of its microbatch if it is of one. `inputs`,
// `targets`: (B,T).
static bool not_finite_write(RunView *run, const NotFinite *x, const char *checkpoint, const int32_t *inputs,
                             const int32_t *targets) {
  const int B = (int)run->opt->batch_size, T = (int)run->model.T;
  char path[OPTION_TEXT_BYTES + 32], *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  fprintf(f, "{\"version\":\"%s\",\"build\":\"%s\",\"step\":%lld,\"ranks\":%d,\"loss_scale\":%.9g,\"checkpoint\":",
          PROGRAM_VERSION, build_id, (long long)run->step + 1, fsdp_world(run->fsdp), run->state->loss_scale);
  json_text(f, checkpoint);
  fprintf(f, ",");
  not_finite_json(f, x);
  const int32_t *const ids[] = {inputs, targets};
  for (int k = 0; k < 2 && x->microbatch >= 0; k++) {            // else no one microbatch has it
    fprintf(f, ",\n\"%s\":[", k ? "targets" : "tokens");
    for (int b = 0; b < B; b++)
      for (int i = 0; i < T; i++)
        fprintf(f, "%s%d%s", i ? "," : b ? ",\n[" : "\n[", ids[k][b * T + i], i == T - 1 ? "]" : "");
    fprintf(f, "]");
  }
  fprintf(f, "}\n");
  fclose(f);
  snprintf(path, sizeof path, "%s/not_finite.json", run->opt->out);
  const bool ok = file_put(path, run->opt->out, text, (int64_t)bytes);
  if (!ok) say_error("warning: %s cannot be written: %s\n", path, strerror(errno));
  free(text);
  return ok;
}
// Goes back to the state before the step, saves a checkpoint of it, and writes OUT/not_finite.json. All ranks call it.
static void not_finite_dump(const NotFiniteStep *step, Log *log, Saver *saver, const NotFinite *x) {
  RunView *run = step->run;
  const int N = fsdp_world(run->fsdp), m = x->microbatch >= 0 ? x->microbatch : 0, root = m % N;
  const int64_t numel_ = run->opt->batch_size * run->model.T;
  const size_t bytes = sizeof(int32_t) * (size_t)numel_;
  int32_t *ids = (int32_t *)calloc(2, bytes);
  if (fsdp_rank(run->fsdp) == root) {
    memcpy(ids, step->inputs + (m / N) * numel_, bytes);
    memcpy(ids + numel_, step->targets + (m / N) * numel_, bytes);
  }
  MPI_Bcast(ids, fsdp_mpi_count(2 * numel_), MPI_INT32_T, root, fsdp_comm(run->fsdp));
  --run->step;
  run->loss_scale = step->before.loss_scale;
  not_finite_state(run, &step->before);
  const bool saved = saver_save_now(saver, log);
  char checkpoint[MAP_PATH_BYTES] = "";
  if (saved) path_join(checkpoint, sizeof checkpoint, saver->directory, saver->name);
  if (!fsdp_rank(run->fsdp) && not_finite_write(run, x, checkpoint, ids, ids + numel_) && saved)
    say_error("  %s is the state before the step, %s/not_finite.json says what was found%s; --resume auto runs it "
              "again\n", checkpoint, run->opt->out, x->microbatch >= 0 ? " and has the tokens" : "");
  ++run->step;
  free(ids);
}
