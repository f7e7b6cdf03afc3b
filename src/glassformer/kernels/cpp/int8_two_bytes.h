// y = x Wᵀ + b with int8 weights as in int8.h, and activations of two bytes (15 bits).
//
// Activations of language models have outliers. One byte with one scale per row leaves few levels for the other numbers of a
// row. So what the first byte leaves over is quantized to a second byte, with a scale of its own: a row becomes two rows of
// the product in int8.h, whose results are added. A row's result does not depend on the other rows.

constexpr int64_t kMostSums = 1 << 21;      // numbers of a block of results before they are added: 8 MB
constexpr int64_t kMostPairs = 256;         // rows of x in a block, at most
constexpr int64_t kFewestPairs = 32;        // at least: fewer would read the weights too often
constexpr float kLeastRowTop = 1e-30f;      // a row whose largest magnitude is below this has no second byte

// Write what is left of a row when `quantize` has rounded it to one byte.
inline void write_remainder(const float* x, int64_t k, float* left) {
  int32_t bits = 0;  // of the largest magnitude: as integers, magnitudes have the same order, and NaN is the largest
  for (int64_t i = 0; i < k; ++i) bits = std::max(bits, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  const float top = std::bit_cast<float>(bits);
  if (top < kLeastRowTop) {
    std::fill_n(left, k, 0.0f);
    return;
  }
  const float inverse = 127.0f / top, step = top / 127.0f;
  for (int64_t i = 0; i < k; ++i) left[i] = x[i] - std::rint(x[i] * inverse) * step;
}

// y = first + second + bias, through ReLU if `least` is 0. NaN stays NaN.
inline void add_results(const float* first, const float* second, const float* bias, float least, int64_t n, float* y) {
  for (int64_t c = 0; c < n; ++c) {
    const float sum = first[c] + second[c] + (bias ? bias[c] : 0.0f);
    y[c] = sum < least ? least : sum;
  }
}

// As `multiply_rows` of int8.h.
inline void multiply_two_bytes(const PackedShape& shape, const float* x, int64_t m, const int8_t* packed,
                               const float* w_scales, const float* bias, bool relu, bool has_tiles, int threads, float* y) {
  const int64_t k = shape.k, n = shape.n;
  const int64_t block = std::clamp(kMostSums / (2 * n), kFewestPairs, kMostPairs);
  const float least = relu ? 0.0f : -INFINITY;
  thread_local std::vector<float> rows, results;  // kept, because a decoding step has many small products
  if ((rows.size() + results.size()) * sizeof(float) > 2 * kKept) rows = {}, results = {};
  for (int64_t begin = 0; begin < m; begin += block) {
    const int64_t count = std::min(block, m - begin);
    rows.resize(std::max<size_t>(rows.size(), 2 * count * k));
    results.resize(std::max<size_t>(results.size(), 2 * count * n));
    const float* from = x + begin * k;
    float *both = rows.data(), *found = results.data(), *to = y + begin * n;
    const int working = count > 1 ? threads : 1;
    std::copy_n(from, count * k, both);
#pragma omp parallel for num_threads(working) if (working > 1)
    for (int64_t r = 0; r < count; ++r) write_remainder(from + r * k, k, both + (count + r) * k);
    multiply_rows(shape, both, 2 * count, packed, w_scales, nullptr, false, has_tiles, threads, found);
#pragma omp parallel for num_threads(working) if (working > 1)
    for (int64_t r = 0; r < count; ++r) add_results(found + r * n, found + (count + r) * n, bias, least, n, to + r * n);
  }
}
