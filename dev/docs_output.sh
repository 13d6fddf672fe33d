#!/usr/bin/env bash
# What programs print in docs/*.md: a line of a page that is
#   <!-- printed by the first of these commands: dev/docs_output.sh -->
# stands before an indented block, which this script makes: it runs the first line of the commands above, and puts what
# that prints in the place of the block. A program's version and build are left out.
#   <!-- printed by the first of these commands: dev/docs_output.sh, parts 1 5:3 -->
# keeps of the parts, which empty lines separate, the first and three lines of the fifth; ... stands for what is left
# out.
#   dev/docs_output.sh [PAGE...]          writes the pages anew (docs/*.md)
#   dev/docs_output.sh check [PAGE...]    shows where they differ from what is printed; exit code 1 if any does
# TRAIN_GPT_FSDP: the program, if it is not ./train_gpt_fsdp.
set -u
cd "$(dirname "$0")/.." || exit 2
check=no
[ "${1:-}" = check ] && { check=yes; shift; }
[ $# -gt 0 ] || set -- docs/*.md
export PROGRAM=${TRAIN_GPT_FSDP:-./train_gpt_fsdp}
page_made() {
  awk '
    function made(command, parts,   line, n, list, of, most, part, lines, cut, i) {
      sub(/^\.\/train_gpt_fsdp/, ENVIRON["PROGRAM"], command)
      command = command " 2>&1"
      for (i = split(parts, list, " "); i; i--) { split(list[i] ":99999", of, ":"); most[of[1]] = of[2] }
      part = 1
      for (n = 0; (command | getline line) > 0; n++) {
        if (!n) sub(/^train_gpt_fsdp [0-9.]+ \([^)]*\)/, "train_gpt_fsdp ...", line)
        if (line == "") { part++; lines = 0; if (parts == "") print ""; continue }
        if (parts != "" && ++lines > most[part] + 0) { cut = 1; continue }
        if (cut) print "    ..."
        if (parts != "" && lines == 1 && n) print ""
        cut = 0
        print "    " line
      }
      if (cut) print "    ..."
      if (close(command) || !n) { print FILENAME ": this fails: " command >"/dev/stderr"; failed = 1 }
      for (i in most) if (i > part) { print FILENAME ": there is no part " i >"/dev/stderr"; failed = 1 }
      print ""
    }
    /^    / && !code { first = substr($0, 5); sub(/ +#.*/, "", first) }
    !skipping || /^[^ ]/ { code = /^    /; skipping = 0; print }
    /^<!-- printed by the first of these commands: / {
      parts = $0
      if (!sub(/.*, parts /, "", parts)) parts = ""
      sub(/ *-->.*/, "", parts)
      print ""
      made(first, parts)
      skipping = 1
    }
    END { exit failed }' "$1"
}
code=0
for page; do
  grep -q '^<!-- printed by the first of these commands: ' "$page" || continue
  new=$(mktemp) || exit 2
  if ! page_made "$page" >"$new"; then code=1
  elif [ $check = yes ]; then diff -u --label "$page" --label "printed now" "$page" "$new" || code=1
  else cmp -s "$page" "$new" || { cat "$new" >"$page"; echo "$page is written anew"; }
  fi
  rm -f "$new"
done
exit $code
