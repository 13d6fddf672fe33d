// test_options.h: what people type first works, or gets the right answer: other programs' names and values, --config,
// OUT/options.txt, --help.

// Options from a command line of these words; the rejection in `error`, "" if there is none.
static inline void options_typed(Options *o, const char *words, Error *error) {
  char text[1024], *argv[64] = {(char *)"test"}, *save = NULL;
  int argc = 1;
  snprintf(text, sizeof text, "%s", words);
  for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
  error->text[0] = 0;
  EXPECT(options_parse(o, &trainer_table, argc, argv, error) == !error->text[0],
         "%s: a rejection without a line, or both", words);
}

static inline void options_write_text(const char *path, const char *text) { cli_write(path, text, strlen(text)); }

// Takes the options of a file's text and of a command line.
static inline bool config_and_line(Options *o, const char *path, const char *text, int argc, char **argv,
                                   Error *error) {
  return options_parse(o, &trainer_table, argc, argv, error) && options_add_config(o, path, text, error);
}
TEST(options_are_taken_as_they_are_typed,
     "values and names of other programs, in any case, with - or _, are stored as the table spells them; --dtype "
     "sets three, except those given separately; --resume and on|off options need no value; --no_NAME is off") {
  static const struct { const char *typed, *is; } table[] = {
      {"--param_dtype bfloat16 --reduce-dtype FLOAT16 --buffer_dtype=float32",
       "param_dtype=bf16 reduce_dtype=fp16 buffer_dtype=fp32"},
      {"--dtype bf16", "param_dtype=bf16 reduce_dtype=bf16 buffer_dtype=bf16"},
      {"--reduce_dtype fp32 --dtype torch.bfloat16", "param_dtype=bf16 reduce_dtype=fp32 buffer_dtype=bf16"},
      {"--dtype bf16 --buffer_dtype auto", "param_dtype=bf16 reduce_dtype=bf16 buffer_dtype=auto"},
      {"--device gpu", "device=cuda"}, {"--device CUDA:0", "device=cuda"}, {"--device CPU", "device=cpu"},
      {"--strategy FULL_SHARD", "strategy=full_shard"}, {"--strategy Shard-Grad-Op", "strategy=shard_grad_op"},
      {"--sharding_strategy HYBRID_SHARD", "strategy=hybrid_shard"}, {"--strategy NO_SHARD", "strategy=no_shard"},
      {"--strategy zero-3", "strategy=zero3"}, {"--strategy zero_2", "strategy=zero2"},
      {"--strategy ZeRO1", "strategy=zero1"}, {"--strategy DDP", "strategy=ddp"},
      {"--wrap MODEL --reshard_after_forward True --recompute Block", "wrap=model reshard_after_forward=on "
       "recompute=block"},
      {"--reshard_after_forward 2", "reshard_after_forward=2"}, {"--model GPT2_Medium", "model=gpt2-medium"},
      {"--save_model yes --keep_best=True --tune 1 --eval_only FALSE", "save_model=on keep_best=on tune=on "
       "eval_only=off"},
      {"--save_model --no_shuffle --no-graph --no_save_async", "save_model=on shuffle=off graph=off save_async=off"},
      {"--no_shuffle --shuffle --tie_head False --drop_last 0", "shuffle=on tie_head=off drop_last=off"},
      {"--no_cuda", "no_cuda=on"}, {"--resume --lr 1e-3", "resume=auto lr=0.001"}, {"--resume", "resume=auto"},
      {"--resume x --resume_from_checkpoint y", "resume=y"},
      {"--max_iters 1e6 --batch_size 1_0 --save_every -1", "max_steps=1000000 batch_size=10 save_every=-1"},
      {"--block_size 64 --d_model 48 --num-layers 3 --n_heads 4", "seq_len=64 n_embd=48 n_layer=3 n_head=4"},
      {"--prompt=a=b --seed 9223372036854775807", "prompt=a=b seed=9223372036854775807"}};
  Options o;
  char is[512], got[OPTION_TEXT_BYTES], *save = NULL;
  Error error = {};
  for (const auto &row : table) {
    options_typed(&o, row.typed, &error);
    EXPECT(!error.text[0], "%s: %s", row.typed, error.text);
    snprintf(is, sizeof is, "%s", row.is);
    for (char *one = strtok_r(is, " ", &save); one; one = strtok_r(NULL, " ", &save)) {
      char *value = strchr(one, '=');
      *value++ = 0;
      const int i = option_index(one);
      REQUIRE(i >= 0, "no option %s", one);
      option_print_short(got, sizeof got, &o, &option_specs[i]);
      EXPECT(!strcmp(got, value) && o.given[i], "%s: --%s is '%s'%s, must be %s", row.typed, one, got,
             o.given[i] ? "" : ", not given", value);
    }
  }
}

