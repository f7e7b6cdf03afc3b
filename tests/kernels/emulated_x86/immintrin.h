// The AVX-512, VNNI and AMX instructions that the kernels use, in plain C++, by Intel's description of each. So their code
// is tested on machines that lack the instructions: the compiler finds this file instead of its own <immintrin.h>.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#define asm(...)  // the kernels' empty assembly names registers of the real CPU

typedef float __m128 __attribute__((vector_size(16)));
typedef float __m256 __attribute__((vector_size(32)));
typedef float __m512 __attribute__((vector_size(64)));
typedef double __m256d __attribute__((vector_size(32)));
typedef double __m512d __attribute__((vector_size(64)));
typedef int64_t __m128i __attribute__((vector_size(16)));
typedef int64_t __m256i __attribute__((vector_size(32)));
typedef int64_t __m512i __attribute__((vector_size(64)));
typedef uint16_t __mmask16;
enum { _MM_HINT_T0, _MM_HINT_T1, _CMP_GT_OQ, _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_NO_EXC = 8 };

// The lanes of a register, as numbers of one type.
template <typename Number, typename Register>
struct Lanes {
  Number at[sizeof(Register) / sizeof(Number)];
  Lanes(const Register& from) { std::memcpy(at, &from, sizeof(at)); }
  Register whole() const {
    Register to;
    std::memcpy(&to, at, sizeof(at));
    return to;
  }
};
using Floats = Lanes<float, __m512>;
using Doubles = Lanes<double, __m512d>;
using Integers = Lanes<int32_t, __m512i>;
using Words = Lanes<int16_t, __m512i>;
using Bytes = Lanes<int8_t, __m512i>;

template <typename Register>
Register read(const void* from) {
  Register to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}
