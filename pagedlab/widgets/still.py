"""What still pictures are drawn with. An image cannot know whether the page around it is light or dark, so a still
picture brings a light card of its own, and these are the colours on it."""

from html import escape

from pagedlab.cache.recorder import drawable

TEXT, MUTED, LINE, TRACK = "#1F2328", "#59636E", "#D1D9E0", "#F3F5F7"


def rect(x: float, y: float, width: float, height: float, fill: str, rx: float = 0, opacity: float = 1) -> str:
    round_corners = f' rx="{rx}"' if rx else ""
    see_through = f' fill-opacity="{opacity}"' if opacity < 1 else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(0, width):.2f}" height="{height}" fill="{fill}"'
        f"{round_corners}{see_through}/>"
    )


def text(x, y, content: str, size: float, fill: str = TEXT, weight: int = 400, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(drawable(content))}</text>'
    )


def card(title: str, width: float, height: float, defs: str, body: list[str]) -> str:
    """One SVG document: a light card with `body` on it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" '
            'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
            f"<title>{escape(drawable(title))}</title>",
            defs,
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="#FFFFFF" stroke="{LINE}"/>',
            *body,
            "</svg>",
        ]
    )
