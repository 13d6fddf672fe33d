// version.h: which program this is.
#pragma once
#include <stdio.h>

#define PROGRAM_VERSION "1.0.0"
// A checksum of the sources, which all ranks must have in common. The Makefile links an object that defines it, so that
// nothing else is compiled again because of it.
extern const char build_id[16] __attribute__((weak));
const char build_id[16] = "unknown";
// Why this build has no CUDA kernels, if it has none: what was missing.
extern const char build_no_cuda[256] __attribute__((weak));
const char build_no_cuda[256] = "nvcc was not found, or CUDA=0";

// "0.6.0 (build_id)".
static inline const char *program_build() {
  static char text[64];
  snprintf(text, sizeof text, "%s (%s)", PROGRAM_VERSION, build_id);
  return text;
}
