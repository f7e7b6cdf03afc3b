// int8 products by AVX2: one instruction multiplies 2 inputs of a row by 2 inputs of 8 channels, as 16-bit numbers.

#include "int8_two_byte_levels.h"

using Sums = __m256i;              // sums of one row, for half a panel
constexpr int64_t kChannels = 16;  // channels of a panel: two registers
constexpr int64_t kHalf = 16;      // bytes of one group of half a panel
constexpr int64_t kMaxRows = 4;    // 8 registers of sums, two of weights, one of activations and one of products, of 16

// Only the addition, of one cycle, waits for the previous sum.
template <int R>
constexpr int kParts = 1;

inline Sums add(Sums x, Sums y) { return _mm256_add_epi32(x, y); }

// The empty assembly keeps the compiler from adding in another order, for which the registers do not suffice.
inline Sums add_products(Sums sums, Sums x, Sums weights) {
  sums = _mm256_add_epi32(sums, _mm256_madd_epi16(x, weights));
  asm("" : "+x"(sums));
  return sums;
}

inline Sums load_weights(const int8_t* from) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Return two activations in every lane.
inline Sums spread(const int8_t* from) { return _mm256_set1_epi32(pair_of(from)); }

// Converts the sums of one row and half a panel to floats and stores them.
struct Finish {
  __m256 scale, bias;
  int64_t first, width;  // the first channel, and how many channels of the half exist

  Finish(const Product& product, int64_t p, int64_t half) {
    first = p * kChannels + half * 8;
    width = std::clamp<int64_t>(product.n - first, 0, 8);
    scale = _mm256_loadu_ps(product.w_scales + first);
    bias = product.bias ? _mm256_maskload_ps(product.bias + first, first_lanes(width)) : _mm256_setzero_ps();
  }

  void operator()(const Product& product, int64_t r, Sums sums) const {
    const __m256 by = _mm256_mul_ps(scale, _mm256_set1_ps(product.x_scales[r]));
    // The order of the operands matters: max returns the second one if either is NaN.
    const __m256 found =
        _mm256_max_ps(_mm256_set1_ps(product.least), _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), by, bias));
    float* to = product.y + r * product.n + first;
    if (width == 8)
      _mm256_storeu_ps(to, found);
    else
      _mm256_maskstore_ps(to, first_lanes(width), found);
  }
};
