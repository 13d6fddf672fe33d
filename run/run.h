// run.h: the door of run/: how a run starts, agrees with its ranks, saves and ends.
//
// A command gets a Call; call_parse and call_join make options and a rank of it.
#pragma once
#include "run/report/report.h"

// ---- launch.h -------------------------------------------------------------------------------------------------------
extern volatile sig_atomic_t stop_asked;         // enum Stop; the ranks agree on it in the step's small all-gather
extern bool under_mpirun;                        // mpirun kills its ranks a second after SIGTERM: no time to save
// The two commands by which mpirun starts this program for --rdzv.
static inline int launch_hidden(Call *call) { return rdzv_hidden(call->argc, call->argv); }
// The command --rdzv: this process is to meet others, and what follows is the whole run of ranks in their places. The
// file of --config is read for what it says about this; whether it is right is found out later.
int launch_rendezvous(Call *call);
// From here on signals ask for an end between steps, or batches of an evaluation. trains: there is something to save.
void catch_stop_signals(bool trains);

// ---- agree.h --------------------------------------------------------------------------------------------------------
// Decides the device of all ranks: the one asked for, or CUDA where every rank has a usable GPU. Collective.
Device agree_on_device(Options *o, MPI_Comm comm, MPI_Comm node);
// Refuses a plan that this host or its devices cannot hold, before anything is allocated: first from the shapes alone,
// and again after libraries have been opened and have allocated what they need. It compares with what is free at that
// time, whoever else uses the device. Collective.
void agree_on_memory(const RunView *run);
// Ranks per host if all hosts have the same number, else 0. Collective.
int ranks_per_host(MPI_Comm comm);
// Index of the table asked for, -1 for auto. One line in `error` where a CPU whose best table is `best` lacks it.
int cpu_table_wanted(const Options *o, int best, char *error, size_t bytes);
// What --comm auto is on GPUs; crowded: ranks share one. --reduce native is NCCL's sum, also of one rank.
Choice_comm comm_of_gpus(const Options *o, int world, bool crowded);
// Refuses --fp8 on a GPU without it.
void check_fp8(const Options *o, const DeviceInfo *d, char *error, size_t bytes);
// Refuses options of one kind of device on the other.
void check_device_options(const Options *o, const char *why, char *error, size_t bytes);
// On a CPU `high` computes an fp32 matrix multiply from bf16 ones, which only tiles do fast enough (gemm_split.h).
// Whether a run on a CPU can have it, if it is asked for; if not, why.
bool cpu_precision_fits(const Options *o, const Ops *ops, char *why, size_t bytes);

