// shape.cc: data/shape/ as one object; what others may call of it is in data/shape/shape.h.
#define PART_LAUNCH 1
#include "model_shape.h"
#include "params.h"
