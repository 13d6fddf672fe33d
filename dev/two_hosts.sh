#!/usr/bin/env bash
# Two hosts on one machine: `mpirun` across two network namespaces joined by a virtual cable, so that ranks of different
# "hosts" have different host names and reach each other by TCP only.
#
#   [PER=1] [RATE=1gbit] [MTU=1400] [HOLE=1] [PRIVATE=DIR[:FROM]] dev/two_hosts.sh PROGRAM [ARGS...]
#
#   PER=N              ranks on each host
#   RATE=1gbit         limits the cable
#   MTU=1400           largest packet that the second host sends; the first one's is 1500
#   HOLE=1             the cable loses every packet above 1000 bytes between ranks, though both hosts send such; what
#                      mpirun and its daemon send passes
#   PRIVATE=DIR        the hosts do not share DIR: the second one has an empty directory there, removed afterwards; with
#                      :FROM (not below DIR) a copy of FROM. Without PRIVATE both see the same files everywhere
#
# Needs root, iproute2 (ip, and tc for RATE and HOLE), util-linux (unshare), OpenMPI. Exit status: mpirun's, or 77 with
# a reason where the namespaces cannot be made. The namespaces and all processes in them are removed, however it ends.
set -u

per=${PER:-1}
private=${PRIVATE:-}                           # DIR or DIR:FROM
tag=gpt$$                                      # names by process id: several of these can run side by side
hosts=("${tag}a" "${tag}b")                    # namespace and host name in one; letters and digits only
cables=("v${tag}a" "v${tag}b")                 # interface names have at most 15 characters
addresses=(10.77.0.1 10.77.0.2)
agent=
mpirun_pid=

cannot() { echo "two_hosts: $1" >&2; exit 77; }
clean_up() {
  trap '' INT TERM                              # a second one must not stop this
  if [ -n "$mpirun_pid" ] && kill -TERM "$mpirun_pid" 2>/dev/null; then
    for _ in {1..30}; do kill -0 "$mpirun_pid" 2>/dev/null || break; sleep 0.1; done  # it ends its ranks itself
  fi
  for host in "${hosts[@]}"; do
    if [ -e "/run/netns/$host" ]; then
      ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
      ip netns del "$host" 2>/dev/null
    fi
  done
  [ -z "$agent" ] || rm -f "$agent"
}

[ $# -gt 0 ] || { echo "usage: [PER=1] [RATE=1gbit] $0 PROGRAM [ARGS...]" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || cannot "network namespaces need root"
for tool in ip unshare "${MPIRUN:-mpirun}"; do
  command -v "$tool" >/dev/null 2>&1 || cannot "'$tool' is not installed"
done
[ -z "$private" ] || [ -d "${private%%:*}" ] || { echo "two_hosts: PRIVATE: no directory ${private%%:*}" >&2; exit 2; }
if [ -n "$private" ]; then
  reason=$(unshare --mount mount -t tmpfs tmpfs "${private%%:*}" 2>&1) || cannot "no private directory here: $reason"
fi
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Ranks listen at ports from 1024 on (btl_tcp_port_min_v4), mpirun and its daemon at those that the kernel gives them.
make_hole() {
  local port
  local -a tc=(ip netns exec "$1" tc)
  "${tc[@]}" qdisc add dev "$2" root handle 1: htb default 2 &&
    "${tc[@]}" class add dev "$2" parent 1: classid 1:2 htb rate 10gbit quantum 60000 &&
    "${tc[@]}" class add dev "$2" parent 1: classid 1:3 htb rate 10gbit quantum 60000 || return 1
  # What is larger than the bucket never leaves it.
  "${tc[@]}" qdisc add dev "$2" parent 1:3 tbf rate 10gbit burst 1000 latency 50ms || return 1
  for port in sport dport; do
    "${tc[@]}" filter add dev "$2" parent 1: protocol ip u32 match ip $port 1024 0xfc00 flowid 1:3 || return 1
  done
}
make_hosts() {
  ip netns add "${hosts[0]}" && ip netns add "${hosts[1]}" &&
    ip link add "${cables[0]}" netns "${hosts[0]}" type veth peer name "${cables[1]}" netns "${hosts[1]}" || return 1
  for i in 0 1; do
    ip -n "${hosts[i]}" addr add "${addresses[i]}/24" dev "${cables[i]}" && ip -n "${hosts[i]}" link set lo up &&
      ip -n "${hosts[i]}" link set "${cables[i]}" up || return 1
    [ -z "${RATE:-}" ] || ip netns exec "${hosts[i]}" \
      tc qdisc add dev "${cables[i]}" root tbf rate "$RATE" burst 256kb latency 50ms || return 1
    [ -z "${HOLE:-}" ] || make_hole "${hosts[i]}" "${cables[i]}" || return 1
  done
  [ -z "${MTU:-}" ] || ip -n "${hosts[1]}" link set "${cables[1]}" mtu "$MTU" || return 1
  ip netns exec "${hosts[0]}" unshare --uts true
}
reason=$(make_hosts 2>&1) || cannot "network namespaces cannot be made here: ${reason:-unknown reason}"

# mpirun starts its daemon on the other host by `AGENT [options] ADDRESS COMMAND`, as it would with ssh.
agent=$(mktemp)
cat >"$agent" <<AGENT
#!/usr/bin/env bash
while [[ "\$1" == -* ]]; do shift; done
address=\$1; shift
case \$address in
  ${addresses[0]}) host=${hosts[0]} ;;
  ${addresses[1]}) host=${hosts[1]} ;;
  *) echo "two_hosts: no host \$address" >&2; exit 1 ;;
esac
private=
[ \$host = ${hosts[0]} ] || private=${private@Q}
exec ip netns exec \$host unshare --uts --mount bash -c '
  hostname "\$1"
  if [ -n "\$2" ]; then
    mount -t tmpfs tmpfs "\${2%%:*}" || exit 1
    [[ "\$2" != *:* ]] || cp -a "\${2#*:}/." "\${2%%:*}" || exit 1
  fi
  shift 2
  eval "\$*"' _ \$host "\$private" "\$@"
AGENT
chmod +x "$agent"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
subnet=10.77.0.0/24
ip netns exec "${hosts[0]}" unshare --uts bash -c 'hostname "$1"; shift; exec "$@"' _ "${hosts[0]}" \
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -np $((2 * per)) \
  --host "${addresses[0]}:$per,${addresses[1]}:$per" --mca plm_rsh_agent "$agent" --mca btl tcp,vader,self \
  --mca btl_tcp_if_include $subnet --mca oob_tcp_if_include $subnet "$@" &
mpirun_pid=$!
wait $mpirun_pid
status=$?
mpirun_pid=
exit $status
