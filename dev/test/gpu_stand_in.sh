#!/usr/bin/env bash
# Stands in for what a machine with a GPU has, so that test_gpu_day.h can run dev/gpu_day.sh without one: links to this
# script bear the names of the programs. $FAKE is a directory:
#   clock         seconds; with it no time passes but what stand-ins say they take (one at a time), else time is real
#   ran           a line for each thing that was run
#   disk          MB that the tree held when a training run ended
#   environment   what mpirun saw of OpenMPI's variables
#   hang.NAME, block.NAME, differ.NAME, fail.NAME   files that make the item or test NAME do so; one that hangs also
#                 leaves a process in a session of its own
# In a rehearsal (REHEARSE of dev/gpu_day.sh) $EMULATED is a directory of the real programs, whose GPU is the emulator:
# they run in place of the stand-ins for them, the trainer at small sizes.
set -u

me=${0##*/}
item=${GPU_DAY_ITEM:-} item=${item%:} item=${item##*:}
real() { "$(command -pv "$1")" "${@:2}"; }
took() { [ -z "${FAKE_TOOK:-}" ] || echo "$1" >>"$FAKE_TOOK"; }
ran() { echo "$*" >>"$FAKE/ran"; }
has() { [[ " $1 " == *" $2 "* ]]; }
# after NAME ARG...: the argument that follows NAME
after() {
  local name=$1
  while [ $# -gt 1 ]; do
    shift
    if [ "$1" = "$name" ]; then echo "${2:-}"; return; fi
  done
}
# command_in ARG...: from the first word on that is a program of the tree
command_in() {
  while [ $# -gt 0 ] && [[ ! ${1##*/} =~ ^(train_gpt_fsdp|test_gpt_fsdp|gpu_peaks)$ ]]; do shift; done
  [ $# -eq 0 ] || "$@"
}
misbehave() {
  if [ -e "$FAKE/hang.$1" ]; then
    setsid sleep 1000 &
    [ ! -e "$FAKE/clock" ] || { took 1000000; exit 137; }
    sleep 1000
  fi
  if [ -e "$FAKE/block.$1" ]; then touch "$FAKE/blocked"; sleep 1000; fi
}

run_timeout() {
  local limit start seconds more status
  [ -e "$FAKE/clock" ] || { real timeout "$@"; exit; }
  while [[ $1 == -* ]]; do shift 2; done
  limit=$1 seconds=0
  export FAKE_TOOK=$FAKE/took FAKE_LIMIT=$limit
  : >"$FAKE_TOOK"
  "${@:2}"
  status=$?
  while read -r more; do seconds=$((seconds + more)); done <"$FAKE_TOOK"
  [ "$seconds" -le "$limit" ] || seconds=$limit status=137
  read -r start <"$FAKE/clock"
  echo $((start + seconds)) >"$FAKE/clock"
  exit $status
}

# fits ARG...: fails where the trainer rejects this command line, or its plan does not fit into the rehearsed GPU
fits() {
  local plan words=()
  while [ $# -gt 0 ]; do
    case $1 in
      --tune* | --no_tune) ;;                  # what --plan does not go with; the run itself has it
      --plans | --out | --comm) shift ;;
      *) words+=("$1") ;;
    esac
    shift
  done
  words+=(--plan --on "$REHEARSED" --world "${OMPI_COMM_WORLD_SIZE:-1}")
  plan=$(env -i HOME=/ PATH="$PATH" "$EMULATED/train_gpt_fsdp" "${words[@]}" 2>&1) &&
    grep -q 'this plan .*: fits$' <<<"$plan" && return
  echo "rehearsal: no plan that fits: ${words[*]}"
  tail -n 5 <<<"$plan"
  return 1
}
# rehearse PROGRAM ARG...: a program on the emulator, a model's command line at a small size
rehearse() {
  local program=$1 model words=() layers=2
  shift
  model=$(after --model "$@")
  if [ -n "$model" ]; then
    if [ "$1" = candidates ]; then words=("$1"); shift; fi
    [ "${OMPI_COMM_WORLD_RANK:-0}" != 0 ] || fits "$@" || exit 1
    while [ $# -gt 0 ]; do
      case $1 in
        --seq_len | --vocab_size | --n_layer | --batch_size) shift ;;
        --global_batch) layers=3; words+=(--global_batch 8); shift ;;         # of two all stay whole anyway
        *) words+=("$1") ;;
      esac
      shift
    done
    set -- "${words[@]}" --batch_size 1 --seq_len 32 --vocab_size 257 --n_layer $layers --n_embd 64 --n_head 1
    [[ $model == gpt2* ]] || set -- "$@" --n_kv_head 1 --mlp_width 128
  fi
  # One GPU; two for ranks over NCCL, whose emulated version takes no two on one.
  [[ $item == nccl* || $item == gpus* ]] || export EMU_DEVICES=1
  EMU_CAPABILITY=90 exec "$EMULATED/$program" "$@"
}

train() {
  [ -z "${EMULATED:-}" ] || rehearse train_gpt_fsdp "$@"
  local out seconds=15 arithmetic option name
  if [ "${1:-}" = --version ]; then echo "train_gpt_fsdp 1.2.3 (stand-in)"; return; fi
  ran "$item"
  misbehave "$item"
  local -A given=()
  for option; do
    [[ $option != --* ]] || name=$option
    given[$name]=$option
  done
  out=${given[--out]}
  [ "${given[--model]}" != gpt2-xl ] || seconds=60
  took $seconds
  for option in --param_dtype --accumulate --buffer_dtype --freeze --fp8; do arithmetic+=" ${given[$option]:-}"; done
  [ ! -e "$FAKE/differ.$item" ] || arithmetic+=" and more"
  mkdir -p "$out"
  awk -v steps="${given[--max_steps]}" -v arithmetic="$arithmetic" -v q='"' 'BEGIN {
    for (i = 1; i <= length(arithmetic); i++)
      seed = (31 * seed + index("abcdefghijklmnopqrstuvwxyz0123456789.*,", substr(arithmetic, i, 1))) % 1000003
    print "{" q "kind" q ":" q "run" q "," q "total" q ":1000}"
    form = "{@kind@:@step@,@step@:%d,@loss@:%.9f,@lr@:1,@grad_norm@:%.9f,@tokens_per_s@:%d,@mfu@:0.5}\n"
    gsub("@", q, form)
    for (i = 1; i <= steps; i++)
      printf form, i, 11 - i / 100 + seed / 1e9, seed / 1e6, 1000 + i }' >"$out/metrics.jsonl"
  echo "GPU memory: 100 MiB planned, 90 MiB taken"
  [ "${given[--save_every]:-}" = -1 ] || { mkdir -p "$out/ckpt"; truncate -s 1500M "$out/ckpt/model"; }
  du -sm --apparent-size . >>"$FAKE/disk"
}

