#!/usr/bin/env bash
# Speed and quality of train_gpt_fsdp, against PyTorch if installed. `make bench` runs it from the repository root.
#
#   dev/bench.sh                ratios, ops, muon, data, tokenizer, modes, checkpoint, generate, beside,
#                               plan, curve, fp8, optimizers, lora
#   dev/bench.sh ratios [NAME]  against the fastest PyTorch and Hugging Face tokenizers: one table (dev/bench_ratios.py)
#   dev/bench.sh ops            where a step's time goes, op by op, and how near to this machine's limits; one row by
#                               matrices in blocks
#   dev/bench.sh muon           Newton-Schulz beside the matrix multiplies of its shapes; the optimizer's step of Muon
#                               and AdamW beside torch.optim's (dev/bench_muon.py)
#   dev/bench.sh data           --encode of WikiText-2 many times over, on one thread and on all, beside tokenizers and
#                               tiktoken; reading token files; conversations, from bytes to records
#   dev/bench.sh tokenizer      BPE training and encoding of WikiText-2 on one thread and on all
#   dev/bench.sh checkpoint     saving and loading, against dd to the same disk and torch.distributed.checkpoint
#   dev/bench.sh generate       tokens/s of text beside transformers.generate (dev/bench_generate.py)
#   dev/bench.sh beside         `tiny` alone, and two runs side by side on the same cores; OTHER names a second build
#   dev/bench.sh plan           steps predicted with this machine's peaks beside steps measured
#   dev/bench.sh curve          `small`, 300 steps of batch 32 on WikiText-2, and PyTorch on the same tokens
#   dev/bench.sh modes          `small` on two ranks in every sharding mode: tokens/s, memory and communicated bytes per
#                               rank
#   dev/bench.sh fp8            `small`, 300 steps in bf16, then with --fp8 gather: validation losses within 1 %
#   dev/bench.sh optimizers     `small`, 300 steps with AdamW and with Muon at four learning rates each: validation
#                               losses, and how many steps Muon needs to reach AdamW's best
#   dev/bench.sh lora [ROW...]  tuning of smollm2-135m's shape by adapters and whole, beside PyTorch with transformers
#                               and PEFT: tokens/s and peak memory (dev/bench_lora.py)
#   DEVICE=cuda dev/bench.sh    speed on the GPU, in tokens/s and MFU; PyTorch with torch.compile
#   DEVICE=cuda dev/bench.sh candidates    every algorithm of cuBLASLt for each matrix multiply of MODELS: ms,
#                               workspace, a hash of the result
#
# Environment: PYTHON (python3) with torch; without torch the program is measured alone. MODELS ("small gpt2"; cuda:
# "gpt2 gpt2-xl"), DTYPES ("fp32 bf16"; cuda: bf16), RANKS (cuda: 1), ROUNDS (3), STEPS (5 timed a round; cuda: 20),
# CURVE_STEPS (300), CURVE_DTYPE (fp32), CURVE_BATCH (32), FP8_BATCH (8), OUT (a directory to keep everything in).
# For `optimizers`: ADAMW_RATES ("2.5e-4 5e-4 1e-3 2e-3"), MUON_RATES ("5e-4 1e-3 2e-3 4e-3"), OPTIMIZER_STEPS (300).
# For `ratios`: see dev/bench_ratios.py. For DEVICE=cuda: PARALLEL (fsdp2 or ddp: PyTorch with 2 ranks), BATCH
# (sequences of 1024 tokens per step; by model, for 141 GB), PROGRAM_OPTIONS (more options for the program), FORM (of
# PyTorch's bf16: "bf16 autocast" or "bf16 params"; else the faster one), ATTENTION (PyTorch's: cudnn, flash or fa3;
# else the fastest that is there). The first round's choice is kept.
# For `checkpoint`: MODELS (gpt2), RANKS (1 2), ROUNDS, BENCH_DIR (a directory on the disk to be measured, with room for
# three checkpoints; without it one below build/, unless that is a tmpfs), BENCH_COLD=1 (as root: the page cache is
# dropped before each load; without it files are loaded from what saving left in memory).
#
# The machine's speed drifts and neighbours disturb it, so programs that are compared take turns, round by round, in one
# run. Printed are the median over rounds of the median over a round's steps, and the ratio of these. Both sides train
# the same shapes on random tokens, AdamW and clipping included, on every core this process may use.
set -eu

DEVICE=${DEVICE:-cpu}
[ "$DEVICE" = cuda ] || DEVICE=cpu
PYTHON=${PYTHON:-python3} MPIRUN=${MPIRUN:-mpirun} ROUNDS=${ROUNDS:-3} PARALLEL=${PARALLEL:-fsdp2}
STEPS=${STEPS:-$([ "$DEVICE" = cuda ] && echo 20 || echo 5)}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$here/../train_gpt_fsdp
[ -x "$program" ] || { echo "bench: ./train_gpt_fsdp is not built: make" >&2; exit 1; }
out=${OUT:-$(mktemp -d)} disk=
mkdir -p "$out"
clean_up() {
  [ -n "${OUT:-}" ] || rm -rf "$out"
  [ -z "$disk" ] || rm -rf "$disk"
}
trap clean_up EXIT
if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

torch=$("$PYTHON" -c 'import torch; print(torch.__version__)' 2>/dev/null) || torch=

field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p"; }   # a field of one-line JSON objects
median() { sort -g | awk '{ a[NR] = $1 } END { if (NR) print (a[int((NR + 1) / 2)] + a[int(NR / 2) + 1]) / 2 }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (a > 0 && b > 0) printf "%.2f", a / b; else printf "-" }'; }
ours() {
  if [ "$1" -eq 1 ] && ! command -v "$MPIRUN" >/dev/null 2>&1; then "$program" "${@:2}"   # one rank needs no mpirun
  else "$MPIRUN" --oversubscribe -np "$1" "$program" "${@:2}"; fi
}

