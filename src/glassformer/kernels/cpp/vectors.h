// SIMD registers of floats: operations that compilers do not vectorize by themselves. If one operand of a maximum is NaN,
// either operand may be returned. The compiler flags decide the kind of register: NEON, AVX-512 or AVX2.

// A float16 number, as it lies in memory.
struct Half {
  uint16_t bits;
};

#if defined(__aarch64__)
constexpr int kRegisters = 32;  // vector registers of the CPU
using Numbers = float32x4_t;
inline float sum_of(Numbers x) { return vaddvq_f32(x); }
inline float max_of(Numbers x) { return vmaxnmvq_f32(x); }
inline Numbers higher_of(Numbers x, Numbers y) { return vmaxnmq_f32(x, y); }
inline bool is_any_above(Numbers x, float least) { return vmaxvq_u32(vcgtq_f32(x, vdupq_n_f32(least))) != 0; }
inline void sums_of(const Numbers* x, float* to) { vst1q_f32(to, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]))); }
inline Numbers load(const Half* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits))); }
inline void store(Numbers x, Half* to) { vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
#elif defined(__AVX512F__)
constexpr int kRegisters = 32;
using Numbers = __m512;

// Return the mask of a register's first n lanes.
inline __mmask16 lane_mask(int64_t n) { return n >= 16 ? 0xffff : static_cast<__mmask16>((1u << std::max<int64_t>(0, n)) - 1); }

inline float sum_of(Numbers x) { return _mm512_reduce_add_ps(x); }
inline float max_of(Numbers x) { return _mm512_reduce_max_ps(x); }
inline Numbers higher_of(Numbers x, Numbers y) { return _mm512_max_ps(x, y); }
inline bool is_any_above(Numbers x, float least) { return _mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_GT_OQ) != 0; }

// Sum each of four registers: interleave and add pairs until one number per register is left.
inline void sums_of(const Numbers* x, float* to) {
  const __m512 one = _mm512_unpacklo_ps(x[0], x[1]) + _mm512_unpackhi_ps(x[0], x[1]);
  const __m512 two = _mm512_unpacklo_ps(x[2], x[3]) + _mm512_unpackhi_ps(x[2], x[3]);
  const __m512d a = _mm512_castps_pd(one), b = _mm512_castps_pd(two);
  const __m512 all = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  const __m256 half = _mm512_castps512_ps256(all) + _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1));
  _mm_storeu_ps(to, _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
}

// Exchange rows and columns of 16 x 16 numbers of 32 bits.
inline void transpose_block(__m512i* x) {
  __m512i y[16];
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {  // the 4 x 4 blocks of 128 bits
    const __m512i a = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88), b = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88), d = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    y[i] = _mm512_shuffle_i32x4(a, c, 0x88), y[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    y[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88), y[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
  for (int i = 0; i < 16; ++i) x[i] = y[i];
}

inline Numbers load(const Half* from) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
inline void store(Numbers x, Half* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#else
constexpr int kRegisters = 16;
using Numbers = __m256;
inline __m128 low_of(Numbers x) { return _mm256_castps256_ps128(x); }
inline __m128 high_of(Numbers x) { return _mm256_extractf128_ps(x, 1); }
inline Numbers higher_of(Numbers x, Numbers y) { return _mm256_max_ps(x, y); }
inline bool is_any_above(Numbers x, float least) {
  return _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(least), _CMP_GT_OQ)) != 0;
}

inline float sum_of(Numbers x) {
  const __m128 four = _mm_add_ps(low_of(x), high_of(x)), two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float max_of(Numbers x) {
  const __m128 four = _mm_max_ps(low_of(x), high_of(x)), two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Sum each of four registers: add neighbors until one number per register and half is left.
inline void sums_of(const Numbers* x, float* to) {
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  _mm_storeu_ps(to, _mm_add_ps(low_of(all), high_of(all)));
}

inline Numbers load(const Half* from) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline void store(Numbers x, Half* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#endif
constexpr int64_t kTogether = sizeof(Numbers) / sizeof(float);  // floats per register

// One number for each of Q queries. A register holds the values of all queries in turn, several times over.
template <int Q>
using Each = std::array<float, Q>;

template <int Q>
Each<Q> max_of_each(Numbers x) {
  if constexpr (Q == 1) return {max_of(x)};
  Each<Q> found;
  for (int i = 0; i < kTogether; ++i) found[i % Q] = i < Q || x[i] > found[i % Q] ? x[i] : found[i % Q];
  return found;
}

template <int Q>
Each<Q> sum_of_each(Numbers x) {
  if constexpr (Q == 1) return {sum_of(x)};
  Each<Q> found = {};
  for (int i = 0; i < kTogether; ++i) found[i % Q] += x[i];
  return found;
}

template <size_t Q>
Numbers repeat(const std::array<float, Q>& each) {
  Numbers x;
  for (int i = 0; i < kTogether; ++i) x[i] = each[i % Q];
  return x;
}

inline Numbers load(const float* from) {
  Numbers x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

inline void store(Numbers x, float* to) { std::memcpy(to, &x, sizeof(x)); }

// Load the first n floats of a register and fill the rest with minus infinity.
inline Numbers load_some(const float* from, int64_t n) {
#if defined(__AVX512F__)
  return _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), lane_mask(n), from);
#else
  if (n >= kTogether) return load(from);
  float numbers[kTogether];
  std::fill_n(numbers, kTogether, -INFINITY);
  std::copy_n(from, std::max<int64_t>(0, n), numbers);
  return load(numbers);
#endif
}

using Wholes = int32_t __attribute__((vector_size(sizeof(Numbers))));

// e^x for x <= 0, with an error of a few units in the last place: the truncated Taylor series is off by less than 2e-7.
inline Numbers exp_below(Numbers x) {
  const Numbers shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  const Numbers n = shifted - 12582912.0f, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n log 2
  Numbers sum = r * (1.0f / 720) + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const Numbers power = std::bit_cast<Numbers>((std::bit_cast<Wholes>(shifted) << 23) + 0x3f800000);  // 2^n
  return x < -87.0f ? Numbers{} : sum * power;
}
