"""What all drawings share: the colours of roles, fonts, and a few pieces of SVG."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

ROLES = {
    "env": ("#2e7d4f", "#e3f3e8"),
    "act": ("#1f6fb2", "#e1eefa"),
    "learn": ("#6a4fb3", "#ece7f8"),
    "grad": ("#b8641a", "#fbebda"),
    "apply": ("#b3364a", "#fae2e5"),
    "replay": ("#0f7c80", "#dbf1f1"),
    "eval": ("#6b6f2b", "#f1f2d8"),
    "stack": ("#5b6470", "#eceff2"),
    "report": ("#5b6470", "#eceff2"),
    "turn": ("#5b6470", "#eceff2"),
    "given": ("#5b6470", "#f5f6f8"),
    "cell": ("#3b4350", "#fdf6dc"),
}
FONT = "ui-monospace,'SF Mono',Menlo,'DejaVu Sans Mono',Consolas,monospace"
SANS = "system-ui,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif"


def document(size: tuple[float, float], title: str, parts: Iterable[str]) -> str:
    """A whole SVG document."""
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="{FONT}" font-size="11">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, style: str = "") -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" xml:space="preserve" {style}>{escape(words)}</text>'


def rect(place: tuple[float, float, float, float], style: str) -> str:
    """A rectangle at (x, y, width, height)."""
    x, y, width, height = place
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>'
