// The generator of a node in a session: its own, if the node has a seed, else the process's.
#pragma once

#include <bit>
#include <memory>

#include "ep/runtime/kernel_api.h"
#include "ep/runtime/random.h"

namespace npu {

class NodeGenerator {
 public:
  // The seed is a float in most operators, an integer in Dropout. The same seed gives the same sequence of runs.
  explicit NodeGenerator(const Attributes& attributes) {
    if (!attributes.Has("seed")) return;
    const auto seed = std::bit_cast<uint64_t>(attributes.Float("seed"));
    source_ = std::make_shared<RandomSource>(PhiloxState{seed, 0});
  }

  // For the work of one run.
  DrawnSeed Draw(const Stream& stream) const { return source_ ? DrawSeed(source_, stream) : DrawSeed(stream); }

 private:
  std::shared_ptr<RandomSource> source_;
};

}  // namespace npu
