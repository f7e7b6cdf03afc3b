// y = x Wᵀ + b with weights quantized in groups of 32 inputs: weight = scale * code + minimum.
//
// Each group of a channel has its own scale and, in some formats, its own minimum; codes have 4 or 8 bits. Activations are
// quantized on the fly to 15 bits, with one scale per row and group: 8 bits would change the perplexity of a language model
// by 0.2 to 0.4 %. The number 128 * high + low is stored as two bytes, which are multiplied one after the other. Sums within
// a group are exact in int32. The groups' sums are added as floats in the order of the groups, by the same operations for
// every number of rows, so that a row's result does not depend on the other rows.
//
// Weights are packed into panels of kPanel channels. For each group, a panel holds the codes, the scales and the minimums of
// its channels. Codes lie 4 inputs by 4 inputs, those of all channels side by side: the operand layout of the instructions
// that multiply 4 bytes by 4 bytes and add. A byte of a 4-bit format holds input i in its low half and input i + 16 in its
// high half.
//
// This file and those that it includes know nothing of torch; groupwise_operations.h makes torch operations of them.
namespace groupwise {
constexpr int64_t kGroup = 32;
constexpr float kLeastTop = 1e-30f;  // a group of activations whose largest magnitude is below this counts as zeros

// One group of a quantized row of activations.
struct alignas(16) Block {
  int8_t high[kGroup], low[kGroup];
  float scale, sum;  // `sum` is the sum of the dequantized activations, by which a minimum is multiplied
  int32_t added;     // what is added to the integer sums, because codes are stored with an offset
  int32_t unused;
};
constexpr int kLowBits = 7;
constexpr float kMost = 127 << kLowBits;  // the largest quantized activation

#if defined(__aarch64__)
#include "groupwise_arm.h"
#else
#include "groupwise_x86.h"
#endif

constexpr int64_t kRowsTogether = 4;       // rows that are multiplied together
constexpr int64_t kRowsDirect = 2;         // for more rows, panels are first widened to bytes
constexpr int64_t kWideBytes = 1 << 17;    // bytes of widened codes, so that they stay in the L2 cache
constexpr int64_t kNearBytes = 24 << 10;   // bytes of activations in one block, so that it stays in the L1 cache
constexpr int64_t kWorthThread = 1 << 17;  // multiplications per thread that are worth waking it for
constexpr int64_t kFewNumbers = 1 << 13;   // below this, one thread quantizes, which is faster than a barrier
constexpr size_t kKeptBytes = 1 << 24;     // largest buffer that a thread keeps for the next product

// Shape and format of a packed matrix (n, n_in).
struct Shape {
  int64_t n, n_in;
  int64_t bits;   // of a code: 4 or 8
  bool has_mins;  // without minimums, 4-bit codes are stored with 8 added
  bool is_half;   // whether scales and minimums are float16 instead of float32

