#!/usr/bin/env bash
# Whether each room's object exports exactly what its doors declare, and whether somebody outside the room uses it:
#
#   dev/check_doors.sh OBJECTS ROOM=DOOR[+DOOR]...
#
# OBJECTS: the directory of all objects of the program, ROOM.o among them; those of tests, test_*.o, do not count. One
# line for each fault; 1 if there are any. The last line counts the names of all doors and those that one object uses:
# many of these may mean that a door lists steps of its caller's work.
set -euo pipefail
export LC_ALL=C
objects=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Names that doors declare: functions and extern variables that begin in the first column.
declared() {
  sed -e 's|//.*||' "$@" | awk '
    /^(#|static|struct|enum|typedef|template|union|[ }])/ && !open { next }
    /^[A-Za-z_]/ || open { text = text " " $0; open = text !~ /;/ }
    text && !open { print text; text = "" }' | sed -E -e 's/__attribute__\(\(([^()]|\([^()]*\))*\)\)//g' \
    -e 's/\(\*([A-Za-z_0-9]+)\)\(.*/\1/' -e 's/[[(=;].*//' -e 's/^.*[^A-Za-z_0-9]([A-Za-z_0-9]+) *$/\1/' | sort -u
}
# Symbols of an object without what a compiler adds for templates: nm's letters T, B, D, R are plain definitions.
exported() { nm -gC --defined-only "$1" | sed -nE 's/^[0-9a-f]+ [TBDR] ([A-Za-z_0-9]+).*/\1/p' | sort -u; }
wanted() { nm -uC "$1" | sed -nE 's/^ +[Uw] ([A-Za-z_0-9]+).*/\1/p' | sort -u; }

bad=0 names=0 once=0
fault() { echo "check-doors: $1" >&2; bad=1; }
for o in "$objects"/*.o; do [[ ${o##*/} = test_* ]] || wanted "$o" > "$work/$(basename "$o").wants"; done
for pair in "$@"; do
  room=${pair%%=*} door=${pair#*=}
  declared ${door//+/ } > "$work/declared"
  exported "$objects/$room.o" > "$work/exported"
  while read -r name; do fault "$room.o exports $name, which $door does not declare: make it static"
  done < <(comm -23 "$work/exported" "$work/declared")
  while read -r name; do fault "$door declares $name, which $room.o does not have"
  done < <(comm -13 "$work/exported" "$work/declared")
  for o in "$objects"/*.o; do
    [[ $o = "$objects/$room.o" || ${o##*/} = test_* ]] || cat "$work/$(basename "$o").wants"
  done > "$work/uses"
  sort -u "$work/uses" > "$work/used"
  while read -r name; do fault "$door declares $name, which nobody outside $room.o calls: take it back into its file"
  done < <(comm -12 "$work/declared" "$work/exported" | comm -23 - "$work/used")
  names=$((names + $(wc -l < "$work/declared")))
  once=$((once + $(sort "$work/uses" | uniq -u | comm -12 - "$work/declared" | wc -l)))
done
echo "check-doors: $names names in doors, $once of them used by one object"
exit $bad