// ---- saver.h --------------------------------------------------------------------------------------------------------
// What outlives a save, and the save in flight. Rank 0 has all of it; the others what they need to take part.
struct Saver {
  RunView *run;
  char directory[MAP_PATH_BYTES], temporary[MAP_PATH_BYTES], name[32], whole_path[MAP_PATH_BYTES];   // of saved_step
  bool continues;                                // this run was resumed from OUT/ckpt: checkpoints there are its own
  bool opened;                                   // the directory is ours
  bool best;                                     // this save is the best so far, as far as is known
  bool pending;                                  // a save has begun and its end is not reported yet
  bool whole;                                    // the last save made a whole checkpoint, or there was none
  bool pruned;                                   // rank 0: older checkpoints were removed
  int64_t serial, in_flight_step;
  int64_t saved_step, evaluated_step;            // of the newest whole one, and of the last validation; -1: none
  double best_loss, valid_loss;                  // lowest validation loss so far; the last one. INFINITY: none yet
  double best_before;                            // what best_loss was before the last one that was lower
  CheckpointQuality note;                        // of a save that had begun before, until it is written there
  double start_ms, pause_ms;
  char *head, *tokenizer, *header[CHECKPOINT_FILES];
  size_t head_bytes, tokenizer_bytes;
  uint64_t tokenizer_hash;
};
// When and where a run saves.
void saver_init(Saver *s, RunView *run);
// Prints what a checkpoint will be: the line `saves` of the start report. Collective.
void saver_print_plan(Saver *s);
// Reports a save in the background that has ended. Called after every step.
void saver_poll(Saver *s, Log *log);
// Waits for the save in flight, if there is one. Returns whether the last one made a whole checkpoint.
bool saver_finish(Saver *s, Log *log);
// Ends the save in flight without a checkpoint: there is no time to finish it.
void saver_give_up(Saver *s);
// Saves a checkpoint of the state after the last step: at once, or in the background. Waits for a save that is still in
// flight. A failure is reported, and training continues. Collective.
bool saver_save(Saver *s, Log *log, bool background, bool best);
// The same at once, unless the newest checkpoint is of this step already.
bool saver_save_now(Saver *s, Log *log);
// The last line of a run that a signal has ended, on rank 0; whether the last step has a checkpoint, or one in flight.
void saver_print_stop(const Saver *s);
bool saver_has(const Saver *s);
// Records the validation loss of the state after the last step, also in its checkpoint once that is whole. Returns
// whether it is the lowest so far; with --keep_best, of those whose checkpoint was saved. Collective.
bool saver_see(Saver *s, Log *log, double loss);
// Writes the weights alone.
bool save_model(RunView *run);
// The dtype of exported weights.
static inline Dtype export_dtype(const Options *o) { return o->export_dtype == OPT_export_dtype_bf16 ? BF16 : F32; }
// Writes DIR for transformers: AutoModelForCausalLM and AutoTokenizer open it. Every rank writes its own part of the
// weights, transposed as Conv1D stores them. Collective. Every rank returns the same.
bool export_hf(RunView *run, const char *directory);
// OUT/model.gguf for llama.cpp, or OUT/adapter.gguf, which rank 0 writes from a file of fp32 weights that all ranks
// write, and removes.
// Collective. Every rank returns the same.
bool export_gguf(RunView *run);

// ---- start.h --------------------------------------------------------------------------------------------------------
enum StartKind { START_FRESH, START_CHECKPOINT, START_IMPORT };
struct Start {
  int32_t kind;                                  // StartKind
  bool resume;                                   // with optimizer and step; else only weights
  bool here;                                     // the checkpoint lies in this run's OUT/ckpt
  char path[MAP_PATH_BYTES - 64];                // of the checkpoint's directory, or of the weights
  char tokenizer[MAP_PATH_BYTES];                // that comes with it, as rank 0 sees it; "": none
  char notices[2048];                            // lines, each ended by '\n'
  char chat_template[OPTION_TEXT_BYTES], chat_why[640];            // what --chat_template becomes; "": none, and why
  char chat_before[32], *chat;                   // an earlier version's template; what renders chats, rank 0's
  ModelShape shape;
  int64_t text_bytes;                            // of trainer.json
  uint32_t text_checksum;
  char *text;                                    // every rank has them
  cJSON *json;
  Import import;                                 // rank 0's, open
  cJSON *published;                              // what came with it, rank 0's; NULL: nothing
  char stored[8];                                // dtype of all its matrices; "": they differ
  bool quantized;                                // some are in blocks
  uint8_t types[BASE_MATRICES_MAX];             // of each matrix, as in Options
  // With --lora_from: what its configuration says.
  Lora lora;
  char lora_targets[OPTION_TEXT_BYTES];
  int64_t row_from, row_end;                     // of --add_tokens: the rows that are its; row_end 0: none
  bool on_base;                                  // a checkpoint of adapters
  Start *base;                                   // what they are for
};
ChatOptions chat_options(const Options *o, const char *words, const char *why);  // words: Start.chat; or why not
// Whether --data has conversations that are packed whole, so that a sequence holds several. Files are looked into once.
bool data_is_packed_whole(const Options *o);
// What came with the weights, by their directory or by the checkpoint of a run on them. NULL: nothing, or not rank 0.
const cJSON *start_published(const Start *s);
// What the model is called at the start: weights of another program by their family and where they came from, also when
// a run on them is resumed. NULL: by the preset.
const char *start_model_name(const Start *s, const Options *o);
// A resumed run must continue with the tokens it began with. Every rank returns the same.
bool start_check(const Start *s, const Options *o, const Corpus *corpus, char *error, size_t error_bytes);
// The steps that the run has done before it starts.
int64_t start_step(const Start *s, const Options *o);
// Loads the weights, and with --resume all else, into the sharded state. Collective; ends all ranks with one line when
// they cannot be read.
void start_load(Start *s, RunView *run, Saver *saver);
// Ends all ranks with one line where a weight that was loaded is not finite: nothing that follows would say so of text,
// numbers or files. Closes the files of other programs' weights. Collective.
void start_check_finite(Start *s, RunView *run);
void start_free(Start *s);
// Loads the corpus on rank 0 and passes it to all ranks. The vocabulary of a fresh model may shrink to what the
// tokenizer reached. Collective.
void load_corpus(Corpus *corpus, Options *o, const Start *start, MPI_Comm comm, int threads);
// How the corpus is dealt to microbatches.
SamplerOptions sampler_options(const Options *o);
// Writes OUT/tokenizer.json and the first record of OUT/metrics.jsonl. Collective; ends all ranks with one line if they
// cannot be written.
void open_files(Log *log, const RunView *run, const Start *start);
// Prints the notices collected since the last call.
void start_print_notices(Start *s);
// Rank 0: finds what --resume or --init_from names. False and one line in `error` when it cannot be had.
bool start_find(Start *s, const Options *o, char *error, size_t error_bytes);
// Completes the options from what the run starts from. The same on every rank. False and one line in `error`.
bool start_options(Start *s, Options *o, char *error, size_t error_bytes);

