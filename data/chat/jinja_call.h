// jinja_call.h: what a template may call: jinja2's filters and tests, the methods of str, list and dict, and the
// functions that transformers gives to templates. Each is a row of a table: its name, its parameters, what it does.
//
// Semantics are those of Python 3.11 and Jinja2 3.1 (jinja2/filters.py, jinja2/tests.py). What is in none of the tables
// is not built in, and a template that names it is rejected.
#pragma once
#include "jinja_value.h"

// params: names with commas; "*": a[0] is the list of all arguments, a[1] the dict of those that are named.
struct JinjaCallable {
  const char *name, *params;
  JinjaValue (*call)(Jinja *j, JinjaValue self, JinjaValue *a);
};
enum { JINJA_PARAMS = 6 };
// jinja_render.h
static JinjaValue jinja_math(Jinja *j, char op, JinjaValue a, JinjaValue b);
static JinjaValue jinja_attribute(Jinja *j, JinjaValue v, const JinjaText *name);
static JinjaValue jinja_member(Jinja *j, JinjaValue v, JinjaValue key);
static const JinjaText jinja_missing = {"", 0, 0, false};          // the name of what no argument was given for
static bool jinja_given(JinjaValue a) { return a.type != J_UNDEFINED || a.s != &jinja_missing; }
// Puts arguments where the parameters are.
static void jinja_bind(Jinja *j, const JinjaCallable *c, const JinjaList *args, JinjaDict *named,
                       JinjaValue to[JINJA_PARAMS]) {
  for (int i = 0; i < JINJA_PARAMS; i++) to[i] = jinja_undefined(&jinja_missing);
  if (c->params[0] == '*') {
    to[0] = jinja_list(j), to[1] = jinja_dict(j);
    *to[0].l = *args, *to[1].d = *named;
    return;
  }
  int k = 0;
  size_t used = 0;
  for (const char *p = c->params; *p; p += strcspn(p, ","), p += *p == ',', k++) {
    const size_t n = strcspn(p, ",");
    if ((size_t)k < args->n) to[k] = args->v[k];
    for (size_t i = 0; i < named->n; i++)
      if (named->p[i].key.s->n == n && !memcmp(named->p[i].key.s->p, p, n)) to[k] = named->p[i].value, used++;
  }
  if (args->n > (size_t)k || used < named->n)
    jinja_fail(j, JINJA_WRONG, "%s has too many arguments, or one of another name", c->name);
}

