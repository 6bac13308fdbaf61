// A block of a (some tiles high) and a panel of b (one tile wide) are packed into the order in which a tile reads them. From the L2
// cache the packed copies then arrive as fast as a core multiplies. All threads share the packed panels. Each thread starts at a
// different panel, and the first to reach a panel packs it: slice by slice, between the tiles of the previous panel, whose loops
// prefetch the slice. Every element is summed in the order of families/order.h, whichever thread computes it.
//
// Measured in GFLOP/s on two cores with a peak of 510, first OpenBLAS with its own tiles, then this file: 405 and 450 for
// 512x1024 @ (1024x1024)^T, 410 and 450 for 512x1024 @ 1024x1024, 430 and 450 for (512x1024)^T @ 512x1024, and 180 and 215 in
// float64. With vectors of 32 bytes OpenBLAS reaches 96 % of a core's peak and this code about 88 %. It is used nevertheless, so that
// the bits are the same on every level, and do not depend on the tiles that each thread would give to OpenBLAS.
#include "cpu/large_product.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "cpu/packing.h"
#include "cpu/pool.h"
#include "cpu/small_product.h"
#include "cpu/tile.h"

namespace pb::cpu {
namespace {

constexpr int64_t kMinSide = 128;  // the smallest m and n for this path: below it packing takes too large a share of the work
constexpr int64_t kMinDepth = kOrderBlock;    // the smallest k: below it starting and finishing a tile takes too large a share
constexpr int64_t kPackedColumns = 2048;      // the columns of b whose panels are packed at a time
constexpr int64_t kMinColumnsPerBlock = 256;  // the fewest columns that pay for packing a block of a

constexpr int64_t kResultPrefetchDistance = 64;  // steps of k before the end of a tile: about 500 cycles

template <class T> struct Tile {
  int64_t k;
  const T *a, *b;
  T* out;
  int64_t ldc, rows, columns;
  const T* bias;
  bool add;
  Prefetcher<T> ahead[2];  // one prefetcher for each half of k
};

// Prefetches the cache lines that the tile is written to, including the line that holds the end of a row that is not line-aligned.
template <class T, int kVectors> inline __attribute__((always_inline)) void prefetch_result(const Tile<T>& t) {
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v <= kVectors; ++v) __builtin_prefetch(t.out + r * t.ldc + v * kWidth<T> - (v == kVectors), 1);
}

template <class T, int kVectors> __attribute__((noinline)) void run_tile(const Tile<T>& t) {
  Vector<T> sum[kTileRows][kVectors] = {};
  FinishedBlocks<T, kTileRows, kVectors> finished;
  const T *a = t.a, *b = t.b;
  const int64_t half = t.k / 2, again = std::max(half, t.k - kResultPrefetchDistance);
  prefetch_result<T, kVectors>(t);
  for (int64_t l = 0, block = 0; l < t.k;) {
    if (l == block + kOrderBlock) finished.take(sum), block = l;
    if (l == again) prefetch_result<T, kVectors>(t);  // again, because the L1 cache has evicted these lines meanwhile
    const Prefetcher<T> ahead = t.ahead[l >= half];
    const int64_t from = l >= half ? half : 0, stop = l < half ? half : l < again ? again : t.k;
    for (const int64_t end = std::min(stop, block + kOrderBlock); l < end; ++l, a += kTileRows, b += kPanel<T>) {
      Vector<T> row[kVectors];
      ahead.call(l - from);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) row[v] = load_vector(b + v * kWidth<T>);
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        const Vector<T> left = broadcast<T>(a[r]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add<T>(left, row[v], sum[r][v]);
      }
    }
  }
  finished.finish(sum);
  write_tile(sum, t.out, t.ldc, t.rows, t.columns, t.bias, t.add);
}

enum State : char { kNone, kBegun, kReady };

// A product of all rows of a with as many columns of b as are packed at a time.
template <class T> struct PackedColumns {
  Factor<T> a, b;
  const T* bias;
  T* out;
  int64_t ldc;
  bool add;
  void (*finish)(int64_t, T*);
  T* packed;
  std::atomic<State>* state;  // the state of each panel

  int64_t k() const { return b.depth; }
  T* panel(int64_t number) const { return packed + number * kPanel<T> * k(); }
  bool claim(int64_t number) const {
    State none = kNone;
    return state[number].load(std::memory_order_relaxed) == kNone && state[number].compare_exchange_strong(none, kBegun);
  }
  void pack(int64_t number, int64_t begin, int64_t end) const {
    pack_panel(b, number * kPanel<T>, begin, end, panel(number));
    if (end == k()) state[number].store(kReady, std::memory_order_release);
  }
  void await(int64_t number) const {
    if (claim(number)) return pack(number, 0, k());
    for (int turn = 0; state[number].load(std::memory_order_acquire) != kReady; ++turn)
      if (turn > 10000) std::this_thread::yield();
  }
};

