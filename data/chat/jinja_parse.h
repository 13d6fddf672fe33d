// jinja_parse.h: a template's text as a tree: Jinja 2.3.1's grammar (jinja2/lexer.py, jinja2/parser.py) with the
// settings of transformers: trim_blocks, lstrip_blocks, break and continue, {% generation %}.
//
// What is not built in (include, import, extends, block, do, unknown filters and tests) is an error with its line.
#pragma once
#include "jinja_filters.h"

enum JinjaKind : uint8_t {
  N_CONST, N_NAME, N_LIST, N_TUPLE, N_DICT, N_ATTRIBUTE, N_ITEM, N_SLICE, N_CALL, N_FILTER, N_TEST, N_NOT, N_NEGATIVE,
  N_POSITIVE, N_AND, N_OR, N_COMPARE, N_MATH, N_IF, N_NAMED, N_STAR, N_STARS, N_BODY,
  N_DATA, N_OUTPUT, N_FOR, N_BRANCH, N_SET, N_SET_BLOCK, N_MACRO, N_CALL_BLOCK, N_FILTER_BLOCK, N_WITH, N_BREAK,
  N_CONTINUE, N_GENERATION
};
// What a to e are follows from the kind: operands in their order, then bodies. Lists are linked by next.
struct JinjaNode {
  JinjaKind kind;
  char op;
  int line;
  JinjaNode *next, *a, *b, *c, *d, *e;
  JinjaValue value;
  const JinjaCallable *call;
};
enum JinjaTokenType : uint8_t { T_DATA, T_VARIABLE, T_VARIABLE_END, T_BLOCK, T_BLOCK_END, T_NAME, T_VALUE, T_OPERATOR,
                                T_END };
// op: the operator, or of those with two characters E == N != G >= L <= F // P **.
struct JinjaToken { JinjaTokenType type; char op; int line; JinjaValue value; };
struct JinjaName { const JinjaText *text; JinjaName *next; };
// A template: its tree, and the names in it, each once, so that a name is known by where it is.
struct JinjaTemplate { Jinja memory; JinjaNode *body; JinjaName *names; const JinjaText *loop, *caller; };
struct JinjaParser { Jinja *j; JinjaTemplate *t; JinjaToken *token; size_t count, at; int branches; };

