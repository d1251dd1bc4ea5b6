"""Builds the native libraries with CMake and packages them with the Python sources."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parent
PACKAGE = "onnxruntime_npu"


class CMakeBuild(build_ext):
    """Runs CMake; the shared libraries are written to the package folder (editable) or the wheel.

    CMAKE_ARGS adds configure arguments; CMAKE_BUILD_PARALLEL_LEVEL limits the jobs.
    """

    def run(self) -> None:
        if self.inplace:
            library_dir = ROOT / "python" / PACKAGE
        else:
            library_dir = Path(self.build_lib).resolve() / PACKAGE
        # One build tree for editable and wheel builds: only the link step differs between them.
        build_dir = ROOT / "build" / "cmake"
        cmake = shutil.which("cmake")
        if cmake is None:
            sys.exit(
                "onnxruntime-npu needs CMake 3.22 or newer to build; install it and run this again."
            )
        configure = [
            cmake,
            "-S", str(ROOT),
            "-B", str(build_dir),
            f"-DCMAKE_BUILD_TYPE={os.environ.get('CMAKE_BUILD_TYPE', 'Release')}",
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DNPU_LIBRARY_DIR={library_dir}",
            # These override the settings of an earlier build in the same tree.
            "-DNPU_ISAS=all",
            "-DNPU_BUILD_PYTHON=ON",
            "-DNPU_BUILD_TORCH=ON",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]  # fmt: skip
        if not (build_dir / "CMakeCache.txt").exists() and shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        subprocess.run(configure, check=True)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
        subprocess.run([cmake, "--build", str(build_dir), "--parallel", jobs], check=True)

    def get_outputs(self) -> list[str]:
        """List the libraries for install commands."""
        return [str(path) for path in (Path(self.build_lib) / PACKAGE).glob("*.so")]


class BinaryDistribution(Distribution):
    """The wheel is platform-specific although setuptools compiles nothing itself."""

    def has_ext_modules(self) -> bool:
        return True


def packages() -> dict[str, Path]:
    """Map package names to folders: two trees next to python/ are part of the package."""
    found = {}
    for name, base in (
        (PACKAGE, ROOT / "python" / PACKAGE),
        (f"{PACKAGE}.contrib_ops", ROOT / "contrib_ops"),
        (f"{PACKAGE}.converters", ROOT / "converters"),
    ):
        for folder in (base, *sorted(p for p in base.rglob("*") if p.is_dir())):
            if folder.name == "__pycache__" or not any(folder.glob("*.py")):
                continue
            found[".".join((name, *folder.relative_to(base).parts))] = folder
    return found


PACKAGES = packages()

setup(
    packages=list(PACKAGES),
    py_modules=[f"{PACKAGE}_command"],
    package_dir={
        "": "python",
        **{name: str(folder.relative_to(ROOT)) for name, folder in PACKAGES.items()},
    },
    package_data={name: ["*.pyi", "py.typed", "*.txt", "*.html"] for name in PACKAGES},
    ext_modules=[Extension(f"{PACKAGE}._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    distclass=BinaryDistribution,
)
