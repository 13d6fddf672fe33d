// base.h: public header of base/, what knows nothing of ranks and models: clocks, text, errors, processors.
//
// An error is one line: die_user, die_missing and CHECK end every rank. Functions that may fail return false and give
// the line in an Error, which `fail` fills.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <initializer_list>                      // for (x : {a, b})
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- clock.h --------------------------------------------------------------------------------------------------------
// From some instant on, the same one for all processes of this machine; never set back.
int64_t now_ns();
static inline double now_ms() { return (double)now_ns() * 1e-6; }
// The clock on the wall, which may be set: since 1970.
int64_t wall_ns();

// ---- text.h ---------------------------------------------------------------------------------------------------------
enum { UTF8_BYTE = 0x110000 };
// Bytes of the UTF-8 character at p < end (Unicode 16.0, table 3-7); 0: none starts here; -1: what is there may begin
// one.
int utf8_bytes(const uint8_t *p, const uint8_t *end);
// The character at p < end and its bytes: its code point, or UTF8_BYTE + the byte that is none.
uint32_t utf8_char(const uint8_t *p, const uint8_t *end, int *char_bytes);
// Where the first byte from `at` on is that belongs to no well-formed UTF-8 character; `bytes`: nowhere.
size_t text_bad_utf8(const uint8_t *p, size_t bytes, size_t at);
// Writes the code point, or the byte of UTF8_BYTE + it; returns what follows.
uint8_t *utf8_put(uint8_t *out, uint32_t c);
// Makes `from` safe to print: control characters but those of `keep`, those that turn the direction of a line, and
// bytes that are not UTF-8 become \xNN. `to` has room for `room` bytes; what does not fit is left out. Returns how many
// bytes of `from` were used: all that fit, except, if `more` bytes follow, an incomplete character at the end.
size_t text_escape(char *to, size_t room, const uint8_t *from, size_t n, bool more, const char *keep = "\n\t");
// The same for a zero-terminated text in its own memory, of whose control characters none is left.
void text_escape_line(char *text, size_t room, const char *keep = "");
// Makes text one line, or such lines as end with a byte of `keep`: other control bytes become ?.
void text_to_line(char *text, const char *keep);
// Adds to the text in `to`, of `bytes` bytes with its zero, and cuts it where it does not fit. Returns whether it fits.
__attribute__((format(printf, 3, 4))) bool text_add(char *to, size_t bytes, const char *fmt, ...);
bool text_add_list(char *to, size_t bytes, const char *fmt, va_list ap);
// JSON_LETTERS: \n and its like by their letters, as Hugging Face's tokenizers write them. JSON_SCRIPT: nothing ends a
// script element. JSON_WHOLE: the text is JSON itself.
enum { JSON_LETTERS = 1, JSON_SCRIPT = 2, JSON_WHOLE = 4 };
// Text of so many bytes as it stands in a string of JSON; json_string: with its quotation marks.
void json_chars(FILE *f, const char *text, size_t bytes, int how);
void json_string(FILE *f, const void *text, size_t bytes, int how);
static inline void json_text(FILE *f, const char *text) { json_string(f, text, strlen(text), 0); }
// ,"name":x with all digits. JSON has no infinity and no NaN: null.
void json_number(FILE *f, const char *name, double x);
// A path or an option as a word of a shell's command line, a space before it.
void shell_word(FILE *to, const char *word);
// The character at p < end of any bytes as it stands in a string, with a zero. Returns its bytes. What is not UTF-8
// becomes U+FFFD.
int json_char(char to[8], const uint8_t *p, const uint8_t *end, int how);

// ---- errors.h -------------------------------------------------------------------------------------------------------
// Exit codes: 2 the request is wrong (option, combination), 3 what it needs is missing (file, memory, peer), 1 a fault;
// 4: a rank died or was stopped, or no rank made progress; 5: the loss or the gradient was not finite; 85: a signal
// ended the run, which saved a checkpoint; 130: a signal ended the run.
enum { EXIT_FAULT = 1, EXIT_USAGE = 2, EXIT_MISSING = 3, EXIT_LOST = 4, EXIT_NOT_FINITE = 5, EXIT_SAVED = 85,
       EXIT_STOPPED = 130 };
extern const char *who_am_i;                     // "rank 1/2 on host": for error prefixes
extern void (*error_hook)(const char *line);     // prints an error after ending an open line; NULL: stderr
extern void (*die_hook)(int code);               // ends every rank (MPI_Abort) once MPI is up; NULL before
// One line on stderr; the program continues.
__attribute__((format(printf, 1, 2))) void warn(const char *fmt, ...);
__attribute__((format(printf, 2, 3), noreturn)) void die_with(int code, const char *fmt, ...);
// A fault of the program itself: names file and line.
#define CHECK(cond, fmt, ...) \
  do { if (!(cond)) die_with(EXIT_FAULT, fmt " (%s:%d)", ##__VA_ARGS__, __FILE__, __LINE__); } while (0)
// What the user asked cannot be done / what it needs is missing.
#define die_user(...) die_with(EXIT_USAGE, __VA_ARGS__)
#define die_missing(...) die_with(EXIT_MISSING, __VA_ARGS__)
// Access to a word that another thread, or the device, reads or writes at the same time. A thread that reads two words
// in the opposite order of their writes, and sees the second write, sees the first as well.
#define WORD_SET(word, value) __atomic_store_n(word, value, __ATOMIC_RELEASE)
#define WORD_GET(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
// What is wrong, in one line; text "": nothing. code: EXIT_USAGE or EXIT_MISSING, where whoever fills it knows.
struct Error { int code; char text[2048]; };
// Fills e and returns false. A longer line is cut; what no terminal should get is escaped.
__attribute__((format(printf, 2, 3))) bool fail(Error *e, const char *fmt, ...);
#define fail_with(e, exit_code, ...) ((e)->code = (exit_code), fail(e, __VA_ARGS__))
// For functions that return false with one line in `error`, an Error: fails if cond holds. Where there is more to do
// before that, or the result is not a bool, `fail` is called as it is; what it returns may be returned.
// A message ends with what to do, where that does not follow from what was found.
#define REJECT(cond, ...) do { if (cond) return fail(error, __VA_ARGS__); } while (0)

#if PART_LAUNCH
// ---- processor.h ----------------------------------------------------------------------------------------------------
#include "processor.h"
#endif
