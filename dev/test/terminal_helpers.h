// terminal_helpers.h: a pseudo terminal, and what it shows.
#pragma once
#include <poll.h>
#include <sys/ioctl.h>

// What a terminal of `columns` shows, row by row, and how often a row was full and continued in the next.
enum { SCREEN_ROWS = 4000, SCREEN_COLUMNS = 240 };
struct Screen { int columns, row, column, wraps, escapes; char text[SCREEN_ROWS][SCREEN_COLUMNS + 1]; };
static inline void screen_open(Screen *s, int columns) {
  memset(s, 0, sizeof *s);
  s->columns = columns;
}
// Takes bytes up to the end of the last whole one of the three things that the program prints: text, \r \n, erase to
// the end of line.
static inline void screen_put(Screen *s, const char *p, size_t n) {
  for (const char *end = p + n; p < end && s->row < SCREEN_ROWS - 1; p++) {
    char *row = s->text[s->row];
    if (*p == '\r') s->column = 0;
    else if (*p == '\n') s->row++;
    else if (!strncmp(p, "\033[K", 3)) { row[s->column] = 0; p += 2; }
    else if (*p == '\033' || (*p & 0x80) == 0x80) s->escapes += *p == '\033';
    else {
      if (s->column == s->columns) { s->wraps++; row = s->text[++s->row]; s->column = 0; }
      for (size_t length = strlen(row); length < (size_t)s->column; length++) row[length] = ' ', row[length + 1] = 0;
      const bool last = !row[s->column];
      row[s->column] = *p;
      if (last) row[s->column + 1] = 0;
      s->column++;
    }
  }
}
// A pseudo terminal of `columns`. Returns its master; *slave is the other end's name.
static inline int pty_open(int columns, char *slave, size_t bytes) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  const struct winsize w = {24, (unsigned short)columns, 0, 0};
  if (master < 0 || grantpt(master) || unlockpt(master) || ioctl(master, TIOCSWINSZ, &w))
    SKIP("no pseudo terminals here");
  snprintf(slave, bytes, "%s", ptsname(master));
  return master;
}
