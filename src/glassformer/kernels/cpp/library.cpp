// CPU kernels that torch lacks, registered as torch operations. `cpp_library.py` compiles this file at first use.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <omp.h>
#include <torch/custom_class.h>
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
#include "step.h"
#include "choice.h"
#include "program.h"
}  // namespace

TORCH_LIBRARY(glassformer_cpu, library) {
  library.class_<Program>("Program").def(torch::init<>()).def("add", &Program::add).def("run", &Program::run).def(
      "size", &Program::size);
  library.def("pack(Tensor weight) -> Tensor");
  library.def("linear(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int n_in, int n, bool relu) -> Tensor");
  library.def(
      "linear.out(Tensor x, Tensor packed, Tensor scales, Tensor? bias, int n_in, int n, bool relu, *, Tensor(a!) out)"
      " -> Tensor(a!)");
  library.def("attend(Tensor q, Tensor k, Tensor v, Tensor added, Tensor key_end, float scale) -> Tensor");
  library.def(
      "attend.out(Tensor q, Tensor k, Tensor v, Tensor added, Tensor key_end, float scale, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("best(Tensor scores) -> (Tensor, Tensor)");
  library.def("best_few(Tensor scores, Tensor bias, int count) -> (Tensor, Tensor)");
  library.def("move(Tensor(a!) keys, Tensor(b!) values, Tensor rows, Tensor place, int width) -> ()");
}

TORCH_LIBRARY_IMPL(glassformer_cpu, CPU, library) {
  library.impl("pack", pack);
  library.impl("linear", linear);
  library.impl("linear.out", linear_out);
  library.impl("attend", attend);
  library.impl("attend.out", attend_out);
  library.impl("best", best);
  library.impl("best_few", best_few);
  library.impl("move", move);
}
