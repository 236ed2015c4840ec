"""LaTeX that compiles anywhere: escaped names, booktabs tables that fit the page.

Nothing but booktabs is needed, and every sign is ASCII. Tables fit 410 points, the text width of
`article` in two columns on A4; most styles of the field are wider.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

NEEDS = "% needs \\usepackage{booktabs}"
TEXT_WIDTH = 410.0  # points
#: Rows of one table: more do not fit a page.
MOST_ROWS = 56
_HEAD = 5  # rows that a head and the gap before it take
GAP = 6.0  # points between two columns: twice \\tabcolsep
NAME = 74.0  # points: a column of names, which wrap

_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "−": r"$-$",
    "–": r"--",
    "—": r"---",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "Δ": r"$\Delta$",  # no letter of the usual text fonts
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
    "’": "'",
    "‘": "`",
    "“": "``",
    "”": "''",
    "„": ",,",
    "…": r"\dots{}",
}
#: Combining signs and the accents that set them.
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
    "\u0328": "k",
}
_LONG, _NARROW = 24, 10  # a word may be broken after so many signs: in text, in a narrow column
#: Points a sign takes at \\scriptsize (7 pt), on the wide side.
_WIDTHS = {**dict.fromkeys("0123456789", 4.0), **dict.fromkeys("il.,:;'|!/()[] -j", 2.6)}
_SMALL, _CAPITAL = 4.1, 5.8


def escape(text: str, longest: int = _LONG) -> str:
    """Show a text's signs, in ASCII, and have none of them mean anything.

    Letters with accents become the commands that set them; a sign that the usual fonts lack is
    named by its code point. A word may be broken after each `longest` signs.
    """
    return " ".join(_word(word, longest) for word in text.split())


def _word(word: str, longest: int) -> str:
    word = unicodedata.normalize("NFC", word)
    signs = [
        # two of a kind would be set as one
        _sign(sign) + ("{}" if sign in "-'`,!?<>" and word[at + 1 : at + 2] == sign else "")
        for at, sign in enumerate(word)
    ]
    parts = ["".join(signs[at : at + longest]) for at in range(0, len(signs), longest)]
    return r"\allowbreak{}".join(parts)


def _sign(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isascii():
        return sign if sign.isprintable() else ""
    parts = unicodedata.normalize("NFD", sign)
    base, marks = parts[0], parts[1:]
    if base.isascii() and base.isalpha() and marks in _ACCENTS:
        return f"\\{_ACCENTS[marks]}{{{base}}}"
    return f"[U+{ord(sign):04X}]"


def width(text: str) -> float:
    """About how wide a text is at \\scriptsize, points; LaTeX's own signs left out."""
    text = re.sub(r"\\[a-zA-Z]+(\{\})?|[\\${}^]", "", text)
    stars = text.count("*")
    rest = text.replace("*", "")
    plain = sum(
        _WIDTHS.get(sign, _CAPITAL if sign.isupper() or sign in "−–+<>Δ%" else _SMALL)
        for sign in rest
    )
    return plain + 3.2 * stars


@dataclass(frozen=True)
class Tabular:
    """Rows of cells beneath a head, all LaTeX already; `rules`: rows with a rule before them."""

    columns: str  # the preamble
    heads: list[str]  # lines, as they stand
    rows: list[list[str]]
    rules: frozenset[int] = frozenset()

    def pieces(self) -> list["Tabular"]:
        """As many as keep below MOST_ROWS rows each."""
        return [
            Tabular(
                self.columns,
                self.heads,
                self.rows[start : start + MOST_ROWS],
                frozenset(at - start for at in self.rules if start < at < start + MOST_ROWS),
            )
            for start in range(0, max(len(self.rows), 1), MOST_ROWS)
        ]

    def source(self) -> str:
        """The LaTeX."""
        lines = [rf"\begin{{tabular}}{{{self.columns}}}", r"\toprule", *self.heads, r"\midrule"]
        for at, row in enumerate(self.rows):
            if at in self.rules and at:
                lines.append(r"\midrule")
            lines.append(" & ".join(row) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def floats(caption: str, label: str, tabulars: Sequence[Tabular], foot: str = "") -> str:
    """Tabulars beneath each other in a table*, and in further ones where a page is full.

    Args:
        caption: LaTeX
        label: what `\\ref` finds the first by
        tabulars: in their order
        foot: LaTeX below the last
    """
    pages: list[list[Tabular]] = [[]]
    for piece in [piece for tabular in tabulars for piece in tabular.pieces()]:
        used = sum(len(other.rows) + _HEAD for other in pages[-1])
        if pages[-1] and used + len(piece.rows) > MOST_ROWS:
            pages.append([])
        pages[-1].append(piece)
    sources = []
    for number, page in enumerate(pages):
        said = caption if number == 0 else rf"Table \ref{{{label}}}, continued."
        last = number == len(pages) - 1
        sources.append(
            "\n".join(
                [
                    r"\begin{table*}[tp]",
                    r"\sloppy\centering\scriptsize\setlength{\tabcolsep}{3pt}",
                    rf"\caption{{{said}}}",
                    rf"\label{{{label if number == 0 else f'{label}-part{number + 1}'}}}",
                    r"\smallskip",
                    "\n\\par\\medskip\n".join(piece.source() for piece in page),
                    *([rf"\par\smallskip {foot}"] if foot and last else []),
                    r"\end{table*}",
                ]
            )
        )
    return "\n\n".join(sources)


def name_cell(text: str) -> str:
    """A name in the first column, which wraps and stands to the left."""
    return rf"\raggedright {escape(text, _NARROW)}"


def head_cell(text: str, columns: int, room: float, side: str = "centering") -> str:
    """A name above columns; on several lines where it has no room on one.

    Args:
        text: the name
        columns: how many it stands above
        room: points that one line has
        side: centering or raggedleft
    """
    narrow = escape(text, _NARROW)
    if width(narrow) <= room:
        return rf"\multicolumn{{{columns}}}{{{side[0]}}}{{{escape(text)}}}"
    return rf"\multicolumn{{{columns}}}{{p{{{room:.0f}pt}}}}{{{{\{side} {narrow}\par}}}}"


def blocks(widths: Sequence[float], first: float = NAME) -> list[range]:
    """Cut columns into blocks that fit beneath each other, each with the names' column.

    As few as can be, and then as equal as can be.

    Args:
        widths: of the columns, points
        first: of the names' column, points
    """
    fewest = len(_filled(widths, TEXT_WIDTH - first))
    room = sum(wide + GAP for wide in widths) / fewest
    while len(found := _filled(widths, min(room, TEXT_WIDTH - first))) > fewest:
        room += GAP
    return found


def _filled(widths: Sequence[float], room: float) -> list[range]:
    """Columns side by side until there is no more room, at least one."""
    found, start, used = [], 0, 0.0
    for at, wide in enumerate(widths):
        if at > start and used + GAP + wide > room:
            found.append(range(start, at))
            start, used = at, 0.0
        used += GAP + wide
    found.append(range(start, len(widths)))
    return found
