"""Checks the licenses of all dependencies (normal, build and development) of the library, the command and the helper of the remote
level, which has a lockfile of its own, against the list in ci/licenses."""

import json
import pathlib
import re
import subprocess
import sys

LIST = pathlib.Path(__file__).with_name("licenses")
TOP = LIST.parent.parent
# Each has a lockfile of its own.
MANIFESTS = (TOP / "Cargo.toml", TOP / "src" / "oclcache-remote" / "Cargo.toml")


def satisfied(expression, allowed):
    """Whether the allowed licenses satisfy an SPDX expression. WITH binds before AND, AND before OR; "/" is the old way to write OR.

    >>> allowed = {"MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"}
    >>> [satisfied(e, allowed) for e in ("MIT", "GPL-2.0 OR MIT", "GPL-2.0/MIT", "(MIT OR GPL-2.0) AND Zlib", "Apache-2.0 WITH LLVM-exception")]
    [True, True, True, True, True]
    >>> [satisfied(e, allowed) for e in ("GPL-2.0", "MIT AND GPL-2.0", "Apache-2.0", "GPL-2.0 OR MIT AND LGPL-2.1", "MIT WITH LLVM-exception")]
    [False, False, False, False, False]
    >>> satisfied("MIT OR (Zlib", allowed)
    Traceback (most recent call last):
    ValueError: not an SPDX expression: MIT OR (Zlib
    """
    words = re.findall(r"[()/]|[^\s()/]+", expression)

    def take(*wanted):
        if words and words[0].upper() in wanted:
            return words.pop(0)
        return None

    def either():
        result = both()
        while take("OR", "/"):
            result = both() or result
        return result

    def both():
        result = one()
        while take("AND"):
            result = one() and result
        return result

    def one():
        if take("("):
            result = either()
            if not take(")"):
                raise ValueError(f"not an SPDX expression: {expression}")
            return result
        if not words or words[0].upper() in ("AND", "OR", "WITH", ")", "/"):
            raise ValueError(f"not an SPDX expression: {expression}")
        name = words.pop(0)
        if take("WITH"):
            name += " WITH " + (words.pop(0) if words else "")
        return name in allowed

    result = either()
    if words:
        raise ValueError(f"not an SPDX expression: {expression}")
    return result


def output(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def dependencies(manifest=MANIFESTS[0]):
    """The packages of other people that are used on this machine."""
    host = re.search(r"^host: (\S+)$", output("rustc", "-vV"), re.MULTILINE)[1]
    argv = ("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host, "--manifest-path", str(manifest))
    metadata = json.loads(output(*argv))
    used = {node["id"] for node in metadata["resolve"]["nodes"]}
    # Packages of this project come from a path.
    return [package for package in metadata["packages"] if package["id"] in used and package["source"]]


def verdict(package, allowed):
    """None, or what is wrong with the package's license."""
    expression = package["license"]
    if not expression:
        return "states no license expression"
    try:
        return None if satisfied(expression, allowed) else f"{expression} is not allowed"
    except ValueError as error:
        return str(error)


def main():
    lines = (line.split("#")[0].strip() for line in LIST.read_text().splitlines())
    allowed = {line for line in lines if line}
    # The two lockfiles may have different versions of one package.
    packages = {package["id"]: package for manifest in MANIFESTS for package in dependencies(manifest)}
    wrong = [(package, verdict(package, allowed)) for package in packages.values()]
    wrong = [f"{package['name']} {package['version']}: {what}" for package, what in wrong if what]
    if wrong:
        sys.exit("licenses that are not in ci/licenses:\n" + "\n".join(wrong))
    print(f"{len(packages)} dependencies, all under licenses of the list")


if __name__ == "__main__":
    main()
