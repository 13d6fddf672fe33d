// option_help.h: --help prints the options most people need; --help all, every option; --help NAME, one option.
#pragma once
#include "option_values.h"
#include <gnu/libc-version.h>

// The short page: at most 50 lines of 80 columns.
static const char help_short[] =
    "usage: [mpirun -np N] ./train_gpt_fsdp [--option value]...\n"
    "\n"
    "  ./train_gpt_fsdp                                  one rank, all cores\n"
    "  mpirun -np 2 ./train_gpt_fsdp --model small --epochs 5\n"
    "  mpirun -np 2 ./train_gpt_fsdp --resume            continue where it stopped\n"
    "  ./train_gpt_fsdp --config out/options.txt --out again\n"
    "\n"
    "what to train\n"
    "  --model gpt2              tiny, small, gpt2, gpt2-xl, modern-small, ... [tiny]\n"
    "  --n_layer 6               blocks; also --n_head, --n_embd, --vocab_size\n"
    "  --seq_len 256             tokens per training sequence\n"
    "  --data PATH               a text, a directory, chats .jsonl, or tokens .bin\n"
    "  --init_from PATH          weights: Hugging Face, .gguf, llm.c, a checkpoint\n"
    "how long, how fast\n"
    "  --epochs 3                passes over the training tokens [1]\n"
    "  --max_steps 1000          stop after this many steps\n"
    "  --batch_size 16           sequences per microbatch and rank [8]\n"
    "  --grad_accum 4            microbatches per step and rank [1]\n"
    "  --global_batch 64         instead: sequences per step, over all ranks\n"
    "  --lr 0.001                peak learning rate; also --schedule, --warmup\n"
    "  --dtype bf16              parameters, gradients, activations [fp32]\n"
    "  --dropout 0.1             on embeddings, attention and branches [0]\n"
    "  --seed 2                  of weights, order, dropout and samples [1]\n"
    "device, sharding and memory\n"
    "  --device cpu              cpu or cuda [a GPU if there is one]\n"
    "  --strategy zero2          full_shard, shard_grad_op, ddp, ... [full_shard]\n"
    "  --recompute block         less memory, one more forward pass\n"
    "  --threads 4               per rank [its share of the cores]\n"
    "  --preflight               look at hosts and network, say what to mend, end\n"
    "  --plan                    what the run would need; starts nothing\n"
    "                            also --world, --on h100 (how long), --tokens, --json\n"
    "output and checkpoints\n"
    "  --out DIR                 report.html, metrics.jsonl, ckpt/, ... [out]\n"
    "  --save_every 500          steps between checkpoints [an epoch]\n"
    "  --eval_every 100          steps between validations [an epoch]\n"
    "  --prompt \"In the year\"    text to continue at the end; also --sample_tokens\n"
    "  --config FILE             options, one per line: lr = 0.001\n"
    "  --resume                  from the newest checkpoint in OUT, or from PATH\n"
    "\n"
    "--help all lists every option, --help NAME explains one. Names take - or _.\n"
    "Names from nanoGPT, llm.c and Hugging Face are accepted or explained.\n";

