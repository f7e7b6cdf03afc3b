// CPU kernels that torch lacks, registered as torch operations. `cpp_library.py` compiles this file at first use.
//
// The arithmetic is in the headers, which know nothing of torch. This file checks tensors and divides work among threads.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>

#include "headers.h"
#if defined(__AMX_INT8__)
#include <ATen/cpu/Utils.h>
#endif

namespace {
// Build an error message. No streams: they may crash when two C++ standard libraries are loaded into one process.
std::string text_of(const char* words) { return words; }
std::string text_of(int64_t number) { return std::to_string(number); }
std::string text_of(at::IntArrayRef sizes) {
  std::string text = "(";
  for (const int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + ")";
}
template <typename... Parts>
std::string say(const Parts&... parts) {
  return (std::string() + ... + text_of(parts));
}

#include "vectors.h"
#include "int8.h"
#include "int8_two_bytes.h"
#include "groupwise.h"
#include "step.h"
#include "choice.h"
#include "rows.h"
#include "sampling.h"
#include "groupwise_operations.h"
#include "row_operations.h"
#include "program.h"
#include "beams.h"

// Return whether this process may use AMX tiles. Linux must be asked for them.
bool has_tiles() {
#if defined(__AMX_INT8__)
  static const bool found = at::cpu::init_amx();
  return found;
#else
  return false;
#endif
}

// Return the instructions that multiply: a name of `cpp_library.INSTRUCTION_SETS`.
std::string instruction_set() {
#if defined(__ARM_FEATURE_DOTPROD)
  return "dotprod";
#elif defined(__aarch64__)
  return "neon";
#elif defined(__AVX512VNNI__)
  return has_tiles() ? "amx" : "vnni";
#elif defined(__AVX512F__)
  return "avx512";
#else
  return "avx2";
#endif
}

// Pack int8 weights (N, K) for `linear`.
at::Tensor pack(const at::Tensor& given) {
  TORCH_CHECK(given.dim() == 2 && given.size(1) > 0, "int8 pack: expected (out, in) weights");
  const at::Tensor weight = given.contiguous();
  const PackedShape shape{weight.size(0), weight.size(1)};
  at::Tensor packed = at::zeros({shape.bytes()}, weight.options());
  pack_panels(shape, weight.const_data_ptr<int8_t>(), packed.data_ptr<int8_t>());
  return packed;
}

// x (..., K) float, packed weights, scales (N padded to whole panels), bias (N) or none -> y (..., N), through ReLU if
// `relu` is set. `multiply` is `multiply_rows`, or `multiply_two_bytes` for activations of two bytes.
template <auto multiply>
at::Tensor& linear_out(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& scales,
                       const std::optional<at::Tensor>& bias, int64_t n_in, int64_t n, bool relu, at::Tensor& y) {
  TORCH_CHECK(x.dim() > 0 && x.scalar_type() == at::kFloat, "int8 linear: expected float32 rows");
  TORCH_CHECK(x.size(-1) == n_in && n_in > 0, say("int8 linear: rows of ", x.size(-1), ", expected ", n_in));
  const PackedShape shape{n, n_in};
  TORCH_CHECK(packed.numel() == shape.bytes() && scales.numel() >= shape.panels() * kChannels,
              "int8 linear: the packed weights or the scales do not have the size for n_in and n");
  const at::Tensor input = x.contiguous();
  const int64_t m = x.numel() / n_in;
  TORCH_CHECK(y.is_contiguous() && y.scalar_type() == at::kFloat && y.numel() == m * n, "int8 linear: wrong output");
  const int threads = at::in_parallel_region() ? 1 : threads_for(shape, m, at::get_num_threads());
  multiply(shape, input.const_data_ptr<float>(), m, packed.const_data_ptr<int8_t>(), scales.const_data_ptr<float>(),
           bias ? bias->const_data_ptr<float>() : nullptr, relu, has_tiles(), threads, y.data_ptr<float>());
  return y;
}

template <auto multiply>
at::Tensor linear(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& scales,
                  const std::optional<at::Tensor>& bias, int64_t n_in, int64_t n, bool relu) {
  TORCH_CHECK(x.dim() > 0, "int8 linear: expected rows");
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = n;
  at::Tensor y = at::empty(sizes, x.options());
  return linear_out<multiply>(x, packed, scales, bias, n_in, n, relu, y);
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
  const T *k_data = static_cast<const T*>(k.const_data_ptr()), *v_data = static_cast<const T*>(v.const_data_ptr());
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
      attend_by(Half());
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

// Return the maximum of each row (N, V) and its first index. NaN counts as higher than any number.
std::tuple<at::Tensor, at::Tensor> best(const at::Tensor& scores) {
  TORCH_CHECK(scores.dim() == 2 && scores.size(1) > 0, "best: expected a two-dimensional tensor with non-empty rows");
  const at::Tensor given = scores.contiguous();
  const int64_t width = given.size(1);
  at::Tensor highest = at::empty({given.size(0)}, given.options());
  at::Tensor places = at::empty({given.size(0)}, given.options().dtype(at::kLong));
  at::parallel_for(0, given.size(0), 32768 / width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = given.const_data_ptr<float>() + r * width;
      const int64_t place = best_of(x, width);
      highest.data_ptr<float>()[r] = x[place];
      places.data_ptr<int64_t>()[r] = place;
    }
  });
  return {highest, places};
}

// Return the `count` highest values of log_softmax(scores) + bias in each row (N, V), and their indices. `bias` is (V).
std::tuple<at::Tensor, at::Tensor> best_few(const at::Tensor& scores, const at::Tensor& bias, int64_t count) {
  const int64_t width = scores.size(-1);
  TORCH_CHECK(scores.dim() == 2 && 0 < count && count <= width && bias.numel() == width,
              say("best_few: count ", count, ", scores ", scores.sizes(), ", bias of ", bias.numel()));
  const at::Tensor given = scores.contiguous(), more = bias.contiguous();
  at::Tensor values = at::empty({given.size(0), count}, given.options());
  at::Tensor places = at::empty({given.size(0), count}, given.options().dtype(at::kLong));
  const float* added = more.const_data_ptr<float>();
  const bool is_zero = std::all_of(added, added + width, [](float number) { return number == 0; });
  at::parallel_for(0, given.size(0), 8192 / width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      best_few_of(given.const_data_ptr<float>() + r * width, added, is_zero, width,
                  {values.data_ptr<float>() + r * count, places.data_ptr<int64_t>() + r * count, 0, count});
  });
  return {values, places};
}

