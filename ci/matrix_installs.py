"""The ways to install oclcache in one release, and upgrades below it. PyOpenCL is the program, PoCL the driver, with rusticl beside it."""

import contextlib
import shutil

import measure
from matrix_programs import COMMAND, LOADERS, PROGRAMS, PYTHON_PROGRAM, SPY, VENDORS, Program, last_lines, places, wrong_with
from roots import write_sources

# PyOpenCL's own cache would hide ours.
VARIABLES = {"PYOPENCL_NO_CACHE": "1", "PYOPENCL_CTX": "Portable"}
ICD = VENDORS / "pocl.icd"
DRIVERS = ("pocl-opencl-icd", "mesa-opencl-icd")
# Where icd/install finds what was built.
TREE = "src"
WAYS = ("`icd/install`", "`oclcache install --system`", "the Debian package")


@contextlib.contextmanager
def spied(root):
    """Has loaders open the library that counts in place of PoCL; gives PoCL's own."""
    path = root.path / ICD
    own = path.read_text()
    path.write_text(f"{SPY}\n")
    try:
        yield own.split("\n")[0]
    finally:
        # dpkg asks about files that were changed.
        path.write_text(own)


def put_tree(root):
    """A copy of the repository as far as icd/install needs it."""
    tree = root.path / TREE
    shutil.copytree(measure.TOP / "icd", tree / "icd")
    (tree / "target/release").mkdir(parents=True)
    for name in ("liboclcache.so", "oclcache"):
        shutil.copy(root.built / name, tree / "target/release")


def bare_runs(root, driver):
    """Two runs without oclcache, and what is wrong with them."""
    program = Program(root, ["python3", PYTHON_PROGRAM], VARIABLES, driver)
    runs = [program.run() for _ in range(2)]
    wrong = [ran for ran in runs if ran.status != 0 or "result OK" not in ran.output or not ran.compiled]
    return runs, f"without oclcache: {last_lines(wrong[0])}" if wrong else None


def with_way(root, way, package, bare):
    """Installs in one way, tries it, and removes it again."""
    install, remove, command = {
        WAYS[0]: ([f"/{TREE}/icd/install"], [f"/{TREE}/icd/install", "--uninstall"], "/usr/local/bin/oclcache"),
        WAYS[1]: ([COMMAND, "install", "--system"], [COMMAND, "uninstall", "--system"], COMMAND),
        WAYS[2]: (["apt-get", "-y", "-q", "install", f"/{package}"], ["apt-get", "-y", "-q", "purge", "oclcache"], "/usr/bin/oclcache"),
    }[way]
    done = root.attempt(*install, user="root")
    if done.returncode != 0:
        return f"not installed: {(done.stdout + done.stderr)[-600:]}"
    with spied(root) as driver:
        program = Program(root, ["python3", PYTHON_PROGRAM], VARIABLES, driver)
        found = wrong_with(program, bare, command) or "hit"
    removed = root.attempt(*remove, user="root")
    left = [name for name in ("vendors", "layers") if (root.path / f"etc/OpenCL/{name}").is_dir() and any((root.path / f"etc/OpenCL/{name}").glob("oclcache*"))]
    if removed.returncode != 0 or left:
        return f"not removed: {(removed.stdout + removed.stderr)[-600:]}"
    return found


def begin(root, package):
    """Packages of programs and drivers, and the package of oclcache's in the root."""
    put_tree(root)
    shutil.copy(root.built / package, root.path)
    root.apt("install", next(iter(LOADERS)), *DRIVERS, *PROGRAMS)


def bare_or_why(root):
    with spied(root) as driver:
        return bare_runs(root, driver)


def installs(root, package):
    """Yields a row for each loader: the outcome of each way."""
    begin(root, package)
    for loader in (name for name in LOADERS if name in root.packages("libopencl1$")):
        row = {"release": root.release, "loader": LOADERS[loader], "ways": {}}
        why = root.try_install(loader)
        if not why:
            row["loader"] += f" {root.version(loader)}"
            bare, why = bare_or_why(root)
        if why:
            yield {**row, "error": why}
            continue
        row["ways"] = {way: with_way(root, way, package, bare) for way in WAYS}
        yield row


def upgrade(root, package, newer):
    """Yields a row for each step of an upgrade to a newer release below the installed package."""
    begin(root, package)
    root.apt("install", f"/{package}")
    own, khronos = LOADERS
    versions = lambda loader: f"{LOADERS[loader]} {root.version(loader)}, PoCL {root.version(DRIVERS[0])}"
    for step, loader, names in (
        ("as installed", own, ()),
        ("the loader upgraded", own, (own,)),
        ("the drivers and programs, too", own, (*DRIVERS, *PROGRAMS)),
        ("the loader replaced by Khronos'", khronos, (khronos,)),
    ):
        if step == "the loader upgraded":
            write_sources(root.path, places(newer))
            root.apt("update")
        why = root.try_install(*names) if names else None
        if why:
            yield {"release": root.release, "step": step, "versions": "", "outcome": why}
            continue
        disabled = {"OCLCACHE_DISABLE": "1"}
        with spied(root) as driver:
            bare = [Program(root, ["python3", PYTHON_PROGRAM], {**VARIABLES, **disabled}, driver).run() for _ in range(2)]
            program = Program(root, ["python3", PYTHON_PROGRAM], VARIABLES, driver)
            if not all(ran.compiled and "result OK" in ran.output for ran in bare):
                found = f"with OCLCACHE_DISABLE: {last_lines(bare[0])}"
            else:
                found = wrong_with(program, bare, "/usr/bin/oclcache") or "hit"
        yield {"release": root.release, "step": step, "versions": versions(loader), "outcome": found}
