// Quantized activations as 16-bit numbers, for the products of int8_avx2.h and int8_avx512.h.
//
// The instruction that multiplies bytes (VPMADDUBSW) limits sums of two products to 16 bits, so it is not exact. Weights
// are stored as bytes and widened when they are loaded; activations are stored as 16-bit numbers.

using Level = int16_t;             // a quantized activation
constexpr int64_t kGroup = 2;      // inputs that lie side by side
constexpr int64_t kInputs = 16;    // the inner dimension is padded to a multiple of this
constexpr int64_t kHead = 0;       // bytes before a panel's weights

inline void finish_panel(int8_t*, int64_t) {}

// Return two activations as one number.
inline int32_t pair_of(const int8_t* from) {
  int32_t two;
  std::memcpy(&two, from, sizeof(two));
  return two;
}

// Return a mask of the first n lanes.
inline __m256i first_lanes(int64_t n) {
  const int32_t count = static_cast<int32_t>(std::clamp<int64_t>(n, 0, 8));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Quantize one row by its largest magnitude. Return the scale that converts it back.
inline float quantize(const float* x, int8_t* q, int64_t k, const RowLayout& layout) {
  auto load_eight = [&](int64_t i) { return k - i >= 8 ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, first_lanes(k - i)); };
  // The bits of magnitudes, read as integers, have the same order; NaN is the largest.
  const __m256i without_sign = _mm256_set1_epi32(0x7fffffff);
  __m256i most[2] = {};
  for (int64_t i = 0; i < k; i += 16)
    for (int part = 0; part < 2; ++part)
      most[part] = _mm256_max_epi32(most[part], _mm256_and_si256(_mm256_castps_si256(load_eight(i + 8 * part)), without_sign));
  int32_t each[8], highest = 0;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(each), _mm256_max_epi32(most[0], most[1]));
  for (const int32_t bits : each) highest = std::max(highest, bits);
  const float top = std::bit_cast<float>(highest);
  const __m256 by = _mm256_set1_ps(top > 0 ? 127.0f / top : 0.0f);
  for (int64_t i = 0; i < layout.kp; i += 16) {
    const __m256i one = _mm256_cvtps_epi32(_mm256_mul_ps(load_eight(i), by));
    const __m256i two = _mm256_cvtps_epi32(_mm256_mul_ps(load_eight(i + 8), by));
    // The pack instruction works within 128-bit lanes; the permutation restores the order.
    const __m256i levels = _mm256_permute4x64_epi64(_mm256_packs_epi32(one, two), 0xd8);
    int8_t* to = q + i * 2 * layout.together;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(levels));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * layout.together), _mm256_extracti128_si256(levels, 1));
  }
  return top / 127.0f;
}
