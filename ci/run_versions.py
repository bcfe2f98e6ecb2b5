"""ci/store versions: two libraries with different versions of the format on one root: FOLDER LIBRARY COMMAND VERSION, the other's."""

import pathlib
import sys

import measure
import stores

KEYS = 50


def state(place):
    """All that is in the directory of its version, but for counters, which each process adds to its own."""
    root = place.cache / place.version
    found = ((path, path.lstat()) for path in root.rglob("*") if "stats" not in path.relative_to(root).parts)
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found}


def main():
    folder, library, command, version = pathlib.Path(sys.argv[1]).resolve(), *sys.argv[2:5]
    ours = stores.Place(folder / "ours", KEYS)
    theirs = stores.Place(folder / "theirs", KEYS, library=pathlib.Path(library).resolve(), command=pathlib.Path(command).resolve(), cache=ours.cache, version=version)
    running = [(place, place.build("--seed", seed, "--seconds", 3)) for place in (ours, theirs) for seed in (1, 2)]
    for place, process in running:
        place.finish(process)
    for place in ours, theirs:
        place.heal()
        if place.check_entries() != KEYS:
            raise stores.Failed(f"{len(place.entry_files())} of {KEYS} entries are in {place.version}")
    for place, other in (ours, theirs), (theirs, ours):
        before = state(other)
        place.heal()
        place.oclcache("gc")
        place.oclcache("clear")
        if state(other) != before:
            raise stores.Failed(f"{other.version} has changed by what another version did")
        if other.compiled(lambda: other.finish(other.build())):
            raise stores.Failed(f"what is in {other.version} is not served any more")
        place.heal()
    print(f"v1 and {version}: {KEYS} programs each, at once on one root; gc and clear of one leave the other")


if __name__ == "__main__":
    try:
        main()
    except stores.Failed as failed:
        measure.stop(failed)
