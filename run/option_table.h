// option_table.h: every option, once. The struct, the parser, --help, the printed configuration, options.txt and the
// checkpoint's record of them follow from it (options.h). And the presets of --model.
#pragma once
#include <stdint.h>

// INT, NUM (name, default, lowest, highest, group, help); TEXT (name, default, choices or NULL, group, help);
// FLAG (name, group, help): off unless given. Choices that end in ... allow
// other values too. A default below the lowest value, or an empty one of a choice, means that the preset decides.
enum { LAYERS_MOST = 1000 };
#define OPTIONS(INT, NUM, TEXT, FLAG) \
  TEXT(model, "tiny", \
       "tiny|small|gpt2|gpt2-medium|gpt2-large|gpt2-xl|smollm2-135m|smollm2-360m|llama-3.2-1b|" \
       "qwen2.5-0.5b|qwen3-0.6b", \
       "model", "preset; options below override it") \
  INT(n_layer, 0, 1, LAYERS_MOST, "model", "blocks (default: the preset's)") \
  INT(n_head, 0, 1, 1000, "model", "attention heads; must divide n_embd without --head_size (default: the preset's)") \
  INT(n_embd, 0, 1, 65536, "model", "width (default: the preset's)") \
  INT(seq_len, 0, 1, 1 << 20, "model", "tokens per training sequence (default: the preset's)") \
  INT(n_positions, 0, 1, 1 << 20, "model", "positions, >= seq_len; with rope for exports only (default: preset)") \
  INT(vocab_size, 0, 1, 1 << 24, "model", "vocabulary of the tokenizer or token files (default: the preset's)") \
  NUM(dropout, 0.0, 0.0, 0.99, "model", "dropout on embeddings, attention and both residual branches") \
  TEXT(tie_head, "on", "on|off", "model", "LM head shares the token embedding") \
  INT(n_kv_head, 0, 1, 1000, "block", "heads of k and v; must divide n_head (default: the preset's, or n_head)") \
  INT(head_size, 0, 1, 65536, "block", "columns of a head (default: the preset's, or n_embd / n_head)") \
  INT(mlp_width, 0, 1, 1 << 20, "block", "width of the MLP (default: the preset's, or 4 n_embd)") \
  TEXT(norm, "", "layernorm|rmsnorm", "block", "before attention, the MLP and the head (default: the preset's)") \
  TEXT(norm_weight, "", "on|off", "block", "norms have a weight (default: the preset's)") \
  TEXT(norm_embedding, "", "on|off", "block", "an RMSNorm without weights behind the embedding (default: preset)") \
  NUM(norm_eps, 0.0, 1e-12, 1.0, "block", "added to a norm's variance or mean square (default: the preset's)") \
  TEXT(position, "", "learned|rope", "block", "learned positions, or q and k turned (default: the preset's)") \
  NUM(rope_theta, 0.0, 1.0, 1e12, "block", "rope: base of the wave lengths (default: the preset's)") \
  TEXT(rope_scaling, "", "none|...", "block", \
       "rope: none, or llama3:FACTOR,LOW,HIGH,POSITIONS (default: the preset's)") \
  INT(rope_skip, -1, 0, LAYERS_MOST, "block", \
      "rope: every N-th block turns nothing (0: all turn; default: the preset's)") \
  TEXT(qk_norm, "", "off|before|after", "block", \
       "RMSNorm of each head's q and k, before or after rope (default: preset)") \
  TEXT(mlp, "", "gelu|relu2|swiglu", "block", "between the MLP's matrices (default: the preset's)") \
  TEXT(bias, "", "all|none|qkv|qkvo", "block", "which matrices have biases; all: LayerNorms too (default: preset)") \
  NUM(logit_softcap, -1.0, 0.0, 1e6, "block", "logits become X tanh(logit / X) (0: no; default: the preset's)") \
  INT(epochs, 0, 0, 1000000, "training", "passes over the training tokens (0: 1, or as many as --max_steps needs)") \
  INT(max_steps, 0, 0, 1LL << 40, "training", "stop after this many steps, whatever the epoch (0: --epochs decides)") \
  INT(batch_size, 8, 1, 1 << 20, "training", "sequences per microbatch and rank") \
  INT(grad_accum, 0, 0, 1 << 20, "training", "microbatches per step and rank (0: 1, or what --global_batch needs)") \
  INT(global_batch, 0, 0, 1 << 24, "training", "sequences per step over all ranks; batch_size x ranks must divide it") \
  TEXT(on_nan, "stop", "stop|skip|dump", "training", "loss or gradient not finite: stop; skip the step; or dump it") \
  INT(seed, 1, 0, INT64_MAX, "training", "seed of initialisation, data order, dropout and sampling") \
  TEXT(optimizer, "adamw", "adamw|sgd|muon", "optimizer", "AdamW; SGD; Muon: for blocks' matrices, else AdamW") \
  NUM(lr, 0.0, 1e-20, 1000.0, "optimizer", "peak learning rate (default: the preset's)") \
  TEXT(schedule, "cosine", "cosine|linear|constant|step|wsd", "optimizer", "after warm-up; step: StepLR, by --gamma") \
  NUM(warmup, 0.05, 0.0, 1e9, "optimizer", "warm-up steps; below 1: as a fraction of all steps") \
  NUM(min_lr_ratio, 0.1, 0.0, 1.0, "optimizer", "the schedule ends at this fraction of lr") \
  NUM(gamma, 0.7, 0.0, 1.0, "optimizer", "step: factor every --step_epochs; giving it alone chooses --schedule step") \
  INT(step_epochs, 1, 1, 1000000, "optimizer", "step: epochs between two multiplications by gamma") \
  NUM(decay_fraction, 0.2, 0.0, 1.0, "optimizer", "wsd: the rate falls linearly over this last fraction of the steps") \
  NUM(weight_decay, 0.1, 0.0, 100.0, "optimizer", "on matrices and embeddings; none on norms and biases") \
  NUM(beta1, 0.9, 0.0, 0.999999, "optimizer", "AdamW: decay of the first moment") \
  NUM(beta2, 0.95, 0.0, 0.999999, "optimizer", "AdamW: decay of the second moment") \
  NUM(eps, 1e-8, 1e-20, 1.0, "optimizer", "AdamW: added to the root of the second moment") \
  NUM(momentum, 0.9, 0.0, 0.999999, "optimizer", "SGD: momentum") \
  NUM(muon_momentum, 0.95, 0.0, 0.999999, "optimizer", "Muon: momentum") \
  TEXT(muon_nesterov, "on", "on|off", "optimizer", "Muon: Nesterov's momentum") \
  TEXT(muon_adjust, "match_rms_adamw", "match_rms_adamw|original", "optimizer", \
       "Muon: size of updates; that of AdamW, so that --lr fits both") \
  NUM(clip, 1.0, 0.0, 1e30, "optimizer", "clip the global gradient norm (0: off)") \
  TEXT(no_decay, "", NULL, "optimizer", "parameters without weight decay: globs of names, like wte,wpe,h.*.attn.*") \
  TEXT(lr_scale, "", NULL, "optimizer", "factors of the learning rate: glob=X,... of names, like wte=0.1,h.0.*=2") \
  TEXT(freeze, "", NULL, "optimizer", "parameters not to train: globs of names, like wte,h.0.*,*.ln_*") \
  TEXT(data, "", NULL, "data", "text, directory, .bin, random, generated (default: WIKITEXT2_DIR, data/wikitext-2)") \
  TEXT(tokenizer, "", NULL, "data", "tokenizer.json, or directory with it or vocab.json, merges.txt (default: train)") \
  TEXT(cache, "data/cache", NULL, "data", "directory for trained tokenizers and encoded tokens") \
  TEXT(shuffle, "on", "on|off", "data", "a new order every epoch, the same for every number of ranks") \
  TEXT(drop_last, "on", "on|off", "data", "drop an incomplete last global batch; off: fill it from the epoch's start") \
  TEXT(param_dtype, "fp32", "fp32|bf16|fp16", "precision", "stored and gathered parameters; masters are fp32") \
  TEXT(reduce_dtype, "fp32", "fp32|bf16|fp16", "precision", "gradients on the wire; they are added up in fp32") \
  TEXT(buffer_dtype, "auto", "auto|fp32|bf16|fp16", "precision", "activations and GEMM inputs (auto: param_dtype)") \
  TEXT(fp8, "off", "off|gather|matmul", "precision", "gather blocks' matrices in E4M3; matmul: multiply in it too") \
  NUM(loss_scale, 0.0, 0.0, 1e9, "precision", "fixed loss scale (0: 1, and dynamic from 65536 for fp16)") \
  TEXT(strategy, "full_shard", "full_shard|shard_grad_op|hybrid_shard|no_shard|zero3|zero2|zero1|ddp", "sharding", \
       "what is sharded over the ranks; zero1: the optimizer only") \
  TEXT(mesh, "", NULL, "sharding", "RxS: R replicas of S shards (default: 1xN; hybrid_shard: hosts x ranks per host)") \
  TEXT(reshard_after_forward, "auto", "auto|on|off|...", "sharding", \
       "or a number K: keep blocks sharded over groups of K ranks") \
  INT(gather_slots, 2, 1, 1000, "sharding", "whole blocks in memory at once: the one at work and those prefetched") \
  TEXT(shard, "flat", "flat|dim0", "sharding", "how a unit is cut: as one range, or each parameter by rows") \
  TEXT(wrap, "block", "block|model|...", "sharding", \
       "units: block; model (one); min_params:N (modules of N parameters or more)") \
  TEXT(accumulate, "sharded", "sharded|local", "sharding", "reduce each microbatch; local: add up whole, reduce once") \
  TEXT(offload, "none", "none|optimizer|params", "sharding", "cuda: optimizer, or parameter shards too, on the host") \
  TEXT(recompute, "auto", "auto|none|gelu|norm|mlp|block|...", "sharding", "or block:5,mlp; auto: norm, on cuda none") \
  TEXT(comm, "auto", "auto|mpi|self|nccl", "sharding", "transport; self: one rank; nccl: cuda, one rank per GPU") \
  TEXT(reduce, "ordered", "ordered|native", "sharding", "native: NCCL's sum, whose bits depend on the ranks") \
  TEXT(between_hosts, "auto", "auto|chain|direct", "sharding", \
       "gradients: sums along hosts, or each rank's to owners; cpu: fewer bytes") \
  TEXT(shm, "on", "on|copy|off", "sharding", "ranks of a host read shards in place; copy: gather them; off: messages") \
  TEXT(device, "auto", "auto|cpu|cuda", "device", "where to compute") \
  FLAG(no_cuda, "device", "the same as --device cpu") \
  TEXT(graph, "auto", "auto|on|off", "device", "cuda: capture a step once, then replay it (not with --comm mpi)") \
  TEXT(tune, "off", "off|on|plan", "device", "cuda: time GEMM algorithms at start; plan: measure this CPU, then end") \
  TEXT(sm_margin, "0", "0|auto|...", "device", "cuda: multiprocessors that GEMMs leave to NCCL; auto: by GPU model") \
  TEXT(matmul_precision, "highest", "highest|high", "device", "fp32 GEMMs; high: TF32 (cuda), six of bf16 (amx)") \
  TEXT(isa, "auto", "auto|avx2|avx512|avx512_bf16|amx", "device", "auto: the best that all ranks have") \
  FLAG(preflight, "device", "look at all hosts and the network between them, say what to mend, and end") \
  INT(threads, 0, 0, 4096, "device", "threads per rank (0: one for each core it is dealt)") \
  INT(timeout, 600, 0, 1 << 30, "device", "end all after N seconds without progress or word of a rank (0: never)") \
  TEXT(rdzv, "auto", "auto|none|...", "ranks", "or env://, tcp://HOST:PORT, file:///shared/dir; none: one rank alone") \
  INT(nnodes, 1, 1, 1 << 20, "ranks", "processes that are started, one on each host: with --rdzv tcp:// or file://") \
  INT(node_rank, 0, 0, 1 << 20, "ranks", "which of them this is; 0 on HOST") \
  INT(nproc_per_node, 1, 1, 65536, "ranks", "ranks to run in its place") \
  TEXT(rdzv_token, "", NULL, "ranks", "file with a secret that all processes know (or RDZV_TOKEN is that secret)") \
  INT(restarts, 0, 0, 1000000, "device", "start again after a crash, from the newest checkpoint, at most N times") \
  INT(restart_wait, 30, 1, 1 << 30, "ranks", "--restarts: seconds to wait for a host before going on without it") \
  TEXT(flight, "", NULL, "device", "compare what ranks did last: OUT, or FILE... of its flight-RANK.json; then end") \
  INT(eval_every, 0, -1, INT64_MAX, "evaluation and samples", "steps between validations (0: an epoch; -1: never)") \
  INT(test_batch_size, 0, 0, 1 << 20, "evaluation and samples", "sequences per batch and rank (0: batch_size)") \
  FLAG(eval_only, "evaluation and samples", "evaluate --resume or --init_from on both splits; train nothing") \
  FLAG(sample_only, "evaluation and samples", "sample from --resume or --init_from; needs no data, trains nothing") \
  TEXT(prompt, "", NULL, "evaluation and samples", "text to continue at the end (default: a newline)") \
  INT(sample_tokens, 64, 0, 1 << 20, "evaluation and samples", "tokens to generate at the end (0: none)") \
  NUM(temperature, 0.8, 0.0, 100.0, "evaluation and samples", "divides the logits; 0: always the likeliest token") \
  INT(top_k, 40, 0, 1 << 24, "evaluation and samples", "draw among the k likeliest tokens (0: among all)") \
  TEXT(out, "out", NULL, "output", "directory for report.html, metrics.jsonl, options.txt, sample.txt, ckpt/ ...") \
  INT(log_every, 0, 0, INT64_MAX, "output", "steps between plain progress lines (0: about fifty lines a run)") \
  FLAG(log_layers, "output", "metrics.jsonl: gradient norm and update ratio of each unit, in each step") \
  FLAG(verbose, "output", "print configuration, units, memory plan and traffic; metrics.jsonl always has them") \
  TEXT(report, "on", "on|off|...", "output", "OUT/report.html, a page of the run; or RUN1,RUN2,...: of several") \
  TEXT(trace, "", NULL, "output", "file: a timeline of some steps of all ranks, for Perfetto or chrome://tracing") \
  TEXT(trace_steps, "3:5", NULL, "output", "steps to trace, first:last, counted from where this run starts") \
  FLAG(tensorboard, "output", "also write loss, lr, |g|, tokens/s and validation as event files: OUT/tensorboard") \
  FLAG(save_model, "output", "write the final weights to OUT/model.safetensors, fp32") \
  TEXT(export_hf, "", NULL, "output", "write the final weights as a directory for Hugging Face transformers") \
  INT(save_every, 0, -1, INT64_MAX, "checkpoints", "steps between checkpoints, in OUT/ckpt (0: an epoch; -1: never)") \
  FLAG(save_async, "checkpoints", "write checkpoints in the background, from a snapshot in host memory") \
  INT(keep, 2, 0, 1 << 20, "checkpoints", "number of newest checkpoints to keep (0: all)") \
  FLAG(keep_best, "checkpoints", "also save and keep the checkpoint with the lowest validation loss") \
  TEXT(resume, "", NULL, "checkpoints", "continue from auto (or nothing): the newest in OUT/ckpt, if any; or PATH") \
  TEXT(init_from, "", NULL, "checkpoints", "weights: checkpoint, Hugging Face directory, .safetensors, llm.c .bin") \
  TEXT(plan, "off", "off|on|search", "plan", "print what the run would need and how long; search: what fits best") \
  INT(world, 1, 1, 1 << 20, "plan", "ranks to plan for, none of which need be there") \
  INT(ranks_per_host, 0, 1, 1 << 20, "plan", "ranks to plan for on each host (default: 8; on a CPU all)") \
  TEXT(on, "", "h100|h200|b200|a100|4090|cpu|...", "plan", "predict times on it; NAME,KEY=X,... changes its figures") \
  INT(tokens, 0, 0, 1LL << 60, "plan", "also predict how long a training on N tokens would take") \
  FLAG(json, "plan", "print the plan as JSON, with every figure") \
  TEXT(config, "", NULL, "other", "file of options, one per line: key = value; the command line wins (OUT/options.txt)")

