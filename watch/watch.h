// watch.h: the public header of watch/: what a rank did last (flight recorder), what it reports about itself
// (liveness), and the threads that pass that on and end a run that hangs (heartbeats).
//
// Code that waits for another rank reports it: by LIVENESS_MPI, which this header puts around all calls of MPI that
// wait, or by liveness_wait and liveness_arrived. If only some ranks know of an error, agree_no_error ends all ranks.
#pragma once
#include "base/base.h"

#include <mpi.h>

// ---- flight.h -------------------------------------------------------------------------------------------------------
// X(identifier, word in files). `what` of an entry: the op; the phase; the kind of collective; what is waited for.
#define FLIGHT_KINDS(X) \
  X(FLIGHT_STEP, "step")       /* starts; what: NULL */ \
  X(FLIGHT_PHASE, "phase")     \
  X(FLIGHT_STAGE, "stage")     /* the weights of the stage are complete, its ops follow */ \
  X(FLIGHT_OP, "op")           /* was called */ \
  X(FLIGHT_BEGIN, "begin")     /* of a collective: this rank takes part from here on */ \
  X(FLIGHT_END, "end")         /* of a collective */ \
  X(FLIGHT_WAIT, "wait")       /* the main thread waits */ \
  X(FLIGHT_CAME, "came")       /* the main thread's wait is over */
#define X(id, word) id,
enum FlightKind { FLIGHT_KINDS(X) FLIGHT_KIND_COUNT };
#undef X
extern const char *const flight_kind_words[FLIGHT_KIND_COUNT];
enum { FLIGHT_ENTRIES = 1024, FLIGHT_FORMAT = 1 };         // of a ring: a power of two; of its file
enum { STAGE_NONE = -1, MICROBATCH_NONE = -1 };
struct FlightEntry {
  int64_t ns, step;                              // ns: CLOCK_MONOTONIC
  const char *what;                              // a string that lives on
  int32_t number, stage;                         // number: of a collective, else 0
  int16_t kind, microbatch;
};
struct FlightRing { uint64_t count; FlightEntry entry[FLIGHT_ENTRIES]; };      // count: of all that were ever written
// A collective of a step. number 0: none.
struct FlightCollective { const char *what; int32_t number, stage; };
struct Flight {
  FlightRing events, ops;
  // Where the main thread is. step 0: before the first. stage: 0 outside the blocks, 1 + l block l.
  int64_t step;
  int32_t microbatch, stage;
  const char *op;                                // called last; NULL: none in this phase
  int32_t begun;                                 // collectives of this step so far
  FlightCollective in;                           // the collective that the main thread waits for; number 0: none
  bool dry;                                      // a dry run: nothing is recorded
};
extern Flight flight;
// Records that an op was called.
void flight_op(const char *op);
// Records that this rank has started a collective of a stage; flight_end, that the collective has ended.
FlightCollective flight_begin(const char *what, int stage);
void flight_end(FlightCollective c);
// From here on, until the next call or flight_out, the main thread waits for c.
void flight_in(FlightCollective c);
static inline void flight_out() { WORD_SET(&flight.in.number, 0); }

// ---- liveness.h -----------------------------------------------------------------------------------------------------
// Step, microbatch, stage, op and collective are the flight recorder's (flight.h).
struct alignas(64) LivenessWords {
  uint64_t progress;                             // grows with each sign of progress of this rank
  const char *phase, *what, *where;              // what it waits for, NULL: nothing; where: the function that waits
  int what_stage;                                // the stage that it waits for: see liveness_stage
  int prints;                                    // 1 + the descriptor that it writes text to now, or 0
};
extern LivenessWords liveness_words;
// Any thread.
static inline void liveness_progress() { __atomic_fetch_add(&liveness_words.progress, 1, __ATOMIC_RELAXED); }
// Reports that the main thread waits for other ranks, or for a device that does: for `what`, of a stage. The strings
// must stay valid.
void liveness_wait(const char *what, const char *where, int stage);
// What the main thread waited for is there.
void liveness_arrived();
// Reports that the call of MPI that was waited for has returned; returns its result.
int liveness_after(int result);
// For code that waits by asking again and again: `what`, a string that lives on, is in flight; NULL: no longer. Main
// thread.
void liveness_poll(const char *what);
// The main thread computes stage `stage` of the model: 0 outside the blocks, 1 + l block l.
void liveness_stage(int stage);
// What the main thread does, a string that lives on: training, saving, ...
void liveness_phase(const char *phase);
// microbatch: of this rank in its step, or MICROBATCH_NONE.
void liveness_microbatch(int microbatch);
void liveness_step(int64_t step);
// The main thread writes text to `fd` from here on; -1: no longer. This is no progress: a save that hangs is reported
// on as well.
enum { WATCHDOG_USER = -3 };                      // in place of a descriptor: it waits for somebody to type
static inline void watchdog_pause(int fd) { WORD_SET(&liveness_words.prints, fd + 1); }
// Called in a loop that polls for `what`: lets another process run, since ranks may outnumber cores. A yield that takes
// long has let a busy program run for a tick (4 ms), and the next would as well; from then on the loop sleeps instead,
// since Linux runs a process soon after it wakes.
void liveness_pause(int *spins, const char *what, int stage);
// What a device reports, one word for each stream: a number that grows within a step, and a code of what the stream has
// reached. The number of an all-gather or a reduction is that of its collective; the model's stream counts passes, two
// for each microbatch.
enum DeviceMark { MARK_MODEL, MARK_GATHER, MARK_REDUCE, MARKS };
enum { MARK_BACKWARD = 1, MARK_UPDATE = 2, MARK_EXCHANGE = 0xfff, MARK_BITS = 12 };  // of the others: 1 + stage
static inline uint32_t mark_value(uint32_t number, int code) { return number << MARK_BITS | (uint32_t)code; }

