// y = x Wᵀ + b with int8 weights and activations quantised on the fly.
//
// Weights are quantised by output channel and packed in panels of some channels: for each group of 4 inputs, the channels
// side by side, as the instructions of a CPU want them that multiply 4 bytes with 4 bytes and add. Activations are
// quantised by row. Sums are exact in int32; the two scales bring them back to float.

// What a product reads and writes: (m, kp) bytes times n channels. A CPU says below how it multiplies some of it.
struct Product {
  const int8_t *x, *w;
  const float *x_scales, *w_scales, *bias;
  float* y;
  int64_t m, n, kp, panel_size;
  float least;  // what is below becomes this

  const int8_t* panel_of(int64_t p) const { return w + p * panel_size; }
  void multiply(int64_t panels_begin, int64_t panels_end, int64_t rows_begin, int64_t rows_end) const;
};

#if defined(__aarch64__)
#include "int8_arm.h"
#else
#include "int8_x86.h"
#endif

constexpr int64_t kNear = 1 << 15;        // bytes of rows that stay in the nearest cache while panels pass by
constexpr int64_t kWorth = 1 << 18;       // products of two numbers for which a thread is woken
constexpr size_t kKept = 1 << 24;         // bytes that a thread keeps for the next product
constexpr int64_t kLine = 64;             // bytes that a cache moves together
constexpr int64_t kFewNumbers = 1 << 13;  // that are quantised before threads could wait for each other

int64_t padded(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// (N, K) int8 -> panels (N/channels, K/4, channels, 4), zeros where N or K end.
at::Tensor pack(const at::Tensor& given) {
  TORCH_CHECK(given.dim() == 2 && given.size(1) > 0, "int8 pack: expected (out, in) weights");
  const at::Tensor weight = given.contiguous();
  const int64_t n = weight.size(0), k = weight.size(1), kp = padded(k, kInputs);
  const int64_t panels = padded(n, kChannels) / kChannels, size = kHead + kChannels * kp;
  at::Tensor packed = at::zeros({panels * size + kAhead}, weight.options());
  const int8_t* from = weight.const_data_ptr<int8_t>();
  int8_t* to = packed.data_ptr<int8_t>();
  for (int64_t channel = 0; channel < n; ++channel)
    for (int64_t input = 0; input < k; ++input)
      to[channel / kChannels * size + kHead + (input / 4 * kChannels + channel % kChannels) * 4 + input % 4] =
          from[channel * k + input];
  for (int64_t p = 0; p < panels; ++p) finish_panel(to + p * size, kp);
  return packed;
}

// x (..., K) float, packed weights, scales (N padded to whole panels), bias (N) or none -> (..., N); with `relu` what is
// negative becomes 0.
at::Tensor linear(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& scales,
                  const std::optional<at::Tensor>& bias, int64_t n_in, int64_t n, bool relu) {
  TORCH_CHECK(x.dim() > 0 && x.scalar_type() == at::kFloat, "int8 linear: expected float32 rows");
  TORCH_CHECK(x.size(-1) == n_in && n_in > 0, say("int8 linear: rows of ", x.size(-1), ", expected ", n_in));
  const int64_t k = x.size(-1), m = x.numel() / k, kp = padded(k, kInputs);
  const int64_t panels = padded(n, kChannels) / kChannels, panel_size = kHead + kChannels * kp;
  TORCH_CHECK(packed.numel() == panels * panel_size + kAhead && scales.numel() >= panels * kChannels,
              "int8 linear: weights or scales of another size");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  at::Tensor input = x.contiguous(), y = at::empty(shape, x.options());
  // Kept by a thread, for a step is many products too small to wait for memory; but not what a long batch needed.
  thread_local std::vector<int8_t> quantised;
  thread_local std::vector<float> x_scales;
  if (quantised.size() > kKept) quantised = {}, x_scales = {};
  quantised.resize(std::max<size_t>(quantised.size(), padded(m, kRowsTogether) * kp + kAhead + kLine));
  x_scales.resize(std::max<size_t>(x_scales.size(), m));
  const float* from = input.const_data_ptr<float>();
  int8_t* to = quantised.data() + (kLine - reinterpret_cast<uintptr_t>(quantised.data()) % kLine);
  float* by = x_scales.data();
  const float* b = bias ? bias->const_data_ptr<float>() : nullptr;
  const Product product{to, packed.const_data_ptr<int8_t>(), by, scales.const_data_ptr<float>(), b,
                        y.data_ptr<float>(), m, n, kp, panel_size, relu ? 0.0f : -INFINITY};
  const int64_t block = std::max<int64_t>(kRows, kNear / kp / kRows * kRows);
  // Enough work for a thread to be worth waking; and threads do not wake others.
  const int64_t worth = std::max<int64_t>(1, m * panels * kChannels * kp / kWorth);
  const int threads = at::in_parallel_region() ? 1 : std::min<int64_t>(at::get_num_threads(), worth);
  auto quantise_rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) by[r] = quantise(from + r * k, row_of(to, r, kp), k, kp);
  };
  const bool are_few = m * k < kFewNumbers;
  if (are_few) quantise_rows(0, m);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t self = omp_get_thread_num(), all = omp_get_num_threads();
    if (!are_few) {
      quantise_rows(m * self / all, m * (self + 1) / all);
#pragma omp barrier
    }
    const int64_t begin = panels * self / all, end = panels * (self + 1) / all;
    for (int64_t r = 0; r < m; r += block) product.multiply(begin, end, r, std::min(m, r + block));
  }
  return y;
}
