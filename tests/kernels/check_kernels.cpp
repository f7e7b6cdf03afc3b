// Compares the arithmetic of the kernels with plain loops. `test_cpp_arithmetic.py` compiles this program for each kind of
// CPU and runs it, in an emulator where this machine has another CPU. It prints "ok" or the first difference.
#include "headers.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "threads.h"
#include "vectors.h"
#include "int8.h"
#include "int8_two_bytes.h"
#include "step.h"
#include "choice.h"
#include "rows.h"
#include "sampling.h"
#include "groupwise.h"
#include "training_rows.h"
#include "training_norms.h"
#include "training_attention.h"
#if defined(__AMX_BF16__)
#include "training_products.h"
#endif

#if defined(__AMX_INT8__)
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;
#endif
static uint64_t state = 1;

// Return a random whole number from `low` to `high`.
int64_t draw(int64_t low, int64_t high) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return low + static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(high - low + 1));
}

float draw_number() { return static_cast<float>(draw(-10000, 10000)) / 2500; }

template <typename... Numbers>
void expect(bool is_right, const char* what, Numbers... numbers) {
  if (is_right) return;
  std::printf("%s:", what);
  (std::printf(" %g", static_cast<double>(numbers)), ...);
  std::printf("\n");
  std::exit(1);
}

// Weights as `linear` gets them.
struct Layer {
  PackedShape shape;
  std::vector<int8_t> weights, packed;
  std::vector<float> scales, bias;

  Layer(int64_t n, int64_t k) : shape{n, k}, weights(n * k), packed(shape.bytes()), scales(padded(n, 32), 1.0f), bias(n) {}
  void pack() { pack_panels(shape, weights.data(), packed.data()); }
  std::vector<float> operator()(const std::vector<float>& x, bool relu, bool has_two_bytes = false) const {
    const int64_t m = static_cast<int64_t>(x.size()) / shape.k;
    std::vector<float> y(m * shape.n);
    const auto multiply = has_two_bytes ? multiply_two_bytes : multiply_rows;
    multiply(shape, x.data(), m, packed.data(), scales.data(), bias.data(), relu, kHasTiles, 1, y.data());
    return y;
  }
};

// Rows of whole numbers whose largest magnitude is 127 are not rounded, and all scales are 1: the result is the sum itself.
void check_sums(int64_t m, int64_t n, int64_t k, bool extreme) {
  Layer layer(n, k);
  for (auto& weight : layer.weights) weight = static_cast<int8_t>(extreme ? (draw(0, 9) ? 127 : -128) : draw(-128, 127));
  for (auto& bias : layer.bias) bias = static_cast<float>(draw(-9, 9));
  layer.pack();
  std::vector<float> x(m * k);
  for (auto& number : x) number = static_cast<float>(extreme ? (draw(0, 9) ? 127 : -127) : draw(-127, 127));
  for (int64_t r = 0; r < m; ++r) x[r * k + draw(0, k - 1)] = draw(0, 1) ? 127.0f : -127.0f;
  for (const bool relu : {false, true}) {
    const std::vector<float> y = layer(x, relu);
    for (int64_t r = 0; r < m; ++r)
      for (int64_t c = 0; c < n; ++c) {
        int64_t sum = static_cast<int64_t>(layer.bias[c]);
        for (int64_t i = 0; i < k; ++i) sum += static_cast<int64_t>(x[r * k + i]) * layer.weights[c * k + i];
        if (relu) sum = std::max<int64_t>(sum, 0);
        expect(y[r * n + c] == static_cast<float>(sum), "int8 sum (m, n, k, row, channel, found, right)", m, n, k, r, c,
               y[r * n + c], sum);
      }
  }
}

// With two bytes, activations are off by at most half a step of 1 / (127 * 254) of their row's largest magnitude.
void check_two_bytes(int64_t m, int64_t n, int64_t k) {
  Layer layer(n, k);
  for (auto& weight : layer.weights) weight = static_cast<int8_t>(draw(-127, 127));
  for (auto& bias : layer.bias) bias = draw_number();
  layer.pack();
  std::vector<float> x(m * k);
  for (auto& number : x) number = draw_number();
  for (int64_t r = 0; r < m; ++r) x[r * k] = 100;  // an outlier
  for (const bool relu : {false, true}) {
    const std::vector<float> y = layer(x, relu, true);
    for (int64_t r = 0; r < m; ++r)
      for (int64_t c = 0; c < n; ++c) {
        double sum = layer.bias[c], size = 1;
        for (int64_t i = 0; i < k; ++i) {
          sum += static_cast<double>(x[r * k + i]) * layer.weights[c * k + i];
          size += std::abs(layer.weights[c * k + i]);
        }
        if (relu) sum = std::max(sum, 0.0);
        expect(std::fabs(y[r * n + c] - sum) < size * 100 / (127 * 254), "two bytes (m, n, k, row, channel, found, right)", m,
               n, k, r, c, y[r * n + c], sum);
      }
  }
}

