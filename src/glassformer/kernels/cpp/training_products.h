// Linear layers of training on AMX. Inputs are float32, rounded to bfloat16 and copied to tiles, and summed in float32.
// Layers with the same input, such as those of queries, keys and values, are one call.
//
// Every product is A B. A tile of A holds 16 rows of 32 numbers. A tile of B holds 32 rows of 16 columns: each of its rows
// interleaves two rows of B. Tiles have zeros beyond the ends of a matrix. The forward pass is x Wᵀ. The backward pass has
// the products G W and Gᵀ x, where G is the gradient of the result.

using Bf16 = uint16_t;                // the bits of a bfloat16 number
constexpr int64_t kSide = 16;         // rows of A, columns of B, and both of the sums
constexpr int64_t kDepth = 32;        // numbers that one instruction multiplies for each sum
constexpr int64_t kMostParts = 4;     // layers per call
constexpr int64_t kBlock = 512 << 10;  // bytes of the tiles of B that are multiplied by all rows of A in turn, within the L2 cache

inline int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// One linear layer: its parameters, its result, and their gradients. `bias` and `of_bias` may be missing. With `adds`, the
// gradients of the parameters are added to what is there.
struct LinearPart {
  const float *weight, *bias;
  float* out;
  const float* of_out;
  float *of_weight, *of_bias;
  int64_t n_out;
};

// What linear layers that read the same rows compute. `cpu_products.py` has the same fields in the same order.
struct LinearCall {
  const float* x;  // (rows, n_in)
  float* of_x;     // its gradient, or missing
  int64_t rows, n_in, n_parts, adds, threads;
  LinearPart parts[kMostParts];
};

// Tiles in memory. Those of 16 rows of A, or of 16 columns of B, are a strip: they follow each other.
struct Strips {
  Bf16* data;
  int64_t depth;  // tiles per strip
  Bf16* at(int64_t strip, int64_t tile) const { return data + (strip * depth + tile) * kSide * kDepth; }
  Strips from(int64_t strip) const { return {at(strip, 0), depth}; }
};

inline __m512 load_first(const float* from, int64_t n) { return _mm512_maskz_loadu_ps(lane_mask(n), from); }

// Copy 16 rows of 32 numbers to a tile of A. The matrix ends after `rows` and `columns`.
inline void copy_rows(const float* from, int64_t step, int64_t rows, int64_t columns, Bf16* tile) {
  for (int64_t r = 0; r < kSide; ++r) {
    const float* row = from + std::min(r, rows - 1) * step;
    const int64_t n = r < rows ? columns : 0;
    _mm512_storeu_si512(tile + r * kDepth, (__m512i)_mm512_cvtne2ps_pbh(load_first(row + kSide, n - kSide), load_first(row, n)));
  }
}

// Copy 32 rows of 16 numbers to a tile of B: each of its rows has the pairs of two rows.
inline void copy_pairs(const float* from, int64_t step, int64_t rows, int64_t columns, Bf16* tile) {
  alignas(64) static constexpr auto order = [] {
    std::array<Bf16, 32> places{};
    for (Bf16 i = 0; i < 32; ++i) places[i] = i / 2 + i % 2 * 16;
    return places;
  }();
  const __m512i pairs = _mm512_load_si512(order.data());
  for (int64_t r = 0; r < kDepth; r += 2) {
    const float *one = from + std::min(r, rows - 1) * step, *two = from + std::min(r + 1, rows - 1) * step;
    const __m512 first = load_first(one, r < rows ? columns : 0), second = load_first(two, r + 1 < rows ? columns : 0);
    _mm512_storeu_si512(tile + r * kSide, _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(second, first)));
  }
}

// Exchange rows and columns of a tile, whose elements are pairs. So a tile of A becomes one of B, and the other way round.
inline void transpose_tile(Bf16* tile) {
  __m512i x[kSide];
  for (int i = 0; i < kSide; ++i) x[i] = _mm512_loadu_si512(tile + i * kDepth);
  transpose_block(x);
  for (int i = 0; i < kSide; ++i) _mm512_storeu_si512(tile + i * kDepth, x[i]);
}

// Where the sums of a tile go, and what they start from: zero, 16 numbers for all rows, or what is there.
struct SumsPlace {
  float* to;
  int64_t step, rows, columns;
  const float* start;
  bool adds;
};

