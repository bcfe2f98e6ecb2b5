"""Parts of a release that are written, not built.

release_parts.py sbom MANIFEST     prints what is linked in, as a software bill of materials in CycloneDX 1.5
release_parts.py changes VERSION   prints the section of this version in CHANGELOG.md
"""

import datetime
import json
import os
import pathlib
import re
import sys

import check_licenses
import notices

TOP = pathlib.Path(__file__).resolve().parent.parent


def purl(name, version):
    """
    >>> purl("a-b", "1.0.0+x")
    'pkg:cargo/a-b@1.0.0%2Bx'
    """
    return f"pkg:cargo/{name}@{version.replace('+', '%2B')}"


def checksums(manifest):
    """The checksum of each crate's package, by name and version, as the lockfile beside a manifest has them."""
    found = {}
    for block in manifest.with_name("Cargo.lock").read_text().split("[[package]]"):
        fields = dict(re.findall(r'^(\w+) = "([^"]*)"$', block, re.MULTILINE))
        if "checksum" in fields:
            found[fields["name"], fields["version"]] = fields["checksum"]
    return found


def component(package, checksum):
    name, version = package["name"], package["version"]
    found = {"type": "library", "bom-ref": purl(name, version), "name": name, "version": version, "purl": purl(name, version)}
    if package.get("license"):
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


def sbom(manifest):
    metadata = json.loads(check_licenses.output("cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", str(manifest)))
    root = metadata["resolve"]["root"]
    packages = {package["id"]: package for package in metadata["packages"]}
    linked = {(name, version.removeprefix("v")) for name, version in notices.linked(manifest)}
    sums = checksums(manifest)
    reference = lambda package: purl(package["name"], package["version"])
    inside = {key: package for key, package in packages.items() if (package["name"], package["version"]) in linked or key == root}
    missing = linked - {(package["name"], package["version"]) for package in inside.values()}
    if missing:
        sys.exit(f"cargo metadata does not know {sorted(missing)}")
    components = [component(package, sums.get((package["name"], package["version"]))) for key, package in inside.items() if key != root]
    nodes = {node["id"]: node["dependencies"] for node in metadata["resolve"]["nodes"]}
    dependencies = [{"ref": reference(package), "dependsOn": sorted(reference(inside[it]) for it in nodes[key] if it in inside)} for key, package in inside.items()]
    when = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": {**component(packages[root], None), "type": "application"}},
        "components": sorted(components, key=lambda it: it["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda it: it["ref"]),
    }


def changes(text, version):
    """
    >>> changes("# C\\n## [Unreleased]\\n## [1.1] - 2026-01-02\\n\\n- b\\n\\n## [1.0] - 2026-01-01\\n- a\\n", "1.1")
    '- b'
    >>> changes("## [1.1] - 2026-01-02\\n- b\\n", "1.1"), changes("## [1.10] - 2026-01-02\\n- b\\n", "1.1")
    ('- b', '')
    """
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def main():
    what, of = sys.argv[1:]
    if what == "sbom":
        return print(json.dumps(sbom(pathlib.Path(of)), indent=1))
    print(changes((TOP / "CHANGELOG.md").read_text(), of))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("sbom", "changes"):
        sys.exit(__doc__)
    main()