// ---- texts
static const JinjaText *jinja_need_text(Jinja *j, JinjaValue v, const char *what) {
  if (v.type != J_STR) jinja_fail(j, JINJA_WRONG, "%s needs a text, not %s", what, jinja_type(v));
  return v.s;
}
static int64_t jinja_need_whole(Jinja *j, JinjaValue v, int64_t none) {
  if (!jinja_given(v) || v.type == J_NONE) return none;
  if (!jinja_is_whole(v)) jinja_fail(j, JINJA_WRONG, "a whole number is needed, not %s", jinja_type(v));
  return jinja_whole(v);
}
static uint32_t jinja_char_case(Jinja *j, uint32_t c, bool upper) {
  if (c < 0x80) return (uint32_t)(upper ? toupper((int)c) : tolower((int)c));
  const uint32_t low = upper ? 0x20 : 0, to = upper ? (uint32_t)-0x20 : 0x20;
  if ((c >= 0xc0 + low && c <= 0xde + low && c != 0xd7 + low) || (c >= 0x391 + low && c <= 0x3a9 + low && c != 0x3c2) ||
      (c >= 0x410 + low && c <= 0x42f + low)) return c + to;
  if (c >= 0x400 + (upper ? 0x50 : 0) && c <= 0x40f + (upper ? 0x50 : 0)) return upper ? c - 0x50 : c + 0x50;
  const bool first_even = (c >= 0x100 && c <= 0x12f) || (c >= 0x132 && c <= 0x137) || (c >= 0x14a && c <= 0x177);
  const bool first_odd = (c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e);
  if (first_even || first_odd) return (c & 1) == (uint32_t)(first_even ? upper : !upper) ? upper ? c - 1 : c + 1 : c;
  if (c < 0xff || (c >= 0x300 && c < 0x345) || (c >= 0x391 && c <= 0x3c9 && c != 0x3c2) ||
      (c >= 0x400 && c <= 0x45f) || (c >= 0x590 && c < 0x10a0) || (c >= 0x2000 && c < 0x2100) ||
      (c >= 0x2190 && c < 0x24b6) || (c >= 0x2500 && c < 0x2c00) || (c >= 0x2e00 && c < 0xa640) ||
      (c >= 0xac00 && c < 0xfb00) || (c >= 0xfe00 && c < 0xff21) || (c >= 0x1f000 && c < 0x1f130) || c >= 0x1f200)
    return c;
  jinja_fail(j, JINJA_UNKNOWN, "upper and lower case of U+%04X is not built in", c);
}
enum JinjaCase { CASE_LOW, CASE_HIGH, CASE_FIRST, CASE_TITLE, CASE_WORDS };    // TITLE: str.title; WORDS: the filter
static JinjaValue jinja_cased(Jinja *j, const JinjaText *s, JinjaCase how) {
  const size_t from = jinja_capture(j);
  const uint8_t *p = (const uint8_t *)s->p, *end = p + s->n;
  bool first = true;
  for (int n; p < end; p += n) {
    uint8_t to[8];
    const uint32_t c = utf8_char(p, end, &n);
    if (c == 0xdf && (how == CASE_HIGH || first)) jinja_fail(j, JINJA_UNKNOWN, "upper case of U+00DF is not built in");
    const bool high = how == CASE_HIGH || (how > CASE_HIGH && first);
    jinja_write(j, (const char *)to, (size_t)(utf8_put(to, jinja_char_case(j, c, high)) - to));
    if (how == CASE_TITLE) first = c < 0x80 ? !isalpha((int)c) : chat_is_space(c);
    else first = how == CASE_WORDS && (chat_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c)));
  }
  return jinja_captured(j, from, s->safe);
}
// Text without characters of `chars` (NULL: white space) at its ends.
static JinjaValue jinja_strip(Jinja *j, const JinjaText *s, JinjaValue chars, bool left, bool right) {
  const bool given = jinja_given(chars) && chars.type != J_NONE;
  const JinjaText *set = given ? jinja_need_text(j, chars, "strip") : NULL;
  auto strips = [&](const uint8_t *p, int n, uint32_t c) {
    if (!set) return chat_is_space(c);
    for (const char *at = set->p; (at = (const char *)memmem(at, set->n - (size_t)(at - set->p), p, (size_t)n)); at++)
      if (((uint8_t)*at & 0xc0) != 0x80) return true;
    return false;
  };
  const uint8_t *p = (const uint8_t *)s->p, *end = p + s->n;
  int n;
  for (uint32_t c; left && p < end && (c = utf8_char(p, end, &n), strips(p, n, c)); p += n) {}
  while (right && p < end) {
    const uint8_t *q = end - 1;
    while (q > p && (*q & 0xc0) == 0x80) q--;
    const uint32_t c = utf8_char(q, end, &n);
    if (!strips(q, n, c)) break;
    end = q;
  }
  return jinja_part(j, s, (size_t)((const char *)p - s->p), (size_t)(end - p));
}
static const char *jinja_last_of(const char *p, size_t n, const JinjaText *word) {
  for (size_t i = n + 1; i-- > 0;) if (i + word->n <= n && !memcmp(p + i, word->p, word->n)) return p + i;
  return NULL;
}
// str.split and, from the right, rsplit.
static JinjaValue jinja_split(Jinja *j, const JinjaText *s, JinjaValue sep, int64_t most, bool right) {
  JinjaValue l = jinja_list(j);
  const char *p = s->p, *end = p + s->n;
  if (!jinja_given(sep) || sep.type == J_NONE) {
    const JinjaValue none = jinja_undefined(&jinja_missing);
    for (int64_t k = 0;; k++) {
      const JinjaText *rest = jinja_strip(j, jinja_text_at(j, p, (size_t)(end - p)).s, none, k == 0 || !right,
                                          k == 0 || right).s;
      if (!rest->n) break;
      const char *a = rest->p, *b = a + rest->n;
      if (k == most) { jinja_add(j, l.l, jinja_strip(j, rest, none, true, right && true)); break; }
      auto space = [&](const char *at) {
        int n;
        return chat_is_space(utf8_char((const uint8_t *)at, (const uint8_t *)b, &n));
      };
      const char *cut = right ? b : a;
      if (right) {
        while (cut > a) {
          const char *before = cut - 1;
          while (before > a && ((uint8_t)*before & 0xc0) == 0x80) before--;
          if (space(before)) break;
          cut = before;
        }
        jinja_add(j, l.l, jinja_text_at(j, cut, (size_t)(b - cut)));
        p = a, end = cut;
      } else {
        while (cut < b && !space(cut)) for (cut++; cut < b && ((uint8_t)*cut & 0xc0) == 0x80;) cut++;
        jinja_add(j, l.l, jinja_text_at(j, a, (size_t)(cut - a)));
        p = cut, end = b;
      }
      jinja_step(j);
    }
  } else {
    const JinjaText *word = jinja_need_text(j, sep, "split");
    if (!word->n) jinja_fail(j, JINJA_WRONG, "empty separator");
    const char *at;
    for (int64_t k = 0; k != most; k++) {
      at = right ? jinja_last_of(p, (size_t)(end - p), word)
                 : (const char *)memmem(p, (size_t)(end - p), word->p, word->n);
      if (!at) break;
      if (right) jinja_add(j, l.l, jinja_text_at(j, at + word->n, (size_t)(end - at) - word->n)), end = at;
      else jinja_add(j, l.l, jinja_text_at(j, p, (size_t)(at - p))), p = at + word->n;
      jinja_step(j);
    }
    jinja_add(j, l.l, jinja_text_at(j, p, (size_t)(end - p)));
  }
  for (size_t i = 0; right && i < l.l->n / 2; i++) {
    const JinjaValue x = l.l->v[i];
    l.l->v[i] = l.l->v[l.l->n - 1 - i], l.l->v[l.l->n - 1 - i] = x;
  }
  return l;
}
static JinjaValue jinja_splitlines(Jinja *j, const JinjaText *s, bool keep) {
  JinjaValue l = jinja_list(j);
  const uint8_t *p = (const uint8_t *)s->p, *end = p + s->n, *from = p;
  for (int n; p < end;) {
    const uint32_t c = utf8_char(p, end, &n);
    if (!((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029)) { p += n;
    continue; }
    const uint8_t *next = p + n + (c == 13 && p + 1 < end && p[1] == '\n');
    jinja_add(j, l.l, jinja_text_at(j, (const char *)from, (size_t)((keep ? next : p) - from)));
    p = from = next;
  }
  if (from < end) jinja_add(j, l.l, jinja_text_at(j, (const char *)from, (size_t)(end - from)));
  return l;
}
static JinjaValue jinja_replace(Jinja *j, const JinjaText *s, const JinjaText *old, const JinjaText *by, int64_t most) {
  const size_t from = jinja_capture(j);
  const char *p = s->p, *end = p + s->n;
  for (int64_t k = 0; k != most; k++) {
    const char *at = old->n ? (const char *)memmem(p, (size_t)(end - p), old->p, old->n) : p;
    if (!at) break;
    jinja_write(j, p, (size_t)(at - p));
    jinja_write(j, by->p, by->n);
    p = at + old->n;
    jinja_step(j);
    if (old->n) continue;
    int n = 0;
    if (p == end) break;
    utf8_char((const uint8_t *)p, (const uint8_t *)end, &n);
    jinja_write(j, p, (size_t)n);
    p += n;
  }
  jinja_write(j, p, (size_t)(end - p));
  return jinja_captured(j, from, s->safe);
}
static JinjaValue jinja_escape(Jinja *j, const JinjaText *s) {
  if (s->safe) return jinja_text_value(s);
  const size_t from = jinja_capture(j);
  for (size_t i = 0; i < s->n; i++) {
    static const char marks[] = "&<>'\"", *const words[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const char *at = s->p[i] ? strchr(marks, s->p[i]) : NULL;
    if (at) jinja_write(j, words[at - marks]);
    else jinja_write(j, s->p + i, 1);
  }
  return jinja_captured(j, from, true);
}
static JinjaValue jinja_join(Jinja *j, const JinjaText *by, const JinjaList *l, bool any) {
  const size_t from = jinja_capture(j);
  for (size_t i = 0; i < l->n; i++) {
    if (i) jinja_write(j, by->p, by->n);
    if (!any) jinja_need_text(j, l->v[i], "join");
    jinja_write_value(j, l->v[i]);
  }
  return jinja_captured(j, from);
}
static JinjaValue jinja_blanks(Jinja *j, int64_t n) {
  if (n > JINJA_ITEMS_MAX) jinja_fail(j, JINJA_BOUND, "%lld spaces", (long long)n);
  char *to = (char *)jinja_alloc(j, n > 0 ? (size_t)n : 0);
  if (n > 0) memset(to, ' ', (size_t)n);
  return jinja_text_at(j, to, n > 0 ? (size_t)n : 0);
}
static bool jinja_ends(Jinja *j, const JinjaText *s, JinjaValue x, bool front) {
  if (x.type == J_TUPLE) {
    for (size_t i = 0; i < x.l->n; i++) if (jinja_ends(j, s, x.l->v[i], front)) return true;
    return false;
  }
  const JinjaText *w = jinja_need_text(j, x, front ? "startswith" : "endswith");
  return w->n <= s->n && !memcmp(front ? s->p : s->p + s->n - w->n, w->p, w->n);
}
// The number of the character where a text stands first, or last; -1: nowhere.
static int64_t jinja_position(Jinja *j, const JinjaText *s, JinjaValue *a, bool last) {
  const JinjaText *w = jinja_need_text(j, a[0], "find");
  const JinjaValue none = jinja_none();
  const JinjaText *in = jinja_slice(j, jinja_text_value(s), jinja_given(a[1]) ? a[1] : none,
                                    jinja_given(a[2]) ? a[2] : none, none).s;
  const char *at = last ? jinja_last_of(in->p, in->n, w) : (const char *)memmem(in->p, in->n, w->p, w->n);
  return at ? (int64_t)jinja_text_at(j, s->p, (size_t)(at - s->p)).s->chars : -1;
}
static bool jinja_all(const JinjaText *s, bool (*is)(uint32_t c)) {
  int n;
  for (const uint8_t *p = (const uint8_t *)s->p, *end = p + s->n; p < end; p += n) if (!is(utf8_char(p, end, &n)))
    return false;
  return s->n;
}
// Whether a text has letters, none of them of the other case.
static bool jinja_one_case(Jinja *j, const JinjaText *s, bool upper) {
  const JinjaText *low = jinja_cased(j, s, CASE_LOW).s, *high = jinja_cased(j, s, CASE_HIGH).s;
  auto same = [](const JinjaText *a, const JinjaText *b) { return a->n == b->n && !memcmp(a->p, b->p, a->n); };
  return !same(low, high) && same(s, upper ? high : low);
}
// str.format with fields that have no format of their own.
static JinjaValue jinja_format(Jinja *j, const JinjaText *s, const JinjaList *args, JinjaDict *named) {
  const size_t from = jinja_capture(j);
  size_t next = 0;
  for (size_t i = 0; i < s->n; i++) {
    const char c = s->p[i], after = i + 1 < s->n ? s->p[i + 1] : 0;
    if (c != '{' && c != '}') { jinja_write(j, s->p + i, 1); continue; }
    if (c == after) { jinja_write(j, s->p + i++, 1); continue; }
    const char *close = (const char *)memchr(s->p + i, '}', s->n - i);
    if (c == '}' || !close) jinja_fail(j, JINJA_WRONG, "format: a brace stands alone");
    const JinjaValue key = jinja_part(j, s, i + 1, (size_t)(close - s->p) - i - 1);
    const bool digits = key.s->n && key.s->n < 6 && jinja_all(key.s, [](uint32_t x) { return x - '0' < 10; });
    for (size_t k = 0; k < key.s->n; k++)
      if (strchr("!:.[", key.s->p[k])) jinja_fail(j, JINJA_UNKNOWN, "format with '%c' is not built in", key.s->p[k]);
    const size_t at = digits ? (size_t)atoi(key.s->p) : key.s->n ? SIZE_MAX : next++;
    const JinjaValue *x = at < args->n ? &args->v[at] : at == SIZE_MAX ? jinja_find(j, named, key) : NULL;
    if (!x) jinja_fail(j, JINJA_WRONG, "format: no argument for a field");
    jinja_write_value(j, *x);
    i = (size_t)(close - s->p);
  }
  return jinja_captured(j, from);
}
// text % arguments.
static JinjaValue jinja_percent(Jinja *j, const JinjaText *s, const JinjaList *args) {
  const size_t from = jinja_capture(j);
  size_t next = 0;
  for (size_t i = 0; i < s->n; i++) {
    if (s->p[i] != '%') { jinja_write(j, s->p + i, 1); continue; }
    char how[24] = "%", text[512];
    size_t k = 1;
    while (++i < s->n && strchr("0123456789.+- ", s->p[i]) && s->p[i] && k < 6) how[k++] = s->p[i];
    const char kind = i < s->n ? s->p[i] : 0;
    if (kind == '%' && k == 1) { jinja_write(j, "%"); continue; }
    if (next >= args->n) jinja_fail(j, JINJA_WRONG, "not enough arguments for format string");
    const JinjaValue x = args->v[next++];
    if (kind == 's' && k == 1) { jinja_write_value(j, x); continue; }
    if (kind == 'r' && k == 1) { jinja_write_value(j, x, true); continue; }
    if (!kind || !strchr("dif", kind)) jinja_fail(j, JINJA_UNKNOWN, "text %% arguments with that format is not built "
                                                  "in");
    if (!jinja_is_number(x)) jinja_fail(j, JINJA_WRONG, "%%%c needs a number, not %s", kind, jinja_type(x));
    snprintf(how + k, sizeof how - k, "%s", kind == 'f' ? "f" : "lld");
    const bool fits = kind == 'f' || x.type != J_FLOAT || fabs(x.f) < 0x1p63;
    const int n = !fits ? -1 : kind == 'f' ? snprintf(text, sizeof text, how, jinja_number(x))
        : snprintf(text, sizeof text, how, (long long)(x.type == J_FLOAT ? (int64_t)x.f : jinja_whole(x)));
    if (n < 0 || n >= (int)sizeof text) jinja_fail(j, JINJA_UNKNOWN, "a number of that length is not built in");
    jinja_write(j, text);
  }
  if (next < args->n) jinja_fail(j, JINJA_WRONG, "not all arguments converted during string formatting");
  return jinja_captured(j, from);
}

#define TEXT_ROW(name, params, body) {name, params, [](Jinja *j, JinjaValue self, JinjaValue *a) -> JinjaValue { \
  const JinjaText *s = self.s; (void)s, (void)j, (void)a; return body; }}
