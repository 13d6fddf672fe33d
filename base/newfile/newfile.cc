// newfile.cc: base/newfile/ as one object; what others may call of it is in base/newfile/newfile.h.
#include "newfile.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

int file_make(const char *path, int flags, unsigned mode) {
  struct stat st;
  const int fd = open(path, flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
  if (fd < 0 || (!fstat(fd, &st) && S_ISREG(st.st_mode))) return fd;
  close(fd);
  errno = EEXIST;
  return -1;
}
int file_make_new(const char *path, unsigned mode) {
  unlink(path);
  return file_make(path, O_WRONLY | O_EXCL, mode);
}
FILE *file_make_stream(const char *path) {
  const int fd = file_make(path, O_WRONLY | O_EXCL, 0666);
  FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
  if (fd >= 0 && !f) close(fd);
  return f;
}
