// A thread takes a strip: some rows of positions of an image, or several small images. It copies what they meet into a patch, packs
// panels of two vectors of positions, and multiplies them with all rows of weights. A product with few rows is not packed, because
// packing would be most of the work.
#include "cpu/conv.h"
#include "cpu/pool.h"
#include "cpu/scratch.h"

namespace pb::cpu {
namespace {

constexpr int64_t kStripPositions = 1024;    // positions in a strip, roughly
constexpr int64_t kPatchElements = 1 << 16;  // elements of a patch, roughly: 256 KiB of float32
constexpr int64_t kFewPositions = 256;       // images with fewer positions share a strip
constexpr int64_t kRowsAtATime = 48;         // rows whose sums are computed before they are stored
constexpr int64_t kDirectRows = 2;           // up to this many rows are not packed
constexpr int64_t kDirectVectors = 4;        // vectors of positions that are computed together if nothing is packed
constexpr int64_t kGrain = 400000;           // the fewest multiply-adds per thread
template <class T> constexpr int64_t kPanelColumns = 2 * kWidth<T>;

// How a product is cut into strips.
struct Strips {
  int64_t images, rows;         // in a strip; images is 1 unless rows are all
  int64_t of_images, of_rows;   // the number of strips along each
  int64_t parts, rows_of_part;  // into which the rows of weights are cut, so that each thread has work

  int64_t count() const { return of_images * of_rows; }
};

int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

Strips strips_of(const ConvProduct& p) {
  Strips s{1, p.axis[0].count, 0, 1, 1, p.rows};
  const int64_t across = std::max<int64_t>(1, p.axis[1].count), all = p.positions();
  if (all < kFewPositions) {
    s.images = std::clamp<int64_t>(kFewPositions / std::max<int64_t>(1, all), 1, std::max<int64_t>(1, p.images));
  } else {
    const int64_t row =
        elements_of(p.channels, p.axis[0].phases.size(), p.axis[1].phases.size(), p.axis[1].stored(p.axis[1].count));
    const int64_t fits = std::max<int64_t>(1, kPatchElements / std::max<int64_t>(1, row));
    const int64_t wanted = std::max(parts_of(kStripPositions, across), std::min(fits, parts_of(4 * kStripPositions, across)));
    s.of_rows = parts_of(s.rows, std::min(wanted, s.rows));
    s.rows = parts_of(s.rows, s.of_rows);
    s.of_rows = parts_of(p.axis[0].count, s.rows);
  }
  s.of_images = parts_of(p.images, s.images);
  if (s.count() * p.groups < 8) s.rows_of_part = std::min(p.rows, kRowsAtATime);
  s.parts = p.rows ? parts_of(p.rows, s.rows_of_part) : 0;
  return s;
}

bool is_direct(const ConvProduct& p) { return p.rows <= kDirectRows && p.depth() <= kOrderBlock; }

// One vector of a panel, or a part of it: `at` is its place in the panel and `from` that of its elements in the patch.
struct Move {
  int64_t from, at;
};
// A run of positions of a panel that are neighbours in the result.
struct PositionRun {
  int64_t at, length, to;
};

// The positions of a strip, numbered row by row.
struct StripPositions {
  int64_t across, rows;  // positions in a row; rows in an image of the strip
  int64_t image, width;  // of the patch
  ConvStrides out;