static const JinjaCallable jinja_str_methods[] = {
    TEXT_ROW("strip", "chars", jinja_strip(j, s, a[0], true, true)),
    TEXT_ROW("lstrip", "chars", jinja_strip(j, s, a[0], true, false)),
    TEXT_ROW("rstrip", "chars", jinja_strip(j, s, a[0], false, true)),
    TEXT_ROW("split", "sep,maxsplit", jinja_split(j, s, a[0], jinja_need_whole(j, a[1], -1), false)),
    TEXT_ROW("rsplit", "sep,maxsplit", jinja_split(j, s, a[0], jinja_need_whole(j, a[1], -1), true)),
    TEXT_ROW("splitlines", "keepends", jinja_splitlines(j, s, jinja_truth(a[0]))),
    TEXT_ROW("replace", "old,new,count", jinja_replace(j, s, jinja_need_text(j, a[0], "replace"),
                                                       jinja_need_text(j, a[1], "replace"), jinja_need_whole(j, a[2],
                                                           -1))),
    TEXT_ROW("startswith", "prefix", jinja_bool(jinja_ends(j, s, a[0], true))),
    TEXT_ROW("endswith", "suffix", jinja_bool(jinja_ends(j, s, a[0], false))),
    TEXT_ROW("removeprefix", "prefix", jinja_ends(j, s, a[0], true) && a[0].type == J_STR
                 ? jinja_part(j, s, a[0].s->n, s->n - a[0].s->n) : self),
    TEXT_ROW("removesuffix", "suffix", jinja_ends(j, s, a[0], false) && a[0].type == J_STR
                 ? jinja_part(j, s, 0, s->n - a[0].s->n) : self),
    TEXT_ROW("find", "sub,start,end", jinja_int(jinja_position(j, s, a, false))),
    TEXT_ROW("rfind", "sub,start,end", jinja_int(jinja_position(j, s, a, true))),
    {"index", "sub,start,end", [](Jinja *j, JinjaValue self, JinjaValue *a) {
      const int64_t at = jinja_position(j, self.s, a, false);
      if (at < 0) jinja_fail(j, JINJA_WRONG, "substring not found");
      return jinja_int(at);
    }},
    {"count", "sub", [](Jinja *j, JinjaValue self, JinjaValue *a) {
      const JinjaText *w = jinja_need_text(j, a[0], "count");
      if (!w->n) return jinja_int((int64_t)self.s->chars + 1);
      return jinja_int((int64_t)jinja_split(j, self.s, a[0], -1, false).l->n - 1);
    }},
    TEXT_ROW("lower", "", jinja_cased(j, s, CASE_LOW)), TEXT_ROW("upper", "", jinja_cased(j, s, CASE_HIGH)),
    TEXT_ROW("capitalize", "", jinja_cased(j, s, CASE_FIRST)), TEXT_ROW("title", "", jinja_cased(j, s, CASE_TITLE)),
    TEXT_ROW("join", "iterable", jinja_join(j, s, jinja_items(j, a[0]), false)),
    TEXT_ROW("format", "*", jinja_format(j, s, a[0].l, a[1].d)),
    TEXT_ROW("isspace", "", jinja_bool(jinja_all(s, chat_is_space))),
    TEXT_ROW("isdigit", "", jinja_bool(jinja_all(s, [](uint32_t c) { return c - '0' < 10; }))),
    TEXT_ROW("isupper", "", jinja_bool(jinja_one_case(j, s, true))),
    TEXT_ROW("islower", "", jinja_bool(jinja_one_case(j, s, false))),
    {"partition", "sep", [](Jinja *j, JinjaValue self, JinjaValue *a) {
      const JinjaText *w = jinja_need_text(j, a[0], "partition"), *s = self.s;
      const char *at = (const char *)memmem(s->p, s->n, w->p, w->n);
      JinjaValue t = jinja_list(j, J_TUPLE);
      jinja_add(j, t.l, jinja_text_at(j, s->p, at ? (size_t)(at - s->p) : s->n));
      jinja_add(j, t.l, jinja_text_at(j, w->p, at ? w->n : 0));
      jinja_add(j, t.l, at ? jinja_text_at(j, at + w->n, s->n - (size_t)(at - s->p) - w->n) : jinja_words(j, ""));
      return t;
    }},
    {}};
