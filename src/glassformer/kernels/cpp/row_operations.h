// torch operations for the rows of rows.h, and for writing a token into the cache. They check tensors and divide work among
// threads.
namespace rows {
constexpr int64_t kWorthThread = 1 << 14;  // numbers per thread that are worth waking it for

// The rows of a float tensor (..., C), `step` numbers apart. A tensor whose rows have no common distance is copied.
struct Rows {
  at::Tensor held;
  const float* data;
  int64_t count, width, step;

  explicit Rows(const at::Tensor& x) : held(x), count(0), width(0), step(0) {
    TORCH_CHECK(x.dim() > 0 && x.size(-1) > 0 && x.scalar_type() == at::kFloat,
                say("expected float32 rows that are not empty, not ", x.sizes()));
    width = x.size(-1);
    count = x.numel() / width;
    bool is_even = x.stride(-1) == 1 || width == 1;
    step = width;
    int64_t inner = 0;  // rows that the dimensions read so far make up; 0 while they make up only one
    for (int64_t d = x.dim() - 2; d >= 0; --d) {
      if (x.size(d) == 1) continue;
      if (inner == 0)
        step = x.stride(d), inner = x.size(d);
      else
        is_even = is_even && x.stride(d) == inner * step, inner *= x.size(d);
    }
    if (!is_even) held = x.contiguous(), step = width;
    data = held.const_data_ptr<float>();
  }
};

const float* numbers_of(const std::optional<at::Tensor>& given, int64_t width, const char* what) {
  if (!given) return nullptr;
  TORCH_CHECK(given->is_contiguous() && given->scalar_type() == at::kFloat && given->numel() == width,
              say(what, " of ", given->numel(), " numbers: expected ", width, " contiguous float32 numbers"));
  return given->const_data_ptr<float>();
}

float* output_of(at::Tensor& y, int64_t numbers) {
  TORCH_CHECK(y.is_contiguous() && y.scalar_type() == at::kFloat && y.numel() == numbers, "rows: wrong output");
  return y.data_ptr<float>();
}

// Call body(row) for all rows, by several threads if the rows are long or many.
template <typename Body>
void for_rows(int64_t count, int64_t width, const Body& body) {
  if (count * width < 2 * kWorthThread) {
    for (int64_t r = 0; r < count; ++r) body(r);
    return;
  }
  at::parallel_for(0, count, kWorthThread / width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(r);
  });
}

at::Tensor empty_like_rows(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }

// x (..., C) -> y (..., C), each row divided by its root mean square and multiplied by `weight` (C).
at::Tensor& rms_norm_out(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps, at::Tensor& y) {
  const Rows from(x);
  const float* by = numbers_of(weight, from.width, "rms_norm weight");
  float* to = output_of(y, from.count * from.width);
  for_rows(from.count, from.width, [&](int64_t r) {
    rms_norm_row(from.data + r * from.step, by, static_cast<float>(eps), from.width, to + r * from.width);
  });
  return y;
}

at::Tensor rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps) {
  at::Tensor y = empty_like_rows(x);
  return rms_norm_out(x, weight, eps, y);
}

// x (..., C) -> y (..., C), each row with mean 0 and variance 1, multiplied by `weight` (C), plus `bias` (C).
at::Tensor& layer_norm_out(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                           const std::optional<at::Tensor>& bias, double eps, at::Tensor& y) {
  const Rows from(x);
  const float *by = numbers_of(weight, from.width, "layer_norm weight"),
              *more = numbers_of(bias, from.width, "layer_norm bias");
  float* to = output_of(y, from.count * from.width);
  for_rows(from.count, from.width, [&](int64_t r) {
    layer_norm_row(from.data + r * from.step, by, more, static_cast<float>(eps), from.width, to + r * from.width);
  });
  return y;
}

at::Tensor layer_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                      double eps) {
  at::Tensor y = empty_like_rows(x);
  return layer_norm_out(x, weight, bias, eps, y);
}

// silu(gate) * up, all (..., C).
at::Tensor& silu_gate_out(const at::Tensor& gate, const at::Tensor& up, at::Tensor& y) {
  const Rows from(gate), by(up);
  TORCH_CHECK(gate.sizes() == up.sizes(), say("silu_gate: gate ", gate.sizes(), " and up ", up.sizes()));
  float* to = output_of(y, from.count * from.width);
  for_rows(from.count, from.width, [&](int64_t r) {
    silu_gate_row(from.data + r * from.step, by.data + r * by.step, from.width, to + r * from.width);
  });
  return y;
}

at::Tensor silu_gate(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor y = empty_like_rows(gate);
  return silu_gate_out(gate, up, y);
}

