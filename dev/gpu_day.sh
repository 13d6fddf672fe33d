#!/usr/bin/env bash
# Runs and records everything that needs a GPU, for the first day with one: about 25 minutes on one H200.
#
#   dev/gpu_day.sh [PART]...      PARTs, by default all of them in this order:
#     build      make; registers and spills of the hot kernels (make ptxas)
#     test       the CUDA tests on the GPU alone, then every test with DEVICE=cuda
#     sanitize   the CUDA op tests under compute-sanitizer: memcheck and racecheck
#     ranks      1, 2 and 4 ranks on one GPU over mpi, NCCL with one, graph on and off: equal losses, text by text
#     modes      every sharding mode, offloading and recomputation included: the losses of the plain run, speed, memory
#     profile    the GPU's measured peaks (dev/gpu_peaks.cu), and ncu: each kernel of a step against them
#     bench      tokens/s and MFU of gpt2 and gpt2-xl in bf16, in turns with PyTorch (dev/bench.sh)
#
# The report is OUT/DATE-GPUNAME.md (OUT: dev/results); a later call of the same day adds to it. Whole outputs stay in
# build/gpu_day/; where OUT is given, OUT/gpu_day_logs.tar.gz holds them too. A part that fails or lacks a tool says so
# in the report, and the next one runs; exit status 1 then.
#
# Environment: OUT; PYTHON (python3) with torch; CUDA_HOME, NCCL_HOME, MPI_HOME, CJSON_HOME as for make (NCCL, cuBLAS
# and NVTX are also looked for in PYTHON's packages); TEST_LIMIT (240 seconds for every test; 0: the CUDA tests only);
# SANITIZE (names of tests; all op tests), TOOLS ("memcheck racecheck"); MODELS ("gpt2 gpt2-xl"), ROUNDS and STEPS of
# bench; COMMIT where there is no git. Without mpirun only runs of one rank are done.
#
# The GPU's clocks and limits are left as they are found.
set -u

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PYTHON=${PYTHON:-python3} CUDA_HOME=${CUDA_HOME:-/usr/local/cuda} MODELS=${MODELS:-gpt2 gpt2-xl}
TEST_LIMIT=${TEST_LIMIT:-240} TOOLS=${TOOLS:-memcheck racecheck}
work=$PWD/build/gpu_day
tests=build/test_gpt_fsdp
failed=()                                      # the parts that failed
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

have() { command -v "$1" >/dev/null 2>&1; }
say() { printf '%s\n' "$@" | tee -a "$report"; }
# code TEXT: a block of the report; empty text leaves none
code() { [ -z "$1" ] || say '```' "$1" '```' ""; }
# squeeze LINES: the first and last lines of a longer text
squeeze() {
  awk -v most="$1" '{ line[NR] = substr($0, 1, 200) } END {
    if (NR <= most) { for (i = 1; i <= NR; i++) print line[i]; exit }
    for (i = 1; i <= most / 4; i++) print line[i]
    print "... " NR - int(most / 4) - (most - int(most / 4)) " lines ..."
    for (i = NR - (most - int(most / 4)) + 1; i <= NR; i++) print line[i] }'
}

# run LIMIT_S NAME COMMAND...: the output goes to $work/NAME.log; command, result and time go to the report (with
# `quiet` set, only if the command failed). Returns the command's status.
run() {
  local limit=$1 name=$2 start=$SECONDS status words
  shift 2
  # The report shows the command as one would type it: no machine's own directories.
  words=$(printf '%q ' "$@" | sed "s|$PWD/||g; s|${HOME:-/root}/||g; s/\\\\,/,/g")
  timeout -k 10 "$limit" "$@" >"$work/$name.log" 2>&1 </dev/null
  status=$?
  case $status in
    0) words+="# $((SECONDS - start)) s" ;;
    124 | 137) words+="# STOPPED after $((SECONDS - start)) s" ;;
    *) words+="# EXIT $status after $((SECONDS - start)) s" ;;
  esac
  if [ $status -ne 0 ] || [ -z "${quiet:-}" ]; then say "    $words" ""; fi
  return $status
}
# after_failure NAME: the end of its log, for the report
after_failure() { code "$(tail -n 15 "$work/$1.log" | cut -c 1-200)"; }
missing() { say "NOT RUN: $1" ""; return 1; }
need_program() { { [ -x ./train_gpt_fsdp ] && [ -x $tests ]; } || missing "./train_gpt_fsdp or $tests is not built"; }