# program_failed LOG: what the program said, without what mpirun says between lines of dashes
program_failed() {
  { echo "bench: the program failed:"; sed '/^-\{70,\}$/,/^-\{70,\}$/d' "$1" | tail -n 5; } >&2
}

header() {
  echo "machine   $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), $(nproc) cores"
  [ "$DEVICE" = cpu ] ||
    echo "GPU       $(nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader | head -n 1)"
  echo "program   $(git -C "$here" describe --tags --always --dirty 2>/dev/null || echo unknown version)"
  echo "PyTorch   ${torch:-not found (PYTHON=$PYTHON): the program is measured alone}"
}

# ---- speed on a GPU -------------------------------------------------------------------------------------------------
# On a GPU the batch is large enough to keep it busy: these need 60 to 100 GB of its memory in either program.
cuda_batch() {
  case ${BATCH:+given}-$1 in
    given-*) echo "$BATCH" ;;
    *-gpt2-xl | *-gpt2-large | *-qwen3*) echo 16 ;;
    *-gpt2-medium) echo 32 ;;
    *) echo 64 ;;
  esac
}
# ours_speed model dtype ranks: median tokens/s of the timed steps
ours_speed() {
  local run=$out/ours-$1-$2-$3 options vocab=50257
  case $1 in smollm2*) vocab=49152 ;; qwen3*) vocab=151936 ;; esac
  read -ra options <<<"${PROGRAM_OPTIONS:-}"
  ours "$3" --device cuda --model "$1" --seq_len 1024 --vocab_size $vocab --batch_size $(($(cuda_batch "$1") / $3)) \
    --data random --max_steps $((STEPS + 5)) --param_dtype "$2" --sample_tokens 0 --eval_every -1 --save_every -1 \
    --out "$run" ${options[@]+"${options[@]}"} >"$run.log" 2>&1 ||
    { program_failed "$run.log"; return 1; }
  # Our first steps choose algorithms and capture the graph, PyTorch's compile. They are not counted on either side.
  grep '"kind":"step"' "$run/metrics.jsonl" | field tokens_per_s | tail -n "$STEPS" | median
}
# torch_speed model dtype ranks [form [attention]]
torch_speed() {
  "$PYTHON" "$here/bench_pytorch.py" --model "$1" --dtype "$2" --ranks "$3" --steps "$STEPS" --parallel "$PARALLEL" \
    ${4:+--form "$4"} ${5:+--attention "$5"} --device cuda --compile --seq_len 1024 \
    --global_batch "$(cuda_batch "$1")" 2>"$out/torch.log" || { tail -n 5 "$out/torch.log" >&2; return 1; }
}
# mfu model dtype ranks tokens/s: in %. The program logs its own; for one shape it is proportional to tokens/s.
cuda_mfu() {
  local last
  last=$(grep '"kind":"step"' "$out/ours-$1-$2-$3/metrics.jsonl" | tail -n 1)
  awk -v mfu="$(field mfu <<<"$last")" -v rate="$(field tokens_per_s <<<"$last")" -v tokens="$4" \
    'BEGIN { if (mfu > 0 && tokens > 0) printf "%.1f", 100 * mfu / rate * tokens; else printf "-" }'
}

# rounds model dtype ranks: the two programs in turns; a number a round in $rows.ours and $rows.torch, PyTorch's $form.
rounds() {
  local chosen=${FORM:-} attention=${ATTENTION:-}
  form=""
  : >"$rows.ours"; : >"$rows.torch"
  for ((round = 0; round < ROUNDS; round++)); do
    ours_speed "$@" >>"$rows.ours"
    [ -n "$torch" ] || continue
    # The first round decides which form of bf16 and whose attention is the fastest.
    torch_speed "$@" "$chosen" "$attention" >"$rows.json" || continue
    form=$(field form <"$rows.json")
    chosen=$(echo "$form" | grep -o 'bf16 [a-z]*' || true)
    attention=$(echo "$form" | sed -n 's/.* \([a-z0-9]*\) attention$/\1/p')
    field tokens_per_s <"$rows.json" >>"$rows.torch"
  done
}

speed() {
  local a b rows form plan peak log
  [ "$DEVICE" = cuda ] || { echo "bench: speed needs DEVICE=cuda; on a CPU use ratios" >&2; return 2; }
  echo
  echo "tokens/s, median of $ROUNDS rounds of $STEPS steps (sequence 1024; batch: sequences in all; MFU: operations a"
  echo "token are 6 (12 L C^2 + V C) + 12 L C T; GiB: the program's whole plan, PyTorch's most on the GPU)"
  echo "the program's further options: ${PROGRAM_OPTIONS:-none}"
  printf '%-11s %-5s %5s %5s  %14s %6s %6s  %8s %6s %6s %6s   %s\n' model dtype ranks batch train_gpt_fsdp "MFU %" GiB \
    PyTorch "MFU %" GiB ratio "PyTorch's form"
  for model in ${MODELS:-gpt2 gpt2-xl}; do for dtype in ${DTYPES:-bf16}; do for ranks in ${RANKS:-1}; do
    rows=$out/speed-$model-$dtype-$ranks log=$out/ours-$model-$dtype-$ranks/metrics.jsonl peak=
    rounds "$model" "$dtype" "$ranks"
    a=$(median <"$rows.ours"); b=$(median <"$rows.torch")
    plan=$(head -n 1 "$log" | field total | awk '{ printf "%.1f", $1 / 2 ^ 30 }')
    [ -z "$b" ] || peak=$(field peak_gib <"$rows.json")
    printf '%-11s %-5s %5d %5d  %14.0f %6s %6s  %8s %6s %6s %6s   %s\n' "$model" "$dtype" "$ranks" \
      "$(cuda_batch "$model")" "$a" "$(cuda_mfu "$model" "$dtype" "$ranks" "$a")" "$plan" "${b:+$(printf %.0f "$b")}" \
      "$(cuda_mfu "$model" "$dtype" "$ranks" "${b:-0}")" "${peak:--}" "$(ratio "$a" "${b:-0}")" "${form:--}"
  done; done; done
}

