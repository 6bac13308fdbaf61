// PB_CHECK_EQ(a, b) checks an equality that the layers above guarantee. A failure is a bug in pullback; the message shows both
// values.
#pragma once
#include <stdexcept>
#include <string>

namespace pb {

template <class A, class B> [[noreturn]] inline void check_failed(const char* file, int line, const char* what, A a, B b) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + what + ", but " + std::to_string(a) + " and " +
                         std::to_string(b) + ". This is a bug in pullback: please report it.");
}

}  // namespace pb

#define PB_CHECK_EQ(a, b)                                                                    \
  do {                                                                                       \
    if (!((a) == (b))) ::pb::check_failed(__FILE__, __LINE__, #a " should equal " #b, a, b); \
  } while (0)
