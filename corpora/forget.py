"""Taking people out of a built corpus: an author, a post, an instance; now and for good.

What is taken out leaves no trace in the folder: no text, no key, no count that includes it. Its
key goes to the private folder's list first, so that no later build takes it again, then the
corpus is written anew beside its place and moved in, then provenance and gathered posts go.
Killed anywhere in between, the same command ends what it began.
"""

import datetime
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from corpora import prepared, privacy, rows
from corpora.documents import Document
from corpora.errors import RequestError
from corpora.summary import summary

#: Columns of a row that name, as keys, what can be forgotten.
COLUMNS = {"author": "author", "post": "post", "instance": "instance"}
#: The step that a datasheet shows.
STEP = "taken out later"


def forget(
    folder: Path,
    kind: str,
    said: str,
    *,
    private: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Take an author, a post or an instance (`kind`) out of a built corpus.

    `said` is a name as people give it: see `privacy.Store.named`. Returns how many documents
    went; 0 is no error: what isn't there is noted all the same, so that no build takes it.

    Raises:
        RequestError: no corpus there or another private folder's, a name that can't be read,
            or one that several have.
    """
    with opened(folder, private) as (store, corpus):
        candidates = store.named(kind, said)
        there = _present(prepared.tables(folder), COLUMNS[kind])
        found = {key: name for key, name in candidates.items() if key in there}
        if len(found) > 1:
            raise RequestError(
                f"{kind}={said}: there are {len(found)} of this name: "
                f"{', '.join(sorted(name.strip('/') for name in found.values()))}; say which"
            )
        wanted = found or dict(list(candidates.items())[:1])
        store.leave_out(wanted)
        host = next(iter(wanted.values())) if kind == "instance" else ""
        gone = take_out(folder, store, corpus, set(wanted), f"{kind} forgotten", host)
        drop_gathered(store)
    for other, about in store.corpora().items():
        place = Path(about["path"])
        if other == corpus or not prepared.is_prepared(place):
            continue
        if not _present(prepared.tables(place), COLUMNS[kind]).isdisjoint(wanted):
            say(f"{place} holds documents of the same {kind} too: forget it there as well")
    sheet = folder / prepared.DATASHEET
    if sheet.is_file() and said.strip("@") in sheet.read_text(encoding="utf-8"):
        say(f"{sheet} names it in what people wrote there: take it out by hand")
    return gone


@contextmanager
def opened(folder: Path, private: Path | None) -> Iterator[tuple[privacy.Store, str]]:
    """The private folder of a built corpus and the corpus's id; the corpus is held meanwhile.

    Raises:
        RequestError: no corpus there, it was built with another private folder, or another
            command is at it.
    """
    private = private or privacy.default_folder()
    store = privacy.existing(private)
    if store is None:
        prepared.load_manifest(folder)
        raise _another(folder, private)
    with store.alone(folder):
        prepared.settle(folder)
        corpus = str(prepared.load_manifest(folder)["id"])
        if corpus not in store.corpora():
            raise _another(folder, private)
        yield store, corpus


def _another(folder: Path, private: Path) -> RequestError:
    return RequestError(
        f"{folder}: was not built with the private folder {private}, without whose salt nobody can "
        "be found in it; give the one it was built with as private=DIR"
    )


def take_out(
    folder: Path,
    store: privacy.Store,
    corpus: str,
    unwanted: Collection[str],
    why: str,
    host: str = "",
) -> int:
    """Take the rows with one of these keys out of a corpus and its provenance; how many went.

    `host`: an instance whose name goes from what the corpus says of its source, too. Nothing
    left: the folder goes.
    """
    keys = pa.array(sorted(unwanted), pa.string())
    splits = prepared.tables(folder)
    kept = {split: table.filter(pc.invert(_any_of(table, keys))) for split, table in splits.items()}
    gone = sum(map(len, splits.values())) - sum(map(len, kept.values()))
    left = pa.concat_tables(table.select(["key"]) for table in kept.values())["key"]
    provenance = store.provenance(corpus)
    provenance = provenance.filter(pc.is_in(provenance["key"], left.combine_chunks()))
    if not len(left):
        prepared.set_aside(folder)
        store.discard(corpus)
        prepared.sweep(folder)
        return gone
    if gone:
        facts = _without(prepared.load_manifest(folder), kept, provenance, gone, why, host)
        prepared.rewrite(folder, kept, facts)
    store.note(corpus, provenance)
    return gone


def _any_of(table: pa.Table, keys: pa.Array) -> pa.ChunkedArray:
    found = pc.is_in(table["key"], keys)
    for column in COLUMNS.values():
        found = pc.or_(found, pc.is_in(table[column], keys))
    return found


def _present(splits: dict[str, pa.Table], column: str) -> set[str]:
    return {key for table in splits.values() for key in table[column].unique().to_pylist() if key}


def _without(
    facts: dict[str, Any],
    kept: dict[str, pa.Table],
    provenance: pa.Table,
    gone: int,
    why: str,
    host: str,
) -> dict[str, Any]:
    """The facts of what is left."""
    after = sum(map(len, kept.values()))
    steps = list(facts["steps"])
    dropped = steps.pop()["dropped"] if steps and steps[-1]["name"] == STEP else {}
    dropped = {**dropped, why: dropped.get(why, 0) + gone}
    before = after + sum(dropped.values())
    steps.append(
        {"name": STEP, "before": before, "after": after, "dropped": dropped, "changed": {}}
    )
    origins = set(provenance["origin"].unique().to_pylist())
    gathered = dict(facts["gathered"])
    for part in ("instances", "skipped"):
        gathered[part] = {name: of for name, of in gathered.get(part, {}).items() if name != host}
    return {
        **facts,
        **summary(
            {split: rows.counted(table) for split, table in kept.items()},
            provenance["date"].to_pylist(),
        ),
        "dropped": {**facts["dropped"], why: facts["dropped"].get(why, 0) + gone},
        "steps": steps,
        "files": [name for name in facts["files"] if name in origins],
        "consent": [entry for entry in facts["consent"] if entry["host"] != host],
        "gathered": gathered if facts["gathered"] else {},
        "forgotten": [
            *facts["forgotten"],
            {"date": datetime.date.today().isoformat(), "why": why, "documents": gone},
        ],
    }


def drop_gathered(store: privacy.Store) -> None:
    """Take what is forgotten out of the posts that were gathered, too."""
    from corpora import mastodon

    for place in sorted((store.folder / "mastodon").glob("*")):
        if mastodon.is_store(place):
            mastodon.Store(place).drop(
                lambda post, host: store.is_forgotten(
                    Document("", key=post.id, author=f"{post.acct}@{host}", host=host)
                )
            )
