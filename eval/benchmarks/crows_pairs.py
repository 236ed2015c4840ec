"""Dutch CrowS-Pairs (2507.16442): 1,463 pairs, nine types of bias, each pair by itself.

The published file is in Mac OS Roman, but one pair (*één*) was pasted in as UTF-8: read as
Mac OS Roman its é is √©. That sign for a root never stands in these sentences otherwise, so
what follows it is put together again. No other encoding reads the file rightly.
"""

import codecs
import re

from eval.benchmarks import BenchmarkSettings, Columns
from eval.benchmarks.pairs import columns, fill, finish, read_file
from eval.pairs import Pairs

#: The published columns; `stereo_antistereo` and `id` come along as they are.
PUBLISHED = Columns(group="bias_type")

#: The first byte of an accented letter in UTF-8, and any second one, as Mac OS Roman has them.
_REMNANT = re.compile("√([" + re.escape(bytes(range(0x80, 0xC0)).decode("mac_roman")) + "])")


def read(settings: BenchmarkSettings) -> Pairs:
    """Read the published file; with `settings.encoding` mac_roman its UTF-8 remnant is mended.

    Raises:
        RequestError: the file is missing, empty, unreadable, or lacks a column.
    """
    named = columns(settings, PUBLISHED)
    frame, facts = read_file(settings, named.values())
    if facts.get("encoding") == codecs.lookup("mac_roman").name:
        mended = frame.map(lambda cell: mend(cell) if isinstance(cell, str) else cell)
        facts["cells_mended"] = int((mended != frame).to_numpy().sum())
        frame = mended
    return finish(settings, fill(settings, frame, named), facts)


def mend(text: str) -> str:
    """Put together letters that were written as UTF-8 and read as Mac OS Roman."""
    return _REMNANT.sub(lambda match: match[0].encode("mac_roman").decode("utf-8"), text)
