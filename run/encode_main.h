// encode_main.h: the command --encode OUT: options to data/encode.h.
#pragma once
#include "call.h"

static int encode_main(Call *call) {
  const Options *o = &call->o;
  if (!o->encode[0]) return -1;
  if (!call->first) return 0;
  if (call->error[0]) die_user("train_gpt_fsdp: %s", call->error);
  if (!o->data[0])
    die_user("train_gpt_fsdp: --encode OUT encodes what --data names: texts, patterns, directories, with commas");
  int64_t vocab_size = o->vocab_size;
  for (const Preset &p : presets) if (!vocab_size && !strcmp(p.name, o->model)) vocab_size = p.vocab_size;
  cpu_set_t cores;
  const int here = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
  const EncodeOptions e = {o->encode, o->data, o->val_data, o->tokenizer, (int)vocab_size,
                           o->threads > 0 ? (int)o->threads : here, (EncodeDocuments)o->document_token, encode_say};
  DataError error;
  if (encode_run(&e, &error)) return 0;
  die_with(error.exit_code, "train_gpt_fsdp: %s", error.text);
}