# ---- generate, ratios and ops ----------------------------------------------------------------------------------------
generate() { "$PYTHON" "$here/bench_generate.py"; }
ratios() {
  "$PYTHON" -c 'import dataclasses, json, statistics' 2>/dev/null ||
    { echo "bench: ratios needs python3 (PYTHON=$PYTHON has not all of it); ARGS=ops needs none" >&2; return 2; }
  PYTHON=$PYTHON MPIRUN=$MPIRUN "$PYTHON" "$here/bench_ratios.py" "$@"
}
ops() {
  local program=$here/../build/bench_ops model dtype batch vocab
  [ -x "$program" ] || { echo "bench: build/bench_ops is not built: make build/bench_ops" >&2; return 1; }
  for model in ${MODELS:-small gpt2}; do for dtype in ${DTYPES:-fp32 bf16}; do
    batch=4 vocab=50257
    case $model in *small) batch=32 vocab=5000 ;; smollm2*) vocab=49152 ;; esac
    "$program" --model "$model" --seq_len 256 --vocab_size $vocab --batch_size $batch --data random \
      --param_dtype "$dtype" --out "$out/ops"
  done; done
  "$program" blocks --model tiny --data random --out "$out/ops"
}

# The optimizer's step alone: medians over rounds of a round's median, in ms. In a round all take turns.
muon_steps() {
  local program=$here/../build/bench_ops model ranks round kind options run=$out/muon-step
  echo
  echo "the optimizer's step, ms: median of $ROUNDS rounds of $STEPS steps; all ranks together have all cores"
  printf '%-6s %5s  %9s %9s  %11s %10s  %11s %11s\n' model ranks AdamW Muon torch-AdamW torch-Muon "Muon/AdamW" \
    "torch/Muon"
  for model in ${MODELS:-small gpt2}; do
    options=(--model "$model" --data random --seq_len 256 --batch_size 1 --max_steps "$STEPS")
    options+=(--vocab_size "$([ "$model" = small ] && echo 5000 || echo 50257)" --out "$run")
    for ranks in ${RANKS:-1 2}; do
      for kind in adamw muon torch-adamw torch-muon; do : >"$run.$kind"; done
      for ((round = 0; round < ROUNDS; round++)); do
        for kind in adamw muon; do
          ours "$ranks" update "${options[@]}" --optimizer $kind >"$run.log" 2>&1 ||
            { tail -n 5 "$run.log" >&2; return 1; }
          field ms <"$run.log" >>"$run.$kind"
        done
        [ -n "$torch" ] || continue
        "$PYTHON" "$here/bench_muon.py" --model "$model" --processes "$ranks" --steps "$STEPS" >"$run.log" ||
          return 1
        for kind in adamw muon; do field torch_$kind <"$run.log" >>"$run.torch-$kind"; done
      done
      awk -v a="$(median <"$run.adamw")" -v m="$(median <"$run.muon")" -v ta="$(median <"$run.torch-adamw")" \
        -v tm="$(median <"$run.torch-muon")" -v name="$(printf '%-6s %5s' "$model" "$ranks")" 'BEGIN {
          printf "%s  %9.1f %9.1f  %11s %10s  %11.2f %11s\n", name, a, m, ta ? sprintf("%.1f", ta) : "-",
                 tm ? sprintf("%.1f", tm) : "-", m / a, tm ? sprintf("%.2f", tm / m) : "-" }'
    done
  done
}
muon() {
  local program=$here/../build/bench_ops model
  [ -x "$program" ] || { echo "bench: build/bench_ops is not built: make build/bench_ops" >&2; return 1; }
  for model in ${MODELS:-small gpt2}; do
    "$program" muon --model "$model" --seq_len 64 --batch_size 1 --data random --out "$out/muon"
  done
  muon_steps
}

# ---- tokenizer ------------------------------------------------------------------------------------------------------
# Medians of $ROUNDS runs. `ratios` has Hugging Face tokenizers beside it.
tokenizer() {
  local dir=${WIKITEXT2_DIR:-$here/../data/wikitext-2} run=$out/tokenizer
  [ -e "$dir/train.txt" ] || { echo "bench: no WikiText-2 (WIKITEXT2_DIR): the tokenizer is not measured"; return; }
  echo
  echo "tokenizer on WikiText-2: seconds to train, MB/s to encode"
  printf '%8s %10s %10s %10s %10s\n' vocab 1-thread "MB/s" all-cores "MB/s"
  for vocab in 5000 40000; do
    for threads in 1 0; do
      : >"$run.$threads"
      for ((round = 0; round < ROUNDS; round++)); do
        "$program" --device cpu --n_layer 1 --n_head 1 --n_embd 8 --seq_len 8 --batch_size 1 --data "$dir" --cache= \
          --threads $threads --vocab_size $vocab --max_steps 1 --eval_every -1 --save_every -1 \
          --sample_tokens 0 --out "$run" >/dev/null
        head -n 1 "$run/metrics.jsonl" >>"$run.$threads"
      done
    done
    seconds() { field tokenizer_ms <"$run.$1" | awk '{ print $1 / 1e3 }' | median; }
    speed_mb() {
      paste <(field text_bytes <"$run.$1") <(field encode_ms <"$run.$1") | awk '{ print $1 / $2 / 1e3 }' | median
    }
    printf '%8d %10s %10s %10s %10s\n' $vocab "$(seconds 1)" "$(speed_mb 1)" "$(seconds 0)" "$(speed_mb 0)"
  done
}

