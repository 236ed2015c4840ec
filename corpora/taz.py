"""taz2024full (Urchs et al. 2025, 2506.05388): 1.8 million articles of the taz, 1980–2024.

JSON, a file a year, in the form `{article_id: {…, "text": {…}}}`; here a file, a folder of
files or a zip of them. How the published keys are called is a mapping, `corpus.fields`, and
is checked against each file: `headline`, `lead`, `body`, `date`, `keywords`, each a dotted
path. A field that the data lacks is set to null.

Articles are chosen by year and by keywords, as the German paper does (2608.30884, §3.4): in
the article's own keywords where `fields.keywords` names them, else in its text. One article
is one document: headline, lead and body, a line each.
"""

import gzip
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpora import CorpusSettings, missing
from corpora.documents import Document, lookup, no_field, paths
from corpora.errors import RequestError
from corpora.keywords import matcher

#: What we want of an article, and where it is unless `corpus.fields` says otherwise.
FIELDS = {
    "headline": "text.headline",
    "lead": "text.lead",
    "body": "text.body",
    "date": "publishing_date",
    "keywords": "keywords",
}
PARTS = ("headline", "lead", "body")
#: So many articles of a file show which fields there are; any one may lack a lead.
LOOKED_AT = 200

_YEAR = re.compile(r"(?<!\d)((?:19|20)\d\d)(?:(?!\d)|(?=\d{4}(?!\d)))")


def read(settings: CorpusSettings) -> Iterator[Document]:
    """Give every article, those that are not wanted marked as dropped; a file at a time.

    Raises:
        RequestError: nothing at the path, files of another form, a field that isn't there.
    """
    fields = _fields(settings)
    first, last = _years(settings.years)
    wanted = matcher(settings.keywords) if settings.keywords else None
    checked = False
    for name, content in _files(settings):
        articles = _articles(name, content)
        if settings.years:
            _check_fields(fields, ["date"], name, articles)
        for article in articles:
            reason = _outside(article, fields["date"], settings.years, first, last)
            if not reason and not checked:
                needed = [*PARTS, "keywords"] if wanted else list(PARTS)
                _check_fields(fields, needed, name, articles)
                checked = True
            if not reason and wanted and not _about(article, fields, wanted):
                reason = "without a keyword"
            text = "" if reason else _text(article, fields)
            yield Document(text, origin=name, dropped=reason)


def _outside(article: dict[str, Any], date: str | None, years: str, first: int, last: int) -> str:
    """Why an article is not of the wanted years; '' if it is."""
    if not years or date is None:
        return ""
    year = _year(lookup(article, date))
    if year is None:
        return "without a date"
    return "" if first <= year <= last else f"not of {years}"


def _about(article: dict[str, Any], fields: dict[str, str | None], wanted: re.Pattern[str]) -> bool:
    if fields["keywords"] is None:
        return wanted.search(_text(article, fields)) is not None
    keywords = _strings(lookup(article, fields["keywords"]))
    return any(wanted.search(keyword) for keyword in keywords)


def _fields(settings: CorpusSettings) -> dict[str, str | None]:
    unknown = sorted(set(settings.fields) - set(FIELDS))
    if unknown:
        raise RequestError(f"corpus.fields.{unknown[0]}: taz has {', '.join(FIELDS)}")
    fields = {**FIELDS, **settings.fields}
    if settings.years and fields["date"] is None:
        raise RequestError("corpus.years needs corpus.fields.date; or say corpus.years=''")
    if all(fields[part] is None for part in PARTS):
        raise RequestError("corpus.fields: one of headline, lead and body at least")
    return fields


def _check_fields(
    fields: dict[str, str | None],
    needed: list[str],
    name: str,
    articles: list[dict[str, Any]],
) -> None:
    """Raise where a file has none of a field that we need; a null mapping needs nothing."""
    there = {path for article in articles[:LOOKED_AT] for path in paths(article)}
    for ours in needed:
        theirs = fields[ours]
        if articles and theirs is not None and theirs not in there:
            raise no_field(ours, theirs, name, there)


def _files(settings: CorpusSettings) -> Iterator[tuple[str, bytes]]:
    """Every JSON file, by name, out of zips too."""
    if not settings.path:
        raise missing(settings, "no data given")
    path = Path(settings.path).expanduser()
    if not path.exists():
        raise missing(settings, f"nothing at {path}")
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    found = False
    for file in files:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                for member in sorted(archive.namelist()):
                    if _is_json(member):
                        found = True
                        yield f"{file.name}/{member}", _unpacked(member, archive.read(member))
        elif file.is_file() and _is_json(file.name):
            found = True
            yield file.name, _unpacked(file.name, file.read_bytes())
    if not found:
        raise RequestError(f"{path}: no .json, .json.gz or .zip of them; corpus.reader=taz")


def _is_json(name: str) -> bool:
    hidden = name.startswith("__MACOSX/") or Path(name).name.startswith(".")
    return name.lower().endswith((".json", ".json.gz")) and not hidden


def _unpacked(name: str, content: bytes) -> bytes:
    if not name.lower().endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise RequestError(f"{name}: not a whole gzip file; download it again") from error


def _articles(name: str, content: bytes) -> list[dict[str, Any]]:
    try:
        tree = json.loads(content)
    except ValueError as error:
        raise RequestError(f"{name}: not JSON, or not all of it ({error})") from error
    articles = list(tree.values()) if isinstance(tree, dict) else tree
    if not isinstance(articles, list) or not all(isinstance(item, dict) for item in articles):
        raise RequestError(
            f"{name}: not of the form {{article_id: {{…}}}} that taz2024full has; for other "
            "text see corpus=text"
        )
    return articles


def _years(said: str) -> tuple[int, int]:
    """Read `2019-2024`, `2021`, `2019-`, `-2000` or nothing, as (first, last)."""
    match = re.fullmatch(r"\s*(\d{4})?\s*([-–])?\s*(\d{4})?\s*", str(said))
    if not match or (match[3] and not match[2]) or match[0].strip() in ("-", "–"):
        raise RequestError(f"corpus.years={said}: write 2019-2024, 2021, 2019- or -2000")
    first = int(match[1]) if match[1] else 0
    last = int(match[3]) if match[3] else (9999 if match[2] or not match[1] else first)
    if first > last:
        raise RequestError(f"corpus.years={said}: the first year comes first")
    return first, last


def _year(date: Any) -> int | None:
    """The year of a date in whatever form: 2021-03-08, 08.03.2021, 20210308."""
    match = _YEAR.search(str(date)) if date is not None else None
    return int(match[1]) if match else None


def _text(article: dict[str, Any], fields: dict[str, str | None]) -> str:
    values = (lookup(article, theirs) for part in PARTS if (theirs := fields[part]))
    return "\n".join(text for value in values for text in _strings(value))


def _strings(value: Any) -> list[str]:
    """Every string in a value: itself, or those in its lists and objects."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return []
