// errors.h: how the program says what is wrong: one line on stderr with the rank, what was asked, what was found, what
// to do; it ends every rank.
#pragma once
#include "text.h"

const char *who_am_i;
void (*error_hook)(const char *line);
void (*die_hook)(int code);

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
void warn(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  error_line(fmt, ap);
  va_end(ap);
}
void die_with(int code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  error_line(fmt, ap);
  va_end(ap);
  if (die_hook) die_hook(code);
  exit(code);
}
bool fail(Error *e, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(e->text, sizeof e->text, fmt, ap);
  va_end(ap);
  if (e->code) text_escape_line(e->text, sizeof e->text);        // of data: names of files, of columns, of roles
  return false;
}
