"""What ci/differ builds: random programs, and random sequences of calls on them.

A case is a document: `process` says how the process begins (variables, a preloaded library, limits), `state` the floating-point state
of its first thread, `files` what is in its working directory, `calls` what it calls. tests/support/differ carries it out.
"""

import random

# Words of 64 bits that a kernel writes.
WORDS = 12
# From the specification of OpenCL C: functions of one argument, and of two.
ONE = "sin cos tan asin acos atan exp exp2 exp10 log log2 log10 sqrt cbrt rsqrt sinh tanh erf tgamma floor rint".split()
TWO = "pow fmod atan2 hypot fmax remainder".split()
OPTIONS = """-cl-fast-relaxed-math -cl-mad-enable -cl-opt-disable -cl-std=CL1.2 -cl-std=CL2.0 -cl-std=CL3.0 -cl-denorms-are-zero
    -cl-no-signed-zeros -cl-unsafe-math-optimizations -cl-finite-math-only -cl-single-precision-constant
    -cl-fp32-correctly-rounded-divide-sqrt -cl-kernel-arg-info -w""".split()
PREDEFINED = "__FAST_RELAXED_MATH__ __OPENCL_C_VERSION__ __OPENCL_VERSION__ __LINE__ __OPTIMIZE__ __STDC_VERSION__ __clang_major__".split()
# What shows most of what can change.
PROBED = ["macro", "macro", "macro", "predefined", "predefined", "predefined", "math", "math", "builtin", "builtin", "builtin", "size"]
BUILD_LOG = 0x1183
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def heavy(chance, least, most, tail=0.6):
    """A number of which most are small, and some are not.

    >>> chance = random.Random(1)
    >>> found = [heavy(chance, 3, 4000) for _ in range(1000)]
    >>> min(found), sorted(found)[500] < 20, max(found) > 1000
    (3, True, True)
    """
    return min(most, int(least * chance.paretovariate(tail)))


def identifier(chance, longest=4000):
    return chance.choice(LETTERS) + "".join(chance.choices(LETTERS + "0123456789_", k=heavy(chance, 3, longest, 0.45) - 1))


def number(chance):
    return chance.choice([chance.randrange(-3, 10), chance.randrange(1 << 16)])


def real(chance, is_single=False):
    if is_single:
        return f"{chance.uniform(0, 9):.6f}f"
    return chance.choice([f"{chance.uniform(0, 9):.6f}", f"{chance.uniform(1, 9):.3f}e{chance.randrange(-320, 300)}"])


