// agree.h: where a run computes, decided by all ranks together before memory is taken: CPU table or CUDA, which GPU,
// which transport.
//
// A rank that cannot take part says why; one line is printed for all ranks, and all end.
#pragma once
#include "run.h"
#include <dlfcn.h>
#include <glob.h>

// Index of the table that --isa names, -1 for auto. One line in `error` if a CPU whose best table is `best` lacks it.
static int cpu_table_wanted(const Options *o, int best, Error *error) {
  if (best < 0) fail(error, "this CPU has no %s, which the program needs", PROCESSOR_NEEDS);
  if (best < 0 || o->isa == OPT_isa_auto) return -1;
  const int wanted = (int)o->isa - (int)OPT_isa_avx2 - PROCESSOR_FIRST_ISA;  // choices after auto are cpu_isas' names
  if (wanted < 0 || wanted > best) {
    const char *name = cpu_tables[best].name;
    fail(error, "--isa %.16s: the best this CPU has is %s", option_word(o, OPT_isa), name ? name : "");
  }
  return wanted;
}
// The table all ranks use: the one asked for, else the fastest that every rank has. All ranks call it.
static const Ops *agree_on_ops(const Options *o, MPI_Comm comm) {
  int fast = cpu_fast_table(), common = 0;
  Error error = {};
  const int wanted = cpu_table_wanted(o, cpu_best_table(), &error);
  agree_no_error(comm, error.text, EXIT_MISSING);
  MPI_Allreduce(&fast, &common, 1, MPI_INT, MPI_MIN, comm);
  return cpu_tables[wanted >= 0 ? wanted : common].ops;
}

