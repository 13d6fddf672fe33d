// jinja_value.h: what a template computes with: Python's values, in memory of one rendering, and how Python writes,
// compares and slices them.
//
// Values do not change once they are made, as in jinja2's ImmutableSandboxedEnvironment; a namespace's members do. An
// error of a template ends its rendering: jinja_fail jumps back to where that started, so nothing here owns memory
// beyond the arena. Texts are UTF-8; positions in them count characters, as in Python.
#pragma once
#include "chat_tools.h"
#include <ctype.h>
#include <setjmp.h>
#include <time.h>

// How a template fails: an error of its own or of what it was given, its raise_exception, what is not built in here,
// and the bounds on steps, depth and bytes.
enum JinjaFaultKind { JINJA_WRONG, JINJA_RAISED, JINJA_UNKNOWN, JINJA_BOUND };
struct JinjaFault { JinjaFaultKind kind; int line; char text[256]; };

// VIEW: what dict.items() gives; ITERATOR: what a filter gives that yields its items once.
enum JinjaType : uint8_t { J_UNDEFINED, J_NONE, J_BOOL, J_INT, J_BIG, J_FLOAT, J_STR, J_LIST, J_TUPLE, J_VIEW,
                           J_ITERATOR, J_DICT, J_NAMESPACE, J_LOOP, J_MACRO, J_METHOD, J_FUNCTION };
struct JinjaText { const char *p; size_t n, chars; bool safe; };   // safe: markup (the filters safe and escape)
struct JinjaValue {
  JinjaType type;
  union {
    bool b;
    int64_t i;
    double f;
    const JinjaText *s;                          // J_STR; J_BIG: its digits; J_UNDEFINED: its name, or NULL
    struct JinjaList *l;
    struct JinjaDict *d;
    struct JinjaLoop *loop;
    struct JinjaMacro *macro;
    struct JinjaMethod *method;
    const struct JinjaCallable *function;
  };
};
struct JinjaList { JinjaValue *v; size_t n, room; };
struct JinjaPair { JinjaValue key, value; };
struct JinjaDict { JinjaPair *p; size_t n, room; };
struct JinjaMethod { JinjaValue self; const struct JinjaCallable *call; };

enum { JINJA_STEPS = 20000000, JINJA_DEPTH = 300, JINJA_ITEMS_MAX = 100000 };
enum : size_t { JINJA_BYTES = (size_t)512 << 20, JINJA_CHUNK = 1 << 16 };
struct JinjaChunk { JinjaChunk *next; size_t bytes, used; };
// One rendering after another, on one thread. out: what is written; captured: where the outermost part of it starts
// that becomes a value. spans: of {% generation %}, from and to in `out`.
struct Jinja {
  JinjaChunk *chunks;
  size_t bytes;
  int64_t steps, steps_max;                      // steps_max: 0 for JINJA_STEPS
  int depth, line, captures;
  ChatText out;
  size_t captured, *spans, span_count, span_room;
  const char *date;
  const struct JinjaTemplate *t;
  JinjaValue body;                               // of the block whose filters run now
  JinjaFault *fault;
  jmp_buf back;
};

