"""Mixed precision, overflow flags and options."""

import json
import math

import numpy as np
import pytest
from onnxruntime_npu import npu

from row_calls import calls


@calls("npu.get_amp_supported_dtype")
def _(c, name):
    torch = c.torch
    assert npu.get_amp_supported_dtype() == [torch.float16, torch.bfloat16, torch.float32]


@calls("npu.is_autocast_enabled", "npu.set_autocast_enabled")
def _(c, name):
    torch = c.torch
    npu.set_autocast_enabled(True)
    assert npu.is_autocast_enabled() and torch.is_autocast_enabled("npu")
    npu.set_autocast_enabled(False)
    assert not npu.is_autocast_enabled()
    with pytest.raises(TypeError, match="bool"):
        npu.set_autocast_enabled(1)


@calls("npu.get_autocast_dtype", "npu.set_autocast_dtype")
def _(c, name):
    torch = c.torch
    before = npu.get_autocast_dtype()
    npu.set_autocast_dtype(torch.bfloat16)
    assert npu.get_autocast_dtype() == torch.bfloat16
    npu.set_autocast_dtype(before)


@calls("npu.enable_deterministic_with_backward", "npu.disable_deterministic_with_backward")
def _(c, name):
    torch = c.torch
    is_on = torch.are_deterministic_algorithms_enabled
    x = torch.ones(3, requires_grad=True)
    seen = []
    inside = npu.enable_deterministic_with_backward(x)
    assert is_on() and torch.equal(inside, x)
    inside = inside * 2
    inside.register_hook(lambda grad: seen.append(is_on()))
    y = npu.disable_deterministic_with_backward(inside)
    assert not is_on()
    y.sum().backward()
    assert seen == [True] and not is_on()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor, got int"):
        getattr(npu, name.removeprefix("npu."))(3)


@calls("npu.utils.is_support_inf_nan")
def _(c, name):
    assert npu.utils.is_support_inf_nan() is True


@calls("npu.utils.npu_check_overflow")
def _(c, name):
    torch = c.torch
    assert npu.utils.npu_check_overflow(math.inf) and not npu.utils.npu_check_overflow(1.0)
    assert npu.utils.npu_check_overflow(torch.tensor([1.0, math.nan], device="npu"))
    assert not npu.utils.npu_check_overflow(torch.ones(3, dtype=torch.float16, device="npu"))
    with pytest.raises(RuntimeError, match="Unsupported type"):
        npu.utils.npu_check_overflow("1")


@calls("npu.get_npu_overflow_flag")
def _(c, name):
    with pytest.raises(RuntimeError, match="INF_NAN"):
        npu.get_npu_overflow_flag()


@calls("npu.clear_npu_overflow_flag")
def _(c, name):
    with pytest.warns(UserWarning, match="INF_NAN"):
        npu.clear_npu_overflow_flag()


@calls("npu.matmul.allow_hf32", "npu.conv.allow_hf32", "npu.aclnn.allow_hf32")
def _(c, name):
    for owner in (npu.matmul, npu.conv, npu.aclnn):
        before = owner.allow_hf32
        owner.allow_hf32 = not before
        assert owner.allow_hf32 is not before
        owner.allow_hf32 = before
        with pytest.raises(TypeError, match="bool"):
            owner.allow_hf32 = 1
        assert owner.other is None
    npu.matmul.cube_math_type = 3
    assert npu.matmul.cube_math_type == 3
    npu.matmul.cube_math_type = 0
    with pytest.raises(TypeError, match="cube_math_type"):
        npu.matmul.cube_math_type = 9


@calls("npu.set_option")
def _(c, name):
    option = {"ACL_AICORE_NUM": 8}
    npu.set_option(option)
    assert option == {"ACL_AICORE_NUM": "8"}
    with pytest.raises(TypeError, match="must be a dict"):
        npu.set_option([("a", 1)])
    with pytest.raises(
        ValueError, match=r"jitCompile should be in \['enable', 'disable'\] but got"
    ):
        npu.set_option({"jitCompile": "maybe"})
    with pytest.raises(RuntimeError, match="invalid npu option name: colour"):
        npu.set_option({"colour": "blue"})


@calls("npu.config.allow_internal_format")
def _(c, name):
    npu.config.allow_internal_format = False
    npu.config.something_else = 1
    with pytest.raises(AttributeError):
        npu.config.allow_internal_format  # noqa: B018


@calls("npu.set_compile_mode", "npu.is_jit_compile_false")
def _(c, name):
    assert npu.is_jit_compile_false()
    npu.set_compile_mode(jit_compile=True)
    assert not npu.is_jit_compile_false()
    npu.set_compile_mode(jit_compile=False)


@calls("npu.set_mm_bmm_format_nd", "npu.get_mm_bmm_format_nd")
def _(c, name):
    assert npu.get_mm_bmm_format_nd()
    npu.set_mm_bmm_format_nd(False)
    assert not npu.get_mm_bmm_format_nd()
    npu.set_option({"MM_BMM_ND_ENABLE": "enable"})
    assert npu.get_mm_bmm_format_nd()


@calls("npu.set_aoe")
def _(c, name):
    npu.set_aoe(str(c.folder / "aoe"))
    assert (c.folder / "aoe").is_dir()
    with pytest.raises(TypeError, match="dump_path"):
        npu.set_aoe(3)
    npu.set_option({"autotune": "disable"})


@calls("npu.init_dump", "npu.set_dump", "npu.finalize_dump")
def _(c, name):
    torch = c.torch
    config = c.folder / "dump.json"
    with pytest.raises(AssertionError, match="path does not exist"):
        npu.set_dump(str(config))
    config.write_text('{"dump": []}')
    with pytest.raises(ValueError, match="expected"):
        npu.set_dump(str(config))
    facts = {"dump_path": str(c.folder / "out"), "dump_mode": "all", "dump_list": ["NPURmsNorm"]}
    config.write_text(json.dumps({"dump": facts}))
    x, gamma = torch.randn(2, 8), torch.ones(8)
    npu.init_dump()
    npu.set_dump(str(config))
    y = torch.ops.npu.npu_rms_norm(x.npu(), gamma.npu())[0].cpu()
    npu.finalize_dump()
    torch.ops.npu.npu_rms_norm(x.npu(), gamma.npu())
    npu.synchronize()
    files = {f.name.split(".", 2)[2]: np.load(f) for f in (c.folder / "out").iterdir()}
    assert set(files) == {"input.0.npy", "input.1.npy", "output.0.npy", "output.1.npy"}
    np.testing.assert_array_equal(files["input.0.npy"], x.numpy())
    np.testing.assert_array_equal(files["output.0.npy"], y.numpy())
