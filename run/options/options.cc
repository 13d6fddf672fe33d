// options.cc: run/options/ as one object; what others may call of it is in run/options/options.h.
#define PART_LAUNCH 1
#include "option_names.h"
#include "option_values.h"
#include "option_line.h"
#include "option_file.h"
#include "param_groups.h"
#include "program.h"
#include "sharding.h"
#include "sm_margin.h"
#include "resolve.h"
#include "option_help.h"
