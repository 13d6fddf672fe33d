// plan_report.h: --plan: what a run would need and how long it would take, printed as text or JSON. Nothing is started:
// it needs no GPU, no MPI and no corpus. docs/plan.md is its page.
#pragma once
#include "plan_worlds.h"

// The plan of another number of ranks, `world`. bytes: of a rank; needs: bytes that a GPU must have, or a host for all
// its CPU ranks; step_s, tokens_s: predicted, 0 without --on; rejected: "", or why training rejects this number.
struct WorldRow { int world; size_t bytes; double needs, step_s, tokens_s; Error rejected; };
enum { WORLD_ROWS_MAX = 24 };
// Everything that is printed. run: a planned rank of the class that needs most memory.
struct PlanReport {
  WorldPlan plan;
  RunView *run;
  Fit fit[FITS];
  WorldRow row[WORLD_ROWS_MAX];
  int rows;
};
static inline const RankClass *report_most(const PlanReport *p) { return &p->plan.rank[p->plan.most]; }
static inline const StepTimes *report_times(const PlanReport *p) { return &p->plan.rank[p->plan.slowest].times; }
static inline double report_flops(const PlanReport *p) {
  return p->run->model.flops_per_token * world_plan_tokens(&p->plan);
}
static inline double report_mfu(const PlanReport *p) {
  const double peak = p->plan.on.machine.peak_flops * (double)p->plan.opt.world;
  return report_flops(p) / (report_times(p)->at[STEP_TOTAL] * peak);
}
static inline double report_days(const PlanReport *p) {
  return (double)p->plan.opt.tokens / world_plan_tokens_s(&p->plan) / 86400;
}
static inline void report_row(WorldRow *r, const WorldPlan *w) {
  r->bytes = plan_bytes(w, &w->rank[w->most].memory);
  r->needs = world_plan_needs(w);
  r->step_s = w->rank[w->slowest].times.at[STEP_TOTAL];
  r->tokens_s = w->on.timed ? world_plan_tokens_s(w) : 0;
}
// On a terminal, shows what is being planned: many ranks take seconds, and in the worst case minutes.
static inline void report_progress(const char *what) {
  char line[96];
  if (!terminal.out) return;
  snprintf(line, sizeof line, "planning: %s", what);
  line_draw(line, true);
}
// Plans the same options for 1, 2, 4, ... ranks, up to the number asked for.
static inline void report_rows(PlanReport *p, const Options *asked) {
  static WorldPlan w;
  const int world = (int)p->plan.opt.world;
  for (int n = 1; n < 2 * world; n *= 2) {
    WorldRow *r = &p->row[p->rows++];
    bool possible;
    r->world = n < world ? n : world;
    if (r->world == world) { report_row(r, &p->plan); continue; }
    char words[32];
    snprintf(words, sizeof words, "%d ranks", r->world);
    report_progress(words);
    const Options o = plan_at_world(asked, r->world, &possible);
    if (!possible) fail(&r->rejected, "--mesh %.100s has no such number of ranks", asked->mesh);
    if (!possible || !world_plan(&w, &o, true, NULL, &r->rejected)) continue;
    report_row(r, &w);
    world_plan_free(&w);
  }
}

