// test_rdzv.h: the rendezvous in memory and on one host: proofs of the token, frames, what is rejected, who is counted.
// Needs cli_helpers.h. Hosts are in test_rdzv_hosts.h.

// ---- two ends in memory ---------------------------------------------------------------------------------------------
// Moves bytes from one end to the other in pieces of at most `piece`; returns how many.
static inline size_t rdzv_move(RdzvLink *from, RdzvLink *to, size_t piece) {
  const size_t n = from->out.n < piece ? from->out.n : piece;
  rdzv_add(&to->in, from->out.p, n);
  rdzv_drop(&from->out, n);
  return n;
}
// Lets two ends talk until both are silent. seen: all bytes that went over the wire; NULL: not wanted.
static inline void rdzv_talk(RdzvLink *client, RdzvLink *server, size_t piece, RdzvBytes *seen) {
  RdzvFrame f;
  size_t used[2] = {0, 0};
  for (size_t moved = 1; moved;) {
    if (seen) rdzv_add(seen, client->out.p, client->out.n < piece ? client->out.n : piece);
    moved = rdzv_move(client, server, piece);
    rdzv_link_next(server, &f, &used[0]);
    if (seen) rdzv_add(seen, server->out.p, server->out.n < piece ? server->out.n : piece);
    moved += rdzv_move(server, client, piece);
    rdzv_link_next(client, &f, &used[1]);
  }
}
static inline void rdzv_pair(RdzvLink *client, RdzvLink *server, const char *theirs, const char *ours, size_t piece,
                             RdzvBytes *seen) {
  const ProveKey a = rdzv_token_key(theirs, strlen(theirs)), b = rdzv_token_key(ours, strlen(ours));
  rdzv_link_open(client, &a, true);
  rdzv_link_open(server, &b, false);
  rdzv_talk(client, server, piece, seen);
}
static inline bool rdzv_holds(const RdzvBytes *b, const void *what, size_t n) {
  return memmem(b->p, b->n, what, n) != NULL;
}

TEST(rdzv_both_ends_prove_the_token,
     "ends with one token open, in pieces of any size, and neither token nor key goes over the wire; with another "
     "token both know so and neither opens; a proof of yesterday, or the server's own, opens nothing") {
  static const char token[] = "a token of thirty-two characters";
  RdzvLink client, server;
  RdzvBytes seen = {}, replay = {};
  for (size_t piece : {(size_t)1, (size_t)7, (size_t)64, (size_t)4096}) {
    rdzv_pair(&client, &server, token, token, piece, &seen);
    EXPECT(client.prove.phase == PHASE_OPEN && server.prove.phase == PHASE_OPEN, "pieces of %zu: phases %d, %d",
           piece, client.prove.phase, server.prove.phase);
    EXPECT(!memcmp(&client.key_in, &server.key_out, PROVE_MAC) && !memcmp(&client.key_out, &server.key_in, PROVE_MAC) &&
           memcmp(&client.key_in, &client.key_out, PROVE_MAC), "keys do not match");
    const ProveKey key = rdzv_token_key(token, strlen(token));
    for (const void *secret : {(const void *)token, (const void *)&key, (const void *)&client.key_in,
                               (const void *)&client.key_out})
      EXPECT(!rdzv_holds(&seen, secret, 16), "a secret went over the wire");
    rdzv_link_close(&client);
    rdzv_link_close(&server);
  }
  for (const char *other : {"a token of thirty-two characterS", "", "a token of thirty-two character"}) {
    rdzv_pair(&client, &server, other, token, 4096, NULL);
    EXPECT(client.prove.phase == PHASE_BROKEN && server.prove.phase == PHASE_BROKEN && client.prove.rejected &&
           server.prove.wrong_key, "'%s': phases %d, %d, rejected %d, wrong %d", other, client.prove.phase,
           server.prove.phase, client.prove.rejected, server.prove.wrong_key);
    rdzv_link_close(&client);
    rdzv_link_close(&server);
  }
  // What a client said to another server, said again to a new one.
  const ProveKey key = rdzv_token_key(token, strlen(token));
  RdzvFrame f;
  size_t used = 0;
  rdzv_link_open(&client, &key, true);
  rdzv_link_open(&server, &key, false);
  rdzv_add(&replay, client.out.p, client.out.n);
  rdzv_move(&client, &server, 4096);
  rdzv_link_next(&server, &f, &used);
  rdzv_move(&server, &client, 4096);
  rdzv_link_next(&client, &f, &used);
  rdzv_add(&replay, client.out.p, client.out.n);
  rdzv_link_close(&server);
  rdzv_link_open(&server, &key, false);
  rdzv_add(&server.in, replay.p, replay.n);
  EXPECT(rdzv_link_next(&server, &f, &used) < 0 && server.prove.phase == PHASE_BROKEN, "yesterday's proof opens it");
  rdzv_link_close(&server);
  // A stranger who has no token asks a client, and gives its proof back to it as its own.
  RdzvLink stranger;
  rdzv_link_close(&client);
  rdzv_link_open(&client, &key, true);
  rdzv_link_open(&stranger, &key, false);
  rdzv_move(&client, &stranger, 4096);
  rdzv_link_next(&stranger, &f, &used);
  rdzv_move(&stranger, &client, 4096);
  rdzv_link_next(&client, &f, &used);
  rdzv_put32(client.out.p, PROVE_WELCOME);
  rdzv_add(&client.in, client.out.p, client.out.n);
  EXPECT(rdzv_link_next(&client, &f, &used) < 0 && client.prove.phase == PHASE_BROKEN,
         "its own proof convinces a client");
  for (RdzvLink *k : {&client, &stranger}) rdzv_link_close(k);
  rdzv_bytes_free(&seen);
  rdzv_bytes_free(&replay);
}

TEST(rdzv_frames_arrive_as_they_were_sent,
     "frames of 0 bytes to 1 MiB arrive whole and in order; any changed byte, a frame left out, repeated, swapped or "
     "given back to its sender ends the connection before the frame is seen; so does a longer one") {
  RdzvLink client, server;
  RdzvFrame f;
  size_t used = 0;
  uint8_t *large = (uint8_t *)malloc(RDZV_FRAME_MAX + 1);
  for (int i = 0; i <= RDZV_FRAME_MAX; i++) large[i] = (uint8_t)(i * 2654435761u >> 24);
  rdzv_pair(&client, &server, "t", "t", 4096, NULL);
  for (size_t n : {(size_t)0, (size_t)1, (size_t)100, (size_t)RDZV_FRAME_MAX}) {
    rdzv_link_send(&client, RDZV_INFO, large, n);
    while (client.out.n) {
      EXPECT(rdzv_link_next(&server, &f, &used) == 0, "a frame of %zu bytes came before its end", n);
      rdzv_move(&client, &server, n > 1000 ? 65536 : 13);
    }
    EXPECT(rdzv_link_next(&server, &f, &used) == 1 && f.type == RDZV_INFO && f.n == n &&
           (!n || !memcmp(f.payload, large, n)), "a frame of %zu bytes came as %zu", n, f.n);
  }
  rdzv_link_send(&client, RDZV_INFO, large, RDZV_FRAME_MAX + 1);
  rdzv_move(&client, &server, 4096);
  EXPECT(rdzv_link_next(&server, &f, &used) < 0, "a frame may be too long");
  rdzv_link_close(&client);
  rdzv_link_close(&server);
  free(large);
  enum { CHANGED, LEFT_OUT, REPEATED, SWAPPED, REFLECTED, WAYS };
  const size_t one = RDZV_HEAD + 5 + PROVE_MAC;
  for (int way = 0; way < WAYS; way++) for (size_t at = 0; at < (way == CHANGED ? 8 * one : 1); at++) {
    rdzv_pair(&client, &server, "t", "t", 4096, NULL);
    rdzv_link_send(&client, RDZV_READY, "first", 5);
    rdzv_link_send(&client, RDZV_READY, "other", 5);
    uint8_t *p = client.out.p, kept[RDZV_HEAD + 5 + PROVE_MAC];
    int whole = 0, got = 0;
    memcpy(kept, p, one);
    if (way == CHANGED) p[at / 8] = (uint8_t)(p[at / 8] ^ 1 << at % 8);
    if (way == LEFT_OUT) rdzv_drop(&client.out, one);
    if (way == REPEATED) memcpy(p + one, p, one), whole = 1;
    if (way == SWAPPED) memcpy(p, p + one, one), memcpy(p + one, kept, one);
    RdzvLink *to = way == REFLECTED ? &client : &server;
    rdzv_add(&to->in, client.out.p, client.out.n);
    for (used = 0; (got = rdzv_link_next(to, &f, &used)) > 0;) whole--;
    const bool waits = got == 0 && way == CHANGED && at / 8 >= 4 && at / 8 < 8;        // for a longer frame's end
    EXPECT(!whole && (got < 0 || waits), "way %d at bit %zu: %d frames too many, %d", way, at, -whole, got);
    rdzv_link_close(&client);
    rdzv_link_close(&server);
  }
}

