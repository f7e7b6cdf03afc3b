// Drawing a token from the logits of one row by temperature, top-k, top-p, min-p and typical p, without sorting the row.
//
// A pass over the row computes a weight per token, e^((x - highest) / temperature), which is 0 for dropped tokens. A filter
// that keeps the first tokens of an order until their weights reach a limit adds up the weights in buckets of neighboring
// keys, in the same pass. The next pass drops the buckets beyond the one in which the limit is reached, whose tokens are
// sorted.
//
// The order of top-k and top-p is that of the logits. Tokens with equal logits are in the order of the vocabulary: top-p
// keeps just enough of them, top-k and typical p keep all that equal the last one.

struct SamplingSettings {
  double temperature, top_k, top_p, min_p, typical_p;  // 1, 0, 1, 0 and 1 change nothing
};

class TokenSampler {
 public:
  // Draw a token from n logits by a uniform number in [0, 1). Any token is returned if one logit is NaN or inf, or all -inf.
  int64_t draw(const float* logits, int64_t n, const SamplingSettings& settings, double number) {
    filter(logits, n, settings);
    double target = number * total_;
    for (size_t block = 0; block < sums_.size(); ++block) {
      if (sums_[block] > target) return draw_in(block * kBlock, target);
      target -= sums_[block];
    }
    for (int64_t token = n - 1; token > 0; --token)  // rounding has put the target beyond the last token
      if (weights_[token] > 0) return token;
    return 0;
  }

  // Compute the weights of n logits, and return them. Those of dropped tokens are 0.
  const float* filter(const float* logits, int64_t n, const SamplingSettings& settings) {
    x_ = logits, n_ = n;
    weights_.resize((n + kBlock - 1) / kBlock * kBlock), sums_.assign(weights_.size() / kBlock, 1.0);
    const float highest = highest_of(tops_of(logits, n)), inverse = static_cast<float>(std::min(1 / settings.temperature, 3e38));
    const float reach = static_cast<float>(std::min(settings.temperature * 32, 1e30));  // weights beyond are below 2e-14
    const auto start = [=](Numbers x, Numbers) { return exp_below((x - highest) * inverse); };
    const auto keep = [](Numbers, Numbers weights) { return weights; };
    const auto by_logit = [](auto x) { return -x; };
    const auto by_count = [](float) { return 1.0; };
    const auto by_weight = [](float weight) { return static_cast<double>(weight); };
    bool is_started = false;
    const auto keep_until = [&](const auto& key_of, float origin, const auto& amount_of, auto limit, bool keeps_equal) {
      if (is_started)
        keep_first(keep, key_of, origin, reach, amount_of, limit, keeps_equal);
      else
        keep_first(start, key_of, origin, reach, amount_of, limit, keeps_equal);
      is_started = true;
    };
    if (0 < settings.top_k && settings.top_k < static_cast<double>(n))
      keep_until(by_logit, -highest, by_count, [&] { return settings.top_k; }, true);
    if (settings.top_p < 1) keep_until(by_logit, -highest, by_weight, [&] { return settings.top_p * total_; }, false);
    const float least = static_cast<float>(settings.min_p);  // the highest weight is 1
    const auto drop_low = [=](Numbers, Numbers weights) { return weights < least ? Numbers{} : weights; };
    if (!is_started)
      update([&](int64_t, Numbers x, Numbers weights) { return drop_low(x, start(x, weights)); });
    else if (least > 0)
      update([&](int64_t, Numbers x, Numbers weights) { return drop_low(x, weights); });
    is_started = true;
    if (settings.typical_p < 1) {
      // The surprisal of a token minus the entropy is (mean of x - x) / temperature.
      const float mean = mean_logit(highest);
      const auto by_distance = [=](auto x) { return x < mean ? mean - x : x - mean; };
      keep_until(by_distance, 0, by_weight, [&] { return settings.typical_p * total_; }, true);
    }
    return weights_.data();
  }

