#!/usr/bin/env bash
# What can be downloaded: the program with its own Open MPI and the libraries that both need, which starts on a Linux
# that has none of them.
#
#   dev/dist.sh archive [x86_64|aarch64]   OUT/train_gpt_fsdp-VERSION-linux-ARCH.tar.gz
#   dev/dist.sh wheel [x86_64|aarch64]     the same for pip, OUT/train_gpt_fsdp-VERSION-py3-none-manylinux_2_31_ARCH.whl
#
# OUT is dist. Libraries and headers are those of Debian 11 with its security updates, the oldest release that Debian's
# mirrors still have: glibc 2.31, so the program starts on Debian 11, Ubuntu 20.04, RHEL 9 and later. The compiler is
# this machine's, because that of Debian 11 knows no AMX. Nothing is installed; packages are unpacked in build/dist.
# They come from MIRROR=URL, a mirror of Debian, and from the security updates beside it, URL-security or
# MIRROR_SECURITY=URL; without MIRROR from where this machine's own packages come from, if it is a Debian. Needs Debian
# or Ubuntu, g++ (or g++-aarch64-linux-gnu), make, patchelf, and python3 for the wheel. CUDA code is compiled for all
# GPUs since sm_80 where nvcc is here, on x86_64 only; ARCHS= chooses, CUDA=0 leaves it out.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
work=$top/build/dist
out=${OUT:-$top/dist}
suite=bullseye glibc=2_31 keys=/usr/share/keyrings/debian-archive-keyring.gpg
refuse() { echo "dist: $1" >&2; exit 3; }

what=${1:-} arch=${2:-$(uname -m)}
case $what in archive | wheel) ;; *) echo "dist: archive or wheel, then x86_64 or aarch64" >&2; exit 2 ;; esac
case $arch in
  x86_64) debian=amd64 triple=x86_64-linux-gnu ;;
  aarch64) debian=arm64 triple=aarch64-linux-gnu ;;
  *) echo "dist: '$arch' is neither x86_64 nor aarch64" >&2; exit 2 ;;
esac
compiler=$triple-g++
command -v "$compiler" >/dev/null || compiler=g++
[ "$("$compiler" -dumpmachine 2>/dev/null)" = "$triple" ] || refuse "no $triple-g++: apt-get install g++-$triple"
for tool in apt-get dpkg make patchelf; do command -v $tool >/dev/null || refuse "no $tool: apt-get install $tool"; done
version=$(sed -n 's/^#define PROGRAM_VERSION "\(.*\)"/\1/p' "$top/run/options/version.h")
name=train_gpt_fsdp-$version-linux-$arch
root=$work/$debian lib=usr/lib/$triple packed=lib/$triple tree=$work/$name

