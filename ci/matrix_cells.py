"""Each driver and loader of one release, through each door."""

import itertools
import os
import re

from matrix_programs import CLIENT, COMMAND, LIBRARY, LOADERS, SPY, Program, last_lines, wrong_with

# Drivers, by the names of their .icd files: what they need to show a device without one. NEO then compiles, and runs nothing: its kernels
# leave their results as they were.
NEO = {"NEOReadDebugKeys": "1", "SetCommandStreamReceiver": "1", "AUBDumpCaptureFileName": "/dev/null"}
VARIABLES = {
    "rusticl": {"RUSTICL_ENABLE": "llvmpipe"},
    "intel": {**NEO, "ProductFamilyOverride": "tgllp"},
    "intel_legacy1": {**NEO, "ProductFamilyOverride": "skl"},
}
DIRECTORY = "/opt/vendors"
DOORS = ("beside, first", "beside, last", "alone", "layer", "`oclcache run`")


def read_order(directory):
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def register_in_order(root, name, first, second):
    """A directory of two .icd files that loaders open in this order, whether they sort names or not."""
    for number in itertools.count():
        directory = root.path / f"{DIRECTORY}/{name}".lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        files = [f"a{number}.icd", f"b{number}.icd"]
        for file, library in zip(files, (first, second)):
            (directory / file).write_text(f"{library}\n")
        if read_order(directory) == files:
            return
        for file in files:
            (directory / file).unlink()


def register(root):
    """The directories of drivers that the doors need."""
    root.write(f"{DIRECTORY}/spy/spy.icd", f"{SPY}\n")
    root.write(f"{DIRECTORY}/alone/oclcache.icd", f"{LIBRARY}\n")
    register_in_order(root, "first", LIBRARY, SPY)
    register_in_order(root, "last", SPY, LIBRARY)


def door(name):
    """The variables of a door, and what stands before the program."""
    spy = {"OCL_ICD_VENDORS": f"{DIRECTORY}/spy"}
    return {
        "beside, first": ({"OCL_ICD_VENDORS": f"{DIRECTORY}/first"}, ()),
        "beside, last": ({"OCL_ICD_VENDORS": f"{DIRECTORY}/last"}, ()),
        "alone": ({"OCL_ICD_VENDORS": f"{DIRECTORY}/alone", "OCLCACHE_VENDORS": f"{DIRECTORY}/spy"}, ()),
        "layer": ({**spy, "OPENCL_LAYERS": LIBRARY}, ()),
        "`oclcache run`": (spy, (COMMAND, "run")),
    }[name]


def has_layers(root):
    found = list(root.path.glob("usr/lib/*/libOpenCL.so.1"))
    return any(b"OPENCL_LAYERS" in path.read_bytes() for path in found)


def survives(root, driver, variables):
    """Two bare runs of the client, and why the driver is of no use without oclcache, or None."""
    root.write(f"{DIRECTORY}/bare/driver.icd", f"{driver}\n")
    bare = Program(root, [CLIENT, "run"], variables, driver)
    runs = [bare.run({"OCL_ICD_VENDORS": f"{DIRECTORY}/bare"}) for _ in range(2)]
    for ran in runs:
        if ran.status != 0 or not re.search("^build: code 0$", ran.output, re.MULTILINE):
            return runs, last_lines(ran)
    spied = bare.run({"OCL_ICD_VENDORS": f"{DIRECTORY}/spy"})
    if not spied.compiled or spied.status != 0:
        return runs, f"behind the library that counts: {last_lines(spied)}"
    return runs, None


def cells(root):
    """Yields a row for each driver and loader: with the outcome of each door, or the bare driver's error."""
    register(root)
    loaders = [name for name in LOADERS if name in root.packages("libopencl1$")]
    # Those that cannot be installed beside others last.
    packages = [name for name in root.packages("opencl-icd(-|$)") if "khronos" not in name]
    packages.sort(key=lambda name: (name.startswith("rocm"), name))
    for package in packages:
        for loader in loaders:
            why = root.try_install(loader, package)
            row = {"release": root.release, "driver": package, "doors": {}}
            if why:
                yield {**row, "loader": LOADERS[loader], "error": why}
                continue
            row["loader"] = f"{LOADERS[loader]} {root.version(loader)}"
            for file in root.files(package):
                row["driver"] = f"{file.stem} {root.version(package)}"
                yield {**row, **of_driver(root, file)}


def of_driver(root, file):
    driver = (root.path / str(file).lstrip("/")).read_text().split("\n")[0]
    variables = VARIABLES.get(file.stem, {})
    bare, error = survives(root, driver, variables)
    if error:
        return {"error": error}
    outcomes = {}
    for name in DOORS:
        if name == "layer" and not has_layers(root):
            outcomes[name] = None
            continue
        more, prefix = door(name)
        program = Program(root, [CLIENT, "run"], variables, driver)
        outcomes[name] = wrong_with(program, bare, COMMAND, more, prefix) or "hit"
    return {"doors": outcomes}
