// Memory of one thread that grows and is reused: a thread computes many matmuls.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace npu::gemm {

class AlignedBuffer {
 public:
  void* Reserve(int64_t bytes) {
    if (bytes > size_) {
      // Rounded up to whole cache lines, as aligned_alloc requires.
      const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
      size_ = 0;
      memory_.reset(std::aligned_alloc(64, rounded));
      if (!memory_) throw std::bad_alloc();
      size_ = static_cast<int64_t>(rounded);
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t size_ = 0;
};

}  // namespace npu::gemm
