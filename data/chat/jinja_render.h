// jinja_render.h: a template's tree and variables become text.
//
// Scopes are those of jinja2: the body of a loop has its own for each item, a macro sees those where it was written, an
// {% if %} has none. A rendering ends by its end, by an error of the template (jinja_fail), or at the bounds on steps,
// depth and bytes.
#pragma once
#include "jinja_parse.h"

struct JinjaVariable { const JinjaText *name; JinjaValue value; JinjaVariable *next; };
struct JinjaScope { JinjaVariable *first; JinjaScope *parent; };
// node: the loop's, which loop(items) runs again.
struct JinjaLoop {
  const JinjaList *items;
  size_t at;
  int level;
  const JinjaNode *node;
  JinjaScope *scope;
  JinjaValue seen;                               // by loop.changed
};
struct JinjaMacro { const JinjaNode *params, *body; JinjaScope *scope; };
enum JinjaFlow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };
static JinjaValue jinja_eval(Jinja *j, JinjaScope *s, const JinjaNode *n);
static JinjaFlow jinja_run(Jinja *j, JinjaScope *s, const JinjaNode *n);

// ---- variables
static JinjaScope *jinja_scope(Jinja *j, JinjaScope *parent) {
  JinjaScope *s = JINJA_NEW(j, JinjaScope);
  s->parent = parent;
  return s;
}
static void jinja_set_in(Jinja *j, JinjaScope *s, const JinjaText *name, JinjaValue value) {
  for (JinjaVariable *x = s->first; x; x = x->next) if (x->name == name) { x->value = value; return; }
  JinjaVariable *x = (JinjaVariable *)jinja_alloc(j, sizeof *x);
  *x = JinjaVariable{name, value, s->first};
  s->first = x;
}
static JinjaValue jinja_lookup(Jinja *j, JinjaScope *s, const JinjaText *name) {
  for (; s; s = s->parent) for (JinjaVariable *x = s->first; x; x = x->next) if (x->name == name) return x->value;
  for (const JinjaCallable *c = jinja_functions; c->name; c++)
    if (jinja_same(name, c->name)) {
      JinjaValue v = {J_FUNCTION, {}};
      v.function = c;
      return v;
    }
  for (const char *word : {"cycler", "joiner", "lipsum", "varargs", "kwargs", "self"})
    if (jinja_same(name, word)) jinja_fail(j, JINJA_UNKNOWN, "'%s' is not built in", word);
  return jinja_undefined(name);
}
static const JinjaCallable jinja_loop_methods[] = {
    {"cycle", "*", [](Jinja *j, JinjaValue x, JinjaValue *a) {
      if (!a[0].l->n) jinja_fail(j, JINJA_WRONG, "no items for cycling given");
      return a[0].l->v[x.loop->at % a[0].l->n];
    }},
    {"changed", "*", [](Jinja *j, JinjaValue x, JinjaValue *a) {
      const bool changed = !jinja_equal(j, x.loop->seen, a[0]);
      x.loop->seen = a[0];
      return jinja_bool(changed);
    }},
    {}};
