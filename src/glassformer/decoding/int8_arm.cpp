// y = x Wᵀ + b with int8 weights and activations quantised on the fly, for ARM cores with the dot-product instruction.
//
// Weights are quantised by output channel and packed in panels of 8 channels: for each group of 4 inputs, 8 channels
// side by side. One SDOT then multiplies 4 inputs of one row with 4 inputs of 4 channels. Activations are quantised by
// row. Sums are exact in int32; the two scales bring them back to float.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <arm_neon.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

namespace {

constexpr int64_t kChannels = 8;  // of a panel
constexpr int64_t kInputs = 16;   // the inner dimension is padded to a multiple of this
constexpr int64_t kRows = 8;      // of x at a time

int64_t padded(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// (N, K) int8 -> panels (N/8, K/4, 8, 4), zeros where N or K end.
at::Tensor pack(const at::Tensor& weight) {
  const int64_t n = weight.size(0), k = weight.size(1), kp = padded(k, kInputs), np = padded(n, kChannels);
  at::Tensor packed = at::zeros({np * kp}, weight.options());
  const int8_t* from = weight.const_data_ptr<int8_t>();
  int8_t* to = packed.data_ptr<int8_t>();
  for (int64_t channel = 0; channel < n; ++channel)
    for (int64_t input = 0; input < k; ++input)
      to[(channel / kChannels) * kChannels * kp + (input / 4) * kChannels * 4 + (channel % kChannels) * 4 + input % 4] =
          from[channel * k + input];
  return packed;
}

// One row of floats to int8 by its largest magnitude; the scale that undoes it.
float quantise(const float* x, int8_t* q, int64_t k, int64_t kp) {
  float32x4_t most = vdupq_n_f32(0);
  int64_t i = 0;
  for (; i + 4 <= k; i += 4) most = vmaxq_f32(most, vabsq_f32(vld1q_f32(x + i)));
  float top = vmaxvq_f32(most);
  for (; i < k; ++i) top = std::max(top, std::fabs(x[i]));
  const float inverse = top > 0 ? 127.0f / top : 0.0f;
  const float32x4_t by = vdupq_n_f32(inverse);
  i = 0;
  for (; i + 16 <= k; i += 16) {
    int16x4_t four[4];
    for (int part = 0; part < 4; ++part)
      four[part] = vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + i + 4 * part), by)));
    const int16x8_t low = vcombine_s16(four[0], four[1]), high = vcombine_s16(four[2], four[3]);
    vst1q_s8(q + i, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
  }
  for (; i < k; ++i) q[i] = static_cast<int8_t>(std::lrintf(x[i] * inverse));
  for (; i < kp; ++i) q[i] = 0;
  return top / 127.0f;
}

