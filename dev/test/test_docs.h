// test_docs.h: everything that README.md, CONTRIBUTING.md and docs/*.md name exists: links and their anchors, options,
// files, tests. It only reads, in the repository's root, like test_first_hour.h.
#include <glob.h>

enum { DOCS_MAX = 64, DOCS_README_LINES = 150, DOCS_README_COLUMNS = 120 };
struct Doc { char path[256]; char *text; };
struct Docs { Doc doc[DOCS_MAX]; int count; };

static void docs_add(Docs *d, const char *path) {
  Doc *doc = &d->doc[d->count];
  int64_t bytes;
  REQUIRE(d->count < DOCS_MAX, "more than %d pages", DOCS_MAX);
  snprintf(doc->path, sizeof doc->path, "%s", path);
  doc->text = file_get(path, 1 << 20, &bytes);
  REQUIRE(doc->text, "%s cannot be read: %s", path, strerror(errno));
  d->count++;
}
static const Docs *docs_read() {
  static Docs d;
  glob_t pages;
  first_need_repository();
  if (d.count) return &d;
  docs_add(&d, "README.md");
  docs_add(&d, "CONTRIBUTING.md");
  EXPECT(!glob("docs/*.md", 0, NULL, &pages) && pages.gl_pathc > 5, "no pages in docs/");
  for (size_t i = 0; i < pages.gl_pathc; i++) docs_add(&d, pages.gl_pathv[i]);
  globfree(&pages);
  return &d;
}

// ---- lines ----------------------------------------------------------------------------------------------------------
// The next line of a text, without its end; false after the last. fenced: it is in a block of code, or starts or ends
// one.
struct DocLines { const char *at; int number; bool in_fence, fenced; char line[4096]; };
static DocLines docs_lines(const Doc *doc) {
  DocLines l = {};
  l.at = doc->text;
  return l;
}
static bool docs_next(DocLines *l) {
  if (!*l->at) return false;
  const size_t n = strcspn(l->at, "\n");
  snprintf(l->line, sizeof l->line, "%.*s", (int)n, l->at);
  l->at += n + (l->at[n] == '\n');
  l->number++;
  const bool fence = !strncmp(l->line, "```", 3);
  l->fenced = l->in_fence || fence;
  if (fence) l->in_fence = !l->in_fence;
  return true;
}
// Blanks the text between backticks.
static void docs_without_code(char *line) {
  bool code = false;
  for (char *c = line; *c; c++) {
    if (*c == '`') code = !code;
    else if (code) *c = ' ';
  }
}

// ---- links ----------------------------------------------------------------------------------------------------------
// GitHub's anchor of a heading: lower case, spaces become hyphens, other characters are dropped except letters, digits,
// _ and -.
static void docs_anchor(char *to, const char *heading) {
  for (const uint8_t *c = (const uint8_t *)heading; *c; c++) {
    if (*c == ' ') *to++ = '-';
    else if (isalnum(*c) || *c == '_' || *c == '-' || *c >= 0x80) *to++ = (char)tolower(*c);
  }
  *to = 0;
}
// Whether a page has a heading with that anchor; of equal headings the second gets -1, the third -2.
static bool docs_has_anchor(const char *path, const char *wanted) {
  enum { HEADINGS = 200 };
  static char seen[HEADINGS][256];
  char anchor[4200];
  Docs one = {};
  int count = 0;
  bool found = false;
  docs_add(&one, path);
  if (!one.count) return false;
  DocLines l = docs_lines(&one.doc[0]);
  while (docs_next(&l) && count < HEADINGS) {
    const size_t level = strspn(l.line, "#");
    if (l.fenced || !level || level > 6 || l.line[level] != ' ') continue;
    docs_anchor(anchor, l.line + level + 1);
    snprintf(seen[count], sizeof seen[count], "%.255s", anchor);
    int before = 0;
    for (int i = 0; i < count; i++) before += !strcmp(seen[i], seen[count]);
    if (before) snprintf(anchor + strlen(anchor), 12, "-%d", before);
    found = found || !strcmp(anchor, wanted);
    count++;
  }
  free(one.doc[0].text);
  return found;
}
static void docs_check_link(const Doc *doc, int line, const char *target) {
  char path[1024];
  const char *anchor = strchr(target, '#'), *slash = strrchr(doc->path, '/');
  if (!strncmp(target, "https://", 8)) return;
  EXPECT(!strstr(target, "://"), "%s:%d: %s", doc->path, line, target);
  const int n = anchor ? (int)(anchor - target) : (int)strlen(target);
  if (!n) snprintf(path, sizeof path, "%s", doc->path);
  else snprintf(path, sizeof path, "%.*s%.*s", slash ? (int)(slash + 1 - doc->path) : 0, doc->path, n, target);
  if (access(path, R_OK)) EXPECT(false, "%s:%d: link to %s: there is no %s", doc->path, line, target, path);
  else if (anchor)
    EXPECT(docs_has_anchor(path, anchor + 1), "%s:%d: link to %s: %s has no such heading", doc->path, line, target,
           path);
}

