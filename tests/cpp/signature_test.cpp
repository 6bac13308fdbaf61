// Tests of csrc/launch/signature.h: a signature that cannot be read is refused, with the reason and the place.
#include "launch/signature.h"

#include <cstdio>
#include <stdexcept>
#include <string>

using namespace pb;

namespace {

const Kernel kernel{"f", nullptr, nullptr};
int failed = 0;

void expect(const char* signature, const char* reason) {
  std::string answer = "nothing";
  try {
    const Signature read({&kernel, signature, 1});
  } catch (const std::logic_error& e) {
    answer = e.what();
  }
  if (answer.find(std::string("f") + signature + " " + reason) == 0) return;
  std::printf("%s: %s\n", signature, answer.c_str());
  ++failed;
}

void expect_lead(const char* signature, int lead, int operand, int largest) {
  const Signature read({&kernel, signature, 1});
  if (read.lead == lead && read.lead_operand == operand && read.largest == largest) return;
  std::printf("%s: lead %d, operand %d, largest %d\n", signature, read.lead, read.lead_operand, read.largest);
  ++failed;
}

}  // namespace

int main() {
  expect("x[n]) -> y[n]", "has no (");
  expect("(x[n], y[n]", "has no ,");
  expect("(x[n]) y[n]", "has no ->");
  expect("(x[n]) -> y[n] z[n]", "ends later");
  expect("(x[n) -> y[n]", "has no ,");
  expect("(x[n, ]) -> y[n]", "has no axis");
  expect("(x[(1), n]) -> y[n]", "has an axis too many");
  expect("(x[a, b, c, d, e]) -> y[a]", "has an axis too many");
  expect("(i63 x[n]) -> y[n]", "has an unknown dtype");
  expect("(x[n], number k) -> y[n]", "has an unknown argument");
  expect("(x[n]) -> int k", "has an unknown argument");
  expect("(x[n]) -> y[m]", "has a length that no argument gives");
  expect("(x[n], w[m]?) -> y[n]", "has a length that no argument gives");
  expect("(g[..., (1)]) -> y[...]", "has no array that gives ... and the dtype");
  expect("(int i[...], x[n]) -> y[n]", "has no array that gives ... and the dtype");
  expect("(a[n], b[n], c[n], d[n], e[n], f[n], g[n], h[n]) -> y[n]", "has too many operands");
  expect("(x[a, b, c, d], y[e, f, g, h], length i) -> y[a]", "has too many names");
  expect_lead("(g[..., (1)], x[..., n], y[..., (1)]) -> gx[..., n]", 1, 2, 2);
  expect_lead("(x[...], int labels[..., n], int ignored) -> y[...]", 0, 1, 2);
  expect_lead("(g[n, (1)], logits[n, c], int labels[n]) -> glogits[n, c]", 1, 2, 2);
  expect_lead("(u64 state[2], shape, dtype, real low) -> y[...]", -1, -1, 0);
  expect_lead("(int indices[...], length depth, any dtype) -> y[..., depth]", 0, 1, 0);
  return failed != 0;
}
