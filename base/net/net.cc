// net.cc: base/net/ as one object; what others may call of it is in base/net/net.h.
#include "sockets.h"
#include "prove.h"
