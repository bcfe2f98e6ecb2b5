"""What is in the packages, from one list for each crate: the assets of the Debian package in its manifest.

package_files.py rpm CRATE ARCHITECTURE RELEASE FOLDER   copies the files into a new FOLDER, and prints the metadata for cargo-generate-rpm
package_files.py wheel CRATE ARCHITECTURE FOLDER         makes the tree of the Python wheel in a new FOLDER
package_files.py tree ARCHITECTURE FOLDER                makes the tree of the tarball, which has all crates, in a new FOLDER
"""

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

TOP = pathlib.Path(__file__).resolve().parent.parent
MAIN, REMOTE = "oclcache", "oclcache-remote"
MANIFESTS = {MAIN: TOP / "Cargo.toml", REMOTE: TOP / "src/oclcache-remote/Cargo.toml"}
BUILT = TOP / "target/portable"
# Of the C library: what all builds are checked for (ci/portable).
GLIBC = (2, 17)
# Files that only Debian's own rules want, or only Debian reads where the list says.
DEBIAN_ONLY = ("icd/debian/copyright",)
LICENSES = ("LICENSE-MIT", "LICENSE-APACHE")
# The file with the library's path that `oclcache run` uses, and the one that it completes where nobody knows that path before.
VENDORS = "usr/lib/oclcache/vendors/oclcache.icd"
UNPLACED = "icd/oclcache.icd"
MODULE = TOP / "icd/python/oclcache/__init__.py"


def manifest(crate):
    return tomllib.loads(MANIFESTS[crate].read_text())["package"]


def fixed(pattern):
    """The folder of a pattern before its first wildcard.

    >>> fixed("docs/**/*"), fixed("target/man/*.1"), fixed("README.md")
    ('docs', 'target/man', '')
    """
    parts = pattern.split("/")
    number = next((number for number, part in enumerate(parts) if "*" in part), len(parts) - 1)
    return "/".join(parts[:number])


def files(crate, architecture):
    """The source, the path without a leading slash, and the mode of each file of the Debian package."""
    place = MANIFESTS[crate].parent
    for source, target, mode in manifest(crate)["metadata"]["deb"]["assets"]:
        if source.startswith("target/release/"):
            source = str(BUILT.relative_to(TOP) / architecture / source.rpartition("/")[2])
        else:
            source = os.path.relpath(place / source, TOP)
        found = sorted(path for path in glob.glob(source, root_dir=TOP, recursive=True) if (TOP / path).is_file())
        if not found:
            sys.exit(f"there is no {source}")
        for path in found:
            below = os.path.relpath(path, fixed(source)) if target.endswith("/") else ""
            yield path, os.path.normpath(os.path.join(target, below)), int(mode, 8)


def common(crate, architecture):
    """The files for other systems than Debian."""
    for source, target, mode in files(crate, architecture):
        if source not in DEBIAN_ONLY:
            yield source, target.replace("zsh/vendor-completions", "zsh/site-functions"), mode
    for name in LICENSES:
        yield name, f"usr/share/doc/{crate}/{name}", 0o644


def needs(text):
    """What rpm requires for a program or library, from what `readelf -dVW` prints.

    >>> text = " 0x01 (NEEDED)  Shared library: [libc.so.6]\\n  000000: Version: 1  File: libc.so.6  Cnt: 2\\n"
    >>> needs(text + "  0x0010:   Name: GLIBC_2.14  Flags: none  Version: 4\\n")
    ['libc.so.6()(64bit)', 'libc.so.6(GLIBC_2.14)(64bit)']
    """
    found = [f"{name}()(64bit)" for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text)]
    file = None
    for line in text.splitlines():
        if named := re.search(r"\bFile: (\S+)", line):
            file = named[1]
        elif file and (version := re.search(r"\bName: (\S+)\s+Flags:", line)):
            found.append(f"{file}({version[1]})(64bit)")
    return found


