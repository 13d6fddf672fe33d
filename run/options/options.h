// options.h: the door of run/options/: options, from one table, and what they mean: a model's shape, its sharding, its
// groups of parameters.
#pragma once
#include "launch/launch.h"
#include "data/data.h"
#include "data/models/models.h"
#include "version.h"

// ---- what this program asks of the trainer --------------------------------------------------------------------------
// It alone knows its model and can run it: main hands its table down, and all options have it.
struct RunView;                                  // run/report/report.h
struct Device;
struct DryWatch;
struct Options;
enum { TIMED_MICROBATCHES = 4 };
struct TrainerTable {
  const ParamTable *params;                      // what the model is
  // Plans rank `rank` of `world`, per_host consecutive ones a host, none of which need be there: without MPI, data or
  // memory. o: resolved. Until plan_close.
  RunView *(*plan_open)(const Options *o, const Device *device, int rank, int world, int per_host, int threads);
  void (*plan_close)(RunView *run);
  // Runs a training step of a planned rank once more, dry, and watched. Returns how many microbatches it had, at most
  // TIMED_MICROBATCHES: the first overwrites sums, those of the last go back to all replicas, two between repeat.
  int64_t (*plan_step)(const RunView *run, DryWatch *watch);
  // Writes where a training step's buffers lie, as a member of a JSON object (fsdp/memory_map.h).
  void (*memory_map)(const RunView *run, FILE *to);
};

// ---- option_table.h -------------------------------------------------------------------------------------------------
#include "option_table.h"

// ---- option_values.h ------------------------------------------------------------------------------------------------
// choices: a|b|...; words: those of an enum, one behind the other, each ended by a zero.
struct OptionSpec {
  const char *name;
  OptionType type;
  size_t offset;
  double def, lo, hi;
  const char *text_def, *choices, *words;
  OptionResume resume;
  const char *help, *also = "";
};
extern const OptionSpec option_specs[OPTION_COUNT];                // by OptionId
enum { OPTION_NAME_BYTES = 128 };
// What the program was called with.
struct Call {
  const TrainerTable *trainer;
  int argc;
  char **argv;
  bool launched, first;                          // by mpirun; alone or its first process, which answers for all
  Options o;                                     // of argv
  Error error;                                   // what is wrong with them
};
// Whether the run trains, or only evaluates or samples.
static inline bool run_trains(const Options *o) { return !o->eval_only && !o->sample_only && !o->show_chats; }
// The file of OUT that texts go into at the end; NULL: none are made.
const char *sample_file(const Options *o);
// Which of its choices an option has, as the table spells it.
const char *option_word(const Options *o, OptionId id);
// Every option as if none had been given.
void options_default(Options *o, const TrainerTable *trainer);
// One value as text; the same text gives the same value back.
void option_print(char *to, size_t bytes, const Options *o, const OptionSpec *s);
// Stores `value` for option i, as if it had not been given. False with one line in `error` when it does not fit.
bool option_put(Options *o, int i, const char *value, Error *error);
// option_put, and the option has been given.
bool option_set(Options *o, int i, const char *value, Error *error);
// Gives an option its default, as if it had not been given.
void option_forget(Options *o, int i);
// Reads the command line; the --config file is read later (option_file.h). False with one line in `error`.
bool options_parse(Options *o, const TrainerTable *trainer, int argc, char **argv, Error *error);

// ---- option_line.h --------------------------------------------------------------------------------------------------
// Where the command line has short options of llm.c or nanoGPT's --init_from scratch or resume, `error` becomes the
// whole line to type. What this refuses in its turn stands behind it.
void options_whole_line(int argc, char **argv, Error *error);

// ---- option_file.h --------------------------------------------------------------------------------------------------
// Writes OUT/options.txt. If the disk is full or fails, a notice says so. from: see options_write_head.
void options_save(const Options *asked, const Options *o, int ranks, const char *from);
// Takes the options of the file that --config names, if it does, those of the command line first. False with one line
// in `error`.
bool options_read_config(Options *o, Error *error);
// Says at the end of a refusal which of the options that it names the file of --config gives: its reader looks at the
// command line.
void config_name_source(const Options *o, Error *error);
// Takes the options of the --config file, which rank 0 reads for all: other hosts need not have it. Collective.
void take_config(Options *o, MPI_Comm comm);

