// The products on x86 cores with AVX-512's byte products (VNNI), or AMX's tiles of them where there are some.
//
// Both multiply unsigned bytes with signed ones, so activations are kept as q + 128, and what that adds to a sum, 128
// times a channel's weights, stands at the head of its panel to be taken off again.

constexpr int64_t kChannels = 32;      // of a panel: two registers, or rows of two tiles, of 4 inputs each
constexpr int64_t kInputs = 64;        // the inner dimension is padded to a multiple of this
constexpr int64_t kHead = 128;         // bytes before a panel's weights
constexpr int64_t kAhead = 0;          // bytes that are read beyond the last panel or row
constexpr int64_t kRowsTogether = 16;  // rows of x are padded to a multiple of this
constexpr int64_t kRows = 32;          // of x at a time
constexpr int64_t kFew = 8;            // up to so many rows, tiles do not pay
constexpr int64_t kDistance = 2048;    // bytes that weights are asked for ahead: they come from far away

// Rows of x stand in tiles of 16 rows and 64 inputs, whose 1,024 bytes are side by side: rows that are a power of two apart
// would fight for the same places of a cache.
constexpr int64_t kTile = 1024;
template <typename Byte>
Byte* row_of(Byte* x, int64_t r, int64_t kp) {
  return x + r / 16 * 16 * kp + r % 16 * 64;
}

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

// One row of floats to bytes, to its place in the tiles, by its largest magnitude; the scale that undoes it.
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
  auto at = [&](int64_t i) { return reinterpret_cast<__m128i*>(q + i / 64 * kTile + i % 64); };
  int64_t i = 0;
  for (; i < k; i += 16) {
    const __m512 numbers = _mm512_maskz_loadu_ps(there(k - i), x + i);
    const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(numbers, by)));
    _mm_storeu_si128(at(i), _mm_xor_si128(bytes, kShift));
  }
  for (; i < kp; i += 16) _mm_storeu_si128(at(i), kShift);
  return top / 127.0f;
}

// The sums of one row and half of a panel, brought back to floats.
struct Finish {
  int64_t first;  // channel
  __m512i added;
  __m512 scale, bias;
  __mmask16 mask;

  Finish(const Product& product, int64_t p, int64_t half) {
    first = p * kChannels + half * 16;
    mask = there(std::max<int64_t>(0, product.n - first));
    added = _mm512_loadu_si512(product.panel_of(p) + half * 64);
    scale = _mm512_loadu_ps(product.w_scales + first);
    bias = product.bias ? _mm512_maskz_loadu_ps(mask, product.bias + first) : _mm512_setzero_ps();
  }

  void operator()(const Product& product, int64_t r, __m512i sums) const {
    const __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(product.x_scales[r]));
    const __m512 found = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums, added)), by, bias);
    // In this order, which keeps NaN.
    _mm512_mask_storeu_ps(product.y + r * product.n + first, mask, _mm512_max_ps(_mm512_set1_ps(product.least), found));
  }
};

// R rows of x, from r on, times a panel.
template <int R>
void multiply_few(const Product& product, int64_t p, int64_t r) {
  const int8_t *x = row_of(product.x, r, product.kp), *w = product.panel_of(p) + kHead;
  __m512i sums[R][2];
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_si512();
  for (int64_t tile = 0; tile < product.kp / 64; ++tile)
    for (int64_t i = 0; i < 64; i += 4) {
      const int8_t* here = w + (tile * 64 + i) * kChannels;
      _mm_prefetch(here + kDistance, _MM_HINT_T0);
      _mm_prefetch(here + kDistance + 64, _MM_HINT_T0);
      const __m512i first = _mm512_loadu_si512(here), second = _mm512_loadu_si512(here + 64);
      for (int row = 0; row < R; ++row) {
        int32_t four;
        std::memcpy(&four, x + tile * kTile + row * 64 + i, 4);
        const __m512i same = _mm512_set1_epi32(four);
        sums[row][0] = _mm512_dpbusd_epi32(sums[row][0], same, first);
        sums[row][1] = _mm512_dpbusd_epi32(sums[row][1], same, second);
      }
    }
  const Finish left(product, p, 0), right(product, p, 1);
  for (int row = 0; row < R; ++row) left(product, r + row, sums[row][0]), right(product, r + row, sums[row][1]);
}

// 32 rows of x, from r on, times a panel: four tiles of 16 rows and 16 channels. Rows that are missing are computed from
// others and not written. Where `is_new`, these are the first rows of a block that meet the panel, which is far away.
void multiply_tiles(const Product& product, int64_t p, int64_t r, int64_t rows, bool is_new) {
  const int64_t kp = product.kp;
  const int8_t *top = product.x + r * kp, *low = rows > 16 ? top + 16 * kp : top, *w = product.panel_of(p) + kHead;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t tile = 0; tile < kp / 64; ++tile) {
    const int8_t* here = w + tile * 64 * kChannels;
    _tile_loadd(4, top + tile * kTile, 64);
    _tile_loadd(5, low + tile * kTile, 64);
    _tile_loadd(6, here, 128);
    _tile_loadd(7, here + 64, 128);
    for (int64_t line = 0; is_new && line < 64 * kChannels; line += 64) _mm_prefetch(here + kDistance + line, _MM_HINT_T0);
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  alignas(64) int32_t sums[4][16][16];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
  const Finish left(product, p, 0), right(product, p, 1);
  for (int64_t row = 0; row < rows; ++row) {
    left(product, r + row, _mm512_load_si512(sums[row / 16 * 2][row % 16]));
    right(product, r + row, _mm512_load_si512(sums[row / 16 * 2 + 1][row % 16]));
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
  for (int64_t p = panels_begin; p < panels_end; ++p) {
    for (int64_t r = rows_begin; by_tiles && r < rows_end; r += kRows)
      multiply_tiles(*this, p, r, std::min(kRows, rows_end - r), r == rows_begin);
    for (int64_t r = rows_begin; !by_tiles && r < rows_end; r += kFew) {
#define CASE(R)                      \
  case R:                            \
    multiply_few<R>(*this, p, r);    \
    break;
      switch (std::min(kFew, rows_end - r)) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
#undef CASE
    }
  }
  if (by_tiles) _tile_release();
}
