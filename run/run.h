// run.h: the door of run/: options, and how a run starts, agrees with its ranks, reports, saves and plans.
//
// A command gets a Call; call_parse and call_join make options and a rank of it. RunView is what this room may know of
// the trainer that it serves. The last section is what it asks of the trainer, which has these functions.
#pragma once
#include "launch/launch.h"
#include "data/checkpoint/checkpoint.h"
#include <cjson/cJSON.h>

// ---- option_table.h -------------------------------------------------------------------------------------------------
#include "option_table.h"

// ---- options.h ------------------------------------------------------------------------------------------------------
// What the program was called with, and one of the commands that it may be (main's table).
struct Call {
  int argc;
  char **argv;
  bool launched, first;                          // by mpirun; alone or its first process, which answers for all
  Options o;                                     // of argv
  char error[2048];                              // what is wrong with them, or ""
};
enum CommandNeeds { NEEDS_NOTHING, NEEDS_OPTIONS, NEEDS_MPI };
// run: returns the exit code; -1: this was not asked for.
struct Command { const char *name; CommandNeeds needs; int (*run)(Call *call); };
// Whether the run trains, or only evaluates or samples.
static inline bool run_trains(const Options *o) { return !o->eval_only && !o->sample_only; }
// The file of OUT that texts go into at the end; NULL: none are made.
const char *sample_file(const Options *o);
const char *option_word(const Options *o, OptionId id);
// The same, given.
bool option_set(Options *o, int i, const char *value, char *error, size_t error_bytes);

// ---- version.h ------------------------------------------------------------------------------------------------------
#include "version.h"

// ---- option_file.h --------------------------------------------------------------------------------------------------
// Writes OUT/options.txt. If the disk is full or fails, a notice says so. from: see options_write_head.
void options_save(const Options *asked, const Options *o, int ranks, const char *from);

// ---- param_groups.h -------------------------------------------------------------------------------------------------
// Marks what the three options name. False with one line in `error`: each glob must name parameters, and --freeze not
// all of them.
bool param_groups(const Options *o, Param *param, int params, char *error, size_t error_bytes);

// ---- program.h ------------------------------------------------------------------------------------------------------
// Of a step's microbatches a dry run has at most this many. Later ones repeat the second and the third in turn, which
// begin in different gradient slots where a microbatch has an odd number of reductions.
enum { DRY_MICROBATCHES = 3 };
// A step that is timed has one more: between the first, which overwrites sums, and the last, whose sums go back to all
// replicas, lie two of those that repeat.
enum { TIMED_MICROBATCHES = DRY_MICROBATCHES + 1 };
// And of the batches of an evaluation, or the tokens of a sample, which all follow each other in one pass: the second
// finds what the one before has left gathered, and so do all later ones.
enum { DRY_BATCHES = 2 };
// The shape that resolved options describe.
ModelShape shape_of(const Options *o);
// The loss of pairs that resolved options describe. Choices are in the order of their enum.
PreferenceArgs preference_args(const Options *o);

// ---- sharding.h -----------------------------------------------------------------------------------------------------
// What backward recomputes of a block. Each level adds to the one before: GELU; both LayerNorms; the MLP's first matrix
// multiply; all the rest, so that only the stream entering the block is kept (Chen et al. 2016).
enum Recompute { RECOMPUTE_NONE, RECOMPUTE_GELU, RECOMPUTE_NORM, RECOMPUTE_MLP, RECOMPUTE_BLOCK, RECOMPUTE_LEVELS };
// Of one of the --*_dtype.
Dtype option_dtype(const Options *o, OptionId id);
// --recompute auto becomes a level. On a CPU, recomputing LayerNorms and GELUs takes no longer than reading their
// results from memory (dev/results/2026-11-22-recompute.md); no GPU has been measured.
void recompute_choose(Options *o, const Ops *ops);
// Reads --recompute, LEVEL[:COUNT],..., into `level`, one for each of the n_layer blocks from the first on. The last
// entry may omit its count and then covers all blocks that are left. Blocks that the counts do not reach keep
// everything, and so do all blocks while `auto` has not become a level. False with one line in `error`.
bool recompute_parse(const Options *o, Recompute *level, char *error, size_t error_bytes);
// Which transport the options mean, for so many ranks.
CommKind comm_kind(const Options *o, int world);
// The resolved options as numbers. A choice that is cast is in the order of the enum that it becomes. first_backward:
// see FsdpConfig.
FsdpConfig sharding_config(const Options *o, int first_backward, CommKind comm);