// What the tile instructions of one tile of sums read and write. Where the matrix ends within the tile, they write to
// `sums`, and `finish` copies the rest.
class TileOfSums {
 public:
  explicit TileOfSums(const SumsPlace& place) : place_(place), is_whole_(place.rows >= kSide && place.columns >= kSide) {
    alignas(64) static constexpr float zeros[kSide] = {};
    const bool reads = place.adds && is_whole_;
    from = reads ? place.to : place.start ? place.start : zeros;
    from_step = reads ? place.step * 4 : 0;
    to = is_whole_ ? place.to : sums_[0];
    to_step = is_whole_ ? place.step * 4 : 64;
  }

  void finish() const {
    if (is_whole_) return;
    const __mmask16 some = lane_mask(place_.columns);
    for (int64_t r = 0; r < std::min(kSide, place_.rows); ++r) {
      float* row = place_.to + r * place_.step;
      const __m512 before = place_.adds ? _mm512_maskz_loadu_ps(some, row) : _mm512_setzero_ps();
      _mm512_mask_storeu_ps(row, some, _mm512_loadu_ps(sums_[r]) + before);
    }
  }

  const float* from;
  float* to;
  int64_t from_step, to_step;

 private:
  const SumsPlace place_;
  const bool is_whole_;
  alignas(64) float sums_[kSide][kSide];
};

