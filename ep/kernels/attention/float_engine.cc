#include "ep/kernels/attention/engine.h"
#include "ep/kernels/attention/narrow.h"
#include "ep/kernels/attention/panel.h"

namespace npu::attention {

Engine FloatEngine(DType dtype) {
  return DispatchFloats("attention", dtype, [](auto type) -> Engine {
    using T = decltype(type);
    return {RunNarrowItem<NarrowFloat<T>>, RunPanelItem<FloatMath<T>>, NarrowScratchBytes<NarrowFloat<T>>,
            PanelScratchBytes<FloatMath<T>>};
  });
}

}  // namespace npu::attention
