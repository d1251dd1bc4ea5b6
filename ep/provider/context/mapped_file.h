// A file in memory, read only: pages are read when they are used, and processes share them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace npu::provider {

class MappedFile {
 public:
  // Throws Error(kInvalidArgument) with the system's reason if `path` is no regular file that can be read.
  static std::shared_ptr<const MappedFile> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* const data_;  // null if the file is empty
  const size_t size_;
};

}  // namespace npu::provider
