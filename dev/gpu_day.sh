#!/usr/bin/env bash
# Runs and records what needs a GPU, in calls of less than ten minutes, on a machine that may be gone after each.
#
#   dev/gpu_day.sh [PART[=SECONDS]]...   by default all PARTs in this order; PART=SECONDS: at most so long in this call
#     build      make
#     first      make test DEVICE=cuda T=hardware: what only a GPU can tell
#     short      of the CUDA tests one for each kind of kernel, on the GPU alone, then whole steps
#     ranks      1, 2 and 4 ranks on one GPU over mpi, NCCL with one, graph on and off: equal losses, text by text
#     bench      tokens/s and MFU of gpt2 and gpt2-xl in bf16, in turns with PyTorch (dev/bench.sh): one round
#     profile    the GPU's measured peaks (dev/gpu_peaks.cu), and ncu: each kernel of a step against them
#     gpus       2, 4 and 8 GPUs over NCCL: equal losses, modes, tokens/s. A machine with fewer skips it and says so
#     modes      every sharding mode, offloading and recomputation included: the losses of the plain run, speed, memory
#     test       the other CUDA tests on the GPU alone, then with DEVICE=cuda those that run the program
#     sanitize   the CUDA op tests under compute-sanitizer: memcheck, then racecheck
#     rounds     bench's other rounds
#     host       the tests that do not use the GPU
#   dev/gpu_day.sh quarter               a quarter of an hour in one call of 600 s and one of 150: these, which can be
#                                        named alone too, and sanitize with racecheck of a few ops
#     ahead      starts compiling PyTorch's gpt2-xl, beside all that comes before part torch
#     attention  hardware_wgmma and the tests of attention, 8 at a time
#     ops        build/bench_ops gpu: attention by shape, rope, norms, cross entropy, optimizer, in TFLOP/s and GB/s;
#                PyTorch's attention kernels for these shapes (dev/bench_attention.py); where build/bench_ops_queries32
#                is (made with NVCCFLAGS=-DATTENTION_WGMMA_QUERIES=32), its table beside it: dk, dv of head size 128
#     plans      the command PLANS, else every matrix multiply algorithm for the shapes of four models, with its time
#     models     tokens/s of gpt2 (batch 32), gpt2-xl (8, 16), smollm2-135m (16), qwen3-0.6b (8), with logits in fp32
#                and in bf16 (MODEL_OPTIONS: --tune=any; no --plans, as the two differ in a matrix multiply)
#     kernels    ncu over the first 400 kernels of two blocks of gpt2-xl, smollm2-135m, qwen3-0.6b
#     torch      the same five by PyTorch with cuDNN's attention, and a table of both
#     nccl       two ranks on the GPU over NCCL (2.30 or later; THIN_NCCL: a directory of such a libnccl.so.2)
#     chosen     of the tests that run the program up to four of each of ten kinds, 8 at a time
#   dev/gpu_day.sh carry DIR             where apt-get has a network: unpacks OpenMPI, hwloc, cJSON, OpenSSL into DIR,
#                                        for a machine that has none of them; CARRIED=DIR there
#
# On a lent machine, programs that were built elsewhere (ARCHS="-gencode arch=compute_90a,code=sm_90a") save minutes:
# with BUILT=1, ./train_gpt_fsdp and build/test_gpt_fsdp run as they are, without make.
#
# A call ends automatically within LIMIT seconds (570; 0: when all is done). The next call does what is left: a line of
# build/gpu_day/journal.tsv is an item (a test, a run, a table), and an item that stands there is not run again. The
# report, OUT/DATE-GPUNAME.md (OUT: dev/results), is written line by line. A given OUT also gets journal.tsv, line by
# line, and gpu_day_logs.tar.gz, so a killed call loses only the item that ran. On a fresh machine FROM=DIR, which
# holds what an earlier call left in OUT, continues from there. No checkpoint is written; all files stay below 2 GB.
#
# REHEARSE=h100 (or h200) dev/gpu_day.sh PART..., on a machine without a GPU, goes through the parts before one is lent:
# the real programs run on the emulator (dev/cuda_emu), at small sizes, through this script's parsers, tables and
# journal. Every command line of the trainer is also planned at its full size on that GPU: one that is rejected or does
# not fit fails its item. dev/test/gpu_stand_in.sh stands in for nvidia-smi, ncu, compute-sanitizer and PyTorch. What it
# leaves is in build/rehearsal/out; nothing in it was measured on a GPU. By hand: quarter takes minutes of two cores.
#
# Exit status: 0 all is done; 1 something failed, the report says what; 4 nothing failed, something is left for another
# call; 2 a wrong argument; 3 no GPU.
#
# Environment: OUT, LIMIT, FROM, CARRIED; AGAIN, what is run again though the journal has it ("failed", or patterns of
# items: "ranks/bf16-nccl* first/*"); PYTHON (python3) with torch; CUDA_HOME, NCCL_HOME, MPI_HOME, HWLOC_HOME,
# CJSON_HOME and OPENSSL_HOME as for make (NCCL, cuBLAS and NVTX are also looked for in PYTHON's packages); SANITIZE
# (all op tests) and TOOLS ("memcheck racecheck") of sanitize; PLANS, MODEL_OPTIONS, THIN_NCCL of quarter; JOBS (4), op
# tests at once; MODELS ("gpt2 gpt2-xl"),
# ROUNDS (3), BATCH and STEPS of bench; COMMIT where there is no git. Directories are seen from the repository's root.
# Without mpirun one rank starts itself, and what needs more ranks is not run.
#
# The GPU's clocks and limits are left as they are found.
set -u

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PYTHON=${PYTHON:-python3} CUDA_HOME=${CUDA_HOME:-/usr/local/cuda} MODELS=${MODELS:-gpt2 gpt2-xl} ROUNDS=${ROUNDS:-3}
TOOLS=${TOOLS:-memcheck racecheck} JOBS=${JOBS:-4} LIMIT=${LIMIT:-570}
work=$PWD/build/gpu_day
journal=$work/journal.tsv
tests=build/test_gpt_fsdp
all_parts=(build first short ranks bench profile gpus modes test sanitize rounds host)
quarter_parts=(ahead attention ops plans models kernels torch nccl sanitize chosen)
RESERVE_S=15                                   # of a call's LIMIT, for what is written when its items are done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

have() { command -v "$1" >/dev/null 2>&1; }
now() { date +%s; }
refuse() { echo "gpu_day: $2" >&2; exit "$1"; }
# squeeze LINES: the first and last lines of a longer text
squeeze() {
  awk -v most="$1" '{ line[NR] = substr($0, 1, 200) } END {
    if (NR <= most) { for (i = 1; i <= NR; i++) print line[i]; exit }
    for (i = 1; i <= most / 4; i++) print line[i]
    print "... " NR - int(most / 4) - (most - int(most / 4)) " lines ..."
    for (i = NR - (most - int(most / 4)) + 1; i <= NR; i++) print line[i] }'
}