TEST(rdzv_frames_are_read_where_they_lie,
     "a thousand frames that came at once are read in place, each after the one before: none is moved for another") {
  enum { FRAMES = 1000, BYTES = 100 };
  RdzvLink client, server;
  RdzvFrame f;
  uint8_t text[BYTES] = {};
  size_t used = 0;
  rdzv_pair(&client, &server, "t", "t", 4096, NULL);
  for (int i = 0; i < FRAMES; i++) {
    text[0] = (uint8_t)i;
    rdzv_link_send(&client, RDZV_INFO, text, BYTES);
  }
  rdzv_move(&client, &server, 1 << 20);
  const uint8_t *first = server.in.p + RDZV_HEAD;
  for (int i = 0; i < FRAMES; i++) {
    const bool whole = rdzv_link_next(&server, &f, &used) == 1 && f.n == BYTES && f.payload[0] == (uint8_t)i;
    EXPECT(whole && f.payload == first + (size_t)i * (RDZV_HEAD + BYTES + PROVE_MAC), "frame %d was moved", i);
  }
  EXPECT(rdzv_link_next(&server, &f, &used) == 0, "there is one more");
  // What is added between does not move what is there again and again, nor does memory grow without end.
  RdzvBytes b = {};
  for (int i = 0; i < 1000; i++) rdzv_add(&b, text, 1);
  for (int i = 0; i < 100000; i++) {
    const uint8_t next = (uint8_t)(i % 251);
    rdzv_add(&b, &next, 1);
    EXPECT(i < 1000 || *b.p == (uint8_t)((i - 1000) % 251), "byte %d is another", i);
    rdzv_drop(&b, 1);
    EXPECT(b.room + b.gone <= 8192, "%zu bytes for a thousand", b.room + b.gone);
  }
  rdzv_bytes_free(&b);
  rdzv_link_close(&client);
  rdzv_link_close(&server);
}

TEST(rdzv_strangers_get_little, "whoever has not proved the token: random bytes, long frames and known frames out of "
     "their order end the connection, which has kept no more than it was sent, and answered at most one frame") {
  uint64_t seed = 12345;
  const ProveKey key = rdzv_token_key("t", 1);
  for (int turn = 0; turn < 4000; turn++) {
    RdzvLink k;
    RdzvFrame f;
    size_t used = 0;
    uint8_t text[400];
    const size_t n = 1 + (size_t)(turn * 37 % 400);
    for (size_t i = 0; i < n; i++) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      text[i] = (uint8_t)(seed >> 56);
    }
    if (turn % 2) rdzv_put32(text, (uint32_t)(turn / 2 % 24));     // a type that there is
    if (turn % 4 == 3) rdzv_put32(text + 4, (uint32_t)(turn / 8 % 100));
    if (turn % 8 == 7) memcpy(text + 8, rdzv_magic, 8);
    rdzv_link_open(&k, &key, turn % 16 >= 8);
    const size_t said = k.out.n;
    for (size_t at = 0; at < n; at += 50) {
      rdzv_add(&k.in, text + at, n - at < 50 ? n - at : 50);
      const int got = rdzv_link_next(&k, &f, &used);
      EXPECT(got <= 0, "turn %d: a frame of type %d", turn, f.type);
      if (got < 0) break;
    }
    EXPECT(k.prove.phase != PHASE_OPEN && k.out.n - said <= RDZV_HEAD + PROVE_NONCE && k.in.room <= 2048,
           "turn %d: phase %d", turn, k.prove.phase);
    rdzv_link_close(&k);
  }
  for (uint32_t n : {(uint32_t)RDZV_EARLY_MAX + 1, (uint32_t)RDZV_FRAME_MAX, 0xffffffffu}) {
    RdzvLink k;
    RdzvFrame f;
    size_t used = 0;
    uint8_t head[RDZV_HEAD];
    rdzv_link_open(&k, &key, false);
    rdzv_put32(head, PROVE_HELLO);
    rdzv_put32(head + 4, n);
    rdzv_add(&k.in, head, sizeof head);
    EXPECT(rdzv_link_next(&k, &f, &used) < 0, "waits for %u bytes of a stranger", n);
    rdzv_link_close(&k);
  }
}

// ---- payloads -------------------------------------------------------------------------------------------------------
TEST(rdzv_payloads_are_read_as_written,
     "who a process is, the plan, an end and a command are read as written; cut anywhere, with a byte more, with "
     "control bytes or lengths that are not there they are rejected") {
  static RdzvInfo i = {1, 2, 3, 4, "host", "machine", "build", "mpi", "/program", "--lr 1\n--out x\n",
                       "0123456789abcdef0123456789abcdef", 3}, j;
  RdzvPlan q = {1, 2, 3, 2, 1, 1, "0123456789abcdef0123456789abcdef", "host", 1, 1, 8, 2}, s;
  RdzvEnd e;
  char first[] = "orted", second[] = "-mca";
  RdzvWords w = {{first, second}, 2}, x;
  RdzvBytes b[4] = {};
  rdzv_info_write(&b[0], &i);
  rdzv_plan_write(&b[1], &q);
  rdzv_end_write(&b[2], 85, "text");
  rdzv_words_write(&b[3], &w);
  EXPECT(rdzv_info_read(&j, b[0].p, b[0].n) && !memcmp(&i, &j, sizeof i), "info differs");
  EXPECT(rdzv_plan_read(&s, b[1].p, b[1].n) && s.first == 1 && s.ranks == 2 && s.world == 3 && s.lead == 1 &&
         s.start == 1 && s.resume == 1 && s.sequences == 8 && s.accum == 2 &&
         !strcmp(s.job, q.job) && !strcmp(s.host, "host"), "plan differs");
  EXPECT(rdzv_end_read(&e, b[2].p, b[2].n) && e.code == 85 && !strcmp(e.text, "text"), "end differs");
  REQUIRE(rdzv_words_read(&x, b[3].p, b[3].n) && x.count == 2, "words differ");
  EXPECT(!strcmp(x.word[0], "orted") && !strcmp(x.word[1], "-mca") && !x.word[2], "words differ");
  rdzv_words_free(&x);
  for (int k = 0; k < 4; k++) {
    const size_t n = b[k].n;
    rdzv_add(&b[k], "x", 1);
    for (size_t cut = 0; cut <= n + 1; cut++) {
      uint8_t *p = (uint8_t *)malloc(cut ? cut : 1);               // so that a sanitizer sees its end
      memcpy(p, b[k].p, cut);
      const bool read = k == 0 ? rdzv_info_read(&j, p, cut) : k == 1 ? rdzv_plan_read(&s, p, cut) :
                        k == 2 ? rdzv_end_read(&e, p, cut) : rdzv_words_read(&x, p, cut);
      EXPECT(read == (cut == n), "payload %d of %zu bytes, %zu of them: %s", k, n, cut, read ? "taken" : "refused");
      if (read && k == 3) rdzv_words_free(&x);
      free(p);
    }
    rdzv_bytes_free(&b[k]);
  }
  for (const char *text : {"a\nb", "a\x1b[2J", "\x7f"}) {
    RdzvBytes c = {};
    rdzv_end_write(&c, 0, text);
    EXPECT(!rdzv_end_read(&e, c.p, c.n), "control bytes are taken");
    rdzv_bytes_free(&c);
  }
  static const RdzvPlan wrong[] = {{2, 2, 3, 2, 1, 1, "0123456789abcdef0123456789abcdef", "host", 0, 0, 0, 0},
                                   {0, 0, 3, 2, 1, 1, "0123456789abcdef0123456789abcdef", "host", 0, 0, 0, 0},
                                   {INT64_MAX, INT64_MAX, 3, 2, 1, 1, "0123456789abcdef0123456789abcdef", "host", 0, 0,
                                    0, 0},
                                   {-1, 2, 3, 2, 1, 1, "0123456789abcdef0123456789abcdef", "host", 0, 0, 0, 0},
                                   {0, 2, 3, 2, 1, 1, "../../abcdef0123456789abcdef0123", "host", 0, 0, 0, 0},
                                   {0, 2, 3, 2, 1, 1, "0123456789abcdef0123456789abcdef", "host", 1, 1, -8, 2}};
  for (const RdzvPlan &y : wrong) {
    RdzvBytes c = {};
    rdzv_plan_write(&c, &y);
    EXPECT(!rdzv_plan_read(&s, c.p, c.n), "a plan of ranks %lld to %lld of %lld is taken", (long long)y.first,
           (long long)(y.first + y.ranks), (long long)y.world);
    rdzv_bytes_free(&c);
  }
}

