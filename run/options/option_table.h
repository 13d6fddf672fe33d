// option_table.h: every option, once. The struct, the parser, --help, the printed configuration, options.txt and the
// checkpoint's record of them follow from it (option_values.h). And the presets of --model.
#pragma once
#include "data/models/models.h"

// What a resumed run does with an option.
enum OptionResume {
  RESUME_OWN,      // each run has its own value
  RESUME_TAKES,    // takes the checkpoint's value; another may be given, with a warning
  RESUME_QUIET,    // TAKES without a warning: the option changes what is reported or saved, not what is trained
  RESUME_STEP,     // TAKES if the run trains, else OWN
  RESUME_ORDER,    // rejects another value than the checkpoint's if the run trains, else TAKES
  RESUME_STATE,    // rejects another value if the run trains, else OWN
  RESUME_SHAPE     // rejects another value, even if only weights are taken from the checkpoint
};

// The options, in groups:
//   INT, NUM (name, default, lowest, highest, RESUME_, help, also)
//   CHOICE (name, default, choices, RESUME_, help, also)    o->name is one of OPT_name_choice
//   ENUM (name, type, default, (choice, value) ..., RESUME_, help, also)    o->name is of an enum of a module below
//   TEXT (name, default, choices or NULL, RESUME_, help, also)      if choices end in ..., other values are allowed
//   FLAG (name, RESUME_, help, also)                        off unless given
// A default that is below the lowest value, `preset` or PRESET means "not given", and cannot be typed: something else
// decides then, mostly the preset.
// also: names of the same option in other programs, if there are any; those with one dash are llm.c's, which are
// explained but not taken.
enum { LAYERS_MAX = 1000 };
#define OPTIONS(GROUP, INT, NUM, TEXT, CHOICE, ENUM, FLAG) \
  GROUP(MODEL, "model") \
  TEXT(model, "tiny", "tiny|small|gpt2|gpt2-medium|gpt2-large|gpt2-xl|modern-tiny|modern-small|modern|smollm2-135m|" \
      "smollm2-360m|llama-3.2-1b|qwen2.5-0.5b|qwen3-0.6b", SHAPE, "preset; options below override it") \
  INT(n_layer, 0, 1, LAYERS_MAX, SHAPE, "blocks (default: the preset's)", "num_layers num_hidden_layers n_layers") \
  INT(n_head, 0, 1, 1000, SHAPE, "attention heads; must divide n_embd without --head_size (default: the preset's)", \
      "num_heads n_heads num_attention_heads") \
  INT(n_embd, 0, 1, 65536, SHAPE, "width (default: the preset's)", "hidden_size d_model n_embed embed_dim") \
  INT(seq_len, 0, 1, 1 << 20, ORDER, "tokens per training sequence (default: the preset's; fewer to fine-tune on " \
      "chats)", "block_size max_seq_len max_seq_length seq_length sequence_length sequence_len context_length " \
      "cutoff_len model_max_length -t") \
  INT(n_positions, 0, 1, 1 << 20, SHAPE, "positions, >= seq_len; with rope for exports only (default: preset)", \
      "n_ctx max_position_embeddings") \
  INT(vocab_size, 0, 1, 1 << 24, SHAPE, "vocabulary of the tokenizer or token files (default: the preset's)", \
      "n_vocab") \
  NUM(dropout, 0.0, 0.0, 0.99, TAKES, "dropout on embeddings, attention and both residual branches") \
  CHOICE(tie_head, preset, (on, off), SHAPE, "LM head shares the token embedding (default: the preset's)", \
      "tie_word_embeddings") \
  GROUP(BLOCK, "block") \
  INT(n_kv_head, 0, 1, 1000, SHAPE, "KV heads; must divide n_head (default: the preset's, or n_head)") \
  INT(head_size, 0, 1, 65536, SHAPE, "head dim (default: the preset's, or n_embd / n_head)") \
  INT(mlp_width, 0, 1, 1 << 20, SHAPE, "width of the MLP (default: the preset's, or 4 n_embd)") \
  ENUM(norm, Norm, PRESET, ((layernorm, NORM_LAYERNORM), (rmsnorm, NORM_RMSNORM)), \
      SHAPE, "of attention, the MLP and the head (default: the preset's)") \
  ENUM(norm_place, NormPlace, PRESET, ((before, NORM_BEFORE), (behind, NORM_BEHIND), (both, NORM_BOTH)), SHAPE, \
      "norms before attention and the MLP, after them, or both (default: preset)") \
  CHOICE(norm_weight, preset, (on, off), SHAPE, "norms have a weight (default: the preset's)") \
  CHOICE(norm_embedding, preset, (on, off), SHAPE, \
      "an RMSNorm without weights after the embedding (default: preset)") \
  NUM(norm_eps, 0.0, 1e-12, 1.0, SHAPE, "added to a norm's variance or mean square (default: the preset's)") \
  ENUM(position, Position, PRESET, ((learned, POSITION_LEARNED), (rope, POSITION_ROPE)), \
      SHAPE, "learned positions, or q and k rotated (default: the preset's)") \
  NUM(rope_theta, 0.0, 1.0, 1e12, SHAPE, "rope: base of the wave lengths (default: the preset's)") \
  TEXT(rope_scaling, "", "none|...", SHAPE, \
      "rope: none, linear:X, llama3:X,LOW,HIGH,POSITIONS, yarn:... (default: preset)") \
  INT(rope_skip, -1, 0, LAYERS_MAX, SHAPE, \
      "rope: every N-th block is a NoPE layer (0: none; default: the preset's)") \
  INT(window, -1, 0, 1 << 20, SHAPE, "tokens that one attends to, itself included (0: all; default: the preset's)", \
      "sliding_window") \
  INT(window_skip, -1, 0, LAYERS_MAX, SHAPE, "every N-th block attends to all tokens (0: none; default: the " \
      "preset's)", "sliding_window_pattern") \
  NUM(window_theta, -1.0, 0.0, 1e12, SHAPE, \
      "rope: base in blocks with a window, unscaled (0: as others; default: preset)", "rope_local_base_freq") \
  ENUM(qk_norm, QkNorm, PRESET, ((off, QK_NORM_OFF), (before, QK_NORM_BEFORE), (after, QK_NORM_AFTER), \
      (all, QK_NORM_ALL)), SHAPE, \
      "RMSNorm of each head's q and k, before or after rope; or of all (default: preset)") \
  NUM(attention_scale, -1.0, 0.0, 1e6, SHAPE, \
      "scores are divided by the root of X (0: of head_size; default: preset)", "query_pre_attn_scalar") \
  CHOICE(embedding_scale, preset, (off, on), SHAPE, \
      "the embedding is multiplied by the root of n_embd (default: the preset's)") \
  ENUM(mlp, Mlp, PRESET, MLP_CHOICES, SHAPE, "between the MLP's matrices (default: the preset's)") \
  ENUM(bias, Biases, PRESET, ((all, BIAS_ALL), (none, BIAS_NONE), (qkv, BIAS_QKV), (qkvo, BIAS_QKVO)), SHAPE, \
      "which matrices have biases; all: LayerNorms too (default: preset)") \
  NUM(logit_softcap, -1.0, 0.0, 1e6, SHAPE, "logit soft-capping: X tanh(logit / X) (0: off; default: the preset's)") \
  GROUP(TRAINING, "training") \
  INT(epochs, 0, 1, 1000000, STEP, "passes over the training tokens (default: 1, of chats 5, or by --max_steps)", \
      "num_epochs num_train_epochs n_epochs max_epochs") \
  INT(max_steps, 0, 1, 1LL << 40, STEP, "stop after this many steps, whatever the epoch (default: --epochs decides)", \
      "max_iters max_train_steps num_iterations train_iters num_steps -x") \
  INT(batch_size, 8, 0, 1 << 20, STEP, "sequences per microbatch and rank (0, auto: the most that fit)", \
      "per_device_train_batch_size micro_batch_size train_micro_batch_size_per_gpu device_batch_size -b") \
  INT(grad_accum, 0, 1, 1 << 20, OWN, "microbatches per step and rank (default: 1, or what --global_batch needs)") \
  INT(global_batch, 0, 1, 1 << 24, STATE, "sequences per step over all ranks; batch_size x ranks must divide it", \
      "global_batch_size") \
  FLAG(fill_step, STATE, "ranks that --global_batch has no sequences for compute empty ones") \
  ENUM(loss, PreferenceLoss, PREFERENCE_NONE, ((tokens, PREFERENCE_NONE), (dpo, PREFERENCE_DPO), \
      (ipo, PREFERENCE_IPO), (hinge, PREFERENCE_HINGE), (simpo, PREFERENCE_SIMPO), (orpo, PREFERENCE_ORPO)), ORDER, \
      "of every token; or of preferences, records with chosen and rejected", "pref_loss rl") \
  NUM(dpo_beta, -1.0, 0.0, 1e6, ORDER, "preferences: beta, what rewards are multiplied by (default: 0.1; simpo: 2)", \
      "pref_beta rl_beta") \
  NUM(dpo_smoothing, 0.0, 0.0, 0.5, ORDER, "dpo, simpo: probability that a preference is the wrong way round", \
      "label_smoothing dpo_label_smoothing") \
  NUM(simpo_gamma, 1.0, 0.0, 1e6, ORDER, "simpo: margin by which the chosen answer is to win") \
  CHOICE(reference, start, (start, base), ORDER, "dpo, ipo, hinge: by what the run starts from, or without adapters") \
  CHOICE(on_nan, stop, (stop, skip, dump), STEP, "loss or gradient not finite: stop; skip the step; or dump it") \
  INT(seed, 1, 0, INT64_MAX, ORDER, "seed of initialisation, data order, dropout and sampling", \
      "random_seed manual_seed random_state") \
  GROUP(OPTIMIZER, "optimizer") \
  ENUM(optimizer, OptimizerKind, PRESET, ((adamw, OPTIMIZER_ADAMW), (sgd, OPTIMIZER_SGD), (muon, OPTIMIZER_MUON)), \
      STATE, "AdamW; SGD; Muon: for blocks' matrices, else AdamW (default: the preset's)") \
  NUM(lr, 0.0, 1e-20, 1000.0, STEP, "peak learning rate (default: the preset's; --init_from: 2e-5, --lora: 2e-4)", \
      "learning_rate max_lr -l") \
  CHOICE(schedule, cosine, (cosine, linear, constant, step, wsd), STEP, "after warm-up; step: StepLR, by --gamma", \
      "-k") \
  NUM(warmup, 0.05, 0.0, 1e9, STEP, "warm-up steps; below 1: as a fraction of all steps (--init_from: 0.03)", "-u") \
  NUM(min_lr_ratio, 0.1, 0.0, 1.0, STEP, "the schedule ends at this fraction of lr", \
      "learning_rate_decay_frac final_lr_frac cosine_min_lr_ratio -q") \
  NUM(gamma, 0.7, 0.0, 1.0, STEP, "step: factor every --step_epochs; giving it alone chooses --schedule step") \
  INT(step_epochs, 1, 1, 1000000, STEP, "step: epochs between two multiplications by gamma") \
  NUM(decay_fraction, 0.2, 0.0, 1.0, STEP, "wsd: the rate falls linearly over this last fraction of the steps") \
  NUM(weight_decay, 0.1, 0.0, 100.0, STEP, "on matrices and embeddings, not norms and biases (--init_from: 0)", \
      "wd -c") \
  NUM(beta1, 0.9, 0.0, 0.999999, STEP, "AdamW: decay of the first moment", "adam_beta1") \
  NUM(beta2, 0.95, 0.0, 0.999999, STEP, "AdamW: decay of the second moment", "adam_beta2") \
  NUM(eps, 1e-8, 1e-20, 1.0, STEP, "AdamW: added to the root of the second moment", "adam_epsilon adam_eps epsilon") \
  CHOICE(moment_dtype, fp32, (fp32, bf16), STEP, "AdamW: stored moments; bf16: half as large, rounded stochastically") \
  NUM(momentum, 0.9, 0.0, 0.999999, STEP, "SGD: momentum") \
  NUM(muon_momentum, 0.95, 0.0, 0.999999, STEP, "Muon: momentum") \
  CHOICE(muon_nesterov, on, (on, off), STEP, "Muon: Nesterov's momentum") \
  CHOICE(muon_adjust, match_rms_adamw, (match_rms_adamw, original), STEP, \
      "Muon: size of updates; that of AdamW, so that --lr fits both") \
  NUM(clip, 1.0, 0.0, 1e30, STEP, "clip the global gradient norm (0: off)", \
      "max_grad_norm grad_clip clip_grad clip_grad_norm gradient_clipping gradient_clip_val") \
  TEXT(no_decay, "", NULL, STEP, "parameters without weight decay: globs of names, like wte,wpe,h.*.attn.*") \
  TEXT(lr_scale, "", NULL, STEP, "factors of the learning rate: glob=X,... of names, like wte=0.1,h.0.*=2") \
  TEXT(freeze, "", NULL, STATE, "parameters not to train: globs of names, like wte,h.0.*,*.ln_*") \
  GROUP(LORA, "adapters") \
  INT(lora, 0, 0, 1024, ORDER, "rank of adapters to train beside frozen weights, those of --init_from (0: none)", \
      "lora_rank lora_r r") \
  NUM(lora_alpha, 0.0, 1e-20, 1e6, ORDER, "an adapter's product is multiplied by alpha / rank (default: 2 ranks)") \
  NUM(lora_dropout, 0.0, 0.0, 0.99, STEP, "dropout on what adapters read") \
  CHOICE(lora_scale, rank, (rank, root), ORDER, "alpha is divided by the rank; root: by its square root, rsLoRA") \
  TEXT(lora_targets, "all", "all|...", ORDER, "matrices by their files' names, like q_proj,v_proj; all: of blocks", \
      "lora_target lora_target_modules target_modules") \
  TEXT(lora_from, "", NULL, OWN, "adapter to start with, a directory as PEFT writes it; rank and targets are its", \
      "adapter_name_or_path lora_model_dir") \
  FLAG(merge, OWN, "write the merged model: adapters are added in fp32") \
  CHOICE(base_dtype, auto, (auto, file, param, q8_0, nf4), ORDER, \
      "frozen weights: the file's, param_dtype, or quantized (auto: file if it is)") \
  TEXT(train_rows, "", NULL, ORDER, \
      "FIRST:LAST: rows of embedding and head to train beside adapters") \
  GROUP(DATA, "data") \
  TEXT(data, "", NULL, QUIET, \
      "text, chats, directory, .bin, a:0.7,b:0.3, random, generated (default: WikiText-2)", \
      "data_dir data_path -i") \
  TEXT(val_data, "", NULL, QUIET, "what is evaluated on (default: found beside --data, or held out)", \
      "val_data_path -j") \
  CHOICE(data_as, auto, (auto, text), QUIET, "JSON, CSV and others as text, braces and keys too (auto: by content)", \
      "data_format dataset_format ds_type") \
  TEXT(tokenizer, "", NULL, OWN, "tokenizer.json, or directory with it or vocab.json, merges.txt (default: train)", \
      "tokenizer_path tokenizer_file") \
  TEXT(add_tokens, "", "auto|...", OWN, \
      "file of tokens to add to --init_from, lines or JSON; auto: those without rows") \
  TEXT(encode, "", NULL, OWN, "OUT FILE...: write token files of texts into OUT; continues where it was ended") \
  CHOICE(document_token, before, (before, behind, none), OWN, \
      "--encode: before documents (llm.c, nanochat), behind (llmq), or none") \
  TEXT(text_column, "", NULL, QUIET, "the column of .parquet files (default: text, or the only one of strings)") \
  TEXT(cache, "data/cache", NULL, OWN, "directory for trained tokenizers and encoded tokens") \
  TEXT(chat_template, "auto", \
       "auto|model|chatml|qwen2.5|qwen3|qwen3-2507|qwen3-free|smollm2|smollm3|llama3|llama3.0|zephyr|gemma|gemma3|" \
       "mistral-v1|mistral-v3|mistral-nemo|...", ORDER, \
       "Jinja file, or name: renders messages (auto, model: the model's own)") \
  TEXT(chat_date, "26 Jul 2024", NULL, ORDER, "what chat templates are told is today, the same at any time") \
  TEXT(chat_template_kwargs, "", NULL, ORDER, "JSON of more variables of it, like {\"enable_thinking\": false}") \
  INT(show_chats, 0, 0, 1 << 20, OWN, "print so many conversations, [[ ]] around what is trained on, and end") \
  CHOICE(train_on, assistant, (assistant, last, all), ORDER, \
         "conversations: the loss is of all answers, the last one, or everything") \
  CHOICE(pairs, text, (text, chat), ORDER, "prompts with completions: as they are, or as messages by the template") \
  TEXT(fields, "", NULL, ORDER, "names of keys, as in prompt=question,completion=answer (default: by schema)") \
  CHOICE(pack, whole, (whole, stream), ORDER, "conversations: whole, apart from each other; or as one stream") \
  CHOICE(too_long, cut, (cut, drop), ORDER, "conversations longer than --seq_len: cut their end, or leave them out") \
  CHOICE(shuffle, on, (on, off), ORDER, "a new order every epoch, the same for every number of ranks") \
  CHOICE(drop_last, on, (on, off), ORDER, "drop an incomplete last global batch; off: fill it from the epoch's start") \
  GROUP(PRECISION, "precision") \
  CHOICE(param_dtype, fp32, (fp32, bf16, fp16), TAKES, "stored and gathered parameters; masters are fp32") \
  CHOICE(reduce_dtype, fp32, (fp32, bf16, fp16), TAKES, "communicated gradients; they are added up in fp32") \
  CHOICE(buffer_dtype, auto, (auto, fp32, bf16, fp16), TAKES, "activations and GEMM inputs (auto: param_dtype)") \
  CHOICE(logits_dtype, auto, (auto, fp32, bf16), STEP, \
      "in training; auto: bf16 on GPUs with --buffer_dtype bf16 and --loss tokens") \
  ENUM(fp8, Fp8, FP8_OFF, ((off, FP8_OFF), (gather, FP8_GATHER), (matmul, FP8_MATMUL)), \
      TAKES, "gather blocks' matrices in E4M3; matmul: multiply in it too") \
  NUM(loss_scale, 0.0, 0.0, 1e9, TAKES, "fixed loss scale (0: 1, and dynamic from 65536 for fp16)") \
  GROUP(SHARDING, "sharding") \
  CHOICE(strategy, full_shard, (full_shard, shard_grad_op, hybrid_shard, no_shard, zero3, zero2, zero1, ddp), OWN, \
      "what is sharded over the ranks; zero1: the optimizer only", "sharding_strategy fsdp_sharding_strategy") \
  TEXT(mesh, "", NULL, OWN, "RxS: R replicas of S shards (default: 1xN; hybrid_shard: hosts x ranks per host)") \
  TEXT(reshard_after_forward, "auto", "auto|on|off|...", OWN, \
      "or a number K: keep blocks sharded over groups of K ranks", "fsdp_reshard_after_forward") \
  INT(gather_slots, 2, 1, 1000, OWN, "all-gather buffers: whole blocks in memory, at work or prefetched") \
  ENUM(shard, ShardLayout, SHARD_FLAT, ((flat, SHARD_FLAT), (dim0, SHARD_DIM0)), \
      OWN, "how a unit is cut: as one range, or each parameter by rows") \
  TEXT(wrap, "block", "block|model|...", OWN, \
      "units: block; model (one); min_params:N (modules of N parameters or more)") \
  CHOICE(accumulate, sharded, (sharded, local), STEP, "reduce each microbatch; local: add up whole, reduce once") \
  ENUM(offload, Offload, OFFLOAD_NONE, ((none, OFFLOAD_NONE), (optimizer, OFFLOAD_OPTIMIZER), \
      (params, OFFLOAD_PARAMS)), OWN, "cuda: optimizer, or parameter shards too, on the host") \
  TEXT(recompute, "auto", "auto|none|gelu|norm|mlp|block|...", OWN, "or block:5,mlp; auto: norm, on cuda none") \
  CHOICE(comm, auto, (auto, mpi, self, nccl), OWN, "transport; self: one rank; nccl: cuda, one rank per GPU") \
  CHOICE(reduce, ordered, (ordered, native), STEP, "native: NCCL's sum, whose bits depend on the ranks") \
  ENUM(between_hosts, BetweenHosts, BETWEEN_AUTO, ((auto, BETWEEN_AUTO), (chain, BETWEEN_CHAIN), \
      (direct, BETWEEN_DIRECT)), OWN, \
      "gradients: inter-node reduction chain, or direct; cpu: fewer bytes") \
  CHOICE(shm, on, (on, copy, off), OWN, "ranks of a host read shards zero-copy; copy: gather them; off: messages") \
  GROUP(DEVICE, "device") \
  CHOICE(device, auto, (auto, cpu, cuda), OWN, "where to compute") \
  FLAG(no_cuda, OWN, "the same as --device cpu") \
  CHOICE(graph, auto, (auto, on, off), OWN, "cuda: capture a step once, then replay it (not with --comm mpi)") \
  CHOICE(tune, off, (off, on, any), OWN, \
      "cuda: time GEMM algorithms at start; any: of other bits too") \
  TEXT(plans, "", NULL, OWN, "cuda: GEMM algorithms of FILE; with --tune any, write FILE") \
  TEXT(sm_margin, "0", "0|auto|...", TAKES, "cuda: SMs reserved for NCCL, not used by GEMMs; auto: by GPU model") \
  CHOICE(attention, auto, (auto, wgmma, mma), TAKES, \
      "cuda: Hopper's kernels, or every GPU's (auto: Hopper's where all have it)") \
  CHOICE(matmul_precision, highest, (highest, high), TAKES, "fp32 GEMMs; high: TF32 (cuda), six of bf16 (amx)") \
  CHOICE(isa, auto, (auto, avx2, avx512, avx512_bf16, amx, neon, neon_bf16), OWN, \
         "auto: the best that all ranks have") \
  FLAG(preflight, OWN, "look at all hosts and the network between them, say what to mend, and end") \
  INT(threads, 0, 0, 4096, OWN, "threads per rank (0: one for each core it is assigned)", "num_threads n_threads") \
  INT(timeout, 600, 0, 1 << 30, OWN, "end all after N seconds without progress or word of a rank (0: never)") \
  INT(restarts, 0, 0, 1000000, OWN, "start again after a crash, from the newest checkpoint, at most N times") \
  INT(restart_wait, 30, 1, 1 << 30, OWN, "--restarts: seconds to wait for a host before continuing without it") \
  TEXT(flight, "", NULL, OWN, "compare what ranks did last: OUT, or FILE... of its flight-RANK.json; then end") \
  GROUP(RANKS, "ranks") \
  TEXT(rdzv, "auto", "auto|none|...", OWN, "or env://, tcp://HOST:PORT, file:///shared/dir; none: one rank alone") \
  INT(nnodes, 1, 1, 1 << 20, OWN, "processes that are started, one on each host: with --rdzv tcp:// or file://") \
  INT(node_rank, 0, 0, 1 << 20, OWN, "which of them this is; 0 on HOST") \
  INT(nproc_per_node, 1, 1, 65536, OWN, "ranks to run in its place") \
  TEXT(rdzv_token, "", NULL, OWN, "file with a secret that all processes know (or RDZV_TOKEN is that secret)") \
  GROUP(EVALUATION, "evaluation and samples") \
  INT(eval_every, 0, -1, INT64_MAX, QUIET, "steps between validations (0: an epoch; -1: never)", \
      "eval_interval eval_steps run_val_every_n_steps -v") \
  INT(test_batch_size, 0, 1, 1 << 20, QUIET, "sequences per batch and rank (default: batch_size)", \
      "per_device_eval_batch_size eval_batch_size batch_size_val") \
  FLAG(eval_only, OWN, "evaluate --resume or --init_from on both splits; train nothing") \
  FLAG(sample_only, OWN, "sample from --resume or --init_from; needs no data, trains nothing") \
  TEXT(prompt, "", NULL, OWN, "text to continue at the end (default: a newline, or the end of a text)") \
  CHOICE(prompt_as, auto, (auto, text, user), OWN, \
      "a user's message, or a text; auto: a message if the model has a template") \
  INT(sample_tokens, 64, 0, 1 << 20, QUIET, "tokens to generate at the end (0: none)", "max_new_tokens -g") \
  NUM(temperature, 0.8, 0.0, 100.0, QUIET, "divides the logits; 0: always the most probable token") \
  INT(top_k, 40, 0, 1 << 24, QUIET, "sample from the k most probable tokens (0: all)") \
  NUM(top_p, 1.0, 0.0, 1.0, QUIET, "sample from the most probable that together reach this (1: all)") \
  NUM(min_p, 0.0, 0.0, 1.0, QUIET, "leave out what is less likely than this times the most probable") \
  NUM(repetition_penalty, 1.0, 1e-3, 1e3, QUIET, "divides positive logits of tokens seen, multiplies others (1: off)", \
      "repeat_penalty") \
  CHOICE(sampler, transformers, (transformers, llama_cpp), QUIET, \
      "the order of cuts; llama_cpp: temperature last, penalty of 64 tokens") \
  TEXT(stop, "", NULL, OWN, "texts that end generation, apart by |; \\n is a newline", "stop_strings") \
  FLAG(interactive, OWN, "type to the model and read its text as it comes, by its chat template if it has one") \
  TEXT(eval, "", NULL, OWN, "files to evaluate, with commas: HellaSwag, choices, LAMBADA, wikitext, as .jsonl") \
  CHOICE(eval_style, harness, (harness, llmc), OWN, "texts and numbers of lm-evaluation-harness, or llm.c's") \
  TEXT(prompts, "", NULL, OWN, "file of texts to continue, a line each, or .jsonl of {\"prompt\"}: OUT/samples.jsonl") \
  GROUP(OUTPUT, "output") \
  TEXT(out, "out", NULL, OWN, "directory for report.html, metrics.jsonl, options.txt, sample.txt, ckpt/ ...", \
      "output_dir out_dir output -o") \
  INT(log_every, 0, 0, INT64_MAX, OWN, "steps between plain progress lines (0: about fifty lines a run)", \
      "log_interval logging_steps log_every_n_steps") \
  FLAG(log_layers, OWN, "metrics.jsonl: gradient norm and update ratio of each unit, in each step") \
  FLAG(verbose, OWN, "print configuration, units, memory plan and traffic; metrics.jsonl always has them") \
  TEXT(report, "on", "on|off|...", OWN, "OUT/report.html, a page of the run; or RUN1,RUN2,...: of several") \
  TEXT(trace, "", NULL, OWN, "file: a timeline of some steps of all ranks, for Perfetto or chrome://tracing") \
  TEXT(trace_steps, "3:5", NULL, OWN, "steps to trace, first:last, counted from where this run starts") \
  FLAG(tensorboard, OWN, "also write loss, lr, |g|, tokens/s and validation as event files: OUT/tensorboard") \
  FLAG(save_model, OWN, "write the final weights to OUT/model.safetensors, fp32") \
  TEXT(export_hf, "", NULL, OWN, "write the final weights as a directory for Hugging Face transformers") \
  CHOICE(export_dtype, fp32, (fp32, bf16), OWN, "of --export_hf's merged model") \
  CHOICE(export_gguf, off, (off, f32, f16, bf16, q8_0, adapter), OWN, \
      "for llama.cpp: OUT/model.gguf; adapters (f16, or as named): OUT/adapter.gguf") \
  GROUP(CHECKPOINTS, "checkpoints") \
  INT(save_every, 0, -1, INT64_MAX, QUIET, "steps between checkpoints, in OUT/ckpt (0: an epoch; -1: never)", \
      "save_steps save_interval checkpoint_interval save_every_n_steps -n") \
  FLAG(save_async, QUIET, "write checkpoints in the background, from a snapshot in host memory") \
  INT(keep, 2, 0, 1 << 20, QUIET, "number of newest checkpoints to keep (0: all)", \
      "save_total_limit keep_last_n_checkpoints -nk") \
  FLAG(keep_best, QUIET, "also save and keep the checkpoint with the lowest validation loss") \
  TEXT(resume, "", NULL, OWN, "continue from auto (or nothing): the newest in OUT/ckpt, if any; or PATH", \
      "resume_from_checkpoint resume_from") \
  TEXT(init_from, "", NULL, OWN, "weights: checkpoint, Hugging Face directory, .gguf, .safetensors, llm.c .bin") \
  GROUP(PLAN, "plan") \
  CHOICE(plan, off, (off, on, search), OWN, "print what the run would need and how long; search: what fits best") \
  INT(world, 1, 1, 1 << 20, OWN, "ranks to plan for, none of which need be there") \
  INT(ranks_per_host, 0, 1, 1 << 20, OWN, "ranks to plan for on each host (default: 8; on a CPU all)") \
  TEXT(on, "", "h100|h200|b200|a100|4090|cpu|...", OWN, "predict times on it; NAME,KEY=X,... changes its figures") \
  INT(tokens, 0, 1, 1LL << 60, OWN, "also predict how long a training on N tokens would take") \
  FLAG(json, OWN, "print the plan as JSON, with every figure") \
  GROUP(OTHER, "other") \
  TEXT(config, "", NULL, OWN, "file of options, one per line: key = value; the command line wins (OUT/options.txt)")

