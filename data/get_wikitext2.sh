#!/usr/bin/env bash
# get_wikitext2.sh [DIRECTORY]: fetches WikiText-2 (Merity et al. 2016, CC BY-SA 3.0) as train.txt, valid.txt, test.txt
# into DIRECTORY (wikitext-2 beside this script if not given). A file that is there and whole is kept; a
# damaged one is fetched again. Each file is checked against the git blob id of the mirror's copy before it takes its
# name, so no half or foreign file is ever found under it.
#
# Environment
#   WIKITEXT2_URL          where the three files are; default: github.com/pytorch/examples
#   WIKITEXT2_BLOB_TRAIN   git blob ids to expect instead (also _VALID, _TEST), for another mirror's copies
#   WIKITEXT2_TIMEOUT      seconds for one try at one file (300)
#   WIKITEXT2_TRIES        tries for one file (3)
#   WIKITEXT2_FETCH        curl or wget; default: whichever is here
# Exit status: 0 all three are there, 1 this machine lacks a tool or cannot write, 2 wrong use, 3 a file could not be
# fetched, 4 a fetched file has other contents than expected
set -u
url=${WIKITEXT2_URL:-https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2}
seconds=${WIKITEXT2_TIMEOUT:-300}
tries=${WIKITEXT2_TRIES:-3}
part=

say() { echo "wikitext-2: $*"; }
fail() { status=$1; shift; echo "wikitext-2: $*" >&2; exit "$status"; }
have() { command -v "$1" >/dev/null 2>&1; }
trap '[ -z "$part" ] || rm -f "$part" "$part.log"' EXIT
trap 'exit 1' HUP INT TERM

case ${1:-} in -*) fail 2 "usage: ${0##*/} [DIRECTORY]; settings are environment variables, not options" ;; esac
[ $# -le 1 ] || fail 2 "usage: ${0##*/} [DIRECTORY]; $# arguments were given"
case $seconds$tries in
  *[!0-9]*) fail 2 "WIKITEXT2_TIMEOUT=$seconds and WIKITEXT2_TRIES=$tries must be whole numbers" ;;
esac
patience=$((seconds < 15 ? seconds : 15))        # for a connection that stays silent
directory=${1:-$(dirname "$0")/wikitext-2}

if have sha1sum; then sha1() { sha1sum; }
elif have shasum; then sha1() { shasum; }
elif have openssl; then sha1() { openssl sha1 -r; }
else fail 1 "needs sha1sum, shasum or openssl to check what it fetches; install coreutils"
fi
# A git blob id is the SHA-1 of "blob SIZE", a zero byte, and the contents.
blob_id() {
  local size
  size=$(($(wc -c < "$1")))
  { printf 'blob %s\0' "$size"; cat "$1"; } | sha1 | cut -c 1-40
}

# get URL FILE LOG: one try. Error messages go to LOG.
get() {
  case $fetch in
    curl) timed curl -fsSL --connect-timeout "$patience" --max-time "$seconds" -o "$2" "$1" 2>"$3" ;;
    wget) timed wget -nv $one_try -T "$patience" -O "$2" "$1" 2>"$3" ;;
  esac
}
# Whether the server refuses to serve this: another try is useless (408 and 429 ask for one).
refused() { grep -Eiq 'error:? ([^ ]+ )?4(0[0-79]|1[0-9])([^0-9]|$)' "$1"; }
timed() { if have timeout; then timeout "$((seconds + 5))" "$@"; else "$@"; fi; }

fetch_file() {  # NAME BLOB_ID
  local file=$directory/$1 found try
  if [ -f "$file" ]; then
    found=$(blob_id "$file")
    if [ "$found" = "$2" ]; then say "$file is there and whole"; return; fi
    say "$file is damaged (git blob id $found, expected $2): fetching it again"
  fi
  part=$directory/.$1.$$
  : > "$part" || fail 1 "cannot write into $directory"
  try=1
  until get "$url/$1" "$part" "$part.log"; do
    found=$(tail -n 1 "$part.log")
    refused "$part.log" && fail 3 "$url/$1 is not there ($found); set WIKITEXT2_URL to a mirror, or WIKITEXT2_DIR to a \
directory that holds the files"
    [ "$try" -lt "$tries" ] || fail 3 "could not fetch $url/$1 with $fetch, tries: $tries (${found:-no answer in \
time}); is there a network? Set WIKITEXT2_URL to a mirror, or WIKITEXT2_DIR to a directory that holds the files"
    sleep "$try"
    try=$((try + 1))
  done
  found=$(blob_id "$part")
  [ "$found" = "$2" ] || fail 4 "$url/$1 has other contents than expected: $(($(wc -c < "$part"))) bytes, git blob id \
$found, expected $2; nothing was kept"
  if ! { chmod 644 "$part" && mv -f "$part" "$file"; }; then fail 1 "cannot write $file"; fi
  rm -f "$part.log"
  part=
  say "fetched $file ($(($(wc -c < "$file"))) bytes), git blob id as pinned"
}

if ! { mkdir -p "$directory" 2>/dev/null && [ -w "$directory" ]; }; then fail 1 "cannot write into $directory"; fi
fetch=${WIKITEXT2_FETCH:-$(if have curl; then echo curl; elif have wget; then echo wget; else echo none; fi)}
case $fetch in
  curl|wget) have "$fetch" || fail 1 "WIKITEXT2_FETCH=$fetch is not installed" ;;
  none) fail 1 "needs curl or wget: install one (dev/setup.sh does)" ;;
  *) fail 2 "WIKITEXT2_FETCH=$fetch must be curl or wget" ;;
esac
one_try=                                         # GNU wget tries 20 times by itself; BusyBox's once, without the option
if [ "$fetch" = wget ] && wget --help 2>&1 | grep -q -e --tries; then one_try=--tries=1; fi
fetch_file train.txt "${WIKITEXT2_BLOB_TRAIN:-2d84b35af79e411d73ea7cae83c73964c6ac83b4}"
fetch_file valid.txt "${WIKITEXT2_BLOB_VALID:-eec944eb2d9e46061cd34a6913528797db6842fc}"
fetch_file test.txt "${WIKITEXT2_BLOB_TEST:-6f3fc88e4cd88456ea892971f9f12243e8428624}"
