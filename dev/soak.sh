#!/usr/bin/env bash
# Random faults for an hour: ranks, agents, daemons and mpirun killed and stopped, links taken down, slowed and made to
# lose packets, saves that hang, strangers at the heartbeats' sockets, on two or three hosts that are network namespaces
# (dev/hosts.sh), under --rdzv and --restarts. After
# each episode: it ended within its deadline, said what it lost, has the weights of one rank that nothing disturbed, and
# left nothing behind.
#
#   [SOAK_S=3600] [SOAK_SEED=N] dev/soak.sh [PROGRAM]
#
#   SOAK_S       seconds; the episode that runs then is the last one
#   SOAK_SEED    chooses hosts, options and faults; the seed is printed. What a fault hits also depends on time
#   SOAK_KEEP=1  keeps the files of episodes
#
# One line an episode: its start, its faults, how it ended. Exit status: 0, 1 where something was wrong (its output is
# printed and kept), 77 with a reason where namespaces cannot be made.
set -u
cd "$(dirname "$0")/.." || exit 2
program=$(realpath "${1:-./train_gpt_fsdp}") || exit 2
seconds=${SOAK_S:-3600}
seed=${SOAK_SEED:-$((SRANDOM % 30000))}
deadline_s=150                                 # of an episode
restarts=20
dir=$(mktemp -d /tmp/soak_XXXXXX)
RANDOM=$seed
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
bad=0
episode=0
job=
trap '[ -z "$job" ] || kill "$job" 2>/dev/null; exit 130' INT TERM

model="--data generated --n_layer 2 --n_head 2 --n_embd 24 --seq_len 8 --n_positions 16 --vocab_size 290 --threads 1"
model="$model --lr 0.01 --schedule constant --warmup 10 --batch_size 2 --global_batch 8 --max_steps 2500"
model="$model --sample_tokens 0 --eval_every -1 --save_model --cache $dir/cache"
one_of() { eval "REPLY=\${$((RANDOM % $# + 1))}"; }
between() { REPLY=$(($1 + RANDOM % ($2 - $1 + 1))); }
nap() { between "$1" "$2"; sleep "$((REPLY / 10)).$((REPLY % 10))"; }             # tenths of a second