TEST(options_are_rejected_with_the_right_line,
     "a wrong option or value is answered with what to type: by meaning first, then by spelling") {
  static const struct { const char *typed, *line; } table[] = {
      {"--", "'--' names no option: options are like --lr 0.001, see --help"},
      {"--=3", "'--=3' names no option: options are like --lr 0.001, see --help"},
      {"-b 4", "'-b' is not an option: llm.c's -b is --batch_size 4 here"},
      {"-z 1", "'-z' is not an option: llm.c's -z is --strategy: zero1, zero2 or zero3; ddp for 0"},
      {"-lr 4", "'-lr' is not an option: did you mean --lr? See --help"},
      {"lr=4", "'lr=4' is not an option: did you mean --lr=4? See --help"},
      {"-1", "'-1' is not an option: options start with --, see --help"},
      {"README.md", "'README.md' is not an option: a file of options goes after --config, see --help"},
      {"\xe2\x80\x93lr 4", "'\xe2\x80\x93lr' is not an option: its dash is a longer character than -; type it again"},
      {"--blok_size 4", "unknown option --blok_size: did you mean --seq_len? See --help"},
      {"--lrr 4", "unknown option --lrr: did you mean --lr? See --help"},
      {"--warmup-steps 9", "unknown option --warmup_steps: --warmup takes both: below 1 a fraction of all steps "
       "(0.05), else steps (2000)"},
      {"--gradient_accumulation_steps 4", "unknown option --gradient_accumulation_steps: --grad_accum N counts "
       "microbatches of each rank, --global_batch N sequences of a step over all ranks"},
      {"--bf16", "unknown option --bf16: type --dtype bf16; --param_dtype, --reduce_dtype, --buffer_dtype set "
       "its parts"},
      {"--wandb_log=True", "unknown option --wandb_log: every step is a line of JSON in OUT/metrics.jsonl; --out names "
       "the directory"},
      {"--compile=False", "unknown option --compile: there is nothing to compile: leave it out"},
      {"--no_dropout", "unknown option --no_dropout: --dropout is not on or off; see --help dropout"},
      {"--no_shuffle=on", "--no_shuffle takes no value, not 'on'"},
      {"--dtype bf16 --param_dtype fp32 --reduce_dtype fp32 --buffer_dtype fp32",
       "--dtype bf16 sets nothing: --param_dtype, --reduce_dtype and --buffer_dtype are all given; leave it out"},
      {"--dtype int8", "--dtype 'int8' is not known: choose one of fp32|bf16|fp16"},
      {"--device cuda:1", "--device cuda:1: ranks take a host's GPUs in order; CUDA_VISIBLE_DEVICES=1 --device cuda "
       "computes on this one"},
      {"--learning_rate 0", "--lr 0 is out of range: 1e-20 to 1000; leave it out for the default"},
      {"--lr -1", "--lr -1 is out of range: 1e-20 to 1000; leave it out for the default"},
      {"--lr inf", "--lr needs a number, not 'inf'"}, {"--lr 0x1", "--lr needs a number, not '0x1'"},
      {"--n_layer 0", "--n_layer 0 is out of range: 1 to 1000; leave it out for the default"},
      {"--seed -1", "--seed -1 is out of range: 0 or more"},
      {"--seed 1e19", "--seed 1e19 is out of range: 0 to 9223372036854775807"},
      {"--clip -1", "--clip -1 is out of range: 0 or more"},
      {"--batch_size 10k", "--batch_size needs a whole number, not '10k'"},
      {"--batch_size 1.5e0", "--batch_size needs a whole number, not '1.5e0'"},
      {"--batch_size 1__0", "--batch_size needs a whole number, not '1__0'"},
      {"--muon-n 3", "unknown option --muon_n: see --help"}, {"--weight 3", "unknown option --weight: see --help"},
      {"--top 3", "unknown option --top: see --help"}, {"--rope-s 3", "unknown option --rope_s: see --help"},
      {"--reshard_after 3", "unknown option --reshard_after: see --reshard_after_forward"},
      {"--sede 3", "unknown option --sede: did you mean --seed? See --help"},
      {"--beta3 3", "unknown option --beta3: see --help"}, {"--top_n 3", "unknown option --top_n: see --help"},
      {"--config a --config b", "--config is given twice: give one file of options"},
      {"--out a\nb", "--out 'a?b': byte 0x0a is not allowed in a name"}};
  Options o;
  Error error = {};
  for (const auto &row : table) {
    options_typed(&o, row.typed, &error);
    EXPECT(!strcmp(error.text, row.line), "%s:\n      %s\n    must be\n      %s", row.typed, error.text, row.line);
  }
}

