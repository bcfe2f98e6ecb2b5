"""Tries the Python wheel, and that of the helper of the remote level, in fresh virtual environments: on this machine, in a new root of a
release of Debian as an ordinary user, or in a root of Debian for arm64 whose programs qemu executes, with PyOpenCL and PoCL from Debian.

A driver that builds nothing without oclcache either is named and not counted; one must work. In a root, Debian's PoCL takes the place of
pip's, and if that builds nothing either, Intel's runtime.

run_wheel.py here HELPER WHEEL INDEX
run_wheel.py RELEASE|arm64 HELPER WHEEL INDEX NAMESPACE FOLDER

INDEX is a folder of wheels, the only place that pip has packages from. The rest is as in run_package.py.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from package_root import begin, expect, shares
from roots import USER, Root, bootstrap, copy, run, sources

TOP = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = TOP / "tests/support/pyopencl_program.py"
PIP = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-index")
# Calls enable() in the program's own process.
ENABLED = "import runpy, sys, oclcache; oclcache.enable(); runpy.run_path(sys.argv[1], run_name='__main__')"
STATISTICS = "import json, oclcache; print(json.dumps(oclcache.stats()))"
# The packages of each driver with PyOpenCL, what PYOPENCL_CTX selects it by, and its library.
PYOPENCL = ("pyopencl", "numpy")
INTEL = "pip's Intel"
DRIVERS = {
    "pip's PoCL": {"packages": (*PYOPENCL, "pocl-binary-distribution"), "context": "Portable", "library": "libpocl-*.so"},
    INTEL: {"packages": (*PYOPENCL, "intel-opencl-rt", "intel-cmplr-lib-rt"), "context": "Intel", "library": "libintelocl.so"},
    "Debian's PoCL with pip's PyOpenCL": {"packages": PYOPENCL, "context": "Portable", "library": None},
    # Both of the system.
    "Debian's PoCL": {"packages": (), "context": "Portable", "library": None},
}
OF_PIP = ("pip's PoCL", INTEL)
OF_DEBIAN = "Debian's PoCL"
MIXED = "Debian's PoCL with pip's PyOpenCL"


class Here:
    """This machine, with a home of its own."""

    # Others, which must not be taken for pip's.
    has_drivers = True

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.python = sys.executable

    def say(self, argv, variables):
        given = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **variables}
        done = subprocess.run([str(word) for word in argv], env=given, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"FAILED  {' '.join(map(str, argv))}: status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def host(self, path):
        return pathlib.Path(path)


class InRoot:
    """A root, with an ordinary user's home."""

    has_drivers = False

    def __init__(self, root):
        self.root, self.folder = root, pathlib.Path("/home", USER)
        self.python = "/usr/bin/python3"

    def say(self, argv, variables):
        return self.root.user("env", f"--chdir={self.folder}", *(f"{name}={value}" for name, value in variables.items()), *argv)

    def host(self, path):
        return self.root.path / str(path).lstrip("/")


class Emulated:
    """A root for arm64, with one user."""

    has_drivers = False

    def __init__(self, root):
        self.root, self.folder = root, pathlib.Path("/root")
        self.python = "/usr/bin/python3"

    def say(self, argv, variables):
        settings = [f"{name}={value}" for name, value in {"LC_ALL": "C.UTF-8", **variables}.items()]
        return run(TOP / "ci/in_arm64_root", self.root, *settings, *argv, env={**os.environ, "CHDIR": str(self.folder)})

    def host(self, path):
        return self.root / str(path).lstrip("/")


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)


