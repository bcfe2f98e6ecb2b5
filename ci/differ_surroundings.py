"""What ci/differ changes around a program: one thing at a time of all that could change its code and is not its source."""

import copy
import os
import pathlib
import re
import subprocess

import differ_cases

# What the dynamic loader and the scripts themselves need is not changed at random. Nor is what has Intel's CPU runtime read a module from
# a file: where there is no such file it goes on with a text that it has freed, which ends the process now and then (measured). Nor is
# what Intel's GPU driver has a device by, and by what it writes into any file.
KEPT = re.compile(
    r"(CL_CONFIG_REPLACE_IR|LD|OCLCACHE|OCL_ICD|OPENCL_VENDOR|GCOV|LLVM_PROFILE)_|AUBDump|cl_cache_dir"
    r"|(PATH|HOME|TMPDIR|LC_ALL|POCL_CACHE_DIR|MESA_SHADER_CACHE_DIR|RUSTICL_ENABLE|NEOReadDebugKeys|SetCommandStreamReceiver|ProductFamilyOverride)$"
)
# Of libm, with one argument and with two.
ONE = "sin cos tan asin acos atan exp exp2 log log2 log10 sqrt cbrt sinh cosh tanh floor ceil rint".split()
TWO = "pow fmod atan2 hypot remainder".split()
FAMILIES = ("zero", "one", "number", "macro", "macro", "macro", "option", "option", "path", "empty", "word")


