import json
import subprocess
import sys

import numpy as np
import pytest

from surefoot import InputError, fit_temperature, load_calibration, save_calibration
from surefoot.calibrators import CALIBRATORS, calibration_document, fit_calibration
from surefoot.predictions.predictions import Predictions
from tests.conftest import draw_many_labels, draw_one_label


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: c.name)
@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_what_is_saved_is_what_is_loaded(calibrator, draw, tmp_path):
    val = draw(200, members=2, sharpness=2, novelty=np.linspace(0, 1, 200))
    if calibrator.one_label_only and draw is draw_many_labels:
        with pytest.raises(InputError, match="these rows have many labels; allowed: vector, platt"):
            fit_calibration(calibrator.name, val)
        return
    fitted = fit_calibration(calibrator.name, val)
    assert fitted.evidence.nll_after < fitted.evidence.nll_before
    save_calibration(fitted, tmp_path / "c.json")
    loaded = load_calibration(tmp_path / "c.json")
    assert loaded == fitted
    assert np.array_equal(loaded(val).logits, fitted(val).logits)
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


def test_the_file_is_readable(tmp_path):
    fitted = fit_calibration("temperature", draw_one_label(sharpness=2))
    save_calibration(fitted, tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["kind"] == "temperature"
    assert document["temperature"] == fitted.temperature
    assert document["interval"] == {"low": fitted.low, "high": fitted.high, "level": 0.95}
    assert document["n"] == 300
    assert document["evidence"]["nll_after"] < document["evidence"]["nll_before"]
    assert document["evidence"]["ece_after"] < document["evidence"]["ece_before"]
    assert document["surefoot"]
    assert document["definitions"]["ece"].startswith("10 equal-mass bins")


def test_a_bound_is_saved_without_infinities(tmp_path):
    fitted = fit_temperature(Predictions.from_logits([[5.0, 0.0]], [0]))
    save_calibration(fitted, tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text())["interval"]["high"] is None
    assert load_calibration(tmp_path / "c.json").at_bound


VAL = draw_one_label(100, classes=2, members=2, sharpness=2, novelty=np.linspace(0, 1, 100))


def changed(name, **changes):
    """A file of that calibrator with other values."""
    return json.dumps(calibration_document(CALIBRATORS.named(name).fitted(VAL)) | changes)


REFUSED = {
    "not JSON": ("{", "not JSON"),
    "a tower": ("[" * 100_000, "not JSON"),
    "a list": ("[1]", "is not a calibration file"),
    "another kind": ('{"kind": "spline"}', "kind is 'spline'; allowed: temperature, member-temperatures"),
    "no temperature": ('{"kind": "temperature"}', "missing or wrong 'interval'"),
    "negative": (changed("temperature", temperature=-1), "temperature is -1.0; allowed: a positive number"),
    "infinite": ('{"kind": "temperature", "temperature": Infinity}', "Infinity is not a number of JSON"),
    "too many digits": (changed("temperature", temperature=10**400), "is not a calibration file"),
    "no members": (changed("member-temperatures", members=[]), "members are empty"),
    "declined above 1": (changed("temperature", temperature=1, declined=1.5), "1.5 was declined"),
    "budget without a best": ('{"kind": "budget", "temperature": 2}', "missing or wrong 'best'"),
    "budget at zero": (changed("budget", temperature=0), "temperature is 0.0; allowed: a positive number"),
    "novelty at zero": (changed("novelty", t0=0), "t0 is 0.0; allowed: a positive number"),
    "novelty that sharpens": (changed("novelty", t1=-1), "t1 is -1.0; allowed: a number from 0"),
    "novelty of nothing": ('{"kind": "novelty", "t0": 1, "t1": NaN}', "NaN is not a number of JSON"),
    "novelty in words": (changed("novelty", t0="warm"), "could not convert"),
    "vector of other classes": (changed("vector", weights=[[1]]), "weights are not a list of 2 numbers"),
    "matrix with one row": (changed("matrix", weights=[[1, 0]]), "not a list of 2 rows"),
    "a row that is a number": (changed("matrix", weights=[1, 0]), "weights are not a list"),
    "platt of other classes": (changed("platt", classes=3), "slopes_above are not a list of 3 numbers"),
    "isotonic that falls": (changed("isotonic", scores=[[1, 0]], probabilities=[[0.5, 0.6]]), "scores fall"),
    "certain isotonic": (
        changed("isotonic", scores=[[0, 1]], probabilities=[[0.5, 1]]),
        "not all above 0 and below 1",
    ),
    "members that are a share": (
        changed("temperature-before-averaging", members=1.5),
        "members is 1.5; allowed: a whole number",
    ),
    "a later format": ('{"format": 99, "kind": "temperature"}', "format 99 is not one this version reads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case, tmp_path):
    text, message = REFUSED[case]
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InputError, match=message):
        load_calibration(tmp_path / "c.json")


def test_missing_and_unwritable(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*: No such file"):
        load_calibration(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot write"):
        save_calibration(fit_temperature(draw_one_label()), tmp_path / "no" / "folder.json")


def test_links_are_followed_and_devices_are_written_to(tmp_path):
    import os

    from surefoot.io import replacing

    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    with replacing(tmp_path / "link.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="nothing reads this pipe"), replacing(tmp_path / "pipe"):
        pass
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replacing(tmp_path / "pipe") as temporary:
        temporary.write_text("through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_failed_write_leaves_the_old_file(tmp_path):
    from surefoot.io import replacing

    target = tmp_path / "kept.txt"
    target.write_text("old")

    def fail_half_way():
        with replacing(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_listing_calibrators_does_not_load_torch():
    code = (
        "import sys; from surefoot.calibrators import CALIBRATORS; "
        "sys.exit('torch' in sys.modules or len(CALIBRATORS) != 13)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