# ---- where things are ------------------------------------------------------------------------------------------------
add_path() { local -n list=$1; list=$2${list:+:$list}; export "${1?}"; }

# Python's packages bring libraries that the toolkit here may lack: adds their places to the paths of compilers and
# loader. Takes only these of their headers, because others beside them would hide the toolkit's own.
find_libraries() {
  local dirs=() dir file
  [ -x "$CUDA_HOME/bin/nvcc" ] || ! have nvcc || CUDA_HOME=$(dirname "$(dirname "$(command -v nvcc)")")
  export CUDA_HOME
  [ -z "${MPI_HOME:-}" ] || [ ! -d "$MPI_HOME/bin" ] || add_path PATH "$MPI_HOME/bin"
  [ ! -d "$CUDA_HOME/bin" ] || add_path PATH "$CUDA_HOME/bin"
  [ ! -d "$CUDA_HOME/lib" ] || add_path LIBRARY_PATH "$CUDA_HOME/lib"
  mapfile -t dirs < <("$PYTHON" -c 'import glob, nvidia
for path in nvidia.__path__: print("\n".join(glob.glob(path + "/*")))' 2>/dev/null)
  mkdir -p "$work/include"
  for dir in "${dirs[@]}"; do
    if [ -e "$dir/include/nccl.h" ] && [ -z "${NCCL_HOME:-}" ]; then export NCCL_HOME=$dir; fi
    for file in "$dir"/include/cublas*.h "$dir"/include/nvtx3; do
      [ ! -e "$file" ] || [ -e "$CUDA_HOME/include/${file##*/}" ] || ln -sfn "$file" "$work/include/${file##*/}"
    done
    for file in "$dir"/lib/libcublasLt.so.*; do
      [ ! -e "$file" ] || [ -e "$CUDA_HOME/lib64/${file##*/}" ] || add_path LD_LIBRARY_PATH "$dir/lib"
    done
  done
  add_path CPATH "$work/include"
  [ -z "${NCCL_HOME:-}" ] || [ ! -d "$NCCL_HOME/lib" ] || add_path LD_LIBRARY_PATH "$NCCL_HOME/lib"
  # One rank needs no daemon of OpenMPI, which may be missing if mpirun is.
  have mpirun || export OMPI_MCA_ess_singleton_isolated=1
}

version_of() {
  have "$1" || { echo "not found"; return; }
  timeout 20 "$1" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+[0-9.]*' | head -n 1
}
describe_device() {
  local name value
  say "# GPU results of $today: $gpu" "" \
    "Commit ${COMMIT:-$(git describe --always --dirty 2>/dev/null || echo unknown)}. Written by dev/gpu_day.sh:" \
    "outputs are shortened, times are wall-clock." ""
  code "$(
    for name in name driver_version compute_cap memory.total power.limit power.max_limit clocks.max.sm \
      clocks.max.memory clocks.sm clocks.mem temperature.gpu ecc.mode.current mig.mode.current persistence_mode; do
      value=$(nvidia-smi --query-gpu=$name --format=csv,noheader 2>/dev/null | head -n 1) || value=
      [ -z "$value" ] || printf '%-18s %s\n' "$name" "$value"
    done
    printf '%-18s %s\n' GPUs "$(nvidia-smi -L 2>/dev/null | grep -c .)" \
      host "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), $(nproc) cores" \
      nvcc "$(version_of nvcc)" \
      PyTorch "$("$PYTHON" -c 'import torch; print(torch.__version__)' 2>/dev/null || echo "not found")" \
      NCCL "$(sed -n 's/^#define NCCL_\(MAJOR\|MINOR\|PATCH\) *//p' "${NCCL_HOME:-/usr}/include/nccl.h" 2>/dev/null |
        paste -sd .)" \
      mpirun "$(version_of mpirun)" ncu "$(version_of ncu)" compute-sanitizer "$(version_of compute-sanitizer)"
  )"
}