inline int64_t limit(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

inline void _mm_prefetch(const void*, int) {}
inline void _mm_storeu_ps(float* to, __m128 x) { std::memcpy(to, &x, 16); }
inline void _mm_storeu_si128(__m128i* to, __m128i x) { std::memcpy(to, &x, 16); }
inline __m128 _mm256_castps256_ps128(__m256 x) { return read<__m128>(&x); }
inline __m128 _mm256_extractf128_ps(__m256 x, int half) { return read<__m128>(reinterpret_cast<char*>(&x) + 16 * half); }
inline __m256 _mm256_castpd_ps(__m256d x) { return read<__m256>(&x); }
inline void _mm256_storeu_si256(__m256i* to, __m256i x) { std::memcpy(to, &x, 32); }
inline __m256i _mm256_loadu_si256(const __m256i* from) { return read<__m256i>(from); }

inline __m512 _mm512_set1_ps(float x) { return __m512{} + x; }
inline __m512 _mm512_setzero_ps() { return __m512{}; }
inline __m512 _mm512_mul_ps(__m512 x, __m512 y) { return x * y; }
inline __m512 _mm512_loadu_ps(const float* from) { return read<__m512>(from); }
inline __m512 _mm512_castpd_ps(__m512d x) { return read<__m512>(&x); }
inline __m512d _mm512_castps_pd(__m512 x) { return read<__m512d>(&x); }
inline __m512i _mm512_castps_si512(__m512 x) { return read<__m512i>(&x); }
inline __m256 _mm512_castps512_ps256(__m512 x) { return read<__m256>(&x); }
inline __m256d _mm512_extractf64x4_pd(__m512d x, int half) { return read<__m256d>(reinterpret_cast<char*>(&x) + 32 * half); }
inline __m512 _mm512_abs_ps(__m512 x) {
  Floats lanes(x);
  for (float& lane : lanes.at) lane = std::fabs(lane);
  return lanes.whole();
}
inline __m512 _mm512_max_ps(__m512 x, __m512 y) { return x > y ? x : y; }
inline float _mm512_reduce_add_ps(__m512 x) {
  float sum = 0;
  for (const float lane : Floats(x).at) sum += lane;
  return sum;
}
inline float _mm512_reduce_max_ps(__m512 x) {
  float most = x[0];
  for (const float lane : Floats(x).at) most = most > lane ? most : lane;
  return most;
}
inline __mmask16 _mm512_cmp_ps_mask(__m512 x, __m512 y, int) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<unsigned>(x[i] > y[i]) << i;
  return static_cast<__mmask16>(mask);
}
inline __m512 _mm512_fmadd_ps(__m512 x, __m512 y, __m512 z) {
  Floats lanes(x);
  for (int i = 0; i < 16; ++i) lanes.at[i] = std::fma(x[i], y[i], z[i]);
  return lanes.whole();
}
inline __m512 _mm512_mask_loadu_ps(__m512 other, __mmask16 mask, const float* from) {
  Floats lanes(other);
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) lanes.at[i] = from[i];
  return lanes.whole();
}
inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* from) { return _mm512_mask_loadu_ps(__m512{}, mask, from); }
inline void _mm512_mask_storeu_ps(float* to, __mmask16 mask, __m512 x) {
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) to[i] = x[i];
}
inline __m512 _mm512_cvtph_ps(__m256i x) {  // of normal numbers
  const Lanes<uint16_t, __m256i> halves(x);
  Floats lanes(__m512{});
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = halves.at[i];
    lanes.at[i] = std::bit_cast<float>((bits & 0x8000) << 16 | ((bits >> 10 & 31) + 112) << 23 | (bits & 0x3ff) << 13);
  }
  return lanes.whole();
}
inline __m256i _mm512_cvtps_ph(__m512 x, int) {  // of normal numbers, rounded to nearest even
  const Floats lanes(x);
  Lanes<uint16_t, __m256i> halves(__m256i{});
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(lanes.at[i]), odd = bits >> 13 & 1;
    const uint32_t rounded = (bits & 0x7fffffff) - (112u << 23) + 0xfff + odd;
    halves.at[i] = static_cast<uint16_t>((bits >> 16 & 0x8000) | rounded >> 13);
  }
  return halves.whole();
}
// Within each 128-bit lane, interleave the low or the high halves of two registers.
template <typename Numbers, typename Register>
Register interleave(Register x, Register y, int high) {
  const Numbers from[] = {x, y};
  Numbers to(x);
  constexpr int each = 16 / sizeof(to.at[0]), all = sizeof(to.at) / sizeof(to.at[0]);
  for (int i = 0; i < all; ++i) to.at[i] = from[i % 2].at[i / each * each + high * each / 2 + i % each / 2];
  return to.whole();
}
inline __m512 _mm512_unpacklo_ps(__m512 x, __m512 y) { return interleave<Floats>(x, y, 0); }
inline __m512 _mm512_unpackhi_ps(__m512 x, __m512 y) { return interleave<Floats>(x, y, 1); }
inline __m512d _mm512_unpacklo_pd(__m512d x, __m512d y) { return interleave<Doubles>(x, y, 0); }
inline __m512d _mm512_unpackhi_pd(__m512d x, __m512d y) { return interleave<Doubles>(x, y, 1); }

