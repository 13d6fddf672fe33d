// ops_touches_end.h: forgets what the words of an op's `touches` (ops.h) meant. Whoever gives them a meaning expands
// OPS once and then includes this file, so that the next one can give them another. Included more than once.
#undef READS
#undef WRITES
#undef UPDATES
#undef SUMS
#undef SUMMANDS
#undef READS_BYTES
#undef WRITES_BYTES
#undef UPDATES_BYTES
#undef IN_PLACE
#undef READS_VALUE
#undef USES_WORKSPACE