  int64_t groups() const { return (n_in + kGroup - 1) / kGroup; }
  int64_t panels() const { return (n + kPanel - 1) / kPanel; }
  int64_t number_bytes() const { return is_half ? 2 : 4; }
  int64_t code_bytes() const { return kPanel * kGroup * bits / 8; }  // of one group of a panel
  int64_t block_bytes() const { return code_bytes() + (has_mins ? 2 : 1) * kPanel * number_bytes(); }
  int64_t bytes() const { return panels() * groups() * block_bytes(); }
  int offset() const { return bits == 4 ? (has_mins ? 0 : 8) : kByteOffset; }  // added to codes when they are stored
};

// Call `body` with the bits and has_mins of a shape as constants.
template <typename Body>
void with_format(const Shape& shape, const Body& body) {
  using Four = std::integral_constant<int64_t, 4>;
  using Eight = std::integral_constant<int64_t, 8>;
  if (shape.bits == 4)
    shape.has_mins ? body(Four(), std::true_type()) : body(Four(), std::false_type());
  else
    shape.has_mins ? body(Eight(), std::true_type()) : body(Eight(), std::false_type());
}

// Write row `channel` of a packed matrix: codes (groups * 32), and scales and minimums (groups) as they are stored.
inline void pack_row(const Shape& shape, int64_t channel, const int8_t* codes, const uint8_t* scales, const uint8_t* mins,
                     uint8_t* packed) {
  const int64_t c = channel % kPanel, size = shape.number_bytes(), groups = shape.groups();
  uint8_t* block = packed + channel / kPanel * groups * shape.block_bytes();
  for (int64_t g = 0; g < groups; ++g, block += shape.block_bytes(), codes += kGroup) {
    auto stored = [&](int64_t i) { return static_cast<uint8_t>(codes[i] + shape.offset()); };
    for (int64_t i = 0; i < (shape.bits == 4 ? 16 : kGroup); ++i)
      block[(i / 4 * kPanel + c) * 4 + i % 4] = shape.bits == 4 ? (stored(i) & 15) | (stored(i + 16) & 15) << 4 : stored(i);
    std::memcpy(block + shape.code_bytes() + c * size, scales + g * size, size);
    if (shape.has_mins) std::memcpy(block + shape.code_bytes() + (kPanel + c) * size, mins + g * size, size);
  }
}

// Dequantize one row of a packed matrix into n_in floats.
inline void read_row(const Shape& shape, const uint8_t* packed, int64_t channel, float* to) {
  const int64_t c = channel % kPanel, groups = shape.groups();
  packed += channel / kPanel * groups * shape.block_bytes();
  with_format(shape, [&](auto bits, auto has_mins) {
    const PackedPanel<bits, has_mins> panel{packed, shape.block_bytes(), shape.is_half};
    for (int64_t g = 0; g < groups; ++g) {
      float scales[kPanel], mins[kPanel] = {};
      panel.read_numbers(g, scales, mins);
      const uint8_t* block = packed + g * shape.block_bytes();
      for (int64_t i = 0; i < std::min(kGroup, shape.n_in - g * kGroup); ++i) {
        const int64_t place = bits == 4 ? i % 16 : i;
        const uint8_t byte = block[(place / 4 * kPanel + c) * 4 + place % 4];
        const int stored = bits == 4 ? (i < 16 ? byte & 15 : byte >> 4) : kByteOffset ? byte : static_cast<int8_t>(byte);
        *to++ = scales[c] * static_cast<float>(stored - shape.offset()) + mins[c];
      }
    }
  });
}

// Quantize one row of activations, group by group, each by its largest magnitude. NaN or infinity in a group makes its scale
// NaN or infinite, so that no result of the row is finite.
inline void quantize_row(const Shape& shape, const float* x, Block* to) {
  for (int64_t g = 0; g < shape.groups(); ++g, ++to, x += kGroup) {
    float last[kGroup] = {};
    const int64_t count = std::min(kGroup, shape.n_in - g * kGroup);
    if (count < kGroup) std::copy_n(x, count, last);
    float top;
    const int32_t sum = quantize_group(count < kGroup ? last : x, to, &top);
    to->scale = top / kMost;
    to->sum = to->scale * static_cast<float>(sum);
    to->added = -shape.offset() * sum;
  }
}

// Panels with 8-bit codes and float32 numbers, to which the panels of all formats are widened for many rows.
struct Widened {
  std::vector<uint8_t> codes;
  std::vector<float> scales, mins;
};

// Operands and result of one product: m rows of activations times n channels.
struct Product {
  Shape shape;
  const Block* x;
  const uint8_t* w;
  const float* bias;
  float* y;
  int64_t m;

  // Compute R rows of the result from row r on, for panel p.
  template <int R, typename Panel>
  void multiply_some(const Panel& panel, int64_t p, int64_t r) const {
    const int64_t first = p * kPanel, channels = std::min(kPanel, shape.n - first), groups = shape.groups();
    float out[R][kPanel];
    multiply_rows<R>(panel, x + r * groups, groups, out);
    for (int64_t row = 0; row < R; ++row) {
      float* to = y + (r + row) * shape.n + first;
      for (int64_t c = 0; c < channels; ++c) to[c] = bias ? out[row][c] + bias[first + c] : out[row][c];
    }
  }

