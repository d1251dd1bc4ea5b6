"""Why tests that count fail: a sentence for a pattern of ``file test: error``."""

import re

_EXPLANATIONS = (
    (r"empty_quantized|uantize", "The host NPU has no quantized tensors of torch."),
    (
        r"exponential_no_zero",
        "Draws 50 thousand million numbers; a core makes 0.12 thousand million a second.",
    ),
    (
        r"test_glu",
        "Makes 1.1 thousand million numbers in NumPy's float64, 9 GB, for one of its cases.",
    ),
    (
        r"hangs: stopped",
        "The suite's own sizes, on the CPU's side too, take longer than the limit on two cores.",
    ),
    (r"not reached within", "The file's tests before it used up the file's time."),
    (
        r"IndexError: Dimension out of range",
        "torch raises IndexError on every device; the suite wants RuntimeError.",
    ),
    (r"Mismatched Tensor types in NNPack", "NNPACK is a library of the CPU; so is its operator."),
    (
        r"parse(_csr|_coo|npu|_grad|_gather)|test_unsupport_api",
        "The host NPU has no sparse tensors.",
    ),
    (
        r"mat1 and mat2 must have the same dtype",
        "A float16 input beside float32 weights: torch refuses it on every device.",
    ),
    (
        r"addmv input tensors must have the same dtype",
        "Products of two types are refused, as by torch.",
    ),
    (
        r"linalg\.\w+: Low precision",
        "torch's linear algebra refuses 16-bit floats on every device.",
    ),
    (r"renorm: non-positive-norm", "torch's own kernel refuses what Ascend's takes."),
    (
        r"pack_padded|pad_packed",
        "Ascend keeps padding, or words it so; torch's own kernel does not.",
    ),
    (r"test_viewcopy", "Looks for operators by Ascend's names in a profile."),
    (r"test_errcode|ERR\d|CheckShape failed", "Wants Ascend's error codes in the message."),
    (r"test_ld_preload", "Intercepts functions of Ascend's runtime."),
    (
        r"test_option|ACL_OP_INIT_MODE",
        "Configures Ascend's runtime by its own files and variables.",
    ),
    (r"test_sanitizer.*NPU\w+\.cpp", "Reads sources of the pytorch adapter."),
    (
        r"update_stream_globally_unique",
        "Looks at a stream of torch_npu's own dispatch mode, which a graph here does not have.",
    ),
    (
        r"rng_after_failed_capture",
        "What a capture refuses spoils it, as on CUDA; the suite wants it to go on after a wait.",
    ),
    (r"test_streams_multi_gpu_eq", "Asks a stream for `cuda_stream`, which torch_npu's lacks too."),
    (r"test_streams_priority", "Wants priorities of streams; torch_npu refuses them, too."),
    (r"npu' has no attribute 'comm'", "torch_npu has no `npu.comm`, either."),
    (
        r"leak_detection|compiled with CUDA|CUDA must be available",
        "Wants torch's build for CUDA.",
    ),
    (r"get_soc_version|test_allocator_envs", "Requests are not padded by Ascend's 32 bytes."),
    (r"numpy.*trapz", "Calls a function that NumPy 2 removed."),
    (r"Can't pickle local object", "Starts a process with a function that cannot be pickled."),
    (r"jit_script", "TorchScript does not compile the Python functions of the operators."),
    (
        r"test_public_bindings",
        "Imports every module of torch, some of which this build of torch lacks.",
    ),
    (r"test_storage\.py", "Wants float64 storages that hold float32, as on Ascend."),
    (r"test_serialization", "Wants Ascend's private formats, or its own error, in a saved file."),
    (r"normal_ expects a floating", "`torch.randn` has no integers; the adapter takes it so."),
    (r"hardsigmoid_cpu", "torch has no hardsigmoid of integers."),
    (r"test_one_hot", "Wants int32 for int32; torch's one_hot gives int64."),
    (r"test_index_put_different_device", "Values on the CPU are refused, as by torch."),
    (r"infer_save_tensors", "torch's meta function says that evaluation saves no statistics."),
    (
        r"test_npu_format_cast|test_format_cast|resultValue",
        "Formats are labels of a storage without padding; private ones have to be allowed.",
    ),
    (r"OutOfMemoryError.* GiB", "Wants more memory than the machine has."),
    (
        r"max_split_size_less_than_large_segment",
        "Wants an order of two sizes that the host's allocator does not need.",
    ),
    (r"torch_npu\._C", "Uses torch_npu._C."),
    (r"TestNpu.test_contiguous", "Wants Ascend's refusal of layouts that work here."),
    (r"ends its process", "The process was ended from outside, on a machine short of memory."),
    (r"DataLoader worker", "Workers of a DataLoader ended on the loaded machine."),
    (
        r"MKL FFT|fft|stft",
        "torch's CPU library computes transforms; it refuses or rounds this one.",
    ),
    (
        r"test_prompt_flash_attention",
        "The baseline rounds scores of a thousand to float16, whole numbers, before their "
        "exponential: it is 2.0 off the exact result, the operator 0.002.",
    ),
    (
        r"cdis_backward_inf",
        "The baseline seeks the greatest difference by its rounding to float16 and does not find "
        "it; the operator's gradient equals that in float64.",
    ),
    (
        r"hamming|hann_window|test_rsub",
        "torch's CPU kernel rounds a number that is added to float16 first; the device, as CUDA, "
        "keeps it in float32.",
    ),
    (
        r"test_foreach_(add|sub)",
        "The baseline is float16 arithmetic step by step; torch's own kernels, and the device's, "
        "round once.",
    ),
    (
        r"grid_sampler_2d_backward",
        "A gradient of near 0 among others of 12000: the CPU's float32 is off float64 by 0.013 "
        "there, the device's by 0.021.",
    ),
    (
        r"test_index_put_shape_format_fp16",
        "Two additions to one element round to float16 each; the baseline is float32.",
    ),
    (
        r"test_col2im_backward",
        "The CPU adds windows up in float16, each sum rounded; the device's sums are rounded once.",
    ),
    (
        r"binary_cross_with_logits_backward",
        "torch composes the gradient of operators that round to float16 each: the CPU's is the "
        "same, bit by bit.",
    ),
    (
        r"gather_stats_with_counts",
        "The statistics of float16 are float32, as on CUDA; the suite wants float16.",
    ),
    (r"does not match \"", "The error is raised, in other words."),
)


def explanation(test: str, error: str) -> str:
    """The sentence for a failed test; empty if no pattern matches."""
    text = f"{test}: {error}"
    return next((why for pattern, why in _EXPLANATIONS if re.search(pattern, text)), "")
