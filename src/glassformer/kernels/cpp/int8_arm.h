// int8 products on ARM cores. With the dot-product extension, one SDOT multiplies 4 inputs of a row by 4 inputs of 4
// channels. Without it, several instructions do the same.

using Level = int8_t;                            // a quantized activation
constexpr int64_t kChannels = 8;                 // channels of a panel
constexpr int64_t kGroup = 4;                    // inputs that lie side by side
constexpr int64_t kInputs = 16;                  // the inner dimension is padded to a multiple of this
constexpr int64_t kHead = 0;                     // bytes before a panel's weights
constexpr int64_t kAhead = kInputs * kChannels;  // bytes that are read beyond the last panel or row
constexpr int64_t kRows = 8;                     // rows of x per call
constexpr int64_t kNear = 1 << 15;               // bytes of activations in one block, so that it stays in the L1 cache

inline void finish_panel(int8_t*, int64_t) {}
inline RowLayout layout_for(int64_t, int64_t kp, bool) { return {kp, 1, kp, false}; }
inline int8_t* row_of(int8_t* x, int64_t r, const RowLayout& layout) { return x + r * layout.kp; }
inline int64_t rows_per_block(const RowLayout& layout) { return std::max<int64_t>(kRows, kNear / layout.kp / kRows * kRows); }

// Quantize one row to int8 by its largest magnitude. Return the scale that converts it back.
inline float quantize(const float* x, int8_t* q, int64_t k, const RowLayout& layout) {
  float32x4_t most = vdupq_n_f32(0);
  int64_t i = 0;
  for (; i + 4 <= k; i += 4) most = vmaxq_f32(most, vabsq_f32(vld1q_f32(x + i)));
  float top = vmaxvq_f32(most);
  // The bits of magnitudes, read as integers, have the same order, and NaN is the largest.
  for (; i < k; ++i)
    top = std::bit_cast<float>(std::max(std::bit_cast<int32_t>(top), std::bit_cast<int32_t>(std::fabs(x[i]))));
  const float inverse = top > 0 ? 127.0f / top : 0.0f;
  const float32x4_t by = vdupq_n_f32(inverse);
  i = 0;
  for (; i + 16 <= k; i += 16) {
    int16x4_t four[4];
    for (int part = 0; part < 4; ++part)
      four[part] = vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + i + 4 * part), by)));
    const int16x8_t low = vcombine_s16(four[0], four[1]), high = vcombine_s16(four[2], four[3]);
    vst1q_s8(q + i, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
  }
  for (; i < k; ++i) q[i] = static_cast<int8_t>(std::lrintf(x[i] * inverse));
  for (; i < layout.kp; ++i) q[i] = 0;
  return top / 127.0f;
}

using Sums = int32x4_t[2];  // sums of one row, for 4 channels each

// Add to each of 4 sums the products of 4 weights and the 4 activations in a lane of `row`.
template <int Lane>
inline int32x4_t add_products(int32x4_t sums, int8x16_t weights, int8x16_t row) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_laneq_s32(sums, weights, row, Lane);
#else
  const int8x8_t four = vreinterpret_s8_s32(vdup_laneq_s32(vreinterpretq_s32_s8(row), Lane));
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(weights), four));
  return vaddq_s32(sums, vpaddq_s32(low, vpaddlq_s16(vmull_s8(vget_high_s8(weights), four))));
#endif
}

