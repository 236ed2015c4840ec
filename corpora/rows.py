"""From documents that stay to the rows of a built corpus: the text here, who wrote it there."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from corpora import prepared, steps
from corpora.documents import Document
from corpora.prepared import ROWS
from corpora.privacy import PROVENANCE, Store
from corpora.summary import Row


def tables(built: steps.Built, store: Store) -> tuple[dict[str, pa.Table], pa.Table]:
    """The rows of each split (columns: `prepared.ROWS`), and the provenance of all of them."""
    splits = {}
    provenance: list[pa.RecordBatch] = []
    for split, part in (("train", built.train), ("valid", built.valid)):
        batches = []
        for start in range(0, len(part), 4096):
            public, secret = [], []
            for kept in part[start : start + 4096]:
                document = kept.document
                keys = store.keys(document, kept.text)
                public.append(
                    {
                        "text": kept.text,
                        "key": keys.document,
                        "author": keys.author,
                        "post": keys.post,
                        "instance": keys.instance,
                        "language": kept.label,
                        "groups": list(kept.groups),
                    }
                )
                secret.append(
                    {
                        "key": keys.document,
                        "author": document.author,
                        "post": document.key,
                        "host": document.host,
                        "date": document.date,
                        "origin": document.origin,
                    }
                )
            batches.append(pa.RecordBatch.from_pylist(public, schema=ROWS))
            provenance.append(pa.RecordBatch.from_pylist(secret, schema=PROVENANCE))
        splits[split] = pa.Table.from_batches(batches, schema=ROWS)
    return splits, pa.Table.from_batches(provenance, schema=PROVENANCE)


def counted(table: pa.Table) -> Iterator[Row]:
    """The rows of a split as `summary` takes them."""
    for batch in table.select(["text", "author", "language", "groups"]).to_batches(4096):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def kept(folder: Path) -> Iterator[steps.Kept]:
    """The rows of a built corpus as documents, with the split that they have; names are keys."""
    columns = ["text", "key", "author", "instance", "language", "groups"]
    for split, table in prepared.tables(folder).items():
        for batch in table.select(columns).to_batches(4096):
            for text, key, author, host, label, groups in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            ):
                document = Document(
                    "", origin=split, split=split, key=key, author=author, host=host
                )
                yield steps.Kept(text, document, tuple(groups), label, 1.0)
