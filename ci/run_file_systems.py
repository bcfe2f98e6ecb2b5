"""ci/store fs: a short set of the same on each file system that can be had here, and what happens where a disk is full."""

import pathlib
import subprocess

import mounts
import run_kill
import run_limit
import stores

HEAD = ["", "shown as", "cold, warm", "limit", "killed", "clear"]
LIMIT = 10_000_000


def cold_and_warm(folder, cache):
    place = stores.Place(folder / "words", 50, cache=cache)
    cold = place.compiled(lambda: place.finish(place.build()))
    warm = place.compiled(lambda: place.finish(place.build()))
    if (cold, warm) != (50, 0):
        raise stores.Failed(f"of 50 programs {cold} were compiled cold and {warm} warm")
    place.check_entries()
    return f"{cold}, {warm}"


def limit(folder, cache):
    # A slow file system is busy with the writers most of the time.
    found = run_limit.limit(folder / "limit", 5, cache, LIMIT, compile_ms=100, allowed=run_limit.HOT // 2)
    return f"{found['most bytes'] / 1e6:.1f} MB"


def kill(folder, cache):
    folds = "without-locks" not in folder.name
    return str(run_kill.kill(folder / "kill", 50, cache, folds)["killed"])


def clear(folder, cache):
    place = stores.Place(folder / "clear", 50, cache=cache)
    place.oclcache("clear")
    if place.entry_files():
        raise stores.Failed("there are entries after clear")
    place.heal()
    return "ok"


def shown_as(cache):
    """What the kernel calls it."""
    done = subprocess.run(["stat", "-f", "-c", "%T", str(cache)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def plain_name(text):
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def file_systems(folder, names=()):
    """Rows, what was missing, and all failures."""
    rows, missing, failures = [], [], []
    for name, mount in mounts.KINDS.items():
        if names and name not in names:
            continue
        try:
            mounted = mount(folder / plain_name(name))
        except mounts.Missing as why:
            missing.append((name, str(why)))
            continue
        row = [name, shown_as(mounted)]
        for what, run in ("cold, warm", cold_and_warm), ("limit", limit), ("killed", kill), ("clear", clear):
            try:
                row.append(run(folder / f"of-{plain_name(name)}", mounted / plain_name(what)))
            except stores.Failed as failed:
                failures.append(f"{name}, {what}: {failed}")
                stores.note(failures[-1])
                row.append("WRONG")
        stores.note("  ".join(row))
        rows.append(row)
    return rows, missing, failures


def full(folder, name, mounted, room):
    """A disk without room: programs compute what they must, and as soon as there is room they are stored."""
    place = stores.Place(folder / f"of-{plain_name(name)}", 60, cache=mounted / "cache", OCLCACHE_MIN_FREE="0", STUB_BINARY_BYTES="100000")
    place.finish(place.build())
    place.finish(place.build("--seed", 1, "--times", 300))
    place.check_entries()
    stored = len(place.entry_files())
    if not 0 < stored < 60:
        raise stores.Failed(f"{stored} of 60 programs fit where {room} fits")
    place.oclcache("clear")
    place = stores.Place(folder / f"of-{plain_name(name)}", 10, cache=mounted / "cache", OCLCACHE_MIN_FREE="0")
    place.heal()
    return f"{stored} of 60 stored"


def read_only(folder):
    """What was stored before is served."""
    mounted = mounts.tmpfs(folder / "read-only")
    place = stores.Place(folder / "of-read-only", 20, cache=mounted / "cache")
    place.finish(place.build("--keys", 10))
    mounts.run("mount", "-o", "remount,ro", mounted)
    compiled = place.compiled(lambda: place.finish(place.build()))
    if compiled != 10:
        raise stores.Failed(f"10 of 20 programs are stored, {compiled} were compiled")
    return "10 of 10 served"


def image(folder):
    """A cache that is part of a container's image is served, and cleared without a change to the image."""
    lower = folder / "image"
    place = stores.Place(folder / "of-image", 20, cache=lower / "cache")
    place.finish(place.build("--keys", 10))
    before = sorted(lower.rglob("*"))
    mounted = mounts.overlay(folder / "container", lower)
    place.cache = mounted / "cache"
    place.environment["OCLCACHE_DIR"] = str(place.cache)
    compiled = place.compiled(lambda: place.finish(place.build()))
    place.oclcache("clear")
    if compiled != 10 or place.entry_files() or sorted(lower.rglob("*")) != before:
        raise stores.Failed(f"10 of 20 programs are in the image, {compiled} were compiled; {len(place.entry_files())} are left after clear")
    place.heal()
    return "10 of 10 served, and cleared"


def disks(folder):
    """As [`file_systems`]."""
    rows, missing, failures = [], [], []
    tries = [
        ("full", lambda: full(folder, "full", mounts.small_ext4(folder / "full"), "4 MB")),
        ("over quota", lambda: full(folder, "quota", mounts.with_quota(folder / "quota"), "2 MB")),
        ("read-only", lambda: read_only(folder)),
        ("image of a container", lambda: image(folder)),
        ("little free", lambda: f"{run_limit.free_space(folder / 'of-free', mounts.tmpfs(folder / 'free', 40 * mounts.MB), 40 * mounts.MB)}"),
    ]
    for name, run in tries:
        try:
            rows.append([name, run()])
        except mounts.Missing as why:
            missing.append((name, str(why)))
        except stores.Failed as failed:
            failures.append(f"{name}: {failed}")
            stores.note(failures[-1])
            rows.append([name, "WRONG"])
    return rows, missing, failures
