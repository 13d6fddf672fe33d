// test_doors.h: modules and their doors (docs/design.md): what is included past one is rejected by name, and so is what
// an object exports beside it. check-symbols, a part of make test, asks the same of the program itself.

// Expects that `make check-modules` passes in the checkout, and that with one line more at the end of a file it names
// `words`.
static void doors_check(const char *file, const char *line, const char *words) {
  CliRun r;
  CLI_RUN(&r, "cd %s && cp %s kept && printf '%%s\\n' '%s' >>%s && make -s check-modules; code=$?; mv kept %s; "
          "exit $code", cli_path("checkout"), file, line, file, file);
  EXPECT(words ? r.code && strstr(r.text, words) : !r.code, "%s with '%s': exit code %d, and it printed:\n%s", file,
         line, r.code, r.text);
  cli_free(&r);
}
TEST(doors_are_where_rooms_are_entered,
     "an include of another module's inside, of a module above, or in a circle fails by name; one of its public header "
     "passes; so does a public header of more than 150 lines, a page that includes its inside, and a module that names "
     "the trainer") {
  char lines[151];
  memset(lines, '\n', 150), lines[150] = 0;
  readme_checkout();
  doors_check("machine/cgroup.h", "", NULL);
  doors_check("machine/cgroup.h", "#include \"base/text.h\"", "includes base/text.h: base/base.h is the public header");
  doors_check("trainer/generate.h", "#include \"fsdp/reduce.h\"", "fsdp/reduce.h: fsdp.h or fsdp/plan.h is the public "
              "header");
  doors_check("run/plan/plan.cc", "#include \"fsdp/types.h\"", "fsdp/types.h: fsdp.h or fsdp/plan.h is the public "
              "header");
  doors_check("trainer/generate.h", "#include \"fsdp/plan.h\"", NULL);
  doors_check("fsdp.h", "#include \"fsdp/types.h\"", "includes fsdp/types.h: the page has no inside");
  doors_check("train_gpt_fsdp.cu", "#include \"data/checkpoint/store.h\"", "data/checkpoint/checkpoint.h is the public "
              "header");
  doors_check("data/tokenizer/nfc.h", "#include \"data/checkpoint/checkpoint.h\"", "which is of a higher module");
  doors_check("data/files/disk.h", "#include \"data/data.h\"", "which is of a higher module");
  doors_check("fsdp/mesh.h", "#include \"run/run.h\"", "which is of a higher module");
  doors_check("data/dataloader.h", "#include \"tokens/sampler.h\"", "which is in no module");
  doors_check("run/run.cc", "#include \"data/checkpoint/store.h\"", "data/checkpoint/checkpoint.h is the public "
              "header");
  doors_check("run/start.h", "#include \"launch/launch.h\"", NULL);
  doors_check("data/tokens/token_files.h", "#include \"sampler.h\"", "in a circle");
  doors_check("data/data.h", lines, "data/data.h:151: a public header of more than 150 lines");
  doors_check("run/start.h", "struct Trainer;", "names Trainer");
}

TEST(doors_say_no_fields,
     "a file that includes every public header cannot touch a field of what public headers leave open: it does not "
     "compile") {
  static const struct { const char *code, *words; } cases[] = {
      {"int f(const Fsdp *f) { return fsdp_rank(f); }", NULL},
      {"int f(const Fsdp *f) { return f->mesh.rank; }", "incomplete type"},
      {"unsigned long f() { return sizeof(Fsdp); }", "incomplete type"},
      {"int f(Declare *d) { return d->next; }", "incomplete type"}};
  CliRun r;
  for (const auto &c : cases) {
    CLI_RUN(&r, "printf '#include \"fsdp.h\"\n#include \"fsdp/plan.h\"\n#include \"run/plan/plan.h\"\n%%s\n' '%s' | "
            "$(cat build/fsdp.cmd) -DPART_LAUNCH=1 -fsyntax-only -x c++ -", c.code);
    EXPECT(c.words ? r.code && strstr(r.text, c.words) : !r.code, "%s: exit code %d, and it printed:\n%s", c.code,
           r.code, r.text);
    cli_free(&r);
  }
}

TEST(doors_files_are_made_in_one_place,
     "any call that can make a file fails by name outside base/newfile/: open with O_CREAT, fopen to write, to add or "
     "to change, over two lines too, creat, temporary files, links; what reads passes") {
  static const struct { const char *file, *line; bool passes; } cases[] = {
      {"data/models/gguf.h", "FILE *f = fopen(path, \"rb\");", true},
      {"data/models/gguf.h", "FILE *f = fopen(path, \"wb\");", false},
      {"run/report/log.h", "FILE *f = fopen(path, \"a\");", false},
      {"base/net/sockets.h", "FILE *f = fopen(path, \"r+\");", false},
      {"trainer/generate.h", "FILE *f = fopen(path,\n                \"w\");", false},
      {"launch/rdzv_file.h", "int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);", false},
      {"base/text.h", "int fd = open(path, O_RDWR | O_TMPFILE, 0600);", false},
      {"train_gpt_fsdp.cu", "int fd = creat(path, 0666);", false},
      {"fsdp/gather.h", "int fd = mkstemp(path);", false},
      {"kernels/gelu.cuh", "freopen(path, \"w\", stdout);", false},
      {"run/saver.h", "symlink(target, path);", false},
      {"data/files/disk.h", "symlink(target, path); unlink(path);", true},
      {"data/files/disk.h", "link(target, path);", false},
      {"machine/machine.h", "unlink(path);  // O_CREAT is told of here", true}};
  readme_checkout();
  for (const auto &c : cases) doors_check(c.file, c.line, c.passes ? NULL : "makes a file: base/newfile/");
}

