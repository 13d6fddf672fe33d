// files.h: public header of data/files/: files. All that this program makes is made by file_*, and nothing else is
// written over. What readers of data share is here, too: mapped files, hashes, the header of a GGUF.
#pragma once
#include "kernels/device.h"
#include "watch/watch.h"
#include <sys/stat.h>

// ---- file_kinds.h ---------------------------------------------------------------------------------------------------
// What a path is if it is not a regular file; NULL: a regular file.
const char *file_type_words(mode_t mode);
enum { FILE_FOREIGN_BYTES = 512 };                // file_foreign needs no more of a file's start
// What a file that starts with the `n` bytes at `p` is, and what to do, to end a sentence "FILE is ...". NULL: it is
// none of these kinds.
const char *file_foreign(const void *p, size_t n);

// ---- random.h -------------------------------------------------------------------------------------------------------
static const uint64_t DATA_GOLDEN = 0x9e3779b97f4a7c15u;
enum : size_t { DATA_PIECE_BYTES = 1 << 26 };     // what is read before progress is counted: a disk may be slow
// SplitMix64 (Steele, Lea, Flood 2014) read by position: the generator that starts in state `key`, at its i-th output.
uint64_t data_mix(uint64_t x);
// A hash of bytes; that of one text continues from `seed`, the hash of another. Each piece that is read is progress.
uint64_t data_hash(uint64_t seed, const void *data, size_t bytes);
static inline uint64_t data_random(uint64_t key, uint64_t i) { return data_mix(key + (i + 1) * DATA_GOLDEN); }
// The key of stream `stream` of a seed. Streams and seeds may be small consecutive numbers.
uint64_t data_key(uint64_t seed, uint64_t stream);
// Uniform over 0 .. n-1, n > 0; the bias is below n / 2^64.
uint64_t data_below(uint64_t random, uint64_t n);
// Place i of a permutation of 0 .. n-1 that `key` chooses, without a table: a Feistel network over the least even
// number of bits that holds n, gone through again until it ends below n (cycle walking; below four times on average).
uint64_t data_permute(uint64_t key, uint64_t i, uint64_t n);

// ---- disk.h ---------------------------------------------------------------------------------------------------------
// Bytes of one call that may wait for the disk. Each is progress: a slow disk is not taken for one that hangs.
enum { FILE_PIECE_BYTES = 4 << 20 };
bool file_make_directory(const char *path);      // an existing directory is fine
// Makes PATH for writing; it must not be there: nobody else can have put a link or a file of theirs in its place.
// `directory`: that of PATH. Returns the descriptor or -1.
int file_create(const char *path, const char *directory);
// Opens PATH, which another rank has made, for writing. Returns the descriptor or -1.
int file_open(const char *path);
// Locks PATH, which this makes, against other processes until the descriptor is closed. It is open for writing, because
// NFS then has its server lock it for all hosts. -1 with errno; EWOULDBLOCK: another process has it.
int file_lock(const char *path);
// Whether the file system with this device number, of those that a process's mountinfo lists, keeps locks within this
// host.
bool file_locks_are_local(const char *mountinfo, dev_t device);
// Gives the file its size and, where the file system can, its blocks, so that a disk that is too full fails now.
bool file_reserve(int fd, const char *path, int64_t bytes);
// Writes all bytes, and asks the kernel to start writing to the disk now and not when memory is full.
bool file_write(int fd, const char *path, const void *data, int64_t bytes, int64_t offset);
// A number for a temporary name: nanoseconds. If another host sees the name, it sees this file and never a leftover of
// an earlier run. A process id would not ensure that: in containers the same few ids come again.
static inline unsigned long long file_nonce() { return (unsigned long long)wall_ns(); }
// Reads all bytes; ENODATA if the file ends before.
bool file_read(int fd, void *data, int64_t bytes, int64_t offset);
// Adds blocks of 64 KiB of bytes [from, to) of a file to a hash: evenly spaced, at most `most`, at least 2; all bytes
// where these are enough. False with errno.
bool file_hash_blocks(int fd, int64_t from, int64_t to, int64_t most, uint64_t *hash);
bool file_sync(int fd, const char *path);        // waits until the file is on the disk
// Makes new names in a directory durable. File systems that cannot do this (EINVAL) do not need it.
bool file_sync_directory(const char *path);
// mkdir -p, and syncs the directory above each one that it made, where that can be read. False when a part cannot be
// made; an existing one is fine.
bool make_directories(const char *path);
bool file_rename(const char *from, const char *to); // rename(2), made durable
// Renames PATH to the first free name of PATH.1, PATH.2, ..., which `aside` receives.
bool file_move_aside(const char *path, char *aside, size_t aside_bytes);
// Exchanges two names atomically. False with EINVAL or ENOSYS where the file system cannot.
bool file_exchange(const char *a, const char *b);
// PATH becomes a symbolic link to `target`, atomically, whatever it was before.
bool file_link(const char *target, const char *path);
// Removes a file, a link (never what it points to), or a directory and the files in it. An absent path is fine.
bool file_remove(const char *path);
// Writes a small file under a temporary name, syncs and renames it: PATH is the whole new file, or unchanged.
// `directory`: the directory of PATH. A leftover of that name is removed: process ids come again.
bool file_put(const char *path, const char *directory, const void *data, int64_t bytes);
// The contents of a file of at most `most` bytes, malloc'ed, with a zero at the end. NULL with errno (EFBIG: larger).
char *file_get(const char *path, int64_t most, int64_t *bytes);
const char *file_get_fault(void);                // why it returned NULL, from errno
// Opens PATH, a file of lines of this program's own, to add to it: made where it is not there, emptied if `fresh`. It
// must be a regular file under this very name: a symbolic link leads to a file of somebody else, and a named pipe waits
// for a reader. NULL if not; file_own_fault says why.
FILE *file_own(const char *path, bool fresh);
// Opens such a file: empty, or (append) to add to. A last line that a killed run left unfinished is removed. Writes go
// to the current end: while a run trains, another may evaluate its checkpoints into the same file.
FILE *file_lines(const char *path, bool append);
// Whether something else than a regular file has this name, in words: to end a sentence "PATH is ...". NULL: nothing.
const char *file_other_words(const char *path);
const char *file_own_fault(const char *path);    // why file_own(path) has just failed
// Whether a file has a mark of this program's within its first 64 KiB: somewhere, or (begins) at its beginning, which
// may be all that a full disk has left of it.
bool file_has_mark(const char *path, const char *mark, bool begins);
// Whether PATH is a file with content that has no such mark. An empty one is as good as none.
bool file_is_foreign(const char *path, const char *mark, bool begins);

