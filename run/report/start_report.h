// start_report.h: the startup log: a dozen lines about model, data, devices and sharding that a newcomer understands,
// warnings, and with --verbose every figure. The first record of metrics.jsonl has the same figures, exact.
#pragma once
#include "base/newfile/newfile.h"
#include "progress.h"
#include "view.h"
#include "kernels/preference.cuh"

// ---- words ----------------------------------------------------------------------------------------------------------
// The text that `write` prints about the run, malloc'ed.
static char *words_of(const RunView *run, void (*write)(FILE *to, const RunView *run)) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  write(f, run);
  fclose(f);
  return text;
}
const char *count_words(int64_t n) {
  static char text[4][24];
  static int turn;
  static const struct {
    double unit;
    const char *name;
  } units[] = {{1e12, " T"}, {1e9, " B"}, {1e6, " M"}, {1e3, " K"}};
  turn = (turn + 1) % 4;
  snprintf(text[turn], sizeof text[0], "%lld", (long long)n);
  for (const auto &u : units) {
    if (n < 10000 || (double)n < u.unit * 0.9995) continue;
    const double x = (double)n / u.unit;
    snprintf(text[turn], sizeof text[0], "%.*f%s", x < 9.995 ? 2 : x < 99.95 ? 1 : 0, x, u.name);
    break;
  }
  return text[turn];
}
static const char *transport_words(const RunView *run) {
  const CommKind comm = fsdp_config(run->fsdp)->comm;
  if (comm == COMM_SELF) return "stay here";
  if (fsdp_along_hosts(run->fsdp))
    return comm == COMM_NCCL ? "by NCCL, an inter-node reduction chain" : "by an inter-node reduction chain";
  if (comm == COMM_NCCL) return "by NCCL";
  if (fsdp_needs_messages(run->fsdp)) return "by messages";
  return fsdp_hosts(run->fsdp) > 1 ? "by shared memory, sums of replicas by messages" : "by shared memory";
}
// In words: how a CPU multiplies matrices. Attention does the same, except in fp32, where it always uses fused
// multiply-adds.
static const char *cpu_products(const RunView *run) {
  const Ops *ops = run->ctx->ops;
  const Dtype dtype = fsdp_config(run->fsdp)->compute_dtype;
  const bool dots = ops == &ops_neon_bf16, pairs = ops == &ops_avx512_bf16 || dots;
  const bool tiles = !pairs && ops != &ops_avx2 && ops != &ops_avx512 && ops != &ops_neon;
  if (dtype == F32) return run->ctx->fast_fp32 ? "fp32 as six bf16 tile multiplies" : "fp32 fused multiply-adds";
  if (dtype == BF16 && tiles) return "bf16 tile multiplies";
  if (dtype == BF16 && dots) return "bf16 pairs (BFDOT); attention converted to fp32";
  return dtype == BF16 && pairs ? "bf16 pairs" : "converted to fp32, fused multiply-adds";
}
// In words: how long gathered parameters stay whole.
static void whole_words(FILE *to, const RunView *run) {
  const FsdpConfig *c = fsdp_config(run->fsdp);
  bool in_blocks = false;
  for (int u = 0; u < fsdp_units(run->fsdp); u++) in_blocks = in_blocks || fsdp_unit_figures(run->fsdp, u).stage;
  if (fsdp_in_place(run->fsdp))
    fprintf(to, c->mesh.shards > 1 ? "shards read zero-copy" : "parameters are whole on each rank");
  else if (!in_blocks || c->gather_slots == c->blocks) fprintf(to, "gathered parameters stay whole for the step");
  else fprintf(to, "%d of %d blocks whole at once", c->gather_slots, c->blocks);
  if (c->mesh.secondary && !fsdp_in_place(run->fsdp))
    fprintf(to, ", the others cut over groups of %d ranks after their forward", c->mesh.secondary);
}
// One line: what is sharded over how many ranks, and how long gathered parameters stay whole.
static void sharding_words(FILE *to, const RunView *run) {
  const FsdpConfig *c = fsdp_config(run->fsdp);
  const MeshShape m = c->mesh;
  fprintf(to, "%s, %d replica%s of %d shard%s, cut %s; ", strategy_name(run->opt), m.replicas,
          m.replicas > 1 ? "s" : "", m.shards, m.shards > 1 ? "s" : "",
          c->layout == SHARD_DIM0 ? "by rows of each parameter" : "flat");
  whole_words(to, run);
  if (run_trains(run->opt) && run->opt->grad_accum > 1)
    fprintf(to, "; gradients reduced %s", c->local ? "once per step" : "every microbatch");
  if (fsdp_config(run->fsdp)->offload != OFFLOAD_NONE)
    fprintf(to, "; %s on the host", c->offload == OFFLOAD_PARAMS ? "optimizer and parameters" : "optimizer");
}