  // Calls piece(at, length, place in the patch, place in the result) for each row of which positions [begin, end) have a piece.
  template <class F> void each(int64_t begin, int64_t end, const F& piece) const {
    int64_t line = begin / across, column = begin % across;
    for (int64_t p = begin; p < end; ++line, column = 0) {
      const int64_t length = std::min(across - column, end - p), i = line / rows, r = line % rows;
      piece(p - begin, length, i * image + r * width + column, i * out.image + r * out.down + column * out.across);
      p += length;
    }
  }
};

// Adds the bias and writes `rows` rows of sums, `ld` apart, to the result.
template <class T>
void store_rows(const T* sums, int64_t ld, int64_t rows, const PositionRun* runs, int count, const T* bias,
                const ConvStrides& s, T* out) {
  for (int64_t r = 0; r < rows; ++r, sums += ld, out += s.row)
    for (int k = 0; k < count; ++k) {
      const T* from = sums + runs[k].at;
      T* to = out + runs[k].to;
      const int64_t n = runs[k].length, apart = s.across;
      if (apart != 1) {
        for (int64_t i = 0; i < n; ++i) to[i * apart] = bias ? from[i] + bias[r] : from[i];
      } else if (bias) {
        const T b = bias[r];
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) to[i] = from[i] + b;
      } else {
        std::copy_n(from, n, to);
      }
    }
}

// Packs a panel: for each step of the contraction, the elements that its positions meet.
template <class T>
void pack_moves(const T* patch, const int64_t* offsets, int64_t depth, const Move* moves, int count, T* to) {
  if (count == 2) {
    const Move a = moves[0], b = moves[1];
    for (int64_t l = 0; l < depth; ++l, to += kPanelColumns<T>) {
      const T* from = patch + offsets[l];
      store_vector(to + a.at, load_vector(from + a.from));
      store_vector(to + b.at, load_vector(from + b.from));
    }
    return;
  }
  for (int64_t l = 0; l < depth; ++l, to += kPanelColumns<T>)
    for (int k = 0; k < count; ++k) store_vector(to + moves[k].at, load_vector(patch + offsets[l] + moves[k].from));
}

// What a thread needs for a strip of one group.
template <class T> struct StripOperands {
  const ConvProduct& p;
  const StripPositions& strip;
  const int64_t* offsets;
  const T *patch, *weights, *bias;
  T *packed, *sums, *out;
  int64_t rows;
};

// Computes the panel of positions [begin, end).
template <class T> void run_panel(const StripOperands<T>& w, int64_t begin, int64_t end) {
  Move moves[2 * kPanelColumns<T>];
  PositionRun runs[kPanelColumns<T>];
  int move = 0, run = 0;
  w.strip.each(begin, end, [&](int64_t at, int64_t length, int64_t from, int64_t to) {
    for (int64_t i = 0; i < length; i += kWidth<T>) moves[move++] = {from + i, at + i};
    if (run && w.strip.out.across == 1 && runs[run - 1].to + runs[run - 1].length == to) runs[run - 1].length += length;
    else runs[run++] = {at, length, to};
  });
  const int64_t depth = w.p.depth(), columns = end - begin;
  pack_moves(w.patch, w.offsets, depth, moves, move, w.packed);
  for (int64_t r = 0; r < w.rows; r += kRowsAtATime) {
    const int64_t rows = std::min(kRowsAtATime, w.rows - r);
    const PanelTile<T> tile{depth,  w.weights + r * depth, depth,   1,    w.packed, kPanelColumns<T>, nullptr,
                            w.sums, kPanelColumns<T>,      columns, false};
    if (columns > kWidth<T>) run_rows<T, 2>(tile, rows);
    else run_rows<T, 1>(tile, rows);
    store_rows(w.sums, kPanelColumns<T>, rows, runs, run, w.bias ? w.bias + r : nullptr, w.strip.out,
               w.out + r * w.strip.out.row);
  }
}

// Computes kVectors vectors of positions of one row without packing them. Loads may reach beyond the row, but not beyond the patch.
template <class T, int kRows, int kVectors>
void run_direct(const StripOperands<T>& w, const T* patch, T* sums) {
  Vector<T> sum[kRows][kVectors] = {};
  const int64_t depth = w.p.depth();
  for (int64_t l = 0; l < depth; ++l) {
    const T* from = patch + w.offsets[l];
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      const Vector<T> weight = broadcast<T>(w.weights[r * depth + l]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add<T>(weight, load_vector(from + v * kWidth<T>), sum[r][v]);
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store_vector(sums + (r * kDirectVectors + v) * kWidth<T>, sum[r][v]);
}

template <class T, int kRows> void run_direct_row(const StripOperands<T>& w, int64_t length, int64_t from, int64_t to) {
  for (int64_t i = 0; i < length;) {
    const int64_t vectors = std::min(kDirectVectors, parts_of(length - i, kWidth<T>)),
                  n = std::min(length - i, vectors * kWidth<T>);
    const T* patch = w.patch + from + i;
    if (vectors == 4) run_direct<T, kRows, 4>(w, patch, w.sums);
    else if (vectors == 3) run_direct<T, kRows, 3>(w, patch, w.sums);
    else if (vectors == 2) run_direct<T, kRows, 2>(w, patch, w.sums);
    else run_direct<T, kRows, 1>(w, patch, w.sums);
    const PositionRun run{0, n, to + i * w.strip.out.across};
    store_rows(w.sums, kDirectVectors * kWidth<T>, w.rows, &run, 1, w.bias, w.strip.out, w.out);
    i += n;
  }
}

template <class T> void run_strip(const StripOperands<T>& w, int64_t positions) {
  if (is_direct(w.p)) {
    w.strip.each(0, positions, [&](int64_t, int64_t length, int64_t from, int64_t to) {
      if (w.rows == 2) run_direct_row<T, 2>(w, length, from, to);
      else run_direct_row<T, 1>(w, length, from, to);
    });
  } else {
    for (int64_t i = 0; i < positions; i += kPanelColumns<T>) run_panel(w, i, std::min(positions, i + kPanelColumns<T>));
  }
}

// Returns what each step of the contraction adds to the place of a position in the patch.
std::vector<int64_t> offsets_in(const ConvProduct& p, const PatchShape& patch) {
  std::vector<int64_t> found;
  found.reserve(size_t(p.depth()));
  for (int64_t c = 0; c < p.channels; ++c)
    for (const int64_t down : p.offsets[0])
      for (const int64_t across : p.offsets[1]) found.push_back(c * patch.channel() + patch.offset(down, across));
  return found;
}

template <class T> bool all_finite(const T* x, int64_t n) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) finite &= m::isfinite(x[i]);
  return finite;
}

template <class T> void run_all_terms(const ConvProduct& p, const T* source, const T* weights, const T* bias, T* out) {
  const Strips strips = strips_of(p);
  const PatchShape shape{{p.axis[0], p.axis[1]}, p.channels, strips.rows};
  const std::vector<int64_t> offsets = offsets_in(p, shape);
  const int64_t depth = p.depth(), area = p.axis[0].length * p.axis[1].length, image = p.groups * p.channels * area;
  const int64_t each = strips.images * strips.rows * p.axis[1].count * strips.rows_of_part * std::max<int64_t>(1, depth);
  const StripPositions positions{p.axis[1].count, strips.rows, shape.image(), shape.width(), p.out};
  parallel_for(strips.count() * p.groups * strips.parts, kGrain / each + 1, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    T* const patch = scratch.take<T>(elements_of(strips.images, shape.image()) + kDirectVectors * kWidth<T>);
    T* const packed = scratch.take<T>(is_direct(p) ? 1 : depth * kPanelColumns<T> + kWidth<T>);
    T* const sums = scratch.take<T>(kRowsAtATime * kPanelColumns<T>);
    std::fill_n(patch + strips.images * shape.image(), kDirectVectors * kWidth<T>, T(0));
    int64_t filled = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task % strips.parts, rest = task / strips.parts, group = rest % p.groups, strip = rest / p.groups;
      const int64_t first = strip / strips.of_rows * strips.images, row = strip % strips.of_rows * strips.rows;
      const int64_t images = std::min(strips.images, p.images - first), rows = std::min(strips.rows, p.axis[0].count - row);
      if (filled != rest)
        for (int64_t i = 0; i < images; ++i)
          fill_image(shape, source + (first + i) * image + group * p.channels * area, row, patch + i * shape.image());
      filled = rest;
      const int64_t from = part * strips.rows_of_part, channel = group * p.rows + from;
      T* to = out + first * p.out.image + group * p.out.group + from * p.out.row + row * p.out.down;
      run_strip<T>({p, positions, offsets.data(), patch, weights + channel * depth, bias ? bias + channel : nullptr, packed,
                    sums, to, std::min(strips.rows_of_part, p.rows - from)},
                   images * rows * p.axis[1].count);
    }
  });
}

}  // namespace

