// files.cc: data/files/ as one object; what others may call of it is in data/files/files.h.
#define PART_LAUNCH 1
#include "file_kinds.h"
#include "counter_random.h"
#include "disk.h"
#include "mapped.h"
#include "forms.h"
