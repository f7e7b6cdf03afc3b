// What a step needs beside products: attention over a cache of which the first places are filled, and the moves of a beam
// search in it. What torch has for the first reads all of the room, for many queries.

// Keys and values of one row and head, and the keys that will be read after them.
template <typename T>
struct Keys {
  const T *k, *v, *next;
  int64_t k_step, v_step, n;
};

// Bring a head's numbers nearer: what is filled of a cache lies in pieces, and no CPU guesses where the next one is.
template <int N, typename T>
inline void fetch(const T* head) {
  constexpr int64_t line = 64 / sizeof(T);
  for (int64_t i = 0; i < N * kTogether; i += line) __builtin_prefetch(head + i);
}

// How many queries go together over the same keys, if there are several: as many as registers hold, N for each.
template <int N>
constexpr int kQueries = N <= 4 ? 4 : N <= 8 ? 2 : 1;

// The products of Q queries with each key, those of one key side by side. N registers hold a head; four sums at once, so
// that none waits for itself; at the end, the last key again.
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

// The values, by the weights of each of Q queries and `by` its number. N registers hold a head.
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

// The scores of Q queries to weights, and by what they add up to 1: by 0 where nothing may be attended. What is `added`
// ends with minus infinities; both have room for a whole register behind them.
template <int Q>
Each<Q> soften(float* scores, int64_t n, const float* added, float scale) {
  std::fill_n(scores + n * Q, kTogether, 0.0f);
  Numbers bests = load(added + n * Q), totals = {};
  for (int64_t s = 0; s < n * Q; s += kTogether) {
    const Numbers some = load(scores + s) * scale + load(added + s);
    std::memcpy(scores + s, &some, sizeof(some));
    bests = higher_of(bests, some);
  }
  Each<Q> anchors = most_of_each<Q>(bests);
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

// The same as floats, of which there are `room` for keys and as many for values: so that several queries do not do it each.
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
  return {to, values, to, width, width, keys.n};  // they are near, and nothing else has to be fetched
}

// Queries (B, H, T, D), Q at once, over keys and values (B, G, S, D): of each row the first `reach` (B) of them. What is
// `added` to the scores is (B, H, T, S).
template <int D, int Q, typename T>
void attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& added,
                const at::Tensor& reach, float scale, at::Tensor& out) {
  constexpr int N = D / kTogether;
  const int64_t heads = q.size(1), queries = q.size(2), room = k.size(2);
  const int64_t served = heads / k.size(1);  // heads by each of the keys'
  const float *q_data = q.const_data_ptr<float>(), *added_data = added.const_data_ptr<float>();
  const T *k_data = k.const_data_ptr<T>(), *v_data = v.const_data_ptr<T>();
  const int64_t* reach_data = reach.const_data_ptr<int64_t>();
  float* out_data = out.data_ptr<float>();
  const bool is_same_by_row = (heads == 1 || added.stride(1) == 0) && (queries == 1 || added.stride(2) == 0);
  const int64_t grain = 65536 / std::max<int64_t>(1, queries * D * room) + 1;  // enough to wake a thread for
  at::parallel_for(0, q.size(0) * heads, grain, [&](int64_t begin, int64_t end) {
    const bool is_worth_widening = !std::is_same_v<T, float> && queries > Q;
    std::vector<float> scores(room * Q + kTogether), more(room * Q + kTogether);
    std::vector<float> wide(is_worth_widening ? 2 * room * D : 0);
    for (int64_t both = begin; both < end; ++both) {
      const int64_t b = both / heads, h = both % heads, g = h / served;
      const T* next = k_data + (both + 1) / heads * k.stride(0) + (both + 1) % heads / served * k.stride(1);
      const Keys<T> keys{k_data + b * k.stride(0) + g * k.stride(1), v_data + b * v.stride(0) + g * v.stride(1), next,
                         k.stride(2), v.stride(2), std::clamp<int64_t>(reach_data[b * reach.stride(0)], 0, room)};
      auto attend_by_each = [&](const auto& those) {
        for (int64_t t = 0; t < queries; t += Q) {
          const float* asked[Q];
          float* to[Q];
          for (int each = 0; each < Q; ++each) {  // at the end the last one again
            const int64_t query = std::min(t + each, queries - 1);
            asked[each] = q_data + b * q.stride(0) + h * q.stride(1) + query * q.stride(2);
            to[each] = out_data + ((b * queries + query) * heads + h) * D;
            const float* from = added_data + b * added.stride(0) + h * added.stride(1) + query * added.stride(2);
            if (!is_same_by_row || both == begin || (h == 0 && t == 0))
              for (int64_t s = 0; s < those.n; ++s) more[s * Q + each] = from[s * added.stride(3)];
          }
          std::fill_n(more.begin() + those.n * Q, kTogether, -INFINITY);
          multiply_keys<N, Q>(asked, those, scores.data());
          const Each<Q> by = soften<Q>(scores.data(), those.n, more.data(), scale);
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

// The same by name. Queries are float32; keys and values may be float16.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& added,
                  const at::Tensor& reach, double scale) {
  const int64_t width = q.size(3);
  TORCH_CHECK(q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1, "attend: expected a head's numbers together");
  TORCH_CHECK(k.sizes() == v.sizes() && k.size(0) == q.size(0) && k.size(3) == width && q.size(1) % k.size(1) == 0,
              say("attend: keys ", k.sizes(), " and values ", v.sizes(), " for queries ", q.sizes()));
  at::Tensor out = at::empty({q.size(0), q.size(2), q.size(1), width}, q.options());
  const at::Tensor more = added.expand({q.size(0), q.size(1), q.size(2), k.size(2)}), ends = reach.expand({q.size(0)});
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
  return out.transpose(1, 2);
}

// Row i becomes what row rows[i] was, of a cache's (B, G, S, D), up to the place (1). Rows move within groups of `width`
// neighbours; `rows` may be of the first groups alone.
void move(at::Tensor& keys, at::Tensor& values, const at::Tensor& rows, const at::Tensor& place, int64_t width) {
  TORCH_CHECK(keys.is_contiguous() && values.is_contiguous() && rows.is_contiguous(), "move: expected whole caches");
  TORCH_CHECK(keys.sizes() == values.sizes() && keys.scalar_type() == values.scalar_type(), "move: keys unlike values");
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
        for (int64_t r = 0; r < width; ++r) {  // what is read, but will be overwritten
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