// A row alone has the same result as among others, to the last bit. NaN and infinity stay in their own row.
void check_rows(int64_t m, int64_t n, int64_t k, bool has_two_bytes) {
  Layer layer(n, k);
  for (auto& weight : layer.weights) weight = static_cast<int8_t>(draw(-127, 127));
  for (auto& scale : layer.scales) scale = 0.01f + std::fabs(draw_number());
  for (auto& bias : layer.bias) bias = draw_number();
  layer.pack();
  std::vector<float> x(m * k);
  for (auto& number : x) number = draw_number();
  const std::vector<float> y = layer(x, false, has_two_bytes);
  for (int64_t r = 0; r < m; ++r) {
    const std::vector<float> one(x.begin() + r * k, x.begin() + (r + 1) * k), alone = layer(one, false, has_two_bytes);
    expect(std::equal(alone.begin(), alone.end(), y.begin() + r * n), "a row alone (m, n, k, row)", m, n, k, r);
  }
  x[k - 1] = NAN;
  x.back() = m > 1 ? INFINITY : NAN;
  const std::vector<float> broken = layer(x, false, has_two_bytes);
  for (int64_t i = 0; i < m * n; ++i)
    expect(std::isfinite(broken[i]) == (i / n > 0 && i / n < m - 1), "NaN or infinity (m, n, k, place)", m, n, k, i);
}

Half half_of(float number) {  // for numbers that float16 represents exactly, other than 0
  const uint32_t bits = std::bit_cast<uint32_t>(number);
  return {static_cast<uint16_t>((bits >> 16 & 0x8000) | ((((bits >> 23) & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff))};
}

template <int D, int Q, typename T>
void check_attention(int64_t n) {
  constexpr int N = D / kTogether;
  std::vector<float> queries(Q * D), k(n * D), v(n * D), added(n * Q + kTogether, -INFINITY), scores(n * Q + kTogether);
  for (auto& number : queries) number = draw_number();
  for (auto* some : {&k, &v})
    for (auto& number : *some) number = static_cast<float>(2 * draw(-20, 20) + 1) / 16;
  for (int64_t s = 0; s < n * Q; ++s) added[s] = draw(0, 3) ? draw_number() : -INFINITY;
  std::vector<T> keys(n * D), values(n * D);
  for (int64_t i = 0; i < n * D; ++i)
    if constexpr (std::is_same_v<T, Half>)
      keys[i] = half_of(k[i]), values[i] = half_of(v[i]);
    else
      keys[i] = k[i], values[i] = v[i];
  const Keys<T> those{keys.data(), values.data(), keys.data(), D, D, n};
  float out[2][Q][D];
  auto run = [&](const auto& from, float(&to)[Q][D]) {
    const float* asked[Q];
    float* rows[Q];
    for (int each = 0; each < Q; ++each) asked[each] = queries.data() + each * D, rows[each] = to[each];
    multiply_keys<N, Q>(asked, from, scores.data());
    mix_values<N, Q>(scores.data(), softmax_weights<Q>(scores.data(), n, added.data(), 0.3f), from, rows);
  };
  std::vector<float> wide(2 * n * D);
  run(those, out[0]);
  run(widen<N>(those, wide.data(), n), out[1]);
  for (int each = 0; each < Q; ++each) {
    std::vector<double> weights(n);
    double total = 0;
    for (int64_t s = 0; s < n; ++s) {
      for (int i = 0; i < D; ++i) weights[s] += static_cast<double>(queries[each * D + i]) * k[s * D + i];
      total += weights[s] = std::exp(weights[s] * 0.3f + added[s * Q + each]);
    }
    for (int i = 0; i < D; ++i) {
      double right = 0;
      for (int64_t s = 0; s < n; ++s) right += total == 0 ? 0 : weights[s] / total * v[s * D + i];
      for (auto& found : out)
        expect(std::fabs(found[each][i] - right) < 2e-5, "attention (D, Q, keys, query, place, found, right)", D, Q, n, each,
               i, found[each][i], right);
    }
  }
}

template <int D>
void check_heads() {
  constexpr int Q = kQueries<D / kTogether>;
  for (const int64_t n : {1, 2, 3, 7, 33}) {
    check_attention<D, 1, float>(n);
    check_attention<D, 1, Half>(n);
    check_attention<D, Q, float>(n);
    check_attention<D, Q, Half>(n);
  }
}

void check_choice(int64_t n) {
  std::vector<float> x(n), added(n);
  for (auto& number : x) number = static_cast<float>(draw(-9, 9));
  for (auto& number : added) number = draw(0, 4) ? 0.0f : -INFINITY;
  const int64_t first = std::max_element(x.begin(), x.end()) - x.begin();
  expect(best_of(x.data(), n) == first, "best token (tokens, found, right)", n, best_of(x.data(), n), first);
  double total = 0;
  for (const float number : x) total += std::exp(static_cast<double>(number));
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  auto score = [&](int64_t i) { return static_cast<float>(x[i] - std::log(total)) + added[i]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] + added[a] > x[b] + added[b]; });
  const int64_t count = draw(1, std::min<int64_t>(n, 64));
  const bool is_zero = std::all_of(added.begin(), added.end(), [](float number) { return number == 0; });
  std::vector<float> values(count);
  std::vector<int64_t> places(count);
  best_few_of(x.data(), added.data(), is_zero, n, {values.data(), places.data(), 0, count});
  for (int64_t i = 0; i < count && added[order[i]] == 0; ++i)
    expect(places[i] == order[i] && std::fabs(values[i] - score(order[i])) < 2e-5, "best tokens (tokens, rank, found, right)",
           n, i, places[i], order[i]);
  x[draw(0, n - 1)] = NAN;
  expect(std::isnan(x[best_of(x.data(), n)]), "NaN is the best token (tokens)", n);
  best_few_of(x.data(), added.data(), is_zero, n, {values.data(), places.data(), 0, count});
  expect(std::isnan(values[0]), "NaN in log-probabilities (tokens)", n);
}

