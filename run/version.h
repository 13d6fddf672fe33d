// version.h: which program this is.
#pragma once

#define PROGRAM_VERSION "0.6.0"
#ifndef BUILD_ID // the Makefile gives a checksum of the sources: all ranks must have the same
#define BUILD_ID "unknown"
#endif
