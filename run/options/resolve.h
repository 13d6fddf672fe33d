// resolve.h: options that were not given are filled in, from the preset and from each other, and what cannot work is
// rejected; report_reject does this for options about what a run does and reports, sharding.h for those of sharding.
#pragma once
#include "sharding.h"
#include "sm_margin.h"

void preset_fill(Options *o, const char *list) {
  char item[128];
  Error fault = {};
  for (const char *c = list; *c; c += strcspn(c, " "), c += strspn(c, " ")) {
    snprintf(item, sizeof item, "%.*s", (int)strcspn(c, " "), c);
    char *value = strchr(item, '='), now[OPTION_TEXT_BYTES];
    *value++ = 0;
    const int i = option_index(item);
    option_print(now, sizeof now, o, &option_specs[i]);
    const bool open = !now[0] || strtod(now, NULL) < option_specs[i].lo;
    if (open) CHECK(option_put(o, i, value, &fault), "preset: %s", fault.text);
  }
}
// Completes sizes and choices of the architecture, and rejects what cannot work.
static bool block_resolve(Options *o, const Preset *p, Error *error) {
  RopeScaling scaling;
  preset_fill(o, p->block);
  preset_fill(o, preset_block);
  if (!o->n_kv_head) o->n_kv_head = o->n_head;
  REJECT(!o->head_size && o->n_embd % o->n_head, "--n_head %lld does not divide --n_embd %lld", (long long)o->n_head,
         (long long)o->n_embd);
  if (!o->head_size) o->head_size = o->n_embd / o->n_head;
  if (!o->mlp_width) o->mlp_width = 4 * o->n_embd;
  REJECT(o->n_head % o->n_kv_head, "--n_kv_head %lld does not divide --n_head %lld", (long long)o->n_kv_head,
         (long long)o->n_head);
  static const struct { OptionId id, of; int choice; } belong[] = {
      {OPT_gamma, OPT_schedule, OPT_schedule_step}, {OPT_rope_theta, OPT_position, POSITION_ROPE},
      {OPT_rope_scaling, OPT_position, POSITION_ROPE}, {OPT_rope_skip, OPT_position, POSITION_ROPE},
      {OPT_window_theta, OPT_position, POSITION_ROPE}, {OPT_attention_scale, OPT_position, POSITION_ROPE},
      {OPT_muon_momentum, OPT_optimizer, OPTIMIZER_MUON}, {OPT_muon_nesterov, OPT_optimizer, OPTIMIZER_MUON},
      {OPT_muon_adjust, OPT_optimizer, OPTIMIZER_MUON}, {OPT_moment_dtype, OPT_optimizer, OPTIMIZER_ADAMW},
      {OPT_too_long, OPT_pack, OPT_pack_whole}};
  for (const auto &x : belong) {
    const OptionSpec *of = &option_specs[x.of];
    REJECT(o->given[x.id] && option_choice(o, of) != x.choice, "--%s belongs to --%s %s, not to %s",
           option_specs[x.id].name, of->name, choice_word(of, x.choice), option_word(o, x.of));
  }
  for (OptionId id : {OPT_window_skip, OPT_window_theta})
    REJECT(o->given[id] && !o->window, "--%s belongs to --window N: give that too, or leave it out",
           option_specs[id].name);
  REJECT(o->window_theta > 0 && o->window_theta < 1, "--window_theta is %g, expected 0, or 1 to 1e12", o->window_theta);
  const bool rope = o->position == POSITION_ROPE;
  REJECT(rope && o->head_size % 2, "--position rope needs an even --head_size, not %lld", (long long)o->head_size);
  REJECT(o->attention_scale > 0 && (!rope || o->rope_skip || o->qk_norm == QK_NORM_AFTER), "--attention_scale needs "
         "--position rope in every block, and no --qk_norm after it");
  REJECT(o->qk_norm == QK_NORM_ALL && o->head_size % 2, "--qk_norm all needs an even --head_size, not %lld",
         (long long)o->head_size);
  REJECT(o->norm_place != NORM_BEFORE && o->norm != NORM_RMSNORM, "--norm_place %s needs --norm rmsnorm", option_word(o,
         OPT_norm_place));
  REJECT((rope || o->qk_norm != QK_NORM_OFF) && o->head_size > ROPE_HEAD_MAX, "--position rope and --qk_norm take a "
         "--head_size of %d at most, not %lld", (int)ROPE_HEAD_MAX, (long long)o->head_size);
  REJECT(!rope_scaling_parse(o->rope_scaling, &scaling), "--rope_scaling '%.200s' is neither none nor linear:FACTOR, "
         "llama3:FACTOR,LOW,HIGH,POSITIONS or yarn:FACTOR,LOW,HIGH,POSITIONS with 0 < LOW < HIGH", o->rope_scaling);
  rope_scaling_print(o->rope_scaling, sizeof o->rope_scaling, &scaling);       // one spelling
  return true;
}

