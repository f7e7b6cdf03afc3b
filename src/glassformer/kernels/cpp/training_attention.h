// Attention of short sequences in training, forward and backward, from projected rows to mixed rows. One call computes one
// key-value head of one sequence, with the query heads that read it, in the caches of one core.
//
// Queries and keys are normalized over the head and rotated here, if the model does so. The backward pass computes the
// attention weights again. Letters: B sequences, T queries, S keys, H heads, G key-value heads, D
// numbers per head, R of them rotated.

// The joined heads of all rows (B, T, H * D) that a linear layer has written, and the norm of each head.
struct ProjectedRows {
  const float* data;
  int64_t batch_step, row_step;
  const float *weight, *bias;  // of the norm, (D); each may be missing
};

// What the attention of a batch reads and writes. `cpu_training.py` has the same fields in the same order.
struct AttentionCall {
  int64_t batch, n_queries, n_keys, n_heads, n_groups, head_dim;
  ProjectedRows q, k, v;
  int64_t norm;  // of queries and keys: kNoNorm, kLayerNorm or kRmsNorm
  double eps;
  const float *cos, *sin;  // (B or 1, T, R / 2), or missing
  int64_t angle_step, n_pairs;  // distance of sequences in `cos` and `sin`, and R / 2
  const uint8_t* real;  // (B, S), 0 where a key is padding, or missing
  int64_t causal;
  double scale;
  float* out;  // (B, T, H * D)
  const float* of_out;  // gradients, from here on
  float *of_q, *of_k, *of_v;  // contiguous
  float* of_norms;  // (B * G, 4, D), sums for the weights and biases of the norms of queries and keys, or missing
  int64_t threads;
};

constexpr int64_t kNoNorm = 0, kLayerNorm = 1, kRmsNorm = 2;

inline int64_t padded(int64_t n) { return (n + kTogether - 1) / kTogether * kTogether; }
inline void store(Numbers x, float* to) { std::memcpy(to, &x, sizeof(x)); }

