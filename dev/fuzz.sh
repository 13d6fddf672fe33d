#!/usr/bin/env bash
# `make fuzz`:
#
#   dev/fuzz.sh probe CXX FLAGS...          whether the compiler makes fuzzers; says what to install if not
#   dev/fuzz.sh run DIR FLAGS [TARGET...]   runs targets of DIR/fuzz (all by default), two side by side
#
# What is found stays in DIR/findings, is run first next time, and fails.
set -u
if [ "$1" = probe ]; then
  shift
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char *, unsigned long) { return 0; }' > "$work/probe.cc"
  "$@" "$work/probe.cc" -o "$work/probe" >/dev/null 2>&1 && exit
  printf '%s\n' "fuzz: $1 with -fsanitize=fuzzer,address is missing. To install clang++ and its runtime libraries:" \
    '  Debian: apt-get install clang libclang-rt-dev; Ubuntu: clang; Fedora: dnf install clang compiler-rt' \
    '  or name another clang++: FUZZ_CXX=clang++-18' >&2
  exit 1
fi
shift
dir=$1 FUZZ_FLAGS=$2
shift 2
FUZZ_ROOT=$PWD ASAN_OPTIONS=
FUZZ_DIR=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "$dir")") || exit 1
export FUZZ_ROOT FUZZ_DIR FUZZ_FLAGS ASAN_OPTIONS
trap 'rm -rf "$FUZZ_DIR"' EXIT
mkdir -p "$dir/seeds"
"$dir/fuzz" seeds "$dir/seeds" && cd "$dir" || exit 1
[ $# -gt 0 ] || set -- $(./fuzz list)
printf '%s\n' "$@" | xargs -P 2 -I{} sh -c '
  mkdir -p corpus/{} findings/{}; export FUZZ_TARGET={}
  if ./fuzz $FUZZ_FLAGS -artifact_prefix=findings/{}/ corpus/{} seeds/{} findings/{} > {}.log 2>&1
  then sed -n "s/^#\([0-9]*\).*DONE *cov: \([0-9]*\).*/fuzz: {}: \1 inputs, \2 edges, nothing found/p" {}.log
  else tail -n 40 {}.log; echo "fuzz: {} failed; its whole log is $PWD/{}.log"; exit 1; fi'