// Checks the links of one line. Returns how many there are.
static int docs_check_links(const Doc *doc, DocLines *l) {
  char target[512];
  int links = 0;
  if (l->fenced) return 0;
  docs_without_code(l->line);
  for (const char *c = l->line; (c = strstr(c, "](")); links++) {
    c += 2;
    snprintf(target, sizeof target, "%.*s", (int)strcspn(c, ")"), c);
    docs_check_link(doc, l->number, target);
  }
  return links;
}

TEST(docs_links_lead_somewhere,
     "README.md, CONTRIBUTING.md, docs/*.md: each link's file exists, its anchor is one of its headings by GitHub's "
     "rule; README links every page of docs/") {
  const Docs *d = docs_read();
  char page[300];
  int links = 0;
  for (int i = 0; i < d->count; i++) {
    DocLines l = docs_lines(&d->doc[i]);
    while (docs_next(&l)) links += docs_check_links(&d->doc[i], &l);
    snprintf(page, sizeof page, "](%s)", d->doc[i].path);
    EXPECT(!i || strstr(d->doc[0].text, page), "README.md has no link to %s", d->doc[i].path);
  }
  EXPECT(links > 30, "only %d links were found", links);
}

TEST(docs_changelog_links_lead_somewhere, "CHANGELOG.md: each link's file exists, its anchor is one of its headings") {
  Docs d = {};
  first_need_repository();
  docs_add(&d, "CHANGELOG.md");
  DocLines l = docs_lines(&d.doc[0]);
  while (docs_next(&l)) docs_check_links(&d.doc[0], &l);
  free(d.doc[0].text);
}

// Whether a page has a list of contents before its first section: a line that starts with a link to a heading of it.
static bool docs_has_contents(const char *head) {
  for (const char *line = head; line; line = strchr(line, '\n'), line += !!line) {
    const char *link = line + (strncmp(line, "- ", 2) ? 0 : 2), *end = strstr(link, "](");
    if (*link == '[' && end && end[2] == '#') return true;
  }
  return false;
}
TEST(docs_contents_are_whole, "a page with a list of contents before its first section lists each section") {
  const Docs *d = docs_read();
  char anchor[4200], link[4300], head[8192];
  int lists = 0;
  for (int i = 0; i < d->count; i++) {
    const char *section = strstr(d->doc[i].text, "\n## ");
    snprintf(head, sizeof head, "%.*s", section ? (int)(section - d->doc[i].text) : 0, d->doc[i].text);
    if (!docs_has_contents(head)) continue;
    lists++;
    DocLines l = docs_lines(&d->doc[i]);
    while (docs_next(&l)) {
      if (l.fenced || strncmp(l.line, "## ", 3)) continue;
      docs_anchor(anchor, l.line + 3);
      snprintf(link, sizeof link, "](#%s)", anchor);
      EXPECT(strstr(head, link), "%s:%d: the list of contents does not have: %s", d->doc[i].path, l.number, l.line);
    }
  }
  EXPECT(lists > 1, "only %d lists of contents were found", lists);
}

// ---- sizes ----------------------------------------------------------------------------------------------------------
TEST(docs_readme_is_short, "README.md has at most 150 lines of at most 120 columns") {
  const Docs *d = docs_read();
  DocLines l = docs_lines(&d->doc[0]);
  while (docs_next(&l))
    EXPECT(strlen(l.line) <= DOCS_README_COLUMNS, "README.md:%d has %zu columns", l.number, strlen(l.line));
  EXPECT(l.number > 50 && l.number <= DOCS_README_LINES, "README.md has %d lines", l.number);
}

