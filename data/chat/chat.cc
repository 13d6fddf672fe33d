// chat.cc: data/chat/ as one object; what others may call of it is in data/chat/chat.h.
#define PART_LAUNCH 1
#include "chat_tools.h"
#include "records.h"
#include "jinja_value.h"
#include "jinja_call.h"
#include "jinja_filters.h"
#include "jinja_parse.h"
#include "jinja_render.h"
#include "chat_template.h"
#include "rendered.h"
#include "conversations.h"
