// rdzv_file.h: file://DIR, a directory that all hosts see, in place of an address of host 0.
//
//   DIR/train_gpt_fsdp.rdzv           host 0: the nonce of this start, a token, and where it listens
//   DIR/train_gpt_fsdp.rdzv.NONCE.R   process R: its addresses
//
// Nobody can know beforehand which of host 0's interfaces leads to the other hosts. So host 0 (its process) first
// writes its file without addresses; each other process R answers with its own addresses; host 0 asks its routing table
// which of its interfaces leads to them, listens there, and writes its file again with what it listens on so far. A
// file that an earlier start left does no harm: a process that reads it answers with that start's nonce, which host 0
// does not look for, and at its addresses nobody listens, or somebody with another token; the process reads again until
// host 0 has written. The files are for their owner only (0600), and those of other users are not read.
#pragma once
#include "base/newfile/newfile.h"
#include "rdzv_where.h"

enum { RDZV_FILE_MAX = 4096 };
static const char RDZV_FILE_NAME[] = "train_gpt_fsdp.rdzv";
static const char RDZV_FILE_HEAD[] = "train_gpt_fsdp rendezvous 1\n";
// What host 0's file says: job: the nonce; token: in hexadecimal; at: the addresses that host 0 listens on so far.
struct RdzvOffer { char job[RDZV_JOB_BYTES], token[65]; NetAddresses at; };

static inline bool rdzv_is_hex(const char *text, size_t n) {
  return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}
// Reads the text of host 0's file, which is changed. False: the text is not that of such a file.
static inline bool rdzv_offer_parse(RdzvOffer *o, char *text) {
  char *line, *rest = text;
  *o = RdzvOffer{};
  if (strncmp(text, RDZV_FILE_HEAD, strlen(RDZV_FILE_HEAD))) return false;
  rest += strlen(RDZV_FILE_HEAD);
  while ((line = strsep(&rest, "\n")) && *line) {
    char *value = strchr(line, ' ');
    if (!value) return false;
    *value++ = 0;
    char *port = strchr(value, ' ');
    if (!strcmp(line, "job") && !o->job[0] && rdzv_is_hex(value, sizeof o->job - 1)) strcpy(o->job, value);
    else if (!strcmp(line, "token") && !o->token[0] && rdzv_is_hex(value, sizeof o->token - 1)) strcpy(o->token, value);
    else if (!strcmp(line, "at") && port && o->at.count < NET_ADDRESSES_MAX) {
      *port++ = 0;
      const int64_t number = rdzv_number(port);
      if (number < 1 || number > 65535 || !net_address_of(value, (int)number, &o->at.at[o->at.count])) return false;
      o->at.count++;
    } else return false;
  }
  return o->job[0] && o->token[0];
}
// Writes a file of this user's at once: others see the old one or the new one.
static inline bool rdzv_file_write(const char *path, const char *text) {
  char fresh[1400];
  snprintf(fresh, sizeof fresh, "%s.%d.new", path, (int)getpid());
  const int fd = file_make_new(fresh, 0600);
  const size_t n = strlen(text);
  const bool written = fd >= 0 && write(fd, text, n) == (ssize_t)n && !fsync(fd);
  const int fault = errno;
  if (fd >= 0) close(fd);
  if (written && !rename(fresh, path)) return true;
  if (!written) errno = fault;
  const int why = errno;
  unlink(fresh);
  errno = why;
  return false;
}
// Reads a small regular file of this user's; a pipe of that name is not waited for. False with errno; EPERM: it is
// another user's, or no regular file.
static inline bool rdzv_file_text(const char *path, char text[RDZV_FILE_MAX]) {
  struct stat st;
  const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ours = !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022);
  const ssize_t n = ours ? read(fd, text, RDZV_FILE_MAX - 1) : -1;
  const int fault = ours ? errno : EPERM;
  close(fd);
  text[n > 0 ? n : 0] = 0;
  errno = fault;
  return n >= 0;
}
// The key of a start: its token, and --rdzv_token where that is given too.
static inline ProveKey rdzv_offer_key(const ProveKey *given, const char *token) {
  ProveKey made;
  const ProvePart part = {token, strlen(token)};
  prove_hmac(made.bytes, given, &part, 1);
  return made;
}