# ---- what runs -------------------------------------------------------------------------------------------------------
# Processes of the episode, a line each: PID KIND HOST, with KIND host0, agent, mpirun, orted or rank.
processes() {
  local at kind pid
  for at in /proc/[0-9]*; do
    pid=${at#/proc/}
    local -A v=()
    local line
    while IFS= read -rd '' line; do v[${line%%=*}]=${line#*=}; done 2>/dev/null <"$at/environ"
    [ "${v[SOAK_EPISODE]:-}" = "$dir/$episode" ] || continue
    case $(cat "$at/comm" 2>/dev/null) in
      mpirun) kind=mpirun ;;
      orted) kind=orted ;;
      train_gpt_fsdp | "$(basename "$program" | cut -c 1-15)")
        kind=agent
        [ "${v[HOST]:-}" != 0 ] || kind=host0
        [ -z "${v[OMPI_COMM_WORLD_RANK]:-}" ] || kind=rank ;;
      *) continue ;;
    esac
    echo "$pid $kind ${v[HOST]:-?}"
  done
}
# One of a kind, by chance, into `pid` and `host`; false: none runs.
pick() {
  local -a found
  mapfile -t found < <(processes | grep " $1 " | sort -n)
  [ ${#found[@]} -gt 0 ] || return 1
  local -a word
  read -ra word <<<"${found[$((RANDOM % ${#found[@]}))]}"
  pid=${word[0]} host=${word[2]}
}
# A host's cable is changed for some tenths of a second, then as before.
cable() {
  local seconds="$(($2 / 10)).$(($2 % 10))" name= file do undo
  one_of agent agent host0
  pick "$REPLY" || return
  for file in /run/netns/gph*; do
    [ "$file" -ef "/proc/$pid/ns/net" ] && name=${file##*/}
  done
  [ -n "$name" ] || return
  case $1 in
    down) do="ip link set eth0 down" undo="ip link set eth0 up" ;;
    slow) do="tc qdisc add dev eth0 root tbf rate 400kbit burst 16kb latency 50ms" undo="tc qdisc del dev eth0 root" ;;
    hole) do="tc qdisc add dev eth0 root tbf rate 1gbit burst 1000 latency 50ms" undo="tc qdisc del dev eth0 root" ;;
  esac
  ip netns exec "$name" $do 2>>"$at/faults" || return
  said="cable of host $host: $1 for $seconds s"
  (sleep "$seconds"; ip netns exec "$name" $undo) 2>>"$at/faults" &
}
# A rank's fsync stops for ever, once each time that the file hang is made.
stand_in() {
  "${CC:-cc}" -shared -fPIC -o "$dir/fsync.so" -xc - <<'EOF'
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int fd) {
  const char *sign = getenv("OMPI_COMM_WORLD_RANK") ? getenv("SOAK_HANG") : NULL;
  if (sign && !unlink(sign)) for (;;) pause();
  return (int)syscall(SYS_fsync, fd);
}
EOF
}
# Whoever is on process `pid`'s host, as its user and as another one, says to the heartbeats' sockets that all end.
strangers() {
  nsenter --net="/proc/$pid/ns/net" python3 - <<'EOF'
import os, socket, struct
names = {line.split()[-1] for line in open("/proc/net/unix") if "@train_gpt_fsdp-" in line}
end = struct.pack("<qqii", 0, 0, 9, 1).ljust(328, b"\0")         # LivenessFrame, FRAME_END, of rank 1
for user in 0, 65534:
    if os.fork():
        continue
    if user:
        os.setgid(user), os.setuid(user)
    for name in sorted(names) * 100:
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect("\0" + name[1:])
            s.sendall(end)
        except OSError:
            pass
    os._exit(0)
os.wait(), os.wait()
print(len(names))
EOF
}
# One fault. `said` is its line; `must` what an output that has only this fault says, as an extended regular expression.
fault() {
  said= must=.
  one_of kill_rank kill_rank kill_rank stop_rank kill_agent kill_agent kill_mpirun kill_orted stop_mpirun stop_orted \
    stop_agent stop_host0 down down slow hole kill_host0 hang_save hang_save strangers
  local what=$REPLY
  case $what in
    kill_rank)
      pick rank || return; kill -9 "$pid" && said="SIGKILL to rank's process $pid on host $host"
      must="[Pp][Ii][Dd] $pid" ;;
    stop_rank)
      pick rank || return; kill -STOP "$pid" && said="SIGSTOP to rank's process $pid on host $host"
      must="heard of rank [0-9]+ \(pid $pid|no rank has made progress|this rank has made no" ;;
    kill_agent)
      pick agent || return; kill -9 "$pid" && said="SIGKILL to agent $pid on host $host"
      must="pid $pid\).* has ended or is out of reach" ;;
    kill_mpirun)
      pick mpirun || return; kill -9 "$pid" && said="SIGKILL to mpirun" must="mpirun was killed by signal 9" ;;
    kill_orted) pick orted || return; kill -9 "$pid" && said="SIGKILL to Open MPI's daemon on host $host" must=daemon ;;
    stop_mpirun) pick mpirun || return; kill -STOP "$pid" && said="SIGSTOP to mpirun" ;;
    stop_orted)        # not after its agent: the daemon then ends, and stopped there nobody is left who could end it
      pick orted && processes | grep -q " agent $host$" || return
      kill -STOP "$pid" && said="SIGSTOP to Open MPI's daemon on host $host" ;;
    stop_agent | stop_host0)
      pick "${what#stop_}" || return; kill -STOP "$pid"
      between 10 60
      said="SIGSTOP to ${what#stop_} $pid on host $host for $((REPLY / 10)) s"
      (sleep $((REPLY / 10)); kill -CONT "$pid" 2>/dev/null) & ;;
    hang_save)
      : >"$at/hang"
      for REPLY in {1..100}; do [ -e "$at/hang" ] && sleep 0.1; done
      if [ -e "$at/hang" ]; then rm -f "$at/hang"; return; fi    # no save came
      said="a save's fsync that stops for ever" must="no rank has made progress|this rank has made no" ;;
    strangers)
      pick rank && said="strangers at $(strangers) of the heartbeats' sockets on host $host" must=strangers ;;
    kill_host0) pick host0 || return; kill -9 "$pid" && said="SIGKILL to host 0's process" killed_host0=1 ;;
    *) between 5 250; cable "$what" "$REPLY" ;;
  esac
}

