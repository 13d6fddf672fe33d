// errors.h: how the program says what is wrong: one line on stderr with the rank, what was asked, what was found, what
// to do; it ends every rank.
#pragma once
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "text.h"

// Exit codes: 2 the request is wrong (option, combination), 3 what it needs is missing (file, memory, peer), 1 a fault;
// 4: a rank died or was stopped, or no rank made progress; 5: the loss or the gradient was not finite; 85: a signal
// ended the run, which saved a checkpoint; 130: a signal ended the run.
enum { EXIT_FAULT = 1, EXIT_USAGE = 2, EXIT_MISSING = 3, EXIT_LOST = 4, EXIT_NOT_FINITE = 5, EXIT_SAVED = 85,
       EXIT_STOPPED = 130 };

extern const char *who_am_i;                     // "rank 1/2 on host": for error prefixes
extern void (*error_hook)(const char *line);     // prints an error after ending an open line; NULL: stderr
extern void (*die_hook)(int code);               // ends every rank (MPI_Abort) once MPI is up; NULL before

__attribute__((format(printf, 1, 0))) static inline void error_line(const char *fmt, va_list ap) {
  char line[2048 + 128];
  const int n = snprintf(line, 128, "%s%s", who_am_i ? who_am_i : "", who_am_i ? ": " : "");
  vsnprintf(line + n, 2048, fmt, ap);
  text_escape_line(line, sizeof line, "\n\t");   // names of files, and what files say
  fflush(stdout);
  if (error_hook) error_hook(line);
  else fprintf(stderr, "%s\n", line);
  fflush(stderr);
}
// One line on stderr; the program continues.
__attribute__((format(printf, 1, 2))) static inline void warn(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  error_line(fmt, ap);
  va_end(ap);
}
__attribute__((format(printf, 2, 3), noreturn)) static inline void die_with(int code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  error_line(fmt, ap);
  va_end(ap);
  if (die_hook) die_hook(code);
  exit(code);
}
// A fault of the program itself: names file and line.
#define CHECK(cond, fmt, ...) \
  do { if (!(cond)) die_with(EXIT_FAULT, fmt " (%s:%d)", ##__VA_ARGS__, __FILE__, __LINE__); } while (0)
// What the user asked cannot be done / what it needs is missing.
#define die_user(...) die_with(EXIT_USAGE, __VA_ARGS__)
#define die_missing(...) die_with(EXIT_MISSING, __VA_ARGS__)

// For functions that return false with one line in `error`: refuses if cond holds. A longer line is cut.
#define REFUSE(cond, ...) do { if (cond) return snprintf(error, error_bytes, __VA_ARGS__) < 0; } while (0)