struct alignas(64) ProductTiles {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Multiply strips of A by strips of B. In memory, both begin with the first of these strips. place(i, j) returns where the
// sums of a strip of each go. Two strips of A and two of B are multiplied at once; where the second is missing, the first is
// multiplied again, and not written.
template <typename PlaceOf>
void multiply_strips(const Strips& a, int64_t a_begin, int64_t a_end, const Strips& b, int64_t b_begin, int64_t b_end,
                     const PlaceOf& place) {
  if (a_begin >= a_end) return;
  static constexpr ProductTiles config;
  _tile_loadconfig(&config);
  asm volatile("" ::: "memory");  // tile loads of GCC 12 do not say that they read memory
  const int64_t depth = a.depth;
  for (int64_t i = a_begin; i < a_end; i += 2)
    for (int64_t j = b_begin; j < b_end; j += 2) {
      const bool has_low = i + 1 < a_end, has_right = j + 1 < b_end;
      const Bf16 *top = a.at(i - a_begin, 0), *low = has_low ? a.at(i + 1 - a_begin, 0) : top;
      const Bf16 *left = b.at(j - b_begin, 0), *right = has_right ? b.at(j + 1 - b_begin, 0) : left;
      TileOfSums one(place(i, j)), two(place(i, has_right ? j + 1 : j)), three(place(has_low ? i + 1 : i, j));
      TileOfSums four(place(has_low ? i + 1 : i, has_right ? j + 1 : j));
      _tile_loadd(0, one.from, one.from_step);
      _tile_loadd(1, two.from, two.from_step);
      _tile_loadd(2, three.from, three.from_step);
      _tile_loadd(3, four.from, four.from_step);
      for (int64_t tile = 0; tile < depth; ++tile) {
        const int64_t here = tile * kSide * kDepth;
        _tile_loadd(4, top + here, 64);
        _tile_loadd(6, left + here, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + here, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, low + here, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, one.to, one.to_step);
      one.finish();
      if (has_right) {
        _tile_stored(1, two.to, two.to_step);
        two.finish();
      }
      if (has_low) {
        _tile_stored(2, three.to, three.to_step);
        three.finish();
      }
      if (has_low && has_right) {
        _tile_stored(3, four.to, four.to_step);
        four.finish();
      }
    }
  _tile_release();
}

// Return how many strips of B stay in the L2 cache while rows of A go by.
inline int64_t strips_at_once(int64_t depth) { return std::max<int64_t>(2, kBlock / (depth * 1024) / 2 * 2); }

// Memory for tiles, which a thread keeps from call to call.
class TileMemory {
 public:
  TileMemory() = default;
  TileMemory(const TileMemory&) = delete;
  TileMemory& operator=(const TileMemory&) = delete;
  ~TileMemory() { std::free(data_); }

  // Provide memory for these numbers of tiles and floats, to be taken one array after the other. Return whether there is any.
  bool reserve(int64_t tiles, int64_t floats) {
    const int64_t bytes = tiles * kSide * kDepth * 2 + divided_up(floats, 16) * 64;
    if (bytes > size_) {
      std::free(data_);
      data_ = static_cast<char*>(std::aligned_alloc(64, bytes));
      size_ = data_ ? bytes : 0;
    }
    next_ = data_;
    return data_;
  }
  Strips take_strips(int64_t strips, int64_t depth) {
    const Strips found{reinterpret_cast<Bf16*>(next_), depth};
    next_ += strips * depth * kSide * kDepth * 2;
    return found;
  }
  float* take_floats(int64_t n) {
    float* found = reinterpret_cast<float*>(next_);
    next_ += divided_up(n, 16) * 64;
    return found;
  }

 private:
  char *data_ = nullptr, *next_ = nullptr;
  int64_t size_ = 0;
};

// Linear layers of one call, and the parts of their joined results that are a strip (16 numbers) or a tile (32) wide. The
// passes return whether there was memory for the tiles.
class Linears {
 public:
  explicit Linears(const LinearCall& call) : call_(call) {
    for (int64_t p = 0; p < call.n_parts; ++p) {
      for (int64_t n = 0; n < call.parts[p].n_out; n += kSide) strips_.push_back({call.parts + p, n});
      for (int64_t n = 0; n < call.parts[p].n_out; n += kDepth) tiles_.push_back({call.parts + p, n});
    }
  }

  // Each thread computes some of the rows. It copies the weights itself: reading what another core has written is slow.
  bool forward() const {
    std::atomic<bool> has_memory = true;
    const int64_t depth = divided_up(call_.n_in, kDepth), row_strips = divided_up(call_.rows, kSide), n = strips_.size();
    const int64_t block = std::min(n, strips_at_once(depth));
    parallel_for(divided_up(row_strips, 2), call_.threads, [&](int64_t first, int64_t end) {
      first *= 2, end = std::min(row_strips, 2 * end);
      if (first >= end) return;
      TileMemory& memory = own_memory();
      if (!memory.reserve((end - first + block) * depth, block * kSide)) {
        has_memory = false;
        return;
      }
      const Strips x = memory.take_strips(end - first, depth), weights = memory.take_strips(block, depth);
      float* biases = memory.take_floats(block * kSide);
      for (int64_t i = first; i < end; ++i)
        for (int64_t tile = 0; tile < depth; ++tile)
          copy_rows(call_.x + i * kSide * call_.n_in + tile * kDepth, call_.n_in, call_.rows - i * kSide, call_.n_in - tile * kDepth,
                    x.at(i - first, tile));
      for (int64_t begin = 0; begin < n; begin += block) {
        const int64_t last = std::min(n, begin + block);
        for (int64_t s = begin; s < last; ++s) copy_columns(strips_[s], weights.from(s - begin), biases + (s - begin) * kSide);
        multiply_strips(x, first, end, weights, begin, last, [&](int64_t i, int64_t j) {
          const Slice& some = strips_[j];
          float* to = some.part->out + i * kSide * some.part->n_out + some.first;
          return SumsPlace{to, some.part->n_out, call_.rows - i * kSide, some.count(), biases + (j - begin) * kSide, false};
        });
      }
    });
    return has_memory;
  }

  bool backward(TileMemory& memory) const {
    const int64_t chunks = divided_up(call_.rows, kDepth), inputs = divided_up(call_.n_in, kSide);
    const int64_t n = strips_.size(), depth = tiles_.size(), of_x_tiles = call_.of_x ? 2 * chunks * depth : 0;
    if (!memory.reserve(of_x_tiles + (n + inputs) * chunks, chunks * n * kSide)) return false;
    Strips gradients{};
    if (call_.of_x) gradients = memory.take_strips(2 * chunks, depth);
    const Strips columns = memory.take_strips(n, chunks), x = memory.take_strips(inputs, chunks);
    float* sums = memory.take_floats(chunks * n * kSide);
    parallel_for(chunks, call_.threads, [&](int64_t first, int64_t end) {
      for (int64_t c = first; c < end; ++c) {
        const int64_t begin = c * kDepth, rows = call_.rows - begin;
        for (int64_t tile = 0; call_.of_x && tile < depth; ++tile) {
          const Slice& some = tiles_[tile];
          const float* from = some.part->of_out + begin * some.part->n_out + some.first;
          copy_rows(from, some.part->n_out, rows, some.count(), gradients.at(2 * c, tile));
          copy_rows(from + (rows > kSide ? kSide * some.part->n_out : 0), some.part->n_out, std::max<int64_t>(1, rows - kSide),
                    rows > kSide ? some.count() : 0, gradients.at(2 * c + 1, tile));
        }
        for (int64_t s = 0; s < n; ++s) {
          const Slice& some = strips_[s];
          const float* from = some.part->of_out + begin * some.part->n_out + some.first;
          copy_pairs(from, some.part->n_out, rows, some.count(), columns.at(s, c));
          transpose_tile(columns.at(s, c));
          if (some.part->of_bias) sum_rows(from, some.part->n_out, std::min(kDepth, rows), some.count(), sums + (c * n + s) * kSide);
        }
        for (int64_t i = 0; i < inputs; ++i)
          copy_pairs(call_.x + begin * call_.n_in + i * kSide, call_.n_in, rows, call_.n_in - i * kSide, x.at(i, c));
      }
    });
    parallel_for(divided_up(n, 2), call_.threads, [&](int64_t first, int64_t end) {
      first *= 2, end = std::min(n, 2 * end);
      const int64_t block = strips_at_once(chunks);
      for (int64_t begin = 0; begin < inputs; begin += block)
        multiply_strips(columns.from(first), first, end, x.from(begin), begin, std::min(inputs, begin + block), [&](int64_t i, int64_t j) {
          const Slice& some = strips_[i];
          float* to = some.part->of_weight + some.first * call_.n_in + j * kSide;
          return SumsPlace{to, call_.n_in, some.count(), call_.n_in - j * kSide, nullptr, call_.adds != 0};
        });
      for (int64_t s = first; s < end; ++s) add_bias_gradient(s, sums, chunks);
    });
    return !call_.of_x || multiply_gradients(gradients);
  }

 private:
  // Some results of one layer, from `first` on.
  struct Slice {
    const LinearPart* part;
    int64_t first;
    int64_t count() const { return part->n_out - first; }
  };

  static TileMemory& own_memory() {
    static thread_local TileMemory memory;
    return memory;
  }

  // Copy the weights of a strip of results to tiles of B for x Wᵀ, and the biases.
  void copy_columns(const Slice& some, const Strips& to, float* biases) const {
    for (int64_t tile = 0; tile < to.depth; ++tile) {
      copy_rows(some.part->weight + some.first * call_.n_in + tile * kDepth, call_.n_in, some.count(), call_.n_in - tile * kDepth,
                to.at(0, tile));
      transpose_tile(to.at(0, tile));
    }
    const float* bias = some.part->bias;
    _mm512_storeu_ps(biases, bias ? load_first(bias + some.first, some.count()) : _mm512_setzero_ps());
  }

  // Multiply the gradients of the results by the weights: each thread for some of the rows.
  bool multiply_gradients(const Strips& gradients) const {
    std::atomic<bool> has_memory = true;
    const int64_t inputs = divided_up(call_.n_in, kSide), depth = tiles_.size(), row_strips = divided_up(call_.rows, kSide);
    const int64_t block = std::min(inputs, strips_at_once(depth));
    parallel_for(divided_up(row_strips, 2), call_.threads, [&](int64_t first, int64_t end) {
      first *= 2, end = std::min(row_strips, 2 * end);
      if (first >= end) return;
      TileMemory& memory = own_memory();
      if (!memory.reserve(block * depth, 0)) {
        has_memory = false;
        return;
      }
      const Strips weights = memory.take_strips(block, depth);
      for (int64_t begin = 0; begin < inputs; begin += block) {
        const int64_t last = std::min(inputs, begin + block);
        for (int64_t tile = 0; tile < depth; ++tile) {
          const Slice& some = tiles_[tile];
          for (int64_t i = begin; i < last; ++i)
            copy_pairs(some.part->weight + some.first * call_.n_in + i * kSide, call_.n_in, some.count(), call_.n_in - i * kSide,
                       weights.at(i - begin, tile));
        }
        multiply_strips(gradients.from(first), first, end, weights, begin, last, [&](int64_t i, int64_t j) {
          float* to = call_.of_x + i * kSide * call_.n_in + j * kSide;
          return SumsPlace{to, call_.n_in, call_.rows - i * kSide, call_.n_in - j * kSide, nullptr, false};
        });
      }
    });
    return has_memory;
  }

  static void sum_rows(const float* from, int64_t step, int64_t rows, int64_t columns, float* to) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t r = 0; r < rows; ++r) sum += load_first(from + r * step, columns);
    _mm512_storeu_ps(to, sum);
  }

  void add_bias_gradient(int64_t s, const float* sums, int64_t chunks) const {
    const Slice& some = strips_[s];
    if (!some.part->of_bias) return;
    float* to = some.part->of_bias + some.first;
    const __mmask16 lanes = lane_mask(some.count());
    __m512 sum = call_.adds ? _mm512_maskz_loadu_ps(lanes, to) : _mm512_setzero_ps();
    for (int64_t c = 0; c < chunks; ++c) sum += _mm512_loadu_ps(sums + (c * strips_.size() + s) * kSide);
    _mm512_mask_storeu_ps(to, lanes, sum);
  }

  const LinearCall& call_;
  std::vector<Slice> strips_, tiles_;
};
