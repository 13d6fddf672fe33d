// jinja_filters.h: jinja2's filters and tests, and the functions that templates are given. A part of the tables of
// jinja_call.h, whose conventions hold here.
#pragma once
#include "jinja_call.h"

static const JinjaCallable *jinja_filter_named(const JinjaText *name);
static const JinjaCallable *jinja_test_named(const JinjaText *name);

// What `attribute` names of a value: keys, with dots between them, or a number.
static JinjaValue jinja_path(Jinja *j, JinjaValue v, JinjaValue attribute) {
  if (attribute.type != J_STR) return jinja_member(j, v, attribute);
  const JinjaList *parts = jinja_split(j, attribute.s, jinja_words(j, "."), -1, false).l;
  for (size_t i = 0; i < parts->n; i++) {
    const JinjaText *s = parts->v[i].s;
    const bool digits = s->n < 9 && jinja_all(s, [](uint32_t c) { return c - '0' < 10; });
    v = jinja_member(j, v, digits ? jinja_int(atoi(jinja_text(j, s->p, s->n).s->p)) : parts->v[i]);
  }
  return v;
}
// What items are compared by: themselves, or an attribute; texts in lower case unless told otherwise.
static JinjaValue jinja_key(Jinja *j, JinjaValue v, JinjaValue attribute, JinjaValue case_sensitive) {
  if (jinja_given(attribute) && attribute.type != J_NONE) v = jinja_path(j, v, attribute);
  return v.type == J_STR && !jinja_truth(case_sensitive) ? jinja_cased(j, v.s, CASE_LOW) : v;
}
// A list in order of its items' keys, which stays where keys are equal. by: of pairs, which of the two; -1: the item.
static JinjaValue jinja_sorted(Jinja *j, const JinjaList *l, JinjaValue attribute, JinjaValue sensitive, int by,
                               bool reverse) {
  JinjaValue keys = jinja_list(j, J_LIST, l->n), to = jinja_list(j, J_LIST, l->n);
  for (size_t i = 0; i < l->n; i++) {
    const JinjaValue key = jinja_key(j, by < 0 ? l->v[i] : l->v[i].l->v[by], attribute, sensitive);
    size_t low = 0, high = i;
    while (low < high) {
      const size_t mid = (low + high) / 2;
      const int c = jinja_compare(j, keys.l->v[mid], key);
      if (reverse ? c < 0 : c > 0) high = mid;
      else low = mid + 1;
    }
    memmove((void *)(keys.l->v + low + 1), keys.l->v + low, (i - low) * sizeof(JinjaValue));
    memmove((void *)(to.l->v + low + 1), to.l->v + low, (i - low) * sizeof(JinjaValue));
    keys.l->v[low] = key, to.l->v[low] = l->v[i];
    keys.l->n = to.l->n = i + 1;
  }
  return to;
}
static JinjaValue jinja_extreme(Jinja *j, JinjaValue v, JinjaValue *a, int sign) {
  const JinjaList *l = jinja_items(j, v);
  if (!l->n) return jinja_undefined();
  size_t best = 0;
  for (size_t i = 1; i < l->n; i++)
    if (sign * jinja_compare(j, jinja_key(j, l->v[i], a[1], a[0]), jinja_key(j, l->v[best], a[1], a[0])) > 0) best = i;
  return l->v[best];
}
// The first argument of a list; those after it stay.
static JinjaValue jinja_shift(Jinja *j, JinjaList *l, const char *what) {
  if (!l->n) jinja_fail(j, JINJA_WRONG, "%s needs an argument", what);
  l->n--;
  return *l->v++;
}
static JinjaValue jinja_call_row(Jinja *j, const JinjaCallable *c, JinjaValue self, const JinjaList *args,
                                 JinjaDict *named) {
  JinjaValue a[JINJA_PARAMS];
  jinja_bind(j, c, args, named, a);
  return c->call(j, self, a);
}
// select, reject: items, or (attribute) items by what one says, that pass a test or do not.
static JinjaValue jinja_selected(Jinja *j, JinjaValue v, JinjaValue *a, bool attribute, bool keep) {
  JinjaValue to = jinja_list(j, J_ITERATOR);
  const JinjaValue key = attribute ? jinja_shift(j, a[0].l, "selectattr") : jinja_none();
  const JinjaValue name = a[0].l->n ? jinja_shift(j, a[0].l, "select") : jinja_none();
  const JinjaCallable *test = name.type == J_STR ? jinja_test_named(name.s) : NULL;
  if (name.type != J_NONE && !test) jinja_fail(j, JINJA_UNKNOWN, "a test that select names is not built in");
  const JinjaList *l = jinja_items(j, jinja_truth(v) ? v : jinja_undefined());
  for (size_t i = 0; i < l->n; i++) {
    const JinjaValue x = attribute ? jinja_path(j, l->v[i], key) : l->v[i];
    if (jinja_truth(test ? jinja_call_row(j, test, x, a[0].l, a[1].d) : x) == keep) jinja_add(j, to.l, l->v[i]);
  }
  return to;
}
static JinjaValue jinja_map(Jinja *j, JinjaValue v, JinjaValue *a) {
  JinjaValue to = jinja_list(j, J_ITERATOR);
  const JinjaValue *attribute = jinja_find(j, a[1].d, jinja_words(j, "attribute"));
  const JinjaValue *none = jinja_find(j, a[1].d, jinja_words(j, "default"));
  const JinjaValue name = attribute ? *attribute : jinja_shift(j, a[0].l, "map");
  const JinjaCallable *filter = !attribute && name.type == J_STR ? jinja_filter_named(name.s) : NULL;
  if (!attribute && !filter) jinja_fail(j, JINJA_UNKNOWN, "a filter that map names is not built in");
  const JinjaList *l = jinja_items(j, jinja_truth(v) ? v : jinja_undefined());
  for (size_t i = 0; i < l->n; i++) {
    JinjaValue x = filter ? jinja_call_row(j, filter, l->v[i], a[0].l, a[1].d) : jinja_path(j, l->v[i], name);
    if (none && x.type == J_UNDEFINED) x = *none;
    jinja_add(j, to.l, x);
  }
  return to;
}
static JinjaValue jinja_tojson(Jinja *j, JinjaValue v, JinjaValue *a) {
  JinjaDumps how = {jinja_truth(a[0]), jinja_truth(a[3]), NULL, NULL, jinja_words(j, ": ").s};
  if (a[1].type == J_STR) how.indent = a[1].s;
  else if (jinja_given(a[1]) && a[1].type != J_NONE)
    how.indent = jinja_blanks(j, jinja_need_whole(j, a[1], 0)).s;
  how.comma = jinja_words(j, how.indent ? "," : ", ").s;
  if (jinja_is_seq(a[2]) && a[2].l->n == 2) {
    how.comma = jinja_need_text(j, a[2].l->v[0], "separators");
    how.colon = jinja_need_text(j, a[2].l->v[1], "separators");
  }
  const size_t from = jinja_capture(j);
  jinja_dumps(j, v, &how);
  return jinja_captured(j, from);
}
static JinjaValue jinja_indented(Jinja *j, JinjaValue v, JinjaValue *a) {
  const JinjaText *by = a[0].type == J_STR ? a[0].s : jinja_blanks(j, jinja_need_whole(j, a[0], 4)).s;
  const JinjaText *s = jinja_str(j, v).s;
  const size_t from = jinja_capture(j);
  if (jinja_truth(a[1])) jinja_write(j, by->p, by->n);
  jinja_write(j, s->p, s->n), jinja_write(j, "\n");
  JinjaList *l = jinja_splitlines(j, jinja_captured(j, from).s, false).l;
  const size_t again = jinja_capture(j);
  for (size_t i = 0; i < l->n; i++) {
    if (i) jinja_write(j, "\n");
    if (i && (l->v[i].s->n || jinja_truth(a[2]))) jinja_write(j, by->p, by->n);
    jinja_write(j, l->v[i].s->p, l->v[i].s->n);
  }
  return jinja_captured(j, again);
}
// int and float of a text or number; of what is none, what the argument says.
static JinjaValue jinja_to_number(Jinja *j, JinjaValue v, JinjaValue none, bool whole) {
  if (jinja_is_whole(v)) return whole ? jinja_int(jinja_whole(v)) : jinja_float((double)jinja_whole(v));
  double f = v.type == J_FLOAT ? v.f : 0;
  if (v.type == J_STR) {
    const JinjaText *s = jinja_strip(j, v.s, jinja_undefined(&jinja_missing), true, true).s;
    const char *text = jinja_text(j, s->p, s->n).s->p;
    char *end, *end_whole;
    errno = 0;
    const long long i = strtoll(text, &end_whole, 10);
    if (whole && s->n && !*end_whole && !errno) return jinja_int(i);
    f = strtod(text, &end);
    if (!s->n || *end || strpbrk(text, "xXpP(")) return none;
  } else if (v.type != J_FLOAT) return none;
  if (!whole) return jinja_float(f);
  return fabs(f) < 9e18 ? jinja_int((int64_t)f) : none;
}
static JinjaValue jinja_round(Jinja *j, JinjaValue v, JinjaValue *a) {
  const int64_t digits = jinja_need_whole(j, a[0], 0);
  const bool up = a[1].type == J_STR && jinja_same(a[1].s, "ceil"), down = a[1].type == J_STR && jinja_same(a[1].s,
      "floor");
  if (!jinja_is_number(v)) jinja_fail(j, JINJA_WRONG, "round needs a number, not %s", jinja_type(v));
  if (digits < 0 || digits > 20) jinja_fail(j, JINJA_UNKNOWN, "round to %lld digits is not built in",
                                            (long long)digits);
  const double by = pow(10, (double)digits), f = jinja_number(v);
  if (up || down) return jinja_float((up ? ceil(f * by) : floor(f * by)) / by);
  if (jinja_is_whole(v)) return jinja_int(jinja_whole(v));
  char text[400];
  snprintf(text, sizeof text, "%.*f", (int)digits, f);
  return jinja_float(strtod(text, NULL));
}

