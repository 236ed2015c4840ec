"""Deletions propagate: what has been deleted at the source, or opted out since, leaves a corpus."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from corpora import CorpusSettings, forget, privacy
from corpora.documents import Document
from corpora.errors import RequestError

#: What a source is asked with; the private folder keeps it, a command may say it anew.
ASKED_WITH = ("allowlist", "contact", "bots", "sensitive", "allow_local")


def recheck(
    folder: Path,
    *,
    private: Path | None = None,
    changes: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Ask the source of a built corpus again, and take out what is gone; returns how many.

    Posts from Mastodon are looked up on their instances; an instance that has left the
    allowlist has withdrawn. Of any corpus, what was forgotten in another one with the same
    private folder goes too. `changes`: of ASKED_WITH, what isn't as it was.

    Raises:
        RequestError: no corpus there, another private folder's, or as `mastodon.gather`.
        Stopped: an instance is down; what was asked is kept, and nothing was taken out yet.
    """
    with forget.opened(folder, private) as (store, corpus):
        about = store.corpora()[corpus]
        if about["reader"] == "mastodon":
            unwanted = _gone(store.provenance(corpus).to_pylist(), about, changes or {}, store, say)
            store.leave_out(unwanted)
        elif changes:
            raise RequestError(
                f"{folder}: {next(iter(changes))}= is for posts from Mastodon; this corpus has "
                f"reader {about['reader']}"
            )
        else:
            say("its source can't be asked: only what was forgotten since is looked for")
        count = forget.take_out(folder, store, corpus, store.forgotten, "gone at the source")
        forget.drop_gathered(store)
    return count


def _gone(
    posts: list[dict[str, str]],
    about: dict[str, Any],
    changes: dict[str, Any],
    store: privacy.Store,
    say: Callable[[str], None],
) -> set[str]:
    """The keys of the posts that are no longer there for us."""
    from corpora import mastodon

    settings = dataclasses.replace(
        CorpusSettings(name=about["name"], reader="mastodon"),
        **{key: changes.get(key, about[key]) for key in ASKED_WITH},
    )
    by_host: dict[str, list[Document]] = defaultdict(list)
    for post in posts:
        by_host[post["host"]].append(Document("", key=post["post"], host=post["host"]))
    found = set()
    for host, some in by_host.items():
        progress = store.folder / "recheck" / quote(host, safe="")
        missing = mastodon.gone(settings, some, say, progress=progress)
        found |= {store.key("post", f"{host}/{name}") for name in missing}
    return found
