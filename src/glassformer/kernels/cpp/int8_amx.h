// int8 products by AMX tiles. A tile of x holds 16 rows and 64 inputs, which are contiguous in memory.

constexpr int64_t kTile = 1024;    // bytes of a tile of x
constexpr int64_t kTileRows = 32;  // rows of x per call

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
inline void multiply_tiles(const Product& product, int64_t p, int64_t r, int64_t rows, bool is_new, const Held& before, Held& now) {
  const int64_t kp = product.layout.kp, tiles = kp / 64, each = (before.rows + tiles - 1) / tiles;
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
inline void multiply_by_tiles(const Product& product, int64_t panels_begin, int64_t panels_end, int64_t rows_begin, int64_t rows_end) {
  static constexpr TileConfig config;
  _tile_loadconfig(&config);
  Held held[2];
  int64_t turn = 0;
  for (int64_t p = panels_begin; p < panels_end; ++p)
    for (int64_t r = rows_begin; r < rows_end; r += kTileRows, ++turn)
      multiply_tiles(product, p, r, std::min(kTileRows, rows_end - r), r == rows_begin, held[turn % 2], held[(turn + 1) % 2]);
  held[turn % 2].finish(product, 0, held[turn % 2].rows);
  _tile_release();
}
