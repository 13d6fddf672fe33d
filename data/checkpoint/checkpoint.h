// checkpoint.h: the public header of data/checkpoint/: checkpoints.
//
// A Store writes shards to files and reads them, at once or in the background while training continues; a checkpoint is
// a directory of such files, with everything else that a resumed run needs (Saved).
#pragma once
#include "data/data.h"
#include "data/models/models.h"

// ---- store.h --------------------------------------------------------------------------------------------------------
enum { STORE_ERROR_BYTES = 508 };
struct StoreRecord { int32_t failed; char error[STORE_ERROR_BYTES]; };
// Keeps the first error; false.
__attribute__((format(printf, 2, 3))) bool store_fail(StoreRecord *r, const char *fmt, ...);
// Bytes that this rank writes or reads.
int64_t store_own_bytes(const Fsdp *f, const TensorMap *m, unsigned states);
// Declares what a store takes; background: a snapshot too; merges: adapters, whole. Opens it, when that is there
// (all ranks call it); closes it, opened or not.
struct Store;
Store *store_plan(Fsdp *f, MemoryPlan *plan, bool background, bool merges);
void store_open(Store *s);
void store_close(Store *s);
// What rank 0 does, perhaps in a thread, when all ranks have finished writing: gives the files their names, or removes
// them. map: of the save. checksums: one CRC-32C per block, the files' blocks one after the other.
struct StoreCommit {
  bool (*commit)(void *to, const TensorMap *map, const uint32_t *checksums, Error *error);
  void (*discard)(void *to);
  void *to;
};
struct StoreRequest {
  unsigned states;                               // bit s: state s (ShardState) is written
  bool background;                               // from a snapshot; else store_poll writes straight from the shards
  bool checksums;
  const char *header[MAP_MAX_FILES];             // rank 0: first bytes of each file, up to data_at
  StoreCommit end;
  const ModelShape *merge = NULL;                // with what its adapters change, in what they are for; NULL: as it is
};
// Starts writing the states of `map` (taken over) to its files. All ranks call it. Returns false on every rank, with
// the reason in store_result, when the files cannot be made; else the save is in flight until store_poll says.
bool store_save_begin(Store *s, TensorMap *map, StoreRequest request);
// How the last save went, on every rank. One that fails before it starts is the caller's to note there.
StoreRecord *store_result(Store *s);
double store_ended_ms(const Store *s);           // when that was known
// Advances the save in flight without waiting. Returns true once there is none. Every rank must keep calling it; it may
// be called at any time from the main thread. to: a Store, of which a save may be in flight.
bool store_poll(Store *s);
void store_background(void *to);
// Waits for the save in flight. progress: NULL, or called now and then.
void store_wait(Store *s, void (*progress)(void *to), void *to);
// Bytes of this rank. False: no save is in flight.
bool store_progress(const Store *s, int64_t *done, int64_t *total);
// The save in flight is to end without its files.
void store_cancel(Store *s);
// Bytes of all ranks that are read so far, on rank 0; NULL: not asked for.
typedef void (*LoadProgress)(int64_t done, int64_t total);
// Loads the weights that rank 0 has mapped (or `error`, which ends all ranks), and frees the map. Rows after those
// that a file has of a matrix become their mean. Afterwards call fsdp_publish and fsdp_step_end. All ranks call it;
// what cannot be read ends all ranks.
void store_load_weights(Store *s, TensorMap *map, Error *error, LoadProgress progress);

