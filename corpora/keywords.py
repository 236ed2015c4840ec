"""Choosing documents by keywords."""

import re
from collections.abc import Iterable


def matcher(keywords: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds any of the keywords as whole words, whatever their case.

    A space in a keyword stands for spaces or hyphens (`Trans Frau` finds Trans-Frau); a `*` at
    its end for any ending (`schwul*` finds schwule and schwulenfeindlich). Without it
    `Schwul` finds no *Schwule*: German inflects, and the published list has bare stems
    (2608.30884), made for keyword metadata rather than running text.
    """
    forms = []
    for keyword in keywords:
        stem = keyword.strip().removesuffix("*")
        words = r"[\s\-]+".join(map(re.escape, stem.split()))
        if words:
            forms.append(words + (r"\w*" if keyword.strip().endswith("*") else ""))
    # Longest first, so that what is found is the keyword that fits best.
    alternatives = "|".join(sorted(forms, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)", re.IGNORECASE)
