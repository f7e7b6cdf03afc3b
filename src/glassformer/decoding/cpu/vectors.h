// Registers of some floats: what a compiler does not do by itself.

#if defined(__aarch64__)
using Numbers = float32x4_t;
inline float sum_of(Numbers x) { return vaddvq_f32(x); }
inline float most_of(Numbers x) { return vmaxnmvq_f32(x); }
inline void sums_of(const Numbers* x, float* to) { vst1q_f32(to, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]))); }
#else
using Numbers = __m512;
inline float sum_of(Numbers x) { return _mm512_reduce_add_ps(x); }
inline float most_of(Numbers x) { return _mm512_reduce_max_ps(x); }

// The sums of four registers at once: halves of two side by side, and again, until a number of each is left.
inline void sums_of(const Numbers* x, float* to) {
  const __m512 one = _mm512_unpacklo_ps(x[0], x[1]) + _mm512_unpackhi_ps(x[0], x[1]);
  const __m512 two = _mm512_unpacklo_ps(x[2], x[3]) + _mm512_unpackhi_ps(x[2], x[3]);
  const __m512d a = _mm512_castps_pd(one), b = _mm512_castps_pd(two);
  const __m512 all = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  const __m256 half = _mm512_castps512_ps256(all) + _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1));
  _mm_storeu_ps(to, _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
}
#endif
constexpr int64_t kTogether = sizeof(Numbers) / sizeof(float);  // numbers of a register

inline Numbers load(const float* from) {
  Numbers x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

inline Numbers load(const at::Half* from) {
#if defined(__aarch64__)
  return vcvt_f32_f16(vld1_f16(reinterpret_cast<const __fp16*>(from)));
#else
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
}

using Wholes = int32_t __attribute__((vector_size(sizeof(Numbers))));

// e^x for x <= 0, to a few units in the last place: what the sum leaves out is below 2e-7.
inline Numbers exp_below(Numbers x) {
  const Numbers shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: what is behind the point is rounded away
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

// The first n of a register, and minus infinity where there are no more.
inline Numbers load_some(const float* from, int64_t n) {
  float numbers[kTogether];
  std::fill_n(numbers, kTogether, -INFINITY);
  std::copy_n(from, std::min(n, kTogether), numbers);
  return load(numbers);
}
