// option_names.h: what options and their values are called in other programs: PyTorch and its examples, nanoGPT, llm.c,
// Hugging Face, DeepSpeed, Megatron. A name that means the same is accepted for our option; one that means something
// else, or nothing here, is refused with a line that says what to type instead.
//
//   option_names    the one table of names
//   option_values   the one table of values
#pragma once

// is: our option of the same meaning; else say: what to type instead. A name that ends in * stands for all names that
// begin like it. Names that begin with - are llm.c's: never accepted, but explained by `is` or `say`.
struct OptionName { const char *name, *is, *say; };

static const char say_warmup[] = "--warmup takes both: below 1 a fraction of all steps (0.05), else steps (2000)";
static const char say_accum[] = "--grad_accum N counts microbatches of each rank, --global_batch N sequences of a step "
                                "over all ranks";
static const char say_fp16[] = "type --dtype fp16; --param_dtype, --reduce_dtype, --buffer_dtype set its parts";
static const char say_bf16[] = "type --dtype bf16; --param_dtype, --reduce_dtype, --buffer_dtype set its parts";
static const char say_schedule[] = "--schedule cosine|linear|constant|step|wsd, which ends at --min_lr_ratio of --lr";
static const char say_recompute[] = "--recompute block keeps only the blocks' inputs and computes the rest again";
static const char say_prefetch[] = "--gather_slots 2 gathers one block ahead, 3 two";
static const char say_offload[] = "--offload optimizer or --offload params, on a GPU";
static const char say_wrap[] = "--wrap block (a unit each), model (one unit) or min_params:N";
static const char say_metrics[] = "every step is a line of JSON in OUT/metrics.jsonl; --out names the directory";
static const char say_board[] = "--tensorboard writes event files into OUT/tensorboard; --out names the directory";
static const char say_rdzv[] = "type --rdzv env://, tcp://HOST:PORT or file:///shared/dir";
static const char say_ranks[] = "ranks are started by mpirun -np N ./train_gpt_fsdp ...";
static const char say_always[] = "this is always on here: leave it out";
static const char say_dropout[] = "--dropout is one value for embeddings, attention and residual branches";
static const char say_zero[] = "--strategy zero1, zero2 or zero3 chooses the stage; ddp is stage 0";
static const char say_compile[] = "there is nothing to compile: leave it out";
static const char say_mesh[] = "--mesh RxS is R replicas of S shards";
static const char say_ckpt[] = "checkpoints are in OUT/ckpt: --out names OUT, --resume PATH continues from one";
static const char say_data[] = "--data takes a text file, a directory of texts, or a token file .bin";
static const char say_absent[] = "there is no such parallelism here, only --strategy and --mesh";
static const char say_eval[] = "an evaluation covers the whole split; --eval_every sets how often";
static const char say_loader[] = "tokens are in memory, nothing loads them: leave it out; --threads N is for computing";

