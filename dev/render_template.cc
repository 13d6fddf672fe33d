// render_template.cc: what the interpreter of chat templates makes of a template, for dev/compare_templates.py.
//
// render_template TEMPLATE VARIABLES [TIMES]: each line of VARIABLES is a JSON object of variables; for each one line
// of JSON: the text and the byte ranges of its {% generation %} blocks, or the error with its line. The last line of
// stderr has the mean microseconds of a rendering, conversion of its variables included.
#include "data/chat/chat.h"
#include "data/chat/jinja_render.h"

void *bpe_resize(void *old, size_t count, size_t each_bytes) { return realloc(old, count * each_bytes); }
bool chat_date_read(const char *, struct tm *day) {                // 26 July 2024, a Friday
  *day = {};
  day->tm_mday = 26, day->tm_mon = 6, day->tm_year = 124, day->tm_wday = 5, day->tm_yday = 207;
  return true;
}
static char *file_whole(const char *path, size_t *bytes) {
  FILE *f = fopen(path, "rb");
  char *text = (char *)calloc(1, 1 << 24);
  *bytes = f && text ? fread(text, 1, (1 << 24) - 1, f) : 0;
  if (f) fclose(f);
  return text;
}
static void put_text(const char *p, size_t n) {
  putchar('"');
  for (size_t i = 0; i < n; i++)
    if ((uint8_t)p[i] < 32 || p[i] == '"' || p[i] == '\\') printf("\\u%04x", (uint8_t)p[i]);
    else putchar(p[i]);
  putchar('"');
}
static void put_fault(const JinjaFault *f, const char *name) {
  printf("{\"%s\": ", name);
  put_text(f->text, strlen(f->text));
  printf(", \"line\": %d, \"kind\": %d}\n", f->line, f->kind);
}
int main(int argc, char **argv) {
  size_t bytes, all;
  if (argc < 3) return 2;
  char *text = file_whole(argv[1], &bytes), *lines = file_whole(argv[2], &all);
  static JinjaFault fault;
  static Jinja j;
  JinjaTemplate *t = jinja_parse(text, bytes, &fault);
  if (!t) put_fault(&fault, "parse");
  j.fault = &fault, j.t = t, j.date = "";
  const double began = now_ms();
  int64_t done = 0;
  for (int turn = 0; t && turn < (argc > 3 ? atoi(argv[3]) : 1); turn++)
    for (char *line = lines, *end; (end = strchr(line, '\n')); line = end + 1, done++) {
      *end = 0;
      cJSON *x = json_parse_spelled(line);
      volatile bool ok = false;
      j.depth = 0, j.steps = 0;
      if (!setjmp(j.back)) {
        JinjaScope *globals = jinja_scope(&j, NULL);
        for (const cJSON *y = x->child; y; y = y->next) jinja_set_global(&j, globals, y->string, jinja_of_json(&j, y));
        ok = jinja_render(&j, globals);
      }
      if (!turn && !ok) put_fault(&fault, "error");
      if (!turn && ok) {
        printf("{\"text\": ");
        put_text(j.out.p ? j.out.p : "", j.out.n);
        printf(", \"spans\": [");
        for (size_t i = 0; i < j.span_count; i++) printf("%s%zu", i ? ", " : "", j.spans[i]);
        printf("]}\n");
      }
      jinja_release(&j, NULL, 0);
      cJSON_Delete(x);
      *end = '\n';
    }
  fprintf(stderr, "%.2f\n", (now_ms() - began) * 1000 / (double)(done ? done : 1));
  jinja_free(t);
  for (char *p : {text, lines, j.out.p}) free(p);
  free(j.spans);
}
