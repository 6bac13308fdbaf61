// Learning rates as functions of the step: the schedules that an update evaluates on its device.
#pragma once
#include "math/settings.h"

namespace pb {

// The learning rate as a function of t, the number of steps that the optimizer has done before this one. After `steps` steps the
// rate no longer changes.
enum class Schedule : int {
  constant,       // base
  step,           // base * factor^floor(t / every)                                     arguments: every, factor
  exponential,    // base * factor^t                                                               factor
  cosine,         // from base to end along half a cosine                                          steps, end
  linear,         // from base * start to base * end                                               steps, start, end
  polynomial,     // end + (base - end) * (1 - t / steps)^power                                    steps, end, power
  warmup_cosine,  // linearly from start to base in `warmup`, a cosine to end at `steps`  steps, end, warmup, start
  multi_step,     // base * factor^(number of milestones <= t); a milestone of 0 is none           factor, six milestones
  one_cycle,      // from base / divisor up to base in `warmup` * steps - 1 steps, and down to base / divisor / last divisor at
                  // step steps - 1, each along half a cosine or a line. With three phases it first falls to base / divisor in
                  // as many steps as it rises.          steps, warmup, divisor, last divisor, 1: linear, 1: three phases
  restarts,       // half a cosine from base to end again and again, each `growth` times as long   steps, growth, end
  cyclic,         // from base to high in `up` and back in `down`; high - base shrinks by `factor` in a cycle and by
                  // `decay` in a step                                                     high, up, down, factor, decay
  warmup_stable,  // linearly from start to base in `warmup`, base, and in the last `decay` steps to end: a share x of them later
                  // end + (base - end) * (1 - x^power)                    steps, warmup, decay, end, start, power
  held,           // base * factor in the first `steps` steps, then base                           steps, factor
  // These read the program, the rows of kSetSize numbers that follow the sets of a table. Their first two arguments are the first
  // of their rows and a count.
  many_steps,  // as multi_step, with any number of milestones in ascending order           row, milestones, factor
  table,       // rate t of a list, and the last one after these                            row, rates
  plateau,     // the present rate in a row that observe() moves                            row, 1
  sequence,    // one piece after another, each from its first step on                      row, pieces
  product,     // the product of the rates of its pieces                                    row, pieces
  // The other kinds of rows. A row that is a piece has the layout of a set, with one of the kinds above, and its first step in
  // kClock. A piece of a product may be a sequence; otherwise a piece is neither.
  numbers,  // kNumbers numbers of a list
  watch,    // the state of a plateau (below)
};
constexpr int kNumbers = kSchedule;  // how many numbers of a list are in a row
constexpr int kMostFactors = 32;     // the most pieces of a product

// The state of reduce-on-plateau, as a row of the program. kRate has the present rate, kBaseRate the first one, and kClock the number
// of steps before which observations do not count, because another piece of a sequence determines the rate.
// arguments: factor, patience, threshold, cooldown, end, 1: maximize, 1: relative.
enum PlateauIndex : int {
  kBest = kState,  // the best metric so far
  kBad,            // how many observations in a row were not better
  kResting,        // how many observations remain of the time in which bad ones do not count
  kMember,         // the member whose metric is observed
};

// Returns x^n for a whole n >= 0, by repeated squaring, because one thread of a GPU computes it while its block waits.
PB_COLD double whole_power(double x, double n) {
  double y = 1;
  for (auto rest = uint64_t(n); rest; rest >>= 1) {
    if (rest & 1) y *= x;
    x *= x;
  }
  return y;
}

PB_COLD double quotient(double a, double b) { return a / b; }
PB_HD double fraction(double t, double steps) { return t < steps ? quotient(t, steps) : 1; }

// Returns (1 + cos(pi x)) / 2 for 0 <= x <= 1. m::cos(), which takes angles of any size, would be long code.
PB_HD double half_cosine(double x) {
  constexpr double kHalfPi = 1.57079632679489661923, kLow = 6.123233995736766e-17;  // their sum is pi / 2
  const double quarters = m::round(2 * x), rest = 2 * kHalfPi * x - quarters * kHalfPi, low = -quarters * kLow;
  const double cosine = m::cos_reduced(rest, low), sine = m::sin_reduced(rest, low);
  return (1 + (quarters == 0 ? cosine : quarters == 1 ? -sine : -cosine)) / 2;
}

// Returns number k of the list that begins in a row.
PB_HD double number_of(const Setting* program, double row, int64_t k) {
  return program[(int64_t(row) + k / kNumbers) * kSetSize + k % kNumbers];
}

// Returns how many numbers of an ascending list are at most t.
PB_HD double count_up_to(double t, const Setting* program, double row, double count) {
  int64_t least = 0, most = int64_t(count);
  while (least < most) {
    const int64_t middle = (least + most) / 2;
    if (number_of(program, row, middle) <= t) least = middle + 1;
    else most = middle;
  }
  return double(least);
}

// A rate between two rates: to + (from - to) * share. The share is x^power, or (1 + cos(pi * x)) / 2 if the power is negative; or
// what is left of 1.
struct Between {
  double from, to, x, power = -1;
  bool rest = false;
};

// Returns the point of a line after the part x of the way.
PB_HD double line(double from, double to, double x) { return from + (to - from) * x; }

PB_HD Between one_cycle(double t, double base, const Setting* argument) {
  const bool three = argument[5] != 0;
  const double first = quotient(base, argument[2]), last = argument[0] - 1;
  const double top = argument[1] * argument[0] - 1, middle = three ? 2 * top : top;  // where the phases end
  if (t <= top) return {first, base, top > 0 ? quotient(t, top) : 1};
  if (t <= middle) return {base, first, quotient(t - top, middle - top)};
  return {three ? first : base, quotient(first, argument[3]), fraction(t - middle, last - middle)};
}

PB_HD double part_of_restarts(double t, double length, double growth) {
  if (growth == 1) return quotient(t - length * m::floor(quotient(t, length)), length);
  for (; t >= length; length *= growth) t -= length;
  return quotient(t, length);
}

PB_HD double cyclic_rate(double t, double base, const Setting* argument) {
  const double high = argument[0], up = argument[1], down = argument[2];
  const double cycle = m::floor(quotient(t, up + down)), rest = t - cycle * (up + down);
  const double height = (high - base) * (rest < up ? quotient(rest, up) : quotient(up + down - rest, down));
  return base + height * whole_power(argument[3], cycle) * whole_power(argument[4], t);
}

// Returns the rate of a set or a piece that is neither a sequence nor a product. Powers are evaluated in one place, because their
// code is long.
PB_HD double rate_of_piece(const Setting* piece, double t, const Setting* program) {
  const double base = piece[kBaseRate];
  const Setting* argument = piece + kArgument;
  Between rate{base, argument[1], 0};
  switch (Schedule(int(piece[kSchedule]))) {
    case Schedule::step: return base * whole_power(argument[1], m::floor(quotient(t, argument[0])));
    case Schedule::exponential: return base * whole_power(argument[0], t);
    case Schedule::cosine: rate.x = fraction(t, argument[0]); break;
    case Schedule::linear: return base * line(argument[1], argument[2], fraction(t, argument[0]));
    case Schedule::polynomial: rate.x = 1 - fraction(t, argument[0]), rate.power = argument[2]; break;
    case Schedule::warmup_cosine: {
      const double warmup = argument[2];
      if (t < warmup) return line(argument[3], base, quotient(t, warmup));
      rate.x = fraction(t - warmup, argument[0] - warmup);
      break;
    }
    case Schedule::multi_step: {
      double passed = 0;
      for (int k = 1; k < kArguments; ++k)
        if (argument[k] > 0 && argument[k] <= t) ++passed;
      return base * whole_power(argument[0], passed);
    }
    case Schedule::one_cycle: {
      rate = one_cycle(t, base, argument);
      if (argument[4] != 0) return line(rate.from, rate.to, rate.x);
      break;
    }
    case Schedule::restarts: rate.to = argument[2], rate.x = part_of_restarts(t, argument[0], argument[1]); break;
    case Schedule::cyclic: return cyclic_rate(t, base, argument);
    case Schedule::warmup_stable: {
      const double warmup = argument[1], decay = argument[2], falls = argument[0] - decay;
      if (t < warmup) return line(argument[4], base, quotient(t, warmup));
      if (t < falls) return base;
      rate.to = argument[3], rate.x = decay > 0 ? fraction(t - falls, decay) : 1, rate.power = argument[5];
      rate.rest = true;
      break;
    }
    case Schedule::held: return t < argument[0] ? base * argument[1] : base;
    case Schedule::many_steps: return base * whole_power(argument[2], count_up_to(t, program, argument[0], argument[1]));
    case Schedule::table: return number_of(program, argument[0], int64_t(t < argument[1] ? t : argument[1] - 1));
    case Schedule::plateau: return program[int64_t(argument[0]) * kSetSize + kRate];
    default: return base;
  }
  const double share = rate.power >= 0 ? m::pow(rate.x, rate.power) : half_cosine(rate.x);
  return rate.to + (rate.from - rate.to) * (rate.rest ? 1 - share : share);
}

PB_HD bool has(const Setting* row, Schedule kind) { return int(row[kSchedule]) == int(kind); }

// Returns how many factors the rate of a set has: the pieces of a product, or 1.
PB_HD int factors_of(const Setting* set) { return has(set, Schedule::product) ? int(set[kArgument + 1]) : 1; }

// Returns factor k of a set's rate in its next step. `program` is the first row after the sets.
PB_HD double factor_of_rate(const Setting* set, const Setting* program, int k) {
  const auto first_of = [program](const Setting* row) { return program + int64_t(row[kArgument]) * kSetSize; };
  double t = set[kClock];
  const Setting* piece = has(set, Schedule::product) ? first_of(set) + k * kSetSize : set;
  if (has(piece, Schedule::sequence)) {
    const Setting* const last = first_of(piece) + int64_t(piece[kArgument + 1] - 1) * kSetSize;
    piece = first_of(piece);
    while (piece < last && piece[kSetSize + kClock] <= t) piece += kSetSize;
    t -= piece[kClock];
  }
  return rate_of_piece(piece, t, program);
}

// Begins a step with the learning rate that its schedule has, and counts it. The clock advances after the step, in the sets of all
// parameters.
PB_HD void begin_step(Setting* set, double rate) {
  set[kRate] = rate * set[kRateScale];
  set[kStep] += 1;
}
PB_HD void begin_step(Setting* set, const Setting* program) {
  double rate = 1;
  for (int k = 0; k < factors_of(set); ++k) rate *= factor_of_rate(set, program, k);
  begin_step(set, rate);
}

// Moves the state of reduce-on-plateau by one observation, as torch.optim.lr_scheduler.ReduceLROnPlateau does.
PB_HD void observe_metric(Setting* row, double metric) {
  constexpr double kLeastChange = 1e-8;  // a smaller reduction is not done
  const Setting* argument = row + kArgument;
  const double threshold = argument[2], best = row[kBest];
  const bool maximize = argument[5] != 0, relative = argument[6] != 0;
  const double margin = maximize ? threshold : -threshold, bound = relative ? best * (1 + margin) : best + margin;
  row[kBad] += 1;
  if (maximize ? metric > bound : metric < bound) row[kBest] = metric, row[kBad] = 0;
  if (row[kResting] > 0) row[kResting] -= 1, row[kBad] = 0;
  if (row[kBad] <= argument[1]) return;
  const double rate = row[kRate] * argument[0], reduced = rate < argument[4] ? argument[4] : rate;
  if (row[kRate] - reduced > kLeastChange) row[kRate] = reduced;
  row[kResting] = argument[3], row[kBad] = 0;
}

}  // namespace pb
