"""Why tests that count fail: a sentence for a pattern of ``file test: error``."""

import re

_EXPLANATIONS = (
    (
        r"Found the DeviceMesh have \d dimensions",
        "Takes the group of a mesh of several dimensions without naming one, which torch refuses.",
    ),
    (
        r"foreach_(reduce|all_gather)\(\)|_dtensor__new__\(\)|get_dim_groups|_init_process_groups",
        "Calls a function of torch as another version has it.",
    ),
    (
        r"new_empty_strided|test_split_tensor|test_sharded_embedding_|test_dropout_errors|"
        r"repeat_interleave_backward_self_int.*evenly|test_matmul_sharding_strategy_n_nk",
        "Expects of a DTensor what another version of torch does; here the CPU with gloo does the "
        "same as the device.",
    ),
    (
        r"test_view_(groups|ops_p4)|test_load_error_handling|desired module inputs should not be",
        "Expects what another version of torch does, before any device takes part.",
    ),
    (
        r"'dict' object is not callable|'builtin_function_or_method' object has no attribute",
        "Its source calls a dictionary, or takes an attribute of a method: it cannot pass.",
    ),
    (
        r"test_npu_bmmV2: .*missing value for argument",
        "Leaves out an argument that the operator's schema requires, in torch_npu, too.",
    ),
    (r"KeyError: 'npu\.npu_transpose", "Looks for an operator in a private table of torch."),
    (
        r"communication_count: .*Scalars|prefetch: .*length of the sequences",
        "Expects that FSDP's root keeps parameters that it is told to free, as in another version "
        "of torch.",
    ),
    (
        r"is shared with a parameter already managed by another FSDP group",
        "torch refuses a parameter that belongs to two groups.",
    ),
    (
        r"test_stage\.py StageTest.test_(manual|custom_dw_with_fb_schedule|tracer_ModelClass\d):",
        "Expects a check that this torch makes only with TORCH_DISTRIBUTED_DEBUG=DETAIL.",
    ),
    (
        r"_assert_async\.msg does not have a sharding strategy",
        "torch does not divide an operator that its one_hot calls on a device.",
    ),
    (
        r"test_status_save\.py",
        "Reads status files that HCCL's groups write; groups over gloo write none.",
    ),
    (
        r"TestRegisterSharding\S* has no attribute|'TestRegisterSharding' object has no attribute",
        "Calls a method that its class does not have.",
    ),
    (
        r"test_matmul_(un)?shardable: .*False is not true",
        "Expects that a product of whole DTensors is divided among ranks; torch keeps it whole.",
    ),
    (
        r"test_discontinuous_tensor|test_error_size",
        "Expects HCCL's refusal; tensors may have any strides here, and errors have other words.",
    ),
    (
        r"test_flight_recorder",
        "Reads what HCCL's flight recorder and watchdog write; groups over gloo have none.",
    ),
    (
        r"test_get_(coll_npu|p2p)_stream_id",
        "Asks for the stream of collectives; they run on threads of the host. Its ranks fail, and "
        "it waits for them.",
    ),
    (
        r"conv2d_backward_input_shard0: .*not close",
        "Adds a float32 gradient over ranks in another order: 3e-6 of it differs.",
    ),
    (
        r"test_bounding_box_encode\.py",
        "Its values are those of a device that computes float32 boxes in float16.",
    ),
    (
        r"test_deformable_conv2d\.py",
        "The gradient of its offsets: the baseline sums float32 products of thousands that cancel.",
    ),
    (
        r"test_npu_convolution: AssertionError: 1 of 784 values",
        "A float16 value that is rounded the other way: torch's CPU sums in another order.",
    ),
    (
        r"test_npu_linear\w*\.py .*fp16: AssertionError: \d+ of \d+ values",
        "Where tiles multiply only bfloat16, products of float16 leave out 2^-16 of each term "
        "(decision 20): of 0.14 % of the sums, which cancel, that is more than 0.1 %; the test "
        "allows 0.1 % of them.",
    ),
    (
        r"test_npu_dtype_cast_complex",
        "Converts complex numbers, which ONNX's conversion does not have.",
    ),
    (
        r"test_npu_dtype_cast_double_backward",
        "Expects a graph of a gradient that depends on nothing; torch's conversion has none.",
    ),
    (
        r"only 0-dimensional arrays can be converted",
        "Converts an array of one number with int(), which NumPy refuses now.",
    ),
    (
        r"test_npu_format_cast\.py .*storage",
        "Expects storages of the sizes of Ascend's private formats; a format is a label here.",
    ),
    (
        r"view_reshape_nd_to_nz",
        "Expects of a view with one axis the format of the matrix that it is a view of.",
    ),
    (r"empty_quantized|uantize", "The host NPU does not support torch's quantized tensors."),
    (
        r"exponential_no_zero",
        "Draws 5e10 random numbers; a core generates 1.2e8 per second.",
    ),
    (
        r"test_glu",
        "One of its cases creates 1.1e9 float64 elements in NumPy, 9 GB.",
    ),
    (
        r"test_reduce_scatter_input_(list_not_equal|numel_not_equal)",
        "Expects that a list with too few or too many elements for its ranks is filled with zeros "
        "or cut; it is refused, and the test waits for its ranks.",
    ),
    (
        r"hangs: stopped",
        "The suite's sizes take longer than the limit on two cores, on the CPU side too.",
    ),
    (r"not reached within", "Earlier tests of the file used up its time."),
    (
        r"IndexError: Dimension out of range",
        "torch raises IndexError on every device; the suite expects RuntimeError.",
    ),
    (
        r"Mismatched Tensor types in NNPack",
        "NNPACK is a CPU library, and its operator is CPU-only.",
    ),
    (
        r"parse(_csr|_coo|npu|_grad|_gather)|test_unsupport_api",
        "The host NPU has no sparse tensors.",
    ),
    (
        r"mat1 and mat2 must have the same dtype, but got Half and Float",
        "A float16 input with float32 weights: torch refuses it on every device.",
    ),
    (
        r"test_addmv_device_check",
        "Its shapes do not fit either, which torch's function checks before the device is asked.",
    ),
    (
        r"addmv input tensors must have the same dtype",
        "Matmul of two dtypes is refused, as in torch.",
    ),
    (
        r"linalg\.\w+: Low precision",
        "torch's linear algebra refuses 16-bit floats on every device.",
    ),
    (r"renorm: non-positive-norm", "torch's kernel refuses arguments that Ascend's accepts."),
    (
        r"pack_padded|pad_packed",
        "Ascend keeps padding, or has another message; torch's kernel does not.",
    ),
    (r"test_viewcopy", "Looks for Ascend's operator names in a profile."),
    (
        r"test_errcode|test_hccl_timeout|ERR\d|CheckShape failed",
        "Expects Ascend's error codes in the message.",
    ),
    (r"test_ld_preload", "Intercepts functions of Ascend's runtime."),
    (
        r"test_option|ACL_OP_INIT_MODE",
        "Configures Ascend's runtime by its files and variables.",
    ),
    (r"test_sanitizer.*NPU\w+\.cpp", "Reads sources of the pytorch adapter."),
    (
        r"update_stream_globally_unique",
        "Uses a stream of torch_npu's dispatch mode, which a graph does not have here.",
    ),
    (
        r"rng_after_failed_capture",
        "A refused call invalidates the capture, as on CUDA; the suite expects it to "
        "continue after a wait.",
    ),
    (
        r"test_streams_multi_gpu_eq",
        "Reads `cuda_stream` of a stream, which torch_npu's streams lack, too.",
    ),
    (r"test_streams_priority", "Requires stream priorities, which torch_npu refuses, too."),
    (r"npu' has no attribute 'comm'", "torch_npu has no `npu.comm` either."),
    (
        r"leak_detection|compiled with CUDA|CUDA must be available",
        "Requires a CUDA build of torch.",
    ),
    (r"get_soc_version|test_allocator_envs", "Requests are not padded by 32 bytes as on Ascend."),
    (r"numpy.*trapz", "Calls a function that NumPy 2 removed."),
    (r"Can't pickle local object", "Starts a process with a function that cannot be pickled."),
    (r"jit_script", "TorchScript does not compile the Python functions of the operators."),
    (
        r"test_public_bindings",
        "Imports every module of torch, some of which this build of torch lacks.",
    ),
    (r"test_storage\.py", "Expects float64 storages that hold float32, as on Ascend."),
    (r"test_serialization", "Expects Ascend's private formats, or its error, in a saved file."),
    (r"normal_ expects a floating", "`torch.randn` does not support integers; the adapter does."),
    (r"hardsigmoid_cpu", "torch does not support hardsigmoid of integers."),
    (r"test_one_hot", "Expects int32 for int32; torch's one_hot returns int64."),
    (r"test_index_put_different_device", "Values on the CPU are refused, as in torch."),
    (r"infer_save_tensors", "torch's meta function saves no statistics in evaluation."),
    (
        r"test_npu_format_cast|test_format_cast|resultValue",
        "Formats are labels of unpadded storages; private ones must be allowed first.",
    ),
    (r"OutOfMemoryError.* GiB", "Requires more memory than the machine has."),
    (
        r"max_split_size_less_than_large_segment",
        "Expects an order of two sizes that the host's allocator does not require.",
    ),
    (
        r"internal_format_and_offset",
        "Expects Ascend's refusal of parts of tensors in private formats, which are plain here.",
    ),
    (r"torch_npu\._C", "Uses torch_npu._C."),
    (r"TestNpu.test_contiguous", "Expects Ascend's refusal of layouts that are supported here."),
    (r"ends its process", "The process was killed on a machine short of memory."),
    (r"DataLoader worker", "Workers of a DataLoader ended on the loaded machine."),
    (
        r"MKL FFT|fft|stft",
        "Transforms run in torch's CPU library, which refuses or rounds this one.",
    ),
    (
        r"test_prompt_flash_attention",
        "The baseline rounds scores near 1000 to float16 before the exponential: it is "
        "2.0 off the exact result, the operator 0.002.",
    ),
    (
        r"test_npu_multi_head_attention",
        "The baseline rounds scores near 500 to float16 before the exponential: it is 21 off the "
        "exact result, the operator, which rounds only the projections, 8.",
    ),
    (
        r"multi_devices_single_process.* .*op_with_multi_device",
        "The baseline rounds scores near 7000 to float16 before the exponential: it is "
        "2.6 off the exact result, the operator 0.002.",
    ),
    (
        r"test_float_status|foreach_non_finite_check_and_unscale",
        "Expects the mode in which an overflow saturates and sets a status; kernels return "
        "infinities, as in Ascend's INF_NAN mode.",
    ),
    (
        r"cdis_backward_inf",
        "The baseline searches the max difference by its float16 value and misses it; "
        "the operator's gradient equals float64's.",
    ),
    (
        r"hamming|hann_window|test_rsub",
        "torch's CPU kernel rounds an added scalar to float16 first; the device, like "
        "CUDA, keeps float32.",
    ),
    (
        r"test_foreach_(add|sub)",
        "The baseline rounds to float16 at each step; torch's kernels, and the device's, "
        "round once.",
    ),
    (
        r"grid_sampler_2d_backward",
        "A gradient near 0 among others of 12000: the CPU's float32 differs from float64 "
        "by 0.013, the device's by 0.021.",
    ),
    (
        r"test_matmul(_compatible)?\.py .*_fp16_case5",
        "Adds 1.2 million float16 products: the CPU's float32 sums are up to 0.19 off float64's, "
        "the device's 0.012.",
    ),
    (
        r"test_upsample_\w+_aa\.py .*_small_scale",
        "Where a result has one column, torch's CPU kernel repeats the first row; its results of a "
        "transposed image and of channels_last are the device's.",
    ),
    (
        r"test_upsample_bicubic2d_aa_grad\.py .*_large_scale",
        "Adds 290000 float32 weights: the CPU's sums are 1e-4 off float64's, the device's 4e-6.",
    ),
    (
        r"test_thnn_conv_depthwise2d_0",
        "Its two convolutions draw biases of their own: whether the results are close is chance.",
    ),
    (
        r"test_uce\.py",
        "A rank whose device is stopped leaves out as many steps as pass until its thread restarts "
        "the device, the other leaves out one: they call different numbers of collectives.",
    ),
    (
        r"test_index_put_shape_format_fp16",
        "Two additions to one element each round to float16; the baseline is float32.",
    ),
    (
        r"test_col2im_backward",
        "The CPU sums windows in float16 and rounds each sum; the device rounds once.",
    ),
    (
        r"binary_cross_with_logits_backward",
        "torch composes the gradient of operators that each round to float16: "
        "bit-identical to the CPU.",
    ),
    (
        r"gather_stats_with_counts",
        "The statistics of float16 are float32, as on CUDA; the suite expects float16.",
    ),
    (
        r"test_(send_recv|allreduce|broadcast)\.py .*abnormal code",
        "Expects an error for a part of a tensor in an internal format; formats are labels here.",
    ),
    (
        r"Split sizes doesn't match",
        "The sizes are refused in other words than torch's.",
    ),
    (r"_group_start|test_hccl_group", "Calls are not grouped by the backend's private methods."),
    (r"does not match \"", "The error is raised with another message."),
)


def explanation(test: str, error: str) -> str:
    """The sentence for a failed test."""
    text = f"{test}: {error}"
    return next(
        (why for pattern, why in _EXPLANATIONS if re.search(pattern, text)), "Not explained."
    )