// Fills in the peak rate for the compute dtype, and the words that the startup log has for the device.
static void device_describe(Device *d, const Options *o, const DeviceProbe *p) {
  const DeviceInfo *i = &p->device[d->index];
  const Dtype t = option_dtype(o, OPT_buffer_dtype);
  d->peak_flops = t == F32 && o->matmul_precision == OPT_matmul_precision_high ? i->peak_tf32_flops : i->peak_flops[t];
  snprintf(d->words, sizeof d->words, "cuda (%s, sm_%d%d, %.0f GiB, driver %d.%d, runtime %d.%d, cuBLASLt %d, NCCL %d)",
           i->name, i->major, i->minor, (double)i->memory_bytes / 0x1p30, p->driver / 1000, p->driver % 1000 / 10,
           p->runtime / 1000, p->runtime % 1000 / 10, p->cublaslt, p->nccl);
}
// All ranks must compute with the same kind of GPU and the same libraries, NCCL included if they use it. One line in
// `error` if this rank differs from rank 0.
static void agree_on_versions(const DeviceProbe *p, int index, bool with_nccl, MPI_Comm comm, Error *error) {
  struct Versions { int driver, runtime, cublaslt, nccl; char name[sizeof p->device[0].name]; } mine = {}, first;
  mine.driver = p->driver, mine.runtime = p->runtime, mine.cublaslt = p->cublaslt;
  mine.nccl = with_nccl ? p->nccl : 0;
  memcpy(mine.name, p->device[index].name, sizeof mine.name);
  first = mine;
  MPI_Bcast(&first, (int)sizeof first, MPI_BYTE, 0, comm);
  if (memcmp(&mine, &first, sizeof mine))
    fail(error, "this rank has %s, driver %d, runtime %d, cuBLASLt %d, NCCL %d; rank 0 has %s, %d, %d, %d, %d: all "
         "ranks need the same", mine.name, mine.driver, mine.runtime, mine.cublaslt, mine.nccl, first.name,
         first.driver, first.runtime, first.cublaslt, first.nccl);
}
// What --comm auto means on GPUs. crowded: ranks share a GPU. --reduce native is NCCL's sum, also of one rank.
static Choice_comm comm_of_gpus(const Options *o, int world, bool crowded) {
  if (o->reduce == OPT_reduce_native) return OPT_comm_nccl;
  return world == 1 ? OPT_comm_self : crowded ? OPT_comm_mpi : OPT_comm_nccl;
}
// Decides --comm auto, from what all ranks know, so that the printed configuration shows the decision. One line in
// `error` if the GPUs or libraries do not support --comm: ranks share a GPU, or NCCL is missing or too old.
static void agree_on_comm(Options *o, const DeviceProbe *p, const GpuChoice *g, int world, Error *error) {
  const bool automatic = o->comm == OPT_comm_auto;
  if (automatic) o->comm = comm_of_gpus(o, world, g->crowded);
  const bool shares = nccl_shares_a_gpu(p->nccl, getenv("NCCL_MULTI_RANK_GPU_ENABLE"));
  if (o->comm == OPT_comm_nccl && g->sharing > 1 && !shares)
    fail(error, "--comm nccl: %d ranks share the GPU %s; start one rank a GPU, or use --comm mpi", g->sharing,
         p->device[g->index].bus_id);
  else if (o->comm == OPT_comm_nccl && g->on_gpu > 1 && !shares)
    fail(error, "--comm nccl: %d ranks use MIG instances of the GPU %s, which NCCL takes for one GPU; use --comm "
         "mpi, or from NCCL 2.30 on NCCL_MULTI_RANK_GPU_ENABLE=1 (experimental)", g->on_gpu,
         p->device[g->index].bus_id);
  else if (o->comm == OPT_comm_nccl && p->nccl_missing[0])
    fail(error, "--comm nccl: %s%s", p->nccl_missing, automatic ? " (or use --comm mpi)" : "");
  else if (o->comm == OPT_comm_nccl && p->nccl < NCCL_NEEDED)
    fail(error, "--comm nccl: NCCL %d.%d is too old; 2.26 or later is needed", p->nccl / 10000, p->nccl / 100 % 100);
  if (o->comm == OPT_comm_mpi && o->graph == OPT_graph_on && g->sharing > 1)
    fail(error, "--graph on: %d ranks share a GPU, so gradients go through host memory (--comm mpi), which cannot be "
         "captured", g->sharing);
}
// cuBLASLt multiplies E4M3 from compute capability 8.9 on (Ada, Hopper).
enum { FP8_MATMUL_NEEDED = 89 };
void check_fp8(const Options *o, const DeviceInfo *d, Error *error) {
  if (o->fp8 == FP8_MATMUL && 10 * d->major + d->minor < FP8_MATMUL_NEEDED)
    fail(error, "--fp8 matmul needs compute capability 8.9 or later, %s has %d.%d: use --fp8 gather", d->name, d->major,
         d->minor);
}
// Rejects options of one kind of device on the other. why: why this is not the other device, or "".
static void check_device_options(const Options *o, const char *why, Error *error) {
  const bool cuda = o->device == OPT_device_cuda;
  const bool offloads = o->offload != OFFLOAD_NONE;              // then the host computes too
  const char *only = cuda ? (o->given[OPT_isa] && !offloads ? "isa" : NULL)
                     : offloads ? (o->offload == OFFLOAD_PARAMS ? "offload params" : "offload optimizer")
                     : o->fp8 == FP8_MATMUL ? "fp8 matmul"
                     : o->graph == OPT_graph_on ? "graph on"
                     : o->tune != OPT_tune_off ? "tune"
                     : o->plans[0] ? "plans"
                     : o->given[OPT_sm_margin] && strcmp(o->sm_margin, "0") ? "sm_margin"
                     : o->given[OPT_attention] && o->attention != OPT_attention_auto ? "attention"
                     : o->comm == OPT_comm_nccl ? "comm nccl"
                     : o->reduce == OPT_reduce_native ? "reduce native" : NULL;
  if (only) fail(error, "--%s needs --device %s; this run computes on %s%s%s", only, cuda ? "cpu" : "cuda", cuda ?
                 "cuda" : "the CPU", why[0] ? ": " : "", why);
  const int64_t widest = o->n_embd % 8 ? CUDA_MAX_ODD_COLUMNS : CUDA_MAX_COLUMNS;
  if (cuda && o->n_embd > widest)
    fail(error, "--n_embd %lld: the CUDA kernels take %lld columns at most%s", (long long)o->n_embd, (long long)widest,
         o->n_embd % 8 ? ", more for multiples of 8" : "");
  if (cuda && max64(o->batch_size, o->test_batch_size) > CUDA_MAX_BATCH)
    fail(error, "--batch_size, --test_batch_size: the CUDA kernels take %d sequences at most", CUDA_MAX_BATCH);
}
// Whether a run on a CPU can have its --matmul_precision; if not, why. `high` computes an fp32 matrix multiply from six
// bf16 ones, which only tiles (AMX) do fast enough (gemm_split.h).
static bool cpu_precision_fits(const Options *o, const Ops *ops, Error *why) {
  const bool tiles = ops == &ops_amx || (&ops_amx_emulated && ops == &ops_amx_emulated);
  const bool fp32 = o->buffer_dtype == OPT_buffer_dtype_fp32;
  if (o->matmul_precision != OPT_matmul_precision_high || (fp32 && tiles)) return true;
  if (!fp32)
    fail(why, "on a CPU it applies to fp32 matrix multiplies, and --buffer_dtype %.8s has none", option_word(o,
         OPT_buffer_dtype));
  else
    fail(why, "on a CPU it needs tiles (AMX); with %s the six bf16 multiplies that replace an fp32 one would take "
         "longer than that one; leave it out", ops->name);
  return false;
}
// Where this run cannot have --matmul_precision high: an error if the user gave it, else (a checkpoint had it) it
// becomes highest, with a warning. All ranks call it; every rank has the same table of ops.
static void agree_on_precision(Options *o, const Ops *ops, MPI_Comm comm) {
  const bool fp32 = o->buffer_dtype == OPT_buffer_dtype_fp32;
  Error why = {};
  Error error = {};
  const int rank = comm_rank(comm);
  if (cpu_precision_fits(o, ops, &why)) return;
  if (o->given[OPT_matmul_precision]) fail(&error, "--matmul_precision high: %s", why.text);
  agree_no_error(comm, error.text, fp32 ? EXIT_MISSING : EXIT_USAGE);
  o->matmul_precision = OPT_matmul_precision_highest;
  if (!rank) say("warning: --matmul_precision highest replaces the checkpoint's high: %s\n", why.text);
}
// Decides --attention auto, the same on all ranks, because the two kernels add in different orders: wgmma (Hopper's) if
// every GPU and this build have it, else mma, and mma, with a warning, for a checkpoint's wgmma. All ranks call it.
static void agree_on_attention(Options *o, const DeviceInfo *gpu, MPI_Comm comm) {
  char why[256] = "";
  Error error = {};
  const int rank = comm_rank(comm), world = comm_size(comm);
  int lacking, lowest;
  lacking = gpu->wgmma ? world : rank;
  MPI_Allreduce(&lacking, &lowest, 1, MPI_INT, MPI_MIN, comm);
  if (lowest < world) {
    if (rank == lowest)
      snprintf(why, sizeof why, gpu->major != 9 ? "they need compute capability 9.0, %.64s has another" :
               "this build has no code for sm_90a, which %.64s needs for them; make "
               "ARCHS=\"-gencode arch=compute_90a,code=sm_90a\"", gpu->name);
    MPI_Bcast(why, (int)sizeof why, MPI_CHAR, lowest, comm);
    if (o->attention == OPT_attention_wgmma && o->given[OPT_attention] && rank == lowest)
      fail(&error, "--attention wgmma: %s", why);
    agree_no_error(comm, error.text, EXIT_MISSING);
    if (o->attention == OPT_attention_wgmma && !rank)
      say("warning: --attention mma replaces the checkpoint's wgmma because of rank %d: %s\n", lowest, why);
    else if (o->attention == OPT_attention_auto && gpu->major == 9 && !rank)
      say("warning: --attention mma, though there are faster kernels for this GPU; rank %d: %s\n", lowest, why);
  }
  if (lowest < world) o->attention = OPT_attention_mma;
  else if (o->attention == OPT_attention_auto) o->attention = OPT_attention_wgmma;
}
// Whether this machine has a GPU, as its device files say, whatever driver and libraries are here. Tests name a
// directory in place of /dev.
static bool gpu_is_here() {
  const char *named = getenv("TRAIN_GPT_FSDP_DEV");
  char pattern[PATH_MAX];
  glob_t found = {};
  bool is = false;
  for (const char *file : {"nvidia[0-9]*", "nvhost-gpu", "dxg"}) {
    snprintf(pattern, sizeof pattern, "%.4000s/%s", named ? named : "/dev", file);
    is = is || !glob(pattern, 0, NULL, &found);
    globfree(&found);
  }
  return is;
}
// Decides the device of all ranks: the one asked for, or CUDA where every rank has a usable GPU. On CUDA one GPU per
// rank, equal libraries, the transport, and the CPU table of an offloaded optimizer. All ranks call it.
static Device agree_on_device(Options *o, MPI_Comm comm, MPI_Comm node) {
  static DeviceProbe p;
  Device d = {};
  char why[512] = "";
  Error error = {};
  const int rank = comm_rank(comm), world = comm_size(comm);
  if (o->device != OPT_device_cpu) {
    if (&ops_cuda) ops_cuda.device_probe(NULL, &p);
    if (&ops_cuda) snprintf(why, sizeof why, "%s", p.missing);
    else snprintf(why, sizeof why, "this build has no CUDA kernels (%s): mend that and make again", build_no_cuda);
    if (o->device == OPT_device_cuda && why[0]) fail(&error, "--device cuda: %s", why);
    agree_no_error(comm, error.text, EXIT_MISSING);
    int lacking = why[0] ? rank : world, lowest, driver = p.driver || gpu_is_here();
    MPI_Allreduce(&lacking, &lowest, 1, MPI_INT, MPI_MIN, comm);
    MPI_Allreduce(MPI_IN_PLACE, &driver, 1, MPI_INT, MPI_MAX, comm);
    o->device = lowest < world ? OPT_device_cpu : OPT_device_cuda;
    if (lowest < world) MPI_Bcast(why, (int)sizeof why, MPI_CHAR, lowest, comm);
    if (lowest < world && driver && !rank)       // a rank has a GPU: explain why it is not used
      say("warning: --device auto takes the CPU because of rank %d: %s\n", lowest, why);
  }
  check_device_options(o, why, &error);
  agree_no_error(comm, error.text, EXIT_USAGE);
  if (o->device == OPT_device_cpu) {
    d = device_of(agree_on_ops(o, comm));
    agree_on_precision(o, d.ops, comm);
    if (strcmp(o->sm_margin, "0")) {             // a checkpoint's: check_device_options rejects a given one
      if (!rank) say("warning: --sm_margin 0 replaces the checkpoint's %.32s: it is of GPUs\n", o->sm_margin);
      strcpy(o->sm_margin, "0");
    }
    snprintf(d.words, sizeof d.words, "cpu (%s)", d.ops->name);
    return d;
  }
  const GpuChoice g = choose_gpu(&p, node, comm);
  fail(&error, "%s", g.error);
  agree_no_error(comm, error.text, EXIT_USAGE);
  agree_on_comm(o, &p, &g, world, &error);
  const bool nccl = o->comm == OPT_comm_nccl;
  agree_no_error(comm, error.text, nccl && !g.crowded ? EXIT_MISSING : EXIT_USAGE);
  agree_on_versions(&p, g.index, nccl, comm, &error);
  agree_no_error(comm, error.text, EXIT_MISSING);
  const DeviceInfo *gpu = &p.device[g.index];
  d.sms = gpu->sms;
  d.integrated = gpu->integrated;
  d.sm_margin = sm_margin_for(o, gpu->name, gpu->major, gpu->minor, gpu->sms, &error);
  agree_no_error(comm, error.text, EXIT_USAGE);
  agree_on_attention(o, gpu, comm);
  check_fp8(o, gpu, &error);
  agree_no_error(comm, error.text, EXIT_MISSING);
  const bool offloads = o->offload != OFFLOAD_NONE;
  if (offloads && o->graph == OPT_graph_auto) {
    o->graph = OPT_graph_off;
    if (!rank) say("warning: steps are not captured as a graph: --offload %s needs the host within a step\n",
                      option_word(o, OPT_offload));
  }
  d.ops = &ops_cuda;
  d.host_ops = offloads ? agree_on_ops(o, comm) : NULL;          // the table of the offloaded optimizer
  d.index = g.index;
  d.sharing = g.sharing;
  d.gpus = g.gpus;
  device_describe(&d, o, &p);
  return d;
}