// Rows [first, first + rows) of a times panels [begin, end) of b, starting with panel `at`. `copy` holds the packed rows.
template <class T> struct Block {
  int64_t first, rows, begin, end, at;
  T* copy;
};

// Returns where step i of `steps` steps through k begins, rounded down to whole vectors.
template <class T> int64_t cut(int64_t k, int64_t i, int64_t steps) {
  return i == steps ? k : k * i / steps / kWidth<T> * kWidth<T>;
}

// Computes the tiles of a block and a panel. Between the tiles it packs the next panel, if no other thread does, and after them the
// depths [begin, end) of the next block, `to_come`.
template <class T>
void run_panel(const PackedColumns<T>& p, const Block<T>& block, int64_t at, int64_t next, const Block<T>& to_come,
               int64_t begin, int64_t end) {
  const int64_t k = p.k(), j = at * kPanel<T>, columns = std::min(kPanel<T>, p.b.lines - j);
  const int64_t tiles = (block.rows + kTileRows - 1) / kTileRows;
  const bool mine = p.claim(next);
  // A tile prefetches its share of the next panel twice, at equal intervals: k / tiles rows during k / 2 steps.
  int pace = 0;
  while (tiles / (2 * kLinesPerRow<T>) >= 2 << pace) ++pace;
  T* out = p.out + block.first * p.ldc + j;
  Tile<T> tile{k, block.copy, p.panel(at), out, p.ldc, block.rows, columns, p.bias ? p.bias + j : nullptr, p.add, {}};
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t from = cut<T>(k, i, tiles), to = cut<T>(k, i + 1, tiles), asked = end - begin;
    tile.ahead[1] = prefetcher_of_rows(p.panel(next) + from * kPanel<T>, pace);
    // If this thread packs the next panel, prefetch the panel's source, not its packed copy: a read of what was just stored would
    // wait for all stores of the previous tile.
    tile.ahead[0] = mine ? prefetcher_of_panel(p.b, next * kPanel<T>, from, pace) : tile.ahead[1];
    prefetch_block(p.a, to_come.first, to_come.rows, begin + asked * i / tiles, begin + asked * (i + 1) / tiles);
    if (columns > kWidth<T>) run_tile<T, 2>(tile);
    else run_tile<T, 1>(tile);
    if (mine) p.pack(next, from, to);
    tile.a += sliver<T>(k), tile.out += kTileRows * p.ldc, tile.rows -= kTileRows;
  }
  if (begin < end) pack_block(p.a, to_come.first, to_come.rows, begin, end, to_come.copy);
}

// True if a thread packs its next block during the current one. Two packed blocks fit into the L2 cache with two panels only if k
// is small, and packing takes long only if the rows of a are not contiguous, so that reading them crosses pages.
template <class T> bool packs_ahead(const PackedColumns<T>& p) { return !p.a.along && p.k() <= kLargeDepth<T> / 2; }

template <class T> void run_block(const PackedColumns<T>& p, const Block<T>& block, const Block<T>& to_come) {
  const int64_t panels = block.end - block.begin;
  const bool ahead = to_come.rows > 0;
  int64_t at = block.at;
  for (int64_t turn = 0; turn < panels; ++turn) {
    const int64_t next = at + 1 == block.end ? block.begin : at + 1;
    p.await(at);
    run_panel(p, block, at, next, to_come, ahead ? cut<T>(p.k(), turn, panels) : 0,
              ahead ? cut<T>(p.k(), turn + 1, panels) : 0);
    at = next;
  }
  if (!p.finish) return;
  const int64_t first = block.begin * kPanel<T>, count = std::min(block.end * kPanel<T>, p.b.lines) - first;
  for (int64_t i = 0; i < block.rows; ++i) p.finish(count, p.out + (block.first + i) * p.ldc + first);
}

