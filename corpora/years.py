"""Spans of years, as `corpus.years` says them."""

import re
from functools import lru_cache

from corpora.errors import RequestError


@lru_cache(maxsize=8)
def years(said: str) -> tuple[int, int]:
    """Read `2019-2024`, `2021`, `2019-`, `-2000` or nothing, as (first, last).

    Raises:
        RequestError: anything else, or the last year first.
    """
    match = re.fullmatch(r"\s*(\d{4})?\s*([-–])?\s*(\d{4})?\s*", str(said))
    if not match or (match[3] and not match[2]) or match[0].strip() in ("-", "–"):
        raise RequestError(f"corpus.years={said}: write 2019-2024, 2021, 2019- or -2000")
    first = int(match[1]) if match[1] else 0
    last = int(match[3]) if match[3] else (9999 if match[2] or not match[1] else first)
    if first > last:
        raise RequestError(f"corpus.years={said}: the first year comes first")
    return first, last
