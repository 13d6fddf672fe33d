// model.cc: the model with the modules that it is trained by, and the tests that look into these, as one object of the
// test program.
#define PART_LAUNCH 1
#define TRAINER_AS_LIBRARY 1
#include "kernels/all.h"
#include "base/newfile/newfile.cc"
#include "base/base.cc"
#include "base/net/net.cc"
#include "watch/watch.cc"
#include "kernels/op_calls.cc"
#include "fsdp/state.h"
// Records and placement are computed again for each plan of a test. Clang knows no such pragma.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O2")
#endif
#include "fsdp/placement.h"
#if !defined(__clang__)
#pragma GCC pop_options
#endif
#include "memory/memory.cc"
#include "fsdp/fsdp.cc"
#include "data/gguf/gguf.cc"
#include "data/tensors/tensors.cc"
#include "data/shape/shape.cc"
#include "data/models/models.cc"
#include "data/checkpoint/checkpoint.cc"
#include "run/options/options.cc"
#include "run/report/report.cc"
#include "run/run.cc"
#include "run/plan/plan.cc"
#include "train_gpt_fsdp.cu"
#include "dev/test/harness.h"
#include "dev/test/cli_helpers.h"
#include "dev/test/terminal_helpers.h"
#include "dev/test/tokenizer_helpers.h"
#include "dev/test/model_helpers.h"
#include "dev/test/cores_helpers.h"
#include "dev/test/op_helpers.h"
#include "dev/test/chat_helpers.h"
#include "dev/test/cuda_helpers.h"
#include "dev/test/lent.h"

#include "dev/test/test_safetensors.h"
#include "dev/test/test_train.h"
#include "dev/test/test_interchange.h"
#include "dev/test/test_fsdp.h"
#include "dev/test/test_param_groups.h"
#include "dev/test/test_modes.h"
#include "dev/test/test_families.h"
#include "dev/test/test_gguf.h"
#include "dev/test/test_gguf_import.h"
#include "dev/test/test_recompute.h"
#include "dev/test/test_packed.h"
#include "dev/test/test_schedule.h"
#include "dev/test/test_layers.h"
#include "dev/test/test_schedule_log.h"
#include "dev/test/test_returns.h"
#include "dev/test/test_hosts.h"
#include "dev/test/test_cuda_train.h"
#include "dev/test/test_plan.h"
#include "dev/test/test_placement.h"
#include "dev/test/test_checkpoint.h"
#include "dev/test/test_resume.h"
#include "dev/test/test_checkpoint_modes.h"
#include "dev/test/test_muon_sharded.h"
#include "dev/test/test_master.h"
#include "dev/test/test_chat_cli.h"
#include "dev/test/test_batch_auto.h"
#include "dev/test/test_options.h"
#include "dev/test/test_lora.h"
#include "dev/test/test_blocks.h"
#include "dev/test/test_tuning.h"
#include "dev/test/test_generate.h"
#include "dev/test/test_nf4.h"
#include "dev/test/test_tokens.h"
#include "dev/test/test_preference.h"
#include "dev/test/test_evaluate.h"
#include "dev/test/test_tensorboard.h"
#include "dev/test/test_trace.h"
#include "dev/test/test_report_html.h"
#include "dev/test/test_tables.h"
#include "dev/test/test_kill.h"
#include "dev/test/test_out.h"
#include "dev/test/test_not_finite.h"
#include "dev/test/test_flight.h"
#include "dev/test/test_liveness.h"
#include "dev/test/test_plan_report.h"
#include "dev/test/test_plan_search.h"
#include "dev/test/test_sm_margin.h"

void lent_die_everywhere(int code) { die_everywhere(code); }
void lent_catch_loading_signals() {
  struct sigaction before[LOADING_SIGNALS];
  loading_catch_signals(0, before);
}
int lent_option(const char *name) {
  OptionUse use;
  Error error;
  return option_find(name, &use, &error) ? use.id : -1;
}
const char *lent_option_name(int option) { return option_spec(option)->name; }
bool lent_text_strips(const Tokenizer *t, int32_t *ids, int64_t count, int made, uint8_t first) {
  Continued x = {};
  x.ids = ids, x.count = count, x.made = made;
  return text_strips(t, &x, first);
}
