#include "python/csrc/torch/generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <vector>

#include "ep/runtime/graph.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

constexpr int64_t kStateBytes = sizeof(uint64_t) * 2;

class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kNpu, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  static c10::DeviceType device_type() { return kNpu; }

  void set_current_seed(uint64_t seed) override {
    // Captured positions are relative to the start of a replay, so only the same seed is allowed, which changes
    // nothing.
    SetState(Graph::IsCapturing(Stream()) ? PhiloxState{seed, State().offset} : PhiloxState{seed, 0});
  }
  uint64_t current_seed() const override { return State().seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return current_seed();
  }
  void set_offset(uint64_t offset) override { SetState({State().seed, offset}); }
  uint64_t get_offset() const override { return State().offset; }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    // Not by the dispatcher, where a mode, such as that of fake tensors, may give another kind of tensor.
    at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::TensorOptions(at::kByte));
    const PhiloxState now = State();
    std::memcpy(state.data_ptr(), &now.seed, sizeof(uint64_t));
    std::memcpy(static_cast<char*>(state.data_ptr()) + sizeof(uint64_t), &now.offset, sizeof(uint64_t));
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "expected the state of an npu generator, ", kStateBytes, " bytes, got ",
                state.numel());
    const auto* bytes = static_cast<const char*>(state.data());
    TORCH_CHECK(bytes != nullptr, "expected the state of an npu generator, got a tensor without data");
    PhiloxState given;
    std::memcpy(&given.seed, bytes, sizeof(uint64_t));
    std::memcpy(&given.offset, bytes + sizeof(uint64_t), sizeof(uint64_t));
    SetState(given);
  }
  // A generator that shares this one's state, for graphsafe_set_state.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    auto twin = c10::make_intrusive<PhiloxGenerator>(device().index());
    twin->source_ = source_;
    return twin;
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    const auto twin = c10::dynamic_intrusive_pointer_cast<PhiloxGenerator>(state);
    TORCH_CHECK(twin != nullptr, "expected the state of an npu generator, as graphsafe_get_state gives it");
    source_ = twin->source_;
  }

  const std::shared_ptr<RandomSource>& source() const { return source_; }

 private:
  PhiloxGenerator* clone_impl() const override {
    auto* copy = new PhiloxGenerator(device().index());
    copy->source_->Set(State());
    return copy;
  }

  npu::Stream& Stream() const { return CurrentStream(device().index()); }
  PhiloxState State() const { return RandomState(source_, Stream()); }
  void SetState(PhiloxState state) { SetRandomState(source_, Stream(), state); }

  std::shared_ptr<RandomSource> source_ = std::make_shared<RandomSource>(PhiloxState{c10::default_rng_seed_val, 0});
};

}  // namespace

at::Generator NewGenerator(int device) {
  const int index =
      Runtime::Instance().device(device < 0 ? CurrentDevice() : device).index();  // throws if there is none
  return at::make_generator<PhiloxGenerator>(static_cast<c10::DeviceIndex>(index));
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

const std::shared_ptr<RandomSource>& SourceOf(const std::optional<at::Generator>& generator, int device) {
  // torch also calls the npu operator if only the generator is on the npu.
  TORCH_CHECK(device >= 0, "Expected a 'cpu' device type for generator but found 'npu'");
  return at::get_generator_or_default<PhiloxGenerator>(generator, DefaultGenerator(device))->source();
}

}  // namespace npu::aten
