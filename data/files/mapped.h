// mapped.h: what readers of data share: warnings, files that are mapped, and the sorted names in a directory.
#pragma once
#include <limits.h>
#include <sys/mman.h>
#include "disk.h"

bool data_format(char *out, size_t out_bytes, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(out, out_bytes, fmt, ap);
  va_end(ap);
  return n >= 0 && (size_t)n < out_bytes;
}

bool fail_at(Error *e, const char *path, const char *fmt, ...) {
  char why[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(why, sizeof why, fmt, ap);
  va_end(ap);
  fail(e, "%.1000s: %s", path, why);
  text_to_line(e->text, "");                     // the file's own words may hold anything
  return false;
}
void data_warning(DataWarnings *d, const char *fmt, ...) {
  const size_t n = strlen(d->text);
  va_list ap;
  va_start(ap, fmt);
  const bool fits = text_add_list(d->text, sizeof d->text - 1, fmt, ap);
  va_end(ap);
  if (!fits) { d->text[n] = 0; return; }          // whole lines or nothing
  text_escape_line(d->text + n, sizeof d->text - n - 2);
  strcat(d->text + n, "\n");
}

void *data_alloc(size_t count, size_t each_bytes) {
  void *p = count <= SIZE_MAX / 2 / each_bytes ? malloc(count ? count * each_bytes : 1) : NULL;
  if (!p)
    die_missing("data: no memory for %zu x %zu bytes; use a smaller corpus or a token .bin file", count, each_bytes);
  return p;
}

int data_open(const char *path, size_t *bytes, Error *e) {
  struct stat st;
  const bool regular = stat(path, &st) == 0 && S_ISREG(st.st_mode);            // before opening: a device may react
  int fd = regular ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  if (!regular && stat(path, &st) == 0)
    fail_with(e, EXIT_MISSING, "%s is %s, not a regular file", path, file_type_words(st.st_mode));
  else if (fd < 0 || fstat(fd, &st) != 0)
    fail_with(e, EXIT_MISSING, "cannot read %s: %s%s", path, strerror(errno), errno == EMFILE ? "; raise ulimit -n, or "
              "join files" : "");
  else if (!S_ISREG(st.st_mode)) fail_with(e, EXIT_MISSING, "%s is not a regular file", path);
  else if (st.st_size == 0)
    fail_with(e, EXIT_MISSING, "%s is empty: it was cut short or never written; fetch it again", path);
  else {
    *bytes = (size_t)st.st_size;
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}
// Texts that are mapped. One that becomes shorter then is a SIGBUS where it is read; a handler finds its name here.
enum { DATA_MAPPED_MAX = 16 };
static struct DataMapped { const char *at; size_t bytes; char path[DATA_PATH_BYTES]; } data_mapped[DATA_MAPPED_MAX];
const char *data_mapped_path(const void *at) {
  for (const DataMapped &m : data_mapped)
    if (m.at && (const char *)at >= m.at && (const char *)at < m.at + m.bytes) return m.path;
  return NULL;
}
void data_unmap(void *p, size_t bytes) {
  for (DataMapped &m : data_mapped) if (m.at == p) m.at = NULL;
  munmap(p, bytes);
}
void *data_map(const char *path, size_t *bytes, Error *e) {
  const int fd = data_open(path, bytes, e);
  void *p = fd >= 0 ? mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
  if (p == MAP_FAILED) {
    fail_with(e, EXIT_MISSING, "cannot map %s (%zu bytes): %s", path, *bytes, strerror(errno));
    p = NULL;
  }
  for (DataMapped &m : data_mapped) {
    if (!p || m.at) continue;
    m.bytes = *bytes;
    data_format(m.path, sizeof m.path, "%s", path);
    m.at = (const char *)p;
    break;
  }
  if (fd >= 0) close(fd);
  return p;
}

bool name_ends(const char *name, const char *end) {
  const size_t n = strlen(name), m = strlen(end);
  return n > m && !strcmp(name + n - m, end);
}
int name_order(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}
const char *path_base(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}
void path_join(char *to, size_t bytes, const char *directory, const char *name) {
  const int n = snprintf(to, bytes, "%s/%s", directory, name);
  if (n < 0 || (size_t)n >= bytes) die_user("the path %s/%s is too long", directory, name);
}

void data_names_free(DataNames *n) {
  for (int i = 0; i < n->count; i++) free(n->name[i]);
  free(n->name);
  *n = {};
}
void data_names_add(DataNames *n, const char *name) {
  if (!(n->count & (n->count - 1)))              // room for a power of two
    n->name = (char **)realloc(n->name, sizeof(char *) * (size_t)(n->count ? 2 * n->count : 1));
  if (!n->name || !(n->name[n->count++] = strdup(name))) die_missing("data: no memory for the names of files");
}
DataNames data_names(const char *dir, const char *end) {
  DataNames n = {};
  directory_each(dir, [&](const char *name, const char *path) {
    struct stat st;
    if (name[0] != '.' && name_ends(name, end) && !stat(path, &st) && S_ISREG(st.st_mode)) data_names_add(&n, name);
  });
  if (n.count) qsort(n.name, (size_t)n.count, sizeof *n.name, name_order);
  return n;
}
