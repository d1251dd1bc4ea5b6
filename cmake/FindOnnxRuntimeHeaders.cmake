# Finds ONNX Runtime's C API headers. Result: OnnxRuntimeHeaders_INCLUDE_DIR, which contains onnxruntime_c_api.h.
find_path(OnnxRuntimeHeaders_INCLUDE_DIR onnxruntime_ep_c_api.h
          HINTS "${NPU_ONNXRUNTIME_INCLUDE_DIR}" PATH_SUFFIXES onnxruntime)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxRuntimeHeaders REQUIRED_VARS OnnxRuntimeHeaders_INCLUDE_DIR)
