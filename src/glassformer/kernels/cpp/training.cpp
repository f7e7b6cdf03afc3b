// CPU kernels of training, as plain C functions. They include nothing of torch, so that they compile in seconds.
#include "headers.h"
#include "threads.h"

namespace {
#include "vectors.h"
#include "rows.h"
#include "training_rows.h"
#include "training_norms.h"
#include "training_attention.h"

#if defined(__AMX_BF16__)
#include "training_products.h"
#endif

void attend(const AttentionCall& call, bool is_backward) {
  parallel_for(call.batch * call.n_groups, call.threads, [&](int64_t first, int64_t end) {
    AttentionWorkspace workspace(call);
    for (int64_t task = first; task < end; ++task) {
      const int64_t b = task / call.n_groups, g = task % call.n_groups;
      is_backward ? workspace.backward(b, g) : workspace.forward(b, g);
    }
  });
}

// Divide n numbers among threads, in whole parts.
template <typename Body>
void parallel_for_numbers(int64_t n, int64_t threads, const Body& body) {
  parallel_for((n + kPart - 1) / kPart, threads, [&](int64_t first, int64_t end) {
    if (first < end) body(first * kPart, std::min(n, end * kPart) - first * kPart);
  });
}
}  // namespace

extern "C" {
void attention_forward(const AttentionCall* call) { attend(*call, false); }
void attention_backward(const AttentionCall* call) { attend(*call, true); }

// Targets are checked by the caller. `losses` has one number for each row.
void cross_entropy(float* logits, const int64_t* targets, int64_t rows, int64_t n, double smoothing, float* losses,
                   int64_t threads) {
  parallel_for(rows, threads, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r)
      losses[r] = cross_entropy_row(logits + r * n, n, targets[r], static_cast<float>(smoothing));
  });
}

void silu_gate_forward(const float* gate, const float* up, int64_t n, float* hidden, int64_t threads) {
  parallel_for_numbers(n, threads, [&](int64_t i, int64_t some) { silu_gate_numbers(gate + i, up + i, some, hidden + i); });
}

void silu_gate_backward(const float* of_hidden, const float* gate, const float* up, int64_t n, float* of_gate, float* of_up,
                        int64_t threads) {
  parallel_for_numbers(n, threads, [&](int64_t i, int64_t some) {
    silu_gate_gradient(of_hidden + i, gate + i, up + i, some, of_gate + i, of_up + i);
  });
}

void dropout(const float* x, int64_t n, int64_t seed, int64_t limit, double scale, float* out, int64_t threads) {
  parallel_for_numbers(n, threads, [&](int64_t first, int64_t some) {
    drop_numbers(x + first, first, some, seed, limit, scale, out + first);
  });
}

// x + dropout(branch), with the elements that `dropout` drops for this seed.
void add_dropout(const float* x, const float* branch, int64_t n, int64_t seed, int64_t limit, double scale, float* out,
                 int64_t threads) {
  parallel_for_numbers(n, threads, [&](int64_t first, int64_t some) {
    for (int64_t i = first; i < first + some; i += kPart) {
      const int64_t count = std::min(kPart, first + some - i);
      drop_numbers(branch + i, i, count, seed, limit, scale, out + i);
      add_row(x + i, count, out + i);
    }
  });
}

// The norm of x + dropout(branch), and its gradients.
void norm_forward(const NormCall* call) {
  parallel_for(call->rows, call->threads, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) add_and_normalize_row(*call, r);
  });
}

void norm_backward(const NormCall* call) {
  const int64_t step = call->rows_per_sum;
  parallel_for((call->rows + step - 1) / step, call->threads, [&](int64_t first, int64_t end) {
    for (int64_t part = first; part < end; ++part) {
      float* sums = call->sums + part * 2 * call->width;
      std::fill_n(sums, 2 * call->width, 0.0f);
      const int64_t last = std::min(call->rows, (part + 1) * step);
      for (int64_t r = part * step; r < last; ++r) norm_row_gradient(*call, r, sums);
    }
  });
}

// Replace x by dropout(relu(x)), with the elements that `dropout` drops for this seed.
void relu_dropout_forward(float* x, int64_t n, int64_t seed, int64_t limit, double scale, int64_t threads) {
  parallel_for_numbers(n, threads, [&](int64_t first, int64_t some) {
    for (int64_t i = first; i < first + some; i += kPart) {
      const int64_t count = std::min(kPart, first + some - i);
      relu_numbers(x + i, count);
      if (limit) drop_numbers(x + i, i, count, seed, limit, scale, x + i);
    }
  });
}

// Replace the gradient of dropout(relu(x)) by that of x, given the result: 0 where an element was dropped or below 0.
void relu_dropout_backward(float* gradient, const float* result, int64_t n, double scale, int64_t threads) {
  parallel_for_numbers(n, threads, [&](int64_t first, int64_t some) {
    relu_gradient_numbers(gradient + first, result + first, some, static_cast<float>(scale));
  });
}

// Return the sum of the squares of n numbers. It does not depend on the number of threads.
double sum_of_squares(const float* x, int64_t n, int64_t threads) {
  const int64_t parts = (n + kPart - 1) / kPart;
  std::vector<double> sums(parts);
  parallel_for(parts, n > 32 * kPart ? threads : 1, [&](int64_t first, int64_t end) {
    for (int64_t part = first; part < end; ++part) {
      Numbers sum = {};
      by_parts(std::min(kPart, n - part * kPart), [&](int64_t i, auto count) {
        const Numbers some = keep_part(load_part(x + part * kPart + i, count), count);
        sum += some * some;
      });
      sums[part] = sum_of(sum);
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

#if defined(__AMX_BF16__)
// Both return 0 if there is no memory for the tiles.
int32_t linear_forward(const LinearCall* call) { return Linears(*call).forward(); }

int32_t linear_backward(const LinearCall* call) {
  thread_local TileMemory memory;
  return Linears(*call).backward(memory);
}
#endif
}
