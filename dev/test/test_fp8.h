// test_fp8.h: one-byte numbers (E4M3), their scales and the ops on them, against a definition written out here in
// double; then every CPU table against the plain rounding, bit for bit. Included after test_ops.h.
#pragma once

// ================================================================================================ the definition
// Value of a pattern: sign, four bits of exponent with bias 7, three of mantissa; S.1111.111 is NaN.
static double fp8_definition(int bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
  return bits & 0x80 ? -size : size;
}
// The pattern nearest to x, found by trying all of them; of two equally near, the even one. Beyond 448 the nearest is
// 448.
static int fp8_nearest(double x) {
  const double size = fmin(fabs(x), 1e30);       // so that Inf has distances, too
  int best = 0;
  if (isnan(x)) return 0x7f;
  for (int bits = 1; bits < 0x7f; bits++) {
    const double near = fabs(size - fp8_definition(bits)), nearest = fabs(size - fp8_definition(best));
    if (near < nearest || (near == nearest && bits % 2 == 0)) best = bits;
  }
  return best | (signbit(x) ? 0x80 : 0);
}
static int fp8_rounded(float x) {
  fp8 stored;
  round_to(&stored, x);
  return stored.bits;
}
static void fp8_expect_rounded(float x) {
  for (float y : {x, -x}) {
    const int got = fp8_rounded(y), want = fp8_nearest((double)y);
    EXPECT(got == want, "%.9g (%08x) is stored as %02x, nearest is %02x", (double)y, f32_bits(y), got, want);
  }
}

TEST(fp8_every_pattern, "each of the 256 fp8 patterns has the value of E4M3, and that value is stored as the pattern") {
  for (int i = 0; i < 256; i++) {
    const double want = fp8_definition(i), got = to_f32(fp8{(uint8_t)i});
    EXPECT(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want), "%02x is %g, not %g", i, got, want);
    EXPECT(fp8_rounded((float)want) == (isnan(want) ? 0x7f : i), "%02x becomes %02x", i, fp8_rounded((float)want));
  }
  EXPECT(fp8_definition(0x7e) == 448.0 && fp8_definition(1) == 0x1p-9 && fp8_definition(8) == 0x1p-6, "the definition");
  EXPECT(dtype_bytes(F8) == 1 && !strcmp(dtype_name(F8), "fp8") && !dtype_floats(F8), "fp8 as a dtype");
}
TEST(fp8_rounding, "the nearest fp8 is stored, ties to even, saturated: around every midpoint, all of bf16 and fp16") {
  for (int i = 0; i < 0x7e; i++) {
    const float low = (float)fp8_definition(i), high = (float)fp8_definition(i + 1);
    const float middle = 0.5f * (low + high);    // exact: one bit more than three
    for (float x : {low, high, middle})
      for (float y : {x, nextafterf(x, INFINITY), nextafterf(x, -INFINITY)}) fp8_expect_rounded(y);
  }
  for (float x : {448.0f, 464.0f, 480.0f, 512.0f, 1e30f, 3.40282347e38f, INFINITY}) {
    fp8_expect_rounded(x);
    EXPECT(fp8_rounded(x) == 0x7e && fp8_rounded(-x) == 0xfe, "%g becomes %02x", (double)x, fp8_rounded(x));
  }
  for (float x : {0.0f, 0x1p-149f, 0x1p-127f, 0x1p-126f, 0x1p-11f}) fp8_expect_rounded(x);
  for (uint32_t u : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu})
    EXPECT(fp8_rounded(bits_f32(u)) == 0x7f, "NaN %08x becomes %02x", u, fp8_rounded(bits_f32(u)));
  for (int i = 0; i < 65536; i++) {
    const float x = to_f32(bf16{(uint16_t)i}), y = to_f32(fp16{(uint16_t)i});
    EXPECT(fp8_rounded(x) == fp8_nearest(x), "bf16 %04x becomes %02x, not %02x", i, fp8_rounded(x), fp8_nearest(x));
    EXPECT(fp8_rounded(y) == fp8_nearest(y), "fp16 %04x becomes %02x, not %02x", i, fp8_rounded(y), fp8_nearest(y));
  }
}

