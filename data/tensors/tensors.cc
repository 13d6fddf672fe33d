// tensors.cc: data/tensors/ as one object; what others may call of it is in data/tensors/tensors.h.
#define PART_LAUNCH 1
#include "safetensors.h"
#include "crc32c.h"
#include "tensor_map.h"
#include "safetensors_set.h"
#include "nf4.h"
