// Reads the signatures of kernels.
#include "launch/signature.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <stdexcept>

namespace pb {
namespace {

std::vector<KernelRow>& rows() {
  static std::vector<KernelRow> all;  // made by the first table, whichever it is
  return all;
}

int find(std::initializer_list<const char*> words, const std::string& word) {
  return int(std::find(words.begin(), words.end(), word) - words.begin());
}

class Reader {
 public:
  explicit Reader(Signature& out) : out_(out), at_(out.row.signature) {}

  void read() {
    expect("(");
    while (!take(")")) {
      if (out_.arguments) expect(",");
      read_part(out_.arguments, out_.argument);
    }
    expect("->");
    do read_part(out_.results, out_.result);
    while (take(","));
    if (*at_) fail("ends later");
    if (names_.size() > kMostParts) fail("has too many names");
    find_lead();
    find_largest();
    find_first();
  }

 private:
  [[noreturn]] void fail(const char* why) {
    throw std::logic_error(std::string(out_.row.kernel->name) + out_.row.signature + " " + why + " before \"" + at_ + "\"");
  }
  bool take(const char* token) {
    while (*at_ == ' ') ++at_;
    const size_t size = std::strlen(token);
    if (std::strncmp(at_, token, size) != 0) return false;
    at_ += size;
    return true;
  }
  void expect(const char* token) {
    if (!take(token)) fail((std::string("has no ") + token).c_str());
  }
  std::string word() {
    std::string letters;
    while (*at_ == ' ') ++at_;
    while (std::isalnum(static_cast<unsigned char>(*at_)) || *at_ == '_') letters += *at_++;
    return letters;
  }
  int name_of(const std::string& word) {
    const auto number = int(std::find(names_.begin(), names_.end(), word) - names_.begin());
    if (number == int(names_.size())) names_.push_back(word);
    return number;
  }

  void read_part(int& count, Signature::Part* parts) {
    if (count == kMostParts) fail("has too many parts");
    Signature::Part& part = parts[count++];
    const std::string first = word(), second = word();
    if (first == "any") out_.any = true;
    if (take("[")) {
      const int type = find({"int", "i64", "u64", "bool", "wide"}, first);
      if (!second.empty() && first != "any") part.type = Signature::Type(1 + type);
      if (first.empty() || part.type > Signature::wide) fail("has an unknown dtype");
      out_.indexed |= part.type == Signature::integers;
      read_axes(part);
      part.optional = take("?");
    } else {
      const std::string& kind = first == "any" ? second : first;
      part.kind = Signature::Kind(1 + find({"int", "real", "flag", "axis", "axes", "length", "shape", "dtype"}, kind));
      if (part.kind > Signature::dtype || parts != out_.argument) fail("has an unknown argument");
      if (part.kind == Signature::length) part.axis[0] = {int8_t(name_of(second)), false, 0};
    }
  }
  void read_axes(Signature::Part& part) {
    while (!take("]")) {
      if (part.dots || part.axes) expect(",");
      if (part.droppable || part.axes == kMostAxes) fail("has an axis too many");
      if (part.axes == 0 && !part.dots && take("...")) {
        part.dots = true;
        if (take("/")) part.cut = !word().empty();
        continue;
      }
      part.droppable = take("(");
      const std::string axis = word();
      if (axis.empty()) fail("has no axis");
      const bool number = std::isdigit(static_cast<unsigned char>(axis[0]));
      part.axis[part.axes++] = {int8_t(number ? -1 : name_of(axis)), false, int16_t(number ? std::stoi(axis) : 0)};
      if (part.droppable) expect(")");
    }
  }

  // Returns how many lengths an array has that differ from call to call; `...` counts as more than all names.
  static int size_of(const Signature::Part& part) {
    int size = part.dots && !part.cut ? 2 * kMostAxes : 0;
    for (int a = 0; a < part.axes; ++a) size += part.axis[a].name >= 0;
    return size;
  }
  // Calls f(part, its number among the arguments, its position among the operands) for each array that cannot be None.
  template <class F> void each_array(const F& f) {
    int operand = out_.results;
    bool shifts = false;  // a None before it moves an operand
    for (int k = 0; k < out_.arguments; ++k) {
      const Signature::Part& part = out_.argument[k];
      if (part.kind != Signature::array) continue;
      shifts |= part.optional;
      if (!shifts) f(part, k, operand);
      ++operand;
    }
    if (operand > kMostParts) fail("has too many operands");
  }
  void find_lead() {
    int best = -1;
    bool dots = false;
    each_array([&](const Signature::Part& part, int k, int operand) {
      dots |= part.dots;
      if (part.cut || part.droppable || (!part.dots && part.type != Signature::shared)) return;
      const int size = size_of(part) + (part.type == Signature::shared ? 4 * kMostAxes : 0);
      if (size > best) best = size, out_.lead = k, out_.lead_operand = operand;
    });
    const bool none = out_.lead < 0;
    each_array([&](const Signature::Part& part, int, int) {
      const bool typed = !none && out_.argument[out_.lead].type == Signature::shared;
      if ((part.type == Signature::shared && !typed) || (dots && (none || !out_.argument[out_.lead].dots)))
        fail("has no array that gives ... and the dtype");
    });
  }
  void find_largest() {
    int most = -1;
    const auto consider = [&](const Signature::Part& part, int operand) {
      if (size_of(part) > most) most = size_of(part), out_.largest = operand;
    };
    each_array([&](const Signature::Part& part, int, int operand) { consider(part, operand); });
    for (int k = 0; k < out_.results; ++k) consider(out_.result[k], k);
  }
  // Marks where a call reads each name first, and checks that every name has a length then.
  void find_first() {
    bool met[kMostParts] = {};
    const auto meet = [&](Signature::Part& part, bool may_be_first) {
      const int named = part.kind == Signature::length ? 1 : part.axes;
      for (int a = 0; a < named; ++a) {
        Signature::Axis& axis = part.axis[a];
        if (axis.name < 0 || met[axis.name]) continue;
        if (!may_be_first) fail("has a length that no argument gives");
        axis.first = met[axis.name] = true;
      }
    };
    if (out_.lead >= 0) meet(out_.argument[out_.lead], true);
    for (int k = 0; k < out_.arguments; ++k) meet(out_.argument[k], !out_.argument[k].optional);
    for (int k = 0; k < out_.results; ++k) meet(out_.result[k], false);
  }

  Signature& out_;
  const char* at_;
  std::vector<std::string> names_;
};

}  // namespace

KernelRows::KernelRows(std::initializer_list<KernelRow> more) { rows().insert(rows().end(), more); }
const std::vector<KernelRow>& kernel_rows() { return rows(); }

Signature::Signature(const KernelRow& row) : row(row) { Reader(*this).read(); }

}  // namespace pb