// R rows of x times one panel of 8 channels.
template <int R>
void panel(const int8_t* x, const int8_t* w, int64_t kp, const float* x_scale, const float* w_scale, const float* bias,
           float* y, int64_t n, int64_t channels) {
  int32x4_t sums[R][2];
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = vdupq_n_s32(0);
  for (int64_t i = 0; i < kp; i += kInputs, w += kInputs * kChannels) {
    int8x16_t row[R];
    for (int r = 0; r < R; ++r) row[r] = vld1q_s8(x + r * kp + i);
// A macro, because the lane of an instruction is part of its name.
#define GROUP(lane)                                                                     \
  {                                                                                     \
    const int8x16_t low = vld1q_s8(w + lane * 32), high = vld1q_s8(w + lane * 32 + 16); \
    for (int r = 0; r < R; ++r) {                                                       \
      sums[r][0] = vdotq_laneq_s32(sums[r][0], low, row[r], lane);                      \
      sums[r][1] = vdotq_laneq_s32(sums[r][1], high, row[r], lane);                     \
    }                                                                                   \
  }
    GROUP(0) GROUP(1) GROUP(2) GROUP(3)
#undef GROUP
  }
  const float32x4_t low_scale = vld1q_f32(w_scale), high_scale = vld1q_f32(w_scale + 4);
  if (channels == kChannels) {
    const float32x4_t none = vdupq_n_f32(0);
    const float32x4_t low_bias = bias ? vld1q_f32(bias) : none, high_bias = bias ? vld1q_f32(bias + 4) : none;
    for (int r = 0; r < R; ++r) {
      vst1q_f32(y + r * n, vfmaq_f32(low_bias, vcvtq_f32_s32(sums[r][0]), vmulq_n_f32(low_scale, x_scale[r])));
      vst1q_f32(y + r * n + 4, vfmaq_f32(high_bias, vcvtq_f32_s32(sums[r][1]), vmulq_n_f32(high_scale, x_scale[r])));
    }
    return;
  }
  for (int r = 0; r < R; ++r) {  // the last panel may have channels that nobody asked for
    float out[kChannels];
    vst1q_f32(out, vmulq_f32(vcvtq_f32_s32(sums[r][0]), vmulq_n_f32(low_scale, x_scale[r])));
    vst1q_f32(out + 4, vmulq_f32(vcvtq_f32_s32(sums[r][1]), vmulq_n_f32(high_scale, x_scale[r])));
    for (int64_t c = 0; c < channels; ++c) y[r * n + c] = out[c] + (bias ? bias[c] : 0.0f);
  }
}

// x (..., K) float, packed weights, scales (N padded to 8), bias (N) or none -> (..., N).
at::Tensor linear(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& scales,
                  const std::optional<at::Tensor>& bias, int64_t n) {
  TORCH_CHECK(x.dim() > 0 && x.scalar_type() == at::kFloat, "int8 linear: expected float32 rows");
  const int64_t k = x.size(-1), m = x.numel() / std::max<int64_t>(k, 1), kp = padded(k, kInputs);
  TORCH_CHECK(packed.numel() == padded(n, kChannels) * kp, "int8 linear: the input is ", k, " wide, the weights are not");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  at::Tensor input = x.contiguous(), y = at::empty(shape, x.options());
  std::vector<int8_t> quantised(padded(m, kRows) * kp);
  std::vector<float> x_scales(padded(m, kRows));
  const float* from = input.const_data_ptr<float>();
  auto quantise_rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) x_scales[r] = quantise(from + r * k, quantised.data() + r * kp, k, kp);
  };
  if (m * k < 32768)
    quantise_rows(0, m);
  else
    at::parallel_for(0, m, 1, quantise_rows);
  const int8_t* w = packed.const_data_ptr<int8_t>();
  const float* w_scales = scales.const_data_ptr<float>();
  const float* b = bias ? bias->const_data_ptr<float>() : nullptr;
  float* out = y.data_ptr<float>();
  const int64_t panels = padded(n, kChannels) / kChannels;
  // Enough work for a thread to be worth waking.
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, kChannels * kp * std::min<int64_t>(m, 8)));
  at::parallel_for(0, panels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = p * kChannels, channels = std::min(kChannels, n - first);
      const int8_t* pw = w + p * kChannels * kp;
      for (int64_t r = 0; r < m; r += kRows) {
        const int8_t* px = quantised.data() + r * kp;
        const float *ps = x_scales.data() + r, *pb = b ? b + first : nullptr;
        float* py = out + r * n + first;
#define CASE(R)                                                            \
  case R:                                                                  \
    panel<R>(px, pw, kp, ps, w_scales + first, pb, py, n, channels);       \
    break;
        switch (std::min<int64_t>(kRows, m - r)) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
#undef CASE
      }
    }
  });
  return y;
}

}  // namespace

TORCH_LIBRARY(glassformer_int8, library) {
  library.def("pack(Tensor weight) -> Tensor");
  library.def("linear(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int n) -> Tensor");
}

TORCH_LIBRARY_IMPL(glassformer_int8, CPU, library) {
  library.impl("pack", pack);
  library.impl("linear", linear);
}