# ---- build -----------------------------------------------------------------------------------------------------------
part_build() {
  local status=0 mpirun=()
  have nvcc || missing "nvcc (CUDA_HOME=$CUDA_HOME)" || return 1
  # make checks for an mpirun, but building does not need it.
  have mpirun || mpirun=(MPIRUN=true)
  run 400 build make all check-symbols "${mpirun[@]}" || { after_failure build; return 1; }
  code "$(grep -iE 'warning|left out' "$work/build.log" | squeeze 10)"
  ! grep -q 'CUDA kernels are left out' "$work/build.log" || status=1
  make -n ptxas "${mpirun[@]}" >/dev/null 2>&1 || { missing "make ptxas"; return $status; }
  if run 300 ptxas make ptxas "${mpirun[@]}"; then
    say "$(awk '$3 ~ /^[0-9]+$/ && $5 ~ /^sm_/ { n++; spills += $1 > 0 } END {
      printf "%d kernels, %d of them spill. The spilling ones, and those of bf16:", n, spills }' "$work/ptxas.log")" ""
    code "$(awk 'NR == 1 || $1 > 0 || /bf16/' "$work/ptxas.log" | cut -c 1-150 | squeeze 80)"
  else
    after_failure ptxas
    status=1
  fi
  return $status
}

# ---- test ------------------------------------------------------------------------------------------------------------
# run_tests LIMIT_S NAME [TEST]: every test, or those named TEST, then only on the GPU (DEVICE_ONLY) and not emulated
run_tests() {
  local limit=$1 name=$2 status command
  shift 2
  if have mpirun; then command=(make test DEVICE=cuda "${@/#/T=}" "${@/*/DEVICE_ONLY=1}")
  else command=(env DEVICE=cuda "${@/*/DEVICE_ONLY=1}" "TRAIN_GPT_FSDP=$PWD/train_gpt_fsdp" "$tests" "$@"); fi
  run "$limit" "$name" "${command[@]}"
  status=$?
  # What went wrong, as the runner printed it: FAILED, then the test's output. Then the counts, also of a stopped run.
  code "$(awk '/^FAILED/ { show = 12 } /^(ok|skipped) / { show = 0 } / passed, / { show = 0 } show-- > 0' \
    "$work/$name.log" | squeeze 80)"
  say "$(awk '/^ok / { ok++ } /^FAILED / { bad++ } /^skipped +[a-z_0-9]+ \(/ { skip++ } END {
    printf "%d passed, %d failed, %d skipped", ok, bad, skip }' "$work/$name.log")" ""
  return $status
}
part_test() {
  local status=0
  need_program || return 1
  have mpirun || say "mpirun is not here: tests that start ranks cannot pass." ""
  run_tests 400 test-cuda cuda_ || status=1
  [ "$TEST_LIMIT" -eq 0 ] || run_tests "$TEST_LIMIT" test-every || status=1
  return $status
}

# ---- sanitize --------------------------------------------------------------------------------------------------------
# The tests that run kernels and need no ranks, as the sources name them; tests of all combinations take too long here.
op_tests() {
  sed -n 's/^TEST(\(cuda_[a-z0-9_]*\),.*/\1/p' dev/test/test_cuda_{ops,attention,matmul,runtime}.h |
    grep -vE '_all$|_rules|_text|_libraries|_probe|_links|_known|_limit'
}

