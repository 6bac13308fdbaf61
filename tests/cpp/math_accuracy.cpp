// Measures every function of csrc/math against a wider type. Prints one line per function: largest error in ulp, bound,
// nanoseconds per element, hash of all results. Exits with 1 if a bound or a special value is missed, or if a vectorized loop and
// single calls give different results. The hashes of v3 and v4 must agree:
//   for v in v2 v3 v4; do
//     g++ -std=c++17 -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off -march=x86-64-$v -Icsrc
//         tests/cpp/math_accuracy.cpp -o math_accuracy && ./math_accuracy | awk '{print $1, $2, $NF}' | md5sum; done
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "math/functors.h"
#include "math/random.h"

// Inlines the function into the loops below, as in the kernels.
#define PB_INLINE __attribute__((always_inline))

namespace {

using pb::m::kInfinity;
using pb::m::kNaN;

template <class T> struct Wider;
template <> struct Wider<float> {
  using type = double;
};
template <> struct Wider<double> {
  using type = long double;
};
template <class T> using wide = typename Wider<T>::type;

int failures = 0;

template <class T> double error_in_ulp(T y, wide<T> exact) {
  if (std::isnan(exact) || std::isnan(y)) return std::isnan(exact) && std::isnan(y) ? 0 : 1e9;
  constexpr T tiny = std::numeric_limits<T>::min();
  if (std::fabs(exact) < tiny) return std::fabs(wide<T>(y) - exact) <= tiny ? 0 : 1e9;  // the result may be flushed to zero
  const T nearest = T(exact);
  if (std::isinf(nearest) || std::isinf(y))
    return nearest == y || (std::isinf(y) && std::fabs(nearest) > std::numeric_limits<T>::max() * T(1 - 1e-6)) ? 0 : 1e9;
  int e;
  (void)std::frexp(exact, &e);
  return double(std::fabs(wide<T>(y) - exact) / std::ldexp(wide<T>(1), e - std::numeric_limits<T>::digits));
}

// The sign of a zero and every non-finite value must be right. A number that the kernels flush to zero counts as one.
template <class T> bool same_kind(T y, wide<T> exact) {
  if (std::isnan(exact)) return std::isnan(y);
  if (std::isinf(exact)) return y == T(exact);
  if (exact == 0) return std::fabs(y) < std::numeric_limits<T>::min() && std::signbit(y) == std::signbit(exact);
  return !std::isnan(y);
}

template <class T> uint64_t hash(const std::vector<T>& y) {
  uint64_t h = 1469598103934665603ull;
  for (T v : y) {
    if (std::isnan(v)) v = kNaN<T>;  // the payload of a NaN is not specified
    h = (h ^ uint64_t(pb::m::bits(v))) * 1099511628211ull;
  }
  return h;
}

template <class F, class T> __attribute__((noinline)) void run(F f, long n, T* out, const T* in) {
#pragma GCC ivdep
  for (long i = 0; i < n; ++i) out[i] = f(in[i]);
}
template <class F, class T> __attribute__((noinline)) void run(F f, long n, T* out, const T* a, const T* b) {
#pragma GCC ivdep
  for (long i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
}

uint64_t state = 88172645463325252ull;
double uniform() {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return double(state >> 11) * 0x1p-53;
}

// Returns n samples: one half spread evenly over [low, high], the other half over the exponents.
template <class T> std::vector<T> samples(double low, double high, long n) {
  std::vector<T> x;
  const double top = std::fmax(std::fabs(low), std::fabs(high)), bottom = low > 0 ? low : std::ldexp(top, -60);
  while (long(x.size()) < n) {
    const double even = low + (high - low) * uniform();
    double scaled = bottom * std::pow(top / bottom, uniform());
    if (low < 0 && (high <= 0 || uniform() < 0.5)) scaled = -scaled;
    x.push_back(T(even));
    if (scaled >= low && scaled <= high) x.push_back(T(scaled));
  }
  return x;
}

template <class T> std::vector<T> special_values() {
  using L = std::numeric_limits<T>;
  std::vector<T> x;
  for (T v : {T(0), L::denorm_min(), L::min(), L::epsilon(), T(0.5), T(1), T(1.5), T(2), T(3), T(1000), L::max(),
              L::infinity()})
    x.push_back(v), x.push_back(-v);
  x.push_back(L::quiet_NaN());
  return x;
}

constexpr long kSamples = 400000;

template <class T, class F> double nanoseconds(F f, double low, double high) {  // for ordinary arguments
  const long n = 4096;
  std::vector<T> x(n), y(n);
  for (T& v : x) v = T(std::fmax(low, -4) + (std::fmin(high, 4) - std::fmax(low, -4)) * uniform());
  double best = 1e9;
  for (int trial = 0; trial < 20; ++trial) {
    const auto start = std::chrono::steady_clock::now();
    f(n, y.data(), x.data());
    best = std::fmin(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / n);
  }
  return best;
}

template <class T> void report(const char* name, double worst, T at, T at2, double bound, double ns, uint64_t h) {
  const bool ok = worst <= bound;
  failures += !ok;
  std::printf("%-14s %-6s %8.3f / %.0f at %-12.6g %-12.6g %7.2f ns %s %016llx\n", name, sizeof(T) == 4 ? "float" : "double",
              worst, bound, double(at), double(at2), ns, ok ? "ok  " : "FAIL", (unsigned long long)h);
}

template <class T, class F, class G>
void check(const char* name, F f, G exact, double bound, double low, double high, bool specials = true) {
  std::vector<T> x = samples<T>(low, high, kSamples), y(x.size());
  run(f, long(x.size()), y.data(), x.data());
  double worst = 0;
  T at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = error_in_ulp(y[i], exact(wide<T>(x[i])));
    if (e > worst) worst = e, at = x[i];
  }
  for (size_t i = 0; i < 1000; ++i) {
    T alone;
    run(f, 1, &alone, &x[i]);
    if (pb::m::bits(alone) != pb::m::bits(y[i]) && alone == alone) {
      std::printf("%s: %a alone gives %a, in a vector %a\n", name, double(x[i]), double(alone), double(y[i])), ++failures;
      break;
    }
  }
  std::vector<T> s = special_values<T>(), t(s.size());
  run(f, long(s.size()), t.data(), s.data());
  for (size_t i = 0; specials && i < s.size(); ++i)
    if (!same_kind(t[i], exact(wide<T>(s[i]))) || (std::isfinite(t[i]) && error_in_ulp(t[i], exact(wide<T>(s[i]))) > bound))
      std::printf("%s<%s>(%g) = %g, not %Lg\n", name, sizeof(T) == 4 ? "float" : "double", double(s[i]), double(t[i]),
                  (long double)exact(wide<T>(s[i]))), ++failures;
  y.insert(y.end(), t.begin(), t.end());
  const double ns = nanoseconds<T>([&](long n, T* out, const T* in) { run(f, n, out, in); }, low, high);
  report(name, worst, at, T(0), bound, ns, hash(y));
}

template <class T, class F, class G>
void check2(const char* name, F f, G exact, double bound, double low_a, double high_a, double low_b, double high_b) {
  std::vector<T> a = samples<T>(low_a, high_a, kSamples), b = samples<T>(low_b, high_b, kSamples);
  for (size_t i = 0; i < b.size(); ++i) std::swap(b[i], b[size_t(uniform() * double(b.size()))]);
  const size_t n = std::min(a.size(), b.size());
  std::vector<T> y(n);
  run(f, long(n), y.data(), a.data(), b.data());
  double worst = 0;
  T at = 0, at2 = 0;
  for (size_t i = 0; i < n; ++i) {
    const double e = error_in_ulp(y[i], exact(wide<T>(a[i]), wide<T>(b[i])));
    if (e > worst) worst = e, at = a[i], at2 = b[i];
  }
  const std::vector<T> s = special_values<T>();
  for (T u : s)
    for (T v : s) {
      const T got = f(u, v);
      const wide<T> want = exact(wide<T>(u), wide<T>(v));
      y.push_back(got);
      if (same_kind(got, T(want)) && (!std::isfinite(got) || error_in_ulp(got, want) <= bound)) continue;
      if (std::fabs(want) < std::numeric_limits<T>::min() && std::fabs(got) <= std::numeric_limits<T>::min()) continue;
      std::printf("%s<%s>(%g, %g) = %g, not %Lg\n", name, sizeof(T) == 4 ? "float" : "double", double(u), double(v),
                  double(got), (long double)want), ++failures;
    }
  for (T& v : b) v = T(std::fmax(low_b, -4) + (std::fmin(high_b, 4) - std::fmax(low_b, -4)) * uniform());
  const double ns = nanoseconds<T>([&](long k, T* out, const T* in) { run(f, k, out, in, b.data()); }, low_a, high_a);
  report(name, worst, at, at2, bound, ns, hash(y));
}

template <class W> W erfinv_exact(W x) {  // Newton's method; the complement keeps the tails accurate
  if (!(std::fabs(x) < 1)) return std::fabs(x) == 1 ? std::copysign(kInfinity<W>, x) : kNaN<W>;
  const W p = 1 - std::fabs(x), slope = W(1.1283791670955125738961589031L);
  W y = W(pb::m::erfinv(double(std::fabs(x))));
  if (std::fabs(x) < W(1e-3)) y = std::fabs(x) / slope;
  for (int k = 0; k < 4; ++k)
    y += (std::fabs(x) < W(0.5) ? std::fabs(x) - std::erf(y) : std::erfc(y) - p) / (slope * std::exp(-y * y));
  return std::copysign(y, x);
}
template <class W> W python_remainder(W a, W b) {
  const W r = std::fmod(a, b);
  return r == 0 ? std::copysign(W(0), b) : (r < 0) != (b < 0) ? r + b : r;
}

// digamma and trigamma by reflection, 16 steps up, and Stirling's series there. Close to a zero of digamma the value loses digits.
constexpr long double kPi = 3.14159265358979323846264338327950288L;
constexpr long double kBernoulli[] = {1 / 6.0L,  -1 / 30.0L,       1 / 42.0L, -1 / 30.0L,
                                      5 / 66.0L, -691 / 2730.0L, 7 / 6.0L,  -3617 / 510.0L};
template <class W> W digamma_exact(W x) {
  const W turn = W(kPi) * (x - std::rint(x));
  if (x < 0 && (turn == 0 || std::isinf(x))) return kNaN<W>;
  if (x == 0) return -1 / x;
  if (x < W(0.5)) return digamma_exact(1 - x) - W(kPi) / std::tan(turn);
  W y = 0, power = 1;
  for (int k = 0; k < 16; ++k) y -= 1 / (x + k);
  const W w = x + 16;
  for (int k = 1; k <= 8; ++k) power /= w * w, y -= W(kBernoulli[k - 1]) / (2 * k) * power;
  return y + (std::log(w) - 1 / (2 * w));
}
template <class W> W trigamma_exact(W x) {
  if (std::isinf(x)) return x > 0 ? W(0) : kNaN<W>;
  const W pole = W(kPi) / std::sin(W(kPi) * (x - std::rint(x)));
  if (x < W(0.5)) return pole * pole - trigamma_exact(1 - x);
  W y = 0, power = 1;
  for (int k = 15; k >= 0; --k) y += 1 / ((x + k) * (x + k));
  const W w = x + 16;
  for (int k = 1; k <= 8; ++k) power /= w * w, y += W(kBernoulli[k - 1]) * power / w;
  return y + (1 / w + 1 / (2 * w * w));
}

// big bounds |x|, and e bounds it for exponentials, which overflow beyond it. For normal_cdf in double the lower limit is -20,
// because its reference loses bits further out.
template <class T> void check_all() {
  using W = wide<T>;
  constexpr bool f32 = sizeof(T) == 4;
  const double big = f32 ? 1e37 : 1e300, e = f32 ? 88 : 709;
#define PB_CHECK(name, bound, low, high) \
  check<T>(#name, [](T x) PB_INLINE { return pb::m::name(x); }, [](W x) -> W { return std::name(x); }, bound, low, high)
  PB_CHECK(exp, 2, -e, e);
  PB_CHECK(exp2, 2, -e, e);
  PB_CHECK(expm1, 2, -40, e);
  PB_CHECK(log, 1, 1e-37, big);
  check<T>("log_near_1", [](T x) PB_INLINE { return pb::m::log(x); }, [](W x) -> W { return std::log(x); }, 1, 0.5, 2);
  PB_CHECK(log2, 4, 1e-37, 100);
  PB_CHECK(log10, 4, 1e-37, 100);
  PB_CHECK(log1p, 1, -1, 100);
  PB_CHECK(tanh, 2, -20, 20);
  PB_CHECK(sinh, 4, -e, e);
  PB_CHECK(cosh, 4, -e, e);
  PB_CHECK(asinh, 4, -100, 100);
  PB_CHECK(acosh, 4, 1, 100);
  PB_CHECK(atanh, 4, -1, 1);
#define PB_CHECK_TURNS(name)                                                                                            \
  check<T>(#name, [](T x) PB_INLINE { return pb::m::name(x); }, [](W x) -> W { return std::name(x); }, 4, -1e5, 1e5, false);      \
  check<T>(#name "_8e12", [](T x) PB_INLINE { return pb::m::name(x); }, [](W x) -> W { return std::name(x); }, 4, -8e12, 8e12, false)
  PB_CHECK_TURNS(sin);
  PB_CHECK_TURNS(cos);
  PB_CHECK_TURNS(tan);
  PB_CHECK(asin, 4, -1, 1);
  PB_CHECK(acos, 4, -1, 1);
  PB_CHECK(atan, 4, -100, 100);
  PB_CHECK(erf, 2, -6, 6);
  PB_CHECK(erfc, 4, -6, f32 ? 9.2 : 26.5);
  check<T>("erfinv", [](T x) PB_INLINE { return pb::m::erfinv(x); }, erfinv_exact<W>, 4, -1, 1);
#define PB_CHECK_GAMMA(name, function, exact, bound, low, high) \
  check<T>(name, [](T x) PB_INLINE { return pb::m::function(x); }, [](W x) -> W { return exact(x); }, bound, low, high)
  PB_CHECK_GAMMA("lgamma", lgamma, std::lgamma, 4, 0, 100);
  PB_CHECK_GAMMA("lgamma_large", lgamma, std::lgamma, 4, 0, f32 ? 1e36 : 1e304);
  PB_CHECK_GAMMA("lgamma_negative", lgamma, std::lgamma, 4, -2, 0);
  PB_CHECK_GAMMA("digamma", digamma, digamma_exact, 4, 0, 1.3);
  PB_CHECK_GAMMA("digamma_large", digamma, digamma_exact, 4, 1.6, 1e6);
  PB_CHECK_GAMMA("digamma_negative", digamma, digamma_exact, 4, -0.2, 0);
  PB_CHECK_GAMMA("trigamma", trigamma, trigamma_exact, 4, f32 ? 1e-18 : 1e-150, 1e6);
  PB_CHECK_GAMMA("trigamma_negative", trigamma, trigamma_exact, 5, -100, f32 ? -1e-18 : -1e-150);
  PB_CHECK(sqrt, 1, 0, big);
  PB_CHECK(floor, 0, -1e6, 1e6);
  PB_CHECK(ceil, 0, -1e6, 1e6);
  PB_CHECK(trunc, 0, -1e6, 1e6);
  check<T>("round", [](T x) PB_INLINE { return pb::m::round(x); }, [](W x) -> W { return std::rint(x); }, 0, -100, 100);
  check<T>("rsqrt", [](T x) PB_INLINE { return pb::m::rsqrt(x); }, [](W x) -> W { return 1 / std::sqrt(x); }, 4, 0, big);
  check<T>("normal_cdf", [](T x) PB_INLINE { return pb::m::normal_cdf(x); },
           [](W x) -> W { return W(0.5) * std::erfc(-x * W(0.70710678118654752440L)); }, 4, f32 ? -13 : -20, 9);
  check<T>("gelu", [](T x) PB_INLINE { return pb::m::gelu(x); },
           [](W x) -> W { return std::isinf(x) ? (x > 0 ? x : W(-0.0)) : x * W(0.5) * std::erfc(-x * W(0.70710678118654752440L)); },
           4, f32 ? -13 : -20, 9);
  check<T>("sigmoid", [](T x) PB_INLINE { return pb::m::sigmoid(x); }, [](W x) -> W { return 1 / (1 + std::exp(-x)); }, 4, -e, e);
  check<T>("softplus", [](T x) PB_INLINE { return pb::m::softplus(x); },
           [](W x) -> W { return std::fmax(x, W(0)) + std::log1p(std::exp(-std::fabs(x))) + (std::isnan(x) ? x : 0); }, 4, -e, e);
  check<T>("silu", [](T x) PB_INLINE { return pb::m::silu(x); },
           [](W x) -> W { return x < -W(2000) ? W(-0.0) : x / (1 + std::exp(-x)); }, 4, f32 ? -80 : -700, 100);
#define PB_CHECK2(name, bound, ...) \
  check2<T>(#name, [](T a, T b) PB_INLINE { return pb::m::name(a, b); }, [](W a, W b) -> W { return std::name(a, b); }, bound, __VA_ARGS__)
  PB_CHECK2(pow, 4, 0, 100, -20, 20);
  check2<T>("pow_near_1", [](T a, T b) PB_INLINE { return pb::m::pow(a, b); }, [](W a, W b) -> W { return std::pow(a, b); }, 4, 0.9, 1.1,
            -1000, 1000);
  check2<T>("pow_large", [](T a, T b) PB_INLINE { return pb::m::pow(a, b); }, [](W a, W b) -> W { return std::pow(a, b); }, 4, 1,
            big, 0.5, 1);
  check2<T>("pow_squares", [](T a, T b) PB_INLINE { return pb::m::pow(a, pb::m::round(b)); },
            [](W a, W b) -> W { return std::pow(a, std::rint(b)); }, 4, -50, 50, -8, 8);
  PB_CHECK2(atan2, 4, -10, 10, -10, 10);
  PB_CHECK2(hypot, 4, -big, big, -big, big);
  PB_CHECK2(copysign, 0, -10, 10, -10, 10);
  check2<T>("remainder", [](T a, T b) PB_INLINE { return pb::m::remainder(a, b); }, python_remainder<W>, 1, -1000, 1000, -10, 10);
}

void check_half() {
  for (uint32_t h = 0; h < 65536; ++h) {  // every value survives the conversion to float and back
    const float x = pb::float16::from_bits(uint16_t(h)), y = pb::bfloat16::from_bits(uint16_t(h));
    failures += pb::float16(x).bits != h && !(x != x && (pb::float16(x).bits & 0x7c00) == 0x7c00);
    failures += pb::bfloat16(y).bits != h && y == y;
    const int e = int(h >> 10) & 31, mantissa = int(h) & 1023;
    const double value = (e ? std::ldexp(1024 + mantissa, e - 25) : std::ldexp(mantissa, -24)) * (h >> 15 ? -1 : 1);
    failures += e == 31 ? !(mantissa ? x != x : std::isinf(x)) : double(x) != value;
    if (e == 31 || e == 30) continue;  // halfway values round to the even neighbour, all others to the nearest
    const float next = pb::float16::from_bits(uint16_t(h + 1)), middle = 0.5f * (x + next);
    failures += pb::float16(middle).bits != (h & 1 ? h + 1 : h);
    failures += pb::float16(std::nextafter(middle, x)).bits != h || pb::float16(std::nextafter(middle, next)).bits != h + 1;
  }
  failures += pb::float16(65519.996f).bits != 0x7bff || pb::float16(65520.0f).bits != 0x7c00 || pb::float16(1e30f).bits != 0x7c00;
  failures += float(pb::bfloat16(1.00390625f)) != 1.0f || float(pb::bfloat16(1.01171875f)) != 1.015625f;
  failures += !std::isinf(float(pb::bfloat16(3.4e38f))) || !std::isnan(float(pb::bfloat16(kNaN<float>)));
}

void check_integers() {
  const int64_t least = std::numeric_limits<int64_t>::min();
  for (int64_t a = -20; a <= 20; ++a)
    for (int64_t b = -5; b <= 5; ++b) {
      const int64_t q = b ? int64_t(std::floor(double(a) / double(b))) : 0;
      failures += pb::m::floor_divide(a, b) != q || pb::m::remainder(a, b) != (b ? a - q * b : 0);
    }
  failures += pb::m::floor_divide(least, int64_t(-1)) != least || pb::m::remainder(least, int64_t(-1)) != 0;
  failures += pb::m::pow(int64_t(-3), int64_t(5)) != -243 || pb::m::pow(uint64_t(2), uint64_t(63)) != 1ull << 63;
  failures += pb::m::right_shift(int64_t(-8), int64_t(70)) != -1 || pb::m::left_shift(int64_t(1), int64_t(64)) != 0;
}

void check_philox() {  // the vectors published with Random123
  struct Known {
    uint64_t seed;
    pb::random::Counter counter;
    uint32_t words[4];
  };
  for (const Known& k : {Known{0, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                         Known{~0ull, {~0ull, ~0ull}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                         Known{0x299f31d0a4093822, {0x85a308d3243f6a88, 0x0370734413198a2e},
                               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}})
    for (int i = 0; i < 4; ++i) failures += pb::random::philox(k.seed, k.counter).w[i] != k.words[i];
}

}  // namespace

int main() {
  check_philox();
  check_half();
  check_integers();
  if (failures) std::printf("random, half or integers: %d wrong\n", failures);
  check_all<float>();
  check_all<double>();
  std::printf("failures %d\n", failures);
  return failures ? 1 : 0;
}