[[noreturn]] static void jinja_fail(Jinja *j, JinjaFaultKind kind, const char *fmt, ...) {
  va_list list;
  va_start(list, fmt);
  vsnprintf(j->fault->text, sizeof j->fault->text, fmt, list);
  va_end(list);
  j->fault->kind = kind, j->fault->line = j->line;
  longjmp(j->back, 1);
}
static void *jinja_alloc(Jinja *j, size_t bytes) {
  bytes = (bytes + 15) & ~(size_t)15;
  JinjaChunk *c = j->chunks;
  if (!c || c->used + bytes > c->bytes) {
    const size_t size = bytes > JINJA_CHUNK ? bytes : (size_t)JINJA_CHUNK;
    if (size > JINJA_BYTES - j->bytes) jinja_fail(j, JINJA_BOUND, "it needs more than %zu MiB", JINJA_BYTES >> 20);
    c = (JinjaChunk *)bpe_resize(NULL, sizeof(JinjaChunk) + 16 + size, 1);
    *c = JinjaChunk{j->chunks, size, 0};
    j->chunks = c, j->bytes += size;
  }
  void *p = (void *)((((uintptr_t)(c + 1) + 15) & ~(uintptr_t)15) + c->used);
  c->used += bytes;
  return p;
}
static void *jinja_zeroed(Jinja *j, size_t bytes) { return memset(jinja_alloc(j, bytes), 0, bytes); }
#define JINJA_NEW(j, T) ((T *)jinja_zeroed(j, sizeof(T)))
// Frees what was allocated since `to` was the newest chunk, `used` bytes of which were in use.
static void jinja_release(Jinja *j, JinjaChunk *to, size_t used) {
  while (j->chunks != to) {
    JinjaChunk *c = j->chunks;
    j->chunks = c->next, j->bytes -= c->bytes;
    free(c);
  }
  if (to) to->used = used;
}
static void jinja_step(Jinja *j) {
  const int64_t most = j->steps_max ? j->steps_max : (int64_t)JINJA_STEPS;
  if (++j->steps > most) jinja_fail(j, JINJA_BOUND, "it takes more than %lld steps", (long long)most);
}

