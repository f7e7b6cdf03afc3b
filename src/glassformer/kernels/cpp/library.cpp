// CPU kernels that torch lacks, registered as torch operations. `cpp_library.py` compiles this file at first use.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <omp.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <ATen/cpu/Utils.h>
#include <immintrin.h>
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
#include "groupwise.h"
#include "step.h"
#include "choice.h"
#include "groupwise_operations.h"
}  // namespace

TORCH_LIBRARY(glassformer_cpu, library) {
  library.def("pack(Tensor weight) -> Tensor");
  library.def("linear(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int n_in, int n, bool relu) -> Tensor");
  library.def(
      "groupwise_linear(Tensor x, Tensor packed, Tensor? bias, int n_in, int n, int bits, bool has_mins, bool is_half) "
      "-> Tensor");
  library.def(
      "groupwise_pack_rows(Tensor(a!) packed, Tensor codes, Tensor scales, Tensor? mins, int first, int n_in, int n, "
      "int bits) -> ()");
  library.def(
      "groupwise_read_rows(Tensor packed, Tensor rows, int n_in, int n, int bits, bool has_mins, bool is_half) -> Tensor");
  library.def("groupwise_size(int n_in, int n, int bits, bool has_mins, bool is_half) -> int", groupwise::packed_size);
  library.def("attend(Tensor q, Tensor k, Tensor v, Tensor added, Tensor key_end, float scale) -> Tensor");
  library.def("best(Tensor scores) -> (Tensor, Tensor)");
  library.def("best_few(Tensor scores, Tensor bias, int count) -> (Tensor, Tensor)");
  library.def("move(Tensor(a!) keys, Tensor(b!) values, Tensor rows, Tensor place, int width) -> ()");
}

TORCH_LIBRARY_IMPL(glassformer_cpu, CPU, library) {
  library.impl("pack", pack);
  library.impl("linear", linear);
  library.impl("groupwise_linear", groupwise::linear);
  library.impl("groupwise_pack_rows", groupwise::pack_rows);
  library.impl("groupwise_read_rows", groupwise::read_rows);
  library.impl("attend", attend);
  library.impl("best", best);
  library.impl("best_few", best_few);
  library.impl("move", move);
}
