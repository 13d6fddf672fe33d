// data.cc: data/ and its modules of text, as one object of the test program with the tests that look into them.
#include "data/files/files.cc"
#include "data/tokenizer/tokenizer.cc"
#include "data/chat/chat.cc"
#include "data/tokens/tokens.cc"
#include "data/data.cc"
#include "data/checkpoint/checkpoint.h"
#include "kernels/ops.h"
#include "launch/launch.h"
#include "run/plan/plan.h"
#include "dev/test/harness.h"
#include "dev/test/cli_helpers.h"
#include "dev/test/tokenizer_helpers.h"
#include "dev/test/op_helpers.h"
#include "dev/test/chat_helpers.h"
#include "dev/test/lent.h"

#include "dev/test/test_tokenizer.h"
#include "dev/test/test_data.h"
#include "dev/test/test_chat.h"
#include "dev/test/test_templates.h"
#include "dev/test/test_corpora.h"
#include "dev/test/test_shards.h"
#include "dev/test/test_encode.h"
#include "dev/test/test_fallback.h"
#include "dev/test/test_records.h"
#include "dev/test/test_parquet.h"

void lent_tokenizer_train(Tokenizer *t, const char *text, int vocab_size) {
  tokenizer_train(t, (const uint8_t *)text, strlen(text), vocab_size, 1);
}
void lent_file_hook(FileHook hook) { file_hook = hook; }
void lent_split_free(Split *s) { split_free(s); }