// ---- values
static JinjaValue jinja_undefined(const JinjaText *name = NULL) { JinjaValue v = {J_UNDEFINED, {}}; v.s = name;
return v; }
static JinjaValue jinja_none() { return JinjaValue{J_NONE, {}}; }
static JinjaValue jinja_bool(bool b) { JinjaValue v = {J_BOOL, {}}; v.b = b; return v; }
static JinjaValue jinja_int(int64_t i) { JinjaValue v = {J_INT, {}}; v.i = i; return v; }
static JinjaValue jinja_float(double f) { JinjaValue v = {J_FLOAT, {}}; v.f = f; return v; }
static JinjaValue jinja_text_value(const JinjaText *s) { JinjaValue v = {J_STR, {}}; v.s = s; return v; }
// A text that stays where it is.
static JinjaValue jinja_text_at(Jinja *j, const char *p, size_t n, bool safe = false) {
  JinjaText *s = JINJA_NEW(j, JinjaText);
  size_t chars = 0;
  for (size_t i = 0; i < n; i++) chars += ((uint8_t)p[i] & 0xc0) != 0x80;
  *s = JinjaText{p, n, chars, safe};
  return jinja_text_value(s);
}
static JinjaValue jinja_text(Jinja *j, const char *p, size_t n, bool safe = false) {
  char *to = (char *)jinja_alloc(j, n + 1);
  if (n) memcpy(to, p, n);
  to[n] = 0;
  return jinja_text_at(j, to, n, safe);
}
static JinjaValue jinja_words(Jinja *j, const char *text) { return jinja_text_at(j, text, strlen(text)); }
static JinjaValue jinja_list(Jinja *j, JinjaType type = J_LIST, size_t room = 0) {
  JinjaValue v = {type, {}};
  v.l = JINJA_NEW(j, JinjaList);
  if (room) v.l->v = (JinjaValue *)jinja_alloc(j, room * sizeof(JinjaValue));
  v.l->room = room;
  return v;
}
static void jinja_add(Jinja *j, JinjaList *l, JinjaValue x) {
  if (l->n == l->room) {
    JinjaValue *v = (JinjaValue *)jinja_alloc(j, (l->room = 2 * l->room + 4) * sizeof *v);
    if (l->n) memcpy((void *)v, l->v, l->n * sizeof *v);
    l->v = v;
  }
  l->v[l->n++] = x;
}
static JinjaValue jinja_pair(Jinja *j, JinjaValue a, JinjaValue b) {
  JinjaValue t = jinja_list(j, J_TUPLE, 2);
  jinja_add(j, t.l, a), jinja_add(j, t.l, b);
  return t;
}
static bool jinja_same(const JinjaText *a, const char *b) { return strlen(b) == a->n && !memcmp(a->p, b, a->n); }
static bool jinja_is_seq(JinjaValue v) { return v.type == J_LIST || v.type == J_TUPLE; }
static bool jinja_is_number(JinjaValue v) { return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT; }
static bool jinja_is_whole(JinjaValue v) { return v.type == J_BOOL || v.type == J_INT; }
static int64_t jinja_whole(JinjaValue v) { return v.type == J_BOOL ? v.b : v.i; }
static double jinja_number(JinjaValue v) { return v.type == J_FLOAT ? v.f : (double)jinja_whole(v); }
static const char *jinja_type(JinjaValue v) {
  static const char *const names[] = {"Undefined", "NoneType", "bool", "int", "int", "float", "str", "list", "tuple",
                                      "dict_items", "generator", "dict", "Namespace", "LoopContext", "Macro",
                                      "method", "function"};
  return names[v.type];
}
[[noreturn]] static void jinja_fail_undefined(Jinja *j, JinjaValue v) {
  if (v.s) jinja_fail(j, JINJA_WRONG, "'%.*s' is undefined", (int)(v.s->n < 80 ? v.s->n : 80), v.s->p);
  jinja_fail(j, JINJA_WRONG, "something undefined is used");
}
static bool jinja_equal(Jinja *j, JinjaValue a, JinjaValue b);
static JinjaValue *jinja_find(Jinja *j, const JinjaDict *d, JinjaValue key) {
  for (size_t i = 0; i < d->n; i++) {
    const JinjaValue k = d->p[i].key;
    if (k.type == J_STR && key.type == J_STR ? k.s == key.s || (k.s->n == key.s->n && !memcmp(k.s->p, key.s->p, k.s->n))
                                             : jinja_equal(j, k, key))
      return &d->p[i].value;
  }
  return NULL;
}
static JinjaValue jinja_dict(Jinja *j, JinjaType type = J_DICT) {
  JinjaValue v = {type, {}};
  v.d = JINJA_NEW(j, JinjaDict);
  return v;
}
static void jinja_put(Jinja *j, JinjaDict *d, JinjaValue key, JinjaValue value) {
  if (JinjaValue *old = jinja_find(j, d, key)) { *old = value; return; }
  if (d->n == d->room) {
    JinjaPair *p = (JinjaPair *)jinja_alloc(j, (d->room = 2 * d->room + 4) * sizeof *p);
    if (d->n) memcpy((void *)p, d->p, d->n * sizeof *p);
    d->p = p;
  }
  d->p[d->n++] = JinjaPair{key, value};
}
static bool jinja_truth(JinjaValue v) {
  switch (v.type) {
    case J_UNDEFINED: case J_NONE: return false;
    case J_BOOL: return v.b;
    case J_INT: return v.i != 0;
    case J_FLOAT: return v.f != 0;
    case J_STR: return v.s->n != 0;
    case J_LIST: case J_TUPLE: case J_VIEW: return v.l->n != 0;
    case J_DICT: return v.d->n != 0;
    default: return true;
  }
}

