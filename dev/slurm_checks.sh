#!/usr/bin/env bash
# What dev/slurm_hosts.sh runs by default, on its first host: srun and sbatch start train_gpt_fsdp on one host and on two,
# and losses are compared with those of mpirun. The names of checks as arguments run only these. What was measured on
# which day is in dev/results/.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program=$(realpath "${TRAIN_GPT_FSDP:-$here/../train_gpt_fsdp}")
launch=$here/launch
out=$PWD
wrong=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
tiny="--data generated --n_layer 2 --n_head 2 --n_embd 24 --seq_len 8 --vocab_size 290 --batch_size 2
  --sample_tokens 0 --eval_tokens 1000"
short="$tiny --threads 1 --max_steps 5 --save_every -1"
long="$tiny --threads 1 --max_steps 150 --save_every -1"

good() { echo "$1"; }
bad() { echo "WRONG: $1"; wrong=1; }
losses() { grep '"kind":"step"' "$1/metrics.jsonl" 2>/dev/null | grep -oE '"(loss|grad_norm)":[^,}]*' | tail -n 10; }
# same WANT GOT WHAT: the last five steps of two runs
same() {
  losses "$1" >want
  losses "$2" >got
  if [ "$(wc -l <want)" -eq 10 ] && cmp -s want got; then good "$3: the losses of mpirun, digit for digit"
  else bad "$3: losses differ"; paste want got; tail -n 20 log; fi
}
mpirun_of() { [ -e "$1" ] || mpirun --oversubscribe --bind-to none -np "$2" "$program" ${3:-$short} --out "$1" >"$1.log" 2>&1; }
# The job that the next lines are about, and what runs of it.
start() { srun --job-name "$1" "${@:2}" >log 2>&1 & srun=$!; }
until_steps() { for _ in {1..400}; do [ "$(grep -c '"kind":"step"' "$1/metrics.jsonl" 2>/dev/null)" -lt "$2" ] || return 0; sleep 0.1; done; bad "$1: no steps"; tail log; }
job() { squeue -h -n "$1" -o %A; }
ranks() {                                      # process ids of rank $1, or of all ranks, on both hosts
  local p
  for p in $(pgrep -x train_gpt_fsdp); do
    tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "SLURM_CONF=$SLURM_CONF" &&
      tr '\0' '\n' <"/proc/$p/environ" | grep -qx "SLURM_PROCID=${1:-[0-9]*}" && echo "$p"
  done
}
ended() {                                      # waits for srun; what it returned, and whether nothing is left
  local begin=$SECONDS
  wait "$srun"
  code=$?
  took=$((SECONDS - begin))
  for _ in {1..50}; do [ -n "$(ranks)" ] || return 0; sleep 0.1; done
  bad "ranks are left: $(ranks | tr '\n' ' ')"
}
saved() { ls "$1/ckpt" 2>/dev/null | grep -c '^step'; }

