// Group-wise quantized products on x86 cores, by AVX-512 VNNI, by AVX-512 or by AVX2.
//
// Their instructions multiply unsigned bytes by signed ones, so codes are the unsigned factor. VNNI stores 8-bit codes with
// 128 added. The others add pairs of products in 16 bits, which would overflow with such codes, so they store them as they
// are, and multiply their magnitudes by activations that take over their signs.

#if defined(__AVX512F__)
using Floats = __m512;
using Bytes = __m512i;
constexpr int kRegisters = 2;  // registers of channels in a panel

inline Bytes load_bytes(const uint8_t* from) { return _mm512_loadu_si512(from); }
inline Bytes low_halves(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Bytes high_halves(Bytes x) { return low_halves(_mm512_srli_epi16(x, 4)); }
inline void store_bytes(uint8_t* to, Bytes x) { _mm512_storeu_si512(to, x); }
inline Bytes same_ints(int32_t x) { return _mm512_set1_epi32(x); }
#if defined(__AVX512VNNI__)
constexpr int64_t kByteOffset = 128;  // added to 8-bit codes when they are stored
template <bool is_signed>
inline Bytes add_products(Bytes sums, Bytes w, Bytes x) {
  return _mm512_dpbusd_epi32(sums, w, x);
}
#else
constexpr int64_t kByteOffset = 0;
template <bool is_signed>
inline Bytes add_products(Bytes sums, Bytes w, Bytes x) {
  if constexpr (is_signed) {
    x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    w = _mm512_abs_epi8(w);
  }
  return _mm512_add_epi32(sums, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
}
#endif
inline Floats load_floats(const void* from) { return _mm512_loadu_ps(static_cast<const float*>(from)); }
inline Floats load_halves(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store_floats(float* to, Floats x) { _mm512_storeu_ps(to, x); }
inline Floats float_of(Bytes sums) { return _mm512_cvtepi32_ps(sums); }
inline Floats same_floats(float x) { return _mm512_set1_ps(x); }
inline Floats multiply_floats(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
inline Floats multiply_add(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }
inline Bytes magnitude_bits(Floats x) { return _mm512_castps_si512(_mm512_abs_ps(x)); }
inline Bytes max_ints(Bytes x, Bytes y) { return _mm512_max_epi32(x, y); }
inline Bytes add_ints(Bytes x, Bytes y) { return _mm512_add_epi32(x, y); }
inline Bytes round_floats(Floats x) { return _mm512_cvtps_epi32(x); }
inline int32_t max_of_ints(Bytes x) { return _mm512_reduce_max_epi32(x); }
inline int32_t sum_of_ints(Bytes x) { return _mm512_reduce_add_epi32(x); }
inline Bytes subtract_ints(Bytes x, Bytes y) { return _mm512_sub_epi32(x, y); }
inline Bytes shift_left(Bytes x) { return _mm512_slli_epi32(x, kLowBits); }
inline Bytes shift_right(Bytes x) { return _mm512_srai_epi32(x, kLowBits); }
inline void store_narrow(int8_t* to, Bytes x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(x)); }
#else
using Floats = __m256;
using Bytes = __m256i;
constexpr int kRegisters = 1;
constexpr int64_t kByteOffset = 0;

inline Bytes load_bytes(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline Bytes low_halves(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Bytes high_halves(Bytes x) { return low_halves(_mm256_srli_epi16(x, 4)); }
inline void store_bytes(uint8_t* to, Bytes x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
inline Bytes same_ints(int32_t x) { return _mm256_set1_epi32(x); }
template <bool is_signed>
inline Bytes add_products(Bytes sums, Bytes w, Bytes x) {
  const Bytes pairs = is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Floats load_floats(const void* from) { return _mm256_loadu_ps(static_cast<const float*>(from)); }
inline Floats load_halves(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void store_floats(float* to, Floats x) { _mm256_storeu_ps(to, x); }
inline Floats float_of(Bytes sums) { return _mm256_cvtepi32_ps(sums); }
inline Floats same_floats(float x) { return _mm256_set1_ps(x); }
inline Floats multiply_floats(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
inline Floats multiply_add(Floats x, Floats y, Floats z) { return _mm256_fmadd_ps(x, y, z); }
inline Bytes magnitude_bits(Floats x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }
inline Bytes max_ints(Bytes x, Bytes y) { return _mm256_max_epi32(x, y); }
inline Bytes add_ints(Bytes x, Bytes y) { return _mm256_add_epi32(x, y); }
inline Bytes round_floats(Floats x) { return _mm256_cvtps_epi32(x); }
inline int32_t max_of_ints(Bytes x) {
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0b10110001)));
}
inline int32_t sum_of_ints(Bytes x) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0b10110001)));
}
inline Bytes subtract_ints(Bytes x, Bytes y) { return _mm256_sub_epi32(x, y); }
inline Bytes shift_left(Bytes x) { return _mm256_slli_epi32(x, kLowBits); }
inline Bytes shift_right(Bytes x) { return _mm256_srai_epi32(x, kLowBits); }
inline void store_narrow(int8_t* to, Bytes x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
}
#endif

constexpr int kLanes = sizeof(Floats) / sizeof(float);  // channels of a register
constexpr int64_t kPanel = kRegisters * kLanes;         // channels of a panel
constexpr int64_t kDistance = 4096;                     // prefetch distance of the weights, in bytes

// Quantize 32 activations. Store their largest magnitude in `top` and return the sum of the quantized numbers.
inline int32_t quantize_group(const float* x, Block* to, float* top) {
  constexpr int parts = kGroup / kLanes;
  Floats numbers[parts];
  // The bits of magnitudes, read as integers, have the same order; NaN is the largest.
  Bytes most = same_ints(0), sum = same_ints(0);
  for (int part = 0; part < parts; ++part) {
    numbers[part] = load_floats(x + part * kLanes);
    most = max_ints(most, magnitude_bits(numbers[part]));
  }
  *top = std::bit_cast<float>(max_of_ints(most));
  const Floats by = same_floats(*top > kLeastTop ? kMost / *top : 0.0f);
  for (int part = 0; part < parts; ++part) {
    const Bytes wholes = round_floats(multiply_floats(numbers[part], by));
    sum = add_ints(sum, wholes);
    const Bytes high = shift_right(add_ints(wholes, same_ints(1 << (kLowBits - 1))));
    store_narrow(to->high + part * kLanes, high);
    store_narrow(to->low + part * kLanes, subtract_ints(wholes, shift_left(high)));
  }
  return sum_of_ints(sum);
}

// A panel with 8-bit codes and float32 numbers, whose codes were stored with `bits` bits.
template <int64_t bits, bool mins>
struct WidePanel {
  static constexpr bool has_mins = mins, is_signed = bits == 8;
  uint8_t* codes;
  float *scale, *min;

  Floats scales(int64_t g, int part) const { return load_floats(scale + g * kPanel + part * kLanes); }
  Floats minimums(int64_t g, int part) const { return load_floats(min + g * kPanel + part * kLanes); }
  void load(int64_t g, int four, int part, Bytes& first, Bytes& second) const {
    const uint8_t* from = codes + g * kPanel * kGroup + (four * kPanel + part * kLanes) * 4;
    first = load_bytes(from), second = load_bytes(from + 16 * kPanel);
  }
  void prefetch(int64_t) const {}
};

// A panel in its packed format.
template <int64_t bits, bool mins>
struct PackedPanel {
  static constexpr bool has_mins = mins, is_signed = bits == 8;
  const uint8_t* data;
  int64_t size;
  bool is_half;

  Floats numbers(int64_t g, int part, int which) const {
    const uint8_t* from = data + g * size + kPanel * kGroup * bits / 8;
    const int64_t place = which * kPanel + part * kLanes;
    return is_half ? load_halves(from + place * 2) : load_floats(from + place * 4);
  }
  Floats scales(int64_t g, int part) const { return numbers(g, part, 0); }
  Floats minimums(int64_t g, int part) const { return numbers(g, part, 1); }

  // Load the codes of one register of channels for inputs 4 four to 4 four + 3 into `first`, and for those 16 further on
  // into `second`.
  void load(int64_t g, int four, int part, Bytes& first, Bytes& second) const {
    const uint8_t* from = data + g * size + (four * kPanel + part * kLanes) * 4;
    if constexpr (bits == 4) {
      const Bytes both = load_bytes(from);
      first = low_halves(both), second = high_halves(both);
    } else {
      first = load_bytes(from), second = load_bytes(from + 16 * kPanel);
    }
  }
  void prefetch(int64_t g) const {
    for (int64_t line = 0; line < kPanel * kGroup * bits / 8; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(data + g * size + kDistance + line), _MM_HINT_T0);
  }

  // Write the scales of one group, and its minimums if there are any.
  void read_numbers(int64_t g, float* scale, float* min) const {
    for (int part = 0; part < kRegisters; ++part) {
      store_floats(scale + part * kLanes, scales(g, part));
      if constexpr (mins) store_floats(min + part * kLanes, minimums(g, part));
    }
  }

  // Convert the panel to 8-bit codes and float32 numbers.
  void widen(int64_t groups, const WidePanel<bits, mins>& to) const {
    for (int64_t g = 0; g < groups; ++g) {
      for (int part = 0; part < kRegisters; ++part)
        for (int four = 0; four < 4; ++four) {
          Bytes first, second;
          load(g, four, part, first, second);
          uint8_t* place = to.codes + g * kPanel * kGroup + (four * kPanel + part * kLanes) * 4;
          store_bytes(place, first), store_bytes(place + 16 * kPanel, second);
        }
      read_numbers(g, to.scale + g * kPanel, to.min + g * kPanel);
    }
  }
};

inline Bytes same_four(const int8_t* codes) {
  int32_t four;
  std::memcpy(&four, codes, 4);
  return same_ints(four);
}

// Add the products of one group of R rows and a panel. `which` is the member of Block that holds the bytes of the rows.
template <int R, typename Panel>
inline void add_group(const Panel& panel, int64_t g, const Block* const (&blocks)[R], int8_t (Block::*which)[kGroup],
                      Bytes (&sums)[R][kRegisters]) {
  for (int four = 0; four < 4; ++four) {
    Bytes first[kRegisters], second[kRegisters];
    for (int part = 0; part < kRegisters; ++part) panel.load(g, four, part, first[part], second[part]);
    for (int r = 0; r < R; ++r) {
      const int8_t* x = blocks[r]->*which + four * 4;
      const Bytes x_first = same_four(x), x_second = same_four(x + 16);
      for (int part = 0; part < kRegisters; ++part) {
        sums[r][part] = add_products<Panel::is_signed>(sums[r][part], first[part], x_first);
        sums[r][part] = add_products<Panel::is_signed>(sums[r][part], second[part], x_second);
      }
    }
  }
}

// Multiply R rows by one panel.
template <int R, typename Panel>
void multiply_rows(const Panel& panel, const Block* x, int64_t groups, float (&out)[R][kPanel]) {
  Floats totals[R][kRegisters];
  for (auto& row : totals)
    for (Floats& total : row) total = same_floats(0);
  for (int64_t g = 0; g < groups; ++g) {
    panel.prefetch(g);
    const Block* blocks[R];
    Bytes sums[R][kRegisters];
    for (int r = 0; r < R; ++r) {
      blocks[r] = x + r * groups + g;
      for (Bytes& sum : sums[r]) sum = same_ints(0);
    }
    add_group<R>(panel, g, blocks, &Block::high, sums);
    for (int r = 0; r < R; ++r)
      for (Bytes& sum : sums[r]) sum = add_ints(shift_left(sum), same_ints(blocks[r]->added));
    add_group<R>(panel, g, blocks, &Block::low, sums);
    for (int part = 0; part < kRegisters; ++part) {
      const Floats by = panel.scales(g, part);
      for (int r = 0; r < R; ++r) {
        const Floats scale = multiply_floats(by, same_floats(blocks[r]->scale));
        totals[r][part] = multiply_add(float_of(sums[r][part]), scale, totals[r][part]);
      }
      if constexpr (Panel::has_mins) {
        const Floats least = panel.minimums(g, part);
        for (int r = 0; r < R; ++r) totals[r][part] = multiply_add(least, same_floats(blocks[r]->sum), totals[r][part]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int part = 0; part < kRegisters; ++part) store_floats(out[r] + part * kLanes, totals[r][part]);
}