// ---- units ----------------------------------------------------------------------------------------------------------
// A unit's name, split: "h.12.attn" has kind ".attn" and block 12; a unit outside the blocks has block -1.
struct UnitName { const char *kind; int block; };
static UnitName unit_name(const char *name) {
  char *end;
  if (strncmp(name, "h.", 2)) return UnitName{name, -1};
  const long block = strtol(name + 2, &end, 10);
  return UnitName{end, (int)block};
}
static bool units_are_alike(const UnitFigures *x, const UnitFigures *y) {
  return x->params == y->params && x->numel == y->numel && x->trained == y->trained &&
         x->whole_bytes == y->whole_bytes && x->rank_bytes == y->rank_bytes;
}
// A row of the table of FSDP units. x: figures of a unit; last: name of the last of `alike` equal units of consecutive
// blocks, which share the row. unit_rows returns the rows, malloc'ed.
struct UnitRow { UnitFigures x; const char *last; int alike; };
static UnitRow *unit_rows(const Fsdp *f, int *rows) {
  bool *told = (bool *)calloc((size_t)fsdp_units(f), sizeof(bool));
  UnitRow *row = (UnitRow *)calloc((size_t)fsdp_units(f), sizeof(UnitRow));
  *rows = 0;
  for (int u = 0; u < fsdp_units(f); u++) {
    if (told[u]) continue;
    const UnitFigures x = fsdp_unit_figures(f, u);
    const UnitName first = unit_name(x.name);
    const char *last = x.name;
    int block = first.block;
    for (int v = u + 1; v < fsdp_units(f) && first.block >= 0; v++) {
      const UnitFigures y = fsdp_unit_figures(f, v);
      const UnitName other = unit_name(y.name);
      if (strcmp(other.kind, first.kind) || other.block < 0) continue;
      if (other.block != block + 1 || !units_are_alike(&x, &y)) break;
      told[v] = true;
      last = y.name;
      block++;
    }
    row[(*rows)++] = UnitRow{x, last, 1 + block - first.block};
  }
  free(told);
  return row;
}
static void units_words(FILE *to, const RunView *run) {
  const Fsdp *f = run->fsdp;
  int rows;
  UnitRow *row = unit_rows(f, &rows);
  fprintf(to, "units: %d, each moved by one collective\n", fsdp_units(f));
  fprintf(to, "  %-34s %8s %12s %12s %14s %14s\n", "", "tensors", "parameters", "trained", "bytes, whole",
          "bytes, a rank");
  for (int i = 0; i < rows; i++) {
    const UnitRow *r = &row[i];
    char name[160];
    snprintf(name, sizeof name, r->alike > 1 ? "%s .. %s" : "%s", r->x.name, r->last);
    fprintf(to, "  %-34s %8lld %12lld %12lld %14zu %14zu%s\n", name, (long long)r->x.params, (long long)r->x.numel,
            (long long)r->x.trained, r->x.whole_bytes, r->x.rank_bytes, r->alike > 1 ? "  each" : "");
  }
  free(row);
}

// ---- the first record -----------------------------------------------------------------------------------------------
void log_config(FILE *f, const void *options) {
  const Options *o = (const Options *)options;
  for (const OptionSpec &s : option_specs) {
    char value[OPTION_TEXT_BYTES];
    option_print(value, sizeof value, o, &s);
    fprintf(f, "%s\"%s\":", &s == option_specs ? "" : ",", s.name);
    const bool long_int = s.type == OPTION_INT && fabs(strtod(value, NULL)) > 0x1p53;          // JSON has doubles
    if (s.type == OPTION_TEXT || s.type == OPTION_CHOICE || long_int) json_text(f, value);
    else fprintf(f, "%s", s.type != OPTION_FLAG ? value : !strcmp(value, "on") ? "true" : "false");
  }
}
void record_units(FILE *f, const RunView *run) {
  int rows;
  UnitRow *row = unit_rows(run->fsdp, &rows);
  for (int i = 0; i < rows; i++) {
    fprintf(f, "%s{\"first\":", i ? "," : "");
    json_text(f, row[i].x.name);
    json_words(f, "last", row[i].last);
    fprintf(f, ",\"alike\":%d,\"tensors\":%lld,\"parameters\":%lld,\"trained\":%lld,\"whole_bytes\":%zu,"
            "\"rank_bytes\":%zu}", row[i].alike, (long long)row[i].x.params, (long long)row[i].x.numel,
            (long long)row[i].x.trained, row[i].x.whole_bytes, row[i].x.rank_bytes);
  }
  free(row);
}
void json_traffic(FILE *f, Traffic w) {
  fprintf(f, ",\"step_traffic\":{\"gathers\":%lld,\"reductions\":%lld,\"small\":%lld,\"gather_bytes\":%lld,"
          "\"reduce_bytes\":%lld,\"returns\":%lld,\"replicate_bytes\":%lld,\"updates\":%lld,"
          "\"update_bytes\":%lld,\"small_bytes\":%lld}", (long long)w.gathers,
          (long long)w.reductions, (long long)w.small, (long long)w.gather_bytes, (long long)w.reduce_bytes,
          (long long)w.returns, (long long)w.replicate_bytes, (long long)w.updates, (long long)w.update_bytes,
          (long long)w.small_bytes);
}
// Which cores each rank took, in words.
static void record_cores(FILE *f, const RunView *run) {
  if (!run->cores) return;
  fprintf(f, ",\"cores\":[");
  for (int r = 0; r < run->cores->world; r++) {
    fprintf(f, "%s", r ? "," : "");
    json_text(f, run->cores->all[r].words);
  }
  fprintf(f, "]");
}
// Writes what makes the run repeatable and what it will take, as keys of an open JSON object: configuration, ranks,
// sharding, units, memory plan, traffic; everything that --verbose prints.
static void start_record(FILE *f, const RunView *run) {
  const MeshShape mesh = fsdp_config(run->fsdp)->mesh;
  char *sharding = words_of(run, sharding_words);
  fprintf(f, ",\"model\":{\"blocks\":%d,\"heads\":%d,\"width\":%lld,\"positions\":%lld,\"vocabulary\":%lld,"
          "\"vocabulary_in_memory\":%lld,\"flops_per_token\":%.17g}", run->model.L, run->model.H,
          (long long)run->model.C, (long long)run->model.P, (long long)run->model.V, (long long)run->model.Vp,
          run->model.flops_per_token);
  fprintf(f, ",\"config\":{");
  log_config(f, run->opt);
  fprintf(f, "},\"recompute_auto\":%s", run->opt->recompute_auto ? "true" : "false");
  if (!run->ctx->ops->nccl) fprintf(f, ",\"products\":\"%s; sums fp32\"", cpu_products(run));
  if (run->device.peak_flops > 0) json_number(f, "peak_flops", run->device.peak_flops);
  fprintf(f, ",\"gradients\":\"%s\",\"sharding\":", transport_words(run));
  json_text(f, sharding);
  fprintf(f, ",\"mesh\":{\"replicas\":%d,\"shards\":%d,\"kept\":%d},\"units\":%d,\"unit_table\":[", mesh.replicas,
          mesh.shards, mesh.secondary, fsdp_units(run->fsdp));
  record_units(f, run);
  fprintf(f, "],\"memory_plan_bytes\":{");
  for (int i = 0; i < MEM_COUNT; i++)
    fprintf(f, "%s\"%s\":%zu", i ? "," : "", memory_words[i], run->plan.planned_bytes[i]);
  fprintf(f, ",\"total\":%zu},\"memory_use_bytes\":{", memory_planned_total(&run->plan, MEMORY_ALL));
  for (int k = 0; k < MEMORY_USES; k++)
    fprintf(f, "%s\"%s\":%zu", k ? "," : "", memory_use_words[k], memory_planned_use(&run->plan, (MemoryUse)k));
  fprintf(f, "},\"shared_memory_bytes\":{\"placed\":%zu,\"alive_most\":%zu}", fsdp_placed(run->fsdp).placed,
          fsdp_placed(run->fsdp).alive);
  if (run_trains(run->opt)) json_traffic(f, fsdp_formula(run->fsdp, (int)run->opt->grad_accum));
  record_cores(f, run);
  free(sharding);
}

