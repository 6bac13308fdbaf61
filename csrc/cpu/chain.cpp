// The implementation of chain.h.
#include "cpu/chain.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "launch/rewrite.h"

namespace pb::cpu {
namespace {

constexpr int64_t kLength = 512;                   // the elements of a block
constexpr int64_t kSlotBytes = kLength * 8 + 192;  // not a multiple of 4096, at which addresses share sets of the L1 cache
constexpr int64_t kLine = 64;                      // the bytes of a cache line
constexpr int64_t kUpdateWork = 64;                // of an element, in the unit of map_work()

const ElementwiseKernel& op_of(const Launch& launch) {
  return static_cast<const ElementwiseKernel&>(*static_cast<const kernels::Elementwise*>(launch.table));
}

int64_t tile_length(Compute compute) { return compute == Compute::f64 ? kTileOf<double> : kTileOf<float>; }

}  // namespace

// The buffers of a thread: the locals, and then the repeated numbers, which it fills when they are needed.
class Pass::Buffers {
 public:
  Buffers(int64_t locals, int64_t splats, int64_t instructions) : locals_(locals) {
    program = scratch_.take<Instruction>(instructions);
    data_ = static_cast<char*>(scratch_.take_bytes((locals + splats) * kSlotBytes));
    held_ = scratch_.take<Held>(splats);
    std::fill_n(held_, splats, Held{nullptr, 0});
  }
  // Returns the address of element i + from of an operand, where i is the first element of the current block.
  char* at(const Source& source, int64_t i, int64_t from = 0) const {
    const int64_t size = item_size(source.view->dtype);
    if (source.slot < 0) return source.view->data + (i + from) * size;
    return data_ + source.slot * kSlotBytes + (source.slot < locals_ ? from * size : 0);
  }
  void fill(const Splat& splat, int64_t n) {
    auto& [held, count] = held_[splat.slot - locals_];
    if (count >= n && held->view->data == splat.view->data && held->view->dtype == splat.view->dtype &&
        held->compute == splat.compute)
      return;
    held = &splat, count = n;
    load(splat.view->dtype, splat.compute, splat.view->data, 0, n, data_ + splat.slot * kSlotBytes);
  }

  Instruction* program;