#define ROW(name, params, body) {name, params, [](Jinja *j, JinjaValue x, JinjaValue *a) -> JinjaValue { \
  (void)j, (void)x, (void)a; return body; }}
#define TRUTH(name, params, body) ROW(name, params, jinja_bool(body))
#define AS_TEXT(x) jinja_str(j, x).s
static const JinjaValue jinja_no_argument = jinja_undefined(&jinja_missing);
static const JinjaCallable jinja_filters[] = {
    ROW("abs", "", x.type == J_FLOAT ? jinja_float(fabs(x.f)) : jinja_int(llabs(jinja_need_whole(j, x, 0)))),
    ROW("attr", "name", jinja_attribute(j, x, jinja_need_text(j, a[0], "attr"))),
    ROW("capitalize", "", jinja_cased(j, AS_TEXT(x), CASE_FIRST)),
    ROW("count", "", jinja_int((int64_t)jinja_length(j, x))), ROW("length", "", jinja_int((int64_t)jinja_length(j, x))),
    ROW("default", "default_value,boolean", x.type == J_UNDEFINED || (jinja_truth(a[1]) && !jinja_truth(x))
            ? jinja_given(a[0]) ? a[0] : jinja_words(j, "") : x),
    ROW("d", "default_value,boolean", x.type == J_UNDEFINED || (jinja_truth(a[1]) && !jinja_truth(x))
            ? jinja_given(a[0]) ? a[0] : jinja_words(j, "") : x),
    {"dictsort", "case_sensitive,by,reverse", [](Jinja *j, JinjaValue x, JinjaValue *a) {
      if (x.type != J_DICT) jinja_fail(j, JINJA_WRONG, "dictsort of a %s", jinja_type(x));
      return jinja_sorted(j, jinja_view(j, x.d, 2, J_LIST).l, jinja_no_argument, a[0],
                          a[1].type == J_STR && jinja_same(a[1].s, "value"), jinja_truth(a[2]));
    }},
    ROW("e", "", jinja_escape(j, AS_TEXT(x))), ROW("escape", "", jinja_escape(j, AS_TEXT(x))),
    {"first", "", [](Jinja *j, JinjaValue x, JinjaValue *) {
      if (x.type == J_ITERATOR) return x.l->n ? jinja_shift(j, x.l, "first") : jinja_undefined();
      const JinjaList *l = jinja_items(j, x);
      return l->n ? l->v[0] : jinja_undefined();
    }},
    ROW("float", "default", jinja_to_number(j, x, jinja_given(a[0]) ? a[0] : jinja_float(0), false)),
    ROW("format", "*", jinja_percent(j, AS_TEXT(x), a[0].l)),
    ROW("indent", "width,first,blank", jinja_indented(j, x, a)),
    ROW("int", "default", jinja_to_number(j, x, jinja_given(a[0]) ? a[0] : jinja_int(0), true)),
    {"items", "", [](Jinja *j, JinjaValue x, JinjaValue *) {
      if (x.type != J_DICT && x.type != J_UNDEFINED) jinja_fail(j, JINJA_WRONG, "items of a %s", jinja_type(x));
      return x.type == J_DICT ? jinja_view(j, x.d, 2, J_ITERATOR) : jinja_list(j, J_ITERATOR);
    }},
    {"join", "d,attribute", [](Jinja *j, JinjaValue x, JinjaValue *a) {
      JinjaList l = *jinja_items(j, x), mapped = {};
      for (size_t i = 0; i < l.n; i++) jinja_add(j, &mapped, jinja_given(a[1]) ? jinja_path(j, l.v[i], a[1]) : l.v[i]);
      return jinja_join(j, jinja_given(a[0]) ? AS_TEXT(a[0]) : jinja_words(j, "").s, &mapped, true);
    }},
    {"last", "", [](Jinja *j, JinjaValue x, JinjaValue *) {
      if (x.type == J_ITERATOR) jinja_fail(j, JINJA_WRONG, "'generator' object is not reversible");
      const JinjaList *l = jinja_items(j, x);
      return l->n ? l->v[l->n - 1] : jinja_undefined();
    }},
    {"list", "", [](Jinja *j, JinjaValue x, JinjaValue *) {
      JinjaValue l = jinja_list(j);
      *l.l = *jinja_items(j, x), l.l->room = l.l->n;
      return l;
    }},
    ROW("lower", "", jinja_cased(j, AS_TEXT(x), CASE_LOW)), ROW("map", "*", jinja_map(j, x, a)),
    ROW("max", "case_sensitive,attribute", jinja_extreme(j, x, a, 1)),
    ROW("min", "case_sensitive,attribute", jinja_extreme(j, x, a, -1)),
    ROW("reject", "*", jinja_selected(j, x, a, false, false)), ROW("select", "*", jinja_selected(j, x, a, false, true)),
    ROW("rejectattr", "*", jinja_selected(j, x, a, true, false)),
    ROW("selectattr", "*", jinja_selected(j, x, a, true, true)),
    ROW("replace", "old,new,count", jinja_replace(j, AS_TEXT(x), AS_TEXT(a[0]), AS_TEXT(a[1]), jinja_need_whole(j,
        a[2], -1))),
    {"reverse", "", [](Jinja *j, JinjaValue x, JinjaValue *) {
      if (x.type == J_STR) return jinja_slice(j, x, jinja_none(), jinja_none(), jinja_int(-1));
      JinjaValue l = jinja_list(j, J_ITERATOR);
      const JinjaList *from = jinja_items(j, x);
      for (size_t i = from->n; i-- > 0;) jinja_add(j, l.l, from->v[i]);
      return l;
    }},
    ROW("round", "precision,method", jinja_round(j, x, a)),
    ROW("safe", "", jinja_text_at(j, AS_TEXT(x)->p, AS_TEXT(x)->n, true)),
    ROW("sort", "reverse,case_sensitive,attribute", jinja_sorted(j, jinja_items(j, x), a[2], a[1], -1,
                                                                 jinja_truth(a[0]))),
    ROW("string", "", jinja_str(j, x)), ROW("title", "", jinja_cased(j, AS_TEXT(x), CASE_WORDS)),
    {"sum", "attribute,start", [](Jinja *j, JinjaValue x, JinjaValue *a) {
      JinjaValue s = jinja_given(a[1]) ? a[1] : jinja_int(0);
      const JinjaList *l = jinja_items(j, x);
      for (size_t i = 0; i < l->n; i++)
        s = jinja_math(j, '+', s, jinja_given(a[0]) && a[0].type != J_NONE ? jinja_path(j, l->v[i], a[0]) : l->v[i]);
      return s;
    }},
    ROW("tojson", "ensure_ascii,indent,separators,sort_keys", jinja_tojson(j, x, a)),
    ROW("trim", "chars", jinja_strip(j, AS_TEXT(x), a[0], true, true)),
    {"unique", "case_sensitive,attribute", [](Jinja *j, JinjaValue x, JinjaValue *a) {
      JinjaValue to = jinja_list(j, J_ITERATOR), seen = jinja_list(j);
      const JinjaList *l = jinja_items(j, x);
      for (size_t i = 0; i < l->n; i++) {
        const JinjaValue key = jinja_key(j, l->v[i], a[1], a[0]);
        if (!jinja_contains(j, seen, key)) jinja_add(j, seen.l, key), jinja_add(j, to.l, l->v[i]);
      }
      return to;
    }},
    ROW("upper", "", jinja_cased(j, AS_TEXT(x), CASE_HIGH)), {}};
