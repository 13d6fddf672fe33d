#!/usr/bin/env bash
# Installs what building and running train_gpt_fsdp needs: a C++ compiler, make, OpenMPI, hwloc, cJSON, OpenSSL, curl.
# On Debian and Ubuntu it installs by apt (through sudo when not root). Where it may not install it prints the command
# to run, or the paths to set, and exits with 1. Where nothing is missing it does nothing and says so.
set -eu

target=$("${CXX:-g++}" -dumpmachine 2>/dev/null) || target=$(uname -m)-$(uname -s)
case $target in
  x86_64-*[Ll]inux* | amd64-*[Ll]inux*) knows=AMX flags="-mavx512bf16 -mamx-tile -mamx-bf16" ;;
  aarch64-*[Ll]inux* | arm64-*[Ll]inux*) knows="ARM's bf16" flags=-march=armv8.2-a+bf16 ;;
  *) echo "setup: train_gpt_fsdp needs x86-64 with AVX2 or aarch64, and Linux; this is $target, by ${CXX:-g++}" \
       "-dumpmachine or uname" >&2; exit 1 ;;
esac

# shellcheck disable=SC2086
compiles() { printf '%s\n' "$1" | "${CXX:-g++}" -x c++ -fsyntax-only ${2:-} - >/dev/null 2>&1; }
have() { command -v "$1" >/dev/null 2>&1; }

# CUDA is optional and never installed from here: a toolkit must fit the driver.
dev=${TRAIN_GPT_FSDP_DEV:-/dev}                   # tests name another
gpu_is_here() {
  { have nvidia-smi && nvidia-smi -L >/dev/null 2>&1; } || compgen -G "$dev/nvidia[0-9]*" >/dev/null ||
    [ -e "$dev/dxg" ] || [ -e "$dev/nvhost-gpu" ]
}
cuda=${CUDA_HOME:-/usr/local/cuda}
pip_nccl() { "${PYTHON:-python3}" -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null; }
if gpu_is_here && ! have nvcc && ! have "$cuda/bin/nvcc"; then
  echo "setup: a GPU is here, but no nvcc: --device cuda needs the CUDA Toolkit (12.0 or later; Blackwell: 12.8) with"
  echo "  cuBLAS, and NCCL (nccl.h, libnccl.so.2; pip install nvidia-nccl-cu12 has both, for CUDA 13 -cu13); CUDA_HOME"
  echo "  and NCCL_HOME name them"
elif gpu_is_here && ! compiles '#include <nccl.h>' "${NCCL_HOME:+-I$NCCL_HOME/include} -I$cuda/include" &&
  [ ! -e "$(pip_nccl)/include/nccl.h" ]; then
  echo "setup: a GPU and nvcc are here, but no nccl.h: --device cuda needs NCCL (nccl.h, libnccl.so.2): Debian's"
  echo "  libnccl-dev, or pip install nvidia-nccl-cu12 (for CUDA 13 -cu13); NCCL_HOME names another"
fi

# If the compiler here is too old, installing this distribution's packages does not help.
# shellcheck disable=SC2086
if have "${CXX:-g++}" && ! "${CXX:-g++}" $flags -x c++ -std=c++17 -fsyntax-only /dev/null >/dev/null 2>&1; then
  echo "setup: $("${CXX:-g++}" --version | head -n 1) does not know $knows: g++ 11 or later is needed, or clang++ 12" \
    "or later, such as make CXX=clang++-13" >&2
  exit 1
fi
missing=()
have "${CXX:-g++}" || missing+=(compiler)
have make || missing+=(make)
have "${MPIRUN:-${MPI_HOME:+$MPI_HOME/bin/}mpirun}" || missing+=(mpirun)
have "${MPICC:-${MPI_HOME:+$MPI_HOME/bin/}mpicc}" || missing+=(mpicc)
compiles '#include <hwloc.h>' "${HWLOC_HOME:+-I$HWLOC_HOME/include}" || missing+=(hwloc)
compiles '#include <cjson/cJSON.h>' "${CJSON_HOME:+-I$CJSON_HOME/include}" || missing+=(cJSON)
compiles '#include <openssl/hmac.h>' "${OPENSSL_HOME:+-I$OPENSSL_HOME/include}" || missing+=(OpenSSL)
have curl || missing+=(curl)
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: nothing to install: compiler, make, OpenMPI, hwloc, cJSON, OpenSSL and curl are here"
  exit 0
fi
echo "setup: missing: ${missing[*]}"

# Package names by package manager.
apt_packages="g++ make openmpi-bin libopenmpi-dev libhwloc-dev libcjson-dev libssl-dev curl ca-certificates"
apt_packages="$apt_packages libsnappy1v5 libzstd1"        # for Parquet tables
if have apt-get; then install="apt-get update && apt-get install -y --no-install-recommends $apt_packages"
elif have dnf; then
  install="dnf install gcc-c++ make openmpi-devel hwloc-devel cjson-devel openssl-devel curl snappy"
  install="$install && module load mpi/openmpi-x86_64"
elif have zypper; then
  install="zypper install gcc-c++ make openmpi4-devel hwloc-devel cJSON-devel libopenssl-devel curl libsnappy1"
elif have pacman; then install="pacman -S --needed gcc make openmpi hwloc cjson openssl curl snappy"
else install=""
fi

cannot() {
  echo "setup: $1" >&2
  if [ -n "$install" ]; then
    echo "  to install, as root:  $install" >&2
  else
    echo "  needed: g++ >= 11, make, OpenMPI >= 4, hwloc >= 2.1, cJSON and OpenSSL >= 1.1.1 with headers, curl" >&2
  fi
  echo "  or, with libraries from environment modules or built by hand:" >&2
  echo "    make MPI_HOME=<holds include/ and lib/> HWLOC_HOME=<the same> CJSON_HOME=<the same>" \
    "OPENSSL_HOME=<the same> CXX=<compiler>" >&2
  exit 1
}

have apt-get || cannot "packages are installed automatically only with apt-get"
if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif have sudo && { sudo -n true 2>/dev/null || { [ -t 0 ] && [ -t 2 ]; }; }; then
  as_root=(sudo)                               # on a terminal sudo may ask for the password
else
  cannot "not root, and sudo is not available without a password"
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)

echo "setup: ${as_root[*]:+${as_root[*]} }$install"
# A failed update is no reason to stop: the lists may be fresh enough, and install reports what it cannot find.
"${apt[@]}" update >/dev/null || echo "setup: apt-get update failed; trying with the package lists that are here" >&2
# shellcheck disable=SC2086
"${apt[@]}" install -y --no-install-recommends $apt_packages >/dev/null ||
  cannot "apt-get could not install; on Ubuntu openmpi and cjson are in universe: add-apt-repository universe"
echo "setup: done. Optional: iproute2, for the test that trains on two hosts made of network namespaces"