static JinjaValue jinja_loop_attribute(const JinjaLoop *l, const JinjaText *name) {
  const int64_t at = (int64_t)l->at, n = (int64_t)l->items->n;
  const struct { const char *name; JinjaValue value; } all[] = {
      {"index0", jinja_int(at)}, {"index", jinja_int(at + 1)}, {"first", jinja_bool(!at)},
      {"last", jinja_bool(at + 1 == n)}, {"length", jinja_int(n)}, {"revindex", jinja_int(n - at)},
      {"revindex0", jinja_int(n - at - 1)}, {"depth", jinja_int(l->level + 1)}, {"depth0", jinja_int(l->level)},
      {"previtem", at ? l->items->v[at - 1] : jinja_undefined()},
      {"nextitem", at + 1 < n ? l->items->v[at + 1] : jinja_undefined()}};
  for (const auto &x : all) if (jinja_same(name, x.name)) return x.value;
  return jinja_undefined(name);
}
static JinjaValue jinja_attribute(Jinja *j, JinjaValue v, const JinjaText *name) {
  if (v.type == J_UNDEFINED) jinja_fail_undefined(j, v);
  const JinjaCallable *c = v.type == J_LOOP ? jinja_named(jinja_loop_methods, name) : jinja_method(v, name);
  if (c) {
    JinjaValue to = {J_METHOD, {}};
    to.method = JINJA_NEW(j, JinjaMethod);
    *to.method = JinjaMethod{v, c};
    return to;
  }
  if (v.type == J_LOOP) return jinja_loop_attribute(v.loop, name);
  const JinjaValue *x = v.type == J_DICT || v.type == J_NAMESPACE ? jinja_find(j, v.d, jinja_text_value(name)) : NULL;
  return x ? *x : jinja_undefined(name);
}
static JinjaValue jinja_member(Jinja *j, JinjaValue v, JinjaValue key) {
  JinjaValue x;
  if (v.type == J_UNDEFINED) jinja_fail_undefined(j, v);
  if (jinja_item(j, v, key, &x)) return x;
  return key.type == J_STR ? jinja_attribute(j, v, key.s) : jinja_undefined();
}

// ---- operators
static JinjaValue jinja_joined(Jinja *j, const JinjaText *a, const JinjaText *b, bool escapes) {
  const bool safe = escapes && (a->safe || b->safe);
  if (safe) a = jinja_escape(j, a).s, b = jinja_escape(j, b).s;
  char *to = (char *)jinja_alloc(j, a->n + b->n + 1);
  memcpy(to, a->p, a->n), memcpy(to + a->n, b->p, b->n);
  JinjaText *s = JINJA_NEW(j, JinjaText);
  *s = JinjaText{to, a->n + b->n, a->chars + b->chars, safe};
  return jinja_text_value(s);
}
static JinjaValue jinja_repeated(Jinja *j, JinjaValue v, int64_t times) {
  const size_t from = v.type == J_STR ? jinja_capture(j) : 0;
  JinjaValue to = v.type == J_STR ? v : jinja_list(j, v.type);
  const size_t each = v.type == J_STR ? v.s->n : v.l->n;
  for (int64_t i = 0; i < times && each; i++, jinja_step(j))
    if (v.type == J_STR) jinja_write(j, v.s->p, each);
    else for (size_t k = 0; k < each; k++) jinja_add(j, to.l, v.l->v[k]);
  return v.type == J_STR ? jinja_captured(j, from, v.s->safe) : to;
}
static JinjaValue jinja_of_wholes(Jinja *j, char op, int64_t a, int64_t b) {
  int64_t to = 0;
  bool over = false;
  if (strchr("/F%", op) && !b) jinja_fail(j, JINJA_WRONG, "division by zero");
  if (op == '/') return jinja_float((double)a / (double)b);
  if (op == 'P' && b < 0) return jinja_float(pow((double)a, (double)b));
  if (op == '+') over = __builtin_add_overflow(a, b, &to);
  else if (op == '-') over = __builtin_sub_overflow(a, b, &to);
  else if (op == '*') over = __builtin_mul_overflow(a, b, &to);
  else if (op == 'P') for (to = 1; b > 0 && !over && to && (b < 64 || (a != 1 && a != -1) || (b &= 1)); b--) over =
      __builtin_mul_overflow(to, a, &to);
  else if (b == -1) over = op == 'F' && __builtin_sub_overflow((int64_t)0, a, &to);
  else to = op == 'F' ? a / b - (a % b && (a < 0) != (b < 0)) : a % b + (a % b && (a < 0) != (b < 0) ? b : 0);
  if (over) jinja_fail(j, JINJA_UNKNOWN, "whole numbers beyond 64 bits are not built in");
  return jinja_int(to);
}
static JinjaValue jinja_math(Jinja *j, char op, JinjaValue a, JinjaValue b) {
  if (op == '~') return jinja_joined(j, jinja_str(j, a).s, jinja_str(j, b).s, false);
  if (jinja_is_whole(a) && jinja_is_whole(b)) return jinja_of_wholes(j, op, jinja_whole(a), jinja_whole(b));
  if (jinja_is_number(a) && jinja_is_number(b)) {
    const double x = jinja_number(a), y = jinja_number(b);
    if (strchr("/F%", op) && y == 0) jinja_fail(j, JINJA_WRONG, "division by zero");
    const double rest = op == '%' ? fmod(x, y) : 0;
    return jinja_float(op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : op == '/' ? x / y
                       : op == 'F' ? floor(x / y) : op == 'P' ? pow(x, y) : rest && (rest < 0) != (y < 0) ? rest + y
                           : rest);
  }
  if (a.type == J_STR && op == '%') {
    JinjaList one = {&b, 1, 1};
    return jinja_percent(j, a.s, b.type == J_TUPLE ? b.l : &one);
  }
  for (JinjaValue v : {a, b}) if (v.type == J_UNDEFINED) jinja_fail_undefined(j, v);
  if (op == '+' && a.type == J_STR && b.type == J_STR) return jinja_joined(j, a.s, b.s, true);
  if (op == '+' && jinja_is_seq(a) && a.type == b.type) {
    JinjaValue to = jinja_list(j, a.type, a.l->n + b.l->n);
    for (JinjaValue v : {a, b}) for (size_t i = 0; i < v.l->n; i++) jinja_add(j, to.l, v.l->v[i]);
    return to;
  }
  if (op == '*' && (a.type == J_STR || jinja_is_seq(a)) && jinja_is_whole(b)) return jinja_repeated(j, a,
      jinja_whole(b));
  if (op == '*' && (b.type == J_STR || jinja_is_seq(b)) && jinja_is_whole(a)) return jinja_repeated(j, b,
      jinja_whole(a));
  jinja_fail(j, JINJA_WRONG, "'%s' of %s and %s", op == 'F' ? "//" : op == 'P' ? "**" : op == '+' ? "+" : op == '-'
             ? "-"
             : op == '*' ? "*" : op == '/' ? "/" : "%", jinja_type(a), jinja_type(b));
}
static bool jinja_compared(Jinja *j, char op, JinjaValue a, JinjaValue b) {
  if (op == 'E' || op == 'N') return jinja_equal(j, a, b) == (op == 'E');
  if (op == 'i' || op == 'n') return jinja_contains(j, b, a) == (op == 'i');
  const int c = jinja_compare(j, a, b);
  return op == '<' ? c < 0 : op == '>' ? c > 0 : op == 'L' ? c <= 0 : c >= 0;
}

