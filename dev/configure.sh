#!/usr/bin/env bash
# Finds compilers, libraries and GPUs, and writes what make needs to know of them:
#
#   dev/configure.sh FILE NAME=VALUE...
#
# FILE is build/found.mk, which the Makefile includes. NAME is one of NAMES below; make hands down its variables.
# Everything is found by compiling and linking a line against it, never by asking a package manager. Nothing is asked
# again until what was asked for, the environment, a compiler, a directory of libraries or a GPU changes, unless
# something was missing or left out.
set -u
NAMES="CXX MPICC MPIRUN PYTHON MPI_HOME HWLOC_HOME CJSON_HOME OPENSSL_HOME CUDA_HOME CUDA_HOME_NAMED NCCL_HOME CUDA
  ARCHS"
file=$1
shift
for name in $NAMES; do printf -v "$name" '%s' ''; done
for pair in "$@"; do printf -v "${pair%%=*}" '%s' "${pair#*=}"; done
# Variables of several words, such as CXX="ccache g++", are split on purpose.
# shellcheck disable=SC2086
homes="$MPI_HOME $HWLOC_HOME $CJSON_HOME $OPENSSL_HOME $CUDA_HOME $NCCL_HOME"

# ---- has anything changed? ------------------------------------------------------------------------------------------
key=$({ printf '%s\n' "$@"; printenv PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH LD_LIBRARY_PATH \
    PKG_CONFIG_PATH OPAL_PREFIX OMPI_CXX OMPI_CFLAGS OMPI_CXXFLAGS OMPI_LDFLAGS OMPI_LIBS
  # shellcheck disable=SC2046
  stat -Lc '%n %s %Y' "$0" $(for p in $CXX $MPICC $MPIRUN nvcc nvidia-smi; do command -v "$p"; done) /usr/include \
    /usr/local/include /usr/lib /usr/lib64 /usr/lib/*-linux-gnu /usr/local/lib \
    $(for h in $homes; do echo "$h"/bin/* "$h"/include "$h"/lib*; done)
  cat /proc/driver/nvidia/gpus/*/information; } 2>/dev/null | cksum)
if [ -e "$file" ]; then
  read -r first < "$file"
  nccl=$(sed -n 's/^NCCL_AT := //p' "$file")
  [ "$first" != "# found for $key" ] || { [ -n "$nccl" ] && [ ! -e "$nccl/include/nccl.h" ]; } || exit 0
fi

# ---- probes ---------------------------------------------------------------------------------------------------------
probes=$(mktemp -d) || exit 1
trap 'rm -rf "$probes"' EXIT
missing="" left_out="" found=()
keep() { found+=("$1 := ${2//$/\$\$}"); }
left() { left_out=CUDA; echo "$1" >&2; no_cuda=$2; }
# links "HEADERS" EXPRESSION FLAGS...: whether a program that includes the headers and runs the expression links.
links() {
  { printf '#include <%s>\n' $1; echo "int main() { $2; }"; } > "$probes/probe.cc"
  $CXX -std=c++17 "$probes/probe.cc" -o "$probes/probe" "${@:3}" >/dev/null 2>&1
}
finish() {
  mkdir -p "$(dirname "$file")"
  [ -z "$missing$left_out" ] || key=nothing
  { echo "# found for $key"; printf '%s\n' "${found[@]}" "MISSING :=$missing"; } > "$file.new" && mv "$file.new" "$file"
  exit
}

# The vectors are those of x86-64 and of ARM, the windows and /proc those of Linux: nothing else can be built.
target=$($CXX -dumpmachine 2>/dev/null)
target=${target:-$(uname -m)-$(uname -s)}
case $target in
  x86_64-*[Ll]inux* | amd64-*[Ll]inux*) arm="" bf16="-mavx512f -mavx512bf16 -mamx-tile -mamx-bf16"
    vectors="immintrin.h" expression='__builtin_cpu_supports("avx512bf16")' ;;
  aarch64-*[Ll]inux* | arm64-*[Ll]inux*) arm=$target bf16=-march=armv8.2-a+bf16
    vectors="arm_neon.h" expression='vbfdotq_f32(float32x4_t{}, bfloat16x8_t{}, bfloat16x8_t{})' ;;
  *) missing=" target"
    needs="train_gpt_fsdp needs x86-64 with AVX2 or aarch64, and Linux"
    found=("\$(error $needs; this is $target, by $CXX -dumpmachine or uname)")
    finish ;;
esac

