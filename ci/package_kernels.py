"""Makes a Debian package of an archive that `oclcache export` wrote: it fills the directory of the system that all users' programs
are served from, as long as it is installed.

package_kernels.py ARCHIVE [NAME] [--folder FOLDER] [--command COMMAND]

The package is called oclcache-kernels-NAME; without NAME, after the archive. It holds files and no scripts, so that its removal
removes what it brought. Its path is printed.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The first of the setting system_dirs.
PLACE = pathlib.PurePosixPath("usr/share/oclcache")


def run(*argv, **options):
    done = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{argv[0]} {argv[1]}: status {done.returncode}")
    return done.stdout


def package_name(text):
    """A name that a Debian package may have (Debian Policy, 5.6.1).

    >>> package_name("Kernels of_PoCL.tar.zst"), package_name("--"), package_name("a+b")
    ('kernels-of-pocl', 'all', 'a+b')
    """
    stem = re.sub(r"\.tar(\.\w+)?$|\.zst$", "", text.lower())
    return re.sub(r"[^a-z0-9+.]+", "-", stem).strip("-.+") or "all"


def control(name, version, architecture, size, entries):
    """The package's description: which devices' programs it has."""
    devices = sorted({device for entry in entries for device in entry["devices"]})
    drivers = sorted({entry["driver"] for entry in entries})
    # Both are others' words: of each only what cannot end a line.
    lines = [re.sub(r"[^\x20-\x7e]", "?", line) for line in [f"Drivers: {', '.join(drivers)}", *(f"Device: {it}" for it in devices)]]
    fields = {
        "Package": f"oclcache-kernels-{name}",
        "Version": version,
        "Architecture": architecture,
        "Maintainer": "nobody in particular <root@localhost>",
        "Installed-Size": str(size),
        "Recommends": "oclcache",
        "Section": "libs",
        "Priority": "optional",
        "Description": f"{len(entries)} compiled OpenCL programs for oclcache",
    }
    head = "".join(f"{key}: {value}\n" for key, value in fields.items())
    return head + "".join(f" {line}\n" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=pathlib.Path)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "target/package")
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "target/release/oclcache")
    arguments = parser.parse_args()
    if not arguments.command.exists():
        sys.exit(f"{arguments.command} is not there: cargo build --release")
    name = package_name(arguments.name or arguments.archive.name)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    architecture = run("dpkg", "--print-architecture").strip()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="kernels-") as work:
        tree, filled = pathlib.Path(work, "tree"), pathlib.Path(work, "filled")
        tree.mkdir(mode=0o755)
        # Whoever makes a package answers for what is in it, and it may be for other machines than this.
        cache = {**os.environ, "OCLCACHE_DIR": str(filled), "OCLCACHE_MAX_SIZE": "0"}
        report = json.loads(run(arguments.command, "import", "--trust", "--all", "--json", arguments.archive, env=cache))
        if report["refused"] or report["failed"]:
            sys.exit("nothing is packed: see above")
        shown = [json.loads(run(arguments.command, "show", "--json", key, env=cache)) for key in report["imported"]]
        # Recipes serve nobody there.
        shown = [one for one in shown if not one["pending"]]
        if not shown:
            sys.exit("nothing is packed: the archive has only recipes, which `oclcache bake` makes entries of")
        entries = [{"driver": one["driver"], "devices": device_names(one["ingredients"])} for one in shown]
        # Of a cache only its entries: the rest belongs to who writes it.
        place = tree / PLACE / "v1/entries"
        for one in shown:
            shard = place / one["key"][:2]
            shard.mkdir(parents=True, exist_ok=True)
            shutil.copy(one["path"], shard)
        run("chmod", "-R", "u=rwX,go=rX", tree)
        newest = max(one["created"] for one in shown)
        version = f"{datetime.datetime.fromtimestamp(newest, datetime.UTC):%Y%m%d.%H%M%S}"
        size = sum(path.stat().st_size for path in place.rglob("*")) // 1024 + 1
        (tree / "DEBIAN").mkdir(mode=0o755)
        (tree / "DEBIAN/control").write_text(control(name, version, architecture, size, entries))
        package = arguments.folder / f"oclcache-kernels-{name}_{version}_{architecture}.deb"
        run("dpkg-deb", "--root-owner-group", "--build", tree, package)
    print(package)


def device_names(ingredients):
    return [one["value"] for one in ingredients if one["name"] == "device name"]


if __name__ == "__main__":
    main()