class Text:
    """A source: its macros, which options may set, the headers that it includes, and its kernels with their arguments."""

    def __init__(self, chance, headers=(), scope="k", is_probe=False):
        self.chance, self.headers = chance, list(headers)
        self.macros = [identifier(chance, 40).upper() for _ in range(chance.randrange(1, 4))]
        self.token = "".join(chance.choices("0123456789abcdef", k=32)) if chance.random() < 0.2 else None
        self.kernels, self.lines = [], []
        if chance.random() < 0.2:
            self.lines.append(f"// {identifier(chance, 200)}")
        for macro in self.macros:
            self.lines.append(f"#ifndef {macro}\n#define {macro} {number(chance)}\n#endif")
        if self.token:
            self.lines.append(f"#define T_{self.token} {number(chance)}")
        self.depth = heavy(chance, 1, 3000) if chance.random() < 0.25 else 0
        self.lines += [f"#define N{level} ({f'N{level - 1}' if level else '1'}+1)" for level in range(self.depth)]
        for header in self.headers:
            self.lines.append(f"#include {header}")
        if chance.random() < 0.3:
            self.lines.append(f"constant ulong table[4] = {{{', '.join(str(abs(number(chance))) for _ in range(4))}}};")
            self.table = True
        else:
            self.table = False
        for index in range(1 if is_probe else 1 + (chance.random() < 0.5) + (chance.random() < 0.2)):
            self.kernel(f"{scope}{index}{identifier(chance, 20 if is_probe else 4000)}", PROBED if is_probe else ())

    def kernel(self, name, ways=()):
        """With a statement of each of these kinds, or of some by chance."""
        chance, parameters, arguments = self.chance, ["global ulong *o"], [{"words": WORDS}]
        for kind in chance.sample(["int", "float", "local", "words"], k=chance.choice([0, 0, 1, 2])):
            text, argument = {
                "int": ("const int a", {"int": number(chance)}),
                "float": ("float f", {"float": 0.5}),
                "local": ("local uint *l", {"local": 64}),
                "words": ("global const ulong *restrict w", {"words": 4}),
            }[kind]
            parameters.append(text)
            arguments.append(argument)
        kinds = [next(iter(argument)) for argument in arguments[1:]]
        attribute = chance.choice(["", "", "", "__attribute__((reqd_work_group_size(1, 1, 1))) ", "__attribute__((vec_type_hint(float4))) "])
        self.lines.append(f"{attribute}kernel void {name}({', '.join(parameters)}) {{")
        for word, way in enumerate(ways or [None] * chance.randrange(3, WORDS)):
            self.lines.append(self.statement(word, kinds, way))
        self.lines.append("}")
        self.kernels.append((name, arguments))

    def statement(self, word, kinds, way=None):
        chance = self.chance
        ways = ["math", "math", "builtin", "builtin", "macro", "macro", "predefined", "size"]
        ways += [kind for kind in kinds] + ["table"] * self.table + ["nested"] * bool(self.depth) + ["header"] * bool(self.headers) + ["token"] * bool(self.token)
        way = way or chance.choice(ways)
        if way in ("math", "builtin"):
            name = "__builtin_" if way == "builtin" else ""
            one = [function for function in ONE if way == "math" or function not in ("rsqrt", "exp10")]
            # PoCL's library lacks some functions of double, and such a program is not built at all.
            single = way == "math" and chance.random() < 0.9
            if chance.random() < 0.7:
                value = f"{name}{chance.choice(one)}({real(chance, single)})"
            else:
                value = f"{name}{chance.choice(TWO[:4])}({real(chance, single)}, {real(chance, single)})"
            return f"o[{word}] = as_ulong((double){value});"
        if way == "macro":
            macro = self.macros[word % len(self.macros)]
            return chance.choice([f"o[{word}] = {macro};", f"#if {macro} > 3\no[{word}] = 2;\n#endif"])
        if way == "predefined":
            macro = chance.choice(PREDEFINED)
            return f"#ifdef {macro}\no[{word}] = {macro} + 1;\n#endif"
        return {
            "size": f"o[{word}] = get_global_size(0) + sizeof(size_t);",
            "table": f"o[{word}] = table[get_global_id(0) + {chance.randrange(3)}];",
            "nested": f"o[{word}] = N{self.depth - 1};",
            "header": f"o[{word}] = VALUE_0;",
            "token": f"o[{word}] = T_{self.token};",
            "int": f"o[{word}] = a * 3;",
            "float": f"o[{word}] = as_uint(f * 3.1f + f) + (ulong)(1 / (f * 1e-39f) > 3);",
            "local": f"l[0] = 7; o[{word}] = l[0];",
            "words": f"o[{word}] = w[1] + 5;",
        }[way]

    def text(self):
        return "\n".join(self.lines) + "\n"

    def options(self):
        """Options that fit it, or none."""
        chance, found = self.chance, []
        if chance.random() < 0.15:
            return None
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            found.append(
                chance.choice(
                    [
                        chance.choice(OPTIONS),
                        f"-D{chance.choice(self.macros)}={number(chance)}",
                        f"-D {chance.choice(self.macros)}={number(chance)}",
                        f"-D{chance.choice(self.macros)}",
                        f"-D{identifier(chance, 60)}={self.token or number(chance)}",
                    ]
                )
            )
        return chance.choice([" ", " ", "  "]).join(found)


