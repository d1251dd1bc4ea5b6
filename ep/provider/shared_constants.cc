#include "ep/provider/shared_constants.h"

#include <algorithm>
#include <utility>

#include "ep/runtime/shared_matrix.h"

namespace npu::provider {

void SharedConstants::Expect(const std::string& name, size_t readers) {
  Constant& constant = constants_[name];
  // A graph may be examined twice; a different number of readers means a constant of another graph.
  constant.ambiguous |= constant.expected != 0 && constant.expected != readers;
  constant.expected = readers;
}

void SharedConstants::AddReader(const std::string& name, Kernel& kernel, size_t input) {
  const auto found = constants_.find(name);
  if (found != constants_.end()) found->second.readers.push_back({&kernel, input});
}

void SharedConstants::RemoveReader(const Kernel& kernel) {
  for (auto& [name, constant] : constants_)
    std::erase_if(constant.readers, [&](const Reader& reader) { return reader.kernel == &kernel; });
}

// Kernels are created before constants are offered, so all readers are known by then.
bool SharedConstants::CanShare(const Constant& constant, const TensorView& view) const {
  using Panels = SharedMatrixReader::Panels;
  if (constant.ambiguous || constant.readers.size() != constant.expected) return false;
  if (view.data == nullptr || !device_.AllocatedSince(view.data, first_)) return false;
  bool wanted = false;
  for (const Reader& reader : constant.readers) {
    const auto* shares = dynamic_cast<const SharedMatrixReader*>(reader.kernel);
    const Panels panels = shares == nullptr ? Panels::kNo : shares->PanelsOf(reader.input, view);
    if (panels == Panels::kNo) return false;
    wanted |= panels == Panels::kWanted;
  }
  return wanted;
}

bool SharedConstants::Share(const std::string& name, const Kernel& kernel, size_t input, const TensorView& view,
                            Stream& stream) {
  const auto found = constants_.find(name);
  if (found == constants_.end() || !CanShare(found->second, view)) return false;
  std::vector<Reader>& readers = found->second.readers;
  for (Reader& reader : readers)
    if (reader.kernel == &kernel && reader.input == input) reader.data = view.data;
  // Names of inner graphs may shadow those of outer ones: only kernels that were offered this memory read it.
  const auto offered = [&](const Reader& reader) { return reader.data == view.data; };
  if (std::all_of(readers.begin(), readers.end(), offered)) {
    bool reorder = true;
    for (const Reader& reader : readers) {
      dynamic_cast<SharedMatrixReader&>(*reader.kernel)
          .UsePanels(reader.input, view, std::exchange(reorder, false), stream);
    }
  }
  return true;
}

}  // namespace npu::provider