def use(place, helper, wheel, index, program, driver):
    """Installs the wheels beside PyOpenCL and a driver, tries them, and removes them. Returns whether the driver works here at all."""
    name = f"{driver}: "
    facts = DRIVERS[driver]
    environment, data = place.folder / "venv", place.host(place.folder / ".local/share/oclcache")
    binaries, python = environment / "bin", environment / "bin/python"
    shutil.rmtree(place.host(environment), ignore_errors=True)
    shutil.rmtree(data, ignore_errors=True)
    of_system = () if facts["packages"] else ("--system-site-packages",)
    place.say([place.python, "-m", "venv", *of_system, environment], {})
    pip = [binaries / "pip", "install", *PIP, "--find-links", index]
    if facts["packages"]:
        place.say([*pip, *facts["packages"]], {})
    variables = {"PYOPENCL_NO_CACHE": "1", "PYOPENCL_CTX": facts["context"], "PYTHONWARNINGS": "ignore", "OCLCACHE_AUTOBAKE": "0"}
    # PyOpenCL's loader finds pip's PoCL without this.
    if facts["library"] and (place.has_drivers or driver == INTEL):
        vendors = place.folder / "vendors"
        library = environment / next(place.host(environment).rglob(facts["library"])).relative_to(place.host(environment))
        place.host(vendors).mkdir(exist_ok=True)
        (place.host(vendors) / "driver.icd").write_text(f"{library}\n")
        variables["OCL_ICD_VENDORS"] = str(vendors)
    bare = place.say(["sh", "-c", '"$@" 2>&1 || :', "sh", python, program], {**variables, "POCL_CACHE_DIR": str(place.folder / "bare")})
    if "result OK" not in bare:
        errors = [line for line in bare.splitlines() if "error" in line.lower()] or bare.splitlines() or ["it prints nothing"]
        print(f"NOT RUN {driver}: it builds nothing on this machine without oclcache either: {errors[-1].strip()}", flush=True)
        return False
    before = files(place.host(environment))
    place.say([*pip, wheel], {})

    def statistics():
        return json.loads(place.say([python, "-c", STATISTICS], variables))

    def runs(argv, words):
        """Runs it with an empty PoCL cache; nothing is compiled but what is said."""
        earlier = statistics()
        shutil.rmtree(place.host(place.folder / "pocl"), ignore_errors=True)
        said = place.say(argv, {**variables, "POCL_CACHE_DIR": str(place.folder / "pocl")})
        now = statistics()
        found = {key: now[key] - earlier[key] for key in ("hits", "misses")}
        expect("result OK" in said, f"{name}{words}: right results, {found['hits']} hits, {found['misses']} misses")
        return found

    command = binaries / "oclcache"
    cold = runs([command, "run", "-q", "--bake", python, program], "oclcache run, the first time")
    expect(cold["misses"] > 0, f"{name}the first run is compiled")
    expect(not data.exists(), f"{name}oclcache run writes nothing in the home but the cache")
    for argv, words in (
        ([command, "run", "-q", python, program], "oclcache run, again"),
        ([python, "-c", ENABLED, program], "oclcache.enable()"),
    ):
        warm = runs(argv, words)
        expect(warm["hits"] > 0 and warm["misses"] == 0, f"{name}{words} is served")
    must_hit = {**variables, "OCLCACHE_MUST_HIT": "1"}
    expect("result OK" in place.say([command, "run", "-q", python, program], must_hit), f"{name}with OCLCACHE_MUST_HIT=1 it succeeds")

    place.say([*pip, "--find-links", pathlib.Path(helper).parent, f"{wheel}[remote]"], {})
    found = next(place.host(environment).rglob("oclcache-remote")).relative_to(place.host(environment))
    if driver == OF_DEBIAN:
        # Under qemu no answer comes in time.
        expect("oclcache remote" in place.say([command, "remote", "--version"], {}), f"{name}oclcache[remote] has the helper")
    else:
        shares(lambda *argv: place.say(argv, variables), command, environment / found, (python, program))
    place.say([command, "uninstall", "--user"], variables)
    place.say([binaries / "pip", "uninstall", "--yes", "--quiet", "--disable-pip-version-check", "oclcache", "oclcache-remote"], {})
    left = sorted(set(files(place.host(environment))) - set(before))
    left += files(data)
    expect(left == [], f"{name}after `oclcache uninstall --user` and pip uninstall nothing is left {left or ''}")
    place.say([python, program], variables)
    expect(True, f"{name}and the program runs as before")
    return True


def one_works(results):
    """Fails if nothing was tried: of a driver that works, the result is true."""
    expect(any(results), "a driver works here")


