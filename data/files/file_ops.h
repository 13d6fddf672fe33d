// file_ops.h: the system calls that change files, as the hook of tests is told of them (disk.h).
#pragma once
enum FileOp { FILE_MAKE_DIRECTORY, FILE_CREATE, FILE_WRITE, FILE_SYNC, FILE_RENAME, FILE_LINK, FILE_REMOVE, FILE_LOCK };
// Called before the system call, from any thread. It returns 0 to let the call happen, or the errno with which the call
// fails.
typedef int (*FileHook)(FileOp op, const char *path);