// ---- tokens
static void jinja_token(JinjaParser *p, JinjaTokenType type, JinjaValue value = {}, char op = 0) {
  if ((p->count & (p->count - 1)) == 0) {
    JinjaToken *more = (JinjaToken *)jinja_alloc(p->j, (2 * p->count + 1) * sizeof *more);
    if (p->count) memcpy((void *)more, p->token, p->count * sizeof *more);
    p->token = more;
  }
  p->token[p->count++] = JinjaToken{type, op, p->j->line, value};
}
static const JinjaText *jinja_intern(JinjaTemplate *t, const char *s, size_t n) {
  for (JinjaName *x = t->names; x; x = x->next) if (x->text->n == n && !memcmp(x->text->p, s, n)) return x->text;
  JinjaName *x = JINJA_NEW(&t->memory, JinjaName);
  *x = JinjaName{jinja_text(&t->memory, s, n).s, t->names};
  t->names = x;
  return x->text;
}
static const char *jinja_blank_end(const char *s, const char *end) {
  for (int n; s < end && chat_is_space(utf8_char((const uint8_t *)s, (const uint8_t *)end, &n)); s += n) {}
  return s;
}
// A string's escapes, as Python's unicode_escape has them.
static JinjaValue jinja_unescape(Jinja *j, const char *s, size_t n) {
  char *to = (char *)jinja_alloc(j, n + 1), *at = to;
  for (size_t i = 0; i < n; i++) {
    static const char letters[] = "abfnrtv\\'\"", means[] = "\a\b\f\n\r\t\v\\'\"";
    if (s[i] != '\\' || i + 1 == n) { *at++ = s[i]; continue; }
    const char c = s[++i], *letter = strchr(letters, c);
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    char hex[9] = "";
    if (c == '\n') continue;
    if (c && letter) { *at++ = means[letter - letters]; continue; }
    if (digits || (c >= '0' && c <= '7')) {
      const size_t most = digits ? (size_t)digits : 3, from = digits ? i + 1 : i;
      size_t k = 0;
      while (k < most && from + k < n && (digits ? isxdigit((uint8_t)s[from + k]) : s[from + k] >= '0'
                                          && s[from + k] <= '7'))
        hex[k] = s[from + k], k++;
      const unsigned long code = strtoul(hex, NULL, digits ? 16 : 8);
      if ((digits && k < most) || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) || !code)
        jinja_fail(j, JINJA_WRONG, "a string has an escape of no character");
      at = (char *)utf8_put((uint8_t *)at, (uint32_t)code);
      i = from + k - 1;
      continue;
    }
    if (c == 'N') jinja_fail(j, JINJA_UNKNOWN, "\\N{...} is not built in");
    *at++ = '\\', *at++ = c;
  }
  return jinja_text_at(j, to, (size_t)(at - to));
}
static JinjaValue jinja_literal(Jinja *j, const char **at, const char *end) {
  char text[136];                                // its digits, of which more than 100 are rejected
  size_t n = 0;
  const char *s = *at;
  const bool based = *s == '0' && s + 1 < end && strchr("xXoObB", s[1]) && s[1];
  bool real = false;
  auto digits = [&](bool hex) {
    for (; s < end && (hex ? isxdigit((uint8_t)*s) : isdigit((uint8_t)*s) || (*s == '_' && s + 1 < end
        && isdigit((uint8_t)s[1]))); s++)
      if (*s != '_' && n < 128) text[n++] = *s;
  };
  if (based) s += 2;
  digits(based);
  if (!based && s + 1 < end && *s == '.' && isdigit((uint8_t)s[1])) real = true, text[n++] = *s++, digits(false);
  if (!based && s < end && (*s | 32) == 'e') {
    const bool sign = s + 1 < end && strchr("+-", s[1]) && s[1];
    if (s + 1 + sign < end && isdigit((uint8_t)s[1 + sign])) {
      real = true, text[n++] = 'e';
      if (sign) text[n++] = s[1];
      s += 1 + sign, digits(false);
    }
  }
  text[n] = 0;
  const char kind = based ? (char)((*at)[1] | 32) : 0;
  *at = s;
  errno = 0;
  const long long whole = strtoll(text, NULL, kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10);
  if (n > 100 || (!real && errno)) jinja_fail(j, JINJA_UNKNOWN, "a number of that size is not built in");
  return real ? jinja_float(strtod(text, NULL)) : jinja_int(whole);
}
// The tokens of a tag, up to its end; returns where the text continues.
static const char *jinja_lex_tag(JinjaParser *p, const char *s, const char *end, bool block) {
  static const char pairs[][4] = {"==E", "!=N", ">=G", "<=L", "//F", "**P"};
  Jinja *j = p->j;
  int open = 0;
  for (;;) {
    for (const char *next = jinja_blank_end(s, end); s < next; s++) j->line += *s == '\n';
    if (s == end) jinja_fail(j, JINJA_WRONG, "a tag has no end");
    const char close = block ? '%' : '}', *at = s + (*s == '-' || (block && *s == '+'));
    if (!open && at + 1 < end && at[0] == close && at[1] == '}') {
      jinja_token(p, block ? T_BLOCK_END : T_VARIABLE_END);
      const char *next = *s == '-' ? jinja_blank_end(at + 2, end)
                         : at + 2 + (block && *s != '+' && at + 2 < end && at[2] == '\n');
      for (s = at + 2; s < next; s++) j->line += *s == '\n';
      return s;
    }
    const uint8_t c = (uint8_t)*s;
    const char *from = s;
    if (isdigit(c)) { const JinjaValue v = jinja_literal(j, &s, end); jinja_token(p, T_VALUE, v); continue; }
    if (isalpha(c) || c == '_' || c >= 0x80) {
      while (s < end && (isalnum((uint8_t)*s) || *s == '_' || (uint8_t)*s >= 0x80)) s++;
      jinja_token(p, T_NAME, jinja_text_value(jinja_intern(p->t, from, (size_t)(s - from))));
      continue;
    }
    if (c == '\'' || c == '"') {
      for (s++; s < end && *s != (char)c; s++) s += *s == '\\';
      if (s >= end) jinja_fail(j, JINJA_WRONG, "a string has no end");
      jinja_token(p, T_VALUE, jinja_unescape(j, from + 1, (size_t)(s - from - 1)));
      for (s++; from < s; from++) j->line += *from == '\n';
      continue;
    }
    char op = 0;
    for (const char *pair : pairs) if (s + 1 < end && s[0] == pair[0] && s[1] == pair[1]) op = pair[2];
    if (!op && !(c && strchr("+-*/%~[](){}<>=.:|,;", c))) jinja_fail(j, JINJA_WRONG, "unexpected character '%c'", c);
    open += strchr("([{", c) ? 1 : strchr(")]}", c) ? -1 : 0;
    if (open < 0) jinja_fail(j, JINJA_WRONG, "unexpected '%c'", c);
    s += op ? 2 : 1;
    jinja_token(p, T_OPERATOR, {}, op ? op : (char)c);
  }
}
// Where a tag of this name alone ends that stands at s, {% raw %}; NULL: it is another. *next: after what it trims.
static const char *jinja_word_tag(const char *s, const char *end, const char *word, const char **next) {
  const size_t n = strlen(word);
  if (s + 2 >= end || s[0] != '{' || s[1] != '%') return NULL;
  s = jinja_blank_end(s + 2 + (s[2] == '-' || s[2] == '+'), end);
  if ((size_t)(end - s) < n || memcmp(s, word, n)) return NULL;
  s = jinja_blank_end(s + n, end);
  const char sign = s < end ? *s : 0, *close = s + (sign == '-' || sign == '+');
  if (end - close < 2 || close[0] != '%' || close[1] != '}') return NULL;
  *next = sign == '-' ? jinja_blank_end(close + 2, end) : close + 2 + (word[0] == 'e' && !(sign == '+')
                                                                       && close[2] == '\n');
  return close + 2;
}
// Text before a tag, without what the tag strips.
static void jinja_lex_data(JinjaParser *p, const char *from, const char *to, const char *end, bool starts) {
  const char sign = to + 2 < end ? to[2] : 0;
  const char *stop = to, *line = to;
  if (to < end && sign == '-') stop = chat_strip(ChatSpan{from, (size_t)(to - from)}, false, false, true).n + from;
  else if (to < end && sign != '+' && to[1] != '{') {
    while (line > from && line[-1] != '\n') line--;
    if ((line > from || starts) && line < to && jinja_blank_end(line, to) == to) stop = line;
  }
  if (stop > from) jinja_token(p, T_DATA, jinja_text_at(p->j, from, (size_t)(stop - from)));
  for (; from < to; from++) p->j->line += *from == '\n';
}
static void jinja_lex(JinjaParser *p, const char *text, size_t bytes) {
  Jinja *j = p->j;
  char *s = (char *)jinja_alloc(j, bytes + 4), *end = s;
  for (size_t i = 0; i < bytes; i++) {
    *end++ = text[i] == '\r' ? '\n' : text[i];
    i += text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n';
  }
  if (end > s && end[-1] == '\n') end--;
  memset(end, 0, 4);
  j->line = 1;
  for (const char *at = s, *next = NULL; at < end; at = next) {
    const char *tag = at;
    while (tag + 1 < end && !(tag[0] == '{' && strchr("{%#", tag[1]) && tag[1])) tag++;
    if (tag + 1 >= end) tag = end;
    const bool starts = at == s || at[-1] == '\n';
    jinja_lex_data(p, at, tag, end, starts);
    if (tag == end) break;
    if (tag[1] == '#') {
      const char *close = (const char *)memmem(tag + 2, (size_t)(end - tag - 2), "#}", 2);
      if (!close) jinja_fail(j, JINJA_WRONG, "a comment has no end");
      next = close > tag + 2 && close[-1] == '-' ? jinja_blank_end(close + 2, end)
             : close + 2 + (!(close > tag + 2 && close[-1] == '+') && close[2] == '\n');
    } else if (jinja_word_tag(tag, end, "raw", &next)) {
      const char *from = next, *close = from;
      while (close < end && !jinja_word_tag(close, end, "endraw", &next)) close++;
      if (close == end) jinja_fail(j, JINJA_WRONG, "{%% raw %%} has no end");
      for (; tag < from; tag++) j->line += *tag == '\n';
      jinja_lex_data(p, from, close, end, from[-1] == '\n');
      tag = close;
    } else {
      jinja_token(p, tag[1] == '%' ? T_BLOCK : T_VARIABLE);
      next = jinja_lex_tag(p, tag + 2 + (tag[2] == '-' || tag[2] == '+'), end, tag[1] == '%');
      continue;
    }
    for (; tag < next; tag++) j->line += *tag == '\n';
  }
  jinja_token(p, T_END);
}

