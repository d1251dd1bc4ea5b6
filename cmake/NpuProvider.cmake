# libonnxruntime_providers_npu.so: the plugin. It never links libonnxruntime.
find_package(OnnxRuntimeHeaders REQUIRED)
file(GLOB_RECURSE provider_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/ep/provider/*.cc")
add_library(onnxruntime_providers_npu SHARED ${provider_sources})
set_target_properties(onnxruntime_providers_npu PROPERTIES UNITY_BUILD ON)  # its headers cost more than its sources
target_include_directories(onnxruntime_providers_npu SYSTEM PRIVATE "${OnnxRuntimeHeaders_INCLUDE_DIR}")
target_link_libraries(onnxruntime_providers_npu PRIVATE npu_runtime)
target_link_options(onnxruntime_providers_npu PRIVATE -Wl,--no-undefined)
