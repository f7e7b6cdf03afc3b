// Group-wise quantized products on ARM cores. With the dot-product extension, one SDOT multiplies 4 inputs of a row by 4
// inputs of 4 channels. Older cores multiply bytes to 16-bit numbers and add these.

constexpr int64_t kPanel = 8;       // channels of a panel: two registers of 4
constexpr int64_t kByteOffset = 0;  // added to 8-bit codes when they are stored
constexpr int64_t kDistance = 2048;  // prefetch distance of the weights, in bytes
constexpr int kRowsAtOnce = 2;       // rows for whose high and low bytes there are registers

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

// Quantize 32 activations. Store their largest magnitude in `top` and return the sum of the quantized numbers.
inline int32_t quantize_group(const float* x, Block* to, float* top) {
  float32x4_t numbers[8];
  for (int part = 0; part < 8; ++part) numbers[part] = vld1q_f32(x + 4 * part);
  float32x4_t most = vabsq_f32(numbers[0]);
  for (int part = 1; part < 8; ++part) most = vmaxq_f32(most, vabsq_f32(numbers[part]));
  *top = vmaxvq_f32(most);
  const float32x4_t by = vdupq_n_f32(*top > kLeastTop ? kMost / *top : 0.0f);
  int32x4_t sum = vdupq_n_s32(0);
  for (int part = 0; part < 4; ++part) {  // 8 numbers each
    const int32x4_t left = vcvtnq_s32_f32(vmulq_f32(numbers[2 * part], by));
    const int32x4_t right = vcvtnq_s32_f32(vmulq_f32(numbers[2 * part + 1], by));
    sum = vaddq_s32(sum, vaddq_s32(left, right));
    const int16x8_t both = vcombine_s16(vmovn_s32(left), vmovn_s32(right));
    const int8x8_t high = vrshrn_n_s16(both, kLowBits);
    vst1_s8(to->high + 8 * part, high);
    vst1_s8(to->low + 8 * part, vmovn_s16(vsubq_s16(both, vshll_n_s8(high, kLowBits))));
  }
  return vaddvq_s32(sum);
}

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
        if constexpr (!mins) {
          first[half] = vsubq_s8(first[half], vdupq_n_s8(8));
          second[half] = vsubq_s8(second[half], vdupq_n_s8(8));
        }
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

// Add the products of one group of R rows, whose bytes are x_first and x_second, and a panel.
template <int R, typename Panel>
inline void add_group(const Panel& panel, int64_t g, const int8x16_t (&x_first)[R], const int8x16_t (&x_second)[R],
                      int32x4_t (&sums)[R][2]) {
// A macro, because the lane must be a compile-time constant.
#define FOUR(lane)                                                                   \
  {                                                                                  \
    int8x16_t first[2], second[2];                                                   \
    panel.load(g, lane, first, second);                                              \
    for (int r = 0; r < R; ++r)                                                      \
      for (int half = 0; half < 2; ++half) {                                         \
        sums[r][half] = ADD_PRODUCTS(sums[r][half], first[half], x_first[r], lane);  \
        sums[r][half] = ADD_PRODUCTS(sums[r][half], second[half], x_second[r], lane); \
      }                                                                              \
  }
  FOUR(0) FOUR(1) FOUR(2) FOUR(3)
#undef FOUR
}

// Multiply R rows by one panel.
template <int R, typename Panel>
void multiply_rows(const Panel& panel, const Block* x, int64_t groups, float (&out)[R][kPanel]) {
  float32x4_t totals[R][2];
  for (auto& row : totals) row[0] = row[1] = vdupq_n_f32(0);
  for (int64_t g = 0; g < groups; ++g) {
    panel.prefetch(g);
    int32x4_t sums[R][2];
    for (auto& row : sums) row[0] = row[1] = vdupq_n_s32(0);
    const Block* blocks[R];
    for (int r = 0; r < R; ++r) blocks[r] = x + r * groups + g;
    if constexpr (R <= kRowsAtOnce) {  // high and low bytes are rows of one pass over the weights
      int8x16_t first[2 * R], second[2 * R];
      int32x4_t parts[2 * R][2];
      for (int r = 0; r < R; ++r) {
        first[r] = vld1q_s8(blocks[r]->high), second[r] = vld1q_s8(blocks[r]->high + 16);
        first[R + r] = vld1q_s8(blocks[r]->low), second[R + r] = vld1q_s8(blocks[r]->low + 16);
      }
      for (auto& row : parts) row[0] = row[1] = vdupq_n_s32(0);
      add_group<2 * R>(panel, g, first, second, parts);
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half)
          sums[r][half] = vaddq_s32(parts[R + r][half], vshlq_n_s32(parts[r][half], kLowBits));
    } else {  // two passes, because there are not enough registers
      int8x16_t first[R], second[R];
      for (int r = 0; r < R; ++r) first[r] = vld1q_s8(blocks[r]->high), second[r] = vld1q_s8(blocks[r]->high + 16);
      add_group<R>(panel, g, first, second, sums);
      for (auto& row : sums) row[0] = vshlq_n_s32(row[0], kLowBits), row[1] = vshlq_n_s32(row[1], kLowBits);
      for (int r = 0; r < R; ++r) first[r] = vld1q_s8(blocks[r]->low), second[r] = vld1q_s8(blocks[r]->low + 16);
      add_group<R>(panel, g, first, second, sums);
    }
    const Numbers8 by = panel.scales(g);
    for (int r = 0; r < R; ++r) {
      totals[r][0] = vfmaq_f32(totals[r][0], vcvtq_f32_s32(sums[r][0]), vmulq_n_f32(by.low, blocks[r]->scale));
      totals[r][1] = vfmaq_f32(totals[r][1], vcvtq_f32_s32(sums[r][1]), vmulq_n_f32(by.high, blocks[r]->scale));
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