static const OptionName option_names[] = {
    // model
    {"num_layers", "n_layer", 0}, {"num_hidden_layers", "n_layer", 0}, {"n_layers", "n_layer", 0},
    {"num_heads", "n_head", 0}, {"n_heads", "n_head", 0}, {"num_attention_heads", "n_head", 0},
    {"hidden_size", "n_embd", 0}, {"d_model", "n_embd", 0}, {"n_embed", "n_embd", 0}, {"embed_dim", "n_embd", 0},
    {"block_size", "seq_len", 0}, {"max_seq_len", "seq_len", 0}, {"max_seq_length", "seq_len", 0},
    {"seq_length", "seq_len", 0}, {"sequence_length", "seq_len", 0}, {"context_length", "seq_len", 0},
    {"n_ctx", "n_positions", 0}, {"max_position_embeddings", "n_positions", 0}, {"n_vocab", "vocab_size", 0},
    {"tie_word_embeddings", "tie_head", 0},
    {"model_name", 0, "--model gpt2 is a preset, --init_from DIRECTORY reads weights"},
    {"model_size", 0, "--model tiny|small|gpt2|gpt2-medium|gpt2-large|gpt2-xl, or --n_layer, --n_head, --n_embd"},
    {"model_type", 0, "--model tiny|small|gpt2|gpt2-medium|gpt2-large|gpt2-xl, or --n_layer, --n_head, --n_embd"},
    {"model_name_or_path", 0, "--model gpt2 is a preset, --init_from DIRECTORY reads weights"},
    {"resid_pdrop", 0, say_dropout}, {"attn_pdrop", 0, say_dropout}, {"embd_pdrop", 0, say_dropout},
    {"attention_dropout", 0, say_dropout}, {"hidden_dropout", 0, say_dropout},
    // training
    {"num_epochs", "epochs", 0}, {"num_train_epochs", "epochs", 0}, {"n_epochs", "epochs", 0},
    {"max_epochs", "epochs", 0}, {"max_iters", "max_steps", 0}, {"max_train_steps", "max_steps", 0},
    {"num_iterations", "max_steps", 0}, {"train_iters", "max_steps", 0}, {"num_steps", "max_steps", 0},
    {"per_device_train_batch_size", "batch_size", 0}, {"micro_batch_size", "batch_size", 0},
    {"train_micro_batch_size_per_gpu", "batch_size", 0}, {"device_batch_size", "batch_size", 0},
    {"global_batch_size", "global_batch", 0},
    {"train_batch_size", 0, "--batch_size N is per rank and microbatch, --global_batch N a step of all ranks"},
    {"total_batch_size", 0, "--global_batch N is a step of all ranks in sequences, not tokens"},
    {"gradient_accumulation_steps", 0, say_accum}, {"grad_accum_steps", 0, say_accum},
    {"gradient_accumulation", 0, say_accum}, {"accumulate_grad_batches", 0, say_accum},
    {"accumulation_steps", 0, say_accum}, {"random_seed", "seed", 0}, {"manual_seed", "seed", 0},
    {"dry_run", 0, "type --max_steps 1"},
    // optimizer
    {"learning_rate", "lr", 0}, {"max_lr", "lr", 0}, {"wd", "weight_decay", 0},
    {"adam_beta1", "beta1", 0}, {"adam_beta2", "beta2", 0}, {"adam_epsilon", "eps", 0}, {"adam_eps", "eps", 0},
    {"epsilon", "eps", 0}, {"max_grad_norm", "clip", 0}, {"grad_clip", "clip", 0}, {"clip_grad", "clip", 0},
    {"clip_grad_norm", "clip", 0}, {"gradient_clipping", "clip", 0}, {"gradient_clip_val", "clip", 0},
    {"learning_rate_decay_frac", "min_lr_ratio", 0}, {"final_lr_frac", "min_lr_ratio", 0},
    {"warmup_steps", 0, say_warmup}, {"warmup_iters", 0, say_warmup}, {"warmup_ratio", 0, say_warmup},
    {"num_warmup_steps", 0, say_warmup}, {"lr_warmup_iters", 0, say_warmup}, {"lr_warmup_steps", 0, say_warmup},
    {"min_lr", 0, "--min_lr_ratio is its share of --lr: 0.1 ends at a tenth"},
    {"decay_lr", 0, "--schedule cosine decays it, --schedule constant does not"},
    {"lr_decay_iters", 0, "the schedule ends with the run: --epochs, --max_steps"},
    {"lr_scheduler_type", 0, say_schedule}, {"lr_scheduler", 0, say_schedule}, {"lr_schedule", 0, say_schedule},
    {"scheduler", 0, say_schedule}, {"lr_decay_style", 0, say_schedule},
    {"optim", 0, "--optimizer adamw, sgd or muon"}, {"adam", 0, "--optimizer adamw is the default"},
    // data
    {"data_dir", "data", 0}, {"data_path", "data", 0}, {"dataset", 0, say_data}, {"dataset_name", 0, say_data},
    {"train_file", 0, say_data}, {"train_data", 0, say_data}, {"input_bin", 0, say_data},
    {"tokenizer_path", "tokenizer", 0}, {"tokenizer_file", "tokenizer", 0},
    {"tokenizer_name", 0, "--tokenizer takes a tokenizer.json, or a directory that holds one"},
    {"num_workers", 0, say_loader}, {"pin_memory", 0, say_loader},
    // precision
    {"bf16", 0, say_bf16}, {"fp16", 0, say_fp16}, {"half", 0, say_fp16}, {"fp32", 0, "it is the default: leave it out"},
    {"amp", 0, say_bf16}, {"autocast", 0, say_bf16}, {"mixed_precision", 0, say_bf16}, {"precision", 0, say_bf16},
    {"torch_dtype", 0, say_bf16}, {"tf32", 0, "type --matmul_precision high"},
    {"allow_tf32", 0, "type --matmul_precision high"}, {"grad_scaler", 0, "--loss_scale; with fp16 it is dynamic"},
    // sharding
    {"sharding_strategy", "strategy", 0}, {"fsdp_sharding_strategy", "strategy", 0},
    {"fsdp_reshard_after_forward", "reshard_after_forward", 0}, {"fsdp", 0, "it is the default; --strategy has others"},
    {"ddp", 0, "type --strategy ddp"}, {"hsdp", 0, "type --strategy hybrid_shard, or --mesh RxS"},
    {"backward_prefetch", 0, say_prefetch}, {"forward_prefetch", 0, say_prefetch},
    {"fsdp_backward_prefetch", 0, say_prefetch}, {"fsdp_forward_prefetch", 0, say_prefetch},
    {"limit_all_gathers", 0, "--gather_slots N allows N whole blocks at once: there is always a limit"},
    {"cpu_offload", 0, say_offload}, {"offload_optimizer", 0, say_offload}, {"offload_param", 0, say_offload},
    {"fsdp_offload_params", 0, say_offload}, {"offload_params", 0, say_offload},
    {"activation_checkpointing", 0, say_recompute}, {"gradient_checkpointing", 0, say_recompute},
    {"fsdp_activation_checkpointing", 0, say_recompute}, {"checkpoint_activations", 0, say_recompute},
    {"auto_wrap_policy", 0, say_wrap}, {"fsdp_auto_wrap_policy", 0, say_wrap}, {"min_num_params", 0, say_wrap},
    {"fsdp_min_num_params", 0, say_wrap}, {"transformer_layer_cls_to_wrap", 0, say_wrap},
    {"fsdp_transformer_layer_cls_to_wrap", 0, say_wrap},
    {"use_orig_params", 0, say_always}, {"fsdp_use_orig_params", 0, say_always},
    {"sync_module_states", 0, "all ranks make the same weights from --seed, or load them: leave it out"},
    {"fsdp_sync_module_states", 0, "all ranks make the same weights from --seed, or load them: leave it out"},
    {"overlap_comm", 0, say_always}, {"contiguous_gradients", 0, say_always},
    {"zero_stage", 0, say_zero}, {"zero", 0, say_zero}, {"stage", 0, say_zero}, {"deepspeed*", 0, say_zero},
    {"device_mesh", 0, say_mesh}, {"dp_replicate", 0, say_mesh}, {"dp_shard", 0, say_mesh},
    {"tensor_parallel*", 0, say_absent}, {"pipeline_parallel*", 0, say_absent},
    {"tensor_model_parallel*", 0, say_absent}, {"pipeline_model_parallel*", 0, say_absent},
    {"backend", 0, "--comm mpi|self|nccl is the transport; auto chooses"},
    // device and ranks
    {"cpu", 0, "type --device cpu"}, {"use_cpu", 0, "type --device cpu"}, {"no_accel", 0, "type --device cpu"},
    {"cuda", 0, "type --device cuda"}, {"gpu", 0, "type --device cuda"}, {"use_cuda", 0, "type --device cuda"},
    {"compile", 0, say_compile}, {"torch_compile*", 0, say_compile}, {"num_threads", "threads", 0},
    {"n_threads", "threads", 0}, {"num_processes", 0, say_ranks}, {"num_gpus", 0, say_ranks},
    {"gpus", 0, say_ranks}, {"devices", 0, say_ranks},
    {"world_size", 0, say_ranks}, {"rank", 0, say_ranks}, {"local_rank", 0, say_ranks},
    {"master_addr", 0, say_ranks}, {"master_port", 0, say_ranks}, {"rdzv_endpoint", 0, say_rdzv},
    {"rdzv_backend", 0, say_rdzv}, {"rdzv_id", 0, say_rdzv}, {"rdzv_conf", 0, say_rdzv}, {"standalone", 0, say_rdzv},
    // evaluation, samples, output, checkpoints
    {"eval_interval", "eval_every", 0}, {"eval_steps", "eval_every", 0}, {"eval_iters", 0, say_eval},
    {"per_device_eval_batch_size", "test_batch_size", 0}, {"eval_batch_size", "test_batch_size", 0},
    {"max_new_tokens", "sample_tokens", 0}, {"sample_every", 0, "a sample is drawn at the end: --sample_tokens N"},
    {"top_p", 0, "--top_k K draws among the K likeliest tokens"},
    {"output_dir", "out", 0}, {"out_dir", "out", 0}, {"output", "out", 0}, {"checkpoint_dir", 0, say_ckpt},
    {"ckpt_dir", 0, say_ckpt}, {"save_dir", 0, say_ckpt}, {"log_dir", 0, say_metrics}, {"logging_dir", 0, say_metrics},
    {"log_interval", "log_every", 0}, {"logging_steps", "log_every", 0}, {"wandb*", 0, say_metrics},
    {"report_to", 0, say_board}, {"tensorboard_dir", 0, say_board}, {"tensorboard_log*", 0, say_board},
    {"save_steps", "save_every", 0}, {"save_interval", "save_every", 0}, {"checkpoint_interval", "save_every", 0},
    {"always_save_checkpoint", 0, "--save_every N sets how often; --keep_best saves the best too"},
    {"save_total_limit", "keep", 0}, {"resume_from_checkpoint", "resume", 0}, {"resume_from", "resume", 0},
    {"load_checkpoint", 0, "--resume PATH continues a run, --init_from PATH takes its weights"},
    {"pretrained", 0, "--init_from PATH reads weights"},
    // llm.c, train_gpt2.cu
    {"-i", "data", 0}, {"-j", 0, "is part of --data, which finds the file of validation tokens beside the other"},
    {"-e", 0, "is --init_from FILE for weights, --model or --n_layer, --n_head, --n_embd for new ones"},
    {"-o", "out", 0}, {"-b", "batch_size", 0}, {"-t", "seq_len", 0},
    {"-d", 0, "counts tokens per step: --global_batch counts sequences, so divide by --seq_len"},
    {"-x", "max_steps", 0}, {"-k", "schedule", 0}, {"-l", "lr", 0}, {"-u", "warmup", 0}, {"-q", "min_lr_ratio", 0},
    {"-c", "weight_decay", 0}, {"-v", "eval_every", 0},
    {"-m", 0, "has no equivalent: an evaluation covers the whole split"},
    {"-s", 0, "has no equivalent: a sample of --sample_tokens is drawn at the end"}, {"-g", "sample_tokens", 0},
    {"-n", "save_every", 0}, {"-nk", "keep", 0}, {"-nm", 0, "has no equivalent: --keep 0 removes no checkpoint"},
    {"-y", 0, "is --resume auto for 1; for 0 leave it out"},
    {"-z", 0, "is --strategy: zero1, zero2 or zero3; ddp for 0"},
    {"-r", 0, "is --recompute: none, gelu or norm for 0, 1 or 2"},
    {"-w", 0, "has no equivalent: optimizer and masters are always fp32"},
    {"-f", 0, "is --matmul_precision high for 1"}, {"-a", 0, "has no equivalent: --data names a small text"},
    {"-lg", 0, "has no equivalent"}, {"-sl", 0, "has no equivalent; --clip bounds the gradient"},
    {"-sg", 0, "has no equivalent; --clip bounds the gradient"}, {"-ge", 0, "has no equivalent"},
    {"-h", 0, "has no equivalent"},
    {"-pn", 0, "is mpirun's -np"}, {"-pr", 0, "is set by mpirun"}, {"-pg", 0, "is set by mpirun"},
    {"-pm", 0, "is set by mpirun"}};

// Values that mean the same where `is` is one of the option's choices.
struct OptionValue { const char *value, *is; };
static const OptionValue option_values[] = {
    {"bfloat16", "bf16"}, {"torch.bfloat16", "bf16"}, {"float16", "fp16"}, {"half", "fp16"}, {"torch.float16", "fp16"},
    {"float32", "fp32"}, {"float", "fp32"}, {"torch.float32", "fp32"}, {"gpu", "cuda"}, {"cuda:0", "cuda"},
    {"true", "on"}, {"yes", "on"}, {"1", "on"}, {"false", "off"}, {"no", "off"}, {"0", "off"}};