def toml(value):
    """Of texts, numbers, lists and tables that are in lists.

    >>> toml([{"a": "x\\"y", "b": True}, 1])
    '[{a = "x\\\\"y", b = true}, 1]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(toml, value)) + "]"


def programs(crate, architecture):
    """What was built, and its mode."""
    built = str(BUILT.relative_to(TOP))
    return [(source, mode) for source, _, mode in files(crate, architecture) if source.startswith(built + "/")]


def rpm(crate, architecture, release, folder):
    package = manifest(crate)
    # cargo-generate-rpm keeps the time of each file that is older than SOURCE_DATE_EPOCH, so it gets copies.
    for source, target, mode in common(crate, architecture):
        put(source, folder / target, mode)
    finish(folder)
    required = set()
    for source, _ in programs(crate, architecture):
        argv = ["readelf", "-dVW", TOP / source]
        required.update(needs(subprocess.run(argv, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout))
    interpreter = re.compile(r"^ld-linux")
    print(f"summary = {toml(package['description'])}")
    print(f"release = {toml(release)}")
    print(f"license = {toml(package['license'])}")
    print(f"assets = {toml([{'source': str(folder.resolve() / target), 'dest': '/' + target, 'mode': f'{0o100000 | mode:o}', 'doc': '/share/doc/' in target} for _, target, mode in common(crate, architecture)])}")
    # cargo-generate-rpm packages no directories. Those that other packages may have as well stay.
    folders = {f"/{folder}" for _, target, _ in common(crate, architecture) for folder in map(str, pathlib.PurePath(target).parents) if "oclcache" in folder}
    # Deepest first; $1 is 0 if no other version is being installed.
    script = f'if [ "$1" = 0 ]; then rmdir {" ".join(sorted(folders, reverse=True))} 2>/dev/null || :; fi\n'
    print(f"post_uninstall_script = {toml(script)}")
    print("[requires]")
    for name in sorted(name for name in required if not interpreter.match(name)):
        print(f'{toml(name)} = "*"')
    if crate == REMOTE:
        print(f"{MAIN} = {toml('= ' + package['version'])}")
    else:
        print('[recommends]\n"libOpenCL.so.1()(64bit)" = "*"')


def put(source, target, mode):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(TOP / source, target)
    target.chmod(mode)


def finish(folder):
    """Modes and times that do not depend on who builds, and when."""
    when = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (when, when))


def tree(architecture, folder):
    """Everything below one folder, from which `install` copies programs and the library to where an administrator wants them."""
    places = {"usr/bin": "bin", "usr/lib/oclcache": "lib", "usr/share": "share"}
    put(UNPLACED, folder / "lib/oclcache/vendors/oclcache.icd", 0o644)
    for source, target, mode in [file for crate in MANIFESTS for file in common(crate, architecture)]:
        if target == VENDORS:
            continue
        place = next((place for place in places if target.startswith(place + "/")), None)
        if place:
            put(source, folder / places[place] / target.removeprefix(place + "/"), mode)
    put("icd/install", folder / "install", 0o755)
    put("icd/lmod/oclcache.lua", folder / "share/modulefiles/oclcache.lua", 0o644)
    finish(folder)


def wheel(crate, architecture, folder):
    """A package `oclcache` with the module, the library and the command; or the helper, which goes beside them."""
    package = manifest(crate)
    version = package["version"]
    for source, mode in programs(crate, architecture):
        put(source, folder / MAIN / pathlib.Path(source).name, mode)
    info = folder / f"{crate.replace('-', '_')}-{version}.dist-info"
    for license_file in LICENSES:
        put(license_file, info / license_file, 0o644)
    notices = next(source for source, _, _ in files(crate, architecture) if "third-party-notices" in source)
    put(notices, info / "third-party-notices.gz", 0o644)
    tags = [f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{architecture}", f"manylinux2014_{architecture}"]
    metadata = {
        "Metadata-Version": "2.1",
        "Name": crate,
        "Version": version,
        "Summary": package["description"],
        "License": package["license"],
        "Requires-Python": ">=3.7",
        "Classifier": "Operating System :: POSIX :: Linux",
        "Description-Content-Type": "text/markdown",
    }
    texts = {
        info / "WHEEL": "".join(["Wheel-Version: 1.0\nGenerator: oclcache\nRoot-Is-Purelib: false\n", *(f"Tag: py3-none-{tag}\n" for tag in tags)]),
    }
    if crate == REMOTE:
        metadata["Requires-Dist"] = f"{MAIN}=={version}"
        description = (TOP / "icd/debian/description-remote").read_text()
    else:
        metadata["Keywords"] = ",".join(package["keywords"])
        metadata["Provides-Extra"] = "remote"
        metadata["Requires-Dist"] = f'{REMOTE}=={version}; extra == "remote"'
        description = (TOP / "docs/pyopencl.md").read_text()
        put(UNPLACED, folder / MAIN / "vendors/oclcache.icd", 0o644)
        texts[info / "entry_points.txt"] = "[console_scripts]\noclcache = oclcache:main\n"
        texts[folder / MAIN / "__init__.py"] = MODULE.read_text().replace("@VERSION@", version)
    texts[info / "METADATA"] = "".join(f"{key}: {value}\n" for key, value in metadata.items()) + "\n" + description
    for file, text in texts.items():
        file.write_text(text)
        file.chmod(0o644)
    finish(folder)


def main():
    what, *words, where = sys.argv[1:]
    folder = pathlib.Path(where)
    folder.mkdir(parents=True)
    {"rpm": rpm, "tree": tree, "wheel": wheel}[what](*words, folder)


if __name__ == "__main__":
    if len(sys.argv) != {"rpm": 6, "wheel": 5, "tree": 4}.get(sys.argv[1] if sys.argv[1:] else None):
        sys.exit(__doc__)
    main()