// ---- comparing
static void jinja_deeper(Jinja *j);
static bool jinja_equal_kind(Jinja *j, JinjaValue a, JinjaValue b) {
  if (jinja_is_number(a) && jinja_is_number(b))
    return a.type != J_FLOAT && b.type != J_FLOAT ? jinja_whole(a) == jinja_whole(b)
                                                  : jinja_number(a) == jinja_number(b);
  if (a.type != b.type) return false;
  switch (a.type) {
    case J_UNDEFINED: case J_NONE: return true;
    case J_STR: case J_BIG: return a.s->n == b.s->n && !memcmp(a.s->p, b.s->p, a.s->n);
    case J_LIST: case J_TUPLE:
      if (a.l->n != b.l->n) return false;
      for (size_t i = 0; i < a.l->n; i++) if (!jinja_equal(j, a.l->v[i], b.l->v[i])) return false;
      return true;
    case J_DICT:
      if (a.d->n != b.d->n) return false;
      for (size_t i = 0; i < a.d->n; i++) {
        const JinjaValue *x = jinja_find(j, b.d, a.d->p[i].key);
        if (!x || !jinja_equal(j, a.d->p[i].value, *x)) return false;
      }
      return true;
    default: return a.l == b.l;
  }
}
static bool jinja_equal(Jinja *j, JinjaValue a, JinjaValue b) {
  jinja_deeper(j);
  const bool equal = jinja_equal_kind(j, a, b);
  j->depth--;
  return equal;
}
// Less than, equal or greater than 0: a before, beside or after b.
static int jinja_compare(Jinja *j, JinjaValue a, JinjaValue b) {
  jinja_step(j);
  if (jinja_is_whole(a) && jinja_is_whole(b))
    return (jinja_whole(a) > jinja_whole(b)) - (jinja_whole(a) < jinja_whole(b));
  if (jinja_is_number(a) && jinja_is_number(b))
    return (jinja_number(a) > jinja_number(b)) - (jinja_number(a) < jinja_number(b));
  if (a.type == J_STR && b.type == J_STR) {
    const int c = memcmp(a.s->p, b.s->p, a.s->n < b.s->n ? a.s->n : b.s->n);
    return c ? c : (a.s->n > b.s->n) - (a.s->n < b.s->n);
  }
  if (jinja_is_seq(a) && a.type == b.type) {
    for (size_t i = 0; i < a.l->n && i < b.l->n; i++)
      if (!jinja_equal(j, a.l->v[i], b.l->v[i])) return jinja_compare(j, a.l->v[i], b.l->v[i]);
    return (a.l->n > b.l->n) - (a.l->n < b.l->n);
  }
  for (JinjaValue v : {a, b}) if (v.type == J_UNDEFINED) jinja_fail_undefined(j, v);
  jinja_fail(j, JINJA_WRONG, "%s and %s have no order", jinja_type(a), jinja_type(b));
}

