"""Installs the package in a new root of this distribution, as an administrator would, and uses it there as an ordinary user would.

run_package.py NAMESPACE FOLDER FIRST SECOND

NAMESPACE is that of the machine's mounts, which this must not run in. FOLDER keeps a root without the package; FIRST and SECOND are packages, the second a higher revision. The caller is root, in a
mount and a process namespace of its own: with them all mounts go.
"""

import hashlib
import json
import os
import pathlib
import shutil
import stat
import sys

from roots import USER, Root, bootstrap, copy, run, sources

DRIVER = ("ocl-icd-libopencl1", "pocl-opencl-icd", "clinfo", "clpeak")
PROGRAM = ("clpeak", "--kernel-latency")
OTHER = "guest"
# What package managers and the system itself write.
OTHERS = (
    "dev", "proc", "sys", "run", "tmp", "root", "home", "etc/ld.so.cache", "var/cache/ldconfig", "var/cache/apt", "var/cache/debconf",
    "var/lib/apt", "var/lib/dpkg", "var/log", "packages",
)  # fmt: skip
REGISTRATION = "etc/OpenCL/vendors/oclcache.icd"


def make_base(base):
    """A root with a loader, a driver and programs, without the package."""
    new = base.with_suffix(".new")
    bootstrap(new, *sources())
    root = Root(new)
    root.apt("update")
    root.apt("install", *DRIVER)
    root.apt("clean")
    for name in (USER, OTHER):
        root.inside("useradd", "--create-home", name)
    root.unmount()
    new.rename(base)


class PackageRoot(Root):
    """One whose files are compared."""

    def platforms(self):
        return self.user("clinfo", "--raw", "--prop", "CL_PLATFORM_NAME")

    def statistics(self, user=USER):
        return json.loads(self.inside("oclcache", "stats", "--json", user=user))

    def tree(self):
        """All files, by path, but for those that any package changes."""
        found = {}
        for folder, folders, files in os.walk(self.path):
            here = pathlib.Path(folder).relative_to(self.path)
            folders[:] = [name for name in folders if str(here / name) not in OTHERS]
            for name in folders + files:
                if str(here / name) in OTHERS:
                    continue
                path = pathlib.Path(folder, name)
                state = path.lstat()
                content = None
                if stat.S_ISLNK(state.st_mode):
                    content = os.readlink(path)
                elif stat.S_ISREG(state.st_mode):
                    content = hashlib.sha256(path.read_bytes()).hexdigest()
                found[str(here / name)] = (state.st_mode, state.st_uid, state.st_gid, content)
        return found


def differences(before, after):
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def expect(condition, words):
    if not condition:
        sys.exit(f"FAILED  {words}")
    print(f"ok      {words}", flush=True)


def main():
    outer, *words = sys.argv[1:]
    if os.readlink("/proc/self/ns/mnt") == outer:
        sys.exit("what this mounts must go with it: start it by ci/package --test")
    folder, *packages = (pathlib.Path(word).resolve() for word in words)
    base, work = folder / "root", folder / "root.used"
    if not base.exists():
        make_base(base)
    copy(base, work)
    root = PackageRoot(work)
    try:
        use(root, packages)
    finally:
        root.unmount()
        shutil.rmtree(work, ignore_errors=True)


def use(root, packages):
    first, second = (f"/packages/{package.name}" for package in packages)
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
    # clinfo has built a kernel.
    earlier = root.statistics()["misses"]
    root.user(*PROGRAM)
    root.user("oclcache", "bake")
    misses = root.statistics()["misses"]
    expect(misses > earlier, f"{PROGRAM[0]} is compiled at its first run ({misses - earlier} misses)")
    root.user(*PROGRAM)
    warm = root.statistics()
    expect(warm["hits"] > 0 and warm["misses"] == misses, f"and served at its second ({warm['hits']} hits)")
    entries = warm["entries"]

    archive = f"home/{USER}/clpeak.tar.zst"
    root.user("oclcache", "export", f"/{archive}")
    printed = run("python3", "-B", "ci/package_kernels.py", root.path / archive, "--folder", root.path / "packages")
    kernels = pathlib.Path(printed.splitlines()[-1])
    root.apt("install", f"/packages/{kernels.name}")
    root.inside(*PROGRAM, user=OTHER)
    found = root.statistics(OTHER)
    expect(found["misses"] == 0 and found["hits"] > 0, f"{kernels.name} serves another user's first run")
    root.apt("purge", kernels.name.split("_")[0])

    root.apt("install", second)
    revision = root.inside("dpkg-query", "-W", "-f", "${Version}", "oclcache")
    expect(revision.endswith("-2"), f"upgraded to {revision}")
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
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main()