# One test in its own process, without the runner's fork; its line of the table goes to $work/sanitize-TOOL-NAME.line.
sanitize_one() {
  local tool=$1 name=$2 log=$work/sanitize-$1-$2.log start=$SECONDS status word options=()
  # racecheck looks only at our kernels: instrumenting cuBLAS's would take all the time.
  [ "$tool" != racecheck ] || options=(--kernel-name kns=_kernel)
  DEVICE=cuda DEVICE_ONLY=1 timeout -k 10 200 compute-sanitizer --tool "$tool" "${options[@]}" --target-processes all \
    --error-exitcode 66 "$tests" --run "$name" >"$log" 2>&1 </dev/null
  status=$?
  case $status in
    0) word=ok ;;
    66) word="FAILED: errors found" ;;
    77) word="skipped: $(sed -n 's/.*SKIP: //p' "$log" | head -n 1 | cut -c 1-80)" ;;
    124 | 137) word=STOPPED ;;
    *) word="FAILED: exit $status" ;;
  esac
  printf '%-10s %-34s %4d s  %s  %s\n' "$tool" "$name" $((SECONDS - start)) "$word" \
    "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//')" >"${log%.log}.line"
}
part_sanitize() {
  local names tool name lines
  need_program || return 1
  have compute-sanitizer || missing "compute-sanitizer is not here" || return 1
  # A test that the program does not have would seem to pass if asked for by its exact name.
  names=$("$tests" --list | awk '{ print $1 }' | grep -xF "$(tr ' ' '\n' <<<"${SANITIZE:-$(op_tests)}")")
  [ -n "$names" ] || missing "$tests has none of the op tests" || return 1
  rm -f "$work"/sanitize-*
  say "Each test as \`DEVICE=cuda DEVICE_ONLY=1 compute-sanitizer --tool TOOL --target-processes all --error-exitcode" \
    "66 $tests --run TEST\`, four at a time; racecheck with --kernel-name kns=_kernel, which are the program's." ""
  export -f sanitize_one
  # shellcheck disable=SC2016
  for tool in $TOOLS; do for name in $names; do echo "$tool $name"; done; done |
    xargs -P 4 -n 2 bash -c 'sanitize_one "$@"' _
  lines=$(cat "$work"/sanitize-*.line 2>/dev/null)
  code "$lines"
  for name in "$work"/sanitize-*.line; do
    if grep -q 'FAILED' "$name" 2>/dev/null; then
      say "$(basename "$name" .line):" ""
      code "$(grep -E '^=========|must|rank|:[0-9]+:' "${name%.line}.log" | squeeze 24)"
    fi
  done
  [ -n "$lines" ] && ! grep -qE 'FAILED|STOPPED' <<<"$lines"
}

# ---- ranks -----------------------------------------------------------------------------------------------------------
train_options=(--device cuda --model gpt2 --data random --batch_size 2 --global_batch 8 --max_steps 20 --sample_tokens 0
  --eval_every -1)
# train NAME RANKS OPTIONS...: its losses and norms, as text, in $work/NAME.losses
train() {
  local name=$1 np=$2 start=() quiet=1
  shift 2
  rm -rf "${work:?}/$name" "$work/$name.losses"
  echo "$name: ranks $np, $*" >"$work/$name.words"
  if [ "$np" -gt 1 ]; then
    have mpirun || return 1
    start=(mpirun --oversubscribe --bind-to none -np "$np")
  fi
  run 150 "$name" "${start[@]}" ./train_gpt_fsdp "${train_options[@]}" --out "$work/$name" "$@" ||
    { after_failure "$name"; return 1; }
  sed -n 's/.*"kind":"step".*"loss":\([^,]*\),.*"grad_norm":\([^,}]*\).*/\1 \2/p' "$work/$name/metrics.jsonl" \
    >"$work/$name.losses"
}
# equal NAME FIRST: prints whether their losses are the same text, and the last line
equal() {
  local result=equal steps
  steps=$(grep -c . "$work/$1.losses" 2>/dev/null)
  { [ "$steps" = 20 ] && cmp -s "$work/$1.losses" "$work/$2.losses"; } || result=DIFFERENT
  [ -s "$work/$1.losses" ] || result="NOT RUN"
  printf '%-67s %2d steps, last %s: %s\n' "$(cat "$work/$1.words")" "${steps:-0}" \
    "$(tail -n 1 "$work/$1.losses" 2>/dev/null)" "$result"
  [ "$result" = equal ]
}
part_ranks() {
  local status=0 dtype np name lines=""
  need_program || return 1
  have mpirun || missing "2 and 4 ranks: mpirun is not here"
  say "\`./train_gpt_fsdp ${train_options[*]}\`" \
    "and what each line names. Losses and gradient norms of every step, with all digits, are compared as text with" \
    "those of the first line of their dtype." ""
  for dtype in bf16 fp32; do
    train $dtype-self 1 --param_dtype $dtype --comm self --graph off
    for np in 1 2 4; do train $dtype-mpi-$np $np --param_dtype $dtype --comm mpi; done
    train $dtype-graph 1 --param_dtype $dtype --comm self --graph on
    train $dtype-nccl 1 --param_dtype $dtype --comm nccl --graph off
    train $dtype-nccl-graph 1 --param_dtype $dtype --comm nccl --graph on
    for name in self mpi-1 mpi-2 mpi-4 graph nccl nccl-graph; do
      lines+=$(equal $dtype-$name $dtype-self)$'\n' || status=1
    done
  done
  code "${lines%$'\n'}"
  return $status
}