// ---- calls
static void jinja_eval_arguments(Jinja *j, JinjaScope *s, const JinjaNode *n, JinjaList *args, JinjaDict *named) {
  for (; n; n = n->next) {
    if (n->kind == N_NAMED) { jinja_put(j, named, n->value, jinja_eval(j, s, n->b)); continue; }
    if (n->kind != N_STAR && n->kind != N_STARS) { jinja_add(j, args, jinja_eval(j, s, n)); continue; }
    const JinjaValue v = jinja_eval(j, s, n->a);
    if (n->kind == N_STARS && v.type != J_DICT) jinja_fail(j, JINJA_WRONG, "** of a %s", jinja_type(v));
    for (size_t i = 0; n->kind == N_STARS && i < v.d->n; i++) {
      jinja_need_text(j, v.d->p[i].key, "**");
      jinja_put(j, named, v.d->p[i].key, v.d->p[i].value);
    }
    const JinjaList *l = n->kind == N_STAR ? jinja_items(j, v) : NULL;
    for (size_t i = 0; l && i < l->n; i++) jinja_add(j, args, l->v[i]);
  }
}
static JinjaValue jinja_call_macro(Jinja *j, const JinjaMacro *m, const JinjaList *args, const JinjaDict *named,
                                   const JinjaValue *caller) {
  JinjaScope *s = jinja_scope(j, m->scope);
  size_t k = 0, used = 0;
  if (caller) jinja_set_in(j, s, j->t->caller, *caller);
  for (const JinjaNode *p = m->params; p; p = p->next, k++) {
    const JinjaValue *x = jinja_find(j, named, p->value);
    used += x != NULL;
    jinja_set_in(j, s, p->value.s, k < args->n ? args->v[k] : x ? *x : p->a ? jinja_eval(j, s, p->a)
                                                                          : jinja_undefined(p->value.s));
  }
  if (args->n > k || used < named->n) jinja_fail(j, JINJA_WRONG, "a macro has too many arguments, or one of another "
                                                 "name");
  const size_t from = jinja_capture(j);
  if (jinja_run(j, s, m->body)) jinja_fail(j, JINJA_WRONG, "break or continue outside of a loop");
  return jinja_captured(j, from);
}
static void jinja_run_for(Jinja *j, JinjaScope *s, const JinjaNode *n, JinjaValue over, int level);
static JinjaValue jinja_call(Jinja *j, JinjaScope *s, const JinjaNode *n, const JinjaValue *caller) {
  const JinjaValue f = jinja_eval(j, s, n->a);
  JinjaList args = {};
  JinjaDict named = {};
  jinja_eval_arguments(j, s, n->b, &args, &named);
  j->line = n->line;
  if (f.type == J_MACRO) return jinja_call_macro(j, f.macro, &args, &named, caller);
  if (f.type == J_METHOD) return jinja_call_row(j, f.method->call, f.method->self, &args, &named);
  if (f.type == J_FUNCTION) return jinja_call_row(j, f.function, jinja_none(), &args, &named);
  if (f.type == J_LOOP && args.n == 1) {
    const size_t from = jinja_capture(j);
    jinja_run_for(j, f.loop->scope, f.loop->node, args.v[0], f.loop->level + 1);
    return jinja_captured(j, from);
  }
  if (f.type == J_UNDEFINED) jinja_fail_undefined(j, f);
  jinja_fail(j, JINJA_WRONG, "%s is not callable", jinja_type(f));
}

