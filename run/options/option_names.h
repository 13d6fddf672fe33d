// option_names.h: names and values of options in other programs: PyTorch and its examples, nanoGPT, llm.c, Hugging
// Face, DeepSpeed, Megatron. A name that means the same stands with its option (option_table.h). These mean something
// else, or nothing here, and are refused with a line that says what to type instead.
#pragma once
#include "options.h"

// names: separated by blanks; one that ends in * stands for all that begin like it, and those that begin with - are
// llm.c's. say: what to type instead.
struct OptionName { const char *names, *say; };
static const char say_warmup[] = "--warmup takes both: below 1 a fraction of all steps (0.05), else steps (2000)";
static const OptionName option_names[] = {
    {"model_name model_name_or_path", "--model gpt2 is a preset, --init_from DIRECTORY reads weights"},
    {"model_size model_type",
     "--model tiny|small|gpt2|gpt2-medium|gpt2-large|gpt2-xl, or --n_layer, --n_head, --n_embd"},
    {"resid_pdrop attn_pdrop embd_pdrop attention_dropout hidden_dropout",
     "--dropout is one value for embeddings, attention and residual branches"},
    {"train_batch_size", "--batch_size N is per rank and microbatch, --global_batch N a step of all ranks"},
    {"total_batch_size", "--global_batch N is a step of all ranks in sequences, not tokens"},
    {"gradient_accumulation_steps grad_accum_steps gradient_accumulation accumulate_grad_batches accumulation_steps",
     "--grad_accum N counts microbatches of each rank, --global_batch N sequences of a step over all ranks"},
    {"dry_run", "type --max_steps 1"},
    {"warmup_steps warmup_iters warmup_ratio num_warmup_steps lr_warmup_iters lr_warmup_steps", say_warmup},
    {"min_lr", "--min_lr_ratio is its share of --lr: 0.1 ends at a tenth"},
    {"decay_lr", "--schedule cosine decays it, --schedule constant does not"},
    {"lr_decay_iters", "the schedule ends with the run: --epochs, --max_steps"},
    {"lr_scheduler_type lr_scheduler lr_schedule scheduler lr_decay_style",
     "--schedule cosine|linear|constant|step|wsd, which ends at --min_lr_ratio of --lr"},
    {"optim", "--optimizer adamw, sgd or muon"}, {"adam", "--optimizer adamw is the default"},
    {"dataset dataset_name train_file train_data input_bin",
     "--data takes a text file, a directory of texts, or a token file .bin"},
    {"tokenizer_name", "--tokenizer takes a tokenizer.json, or a directory that holds one"},
    {"num_workers pin_memory", "tokens are in memory, nothing loads them: leave it out; --threads N is for computing"},
    {"bf16 amp autocast mixed_precision precision torch_dtype",
     "type --dtype bf16; --param_dtype, --reduce_dtype, --buffer_dtype set its parts"},
    {"fp16 half", "type --dtype fp16; --param_dtype, --reduce_dtype, --buffer_dtype set its parts"},
    {"fp32", "it is the default: leave it out"}, {"tf32 allow_tf32", "type --matmul_precision high"},
    {"grad_scaler", "--loss_scale; with fp16 it is dynamic"}, {"fsdp", "it is the default; --strategy has others"},
    {"ddp", "type --strategy ddp"}, {"hsdp", "type --strategy hybrid_shard, or --mesh RxS"},
    {"backward_prefetch forward_prefetch fsdp_backward_prefetch fsdp_forward_prefetch",
     "--gather_slots 2 gathers one block ahead, 3 two"},
    {"limit_all_gathers", "--gather_slots N allows N whole blocks at once: there is always a limit"},
    {"cpu_offload offload_optimizer offload_param fsdp_offload_params offload_params",
     "--offload optimizer or --offload params, on a GPU"},
    {"activation_checkpointing gradient_checkpointing fsdp_activation_checkpointing checkpoint_activations",
     "--recompute block keeps only the blocks' inputs and computes the rest again"},
    {"auto_wrap_policy fsdp_auto_wrap_policy min_num_params fsdp_min_num_params transformer_layer_cls_to_wrap "
     "fsdp_transformer_layer_cls_to_wrap", "--wrap block (a unit each), model (one unit) or min_params:N"},
    {"use_orig_params fsdp_use_orig_params overlap_comm contiguous_gradients", "this is always on here: leave it out"},
    {"sync_module_states fsdp_sync_module_states",
     "all ranks make the same weights from --seed, or load them: leave it out"},
    {"zero_stage zero stage deepspeed*", "--strategy zero1, zero2 or zero3 chooses the stage; ddp is stage 0"},
    {"device_mesh dp_replicate dp_shard", "--mesh RxS is R replicas of S shards"},
    {"tensor_parallel* pipeline_parallel* tensor_model_parallel* pipeline_model_parallel*",
     "there is no such parallelism here, only --strategy and --mesh"},
    {"backend", "--comm mpi|self|nccl is the transport; auto chooses"}, {"cpu use_cpu no_accel", "type --device cpu"},
    {"cuda gpu use_cuda", "type --device cuda"},
    {"compile torch_compile*", "there is nothing to compile: leave it out"},
    {"num_processes num_gpus gpus devices world_size rank local_rank master_addr master_port",
     "ranks are started by mpirun -np N ./train_gpt_fsdp ..."},
    {"rdzv_endpoint rdzv_backend rdzv_id rdzv_conf standalone",
     "type --rdzv env://, tcp://HOST:PORT or file:///shared/dir"},
    {"eval_iters", "an evaluation covers the whole split; --eval_every sets how often"},
    {"sample_every", "a sample is drawn at the end: --sample_tokens N"},
    {"checkpoint_dir ckpt_dir save_dir",
     "checkpoints are in OUT/ckpt: --out names OUT, --resume PATH continues from one"},
    {"log_dir logging_dir wandb*", "every step is a line of JSON in OUT/metrics.jsonl; --out names the directory"},
    {"report_to tensorboard_dir tensorboard_log*",
     "--tensorboard writes event files into OUT/tensorboard; --out names the directory"},
    {"always_save_checkpoint", "--save_every N sets how often; --keep_best saves the best too"},
    {"load_checkpoint", "--resume PATH continues a run, --init_from PATH takes its weights"},
    {"pretrained", "--init_from PATH reads weights"},
    {"-e", "is --init_from FILE for weights, --model or --n_layer, --n_head, --n_embd for new ones"},
    {"-d", "counts tokens per step: --global_batch counts sequences, so divide by --seq_len"},
    {"-m", "has no equivalent: an evaluation covers the whole split"},
    {"-s", "has no equivalent: a sample of --sample_tokens is drawn at the end"},
    {"-nm", "has no equivalent: --keep 0 removes no checkpoint"}, {"-y", "is --resume auto for 1; for 0 leave it out"},
    {"-z", "is --strategy: zero1, zero2 or zero3; ddp for 0"},
    {"-r", "is --recompute: none, gelu or norm for 0, 1 or 2"},
    {"-w", "has no equivalent: optimizer and masters are always fp32"}, {"-f", "is --matmul_precision high for 1"},
    {"-a", "has no equivalent: --data names a small text"}, {"-lg -ge -h", "has no equivalent"},
    {"-sl -sg", "has no equivalent; --clip bounds the gradient"}, {"-pn", "is mpirun's -np"},
    {"-pr -pg -pm", "is set by mpirun"}};

// Values that mean the same where `is` is one of the option's choices.
struct OptionValue { const char *value, *is; };
static const OptionValue option_values[] = {
    {"bfloat16", "bf16"}, {"torch.bfloat16", "bf16"}, {"float16", "fp16"}, {"half", "fp16"}, {"torch.float16", "fp16"},
    {"float32", "fp32"}, {"float", "fp32"}, {"torch.float32", "fp32"}, {"gpu", "cuda"}, {"cuda:0", "cuda"},
    {"true", "on"}, {"yes", "on"}, {"1", "on"}, {"false", "off"}, {"no", "off"}, {"0", "off"}};