// Rejects what --base_dtype cannot be.
static bool base_resolve(const Options *o, Error *error) {
  const bool file = o->base_dtype == OPT_base_dtype_file, keeps = file || o->base_dtype > OPT_base_dtype_param;
  const char *word = option_word(o, OPT_base_dtype);
  bool known = false;
  for (uint8_t type : o->base_types) known = known || type;
  REJECT(keeps && !o->init_from[0] && !o->resume[0] && (file || o->plan == OPT_plan_off), "--base_dtype %s needs "
         "weights: name them with --init_from PATH%s", word, file ? "" : " (--plan does without)");
  REJECT(keeps && !o->lora && run_trains(o), "--base_dtype %s is of weights that stay as they are: give --lora RANK "
         "too, or leave it out", word);
  REJECT(keeps && o->fp8 != FP8_OFF, "--base_dtype %s keeps the matrices that --fp8 %s gathers in E4M3: leave one of "
         "them out", word, option_word(o, OPT_fp8));
  REJECT(file && !known, "--base_dtype file is of another program's weights, and a checkpoint's are fp32: choose "
         "param, q8_0 or nf4");
  return true;
}
// Completes and checks the options of adapters. The options of the architecture are resolved already.
static bool lora_resolve(Options *o, Error *error) {
  const ModelShape shape = shape_of(o);
  Lora lora = shape.lora;
  static const OptionId of_lora[] = {OPT_lora_alpha, OPT_lora_dropout, OPT_lora_targets, OPT_lora_scale, OPT_merge,
                                     OPT_train_rows};
  for (OptionId k : of_lora)
    REJECT(o->given[k] && !o->lora, "--%s belongs to --lora RANK: give that too, or leave it out",
           option_specs[k].name);
  char what[OPTION_TEXT_BYTES + 64] = "--lora_targets";
  if (o->lora_from[0]) snprintf(what, sizeof what, "%s/adapter_config.json: target_modules", o->lora_from);
  if (o->lora && !lora_targets(&lora, &shape, o->lora_targets, error, what)) return false;
  o->lora_alpha = lora.alpha;
  long long from = -1, last = -1;
  char rows[64] = "";
  if (sscanf(o->train_rows, "%18lld:%18lld", &from, &last) == 2) snprintf(rows, sizeof rows, "%lld:%lld", from, last);
  REJECT(o->train_rows[0] && (strcmp(rows, o->train_rows) || from < 0 || last < from || last >= o->vocab_size),
         "--train_rows '%.100s' is not FIRST:LAST, rows below %lld", o->train_rows, (long long)o->vocab_size);
  REJECT(o->export_gguf == OPT_export_gguf_adapter && (!o->lora || o->merge), "--export_gguf adapter is of adapters "
         "alone: give --lora RANK without --merge, or name a type of merged weights, as f16");
  REJECT(o->train_rows[0] && o->export_gguf != OPT_export_gguf_off && !o->merge, "--export_gguf: an adapter of "
         "llama.cpp has no place for rows of the embedding: give --merge too, or leave it out");
  REJECT(o->given[OPT_export_dtype] && (!o->export_hf[0] || (o->lora && !o->merge)), "--export_dtype is of full "
         "weights that --export_hf writes: leave it out%s", o->lora ? ", or give --merge too" : "");
  return true;
}