template <class T> void run_product(const ConvProduct& p, const T* source, const T* weights, const T* bias, T* out) {
  if (p.images * p.groups * p.rows * p.positions() == 0) return;
  if (!leaves_out_padding<T>(p) || !all_finite(weights, p.groups * p.rows * p.depth()))
    return run_all_terms(p, source, weights, bias, out);
  const std::vector<char> again = run_images(p, source, weights, bias, out);
  constexpr int64_t kTogether = kPanelColumns<T>;
  for (int64_t k = 0; k < int64_t(again.size()); ++k) {
    if (!again[size_t(k)]) continue;
    ConvProduct part = p;
    part.images = std::min(kTogether, p.images - k * kTogether);
    const int64_t image = p.groups * p.channels * p.axis[0].length * p.axis[1].length;
    run_all_terms(part, source + k * kTogether * image, weights, bias, out + k * kTogether * p.out.image);
  }
}
template void run_product(const ConvProduct&, const float*, const float*, const float*, float*);
template void run_product(const ConvProduct&, const double*, const double*, const double*, double*);

template <class T> Counts work_of_product(const ConvProduct& p) {
  Counts work;
  if (p.images * p.groups * p.rows * p.positions() == 0) return work;
  if (leaves_out_padding<T>(p)) return work_of_images<T>(p);
  const auto whole = [](int64_t n) { return parts_of(n, kWidth<T>) * kWidth<T>; };
  const Strips s = strips_of(p);
  int64_t padded = 0;  // positions of all strips, in whole vectors
  for (int64_t i = 0; i < s.of_images; ++i)
    for (int64_t r = 0; r < s.of_rows; ++r) {
      const int64_t rows = std::min(s.images, p.images - i * s.images) * std::min(s.rows, p.axis[0].count - r * s.rows);
      padded += is_direct(p) ? rows * whole(p.axis[1].count) : whole(rows * p.axis[1].count);
    }
  const int64_t results = padded * p.groups * p.rows, depth = p.depth();
  work.fmas = results * depth;
  work.adds = depth ? results * (kernels::order_blocks(depth) - 1) : 0;
  return work;
}
template Counts work_of_product<float>(const ConvProduct&);
template Counts work_of_product<double>(const ConvProduct&);

}  // namespace pb::cpu
