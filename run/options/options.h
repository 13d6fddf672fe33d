// options.h: the public header of run/options/: options, from one table, and what they mean: a model's shape, its
// sharding, its groups of parameters.
#pragma once
#include "launch/launch.h"
#include "data/data.h"
#include "data/models/models.h"
#include "version.h"

// ---- what this program asks of the trainer --------------------------------------------------------------------------
// Only the trainer knows its model and can run it: main passes its table down, and every Options points to it.
struct RunView;                                  // run/report/report.h
struct Device;
struct DryWatch;
struct Options;
enum { TIMED_MICROBATCHES = 4 };
struct TrainerTable {
  const ParamTable *params;                      // the parameters of the model, from which its layout follows
  // Plans rank `rank` of `world` ranks, per_host consecutive ones on each host, which need not be running: without MPI,
  // data or memory. o: resolved. The plan lasts until plan_close.
  RunView *(*plan_open)(const Options *o, const Device *device, int rank, int world, int per_host, int threads);
  void (*plan_close)(RunView *run);
  // Runs a training step of a planned rank once more, dry, and watched. Returns how many microbatches it had, at most
  // TIMED_MICROBATCHES: the first overwrites sums, those of the last go back to all replicas, two between repeat.
  int64_t (*plan_step)(const RunView *run, DryWatch *watch);
  // Writes where a training step's buffers are, as a key of a JSON object (fsdp/memory_map.h).
  void (*memory_map)(const RunView *run, FILE *to);
};

// ---- option_table.h -------------------------------------------------------------------------------------------------
#include "option_table.h"

// ---- option_values.h ------------------------------------------------------------------------------------------------
// choices: a|b|...; words: those of an enum, one after the other, each ended by a zero.
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
  bool launched, first;                          // mpirun has started it; it is alone, or rank 0, which prints for all
  Options o;                                     // of argv
  Error error;                                   // what is wrong with the options
};
// Whether the run trains, or only evaluates or samples.
static inline bool run_trains(const Options *o) { return !o->eval_only && !o->sample_only && !o->show_chats; }
// The file in OUT that samples are written into; NULL: the run makes no samples.
const char *sample_file(const Options *o);
// Which of its choices an option has, as the table spells it.
const char *option_word(const Options *o, OptionId id);
// Gives every option its default, as if none had been given.
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
// whole line to type instead, and after it what this program would reject in that line.
void options_whole_line(int argc, char **argv, Error *error);

// ---- option_file.h --------------------------------------------------------------------------------------------------
// Writes OUT/options.txt. If the disk is full or fails, a warning says so. from: see options_write_head.
void options_save(const Options *asked, const Options *o, int ranks, const char *from);
// Takes the options of the file of --config, if there is one, that the command line has not given. False with one line
// in `error`.
bool options_read_config(Options *o, Error *error);
// Adds to an error which of the options that it names come from the file of --config, since they are not on the command
// line.
void config_name_source(const Options *o, Error *error);
// Takes the options of the --config file, which rank 0 reads for all: other hosts need not have it. All ranks call it.
void take_config(Options *o, MPI_Comm comm);

// ---- param_groups.h -------------------------------------------------------------------------------------------------
// Applies --freeze, --no_decay and --lr_scale to the parameters that their globs match. False with one line in `error`:
// each glob must match parameters, and --freeze not all of them.
bool param_groups(const Options *o, Param *param, int params, Error *error);
// Removes spaces between globs, so that checkpoints and ranks agree on one spelling.
void param_lists_trim(Options *o);

// ---- program.h ------------------------------------------------------------------------------------------------------
// The shape that resolved options describe.
ModelShape shape_of(const Options *o);
// The loss of pairs that resolved options describe.
PreferenceArgs preference_args(const Options *o);
// Sets the options that describe a shape.
void options_of_shape(Options *o, const ModelShape *s);

// ---- sharding.h -----------------------------------------------------------------------------------------------------
// What backward recomputes of a block. Each level adds to the level before: GELU; both LayerNorms; the MLP's first
// matrix multiply; all the rest, so that only the residual stream entering the block is kept (Chen et al. 2016).
enum Recompute { RECOMPUTE_NONE, RECOMPUTE_GELU, RECOMPUTE_NORM, RECOMPUTE_MLP, RECOMPUTE_BLOCK, RECOMPUTE_LEVELS };
Dtype option_dtype(const Options *o, OptionId id);                // of one of the --*_dtype
// What is auto and depends on the device: --recompute becomes a level (on a CPU, recomputing LayerNorms and GELUs takes
// no longer than reading their results: dev/results/2026-11-22-recompute.md), --logits_dtype a dtype.
void choose_for_device(Options *o, const Ops *ops);
// Reads --recompute, LEVEL[:COUNT],..., into `level`, one for each of the n_layer blocks from the first on. The last
// entry may omit its count and then covers all blocks that are left. Blocks that the counts do not reach keep
// everything, and so do all blocks while `auto` has not become a level. False with one line in `error`.
bool recompute_parse(const Options *o, Recompute *level, Error *error);
// Which transport the options mean, for so many ranks.
CommKind comm_kind(const Options *o, int world);
// The configuration of fsdp/ that the resolved options describe. first_backward: see FsdpConfig.
FsdpConfig sharding_config(const Options *o, int first_backward, CommKind comm);
// The strategy's name in PyTorch.
const char *strategy_name(const Options *o);
// Reads "RxS". False: the text has another form.
bool mesh_parse(const char *text, int *replicas, int *shards);

// ---- sm_margin.h ----------------------------------------------------------------------------------------------------
// The number of SMs of a GPU that --sm_margin reserves for NCCL. One line in `error` if the GPU has no more than that.
int sm_margin_for(const Options *o, const char *name, int major, int minor, int sms, Error *error);

// ---- resolve.h ------------------------------------------------------------------------------------------------------
// Gives options that have no value yet those of a preset, a list of NAME=VALUE. The values are known to be valid.
void preset_fill(Options *o, const char *list);
// Fine-tuning on conversations has sequences as long as the longest, not too short for a sample; the preset's length is
// the most. It has TUNING_EPOCHS, or in full fine-tuning TUNING_EPOCHS_WHOLE at a rate of 1e-5, and a step of about
// TUNING_CONVERSATIONS, in whole sequences: chosen by an experiment (docs/results.md), unless these were given. What a
// step has depends on no number of ranks: those without sequences compute empty ones (--fill_step). Every rank has the
// corpus, and decides the same.
enum { TUNING_EPOCHS = 3, TUNING_EPOCHS_WHOLE = 5, TUNING_CONVERSATIONS = 8, TUNING_STEPS_FEW = 20 };
void options_fit_corpus(Options *o, const Corpus *corpus, int world);
// "A:B", steps A to B with 1 <= A <= B, at most a million. False: it is none.
bool trace_steps_parse(const char *text, int64_t *first, int64_t *last);
// Rejects --trace_steps that a run of `steps` steps does not have. False with one line in `error`.
bool trace_reject_steps(const Options *o, int64_t steps, Error *error);
// Fills in options that were not given and rejects what cannot work. Later, vocab_size may still shrink to the
// vocabulary that the tokenizer reaches. False with one line in `error`.
bool options_resolve(Options *o, int world, int ranks_per_host, Error *error);

// ---- option_help.h --------------------------------------------------------------------------------------------------
// The commands --help and --version.
int options_answer(Call *call);
