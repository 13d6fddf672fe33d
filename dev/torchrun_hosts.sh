#!/usr/bin/env bash
# torchrun itself starts train_gpt_fsdp: two processes on one host, then two on each of two hosts (network namespaces,
# dev/hosts.sh), and the losses are compared with those of as many ranks under mpirun. Needs root, iproute2, PyTorch:
#
#   TORCHRUN=venv/bin/torchrun dev/torchrun_hosts.sh
#
# A run with other options than the others must be refused, and torchrun must report exit code 2. What was measured on
# which day is in dev/results/.
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