# ---- modes -----------------------------------------------------------------------------------------------------------
# speed_and_memory NAME: median tokens/s of the last ten steps, planned and taken MiB of the GPU
speed_and_memory() {
  sed -n 's/.*"tokens_per_s":\([0-9.]*\).*/\1/p' "$work/$1/metrics.jsonl" 2>/dev/null | tail -n 10 | sort -g |
    awk '{ a[NR] = $1 } END { printf "%9.0f tok/s", a[int((NR + 1) / 2)] }'
  sed -n 's/^GPU memory: \([0-9.]*\) MiB planned, \([0-9.]*\) MiB taken.*/  MiB \1 planned \2 taken/p' "$work/$1.log"
}
part_modes() {
  local status=0 i=0 mode same np words reference lines=""
  local -A first=()
  # Runs with the same name before | must have equal losses; runs without a name compute differently.
  local modes=("plain|1|" "plain|1|--recompute gelu" "plain|1|--recompute block" "plain|1|--wrap model"
    "plain|1|--shard dim0" "plain|1|--offload optimizer" "plain|1|--offload params" "plain|2|--strategy shard_grad_op"
    "plain|2|--strategy no_shard" "plain|4|--mesh 2x2" "plain|4|--reshard_after_forward 2" "plain|4|--shard dim0"
    "plain|2|--offload params --recompute block" "|1|--accumulate local" "|1|--buffer_dtype fp32"
    "|1|--freeze wte,h.0.*,h.1.*" "fp8|1|--fp8 gather" "fp8|2|--fp8 gather" "fp8m|1|--fp8 matmul" "fp8m|2|--fp8 matmul")
  need_program || return 1
  say "\`./train_gpt_fsdp ${train_options[*]} --param_dtype bf16\`" "and what each line names." ""
  for mode in "${modes[@]}"; do
    i=$((i + 1))
    IFS='|' read -r same np words <<<"$mode"
    # shellcheck disable=SC2086  # words are options
    train "mode-$i" "$np" --param_dtype bf16 $words || { [ "$np" -gt 1 ] && ! have mpirun || status=1; continue; }
    reference=mode-$i
    if [ -n "$same" ]; then reference=${first[$same]:=mode-$i}; fi
    lines+=$(equal "mode-$i" "$reference")$'\n' || status=1
    lines+="    $(speed_and_memory "mode-$i")"$'\n'
  done
  code "${lines%$'\n'}"
  return $status
}