// ---- expressions
static const JinjaToken *jinja_now(const JinjaParser *p) { return &p->token[p->at]; }
static bool jinja_at(const JinjaParser *p, char op) { return jinja_now(p)->type == T_OPERATOR
                                                     && jinja_now(p)->op == op; }
static bool jinja_at_name(const JinjaParser *p, const char *word) {
  return jinja_now(p)->type == T_NAME && jinja_same(jinja_now(p)->value.s, word);
}
static const JinjaToken *jinja_next(JinjaParser *p) {
  const JinjaToken *t = jinja_now(p);
  p->j->line = t->line;
  p->at += t->type != T_END;
  return t;
}
static bool jinja_skip(JinjaParser *p, char op) { return jinja_at(p, op) && jinja_next(p); }
static bool jinja_skip_name(JinjaParser *p, const char *word) { return jinja_at_name(p, word) && jinja_next(p); }
[[noreturn]] static void jinja_unexpected(JinjaParser *p, const char *wanted) {
  const JinjaToken *t = jinja_now(p);
  p->j->line = t->line;
  if (t->type == T_NAME)
    jinja_fail(p->j, JINJA_WRONG, "expected %s, found '%.*s'", wanted, (int)(t->value.s->n < 40 ? t->value.s->n : 40),
               t->value.s->p);
  jinja_fail(p->j, JINJA_WRONG, "expected %s, found %s", wanted, t->type == T_OPERATOR ? "another operator"
             : t->type == T_VALUE ? "a constant" : t->type == T_END ? "the template's end" : "the end of a tag");
}
static void jinja_expect(JinjaParser *p, char op) {
  const char wanted[] = {'\'', op, '\'', 0};
  if (!jinja_skip(p, op)) jinja_unexpected(p, wanted);
}
static const JinjaText *jinja_expect_name(JinjaParser *p) {
  if (jinja_now(p)->type != T_NAME) jinja_unexpected(p, "a name");
  return jinja_next(p)->value.s;
}
static JinjaNode *jinja_node(JinjaParser *p, JinjaKind kind, JinjaNode *a = NULL, JinjaNode *b = NULL,
                             JinjaNode *c = NULL) {
  JinjaNode *n = JINJA_NEW(p->j, JinjaNode);
  n->kind = kind, n->line = jinja_now(p)->line, n->a = a, n->b = b, n->c = c;
  return n;
}
static JinjaNode *jinja_expression(JinjaParser *p, bool conditional = true);
static JinjaNode *jinja_unary(JinjaParser *p, bool filters = true);
// Items up to `close`, each by `item`, with commas between them and after them.
static JinjaNode *jinja_items_until(JinjaParser *p, char close, JinjaNode *(*item)(JinjaParser *p)) {
  JinjaNode *first = NULL, **last = &first;
  for (; !jinja_skip(p, close); last = &(*last)->next) {
    if (first) jinja_expect(p, ',');
    if (first && jinja_skip(p, close)) break;
    *last = item(p);
  }
  return first;
}
// Expressions with commas between them are a tuple; one alone is itself. closed: in parentheses.
static JinjaNode *jinja_tuple(JinjaParser *p, bool closed, bool conditional = true, const char *until = NULL) {
  JinjaNode *first = NULL, **last = &first;
  bool tuple = false;
  for (;; last = &(*last)->next) {
    const JinjaTokenType now = jinja_now(p)->type;
    if (now == T_VARIABLE_END || now == T_BLOCK_END || jinja_at(p, ')') || (until && jinja_at_name(p, until))) break;
    *last = jinja_expression(p, conditional);
    if (!jinja_skip(p, ',')) break;
    tuple = true;
  }
  if (!tuple && first) return first;
  if (!tuple && !closed) jinja_unexpected(p, "an expression");
  return jinja_node(p, N_TUPLE, first);
}
static JinjaNode *jinja_constant(JinjaParser *p, JinjaValue v) {
  JinjaNode *n = jinja_node(p, N_CONST);
  n->value = v;
  return n;
}
static JinjaNode *jinja_primary(JinjaParser *p) {
  const JinjaToken *t = jinja_now(p);
  Jinja *j = p->j;
  if (t->type == T_NAME) {
    jinja_next(p);
    for (const char *word : {"true", "True"}) if (jinja_same(t->value.s, word)) return jinja_constant(p,
        jinja_bool(true));
    for (const char *word : {"false", "False"}) if (jinja_same(t->value.s, word)) return jinja_constant(p,
        jinja_bool(false));
    for (const char *word : {"none", "None"}) if (jinja_same(t->value.s, word)) return jinja_constant(p, jinja_none());
    JinjaNode *n = jinja_node(p, N_NAME);
    n->line = t->line, n->value = t->value;
    return n;
  }
  if (t->type == T_VALUE) {
    JinjaValue v = jinja_next(p)->value;
    while (v.type == J_STR && jinja_now(p)->type == T_VALUE && jinja_now(p)->value.type == J_STR) {
      const JinjaText *more = jinja_next(p)->value.s;
      char *both = (char *)jinja_alloc(j, v.s->n + more->n);
      memcpy(both, v.s->p, v.s->n), memcpy(both + v.s->n, more->p, more->n);
      v = jinja_text_at(j, both, v.s->n + more->n);
    }
    return jinja_constant(p, v);
  }
  if (jinja_skip(p, '(')) {
    JinjaNode *n = jinja_tuple(p, true);
    jinja_expect(p, ')');
    return n;
  }
  auto item = [](JinjaParser *p) { return jinja_expression(p); };
  auto pair = [](JinjaParser *p) {
    JinjaNode *key = jinja_expression(p);
    jinja_expect(p, ':');
    return jinja_node(p, N_NAMED, key, jinja_expression(p));
  };
  if (jinja_skip(p, '[')) return jinja_node(p, N_LIST, jinja_items_until(p, ']', item));
  if (jinja_skip(p, '{')) return jinja_node(p, N_DICT, jinja_items_until(p, '}', pair));
  jinja_unexpected(p, "an expression");
}
static JinjaNode *jinja_arguments(JinjaParser *p) {
  return jinja_items_until(p, ')', [](JinjaParser *p) {
    if (jinja_skip(p, '*')) return jinja_node(p, N_STAR, jinja_expression(p));
    if (jinja_skip(p, 'P')) return jinja_node(p, N_STARS, jinja_expression(p));
    const JinjaToken *t = jinja_now(p);
    if (t->type != T_NAME || t[1].type != T_OPERATOR || t[1].op != '=') return jinja_expression(p);
    jinja_next(p), jinja_next(p);
    JinjaNode *n = jinja_node(p, N_NAMED, NULL, jinja_expression(p));
    n->value = t->value;
    return n;
  });
}
static JinjaNode *jinja_subscript(JinjaParser *p) {
  JinjaNode *part[3] = {}, **at = part;
  auto ends = [&]() { return jinja_at(p, ':') || jinja_at(p, ']') || jinja_at(p, ','); };
  if (!jinja_at(p, ':')) *at = jinja_expression(p);
  if (!jinja_at(p, ':')) return part[0];
  while (at < part + 2 && jinja_skip(p, ':')) if (at++, !ends()) *at = jinja_expression(p);
  return jinja_node(p, N_SLICE, part[0], part[1], part[2]);
}
static JinjaNode *jinja_postfix(JinjaParser *p, JinjaNode *n) {
  for (;;) {
    const int line = jinja_now(p)->line;
    if (jinja_skip(p, '.')) {
      const JinjaToken *t = jinja_next(p);
      const bool number = t->type == T_VALUE && t->value.type == J_INT;
      if (t->type != T_NAME && !number) jinja_fail(p->j, JINJA_WRONG, "expected a name or number after '.'");
      n = number ? jinja_node(p, N_ITEM, n, jinja_constant(p, t->value)) : jinja_node(p, N_ATTRIBUTE, n);
      if (!number) n->value = t->value;
    } else if (jinja_skip(p, '[')) {
      JinjaNode *parts = jinja_items_until(p, ']', jinja_subscript);
      if (!parts) jinja_unexpected(p, "an expression");
      n = jinja_node(p, N_ITEM, n, parts->next ? jinja_node(p, N_TUPLE, parts) : parts);
    } else if (jinja_skip(p, '(')) {
      n = jinja_node(p, N_CALL, n, jinja_arguments(p));
    } else return n;
    n->line = line;
  }
}
[[noreturn]] static void jinja_fail_named(Jinja *j, const JinjaNode *n) {
  jinja_fail(j, JINJA_UNKNOWN, "%s '%.*s' is not built in", n->kind == N_FILTER ? "filter" : "test",
             (int)(n->value.s->n < 40 ? n->value.s->n : 40), n->value.s->p);
}
// The name of a filter or test. One that is not built in fails where it is used if that is in a branch, as in jinja2.
static void jinja_callable(JinjaParser *p, JinjaNode *n) {
  const bool filter = n->kind == N_FILTER;
  const JinjaText *name = jinja_expect_name(p);
  n->call = filter ? jinja_filter_named(name) : jinja_test_named(name);
  n->value = jinja_text_value(name);
  if (!n->call && !p->branches) jinja_fail_named(p->j, n);
}
// The filters after a |, the first of which stands there already if `inside`.
static JinjaNode *jinja_filter_chain(JinjaParser *p, JinjaNode *n, bool inside = false) {
  while (inside || jinja_skip(p, '|')) {
    inside = false;
    n = jinja_node(p, N_FILTER, n);
    jinja_callable(p, n);
    if (jinja_skip(p, '(')) n->b = jinja_arguments(p);
  }
  return n;
}
static JinjaNode *jinja_filters_and_tests(JinjaParser *p, JinjaNode *n) {
  for (;;) {
    if (jinja_at(p, '|')) n = jinja_filter_chain(p, n);
    else if (jinja_skip(p, '(')) n = jinja_node(p, N_CALL, n, jinja_arguments(p));
    else if (jinja_skip_name(p, "is")) {
      const bool no = jinja_skip_name(p, "not");
      n = jinja_node(p, N_TEST, n);
      jinja_callable(p, n);
      const JinjaTokenType now = jinja_now(p)->type;
      const bool word = now == T_NAME && !jinja_at_name(p, "else") && !jinja_at_name(p, "or") && !jinja_at_name(p,
          "and");
      if (jinja_skip(p, '(')) n->b = jinja_arguments(p);
      else if (word && jinja_at_name(p, "is")) jinja_unexpected(p, "no second test");
      else if (now == T_VALUE || word || jinja_at(p, '[') || jinja_at(p, '{')) n->b = jinja_postfix(p,
          jinja_primary(p));
      if (no) n = jinja_node(p, N_NOT, n);
    } else return n;
  }
}
static JinjaNode *jinja_unary(JinjaParser *p, bool filters) {
  jinja_deeper(p->j);
  const bool minus = jinja_at(p, '-');
  JinjaNode *n = minus || jinja_at(p, '+') ? (jinja_next(p), jinja_node(p, minus ? N_NEGATIVE : N_POSITIVE,
                                                                        jinja_unary(p, false)))
                                           : jinja_primary(p);
  n = jinja_postfix(p, n);
  p->j->depth--;
  return filters ? jinja_filters_and_tests(p, n) : n;
}
// Operators of the same rank, from the left; each rank's operands are of the next.
static JinjaNode *jinja_math_of(JinjaParser *p, int rank = 0) {
  static const char *const ranks[] = {"+-", "~", "*/F%", "P"};
  if (rank == 4) return jinja_unary(p);
  JinjaNode *n = jinja_math_of(p, rank + 1);
  while (jinja_now(p)->type == T_OPERATOR && strchr(ranks[rank], jinja_now(p)->op)) {
    const JinjaToken *t = jinja_next(p);
    n = jinja_node(p, N_MATH, n, jinja_math_of(p, rank + 1));
    n->op = t->op, n->line = t->line;
  }
  return n;
}
static JinjaNode *jinja_comparison(JinjaParser *p) {
  jinja_deeper(p->j);
  if (jinja_skip_name(p, "not")) {
    JinjaNode *n = jinja_node(p, N_NOT, jinja_comparison(p));
    p->j->depth--;
    return n;
  }
  JinjaNode *first = jinja_math_of(p), *chain = NULL, **last = &chain;
  for (;; last = &(*last)->next) {
    const JinjaToken *t = jinja_now(p);
    char op = t->type == T_OPERATOR && strchr("ENGL<>", t->op) ? t->op : jinja_at_name(p, "in") ? 'i' : 0;
    if (jinja_at_name(p, "not") && t[1].type == T_NAME && jinja_same(t[1].value.s, "in")) op = 'n', jinja_next(p);
    if (!op) break;
    jinja_next(p);
    *last = jinja_node(p, N_COMPARE, jinja_math_of(p));
    (*last)->op = op, (*last)->line = t->line;
  }
  p->j->depth--;
  return chain ? jinja_node(p, N_COMPARE, first, chain) : first;
}
static JinjaNode *jinja_logic(JinjaParser *p, bool any) {
  JinjaNode *n = any ? jinja_logic(p, false) : jinja_comparison(p);
  while (jinja_skip_name(p, any ? "or" : "and"))
    n = jinja_node(p, any ? N_OR : N_AND, n, any ? jinja_logic(p, false) : jinja_comparison(p));
  return n;
}
static JinjaNode *jinja_expression(JinjaParser *p, bool conditional) {
  jinja_deeper(p->j);
  JinjaNode *n = jinja_logic(p, true);
  while (conditional && jinja_skip_name(p, "if")) {
    JinjaNode *condition = jinja_logic(p, true);
    n = jinja_node(p, N_IF, condition, n, jinja_skip_name(p, "else") ? jinja_expression(p) : NULL);
  }
  p->j->depth--;
  return n;
}

