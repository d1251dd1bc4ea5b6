#include "ep/kernels/attention/core/engine.h"
#include "ep/kernels/attention/core/narrow.h"
#include "ep/kernels/attention/core/panel.h"

namespace npu::attention {

Engine FloatEngine(DType cache) {
  const DType in_place = IsFloating(cache) ? cache : DType::kFloat32;
  return DispatchFloats("attention", in_place, [](auto type) -> Engine {
    using T = decltype(type);
    return {RunNarrowItem<NarrowFloat<T>>, RunPanelItem<FloatMath>, NarrowScratchBytes<NarrowFloat<T>>,
            PanelScratchBytes<FloatMath>};
  });
}

}  // namespace npu::attention
