// One step of beam search after the model's step: the bookkeeping of all sentences in one call. decoding/beam.py explains it
// and does the same in about fifty torch operations, which take longer than their few numbers need.

// The state of one sentence: K hypotheses (alive) and K finished texts, with a buffer of `room` tokens each.
struct Beam {
  int64_t length;               // the number of tokens written so far
  const float* alive;           // (K), log-probabilities
  const int64_t* by_rank;       // (K), the hypotheses from best to worst
  const float* found_scores;    // (K)
  int64_t *texts, *found;       // (K, room) each, changed in place
};

// What a step makes of a sentence, (K) each.
struct NextBeam {
  float* alive;
  int64_t *latest, *parents, *by_rank;
  float* found_scores;
};

// Extends one sentence after the other; keeps its buffers.
class BeamExtender {
 public:
  BeamExtender(int64_t width, int64_t room, int64_t n, int64_t end, float divisor)
      : width_(width), room_(room), n_(n), count_(std::min(2 * width, width * n)), end_(end), divisor_(divisor),
        totals_(count_), values_(width), places_(count_), parents_(count_), tokens_(count_), chosen_(width), child_at_(width),
        texts_(width * room), found_(width * room) {}

  // `logs` and `tokens` (K, n) are the best next tokens of each hypothesis. With `is_last` a text ends with any token.
  void extend(const Beam& beam, const float* logs, const int64_t* tokens, bool is_decided, bool is_last, const NextBeam& to) {
    const bool has_nan = rank(beam, logs, tokens);
    if (is_decided) std::fill(totals_.begin(), totals_.end(), -INFINITY);
    copy_texts(beam, beam.texts, texts_.data());
    collect(beam, is_last, to.found_scores);
    go_on(beam, is_last, to);
    if (has_nan && !is_decided) std::fill_n(to.alive, width_, NAN);
  }

 private:
  const int64_t width_, room_, n_, count_, end_;  // count_ continuations are ranked
  const float divisor_;                           // the score of a text is its log-probability divided by this
  std::vector<float> totals_, values_;
  std::vector<int64_t> places_, parents_, tokens_, chosen_, child_at_, texts_, found_;

  // Find the best continuations: `totals_`, `parents_` and `tokens_`, best first. Return whether any total is NaN.
  bool rank(const Beam& beam, const float* logs, const int64_t* tokens) {
    Few best{totals_.data(), places_.data(), 0, count_};
    bool has_nan = false;
    for (int64_t r = 0; r < width_; ++r)
      for (int64_t place = beam.by_rank[r] * n_, j = 0; j < n_; ++j, ++place) {
        const float total = beam.alive[beam.by_rank[r]] + logs[place];
        has_nan |= total != total;
        best.offer(total != total ? -INFINITY : total, place);
      }
    for (int64_t c = 0; c < count_; ++c) parents_[c] = places_[c] / n_, tokens_[c] = tokens[places_[c]];
    return has_nan;
  }

  bool ends(int64_t c, bool is_last) const { return is_last || tokens_[c] == end_; }

  // Let the continuations that end, and are among the best K, compete with the finished texts, which win ties.
  void collect(const Beam& beam, bool is_last, float* found_scores) {
    Few best{values_.data(), chosen_.data(), 0, width_};
    for (int64_t r = 0; r < width_; ++r) best.offer(beam.found_scores[r], r);
    for (int64_t c = 0; c < std::min(width_, count_); ++c)
      if (ends(c, is_last)) best.offer(totals_[c] / divisor_, width_ + c);
    std::copy_n(values_.begin(), width_, found_scores);
    copy_texts(beam, beam.found, found_.data());
    for (int64_t r = 0; r < width_; ++r) {
      int64_t* to = beam.found + r * room_;
      const int64_t c = chosen_[r] - width_;
      if (c >= 0)
        write_text(beam, c, to);
      else if (chosen_[r] != r)
        std::copy_n(found_.begin() + chosen_[r] * room_, beam.length + 1, to);
    }
  }

  // Make the best K continuations that do not end the new hypotheses.
  void go_on(const Beam& beam, bool is_last, const NextBeam& to) {
    Few best{values_.data(), chosen_.data(), 0, width_};
    for (int64_t c = 0; c < count_; ++c) best.offer(ends(c, is_last) ? -INFINITY : totals_[c], c);
    place_children();
    for (int64_t place = 0; place < width_; ++place) {
      const int64_t child = child_at_[place], c = chosen_[child];
      to.alive[place] = values_[child], to.latest[place] = tokens_[c], to.parents[place] = parents_[c];
      to.by_rank[child] = place;
      write_text(beam, c, beam.texts + place * room_);
    }
  }