def libraries(sides, case):
    """All libraries that a process has opened when it ends, by what the dynamic loader says of itself."""
    environment = {**sides.environment(case), "LD_DEBUG": "files"}
    document = sides.folder / "case.json"
    argv = [str(sides.built.client), str(document)]
    done = subprocess.run(argv, env=environment, cwd=sides.work, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    found = re.findall(rb"calling init: (/\S+)", done.stderr)
    return sorted({pathlib.Path(os.fsdecode(path)).resolve() for path in found})


# Writes the names that a process asks getenv and secure_getenv for into the file that descriptor 3 is.
LISTENER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
#define LISTEN(function) \\
    char *function(const char *name) \\
    { \\
        static char *(*next)(const char *); \\
        if (!next) \\
            next = (char *(*)(const char *))dlsym(RTLD_NEXT, #function); \\
        if (write(3, name, strlen(name)) < 0 || write(3, "\\n", 1) < 0) \\
            return next(name); \\
        return next(name); \\
    }
LISTEN(getenv)
LISTEN(secure_getenv)
"""


def asked(sides, case):
    """The names that a process asks for by the usual functions; a driver may read its environment in other ways, too."""
    found, listening = sides.folder / "asked", {"calls": [], "process": {"preload": {"how": "path", "source": LISTENER}}}
    environment = {**sides.environment(case), **sides.environment(listening)}
    argv = ["sh", "-c", '3>"$1" exec "$2" "$3"', "sh", str(found), str(sides.built.client), str(sides.folder / "case.json")]
    subprocess.run(argv, env=environment, cwd=sides.work, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    names = found.read_text(errors="replace").split("\n") if found.exists() else []
    return {name for name in names if re.fullmatch(r"\w+", name) and not KEPT.match(name)}


def names_in(data):
    """What looks like the name of a variable: upper-case words that end a string.

    >>> sorted(names_in(b"\\0SOME_NAME\\0 in BETWEEN some -DNOT_ONE\\0xTAIL\\0A_1\\0"))
    ['A_1', 'SOME_NAME']
    """
    found = re.findall(rb"(?<![A-Za-z0-9_.$@%-])[A-Z][A-Z0-9_]{2,62}(?=\0)", data)
    return {name.decode() for name in found if not KEPT.match(name.decode())}


def names(paths):
    """The names in libraries that ask for variables at all."""
    found = set()
    for path in paths:
        data = path.read_bytes()
        if b"getenv" in data:
            found |= names_in(data)
    return sorted(found)


def macros_of(case):
    """What the sources of a case ask for with #ifndef."""
    strings = ["".join(call["strings"]) for call in case["calls"] if call["call"] == "source"]
    return re.findall(r"#ifndef (\w+)", "\n".join(strings)) or ["M"]


def value(chance, family, case):
    if family == "macro":
        macros = macros_of(case)
        return " ".join(f"-D{macro}={differ_cases.number(chance)}" for macro in chance.choice([macros, [chance.choice(macros)]]))
    return {
        "zero": "0",
        "one": "1",
        "number": str(chance.choice([2, 3, 8, 64, 1000])),
        "option": chance.choice(differ_cases.OPTIONS),
        "path": chance.choice(["/tmp", "/etc/hostname", "/nonexistent/x"]),
        "empty": "",
        "word": differ_cases.identifier(chance, 12),
    }[family]


def with_variables(case, variables):
    """
    >>> with_variables({"calls": []}, {"A": "1"})
    {'calls': [], 'process': {'variables': {'A': '1'}}}
    """
    changed = copy.deepcopy(case)
    changed.setdefault("process", {}).setdefault("variables", {}).update(variables)
    return changed


def state(chance):
    return {
        "rounding": chance.choice([0, 1, 2, 3, 3]),
        "flush": chance.random() < 0.3,
        "zero": chance.random() < 0.3,
        **({"precision": chance.choice([0, 2])} if chance.random() < 0.3 else {}),
    }


def preload(chance):
    """A library in C that gives another result for some functions of libm, and may hide that it is there."""
    how, more = chance.choice(["path", "token", "soname", "hidden"]), chance.choice(["+ 1", "* 2", "- 0.125"])
    lines = ["#define _GNU_SOURCE", "#include <dlfcn.h>", "#include <stdlib.h>"]
    for name in chance.sample(ONE, k=chance.choice([1, 4, len(ONE)])):
        lines.append(f'double {name}(double x) {{ double (*f)(double) = dlsym(RTLD_NEXT, "{name}"); return f(x) {more}; }}')
    for name in chance.sample(TWO, k=chance.choice([0, 1, len(TWO)])):
        lines.append(f'double {name}(double x, double y) {{ double (*f)(double, double) = dlsym(RTLD_NEXT, "{name}"); return f(x, y) {more}; }}')
    if how == "hidden":
        lines.append('__attribute__((constructor)) static void hide(void) { unsetenv("LD_PRELOAD"); }')
    return {"how": how, "source": "\n".join(lines) + "\n"}


def positions(case, *kinds):
    return [index for index, call in enumerate(case["calls"]) if call["call"] in kinds]


# Each takes a case of its own and changes one thing of it; False: there is nothing of the kind to change.


def change_state(chance, case, pool):
    """Of the thread that opens the driver, or of the one that builds, before any of its calls."""
    if chance.random() < 0.3:
        case["state"] = state(chance)
        return
    case["calls"].insert(chance.choice([0, *positions(case, "build", "compile", "link")]), {"call": "state", "state": state(chance)})


def change_preload(chance, case, pool):
    case.setdefault("process", {})["preload"] = preload(chance)


def change_variable(chance, case, pool):
    """One that is known to change something, or any other."""
    known = sorted(pool.effective)
    name = chance.choice(known) if known and chance.random() < 0.8 else chance.choice(pool.names)
    variables = {name: value(chance, chance.choice(FAMILIES), case)}
    if chance.random() < 0.2:
        [name], [text] = variables.keys(), variables.values()
        # A driver that remembers the first value does not read it in a build that is served: see the page on limits.
        if name in case.get("process", {}).get("variables", {}):
            return False
        case["calls"].insert(chance.choice([0, *positions(case, "build", "compile", "link")]), {"call": "variable", "name": name, "value": text})
        return
    case.setdefault("process", {}).setdefault("variables", {}).update(variables)


def change_limits(chance, case, pool):
    case.setdefault("process", {})["limits"] = chance.choice(
        [{"stack": 1 << 21}, {"stack": "unlimited"}, {"nofile": chance.choice([128, 512])}, {"core": 0}, {"fsize": 1 << 24}, {"memlock": 0}]
    )


def change_processors(chance, case, pool):
    case.setdefault("process", {})["cpus"] = str(chance.randrange(os.cpu_count()))


def change_thread(chance, case, pool):
    """The calls on a thread with a stack of another size."""
    stack = chance.choice([1 << 18, 1 << 19, 1 << 20, 1 << 23])
    case["calls"] = [{"call": "thread", "stack": stack, "calls": case["calls"]}]


def change_file(chance, case, pool):
    """Another content of a file; or the same name in another directory that is searched, before the first call or after it."""
    if not case["files"]:
        return False
    path = chance.choice(sorted(case["files"]))
    text = chance.choice([differ_cases.header(chance), differ_cases.header(chance, includes="sub.h"), None])
    way = chance.choice(["content", "beside", "below", "later"])
    place = {"content": path, "beside": pathlib.Path(path).name, "below": f"other/{pathlib.Path(path).name}", "later": path}[way]
    if way == "later":
        case["calls"].insert(chance.choice([0, *positions(case, "build")]), {"call": "file", "path": path, "text": text})
    elif text is None:
        del case["files"][path]
    else:
        case["files"][place] = text
        case["files"]["sub.h"] = differ_cases.header(chance, 1)


def change_options(chance, case, pool):
    found = positions(case, "build", "compile", "link")
    if not found:
        return False
    call = case["calls"][chance.choice(found)]
    options = call["options"]
    words = (options or "").split(" ")
    way = chance.choice(["add", "twice", "drop", "swap", "number", "letter", "none"])
    if way == "add":
        words.insert(chance.randrange(len(words) + 1), chance.choice([*differ_cases.OPTIONS, f"-D{chance.choice(macros_of(case))}={differ_cases.number(chance)}", "-Iother", ""]))
    elif way == "twice":
        # The last one counts. The values are always these, so that what differs is the order.
        macro = macros_of(case)[0]
        words += chance.sample([f"-D{macro}=3", f"-D{macro}=5"], 2)
    elif way == "drop":
        words.pop(chance.randrange(len(words)))
    elif way == "swap":
        chance.shuffle(words)
    elif way == "number":
        words = [re.sub(r"=-?\d+", lambda _: f"={differ_cases.number(chance)}", word) for word in words]
    elif way == "letter":
        words = [with_another_letter(chance, word) if chance.random() < 0.5 else word for word in words]
    call["options"] = " ".join(words) if way != "none" else chance.choice([None, ""])


def with_another_letter(chance, word):
    """A word in which one letter behind its first two characters has the other case.

    >>> import random
    >>> with_another_letter(random.Random(1), "-DN"), with_another_letter(random.Random(1), "-w"), with_another_letter(random.Random(1), "")
    ('-Dn', '-w', '')
    """
    places = [place for place in range(2, len(word)) if word[place].isalpha()]
    if not places:
        return word
    place = chance.choice(places)
    return word[:place] + word[place].swapcase() + word[place + 1 :]


def change_source(chance, case, pool):
    """A number of the source, or the way in which it is passed."""
    found = positions(case, "source")
    call = case["calls"][chance.choice(found)]
    text = "".join(call["strings"])
    way = chance.choice(["number", "number", "split", "line", "join"])
    if way == "number":
        # No index: a kernel that writes beyond its buffer dies now and then, here or there, with the bare driver as well.
        numbers = [found for found in re.finditer(r"(?<![\w.\[])\d+(?![\w.])", text) if not re.search(r"\[[^\]\n]*$", text[: found.start()])]
        if not numbers:
            return False
        place = chance.choice(numbers)
        text = text[: place.start()] + str(abs(differ_cases.number(chance))) + text[place.end() :]
    elif way == "line":
        text = chance.choice(["\n", " ", f"// {differ_cases.identifier(chance, 30)}\n"]) + text
    elif way == "join":
        call.update(strings=[text], lengths=chance.choice(["absent", "zero", "given"]))
        return
    call.update(strings=differ_cases.source_call(chance, "", text)["strings"], lengths="absent")


def change_objects(chance, case, pool):
    """The order of what is linked, or of embedded headers; their names; whether a callback is passed."""
    found = [index for index in positions(case, "link", "compile", "build")]
    if not found:
        return False
    call = case["calls"][chance.choice(found)]
    if len(call.get("inputs", [])) > 1:
        call["inputs"] = call["inputs"][::-1]
    elif len(call.get("headers", [])) > 1:
        names = [name for name, _ in call["headers"]]
        call["headers"] = [[name, program] for name, (_, program) in zip(names[::-1], call["headers"])]
    else:
        call["notify"] = not call["notify"]


def change_devices(chance, case, pool):
    """A part of the device in its place, or a list where there was none."""
    found = positions(case, "build", "compile", "link")
    if found and chance.random() < 0.4:
        case["calls"][chance.choice(found)]["devices"] = ["device-0"]
        return
    calls = case["calls"]
    if calls[0]["call"] != "context":
        return False
    case["calls"] = [{"call": "parts", "id": "part", "device": "device-0"}, *calls]
    calls[0]["devices"] = chance.choice([["part-0"], ["part-1"], ["device-0", "part-0"], ["part-0", "part-1"]])


CHANGES = {
    "state": change_state,
    "preload": change_preload,
    "variable": change_variable,
    "limits": change_limits,
    "processors": change_processors,
    "thread": change_thread,
    "file": change_file,
    "options": change_options,
    "source": change_source,
    "objects": change_objects,
    "devices": change_devices,
}
WEIGHTS = {"state": 4, "preload": 4, "variable": 6, "file": 4, "options": 4, "source": 3, "objects": 3, "devices": 2}


def change(chance, base, pool):
    """A copy of a case with one thing changed, and what that is."""
    while True:
        [kind] = chance.choices(list(CHANGES), weights=[WEIGHTS.get(kind, 1) for kind in CHANGES])
        case = copy.deepcopy(base)
        if CHANGES[kind](chance, case, pool) is not False and case != base:
            return case, kind


# What can be changed from one program to the next in a process.
INSIDE = ("options", "options", "source", "objects", "objects", "file", "state", "variable")
# So many programs in turn.
VARIANTS = 6


def renamed(calls, suffix):
    """The same calls on objects of other names, but for the context and the devices.

    >>> renamed([{"call": "link", "id": "p", "context": "c", "inputs": ["q"], "devices": ["device-0"]}], "_1")
    [{'call': 'link', 'id': 'p_1', 'context': 'c', 'inputs': ['q_1'], 'devices': ['device-0']}]
    """
    # Kernels that are created together are called after an id and a number.
    def other(name):
        return name if name == "c" else re.sub(r"(-\d+)?$", lambda number: suffix + number[0], name, count=1)

    changed = copy.deepcopy(calls)
    for call in changed:
        for key in {"id", "program", "kernel", "object"} & set(call):
            call[key] = other(call[key])
        if "inputs" in call:
            call["inputs"] = [other(name) for name in call["inputs"]]
        if "headers" in call:
            call["headers"] = [[name, other(program)] for name, program in call["headers"]]
    return changed


def variants(chance, base, pool):
    """A case again and again in one process, each time with one thing changed."""
    calls = base["calls"][:1]
    for index in range(VARIANTS):
        case = copy.deepcopy(base)
        if index and CHANGES[chance.choice(INSIDE)](chance, case, pool) is False:
            continue
        calls.append({"call": "state", "state": {"rounding": 0}})
        # Also what a change before this one has left.
        paths = {*base["files"], *case["files"]}
        calls += [{"call": "file", "path": path, "text": case["files"].get(path)} for path in sorted(paths)]
        start = next(index for index, call in enumerate(case["calls"]) if call["call"] == "context")
        calls += renamed([*case["calls"][:start], *case["calls"][start + 1 :]], f"_{index}")
        calls += [{"call": "variable", "name": call["name"], "value": None} for call in case["calls"] if call["call"] == "variable"]
    changed = {call["name"] for call in calls if call["call"] == "variable"}
    variables = {name: value for name, value in case.get("process", {}).get("variables", {}).items() if name not in changed}
    return {"files": base["files"], "calls": calls, **({"process": {"variables": variables}} if variables else {})}