const Ops *device_pretend(Options *o, bool gpu, int world, Error *error) {
  check_device_options(o, "", error);
  if (error->text[0]) return NULL;
  const int best = cpu_best_table(), wanted = gpu && o->isa == OPT_isa_auto ? best
                                              : cpu_table_wanted(o, best, error);
  if (error->text[0]) return NULL;
  const Ops *cpu = cpu_tables[wanted >= 0 ? wanted : cpu_fast_table()].ops;
  Error why = {};
  if (!gpu && !cpu_precision_fits(o, cpu, &why)) {
    fail(error, "--matmul_precision high: %s", why.text);
    return NULL;
  }
  if (gpu && o->comm == OPT_comm_auto) o->comm = comm_of_gpus(o, world, false);
  if (gpu && o->offload != OFFLOAD_NONE && o->graph == OPT_graph_auto) o->graph = OPT_graph_off;
  return cpu;
}
void agree_on_memory(const RunView *run) {
  const bool gpu = run->ctx->ops->nccl;
  const int sharing = run->device.sharing, ranks = fsdp_host_world(run->fsdp);
  unsigned long long mine = memory_planned_total(&run->plan, gpu ? MEMORY_ON_HOST : MEMORY_ALL), host = 0;
  MPI_Allreduce(&mine, &host, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, fsdp_host_comm(run->fsdp));
  size_t available = host_available_bytes(), device_free = 0, device_total = 0;
  const size_t libraries = memory_planned_use(&run->plan, MEMORY_LIBRARIES) * (size_t)sharing;
  const size_t to_take = gpu ? memory_planned_total(&run->plan, MEMORY_TO_TAKE) * (size_t)sharing : 0;
  run->ctx->ops->memory_left(run->ctx, &device_free, &device_total);
  char took[96] = "";
  Error error = {};
  unsigned long long trace = run->plan.planned_bytes[MEM_TRACE];
  MPI_Allreduce(MPI_IN_PLACE, &trace, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, fsdp_host_comm(run->fsdp));
  if (host > available && host - trace <= available)
    fail(&error, "the memory plan of this host's %d rank%s is %.2f GiB, %.2f of them for events of --trace, but %.2f "
         "GiB are available: give --trace_steps fewer steps", ranks, ranks > 1 ? "s" : "", (double)host / 0x1p30,
         (double)trace / 0x1p30, (double)available / 0x1p30);
  else if (host > available)
    fail(&error, "the memory plan of this host's %d rank%s is %.2f GiB, but %.2f GiB are available: lower --batch_size "
         "or --seq_len, choose --recompute block, --strategy full_shard or a smaller --model, or use more hosts", ranks,
         ranks > 1 ? "s" : "", (double)host / 0x1p30, (double)available / 0x1p30);
  if (libraries)
    snprintf(took, sizeof took, " besides %.3f GiB taken by %s", (double)libraries / 0x1p30,
             run->plan.planned_bytes[MEM_NCCL] ? "NCCL and cuBLASLt" : "CUDA and cuBLASLt");
  if (run->device.integrated && to_take <= device_free && to_take + host > device_free)
    fail(&error, "the memory plan of this host's %d rank%s is %.2f GiB of the host and %.2f GiB of the GPU%s, which "
         "has no memory of its own, but %.2f GiB are available to both: lower --batch_size or --seq_len, choose "
         "--recompute block or a smaller --model", ranks, ranks > 1 ? "s" : "", (double)host / 0x1p30,
         (double)to_take / 0x1p30, took, (double)device_free / 0x1p30);
  if (to_take > device_free)
    fail(&error, "the memory plan of this GPU's %d rank%s is %.2f GiB%s, but %.2f of %.2f GiB are free: lower "
         "--batch_size or --seq_len, choose --recompute block, --strategy full_shard, --offload or a smaller --model, "
         "or use more GPUs", sharing, sharing > 1 ? "s" : "", (double)to_take / 0x1p30, took, (double)device_free /
         0x1p30, (double)device_total / 0x1p30);
  agree_no_error(fsdp_comm(run->fsdp), error.text, EXIT_MISSING);
}

