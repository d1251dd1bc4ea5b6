"""tools/one_definition.py finds only definitions that a linker would merge."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import one_definition

SHARED = """
#pragma once
namespace npu {
class Rows final : public Base {  // class Comment {
  struct Inside { int a; };
};
template <class T>
struct Pair { T a, b; };
inline int Twice(int x) { return 2 * x; }
namespace { class Own {}; }
}  // namespace npu
"""


def names(text: str) -> list[str]:
    return list(one_definition.definitions(text))


def test_definitions_are_reported_with_their_namespace():
    assert names(SHARED) == ["npu::Rows", "npu::Pair", "npu::Twice(int x)"]


def test_internal_definitions_are_ignored():
    assert (
        names("namespace npu { class Later; enum class Kind : int; static int F() { return 1; } }")
        == []
    )
    assert names("namespace npu::attention { struct Core::State { int a; }; }") == [
        "npu::attention::Core::State"
    ]


def test_overloads_and_other_namespaces_do_not_collide(tmp_path):
    one, two = tmp_path / "one.h", tmp_path / "two.h"
    one.write_text("namespace npu { inline int F(int x) { return x; } class A {}; }")
    two.write_text(
        "namespace npu { inline int F(float x) { return 1; } } namespace other { class A {}; }"
    )
    assert list(one_definition.violations([one, two])) == []


def test_class_defined_in_two_headers_is_reported(tmp_path):
    one, two = tmp_path / "one.h", tmp_path / "two.h"
    one.write_text(SHARED)
    two.write_text("namespace npu {\nclass Rows {\n  int columns;\n};\n}")
    assert list(one_definition.violations([one, two])) == [("npu::Rows", [one, two])]


MERGED = [
    "template <class T, int n = 2>\nT Sum(const T* x) { return x[0]; }",
    "NPU_SIMD_INLINE float Sum(float x) { return x; }",
    "enum class Sum : int8_t { kA };",
    "template <class T> struct Sum { T a; };",
]


@pytest.mark.parametrize("text", MERGED)
def test_templates_macros_and_enumerations_are_reported(tmp_path, text):
    one, two = tmp_path / "one.h", tmp_path / "two.cc"
    for path in (one, two):
        path.write_text(f"namespace npu {{\n{text}\n}}")
    assert [paths for _, paths in one_definition.violations([one, two])] == [[one, two]]
    two.write_text(f"namespace npu {{ namespace {{\n{text}\n}} }}")
    assert list(one_definition.violations([one, two])) == []


def test_static_functions_and_specialisations_are_local(tmp_path):
    for name, text in {
        "one.h": "template <class T> T F(T x) { return x; } static int G() { return 1; }",
        "two.cc": "template <> int F<int>(int x) { return 2; } static int G() { return 2; }",
    }.items():
        (tmp_path / name).write_text(f"namespace npu {{ {text} }}")
    assert list(one_definition.violations(sorted(tmp_path.iterdir()))) == []