def make_base(folder, release):
    """A root of this release with Python and no driver; the folder keeps it."""
    base = folder / f"wheel-{release}"
    if base.exists():
        return base
    own, places = sources()
    if release != own:
        places = [(next(uri for uri, name, _ in places if name == own), release, "main")]
    new = base.with_suffix(".new")
    bootstrap(new, release, places)
    root = Root(new)
    (new / "etc/apt/apt.conf.d/99wheel").write_text('Acquire::Check-Valid-Until "false";\n')
    root.apt("update")
    # PoCL 3.0 links kernels with gcc's libraries.
    root.apt("install", "python3-venv", "gcc", "libc6-dev")
    root.apt("clean")
    root.inside("useradd", "--create-home", USER)
    root.unmount()
    new.rename(base)
    return base


def in_root(release, helper, wheel, index, folder):
    base, work = make_base(folder, release), folder / "wheel.used"
    copy(base, work)
    root = Root(work)
    try:
        (work / "index").mkdir()
        run("mount", "--bind", index, work / "index")
        for file in (helper, wheel, PROGRAM):
            shutil.copy(file, work)
        version = root.inside("python3", "--version").strip()
        print(f"ok      {release}, {version}, glibc {root.inside('ldd', '--version').split()[3]}", flush=True)
        words = (f"/{helper.name}", f"/{wheel.name}", "/index", f"/{PROGRAM.name}")
        if not use(InRoot(root), *words, OF_PIP[0]):
            root.apt("install", "pocl-opencl-icd")
            one_works(use(InRoot(root), *words, driver) for driver in (MIXED, INTEL))
    finally:
        run("umount", "--lazy", work / "index")
        root.unmount()
        shutil.rmtree(work, ignore_errors=True)


def make_arm64(folder):
    """A root of bookworm for arm64 with PyOpenCL and PoCL. Packages are unpacked, no script of theirs runs."""
    base = folder / "wheel-arm64"
    if base.exists():
        return base
    new = base.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    print("making a root for arm64", flush=True)
    packages = "libc6,libc-bin,libc6-dev,gcc,libgcc-12-dev,dash,coreutils,binutils,python3,python3-venv,python3-pyopencl,ocl-icd-libopencl1,pocl-opencl-icd"
    hooks = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    run("mmdebstrap", "--quiet", "--variant=extract", "--architectures=arm64", hooks, f"--include={packages}", "bookworm", new)
    for name, target in (("sh", "dash"), ("cc", "gcc")):
        (new / "usr/bin" / name).unlink(missing_ok=True)
        (new / "usr/bin" / name).symlink_to(target)
    # What the packages' scripts would choose.
    for library in ("blas/libblas.so.3", "lapack/liblapack.so.3"):
        (new / "usr/lib/aarch64-linux-gnu" / pathlib.Path(library).name).symlink_to(library)
    for name in ("proc", "sys", "dev", "root", "tmp"):
        (new / name).mkdir(exist_ok=True)
    Emulated(new).say(["ldconfig"], {})
    new.rename(base)
    return base


def in_arm64(helper, wheel, folder):
    base, work = make_arm64(folder), folder / "wheel.used"
    copy(base, work)
    try:
        for file in (helper, wheel, PROGRAM):
            shutil.copy(file, work)
        place = Emulated(work)
        machine = place.say([place.python, "-c", "import platform; print(*platform.uname()[4:5], *platform.libc_ver())"], {}).strip()
        expect(machine.startswith("aarch64 "), f"bookworm for {machine}")
        one_works([use(place, f"/{helper.name}", f"/{wheel.name}", "/", f"/{PROGRAM.name}", OF_DEBIAN)])
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main():
    release, *paths = sys.argv[1:5]
    more = sys.argv[5:]
    helper, wheel, index = (pathlib.Path(path).resolve() for path in paths)
    if release == "here":
        with tempfile.TemporaryDirectory(dir=TOP / "target", prefix="wheel-") as folder:
            one_works([use(Here(folder), helper, wheel, index, PROGRAM, driver) for driver in OF_PIP])
        return
    begin("ci/wheel --test", more[0])
    if release == "arm64":
        return in_arm64(helper, wheel, pathlib.Path(more[1]))
    in_root(release, helper, wheel, index, pathlib.Path(more[1]))


if __name__ == "__main__":
    if len(sys.argv) not in (5, 7):
        sys.exit(__doc__)
    main()