TEST(options_that_are_wrong_are_told_at_once,
     "every wrong option, value and word of a command line, and of a file with its line, is in one line; where the "
     "line gets long, by its name") {
  static const struct { const char *typed, *line; } table[] = {
      {"--lrr 4 --n_layer x --seq_len 64 --quux --top_k 3 lr=4",
       "unknown option --lrr: did you mean --lr? See --help; --n_layer needs a whole number, not 'x'; unknown option "
       "--quux: see --help; 'lr=4' is not an option: did you mean --lr=4? See --help"},
      {"-lr 4 lr 5 --dropp -1 --lr 1", "'-lr' is not an option: did you mean --lr? See --help; 'lr' is not an option: "
       "did you mean --lr? See --help; unknown option --dropp: see --help"}};
  static Options o;
  char words[2048] = "", *none[] = {(char *)"test"};
  Error error = {};
  for (const auto &row : table) {
    options_typed(&o, row.typed, &error);
    EXPECT(!strcmp(error.text, row.line), "%s:\n      %s\n    must be\n      %s", row.typed, error.text, row.line);
  }
  EXPECT(!config_and_line(&o, "f", "lrr: 3\n\nseq_len: 9\nbeta1: x # y\n", 1, none, &error) && !strcmp(error.text,
         "f:1: unknown option --lrr: did you mean --lr? See --help; line 4: --beta1 needs a number, not 'x'"), "%s",
         error.text);
  for (const char *name : {"loss_type", "val_size", "packing", "template", "load_in_4bit", "eval_strategy", "use_peft",
                           "beta", "stage", "use_dora", "ref_model", "do_train", "max_samples", "max_length", "bf16",
                           "mask_history", "save_strategy", "hub_token", "kto_ftx", "num_beams"})
    text_add(words, sizeof words, "--%s 1 ", name);
  options_typed(&o, words, &error);
  for (char *save = NULL, *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
    EXPECT(strlen(w) < 3 || strstr(error.text, w), "%s is not named: %s", w, error.text);
  EXPECT(strlen(error.text) < sizeof error - 1, "it is cut: %s", error.text);
}

TEST(options_of_fine_tuning_programs,
     "names of TRL, PEFT, LLaMA-Factory, unsloth, axolotl, torchtune and transformers: taken where they mean the same, "
     "else explained with our option; of all that these programs have, none is answered by a guess") {
  static const struct { const char *typed, *is; } taken[] = {
      {"--cutoff_len 64 --lora_rank 4", "seq_len=64 lora=4"}, {"--sequence_len 64 --r 8", "seq_len=64 lora=8"},
      {"--lora_target q_proj,v_proj", "lora_targets=q_proj,v_proj"}, {"--lora_target_modules all-linear",
       "lora_targets=all"}, {"--pref_loss sigmoid --pref_beta 0.2", "loss=dpo dpo_beta=0.2"},
      {"--rl ipo --rl_beta 0.1", "loss=ipo dpo_beta=0.1"}, {"--adapter_name_or_path d", "lora_from=d"},
      {"--num_train_epochs 3.0", "epochs=3"}, {"--log_every_n_steps 5 --random_state 7", "log_every=5 seed=7"},
      {"--optimizer adamw_torch_fused --cosine_min_lr_ratio 0.2", "optimizer=adamw min_lr_ratio=0.2"}};
  static const struct { const char *name, *says; } explained[] = {
      {"beta", "--dpo_beta"}, {"loss_type", "--loss dpo"}, {"val_size", "--val_data"}, {"val_set_size", "--val_data"},
      {"packing", "--pack"}, {"sample_packing", "--pack"}, {"template", "--chat_template"}, {"stage", "--loss dpo"},
      {"load_in_4bit", "--base_dtype nf4"}, {"load_in_8bit", "--base_dtype q8_0"}, {"quantization_bit", "--base_dtype"},
      {"eval_strategy", "--eval_every"}, {"save_strategy", "--save_every"}, {"use_peft", "--lora"},
      {"finetuning_type", "--lora"}, {"adapter", "--lora"}, {"use_rslora", "--lora_scale root"},
      {"train_on_inputs", "--train_on"}, {"assistant_only_loss", "--train_on"}, {"max_prompt_length", "--seq_len"},
      {"max_length", "--seq_len"}, {"ref_model", "reference"}, {"lora_modules_to_save", "--train_rows"},
      {"gradient_accumulation_steps", "--grad_accum"}, {"export_dir", "--merge --export_hf"},
      {"load_best_model_at_end", "--keep_best"}, {"orpo_alpha", "--dpo_beta"}, {"base_model", "--init_from"},
      {"gradient_checkpointing", "--recompute"}, {"dataset", "--data"}, {"max_samples", "--max_steps"}};
  static Options o;
  char words[256], value[OPTION_TEXT_BYTES], name[OPTION_NAME_BYTES];
  Error error = {};
  for (const auto &row : taken) {
    options_typed(&o, row.typed, &error);
    EXPECT(!error.text[0], "%s: %s", row.typed, error.text);
    for (const char *is = row.is; name_next(&is, name);) {
      char *equals = strchr(name, '=');
      *equals++ = 0;
      option_print_short(value, sizeof value, &o, &option_specs[option_index(name)]);
      EXPECT(!strcmp(value, equals), "%s: --%s is %s, must be %s", row.typed, name, value, equals);
    }
  }
  for (const auto &row : explained) {
    snprintf(words, sizeof words, "--%s 1", row.name);
    options_typed(&o, words, &error);
    EXPECT(strstr(error.text, row.says) && !strstr(error.text, "did you mean"), "%s: %s", words, error.text);
  }
  int64_t bytes;
  int names = 0, answered = 0;
  char *all = file_get("dev/fixtures/option_names.txt", 1 << 20, &bytes);
  if (!all) SKIP("dev/fixtures is not here");
  for (char *c = all; *c; c++) if (*c == '\n') *c = ' ';
  for (const char *list = all; name_next(&list, name); names++) {
    OptionUse use;
    const bool is = option_find(name, &use, &error);
    const bool lists = strstr(error.text, ": see --") && !strstr(error.text, ": see --help");
    EXPECT(is || (!strstr(error.text, "did you mean") && !lists), "a guess: %s", error.text);
    answered += is || !strstr(error.text, "see --help");
  }
  EXPECT(names > 1000 && answered > 600, "%d names, %d of them known", names, answered);
  free(all);
}

TEST(options_of_zero_are_given,
     "0 is never taken for an option that was not given: it is obeyed, or rejected by name; so is an empty text, also "
     "in a file of options") {
  static const char *const rejected[] = {"epochs", "max_steps", "grad_accum", "global_batch", "test_batch_size",
                                        "tokens", "lora_alpha", "lr", "n_kv_head", "norm_eps", "ranks_per_host"};
  static Options o;
  char words[256], *none[] = {(char *)"test"};
  Error error = {};
  for (const char *name : rejected) {
    snprintf(words, sizeof words, "--%s 0", name);
    options_typed(&o, words, &error);
    EXPECT(strstr(error.text, " 0 is out of range: ") && strstr(error.text, "leave it out for the default"), "%s: '%s'",
           words, error.text);
  }
  // Where something else decides unless it is given, 0 is a value like others.
  for (int i = 0; i < OPTION_COUNT; i++) {
    const OptionSpec *s = &option_specs[i];
    if (s->type > OPTION_NUM || s->lo > 0 || (s->lo <= 0 && s->def <= 0 && s->def >= s->lo)) continue;
    options_default(&o, &trainer_table);
    EXPECT(option_set(&o, i, "0", &error) && o.given[i], "--%s 0: %s", s->name, error.text);
  }
  for (const char *loss : {"dpo", "ipo", "hinge", "simpo", "orpo"}) {
    snprintf(words, sizeof words, "--loss %s --dpo_beta 0", loss);
    options_typed(&o, words, &error);
    options_resolve(&o, 1, 1, &error);
    const bool orpo = !strcmp(loss, "orpo");
    EXPECT(orpo ? !error.text[0] && o.dpo_beta == 0 : !!strstr(error.text, "--dpo_beta 0: --loss "), "%s: %s", words,
           error.text);
  }
  options_typed(&o, "--loss simpo", &error);
  EXPECT(options_resolve(&o, 1, 1, &error) && o.dpo_beta == 2, "simpo without beta: %g", o.dpo_beta);
  for (const char *name : {"data", "fields", "rope_scaling", "train_rows", "init_from"}) {
    snprintf(words, sizeof words, "%s = \n", name);
    EXPECT(!config_and_line(&o, "f", words, 1, none, &error) && strstr(error.text, "f:1: --") &&
               strstr(error.text, " is empty"), "%s '%s'", name, error.text);
  }
  // A checkpoint's record has 0 where nothing was given.
  options_default(&o, &trainer_table);
  EXPECT(option_put(&o, OPT_lora_alpha, "0", &error) && !o.given[OPT_lora_alpha], "%s", error.text);
}

TEST(cli_vocabularies_beside_a_tokenizer,
     "--vocab_size beside --tokenizer, of a text, packed texts and token files: rejected where it is smaller, padding "
     "where it is larger; options.txt says it, and a resumed run has it") {
  CliRun r;
  char ask[1200];
  CLI_RUN(&r, "cd %s && seq 1 3000 >t.txt && gzip -k t.txt && seq 1 2 3000 >v.txt", test_tmp());
  cli_free(&r);
  for (const char *data : {"t.txt", "t.txt.gz"}) {
    snprintf(ask, sizeof ask, "%s --data %s --val_data %s --cache %s --tokenizer dev/fixtures/tokenizer_smollm2.json "
             "--n_layer 1 --n_head 2 --n_embd 8 --seq_len 16 --max_steps 2 --sample_tokens 2 --out %s", cli_ranks(0),
             cli_path(data), cli_path("v.txt"), cli_path("cache"), cli_path("out"));
    CLI_RUN(&r, "%s --vocab_size 300", ask);
    EXPECT(r.code == 2 && strstr(r.text, "has 548 tokens, more than --vocab_size 300"), "%s: %d %.2000s", data, r.code,
           r.text);
    cli_free(&r);
    CLI_RUN(&r, "%s --vocab_size 600 && grep -x 'vocab_size = 600' %s/options.txt && %s --vocab_size 600 --resume "
            "--max_steps 3 && rm -r %s", ask, cli_path("out"), ask, cli_path("out"));
    cli_expect_done(&r, data);
    EXPECT(strstr(r.text, "vocab 600"), "%s: %.2000s", data, r.text);
    cli_free(&r);
  }
  const CliRejection encode = {0, "--encode o README.md --tokenizer dev/fixtures/tokenizer_smollm2.json --vocab_size "
                             "600", 2, "--vocab_size is of a tokenizer that is trained..."};
  cli_expect_rejections(&encode, 1);
}

TEST(options_of_other_programs_are_told_whole,
     "a command line with llm.c's short options, or nanoGPT's --init_from scratch or resume, is answered once, with "
     "the whole line to type and what has no place in it; that line is taken") {
  static const struct { const char *typed, *line, *left; } table[] = {
      {"-i d.bin -j v.bin -e d12 -b 4 -t 512 -d 4096 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700 -n 0 -v 250 -s 2 -h 1 "
       "-pn 8 -o log -y 1 -x 1000 -nk 5 -nm 50 -ge 0 -f 1 -w 1 -a 0 -lg 1 -m 3 -g 64 -k linear",
       "mpirun -np 8 ./train_gpt_fsdp --data d.bin --val_data v.bin --model gpt2 --batch_size 4 --seq_len 512 "
       "--recompute none --strategy zero1 --weight_decay 0.1 --lr 0.0006 --min_lr_ratio 0.0 --warmup 700 --save_every "
       "-1 --eval_every 250 --out log --resume --max_steps 1000 --keep 5 --matmul_precision high --sample_tokens 64 "
       "--schedule linear --global_batch 8 --dtype bf16",
       "-s, -h, -nm, -ge, -w, -a, -lg, -m"},
      {"-e m.bin -d 2048 -x -1 -z 0 -y 0 -n 9", "./train_gpt_fsdp --init_from m.bin --strategy ddp --save_every 9 "
       "--seq_len 1024 --global_batch 2 --dtype bf16", NULL},
      {"-b 4 --n_layer 2", "./train_gpt_fsdp --batch_size 4 --n_layer 2 --dtype bf16", NULL},
      {"-b 4 --dtype fp32", "./train_gpt_fsdp --batch_size 4 --dtype fp32", NULL},
      {"-b x", "./train_gpt_fsdp --batch_size x --dtype bf16; then: --batch_size needs a whole number, not 'x'", NULL},
      {"-b 4 --lrr 3", "./train_gpt_fsdp --batch_size 4 --dtype bf16",
       "unknown option --lrr: did you mean --lr? See --help"},
      {"-d 1000 -t 64", "./train_gpt_fsdp --seq_len 64 --dtype bf16", "-d (not a multiple of -t)"},
      {"--init_from scratch", "./train_gpt_fsdp", NULL},
      {"conf.py --init_from=resume --max_iters=20 --compile=False --warmup_iters 9 --prompt=it's --min_lr=1",
       "./train_gpt_fsdp --resume --max_iters 20 --warmup 9 --prompt 'it'\\''s'", "conf.py, --compile, --min_lr "
       "(--min_lr_ratio is its share of --lr: 0.1 ends at a tenth)"}};
  unsetenv("OMPI_COMM_WORLD_SIZE");
  for (const auto &row : table) {
    char text[1024], want[2048], *argv[96] = {(char *)"test"}, *save = NULL;
    Error error = {};
    int argc = 1;
    snprintf(text, sizeof text, "%s", row.typed);
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
    Options o;
    EXPECT(!options_parse(&o, &trainer_table, argc, argv, &error), "%s is taken", row.typed);
    options_whole_line(argc, argv, &error);
    snprintf(want, sizeof want, "this is a command line of llm.c or nanoGPT; type: %s%s%s", row.line,
             row.left ? "; left out, as it has no place here: " : "", row.left ? row.left : "");
    EXPECT(!strcmp(error.text, want), "%s:\n      %s\n    must be\n      %s", row.typed, error.text, want);
  }
  char *plain[] = {(char *)"test", (char *)"-lr", (char *)"4"};
  Error error = {};
  fail(&error, "as it was");
  options_whole_line(3, plain, &error);
  EXPECT(!strcmp(error.text, "as it was"), "it became %s", error.text);
  static const CliRejection rejected[] = {
      {2, "--init_from scratch", 2, "this is a command line of llm.c or nanoGPT; type: ./train_gpt_fsdp ..."},
      {0, "-h 1 -b 4", 2, "this is a command line of llm.c or nanoGPT; type: ./train_gpt_fsdp ..."}};
  cli_expect_rejections(rejected, 2);
  char line[700];
  options_write_text(cli_path("scratch.txt"), "init_from = scratch\n");
  snprintf(line, sizeof line, "%s:1: --init_from names weights; scratch: leave it out, new weights are the default",
           cli_path("scratch.txt"));
  char options[700];
  snprintf(options, sizeof options, "--config %s", cli_path("scratch.txt"));
  const CliRejection in_file = {0, options, 2, line};
  cli_expect_rejections(&in_file, 1);
}

TEST(options_new_in_a_resumed_run_are_told, "an option that the checkpoint's run had no value of is told to be new") {
  static Options first, then;
  Start start;
  Error error = {};
  options_typed(&first, "--lr_scale wte=2", &error);
  EXPECT(!error.text[0] && options_resolve(&first, 1, 1, &error), "%s", error.text);
  option_start(&start, &first, true);
  options_typed(&then, "--resume x --no_decay wpe --lr_scale=", &error);
  EXPECT(!error.text[0] && start_options(&start, &then, &error), "%s", error.text);
  EXPECT(strstr(start.warnings, "--no_decay wpe is new, the checkpoint's run had none: the run continues "
                "differently") &&
             strstr(start.warnings, "--lr_scale '' replaces the checkpoint's wte=2: the run continues differently"),
         "it says %s", start.warnings);
  start_free(&start);
}

TEST(option_choices_are_their_enums,
     "a choice that becomes one of an enum of the model, of sharding, of an optimizer or of a CPU's tables is that of "
     "its name; what nobody gave has its default") {
  static const struct { OptionId id; const char *word; int is; } rows[] = {
      {OPT_norm, "layernorm", NORM_LAYERNORM}, {OPT_norm, "rmsnorm", NORM_RMSNORM},
      {OPT_position, "learned", POSITION_LEARNED}, {OPT_position, "rope", POSITION_ROPE},
      {OPT_qk_norm, "off", QK_NORM_OFF}, {OPT_qk_norm, "before", QK_NORM_BEFORE},
      {OPT_qk_norm, "after", QK_NORM_AFTER}, {OPT_qk_norm, "all", QK_NORM_ALL},
      {OPT_norm_place, "before", NORM_BEFORE}, {OPT_norm_place, "behind", NORM_BEHIND},
      {OPT_norm_place, "both", NORM_BOTH},
      {OPT_mlp, "gelu", MLP_GELU}, {OPT_mlp, "relu2", MLP_RELU2}, {OPT_mlp, "silu", MLP_SILU},
      {OPT_mlp, "swiglu", MLP_SWIGLU}, {OPT_mlp, "geglu", MLP_GEGLU}, {OPT_bias, "all", BIAS_ALL},
      {OPT_bias, "none", BIAS_NONE},
      {OPT_bias, "qkv", BIAS_QKV}, {OPT_bias, "qkvo", BIAS_QKVO}, {OPT_shard, "flat", SHARD_FLAT},
      {OPT_shard, "dim0", SHARD_DIM0}, {OPT_fp8, "off", FP8_OFF}, {OPT_fp8, "gather", FP8_GATHER},
      {OPT_fp8, "matmul", FP8_MATMUL}, {OPT_offload, "none", OFFLOAD_NONE},
      {OPT_offload, "optimizer", OFFLOAD_OPTIMIZER}, {OPT_offload, "params", OFFLOAD_PARAMS},
      {OPT_between_hosts, "auto", BETWEEN_AUTO}, {OPT_between_hosts, "chain", BETWEEN_CHAIN},
      {OPT_between_hosts, "direct", BETWEEN_DIRECT}, {OPT_optimizer, "adamw", OPTIMIZER_ADAMW},
      {OPT_optimizer, "sgd", OPTIMIZER_SGD}, {OPT_optimizer, "muon", OPTIMIZER_MUON}};
  Options o;
  Error error = {};
  options_default(&o, &trainer_table);
  EXPECT(o.strategy == OPT_strategy_full_shard && (int)o.norm == PRESET && !*option_word(&o, OPT_norm),
         "defaults: --strategy %s --norm %s", option_word(&o, OPT_strategy), option_word(&o, OPT_norm));
  for (const auto &row : rows) {
    option_pick(&o, row.id, row.word);
    const int is = option_choice(&o, &option_specs[row.id]);
    EXPECT(is == row.is && !strcmp(option_word(&o, row.id), row.word), "--%s %s is %d, not %d",
           option_specs[row.id].name, row.word, is, row.is);
  }
  for (int i = 0; i < PROCESSOR_ISAS; i++) {
    option_pick(&o, OPT_isa, cpu_tables[i].name);
    EXPECT(cpu_table_wanted(&o, PROCESSOR_ISAS, &error) == i, "--isa %s is another", cpu_tables[i].name);
  }
}
TEST(option_names_are_of_options,
     "each other name appears once, is no option itself, and stands for one or says what to type") {
  char name[OPTION_NAME_BYTES], said[OPTION_NAME_BYTES];
  for (int i = 0; i <= OPTION_COUNT; i++)
    for (const char *also = option_spec(i)->also; name_next(&also, name);) {
      for (int k = 0; k <= OPTION_COUNT; k++)
        EXPECT(strcmp(option_spec(k)->name, name) && (k == i || !names_have(option_spec(k)->also, name)),
               "%s of --%s is there twice", name, option_spec(i)->name);
      EXPECT(!option_instead(name) && !names_have(also, name), "%s of --%s is there twice", name, option_spec(i)->name);
      EXPECT(option_index(name) == i, "%s is not --%s", name, option_spec(i)->name);
    }
  for (const OptionName &n : option_names) {
    for (const char *names = n.names; name_next(&names, name);) {
      EXPECT(option_index(name) < 0, "%s is an option of ours", name);
      EXPECT(strchr(name, '*') || option_instead(name) == n.say, "%s is there twice", name);
    }
    for (const char *at = n.say; (at = strstr(at, "--")); at++) {
      snprintf(said, sizeof said, "%.*s", (int)strspn(at + 2, "abcdefghijklmnopqrstuvwxyz_0123456789"), at + 2);
      EXPECT(option_index(said) >= 0, "%s: it says --%s, which is no option", n.names, said);
    }
  }
}

// The output of options_write for these options reads back as the same options.
static inline void options_expect_written(const Options *o) {
  char *file = NULL, value[2][OPTION_TEXT_BYTES], *argv[] = {(char *)"test"};
  Error error = {};
  size_t bytes;
  Options again;
  FILE *f = open_memstream(&file, &bytes);
  options_write(f, o, o, 1, "");
  fclose(f);
  EXPECT(config_and_line(&again, "f", file, 1, argv, &error), "%s:\n%s", error.text, file);
  for (int i = 0; i < OPTION_COUNT; i++) {
    option_print(value[0], sizeof value[0], o, &option_specs[i]);
    option_print(value[1], sizeof value[1], &again, &option_specs[i]);
    EXPECT(!strcmp(value[0], value[1]) || i == OPT_config || i == OPT_data || i == OPT_grad_accum,
           "--%s '%s' became '%s'", option_specs[i].name, value[0], value[1]);
  }
  free(file);
}

TEST(options_bear_hostile_input,
     "random words and random files of options are accepted, or rejected with one line; accepted ones read the same "
     "from options.txt") {
  static const char *const parts[] = {"--", "-", "=", "lr", "dtype", "bf16", "no_", "shuffle", "resume", "1e6", "0",
                                      "'", "\"", "\\x", "#", ":", "\n", "\t", " ", "\xc3\xa4", "\xff", "on", "-1", "_",
                                      "data", "prompt", "config", "%s%n", "strategy", "ZeRO-3", "max_iters"};
  uint64_t state = 12345;
  Options o;
  Error error = {};
  for (int round = 0; round < 20000; round++) {
    char word[6][256], *argv[7] = {(char *)"test"}, text[2048] = "";
    for (int w = 0; w < 6; w++) {
      word[w][0] = 0;
      for (int p = 0; p < 5; p++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        if (state >> 63 || !p) strcat(word[w], parts[(state >> 33) % (sizeof parts / sizeof *parts)]);
      }
      strcat(strcat(text, word[w]), round % 2 ? " " : "\n");
      argv[w + 1] = word[w];
    }
    error.text[0] = 0;
    const bool ok = round & 1 ? options_parse(&o, &trainer_table, 1 + round % 7, argv, &error)
                              : config_and_line(&o, "f", text, 1, argv, &error);
    EXPECT(ok == !error.text[0] && !strpbrk(error.text, "\n\t\r"), "%s: '%s'", text, error.text);
    if (!ok) continue;
    options_expect_written(&o);
  }
  for (int round = 0; round < 2000; round++) {   // any bytes in a value
    options_default(&o, &trainer_table);
    char prompt[8] = "";
    for (int i = 0; i < 7; i++) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      prompt[i] = "\\\"'#\n\t\x01\x7f\xff\xc3 =:nrx0a"[(state >> 33) % 19];
    }
    EXPECT(option_set(&o, OPT_prompt, prompt, &error), "%s", error.text);
    options_expect_written(&o);
  }
  char *long_text = (char *)malloc(1 << 17);
  memset(long_text, 'x', (1 << 17) - 1);
  long_text[(1 << 17) - 1] = 0;
  for (const char *name : {"--lr", "--device", "--wrap", "--prompt", "--save_model"}) {
    char *argv[] = {(char *)"test", (char *)name, long_text};
    EXPECT(!options_parse(&o, &trainer_table, 3, argv, &error) && strlen(error.text) < 400, "%s: %s", name, error.text);
  }
  memcpy(long_text, "--x", 3);
  char *argv[] = {(char *)"test", long_text};
  EXPECT(!options_parse(&o, &trainer_table, 2, argv, &error) && strlen(error.text) < 400, "%s", error.text);
  free(long_text);
}

