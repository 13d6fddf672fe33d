// machine.cc: machine/ as one object; what others may call of it is in machine/machine.h.
#define PART_LAUNCH 1
#include "cgroup.h"
#include "gpus.h"
#include "terminal.h"
#include "cores.h"