static int64_t jinja_modulo(Jinja *j, JinjaValue x, int64_t by) {
  if (!jinja_is_whole(x)) jinja_fail(j, JINJA_WRONG, "a whole number is needed, not %s", jinja_type(x));
  if (!by) jinja_fail(j, JINJA_WRONG, "division by zero");
  return by == -1 ? 0 : jinja_whole(x) % by;
}
static const JinjaCallable jinja_tests[] = {
    TRUTH("boolean", "", x.type == J_BOOL), TRUTH("callable", "", x.type >= J_MACRO),
    TRUTH("defined", "", x.type != J_UNDEFINED), TRUTH("undefined", "", x.type == J_UNDEFINED),
    TRUTH("divisibleby", "num", !jinja_modulo(j, x, jinja_need_whole(j, a[0], 0))),
    TRUTH("even", "", !jinja_modulo(j, x, 2)), TRUTH("odd", "", jinja_modulo(j, x, 2) != 0),
    TRUTH("eq", "other", jinja_equal(j, x, a[0])), TRUTH("==", "other", jinja_equal(j, x, a[0])),
    TRUTH("equalto", "other", jinja_equal(j, x, a[0])), TRUTH("ne", "other", !jinja_equal(j, x, a[0])),
    TRUTH("!=", "other", !jinja_equal(j, x, a[0])), TRUTH("gt", "other", jinja_compare(j, x, a[0]) > 0),
    TRUTH("greaterthan", "other", jinja_compare(j, x, a[0]) > 0), TRUTH(">", "other", jinja_compare(j, x, a[0]) > 0),
    TRUTH("ge", "other", jinja_compare(j, x, a[0]) >= 0), TRUTH(">=", "other", jinja_compare(j, x, a[0]) >= 0),
    TRUTH("lt", "other", jinja_compare(j, x, a[0]) < 0), TRUTH("lessthan", "other", jinja_compare(j, x, a[0]) < 0),
    TRUTH("<", "other", jinja_compare(j, x, a[0]) < 0), TRUTH("le", "other", jinja_compare(j, x, a[0]) <= 0),
    TRUTH("<=", "other", jinja_compare(j, x, a[0]) <= 0), TRUTH("in", "seq", jinja_contains(j, a[0], x)),
    TRUTH("escaped", "", x.type == J_STR && x.s->safe), TRUTH("false", "", x.type == J_BOOL && !x.b),
    TRUTH("true", "", x.type == J_BOOL && x.b), TRUTH("none", "", x.type == J_NONE),
    TRUTH("filter", "", jinja_filter_named(jinja_need_text(j, x, "filter"))),
    TRUTH("test", "", jinja_test_named(jinja_need_text(j, x, "test"))),
    TRUTH("float", "", x.type == J_FLOAT), TRUTH("integer", "", x.type == J_INT || x.type == J_BIG),
    TRUTH("number", "", jinja_is_number(x) || x.type == J_BIG), TRUTH("string", "", x.type == J_STR),
    TRUTH("mapping", "", x.type == J_DICT), TRUTH("iterable", "", x.type == J_UNDEFINED ||
          (x.type >= J_STR && x.type <= J_DICT) || x.type == J_LOOP),
    TRUTH("sequence", "", x.type == J_UNDEFINED || x.type == J_STR || x.type == J_DICT || jinja_is_seq(x)),
    TRUTH("lower", "", jinja_one_case(j, AS_TEXT(x), false)), TRUTH("upper", "", jinja_one_case(j, AS_TEXT(x), true)),
    TRUTH("sameas", "other", x.type == a[0].type && (x.type < J_STR ? jinja_equal(j, x, a[0]) : x.l == a[0].l)), {}};