// Return cosines or sines (B or 1, 1, T, D/2), float64 or float32, as floats without gaps.
std::vector<float> angles_of(const at::Tensor& given) {
  std::vector<float> found(given.numel());
  const at::Tensor whole = given.contiguous();
  if (whole.scalar_type() == at::kDouble)
    std::copy_n(whole.const_data_ptr<double>(), found.size(), found.begin());
  else
    std::copy_n(whole.const_data_ptr<float>(), found.size(), found.begin());
  return found;
}

// Rotate queries or keys x (B, H, T, D) by angles with these cosines and sines (B or 1, 1, T, D/2).
at::Tensor& rotate_out(const at::Tensor& given, const at::Tensor& cos, const at::Tensor& sin, at::Tensor& y) {
  TORCH_CHECK(given.dim() == 4 && given.size(3) % 2 == 0 && given.scalar_type() == at::kFloat,
              say("rotate: expected float32 heads (B, H, T, D) with an even D, not ", given.sizes()));
  const at::Tensor x = given.stride(3) == 1 ? given : given.contiguous();
  const int64_t batch = x.size(0), heads = x.size(1), length = x.size(2), half = x.size(3) / 2;
  for (const at::Tensor& angles : {cos, sin})
    TORCH_CHECK(angles.dim() == 4 && (angles.size(0) == batch || angles.size(0) == 1) && angles.size(1) == 1 &&
                    angles.size(2) == length && angles.size(3) == half && angles.size(0) == cos.size(0) &&
                    (angles.scalar_type() == at::kDouble || angles.scalar_type() == at::kFloat),
                say("rotate: cosines or sines ", angles.sizes(), " for heads ", x.sizes()));
  const std::vector<float> by_cos = angles_of(cos), by_sin = angles_of(sin);
  const int64_t angle_step = cos.size(0) == 1 ? 0 : length * half;
  const float* from = x.const_data_ptr<float>();
  float* to = output_of(y, x.numel());
  for_rows(batch * heads * length, 2 * half, [&](int64_t r) {
    const int64_t b = r / length / heads, h = r / length % heads, t = r % length;
    const int64_t angle = b * angle_step + t * half;
    rotate_row(from + b * x.stride(0) + h * x.stride(1) + t * x.stride(2), by_cos.data() + angle, by_sin.data() + angle, half,
               to + r * 2 * half);
  });
  return y;
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  at::Tensor y = empty_like_rows(x);
  return rotate_out(x, cos, sin, y);
}

// Copy n numbers; to float16, n is a multiple of kTogether.
inline void copy_numbers(const float* from, float* to, int64_t n) { std::memcpy(to, from, n * sizeof(float)); }
inline void copy_numbers(const float* from, Half* to, int64_t n) {
  for (int64_t i = 0; i < n; i += kTogether) store(load(from + i), to + i);
}

// Write one key or value per row, (B, G, 1, D), into the cache (B, G, S, D) at `place`.
template <typename T>
void write_one(const at::Tensor& given, at::Tensor& store, int64_t place) {
  const float* from = given.const_data_ptr<float>();
  T* to = static_cast<T*>(store.data_ptr()) + place * store.stride(2);
  for (int64_t b = 0; b < store.size(0); ++b)
    for (int64_t g = 0; g < store.size(1); ++g)
      copy_numbers(from + b * given.stride(0) + g * given.stride(1), to + b * store.stride(0) + g * store.stride(1),
                   store.size(3));
}

// Write one key and value per row, (B, G, 1, D), into the cache (B, G, S, D), float32 or float16, at `place` (1).
void write_token(const at::Tensor& k, const at::Tensor& v, at::Tensor& keys, at::Tensor& values, const at::Tensor& place) {
  const int64_t at = place.const_data_ptr<int64_t>()[0], width = keys.size(3);
  TORCH_CHECK(0 <= at && at < keys.size(2), say("write_token: place ", at, " in a cache of ", keys.size(2)));
  const std::pair<const at::Tensor*, at::Tensor*> stores[] = {{&k, &keys}, {&v, &values}};
  for (const auto& [given, store] : stores) {
    const bool is_half = store->scalar_type() == at::kHalf;
    TORCH_CHECK(given->scalar_type() == at::kFloat && (is_half ? width % kTogether == 0 : store->scalar_type() == at::kFloat),
                "write_token: expected float32 tokens and a cache in float32, or in float16 for heads of whole registers");
    TORCH_CHECK(given->stride(3) == 1 && store->stride(3) == 1 && given->size(0) == store->size(0) &&
                    given->size(1) == store->size(1) && given->size(2) == 1 && given->size(3) == width &&
                    store->sizes() == keys.sizes(),
                say("write_token: ", given->sizes(), " into a cache ", store->sizes()));
    if (is_half)
      write_one<Half>(*given, *store, at);
    else
      write_one<float>(*given, *store, at);
  }
}
}  // namespace rows
