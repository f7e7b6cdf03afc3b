// int8 products on x86 cores, by AVX-512 VNNI, or by AMX tiles where the CPU has them.
//
// Both multiply unsigned bytes by signed ones, so activations are stored as q + 128. This adds 128 times the sum of a
// channel's weights to its result. The head of each panel stores these numbers, which are subtracted at the end.

constexpr int64_t kChannels = 32;      // channels of a panel: two registers, or the rows of two tiles, with 4 inputs each
constexpr int64_t kInputs = 64;        // the inner dimension is padded to a multiple of this
constexpr int64_t kHead = 128;         // bytes before a panel's weights
constexpr int64_t kAhead = 0;          // bytes that are read beyond the last panel or row
constexpr int64_t kRowsTogether = 16;  // rows of x are padded to a multiple of this
constexpr int64_t kRows = 32;          // rows of x per call
constexpr int64_t kFew = 8;            // up to this many rows, VNNI is faster than tiles
constexpr int64_t kDistance = 2048;    // prefetch distance of the weights, in bytes

// x is stored in tiles of 16 rows and 64 inputs, 1,024 contiguous bytes each. Stored row by row, rows at a distance of a
// power of two would map to the same cache sets.
constexpr int64_t kTile = 1024;
template <typename Byte>
Byte* row_of(Byte* x, int64_t r, int64_t kp) {
  return x + r / 16 * 16 * kp + r % 16 * 64;
}

// Store, for each channel, what the shift of the activations by 128 adds to its sums.
void finish_panel(int8_t* panel, int64_t kp) {
  int32_t sums[kChannels] = {};
  for (int64_t i = 0; i < kp / 4; ++i)
    for (int64_t c = 0; c < kChannels; ++c)
      for (int64_t part = 0; part < 4; ++part) sums[c] += 128 * panel[kHead + (i * kChannels + c) * 4 + part];
  std::memcpy(panel, sums, sizeof(sums));
}

// Quantize one row by its largest magnitude and store it in the tiles. Return the scale that converts it back.
float quantize(const float* x, int8_t* q, int64_t k, int64_t kp) {
  auto load_four = [&](int64_t i, __m512* to) {
    for (int part = 0; part < 4; ++part, i += 16)
      to[part] = k - i >= 16 ? _mm512_loadu_ps(x + i) : _mm512_maskz_loadu_ps(lane_mask(k - i), x + i);
  };
  __m512 numbers[4];
  // The bits of magnitudes, read as integers, have the same order; NaN is the largest.
  __m512i most[4] = {};
  for (int64_t i = 0; i < k; i += 64) {
    load_four(i, numbers);
    for (int part = 0; part < 4; ++part)
      most[part] = _mm512_max_epi32(most[part], _mm512_castps_si512(_mm512_abs_ps(numbers[part])));
  }
  const __m512i all = _mm512_max_epi32(_mm512_max_epi32(most[0], most[1]), _mm512_max_epi32(most[2], most[3]));
  const float top = std::bit_cast<float>(_mm512_reduce_max_epi32(all));
  const __m512 by = _mm512_set1_ps(top > 0 ? 127.0f / top : 0.0f);
  // The pack instructions work within 128-bit lanes; this permutation restores the order.
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

// Converts the sums of one row and half a panel to floats and stores them.
struct Finish {
  __m512i added;
  __m512 scale, bias;
  int64_t first;  // channel
  __mmask16 mask;

  Finish() = default;
  Finish(const Product& product, int64_t p, int64_t half) {
    first = p * kChannels + half * 16;
    mask = lane_mask(product.n - first);
    added = _mm512_loadu_si512(product.panel_of(p) + half * 64);
    scale = _mm512_loadu_ps(product.w_scales + first);
    bias = product.bias ? _mm512_maskz_loadu_ps(mask, product.bias + first) : _mm512_setzero_ps();
  }

  void operator()(const Product& product, int64_t r, __m512i sums) const {
    const __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(product.x_scales[r]));
    const __m512 found = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums, added)), by, bias);
    // The order of the operands matters: max returns the second one if either is NaN.
    _mm512_mask_storeu_ps(product.y + r * product.n + first, mask, _mm512_max_ps(_mm512_set1_ps(product.least), found));
  }
};

// Multiply R rows of x, starting at row r, by a panel with VNNI.
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

// The int32 sums that four tiles stored, for up to 32 rows and one panel, before they are converted to floats.
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

// Multiply up to 32 rows of x, starting at row r, by a panel: four tiles of 16 rows and 16 channels. For missing rows,
// other rows are computed and not written. `is_new` says that the panel is read for the first time in this block, so it
// is prefetched. The sums of the previous call, `before`, are converted meanwhile: reading a tile's result right after
// storing it would stall.
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

// Multiply by AMX tiles, alternating between two buffers of sums.
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