// Group-wise products of whole numbers: activations whose largest magnitude is 127 in every group, scales 1/2 and minimums
// that are whole, so that every float is exact. Rows have the same result alone and together, and can be read back.
void check_groupwise(int64_t bits, bool has_mins, int64_t m, int64_t n, int64_t k, bool extreme) {
  const groupwise::Shape shape{n, k, bits, has_mins, false};
  const int64_t groups = shape.groups(), padded_k = groups * groupwise::kGroup;
  const int64_t least = bits == 8 ? -128 : has_mins ? 0 : -8, most = least + (1 << bits) - 1;
  std::vector<int8_t> codes(n * padded_k);
  for (auto& code : codes) code = static_cast<int8_t>(extreme ? (draw(0, 9) ? least : most) : draw(least, most));
  std::vector<float> scales(n * groups), mins(n * groups), bias(n), x(m * k), y(m * n), alone(n), row(k);
  for (auto& scale : scales) scale = static_cast<float>(draw(1, 4)) / 2;
  for (auto& min : mins) min = static_cast<float>(draw(-3, 3));
  for (auto& number : bias) number = static_cast<float>(draw(-9, 9));
  for (auto& number : x) number = static_cast<float>(extreme ? (draw(0, 9) ? 127 : -127) : draw(-127, 127));
  for (int64_t r = 0; r < m; ++r)
    for (int64_t g = 0; g < groups; ++g) x[r * k + g * groupwise::kGroup] = draw(0, 1) ? 127.0f : -127.0f;
  std::vector<uint8_t> packed(shape.bytes());
  auto bytes_of = [](const std::vector<float>& numbers, int64_t place) {
    return reinterpret_cast<const uint8_t*>(numbers.data() + place);
  };
  for (int64_t c = 0; c < n; ++c)
    groupwise::pack_row(shape, c, codes.data() + c * padded_k, bytes_of(scales, c * groups), bytes_of(mins, c * groups),
                        packed.data());
  groupwise::multiply(shape, x.data(), m, packed.data(), bias.data(), 1, y.data());
  auto weight = [&](int64_t c, int64_t i) {
    const int64_t group = c * groups + i / groupwise::kGroup;
    return scales[group] * codes[c * padded_k + i] + (has_mins ? mins[group] : 0.0f);
  };
  for (int64_t c = 0; c < n; ++c) {
    groupwise::read_row(shape, packed.data(), c, row.data());
    for (int64_t i = 0; i < k; ++i)
      expect(row[i] == weight(c, i), "group-wise row (bits, channel, place, found, right)", bits, c, i, row[i], weight(c, i));
  }
  for (int64_t r = 0; r < m; ++r) {
    groupwise::multiply(shape, x.data() + r * k, 1, packed.data(), bias.data(), 1, alone.data());
    for (int64_t c = 0; c < n; ++c) {
      double right = bias[c], size = 1;
      for (int64_t i = 0; i < k; ++i) right += static_cast<double>(x[r * k + i]) * weight(c, i), size += std::fabs(weight(c, i));
      expect(alone[c] == y[r * n + c], "a row alone and in a batch (bits, rows, row, channel)", bits, m, r, c);
      expect(std::fabs(y[r * n + c] - right) < 1e-4 * size, "group-wise sums (bits, mins, m, n, k, row, channel, found, right)",
             bits, has_mins, m, n, k, r, c, y[r * n + c], right);
    }
  }
}