SamplingSettings settings_of(const double* five) { return {five[0], five[1], five[2], five[3], five[4]}; }

// Draw a token from each row of logits (N, V) -> (N). `numbers` has a uniform number in [0, 1) for each row, and `settings`
// has five: temperature, top-k, top-p, min-p and typical p.
at::Tensor sample(const at::Tensor& logits, at::ArrayRef<double> settings, at::ArrayRef<double> numbers) {
  const at::Tensor given = logits.contiguous();
  TORCH_CHECK(given.dim() == 2 && given.scalar_type() == at::kFloat && 0 < given.size(1) && given.size(1) <= INT32_MAX,
              say("sample: expected float32 logits of two dimensions, not ", given.sizes()));
  const int64_t rows = given.size(0), width = given.size(1);
  TORCH_CHECK(static_cast<int64_t>(numbers.size()) == rows && settings.size() == 5 * numbers.size(),
              say("sample: ", static_cast<int64_t>(settings.size()), " settings for ", rows, " rows"));
  at::Tensor tokens = at::empty({rows}, given.options().dtype(at::kLong));
  at::parallel_for(0, rows, 16384 / width + 1, [&](int64_t begin, int64_t end) {
    thread_local TokenSampler sampler;  // keeps its memory: the system takes as long to provide it as a pass takes
    for (int64_t r = begin; r < end; ++r)
      tokens.data_ptr<int64_t>()[r] = sampler.draw(given.const_data_ptr<float>() + r * width, width,
                                                   settings_of(settings.data() + 5 * r), numbers[r]);
  });
  return tokens;
}

// Return the weights (V) by which `sample` draws from a row of logits (V). Those of tokens that it never draws are 0.
at::Tensor sampling_weights(const at::Tensor& logits, at::ArrayRef<double> settings) {
  TORCH_CHECK(logits.dim() == 1 && logits.scalar_type() == at::kFloat && logits.numel() > 0 && settings.size() == 5,
              say("sampling_weights: expected one row of float32 logits and five settings, not ", logits.sizes()));
  const at::Tensor given = logits.contiguous();
  TokenSampler sampler;
  at::Tensor weights = at::empty(given.sizes(), given.options());
  std::copy_n(sampler.filter(given.const_data_ptr<float>(), given.numel(), settings_of(settings.data())), given.numel(),
              weights.data_ptr<float>());
  return weights;
}
}  // namespace

