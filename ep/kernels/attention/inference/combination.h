// Which options of an inference call can be combined. What is refused here has no defined meaning:
// _inference/combinations.py gives the reasons.
#pragma once

#include <cstdint>
#include <string>

namespace npu::attention {

struct Combination {
  std::string layout;  // if it is a T form; else empty
  bool rope = false, prefix = false;
  bool token_scales = false;     // one antiquant scale per token
  bool cache_in_pieces = false;  // of rank 5

  // What is expected instead; empty if the combination is valid.
  std::string Conflict() const {
    if (!prefix) return "";
    if (rope) return "expected no query_rope and key_rope with key_shared_prefix, which has no rope part, got both";
    if (!layout.empty()) return "expected no key_shared_prefix for input_layout " + layout + ", got one";
    if (cache_in_pieces) return "expected no key_shared_prefix with a cache of rank 5, got both";
    if (token_scales) {
      return "expected antiquant scales of tensors, channels or heads with key_shared_prefix, got scales of tokens";
    }
    return "";
  }
};

// Whether an antiquant mode has one scale per token.
inline bool ScalesTokens(int64_t mode) { return mode != 0 && mode != 2; }

}  // namespace npu::attention
