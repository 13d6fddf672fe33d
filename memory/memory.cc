// memory.cc: memory/ as one object; what others may call of it is in memory.h.
#define PART_LAUNCH 1
#include "memory.h"

// There is no formula for what libraries allocate for themselves. It is measured after they have been opened, before
// the rest of the plan is allocated.
static bool memory_measured(int line) { return memory_uses[line] == MEMORY_LIBRARIES; }
static bool memory_on_host(int line) { return !strncmp(memory_words[line], "host:", 5); }

void memory_declare(MemoryPlan *m, MemoryName line, size_t bytes, void *pointer, size_t besides) {
  m->planned_bytes[line] += bytes;
  if (!bytes && !besides) return;
  CHECK(m->blocks < MEMORY_BLOCKS_MAX, "more than %d blocks of memory", (int)MEMORY_BLOCKS_MAX);
  m->block[m->blocks++] = MemoryBlock{line, bytes, besides, pointer};
}

size_t memory_planned_total(const MemoryPlan *m, MemoryPart part) {
  size_t total = 0;
  for (int i = 0; i < MEM_COUNT; i++) {
    const bool other = (part == MEMORY_ON_HOST) != memory_on_host(i) || (part == MEMORY_TO_TAKE && memory_measured(i));
    if (part == MEMORY_ALL || !other) total += m->planned_bytes[i];
  }
  return total;
}
size_t memory_planned_use(const MemoryPlan *m, MemoryUse use) {
  size_t total = 0;
  for (int i = 0; i < MEM_COUNT; i++) if (memory_uses[i] == use) total += m->planned_bytes[i];
  return total;
}

// Zeroed memory of `bytes`, counted under `line`, and `besides` more: of the device, or pinned host memory for host
// lines.
static void *memory_take(Ctx *c, MemoryPlan *m, MemoryName line, size_t bytes, size_t besides = 0) {
  void *p = NULL;
  m->taken_bytes[line] += bytes;
  bytes += besides;
  c->ops->memory_alloc(c, &p, bytes, memory_on_host(line) ? MEMORY_PINNED : MEMORY_DEVICE);
  if (bytes && !p) die_missing("cannot allocate %zu bytes for %s: %s", bytes, memory_words[line], strerror(ENOMEM));
  return p;
}
static void memory_give_back(Ctx *c, MemoryName line, void *p, size_t bytes) {
  if (p) c->ops->memory_free(c, p, bytes, memory_on_host(line) ? MEMORY_PINNED : MEMORY_DEVICE);
}

void memory_take_all(Ctx *c, MemoryPlan *m) {
  for (int i = 0; i < m->blocks; i++) {
    const MemoryBlock *b = &m->block[i];
    if (!b->pointer) { m->taken_bytes[b->line] += b->bytes; continue; }
    void *p = memory_take(c, m, b->line, b->bytes, b->besides);
    memcpy(b->pointer, &p, sizeof p);
  }
}
void memory_give_back_all(Ctx *c, MemoryPlan *m) {
  for (int i = m->blocks - 1; i >= 0; i--) {
    void *p = NULL;
    if (m->block[i].pointer) memcpy(&p, m->block[i].pointer, sizeof p);
    memory_give_back(c, m->block[i].line, p, m->block[i].bytes + m->block[i].besides);
  }
}

void memory_measure(MemoryPlan *m, MemoryName line, size_t before, size_t after) {
  m->planned_bytes[line] = m->taken_bytes[line] = before > after ? before - after : 0;
}
void memory_check_taken(const MemoryPlan *m) {
  for (int i = 0; i < MEM_COUNT; i++)
    CHECK(m->planned_bytes[i] == m->taken_bytes[i], "memory plan: %s was planned as %zu bytes and taken as %zu",
          memory_words[i], m->planned_bytes[i], m->taken_bytes[i]);
}
