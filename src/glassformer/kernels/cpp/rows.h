// What a layer computes on each row of numbers between its matrix products: norms, rotary positions and gates. torch makes
// up to eight passes over a row for one of them, and in a decoding step each pass costs more than its arithmetic.

// Load `count` floats, at most a register; the rest are zeros. With a constant `count` this is one instruction.
template <typename Count>
inline Numbers load_part(const float* from, Count count) {
  if (count >= kTogether) return load(from);
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(lane_mask(count), from);
#else
  float numbers[kTogether] = {};
  std::copy_n(from, static_cast<int64_t>(count), numbers);
  return load(numbers);
#endif
}

template <typename Count>
inline void store_part(const Numbers& x, float* to, Count count) {
  if (count >= kTogether) {
    std::memcpy(to, &x, sizeof(x));
    return;
  }
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, lane_mask(count), x);
#else
  std::memcpy(to, &x, static_cast<size_t>(count) * sizeof(float));
#endif
}

// Call body(i, count) for the registers of a row of n floats. `count` is less than a register only in the last call.
template <typename Body>
inline void by_parts(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kTogether <= n; i += kTogether) body(i, std::integral_constant<int64_t, kTogether>());
  if (i < n) body(i, n - i);
}

// Return the sum of term(number) over a row. Four independent sums hide the latency of the additions.
template <typename Term>
inline float sum_over(const float* x, int64_t n, const Term& term) {
  constexpr int64_t step = 4 * kTogether;
  Numbers sums[4] = {};
  int64_t i = 0;
  for (; i + step <= n; i += step)
    for (int part = 0; part < 4; ++part) sums[part] += term(load(x + i + part * kTogether));
  for (; i + kTogether <= n; i += kTogether) sums[0] += term(load(x + i));
  float total = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) total += term(x[i]);
  return total;
}

// y = x / sqrt(mean(x²) + eps) * weight, for n numbers. `weight` may be null.
inline void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const float square = sum_over(x, n, [](auto number) { return number * number; }) / static_cast<float>(n);
  const float by = 1 / std::sqrt(square + eps);
  by_parts(n, [&](int64_t i, auto count) {
    const Numbers scaled = load_part(x + i, count) * by;
    store_part(weight ? scaled * load_part(weight + i, count) : scaled, y + i, count);
  });
}

// y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, for n numbers. `weight` and `bias` may be null.
inline void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* y) {
  const float mean = sum_over(x, n, [](auto number) { return number; }) / static_cast<float>(n);
  auto squared_distance = [&](auto number) {
    const auto distance = number - mean;
    return distance * distance;
  };
  const float by = 1 / std::sqrt(sum_over(x, n, squared_distance) / static_cast<float>(n) + eps);
  by_parts(n, [&](int64_t i, auto count) {
    Numbers scaled = (load_part(x + i, count) - mean) * by;
    if (weight) scaled *= load_part(weight + i, count);
    if (bias) scaled += load_part(bias + i, count);
    store_part(scaled, y + i, count);
  });
}

// y = silu(gate) * up, where silu(x) = x / (1 + e^-x), for n numbers.
inline void silu_gate_row(const float* gate, const float* up, int64_t n, float* y) {
  by_parts(n, [&](int64_t i, auto count) {
    const Numbers x = load_part(gate + i, count);
    const Numbers small = exp_below(x < 0.0f ? x : -x);  // e^-|x|, which cannot overflow
    const Numbers sigmoid = (x < 0.0f ? small : Numbers{} + 1.0f) / (small + 1.0f);
    store_part(x * sigmoid * load_part(up + i, count), y + i, count);
  });
}

// Rotate the pairs (x[i], x[i + half]) by angles with these cosines and sines.
inline void rotate_row(const float* x, const float* cos, const float* sin, int64_t half, float* y) {
  by_parts(half, [&](int64_t i, auto count) {
    const Numbers first = load_part(x + i, count), second = load_part(x + half + i, count);
    const Numbers c = load_part(cos + i, count), s = load_part(sin + i, count);
    store_part(first * c - second * s, y + i, count);
    store_part(second * c + first * s, y + half + i, count);
  });
}