// ---- the start ------------------------------------------------------------------------------------------------------
enum { START_COLUMNS = 80, START_COLUMNS_LEAST = 40, START_INDENT = 12 };
void start_line(const char *name, const char *fmt, ...) {
  char *text = NULL, *lines = NULL;
  size_t bytes = 0;
  va_list ap;
  va_start(ap, fmt);
  const int n = vasprintf(&text, fmt, ap);
  va_end(ap);
  if (n < 0) return;
  FILE *f = open_memstream(&lines, &bytes);
  fprintf(f, "  %-*s", START_INDENT - 2, name);
  int column = START_INDENT, most = terminal.out ? terminal_columns() : START_COLUMNS;
  most = most > START_COLUMNS ? START_COLUMNS : most < START_COLUMNS_LEAST ? START_COLUMNS_LEAST : most;
  for (const char *word = text; *word;) {
    const size_t length = strcspn(word, " ");
    int columns = 0;                             // of characters, not of bytes
    for (size_t i = 0; i < length; i++) columns += (word[i] & 0xc0) != 0x80;
    if (column > START_INDENT && column + 1 + columns > most) {
      fprintf(f, "\n%*s", START_INDENT, "");
      column = START_INDENT;
    }
    column += fprintf(f, column > START_INDENT ? " " : "") + columns;
    fwrite(word, 1, length, f);
    word += length + (word[length] == ' ');
  }
  fclose(f);
  say("%s\n", lines);
  free(lines);
  free(text);
}
static void ranks_words(FILE *to, const RunView *run) {
  const Options *o = run->opt;
  const bool gpu = run->ctx->ops->nccl, one = option_dtype(o, OPT_param_dtype) == option_dtype(o, OPT_buffer_dtype);
  fprintf(to, "%d on %d host%s, ", fsdp_world(run->fsdp), fsdp_hosts(run->fsdp), fsdp_hosts(run->fsdp) > 1 ? "s" : "");
  if (!gpu) fprintf(to, "%d thread%s each, ", run->ctx->threads, run->ctx->threads > 1 ? "s" : "");
  fprintf(to, "%s, ", run->device.words);
  if (one) fprintf(to, "%s", option_word(o, OPT_param_dtype));
  else fprintf(to, "parameters %s, activations %s", option_word(o, OPT_param_dtype), option_word(o, OPT_buffer_dtype));
  if (o->logits_dtype == OPT_logits_dtype_bf16) fprintf(to, ", logits too");
  if (o->fp8 != FP8_OFF) fprintf(to, ", blocks %s in E4M3", o->fp8 != FP8_GATHER ? "multiplied" : "gathered");
}
// In words: how many SMs are reserved for NCCL (--sm_margin).
static void sm_margin_words(FILE *to, const RunView *run) {
  const Device *d = &run->device;
  const int blocks = nccl_blocks(d->sm_margin, d->sms);
  fprintf(to, "%d of %d SMs for matrix multiplies; %d for NCCL: %d blocks for gathers, %d for all else",
          d->sms - d->sm_margin, d->sms, d->sm_margin, blocks, blocks);
}
// Cores of the first and the last rank.
static void cores_short_words(FILE *to, const RunView *run) {
  const Cores *c = run->cores;
  const int last = c->world - 1;
  fprintf(to, "rank 0: %s", c->all[0].words);
  if (last) fprintf(to, "; %srank %d: %s", last > 1 ? "... " : "", last, c->all[last].words);
}
static void shards_words(FILE *to, const RunView *run) {
  const MeshShape m = fsdp_config(run->fsdp)->mesh;
  fputs(strategy_name(run->opt), to);
  if (fsdp_world(run->fsdp) == 1) fprintf(to, " over 1 rank: it holds everything");
  else {
    if (m.replicas > 1) fprintf(to, ", %d replicas of %d shard%s; ", m.replicas, m.shards, m.shards > 1 ? "s" : "");
    else fprintf(to, " over %d ranks; ", m.shards);
    whole_words(to, run);
    if (run_trains(run->opt)) fprintf(to, "; gradients %s", transport_words(run));
  }
  if (fsdp_config(run->fsdp)->offload != OFFLOAD_NONE)
    fprintf(to, "; %s on the host",
            fsdp_config(run->fsdp)->offload == OFFLOAD_PARAMS ? "optimizer and parameters" : "optimizer");
}
static void memory_short_words(FILE *to, const RunView *run) {
  const MemoryPlan *m = &run->plan;
  fprintf(to, "%.1f MiB per rank", (double)memory_planned_total(m, MEMORY_ALL) / 0x1p20);
  if (run->ctx->ops->nccl)
    fprintf(to, ", %.1f of them on the GPU", (double)memory_planned_total(m, MEMORY_ON_DEVICE) / 0x1p20);
  for (int k = 0, any = 0; k < MEMORY_USES; k++)
    if (const size_t bytes = memory_planned_use(m, (MemoryUse)k))
      fprintf(to, "%s%s %.1f", any++ ? ", " : ": ", memory_use_words[k], (double)bytes / 0x1p20);
}
// What a step of training moves, by the formula with which tests compare the counters.
static void moved_words(FILE *to, const RunView *run) {
  const Traffic w = fsdp_formula(run->fsdp, (int)run->opt->grad_accum);
  const int64_t bytes = w.gather_bytes + w.reduce_bytes + w.replicate_bytes + w.update_bytes + w.small_bytes;
  fprintf(to, "%.3f MB per step to a rank: gradients %.3f (%lld reductions)", (double)bytes * 1e-6,
          (double)w.reduce_bytes * 1e-6, (long long)w.reductions);
  if (w.gathers)
    fprintf(to, ", parameters %.3f (%lld gathers)", (double)w.gather_bytes * 1e-6, (long long)w.gathers);
  if (w.replicate_bytes) fprintf(to, ", between replicas %.3f", (double)w.replicate_bytes * 1e-6);
  if (w.updates) fprintf(to, ", updates %.3f", (double)w.update_bytes * 1e-6);
}
static void files_words(FILE *to, const RunView *run) {
  const Options *o = run->opt;
  fprintf(to, "%s/metrics.jsonl", o->out);
  if (run_trains(o)) fprintf(to, ", options.txt");
  if (!strcmp(o->report, "on") && !o->sample_only) fprintf(to, ", report.html");
  if (run->corpus->has_tokenizer && run_trains(o)) fprintf(to, ", tokenizer.json");
  if (sample_file(o)) fprintf(to, ", %s", sample_file(o));
  if (o->save_model) fprintf(to, ", model.safetensors");
  if (o->export_hf[0]) fprintf(to, ", %s", o->export_hf);
}
static void data_words(FILE *to, const RunView *run) {
  const Split *train = &run->corpus->split[SPLIT_TRAIN];
  const Packing *p = run->packing;
  fprintf(to, "%s", run->corpus->source);
  if (train->documents) fprintf(to, ", %lld to train on", (long long)(p->split ? p->kept : train->documents));
  if (p->split) fprintf(to, " in %lld sequence%s, %s token%s trained on", (long long)p->rows,
                        p->rows == 1 ? "" : "s", count_words(p->trained), p->trained == 1 ? "" : "s");
  if (p->cut + p->dropped)
    fprintf(to, " (%lld %s longer than --seq_len and %s)", (long long)(p->cut + p->dropped),
            p->cut + p->dropped > 1 ? "are" : "is", p->cut ? "cut" : "left out");
  if (p->untrained)
    fprintf(to, " (%lld left out: nothing to train on within --seq_len)", (long long)p->untrained);
  if (run->steps_per_epoch && !p->split)
    fprintf(to, train->texts > 1 ? ": %s tokens in %lld documents to train on" : ": %s tokens to train on",
            count_words(train->tokens_numel), (long long)train->texts);
  if (run->steps_per_epoch) fprintf(to, ", %lld step%s an epoch", (long long)run->steps_per_epoch,
                                    run->steps_per_epoch == 1 ? "" : "s");
}
// In words, for a mixture: each source's share, and how often an epoch reads it.
static void mixture_words(FILE *to, const RunView *run) {
  const Split *s = &run->corpus->split[SPLIT_TRAIN];
  const int64_t all = sampler_period(s), T = run->model.T;
  for (int k = 0; k < s->sources; k++) {
    const double share = (double)s->source[k].weight / (double)all;
    const double drawn = share * (double)run->steps_per_epoch * (double)run->opt->global_batch;
    fprintf(to, "%.4g %% %s (%.3g times an epoch), ", 100 * share, s->source[k].name,
            drawn / (double)sampler_source_numel(s, k, T, run->packing->split ? run->packing : NULL));
  }
  fprintf(to, "by samples; a source that ends starts over in a new order");
}
static void training_words(FILE *to, const RunView *run) {
  const Options *o = run->opt;
  fprintf(to, "%lld step%s of %lld x %lld tokens; %s, learning rate %g, %s", (long long)run->steps_total,
          run->steps_total == 1 ? "" : "s", (long long)o->global_batch, (long long)run->model.T,
          option_word(o, OPT_optimizer), o->lr, option_word(o, OPT_schedule));
}
// In words: the preference loss, its reference, and the loss of the first step if that is known.
static void preference_words(FILE *to, const RunView *run) {
  const Options *o = run->opt;
  const bool base = o->lora && (!o->lora_from[0] || o->reference == OPT_reference_base);
  const bool same = (!o->lora_from[0] || (!base && o->lora_dropout == 0)) && o->dropout == 0 && !o->resume[0];
  fprintf(to, "--loss %s, beta %g", option_word(o, OPT_loss), o->dpo_beta);
  if (o->dpo_smoothing > 0) fprintf(to, ", label smoothing %g", o->dpo_smoothing);
  if (o->loss == PREFERENCE_SIMPO) fprintf(to, ", gamma %g", o->simpo_gamma);
  if (!preference_compares(o->loss)) { fprintf(to, "; there is no reference"); return; }
  fprintf(to, "; the reference is %s", o->resume[0] ? "what this run started with" : base ? "these weights without "
          "their adapters" : o->lora ? "these weights with the adapters of --lora_from" : "these weights as they "
          "start");
  double unused[2];
  if (same) fprintf(to, ": the first step's loss is %.4f", preference_loss(preference_args(o), 0, 0, unused));
}
// In words: the values that fine-tuning has chosen for options that were not given, and why.
static void tuning_words(FILE *to, const RunView *run) {
  const Options *o = run->opt;
  fprintf(to, "what no option says is chosen for weights that have learned:");
  if (!o->given[OPT_lr])
    fprintf(to, " learning rate %g (%s);", o->lr,
            o->lora ? "adapters take ten times that of full fine-tuning" : "with that of new weights they forget");
  if (!o->given[OPT_weight_decay]) fprintf(to, " weight decay 0 (it would pull them to zero);");
  if (!o->given[OPT_warmup]) fprintf(to, " warm-up %g of the steps (a small rate needs little);", o->warmup);
  if (o->longest)
    fprintf(to, " sequences of %lld tokens (the longest conversation has %lld);", (long long)o->seq_len,
            (long long)o->longest);
  if (o->batch_auto && !o->given[OPT_batch_size])
    fprintf(to, " microbatches of %lld sequence%s (the most of a step's that fit);", (long long)o->batch_size,
            o->batch_size > 1 ? "s" : "");
  if (o->conversations > 0)
    fprintf(to, " a step of %lld sequence%s (about %.3g %s, on any number of ranks);", (long long)o->global_batch,
            o->global_batch > 1 ? "s" : "", o->conversations, o->loss == PREFERENCE_NONE ? "conversations" : "pairs");
  if (!o->given[OPT_epochs] && o->epochs && !o->max_steps) fprintf(to, " %lld epochs;", (long long)o->epochs);
  fprintf(to, " %lld step%s come%s of it", (long long)run->steps_total, run->steps_total == 1 ? "" : "s",
          run->steps_total == 1 ? "s" : "");
  if (run->steps_total < TUNING_STEPS_FEW)
    fprintf(to, ", which is few: below %d little is learned; raise --epochs%s", TUNING_STEPS_FEW,
            o->global_batch > 1 ? ", or lower --global_batch" : "");
  fprintf(to, "; docs/finetune.md");
}
// Rank and targets of adapters, and how many parameters train.
static void adapters_words(FILE *to, const RunView *run) {
  const Options *o = run->opt;
  UnitFigures all = {};
  for (int u = 0; u < fsdp_units(run->fsdp); u++) {
    const UnitFigures x = fsdp_unit_figures(run->fsdp, u);
    all.numel += x.numel, all.trained += x.trained;
  }
  fprintf(to, "rank %lld, alpha %g%s, of %s%s%s", (long long)o->lora, o->lora_alpha,
          o->lora_scale == OPT_lora_scale_root ? " by the rank's root" : "",
          strcmp(o->lora_targets, "all") ? o->lora_targets : "all matrices of blocks",
          o->train_rows[0] ? ", and rows of the embedding " : "", o->train_rows);
  if (run_trains(o)) fprintf(to, ": %s of %s parameters train", count_words(all.trained), count_words(all.numel));
}
// The number of the model's parameters, without those of adapters.
static int64_t model_parameters(const RunView *run) {
  return run->model.parameters - lora_numel(run->fsdp, fsdp_params(run->fsdp));
}
// The name of a block's parameter without its number and ".weight": h.*.attn.c_attn.
static void owned_name(char *to, size_t bytes, const Param *p) {
  const char *dot = strchr(p->name + 2, '.');
  snprintf(to, bytes, "h.*%.*s", (int)(strlen(dot) - strlen(".weight")), dot);
}
// Which parameters Muon updates; the others are AdamW's.
static void muon_words(FILE *to, const RunView *run) {
  const Fsdp *f = run->fsdp;
  const int blocks = fsdp_config(f)->blocks;
  char name[64], other[64];
  for (int p = 0; p < fsdp_params(f); p++) {
    int alike = 0, before = 0;
    if (!fsdp_param_state(f, p).owned) continue;
    owned_name(name, sizeof name, fsdp_param(f, p));
    for (int q = 0; q < fsdp_params(f); q++) {
      if (!fsdp_param_state(f, q).owned) continue;
      owned_name(other, sizeof other, fsdp_param(f, q));
      alike += !strcmp(name, other);
      before += !strcmp(name, other) && q < p;
    }
    if (before) continue;
    const int parts = fsdp_param(f, p)->matrices;
    fprintf(to, "%s%s", name, parts == 3 ? " (q, k, v apart)" : parts == 2 ? " (gate, up apart)" : "");
    if (alike < blocks) fprintf(to, " (of %d of %d blocks)", alike, blocks);
    fprintf(to, ", ");
  }
  int rounds;
  const int matrices = fsdp_owned(f, &rounds);
  if (!matrices) fprintf(to, "nothing: all matrices of blocks are frozen; AdamW for all the rest");
  else
    fprintf(to, "%d matrices, at most %d per rank; AdamW for all the rest", matrices, rounds);
}
// Prints, by start_line, the text that `write` writes.
static void start_words(const char *name, const RunView *run, void (*write)(FILE *to, const RunView *run)) {
  char *text = words_of(run, write);
  start_line(name, "%s", text);
  free(text);
}
// In words: how the architecture differs from GPT-2's; nothing if it does not.
static void block_words(FILE *to, const RunView *run) {
  const Options *o = run->opt;
  const ModelShape s = shape_of(o);
  if (shape_is_gpt2(&s)) return;
  const bool rope = s.block.position == POSITION_ROPE, own = s.block.qk_norm != QK_NORM_OFF;
  static const char *const places[] = {"", " after attention and MLP", " before and after attention and MLP"};
  fprintf(to, "%s%s%s (eps %g)%s, %s", option_word(o, OPT_norm), s.block.norm_weightless ? " without weights" : "",
          places[s.block.norm_place], o->norm_eps, s.block.norm_embedding ? ", one after the embedding" : "",
          rope ? "rope" : "learned positions");
  if (rope) fprintf(to, " of base %g", o->rope_theta);
  if (rope && strcmp(o->rope_scaling, "none")) fprintf(to, " scaled by %s", o->rope_scaling);
  if (rope && s.block.rope_skip) fprintf(to, ", every %lld-th block without", (long long)o->rope_skip);
  if (s.block.window) fprintf(to, ", a window of %lld tokens", (long long)o->window);
  if (s.block.window && s.block.window_skip) fprintf(to, " but in every %lld-th block", (long long)o->window_skip);
  if (s.block.window && s.block.window_theta > 0) fprintf(to, ", there rope of base %g", o->window_theta);
  fprintf(to, ", %lld head%s of k and v, of %lld columns", (long long)o->n_kv_head, o->n_kv_head > 1 ? "s" : "",
          (long long)o->head_size);
  const bool all = s.block.qk_norm == QK_NORM_ALL;
  if (own) fprintf(to, ", q and k normed %s rope", all ? "over all heads before" : option_word(o, OPT_qk_norm));
  fprintf(to, ", %s %lld wide, biases: %s", option_word(o, OPT_mlp), (long long)o->mlp_width, option_word(o, OPT_bias));
  if (o->attention_scale > 0) fprintf(to, ", scores over the root of %g", o->attention_scale);
  if (s.block.embedding_scaled) fprintf(to, ", embedding times the root of its width");
  if (o->logit_softcap > 0) fprintf(to, ", logits within %g", o->logit_softcap);
}
// Writes tokens [at, end) of conversations as text, with [[ ]] around what is trained on, or as JSON with the byte
// ranges that are trained on.
static void print_chat(FILE *to, const Corpus *c, int64_t at, int64_t end, bool json) {
  const Split *s = &c->split[SPLIT_TRAIN];
  char *text = NULL, *spans = NULL;
  size_t bytes = 0, spans_bytes = 0, seen = 0;
  FILE *t = open_memstream(&text, &bytes), *ranges = open_memstream(&spans, &spans_bytes);
  bool inside = false;
  for (int64_t i = at; i <= end; i++) {
    const bool trained = i < end && split_trained(s, i);
    int n = 0;
    const uint8_t *p = i < end ? tokenizer_token_bytes(&c->tokenizer, split_token(s, i), &n) : NULL;
    if (trained != inside && !json) fputs(inside ? "]]" : "[[", t);
    if (trained && !inside) fprintf(ranges, "%s[%zu, ", ftell(ranges) ? ", " : "", seen);
    if (!trained && inside) fprintf(ranges, "%zu]", seen);
    inside = trained;
    if (p && i > at && split_begins(s, i) && !json) fputs("\nand the answer that was rejected:\n", t);
    if (n) fwrite(p, 1, (size_t)n, t);
    seen += (size_t)n;
  }
  fclose(t);
  fclose(ranges);
  if (!json) fwrite(text, 1, bytes, to);
  if (json) fprintf(to, "{\"text\": ");
  if (json) json_string(to, text, bytes, 0);
  if (json) fprintf(to, ", \"spans\": [%s]}\n", spans);
  free(text);
  free(spans);
}
// The end of the conversation, or pair, that starts at token `at`.
static int64_t print_chat_end(const Split *s, int64_t at) {
  int64_t end = at + 1, left = s->pairs;         // left: further conversations to pass, 1 in a pair
  while (end < s->tokens_numel && (!split_begins(s, end) || left-- > 0)) end++;
  return end;
}
// Prints the first conversation as the model gets it, with marks around what is trained on.
enum { CONVERSATION_TOKENS_MAX = 400 };
static void print_conversation(const RunView *run) {
  const Split *s = &run->corpus->split[SPLIT_TRAIN];
  if (!s->documents || !run->corpus->has_tokenizer) return;
  const Packing *p = run->packing;
  int64_t first = 0, end = print_chat_end(s, 0);
  if (p->split && p->rows) first = p->start[p->head[0]], end = p->start[p->head[0] + (s->pairs ? 2 : 1)];
  const int64_t kept = p->split && !s->pairs ? min64(end, first + p->seq_len + 1) : end;
  const int64_t shown = min64(kept, first + CONVERSATION_TOKENS_MAX);
  char *text = NULL;
  size_t bytes = 0;
  FILE *to = open_memstream(&text, &bytes);
  print_chat(to, run->corpus, first, shown, false);
  if (shown < kept) fprintf(to, " ... and %lld token%s more", (long long)(kept - shown), kept - shown > 1 ? "s" : "");
  if (kept < end) fprintf(to, " ... here --seq_len %lld cuts it: %lld token%s %s not seen", (long long)p->seq_len,
                          (long long)(end - kept), end - kept > 1 ? "s" : "", end - kept > 1 ? "are" : "is");
  fclose(to);
  say("the first conversation as the model sees it; trained on is what stands in [[ ]]:\n%s\n", text);
  free(text);
}
void report_chats(const Corpus *c, int64_t count, FILE *json) {
  int64_t at = 0;
  for (; count-- && at < c->split[SPLIT_TRAIN].tokens_numel; liveness_progress()) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = json ? json : open_memstream(&text, &bytes);
    const int64_t end = print_chat_end(&c->split[SPLIT_TRAIN], at);
    print_chat(to, c, at, end, json);
    at = end;
    if (json) continue;
    fprintf(to, "\n");
    fclose(to);
    say_bytes((const uint8_t *)text, (int)bytes);
    free(text);
  }
  if (json) fflush(json);
}
void report_model(const RunView *run) {
  const ModelFigures *m = &run->model;
  start_line("model", "%s, %s parameters: %d block%s, %d head%s, width %lld, vocab %lld",
             run->name ? run->name : run->opt->model, count_words(model_parameters(run)), m->L, m->L > 1 ? "s" : "",
             m->H, m->H > 1 ? "s" : "", (long long)m->C, (long long)m->V);
  const ModelShape s = shape_of(run->opt);
  if (!shape_is_gpt2(&s)) start_words("block", run, block_words);
}
void report_ranks(const RunView *run) {
  const bool gpu = run->ctx->ops->nccl;
  start_words("ranks", run, ranks_words);
  if (run->cores && cores_differ(run->cores) && !gpu) start_words("cores", run, cores_short_words);
  if (run->corpus && gpu)
    start_line("attention", "kernels %s (--attention %s)", run->ctx->attention_mma ? "of every GPU" : "of Hopper",
               option_word(run->opt, OPT_attention));
  if (run->device.sm_margin) start_words("margin", run, sm_margin_words);
  start_words("sharding", run, shards_words);
  start_words("memory", run, memory_short_words);
  if (fsdp_world(run->fsdp) > 1 && run_trains(run->opt)) start_words("moved", run, moved_words);
}
void report_units(const RunView *run) {
  char *text = words_of(run, units_words);
  say("%s", text);
  free(text);
}
static void print_start(const RunView *run) {
  say("train_gpt_fsdp %s (%s)\n", PROGRAM_VERSION, build_id);
  report_model(run);
  start_words("data", run, data_words);
  if (run->corpus->split[SPLIT_TRAIN].sources && run_trains(run->opt)) start_words("mixture", run, mixture_words);
  if (run->opt->loss != PREFERENCE_NONE && run->packing->split) start_words("loss", run, preference_words);
  if (run_trains(run->opt)) start_words("training", run, training_words);
  if (run->opt->tuning) start_words("tuning", run, tuning_words);
  if (run->opt->lora) start_words("adapters", run, adapters_words);
  if (run_trains(run->opt) && fsdp_config(run->fsdp)->optimizer == OPTIMIZER_MUON) start_words("muon", run, muon_words);
  report_ranks(run);
  start_words("files", run, files_words);
}
// In words: where checkpoints go, and how large each will be.
static void print_saves(const RunView *run, const SavePlan *s) {
  const Options *o = run->opt;
  char when[64], keep[64];
  if (o->save_every > 0) snprintf(when, sizeof when, "every %lld steps and at the end", (long long)o->save_every);
  else snprintf(when, sizeof when, o->save_every ? "only on a signal" : "every epoch and at the end");
  snprintf(keep, sizeof keep, o->keep ? "newest %lld kept" : "all kept", (long long)o->keep);
  start_line("saves", "%s, %.1f MB each, %s%s, %s%s", s->directory, (double)s->bytes * 1e-6, when,
             o->keep_best ? ", best" : "", keep, o->save_async ? ", in the background" : "");
  if (s->blind)
    say("warning: %d ranks stream their part of checkpoints to rank 0: their hosts do not see %s\n", s->blind,
        s->directory);
  if (o->verbose) say("checkpoints: rank 0 writes %.1f MB of each\n", (double)s->own_bytes * 1e-6);
}

