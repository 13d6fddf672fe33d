#!/usr/bin/env bash
# How long until a model has TARGET bits per byte on WikiText-2's validation text? `make speedrun` runs it.
#
# The run is fixed: --model modern-tiny, 500 steps of 16 sequences of 128 tokens, seed 1. Its clock is training alone:
# the milliseconds of all steps up to the evaluation that has the target, without evaluations, tokenizer and start.
# Where PYTHON (python3) has torch, PyTorch's GPT-2 of that size with AdamW trains on the same tokens beside it, by the
# same clock, for 1700 steps, an epoch; it is evaluated at its end alone.
#
# Environment: WIKITEXT2_DIR, NP (2 ranks), SPEEDRUN_TARGET (1.80), SPEEDRUN_STEPS (500) and SPEEDRUN_TORCH_STEPS (1700)
# (fewer only try it out), MPIRUN, PYTHON, TRAIN_GPT_FSDP (the program), OUT (directory to keep everything in).
# Arguments are more options of the program; a row of docs/results.md has none but --device and --threads.
set -eu

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${TRAIN_GPT_FSDP:-$here/train_gpt_fsdp} python=${PYTHON:-python3}
np=${NP:-2} target=${SPEEDRUN_TARGET:-1.80} steps=${SPEEDRUN_STEPS:-500} torch_steps=${SPEEDRUN_TORCH_STEPS:-1700}
[ -x "$program" ] || { echo "speedrun: $program is not built: make" >&2; exit 1; }
[ -n "${WIKITEXT2_DIR:-}" ] || { echo "speedrun: WIKITEXT2_DIR names no directory with WikiText-2" >&2; exit 1; }
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
[ -n "${OUT:-}" ] || trap 'rm -rf "$out"' EXIT
if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

"$program" --version
"${MPIRUN:-mpirun}" --oversubscribe -np "$np" "$program" --model modern-tiny --data "$WIKITEXT2_DIR" \
  --batch_size $((16 / np)) --global_batch 16 --max_steps "$steps" \
  --eval_every $((steps / 20 > 0 ? steps / 20 : 1)) \
  --sample_tokens 0 --save_every -1 --report off --seed 1 \
  --cache "$out/cache" --out "$out/run" "$@" >"$out/run.log" 2>&1 ||
  { echo "speedrun: the program failed:" >&2; tail -n 5 "$out/run.log" >&2; exit 1; }
sed -n 's/^  *ranks  */ranks     /p' "$out/run.log"

# Seconds of training, and bits per byte, at each evaluation.
echo "  seconds    step    loss  bits per byte"
awk -v target="$target" '
  function field(name) {
    if (!match($0, "\"" name "\":[-0-9.e+]+")) return 0
    return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 }
  /^{"kind":"step"/ { ms += field("ms") }
  /^{"kind":"eval","split":"valid"/ {
    bits = field("bits_per_byte")
    printf "  %7.1f  %6d  %.4f  %.4f\n", ms / 1000, field("step"), field("loss"), bits
    if (!done && bits > 0 && bits <= target) { done = 1; reached = ms / 1000; at = field("step") } }
  END {
    if (done) printf "train_gpt_fsdp: %s bits per byte after %d steps, %.1f s of training\n", target, at, reached
    else printf "train_gpt_fsdp: %s bits per byte were not reached\n", target }' "$out/run/metrics.jsonl"

if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "PyTorch: not installed for $python"
  exit
fi
"$python" "$here/dev/bench_pytorch.py" --curve --model tiny --steps "$torch_steps" --global_batch 16 --lr 3e-3 \
  --vocab_size 2048 --cache "$out"/cache/tokens-*.bin >"$out/torch.json" 2>"$out/torch.log" ||
  { tail -n 5 "$out/torch.log" >&2; exit 1; }
# Both have the same tokens and bytes, so bits per byte are in one ratio to the loss.
per_loss=$(sed -n 's/^{"kind":"eval","split":"valid".*"loss":\([0-9.]*\).*"bits_per_byte":\([0-9.]*\).*/\2 \1/p' \
  "$out/run/metrics.jsonl" | awk 'END { print $1 / $2 }')
awk -v ratio="$per_loss" -v target="$target" -v steps="$torch_steps" '
  match($0, /"ms": [0-9.]+/) { ms += substr($0, RSTART + 6, RLENGTH - 6) }
  match($0, /"val_loss": [0-9.]+/) { loss = substr($0, RSTART + 12, RLENGTH - 12) }
  END {
    word = loss * ratio <= target ? "reached" : "not reached"
    printf "PyTorch, GPT-2 with AdamW: %.4f bits per byte after %d steps, %.1f s of training: %s\n", loss * ratio,
      steps, ms / 1000, word }' "$out/torch.json"
