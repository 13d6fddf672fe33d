#!/usr/bin/env bash
# torchrun itself starts train_gpt_fsdp: two processes on one host, then two on each of two hosts (network namespaces,
# dev/hosts.sh), and the losses are compared with those of as many ranks under mpirun. Needs root, iproute2, PyTorch:
#
#   TORCHRUN=venv/bin/torchrun dev/torchrun_hosts.sh
#
# A run with other options than the others must be rejected, and torchrun must report exit code 2. With --max-restarts
# and --resume auto a run whose ranks are killed twice must end with the weights of one that nothing disturbed. What was
# measured on which day is in dev/results/.
set -eu
program=$(realpath "${TRAIN_GPT_FSDP:-train_gpt_fsdp}")
torchrun=$(command -v "${TORCHRUN:-torchrun}") || { echo "torchrun_hosts: no ${TORCHRUN:-torchrun}" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RDZV_TOKEN
RDZV_TOKEN=$(head -c 32 /dev/urandom | base64)
options="--data generated --n_layer 2 --n_head 2 --n_embd 24 --seq_len 8 --vocab_size 290 --batch_size 2 --threads 1
  --max_steps 5 --sample_tokens 0 --save_every -1"
losses() { grep '"kind":"step"' "$out/$1/metrics.jsonl" | grep -oE '"(loss|grad_norm)":[^,}]*'; }
same() {
  losses "$1" >"$out/a"
  losses "$2" >"$out/b"
  [ "$(wc -l <"$out/a")" -eq 10 ] && cmp -s "$out/a" "$out/b" || { echo "$3: losses differ"; exit 1; }
  echo "$3: the losses of mpirun, digit for digit"
}

"$(dirname "$torchrun")/python" -c 'import torch; print("torch", torch.__version__)'
"$program" --version
cd "$out"
for n in 2 4; do mpirun --oversubscribe --bind-to none -np $n "$program" $options --out mpirun$n >/dev/null; done

"$torchrun" --standalone --nnodes 1 --nproc-per-node 2 --no-python "$program" $options --out one >log 2>&1 ||
  { cat log; exit 1; }
same mpirun2 one "torchrun --standalone, 2 processes on one host"

"$here/hosts.sh" 2 "cd $out && exec $torchrun --nnodes 2 --node-rank \$HOST --nproc-per-node 2 --master-addr \$FIRST \
  --master-port 29500 --no-python $program $(echo $options) --out two" >log 2>&1 || { cat log; exit 1; }
same mpirun4 two "torchrun --nnodes 2, 2 processes on each of two hosts, static rendezvous"

"$here/hosts.sh" 2 "cd $out && exec $torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id job1 \
  --rdzv-endpoint \$FIRST:29400 --no-python $program $(echo $options) --out three" >log 2>&1 || { cat log; exit 1; }
same mpirun4 three "torchrun --rdzv-backend c10d, 2 processes on each of two hosts"

"$here/hosts.sh" 2 "cd $out && exec $torchrun --nnodes 2 --node-rank \$HOST --nproc-per-node 2 --master-addr \$FIRST \
  --master-port 29500 --no-python $program $(echo $options) --lr 0.0\$((HOST+1)) --out four" >log 2>&1 && exit 1
grep -o "options differ: '--lr 0.0[12]'" log | sort -u
grep -o 'exitcode *: 2' log | sort -u

# ---- --max-restarts: torchrun starts all processes again, and they continue from the newest checkpoint
long="${options/--max_steps 5/--max_steps 4000} --n_positions 16 --schedule constant --warmup 10 --eval_every -1
  --resume auto --save_model"
long=$(echo ${long/--save_every -1/--save_every 200})
for n in 2 4; do mpirun --oversubscribe --bind-to none -np $n "$program" $long --out whole$n >/dev/null; done
kill_rank() {                                    # rank 1 of the run in directory $1, when it has a new checkpoint
  local before after at
  before=$(ls "$1/ckpt" 2>/dev/null || true)
  for at in $(seq 300); do
    after=$(ls "$1/ckpt" 2>/dev/null || true)
    [ -n "$after" ] && [ "$after" != "$before" ] && break
    sleep 0.1
  done
  for at in /proc/[0-9]*; do
    tr '\0' ' ' 2>/dev/null <"$at/cmdline" | grep -q -- "--out $1 " || continue
    tr '\0' '\n' 2>/dev/null <"$at/environ" | grep -qx OMPI_COMM_WORLD_RANK=1 && kill -9 "${at#/proc/}" && return
  done
  echo "no rank 1 of $1 to kill"
}
killed_twice() {                                 # DIRECTORY WHOLE WHAT COMMAND...
  local dir=$1 whole=$2 what=$3
  shift 3
  "$@" >log 2>&1 &
  kill_rank "$dir"; sleep 2; kill_rank "$dir"
  wait $! || { cat log; exit 1; }
  [ "$(grep -ac 'resumed from' log)" -eq 2 ] || { grep -a 'resumed from' log; echo "$what: not resumed twice"; exit 1; }
  cmp "$whole/model.safetensors" "$dir/model.safetensors"
  echo "$what: killed twice, resumed twice, the weights of a run that was not disturbed"
}
killed_twice five whole2 "torchrun --max-restarts 3, 2 processes on one host" \
  "$torchrun" --standalone --nnodes 1 --nproc-per-node 2 --max-restarts 3 --no-python "$program" --out five $long
killed_twice six whole4 "torchrun --max-restarts 3, c10d, 2 processes on each of two hosts" \
  "$here/hosts.sh" 2 "cd $out && exec $torchrun --nnodes 2 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d \
  --rdzv-id job2 --rdzv-endpoint \$FIRST:29400 --no-python $program --out six $long"
