// Large products by cuBLASLt. The numeric values of its enumerations come from its documentation: the toolkit that this module is
// built with has no header for it, and the library may be missing at run time.
//
// cuBLASLt reads matrices by columns only. A result (m, n) stored by rows is its transpose stored by columns, so the transposes are
// multiplied in the opposite order: the library's A is b here, and its B is a.
#include "cuda/cublaslt.h"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/copy.cuh"
#include "families/matmul.h"

namespace pb::cuda {
namespace {

using kernels::Precision;

struct Opaque;
using Object = Opaque*;
struct Algorithm {
  uint64_t data[8];
};
struct Found {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct Functions {
  int (*create)(Object*);
  int (*new_product)(Object*, int compute, int scale);
  int (*delete_product)(Object);
  int (*set_product)(Object, int attribute, const void*, size_t);
  int (*new_layout)(Object*, int type, uint64_t rows, uint64_t columns, int64_t ld);
  int (*delete_layout)(Object);
  int (*set_layout)(Object, int attribute, const void*, size_t);
  int (*new_preference)(Object*);
  int (*delete_preference)(Object);
  int (*set_preference)(Object, int attribute, const void*, size_t);
  int (*choose)(Object handle, Object product, Object a, Object b, Object c, Object d, Object preference, int wanted, Found*,
                int* found);
  int (*multiply)(Object handle, Object product, const void* alpha, const void* a, Object a_layout, const void* b,
                  Object b_layout, const void* beta, const void* c, Object c_layout, void* d, Object d_layout, const Algorithm*,
                  void* workspace, size_t workspace_bytes, cudaStream_t);
};
static_assert(sizeof(Functions) == kLibraryCount * sizeof(void*));

enum Type { kFloat = 0, kDouble = 1, kHalf = 2, kBfloat = 14 };
enum Compute { kIn32 = 68, kIn64 = 70, kInTf32 = 77 };
enum ProductAttribute { kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute { kBatchCount = 5, kBatchStride = 6 };
// KAlignment is the attribute of A; B, C and D follow, up to 8.
enum PreferenceAttribute { kMostWorkspace = 1, kReductions = 3, kAlignment = 5 };
constexpr int kEpilogueNone = 1, kEpilogueBias = 4;
constexpr uint32_t kReduceInCompute = 2;  // split-k partial results are added in float32, in an order that does not change
constexpr size_t kMostProducts = 512;

std::atomic<FindLibrary> finder{nullptr};
std::atomic<const Functions*> library{nullptr};  // null: not looked up yet; `missing`: the library was not found
const Functions missing{};

const Functions* functions() {
  const Functions* known = library.load(std::memory_order_acquire);
  if (!known) {
    const FindLibrary find = finder.load();
    if (!find) return nullptr;
    void* addresses[kLibraryCount] = {};
    if (find(addresses)) {
      auto* const table = new Functions;
      std::memcpy(static_cast<void*>(table), addresses, sizeof addresses);
      known = table;
    } else {
      known = &missing;
    }
    const Functions* expected = nullptr;
    if (!library.compare_exchange_strong(expected, known)) known = expected;  // another thread was first
  }
  return known == &missing ? nullptr : known;
}

struct Device {
  Object handle = nullptr;
  bool tried = false;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// A factor in the layout that the library reads.
struct Matrix {
  const char* data;
  int64_t ld;
  bool transposed;
  int64_t stride;  // elements from one matrix of the batch to the next
};

struct Key {
  int device, type, result, compute;
  int64_t m, n, k, batches, ld_a, ld_b, stride_a, stride_b;
  bool transposed_a, transposed_b, biased;
  unsigned alignment_a, alignment_b, alignment_out;