// ---- text -----------------------------------------------------------------------------------------------------------
// A number of FLOPs with three digits and a unit, like "1.23 TFLOP"; one of four static texts, used in turn.
static const char *flop_words(double n) {
  static char text[4][24];
  static int turn;
  static const char units[] = "kMGTPEZY";
  int u = 0;
  turn = (turn + 1) % 4;
  for (n /= 1e3; n >= 999.5 && units[u + 1]; u++) n /= 1e3;
  snprintf(text[turn], sizeof text[0], "%.*f %cFLOP", n < 9.995 ? 2 : n < 99.95 ? 1 : 0, n, units[u]);
  return text[turn];
}
static void report_print_head(const PlanReport *p) {
  const Options *o = &p->plan.opt;
  const ModelFigures *m = &p->run->model;
  say("train_gpt_fsdp %s (%s): a plan, nothing is started\n", PROGRAM_VERSION, build_id);
  report_model(p->run);
  const char *data = plan_data_words(o);
  if (data) start_line("data", "%s", data);
  start_line("step", "%s tokens: %d rank%s x %lld microbatch%s of %lld x %lld; %s, %s per token",
             count_words((int64_t)world_plan_tokens(&p->plan)), (int)o->world, o->world > 1 ? "s" : "",
             (long long)o->grad_accum, o->grad_accum > 1 ? "es" : "", (long long)o->batch_size, (long long)m->T,
             flop_words(report_flops(p)), flop_words(m->flops_per_token));
  report_ranks(p->run);
}
// The bytes of a line of the memory plan; line MEM_COUNT: of all lines. report_range: the least and the most of a rank.
static inline size_t report_line(const RankClass *c, int line) {
  return line < MEM_COUNT ? c->memory.planned_bytes[line] : memory_planned_total(&c->memory, MEMORY_ALL);
}
static void report_range(const PlanReport *p, int line, size_t *least, size_t *most) {
  *least = SIZE_MAX, *most = 0;
  for (int c = 0; c < p->plan.classes; c++) {
    const size_t bytes = report_line(&p->plan.rank[c], line);
    *least = bytes < *least ? bytes : *least;
    *most = bytes > *most ? bytes : *most;
  }
}
static void report_print_memory(const PlanReport *p) {
  const RankClass *c = report_most(p);
  size_t least, most;
  report_range(p, MEM_COUNT, &least, &most);
  const bool alike = least == most;
  if (p->plan.opt.world == 1) say("\nmemory, bytes\n");
  else if (alike) say("\nmemory, bytes of a rank; all %d need as much\n", (int)p->plan.opt.world);
  else say("\nmemory, bytes of rank %d, which needs most%16s over all ranks\n", c->first, "");
  for (int i = 0; i <= MEM_COUNT; i++) {
    const size_t bytes = report_line(c, i);
    report_range(p, i, &least, &most);
    if (!most) continue;
    say("  %-38s %17zu", i < MEM_COUNT ? memory_words[i] : "total", bytes);
    if (least < most) say("  %zu to %zu", least, most);
    say("\n");
  }
  if (p->plan.on.gpu) say("  %-38s %17zu\n", "of it on the GPU", memory_planned_total(&c->memory, MEMORY_ON_DEVICE));
  say("  Of it %zu bytes are shared by buffers of disjoint live ranges; at most %zu of them are live\n", c->placed,
      c->alive);
  say("  Not in it: tokens of the corpus and their order%s\n",
      p->plan.on.gpu ? ", and what CUDA, cuBLASLt and NCCL take" : "");
}
static void report_print_traffic(const PlanReport *p) {
  const RankClass *c = report_most(p);
  const int64_t calls[LINK_USES] = {c->traffic.gathers, c->traffic.reductions, c->traffic.returns, c->traffic.updates,
                                    c->traffic.small};
  int64_t inside = 0, between = 0;
  if (p->plan.opt.world == 1) return;
  say("\nmoved in a step to rank %d                   calls  bytes inside the host  from other hosts\n", c->first);
  for (int k = 0; k < LINK_USES; k++) {
    const int64_t in = c->links.inside[k], out = c->links.between[k];
    inside += in, between += out;
    char number[24] = "";
    if (calls[k]) snprintf(number, sizeof number, "%lld", (long long)calls[k]);
    if (!calls[k] && !in && !out) continue;
    say("  %-38s %9s  %21lld  %16lld\n", link_words[k], number, (long long)in, (long long)out);
  }
  say("  %-38s %9s  %21lld  %16lld\n", "all", "", (long long)inside, (long long)between);
}
// Seconds with three digits, like "12.3 ms"; one of four static texts, used in turn.
static const char *seconds_words(double s) {
  static char text[4][24];
  static int turn;
  turn = (turn + 1) % 4;
  if (s < 0.9995) snprintf(text[turn], sizeof text[0], "%.*f ms", s < 0.00995 ? 2 : s < 0.0995 ? 1 : 0, s * 1e3);
  else snprintf(text[turn], sizeof text[0], "%.2f s", s);
  return text[turn];
}
static AttentionKind report_attention(const PlanReport *p) {
  const Options *o = &p->plan.opt;
  const int64_t head_dim = o->head_size ? o->head_size : o->n_embd / o->n_head;
  return attention_kind(&p->plan.on.machine, option_dtype(o, OPT_buffer_dtype), head_dim, o->seq_len);
}
// Prints predicted times of the parts of a step. The lines of exposed all-gathers and reduce-scatters also say what all
// of them take, including those hidden behind compute.
static void report_print_times(const PlanReport *p) {
  const Machine *m = &p->plan.on.machine;
  const StepTimes *s = report_times(p);
  const double total = s->at[STEP_TOTAL];
  if (!p->plan.on.timed) return;
  say("\npredicted on %s\n", p->plan.opt.on);
  const AttentionKind kind = report_attention(p);
  const AttentionRate *a = &m->attention[kind];
  start_line("peaks", "%.4g TFLOP/s dense %s, of which matrix multiplies reach %.4g and attention (%s) %.4g forward, "
             "%.4g backward; streaming ops %.4g GB/s%s", m->peak_flops * 1e-12,
             option_word(&p->plan.opt, OPT_buffer_dtype), m->product_flops * 1e-12, attention_kind_words[kind],
             a->forward * 1e-12, a->backward * 1e-12, m->memory_rate * 1e-9,
             m->gpu ? "" : " (assumed, not measured)");
  if (m->sm_margin)
    start_line("margin", "matrix multiplies have %d of %d SMs, NCCL the others (--sm_margin)",
               m->sms - m->sm_margin, m->sms);
  if (!m->gpu)
    start_line("assumed", "%s", strcmp(p->plan.opt.on, "cpu") ? "but for the figures that --on gives" : "this "
               "machine was not measured: give a rank's figures with --on cpu,tflops=...,memory_gbs=... (make bench "
               "ARGS=plan measures them)");
  if (p->plan.opt.world > 1)
    start_line("links", "a rank receives %.4g GB/s inside a host, %.4g GB/s from other hosts", m->inside * 1e-9,
               m->between * 1e-9);
  for (int k = 0; k < STEP_PARTS; k++) {
    if (s->at[k] <= 0) continue;
    say("  %-38s %12s %5.1f %%", step_part_words[k], seconds_words(s->at[k]), 100 * s->at[k] / total);
    const double in_all = k == STEP_GATHERS_EXPOSED ? s->at[STEP_GATHERS]
                          : k == STEP_REDUCTIONS_EXPOSED ? s->at[STEP_REDUCTIONS] : 0;
    if (in_all > 0) say("  of %s in all", seconds_words(in_all));
    say("\n");
  }
  say("  %-38s %12s\n", "a step", seconds_words(total));
  say("  predicted: %s tokens/s, MFU %.1f %%", count_words((int64_t)world_plan_tokens_s(&p->plan)),
      100 * report_mfu(p));
  if (p->plan.opt.tokens) say(", %.3g days for %s tokens", report_days(p), count_words(p->plan.opt.tokens));
  say("\n");
}
static void report_print_fits(const PlanReport *p) {
  const Machine *m = &p->plan.on.machine;
  if (!p->plan.on.timed) return;
  const double needs = world_plan_needs(&p->plan), room = world_plan_room(&p->plan);
  if (m->gpu)
    say("\na GPU of %.1f GiB; libraries are assumed to take %.1f GiB\n", room / 0x1p30, m->reserve_bytes / 0x1p30);
  else
    say("\na host of %.1f GiB for %lld rank%s\n", room / 0x1p30, (long long)p->plan.opt.ranks_per_host,
           p->plan.opt.ranks_per_host > 1 ? "s" : "");
  say("  %-38s %.2f GiB: %s\n", "this plan", needs / 0x1p30, needs <= room ? "fits" : "does not fit");
  if (world_plan_trace_is_too_long(&p->plan)) {
    say("  %-38s %.2f GiB of it: give --trace_steps fewer steps\n", "events of --trace",
        world_plan_trace(&p->plan) / 0x1p30);
    return;
  }
  for (int k = 0; k < FITS; k++) {
    const Fit *f = &p->fit[k];
    if (!f->value) { say("  %-38s none\n", fit_words[k]); continue; }
    say("  %-38s --%s %lld: %.2f GiB", fit_words[k], fit_options[k], (long long)f->value, f->needs / 0x1p30);
    if (f->next > 0) say(" (%lld: %.2f)\n", (long long)(f->value + f->grain), f->next / 0x1p30);
    else say(" (%lld is rejected)\n", (long long)(f->value + f->grain));
  }
}
static void report_print_rows(const PlanReport *p) {
  const bool timed = p->plan.on.timed;
  if (p->rows < 2) return;
  say("\nranks  bytes of a rank%s\n", timed ? "             predicted: a step      tokens/s    of a rank" : "");
  for (int i = 0; i < p->rows; i++) {
    const WorldRow *r = &p->row[i];
    if (r->rejected.text[0]) { say("%5d  %s\n", r->world, r->rejected.text); continue; }
    say("%5d  %15zu", r->world, r->bytes);
    if (timed)
      say("  %-12s %16s  %12.0f  %11.0f", r->needs <= world_plan_room(&p->plan) ? "fits" : "does not fit",
          seconds_words(r->step_s), r->tokens_s, r->tokens_s / r->world);
    say("\n");
  }
}
// Prints the report as text.
static void report_print(const PlanReport *p) {
  report_print_head(p);
  report_print_memory(p);
  say("\n");
  report_units(p->run);
  report_print_traffic(p);
  report_print_times(p);
  report_print_fits(p);
  report_print_rows(p);
}

