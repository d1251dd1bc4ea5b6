#include "ep/provider/context/context_reader.h"

#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

namespace npu::provider {
namespace {

constexpr size_t kVectorAlignment = 64;  // as device memory has it

// Embedded blocks in memory of their own: a string's begins anywhere.
std::shared_ptr<const std::byte> AlignedCopy(const std::string& content) {
  const auto alignment = std::align_val_t(kVectorAlignment);
  auto* data = static_cast<std::byte*>(::operator new(content.size(), alignment));
  std::memcpy(data, content.data(), content.size());
  return {data, [alignment](const std::byte* block) { ::operator delete(const_cast<std::byte*>(block), alignment); }};
}

class StoredBlocks final : public PackedBlocks {
 public:
  StoredBlocks(std::vector<PackedBlock> blocks, std::shared_ptr<const std::byte> data, size_t size)
      : blocks_(std::move(blocks)), data_(std::move(data)), size_(size) {}
  // None fits.
  explicit StoredBlocks(std::string why) : why_(std::move(why)) {}

  std::shared_ptr<const void> Take(size_t bytes) override {
    if (!why_.empty()) return nullptr;
    why_ = WhyUnfit(bytes);
    if (!why_.empty()) return nullptr;
    return {data_, data_.get() + blocks_[next_++].offset};
  }
  void Packed(const void*, size_t) override { packed_ = true; }

  bool packed() const { return packed_; }
  const std::string& why() const { return why_; }

 private:
  std::string WhyUnfit(size_t bytes) const {
    if (next_ == blocks_.size()) return Concat("expected ", next_ + 1, " packed constants of a node, got ", next_);
    const PackedBlock& block = blocks_[next_];
    if (block.bytes != bytes)
      return Concat("expected a packed constant of ", bytes, " bytes, got ", block.bytes,
                    " (was float32_matmul_precision another one?)");
    if (block.offset % kVectorAlignment != 0 || block.offset > size_ || block.bytes > size_ - block.offset)
      return Concat("expected a packed constant at byte ", block.offset, ", got ", size_, " bytes in all");
    if (Checksum(data_.get() + block.offset, bytes) != block.checksum)
      return Concat("the checksum of the packed constant at byte ", block.offset, " differs");
    return "";
  }

  const std::vector<PackedBlock> blocks_ = {};
  const std::shared_ptr<const std::byte> data_ = nullptr;
  const size_t size_ = 0;
  size_t next_ = 0;
  bool packed_ = false;
  std::string why_ = "";
};

}  // namespace

std::shared_ptr<const MappedFile> ContextReader::File(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  // A model must not make this read files elsewhere.
  NPU_CHECK(!name.empty() && std::filesystem::path(name).filename() == name && name != "..",
            "expected the name of a file beside the model in ep_cache_context, got '", name, "'");
  return files_[name] = MappedFile::Open((std::filesystem::path(directory_) / name).string());
}

void ContextReader::Read(const GraphNode& node, const std::function<void(PackedBlocks&)>& make) {
  ContextData data = ReadContextData(node);
  const auto open = [&]() -> StoredBlocks {
    if (data.stamp != stamp_)
      return StoredBlocks(Concat("made by ", data.stamp.Text(), ", and this is ", stamp_.Text()));
    if (data.blocks.empty()) return {std::move(data.blocks), nullptr, 0};
    if (data.embedded) return {std::move(data.blocks), AlignedCopy(data.content), data.content.size()};
    try {
      const std::shared_ptr<const MappedFile> file = File(data.content);
      return {std::move(data.blocks), std::shared_ptr<const std::byte>(file, file->data()), file->size()};
    } catch (const Error& error) {
      return StoredBlocks(error.what());
    }
  };
  StoredBlocks blocks = open();
  make(blocks);
  if (!blocks.packed()) return;
  if (packed_again_++ == 0) why_ = blocks.why();
}

std::string ContextReader::Warning() const {
  if (packed_again_ == 0) return "";
  return Concat("the compiled model does not fit and is packed again in each session (", packed_again_,
                " nodes): ", why_, "; compile the model again");
}

}  // namespace npu::provider