TEST(config_lines_are_read,
     "--config: =, :, spaces or -- before a name, quotes, comments; the command line wins wherever it comes, also "
     "over --dtype's parts; a rejection says FILE:LINE") {
  static const char text[] = "\xef\xbb\xbf# options\r\n\n  --lr 0.5 # peak\nseq_len: 64\r\nn_layer=2\nsave_model\n"
                             "resume\n"
                             "no_shuffle # alone\nprompt = \"a # \\\"b\\\"\\n\\x01\" # told\ncache = ''\ndata = a#b\n"
                             "learning_rate 0.25\nparam_dtype = fp32\nfreeze = 'h.0.*'";
  Options o;
  char *argv[] = {(char *)"test", (char *)"--dtype", (char *)"bf16", (char *)"--n_layer=3"};
  Error error = {};
  EXPECT(config_and_line(&o, "f", text, 4, argv, &error), "%s", error.text);
  EXPECT(o.lr == 0.25 && o.seq_len == 64 && o.n_layer == 3 && o.save_model && !strcmp(o.resume, "auto") &&
             o.shuffle == OPT_shuffle_off && !strcmp(o.prompt, "a # \"b\"\n\x01") && !o.cache[0] &&
             !strcmp(o.data, "a#b") && !strcmp(o.freeze, "h.0.*") && o.given[OPT_lr] && !o.given[OPT_epochs],
         "lr %g, seq_len %lld, n_layer %lld, prompt '%s', data '%s'", o.lr, (long long)o.seq_len, (long long)o.n_layer,
         o.prompt, o.data);
  EXPECT(o.param_dtype == OPT_param_dtype_bf16 && o.buffer_dtype == OPT_buffer_dtype_bf16, "--param_dtype %s",
         option_word(&o, OPT_param_dtype));
  static const struct { const char *text, *line; } rejected[] = {
      {"lr = 1\n\nlrr = 2\n", "f:3: unknown option --lrr: did you mean --lr? See --help"},
      {"out = \"a", "f:1: the value of out has no closing quote, or an escape other than \\\\, \\\", \\n, \\t, "
       "\\r, \\xHH"},
      {"out = 'a' b", "f:1: 'b' follows the closing quote"},
      {"= 3", "f:1: there is no option name: lines are like lr = 0.001"},
      {"lr", "f:1: --lr needs a value"},
      {"config = g", "f:1: a file of options cannot name another: --config is for the command line"},
      {"warmup_iters = 100 # nanoGPT", "f:1: unknown option --warmup_iters: --warmup takes both: below 1 a fraction of "
       "all steps (0.05), else steps (2000)"},
      {"prompt = #x", "f:1: a value that starts with # needs quotes, and an empty one is \"\""},
      {"-W = 3", "f:1: '-W' is not an option: options start with --, see --help"},
      {"-lr = 3", "f:1: '-lr' is not an option: did you mean --lr? See --help"},
      {"-b: 4", "f:1: '-b' is not an option: llm.c's -b is --batch_size 4 here"},
      {"\xe2\x80\x93lr = 4", "f:1: '\xe2\x80\x93lr' is not an option: its dash is a longer character than -; type it "
       "again"},
      {"max_steps = many", "f:1: --max_steps needs a whole number, not 'many'"}};
  for (const auto &row : rejected) {
    EXPECT(!config_and_line(&o, "f", row.text, 1, argv, &error) && !strcmp(error.text, row.line),
           "%s:\n      %s\n    must be\n      %s", row.text, error.text, row.line);
  }
}