// All ranks must be the same program with the same options; the error names the first difference. The corpus needs no
// such check: every rank gets it from rank 0 (corpus_share). All ranks call it.
static void agree_on_run(MPI_Comm comm, const Options *o) {
  static Options first;
  static const char differs[] = "this rank differs from rank 0: '%s %s' here, '%s %s' there";
  char here[OPTION_TEXT_BYTES] = "";
  snprintf(here, sizeof here, "%s %s for %s", PROGRAM_VERSION, build_id, PROCESSOR_NAME);
  char there[sizeof here];
  Error error = {};
  memcpy(there, here, sizeof here);
  MPI_Bcast(there, sizeof there, MPI_CHAR, 0, comm);
  if (strcmp(here, there)) fail(&error, differs, "build", here, "build", there);
  agree_no_error(comm, error.text, EXIT_USAGE);       // another may have other options
  first = *o;
  MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, comm);
  for (int i = 0; i < OPTION_COUNT && !error.text[0]; i++) {
    char name[OPTION_NAME_BYTES];
    snprintf(name, sizeof name, "--%s", option_specs[i].name);
    option_print(here, sizeof here, o, &option_specs[i]);
    option_print(there, sizeof there, &first, &option_specs[i]);
    if (strcmp(here, there)) fail(&error, differs, name, here, name, there);
  }
  agree_no_error(comm, error.text, EXIT_USAGE);
}
int ranks_per_host(MPI_Comm comm) {
  MPI_Comm node;
  int rank, mine, ends[2];
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &mine);
  MPI_Comm_free(&node);
  const int both[2] = {mine, -mine};
  MPI_Allreduce(both, ends, 2, MPI_INT, MPI_MAX, comm);
  return ends[0] == -ends[1] ? mine : 0;
}
// Open MPI 5 ends a rank automatically, and all others with it, when a connection to a rank that died breaks: often
// before the heartbeats have said which rank that was. So Open MPI 5 is made to wait for MPI_PATIENCE_S before it ends
// ranks (Open MPI 4 waits forever): by the C variable of its option opal_abort_delay. The option itself would delay
// MPI_Abort as well, so the variable is set here, and set back before MPI_Abort.
enum { MPI_PATIENCE_S = 10 };
// Changes it to `to` where it is `from`; what the user has chosen stays.
static void mpi_abort_delay(int from, int to) {
  int *delay = (int *)dlsym(RTLD_DEFAULT, "opal_abort_delay");
  if (delay && *delay == from) *delay = to;
}
// The die_hook once MPI is up: ends every rank.
static void die_everywhere(int code) {
  mpi_abort_delay(MPI_PATIENCE_S, 0);
  liveness_leave(true);                          // true: all ranks end, and this one has printed why
  MPI_Abort(MPI_COMM_WORLD, code);
}