// One option with its values, its default and what other programs call it.
static void help_option(const OptionSpec *s) {
  char left[160], def[64] = "";
  static Options o;
  options_default(&o, NULL);
  if (s != &dtype_spec) option_print(def, sizeof def, &o, s);
  if (s->type == OPTION_NUM) snprintf(def, sizeof def, "%g", s->def);
  const char *const value[] = {"N", "X", s->choices ? s->choices : "TEXT", s->choices, ""};      // by OptionType
  snprintf(left, sizeof left, "--%s %s", s->name, value[s->type]);
  int cut = (int)strlen(left);                   // a long list of choices takes two lines
  if (cut > 118) for (cut = 118; left[cut - 1] != '|'; cut--) {}
  if (strlen(left) <= 34) printf("  %-34s %s", left, s->help);
  else printf("  %.*s%s%s\n  %-34s %s", cut, left, left[cut] ? "\n      " : "", left + cut, "", s->help);
  const bool numeric = s->type == OPTION_INT || s->type == OPTION_NUM;
  if (s->type != OPTION_FLAG && def[0] && !(numeric && s->def < s->lo)) printf(" [%s]", def);
  printf("\n");
  int count = 0, column = 0;
  char word[OPTION_NAME_BYTES];
  for (const char *also = s->also; name_next(&also, word);) {
    if (*word == '-') continue;
    if (count && column + strlen(word) > 115) column = printf(",\n%37s", "") - 2;
    else column += count ? printf(", ") : printf("%37salso ", "");
    column += printf("%s", word);
    count++;
  }
  if (count) printf("\n");
}
static void help_all() {
  printf("usage: [mpirun -np N] ./train_gpt_fsdp [--option value]...    names take _ or -; --no_NAME is --NAME off\n");
  for (int i = 0; i < OPTION_COUNT; i++) {
    for (const auto &group : option_groups) if (group.first == i) printf("\n%s\n", group.title);
    if (i == dtype_options[0]) help_option(&dtype_spec);
    help_option(&option_specs[i]);
  }
  printf("  %-34s the options that most people need; all: this page; NAME: one option\n  %-34s version\n", "--help",
         "--version");
}
// One option, by any of its names. Returns the exit code.
static int help_name(const char *typed) {
  char name[OPTION_NAME_BYTES], range[96];
  Error error = {};
  OptionUse use;
  option_name_plain(name, typed + (!strncmp(typed, "--", 2) ? 2 : 0));
  if (!option_find(name, &use, &error)) {
    text_to_line(error.text, "");
    fprintf(stderr, "train_gpt_fsdp: %s\n", error.text);
    return EXIT_USAGE;
  }
  const OptionSpec *s = option_spec(use.id);
  help_option(s);
  if (s->type == OPTION_INT || s->type == OPTION_NUM) {
    option_range(s, true, range, sizeof range);
    printf("%37s%s: %s\n", "", s->type == OPTION_INT ? "a whole number" : "a number", range);
  }
  return 0;
}
// topic: NULL, "all", or an option. Returns the exit code.
static int options_help(const char *topic) {
  if (topic && strcmp(topic, "all")) return help_name(topic);
  printf("train_gpt_fsdp %s: trains GPT-2 to Qwen 3, fully sharded over MPI ranks\n", PROGRAM_VERSION);
  if (topic) help_all();
  else fputs(help_short, stdout);
  return 0;
}
int options_answer(Call *call) {
  const int argc = call->argc;
  char **argv = call->argv;
  for (int i = 1; i < argc; i++) {
    const bool theirs = i + 1 < argc && (!strcmp(argv[i + 1], "0") || !strcmp(argv[i + 1], "1"));       // llm.c's -h
    const bool short_one = !strcmp(argv[i], "-h") && !theirs, with_topic = !strncmp(argv[i], "--help=", 7);
    const bool help = short_one || with_topic || !strcmp(argv[i], "--help");
    if (!help && strcmp(argv[i], "--version")) continue;
    const bool behind = i == argc - 1 && i > 1 && !strncmp(argv[i - 1], "--", 2) && !strchr(argv[i - 1], '=');
    const char *topic = with_topic ? argv[i] + 7 : i + 1 < argc ? argv[i + 1] : behind ? argv[i - 1] : NULL;
    char name[OPTION_NAME_BYTES];
    Error error = {};
    OptionUse use;
    option_name_plain(name, topic && !strncmp(topic, "--", 2) ? topic + 2 : topic ? topic : "all");
    const bool known = !strcmp(name, "all") || option_find(name, &use, &error);
    if (!call->first) return help && !known ? EXIT_USAGE : 0;
    if (help) return options_help(topic);
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    MPI_Get_library_version(mpi, &length);       // allowed before MPI_Init
    printf("train_gpt_fsdp %s (%s)\nfor %s, %s kernels for GPUs; compiler %s, %.*s, C library %s\n", PROGRAM_VERSION,
           build_id, PROCESSOR_NAME, &ops_cuda ? "with" : "without", __VERSION__, (int)strcspn(mpi, ",\n"), mpi,
           gnu_get_libc_version());
    return 0;
  }
  return -1;
}