// 'keys', 'values' or 'items' of a dict.
static JinjaValue jinja_view(Jinja *j, const JinjaDict *d, int what, JinjaType type) {
  JinjaValue l = jinja_list(j, type, d->n);
  for (size_t i = 0; i < d->n; i++)
    jinja_add(j, l.l, what == 0 ? d->p[i].key : what == 1 ? d->p[i].value : jinja_pair(j, d->p[i].key, d->p[i].value));
  return l;
}
static const JinjaCallable jinja_dict_methods[] = {
    {"keys", "", [](Jinja *j, JinjaValue d, JinjaValue *) { return jinja_view(j, d.d, 0, J_VIEW); }},
    {"values", "", [](Jinja *j, JinjaValue d, JinjaValue *) { return jinja_view(j, d.d, 1, J_VIEW); }},
    {"items", "", [](Jinja *j, JinjaValue d, JinjaValue *) { return jinja_view(j, d.d, 2, J_VIEW); }},
    {"copy", "", [](Jinja *, JinjaValue d, JinjaValue *) { return d; }},
    {"get", "key,default", [](Jinja *j, JinjaValue d, JinjaValue *a) {
      const JinjaValue *x = jinja_find(j, d.d, a[0]);
      return x ? *x : jinja_given(a[1]) ? a[1] : jinja_none();
    }},
    {}};
