// disk.h: the system calls by which files are written and read. Each write goes through one hook, so that a test can
// make it fail or end the process there: tests then see what a save leaves behind at every instant.
//
// Conventions
//   - false (or -1) is a failure; errno says why.
//   - a name that readers look for appears only by rename, after everything under it has reached the disk.
#pragma once
#include "base/newfile/newfile.h"
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include "file_ops.h"
#include "file_kinds.h"
#include "counter_random.h"

static FileHook file_hook;                       // NULL except in tests
static inline bool file_allowed(FileOp op, const char *path) {
  const int fault = file_hook ? file_hook(op, path) : 0;
  if (fault) errno = fault;
  return !fault;
}

bool file_make_directory(const char *path) {
  return file_allowed(FILE_MAKE_DIRECTORY, path) && (!mkdir(path, 0777) || errno == EEXIST);
}

// On NFS a failed write may be reported to the next writer or to nobody, and a client may write back a whole page of
// which another host has written a part. So there each write waits for the server and sends only its own bytes.
static inline int file_sync_flag(const char *path) {
  enum { NFS_MAGIC = 0x6969 };
  struct statfs s;
  return !statfs(path, &s) && s.f_type == NFS_MAGIC ? O_DSYNC : 0;
}

int file_create(const char *path, const char *directory) {
  if (!file_allowed(FILE_CREATE, path)) return -1;
  return file_make(path, O_WRONLY | O_EXCL | file_sync_flag(directory), 0666);
}
int file_open(const char *path) {
  if (!file_allowed(FILE_CREATE, path)) return -1;
  return open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | file_sync_flag(path));
}
int file_lock(const char *path) {
  if (!file_allowed(FILE_LOCK, path)) return -1;
  const int fd = file_make(path, O_RDWR, 0666);
  if (fd < 0 || !flock(fd, LOCK_EX | LOCK_NB)) return fd;
  const int fault = errno;
  close(fd);
  errno = fault;
  return -1;
}
bool file_locks_are_local(const char *mountinfo, dev_t device) {
  char line[4096], number[32];
  bool local = false;
  FILE *f = fopen(mountinfo, "r");
  snprintf(number, sizeof number, " %u:%u ", major(device), minor(device));
  while (f && fgets(line, sizeof line, f)) {
    const char *at = strstr(line, number), *options = at ? strstr(at, " - ") : NULL;
    for (const char *word : {"nolock", "local_lock=all", "local_lock=flock", "localflock"})
      local = local || (options && strstr(options, word));
  }
  if (f) fclose(f);
  return local;
}
bool file_reserve(int fd, const char *path, int64_t bytes) {
  if (!file_allowed(FILE_WRITE, path)) return false;
  int fault = 0;
  do fault = bytes && fallocate(fd, 0, 0, bytes) ? errno : 0; while (fault == EINTR);
  errno = fault;
  if (fault && fault != EOPNOTSUPP && fault != ENOSYS && fault != EINVAL) return false;
  return !ftruncate(fd, bytes);
}
bool file_write(int fd, const char *path, const void *data, int64_t bytes, int64_t offset) {
  if (!file_allowed(FILE_WRITE, path)) return false;
  enum { WORTH_STARTING_BYTES = 1 << 20 };
  const bool starts = bytes >= WORTH_STARTING_BYTES;
  while (bytes > 0) {
    const ssize_t n = pwrite(fd, data, (size_t)min64(bytes, FILE_PIECE_BYTES), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) { errno = n ? errno : ENOSPC; return false; }
    if (starts) sync_file_range(fd, offset, n, SYNC_FILE_RANGE_WRITE);
    data = (const char *)data + n;
    bytes -= n;
    offset += n;
    liveness_progress();
  }
  return true;
}
bool file_read(int fd, void *data, int64_t bytes, int64_t offset) {
  while (bytes > 0) {
    const ssize_t n = pread(fd, data, (size_t)min64(bytes, FILE_PIECE_BYTES), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) { errno = n ? errno : ENODATA; return false; }
    data = (char *)data + n;
    bytes -= n;
    offset += n;
    liveness_progress();
  }
  return true;
}
bool file_hash_blocks(int fd, int64_t from, int64_t to, int64_t most, uint64_t *hash) {
  enum { BLOCK_BYTES = 65536 };
  const int64_t bytes = to - from, n = min64(BLOCK_BYTES, bytes), last = to - n;
  const int64_t blocks = min64((bytes + BLOCK_BYTES - 1) / BLOCK_BYTES, most < 2 ? 2 : most);
  uint8_t *block = (uint8_t *)malloc(BLOCK_BYTES);
  bool ok = block != NULL;
  for (int64_t i = 0; ok && i < blocks; i++)
    if ((ok = file_read(fd, block, n, i + 1 == blocks ? last : from + (bytes - n) / (blocks - 1) * i)))
      *hash = data_hash(*hash, block, (size_t)n);
  const int fault = errno;
  free(block);
  errno = fault;
  return ok;
}
// Waits until a large file's bytes, but the last ones, are on the disk: piece by piece, where the file system can.
static inline bool file_sync_pieces(int fd, const char *path) {
  enum { WAIT = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER };
  struct stat st;
  if (fstat(fd, &st)) return false;
  for (int64_t at = 0; at + FILE_PIECE_BYTES < st.st_size; at += FILE_PIECE_BYTES, liveness_progress()) {
    if (!file_allowed(FILE_SYNC, path)) return false;
    const int fault = sync_file_range(fd, at, FILE_PIECE_BYTES, WAIT);
    if (fault) return errno == ENOSYS || errno == ESPIPE || errno == EINVAL || errno == EOPNOTSUPP;
  }
  return true;
}
bool file_sync(int fd, const char *path) {
  if (!file_sync_pieces(fd, path) || !file_allowed(FILE_SYNC, path)) return false;
  int fault;
  do fault = fsync(fd); while (fault && errno == EINTR);       // a signal that asks for the save may come twice
  liveness_progress();
  return !fault;
}

