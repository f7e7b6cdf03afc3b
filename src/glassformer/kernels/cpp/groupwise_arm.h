// Group-wise quantized products on ARM cores. With the dot-product extension, one SDOT multiplies 4 inputs of a row by 4
// inputs of 4 channels. Older cores multiply bytes to 16-bit numbers and add these.

constexpr int64_t kPanel = 8;       // channels of a panel: two registers of 4
constexpr int64_t kByteOffset = 0;  // added to 8-bit codes when they are stored
constexpr int64_t kDistance = 2048;  // prefetch distance of the weights, in bytes

// Add the products of 4 inputs of 4 channels by the 4 inputs in this lane of x.
#if defined(__ARM_FEATURE_DOTPROD)
#define ADD_PRODUCTS(sums, w, x, lane) vdotq_laneq_s32(sums, w, x, lane)
#else
inline int32x4_t add_products(int32x4_t sums, int8x16_t w, int32x4_t x) {
  const int8x16_t same = vreinterpretq_s8_s32(x);
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(same)), high = vmull_high_s8(w, same);
  return vaddq_s32(sums, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}
#define ADD_PRODUCTS(sums, w, x, lane) add_products(sums, w, vdupq_laneq_s32(vreinterpretq_s32_s8(x), lane))
#endif

// Quantize 32 activations. Store their largest magnitude in `top` and return the sum of the codes.
inline int32_t quantize_group(const float* x, int8_t* codes, float* top) {
  float32x4_t numbers[8];
  for (int part = 0; part < 8; ++part) numbers[part] = vld1q_f32(x + 4 * part);
  float32x4_t most = vabsq_f32(numbers[0]);
  for (int part = 1; part < 8; ++part) most = vmaxq_f32(most, vabsq_f32(numbers[part]));
  *top = vmaxvq_f32(most);
  const float32x4_t by = vdupq_n_f32(*top > kLeastTop ? 127.0f / *top : 0.0f);
  int32x4_t wholes[8];
  for (int part = 0; part < 8; ++part) wholes[part] = vcvtnq_s32_f32(vmulq_f32(numbers[part], by));
  int32x4_t sum = wholes[0];
  for (int part = 1; part < 8; ++part) sum = vaddq_s32(sum, wholes[part]);
  for (int half = 0; half < 2; ++half) {
    const int32x4_t* four = wholes + 4 * half;
    const int16x8_t low = vcombine_s16(vmovn_s32(four[0]), vmovn_s32(four[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(four[2]), vmovn_s32(four[3]));
    vst1q_s8(codes + 16 * half, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
  return vaddvq_s32(sum);
}

// Integer sums begin at kSumStart, the bits of 1.5 * 2^23. Read as a float, a sum is then 1.5 * 2^23 more than its number,
// exactly. Subtracting that takes a quarter of the time of a conversion.
constexpr int32_t kSumStart = 0x4b400000;
inline float32x4_t float_of(int32x4_t sums) { return vsubq_f32(vreinterpretq_f32_s32(sums), vdupq_n_f32(12582912.0f)); }

// The scales or minimums of one group: two registers of 4 channels.
struct Numbers8 {
  float32x4_t low, high;
  Numbers8(const uint8_t* from, bool is_half) {
    if (is_half) {
      const float16x8_t both = vreinterpretq_f16_u8(vld1q_u8(from));
      low = vcvt_f32_f16(vget_low_f16(both)), high = vcvt_f32_f16(vget_high_f16(both));
    } else {
      low = vreinterpretq_f32_u8(vld1q_u8(from)), high = vreinterpretq_f32_u8(vld1q_u8(from + 16));
    }
  }
};

// A panel with 8-bit codes and float32 numbers.
template <int64_t, bool mins>
struct WidePanel {
  static constexpr bool has_mins = mins;
  uint8_t* codes;
  float *scale, *min;

  Numbers8 scales(int64_t g) const { return {reinterpret_cast<const uint8_t*>(scale + g * kPanel), false}; }
  Numbers8 minimums(int64_t g) const { return {reinterpret_cast<const uint8_t*>(min + g * kPanel), false}; }
  void load(int64_t g, int four, int8x16_t (&first)[2], int8x16_t (&second)[2]) const {
    const int8_t* from = reinterpret_cast<const int8_t*>(codes) + g * kPanel * kGroup + four * 32;
    for (int half = 0; half < 2; ++half) first[half] = vld1q_s8(from + half * 16), second[half] = vld1q_s8(from + 128 + half * 16);
  }
  void prefetch(int64_t) const {}
};

// A panel in its packed format.
template <int64_t bits, bool mins>
struct PackedPanel {
  static constexpr bool has_mins = mins;
  const uint8_t* data;
  int64_t size;
  bool is_half;

  const uint8_t* numbers(int64_t g, int64_t which) const {
    return data + g * size + kPanel * kGroup * bits / 8 + which * kPanel * (is_half ? 2 : 4);
  }
  Numbers8 scales(int64_t g) const { return {numbers(g, 0), is_half}; }
  Numbers8 minimums(int64_t g) const { return {numbers(g, 1), is_half}; }

  // Load the codes of 8 channels for inputs 4 four to 4 four + 3 into `first`, and for those 16 further on into `second`.
  void load(int64_t g, int four, int8x16_t (&first)[2], int8x16_t (&second)[2]) const {
    const uint8_t* from = data + g * size + four * 32;
    for (int half = 0; half < 2; ++half) {
      const uint8x16_t some = vld1q_u8(from + half * 16);
      if constexpr (bits == 4) {
        first[half] = vreinterpretq_s8_u8(vandq_u8(some, vdupq_n_u8(15)));
        second[half] = vreinterpretq_s8_u8(vshrq_n_u8(some, 4));
      } else {
        first[half] = vreinterpretq_s8_u8(some);
        second[half] = vreinterpretq_s8_u8(vld1q_u8(from + 128 + half * 16));
      }
    }
  }
  void prefetch(int64_t g) const {
    for (int64_t line = 0; line < kPanel * kGroup * bits / 8; line += 64) __builtin_prefetch(data + g * size + kDistance + line);
  }

  // Write the scales of one group, and its minimums if there are any.
  void read_numbers(int64_t g, float* scale, float* min) const {
    const Numbers8 by = scales(g);
    vst1q_f32(scale, by.low), vst1q_f32(scale + 4, by.high);
    if constexpr (mins) {
      const Numbers8 least = minimums(g);
      vst1q_f32(min, least.low), vst1q_f32(min + 4, least.high);
    }
  }

  // Convert the panel to 8-bit codes and float32 numbers.
  void widen(int64_t groups, const WidePanel<bits, mins>& to) const {
    for (int64_t g = 0; g < groups; ++g) {
      int8x16_t parts[2][4][2];
      for (int four = 0; four < 4; ++four) load(g, four, parts[0][four], parts[1][four]);
      std::memcpy(to.codes + g * kPanel * kGroup, parts, sizeof(parts));
      read_numbers(g, to.scale + g * kPanel, to.min + g * kPanel);
    }
  }
};

// Multiply R rows by one panel.
template <int R, typename Panel>
void multiply_rows(const Panel& panel, const Block* x, int64_t groups, float (&out)[R][kPanel]) {
  float32x4_t totals[R][2];
  for (auto& row : totals) row[0] = row[1] = vdupq_n_f32(0);
  for (int64_t g = 0; g < groups; ++g) {
    const Block* blocks[R];
    int32x4_t sums[R][2];
    int8x16_t x_first[R], x_second[R];
    for (int r = 0; r < R; ++r) {
      blocks[r] = x + r * groups + g;
      sums[r][0] = sums[r][1] = vld1q_dup_s32(&blocks[r]->start);
      x_first[r] = vld1q_s8(blocks[r]->codes), x_second[r] = vld1q_s8(blocks[r]->codes + 16);
    }
    panel.prefetch(g);
// A macro, because the lane must be a compile-time constant.
#define FOUR(lane)                                                                     \
  {                                                                                    \
    int8x16_t first[2], second[2];                                                     \
    panel.load(g, lane, first, second);                                                \
    for (int r = 0; r < R; ++r)                                                        \
      for (int half = 0; half < 2; ++half) {                                           \
        int32x4_t& other = R == 1 ? more[half] : sums[r][half];                        \
        sums[r][half] = ADD_PRODUCTS(sums[r][half], first[half], x_first[r], lane); \
        other = ADD_PRODUCTS(other, second[half], x_second[r], lane);               \
      }                                                                                \
  }
    // One row has more independent sums, because each SDOT waits for the previous one on the same sum.
    int32x4_t more[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    FOUR(0) FOUR(1) FOUR(2) FOUR(3)
#undef FOUR
    if constexpr (R == 1)
      for (int half = 0; half < 2; ++half) sums[0][half] = vaddq_s32(sums[0][half], more[half]);
    const Numbers8 by = panel.scales(g);
    for (int r = 0; r < R; ++r) {
      totals[r][0] = vfmaq_f32(totals[r][0], float_of(sums[r][0]), vmulq_n_f32(by.low, blocks[r]->scale));
      totals[r][1] = vfmaq_f32(totals[r][1], float_of(sums[r][1]), vmulq_n_f32(by.high, blocks[r]->scale));
    }
    if constexpr (Panel::has_mins) {
      const Numbers8 least = panel.minimums(g);
      for (int r = 0; r < R; ++r) {
        totals[r][0] = vfmaq_n_f32(totals[r][0], least.low, blocks[r]->sum);
        totals[r][1] = vfmaq_n_f32(totals[r][1], least.high, blocks[r]->sum);
      }
    }
  }
  for (int r = 0; r < R; ++r) vst1q_f32(out[r], totals[r][0]), vst1q_f32(out[r] + 4, totals[r][1]);
}
