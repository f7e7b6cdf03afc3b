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

// The maxima of n numbers: number i belongs to one of kTops classes, of which each has its own. Four independent registers
// hide the latency of the max instruction.
constexpr int64_t kTops = 4 * kTogether;
struct Tops {
  Numbers parts[4];
};

inline Tops tops_of(const float* x, int64_t n) {
  Tops tops;
  std::fill_n(tops.parts, 4, load_some(x, 0));  // minus infinity
  tops.parts[0] = load_some(x + n / kTogether * kTogether, n % kTogether);
  int64_t i = 0;
  for (; i + kTops <= n; i += kTops)
    for (int part = 0; part < 4; ++part) tops.parts[part] = higher_of(tops.parts[part], load(x + i + part * kTogether));
  for (; i + kTogether <= n; i += kTogether) tops.parts[0] = higher_of(tops.parts[0], load(x + i));
  return tops;
}

inline float highest_of(const Tops& tops) {
  return max_of(higher_of(higher_of(tops.parts[0], tops.parts[1]), higher_of(tops.parts[2], tops.parts[3])));
}

// Return a number that at least `count` of the numbers reach: the lowest of the `count` highest tops. It is close to the
// lowest of their `count` highest numbers, because these mostly belong to different classes.
inline float reached_by(const Tops& tops, int64_t count) {
  if (count > kTops) return -INFINITY;
  float numbers[kTops], values[kTops];
  int64_t places[kTops];
  std::memcpy(numbers, tops.parts, sizeof(numbers));
  Few few{values, places, 0, count};
  for (int64_t i = 0; i < kTops; ++i) few.offer(numbers[i], i);
  return values[count - 1];
}

// Find the highest values of log_softmax(x) + added, and their indices: as many as `few` has room for, at most n. `is_zero`
// says that `added` holds only zeros.
inline void best_few_of(const float* x, const float* added, bool is_zero, int64_t n, Few few) {
  const int64_t whole = n / kTogether * kTogether;
  const Tops tops = tops_of(x, n);
  const float best = highest_of(tops);
  Numbers totals = exp_below(load_some(x + whole, n - whole) - best);
  for (int64_t i = 0; i < whole; i += kTogether) totals += exp_below(load(x + i) - best);
  const float log_total = std::log(sum_of(totals));  // not added to `best`: a large sum would lose its last digits
  if (log_total != log_total) {  // a NaN in the row makes every log-probability NaN
    for (int64_t i = 0; i < few.room; ++i) few.values[i] = NAN, few.places[i] = i;
    return;
  }
  auto offer = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) few.offer(((x[i] - best) - log_total) + added[i], i);
  };
  int64_t i = std::min(n, (few.room + kTops - 1) / kTops * kTops);
  offer(0, i);
  // Offer the registers in which `value` is anywhere above `least`, and skip the others, most of them four at a time.
  auto offer_above = [&](const auto& value, const auto& least) {
    for (; i + kTops <= n; i += kTops) {
      auto here = [&](int64_t part) { return value(i + part * kTogether); };
      if (!is_any_above(higher_of(higher_of(here(0), here(1)), higher_of(here(2), here(3))), least())) continue;
      for (int64_t part = 0, first = i; part < 4; ++part, first += kTogether)
        if (is_any_above(here(part), least())) offer(first, first + kTogether);
    }
  };
  if (is_zero) {  // then the numbers themselves tell which are too low; the difference keeps those that are equal
    const float reached = reached_by(tops, few.room), low = reached - 1e-6f * (1 + std::abs(reached));
    offer_above([&](int64_t at) { return load(x + at); }, [&] { return low; });
  } else {
    offer_above([&](int64_t at) { return ((load(x + at) - best) - log_total) + load(added + at); },
                [&] { return few.values[few.room - 1]; });
  }
  offer(i, n);
}