// ---- call.h ---------------------------------------------------------------------------------------------------------
// Reads the command line into call->o, or call->error.
void call_parse(Call *call);
// This process becomes a rank.
void call_join(Call *call);
// Options of all ranks, complete; `asked` as they were asked for. Collective.
void train_options(Call *call, Options *asked, Start *start);
// --preflight, or its short form at the start of a run. Collective.
int preflight(const Options *o, bool at_start);
// The command --preflight.
int preflight_main(Call *call);
// ---- encode_main.h --------------------------------------------------------------------------------------------------
// The command --encode.
int encode_main(Call *call);

// ---- not_finite.h ---------------------------------------------------------------------------------------------------
// The same on all ranks. rank: that computed it; of a parameter or a sum, that holds the element. microbatch: of the
// step; of a parameter, the first one whose loss is not finite.
struct NotFinite {
  int32_t kind, microbatch, rank, stage, param;  // param -1: none
  bool parameter;                                // as it was before the step
  char what[192], op[40], place[48], host[64];
  int64_t element, numel, count;
  float value;
};
// The step, and how to run it again: the trainer's. losses: [M]; inputs, targets: [A][B][T], as the step has left them
// on the host. scratch: 4 bytes of the device that no pass touches. begin, microbatch: run these parts of the step.
struct NotFiniteStep {
  RunView *run;
  StepState before;                              // that it started from
  const double *losses;
  const int32_t *inputs, *targets;
  float *scratch;
  void (*begin)(void *trainer);
  void (*microbatch)(void *trainer, int a);
  void *trainer;
};
// Looks for what was not finite in the step. Weights, moments and what the next step starts from stay as they are.
// Collective.
NotFinite not_finite_find(const NotFiniteStep *step);
// One line: "out of matmul_forward with h.1.mlp.c_fc.weight, forward of block 1, microbatch 3, rank 1 on host: ...".
void not_finite_text(const NotFinite *x, char *to, size_t bytes);
// A record of metrics.jsonl; counts.
void not_finite_log(Log *log, RunView *run, const NotFinite *x, bool left_out);
// Goes back to the state before the step, saves a checkpoint of it, and writes OUT/not_finite.json. Collective.
void not_finite_dump(const NotFiniteStep *step, Log *log, Saver *saver, const NotFinite *x);
