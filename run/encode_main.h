// encode_main.h: the command --encode OUT FILE...: options to data/encode.h.
#pragma once
#include "call.h"

int encode_main(Call *call) {
  const Options *o = &call->o;
  if (!o->encode[0]) return -1;
  if (!call->first) return 0;
  if (call->error.text[0]) die_user("train_gpt_fsdp: %s", call->error.text);
  if (!o->data[0] && !o->encode_files)
    die_user("train_gpt_fsdp: --encode OUT FILE... encodes texts: name files, patterns, directories, after OUT or by "
             "--data");
  const char *fields = record_fields_fault(o->fields);
  if (fields) die_user("train_gpt_fsdp: --fields '%.200s' %s", o->fields, fields);
  if (o->loss != PREFERENCE_NONE)
    die_user("train_gpt_fsdp: --loss %s reads records, and --encode writes one stream: name the records by --data",
             option_word(o, OPT_loss));
  if (o->given[OPT_vocab_size] && o->tokenizer[0])
    die_user("train_gpt_fsdp: --vocab_size is of a tokenizer that is trained: leave it out beside --tokenizer");
  int64_t vocab_size = o->vocab_size;
  for (const Preset &p : presets) if (!vocab_size && !strcmp(p.name, o->model)) vocab_size = p.vocab_size;
  cpu_set_t cores;
  const int here = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
  Error why = {};
  const bool chosen = strcmp(o->chat_template, "auto") && strcmp(o->chat_template, "model");
  char *words = o->tokenizer[0] ? published_chat_words(o->tokenizer, &why) : NULL;
  if (!words && why.code) die_with(why.code, "train_gpt_fsdp: %s", why.text);
  if (chosen) words = start_words_named(o->chat_template, words, &why);
  if (chosen && !words) die_user("train_gpt_fsdp: %s", why.text);
  if (words && !chat_words_fault(words, &why)) words = NULL;
  EncodeOptions e = {};
  e.out = o->encode, e.file = call->argv + o->encode_at, e.files = o->encode_files;
  e.data = o->data, e.val_data = o->val_data, e.tokenizer = o->tokenizer, e.column = o->text_column;
  e.vocab_size = (int)vocab_size, e.threads = o->threads > 0 ? (int)o->threads : here;
  e.documents = (EncodeDocuments)o->document_token, e.documents_given = o->given[OPT_document_token];
  e.column_given = o->given[OPT_text_column], e.as_text = o->data_as == OPT_data_as_text;
  e.chat = chat_options(o, words, why.text);
  e.add_tokens = o->add_tokens;
  e.say = encode_say;
  Error error;
  if (encode_run(&e, &error)) return 0;
  die_with(error.code, "train_gpt_fsdp: %s", error.text);
}
