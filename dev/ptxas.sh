#!/usr/bin/env bash
# Reads what nvcc -Xptxas -v prints; writes a line per kernel and architecture, spilling ones first: bytes spilled and
# of the stack frame, registers, bytes of shared memory. Errors and wgmma multiplies that are serialized fail it.
c++filt | awk '
  /error|warning/ { print }
  /error/ { bad = 1 }
  /Potential Performance Loss: wgmma/ { print; bad = 1 }
  /Compiling entry/ {
    arch = $NF; name = $0; gsub(/\047/, "", arch); sub(/.*function ./, "", name); sub(/. for .*/, "", name) }
  /stack frame/ { stack = $1; spill = $5 + $9 }
  /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/); regs = substr($0, RSTART + 5, RLENGTH - 5); smem = 0
    if (match($0, /[0-9]+ bytes smem/)) smem = substr($0, RSTART, RLENGTH) + 0
    printf "%6d %6d %6d %8d  %-8s %s\n", spill, stack, regs, smem, arch, name | "sort -k1,1nr -k5,5 -k6" }
  BEGIN { print " spill  stack   regs   shared  arch     kernel" }
  END { exit bad }'
