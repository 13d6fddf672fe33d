// tokenizer.cc: data/tokenizer/ as one object; what others may call of it is in data/tokenizer/tokenizer.h.
#define PART_LAUNCH 1
#include "unicode.h"
#include "nfc.h"
#include "bpe.h"
#include "tokenizer_json.h"
