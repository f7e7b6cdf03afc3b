// Norms in training, forward and backward: of the heads in `training_attention.h`, and of whole rows with the residual sum
// and dropout before them. Whole rows are read and written once; what is computed again for the gradient is in the caches.

constexpr int64_t kNoNorm = 0, kLayerNorm = 1, kRmsNorm = 2;

// The mean that a norm subtracts from a row, and the factor by which it multiplies.
struct RowScale {
  float mean, factor;
};

// Set all lanes but the first `count` to zero.
template <typename Count>
inline Numbers keep_part(const Numbers& x, Count count) {
  if (count >= kTogether) return x;
  float numbers[kTogether] = {};
  store_part(x, numbers, count);
  return load(numbers);
}

inline RowScale scale_of(const float* x, int64_t width, int64_t norm, double eps) {
  Numbers sum = {}, squares = {};
  if (norm == kLayerNorm) by_parts(width, [&](int64_t i, auto count) { sum += load_part(x + i, count); });
  const float mean = sum_of(sum) / width;
  by_parts(width, [&](int64_t i, auto count) {
    const Numbers centered = keep_part(load_part(x + i, count) - mean, count);
    squares += centered * centered;
  });
  return {mean, 1 / std::sqrt(sum_of(squares) / width + static_cast<float>(eps))};
}

// x (C) -> y (C), normalized, multiplied by `weight` and added to `bias` if they are given.
inline void normalize_row(const float* x, const RowScale& by, const float* weight, const float* bias, int64_t width, float* y) {
  by_parts(width, [&](int64_t i, auto count) {
    Numbers number = (load_part(x + i, count) - by.mean) * by.factor;
    if (weight) number *= load_part(weight + i, count);
    if (bias) number += load_part(bias + i, count);
    store_part(number, y + i, count);
  });
}

// Replace `of_y`, the gradient of a normalized row, by that of x, and add to the sums for weight and bias.
inline void normalize_gradient(const float* x, const RowScale& by, const float* weight, int64_t norm, int64_t width, float* of_y,
                               float* of_weight, float* of_bias) {
  Numbers sum = {}, product = {};
  by_parts(width, [&](int64_t i, auto count) {
    const Numbers normal = (load_part(x + i, count) - by.mean) * by.factor;
    Numbers gradient = load_part(of_y + i, count);
    store_part(load_part(of_weight + i, count) + gradient * normal, of_weight + i, count);
    store_part(load_part(of_bias + i, count) + gradient, of_bias + i, count);
    if (weight) gradient *= load_part(weight + i, count);
    store_part(gradient, of_y + i, count);
    sum += gradient, product += gradient * normal;  // the gradient is 0 beyond the end of the row
  });
  const float mean = norm == kLayerNorm ? sum_of(sum) / width : 0.0f, slope = sum_of(product) / width;
  by_parts(width, [&](int64_t i, auto count) {
    const Numbers normal = (load_part(x + i, count) - by.mean) * by.factor;
    store_part(by.factor * (load_part(of_y + i, count) - mean - normal * slope), of_y + i, count);
  });
}

// What a residual connection with a norm reads and writes: y = norm(x + dropout(branch)), for rows of `width` numbers.
// `cpu_norms.py` has the same fields in the same order.
struct NormCall {
  int64_t rows, width, norm;  // kLayerNorm or kRmsNorm
  double eps;
  const float *x, *branch;  // without a branch, the norm is that of x
  int64_t seed, limit;      // of dropout: an element is dropped if its random number is below `limit`
  double factor;            // of the elements that are kept
  const float *weight, *bias;  // of the norm; the bias may be missing
  float *total, *y;            // x + dropout(branch), missing without a branch, and its norm
  const float *of_y, *of_residual;  // gradients, from here on: that of the residual connection, which may be missing, is added
  float *of_total, *of_branch;  // of_branch may be missing
  float* sums;           // (rows / rows_per_sum, rounded up, 2, width): gradients of weight and bias
  int64_t rows_per_sum;  // fixed, so that results do not depend on the number of threads
  int64_t threads;
};

inline void add_row(const float* x, int64_t n, float* to) {
  by_parts(n, [&](int64_t i, auto count) { store_part(load_part(to + i, count) + load_part(x + i, count), to + i, count); });
}

// Normalize a row of a call.
inline void add_and_normalize_row(const NormCall& call, int64_t r) {
  const int64_t at = r * call.width;
  const float* row = call.x + at;
  if (call.branch) {
    drop_numbers(call.branch + at, at, call.width, call.seed, call.limit, call.factor, call.total + at);
    add_row(row, call.width, call.total + at);
    row = call.total + at;
  }
  normalize_row(row, scale_of(row, call.width, call.norm, call.eps), call.weight, call.bias, call.width, call.y + at);
}

// Compute the gradients of a row, and add those of weight and bias to two rows of sums.
inline void norm_row_gradient(const NormCall& call, int64_t r, float* sums) {
  const int64_t at = r * call.width;
  const float* row = (call.branch ? call.total : call.x) + at;
  float* of_total = call.of_total + at;
  std::copy_n(call.of_y + at, call.width, of_total);
  const RowScale scale = scale_of(row, call.width, call.norm, call.eps);
  normalize_gradient(row, scale, call.weight, call.norm, call.width, of_total, sums, sums + call.width);
  if (call.of_residual) add_row(call.of_residual + at, call.width, of_total);
  if (call.of_branch) drop_numbers(of_total, at, call.width, call.seed, call.limit, call.factor, call.of_branch + at);
}
