// torch operations for the matrices of groupwise.h. They check tensors and divide work among threads.
namespace groupwise {
Shape read_shape(int64_t n_in, int64_t n, int64_t bits, bool has_mins, bool is_half) {
  TORCH_CHECK(n > 0 && n_in > 0 && (bits == 4 || bits == 8),
              say("groupwise: ", n, " rows of ", n_in, " weights with ", bits, " bits: expected 4 or 8 bits"));
  return {n, n_in, bits, has_mins, is_half};
}

// Return the number of bytes of a packed matrix (n, n_in).
int64_t packed_size(int64_t n_in, int64_t n, int64_t bits, bool has_mins, bool is_half) {
  return read_shape(n_in, n, bits, has_mins, is_half).bytes();
}

// Write the rows from number `first` on of a packed matrix: codes (rows, groups * 32) int8, scales and minimums
// (rows, groups) in the dtype in which they are stored.
void pack_rows(at::Tensor& packed, const at::Tensor& given_codes, const at::Tensor& given_scales,
               const std::optional<at::Tensor>& given_mins, int64_t first, int64_t n_in, int64_t n, int64_t bits) {
  const bool is_half = given_scales.scalar_type() == at::kHalf;
  const Shape shape = read_shape(n_in, n, bits, given_mins.has_value(), is_half);
  const int64_t rows = given_codes.size(0), groups = shape.groups();
  TORCH_CHECK(given_codes.scalar_type() == at::kChar && given_codes.numel() == rows * groups * kGroup,
              "groupwise pack_rows: expected int8 codes (rows, groups * 32)");
  for (const at::Tensor& numbers : {given_scales, given_mins.value_or(given_scales)})
    TORCH_CHECK(numbers.scalar_type() == (is_half ? at::kHalf : at::kFloat) && numbers.numel() == rows * groups,
                "groupwise pack_rows: expected scales and minimums (rows, groups), both float16 or both float32");
  TORCH_CHECK(first >= 0 && first + rows <= n && packed.is_contiguous() && packed.numel() == shape.bytes(),
              say("groupwise pack_rows: ", rows, " rows from ", first, " on do not fit into a matrix of ", n, " rows"));
  const at::Tensor codes = given_codes.contiguous(), scales = given_scales.contiguous();
  const at::Tensor mins = given_mins.value_or(scales).contiguous();
  const auto *scale_bytes = static_cast<const uint8_t*>(scales.const_data_ptr()),
             *min_bytes = static_cast<const uint8_t*>(mins.const_data_ptr());
  const int64_t step = groups * shape.number_bytes();
  for (int64_t r = 0; r < rows; ++r)
    pack_row(shape, first + r, codes.const_data_ptr<int8_t>() + r * groups * kGroup, scale_bytes + r * step,
             min_bytes + r * step, packed.data_ptr<uint8_t>());
}

// Return rows of a packed matrix as floats: rows (...) int64 -> (..., n_in).
at::Tensor read_rows(const at::Tensor& packed, const at::Tensor& given, int64_t n_in, int64_t n, int64_t bits, bool has_mins,
                     bool is_half) {
  const Shape shape = read_shape(n_in, n, bits, has_mins, is_half);
  TORCH_CHECK(given.scalar_type() == at::kLong && packed.numel() == shape.bytes(),
              "groupwise read_rows: expected int64 row numbers, and a matrix packed in this format");
  const at::Tensor rows = given.contiguous();
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes.push_back(n_in);
  at::Tensor found = at::empty(sizes, packed.options().dtype(at::kFloat));
  const int64_t* numbers = rows.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < rows.numel(); ++r) {
    TORCH_CHECK(0 <= numbers[r] && numbers[r] < n, say("groupwise read_rows: row ", numbers[r], ", expected 0 to ", n - 1));
    read_row(shape, packed.const_data_ptr<uint8_t>(), numbers[r], found.data_ptr<float>() + r * n_in);
  }
  return found;
}

// x (..., n_in) float, packed weights (n, n_in), bias (n) or none -> y (..., n).
at::Tensor& linear_out(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias, int64_t n_in,
                       int64_t n, int64_t bits, bool has_mins, bool is_half, at::Tensor& y) {
  const Shape shape = read_shape(n_in, n, bits, has_mins, is_half);
  TORCH_CHECK(x.dim() > 0 && x.scalar_type() == at::kFloat, "groupwise linear: expected float32 rows");
  TORCH_CHECK(x.size(-1) == n_in, say("groupwise linear: rows of ", x.size(-1), ", expected ", n_in));
  TORCH_CHECK(packed.numel() == shape.bytes() && (!bias || bias->numel() == n),
              "groupwise linear: the packed weights or the bias do not have the size for n_in, n and the format");
  const at::Tensor input = x.contiguous();
  const int64_t m = x.numel() / n_in;
  TORCH_CHECK(y.is_contiguous() && y.scalar_type() == at::kFloat && y.numel() == m * n, "groupwise linear: wrong output");
  const int threads = at::in_parallel_region() ? 1 : threads_for(shape, m, at::get_num_threads());
  multiply(shape, input.const_data_ptr<float>(), m, packed.const_data_ptr<uint8_t>(),
           bias ? bias->const_data_ptr<float>() : nullptr, threads, y.data_ptr<float>());
  return y;
}

// The same, with a new tensor for the result.
at::Tensor linear(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias, int64_t n_in,
                  int64_t n, int64_t bits, bool has_mins, bool is_half) {
  TORCH_CHECK(x.dim() > 0 && n > 0, "groupwise linear: expected float32 rows");
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = n;
  at::Tensor y = at::empty(sizes, x.options());
  return linear_out(x, packed, bias, n_in, n, bits, has_mins, is_half, y);
}
}  // namespace groupwise
