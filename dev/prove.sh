#!/usr/bin/env bash
# Shows that interruptions do not change a run. `make prove` runs it, in under three minutes on two cores.
#
#   1  trains on one rank, uninterrupted
#   2  trains the same on two ranks and kills them all (SIGKILL) in the middle
#   3  resumes from the last checkpoint on three ranks, and kills those
#   4  resumes on one rank and trains to the end
#   5  prints the SHA-256 of both final weights, which must be equal, and opens them with safetensors and transformers
#      if PYTHON (python3) has these
#
# Environment: PROVE_STEPS (150) of six microbatches each, MPIRUN, PYTHON, TRAIN_GPT_FSDP (the program), OUT (directory
# to keep everything in). The text is generated, so the hash does not depend on a download.
set -eu

[ $# -eq 0 ] || { echo "prove: takes no arguments; its environment is described in dev/prove.sh" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${TRAIN_GPT_FSDP:-$here/train_gpt_fsdp} mpirun=${MPIRUN:-mpirun} python=${PYTHON:-python3}
steps=${PROVE_STEPS:-150}
[ -x "$program" ] || { echo "prove: $program is not built: make" >&2; exit 1; }
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
# Our own processes are those with this directory on their command line.
kill_run() { pkill -KILL -f -- "--out $out/stopped" || true; }
clean_up() {
  kill_run
  [ -n "${OUT:-}" ] || rm -rf "$out"
}
trap clean_up EXIT
if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

options=(--device cpu --model tiny --data generated --batch_size 4 --global_batch 24 --max_steps "$steps"
  --eval_every -1 --sample_tokens 0 --cache "$out/cache")
# run NAME RANKS OPTION...: in the foreground, its output in NAME.log
run() {
  local name=$1 ranks=$2
  shift 2
  if [ "$ranks" -eq 1 ]; then "$program" "${options[@]}" "$@" >"$out/$name.log" 2>&1
  else "$mpirun" --oversubscribe -np "$ranks" "$program" "${options[@]}" "$@" >"$out/$name.log" 2>&1; fi
}
failed() {
  echo "prove: $1; the end of its output:" >&2
  tail -n 5 "$2" >&2
  exit 1
}
last_step() {
  sed -n 's/^{"kind":"step","step":\([0-9]*\),.*/\1/p' "$out/stopped/metrics.jsonl" 2>/dev/null | tail -n 1
}
# stopped NAME RANKS STEP: resumes, and kills every process when STEP is done
stopped() {
  echo "$2 ranks, killed after step $3 ..."
  run "$1" "$2" --save_every 10 --resume auto --out "$out/stopped" 2>/dev/null &  # else the shell reports the kill
  local pid=$!
  disown $pid
  until [ "$(last_step || true)" -ge "$3" ] 2>/dev/null; do
    kill -0 $pid 2>/dev/null || failed "the run on $2 ranks ended before it was killed" "$out/$1.log"
    sleep 0.02
  done
  kill_run
  while kill -0 $pid 2>/dev/null; do sleep 0.02; done
}

echo "1 rank, uninterrupted, $steps steps ..."
run whole 1 --save_every -1 --save_model --out "$out/whole" || failed "the run on 1 rank failed" "$out/whole.log"
stopped two 2 $((steps * 4 / 10 + 1))
stopped three 3 $((steps * 7 / 10 + 1))
echo "1 rank, to the end ..."
run one 1 --save_every 10 --resume auto --save_model --out "$out/stopped" ||
  failed "the resumed run failed" "$out/one.log"
for log in three one; do
  grep -q '^resumed from: ' "$out/$log.log" || failed "it started from the beginning" "$out/$log.log"
  sed -n 's/^resumed from: .*\(step_[0-9]*\), .*/  resumed from \1/p' "$out/$log.log"
done
whole=$(sha256sum <"$out/whole/model.safetensors") stopped=$(sha256sum <"$out/stopped/model.safetensors")
echo "SHA-256 of the final weights"
echo "  uninterrupted, 1 rank         ${whole%% *}"
echo "  killed twice, 2, 3, 1 ranks   ${stopped%% *}"
[ "$whole" = "$stopped" ] || { echo "prove: they differ" >&2; exit 1; }
echo "  equal"
if "$python" -c 'import safetensors.numpy' 2>/dev/null; then
  "$python" - "$out/stopped/model.safetensors" <<'END'
import sys
from safetensors.numpy import load_file
print("safetensors opens them:", len(load_file(sys.argv[1])), "tensors")
END
else echo "safetensors is not installed for $python: not opened with it"; fi
if "$python" -c 'import torch, transformers' 2>/dev/null; then
  "$program" --device cpu --resume "$out/stopped" --out "$out/stopped" --sample_only --sample_tokens 0 \
    --export_hf "$out/exported" >"$out/export.log" 2>&1 || failed "the export failed" "$out/export.log"
  "$python" - "$out/exported" <<'END'
import sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print("transformers opens them:", sum(p.numel() for p in model.parameters()), "parameters")
END
else echo "transformers is not installed for $python: not opened with it"; fi