// Completes the options of preference losses, and rejects what they cannot be combined with.
static bool preference_resolve(Options *o, Error *error) {
  static const OptionId of_preferences[] = {OPT_dpo_beta, OPT_dpo_smoothing, OPT_simpo_gamma, OPT_reference};
  const char *word = option_word(o, OPT_loss);
  for (OptionId k : of_preferences)
    REJECT(o->given[k] && o->loss == PREFERENCE_NONE, "--%s belongs to --loss dpo and its kin: give that too, or leave "
           "it out", option_specs[k].name);
  if (o->dpo_beta < 0) o->dpo_beta = o->loss == PREFERENCE_SIMPO ? 2 : 0.1;
  if (o->loss == PREFERENCE_NONE) return true;
  REJECT(o->dpo_beta == 0 && o->loss != PREFERENCE_ORPO, "--dpo_beta 0: --loss %s learns nothing by it; leave it out "
         "for %g", word, o->loss == PREFERENCE_SIMPO ? 2 : 0.1);
  const bool smooth = o->loss == PREFERENCE_DPO || o->loss == PREFERENCE_SIMPO;
  REJECT(o->dpo_smoothing > 0 && !smooth, "--dpo_smoothing belongs to --loss dpo and simpo, not to %s", word);
  REJECT(o->given[OPT_simpo_gamma] && o->loss != PREFERENCE_SIMPO, "--simpo_gamma belongs to --loss simpo, not to %s",
         word);
  REJECT(o->given[OPT_reference] && (o->loss == PREFERENCE_SIMPO || o->loss == PREFERENCE_ORPO), "--loss %s has no "
         "reference: leave --reference out", word);
  REJECT(o->given[OPT_reference] && o->reference == OPT_reference_base && !o->lora, "--reference base is the weights "
         "without adapters: give --lora or --lora_from, or leave it out");
  REJECT(o->pack != OPT_pack_whole, "--loss %s packs both answers of a pair whole: leave --pack stream out", word);
  REJECT(o->given[OPT_too_long] && o->too_long == OPT_too_long_cut, "--loss %s leaves pairs out that are longer than "
         "--seq_len: leave --too_long cut out", word);
  REJECT(o->train_on == OPT_train_on_all, "--loss %s is of answers: leave --train_on all out", word);
  REJECT(o->data_as == OPT_data_as_text, "--loss %s reads records: leave --data_as text out", word);
  REJECT(o->logits_dtype == OPT_logits_dtype_bf16, "--loss %s adds log-probabilities of fp32 logits: leave "
         "--logits_dtype bf16 out", word);
  REJECT(o->fp8 == FP8_MATMUL, "--loss %s compares sums of different batches, which --fp8 matmul scales apart: leave "
         "it out", word);
  o->too_long = OPT_too_long_drop;
  return true;
}