  template <typename Panel>
  void multiply_panel(const Panel& panel, int64_t p, int64_t begin, int64_t end) const {
    int64_t r = begin;
    for (; r + kRowsTogether <= end; r += kRowsTogether) multiply_some<kRowsTogether>(panel, p, r);
    if (end - r == 3) multiply_some<3>(panel, p, r);
    if (end - r == 2) multiply_some<2>(panel, p, r);
    if (end - r == 1) multiply_some<1>(panel, p, r);
  }

  // Compute the result for some panels. With many rows, panels are widened a few at a time, so that they stay in the L2
  // cache, and multiplied by blocks of rows that stay in the L1 cache.
  template <int64_t bits, bool has_mins>
  void multiply(int64_t panels_begin, int64_t panels_end, Widened& wide) const {
    const int64_t size = shape.block_bytes(), groups = shape.groups(), numbers = groups * kPanel, codes = numbers * kGroup;
    auto packed = [&](int64_t p) { return PackedPanel<bits, has_mins>{w + p * groups * size, size, shape.is_half}; };
    if (m <= kRowsDirect) {
      for (int64_t p = panels_begin; p < panels_end; ++p) multiply_panel(packed(p), p, 0, m);
      return;
    }
    const int64_t together = std::max<int64_t>(1, kWideBytes / codes), row_bytes = groups * sizeof(Block);
    const int64_t rows = std::max<int64_t>(1, kNearBytes / row_bytes / kRowsTogether) * kRowsTogether;
    wide.codes.resize(together * codes), wide.scales.resize(together * numbers), wide.mins.resize(together * numbers);
    auto widened = [&](int64_t p) {
      return WidePanel<bits, has_mins>{wide.codes.data() + p * codes, wide.scales.data() + p * numbers,
                                       wide.mins.data() + p * numbers};
    };
    for (int64_t first = panels_begin; first < panels_end; first += together) {
      const int64_t last = std::min(panels_end, first + together);
      for (int64_t p = first; p < last; ++p) packed(p).widen(groups, widened(p - first));
      for (int64_t r = 0; r < m; r += rows)
        for (int64_t p = first; p < last; ++p) multiply_panel(widened(p - first), p, r, std::min(m, r + rows));
    }
  }
};

// Return how many of the available threads have enough work in a product of m rows.
inline int threads_for(const Shape& shape, int64_t m, int available) {
  return static_cast<int>(std::clamp<int64_t>(m * shape.n * shape.n_in / kWorthThread, 1, available));
}

// Multiply x (m, n_in) by a packed matrix and add the bias (n), unless it is null: y (m, n).
inline void multiply(const Shape& shape, const float* x, int64_t m, const uint8_t* packed, const float* bias, int threads,
                     float* y) {
  const int64_t groups = shape.groups();
  thread_local std::vector<Block> kept;  // a decoding step has many small products, for which allocation is expensive
  if (kept.size() * sizeof(Block) > kKeptBytes) kept = {};
  kept.resize(std::max<size_t>(kept.size(), m * groups));
  Block* blocks = kept.data();
  const Product product{shape, blocks, packed, bias, y, m};
  auto quantize_rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) quantize_row(shape, x + r * shape.n_in, blocks + r * groups);
  };
  const bool are_few = m * shape.n_in < kFewNumbers;
  if (are_few) quantize_rows(0, m);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t self = omp_get_thread_num(), all = omp_get_num_threads();
    if (!are_few) {
      quantize_rows(m * self / all, m * (self + 1) / all);
#pragma omp barrier
    }
    thread_local Widened wide;
    const int64_t begin = shape.panels() * self / all, end = shape.panels() * (self + 1) / all;
    with_format(shape, [&](auto bits, auto has_mins) { product.multiply<bits, has_mins>(begin, end, wide); });
  }
}
}  // namespace groupwise
