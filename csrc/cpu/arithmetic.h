// Runs elementwise steps tile by tile: the steps of arithmetic work on a tile in registers, so that a value which only the next step
// reads is neither stored nor loaded. Each result is rounded as that of its own loop.
#pragma once
#include <cstdint>

#include "cpu/lanes.h"
#include "math/functors.h"

namespace pb::cpu {

constexpr int kTileVectors = 8;
template <class T> constexpr int64_t kTileOf = kTileVectors * kWidth<T>;  // elements of a tile

// What an instruction does with the tile in registers, t, and its operand x: the elements at the same place of an array, or a number.
// clang-format off
enum class Code : uint8_t {
  load, load_number,                                                            // t = x
  store,                                                                        // x = t
  prefetch,                                                                     // prefetches x
  call,                                                                         // runs the loop of a step in memory; t is lost
  abs, negative, sign, sqrt, square,                                            // t = op t
  add, add_number, subtract, subtract_number, multiply, multiply_number,        // t = t op x
  divide, divide_number,
  add_to, add_to_number, subtract_from, subtract_from_number, multiply_to, multiply_to_number,  // t = x op t
  divide_into, divide_into_number,
};
// clang-format on

struct Instruction {
  Code code;
  char* at;      // the operand of the first element
  int64_t step;  // from a block to the next, in bytes
};

template <class T> class Tile {
 public:
  inline __attribute__((always_inline)) void load(const T* from) {
#pragma GCC unroll 8
    for (int k = 0; k < kTileVectors; ++k) t_[k] = load_vector(from + k * kWidth<T>);
  }
  inline __attribute__((always_inline)) void load_number(const T* from) {
#pragma GCC unroll 8
    for (int k = 0; k < kTileVectors; ++k) t_[k] = broadcast<T>(*from);
  }
  inline __attribute__((always_inline)) void store(T* to) const {
#pragma GCC unroll 8
    for (int k = 0; k < kTileVectors; ++k) store_vector(to + k * kWidth<T>, t_[k]);
  }
  // Calls f(t) for each element.
  template <class F> inline __attribute__((always_inline)) void each(const F& f) {
    alignas(kVectorBytes) T elements[kTileOf<T>];
    store(elements);
    for (int64_t k = 0; k < kTileOf<T>; ++k) elements[k] = f(elements[k]);
    load(elements);
  }
  // Calls f(t, x) for each vector.
  template <class F> inline __attribute__((always_inline)) void with(const T* from, const F& f) {
#pragma GCC unroll 8
    for (int k = 0; k < kTileVectors; ++k) t_[k] = f(Lanes<T>(t_[k]), Lanes<T>(load_vector(from + k * kWidth<T>))).v;
  }
  template <class F> inline __attribute__((always_inline)) void with_number(const T* from, const F& f) {
    const Lanes<T> x(*from);
#pragma GCC unroll 8
    for (int k = 0; k < kTileVectors; ++k) t_[k] = f(Lanes<T>(t_[k]), x).v;
  }

 private:
  Vector<T> t_[kTileVectors];
};

// Runs a program for `tiles` tiles. call(k, tile) does the work of instruction k, if it is a call.
template <class T, class Call>
void run_tiles(const Instruction* program, int count, int64_t tiles, const Call& call) {
  const add_forward add;
  const subtract_forward subtract;
  const multiply_forward multiply;
  const divide_forward divide;
  const auto turned = [](const auto& f) { return [&f](Lanes<T> t, Lanes<T> x) { return f(x, t); }; };
  Tile<T> tile{};
  for (int64_t i = 0; i < tiles; ++i) {
    for (int k = 0; k < count; ++k) {
      T* const number = reinterpret_cast<T*>(program[k].at);
      T* const x = number + i * kTileOf<T>;
      switch (program[k].code) {
        case Code::load: tile.load(x); break;
        case Code::load_number: tile.load_number(number); break;
        case Code::store: tile.store(x); break;
        case Code::prefetch:
#pragma GCC unroll 8
          for (int line = 0; line < kTileVectors * kVectorBytes / 64; ++line)
            __builtin_prefetch(x + line * int(64 / sizeof(T)));
          break;
        case Code::call: call(k, i); break;
        case Code::abs: tile.each(abs_forward{}); break;
        case Code::negative: tile.each(negative_forward{}); break;
        case Code::sign: tile.each(sign_forward{}); break;
        case Code::sqrt: tile.each(sqrt_forward{}); break;
        case Code::square: tile.each(square_forward{}); break;
        case Code::add: tile.with(x, add); break;
        case Code::add_number: tile.with_number(number, add); break;
        case Code::subtract: tile.with(x, subtract); break;
        case Code::subtract_number: tile.with_number(number, subtract); break;
        case Code::multiply: tile.with(x, multiply); break;
        case Code::multiply_number: tile.with_number(number, multiply); break;
        case Code::divide: tile.with(x, divide); break;
        case Code::divide_number: tile.with_number(number, divide); break;
        case Code::add_to: tile.with(x, turned(add)); break;
        case Code::add_to_number: tile.with_number(number, turned(add)); break;
        case Code::subtract_from: tile.with(x, turned(subtract)); break;
        case Code::subtract_from_number: tile.with_number(number, turned(subtract)); break;
        case Code::multiply_to: tile.with(x, turned(multiply)); break;
        case Code::multiply_to_number: tile.with_number(number, turned(multiply)); break;
        case Code::divide_into: tile.with(x, turned(divide)); break;
        case Code::divide_into_number: tile.with_number(number, turned(divide)); break;
      }
    }
  }
}

}  // namespace pb::cpu
