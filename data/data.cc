// data.cc: data/ as one object; what others may call of it is in data/data.h.
#define PART_LAUNCH 1
#include "corpus_find.h"
#include "library.h"
#include "parquet.h"
#include "text_stream.h"
#include "encode.h"
#include "records_find.h"
#include "dataloader.h"
