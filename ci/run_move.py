"""Exports what a program has left here, and uses it in a new root of this distribution, where it never ran.

run_move.py FOLDER

FOLDER keeps a root with a driver and programs (see package_root.py). The caller is root, in a mount and a process namespace of its own.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from package_root import PROGRAM, expect, make_base
from roots import USER, Root, copy, run

TOP = pathlib.Path(__file__).resolve().parent.parent
BUILT = TOP / "target/release"
# The driver with its version, which both places must have.
PACKAGE = "pocl-opencl-icd"
# What the driver is asked is written down between us and it, so it has to stand there at both places: it is in the keys.
OURS, SPY, LOG = pathlib.Path("opt/oclcache"), pathlib.Path("opt/spy"), "spy.log"
OTHERS = ("second", "third")


def driver():
    return pathlib.Path("/etc/OpenCL/vendors/pocl.icd").read_text().split("\n")[0]


def install(top):
    """The command with its library, and the spy as the only driver, below a directory."""
    for folder, names in ((OURS, ("oclcache", "liboclcache.so")), (SPY, ("examples/libspy.so",))):
        (top / folder).mkdir(parents=True)
        for name in names:
            shutil.copy(BUILT / name, top / folder)
    (top / SPY / "vendors").mkdir()


class Place:
    """A user of a machine, and what the driver was asked for the programs that this user ran."""

    def __init__(self, top, home, name, prefix=()):
        self.top, self.home, self.prefix = top, home, prefix
        inside = pathlib.Path("/") if prefix else top
        self.inside = inside
        self.log = home.relative_to(top) / LOG if prefix else home / LOG
        self.environment = {
            "HOME": str(inside / home.relative_to(top)),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "OCL_ICD_VENDORS": str(inside / SPY / "vendors"),
            "SPY_DRIVER": driver(),
            "SPY_LOG": str(inside / home.relative_to(top) / LOG),
        }
        self.name = name

    def oclcache(self, *argv, may_fail=False):
        argv = [*self.prefix, str(self.inside / OURS / "oclcache"), *argv]
        cwd = "/" if self.prefix else self.home
        done = subprocess.run(argv, env=self.environment, cwd=cwd, capture_output=True, text=True, check=False)
        if done.returncode != 0 and not may_fail:
            sys.exit(f"{self.name}: {' '.join(argv)}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        return done

    def run(self, *options):
        """Runs the program through the cache; how often the driver compiled a source, and how often it loaded a binary."""
        log = self.home / LOG
        log.unlink(missing_ok=True)
        self.oclcache("run", *options, *PROGRAM)
        lines = log.read_text().splitlines() if log.exists() else []
        return sum(line.startswith("source-build ") for line in lines), sum(line.startswith("binary-build ") for line in lines)


def version_in(root):
    prefix = ["chroot", str(root)] if root else []
    return run(*prefix, "dpkg-query", "-W", "-f", "${Version}", PACKAGE)


def companions():
    """What PoCL uses if it is there, and so is part of what it compiles with: of such packages those that are installed here."""
    words = ("-W", "-f", "${db:Status-Abbrev} ${Package}\n", "libllvmspirvlib*", "llvm-spirv*")
    lines = subprocess.run(["dpkg-query", *words], capture_output=True, text=True, check=False).stdout.splitlines()
    return [line.split()[1] for line in lines if line.startswith("ii")]


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    base, work, here = folder / "root", folder / "root.moved", folder / "move"
    if not base.exists():
        make_base(base)
    shutil.rmtree(here, ignore_errors=True)
    copy(base, work)
    root = Root(work)
    try:
        mine, theirs = version_in(None), version_in(work)
        if mine != theirs:
            sys.exit(f"{PACKAGE} is {mine} here and {theirs} in a new root, whose programs differ: apt-get upgrade, or remove {base}")
        for name in companions():
            root.apt("install", name)
        archive = export(here)
        move(root, archive, folder)
    finally:
        root.unmount()
        for leftover in (work, here):
            shutil.rmtree(leftover, ignore_errors=True)


def export(here):
    install(here)
    (here / SPY / "vendors/spy.icd").write_text(f"{here / SPY / 'libspy.so'}\n")
    home = here / "home/somebody"
    home.mkdir(parents=True)
    place = Place(here, home, "here")
    built, _ = place.run("--bake")
    expect(built > 0, f"here the first run compiles: {built} programs")
    again, loaded = place.run()
    expect(again == 0 and loaded > 0, f"here the second run compiles nothing, and loads {loaded} binaries")
    archive = here / "kernels.tar.zst"
    told = place.oclcache("export", str(archive)).stderr
    expect("paths" in told and str(home) in told, "export says that its paths name the home")
    listed = run("tar", "--zstd", "-tf", archive).split() if shutil.which("zstd") else None
    if listed is None:
        print("skipped tar --zstd -tf (no zstd)")
    else:
        expect(listed[0] == "manifest.json" and len(listed) > 2, f"tar lists its {len(listed)} members")
    return archive


def person(root, name):
    """A user of the root with an empty home."""
    home = root.path / "home" / name
    if name != USER:
        root.inside("useradd", "--create-home", name)
    return Place(root.path, home, name, ("chroot", f"--userspec={name}:{name}", str(root.path)))


def move(root, archive, folder):
    install(root.path)
    (root.path / SPY / "vendors/spy.icd").write_text(f"/{SPY / 'libspy.so'}\n")
    user = person(root, USER)
    moved = user.home / "kernels.tar.zst"
    shutil.copy(archive, moved)
    os.chmod(moved, 0o644)
    name = "/" + str(moved.relative_to(root.path))

    refused = user.oclcache("import", name, may_fail=True)
    expect(refused.returncode == 1 and "--trust" in refused.stderr, "without --trust nothing is taken from elsewhere")
    print("        " + user.oclcache("import", "--trust", name).stderr.strip().splitlines()[-1])
    built, loaded = user.run()
    expect(built == 0 and loaded > 0, f"another user, home and path: nothing is compiled, {loaded} binaries are loaded")

    for name_, prepare, undo in (
        (OTHERS[0], lambda: as_root(root, "import", "--trust", "--system", "/usr/share/oclcache", name), lambda: shutil.rmtree(root.path / "usr/share/oclcache")),
        (OTHERS[1], lambda: install_package(root, archive, folder), lambda: remove_package(root)),
    ):
        other = person(root, name_)
        prepare()
        built, loaded = other.run()
        expect(built == 0 and loaded > 0, f"{name_} user, from a directory of the system: nothing is compiled, {loaded} binaries are loaded")
        undo()
        shutil.rmtree(other.home / ".cache", ignore_errors=True)
        built, _ = other.run()
        expect(built > 0, f"{name_} user, without it: {built} programs are compiled")


def as_root(root, *argv):
    (root.path / "root").mkdir(exist_ok=True)
    Place(root.path, root.path / "root", "root", ("chroot", str(root.path))).oclcache(*argv)


def install_package(root, archive, folder):
    package = run(sys.executable, "-B", TOP / "ci/package_kernels.py", archive, "--folder", folder / "move").split()[-1]
    shutil.copy(package, root.path / "root")
    root.inside("dpkg", "--install", f"/root/{pathlib.Path(package).name}")
    state = root.path / "usr/share/oclcache"
    expect((state / "v1/entries").is_dir(), "a package of kernels is installed")


def remove_package(root):
    names = root.inside("dpkg-query", "-W", "-f", "${Package}\n", "oclcache-kernels-*").split()
    root.inside("dpkg", "--remove", *names)
    expect(not (root.path / "usr/share/oclcache").exists(), "its removal leaves nothing")


if __name__ == "__main__":
    main()