// ---- JSON -----------------------------------------------------------------------------------------------------------
// Writes the key `name`: an object with the bytes of each of `words`.
static void json_bytes(FILE *f, const char *name, const char *const *words, const int64_t *bytes, int count) {
  fprintf(f, "\"%s\":{", name);
  for (int i = 0; i < count; i++) fprintf(f, "%s\"%s\":%lld", i ? "," : "", words[i], (long long)bytes[i]);
  fprintf(f, "}");
}
static void report_json_rank(FILE *f, const PlanReport *p, const RankClass *c) {
  int64_t bytes[MEM_COUNT], use[MEMORY_USES];
  for (int i = 0; i < MEM_COUNT; i++) bytes[i] = (int64_t)c->memory.planned_bytes[i];
  for (int i = 0; i < MEMORY_USES; i++) use[i] = (int64_t)memory_planned_use(&c->memory, (MemoryUse)i);
  fprintf(f, "{\"rank\":%d,\"ranks\":%d,\"threads\":%d,", c->first, c->count, p->plan.on.gpu ? 0 : c->key.threads);
  json_bytes(f, "memory_plan_bytes", memory_words, bytes, MEM_COUNT);
  fprintf(f, ",");
  json_bytes(f, "memory_use_bytes", memory_use_words, use, MEMORY_USES);
  fprintf(f, ",\"total_bytes\":%zu,\"device_bytes\":%zu,", memory_planned_total(&c->memory, MEMORY_ALL),
          p->plan.on.gpu ? memory_planned_total(&c->memory, MEMORY_ON_DEVICE) : (size_t)0);
  fprintf(f, "\"shared_memory_bytes\":{\"placed\":%zu,\"alive_most\":%zu}", c->placed, c->alive);
  json_traffic(f, c->traffic);
  fprintf(f, ",");
  json_bytes(f, "inside_host_bytes", link_words, c->links.inside, LINK_USES);
  fprintf(f, ",");
  json_bytes(f, "between_hosts_bytes", link_words, c->links.between, LINK_USES);
  fprintf(f, "}");
}
static void report_json_times(FILE *f, const PlanReport *p) {
  const Machine *m = &p->plan.on.machine;
  const StepTimes *s = report_times(p);
  const AttentionRate *a = &m->attention[report_attention(p)];
  fprintf(f, ",\"predicted\":{\"on\":\"%s\"", m->name);
  const struct { const char *name; double value; } figures[] = {
      {"peak_flops", m->peak_flops}, {"product_flops", m->product_flops}, {"attention_flops", a->forward},
      {"attention_backward_flops", a->backward},
      {"sm_margin", (double)m->sm_margin},
      {"memory_bytes_per_s", m->memory_rate}, {"inside_bytes_per_s", m->inside},
      {"between_bytes_per_s", m->between}, {"memory_bytes", m->memory_bytes}, {"reserve_bytes", m->reserve_bytes},
      {"step_s", s->at[STEP_TOTAL]}, {"gathers_s", s->at[STEP_GATHERS]}, {"reductions_s", s->at[STEP_REDUCTIONS]},
      {"product_flop", s->at[STEP_PRODUCT_FLOPS]}, {"attention_flop", s->at[STEP_ATTENTION_FLOPS]},
      {"tokens_per_s", world_plan_tokens_s(&p->plan)}, {"mfu", report_mfu(p)}};
  for (const auto &x : figures) json_number(f, x.name, x.value);
  if (p->plan.opt.tokens) json_number(f, "days", report_days(p));
  fprintf(f, ",\"parts_s\":{");
  for (int k = 0; k < STEP_PARTS; k++)
    fprintf(f, "%s\"%s\":%.17g", k ? "," : "", step_part_words[k], s->at[k]);
  fprintf(f, "},\"needs_bytes\":%.0f,\"fits\":%s", world_plan_needs(&p->plan),
          world_plan_needs(&p->plan) <= world_plan_room(&p->plan) ? "true" : "false");
  for (int k = 0; k < FITS; k++)
    fprintf(f, ",\"largest_%s\":{\"value\":%lld,\"needs_bytes\":%.0f,\"next\":%lld,\"next_needs_bytes\":%.0f}",
            fit_options[k], (long long)p->fit[k].value, p->fit[k].needs,
            (long long)(p->fit[k].value + p->fit[k].grain), p->fit[k].next);
  fprintf(f, "}");
}
// The report as JSON, with every figure. mesh.kept: the size of a secondary group, 0: none. rank_kinds: a RankClass
// each; needs_most: the first rank of the class whose memory plan is largest. worlds: the same run on other numbers of
// ranks; rejected: why training rejects one, or "". Times, and the bytes that a whole device needs (with the
// libraries', as measured), are there only where --on names a machine.
static void report_json(FILE *f, const PlanReport *p) {
  const Options *o = &p->plan.opt;
  const ModelFigures *m = &p->run->model;
  const MeshShape mesh = fsdp_config(p->run->fsdp)->mesh;
  fprintf(f, "{\"program\":\"%s\",\"build\":\"%s\",\"ranks\":%d,\"ranks_per_host\":%d,\"hosts\":%d,\"device\":\"%s\","
          "\"mesh\":{\"replicas\":%d,\"shards\":%d,\"kept\":%d}", PROGRAM_VERSION, build_id, (int)o->world,
          (int)o->ranks_per_host, fsdp_hosts(p->run->fsdp), p->plan.on.gpu ? "cuda" : "cpu", mesh.replicas, mesh.shards,
          mesh.secondary);
  fprintf(f, ",\"model\":{\"blocks\":%d,\"heads\":%d,\"width\":%lld,\"positions\":%lld,\"vocabulary\":%lld,"
          "\"vocabulary_in_memory\":%lld,\"parameters\":%lld,\"flops_per_token\":%.17g}", m->L, m->H, (long long)m->C,
          (long long)m->P, (long long)m->V, (long long)m->Vp, (long long)m->parameters, m->flops_per_token);
  json_words(f, "vocabulary_from", plan_data_words(o) ? plan_data_words(o) : "the options");
  fprintf(f, ",\"step\":{\"tokens\":%.0f,\"sequences\":%lld,\"microbatches\":%lld,\"flop\":%.17g},\"config\":{",
          world_plan_tokens(&p->plan), (long long)o->global_batch, (long long)o->grad_accum, report_flops(p));
  log_config(f, p->run->opt);
  fprintf(f, "},\"units\":[");
  record_units(f, p->run);
  fprintf(f, "],\"rank_kinds\":[");
  for (int c = 0; c < p->plan.classes; c++) {
    if (c) fprintf(f, ",");
    report_json_rank(f, p, &p->plan.rank[c]);
  }
  fprintf(f, "],\"needs_most\":%d", report_most(p)->first);
  if (p->plan.on.timed) report_json_times(f, p);
  fprintf(f, ",\"worlds\":[");
  for (int i = 0; i < p->rows; i++) {
    const WorldRow *r = &p->row[i];
    fprintf(f, "%s{\"ranks\":%d,\"refused\":", i ? "," : "", r->world);
    json_text(f, r->rejected.text);
    fprintf(f, ",\"rank_bytes\":%zu,\"predicted_needs_bytes\":%.0f", r->bytes, p->plan.on.timed ? r->needs : 0);
    json_number(f, "predicted_step_s", r->step_s);
    json_number(f, "predicted_tokens_per_s", r->tokens_s);
    fprintf(f, "}");
  }
  fprintf(f, "]}\n");
}

// ---- all of it ------------------------------------------------------------------------------------------------------
// Plans all that is printed, for the options `asked`. False with one line in `error`; else report_free frees it.
static inline bool report_make(PlanReport *p, const Options *asked, Error *error) {
  memset((void *)p, 0, sizeof *p);
  report_progress("ranks by kind");
  if (!world_plan(&p->plan, asked, true, &p->run, error)) {
    config_name_source(asked, error);
    return false;
  }
  for (int k = 0; k < FITS && p->plan.on.timed; k++) {
    report_progress(fit_words[k]);
    p->fit[k] = fit_search(&p->plan, asked, (FitOf)k);
  }
  report_rows(p, asked);
  return true;
}
static inline void report_free(PlanReport *p) {
  p->plan.opt.trainer->plan_close(p->run);
  world_plan_free(&p->plan);
}
