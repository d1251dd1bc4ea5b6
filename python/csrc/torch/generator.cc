#include "python/csrc/torch/generator.h"

#include <ATen/Utils.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

constexpr int64_t kStateBytes = sizeof(uint64_t) * 2;

class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kNpu, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  static c10::DeviceType device_type() { return kNpu; }

  void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
  uint64_t current_seed() const override { return state_.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_.seed;
  }
  void set_offset(uint64_t offset) override { state_.offset = offset; }
  uint64_t get_offset() const override { return state_.offset; }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({kStateBytes}, at::TensorOptions(at::kByte).device(at::kCPU));
    std::memcpy(state.data_ptr(), &state_.seed, sizeof(uint64_t));
    std::memcpy(state.data_ptr<uint8_t>() + sizeof(uint64_t), &state_.offset, sizeof(uint64_t));
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "expected the state of an npu generator, ", kStateBytes, " bytes, got ",
                state.numel());
    const auto* bytes = static_cast<const uint8_t*>(state.data());
    std::memcpy(&state_.seed, bytes, sizeof(uint64_t));
    std::memcpy(&state_.offset, bytes + sizeof(uint64_t), sizeof(uint64_t));
  }

  PhiloxState Take(uint64_t counters) {
    const PhiloxState begin = state_;
    state_.offset += counters;
    return begin;
  }

 private:
  PhiloxGenerator* clone_impl() const override {
    auto* copy = new PhiloxGenerator(device().index());
    copy->state_ = state_;
    return copy;
  }

  PhiloxState state_{c10::default_rng_seed_val, 0};
};

}  // namespace

at::Generator NewGenerator(int device) {
  return at::make_generator<PhiloxGenerator>(static_cast<c10::DeviceIndex>(device < 0 ? CurrentDevice() : device));
}

const at::Generator& DefaultGenerator(int device) {
  static const std::vector<at::Generator>& generators = *new std::vector<at::Generator>([] {
    std::vector<at::Generator> made;
    for (int i = 0; i < Runtime::Instance().device_count(); ++i) made.push_back(NewGenerator(i));
    return made;
  }());
  const int index = device < 0 ? CurrentDevice() : device;
  return generators.at(static_cast<size_t>(Runtime::Instance().device(index).index()));
}

PhiloxState TakeRandom(const std::optional<at::Generator>& generator, int device, uint64_t counters) {
  auto* chosen = at::get_generator_or_default<PhiloxGenerator>(generator, DefaultGenerator(device));
  std::lock_guard lock(chosen->mutex_);
  return chosen->Take(counters);
}

}  // namespace npu::aten