// want[i] for the magnitudes of n fp32 patterns from `first` on. All numbers between two midpoints have one nearest
// pattern; a midpoint goes to its even neighbour.
static void fp8_want_patterns(uint8_t *want, uint32_t first, int64_t n) {
  int64_t at = 0;
  for (int code = 0; code < 0x7f && at < n; code++) {
    const double middle = 0.5 * (fp8_definition(code) + fp8_definition(code + 1));
    const int64_t end = code == 0x7e ? 0x7f800001 : (int64_t)f32_bits((float)middle) + (code % 2 == 0);
    for (; at < n && (int64_t)first + at < end; at++) want[at] = (uint8_t)code;
  }
  for (; at < n; at++) want[at] = 0x7f;
}
// The first two tables: AVX2 and AVX-512, the two variants in vec.h.
TEST(fp8_rounding_all, "every one of the 2^32 fp32 patterns is stored as its nearest fp8, with AVX2 and with AVX-512") {
  const int64_t n = 1 << 20;
  Tensor in = op_tensor(F32, n), out = op_tensor(F8, n), one = op_tensor(F32, 1);
  uint8_t *want = (uint8_t *)op_alloc((size_t)n);
  op_put(one, 0, 1.0);
  for (int64_t first = 0; first < (int64_t)1 << 31; first += n)
    for (uint32_t sign : {0u, 0x80u}) {
      fp8_want_patterns(want, (uint32_t)first, n);
      for (int64_t i = 0; i < n; i++) {
        if (want[i] != 0x7f) want[i] |= (uint8_t)sign;
        ((uint32_t *)in.data)[i] = (uint32_t)(first + i) | sign << 24;
      }
      for (int t = 0; t < 2 && op_table(t); t++) {
        const Ops *ops = op_table(t);
        Ctx c = {};
        c.ops = ops;
        c.threads = 2;
        fp8_encode(&c, out, in, one);
        REQUIRE(!memcmp(out.data, want, (size_t)n), "%s: patterns from %08llx on", ops->name, (long long)first);
      }
    }
  op_free_all();
}

// ================================================================================================ every table
// A tensor with numbers of every size that fp8 has, and NaN, Inf, zeros of both signs and subnormals among them.
static Tensor fp8_numbers(Dtype dtype, int64_t n, double scale) {
  static const double special[] = {0.0, -0.0, NAN, INFINITY, -INFINITY, 448.0, 464.0, 0x1p-9, 0x1p-10, 1e-30};
  Tensor t = op_tensor(dtype, n);
  uint64_t seed = (uint64_t)n;
  for (int64_t i = 0; i < n; i++) {
    const double size = ldexp(1.0 + op_uniform(&seed), (int)op_below(&seed, 24) - 13);
    op_put(t, i, scale * (i % 7 == 3 ? special[i / 7 % 10] : op_random(&seed) & 1 ? -size : size));
  }
  return t;
}
static const int64_t FP8_LENGTHS[] = {1, 15, 16, 17, 33, 4096 + 7, 5 * 4096 + 13};
static Tensor fp8_scale_tensor(double x) { Tensor t = op_tensor(F32, 1); op_put(t, 0, x); return t; }