names="$(printf 'hardware_%s ' {a..d})cuda_norm cuda_gelu cuda_adamw $(printf 'cli_%d ' {10..29})cuda_norm_all"
run_tests() {
  local name wanted seconds=0
  if [ -n "${EMULATED:-}" ]; then
    cd "$EMULATED/../.." || exit 1
    [ "$item" != device ] || export EMU_DEVICES=1
    # Without the stand-ins.
    PATH=${PATH//"${FAKE%fake}bin:"/} TRAIN_GPT_FSDP=$EMULATED/train_gpt_fsdp exec "$EMULATED/test_gpt_fsdp" "$@"
  fi
  case ${1:-} in
    --list) printf '%-44s what must hold\n' ${names% *}; return ;;
    --run) ran "$item $2"; misbehave "$2"; [ ! -e "$FAKE/fail.$2" ]; return ;;
  esac
  for name in $names; do
    for wanted; do
      if [[ $wanted == =* ]]; then [ "${wanted#=}" = "$name" ] || continue
      elif [[ $name != *$wanted* ]]; then continue; fi
      seconds=$((seconds + 8))
      took 8
      [ $seconds -le "${FAKE_LIMIT:-1000000}" ] || return 137
      ran "$item $name"
      misbehave "$name"
      if [ -e "$FAKE/fail.$name" ]; then
        printf 'FAILED  %s (8.0 s, 0.2 s of CPU)\n    what %s said\n' "$name" "$name"
      else printf 'ok      %s (8.0 s, 0.2 s of CPU)\n' "$name"; fi
      break
    done
  done
}

