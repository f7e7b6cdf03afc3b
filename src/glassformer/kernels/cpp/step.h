// Operations of a decoding step other than matrix products: attention over the filled part of a cache, and the reordering
// of its rows by a beam search. torch's attention kernels read the whole cache and are made for many queries.

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

// How many queries are processed together over the same keys. Each takes N registers.
template <int N>
constexpr int kQueries = N <= 4 ? 4 : N <= 8 ? 2 : 1;

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

// Attention of queries (B, H, T, D), Q at a time, over keys and values (B, G, S, D). Row b reads its first key_end[b] keys.
// `added` (B, H, T, S) is added to the scores.
template <int D, int Q, typename T>
void attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& added,
                const at::Tensor& key_end, float scale, at::Tensor& out) {
  constexpr int N = D / kTogether;
  const int64_t heads = q.size(1), queries = q.size(2), room = k.size(2);
  const int64_t served = heads / k.size(1);  // query heads per key-value head
  const float *q_data = q.const_data_ptr<float>(), *added_data = added.const_data_ptr<float>();
  const T *k_data = k.const_data_ptr<T>(), *v_data = v.const_data_ptr<T>();
  const int64_t* key_end_data = key_end.const_data_ptr<int64_t>();
  float* out_data = out.data_ptr<float>();
  const bool is_same_by_row = (heads == 1 || added.stride(1) == 0) && (queries == 1 || added.stride(2) == 0);
  const int64_t grain = 65536 / std::max<int64_t>(1, queries * D * room) + 1;  // enough work per thread
  at::parallel_for(0, q.size(0) * heads, grain, [&](int64_t begin, int64_t end) {
    const bool is_worth_widening = !std::is_same_v<T, float> && queries > Q;
    std::vector<float> scores(room * Q + kTogether), more(room * Q + kTogether);
    std::vector<float> wide(is_worth_widening ? 2 * room * D : 0);
    for (int64_t both = begin; both < end; ++both) {
      const int64_t b = both / heads, h = both % heads, g = h / served;
      const T* next = k_data + (both + 1) / heads * k.stride(0) + (both + 1) % heads / served * k.stride(1);
      const Keys<T> keys{k_data + b * k.stride(0) + g * k.stride(1), v_data + b * v.stride(0) + g * v.stride(1), next,
                         k.stride(2), v.stride(2), std::clamp<int64_t>(key_end_data[b * key_end.stride(0)], 0, room)};
      auto attend_by_each = [&](const auto& those) {
        for (int64_t t = 0; t < queries; t += Q) {
          const float* asked[Q];
          float* to[Q];
          for (int each = 0; each < Q; ++each) {  // the last query is repeated to fill a group
            const int64_t query = std::min(t + each, queries - 1);
            asked[each] = q_data + b * q.stride(0) + h * q.stride(1) + query * q.stride(2);
            to[each] = out_data + ((b * queries + query) * heads + h) * D;
            const float* from = added_data + b * added.stride(0) + h * added.stride(1) + query * added.stride(2);
            if (!is_same_by_row || both == begin || (h == 0 && t == 0))
              for (int64_t s = 0; s < those.n; ++s) more[s * Q + each] = from[s * added.stride(3)];
          }
          std::fill_n(more.begin() + those.n * Q, kTogether, -INFINITY);
          multiply_keys<N, Q>(asked, those, scores.data());
          const Each<Q> by = softmax_weights<Q>(scores.data(), those.n, more.data(), scale);
          mix_values<N, Q>(scores.data(), by, those, to);
        }
      };
      if (wide.empty())
        attend_by_each(keys);
      else
        attend_by_each(widen<N>(keys, wide.data(), room));
    }
  });
}