// Learning rates of the GPT-2 sizes: Brown et al. 2020, table 2.1; of modern ones, measured for Muon (docs/results.md).
// block: options that differ from GPT-2's; the first value counts, and what is left out is in preset_block.
struct Preset {
  const char *name;
  int64_t n_layer, n_head, n_embd, seq_len, n_positions, vocab_size;
  double lr;
  const char *block;
};
static const char preset_block[] = "norm=layernorm norm_place=before norm_weight=on norm_embedding=off norm_eps=1e-5 "
    "position=learned rope_theta=10000 rope_scaling=none rope_skip=0 window=0 window_skip=0 window_theta=0 "
    "attention_scale=0 embedding_scale=off qk_norm=off mlp=gelu bias=all logit_softcap=0 tie_head=on optimizer=adamw";
#define LLAMA_BLOCK "norm=rmsnorm position=rope mlp=swiglu bias=none"
#define SMOLLM2_BLOCK "rope_theta=1e5 head_size=64 " LLAMA_BLOCK
#define MODERN_BLOCK "qk_norm=before tie_head=off optimizer=muon " LLAMA_BLOCK
static const Preset presets[] = {
    {"tiny", 4, 4, 128, 128, 128, 2048, 3e-3, ""},
    {"small", 6, 8, 512, 256, 256, 5000, 1e-3, ""},
    {"gpt2", 12, 12, 768, 1024, 1024, 50257, 6e-4, ""},
    {"gpt2-medium", 24, 16, 1024, 1024, 1024, 50257, 3e-4, ""},
    {"gpt2-large", 36, 20, 1280, 1024, 1024, 50257, 2.5e-4, ""},
    {"gpt2-xl", 48, 25, 1600, 1024, 1024, 50257, 2e-4, ""},
    {"modern-tiny", 4, 2, 128, 128, 128, 2048, 4e-3, "mlp_width=352 " MODERN_BLOCK},
    {"modern-small", 6, 8, 512, 256, 256, 5000, 4e-3, "mlp_width=1376 " MODERN_BLOCK},
    {"modern", 12, 12, 768, 1024, 1024, 50257, 2.4e-3, "mlp_width=2048 " MODERN_BLOCK},
    {"smollm2-135m", 30, 9, 576, 1024, 8192, 49152, 6e-4, "n_kv_head=3 mlp_width=1536 " SMOLLM2_BLOCK},
    {"smollm2-360m", 32, 15, 960, 1024, 8192, 49152, 5e-4, "n_kv_head=5 mlp_width=2560 " SMOLLM2_BLOCK},
    {"llama-3.2-1b", 16, 32, 2048, 1024, 131072, 128256, 3e-4, "n_kv_head=8 head_size=64 mlp_width=8192 "
     "rope_theta=5e5 rope_scaling=llama3:32,1,4,8192 " LLAMA_BLOCK},
    {"qwen2.5-0.5b", 24, 14, 896, 1024, 32768, 151936, 4e-4, "n_kv_head=2 head_size=64 mlp_width=4864 "
     "bias=qkv rope_theta=1e6 norm_eps=1e-6 " LLAMA_BLOCK},
    {"qwen3-0.6b", 28, 16, 1024, 1024, 40960, 151936, 4e-4, "n_kv_head=8 head_size=128 mlp_width=3072 "
     "qk_norm=before rope_theta=1e6 norm_eps=1e-6 " LLAMA_BLOCK}};