# ---- data -----------------------------------------------------------------------------------------------------------
# 200 MB of text; medians of $ROUNDS runs. Hugging Face tokenizers and tiktoken encode a tenth of it on one thread with
# the same tokenizer, in memory.
data() {
  local dir=${WIKITEXT2_DIR:-$here/../data/wikitext-2} run=$out/data threads round ranks
  [ -e "$dir/train.txt" ] || { echo "bench: no WikiText-2 (WIKITEXT2_DIR): encoding is not measured"; return; }
  mkdir -p "$run"
  for ((round = 0; round < 19; round++)); do cat "$dir/train.txt"; done >"$run/text.txt"
  "$program" --encode "$run/first" "$dir/train.txt" --vocab_size 32768 >/dev/null
  echo
  for threads in 1 0; do
    for ((round = 0; round < ROUNDS; round++)); do
      rm -rf "$run/tokens"
      local began=$(date +%s.%N)
      "$program" --encode "$run/tokens" "$run/text.txt" --val_data "$dir/valid.txt" --threads $threads \
        --tokenizer "$run/first" >/dev/null
      awk -v a="$began" -v b="$(date +%s.%N)" -v n="$(stat -c %s "$run/text.txt")" 'BEGIN { print n / (b - a) / 1e6 }'
    done | median | sed "s/^/encoding, MB\/s, $([ $threads = 1 ] && echo one thread || echo all cores): /"
  done
  "$PYTHON" "$here/bench_tokenizers.py" --given "$run/first/tokenizer.json" "$dir/train.txt" "$ROUNDS" 2>/dev/null ||
    echo "tokenizers and tiktoken: not installed for $PYTHON"
  for ranks in 1 2; do
    "$MPIRUN" --oversubscribe -np $ranks "$here/../build/bench_ops" reading --data "$run/tokens" --vocab_size 32768 \
      --model gpt2
  done
  # Conversations, from bytes to records: lines and an array of messages, lines and a table of questions.
  awk -v to="$run" 'function json(x) { gsub(/["\\\\]/, "\\\\&", x); return "\"" x "\"" }
    function csv(x) { gsub(/"/, "\"\"", x); return "\"" x "\"" }
    BEGIN { print "question,answer" > (to "/table.csv"); printf "[" > (to "/array.json") }
    length($0) < 9 { next }
    { q = $1 " " $2 " " $3 " " $4
      m = "{\"messages\": [{\"role\": \"user\", \"content\": " json(q)
      m = m "}, {\"role\": \"assistant\", \"content\": " json($0) "}]}"
      print m > (to "/messages.jsonl"); print (n++ ? "," : "") m > (to "/array.json")
      print "{\"question\": " json(q) ", \"answer\": " json($0) "}" > (to "/questions.jsonl")
      print csv(q) "," csv($0) > (to "/table.csv") }
    END { print "]" > (to "/array.json") }' "$dir/train.txt"
  "$here/../build/bench_ops" records "$run/messages.jsonl" "$run/array.json" "$run/questions.jsonl" "$run/table.csv"
}

