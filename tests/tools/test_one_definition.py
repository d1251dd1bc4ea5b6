"""tools/one_definition.py finds only definitions that a linker would merge."""

from __future__ import annotations

import sys
from pathlib import Path

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
        names("namespace npu { class Later; enum class Kind { kA }; static int F() { return 1; } }")
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