// ---- Open MPI's daemon ----------------------------------------------------------------------------------------------
static inline RdzvWords rdzv_split(char *text) {
  RdzvWords w = {};
  for (char *word; (word = strsep(&text, " "));) if (*word) w.word[w.count++] = word;
  return w;
}
#define RDZV_ORTED "orted -mca ess env -mca ess_base_jobid 12 -mca ess_base_vpid 1 -mca ess_base_num_procs 2 " \
  "-mca orte_node_regex vm,node-[2:10-20]@0(3) -mca orte_hnp_uri 12.0;tcp://10.0.0.1:4;tcp6://[fd00::1]:5 -mca plm rsh"
#define RDZV_PRTED "prted --prtemca ess env --prtemca ess_base_nspace prterun-vm-7@0 --prtemca ess_base_vpid 1 " \
  "--prtemca ess_base_num_procs 2 --prtemca prte_hnp_uri prterun-vm-7@0.0;tcp4://10.0.0.1:4 --prtemca plm ssh"
TEST(rdzv_only_open_mpis_daemon_is_started,
     "the daemons of Open MPI 4 and 5 with the parameters they need are taken; any other program, path, parameter, "
     "value or form, one too few or too many, is rejected by name") {
  static const struct { const char *command, *why; } table[] = {
      {RDZV_ORTED, NULL}, {RDZV_PRTED, NULL},
      {"sh -c true", "'sh' is not"}, {"/bin/orted -mca ess env", "'/bin/orted' is not"}, {"orted", "orted lacks ess"},
      {"./orted -mca ess env", "'./orted' is not"}, {"mpirun -mca ess env", "'mpirun' is not"},
      {RDZV_ORTED " -mca mca_base_component_path /tmp/x", "'-mca mca_base_component_path /tmp/x'"},
      {RDZV_ORTED " -mca plm_rsh_agent /tmp/x", "'-mca plm_rsh_agent /tmp/x'"},
      {RDZV_ORTED " -mca orte_launch_agent /tmp/x", "'-mca orte_launch_agent /tmp/x'"},
      {RDZV_ORTED " --tree-spawn", "'--tree-spawn  '"}, {RDZV_ORTED " -mca ess", "'-mca ess '"},
      {RDZV_ORTED " -mca plm rsh", "twice"}, {RDZV_ORTED " --prtemca plm rsh", "'--prtemca plm rsh'"},
      {RDZV_ORTED " -am /tmp/x y", "'-am /tmp/x y'"},
      {RDZV_ORTED " -x LD_PRELOAD=/tmp/x y", "'-x LD_PRELOAD=/tmp/x y'"},
      {"orted -mca ess singleton", "'-mca ess singleton'"}, {"orted -mca ess_base_vpid -1", "'-mca ess_base_vpid -1'"},
      {"orted -mca orte_node_regex a$(b)", "'-mca orte_node_regex a$(b)'"},
      {"orted -mca orte_hnp_uri 12.0;tcp://`x`:4", "'-mca orte_hnp_uri 12.0;tcp://`x`:4'"},
      {"orted -mca orte_hnp_uri file:~/x", "'-mca orte_hnp_uri file:~/x'"},
      {"prted -mca ess env", "'-mca ess env'"}, {"prted --prtemca ess env", "prted lacks ess_base_nspace"}};
  for (const auto &row : table) {
    char text[1024];
    snprintf(text, sizeof text, "%s", row.command);
    const RdzvWords w = rdzv_split(text);
    const char *why = rdzv_daemon_rejected(&w);
    EXPECT(!why == !row.why && (!why || strstr(why, row.why)), "%s: %s, must be %s", row.command, why ? why : "taken",
           row.why ? row.why : "taken");
  }
  RdzvWords none = {};
  EXPECT(rdzv_daemon_rejected(&none), "no command at all is taken");
}

TEST(rdzv_finds_the_daemon_in_mpiruns_command,
     "out of what mpirun 4 and 5 pass to their remote agents, with quotes, paths, text for a shell and parameters of "
     "their own, comes a command that is taken; where there is none, none comes") {
  static const char *const mpirun4[] = {
      " orted", "-mca", "orte_leave_session_attached", "\"1\"", "-mca", "ess", "\"env\"", "-mca", "ess_base_jobid",
      "\"1899495424\"", "-mca", "ess_base_vpid", "2", "-mca", "ess_base_num_procs", "\"3\"", "-mca", "orte_node_regex",
      "\"vm,rdzv[1:1-2]@0(3)\"", "-mca", "orte_hnp_uri", "\"1899495424.0;tcp://192.0.2.2:54745\"", "-mca", "plm",
      "\"rsh\"", "-mca", "plm_rsh_agent", "\"/tmp/agent\"", "--daemonize", "-mca", "pmix", "\"^s1,s2,cray,isolated\""};
  static const char *const profile[] = {
      "(", "test", "!", "-r", "./.profile", "||", ".", "./.profile;",
      " PATH=/opt/bin:$PATH ; export PATH ;orted",
      "-mca", "ess", "\"env\"", "-mca", "ess_base_jobid", "\"7\"", "-mca", "ess_base_vpid", "1", "-mca",
      "ess_base_num_procs", "\"2\"", "-mca", "orte_node_regex", "\"a,b@0(2)\"", "-mca", "orte_hnp_uri",
      "\"7.0;tcp://10.0.0.1:4\"", "-mca", "plm", "\"rsh\"", ")"};
  static const char *const mpirun5[] = {
      "PRTE_PREFIX=/opt;export PRTE_PREFIX;LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;"
      "/opt/bin/prted",
      "--leave-session-attached", "--prtemca", "ess", "env", "--prtemca", "ess_base_nspace", "prterun-vm-12@0",
      "--prtemca", "ess_base_vpid", "1", "--prtemca", "ess_base_num_procs", "2", "--prtemca", "prte_hnp_uri",
      "\"prterun-vm-12@0.0;tcp4://10.0.0.1:4\"", "--prtemca", "plm", "ssh", "--pmixmca", "x", "y"};
  static const struct { const char *const *words; size_t count; const char *name; int words_left; } table[] = {
      {mpirun4, sizeof mpirun4 / sizeof *mpirun4, "orted", 22},
      {profile, sizeof profile / sizeof *profile, "orted", 22},
      {mpirun5, sizeof mpirun5 / sizeof *mpirun5, "prted", 19}};
  for (const auto &row : table) {
    RdzvWords w;
    REQUIRE(rdzv_daemon_from(&w, (int)row.count, (char *const *)row.words), "%s: not found", row.words[0]);
    const char *why = rdzv_daemon_rejected(&w);
    EXPECT(!why && w.count == row.words_left && !strcmp(w.word[0], row.name), "%s: %d words of %s, %s", row.words[0],
           w.count, w.word[0], why ? why : "taken");
    rdzv_words_free(&w);
  }
  RdzvWords w;
  for (const char *word : {"sh", "orted.sh", "xorted", ""})
    EXPECT(!rdzv_daemon_from(&w, 1, (char *const *)&word), "'%s' is a daemon", word);
}

