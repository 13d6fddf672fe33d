#!/usr/bin/env bash
# Whether the archive of dev/dist.sh starts on a bare Linux: in a root of Debian 11 with a shell and nothing else, as
# another user, from a path with a blank, read-only. It trains on two ranks to the bits of ./train_gpt_fsdp, resumes,
# exports, and opens no library outside of itself but libc's.
#
#   dev/dist_check.sh ARCHIVE
#
# Needs root, strace, the packages that dev/dist.sh has unpacked in build/dist, and ./train_gpt_fsdp. Prints what it
# did; exit status 1 where something does not hold.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
archive=$(realpath "$1")
work=$top/build/dist
bare=$work/bare
fail() { echo "dist_check: $1" >&2; exit 1; }
for tool in strace unshare chroot; do command -v $tool >/dev/null || fail "no $tool"; done
[ "$(id -u)" = 0 ] || fail "needs root, for chroot"

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