// Norms, gates and rotations of a row of n numbers, and whether they write beyond its end.
void check_row(int64_t n) {
  std::vector<float> x(n), more(n), weight(n), bias(n), y(n + 1, 99.0f);
  for (auto* some : {&x, &more, &weight, &bias})
    for (auto& number : *some) number = draw_number();
  double square = 0, mean = 0, variance = 0;
  for (const float number : x) square += static_cast<double>(number) * number / n, mean += static_cast<double>(number) / n;
  for (const float number : x) variance += (number - mean) * (number - mean) / n;
  auto compare = [&](const char* what, auto right) {
    for (int64_t i = 0; i < n; ++i)
      expect(std::fabs(y[i] - right(i)) < 1e-5 * (1 + std::fabs(right(i))), what, n, i, y[i], right(i));
    expect(y[n] == 99.0f, "a number after the end of a row was written (numbers)", n);
  };
  for (const bool is_affine : {false, true}) {
    auto by = [&](int64_t i) { return is_affine ? weight[i] : 1.0f; };
    rms_norm_row(x.data(), is_affine ? weight.data() : nullptr, 1e-3f, n, y.data());
    compare("RMS norm (numbers, place, found, right)", [&](int64_t i) { return x[i] / std::sqrt(square + 1e-3) * by(i); });
    layer_norm_row(x.data(), is_affine ? weight.data() : nullptr, is_affine ? bias.data() : nullptr, 1e-3f, n, y.data());
    compare("layer norm (numbers, place, found, right)", [&](int64_t i) {
      return (x[i] - mean) / std::sqrt(variance + 1e-3) * by(i) + (is_affine ? bias[i] : 0.0f);
    });
  }
  silu_gate_row(x.data(), more.data(), n, y.data());
  auto silu = [](double number) { return number / (1 + std::exp(-number)); };
  compare("gate (numbers, place, found, right)", [&](int64_t i) { return silu(x[i]) * more[i]; });
  if (n % 2) return;
  const int64_t half = n / 2;
  rotate_row(x.data(), weight.data(), bias.data(), half, y.data());
  compare("rotation (numbers, place, found, right)", [&](int64_t i) {
    return i < half ? double(x[i]) * weight[i] - double(x[i + half]) * bias[i]
                    : double(x[i]) * weight[i - half] + double(x[i - half]) * bias[i - half];
  });
}

// Attention of one sequence in training: T queries and S keys, whose last one stands at the last query.
struct TrainingCase {
  int64_t t, s, heads, groups, width, norm, pairs;
  bool causal;
};

using Reals = std::vector<double>;

Reals draw_reals(int64_t n) {
  Reals found(n);
  for (double& number : found) number = draw_number();
  return found;
}

std::vector<float> floats_of(const Reals& x) { return {x.begin(), x.end()}; }

// Return a row of a head, normalized and rotated, by plain loops.
Reals prepared_row(const TrainingCase& c, const double* x, const double* weight, const double* bias, const double* cos,
                     const double* sin) {
  Reals y(x, x + c.width);
  if (c.norm != kNoNorm) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < c.width && c.norm == kLayerNorm; ++i) mean += x[i] / c.width;
    for (int64_t i = 0; i < c.width; ++i) square += (x[i] - mean) * (x[i] - mean) / c.width;
    for (int64_t i = 0; i < c.width; ++i) y[i] = (x[i] - mean) / std::sqrt(square + 1e-3) * weight[i] + bias[i];
  }
  for (int64_t i = 0; i < c.pairs; ++i) {
    const double first = y[i], second = y[i + c.pairs];
    y[i] = first * cos[i] - second * sin[i];
    y[i + c.pairs] = second * cos[i] + first * sin[i];
  }
  return y;
}

// Return the attention (T, H * D) of queries (T, H * D) to keys and values (S, G * D), by plain loops. `params` are the
// weights and biases of the norms of queries and keys, (4, D).
Reals plain_attention(const TrainingCase& c, const Reals& q, const Reals& k, const Reals& v, const Reals& params,
                        const Reals& cos, const Reals& sin, const std::vector<uint8_t>& real) {
  Reals out(c.t * c.heads * c.width);
  for (int64_t h = 0; h < c.heads; ++h)
    for (int64_t t = 0; t < c.t; ++t) {
      const int64_t g = h / (c.heads / c.groups), place = (t * c.heads + h) * c.width;
      const Reals query = prepared_row(c, &q[place], &params[0], &params[c.width], &cos[t * c.pairs], &sin[t * c.pairs]);
      Reals scores(c.s, -INFINITY);
      for (int64_t s = 0; s < c.s; ++s) {
        if (!real[s] || (c.causal && s > t + c.s - c.t)) continue;
        const double *weight = &params[2 * c.width], *row = &k[(s * c.groups + g) * c.width];
        const int64_t angle = c.pairs ? s * c.pairs : 0;
        const Reals key = prepared_row(c, row, weight, weight + c.width, &cos[angle], &sin[angle]);
        scores[s] = 0.05 * std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
      }
      const double best = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& score : scores) total += score = score == -INFINITY ? 0 : std::exp(score - best);
      for (int64_t s = 0; s < c.s && total > 0; ++s)
        for (int64_t i = 0; i < c.width; ++i) out[place + i] += scores[s] / total * v[(s * c.groups + g) * c.width + i];
    }
  return out;
}