# ---- profile ---------------------------------------------------------------------------------------------------------
measure_peaks() {
  local includes=(-I.)
  have nvcc || missing "nvcc (CUDA_HOME=$CUDA_HOME)" || return 1
  [ -z "${NCCL_HOME:-}" ] || includes+=("-I$NCCL_HOME/include")
  run 120 peaks-build nvcc -std=c++17 -O3 -arch=native "${includes[@]}" dev/gpu_peaks.cu -o build/gpu_peaks -ldl ||
    { after_failure peaks-build; return 1; }
  run 120 peaks build/gpu_peaks || { after_failure peaks; return 1; }
  code "$(cat "$work/peaks.log")"
}
# profile NAME NCU_OPTION COMMAND...: the table of the command's kernels
profile() {
  local name=ncu-$1 option=$2 peak=avg.pct_of_peak_sustained_elapsed status metrics always more flops
  shift 2
  always=gpu__time_duration.sum,dram__bytes.sum.per_second,launch__registers_per_thread
  flops=sm__ops_path_tensor_src_bf16_dst_fp32.sum
  more=dram__throughput.$peak,sm__pipe_tensor_cycles_active.$peak
  # Names of counters differ between chips; where one is not known the others are measured.
  for metrics in $always,$more,$flops $always,$more $always; do
    rm -f "$work/$name.csv"
    run 240 "$name" ncu --target-processes application-only --clock-control none --metrics "$metrics" --csv --page raw \
      --print-units base --log-file "$work/$name.csv" "$option" "$@"
    status=$?
    ! kernel_table "$work/$name.csv" >"$work/$name.table" || break
  done
  if [ -s "$work/$name.table" ]; then code "$(cat "$work/$name.table")"
  else code "$(grep -hE '^==|ERR' "$work/$name.csv" "$work/$name.log" 2>/dev/null | squeeze 10)"; status=1; fi
  return $status
}
# kernel_table CSV: one line a kernel, the most time first; fails where the file holds none
kernel_table() {
  "$PYTHON" - "$1" "$work/peaks.log" <<'PYTHON'
import csv, re, statistics, sys

def number(text):
    try:
        return float(text.replace(",", ""))
    except (AttributeError, ValueError):
        return None

peaks = {}
try:
    for line in open(sys.argv[2]):
        words = line.split()
        if len(words) == 3 and number(words[1]):
            peaks[words[0]] = number(words[1])
except OSError:
    pass
lines = [line for line in open(sys.argv[1], errors="replace") if not line.startswith("==")]
rows = [row for row in csv.DictReader(lines) if number(row.get("gpu__time_duration.sum"))]
if not rows:
    sys.exit(1)
kernels = {}
for row in rows:
    # Of "void a_kernel<bf16, (int)8>(Arguments)": a_kernel<bf16, 8>
    name = re.sub(r"^void |\(anonymous namespace\)::", "", row["Kernel Name"])
    kernels.setdefault(re.sub(r"\((int|bool|unsigned int|[A-Z]\w*)\)(?=[-\w])", "", name).split("(")[0], []).append(row)

def median(rows, column):
    found = [x for x in (number(row.get(column)) for row in rows) if x is not None]
    return statistics.median(found) if found else None

def text(x, digits=0):
    return "-" if x is None else f"{x:.{digits}f}"

def time_of(rows):
    return sum(number(row["gpu__time_duration.sum"]) for row in rows)

total = time_of(rows)
copy, gemm, mma = peaks.get("memory_copy"), peaks.get("gemm_bf16"), peaks.get("mma_bf16")
print("us, GB/s, TFLOP/s: medians over calls, caches cold. %copy, %gemm, %mma: of the peaks above. dram%, tensor%: of\n"
      "what ncu says the hardware could do.")
print(f"{'calls':>5} {'time%':>5} {'us':>8} {'GB/s':>6} {'%copy':>5} {'dram%':>5} {'tensor%':>7} {'TFLOP/s':>7} "
      f"{'%gemm':>5} {'%mma':>5} {'regs':>4}  kernel")
for name, calls in sorted(kernels.items(), key=lambda k: -time_of(k[1]))[:45]:
    rates = [number(r["sm__ops_path_tensor_src_bf16_dst_fp32.sum"]) / number(r["gpu__time_duration.sum"]) / 1e3
             for r in calls if number(r.get("sm__ops_path_tensor_src_bf16_dst_fp32.sum"))]
    rate = statistics.median(rates) if rates else None
    gbs = median(calls, "dram__bytes.sum.per_second")
    gbs = None if gbs is None else gbs / 1e9
    print(f"{len(calls):5d} {100 * time_of(calls) / total:5.1f} "
          f"{text(median(calls, 'gpu__time_duration.sum') / 1e3, 1):>8} {text(gbs):>6} "
          f"{text(100 * gbs / copy if gbs is not None and copy else None):>5} "
          f"{text(median(calls, 'dram__throughput.avg.pct_of_peak_sustained_elapsed')):>5} "
          f"{text(median(calls, 'sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed')):>7} "
          f"{text(rate):>7} {text(100 * rate / gemm if rate and gemm else None):>5} "
          f"{text(100 * rate / mma if rate and mma else None):>5} "
          f"{text(median(calls, 'launch__registers_per_thread')):>4}  {name[:80]}")
PYTHON
}
part_profile() {
  local status=0 model batch
  measure_peaks || status=1
  need_program || return 1
  have ncu || missing "ncu is not here" || return 1
  # A kernel whose number of operations is known, to check ncu's counters.
  [ ! -x build/gpu_peaks ] || profile peaks --kernel-name=peak_mma_kernel build/gpu_peaks || status=1
  # Two steps of two blocks launch every kernel in the shapes of the whole model.
  for model in $MODELS; do
    batch=16
    [ "$model" = gpt2-xl ] || batch=64
    profile "$model" --launch-count=4000 ./train_gpt_fsdp --device cuda --model "$model" --n_layer 2 \
      --batch_size $batch --param_dtype bf16 --reduce_dtype bf16 --data random --graph off --max_steps 2 \
      --sample_tokens 0 --eval_every -1 --out "$work/ncu-$model" || status=1
  done
  return $status
}

