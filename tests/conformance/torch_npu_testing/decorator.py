"""Tests over dtypes and formats: ``@instantiate_tests`` with ``@Dtypes`` and ``@Formats``."""

import functools
import inspect
import itertools

import torch


class Dtypes:
    """The dtypes that a test is made for."""

    def __init__(self, *dtypes):
        if not dtypes or not all(isinstance(dtype, torch.dtype) for dtype in dtypes):
            raise RuntimeError(f"Dtypes expects torch dtypes, got {dtypes}")
        self.dtypes = dtypes

    def __call__(self, function):
        function.dtypes = self.dtypes
        return function


class Formats:
    """The storage formats that a test is made for."""

    def __init__(self, *formats):
        if not formats:
            raise RuntimeError("Formats expects at least one format")
        self.formats = formats

    def __call__(self, function):
        function.formats = self.formats
        return function


def instantiate_tests(cls):
    """Replaces each decorated test with one test per dtype and format."""
    for name, function in list(vars(cls).items()):
        axes = {
            key: getattr(function, key + "s")
            for key in ("dtype", "format")
            if hasattr(function, key + "s")
        }
        if not axes:
            continue
        delattr(cls, name)
        for values in itertools.product(*axes.values()):
            choice = dict(zip(axes, values, strict=True))
            suffix = "".join(f"_{str(value).removeprefix('torch.')}" for value in values)
            setattr(cls, name + suffix, _bound(function, name + suffix, choice))
    return cls


def _bound(function, name, choice):
    parameters = inspect.getfullargspec(function).args
    arguments = {"device": "npu"} if "device" in parameters else {}
    for key, value in choice.items():
        # The suites name the parameter differently: dtype, npu_format, ...
        arguments[next(p for p in parameters if key in p)] = value

    @functools.wraps(function)
    def test(self):
        return function(self, **arguments)

    test.__name__ = name
    return test
