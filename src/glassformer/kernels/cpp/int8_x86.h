// int8 products on x86 cores: by AMX tiles, AVX-512 VNNI, AVX-512 or AVX2, whichever the library is compiled for.
//
// int8_vnni.h, int8_avx512.h and int8_avx2.h define registers and single instructions; the loops here are the same for all.
// x is stored in blocks of the rows that are multiplied together, 16 bytes of each row after another. So the inner loop
// reads x and the weights from first to last, by one pointer each and constants.

#if defined(__AVX512VNNI__)
#include "int8_vnni.h"
#elif defined(__AVX512F__)
#include "int8_avx512.h"
#else
#include "int8_avx2.h"
#endif

constexpr int64_t kAhead = 0;                // bytes that are read beyond the last panel or row
constexpr int64_t kPiece = 16;               // bytes of a row per iteration: 4 groups of inputs
constexpr int64_t kSlice = 4 * 2 * kHalf;    // bytes of a panel per iteration
constexpr int64_t kFew = 8;                  // up to this many rows, registers are faster than AMX tiles
constexpr int64_t kDistance = 2048;          // prefetch distance within the weights, in bytes

// Rows that are multiplied together: as many as fit into the registers, in passes of nearly equal size.
inline RowLayout layout_for(int64_t m, int64_t kp, bool has_tiles) {
  if (has_tiles && m > kFew) return {kp, 16, 64, true};
  const int64_t passes = std::max<int64_t>(1, (m + kMaxRows - 1) / kMaxRows);
  return {kp, std::max<int64_t>(1, (m + passes - 1) / passes), kPiece, false};
}

template <typename Byte>
Byte* row_of(Byte* x, int64_t r, const RowLayout& layout) {
  const int64_t before = r / layout.together * layout.together;
  return x + before * layout.kp * static_cast<int64_t>(sizeof(Level)) + (r - before) * layout.piece;
}

// Return how many rows are multiplied by one panel before the next panel. AMX needs them in the L1 cache. The others read
// few bytes of x per multiplication, so the L2 cache suffices.
inline int64_t rows_per_block(const RowLayout& layout) {
  const int64_t step = layout.by_tiles ? 32 : layout.together, bytes = layout.by_tiles ? 1 << 15 : 1 << 17;
  return std::max(step, bytes / (layout.kp * static_cast<int64_t>(sizeof(Level))) / step * step);
}

// Call `body` with the constants 0 to N - 1. Compilers do not unroll loops early enough to keep an array in registers.
template <int N, typename Body>
[[gnu::always_inline]] inline void unrolled(const Body& body) {
  if constexpr (N > 0) {
    unrolled<N - 1>(body);
    body(std::integral_constant<int, N - 1>());
  }
}

// Multiply R rows of x, starting at row r, by panel p. Each sum stays in a register. Per group of inputs this takes two
// loads of weights, R loads of activations and 2 R multiplications. Meanwhile it prefetches weights from `ahead` on: as many
// as it reads if it is the only pass over the panel, else half as many, into the L2 cache.
template <int R, bool IsOnly>
void multiply_panel(const Product& product, int64_t p, int64_t r, const int8_t* ahead) {
  constexpr int parts = kParts<R>;  // independent sums of the same result, because an instruction waits for its sum
  constexpr int64_t fetched = IsOnly ? kSlice : kSlice / 2;
  const int8_t *x = row_of(product.x, r, product.layout), *w = product.panel_of(p) + kHead;
  const int64_t step = product.layout.together * kPiece;
  Sums sums[parts * R * 2];
  unrolled<parts * R * 2>([&](auto i) __attribute__((always_inline)) { sums[i] = Sums{}; });
  for (int64_t left_over = product.panel_size - kHead; left_over > 0; left_over -= kSlice) {
    unrolled<fetched / 64>([&](auto line) __attribute__((always_inline)) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 64), IsOnly ? _MM_HINT_T0 : _MM_HINT_T1);
    });
    unrolled<4>([&](auto group) __attribute__((always_inline)) {
      const Sums left = load_weights(w + group * 2 * kHalf), right = load_weights(w + group * 2 * kHalf + kHalf);
      unrolled<R>([&](auto row) __attribute__((always_inline)) {
        constexpr int at = (group % parts * R + row) * 2;
        const Sums same = spread(x + row * kPiece + group * 4);
        sums[at] = add_products(sums[at], same, left);
        sums[at + 1] = add_products(sums[at + 1], same, right);
      });
    });
    x += step, w += kSlice, ahead += fetched;
  }
  const Finish finish_left(product, p, 0), finish_right(product, p, 1);
  unrolled<R>([&](auto row) __attribute__((always_inline)) {
    Sums left = sums[row * 2], right = sums[row * 2 + 1];
    unrolled<parts - 1>([&](auto part) __attribute__((always_inline)) {
      left = add(left, sums[((part + 1) * R + row) * 2]);
      right = add(right, sums[((part + 1) * R + row) * 2 + 1]);
    });
    finish_left(product, r + row, left);
    finish_right(product, r + row, right);
  });
}

using MultiplyPanel = void (*)(const Product&, int64_t, int64_t, const int8_t*);

// multiply_panel<R> at index R - 1.
template <bool IsOnly, int... Before>
constexpr std::array<MultiplyPanel, sizeof...(Before)> panel_functions(std::integer_sequence<int, Before...>) {
  return {multiply_panel<Before + 1, IsOnly>...};
}

// Multiply by registers. Weights come from memory, which is slower than the multiplications: while the passes over the rows
// of a block multiply by one panel, the first two of them prefetch the halves of the next panel. So memory is read most of
// the time, and not only in the first pass. A single pass prefetches what it reads itself soon.
inline void multiply_by_registers(const Product& product, int64_t panels_begin, int64_t panels_end, int64_t rows_begin,
                                  int64_t rows_end) {
  static constexpr auto only = panel_functions<true>(std::make_integer_sequence<int, kMaxRows>());
  static constexpr auto several = panel_functions<false>(std::make_integer_sequence<int, kMaxRows>());
  const int64_t step = product.layout.together, half = product.panel_size / 2;
  if (rows_end - rows_begin <= step) {
    for (int64_t p = panels_begin; p < panels_end; ++p)
      only[rows_end - rows_begin - 1](product, p, rows_begin, product.panel_of(p) + kDistance);
    return;
  }
  for (int64_t p = panels_begin; p < panels_end; ++p)
    for (int64_t r = rows_begin, pass = 0; r < rows_end; r += step, ++pass) {
      const bool is_needed = pass < 2 && p + 1 < panels_end;  // the others prefetch what they read: it is there already
      const int8_t* ahead = is_needed ? product.panel_of(p + 1) + pass * half : product.panel_of(p);
      several[std::min(step, rows_end - r) - 1](product, p, r, ahead);
    }
}

#if defined(__AMX_INT8__)
#include "int8_amx.h"
#endif

inline void Product::multiply(int64_t panels_begin, int64_t panels_end, int64_t rows_begin, int64_t rows_end) const {
#if defined(__AMX_INT8__)
  if (layout.by_tiles) return multiply_by_tiles(*this, panels_begin, panels_end, rows_begin, rows_end);
#endif
  multiply_by_registers(*this, panels_begin, panels_end, rows_begin, rows_end);
}