  // Find the child at each place. The first child of a parent takes its parent's place, so that fewer rows of the cache
  // move. The others take the free places, in order.
  void place_children() {
    std::fill(child_at_.begin(), child_at_.end(), -1);
    std::vector<int64_t> others;
    for (int64_t child = 0; child < width_; ++child) {
      int64_t& there = child_at_[parents_[chosen_[child]]];
      if (there < 0)
        there = child;
      else
        others.push_back(child);
    }
    auto other = others.begin();
    for (int64_t& there : child_at_)
      if (there < 0) there = *other++;
  }

  // Copy the texts of a sentence. All buffers hold the end token after the written ones, so these need no copy.
  void copy_texts(const Beam& beam, const int64_t* from, int64_t* to) const {
    for (int64_t r = 0; r < width_; ++r) std::copy_n(from + r * room_, beam.length + 1, to + r * room_);
  }

  // Write the text of continuation c: the tokens of its parent and its own.
  void write_text(const Beam& beam, int64_t c, int64_t* to) {
    std::copy_n(texts_.begin() + parents_[c] * room_, beam.length, to);
    to[beam.length] = tokens_[c];
  }
};

// Extend the hypotheses of B sentences by one token each. `logs` and `tokens` (B K, n) are the best next tokens, `alive`,
// `by_rank` and `found_scores` (B, K) and `texts` and `found` (B, K, room) the state, of which the last two change in place.
// `length` tokens are written. Sentences of `is_decided` (B) get no new texts; those of `is_last` (B) end with any token.
// Return the next alive, the newest tokens, the parents within each sentence, by_rank and found_scores, (B, K) each. A NaN
// makes all numbers of its sentence's alive NaN.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> extend_beams(
    const at::Tensor& logs, const at::Tensor& tokens, const at::Tensor& alive, const at::Tensor& by_rank, at::Tensor& texts,
    at::Tensor& found, const at::Tensor& found_scores, const at::Tensor& is_decided, const at::Tensor& is_last, int64_t length,
    int64_t end, double divisor) {
  const int64_t sentences = alive.size(0), width = alive.size(1), n = logs.size(1), room = texts.size(2);
  for (const at::Tensor& tensor : {logs, tokens, alive, by_rank, texts, found, found_scores, is_decided, is_last})
    TORCH_CHECK(tensor.is_contiguous(), "extend_beams: expected contiguous tensors");
  const std::vector<int64_t> sizes{sentences, width}, text_sizes{sentences, width, room};
  TORCH_CHECK(logs.size(0) == sentences * width && tokens.sizes() == logs.sizes() && by_rank.sizes() == at::IntArrayRef(sizes) &&
                  found_scores.sizes() == alive.sizes() && texts.sizes() == at::IntArrayRef(text_sizes) &&
                  found.sizes() == texts.sizes() && is_decided.numel() == sentences && is_last.numel() == sentences,
              say("extend_beams: next tokens ", logs.sizes(), " and texts ", texts.sizes(), " for hypotheses ", alive.sizes()));
  TORCH_CHECK(n > 0 && 0 <= length && length < room, say("extend_beams: ", length, " tokens in buffers of ", room));
  at::Tensor new_alive = at::empty_like(alive), new_scores = at::empty_like(alive);
  at::Tensor latest = at::empty_like(by_rank), parents = at::empty_like(by_rank), new_rank = at::empty_like(by_rank);
  BeamExtender extender(width, room, n, end, static_cast<float>(divisor));
  for (int64_t b = 0; b < sentences; ++b) {
    const int64_t row = b * width;
    const Beam beam{length,
                    alive.const_data_ptr<float>() + row,
                    by_rank.const_data_ptr<int64_t>() + row,
                    found_scores.const_data_ptr<float>() + row,
                    texts.data_ptr<int64_t>() + row * room,
                    found.data_ptr<int64_t>() + row * room};
    const NextBeam to{new_alive.data_ptr<float>() + row, latest.data_ptr<int64_t>() + row, parents.data_ptr<int64_t>() + row,
                      new_rank.data_ptr<int64_t>() + row, new_scores.data_ptr<float>() + row};
    extender.extend(beam, logs.const_data_ptr<float>() + row * n, tokens.const_data_ptr<int64_t>() + row * n,
                    is_decided.const_data_ptr<bool>()[b], is_last.const_data_ptr<bool>()[b], to);
  }
  return {new_alive, latest, parents, new_rank, new_scores};
}