def header(chance, level=0, includes=None):
    lines = [f"#define VALUE_{level} ({number(chance)}{f' + VALUE_{level + 1}' if includes else ''})"]
    if chance.random() < 0.3:
        lines = [f"#if defined({identifier(chance, 20).upper()})", f"#define VALUE_{level} {number(chance)}", "#else", *lines, "#endif"]
    return "\n".join([f'#include "{includes}"'] * bool(includes) + lines) + "\n"


def source_call(chance, id, text, context="c"):
    """The source in one string or several, cut anywhere."""
    cuts = sorted(chance.choices(range(len(text) + 1), k=chance.choice([0, 0, 0, 1, 3])))
    strings = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)])]
    # A length of zero means that the string ends with its NUL, so that an empty string is one with either.
    lengths = chance.choice(["absent", "zero", "given"]) if all(strings) else "absent"
    return {"call": "source", "id": id, "context": context, "strings": strings, "lengths": lengths}


def kernel_calls(chance, program, text, id):
    """What is done with the kernels of a program that was built."""
    calls, names = [], []
    if chance.random() < 0.3:
        calls.append({"call": "kernels", "id": id, "program": program})
        # Their order is the driver's own, so the arguments may be another kernel's: that is an error, and the same one.
        names = [(f"{id}-{index}", arguments) for index, (_, arguments) in enumerate(text.kernels)]
    else:
        for index, (name, arguments) in enumerate(text.kernels):
            if chance.random() < 0.8:
                calls.append({"call": "kernel", "id": f"{id}-{index}", "program": program, "name": name})
                names.append((f"{id}-{index}", arguments))
    for name, arguments in names:
        if chance.random() < 0.4:
            calls.append({"call": "facts", "object": name})
        if chance.random() < 0.6:
            calls.append({"call": "run", "kernel": name, "arguments": arguments})
    return calls, [name for name, _ in names]


def ask(chance, objects):
    """A query with odd arguments of one of these (name, whether it is a kernel)."""
    name, is_kernel = chance.choice(objects)
    query = chance.choice(["kernel", "argument", "group"] if is_kernel else ["program", "build"])
    # The numbers of the header's queries, and some beside them. What asks for binaries needs an array of pointers.
    param = {
        "program": [0x1160, 0x1161, 0x1162, 0x1163, 0x1164, 0x1165, 0x1167, 0x1168, 0x1169, 0x116A, 0x116B],
        "build": [0x1181, 0x1182, 0x1183, 0x1184, 0x1185],
        "kernel": [0x1190, 0x1191, 0x1192, 0x1193, 0x1194, 0x1195],
        "argument": [0x1196, 0x1197, 0x1198, 0x1199, 0x119A],
        "group": [0x11B0, 0x11B1, 0x11B2, 0x11B3, 0x11B4, 0x11B5],
    }[query]
    call = {"call": "ask", "object": name, "query": query, "param": chance.choice([*param, *param, *param, chance.randrange(0x1150, 0x1200)])}
    if call["param"] == 0x1166:
        call["param"] = 0x1165
    if chance.random() < 0.9:
        call["device"] = "device-0"
    call["index"] = chance.choice([0, 0, 0, 1, 2, 100])
    if chance.random() < 0.5:
        call["more"] = chance.choice([-8, -1, 0, 1, 8])
    else:
        call["size"] = chance.choice([0, 1, 4, 8, 16, 64, 100])
    call["without_value"], call["without_size"] = chance.random() < 0.15, chance.random() < 0.2
    # Logs of builds that fail may have other remarks, and so another length, after a hit; none is as short as this.
    if call["param"] == BUILD_LOG:
        call.pop("more", None)
        call.update(size=chance.choice([0, 1, 4, 8]), without_value=False)
    return call


