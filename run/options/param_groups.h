// param_groups.h: what --freeze, --no_decay and --lr_scale say of parameters, by globs of their names, and --base_dtype
// of those that do not train. All of it goes into the table of parameters, from which the layout follows: parameters
// with equal settings lie together, and one call of the optimizer's op updates them.
#pragma once
#include "options.h"
#include "option_values.h"

// Takes the blanks out of a list: no name has one, but lists are often written with them.
static inline void list_trim(char *list) {
  char *to = list;
  for (const char *c = list; *c; c++) if (*c != ' ' && *c != '\t') *to++ = *c;
  *to = 0;
}
void param_lists_trim(Options *o) {
  list_trim(o->freeze);
  list_trim(o->no_decay);
  list_trim(o->lr_scale);
}

// Sets lr_scale of parameters that one of PATTERN=X,... names; of several the last one counts.
static inline bool params_scale(Param *param, int params, const char *list, Error *error) {
  char text[OPTION_TEXT_BYTES], *save = NULL;
  snprintf(text, sizeof text, "%s", list);
  for (char *glob = strtok_r(text, ",", &save); glob; glob = strtok_r(NULL, ",", &save)) {
    char *const value = strchr(glob, '=');
    char *end = value;
    const double scale = value ? strtod(value + 1, &end) : 0;
    REJECT(!value || value == glob || end == value + 1 || *end || !(scale > 0 && scale <= 1e6), "--lr_scale '%s' is "
           "not PATTERN=X with X above 0, at most 1e6, like 'wte=0.1' (--freeze trains nothing)", glob);
    *value = 0;
    int matched = 0;
    for (int i = 0; i < params; i++)
      if (param_matches(&param[i], glob)) param[i].lr_scale = (float)scale, matched++;
    REJECT(!matched, "--lr_scale %s matches no parameter; names are like " PARAM_NAMES_LIKE, glob);
  }
  return true;
}
// Parameters that one of the globs names get no weight decay.
static inline bool params_no_decay(Param *param, int params, const char *list, Error *error) {
  char text[OPTION_TEXT_BYTES], *save = NULL;
  snprintf(text, sizeof text, "%s", list);
  for (char *glob = strtok_r(text, ",", &save); glob; glob = strtok_r(NULL, ",", &save)) {
    int matched = 0;
    for (int i = 0; i < params; i++) if (param_matches(&param[i], glob)) param[i].decay = false, matched++;
    REJECT(!matched, "--no_decay %s matches no parameter; names are like " PARAM_NAMES_LIKE, glob);
  }
  return true;
}
// Which matrices keep bytes (--base_dtype), of those that do not train: those of another type than --param_dtype. What
// is quantized here are the matrices of blocks, as bitsandbytes does it.
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
      p->kept[k].type = o->base_dtype == OPT_base_dtype_file ? o->base_types[n] : p->linear ? made : stored;
      other = other || p->kept[k].type != stored, known = known && p->kept[k].type;
    }
    if (!other || !known || p->row_end || (!p->frozen && run_trains(o))) continue;
    const int values = block_values(p->kept[0].type);
    REJECT(o->base_dtype != OPT_base_dtype_file && p->shape[1] % values, "--base_dtype %s: the rows of %s have %lld "
           "numbers, no whole blocks of %d: leave it out", option_word(o, OPT_base_dtype), p->name,
           (long long)p->shape[1], values);
    p->keeps = p->matrices;
    p->frozen = true;                            // also where nothing trains
  }
  return true;
}
bool param_groups(const Options *o, Param *param, int params, Error *error) {
  return (!o->freeze[0] || params_freeze(param, params, o->freeze, error)) &&
         params_no_decay(param, params, o->no_decay, error) &&
         params_scale(param, params, o->lr_scale, error) &&
         params_keep(o, param, params, error);
}
// Completes the lists, and checks them against the parameters of the model.
static inline bool param_groups_check(Options *o, Param *param, int params, Error *error) {
  const struct { const char *name, *list; } lists[] = {
      {"freeze", o->freeze}, {"no_decay", o->no_decay}, {"lr_scale", o->lr_scale}};
  bool asked[3];
  for (int i = 0; i < 3; i++) asked[i] = lists[i].list[0] != 0;
  param_lists_trim(o);
  for (int i = 0; i < 3; i++)
    REJECT(asked[i] && !lists[i].list[strspn(lists[i].list, ",")], "--%s '%s' names no parameter", lists[i].name,
           lists[i].list);
  return param_groups(o, param, params, error);
}