// ---- --verbose ------------------------------------------------------------------------------------------------------
static void plan_words(FILE *to, const RunView *run) {
  const MemoryPlan *m = &run->plan;
  const size_t total = memory_planned_total(m, MEMORY_ALL), device = memory_planned_total(m, MEMORY_ON_DEVICE);
  fprintf(to, "memory plan, bytes per rank, --recompute %s%s\n", run->opt->recompute,
          run->opt->recompute_auto ? " (auto)" : "");
  for (int i = 0; i < MEM_COUNT; i++)
    if (m->planned_bytes[i]) fprintf(to, "  %-34s %15zu\n", memory_words[i], m->planned_bytes[i]);
  if (run->ctx->ops->nccl) fprintf(to, "  %-34s %15zu  (%.1f MiB)\n", "on the GPU", device, (double)device / 0x1p20);
  fprintf(to, "  %-34s %15zu  (%.1f MiB)\n", "total", total, (double)total / 0x1p20);
  fprintf(to, "  of it %zu bytes are shared by buffers of disjoint live ranges; at most %zu of them are live\n",
          fsdp_placed(run->fsdp).placed, fsdp_placed(run->fsdp).alive);
}
static void traffic_words(FILE *to, const RunView *run) {
  if (fsdp_world(run->fsdp) == 1 || !run_trains(run->opt)) return;
  const Traffic w = fsdp_formula(run->fsdp, (int)run->opt->grad_accum);
  fprintf(to, "traffic of a step, received by rank 0: %lld gathers %.3f MB, %lld reductions %.3f MB",
          (long long)w.gathers, (double)w.gather_bytes * 1e-6, (long long)w.reductions, (double)w.reduce_bytes * 1e-6);
  if (w.replicate_bytes) fprintf(to, ", along replicas %.3f MB", (double)w.replicate_bytes * 1e-6);
  if (w.updates)
    fprintf(to, ", %lld exchanges of updates %.3f MB", (long long)w.updates, (double)w.update_bytes * 1e-6);
  fprintf(to, ", %lld small %lld bytes\n", (long long)w.small, (long long)w.small_bytes);
}
static void configuration_words(FILE *to, const RunView *run) {
  fprintf(to, "configuration:");
  for (const OptionSpec &s : option_specs) {
    char value[OPTION_TEXT_BYTES];
    option_print(value, sizeof value, run->opt, &s);
    if (s.type == OPTION_NUM)
      snprintf(value, sizeof value, "%.10g", *(const double *)((const char *)run->opt + s.offset));
    fprintf(to, " --%s=%s", s.name, s.type == OPTION_TEXT && strchr(value, ' ') ? "'...'" : value);
  }
  fprintf(to, "\n");
}
static void sharding_line(FILE *to, const RunView *run) {
  fprintf(to, "sharding: ");
  sharding_words(to, run);
  fprintf(to, "\n");
}
static void cores_lines(FILE *to, const RunView *run) {
  for (int r = 0; run->cores && r < run->cores->world; r++) fprintf(to, "rank %d: %s\n", r, run->cores->all[r].words);
}
// --verbose: every figure.
static void print_details(const RunView *run) {
  if (!run->ctx->ops->nccl) say("matrix multiply: %s; sums fp32\n", cpu_products(run));
  else if (run->device.peak_flops > 0)
    say("peak: %.0f TFLOP/s dense %s; MFU counts %.3g FLOP per token\n", run->device.peak_flops * 1e-12,
        option_word(run->opt, OPT_buffer_dtype), run->model.flops_per_token);
  else say("peak: not known for this GPU; MFU is n/a\n");
  say("model: %d blocks, %d heads, width %lld, %lld positions, vocabulary %lld (%lld in memory), %lld parameters\n",
      run->model.L, run->model.H, (long long)run->model.C, (long long)run->model.P, (long long)run->model.V,
      (long long)run->model.Vp, (long long)run->model.parameters);
  if (run->corpus->tokenizer_ms > 0)
    say("tokenizer: trained to %d tokens in %.0f ms, encoded the corpus in %.0f ms\n", run->corpus->vocab_size,
        run->corpus->tokenizer_ms, run->corpus->encode_ms);
  void (*const parts[])(FILE *to, const RunView *run) = {configuration_words, cores_lines, sharding_line,
                                                       units_words, plan_words, traffic_words};
  for (const auto part : parts) {
    char *text = words_of(run, part);
    say("%s", text);
    free(text);
  }
}

