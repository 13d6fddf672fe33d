// checkpoint.h: the door of data/checkpoint/: checkpoints.
//
// A Store moves shards to files and back, at once or while the training goes on; a checkpoint is a directory of them,
// with all else that a resumed run needs (Saved).
#pragma once
#include "data/data.h"
#include "data/tensors/tensors.h"
#include <pthread.h>

// ---- store.h --------------------------------------------------------------------------------------------------------
enum {
  STORE_BLOCK_BYTES = 1 << 20,
  STORE_ERROR_BYTES = 508
};
struct ChunkCursor { int state, param; int64_t done; };
// Bytes that this rank writes or reads.
int64_t store_own_bytes(const Fsdp *f, const TensorMap *m, unsigned states);
// (rows, cols) of any floating dtype -> (cols, rows) fp32. Tiles of 16 x 16 keep both sides in cache.
void transpose_to_f32(float *to, const void *from, Dtype dtype, int64_t rows, int64_t cols);
struct StoreRecord { int32_t failed; char error[STORE_ERROR_BYTES]; };
enum StorePhase { STORE_IDLE, STORE_WRITING, STORE_AGREEING, STORE_COMMITTING, STORE_TELLING };
struct SaveBuffer { char *data; MPI_Request request; int state; };     // a FileSpan, then its bytes
// What rank 0 does, perhaps in a thread, when all ranks have finished writing: gives the files their names, or removes
// them. checksums: one CRC-32C per block, the files' blocks one after the other.
struct StoreCommit {
  bool (*commit)(void *to, const uint32_t *checksums, Error *error);
  void (*discard)(void *to);
  void *to;
};
struct StoreRequest {
  unsigned states;                               // a bit each
  bool background;                               // from a snapshot; else store_poll writes straight from the shards
  bool checksums;
  const char *header[MAP_MAX_FILES];             // rank 0: first bytes of each file, up to data_at
  StoreCommit end;
};
struct Store {
  Fsdp *f;
  MPI_Comm comm;                                 // of checkpoints alone
  size_t bytes;                                  // taken, from one block:
  char *memory, *scratch[2], *snapshot;          // STORE_CHUNK_BYTES each; all that is written, or NULL
  int64_t *snapshot_at;                          // [states * params] elements
  SaveBuffer buffer[2];                              // several hosts only
  uint32_t *parts, *checksums;                   // [blocks] this rank's contributions; of all ranks
  StoreRecord *records;                          // [world + 1]; the last is the save's result
  int64_t blocks;
  // The save in flight.
  StorePhase phase;
  TensorMap map;
  StoreRequest request;
  ChunkCursor cursor;
  int fd[MAP_MAX_FILES];
  bool direct, own_done, cancelled;              // direct: this rank sees the files
  int remote_left;                               // rank 0: ranks that still stream
  pthread_t thread;
  bool threaded;
  int thread_done;                               // atomic
  int64_t bytes_done, bytes_total;               // of this rank: written (atomic); planned
  MPI_Request requests[2];
  StoreRecord *result;                           // of the last save, on every rank
  double ended_ms;                               // when it was known
  uint64_t base_hash;                            // of what adapters are for; 0: there are none
  uint64_t reference_hash;                       // of the weights that preferences are compared with; 0: there are none
  // NULL, or adds to elements [first, first + n) of a parameter what its adapters change; all are whole in `adapters`.
  void (*merge)(const Fsdp *f, int param, int64_t first, float *values, int64_t n, const void *merge_of);
  const void *merge_of;
  float *adapters;
};
// Opens a store. s->memory has store_plan_bytes and stays the caller's. Collective.
size_t store_plan_bytes(const Fsdp *f, bool background);
void store_open(Store *s, Fsdp *f, bool background);
void store_close(Store *s);
// Keeps the first error; false.
__attribute__((format(printf, 2, 3))) bool store_fail(StoreRecord *r, const char *fmt, ...);
// Starts writing the states of `map` (taken over) to its files. Collective. Returns false on every rank, with the
// reason in s->result, when the files cannot be made; else the save is in flight until store_poll says otherwise.
bool store_save_begin(Store *s, TensorMap *map, StoreRequest request);
// Advances the save in flight without waiting. Returns true once there is none; s->result then says how it went. Every
// rank must keep calling it; it may be called at any time from the main thread.
bool store_poll(Store *s);
static inline void store_background(void *to) { if (((Store *)to)->phase != STORE_IDLE) store_poll((Store *)to); }
// Waits for the save in flight. progress: NULL, or called now and then.
void store_wait(Store *s, void (*progress)(Store *s));
// checksums: NULL, or a CRC-32C a block as store_conclude leaves them.
// seen: a checksum of a file beside them, which also shows whether a rank sees rank 0's files.
struct StoreLoad {
  const TensorMap *map;
  const uint32_t *checksums;
  uint32_t seen;
  ValuePass pass;                                // the first of two where frozen matrices need their scales
  bool direct;                                   // this rank sees the files
  int fd[MAP_MAX_FILES];
  int held_file;                                 // scratch[0] holds bytes [held_from, held_to) of this file's tensors
  int64_t held_from, held_to;
  int64_t bytes_done, bytes_total;
};
// Reads the wanted states of this rank's shards from the files of l.map. Collective; every rank returns, and one that
// could not read all of it has the reason (tensor, file, place) in `error`, which is "" otherwise. Afterwards call
// fsdp_publish and fsdp_step_end. Frozen E4M3 matrices are read twice: their scales come first.
void store_load(Store *s, StoreLoad l, unsigned states, Error *error,
                void (*progress)(const StoreLoad *l, void *to), void *to);

