// option_names.h: names and values of options in other programs: PyTorch and its examples, nanoGPT, llm.c, Hugging
// Face, DeepSpeed, Megatron; TRL, PEFT, LLaMA-Factory, unsloth, axolotl, torchtune. Names with the same meaning and
// unit as an option here are in option_table.h (`also`) and are taken. The names in this file mean something else, or
// have no option here, or mean different things in two programs; they are rejected with a line that says what to type.
#pragma once
#include "options.h"

// names: separated by spaces; a name that ends in * matches all names that start so; names that start with - are
// llm.c's. say: what to type instead.
struct OptionName { const char *names, *say; };
static const char say_warmup[] = "--warmup takes both: below 1 a fraction of all steps (0.05), else steps (2000)";
static const OptionName option_names[] = {
    {"model_name model_name_or_path base_model model_id",
     "--model gpt2 is a preset, --init_from DIRECTORY reads weights of this disk: nothing is downloaded"},
    {"model_size model_type",
     "--model tiny|small|gpt2|gpt2-medium|gpt2-large|gpt2-xl, or --n_layer, --n_head, --n_embd"},
    {"resid_pdrop attn_pdrop embd_pdrop attention_dropout hidden_dropout",
     "--dropout is one value for embeddings, attention and residual branches"},
    {"train_batch_size", "--batch_size N is per rank and microbatch, --global_batch N per step over all ranks"},
    {"total_batch_size", "--global_batch N is a step of all ranks in sequences, not tokens"},
    {"gradient_accumulation_steps grad_accum_steps gradient_accumulation accumulate_grad_batches accumulation_steps",
     "--grad_accum N counts microbatches of each rank, --global_batch N sequences of a step over all ranks"},
    {"dry_run", "type --max_steps 1"},
    {"warmup_steps warmup_iters warmup_ratio num_warmup_steps lr_warmup_iters lr_warmup_steps", say_warmup},
    {"min_lr eta_min", "--min_lr_ratio is its share of --lr: 0.1 ends at a tenth"},
    {"decay_lr", "--schedule cosine decays it, --schedule constant does not"},
    {"lr_decay_iters", "the schedule ends with the run: --epochs, --max_steps"},
    {"lr_scheduler_type lr_scheduler lr_schedule scheduler lr_decay_style lr_scheduler_kwargs",
     "--schedule cosine|linear|constant|step|wsd, which ends at --min_lr_ratio of --lr"},
    {"optim", "--optimizer adamw, sgd or muon"}, {"adam", "--optimizer adamw is the default"},
    {"dataset dataset_name train_file train_data input_bin datasets dataset_dir dataset_path train_dataset",
     "--data takes a text file, a directory of texts, conversations (.jsonl, .parquet), or a token file .bin"},
    {"tokenizer_name tokenizer_name_or_path", "--tokenizer takes a tokenizer.json, or a directory that holds one"},
    {"num_workers pin_memory dataloader_num_workers dataloader_pin_memory dataloader_p* streaming buffer_size",
     "tokens are in memory, nothing loads them: leave it out; --threads N is for computing"},
    {"bf16 amp autocast mixed_precision precision torch_dtype pure_bf16 compute_dtype load_in_16bit "
     "bfloat16 mixed_precision_policy",
     "type --dtype bf16; --param_dtype, --reduce_dtype, --buffer_dtype set its parts"},
    {"fp16 half float16", "type --dtype fp16; --param_dtype, --reduce_dtype, --buffer_dtype set its parts"},
    {"fp32 float32", "it is the default: leave it out"}, {"tf32 allow_tf32", "type --matmul_precision high"},
    {"grad_scaler", "--loss_scale; with fp16 it is dynamic"}, {"fsdp", "it is the default; --strategy has others"},
    {"ddp", "type --strategy ddp"}, {"hsdp", "type --strategy hybrid_shard, or --mesh RxS"},
    {"backward_prefetch forward_prefetch fsdp_backward_prefetch fsdp_forward_prefetch",
     "--gather_slots 2 gathers one block ahead, 3 two"},
    {"limit_all_gathers", "--gather_slots N allows N whole blocks at once: there is always a limit"},
    {"cpu_offload offload_optimizer offload_param fsdp_offload_params offload_params",
     "--offload optimizer or --offload params, on a GPU"},
    {"activation_checkpointing gradient_checkpointing fsdp_activation_checkpointing checkpoint_activations "
     "use_gradient_checkpointing enable_activation_checkpointing disable_gradient_checkpointing "
     "gradient_checkpointing_kwargs use_reentrant_gc use_unsloth_gc",
     "--recompute block keeps only the blocks' inputs and computes the rest again"},
    {"auto_wrap_policy fsdp_auto_wrap_policy min_num_params fsdp_min_num_params transformer_layer_cls_to_wrap "
     "fsdp_transformer_layer_cls_to_wrap", "--wrap block (a unit each), model (one unit) or min_params:N"},
    {"use_orig_params fsdp_use_orig_params overlap_comm contiguous_gradients", "this is always on here: leave it out"},
    {"sync_module_states fsdp_sync_module_states",
     "all ranks make the same weights from --seed, or load them: leave it out"},
    {"stage", "of LLaMA-Factory, sft is conversations by --data, and dpo --loss dpo; of ZeRO, --strategy has stages"},
    {"zero_stage zero deepspeed*", "--strategy zero1, zero2 or zero3 chooses the stage; ddp is stage 0"},
    {"device_mesh dp_replicate* dp_shard* data_parallel_shard_dim data_parallel_replicate_dim",
     "--mesh RxS is R replicas of S shards"},
    {"tensor_parallel* pipeline_parallel* tensor_model_parallel* pipeline_model_parallel* sequence_parallel* "
     "context_parallel* expert_*",
     "there is no such parallelism here, only --strategy and --mesh"},
    {"backend", "--comm mpi|self|nccl is the transport; auto chooses"}, {"cpu use_cpu no_accel", "type --device cpu"},
    {"cuda gpu use_cuda", "type --device cuda"},
    {"compile torch_compile*", "there is nothing to compile: leave it out"},
    {"num_processes num_gpus gpus devices world_size rank local_rank master_addr master_port",
     "ranks are started by mpirun -np N ./train_gpt_fsdp ..."},
    {"rdzv_endpoint rdzv_backend rdzv_id rdzv_conf standalone",
     "type --rdzv env://, tcp://HOST:PORT or file:///shared/dir"},
    {"eval_iters", "an evaluation covers the whole split; --eval_every sets how often"},
    {"sample_every", "text is sampled at the end: --sample_tokens N"},
    {"checkpoint_dir ckpt_dir save_dir",
     "checkpoints are in OUT/ckpt: --out names OUT, --resume PATH continues from one"},
    {"log_dir logging_dir wandb* swanlab* mlflow* comet* trackio* use_wandb use_swanlab use_mlflow run_name project "
     "metric_logger plot_loss", "every step is a line of JSON in OUT/metrics.jsonl; --out names the directory"},
    {"report_to use_tensorboard tensorboard_dir tensorboard_log*",
     "--tensorboard writes event files into OUT/tensorboard; --out names the directory"},
    {"always_save_checkpoint", "--save_every N sets how often; --keep_best saves the best too"},
    {"load_checkpoint auto_resume_from_checkpoints",
     "--resume PATH continues a run, --init_from PATH takes its weights"},
    {"pretrained", "--init_from PATH reads weights"},
    // Fine-tuning: methods, adapters, quantization.
    {"finetuning_type use_peft peft adapter peft_config full_finetuning",
     "--lora RANK trains adapters, with --base_dtype nf4 QLoRA's; without it all weights train"},
    {"load_in_4bit quantization_bit quantization_method quantization_type quantization double_quantization "
     "use_bnb_nested_quant bnb_4bit* gptq*",
     "--base_dtype nf4 beside --lora RANK keeps frozen weights in 4 bits, q8_0 in 8"},
    {"load_in_8bit load_in_fp8", "--base_dtype q8_0 beside --lora RANK keeps frozen weights in 8 bits, nf4 in 4"},
    {"use_rslora peft_use_rslora", "--lora_scale root is rsLoRA, --lora_scale rank is not"},
    {"lora_target_linear lora_attn_modules apply_lora_to_mlp apply_lora_to_output",
     "--lora_targets all is every matrix of blocks, q_proj,v_proj two kinds"},
    {"lora_modules_to_save modules_to_save additional_target",
     "--train_rows FIRST:LAST trains rows of embedding and head beside adapters"},
    {"use_dora peft_use_dora pissa* loraplus* loftq* oft_* init_lora_weights peft_init* lora_fan* lora_bias "
     "use_llama_pro lora_alpha_pattern lora_rank_pattern lora_target_parameters target_parameters layers_* relora* "
     "use_galore galore* use_badam badam* use_apollo apollo* use_adam_mini lisa* qat* neftune* noisy_embedding_alpha",
     "there is no such method here: --lora RANK trains LoRA or rsLoRA, without it all weights train"},
    {"lora_task_type lora_on_cpu peft_auto* create_new_adapter save_adapter_weights_only", "leave it out"},
    {"freeze_trainable* freeze_extra_modules unfrozen_parameters", "--freeze GLOBS names what is not trained"},
    {"embedding_lr embedding_lr_scale", "--lr_scale wte=X multiplies the embedding's learning rate by X"},
    {"export_dir merge_lora merge_adapter save_method merge_and_unload",
     "--merge --export_hf DIR writes merged weights"},
    {"save_gguf export_quantization* export_size export_device export_legacy_format",
     "--export_gguf q8_0 (f32, f16, bf16) writes OUT/model.gguf"},
    // Conversations.
    {"template chat_template_path chat_template_jinja prompt_template tool_format enable_thinking default_system "
     "default_system_message prompt_style",
     "the model's own chat template is taken; --chat_template NAME takes another, a system message is a record's"},
    {"packing packing_strategy neat_packing sample_packing* eval_packing eval_sample_packing packed padding_free "
     "pad_to_* group_by_length batch_flattening use_packed_sequences multipack*",
     "conversations are packed, and kept apart: leave it out; --pack whole is TRL's bfd, stream its wrapped"},
    {"train_on_prompt train_on_inputs train_on_input train_on_responses_only completion_only_loss assistant_only_loss "
     "mask_history roles_to_train train_on_eos response_template",
     "--train_on assistant trains on all answers (the default), last on the last one, all on prompts too"},
    {"max_length max_packed_sequence_len dataset_max_length",
     "--seq_len N is the most tokens of a training sequence, --sample_tokens N those of a sample"},
    {"max_prompt_length max_completion_length max_prompt_len max_target_length max_source_length",
     "--seq_len N is the most tokens of prompt and answer together; --too_long has what is done with longer ones"},
    {"truncation_mode excess_length_strategy truncation",
     "--too_long cut cuts the end of a conversation, drop leaves it out"},
    {"dataset_text_field text_field field field_* message_field* message_property* columns",
     "--text_column NAME is a text's in .parquet; --fields prompt=question,completion=answer has names of records"},
    {"dataset_prepared_path tokenized_path overwrite_cache preprocessing* dataset_num_proc dataset_proc* "
     "dataset_kwargs dataset_config dataset_shard* shards shuffle_merged_datasets disable_shuffling "
     "dataset_train_split dataset_test_split dataset_streaming skip_prepare_dataset remove_unused_columns "
     "shuffle_dataset data_seed", "leave it out: --cache keeps encoded tokens, --shuffle and --seed make their order"},
    {"max_samples max_train_samples", "--max_steps N ends earlier; or name a smaller file by --data"},
    {"mix_strategy interleave_probs", "--data a.jsonl:0.7,b.jsonl:0.3 mixes files by samples"},
    {"val_size val_set_size test_size test_split_size validation_split*",
     "of data without a validation file a twentieth is held out; --val_data FILE names what is evaluated on"},
    {"eval_dataset validation_file eval_file test_datasets dataset_val", "--val_data FILE names what is evaluated on"},
    {"new_special_tokens* add_special_tokens special_tokens additional_special_tokens resize_vocab "
     "resize_token_embeddings*", "--add_tokens FILE gives tokens and their rows to --init_from"},
    // Preferences.
    {"beta", "--dpo_beta X is that of preferences (--loss dpo), --beta1 X and --beta2 X are AdamW's"},
    {"loss_type dpo_loss_type",
     "--loss dpo (sigmoid), ipo, hinge, simpo or orpo is of preferences; without it of every token (nll)"},
    {"rl_coef orpo_alpha cpo_alpha",
     "--dpo_beta X: of --loss orpo the weight of the preference beside the chosen answer"},
    {"ref_model* model_adapter_name ref_adapter_name precompute_ref* reference_free sync_ref_model ref_checkpointer",
     "the reference is what the run starts with, computed once before the first step: leave it out"},
    {"kto_* desirable_weight undesirable_weight reward_model* ppo_* num_generations",
     "neither KTO nor reinforcement learning is here: --loss dpo, ipo, hinge, simpo, orpo"},
    {"pref_ftx rpo_alpha pref_bco_weight loss_weights ld_alpha f_divergence* f_alpha* discopop_tau dpo_use_weighting "
     "use_weighting dpo_norm_loss label_smoothing_factor use_dft_loss use_asft_loss use_eaft_loss",
     "there is no such loss here: --loss dpo, ipo, hinge, simpo, orpo; --dpo_smoothing X smooths dpo and simpo"},
    {"disable_dropout", "--dropout is 0 unless it is given: leave it out"},
    // The run.
    {"eval_strategy evaluation_strategy evals_per_epoch eval_on_start eval_delay",
     "--eval_every N evaluates every N steps, -1 never (no); without it after each epoch (epoch)"},
    {"save_strategy saves_per_epoch",
     "--save_every N saves every N steps, -1 never (no); without it after each epoch (epoch)"},
    {"logging_strategy logging_first_step", "--log_every N prints every N-th step; OUT/metrics.jsonl has all"},
    {"do_train", "it is the default: leave it out"}, {"do_eval do_predict", "--eval_only trains nothing"},
    {"do_sample", "--temperature 0 always takes the most probable token"},
    {"num_beams length_penalty", "there is no beam search here: --temperature, --top_k, --top_p, --min_p"},
    {"load_best_model_at_end metric_for_best_model greater_is_better early_stopping*",
     "--keep_best keeps the checkpoint with the lowest validation loss; no run stops early by it"},
    {"save_only_model save_safetensors",
     "--save_model writes the final weights alone, --export_hf DIR for transformers"},
    {"overwrite_output_dir", "earlier runs in --out DIR are kept beside the new one: leave it out"},
    {"auto_find_batch_size", "--batch_size auto --global_batch N takes the most that fit"},
    {"max_steps_per_epoch", "--max_steps N counts those of the whole run"},
    {"dataloader_drop_last", "--drop_last on leaves out an incomplete last batch of an epoch, off fills it"},
    {"optim_args optim_target* optimizer_in_bwd adafactor use_muon dion_*",
     "--optimizer adamw, sgd or muon, --beta1, --beta2, --eps"},
    {"profiler* enable_torch_profiler profile_memory", "--trace FILE writes a timeline of some steps"},
    {"ddp_timeout", "--timeout N ends all after N seconds without progress"},
    {"ddp_*", "type --strategy ddp"},
    {"flash_attn* flash_attention* attn_implementation use_flash* sdp_attention xformers* use_liger* "
     "enable_liger* liger* use_unsloth unsloth* use_cache use_kv_cache fused use_kernels torch_empty* gc_steps "
     "low_cpu_mem_usage",
     "kernels and memory are chosen automatically: leave it out"},
    {"activation_offloading enable_activation_offloading offload_folder offload_embedding",
     "--offload optimizer or --offload params is what a GPU may leave on the host"},
    {"trust_remote_code use_fast* model_revision revision push_* hub_* hf_* token device_map max_memory seed_* "
     "full_determinism disable_tqdm log_level* bf16_full_eval fp16_full_eval include_* "
     "ray_* strict plugins cache_dir eos_token pad_token model_init_kwargs fsdp_config fsdp_version "
     "fsdp_state_dict_type fsdp_final* fsdp_cpu_ram* accelerator_config average_tokens* batch_eval_metrics debug "
     "prediction_loss_only eval_accumulation* eval_do_concat* eval_use_gather* fp16_backend fp16_opt_level "
     "half_precision_backend ignore_data_skip jit_mode_eval label_names length_column_name log_on_each_node "
     "logging_nan* past_index parallelism_config save_on_each_node skip_memory_metrics split_batches restore_callback* "
     "tokenizer_type vllm_* use_vllm gpu_memory_utilization", "it has no place here: leave it out"},
    {"-e", "is --init_from FILE for weights, --model or --n_layer, --n_head, --n_embd for new ones"},
    {"-d", "counts tokens per step: --global_batch counts sequences, so divide by --seq_len"},
    {"-m", "has no equivalent: an evaluation covers the whole split"},
    {"-s", "has no equivalent: --sample_tokens N samples text at the end"},
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
    {"all-linear", "all"}, {"sigmoid", "dpo"}, {"adamw_torch", "adamw"}, {"adamw_torch_fused", "adamw"},
    {"float32", "fp32"}, {"float", "fp32"}, {"torch.float32", "fp32"}, {"gpu", "cuda"}, {"cuda:0", "cuda"},
    {"true", "on"}, {"yes", "on"}, {"1", "on"}, {"false", "off"}, {"no", "off"}, {"0", "off"}};
