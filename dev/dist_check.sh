#!/usr/bin/env bash
# Whether the archive of dev/dist.sh starts on a bare Linux: in a root of Debian 11 with a shell and nothing else, as
# another user, from a path with a space, read-only. It trains on two ranks to the bits of ./train_gpt_fsdp, resumes,
# exports, and opens no library outside of itself but libc's.
#
#   dev/dist_check.sh [ARCHIVE]
#
# Without ARCHIVE it packs one with dev/dist.sh first, which takes minutes. Needs root, strace, the packages that
# dev/dist.sh downloads to build/dist, and ./train_gpt_fsdp. Prints what it did; exit status 1 where something does not
# hold, 77 where it cannot run here: no root, no tool, or no packages to download.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
work=$top/build/dist
bare=$work/bare
fail() { echo "dist_check: $1" >&2; exit 1; }
skip() { echo "skip    dist_check: $1"; exit 77; }
for tool in strace unshare chroot patchelf; do command -v $tool >/dev/null || skip "no $tool"; done
[ "$(id -u)" = 0 ] || skip "needs root, for chroot"
unshare -m true 2>/dev/null || skip "no mount namespace can be made here"
mkdir -p "$work"
if [ $# -gt 0 ]; then
  archive=$(realpath "$1")
else
  rm -rf "$work/checked"
  if ! OUT=$work/checked "$top/dev/dist.sh" archive x86_64 >"$work/dist.log" 2>&1; then
    reason=$(sed -n 's/^dist: //p' "$work/dist.log" | tail -n 1)
    case $reason in *downloaded* | *'cannot be read'* | *'no source'* | *'apt-get install'*) skip "$reason" ;; esac
    tail -20 "$work/dist.log"
    fail "dev/dist.sh does not pack an archive"
  fi
  archive=$(realpath "$work"/checked/*.tar.gz)
fi

# A root with libc, a shell, and what mpirun's script calls.
rm -rf "$bare"
mkdir -p "$bare/home/a user" "$bare"/{proc,dev,tmp,etc,bin,sbin,lib64} "$bare/dev/shm"
apt=$work/amd64.apt
(cd "$apt" && APT_CONFIG=$apt/apt.conf apt-get -qq download dash coreutils libacl1 libattr1 libselinux1 libpcre2-8-0 \
  libgmp10 sed libc6) || fail "no packages for the root"
for deb in "$apt"/*.deb; do dpkg -x "$deb" "$bare"; done
ln -sf dash "$bare/bin/sh"
echo 'user:x:4242:4242::/home/a user:/bin/sh' >"$bare/etc/passwd"
tar -xzf "$archive" -C "$bare/home/a user"
name=$(basename "$archive" .tar.gz)
mkdir "$bare/home/a user/out"
chown 4242:4242 "$bare/home/a user/out"
chmod 1777 "$bare/tmp"
run() {                                          # in the root, under strace
  unshare -m sh -c '
    mount -t proc proc "$0/proc" && mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm" &&
    for d in null zero urandom random; do : >"$0/dev/$d"; mount --bind "/dev/$d" "$0/dev/$d"; done
    mount --bind "$0/home/a user/$1" "$0/home/a user/$1" && mount -o remount,bind,ro "$0/home/a user/$1" &&
    exec strace -f -e trace=openat,execve -o "$0.trace" chroot --userspec=4242:4242 "$0" \
      /bin/sh -c "cd \"/home/a user\" && $2"' "$bare" "$name" "$1"
}
options="--model tiny --data generated --max_steps 6 --batch_size 2 --global_batch 4 --seq_len 64 --dtype fp32
  --isa avx2 --sample_tokens 0 --save_every 3 --cache= --threads 1"
options=$(echo $options)
run "'./$name/mpirun' --oversubscribe -np 2 './$name/train_gpt_fsdp' $options --out out/run --save_model" \
  >"$work/check.log" 2>&1 ||
  { tail -20 "$work/check.log"; fail "it does not train on two ranks"; }
cp "$bare.trace" "$work/check.trace"
# libselinux and what it needs: those of the shell's tools.
system='libc|libm|libdl|librt|libpthread|libutil|libresolv|libnsl|libnss_[a-z]*|ld-linux-x86-64'
system="$system|libselinux|libpcre2-8|libacl|libattr|libgmp"
foreign=$(sed -n '1,/execve("\/bin\/sh"/d
  s/.*openat(AT_FDCWD, "\([^"]*\.so[^"]*\)".* = [0-9]*$/\1/p' "$work/check.trace" | sort -u |
  grep -vE "/home/a user/|/($system)[-.0-9]*\.so|/ld\.so\.cache" || true)
[ -z "$foreign" ] || fail "libraries outside the archive: $foreign"
run "'./$name/train_gpt_fsdp' ${options/steps 6/steps 8} --resume --out out/run --export_hf out/hf" \
  >"$work/check2.log" 2>&1 ||
  { tail -20 "$work/check2.log"; fail "it does not resume and export alone"; }
[ -s "$bare/home/a user/out/hf/model.safetensors" ] || fail "no export"
cd "$work"
rm -rf here
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -np 2 "$top/train_gpt_fsdp" $options \
  --out here --save_model >/dev/null 2>&1 || fail "./train_gpt_fsdp does not train"
cmp here/model.safetensors "$bare/home/a user/out/run/model.safetensors" || fail "other weights than ./train_gpt_fsdp"
echo "dist_check: $(basename "$archive"): in a root of Debian 11 without Open MPI two ranks train to the bits of"
echo "  ./train_gpt_fsdp ($(sha256sum <here/model.safetensors | cut -c 1-16)), and one resumes and exports"
