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

inline int64_t padded(int64_t n) { return (n + kTogether - 1) / kTogether * kTogether; }

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

// A read-only matrix with the steps between its rows and columns. Its transpose swaps them.
struct MatrixView {
  const float* data;
  int64_t row, column;
  MatrixView transposed() const { return {data, column, row}; }
};

// A matrix that is written. Its rows are contiguous.
struct Matrix {
  float* data;
  int64_t row;
  operator MatrixView() const { return {data, row, 1}; }
};

constexpr int kBlockRows = 6;
constexpr int64_t kLineNumbers = 64 / sizeof(float);  // numbers in a cache line

// C (rows, width) = A (rows, inner) B (inner, width), or C += A B. Rows of B and C are contiguous and padded to whole
// registers.
template <int V>
void multiply_columns(const MatrixView& a, const MatrixView& b, const Matrix& c, int64_t rows, int64_t inner, bool adds) {
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

inline void multiply(const MatrixView& a, const MatrixView& b, const Matrix& c, int64_t rows, int64_t inner, int64_t width,
                     bool adds = false) {
  for (int64_t n = 0; n < width; n += 2 * kTogether) {
    const MatrixView from{b.data + n, b.row, 1};
    const Matrix to{c.data + n, c.row};
    if (n + kTogether < width)
      multiply_columns<2>(a, from, to, rows, inner, adds);
    else
      multiply_columns<1>(a, from, to, rows, inner, adds);
  }
}

// The memory of one thread.
class AttentionWorkspace {
 public:
  explicit AttentionWorkspace(const AttentionCall& call)
      : call_(call),
        keys_(padded(call.n_keys)),
        width_(padded(call.head_dim)),
        heads_per_key_head_(call.n_heads / call.n_groups),
        is_whole_(width_ == call.head_dim),
        is_plain_(is_whole_ && call.norm == kNoNorm && !call.cos) {
    const int64_t s = call.n_keys, t = call.n_queries;
    numbers_.resize(4 * s * width_ + 2 * width_ * keys_ + 3 * t * width_ + 2 * t * keys_ + 3 * keys_);
    float* next = numbers_.data();
    auto take = [&](int64_t rows, int64_t columns) {
      const Matrix found{next, columns};
      next += rows * columns;
      return found;
    };
    k_ = take(s, width_), v_ = take(s, width_), of_k_ = take(s, width_), of_v_ = take(s, width_);
    k_columns_ = take(width_, keys_), v_columns_ = take(width_, keys_);
    q_ = take(t, width_), of_q_ = take(t, width_), of_out_ = take(t, width_);
    weights_ = take(t, keys_), of_weights_ = take(t, keys_), key_mask_ = take(1, keys_).data, order_mask_ = take(2, keys_).data;
    std::fill(order_mask_ + keys_, order_mask_ + 2 * keys_, -INFINITY);
  }

  void forward(int64_t b, int64_t g) {
    read_keys(b, g);
    read_values(b, g);
    for (int64_t h = g * heads_per_key_head_; h < (g + 1) * heads_per_key_head_; ++h) {
      compute_weights(b, h);
      const Matrix heads = query_rows(call_.out, b, h), out = is_whole_ ? heads : of_q_;  // of_q_ has no other use here
      multiply(weights_, v_, out, call_.n_queries, call_.n_keys, width_);
      if (!is_whole_) write_rows(out, heads, call_.n_queries);
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
    read_values(b, g);
    transpose(v_, v_columns_);
    const Matrix k_heads = key_rows(call_.of_k, b, g), v_heads = key_rows(call_.of_v, b, g);
    const Matrix of_k = is_plain_ ? k_heads : of_k_, of_v = is_whole_ ? v_heads : of_v_;
    for (int64_t h = g * heads_per_key_head_; h < (g + 1) * heads_per_key_head_; ++h) {
      const bool adds = h > g * heads_per_key_head_;
      compute_weights(b, h);
      read_gradients(b, h);
      multiply(MatrixView(weights_).transposed(), of_out_, of_v, n_k, n_q, width_, adds);
      multiply(of_out_, v_columns_, of_weights_, n_q, width, keys_);
      for (int64_t t = 0; t < n_q; ++t) softmax_gradient(row(weights_, t), row(of_weights_, t));
      multiply(MatrixView(of_weights_).transposed(), q_, of_k, n_k, n_q, width_, adds);
      const Matrix q_heads = query_rows(call_.of_q, b, h), of_q = is_plain_ ? q_heads : of_q_;
      multiply(of_weights_, k_, of_q, n_q, n_k, width_);
      if (is_plain_) continue;
      undo_preparation(call_.q, b, h, n_q, of_q, of_norms);
      write_rows(of_q, q_heads, n_q);
    }
    if (!is_plain_) {
      undo_preparation(call_.k, b, g, n_k, of_k, of_norms ? of_norms + 2 * width : nullptr);
      write_rows(of_k, k_heads, n_k);
    }
    if (!is_whole_) write_rows(of_v, v_heads, n_k);
  }

 private:
  static float* row(const Matrix& of, int64_t i) { return of.data + i * of.row; }

  template <typename Number>
  Number* place(Number* rows, int64_t b, int64_t t, int64_t h) const {
    return rows + ((b * call_.n_queries + t) * call_.n_heads + h) * call_.head_dim;
  }

  // Where the rows of a head of queries, or of keys and values, are written.
  Matrix query_rows(float* rows, int64_t b, int64_t h) const { return {place(rows, b, 0, h), call_.n_heads * call_.head_dim}; }
  Matrix key_rows(float* rows, int64_t b, int64_t g) const {
    return {rows + (b * call_.n_keys * call_.n_groups + g) * call_.head_dim, call_.n_groups * call_.head_dim};
  }

  // Copy a row of one head, and fill the last register with zeros. The same row of the next head, `next` numbers further, is
  // prefetched: its distance from the rows above and below is too large for the hardware prefetcher.
  void read_row(const float* from, int64_t next, float* to) const {
    for (int64_t i = 0; i < call_.head_dim; i += kLineNumbers) __builtin_prefetch(from + next + i);
    by_parts(call_.head_dim, [&](int64_t i, auto count) { store(load_part(from + i, count), to + i); });
  }

  // Return the distance of a head from the next one of the same row, or, for the last one, of the next sequence.
  int64_t step_to_next(int64_t h, int64_t heads, int64_t batch_step) const {
    return h + 1 < heads ? call_.head_dim : batch_step - h * call_.head_dim;
  }

  void write_rows(const Matrix& from, const Matrix& to, int64_t n) const {
    for (int64_t r = 0; r < n; ++r)
      by_parts(call_.head_dim, [&](int64_t i, auto count) { store_part(load(row(from, r) + i), row(to, r) + i, count); });
  }

  const float* projected_row(const ProjectedRows& rows, int64_t b, int64_t t, int64_t h) const {
    return rows.data + b * rows.batch_step + t * rows.row_step + h * call_.head_dim;
  }

  // Read the queries or keys of a head, normalized and rotated. All of them are normalized first, because a load that
  // overlaps a store in part has to wait.
  void prepare(const ProjectedRows& rows, int64_t b, int64_t h, int64_t heads, int64_t n, const Matrix& to) const {
    const int64_t next = step_to_next(h, heads, rows.batch_step);
    for (int64_t t = 0; t < n; ++t) {
      const float* x = projected_row(rows, b, t, h);
      read_row(x, next, row(to, t));
      if (call_.norm != kNoNorm)
        normalize_row(x, scale_of(x, call_.head_dim, call_.norm, call_.eps), rows.weight, rows.bias, call_.head_dim, row(to, t));
    }
    if (call_.cos)
      for (int64_t t = 0; t < n; ++t) rotate(b, t, 1.0f, row(to, t));
  }

  // Replace the gradients of prepared queries or keys by those of the projected rows. Add to the sums for the norm.
  void undo_preparation(const ProjectedRows& rows, int64_t b, int64_t h, int64_t n, const Matrix& of, float* of_norm) const {
    if (call_.cos)
      for (int64_t t = 0; t < n; ++t) rotate(b, t, -1.0f, row(of, t));
    if (call_.norm == kNoNorm) return;
    for (int64_t t = 0; t < n; ++t) {
      const float* x = projected_row(rows, b, t, h);
      const RowScale by = scale_of(x, call_.head_dim, call_.norm, call_.eps);
      normalize_gradient(x, by, rows.weight, call_.norm, call_.head_dim, row(of, t), of_norm, of_norm + call_.head_dim);
    }
  }

  // Rotate the pairs (x[i], x[i + R / 2]) of a query or key by the angles of position t, or back.
  void rotate(int64_t b, int64_t t, float direction, float* x) const {
    const int64_t n = call_.n_pairs, angle = b * call_.angle_step + t * n;
    by_parts(n, [&](int64_t i, auto count) {
      const Numbers first = load_part(x + i, count), second = load_part(x + n + i, count);
      const Numbers c = load_part(call_.cos + angle + i, count), s = load_part(call_.sin + angle + i, count) * direction;
      store_part(first * c - second * s, x + i, count);
      store_part(second * c + first * s, x + n + i, count);
    });
  }

  // Write the transpose of the keys or values of a head. Columns beyond the last key are zeros.
  void transpose(const Matrix& rows, const Matrix& columns) const {
#if defined(__AVX512F__)
    for (int64_t s = 0; s < keys_; s += kTogether)
      for (int64_t i = 0; i < width_; i += kTogether) {
        __m512i block[kTogether] = {};
        for (int64_t r = 0; r < std::min<int64_t>(kTogether, call_.n_keys - s); ++r)
          block[r] = _mm512_loadu_si512(row(rows, s + r) + i);
        transpose_block(block);
        for (int64_t r = 0; r < kTogether; ++r) _mm512_storeu_si512(row(columns, i + r) + s, block[r]);
      }
#else
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
#endif
  }

  // Read the keys of head g, and which of them are padding.
  void read_keys(int64_t b, int64_t g) {
    prepare(call_.k, b, g, call_.n_groups, call_.n_keys, k_);
    transpose(k_, k_columns_);
    for (int64_t s = 0; s < call_.n_keys; ++s) key_mask_[s] = call_.real && !call_.real[b * call_.n_keys + s] ? -INFINITY : 0.0f;
    std::fill(key_mask_ + call_.n_keys, key_mask_ + keys_, -INFINITY);
  }

  void read_values(int64_t b, int64_t g) {
    const int64_t next = step_to_next(g, call_.n_groups, call_.v.batch_step);
    for (int64_t s = 0; s < call_.n_keys; ++s) read_row(projected_row(call_.v, b, s, g), next, row(v_, s));
  }

  void read_gradients(int64_t b, int64_t h) {
    const float* from = place(call_.of_out, b, 0, h);
    const int64_t step = call_.n_heads * call_.head_dim, next = step_to_next(h, call_.n_heads, call_.n_queries * step);
    for (int64_t t = 0; t < call_.n_queries; ++t) read_row(from + t * step, next, row(of_out_, t));
  }

  // Compute the queries of head h and their attention weights. The weights of a fully masked query are 0.
  void compute_weights(int64_t b, int64_t h) {
    prepare(call_.q, b, h, call_.n_heads, call_.n_queries, q_);
    multiply(q_, k_columns_, weights_, call_.n_queries, call_.head_dim, keys_);
    const int64_t first_end = call_.n_keys - call_.n_queries + 1;
    for (int64_t t = 0; t < call_.n_queries; ++t)
      softmax(row(weights_, t), call_.causal ? std::clamp<int64_t>(first_end + t, 0, keys_) : keys_);
  }

  // Replace the products of a query and the keys by attention weights. Only keys before `end` are attended to.
  void softmax(float* scores, int64_t end) const {
    const float* order = order_mask_ + keys_ - end;  // 0 before `end`, minus infinity from there on
    const float scale = static_cast<float>(call_.scale);
    Numbers best = Numbers{} - INFINITY, total = {};
    for (int64_t s = 0; s < keys_; s += kTogether) {
      const Numbers score = load(scores + s) * scale + load(key_mask_ + s) + load(order + s);
      store(score, scores + s);
      best = higher_of(best, score);
    }
    const float highest = max_of(best), anchor = highest == -INFINITY ? 0.0f : highest;
    for (int64_t s = 0; s < keys_; s += kTogether) {
      const Numbers weight = exp_below(load(scores + s) - anchor);
      store(weight, scores + s);
      total += weight;
    }
    const float sum = sum_of(total), by = sum == 0 ? 0.0f : 1 / sum;
    for (int64_t s = 0; s < keys_; s += kTogether) store(load(scores + s) * by, scores + s);
  }

  // Replace the gradient of a row of weights by that of the products of query and keys.
  void softmax_gradient(const float* weights, float* gradient) const {
    Numbers total = {};
    for (int64_t s = 0; s < keys_; s += kTogether) total += load(weights + s) * load(gradient + s);
    const float mean = sum_of(total), scale = static_cast<float>(call_.scale);
    for (int64_t s = 0; s < keys_; s += kTogether)
      store(load(weights + s) * (load(gradient + s) - mean) * scale, gradient + s);
  }

  const AttentionCall& call_;
  const int64_t keys_, width_;  // keys, and numbers per head, padded to whole registers
  const int64_t heads_per_key_head_;  // query heads per key-value head
  const bool is_whole_;  // rows of a head fill whole registers, so that results are written where they belong
  const bool is_plain_;  // also without norms and rotations, so that gradients of queries and keys are, too
  std::vector<float> numbers_;
  Matrix k_, v_, of_k_, of_v_, k_columns_, v_columns_, q_, of_q_, of_out_, weights_, of_weights_;
  float* key_mask_;    // 0 for keys that may be attended to, minus infinity for padding
  float* order_mask_;  // as many zeros as keys, then as many minus infinities
};