inline __m512i _mm512_loadu_si512(const void* from) { return read<__m512i>(from); }
inline __m512i _mm512_load_si512(const void* from) { return read<__m512i>(from); }
inline void _mm512_storeu_si512(void* to, __m512i x) { std::memcpy(to, &x, 64); }
inline __m128i _mm512_castsi512_si128(__m512i x) { return read<__m128i>(&x); }
inline __m128i _mm512_extracti32x4_epi32(__m512i x, int part) { return read<__m128i>(reinterpret_cast<char*>(&x) + 16 * part); }
inline __m512i _mm512_and_si512(__m512i x, __m512i y) { return x & y; }
inline __m512i _mm512_srli_epi16(__m512i x, int count) {
  uint16_t words[32];
  std::memcpy(words, &x, 64);
  for (uint16_t& word : words) word = static_cast<uint16_t>(word >> count);
  return read<__m512i>(words);
}
template <typename Change>
__m512i change_integers(__m512i x, const Change& change) {
  int32_t integers[16];
  std::memcpy(integers, &x, 64);
  for (int32_t& integer : integers) integer = change(integer);
  return read<__m512i>(integers);
}
inline __m512i _mm512_slli_epi32(__m512i x, int count) {
  return change_integers(x, [&](int32_t integer) { return static_cast<int32_t>(static_cast<uint32_t>(integer) << count); });
}
inline __m512i _mm512_srai_epi32(__m512i x, int count) {
  return change_integers(x, [&](int32_t integer) { return integer >> count; });
}
inline int _mm512_reduce_add_epi32(__m512i x) {
  int sum = 0;
  change_integers(x, [&](int32_t integer) { return sum += integer; });
  return sum;
}
inline __m128i _mm512_cvtsepi32_epi8(__m512i x) {
  int8_t bytes[16];
  int place = 0;
  change_integers(x, [&](int32_t integer) { return bytes[place++] = static_cast<int8_t>(limit(integer, INT8_MIN, INT8_MAX)); });
  return read<__m128i>(bytes);
}
inline void _mm512_storeu_ps(float* to, __m512 x) { std::memcpy(to, &x, 64); }
inline __m512i _mm512_xor_si512(__m512i x, __m512i y) { return x ^ y; }
inline __m512i _mm512_set1_epi8(char x) {
  __m512i to;
  std::memset(&to, x, 64);
  return to;
}
// Apply a function to each pair of 32-bit lanes.
template <typename Function>
__m512i combine(__m512i x, __m512i y, Function function) {
  Integers one(x), two(y);
  for (int i = 0; i < 16; ++i) one.at[i] = static_cast<int32_t>(function(one.at[i], two.at[i]));
  return one.whole();
}
inline __m512i _mm512_add_epi32(__m512i x, __m512i y) {
  return combine(x, y, [](int32_t a, int32_t b) { return static_cast<uint32_t>(a) + static_cast<uint32_t>(b); });
}
inline __m512i _mm512_sub_epi32(__m512i x, __m512i y) {
  return combine(x, y, [](int32_t a, int32_t b) { return static_cast<uint32_t>(a) - static_cast<uint32_t>(b); });
}
inline __m512i _mm512_max_epi32(__m512i x, __m512i y) {
  return combine(x, y, [](int32_t a, int32_t b) { return a > b ? a : b; });
}
inline __m512i _mm512_set1_epi32(int x) {
  return combine(__m512i{}, __m512i{}, [&](int32_t, int32_t) { return x; });
}
inline int _mm512_reduce_max_epi32(__m512i x) {
  int32_t most = INT32_MIN;
  for (const int32_t lane : Integers(x).at) most = most > lane ? most : lane;
  return most;
}
inline __m512i _mm512_unpacklo_epi32(__m512i x, __m512i y) { return interleave<Integers>(x, y, 0); }
inline __m512i _mm512_unpackhi_epi32(__m512i x, __m512i y) { return interleave<Integers>(x, y, 1); }
inline __m512i _mm512_unpacklo_epi64(__m512i x, __m512i y) { return interleave<Lanes<int64_t, __m512i>>(x, y, 0); }
inline __m512i _mm512_unpackhi_epi64(__m512i x, __m512i y) { return interleave<Lanes<int64_t, __m512i>>(x, y, 1); }
// Choose two 128-bit lanes of x, then two of y: `order` has two bits for each.
inline __m512i _mm512_shuffle_i32x4(__m512i x, __m512i y, int order) {
  const Integers one(x), two(y);
  Integers to(x);
  for (int i = 0; i < 16; ++i) to.at[i] = (i < 8 ? one : two).at[(order >> i / 4 * 2 & 3) * 4 + i % 4];
  return to.whole();
}
inline __m512i _mm512_permutexvar_epi16(__m512i order, __m512i x) {
  const Words from(x), places(order);
  Words to(x);
  for (int i = 0; i < 32; ++i) to.at[i] = from.at[places.at[i] & 31];
  return to.whole();
}
// Round two registers to bfloat16, to nearest even: first the numbers of y, then those of x.
inline __m512i _mm512_cvtne2ps_pbh(__m512 x, __m512 y) {
  Words to(__m512i{});
  for (int i = 0; i < 32; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(i < 16 ? y[i] : x[i - 16]), odd = bits >> 16 & 1;
    to.at[i] = static_cast<int16_t>((bits + 0x7fff + odd) >> 16);
  }
  return to.whole();
}
template <typename... Numbers>
__m512i _mm512_setr_epi32(Numbers... numbers) {
  const int32_t lanes[] = {numbers...};
  return read<__m512i>(lanes);
}
inline __m512i _mm512_permutexvar_epi32(__m512i order, __m512i x) {
  const Integers from(x), places(order);
  Integers to(x);
  for (int i = 0; i < 16; ++i) to.at[i] = from.at[places.at[i] & 15];
  return to.whole();
}
inline __m512i _mm512_cvtps_epi32(__m512 x) {
  Integers lanes(__m512i{});
  for (int i = 0; i < 16; ++i)  // what no int32 can represent becomes the lowest one
    lanes.at[i] = std::fabs(x[i]) < 2147483648.0f ? static_cast<int32_t>(std::nearbyint(x[i])) : INT32_MIN;
  return lanes.whole();
}
inline __m512 _mm512_cvtepi32_ps(__m512i x) {
  Floats lanes(__m512{});
  const Integers from(x);
  for (int i = 0; i < 16; ++i) lanes.at[i] = static_cast<float>(from.at[i]);
  return lanes.whole();
}
// Narrow two registers with saturation. Each 128-bit lane of the result is from the same lane of x, then of y.
template <typename Wide, typename Narrow>
__m512i narrow(__m512i x, __m512i y, int64_t low, int64_t high) {
  const Wide from[] = {x, y};
  Narrow to(x);
  constexpr int each = 16 / sizeof(to.at[0]);
  for (int i = 0; i < 4 * each; ++i) {
    const int lane = i / each, place = i % each;
    const auto number = from[place / (each / 2)].at[lane * each / 2 + place % (each / 2)];
    to.at[i] = static_cast<std::remove_reference_t<decltype(to.at[0])>>(limit(number, low, high));
  }
  return to.whole();
}
inline __m512i _mm512_packs_epi32(__m512i x, __m512i y) { return narrow<Integers, Words>(x, y, INT16_MIN, INT16_MAX); }
inline __m512i _mm512_packs_epi16(__m512i x, __m512i y) { return narrow<Words, Bytes>(x, y, INT8_MIN, INT8_MAX); }
inline __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i x, __m512i w) {
  Integers to(sums);
  const Bytes unsigned_bytes(x), signed_bytes(w);
  for (int i = 0; i < 64; ++i) to.at[i / 4] += static_cast<uint8_t>(unsigned_bytes.at[i]) * signed_bytes.at[i];
  return to.whole();
}

