"""What all widgets of the course have in common: a sentence, a picture and a table for wherever they cannot be live.

A live widget needs a kernel and a front end. A notebook read on a web page, in an e-mail or tomorrow morning has
neither, so each widget can also say what it shows (`repr`), draw it (`svg()`) and list it (`table()`).
"""

import base64
import json
from html import escape
from pathlib import Path

import anywidget

from pagedlab.table import TextTable
from pagedlab.widgets.look import COLOURS, INKS

_STATIC = Path(__file__).parent / "static"


def esm(*names: str) -> str:
    """The JavaScript of a widget: the palette, the helpers all widgets share, and `static/NAME.js` for each name.

    A front end loads this text as one module, which cannot import its neighbours, so they are put in front of it.
    """
    palette = f"const COLOURS = {json.dumps(COLOURS)};\nconst INKS = {json.dumps(INKS)};\n"
    return palette + _static_text("common.js") + "".join(_static_text(f"{name}.js") for name in names)


def css(name: str) -> str:
    """The styles of a widget: those all widgets share, and `static/NAME.css`. Styles reach the whole page, so every
    selector begins with a class of ours (`plw-`)."""
    return _static_text("common.css") + _static_text(f"{name}.css")


class CourseWidget(anywidget.AnyWidget):
    """A widget that is also a sentence, a picture and a table.

    A subclass sets `_esm = esm("name")` and `_css = css("name")` and writes `sentence`, `svg` and `table`. All three
    depend on the widget's state alone: the same state gives the same text, whenever and wherever.
    """

    def sentence(self) -> str:
        """What the widget shows, with its numbers, for someone who cannot see it."""
        raise NotImplementedError

    def svg(self) -> str:
        """The picture as it stands, as one SVG document."""
        raise NotImplementedError

    def table(self) -> TextTable:
        """What the picture shows, as a text table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.sentence()

    def _repr_mimebundle_(self, **kwargs):
        """The live view where there is one, with a sentence and a picture for everywhere else.

        The picture is an image rather than inline SVG: notebooks that are not trusted, and web pages that show
        notebooks, take inline SVG out but leave images in.
        """
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        sentence = self.sentence()
        image = base64.b64encode(self.svg().encode()).decode()
        return {
            **data,
            "text/plain": sentence,
            "text/html": f'<img alt="{escape(sentence)}" src="data:image/svg+xml;base64,{image}">',
        }, metadata


def _static_text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
