"""CrowS-Pairs in English (Nangia et al. 2020), French (Névéol et al. 2022) and Dutch (2507.16442).

Nine types of bias, each pair by itself. In all three files `sent_more` is the sentence that
stereotypes more, whatever `stereo_antistereo` says; that column tells which of the two is about
the disadvantaged group: in `stereo` pairs `sent_more`, which shows a stereotype of it, in
`antistereo` pairs `sent_less`, which goes against one. So no roles are swapped here. The
published scripts swap them on reading and back on scoring, to the same effect.

The published Dutch file is in Mac OS Roman, but one pair (*één*) was pasted in as UTF-8: read
as Mac OS Roman its é is √©. That sign for a root never stands in these sentences otherwise, so
what follows it is put together again. No other encoding reads the file rightly.
"""

import codecs
import re

from eval.benchmarks import BenchmarkSettings, Columns
from eval.benchmarks.pairs import columns, fill, finish, read_file
from eval.errors import RequestError
from eval.pairs import Pairs

#: The published columns; what else there is, such as `id`, comes along as it is.
PUBLISHED = Columns(group="bias_type")
DIRECTION = "stereo_antistereo"
#: Which sentence is about the disadvantaged group, by the direction of the pair.
DISADVANTAGED = {"stereo": "sent_more", "antistereo": "sent_less"}

#: The first byte of an accented letter in UTF-8, and any second one, as Mac OS Roman has them.
_REMNANT = re.compile("√([" + re.escape(bytes(range(0x80, 0xC0)).decode("mac_roman")) + "])")


def read(settings: BenchmarkSettings) -> Pairs:
    """Read a published file; with `settings.encoding` mac_roman its UTF-8 remnant is mended.

    Beside the Pair table's columns: `stereo_antistereo` (stereo, antistereo) and
    `disadvantaged` (sent_more, sent_less).

    Raises:
        RequestError: the file is missing, empty, unreadable, or lacks a column; or a pair's
            direction is neither.
    """
    named = columns(settings, PUBLISHED)
    frame, facts = read_file(settings, [*named.values(), DIRECTION])
    if facts.get("encoding") == codecs.lookup("mac_roman").name:
        mended = frame.map(lambda cell: mend(cell) if isinstance(cell, str) else cell)
        facts["cells_mended"] = int((mended != frame).to_numpy().sum())
        frame = mended
    name = settings.name or settings.reader
    if DIRECTION not in frame:
        raise RequestError(
            f"benchmark {name}: no column {DIRECTION}; there are: {', '.join(frame.columns)}; "
            "benchmark=pairs reads files without it"
        )
    rows = fill(settings, frame, named)
    rows[DIRECTION] = rows[DIRECTION].astype(str).str.strip().str.lower()
    rows["disadvantaged"] = rows[DIRECTION].map(DISADVANTAGED)
    wrong = rows["disadvantaged"].isna().to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise RequestError(
            f"benchmark {name}, row {row + 1}: {DIRECTION} is '{rows[DIRECTION].iloc[row]}'; "
            f"it must be {' or '.join(DISADVANTAGED)}"
        )
    facts["pairs_by_direction"] = rows[DIRECTION].value_counts().sort_index().to_dict()
    return finish(settings, rows, facts)


def mend(text: str) -> str:
    """Put together letters that were written as UTF-8 and read as Mac OS Roman."""
    return _REMNANT.sub(lambda match: match[0].encode("mac_roman").decode("utf-8"), text)