TEST(cli_config_files_that_cannot_be_read, "--config: one line, exit code 2, alone and under mpirun, no rank left") {
  char path[8][512], options[8][600], line[8][800];
  static const char *const says[] = {" cannot be read: No such file or directory", " cannot be read: it is a directory",
                                     " cannot be read: it is not a regular file", " cannot be read: it is larger than "
                                     "1 MiB", " is not text: byte 0x00 in line 2", ":2: unknown option --lrr: did you "
                                     "mean --lr? See --help"};
  static const char *const names[] = {"missing", "directory", "fifo", "large", "binary", "wrong"};
  CliRejection table[7];
  for (int i = 0; i < 6; i++) {
    snprintf(path[i], sizeof path[i], "%s", cli_path(names[i]));
    snprintf(options[i], sizeof options[i], "--config %s", path[i]);
    snprintf(line[i], sizeof line[i], "%s%s%s", i < 5 ? "--config " : "", path[i], says[i]);
    table[i] = CliRejection{i == 5 || !i ? 2 : 0, options[i], 2, line[i]};
  }
  table[6] = CliRejection{2, "--config=", 2, "--config is empty, ..."};
  mkdir(path[1], 0777);
  EXPECT(!mkfifo(path[2], 0666), "no FIFO");
  cli_write(path[3], "", 0);
  EXPECT(!truncate(path[3], (1 << 20) + 1), "no large file");
  cli_write(path[4], "lr = 1\n\0", 8);
  options_write_text(path[5], "lr = 1\nlrr = 2\n");
  cli_expect_rejections(table, 7);
}

