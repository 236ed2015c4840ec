"""taz2024full (Urchs et al. 2025, 2506.05388): 1.8 million articles of the taz, 1980–2024.

JSON, a file a year, in the form `{article_id: {…, "text": {…}}}`: a file, a folder of files or
an archive of them, read as a stream. The same articles as a JSON list, JSON lines, CSV, Parquet
or a dataset of the hub are read too. How the keys are called is a mapping, `corpus.fields`,
checked against each file: `headline`, `lead`, `body`, `date`, `keywords`, `author`, `id`, each a
dotted path. A field that the data lacks is set to null; without `id` it is the article's key.

Articles are chosen by year and by keywords, as the German paper does (2608.30884, §3.4): in
the article's own keywords where `fields.keywords` names them, else in its text; a placebo's
(`corpus.control`) are those that have none of them. One article
is one document: headline, lead and body, a line each.
"""

import re
from collections.abc import Iterator
from typing import Any

from corpora import CorpusSettings, hub, records
from corpora.documents import Document, iso_date, lookup
from corpora.errors import RequestError
from corpora.keywords import matcher
from corpora.years import years

#: What we want of an article, and where it is unless `corpus.fields` says otherwise.
FIELDS: dict[str, str | None] = {
    "headline": "text.headline",
    "lead": "text.lead",
    "body": "text.body",
    "date": "publishing_date",
    "keywords": "keywords",
    "author": None,
    "id": None,
}
PARTS = ("headline", "lead", "body")
SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


def read(settings: CorpusSettings) -> Iterator[Document]:
    """Give every article, those that are not wanted marked as dropped; one at a time.

    Raises:
        RequestError: nothing at the path, files of another form, a field that isn't there, or
            a file that can't be read (with `on_error=stop`).
    """
    fields = _fields(settings)
    first, last = years(settings.years)
    wanted = matcher(settings.keywords) if settings.keywords else None
    needed = [*PARTS, "author", "id", *(["keywords"] if wanted else [])]
    checked = False
    for name, found in _tables(settings, [fields[key] for key in FIELDS]):
        rows = records.Ahead(found)
        if settings.years:
            records.check(rows.look(), fields, ["date"], name)
        for key, article in rows:
            if not isinstance(article, dict):
                yield Document("", origin=name, dropped=_unreadable(article, name))
                continue
            reason = _outside(article, fields["date"], settings.years, first, last)
            if not reason and not checked:  # older articles may lack what the wanted ones have
                records.check([article, *rows.look()], fields, needed, name)
                checked = True
            if not reason and wanted and _about(article, fields, wanted) == settings.control:
                reason = "with a keyword" if settings.control else "without a keyword"
            yield Document(
                "" if reason else _text(article, fields),
                origin=name,
                dropped=reason,
                key=str(_value(article, fields["id"]) or key),
                author="; ".join(_strings(_value(article, fields["author"]))),
                date=iso_date(_value(article, fields["date"])),
                language="de",
            )


def _tables(
    settings: CorpusSettings, wanted: list[str | None]
) -> Iterator[tuple[str, Iterator[tuple[str, Any]]]]:
    """Every table of articles: its name, and (id, article) for each."""
    paths = [path for path in wanted if path]
    if settings.hub:
        yield settings.hub, hub.rows(settings)
        return
    for file in records.files(settings, SUFFIXES):
        yield file.name, records.rows(file, settings, paths)


def _unreadable(article: Any, name: str) -> str:
    if article in records.UNREADABLE:
        return str(article)
    raise RequestError(
        f"{name}: not of the form {{article_id: {{…}}}} that taz2024full has; for other text see "
        "corpus=text"
    )


def _outside(
    article: dict[str, Any], date: str | None, said_years: str, first: int, last: int
) -> str:
    """Why an article is not of the wanted years; '' if it is."""
    if not said_years or date is None:
        return ""
    said = iso_date(lookup(article, date))
    if not said:
        return "without a date"
    return "" if first <= int(said[:4]) <= last else f"not of {said_years}"


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


def _value(article: dict[str, Any], path: str | None) -> Any:
    return lookup(article, path) if path else None


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