# ---- checkpoint -----------------------------------------------------------------------------------------------------
# Parameters and two moments in fp32, to the disk of $disk. Each round writes with dd, the program and PyTorch in turn.
# Before each of them, the files of the last one are removed and the disk has finished writing. Each of them writes once
# before it is measured, and these files are removed: a virtual machine gives idle memory back, and the next writer pays
# to get it again. So the measured save is as in a long run, where a checkpoint takes the place of an older one.
CHECKPOINT_EVERY=3                               # steps between two saves in the background
checkpoint_disk() {
  local kind
  mkdir -p "${BENCH_DIR:-$here/../build}"
  disk=$(mktemp -d -p "${BENCH_DIR:-$here/../build}" bench.XXXXXX)
  disk=$(cd "$disk" && pwd)
  kind=$(stat -f -c %T "$disk")
  case ${BENCH_DIR:+asked}-$kind in
    -tmpfs | -ramfs)
      echo "bench: build/ is on $kind, which is not a disk: set BENCH_DIR to a directory on one" >&2
      return 1 ;;
  esac
  echo "disk      $(df --output=source,fstype,avail -h "$disk" | awk 'NR == 2 { print $1 ", " $2 ", " $3 " free" }')"
  echo "load      $(cut -d ' ' -f 1-3 /proc/loadavg) before"
}
settle() { rm -rf "${disk:?}"/*; sync -f "$disk"; }
# checkpoint_run ranks options...: a run that saves into $disk/run
checkpoint_run() {
  ours "$1" --device cpu --model "$model" --n_positions 1024 --seq_len 64 --batch_size 1 --data random \
    --vocab_size "$vocab" --eval_every -1 --sample_tokens 0 --keep 1 --out "$disk/run" "${@:2}" >"$rows.log" 2>&1 ||
    { program_failed "$rows.log"; return 1; }
}
# Appends this round's numbers to $rows.<what>.<whose>, in seconds.
checkpoint_round() {
  local ranks=$1 metrics=$disk/run/metrics.jsonl counted what
  settle
  checkpoint_run "$ranks" --max_steps 3 --save_every 1
  grep '"kind":"checkpoint"' "$metrics" | tail -n 1 >"$rows.records"          # the first that reuses memory of another
  field ms <"$rows.records" | awk '{ print $1 / 1e3 }' >>"$rows.save.ours"
  bytes=$(field bytes <"$rows.records" | head -n 1)
  [ -z "${BENCH_COLD:-}" ] || { sync; echo 1 >/proc/sys/vm/drop_caches; }
  checkpoint_run "$ranks" --max_steps 3 --save_every -1 --resume "$disk/run"
  sed -n 's/^resumed from.*read in \([0-9.]*\) s.*/\1/p' "$rows.log" >>"$rows.load.ours"
  for counted in no yes; do
    settle
    dd if=/dev/zero of="$disk/dd" bs=8M iflag=count_bytes count="$bytes" conv=fsync 2>"$rows.log"
    [ $counted = no ] || sed -n 's/.*copied, \([0-9.]*\) s.*/\1/p' "$rows.log" >>"$rows.save.dd"
  done
  settle
  checkpoint_run "$ranks" --max_steps $((4 * CHECKPOINT_EVERY)) --save_every $CHECKPOINT_EVERY --save_async
  # The third save counts: the first two reuse no memory of another, and during the last no steps run. The first step
  # does not count: it touches its memory for the first time.
  grep '"kind":"checkpoint"' "$metrics" | sed -n 3p >"$rows.records"
  field pause_ms <"$rows.records" | awk '{ print $1 / 1e3 }' >>"$rows.pause.ours"
  field ms <"$rows.records" | awk '{ print $1 / 1e3 }' >>"$rows.named.ours"
  awk -v every=$CHECKPOINT_EVERY -v rows="$rows" '
    /"kind":"checkpoint"/ { saves++ }
    /"kind":"step"/ { ms = $0; sub(/.*"ms":/, "", ms); n++
      busy = int((n - 1) / every) > saves
      if (n > 1 && (!busy || saves == 2)) print ms + 0 >>(rows (busy ? ".busy" : ".quiet")) }' "$metrics"
  settle
  [ -n "$torch" ] || return 0
  "$PYTHON" "$here/bench_checkpoint.py" --directory "$disk" --model "$model" --ranks "$ranks" ${BENCH_COLD:+--cold} \
    >"$rows.json" 2>"$rows.log" || { tail -n 5 "$rows.log" >&2; return 0; }
  for what in save load pause; do
    field ${what}_ms <"$rows.json" | awk '{ print $1 / 1e3 }' >>"$rows.$what.torch"
  done
  field async_ms <"$rows.json" | awk '{ print $1 / 1e3 }' >>"$rows.named.torch"
}
# checkpoint_row ranks name whose: one line of the table
checkpoint_row() {
  local save dd best slower=-
  save=$(median <"$rows.save.$3"); dd=$(median <"$rows.save.dd")
  best=$(sort -g "$rows.save.$3" | head -n 1)
  [ "$3" != ours ] || slower=$(ratio "$(median <"$rows.busy")" "$(median <"$rows.quiet")")
  awk -v ranks="$1" -v name="$2" -v save="$save" -v dd="$dd" -v best="$best" -v gb="${bytes}e-9" -v slower="$slower" \
    -v pause="$(median <"$rows.pause.$3")" -v named="$(median <"$rows.named.$3")" -v load="$(median <"$rows.load.$3")" '
    function or_not(x, form) { return x == "" ? "-" : sprintf(form, x) }
    BEGIN { printf "%5d  %-14s %7.2f %7.2f %7.2f %7.2f   %7s %8s %7s %7s\n", ranks, name, save, gb / save, gb / best,
      dd / save, or_not(pause, "%.3f"), or_not(named, "%.2f"), slower, or_not(load, "%.2f") }'
}
checkpoint() {
  local rows bytes vocab
  echo
  checkpoint_disk || return 1
  if [ -n "${BENCH_COLD:-}" ] && [ ! -w /proc/sys/vm/drop_caches ]; then
    echo "bench: BENCH_COLD=1 needs root" >&2; return 1
  fi
  cat <<END
seconds and GB/s, medians of $ROUNDS rounds (most: of the fastest one). save: synchronous, until all is on the disk and
has its name. pause, whole: in the background, until training continues, and until it has its name (ours: seen when a
step ends); steps: the time of a step meanwhile, relative to a quiet one. load: $([ -n "${BENCH_COLD:-}" ] &&
    echo from the disk || echo from the page cache)
END
  printf '%5s  %-14s %7s %7s %7s %7s   %7s %8s %7s %7s\n' ranks "" save GB/s most "of dd" pause whole steps load
  for model in ${MODELS:-gpt2}; do for ranks in ${RANKS:-1 2}; do
    rows=$out/checkpoint-$model-$ranks vocab=50257
    [ "$model" != small ] || vocab=5000
    rm -f "$rows".*
    for what in save load pause named; do for whose in ours dd torch; do : >"$rows.$what.$whose"; done; done
    : >"$rows.busy"; : >"$rows.quiet"
    for ((round = 0; round < ROUNDS; round++)); do checkpoint_round "$ranks"; done
    checkpoint_row "$ranks" train_gpt_fsdp ours
    [ ! -s "$rows.save.torch" ] || checkpoint_row "$ranks" "PyTorch's DCP" torch
    checkpoint_row "$ranks" dd dd
    echo "       $model: $(awk -v b="$bytes" 'BEGIN { printf "%.1f", b * 1e-6 }') MB$(
      [ ! -s "$rows.save.torch" ] || awk -v a="$(median <"$rows.pause.ours")" -v b="$(median <"$rows.save.torch")" \
        'BEGIN { printf "; our pause is %.1f %% of DCP'\''s synchronous save", 100 * a / b }')"
  done; done
  echo "load      $(cut -d ' ' -f 1-3 /proc/loadavg) after"
}