template <class T> void run_columns(const PackedColumns<T>& shared) {
  const int threads = thread_count();
  const int64_t m = shared.a.lines, height = shared.k() <= kLargeDepth<T> / 2 ? 2 * kBlockRows : kBlockRows;
  const int64_t blocks = (m + height - 1) / height, panels = (shared.b.lines + kPanel<T> - 1) / kPanel<T>;
  const int64_t most = std::max<int64_t>(1, panels / (kMinColumnsPerBlock / kPanel<T>));
  const int64_t groups = std::min(most, (2 * threads + blocks - 1) / blocks), tasks = blocks * groups;
  alignas(64) std::atomic<int64_t> next{0};
  std::atomic<int> arrived{0};
  // Idle threads take the next block dynamically. With a static assignment a block would wait for its thread even if another thread
  // is idle.
  parallel_for(std::min<int64_t>(tasks, threads), 1, [&](int64_t, int64_t) {
    const PackedColumns<T> p =
        shared;  // a copy, because `shared` may lie in cache lines with variables that other threads write
    Scratch scratch;
    T* room[2];
    for (T*& block : room) block = scratch.take<T>(height / kTileRows * sliver<T>(p.k()));
    const bool ahead = packs_ahead(p);
    // The first panel follows from a thread's order of arrival, not from its block: two threads that start at the same panel would
    // wait for each other at every later one.
    const int64_t place = arrived.fetch_add(1) % threads;
    const auto take = [&](int64_t turn) {
      const int64_t t = next.fetch_add(1, std::memory_order_relaxed), i = t / groups, group = t % groups;
      if (t >= tasks) return Block<T>{};
      const int64_t first = i * height, begin = panels * group / groups, end = panels * (group + 1) / groups;
      return Block<T>{first, std::min(height, m - first), begin, end, begin + (end - begin) * place / threads, room[turn % 2]};
    };
    const auto take_copied = [&](int64_t turn) {
      const Block<T> block = take(turn);
      if (block.rows) pack_block(p.a, block.first, block.rows, 0, p.k(), block.copy);
      return block;
    };
    Block<T> block = take_copied(0);
    for (int64_t turn = 1; block.rows; ++turn) {
      const Block<T> to_come = ahead ? take(turn) : Block<T>{};
      run_block(p, block, to_come);
      block = ahead ? to_come : take_copied(0);
    }
  });
}

template <class T> void run(PackedColumns<T> p) {
  const PackedColumns<T> whole = p;
  const int64_t n = p.b.lines, panels = (std::min(n, kPackedColumns) + kPanel<T> - 1) / kPanel<T>;
  Scratch scratch;
  p.packed = scratch.take<T>(panels * kPanel<T> * p.k());
  p.state = scratch.take<std::atomic<State>>(panels);
  for (int64_t j = 0; j < n; j += kPackedColumns) {
    for (int64_t panel = 0; panel < panels; ++panel) p.state[panel].store(kNone, std::memory_order_relaxed);
    p.b.lines = std::min(kPackedColumns, n - j);
    p.b.data = whole.b.at(j, 0), p.out = whole.out + j;
    p.bias = whole.bias ? whole.bias + j : nullptr;
    run_columns(p);
  }
}

template <class T> bool is_large(int64_t m, int64_t n, int64_t k) {
  return std::min(m, n) >= kMinSide && k >= kMinDepth && k <= kLargeDepth<T> && !fits_small_product(m, n, k);
}

int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

template <class T>
bool large_product(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out,
                   void (*finish)(int64_t, T*), bool add) {
  if (!is_large<T>(m, n, k)) return false;
  const Factor<T> left{reinterpret_cast<const T*>(a.data), a.ld, m, k, !a.transposed};
  const Factor<T> right{reinterpret_cast<const T*>(b.data), b.ld, n, k, b.transposed};
  run(PackedColumns<T>{left, right, bias, out, n, add, finish, nullptr, nullptr});
  return true;
}
template bool large_product(int64_t, int64_t, int64_t, const Matrix&, const Matrix&, const float*, float*,
                            void (*)(int64_t, float*), bool);
template bool large_product(int64_t, int64_t, int64_t, const Matrix&, const Matrix&, const double*, double*,
                            void (*)(int64_t, double*), bool);

template <class T> bool large_product_work(int64_t m, int64_t n, int64_t k, int terms, Counts& work) {
  if (!is_large<T>(m, n, k)) return false;
  work = {};
  work.fmas = whole(m, kTileRows) * whole<T>(n) * k;
  work.adds = whole(m, kTileRows) * whole<T>(n) * (kernels::order_blocks(k) - 1) + m * whole<T>(n) * terms;
  return true;
}
template bool large_product_work<float>(int64_t, int64_t, int64_t, int, Counts&);
template bool large_product_work<double>(int64_t, int64_t, int64_t, int, Counts&);

}  // namespace pb::cpu
