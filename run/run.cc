// run.cc: run/ as one object; what others may call of it is in run/run.h.
#define PART_LAUNCH 1
#include "rendezvous.h"
#include "agree.h"
#include "saver.h"
#include "out.h"
#include "start.h"
#include "call.h"
#include "encode_main.h"
#include "not_finite.h"
#include "life.h"