// The result equals that of plain loops, and the gradients equal the slope of plain loops in a random direction.
void check_training_attention(const TrainingCase& c) {
  const int64_t n_q = c.t * c.heads * c.width, n_k = c.s * c.groups * c.width, angles = std::max<int64_t>(1, c.t * c.pairs);
  const Reals q = draw_reals(n_q), k = draw_reals(n_k), v = draw_reals(n_k), params = draw_reals(4 * c.width);
  const Reals cos = draw_reals(angles), sin = draw_reals(angles), of_out = draw_reals(n_q);
  std::vector<uint8_t> real(c.s);
  for (uint8_t& is_real : real) is_real = draw(0, 3) > 0;
  const auto fq = floats_of(q), fk = floats_of(k), fv = floats_of(v), fp = floats_of(params), fo = floats_of(of_out);
  const auto fc = floats_of(cos), fs = floats_of(sin);
  std::vector<float> out(n_q + 1, 99.0f), of_q(n_q + 1, 99.0f), of_k(n_k + 1, 99.0f), of_v(n_k + 1, 99.0f);
  std::vector<float> of_norms(c.groups * 4 * c.width);
  AttentionCall call = {};
  call.batch = 1, call.n_queries = c.t, call.n_keys = c.s, call.n_heads = c.heads, call.n_groups = c.groups;
  call.head_dim = c.width, call.norm = c.norm, call.eps = 1e-3, call.n_pairs = c.pairs;
  const float* norms = c.norm == kNoNorm ? nullptr : fp.data();
  auto part = [&](int64_t i) { return norms ? norms + i * c.width : nullptr; };
  call.q = {fq.data(), n_q, c.heads * c.width, part(0), part(1)};
  call.k = {fk.data(), n_k, c.groups * c.width, part(2), part(3)};
  call.v = {fv.data(), n_k, c.groups * c.width, nullptr, nullptr};
  if (c.pairs) call.cos = fc.data(), call.sin = fs.data();
  call.real = real.data(), call.causal = c.causal, call.scale = 0.05, call.out = out.data(), call.of_out = fo.data();
  call.of_q = of_q.data(), call.of_k = of_k.data(), call.of_v = of_v.data(), call.of_norms = of_norms.data();
  AttentionWorkspace workspace(call);
  for (int64_t g = 0; g < c.groups; ++g) workspace.forward(0, g), workspace.backward(0, g);
  const Reals right = plain_attention(c, q, k, v, params, cos, sin, real);
  for (int64_t i = 0; i < n_q; ++i)
    expect(std::fabs(out[i] - right[i]) < 1e-4 * (1 + std::fabs(right[i])), "training attention (place, found, right)", i,
           out[i], right[i]);
  for (const auto* some : {&out, &of_q, &of_k, &of_v})
    expect(some->back() == 99.0f, "training attention wrote beyond the end (queries, keys)", c.t, c.s);
  const Reals by_q = draw_reals(n_q), by_k = draw_reals(n_k), by_v = draw_reals(n_k), by_p = draw_reals(4 * c.width);
  auto moved = [&](double step) {
    auto add = [&](const Reals& x, const Reals& by) {
      Reals y = x;
      for (size_t i = 0; i < x.size(); ++i) y[i] += step * by[i];
      return y;
    };
    const Reals found = plain_attention(c, add(q, by_q), add(k, by_k), add(v, by_v), add(params, by_p), cos, sin, real);
    return std::inner_product(found.begin(), found.end(), of_out.begin(), 0.0);
  };
  double slope = 0, size = 1;
  auto add_product = [&](const Reals& by, const float* gradient) {
    for (size_t i = 0; i < by.size(); ++i) slope += by[i] * gradient[i], size += std::fabs(by[i] * gradient[i]);
  };
  add_product(by_q, of_q.data()), add_product(by_k, of_k.data()), add_product(by_v, of_v.data());
  for (int64_t g = 0; g < c.groups && norms; ++g) add_product(by_p, &of_norms[g * 4 * c.width]);
  const double expected = (moved(1e-6) - moved(-1e-6)) / 2e-6;
  expect(std::fabs(slope - expected) < 1e-4 * size, "gradient of training attention (found, right)", slope, expected);
}

// Cross-entropy and its gradient, the gradient of a gate, and dropout, of n numbers.
void check_training_rows(int64_t n) {
  const Reals x = draw_reals(n), more = draw_reals(n), upstream = draw_reals(n);
  std::vector<float> logits = floats_of(x);
  logits.push_back(99.0f);
  double total = 0, mean = 0;
  for (const double number : x) total += std::exp(number), mean += number / n;
  const int64_t target = draw(0, n - 1);
  const float loss = cross_entropy_row(logits.data(), n, target, 0.1f);
  const double right = std::log(total) - 0.9 * x[target] - 0.1 * mean;
  expect(std::fabs(loss - right) < 1e-4 * (1 + std::fabs(right)), "cross-entropy (numbers, found, right)", n, loss, right);
  for (int64_t i = 0; i < n; ++i) {
    const double gradient = std::exp(x[i]) / total - 0.1 / n - (i == target ? 0.9 : 0.0);
    expect(std::fabs(logits[i] - gradient) < 1e-5, "gradient of cross-entropy (place, found, right)", i, logits[i], gradient);
  }
  expect(logits[n] == 99.0f, "cross-entropy wrote beyond the end of a row (numbers)", n);
  const auto gate = floats_of(x), up = floats_of(more), of_hidden = floats_of(upstream);
  std::vector<float> of_gate(n + 1, 99.0f), of_up(n + 1, 99.0f);
  silu_gate_gradient(of_hidden.data(), gate.data(), up.data(), n, of_gate.data(), of_up.data());
  for (int64_t i = 0; i < n; ++i) {
    const double s = 1 / (1 + std::exp(-x[i])), by_gate = upstream[i] * more[i] * s * (1 + x[i] * (1 - s));
    expect(std::fabs(of_gate[i] - by_gate) < 1e-4 && std::fabs(of_up[i] - upstream[i] * x[i] * s) < 1e-4,
           "gradient of a gate (place, found, right)", i, of_gate[i], by_gate);
  }
  expect(of_gate[n] == 99.0f && of_up[n] == 99.0f, "the gradient of a gate was written beyond the end (numbers)", n);
  const uint64_t seed = static_cast<uint64_t>(draw(0, 1 << 30)) << 20;
  std::vector<float> dropped(n + 1, 99.0f);
  const int64_t first = draw(0, 5 * kPart);
  drop_numbers(gate.data(), first, n, seed, 1u << 31, 2.0f, dropped.data());
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t place = first + i, part = place / kPart;
    const uint32_t low = mixed_bits(static_cast<uint32_t>(seed) + mixed_bits(static_cast<uint32_t>(part)));
    const uint32_t high = mixed_bits(static_cast<uint32_t>(seed >> 32) ^ mixed_bits(low));
    const bool is_kept = mixed_bits(mixed_bits(static_cast<uint32_t>(place % kPart * 0x9e3779b9u + low)) + high) >> 31 != 0;
    expect(dropped[i] == (is_kept ? 2.0f * gate[i] : 0.0f), "dropout (place, found, input)", i, dropped[i], gate[i]);
  }
  expect(dropped[n] == 99.0f, "dropout wrote beyond the end (numbers)", n);
}

