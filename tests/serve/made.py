"""Bundles to serve, and the command that serves them as a process of its own."""

import io
import json
import re
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from surefoot.deploy.make_bundle import chosen_method, write_bundle
from tests import warm
from tests.deploy.made import ran

METHOD = "ensemble-of-t"
THRESHOLDS = {"accept": 0.4, "reject": 0.35}
PATIENCE = 60  # seconds, for what takes one


def bundled(folder, method=METHOD, thresholds=None, **options):
    """A run of coloured pictures and a bundle of it: (run, path of the bundle)."""
    made = ran(folder / "run", methods=(method,), **options)
    chosen = chosen_method(made.opened, method, task=None, network=None)
    write_bundle(chosen, folder / "bundle", resamples=0, thresholds=thresholds)
    return made, folder / "bundle"


@dataclass
class Served:
    """A server that runs."""

    process: warm.Process
    url: str

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def end(self, number=signal.SIGTERM):
        """Its exit code and what it said."""
        self.process.send_signal(number)
        result = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, *result


@contextmanager
def served(bundle, *options, code=warm.SUREFOOT, environment=()):
    """`surefoot serve` on a free port; `code` is what starts it."""
    words = ["serve", bundle, "--port", 0, "--device", "cpu", *options]
    with warm.Process(code, words, environment=dict(environment)) as process:
        try:
            line = process.stdout.readline()
            found = re.search(r"on (http://\S+) ", line)
            assert found, line + process.stderr.read()
            yield Served(process, found[1])
        finally:
            process.kill()
            process.communicate()


def picture(seed=0, *, size=(30, 24), kind="PNG", label=None):
    """The bytes of an image, of one colour of the task where a label is given."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 160, (*size, 3), dtype=np.uint8)
    if label is not None:
        pixels[..., label] += 90
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def expected(bundle, data, folder):
    """What the library says of one image, as (probabilities, novelty)."""
    path = Path(folder) / "one.image"
    path.write_bytes(data)
    result = bundle.predict(bundle.preprocess(path)[None])
    return result.probs()[0], float(result.novelty[0])


def counts(text):
    """Samples of Prometheus's text format by name and labels, read strictly."""
    found, types = {}, {}
    for line in text.splitlines():
        if line.startswith("#"):
            _, what, name, rest = line.split(" ", 3)
            assert what in ("HELP", "TYPE")
            if what == "TYPE":
                types[name] = rest
            continue
        name, labels, value = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line).groups()
        pairs = re.findall(r'([a-z]+)="((?:[^"\\\n]|\\["\\n])*)"', labels or "")
        assert ",".join(f'{k}="{v}"' for k, v in pairs) == (labels or "")
        assert (name, tuple(pairs)) not in found
        assert name in types or re.sub("_(bucket|sum|count)$", "", name) in types
        found[name, tuple(pairs)] = float(value)
    return found


def json_of(response):
    assert response.headers["content-type"] == "application/json"
    return json.loads(response.content)
