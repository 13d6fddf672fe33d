// file_kinds.h: recognises a file that a reader cannot use, by its type and its first bytes. Readers of corpora,
// tokenizers and weights check here before they report a damaged file, so that the error says what to do.
#pragma once
#include "files.h"
#include <strings.h>

const char *file_type_words(mode_t mode) {
  if (S_ISREG(mode)) return NULL;
  return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a named pipe" : S_ISSOCK(mode) ? "a socket" :
         S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "a special file";
}

// First bytes that no text, token file, tokenizer or model of ours starts with.
struct FileKind { int at, bytes; const char *magic, *words; };
static const FileKind file_kinds[] = {
    {0, 23, "version https://git-lfs", "a Git LFS pointer, which stands for a file that was not fetched; run git lfs "
     "pull in its repository"},
    {0, 3, "\x1f\x8b\x08", "gzip-compressed; unpack it (gunzip)"},
    {0, 4, "PK\3\4", "a zip archive (torch.save, .npz, or a packed corpus); unpack it"},
    {0, 4, "\x28\xb5\x2f\xfd", "zstd-compressed; unpack it (zstd -d)"},
    {0, 6, "\xfd" "7zXZ\0", "xz-compressed; unpack it (unxz)"},
    {4, 6, "1AY&SY", "bzip2-compressed; unpack it (bunzip2)"},
    {257, 5, "ustar", "a tar archive; unpack it (tar -xf)"},
    {0, 5, "PAR1\x15", "a Parquet table; its name should end in .parquet"},
    {0, 8, "ARROW1\0\0", "an Arrow table; write its text column to a .txt file"},
    {0, 6, "\x93NUMPY", "a NumPy .npy file; write the bare array with array.tofile()"},
    {0, 5, "%PDF-", "a PDF document; extract its text (pdftotext)"}};

const char *file_foreign(const void *p, size_t n) {
  const char *text = (const char *)p;
  for (const FileKind &k : file_kinds)
    if (n >= (size_t)(k.at + k.bytes) && !memcmp(text + k.at, k.magic, (size_t)k.bytes)) return k.words;
  size_t at = n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
  while (at < n && at < 64 && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r'))) at++;
  static const char *const tags[] = {"<!doctype html", "<html"};
  for (const char *tag : tags)
    if (n - at >= strlen(tag) && !strncasecmp(text + at, tag, strlen(tag)))
      return "an HTML page, perhaps a server's answer in place of the file; fetch it again";
  return NULL;
}
