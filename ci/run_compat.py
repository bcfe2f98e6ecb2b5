"""The table of ci/compat: real programs without oclcache, and with it, cold and warm.

    run_compat.py [--quick] [--runs N] NAME...   runs these; --quick: once, and no verdict on seconds
    run_compat.py --list                         names all

Every run is a new process with a home, a working directory and caches of the program and of PoCL that are empty. The spy stands
before the driver in all of them, bare ones, too, and writes one line for each call; it counts what the driver compiles.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys

import clients
import measure

# Programs that take less seconds than this are run thrice, others once, unless that one run would fail the program.
SHORT = 10.0
HEAD = ["program", "driver", "loader", "builds", "hits", "misses", "bypassed", "compiled", "edited", "bare", "warm", "avoided", "kept", "verdict"]
NOTES = """
builds: calls that succeeded in the warm run (and those that failed); hits, misses and bypassed are theirs. compiled: how
often the driver compiled or linked in the warm run, and in the bare one, by a library that stands before the driver and knows
nothing of oclcache. edited: misses after one byte was added to a header of the program's. bare, warm: seconds of the whole
program, medians; they do not count for the verdict on rusticl, which compiles when a kernel is created. The warm run is the
second one.
"""
RESULT = clients.COMPAT / "compat.json"


def listed_reasons():
    """The bypass reasons that their page explains."""
    section = (measure.TOP / "docs/troubleshooting.md").read_text().split("## Bypass reasons", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^- `(\w+)`", section, re.MULTILINE))


def loader_of(trace):
    """What loader the program used, by what the dynamic linker wrote, and whose it is.

    Several, if several are loaded. ocl-icd is told from the Khronos loader by a function that only it has.
    """
    found = {}
    for path in trace.parent.glob(trace.name + "*"):
        for name in re.findall(r"calling init: (\S*libOpenCL\S*)", path.read_text(errors="replace")):
            content = pathlib.Path(name).read_bytes()
            kind = "ocl-icd" if b"clGetICDLoaderInfoOCLICD" in content else "Khronos"
            found[name] = f"{kind}, wheel's" if "site-packages" in name else kind
    return " + ".join(dict.fromkeys(found.values())) or "none"


def verdict(client, runs, count, warm, bare, timed, edited=None):
    """What is wrong, as texts; empty: nothing.

    >>> import clients
    >>> client = clients.Client("a", "A", list)
    >>> run = lambda output, built=0: measure.Run(1.0, output, built)
    >>> count = {"hits": 9, "misses": 0, "bypassed": 1, "failed": 0, "materialised": 0, "bypass_reasons": {"reads_file": 1}}
    >>> verdict(client, [run("x"), run("x"), run("x", 1)], count, [1.0], [1.1], True)
    []
    >>> count |= {"hits": 8, "misses": 1, "bypass_reasons": {"odd": 1}}
    >>> verdict(client, [run("x"), run("x"), run("y", 3)], count, [1.2], [1.1], True)
    ['other output', 'hits 80 %', 'unlisted reason odd', '3 compiled, 2 expected', 'slower']
    >>> verdict(client, [run("y")], count | {"bypass_reasons": {}, "hits": 9, "bypassed": 0}, [1.0], [1.1], True, {"misses": 0})
    ['no miss for another header']
    """
    wrong = []
    first, *others = runs
    if first.status not in client.statuses:
        wrong.append(f"status {first.status} bare")
    if any(run.status != first.status or not same(client, first, run) for run in others):
        wrong.append("other output")
    succeeded = count["hits"] + count["misses"] + count["bypassed"]
    served = count["hits"] - count["materialised"]
    if served < 0.9 * succeeded:
        wrong.append(f"hits {100 * served // succeeded} %")
    if succeeded + count["failed"] == 0:
        wrong.append("no build")
    wrong += [f"unlisted reason {reason}" for reason in count["bypass_reasons"] if reason not in listed_reasons()]
    # At most these: of the bypassed ones, those from a binary are not compiled.
    expected = count["misses"] + count["bypassed"] + count["failed"] + count["materialised"]
    if runs[-1].built > expected:
        wrong.append(f"{runs[-1].built} compiled, {expected} expected")
    if edited and edited["misses"] == 0:
        wrong.append("no miss for another header")
    if timed and statistics.median(warm) > statistics.median(bare):
        wrong.append("slower")
    return wrong


def same(client, one, other):
    return measure.same_results(client.plain(one.output), client.plain(other.output), client.tolerance)


def builds_text(count):
    """Calls that succeeded, and calls that failed.

    >>> builds_text({"hits": 3, "misses": 0, "bypassed": 1, "failed": 0}), builds_text({"hits": 3, "misses": 0, "bypassed": 1, "failed": 2})
    ('4', '4 (2 failed)')
    """
    succeeded = count["hits"] + count["misses"] + count["bypassed"]
    return f"{succeeded} ({count['failed']} failed)" if count["failed"] else str(succeeded)


def kept_caches(client, bench):
    """What oclcache says it avoided, and by how much shorter a run was, where other caches are those of an earlier run."""
    argv, seconds, avoided = client.argv(), {False: [], True: []}, []
    bench.doctor()
    with measure.fresh_home() as home:
        bench.run(argv, cached=False, home=home, may_fail=True)
        for _ in range(3):
            seconds[False].append(bench.run(argv, cached=False, home=home, may_fail=True).seconds)
            run, count = bench.counted_run(argv, home=home, may_fail=True)
            seconds[True].append(run.seconds)
            avoided.append(count["avoided"])
    shorter = statistics.median(seconds[False]) - statistics.median(seconds[True])
    return {"avoided": statistics.median(avoided), "shorter": shorter}


def avoided_text(avoided, shorter):
    """Both in seconds.

    >>> avoided_text(2.0, 1.96)
    '2.00 of 1.96'
    """
    return f"{avoided:.2f} of {shorter:.2f}"


def measure_client(client, driver, icd, runs, timed):
    """One row of the table, whether all is well, and all the seconds."""
    with measure.Bench(icd, spied=True) as bench:
        prepared = bench.folder / "prepared"
        prepared.mkdir()
        bench.environment.update(PREPARED=str(prepared), OCLCACHE_LOG="info")
        bench.environment["OCLCACHE_LOG_FILE"] = str(clients.COMPAT / "logs" / f"{client.name}-{driver.replace(' ', '-')}.log")
        pathlib.Path(bench.environment["OCLCACHE_LOG_FILE"]).unlink(missing_ok=True)
        if client.prepare:
            client.prepare(bench, prepared)
        argv, trace = client.argv(), bench.folder / "ld"
        bare = bench.run(argv, cached=False, may_fail=True)
        with measure.fresh_home() as home:
            cold, cold_count = bench.counted_run(argv, home=home, may_fail=True, LD_DEBUG="files", LD_DEBUG_OUTPUT=str(trace))
            bench.bake(home)
        warm, count = bench.counted_run(argv, may_fail=True)
        outputs, bare_seconds, warm_seconds = [bare, cold, warm], [bare.seconds], [warm.seconds]

        decided = warm.seconds <= bare.seconds
        wanted = runs or (1 if bare.seconds >= SHORT and decided else 3)
        while timed and len(bare_seconds) < wanted:
            for cached, seconds in (False, bare_seconds), (True, warm_seconds):
                again = bench.run(argv, cached, may_fail=True)
                outputs.insert(1, again)
                seconds.append(again.seconds)
        edited = None
        if client.header:
            with open(prepared / client.header, "a") as header:
                header.write("\n")
            run, edited = bench.counted_run(argv, may_fail=True)
            outputs.insert(1, run)
        wrong = verdict(client, outputs, count, warm_seconds, bare_seconds, timed, edited)
        if wrong:
            explain(client, driver, outputs, cold_count, count)
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(count["bypass_reasons"].items()))
        medians = [f"{statistics.median(seconds):.2f}" for seconds in (bare_seconds, warm_seconds)]
        shorter = statistics.median(bare_seconds) - statistics.median(warm_seconds)
        kept = kept_caches(client, bench) if timed else None
        avoided = [avoided_text(count["avoided"], shorter), avoided_text(**kept)] if kept else ["", ""]
        row = [
            *(client.title, driver, loader_of(trace), builds_text(count), str(count["hits"]), str(count["misses"]), reasons or "0"),
            *(f"{warm.built} of {bare.built}", str(edited["misses"]) if edited else "", *medians, *avoided, "; ".join(wrong) or "pass"),
        ]
        seconds = {"bare_seconds": bare_seconds, "warm_seconds": warm_seconds, "cold_seconds": cold.seconds}
        return row, not wrong, {**seconds, "avoided_seconds": count["avoided"], "kept_caches": kept}


def explain(client, driver, outputs, cold_count, count):
    """Keeps what each run printed, and says where."""
    folder = clients.COMPAT / "logs" / f"{client.name}-{driver.replace(' ', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(outputs):
        (folder / f"{number}.txt").write_text(f"status {run.status}\n{client.plain(run.output)}")
    print(f"{client.title}, {driver}: cold {cold_count}, warm {count}; outputs, the bare one first: {folder}", file=sys.stderr)


def print_markdown(rows):
    widths = [max(len(row[column]) for row in [HEAD, *rows]) for column in range(len(HEAD))]
    for row in [HEAD, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("names", nargs="*")
    wanted = parser.parse_args()
    if wanted.list:
        for client in clients.CLIENTS:
            print(client.name, "quick" if client.quick else "long" if client.long else "-", client.title, sep="\t")
        return
    (clients.COMPAT / "logs").mkdir(parents=True, exist_ok=True)
    rows, well, figures, icds, machine = [], True, [], clients.icds(), measure.machine()
    for client in clients.CLIENTS:
        if client.name not in wanted.names:
            continue
        for driver in client.drivers:
            if driver not in icds:
                continue
            print(f"{client.title}, {driver}", file=sys.stderr)
            # rusticl compiles when a kernel is created: a hit saves no more than noise there.
            timed = not wanted.quick and driver != clients.RUSTICL
            row, fine, seconds = measure_client(client, driver, icds[driver], wanted.runs, timed)
            print("  " + "  ".join(row[3:]), file=sys.stderr)
            rows.append(row)
            figures.append(dict(zip(HEAD, row), **seconds))
            well = well and fine
    if not rows:
        measure.stop("nothing to run")
    print(f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, load {machine['load_before']:.1f} at the start\n")
    print_markdown(rows)
    print(NOTES)
    RESULT.write_text(json.dumps({"machine": machine, "rows": figures}, indent=1) + "\n")
    print(f"Every figure: {RESULT.relative_to(measure.TOP)}", flush=True)
    if not well:
        measure.stop("a program ran differently than without oclcache, or gained too little")


if __name__ == "__main__":
    main()