// ---- items
// The items that a value yields: those of a list, the keys of a dict, the characters of a text.
static JinjaList *jinja_items(Jinja *j, JinjaValue v) {
  JinjaValue to = jinja_list(j);
  int n;
  switch (v.type) {
    case J_UNDEFINED: break;
    case J_LIST: case J_TUPLE: case J_VIEW: return v.l;
    case J_ITERATOR: *to.l = *v.l, v.l->n = 0; break;
    case J_DICT: for (size_t i = 0; i < v.d->n; i++) jinja_add(j, to.l, v.d->p[i].key); break;
    case J_STR:
      for (const uint8_t *p = (const uint8_t *)v.s->p, *end = p + v.s->n; p < end; p += n)
        utf8_char(p, end, &n), jinja_add(j, to.l, jinja_text_at(j, (const char *)p, (size_t)n));
      break;
    default: jinja_fail(j, JINJA_WRONG, "%s is not iterable", jinja_type(v));
  }
  return to.l;
}
static bool jinja_contains(Jinja *j, JinjaValue all, JinjaValue x) {
  if (all.type == J_STR) {
    if (x.type != J_STR) jinja_fail(j, JINJA_WRONG, "'in <text>' needs a text, not %s", jinja_type(x));
    return memmem(all.s->p, all.s->n, x.s->p, x.s->n) != NULL;
  }
  if (all.type == J_DICT) return jinja_find(j, all.d, x) != NULL;
  const JinjaList *l = jinja_items(j, all);
  for (size_t i = 0; i < l->n; i++) if (jinja_equal(j, l->v[i], x)) return true;
  return false;
}
static size_t jinja_length(Jinja *j, JinjaValue v) {
  if (v.type == J_STR) return v.s->chars;
  if (v.type == J_DICT) return v.d->n;
  if (v.type == J_UNDEFINED) return 0;
  if (v.type == J_LOOP || v.type > J_DICT || v.type < J_STR || v.type == J_ITERATOR)
    jinja_fail(j, JINJA_WRONG, "%s has no length", jinja_type(v));
  return v.l->n;
}
// Where character `at` starts.
static size_t jinja_byte(const JinjaText *s, size_t at) {
  if (s->chars == s->n) return at;
  size_t i = 0;
  for (; i < s->n && at; at--) for (i++; i < s->n && ((uint8_t)s->p[i] & 0xc0) == 0x80;) i++;
  return i;
}
static JinjaValue jinja_part(Jinja *j, const JinjaText *s, size_t from, size_t bytes) {
  return jinja_text_at(j, s->p + from, bytes, s->safe);
}
static JinjaValue jinja_chars(Jinja *j, const JinjaText *s, size_t from, size_t to) {
  const size_t a = jinja_byte(s, from);
  return jinja_part(j, s, a, jinja_byte(s, to) - a);
}
// The item of a list or text by number, of a dict by key. False: there is none, or nothing to look in.
static bool jinja_item(Jinja *j, JinjaValue v, JinjaValue key, JinjaValue *to) {
  if (v.type == J_DICT) {
    const JinjaValue *x = jinja_find(j, v.d, key);
    if (x) *to = *x;
    return x != NULL;
  }
  if (!jinja_is_whole(key) || (v.type != J_STR && !jinja_is_seq(v))) return false;
  const int64_t n = (int64_t)(v.type == J_STR ? v.s->chars : v.l->n), k = jinja_whole(key), i = k < 0 ? k + n : k;
  if (i < 0 || i >= n) return false;
  *to = v.type == J_STR ? jinja_chars(j, v.s, (size_t)i, (size_t)i + 1) : v.l->v[i];
  return true;
}
// v[from:to:step], any of them None.
static JinjaValue jinja_slice(Jinja *j, JinjaValue v, JinjaValue from, JinjaValue to, JinjaValue by) {
  if (v.type == J_UNDEFINED) jinja_fail_undefined(j, v);
  if (v.type != J_STR && !jinja_is_seq(v)) return jinja_undefined();
  const int64_t n = (int64_t)jinja_length(j, v), step = by.type == J_NONE ? 1 : jinja_is_whole(by) ? jinja_whole(by)
      : 0;
  if (!step) jinja_fail(j, JINJA_WRONG, "a slice's step is no number, or zero");
  auto place = [&](JinjaValue x, int64_t none) {
    if (x.type == J_NONE) return none;
    if (!jinja_is_whole(x)) jinja_fail(j, JINJA_WRONG, "a slice from or to %s", jinja_type(x));
    const int64_t i = jinja_whole(x) < 0 ? jinja_whole(x) + n : jinja_whole(x), least = step < 0 ? -1 : 0;
    return i < least ? least : i > n + (step < 0 ? -1 : 0) ? n + (step < 0 ? -1 : 0) : i;
  };
  const int64_t a = place(from, step < 0 ? n - 1 : 0), b = place(to, step < 0 ? -1 : n);
  if (step == 1) {
    const int64_t most = b > a ? b : a;
    if (v.type == J_STR) return jinja_chars(j, v.s, (size_t)a, (size_t)most);
    JinjaValue s = jinja_list(j, v.type);
    *s.l = JinjaList{v.l->v + a, (size_t)(most - a), 0};
    s.l->room = s.l->n;                          // so that one who adds to it copies it
    return s;
  }
  JinjaValue all = v, s = jinja_list(j, v.type == J_STR ? J_LIST : v.type);
  if (v.type == J_STR) all.l = jinja_items(j, v);
  for (int64_t i = a; step > 0 ? i < b : i > b; i += step) {
    jinja_add(j, s.l, all.l->v[i]);
    if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step) break;
  }
  if (v.type != J_STR) return s;
  char *text = (char *)jinja_alloc(j, v.s->n + 1), *at = text;
  for (size_t i = 0; i < s.l->n; at += s.l->v[i++].s->n) memcpy(at, s.l->v[i].s->p, s.l->v[i].s->n);
  return jinja_text_at(j, text, (size_t)(at - text), v.s->safe);
}

