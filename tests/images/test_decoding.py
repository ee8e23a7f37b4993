"""Images become arrays: every kind of them, once, and never half."""

import io
import os
import stat
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from surefoot import InputError
from surefoot.lab.images.cache import decode_images, decode_readable_images, default_cache, read_pixels
from surefoot.lab.images.decode import UNREADABLE, Fit, Size, TooManyPixelsError, decode
from tests import warm

RED, GREEN, WHITE = (200, 30, 40), (20, 160, 60), (255, 255, 255)


def quarters():
    """64 x 32: red on the left, green on the right, a white top left corner, so that turning it shows."""
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[:, :32], pixels[:, 32:], pixels[:16, :16] = RED, GREEN, WHITE
    return Image.fromarray(pixels)


def saved(image, **options):
    out = io.BytesIO()
    image.save(out, **({"format": "PNG"} | options))
    return out.getvalue()


def shows_quarters(pixels, tolerance=6):
    places = {(0.1, 0.1): WHITE, (0.9, 0.1): RED, (0.1, 0.9): GREEN, (0.9, 0.9): GREEN}
    height, width = pixels.shape[:2]
    for (down, across), colour in places.items():
        actual = pixels[int(down * height), int(across * width)].astype(int)
        assert np.abs(actual - colour).max() <= tolerance, (down, across, actual)


def with_mode(mode):
    return {
        "RGB": quarters(),
        "RGBA": quarters().convert("RGBA"),
        "P": quarters().quantize(8),
        "CMYK": quarters().convert("CMYK"),
        "YCbCr": quarters().convert("YCbCr"),
    }[mode]


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {"format": "PNG"}),
        ("RGB", {"format": "JPEG", "quality": 95, "subsampling": 0}),
        ("RGB", {"format": "JPEG", "quality": 95, "progressive": True, "subsampling": 0}),
        ("RGB", {"format": "BMP"}),
        ("RGB", {"format": "WEBP", "lossless": True}),
        ("RGB", {"format": "TIFF"}),
        ("RGB", {"format": "PPM"}),
        ("RGBA", {"format": "PNG"}),
        ("P", {"format": "PNG"}),
        ("P", {"format": "GIF"}),
        ("CMYK", {"format": "JPEG", "quality": 95, "subsampling": 0}),
        ("CMYK", {"format": "TIFF"}),
        ("YCbCr", {"format": "JPEG", "quality": 95, "subsampling": 0}),
    ],
)
def test_every_mode_and_format_shows_the_same(mode, options):
    pixels = decode(saved(with_mode(mode), **options), Size(32))
    assert (pixels.shape, pixels.dtype) == ((32, 64, 3), np.uint8)
    shows_quarters(pixels)