// ---- launch.h -------------------------------------------------------------------------------------------------------
// What a signal asks for; the highest value over all ranks counts.
enum Stop { STOP_NOT, STOP_END, STOP_SAVE };     // STOP_SAVE: with a checkpoint
extern volatile sig_atomic_t stop_asked;         // enum Stop; the ranks agree on it in the step's small all-gather
extern bool under_mpirun;                        // mpirun kills its ranks a second after SIGTERM: no time to save
// The two commands by which mpirun starts this program for --rdzv.
static inline int launch_hidden(Call *call) { return rdzv_hidden(call->argc, call->argv); }
// The command --rdzv: this process is to meet others, and what follows is the whole run of ranks in their places. The
// file of --config is read for what it says about this; whether it is right is found out later.
int launch_rendezvous(Call *call);
// From here on SIGINT and SIGTERM ask for an end between steps, and set stop_asked.
void catch_stop_signals();

// ---- trace.h --------------------------------------------------------------------------------------------------------
// What an event is. RANGE: a part of a step; TOLD: between steps. SUMMED and READ are no spans but ends of flows: the
// last round of a reduction is added up, an optimizer reads it.
enum TraceKind : uint8_t {
  TRACE_OP, TRACE_RANGE, TRACE_TOLD, TRACE_GATHER, TRACE_REDUCTION, TRACE_RETURN, TRACE_FETCH, TRACE_WAIT, TRACE_JOIN,
  TRACE_EXCHANGE, TRACE_BARRIER, TRACE_MOVE, TRACE_SUMMED, TRACE_READ
};
enum TraceTold { TOLD_EVALUATION, TOLD_SAVE, TOLD_SAVING };
enum TraceWait { WAIT_ROUND, WAIT_ROOM, WAIT_SLOT, TRACE_WAITS };
// stage: STAGE_NONE, 0 outside the blocks, 1 + l block l. number: of the kind: op, range, wait, slot; of SUMMED:
// whether the step has no further reduction of the stage. part: of an op, what it belongs to. round: of a reduction its
// first one, alike on all ranks.
enum TracePart { PART_OF_MODEL, PART_OF_GATHER, PART_OF_SUMS };  // copies of gathers; adding up gradients
struct TraceEvent {
  int64_t begin_ns, end_ns;
  uint64_t round;
  int32_t step;
  int16_t stage;
  TraceKind kind;
  uint8_t number : 6, part : 2;
};
// The clock of another rank: how far it is ahead of rank 0's, at most `within` wrong, when rank 0's said at_ns.
struct TraceClock { double ahead_ns, within_ns, at_ns; };
struct Trace;
struct TraceTable { OpWatch watch; Trace *trace; TracePart part; };
struct TraceOpen { int64_t begin_ns, inner_ns; };                // a span that has begun: what spans inside it took
enum { TRACE_DEPTH = 16 };
struct Trace {
  char path[1024];                               // "": nothing is traced
  int64_t first, last;                           // steps, counted from the first of this process, 1
  int64_t from;                                  // the step before this process's first
  bool done;
  // ---- memory, of one block
  char *memory;
  TraceEvent *event;
  double *exposed_ns;                            // [EXPOSED_PARTS (stages) + TRACE_COMMONS]
  TraceClock *clock[2];                          // [world], on rank 0
  int *reduced;                                  // [stages] reductions of this step
  int64_t calls, room, count, dropped;           // calls: ops of a step, by a dry run
  int stages, world;
  // ---- while a step is traced
  Fsdp *f;
  const Ops *ops;                                // the real ones
  TraceTable table[3];                           // by TracePart
  int32_t step;
  int stage;                                     // that a gather is of; STAGE_NONE: none
  TraceOpen open[TRACE_DEPTH];
  int depth;
  int64_t range_begin_ns[TRACE_DEPTH];
  uint8_t range[TRACE_DEPTH];
  int ranges, read_stage;
  struct { int64_t since_ns; int times; } ask[TRACE_WAITS];
  int64_t op_begin_ns;                           // of the last op
  int64_t reduction_ns, gather_ns[64], moved_ns; // when what is in flight began; by slot
  int steps;
  double step_ns;                                // of all traced steps
  // ---- on a GPU
  bool on_device, side[3];                       // side: ops of this part run on a stream of their own
  const Ctx *model;                              // of the model's stream
  int64_t *stamp;                                // [stamps_most + 1], of one step; the last one measures the clock
  int64_t stamps, stamps_most, step_count;       // given out in this step; events before this step
  void *graph;                                   // of a traced step; NULL before
  TraceEvent *captured;                          // [captured_count] what a replay does
  int64_t captured_count, captured_at, captured_from, captured_to;     // events before it; stamps before and after it
  TraceClock device_clock[2];                    // the device's, against this rank's, before and after the step
  int64_t host_begin_ns, host_end_ns;            // of the step
  double device_within_ns;
};
extern Trace *tracing;                           // the one whose tables are in use
// Declares the memory of a trace of steps `steps` ("A:B") of this process into file `path`; "": none. most: steps that
// the run has at most, 0: not known. on_device: a GPU computes, with streams of its own.
void trace_declare(Trace *x, const char *path, const char *steps, int64_t most, MemoryPlan *plan, int64_t calls,
                   int stages, int world, bool on_device);