// ---- as text
static void jinja_write(Jinja *j, const char *p, size_t n) {
  if (j->out.n + n > JINJA_BYTES / 2) jinja_fail(j, JINJA_BOUND, "it writes more than %zu MiB", JINJA_BYTES >> 21);
  chat_put(&j->out, ChatSpan{p, n});
}
static void jinja_write(Jinja *j, const char *text) { jinja_write(j, text, strlen(text)); }
// The shortest digits that mean the number, as repr has them.
static void jinja_write_float(Jinja *j, double f, bool json) {
  char digits[40], text[64];
  if (isnan(f)) return jinja_write(j, json ? "NaN" : "nan");
  if (isinf(f)) return jinja_write(j, f < 0 ? json ? "-Infinity" : "-inf" : json ? "Infinity" : "inf");
  int most = 0;
  do snprintf(digits, sizeof digits, "%.*e", most, f);
  while (strtod(digits, NULL) != f && most++ < 17);
  char *e = strchr(digits, 'e');
  const int power = atoi(e + 1), kept = (int)(strchr(digits, '.') ? most : 0);
  if (power >= -4 && power < 16) snprintf(text, sizeof text, "%.*f", kept > power ? kept - power : 1, f);
  else snprintf(text, sizeof text, "%.*se%c%02d", (int)(e - digits), digits, power < 0 ? '-' : '+', abs(power));
  jinja_write(j, text);
}
// Whether Python's repr writes a character as it is. Unassigned ones are.
static bool jinja_printable(uint32_t c) {
  static const uint32_t not_printed[][2] = {
      {0, 0x1f}, {0x7f, 0xa0}, {0xad, 0xad}, {0x600, 0x605}, {0x61c, 0x61c}, {0x6dd, 0x6dd}, {0x70f, 0x70f},
      {0x890, 0x891}, {0x8e2, 0x8e2}, {0x1680, 0x1680}, {0x180e, 0x180e}, {0x2000, 0x200f}, {0x2028, 0x202f},
      {0x205f, 0x206f}, {0x3000, 0x3000}, {0xe000, 0xf8ff}, {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0x110bd, 0x110bd},
      {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe00ff},
      {0xf0000, 0x10ffff}};
  for (const auto &range : not_printed) if (c >= range[0] && c <= range[1]) return false;
  return true;
}
// A text in quotes: as repr has it, or JSON, in ASCII or not.
enum JinjaQuotes { QUOTES_PYTHON, QUOTES_JSON, QUOTES_ASCII };
static void jinja_write_quoted(Jinja *j, const JinjaText *s, JinjaQuotes style) {
  static const char escaped[] = "\b\f\n\r\t", letters[] = "bfnrt";
  const bool python = style == QUOTES_PYTHON;
  const char quote = python && (!memchr(s->p, '\'', s->n) || memchr(s->p, '"', s->n)) ? '\'' : '"';
  const uint8_t *p = (const uint8_t *)s->p, *end = p + s->n, *plain = p;
  jinja_write(j, &quote, 1);
  for (int n; p < end; p += n) {
    const uint32_t c = utf8_char(p, end, &n);
    const char *letter = c && c < 32 ? strchr(python ? escaped + 2 : escaped, (int)c) : NULL;
    char to[16] = "";
    if (c == (uint32_t)quote || c == '\\') snprintf(to, sizeof to, "\\%c", (char)c);
    else if (letter) snprintf(to, sizeof to, "\\%c", letters[letter - escaped]);
    else if (python && !jinja_printable(c))
      snprintf(to, sizeof to, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    else if (style == QUOTES_ASCII && c >= 0x10000)
      snprintf(to, sizeof to, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
    else if ((c < 32 && !python) || (style == QUOTES_ASCII && c > 126)) snprintf(to, sizeof to, "\\u%04x", c);
    if (!to[0]) continue;
    jinja_write(j, (const char *)plain, (size_t)(p - plain));
    jinja_write(j, to);
    plain = p + n;
  }
  jinja_write(j, (const char *)plain, (size_t)(end - plain));
  jinja_write(j, &quote, 1);
}
static void jinja_deeper(Jinja *j) {
  jinja_step(j);
  if (++j->depth > JINJA_DEPTH) jinja_fail(j, JINJA_BOUND, "it nests deeper than %d", JINJA_DEPTH);
}
// What str() gives, or repr().
static void jinja_write_value(Jinja *j, JinjaValue v, bool repr = false) {
  char text[32];
  switch (v.type) {
    case J_UNDEFINED: return jinja_write(j, repr ? "Undefined" : "");
    case J_NONE: return jinja_write(j, "None");
    case J_BOOL: return jinja_write(j, v.b ? "True" : "False");
    case J_INT: snprintf(text, sizeof text, "%lld", (long long)v.i); return jinja_write(j, text);
    case J_FLOAT: return jinja_write_float(j, v.f, false);
    case J_STR: if (repr) return jinja_write_quoted(j, v.s, QUOTES_PYTHON); [[fallthrough]];
    case J_BIG: return jinja_write(j, v.s->p, v.s->n);
    case J_LIST: case J_TUPLE: case J_DICT: break;
    default: jinja_fail(j, JINJA_UNKNOWN, "the text of a %s is not built in", jinja_type(v));
  }
  const bool dict = v.type == J_DICT;
  const size_t n = dict ? v.d->n : v.l->n;
  jinja_deeper(j);
  jinja_write(j, dict ? "{" : v.type == J_LIST ? "[" : "(");
  for (size_t i = 0; i < n; i++) {
    if (i) jinja_write(j, ", ");
    if (dict) jinja_write_value(j, v.d->p[i].key, true), jinja_write(j, ": ");
    jinja_write_value(j, dict ? v.d->p[i].value : v.l->v[i], true);
  }
  jinja_write(j, dict ? "}" : v.type == J_LIST ? "]" : n == 1 ? ",)" : ")");
  j->depth--;
}
// What is written from here on becomes a text: jinja_captured of what this returns.
static size_t jinja_capture(Jinja *j) {
  if (!j->captures++) j->captured = j->out.n;
  return j->out.n;
}
static JinjaValue jinja_captured(Jinja *j, size_t from, bool safe = false) {
  JinjaValue s = jinja_text(j, j->out.p + from, j->out.n - from, safe);
  j->out.n = from;
  j->captures--;
  return s;
}
static JinjaValue jinja_str(Jinja *j, JinjaValue v) {
  if (v.type == J_STR) return v;
  const size_t from = jinja_capture(j);
  jinja_write_value(j, v);
  return jinja_captured(j, from);
}

// ---- JSON
// How json.dumps writes. indent: NULL, or what stands before a line, once a level.
struct JinjaDumps { bool ascii, sorts; const JinjaText *indent, *comma, *colon; };
static void jinja_dumps_line(Jinja *j, const JinjaDumps *how, int levels) {
  if (!how->indent) return;
  jinja_write(j, "\n");
  for (int i = 0; i < levels; i++) jinja_write(j, how->indent->p, how->indent->n);
}
static void jinja_dumps_key(Jinja *j, JinjaValue key, const JinjaDumps *how) {
  const bool bare = key.type == J_STR;
  if (!bare && !jinja_is_number(key) && key.type != J_NONE && key.type != J_BIG)
    jinja_fail(j, JINJA_WRONG, "tojson: a key is a %s", jinja_type(key));
  if (bare) return jinja_write_quoted(j, key.s, how->ascii ? QUOTES_ASCII : QUOTES_JSON);
  jinja_write(j, "\"");
  if (key.type == J_NONE || key.type == J_BOOL) jinja_write(j, key.type == J_NONE ? "null" : key.b ? "true" : "false");
  else jinja_write_value(j, key);
  jinja_write(j, "\"");
}
static void jinja_dumps(Jinja *j, JinjaValue v, const JinjaDumps *how, int level = 0) {
  if (v.type == J_STR) return jinja_write_quoted(j, v.s, how->ascii ? QUOTES_ASCII : QUOTES_JSON);
  if (v.type == J_NONE || v.type == J_BOOL) return jinja_write(j, v.type == J_NONE ? "null" : v.b ? "true" : "false");
  if (v.type == J_FLOAT) return jinja_write_float(j, v.f, true);
  if (v.type == J_INT || v.type == J_BIG) return jinja_write_value(j, v);
  const bool dict = v.type == J_DICT;
  if (!dict && !jinja_is_seq(v)) jinja_fail(j, JINJA_WRONG, "tojson: %s is not JSON", jinja_type(v));
  const size_t n = dict ? v.d->n : v.l->n;
  if (!n) return jinja_write(j, dict ? "{}" : "[]");
  jinja_deeper(j);
  JinjaDict sorted = {};
  if (dict && how->sorts) {
    sorted = JinjaDict{(JinjaPair *)jinja_alloc(j, n * sizeof(JinjaPair)), n, n};
    for (size_t i = 0, at; i < n; i++) {
      for (at = i; at && jinja_compare(j, sorted.p[at - 1].key, v.d->p[i].key) > 0; at--) sorted.p[at] =
          sorted.p[at - 1];
      sorted.p[at] = v.d->p[i];
    }
    v.d = &sorted;
  }
  jinja_write(j, dict ? "{" : "[");
  for (size_t i = 0; i < n; i++) {
    if (i) jinja_write(j, how->comma->p, how->comma->n);
    jinja_dumps_line(j, how, level + 1);
    if (dict) jinja_dumps_key(j, v.d->p[i].key, how), jinja_write(j, how->colon->p, how->colon->n);
    jinja_dumps(j, dict ? v.d->p[i].value : v.l->v[i], how, level + 1);
  }
  jinja_dumps_line(j, how, level);
  jinja_write(j, dict ? "}" : "]");
  j->depth--;
}
// A value of JSON. Numbers have their spelling (json_parse_spelled), which tells whole ones from others.
static JinjaValue jinja_of_json(Jinja *j, const cJSON *x) {
  if (!x || cJSON_IsNull(x)) return jinja_none();
  if (cJSON_IsBool(x)) return jinja_bool(cJSON_IsTrue(x));
  if (cJSON_IsString(x)) return jinja_words(j, x->valuestring);
  if (cJSON_IsNumber(x)) {
    const char *spelled = x->valuestring;
    errno = 0;
    const long long whole = spelled ? strtoll(spelled, NULL, 10) : 0;
    if (spelled ? strcspn(spelled, ".eE") != strlen(spelled) : x->valuedouble != floor(x->valuedouble))
      return jinja_float(x->valuedouble);
    if (!spelled) return jinja_int((int64_t)x->valuedouble);
    JinjaValue big = jinja_words(j, spelled);
    big.type = J_BIG;
    return errno ? big : jinja_int(whole);
  }
  jinja_deeper(j);
  const bool list = cJSON_IsArray(x);
  JinjaValue v = list ? jinja_list(j) : jinja_dict(j);
  for (const cJSON *y = x->child; y; y = y->next)
    if (list) jinja_add(j, v.l, jinja_of_json(j, y));
    else jinja_put(j, v.d, jinja_words(j, y->string), jinja_of_json(j, y));
  j->depth--;
  return v;
}