// ---- host 0 ---------------------------------------------------------------------------------------------------------
static inline bool rdzv_offer_write(const RdzvWhere *w, const RdzvOffer *o) {
  char path[1100], text[RDZV_FILE_MAX];
  snprintf(text, sizeof text, "%sjob %s\ntoken %s\n", RDZV_FILE_HEAD, o->job, o->token);
  for (int i = 0; i < o->at.count; i++) {
    char address[INET6_ADDRSTRLEN];
    const sockaddr *a = (const sockaddr *)&o->at.at[i].to;
    net_address_text(a, address, sizeof address);
    text_add(text, sizeof text, "at %s %d\n", address, ntohs(((const sockaddr_in *)a)->sin_port));
  }
  snprintf(path, sizeof path, "%s/%s", w->dir, RDZV_FILE_NAME);
  return rdzv_file_write(path, text);
}
// Starts: a fresh token for nonce `job`; w->token is its key from now on. False with one line in `error`.
static inline bool rdzv_file_offer(RdzvWhere *w, RdzvOffer *o, const char *job, Error *error) {
  uint8_t token[32];
  *o = RdzvOffer{};
  snprintf(o->job, sizeof o->job, "%s", job);
  prove_random(token, sizeof token);
  rdzv_hex(o->token, token, sizeof token);
  w->token = rdzv_offer_key(&w->token, o->token);
  REJECT(!rdzv_offer_write(w, o), "--rdzv file://%.900s: cannot write there: %s", w->dir, strerror(errno));
  return true;
}
// The address of this host from which packets go to `to`. False: no way leads there.
static inline bool rdzv_source(const NetAddress *to, NetAddress *from) {
  const int fd = socket(to->to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);         // connecting it sends nothing
  *from = NetAddress{};
  from->bytes = sizeof from->to;
  const bool found = fd >= 0 && !connect(fd, (const sockaddr *)&to->to, to->bytes) &&
                     !getsockname(fd, (sockaddr *)&from->to, &from->bytes);
  if (fd >= 0) close(fd);
  ((sockaddr_in *)&from->to)->sin_port = 0;      // at the same place for IPv6
  return found;
}
// Opens a socket at `from`, if there is none yet. False: nothing was opened.
static inline bool rdzv_file_open(RdzvOffer *o, NetAddress from, int *listener, int *listeners) {
  for (int i = 0; i < o->at.count; i++)
    if (net_same_host((const sockaddr *)&o->at.at[i].to, (const sockaddr *)&from.to)) return false;
  if (*listeners == NET_ADDRESSES_MAX) return false;
  const int fd = net_listen(&from, 1024);
  if (fd < 0) return false;
  from.bytes = sizeof from.to;
  getsockname(fd, (sockaddr *)&from.to, &from.bytes);
  listener[(*listeners)++] = fd;
  o->at.at[o->at.count++] = from;
  return true;
}
// One who has come, by the text of its file: its addresses. Those that are also this host's lead to it only if it has
// no others, which is when it runs here.
static inline bool rdzv_file_answer(RdzvOffer *o, char *text, int *listener, int *listeners) {
  bool opened = false, others = false;
  char own[600], *rest = text, *word, *list[NET_ADDRESSES_MAX];
  int count = 0;
  own[0] = ' ';
  net_own_addresses(own + 1, sizeof own - 2);
  strcat(own, " ");
  while ((word = strsep(&rest, " \n")) && count < NET_ADDRESSES_MAX) if (*word) list[count++] = word;
  for (int turn = 0; turn < 2; turn++)
    for (int i = 0; i < count; i++) {
      char padded[80];
      NetAddress to, from;
      snprintf(padded, sizeof padded, " %s ", list[i]);
      const bool here = strstr(own, padded) != NULL;
      if (here != (turn == 1) || (here && others) || !net_address_of(list[i], 9, &to)) continue;
      others = others || !here;
      if (rdzv_source(&to, &from)) opened = rdzv_file_open(o, from, listener, listeners) || opened;
    }
  return opened;
}
// Looks for processes that have come since, opens sockets for them and says where these are.
static inline void rdzv_file_look(const RdzvWhere *w, RdzvOffer *o, int *listener, int *listeners) {
  char begin[120], text[RDZV_FILE_MAX];
  bool opened = false;
  snprintf(begin, sizeof begin, "%s.%s.", RDZV_FILE_NAME, o->job);
  directory_each(w->dir, [&](const char *name, const char *path) {
    if (strncmp(name, begin, strlen(begin)) || rdzv_number(name + strlen(begin)) < 0) return;
    if (rdzv_file_text(path, text)) opened = rdzv_file_answer(o, text, listener, listeners) || opened;
  });
  if (opened) rdzv_offer_write(w, o);
}
// Removes the files of this start.
static inline void rdzv_file_remove(const RdzvWhere *w, const RdzvOffer *o) {
  char begin[120], path[1300], text[RDZV_FILE_MAX];
  RdzvOffer now;
  snprintf(begin, sizeof begin, "%s.%s.", RDZV_FILE_NAME, o->job);
  directory_each(w->dir, [&](const char *name, const char *inside) {
    if (!strncmp(name, begin, strlen(begin))) unlink(inside);
  });
  snprintf(path, sizeof path, "%s/%s", w->dir, RDZV_FILE_NAME);
  if (rdzv_file_text(path, text) && rdzv_offer_parse(&now, text) && !strcmp(now.job, o->job)) unlink(path);
}