def test_greyscale_of_every_depth():
    ramp = np.linspace(0, 65535, 64).astype(np.uint16)[None, :].repeat(32, axis=0)
    deep = decode(saved(Image.fromarray(ramp)), Size(32))
    assert np.array_equal(deep[0, :, 0], (ramp[0] // 257).astype(np.uint8))
    assert np.array_equal(decode(saved(Image.fromarray((ramp // 257).astype(np.uint8))), Size(32)), deep)
    assert np.array_equal(decode(saved(Image.fromarray(ramp), format="TIFF"), Size(32)), deep)
    bits = decode(saved(Image.fromarray(ramp > 32767)), Size(32))
    assert np.unique(bits).tolist() == [0, 255]
    assert (deep[..., 0] == deep[..., 1]).all()


def test_what_is_transparent_shows_white_paper():
    clear = Image.new("RGBA", (8, 8), (*RED, 0))
    half = Image.new("RGBA", (8, 8), (0, 0, 0, 128))
    assert (decode(saved(clear), Size(8)) == 255).all()
    assert (decode(saved(half), Size(8)) == 127).all()
    assert (decode(saved(half.convert("LA")), Size(8)) == 127).all()
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([200, 30, 40] * 2)
    assert (decode(saved(palette, transparency=0), Size(8)) == 255).all()
    assert (decode(saved(Image.new("RGB", (8, 8), RED), transparency=RED), Size(8)) == 255).all()


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_exif_orientation(turn, form):
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    exif = Image.Exif()
    exif[0x0112] = turn
    stored = quarters() if turn == 1 else quarters().transpose(back[turn])
    pixels = decode(
        saved(
            stored, format=form, exif=exif, **({"quality": 95, "subsampling": 0} if form == "JPEG" else {})
        ),
        Size(32),
    )
    assert pixels.shape == (32, 64, 3)
    shows_quarters(pixels)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64), st.sampled_from(list(Fit)))
@settings(max_examples=40)
def test_the_size_is_as_requested(width, height, side, fit):
    pixels = decode(saved(Image.new("RGB", (width, height), RED), format="BMP"), Size(side, fit))
    if fit is Fit.SQUARE:
        assert pixels.shape == (side, side, 3)
    elif fit is Fit.AS_IT_IS:
        assert pixels.shape == (height, width, 3)
    else:
        assert min(pixels.shape[:2]) == side
        assert max(pixels.shape[:2]) == max(1, round(max(width, height) * side / min(width, height)))
    assert (pixels == RED).all()


def test_shrinking_is_antialiased():
    """A fine chequered board becomes grey, from PNG and by way of a JPEG's own smaller scale."""
    board = np.indices((512, 512)).sum(axis=0) % 2 * 255
    image = Image.fromarray(board.astype(np.uint8)).convert("RGB")
    for options in ({"format": "PNG"}, {"format": "JPEG", "quality": 100}):
        assert np.abs(decode(saved(image, **options), Size(32)).astype(int) - 128).max() <= 3


def test_an_odd_frame_or_format_is_refused():
    for mode, form in (("F", "TIFF"), ("I", "TIFF")):
        with pytest.raises(ValueError, match=r"the white level of"):
            decode(saved(Image.new(mode, (8, 8)), format=form), Size(8))
    with pytest.raises(OSError, match=r"cannot identify"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", Size(8))


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures of different shapes."""
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    for i in range(12):
        noise = rng.integers(0, 256, (40 + i, 60, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "in" / f"{i:02d}.{'jpg' if i % 2 else 'png'}")
    return tmp_path


def files_of(folder):
    return [str(file) for file in sorted((folder / "in").iterdir())]


def contents(cache):
    return {
        str(file.relative_to(cache)): file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()
    }


def test_images_of_different_shapes_share_a_buffer(folder):
    files, ticks = files_of(folder), []
    decoded = decode_images(files, Size(20), cache=folder / "cache", tick=ticks.append)
    assert len(decoded) == sum(ticks) == 12
    assert isinstance(decoded.buffer, np.memmap)
    assert decoded.rows.tolist() == list(range(12))
    for row, file in enumerate(files):
        assert np.array_equal(decoded[row], read_pixels(file, Size(20)))
    assert decoded.heights.tolist() == [20] * 12
    assert decoded.widths[0] == 30
    assert decoded.offsets[-1] == decoded.buffer.size


def test_images_are_counted_from_either_end(folder):
    decoded = decode_images(files_of(folder), Size(20), cache=folder / "cache")
    assert np.array_equal(decoded[-1], decoded[11])
    assert len(list(decoded)) == 12
    with pytest.raises(IndexError):
        decoded[12]


def test_a_long_thin_image_does_not_fill_the_memory(tmp_path):
    Image.new("RGB", (20_000, 1)).save(tmp_path / "line.png")
    with pytest.raises(InputError, match=r"line.png \(3200000 x 160 pixels at this size\)"):
        decode_images([str(tmp_path / "line.png")], Size(160), cache=tmp_path / "cache")


@pytest.mark.parametrize("turned", [False, True])
def test_what_would_be_too_large_is_refused_before_it_is_decoded(turned):
    """Half of the file is missing, which only decoding finds out."""
    noise = np.random.default_rng(0).integers(0, 255, (4000, 2, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6 if turned else 1
    half = saved(Image.fromarray(noise), exif=exif)[:12_000]
    with pytest.raises(OSError, match="truncated"):
        decode(half, Size(2), most_pixels=8000)
    with pytest.raises(TooManyPixelsError, match="6 x 12000 pixels at this size"):
        decode(half, Size(6), most_pixels=71_999)


def test_squares_are_one_array(folder):
    decoded = decode_images(files_of(folder), Size(16, Fit.SQUARE), cache=folder / "cache")
    array = decoded.as_array()
    assert array.shape == (12, 16, 16, 3)
    assert np.array_equal(array[7], decoded[7])
    assert np.shares_memory(array, decoded.buffer)


def test_a_second_start_decodes_nothing(folder):
    files, cache = files_of(folder), folder / "cache"
    first = decode_images(files, Size(20), cache=cache)
    before = contents(cache)
    for file in files:  # the stat key does not cover it: decoding again would fail
        state = Path(file).stat()
        Path(file).write_bytes(bytes(state.st_size))
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    second = decode_images(files, Size(20), cache=cache)
    assert np.array_equal(first.buffer, second.buffer)
    assert contents(cache) == before


def test_touched_moved_or_copied_files_are_known_by_content(folder):
    files, cache = files_of(folder), folder / "cache"
    first = decode_images(files, Size(20), cache=cache)
    arrays = set(cache.glob("images/*"))
    for file in files:
        os.utime(file, ns=(1, 1))
    decode_images(files, Size(20), cache=cache)
    (folder / "in").rename(folder / "moved")
    moved = [file.replace("/in/", "/moved/") for file in files]
    assert np.array_equal(decode_images(moved, Size(20), cache=cache).buffer, first.buffer)
    assert set(cache.glob("images/*")) == arrays


def test_a_changed_file_is_decoded_again(folder):
    files, cache = files_of(folder), folder / "cache"
    first = decode_images(files, Size(20), cache=cache)
    Image.new("RGB", (60, 40), RED).save(files[0])
    second = decode_images(files, Size(20), cache=cache)
    assert (second[0] == RED).all()
    assert not (first[0] == RED).all()
    assert all(np.array_equal(first[row], second[row]) for row in range(1, 12))


def test_another_size_or_order_is_another_array(folder):
    files, cache = files_of(folder), folder / "cache"
    for names, size in (
        (files, Size(20)),
        (files, Size(21)),
        (files, Size(20, Fit.SQUARE)),
        (files[::-1], Size(20)),
    ):
        decode_images(names, size, cache=cache)
    assert len(list(cache.glob("images/*"))) == 4


def test_unreadable_images_are_named_and_counted(folder):
    files, cache = files_of(folder), folder / "cache"
    whole = Path(files[1]).read_bytes()
    Path(files[1]).write_bytes(whole[: len(whole) // 2])
    Path(files[4]).write_bytes(b"no image")
    Path(files[6]).unlink()
    Path(files[8]).write_bytes(b"")
    for _ in range(2):  # also the second time, from the cache
        with pytest.raises(
            InputError,
            match=r"4 images cannot be read: .*01.jpg .*truncated.*04.png .not an image.*06.png .no such file.*08.png",
        ):
            decode_images(files, Size(20), cache=cache)
        decoded = decode_readable_images(files, Size(20), cache=cache)
        assert decoded.rows.tolist() == [0, 2, 3, 5, 7, 9, 10, 11]
        assert [Path(each.path).name for each in decoded.unreadable] == [
            "01.jpg",
            "04.png",
            "06.png",
            "08.png",
        ]
        assert np.array_equal(decoded[1], read_pixels(files[2], Size(20)))
    Image.new("RGB", (60, 40), RED).save(files[6])
    assert 6 in decode_readable_images(files, Size(20), cache=cache).rows.tolist()


def test_a_file_that_could_not_be_opened_is_tried_again(folder):
    files, cache = files_of(folder), folder / "cache"
    Path(files[0]).rename(folder / "away.png")
    assert decode_readable_images(files, Size(20), cache=cache).unreadable[0].reason == "no such file"
    (folder / "away.png").rename(files[0])
    assert len(decode_images(files, Size(20), cache=cache)) == 12


def test_none_readable_is_an_empty_array(folder):
    (folder / "x.jpg").write_bytes(b"x")
    decoded = decode_readable_images([str(folder / "x.jpg")], Size(20), cache=folder / "cache")
    assert len(decoded) == decoded.buffer.size == 0


def test_a_decompression_bomb_is_refused(tmp_path):
    """Fifteen thousand by fifteen thousand pixels in a few hundred bytes."""

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    for side, name in ((10_000, "large.png"), (15_000, "huge.png")):
        header = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
        png = (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", header)
            + chunk(b"IDAT", zlib.compress(bytes(9999)))
            + chunk(b"IEND", b"")
        )
        (tmp_path / name).write_bytes(png)
        with pytest.raises(InputError, match=f"{name} .more than 89,478,485 pixels"):
            decode_images([str(tmp_path / name)], Size(20), cache=tmp_path / "cache")


@given(st.binary(max_size=200), st.integers(0, 400))
@settings(max_examples=60)
def test_damage_is_an_error_that_we_know(noise, at):
    data = bytearray(saved(quarters(), format="JPEG"))
    data[at : at + len(noise)] = noise
    for damaged in (bytes(data), noise, bytes(data[:at])):
        try:
            pixels = decode(damaged, Size(16))
        except UNREADABLE:
            continue
        assert pixels.ndim == 3


def test_two_processes_at_once(folder):
    code = (
        "import sys; from pathlib import Path; from surefoot.lab.images.cache import *; from surefoot.lab.images.decode import *\n"
        "d = decode_images(sys.argv[2:], Size(24), cache=Path(sys.argv[1])); print(int(d.buffer.sum()))"
    )
    running = [warm.Process(code, [folder / "cache", *files_of(folder)]) for _ in range(3)]
    sums = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    expected = sum(int(read_pixels(file, Size(24)).sum()) for file in files_of(folder))
    assert sums == [f"{expected}\n"] * 3
    assert len(list((folder / "cache" / "images").iterdir())) == 1


def test_what_is_broken_off_leaves_nothing(folder):
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_images(files_of(folder), Size(20), cache=folder / "cache", tick=stop)
    assert list((folder / "cache" / "images").iterdir()) == []
    assert len(decode_images(files_of(folder), Size(20), cache=folder / "cache")) == 12


def test_a_cache_that_cannot_be_written_is_said(folder):
    (folder / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*file"):
        decode_images(files_of(folder), Size(20), cache=folder / "file")


def damaged(path, how):
    content = path.read_bytes()
    if how in ("pipe", "folder", "link to nothing", "missing"):
        path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "link to nothing":
        path.symlink_to("nothing")
    elif how != "missing":
        kept, zeros = {"empty": (0, 0), "truncated": (-1, 0), "zeroed": (0, 1), "end zeroed": (0.5, 1)}[how]
        kept = len(content) - 1 if kept < 0 else int(kept * len(content))
        path.write_bytes(content[:kept] + zeros * bytes(len(content) - kept))


@pytest.mark.parametrize(
    "how", ["empty", "truncated", "zeroed", "end zeroed", "pipe", "folder", "link to nothing", "missing"]
)
def test_a_damaged_cache_is_built_again(how, folder):
    """Whatever file is damaged, and even if its time of change is as it was."""
    files, cache = files_of(folder), folder / "cache"
    expected = np.array(decode_images(files, Size(20), cache=cache).buffer)
    parts = [file.relative_to(cache) for file in cache.rglob("*") if file.is_file()]
    assert len(parts) == 5
    for part in parts:
        path = cache / part
        state = path.stat()
        damaged(path, how)
        if path.is_file():
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        found = decode_images(files, Size(20), cache=cache)
        assert np.array_equal(found.buffer, expected), part
        assert {file.relative_to(cache) for file in cache.rglob("*") if file.is_file()} == set(parts)


def test_a_cache_has_the_modes_of_the_umask(folder):
    before = os.umask(0o027)
    try:
        decode_images(files_of(folder), Size(20), cache=folder / "cache")
    finally:
        os.umask(before)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in (folder / "cache").rglob("*")}
    assert modes == {True: 0o750, False: 0o640}


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "a"))
    assert default_cache() == tmp_path / "a"
    monkeypatch.delenv("SUREFOOT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_cache() == tmp_path / "b" / "surefoot"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache().parts[-2:] == (".cache", "surefoot")
