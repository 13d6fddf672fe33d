// newfile.h: public header of base/newfile/, the one place where this program makes files. `make check-modules` rejects
// any other call that can make one, so no file is made where a link of somebody else's leads. It is the lowest module:
// all others may make files, and look through directories.
#pragma once
#include <dirent.h>
#include <stdio.h>
#include <string.h>

// Opens the regular file PATH, which is made where it is not there. A symbolic link of that name is not followed
// (ELOOP), a named pipe is not waited for (EEXIST). flags, mode: as of open(2), with the umask; O_CREAT, O_NOFOLLOW and
// O_CLOEXEC are added here. Returns the descriptor, or -1 with errno.
int file_make(const char *path, int flags, unsigned mode);
// Makes PATH anew for writing: a leftover of that name, or what somebody else has put there, loses the name first and
// keeps its content. Returns the descriptor, or -1 with errno.
int file_make_new(const char *path, unsigned mode);
// Makes PATH, which must not be there, as a stream to write to. NULL with errno.
FILE *file_make_stream(const char *path);
// Calls each(name, path) for every name in a directory but "." and "..", if it can be read.
template <class Each> static inline void directory_each(const char *directory, Each each) {
  char path[4096];
  DIR *dir = opendir(directory);
  for (const dirent *e; dir && (e = readdir(dir));) {
    const int n = snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
    if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && n < (int)sizeof path)
      each((const char *)e->d_name, (const char *)path);
  }
  if (dir) closedir(dir);
}
