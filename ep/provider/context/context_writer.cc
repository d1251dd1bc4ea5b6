#include "ep/provider/context/context_writer.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <utility>

namespace npu::provider {
namespace {

constexpr uint64_t kBlockAlignment = 64;

struct BlockRecorder final : PackedBlocks {
  explicit BlockRecorder(std::function<uint64_t(const void*, size_t)> keep) : keep_(std::move(keep)) {}

  std::shared_ptr<const void> Take(size_t) override { return nullptr; }
  void Packed(const void* data, size_t bytes) override {
    blocks.push_back({keep_(data, bytes), bytes, Checksum(data, bytes)});
  }

  std::vector<PackedBlock> blocks = {};

 private:
  const std::function<uint64_t(const void*, size_t)> keep_;  // returns the offset
};

}  // namespace

ContextWriter::ContextWriter(const Api& api, const Options& options, ContextStamp stamp, const std::string& model_path)
    : api_(api), stamp_(std::move(stamp)), embed_(options.embed_context) {
  if (embed_) return;
  std::filesystem::path model = options.context_path;
  if (model.empty()) {
    NPU_CHECK(!model_path.empty(), "NPUExecutionProvider: ep.context_enable expected ep.context_file_path for a model ",
              "that has no file, got none");
    model = std::filesystem::path(model_path).replace_extension();
    model += "_ctx.onnx";  // onnxruntime's default
  }
  path_ = model.replace_extension().string() + "_npu.bin";
  unfinished_ = path_ + ".unfinished." + std::to_string(getpid());
  file_.open(unfinished_, std::ios::binary | std::ios::trunc);
  NPU_CHECK(file_.good(), "NPUExecutionProvider: ep.context_enable expected a path that can be written, got '", path_,
            "'");
}

ContextWriter::~ContextWriter() {
  if (!unfinished_.empty()) std::remove(unfinished_.c_str());
}

OrtNode* ContextWriter::Write(const Fusion& fusion, const OrtNode* fused_node,
                              const std::function<void(PackedBlocks&)>& make) {
  ContextData data;
  data.stamp = stamp_;
  data.embedded = embed_;
  if (!embed_) data.content = std::filesystem::path(path_).filename().string();
  BlockRecorder recorder([&](const void* block, size_t bytes) -> uint64_t {
    const auto* characters = static_cast<const char*>(block);
    const std::string padding((kBlockAlignment - bytes % kBlockAlignment) % kBlockAlignment, '\0');
    if (embed_) {
      const uint64_t offset = data.content.size();
      data.content.append(characters, bytes).append(padding);
      return offset;
    }
    const uint64_t offset = written_;
    file_.write(characters, static_cast<std::streamsize>(bytes)) << padding;
    written_ += bytes + padding.size();
    return offset;
  });
  make(recorder);
  data.blocks = std::move(recorder.blocks);
  return NewContextNode(api_, fusion, fused_node, data);
}

void ContextWriter::Finish() {
  if (embed_) return;
  file_.close();
  NPU_CHECK(file_.good() && std::rename(unfinished_.c_str(), path_.c_str()) == 0,
            "NPUExecutionProvider: ep.context_enable could not write ", written_, " bytes to '", path_,
            "'; is the disk full?");
  unfinished_.clear();
}

}  // namespace npu::provider
