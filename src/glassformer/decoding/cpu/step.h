// What a step needs beside products: attention over a cache of which the first places are filled, the moves of a beam
// search in it, and the scores of a vocabulary. What torch has for the first reads all of the room, for many queries.

#if defined(__aarch64__)
using Numbers = float32x4_t;
inline float sum_of(Numbers x) { return vaddvq_f32(x); }
#else
using Numbers = __m512;
inline float sum_of(Numbers x) { return _mm512_reduce_add_ps(x); }
#endif
constexpr int64_t kTogether = sizeof(Numbers) / sizeof(float);  // numbers of a register

inline Numbers load(const float* from) {
  Numbers x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

inline Numbers load(const at::Half* from) {
#if defined(__aarch64__)
  return vcvt_f32_f16(vld1_f16(reinterpret_cast<const __fp16*>(from)));
#else
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
}

using Wholes = int32_t __attribute__((vector_size(sizeof(Numbers))));

// e^x for x <= 0, to a few units in the last place: what the sum leaves out is below 2e-7.
inline Numbers exp_below(Numbers x) {
  const Numbers shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: what is behind the point is rounded away
  const Numbers n = shifted - 12582912.0f, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n log 2
  Numbers sum = r * (1.0f / 720) + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const Numbers power = std::bit_cast<Numbers>((std::bit_cast<Wholes>(shifted) << 23) + 0x3f800000);  // 2^n
  return x < -87.0f ? Numbers{} : sum * power;
}

// The first n of a register, and minus infinity where there are no more.
inline Numbers load_some(const float* from, int64_t n) {
  float numbers[kTogether];
  std::fill_n(numbers, kTogether, -INFINITY);
  std::copy_n(from, std::min(n, kTogether), numbers);
  return load(numbers);
}

inline float most_of(Numbers x) {
  float most = x[0];
  for (int64_t i = 1; i < kTogether; ++i) most = std::max(most, x[i]);
  return most;
}

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

// The products of a query with each key. N registers hold a head; four keys at once, so that no sum waits for itself.
template <int N, typename T>
void multiply_keys(const float* q, const Keys<T>& keys, float* scores) {
  Numbers asked[N];
  for (int i = 0; i < N; ++i) asked[i] = load(q + i * kTogether);
  int64_t s = 0;
  for (; s + 4 <= keys.n; s += 4) {
    const T* k = keys.k + s * keys.k_step;
    for (int each = 0; each < 4; ++each) fetch<N>(keys.v + (s + each) * keys.v_step);
    Numbers sums[4] = {};
    for (int i = 0; i < N; ++i)
      for (int each = 0; each < 4; ++each) sums[each] += asked[i] * load(k + each * keys.k_step + i * kTogether);
    for (int each = 0; each < 4; ++each) scores[s + each] = sum_of(sums[each]);
  }
  for (; s < keys.n; ++s) {
    Numbers sum = {};
    for (int i = 0; i < N; ++i) sum += asked[i] * load(keys.k + s * keys.k_step + i * kTogether);
    scores[s] = sum_of(sum);
  }
}

// The values, each by its weight. N registers hold a head.
template <int N, typename T>
void mix_values(const float* weights, const Keys<T>& keys, float* out) {
  Numbers mixed[N] = {};
  for (int64_t s = 0; s < keys.n; ++s) {
    fetch<N>(keys.next + s * keys.k_step);
    for (int i = 0; i < N; ++i) mixed[i] += weights[s] * load(keys.v + s * keys.v_step + i * kTogether);
  }
  std::memcpy(out, mixed, sizeof(mixed));
}

// Scores to weights that add up to 1, or to 0 where nothing may be attended. Behind them is room for a whole register.
void soften(float* scores, int64_t n, const float* added, int64_t added_step, float scale) {
  if (added_step == 1)  // apart, for a compiler makes several at once of it
    for (int64_t s = 0; s < n; ++s) scores[s] = scores[s] * scale + added[s];
  else
    for (int64_t s = 0; s < n; ++s) scores[s] = scores[s] * scale + added[s * added_step];
  std::fill_n(scores + n, kTogether, -INFINITY);
  Numbers bests = load(scores), totals = {};
  for (int64_t s = kTogether; s < n; s += kTogether) bests = load(scores + s) > bests ? load(scores + s) : bests;
  const float best = most_of(bests);
  const float anchor = best == -INFINITY ? 0.0f : best;
  for (int64_t s = 0; s < n; s += kTogether) {
    const Numbers weights = exp_below(load(scores + s) - anchor);
    std::memcpy(scores + s, &weights, sizeof(weights));
    totals += weights;
  }
  const float total = sum_of(totals), by = total == 0 ? 0.0f : 1 / total;
  for (int64_t s = 0; s < n; ++s) scores[s] *= by;
}

// A few queries (B, H, T, D) over keys and values (B, G, S, D): of each row the first `reach` (B or 1) of them. What is
// `added` to the scores broadcasts to (B, H, T, S).
template <int D, typename T>
void attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& added,
                const at::Tensor& reach, float scale, at::Tensor& out) {
  constexpr int N = D / kTogether;
  const int64_t heads = q.size(1), queries = q.size(2), room = k.size(2);
  const int64_t served = heads / k.size(1);  // heads by each of the keys'
  const float *q_data = q.const_data_ptr<float>(), *added_data = added.const_data_ptr<float>();
  const T *k_data = k.const_data_ptr<T>(), *v_data = v.const_data_ptr<T>();
  const int64_t* reach_data = reach.const_data_ptr<int64_t>();
  float* out_data = out.data_ptr<float>();
  const int64_t grain = 65536 / std::max<int64_t>(1, queries * D * room) + 1;  // enough to wake a thread for
  at::parallel_for(0, q.size(0) * heads, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(room + kTogether);
    for (int64_t both = begin; both < end; ++both) {
      const int64_t b = both / heads, h = both % heads, g = h / served;
      const T* next = k_data + (both + 1) / heads * k.stride(0) + (both + 1) % heads / served * k.stride(1);
      const Keys<T> keys{k_data + b * k.stride(0) + g * k.stride(1), v_data + b * v.stride(0) + g * v.stride(1), next,
                         k.stride(2), v.stride(2), std::clamp<int64_t>(reach_data[b * reach.stride(0)], 0, room)};
      for (int64_t t = 0; t < queries; ++t) {
        const float* more = added_data + b * added.stride(0) + h * added.stride(1) + t * added.stride(2);
        multiply_keys<N>(q_data + b * q.stride(0) + h * q.stride(1) + t * q.stride(2), keys, scores.data());
        soften(scores.data(), keys.n, more, added.stride(3), scale);
        mix_values<N>(scores.data(), keys, out_data + ((b * queries + t) * heads + h) * D);
      }
    }
  });
}