// ---- saved.h --------------------------------------------------------------------------------------------------------
enum { CHECKPOINT_VERSION = 1, CHECKPOINT_MODEL = 0, CHECKPOINT_OPTIM = 1, CHECKPOINT_FILES = 2 };
enum : unsigned { STATES_WEIGHTS = 1, STATES_ALL = (1 << MAP_STATES) - 1 };
enum { TRAINER_JSON_MOST_BYTES = 1 << 28 };
// Of the parameters: with adapters, a checkpoint has these alone, and one of their base has none of them.
enum SavedPart { SAVED_ALL, SAVED_BASE, SAVED_ADAPTERS };
// What a checkpoint is made of, and what one is read into. All of it is the caller's.
struct Saved {
  Fsdp *fsdp;
  Store *store;
  Ctx *ctx;
  const Corpus *corpus;
  int heads;                                     // of the model: no shape tells it; 0: its block is not GPT-2's
  int64_t *step, steps_total, steps_per_epoch, global_batch, vocab_size_asked, gpu_head_chunk_bytes;
  float *loss_scale;
  bool fixed_loss_scale;                         // a checkpoint's is not taken
  const char *buffer_dtype, *device_words, *program, *build;
  StepState *state, *state_on_device;
  void (*write_config)(FILE *f, const void *options);      // every option, as members of an object
  const void *options;
  SavedPart part;
  const cJSON *published;                        // beside the weights that it was tuned from (models.h); or NULL
  const char *chat;                              // what renders its chats, JSON (chat.h); or NULL
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
// How good it is. INFINITY, -1: not known. best: its validation loss is the lowest so far.
struct CheckpointQuality { double valid_loss, best_loss; int64_t evaluated_step; bool best; };
// trainer.json's first part, made when the save begins. Ends inside the object.
void checkpoint_write_head(FILE *f, const Saved *saved, int64_t serial, CheckpointQuality q);
// Its second part, when all tensors are written.
void checkpoint_write_tail(FILE *f, const TensorMap *m, const uint32_t *checksums, const char *tokenizer,
                           int64_t tokenizer_bytes, uint64_t tokenizer_hash_);
// Notes in the whole checkpoint in `directory`, whose step has been evaluated since it was saved, how good it is:
// trainer.json is replaced durably, or stays as it was. False and one line in `error`. Rank 0.
bool checkpoint_note(const char *directory, CheckpointQuality q, Error *error);
// Text with its checksum as the last line, malloc'ed.
char *checkpoint_sealed(const char *text, size_t text_bytes, size_t *bytes);
// A member that is a whole number from lo to hi; a hash as 16 hexadecimal digits. False: it is not there, or not that.
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
// Removes what interrupted saves and removals left: names that begin with one of `starts`, followed by digits or a
// checkpoint's name.
static const char *const checkpoint_leftovers[] = {".saving_", ".removed_", "latest.tmp", "best.tmp", NULL};
static const char *const weights_leftovers[] = {"model.safetensors.tmp", "adapter_model.safetensors.tmp", NULL};
void directory_sweep(const char *directory, const char *const *starts);
// Keeps the `keep` newest (0: all), and the best if keep_best; the links show which these are. Which one is best is
// recorded in the checkpoints, so a process that is killed before it sets the link loses nothing. The newest need not
// be evaluated yet: the best before it stays until checkpoint_note decides. Returns whether all others were removed.
bool checkpoint_prune(const char *directory, int64_t keep, bool keep_best);
// Adds to an error which checkpoint to take instead.
void checkpoint_hint(const char *directory, Error *error);
// Loads weights, and with `resume` also optimizer, step and all else that changes from step to step, from the
// checkpoint in `directory`. `json`: its trainer.json as rank 0 read it. Collective; ends all ranks with one line if
// anything is missing, extra, of another shape, or damaged.
void checkpoint_load(const Saved *saved, const char *directory, const cJSON *json, uint32_t json_checksum, bool resume,
                     void (*progress)(const StoreLoad *l, void *fsdp));
