"""Make .venv and install one set of packages into it, or check an environment that the user names.

Called by the Makefile: python3 scripts/setup.py SET [PYTHON], where SET is lean, lab, test, gpu or auto (gpu
where an NVIDIA driver new enough is found, else lean). A stamp in .venv makes the second call immediate.
Whatever goes wrong is said in one sentence. An old Python can read this syntax, and so refuse.
"""

from __future__ import print_function

import os
import subprocess
import sys

OLDEST = (3, 11)
NEWEST_MAJOR_DRIVER_NEEDED = 580  # CUDA 13
GIGABYTES = {
    "lean": 0.7,
    "lab": 1.0,
    "test": 1.8,
    "gpu": 9.0,
}  # of a fresh environment, with room for pip's own files
# What pip says where it gets no connection, or none through its proxy.
UNREACHED = ("NewConnectionError", "NameResolutionError", "ProxyError", "ConnectTimeoutError", "SSLError")
UV = "uv==0.13.9"
TESTS_WRITE = 0.3  # GB, into build/ and the temporary folder: linters and compilers name a full disk badly
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")

CHECK = """
import importlib.metadata as metadata, json, re, sys
lacking = []
for name in json.loads(sys.argv[1]):
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        lacking.append(name)
print(" ".join(lacking))
"""


def stop(sentence):
    print("rooflab: " + sentence, file=sys.stderr)
    sys.exit(1)


def refuse_old(version, python):
    if tuple(version[:2]) < OLDEST:
        stop(
            "%s is Python %d.%d and rooflab needs %d.%d or newer: install one and name it, as in "
            "`make BASE=python3.12 report`." % ((python,) + tuple(version[:2]) + OLDEST)
        )


def refuse_unwritable(place):
    if not os.access(place, os.W_OK):
        stop("you may not write into %s: work in a copy of the course that is yours." % place)


def requirements(set_name):
    return os.path.join(ROOT, "requirements.txt" if set_name == "lean" else "requirements-%s.txt" % set_name)


def has_cuda_packages():
    """Whether the CUDA packages exist for this platform: Linux and Windows on x86-64."""
    import platform

    return sys.platform != "darwin" and platform.machine().lower() in ("x86_64", "amd64")


def wanted(set_name):
    """The distributions that pyproject.toml asks for by name in this set, platform markers left to pip."""
    import re
    import tomllib

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    sets, lines, left = project["optional-dependencies"], list(project["dependencies"]), [set_name]
    while left:
        for line in sets.get(left.pop(), []):
            inner = re.match(r"rooflab\[(.*)\]", line)  # another set, whole
            left += inner.group(1).split(",") if inner else []
            lines += [] if inner else [line]
    here = [line for line in lines if ";" not in line or has_cuda_packages()]
    return [re.match(r"[\w.-]+", line).group(0) for line in here]


def check_ready(python, set_name):
    """Refuse an environment that lacks part of the set; nothing is installed into it."""
    import json

    try:
        said = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
        version = [int(part) for part in said.stdout.split()]
    except (OSError, ValueError):
        version = []
    if len(version) != 2:
        stop(
            "PYTHON=%s does not run as a Python: give the path of an interpreter, or leave PYTHON out."
            % python
        )
    refuse_old(version, python)
    lacking = subprocess.run(
        [python, "-c", CHECK, json.dumps(wanted(set_name))], capture_output=True, text=True
    ).stdout.split()
    if lacking:
        stop(
            "PYTHON=%s lacks %s: run `%s -m pip install -r %s`, or leave PYTHON out and make builds .venv."
            % (python, ", ".join(lacking), python, os.path.basename(requirements(set_name)))
        )


def driver_version():
    """The NVIDIA driver's version as text, or "" where no GPU answers."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.split()[0] if said.returncode == 0 and said.stdout.split() else ""


def choose_set(driver):
    """gpu or lean, with a sentence where a GPU is found that the pinned gpu set can't drive."""
    if not driver or not has_cuda_packages():
        return "lean"
    if int(driver.split(".")[0]) < NEWEST_MAJOR_DRIVER_NEEDED:
        print(
            "rooflab: driver %s is older than R%d, so recordings are replayed: update the driver, or for the "
            "CUDA 12 line run `.venv/bin/pip install cupy-cuda12x==14.2.0 'cuda-bindings==12.*' "
            "'nvidia-cuda-nvrtc-cu12==12.9.*' 'nvidia-cuda-runtime-cu12==12.9.*' "
            "'nvidia-cuda-nvcc-cu12==12.9.*'` and then `.venv/bin/rooflab report --mode live`."
            % (driver, NEWEST_MAJOR_DRIVER_NEEDED),
            file=sys.stderr,
        )
        return "lean"
    return "gpu"


