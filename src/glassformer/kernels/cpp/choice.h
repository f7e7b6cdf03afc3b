// Selecting tokens by their scores over the vocabulary. torch's kernels sort more than is needed and read the scores three
// times.

// Return the maximum of each row (N, V) and its first index. NaN counts as higher than any number.
std::tuple<at::Tensor, at::Tensor> best(const at::Tensor& scores) {
  TORCH_CHECK(scores.dim() == 2 && scores.size(1) > 0, "best: expected a two-dimensional tensor with non-empty rows");
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
      const float most = max_of(bests);
      const float* place = std::find_if(x, x + width, [&](float y) { return is_broken ? y != y : y == most; });
      highest.data_ptr<float>()[r] = *place;
      places.data_ptr<int64_t>()[r] = place - x;
    }
  });
  return {highest, places};
}

// The `room` highest values offered so far with their indices, in descending order. Ties keep the order of arrival.
struct Few {
  float* values;
  int64_t *places, n = 0, room;

  void offer(float value, int64_t place) {
    if (n == room && !(value > values[n - 1])) return;
    int64_t at = n < room ? n++ : n - 1;
    for (; at > 0 && value > values[at - 1]; --at) values[at] = values[at - 1], places[at] = places[at - 1];
    values[at] = value, places[at] = place;
  }
};

// Return the maximum of n numbers. Four independent registers hide the latency of the max instruction.
inline float highest_of(const float* x, int64_t n) {
  constexpr int64_t step = 4 * kTogether;
  Numbers bests[4];
  std::fill_n(bests, 4, load_some(x + n / kTogether * kTogether, n % kTogether));
  int64_t i = 0;
  for (; i + step <= n; i += step)
    for (int part = 0; part < 4; ++part) bests[part] = higher_of(bests[part], load(x + i + part * kTogether));
  for (; i + kTogether <= n; i += kTogether) bests[0] = higher_of(bests[0], load(x + i));
  return max_of(higher_of(higher_of(bests[0], bests[1]), higher_of(bests[2], bests[3])));
}

// Return the `count` highest values of log_softmax(scores) + bias in each row (N, V), and their indices. `bias` is (V).
std::tuple<at::Tensor, at::Tensor> best_few(const at::Tensor& scores, const at::Tensor& bias, int64_t count) {
  const int64_t width = scores.size(-1), whole = width / kTogether * kTogether;
  TORCH_CHECK(scores.dim() == 2 && 0 < count && count <= width && bias.numel() == width,
              say("best_few: count ", count, ", scores ", scores.sizes(), ", bias of ", bias.numel()));
  const at::Tensor given = scores.contiguous(), more = bias.contiguous();
  at::Tensor values = at::empty({given.size(0), count}, given.options());
  at::Tensor places = at::empty({given.size(0), count}, given.options().dtype(at::kLong));
  const float *from = given.const_data_ptr<float>(), *added = more.const_data_ptr<float>();
  at::parallel_for(0, given.size(0), 8192 / width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = from + r * width;
      Few few{values.data_ptr<float>() + r * count, places.data_ptr<int64_t>() + r * count, 0, count};
      const float best = highest_of(x, width);
      Numbers totals = exp_below(load_some(x + whole, width - whole) - best);
      for (int64_t i = 0; i < whole; i += kTogether) totals += exp_below(load(x + i) - best);
      const float taken = best + std::log(sum_of(totals));
      if (taken != taken) {  // a NaN in the row makes every log-probability NaN
        for (int64_t i = 0; i < count; ++i) few.values[i] = NAN, few.places[i] = i;
        continue;
      }
      auto offer = [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) few.offer((x[i] - taken) + added[i], i);
      };
      constexpr int64_t step = 4 * kTogether;
      const int64_t start = std::min(width, (count + step - 1) / step * step);
      offer(0, start);
      int64_t i = start;
      for (; i + step <= width; i += step) {  // skip blocks that have no value above the lowest one kept
        auto here = [&](int64_t part) { return (load(x + i + part * kTogether) - taken) + load(added + i + part * kTogether); };
        const Numbers highest = higher_of(higher_of(here(0), here(1)), higher_of(here(2), here(3)));
        if (!is_any_above(highest, few.values[count - 1])) continue;
        for (int64_t part = 0, first = i; part < 4; ++part, first += kTogether)
          if (is_any_above(here(part), few.values[count - 1])) offer(first, first + kTogether);
      }
      offer(i, width);
    }
  });
  return {values, places};
}
