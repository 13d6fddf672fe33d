// json_text.h: JSON that is written, value by value.
#pragma once
#include "tokenizer.h"

// Any bytes as a JSON string; what is not UTF-8 becomes U+FFFD.
static void json_text(FILE *f, const char *s) {
  fputc('"', f);
  const uint8_t *p = (const uint8_t *)s, *end = p + strlen(s);
  for (int bytes = 1; p < end; p += bytes) {
    bpe_class_at(p, end, &bytes);
    if (*p >= 128 && bytes == 1) fputs("\\ufffd", f);
    else if (*p == '"' || *p == '\\') fprintf(f, "\\%c", *p);
    else if (*p < 32) fprintf(f, "\\u%04x", *p);
    else fwrite(p, 1, (size_t)bytes, f);
  }
  fputc('"', f);
}
// ,"name":x with all digits. JSON has no infinity and no NaN: null.
static void json_number(FILE *f, const char *name, double x) {
  if (isfinite(x)) fprintf(f, ",\"%s\":%.17g", name, x);
  else fprintf(f, ",\"%s\":null", name);
}