enum OptionType { OPTION_INT, OPTION_NUM, OPTION_TEXT, OPTION_CHOICE, OPTION_FLAG };
enum { OPTION_TEXT_BYTES = 1024 };

// GROUP_name: the first option of a group.
enum OptionId {
#define OPTION_ID(name, ...) OPT_##name,
#define OPTION_ID_GROUP(id, title) GROUP_##id, BEFORE_##id = GROUP_##id - 1,
  OPTIONS(OPTION_ID_GROUP, OPTION_ID, OPTION_ID, OPTION_ID, OPTION_ID, OPTION_ID, OPTION_ID)
  OPTION_COUNT
};

// f(name, choice) for each of (choice, ...).
#define CHOICES(f, name, choices) CHOICES_EACH(f, name, CHOICES_OF choices)
#define CHOICES_OF(...) __VA_ARGS__
#define CHOICES_EACH(f, name, ...) \
  CHOICES_PICK(__VA_ARGS__, CHOICES_8, CHOICES_7, CHOICES_6, CHOICES_5, CHOICES_4, CHOICES_3, CHOICES_2, CHOICES_1, 0) \
  (f, name, __VA_ARGS__)
#define CHOICES_PICK(a, b, c, d, e, g, h, i, each, ...) each
#define CHOICES_1(f, name, a) f(name, a)
#define CHOICES_2(f, name, a, ...) f(name, a) CHOICES_1(f, name, __VA_ARGS__)
#define CHOICES_3(f, name, a, ...) f(name, a) CHOICES_2(f, name, __VA_ARGS__)
#define CHOICES_4(f, name, a, ...) f(name, a) CHOICES_3(f, name, __VA_ARGS__)
#define CHOICES_5(f, name, a, ...) f(name, a) CHOICES_4(f, name, __VA_ARGS__)
#define CHOICES_6(f, name, a, ...) f(name, a) CHOICES_5(f, name, __VA_ARGS__)
#define CHOICES_7(f, name, a, ...) f(name, a) CHOICES_6(f, name, __VA_ARGS__)
#define CHOICES_8(f, name, a, ...) f(name, a) CHOICES_7(f, name, __VA_ARGS__)

