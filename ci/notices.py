"""Writes the notices of all that is linked into a package: the crates, what they bring along, and Rust's own library.

notices.py MANIFEST FILE
"""

import html.parser
import pathlib
import re
import subprocess
import sys

import check_licenses

NAMES = re.compile(r"(licen[cs]e|unlicense|copying|copyright|notice)([-._].*)?$", re.IGNORECASE)


def is_notice(name):
    """Whether a file of this name holds a license or a notice.

    >>> [is_notice(name) for name in ("LICENSE-MIT", "COPYING", "LICENSE.BSD-3-Clause", "NOTICE", "UNLICENSE", "License.txt")]
    [True, True, True, True, True, True]
    >>> [is_notice(name) for name in ("licenses.rs", "notices.py", "README.md", "copyright_test.c")]
    [False, False, False, False]
    """
    return bool(NAMES.match(name)) and not name.endswith((".rs", ".c", ".h", ".py"))


def same(text):
    """What is compared of two texts: their words.

    >>> same("a  b\\n c") == same("A b c\\n")
    True
    """
    return " ".join(text.lower().split())


class Text(html.parser.HTMLParser):
    """The text of a page.

    >>> Text().of("<style>p {}</style><h1>Title</h1><p>One &amp;\\ntwo</p>").strip()
    'Title\\n\\nOne &\\ntwo'
    """

    def __init__(self):
        super().__init__()
        self.parts, self.hidden = [], 0

    def handle_starttag(self, tag, attributes):
        self.hidden += tag in ("style", "script")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("style", "script")
        if tag in ("p", "h1", "h2", "h3", "h4", "li", "pre", "summary", "title"):
            self.parts.append("\n\n")

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(data)

    def of(self, page):
        self.feed(page)
        return re.sub(r"\n\s*\n\s*\n+", "\n\n", "".join(self.parts))


def linked(manifest):
    """The names and versions of the crates whose code is in the release; those that only work while it is compiled are not."""
    argv = ("cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--manifest-path", str(manifest))
    lines = check_licenses.output(*argv).splitlines()
    return {tuple(line.split()[:2]) for line in lines if line}


def of_library():
    """The notices of Rust's own library, as the toolchain has them."""
    root = pathlib.Path(check_licenses.output("rustc", "--print", "sysroot").strip())
    for page in (root / "share/doc/rust/COPYRIGHT-library.html", root / "share/doc/rust/COPYRIGHT"):
        if page.exists():
            text = page.read_text()
            return Text().of(text) if page.suffix == ".html" else text
    sys.exit(f"no notices of Rust's library below {root}/share/doc/rust: install the toolchain by rustup")


def main():
    manifest = sys.argv[1]
    names = linked(manifest)
    packages = [package for package in check_licenses.dependencies(manifest) if (package["name"], "v" + package["version"]) in names]
    texts, of_crate, without = {}, [], []
    for package in sorted(packages, key=lambda package: package["name"]):
        folder = pathlib.Path(package["manifest_path"]).parent
        found = sorted(path for path in folder.rglob("*") if path.is_file() and is_notice(path.name))
        if not found:
            without.append(f"{package['name']} {package['version']}")
        numbers = []
        for path in found:
            text = path.read_text(errors="replace")
            number, _ = texts.setdefault(same(text), (len(texts) + 1, text))
            numbers.append(number)
        of_crate.append((package, sorted(set(numbers))))
    if without:
        sys.exit("no license file in the packages of these crates, so no notice can be given: " + ", ".join(without))
    lines = ["What is linked into oclcache beside its own code, under which licenses, and their texts.", ""]
    for package, numbers in of_crate:
        where = ", ".join(str(number) for number in numbers)
        lines += [f"{package['name']} {package['version']}: {package['license']}; texts {where}"]
    lines += ["Rust's own library: below, behind the texts", ""]
    for number, text in texts.values():
        lines += ["=" * 78, f"Text {number}", "", text.strip(), ""]
    lines += ["=" * 78, "Rust's own library", "", of_library().strip()]
    pathlib.Path(sys.argv[2]).write_text("\n".join(lines) + "\n")
    print(f"{len(of_crate)} crates, {len(texts)} texts")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
