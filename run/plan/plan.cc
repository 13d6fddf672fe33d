// plan.cc: run/plan/ as one object; what others may call of it is in run/plan/plan.h.
#define PART_LAUNCH 1
#include "fork_work.h"
#include "machines.h"
#include "predict.h"
#include "plan_worlds.h"
#include "plan_report.h"
#include "plan_search.h"
