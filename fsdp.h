// fsdp.h: fully sharded data parallelism (ZeRO-3) and every mode around it, inlined. Parameters, gradients and
// optimizer state are cut over the ranks; what the model needs is gathered just before it computes and its gradient is
// reduced just after. Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (PyTorch FSDP), Wang et al. 2024 (ZeRO++).
//
// The parts, each a file, in the order in which they are built on each other:
//   base/heartbeats.h      no rank waits for ever
//   fsdp/memory_plan.h     every byte is planned under a name, printed, then taken under it
//   fsdp/mesh.h            replicas x shards: who is where
//   fsdp/units.h           parameters -> units -> pieces: which rank owns which elements, as data
//   fsdp/state.h           configuration, what follows from it once and for all, and what changes: struct Fsdp
//   fsdp/record.h          what a run does, entry by entry: for proofs of its order, and for dry runs
//   fsdp/placement.h       memory by lifetimes
//   fsdp/owned.h           Muon: which rank computes the update of which matrix
//   fsdp/hosts.h           gradients between hosts as sums that travel along them
//   fsdp/layout.h          decisions and the list of all buffers
//   fsdp/transport.h       the comm table; all traffic is counted by those who fill it:
//   fsdp/transport_self.h, windows.h, transport_mpi.h, transport_nccl.h, transport_plan.h; transport_updates.h: Muon's
//   fsdp/reduce.h          fsdp_grads, fsdp_grad, fsdp_reduce: ordered, so that N ranks give bit for bit what one
//                          rank gives
//   fsdp/gather.h          fsdp_gather, fsdp_wait, fsdp_weight, fsdp_release
//   fsdp/sharded_state.h   norm, E4M3 scales, initialisation, reading and writing of shards
//   fsdp/update.h          the optimizer's step on shards
//   fsdp/open.h            opening and closing
// docs/design.md follows a gradient through them.
//
// What the model code sees, for stage s (0: outside the blocks, 1 + l: block l) and parameter p:
//   fsdp_gather(f,s) start   fsdp_wait(f,s)   fsdp_weight(f,p) -> whole, in the compute dtype   fsdp_release(f,s)
//   fsdp_grads(f,s)          fsdp_grad(f,p) -> its gradient, whole; no data if frozen           fsdp_reduce(f,s) start
//   fsdp_poll(f) between ops, so that messages move while we compute
//
// Modes. There is one schedule; a mode is numbers in it:
//   full_shard (zero3)      mesh 1 x N; K gather slots: a block is gathered for its forward and again for its backward
//   shard_grad_op (zero2)   K = L slots: every block is gathered once a step
//   zero1                   that, and gradients are added up whole on each rank: one reduction and one gather a step
//   hybrid_shard            mesh R x S: all of it inside a replica, and sums of shards passed along the replicas, and
//                           back to all of them beside backward
//   no_shard (ddp)          mesh N x 1: a shard is the whole, nothing is gathered
//   reshard_after_forward   on: K slots, off: K = L, G: a block's first gather of a step leaves 1/G of it on every
//                           rank, and later ones only ask the G neighbours that hold the rest
//   dtypes                  stored and gathered in param_dtype (matrices in E4M3 with fp8), computed in compute_dtype,
//                           reduced in wire_dtype; what is gathered in another dtype is expanded after its arrival.
//                           Masters are fp32: the parameter itself, or kept beside it, or of bf16 what it lacks of them
//   offload                 masters, moments and gradient shards lie in host memory, and parameter shards if asked
//   in place                where every shard group lies on one host and shares its memory (CPU, windows): the parts of
//                           a unit lie there one behind the other, as a gather would lay them, so the unit is whole
//                           already and weights are read from there. No gather, no slot; nothing needs to be kept.
//                           Nobody writes there but each rank its part, in its update, when all have read.
//                           One rank whose gradients need no rounding for the wire sums them in its shard
//
// Devices. Everything an op touches is device memory; on a CPU that is host memory. Three streams: the model's, one for
// gathers, one for reductions, ordered by events; the host waits for them only where it takes part itself (messages,
// windows, an offloaded optimizer). On a CPU a call is done when it returns, so streams and events are nothing there;
// the schedule is the same text. Whoever adds an access to memory that another stream touches adds the wait that orders
// it; an access that no op makes is told to the record where it happens (fsdp/record.h). The tests remove each wait
// once and must then fail.
//
// Traffic, per rank and step, for a mesh of R x S, L blocks, K gather slots, A microbatches a rank, r this rank's
// replica, F the lowest block whose backward is needed (0 unless the ones below and the embeddings are frozen).
// |u|: what a rank's shard of unit u puts on the wire, padding between ranks included: elements e(u) of what trains,
// bytes g(u) as gathered. b: bytes of the wire dtype. l' = min(F, L - K).
//   gathers of block l      1 + A [l' <= l < L - K] + (A-1) [not l' <= l < K], of everything else 1
//                           each (S-1) g(u); with reshard G all but the first (G-1) (S/G) g(u)
//                           none where shards are read in place: nothing is moved
//   reductions of u         A, or 1 if accumulated locally; each (S-1) e(u) b, or along hosts what fsdp/hosts.h
//                           says; none if all of u is frozen, or if one rank sums its gradient in its shard
//   along the replicas      fp32 partial sums of shards: 4 s(u) for each reduction, less the first of replica 0; the
//                           result once more to all but the last replica. native: 2 (R-1)/R of 4 s(u) instead.
//                           s(u): e(u) and the gaps that align pieces in a shard. Ways back: 1 for each u that
//                           trains, in each step, when its last reduction is over
//   updates of Muon         rounds: the most matrices a rank owns; 2 exchanges a round. Of a matrix of n elements
//                           its owner gets 2 (n - own) bytes, every other rank 2 own, own: elements of it in a rank's
//                           shard. None in place (fsdp/owned.h)
//   small                   one all-gather (norm, losses, stop flag); over mpi a barrier too; fp8: one of maxima
// With L blocks in one unit each, A reductions, no freezing and R = 1 that is, in bytes, f = (N-1)/N, U a block, P all:
//   f (root b_p + (L + (2A-1) max(L-K,0)) U b_p + A P b_r); in place f A P b_r
// Memory: see fsdp_declare (fsdp/layout.h). fsdp_formula states the traffic as code, a test compares it with the
// counters of the transport.
//
// Bit-identity: the owner adds contributions in order of the global microbatch m = a N + rank, each first rounded to
// the wire dtype (its own too, and at N = 1): one left fold, the same for every N that divides the number of
// microbatches, every mesh, layout, wrap and slot count. Replicas pass the running sum on, in order. Only --reduce
// native gives the order away, to NCCL, and --accumulate local adds a rank's own microbatches first.
#pragma once
#include "base/heartbeats.h"
#include "fsdp/memory_plan.h"
#include "fsdp/mesh.h"
#include "fsdp/units.h"
#include "fsdp/state.h"
#include "fsdp/record.h"
#include "fsdp/note.h"
#include "fsdp/finite.h"
#include "fsdp/placement.h"
#include "fsdp/owned.h"
#include "fsdp/hosts.h"
#include "fsdp/layout.h"
#include "fsdp/transport_plan.h"
#include "fsdp/gather.h"
#include "fsdp/reduce.h"
#include "fsdp/sharded_state.h"
#include "fsdp/update.h"
#include "fsdp/open.h"
#include "fsdp/dry_run.h"