# ---- curve ----------------------------------------------------------------------------------------------------------
# The program goes first: it trains the tokenizer and leaves the encoded corpus, which PyTorch then reads.
curve() {
  local steps=${CURVE_STEPS:-300} batch=${CURVE_BATCH:-32} dtype=${CURVE_DTYPE:-fp32} run=$out/curve
  echo
  echo "\`small\`, $steps steps of batch $batch, $dtype: AdamW lr 1e-3, 5 % warm-up, cosine to 10 %, decay 0.1, clip 1"
  ours 1 --device cpu --model small --seq_len 256 --vocab_size 5000 --batch_size "$batch" --max_steps "$steps" \
    --epochs 1000 --lr 1e-3 --schedule cosine --warmup 0.05 --min_lr_ratio 0.1 --weight_decay 0.1 --clip 1 --beta1 0.9 \
    --beta2 0.95 \
    --param_dtype "$dtype" --sample_tokens 0 --save_every -1 --cache "$out/cache" --out "$run" >"$run.log" 2>&1 ||
    { program_failed "$run.log"; return 1; }
  grep '"kind":"step"' "$run/metrics.jsonl" | field loss >"$run.ours"
  local val_ours val_torch=""
  val_ours=$(grep '"split":"valid"' "$run/metrics.jsonl" | field loss | tail -n 1)
  : >"$run.torch"
  if [ -n "$torch" ]; then
    "$PYTHON" "$here/bench_pytorch.py" --curve --model small --dtype "$dtype" --steps "$steps" --vocab_size 5000 \
      --global_batch "$batch" --cache "$out"/cache/tokens-*.bin >"$run.json" 2>"$out/torch.log" ||
      { tail -n 5 "$out/torch.log" >&2; return 1; }
    field loss <"$run.json" >"$run.torch"
    val_torch=$(field val_loss <"$run.json")
  fi
  # Means over windows: batches differ, so single steps are noisy.
  echo "mean training loss over the steps before"
  printf '%8s %14s %10s\n' step train_gpt_fsdp PyTorch
  paste "$run.ours" "$run.torch" | awk -v n=$(((steps + 9) / 10)) '
    { a += $1; b += $2; k++ }
    k == n { printf "%8d %14.4f %10s\n", NR, a / k, (NF > 1 ? sprintf("%.4f", b / k) : "-"); a = b = k = 0 }'
  echo "validation loss, every token once: train_gpt_fsdp $val_ours, PyTorch ${val_torch:--}"
  [ -z "$val_torch" ] || awk -v a="$val_ours" -v b="$val_torch" 'BEGIN {
    printf "difference %+.4f: %s 0.03\n", a - b, (a - b <= 0.03 ? "not worse by more than" : "WORSE by more than") }'
}

# ---- modes ----------------------------------------------------------------------------------------------------------
# One rank and step of `small`, bf16, two microbatches per rank. Communicated bytes are counted where they arrive.
modes() {
  local run=$out/modes rows=$out/modes.rows mode i=0
  local modes=("" "--reshard_after_forward off" "--strategy shard_grad_op" "--strategy zero1" "--strategy no_shard"
    "--strategy no_shard --accumulate local" "--shard dim0" "--wrap model" "--wrap min_params:1000000"
    "--shm copy" "--shm copy --gather_slots 1" "--shm copy --gather_slots 3" "--shm off" "--accumulate local"
    "--fp8 gather" "--recompute none" "--recompute mlp" "--recompute block"
    "--freeze wte,wpe,h.0.*,h.1.*,h.2.*")
  echo
  echo "\`small\`, bf16, 2 ranks, 2 microbatches of 8 sequences per rank: medians of $ROUNDS rounds of $STEPS steps"
  printf '%-42s %9s %7s %9s %9s %9s\n' mode tokens/s "of 1st" "MiB plan" "gath. MB" "red. MB"
  for ((round = 0; round < ROUNDS; round++)); do
    for i in "${!modes[@]}"; do
      read -ra mode <<<"${modes[$i]}"
      ours 2 --device cpu --model small --data random --batch_size 8 --grad_accum 2 --max_steps $((STEPS + 1)) \
        --param_dtype bf16 --reduce_dtype bf16 --sample_tokens 0 --eval_every -1 --save_every -1 --out "$run" \
        ${mode[@]+"${mode[@]}"} >"$run.log" 2>&1 || { tail -n 3 "$run.log" >&2; return 1; }
      grep '"kind":"step"' "$run/metrics.jsonl" | tail -n "$STEPS" >"$run.steps"
      field tokens_per_s <"$run.steps" | median >>"$rows.$i"
      head -n 1 "$run/metrics.jsonl" | field total >"$rows.$i.plan"
      head -n 1 "$run.steps" >"$rows.$i.step"
    done
  done
  for i in "${!modes[@]}"; do
    printf '%-42s %9.0f %7s %9.1f %9.2f %9.2f\n' "${modes[$i]:-(full_shard, flat, block)}" "$(median <"$rows.$i")" \
      "$(ratio "$(median <"$rows.$i")" "$(median <"$rows.0")")" "$(awk '{ print $1 / 1048576 }' "$rows.$i.plan")" \
      "$(field gather_bytes <"$rows.$i.step" | awk '{ print $1 * 1e-6 }')" \
      "$(awk -v a="$(field reduce_bytes <"$rows.$i.step")" -v b="$(field replicate_bytes <"$rows.$i.step")" \
        'BEGIN { print (a + b) * 1e-6 }')"
  done
}

