"""The table of ci/demo: one program without oclcache, its first run with it, and its second."""

import os
import sys

import measure


def main():
    driver = sys.argv[1]
    if driver == "intel":
        program, icd, device = measure.tapi(), os.environ["OCLCACHE_TEST_INTEL"], "Intel's CPU runtime"
    else:
        program, icd, device = measure.water_box(), os.environ["OCLCACHE_TEST_POCL"], "PoCL with an empty cache of its own each time"
    print(f"{program.name}, on {device}; seconds are those of the whole program:\n", flush=True)
    with measure.Bench(icd, spied=True) as bench:
        print("running it three times, half a minute to a minute", file=sys.stderr)
        bare = bench.run(program.argv, cached=False)
        first, first_count = bench.counted_run(program.argv, bake=True)
        second, second_count = bench.counted_run(program.argv)

    rows = [["without oclcache", f"{bare.seconds:.2f}", str(bare.built), "-", "-", str(bare.built)]]
    counts_of = lambda count: [str(count[column]) for column in ("build calls", "hits", "misses")]
    rows.append(["first run", f"{first.seconds:.2f}", *counts_of(first_count), str(first.built)])
    if first.baking.built:
        rows.append(["oclcache bake", f"{first.baking.seconds:.2f}", "-", "-", "-", str(first.baking.built)])
    rows.append(["second run", f"{second.seconds:.2f}", *counts_of(second_count), str(second.built)])
    measure.print_table(["", "seconds", "build calls", "hits", "misses", "compiled by the driver"], rows)
    print("\nThe last column is counted by a library that stands before the driver and knows nothing of oclcache.")

    print()
    for name, count in ("first", first_count), ("second", second_count):
        for reason, calls in count["bypass_reasons"].items():
            print(f"{name} run: {calls} build calls went straight to the driver: {reason}")
    if first.seconds > 1.1 * bare.seconds:
        print("The first run took longer: in a new cache oclcache reads the driver's files once. More than a second is a busy machine.")
    if first.baking.built:
        print("What the first run compiled is made into entries after it, here by `oclcache bake`, else by a process in the background.")
    print(f"The second run took {100 * second.seconds / bare.seconds:.0f} % of the time without oclcache.")

    for name, run in ("first", first), ("second", second):
        if not measure.same_results(bare.output, run.output, program.tolerance):
            sys.stdout.flush()
            measure.stop(f"the {name} run printed other results.\n--- without oclcache\n{bare.output}--- {name} run\n{run.output}")
    if program.tolerance:
        print(f"All three runs printed the same results, numbers to 1 part in {1 / program.tolerance:.0f}: the program itself is no more exact.")
    else:
        print("All three runs printed the same results, to the last digit.")
    if second_count["hits"] == 0 or second.built != 0:
        sys.stdout.flush()
        measure.stop("the second run was not served from the cache")


if __name__ == "__main__":
    main()
