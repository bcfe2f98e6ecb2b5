"""A root of this distribution in which a package is installed, used by ordinary users, and removed, and its files compared."""

import hashlib
import json
import os
import pathlib
import shutil
import stat
import sys
import time

from roots import USER, Root, bootstrap, copy, run, sources

DRIVER = ("ocl-icd-libopencl1", "pocl-opencl-icd", "clinfo", "clpeak")
PROGRAM = ("clpeak", "--kernel-latency")
OTHER = "guest"
# What package managers and the system itself write, and the caches of users, which no removal touches.
OTHERS = (
    "dev", "proc", "sys", "run", "tmp", "root", f"home/{USER}/.cache", f"home/{OTHER}/.cache", "etc/ld.so.cache", "var/cache/ldconfig", "var/cache/apt", "var/cache/debconf",
    "var/lib/apt", "var/lib/dpkg", "var/lib/rpm", "usr/lib/sysimage", "var/log", "packages",
)  # fmt: skip
# How long the baker may take for the kernels of the program, in seconds, on a machine that is busy.
BAKING = 120
# How many homes may join until one gets all answers in time.
RECEIVERS = 3
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


def first_runs(root):
    """Runs a program that nobody has compiled, until it is served: its own process has started the baker."""
    before = root.statistics()
    # A child of the first process would start nothing, since the baker would end with it.
    program = ("sh", "-c", f"{' '.join(PROGRAM)} && :")
    root.user(*program)
    first = root.statistics()
    expect(first["misses"] > before["misses"], f"{PROGRAM[0]} is compiled at its first run ({first['misses'] - before['misses']} misses)")
    end = time.monotonic() + BAKING
    while (now := root.statistics())["hits"] == first["hits"] and time.monotonic() < end:
        time.sleep(1)
        root.user(*program)
    expect(now["hits"] > first["hits"], "and served at a later one: the library has started the baker")
    # Nothing is left to be baked.
    root.user("oclcache", "bake")
    root.user("oclcache", "run", "-q", *PROGRAM)
    expect(not (root.path / f"home/{USER}/.local").exists(), "oclcache run writes nothing in the home but the cache")


def serves(root, bare, entries=None):
    """Has an ordinary user's program served, on a cache with so many entries, or first on an empty one; how many there are then."""
    expect(root.platforms() == bare, "clinfo lists each platform once, as before")
    if entries is None:
        first_runs(root)
    before = root.statistics()
    root.user(*PROGRAM)
    warm = root.statistics()
    expect(warm["hits"] > before["hits"] and warm["misses"] == before["misses"], f"{PROGRAM[0]} is served ({warm['hits']} hits)")
    if entries is not None:
        expect(warm["entries"] == entries, "the cache stayed as it was")
    return warm["entries"]


def shares(say, command, helper, program):
    """Has one home of a user send what it compiled to a directory, and another be served from there by the helper of the remote level.

    `say` runs a program as the user, and gives what it prints.
    """
    place = say("mktemp", "--directory").strip()
    store = f"file://{place}/store"

    def at(home, *argv):
        return say("env", f"HOME={place}/{home}", *argv)

    at("sender", "mkdir", f"{place}/sender")
    at("sender", command, "config", "set", "remote", store)
    expect(store in at("sender", command, "remote", "status"), "`oclcache remote status` finds the helper")
    refused = at("sender", "sh", "-c", f"{helper} serve --protocol 200 2>&1 || :")
    expect("version 200 of the protocol was not served" in refused, "it says so of a program of another version")
    at("sender", command, "run", "-q", "--bake", *program)
    at("sender", command, "remote", "push")
    sent = say("find", f"{place}/store", "-path", "*/e/*", "-type", "f").splitlines()
    expect(len(sent) > 0, f"what a program compiled is sent to a directory ({len(sent)} entries)")
    # On a busy machine an answer may come too late, and the driver compiles.
    for number in range(RECEIVERS):
        home = f"receiver{number}"
        at(home, "mkdir", f"{place}/{home}")
        invite = f"HOME={place}/sender {command} remote invite"
        say("sh", "-c", f"{invite} | HOME={place}/{home} {command} remote join -")
        at(home, command, "run", "-q", *program)
        found = json.loads(at(home, command, "stats", "--json"))
        if found["misses"] == 0:
            break
    expect(found["misses"] == 0 and found.get("remote_hits", 0) > 0, f"and served in a home that joined ({found.get('remote_hits')} remote hits)")


def traces(root, bare, before):
    """Fails if anything is left but the user's cache, or if programs find other drivers than before."""
    # A directory that other packages have as well, such as that of zsh's completions, may stay.
    left = [path for path in differences(before, root.tree()) if "oclcache" in path or not (root.path / path).is_dir()]
    expect(left == [], f"removed, and nothing is left {left or ''}")
    expect((root.path / f"home/{USER}/.cache/oclcache").exists(), "but what the user has cached")
    expect(root.platforms() == bare, "and programs run as before")


def with_root(folder, use):
    """Has `use` work in a copy of a root without the package, which the folder keeps."""
    base, work = folder / "root", folder / "root.used"
    if not base.exists():
        make_base(base)
    copy(base, work)
    root = PackageRoot(work)
    try:
        use(root)
    finally:
        root.unmount()
        shutil.rmtree(work, ignore_errors=True)


def begin(script, namespace):
    """Refuses to mount anything that would stay."""
    if os.readlink("/proc/self/ns/mnt") == namespace:
        sys.exit(f"what this mounts must go with it: start it by {script}")