// ---- mapped.h -------------------------------------------------------------------------------------------------------
// Lines, each ended by '\n', that the user should see; often none.
struct DataWarnings { char text[4096]; };
enum { DATA_PATH_BYTES = 1024 };
bool name_ends(const char *name, const char *end); // whether a name ends so
// Prints into out; false when it does not fit.
__attribute__((format(printf, 3, 4))) bool data_format(char *out, size_t out_bytes, const char *fmt, ...);
// Adds a line; one that does not fit any more is left out.
__attribute__((format(printf, 2, 3))) void data_warning(DataWarnings *d, const char *fmt, ...);
__attribute__((format(printf, 3, 4))) bool fail_at(Error *e, const char *path, const char *fmt, ...);    // "PATH: why"
void *data_alloc(size_t count, size_t each_bytes); // memory of malloc; the rank ends where there is none
// Opens a regular file that has content for reading. Returns the descriptor, or -1 with one line in e. *bytes > 0.
int data_open(const char *path, size_t *bytes, Error *e);
// Maps a whole regular file read-only. *bytes > 0 on success.
void *data_map(const char *path, size_t *bytes, Error *e);
void data_unmap(void *p, size_t bytes);
// The path of what is mapped at an address, for the handler of a SIGBUS: a file became shorter. NULL: nothing is.
const char *data_mapped_path(const void *at);
// For qsort of names. What stands after the last slash of a path.
int name_order(const void *a, const void *b);
const char *path_base(const char *path);
// Joins directory and name; a path that does not fit ends the program.
void path_join(char *to, size_t bytes, const char *directory, const char *name);
// Names of files, sorted where data_names made the list. Freed by data_names_free.
struct DataNames { char **name; int count; };
void data_names_add(DataNames *n, const char *name);
void data_names_free(DataNames *n);
// The regular files in a directory whose names end in `end` and are not hidden. None where it cannot be read.
DataNames data_names(const char *dir, const char *end);

// ---- forms.h --------------------------------------------------------------------------------------------------------
// X(identifier, what such a file is, how its name ends, what its records are in). SPREAD: objects over several lines.
#define DATA_CONTAINERS(X) \
  X(CONTAINER_TEXT, "", "", "lines") \
  X(CONTAINER_JSON_LINES, "JSON lines", ".jsonl or .json", "lines") \
  X(CONTAINER_JSON_ARRAY, "a JSON array", ".json", "an array") \
  X(CONTAINER_JSON_SPREAD, "JSON over several lines", ".json", "objects") \
  X(CONTAINER_CSV, "a table, values with commas between them", ".csv", "a table") \
  X(CONTAINER_TSV, "a table, values with tabs between them", ".tsv", "a table")
#define X(identifier, what, ends, in) identifier,
enum DataContainer { DATA_CONTAINERS(X) };
#undef X
struct ContainerWords { const char *what, *ends, *in; };
ContainerWords container_words(DataContainer container);
// keys: those of the first record, with commas, as far as they fit; "": there are none.
struct FileForm { DataContainer container; char keys[160]; };
bool form_is_chat_key(const char *key);          // a field, or column, that holds a conversation
// Whether a name ends so, with .gz or .zst after it or not.
bool form_name_ends(const char *name, const char *end);
// Whether a name says that what is inside is text, whatever it looks like.
bool form_name_is_text(const char *name);
// What the file is that has this name and starts with the `n` bytes at `p`.
FileForm form_of(const char *name, const uint8_t *p, size_t n);
// False: a file is not text, and e says what to do with it.
bool form_check(const FileForm *f, const char *path, Error *e);