static void fp8_check_codes(Dtype dtype, int64_t n, int64_t shift, double scale) {
  Tensor in = op_shifted(fp8_numbers(dtype, n + shift, scale), shift), want = op_tensor(F8, n),
         bytes = op_tensor(F8, n), decoded = op_tensor(dtype, n), factor = fp8_scale_tensor(scale);
  for (int64_t i = 0; i < n; i++) {
    ((fp8 *)want.data)[i].bits = (uint8_t)fp8_nearest(op_get(in, i) / scale);
    ((fp8 *)bytes.data)[i].bits = (uint8_t)(i * 37 + 11);
    op_put(decoded, i, op_get(bytes, i) * scale);
  }
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = {};
    c.ops = r.ops;
    c.threads = r.threads;
    Tensor out = op_shifted(op_tensor(F8, n + shift), shift), back = op_shifted(op_tensor(dtype, n + shift), shift);
    fp8_encode(&c, out, in, factor);
    op_expect_same_bits(op_where("fp8_encode", r, dtype), out, want);
    fp8_decode(&c, back, bytes, factor);
    op_expect_same_bits(op_where("fp8_decode", r, dtype), back, decoded);
  }
  op_free_all();
}
TEST(fp8_tables, "fp8_encode and fp8_decode are the definition on every table, for any threads, length and start") {
  for (Dtype dtype : {F32, BF16, F16})
    for (int64_t n : FP8_LENGTHS)
      for (int64_t shift : {0, 1, 3}) fp8_check_codes(dtype, n, shift, n % 2 ? 0.25 : 1.0);
  fp8_check_codes(F32, 333, 0, 0x1p-126);
  fp8_check_codes(F32, 333, 0, 0x1p100);
}
TEST(fp8_round_trip, "values on the grid of a scale are stored without error, in fp32 and in bf16") {
  for (int t = 0; const Ops *ops = op_table(t); t++)
    for (Dtype dtype : {F32, BF16})
      for (int e = -100; e <= 100; e += 20) {
        Ctx c = {};
        c.ops = ops;
        c.threads = 1;
        Tensor grid = op_tensor(dtype, 254), bytes = op_tensor(F8, 254), back = op_tensor(dtype, 254);
        Tensor amax = op_tensor(F32, 1, 1), scale = op_tensor(F32, 1);
        for (int i = 0; i < 254; i++) op_put(grid, i, ldexp(fp8_definition(i < 127 ? i : i + 1), e));
        op_put(amax, 0, 0.0);
        absmax(&c, reshaped(amax, 1), grid);
        fp8_scales(&c, scale, amax);
        EXPECT(op_get(scale, 0) == ldexp(1.0, e), "%s: scale %g, not 2^%d", ops->name, op_get(scale, 0), e);
        fp8_encode(&c, bytes, grid, scale);
        fp8_decode(&c, back, bytes, scale);
        op_expect_same_bits(ops->name, back, grid);
        op_free_all();
      }
}

// ================================================================================================ scales
// The largest p with a 2^p <= 448, found by trying; the scale is 2^-p, or 2^-126 if that is smaller.
static double fp8_scale_definition(double a) {
  if (!(a > 0.0) || isinf(a)) return 1.0;
  int p = -200;
  while (ldexp(a, p + 1) <= 448.0) p++;
  return ldexp(1.0, p > 126 ? -126 : -p);
}
TEST(fp8_scale_every_exponent, "a scale is the power of two that brings the maximum into (224, 448]: all exponents") {
  for (uint32_t exponent = 0; exponent < 255; exponent++)
    for (uint32_t mantissa : {0u, 1u, 0x400000u, 0x5fffffu, 0x600000u, 0x600001u, 0x7fffffu}) {
      const float a = bits_f32(exponent << 23 | mantissa), scale = fp8_scale_of(a);
      EXPECT((double)scale == fp8_scale_definition(a), "scale of %g is %g, not %g", (double)a, (double)scale,
             fp8_scale_definition(a));
      EXPECT(scale >= 0x1p-126f && 1.0f / scale >= 0x1p-126f, "scale of %g is %g", (double)a, (double)scale);
    }
  for (float a : {0.0f, -0.0f, INFINITY, -INFINITY, NAN}) EXPECT(fp8_scale_of(a) == 1.0f, "scale of %g", (double)a);
}
TEST(fp8_scales_rows, "fp8_scales takes each column's maximum over the ranks' rows; one that is not finite gives 1") {
  const int64_t rows = 3, n = 50;
  Tensor amax = op_tensor(F32, rows, n), turned = op_tensor(F32, rows, n);
  uint64_t seed = 5;
  for (int64_t i = 0; i < rows * n; i++) op_put(amax, i, ldexp(op_uniform(&seed), (int)op_below(&seed, 60) - 30));
  op_put(amax, n + 3, NAN), op_put(amax, 4, INFINITY);
  for (int64_t i = 0; i < rows; i++) op_put(amax, i * n + 5, 0.0);
  for (int64_t i = 0; i < rows * n; i++) op_put(turned, i, op_get(amax, (i + n) % (rows * n)));
  for (int t = 0; const Ops *ops = op_table(t); t++) {
    Ctx c = {};
    c.ops = ops;
    c.threads = 1;
    Tensor scale = op_tensor(F32, n), again = op_tensor(F32, n);
    fp8_scales(&c, scale, amax);
    fp8_scales(&c, again, turned);
    for (int64_t j = 0; j < n; j++) {
      const double a = fmax(op_get(amax, j), fmax(op_get(amax, n + j), op_get(amax, 2 * n + j)));
      const double want = j == 3 ? 1.0 : fp8_scale_definition(a);
      EXPECT(op_get(scale, j) == want, "%s: column %lld has scale %g, not %g", ops->name, (long long)j,
             op_get(scale, j), want);
    }
    op_expect_same_bits("rows in another order", scale, again);
  }
  op_free_all();
}
TEST(fp8_absmax, "absmax is the largest magnitude on every table and thread count; it collects; NaN and Inf are Inf") {
  for (Dtype dtype : {F32, BF16, F16})
    for (int64_t n : FP8_LENGTHS)
      for (int64_t peak : {(int64_t)0, n / 2, n - 1})
        for (double x : {-3.0, 3.0, (double)NAN, (double)-INFINITY, 0.0}) {
          Tensor in = op_random_tensor((uint64_t)n, 0.1, dtype, n + 1);
          if (x != 0.0) op_put(in, peak + 1, x);
          double want = 0.0;
          for (int64_t i = 1; i <= n; i++) want = fmax(want, fabs(op_get(in, i)));
          if (isnan(x)) want = INFINITY;
          for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
            Ctx c = {};
            c.ops = r.ops;
            c.threads = r.threads;
            Tensor to = fp8_scale_tensor(0.0), above = fp8_scale_tensor(1e30);
            absmax(&c, to, op_shifted(in, 1));
            absmax(&c, above, op_shifted(in, 1));
            EXPECT(op_get(to, 0) == want, "%s: %g, not %g", op_where("absmax", r, dtype), op_get(to, 0), want);
            EXPECT(op_get(above, 0) == fmax(want, (double)1e30f), "%s: lost 1e30", op_where("absmax", r, dtype));
          }
          op_free_all();
        }
}