// The same by name. Queries are float32; keys and values may be float16.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& added,
                  const at::Tensor& reach, double scale) {
  const int64_t width = q.size(3);
  TORCH_CHECK(q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1, "attend: expected a head's numbers together");
  TORCH_CHECK(k.sizes() == v.sizes() && k.size(0) == q.size(0) && k.size(3) == width && q.size(1) % k.size(1) == 0,
              "attend: keys ", k.sizes(), " and values ", v.sizes(), " for queries ", q.sizes());
  at::Tensor out = at::empty({q.size(0), q.size(2), q.size(1), width}, q.options());
  const at::Tensor more = added.expand({q.size(0), q.size(1), q.size(2), k.size(2)}), ends = reach.expand({q.size(0)});
  auto run = [&](auto head) {
    constexpr int D = head;
    if (k.scalar_type() == at::kHalf)
      attend_all<D, at::Half>(q, k, v, more, ends, scale, out);
    else
      attend_all<D, float>(q, k, v, more, ends, scale, out);
  };
  switch (width) {
    case 16: run(std::integral_constant<int, 16>()); break;
    case 32: run(std::integral_constant<int, 32>()); break;
    case 64: run(std::integral_constant<int, 64>()); break;
    case 128: run(std::integral_constant<int, 128>()); break;
    default: TORCH_CHECK(false, "attend: expected heads of 16, 32, 64 or 128, not ", width);
  }
  return out.transpose(1, 2);
}

