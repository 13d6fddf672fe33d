#!/usr/bin/env bash
# Whether every file includes only what its room may:
#
#   dev/check_rooms.sh "ROOM..." "DOOR..." FILE...
#
# ROOMS, each above those before it; `kernels` with the directories below it, and the trainer above all of them. No file
# includes a room above its own, itself in a circle, or of another room anything but its doors, which have at most 200
# lines; nothing below the trainer knows it. fsdp/ has its first door at the top: a page of at most 350 lines, which
# includes nothing of fsdp/; so it does not say what struct Fsdp has. Only base/newfile/ makes
# files (and data/files/disk.h links), so that none is made where another user's link leads: all other calls that can
# are rejected, also fopen with another mode than "r" or "rb" on its line. One line for each fault.
set -u
rooms=$1 doors=$2
shift 2
awk -F'"' -v rooms="$rooms trainer" -v doors="$doors" '
  BEGIN {
    n = split(rooms, r, " "); for (i = 1; i <= n; i++) level[r[i]] = i
    n = split(doors, d, " "); for (i = 1; i <= n; i++) {
      is_door[d[i]] = 1; r_ = room(d[i]); door[r_] = door[r_] (r_ in door && door[r_] ? " or " : "") d[i]
    }
  }
  function room(f) {
    if (f == "fsdp.h" || f ~ "^train") return f ~ "^f" ? "fsdp" : "trainer"
    sub("/[^/]*$", "", f); sub("^kernels/.*", "kernels", f)
    return f in level ? f : ""
  }
  function bad(why) { print FILENAME ":" FNR ": " why; failed = 1 }
  FNR == 1 { here = room(FILENAME) }
  FNR == 151 && FILENAME != "fsdp.h" && FILENAME in is_door { bad("a door of more than 150 lines") }
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
    there = room($2)
    if (!there) bad("includes " $2 ", which is in no room")
    if (there && level[there] > level[here]) bad("includes " $2 ", which is of a higher room")
    if (there != here && there in door && !($2 in is_door)) bad("includes " $2 ": " door[there] " is the door")
  }
  END { exit failed }' "$@" >&2
failed=$?
for f in "$@"; do case $f in *.h | *.cuh) echo "$f" ;; esac; done | xargs awk -F'"' '/^ *#include "/ {
    dir = FILENAME; sub("[^/]*$", "", dir); print FILENAME, ($2 ~ "/" || $2 == "fsdp.h" ? "" : dir) $2 }' |
  tsort >/dev/null || { echo "check-rooms: headers include each other in a circle" >&2; failed=1; }
exit $failed
