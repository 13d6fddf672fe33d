// test_nf4.h: bitsandbytes' NF4 weights are the numbers that bitsandbytes makes of them, on any ranks; what lies is
// rejected. dev/make_nf4_fixture.py writes the fixtures.

// Each tensor of nf4_plain and nf4_nested, as stored in the shards of all ranks of the test.
static void nf4_expect_values() {
  const TokText file = tok_fixture("nf4_expected.json");
  cJSON *root = cJSON_Parse((const char *)file.bytes), *variant;
  free(file.bytes);
  int tensors = 0;
  cJSON_ArrayForEach(variant, root) {
    static IxRun x;
    char path[256];
    snprintf(path, sizeof path, "dev/fixtures/%s", variant->string);
    ix_run_open(&x, path, MPI_COMM_WORLD);
    const ModelShape *s = &x.trainer.model.shape;
    for (int p = 0; p < x.trainer.fsdp->lay.params; p++) {
      const Param *q = &x.trainer.fsdp->lay.param[p];
      float *got = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q)), *at = got;
      fsdp_read_param(x.trainer.fsdp, STATE_MASTER, p, got);
      for (int i = 0; i < q->matrices; i++, tensors++) {
        char name[FAMILY_NAME_BYTES];
        family_tensor_name(name, q, i, s);
        const int64_t n = (q->matrices > 1 ? q->matrix_rows[i] : q->shape[0]) * (q->ndim > 1 ? q->shape[1] : 1);
        uint64_t h = TOK_FOLD_START;
        for (int64_t k = 0; k < n; k++) h = tok_fold(h, f32_bits(at[k]));
        EXPECT(h == fallback_hash(variant, name), "%s: %s is none of bitsandbytes' numbers", variant->string, name);
        at += n;
      }
      free(got);
    }
    ix_run_close(&x);
  }
  EXPECT(tensors == 22, "%d tensors", tensors);
  cJSON_Delete(root);
}
TEST_MPI(nf4_ranks_1, 1, "weights in NF4, with plain and with nested scales, are bitsandbytes' numbers, bit for bit") {
  nf4_expect_values();
}
TEST_MPI(nf4_ranks_3, 3, "and so on three ranks, whose shards start inside blocks") { nf4_expect_values(); }

// What a changed copy of a fixture is rejected with; "": it is not. from: text of the same length, in a file of it.
static const char *nf4_fault(const char *name, const char *file, const void *from, const void *to, size_t n) {
  static Error error;
  char dir[600], path[700];
  snprintf(dir, sizeof dir, "%s/changed", test_tmp());
  mkdir(dir, 0777);
  for (const char *each : {"config.json", "model.safetensors"}) {
    snprintf(path, sizeof path, "dev/fixtures/%s", name);
    TokText text = tok_read(path, each);
    uint8_t *at = strcmp(each, file) ? NULL : (uint8_t *)memmem(text.bytes, text.count, from, n);
    CHECK(at || strcmp(each, file), "%s has no %.40s", file, (const char *)from);
    if (at) memcpy(at, to, n);
    snprintf(path, sizeof path, "%s/%s", dir, each);
    tok_write(path, text.bytes, text.count);
    free(text.bytes);
  }
  TensorMap map;
  int params;
  error = {};
  Import *s = import_open(dir, NULL, &error);
  if (!s) return error.text;
  Param *param = ix_params(s->is.shape, &params);
  if (import_map(s, param, params, &map, &error)) tensor_map_free(&map);
  EXPECT(strstr(s->is.warning, "7 matrices in NF4 (bitsandbytes) are dequantized"), "%s", s->is.warning);
  free(param);
  import_close(s);
  return error.text;
}
TEST(nf4_rejections, "other quantizations, states that lie, missing scales and another code are rejected by name") {
  static const struct { const char *file, *from, *to, *says; } cases[] = {
      {"config.json", "\"nf4\"", "\"fp4\"", "\"bitsandbytes\" in 4 bits, fp4: of quantized weights"},
      {"config.json", "\"uint8\"", "\"bf16x\"", "in 4 bits, bf16x"},
      {"config.json", "bitsandbytes", "gptq________", "says \"gptq________\""},
      {"config.json", "load_in_4bit\": true", "load_in_4bit\": null", "in 8 bits"},
      {"model.safetensors", "\"blocksize\": 64", "\"blocksize\": 63", "quant_state is no matrix in nf4"},
      {"model.safetensors", "\"quant_type\": \"nf4\"", "\"quant_type\": \"fp4\"", "quant_state is no matrix in nf4"},
      {"model.safetensors", "\"shape\": [64, 64]", "\"shape\": [64, 32]", "U8, two numbers a byte, of 64 x 32"},
      {"model.safetensors", "\"shape\": [64, 64]", "\"shape\": [32,128]", "is (32,128), expected (64,64)"},
      {"model.safetensors", "q_proj.weight.absmax", "q_proj.weight.absmux", "absmax is missing"},
      {"model.safetensors", "q_proj.weight.quant_map", "q_proj.weight.quant_mop", "quant_map is missing"},
      {"model.safetensors", "q_proj.weight.nested_absmax", "q_proj.weight.nested_abs__x", "nested_absmax is missing"}};
  for (const auto &c : cases) {
    REQUIRE(strlen(c.from) == strlen(c.to), "%s", c.to);
    const char *says = nf4_fault("nf4_nested", c.file, c.from, c.to, strlen(c.to));
    EXPECT(strstr(says, c.says), "%s: \"%s\", expected %s", c.to, says, c.says);
  }
  float other[16];
  memcpy(other, nf4_code, sizeof other);
  other[15] = 0.75f;
  const char *says = nf4_fault("nf4_plain", "model.safetensors", nf4_code, other, sizeof other);
  EXPECT(strstr(says, "its quant_map is not NF4's"), "another code: \"%s\"", says);
}