TEST(config_pairs_are_replaced,
     "of --resume and --init_from, --grad_accum and --global_batch only one counts: the command line's, whatever the "
     "file has; two in one place are both kept") {
  static const char text[] = "init_from = w\nglobal_batch = 8\n";
  Options o;
  char *none[] = {(char *)"test"};
  Error error = {};
  char *other[] = {(char *)"test", (char *)"--resume", (char *)"c", (char *)"--grad_accum", (char *)"4"};
  char *both[] = {(char *)"test", (char *)"--resume", (char *)"c", (char *)"--init_from", (char *)"v"};
  EXPECT(config_and_line(&o, "f", text, 1, none, &error), "%s", error.text);
  EXPECT(!strcmp(o.init_from, "w") && o.global_batch == 8, "the file is not read");
  EXPECT(config_and_line(&o, "f", text, 5, other, &error), "%s", error.text);
  EXPECT(!o.init_from[0] && !o.given[OPT_init_from] && !strcmp(o.resume, "c"), "init_from '%s' stays", o.init_from);
  EXPECT(!o.global_batch && !o.given[OPT_global_batch] && o.grad_accum == 4, "global_batch stays");
  EXPECT(config_and_line(&o, "f", text, 5, both, &error), "%s", error.text);
  EXPECT(!strcmp(o.init_from, "v") && !strcmp(o.resume, "c"), "two on the command line are one");
}

TEST(config_rejections_name_the_file,
     "what does not fit, and is given by the file of --config, is told to come from there; what the command line gives "
     "is not") {
  static const struct { const char *file, *typed, *line; } rows[] = {
      {"global_batch = 8\nlr = 0.1\n", "--batch_size 16", "--global_batch 8 is not divisible by batch_size 16 x 1 "
       "rank; f gives --global_batch, which the command line may replace"},
      {"n_head = 5\n", "--n_embd 24", "--n_head 5 does not divide --n_embd 24; f gives --n_head, which the command "
       "line may replace"},
      {"n_head = 5\nn_embd = 24\n", "", "--n_head 5 does not divide --n_embd 24; f gives --n_head, --n_embd, which the "
       "command line may replace"},
      {"n_head = 2\nlr = 0.1\n", "--n_head 5 --n_embd 24", "--n_head 5 does not divide --n_embd 24"}};
  for (const auto &row : rows) {
    Options o;
    char words[256], *argv[16] = {(char *)"test"}, *save = NULL;
    Error error = {};
    int argc = 1;
    snprintf(words, sizeof words, "--config f %s", row.typed);
    for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
    EXPECT(config_and_line(&o, "f", row.file, argc, argv, &error), "%s", error.text);
    EXPECT(!options_resolve(&o, 1, 1, &error), "%s, %s is taken", row.file, row.typed);
    config_name_source(&o, &error);
    EXPECT(!strcmp(error.text, row.line), "%s, %s:\n      %s\n    must be\n      %s", row.file, row.typed, error.text,
           row.line);
  }
  char options[700], line[1024];
  options_write_text(cli_path("eight.txt"), "global_batch = 8\n");
  snprintf(options, sizeof options, "--config %s --batch_size 16", cli_path("eight.txt"));
  snprintf(line, sizeof line, "--global_batch 8 is not divisible by batch_size 16 x 2 ranks; %s gives --global_batch, "
           "which the command line may replace", cli_path("eight.txt"));
  const CliRejection rejection = {2, options, 2, line};
  cli_expect_rejections(&rejection, 1);
}