// ---- what is asked --------------------------------------------------------------------------------------------------
static inline void rdzv_clear_environment() {
  for (const char *name : {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                           "TORCHELASTIC_USE_AGENT_STORE", "RDZV_TOKEN"}) unsetenv(name);
}
#define RDZV_NOT "", 0, 0, 0, 0, false
TEST(rdzv_asks_are_understood,
     "tcp://, file:// and env:// with what belongs to them: host, port, number and ranks; torchrun's own port is left "
     "to it; on one machine no token is needed, between hosts one of sixteen characters; everything else is rejected "
     "with what to type") {
  static const struct {
    const char *rdzv, *environment;
    int64_t nnodes, node_rank, nproc;
    const char *line, *host;                     // line: of the rejection; NULL: it is taken
    int port;
    int64_t index, members, ranks;
    bool local;
  } table[] = {
      {"tcp://10.0.0.1:29400", "RDZV_TOKEN=0123456789abcdef", 4, 3, 8, NULL, "10.0.0.1", 29400, 3, 4, 8, false},
      {"tcp://[fd00::1]:5", "RDZV_TOKEN=0123456789abcdef", 2, 0, -1, NULL, "fd00::1", 5, 0, 2, 1, false},
      {"tcp://node-0.cluster_a:65535", "RDZV_TOKEN=0123456789abcdef", 2, 1, 2, NULL, "node-0.cluster_a", 65535, 1, 2, 2,
       false},
      {"tcp://127.0.0.1:29400", "", 2, 1, 1, NULL, "127.0.0.1", 29400, 1, 2, 1, true},
      {"tcp://[::1]:29400", "", 2, 1, 1, NULL, "::1", 29400, 1, 2, 1, true},
      {"tcp://localhost:29400", "", 2, 1, 1, NULL, "localhost", 29400, 1, 2, 1, true},
      {"tcp://10.0.0.1:29400", "", -1, -1, 4, NULL, "10.0.0.1", 29400, 0, 1, 4, true},
      {"file:///shared/dir", "", 2, 1, 3, NULL, "", 0, 1, 2, 3, false},
      {"env://", "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 RANK=3 WORLD_SIZE=4 RDZV_TOKEN=0123456789abcdef", -1, -1, -1,
       NULL, "10.0.0.1", 29500, 3, 4, 1, false},
      {"env://", "MASTER_ADDR=h MASTER_PORT=29500 RANK=3 WORLD_SIZE=4 RDZV_TOKEN=0123456789abcdef LOCAL_RANK=1 "
       "LOCAL_WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True", -1, -1, -1, NULL, "h", 29501, 3, 4, 1, false},
      {"env://", "MASTER_ADDR=h MASTER_PORT=29500 RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "
       "TORCHELASTIC_USE_AGENT_STORE=True", -1, -1, -1, NULL, "h", 29500, 1, 2, 1, true},
      {"tcp://10.0.0.1:29400", "", 2, 0, 1, "needs a token that all processes know, of at least 16", RDZV_NOT},
      {"tcp://10.0.0.1:29400", "RDZV_TOKEN=0123456789abcde", 2, 0, 1, "RDZV_TOKEN has 15 characters", RDZV_NOT},
      {"tcp://10.0.0.1:29400", "RDZV_TOKEN=0123456789abcdef", 2, -1, 1, "needs --node_rank", RDZV_NOT},
      {"tcp://10.0.0.1:29400", "RDZV_TOKEN=0123456789abcdef", 2, 2, 1, "--node_rank 2 is not below --nnodes 2",
       RDZV_NOT},
      {"tcp://10.0.0.1", "", 2, 0, 1, "is not tcp://HOST:PORT", RDZV_NOT},
      {"tcp://10.0.0.1:0", "", 2, 0, 1, "is not tcp://HOST:PORT", RDZV_NOT},
      {"tcp://10.0.0.1:65536", "", 2, 0, 1, "is not tcp://HOST:PORT", RDZV_NOT},
      {"tcp://:29400", "", 2, 0, 1, "is not tcp://HOST:PORT", RDZV_NOT},
      {"tcp://fd00::1:29400", "", 2, 0, 1, "is not tcp://HOST:PORT", RDZV_NOT},
      {"tcp://[fd00::1]29400", "", 2, 0, 1, "is not tcp://HOST:PORT", RDZV_NOT},
      {"tcp://a b:29400", "", 2, 0, 1, "is not tcp://HOST:PORT", RDZV_NOT},
      {"file://shared/dir", "", 2, 0, 1, "is not auto, none, env://", RDZV_NOT},
      {"etcd://x:1", "", 2, 0, 1, "'etcd://x:1' is not auto, none, env://", RDZV_NOT},
      {"env://", "MASTER_ADDR=h MASTER_PORT=29500 RANK=3", -1, -1, -1, "--rdzv env:// needs WORLD_SIZE", RDZV_NOT},
      {"env://", "MASTER_ADDR=h MASTER_PORT=29500 RANK=4 WORLD_SIZE=4", -1, -1, -1, "RANK=4 is not below WORLD_SIZE=4",
       RDZV_NOT},
      {"env://", "MASTER_ADDR=h MASTER_PORT=29500 RANK=x WORLD_SIZE=4", -1, -1, -1, "RANK=x is not a whole number",
       RDZV_NOT},
      {"env://", "MASTER_ADDR=h MASTER_PORT=29500 RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", -1, -1, -1,
       "contradict each other", RDZV_NOT},
      {"env://", "MASTER_ADDR=h MASTER_PORT=29500 RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", -1, -1, -1,
       "needs a token", RDZV_NOT},
      {"env://", "MASTER_ADDR=h MASTER_PORT=29500 RANK=1 WORLD_SIZE=4", 2, 0, 1, "leave --nnodes, --node_rank",
       RDZV_NOT}};
  for (const auto &row : table) {
    RdzvAsk ask = {};
    RdzvWhere w;
    char text[400], *rest = text;
    Error error = {};
    snprintf(text, sizeof text, "%s", row.environment);
    rdzv_clear_environment();
    for (char *word; (word = strsep(&rest, " "));) {
      char *equals = strchr(word, '=');
      if (equals) *equals = 0, setenv(word, equals + 1, 1);
    }
    ask.rdzv = row.rdzv, ask.nnodes = row.nnodes, ask.node_rank = row.node_rank, ask.nproc_per_node = row.nproc;
    const bool taken = rdzv_where(&ask, &w, &error);
    EXPECT(taken == !row.line && (taken || strstr(error.text, row.line)), "%s, %s: %s", row.rdzv, row.environment,
           taken ? "taken" : error.text);
    EXPECT(!taken || (!strcmp(w.host, row.host) && w.port == row.port && w.index == row.index &&
           w.members == row.members && w.ranks == row.ranks && w.local == row.local),
           "%s, %s: %s port %d, %lld of %lld, %lld ranks, local %d", row.rdzv, row.environment, w.host, w.port,
           (long long)w.index, (long long)w.members, (long long)w.ranks, w.local);
  }
  rdzv_clear_environment();
}