def built(chance, number_of_programs=None):
    """Programs that are built from source, and kernels that are run."""
    calls, files, texts = [{"call": "context", "id": "c", "devices": ["device-0"]}], {}, []
    for index in range(number_of_programs or chance.choice([1, 1, 2])):
        headers, options = [], []
        if chance.random() < 0.3:
            folder = chance.choice(["", "i/", "i/j/"])
            files[f"{folder}h{index}.h"] = header(chance)
            headers.append(chance.choice([f'"h{index}.h"', f"<h{index}.h>"] if folder else [f'"h{index}.h"']))
            options += [f"-I{chance.choice(['', ' '])}{folder.rstrip('/')}"] if folder else []
            if chance.random() < 0.5:
                options.insert(0, "-I other")
        text = Text(chance, headers, scope=f"k{index}")
        texts.append(text)
        more = text.options()
        options = " ".join([*options, more] if more else options) if options or more is not None else None
        program, id = f"p{index}", f"k{index}"
        calls.append(source_call(chance, program, text.text()))
        calls.append({"call": "build", "program": program, "options": options, "notify": chance.random() < 0.15})
        if chance.random() < 0.6:
            calls.append({"call": "facts", "object": program})
        more, kernels = kernel_calls(chance, program, text, id)
        calls += more
        objects = [(program, False)] + [(kernel, True) for kernel in kernels]
        calls += [ask(chance, objects) for _ in range(chance.choice([0, 0, 1, 3]))]
        calls += ending(chance, program, kernels)
    return {"files": files, "calls": calls}, texts


def probe(chance):
    """A program that shows as much as one can of what is around it."""
    text = Text(chance, is_probe=True)
    [(name, arguments)] = text.kernels
    calls = [
        {"call": "context", "id": "c", "devices": ["device-0"]},
        source_call(chance, "p", text.text()),
        {"call": "build", "program": "p", "options": chance.choice([None, "", chance.choice(OPTIONS)]), "notify": False},
        {"call": "facts", "object": "p"},
        {"call": "kernel", "id": "k", "program": "p", "name": name},
        {"call": "facts", "object": "k"},
        {"call": "run", "kernel": "k", "arguments": arguments},
    ]
    return {"files": {}, "calls": calls}


def ending(chance, program, kernels):
    """Releases in any order, or none."""
    if chance.random() < 0.3:
        return []
    calls = [{"call": "release", "object": name} for name in [program, *kernels]]
    if chance.random() < 0.4:
        chance.shuffle(calls)
    return calls


def composed(chance):
    """Programs that are compiled with embedded headers and linked together, and each kernel that comes of it."""
    calls, texts, inputs = [{"call": "context", "id": "c", "devices": ["device-0"]}], [], []
    for index in range(chance.choice([1, 2, 2, 3])):
        program, names = f"p{index}", chance.choice([[], ["e.h"], ["e.h"], ["e.h", "i/f.h"], ["i/f.h", "e.h"]])
        text = Text(chance, ['"e.h"'] if names else [], scope=f"s{index}")
        headers = []
        for name in names:
            # What e.h includes is the other one.
            includes = "i/f.h" if name == "e.h" and len(names) > 1 and chance.random() < 0.7 else None
            headers.append([name, f"h{index}{len(headers)}"])
            calls.append(source_call(chance, headers[-1][1], header(chance, int(name != "e.h"), includes)))
        calls.append(source_call(chance, program, text.text()))
        calls.append({"call": "compile", "program": program, "options": text.options(), "headers": headers, "notify": chance.random() < 0.1})
        texts.append(text)
        inputs.append(program)
    for id in ["l0", "l1"][: chance.choice([1, 1, 2])]:
        options = chance.choice([None, "", "-create-library", chance.choice(OPTIONS)])
        calls.append({"call": "link", "id": id, "context": "c", "options": options, "inputs": inputs[:], "notify": chance.random() < 0.1})
        # A library is an input of the next link, and the others in another order.
        inputs = [id] if options == "-create-library" else inputs[::-1]
        calls.append({"call": "facts", "object": id})
        for index, text in enumerate(texts):
            for number, (name, arguments) in enumerate(text.kernels):
                kernel = f"k{id}{index}{number}"
                calls.append({"call": "kernel", "id": kernel, "program": id, "name": name})
                calls.append({"call": "run", "kernel": kernel, "arguments": arguments})
    return {"files": {}, "calls": calls}, texts