// The choices of an option are numbered from 0 in the order of the table. Where the choices of an option are values of
// an enum declared elsewhere (ENUM), the table must have them in the order of that enum: PAIR_CHECK.
enum { PRESET = -1 };                            // not given: the preset decides
#define OPTION_NOTHING(...)
#define CHOICE_ID(name, choice) OPT_##name##_##choice,
#define OPTION_CHOICES(name, def, choices, ...) \
  enum Choice_##name { OPT_##name##_preset = PRESET, CHOICES(CHOICE_ID, name, choices) };
#define PAIR_PLACE(name, pair) PAIR_PLACE_ pair
#define PAIR_PLACE_(word, value) PLACE_##value,
#define PAIR_CHECK(name, pair) PAIR_CHECK_ pair
#define PAIR_CHECK_(word, value) static_assert((int)value == (int)PLACE_##value, "not in the order of the enum");
#define OPTION_PLACES(name, type, def, pairs, ...) \
  enum { CHOICES(PAIR_PLACE, name, pairs) }; \
  CHOICES(PAIR_CHECK, name, pairs)
OPTIONS(OPTION_NOTHING, OPTION_NOTHING, OPTION_NOTHING, OPTION_NOTHING, OPTION_CHOICES, OPTION_PLACES, OPTION_NOTHING)