// =================================================================================================== GEMMs
struct Fp8Case { MatmulShape s; Tensor in, weight, bias, in_scale, weight_scale; };
static const MatmulShape fp8_shapes[] = {{16, 16, 16}, {48, 32, 80}, {32, 400, 16}};
static Fp8Case fp8_case(MatmulShape s) {
  return {s, op_random_tensor(11, 30.0, F8, s.M, s.K), op_random_tensor(12, 100.0, F8, s.N, s.K),
          op_random_tensor(13, 1.0, BF16, s.N), fp8_scale_tensor(0x1p-5), fp8_scale_tensor(0x1p-9)};
}
// The fp64 result of the decoded operands, with or without the bias; returns a bound of sum |terms|.
static double fp8_reference(const Fp8Case *x, bool bias, double **want) {
  const MatmulShape s = x->s;
  double *in = op_fp64(x->in), *weight = op_fp64(x->weight);
  for (int64_t i = 0; i < s.M * s.K; i++) in[i] *= op_get(x->in_scale, 0);
  for (int64_t i = 0; i < s.N * s.K; i++) weight[i] *= op_get(x->weight_scale, 0);
  *want = op_zeros(s.M * s.N);
  const double scale = matmul_ref(*want, s.M, s.N, s.K, in, s.K, 1, weight, s.K, 1);
  for (int64_t i = 0; bias && i < s.M * s.N; i++) (*want)[i] += op_get(x->bias, i % s.N);
  return scale + 5.0;                            // no bias is larger
}
TEST(fp8_matmul_reference, "matmul_forward_fp8 equals the fp64 result within rounding, the same bits on every table") {
  for (MatmulShape s : fp8_shapes)
    for (bool with_bias : {false, true}) {
      const Fp8Case x = fp8_case(s);
      double *want, scale = fp8_reference(&x, with_bias, &want);
      Tensor first = {};
      for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
        Ctx c = {};
        c.ops = r.ops;
        c.threads = r.threads;
        Tensor out = op_tensor(BF16, s.M, s.N), row = op_tensor(BF16, 16, s.N), none = {};
        matmul_forward_fp8(&c, out, x.in, x.in_scale, x.weight, x.weight_scale, with_bias ? x.bias : none);
        // K products without rounding, K additions and that of the bias
        op_expect_close(op_where("matmul_forward_fp8", r, F8), out, want, (double)s.K + 1.0, scale);
        if (op_run_is_first(r)) first = out;
        op_expect_same_bits(op_where("matmul_forward_fp8", r, F8), out, first);
        matmul_forward_fp8(&c, row, rows_of(x.in, s.M - 16, 16), x.in_scale, x.weight, x.weight_scale,
                           with_bias ? x.bias : none);
        op_expect_same_bits(op_where("some of the rows", r, F8), row, rows_of(out, s.M - 16, 16));
      }
      op_free_all();
    }
}