TEST(rdzv_host_0s_file_is_read, "the file of file://: nonce, token and addresses are read as written; cut, doubled or "
     "foreign lines are rejected; one that others can write is not read, and a pipe of that name holds nobody up") {
  RdzvWhere w = {};
  RdzvOffer o, got;
  char text[RDZV_FILE_MAX], path[1200], job[RDZV_JOB_BYTES] = "0123456789abcdef0123456789abcdef";
  Error error = {};
  snprintf(w.dir, sizeof w.dir, "%s", test_tmp());
  REQUIRE(rdzv_file_offer(&w, &o, job, &error), "%s", error.text);
  net_address_of("10.0.0.1", 29400, &o.at.at[o.at.count++]);
  net_address_of("fd00::1", 29401, &o.at.at[o.at.count++]);
  REQUIRE(rdzv_offer_write(&w, &o), "cannot write");
  snprintf(path, sizeof path, "%s/%s", w.dir, RDZV_FILE_NAME);
  REQUIRE(rdzv_file_text(path, text), "cannot read");
  const size_t n = strlen(text);
  for (size_t cut = 0; cut <= n; cut++) {
    char part[RDZV_FILE_MAX];
    snprintf(part, sizeof part, "%.*s", (int)cut, text);
    const bool read = rdzv_offer_parse(&got, part);
    EXPECT(!read || (!strcmp(got.job, o.job) && !strcmp(got.token, o.token)), "cut at %zu: another job", cut);
    EXPECT(cut < n || (read && got.at.count == 2 && !memcmp(&got.at, &o.at, sizeof got.at)), "the whole differs");
  }
  for (const char *more : {"job 0123456789abcdef0123456789abcdef\n", "at 10.0.0.1\n", "at 10.0.0.1 0\n", "at x 1\n",
                           "run sh\n", "at 10.0.0.1 65536\n"}) {
    char part[RDZV_FILE_MAX];
    snprintf(part, sizeof part, "%s%s", text, more);
    EXPECT(!rdzv_offer_parse(&got, part), "taken: %s", more);
  }
  struct stat st;
  EXPECT(!stat(path, &st) && (st.st_mode & 0777) == 0600, "mode %o", st.st_mode);
  chmod(path, 0622);
  EXPECT(!rdzv_file_text(path, text) && errno == EPERM, "a file that others can write is read");
  chmod(path, 0600);
  rdzv_file_remove(&w, &o);
  EXPECT(access(path, F_OK), "it is left");
  REQUIRE(!mkfifo(path, 0600), "no pipe: %s", strerror(errno));
  alarm(60);                                     // where it would be waited for
  EXPECT(!rdzv_file_text(path, text) && errno == EPERM, "a pipe is read");
  alarm(0);
}
TEST(rdzv_token_files_are_private, "the file of --rdzv_token is a regular one of this user's or root's that nobody "
     "else may read or write; anything else is rejected with what to do, and a pipe holds nobody up") {
  static const struct { mode_t mode; const char *line; } table[] = {
      {0600, NULL}, {0400, NULL}, {0640, "is for others too (mode 640): chmod 600 it"}, {0604, "(mode 604)"},
      {0620, "(mode 620)"}, {0602, "(mode 602)"}, {0, "is no regular file"}};
  const char *file = cli_path("token");
  for (const auto &row : table) {
    RdzvAsk ask = {};
    ProveKey key;
    bool given;
    Error error = {};
    unlink(file);
    if (row.mode) cli_write(file, "a token of thirty-two characters\n", 33), chmod(file, row.mode);
    else REQUIRE(!mkfifo(file, 0600), "no pipe: %s", strerror(errno));
    ask.token_file = file;
    alarm(60);
    const bool taken = rdzv_token_read(&ask, &key, &given, &error);
    alarm(0);
    EXPECT(taken == !row.line && (taken || strstr(error.text, row.line)), "mode %o: %s", row.mode,
           taken ? "taken" : error.text);
  }
}
TEST(rdzv_daemons_connect_to_the_peer, "of the addresses that mpirun 4 and 5 name only that of the process which has "
     "proved the token is left in the daemon's command; without it there is no daemon, and the line says what to do") {
  static const struct { const char *uri, *peer, *left; } table[] = {
      {"12.0;tcp://10.0.0.1:4", "10.0.0.1", "12.0;tcp://10.0.0.1:4"},
      {"12.0;tcp://172.17.0.1,10.0.0.1:4;tcp6://[fd00::1]:5", "10.0.0.1", "12.0;tcp://10.0.0.1:4"},
      {"12.0;tcp://172.17.0.1,10.0.0.1:4;tcp6://[fd00::2,fd00::1]:5", "fd00::1", "12.0;tcp6://[fd00::1]:5"},
      {"prterun-a-7@0.0;tcp://192.0.2.9,10.0.0.1:48145:16,24", "10.0.0.1", "prterun-a-7@0.0;tcp://10.0.0.1:48145:24"},
      {"12.0;tcp://127.0.0.1:4", "", "12.0;tcp://127.0.0.1:4"},      // they rendezvous at a local socket
      {"12.0;tcp://10.0.0.11:4", "10.0.0.1", NULL}, {"12.0;tcp://110.0.0.1:4", "10.0.0.1", NULL},
      {"12.0;tcp6://[fd00::1]:5", "10.0.0.1", NULL}, {"12.0", "10.0.0.1", NULL}, {"12.0;", "10.0.0.1", NULL},
      {"12.0;10.0.0.1:4", "10.0.0.1", NULL}, {"12.0;tcp://10.0.0.1", "10.0.0.1", NULL},
      {"12.0;tcp://203.0.113.1:4", "", NULL}};
  for (const auto &row : table) {
    NetAddress peer = rdzv_local_meeting(1);
    char uri[200] = "", word[7][200];
    static const char *const words[] = {"orted", "-mca", "ess", "env", "-mca", "orte_hnp_uri"};
    RdzvWords w = {};
    if (row.peer[0]) net_address_of(row.peer, 29400, &peer);
    for (int i = 0; i < 7; i++) snprintf(w.word[w.count++] = word[i], 200, "%s", i < 6 ? words[i] : row.uri);
    const char *why = rdzv_daemon_to_peer(&w, (const sockaddr *)&peer.to, uri, sizeof uri);
    EXPECT(!why == (row.left != NULL), "%s, peer %s: %s", row.uri, row.peer, why ? why : w.word[6]);
    EXPECT(why ? strstr(why, "OMPI_MCA_oob_tcp_if_include") != NULL : !strcmp(w.word[6], row.left), "%s, peer %s: %s",
           row.uri, row.peer, why ? why : w.word[6]);
  }
}

