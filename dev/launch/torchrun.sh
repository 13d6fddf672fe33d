#!/usr/bin/env bash
# torchrun as the launcher, on every host: HOSTS of them, this is number NODE, host 0 is MASTER. RDZV_TOKEN must be set
# to the same secret everywhere, or --rdzv_token FILE be one of the options (on one host it is not needed).
#
#   HOSTS=2 NODE=0 MASTER=10.0.0.1 dev/launch/torchrun.sh 8 --model small
#
# torchrun --no-python sets the variables of --rdzv env://, which is then chosen automatically. It listens at
# --master-port itself, so the ranks rendezvous at the next port. dev/torchrun_hosts.sh tests this with PyTorch.
set -eu
ranks=$1
shift
exec torchrun --nnodes "${HOSTS:-1}" --node-rank "${NODE:-0}" --nproc-per-node "$ranks" \
  --master-addr "${MASTER:-127.0.0.1}" --master-port "${PORT:-29500}" --no-python ./train_gpt_fsdp "$@"
