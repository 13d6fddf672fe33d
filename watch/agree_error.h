// agree_error.h: an error of one rank ends all of them.
#pragma once
#include "watch.h"
#include <signal.h>

// From here on this process ends with exit code `code` even if it crashes: everything is done and printed, except
// MPI_Finalize. On a busy machine a thread of Open MPI 4.1 now and then crashes in that: it calls a function of the
// PMIx plugin (mca_pmix_ext3x) that MPI_Finalize has just unloaded.
static int leaving_code;
static inline void leave_now(int) {
  static const char words[] = "warning: MPI_Finalize crashed after all was done\n";
  if (!leaving_code && write(STDERR_FILENO, words, sizeof words - 1) < 0) {}
  _exit(leaving_code);
}
void leave_even_by_a_crash(int code) {
  leaving_code = code;
  for (int s : {SIGSEGV, SIGBUS, SIGFPE}) signal(s, leave_now);
  if (!code) return;
  signal(SIGABRT, leave_now);                    // with code 0 it may be the heap reporting a bug of this program
  // A launcher ends the ranks that are left when the first has gone; what there is to say has been said. A run that
  // lost a rank may be started again, one that a signal ended not: there the signal keeps its exit code.
  for (int s : {SIGTERM, SIGINT, SIGHUP}) if (code != EXIT_LOST && signal(s, leave_now) == SIG_IGN) signal(s, SIG_IGN);
}
void agree_no_error(MPI_Comm comm, const char *error, int code) {
  int rank, mine, lowest;
  MPI_Comm_rank(comm, &rank);
  mine = error[0] ? rank : INT32_MAX;
  MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, comm);
  if (lowest == INT32_MAX) return;
  if (rank == lowest) warn("%s", error);
  leave_even_by_a_crash(code);
  MPI_Finalize();
  exit(code);
}
