#!/usr/bin/env bash
# Whether every file includes only what its module may:
#
#   dev/check_modules.sh "MODULE..." "HEADER..." FILE...
#
# MODULES, each above those before it; `kernels` with the directories below it, and the trainer above all of them. No
# file includes a module above its own, itself in a circle, or of another module anything but its public headers, which
# have at most 200 lines; nothing below the trainer knows it. fsdp/ has its first public header at the top: a page of at
# most 350 lines, which includes nothing of fsdp/; so it does not say what struct Fsdp has. Only base/newfile/ makes
# files (and data/files/disk.h links), so that none is made where another user's link leads: all other calls that can
# are rejected, also fopen with another mode than "r" or "rb" on its line. One line for each fault.
set -u
modules=$1 headers=$2
shift 2
awk -F'"' -v modules="$modules trainer" -v headers="$headers" '
  BEGIN {
    n = split(modules, r, " "); for (i = 1; i <= n; i++) level[r[i]] = i
    n = split(headers, d, " "); for (i = 1; i <= n; i++) {
      is_door[d[i]] = 1; r_ = module(d[i]); header[r_] = header[r_] (r_ in header && header[r_] ? " or " : "") d[i]
    }
  }
  function module(f) {
    if (f == "fsdp.h" || f ~ "^train") return f ~ "^f" ? "fsdp" : "trainer"
    sub("/[^/]*$", "", f); sub("^kernels/.*", "kernels", f)
    return f in level ? f : ""
  }
  function bad(why) { print FILENAME ":" FNR ": " why; failed = 1 }
  FNR == 1 { here = module(FILENAME) }
  FNR == 151 && FILENAME != "fsdp.h" && FILENAME in is_door { bad("a public header of more than 150 lines") }
  FNR == 351 && FILENAME == "fsdp.h" { bad("a page of more than 350 lines") }
  FILENAME == "fsdp.h" && /^ *#include "fsdp\// { bad("includes " $2 ": the page has no inside") }
  here != "trainer" && /(^|[^A-Za-z_])Trainer([^A-Za-z_]|$)/ { bad("names Trainer") }
  here && here != "base/newfile" {
    code = $0; sub("//.*", "", code)
    if (code ~ /O_CREAT|O_TMPFILE|SYS_(open|creat|mknod|link|symlink)|ofstream/ ||
        code ~ /(^|[^a-z_])(creat|freopen|tmpfile|mk[od]*s?temps?|mknod|mkfifo|link)(at|64)? *\(/ ||
        (FILENAME != "data/files/disk.h" && code ~ /(^|[^a-z_])symlink(at)? *\(/) ||
        (code ~ /(^|[^a-z_])fopen(64)? *\(/ && code !~ /fopen *\(.*, "rb?"\)/))
      bad("makes a file: base/newfile/newfile.h has the functions for that")
  }
  /^ *#include "/ && here && ($2 ~ "/" || $2 == "fsdp.h") {
    there = module($2)
    if (!there) bad("includes " $2 ", which is in no module")
    if (there && level[there] > level[here]) bad("includes " $2 ", which is of a higher module")
    if (there != here && there in header && !($2 in is_door))
      bad("includes " $2 ": " header[there] " is the public header")
  }
  END { exit failed }' "$@" >&2
failed=$?
for f in "$@"; do case $f in *.h | *.cuh) echo "$f" ;; esac; done | xargs awk -F'"' '/^ *#include "/ {
    dir = FILENAME; sub("[^/]*$", "", dir); print FILENAME, ($2 ~ "/" || $2 == "fsdp.h" ? "" : dir) $2 }' |
  tsort >/dev/null || { echo "check-modules: headers include each other in a circle" >&2; failed=1; }
exit $failed