// ---- the others -----------------------------------------------------------------------------------------------------
static inline void rdzv_file_leave(const RdzvWhere *w, const char *job) {
  char path[1300];
  snprintf(path, sizeof path, "%s/%s.%s.%lld", w->dir, RDZV_FILE_NAME, job, (long long)w->index);
  if (job[0]) unlink(path);
}
// What host 0 says now. Where its nonce is not `job`, the one that was answered last, this process answers it and `job`
// becomes it. False, with the reason in `why`: host 0 has said nothing yet.
static inline bool rdzv_file_read(const RdzvWhere *w, RdzvOffer *o, char job[RDZV_JOB_BYTES], Error *why) {
  char path[1300], text[RDZV_FILE_MAX], own[600];
  snprintf(path, sizeof path, "%s/%s", w->dir, RDZV_FILE_NAME);
  DIR *dir = opendir(w->dir);                    // has a network file system ask its server for new names
  if (dir && !readdir(dir)) errno = 0;
  if (dir) closedir(dir);
  if (!rdzv_file_text(path, text)) {
    fail(why, errno == EPERM ? "%.300s is of another user, or no file" : "no %.300s yet (do all hosts see this "
         "directory?)", path);
    return false;
  }
  if (!rdzv_offer_parse(o, text)) {
    fail(why, "%.300s is not what host 0 writes", path);
    return false;
  }
  if (!strcmp(o->job, job)) return true;
  rdzv_file_leave(w, job);
  net_own_addresses(own, sizeof own);
  if (!own[0]) strcpy(own, "127.0.0.1");
  snprintf(path, sizeof path, "%s/%s.%s.%lld", w->dir, RDZV_FILE_NAME, o->job, (long long)w->index);
  if (!rdzv_file_write(path, own)) {
    fail(why, "cannot write %.300s: %s", path, strerror(errno));
    return false;
  }
  strcpy(job, o->job);
  return true;
}
