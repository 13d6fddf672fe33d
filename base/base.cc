// base.cc: base/ as one object; what others may call of it is in base/base.h.
#define PART_LAUNCH 1
#include "clock.h"
#include "text.h"
#include "errors.h"
