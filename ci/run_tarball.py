"""Installs the tarball in a new root as an administrator would, uses it as an ordinary user, upgrades and removes it; and loads its
module file with Lmod.

run_tarball.py NAMESPACE FOLDER TARBALL

The first arguments are those of run_package.py.
"""

import pathlib
import shutil
import sys

from package_root import PROGRAM, REGISTRATION, begin, differences, expect, serves, shares, traces, with_root
from roots import USER

NEXT = "/opt/oclcache"
VARIABLES = (f"PREFIX={NEXT}", f"ICD_DIR={NEXT}/vendors", "MODULE_DIR=/opt/modulefiles")


def main():
    begin("ci/package --test", sys.argv[1])
    folder, tarball = (pathlib.Path(word).resolve() for word in sys.argv[2:])
    with_root(folder, lambda root: use(root, tarball))


def use(root, tarball):
    # Lmod asks `ps` which shell it is in.
    root.apt("install", "lmod", "procps")
    (root.path / "packages").mkdir()
    shutil.copy(tarball, root.path / "packages")
    unpacked = f"/packages/{tarball.name.removesuffix('.tar.gz')}"
    root.inside("tar", "-xzf", f"/packages/{tarball.name}", "-C", "/packages")
    bare, before = root.platforms(), root.tree()

    # As an ordinary user, without any installation.
    own = f"/home/{USER}/{pathlib.Path(unpacked).name}"
    root.user("tar", "-xzf", f"/packages/{tarball.name}", "-C", f"/home/{USER}")
    root.user(f"{own}/bin/oclcache", "run", "--bake", *PROGRAM)
    said = root.user(f"{own}/bin/oclcache", "run", *PROGRAM)
    expect(" hit" in said and " 0 misses" in said, "oclcache run serves an ordinary user from the unpacked tarball")
    for folder in (own, f"/home/{USER}/.cache"):
        shutil.rmtree(root.path / folder.lstrip("/"))
    left = differences(before, root.tree())
    expect(left == [], f"with the unpacked tarball and the cache everything is gone {left or ''}")
    shares(root.user, f"{unpacked}/bin/oclcache", f"{unpacked}/bin/oclcache-remote", PROGRAM)

    root.inside(f"{unpacked}/install")
    expect((root.path / REGISTRATION).exists(), "install registers the library for the machine")
    entries = serves(root, bare)
    shares(root.user, "oclcache", "/usr/local/bin/oclcache-remote", PROGRAM)
    root.inside(f"{unpacked}/install")
    serves(root, bare, entries)
    root.inside(f"{unpacked}/install", "--uninstall")
    traces(root, bare, before)

    root.inside("env", *VARIABLES, f"{unpacked}/install")
    # A shell of a login reads the module command.
    load = "module use /opt/modulefiles && module load oclcache && "
    shell = ("bash", "-lc")
    root.user(*shell, f"{load} {' '.join(PROGRAM)}")
    hits = root.user(*shell, f"{load} oclcache stats --json | grep '\"hits\"'")
    root.user(*shell, f"{load} {' '.join(PROGRAM)}")
    expect(root.user(*shell, f"{load} oclcache stats --json | grep '\"hits\"'") != hits, "programs of a shell with the module are served")
    with_module = root.user(*shell, f"{load} printenv OCL_ICD_VENDORS PATH")
    without = root.user(*shell, f"{load} module unload oclcache && printenv PATH && ! printenv OCL_ICD_VENDORS")
    expect(with_module.count(NEXT) == 2 and NEXT not in without, "unloading the module leaves no variable")
    root.inside("env", *VARIABLES, f"{unpacked}/install", "--uninstall")
    left = [path for path in differences(before, root.tree()) if not (root.path / path).is_dir()]
    expect(left == [], f"removed, and no file is left {left or ''}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main()
