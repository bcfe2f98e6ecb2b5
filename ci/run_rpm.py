"""Installs the RPM with Debian's rpm in a root of its own, uses it as an ordinary user, upgrades and removes it.

run_rpm.py NAMESPACE FOLDER FIRST SECOND

The arguments are those of run_package.py. rpm knows nothing of the root's packages, which dpkg has installed, so what the package
requires is compared with what the root's libraries have, and then left out of the account.
"""

import pathlib
import re
import shutil
import sys

from package_root import REGISTRATION, begin, expect, serves, traces, with_root
from roots import run

RPM = ("rpm", "--force-debian", "--nodeps")
# Of rpm itself, not of a distribution.
OF_RPM = re.compile(r"rpmlib\(|/|.*[<>=]")


def main():
    begin("ci/package --test", sys.argv[1])
    folder, *packages = (pathlib.Path(word).resolve() for word in sys.argv[2:])
    with_root(folder, lambda root: use(root, packages))


def check_requirements(root, package):
    """Each required version of a library's symbols is in the library that the root has."""
    required = [line for line in run("rpm", "-qp", "--requires", package).splitlines() if not OF_RPM.match(line)]
    expect(any(line.startswith("libgcc_s.so.1(") for line in required), f"requires {' '.join(required)}")
    for line in required:
        library, version = re.match(r"([^(]+)\(([^)]*)\)", line).groups()
        found = next((path for path in root.path.glob(f"lib/*-linux-gnu/{library}")), None)
        found = found or next(iter(root.path.glob(f"usr/lib/*-linux-gnu/{library}")), None)
        if found is None or version.encode() not in (root.path / found).resolve().read_bytes():
            sys.exit(f"FAILED  {line} is in no library of the root")


def use(root, packages):
    root.apt("install", "rpm")
    check_requirements(root, packages[0])
    (root.path / "packages").mkdir()
    for package in packages:
        shutil.copy(package, root.path / "packages")
    root.inside("rpm", "--initdb")
    bare, before = root.platforms(), root.tree()
    root.inside(*RPM, "--install", f"/packages/{packages[0].name}")
    expect((root.path / REGISTRATION).exists(), "installed with rpm")
    expect(root.inside(*RPM, "--verify", "oclcache").strip() == "", "rpm finds every file as it was packaged")
    entries = serves(root, bare)
    root.inside(*RPM, "--upgrade", f"/packages/{packages[1].name}")
    expect(root.inside("rpm", "-q", "--queryformat", "%{RELEASE}", "oclcache") == "2", "upgraded to release 2")
    serves(root, bare, entries)
    root.inside(*RPM, "--erase", "oclcache")
    traces(root, bare, before)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main()