// Something that the trainer has done since begin_ns, between the first traced step and the last. x may be NULL.
void trace_told(Trace *x, TraceTold what, int64_t begin_ns);
// Around the capture of a traced step: its events are kept for its replays.
void trace_capture_begin(Trace *x);
void trace_capture_end(Trace *x);
// The graph of a traced step was launched: its events are noted again.
void trace_replayed(Trace *x);
// Whether the step after `step`, which counts from the start of training, is traced.
bool trace_wants(const Trace *x, int64_t step);
// Replaces the op tables of c and f, and has f's notes. Collective before the first traced step.
void trace_step_begin(Trace *x, Ctx *c, Fsdp *f, int64_t step);
void trace_step_end(Trace *x, Ctx *c, Fsdp *f);

// ---- view.h ---------------------------------------------------------------------------------------------------------
// Where a rank computes: the ops, those of its host (for an offloaded optimizer), which of the host's GPUs and how many
// ranks are on it, its dense peak in the compute dtype (0: unknown), a description for people, and the number of GPUs
// over all ranks. sm_margin: of so many multiprocessors of the GPU, those left to NCCL (--sm_margin). comms_of_one: for
// tests, see FsdpConfig.
struct Device {
  const Ops *ops, *host_ops;
  int index, sharing;
  double peak_flops;
  char words[256];
  int gpus;
  bool comms_of_one;
  int multiprocessors, sm_margin;
};
// Vp: the vocabulary in memory. FLOPs of a training step per token, as model_flops_per_token counts them.
struct ModelFigures {
  int L, H;
  int64_t C, T, P, V, Vp, parameters;
  double flops_per_token;
};
// rewards: of pairs, as in StepState. skipped: not finite. untrained: targets that a mask left out; where all are, the
// step changed nothing either.
struct StepResult { double loss, grad_norm, lr; bool skipped; Stop stop; int64_t untrained; double rewards[3]; };
// Of pairs `tokens` counts them, and accuracy is the share that is told apart.
struct EvalResult { double loss, accuracy; int64_t tokens; double ms; };
// What --eval makes of a file; name NULL: there is no such number.
struct EvalNumber { const char *name; double x; };
enum { EVAL_NUMBERS = 3 };
struct RunView {
  const Options *opt;                            // resolved
  ModelFigures model;
  Dtype dtype;                                   // of activations
  Ctx *ctx;
  Fsdp *fsdp;
  Store *store;
  const MemoryPlan *plan;
  const Placement *placement;
  const Packing *packing;                        // [SPLIT_COUNT]
  const Corpus *corpus;                          // NULL in plans
  const Device *device;
  const Cores *cores;                            // NULL in plans and in tests that take none
  bool crowded;                                  // ranks or threads outnumber the cores that this rank may use
  int64_t *step, steps_total, steps_per_epoch;
  float *loss_scale;                             // after the last step
  const Traffic *step_traffic;                   // of the last step
  StepState *state, *state_on_device;            // what changes from step to step
  Trace *trace;                                  // of --trace
  const cJSON *published;                        // what came with the weights (interchange.h), rank 0's; NULL: nothing
  const char *name;                              // of the model, for people; NULL: its preset's
  size_t device_free_bytes;                      // before anything but CUDA's context was allocated; 0 on a CPU
};
// Device memory taken since the plan was made: the plan, and what NCCL and CUDA took for themselves. It is this rank's
// only if no other rank uses the GPU. 0 on a CPU.
size_t run_device_bytes(const RunView *run);

