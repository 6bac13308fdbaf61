// Packs the factors of a large product: copies them into the order in which its tiles read them.
#pragma once
#include "cpu/strips.h"

namespace pb::cpu {

constexpr int kTileRows = kRegisters / 4;  // with two vectors of columns, the sums take half of the registers
constexpr int64_t kBlockRows = 64;         // rows of a that are packed at a time; twice as many if k is at most half
template <class T> constexpr int64_t kPanel = 2 * kWidth<T>;  // columns per panel of b
// Returns the size of a packed sliver of a (kTileRows rows), in elements. Its padding keeps slivers from sharing cache sets.
template <class T> int64_t sliver(int64_t depth) { return kTileRows * depth + kWidth<T>; }

// A factor of a product. Its lines are the rows of a or the columns of b; there are `lines` of them, each `depth` elements long. If
// `along`, the elements of a line are contiguous and lines are `ld` elements apart; otherwise it is the reverse.
template <class T> struct Factor {
  const T* data;
  int64_t ld, lines, depth;
  bool along;

  const T* at(int64_t line, int64_t l) const { return data + (along ? line * ld + l : l * ld + line); }
};

// Prefetches one cache line after another, in groups of 2^turn lines. Lines of a group are `down` elements apart, and groups are
// `across` elements apart. It moves on to the next line after 2^pace calls.
template <class T> struct Prefetcher {
  const T* data;
  int64_t down, across;
  int turn, pace;

  // Prefetches a line into the L2 cache, in call i. It is harmless if the line lies beyond the operand.
  inline __attribute__((always_inline)) void call(int64_t i) const {
    i >>= pace;
    __builtin_prefetch(data + (i & ((int64_t{1} << turn) - 1)) * down + (i >> turn) * across, 0, 2);
  }
};

// Calls put(l, v, x) for each vector x, number v, of row l. A row has kCount vectors.
template <int kCount, class T, class Put> inline void copy_rows(int64_t rows, const T* from, int64_t ld, const Put& put) {
  for (int64_t l = 0; l < rows; ++l, from += ld)
#pragma GCC unroll 16
    for (int v = 0; v < kCount; ++v) {
      __builtin_prefetch(from + 16 * ld + v * kWidth<T> + kWidth<T> - 1, 0, 2);
      put(l, v, load_vector(from + v * kWidth<T>));
    }
}

// Packs rows [begin, end) of the panel of b whose first column is `first`. Rows of the copy have kPanel elements, with zeros for
// columns beyond b.
template <class T> void pack_panel(const Factor<T>& b, int64_t first, int64_t begin, int64_t end, T* copy) {
  const T* from = b.at(first, begin);
  T* to = copy + begin * kPanel<T>;
  const int64_t left = b.lines - first, rows = end - begin;
  if (!b.along && left >= kPanel<T>)
    return copy_rows<2>(rows, from, b.ld,
                        [to](int64_t l, int v, const Vector<T>& x) { store_vector(to + l * kPanel<T> + v * kWidth<T>, x); });
  for (int v = 0; v < 2; ++v, to += kWidth<T>) {
    const int64_t columns = std::clamp<int64_t>(left - v * kWidth<T>, 0, kWidth<T>);
    if (b.along) turn_strip(columns, rows, from + v * kWidth<T> * b.ld, b.ld, to, kPanel<T>);
    else
      for (int64_t l = 0; l < rows; ++l) store_vector(to + l * kPanel<T>, load_part(from + l * b.ld + v * kWidth<T>, columns));
  }
}

constexpr int64_t kLineBytes = 64;
template <class T> constexpr int64_t kLine = kLineBytes / int64_t(sizeof(T));
template <class T> constexpr int kLinesPerRow = kPanel<T> > kLine<T> ? 2 : 1;  // of a panel

// Returns a prefetcher for the elements that pack_panel reads, from row `begin` on.
template <class T> Prefetcher<T> prefetcher_of_panel(const Factor<T>& b, int64_t first, int64_t begin, int pace) {
  const T* const data = b.at(first, begin);  // the lines before this element's are prefetched already
  if (b.along) return {data + kLine<T> - 1, b.ld, kLine<T>, __builtin_ctz(unsigned(kPanel<T>)), pace};
  return {data + kLine<T> - 1, kLine<T>, b.ld, kLinesPerRow<T> - 1, pace};
}
// Returns a prefetcher for the rows of a packed panel.
template <class T> Prefetcher<T> prefetcher_of_rows(const T* rows, int pace) { return {rows, kLine<T>, 0, 62, pace}; }

// Packs depths [begin, end) of `rows` rows of a, from row `first` on, into slivers of kTileRows rows.
template <class T>
void pack_block(const Factor<T>& a, int64_t first, int64_t rows, int64_t begin, int64_t end, T* copy) {
  constexpr int kPiece = kTileRows < kWidth<T> ? kTileRows : kWidth<T>;
  const int64_t size = sliver<T>(a.depth), count = end - begin;
  const T* from = a.at(first, begin);
  T* to = copy + begin * kTileRows;
  const auto put = [to, size](int64_t i, int64_t l, const Vector<T>& v) __attribute__((always_inline)) {
    for (int piece = 0; piece < kWidth<T>; piece += kPiece, i += kPiece)
      std::memcpy(to + i / kTileRows * size + l * kTileRows + i % kTileRows, reinterpret_cast<const T*>(&v) + piece,
                  kPiece * sizeof(T));
  };
  const auto place = [&put](int64_t l, int v, const Vector<T>& x) __attribute__((always_inline)) { put(v * kWidth<T>, l, x); };
  if (!a.along && rows == kBlockRows) return copy_rows<int(kBlockRows / kWidth<T>)>(count, from, a.ld, place);
  if (!a.along && rows == 2 * kBlockRows) return copy_rows<int(2 * kBlockRows / kWidth<T>)>(count, from, a.ld, place);
  for (int64_t i = 0; i < rows; i += kWidth<T>) {
    const int64_t left = std::min<int64_t>(kWidth<T>, rows - i);
    if (a.along) turn_strip(left, count, from + i * a.ld, a.ld, [&](int64_t l, const Vector<T>& v) { put(i, l, v); });
    else
      for (int64_t l = 0; l < count; ++l) put(i, l, load_part(from + l * a.ld + i, left));
  }
}

// Prefetches the elements that pack_block reads for depths [begin, end).
template <class T> void prefetch_block(const Factor<T>& a, int64_t first, int64_t rows, int64_t begin, int64_t end) {
  for (int64_t l = begin; l < end; ++l)
    for (int64_t i = 0; i <= rows; i += kWidth<T>) __builtin_prefetch(a.at(first + i, l) - (i == rows), 0, 2);
}

}  // namespace pb::cpu
