// base.cc: base/ as one object; what others may call of it is in base/base.h.
#define PART_LAUNCH 1
#include "clock.h"
#include "text.h"
#include "errors.h"
#include "flight.h"
#include "flight_file.h"
#include "liveness.h"
#include "net.h"
#include "prove.h"
#include "heartbeats.h"
#include "agree_error.h"