# ---- the report ------------------------------------------------------------------------------------------------------
# Every line goes to the report here and to its copy in OUT at once.
say() {
  local file
  printf '%s\n' "$@"
  for file in "${reports[@]}"; do printf '%s\n' "$@" >>"$file"; done
  last_said=${!#}
}
# The heading of a part and what it says of all its items wait until there is something below them.
introduce() { intro+=("$@" ""); }
say_intro() {
  [ ${#intro[@]} -eq 0 ] || say "${intro[@]}"
  intro=()
}
# code TEXT: a block of the report; empty text leaves none
code() { [ -z "$1" ] || say "$(sed 's/^/    /' <<<"$1")" ""; }
# after_failure NAME: what a reader needs of its log, without what mpirun says between lines of dashes
after_failure() { code "$(sed '/^-\{70,\}$/,/^-\{70,\}$/d' "$work/$1.log" | tail -n 15 | cut -c 1-200)"; }
missing() { say_intro; say "NOT RUN: $1" ""; return 1; }
skipped() { say_intro; say "SKIPPED: $1 needs $2 GPUs; GPUs here: $gpus" ""; }
need_program() { { [ -x ./train_gpt_fsdp ] && [ -x $tests ]; } || missing "./train_gpt_fsdp or $tests is not built"; }
# pack: the logs, in OUT, where that is given
pack() {
  local file
  [ -n "$given" ] || return 0
  packed=$(now)
  find "$work" -name '*.log' -size +1024k | while IFS= read -r file; do
    { head -c 262144 "$file"; echo; echo "... shortened ..."; tail -c 786432 "$file"; } >"$file.short"
    mv "$file.short" "$file"
  done
  find "$work" -type f \( -name '*.log' -o -name '*.csv' -o -name '*.table' -o -name '*.losses' -o \
    -name metrics.jsonl \) -printf 'gpu_day/%P\0' |
    tar -czf "$OUT/gpu_day_logs.tar.gz.new" -C "${work%/*}" --null -T - &&
    mv "$OUT/gpu_day_logs.tar.gz.new" "$OUT/gpu_day_logs.tar.gz"
}

# ---- the journal -----------------------------------------------------------------------------------------------------
# A line: time, GPU, item, result, seconds, program, value. `try` stands before an item runs, with the seconds it was
# given, or `full` when no call could give it more; ok, skipped and all else after it. Values are what later items need:
# of a training run the number of steps, a digest of its losses, and the last.
declare -A ended=() tried=() full_tries=() value=()
items=()                                       # those of the part that runs
record() {
  local file line
  TZ=UTC0 printf -v line '%(%FT%TZ)T\t%s\t%s\t%s\t%s\t%s\t%s' -1 "$slug" "$1" "$2" "$3" "$program" "${4:--}"
  for file in "${journals[@]}"; do echo "$line" >>"$file"; done
  if [ "$2" != try ]; then ended[$1]=$2 value[$1]=${4:--}; fi
}
is_again() {
  local pattern
  set -f
  for pattern in ${AGAIN:-}; do
    # shellcheck disable=SC2053  # a pattern
    if [[ $1 == $pattern ]] || { [ "$pattern" = failed ] && [ "$2" != ok ] && [ "$2" != skipped ]; }; then
      set +f
      return 0
    fi
  done
  set +f
  return 1
}
# What the journal says of this GPU model; of what is to run again, only what this call wrote.
load_journal() {
  local line=0 on item result said
  ended=() tried=() full_tries=() value=()
  while IFS=$'\t' read -r _ on item result _ _ said; do
    line=$((line + 1))
    [ "$on" = "$slug" ] || continue
    if [ "$result" = try ]; then
      tried[$item]=${said% full}
      [[ $said != *full ]] || full_tries[$item]=$((${full_tries[$item]:-0} + 1))
      continue
    fi
    unset "tried[$item]" "full_tries[$item]"
    if [ $line -le "$journal_before" ] && is_again "$item" "$result"; then unset "ended[$item]"
    else ended[$item]=$result value[$item]=$said; fi
  done <"$journal"
}

# left: the seconds that are left to the part in this call
left() { echo $((deadline - $(now))); }
# want ITEM NEED LIMIT: whether it is to run now, which the journal then says: it has not ended yet, and the time that
# it needs is left. One that was cut by the end of a call needs twice what it was given, or to be the first of a call.
# One that twice did not end, though no call could have given it more, is given up. In a part that has less time than
# NEED it starts anyway.
want() {
  local item=$1 need=$2 limit=$3 rest first="" full=""
  items+=("$item")
  [ -z "${ended[$item]:-}" ] || return 1
  if [ "${full_tries[$item]:-0}" -ge 2 ]; then
    say_intro
    say "    $item: did not end in two calls, given up" ""
    record "$item" STOPPED -
    return 1
  fi
  rest=$(left)
  if [ -z "$begun" ] && [ "$rest" -ge "$need" ]; then first=yes; fi
  if [ "$rest" -ge "$limit" ] || [ -n "$first" ]; then full=" full"; fi
  [ "$part_s" -ge "$need" ] || need=1
  [ -z "${tried[$item]:-}" ] || [ $((2 * tried[$item])) -le "$need" ] || need=$((2 * tried[$item]))
  [ "$need" -le "$limit" ] || need=$limit
  [ -n "$first" ] || [ "$rest" -ge "$need" ] || return 1
  [ "$rest" -le "$limit" ] || rest=$limit
  begun=yes
  say_intro
  record "$item" try - "$rest$full"
}

# ---- running ---------------------------------------------------------------------------------------------------------
# What an item started carries its name in its environment, in whatever process group or session it is. One that is
# killed may just have started another: so until none is left, for five seconds at most.
kill_rest() {
  local files file pass
  for pass in {1..50}; do
    files=$(grep -lz -- "^GPU_DAY_ITEM=$work:$1" /proc/[0-9]*/environ 2>/dev/null)
    [ -n "$files" ] || return 0
    [ "$pass" = 1 ] || sleep 0.1
    for file in $files; do
      file=${file#/proc/}
      kill -KILL "${file%/environ}" 2>/dev/null
    done
  done
}
# timed LIMIT_S NAME COMMAND...: ends it and all it started after LIMIT_S. By SIGKILL: a training run that is asked to
# stop saves a checkpoint first.
timed() {
  local limit=$1 name=$2 status
  shift 2
  # The braces keep the shell's own word on a killed command.
  { GPU_DAY_ITEM=$work:$name: timeout -s KILL "$limit" "$@" 2>&3 </dev/null; } 3>&2 2>/dev/null
  status=$?
  [ $status -eq 0 ] || kill_rest "$name:"
  return $status
}
# run LIMIT_S NAME COMMAND...: its output goes to $work/NAME.log, command and outcome to the report (with `quiet` set,
# of a command that failed only). $outcome is ok, EXIT N, STOPPED (it had LIMIT_S), or CUT (by the end of the call).
run() {
  local limit=$1 name=$2 rest start status words took
  shift 2
  # The report shows the command as one would type it: no machine's own directories.
  printf -v words '%q ' "$@"
  words=${words//"$PWD/"/} words=${words//"${HOME:-/root}/"/} words=${words//\\,/,}
  start=$(now) took=0 status=137
  rest=$((deadline - start))
  [ "$rest" -le "$limit" ] || rest=$limit
  if [ "$rest" -gt 0 ]; then
    timed "$rest" "$name" "$@" >"$work/$name.log" 2>&1
    status=$? took=$(($(now) - start))
  fi
  if [ $status -eq 0 ]; then outcome=ok
  elif [ $took -lt "$rest" ]; then outcome="EXIT $status"
  elif [ "$rest" -lt "$limit" ]; then outcome=CUT
  else outcome=STOPPED; fi
  case $outcome in
    ok) words+="# $took s" ;;
    CUT) words+="# CUT after $took s: no time is left in this call" ;;
    *) words+="# $outcome after $took s" ;;
  esac
  if [ "$outcome" != ok ] || [ -z "${quiet:-}" ]; then say "    $words" ""; fi
  [ "$outcome" = ok ]
}
# finish ITEM [VALUE]: the outcome of its run goes to the journal, unless it was cut and runs again; the logs are packed
# every two minutes
finish() {
  local time
  time=$(now)
  [ "$outcome" = CUT ] || record "$1" "$outcome" $((time - item_start)) "${2:--}"
  [ $((time - packed)) -lt 120 ] || pack
}

# ---- where things are ------------------------------------------------------------------------------------------------
add_path() { local -n list=$1; list=$2${list:+:$list}; export "${1?}"; }

# What `carry` unpacked: OpenMPI was built for /usr and must be told where it is now.
use_carried() {
  local lib plugins
  CARRIED=$(cd "$CARRIED" 2>/dev/null && pwd) || refuse 2 "CARRIED: there is no such directory"
  lib=$(find "$CARRIED/usr/lib" -name 'libopen-pal.so.*' -printf '%h\n' -quit 2>/dev/null)
  plugins=$(find "$CARRIED/usr/lib" -type d -path '*/lib/pmix' -print -quit 2>/dev/null)
  { [ -n "$lib" ] && [ -n "$plugins" ]; } ||
    refuse 2 "CARRIED=$CARRIED holds no OpenMPI; dev/gpu_day.sh carry DIR makes such a directory"
  export OPAL_PREFIX=$CARRIED/usr PMIX_PKGLIBDIR=$plugins HWLOC_HOME=$CARRIED/hwloc CJSON_HOME=$CARRIED/cjson
  export OPENSSL_HOME=$CARRIED/openssl
  add_path PATH "$CARRIED/usr/bin"
  add_path LD_LIBRARY_PATH "${plugins%/pmix}"
  add_path LD_LIBRARY_PATH "$lib"
}
# Python's packages bring libraries that the toolkit here may lack; the compilers and the loader are told where. Of
# their headers only these: what else is beside them would hide the toolkit's own.
find_libraries() {
  local dirs=() dir file
  [ -x "$CUDA_HOME/bin/nvcc" ] || ! have nvcc || CUDA_HOME=$(dirname "$(dirname "$(command -v nvcc)")")
  export CUDA_HOME
  [ -z "${CARRIED:-}" ] || use_carried
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
  # One rank needs no daemon of OpenMPI's, which may be missing where mpirun is; ranks of one host need no ssh.
  have mpirun || export OMPI_MCA_ess_singleton_isolated=1
  have ssh || have rsh || export OMPI_MCA_plm=isolated
}

version_of() {
  have "$1" || { echo "not found"; return; }
  timeout 20 "$1" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+[0-9.]*' | head -n 1
}
describe_device() {
  local name value
  say "# GPU results of $today: $gpu" "" "Written by dev/gpu_day.sh: outputs are shortened, times are wall-clock." ""
  [ -z "${REHEARSED:-}" ] || say "**A rehearsal on the emulator, at small sizes: nothing was measured on a GPU.**" ""
  code "$(
    for name in name driver_version compute_cap memory.total power.limit power.max_limit clocks.max.sm \
      clocks.max.memory clocks.sm clocks.mem temperature.gpu ecc.mode.current mig.mode.current persistence_mode; do
      value=$(nvidia-smi --query-gpu=$name --format=csv,noheader 2>/dev/null | head -n 1) || value=
      [ -z "$value" ] || printf '%-18s %s\n' "$name" "$value"
    done
    printf '%-18s %s\n' GPUs "$gpus" \
      host "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), $(nproc) cores" \
      nvcc "$(version_of nvcc)" \
      PyTorch "$("$PYTHON" -c 'import torch; print(torch.__version__)' 2>/dev/null || echo "not found")" \
      NCCL "$(sed -n 's/^#define NCCL_\(MAJOR\|MINOR\|PATCH\) *//p' "${NCCL_HOME:-/usr}/include/nccl.h" 2>/dev/null |
        paste -sd .)" \
      mpirun "$(version_of mpirun)" ncu "$(version_of ncu)" compute-sanitizer "$(version_of compute-sanitizer)"
  )"
}
# The program's version and build, which the journal gives each item.
find_program() { program=$(./train_gpt_fsdp --version 2>/dev/null | head -n 1); program=${program:--}; }