// ---- agree.h --------------------------------------------------------------------------------------------------------
// Decides the device of all ranks: the one asked for, or CUDA where every rank has a usable GPU. Collective.
Device agree_on_device(Options *o, MPI_Comm comm, MPI_Comm node);
// Refuses a plan that this host or its devices cannot hold, before anything is allocated: first from the shapes alone,
// and again after libraries have been opened and have allocated what they need. It compares with what is free at that
// time, whoever else uses the device. Collective.
void agree_on_memory(const RunView *run);
// Ranks per host if all hosts have the same number, else 0. Collective.
int ranks_per_host(MPI_Comm comm);

// ---- report_html.h --------------------------------------------------------------------------------------------------
enum { REPORT_POINTS = 512, REPORT_UNITS = 12, REPORT_EVALS = 512, REPORT_RUNS_MOST = 16, REPORT_PATH_BYTES = 1024,
       REPORT_TEXT_MOST = 1 << 16, REPORT_UNITS_MOST = 2048 };
enum ReportSeries { REPORT_LOSS, REPORT_LR, REPORT_NORM, REPORT_RATE, REPORT_SERIES };
enum { REPORT_UNIT_SERIES = 2 };                 // of each unit, with --log_layers
// Of some consecutive steps. count 0: no finite value.
struct ReportPoint { int64_t step; int count; double sum, least, most; };
struct ReportUnit { char name[64]; ReportPoint point[REPORT_UNIT_SERIES][REPORT_POINTS]; };
struct ReportSteps { int64_t *step; int count; };   // ascending, malloc'ed
struct ReportEval { int64_t step; double loss, perplexity, accuracy; char split[16]; };
struct ReportRun {
  char directory[REPORT_PATH_BYTES];
  int64_t offset;                                // of metrics.jsonl: read so far
  ReportPoint point[REPORT_SERIES][REPORT_POINTS];
  ReportUnit *unit;                              // malloc'ed
  int units;
  int points;                                    // of every series
  int64_t stride, first, step;                   // steps of a point; the first one's; the last that was made
  ReportEval eval[REPORT_EVALS];
  int evals;
  ReportSteps skipped, not_finite;               // steps without an update; of those, the ones a cause was named for
  char *run, *end, *trace;                       // the last record of a kind, malloc'ed; NULL: none
};
// Writing takes at most a thousandth of the time.
struct ReportLive { bool on; char path[REPORT_PATH_BYTES]; double next_ms; ReportRun run; };

// ---- start_report.h -------------------------------------------------------------------------------------------------
// The head of every run, on rank 0.
void print_start(const RunView *run);
// --verbose: every figure, on rank 0.
void print_details(const RunView *run);
// Notices about this start, on rank 0.
void print_start_notices(const RunView *run);
// What earlier runs left in OUT is moved aside and never removed automatically. Prints its size and how to remove it.
void print_old_runs(const RunView *run, const char *from);

// ---- tensorboard.h --------------------------------------------------------------------------------------------------
struct Tensorboard {
  FILE *file;                                    // NULL: none is written
  off_t whole_bytes;                             // of whole records
  char path[PATH_MAX];
};