// The norm of a residual sum, and its gradients: the derivative along a random direction is that of plain loops.
void check_residual_norm(int64_t rows, int64_t n, int64_t norm, bool has_branch, bool drops) {
  const Reals x = draw_reals(rows * n), branch = draw_reals(rows * n), weight = draw_reals(n), bias = draw_reals(n);
  const Reals upstream = draw_reals(rows * n), passed = draw_reals(rows * n);
  const auto xs = floats_of(x), branches = floats_of(branch), weights = floats_of(weight), biases = floats_of(bias);
  const auto of_y = floats_of(upstream), others = floats_of(passed);
  std::vector<float> total(rows * n + 1, 99.0f), y = total, of_total = total, of_branch = total, kept(rows * n, 1.0f);
  std::vector<float> sums((rows + 2) / 3 * 2 * n + 1, 99.0f);
  NormCall call{};
  call.rows = rows, call.width = n, call.norm = norm, call.eps = 0.5;
  call.x = xs.data(), call.branch = has_branch ? branches.data() : nullptr;
  call.seed = 7, call.limit = drops ? 1u << 30 : 0, call.factor = 1.5;
  call.weight = weights.data(), call.bias = biases.data(), call.total = total.data(), call.y = y.data();
  for (int64_t r = 0; r < rows; ++r) add_and_normalize_row(call, r);
  call.of_y = of_y.data(), call.of_residual = others.data(), call.of_total = of_total.data();
  call.of_branch = has_branch ? of_branch.data() : nullptr;
  std::fill(sums.begin(), sums.end() - 1, 0.0f);
  for (int64_t r = 0; r < rows; ++r) norm_row_gradient(call, r, sums.data() + r / 3 * 2 * n);
  for (const auto* some : {&total, &y, &of_total, &of_branch, &sums})
    expect(some->back() == 99.0f, "a norm was written beyond the end (rows, width)", rows, n);
  drop_numbers(kept.data(), 0, rows * n, call.seed, call.limit, call.factor, kept.data());
  const Reals by_x = draw_reals(rows * n), by_branch = draw_reals(rows * n), by_weight = draw_reals(n), by_bias = draw_reals(n);
  auto value = [&](double step) {
    double found = 0;
    for (int64_t r = 0; r < rows; ++r) {
      Reals row(n);
      double mean = 0, square = 0;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = r * n + i;
        row[i] = x[at] + step * by_x[at] + (has_branch ? kept[at] * (branch[at] + step * by_branch[at]) : 0.0);
        found += passed[at] * row[i], mean += norm == kLayerNorm ? row[i] / n : 0.0;
      }
      for (const double number : row) square += (number - mean) * (number - mean) / n;
      for (int64_t i = 0; i < n; ++i) {
        const double normal = (row[i] - mean) / std::sqrt(square + 0.5) * (weight[i] + step * by_weight[i]) + bias[i] + step * by_bias[i];
        if (step == 0)
          expect(std::fabs(y[r * n + i] - normal) < 1e-3, "norm of a sum (place, found, right)", i, y[r * n + i], normal);
        found += upstream[r * n + i] * normal;
      }
    }
    return found;
  };
  value(0);
  double slope = 0, size = 1;
  auto add = [&](double by, double gradient) { slope += by * gradient, size += std::fabs(by * gradient); };
  for (int64_t at = 0; at < rows * n; ++at) {
    add(by_x[at], of_total[at]);
    if (has_branch) add(by_branch[at], of_branch[at]);
  }
  for (size_t part = 0; part + 1 < sums.size(); part += 2 * n)
    for (int64_t i = 0; i < n; ++i) add(by_weight[i], sums[part + i]), add(by_bias[i], sums[part + n + i]);
  const double expected = (value(1e-6) - value(-1e-6)) / 2e-6;
  expect(std::fabs(slope - expected) < 1e-3 * size, "gradient of a norm (found, right)", slope, expected);
}

