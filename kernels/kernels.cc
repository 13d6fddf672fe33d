// kernels.cc: the launchers of all ops, once in a program. Who calls ops includes ops_FAMILY.h, and the file of an op
// only for its formulas: so an edit of a kernel compiles nothing else.
#define PART_LAUNCH 1
#define PART_LAUNCHERS 1
#include "all.h"
