// progress.h: the progress line of training, and that of a save or a load.
#pragma once
#include "report.h"

// The fields of a progress line, in this order. Each is text; an empty one is left out.
enum ProgressField { PROGRESS_BAR, PROGRESS_STEP, PROGRESS_LOSS, PROGRESS_PAIRS, PROGRESS_LR, PROGRESS_NORM,
                     PROGRESS_RATE, PROGRESS_MFU, PROGRESS_ETA, PROGRESS_MEMORY, PROGRESS_SKIPPED, PROGRESS_SAVING,
                     PROGRESS_FIELDS };
// Fields are added in this order, until one does not fit. The first three are always there.
static const ProgressField progress_priority[] = {
    PROGRESS_STEP, PROGRESS_LOSS, PROGRESS_ETA, PROGRESS_BAR, PROGRESS_SKIPPED, PROGRESS_SAVING, PROGRESS_PAIRS,
    PROGRESS_RATE, PROGRESS_NORM, PROGRESS_LR, PROGRESS_MFU, PROGRESS_MEMORY};
enum { PROGRESS_ALWAYS = 3, PROGRESS_BAR_MAX = 20, PROGRESS_BAR_LEAST = 5, PROGRESS_BYTES = 48 };
// step, steps: for the bar; text: of each field, "": left out (that of the bar only says whether there is one).
struct Progress { int64_t step, steps; char text[PROGRESS_FIELDS][PROGRESS_BYTES]; };

// Writes seconds as 9:59 or 1:00:00.
static void eta_text(char *to, size_t bytes, int64_t seconds) {
  const long long h = seconds / 3600, m = seconds / 60 % 60, s = seconds % 60;
  if (h) snprintf(to, bytes, "%lld:%02lld:%02lld", h, m, s);
  else snprintf(to, bytes, "%lld:%02lld", m, s);
}
// The line for a terminal of `columns` (0: not a terminal, all fields). One column stays free, so that nothing wraps.
// The bar takes the room that the other fields leave. If even the first three fields do not fit, the caller cuts.
static void progress_line(char *to, size_t bytes, const Progress *p, int columns) {
  bool there[PROGRESS_FIELDS] = {};
  const int room = columns ? columns - 1 : INT32_MAX;
  int used = -2, bar = PROGRESS_BAR_MAX;
  to[0] = 0;
  for (int i = 0; i < PROGRESS_FIELDS; i++) {
    const ProgressField f = progress_priority[i];
    if (!p->text[f][0]) continue;
    const int more = f == PROGRESS_BAR ? PROGRESS_BAR_LEAST + 3 : 2 + (int)strlen(p->text[f]);
    if (i >= PROGRESS_ALWAYS && used + more > room) break;
    there[f] = true;
    used += more;
  }
  const bool tight = used > room;                // then the total number of steps is left out
  if (columns && there[PROGRESS_BAR]) bar = (int)min64(bar, PROGRESS_BAR_LEAST + room - used);
  if (there[PROGRESS_BAR]) {
    char text[PROGRESS_BAR_MAX + 1] = "";
    for (int i = 0; i < bar; i++) text[i] = i * p->steps < p->step * bar ? '#' : '.';
    text_add(to, bytes, "[%s] ", text);
  }
  const size_t first = strlen(to);
  for (int f = PROGRESS_STEP; f < PROGRESS_FIELDS; f++) {
    const int length = f == PROGRESS_STEP && tight ? (int)strcspn(p->text[f], "/") : (int)strlen(p->text[f]);
    if (there[f]) text_add(to, bytes, "%s%.*s", strlen(to) > first ? "  " : "", length, p->text[f]);
  }
}