// ---- param_groups.h -------------------------------------------------------------------------------------------------
// Marks what the three options name. False with one line in `error`: each glob must name parameters, and --freeze not
// all of them.
bool param_groups(const Options *o, Param *param, int params, Error *error);
// Blanks between globs go, so that checkpoints and ranks agree on one spelling.
void param_lists_trim(Options *o);

// ---- program.h ------------------------------------------------------------------------------------------------------
// The shape that resolved options describe.
ModelShape shape_of(const Options *o);
// The loss of pairs that resolved options describe.
PreferenceArgs preference_args(const Options *o);
// The options that describe a shape.
void options_of_shape(Options *o, const ModelShape *s);

// ---- sharding.h -----------------------------------------------------------------------------------------------------
// What backward recomputes of a block. Each level adds to the one before: GELU; both LayerNorms; the MLP's first matrix
// multiply; all the rest, so that only the stream entering the block is kept (Chen et al. 2016).
enum Recompute { RECOMPUTE_NONE, RECOMPUTE_GELU, RECOMPUTE_NORM, RECOMPUTE_MLP, RECOMPUTE_BLOCK, RECOMPUTE_LEVELS };
Dtype option_dtype(const Options *o, OptionId id);                // of one of the --*_dtype
// --recompute auto becomes a level. On a CPU, recomputing LayerNorms and GELUs takes no longer than reading their
// results from memory (dev/results/2026-11-22-recompute.md); no GPU has been measured.
void recompute_choose(Options *o, const Ops *ops);
// Reads --recompute, LEVEL[:COUNT],..., into `level`, one for each of the n_layer blocks from the first on. The last
// entry may omit its count and then covers all blocks that are left. Blocks that the counts do not reach keep
// everything, and so do all blocks while `auto` has not become a level. False with one line in `error`.
bool recompute_parse(const Options *o, Recompute *level, Error *error);
// Which transport the options mean, for so many ranks.
CommKind comm_kind(const Options *o, int world);
// The resolved options as numbers. first_backward: see FsdpConfig.
FsdpConfig sharding_config(const Options *o, int first_backward, CommKind comm);
// The strategy's name in PyTorch.
const char *strategy_name(const Options *o);
// "RxS". False: it has another form.
bool mesh_parse(const char *text, int *replicas, int *shards);

// ---- sm_margin.h ----------------------------------------------------------------------------------------------------
// Multiprocessors of a GPU that --sm_margin leaves to NCCL. One line in `error` where it has no more than that.
int sm_margin_for(const Options *o, const char *name, int major, int minor, int multiprocessors, Error *error);

// ---- resolve.h ------------------------------------------------------------------------------------------------------
// What a preset says, for options that have no value: a list of NAME=VALUE. Values are known to be good.
void preset_fill(Options *o, const char *list);
// A tuning on conversations has sequences as long as the longest, not too short for a sample; the preset's length is
// the most. It has TUNING_EPOCHS, or with whole weights TUNING_EPOCHS_WHOLE at a rate of 1e-5, and a step of about
// TUNING_CONVERSATIONS, in whole sequences: chosen by an experiment (docs/results.md), unless these were given. What a
// step has depends on no number of ranks: those without sequences compute empty ones (--fill_step). Every rank has the
// corpus, and decides the same.
enum { TUNING_EPOCHS = 3, TUNING_EPOCHS_WHOLE = 5, TUNING_CONVERSATIONS = 8, TUNING_STEPS_FEW = 20 };
void options_fit_corpus(Options *o, const Corpus *corpus, int world);
// "A:B", steps A to B with 1 <= A <= B, at most a million. False: it is none.
bool trace_steps_parse(const char *text, int64_t *first, int64_t *last);
// Refuses steps to trace that a run of `steps` steps does not have. False with one line in `error`.
bool trace_refuse_steps(const Options *o, int64_t steps, Error *error);
// Fills in what was not given and refuses what cannot work. vocab_size may still shrink to the vocabulary that the
// tokenizer reaches. False with one line in `error`.
bool options_resolve(Options *o, int world, int ranks_per_host, Error *error);

// ---- option_help.h --------------------------------------------------------------------------------------------------
// The commands --help and --version.
int options_answer(Call *call);