check_versions() {
  "$program" --version
  srun --version
  srun --mpi=list 2>&1 | grep -oE 'pmix_v.*'
  mpirun --version | head -n 1
  dpkg-query -W -f '${Package} ${Version}\n' slurmd libpmix2 libopenmpi3 munge 2>/dev/null
}
check_losses() {
  mpirun_of mpirun2 2
  mpirun_of mpirun3 3
  srun --mpi=pmix -N1 -n2 "$program" $short --out one >log 2>&1
  same mpirun2 one "srun --mpi=pmix, 2 ranks on one host"
  srun --mpi=pmix -N2 -n3 "$program" $short --out two >log 2>&1
  same mpirun3 two "srun --mpi=pmix, 2 ranks and 1 rank on two hosts"
  grep -A1 ' ranks ' log
}
check_refusals() {
  local mpi
  for mpi in none pmi2; do
    srun --mpi=$mpi -N2 -n3 "$program" $short --out three >log 2>&1
    code=$?
    if [ $code -eq 2 ] && [ ! -e three ] && [ "$(grep -c 'programs that do not know of each other' log)" -eq 1 ]
    then good "srun --mpi=$mpi: refused, exit code $code: $(grep 'know of' log)"
    else bad "srun --mpi=$mpi: exit code $code"; cat log; fi
  done
  srun --mpi=pmix -N2 -n3 sh -c 'exec "$@" --lr 0.0$((SLURM_PROCID == 2 ? 2 : 1)) --out four' _ "$program" $short >log 2>&1
  code=$?
  if [ $code -eq 2 ] && grep -q -- --lr log; then good "another --lr on rank 2: exit code $code: $(grep -- --lr log)"
  else bad "another --lr: exit code $code"; cat log; fi
}
# Each of these ends a run in another way; what it saved goes on to the losses of a run that nobody ended.
check_signals() {
  local way id
  mpirun_of whole 3 "$long"
  for way in scancel-USR1 scancel-TERM scancel srun-USR1 srun-TERM srun-INT; do
    start "$way" --mpi=pmix -N2 -n3 "$program" $long --out "$way"
    until_steps "$way" 5
    id=$(job "$way")
    case $way in
      scancel-*) scancel --signal="${way#scancel-}" "$id" ;;
      scancel) scancel "$id" ;;
      srun-INT) kill -INT $srun; sleep 0.2; kill -INT $srun ;;
      srun-*) kill "-${way#srun-}" $srun ;;
    esac
    ended
    echo "$way: exit code $code after $took s, $(saved "$way") checkpoint(s), $(grep -c '"kind":"step"' "$way/metrics.jsonl") steps"
    grep -E 'srun:|slurmstepd' log | head -n 4
    [ "$(saved "$way")" -gt 0 ] || continue
    srun --mpi=pmix -N1 -n2 "$program" --resume auto --save_every -1 --out "$way" >log 2>&1 || tail -n 5 log
    same whole "$way" "$way, resumed on 2 ranks"
  done
}
check_killed() {
  local rank
  for rank in 2 0; do
    start "kill$rank" --mpi=pmix -N2 -n3 "$program" $long --max_steps 1000000 --out "kill$rank"
    until_steps "kill$rank" 5
    kill -KILL $(ranks $rank)
    ended
    echo "rank $rank killed: exit code $code after $took s"
    grep -vE 'step|^ ' log | tail -n 12
  done
}
check_cores() {
  local shape
  for shape in "-N1 -n1 -c1" "-N1 -n1 -c2" "-N1 -n2 -c1" "-N2 -n2 -c2" "-N2 -n3 -c1"; do
    rm -rf cores
    start cores --mpi=pmix $shape "$program" $tiny --save_every -1 --max_steps 1000000 --out cores
    until_steps cores 3
    echo "srun $shape: $(grep ' ranks ' log | sed 's/^ *ranks *//'); cores of each rank's threads:" $(
      for p in $(ranks); do
        echo "[$(cat /proc/"$p"/task/*/status | sed -n 's/Cpus_allowed_list:[^0-9]*//p' | sort -u | tr '\n' ' ' | sed 's/ $//')]"
      done)
    scancel "$(job cores)"
    ended
  done
}
check_sbatch() {
  ln -sf "$program" train_gpt_fsdp
  mpirun_of mpirun4 4
  mpirun_of mpirun8 8
  sbatch --wait -o log --ntasks-per-node=2 --cpus-per-task=1 "$launch/slurm_pmix.sbatch" $short --out batch1 >/dev/null
  echo "slurm_pmix.sbatch: exit code $?"
  same mpirun4 batch1 "slurm_pmix.sbatch, 2 ranks on each of two hosts"
  sbatch --wait -o log --cpus-per-task=2 "$launch/slurm_rdzv.sbatch" $short --out batch2 >/dev/null
  echo "slurm_rdzv.sbatch: exit code $?"
  same mpirun8 batch2 "slurm_rdzv.sbatch, 4 ranks on each of two hosts"
}
check_requeue() {
  local id
  ln -sf "$program" train_gpt_fsdp
  mpirun_of whole4 4 "$long"
  id=$(sbatch --parsable -o log --open-mode=append --ntasks-per-node=2 --cpus-per-task=1 "$launch/slurm_pmix.sbatch" \
    $long --out requeue)
  until_steps requeue 5
  scancel --signal=USR1 "$id"
  for _ in {1..300}; do [ -n "$(squeue -h -j "$id" -t RUNNING,COMPLETING,PENDING)" ] || break; sleep 0.5; done
  echo "slurm_pmix.sbatch, SIGUSR1: $(scontrol show job "$id" | grep -oE '(JobState|Restarts|ExitCode)=[^ ]*' | tr '\n' ' ')"
  same whole4 requeue "slurm_pmix.sbatch, stopped by SIGUSR1, queued again and resumed by itself"
}
for check in ${@:-versions losses refusals signals killed cores sbatch requeue}; do "check_$check"; done
exit $wrong
