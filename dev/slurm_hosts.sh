#!/usr/bin/env bash
# A Slurm cluster of two hosts on one machine: network namespaces (dev/hosts.sh), each with munged and slurmd, the first
# with slurmctld too. Needs root, iproute2 and Debian's slurmctld, slurmd, slurm-client, slurm-wlm-basic-plugins and
# munge; none of their services need run, and those that do run are left alone.
#
#   dev/slurm_hosts.sh COMMAND     runs COMMAND by bash on the first host, in an empty directory that both hosts see
#   dev/slurm_hosts.sh             runs dev/slurm_checks.sh there
#
# The hosts see the same files but for /run and /tmp: Slurm's PMIx makes a directory of the job's name in /tmp. The rest
# is in a directory below /var/tmp; all is killed and removed at the end, however it ends (LOGS=DIR keeps the daemons'
# logs). Both hosts have the machine's cores, so their ranks compete for them.
set -u
here=$(cd "$(dirname "$0")" && pwd)

# On each host, in its namespaces; HOST is 0 or 1.
run_host() {
  local out=$1 command=$2 first second shape try code=1
  first=$(hostname | sed 's/.$/0/')
  second=${first%0}1
  export SLURM_CONF=$out/etc/slurm.conf
  mount -t tmpfs -o mode=755 tmpfs /run && mount -t tmpfs tmpfs /tmp && mkdir -m 755 /run/munge || exit 77
  munged --foreground --key-file "$out/munge.key" --socket /run/munge/socket --pid-file /run/munge/pid \
    --log-file "$out/munged$HOST.log" --seed-file /run/munge/seed --force >"$out/munged$HOST.out" 2>&1 &
  if [ "$HOST" -eq 0 ]; then
    shape=$(slurmd -C | grep -oE '(CPUs|SocketsPerBoard|CoresPerSocket|ThreadsPerCore)=[0-9]+' | tr '\n' ' ')
    mkdir "$out/etc" "$out/state"
    echo CgroupPlugin=cgroup/v1 >"$out/etc/cgroup.conf"       # else 22.05 looks for what nothing here needs
    cat >"$SLURM_CONF.new" <<END
ClusterName=hosts
SlurmctldHost=$first(10.79.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/socket,cred_expire=5
StateSaveLocation=$out/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=$out/slurmctld.log
SlurmdLogFile=$out/%n.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=30
PropagateResourceLimits=NONE
NodeName=$first NodeAddr=10.79.0.1 $shape State=UNKNOWN
NodeName=$second NodeAddr=10.79.0.2 $shape State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
    mv "$SLURM_CONF.new" "$SLURM_CONF"
  fi
  for try in {1..100}; do [ ! -S /run/munge/socket ] || [ ! -e "$SLURM_CONF" ] || break; sleep 0.1; done
  if [ "$HOST" -eq 0 ]; then slurmctld -D >"$out/slurmctld.out" 2>&1 & fi
  slurmd -D >"$out/slurmd$HOST.out" 2>&1 &
  if [ "$HOST" -ne 0 ]; then
    until [ -e "$out/end" ]; do sleep 0.2; done
    kill $(jobs -p)
    wait
    exit 0
  fi
  for try in {1..150}; do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" != 2 ] || break
    sleep 0.2
  done
  cd "$out/work"
  if [ "$try" -eq 150 ]; then
    echo "slurm_hosts: the cluster did not come up:"
    sinfo -N -l
    tail -n 20 "$out"/*.log "$out"/*.out
  else
    bash -c "$command"
    code=$?
  fi
  scancel --user root 2>/dev/null
  for try in {1..100}; do [ -n "$(squeue -h 2>/dev/null)" ] || break; sleep 0.1; done
  [ -z "${LOGS:-}" ] || cp "$out"/*.log "$out"/*.out "$LOGS"
  touch "$out/end"
  kill $(jobs -p)
  wait
  exit $code
}

if [ "${1:-}" = --host ]; then
  run_host "$2" "$3"
fi
for tool in slurmctld slurmd srun munged; do
  command -v $tool >/dev/null ||
    { echo "slurm_hosts: no $tool (Debian: slurmctld, slurmd, slurm-client, munge)" >&2; exit 77; }
done
out=$(mktemp -d /var/tmp/slurm_hosts.XXXXXX)
trap 'rm -rf "$out"' EXIT
mkdir "$out/work"
head -c 1024 /dev/urandom >"$out/munge.key"
chmod 400 "$out/munge.key"
export COMMAND_OF_HOSTS=${1:-$here/slurm_checks.sh}
LEFT=1 "$here/hosts.sh" 2 "exec bash $here/slurm_hosts.sh --host $out \"\$COMMAND_OF_HOSTS\""
