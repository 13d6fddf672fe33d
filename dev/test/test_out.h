// test_out.h: --out: one run at a time, no file of anybody else written through a link, directories that last. Needs
// cli_helpers.h.
#pragma once
#include <sys/sysmacros.h>

TEST(out_is_locked_by_a_file_open_for_writing,
     "a run holds a lock on OUT/.lock, which it has open for writing, so that NFS asks its server; mount options that "
     "keep locks within a host are found, and others are not taken for them") {
  static Options o;
  char path[OPTION_TEXT_BYTES + 8], is[sizeof path];
  Error error = {};
  options_default(&o, &trainer_table);
  snprintf(o.out, sizeof o.out, "%s", cli_path("out"));
  snprintf(path, sizeof path, "%s/.lock", o.out);
  EXPECT(lock_out(&o, &error) && access(path, F_OK), "it locks what is not there");
  REQUIRE(make_directories(o.out) && lock_out(&o, &error), "not locked: %s", error.text);
  EXPECT(file_lock(path) < 0 && errno == EWOULDBLOCK, "somebody else locks it too");
  int found = 0;
  for (int fd = 0; fd < 256; fd++) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, is, sizeof is - 1);
    is[n > 0 ? n : 0] = 0;
    found += !strcmp(is, path) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
  }
  EXPECT(found == 1, "%d descriptors of %s are open for writing", found, path);
  static const struct { const char *line; bool local; } table[] = {
      {"36 35 0:52 / /mnt rw,relatime shared:1 - nfs h:/x rw,vers=3,nolock,addr=10.0.0.1\n", true},
      {"36 35 0:52 / /mnt rw,relatime - nfs h:/x rw,vers=3,local_lock=all,addr=10.0.0.1\n", true},
      {"36 35 0:52 / /mnt rw,relatime - nfs h:/x rw,vers=3,local_lock=flock\n", true},
      {"36 35 0:52 / /mnt rw - lustre h:/x rw,localflock\n", true},
      {"36 35 0:52 / /mnt rw,relatime - nfs4 h:/x rw,vers=4.2,local_lock=none,addr=10.0.0.1\n", false},
      {"36 35 0:52 / /nolock rw - ext4 /dev/sda rw\n", false},
      {"36 35 0:53 / /mnt rw - nfs h:/x rw,nolock\n", false}};
  for (const auto &row : table) {
    cli_write(cli_path("mountinfo"), row.line, strlen(row.line));
    EXPECT(file_locks_are_local(cli_path("mountinfo"), makedev(0, 52)) == row.local, "%s", row.line);
  }
}
TEST_WAITS(out_of_another_run,
           "while another process has OUT the run ends with exit code 4 and one line, and --restarts starts it again, "
           "until OUT is free") {
  CliRun r;
  char path[600];
  snprintf(path, sizeof path, "%s/out/.lock", test_tmp());
  REQUIRE(make_directories(cli_path("out")), "no directory");
  const int fd = file_lock(path);
  REQUIRE(fd >= 0, "no lock: %s", strerror(errno));
  cli_start(&r, "exec %s %s --max_steps 2 --sample_tokens 0 --restarts 2 --out %s", cli_program(), cli_small(),
            cli_path("out"));
  for (double start = now_ms(); now_ms() - start < CLI_LIMIT_S * 1e3; usleep(20000)) {
    int64_t bytes;
    char *text = file_get(r.path, CLI_TEXT_BYTES, &bytes);
    const bool again = text && strstr(text, "it starts again");
    free(text);
    if (again) break;
  }
  close(fd);
  cli_wait(&r, CLI_LIMIT_S);
  EXPECT(!r.code && cli_count(r.text, ": another run is writing there; give this one another directory") == 1 &&
         cli_count(r.text, "warning: the run ended with exit code 4 after step 0; it starts again in 5 s (1 of 2) from "
                   "step 0") == 1, "exit code %d:\n%.3000s", r.code, r.text);
  cli_free(&r);
}
TEST(out_without_a_lock, "where OUT/.lock cannot be locked a warning says so and the run continues; a link that is "
     "where report.html or a GGUF is written first stays unwritten") {
  CliRun r;
  CLI_RUN(&r, "cd %s && mkdir -p out/.lock && echo mine >victim && ln -s ../victim out/report.html.part && "
          "ln -s ../victim out/model.gguf.tmp && exec %s %s --max_steps 2 --sample_tokens 0 --export_gguf f32 "
          "--out out", test_tmp(), cli_program(), cli_small());
  cli_expect_done(&r, "without a lock");
  EXPECT(cli_count(r.text, "warning: out/.lock cannot be locked: Is a directory; let no other run write to --out") == 1,
         "it printed:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "cd %s && [ \"$(cat victim)\" = mine ] && test -f out/report.html -a ! -L out/report.html && "
          "test -f out/model.gguf -a ! -L out/model.gguf && [ \"$(head -c4 out/model.gguf)\" = GGUF ]", test_tmp());
  cli_expect_done(&r, "a link as temporary file");
  cli_free(&r);
}

TEST(out_temporaries_are_made_afresh,
     "a file that is made for a temporary name never is one that is there, nor where a link leads; a small file "
     "and a flight record are written past such links") {
  char path[600], victim[600], temporary[700];
  struct stat st;
  int64_t bytes;
  snprintf(path, sizeof path, "%s", cli_path("file"));
  snprintf(victim, sizeof victim, "%s", cli_path("victim"));
  cli_write(victim, "mine", 4);
  REQUIRE(!symlink(victim, path), "no link");
  EXPECT(file_create(path, test_tmp()) < 0 && errno == EEXIST, "a link is opened as a new file");
  EXPECT(file_open(path) < 0 && errno == ELOOP, "a link is opened as another rank's file");
  EXPECT(file_make(path, O_RDWR | O_TRUNC, 0666) < 0 && errno == ELOOP, "a link is followed to be emptied");
  EXPECT(!file_make_stream(path) && errno == EEXIST, "a link is opened as a new stream");
  unlink(path);
  REQUIRE(!mkfifo(path, 0666), "no pipe");
  EXPECT(file_make(path, O_RDWR, 0666) < 0 && errno == EEXIST, "a pipe is opened as a file");
  unlink(path);
  REQUIRE(!symlink(cli_path("nothing"), path), "no link");
  EXPECT(file_create(path, test_tmp()) < 0 && access(cli_path("nothing"), F_OK), "a link makes a file elsewhere");
  unlink(path);
  snprintf(temporary, sizeof temporary, "%s.tmp%d", path, (int)getpid());
  REQUIRE(!symlink(victim, temporary), "no link");
  EXPECT(file_put(path, test_tmp(), "new", 3) && !lstat(path, &st) && S_ISREG(st.st_mode), "file_put: %s",
         strerror(errno));
  snprintf(path, sizeof path, "%s", cli_path("flight-0.json"));
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  REQUIRE(!symlink(victim, temporary), "no link");
  const FlightWho who = {"1", "host", "cause", "place", 1, 0, 1, 1};
  EXPECT(!flight_write(path, &who) && !lstat(path, &st) && S_ISREG(st.st_mode), "flight_write: %s", strerror(errno));
  char *text = file_get(victim, 100, &bytes);
  EXPECT(text && !strcmp(text, "mine"), "another file was written: %s", text ? text : "");
  free(text);
}

static char out_synced[4][600];
static int out_syncs, out_fault;
static int out_sync_hook(FileOp op, const char *path) {
  if (op == FILE_SYNC && out_syncs < 4) snprintf(out_synced[out_syncs++], sizeof out_synced[0], "%s", path);
  return op == FILE_SYNC ? out_fault : 0;
}
TEST(out_directories_last, "each directory that is made for OUT is made durable in the one above it, and none that was "
     "there; a failure of that is one") {
  char want[2][600];
  REQUIRE(!chdir(test_tmp()), "no directory");
  snprintf(want[0], sizeof want[0], "%s/", test_tmp());
  snprintf(want[1], sizeof want[1], "%s/a/", test_tmp());
  lent_file_hook(out_sync_hook);
  EXPECT(make_directories(cli_path("a/b")) && out_syncs == 2 && !strcmp(out_synced[0], want[0]) &&
         !strcmp(out_synced[1], want[1]), "%d syncs: %s, %s", out_syncs, out_synced[0], out_synced[1]);
  out_syncs = 0;
  EXPECT(make_directories(cli_path("a/b/")) && !out_syncs, "%d syncs of what was there", out_syncs);
  EXPECT(make_directories("c") && out_syncs == 1 && !strcmp(out_synced[0], "."), "a relative name: %s", out_synced[0]);
  out_fault = EIO;
  EXPECT(!make_directories("d") && errno == EIO, "a sync that fails is no failure");
  lent_file_hook(NULL);
}
