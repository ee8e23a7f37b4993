"""The page at /: its own, and right in a real browser."""

import hashlib
import re
from base64 import b64encode

import httpx
import pytest

import surefoot
from tests.browser import CHROMIUM
from tests.deploy.made import COLOURS
from tests.serve.made import PATIENCE, expected, picture, served

DROP = """async ([bytes, name, type]) => {
  const carried = new DataTransfer();
  carried.items.add(new File([new Uint8Array(bytes)], name, { type }));
  for (const kind of ["dragenter", "dragover", "drop"]) {
    document.getElementById("drop").dispatchEvent(
      new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
  }
}"""
PASTE = """async ([bytes, name, type]) => {
  const carried = new DataTransfer();
  carried.items.add(new File([new Uint8Array(bytes)], name, { type }));
  document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: carried, bubbles: true }));
}"""


@pytest.fixture(scope="module")
def server(made):
    with served(made[1], "--max-images", 3, "--verdict", "on") as running:
        yield running


def test_the_browser_is_held_to_what_is_in_the_page(server):
    response = httpx.get(server.url, timeout=PATIENCE)
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", response.text, flags=re.DOTALL)
        digest = b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert not re.findall(r"""(?:src|href)=["'](?!data:|health|metrics)""", response.text)
    assert "http://" not in response.text
    assert "https://" not in response.text
    assert "<b>blue" not in response.text
    assert "&lt;b&gt;blue|s&lt;/b&gt;" in response.text
    assert len(response.content) < 30_000


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_in_a_real_browser(browser, server, made, tmp_path, width, scheme):
    bundle, problems = surefoot.load_bundle(made[1]), []
    data = [picture(seed, label=2, size=(40, 60)) for seed in range(3)]
    names = ["a.png", "<img src=x onerror=alert(1)>.png", "c.png"]
    payload = [
        {"name": name, "mimeType": "image/png", "buffer": each}
        for name, each in zip(names, data, strict=True)
    ]
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.set_default_timeout(1000 * PATIENCE)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
    page.goto(server.url)

    def shows(card, image, name):
        probs, novelty = expected(bundle, image, tmp_path)
        top = probs.argmax()
        card.locator("h3").wait_for()
        assert card.locator("h3").inner_text() == COLOURS[top], "text, also where it looks like HTML"
        assert card.locator(".confidence").inner_text() == f"{100 * probs[top]:.1f}% confidence"
        assert card.locator(".mark").inner_text() == bundle.familiar.verdict(novelty)
        assert card.locator(".decision").inner_text() == bundle.thresholds.decide(probs[top])
        assert card.locator(".file").inner_text() == name
        shown = card.locator(".bars .name").all_inner_texts()
        assert shown == [COLOURS[i] for i in probs.argsort()[::-1]]
        inside = card.locator(".bar.top i").bounding_box()["width"]
        outside = card.locator(".bar.top").bounding_box()["width"] - 2
        assert inside / outside == pytest.approx(probs[top], abs=0.01)

    page.locator("#file").set_input_files(payload)
    page.get_by_text("3 images predicted.").wait_for()
    for index, (image, name) in enumerate(zip(data, names, strict=True)):
        shows(page.locator(".card").nth(index), image, name)
    assert page.locator(".card b, .card script").count() == 0
    assert (
        page.locator(".card img").first.evaluate("image => image.decode().then(() => image.naturalWidth)")
        == 60
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width

    page.evaluate(DROP, [list(data[2]), "dropped.png", "image/png"])
    page.get_by_text("1 image predicted.").wait_for()
    shows(page.locator(".card"), data[2], "dropped.png")
    page.evaluate(PASTE, [list(data[1]), "pasted.png", "image/png"])
    page.get_by_text("pasted.png").wait_for()
    shows(page.locator(".card"), data[1], "pasted.png")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    assert page.evaluate("document.querySelector('label').control.id") == "file"
    assert problems == [], "nothing the policy forbids, no error, no script of others"

    page.evaluate(DROP, [list(b"no image"), "notes.txt", "text/plain"])
    page.locator(".card.wrong").wait_for()
    assert page.locator("#status").inner_text().startswith("not an image in a supported format")
    page.locator("#file").set_input_files([*payload, payload[0]])
    page.get_by_text("the form has more than 3 images").first.wait_for()
    assert all("Failed to load resource" in problem for problem in problems), "the browser's own remark"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