static const JinjaCallable jinja_list_methods[] = {
    {"index", "value", [](Jinja *j, JinjaValue l, JinjaValue *a) {
      for (size_t i = 0; i < l.l->n; i++) if (jinja_equal(j, l.l->v[i], a[0])) return jinja_int((int64_t)i);
      jinja_fail(j, JINJA_WRONG, "list.index: it is not in the list");
    }},
    {"count", "value", [](Jinja *j, JinjaValue l, JinjaValue *a) {
      int64_t n = 0;
      for (size_t i = 0; i < l.l->n; i++) n += jinja_equal(j, l.l->v[i], a[0]);
      return jinja_int(n);
    }},
    {"copy", "", [](Jinja *, JinjaValue l, JinjaValue *) { return l; }},
    {}};
static const JinjaCallable *jinja_named(const JinjaCallable *rows, const JinjaText *name) {
  for (; rows->name; rows++) if (jinja_same(name, rows->name)) return rows;
  return NULL;
}
// The method of a value; NULL: it has none of that name.
static const JinjaCallable *jinja_method(JinjaValue v, const JinjaText *name) {
  return v.type == J_STR ? jinja_named(jinja_str_methods, name) : v.type == J_DICT ? jinja_named(jinja_dict_methods,
      name)
         : jinja_is_seq(v) ? jinja_named(jinja_list_methods, name) : NULL;
}
