// watch.cc: watch/ as one object; what others may call of it is in watch/watch.h.
#define PART_LAUNCH 1
#include "flight.h"
#include "flight_file.h"
#include "liveness.h"
#include "heartbeats.h"
#include "agree_error.h"