# ---- bench -----------------------------------------------------------------------------------------------------------
part_bench() {
  local status=0 model best="--tune --reduce_dtype bf16"
  need_program || return 1
  "$PYTHON" -c 'import torch' 2>/dev/null || say "PyTorch is not here (PYTHON): the program is measured alone." ""
  for model in $MODELS; do
    run 590 "bench-$model" env DEVICE=cuda MODELS="$model" PROGRAM_OPTIONS="$best" OUT="$work/bench-$model-runs" \
      dev/bench.sh speed || status=1
    code "$(squeeze 40 <"$work/bench-$model.log")"
  done
  # What the options gain: the program alone, without options.
  run 200 bench-plain env DEVICE=cuda MODELS="$MODELS" PYTHON=false ROUNDS=1 OUT="$work/bench-plain-runs" \
    dev/bench.sh speed || status=1
  code "$(squeeze 40 <"$work/bench-plain.log")"
  return $status
}

# ---- one after the other ---------------------------------------------------------------------------------------------
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(build test sanitize ranks modes profile bench)
for part in "${parts[@]}"; do
  case $part in
    build | test | sanitize | ranks | modes | profile | bench) ;;
    *) echo "gpu_day: parts are build, test, sanitize, ranks, modes, profile and bench, not '$part'" >&2; exit 2 ;;
  esac
done
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$gpu" ] || { echo "gpu_day: no GPU: nvidia-smi shows none" >&2; exit 1; }
today=$(date -u +%F)
given=${OUT:-} OUT=${OUT:-dev/results}
mkdir -p "$OUT" "$work" || exit 1
export work tests
OUT=$(cd "$OUT" && pwd)
report=$OUT/$today-$(tr -cs 'A-Za-z0-9\n' '-' <<<"${gpu#NVIDIA }").md
find_libraries
[ -s "$report" ] || describe_device
for part in "${parts[@]}"; do
  started=$SECONDS
  say "" "## $part" ""
  result=ok
  "part_$part" || { result=FAILED; failed+=("$part"); }
  say "$part: $result, $((SECONDS - started)) s"
done
say "" "Parts run: ${parts[*]}. Failed: ${failed[*]:-none}. $SECONDS s in all."
[ -z "$given" ] || tar -czf "$OUT/gpu_day_logs.tar.gz" -C build gpu_day
echo "report: $report"
[ ${#failed[@]} -eq 0 ]