// Check the arguments and call `attend_all` for this head size and dtype. Queries are float32, keys and values float32 or
// float16.
at::Tensor& attend_out(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& added,
                       const at::Tensor& key_end, double scale, at::Tensor& result) {
  const int64_t width = q.size(3);
  TORCH_CHECK(q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1, "attend: expected a contiguous last dimension");
  TORCH_CHECK(k.sizes() == v.sizes() && k.size(0) == q.size(0) && k.size(3) == width && q.size(1) % k.size(1) == 0,
              say("attend: keys ", k.sizes(), " and values ", v.sizes(), " for queries ", q.sizes()));
  at::Tensor out = result.transpose(1, 2);  // (B, T, H, D), as the next layer reads it
  TORCH_CHECK(out.is_contiguous() && result.sizes() == q.sizes(), "attend: wrong output");
  const at::Tensor more = added.expand({q.size(0), q.size(1), q.size(2), k.size(2)}), ends = key_end.expand({q.size(0)});
  auto run = [&](auto head) {
    constexpr int D = head, Q = kQueries<D / kTogether>;
    auto attend_by = [&](auto number) {
      using T = decltype(number);
      if (q.size(2) == 1)
        attend_all<D, 1, T>(q, k, v, more, ends, scale, out);
      else
        attend_all<D, Q, T>(q, k, v, more, ends, scale, out);
    };
    if (k.scalar_type() == at::kHalf)
      attend_by(at::Half());
    else
      attend_by(float());
  };
  switch (width) {
    case 16: run(std::integral_constant<int, 16>()); break;
    case 32: run(std::integral_constant<int, 32>()); break;
    case 64: run(std::integral_constant<int, 64>()); break;
    case 128: run(std::integral_constant<int, 128>()); break;
    default: TORCH_CHECK(false, say("attend: expected heads of 16, 32, 64 or 128, not ", width));
  }
  return result;
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& added,
                  const at::Tensor& key_end, double scale) {
  at::Tensor result = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  return attend_out(q, k, v, added, key_end, scale, result);
}

// Copy row rows[i] of a cache (B, G, S, D) to row i, for all i at once; only the first `place` (1) positions are copied.
// Rows move within groups of `width` neighbors. `rows` may cover the first groups only.
void move(at::Tensor& keys, at::Tensor& values, const at::Tensor& rows, const at::Tensor& place, int64_t width) {
  TORCH_CHECK(keys.is_contiguous() && values.is_contiguous() && rows.is_contiguous(),
              "move: expected contiguous caches and rows");
  TORCH_CHECK(keys.sizes() == values.sizes() && keys.scalar_type() == values.scalar_type(),
              "move: keys and values differ in shape or dtype");
  const int64_t filled = place.const_data_ptr<int64_t>()[0];
  TORCH_CHECK(0 <= filled && filled <= keys.size(2) && rows.size(0) <= keys.size(0) && rows.size(0) % width == 0,
              say("move: ", rows.size(0), " rows, ", filled, " places: more than there are"));
  const int64_t heads = keys.size(1), row_step = keys.stride(0), head_step = keys.stride(1);
  const int64_t bytes = filled * keys.size(3) * keys.element_size();
  const int64_t* from = rows.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < rows.size(0); ++r)
    TORCH_CHECK(from[r] / width == r / width && from[r] >= 0, say("move: row ", r, " from ", from[r], " in another group"));
  at::parallel_for(0, rows.size(0) / width * heads, 1, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<char[]> kept(new char[width * bytes]);
    std::vector<char> is_kept(width);
    for (int64_t both = begin; both < end; ++both) {
      const int64_t first = both / heads * width, h = both % heads;
      for (at::Tensor* store : {&keys, &values}) {
        auto row = [&](int64_t r) {
          return static_cast<char*>(store->data_ptr()) + ((first + r) * row_step + h * head_step) * store->element_size();
        };
        for (int64_t r = 0; r < width; ++r) is_kept[r] = 0;
        for (int64_t r = 0; r < width; ++r) {  // save rows that are read after they are overwritten
          const int64_t source = from[first + r] - first;
          if (source == r || is_kept[source] || from[first + source] - first == source) continue;
          std::memcpy(kept.get() + source * bytes, row(source), bytes);
          is_kept[source] = 1;
        }
        for (int64_t r = 0; r < width; ++r) {
          const int64_t source = from[first + r] - first;
          if (source != r) std::memcpy(row(r), is_kept[source] ? kept.get() + source * bytes : row(source), bytes);
        }
      }
    }
  });
}