// ---- warnings -------------------------------------------------------------------------------------------------------
static void print_across_hosts(const Fsdp *f, int size, const char *what, const char *option) {
  const int across = fsdp_groups_across(f, size);
  if (!across) return;
  say("warning: %d of %d %s cross hosts although %d ranks fit on one: their gathers go over the network; ", across,
         fsdp_world(f) / size, what, size);
  if (fsdp_host_world(f) % size) say("choose %s that divides the ranks of a host\n", option);
  else say("place ranks host by host (mpirun --map-by slot, srun --distribution=block)\n");
}
// Warnings about the sharding modes in use.
static void print_sharding_warnings(const RunView *run) {
  const Options *o = run->opt;
  const Fsdp *f = run->fsdp;
  const FsdpConfig *c = fsdp_config(f);
  print_across_hosts(f, c->mesh.shards, "shard groups", "--mesh RxS with an S");
  if (c->mesh.secondary)
    print_across_hosts(f, c->mesh.secondary, "groups that keep blocks", "a --reshard_after_forward");
  const bool slots = o->given[OPT_gather_slots];
  if (fsdp_in_place(f) && c->mesh.shards > 1 && (slots || o->given[OPT_reshard_after_forward]))
    say("warning: all ranks of a shard group share this host's memory and read shards zero-copy: nothing is gathered, "
           "--%s has no effect; --shm copy gathers\n", slots ? "gather_slots" : "reshard_after_forward");
  if (!run_trains(o)) return;
  const int mixed = fsdp_groups_mixed(f);
  if (mixed)
    say("warning: the ranks of a host are not consecutive in %d of %d shard groups: each rank sends its gradients to "
           "all owners on other hosts; place ranks host by host (mpirun --map-by slot) and sums can go along the "
           "hosts\n", mixed, fsdp_world(f) / c->mesh.shards);
  bool rounded = false;
  for (int p = 0; p < fsdp_params(f); p++)
    rounded = rounded || (fsdp_param(f, p)->frozen && fsdp_param_state(f, p).dtype != F32);
  if (rounded && !fsdp_has_adapters(f))
    say("warning: what --freeze names is kept only in %s: checkpoints and exports hold the rounded values\n",
           o->fp8 != FP8_OFF ? "E4M3 or --param_dtype" : option_word(o, OPT_param_dtype));
  if (c->native_reduce && fsdp_world(f) > 1)
    say("warning: --reduce native adds in NCCL's order: last bits depend on the number of ranks\n");
  if (c->local && o->grad_accum > 1)
    say("warning: --%s adds a rank's %lld microbatches before those of other ranks: last bits depend on the "
           "number of ranks\n", o->strategy == OPT_strategy_zero1 ? "strategy zero1" : "accumulate local",
           (long long)o->grad_accum);
}
static void print_start_warnings(const RunView *run) {
  const Device *d = &run->device;
  if (d->gpus < fsdp_world(run->fsdp) && run->ctx->ops->nccl)
    say("warning: %d ranks on %d GPU%s; gradients and parameters go through host memory\n", fsdp_world(run->fsdp),
        d->gpus, d->gpus > 1 ? "s" : "");
  cores_print_warnings(run->cores);
  const char *omp = getenv("OMP_NUM_THREADS");
  if (omp && !run->opt->threads && atoi(omp) != run->ctx->threads)
    say("warning: OMP_NUM_THREADS=%.20s is ignored: --threads sets the number; by default all cores are used\n", omp);
  print_sharding_warnings(run);
  static const char *const of[SPLIT_COUNT] = {"to train on", "for validation", "for the test"};
  for (int i = 0; i < SPLIT_COUNT; i++)
    if (run->packing[i].alike)
      say("warning: %lld of %lld pair%s %s %s the same answer twice: nothing is learned of %s\n",
          (long long)run->packing[i].alike, (long long)run->packing[i].kept, run->packing[i].kept == 1 ? "" : "s",
          of[i], run->packing[i].alike == 1 ? "has" : "have", run->packing[i].alike == 1 ? "it" : "them");
  if (run_trains(run->opt)) print_conversation(run);
}