#if defined(__AMX_BF16__)
double rounded(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), odd = bits >> 16 & 1;
  return std::bit_cast<float>((bits + 0x7fff + odd) & 0xffff0000);
}

// Linear layers of the same rows, and their gradients, by tiles of bfloat16 numbers.
void check_products(int64_t rows, int64_t n_in, std::vector<int64_t> widths, bool adds) {
  const auto x = floats_of(draw_reals(rows * n_in));
  LinearCall call{x.data(), nullptr, rows, n_in, static_cast<int64_t>(widths.size()), adds, 1, {}};
  std::vector<std::vector<float>> weights, biases, outs, of_outs, of_weights, of_biases;
  for (const int64_t n : widths) {
    weights.push_back(floats_of(draw_reals(n * n_in))), biases.push_back(floats_of(draw_reals(n)));
    of_outs.push_back(floats_of(draw_reals(rows * n)));
    outs.emplace_back(rows * n + 1, 99.0f), of_weights.emplace_back(n * n_in + 1, 99.0f), of_biases.emplace_back(n + 1, 99.0f);
  }
  for (size_t p = 0; p < widths.size(); ++p)
    call.parts[p] = {weights[p].data(), biases[p].data(), outs[p].data(), of_outs[p].data(), of_weights[p].data(), of_biases[p].data(), widths[p]};
  TileMemory memory;
  expect(Linears(call).forward(), "no memory for tiles");
  std::vector<float> of_x(rows * n_in + 1, 99.0f);
  call.of_x = of_x.data();
  expect(Linears(call).backward(memory), "no memory for tiles");
  const double before = adds ? 99 : 0;
  for (size_t p = 0; p < widths.size(); ++p) {
    const int64_t n = widths[p];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = 0; o < n; ++o) {
        double right = biases[p][o];
        for (int64_t i = 0; i < n_in; ++i) right += rounded(x[r * n_in + i]) * rounded(weights[p][o * n_in + i]);
        expect(std::fabs(outs[p][r * n + o] - right) < 1e-3, "product of rows (row, column, found, right)", r, o, outs[p][r * n + o], right);
      }
    for (int64_t o = 0; o < n; ++o) {
      double sum = before;
      for (int64_t r = 0; r < rows; ++r) sum += of_outs[p][r * n + o];
      expect(std::fabs(of_biases[p][o] - sum) < 1e-3, "gradient of a bias (place, found, right)", o, of_biases[p][o], sum);
      for (int64_t i = 0; i < n_in; ++i) {
        double right = before;
        for (int64_t r = 0; r < rows; ++r) right += rounded(of_outs[p][r * n + o]) * rounded(x[r * n_in + i]);
        expect(std::fabs(of_weights[p][o * n_in + i] - right) < 1e-3, "gradient of a weight (row, column, found, right)", o, i,
               of_weights[p][o * n_in + i], right);
      }
    }
    expect(outs[p].back() == 99 && of_weights[p].back() == 99 && of_biases[p].back() == 99, "a product wrote beyond the end");
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n_in; ++i) {
      double right = 0;
      for (size_t p = 0; p < widths.size(); ++p)
        for (int64_t o = 0; o < widths[p]; ++o) right += rounded(of_outs[p][r * widths[p] + o]) * rounded(weights[p][o * n_in + i]);
      expect(std::fabs(of_x[r * n_in + i] - right) < 1e-3, "gradient of rows (row, column, found, right)", r, i, of_x[r * n_in + i], right);
    }
  expect(of_x.back() == 99, "the gradient of rows was written beyond the end");
}
#endif

// Keep the first tokens of an order until their weights reach `limit`, and those that equal the last one if asked.
void keep_sorted(const std::vector<double>& keys, std::vector<double>& weights, const std::vector<double>& amounts,
                 double limit, bool keeps_equal) {
  std::vector<int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
  double sum = 0;
  size_t last = 0;
  while (last + 1 < order.size() && (sum += amounts[order[last]]) < limit) ++last;
  for (size_t i = last + 1; i < order.size(); ++i)
    if (!keeps_equal || keys[order[i]] > keys[order[last]]) weights[order[i]] = 0;
}

