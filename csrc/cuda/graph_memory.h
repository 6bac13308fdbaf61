// The working memory of a graph's kernels. It belongs to the graph for as long as the graph can be launched.
#pragma once
#include <vector>

#include "launch/memory.h"

namespace pb::cuda {

class GraphMemory {
 public:
  GraphMemory() = default;
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  ~GraphMemory() {
    for (const Allocation& block : all_) pb::release(block);
  }

  // Lets this thread's Scratch take its pieces from the graph's memory, for the lifetime of the object. A piece that is given back
  // is reused by later kernels of the graph, which run after the earlier ones.
  class Use {
   public:
    explicit Use(GraphMemory& memory) : before_(current) { current = &memory; }
    ~Use() { current = before_; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    GraphMemory* before_;
  };
  static thread_local GraphMemory* current;

  Allocation take(size_t bytes) {
    for (size_t k = 0; k < free_.size(); ++k) {
      if (free_[k].bytes < bytes || free_[k].bytes > 2 * bytes + 4096) continue;
      const Allocation block = free_[k];
      free_.erase(free_.begin() + long(k));
      return block;
    }
    all_.push_back(pb::allocate(bytes, Holder::graphs));
    return all_.back();
  }
  void give_back(const Allocation& block) { free_.push_back(block); }

 private:
  std::vector<Allocation> all_, free_;
};

}  // namespace pb::cuda
