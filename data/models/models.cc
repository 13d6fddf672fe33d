// models.cc: data/models/ as one object; what others may call of it is in data/models/models.h.
#define PART_LAUNCH 1
#include "model_shape.h"
#include "import_config.h"
#include "families.h"
#include "gguf_import.h"
#include "interchange.h"
#include "lora.h"
#include "gguf.h"