// Defaults of fine-tuning (--init_from) for options that were not given. Adapters, which start at zero, get ten times
// the learning rate. tuning_fit_length and tuning_fit_step do the rest once the corpus is there.
static void tuning_resolve(Options *o, int world, int ranks_per_host) {
  if (!o->tuning) return;
  if (!o->given[OPT_lr]) o->lr = (o->lora ? 2e-4 : 2e-5) / (o->loss == PREFERENCE_NONE ? 1 : 20);
  if (!o->given[OPT_weight_decay]) o->weight_decay = 0;
  if (!o->given[OPT_warmup]) o->warmup = 0.03;
  if (o->given[OPT_batch_size] || o->given[OPT_grad_accum] || !ranks_per_host) return;
  if (!o->global_batch) o->global_batch = o->batch_size * world;
  if (o->global_batch % world == 0 || o->fill_step) o->batch_size = 0;         // auto
}
static void tuning_fit_length(Options *o, const Corpus *corpus) {
  enum { LENGTH_LEAST = 256, LENGTH_STEP = 64 };
  int64_t longest = 0;
  if (!o->tuning || o->given[OPT_seq_len] || o->pack != OPT_pack_whole) return;
  for (const Split &s : corpus->split) longest = max64(longest, split_longest(&s));
  const int64_t length = max64(LENGTH_LEAST, round_up(longest - 1, LENGTH_STEP));
  if (longest && length < o->seq_len) o->seq_len = length, o->longest = longest;
}
static void tuning_fit_step(Options *o, const Corpus *corpus, int world) {
  const Split *train = &corpus->split[SPLIT_TRAIN];
  if (!o->tuning || !train->documents) return;
  const bool whole = !o->lora && o->loss == PREFERENCE_NONE;
  if (!o->given[OPT_epochs] && !o->given[OPT_max_steps]) o->epochs = whole ? TUNING_EPOCHS_WHOLE : TUNING_EPOCHS;
  if (!o->given[OPT_lr] && whole) o->lr = 1e-5;
  if (o->given[OPT_batch_size] || o->given[OPT_grad_accum] || o->given[OPT_global_batch]) return;
  double rows = (double)split_targets_numel(train) / (double)o->seq_len, count = (double)train->documents;
  if (o->pack == OPT_pack_whole) {
    Packing p;
    packing_make(&p, train, o->seq_len, o->too_long == OPT_too_long_drop);
    rows = (double)p.rows, count = (double)p.kept;
    packing_free(&p);
  }
  if (rows < 1 || count < 1) return;             // rejected later with a message
  const double mean = count / rows;
  o->global_batch = 1;                           // a power of two, which 1, 2, 4, 8 ranks share without empty rows
  while (o->global_batch * 2 <= (int64_t)rows && mean * (double)o->global_batch * M_SQRT2 < TUNING_CONVERSATIONS)
    o->global_batch *= 2;
  o->conversations = mean * (double)o->global_batch;
  o->fill_step = true;
  if (o->batch_auto) return;                     // decided by what fits
  o->batch_size = 1;
  o->grad_accum = (o->global_batch + world - 1) / world;
}
void options_fit_corpus(Options *o, const Corpus *corpus, int world) {
  tuning_fit_length(o, corpus);
  tuning_fit_step(o, corpus, world);
}

// --batch_size auto, which is decided by the memory that is free: rejects it where the sequences of a step would depend
// on that decision.
static bool batch_resolve(Options *o, int world, Error *error) {
  if (o->batch_size) return true;
  REJECT(!run_trains(o), "--batch_size auto is of training: give a number, or leave it out");
  REJECT(!o->global_batch, "--batch_size auto, or 0, needs --global_batch, the sequences of a step: it decides into "
         "how many microbatches they are cut");
  REJECT(o->grad_accum, "--batch_size auto decides how many microbatches there are: leave --grad_accum out");
  REJECT(o->global_batch % world && !o->fill_step, "--global_batch %lld is not divisible by %d ranks: change it, or "
         "give --fill_step", (long long)o->global_batch, world);
  o->batch_auto = true, o->batch_size = 1;
  return true;
}

