// y = x Wᵀ + b with int8 weights, and activations that are quantized on the fly.
//
// Weights have one scale per output channel. They are packed into panels of kChannels channels: a panel holds, for each
// group of kGroup inputs, the bytes of every channel side by side. This is the operand layout of the CPU instructions that
// multiply a few neighboring numbers and add the products. Activations have one scale per row. Sums are exact in int32;
// multiplying by both scales converts them to float. So a row's result does not depend on the other rows, and all CPUs
// compute the same sums.
//
// int8_arm.h and int8_x86.h define the constants that are used here, `layout_for`, `row_of`, `rows_per_block`, `quantize`,
// `finish_panel` and `Product::multiply`.

inline int64_t padded(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// How quantized rows are stored: in blocks of `together` rows, for each block one piece of each row after another.
struct RowLayout {
  int64_t kp, together;
  int64_t piece;  // bytes of a row that are contiguous
  bool by_tiles;  // whether AMX tiles multiply
};

// Operands and result of one product: (m, kp) quantized activations times n channels.
struct Product {
  const int8_t *x, *w;
  const float *x_scales, *w_scales, *bias;
  float* y;
  RowLayout layout;
  int64_t n, panel_size;
  float least;  // lower bound of the result: 0 with ReLU, else minus infinity

  const int8_t* panel_of(int64_t p) const { return w + p * panel_size; }
  void multiply(int64_t panels_begin, int64_t panels_end, int64_t rows_begin, int64_t rows_end) const;
};

#if defined(__aarch64__)
#include "int8_arm.h"
#else
#include "int8_x86.h"
#endif

constexpr int64_t kWorth = 1 << 18;       // multiplications per thread that are worth waking it for
constexpr size_t kKept = 1 << 24;         // largest buffer, in bytes, that a thread keeps for the next product
constexpr int64_t kLine = 64;             // bytes of a cache line
constexpr int64_t kFewNumbers = 1 << 13;  // below this, one thread quantizes, which is faster than a barrier

// A weight matrix (n, k) and its size when packed. Both dimensions are padded with zeros.
struct PackedShape {
  int64_t n, k;

  int64_t kp() const { return padded(k, kInputs); }
  int64_t panels() const { return padded(n, kChannels) / kChannels; }
  int64_t panel_size() const { return kHead + kChannels * kp(); }
  int64_t bytes() const { return panels() * panel_size() + kAhead; }
};

// Pack int8 weights (n, k) into panels (n/channels, k/group, channels, group). `to` holds zeros.
inline void pack_panels(const PackedShape& shape, const int8_t* from, int8_t* to) {
  for (int64_t channel = 0; channel < shape.n; ++channel) {
    int8_t* panel = to + channel / kChannels * shape.panel_size() + kHead;
    for (int64_t input = 0; input < shape.k; ++input)
      panel[(input / kGroup * kChannels + channel % kChannels) * kGroup + input % kGroup] = from[channel * shape.k + input];
  }
  for (int64_t p = 0; p < shape.panels(); ++p) finish_panel(to + p * shape.panel_size(), shape.kp());
}

// Return how many threads have enough work in a product of m rows, at most `available`.
inline int threads_for(const PackedShape& shape, int64_t m, int available) {
  const int64_t worth = m * shape.panels() * kChannels * shape.kp() / kWorth;
  return static_cast<int>(std::clamp<int64_t>(worth, 1, std::max(1, available)));
}

// Multiply rows x (m, k) by packed weights: y (m, n). The scales of the weights are padded to whole panels. `bias` (n) may
// be null. `has_tiles` says that this process may use AMX.
inline void multiply_rows(const PackedShape& shape, const float* from, int64_t m, const int8_t* packed,
                          const float* w_scales, const float* bias, bool relu, bool has_tiles, int threads, float* y) {
  const int64_t k = shape.k, panels = shape.panels();
  const RowLayout layout = layout_for(m, shape.kp(), has_tiles);
  // Each thread keeps its buffers: a decoding step has many small products, for which allocation would take a large
  // part of the time. Buffers above kKept bytes, from a long batch, are freed.
  thread_local std::vector<int8_t> quantized;
  thread_local std::vector<float> x_scales;
  if (quantized.size() > kKept) quantized = {}, x_scales = {};
  const size_t bytes = padded(m, layout.together) * layout.kp * sizeof(Level) + kAhead + kLine;
  if (quantized.size() < bytes) quantized.resize(bytes);
  if (x_scales.size() < static_cast<size_t>(m)) x_scales.resize(m);
  int8_t* to = quantized.data() + (kLine - reinterpret_cast<uintptr_t>(quantized.data()) % kLine);
  float* by = x_scales.data();
  const float least = relu ? 0.0f : -INFINITY;
  const Product product{to, packed, by, w_scales, bias, y, layout, shape.n, shape.panel_size(), least};
  const int64_t block = rows_per_block(layout);
  auto quantize_rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) by[r] = quantize(from + r * k, row_of(to, r, layout), k, layout);
  };
  const bool are_few = m * k < kFewNumbers;
  if (are_few) quantize_rows(0, m);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t self = omp_get_thread_num(), all = omp_get_num_threads();
    if (!are_few) {
      quantize_rows(m * self / all, m * (self + 1) / all);
#pragma omp barrier
    }
    const int64_t begin = panels * self / all, end = panels * (self + 1) / all;
    for (int64_t r = 0; r < m; r += block) product.multiply(begin, end, r, std::min(m, r + block));
  }
}
