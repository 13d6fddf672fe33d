// tensorboard.h: scalars as event files that TensorBoard reads, written by hand: no protobuf, no Python.
//
// An event file is a sequence of records, in TFRecord framing, all numbers little-endian
// (tensorflow/core/lib/io/record_writer.h):
//   uint64 length   uint32 masked CRC-32C of the length   `length` bytes   uint32 masked CRC-32C of the bytes
// Each record is an Event in protobuf's encoding (tensorflow/core/util/event.proto). The fields that are used:
//   1 double wall_time   2 int64 step   3 string file_version   5 Summary summary   7 SessionLog session_log
//   Summary: 1 Value value, repeated; Value: 1 string tag, 2 float simple_value; SessionLog: 1 enum status, START is 1
// The first event has the file's version. A run that continues at step S starts its file with START at S: readers then
// forget what earlier files have of S and later steps. They read the files of a directory in the order of their names.
#pragma once
#include "base/newfile/newfile.h"
#include "report.h"
#include <limits.h>
#include <time.h>

struct Tensorboard {
  FILE *file;                                    // NULL: none is written
  off_t whole_bytes;                             // of whole records
  char path[PATH_MAX];
};

// Scalars are fp32 there; metrics.jsonl has all digits.
struct TensorboardScalar { const char *tag; double value; };

// ---- protobuf -------------------------------------------------------------------------------------------------------
// A message that is being written; what does not fit is counted and not written.
struct Proto { uint8_t data[4096]; size_t bytes; };
enum ProtoWire { PROTO_VARINT = 0, PROTO_DOUBLE = 1, PROTO_BYTES = 2, PROTO_FLOAT = 5 };
static inline void proto_raw(Proto *p, const void *data, size_t bytes) {
  if (p->bytes + bytes <= sizeof p->data) memcpy(p->data + p->bytes, data, bytes);
  p->bytes += bytes;
}
// Seven bits per byte, lowest first; all bytes but the last have the highest bit.
static inline void proto_varint(Proto *p, uint64_t n) {
  for (; n >= 128; n >>= 7) { const uint8_t byte = (uint8_t)(n | 128); proto_raw(p, &byte, 1); }
  const uint8_t last = (uint8_t)n;
  proto_raw(p, &last, 1);
}
static inline void proto_key(Proto *p, int field, ProtoWire wire) { proto_varint(p, (uint64_t)(field << 3 | wire)); }
static inline void proto_int(Proto *p, int field, int64_t n) {
  proto_key(p, field, PROTO_VARINT);
  proto_varint(p, (uint64_t)n);
}
static inline void proto_double(Proto *p, int field, double x) {
  proto_key(p, field, PROTO_DOUBLE);
  proto_raw(p, &x, sizeof x);
}
static inline void proto_float(Proto *p, int field, float x) {
  proto_key(p, field, PROTO_FLOAT);
  proto_raw(p, &x, sizeof x);
}
static inline void proto_bytes(Proto *p, int field, const void *data, size_t bytes) {
  proto_key(p, field, PROTO_BYTES);
  proto_varint(p, bytes);
  proto_raw(p, data, bytes);
}

