// The products on x86 cores with AVX-512's byte products (VNNI), or AMX's tiles of them where there are some.
//
// Both multiply unsigned bytes with signed ones, so activations are kept as q + 128, and what that adds to a sum, 128
// times a channel's weights, stands at the head of its panel to be taken off again.

constexpr int64_t kChannels = 16;      // of a panel: a register, or a row of a tile, of 4 inputs each
constexpr int64_t kInputs = 64;        // the inner dimension is padded to a multiple of this
constexpr int64_t kHead = 64;          // bytes before a panel's weights
constexpr int64_t kAhead = 0;          // bytes that are read beyond the last panel or row
constexpr int64_t kRowsTogether = 16;  // rows of x are padded to a multiple of this
constexpr int64_t kRows = 32;          // of x at a time
constexpr int64_t kFew = 8;            // up to so many rows, tiles do not pay
constexpr int64_t kDistance = 2048;    // bytes that weights are asked for ahead: they come from far away

const __m128i kShift = _mm_set1_epi8(static_cast<char>(0x80));

// What the shifted activations add, for each channel.
void finish_panel(int8_t* panel, int64_t kp) {
  int32_t sums[kChannels] = {};
  for (int64_t i = 0; i < kp / 4; ++i)
    for (int64_t c = 0; c < kChannels; ++c)
      for (int64_t part = 0; part < 4; ++part) sums[c] += 128 * panel[kHead + (i * kChannels + c) * 4 + part];
  std::memcpy(panel, sums, sizeof(sums));
}

// Which of the next 16 numbers there are.
__mmask16 there(int64_t left) { return left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1); }

// One row of floats to bytes by its largest magnitude; the scale that undoes it.
float quantise(const float* x, int8_t* q, int64_t k, int64_t kp) {
  __m512 most = _mm512_setzero_ps();
  __mmask16 broken = 0;  // NaN, which no maximum keeps
  for (int64_t i = 0; i < k; i += 16) {
    const __m512 numbers = _mm512_maskz_loadu_ps(there(k - i), x + i);
    most = _mm512_max_ps(most, _mm512_abs_ps(numbers));
    broken |= _mm512_cmp_ps_mask(numbers, numbers, _CMP_UNORD_Q);
  }
  const float top = broken ? NAN : _mm512_reduce_max_ps(most);
  const __m512 by = _mm512_set1_ps(top > 0 ? 127.0f / top : 0.0f);
  int64_t i = 0;
  for (; i < k; i += 16) {
    const __m512 numbers = _mm512_maskz_loadu_ps(there(k - i), x + i);
    const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(numbers, by)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i), _mm_xor_si128(bytes, kShift));
  }
  for (; i < kp; i += 16) _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i), kShift);
  return top / 127.0f;
}

// The sums of one row and one panel, brought back to floats.
struct Finish {
  __m512i added;
  __m512 scale, bias;
  __mmask16 mask;

  Finish(const Product& product, int64_t p) {
    const int64_t first = p * kChannels;
    mask = there(product.n - first);
    added = _mm512_loadu_si512(product.panel_of(p));
    scale = _mm512_loadu_ps(product.w_scales + first);
    bias = product.bias ? _mm512_maskz_loadu_ps(mask, product.bias + first) : _mm512_setzero_ps();
  }

  void operator()(const Product& product, int64_t p, int64_t r, __m512i sums) const {
    const __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(product.x_scales[r]));
    const __m512 found = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums, added)), by, bias);
    _mm512_mask_storeu_ps(product.y + r * product.n + p * kChannels, mask, found);
  }
};

// R rows of x, from r on, times two panels. Where there is no second one, the first is taken twice.
template <int R>
void multiply_few(const Product& product, int64_t p, bool has_second, int64_t r) {
  const int8_t* x = product.x + r * product.kp;
  const int8_t *one = product.panel_of(p) + kHead, *two = product.panel_of(p + has_second) + kHead;
  __m512i sums[R][2];
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_si512();
  for (int64_t i = 0; i < product.kp; i += 4) {
    _mm_prefetch(one + i * kChannels + kDistance, _MM_HINT_T0);
    _mm_prefetch(two + i * kChannels + kDistance, _MM_HINT_T0);
    const __m512i first = _mm512_loadu_si512(one + i * kChannels), second = _mm512_loadu_si512(two + i * kChannels);
    for (int row = 0; row < R; ++row) {
      int32_t four;
      std::memcpy(&four, x + row * product.kp + i, 4);
      const __m512i same = _mm512_set1_epi32(four);
      sums[row][0] = _mm512_dpbusd_epi32(sums[row][0], same, first);
      sums[row][1] = _mm512_dpbusd_epi32(sums[row][1], same, second);
    }
  }
  const Finish finish(product, p);
  for (int row = 0; row < R; ++row) finish(product, p, r + row, sums[row][0]);
  if (!has_second) return;
  const Finish finish_second(product, p + 1);
  for (int row = 0; row < R; ++row) finish_second(product, p + 1, r + row, sums[row][1]);
}

// 32 rows of x, from r on, times two panels: four tiles of 16 rows and 16 channels. Rows and panels that are missing are
// computed from others and not written. Where `is_new`, these are the first rows of a block that meet the panels, and the
// next panels are far away too.
void multiply_tiles(const Product& product, int64_t p, bool has_second, int64_t r, int64_t rows, bool is_new) {
  const int64_t kp = product.kp;
  const bool has_low = rows > 16;
  const int8_t *top = product.x + r * kp, *low = has_low ? top + 16 * kp : top;
  const int8_t *one = product.panel_of(p) + kHead, *two = product.panel_of(p + has_second) + kHead;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < kp; i += 64) {
    _tile_loadd(4, top + i, kp);
    _tile_loadd(5, low + i, kp);
    _tile_loadd(6, one + i * kChannels, 64);
    _tile_loadd(7, two + i * kChannels, 64);
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
    for (int64_t line = 0; is_new && line < 64 * kChannels; line += 64) {
      _mm_prefetch(one + 2 * product.panel_size + i * kChannels + line, _MM_HINT_T0);
      _mm_prefetch(two + 2 * product.panel_size + i * kChannels + line, _MM_HINT_T0);
    }
  }
  alignas(64) int32_t sums[4][16][16];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
  for (int64_t second = 0; second < 1 + has_second; ++second) {
    const Finish finish(product, p + second);
    for (int64_t row = 0; row < rows; ++row)
      finish(product, p + second, r + row, _mm512_load_si512(sums[row / 16 * 2 + second][row % 16]));
  }
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void Product::multiply(int64_t panels_begin, int64_t panels_end, int64_t rows_begin, int64_t rows_end) const {
  static const bool has_tiles = at::cpu::init_amx();
  const bool by_tiles = has_tiles && rows_end - rows_begin > kFew;
  static constexpr TileConfig config;
  if (by_tiles) _tile_loadconfig(&config);
  for (int64_t p = panels_begin; p < panels_end; p += 2) {
    const bool has_second = p + 1 < panels_end;
    for (int64_t r = rows_begin; by_tiles && r < rows_end; r += kRows)
      multiply_tiles(*this, p, has_second, r, std::min(kRows, rows_end - r), r == rows_begin);
    for (int64_t r = rows_begin; !by_tiles && r < rows_end; r += kFew) {
#define CASE(R)                                    \
  case R:                                          \
    multiply_few<R>(*this, p, has_second, r);      \
    break;
      switch (std::min(kFew, rows_end - r)) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
#undef CASE
    }
  }
  if (by_tiles) _tile_release();
}
