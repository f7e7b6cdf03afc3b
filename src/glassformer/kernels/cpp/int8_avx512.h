// int8 products by AVX-512 without VNNI: the instructions of int8_avx2.h with registers of twice the size.

#include "int8_two_byte_levels.h"

using Sums = __m512i;              // sums of one row, for half a panel
constexpr int64_t kChannels = 32;  // channels of a panel: two registers
constexpr int64_t kHalf = 32;      // bytes of one group of half a panel
constexpr int64_t kMaxRows = 12;   // 24 registers of sums, two of weights, one of activations and one of products, of 32

// Only the addition, of one cycle, waits for the previous sum.
template <int R>
constexpr int kParts = 1;

inline Sums add(Sums x, Sums y) { return _mm512_add_epi32(x, y); }

// The empty assembly keeps the compiler from adding in another order, for which the registers do not suffice.
inline Sums add_products(Sums sums, Sums x, Sums weights) {
  sums = _mm512_add_epi32(sums, _mm512_madd_epi16(x, weights));
  asm("" : "+v"(sums));
  return sums;
}

inline Sums load_weights(const int8_t* from) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// Return two activations in every lane.
inline Sums spread(const int8_t* from) { return _mm512_set1_epi32(pair_of(from)); }

// Converts the sums of one row and half a panel to floats and stores them.
struct Finish {
  __m512 scale, bias;
  int64_t first;  // channel
  __mmask16 mask;

  Finish(const Product& product, int64_t p, int64_t half) {
    first = p * kChannels + half * 16;
    mask = lane_mask(product.n - first);
    scale = _mm512_loadu_ps(product.w_scales + first);
    bias = product.bias ? _mm512_maskz_loadu_ps(mask, product.bias + first) : _mm512_setzero_ps();
  }

  void operator()(const Product& product, int64_t r, Sums sums) const {
    const __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(product.x_scales[r]));
    const __m512 found = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), by, bias);
    // The order of the operands matters: max returns the second one if either is NaN.
    _mm512_mask_storeu_ps(product.y + r * product.n + first, mask, _mm512_max_ps(_mm512_set1_ps(product.least), found));
  }
};