// ---- records --------------------------------------------------------------------------------------------------------
// TFRecord stores checksums changed, because a checksum of data that has checksums in it says little.
static inline uint32_t tensorboard_masked(const void *data, size_t bytes) {
  const uint32_t crc = crc32c(0, data, bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}
// Appends a record. False with errno if it cannot be written: the file is then cut to its whole records and closed.
static inline bool tensorboard_record(Tensorboard *b, const Proto *p) {
  const uint64_t bytes = p->bytes;
  const uint32_t crc[2] = {tensorboard_masked(&bytes, sizeof bytes), tensorboard_masked(p->data, p->bytes)};
  const bool fits = p->bytes <= sizeof p->data;
  if (fits && fwrite(&bytes, sizeof bytes, 1, b->file) && fwrite(&crc[0], 4, 1, b->file) &&
      fwrite(p->data, p->bytes, 1, b->file) && fwrite(&crc[1], 4, 1, b->file) && !fflush(b->file)) {
    b->whole_bytes += (off_t)(sizeof bytes + 4 + p->bytes + 4);
    return true;
  }
  const int fault = fits ? errno : EMSGSIZE;
  fclose(b->file);
  b->file = NULL;
  if (truncate(b->path, b->whole_bytes)) return errno = fault, false;            // readers stop at a torn record
  errno = fault;
  return false;
}
static inline Proto tensorboard_event() {
  Proto p;
  p.bytes = 0;
  proto_double(&p, 1, (double)wall_ns() * 1e-9);
  return p;
}

// ---- files ----------------------------------------------------------------------------------------------------------
static const char TENSORBOARD_FILE[] = "events.out.tfevents.";
// The highest number, a time in seconds, in the names of DIR's event files; 0: there is none.
static inline long long tensorboard_newest(const char *directory) {
  const size_t n = strlen(TENSORBOARD_FILE);
  long long newest = 0;
  directory_each(directory, [&](const char *name, const char *) {
    const long long at = strncmp(name, TENSORBOARD_FILE, n) ? 0 : atoll(name + n);
    if (at > newest) newest = at;
  });
  return newest;
}
// Opens a new event file in `directory`, which is made. first_step > 0: the run continues at that step with what
// earlier files there have before it; 0: it adds to what they have (an evaluation); -1: it is a new one, and a
// directory with files of an earlier run moves aside, to a name that `aside` receives ("": none). False with errno.
static inline bool tensorboard_open(Tensorboard *b, const char *directory, int64_t first_step, char *aside,
                                    size_t aside_bytes) {
  b->file = NULL;
  b->whole_bytes = 0;
  aside[0] = 0;
  long long newest = tensorboard_newest(directory), now = (long long)time(NULL);
  if (first_step < 0 && newest) {
    if (!file_move_aside(directory, aside, aside_bytes)) return false;
    newest = 0;
  }
  if (!file_make_directory(directory)) return false;
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  // Later files have later names, even of two starts in one second.
  const int n = snprintf(b->path, sizeof b->path, "%s/%s%010lld.%s.%d", directory, TENSORBOARD_FILE,
                         now > newest ? now : newest + 1, host, (int)getpid());
  if (n < 0 || n >= (int)sizeof b->path) return errno = ENAMETOOLONG, false;
  b->file = file_make_stream(b->path);
  if (!b->file) return false;
  Proto p = tensorboard_event();
  proto_bytes(&p, 3, "brain.Event:2", 13);
  if (!tensorboard_record(b, &p)) return false;
  if (first_step <= 0) return true;
  Proto start = {{}, 0};
  proto_int(&start, 1, 1);
  p = tensorboard_event();
  proto_int(&p, 2, first_step);
  proto_bytes(&p, 7, start.data, start.bytes);
  return tensorboard_record(b, &p);
}
// Appends the scalars of a step. True where no file is open. False with errno: nothing more can be written, and the
// file has been closed.
static inline bool tensorboard_write(Tensorboard *b, int64_t step, const TensorboardScalar *x, int count) {
  if (!b->file) return true;
  Proto p = tensorboard_event(), summary = {{}, 0};
  for (int i = 0; i < count; i++) {
    Proto value = {{}, 0};
    proto_bytes(&value, 1, x[i].tag, strlen(x[i].tag));
    proto_float(&value, 2, (float)x[i].value);
    proto_bytes(&summary, 1, value.data, value.bytes);
  }
  proto_int(&p, 2, step);
  proto_bytes(&p, 5, summary.data, summary.bytes);
  return tensorboard_record(b, &p);
}
static inline void tensorboard_close(Tensorboard *b) {
  if (b->file) fclose(b->file);
  b->file = NULL;
}
