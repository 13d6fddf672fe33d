// threads.cc: the threads of threads.h, once in a program.
#define PART_LAUNCH 1
#define PART_THREADS 1
#include "threads.h"