# ---- build -----------------------------------------------------------------------------------------------------------
part_build() {
  local status=0 mpirun=()
  say_intro
  [ -z "${BUILT:-}" ] || { need_program && say "built elsewhere: $program" ""; return; }
  have nvcc || missing "nvcc (CUDA_HOME=$CUDA_HOME)" || return 1
  # make checks for an mpirun, but building does not need it.
  have mpirun || mpirun=(MPIRUN=true)
  run 500 build make all check-symbols "${mpirun[@]}" || { after_failure build; return 1; }
  code "$(grep -iE 'warning|left out' "$work/build.log" | squeeze 10)"
  ! grep -q 'CUDA kernels are left out' "$work/build.log" || status=1
  find_program
  say "$program" ""
  return $status
}

# ---- first, test -----------------------------------------------------------------------------------------------------
# Each line of the runner goes to the journal as it comes. The output of a failed test and the notes of part first go
# to the report.
watch_tests() {
  local suite=$1 line show=0
  while IFS= read -r line; do
    if [[ $line =~ ^(ok|FAILED|skipped)\ +([A-Za-z0-9_]+)\ \(([0-9.]+)\ s, ]]; then
      record "$suite/${BASH_REMATCH[2]}" "${BASH_REMATCH[1]}" "${BASH_REMATCH[3]}"
      show=0
      [ "$suite" != first ] || show=8          # what the test has measured
      [ "${BASH_REMATCH[1]}" != FAILED ] || show=14
    elif [[ $line =~ ^(skipped\ |[0-9]+\ passed,) ]]; then show=0; fi
    [ $show -eq 0 ] || { say "    ${line:0:200}"; show=$((show - 1)); }
  done
}
# run_tests SUITE PATTERN NAME...: these tests by one call of the runner; PATTERN, if not empty, selects the same ones.
# Suite cuda is of the GPU only (DEVICE_ONLY), not emulated too. A test's own limit is the runner's, 300 s. With
# `at_once` set so many run at a time, else one.
run_tests() {
  local suite=$1 pattern=$2 test remaining=() only=() command
  shift 2
  for test in "$@"; do
    if [ ${#remaining[@]} -gt 0 ] && [ -z "${ended[$suite/$test]:-}" ]; then
      items+=("$suite/$test")
      remaining+=("$test")
    elif want "$suite/$test" 30 310; then
      remaining+=("$test")                     # the first that is left stands for all that follow
    elif [ -z "${ended[$suite/$test]:-}" ]; then
      items+=("${@/#/$suite/}")
      return 0
    fi
  done
  [ ${#remaining[@]} -gt 0 ] || return 0
  [ "$suite" != cuda ] || only=(DEVICE_ONLY=1)
  only+=("TEST_JOBS=${at_once:-1}")
  if have mpirun && [ -z "${BUILT:-}" ]; then
    [ -n "$pattern" ] && [ ${#remaining[@]} -eq $# ] || pattern="${remaining[*]/#/=}"
    command=(make test DEVICE=cuda "${only[@]}" "T=$pattern")
  else
    have mpirun || say "mpirun is not here: tests that start ranks cannot pass." ""
    command=(env DEVICE=cuda MPIRUN=mpirun "${only[@]}" "TRAIN_GPT_FSDP=$PWD/train_gpt_fsdp" "$tests"
      "${remaining[@]/#/=}")
  fi
  say "    $(sed "s|$PWD/||g" <<<"${command[*]}" | cut -c 1-200)" ""
  timed "$(left)" "$suite" "${command[@]}" 2>&1 | tee "$work/tests-$suite.log" | watch_tests "$suite"
  cat "$work/tests-$suite.log" >>"$work/all-$suite.log"
  load_journal
  code "$(sed -n 's/^skipped \([^ ]*:\)/skipped \1/p' "$work/tests-$suite.log" | squeeze 20)"
  for test in "${remaining[@]}"; do
    [ -z "${ended[$suite/$test]:-}" ] || continue
    [ "$(left)" -gt 0 ] || return 0
    # The runner ended and did not run it.
    say "the runner did not come to $test:" ""
    code "$(tail -n 5 "$work/tests-$suite.log" | cut -c 1-200)"
    return 1
  done
}
tests_named() { "$tests" --list | awk '{ print $1 }' | grep -E "$1"; }
part_first() {
  local names
  need_program || return 1
  mapfile -t names < <(tests_named '^hardware')
  [ ${#names[@]} -gt 0 ] || missing "$tests has no test named hardware" || return 1
  run_tests first hardware "${names[@]}"
}
# The tests that run the program on DEVICE, or look at it; but for those of parts first and cuda.
device_tests() {
  grep -lE 'cli_small|getenv\("DEVICE"\)' dev/test/test_*.h | xargs sed -n 's/^TEST[A-Z_]*(\([a-z0-9_]*\),.*/\1/p' |
    grep -vE '^(cuda_|hardware)'
}
# Of each kind of kernel one test, and whole steps.
short_tests=(cuda_matmul_reference cuda_matmul_fp8 cuda_gelu cuda_attention_fp32 cuda_attention_bf16 cuda_embedding
  cuda_layernorm_forward cuda_layernorm_backward cuda_cross_entropy cuda_optimizers cuda_master_halves cuda_muon
  cuda_norm cuda_loss_mean cuda_step_decide cuda_convert cuda_fill cuda_fp8 cuda_absmax cuda_copies cuda_streams
  cuda_graphs cuda_matmul_tuned_bits cuda_gradients_equal_pytorch cuda_step_equals_cpu_step cuda_ranks_change_no_bit)
# The tests that run kernels and need no ranks, as the sources name them. cuda_memory looks at what others leave of the
# GPU's memory.
kernel_tests() {
  sed -n 's/^TEST(\(cuda_[a-z0-9_]*\),.*/\1/p' dev/test/test_cuda_{ops,attention,matmul,runtime}.h |
    grep -vE '_rules|_text|_libraries|_probe|_links|_known|^cuda_memory'
}
# cuda_tests NAME...: the CUDA tests of these names on the GPU: those of kernels $JOBS at a time, as each leaves most of
# the GPU idle and takes little of its memory; then those that train, one by one
cuda_tests() {
  local names status=0
  mapfile -t names < <(printf '%s\n' "$@" | grep -xF "$(kernel_tests)")
  [ ${#names[@]} -eq 0 ] || at_once=$JOBS run_tests cuda "" "${names[@]}" || status=1
  mapfile -t names < <(printf '%s\n' "$@" | grep -vxF "$(kernel_tests)")
  [ ${#names[@]} -eq 0 ] || run_tests cuda "" "${names[@]}" || status=1
  return $status
}
part_short() {
  local names
  need_program || return 1
  mapfile -t names < <(tests_named . | grep -xF "$(printf '%s\n' "${short_tests[@]}")")
  [ ${#names[@]} -gt 0 ] || missing "$tests has none of the CUDA tests" || return 1
  cuda_tests "${names[@]}"
}
part_test() {
  local names status=0
  need_program || return 1
  mapfile -t names < <(tests_named '^cuda_')
  [ ${#names[@]} -eq 0 ] || cuda_tests "${names[@]}" || status=1
  mapfile -t names < <(tests_named . | grep -xF "$(device_tests)")
  [ ${#names[@]} -eq 0 ] || run_tests device "" "${names[@]}" || status=1
  return $status
}
part_attention() {
  local names status=0
  need_program || return 1
  mapfile -t names < <(tests_named '^hardware_wgmma')
  [ ${#names[@]} -eq 0 ] || run_tests first "" "${names[@]}" || status=1
  mapfile -t names < <(tests_named '^cuda_attention' | grep -v '_all$')
  [ ${#names[@]} -gt 0 ] || missing "$tests has no test of attention" || return 1
  JOBS=8 cuda_tests "${names[@]}" && [ $status -eq 0 ]
}
# Four of each kind at most, those of a kind as they stand in the sources.
chosen_kinds=(resume offload modes eval generate interactive samples signal trace losses)
part_chosen() {
  local names kind
  need_program || return 1
  mapfile -t names < <(for kind in "${chosen_kinds[@]}"; do
    tests_named . | grep -xF "$(device_tests)" | grep "$kind" | head -n 4
  done | awk '!seen[$0]++')
  [ ${#names[@]} -gt 0 ] || missing "$tests has none of these tests" || return 1
  at_once=$([ "$memory" -ge 40000 ] && echo 8 || echo 1) run_tests device "" "${names[@]}"
}
part_host() {
  local names
  need_program || return 1
  mapfile -t names < <(tests_named . | grep -vE '^(cuda_|hardware)' | grep -vxF "$(device_tests)")
  [ ${#names[@]} -eq 0 ] || run_tests host "" "${names[@]}"
}

# ---- sanitize --------------------------------------------------------------------------------------------------------
quarter_sanitize=(cuda_cross_entropy cuda_layernorm_forward cuda_layernorm_backward cuda_matmul_reference cuda_norm
  cuda_embedding cuda_muon cuda_attention_fp32 cuda_attention_bf16 cuda_attention_bits cuda_optimizers)
# Tests of all combinations take too long here.
op_tests() { kernel_tests | grep -v '_all$'; }

# One test in its own process, without the runner's fork.
sanitize_one() {
  local tool=$1 name=$2 log=sanitize-$1-$2 item_start quiet=1 words options=() outcome
  item_start=$(now)
  # Of races only our kernels' are looked for: instrumenting cuBLAS's would take all the time.
  [ "$tool" != racecheck ] || options=(--kernel-name kns=_kernel)
  DEVICE=cuda DEVICE_ONLY=1 run 200 "$log" compute-sanitizer --tool "$tool" "${options[@]}" --target-processes all \
    --error-exitcode 66 "$tests" --run "$name" >/dev/null
  # A test that runs emulated only makes no call; one that crashed before its first says more.
  if grep -q 'terminated before first instrumented API call' "$work/$log.log" &&
    ! grep -qv '^=========' "$work/$log.log"; then outcome="EXIT 77"; fi
  case $outcome in
    "EXIT 66") outcome="FAILED: errors found" ;;
    "EXIT 77") outcome=skipped ;;
    "EXIT "*) outcome="FAILED: ${outcome,,}" ;;
  esac
  words=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|SKIP: ' "$work/$log.log" | tail -n 1 | sed 's/^=* *//' |
    cut -c 1-100)
  say "    $(printf '%-10s %-34s %4d s  %s  %s' "$tool" "$name" $(($(now) - item_start)) "$outcome" "$words")"
  [[ $outcome != FAILED* ]] || code "$(grep -E '^=========|must|rank|:[0-9]+:' "$work/$log.log" | squeeze 12)"
  [ "$outcome" = CUT ] || record "sanitize/$tool-$name" "${outcome%%:*}" "$(($(now) - item_start))" "${words:--}"
}
part_sanitize() {
  local names tool name unknown status=0
  need_program || return 1
  have compute-sanitizer || missing "compute-sanitizer is not here" || return 1
  # A test that the program does not have would seem to pass if asked for by its exact name.
  names=$("$tests" --list | awk '{ print $1 }' | grep -xF "$(tr ' ' '\n' <<<"${SANITIZE:-$(op_tests)}")")
  [ -n "$names" ] || missing "$tests has none of the op tests" || return 1
  unknown=$(tr ' ' '\n' <<<"${SANITIZE:-}" | grep -vxF "$names" | paste -sd ' ')
  [ -z "$unknown" ] || missing "$tests has no test of this name: $unknown" || status=1
  introduce "Each test as \`DEVICE=cuda DEVICE_ONLY=1 compute-sanitizer --tool TOOL --target-processes all" \
    "--error-exitcode 66 $tests --run TEST\`, $JOBS at a time; racecheck with --kernel-name kns=_kernel: of the" \
    "program's kernels."
  for tool in $TOOLS; do for name in $names; do
    want "sanitize/$tool-$name" 40 200 || continue
    sanitize_one "$tool" "$name" &
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
  done; done
  wait
  last_said=x                                  # by one of those in the background
  return $status
}

# ---- ranks -----------------------------------------------------------------------------------------------------------
train_options=(--device cuda --model gpt2 --data random --batch_size 2 --global_batch 16 --max_steps 20
  --sample_tokens 0
  --eval_every -1 --save_every -1)
# train ITEM RANKS REFERENCE OPTION...: a run, and a line on whether its losses and norms are REFERENCE's, as text.
# Where ITEM itself is REFERENCE there is nothing to compare with.
train() {
  local item=$1 np=$2 reference=$3 name=${1//\//-} start=() quiet=1 lines steps last digest item_start
  shift 3
  if [ "$np" -gt 1 ] && [ -z "${ended[$item]:-}" ] && ! have mpirun; then
    missing "$item: $np ranks, and mpirun is not here"
    no_mpirun=1
    return
  fi
  if [ "$item" != "$reference" ] && [ -z "${ended[$reference]:-}" ]; then items+=("$item"); return; fi
  want "$item" 20 150 || return 0
  [ "$np" -eq 1 ] || start=(mpirun --oversubscribe --bind-to none -np "$np")
  rm -rf "${work:?}/$name"
  item_start=$(now)
  run 150 "$name" "${start[@]}" ./train_gpt_fsdp "${train_options[@]}" --out "$work/$name" "$@"
  [ "$outcome" != CUT ] || return 0
  [ "$outcome" = ok ] || after_failure "$name"
  sed -n 's/.*"kind":"step".*"loss":\([^,]*\),.*"grad_norm":\([^,}]*\).*/\1 \2/p' "$work/$name/metrics.jsonl" \
    >"$work/$name.losses" 2>/dev/null
  mapfile -t lines <"$work/$name.losses"
  steps=${#lines[@]} last=${lines[*]: -1}
  digest=$(sha256sum <"$work/$name.losses")
  value[$item]="$steps ${digest:0:16} $last"
  if [ "$outcome" = ok ]; then
    if [ "$steps" != 20 ]; then outcome=DIFFERENT
    elif [ "${ended[$reference]:-ok}" != ok ]; then outcome="NO REFERENCE"
    elif [ "${value[$reference]:-}" != "${value[$item]}" ]; then outcome=DIFFERENT; fi
  fi
  say "    $(printf '%-67s %2d steps, last %s: %s' "${item#*/}: ranks $np, $*" "$steps" "$last" \
    "$([ "$outcome" = ok ] && echo equal || echo "$outcome")")" "        $(speed_and_memory "$name")"
  finish "$item" "${value[$item]}"
}
# speed_and_memory NAME: median tokens/s of the last ten steps, planned and taken MiB of the GPU
speed_and_memory() {
  sed -n 's/.*"tokens_per_s":\([0-9.]*\).*/\1/p' "$work/$1/metrics.jsonl" 2>/dev/null | tail -n 10 | sort -g |
    awk '{ a[NR] = $1 } END { printf "%9.0f tok/s", a[int((NR + 1) / 2)] }'
  sed -n 's/^GPU memory: \([0-9.]*\) MiB planned, \([0-9.]*\) MiB taken.*/  MiB \1 planned \2 taken/p' "$work/$1.log"
}
introduce_train() {
  introduce "\`./train_gpt_fsdp ${train_options[*]}$1\`" \
    "and what each line names. Losses and gradient norms of every step, with all digits, are compared as text with" \
    "those of $2. Speed: the median of the last ten steps."
}
part_ranks() {
  local no_mpirun=0 dtype np
  need_program || return 1
  introduce_train "" "the first line of their dtype"
  for dtype in bf16 fp32; do
    train ranks/$dtype-self 1 ranks/$dtype-self --param_dtype $dtype --comm self --graph off
    for np in 1 2 4; do train ranks/$dtype-mpi-$np $np ranks/$dtype-self --param_dtype $dtype --comm mpi; done
    train ranks/$dtype-graph 1 ranks/$dtype-self --param_dtype $dtype --comm self --graph on
    train ranks/$dtype-nccl 1 ranks/$dtype-self --param_dtype $dtype --comm nccl --graph off
    train ranks/$dtype-nccl-graph 1 ranks/$dtype-self --param_dtype $dtype --comm nccl --graph on
  done
  [ $no_mpirun -eq 0 ]
}

# Ranks share the GPU, so their kernels must all find room on it at once.
part_nccl() {
  local no_mpirun=0 names
  local -x NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=2
  [ -z "${THIN_NCCL:-}" ] || local -x LD_LIBRARY_PATH=$THIN_NCCL${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  need_program || return 1
  mapfile -t names < <(tests_named '^hardware_nccl_ranks')
  [ ${#names[@]} -eq 0 ] || run_tests first "" "${names[@]}"
  introduce_train " --param_dtype bf16" "one rank"
  train nccl/self 1 nccl/self --param_dtype bf16 --comm self --graph off
  train nccl/2 2 nccl/self --param_dtype bf16 --comm nccl --graph off
  train nccl/2-graph 2 nccl/self --param_dtype bf16 --comm nccl --graph on
  [ $no_mpirun -eq 0 ]
}

# ---- modes -----------------------------------------------------------------------------------------------------------
part_modes() {
  local no_mpirun=0 mode same np name words
  # Item, ranks, the item whose losses it must give (none: an arithmetic of its own), options.
  local modes=("plain|1||" "gelu|1|plain|--recompute gelu" "block|1|plain|--recompute block" "unit|1|plain|--wrap model"
    "dim0|1|plain|--shard dim0" "offload-optimizer|1|plain|--offload optimizer"
    "offload-params|1|plain|--offload params" "grad-op-2|2|plain|--strategy shard_grad_op"
    "no-shard-2|2|plain|--strategy no_shard" "mesh-4|4|plain|--mesh 2x2" "reshard-4|4|plain|--reshard_after_forward 2"
    "dim0-4|4|plain|--shard dim0" "offload-block-2|2|plain|--offload params --recompute block"
    "local|1||--accumulate local" "fp32-buffers|1||--buffer_dtype fp32" "freeze|1||--freeze wte,h.0.*,h.1.*"
    "fp8|1||--fp8 gather" "fp8-2|2|fp8|--fp8 gather" "fp8-matmul|1||--fp8 matmul"
    "fp8-matmul-2|2|fp8-matmul|--fp8 matmul")
  need_program || return 1
  introduce_train " --param_dtype bf16" "\`plain\`, fp8's with those of one rank"
  for mode in "${modes[@]}"; do
    IFS='|' read -r name np same words <<<"$mode"
    # shellcheck disable=SC2086  # words are options
    train "modes/$name" "$np" "modes/${same:-$name}" --param_dtype bf16 $words
  done
  [ $no_mpirun -eq 0 ]
}

# ---- bench -----------------------------------------------------------------------------------------------------------
# batch_of MODEL: sequences of 1024 tokens; those of dev/bench.sh are for 141 GB
batch_of() {
  local batch=64 room=130000
  case $1 in gpt2-xl | gpt2-large) batch=16 ;; gpt2-medium) batch=32 ;; esac
  while [ "$memory" -lt $room ] && [ $batch -gt 1 ]; do batch=$((batch / 2)) room=$((room / 2)); done
  echo "${BATCH:-$batch}"
}
# bench ITEM NEED LIMIT MODEL VARIABLE=VALUE...: one round of one model
bench() {
  local item=$1 need=$2 limit=$3 model=$4 name=${1//\//-} item_start rates
  shift 4
  want "$item" "$need" "$limit" || return 0
  item_start=$(now)
  run "$limit" "$name" env DEVICE=cuda MODELS="$model" ROUNDS=1 BATCH="$(batch_of "$model")" "$@" \
    OUT="$work/$name-runs" dev/bench.sh speed
  code "$(squeeze 40 <"$work/$name.log")"
  # Of the table's line: tokens/s of both, and PyTorch's form.
  rates=$(awk -v model="$model" '$1 == model && $2 ~ /^(bf|fp)/ && $5 > 0 {
    print $5, (NF > 12 ? $8 " " $12 " " $13 : "-") }' "$work/$name.log")
  [ "$outcome" != ok ] || [ -n "$rates" ] || outcome="NO RATE"
  finish "$item" "$rates"
}
# The medians of the rounds that are there.
bench_medians() {
  local model item
  for model in $MODELS; do
    for item in "${!ended[@]}"; do
      if [[ $item =~ ^bench/$model-[0-9]+$ ]] && [ "${ended[$item]}" = ok ]; then echo "${value[$item]}"; fi
    done | sort -g | awk -v model="$model" '
      function median(a, n) { return (a[int((n + 1) / 2)] + a[int(n / 2) + 1]) / 2 }
      function sort(a, n,  i, j, t) {
        for (i = 2; i <= n; i++)
          for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t } }
      { ours[++n] = $1 } $2 > 0 { torch[++m] = $2 }
      END { sort(ours, n); sort(torch, m)
        if (n) printf "%s: train_gpt_fsdp %.0f tokens/s, median of %d rounds", model, median(ours, n), n
        if (n && m) printf "; PyTorch %.0f of %d; ratio %.2f", median(torch, m), m, median(ours, n) / median(torch, m)
        if (n) print "" }'
  done
}
# bench_rounds FROM TO. On one GPU no gradient travels. --reduce_dtype bf16 would round it all the same, and then it is
# not written where the optimizer reads it.
bench_rounds() {
  local model round to=$2 form seconds
  need_program || return 1
  for ((round = $1; round <= to; round++)); do
    for model in $MODELS; do
      # Which form of bf16 is PyTorch's faster is decided in the first round.
      form=
      [[ ! ${value[bench/$model-1]:-} =~ bf16\ [a-z]+ ]] || form=${BASH_REMATCH[0]}
      seconds=(90 300)
      [ "$model" != gpt2-xl ] || seconds=(200 500)
      bench "bench/$model-$round" "${seconds[@]}" "$model" PROGRAM_OPTIONS=--tune FORM="$form"
    done
    # What the options gain: the program alone, with none.
    [ $round -gt 1 ] || for model in $MODELS; do bench "bench/$model-plain" 40 200 "$model" PYTHON=false; done
  done
  [ ${#intro[@]} -gt 0 ] || code "$(bench_medians)"
}
part_bench() { bench_rounds 1 1; }
part_rounds() { bench_rounds 2 "$ROUNDS"; }

# ---- ops, plans, models, torch ---------------------------------------------------------------------------------------
# show ITEM NEED LIMIT COMMAND...: a command whose output is the item's result
show() {
  local item=$1 limit=$3 name=${1//\//-} item_start
  want "$item" "$2" "$limit" || return 0
  shift 3
  item_start=$(now)
  run "$limit" "$name" "$@"
  code "$(squeeze 90 <"$work/$name.log")"
  finish "$item"
}
part_ops() {
  [ -x build/bench_ops ] || missing "build/bench_ops is not built" || return 1
  show ops/table 20 120 build/bench_ops gpu
  [ ! -x build/bench_ops_queries32 ] || show ops/queries32 20 120 build/bench_ops_queries32 gpu
  show ops/torch 20 60 "$PYTHON" dev/bench_attention.py
}
quarter_models=("gpt2 32" "gpt2-xl 8" "gpt2-xl 16" "smollm2-135m 16" "qwen3-0.6b 8")
part_plans() {
  local line
  need_program || return 1
  if [ -n "${PLANS:-}" ]; then
    show plans/command 20 200 bash -c "$PLANS"
    return
  fi
  for line in "${quarter_models[@]:0:2}" "${quarter_models[@]:3}"; do
    set -- $line
    show "plans/$1" 10 60 build/bench_ops candidates --model "$1" --batch_size "$2" --seq_len 1024 --param_dtype bf16 \
      --data random
  done
}
part_models() {
  local line dtype
  need_program || return 1
  for line in "${quarter_models[@]}"; do
    set -- $line
    for dtype in fp32 bf16; do
      bench "models/$1-$2-$dtype" 15 120 "$1" BATCH="$2" STEPS=8 PYTHON=false \
        PROGRAM_OPTIONS="--logits_dtype $dtype ${MODEL_OPTIONS---tune=any}"
    done
  done
}
# The process compiles and makes its first steps, and waits for the gate before those that count.
ahead=""
part_ahead() {
  [ -z "$ahead" ] && [ -z "${ended[torch/gpt2-xl-8]:-}" ] || return 0
  rm -f "$work/gate"
  GPU_DAY_ITEM=$work:ahead: GATE=$work/gate "$PYTHON" dev/bench_pytorch.py --device cuda --model gpt2-xl \
    --dtype bf16 --compile --form "bf16 params" --attention cudnn --seq_len 1024 --global_batch 8 --steps 12 \
    >"$work/ahead.json" 2>"$work/ahead.err" &
  ahead=$!
}
# PyTorch alone; its tokens/s are the item's value.
torch_alone() {
  local model=$1 batch=$2 item=torch/$1-$2 item_start
  shift 2
  want "$item" 20 200 || return 0
  item_start=$(now)
  run 200 "${item//\//-}" "$@"
  code "$(squeeze 10 <"$work/${item//\//-}.log")"
  finish "$item" "$(sed -n 's/.*"tokens_per_s": *\([0-9.]*\).*/\1/p' "$work/${item//\//-}.log" | tail -n 1)"
}
part_torch() {
  local line fp32 bf16 torch
  need_program || return 1
  [ -n "${ended[torch/gpt2-xl-8]:-}" ] || part_ahead
  # shellcheck disable=SC2016  # for the shell that runs it
  torch_alone gpt2-xl 8 bash -c 'touch "$2/gate"; while kill -0 "$1"; do sleep 0.2; done 2>/dev/null
    tail -n 3 "$2/ahead.err"; cat "$2/ahead.json"; [ -s "$2/ahead.json" ]' - "${ahead:-0}" "$work"
  for line in "${quarter_models[@]}"; do
    set -- $line
    [ "$line" = "gpt2-xl 8" ] || torch_alone "$1" "$2" "$PYTHON" dev/bench_pytorch.py --device cuda --model "$1" \
      --dtype bf16 --compile --form "bf16 params" --attention cudnn --seq_len 1024 --global_batch "$2" --steps 12
  done
  [ ${#intro[@]} -eq 0 ] || return 0
  code "$(printf '%-14s %5s %11s %11s %11s %6s %6s\n' model batch "logits fp32" "logits bf16" PyTorch ratio ratio
    for line in "${quarter_models[@]}"; do
      set -- $line
      fp32=${value[models/$1-$2-fp32]:-} bf16=${value[models/$1-$2-bf16]:-} torch=${value[torch/$1-$2]:-}
      echo "$1 $2 ${fp32%% *} ${bf16%% *} $torch"
    done | awk '{ printf "%-14s %5d %11s %11s %11s", $1, $2, $3, $4, $5
      if ($5 + 0) printf " %6.2f %6.2f", $3 / $5, $4 / $5
      print "" }')"
}

# ---- profile ---------------------------------------------------------------------------------------------------------
build_peaks() {
  local includes=(-I.)
  [ ! -x build/gpu_peaks ] || return 0
  have nvcc || missing "nvcc (CUDA_HOME=$CUDA_HOME)" || return 1
  [ -z "${NCCL_HOME:-}" ] || includes+=("-I$NCCL_HOME/include")
  run 120 peaks-build nvcc -std=c++17 -O3 -arch=native "${includes[@]}" dev/gpu_peaks.cu -o build/gpu_peaks -ldl ||
    { after_failure peaks-build; return 1; }
}
measure_peaks() {
  local item_start
  if want profile/peaks 60 240; then
    item_start=$(now)
    if build_peaks; then run 120 peaks build/gpu_peaks || after_failure peaks; fi
    [ "$outcome" != ok ] || code "$(cat "$work/peaks.log")"
    finish profile/peaks "$(grep . "$work/peaks.log" 2>/dev/null | tr '\n' ';')"
  elif [ "${ended[profile/peaks]:-}" = ok ]; then tr ';' '\n' <<<"${value[profile/peaks]}" >"$work/peaks.log"; fi
}
# profile NAME NCU_OPTION COMMAND...: the table of the command's kernels
profile() {
  local name=ncu-$1 option=$2 peak=avg.pct_of_peak_sustained_elapsed metrics always more flops item_start
  want "profile/$1" 60 400 || return 0
  item_start=$(now)
  shift 2
  always=gpu__time_duration.sum,dram__bytes.sum.per_second,launch__registers_per_thread
  flops=sm__ops_path_tensor_src_bf16_dst_fp32.sum
  more=dram__throughput.$peak,sm__pipe_tensor_cycles_active.$peak
  # Names of counters differ between chips; where one is not known the others are measured.
  for metrics in $always,$more,$flops $always,$more $always; do
    rm -f "$work/$name.csv"
    run 240 "$name" ncu --target-processes application-only --clock-control none --metrics "$metrics" --csv --page raw \
      --print-units base --log-file "$work/$name.csv" "$option" "$@"
    [ "$outcome" != CUT ] || return 0
    ! kernel_table "$work/$name.csv" >"$work/$name.table" || break
  done
  if [ -s "$work/$name.table" ]; then code "$(cat "$work/$name.table")"
  else
    code "$(grep -hE '^==|ERR' "$work/$name.csv" "$work/$name.log" 2>/dev/null | squeeze 10)"
    [ "$outcome" != ok ] || outcome="NO TABLE"
  fi
  finish "profile/${name#ncu-}"
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
  local model
  need_program || return 1
  measure_peaks
  have ncu || missing "ncu is not here" || return 1
  # One kernel whose operations are known: what ncu's counters are worth.
  if [ -n "${ended[profile/peaks-mma]:-}" ] || [ "$(left)" -le 0 ] || build_peaks; then
    profile peaks-mma --kernel-name=peak_mma_kernel build/gpu_peaks
  fi
  # Two steps of two blocks launch every kernel in the shapes of the whole model, but of 4096 rows: ncu runs each one
  # several times, and gives back in between what it has written; with 32768 rows 108 s were not enough.
  for model in $MODELS; do profile_model "$model" 4000 4; done
}
# profile_model MODEL LAUNCHES BATCH
profile_model() {
  profile "$1" --launch-count="$2" ./train_gpt_fsdp --device cuda --model "$1" --n_layer 2 --batch_size "$3" \
    --param_dtype bf16 --reduce_dtype bf16 --data random --graph off --max_steps 2 --sample_tokens 0 --eval_every -1 \
    --save_every -1 --out "$work/ncu-$1"
}
part_kernels() {
  local model
  need_program || return 1
  have ncu || missing "ncu is not here" || return 1
  for model in gpt2-xl smollm2-135m qwen3-0.6b; do profile_model "$model" 400 4; done
}

# ---- gpus ------------------------------------------------------------------------------------------------------------
part_gpus() {
  local no_mpirun=0 dtype np mode name words
  local modes=("grad-op-2|2|--strategy shard_grad_op" "no-shard-2|2|--strategy no_shard" "native-2|2|--reduce native"
    "mesh-4|4|--mesh 2x2" "reshard-4|4|--reshard_after_forward 2" "dim0-4|4|--shard dim0" "mesh-8|8|--mesh 2x4")
  [ "$gpus" -ge 2 ] || { skipped gpus 2; return 0; }
  need_program || return 1
  introduce_train "" "one rank; with --reduce native, which sums in NCCL's order, only speed and memory count"
  for dtype in bf16 fp32; do
    train ranks/$dtype-self 1 ranks/$dtype-self --param_dtype $dtype --comm self --graph off
    for np in 2 4 8; do
      [ "$gpus" -ge $np ] || { skipped gpus/$dtype-$np $np; continue; }
      train gpus/$dtype-$np $np ranks/$dtype-self --param_dtype $dtype --comm nccl --graph off
      train gpus/$dtype-$np-graph $np ranks/$dtype-self --param_dtype $dtype --comm nccl --graph on
    done
  done
  for mode in "${modes[@]}"; do
    IFS='|' read -r name np words <<<"$mode"
    [ "$gpus" -ge "$np" ] || { skipped "gpus/$name" "$np"; continue; }
    # shellcheck disable=SC2086  # words are options
    train "gpus/$name" "$np" "$([[ $name == native* ]] && echo "gpus/$name" || echo ranks/bf16-self)" \
      --param_dtype bf16 --comm nccl $words
  done
  for name in $MODELS; do
    bench "gpus/bench-$name" 200 500 "$name" PROGRAM_OPTIONS="--tune --reduce_dtype bf16" RANKS="$gpus" \
      BATCH=$(($(batch_of "$name") * gpus))
  done
  [ $no_mpirun -eq 0 ]
}

# ---- carry -----------------------------------------------------------------------------------------------------------
# carry DIR: OpenMPI, hwloc, cJSON, OpenSSL of this machine's distribution, unpacked, not installed, with libraries they
# need beyond those of every Debian and Ubuntu, and without plugins for networks between hosts
carry() {
  local dir=$1 tool packages package lib headers
  for tool in apt-get dpkg; do have $tool || refuse 3 "carry: '$tool' is not here: it needs Debian or Ubuntu"; done
  mkdir -p "$dir" || exit 1
  dir=$(cd "$dir" && pwd)
  [ -z "$(ls -A "$dir")" ] || refuse 2 "carry: $dir is not empty"
  # All that a machine on which nothing is installed would get, of which these names.
  packages=$(apt-get -s -o Dir::State::status=/dev/null install --no-install-recommends openmpi-bin libopenmpi-dev \
    libhwloc-dev libcjson-dev libssl-dev 2>/dev/null | awk '/^Inst/ { print $2 }' |
    grep -E '^(openmpi-|libopenmpi|lib(cjson|ssl|munge)|libevent-(core|pthreads)|libhwloc(-dev|[0-9])|libpmix[0-9])')
  [ -n "$packages" ] || refuse 3 "carry: apt-get knows no openmpi-bin: apt-get update"
  mkdir "$dir/debs"
  # shellcheck disable=SC2086  # names
  (cd "$dir/debs" && apt-get -qq -o APT::Sandbox::User=root download $packages) ||
    refuse 3 "carry: apt-get could not download $(tr '\n' ' ' <<<"$packages")"
  for package in "$dir"/debs/*.deb; do dpkg -x "$package" "$dir" || exit 1; done
  lib=$(find "$dir/usr/lib" -name 'libopen-pal.so.*' -printf '%h\n' -quit)
  [ -n "$lib" ] || refuse 3 "carry: no libopen-pal.so in $(tr '\n' ' ' <<<"$packages")"
  rm -rf "$dir"/debs "$dir"/usr/share/{doc,man,bug,lintian} "$lib"/fortran "$lib"/liboshmem*
  rm -f "$lib"/libhwloc.a
  # What is for other networks and for OpenSHMEM asks for more libraries.
  rm -f "$lib"/libmca_common_{ofi,ucx,verbs}.so* "$dir"/usr/bin/osh*
  find "$lib/openmpi" -name '*.so' -printf '%f\t%p\n' |
    awk '/^(mca_(spml|scoll|sshmem|atomic|memheap)_|(lib)?mca_.*_(ofi|psm2?|ucx|verbs|usnic|openib|netlink)\.so)/ {
      print $2 }' | xargs rm -f
  ln -sf orterun "$dir/usr/bin/mpirun"
  ln -sf opal_wrapper "$dir/usr/bin/mpicc"
  mkdir "$dir/cjson"
  ln -s ../usr/include "$dir/cjson/include"
  ln -s "../${lib#"$dir/"}" "$dir/cjson/lib"
  # Some distributions keep a header in a directory of their architecture.
  mkdir -p "$dir/hwloc/include"
  for headers in "$dir"/usr/include/hwloc* "$dir"/usr/include/*/hwloc; do
    [ ! -e "$headers" ] || cp -r "$headers" "$dir/hwloc/include/"
  done
  ln -s "../${lib#"$dir/"}" "$dir/hwloc/lib"
  # Away from the other libraries: programs of the machine there must not find this one in LD_LIBRARY_PATH.
  mkdir -p "$dir/openssl/include" "$dir/openssl/lib"
  for headers in "$dir"/usr/include/openssl "$dir"/usr/include/*/openssl; do
    [ ! -e "$headers" ] || cp -r "$headers" "$dir/openssl/include/"
  done
  mv "$lib"/libcrypto.so* "$dir/openssl/lib/"
  rm -rf "$lib"/libssl* "$lib"/libcrypto* "$lib"/ossl-modules "$lib"/engines-* "$dir"/usr/include/{,*/}openssl
  echo "carry: $(wc -w <<<"$packages") packages, $(du -sm "$dir" | cut -f 1) MB in $dir"
}

# ---- a rehearsal -----------------------------------------------------------------------------------------------------
# A tree of this script, what it reads, and stand-ins for what only a machine with a GPU has. They start the programs.
rehearse() {
  local root=$PWD tree=$PWD/build/rehearsal name
  local stand_ins=(bin/{make,nvidia-smi,ncu,compute-sanitizer,nvcc,python3} build/{test_gpt_fsdp,bench_ops})
  [[ $REHEARSE =~ ^h[12]00$ ]] || refuse 2 "REHEARSE=$REHEARSE: h100 or h200"
  make build/emulated/{train_gpt_fsdp,test_gpt_fsdp,bench_ops} || exit 1
  rm -rf "$tree"
  mkdir -p "$tree"/{bin,build,fake,dev/test}
  cp dev/{gpu_day,bench}.sh "$tree/dev"
  cp dev/test/test_*.h "$tree/dev/test"
  for name in "${stand_ins[@]}" train_gpt_fsdp; do ln -s "$root/dev/test/gpu_stand_in.sh" "$tree/$name"; done
  EMULATED=$root/build/emulated REHEARSED=$REHEARSE REHEARSE="" FAKE=$tree/fake PATH=$tree/bin:$PATH CUDA_HOME=$tree \
    PYTHON=$tree/bin/python3 OUT=$tree/out FROM="" "$tree/dev/gpu_day.sh" "$@"
}

# ---- one after the other ---------------------------------------------------------------------------------------------
if [ "${1:-}" = carry ]; then
  [ $# -eq 2 ] || refuse 2 "carry takes one directory"
  carry "$2"
  exit
fi
if [ -n "${REHEARSE:-}" ]; then
  rehearse "$@"
  exit
fi
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=("${all_parts[@]}")
if [ "${1:-}" = quarter ] && [ $# -eq 1 ]; then
  parts=("${quarter_parts[@]}")
  TOOLS=racecheck JOBS=14
  SANITIZE=${SANITIZE:-${quarter_sanitize[*]}}
fi
for part in "${parts[@]}"; do
  [[ " ${all_parts[*]} ${quarter_parts[*]} " == *" ${part%%=*} "* && $part =~ ^[a-z]+(=[1-9][0-9]*)?$ ]] ||
    refuse 2 "parts are ${all_parts[*]}, with or without =SECONDS, or carry DIR; not '$part'"
done
[[ $LIMIT =~ ^[0-9]+$ ]] && { [ "$LIMIT" -eq 0 ] || [ "$LIMIT" -gt $RESERVE_S ]; } ||
  refuse 2 "LIMIT=$LIMIT: seconds, more than $RESERVE_S, or 0"
began=$(now)
end=$((began + (LIMIT ? LIMIT - RESERVE_S : 10 ** 9))) deadline=$end
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$gpu" ] || refuse 3 "no GPU: nvidia-smi shows none"
slug=$(tr -cs 'A-Za-z0-9\n' '-' <<<"${gpu#NVIDIA }")
gpus=$(nvidia-smi -L 2>/dev/null | grep -c .)
memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | grep -m 1 -oE '^[0-9]+')
memory=${memory:-0}
today=$(date -u +%F)
given=${OUT:-} OUT=${OUT:-dev/results}
mkdir -p "$OUT" "$work" || exit 1
OUT=$(cd "$OUT" && pwd)
name=$today-$slug.md
# Two calls at once would end each other's runs.
other=$(cat "$work/pid" 2>/dev/null)
[ -z "$other" ] || ! grep -qz gpu_day "/proc/$other/cmdline" 2>/dev/null || refuse 1 "process $other is running it"
echo $$ >"$work/pid"
kill_rest ""                                   # what a call that was killed left running
# What earlier calls found: here, else where FROM says, else in OUT.
if [ -n "$given" ]; then
  for from in "${FROM:-}" "$OUT"; do
    for file in "$name" journal.tsv; do
      [ -z "$from" ] || [ -s "$work/$file" ] || [ ! -s "$from/$file" ] || cp "$from/$file" "$work/$file" || exit 1
    done
  done
  report=$work/$name reports=("$work/$name" "$OUT/$name") journals=("$journal" "$OUT/journal.tsv")
  [ ! -s "$report" ] || cp "$report" "$OUT/$name" || exit 1
  [ ! -s "$journal" ] || cp "$journal" "$OUT/journal.tsv" || exit 1
else
  report=$OUT/$name reports=("$OUT/$name") journals=("$journal")
fi
touch "$journal"
journal_before=$(grep -c '' "$journal")
find_libraries
find_program
load_journal
# Clocks, power and use of every two seconds. It ends automatically, too, where this script was killed.
dmon=""
if [ -n "$given" ]; then
  nvidia-smi dmon -o T -s pucm -d 2 -c $((LIMIT ? LIMIT / 2 : 18000)) >>"$OUT/dmon.log" 2>&1 &
  dmon=$!
fi
begun="" packed=0 outcome=ok failed=() waiting=() intro=() last_said=""
[ -s "$report" ] || describe_device
commit=${COMMIT:-$(git describe --always --dirty 2>/dev/null || echo unknown)}
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
say "## Call of $(date -u '+%F %H:%M UTC')" "" \
  "\`LIMIT=$LIMIT dev/gpu_day.sh ${parts[*]}\`; commit $commit; $gpu, driver $driver;" \
  "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), $(nproc) cores." \
  "${#ended[@]} items had ended before; built before: $program"
for part in "${parts[@]}"; do
  started=$(now) items=() good=() bad=() open=() status=0
  deadline=$end
  [[ $part != *=* ]] || [ $((started + ${part#*=})) -ge "$end" ] || deadline=$((started + ${part#*=}))
  part_s=$((deadline - began))                 # what a part can have at most
  [[ $part != *=* ]] || part_s=$((deadline - started))
  part=${part%%=*}
  intro=()
  introduce "" "### $part"
  "part_$part" || status=1
  load_journal
  for item in $(printf '%s\n' "${items[@]}" | sort -u); do
    case ${ended[$item]:-} in
      "") open+=("$item") ;;
      ok | skipped) good+=("$item") ;;
      *) bad+=("$item (${ended[$item]})") ;;
    esac
  done
  [ $status -eq 0 ] && [ ${#bad[@]} -eq 0 ] || failed+=("$part")
  waiting+=("${open[@]}")
  line="$part: ${#good[@]} items well"
  [ $status -eq 0 ] || line="$part: FAILED; ${#good[@]} items well"
  [ ${#bad[@]} -eq 0 ] || line+=", ${#bad[@]} not: ${bad[*]}"
  [ ${#open[@]} -eq 0 ] || line+=", ${#open[@]} left for another call: $(cut -c 1-200 <<<"${open[*]}")"
  [ -z "$last_said" ] || [ ${#intro[@]} -gt 0 ] || say ""
  say "$line; $(($(now) - started)) s"
done
say "" "Parts: ${parts[*]}. Failed: ${failed[*]:-none}. Left for another call: ${#waiting[@]} items." \
  "$(($(now) - began)) s."
pack
[ -z "$ahead" ] || kill_rest ahead:
[ -z "$dmon" ] || kill "$dmon" 2>/dev/null
rm -f "$work/pid"
echo "report: $OUT/$name"
[ ${#failed[@]} -eq 0 ] || exit 1
[ ${#waiting[@]} -eq 0 ] || exit 4
