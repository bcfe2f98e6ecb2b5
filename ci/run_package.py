"""Installs the Debian packages in a new root of this distribution, as an administrator would, and uses them there as an ordinary user
would.

run_package.py NAMESPACE FOLDER FIRST_HELPER FIRST SECOND_HELPER SECOND

NAMESPACE is that of the machine's mounts, which this must not run in. FOLDER keeps a root without the package. FIRST and SECOND are
packages of oclcache, the second of a higher revision; the others those of its helper for the remote level. The caller is root, in a mount and a process namespace of its own: with them all mounts go.
"""

import pathlib
import shutil
import sys

from package_root import OTHER, PROGRAM, REGISTRATION, begin, differences, expect, first_runs, shares, with_root
from roots import USER, run


def main():
    begin("ci/package --test", sys.argv[1])
    folder, *packages = (pathlib.Path(word).resolve() for word in sys.argv[2:])
    with_root(folder, lambda root: use(root, packages))


def use(root, packages):
    first_helper, first, second_helper, second = (f"/packages/{package.name}" for package in packages)
    (root.path / "packages").mkdir()
    for package in packages:
        shutil.copy(package, root.path / "packages")
    bare, before = root.platforms(), root.tree()
    cache = root.path / f"home/{USER}/.cache/oclcache"

    root.apt("install", first)
    expect((root.path / REGISTRATION).exists(), "installed, with what it depends on from the distribution")
    version = root.user("oclcache", "--version").strip()
    expect(root.user("oclcache", "stats").strip() and not cache.exists(), f"{version} answers an ordinary user, and makes nothing yet")
    expect(root.platforms() == bare, "clinfo lists each platform once, as before")
    words = root.user("oclcache", "doctor")
    expect("nothing is wrong" in words or "everything is fine" in words, "the doctor finds nothing wrong, as it builds on each device")
    expect("cannot start the baker" not in words, "and that the library finds the command, which bakes")
    first_runs(root)
    misses = root.statistics()["misses"]
    root.user(*PROGRAM)
    warm = root.statistics()
    expect(warm["hits"] > 0 and warm["misses"] == misses, f"with nothing left to bake all is served ({warm['hits']} hits)")
    entries = warm["entries"]

    archive = "tmp/clpeak.tar.zst"
    root.user("oclcache", "export", f"/{archive}")
    command = root.path / "usr/bin/oclcache"
    printed = run("python3", "-B", "ci/package_kernels.py", root.path / archive, "--folder", root.path / "packages", "--command", command)
    kernels = pathlib.Path(printed.splitlines()[-1])
    root.apt("install", f"/packages/{kernels.name}")
    root.inside(*PROGRAM, user=OTHER)
    found = root.statistics(OTHER)
    expect(found["misses"] == 0 and found["hits"] > 0, f"{kernels.name} serves another user's first run")
    root.apt("purge", kernels.name.split("_")[0])

    missing = root.user("sh", "-c", "oclcache remote status 2>&1 || :")
    expect("`oclcache-remote` is not installed: install the package of this name" in missing, "without the helper it says what to install")
    without_helper = root.tree()
    root.apt("install", first_helper)
    shares(root.user, "oclcache", "/usr/bin/oclcache-remote", PROGRAM)
    root.apt("purge", "oclcache-remote")
    left = differences(without_helper, root.tree())
    expect(left == [], f"the helper is purged, and nothing is left {left or ''}")

    root.apt("install", first_helper)
    root.apt("install", second, second_helper)
    revisions = root.inside("dpkg-query", "-W", "-f", "${Version} ", "oclcache", "oclcache-remote").split()
    expect(len(revisions) == 2 and all(revision.endswith("-2") for revision in revisions), f"upgraded to {' '.join(revisions)}")
    shares(root.user, "oclcache", "/usr/bin/oclcache-remote", PROGRAM)
    root.user(*PROGRAM)
    later = root.statistics()
    expect(later["entries"] == entries and later["misses"] == misses and later["hits"] > warm["hits"], "the cache stayed, and serves")

    root.apt("remove", "oclcache")
    left = differences(before, root.tree())
    expect(left == [REGISTRATION], "removed, but for the configuration file, which Debian keeps until the purge")
    expect(root.platforms() == bare, "without the library clinfo lists what it listed before")
    words = root.apt("purge", "oclcache")
    left = differences(before, root.tree())
    expect(left == [], f"purged, and nothing is left {left or ''}")
    expect(cache.exists() and ".cache/oclcache" in words, "but what the user has cached, and it says so")
    root.user(*PROGRAM)
    expect(root.platforms() == bare, "and programs run as before")


if __name__ == "__main__":
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    main()