 private:
  static constexpr int64_t kBlock = 512;  // tokens whose weights have one sum
  static constexpr int kBuckets = 1024;
  static constexpr size_t kFew = 256;  // up to this many tokens are sorted

  struct Candidate {
    float key;
    int32_t token;
    bool operator<(const Candidate& other) const { return key < other.key || (key == other.key && token < other.token); }
  };

  // Replace weights by change(first token, logits, weights), a register at a time, and add them up. Blocks without weights
  // are left out. Call `finish` with the first token and the end of each block.
  template <typename Change, typename Finish>
  void update(const Change& change, const Finish& finish) {
    total_ = 0;
    for (size_t block = 0; block < sums_.size(); ++block) {
      if (sums_[block] == 0) continue;
      Numbers sum = {};
      const int64_t first = block * kBlock, end = std::min(n_, first + kBlock);
      float* weights = weights_.data();
      const auto change_at = [&](int64_t i, Numbers x) {
        const Numbers changed = change(i, x, load(weights + i));
        std::memcpy(weights + i, &changed, sizeof(changed));
        sum += changed;
      };
      int64_t i = first;
      for (; i + kTogether <= end; i += kTogether) change_at(i, load(x_ + i));
      if (i < end) change_at(i, load_some(x_ + i, end - i)), i += kTogether;
      std::fill(weights + i, weights + first + kBlock, 0.0f);
      finish(first, end);
      total_ += sums_[block] = sum_of(sum);
    }
    if (total_ < INFINITY) return;
    std::fill(weights_.begin(), weights_.end(), 0.0f), std::fill(sums_.begin(), sums_.end(), 0.0), total_ = 0;
  }
  template <typename Change>
  void update(const Change& change) {
    update(change, [](int64_t, int64_t) {});
  }

  // Return the mean of the logits by their weights.
  float mean_logit(float highest) {
    double mean = 0;
    Numbers sum = {};
    update(
        [&](int64_t, Numbers x, Numbers weights) {
          sum += weights > 0 ? weights * (x - highest) : Numbers{};  // 0 times minus infinity is NaN
          return weights;
        },
        [&](int64_t, int64_t) { mean += sum_of(std::exchange(sum, Numbers{})); });
    return static_cast<float>(highest + mean / total_);
  }

  // Compute the weights by change(logits, weights), and keep the first tokens in the ascending order of their keys, just
  // enough to reach limit(). Each counts by amount_of(weight). With `keeps_equal` all that equal the last one stay, too.
  //
  // Keys are `origin` or more, and the buckets are `reach` wide together. The last bucket also has all keys beyond.
  template <typename Change, typename KeyOf, typename AmountOf, typename Limit>
  void keep_first(const Change& change, const KeyOf& key_of, float origin, float reach, const AmountOf& amount_of,
                  const Limit& limit, bool keeps_equal) {
    const float scale = kBuckets / reach;
    const auto buckets_of = [&](Numbers x) {
      const Numbers last = Numbers{} + static_cast<float>(kBuckets - 1), bucket = (key_of(x) - origin) * scale;
      return __builtin_convertvector(bucket > 0 ? (bucket < last ? bucket : last) : Numbers{}, Wholes);
    };
    int32_t buckets[kBlock];
    std::fill_n(amounts_, kBuckets, 0.0);
    update(
        [&](int64_t i, Numbers x, Numbers weights) {
          const Wholes some = buckets_of(x);
          std::memcpy(buckets + i % kBlock, &some, sizeof(some));
          return change(x, weights);
        },
        [&](int64_t first, int64_t end) {
          const float* weights = weights_.data() + first;
          for (int64_t i = 0; i < end - first; ++i) amounts_[buckets[i]] += amount_of(weights[i]);
        });
    if (total_ == 0) return;
    const double enough = std::max(limit(), 1e-300);  // more than a token that was dropped before
    double before = 0;
    const int chosen = choose_bucket(enough, before);
    candidates_.clear(), is_changed_.assign(sums_.size(), false);
    update([&](int64_t i, Numbers x, Numbers weights) {
      const Wholes some = buckets_of(x), is_chosen = some == chosen;
      if (is_any_above(is_chosen ? Numbers{} + 1.0f : Numbers{}, 0))
        for (int64_t token = i; token < std::min(i + kTogether, n_); ++token)
          if (is_chosen[token - i]) candidates_.push_back({key_of(x_[token]), static_cast<int32_t>(token)});
      return some > chosen ? Numbers{} : weights;
    });
    while (candidates_.size() > kFew && divide(amount_of, enough, before)) {}
    std::sort(candidates_.begin(), candidates_.end());
    size_t last = 0;
    while (last + 1 < candidates_.size() && (before += amount_of(weights_[candidates_[last].token])) < enough) ++last;
    for (size_t i = last + 1; i < candidates_.size(); ++i)
      if (!keeps_equal || candidates_[i].key > candidates_[last].key) drop(candidates_[i].token);
    add_up_changed();
  }

