"""Cases of an ordinary user: files and folders without permission, and the modes of what is written."""

import contextlib
import ctypes
import os
import struct

from tests.fuzz.inputs import draw, pick, write
from tests.fuzz.steps import ANY, REFUSED, SUFFIXES, VALID, Step, may_fail

CAPABILITIES = struct.pack("Ii", 0x20080522, 0)  # version 3, this thread
SECUREBITS, NO_FIXUP = 28, 4  # or access() would answer for a root user with all capabilities
MASKS = (0o022, 0o022, 0o077, 0o027, 0o002, 0)


@contextlib.contextmanager
def as_a_user(umask):
    """Without root's right to read and write everything, and with that umask; None: as it is."""
    if umask is None:
        yield
        return
    libc, before, data = ctypes.CDLL(None, use_errno=True), os.umask(umask), ctypes.create_string_buffer(24)
    libc.capget(CAPABILITIES, data)
    libc.prctl(SECUREBITS, NO_FIXUP, 0, 0, 0)
    _, permitted, inherited, *rest = struct.unpack("6I", data.raw)
    libc.capset(CAPABILITIES, struct.pack("6I", 0, permitted, inherited, 0, *rest[1:]))
    try:
        yield
    finally:
        libc.capset(CAPABILITIES, data)
        os.umask(before)


def ordinary_user(place, rng):
    """What a command writes has the modes of the umask; without permission it is refused."""
    umask = pick(rng, MASKS)
    bundle, task = place.base / "bundle", place.base / "task/task.toml"
    store = ("--store", place.base / "run/store")
    drawn = draw(rng, many=False, members=1, n=60, classes=3)
    val, out = place / f"val{pick(rng, SUFFIXES)}", place / "out"
    write(drawn, val, rng)
    out.mkdir()
    suffix, image = pick(rng, SUFFIXES), place.base / "run/images/part0/000.png"
    commands = [
        ("calibrate", val, "-o", out / "c.json", "--force"),
        ("apply", place.base / "documents/temperature.json", val, "-o", out / f"a{suffix}"),
        ("evaluate", val, "--resamples", 0, "--report", out / "report.html"),
        ("thresholds", val, "--target-error", 0.9, "-o", out / "t.json", "--html", out / "t.html"),
        ("sets", val, "-o", out / "s.json"),
        ("monitor", val, val, "-o", out / "m.html", "--history", out / "h.jsonl"),
        ("predict", bundle, image, "-o", out / "p.csv", "--device", "cpu"),
        ("predictions", "tiny", "single", "-o", out / "p", *store),
        ("bundle", "tiny", "single", "-o", out / "b", "--resamples", 0, *store),
        ("bundle", "tiny", "single", "-o", out / "deep/b", "--resamples", 0, "--store", place.base / "own/run/store"),
        ("data", "check", task, "--resolved", out / "split.csv"),
        ("train", "toy/wave", "--set", "epochs=1", "--set", "network=mlp", "--store", out / "store"),
    ]  # fmt: skip
    words = pick(rng, commands[:-1]) if rng.random() < 0.99 else commands[-1]  # which starts processes
    known = {"umask": umask, "may_fail": may_fail(words)}
    locked = pick(rng, ["nothing", "nothing", "output", "input"])
    if locked == "nothing" or words[0] == "train":  # whose processes have root's rights again
        check = lambda _: _wrong_mode(out, umask)  # noqa: E731
        expect = place.bundles if "bundle" in words[0] else VALID
        done = yield Step(words, expect, check, writes=(out,), **known)
        if done in (0, 1) and words[0] in ("bundle", "apply", "predict"):  # the one who wrote it can use it
            yield from _used(place, words, image, known)
        return
    if locked == "input" and val in words:
        val.chmod(pick(rng, [0, 0o200]))
    else:
        out.chmod(pick(rng, [0, 0o400, 0o500]))
    yield Step(words, REFUSED, **known)
    out.chmod(0o700)
    val.chmod(0o600)


def _used(place, words, image, known):
    target = words[words.index("-o") + 1]
    if words[0] == "bundle":
        words = ("predict", target, image, "-o", place / "used.csv", "--device", "cpu", "--allow-code")
    else:
        words = ("evaluate", target, "--resamples", 0, "--metric", "entropy")
    yield Step(words, place.bundles if words[0] == "predict" else ANY, writes=(place / "used.csv",), **known)


def _wrong_mode(folder, umask):
    """The first file or folder that has other modes than a program that sets none."""
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode & 0o7777
        wanted = (0o777 if path.is_dir() else 0o666) & ~umask
        if mode != wanted:
            return f"{path.relative_to(folder)} has mode {mode:o}, not {wanted:o} (umask {umask:o})"
    return None
