// all_muon.h: the ops of family muon, and their table.
#pragma once
#include "muon.cuh"
#if PART_CUDA
#include "muon_cuda.cuh"
#endif
FAMILY_OPS(muon, MuonOps)