// ---- report.h -------------------------------------------------------------------------------------------------------
struct Log {
  FILE *metrics;                                 // rank 0 only, else NULL
  off_t whole_bytes;                             // of metrics.jsonl that hold whole lines
  bool lost;                                     // metrics.jsonl could not be written to its end
  Tensorboard board;                             // no file without --tensorboard
  ReportLive *page;                              // of report.html; NULL: none is written
  const char *page_said;                         // what the list of files says of it at the end; NULL: nothing
  int64_t steps, skipped, not_finite;            // of this run: made; without an update; of those, a cause was named
  bool plans_known;
  CoreWatch cores;
  bool cores_told;                               // the notice is printed, or not wanted: own threads exceed cores
  double start_ms, step_ms;                      // step_ms: smoothed
  int64_t every;
};
// Whether the trace can be made and its steps come: `done` of the run's were taken before. One line in `error`.
void report_check_trace(const RunView *run, int64_t done, char *error, size_t error_bytes);
// The command --report RUN1,RUN2,...: one page for all. Starts nothing.
int report_compare(Call *call);
// Opens a file of lines: empty, or (append) to add to. A last line that a killed run left unfinished is removed. Writes
// go to the current end: while a run trains, another may evaluate its checkpoints into the same file.
FILE *log_file(const char *path, bool append);
// A record of metrics.jsonl and, where due, the progress line.
void log_step(Log *log, const RunView *run, const StepResult *r, double ms);
void log_eval(Log *log, const RunView *run, const char *name, const Split *split, const EvalResult *e);
// The numbers of a file of --eval.
void log_eval_file(Log *log, const RunView *run, const char *path, const char *task, bool llmc, int64_t texts,
                   int64_t tokens, const EvalNumber number[EVAL_NUMBERS], double seconds);
// Ends a trace, if there is one, and reports what communication is exposed. Collective.
void log_trace(Log *log, const RunView *run);
void log_close(Log *log, const RunView *run, const char *reason);

// ---- saver.h --------------------------------------------------------------------------------------------------------
// What outlives a save, and the save in flight. Rank 0 has all of it; the others what they need to take part.
struct Saver {
  const RunView *run;
  char directory[MAP_PATH_BYTES], temporary[MAP_PATH_BYTES], name[32];
  bool continues;                                // this run was resumed from OUT/ckpt: checkpoints there are its own
  bool opened;                                   // the directory is ours
  bool best;                                     // this save is the best so far
  bool pending;                                  // a save has begun and its end is not reported yet
  bool whole;                                    // the last save made a whole checkpoint, or there was none
  bool pruned;                                   // rank 0: older checkpoints were removed
  int64_t serial, in_flight_step, saved_step;    // saved_step: of the newest whole one, -1: none
  double best_loss, valid_loss;                  // lowest validation loss so far; the last one. INFINITY: none yet
  double best_before;                            // what best_loss was before the last one that was lower
  int64_t evaluated_step;                        // of the last one
  double start_ms, pause_ms;
  char *head, *tokenizer, *header[CHECKPOINT_FILES];
  size_t head_bytes, tokenizer_bytes;
  uint64_t tokenizer_hash;
};
// When and where a run saves.
void saver_init(Saver *s, const RunView *run);
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
// The last line of a run that a signal has ended, on rank 0.
void saver_print_stop(const Saver *s);
// Records a validation loss; returns whether it is the lowest so far. With --keep_best only losses whose checkpoint was
// saved count, so that a failed save does not prevent the next. Collective.
bool saver_see(Saver *s, Log *log, double loss);
// Writes the weights alone.
bool save_model(const RunView *run);
// Rank 0: writes the files beside the weights in a Hugging Face directory.
static inline Dtype export_dtype(const Options *o) { return o->export_dtype == OPT_export_dtype_bf16 ? BF16 : F32; }
// Writes DIR for transformers: AutoModelForCausalLM and AutoTokenizer open it. Every rank writes its own part of the
// weights, transposed as Conv1D stores them. Collective. Every rank returns the same.
bool export_hf(const RunView *run, const char *directory);
// OUT/model.gguf for llama.cpp, or OUT/adapter.gguf, which rank 0 writes from a file of fp32 weights that all ranks
// write, and removes.
// Collective. Every rank returns the same.
bool export_gguf(const RunView *run);