// ---- statements
static JinjaNode *jinja_body(JinjaParser *p, const char *end, const char *other = NULL, const char *third = NULL);
// The body of a statement and its end's tag, after which the parser then is.
static JinjaNode *jinja_body_of(JinjaParser *p, const char *end) {
  JinjaNode *n = jinja_body(p, end);
  jinja_next(p);
  return n;
}
static JinjaNode *jinja_target(JinjaParser *p, const char *until = NULL) {
  JinjaNode *n;
  if (jinja_now(p)->type == T_NAME && p->token[p->at + 1].type == T_OPERATOR && p->token[p->at + 1].op == '.') {
    n = jinja_node(p, N_ATTRIBUTE, jinja_primary(p));
    jinja_next(p);
    n->value = jinja_text_value(jinja_expect_name(p));
    return n;
  }
  JinjaNode *first = NULL, **last = &first;
  bool tuple = false;
  jinja_deeper(p->j);
  do {
    if (tuple && (jinja_at(p, '=') || (until && jinja_at_name(p, until)))) break;
    const bool nested = jinja_skip(p, '(');
    *last = nested ? jinja_target(p) : jinja_node(p, N_NAME);
    if (nested) jinja_expect(p, ')');
    else (*last)->value = jinja_text_value(jinja_expect_name(p));
    last = &(*last)->next;
    tuple = tuple || jinja_at(p, ',');
  } while (jinja_skip(p, ','));
  p->j->depth--;
  return tuple ? jinja_node(p, N_TUPLE, first) : first;
}
static JinjaNode *jinja_signature(JinjaParser *p) {
  return jinja_items_until(p, ')', [](JinjaParser *p) {
    JinjaNode *n = jinja_node(p, N_NAME);
    n->value = jinja_text_value(jinja_expect_name(p));
    if (jinja_skip(p, '=')) n->a = jinja_expression(p);
    return n;
  });
}
static JinjaNode *jinja_if(JinjaParser *p) {
  JinjaNode *n = jinja_node(p, N_BRANCH, jinja_tuple(p, false, false));
  p->branches++;
  n->b = jinja_body(p, "endif", "else", "elif");
  jinja_deeper(p->j);
  if (jinja_skip_name(p, "elif")) n->c = jinja_if(p);
  else if (jinja_skip_name(p, "else")) n->c = jinja_body_of(p, "endif");
  else jinja_next(p);
  p->j->depth--, p->branches--;
  return n;
}
static JinjaNode *jinja_for(JinjaParser *p) {
  JinjaNode *n = jinja_node(p, N_FOR, jinja_target(p, "in"));
  if (!jinja_skip_name(p, "in")) jinja_unexpected(p, "'in'");
  n->b = jinja_tuple(p, false, false, "recursive");
  if (jinja_skip_name(p, "if")) n->e = jinja_expression(p);
  n->op = jinja_skip_name(p, "recursive");
  n->c = jinja_body(p, "endfor", "else");
  if (jinja_skip_name(p, "else")) n->d = jinja_body_of(p, "endfor");
  else jinja_next(p);
  return n;
}
static JinjaNode *jinja_set(JinjaParser *p) {
  JinjaNode *target = jinja_target(p), *body = jinja_node(p, N_BODY);
  if (jinja_skip(p, '=')) return jinja_node(p, N_SET, target, jinja_tuple(p, false));
  JinjaNode *n = jinja_node(p, N_SET_BLOCK, target, jinja_filter_chain(p, body));
  n->c = jinja_body_of(p, "endset");
  return n;
}
static JinjaNode *jinja_with(JinjaParser *p) {
  JinjaNode *first = NULL, **last = &first;
  for (; jinja_now(p)->type != T_BLOCK_END; last = &(*last)->next) {
    if (first) jinja_expect(p, ',');
    JinjaNode *target = jinja_target(p);
    jinja_expect(p, '=');
    *last = jinja_node(p, N_SET, target, jinja_expression(p));
  }
  return jinja_node(p, N_WITH, first, jinja_body_of(p, "endwith"));
}
static JinjaNode *jinja_statement(JinjaParser *p) {
  const JinjaText *word = jinja_expect_name(p);
  if (jinja_same(word, "if")) return jinja_if(p);
  if (jinja_same(word, "for")) return jinja_for(p);
  if (jinja_same(word, "set")) return jinja_set(p);
  if (jinja_same(word, "with")) return jinja_with(p);
  if (jinja_same(word, "break")) return jinja_node(p, N_BREAK);
  if (jinja_same(word, "continue")) return jinja_node(p, N_CONTINUE);
  if (jinja_same(word, "generation")) return jinja_node(p, N_GENERATION, jinja_body_of(p, "endgeneration"));
  if (jinja_same(word, "filter")) {
    JinjaNode *chain = jinja_filter_chain(p, jinja_node(p, N_BODY), true);
    return jinja_node(p, N_FILTER_BLOCK, chain, jinja_body_of(p, "endfilter"));
  }
  if (jinja_same(word, "macro")) {
    JinjaNode *n = jinja_node(p, N_MACRO);
    n->value = jinja_text_value(jinja_expect_name(p));
    jinja_expect(p, '(');
    n->a = jinja_signature(p), n->b = jinja_body_of(p, "endmacro");
    return n;
  }
  if (jinja_same(word, "call")) {
    JinjaNode *params = jinja_skip(p, '(') ? jinja_signature(p) : NULL;
    JinjaNode *n = jinja_node(p, N_CALL_BLOCK, params, NULL, jinja_expression(p));
    if (n->c->kind != N_CALL) jinja_unexpected(p, "a call");
    n->b = jinja_body_of(p, "endcall");
    return n;
  }
  jinja_fail(p->j, JINJA_UNKNOWN, "tag '%.*s' is not built in", (int)(word->n < 40 ? word->n : 40), word->p);
}
// Statements up to a tag of one of these names, at which the parser then is; end NULL: up to the template's end.
static JinjaNode *jinja_body(JinjaParser *p, const char *end, const char *other, const char *third) {
  JinjaNode *first = NULL, **last = &first;
  jinja_deeper(p->j);
  if (end && jinja_next(p)->type != T_BLOCK_END) p->at--, jinja_unexpected(p, "the end of the tag");
  for (;; last = &(*last)->next) {
    const JinjaToken *t = jinja_now(p);
    if (t->type == T_END && end) jinja_fail(p->j, JINJA_WRONG, "{%% %s %%} is missing", end);
    if (t->type == T_END) break;
    jinja_next(p);
    if (t->type == T_DATA) {
      *last = jinja_node(p, N_DATA);
      (*last)->value = t->value;
    } else if (t->type == T_VARIABLE) {
      *last = jinja_node(p, N_OUTPUT, jinja_tuple(p, false));
      if (jinja_next(p)->type != T_VARIABLE_END) p->at--, jinja_unexpected(p, "}}");
    } else {
      bool ends = false;
      for (const char *word : {end, other, third}) ends = ends || (word && jinja_at_name(p, word));
      if (ends) break;
      *last = jinja_statement(p);
      if (jinja_next(p)->type != T_BLOCK_END) p->at--, jinja_unexpected(p, "%}");
    }
  }
  p->j->depth--;
  return first;
}

static void jinja_free(JinjaTemplate *t) {
  if (t) jinja_release(&t->memory, NULL, 0);
  free(t);
}
// The tree of a template's text; NULL: *fault. See jinja_free.
static JinjaTemplate *jinja_parse(const char *text, size_t bytes, JinjaFault *fault) {
  JinjaTemplate *t = (JinjaTemplate *)bpe_resize(NULL, 1, sizeof *t);
  *t = {};
  t->memory.fault = fault;
  if (setjmp(t->memory.back)) {
    jinja_free(t);
    return NULL;
  }
  JinjaParser p = {&t->memory, t, NULL, 0, 0, 0};
  t->loop = jinja_intern(t, "loop", 4), t->caller = jinja_intern(t, "caller", 6);
  jinja_lex(&p, text, bytes);
  t->body = jinja_body(&p, NULL);
  return t;
}
