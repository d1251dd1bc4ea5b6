#include "ep/provider/context/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ep/runtime/error.h"

namespace npu::provider {
namespace {

struct OpenFile {
  int descriptor;
  ~OpenFile() { close(descriptor); }
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::Open(const std::string& path) {
  const auto refuse = [&](const char* why) {
    Fail(ErrorCode::kInvalidArgument, "expected a file that can be read, got '", path, "': ", why);
  };
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would wait for its writer
  if (descriptor < 0) refuse(std::strerror(errno));
  const OpenFile owner{descriptor};
  struct stat status{};
  if (fstat(descriptor, &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse("not a regular file");
  const auto size = static_cast<size_t>(status.st_size);
  void* data = nullptr;
  if (size != 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED) refuse(std::strerror(errno));
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace npu::provider
