// Which parts of an inference call go together. What is refused here has no
// meaning: _inference/combinations.py says why.
#pragma once

#include <cstdint>
#include <string>

namespace npu::attention {

struct Combination {
  std::string layout;  // of a T form; else empty
  bool rope = false, prefix = false;
  bool token_scales = false;     // antiquant scales of tokens
  bool cache_in_pieces = false;  // of rank 5

  // What is expected instead; empty where the parts go together.
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

// Whether an antiquant mode has scales of tokens.
inline bool ScalesTokens(int64_t mode) { return mode != 0 && mode != 2; }

}  // namespace npu::attention