  // Divide the candidates into buckets, drop those beyond the bucket in which the limit is reached, and leave those of this
  // bucket in `candidates_`. Return whether there are fewer now.
  template <typename AmountOf>
  bool divide(const AmountOf& amount_of, double limit, double& before) {
    float least = INFINITY, most = -INFINITY;
    for (const Candidate& one : candidates_) {
      least = std::min(least, one.key);
      if (one.key < INFINITY) most = std::max(most, one.key);
    }
    if (!(most > least)) return false;
    const float scale = kBuckets / (most - least);
    const auto bucket_of = [&](const Candidate& one) {
      const float bucket = (one.key - least) * scale;
      return bucket < kBuckets - 1 ? static_cast<int>(bucket) : kBuckets - 1;
    };
    std::fill_n(amounts_, kBuckets, 0.0);
    for (const Candidate& one : candidates_) amounts_[bucket_of(one)] += amount_of(weights_[one.token]);
    const int chosen = choose_bucket(limit, before);
    const size_t size = candidates_.size();
    std::erase_if(candidates_, [&](const Candidate& one) {
      const int bucket = bucket_of(one);
      if (bucket > chosen) drop(one.token);
      return bucket != chosen;
    });
    return candidates_.size() < size;
  }

  // Return the bucket in which the limit is reached, or the last one that is not 0. Add the buckets ahead of it to `before`.
  int choose_bucket(double limit, double& before) const {
    int last = kBuckets - 1;
    while (last > 0 && amounts_[last] == 0) --last;
    for (int bucket = 0; bucket < last; ++bucket) {
      if (amounts_[bucket] > 0 && before + amounts_[bucket] >= limit) return bucket;
      before += amounts_[bucket];
    }
    return last;
  }

  void drop(int64_t token) { weights_[token] = 0, is_changed_[token / kBlock] = true; }

  void add_up_changed() {
    for (size_t block = 0; block < sums_.size(); ++block) {
      if (!is_changed_[block]) continue;
      Numbers sum = {};
      for (int64_t i = 0; i < kBlock; i += kTogether) sum += load(&weights_[block * kBlock + i]);
      total_ += sum_of(sum) - sums_[block], sums_[block] = sum_of(sum);
    }
  }

  // Return the token of a block at which the weights exceed the target, or the last one above 0.
  int64_t draw_in(int64_t first, double target) const {
    int64_t found = first;
    for (int64_t token = first; token < first + kBlock; ++token) {
      if (weights_[token] == 0) continue;
      found = token;
      target -= weights_[token];
      if (target < 0) break;
    }
    return found;
  }

  const float* x_ = nullptr;
  int64_t n_ = 0;
  std::vector<float> weights_;  // whole blocks
  std::vector<double> sums_;    // of each block
  double total_ = 0, amounts_[kBuckets];
  std::vector<Candidate> candidates_;  // tokens of the bucket in which the limit is reached
  std::vector<char> is_changed_;       // blocks whose sums must be computed again
};