// ---- saved.h --------------------------------------------------------------------------------------------------------
enum { CHECKPOINT_VERSION = 1, CHECKPOINT_MODEL = 0, CHECKPOINT_OPTIM = 1, CHECKPOINT_FILES = 2 };
enum : unsigned { STATES_WEIGHTS = 1, STATES_ALL = (1 << MAP_STATES) - 1 };
enum { TRAINER_JSON_MOST_BYTES = 1 << 28 };
// Which parameters a checkpoint has: all; the base without adapters; or only adapters (param_trains_beside).
enum SavedPart { SAVED_ALL, SAVED_BASE, SAVED_ADAPTERS };
// The parts of a run that a checkpoint saves, and that loading fills in. The caller owns all of them.
struct Saved {
  Fsdp *fsdp;
  Store *store;
  Ctx *ctx;
  const Corpus *corpus;
  int heads;                                     // GPT-2: number of heads, which no tensor's shape gives; others: 0
  int64_t *step, steps_total, steps_per_epoch, global_batch, vocab_size_asked, gpu_head_chunk_bytes;
  float *loss_scale;
  bool fixed_loss_scale;                         // the loss scale is not read from a checkpoint
  const char *buffer_dtype, *device_words, *program, *build;
  StepState *state, *state_on_device;
  void (*write_config)(FILE *f, const void *options);      // writes every option, as keys and values of an object
  const void *options;
  SavedPart part;
  const cJSON *published;                        // beside the weights that it was tuned from (models.h); or NULL
  const char *chat;                              // what renders its chats, JSON (chat.h); or NULL
  uint64_t base_hash, reference_hash;            // of what adapters are for; preferences are compared with; or 0
  const char *algorithms;                        // of matrix multiplies (plans_algorithms of ops.h); or NULL
};
// Headers of the checkpoint in `directory` and the places of all its tensors. header: malloc'ed, one a file.
void checkpoint_map(const Saved *saved, const char *directory, TensorMap *m, char *header[CHECKPOINT_FILES]);
// What a checkpoint records besides tensors.
struct CheckpointState {
  int64_t step, serial, updates;
  int good_steps;
  float loss_scale;
  double beta1_power, beta2_power;
  double loss, valid_loss, best_loss;            // of the step; last and lowest of validation, INFINITY: none yet
  int64_t evaluated_step;                        // of the last validation; -1: none
  uint64_t corpus_hash, tokenizer_hash;
};
// The validation loss of a checkpoint's last evaluation, the lowest one of the run, and the step of the evaluation.
// INFINITY, -1: not known. best: its validation loss is the run's lowest so far.
struct CheckpointQuality { double valid_loss, best_loss; int64_t evaluated_step; bool best; };
// Writes the first part of trainer.json, when the save starts. It ends inside the object.
void checkpoint_write_head(FILE *f, const Saved *saved, int64_t serial, CheckpointQuality q);
// Writes the second part of trainer.json, when all tensors are written.
void checkpoint_write_tail(FILE *f, const TensorMap *m, const uint32_t *checksums, const char *tokenizer,
                           int64_t tokenizer_bytes, uint64_t tokenizer_hash_);
// Adds the quality to the checkpoint in `directory`, whose step has been evaluated since it was saved: trainer.json is
// replaced durably, or stays as it was. Returns false, with one line in `error`, on failure. Rank 0 only.
bool checkpoint_note(const char *directory, CheckpointQuality q, Error *error);
// Text with its checksum as the last line, malloc'ed.
char *checkpoint_sealed(const char *text, size_t text_bytes, size_t *bytes);
// json_int: reads the value of a key, a whole number from lo to hi. json_hex: a hash of 16 hexadecimal digits. Return
// false if the key is missing or its value is anything else.
bool json_int(const cJSON *o, const char *key, double lo, double hi, int64_t *to);
bool json_hex(const cJSON *o, const char *key, uint64_t *to);
// Parses the text of PATH/trainer.json. NULL and one line in `error` when it is not whole or not ours.
cJSON *checkpoint_parse(const char *path, const char *text, size_t bytes, Error *error);
// Reads what changes from step to step from `json`, trainer.json of the checkpoint in `directory`.
bool checkpoint_state(const char *directory, const cJSON *json, CheckpointState *c, Error *error);
// Reads DIR/trainer.json, malloc'ed. NULL and one line in `error`.
char *checkpoint_text(const char *directory, int64_t *bytes, Error *error);
struct Listed { char name[32]; int64_t serial; bool best; };
// The names step_* of a directory of checkpoints, newest first; those that are not whole have serial -1 and come last;
// `damaged` gets a line on the first of them. Returns a malloc'ed list.
Listed *checkpoint_list(const char *directory, int *count, char *damaged, size_t damaged_bytes);
// Removes a checkpoint: first its name, atomically, then its files.
bool checkpoint_remove(const char *directory, const char *name);
// Removes what interrupted saves and removals left: names that start with one of `starts`, followed by digits or a
// checkpoint's name.
static const char *const checkpoint_leftovers[] = {".saving_", ".removed_", "latest.tmp", "best.tmp", NULL};
static const char *const weights_leftovers[] = {"model.safetensors.tmp", "adapter_model.safetensors.tmp", NULL};
void directory_sweep(const char *directory, const char *const *starts);
// Keeps the `keep` newest checkpoints (0: all), and the best one if keep_best; sets the links to them. Which one is
// best is recorded in the checkpoints, so a process that is killed before it sets the link loses nothing. The newest
// need not be evaluated yet: the best before it stays until checkpoint_note decides. Returns whether all others were
// removed.
bool checkpoint_prune(const char *directory, int64_t keep, bool keep_best);
// Adds to an error which other checkpoint of the directory can be used.
void checkpoint_hint(const char *directory, Error *error);
// Loads weights, and with `resume` also optimizer, step and all else that changes from step to step, from the
// checkpoint in `directory`. `json`: its trainer.json as rank 0 read it. All ranks call it; ends all ranks with one
// line if anything is missing, extra, of another shape, or damaged.
void checkpoint_load(const Saved *saved, const char *directory, const cJSON *json, uint32_t json_checksum, bool resume,
                     LoadProgress progress);