def sequence(chance):
    """Calls on a few programs in any order: sources, compiles, links, builds again, kernels that live meanwhile."""
    calls, texts = [{"call": "context", "id": "c", "devices": ["device-0"]}], {}
    kernels, programs, counts = {}, [], {"p": 0, "k": 0, "h": 0}

    def new(letter):
        counts[letter] += 1
        return f"{letter}{counts[letter]}"

    def add_source():
        # What is included must be given to each compile, and is absent in a build.
        id, text = new("p"), Text(chance, ['"e.h"'] if chance.random() < 0.2 else [], scope=f"s{counts['p']}")
        texts[id] = [text]
        programs.append(id)
        calls.append(source_call(chance, id, text.text()))
        return id

    def add_compile(program=None):
        program = program or chance.choice(programs)
        headers = []
        if texts[program][0].headers and chance.random() < 0.9:
            for name in chance.choice([["e.h"], ["e.h", "f.h"], ["f.h", "e.h"]]):
                id = new("h")
                calls.append(source_call(chance, id, header(chance)))
                headers.append([name, id])
        options = chance.choice([None, "", texts[program][0].options()])
        calls.append({"call": "compile", "program": program, "options": options, "headers": headers, "notify": chance.random() < 0.1})
        return program

    def add_link():
        inputs = chance.sample(programs, k=min(len(programs), chance.choice([1, 1, 1, 2])))
        if chance.random() < 0.8:
            for program in inputs:
                add_compile(program)
        id = new("p")
        texts[id] = [text for program in inputs for text in texts[program]]
        options = chance.choice([None, "", "-create-library", chance.choice(OPTIONS)])
        calls.append({"call": "link", "id": id, "context": "c", "options": options, "inputs": inputs, "notify": chance.random() < 0.1})
        programs.append(id)
        add_kernel(id)

    def add_build():
        program = chance.choice(programs)
        options = chance.choice([None, "", texts[program][0].options()])
        calls.append({"call": "build", "program": program, "options": options, "notify": chance.random() < 0.1})
        if chance.random() < 0.7:
            add_kernel(program)

    def add_kernel(program=None):
        program = program or chance.choice(programs)
        name, arguments = chance.choice(chance.choice(texts[program]).kernels)
        id = new("k")
        kernels[id] = arguments
        calls.append({"call": "kernel", "id": id, "program": program, "name": name})
        if chance.random() < 0.3:
            calls.append({"call": "run", "kernel": id, "arguments": arguments})

    def add_other():
        objects = [(name, False) for name in programs] + [(name, True) for name in kernels]
        name, is_kernel = chance.choice(objects)
        way = chance.choice(["facts", "facts", "ask", "ask", "release", "retain", "run", "clone", "kernels", "unload", "context"])
        if way == "ask":
            calls.append(ask(chance, objects))
        elif way in ("facts", "release", "retain"):
            calls.append({"call": way, "object": name})
        elif way == "context":
            calls.append({"call": "facts", "object": "c"})
        elif way == "unload":
            calls.append({"call": "unload"})
        elif way == "kernels" and not is_kernel:
            calls.append({"call": "kernels", "id": new("k"), "program": name, **({"room": chance.randrange(4)} if chance.random() < 0.5 else {})})
        elif is_kernel and way == "run":
            calls.append({"call": "run", "kernel": name, "arguments": kernels[name]})
        elif is_kernel:
            id = new("k")
            kernels[id] = kernels[name]
            calls.append({"call": "clone", "id": id, "kernel": name})

    add_source()
    for _ in range(chance.randrange(3, 14)):
        chance.choice([add_source, add_compile, add_link, add_link, add_build, add_build, add_kernel, add_other, add_other, add_other])()
    return {"files": {}, "calls": calls}, [text for list in texts.values() for text in list]