// Many logits are equal or minus infinity. The limits are between the sums that whole groups of equal logits can have.
void check_sampling(int64_t n, bool is_even, SamplingSettings settings) {
  std::vector<float> x(n);
  for (auto& number : x) number = is_even ? 1.5f : draw(0, 3) ? draw_number() : draw(0, 1) ? 0.25f : -INFINITY;
  x[draw(0, n - 1)] = 4.5f;
  std::vector<double> weights(n), keys(n);
  for (int64_t i = 0; i < n; ++i) weights[i] = std::exp((x[i] - 4.5) / settings.temperature), keys[i] = -x[i];
  auto total = [&] { return std::accumulate(weights.begin(), weights.end(), 0.0); };
  if (settings.top_k > 0) keep_sorted(keys, weights, std::vector<double>(n, 1.0), settings.top_k, true);
  if (settings.top_p < 1) keep_sorted(keys, weights, weights, settings.top_p * total(), false);
  for (auto& weight : weights) weight = weight < settings.min_p ? 0 : weight;
  if (settings.typical_p < 1) {
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) mean += weights[i] > 0 ? weights[i] * x[i] / total() : 0;
    for (int64_t i = 0; i < n; ++i) keys[i] = weights[i] > 0 ? std::fabs(x[i] - mean) : INFINITY;
    keep_sorted(keys, weights, weights, settings.typical_p * total(), true);
  }
  TokenSampler sampler;
  const float* found = sampler.filter(x.data(), n, settings);
  for (int64_t i = 0; i < n; ++i)
    expect(std::fabs(found[i] - weights[i]) <= 1e-5 * weights[i], "weight (n, k, p, typical p, token, found, right)", n,
           settings.top_k, settings.top_p, settings.typical_p, i, found[i], weights[i]);
  double end = 0;
  for (int64_t i = 0; i < n; ++i) {
    end += weights[i] / total();
    if (weights[i] < 1e-3 * total()) continue;
    const int64_t token = sampler.draw(x.data(), n, settings, end - 0.5 * weights[i] / total());
    expect(token == i, "drawn token (n, found, right)", n, token, i);
  }
  x[draw(0, n - 1)] = NAN;
  const int64_t token = sampler.draw(x.data(), n, settings, 0.5);
  expect(0 <= token && token < n, "a token of logits with NaN (n, found)", n, token);
}

int main() {
  for (const int64_t n : {1, 2, 3, 15, 17, 33, 511, 512, 513, 1500})
    for (const bool is_even : {false, true}) {
      check_sampling(n, is_even, {1, 0, 1, 0, 1});
      check_sampling(n, is_even, {0.7, 7, 1, 0, 1});
      check_sampling(n, is_even, {1.3, 0, 0.50030011, 0, 1});
      check_sampling(n, is_even, {1, 40, 0.90710017, 0.0371, 1});
      check_sampling(n, is_even, {1, 0, 1, 0, 0.90710017});
      check_sampling(n, is_even, {0.9, 0, 0.9990013, 0, 0.30110013});
    }
  for (const int64_t bits : {4, 8})
    for (const bool has_mins : {false, true})
      for (const bool extreme : {false, true}) {
        for (int64_t m = 1; m <= 9; ++m) check_groupwise(bits, has_mins, m, draw(1, 70), draw(1, 140), extreme);
        check_groupwise(bits, has_mins, 37, 45, 1100, extreme);  // more than one block of rows
      }
  for (int64_t m = 1; m <= 14; ++m) check_sums(m, draw(1, 70), draw(1, 140), m % 2 != 0);
  for (const int64_t m : {16, 17, 32, 33, 49}) check_sums(m, 33, 70, false);
  check_sums(37, 45, 260, true);
  check_sums(5, 33, 1000, true);
  for (const bool has_two_bytes : {false, true}) {
    check_rows(1, 9, 19, has_two_bytes);
    check_rows(37, 45, 263, has_two_bytes);
    check_rows(70, 21, 2100, has_two_bytes);  // more than one block of rows
  }
  check_two_bytes(1, 33, 70);
  check_two_bytes(17, 40, 140);
  check_two_bytes(300, 5, 33);  // more than one block of rows
  check_heads<16>();
  check_heads<32>();
  check_heads<64>();
  check_heads<128>();
  for (int64_t n = 1; n <= 300; n += 1 + n / 8) check_choice(n);
  for (int64_t n = 1; n <= 300; n += 1 + n / 16) check_row(n);
  for (int64_t n = 1; n <= 300; n += 1 + n / 16) check_training_rows(n);
#if defined(__AMX_BF16__)
  for (const int64_t rows : {1, 15, 16, 17, 32, 33, 50})
    for (const int64_t n_in : {1, 16, 33, 64}) {
      check_products(rows, n_in, {draw(1, 40)}, false);
      check_products(rows, n_in, {16, 5, 33, 32}, true);
    }
#endif
  for (const int64_t norm : {kLayerNorm, kRmsNorm})
    for (const int64_t width : {3, 16, 40, 67}) {
      check_residual_norm(4, width, norm, true, true);
      check_residual_norm(40, width, norm, true, true);  // more than one part of the random numbers
      check_residual_norm(5, width, norm, true, false);
      check_residual_norm(1, width, norm, false, false);
    }
  for (const int64_t norm : {kNoNorm, kLayerNorm, kRmsNorm})
    for (const int64_t width : {5, 8, 16, 40, 64})
      for (const bool causal : {false, true}) {
        check_training_attention({6, 6, 2, 2, width, norm, width / 2, causal});
        check_training_attention({1, 1, 1, 1, width, norm, 1, causal});
        check_training_attention({17, 17, 4, 2, width, norm, 2, causal});
        check_training_attention({7, 19, 3, 1, width, norm, 0, causal});
        check_training_attention({9, 4, 2, 2, width, norm, 0, causal});
      }
  std::printf("ok\n");
}
