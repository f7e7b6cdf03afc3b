// Attention of a few queries over the filled part of a cache, for one batch row and head. torch's attention kernels read
// the whole cache and are made for many queries.

// Keys and values of one row and head. `next` points to the keys of the next head, which are prefetched.
template <typename T>
struct Keys {
  const T *k, *v, *next;
  int64_t k_step, v_step, n;
};

// Prefetch one head of a key or value. The filled parts of a cache are not contiguous, so hardware prefetching fails.
template <int N, typename T>
inline void fetch(const T* head) {
  constexpr int64_t line = 64 / sizeof(T);
  for (int64_t i = 0; i < N * kTogether; i += line) __builtin_prefetch(head + i);
}

// How many queries are processed together over the same keys. Each takes N registers; together at most half of them.
template <int N>
constexpr int kQueries = N <= kRegisters / 8 ? 4 : N <= kRegisters / 4 ? 2 : 1;

// Compute the dot products of Q queries with each key; the Q products of one key are adjacent. A head takes N registers.
// Four independent sums hide the latency. The last key is repeated where the number of keys is no multiple of 4 / Q.
template <int N, int Q, typename T>
void multiply_keys(const float* const (&q)[Q], const Keys<T>& keys, float* scores) {
  constexpr int K = 4 / Q;
  Numbers asked[Q][N];
  for (int each = 0; each < Q; ++each)
    for (int i = 0; i < N; ++i) asked[each][i] = load(q[each] + i * kTogether);
  for (int64_t s = 0; s < keys.n; s += K) {
    const T* k[K];
    for (int key = 0; key < K; ++key) {
      const int64_t place = std::min(s + key, keys.n - 1);
      k[key] = keys.k + place * keys.k_step;
      fetch<N>(keys.v + place * keys.v_step);
    }
    Numbers sums[4] = {};
    for (int i = 0; i < N; ++i)
      for (int key = 0; key < K; ++key) {
        const Numbers some = load(k[key] + i * kTogether);
        for (int each = 0; each < Q; ++each) sums[key * Q + each] += asked[each][i] * some;
      }
    sums_of(sums, scores + s * Q);
  }
}

// Sum the values with the weights of each of Q queries, and multiply by the query's factor `by`. A head takes N registers.
template <int N, int Q, typename T>
void mix_values(const float* weights, const Each<Q>& by, const Keys<T>& keys, float* const (&out)[Q]) {
  Numbers mixed[Q][N] = {};
  for (int64_t s = 0; s < keys.n; ++s) {
    fetch<N>(keys.next + s * keys.k_step);
    for (int i = 0; i < N; ++i) {
      const Numbers some = load(keys.v + s * keys.v_step + i * kTogether);
      for (int each = 0; each < Q; ++each) mixed[each][i] += weights[s * Q + each] * some;
    }
  }
  for (int each = 0; each < Q; ++each) {
    for (Numbers& some : mixed[each]) some *= by[each];
    std::memcpy(out[each], mixed[each], sizeof(mixed[each]));
  }
}

// Turn the scores of Q queries into unnormalized softmax weights, in place. Return the factors that normalize them, 0 for
// a query that may attend to nothing. `added` is padded with minus infinity; both arrays have one register of padding.
template <int Q>
Each<Q> softmax_weights(float* scores, int64_t n, const float* added, float scale) {
  std::fill_n(scores + n * Q, kTogether, 0.0f);
  Numbers bests = load(added + n * Q), totals = {};
  for (int64_t s = 0; s < n * Q; s += kTogether) {
    const Numbers some = load(scores + s) * scale + load(added + s);
    std::memcpy(scores + s, &some, sizeof(some));
    bests = higher_of(bests, some);
  }
  Each<Q> anchors = max_of_each<Q>(bests);
  for (float& anchor : anchors) anchor = anchor == -INFINITY ? 0.0f : anchor;
  const Numbers below = repeat(anchors);
  for (int64_t s = 0; s < n * Q; s += kTogether) {
    const Numbers weights = exp_below(load(scores + s) - below);
    std::memcpy(scores + s, &weights, sizeof(weights));
    totals += weights;
  }
  Each<Q> by = sum_of_each<Q>(totals);
  for (float& total : by) total = total == 0 ? 0.0f : 1 / total;
  return by;
}

// Convert keys and values to floats once for all queries. `to` has space for `room` keys and `room` values.
template <int N, typename T>
Keys<float> widen(const Keys<T>& keys, float* to, int64_t room) {
  constexpr int64_t width = N * kTogether;
  float* values = to + room * width;
  for (int64_t s = 0; s < keys.n; ++s)
    for (int i = 0; i < N; ++i) {
      const Numbers k = load(keys.k + s * keys.k_step + i * kTogether), v = load(keys.v + s * keys.v_step + i * kTogether);
      std::memcpy(to + s * width + i * kTogether, &k, sizeof(k));
      std::memcpy(values + s * width + i * kTogether, &v, sizeof(v));
    }
  return {to, values, to, width, width, keys.n};  // `next` is the buffer itself: nothing has to be prefetched
}