// AMX: eight tiles of 16 rows of 64 bytes.
inline int8_t tiles[8][16][64];
inline void _tile_loadconfig(const void*) {}
inline void _tile_release() {}
inline void _tile_zero(int tile) { std::memset(tiles[tile], 0, sizeof(tiles[tile])); }
inline void _tile_loadd(int tile, const void* from, int64_t stride) {
  for (int row = 0; row < 16; ++row) std::memcpy(tiles[tile][row], static_cast<const char*>(from) + row * stride, 64);
}
inline void _tile_stored(int tile, void* to, int64_t stride) {
  for (int row = 0; row < 16; ++row) std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile][row], 64);
}
inline void _tile_dpbusd(int to, int x, int w) {
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 16; ++column) {
      int32_t sum;
      std::memcpy(&sum, tiles[to][row] + 4 * column, 4);
      for (int i = 0; i < 64; ++i) sum += static_cast<uint8_t>(tiles[x][row][i]) * tiles[w][i / 4][4 * column + i % 4];
      std::memcpy(tiles[to][row] + 4 * column, &sum, 4);
    }
}
inline void _tile_dpbf16ps(int to, int x, int w) {
  auto number = [](const int8_t* from) {
    uint16_t bits;
    std::memcpy(&bits, from, 2);
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  };
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 16; ++column) {
      float sum;
      std::memcpy(&sum, tiles[to][row] + 4 * column, 4);
      for (int i = 0; i < 32; ++i)
        sum += number(&tiles[x][row][2 * i]) * number(&tiles[w][i / 2][4 * column + i % 2 * 2]);
      std::memcpy(tiles[to][row] + 4 * column, &sum, 4);
    }
}
