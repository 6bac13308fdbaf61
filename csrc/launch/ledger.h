// What was launched, with its FLOPs and bytes.
#pragma once
#include <cstdint>
#include <vector>

namespace pb {

// Figures of one launch. flops are algorithmic: a multiply-add is 2, by the textbook formula; matmul_flops is the part in
// products; executed_flops is what the kernel really does. special_ops are exp, log, tanh, sqrt, division.
struct Cost {
  int64_t flops = 0, matmul_flops = 0, executed_flops = 0, special_ops = 0, bytes_read = 0, bytes_written = 0;
};

struct Record {
  const char* kernel;
  int phase, scope;
  Cost cost;
  int64_t begin, end;  // marks of the door
};

struct Ledger {
  std::vector<Record> records;
};

}  // namespace pb