// ---- expressions
static JinjaValue jinja_eval_kind(Jinja *j, JinjaScope *s, const JinjaNode *n) {
  JinjaValue v, x;
  switch (n->kind) {
    case N_CONST: return n->value;
    case N_NAME: return jinja_lookup(j, s, n->value.s);
    case N_ATTRIBUTE:
      v = jinja_eval(j, s, n->a);
      j->line = n->line;
      return jinja_attribute(j, v, n->value.s);
    case N_ITEM:
      v = jinja_eval(j, s, n->a);
      if (n->b->kind != N_SLICE) return jinja_member(j, v, jinja_eval(j, s, n->b));
      JinjaValue part[3];
      for (int i = 0; i < 3; i++) {
        const JinjaNode *of = i == 0 ? n->b->a : i == 1 ? n->b->b : n->b->c;
        part[i] = of ? jinja_eval(j, s, of) : jinja_none();
      }
      return jinja_slice(j, v, part[0], part[1], part[2]);
    case N_CALL: return jinja_call(j, s, n, NULL);
    case N_FILTER: case N_TEST: {
      JinjaList args = {};
      JinjaDict named = {};
      v = jinja_eval(j, s, n->a);
      jinja_eval_arguments(j, s, n->b, &args, &named);
      j->line = n->line;
      if (!n->call) jinja_fail_named(j, n);
      return jinja_call_row(j, n->call, v, &args, &named);
    }
    case N_NOT: return jinja_bool(!jinja_truth(jinja_eval(j, s, n->a)));
    case N_AND: case N_OR:
      v = jinja_eval(j, s, n->a);
      return jinja_truth(v) == (n->kind == N_AND) ? jinja_eval(j, s, n->b) : v;
    case N_IF:
      if (jinja_truth(jinja_eval(j, s, n->a))) return jinja_eval(j, s, n->b);
      return n->c ? jinja_eval(j, s, n->c) : jinja_undefined();
    case N_NEGATIVE: case N_POSITIVE:
      v = jinja_eval(j, s, n->a);
      if (v.type == J_UNDEFINED) jinja_fail_undefined(j, v);
      if (!jinja_is_number(v)) jinja_fail(j, JINJA_WRONG, "a sign before %s", jinja_type(v));
      return v.type == J_FLOAT ? jinja_float(n->kind == N_NEGATIVE ? -v.f : v.f)
                               : jinja_of_wholes(j, n->kind == N_NEGATIVE ? '-' : '+', 0, jinja_whole(v));
    case N_MATH:
      v = jinja_eval(j, s, n->a), x = jinja_eval(j, s, n->b);
      j->line = n->line;
      return jinja_math(j, n->op, v, x);
    case N_COMPARE:
      v = jinja_eval(j, s, n->a);
      for (const JinjaNode *c = n->b; c; c = c->next, v = x) {
        x = jinja_eval(j, s, c->a);
        j->line = c->line;
        if (!jinja_compared(j, c->op, v, x)) return jinja_bool(false);
      }
      return jinja_bool(true);
    case N_LIST: case N_TUPLE:
      v = jinja_list(j, n->kind == N_LIST ? J_LIST : J_TUPLE);
      for (const JinjaNode *c = n->a; c; c = c->next) jinja_add(j, v.l, jinja_eval(j, s, c));
      return v;
    case N_DICT:
      v = jinja_dict(j);
      for (const JinjaNode *c = n->a; c; c = c->next) {
        x = jinja_eval(j, s, c->a);
        if (x.type > J_STR && x.type != J_TUPLE) jinja_fail(j, JINJA_WRONG, "a key that is a %s", jinja_type(x));
        jinja_put(j, v.d, x, jinja_eval(j, s, c->b));
      }
      return v;
    case N_BODY: return j->body;
    default: jinja_fail(j, JINJA_WRONG, "a statement where a value is needed");
  }
}
static JinjaValue jinja_eval(Jinja *j, JinjaScope *s, const JinjaNode *n) {
  jinja_deeper(j);
  const JinjaValue v = jinja_eval_kind(j, s, n);
  j->depth--;
  return v;
}

