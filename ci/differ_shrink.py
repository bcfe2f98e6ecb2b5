"""Makes a failing case of ci/differ smaller, as long as it fails: fewer cases before it, fewer calls, lines and variables."""

import copy
import time

import differ_sides

# Seconds that are spent on one failing case.
PATIENCE = 60


class Late(Exception):
    """The time for it is over."""


def fewer(items, fails):
    """The fewest of some items that still fail, as far as leaving out halves, quarters and so on finds them.

    >>> fewer([1, 2, 3, 4, 5, 6, 7, 8], lambda items: {3, 7} <= set(items))
    [3, 7]
    >>> fewer([1, 2, 3], lambda items: True)
    []
    """
    if items and fails([]):
        return []
    size = max(1, len(items) // 2)
    while items:
        start, found = 0, False
        while start < len(items):
            rest = items[:start] + items[start + size :]
            if rest != items and fails(rest):
                items, found = rest, True
            else:
                start += size
        if size == 1 and not found:
            break
        size = max(1, size // 2)
    return items


def difference(sides, kept):
    """What differs when a kept case is run on empty caches, if anything does and the bare driver repeats itself."""
    sides.clear()
    for case in kept["before"]:
        sides.run(case, kept["mode"])
    bare = sides.run(kept["case"])
    if differ_sides.difference(bare, sides.run(kept["case"])):
        return None
    return next((found for _, found in sides.differences(kept["case"], kept["mode"], bare) if found), None)


def cases(kept):
    return [*kept["before"], kept["case"]]


def source_texts(kept):
    """The texts of all sources and files, each once."""
    found = []
    for case in cases(kept):
        texts = ["".join(call["strings"]) for call in walk(case["calls"]) if call["call"] == "source"]
        found += [text for text in [*texts, *case["files"].values()] if text not in found]
    return found


def walk(calls):
    """All calls, those of threads as well."""
    for call in calls:
        yield call
        yield from walk(call.get("calls", []))


def with_text(kept, old, new):
    """With another text in place of one, wherever that stands."""
    kept = copy.deepcopy(kept)
    for case in cases(kept):
        for call in walk(case["calls"]):
            if call["call"] == "source" and "".join(call["strings"]) == old:
                call.update(strings=[new], lengths="absent")
        case["files"] = {path: new if text == old else text for path, text in case["files"].items()}
    return kept


def with_calls(kept, calls):
    """With only those calls of the case, and without the others in the cases before it, too."""
    kept = copy.deepcopy(kept)
    gone = [call for call in kept["case"]["calls"] if call not in calls]
    for case in kept["before"]:
        case["calls"] = [call for call in case["calls"] if call not in gone]
    kept["case"]["calls"] = list(calls)
    return kept


def with_options(kept, old, new):
    kept = copy.deepcopy(kept)
    for case in cases(kept):
        for call in walk(case["calls"]):
            if call.get("options") == old:
                call["options"] = new
    return kept


def shrunk(sides, kept, shape, patience=PATIENCE):
    """A smaller document with a difference of the same shape: another one may be another defect's."""
    until = time.monotonic() + patience

    def fails(smaller):
        if time.monotonic() > until:
            raise Late
        found = difference(sides, smaller)
        return found is not None and differ_sides.shape(found) == shape

    def attempt(smaller):
        nonlocal kept
        if smaller != kept and fails(smaller):
            kept = smaller
            return True
        return False

    try:
        fewer(list(kept["before"]), lambda rest: attempt({**kept, "before": list(rest)}) or rest == kept["before"])
        variables = kept["case"].get("process", {}).get("variables", {})
        if variables:

            def with_names(names):
                smaller = copy.deepcopy(kept)
                smaller["case"]["process"]["variables"] = {name: variables[name] for name in names}
                return smaller

            fewer(sorted(variables), lambda names: attempt(with_names(names)))
        fewer(list(kept["case"]["calls"]), lambda calls: attempt(with_calls(kept, calls)))
        for text in source_texts(kept):
            current, lines = text, text.splitlines(keepends=True)

            def with_lines(some):
                nonlocal current
                if attempt(with_text(kept, current, "".join(some))):
                    current = "".join(some)
                    return True
                return False

            fewer(lines, with_lines)
        for options in {call.get("options") for case in cases(kept) for call in walk(case["calls"])} - {None, ""}:
            current, words = options, options.split(" ")

            def with_words(some):
                nonlocal current
                if attempt(with_options(kept, current, " ".join(some))):
                    current = " ".join(some)
                    return True
                return False

            fewer(words, with_words)
        for case in cases(kept):
            for path in sorted(case["files"]):
                smaller = copy.deepcopy(kept)
                for other in cases(smaller):
                    other["files"].pop(path, None)
                attempt(smaller)
    except Late:
        pass
    return kept