  auto all() const {
    return std::make_tuple(device, type, result, compute, m, n, k, batches, ld_a, ld_b, stride_a, stride_b, transposed_a,
                           transposed_b, biased, alignment_a, alignment_b, alignment_out);
  }
  bool operator<(const Key& other) const { return all() < other.all(); }
};

struct PreparedProduct {
  Object product = nullptr, a = nullptr, b = nullptr, d = nullptr;
  Algorithm algorithm{};
  bool usable = false;
};

struct State {
  std::mutex mutex;
  Device devices[kMaxDevices];
  std::map<Key, PreparedProduct> products;
};
// The state is never destroyed, because threads may still run while the process ends.
State& state() {
  static State* const all = new State;
  return *all;
}

Device& ready_device(const Functions& lt) {
  Device& device = state().devices[current_device()];
  if (device.tried) return device;
  device.tried = true;
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, current_device()), "asking for the architecture");
  const size_t bytes = size_t(major >= 9 ? 32 : 4) << 20;  // the sizes that the library's documentation recommends
  if (lt.create(&device.handle) != 0) device.handle = nullptr;
  if (!device.handle) return device;
  device.workspace = pb::allocate(bytes, Holder::scratch).data;  // never released: it serves all products of the stream
  device.workspace_bytes = bytes;
  return device;
}

void drop(const Functions& lt, PreparedProduct& prepared) {
  if (prepared.product) lt.delete_product(prepared.product);
  for (Object layout : {prepared.a, prepared.b, prepared.d})
    if (layout) lt.delete_layout(layout);
  prepared = {};
}

template <class T> bool set(int (*function)(Object, int, const void*, size_t), Object object, int attribute, T value) {
  return function(object, attribute, &value, sizeof value) == 0;
}

bool make_layout(const Functions& lt, Object& layout, int type, int64_t rows, int64_t columns, int64_t ld, const Key& key,
                 int64_t stride) {
  if (lt.new_layout(&layout, type, uint64_t(rows), uint64_t(columns), ld) != 0) return false;
  return key.batches == 1 ||
         (set(lt.set_layout, layout, kBatchCount, int32_t(key.batches)) && set(lt.set_layout, layout, kBatchStride, stride));
}

// Takes the first algorithm that the library offers. For one version of the library on one kind of device the choice is always the
// same.
bool choose(const Functions& lt, const Device& device, const Key& key, PreparedProduct& prepared) {
  Object preference = nullptr;
  if (lt.new_preference(&preference) != 0) return false;
  bool fine = set(lt.set_preference, preference, kMostWorkspace, uint64_t(device.workspace_bytes)) &&
              set(lt.set_preference, preference, kReductions, kReduceInCompute);
  const unsigned alignment[4] = {key.alignment_b, key.alignment_a, key.alignment_out, key.alignment_out};
  for (int i = 0; fine && i < 4; ++i) fine = set(lt.set_preference, preference, kAlignment + i, uint32_t(alignment[i]));
  Found found{};
  int count = 0;
  fine = fine &&
         lt.choose(device.handle, prepared.product, prepared.a, prepared.b, prepared.d, prepared.d, preference, 1, &found,
                   &count) == 0 &&
         count == 1 && found.state == 0 && found.workspace <= device.workspace_bytes;
  lt.delete_preference(preference);
  prepared.algorithm = found.algorithm;
  return fine;
}

bool prepare(const Functions& lt, const Device& device, const Key& key, const void* bias, PreparedProduct& prepared) {
  if (lt.new_product(&prepared.product, key.compute, key.compute == kIn64 ? kDouble : kFloat) != 0) return false;
  if (!set(lt.set_product, prepared.product, kTransposeA, int32_t(key.transposed_b)) ||
      !set(lt.set_product, prepared.product, kTransposeB, int32_t(key.transposed_a)) ||
      !set(lt.set_product, prepared.product, kEpilogue, uint32_t(key.biased ? kEpilogueBias : kEpilogueNone)) ||
      (key.biased && !set(lt.set_product, prepared.product, kBiasPointer, bias)))
    return false;
  if (!make_layout(lt, prepared.a, key.type, key.transposed_b ? key.k : key.n, key.transposed_b ? key.n : key.k, key.ld_b, key,
                   key.stride_b) ||
      !make_layout(lt, prepared.b, key.type, key.transposed_a ? key.m : key.k, key.transposed_a ? key.k : key.m, key.ld_a, key,
                   key.stride_a) ||
      !make_layout(lt, prepared.d, key.result, key.n, key.m, key.n, key, key.m * key.n))
    return false;
  return choose(lt, device, key, prepared);
}

// Returns the factor with `outers` rows or columns as a matrix of dtype `to`: a view of the factor if the library can read its
// layout, otherwise a copy. left: the factor is a, not b.
Matrix as_matrix(const Product& p, const Factor& f, int64_t outers, const View& steps, DType to, bool left, Scratch& scratch) {
  const int64_t size = item_size(p.dtype);
  const auto fits = [size](int64_t stride, int64_t length) { return stride % size == 0 && stride >= length * size; };
  const bool by_depth = f.depth == size && fits(f.outer, p.k), by_outer = f.outer == size && fits(f.depth, outers);
  const int64_t step = steps.ndim ? steps.stride[0] : 0;
  if (to == p.dtype && (by_depth || by_outer) && step >= 0 && step % size == 0)
    return {f.data, (by_depth ? f.outer : f.depth) / size, left ? !by_depth : by_depth, step / size};
  View from = flat_view(f.data, p.dtype, 0);
  const bool repeats = steps.ndim && step == 0;
  from.ndim = 3;
  from.shape[0] = steps.ndim && !repeats ? steps.shape[0] : 1, from.stride[0] = step;
  // The copy of a transposed factor stays transposed, so that both sides of the copy are contiguous along the same axis.
  const bool swapped = std::abs(f.outer) < std::abs(f.depth);
  from.shape[1] = swapped ? p.k : outers, from.stride[1] = swapped ? f.depth : f.outer;
  from.shape[2] = swapped ? outers : p.k, from.stride[2] = swapped ? f.outer : f.depth;
  const View copy = contiguous_view(scratch.take_bytes(size_t(from.size() * item_size(to))), to, from);
  assign(copy, from);
  return {copy.data, copy.shape[2], left ? swapped : !swapped, repeats ? 0 : outers * p.k};
}

unsigned alignment_of(const void* data) {
  const auto bits = unsigned(reinterpret_cast<uintptr_t>(data)) | 256u;
  return bits & (0u - bits);
}

}  // namespace

void find_library_by(FindLibrary find) { finder = find; }

bool has_library() { return functions() != nullptr; }

bool multiply_by_library(const Product& p) {
  const Functions* const lt = functions();
  if (!lt || !is_float(p.dtype) || p.pulled || p.sums || p.batch[0].ndim > 1) return false;
  const Precision precision = p.dtype == DType::f32 ? kernels::precision() : Precision::exact;
  const DType to = precision == Precision::bf16 ? DType::bf16 : precision == Precision::f16 ? DType::f16 : p.dtype;
  constexpr int types[] = {kHalf, kBfloat, kFloat, kDouble};
  const int64_t batches = p.batch[0].size();
  Scratch scratch;
  const Matrix a = as_matrix(p, p.a, p.m, p.batch[0], to, true, scratch);
  const Matrix b = as_matrix(p, p.b, p.n, p.batch[1], to, false, scratch);
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  if (p.m > kMost || p.n > kMost || p.k > kMost || a.ld > kMost || b.ld > kMost || batches > kMost) return false;

  Key key{current_device(),
          types[int(to)],
          types[int(p.dtype)],
          p.dtype == DType::f64          ? kIn64
          : precision == Precision::tf32 ? kInTf32
                                         : kIn32,
          p.m,
          p.n,
          p.k,
          batches,
          a.ld,
          b.ld,
          a.stride,
          b.stride,
          a.transposed,
          b.transposed,
          p.bias && p.bias_step == item_size(p.dtype) && batches == 1,
          alignment_of(a.data),
          alignment_of(b.data),
          alignment_of(p.out)};
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const Device& device = ready_device(*lt);
    if (!device.handle) return false;
    auto& products = state().products;
    auto found = products.find(key);
    if (found == products.end()) {
      if (products.size() >= kMostProducts) {
        for (auto& entry : products) drop(*lt, entry.second);
        products.clear();
      }
      found = products.emplace(key, PreparedProduct{}).first;
      found->second.usable = prepare(*lt, device, key, p.bias, found->second);
    }
    if (key.biased && !found->second.usable) {  // multiplies without the bias, which finish_rows adds below
      key.biased = false;
      const auto [plain, is_new] = products.emplace(key, PreparedProduct{});
      if (is_new) plain->second.usable = prepare(*lt, device, key, nullptr, plain->second);
      found = plain;
    }
    PreparedProduct& prepared = found->second;
    if (!prepared.usable || (key.biased && !set(lt->set_product, prepared.product, kBiasPointer, p.bias))) return false;
    const float one = 1, kept = p.adds;
    const double wide_one = 1, wide_kept = p.adds;
    const bool wide = key.compute == kIn64;
    const void *alpha = wide ? static_cast<const void*>(&wide_one) : &one,
               *beta = wide ? static_cast<const void*>(&wide_kept) : &kept;
    if (lt->multiply(device.handle, prepared.product, alpha, b.data, prepared.a, a.data, prepared.b, beta, p.out, prepared.d,
                     p.out, prepared.d, &prepared.algorithm, device.workspace, device.workspace_bytes, stream()) != 0) {
      prepared.usable = false;
      return false;
    }
  }
  const bool bias_left = p.bias && !key.biased;
  if (bias_left || p.activation)
    finish_rows(p.dtype, p.out, batches * p.m, p.n, bias_left ? p.bias : nullptr, p.bias_step, p.activation);
  return true;
}

}  // namespace pb::cuda
