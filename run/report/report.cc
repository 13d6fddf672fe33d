// report.cc: run/report/ as one object; what others may call of it is in run/report/report.h.
#define PART_LAUNCH 1
#include "trace.h"
#include "trace_file.h"
#include "view.h"
#include "report_page.h"
#include "report_html.h"
#include "progress.h"
#include "start_report.h"
#include "tensorboard.h"
#include "log.h"
#include "flight_report.h"