// Multiply R rows of x by one panel of 8 channels.
template <int R>
void multiply(const int8_t* x, const int8_t* w, int64_t kp, Sums* sums) {
  // Each group of inputs has its own accumulators, because an SDOT waits four cycles for the previous one on the same sum.
  int32x4_t parts[4][R][2];
  for (auto& part : parts)
    for (auto& row : part) row[0] = row[1] = vdupq_n_s32(0);
  for (int64_t i = 0; i < kp; i += kInputs, w += kInputs * kChannels) {
    int8x16_t row[R];
    for (int r = 0; r < R; ++r) row[r] = vld1q_s8(x + r * kp + i);
// A macro, because the lane is a template argument.
#define GROUP(lane)                                                                       \
  {                                                                                       \
    int32x4_t(&part)[R][2] = parts[R > 2 ? 0 : lane];                                     \
    const int8x16_t low = vld1q_s8(w + lane * 32), high = vld1q_s8(w + lane * 32 + 16);   \
    for (int r = 0; r < R; ++r) {                                                         \
      part[r][0] = add_products<lane>(part[r][0], low, row[r]);                           \
      part[r][1] = add_products<lane>(part[r][1], high, row[r]);                          \
    }                                                                                     \
  }
    GROUP(0) GROUP(1) GROUP(2) GROUP(3)
#undef GROUP
  }
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half)
      sums[r][half] = vaddq_s32(vaddq_s32(parts[0][r][half], parts[1][r][half]),
                                vaddq_s32(parts[2][r][half], parts[3][r][half]));
}

#if defined(__ARM_FEATURE_DOTPROD)
// The same for 8 rows, in assembly, because compilers do not keep this order of instructions: the operands of the next 16
// inputs are loaded between the products, as soon as a register is free, so that no product waits for memory. It reads 16
// inputs beyond the end. Registers: sums in v0 to v15 (two per row), rows in v16 to v23, weights in v24 to v31.
template <>
void multiply<8>(const int8_t* x, const int8_t* w, int64_t kp, Sums* sums) {
  const int8_t *x0 = x, *x1 = x + kp, *x2 = x + 2 * kp, *x3 = x + 3 * kp;
  const int8_t *x4 = x + 4 * kp, *x5 = x + 5 * kp, *x6 = x + 6 * kp, *x7 = x + 7 * kp;
  int64_t steps = kp / kInputs;
#define ZERO(sum) "movi v" #sum ".4s, #0\n"
#define ROW(row, from) "ldr q" #row ", [%[" #from "]], #16\n"
#define WEIGHTS(low, high) "ldp q" #low ", q" #high ", [%[w]], #32\n"
#define DOT(sum, weights, row, lane) "sdot v" #sum ".4s, v" #weights ".16b, v" #row ".4b[" #lane "]\n"
#define PAIR(one, two, low, high, row, lane) DOT(one, low, row, lane) DOT(two, high, row, lane)
#define GROUP(low, high, lane)                                                                              \
  PAIR(0, 1, low, high, 16, lane) PAIR(2, 3, low, high, 17, lane) PAIR(4, 5, low, high, 18, lane)           \
  PAIR(6, 7, low, high, 19, lane) PAIR(8, 9, low, high, 20, lane) PAIR(10, 11, low, high, 21, lane)         \
  PAIR(12, 13, low, high, 22, lane) PAIR(14, 15, low, high, 23, lane)
#define STORE(one, two, at) "stp q" #one ", q" #two ", [%[sums], #" #at "]\n"
  asm volatile(
      ZERO(0) ZERO(1) ZERO(2) ZERO(3) ZERO(4) ZERO(5) ZERO(6) ZERO(7)
      ZERO(8) ZERO(9) ZERO(10) ZERO(11) ZERO(12) ZERO(13) ZERO(14) ZERO(15)
      ROW(16, x0) ROW(17, x1) ROW(18, x2) ROW(19, x3) ROW(20, x4) ROW(21, x5) ROW(22, x6) ROW(23, x7)
      WEIGHTS(24, 25) WEIGHTS(26, 27) WEIGHTS(28, 29) WEIGHTS(30, 31)
      "1:\n"
      "prfm pldl1keep, [%[w], %[ahead]]\n"
      GROUP(24, 25, 0) WEIGHTS(24, 25)
      GROUP(26, 27, 1) WEIGHTS(26, 27)
      "prfm pldl1keep, [%[w], %[ahead]]\n"
      GROUP(28, 29, 2) WEIGHTS(28, 29)
      PAIR(0, 1, 30, 31, 16, 3) ROW(16, x0) PAIR(2, 3, 30, 31, 17, 3) ROW(17, x1)
      PAIR(4, 5, 30, 31, 18, 3) ROW(18, x2) PAIR(6, 7, 30, 31, 19, 3) ROW(19, x3)
      PAIR(8, 9, 30, 31, 20, 3) ROW(20, x4) PAIR(10, 11, 30, 31, 21, 3) ROW(21, x5)
      PAIR(12, 13, 30, 31, 22, 3) ROW(22, x6) PAIR(14, 15, 30, 31, 23, 3) ROW(23, x7)
      WEIGHTS(30, 31)
      "subs %[steps], %[steps], #1\n"
      "b.ne 1b\n"
      STORE(0, 1, 0) STORE(2, 3, 32) STORE(4, 5, 64) STORE(6, 7, 96)
      STORE(8, 9, 128) STORE(10, 11, 160) STORE(12, 13, 192) STORE(14, 15, 224)
      : [w] "+r"(w), [steps] "+r"(steps), [x0] "+r"(x0), [x1] "+r"(x1), [x2] "+r"(x2), [x3] "+r"(x3), [x4] "+r"(x4),
        [x5] "+r"(x5), [x6] "+r"(x6), [x7] "+r"(x7)
      : [sums] "r"(sums), [ahead] "r"(kp * kChannels)
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",
        "v31");
#undef ZERO
#undef ROW
#undef WEIGHTS
#undef DOT
#undef PAIR
#undef GROUP
#undef STORE
}
#endif