// Learning rates of the GPT-2 sizes: Brown et al. 2020, table 2.1. block: options of the block that differ from
// GPT-2's; the first value counts, and what is left out is in preset_block.
struct Preset {
  const char *name;
  int64_t n_layer, n_head, n_embd, seq_len, n_positions, vocab_size;
  double lr;
  const char *block;
};
static const char preset_block[] = "norm=layernorm norm_weight=on norm_embedding=off norm_eps=1e-5 position=learned "
    "rope_theta=10000 rope_scaling=none rope_skip=0 qk_norm=off mlp=gelu bias=all logit_softcap=0";
#define LLAMA_BLOCK "norm=rmsnorm position=rope mlp=swiglu bias=none"
#define SMOLLM2_BLOCK "rope_theta=1e5 head_size=64 " LLAMA_BLOCK
static const Preset presets[] = {
    {"tiny", 4, 4, 128, 128, 128, 2048, 3e-3, ""},
    {"small", 6, 8, 512, 256, 256, 5000, 1e-3, ""},
    {"gpt2", 12, 12, 768, 1024, 1024, 50257, 6e-4, ""},
    {"gpt2-medium", 24, 16, 1024, 1024, 1024, 50257, 3e-4, ""},
    {"gpt2-large", 36, 20, 1280, 1024, 1024, 50257, 2.5e-4, ""},
    {"gpt2-xl", 48, 25, 1600, 1024, 1024, 50257, 2e-4, ""},
    {"smollm2-135m", 30, 9, 576, 1024, 8192, 49152, 6e-4, "n_kv_head=3 mlp_width=1536 " SMOLLM2_BLOCK},
    {"smollm2-360m", 32, 15, 960, 1024, 8192, 49152, 5e-4, "n_kv_head=5 mlp_width=2560 " SMOLLM2_BLOCK},
    {"llama-3.2-1b", 16, 32, 2048, 1024, 131072, 128256, 3e-4, "n_kv_head=8 head_size=64 mlp_width=8192 "
     "rope_theta=5e5 rope_scaling=llama3:32,1,4,8192 " LLAMA_BLOCK},
    {"qwen2.5-0.5b", 24, 14, 896, 1024, 32768, 151936, 4e-4, "n_kv_head=2 head_size=64 mlp_width=4864 "
     "bias=qkv rope_theta=1e6 norm_eps=1e-6 " LLAMA_BLOCK},
    {"qwen3-0.6b", 28, 16, 1024, 1024, 40960, 151936, 4e-4, "n_kv_head=8 head_size=128 mlp_width=3072 "
     "qk_norm=before rope_theta=1e6 norm_eps=1e-6 " LLAMA_BLOCK}};
