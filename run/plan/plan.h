// plan.h: the door of run/plan/: what a run would need and how long it would take, before there is one.
#pragma once
#include "run/run.h"

// ---- plan_search.h --------------------------------------------------------------------------------------------------
// The command --plan. Of several processes that mpirun started only the first one speaks, and plans for as many unless
// --world says otherwise.
int plan_main(Call *call);
