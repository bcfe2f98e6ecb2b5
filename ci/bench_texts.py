"""Sources of megabytes that are hard to follow: many macros, many includes whose names are macros, many definitions. What counts is
how a whole process compares with one without oclcache, in misses and in hits."""

import random

import bench_builds
import figures
import measure

MEGABYTES = (1, 4)
KERNEL = "kernel void k(global int *out) { *out = 42; }\n"
LARGER = 1.1


def until(size, lines):
    """Lines up to this size in bytes.

    >>> until(4, iter(["ab", "cd", "ef"]))
    'abcd'
    """
    taken, length = [], 0
    for line in lines:
        if length >= size:
            break
        taken.append(line)
        length += len(line)
    return "".join(taken)


def definitions(size):
    """Macros that name each other, and includes by macros that are defined."""
    lines = (f"#define D{number}(x, y) x y D{number + 1}(x y)\n" for number in range(10**9))
    includes = "".join(f"#include H{number}\n" for number in range(64))
    return "#define H0 <h0.h>\n#if 0\n" + until(size, lines) + includes + "#endif\n" + KERNEL


def skipped(size):
    """Code that is left out, with tokens that could be pasted."""
    source = random.Random(1)
    word = lambda: f"{source.getrandbits(40):x}"
    lines = (f"  float v{word()} = in[{number % 977}] * w_{word()};\n" for number in range(10**9))
    return "#define P(a, b) a##b\n#if 0\n" + until(size, lines) + "#endif\n" + KERNEL


def ambiguous(size):
    """Code that is left out, with quotes, comments and ends of lines that may be read in more than one way."""
    source = random.Random(1)
    word = lambda: f"{source.getrandbits(40):x}"
    lines = (f"  float v{word()} = in[{number % 977}] * 1'0 + w_{word()}; /* c */ 'q\n" for number in range(10**9))
    return "#define P(a, b) a##b\n#if 0\n??/ x\n\\ \nfoo *\\\n/ \r bar \n 'lone\n" + until(size, lines) + "#endif\n" + KERNEL


def directives(size):
    """Long lines that are nearly nothing."""
    return "#if 0\n" + until(size, iter(lambda: "#" + 2000 * " " + "\n", None)) + "#endif\n" + KERNEL


KINDS = {"definitions": definitions, "skipped code": skipped, "ambiguous code": ambiguous, "empty directives": directives}


def rows(runs):
    for driver in bench_builds.drivers():
        if driver.name in ("rusticl", "Intel GPU"):
            continue  # like PoCL, their compiler is clang, in a library
        for kind, text in KINDS.items():
            for size in MEGABYTES:
                with measure.Bench(driver.icd) as bench:
                    source = bench.folder / "source.cl"
                    source.write_text(text(size << 20))
                    argv = [bench_builds.CLIENT, "run", "--source", str(source), "--kernel", "k"]
                    bench.run(argv, cached=True, bake=True)
                    seen = {"bare": [], "miss": [], "hit": []}
                    for _ in range(max(3, runs)):
                        with bench_builds.cache_without_programs(bench) as cache:
                            seen["bare"].append(bench.run(argv, cached=False).seconds)
                            seen["miss"].append(bench.run(argv, cached=True, registered=True, OCLCACHE_DIR=cache).seconds)
                            seen["hit"].append(bench.run(argv, cached=True, registered=True).seconds)
                    hits = bench.stats()["hits"]
                yield {"driver": driver.name, "text": f"{kind}, {size} MiB", "hits": hits, **seen}
                figures.say(f"{driver.name}, {kind}, {size} MiB: {len(seen['bare'])} runs each")


def table(found):
    lines = []
    for row in found:
        served = "hit" if row["hits"] else "never served"
        ratios = [figures.against(row[way], row["bare"]) for way in ("miss", "hit")]
        lines.append([f"{row['driver']}: {row['text']}", figures.seconds(row["bare"]), *ratios, served])
    return figures.markdown(["", "without", "miss / without", "later / without", ""], lines)