// ---- many hosts -----------------------------------------------------------------------------------------------------
// In a process of its own: `hosts` of two ranks each, all at once, and beside them strangers: silent ones, one that
// talks nonsense, one with another token, one that comes twice. Exit code: hosts that were not served as they should.
struct RdzvGuest { int fd; RdzvLink link; size_t used; bool over, taken, told; int64_t first; };
static inline void rdzv_guest_tell(RdzvGuest *g, RdzvInfo *me, int i, int hosts) {
  RdzvBytes b = {};
  g->told = true;
  me->index = 1 + (i < hosts ? i : 0), me->members = hosts + 1, me->ranks = 2, me->pid = 1000 + i;
  snprintf(me->host, sizeof me->host, "host%d", i);
  snprintf(me->machine, sizeof me->machine, "machine%d", i / 2);                 // two processes on each
  rdzv_info_write(&b, me);
  rdzv_link_send(&g->link, RDZV_INFO, b.p, b.n);
  rdzv_bytes_free(&b);
}
static inline void rdzv_guest_frame(RdzvGuest *g, const RdzvFrame *f) {
  RdzvPlan q;
  RdzvEnd e;
  g->taken = g->taken || f->type == RDZV_TAKEN;
  if (f->type == RDZV_PLAN && rdzv_plan_read(&q, f->payload, f->n)) {
    g->first = q.ranks == 2 ? q.first : -2;
    rdzv_link_send(&g->link, RDZV_READY, NULL, 0);
  }
  if (f->type == RDZV_END) g->over = rdzv_end_read(&e, f->payload, f->n) && e.code == (g->taken ? 7 : 2);
}
static inline int rdzv_guests(const NetAddress *to, int hosts) {
  enum { SILENT = 40, TWICE = 1, OTHER = 1, NONSENSE = 1 };
  const int all = hosts + SILENT + TWICE + OTHER + NONSENSE;
  RdzvGuest *guest = (RdzvGuest *)calloc((size_t)all, sizeof(RdzvGuest));
  RdzvInfo *me = (RdzvInfo *)calloc(1, sizeof(RdzvInfo));
  const ProveKey token = rdzv_token_key("token", 5), other = rdzv_token_key("other", 5);
  rdzv_raise_files(all);
  for (int i = 0; i < all; i++) {
    RdzvGuest *g = &guest[i];
    g->first = -1;
    g->fd = net_connect(to, 10000);
    if (g->fd < 0) return 255;
    if (i >= hosts && i < hosts + SILENT) continue;
    rdzv_link_open(&g->link, i == hosts + SILENT + TWICE ? &other : &token, true);
    if (i == hosts + SILENT + TWICE + OTHER) rdzv_add(&g->link.out, "GET / HTTP/1.0\r\n\r\n", 18);
  }
  for (int left = 1; left;) {
    pollfd *p = (pollfd *)calloc((size_t)all, sizeof(pollfd));
    left = 0;
    for (int i = 0; i < all; i++) {
      // The one that comes twice does so once the first is there, and before the last comes.
      const bool turn = i == hosts + SILENT ? guest[0].taken : i != hosts - 1 || guest[hosts + SILENT].over;
      if (guest[i].link.prove.phase == PHASE_OPEN && !guest[i].told && turn) rdzv_guest_tell(&guest[i], me, i, hosts);
      p[i] = pollfd{guest[i].fd, POLLIN, 0};
      left += i < hosts && guest[i].fd >= 0;
      if (guest[i].fd >= 0 && !rdzv_send(guest[i].fd, &guest[i].link)) p[i].revents = POLLHUP;
    }
    if (poll(p, (nfds_t)all, 30000) == 0) break;
    for (int i = 0; i < all; i++) {
      RdzvGuest *g = &guest[i];
      RdzvFrame f;
      if (!p[i].revents || g->fd < 0) continue;
      const bool alive = rdzv_receive(g->fd, &g->link);
      int got = 0;
      while ((got = rdzv_link_next(&g->link, &f, &g->used)) > 0) rdzv_guest_frame(g, &f);
      if (alive && got >= 0 && !g->over) continue;
      close(g->fd);
      g->fd = -1;
    }
    free(p);
  }
  int wrong = 0;
  bool *rank = (bool *)calloc((size_t)hosts * 2 + 4, 1);
  for (int i = 0; i < hosts; i++) {
    const RdzvGuest *g = &guest[i];
    const bool good = g->over && g->taken && g->first >= 1 && g->first < 2 * hosts && !rank[g->first] &&
                      !rank[g->first + 1];
    if (good) rank[g->first] = rank[g->first + 1] = true;
    wrong += !good;
  }
  wrong += guest[hosts + SILENT].over ? 0 : 1;                     // it came twice, and was told
  return wrong > 250 ? 250 : wrong;
}
static inline void rdzv_gather_many(int hosts) {
  RdzvAsk ask = {};
  static RdzvWhere w;
  static RdzvInfo me;
  RdzvHost *h = (RdzvHost *)malloc(sizeof(RdzvHost));
  NetAddress at;
  ask.timeout_s = 120;
  w.members = hosts + 1, w.ranks = 1;
  w.token = rdzv_token_key("token", 5);
  snprintf(w.text, sizeof w.text, "this test");
  strcpy(me.host, "here");
  strcpy(me.machine, "here");
  net_address_of("127.0.0.1", 0, &at);
  rdzv_raise_files(hosts);
  const int listener = net_listen(&at, 1024);
  REQUIRE(listener >= 0 && !getsockname(listener, (sockaddr *)&at.to, &at.bytes), "no socket: %s", strerror(errno));
  fflush(NULL);
  const pid_t child = fork();
  if (!child) _exit(rdzv_guests(&at, hosts));
  const double begun = now_ms();
  rdzv_host_open(h, &ask, &w, &me, &listener, 1);
  const bool all = rdzv_host_gather(h) && rdzv_host_plan(h) && rdzv_host_ready(h);
  const double ms = now_ms() - begun;
  EXPECT(all, "ended: %s", h->text);
  EXPECT(h->world == 2 * hosts + 1 && h->machines == 1 + (hosts + 1) / 2, "%lld ranks on %lld machines",
         (long long)h->world, (long long)h->machines);
  EXPECT(h->strangers == 1, "%d had another token", h->strangers);
  rdzv_host_end(h, 7, "%s", "");
  rdzv_host_close(h);
  free(h);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && !WEXITSTATUS(status), "%d hosts were not served as they should",
         WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  if (hosts >= 1000) fprintf(stderr, "NOTE: %d hosts met in %.2f s\n", hosts + 1, ms / 1e3);
}
TEST(rdzv_slow_clients_are_closed,
     "a connection that says nothing, or stops in the middle of its proof, is closed when its time is over") {
  RdzvAsk ask = {};
  RdzvWhere w = {};
  static RdzvInfo me;
  static RdzvHost h;
  NetAddress at;
  w.members = 2, w.ranks = 1;
  net_address_of("127.0.0.1", 0, &at);
  const int listener = net_listen(&at, 1024);
  REQUIRE(listener >= 0 && !getsockname(listener, (sockaddr *)&at.to, &at.bytes), "no socket: %s", strerror(errno));
  rdzv_proof_ms = 100;
  rdzv_host_open(&h, &ask, &w, &me, &listener, 1);
  for (int says = 0; says < 2; says++) {
    char byte;
    RdzvLink k;
    const int fd = net_connect(&at, 10000);
    REQUIRE(fd >= 0, "cannot connect: %s", strerror(errno));
    rdzv_link_open(&k, &w.token, true);
    if (says) rdzv_send(fd, &k);
    bool closed = false;
    for (const double begun = now_ms(); !closed && now_ms() - begun < 30000;) {
      rdzv_host_look(&h, 20);
      while (!closed && recv(fd, &byte, 1, MSG_DONTWAIT) >= 0) closed = h.clients == 0;
    }
    EXPECT(closed, "%s: it is kept", says ? "a greeting and no proof" : "silence");
    rdzv_link_close(&k);
    close(fd);
  }
  rdzv_proof_ms = 10000;
  rdzv_host_end(&h, 0, "%s", "");
  rdzv_host_close(&h);
}
// ---- strangers, and those who leave ---------------------------------------------------------------------------------
// What this process prints on stderr goes to a file of the test from here on, until rdzv_heard_of gives it back and
// says how many of its lines have `what` in them, "": all.
static int rdzv_stderr = -1;
static inline void rdzv_hear_stderr() {
  fflush(NULL);
  rdzv_stderr = dup(STDERR_FILENO);
  const int fd = open(cli_path("stderr"), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  dup2(fd, STDERR_FILENO);
  close(fd);
}
static inline int rdzv_heard_of(const char *what) {
  fflush(NULL);
  dup2(rdzv_stderr, STDERR_FILENO);
  close(rdzv_stderr);
  static char text[1 << 16];
  FILE *f = fopen(cli_path("stderr"), "r");
  const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  return cli_count(text, what);
}
// Host 0 of two in the middle of a run, whose other member leads a machine: *theirs: its end of the connection.
static inline void rdzv_two_hosts(RdzvHost *h, RdzvAsk *ask, RdzvWhere *w, RdzvInfo *me, int *theirs, RdzvLink *link) {
  int pair[2];
  w->members = 2, w->ranks = 1;
  rdzv_host_open(h, ask, w, me, NULL, 0);
  EXPECT(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), "no sockets");
  RdzvClient *c = (RdzvClient *)calloc(1, sizeof(RdzvClient));
  c->fd = pair[0], c->member = 1;
  *theirs = pair[1];
  rdzv_pair(link, &c->link, "t", "t", 4096, NULL);
  h->client = (RdzvClient **)calloc(1, sizeof(RdzvClient *));
  h->client[h->clients++] = c;
  RdzvMember *m = &h->member[1];
  m->here = m->ready = m->lead = true;
  m->client = c, m->ranks = 1, m->machine = 1;
  snprintf(m->label, sizeof m->label, "host1");
  h->planned = true;
  const NetAddress a = rdzv_hand_address(h->job);
  h->hand = net_listen(&a, 1024);
  EXPECT(h->hand >= 0, "no local socket: %s", strerror(errno));
}
// mpirun's remote agent for that host, in a process of its own. waits: it hears the answer, its exit code. user: of
// another one.
static inline pid_t rdzv_agent_comes(const char *job, int times, bool waits, bool other) {
  static char text[600];
  char host[] = "host1";
  fflush(NULL);
  const pid_t child = fork();
  if (child) return child;
  if (other && (setgid(65534) || setuid(65534))) _exit(99);
  snprintf(text, sizeof text, "%s", RDZV_ORTED);
  RdzvWords w = rdzv_split(text);
  char *words[RDZV_WORDS_MAX + 1] = {host};
  for (int i = 0; i < w.count; i++) words[1 + i] = w.word[i];
  if (waits) _exit(rdzv_hand_main(1 + w.count, words, job));
  RdzvBytes b = {};
  rdzv_add_text(&b, host);
  rdzv_words_write(&b, &w);
  const NetAddress a = rdzv_hand_address(job);
  int came = 0;
  for (int i = 0; i < times; i++) {
    int fd = -1;
    for (int turn = 0; turn < 60000 && fd < 0; turn++) {           // as many stand before the door as the kernel lets
      fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (!connect(fd, (const sockaddr *)&a.to, a.bytes)) break;
      close(fd);
      fd = -1;
      usleep(1000);
    }
    came += fd >= 0 && (other || send(fd, b.p, b.n, MSG_NOSIGNAL) == (ssize_t)b.n);
    close(fd);
  }
  _exit(came == times ? 0 : 98);
}
// Host 0 continues until the child has ended; its exit code.
static inline int rdzv_look_until(RdzvHost *h, pid_t child) {
  int status = 0;
  while (waitpid(child, &status, WNOHANG) != child) rdzv_host_look(h, 5);
  for (pollfd p = {h->hand, POLLIN, 0}; h->hand >= 0 && poll(&p, 1, 0) == 1;) rdzv_host_look(h, 5);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
TEST(rdzv_a_leader_that_left_starts_nothing,
     "the daemon's command goes to the process that leads its machine; when that one's connection ends while mpirun's "
     "remote agent stands before the door, or before it comes, the agent is told no, and nothing is sent by a "
     "connection that is gone") {
  for (int turn = 0; turn < 3; turn++) {         // it is there; it leaves as the agent comes; it has left
    RdzvAsk ask = {};
    RdzvWhere w = {};
    static RdzvInfo me;
    static RdzvHost h;
    RdzvLink link;
    int theirs;
    rdzv_two_hosts(&h, &ask, &w, &me, &theirs, &link);
    rdzv_hear_stderr();
    if (turn == 2) shutdown(theirs, SHUT_RDWR), rdzv_host_look(&h, 1000);
    const pid_t child = rdzv_agent_comes(h.job, 1, true, false);
    pollfd p = {h.hand, POLLIN, 0};
    poll(&p, 1, 60000);
    if (turn == 1) shutdown(theirs, SHUT_RDWR);
    const int code = rdzv_look_until(&h, child);
    RdzvFrame f = {};
    size_t used = 0;
    if (!turn) rdzv_receive(theirs, &link);
    const bool told = !turn && rdzv_link_next(&link, &f, &used) == 1 && f.type == RDZV_DAEMON;
    rdzv_heard_of("");
    EXPECT(code == (turn ? 1 : 0) && told == !turn, "turn %d: the agent ended with %d, the leader was told %d", turn,
           code, told);
    EXPECT(h.over == (turn > 0) && (!turn || h.code == EXIT_LOST), "turn %d: over %d, code %d: %s", turn, h.over,
           h.code, h.text);
    EXPECT(!turn == (h.member[1].client != NULL), "turn %d: the leader's connection is not as it must be", turn);
    close(theirs);
    rdzv_link_close(&link);
    rdzv_host_end(&h, 0, "%s", "");
    h.said = true;
    rdzv_host_close(&h);
  }
}
TEST(rdzv_strangers_at_the_door_make_no_line,
     "another user's process that connects 3,000 times to the name by which mpirun's remote agent comes makes no line "
     "and ends nothing (where root runs this); an agent of ours that does not wait for its answer is told of once") {
  RdzvAsk ask = {};
  RdzvWhere w = {};
  static RdzvInfo me;
  static RdzvHost h;
  RdzvLink link;
  int theirs;
  rdzv_two_hosts(&h, &ask, &w, &me, &theirs, &link);
  if (!geteuid()) {
    rdzv_hear_stderr();
    const int code = rdzv_look_until(&h, rdzv_agent_comes(h.job, 3000, false, true));
    const int lines = rdzv_heard_of("");
    EXPECT(!code && !lines && !h.over, "code %d, %d lines, over %d", code, lines, h.over);
  }
  rdzv_hear_stderr();
  const pid_t child = rdzv_agent_comes(h.job, 20, false, false);
  int status = 0;
  waitpid(child, &status, 0);                    // all have left before the first is heard
  rdzv_host_look(&h, 1000);
  for (pollfd p = {h.hand, POLLIN, 0}; poll(&p, 1, 0) == 1;) rdzv_host_look(&h, 5);
  const int lines = rdzv_heard_of("mpirun's remote agent has gone\n");
  EXPECT(lines == 1 && !status && !h.over, "%d lines, status %d, over %d", lines, status, h.over);
  close(theirs);
  rdzv_link_close(&link);
  h.said = true;
  rdzv_host_end(&h, 0, "%s", "");
  rdzv_host_close(&h);
}

// A connection to host 0 that comes from an address of this machine.
static inline int rdzv_come_from(const char *from, const NetAddress *to) {
  NetAddress mine;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  net_address_of(from, 0, &mine);
  EXPECT(!bind(fd, (const sockaddr *)&mine.to, mine.bytes) && !connect(fd, (const sockaddr *)&to->to, to->bytes),
         "from %s: %s", from, strerror(errno));
  return fd;
}
// Host 0 and this guest take turns until the guest's link has the phase or nothing comes for a look; host 0's answers
// are there at once, since all are of one process.
static inline void rdzv_take_turns(RdzvHost *h, int fd, RdzvLink *k, ProvePhase until) {
  RdzvFrame f;
  size_t used = 0;
  for (int turn = 0; turn < 100 && k->prove.phase != until && k->prove.phase != PHASE_BROKEN; turn++) {
    if (!rdzv_send(fd, k)) return;
    rdzv_host_look(h, 10);
    if (!rdzv_receive(fd, k)) return;
    rdzv_link_next(k, &f, &used);
  }
}
TEST(rdzv_a_flood_closes_its_own,
     "a host in the middle of its proof is let in, though three times as many connections as there is room come from "
     "one other address meanwhile; after the plan eight that prove nothing are kept; who comes too late is told so") {
  enum { FLOOD = 400 };
  RdzvAsk ask = {};
  RdzvWhere w = {};
  static RdzvInfo me, late;
  static RdzvHost h;
  NetAddress at;
  int fd[FLOOD + 20], strangers = 0;
  w.members = 2, w.ranks = 1;
  w.token = rdzv_token_key("token", 5);
  net_address_of("127.0.0.1", 0, &at);
  const int listener = net_listen(&at, 1024);
  REQUIRE(listener >= 0 && !getsockname(listener, (sockaddr *)&at.to, &at.bytes), "no socket: %s", strerror(errno));
  rdzv_raise_files(FLOOD + 200);
  rdzv_proof_ms = 1e9;                           // nobody goes for being slow
  rdzv_host_open(&h, &ask, &w, &me, &listener, 1);
  RdzvGuest guest[2] = {};
  for (int turn = 0; turn < 2; turn++) {
    RdzvGuest *g = &guest[turn];
    g->fd = rdzv_come_from(turn ? "127.0.0.3" : "127.0.0.2", &at);
    rdzv_link_open(&g->link, &w.token, true);
    rdzv_take_turns(&h, g->fd, &g->link, PHASE_WELCOME);
    EXPECT(g->link.prove.phase == PHASE_WELCOME, "turn %d: no challenge", turn);
    for (int i = turn ? 20 : FLOOD; i > 0; i--) {
      fd[strangers++] = rdzv_come_from("127.0.0.1", &at);
      if (i % 20 == 1) rdzv_host_look(&h, 10);
    }
    for (pollfd p = {listener, POLLIN, 0}; poll(&p, 1, 0) == 1;) rdzv_host_look(&h, 10);
    EXPECT(h.clients == (turn ? 8 + 1 : 2 + RDZV_SPARE_CLIENTS), "turn %d: %d connections are kept", turn, h.clients);
    rdzv_take_turns(&h, g->fd, &g->link, PHASE_OPEN);
    EXPECT(g->link.prove.phase == PHASE_OPEN, "turn %d: it had to go", turn);
    if (turn) break;
    h.client[h.clients] = NULL;                  // the first is counted, and the run starts
    for (int i = 0; i < h.clients; i++) {
      if (h.client[i]->link.prove.phase != PHASE_OPEN) continue;
      h.client[i]->member = 1;
      h.member[1].here = true, h.member[1].client = h.client[i], h.here++;
    }
    h.planned = true;
  }
  RdzvFrame f = {};
  RdzvEnd e = {};
  rdzv_guest_tell(&guest[1], &late, 0, 1);
  rdzv_hear_stderr();
  for (int turn = 0; turn < 100 && rdzv_send(guest[1].fd, &guest[1].link); turn++) {
    rdzv_host_look(&h, 10);
    rdzv_receive(guest[1].fd, &guest[1].link);
    if (rdzv_link_next(&guest[1].link, &f, &guest[1].used) == 1) break;
  }
  rdzv_heard_of("");
  EXPECT(f.type == RDZV_END && rdzv_end_read(&e, f.payload, f.n) && e.text[0], "too late: frame %d", f.type);
  for (int i = 0; i < strangers; i++) close(fd[i]);
  for (RdzvGuest &g : guest) { close(g.fd); rdzv_link_close(&g.link); }
  rdzv_proof_ms = 10000;
  rdzv_host_end(&h, 0, "%s", "");
  rdzv_host_close(&h);
}

// In a process of its own: host 0's address, at which `rejections` connections find another token, then one finds the
// right one. Exit code 0: so many came.
static inline pid_t rdzv_another_first(int listener, int rejections, const ProveKey *right) {
  const ProveKey wrong = rdzv_token_key("wrong", 5);
  fflush(NULL);
  const pid_t child = fork();
  if (child) return child;
  int turn = 0;
  for (pollfd p = {listener, POLLIN, 0}; turn <= rejections && poll(&p, 1, 60000) == 1; turn++) {
    RdzvLink k;
    RdzvFrame f;
    size_t used = 0;
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    rdzv_link_open(&k, turn < rejections ? &wrong : right, false);
    for (pollfd q = {fd, POLLIN, 0}; k.prove.phase < PHASE_OPEN && poll(&q, 1, 60000) == 1;) {
      if (!rdzv_receive(fd, &k)) break;
      rdzv_link_next(&k, &f, &used);
      rdzv_send(fd, &k);
    }
    if (turn == rejections && k.prove.phase != PHASE_OPEN) _exit(2);
    close(fd);
  }
  _exit(turn == rejections + 1 ? 0 : 1);
}
TEST(rdzv_a_rejection_is_tried_again,
     "whoever has host 0's port first and rejects the token three times keeps no process out: that is said once, at "
     "the first; where it continues so, the line and exit code 2 come when the time for it is over") {
  RdzvAsk ask = {};
  static RdzvWhere w;
  NetAddress at;
  ask.timeout_s = 60;
  w.members = 2, w.index = 1, w.ranks = 1;
  w.token = rdzv_token_key("token", 5);
  net_address_of("127.0.0.1", 0, &at);
  const int listener = net_listen(&at, 1024);
  REQUIRE(listener >= 0 && !getsockname(listener, (sockaddr *)&at.to, &at.bytes), "no socket: %s", strerror(errno));
  w.port = ntohs(((sockaddr_in *)&at.to)->sin_port);
  snprintf(w.host, sizeof w.host, "127.0.0.1");
  snprintf(w.text, sizeof w.text, "this test");
  for (int turn = 0; turn < 2; turn++) {
    RdzvAgent a = {};
    a.ask = &ask, a.where = &w, a.fd = a.signals = -1;
    rdzv_rejected_ms = turn ? 0 : 600000;
    const pid_t child = rdzv_another_first(listener, turn ? 1 : 3, &w.token);
    rdzv_hear_stderr();
    const bool met = rdzv_agent_meet(&a);
    const int lines = rdzv_heard_of("host 0 at this test knows another token: give all processes the same");
    EXPECT(met == !turn && lines == 1, "turn %d: met %d, %d lines", turn, met, lines);
    EXPECT(!turn || (a.end.code == EXIT_USAGE && strstr(a.end.text, "host 0 at this test knows another token")),
           "code %lld: %s", (long long)a.end.code, a.end.text);
    EXPECT(turn || (!a.end.code && a.fd >= 0), "what was said of the first stays");
    int status = 0;
    if (turn) kill(child, SIGKILL);
    waitpid(child, &status, 0);
    EXPECT(turn || !status, "turn %d: connections came otherwise", turn);
    if (a.fd >= 0) close(a.fd);
    rdzv_link_close(&a.link);
  }
  rdzv_rejected_ms = 60000;
  close(listener);
}
TEST(rdzv_a_squatted_name_is_named,
     "where another user's process has the local name at which processes of one machine rendezvous (root runs this), "
     "host 0 and the others say so, with the name; a rendezvous of one's own there is named as today") {
  RdzvAsk ask = {};
  static RdzvWhere w;
  char name[64];
  Error error = {};
  ask.timeout_s = 20;
  w.members = 2, w.index = 1, w.ranks = 1, w.local = true, w.port = 20000 + getpid() % 40000;
  snprintf(w.text, sizeof w.text, "this test");
  snprintf(name, sizeof name, "has the name @train_gpt_fsdp/rdzv/%d/%d on", (int)getuid(), w.port);
  const NetAddress at = rdzv_local_meeting(w.port);
  const int ours = rdzv_listen(&w, &error);
  REQUIRE(ours >= 0, "%s", error.text);
  EXPECT(rdzv_listen(&w, &error) < 0 && strstr(error.text, "is in use by another rendezvous"), "%s", error.text);
  close(ours);
  if (geteuid()) SKIP("another user's process takes root");
  int ready[2];
  REQUIRE(!pipe(ready), "no pipe");
  fflush(NULL);
  const pid_t child = fork();
  if (!child) {
    const bool listens = !setgid(65534) && !setuid(65534) && net_listen(&at, 1024) >= 0;
    if (write(ready[1], listens ? "1" : "0", 1) < 0) _exit(1);
    for (;;) pause();
  }
  char listens = 0;
  const bool told = read(ready[0], &listens, 1) == 1 && listens == '1';
  EXPECT(told && rdzv_listen(&w, &error) < 0 && strstr(error.text, name), "%s", error.text);
  RdzvAgent a = {};
  a.ask = &ask, a.where = &w, a.fd = a.signals = -1;
  rdzv_rejected_ms = 0;
  rdzv_hear_stderr();
  const bool met = rdzv_agent_meet(&a);
  const int lines = rdzv_heard_of(name);
  EXPECT(!met && a.end.code == EXIT_USAGE && strstr(a.end.text, name) && lines == 1, "code %lld, %d lines: %s",
         (long long)a.end.code, lines, a.end.text);
  rdzv_rejected_ms = 60000;
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
}
TEST(rdzv_many_hosts_meet,
     "64 hosts that come at once, two processes on each machine, all get ranks of their own and hear of the end, "
     "beside 40 silent connections, one that talks nonsense, one with another token and one that comes twice") {
  rdzv_gather_many(64);
}
TEST(rdzv_1024_hosts_meet_all, "so do 1,024 hosts") { rdzv_gather_many(1023); }
