// chat_helpers.h: a mask and lengths of conversations that tests of several objects take.
#pragma once

static inline bool chat_some(int64_t i) { return i % 7 < 3 && (i - 1) / 21 % 12 != 5 && (i - 1) / (21 * 12) != 1; }
// Attention of a sequence of documents beside the fp64 formula of each alone; bounds as for it alone.
static const int chat_documents[] = {40, 1, 70, 7, 32, 20};
enum { CHAT_T = 170 };
static const char tokens_lines[] = "<tool>\n<|endoftext|>\n</tool> x\n<tool>\nn\xc3\xa4her\n";