// What wc -w counts.
static int docs_words(const char *text) {
  int words = 0;
  for (const char *c = text; *c; c++) words += !isspace((uint8_t)*c) && (c == text || isspace((uint8_t)c[-1]));
  return words;
}
// The most words that each page may have.
enum { DOCS_WORDS = 24000 };
static const struct { const char *path; int most; } docs_most_words[] = {
    {"README.md", 1300}, {"CONTRIBUTING.md", 350}, {"docs/checkpoints.md", 1250}, {"docs/cpus.md", 600},
    {"docs/data.md", 1300}, {"docs/design.md", 2250}, {"docs/finetune.md", 2700}, {"docs/generate.md", 850},
    {"docs/glossary.md", 700}, {"docs/gpus.md", 950}, {"docs/launch.md", 1300}, {"docs/models.md", 1550},
    {"docs/options.md", 1350}, {"docs/plan.md", 1600}, {"docs/recipes.md", 650}, {"docs/results.md", 2000},
    {"docs/sharding.md", 2000}, {"docs/tests.md", 1100}, {"docs/troubleshooting.md", 2550}, {"docs/watch.md", 900}};
TEST(docs_words_are_bounded,
     "each page has at most its words, as wc -w counts them, and those of docs/ together at most DOCS_WORDS") {
  const Docs *d = docs_read();
  int all = 0;
  for (int i = 0; i < d->count; i++) {
    const int words = docs_words(d->doc[i].text);
    int most = -1;
    for (const auto &row : docs_most_words) if (!strcmp(row.path, d->doc[i].path)) most = row.most;
    if (!strncmp(d->doc[i].path, "docs/", 5)) all += words;
    EXPECT(words <= most, "%s has %d words; its bound is %d (-1: none was set in docs_most_words)",
           d->doc[i].path, words, most);
  }
  EXPECT(all <= DOCS_WORDS, "docs/ has %d words, at most %d", all, DOCS_WORDS);
}

// ---- options --------------------------------------------------------------------------------------------------------
// Options of other programs that the pages name.
static const struct { const char *program, *name; } docs_others[] = {
    {"mpirun", "oversubscribe"}, {"mpirun", "host"}, {"mpirun", "mca"}, {"mpirun", "bind_to"}, {"mpirun", "map_by"},
    {"mpirun", "cpu_list"}, {"srun", "cpu_bind"}, {"srun", "mpi"}, {"torchrun", "no_python"},
    {"torchrun", "max_restarts"}, {"dev/compare.py", "steps"}, {"sbatch", "signal"}, {"sbatch", "requeue"},
    {"hf", "local_dir"}, {"docker", "shm_size"}, {"docker", "cpus"}, {"docker", "memory"}, {"tensorboard", "logdir"},
    {"build/test_gpt_fsdp", "list"}};
enum { DOCS_OPTION_BYTES = 64 };
// The name of an option that starts at `c` (its first hyphen), if it is plainly written; else false.
static bool docs_option_at(const char *text, const char *c, char name[DOCS_OPTION_BYTES]) {
  if (c > text && (isalnum((uint8_t)c[-1]) || strchr("-_", c[-1]))) return false;
  if (strncmp(c, "--", 2) || !islower((uint8_t)c[2])) return false;
  const size_t n = strspn(c + 2, "abcdefghijklmnopqrstuvwxyz0123456789_-");
  if (n >= DOCS_OPTION_BYTES) return false;
  snprintf(name, DOCS_OPTION_BYTES, "%.*s", (int)n, c + 2);
  for (char *x = name; *x; x++) if (*x == '-') *x = '_';
  return true;
}

TEST(docs_options_are_there,
     "each --option that a page names exists, in this program or a named other one; each option is named in docs/") {
  const Docs *d = docs_read();
  enum { OTHERS = sizeof docs_others / sizeof *docs_others };
  bool named[OPTION_COUNT + 1] = {}, other[OTHERS] = {};
  char name[DOCS_OPTION_BYTES];
  for (int i = 0; i < d->count; i++) {
    DocLines l = docs_lines(&d->doc[i]);
    while (docs_next(&l)) for (const char *c = l.line; *c; c++) {
      if (!docs_option_at(l.line, c, name) || !strcmp(name, "help") || !strcmp(name, "version")) continue;
      const int option = lent_option(name);
      bool known = option >= 0;
      if (known) named[option] = named[option] || !strncmp(d->doc[i].path, "docs/", 5);
      for (int k = 0; k < OTHERS; k++)
        if (!strcmp(name, docs_others[k].name)) known = other[k] = true;
      EXPECT(known, "%s:%d: there is no option --%s", d->doc[i].path, l.number, name);
    }
  }
  for (int i = 0; i <= OPTION_COUNT; i++) EXPECT(named[i], "docs/ never names --%s", lent_option_name(i));
  for (int k = 0; k < OTHERS; k++)
    EXPECT(other[k], "no page names %s's --%s any more", docs_others[k].program, docs_others[k].name);
}