// ---- options about runs and reports ---------------------------------------------------------------------------------
bool trace_steps_parse(const char *text, int64_t *first, int64_t *last) {
  char *end;
  if (*text < '1' || *text > '9') return false;
  *first = strtoll(text, &end, 10);
  if (*end != ':' || end[1] < '1' || end[1] > '9') return false;
  *last = strtoll(end + 1, &end, 10);
  return !*end && *first <= *last && *last <= 1000000;
}
bool trace_reject_steps(const Options *o, int64_t steps, Error *error) {
  int64_t first = 0, last;
  REJECT(trace_steps_parse(o->trace_steps, &first, &last) && steps < first, "--trace_steps %.40s: this run has %lld "
         "step%s; choose earlier ones", o->trace_steps, (long long)steps, steps == 1 ? "" : "s");
  return true;
}
// Rejects options about what a run does and reports that contradict others. False with one line in `error`.
static bool report_reject(const Options *o, Error *error) {
  int64_t first, last;
  const bool tunes = o->tune != OPT_tune_off;
  REJECT(o->device == OPT_device_cpu && tunes, "--tune needs --device cuda");
  REJECT(o->plans[0] && o->given[OPT_tune] && o->tune != OPT_tune_any, "--plans %.200s has algorithms from --tune any: "
         "it does not go with --tune %s", o->plans, option_word(o, OPT_tune));
  REJECT(o->plans[0] && !run_trains(o), "--plans is of a training step: it does not go with --%s",
         o->eval_only ? "eval_only" : "sample_only");
  static const OptionId paths[] = {OPT_plans, OPT_trace, OPT_out, OPT_resume, OPT_init_from, OPT_export_hf, OPT_config};
  for (OptionId path : paths)
    REJECT(o->given[path] && !*((const char *)o + option_specs[path].offset), "--%s needs a path",
           option_specs[path].name);
  if (!sm_margin_reject(o, error)) return false;
  REJECT(tunes && (o->eval_only || o->sample_only), "--tune times a training step: it does not go with --%s",
         o->eval_only ? "eval_only" : "sample_only");
  REJECT((o->interactive || o->eval[0]) && (o->prompt[0] || o->prompts[0]), "--%s takes no --prompt or --prompts",
         o->interactive ? "interactive" : "eval");
  REJECT(o->interactive && o->eval[0], "--interactive and --eval exclude each other");
  REJECT(o->given[OPT_eval_style] && !o->eval[0], "--eval_style needs --eval FILE");
  REJECT(o->prompt[0] && o->prompts[0], "--prompt is one text to continue, --prompts a file of them: give one");
  REJECT(o->sample_only && !o->eval[0] && !o->sample_tokens && (o->interactive || o->prompt[0] || o->prompts[0] ||
         !(o->save_model || o->export_hf[0] || o->export_gguf != OPT_export_gguf_off)), "--%s generates nothing with "
         "--sample_tokens 0%s: give their number, like --sample_tokens 64", o->interactive ? "interactive" :
         "sample_only", o->given[OPT_sample_tokens] ? "" : ", which the checkpoint's run had");
  const bool keeps_best = o->given[OPT_keep_best] && o->keep_best && run_trains(o);
  REJECT(keeps_best && o->save_every < 0, "--keep_best keeps a checkpoint, and --save_every -1 saves none: leave one "
         "of them out");
  REJECT(keeps_best && o->eval_every < 0, "--keep_best keeps what validated best, and --eval_every -1 validates "
         "nothing: leave one of them out");
  REJECT(o->eval_only && o->sample_only, "--eval_only and --sample_only exclude each other");
  REJECT(o->show_chats && (o->eval_only || o->sample_only), "--show_chats ends when it has printed: leave --eval_only "
         "and --sample_only out");
  REJECT(o->show_chats && !o->data[0], "--show_chats shows the conversations of --data: name them");
  REJECT(chat_kwargs_fault(o->chat_template_kwargs), "--chat_template_kwargs %.200s %s", o->chat_template_kwargs,
         chat_kwargs_fault(o->chat_template_kwargs));
  struct tm day;
  REJECT(!chat_date_read(o->chat_date, &day), "--chat_date '%.60s' is no date like 26 Jul 2024 or 2024-07-26",
         o->chat_date);
  REJECT(o->resume[0] && strcmp(o->resume, "auto") && o->init_from[0] && !o->lora,      // else: its weights are there
         "--resume continues a run, --init_from starts a new one: give one of them");
  REJECT(o->resume[0] && strcmp(o->resume, "auto") && o->lora_from[0], "--resume continues a run with its own "
         "adapters, --lora_from starts with another's: give one of them");
  REJECT(strcmp(o->report, "on") && strcmp(o->report, "off"), "--report %.300s: runs to compare belong on the command "
         "line, not into the file of --config", o->report);
  REJECT(o->trace[0] && o->offload != OFFLOAD_NONE, "--trace with --offload %s: on a GPU a trace is what the device "
         "did, and the host updates; leave one of them out, or use nsys, whose ranges this program names",
         option_word(o, OPT_offload));
  REJECT(o->trace[0] && !run_trains(o), "--trace is of training steps: it does not go with --%s", o->eval_only ?
         "eval_only" : "sample_only");
  REJECT(o->given[OPT_trace_steps] && !o->trace[0], "--trace_steps needs --trace FILE");
  REJECT(!trace_steps_parse(o->trace_steps, &first, &last), "--trace_steps '%.200s' is not first:last, like 3:5, with "
         "1 <= first <= last <= 1000000", o->trace_steps);
  if (o->trace[0] && o->max_steps) return trace_reject_steps(o, o->max_steps, error);
  return true;
}

