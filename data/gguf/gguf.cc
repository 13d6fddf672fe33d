// gguf.cc: data/gguf/ as one object; what others may call of it is in data/gguf/gguf.h.
#define PART_LAUNCH 1
#include "gguf_file.h"
#include "ggml_types.h"