// Both have the same values of all options but those that say where a run begins, --data (WIKITEXT2_DIR), and --gamma
// where it has no effect.
static inline void options_expect_same(const char *what, const Options *a, const Options *b) {
  char value[2][OPTION_TEXT_BYTES];
  for (int i = 0; i < OPTION_COUNT; i++) {
    if (i == OPT_resume || i == OPT_config || i == OPT_data) continue;
    if (i == OPT_gamma && a->schedule != OPT_schedule_step) continue;
    option_print(value[0], sizeof value[0], a, &option_specs[i]);
    option_print(value[1], sizeof value[1], b, &option_specs[i]);
    EXPECT(!strcmp(value[0], value[1]), "%s: --%s %s became %s", what, option_specs[i].name, value[0], value[1]);
  }
}
TEST(options_txt_of_a_resumed_run_is_that_run,
     "a resumed run that was given less than the run before it: its options.txt resumes the same checkpoint with the "
     "same options and warnings, and starts the run anew with the same options; what follows from others is not "
     "there") {
  static const struct { const char *first, *then; } rows[] = {
      {"--n_layer 2 --n_head 2 --n_embd 24 --seq_len 8 --n_positions 16 --vocab_size 290 --batch_size 2 --grad_accum 2 "
       "--lr 0.01", ""},
      {"--model small", ""}, {"--model small --seq_len 32 --batch_size 4 --param_dtype bf16", "--max_steps 9"},
      {"--param_dtype bf16 --buffer_dtype fp32 --test_batch_size 3", ""}, {"--n_positions 16", ""},
      {"--n_positions 4096", ""}, {"--batch_size 4", "--batch_size 2 --param_dtype bf16"}, {"--dtype bf16", ""},
      {"--dtype bf16 --fp8 gather", "--dtype fp32"}, {"--gamma 0.5 --step_epochs 2", ""},
      {"--gamma 0.5", "--gamma 0.4"}, {"--gamma 0.5", "--schedule linear"},
      {"--schedule linear", "--gamma 0.5"}, {"--schedule wsd", "--gamma 0.7"},
      {"--strategy zero1", ""}, {"--strategy zero1", "--strategy zero2"}, {"", "--strategy zero1"},
      {"--optimizer sgd --momentum 0.5 --freeze wte,h.0.* --drop_last off --no_shuffle --seed 9", ""},
      {"--tie_head off --dropout 0.1 --max_steps 7 --epochs 3 --save_every 2 --keep 0 --keep_best --eval_every 5 "
       "--temperature 0", "--keep_best=off --save_model"}};
  static Options first, then, asked, again, anew;
  setenv("WIKITEXT2_DIR", "text", 1);            // which becomes --data
  for (const auto &row : rows) for (const char *resume : {"auto", "run/ckpt/latest"}) {
    char what[512], typed[512], *text = NULL, *argv[] = {(char *)"test"};
    Error error = {};
    size_t bytes;
    Start start, same;
    snprintf(what, sizeof what, "%s, then --resume %s %s", row.first, resume, row.then);
    snprintf(typed, sizeof typed, "--resume %s %s", resume, row.then);
    options_typed(&first, row.first, &error);
    EXPECT(!error.text[0] && options_resolve(&first, 1, 1, &error), "%s: %s", what, error.text);
    option_start(&start, &first, true);
    option_start(&same, &first, true);
    options_typed(&then, typed, &error);
    EXPECT(!error.text[0] && start_options(&start, &then, &error), "%s: %s", what, error.text);
    asked = then;
    start_exact(&start, &asked);
    EXPECT(options_resolve(&then, 1, 1, &error), "%s: %s", what, error.text);
    FILE *f = open_memstream(&text, &bytes);
    options_write(f, &asked, &then, 1, start.path);
    fclose(f);
    const bool automatic = !strcmp(resume, "auto");
    EXPECT(strstr(text, automatic ? "/options.txt --resume some/step_00000003 --out DIRECTORY\n"
                                  : "/options.txt --out DIRECTORY\n"), "%s: its head is\n%s", what, text);
    EXPECT(strstr(text, automatic ? "\nresume = auto\n" : "\nresume = some/step_00000003\n"), "%s:\n%s", what, text);
    const bool other_batch = strstr(row.first, "--test_batch") || strstr(row.then, "--batch");
    EXPECT(!strstr(text, "\ntest_batch_size = ") == !other_batch, "%s:\n%s", what, text);
    EXPECT(!strstr(text, "\nn_layer = ") == !strstr(row.first, "--n_layer"), "%s:\n%s", what, text);
    EXPECT(config_and_line(&again, "f", text, 1, argv, &error), "%s: %s\n%s", what, error.text, text);
    anew = again;
    EXPECT(start_options(&same, &again, &error) && options_resolve(&again, 1, 1, &error),
           "%s: %s\n%s", what, error.text, text);
    options_expect_same(what, &then, &again);
    EXPECT(!strcmp(start.warnings, same.warnings), "%s: warnings '%s' became '%s'", what, start.warnings,
           same.warnings);
    EXPECT(options_resolve(&anew, 1, 1, &error), "%s: %s\n%s", what, error.text, text);
    options_expect_same(what, &then, &anew);
    free(text);
    start_free(&start);
    start_free(&same);
  }
}

TEST(cli_options_txt_repeats_a_resumed_run,
     "OUT with spaces, a run resumed there by --resume alone: the command in the head of options.txt makes the resumed "
     "steps again, --config alone all of them") {
  CliRun r;
  char out[600];
  snprintf(out, sizeof out, "%s", cli_path("it's a run"));
  CLI_RUN(&r, "cd %s && %s %s --model small --grad_accum 2 --max_steps 4 --save_every 4 --schedule constant --warmup 0 "
          "--eval_every -1 --sample_tokens 0 --out \"it's a run\" && %s --resume --max_steps 8 --threads 1 --cache= "
          "--out \"it's a run\"", test_tmp(), cli_program(), cli_small(), cli_program());
  cli_expect_done(&r, "four steps, and four more");
  EXPECT(strstr(r.text, ", step 4, read in"), "it was not resumed:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "cd %s && sed -n 's/DIRECTORY/again/; s|^# in another directory: mpirun -np 1 ./train_gpt_fsdp|%s|p' "
          "\"it's a run/options.txt\" >command && sh command && for f in model optim; do cmp "
          "\"it's a run/ckpt/latest/$f.safetensors\" again/ckpt/latest/$f.safetensors || exit 1; done && %s --config "
          "\"it's a run/options.txt\" --out anew",
          test_tmp(), cli_program(), cli_program());
  cli_expect_done(&r, "again, and anew");
  EXPECT(cli_count(r.text, ", step 4, read in") == 1, "not resumed from step 4:\n%.3000s", r.text);
  cli_free(&r);
  cli_expect_same_series("anew", out, cli_path("anew"), 8);
}

