#!/usr/bin/env bash
# The program and its tests for ARM on an x86-64 machine: compiled by Debian's cross compiler against libraries in a
# directory of their own, run by qemu's user emulation, several ranks by this machine's own mpirun.
#
#   dev/arm.sh setup             as root, on Debian: compiler, emulator, and the libraries of arm64 in $ARM_ROOT
#   dev/arm.sh has               whether all of these are here; else says on one line what is missing, and fails
#   dev/arm.sh built             whether build/arm is there and newer than the sources; else says so, and fails
#   dev/arm.sh make GOAL...      make for aarch64, in build/arm
#   dev/arm.sh run CMD...        runs an aarch64 program
#   dev/arm.sh train OPTION...   runs build/arm/train_gpt_fsdp
#   dev/arm.sh mpirun OPTION...  mpirun with what ranks need under emulation
#
# ARM_ROOT (build/arm-root) is about 1 GB. Packages of arm64 are unpacked there: installed beside the native ones, Open
# MPI's would replace these. ARM_CPU is qemu's processor (max; one without bf16: cortex-a72).
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
root=${ARM_ROOT:-$top/build/arm-root}
lib=usr/lib/aarch64-linux-gnu
qemu() {
  exec qemu-aarch64-static -cpu "${ARM_CPU:-max}" -L "$root" -E LD_LIBRARY_PATH="/$lib:/$lib/openmpi/lib" "$@"
}

setup() {
  dpkg --add-architecture arm64
  apt-get -q update
  apt-get -q install -y --no-install-recommends g++-aarch64-linux-gnu qemu-user-static make openmpi-bin
  mkdir -p "$root/debs"
  cd "$root/debs"
  # What apt would install, without graphics and compilers that hwloc's optional parts ask for.
  local packages
  packages=$(apt-get install -s --no-install-recommends libopenmpi-dev:arm64 libhwloc-dev:arm64 libcjson-dev:arm64 \
    libssl-dev:arm64 | awk '/^Inst .*:arm64/ {print $2}' |
    grep -vE 'mlir|z3|llvm|opencl|clang|x11|xcb|xext|xau|xdmcp|xnv')
  # shellcheck disable=SC2086
  apt-get download $packages libc6:arm64 libc6-dev:arm64 libgcc-s1:arm64 libstdc++-12-dev:arm64
  for deb in *.deb; do dpkg -x "$deb" "$root"; done
  rm -rf "$root/debs"
  [ -e "$root/lib/ld-linux-aarch64.so.1" ] || ln -sfn usr/lib "$root/lib"
}

has() {
  for tool in aarch64-linux-gnu-g++ qemu-aarch64-static mpirun; do
    command -v $tool >/dev/null || { echo "no $tool: dev/arm.sh setup"; return 1; }
  done
  [ -e "$root/$lib/openmpi/lib/libmpi.so" ] || { echo "no libraries of arm64 in $root: dev/arm.sh setup"; return 1; }
}

case ${1:-} in
  setup) setup ;;
  has) has ;;
  built)
    has
    cd "$top"
    for f in build/arm/train_gpt_fsdp build/arm/test_gpt_fsdp; do [ -e $f ] || { echo "no $f: make arm"; exit 1; }; done
    newer=$(find Makefile train_gpt_fsdp.cu fsdp.h base watch kernels memory machine fsdp data launch run trainer \
      -type f -newer build/arm/train_gpt_fsdp | head -n 1)
    [ -z "$newer" ] || { echo "build/arm is older than $newer: make arm"; exit 1; } ;;
  make)
    shift
    has
    exec make -C "$top" B=build/arm TRAINER=build/arm/train_gpt_fsdp CUDA=0 MPICC=false MPIRUN=mpirun \
      MPI_HOME="$root/$lib/openmpi" \
      CXX="aarch64-linux-gnu-g++ --sysroot=$root -L$root/$lib -Wl,-rpath-link,$root/$lib" "$@" ;;
  run) shift; qemu "$@" ;;
  train) shift; qemu "$top/build/arm/train_gpt_fsdp" "$@" ;;
  mpirun)
    # Memory that PMIx shares has another layout on the other side, and qemu has no process_vm_readv.
    shift
    export PMIX_MCA_gds=hash OMPI_MCA_btl_vader_single_copy_mechanism=none
    exec mpirun --oversubscribe --bind-to none -x PMIX_MCA_gds "$@" ;;
  *) sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
