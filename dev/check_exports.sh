#!/usr/bin/env bash
# Whether the objects of kernels export only what they should:
#
#   dev/check_exports.sh OBJECTS NAME...
#
# NAME: kernels, cpu_SET.FAMILY, cuda.FAMILY, cuda_emulated.FAMILY; OBJECTS is their directory. A weak or second strong
# symbol of a CPU object would be shared by all of them at link time: code for one instruction set would then run on a
# machine that lacks it. So each object exports its set's table and names that end in the set's; CUDA's also exports
# what the tests use, and the weak symbols of header-only libraries that no other object uses. One line for each fault.
set -u
objects=$1 bad=0
shift
launchers=$(sed -n 's/^  X.\([a-z0-9_]*\), .*/\1/p' kernels/ops_[a-ce-z]*.h | paste -sd '|')
cuda='[a-z0-9_]+_(impl|wgmma)[(].*|[a-z]+_ops|matmul_(open|close)[(].*|nvtx.*|InitializeInjectionNvtx2_fnptr'
cuda="$cuda|DW[.]ref.*"
for name in "$@"; do
  weak=0
  case $name in
    kernels) may="($launchers)[(].*" ;;
    cuda.device) may="ops_cuda|cuda_libraries_bind|cuda_probe|cuda_probe_priorities|$cuda" ;;
    cuda.*) may=$cuda ;;
    cuda_emulated.*) weak=1 may='ops_cuda_emulated|ops_streams|emu_.*|[a-z0-9_]+[.]cuda_emulated' ;;
    *) set=${name#cpu_} && set=${set%%.*} && may="ops_$set|[a-z0-9_]+[.]$set" ;;
  esac
  nm -gC --defined-only "$objects/$name.o" | awk -v may="^($may)\$" -v weak=$weak -v o="$objects/$name.o" '
    !(weak && $2 ~ /[VWu]/) && $3 !~ may { print o ": " $0; bad = 1 } END { exit bad }' >&2 || bad=1
done
[ $bad -eq 0 ] || echo "check-symbols: objects export only their table and implementations; make these static" >&2
exit $bad