// ---- start.h --------------------------------------------------------------------------------------------------------
struct Start {
  int32_t kind;                                  // StartKind
  bool resume;                                   // with optimizer and step; else only weights
  bool here;                                     // the checkpoint lies in this run's OUT/ckpt
  char path[MAP_PATH_BYTES - 64];                // of the checkpoint's directory, or of the weights
  char tokenizer[MAP_PATH_BYTES];                // that comes with it, as rank 0 sees it; "": none
  char notices[2048];                            // lines, each ended by '\n'
  char chat_template[16], chat_why[640];         // of the model's directory; "", and why none is known
  char *chat_text;                               // its text, rank 0's
  ModelShape shape;
  int64_t text_bytes;                            // of trainer.json
  uint32_t text_checksum;
  char *text;                                    // every rank has them
  cJSON *json;
  Import import;                                 // rank 0's, open
  cJSON *published;                              // what came with it, rank 0's; NULL: nothing
  char stored[8];                                // dtype of all its matrices; "": they differ
  bool quantized;                                // some are in blocks
  uint8_t types[BASE_MATRICES_MOST];             // of each matrix, as in Options
  // With --lora_from: what its configuration says.
  Lora lora;
  char lora_targets[OPTION_TEXT_BYTES];
  int64_t row_from, row_end;                     // of --add_tokens: the rows that are its; row_end 0: none
  bool on_base;                                  // a checkpoint of adapters
  Start *base;                                   // what they are for
};
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
void start_load(Start *s, const RunView *run, Saver *saver);
void start_free(Start *s);
// Loads the corpus on rank 0 and passes it to all ranks. The vocabulary of a fresh model may shrink to what the
// tokenizer reached. Collective.
void load_corpus(Corpus *corpus, void **image, Options *o, const Start *start, MPI_Comm comm, int threads);
// How the corpus is dealt to microbatches.
SamplerOptions sampler_options(const Options *o);
// Writes OUT/tokenizer.json and the first record of OUT/metrics.jsonl. Collective; ends all ranks with one line if they
// cannot be written.
void open_files(Log *log, const RunView *run, const Start *start);

// ---- call.h ---------------------------------------------------------------------------------------------------------
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
int encode_main(Call *call);

// ---- flight_report.h ------------------------------------------------------------------------------------------------
// The command --flight.
int flight_answer(Call *call);

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
  const RunView *run;
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
void not_finite_log(Log *log, const RunView *run, const NotFinite *x, bool left_out);
// Goes back to the state before the step, saves a checkpoint of it, and writes OUT/not_finite.json. Collective.
void not_finite_dump(const NotFiniteStep *step, Log *log, Saver *saver, const NotFinite *x);

// ---- option_help.h --------------------------------------------------------------------------------------------------
// The commands --help and --version.
int options_answer(Call *call);

// ---- plan_search.h --------------------------------------------------------------------------------------------------
// The command --plan. Of several processes that mpirun started only the first one speaks, and plans for as many unless
// --world says otherwise.
int plan_main(Call *call);

// ---- memory_map.h ---------------------------------------------------------------------------------------------------
// Writes the member: of a training step whose record is r, and whose buffers p has with their lifetimes and the places
// that pl gave them.
void memory_map_write(FILE *f, const Fsdp *fsdp, const MemoryPlan *plan, const Placement *pl, const Pass *p,
                      const Record *r);

// ---- what this room asks of the trainer -----------------------------------------------------------------------------
// It alone knows its model's parameters and can run it (trainer/open.h).
// The parameters of a model of that shape, malloc'ed.
Param *params_of_shape(const ModelShape *shape, int *count);
// Plans rank `rank` of `world`, per_host consecutive ones a host, none of which need be there: without MPI, data or
// memory. o: resolved. Until plan_close.
RunView *plan_open(const Options *o, const Device *device, int rank, int world, int per_host, int threads);
void plan_close(RunView *run);
// Runs a training step of a planned rank once more over `table`, its messages over `comm`, into r. Returns how many
// microbatches it had: at most TIMED_MICROBATCHES.
int64_t plan_step(const RunView *run, Record *r, const Ops *table, const Comm *comm);
// Writes where a training step's buffers lie, as a member of a JSON object (run/memory_map.h).
void memory_map(const RunView *run, FILE *to);