 private:
  struct Held {
    const Splat* splat;
    int64_t count;
  };
  Scratch scratch_;
  const int64_t locals_;
  char* data_;
  Held* held_;
};

Pass::Pass(const Plan& plan, const Group& group) : locals_(plan.local_count) {
  std::vector<bool> kept(plan.blocks.size());  // the blocks that the update reads
  for (int t = 0; t < int(group.follows.size()); ++t) {
    const Operand& gradient = plan.in(plan.steps[group.first + group.count - 1], t);
    if (group.follows[t].chain >= 0) kept[gradient.location.block] = true;
  }
  for (const Chain& chain : group.chains) add_chain(plan, chain, kept);
  if (!group.follows.empty()) add_update(plan, group);
  for (ChainRun& run : runs_) add_prefetches(run);
}

void Pass::add_chain(const Plan& plan, const Chain& chain, const std::vector<bool>& kept) {
  ChainRun run{plan.out(plan.steps[chain.first]).view.size(), 0, {}, {}, {}, {}};
  int64_t work = 0;
  for (int s = chain.first; s < chain.first + chain.count; ++s) {
    const Step& step = plan.steps[s];
    const Launch& launch = step.launch;
    // The last operand determines the type, because the first one of `where` is a condition.
    const Compute compute = compute_type(launch.in(launch.inputs - 1).dtype);
    Link link{nullptr, compute, compute, launch.inputs, true, {}, {}};
    if (is_map(step)) {
      const ElementwiseKernel& op = op_of(launch);
      link.loop = op.loops[int(compute)];
      if (op.predicate) link.result = Compute::b8;
      work += map_work(op, compute);
    }
    link.out = source_of(plan, step.operand, link.result);
    for (int k = 0; k < launch.inputs; ++k) {
      link.in[k] = source_of(plan, step.operand + 1 + k, compute, &run);
      link.direct = link.direct && link.in[k].from == Source::From::direct;
    }
    link.direct = link.direct && link.out.from == Source::From::direct;
    run.links.push_back(link);
    for (int k = 0; k < launch.inputs; ++k) add_stream(plan, step.operand + 1 + k, 0, run);
    add_stream(plan, step.operand, 0, run);
  }
  make_program(plan, chain, kept, run);
  splats_ = std::max(splats_, int64_t(run.splats.size()));
  add_run(std::move(run), work);
}

namespace {

// The codes of an op of arithmetic: with its second operand and with its first operand in memory, for arrays and for numbers. An op
// of one input has one code.
struct Codes {
  const char* name;
  Code with[2], turned[2];
};
constexpr Codes kCodes[] = {
    {"abs", {Code::abs}, {}},
    {"negative", {Code::negative}, {}},
    {"sign", {Code::sign}, {}},
    {"sqrt", {Code::sqrt}, {}},
    {"square", {Code::square}, {}},
    {"add", {Code::add, Code::add_number}, {Code::add_to, Code::add_to_number}},
    {"subtract", {Code::subtract, Code::subtract_number}, {Code::subtract_from, Code::subtract_from_number}},
    {"multiply", {Code::multiply, Code::multiply_number}, {Code::multiply_to, Code::multiply_to_number}},
    {"divide", {Code::divide, Code::divide_number}, {Code::divide_into, Code::divide_into_number}},
};

const Codes* codes_of(const Step& step) {
  for (const Codes& codes : kCodes)
    if (is_named(step, codes.name)) return &codes;
  return nullptr;
}

// True if both operands, which are contiguous, begin at one place.
bool same_place(const Operand& a, const Operand& b) {
  return a.location.block == b.location.block && a.location.offset == b.location.offset &&
         (a.location.block >= 0 || a.view.data == b.view.data);
}

}  // namespace

// Makes the program of a chain whose operands are all contiguous and of one type. kept: the blocks that are read after the chain.
void Pass::make_program(const Plan& plan, const Chain& chain, const std::vector<bool>& kept, ChainRun& run) const {
  run.compute = run.links[0].compute;
  if (run.compute > Compute::f64 || run.n < tile_length(run.compute)) return;
  for (const Link& link : run.links)
    if (!link.direct || !link.loop || link.compute != run.compute || link.result != run.compute) return;
  std::map<int, int> last;  // by block, the last link that reads it
  for (int k = 0; k < chain.count; ++k) {
    const Step& step = plan.steps[chain.first + k];
    for (int x = 0; x < step.launch.inputs; ++x) last[plan.in(step, x).location.block] = k;
  }
  const Operand* held = nullptr;  // what the tile holds
  for (int k = 0; k < chain.count; ++k) {
    const Step& step = plan.steps[chain.first + k];
    const Link& link = run.links[k];
    const Codes* const codes = codes_of(step);
    const auto add = [&](Code code, const Source& source) { run.program.push_back({code, source, k}); };
    if (!codes) {
      add(Code::call, link.out);
      held = nullptr;
      continue;
    }
    const auto reads_held = [&](const Step& reader, int x) {
      const Operand& operand = plan.in(reader, x);
      return held && !operand.view.number && operand.view.contiguous() && same_place(*held, operand);
    };
    const auto is_number = [&](int x) { return link.in[x].slot >= locals_; };
    const bool two = link.inputs == 2;
    const int first =
        two && (reads_held(step, 1) || (!reads_held(step, 0) && is_number(0))) ? 1 : 0;  // the operand in the tile
    if (!reads_held(step, first)) add(is_number(first) ? Code::load_number : Code::load, link.in[first]);
    add((first == 0 ? codes->with : codes->turned)[two && is_number(1 - first)], two ? link.in[1 - first] : link.out);
    held = &plan.out(step);
    // The result stays in the tile alone if the next link is the only one that reads it, once, and works on the tile.
    const int block = held->location.block;
    bool alone = link.out.slot >= 0 && !kept[block] && last[block] == k + 1 && codes_of(plan.steps[chain.first + k + 1]);
    if (alone) {
      const Step& next = plan.steps[chain.first + k + 1];
      alone = reads_held(next, 0) != (next.launch.inputs == 2 && reads_held(next, 1));
    }
    if (!alone) add(Code::store, link.out);
  }
}

void Pass::add_update(const Plan& plan, const Group& group) {
  const Step& step = plan.steps[group.first + group.count - 1];
  update_ = &step.launch;
  for (int t = 0; t < int(group.follows.size()); ++t) {
    const View& gradient = update_->in(t);
    if (!gradient.data) continue;
    const auto [chain, start] = group.follows[t];
    if (chain < 0) {
      add_run({gradient.size(), 0, {}, {}, {{t, 0, gradient.size(), {}}}, {}}, kUpdateWork);
      continue;
    }
    const size_t operand = step.operand + update_->outputs + t;
    runs_[chain].pieces.push_back({t, start, gradient.size(), source_of(plan, operand, compute_type(gradient.dtype))});
    add_stream(plan, step.operand + t, start, runs_[chain]);
  }
}

// Adds the array of an operand to the streams of a run, unless it is there.
void Pass::add_stream(const Plan& plan, size_t operand, int64_t start, ChainRun& run) {
  const Operand& given = plan.operands[operand];
  const int block = given.location.block;
  if (given.view.number || !given.view.contiguous() || (block >= 0 && plan.blocks[block].kind == BlockKind::local)) return;
  const View& v = plan.views[operand];
  for (const Stream& stream : run.streams)
    if (stream.view->data == v.data) return;
  run.streams.push_back({&v, start});
}

void Pass::add_run(ChainRun run, int64_t work) {
  run.first_block = blocks_;
  blocks_ += (run.n + kLength - 1) / kLength;
  most_work_ = std::max(most_work_, work);
  runs_.push_back(std::move(run));
}

Source Pass::source_of(const Plan& plan, size_t operand, Compute compute, ChainRun* run) {
  const View& v = plan.views[operand];
  const int block = plan.operands[operand].location.block;
  const bool same = v.dtype == storage_of(compute);
  Source source{v.contiguous() ? same ? Source::From::direct : Source::From::convert : Source::From::strides, &v};
  if (block >= 0 && plan.blocks[block].kind == BlockKind::local) source.slot = int(plan.blocks[block].offset);
  if (!run || !(v.number || repeats_one(v))) return source;
  source.from = Source::From::direct;
  const auto same_number = [&](const Operand& a, const Operand& b) {
    return a.location.block == b.location.block && a.location.offset == b.location.offset && a.view.dtype == b.view.dtype &&
           a.view.number == b.view.number && (a.location.block >= 0 || a.view.number || a.view.data == b.view.data);
  };
  for (const Splat& splat : run->splats)
    if (splat.compute == compute && same_number(plan.operands[splat.operand], plan.operands[operand])) source.slot = splat.slot;
  if (source.slot < 0) {
    source.slot = int(locals_ + int64_t(run->splats.size()));
    run->splats.push_back({operand, &v, compute, source.slot});
  }
  return source;
}

// Distributes instructions that prefetch the streams of the next tile over a program. Where the ops take less time than the memory,
// prefetching is left to the hardware, with which these instructions would compete.
void Pass::add_prefetches(ChainRun& run) {
  instructions_ = std::max(instructions_, int64_t(run.program.size()));
  const auto is_slow = [](const LinkInstruction& instruction) {
    return instruction.code == Code::call || instruction.code == Code::sign || instruction.code == Code::sqrt ||
           (instruction.code >= Code::divide && instruction.code <= Code::divide_number) ||
           instruction.code >= Code::divide_into;
  };
  if (std::none_of(run.program.begin(), run.program.end(), is_slow)) return;
  const size_t streams = run.streams.size(), instructions = run.program.size();
  std::vector<LinkInstruction> all;
  for (size_t k = 0, next = 0; k < instructions; ++k) {
    for (; next < streams && next * instructions <= k * streams; ++next)
      all.push_back({Code::prefetch, {Source::From::direct, run.streams[next].view}, int(next)});
    all.push_back(run.program[k]);
  }
  run.program = std::move(all);
  instructions_ = std::max(instructions_, int64_t(run.program.size()));
}

void Pass::run() const {
  std::optional<UpdateStep> update;
  if (update_) update.emplace(*update_);
  parallel_for(blocks_, std::max<int64_t>(1, map_grain(most_work_) / kLength),
               [&](int64_t begin, int64_t end) { run_blocks(begin, end, update ? &*update : nullptr); });
}

void Pass::run_blocks(int64_t begin, int64_t end, const UpdateStep* update) const {
  Buffers buffers(locals_, splats_, instructions_);
  const auto after = [](int64_t block, const ChainRun& run) { return block < run.first_block; };
  for (auto run = std::upper_bound(runs_.begin(), runs_.end(), begin, after) - 1; begin < end; ++run) {
    const int64_t blocks = (run->n + kLength - 1) / kLength, stop = std::min(end, run->first_block + blocks);
    if (begin < stop)
      run_range(*run, (begin - run->first_block) * kLength, std::min(run->n, (stop - run->first_block) * kLength), buffers,
                update);
    begin = std::max(begin, stop);
  }
}

namespace {

// Prefetches elements [begin, end) of all streams of a run. GCC leaves out calls of functions that only prefetch.
inline __attribute__((always_inline)) void prefetch(const ChainRun& run, int64_t begin, int64_t end) {
  for (const Stream& stream : run.streams) {
    const View& v = *stream.view;
    const int64_t size = item_size(v.dtype), first = std::max<int64_t>(0, begin - stream.start);
    const int64_t last = std::min(v.size(), end - stream.start);
    for (int64_t at = first * size; at < last * size; at += kLine) __builtin_prefetch(v.data + at);
  }
}

}  // namespace

void Pass::run_range(const ChainRun& run, int64_t begin, int64_t end, Buffers& buffers, const UpdateStep* update) const {
  if (run.links.empty()) return update->run(run.pieces[0].entry, begin, end);
  const int64_t longest = run.program.empty() ? kLength : tile_length(run.compute);  // that a link runs on
  for (const Splat& splat : run.splats) buffers.fill(splat, std::min(run.n, longest));
  address(run, begin, buffers);
  for (int64_t i = begin; i < end; i += kLength) {
    const int64_t n = std::min(kLength, end - i);
    if (run.program.empty()) {
      prefetch(run, i + kLength, std::min(i + 2 * kLength, end));
      for (const Link& link : run.links) run_link(link, i, 0, n, buffers);
    } else {
      run_program(run, i, n, buffers);
    }
    for (const Piece& piece : run.pieces) {
      const int64_t from = std::max(i, piece.start), to = std::min(i + n, piece.start + piece.size);
      if (from >= to) continue;
      const char* block = piece.gradient.slot >= 0 ? buffers.at(piece.gradient, 0) : nullptr;
      if (block) block += (from - i) * item_size(piece.gradient.view->dtype);
      update->run(piece.entry, from - piece.start, to - piece.start, block);
    }
  }
}

// Writes the program of a run, with the addresses of the block that begins with element i.
void Pass::address(const ChainRun& run, int64_t i, Buffers& buffers) const {
  for (size_t k = 0; k < run.program.size(); ++k) {
    const LinkInstruction& instruction = run.program[k];
    const int64_t first =
        instruction.code == Code::prefetch ? i + tile_length(run.compute) - run.streams[instruction.link].start : i;
    const int64_t step = instruction.source.slot < 0 ? kLength * item_size(instruction.source.view->dtype) : 0;
    buffers.program[k] = {instruction.code, buffers.at(instruction.source, first), step};
  }
}

// Runs the program of a block tile by tile, and the links of the elements that are left. Moves the program to the next block.
void Pass::run_program(const ChainRun& run, int64_t i, int64_t n, Buffers& buffers) const {
  const int count = int(run.program.size());
  const bool wide = run.compute == Compute::f64;
  const int64_t length = tile_length(run.compute), tiles = n / length;
  const auto call = [&](int k, int64_t tile) { run_link(run.links[run.program[k].link], i, tile * length, length, buffers); };
  if (wide) run_tiles<double>(buffers.program, count, tiles, call);
  else run_tiles<float>(buffers.program, count, tiles, call);
  if (tiles * length < n)
    for (const Link& link : run.links) run_link(link, i, tiles * length, n - tiles * length, buffers);
  for (int k = 0; k < count; ++k) buffers.program[k].at += buffers.program[k].step;
}

void Pass::run_link(const Link& link, int64_t i, int64_t from, int64_t n, const Buffers& buffers) const {
  const void* in[kMaxArity] = {};
  char* const out = buffers.at(link.out, i, from);
  if (link.direct && link.loop) {
    for (int k = 0; k < link.inputs; ++k) in[k] = buffers.at(link.in[k], i, from);
    return link.loop(n, out, in);
  }
  alignas(64) char staged[kMaxArity + 1][kSlotBytes];
  const DType dtype = link.out.view->dtype;
  for (int k = 0; k < link.inputs; ++k) {
    const Source& source = link.in[k];
    const View& v = *source.view;
    const char* const data = buffers.at(source, i, from);
    if (!link.loop && v.dtype == dtype) return void(std::memcpy(out, data, n * item_size(dtype)));
    switch (source.from) {
      case Source::From::direct: in[k] = data; break;
      case Source::From::convert: load(v.dtype, link.compute, data, item_size(v.dtype), n, staged[k]), in[k] = staged[k]; break;
      case Source::From::strides: in[k] = Reader(v, link.compute).block(i + from, n, staged[k]); break;
    }
  }
  const void* computed = in[0];
  if (link.loop && link.out.from == Source::From::direct) return link.loop(n, out, in);
  if (link.loop) link.loop(n, staged[kMaxArity], in), computed = staged[kMaxArity];
  store(link.result, dtype, computed, n, out, item_size(dtype));
}

}  // namespace pb::cpu
