#!/usr/bin/env bash
# Several hosts on one machine: network namespaces joined by one cable, each with a host name of its own. Runs the same
# shell command on all of them at the same time, without ssh: what a launcher that makes no ranks does.
#
#   [V6=1] [EXTRA=1] [PRIVATE=DIR] [LEFT=1] dev/hosts.sh N COMMAND
#
#   COMMAND            run by sh on each host, with HOST=0 to N-1, ADDRESS=10.79.0.(HOST+1) and FIRST=10.79.0.1; the
#                      hosts know each other's names
#   V6=1               IPv6 only: fd00:79::1, ...
#   EXTRA=1            a second interface on each host, that leads nowhere and has one address on all: 172.17.0.1
#   PRIVATE=DIR        the hosts do not share DIR: all but host 0 have an empty directory there
#   LEFT=1             a line for what is left ten seconds after all commands have ended: processes, files in /dev/shm
#
# Each line that a host prints starts with its number. The last lines have the exit codes; the exit status is the
# largest, or 77 with a reason where namespaces cannot be made. Everything is removed, however it ends.
set -u
[ $# -eq 2 ] || { echo "usage: [V6=1] [EXTRA=1] [PRIVATE=DIR] $0 N COMMAND" >&2; exit 2; }
count=$1
command=$2
tag=gph$$                                      # names by process id: several of these can run side by side
cable=${tag}x
pids=()
names=

cannot() { echo "hosts: $1" >&2; exit 77; }
clean_up() {
  trap '' INT TERM                              # a second one must not stop this
  for host in $(seq 0 $((count - 1))); do
    if [ -e "/run/netns/$tag$host" ]; then
      ip netns pids "$tag$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
      ip netns del "$tag$host" 2>/dev/null
    fi
  done
  [ ! -e "/run/netns/$cable" ] || ip netns del "$cable" 2>/dev/null
  [ -z "$names" ] || rm -f "$names"
}
[ "$(id -u)" -eq 0 ] || cannot "network namespaces need root"
for tool in ip unshare; do
  command -v "$tool" >/dev/null 2>&1 || cannot "'$tool' is not installed"
done
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

make_hosts() {
  local host
  ip netns add "$cable" && ip -n "$cable" link add bridge type bridge && ip -n "$cable" link set bridge up || return 1
  for host in $(seq 0 $((count - 1))); do
    local name=$tag$host
    ip netns add "$name" && ip link add eth0 netns "$name" type veth peer name "port$host" netns "$cable" &&
      ip -n "$cable" link set "port$host" master bridge up && ip -n "$name" link set lo up || return 1
    if [ -n "${V6:-}" ]; then
      ip -n "$name" addr add "fd00:79::$((host + 1))/64" dev eth0 nodad || return 1
    else
      ip -n "$name" addr add "10.79.0.$((host + 1))/24" dev eth0 || return 1
    fi
    ip -n "$name" link set eth0 up || return 1
    if [ -n "${EXTRA:-}" ]; then
      ip -n "$name" link add docker0 type bridge && ip -n "$name" addr add 172.17.0.1/16 dev docker0 &&
        ip -n "$name" link set docker0 up || return 1
    fi
  done
  ip netns exec "${tag}0" unshare --uts --mount true
}
reason=$(make_hosts 2>&1) || cannot "network namespaces cannot be made here: ${reason:-unknown reason}"

prefix=10.79.0.
[ -z "${V6:-}" ] || prefix=fd00:79::
names=$(mktemp)                                # every host knows all names
echo "127.0.0.1 localhost" >"$names"
for host in $(seq 0 $((count - 1))); do echo "$prefix$((host + 1)) $tag$host" >>"$names"; done
for host in $(seq 0 $((count - 1))); do
  private=
  [ "$host" -eq 0 ] || private=${PRIVATE:-}
  HOST=$host ADDRESS=$prefix$((host + 1)) FIRST=${prefix}1 ip netns exec "$tag$host" unshare --uts --mount bash -c '
    hostname "$1"
    mount --bind "$4" /etc/hosts || exit 1
    [ -z "$2" ] || mount -t tmpfs tmpfs "$2" || exit 1
    set -o pipefail
    sh -c "$3" 2>&1 | sed -u "s/^/$HOST: /"' _ "$tag$host" "$private" "$command" "$names" </dev/null &
  pids+=($!)
done
worst=0
codes=
for host in $(seq 0 $((count - 1))); do
  wait "${pids[$host]}"
  code=$?
  codes="$codes $code"
  [ $code -le $worst ] || worst=$code
done
if [ -n "${LEFT:-}" ]; then
  for try in {1..100}; do
    left=$(for host in $(seq 0 $((count - 1))); do ip netns pids "$tag$host"; done)
    [ -n "$left" ] || break
    sleep 0.1
  done
  for pid in $left; do echo "left: process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"; done
  find /dev/shm -maxdepth 1 -name "*$tag*" -printf 'left: %p\n'
fi
echo "exit codes:$codes"
exit $worst