# ---- runs beside each other -----------------------------------------------------------------------------------------
# beside_run program name launcher...: tokens/s over the run's steps, without the first ten
beside_run() {
  local run=$out/beside-$2
  "${@:3}" "$1" --device cpu --model tiny --data random --max_steps "${BESIDE_STEPS:-300}" --sample_tokens 0 \
    --eval_every -1 --save_every -1 --out "$run" >"$run.log" 2>&1 || { tail -n 3 "$run.log" >&2; return 1; }
  grep '"kind":"step"' "$run/metrics.jsonl" | tail -n +11 | field tokens_per_s |
    awk '{ ms += 1 / $1 } END { print NR / ms }'
}
beside() {
  local programs=("$program" ${OTHER:+"$OTHER"}) round i launcher rows=$out/beside
  local mpi=("$MPIRUN" --oversubscribe -np 2)
  for round in $(seq "$ROUNDS"); do
    for i in "${!programs[@]}"; do
      for launcher in one two; do
        local start=()
        [ $launcher = one ] || start=("${mpi[@]}")
        beside_run "${programs[$i]}" a "${start[@]}" >>"$rows.$i.$launcher.alone" || return 1
        beside_run "${programs[$i]}" a "${start[@]}" >>"$rows.$i.$launcher.pair" &
        beside_run "${programs[$i]}" b "${start[@]}" >>"$rows.$i.$launcher.pair" || return 1
        wait $! || return 1
      done
    done
  done
  echo
  echo "\`tiny\`, fp32, random tokens, tokens/s a run: medians over $ROUNDS rounds"
  printf '%-44s %10s %14s %10s %14s\n' program alone "side by side" "2 ranks" "side by side"
  for i in "${!programs[@]}"; do
    printf '%-44s %10.0f %14.0f %10.0f %14.0f\n' "${programs[$i]}" "$(median <"$rows.$i.one.alone")" \
      "$(median <"$rows.$i.one.pair")" "$(median <"$rows.$i.two.alone")" "$(median <"$rows.$i.two.pair")"
  done
}

# ---- predictions beside measurements --------------------------------------------------------------------------------
# The peaks of a rank are measured in the same run, by build/bench_ops, then steps, in turns.
# plan_options model: shapes, small enough for a CPU; plan_steps model: steps of a round, the first of which is left out
plan_options() {
  case $1 in
    gpt2*) echo "--model $1 --seq_len 256 --batch_size 2" ;;
    *) echo "--model $1 --batch_size 8" ;;
  esac
}
plan_steps() { case $1 in tiny) echo 40 ;; small) echo 8 ;; *) echo 4 ;; esac; }
plan() {
  local models=${MODELS:-tiny small gpt2} dtypes=${DTYPES:-fp32 bf16} ranks model dtype round row options
  local run=$out/plan rows=$out/plan.rows bench=$here/../build/bench_ops
  [ -x "$bench" ] || { echo "bench: build/bench_ops is not built: make build/bench_ops" >&2; return 1; }
  for ranks in 1 2; do for dtype in $dtypes; do
    program=$bench ours $ranks peaks --dtype "$dtype" >"$rows.on.$dtype.$ranks"
    echo "a rank of $ranks, $dtype: $(cat "$rows.on.$dtype.$ranks")"
  done; done
  for ((round = 0; round < ROUNDS; round++)); do
    for model in $models; do for dtype in $dtypes; do for ranks in 1 2; do
      row=$rows.$model.$dtype.$ranks
      read -ra options <<<"$(plan_options "$model") --dtype $dtype --cache $out/cache"
      [ -s "$row.predicted" ] ||
        "$program" --plan --on "cpu,$(cat "$rows.on.$dtype.$ranks")" --world $ranks "${options[@]}" --json |
        grep -o '"step_s":[0-9.e+-]*' | head -n 1 | cut -d: -f2 >"$row.predicted"
      ours $ranks --device cpu "${options[@]}" --data random --max_steps "$(plan_steps "$model")" --sample_tokens 0 \
        --eval_every -1 --save_every -1 --report off --out "$run" >"$run.log" 2>&1 ||
        { tail -n 3 "$run.log" >&2; return 1; }
      grep '"kind":"step"' "$run/metrics.jsonl" | tail -n +2 | field ms >>"$row.ms"
    done; done; done
  done
  echo
  echo "ms per step, predicted with peaks of this run, and measured: median and least of $ROUNDS rounds"
  printf '%-6s %-5s %5s %11s %9s %9s %9s %9s\n' model dtype ranks predicted median least "pred./med" "pred./least"
  for model in $models; do for dtype in $dtypes; do for ranks in 1 2; do
    row=$rows.$model.$dtype.$ranks
    awk -v p="$(cat "$row.predicted")" -v m="$(median <"$row.ms")" -v l="$(sort -g "$row.ms" | head -n 1)" \
      -v name="$(printf '%-6s %-5s %5s' "$model" "$dtype" $ranks)" \
      'BEGIN { printf "%s %11.1f %9.1f %9.1f %9.2f %9.2f\n", name, 1e3 * p, m, l, 1e3 * p / m, 1e3 * p / l }'
  done; done; done | tee "$rows"
  awk '{ e = $7 - 1; if (e < 0) e = -e; print e }' "$rows" | sort -g | awk '{ a[NR] = $1 }
    END { printf "off by: median %.0f %%, worst %.0f %%\n", 50 * (a[int((NR + 1) / 2)] + a[int(NR / 2) + 1]),
                 100 * a[NR] }'
}