// Compute R rows and V registers of C = A B, or C += A B. A is read by `a_row` and `a_column`, so that it may be transposed.
template <int R, int V>
void multiply_block(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_step, float* c, int64_t c_step,
                    int64_t inner, bool adds) {
  Numbers sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = adds ? load(c + r * c_step + v * kTogether) : Numbers{};
  for (int64_t i = 0; i < inner; ++i) {
    Numbers some[V];
    for (int v = 0; v < V; ++v) some[v] = load(b + i * b_step + v * kTogether);
    for (int r = 0; r < R; ++r) {
      const float x = a[r * a_row + i * a_column];
      for (int v = 0; v < V; ++v) sums[r][v] += x * some[v];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(sums[r][v], c + r * c_step + v * kTogether);
}

// A matrix in memory, whose transpose has the steps exchanged.
struct Matrix {
  float* data;
  int64_t row, column;
  Matrix transposed() const { return {data, column, row}; }
};

constexpr int kBlockRows = 6;

// C (rows, width) = A (rows, inner) B (inner, width), or C += A B. Rows of B and C are contiguous and padded to whole
// registers.
template <int V>
void multiply_columns(const Matrix& a, const Matrix& b, const Matrix& c, int64_t rows, int64_t inner, bool adds) {
  for (int64_t r = 0; r < rows; r += kBlockRows) {
    const float* from = a.data + r * a.row;
    float* to = c.data + r * c.row;
    auto block = [&](auto count) {
      multiply_block<decltype(count)::value, V>(from, a.row, a.column, b.data, b.row, to, c.row, inner, adds);
    };
    switch (std::min<int64_t>(kBlockRows, rows - r)) {
      case 1: block(std::integral_constant<int, 1>()); break;
      case 2: block(std::integral_constant<int, 2>()); break;
      case 3: block(std::integral_constant<int, 3>()); break;
      case 4: block(std::integral_constant<int, 4>()); break;
      case 5: block(std::integral_constant<int, 5>()); break;
      default: block(std::integral_constant<int, kBlockRows>());
    }
  }
}

inline void multiply(const Matrix& a, const Matrix& b, const Matrix& c, int64_t rows, int64_t inner, int64_t width,
                     bool adds = false) {
  for (int64_t n = 0; n < width; n += 2 * kTogether) {
    const Matrix from{b.data + n, b.row, 1}, to{c.data + n, c.row, 1};
    if (n + kTogether < width)
      multiply_columns<2>(a, from, to, rows, inner, adds);
    else
      multiply_columns<1>(a, from, to, rows, inner, adds);
  }
}

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

// The memory of one thread.
class AttentionWorkspace {
 public:
  explicit AttentionWorkspace(const AttentionCall& call)
      : call_(call), keys_(padded(call.n_keys)), width_(padded(call.head_dim)), heads_per_key_head_(call.n_heads / call.n_groups) {
    const int64_t s = call.n_keys, t = call.n_queries, d = call.head_dim;
    numbers_.resize(4 * s * width_ + 2 * d * keys_ + 3 * t * width_ + 2 * t * keys_ + keys_);
    float* next = numbers_.data();
    auto take = [&](int64_t rows, int64_t columns) {
      const Matrix found{next, columns, 1};
      next += rows * columns;
      return found;
    };
    k_ = take(s, width_), v_ = take(s, width_), of_k_ = take(s, width_), of_v_ = take(s, width_);
    k_columns_ = take(d, keys_), v_columns_ = take(d, keys_);
    q_ = take(t, width_), of_q_ = take(t, width_), of_out_ = take(t, width_);
    weights_ = take(t, keys_), of_weights_ = take(t, keys_), key_mask_ = take(1, keys_).data;
  }

  void forward(int64_t b, int64_t g) {
    read_keys(b, g);
    for (int64_t h = g * heads_per_key_head_; h < (g + 1) * heads_per_key_head_; ++h) {
      compute_weights(b, h);
      multiply(weights_, v_, q_, call_.n_queries, call_.n_keys, width_);  // the queries are not needed any more
      for (int64_t t = 0; t < call_.n_queries; ++t) write_row(row(q_, t), place(call_.out, b, t, h));
    }
  }

  void backward(int64_t b, int64_t g) {
    const int64_t n_q = call_.n_queries, n_k = call_.n_keys, width = call_.head_dim;
    float* of_norms = nullptr;
    if (call_.norm != kNoNorm) {
      of_norms = call_.of_norms + (b * call_.n_groups + g) * 4 * width;
      std::fill_n(of_norms, 4 * width, 0.0f);
    }
    read_keys(b, g);
    transpose(v_, v_columns_);
    for (int64_t h = g * heads_per_key_head_; h < (g + 1) * heads_per_key_head_; ++h) {
      const bool adds = h > g * heads_per_key_head_;
      compute_weights(b, h);
      for (int64_t t = 0; t < n_q; ++t) read_row(place(call_.of_out, b, t, h), row(of_out_, t));
      multiply(weights_.transposed(), of_out_, of_v_, n_k, n_q, width_, adds);
      multiply(of_out_, v_columns_, of_weights_, n_q, width, keys_);
      for (int64_t t = 0; t < n_q; ++t) softmax_gradient(row(weights_, t), row(of_weights_, t));
      multiply(of_weights_.transposed(), q_, of_k_, n_k, n_q, width_, adds);
      multiply(of_weights_, k_, of_q_, n_q, n_k, width_);
      for (int64_t t = 0; t < n_q; ++t) rotate(b, t, -1.0f, row(of_q_, t));
      for (int64_t t = 0; t < n_q; ++t) {
        scale_row(row(of_q_, t));
        norm_gradient(call_.q, b, t, h, row(of_q_, t), of_norms);
        write_row(row(of_q_, t), place(call_.of_q, b, t, h));
      }
    }
    for (int64_t s = 0; s < n_k; ++s) rotate(b, s, -1.0f, row(of_k_, s));
    for (int64_t s = 0; s < n_k; ++s) {
      norm_gradient(call_.k, b, s, g, row(of_k_, s), of_norms ? of_norms + 2 * width : nullptr);
      write_row(row(of_k_, s), call_.of_k + ((b * n_k + s) * call_.n_groups + g) * width);
      write_row(row(of_v_, s), call_.of_v + ((b * n_k + s) * call_.n_groups + g) * width);
    }
  }

 private:
  static float* row(const Matrix& of, int64_t i) { return of.data + i * of.row; }

  template <typename Number>
  Number* place(Number* rows, int64_t b, int64_t t, int64_t h) const {
    return rows + ((b * call_.n_queries + t) * call_.n_heads + h) * call_.head_dim;
  }

  void scale_row(float* x) const {
    for (int64_t i = 0; i < width_; i += kTogether) store(load(x + i) * static_cast<float>(call_.scale), x + i);
  }

  // Copy a row of one head, and fill the last register with zeros. The same row of the next head is prefetched: its
  // distance from the rows above and below is too large for the hardware prefetcher.
  void read_row(const float* from, float* to) const {
    for (int64_t i = 0; i < call_.head_dim; i += 64 / sizeof(float)) __builtin_prefetch(from + call_.head_dim + i);
    by_parts(call_.head_dim, [&](int64_t i, auto count) { store(load_part(from + i, count), to + i); });
  }

  void write_row(const float* from, float* to) const {
    by_parts(call_.head_dim, [&](int64_t i, auto count) { store_part(load(from + i), to + i, count); });
  }

  const float* projected_row(const ProjectedRows& rows, int64_t b, int64_t t, int64_t h) const {
    return rows.data + b * rows.batch_step + t * rows.row_step + h * call_.head_dim;
  }

  // Read one query or key, normalized. It is rotated later, because a load that overlaps a store in part has to wait.
  void prepare(const ProjectedRows& rows, int64_t b, int64_t t, int64_t h, float* to) const {
    const float* x = projected_row(rows, b, t, h);
    read_row(x, to);
    if (call_.norm != kNoNorm)
      normalize_row(x, scale_of(x, call_.head_dim, call_.norm, call_.eps), rows.weight, rows.bias, call_.head_dim, to);
  }

  // Rotate the pairs (x[i], x[i + R / 2]) of a query or key by the angles of position t, or back.
  void rotate(int64_t b, int64_t t, float direction, float* x) const {
    if (!call_.cos) return;
    const int64_t n = call_.n_pairs, angle = b * call_.angle_step + t * n;
    by_parts(n, [&](int64_t i, auto count) {
      const Numbers first = load_part(x + i, count), second = load_part(x + n + i, count);
      const Numbers c = load_part(call_.cos + angle + i, count), s = load_part(call_.sin + angle + i, count) * direction;
      store_part(first * c - second * s, x + i, count);
      store_part(second * c + first * s, x + n + i, count);
    });
  }

  // Replace the gradient of a normalized query or key by that of the projected row. Add to the sums for the norm.
  void norm_gradient(const ProjectedRows& rows, int64_t b, int64_t t, int64_t h, float* of_row, float* of_norm) const {
    if (call_.norm == kNoNorm) return;
    const float* x = projected_row(rows, b, t, h);
    const RowScale by = scale_of(x, call_.head_dim, call_.norm, call_.eps);
    normalize_gradient(x, by, rows.weight, call_.norm, call_.head_dim, of_row, of_norm, of_norm + call_.head_dim);
  }

  void transpose(const Matrix& rows, const Matrix& columns) const {
    for (int64_t i = 0; i < call_.head_dim; ++i)
      for (int64_t s = call_.n_keys / 4 * 4; s < keys_; ++s)
        row(columns, i)[s] = s < call_.n_keys ? row(rows, s)[i] : 0.0f;
    for (int64_t s = 0; s + 4 <= call_.n_keys; s += 4) {
      const float *one = row(rows, s), *two = one + rows.row, *three = two + rows.row, *four = three + rows.row;
      float* to = columns.data + s;
      for (int64_t i = 0; i < call_.head_dim; ++i, to += columns.row) {
        const float values[4] = {one[i], two[i], three[i], four[i]};
        std::memcpy(to, values, sizeof(values));
      }
    }
  }

  // Read the keys and values of head g, and which keys are padding.
  void read_keys(int64_t b, int64_t g) {
    for (int64_t s = 0; s < call_.n_keys; ++s) {
      prepare(call_.k, b, s, g, row(k_, s));
      read_row(projected_row(call_.v, b, s, g), row(v_, s));
      key_mask_[s] = call_.real && !call_.real[b * call_.n_keys + s] ? -INFINITY : 0.0f;
    }
    for (int64_t s = 0; s < call_.n_keys; ++s) rotate(b, s, 1.0f, row(k_, s));
    std::fill(key_mask_ + call_.n_keys, key_mask_ + keys_, -INFINITY);
    transpose(k_, k_columns_);
  }

  // Compute the queries of head h, times the scale, and their attention weights. The weights of a fully masked query are 0.
  void compute_weights(int64_t b, int64_t h) {
    for (int64_t t = 0; t < call_.n_queries; ++t) {
      prepare(call_.q, b, t, h, row(q_, t));
      scale_row(row(q_, t));
    }
    for (int64_t t = 0; t < call_.n_queries; ++t) rotate(b, t, 1.0f, row(q_, t));
    multiply(q_, k_columns_, weights_, call_.n_queries, call_.head_dim, keys_);
    for (int64_t t = 0; t < call_.n_queries; ++t) {
      float* scores = row(weights_, t);
      const int64_t end = call_.causal ? std::max<int64_t>(0, t + 1 + call_.n_keys - call_.n_queries) : keys_;
      std::fill(scores + std::min(end, keys_), scores + keys_, -INFINITY);
      softmax(scores);
    }
  }

  void softmax(float* scores) const {
    Numbers best = load(scores) + load(key_mask_);
    for (int64_t s = kTogether; s < keys_; s += kTogether) best = higher_of(best, load(scores + s) + load(key_mask_ + s));
    const float highest = max_of(best), anchor = highest == -INFINITY ? 0.0f : highest;
    Numbers total = {};
    for (int64_t s = 0; s < keys_; s += kTogether) {
      const Numbers weight = exp_below(load(scores + s) + load(key_mask_ + s) - anchor);
      store(weight, scores + s);
      total += weight;
    }
    const float sum = sum_of(total), by = sum == 0 ? 0.0f : 1 / sum;
    for (int64_t s = 0; s < keys_; s += kTogether) store(load(scores + s) * by, scores + s);
  }

  // Replace the gradient of a row of weights by that of its scores.
  void softmax_gradient(const float* weights, float* gradient) const {
    Numbers total = {};
    for (int64_t s = 0; s < keys_; s += kTogether) total += load(weights + s) * load(gradient + s);
    const float mean = sum_of(total);
    for (int64_t s = 0; s < keys_; s += kTogether) store(load(weights + s) * (load(gradient + s) - mean), gradient + s);
  }

  const AttentionCall& call_;
  const int64_t keys_, width_, heads_per_key_head_;  // keys and numbers per head, padded to whole registers; query heads per head
  std::vector<float> numbers_;
  Matrix k_, v_, of_k_, of_v_, k_columns_, v_columns_, q_, of_q_, of_out_, weights_, of_weights_;
  float* key_mask_;  // 0 for keys that may be attended to, minus infinity for others
};