// Multiply R rows of x by one panel and write the result as floats.
template <int R>
void panel(const int8_t* x, const int8_t* w, int64_t kp, const float* x_scale, const float* w_scale, const float* bias,
           float least, float* y, int64_t n, int64_t channels) {
  Sums sums[R];
  multiply<R>(x, w, kp, sums);
  const float32x4_t low_scale = vld1q_f32(w_scale), high_scale = vld1q_f32(w_scale + 4);
  if (channels == kChannels) {
    const float32x4_t none = vdupq_n_f32(0), lowest = vdupq_n_f32(least);
    const float32x4_t low_bias = bias ? vld1q_f32(bias) : none, high_bias = bias ? vld1q_f32(bias + 4) : none;
    for (int r = 0; r < R; ++r) {
      const float32x4_t low = vfmaq_f32(low_bias, vcvtq_f32_s32(sums[r][0]), vmulq_n_f32(low_scale, x_scale[r]));
      const float32x4_t high = vfmaq_f32(high_bias, vcvtq_f32_s32(sums[r][1]), vmulq_n_f32(high_scale, x_scale[r]));
      vst1q_f32(y + r * n, vmaxq_f32(low, lowest));
      vst1q_f32(y + r * n + 4, vmaxq_f32(high, lowest));
    }
    return;
  }
  for (int r = 0; r < R; ++r) {  // the last panel may be padded with channels that are not written
    float out[kChannels];
    vst1q_f32(out, vmulq_f32(vcvtq_f32_s32(sums[r][0]), vmulq_n_f32(low_scale, x_scale[r])));
    vst1q_f32(out + 4, vmulq_f32(vcvtq_f32_s32(sums[r][1]), vmulq_n_f32(high_scale, x_scale[r])));
    for (int64_t c = 0; c < channels; ++c) y[r * n + c] = std::max(out[c] + (bias ? bias[c] : 0.0f), least);
  }
}

inline void Product::multiply(int64_t panels_begin, int64_t panels_end, int64_t rows_begin, int64_t rows_end) const {
  const int64_t kp = layout.kp;
  for (int64_t p = panels_begin; p < panels_end; ++p)
    for (int64_t r = rows_begin; r < rows_end; r += kRows) {
      const int64_t first = p * kChannels, channels = std::min(kChannels, n - first);
      const float* pb = bias ? bias + first : nullptr;
#define CASE(R)                                                                                                       \
  case R:                                                                                                             \
    panel<R>(x + r * kp, panel_of(p), kp, x_scales + r, w_scales + first, pb, least, y + r * n + first, n, channels); \
    break;
      switch (std::min(kRows, rows_end - r)) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
#undef CASE
    }
}