# ---- fp8 ------------------------------------------------------------------------------------------------------------
fp8() {
  local steps=${CURVE_STEPS:-300} batch=${FP8_BATCH:-8} run=$out/fp8 loss mode
  echo
  echo "\`small\`, $steps steps of batch $batch on WikiText-2: validation loss, every token once"
  for mode in off gather; do
    ours 1 --device cpu --model small --batch_size "$batch" --max_steps "$steps" --epochs 1000 --param_dtype bf16 \
      --fp8 $mode --sample_tokens 0 --save_every -1 --cache "$out/cache" --out "$run" >"$run.log" 2>&1 ||
      { tail -n 5 "$run.log" >&2; return 1; }
    loss=$(grep '"split":"valid"' "$run/metrics.jsonl" | field loss | tail -n 1)
    echo "bf16, --fp8 $mode: $loss"
    echo "$loss" >"$run.$mode"
  done
  awk -v a="$(cat "$run.gather")" -v b="$(cat "$run.off")" 'BEGIN { printf "difference %+.2f %%: %s 1 %%\n",
    100 * (a / b - 1), (a / b - 1 <= 0.01 && a / b - 1 >= -0.01 ? "within" : "NOT within") }'
}

# ---- optimizers -----------------------------------------------------------------------------------------------------
# One rank, bf16, the preset's batch; every run sees the same tokens in the same order. Muon is trained with its best
# rate once more for fewer steps, schedule and all, until it no longer reaches AdamW's best loss: a cosine that is cut
# off would count against it.
# optimizer_loss name rate steps: the validation loss after these steps
optimizer_loss() {
  local run=$out/$1-$2-$3
  [ -s "$run.loss" ] || {
    ours 1 --device cpu --model small --optimizer "$1" --lr "$2" --max_steps "$3" --epochs 1000 --param_dtype bf16 \
      --sample_tokens 0 --save_every -1 --report off --cache "$out/cache" --out "$run" \
      >"$run.log" 2>&1 || { tail -n 5 "$run.log" >&2; return 1; }
    grep '"split":"valid"' "$run/metrics.jsonl" | field loss | tail -n 1 >"$run.loss"
  }
  cat "$run.loss"
}
optimizers() {
  local steps=${OPTIMIZER_STEPS:-300} name rate loss low high middle
  local -A best_loss best_rate rates
  rates[adamw]=${ADAMW_RATES:-2.5e-4 5e-4 1e-3 2e-3}
  rates[muon]=${MUON_RATES:-5e-4 1e-3 2e-3 4e-3}
  echo
  echo "\`small\`, bf16, $steps steps of 8 sequences of WikiText-2: validation loss"
  for name in adamw muon; do
    for rate in ${rates[$name]}; do
      loss=$(optimizer_loss $name "$rate" "$steps") || return 1
      printf '%-6s --lr %-6s %8.4f\n' $name "$rate" "$loss"
      if awk -v a="$loss" -v b="${best_loss[$name]:-1e9}" 'BEGIN { exit !(a < b) }'; then
        best_loss[$name]=$loss best_rate[$name]=$rate
      fi
    done
  done
  low=0 high=$steps                              # Muon reaches the loss with `high` steps, not with `low`
  while [ $((high - low)) -gt $((steps / 20 + 1)) ]; do
    middle=$(((low + high) / 2))
    loss=$(optimizer_loss muon "${best_rate[muon]}" $middle) || return 1
    printf 'muon   --lr %-6s %8.4f after %d steps\n' "${best_rate[muon]}" "$loss" $middle
    if awk -v a="$loss" -v b="${best_loss[adamw]}" 'BEGIN { exit !(a <= b) }'; then high=$middle; else low=$middle; fi
  done
  if awk -v a="${best_loss[muon]}" -v b="${best_loss[adamw]}" 'BEGIN { exit !(a <= b) }'; then
    awk -v a=$high -v b="$steps" -v l="${best_loss[adamw]}" 'BEGIN {
      printf "muon reaches adamw'"'"'s best loss, %.4f, in %d steps: %.2f of its steps\n", l, a, a / b }'
  else
    echo "muon does not reach adamw's best loss, ${best_loss[adamw]}, in $steps steps"
  fi
}

# ---- tuning ---------------------------------------------------------------------------------------------------------
lora() {
  echo
  "$PYTHON" -c 'import torch, transformers, peft' 2>/dev/null ||
    { echo "lora: not measured, PYTHON=$PYTHON lacks torch, transformers or peft"; return 0; }
  ROUNDS=$ROUNDS STEPS=$STEPS OUT=$out/lora TRAIN_GPT_FSDP=$program "$PYTHON" "$here/bench_lora.py" "$@"
}

# ---- matrix multiplies on a GPU -------------------------------------------------------------------------------------
candidates() {
  local model
  for model in ${MODELS:-gpt2 gpt2-xl}; do
    "$here/../build/bench_ops" candidates --model "$model" --batch_size "${BATCH:-8}" --seq_len 1024 \
      --param_dtype bf16 --data random
  done
}

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(ratios ops muon data tokenizer modes checkpoint generate beside plan curve fp8
  optimizers lora)
[ $# -gt 0 ] || [ "$DEVICE" = cpu ] || parts=(speed)
if [ "${parts[0]}" = ratios ] && [ $# -gt 1 ]; then ratios "${parts[@]:1}"; exit; fi   # the rest are names of its rows
if [ "${parts[0]}" = lora ]; then header; lora "${parts[@]:1}"; exit; fi
for part in "${parts[@]}"; do
  case $part in
    ratios | ops | muon | data | tokenizer | speed | modes | checkpoint | generate | beside | plan | curve) ;;
    fp8 | optimizers | lora | candidates) ;;
    *)
      echo "bench: parts: ratios, ops, muon, data, tokenizer, modes, checkpoint, generate, beside, plan, curve," \
        "fp8, optimizers, lora, speed, candidates; not '$part'" >&2
      exit 2 ;;
  esac
done
header
for part in "${parts[@]}"; do "$part"; done
