// tokens.cc: data/tokens/ as one object; what others may call of it is in data/tokens/tokens.h.
#define PART_LAUNCH 1
#include "token_files.h"
#include "sampler.h"
