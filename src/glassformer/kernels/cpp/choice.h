// Selecting tokens by their scores over the vocabulary. torch's kernels sort more than is needed and read the scores three
// times.

// Return the index of the first maximum of n numbers, n > 0. NaN counts as higher than any number.
inline int64_t best_of(const float* x, int64_t n) {
  const int64_t whole = n / kTogether * kTogether;
  const Numbers rest = load_some(x + whole, n - whole);
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
  auto find_from = [&](int64_t first) {
    return std::find_if(x + first, x + n, [&](float y) { return is_broken ? y != y : y == most; }) - x;
  };
  if (is_broken) return find_from(0);
  const float below = std::nextafter(most, -INFINITY);  // skip registers without a number above it
  int64_t i = 0;
  while (i < whole && !is_any_above(load(x + i), below)) i += kTogether;
  const int64_t found = find_from(i);
  return found < n ? found : find_from(0);  // no number is above minus infinity, nor above 0 if denormals are flushed
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

// Find the highest values of log_softmax(x) + added, and their indices: as many as `few` has room for, at most n.
inline void best_few_of(const float* x, const float* added, int64_t n, Few few) {
  const int64_t whole = n / kTogether * kTogether;
  const float best = highest_of(x, n);
  Numbers totals = exp_below(load_some(x + whole, n - whole) - best);
  for (int64_t i = 0; i < whole; i += kTogether) totals += exp_below(load(x + i) - best);
  const float taken = best + std::log(sum_of(totals));
  if (taken != taken) {  // a NaN in the row makes every log-probability NaN
    for (int64_t i = 0; i < few.room; ++i) few.values[i] = NAN, few.places[i] = i;
    return;
  }
  auto offer = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) few.offer((x[i] - taken) + added[i], i);
  };
  constexpr int64_t step = 4 * kTogether;
  int64_t i = std::min(n, (few.room + step - 1) / step * step);
  offer(0, i);
  for (; i + step <= n; i += step) {  // skip blocks that have no value above the lowest one kept
    const float least = few.values[few.room - 1];
    auto here = [&](int64_t part) { return (load(x + i + part * kTogether) - taken) + load(added + i + part * kTogether); };
    const Numbers highest = higher_of(higher_of(here(0), here(1)), higher_of(here(2), here(3)));
    if (!is_any_above(highest, least)) continue;
    for (int64_t part = 0, first = i; part < 4; ++part, first += kTogether)
      if (is_any_above(here(part), few.values[few.room - 1])) offer(first, first + kTogether);
  }
  offer(i, n);
}