TEST(cli_options_txt_repeats_a_run,
     "--config OUT/options.txt makes the same losses, on 2 ranks too; a run can resume with it; if it cannot be "
     "written a warning says so") {
  CliRun r;
  char one[600], again[600], file[700];
  snprintf(one, sizeof one, "%s", cli_path("one"));
  snprintf(again, sizeof again, "%s", cli_path("again"));
  snprintf(file, sizeof file, "%s/options.txt", one);
  CLI_RUN(&r, "%s %s --batch_size 2 --grad_accum 2 --max_iters 4 --dtype FP32 --dropout 0.1 --lr 0.03 --recompute auto "
          "--schedule Constant --warmup 0 --eval_interval -1 --prompt 'a #\"\\ ' --out %s", cli_ranks(0), cli_small(),
          one);
  cli_expect_done(&r, "one");
  cli_free(&r);
  CLI_RUN(&r, "%s --out %s --config %s", cli_ranks(0), again, file);
  cli_expect_done(&r, "again");
  cli_free(&r);
  cli_expect_same_series("again", one, again, 4);
  CLI_RUN(&r, "grep -v -e '^#' -e '^out = ' %s > %s.a && grep -v -e '^#' -e '^out = ' %s/options.txt | cmp - %s.a && "
          "grep -qx 'global_batch = 4' %s && ! grep -q -e grad_accum -e device %s && grep -qx 'recompute = auto' %s && "
          "grep -qx 'lr = 0.03' %s", file, file, again, file, file, file, file, file);
  EXPECT(getenv("DEVICE") || !r.code, "options.txt is not as it must be: %s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s --config %s --out %s --max_steps 8 --resume", cli_ranks(2), file, one);
  cli_expect_done(&r, "resumed");
  EXPECT(strstr(r.text, ", step 4, read in"), "it was not resumed:\n%.2000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "rm -r %s && mkdir -p %s/options.txt && %s --config %s --out %s", again, again, cli_ranks(2), file,
          again);
  cli_expect_done(&r, "a directory is in the way");
  EXPECT(cli_count(r.text, "again/options.txt cannot be written: Is a directory") == 1, "no warning:\n%.2000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s --config %s --max_steps 8 --resume= --out %s", cli_ranks(0), file, one);
  cli_expect_rejection(&r, "--resume=", 2, "--resume is empty, ...");
  cli_free(&r);
  snprintf(file, sizeof file, "%s/options.txt", again);
  CLI_RUN(&r, "rmdir %s; %s --config %s/options.txt --resume=auto --out %s && %s --config %s", file, cli_ranks(2), one,
          again, cli_ranks(0), file);
  cli_expect_done(&r, "from the start by what a resumed run wrote");
  EXPECT(strstr(r.text, ", step 8, read in"), "it was not resumed:\n%.3000s", r.text);
  cli_free(&r);
  cli_expect_same_series("as it was resumed", one, again, 8);
  CLI_RUN(&r, "%s --resume %s/ckpt/latest --max_steps 9 --out %s && ! grep -e test_batch_size "
          "%s/options.txt", cli_ranks(0), one, cli_path("third"), cli_path("third"));
  EXPECT(!r.code, "what followed from other options is written as if it had been asked for:\n%.3000s", r.text);
  cli_free(&r);
}

TEST(cli_help_is_short_and_true,
     "--help is at most 50 lines of 80 columns, of options that exist; --help all 120 columns; --help NAME, --NAME "
     "--help show one; a wrong name is rejected") {
  CliRun r;
  for (const char *asked : {"--help", "--help all"}) {
    CLI_RUN(&r, "%s %s", cli_ranks(0), asked);
    cli_expect_done(&r, asked);
    const int most = strstr(asked, "all") ? 120 : 80;
    int lines = 0;
    for (const char *c = r.text; *c; c += strcspn(c, "\n") + 1, lines++)
      EXPECT((int)strcspn(c, "\n") <= most, "%s: a line of %d columns: %.130s", asked, (int)strcspn(c, "\n"), c);
    EXPECT(most == 120 || lines <= 50, "%d lines", lines);
    for (const char *at = r.text; (at = strstr(at, "--")); at += 2) {
      char name[OPTION_NAME_BYTES];
      snprintf(name, sizeof name, "%.*s", (int)strspn(at + 2, "abcdefghijklmnopqrstuvwxyz_0123456789"), at + 2);
      if (name[0] && strcmp(name, "help") && strcmp(name, "version") && strcmp(name, "option"))
        EXPECT(option_index(name) >= 0 || !strcmp(name, "no_"), "%s: no option --%s", asked, name);
    }
    EXPECT(cli_count(r.text, "  --dtype ") == 1, "%s: no --dtype", asked);
    cli_free(&r);
  }
  for (const char *asked : {"--help seq-len", "--help=block_size", "--seq_len --help"}) {
    CLI_RUN(&r, "%s %s", cli_ranks(0), asked);
    EXPECT(!r.code && cli_count(r.text, "  --seq_len N") == 1 && strstr(r.text, "1 to 1048576") &&
               cli_count(r.text, "--") == 1, "%s: exit code %d:\n%s", asked, r.code, r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "%s --help quux", cli_ranks(2));
  cli_expect_rejection(&r, "--help quux", 2, "unknown option --quux: see --help");
  cli_free(&r);
}

TEST(empty_values_are_unset_variables,
     "an option that names a thing and is empty is rejected by name; one whose empty value means something is taken") {
  static const char *const rejected[] = {"encode", "data", "val_data", "init_from", "resume", "tokenizer", "lora_from",
                                        "export_hf", "config", "prompts", "eval", "trace", "mesh", "flight"};
  static const char *const taken[] = {"cache", "prompt", "stop", "freeze", "no_decay", "lr_scale"};
  Options o;
  for (const char *name : rejected)
    for (bool apart : {false, true}) {
      char word[64], want[256];
      Error error = {};
      char *argv[] = {(char *)"t", word, (char *)"", NULL};
      snprintf(word, sizeof word, "--%s%s", name, apart ? "" : "=");
      snprintf(want, sizeof want, "--%s is empty, as a shell variable is that was not set: give its value, or leave "
               "the option out", name);
      EXPECT(!options_parse(&o, &trainer_table, apart ? 3 : 2, argv, &error) && !strcmp(error.text, want),
             "%s: '%s'", word, error.text);
    }
  for (const char *name : taken) {
    char word[64], *argv[] = {(char *)"t", word, NULL};
    Error error = {};
    snprintf(word, sizeof word, "--%s=", name);
    EXPECT(options_parse(&o, &trainer_table, 2, argv, &error), "%s: %s", word, error.text);
  }
}
