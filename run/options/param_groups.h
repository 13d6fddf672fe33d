// param_groups.h: what --freeze, --no_decay and --lr_scale say of parameters, by globs of their names, and --base_dtype
// of those that do not train. All of it goes into the table of parameters, from which the layout follows: parameters
// with equal settings are together, and one call of the optimizer's op updates them.
#pragma once
#include <fnmatch.h>
#include "option_values.h"

// Removes the spaces in a list: no name has one, but lists are often written with them.
static inline void list_trim(char *list) {
  char *to = list;
  for (const char *c = list; *c; c++) if (*c != ' ' && *c != '\t') *to++ = *c;
  *to = 0;
}
// The options that name parameters, by globs of names, GLOB=X where it has a value, and what each says of those.
struct ParamList { OptionId option; bool valued; void (*set)(Param *p, float x); };
static const ParamList param_lists[] = {{OPT_freeze, false, [](Param *p, float) { p->frozen = true; }},
                                        {OPT_no_decay, false, [](Param *p, float) { p->decay = false; }},
                                        {OPT_lr_scale, true, [](Param *p, float x) { p->lr_scale = x; }}};
static inline char *param_list_text(const Options *o, const ParamList *l) {
  return (char *)o + option_specs[l->option].offset;
}
void param_lists_trim(Options *o) { for (const ParamList &l : param_lists) list_trim(param_list_text(o, &l)); }
// Whether a glob (*, ? and [] as in a shell) names it: its whole name, or the name without ".weight" or ".bias".
static inline bool param_matches(const Param *p, const char *glob) {
  char module[64];
  snprintf(module, sizeof module, "%s", p->name);
  if (strrchr(module, '.')) *strrchr(module, '.') = 0;
  return !fnmatch(glob, p->name, 0) || !fnmatch(glob, module, 0);
}
// Does what a list says; of several globs that name a parameter the last one counts.
static inline bool params_set(const ParamList *l, const Options *o, Param *param, int params, Error *error) {
  const char *const name = option_specs[l->option].name;
  char text[OPTION_TEXT_BYTES], *save = NULL;
  snprintf(text, sizeof text, "%s", param_list_text(o, l));
  for (char *glob = strtok_r(text, ",", &save); glob; glob = strtok_r(NULL, ",", &save)) {
    char *const value = l->valued ? strchr(glob, '=') : NULL;
    char *end = value;
    const double x = value ? strtod(value + 1, &end) : 0;
    REJECT(l->valued && (!value || value == glob || end == value + 1 || *end || !(x > 0 && x <= 1e6)),
           "--%s '%s' is not PATTERN=X with X above 0, at most 1e6, like 'wte=0.1' (--freeze trains nothing)", name,
           glob);
    if (value) *value = 0;
    int matched = 0;
    for (int i = 0; i < params; i++) if (param_matches(&param[i], glob)) l->set(&param[i], (float)x), matched++;
    REJECT(!matched, "--%s %s matches no parameter; names are like wte.weight, h.0.attn.c_attn.bias, ln_f.weight", name,
           glob);
  }
  return true;
}
// --base_dtype: marks which matrices that do not train stay quantized, or in the file's dtype: those of another type
// than --param_dtype. q8_0 and nf4 quantize the matrices of blocks only, as bitsandbytes does.
static inline bool params_keep(const Options *o, Param *param, int params, Error *error) {
  const int made = o->base_dtype == OPT_base_dtype_q8_0 ? BLOCK_Q8_0 : BLOCK_NF4;
  const int stored = block_of_dtype(option_dtype(o, OPT_param_dtype));
  int n = 0;
  if (o->base_dtype <= OPT_base_dtype_auto || o->base_dtype == OPT_base_dtype_param) return true;
  for (int i = 0; i < params; i++) {
    Param *p = &param[i];
    bool other = false, known = true;
    if (!param_is_of_base(p)) continue;
    for (int k = 0; k < p->matrices; k++, n++) {
      p->kept[k] = o->base_dtype == OPT_base_dtype_file ? o->base_types[n] : p->linear ? made : stored;
      other = other || p->kept[k] != stored, known = known && p->kept[k];
    }
    if (!other || !known || p->row_end || (!p->frozen && run_trains(o))) continue;
    const int values = block_values(p->kept[0]);
    REJECT(o->base_dtype != OPT_base_dtype_file && p->shape[1] % values, "--base_dtype %s: the rows of %s have %lld "
           "numbers, no whole blocks of %d: leave it out", option_word(o, OPT_base_dtype), p->name,
           (long long)p->shape[1], values);
    p->keeps = p->matrices;
    p->frozen = true;                            // also where nothing trains
  }
  return true;
}
bool param_groups(const Options *o, Param *param, int params, Error *error) {
  for (const ParamList &l : param_lists) {
    if (!params_set(&l, o, param, params, error)) return false;
    int trained = 0;
    for (int i = 0; i < params; i++) trained += !param[i].frozen;
    REJECT(!trained && o->freeze[0], "--freeze %s leaves nothing to train", o->freeze);
  }
  return params_keep(o, param, params, error);
}
// Completes the lists, and checks them against the parameters of the model.
static inline bool param_groups_check(Options *o, Param *param, int params, Error *error) {
  for (const ParamList &l : param_lists) {
    char *const list = param_list_text(o, &l);
    const bool asked = list[0];
    list_trim(list);
    REJECT(asked && !list[strspn(list, ",")], "--%s '%s' names no parameter", option_specs[l.option].name, list);
  }
  return param_groups(o, param, params, error);
}
