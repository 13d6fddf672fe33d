#!/usr/bin/env bash
# What dev/slurm_hosts.sh runs by default, on its first host: srun and sbatch start train_gpt_fsdp on one host and on
# two, and losses are compared with those of mpirun. Names of checks as arguments run only these. What was measured on
# which day is in dev/results/. Needs at least two cores; takes about four minutes.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program=$(realpath "${TRAIN_GPT_FSDP:-$here/../train_gpt_fsdp}")
launch=$here/launch
out=$PWD
wrong=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
tiny="--data generated --n_layer 2 --n_head 2 --n_embd 24 --seq_len 8 --vocab_size 290 --batch_size 2
  --sample_tokens 0 --eval_every -1"
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
mpirun_of() {
  [ -e "$1" ] || mpirun --oversubscribe --bind-to none -np "$2" "$program" ${3:-$short} --out "$1" >"$1.log" 2>&1
}
# The job that the next lines are about, and what runs of it.
start() { srun --job-name "$1" "${@:2}" >log 2>&1 & srun=$!; }
steps() { cat "$1/metrics.jsonl" 2>/dev/null | grep -c '"kind":"step"'; }
until_steps() {
  for _ in {1..400}; do [ "$(steps "$1")" -lt "$2" ] || return 0; sleep 0.1; done
  bad "$1: no steps"
  tail log
}
job() { squeue -h -n "$1" -o %A; }
ranks() {                                      # process ids of rank $1, or of all ranks, on both hosts
  local p
  for p in $(pgrep -x train_gpt_fsdp); do
    cat "/proc/$p/environ" 2>/dev/null | tr '\0' '\n' >environment
    grep -qx "SLURM_CONF=$SLURM_CONF" environment && grep -qx "SLURM_PROCID=${1:-[0-9]*}" environment && echo "$p"
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

over() {                                       # waits for the end of job $1; $2: what the line starts with
  for _ in {1..300}; do [ -n "$(squeue -h -j "$1" -t RUNNING,COMPLETING,PENDING)" ] || break; sleep 0.5; done
  echo "$2: $(scontrol show job "$1" | grep -oE '(JobState|Restarts|ExitCode)=[^ ]*' | xargs)," \
    "$(saved "$3") checkpoint(s)"
}

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
  grep ' ranks ' log
}
check_rejections() {
  srun --mpi=none -N2 -n3 "$program" $short --out three >log 2>&1
  code=$?
  if [ $code -eq 2 ] && [ ! -e three ] && [ "$(grep -c 'programs that do not know of each other' log)" -eq 1 ]
  then good "srun --mpi=none: rejected, exit code $code: $(grep 'know of' log)"
  else bad "srun --mpi=none: exit code $code"; cat log; fi
  srun --mpi=pmi2 -N2 -n3 "$program" $short --out three >log 2>&1
  code=$?
  if [ $code -ne 0 ] && [ ! -e three ] && [ "$(grep -c '^warning: srun gave' log)" -eq 1 ]
  then good "srun --mpi=pmi2: exit code $code of Open MPI, after: $(grep '^warning' log)"
  else bad "srun --mpi=pmi2: exit code $code"; cat log; fi
  srun --mpi=pmix -N2 -n3 sh -c 'exec "$@" --lr 0.0$((SLURM_PROCID == 2 ? 2 : 1)) --out four' \
    _ "$program" $short >log 2>&1
  code=$?
  if [ $code -eq 2 ] && grep -q -- --lr log; then good "another --lr on rank 2: exit code $code: $(grep -- --lr log)"
  else bad "another --lr: exit code $code"; cat log; fi
}
# Each of these ends a run in another way; what it saved continues to the losses of a run that nobody ended.
check_signals() {
  local way id want
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
    echo "$way: exit code $code after $took s, $(saved "$way") checkpoint(s), $(steps "$way") steps"
    grep -E 'srun:|slurmstepd' log | head -n 4
    want="85 1"                                # srun's own end is the end of its ranks at once
    case $way in srun-TERM|srun-INT) want="137 0" ;; esac
    [ "$code $(saved "$way")" = "$want" ] || bad "$way: not as docs/checkpoints.md says: $want"
    [ "$(saved "$way")" -gt 0 ] || continue
    srun --mpi=pmix -N1 -n1 "$program" --resume auto --save_every -1 --out "$way" >log 2>&1 || tail -n 5 log
    same whole "$way" "$way, resumed on 1 rank"
  done
}
check_killed() {
  local rank
  for rank in 2 0; do
    start "kill$rank" --mpi=pmix -N2 -n3 "$program" $long --max_steps 1000000 --out "kill$rank"
    until_steps "kill$rank" 5
    kill -KILL $(ranks $rank)
    ended
    if [ $code -eq 137 ] && grep -q 'all ranks end' log; then good "rank $rank killed: exit code $code after $took s"
    else bad "rank $rank killed: exit code $code after $took s"; fi
    grep -E 'all ranks end|srun' log
  done
}
cores_of() { echo "[$(cat /proc/"$1"/task/*/status | sed -n 's/Cpus_allowed_list:[^0-9]*//p' | sort -u | xargs)]"; }
check_cores() {
  local shape used p
  for shape in "-N1 -n1 -c1" "-N1 -n1 -c2" "-N1 -n2 -c1" "-N2 -n2 -c2" "-N2 -n3 -c1"; do
    rm -rf cores
    start cores --mpi=pmix $shape "$program" $tiny --save_every -1 --max_steps 1000000 --out cores
    until_steps cores 3
    used=$(for p in $(ranks); do cores_of "$p"; done | tr '\n' ' ')
    scancel "$(job cores)"
    ended
    echo "srun $shape: $(grep ' ranks ' log | sed 's/^ *ranks *//'); cores of each rank's threads: $used"
    case $shape in
      *-c1) grep -q '1 thread each' log && ! grep -q '[-,]' <<<"$used" ;;
      *) grep -q '2 threads each' log && ! grep -vqE '^(\[(0-1|0,1)\] ?)+$' <<<"$used" ;;
    esac || bad "other cores than Slurm gave"
  done
}
check_sbatch() {
  ln -sf "$program" train_gpt_fsdp
  mpirun_of small4 4 "--model small $short"
  mpirun_of small8 8 "--model small $short"
  sbatch --wait -o log --ntasks-per-node=2 --cpus-per-task=1 "$launch/slurm_pmix.sbatch" $short --out batch1 >/dev/null
  echo "slurm_pmix.sbatch: exit code $?"
  same small4 batch1 "slurm_pmix.sbatch, 2 ranks on each of two hosts"
  sbatch --wait -o log --cpus-per-task=2 "$launch/slurm_rdzv.sbatch" $short --out batch2 >/dev/null
  echo "slurm_rdzv.sbatch: exit code $?"
  same small8 batch2 "slurm_rdzv.sbatch, 4 ranks on each of two hosts"
}
check_requeue() {
  local id file per whole
  ln -sf "$program" train_gpt_fsdp
  for file in pmix rdzv; do
    per="--ntasks-per-node=2 --cpus-per-task=1"
    whole=whole4
    [ $file = pmix ] || { per="--cpus-per-task=2"; whole=whole8; }
    mpirun_of $whole ${whole#whole} "--model small $long"
    id=$(sbatch --parsable -o log --open-mode=append $per "$launch/slurm_$file.sbatch" $long --out "requeue_$file")
    until_steps "requeue_$file" 5
    scancel --signal=USR1 "$id"
    over "$id" "slurm_$file.sbatch, SIGUSR1" "requeue_$file"
    same $whole "requeue_$file" "slurm_$file.sbatch, stopped by SIGUSR1, queued again and resumed by itself"
  done
}
# Time limits and scancel of whole jobs, which take a minute or two.
check_limits() {
  local id timed limited way file
  ln -sf "$program" train_gpt_fsdp
  for file in pmix rdzv; do
    id=$(sbatch --parsable -o log --cpus-per-task=1 --ntasks-per-node=1 "$launch/slurm_$file.sbatch" $long \
      --max_steps 1000000 --out "cancel_$file")
    until_steps "cancel_$file" 5
    scancel "$id"
    over "$id" "slurm_$file.sbatch, scancel" "cancel_$file"
    [ "$(saved "cancel_$file")" -eq $([ $file = pmix ]; echo $((1 - $?))) ] || bad "not as docs/checkpoints.md says"
  done
  timed=$(sbatch --parsable -o timed.log --open-mode=append --time=2 --cpus-per-task=1 --ntasks-per-node=1 \
    "$launch/slurm_pmix.sbatch" $long --max_steps 1000000 --out timed)
  limited=$(sbatch --parsable -o limited.log --time=1 -N2 -n2 \
    --wrap "srun --mpi=pmix $program $(echo $long) --max_steps 1000000 --out limited")
  over "$limited" "srun in a job without --signal, time limit" limited
  [ "$(saved limited)" -eq 1 ] || bad "the time limit left no checkpoint"
  grep -hE 'slurmstepd|srun:' limited.log
  for _ in {1..200}; do [ "$(scontrol show job "$timed" | grep -oE 'Restarts=[0-9]*')" = Restarts=0 ] || break
    sleep 0.5
  done
  scontrol show job "$timed" | grep -oE '(JobState|Restarts|Reason)=[^ ]*' | xargs echo \
    "slurm_pmix.sbatch, --signal before its time is up:"
  [ "$(saved timed)" -gt 0 ] || bad "Slurm's own SIGUSR1 left no checkpoint"
  scancel "$timed"
}
for check in ${@:-versions losses rejections signals killed cores sbatch requeue limits}; do "check_$check"; done
exit $wrong
