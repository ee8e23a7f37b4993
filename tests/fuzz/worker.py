"""The process that runs cases: it calls the command line's `main`, and compares what comes of it with the case."""

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import stat
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

from surefoot.errors import InputError
from surefoot.text import sentence
from tests.fuzz.cases import family_of
from tests.fuzz.steps import ANY, EITHER, REFUSED, VALID, Place
from tests.fuzz.users import as_a_user

MEMORY = 6 * 2**30  # address space that a worker may take beyond what its libraries take
UNEXPECTED = 3  # the exit code of a saved traceback
ODD_NAMES = {
    1: "\udcff",
    2: " \u202e\u200b[b]é",
    3: "\x1b[31m\n",
    4: "=1+1;'",
}  # of the folders of some cases


class Worker:
    """Runs cases in this process."""

    def __init__(self, base, scratch, seed, *, family=None, announce=lambda _: None, verbose=False):
        self.base, self.scratch, self.seed, self.verbose = Path(base), Path(scratch), seed, verbose
        self.announce, self.family = announce, family
        import typer

        import surefoot.cli
        from surefoot.cli.app import app

        self.main = surefoot.cli.main
        surefoot.cli.app = typer.main.get_command(app)  # built once; it is most of a short command's time
        warnings.simplefilter("error")
        os.environ |= {"COLUMNS": "100", "TMPDIR": str(self.scratch)}
        os.environ["SUREFOOT_CACHE"] = str(self.scratch / "cache")
        tempfile.tempdir = str(self.scratch)

    def run(self, number):
        """One case: how many commands it ran, and the failures among them."""
        rng = np.random.default_rng([self.seed, number])
        folder = self.scratch / f"case{number}{ODD_NAMES.get(number % 30, '')}"
        folder.mkdir()
        family = family_of(rng, self.family)
        result = {"case": number, "family": family.__name__, "failures": []}
        result |= dict.fromkeys(("commands", "refused", "compared"), 0)
        start, searched = time.process_time(), list(sys.path)
        os.chdir(folder)
        try:
            steps, code = family(Place(folder, self.base), rng), None
            with contextlib.suppress(StopIteration):
                while True:
                    code = self._step(steps.send(code), folder, result)
        except Exception:  # noqa: BLE001 the generator's own mistake must not end the run unseen
            result["failures"].append(("traceback", ["the fuzzer itself"], traceback.format_exc()[-1500:]))
        os.chdir(self.base)
        sys.path[:] = searched  # commands search the current folder for own code
        result["seconds"] = time.process_time() - start
        if not self.verbose:
            remove(folder)
        return result

    def _step(self, step, folder, result):
        self.announce({"words": [str(word) for word in step.words]})
        before = _snapshot(folder)
        with as_a_user(step.umask):
            code, out, err, trace = self._command(step)
        result["commands"] += 1
        words = [str(word) for word in step.words]
        if self.verbose:
            sys.stdout.write(f"{words}\n-> {code}\n{out}{err}{trace or ''}\n")

        def fail(kind, detail):
            result["failures"].append((kind, words, detail))

        if trace or code == UNEXPECTED:
            fail("traceback", trace or err[-600:])
            return code
        refused = code == 2
        result["refused"] += refused
        allowed = {VALID: {0}, EITHER: {0, 2}, ANY: {0, 2}, REFUSED: {2}}[step.expect]
        allowed |= {1} if step.may_fail else set()
        if code not in allowed:
            fail("wrong exit", f"exit code {code}, allowed {sorted(allowed)}: {err[-300:]}")
        if refused and (problem := _unclear(err)):
            fail("unclear refusal", problem)
        if refused and step.says and not any(words in err for words in step.says):
            fail("unclear refusal", f"none of {step.says}: {err[-300:]!r}")
        outputs = step.caches if refused else step.writes
        if outputs is not None:
            after = _snapshot(folder)
            differ = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
            paths = [
                path
                for path in (folder / name for name in differ)
                if {path, *path.parents}.isdisjoint(outputs)
            ]
            if paths:
                fail("file changed", f"{paths[0]} and {len(paths) - 1} more (exit code {code})")
        if code in (0, 1) and code in allowed and step.expect in (VALID, EITHER):
            result["compared"] += 1
            if problem := step.check(out):
                fail("wrong number", problem)
            if step.notes and not any(note in " ".join((out + err).split()) for note in step.notes):
                fail("no warning", f"none of {step.notes}: {err[-300:]!r}")
        return code

    def _command(self, step):
        """Exit code, standard output, standard error, and the traceback of an exception that is no refusal."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        sys.argv = ["surefoot", *map(str, step.words)]
        code, trace = 0, None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                if step.call is None:
                    self.main()
                else:
                    with warnings.catch_warnings():
                        warnings.simplefilter("always")  # printed, for a step's notes
                        sys.stdout.write(step.call() or "")
            except SystemExit as ended:
                code = ended.code or 0
            except InputError as error:
                code = 2
                sys.stderr.write(f"surefoot: {sentence(str(error))}\n")
            except BaseException as error:  # noqa: BLE001 whatever escapes is what we look for
                last = traceback.extract_tb(error.__traceback__)[-1]
                ours = [f for f in traceback.extract_tb(error.__traceback__) if "surefoot" in f.filename][-2:]
                at = "; ".join(f"{Path(f.filename).name}:{f.lineno}" for f in (*ours, last))
                code, trace = 1, f"{type(error).__name__}: {str(error)[:300]} at {at}"
        # What Python's own printing cannot encode is not shown here: sys.stderr of a real process escapes it.
        texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
        return code, *texts, trace


def _unclear(err):
    """What is wrong with the words of a refusal: it is one printable line, or the usage of a command."""
    if "Usage:" in err:
        return None
    lines = [line for line in err.split("\n") if line and not line.startswith("note: ")]
    if not lines or not lines[-1].startswith("surefoot: "):
        return f"no sentence: {err[-300:]!r}"
    if sum(line.startswith("surefoot: ") for line in lines) != 1 or len(lines) != 1:
        return f"several lines: {err[-300:]!r}"
    if not lines[0].isprintable():
        return f"control characters: {lines[0][:300]!r}"
    if len(lines[0]) > 8000:
        return f"{len(lines[0])} characters: {lines[0][:100]!r}"
    return None


def _snapshot(folder):
    """Every name below a folder with its type and content."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            content = ""
            if stat.S_ISREG(mode):
                is_readable = os.access(path, os.R_OK)  # an ordinary user may not
                content = (
                    hashlib.sha256(path.read_bytes()).hexdigest() if is_readable else path.stat().st_mtime_ns
                )
            elif stat.S_ISLNK(mode):
                content = str(path.readlink())
            found[str(path.relative_to(folder))] = (stat.S_IFMT(mode), content)
    return found


def remove(folder):
    """Remove a folder and all in it, also what may not be entered."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder)


def work(arguments):
    """A worker's life: announce each case on the pipe, run it, report it."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)

    def announce(message):
        pipe.write(json.dumps(message) + "\n")

    options = {"family": arguments.family, "announce": announce}
    worker = Worker(arguments.base, arguments.scratch, arguments.seed, **options)
    with open("/proc/self/statm") as pages:  # noqa: PTH123 it is one line
        now = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    for number in range(arguments.first, arguments.end, arguments.stride):
        announce({"begin": number})
        announce(worker.run(number))
