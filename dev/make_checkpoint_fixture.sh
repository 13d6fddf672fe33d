#!/usr/bin/env bash
# make_checkpoint_fixture.sh VERSION COMMIT: writes dev/test/fixtures/checkpoint-VERSION, checkpoints of an earlier
# version and what that version made of them, which dev/test/test_compat.h compares with this one. COMMIT is the
# version's in this repository's history: it is built from there, without CUDA, in a directory of its own. Another
# version's fixture is due when what is saved, or the bits of training, have changed since the last one's.
#
#   dev/make_checkpoint_fixture.sh 0.5.0 1c1c60c
#   dev/make_checkpoint_fixture.sh 0.6.0 52975b4
#
#   text/                       what was trained on
#   MODE/step_00000006/         a checkpoint in the middle of a run of 12 steps; MODE is the dtype of its parameters
#   MODE/ISA/metrics.jsonl      steps and evaluations of that version when it continued from there on one rank, with
#                               kernels ISA, and then evaluated the checkpoint (times are left out)
#   MODE/ISA/end.json           trainer.json of its last checkpoint, which has the checksums of weights and moments
#   MODE/ISA/sample.txt         the most probable continuation, by the checkpoint
#
# Needs a CPU with AVX-512 BF16: bf16 is multiplied otherwise there than on AVX2. Nothing in the options asks the C
# library for digits: no cosine in the learning rate. Paths in the checkpoints are those from the repository's root.
set -eu
[ $# -eq 2 ] || { echo "usage: ${0##*/} VERSION COMMIT, such as 0.5.0 1c1c60c" >&2; exit 2; }
version=$1 commit=$2
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD fixture=dev/test/fixtures/checkpoint-$version
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
git cat-file -e "$commit^{commit}" || { echo "${0##*/}: $commit is not in this repository's history" >&2; exit 1; }

mkdir "$tmp/source" "$tmp/run"
git archive "$commit" | tar -x -C "$tmp/source"
make -C "$tmp/source" CUDA=0 train_gpt_fsdp
cd "$tmp/run"
program=$tmp/source/train_gpt_fsdp
[[ $("$program" --version) == "train_gpt_fsdp $version "* ]] ||
  { echo "${0##*/}: $commit is not version $version: $("$program" --version)" >&2; exit 1; }

mkdir -p "$fixture/text"
sentences() {  # FIRST COUNT
  awk -v from="$1" -v count="$2" 'BEGIN {
    split("the fox,a dog,one crow,this cat,every wolf", who, ","); split("sees,follows,finds,likes", does, ",")
    for (i = from; i < from + count; i++)
      print who[i % 5 + 1], does[i * i % 7 % 4 + 1], who[i * 3 % 11 % 5 + 1], "by", i % 13, "."
  }'
}
sentences 0 60 > "$fixture/text/train.txt"
sentences 60 20 > "$fixture/text/valid.txt"
sentences 85 20 > "$fixture/text/test.txt"

run=(--threads 1 --device cpu --cache=)
for mode in fp32 bf16; do
  case $mode in fp32) isas=(avx2) ;; *) isas=(avx2 avx512_bf16) ;; esac
  "$program" "${run[@]}" --isa avx2 --n_layer 2 --n_head 2 --n_embd 12 --seq_len 8 --n_positions 16 --vocab_size 272 \
    --data "$fixture/text" --batch_size 2 --global_batch 8 --dropout 0.1 --lr 0.01 --schedule constant --warmup 2 \
    --param_dtype $mode --reduce_dtype $mode --max_steps 12 --eval_every 3 --save_every 6 --keep 0 --sample_tokens 16 \
    --out "out-$mode" >/dev/null
  mkdir -p "$fixture/$mode"
  mv "out-$mode/ckpt/step_00000006" "$fixture/$mode/"
  for isa in "${isas[@]}"; do
    to=$fixture/$mode/$isa out=out-$mode-$isa
    from=("${run[@]}" --isa "$isa" --resume "$fixture/$mode" --out "$out")
    "$program" "${from[@]}" >/dev/null
    "$program" "${from[@]}" --eval_only >/dev/null
    "$program" "${from[@]}" --sample_only --temperature 0 --prompt "the fox" >/dev/null
    mkdir "$to"
    grep -E '"kind":"(step|eval)"' "$out/metrics.jsonl" | sed -E 's/,"(tokens_per_s|ms)":.*/}/' > "$to/metrics.jsonl"
    cp "$out/ckpt/step_00000012/trainer.json" "$to/end.json"
    cp "$out/sample.txt" "$to/sample.txt"
  done
done
rm -rf "${root:?}/$fixture"
mkdir -p "$root/dev/test/fixtures"
cp -r "$fixture" "$root/$fixture"
du -sh --apparent-size "$root/$fixture"
