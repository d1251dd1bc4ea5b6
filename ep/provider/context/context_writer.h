// Stores the packed constants of a session beside the compiled model that onnxruntime writes (ep.context_enable).
#pragma once

#include <fstream>
#include <functional>
#include <string>

#include "ep/provider/context/context_node.h"
#include "ep/runtime/packed_blocks.h"

namespace npu::provider {

class ContextWriter {
 public:
  // `model_path`: of the model that is compiled; "" if it has no file.
  ContextWriter(const Api& api, const Options& options, ContextStamp stamp, const std::string& model_path);
  ~ContextWriter();
  ContextWriter(const ContextWriter&) = delete;
  ContextWriter& operator=(const ContextWriter&) = delete;

  // Calls `make` for the kernel of `fusion`, which shows what it packs to the blocks that it is given, and returns the
  // EPContext node for both.
  OrtNode* Write(const Fusion& fusion, const OrtNode* fused_node, const std::function<void(PackedBlocks&)>& make);
  // Gives the file its name. Without this call, nothing is left behind.
  void Finish();

 private:
  const Api& api_;
  const ContextStamp stamp_;
  const bool embed_;
  std::string path_, unfinished_;  // of the file of blocks, if they are not embedded
  std::ofstream file_;
  uint64_t written_ = 0;
};

}  // namespace npu::provider