TORCH_LIBRARY(glassformer_cpu, library) {
  library.class_<Program>("Program")
      .def(torch::init<>())
      .def("add", &Program::add)
      .def("vary", &Program::vary)
      .def("set_rows", &Program::set_rows)
      .def("run", &Program::run)
      .def("size", &Program::size);
  library.def("instruction_set() -> str", instruction_set);
  library.def("pack(Tensor weight) -> Tensor");
  library.def("linear(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int n_in, int n, bool relu) -> Tensor");
  library.def(
      "groupwise_linear(Tensor x, Tensor packed, Tensor? bias, int n_in, int n, int bits, bool has_mins, bool is_half) "
      "-> Tensor");
  library.def(
      "groupwise_linear.out(Tensor x, Tensor packed, Tensor? bias, int n_in, int n, int bits, bool has_mins, bool is_half, "
      "*, Tensor(a!) out) -> Tensor(a!)");
  library.def(
      "groupwise_pack_rows(Tensor(a!) packed, Tensor codes, Tensor scales, Tensor? mins, int first, int n_in, int n, "
      "int bits) -> ()");
  library.def(
      "groupwise_read_rows(Tensor packed, Tensor rows, int n_in, int n, int bits, bool has_mins, bool is_half) -> Tensor");
  library.def("groupwise_size(int n_in, int n, int bits, bool has_mins, bool is_half) -> int", groupwise::packed_size);
  library.def(
      "two_byte_linear(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int n_in, int n, bool relu) -> Tensor");
  library.def(
      "two_byte_linear.out(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int n_in, int n, bool relu, *, "
      "Tensor(a!) out) -> Tensor(a!)");
  library.def(
      "linear.out(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int n_in, int n, bool relu, *, Tensor(a!) out)"
      " -> Tensor(a!)");
  library.def("attend(Tensor q, Tensor k, Tensor v, Tensor added, Tensor key_end, float scale) -> Tensor");
  library.def(
      "attend.out(Tensor q, Tensor k, Tensor v, Tensor added, Tensor key_end, float scale, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor");
  library.def("rms_norm.out(Tensor x, Tensor? weight, float eps, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor");
  library.def("layer_norm.out(Tensor x, Tensor? weight, Tensor? bias, float eps, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("silu_gate(Tensor gate, Tensor up) -> Tensor");
  library.def("silu_gate.out(Tensor gate, Tensor up, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("rotate(Tensor x, Tensor cos, Tensor sin) -> Tensor");
  library.def("rotate.out(Tensor x, Tensor cos, Tensor sin, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("write_token(Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor place) -> ()");
  library.def("best(Tensor scores) -> (Tensor, Tensor)");
  library.def("best_few(Tensor scores, Tensor bias, int count) -> (Tensor, Tensor)");
  library.def(
      "extend_beams(Tensor logs, Tensor tokens, Tensor alive, Tensor by_rank, Tensor(a!) texts, Tensor(b!) found, "
      "Tensor found_scores, Tensor is_decided, Tensor is_last, int length, int end, float divisor) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def("sample(Tensor logits, float[] settings, float[] numbers) -> Tensor");
  library.def("sampling_weights(Tensor logits, float[] settings) -> Tensor");
  library.def("move(Tensor(a!) keys, Tensor(b!) values, Tensor rows, Tensor place, int width) -> ()");
}

TORCH_LIBRARY_IMPL(glassformer_cpu, CPU, library) {
  library.impl("pack", pack);
  library.impl("linear", linear<multiply_rows>);
  library.impl("groupwise_linear", groupwise::linear);
  library.impl("groupwise_linear.out", groupwise::linear_out);
  library.impl("groupwise_pack_rows", groupwise::pack_rows);
  library.impl("groupwise_read_rows", groupwise::read_rows);
  library.impl("linear.out", linear_out<multiply_rows>);
  library.impl("two_byte_linear", linear<multiply_two_bytes>);
  library.impl("two_byte_linear.out", linear_out<multiply_two_bytes>);
  library.impl("attend", attend);
  library.impl("attend.out", attend_out);
  library.impl("rms_norm", rows::rms_norm);
  library.impl("rms_norm.out", rows::rms_norm_out);
  library.impl("layer_norm", rows::layer_norm);
  library.impl("layer_norm.out", rows::layer_norm_out);
  library.impl("silu_gate", rows::silu_gate);
  library.impl("silu_gate.out", rows::silu_gate_out);
  library.impl("rotate", rows::rotate);
  library.impl("rotate.out", rows::rotate_out);
  library.impl("write_token", rows::write_token);
  library.impl("best", best);
  library.impl("best_few", best_few);
  library.impl("extend_beams", extend_beams);
  library.impl("sample", sample);
  library.impl("sampling_weights", sampling_weights);
  library.impl("move", move);
}
