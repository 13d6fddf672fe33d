// plan.h: the public header of run/plan/: what a run would need and how long it would take, before there is one.
#pragma once
#include "run/run.h"

// ---- plan_search.h --------------------------------------------------------------------------------------------------
// The command --plan. Of several processes that mpirun started only the first one plans and prints, for as many ranks
// as there are processes, unless --world says otherwise.
int plan_main(Call *call);
