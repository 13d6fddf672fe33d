// launchers.h: variables of launchers: who started this process, and whether it is alone by mistake.
//
// Ranks find each other by PMIx, which Open MPI's mpirun and `srun --mpi=pmix` provide. Any other launcher starts
// programs that do not know of each other: they rendezvous (rdzv.h), or each would train the whole model, all of them
// into the same OUT.
#pragma once
#include "rdzv_host.h"
#include <sys/statvfs.h>

// A launcher. size, rank: environment variables with the number of its processes, and this process's number; rank_too:
// it counts only if `rank` is set as well; line: how to start as many ranks; loop: the same in a shell loop.
struct Launcher { const char *size, *rank; bool rank_too; const char *name, *line, *loop; };
static const Launcher launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", false, "mpirun", "mpirun -np %lld ./train_gpt_fsdp ...",
     "mpirun -np"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", false, "srun", "srun --mpi=pmix -n %lld ./train_gpt_fsdp ...", "srun -n"},
    {"PMI_SIZE", "PMI_RANK", false, "another MPI's mpiexec (MPICH, Intel MPI)",
     "Open MPI's mpirun -np %lld ./train_gpt_fsdp ...", "mpirun -np"},
    {"WORLD_SIZE", "RANK", true, "torchrun or another launcher of PyTorch",
     "mpirun -np %lld ./train_gpt_fsdp ..., or set MASTER_ADDR and MASTER_PORT too", "mpirun -np"}};
static inline bool launch_is_started() { return launch_has_pmix() || getenv("PMI_RANK") || getenv("SLURM_PROCID"); }

void launch_no_daemon() {
  if (launch_is_started()) return;
  setenv("OMPI_MCA_ess_singleton_isolated", "1", 1);
  setenv("OMPI_MCA_orte_create_session_dirs", "0", 1);
}

void launch_one_host() {
  const char *world = getenv("OMPI_COMM_WORLD_SIZE"), *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  struct statvfs shm;
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING], version[32];
  int length;
  if (launch_is_started() && (!world || !here || strcmp(world, here))) return;
  const double needs = (double)(world ? strtoll(world, NULL, 10) : 1) * (16 << 20);
  if (statvfs("/dev/shm", &shm) || (double)shm.f_bavail * (double)shm.f_frsize < needs) return;
  MPI_Get_library_version(mpi, &length);
  rdzv_mpi_version(version, sizeof version, mpi);
  setenv("OMPI_MCA_btl", version[0] == '4' ? "self,vader" : "self,sm", 0);
}

void launch_reject_alone(const char *rdzv, bool before) {
  if (!strcmp(rdzv, "none") || (before && (launch_has_pmix() || getenv("PMI_RANK")))) return;
  for (const Launcher &l : launchers) {
    const char *size = getenv(l.size), *rank = getenv(l.rank);
    const long long count = size ? strtoll(size, NULL, 10) : 0;
    char line[128];
    if (count <= 1 || (l.rank_too && !rank)) continue;
    snprintf(line, sizeof line, l.line, count);
    if (!before) {                               // this process is alone: there is no rank to name, and none to end
      MPI_Finalize();
      who_am_i = NULL, die_hook = NULL;
    }
    if (rank && strtoll(rank, NULL, 10)) exit(EXIT_USAGE);
    die_user("train_gpt_fsdp: %s started %lld programs that do not know of each other (%s=%lld, but MPI has one rank): "
             "start them with %s; --rdzv none starts each alone", l.name, count, l.size, count, line);
  }
}

void launch_warning_pmi() {
  const char *size = getenv("SLURM_STEP_NUM_TASKS"), *rank = getenv("PMI_RANK");
  if (launch_has_pmix() || !size || !rank || strcmp(rank, "0")) return;
  const long long count = strtoll(size, NULL, 10);
  if (count > 1)
    fprintf(stderr, "warning: srun gave its %lld processes PMI, and few builds of Open MPI know that: if MPI_Init "
            "fails now, start them with srun --mpi=pmix -n %lld ./train_gpt_fsdp ...\n", count, count);
}

bool launch_watches(int64_t most, bool waits, const char *rdzv, Error *error) {
  if (getenv("TRAIN_GPT_FSDP_RDZV")) return false;               // a rank whose host 0 does that
  REJECT(waits, "--restart_wait belongs to --restarts of ranks that rendezvous by --rdzv");
  for (const Launcher &l : launchers) {
    const char *size = getenv(l.size);
    if (!strcmp(rdzv, "none") && &l != launchers) continue;      // whatever they have set
    REJECT(most && size && getenv(l.rank), "--restarts %lld: a launcher started these ranks, and it ends when one is "
           "lost; let the shell start them again: for i in $(seq %lld); do %s %.20s ./train_gpt_fsdp ... --resume auto "
           "&& break; done", (long long)most, (long long)most + 1, l.loop, size);
  }
  return most > 0;
}