// ---- files ----------------------------------------------------------------------------------------------------------
// Paths that a run, make or another program creates, and words with a slash that are not files. With a slash at its end
// an entry matches all paths that start with it.
static const char *const docs_not_here[] = {
    "out/", "out-compare/", "OUT/", "DIR/", "build/", "data/cache/", "data/wikitext-2/", "exported/", "chat/", "chats/",
    "more/", "train_gpt_fsdp", "ckpt/", "lost-N/",
    "step_", "openai-community/gpt2", "tokens/s", "tensorboard/", "train/", "valid/", "test/loss", "test/accuracy"};
static bool docs_is_listed(const char *word) {
  for (const char *listed : docs_not_here) {
    const size_t n = strlen(listed);
    const bool begins = listed[n - 1] == '/' || listed[n - 1] == '_';
    if (!strcmp(word, listed) || (begins && !strncmp(word, listed, n))) return true;
    if (begins && strlen(word) == n - 1 && !strncmp(word, listed, n - 1)) return true;
  }
  return false;
}
// Whether a word in backticks is a path within the repository: it has a slash and only characters of file names.
static bool docs_is_path(const char *word) {
  const size_t n = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./*-");
  return strchr(word, '/') && !word[n] && *word != '/' && *word != '-' && *word != '*';
}
// Checks the words of one stretch of code. Returns how many were paths.
static int docs_check_paths(const Doc *doc, int line, char *code) {
  int paths = 0;
  char *save = NULL;
  for (char *word = strtok_r(code, " ,;", &save); word; word = strtok_r(NULL, " ,;", &save)) {
    if (!strncmp(word, "./", 2)) word += 2;
    if (!docs_is_path(word) && strcmp(word, "train_gpt_fsdp")) continue;
    paths++;
    glob_t found;
    const bool there = !glob(word, 0, NULL, &found);
    if (there) globfree(&found);
    EXPECT(there || docs_is_listed(word), "%s:%d: there is no %s", doc->path, line, word);
  }
  return paths;
}

TEST(docs_files_are_there, "each path in backticks is in the repository, or in the list of what runs create") {
  const Docs *d = docs_read();
  int paths = 0;
  for (int i = 0; i < d->count; i++) {
    DocLines l = docs_lines(&d->doc[i]);
    while (docs_next(&l)) {
      char *begin = l.fenced ? NULL : strchr(l.line, '`'), *end;
      for (; begin && (end = strchr(begin + 1, '`')); begin = strchr(end + 1, '`')) {
        *end = 0;
        paths += docs_check_paths(&d->doc[i], l.number, begin + 1);
      }
    }
  }
  EXPECT(paths > 50, "only %d paths were found", paths);
}

// ---- tests ----------------------------------------------------------------------------------------------------------
static bool docs_is_test(const char *part) {
  for (const TestCase *t = test_cases; t; t = t->next) if (strstr(t->name, part)) return true;
  return false;
}
TEST(docs_claims_have_tests, "docs/tests.md: each name after a claim is part of a test's name") {
  const Docs *d = docs_read();
  int names = 0;
  for (int i = 0; i < d->count; i++) {
    if (strcmp(d->doc[i].path, "docs/tests.md")) continue;
    DocLines l = docs_lines(&d->doc[i]);
    while (docs_next(&l)) {
      char *end = strrchr(l.line, '|'), *save = NULL;
      if (l.fenced || *l.line != '|' || end == l.line || strstr(l.line, "`make test T=")) continue;
      *end = 0;                                  // the last column of the row
      char *column = strrchr(l.line, '|');
      if (!strchr(column, '`')) continue;
      for (char *name = strtok_r(column + 1, "`, ", &save); name; name = strtok_r(NULL, "`, ", &save), names++)
        EXPECT(docs_is_test(name), "docs/tests.md:%d: no test has %s in its name", l.number, name);
    }
  }
  EXPECT(names > 40, "only %d names were found", names);
}
