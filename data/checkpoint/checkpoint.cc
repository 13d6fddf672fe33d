// checkpoint.cc: data/checkpoint/ as one object; what others may call of it is in data/checkpoint/checkpoint.h.
#define PART_LAUNCH 1
#include "store.h"
#include "saved.h"