// The most matrices of a model as files have them, separately: 7 of a block (q, k, v, o; gate, up, down), and 3 outside
// the blocks (token and position embedding, head).
enum { BASE_MATRICES_MAX = 7 * LAYERS_MAX + 3 };
struct TrainerTable;                             // options.h
struct Options {
  const TrainerTable *trainer;                   // the trainer whose options these are
#define OPTION_FIELD_INT(name, ...) int64_t name;
#define OPTION_FIELD_NUM(name, ...) double name;
#define OPTION_FIELD_TEXT(name, ...) char name[OPTION_TEXT_BYTES];
#define OPTION_FIELD_CHOICE(name, ...) Choice_##name name;
#define OPTION_FIELD_ENUM(name, type, ...) type name;
#define OPTION_FIELD_FLAG(name, ...) bool name;
  OPTIONS(OPTION_NOTHING, OPTION_FIELD_INT, OPTION_FIELD_NUM, OPTION_FIELD_TEXT, OPTION_FIELD_CHOICE, OPTION_FIELD_ENUM,
          OPTION_FIELD_FLAG)
  bool given[OPTION_COUNT];                      // by the command line or the file of --config
  bool in_file[OPTION_COUNT];                    // given only by the file of --config
  bool batch_auto;                               // batch_size is not decided yet, and 1 until then
  bool tuning;                                   // the run fine-tunes: options not given have other defaults
  int64_t longest;                               // tokens of the longest conversation, if it decided seq_len; else 0
  double conversations;                          // of a step, if they decided global_batch; else 0
  int64_t vocab_size_asked;                      // --vocab_size; a tokenizer trained for it may have fewer tokens
  int64_t gpu_head_chunk_bytes;                  // fp32 logits that a GPU computes at once; fixes a summation order
  uint8_t base_types[BASE_MATRICES_MAX];        // --base_dtype file: quantization of each matrix, in order of params
  int replicas, shards;                          // the mesh
  bool recompute_auto;                           // the level was chosen for the device
  int encode_at, encode_files;                   // words after --encode OUT: index of the first in argv; their number
};
