// Times each launch in the training steps of small networks. The launches take turns.
//
//   make dev, then: objects=$(ls build/dev/CMakeFiles/_cpu_v*.dir/csrc/{cpu,kernels,launch}/*.o)
//   g++ -std=c++17 -O2 -Icsrc benchmarks/kernels/small_steps.cpp $objects build/dev/openblas/*.so -o build/small_steps
//   LD_LIBRARY_PATH=build/dev/openblas build/small_steps
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cpu/pool.h"
#include "families/matmul.h"
#include "families/reduce.h"
#include "families/rows.h"
#include "families/update.h"

using namespace pb;

namespace {

std::mt19937 random_source(1);

struct Array {
  std::vector<float> values;
  View view;

  explicit Array(std::vector<int64_t> shape) {
    int64_t n = 1;
    for (const int64_t length : shape) n *= length;
    values.resize(size_t(n));
    for (float& x : values) x = std::normal_distribution<float>()(random_source);
    view = flat_view(values.data(), DType::f32, n);
    view.ndim = int(shape.size());
    int64_t stride = 4;
    for (int d = view.ndim - 1; d >= 0; --d) view.shape[d] = shape[d], view.stride[d] = stride, stride *= shape[d];
  }
};

struct Timed {
  std::string name;
  std::function<void()> run;
  double best = 1e9;
};
std::vector<Timed> timed;

Launch launch_of(const Kernel& kernel, int outputs, std::vector<View>& operands) {
  return {&kernel, outputs, int(operands.size()) - outputs, operands.data(), {}, {}, nullptr};
}

void add(std::string name, const Kernel& kernel, int outputs, std::vector<View> views, int64_t number = 0,
         const void* table = nullptr) {
  auto* operands = new std::vector<View>(std::move(views));
  Launch launch = launch_of(kernel, outputs, *operands);
  launch.ints[0] = number, launch.table = table;
  timed.push_back({std::move(name), [launch] { run(launch); }});
}

View array(std::vector<int64_t> shape) { return (new Array(std::move(shape)))->view; }
View nothing() {
  View v = flat_view(nullptr, DType::f32, 0);
  return v;
}

void add_linear(int64_t m, int64_t k, int64_t n, bool relu, bool first) {
  const std::string shape = std::to_string(m) + "x" + std::to_string(k) + "->" + std::to_string(n);
  const View x = array({m, k}), w = array({n, k}), b = array({n}), y = array({m, n}), g = array({m, n});
  add("linear " + shape, kernels::linear_forward().kernel, 1, {y, x, w, b}, relu, &kernels::linear_forward());
  add("linear_pullback " + shape, kernels::linear_backward().kernel, 3,
      {first ? nothing() : array({m, k}), array({n, k}), array({n}), g, x, w, y}, relu, &kernels::linear_backward());
}

void add_losses(int64_t rows, int64_t classes) {
  auto* numbers = new std::vector<int64_t>(static_cast<size_t>(rows));
  for (int64_t& label : *numbers) label = int64_t(random_source() % uint32_t(classes));
  const View labels = flat_view(numbers->data(), DType::i64, rows), x = array({rows, classes});
  View g = array({rows, 1}), loss = array({rows, 1});
  const std::string shape = " (" + std::to_string(rows) + ", " + std::to_string(classes) + ")";
  add("cross_entropy" + shape, kernels::cross_entropy, 1, {loss, x, labels}, -100);
  add("cross_entropy_pullback" + shape, kernels::cross_entropy_pullback, 1, {array({rows, classes}), g, x, labels}, -100);
  add("cross_entropy_with_gradient" + shape, kernels::cross_entropy_with_gradient, 2, {loss, array({rows, classes}), g, x, labels},
      -100);
  add("softmax" + shape, kernels::softmax, 1, {array({rows, classes}), x});
}

void add_sum(int64_t n) {
  for (const kernels::Reduction* op : kernels::reductions())
    if (!std::strcmp(op->kernel.name, "sum"))
      add("sum (" + std::to_string(n) + ")", op->kernel, 1, {array({1}), array({n})}, 1, op);
}

void add_adam(int64_t n) {
  const double hyper[] = {0.9, 0.999, 1e-8, 0};
  const auto& rows = kernels::updates();
  const kernels::Update& op = **std::find_if(rows.begin(), rows.end(), [](const kernels::Update* row) {
    return !std::strcmp(row->kernel.name, "adam_step");
  });
  auto* control = new std::vector<double>(16, 0.);
  (*control)[4] = 1, (*control)[5] = 1e30, (*control)[8] = 1e-3;
  View second = array({n});
  for (int64_t i = 0; i < n; ++i) second.as<float>()[i] = 1;
  auto* operands =
      new std::vector<View>{array({n}), array({n}), second, nothing(), flat_view(control->data(), DType::f64, 16), array({n})};
  Launch launch = launch_of(op.kernel, 5, *operands);
  launch.ints[0] = 1, launch.table = &op;
  std::copy_n(hyper, op.hypers, launch.reals);
  timed.push_back({"adam_step (" + std::to_string(n) + ")", [launch] { run(launch); }});
}

double nanoseconds(const std::function<void()>& f, int calls) {
  const int64_t begin = mark();
  for (int i = 0; i < calls; ++i) f();
  return double(mark() - begin) / calls;
}

}  // namespace

// Arguments: the number of threads, the beginning of the names of the launches to time, and the number of rounds.
int main(int count, char** arguments) {
  if (count > 1) cpu::set_thread_count(std::atoi(arguments[1]));
  const int repeats = count > 3 ? std::atoi(arguments[3]) : 60;
  const std::string begins = count > 2 ? arguments[2] : "";
  add_linear(100, 2, 16, true, true), add_linear(100, 16, 16, true, false), add_linear(100, 16, 2, false, false);
  add_losses(100, 2), add_sum(100), add_adam(354);
  add_linear(64, 784, 128, true, true), add_linear(64, 128, 10, false, false), add_losses(64, 10), add_adam(101770);
  add_linear(64, 128, 128, true, false), add_linear(32, 64, 64, true, false);
  for (int repeat = 0; repeat < repeats; ++repeat)
    for (Timed& t : timed) {
      if (t.name.rfind(begins, 0) != 0) continue;
      const int calls = std::max(3, int(5e4 / std::max(50., std::min(t.best, 1e6))));
      t.best = std::min(t.best, nanoseconds(t.run, calls));
    }
  for (const Timed& t : timed)
    if (t.best < 1e9) std::printf("%-48s %10.0f ns\n", t.name.c_str(), t.best);
}