# Options for a library, below its home if one is named.
cflags() { echo ${1:+-isystem $1/include}; }
libs() { echo ${1:+-L$1/lib -L$1/lib64 -Wl,-rpath,$1/lib -Wl,-rpath,$1/lib64} "-l$2"; }
# mpi.h's C++ bindings are deprecated and full of warnings; the C interface is all that is used.
mpi_cflags=$($MPICC --showme:compile 2>/dev/null ||
  { [ -n "$MPI_HOME" ] && echo "-I$MPI_HOME/include"; } || pkg-config --cflags ompi-c 2>/dev/null)
mpi_cflags="-DOMPI_SKIP_MPICXX $(for f in $mpi_cflags; do printf '%s ' "${f/#-I/-isystem}"; done)"
mpi_libs=$($MPICC --showme:link 2>/dev/null ||
  { [ -n "$MPI_HOME" ] && echo "-L$MPI_HOME/lib -lmpi"; } || pkg-config --libs ompi-c 2>/dev/null || echo -lmpi)
mpi_libs="$mpi_libs ${MPI_HOME:+-Wl,-rpath,$MPI_HOME/lib}"
library_cflags="$(cflags "$CJSON_HOME") $(cflags "$HWLOC_HOME") $(cflags "$OPENSSL_HOME")"
cjson_libs=$(libs "$CJSON_HOME" cjson)
hwloc_libs=$(libs "$HWLOC_HOME" hwloc)
openssl_libs=$(libs "$OPENSSL_HOME" crypto)

keep FIX_compiler "a C++17 compiler that knows AMX (x86-64) or bf16 (aarch64): g++ >= 11, or clang++ >= 12: CXX=..."
keep FIX_OpenMPI "headers and library of OpenMPI: MPI_HOME=... (the directory that holds include/ and lib/)"
keep FIX_mpirun "mpirun of OpenMPI: MPIRUN=... (only the libraries were found)"
holds() { keep "FIX_$1" "header and library of $2: ${3}_HOME=... (the directory that holds include/$4 and lib/)"; }
holds cJSON cJSON CJSON cjson/cJSON.h
holds hwloc "hwloc 2.1 or later" HWLOC hwloc.h
holds OpenSSL "OpenSSL 1.1.1 or later (libcrypto)" OPENSSL openssl/
links "$vectors" "$expression" $bf16 || missing+=" compiler"
if ! links mpi.h 'MPI_Init(0, 0)' $mpi_cflags $mpi_libs; then missing+=" OpenMPI"
elif ! command -v "$MPIRUN" >/dev/null; then missing+=" mpirun"; fi
links cjson/cJSON.h 'cJSON_Delete(0)' $library_cflags $cjson_libs || missing+=" cJSON"
links hwloc.h 'hwloc_topology_set_components(0, 0, 0)' $library_cflags $hwloc_libs || missing+=" hwloc"
links "openssl/hmac.h openssl/crypto.h" 'OPENSSL_cleanse(0, 0)' $library_cflags $openssl_libs || missing+=" OpenSSL"

# ---- CUDA is optional: if something is missing it is left out, and a line says so -----------------------------------
nvcc=$CUDA_HOME/bin/nvcc
[ -e "$nvcc" ] || nvcc=$(command -v nvcc)
with_cuda="" cuda_libs="" archs="" one="" two="" nccl=$NCCL_HOME no_cuda="nvcc was not found"
if [ "$CUDA" = 0 ]; then no_cuda="it was built with CUDA=0"
else
  # A named installation that is not there must not be replaced silently.
  if [ -n "$CUDA_HOME_NAMED" ] && [ ! -e "$CUDA_HOME/bin/nvcc" ]; then
    instead="CUDA kernels are left out"
    left "CUDA_HOME=$CUDA_HOME has no bin/nvcc: $([ -z "$nvcc" ] && echo "$instead" || echo "$nvcc is taken")" \
      "CUDA_HOME had no bin/nvcc"
  fi
  if [ -n "$nvcc" ]; then
    root=${nvcc%/bin/nvcc}
    # pip's nvidia-nccl has the header beside its library, and no compiler looks there.
    if [ -z "$nccl" ] && ! links nccl.h "" "-I$root/include"; then
      nccl=$("${PYTHON:-python3}" -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)
      [ -e "$nccl/include/nccl.h" ] || nccl=""
    fi
    cuda_flags="${nccl:+-I$nccl/include} -I$root/include"
    cuda_libs="${nccl:+-Wl,-rpath,$nccl/lib -Wl,-rpath,$nccl/lib64}"
    cuda_libs+=" -L$root/lib64 ${arm:+-L$root/targets/sbsa-linux/lib} -lcudart_static -ldl -lrt -lpthread"
    headers="cuda_runtime.h nvtx3/nvToolsExt.h cublasLt.h nccl.h"
    if links "$headers" 'cudaRuntimeGetVersion(0)' $cuda_flags $cuda_libs; then with_cuda=yes
    else
      lacks=$(for h in $headers; do links "$h" "" $cuda_flags || printf '%s ' "$h"; done)
      lacks=${lacks:-libcudart_static.a }
      left "CUDA kernels are left out: $nvcc is here, but not ${lacks% } (CUDA_HOME=, NCCL_HOME=; or CUDA=0)" \
        "nvcc was there, but not ${lacks% }"
    fi
  elif nvidia-smi -L >/dev/null 2>&1; then
    left "CUDA kernels are left out: a GPU is here, but no nvcc (CUDA_HOME=; or CUDA=0)" "$no_cuda"
  fi
fi

# ---- architectures: this machine's GPUs, else common ones and, as PTX, later ones -----------------------------------
has() { case " $1 " in *" $2 "*) ;; *) false ;; esac; }
# Hopper's own instructions need its `a` name.
gencode() { local a=${1/#90/90a}; printf -- '-gencode arch=compute_%s,code=sm_%s ' "$a" "$a"; }
# from_ptx ARCH CODE...: code made from one PTX.
from_ptx() {
  local arch=$1 IFS=,
  shift
  [ $# -eq 0 ] || printf -- '-gencode arch=%s,code=[%s] ' "$arch" "$*"
}
if [ -n "$with_cuda" ] && [ -z "$ARCHS" ]; then
  known=$($nvcc --list-gpu-arch | sed 's/compute_//' | tr '\n' ' ')
  for a in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | sort -nu); do
    case $a in 5? | 6? | 7?) ;; *) ! has "$known" "$a" || archs+="$(gencode "$a")" ;; esac
  done
  if [ -z "$archs" ]; then
    # Each GPU that has no code of its own is later than sm_100, so PTX for sm_100, which is made on the way, serves it.
    for a in 80 90 100 ${arm:+121}; do ! has "$known" $a || archs+="$(gencode $a)"; done
    ptx=90
    ! has "$known" 100 || ptx=100
    archs+="-gencode arch=compute_$ptx,code=compute_$ptx"
  fi
  # Where several architectures were chosen here, PTX is made once, for the first, and ptxas makes code of it for all:
  # for sm_90 the same instructions as from its own. From compute_100 on nvcc optimises otherwise: sm_100's code spills
  # registers in attention and layernorm if its PTX is compute_80's, so these have two, and the rest one.
  if [ "$(grep -o gencode <<< "$archs" | wc -l)" -gt 1 ]; then
    early=() late=() all=()
    first=$(sed 's/.*arch=\(compute_[0-9]*\).*/\1/' <<< "${archs%%,*}")
    for code in $(grep -o 'code=[a-z0-9_]*' <<< "$archs" | sed 's/code=//'); do
      case $code in sm_1* | compute_1*) late+=("$code") ;; *) early+=("$code") ;; esac
      case $code in compute_*) all+=("$first") ;; *) all+=("$code") ;; esac
    done
    one=$(from_ptx "$first" "${all[@]}")
    two=$(from_ptx "$first" ${early[@]+"${early[@]}"})$(from_ptx compute_100 ${late[@]+"${late[@]}"})
  fi
fi

keep COMPILERS "$({ $CXX --version; [ -z "$with_cuda" ] || "$nvcc" --version; } 2>/dev/null | cksum)"
keep TARGET "$target"
keep ARM "$arm"
keep MPI_CFLAGS "$mpi_cflags"
keep LIBRARY_CFLAGS "$library_cflags"
keep LIBS "$mpi_libs $hwloc_libs $cjson_libs $openssl_libs -ldl -lrt -lpthread -lm"
keep NVCC "$nvcc"
keep NCCL_AT "$nccl"
keep NO_CUDA "${no_cuda//[^ -~]/?}"
keep WITH_CUDA "$with_cuda"
keep CUDA_LIBS "$cuda_libs"
keep ARCHS_HERE "$archs"
keep ARCHS_ONE "$one"
keep ARCHS_TWO "$two"
finish
