// Rows in training: gated activations, forward and backward, dropout, and the loss of logits with its gradient. Each is
// one pass over memory, but for the loss, which reads a row of logits three times while it is in the caches.

inline Numbers sigmoid_of(Numbers x) {
  const Numbers small = exp_below(x < 0.0f ? x : -x);  // e^-|x|, which cannot overflow
  return (x < 0.0f ? small : Numbers{} + 1.0f) / (small + 1.0f);
}

// silu(gate) * up of n numbers.
inline void silu_gate_numbers(const float* gate, const float* up, int64_t n, float* hidden) {
  by_parts(n, [&](int64_t i, auto count) {
    const Numbers x = load_part(gate + i, count);
    store_part(x * sigmoid_of(x) * load_part(up + i, count), hidden + i, count);
  });
}

// The gradients of gate and up, given that of silu(gate) * up.
inline void silu_gate_gradient(const float* of_hidden, const float* gate, const float* up, int64_t n, float* of_gate,
                               float* of_up) {
  by_parts(n, [&](int64_t i, auto count) {
    const Numbers x = load_part(gate + i, count), by = load_part(of_hidden + i, count), s = sigmoid_of(x);
    store_part(by * load_part(up + i, count) * s * (1.0f + x * (1.0f - s)), of_gate + i, count);
    store_part(by * x * s, of_up + i, count);
  });
}

// Replace the logits of a row by the gradient of its label-smoothed cross-entropy, and return the loss.
inline float cross_entropy_row(float* logits, int64_t n, int64_t target, float smoothing) {
  Numbers best = load_some(logits, n), sums = {}, totals = {};
  by_parts(n, [&](int64_t i, auto count) {
    best = higher_of(best, load_some(logits + i, count));
    sums += load_part(logits + i, count);
  });
  const float highest = max_of(best), of_target = logits[target];
  by_parts(n, [&](int64_t i, auto count) {
    const Numbers weight = exp_below(load_some(logits + i, count) - highest);  // 0 beyond the end of the row
    totals += weight;
    store_part(weight, logits + i, count);
  });
  const float total = sum_of(totals), by = 1 / total, share = smoothing / static_cast<float>(n);
  by_parts(n, [&](int64_t i, auto count) { store_part(load_part(logits + i, count) * by - share, logits + i, count); });
  logits[target] -= 1 - smoothing;
  return highest + std::log(total) - (1 - smoothing) * of_target - share * sum_of(sums);
}

// Replace numbers below 0 by 0.
inline void relu_numbers(float* x, int64_t n) {
  by_parts(n, [&](int64_t i, auto count) {
    const Numbers some = load_part(x + i, count);
    store_part(some < 0.0f ? Numbers{} : some, x + i, count);
  });
}

// Multiply the gradient of a relu's result by `by`, and set it to 0 where the result is 0.
inline void relu_gradient_numbers(float* gradient, const float* result, int64_t n, float by) {
  by_parts(n, [&](int64_t i, auto count) {
    const Numbers scaled = load_part(gradient + i, count) * by;
    store_part(load_part(result + i, count) <= 0.0f ? Numbers{} : scaled, gradient + i, count);
  });
}

// Mix the bits of a number, so that similar numbers have unrelated results (the finalizer of MurmurHash3).
inline uint32_t mixed_bits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

constexpr int64_t kPart = 1024;  // numbers of a tensor for which the seed is mixed once

// Dropout of the n numbers of a tensor from place `first` on: those whose random number is below `limit` become 0, the
// others are multiplied by `scale`. `x` and `out` begin at that place. The random numbers depend on the seed and the place
// only, so that the backward pass drops the same elements.
inline void drop_numbers(const float* x, int64_t first, int64_t n, uint64_t seed, uint32_t limit, float scale, float* out) {
  if (!limit)
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale;
  for (int64_t done = limit ? 0 : n; done < n;) {
    const uint64_t place = first + done, part = place / kPart, count = std::min<uint64_t>(kPart - place % kPart, n - done);
    const uint32_t low = mixed_bits(static_cast<uint32_t>(seed) + mixed_bits(static_cast<uint32_t>(part)));
    const uint32_t high = mixed_bits(static_cast<uint32_t>(seed >> 32) ^ mixed_bits(low + static_cast<uint32_t>(part >> 32)));
    const uint32_t begin = static_cast<uint32_t>(place % kPart);
    const float* from = x + done;
    float* to = out + done;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t bits = mixed_bits(mixed_bits((begin + i) * 0x9e3779b9u + low) + high);
      to[i] = bits < limit ? 0.0f : from[i] * scale;
    }
    done += count;
  }
}
