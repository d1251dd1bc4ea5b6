#!/usr/bin/env python3
"""Fetch a pinned set of C++ headers into a cache folder and print the include directory.

Used by the CMake finders when neither the user nor the system provides the headers. Headers are
never committed and never installed into the system. Every download is pinned by SHA-256: an archive
with another digest is refused.

Sources, in order: a Debian package (through a private apt directory and the mirror that this
machine's own apt sources name), then an npm package (through the npm client as configured).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DebianPackage:
    name: str
    version: str
    suite: str
    sha256: str
    include: str  # include directory inside the package


@dataclass(frozen=True)
class NpmPackage:
    name: str
    version: str
    sha256: str
    include: str


SOURCES: dict[str, list[DebianPackage | NpmPackage]] = {
    "onnxruntime": [
        DebianPackage(
            "libonnxruntime-dev",
            "1.27.1+dfsg-1",
            "experimental",
            "521b439b4674dbd71da1d0bc3016f29075c6ad572f4a1c13beb011dee893f8f3",
            "usr/include/onnxruntime",
        ),
        NpmPackage(
            "com.github.asus4.onnxruntime",
            "0.4.9",
            "e59788788818fdde1b2e522e766a21ba0f7d8391de55737abf81e32cc801785d",
            "package/Plugins/iOS~/onnxruntime.xcframework/ios-arm64/onnxruntime.framework/Headers",
        ),
    ],
    "doctest": [
        DebianPackage(
            "doctest-dev",
            "2.4.9~ds-1",
            "bookworm",
            "b1b43598b8e7f347af1c00f2263f0a19af4c632c808a6fc78a0617eb494c2c94",
            "usr/include",
        ),
    ],
}


class FetchError(Exception):
    """A source could not provide the archive; the text says why."""


def run(command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900)
    except FileNotFoundError:
        raise FetchError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise FetchError(f"{command[0]} did not finish in 15 minutes") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise FetchError(f"{' '.join(command[:1] + command[-2:])} failed: {last}")
    return done.stdout


def verify(archive: Path, sha256: str) -> None:
    got = hashlib.sha256(archive.read_bytes()).hexdigest()
    if got != sha256:
        raise FetchError(f"{archive.name} has SHA-256 {got}, expected {sha256}")


def debian_mirrors() -> list[str]:
    """The Debian mirrors that this machine's apt already uses."""
    found: list[str] = []
    folder = Path("/etc/apt/sources.list.d")
    files = [Path("/etc/apt/sources.list"), *sorted(folder.glob("*"))]
    for path in files:
        if not path.is_file():
            continue
        for line in path.read_text(errors="replace").splitlines():
            match = re.match(r"\s*(?:URIs:\s*|deb\s+(?:\[[^\]]*\]\s+)?)(\S+)", line)
            if match and match.group(1).rstrip("/").endswith("/debian"):
                found.append(match.group(1))
    return list(dict.fromkeys(found))


def fetch_debian(package: DebianPackage, work: Path, target: Path) -> None:
    mirrors = debian_mirrors()
    if not mirrors:
        raise FetchError("no Debian mirror in this machine's apt sources")
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    # The archive is pinned below, so the private index itself needs no signature.
    (work / "sources.list").write_text(
        "".join(f"deb [trusted=yes] {m} {package.suite} main\n" for m in mirrors)
    )
    apt = [
        "apt-get",
        "-o", f"Dir::Etc::sourcelist={work}/sources.list",
        "-o", "Dir::Etc::sourceparts=/dev/null",
        "-o", f"Dir::State::lists={work}/lists",
        "-o", f"Dir::Cache={work}/cache",
    ]  # fmt: skip
    if os.geteuid() == 0:
        apt += ["-o", "APT::Sandbox::User=root"]
    run([*apt, "update"])
    run([*apt, "download", f"{package.name}={package.version}"], cwd=work)
    archives = list(work.glob("*.deb"))
    if len(archives) != 1:
        raise FetchError(f"apt-get download left {len(archives)} packages, expected 1")
    verify(archives[0], package.sha256)
    run(["dpkg", "-x", str(archives[0]), str(work / "tree")])
    shutil.copytree(work / "tree" / package.include, target)


def fetch_npm(package: NpmPackage, work: Path, target: Path) -> None:
    run(["npm", "pack", "--silent", f"{package.name}@{package.version}"], cwd=work)
    archives = list(work.glob("*.tgz"))
    if len(archives) != 1:
        raise FetchError(f"npm pack left {len(archives)} archives, expected 1")
    verify(archives[0], package.sha256)
    prefix = package.include + "/"
    target.mkdir(parents=True)
    with tarfile.open(archives[0]) as tar:
        for member in tar:
            name = member.name.removeprefix(prefix)
            if member.isfile() and member.name.startswith(prefix) and "/" not in name:
                source = tar.extractfile(member)
                if source is not None:
                    (target / name).write_bytes(source.read())


def fetch(what: str, cache: Path) -> Path:
    """Return the include directory of `what`, downloading it once into `cache`."""
    errors = []
    for package in SOURCES[what]:
        target = cache / f"{what}-{package.sha256[:16]}"
        if target.is_dir():
            return target
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as folder:
            work = Path(folder)
            fetched = work / "include"
            try:
                if isinstance(package, DebianPackage):
                    fetch_debian(package, work, fetched)
                else:
                    fetch_npm(package, work, fetched)
            except FetchError as error:
                errors.append(f"{package.name}: {error}")
                continue
            try:
                fetched.rename(target)  # atomic: a parallel build sees all of it or nothing
            except OSError:
                if not target.is_dir():
                    raise
            return target
    raise FetchError("; ".join(errors))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=sorted(SOURCES))
    parser.add_argument("--cache", type=Path, required=True)
    args = parser.parse_args()
    try:
        print(fetch(args.what, args.cache.expanduser().resolve()))
    except FetchError as error:
        print(f"could not fetch the headers of {args.what}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