void report_start(const RunView *run, const SavePlan *saves) {
  if (fsdp_rank(run->fsdp)) return;
  print_start(run);
  if (saves) print_saves(run, saves);
  if (run->opt->verbose) print_details(run);
  print_start_warnings(run);
}

// ---- earlier runs ---------------------------------------------------------------------------------------------------
// Bytes of the files in and below PATH; links do not count.
static int64_t path_bytes(const char *path, int depth) {
  struct stat st;
  if (lstat(path, &st) || depth > 8) return 0;
  if (!S_ISDIR(st.st_mode)) return S_ISREG(st.st_mode) ? st.st_size : 0;
  int64_t bytes = 0;
  directory_each(path, [&](const char *, const char *inside) { bytes += path_bytes(inside, depth + 1); });
  return bytes;
}
// Adds the paths PATH.1, PATH.2, ..., which file_move_aside has made, to the command `rm`, except the one that contains
// `from`; adds their size to *bytes. Returns how many paths were added.
static int old_of(const char *path, const char *from, FILE *rm, int64_t *bytes) {
  char above[PATH_MAX], name[PATH_MAX], here[PATH_MAX], there[PATH_MAX];
  const char *slash = strrchr(path, '/');
  snprintf(above, sizeof above, "%.*s", slash ? (int)(slash - path) + 1 : 2, slash ? path : "./");
  const char *base = slash ? slash + 1 : path;
  const size_t n = strlen(base);
  int count = 0, most = 0, number;
  directory_each(above, [&](const char *at, const char *) {
    if (!strncmp(at, base, n) && sscanf(at + n, ".%d", &number) == 1 && number > most && number < 100000) most = number;
  });
  for (int i = 1; i <= most; i++) {
    struct stat st;
    const int length = snprintf(name, sizeof name, "%s.%d", path, i);
    if (length < 0 || length >= (int)sizeof name || lstat(name, &st)) continue;
    const size_t inside = realpath(name, here) && realpath(from, there) ? strlen(here) : 0;
    if (inside && !strncmp(there, here, inside) && (!there[inside] || there[inside] == '/')) continue;   // in use
    *bytes += path_bytes(name, 0);
    shell_word(rm, name);
    count++;
  }
  return count;
}
void report_old_runs(const RunView *run, const char *from) {
  if (fsdp_rank(run->fsdp) || !run_trains(run->opt)) return;
  char path[OPTION_TEXT_BYTES + 32], real[PATH_MAX], *words = NULL;
  size_t words_bytes = 0;
  struct stat st;
  int64_t bytes = 0;
  FILE *rm = open_memstream(&words, &words_bytes);
  snprintf(path, sizeof path, "%s/metrics.jsonl", run->opt->out);
  int count = old_of(path, from, rm, &bytes);
  snprintf(path, sizeof path, "%s/tensorboard", run->opt->out);
  count += old_of(path, from, rm, &bytes);
  snprintf(path, sizeof path, "%s/ckpt", run->opt->out);
  count += old_of(path, from, rm, &bytes);             // if ckpt is a link, also beside its target
  if (!lstat(path, &st) && S_ISLNK(st.st_mode) && realpath(path, real)) count += old_of(real, from, rm, &bytes);
  fclose(rm);
  if (count)
    say("warning: %d file%s or director%s of earlier runs, %.1f %cB, kept in %s; to remove: rm -r%s\n", count,
        count > 1 ? "s" : "", count > 1 ? "ies" : "y", (double)bytes * (bytes < 1000000 ? 1e-3 : 1e-6),
        bytes < 1000000 ? 'k' : 'M', run->opt->out, words);
  free(words);
}
