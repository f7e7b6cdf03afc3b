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

// What the shifted activations add, for each channel.
void finish_panel(int8_t* panel, int64_t kp) {
  int32_t sums[kChannels] = {};
  for (int64_t i = 0; i < kp / 4; ++i)
    for (int64_t c = 0; c < kChannels; ++c)
      for (int64_t part = 0; part < 4; ++part) sums[c] += 128 * panel[kHead + (i * kChannels + c) * 4 + part];
  std::memcpy(panel, sums, sizeof(sums));
}

// One row of floats to bytes, to its place in the tiles, by its largest magnitude; the scale that undoes it.
float quantise(const float* x, int8_t* q, int64_t k, int64_t kp) {
  auto load_four = [&](int64_t i, __m512* to) {
    for (int part = 0; part < 4; ++part, i += 16)
      to[part] = k - i >= 16 ? _mm512_loadu_ps(x + i) : _mm512_maskz_loadu_ps(there(k - i), x + i);
  };
  __m512 numbers[4];
  // As whole numbers magnitudes have the same order, and NaN is above them all.
  __m512i most[4] = {};
  for (int64_t i = 0; i < k; i += 64) {
    load_four(i, numbers);
    for (int part = 0; part < 4; ++part)
      most[part] = _mm512_max_epi32(most[part], _mm512_castps_si512(_mm512_abs_ps(numbers[part])));
  }
  const __m512i all = _mm512_max_epi32(_mm512_max_epi32(most[0], most[1]), _mm512_max_epi32(most[2], most[3]));
  const float top = std::bit_cast<float>(_mm512_reduce_max_epi32(all));
  const __m512 by = _mm512_set1_ps(top > 0 ? 127.0f / top : 0.0f);
  // What is packed by pairs of lanes stands in another order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int64_t i = 0; i < kp; i += 64) {
    load_four(i, numbers);
    __m512i wholes[4];
    for (int part = 0; part < 4; ++part) wholes[part] = _mm512_cvtps_epi32(_mm512_mul_ps(numbers[part], by));
    const __m512i one = _mm512_packs_epi32(wholes[0], wholes[1]), two = _mm512_packs_epi32(wholes[2], wholes[3]);
    const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(one, two));
    _mm512_storeu_si512(q + i / 64 * kTile, _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(0x80))));
  }
  return top / 127.0f;
}

// How the sums of one row and half of a panel are brought back to floats.
struct Finish {
  __m512i added;
  __m512 scale, bias;
  int64_t first;  // channel
  __mmask16 mask;

  Finish() = default;
  Finish(const Product& product, int64_t p, int64_t half) {
    first = p * kChannels + half * 16;
    mask = there(product.n - first);
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

// What four tiles hold, of up to 32 rows and a panel, on its way to floats.
struct Held {
  alignas(64) int32_t sums[4][16][16];
  Finish left, right;
  int64_t r = 0, rows = 0;

  void finish(const Product& product, int64_t begin, int64_t end) const {
    for (int64_t row = begin; row < end; ++row) {
      left(product, r + row, _mm512_load_si512(sums[row / 16 * 2][row % 16]));
      right(product, r + row, _mm512_load_si512(sums[row / 16 * 2 + 1][row % 16]));
    }
  }
};

// 32 rows of x, from r on, times a panel: four tiles of 16 rows and 16 channels. Rows that are missing are computed from
// others and not written. Where `is_new`, these are the first rows of a block that meet the panel, which is far away.
// Meanwhile what was held `before` is finished, for what a tile has stored cannot be read at once.
void multiply_tiles(const Product& product, int64_t p, int64_t r, int64_t rows, bool is_new, const Held& before, Held& now) {
  const int64_t kp = product.kp, tiles = kp / 64, each = (before.rows + tiles - 1) / tiles;
  const int8_t *top = product.x + r * kp, *low = rows > 16 ? top + 16 * kp : top, *w = product.panel_of(p) + kHead;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t tile = 0; tile < tiles; ++tile) {
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
    before.finish(product, tile * each, std::min(before.rows, (tile + 1) * each));
  }
  now.left = Finish(product, p, 0), now.right = Finish(product, p, 1), now.r = r, now.rows = rows;
  _tile_stored(0, now.sums[0], 64);
  _tile_stored(1, now.sums[1], 64);
  _tile_stored(2, now.sums[2], 64);
  _tile_stored(3, now.sums[3], 64);
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// By tiles, two sets of them in turn.
void multiply_by_tiles(const Product& product, int64_t panels_begin, int64_t panels_end, int64_t rows_begin, int64_t rows_end) {
  static constexpr TileConfig config;
  _tile_loadconfig(&config);
  Held held[2];
  int64_t turn = 0;
  for (int64_t p = panels_begin; p < panels_end; ++p)
    for (int64_t r = rows_begin; r < rows_end; r += kRows, ++turn)
      multiply_tiles(product, p, r, std::min(kRows, rows_end - r), r == rows_begin, held[turn % 2], held[(turn + 1) % 2]);
  held[turn % 2].finish(product, 0, held[turn % 2].rows);
  _tile_release();
}

void Product::multiply(int64_t panels_begin, int64_t panels_end, int64_t rows_begin, int64_t rows_end) const {
  static const bool has_tiles = at::cpu::init_amx();
  if (has_tiles && rows_end - rows_begin > kFew) return multiply_by_tiles(*this, panels_begin, panels_end, rows_begin, rows_end);
  for (int64_t p = panels_begin; p < panels_end; ++p)
    for (int64_t r = rows_begin; r < rows_end; r += kFew) {
#define CASE(R)                   \
  case R:                         \
    multiply_few<R>(*this, p, r); \
    break;
      switch (std::min(kFew, rows_end - r)) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
#undef CASE
    }
}