# ---- the libraries to build with -------------------------------------------------------------------------------------
# This machine's own source of Debian's packages; $1: of its security updates. Nothing where it is no Debian.
own_source() {
  apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    sed -n "s|^Debian \(.*/debian${1:-}\)/*\$|\1|p" | sort -u | head -n 1
}
find_mirror() {
  if [ -z "${MIRROR:-}" ]; then
    MIRROR=$(own_source)
    MIRROR_SECURITY=${MIRROR_SECURITY:-$(own_source -security)}
  fi
  [ -n "$MIRROR" ] ||
    refuse "apt knows no source of Debian's packages here: name a mirror of it, MIRROR=http://HOST/debian"
  MIRROR=${MIRROR%/}
  MIRROR_SECURITY=${MIRROR_SECURITY:-$MIRROR-security}
}
# An apt of its own, which knows $suite only and thinks that nothing is installed.
own_apt() {
  local apt=$root.apt
  mkdir -p "$apt"/{lists/partial,archives/partial,etc/parts,etc/preferences.d} "$root.debs"
  : >"$apt/status"
  [ -e $keys ] || refuse "no $keys: apt-get install debian-archive-keyring"
  printf 'deb [signed-by=%s] %s main\n' $keys "$MIRROR $suite" $keys "${MIRROR_SECURITY%/} $suite-security" \
    >"$apt/etc/sources.list"
  cat >"$apt/apt.conf" <<C
Dir::State "$apt"; Dir::State::status "$apt/status"; Dir::State::lists "$apt/lists";
Dir::Cache "$apt"; Dir::Cache::archives "$apt/archives";
Dir::Etc "$apt/etc"; Dir::Etc::sourcelist "sources.list"; Dir::Etc::sourceparts "parts"; Dir::Etc::parts "parts";
APT::Architecture "$debian"; APT::Architectures { "$debian"; }; APT::Sandbox::User "root";
Acquire::Check-Valid-Until "false";
C
  export APT_CONFIG=$apt/apt.conf
}
# Headers are not packed: where the mirror lacks an update of theirs, those of the release serve, and a line says so.
download() {
  cd "$root.debs"
  apt-get -qq download "$1" 2>"$root.log" || case $1 in
    lib*-10-dev | libc6-dev | *[!v]) refuse "$1 cannot be downloaded: $(grep -m 1 '^E:' "$root.log")" ;;
    *) apt-get -qq download "$1/$suite" 2>"$root.log" || refuse "$1 cannot be downloaded: $(head -n 1 "$root.log")"
      echo "dist: $1 is that of $suite: its security update cannot be downloaded" >&2 ;;
  esac
  cd "$OLDPWD"
}
fetch_libraries() {
  local packages package deb link to
  [ ! -e "$root/.whole" ] || return 0
  find_mirror
  own_apt
  # Without its security updates old libraries would be packed: both must be there.
  apt-get -qq -o APT::Update::Error-Mode=any update ||
    refuse "$suite or $suite-security cannot be read: MIRROR= and MIRROR_SECURITY= name others"
  # All that a machine on which nothing is installed would get, of which these names.
  packages=$(apt-get -s install --no-install-recommends openmpi-bin libopenmpi-dev libhwloc-dev libcjson-dev \
    libssl-dev libc6-dev libstdc++-10-dev 2>/dev/null | awk '/^Inst/ { print $2 }' | grep -E \
    -e '^(openmpi-|linux-libc-dev|zlib1g$)' -e '^lib(openmpi|cjson|ssl|c6|crypt|nsl|pmix|udev1|numa1|ltdl7)' \
    -e '^lib(gcc|stdc\+\+)-10-dev' -e '^lib(event-(core|pthreads)|hwloc(-dev|[0-9]))')
  for package in $packages; do download "$package"; done
  unset APT_CONFIG
  for deb in "$root.debs"/*.deb; do dpkg -x "$deb" "$root"; done
  # Links from the root lead out of the directory.
  find "$root" -type l -lname '/*' | while read -r link; do
    to=$(readlink "$link")
    ln -sfnr "$root$to" "$link"
  done
  ln -sfn libmpi.so.40 "$root/$lib/libmpi.so"
  touch "$root/.whole"
}
# Compilers that see those libraries instead of this machine's. -B: the objects that start and end a program, too. The
# static libraries of GCC 10: those of later ones ask for a later libc.
make_compilers() {
  local headers release
  release=$("$compiler" -dumpversion)
  headers=/usr/include/c++/$release
  [ ! -d "/usr/$triple/include/c++" ] || headers=/usr/$triple/include/c++/$release    # a cross compiler's
  mkdir -p "$work/bin-$arch"
  cat >"$work/bin-$arch/g++" <<C
#!/bin/sh
exec ${CCACHE:-} $compiler --sysroot=$root -B$root/$lib/ -nostdinc++ -isystem $headers \\
  -isystem $([ -d "$headers/$triple" ] && echo "$headers/$triple" || echo "/usr/include/$triple/c++/$release") \\
  -L$root/usr/lib/gcc/$triple/10 -L$root/$lib -L$root/lib/$triple \\
  -Wl,-rpath-link,$root/$lib:$root/lib/$triple -static-libstdc++ -static-libgcc "\$@"
C
  cat >"$work/bin-$arch/mpicc" <<C
#!/bin/sh
case \$1 in
  --showme:compile) echo -I$root/$lib/openmpi/include ;;
  --showme:link) echo -L$root/$lib -lmpi -lpthread -ldl ;;
  *) exit 1 ;;
esac
C
  chmod +x "$work/bin-$arch"/*
}
build() {
  local cuda=${CUDA:-1} archs=${ARCHS:-} a
  [ "$arch" = "$(uname -m)" ] || cuda=0
  if [ -z "$archs" ] && [ "$cuda" != 0 ] && command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" >/dev/null; then
    # Code for 8.0 runs on 8.6 and 8.9, that for 10.0 on 10.3, for 12.0 on 12.1; PTX for all others since 9.0.
    for a in 80 90a 100 120; do archs="$archs -gencode arch=compute_$a,code=sm_$a"; done
    archs="$archs -gencode arch=compute_90,code=compute_90"
  fi
  # Unlike RUNPATH, an RPATH holds for the libraries of the libraries, and of Open MPI's plugins.
  echo "dist: compiling for $arch$([ "$cuda" = 0 ] || echo ' and for GPUs') on $(nproc) cores: this takes minutes" >&2
  env -u MAKEFLAGS -u MAKELEVEL make -C "$top" -j"$(nproc)" B="$work/$arch" \
    TRAINER="$work/$arch/train_gpt_fsdp" CUDA="$cuda" ${archs:+ARCHS="$archs"} \
    CXX="$work/bin-$arch/g++" MPICC="$work/bin-$arch/mpicc" NVCCFLAGS="--compress-mode=size" \
    LDFLAGS="-Wl,--disable-new-dtags -Wl,-rpath,'\$\$ORIGIN/openmpi/$packed'" "$work/$arch/train_gpt_fsdp"
}

# ---- the directory that is packed ------------------------------------------------------------------------------------
# A library under the name that others ask for, without links: wheels have none.
take_library() {
  local from
  from=$(find "$root/$lib" "$root/lib/$triple" -maxdepth 1 -name "$1" -print -quit)
  [ -n "$from" ] || refuse "no $1 in $root"
  [ -e "$tree/openmpi/$packed/$1" ] || cp -L "$from" "$tree/openmpi/$packed/$1"
}
# What FILE asks for, but the system's own libraries: glibc's.
needed() {
  readelf -d "$@" 2>/dev/null | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort -u |
    grep -vE '^(lib(c|m|dl|rt|pthread|util|resolv|nsl)\.so|ld-linux)' || true
}
gather() {
  local prefix=$tree/openmpi plugins=openmpi/lib/openmpi3 before file soname package
  rm -rf "$tree"
  mkdir -p "$prefix/bin" "$prefix/$packed/openmpi/lib" "$prefix/share" "$tree/licenses"
  cp "$work/$arch/train_gpt_fsdp" "$top/README.md" "$top/CHANGELOG.md" "$tree/"
  cp "$top/LICENSE" "$tree/licenses/train_gpt_fsdp"
  cp -r "$top/docs" "$tree/"
  cp "$root/usr/bin/orterun" "$prefix/bin/mpirun"  # it says by its name what it is
  cp "$root/usr/bin/orted" "$prefix/bin/"
  cp -r "$root/usr/share/openmpi" "$prefix/share/"
  cp -rL "$root/$lib/$plugins" "$prefix/$packed/openmpi/lib/"
  cp -rL "$root/etc/openmpi" "$prefix/etc"
  cp -rL "$root/$lib/pmix2/lib/pmix" "$prefix/pmix"
  # Networks other than TCP and OpenSHMEM ask for more libraries; Java and Fortran have no use here.
  find "$prefix/$packed/$plugins" -type f | grep -E -e '/mca_(spml|scoll|sshmem|atomic|memheap)_[^/]*$' \
    -e '/mca_.*_(ofi|psm2?|ucx|verbs|usnic|openib|netlink|portals4)\.so$' | xargs rm -f
  while :; do                                    # libraries of libraries
    before=$(ls "$prefix/$packed" | wc -l)
    # shellcheck disable=SC2046
    for soname in $(needed "$tree/train_gpt_fsdp" "$prefix"/bin/* $(find "$prefix" -name '*.so*' -type f)); do
      [ -e "$prefix/$packed/$plugins/$soname" ] || take_library "$soname"
    done
    [ "$before" != "$(ls "$prefix/$packed" | wc -l)" ] || break
  done
  # A path of their own, to /usr, would hide that of the program.
  find "$prefix" -name '*.so*' -type f -exec patchelf --remove-rpath {} +
  for file in "$prefix"/bin/*; do patchelf --force-rpath --set-rpath "\$ORIGIN/../$packed" "$file"; done
  strip -s "$tree/train_gpt_fsdp" 2>/dev/null || "$triple-strip" -s "$tree/train_gpt_fsdp"
  for package in libopenmpi3 libhwloc15 libcjson1 libssl1.1 libevent-core-2.1-7 libpmix2 zlib1g libltdl7 libudev1; do
    [ ! -e "$root/usr/share/doc/$package/copyright" ] ||
      cp -L "$root/usr/share/doc/$package/copyright" "$tree/licenses/$package"
  done
  cat >"$tree/mpirun" <<'C'
#!/bin/sh
# The Open MPI of this directory, wherever it is.
export PATH="${PATH:+$PATH:}/usr/bin:/bin"       # unset, the shell would find commands, and Open MPI would not
here=$(readlink -f "$0") && here=${here%/*} || exit 127
export OPAL_PREFIX="$here/openmpi" OPAL_SYSCONFDIR="$here/openmpi/etc" \
  PMIX_MCA_mca_base_component_path="$here/openmpi/pmix"
# Open MPI asks for ssh even where all ranks are on this host.
case " $* " in
  *plm*) ;;
  *) command -v ssh >/dev/null || command -v rsh >/dev/null || export OMPI_MCA_plm="${OMPI_MCA_plm:-isolated}" ;;
esac
exec "$here/openmpi/bin/mpirun" "$@"
C
  chmod +x "$tree/mpirun"
}

# ---- the archive, the wheel ------------------------------------------------------------------------------------------
archive() {
  mkdir -p "$out"
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git -C "$top" log -1 --format=%ct)" \
    -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
  (cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
  echo "dist: $out/$name.tar.gz, $(du -m "$out/$name.tar.gz" | cut -f 1) MB"
}
wheel() {
  python3 "$top/dev/wheel.py" "$tree" "$out" "$version" "manylinux_${glibc}_$arch"
}
fetch_libraries
make_compilers
build
gather
"$what"
