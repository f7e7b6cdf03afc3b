// y = x Wᵀ + b with int8 weights, and activations that are quantized on the fly.
//
// Weights have one scale per output channel. They are packed into panels of kChannels channels: a panel holds, for each
// group of 4 inputs, the 4 bytes of every channel side by side. This is the operand layout of the CPU instructions that
// multiply 4 bytes by 4 bytes and add. Activations have one scale per row. Sums are exact in int32; multiplying by both
// scales converts them to float.

// Operands and result of one product: (m, kp) bytes times n channels. int8_arm.h and int8_x86.h define `multiply`.
struct Product {
  const int8_t *x, *w;
  const float *x_scales, *w_scales, *bias;
  float* y;
  int64_t m, n, kp, panel_size;
  float least;  // lower bound of the result: 0 with ReLU, else minus infinity

  const int8_t* panel_of(int64_t p) const { return w + p * panel_size; }
  void multiply(int64_t panels_begin, int64_t panels_end, int64_t rows_begin, int64_t rows_end) const;
};

#if defined(__aarch64__)
#include "int8_arm.h"
#else
#include "int8_x86.h"
#endif

constexpr int64_t kNear = 1 << 15;        // bytes of activations in one block, so that it stays in the L1 cache
constexpr int64_t kWorth = 1 << 18;       // multiplications per thread that are worth waking it for
constexpr size_t kKept = 1 << 24;         // largest buffer, in bytes, that a thread keeps for the next product
constexpr int64_t kLine = 64;             // bytes of a cache line
constexpr int64_t kFewNumbers = 1 << 13;  // below this, one thread quantizes, which is faster than a barrier

int64_t padded(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// Pack (N, K) int8 into panels (N/channels, K/4, channels, 4). N and K are padded with zeros.
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

// x (..., K) float, packed weights, scales (N padded to whole panels), bias (N) or none -> y (..., N), through ReLU if
// `relu` is set.
at::Tensor& linear_out(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& scales,
                       const std::optional<at::Tensor>& bias, int64_t n_in, int64_t n, bool relu, at::Tensor& y) {
  TORCH_CHECK(x.dim() > 0 && x.scalar_type() == at::kFloat, "int8 linear: expected float32 rows");
  TORCH_CHECK(x.size(-1) == n_in && n_in > 0, say("int8 linear: rows of ", x.size(-1), ", expected ", n_in));
  const int64_t k = x.size(-1), m = x.numel() / k, kp = padded(k, kInputs);
  const int64_t panels = padded(n, kChannels) / kChannels, panel_size = kHead + kChannels * kp;
  TORCH_CHECK(packed.numel() == panels * panel_size + kAhead && scales.numel() >= panels * kChannels,
              "int8 linear: the packed weights or the scales do not have the size for n_in and n");
  TORCH_CHECK(y.is_contiguous() && y.scalar_type() == at::kFloat && y.numel() == m * n, "int8 linear: wrong output");
  const at::Tensor input = x.contiguous();
  // Each thread keeps its buffers: a decoding step has many small products, for which allocation would take a large
  // part of the time. Buffers above kKept bytes, from a long batch, are freed.
  thread_local std::vector<int8_t> quantized;
  thread_local std::vector<float> x_scales;
  if (quantized.size() > kKept) quantized = {}, x_scales = {};
  quantized.resize(std::max<size_t>(quantized.size(), padded(m, kRowsTogether) * kp + kAhead + kLine));
  x_scales.resize(std::max<size_t>(x_scales.size(), m));
  const float* from = input.const_data_ptr<float>();
  int8_t* to = quantized.data() + (kLine - reinterpret_cast<uintptr_t>(quantized.data()) % kLine);
  float* by = x_scales.data();
  const float* b = bias ? bias->const_data_ptr<float>() : nullptr;
  const Product product{to, packed.const_data_ptr<int8_t>(), by, scales.const_data_ptr<float>(), b,
                        y.data_ptr<float>(), m, n, kp, panel_size, relu ? 0.0f : -INFINITY};
  const int64_t block = std::max<int64_t>(kRows, kNear / kp / kRows * kRows);
  // Use no more threads than have enough work, and one thread inside a parallel region.
  const int64_t worth = std::max<int64_t>(1, m * panels * kChannels * kp / kWorth);
  const int threads = at::in_parallel_region() ? 1 : std::min<int64_t>(at::get_num_threads(), worth);
  auto quantize_rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) by[r] = quantize(from + r * k, row_of(to, r, kp), k, kp);
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
  return y;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& scales,
                  const std::optional<at::Tensor>& bias, int64_t n_in, int64_t n, bool relu) {
  TORCH_CHECK(x.dim() > 0, "int8 linear: expected rows");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  at::Tensor y = at::empty(shape, x.options());
  return linear_out(x, packed, scales, bias, n_in, n, relu, y);
}