// ---- heartbeats.h ---------------------------------------------------------------------------------------------------
// " of block 3", " outside the blocks" or "", to follow what is waited for.
void liveness_stage_text(char *to, size_t bytes, int stage);
extern void (*liveness_line_end)();              // NULL, or ends a line that stands open on the terminal; any thread
extern void (*liveness_died)(int rank);          // NULL, or hears of a rank that died; called by the thread
// Says goodbye. all_end: every rank is being ended, by a signal or MPI_Abort, so a rank that vanishes now need not be
// reported. May be called in a signal handler.
void liveness_leave(bool all_end);
// A signal has asked every rank to end: a rank that is gone need not be reported. May be called in a signal handler.
void liveness_quiet();
// Says goodbye and ends the heartbeat thread, without waiting for other ranks. Main thread.
void liveness_close();
// The seconds without progress after which a run is ended, 0: never.
void liveness_timeout(int64_t seconds);
// From here on a run that hangs or loses a rank leaves OUT/flight-RANK.json. version: must stay valid. Call after
// liveness_open, which sets the rank.
void liveness_flight(const char *out, const char *version);
// Starts the heartbeat thread. It watches this rank's main thread, and from liveness_open on the other ranks too.
// timeout: seconds without progress after which the run is ended, 0: never.
void liveness_start(int64_t timeout);
// marks: MARKS words of memory in which the device reports how far it is; NULL: no longer.
void liveness_device(const uint32_t *marks);
// Connects the threads of all ranks of `comm`; one line in `error` where this one's is not. All ranks call it.
void liveness_open(MPI_Comm comm, Error *error);
// Every call that waits for other ranks says so while it does.
#define LIVENESS_MPI(call, ...) (liveness_wait(#call, __func__, STAGE_NONE), liveness_after(call(__VA_ARGS__)))
#define MPI_Allgather(...) LIVENESS_MPI(MPI_Allgather, __VA_ARGS__)
#define MPI_Allreduce(...) LIVENESS_MPI(MPI_Allreduce, __VA_ARGS__)
#define MPI_Barrier(...) LIVENESS_MPI(MPI_Barrier, __VA_ARGS__)
#define MPI_Bcast(...) LIVENESS_MPI(MPI_Bcast, __VA_ARGS__)
#define MPI_Comm_dup(...) LIVENESS_MPI(MPI_Comm_dup, __VA_ARGS__)
#define MPI_Comm_free(...) LIVENESS_MPI(MPI_Comm_free, __VA_ARGS__)
#define MPI_Comm_split(...) LIVENESS_MPI(MPI_Comm_split, __VA_ARGS__)
#define MPI_Comm_split_type(...) LIVENESS_MPI(MPI_Comm_split_type, __VA_ARGS__)
// Goodbye is said first: MPI_Finalize returns on no rank before all have called it, so all have heard the goodbye of a
// rank when its connection closes.
#define MPI_Finalize() \
  (liveness_leave(false), liveness_wait("MPI_Finalize", __func__, STAGE_NONE), liveness_after(MPI_Finalize()))
#define MPI_Init_thread(...) LIVENESS_MPI(MPI_Init_thread, __VA_ARGS__)
#define MPI_Recv(...) LIVENESS_MPI(MPI_Recv, __VA_ARGS__)
#define MPI_Send(...) LIVENESS_MPI(MPI_Send, __VA_ARGS__)
#define MPI_Wait(...) LIVENESS_MPI(MPI_Wait, __VA_ARGS__)
#define MPI_Win_allocate_shared(...) LIVENESS_MPI(MPI_Win_allocate_shared, __VA_ARGS__)
#define MPI_Win_free(...) LIVENESS_MPI(MPI_Win_free, __VA_ARGS__)

// ---- agree_error.h --------------------------------------------------------------------------------------------------
// From here on a crash inside MPI_Finalize ends the process with this exit code.
void leave_even_by_a_crash(int code);
// Ends all ranks with exit code `code` if any rank has an error (error[0] is not 0). The error of the lowest such rank
// is printed, once. All ranks call it.
void agree_no_error(MPI_Comm comm, const char *error, int code);
