"""Runs the steps of the composite action with a home of its own; see ci/action/test. Needs PyYAML.

run_action.py FOLDER
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
ACTION = TOP / "ci/action/action.yml"
PROGRAM = "clpeak --kernel-latency"


def filled(text, inputs):
    """
    >>> filled("a ${{ inputs.x-y }} b", {"x-y": "1"})
    'a 1 b'
    """
    return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)


def job(action, home, given):
    """Runs the steps of one job; the statuses of those with `run`, as far as they come, and all that they say.

    The steps that restore and save are GitHub's. What they do here is to keep the directory of the cache.
    """
    inputs = {name: str(it.get("default", "")) for name, it in action["inputs"].items()} | given
    environment = {"HOME": str(home), "PATH": f"{TOP / 'target/release'}:{os.environ['PATH']}", "CI": "true", "GITHUB_ACTION_PATH": str(ACTION.parent)}
    # Only PoCL: the program fails if one of its platforms has no device.
    environment["OCL_ICD_VENDORS"] = os.environ["OCLCACHE_TEST_POCL"]
    statuses, said = [], ""
    for step in action["runs"]["steps"]:
        if "uses" in step:
            if not step["uses"].startswith("actions/cache/"):
                sys.exit(f"FAILED  a step that is not known here: {step['uses']}")
            continue
        # A step without `if` needs the success of those before.
        if any(statuses) and "if" not in step:
            continue
        variables = {name: filled(str(value), inputs) for name, value in step.get("env", {}).items()}
        if "${{" in step["run"]:
            sys.exit("FAILED  an input in a line of shell, where it could be a command")
        shutil.rmtree(home / "pocl", ignore_errors=True)
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(argv, env={**environment, **variables, "POCL_CACHE_DIR": str(home / "pocl")}, cwd=home, capture_output=True, text=True, check=False)
        statuses.append(done.returncode)
        said += done.stdout + done.stderr
    return statuses, said


def expect(condition, words, said):
    if not condition:
        sys.exit(f"FAILED  {words}\n{said[-3000:]}")
    print(f"ok      {words}", flush=True)


def main():
    # Not of every Python that runs the doctests.
    import yaml

    action = yaml.safe_load(ACTION.read_text())
    home = pathlib.Path(sys.argv[1])
    statuses, said = job(action, home, {"run": PROGRAM})
    expect(statuses == [0, 0, 0] and re.search(r" 0 hits, \d+ miss", said), "the first job compiles and bakes", said)
    # A restored cache may be writable for others.
    subprocess.run(["chmod", "-R", "g+w", home / ".cache/oclcache"], check=True)
    statuses, said = job(action, home, {"run": PROGRAM, "must-hit": "true"})
    expect(statuses == [0, 0, 0] and re.search(r" \d+ hits?, 0 misses", said), "the second job is served, and nothing is compiled", said)
    statuses, said = job(action, home, {"run": "exit 7"})
    expect(statuses == [0, 7, 0], "a program that fails fails the job, which keeps its cache", said)
    shutil.rmtree(home / ".cache")
    statuses, said = job(action, home, {"run": PROGRAM, "must-hit": "true"})
    expect(statuses == [0, 125, 0] and "OCLCACHE_MUST_HIT: compiled" in said, "with an empty cache a compilation fails the job", said)
    statuses, said = job(action, home, {"run": PROGRAM, "must-hit": "maybe"})
    expect(statuses == [0, 2, 0], "a wrong input is refused", said)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