TEST(doors_are_what_objects_export,
     "a function that an object exports and no public header declares, one that a public header declares and nobody "
     "has, and one that nobody else calls: each fails by name; variables, pointers to functions and attributes are "
     "read too") {
  static const char door[] =
      "#pragma once\n// a comment; with a name(int)\nstruct Pair { int first, second; };\n"
      "#define TWICE(x) \\\n  ((x) * 2)\n"
      "extern int room_count;\nextern void (*room_hook)(int code);\n"
      "__attribute__((format(printf, 1, 2))) void room_say(const char *fmt, ...);\n"
      "Pair room_pair(int first,\n               int second);\nstatic inline int room_one() { return 1; }\n";
  static const char body[] =
      "#include \"room.h\"\nint room_count;\nvoid (*room_hook)(int code);\nvoid room_say(const char *, ...) {}\n"
      "Pair room_pair(int first, int second) { return Pair{first, second}; }\n";
  static const char caller[] =
      "#include \"room.h\"\nint main() {\n  room_hook(room_count);\n  room_say(\"%%d\", room_pair(1, 2).first);\n"
      "  return room_one();\n}\n";
  static const struct { const char *door, *body, *words; } cases[] = {
      {"", "", NULL},
      {"", "int room_more() { return 0; }\n", "room.o exports room_more, which room.h does not declare"},
      {"int room_gone(int x);\n", "", "room.h declares room_gone, which room.o does not have"},
      {"int room_idle();\n", "int room_idle() { return 0; }\n", "room.h declares room_idle, which nobody outside"},
      {"extern int main();\n", "", "room.h declares main, which room.o does not have"},
      {"extern double room_level;\n", "double room_level = 1;\n", "room.h declares room_level, which nobody outside"}};
  CliRun r;
  for (const auto &c : cases) {
    CLI_RUN(&r, "mkdir -p %s && cd %s && printf '%s%s' >room.h && printf '%s%s' >room.cc && printf '%s' >main.cc && "
            "g++ -c room.cc && g++ -c main.cc -o train_gpt_fsdp.o && $OLDPWD/dev/check_public_headers.sh . room=room.h",
            cli_path("objects"), cli_path("objects"), door, c.door, body, c.body, caller);
    EXPECT(c.words ? r.code == 1 && strstr(r.text, c.words) : !r.code && strstr(r.text, "4 names in public headers, 4 "
                                                                                "of them"),
           "'%s%s': exit code %d, and it printed:\n%s",
           c.door, c.body, r.code, r.text);
    cli_free(&r);
  }
}

TEST(doors_of_instruction_sets,
     "a CPU object that exports anything but its own instruction set's implementations fails by name: a function, a "
     "template's instance, which other objects would share, another set's implementation") {
  if (TEST_SANITIZED) SKIP("with sanitizers objects export more");
  if (access("build/cpu_avx2.device.o", R_OK)) SKIP("no objects of x86-64 in build/");
  static const struct { const char *object, *code, *words; } more[] = {
      {"avx2.loss", "int helper(int x) { return x; }", "T helper(int)"},
      {"avx512.norms", "template <class T> T twice(T x) { return x + x; }\nint (*volatile use)(int) = twice<int>;",
       "W int twice<int>(int)"},
      {"avx512.blocks", "void f(int) __asm__(\"fill_impl.avx512_bf16\");\nvoid f(int) {}", "T fill_impl.avx512_bf16"}};
  static const char check[] = "dev/check_exports.sh %s cpu_avx2.loss cpu_avx512.norms cpu_avx512.blocks";
  const char *at = cli_path("built");
  CliRun r;
  CLI_RUN(&r, "mkdir %s && cp build/cpu_avx2.loss.o build/cpu_avx512.norms.o build/cpu_avx512.blocks.o %s", at, at);
  cli_expect_done(&r, "copies of objects");
  cli_free(&r);
  CLI_RUN(&r, check, at);
  cli_expect_done(&r, "objects as they are");
  cli_free(&r);
  for (const auto &m : more) {
    CLI_RUN(&r, "cd %s && printf '%%s' '%s' | g++ -x c++ -c - -o more && ld -r -z noexecstack -o both cpu_%s.o more && "
            "mv both cpu_%s.o", at, m.code, m.object, m.object);
    cli_expect_done(&r, m.object);
    cli_free(&r);
  }
  CLI_RUN(&r, check, at);
  for (const auto &m : more)
    EXPECT(r.code && strstr(r.text, m.words), "%s with '%s': exit code %d, and it printed:\n%s", m.object, m.code,
           r.code, r.text);
  cli_free(&r);
}
