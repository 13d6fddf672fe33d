// interactive.h: a conversation with a model: a line in, text out as it comes. A part of train_gpt_fsdp.cu.
//
// With a chat template (data/chat/conversations.h) a line is the user's next turn, and the whole conversation is the
// model's prompt; without one each line is continued on its own. On a terminal Ctrl-C ends the text and Ctrl-D the
// program. If stdin is not a terminal, stdout has only answers, one per line, or with --json an object per line;
// everything else goes to stderr. Rank 0 reads and prints; the other ranks take part in the passes.
#pragma once
#include <poll.h>

struct Talk {
  Chat chat;
  bool shown;                                    // stdin is a terminal: answers are printed as they come
  FILE *to;                                      // else: where answers are written
  cJSON *messages;
  char *line;
  size_t room, bytes;                            // of `line`: allocated; used
  uint32_t turns;
  int fault;                                     // errno of an answer that could not be written; EPIPE: nobody reads
};
static const char talk_help[] = "/reset forgets the conversation, /temperature X, /save FILE appends it as a line of "
                                "JSON, /quit; // starts a line with /; Ctrl-C ends a text\n";
static void talk_interrupt(int) { generation_asked = 1; }
// If answers are for a program (stdin is no terminal): from here on stdout prints to stderr, and the stream that is
// returned is for answers. Else NULL.
static FILE *talk_answers(const Options *o) {
  if (!(o->show_chats && o->json) && (!o->interactive || isatty(STDIN_FILENO))) return NULL;
  fflush(stdout);
  FILE *to = fdopen(dup(STDOUT_FILENO), "w");
  dup2(STDERR_FILENO, STDOUT_FILENO);
  return to;
}
// Adds a message to the conversation. Bytes that are not UTF-8 become U+FFFD.
static void talk_message(Talk *k, const char *role, const void *said, size_t bytes) {
  char *text = NULL;
  size_t text_bytes;
  FILE *f = open_memstream(&text, &text_bytes);
  json_string(f, said, bytes, 0);
  fclose(f);
  cJSON *m = cJSON_CreateObject();
  cJSON_AddStringToObject(m, "role", role);
  cJSON_AddItemToObject(m, "content", cJSON_Parse(text));
  cJSON_AddItemToArray(k->messages, m);
  free(text);
}
// Appends the conversation to a file, as a line {"messages": [...]}.
static void talk_save(const Talk *k, const char *path) {
  char *text = cJSON_PrintUnformatted(k->messages);
  static const char mark[] = "{\"messages\":";
  const bool nothing = !cJSON_GetArraySize(k->messages), foreign = !nothing && file_is_foreign(path, mark, true);
  FILE *f = foreign || nothing ? NULL : file_own(path, false);
  const bool written = f && fprintf(f, "%s%s}\n", mark, text) > 0 && !fflush(f);
  if (nothing) say_error("nothing was said yet: %s is not written\n", path);
  else if (foreign) say_error("%s is there, and no conversations: name another file\n", path);
  else if (!written) say_error("%s cannot be written: %s\n", path, f ? strerror(errno) : file_own_fault(path));
  else say("%d messages in %s\n", cJSON_GetArraySize(k->messages), path);
  if (f) fclose(f);
  cJSON_free(text);
}
// Runs the command of a line that starts with /. False: the conversation ends.
static bool talk_command(Talk *k, Options *o) {
  char word[32] = "", *rest = k->line + strcspn(k->line, " ");
  snprintf(word, sizeof word, "%.*s", (int)(rest - k->line), k->line);
  rest += strspn(rest, " ");
  if (!strcmp(word, "/quit")) return false;
  if (!strcmp(word, "/reset")) {
    cJSON_Delete(k->messages);
    k->messages = cJSON_CreateArray();
  } else if (!strcmp(word, "/save") && *rest) {
    talk_save(k, rest);
  } else if (!strcmp(word, "/temperature")) {
    Error error = {};
    if (!option_set(o, OPT_temperature, rest, &error)) say_error("%s\n", error.text);
  } else {
    say("%s", talk_help);
  }
  return true;
}
// Replaces each zero byte of the line by U+FFFD, because a message cannot hold one.
static void talk_no_zeros(Talk *k) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  for (size_t i = 0; i < k->bytes; i++)
    if (k->line[i]) fputc(k->line[i], f);
    else fputs("\xef\xbf\xbd", f);
  fclose(f);
  say_error("warning: a zero byte in the line is read as U+FFFD\n");
  free(k->line);
  k->line = text, k->room = bytes + 1, k->bytes = bytes;
}
// Reads the next line that is not a command into k->line, without its newline. False: there is none.
static bool talk_read(Talk *k, Options *o) {
  for (;;) {
    pollfd typed = {STDIN_FILENO, POLLIN, 0};
    generation_asked = 0;
    if (k->shown) say_bytes((const uint8_t *)"> ", 2);
    watchdog_pause(WATCHDOG_USER);
    while (k->shown && !generation_asked && poll(&typed, 1, 100) <= 0) {}      // until a line, or Ctrl-C
    const bool stopped = generation_asked;
    ssize_t n = stopped ? 0 : getline(&k->line, &k->room, stdin);
    watchdog_pause(-1);
    if ((stopped || n < 0) && k->shown) say_bytes(NULL, 0);
    if (stopped) continue;
    if (n < 0) return false;
    while (n && (k->line[n - 1] == '\n' || k->line[n - 1] == '\r')) k->line[--n] = 0;
    k->bytes = (size_t)n;
    if (memchr(k->line, 0, k->bytes)) talk_no_zeros(k);
    if (k->line[0] == '/' && k->line[1] == '/') memmove(k->line, k->line + 1, k->bytes--);
    else if (k->line[0] == '/') {
      if (!talk_command(k, o)) return false;
      continue;
    }
    if (n || !k->shown) return true;
  }
}
// Rank 0: the tokens of the next prompt, with space for `more`; count 0: the conversation is over.
static int32_t *talk_prompt(Talk *k, Trainer *t, int64_t more, int64_t *count) {
  const Tokenizer *tokenizer = &t->run.corpus->tokenizer;
  *count = 0;
  while (!k->fault && talk_read(k, &t->opt)) {
    ChatTokens tokens = {};
    const size_t bytes = k->bytes;
    talk_message(k, "user", k->line, bytes);
    if (!k->chat.form) {
      tokens.ids = (int32_t *)malloc(sizeof(int32_t) * (2 + tokenizer_ids_most(tokenizer, bytes)));
      tokens.count = tokenizer_begin(tokenizer, (const uint8_t *)k->line, bytes, tokens.ids);
    } else if (!chat_next(&k->chat, &tokens, k->messages)) {
      say_error("%s\n", tokens.fault.text);
      cJSON_DeleteItemFromArray(k->messages, cJSON_GetArraySize(k->messages) - 1);
    }
    free(tokens.trained);
    *count = tokens.count;
    if (*count) return (int32_t *)bpe_resize(tokens.ids, (size_t)(*count + more), sizeof(int32_t));
    free(tokens.ids);
  }
  return NULL;
}
static void talk_sink(void *to, const uint8_t *bytes, int length) {
  Talk *k = (Talk *)to;
  if (k->shown) say_bytes(bytes, length);
  else if (!k->to) return;
  else if (fwrite(bytes, 1, (size_t)length, k->to), fflush(k->to)) k->fault = errno;
}
// Adds a complete answer to the conversation and writes what belongs after it.
static void talk_answered(Talk *k, const Continued *x, bool json) {
  talk_message(k, "assistant", x->said, x->told);
  if (k->shown) say_bytes(NULL, 0);
  if (x->made && !json) say("%s\n", rate_words(x));
  if (k->shown) return;
  if (json) {
    fprintf(k->to, "{\"prompt\":");
    json_text(k->to, k->line);
    fprintf(k->to, ",\"text\":");
    json_string(k->to, x->said, x->told, 0);
    fprintf(k->to, ",\"tokens\":%u,\"end\":\"%s\",\"first_s\":%.6f,\"seconds\":%.6f}", x->made, end_words[x->end],
            x->first_ms / 1000, x->last_ms / 1000);
  }
  fprintf(k->to, "\n");
  if (fflush(k->to) || ferror(k->to)) k->fault = k->fault ? k->fault : errno;
}
static void talk_open(Talk *k, const Trainer *t, FILE *answers) {
  const Options *o = &t->opt;
  const bool texts = o->prompt_as == OPT_prompt_as_text;
  ChatOptions chat = chat_options(o, texts || !strcmp(o->chat_template, "auto") ? NULL : t->run.chat, "");
  if (texts) chat.template_name = "auto";
  struct sigaction a = {};
  a.sa_handler = talk_interrupt;
  k->chat = chat_open(&chat, &t->run.corpus->tokenizer);
  k->shown = !answers, k->to = answers;
  k->messages = cJSON_CreateArray();
  if (k->shown) sigaction(SIGINT, &a, NULL);
  if (k->chat.form) say("a chat by %s; /help lists commands\n", template_words(o));
  else say("%s, so each line is continued by itself; /help lists commands\n",
           texts ? "lines are texts" : "no chat template is known");
}
// Reads lines and answers until there are no more, or an answer cannot be written. answers: see talk_answers. Returns
// whether all were written. All ranks call it.
static bool trainer_talk(Trainer *t, FILE *answers) {
  const Options *o = &t->opt;
  const int rank = fsdp_rank(t->fsdp);
  static Talk talk;
  Talk *k = &talk;
  if (!rank) talk_open(k, t, answers);
  for (;;) {
    int64_t count = 0;
    int32_t *ids = rank ? NULL : talk_prompt(k, t, o->sample_tokens, &count);
    MPI_Bcast(&count, 1, MPI_INT64_T, 0, fsdp_comm(t->fsdp));
    if (!count) break;
    if (rank) ids = (int32_t *)malloc(sizeof(int32_t) * (size_t)(count + o->sample_tokens));
    MPI_Bcast(ids, (int)count, MPI_INT32_T, 0, fsdp_comm(t->fsdp));
    Continued x = {};
    x.ids = ids, x.count = count, x.most = o->sample_tokens, x.number = k->turns++;
    generation_asked = 0;
    if (!rank && count + x.most > t->model.P) say_error("warning: %s\n", positions_words(t, INT64_MAX) + 2);
    trainer_generate(t, &x, 1, o->json && !k->shown ? NULL : talk_sink, k);
    if (!rank) talk_answered(k, &x, o->json);
    free(x.said);
    free(ids);
  }
  terminal_last_signal(SIGINT);
  int lost = k->fault && k->fault != EPIPE;
  if (lost) say_error("%s: answers cannot be written: %s\n", who_am_i, strerror(k->fault));
  MPI_Bcast(&lost, 1, MPI_INT, 0, fsdp_comm(t->fsdp));
  if (rank) return !lost;
  cJSON_Delete(k->messages);
  free(k->line);
  if (k->to) fclose(k->to);
  return !lost;
}