bool file_sync_directory(const char *path) {
  if (!file_allowed(FILE_SYNC, path)) return false;
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = !fsync(fd) || errno == EINVAL;
  const int fault = errno;
  close(fd);
  errno = fault;
  return ok;
}
bool make_directories(const char *path) {
  char part[4096], above[4096];
  const size_t all = (size_t)snprintf(part, sizeof part, "%s", path);
  if (all >= sizeof part) { errno = ENAMETOOLONG; return false; }
  for (size_t n = 1; n <= all; n++) {
    if (part[n] && part[n] != '/') continue;
    part[n] = 0;
    const bool made = !mkdir(part, 0777);
    if (!made && errno != EEXIST) return false;
    const char *slash = strrchr(part, '/');
    snprintf(above, sizeof above, "%.*s", slash ? (int)(slash - part) + 1 : 1, slash ? part : ".");
    if (made && !file_sync_directory(above) && errno != EACCES) return false;
    part[n] = path[n];
  }
  return true;
}
bool file_rename(const char *from, const char *to) {
  return file_allowed(FILE_RENAME, to) && !rename(from, to);
}
bool file_move_aside(const char *path, char *aside, size_t aside_bytes) {
  for (int i = 1; i < 100000; i++) {
    const int n = snprintf(aside, aside_bytes, "%s.%d", path, i);
    if (n < 0 || (size_t)n >= aside_bytes) { errno = ENAMETOOLONG; return false; }
    if (access(aside, F_OK)) break;
  }
  return file_rename(path, aside);
}
bool file_exchange(const char *a, const char *b) {
  enum { EXCHANGE = 2 };                         // RENAME_EXCHANGE of linux/fs.h
  return file_allowed(FILE_RENAME, b) && !syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, EXCHANGE);
}
bool file_link(const char *target, const char *path) {
  char temporary[4096];
  snprintf(temporary, sizeof temporary, "%s.tmp%d", path, (int)getpid());
  if (!file_allowed(FILE_LINK, path)) return false;
  unlink(temporary);
  if (symlink(target, temporary)) return false;
  if (file_rename(temporary, path)) return true;
  const int fault = errno;
  unlink(temporary);
  errno = fault;
  return false;
}
bool file_remove(const char *path) {
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
  bool ok = true;
  for (dirent *e; dir && (e = readdir(dir));) {
    char inside[4096];
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
    ok = file_allowed(FILE_REMOVE, inside) && (!unlink(inside) || errno == ENOENT) && ok;
  }
  if (!dir) return file_allowed(FILE_REMOVE, path) && (!unlink(path) || errno == ENOENT);
  closedir(dir);
  return file_allowed(FILE_REMOVE, path) && (!rmdir(path) || errno == ENOENT) && ok;
}