static const JinjaCallable *jinja_filter_named(const JinjaText *name) { return jinja_named(jinja_filters, name); }
static const JinjaCallable *jinja_test_named(const JinjaText *name) { return jinja_named(jinja_tests, name); }

// ---- functions
static JinjaValue jinja_made_dict(Jinja *j, JinjaValue *a, JinjaType type) {
  JinjaValue d = jinja_dict(j, type);
  if (a[0].l->n > 1 || (a[0].l->n && a[0].l->v[0].type != J_DICT))
    jinja_fail(j, JINJA_UNKNOWN, "namespace or dict of something else than a dict is not built in");
  for (int k = 0; k < 2; k++) {
    const JinjaDict *from = k ? a[1].d : a[0].l->n ? a[0].l->v[0].d : NULL;
    for (size_t i = 0; from && i < from->n; i++) jinja_put(j, d.d, from->p[i].key, from->p[i].value);
  }
  return d;
}
static const JinjaCallable jinja_functions[] = {
    ROW("dict", "*", jinja_made_dict(j, a, J_DICT)), ROW("namespace", "*", jinja_made_dict(j, a, J_NAMESPACE)),
    {"range", "start,stop,step", [](Jinja *j, JinjaValue, JinjaValue *a) {
      const bool one = !jinja_given(a[1]);
      const int64_t from = one ? 0 : jinja_need_whole(j, a[0], 0), to = jinja_need_whole(j, a[one ? 0 : 1], 0);
      const int64_t by = jinja_need_whole(j, a[2], 1);
      if (!by) jinja_fail(j, JINJA_WRONG, "range() by zero");
      JinjaValue l = jinja_list(j);
      for (int64_t i = from; by > 0 ? i < to : i > to; i += by) {
        if (l.l->n == JINJA_ITEMS_MAX) jinja_fail(j, JINJA_BOUND, "range() of more than %d numbers", JINJA_ITEMS_MAX);
        jinja_add(j, l.l, jinja_int(i));
        if (by > 0 ? i > INT64_MAX - by : i < INT64_MIN - by) break;
      }
      return l;
    }},
    {"raise_exception", "message", [](Jinja *j, JinjaValue, JinjaValue *a) -> JinjaValue {
      const JinjaText *s = AS_TEXT(a[0]);
      jinja_fail(j, JINJA_RAISED, "%.*s", s->n && s->n < 200 ? (int)s->n : 200, s->n ? s->p : "it does not say why");
    }},
    {"strftime_now", "format", [](Jinja *j, JinjaValue, JinjaValue *a) {
      char text[512] = "";
      struct tm day = {};
      chat_date_read(j->date, &day);
      const JinjaText *s = jinja_need_text(j, a[0], "strftime_now");
      const size_t n = strftime(text, sizeof text, jinja_text(j, s->p, s->n).s->p, &day);
      return jinja_text(j, text, n);
    }},
    {}};