case $me in
  timeout) run_timeout "$@" ;;
  train_gpt_fsdp) train "$@" ;;
  test_gpt_fsdp) run_tests "$@" ;;
  make)
    if has "$*" all; then
      took 150
      mkdir -p build
      ln -sf "$FAKE/../bin/make" train_gpt_fsdp
      ln -sf "$FAKE/../bin/make" build/test_gpt_fsdp
      ln -sf "$FAKE/../bin/make" build/bench_ops
    else
      for word; do [[ $word != *=* ]] || export "${word?}"; done           # as make does
      build/test_gpt_fsdp $T
    fi ;;
  compute-sanitizer)
    [ "$*" != --version ] || { echo "Version 1.2"; exit; }
    took 50
    command_in "$@" || exit $(($? == 77 ? 77 : 66))
    echo "========= ERROR SUMMARY: 0 errors" ;;
  ncu)
    [ "$*" != --version ] || { echo "Version 1.2"; exit; }
    took 100
    printf '%s\n' '"Kernel Name","gpu__time_duration.sum","dram__bytes.sum.per_second"' \
      '"a_kernel<bf16>(int)","1000","1e12"' >"$(after --log-file "$@")"
    command_in "$@" ;;
  nvcc)
    [ "$*" != --version ] || { echo "release 13.0"; exit; }
    took 25
    ln -sf "$FAKE/../bin/make" "$(after -o "$@")" ;;
  bench_ops)
    [ -z "${EMULATED:-}" ] || rehearse bench_ops "$@" $([ "$1" != gpu ] || echo small)
    ran "$item $*"
    [ "$1" != candidates ] || { echo "0.1 ms bits 0 equal a stand-in's algorithm"; exit; }
    echo "a stand-in's op 7.0 us" ;;
  gpu_peaks)
    took 20
    ran "$item"
    printf '%s\n' "memory_copy 3000 GB/s" "gemm_bf16 700 TFLOP/s" "mma_bf16 600 TFLOP/s" ;;
  mpirun)
    [ "$*" != --version ] || { echo "mpirun (Open MPI) 4.1.4"; exit; }
    took 20
    env | sed -nE "s|${FAKE%/fake}|ROOT|g
      /^(OPAL_PREFIX|PMIX_PKGLIBDIR|(HWLOC|CJSON|OPENSSL)_HOME|LD_LIBRARY_PATH)=/p" \
      >"$FAKE/environment"
    command_in "$@" ;;
  python3)
    case $* in
      *bench_pytorch.py*)
        ran "$item PyTorch $(after --model "$@") $(after --form "$@")"
        took 150
        echo '{"model": "m", "form": "bf16 autocast compiled", "tokens_per_s": 900, "peak_gib": 1.5}' ;;
      *bench_attention.py*) echo "a stand-in's attention 7.0 us" ;;
      *"import torch"*) echo 2.11.0 ;;
      -*nvidia*) exit 1 ;;
      *) if command -pv python3 >/dev/null; then real python3 "$@"; else echo "a_kernel<bf16>"; fi ;;
    esac ;;
  nvidia-smi)
    case $* in
      -L) for ((i = 0; i < ${FAKE_GPUS:-1}; i++)); do echo "GPU $i: Stand-in"; done ;;
      *=name,*) echo "NVIDIA ${REHEARSED:-Stand In}, 1.2, 700 W" ;;
      *=name*) echo "NVIDIA ${REHEARSED:+rehearsal of }${REHEARSED:-Stand In}" ;;
      *=memory.total*) if [ "${REHEARSED:-}" = h200 ]; then echo 143771; else echo 81559; fi ;;
      *) echo 1 ;;
    esac ;;
  apt-get)
    names=(libc6 libopenmpi3 openmpi-bin libx11-6 libhwloc-dev libcjson1 libpmix2 libicu72 libssl-dev)
    if has "$*" -s; then printf 'Inst %s (1.2)\n' "${names[@]}"
    else while [ "$1" != download ]; do shift; done; touch "${@/%/.deb}"; rm download.deb; fi ;;
  dpkg)
    lib=$3/usr/lib/machine
    case $2 in
      *libopenmpi3*)
        mkdir -p "$lib/openmpi/lib/openmpi3"
        touch "$lib/libopen-pal.so.40" "$lib"/openmpi/lib/openmpi3/mca_btl_{ofi,tcp}.so ;;
      *openmpi-bin*) mkdir -p "$3/usr/bin"; ln -sf "$FAKE/../bin/make" "$3/usr/bin/orterun" ;;
      *libhwloc-dev*)
        mkdir -p "$lib" "$3"/usr/include/{,machine/}hwloc
        touch "$lib/libhwloc.a" "$3"/usr/include/{hwloc.h,hwloc/bitmap.h,machine/hwloc/config.h} ;;
      *libpmix2*) mkdir -p "$lib/pmix2/lib/pmix" ;;
      *libssl-dev*)
        mkdir -p "$lib/ossl-modules" "$3"/usr/include/{,machine/}openssl
        touch "$lib"/lib{crypto,ssl}.{a,so} "$3"/usr/include/{openssl/hmac.h,machine/openssl/configuration.h} ;;
      *libcjson1*) mkdir -p "$3/usr/include/cjson" ;;
      *) echo "unpacked $2" >&2; exit 1 ;;
    esac ;;
  *) echo "stand-in: no $me" >&2; exit 1 ;;
esac
