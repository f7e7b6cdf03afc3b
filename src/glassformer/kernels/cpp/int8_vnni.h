// int8 products by AVX-512 VNNI: one instruction multiplies 4 inputs of a row by 4 inputs of 16 channels.
//
// It multiplies unsigned bytes by signed ones, as AMX does, so activations are stored as q + 128. This adds 128 times the
// sum of a channel's weights to its result. The head of each panel stores these numbers, which are subtracted at the end.

using Level = int8_t;              // a quantized activation
using Sums = __m512i;              // sums of one row, for half a panel
constexpr int64_t kChannels = 32;  // channels of a panel: two registers, or the rows of two tiles, with 4 inputs each
constexpr int64_t kGroup = 4;      // inputs that lie side by side
constexpr int64_t kInputs = 64;    // the inner dimension is padded to a multiple of this
constexpr int64_t kHead = 128;     // bytes before a panel's weights
constexpr int64_t kHalf = 64;      // bytes of one group of half a panel
constexpr int64_t kMaxRows = 12;   // 24 registers of sums, two of weights and one of activations, of 32

// The instruction takes five cycles and two start per cycle, so at least ten sums keep it busy.
template <int R>
constexpr int kParts = R <= 3 ? 4 : R <= 6 ? 2 : 1;

inline Sums add(Sums x, Sums y) { return _mm512_add_epi32(x, y); }
inline Sums load_weights(const int8_t* from) { return _mm512_loadu_si512(from); }

// The empty assembly keeps each sum in its register; without it, GCC 12 stores some in memory.
inline Sums add_products(Sums sums, Sums x, Sums weights) {
  sums = _mm512_dpbusd_epi32(sums, x, weights);
  asm("" : "+v"(sums));
  return sums;
}

// Return four activations in every lane.
inline Sums spread(const int8_t* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof(four));
  return _mm512_set1_epi32(four);
}

// Store, for each channel, what the shift of the activations by 128 adds to its sums.
inline void finish_panel(int8_t* panel, int64_t kp) {
  int32_t sums[kChannels] = {};
  for (int64_t i = 0; i < kp / 4; ++i)
    for (int64_t c = 0; c < kChannels; ++c)
      for (int64_t part = 0; part < 4; ++part) sums[c] += 128 * panel[kHead + (i * kChannels + c) * 4 + part];
  std::memcpy(panel, sums, sizeof(sums));
}

// Quantize one row by its largest magnitude. Return the scale that converts it back.
inline float quantize(const float* x, int8_t* q, int64_t k, const RowLayout& layout) {
  auto load_four = [&](int64_t i, __m512* to) {
    for (int part = 0; part < 4; ++part, i += 16)
      to[part] = k - i >= 16 ? _mm512_loadu_ps(x + i) : _mm512_maskz_loadu_ps(lane_mask(k - i), x + i);
  };
  __m512 numbers[4];
  // The bits of magnitudes, read as integers, have the same order; NaN is the largest.
  __m512i most[4] = {};
  for (int64_t i = 0; i < k; i += 64) {
    load_four(i, numbers);
    for (int part = 0; part < 4; ++part)
      most[part] = _mm512_max_epi32(most[part], _mm512_castps_si512(_mm512_abs_ps(numbers[part])));
  }
  const __m512i all = _mm512_max_epi32(_mm512_max_epi32(most[0], most[1]), _mm512_max_epi32(most[2], most[3]));
  const float top = std::bit_cast<float>(_mm512_reduce_max_epi32(all));
  const __m512 by = _mm512_set1_ps(top > 0 ? 127.0f / top : 0.0f);
  // The pack instructions work within 128-bit lanes; this permutation restores the order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int64_t i = 0; i < layout.kp; i += 64) {
    load_four(i, numbers);
    __m512i wholes[4];
    for (int part = 0; part < 4; ++part) wholes[part] = _mm512_cvtps_epi32(_mm512_mul_ps(numbers[part], by));
    const __m512i one = _mm512_packs_epi32(wholes[0], wholes[1]), two = _mm512_packs_epi32(wholes[2], wholes[3]);
    const __m512i signed_bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(one, two));
    const __m512i bytes = _mm512_xor_si512(signed_bytes, _mm512_set1_epi8(static_cast<char>(0x80)));
    int8_t* to = q + i * layout.together;
    if (layout.piece == 64) {
      _mm512_storeu_si512(to, bytes);
    } else {
      const int64_t step = 16 * layout.together;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(bytes));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + step), _mm512_extracti32x4_epi32(bytes, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * step), _mm512_extracti32x4_epi32(bytes, 2));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * step), _mm512_extracti32x4_epi32(bytes, 3));
    }
  }
  return top / 127.0f;
}

// Converts the sums of one row and half a panel to floats and stores them.
struct Finish {
  __m512i added;
  __m512 scale, bias;
  int64_t first;  // channel
  __mmask16 mask;

  Finish() = default;
  Finish(const Product& product, int64_t p, int64_t half) {
    first = p * kChannels + half * 16;
    mask = lane_mask(product.n - first);
    added = _mm512_loadu_si512(product.panel_of(p) + half * 64);
    scale = _mm512_loadu_ps(product.w_scales + first);
    bias = product.bias ? _mm512_maskz_loadu_ps(mask, product.bias + first) : _mm512_setzero_ps();
  }

  void operator()(const Product& product, int64_t r, __m512i sums) const {
    const __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(product.x_scales[r]));
    const __m512 found = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums, added)), by, bias);
    // The order of the operands matters: max returns the second one if either is NaN.
    _mm512_mask_storeu_ps(product.y + r * product.n + first, mask, _mm512_max_ps(_mm512_set1_ps(product.least), found));
  }
};