// The logarithms of the softmax of each row (..., V): torch's own take half as long again, for their e^x.
at::Tensor log_softmax(const at::Tensor& scores) {
  const at::Tensor given = scores.contiguous();
  at::Tensor out = at::empty_like(given);
  const int64_t width = given.size(-1);
  const float* from = given.const_data_ptr<float>();
  float* to = out.data_ptr<float>();
  at::parallel_for(0, given.numel() / std::max<int64_t>(1, width), 8192 / (width + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = from + r * width;
      const int64_t whole = width / kTogether * kTogether;
      const Numbers rest = load_some(x + whole, width - whole);
      Numbers bests = rest;
      for (int64_t i = 0; i < whole; i += kTogether) bests = load(x + i) > bests ? load(x + i) : bests;
      const float best = most_of(bests);
      Numbers totals = exp_below(rest - best);
      for (int64_t i = 0; i < whole; i += kTogether) totals += exp_below(load(x + i) - best);
      const float taken = best + std::log(sum_of(totals));
      for (int64_t i = 0; i < width; ++i) to[r * width + i] = x[i] - taken;
    }
  });
  return out;
}

// The highest number of each row (N, V), and where it stands first. A NaN is higher than any.
std::tuple<at::Tensor, at::Tensor> best(const at::Tensor& scores) {
  TORCH_CHECK(scores.dim() == 2 && scores.size(1) > 0, "best: expected rows with something in them");
  const at::Tensor given = scores.contiguous();
  const int64_t width = given.size(1), whole = width / kTogether * kTogether;
  at::Tensor highest = at::empty({given.size(0)}, given.options());
  at::Tensor places = at::empty({given.size(0)}, given.options().dtype(at::kLong));
  at::parallel_for(0, given.size(0), 32768 / width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = given.const_data_ptr<float>() + r * width;
      const Numbers rest = load_some(x + whole, width - whole);
      Numbers bests = rest;
      Wholes broken = rest != rest;
      for (int64_t i = 0; i < whole; i += kTogether) {
        const Numbers some = load(x + i);
        bests = some > bests ? some : bests;
        broken |= some != some;
      }
      bool is_broken = false;
      for (int64_t i = 0; i < kTogether; ++i) is_broken |= broken[i] != 0;
      const float most = most_of(bests);
      const float* place = std::find_if(x, x + width, [&](float y) { return is_broken ? y != y : y == most; });
      highest.data_ptr<float>()[r] = *place;
      places.data_ptr<int64_t>()[r] = place - x;
    }
  });
  return {highest, places};
}

// Row i becomes what row rows[i] was, of a cache's (B, G, S, D), up to the place (1). Rows move within groups of `width`
// neighbours; `rows` may be of the first groups alone.
void move(at::Tensor& keys, at::Tensor& values, const at::Tensor& rows, const at::Tensor& place, int64_t width) {
  TORCH_CHECK(keys.is_contiguous() && values.is_contiguous() && rows.is_contiguous(), "move: expected whole caches");
  TORCH_CHECK(keys.sizes() == values.sizes() && keys.scalar_type() == values.scalar_type(), "move: keys unlike values");
  const int64_t filled = place.const_data_ptr<int64_t>()[0];
  TORCH_CHECK(0 <= filled && filled <= keys.size(2) && rows.size(0) <= keys.size(0) && rows.size(0) % width == 0,
              "move: ", rows.size(0), " rows, ", filled, " places: more than there are");
  const int64_t heads = keys.size(1), row_step = keys.stride(0), head_step = keys.stride(1);
  const int64_t bytes = filled * keys.size(3) * keys.element_size();
  const int64_t* from = rows.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < rows.size(0); ++r)
    TORCH_CHECK(from[r] / width == r / width && from[r] >= 0, "move: row ", r, " from ", from[r], " in another group");
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