// ---- all of them ----------------------------------------------------------------------------------------------------
bool options_resolve(Options *o, int world, int ranks_per_host, Error *error) {
  const Preset *p = presets;
  for (const Preset &q : presets) if (!strcmp(q.name, o->model)) p = &q;
  tuning_resolve(o, world, ranks_per_host);
  if (!batch_resolve(o, world, error)) return false;
  if (!o->n_layer) o->n_layer = p->n_layer;
  if (!o->n_head) o->n_head = p->n_head;
  if (!o->n_embd) o->n_embd = p->n_embd;
  if (!o->vocab_size) o->vocab_size = p->vocab_size;
  if (!o->seq_len) o->seq_len = o->n_positions ? min64(p->seq_len, o->n_positions) : p->seq_len;
  if (!o->n_positions) o->n_positions = max64(p->n_positions, o->seq_len);
  if (!o->test_batch_size) o->test_batch_size = o->batch_size;
  const char *fields = record_fields_fault(o->fields);
  REJECT(fields, "--fields '%.200s' %s", o->fields, fields);
  REJECT(o->given[OPT_document_token] && !o->encode[0], "--document_token belongs to --encode OUT: leave it out");
  REJECT(o->no_cuda && o->device == OPT_device_cuda, "--no_cuda and --device cuda exclude each other");
  if (o->no_cuda) o->device = OPT_device_cpu;
  if (o->given[OPT_gamma] && !o->given[OPT_schedule]) o->schedule = OPT_schedule_step;
  if (!block_resolve(o, p, error)) return false;
  // A preset's rate is that of its optimizer. The best rates of AdamW were a quarter of Muon's (docs/results.md).
  if (o->lr == 0) o->lr = strstr(p->block, "=muon") && o->optimizer != OPTIMIZER_MUON ? p->lr / 4 : p->lr;
  if (!lora_resolve(o, error) || !base_resolve(o, error)) return false;
  if (!preference_resolve(o, error)) return false;
  const RopeScaling scaling = shape_of(o).block.rope_scaling;
  REJECT(scaling.growth > 0 && o->seq_len > scaling.original, "--seq_len %lld: after %lld tokens this model's q "
         "grows, which is not computed here: give fewer", (long long)o->seq_len, (long long)scaling.original);
  REJECT(o->seq_len > o->n_positions, "--seq_len %lld is longer than --n_positions %lld", (long long)o->seq_len,
         (long long)o->n_positions);
  REJECT(o->dropout > 0 && o->n_head * o->seq_len > DROPOUT_MOST_WEIGHTS / o->seq_len, "--dropout with --n_head %lld "
         "and --seq_len %lld: attention has more weights than random numbers; shorten the sequences, or leave "
         "--dropout out", (long long)o->n_head, (long long)o->seq_len);
  const int64_t per_round = o->batch_size * world;
  const char *s = world > 1 ? "s" : "";
  REJECT(o->fill_step && (!o->global_batch || o->global_batch % o->batch_size), "--fill_step needs --global_batch, a "
         "multiple of --batch_size %lld", (long long)o->batch_size);
  REJECT(o->global_batch && o->global_batch % per_round && !o->fill_step, "--global_batch %lld is not divisible by "
         "batch_size %lld x %d rank%s", (long long)o->global_batch, (long long)o->batch_size, world, s);
  const int64_t rounds = (o->global_batch + per_round - 1) / per_round;
  REJECT(o->global_batch && o->grad_accum && rounds != o->grad_accum, "--global_batch %lld is not batch_size %lld x %d "
         "rank%s x grad_accum %lld: leave --grad_accum out", (long long)o->global_batch, (long long)o->batch_size,
         world, s, (long long)o->grad_accum);
  if (!o->grad_accum) o->grad_accum = o->global_batch ? rounds : 1;
  if (!o->fill_step) o->global_batch = per_round * o->grad_accum;
  return report_reject(o, error) && sharding_resolve(o, world, ranks_per_host, error);
}