// ---- statements
static void jinja_assign(Jinja *j, JinjaScope *s, const JinjaNode *target, JinjaValue v) {
  if (target->kind == N_NAME) return jinja_set_in(j, s, target->value.s, v);
  if (target->kind == N_ATTRIBUTE) {
    const JinjaValue to = jinja_eval(j, s, target->a);
    if (to.type != J_NAMESPACE) jinja_fail(j, JINJA_WRONG, "cannot assign attribute on non-namespace object");
    return jinja_put(j, to.d, target->value, v);
  }
  const JinjaList *l = jinja_items(j, v);
  size_t k = 0;
  for (const JinjaNode *t = target->a; t; t = t->next, k++) if (k < l->n) jinja_assign(j, s, t, l->v[k]);
  if (k != l->n) jinja_fail(j, JINJA_WRONG, "%zu values for %zu names", l->n, k);
}
static void jinja_run_for(Jinja *j, JinjaScope *s, const JinjaNode *n, JinjaValue over, int level) {
  const JinjaList *l = jinja_items(j, over);
  JinjaList *kept = jinja_list(j).l;
  for (size_t i = 0; n->e && i < l->n; i++) {
    JinjaScope *own = jinja_scope(j, s);
    jinja_assign(j, own, n->a, l->v[i]);
    if (jinja_truth(jinja_eval(j, own, n->e))) jinja_add(j, kept, l->v[i]);
  }
  JinjaValue loop = {J_LOOP, {}};
  loop.loop = JINJA_NEW(j, JinjaLoop);
  *loop.loop = JinjaLoop{n->e ? kept : l, 0, level, n, s, jinja_undefined()};
  const JinjaList *items = loop.loop->items;
  for (size_t i = 0; i < items->n; i++) {
    JinjaScope *own = jinja_scope(j, s);
    loop.loop->at = i;
    jinja_set_in(j, own, j->t->loop, loop);
    jinja_assign(j, own, n->a, items->v[i]);
    if (jinja_run(j, own, n->c) == FLOW_BREAK) break;
  }
  if (!items->n && n->d) jinja_run(j, jinja_scope(j, s), n->d);
}
static JinjaValue jinja_block(Jinja *j, JinjaScope *s, const JinjaNode *body, const JinjaNode *filters) {
  const size_t from = jinja_capture(j);
  if (jinja_run(j, jinja_scope(j, s), body)) jinja_fail(j, JINJA_WRONG, "break or continue leaves a block");
  j->body = jinja_captured(j, from);
  return jinja_eval(j, s, filters);
}
static void jinja_generation(Jinja *j, JinjaScope *s, const JinjaNode *n) {
  const size_t from = j->out.n, at = j->captures ? j->captured : from;
  if (jinja_run(j, jinja_scope(j, s), n->a)) jinja_fail(j, JINJA_WRONG, "break or continue leaves a block");
  if (j->span_count + 2 > j->span_room)
    j->spans = (size_t *)bpe_resize(j->spans, j->span_room = 2 * j->span_room + 8, sizeof *j->spans);
  j->spans[j->span_count++] = at;
  j->spans[j->span_count++] = at + j->out.n - from;
}
static JinjaFlow jinja_run_one(Jinja *j, JinjaScope *s, const JinjaNode *n) {
  JinjaValue v = {J_MACRO, {}};
  j->line = n->line;
  switch (n->kind) {
    case N_DATA: jinja_write(j, n->value.s->p, n->value.s->n); break;
    case N_OUTPUT: jinja_write_value(j, jinja_eval(j, s, n->a)); break;
    case N_BRANCH: return jinja_run(j, s, jinja_truth(jinja_eval(j, s, n->a)) ? n->b : n->c);
    case N_FOR: jinja_run_for(j, s, n, jinja_eval(j, s, n->b), 0); break;
    case N_SET: jinja_assign(j, s, n->a, jinja_eval(j, s, n->b)); break;
    case N_SET_BLOCK: jinja_assign(j, s, n->a, jinja_block(j, s, n->c, n->b)); break;
    case N_FILTER_BLOCK: jinja_write_value(j, jinja_block(j, s, n->b, n->a)); break;
    case N_MACRO: case N_CALL_BLOCK:
      v.macro = JINJA_NEW(j, JinjaMacro);
      *v.macro = JinjaMacro{n->a, n->b, s};
      if (n->kind == N_MACRO) jinja_set_in(j, s, n->value.s, v);
      else jinja_write_value(j, jinja_call(j, s, n->c, &v));
      break;
    case N_WITH: {
      JinjaScope *own = jinja_scope(j, s);
      for (const JinjaNode *x = n->a; x; x = x->next) jinja_assign(j, own, x->a, jinja_eval(j, s, x->b));
      return jinja_run(j, own, n->b);
    }
    case N_GENERATION: jinja_generation(j, s, n); break;
    case N_BREAK: return FLOW_BREAK;
    case N_CONTINUE: return FLOW_CONTINUE;
    default: break;
  }
  return FLOW_ON;
}
static JinjaFlow jinja_run(Jinja *j, JinjaScope *s, const JinjaNode *n) {
  JinjaFlow flow = FLOW_ON;
  jinja_deeper(j);
  for (; n && flow == FLOW_ON; n = n->next) flow = jinja_run_one(j, s, n);
  j->depth--;
  return flow;
}
// Gives a variable of this name a value, if the template mentions it.
static void jinja_set_global(Jinja *j, JinjaScope *globals, const char *name, JinjaValue value) {
  for (const JinjaName *x = j->t->names; x; x = x->next)
    if (jinja_same(x->text, name)) jinja_set_in(j, globals, x->text, value);
}
// Renders into j->out. False: j->fault.
static bool jinja_render(Jinja *j, JinjaScope *globals) {
  j->out.n = 0, j->span_count = 0, j->steps = 0, j->depth = 0, j->captures = 0;
  if (setjmp(j->back)) return false;
  if (jinja_run(j, jinja_scope(j, globals), j->t->body)) jinja_fail(j, JINJA_WRONG,
                                                                    "break or continue outside of a loop");
  return true;
}
