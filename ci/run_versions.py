"""ci/store versions: libraries and commands of other versions beside this one on one root: FOLDER {NAME LIBRARY COMMAND DIRECTORY}...

DIRECTORY is where the other version keeps its entries: a directory of its own, or this one's, where only keys differ.
"""

import json
import os
import pathlib
import shutil
import sys

import measure
import stores

KEYS = 50


def entries(place):
    """The entries of its version, and what tells whether a file was replaced. The time of an entry is that of its last use."""
    found = {}
    for path in place.entry_files():
        stat = path.lstat()
        found[path] = (stat.st_ino, stat.st_size)
    return found


def unchanged(before, place, what):
    after = entries(place)
    lost = [path for path, state in before.items() if after.get(path) != state]
    if lost:
        raise stores.Failed(f"{what} has changed {len(lost)} of {len(before)} entries of {place.folder.name}: {lost[0].name}")


def damaged(place):
    return [row["key"] for row in json.loads(place.oclcache("list", "--json")) if row["damaged"]]


def served(place, what):
    compiled = place.compiled(lambda: place.finish(place.build()))
    if compiled:
        raise stores.Failed(f"{compiled} of {KEYS} programs of {place.folder.name} are compiled again after {what}")


def side_by_side(ours, theirs):
    """Both fill one root at once; then each does all that it can, and the other is served as before."""
    running = [(place, place.build("--seed", seed, "--seconds", 3)) for place in (theirs, ours) for seed in (1, 2)]
    for place, process in running:
        place.finish(process)
    for place in ours, theirs:
        place.heal()
        if damaged(place):
            raise stores.Failed(f"{place.folder.name} calls {len(damaged(place))} entries damaged")
    for place, other in (ours, theirs), (theirs, ours):
        before = entries(other)
        place.heal()
        for arguments in ("gc",), ("stats",), ("list",), ("bake",):
            place.oclcache(*arguments)
            unchanged(before, other, f"`oclcache {' '.join(arguments)}` of {place.folder.name}")
        served(other, f"all that {place.folder.name} does")
        if ours.version != theirs.version:
            place.oclcache("clear")
            unchanged(before, other, f"`oclcache clear` of {place.folder.name}")
            place.heal()


def upgraded(ours, theirs):
    """A program of the old version goes on while another one is there, which is left, and comes again."""
    old = theirs.build("--seed", 3, "--seconds", 4)
    for _ in range(3):
        ours.finish(ours.build())
        ours.oclcache("gc")
    theirs.finish(old)
    served(ours, "an upgrade")
    served(theirs, "a downgrade")
    served(ours, "a second upgrade")


def recipes(ours, theirs):
    """What one version has left to be baked: another one's baker bakes it or leaves it, and harms nobody."""
    for place, other in (ours, theirs), (theirs, ours):
        place.oclcache("clear")
        other.oclcache("clear")
        place.finish(place.build(OCLCACHE_RECORD="bake"))
        before = entries(place)
        for _ in range(2):
            other.oclcache("bake")
        if ours.version != theirs.version:
            unchanged(before, place, f"the baker of {other.folder.name}")
        place.oclcache("bake")
        served(place, f"the bakers of both, {other.folder.name} first")


def put(file, place):
    """A file in the place of another, as an upgrade does it: who has opened the old one keeps it."""
    new = place.with_name("new")
    shutil.copy(file, new)
    os.replace(new, place)


def replaced(ours, theirs):
    """An upgrade and a downgrade put other files in the places of the library and of the command while a program runs."""
    library, command = ours.folder / "lib" / "liboclcache.so", ours.folder / "lib" / "oclcache"
    library.parent.mkdir()
    place = stores.Place(ours.folder / "replaced", KEYS, library=library, command=command, cache=ours.cache)
    for before, after in (theirs, ours), (ours, theirs):
        put(before.library, library)
        put(before.executable, command)
        running = place.build("--seed", 5, "--seconds", 3)
        place.finish(place.build())
        put(after.library, library)
        # Until the command is replaced as well, the one library's recipes are for the other's baker, which the library starts.
        after.oclcache("clear")
        place.finish(place.build(OCLCACHE_RECORD="bake", OCLCACHE_AUTOBAKE="1"))
        place.oclcache("gc")
        put(after.executable, command)
        place.oclcache("bake")
        place.finish(running)
        served(place, f"{after.folder.name} was put in the place of {before.folder.name}")
        for each in before, after:
            if damaged(each):
                raise stores.Failed(f"{each.folder.name} calls {len(damaged(each))} entries damaged after {after.folder.name} was put in its place")


def main():
    folder, others = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    for name, library, command, version in zip(*[iter(others)] * 4):
        ours = stores.Place(folder / name / "this", KEYS)
        theirs = stores.Place(
            folder / name / name, KEYS, library=pathlib.Path(library).resolve(), command=pathlib.Path(command).resolve(), cache=ours.cache, version=version
        )
        for check in side_by_side, upgraded, recipes, replaced:
            check(ours, theirs)
        print(f"this version and {name}, in v1 and {version}: {KEYS} programs each on one root, at once, in turns, baked by the other's baker, replaced while one runs")


if __name__ == "__main__":
    try:
        main()
    except stores.Failed as failed:
        measure.stop(failed)
