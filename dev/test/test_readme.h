// test_readme.h: what README.md and docs/*.md tell a reader to type works, and what they say came out is recorded.
// Every command is run as it stands, in a copy of what a build leaves; what cannot run here is in a table with its
// reason and with what is run instead. Figures and printed lines are looked for in dev/results/.
// Pages and lines are read by test_docs.h.

// ---- code in pages --------------------------------------------------------------------------------------------------
// What stands indented by four spaces is a command, if its first word is one of these programs, else what one printed.
// What stands between fences is a diff or Python by its name, else a drawing.
static const char *const readme_programs[] = {
    "./train_gpt_fsdp", "build/test_gpt_fsdp", "mpirun", "make", "python3", "sha256sum", "ldd", "kill", "for", "srun",
    "hf", "pip", "#SBATCH", "dev/gpu_day.sh"};
enum ReadmeKind { README_COMMAND, README_PRINTED, README_DIFF, README_PYTHON };
enum { README_CODE_BYTES = 1 << 14 };
// made: it stands after the mark of dev/docs_output.sh.
struct ReadmeCode { ReadmeKind kind; int line; bool made; char text[README_CODE_BYTES]; };
static const char readme_made[] = "<!-- printed by the first of these commands: ";

// Ends `text` before the spaces and the # of a comment that stand outside quotes, and before trailing spaces.
static void readme_strip_comment(char *text) {
  char quote = 0, *c = text;
  for (; *c; c++) {
    if (quote) quote = *c == quote ? 0 : quote;
    else if (strchr("'\"", *c)) quote = *c;
    else if (*c == '#' && c > text && c[-1] == ' ') break;
  }
  while (c > text && strchr(" \n", c[-1])) c--;
  *c = 0;
}
// The word after NAME=value words, which the shell takes for the environment.
static const char *readme_first_word(const char *text) {
  for (size_t n; (n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")) && text[n] == '=';)
    text += strcspn(text, " "), text += strspn(text, " ");
  return text;
}
static bool readme_is_command(const char *text) {
  const char *word = readme_first_word(text);
  for (const char *program : readme_programs) {
    const size_t n = strlen(program);
    if (!strncmp(word, program, n) && (!word[n] || word[n] == ' ')) return true;
  }
  return false;
}
// The next code of a page; false after the last. A line that ends in \ or { continues in the next one.
static bool readme_next(const Doc *doc, DocLines *l, ReadmeCode *c) {
  size_t n = 0;
  c->text[0] = 0;
  while (docs_next(l)) {
    c->line = l->number;
    if (l->fenced) {
      const bool diff = !strcmp(l->line, "```diff"), python = !strcmp(l->line, "```python");
      EXPECT(diff || python || !strcmp(l->line, "```"), "%s:%d: %s: commands stand indented by four spaces", doc->path,
             l->number, l->line);
      while (docs_next(l) && strncmp(l->line, "```", 3))
        n += (size_t)snprintf(c->text + n, sizeof c->text - n, "%s\n", l->line);
      c->kind = diff ? README_DIFF : README_PYTHON;
      if (diff || python) return true;
      n = 0;
      continue;
    }
    if (*l->line && strncmp(l->line, "    ", 4)) c->made = !strncmp(l->line, readme_made, strlen(readme_made));
    if (strncmp(l->line, "    ", 4)) continue;
    for (;;) {
      n += (size_t)snprintf(c->text + n, sizeof c->text - n, "%s", l->line + 4);
      if (!n || !strchr("\\{", c->text[n - 1]) || !docs_next(l)) break;
      n += (size_t)snprintf(c->text + n, sizeof c->text - n, "\n");
    }
    c->kind = readme_is_command(c->text) ? README_COMMAND : README_PRINTED;
    if (c->kind == README_COMMAND) readme_strip_comment(c->text);
    return true;
  }
  return false;
}

// ---- what is not run as it stands -----------------------------------------------------------------------------------
// needs: a command of the shell; where it succeeds the command is run as it stands all the same. instead: what is run
// where it does not, with @ for the command; NULL: the targets, variables and tests of a make line are looked up.
struct ReadmeException { const char *page, *command, *needs, *why, *instead; };
#define README_GPU \
  "[ \"$DEVICE\" = cuda ]", "needs a GPU; else 3, or 2 of a build without CUDA, and a line", \
  "said=$(@ 2>&1); code=$?; echo \"$said\" | grep -- '--device cuda: ' && [ $code -ge 2 ] && [ $code -le 3 ]"
#define README_MAKE NULL, "minutes", NULL
#define README_TORCH "python3 -c 'import transformers, torch'", "needs transformers"
// A model that trains at once.
#define README_SHAPE \
  " --n_layer 3 --n_head 2 --n_embd 24 --seq_len 8 --n_positions 256 --vocab_size 290 --batch_size 2 --threads 1" \
  " --sample_tokens 4 --save_model"
static const ReadmeException readme_exceptions[] = {
    {"README.md", "make train", NULL, "a download and minutes", "mpirun -np 2 ./train_gpt_fsdp --model tiny"},
    {"README.md", "sha256sum out-?/model.safetensors", NULL, "that they are equal is to be seen",
     "@ | cut -c 1-64 | uniq -c | grep '^ *3 '"},
    {"README.md", "make prove", NULL, "first_prove runs it", NULL},
    {"README.md", "mpirun -np 2 --host A:1,B:1 ./train_gpt_fsdp --model small", NULL, "there are no hosts A and B",
     "mpirun -np 2 --host localhost:1,localhost:1 ./train_gpt_fsdp --model small"},
    {"README.md", "make train_gpt_fsdp && mpirun -np 2 ./train_gpt_fsdp --schedule rsqrt --max_steps 300",
     "[ -e build/cpu_avx2.device.o ]", "the tests were built with sanitizers, so there is nothing to link",
     "make -n train_gpt_fsdp"},
    {"docs/watch.md", "./train_gpt_fsdp --report out,again", NULL, "it trains nothing",
     "rm -f report.html && @ && [ -s report.html ]"},
    {"docs/checkpoints.md", "kill -USR1 PID", NULL, "it needs a run's PID",
     "./train_gpt_fsdp --data random --max_steps 1000000000 --out out-usr1 & PID=$!; "
     "until [ -s out-usr1/metrics.jsonl ]; do sleep 0.02; done; kill -USR1 $PID; wait $PID; [ $? -eq 85 ]"},
    {"docs/checkpoints.md", "#SBATCH --signal=USR1@120 --requeue", NULL, "needs Slurm", "true"},
    {"docs/checkpoints.md", "srun --mpi=pmix ./train_gpt_fsdp --resume auto --save_every 500 || {\n"
     "    [ $? -eq 85 ] && scontrol requeue \"$SLURM_JOB_ID\"; }", NULL, "needs Slurm",
     "srun() { shift; $*; }; @"},
    {"docs/models.md", "hf download openai-community/gpt2 --local-dir gpt2", NULL, "a download",
     "[ -s gpt2/model.safetensors ]"},
    {"docs/models.md", "python", README_TORCH, "[ -s exported/tokenizer.json ]"},
    {"docs/gpus.md", "mpirun -np 8 ./train_gpt_fsdp --device cuda --model gpt2-xl --seq_len 4096 --dtype bf16 \\\n"
     "  --batch_size 4 --global_batch 128 --tune=on", NULL, "needs eight GPUs; the plan above is of that run", "true"},
    {"docs/gpus.md", "./train_gpt_fsdp --device cuda --model gpt2 --dtype bf16 --tune", README_GPU},
    {"docs/gpus.md", "mpirun -np 4 ./train_gpt_fsdp --device cuda --comm mpi", README_GPU},
    {"docs/launch.md", "mpirun -np 4 --host A:2,B:2 ./train_gpt_fsdp --model small", NULL, "there are no hosts A and B",
     "mpirun -np 4 --host localhost:2,localhost:2 ./train_gpt_fsdp --model small"},
    {"docs/launch.md", "srun --mpi=pmix -n 4 ./train_gpt_fsdp --model small", NULL, "needs Slurm", "true"},
    {"docs/launch.md", "./train_gpt_fsdp --rdzv tcp://10.0.0.1:29400 --nnodes 2 --node_rank 0 --nproc_per_node 2 "
     "--rdzv_token token.txt", NULL, "there is no such host; rdzv_hosts_train runs such lines", "true"},
    {"docs/launch.md", "./train_gpt_fsdp --rdzv tcp://10.0.0.1:29400 --nnodes 2 --node_rank 1 --nproc_per_node 2 "
     "--rdzv_token token.txt", NULL, "there is no such host; rdzv_hosts_train runs such lines", "true"},
    {"docs/data.md", "./train_gpt_fsdp --encode tokens texts --vocab_size 32768", NULL, "it trains nothing",
     "@ && [ -s tokens/val_000000.bin ]"},
    {"docs/finetune.md", "./train_gpt_fsdp --init_from model --data chats.jsonl", NULL, "there is no model with a chat "
     "template", "./train_gpt_fsdp --tokenizer model --vocab_size 700 --data chats.jsonl --seq_len 256"},
    {"docs/finetune.md", "./train_gpt_fsdp --init_from model --data chats.jsonl --show_chats 3", NULL, "there are no "
     "weights with a chat template", "./train_gpt_fsdp --tokenizer model --vocab_size 700 --data chats.jsonl "
     "--show_chats 3 | grep -F '[['"},
    {"docs/finetune.md", "./train_gpt_fsdp --init_from SmolLM2-135M-Instruct.Q4_1.gguf --data chats.json --lora 16 "
     "--export_gguf adapter", NULL, "there is no such file; kept_ runs it", "true"},
    {"docs/finetune.md", "./train_gpt_fsdp --plan --init_from model.gguf --lora 16 --buffer_dtype bf16 --batch_size 1 "
     "--seq_len 512", NULL, "there is no such file; kept_ runs it", "true"},
    {"docs/models.md", "./train_gpt_fsdp --init_from model.gguf --sample_only", NULL, "there is no such file; "
     "gguf_ runs it", "true"},
    {"docs/finetune.md", "./train_gpt_fsdp --init_from model --data pairs.jsonl --lora 16 --loss dpo", NULL, "there "
           "is no "
     "model with a chat template", "for i in 1 2 3 4 5 6 7 8 9; do echo '{\"instruction\": \"'$i'?\", \"chosen\": "
     "\"'$i'!\", \"rejected\": \"No.\"}'; done >pairs.jsonl; ./train_gpt_fsdp --tokenizer model --vocab_size 700 "
     "--data pairs.jsonl --seq_len 256 --batch_size 2 --loss dpo"},
    {"docs/finetune.md", "pip install huggingface_hub llama-cpp-python", NULL, "a download", "true"},
    {"docs/finetune.md", "hf download HuggingFaceTB/SmolLM2-135M-Instruct --local-dir model", NULL, "a download",
     "[ -s model/tokenizer.json ]"},
    {"docs/finetune.md", "./train_gpt_fsdp --init_from model --data chats.jsonl --lora 16 --merge --export_gguf q8_0 "
     "--out chat", NULL, "there is no model with a chat template",
     "./train_gpt_fsdp --tokenizer model --vocab_size 700 "
     "--data chats.jsonl --seq_len 256 --export_gguf q8_0 --out chat"},
    {"docs/finetune.md", "python3 -c \"from llama_cpp import Llama; m = [{'role': 'user', 'content': 'Hi'}]; \\\n"
     "  print(Llama('chat/model.gguf').create_chat_completion(m)['choices'][0]['message']['content'])\"",
     "python3 -c 'import llama_cpp'", "llama-cpp-python is not here", "[ -s chat/model.gguf ]"},
    {"docs/generate.md", "./train_gpt_fsdp --resume out/ckpt/best --sample_only --prompt \"In the year\"", NULL,
     "nothing was trained", "./train_gpt_fsdp --data generated --max_steps 2 --export_hf trained" README_SHAPE " && "
     "./train_gpt_fsdp --resume out/ckpt/latest --sample_only --prompt \"In the year\""},
    {"docs/generate.md", "./train_gpt_fsdp --init_from model --sample_only --prompt \"Once\" --sample_tokens 200 "
     "--top_p 0.9 --stop '\\n\\n'", NULL, "there are no weights with that tokenizer",
     "./train_gpt_fsdp --init_from trained --sample_only --prompt \"Once\" --top_p 0.9 --stop '\\n\\n'"},
    {"docs/generate.md", "mpirun -np 2 ./train_gpt_fsdp --init_from model --sample_only --prompts questions.jsonl "
     "--test_batch_size 16", NULL, "there are no such files", "echo '{\"prompt\":\"Why?\"}' >questions.jsonl && "
     "mpirun -np 2 ./train_gpt_fsdp --init_from trained --sample_only --prompts questions.jsonl --test_batch_size 16"},
    {"docs/generate.md", "./train_gpt_fsdp --init_from model --interactive", NULL, "nobody types",
     "echo Why | ./train_gpt_fsdp --init_from trained --interactive"},
    {"docs/generate.md", "./train_gpt_fsdp --init_from model --eval hellaswag_val.jsonl,lambada_test.jsonl,"
     "wikitext_test.jsonl", NULL, "there are no such files", "echo '{\"text\":\"one two\"}' >lambada.jsonl && "
     "./train_gpt_fsdp --init_from trained --eval lambada.jsonl"},
    {"docs/recipes.md", "./train_gpt_fsdp --plan --init_from m.Q4_K_M.gguf --lora 16 --buffer_dtype bf16 "
     "--batch_size 1 --seq_len 1024", NULL, "there is no such file", "./train_gpt_fsdp --tokenizer model "
     "--vocab_size 700 --data chats.jsonl --model modern-tiny --n_layer 2 --n_embd 64 --n_head 2 --mlp_width 256 "
     "--seq_len 256 --batch_size 2 --threads 1 --max_steps 2 --export_gguf q8_0 --export_hf chatter --out m && "
     "./train_gpt_fsdp --plan --init_from m/model.gguf --lora 16 --buffer_dtype bf16 --batch_size 1"},
    {"docs/recipes.md", "./train_gpt_fsdp --init_from m.Q4_K_M.gguf --data chats.jsonl --lora 16 --buffer_dtype "
     "bf16 --export_gguf adapter \\\n  --out chat", NULL, "there is no such file", "rm -rf chat; ./train_gpt_fsdp "
     "--init_from m/model.gguf --data chats.jsonl --lora 16 --buffer_dtype bf16 --export_gguf adapter --out chat && "
     "[ -s chat/adapter.gguf ]"},
    {"docs/recipes.md", "./train_gpt_fsdp --init_from model --data chats.jsonl --lora 16 --base_dtype nf4 --merge "
     "--export_gguf q8_0 \\\n  --out chat", NULL, "there are no such weights", "rm -rf chat; ./train_gpt_fsdp "
     "--init_from chatter --data chats.jsonl --lora 16 --base_dtype nf4 --merge --export_gguf q8_0 --out chat && [ "
     "-s chat/model.gguf ]"},
    {"docs/recipes.md", "./train_gpt_fsdp --init_from model --data pairs.jsonl --lora 16 --loss dpo", NULL, "there "
     "are no such weights", "for i in $(seq 40); do echo '{\"prompt\": \"'$i'?\", \"chosen\": \"Hello!\", "
     "\"rejected\": \"What?\"}'; done >pairs.jsonl; ./train_gpt_fsdp --init_from chatter --data pairs.jsonl --lora "
     "16 --loss dpo --seq_len 32 --batch_size 1"},
    {"docs/recipes.md", "mpirun -np 2 --host A:1,B:1 ./train_gpt_fsdp --preflight", NULL, "there are no hosts A and "
     "B", "mpirun -np 2 --host localhost:1,localhost:1 ./train_gpt_fsdp --preflight"},
    {"docs/recipes.md", "mpirun -np 2 --host A:1,B:1 ./train_gpt_fsdp --model small --out out-two", NULL, "there "
     "are no hosts A and B", "mpirun -np 2 --host localhost:1,localhost:1 ./train_gpt_fsdp --model small --out "
     "out-two"},
    {"docs/recipes.md", "./train_gpt_fsdp --rdzv tcp://10.0.0.1:29400 --nnodes 2 --node_rank 0 --rdzv_token "
     "token.txt", NULL, "there is no such host; rdzv_hosts_train runs such lines", "true"},
    {"docs/recipes.md", "./train_gpt_fsdp --plan search --model gpt2-xl --seq_len 4096 --world 8 --on h100 --dtype "
     "bf16 --global_batch 128", NULL, "docs_made_output runs a search", "./train_gpt_fsdp --plan --model gpt2-xl "
     "--seq_len 4096 --world 8 --on h100 --dtype bf16 --global_batch 128"},
    {"docs/recipes.md", "mpirun -np 8 ./train_gpt_fsdp --model gpt2-xl --seq_len 4096 --dtype bf16 --batch_size 4 "
     "--global_batch 128 \\\n  --tune=on", NULL, "needs GPUs", "mpirun -np 2 ./train_gpt_fsdp --model gpt2-xl "
     "--seq_len 64 --dtype bf16 --batch_size 4 --global_batch 16"},
    {"docs/recipes.md", "./train_gpt_fsdp --init_from model --eval hellaswag_val.jsonl,mine.jsonl", NULL, "there "
     "are no such files", "echo '{\"query\": \"2 + 2 =\", \"choices\": [\"3\", \"4\"], \"gold\": 1}' >mine.jsonl && "
     "echo '{\"activity_label\": \"x\", \"ctx_a\": \"A man\", \"ctx_b\": \"he\", \"endings\": [\"sits\", \"goes\", "
     "\"runs\", \"is\"], \"label\": 1}' >hellaswag_val.jsonl && ./train_gpt_fsdp --init_from chatter --eval "
     "hellaswag_val.jsonl,mine.jsonl"},
    {"docs/recipes.md", "mpirun -np 8 ./train_gpt_fsdp --model gpt2 --data 'fineweb10B/fineweb_train_*.bin' \\\n  "
     "--val_data 'fineweb10B/fineweb_val_*.bin' --dtype bf16 --strategy zero1 --batch_size 64 --seq_len 1024 \\\n  "
     "--global_batch 512 --lr 6e-4 --min_lr_ratio 0 --warmup 700 --max_steps 18865 --eval_every 2000 --save_every "
     "5000 \\\n  --resume --out log_gpt2_124M", NULL, "there are no such files", "mpirun -np 2 ./train_gpt_fsdp "
     "--model gpt2 --vocab_size 300 --data 'tokens_t*.bin' --val_data 'tokens_v*.bin' --dtype bf16 --strategy zero1 "
     "--batch_size 2 --seq_len 64 --global_batch 8 --lr 6e-4 --min_lr_ratio 0 --warmup 700 --eval_every 2000 "
     "--resume --out log_gpt2_124M"},
    {"docs/plan.md", "make plan ARGS=\"--model gpt2-xl --world 8 --on a100 --dtype bf16\"", NULL, "it is built already",
     "./train_gpt_fsdp --plan --model gpt2-xl --world 8 --on a100 --dtype bf16"},
    {"docs/plan.md", "./train_gpt_fsdp --plan search --model gpt2-xl --world 8 --on h100 --dtype bf16 "
     "--global_batch 512", NULL, "docs_made_output runs it", "true"},
    {"docs/launch.md", "make dist", README_MAKE},
    {"docs/results.md", "PYTHON=python3 make bench ARGS=ratios", README_MAKE},
    {"docs/results.md", "make bench ARGS=\"ratios tokenizer start\"", README_MAKE},
    {"docs/results.md", "PYTHON=python3 make bench ARGS=checkpoint", README_MAKE},
    {"docs/results.md", "CURVE_BATCH=8 make bench ARGS=curve", README_MAKE},
    {"docs/results.md", "python3 dev/finetune_defaults.py DIR 91 --epochs 5 --global_batch 2 --lr 1e-5", NULL,
     "needs SmolLM2 and minutes", "[ -n '@' ]"},
    {"docs/sharding.md", "mpirun -np 8 ./train_gpt_fsdp --device cuda --model gpt2-xl --dtype bf16 "
     "--offload optimizer", README_GPU},
    {"docs/tests.md", "make check", NULL, "these tests are run anyway", NULL},
    {"docs/tests.md", "make test", README_MAKE},
    {"docs/tests.md", "make test T=resume_at", README_MAKE},
    {"docs/tests.md", "make test-all", README_MAKE},
    {"docs/tests.md", "make soak", NULL, "an hour", NULL},
    {"docs/tests.md", "make test SAN=1", README_MAKE},
    {"docs/tests.md", "make fuzz", NULL, "first_fuzzers runs it", NULL},
    {"docs/troubleshooting.md", "mpirun -np 2 --host A:1,B:1 ./train_gpt_fsdp --preflight", NULL,
     "there are no hosts A and B", "mpirun -np 2 --host localhost:1,localhost:1 ./train_gpt_fsdp --preflight"},
    {"docs/troubleshooting.md", "for i in $(seq 4); do mpirun -np 2 ./train_gpt_fsdp --resume auto && break; done",
     NULL, "there is no checkpoint", "for i in 1 2; do mpirun -np 2 ./train_gpt_fsdp --out out-loop && break; done"},
    {"docs/troubleshooting.md", "./train_gpt_fsdp --flight out", NULL, "no run was lost; flight_ and liveness_ run it",
     "@ 2>&1 | grep 'there is no flight-RANK.json'"}};
enum { README_EXCEPTIONS = sizeof readme_exceptions / sizeof *readme_exceptions };

// What is typed after the program's name, so that the command's own options win: the first row with a part of it.
static const struct { const char *part, *sizes; } readme_sizes[] = {
    {"--plan", ""}, {"--flight", ""}, {"_only", ""}, {"--eval ", ""}, {"--interactive", ""},
    {"--config", ""}, {"/step_00000500", ""}, {"--seq_len 4096", README_SHAPE " --n_positions 4096 --max_steps 2"},
    {"--resume auto", " --max_steps 504"}, {"--resume tuned", " --threads 1 --sample_tokens 4"},
    {"--init_from out/", " --batch_size 2 --threads 1 --sample_tokens 4 --max_steps 2"},
    {"--init_from base", " --batch_size 2 --threads 1 --sample_tokens 4 --save_model --max_steps 2 --eval_every -1"},
    {"--init_from", " --batch_size 2 --threads 1 --sample_tokens 4 --save_model --max_steps 2"},
    {"--save_every 500", README_SHAPE " --n_layer 1 --max_steps 502"},
    {"./train_gpt_fsdp", README_SHAPE " --max_steps 2"}};

// ---- running them ---------------------------------------------------------------------------------------------------
// TEST_TMP/checkout: what a build leaves, with a small text; files that the pages name; and mpirun, which takes more
// ranks than cores, and make, before others in bin/. It links what is built already: kernels, and the modules below the
// lowest one with a file that has changed since.
static void readme_checkout() {
  static const char setup[] =
      "set -e; C=%s PROGRAM=%s TESTS=/proc/%d/exe TEXT=%s MPIRUN=$(command -v %s) MAKE=$(command -v make)\n"
      "mkdir -p $C/bin $C/build $C/data $C/dev $C/texts; cp -p dev/gpu_day.sh dev/c*.sh $C/dev\n"
      "cp -p Makefile fsdp.h train_gpt_fsdp.cu $C\n"
      "cp -rp base watch kernels memory machine fsdp launch run trainer $C\n"
      "for d in data/*/*.cc; do cp -rp ${d%%/*} $C/data; done; cp -p data/*.h data/*.cc data/*.sh $C/data\n"
      "cp $PROGRAM $C/train_gpt_fsdp; cp -r dev/fixtures/hf_tiny $C/gpt2; "
      "cp -r dev/fixtures/chat_qwen2.5 $C/model; cp dev/fixtures/chat.jsonl $C/chats.jsonl\n"
      "cp $TESTS $C/build/test_gpt_fsdp\n"
      "for o in build/cpu_*.o build/cuda*.o; do [ %d = 1 ] || [ ! -e $o ] || ln -s $PWD/$o $C/build; done\n"
      "for o in */*.cc base/*/*.cc data/*/*.cc run/*/*.cc kernels/cpu/threads.cc; do o=build/$(basename $o .cc).o; "
      "[ %d = 1 ] || [ ! -e $o ] || cp -p $o $C/build; done; touch $C/build/copied\n"
      "cp $TEXT/train.txt $C/book.txt; cp $TEXT/train.txt $C/texts/a.txt; cp $TEXT/test.txt $C/texts/b.txt\n"
      "cat >$C/bin/mpirun <<END\n#!/bin/sh\nexec $MPIRUN --oversubscribe --bind-to none \"\\$@\"\nEND\n"
      "cat >$C/bin/make <<END\n#!/bin/sh\n"
      "for r in base/newfile base base/net watch kernels kernels/op_calls kernels/cpu/threads memory machine launch "
      "fsdp data/files data/gguf data/tokenizer data/chat data/tokens data data/tensors data/shape data/models "
      "data/checkpoint run/options run/report run run/plan; do\n"
      "[ -e build/base.o ] && [ ! \"\\$(find \\$r* -maxdepth 1 -name '*.[ch]*' -newer build/copied)\" ] || break\n"
      "rooms=\"\\$rooms -o build/\\${r##*/}.o\"; done\n"
      "CXXFLAGS=-O0 exec env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u SAN $MAKE "
      "\\$([ -e build/cuda.device.o ] || echo CUDA=0)"
      " \\$(printf ' -o %%s' build/cpu_*.o build/cuda*.o) \\$rooms \"\\$@\"\nEND\n"
      "chmod +x $C/bin/*";
  CliRun r;
  char text[600];
  const char *mpirun = getenv("MPIRUN");
  snprintf(text, sizeof text, "%s", cli_text(2000));
  CLI_RUN(&r, setup, cli_path("checkout"), cli_program(), (int)getpid(), text, mpirun && *mpirun ? mpirun : "mpirun",
          TEST_SANITIZED, TEST_SANITIZED);       // whose objects are elsewhere
  cli_expect_done(&r, "a checkout");
  cli_free(&r);
  cli_token_file(cli_path("checkout/tokens_train.bin"), 30000, 300, 0);
  cli_token_file(cli_path("checkout/tokens_val.bin"), 2000, 300, 0);
}

// A model in llm.c's format, with the vocabulary of the token files.
static void readme_llmc_model() {
  const ModelShape shape = model_shape_gpt2(2, 2, 24, 16, 300, true, 0);
  int params;
  int64_t all = 0;
  Param *param = ix_params(shape, &params);
  for (int p = 0; p < params; p++) all += param_numel(&param[p]);
  uint32_t *zeros = (uint32_t *)calloc((size_t)all, 4);
  ix_write_llmc(cli_path("checkout/gpt2_124M.bin"), 3, &shape, 304, param, params, zeros);
  free(zeros);
  free(param);
}

// Copies `from` to `to` with each `what` replaced.
static void readme_replace(char *to, size_t bytes, const char *from, const char *what, const char *with) {
  size_t n = 0;
  for (const char *at; (at = strstr(from, what)); from = at + strlen(what)) {
    n += (size_t)snprintf(to + n, bytes - n, "%.*s%s", (int)(at - from), from, with);
    if (n >= bytes) die_missing("a command of a page is too long");
  }
  snprintf(to + n, bytes - n, "%s", from);
}
// Runs a command of a page in the checkout, or what the table has instead.
static void readme_run(const Doc *doc, const ReadmeCode *c, const ReadmeException *e) {
  static char command[16384], sized[16384], program[1024];
  CliRun r;
  if (e && e->needs) {
    CLI_RUN(&r, "cd %s && %s", cli_path("checkout"), e->needs);
    if (!r.code) e = NULL;
    cli_free(&r);
  }
  readme_replace(command, sizeof command, e ? e->instead : c->text, "@", c->text);
  const char *sizes = "";
  for (const auto &row : readme_sizes) if (strstr(command, row.part)) { sizes = row.sizes; break; }
  snprintf(program, sizeof program, "./train_gpt_fsdp%s", sizes);
  readme_replace(sized, sizeof sized, command, "./train_gpt_fsdp", program);
  const bool script = !e && c->kind == README_PYTHON;
  cli_start(&r, "cd %s && export PATH=$PWD/bin:$PATH WIKITEXT2_DIR=%s\n%s%s%s", cli_path("checkout"), cli_path("text"),
            script ? "python3 - <<'END'\n" : "", sized, script ? "END\n" : "");
  cli_wait(&r, 4 * CLI_LIMIT_S);                 // a compiler on a busy machine
  EXPECT(!r.code, "%s:%d: %s\n      was run as (%s): %s\n      exit code %d; it printed:\n%.3000s", doc->path, c->line,
         c->text, e ? e->why : "small", sized, r.code, r.text);
  EXPECT(e || !strstr(c->text, "./train_gpt_fsdp") || strstr(c->text, "_only") || strstr(c->text, "--plan") ||
             strstr(c->text, "--eval ") || strstr(c->text, "--help") || strstr(r.text, "] step "),
         "%s:%d: %s: trained nothing; it printed:\n%.3000s", doc->path, c->line, c->text, r.text);
  cli_free(&r);
}

// A word of a make line: a target, a variable that the Makefile reads, or in T= parts of tests' names.
static void readme_check_make_word(const char *path, int line, char *word) {
  static char *makefile, goals[2048];
  int64_t bytes;
  char want[300], *value = strchr(word, '='), *save = NULL;
  if (!makefile) {
    makefile = file_get("Makefile", 1 << 20, &bytes);
    const char *phony = makefile ? strstr(makefile, "\n.PHONY:") : NULL;
    REQUIRE(phony, "the Makefile has no .PHONY");
    snprintf(goals, sizeof goals, " make train_gpt_fsdp %.*s ", (int)strcspn(phony + 9, "\n"), phony + 9);
  }
  if (value) *value++ = 0;
  snprintf(want, sizeof want, value ? "$(%s" : " %s ", word);
  EXPECT(strstr(value ? makefile : goals, want), "%s:%d: the Makefile has no %s %s", path, line,
         value ? "variable" : "target", word);
  if (!value || strcmp(word, "T")) return;
  for (char *name = strtok_r(value, "\" ", &save); name; name = strtok_r(NULL, "\" ", &save))
    EXPECT(!strcmp(name, "...") || docs_is_test(name), "%s:%d: no test has %s in its name", path, line, name);
}
static void readme_check_make(const char *path, int line, const char *text) {
  char word[256];
  for (const char *at = readme_first_word(text); *at && !strchr("&;|`", *at); at += strspn(at, " ")) {
    size_t n = 0;
    for (bool quoted = false; at[n] && (quoted || !strchr(" `", at[n])); n++) if (at[n] == '"') quoted = !quoted;
    snprintf(word, sizeof word, "%.*s", (int)n, at);
    readme_check_make_word(path, line, word);
    at += n;
  }
}

// One file of the checkout while a diff changes it.
struct ReadmeFile { char path[600], *text; };
static void readme_file_open(ReadmeFile *f, const char *name) {
  int64_t bytes;
  char inside[300];
  snprintf(inside, sizeof inside, "checkout/%s", name);
  snprintf(f->path, sizeof f->path, "%s", cli_path(inside));
  f->text = file_get(f->path, 1 << 20, &bytes);
  REQUIRE(f->text, "cannot read %s", f->path);
}
static void readme_file_close(ReadmeFile *f) {
  cli_write(f->path, f->text, strlen(f->text));
  free(f->text);
}
// Replaces `from`, which the file must have once.
static void readme_file_change(ReadmeFile *f, const Doc *doc, const ReadmeCode *c, const char *from, const char *to) {
  char *at = *from ? strstr(f->text, from) : NULL;
  REQUIRE(at && !strstr(at + 1, from), "%s:%d: %s does not have once:\n%s", doc->path, c->line, f->path, from);
  char *changed = (char *)malloc(strlen(f->text) + strlen(to) + 1);
  sprintf(changed, "%.*s%s%s", (int)(at - f->text), f->text, to, at + strlen(from));
  free(f->text);
  f->text = changed;
}
// Changes the checkout as a diff without line numbers says: `--- NAME` starts the change of a file.
static void readme_apply(const Doc *doc, const ReadmeCode *c) {
  static char from[README_CODE_BYTES], to[README_CODE_BYTES];
  char name[200] = "train_gpt_fsdp.cu";
  size_t n = 0, m = 0;
  from[0] = to[0] = 0;
  for (const char *line = c->text;; line += strcspn(line, "\n") + 1) {
    const int length = (int)strcspn(line, "\n");
    if (*line && strncmp(line, "--- ", 4)) {
      if (*line != '+') n += (size_t)snprintf(from + n, sizeof from - n, "%.*s\n", length - 1, line + 1);
      if (*line != '-') m += (size_t)snprintf(to + m, sizeof to - m, "%.*s\n", length - 1, line + 1);
      continue;
    }
    if (m) {
      ReadmeFile f = {};
      readme_file_open(&f, name);
      readme_file_change(&f, doc, c, from, to);
      readme_file_close(&f);
    }
    if (!*line) return;
    n = m = 0;
    from[0] = to[0] = 0;
    snprintf(name, sizeof name, "%.*s", length - 4, line + 4);
  }
}

// Runs what the pages whose path starts so have, from top to bottom. Returns how many commands they have.
static int readme_run_pages(const char *begin) {
  const Docs *d = docs_read();
  static ReadmeCode c;
  bool used[README_EXCEPTIONS] = {};
  int commands = 0;
  readme_checkout();
  readme_llmc_model();
  for (int i = 0; i < d->count; i++) {
    if (strncmp(d->doc[i].path, begin, strlen(begin))) continue;
    DocLines l = docs_lines(&d->doc[i]);
    while (readme_next(&d->doc[i], &l, &c)) {
      if (c.kind == README_DIFF) readme_apply(&d->doc[i], &c);
      if (c.kind == README_DIFF || c.kind == README_PRINTED) continue;
      const ReadmeException *e = NULL;
      for (int k = 0; k < README_EXCEPTIONS; k++) {
        const ReadmeException *x = &readme_exceptions[k];
        const char *text = c.kind == README_PYTHON ? "python" : c.text;
        if (!strcmp(x->page, d->doc[i].path) && !strcmp(x->command, text)) { e = x; used[k] = true; }
      }
      commands++;
      const char *first = readme_first_word(c.text);
      if (!strncmp(first, "make", 4)) readme_check_make(d->doc[i].path, c.line, c.text);
      if (!e || e->instead) readme_run(&d->doc[i], &c, e);
    }
  }
  for (int k = 0; k < README_EXCEPTIONS; k++) {
    const ReadmeException *x = &readme_exceptions[k];
    EXPECT(used[k] || strncmp(x->page, begin, strlen(begin)), "%s does not have this any more: %s", x->page,
           x->command);
  }
  cli_expect_nothing_left("after the commands");
  return commands;
}

TEST(docs_commands_of_readme_run,
     "each command of README.md, as it stands, in a fresh checkout, from top to bottom: exit code 0, and it trains; "
     "the experiment is applied and built. What cannot be run here is in one table with what is run instead") {
  const int commands = readme_run_pages("README.md");
  EXPECT(commands > 9, "only %d commands were found", commands);
}
TEST(docs_commands_of_pages_run_all, "the same for docs/*.md") {
  const int commands = readme_run_pages("docs/");
  EXPECT(commands > 60, "only %d commands were found", commands);
}
// Makes a checkout and applies dev/experiments/FIRST-*.diff to LAST-*.diff, as pages and heads of these files say.
static void experiment_checkout(int first, int last) {
  CliRun r;
  readme_checkout();
  CLI_RUN(&r, "[ $(ls dev/experiments | wc -l) = 3 ] && cd %s && export GIT_CEILING_DIRECTORIES=$(dirname $PWD) && "
          "for i in $(seq %d %d); do git apply $OLDPWD/dev/experiments/$i-*.diff || exit 1; done", cli_path("checkout"),
          first, last);
  REQUIRE(!r.code, "dev/experiments/: exit code %d; git apply printed:\n%.3000s", r.code, r.text);
  cli_free(&r);
}
// Runs shell commands in the checkout, for at most so many times what a run of the program may take.
static void experiment_run(const char *what, const char *commands, int times) {
  CliRun r;
  cli_start(&r, "cd %s && export PATH=$PWD/bin:$PATH && set -e\n%s", cli_path("checkout"), commands);
  cli_wait(&r, times * CLI_LIMIT_S);
  EXPECT(!r.code, "%s: exit code %d; it printed:\n%.3000s", what, r.code, r.text);
  cli_free(&r);
}
// One run on 1 rank that keeps all, on 3 that recompute blocks, on 2 that save, and on 1 that continues from there.
static const char experiment_trains[] =
    "run='./train_gpt_fsdp %s --data tokens_train.bin --n_layer 3 --n_head 2 --n_embd 24 --seq_len 16 --vocab_size 300 "
    "--batch_size 1 --global_batch 6 --max_steps 4 --eval_every -1 --sample_tokens 0 --save_model --dropout 0.1'\n"
    "$run --recompute none --out out-1\n"
    "mpirun -np 3 $run --recompute block --out out-2\n"
    "mpirun -np 2 $run --mesh 2x1 --reduce_dtype fp32 --save_every 2 --out out-3\n"
    "./train_gpt_fsdp --resume out-3/ckpt/step_00000002 --save_model --out out-4\n"
    "sha256sum out-?/model.safetensors\n"
    "[ $(sha256sum out-?/model.safetensors | cut -c 1-64 | uniq -c | sed 's/ *4 .*/same/') = same ]\n"
    "grep -a -q -E 'attn.ln.weight|scale_1' out-1/model.safetensors";
TEST(docs_experiments_are_built_all,
     "the diffs of dev/experiments/ apply; the first one is built and trains to the same weights on 1, 2 and 3 "
     "ranks, recomputing or not, stopped and resumed; the second compiles, with the third on it") {
  if (TEST_SANITIZED) SKIP("there are no objects to link");
  experiment_checkout(1, 1);
  char commands[3000];
  int n = snprintf(commands, sizeof commands, "make train_gpt_fsdp\n");
  snprintf(commands + n, sizeof commands - (size_t)n, experiment_trains, "");
  experiment_run("a LayerNorm on what heads attend to", commands, 4);
  cli_expect_nothing_left("after the first experiment");
  experiment_run("the first checkout", "rm -rf $PWD/*", 1);
  experiment_checkout(2, 3);
  experiment_run("a factor for each channel",
                 "for o in cpu_avx2.pointwise:kernels/cpu/cpu.cc kernels:kernels/kernels.cc "
                 "op_calls:kernels/op_calls.cc fsdp:fsdp/fsdp.cc models:data/models/models.cc "
                 "options:run/options/options.cc report:run/report/report.cc run:run/run.cc plan:run/plan/plan.cc "
                 "train_gpt_fsdp:train_gpt_fsdp.cu\n"
                 "do eval $(cat $OLDPWD/build/${o%:*}.cmd) -O0 -fsyntax-only -x c++ ${o#*:}; done", 4);
}
TEST(docs_experiments_train_all,
     "the second experiment with the third on it, built with its kernels, trains to the same weights on 1, 2 and 3 "
     "ranks, and without the choice to none that the factor is in; the whole test program passes with it what tells of "
     "memory, bits and emulated CUDA") {
  if (TEST_SANITIZED) SKIP("built with sanitizers, tests take too long");
  experiment_checkout(2, 3);
  char commands[4000];
  int n = snprintf(commands, sizeof commands,
           "cp -r $OLDPWD/dev $OLDPWD/docs $OLDPWD/test_gpt_fsdp.cu .\nrm -f build/*\n"
           "export PATH=/usr/local/bin:/usr/bin:/bin CXXFLAGS='-O1 -Wno-error'\n"
           "env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make CUDA=0 -j2 train_gpt_fsdp build/test_gpt_fsdp\n"
           "export PATH=$PWD/bin:$PATH\n");
  n += snprintf(commands + n, sizeof commands - (size_t)n, experiment_trains, "--layer_scale on");
  snprintf(commands + n, sizeof commands - (size_t)n,
           "\n./train_gpt_fsdp --data tokens_train.bin --n_layer 1 --n_embd 24 --n_head 2 --seq_len 16 "
           "--vocab_size 300 --max_steps 1 --eval_every -1 --sample_tokens 0 --save_model --out out-5\n"
           "! grep -a -q scale_1 out-5/model.safetensors\nbuild/test_gpt_fsdp =plan_places_what_is_never_alive_at_once "
           "=ops_touch_what_they_declare =modes_on_2_ranks =ranks_and_threads_change_no_bit_fp32 "
           "=cuda_ranks_change_no_bit =cuda_modes_change_no_bit");
  experiment_run("a factor for each channel", commands, 30);
}
TEST(docs_make_lines_are_true, "each `make ...` between backticks: its targets, variables and tests are there") {
  const Docs *d = docs_read();
  int lines = 0;
  for (int i = 0; i < d->count; i++) {
    DocLines l = docs_lines(&d->doc[i]);
    while (docs_next(&l)) for (const char *c = l.line; (c = strstr(c, "`make")); c++) {
      if (c[5] != ' ' && c[5] != '`') continue;
      readme_check_make(d->doc[i].path, l.number, c + 1);
      lines++;
    }
  }
  EXPECT(lines > 15, "only %d were found", lines);
}

// ---- what came out is recorded --------------------------------------------------------------------------------------
static const Docs *readme_records() {
  static Docs d;
  glob_t files;
  docs_read();
  if (d.count) return &d;
  EXPECT(!glob("dev/results/2*.md", 0, NULL, &files) && files.gl_pathc > 5, "no records in dev/results/");
  for (size_t i = 0; i < files.gl_pathc; i++) docs_add(&d, files.gl_pathv[i]);
  globfree(&files);
  return &d;
}
// The end in `record` of the first n characters of `want`, if it starts with them; else NULL. Spaces and line ends are
// the same, because a line that is wrapped there may be joined here.
static const char *readme_same_text(const char *record, const char *want, size_t n) {
  for (const char *end = want + n; want < end;) {
    const size_t blanks = strspn(want, " \n");
    if (blanks && !strchr(" \n", *record)) return NULL;
    if (blanks) want += blanks, record += strspn(record, " \n");
    else if (*record++ != *want++) return NULL;
  }
  return record;
}
// Whether `record` starts with the printed line `want`, up to the end of one of its own lines. ... stands for anything,
// here alone: what stands after it is looked for from there on, and taken where it is first found.
static bool readme_printed(const char *record, const char *want) {
  enum { LEFT_OUT = 400 };
  for (int tries = 1;; tries = LEFT_OUT) {
    const char *dots = strstr(want, "..."), *end = NULL;
    size_t n = dots ? (size_t)(dots - want) : strlen(want);
    while (!dots && n && strchr(" \n", want[n - 1])) n--;
    for (int i = 0; !end && i < tries && (record[i] || !i); i++) {
      end = readme_same_text(record + i, want, n);
      if (end && !dots && *end && *end != '\n') end = NULL;
    }
    if (!end || !dots) return end != NULL;
    want = dots + 3 + strspn(dots + 3, " \n");
    if (!*want) return true;
    record = end;
  }
}
TEST(docs_output_is_recorded,
     "each indented line of README.md and docs/*.md that is no command was printed by one: a file of dev/results/ has "
     "it, but for what ... leaves out and for line ends; what dev/docs_output.sh makes is compared by docs_made") {
  const Docs *d = docs_read(), *records = readme_records();
  static ReadmeCode c;
  int lines = 0;
  for (int i = 0; i < d->count; i++) {
    DocLines l = docs_lines(&d->doc[i]);
    while (readme_next(&d->doc[i], &l, &c)) {
      if (c.kind != README_PRINTED || c.made || !strcmp(c.text, "...")) continue;
      const char *want = c.text + strspn(c.text, " ");
      bool found = false;
      for (int k = 0; k < records->count && !found; k++) {
        for (const char *at = records->doc[k].text; at && !found; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
          found = readme_printed(at + strspn(at, " "), want);
      }
      EXPECT(found, "%s:%d: no file of dev/results/ has this line, and no program of this name is known: %s",
             d->doc[i].path, c.line, c.text);
      lines++;
    }
  }
  EXPECT(lines > 10, "only %d lines were found", lines);
}

TEST(docs_made_output_is_what_is_printed,
     "what dev/docs_output.sh puts into pages is what the program prints now, but for its version and build") {
  CliRun r;
  first_need_repository();
  cli_start(&r, "TRAIN_GPT_FSDP=%s dev/docs_output.sh check && grep -l '^%s' docs/*.md", cli_program(), readme_made);
  cli_wait(&r, 4 * CLI_LIMIT_S);                 // a search takes ten seconds of a processor
  EXPECT(!r.code && !strcmp(r.text, "docs/plan.md\n"), "dev/docs_output.sh writes the pages anew; they "
         "differ:\n%.6000s", r.text);
  cli_free(&r);
}

// The next number of a text, and the place after it; NULL: none is left. A number that is part of a word is none
// (bf16, 124M, 1e-3), nor is what stands in backticks if `prose` is set, or in a link's address. Dates and versions are
// one number.
static const char *readme_number(const char *at, bool prose, char number[32]) {
  static const char letters[] = "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", digits[] = "0123456789.-";
  char word[sizeof letters + sizeof digits];
  snprintf(word, sizeof word, "%s%s", letters, digits);
  for (bool code = false; *at;) {
    const size_t n = strspn(at, word), plain = strspn(at, digits);
    size_t length = plain;
    if (*at == '`') code = !code;
    if (!strncmp(at, "](", 2)) at += strcspn(at, ")");
    if (!n) { at++; continue; }
    while (length && !isdigit(at[length - 1])) length--;
    at += n;
    if (!length || plain < n || length > 31 || (code && prose) || !isdigit(at[-(ptrdiff_t)n])) continue;
    snprintf(number, 32, "%.*s", (int)length, at - n);
    return at;
  }
  return NULL;
}
// Whether a number of a page is that of a record: the same, or rounded to fewer digits after the point.
static bool readme_same_number(const char *page, const char *record) {
  char *end;
  if (!strcmp(page, record)) return true;
  const double shown = strtod(page, &end);
  if (*end) return false;                        // a date, a version
  const double measured = strtod(record, &end);
  const char *point = strchr(page, '.'), *point_there = strchr(record, '.');
  const size_t after = point ? strlen(point + 1) : 0;
  if (*end || !point_there || strlen(point_there + 1) <= after) return false;
  return fabs(measured - shown) <= 0.5 * pow(10, -(double)after) * (1 + 1e-9);
}
// Numbers that no measurement gave, as they stand in a page.
static const struct { const char *page, *number, *why; } readme_not_measured[] = {
    {"README.md", "12", "a bound of make test's time; make help says the same"},
    {"README.md", "2016", "the year of a paper"}};
enum { README_NOT_MEASURED = sizeof readme_not_measured / sizeof *readme_not_measured };

// A paragraph or a row of a table: one record has all of its numbers. `used`: which numbers were not measured.
static int readme_check_numbers(const char *path, int line, const char *text, bool *used) {
  const Docs *records = readme_records();
  char number[32], there[32], missing[32], least[32] = "";
  int count = 0, fewest = INT_MAX;
  for (int k = 0; k < records->count && fewest; k++) {
    int misses = 0;
    count = 0;
    for (const char *at = text; (at = readme_number(at, true, number)); count++) {
      bool found = false;
      for (int i = 0; i < README_NOT_MEASURED; i++)
        if (!strcmp(path, readme_not_measured[i].page) && !strcmp(number, readme_not_measured[i].number))
          found = used[i] = true;
      for (const char *r = records->doc[k].text; !found && (r = readme_number(r, false, there));)
        found = readme_same_number(number, there);
      if (!found && !misses++) snprintf(missing, sizeof missing, "%s", number);
    }
    if (misses >= fewest) continue;
    fewest = misses;
    snprintf(least, sizeof least, "%s", missing);
  }
  EXPECT(!count || !fewest, "%s:%d: no file of dev/results/ has all numbers of this; the nearest lacks %d, %s:\n%s",
         path, line, fewest, least, text);
  return count;
}

// A row of the table of speed: model, dtype, ranks, this program, PyTorch, ratio, and ratios of other runs. A record
// has such a row, and each other ratio in another one. Returns false for what is no such row.
static bool readme_check_speed(const char *path, int line, const char *text) {
  char cell[12][128] = {}, label[320], row[800];
  int cells = 0;
  for (const char *at = text; *at == '|' && at[1] && cells < 12; at += 1 + strcspn(at + 1, "|")) {
    const char *begin = at + 1 + strspn(at + 1, " ");
    snprintf(cell[cells], sizeof cell[0], "%.*s", (int)strcspn(begin, "|"), begin);
    for (size_t n; (n = strlen(cell[cells])) && cell[cells][n - 1] == ' ';) cell[cells][n - 1] = 0;
    cells++;
  }
  if (cells < 7 || (strcmp(cell[1], "fp32") && strcmp(cell[1], "bf16"))) return false;
  const Docs *records = readme_records();
  snprintf(label, sizeof label, "%.*s %s, %s, tokens/s", (int)strcspn(cell[0], " "), cell[0], cell[1],
           atoi(cell[2]) == 1 ? "one process" : "two processes");
  for (int c = 5; c < cells; c++) {
    if (!isdigit(cell[c][0])) continue;                          // PyTorch's variant
    const char *row_of_table = NULL;
    bool found = false;
    for (int k = 0; k < records->count; k++) {
      for (const char *at = records->doc[k].text; (at = strstr(at, label)); at++) {
        char ours[64], theirs[64], ratio[64];
        if (sscanf(at + strlen(label), " | %63[^ |] | %63[^ |] | %63[^ |]", ours, theirs, ratio) != 3) continue;
        const bool same = !strcmp(ours, cell[3]) && !strcmp(theirs, cell[4]);
        if (same) row_of_table = at;
        found = found || (!strcmp(ratio, cell[c]) && same == (c == 5));
      }
    }
    snprintf(row, sizeof row, "%s | %.180s | %.180s | ... %.180s", label, cell[3], cell[4], cell[c]);
    EXPECT(found && row_of_table, "%s:%d: dev/results/ has no row: %s", path, line, row);
  }
  return true;
}
TEST(docs_numbers_are_recorded,
     "each paragraph and table row of README.md and docs/results.md: one file of dev/results/ has all its numbers, as "
     "they stand or with more digits; rows of speed: one row of it has the three figures, others the other ratios") {
  const Docs *d = docs_read();
  static char text[8192];
  bool used[README_NOT_MEASURED] = {};
  int numbers = 0, rows = 0;
  for (int i = 0; i < d->count; i++) {
    const char *path = d->doc[i].path;
    if (strcmp(path, "README.md") && strcmp(path, "docs/results.md")) continue;
    DocLines l = docs_lines(&d->doc[i]);
    size_t n = 0;
    for (bool more = true; more;) {
      more = docs_next(&l);
      const bool table = more && *l.line == '|', code = more && (l.fenced || !strncmp(l.line, "    ", 4));
      if (n && (!more || table || code || !*l.line)) {           // a paragraph has ended
        numbers += readme_check_numbers(path, l.number - 1, text, used);
        n = 0;
      }
      if (!more || !*l.line || l.fenced) continue;
      if (table && readme_check_speed(path, l.number, l.line)) rows++;
      else if (table) numbers += readme_check_numbers(path, l.number, l.line, used);
      else if (code && readme_is_command(l.line + 4)) {          // its comment
        char command[4096];
        snprintf(command, sizeof command, "%s", l.line);
        readme_strip_comment(command);
        numbers += readme_check_numbers(path, l.number, l.line + strlen(command), used);
      } else if (!code) n += (size_t)snprintf(text + n, sizeof text - n, "%s\n", l.line);
    }
  }
  EXPECT(rows == 16 && numbers > 80, "only %d rows and %d numbers were found", rows, numbers);
  for (int i = 0; i < README_NOT_MEASURED; i++)
    EXPECT(used[i], "%s does not have this number any more: %s", readme_not_measured[i].page,
           readme_not_measured[i].number);
}
