#!/usr/bin/env bash
# Whether each module's object exports exactly what its public headers declare, and whether somebody outside the module
# uses it:
#
#   dev/check_public_headers.sh OBJECTS MODULE=HEADER[+DOOR]...
#
# OBJECTS: the directory of all objects of the program, MODULE.o among them; those of tests, test_*.o, do not count. One
# line for each fault; 1 if there are any. The last line counts the names of all public headers and those that one
# object uses: many of these may mean that a public header lists steps of its caller's work.
set -euo pipefail
export LC_ALL=C
objects=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Names that public headers declare: functions and extern variables that start in the first column.
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
fault() { echo "check-public-headers: $1" >&2; bad=1; }
for o in "$objects"/*.o; do [[ ${o##*/} = test_* ]] || wanted "$o" > "$work/$(basename "$o").wants"; done
for pair in "$@"; do
  module=${pair%%=*} header=${pair#*=}
  declared ${header//+/ } > "$work/declared"
  exported "$objects/$module.o" > "$work/exported"
  while read -r name; do fault "$module.o exports $name, which $header does not declare: make it static"
  done < <(comm -23 "$work/exported" "$work/declared")
  while read -r name; do fault "$header declares $name, which $module.o does not have"
  done < <(comm -13 "$work/exported" "$work/declared")
  for o in "$objects"/*.o; do
    [[ $o = "$objects/$module.o" || ${o##*/} = test_* ]] || cat "$work/$(basename "$o").wants"
  done > "$work/uses"
  sort -u "$work/uses" > "$work/used"
  while read -r name; do fault "$header declares $name, which nobody outside $module.o calls: take it back"
  done < <(comm -12 "$work/declared" "$work/exported" | comm -23 - "$work/used")
  names=$((names + $(wc -l < "$work/declared")))
  once=$((once + $(sort "$work/uses" | uniq -u | comm -12 - "$work/declared" | wc -l)))
done
echo "check-public-headers: $names names in public headers, $once of them used by one object"
exit $bad
