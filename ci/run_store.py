"""What ci/store does, but for ci/store million: FOLDER SUBCOMMAND [NUMBER], in a folder that it may fill.

Names that follow on standard output after `skipped: ` could not be had.
"""

import os
import pathlib
import sys

import measure
import mounts
import run_file_systems
import run_kill
import run_limit
import run_pairs
import stores


def kill(folder, number):
    found = run_kill.kill(folder / "kill", number)
    return [[name, str(value)] for name, value in found.items()]


def limit(folder, seconds):
    """Rows; a file system for free space needs a mount."""
    rows = [
        ("8 writers", run_limit.limit(folder / "limit", seconds)),
        ("8 writers, no time to compile", run_limit.limit(folder / "quick", seconds, compile_ms=0)),
        ("age", run_limit.age(folder / "age")),
        ("last use", run_limit.used_again(folder / "used")),
    ]
    for name, mount in ("last use, noatime", mounts.ext4_noatime), ("free space", None):
        try:
            if mount:
                rows.append((name, run_limit.used_again(folder / name, mount(folder / name.replace(", ", "-")) / "cache")))
            else:
                size = 100 * mounts.MB
                rows.append((name, run_limit.free_space(folder / name, mounts.tmpfs(folder / "free", size), size)))
        except mounts.Missing as why:
            print(f"skipped: {name} ({why})")
    return [[name, ", ".join(f"{key} {value}" for key, value in found.items())] for name, found in rows]


def fs(folder):
    rows, missing, failures = run_file_systems.file_systems(folder)
    measure.print_table(run_file_systems.HEAD, rows)
    print()
    rows, more, wrong = run_file_systems.disks(folder)
    measure.print_table(["disk", "programs right, and"], rows)
    for name, why in missing + more:
        print(f"skipped: {name} ({why})")
    return failures + wrong


def main():
    folder, what = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    number = int(sys.argv[3]) if len(sys.argv) > 3 else None
    # Directories of the cache must not be writable for others, whatever the caller's umask is.
    os.umask(0o022)
    failures = []
    try:
        if what == "kill":
            measure.print_table(["kill -9", ""], kill(folder, number or 1000))
        elif what == "limit":
            measure.print_table(["limit", ""], limit(folder, number or 30))
        elif what == "pairs":
            failures = run_pairs.pairs(folder, number or 3)
        elif what == "fs":
            failures = fs(folder)
    except stores.Failed as failed:
        stores.note(failed)
        failures = [failed]
    sys.stdout.flush()
    if failures:
        measure.stop(f"{len(failures)} promises do not hold")


if __name__ == "__main__":
    main()