def fingerprint():
    """What an installed set depends on: the pinned lists, pyproject.toml, this Python and this folder."""
    import hashlib

    digest = hashlib.sha256((sys.version + ROOT).encode())
    for name in sorted(os.listdir(ROOT)):
        if name == "pyproject.toml" or (name.startswith("requirements") and name.endswith(".txt")):
            with open(os.path.join(ROOT, name), "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


def sources(python):
    """Where pip is told to get packages from, as options that uv has by the same names."""
    import ast

    said = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = []
    for line in said.splitlines():
        name, _, value = line.partition("=")
        option = name.rsplit(".", 1)[-1]
        if option in ("index-url", "extra-index-url", "find-links"):
            for place in ast.literal_eval(value).split():
                found += ["--" + option, place]
        elif option == "no-index":
            found.append("--no-index")
    return found


def fill(python, wanted, log):
    """Install what is wanted, and whether that went well; the log holds the last program's words. uv does on
    all cores in seconds what takes pip a minute. Where uv can't be had or fails, pip is asked.
    """
    import shutil

    def runs(*arguments):
        with open(log, "w") as file:
            command = [python, "-m"] + list(arguments)
            return subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode == 0

    # Modules are compiled when first imported: all of them at once would take most of the time.
    pip = ["pip", "install", "--no-compile"]
    if runs(*(pip + ["--retries", "1", UV])):
        cache = os.path.join(VENV, "uv")  # on the disk of what is installed, so that files are not copied
        taken = ["--python", python, "--cache-dir", cache, "--index-strategy", "unsafe-best-match"]
        done = runs(*(["uv", "pip", "install"] + taken + sources(python) + wanted))
        shutil.rmtree(cache, ignore_errors=True)
        if done:
            return True
    return runs(*(pip + wanted))


def install(set_name):
    """Bring .venv to the set unless its stamp says that it is there already."""
    import importlib.util
    import shutil

    stamp = os.path.join(VENV, "rooflab-%s.stamp" % set_name)
    now = fingerprint()
    try:
        with open(stamp) as file:
            if file.read() == now:
                return
    except OSError:
        pass
    python = os.path.join(VENV, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
    refuse_unwritable(VENV if os.path.isdir(VENV) else ROOT)
    try:
        if not os.path.exists(python):
            if any(importlib.util.find_spec(module) is None for module in ("venv", "ensurepip")):
                stop(
                    "this Python (%s) has no venv module: install it (Debian and Ubuntu: "
                    "`apt-get install python3-venv`), or name a ready environment with PYTHON=..."
                    % sys.executable
                )
            free = shutil.disk_usage(ROOT).free / 1e9
            if free < GIGABYTES[set_name]:
                stop(
                    "the %s set needs about %.1f GB under %s and %.1f GB are free: make room there."
                    % (set_name, GIGABYTES[set_name], ROOT, free)
                )
            print("making .venv with Python %d.%d" % sys.version_info[:2], flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        print("installing the %s set into .venv (once)" % set_name, flush=True)
        log = os.path.join(VENV, "rooflab-setup.log")
        if not fill(python, ["-r", requirements(set_name), "-e", ROOT], log):
            with open(log, errors="replace") as file:
                lines = file.read().splitlines()
            if any("No space left on device" in line for line in lines):
                stop(
                    "the disk under %s is full: the %s set needs about %.1f GB."
                    % (VENV, set_name, GIGABYTES[set_name])
                )
            if any(sign in line for line in lines for sign in UNREACHED):
                stop(
                    "pip reaches no package index, which the %s set needs once: connect this machine, then "
                    "give the same command again, or name a ready environment with PYTHON=... "
                    "(pip's words: %s)" % (set_name, log)
                )
            errors = [line.strip() for line in lines if line.strip().upper().startswith("ERROR:")]
            errors = errors or lines[-1:] or ["no message"]
            stop("pip could not install the %s set: %s (all of it: %s)" % (set_name, errors[-1], log))
        with open(stamp, "w") as file:
            file.write(now)
    except OSError as error:
        stop("could not make %s: %s." % (VENV, error.strerror or error))
    except subprocess.CalledProcessError:
        stop("`%s -m venv %s` failed; its own message stands above." % (sys.executable, VENV))


def check_room():
    """Refuse to test where nothing can be written, or build/ or the temporary folder has too little room."""
    import shutil
    import tempfile

    refuse_unwritable(ROOT)

    try:
        places = (ROOT, tempfile.gettempdir())
    except OSError:
        stop("no temporary folder can be written to: make room in /tmp, or name another in TMPDIR.")
    for place in places:
        free = shutil.disk_usage(place).free / 1e9
        if free < TESTS_WRITE:
            stop(
                "the tests write about %.1f GB under %s and %.1f GB are free: make room there."
                % (TESTS_WRITE, place, free)
            )


def main(arguments):
    refuse_old(sys.version_info, sys.executable or "this")
    set_name = arguments[0] if arguments else "lean"
    if set_name not in ("auto", "lean", "lab", "test", "gpu"):
        stop("there is no set %s: name lean, lab, test, gpu or auto." % set_name)
    if len(arguments) > 1 and arguments[1]:
        check_ready(arguments[1], "lean" if set_name == "auto" else set_name)
    else:
        install(choose_set(driver_version()) if set_name == "auto" else set_name)
    if set_name == "test":
        check_room()


if __name__ == "__main__":
    main(sys.argv[1:])
