"""The page at /: one document, nothing from elsewhere, and no script but its own."""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from surefoot.deploy.bundle import Bundle
from surefoot.deploy.decision import Rule
from surefoot.report.pages import TEMPLATES, template_named
from surefoot.serve.limits import MEBIBYTE, Limits
from surefoot.version import VERSION

SHOWN_CLASSES = 30  # names that the page lists


@dataclass(frozen=True)
class Page:
    """What is sent, and the headers that hold the browser to it."""

    html: str
    headers: Mapping[str, str]

    @staticmethod
    def of(bundle: Bundle, thresholds: Rule | None, limits: Limits) -> "Page":
        """Of a bundle; what it says of itself is escaped."""
        style = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in ("look.css", "serve.css"))
        script = (TEMPLATES / "serve.js").read_text(encoding="utf-8")
        html = template_named("serve.html").render(
            bundle=bundle,
            thresholds=thresholds,
            shown_classes=SHOWN_CLASSES,
            limits=limits,
            mebibytes=f"{limits.max_image_bytes / MEBIBYTE:.3g}",
            sentences=() if bundle.familiar is None else bundle.familiar.sentences(),
            style=Markup(style),
            script=Markup(script),
            version=VERSION,
        )
        policy = (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src blob: data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
        return Page(html, {"content-security-policy": "; ".join(policy)})


def _hash(text: str) -> str:
    """Of what stands in an element: all that a browser will run or apply."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