# ---- an episode ------------------------------------------------------------------------------------------------------
# The command of every host: RANKS of it and where all meet are in `ranks` and `meet`.
start() {
  local command
  command="export SOAK_EPISODE=$dir/$episode RDZV_TOKEN=0123456789abcdef0
export LD_PRELOAD=$dir/fsync.so SOAK_HANG=$at/hang
export OMPI_MCA_pml=ob1 OMPI_MCA_mpi_yield_when_idle=1
set -- $ranks; shift \$HOST; n=\$1
exec $program $model $options --timeout 8 --restarts $restarts --restart_wait 6 --out $at/out $1 \
--rdzv $meet --nnodes $hosts --node_rank \$HOST --nproc_per_node \$n"
  LEFT=1 dev/hosts.sh "$hosts" "$command" >>"$at/output" 2>&1 &
  job=$!
}
# Waits for the episode's end; false: it does not come.
ends() {
  local end=$((SECONDS + deadline_s))
  while kill -0 "$job" 2>/dev/null; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.2
  done
  wait "$job"
  job=
}
wrong() {
  echo "  WRONG: $1"
  bad=$((bad + 1)) kept=1
}
run_episode() {
  local faults count=0 i line
  episode=$((episode + 1)) killed_host0= kept=
  at=$dir/$episode
  mkdir -p "$at/shared"
  one_of "1 1" "2 2" "2 2" "1 3" "3 1" "1 2 1" "2 1 1"; ranks=$REPLY
  hosts=$(wc -w <<<"$ranks")
  one_of "tcp://\$FIRST:29400" "tcp://\$FIRST:29400" "file://$at/shared"; meet=$REPLY
  one_of "" "" "--strategy zero2" "--strategy no_shard" "--shm off" "--shm copy" "--save_async"; options=$REPLY
  one_of 20 50 200; options="$options --save_every $REPLY"
  between 1 3; faults=$REPLY
  printf '%4d s  episode %d: hosts with %s ranks, %s %s\n' $SECONDS $episode "$ranks" "${meet%%:*}" "$options"
  start ""
  for i in {1..300}; do                         # until all have met: a process lost before that ends the start by name
    [ ! -s "$at/out/metrics.jsonl" ] && kill -0 "$job" 2>/dev/null || break
    sleep 0.2
  done
  for i in $(seq "$faults"); do
    nap 1 25
    kill -0 "$job" 2>/dev/null || break
    fault
    [ -n "$said" ] || continue
    count=$((count + 1)) line=$must
    printf '        %s\n' "$said"
  done
  if ! ends; then
    wrong "it has not ended after $deadline_s s"
    processes | sed 's/^/    /'
    kill "$job"; wait "$job"; job=
  fi
  local codes
  codes=$(grep '^exit codes:' "$at/output" | tail -1)
  if [ "$count" = 1 ] && ! grep -Eq "$line" "$at/output" && ! [[ $codes =~ ^"exit codes: 0" ]]; then
    wrong "nothing says '$line'"
  fi
  for i in 1 2 3; do                            # who started them starts them again where host 0's process is lost
    [[ $codes =~ ^"exit codes: 0" ]] && break
    [ -n "$killed_host0" ] || grep -q 'reached no new checkpoint' "$at/output" ||
      { wrong "it ended with $codes"; break; }
    start "--resume auto"
    ends || { wrong "the start after host 0's death has not ended"; kill "$job"; wait "$job"; job=; }
    codes=$(grep '^exit codes:' "$at/output" | tail -1)
  done
  local again
  again=$(grep -c '^0: .*it starts again' "$at/output")
  if cmp -s "$dir/one/model.safetensors" "$at/out/model.safetensors"; then
    printf '        %s, %d starts again, the same weights\n' "$codes" "$again"
  else
    wrong "the weights are not those of one rank"
  fi
  ! grep -q '^left:' "$at/output" || wrong "$(grep '^left:' "$at/output" | head -3)"
  [ -z "$(ls -A "$at/shared")" ] || wrong "files of file:// are left"
  if [ -n "$kept" ]; then
    echo "  its output ($at/output), the last lines:"
    grep -v ': checkpoint: ' "$at/output" | tail -60 | sed 's/^/    /'
  else
    [ -n "${SOAK_KEEP:-}" ] || rm -rf "$at"
  fi
}

echo "soak: seed $seed, $seconds s (SOAK_SEED=$seed repeats hosts, options and faults)"
env CI=true "$program" $model --out "$dir/one" >"$dir/one.txt" 2>&1 || { cat "$dir/one.txt"; exit 1; }
stand_in || exit 1
dev/hosts.sh 2 true >"$dir/hosts.txt" 2>&1
[ $? -ne 77 ] || { cat "$dir/hosts.txt"; rm -rf "$dir"; exit 77; }
while [ $SECONDS -lt "$seconds" ]; do run_episode; done
echo "soak: seed $seed, $episode episodes, $bad wrong"
if [ "$bad" = 0 ] && [ -z "${SOAK_KEEP:-}" ]; then rm -rf "$dir"; fi
[ "$bad" = 0 ]
