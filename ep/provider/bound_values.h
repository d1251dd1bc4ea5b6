// What a run's caller has bound. Onnxruntime tells a provider nothing about the run that it lets it replay but the
// number of the graph, so the package's Python sessions tell it on the run's thread (NpuSetBoundValues).
#pragma once

#include <string>

namespace npu::provider {

// One line for each value: "input" or "output", its name, and what identifies its memory and form, separated by tabs.
// Empty: the caller does not tell.
void SetBoundValues(std::string values);
const std::string& BoundValues();  // those of this thread's run

// Throws if a run would not use the values that graph `id` was captured with. Outputs that the run leaves out are
// written all the same.
void CheckSameValues(int id, const std::string& captured, const std::string& bound);

}  // namespace npu::provider
