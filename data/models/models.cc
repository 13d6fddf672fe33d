// models.cc: data/models/ as one object; what others may call of it is in data/models/models.h.
#define PART_LAUNCH 1
#include "import_config.h"
#include "families.h"
#include "gguf_import.h"
#include "published.h"
#include "interchange.h"
#include "lora.h"
#include "exports.h"
#include "gguf.h"