bool file_put(const char *path, const char *directory, const void *data, int64_t bytes) {
  char temporary[4096];
  snprintf(temporary, sizeof temporary, "%s.tmp%d", path, (int)getpid());
  unlink(temporary);
  const int fd = file_create(temporary, directory);
  bool ok = fd >= 0 && file_write(fd, temporary, data, bytes, 0) && file_sync(fd, temporary);
  if (fd >= 0 && close(fd)) ok = false;
  ok = ok && file_rename(temporary, path) && file_sync_directory(directory);
  const int fault = errno;
  if (!ok && fd >= 0) unlink(temporary);
  errno = fault;
  return ok;
}
char *file_get(const char *path, int64_t most, int64_t *bytes) {
  struct stat st;
  const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // a pipe would wait for its writer
  if (fd < 0) return NULL;
  char *text = NULL;
  if (!fstat(fd, &st)) {
    if (!S_ISREG(st.st_mode)) errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
    else if (st.st_size > most) errno = EFBIG;
    else if ((text = (char *)calloc(1, (size_t)st.st_size + 1)) && !file_read(fd, text, st.st_size, 0)) {
      free(text);
      text = NULL;
    }
  }
  const int fault = errno;
  close(fd);
  errno = fault;
  *bytes = text ? st.st_size : 0;
  return text;
}
const char *file_get_fault(void) { return errno == EINVAL ? "it is not a regular file" : strerror(errno); }

// ---- whose file it is
FILE *file_own(const char *path, bool fresh) {
  const int fd = file_make(path, O_RDWR | O_APPEND, 0666);
  if (fd >= 0 && (!fresh || !ftruncate(fd, 0)))
    if (FILE *f = fdopen(fd, "a+")) return f;
  const int fault = errno;
  if (fd >= 0) close(fd);
  errno = fault;
  return NULL;
}
const char *file_other_words(const char *path) {
  struct stat st;
  return lstat(path, &st) ? NULL : S_ISLNK(st.st_mode) ? "a symbolic link" : file_type_words(st.st_mode);
}
const char *file_own_fault(const char *path) {
  static char words[64];
  const int fault = errno;
  const char *other = file_other_words(path);
  if (!other) return strerror(fault);
  snprintf(words, sizeof words, "it is %s", other);
  return words;
}
bool file_has_mark(const char *path, const char *mark, bool begins) {
  enum { MOST = 1 << 16 };
  const size_t length = strlen(mark);
  struct stat st;
  const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  char *text = (char *)malloc(MOST);
  const ssize_t n = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) ? read(fd, text, MOST) : -1;
  const bool has = n > 0 && (begins ? !memcmp(text, mark, (size_t)n < length ? (size_t)n : length)
                                    : memmem(text, (size_t)n, mark, length) != NULL);
  free(text);
  if (fd >= 0) close(fd);
  return has;
}
bool file_is_foreign(const char *path, const char *mark, bool begins) {
  struct stat st;
  return !stat(path, &st) && S_ISREG(st.st_mode) && st.st_size && !file_has_mark(path, mark, begins);
}
FILE *file_lines(const char *path, bool append) {
  FILE *f = file_own(path, !append);
  if (!f || !append) return f;
  off_t whole = 0, all = 0;
  for (int c; (c = fgetc(f)) != EOF;) if (all++, c == '\n') whole = all;
  if ((whole == all || !ftruncate(fileno(f), whole)) && !fseeko(f, 0, SEEK_END)) return f;
  fclose(f);
  return NULL;
}
