"""Installs the RPMs with Debian's rpm in a root of its own, uses them as an ordinary user, upgrades and removes them.

run_rpm.py NAMESPACE FOLDER FIRST_HELPER FIRST SECOND_HELPER SECOND

The arguments are those of run_package.py. rpm knows nothing of the root's packages, which dpkg has installed, so what the package
requires is compared with what the root's libraries have, and then left out of the account.
"""

import pathlib
import re
import shutil
import sys

from package_root import PROGRAM, REGISTRATION, begin, differences, expect, serves, shares, traces, with_root
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
    helper, library, next_helper, next_library = (f"/packages/{package.name}" for package in packages)
    for package in packages[:2]:
        check_requirements(root, package)
    version = run("rpm", "-qp", "--queryformat", "%{VERSION}", packages[1])
    expect(f"oclcache = {version}" in run("rpm", "-qp", "--requires", packages[0]).splitlines(), f"the helper requires oclcache {version}")
    (root.path / "packages").mkdir()
    for package in packages:
        shutil.copy(package, root.path / "packages")
    root.inside("rpm", "--initdb")
    bare, before = root.platforms(), root.tree()
    root.inside(*RPM, "--install", library)
    expect((root.path / REGISTRATION).exists(), "installed with rpm")
    expect(root.inside(*RPM, "--verify", "oclcache").strip() == "", "rpm finds every file as it was packaged")
    entries = serves(root, bare)
    without_helper = root.tree()
    root.inside(*RPM, "--install", helper)
    expect(root.inside(*RPM, "--verify", "oclcache-remote").strip() == "", "and every file of the helper")
    shares(root.user, "oclcache", "/usr/bin/oclcache-remote", PROGRAM)
    root.inside(*RPM, "--erase", "oclcache-remote")
    left = differences(without_helper, root.tree())
    expect(left == [], f"the helper is removed, and nothing is left {left or ''}")

    root.inside(*RPM, "--install", helper)
    root.inside(*RPM, "--upgrade", next_library, next_helper)
    expect(root.inside("rpm", "-q", "--queryformat", "%{RELEASE}", "oclcache", "oclcache-remote") == "22", "upgraded to release 2")
    serves(root, bare, entries)
    shares(root.user, "oclcache", "/usr/bin/oclcache-remote", PROGRAM)
    root.inside(*RPM, "--erase", "oclcache-remote")
    root.inside(*RPM, "--erase", "oclcache")
    traces(root, bare, before)


if __name__ == "__main__":
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    main()
