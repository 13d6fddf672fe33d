// preference.h: the reference of preference losses (--loss dpo and others): for every answer the sum of its tokens'
// log-probabilities by the reference model. That is the model that training started from, with the adapters of
// --lora_from; for new adapters, and with --reference base, the model with adapters disabled (bare). A part of
// train_gpt_fsdp.cu.
//
// The sums are computed once, in batches of --test_batch_size without dropout, before the first step: each is then the
// sum that the first step computes, whose loss is therefore known (log 2 for DPO). OUT/reference-HASH.bin, named after
// a hash of weights and tokens, keeps the sums for a resumed run. If only adapters train, bare sums can be computed
// again at any time.
#pragma once

// The head of such a file. weights: fsdp_weights_hash of the reference; corpus: its hash; documents: answers of each
// split; sums: hash of the rest of the file, the sums (fp32) of one split after the other.
struct ReferenceHead {
  char magic[8];
  uint64_t weights, corpus;
  int64_t seq_len, documents[SPLIT_COUNT];
  uint64_t sums;
};

// Computes the sums of one split into p->reference on all ranks; each rank computes a part of the sequences. bare: with
// adapters disabled. Returns what a signal has asked for: then not all sums are there. All ranks call it.
static Stop reference_compute(Trainer *t, Packing *p, bool bare) {
  const int N = fsdp_world(t->fsdp), E = (int)t->opt.test_batch_size, T = (int)t->model.T;
  const int64_t batches = (p->rows + E - 1) / E, rounds = (batches + N - 1) / N;
  float *sums = (float *)calloc((size_t)p->split->documents + 1, sizeof(float));
  HostBuffers *h = &t->host;
  trainer_carve(t, E, T, PASS_EVAL);
  fsdp_step_begin(t->fsdp, false);
  t->bare = bare;
  double told_ms = now_ms();
  Stop stop = STOP_NOT;
  for (int64_t round = 0; round < rounds && !(stop = agree_on_stop(fsdp_comm(t->fsdp))); round++) {
    const int64_t first = (round * N + fsdp_rank(t->fsdp)) * E;
    for (int e = 0; e < E; e++)
      packing_fill(p, first + e, h->inputs + e * T, h->targets + e * T, h->starts + e * T, h->weights + e * T);
    trainer_enqueue_eval(t, E, T);
    fsdp_sync(t->fsdp);
    for (int64_t row = first; row < min64(first + E, p->rows); row++) {
      const int64_t here = (row - first) * T;
      int64_t at = 0;
      for (uint32_t d = p->head[row]; d != PACKING_NONE; d = p->next[d])
        for (uint32_t k = d; k < d + 2; k++) {
          const PreferenceSide s = preference_side(at, T, h->row_losses + here, h->targets + here, h->starts + here,
                                                   h->weights + here);
          sums[k] = s.logp, at = s.to;
        }
    }
    liveness_progress();
    if (fsdp_rank(t->fsdp) || now_ms() < told_ms + 10000) continue;
    told_ms = now_ms();
    say("reference: %lld %% of %lld sequences\n", (long long)(100 * round / rounds), (long long)p->rows);
  }
  t->bare = false;
  MPI_Allreduce(sums, p->reference, fsdp_mpi_count(p->split->documents), MPI_FLOAT, MPI_SUM, fsdp_comm(t->fsdp));
  free(sums);
  return stop;
}
// Rank 0: reads the sums of a file. False: the file is not there, is damaged, or is of other weights or data.
static bool reference_read(Trainer *t, const char *path, const ReferenceHead *want) {
  int64_t bytes, numel = 0;
  uint64_t hash = 0;
  for (int64_t n : want->documents) numel += n;
  char *text = file_get(path, (int64_t)sizeof *want + 4 * numel, &bytes);
  const float *sums = text ? (const float *)(text + sizeof *want) : NULL;
  bool whole = text && bytes == (int64_t)sizeof *want + 4 * numel && !memcmp(text, want, offsetof(ReferenceHead, sums));
  if (whole) memcpy(&hash, text + offsetof(ReferenceHead, sums), sizeof hash);
  whole = whole && hash == data_hash(0, sums, 4 * (size_t)numel);
  for (int i = 0; whole && i < SPLIT_COUNT; sums += want->documents[i++])
    if (want->documents[i]) memcpy(t->run.packing[i].reference, sums, 4 * (size_t)want->documents[i]);
  free(text);
  return whole;
}
static bool reference_write(const Trainer *t, const char *path, ReferenceHead head) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  fwrite(&head, 1, sizeof head, f);
  for (const Packing &p : t->run.packing) if (p.reference) fwrite(p.reference, 4, (size_t)p.split->documents, f);
  fclose(f);
  head.sums = data_hash(0, text + sizeof head, bytes - sizeof head);
  memcpy(text, &head, sizeof head);
  const bool ok = file_put(path, t->opt.out, text, (int64_t)bytes);
  free(text);
  return ok;
}
// Makes the sums: computes them, or, in a resumed run, reads them from OUT or from the directory that has the
// checkpoint's ckpt. Ends all ranks with one line if the reference weights no longer exist (they were trained) and the
// file is not there. Returns what a signal has asked for: then the sums are not there. All ranks call it.
static Stop trainer_reference(Trainer *t, const Run *run) {
  const Fsdp *f = t->fsdp;
  const Options *o = &t->opt;
  ReferenceHead head = {{'r', 'e', 'f', 's', 'u', 'm', 's', '1'}, 0, t->run.corpus->hash, t->model.T, {}, 0};
  char name[64], path[2][MAP_PATH_BYTES];
  Error error = {};
  int64_t answers = 0, compared = 0;             // compared: answers of pairs that are packed
  for (int i = 0; i < SPLIT_COUNT; i++)
    if (t->run.packing[i].reference) {
      answers += head.documents[i] = t->run.packing[i].split->documents;
      compared += 2 * t->run.packing[i].kept;
    }
  Stop stop = STOP_NOT;
  if (!answers || !preference_compares(t->model.preference.loss)) return stop;
  const double began = now_ms();
  const bool frozen = fsdp_has_adapters(f) && !t->model.shape.lora.row_end;      // rows may train beside adapters
  const bool base = o->reference == OPT_reference_base;
  liveness_phase("the reference");
  const uint64_t bare_hash = fsdp_weights_hash(t->fsdp);
  bool bare = fsdp_has_adapters(f) && (base || !o->lora_from[0]);
  head.weights = bare ? bare_hash : fsdp_weights_hash(t->fsdp, true);
  const char *from = run_goes_on(run, &head.weights);            // the recorded reference
  if (from) {                                    // an evaluation may ask for another reference than the recorded one
    bare = frozen && (head.weights == bare_hash || (base && !run_trains(o)));
    if (bare) head.weights = bare_hash;
  }
  const bool again = bare || !from;     // whether the weights are there
  t->run.reference_hash = head.weights;
  snprintf(name, sizeof name, "reference-%016llx.bin", (unsigned long long)data_hash(0, &head, sizeof head));
  path_join(path[0], MAP_PATH_BYTES, o->out, name);
  snprintf(path[1], MAP_PATH_BYTES, "%.1100s/../../%s", from ? from : "", name);
  int found = 0;
  for (int i = 0; i < 2 && from && !fsdp_rank(f) && !found; i++) found = reference_read(t, path[i], &head);
  MPI_Bcast(&found, 1, MPI_INT, 0, fsdp_comm(f));
  if (!found && !again)
    fail(&error, "--loss %s: %.900s was trained beside a reference whose sums are not there, or of other data: %s, in "
         "--out or beside ckpt; --init_from starts a new run from its weights", option_word(o, OPT_loss), from, name);
  agree_no_error(fsdp_comm(f), error.text, EXIT_MISSING);
  for (Packing &p : t->run.packing)
    if (p.reference && found)
      MPI_Bcast(p.reference, fsdp_mpi_count(p.split->documents), MPI_FLOAT, 0, fsdp_comm(f));
    else if (p.reference && !stop) stop = reference_compute(t, &p, bare);
  if (stop) return stop;
  const bool writes = run_trains(o) && !fsdp_rank(f);
  const bool there = found && !access(path[0], F_OK);
  if (writes && !there && !reference_write(t, path[0], head))
    fail(&error, "cannot write %s: %s", path[0], strerror(errno));
  agree_no_error(fsdp_comm(f), error.text, EXIT_MISSING);
  if (!fsdp_rank(f))
    say("reference: log-probabilities of %lld answers %s, %.1f s\n", (long long)compared,
        found ? "of the run before" : bare ? "by the weights without adapters" : "by the first weights",
        (now_ms() - began) / 1e3);
  return stop;
}
