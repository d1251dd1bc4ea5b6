// The packed constants of a compiled model that a session loads. What does not fit, whatever the reason, is packed
// again from the model's weights, with a warning.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "ep/provider/context/context_node.h"
#include "ep/provider/context/mapped_file.h"
#include "ep/runtime/packed_blocks.h"

namespace npu::provider {

class ContextReader {
 public:
  // `directory`: of the model; its files are there.
  ContextReader(ContextStamp stamp, std::string directory)
      : stamp_(std::move(stamp)), directory_(std::move(directory)) {}

  // Calls `make` for the kernel of an EPContext node, which takes its packed constants from the blocks that it is
  // given.
  void Read(const GraphNode& node, const std::function<void(PackedBlocks&)>& make);
  // What to tell the user: "" if everything fitted.
  std::string Warning() const;

 private:
  std::shared_ptr<const MappedFile> File(const std::string& name);

  const ContextStamp stamp_;
  const std::string directory_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
  size_t packed_again_ = 0;  // nodes
  std::string why_;          // of the first of them
};

}  // namespace npu::provider
