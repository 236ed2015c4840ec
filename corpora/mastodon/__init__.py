"""Posts from Mastodon, by consent: gathered into a private store, then read like any source.

`gather` asks the instances of the allowlist, and no other, for their public or hashtag
timelines; `read` gives what it stored; `gone` asks later what has been deleted or opted out
since. Local posts only, by authors who haven't opted out: see `rules` for what is taken,
`client` for how an instance's own rules are kept, `store` for what survives a kill.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from corpora import CorpusSettings
from corpora.consent import Consent, bare, check_public, chosen, read_allowlist
from corpora.documents import Document
from corpora.errors import RequestError, Stopped
from corpora.mastodon import rules
from corpora.mastodon.client import LOOK_UP, Client, DownError, RefusedError, user_agent
from corpora.mastodon.pacing import Clock, Manners
from corpora.mastodon.store import Journal, Page, Post, Store, is_store, total, write

#: Pages between two lines that say how far it is.
_SAID_EVERY = 25
_PROGRESS = "recheck.jsonl"

Say = Callable[[str], None]
Unwanted = Callable[[Document], bool]


def gather(
    settings: CorpusSettings,
    store: Path,
    say: Say,
    *,
    unwanted: Unwanted | None = None,
    manners: Manners | None = None,
) -> dict[str, Any]:
    """Fetch what is still missing of the timelines into the folder `store`; returns the facts.

    Killed at any moment, the same call goes on from the last page on disk and asks for no
    page on disk again. Posts for which `unwanted` is true (forgotten ones) are left out.

    Raises:
        RequestError: nobody consented, no contact, a private address, another command at it;
            or no post at all was taken, with what stood in the way.
        Stopped: an instance is down, or the disk is full; what is saved stays.
    """
    listed = read_allowlist(settings.allowlist, settings.allow_local)
    consents = chosen(listed, settings.instances, settings.allowlist)
    contact = _contact(settings.contact)
    hashtags = _hashtags(settings.hashtags)
    kept = Store(store)
    kept.open(settings)
    skipped: dict[str, str] = {}
    down: dict[str, str] = {}
    with kept.locked():
        work = _Gathering(settings, kept, say, unwanted, manners or Manners())
        todo = {
            consent: left for consent in consents if (left := work.left(consent.host, hashtags))
        }
        if not settings.allow_local:
            for consent in todo:
                check_public(consent)
        for consent, journals in todo.items():
            try:
                work.fetch(consent, contact, journals)
            except RefusedError as error:
                skipped[consent.host] = str(error)
                say(f"{consent.host}: skipped: {error}")
            except DownError as error:
                down[consent.host] = str(error)
                say(f"{consent.host}: {error}")
        journals = [one for one in kept.journals() if one.host in {c.host for c in consents}]
        posts = Counter({host: len(ids) for host, ids in work.taken.items()})
    if down:
        why = "; ".join(f"{host}: {problem}" for host, problem in down.items())
        raise Stopped(
            f"{why}. {posts.total():,} posts are saved in {store}; the same command goes on "
            "from there"
        )
    dropped = total(journals)
    if not posts.total():
        reasons = [f"{host}: {problem}" for host, problem in skipped.items()]
        reasons += [f"{count:,} {reason}" for reason, count in dropped.most_common()]
        raise RequestError(
            f"corpus {settings.name}: no post was taken ({'; '.join(reasons) or 'none there'})"
        )
    return {
        "instances": {
            consent.host: {
                "date": consent.date,
                "agreed_by": consent.agreed_by,
                "agreed_to": consent.agreed_to,
                "terms": consent.terms,
                "posts": posts[consent.host],
                "pages": sum(one.pages for one in journals if one.host == consent.host),
            }
            for consent in consents
        },
        "skipped": skipped,
        "hashtags": hashtags,
        "posts": posts.total(),
        "dropped": dict(dropped),
        "user_agent": user_agent(contact),
    }


def read(settings: CorpusSettings) -> Iterator[Document]:
    """Give every post in the store at `settings.path`, and one without text for each not taken.

    Messages that an account generates anew each day (the same but for numbers, links and days,
    on three days or more) come marked as dropped too, as in the paper (2608.30884, §3.4).

    Raises:
        RequestError: no store there, or one of another version.
    """
    if not settings.path:
        raise RequestError(
            "corpus mastodon: no data given; `mitigate corpus mastodon allowlist=FILE "
            "contact=ADDRESS out=DIR` gathers it, then corpus.path=DIR; posts that were handed "
            "over in files: corpus.reader=text"
        )
    folder = Path(settings.path).expanduser()
    if not is_store(folder):
        raise RequestError(
            f"corpus mastodon: {folder} is not what `mitigate corpus mastodon` made; posts that "
            "were handed over in files: corpus.reader=text"
        )
    store = Store(folder)
    store.about()
    wanted = {bare(host) for host in settings.instances}
    journals = [one for one in store.journals() if not wanted or one.host in wanted]
    daily = _daily(store, journals)
    given: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for journal in journals:
        for post in store.posts(journal):
            if (journal.host, post.id) in seen:
                continue
            if settings.posts is not None and given[journal.host] >= settings.posts:
                break
            seen.add((journal.host, post.id))
            given[journal.host] += 1
            if _pattern(journal, post) in daily:
                yield Document("", origin=journal.host, dropped="daily message")
            else:
                yield _document(post, journal.host)
        for reason, count in journal.dropped.items():
            for _ in range(count):
                yield Document("", origin=journal.host, dropped=reason)


def gone(
    settings: CorpusSettings,
    posts: Iterable[Document],
    say: Say,
    *,
    progress: Path,
    manners: Manners | None = None,
) -> set[str]:
    """The keys of those posts that are deleted, closed or opted out since they were gathered.

    Asks each post's instance at the pace of `gather`; a host that has left the allowlist has
    withdrawn, and all its posts are gone unasked. In the folder `progress` the call notes how
    far it is: killed, the next call goes on from there; the note is taken away at the end.

    Raises:
        RequestError: as `gather`.
        Stopped: an instance is down, or refuses to be asked.
    """
    listed = {
        consent.host: consent
        for consent in read_allowlist(settings.allowlist, settings.allow_local)
    }
    contact = _contact(settings.contact)
    by_host: dict[str, dict[str, None]] = defaultdict(dict)
    for post in posts:
        by_host[post.host][post.key] = None
    notes = progress / _PROGRESS
    checked, found = _noted(notes)
    down: dict[str, str] = {}
    for host, keys in by_host.items():
        if host not in listed:
            say(f"{host}: no longer in {settings.allowlist}; its {len(keys):,} posts go")
            found |= {(host, key) for key in keys}
            continue
        left = [key for key in keys if (host, key) not in checked]
        if not left:
            continue
        if not settings.allow_local:
            check_public(listed[host])
        try:
            client = Client(listed[host], contact, manners or Manners(), say)
            for start in range(0, len(left), LOOK_UP):
                batch = left[start : start + LOOK_UP]
                there = {
                    str(post["id"])
                    for post in client.look_up(batch)
                    if not rules.reason_against(
                        post, bots=settings.bots, sensitive=settings.sensitive
                    )
                }
                missing = [key for key in batch if key not in there]
                found |= {(host, key) for key in missing}
                _note(notes, host, batch, missing)
        except RefusedError as error:
            down[host] = f"{error}; taken out of {settings.allowlist}, all its posts go"
        except DownError as error:
            down[host] = str(error)
    if down:
        why = "; ".join(f"{host}: {problem}" for host, problem in down.items())
        raise Stopped(f"{why}. What was asked is noted; the same command goes on from there")
    notes.unlink(missing_ok=True)
    return {key for host, key in found if key in by_host.get(host, ())}


class _Gathering:
    """One run over the instances: what is there already, and what comes to it."""

    def __init__(
        self,
        settings: CorpusSettings,
        store: Store,
        say: Say,
        unwanted: Unwanted | None,
        manners: Manners,
    ) -> None:
        self.settings = settings
        self.store = store
        self.say = say
        self.unwanted = unwanted or (lambda _document: False)
        self.manners = manners
        self.taken: dict[str, set[str]] = defaultdict(set)  # host: ids of its posts
        for journal in store.journals():
            self.taken[journal.host].update(post.id for post in store.posts(journal))

    def left(self, host: str, hashtags: list[str]) -> list[Journal]:
        """The host's timelines that aren't at their end."""
        if self._enough(host):
            return []
        journals = [self.store.journal(host, hashtag) for hashtag in hashtags or [""]]
        return [journal for journal in journals if not journal.ended]

    def fetch(self, consent: Consent, contact: str, journals: list[Journal]) -> None:
        """Fetch an instance's timelines to their ends.

        A timeline that is refused doesn't keep the others from being fetched.
        """
        host = consent.host
        client = Client(consent, contact, self.manners, self.say)
        refused: dict[str, str] = {}
        for journal in journals:
            if journal.pages:
                self.say(f"{host}: going on after page {journal.pages:,}")
            try:
                self._fetch(client, journal)
            except RefusedError as error:
                refused[f"#{journal.hashtag}" if journal.hashtag else "public"] = str(error)
        self.say(f"{host}: {len(self.taken[host]):,} posts")
        if refused:
            raise RefusedError("; ".join(f"{name}: {why}" for name, why in refused.items()))

    def _fetch(self, client: Client, journal: Journal) -> None:
        while not journal.ended and not self._enough(journal.host):
            answered = client.page(journal.hashtag, journal.next)
            posts, dropped = [], Counter[str]()
            for status in answered.posts:
                reason = rules.reason_against(
                    status, bots=self.settings.bots, sensitive=self.settings.sensitive
                )
                post = _post(status)
                if not reason and post.id in self.taken[journal.host]:
                    continue  # by another hashtag
                if not reason and self.unwanted(_document(post, journal.host)):
                    reason = "forgotten"
                if reason:
                    dropped[reason] += 1
                else:
                    posts.append(post)
            self.store.append(journal, Page(posts, dict(dropped), answered.next))
            self.taken[journal.host].update(post.id for post in posts)
            if journal.pages % _SAID_EVERY == 0:
                count = len(self.taken[journal.host])
                self.say(f"{journal.host}: {journal.pages:,} pages, {count:,} posts")

    def _enough(self, host: str) -> bool:
        return self.settings.posts is not None and len(self.taken[host]) >= self.settings.posts


def _contact(said: str) -> str:
    contact = said.strip()
    if not contact:
        raise RequestError(
            "corpus.contact: whom shall an instance write to? Give a mail address or a page as "
            "contact=…; it stands in the crawler's user agent"
        )
    mail = re.fullmatch(r"[\x21-\x7e]+@[\x21-\x7e]+\.[\x21-\x7e]+", contact)
    if not mail and not re.fullmatch(r"https?://[\x21-\x7e]+", contact):
        raise RequestError(f"corpus.contact={said!r}: must be a mail address or a link (https://…)")
    return contact


def _hashtags(said: list[str]) -> list[str]:
    hashtags = [hashtag.strip().removeprefix("#") for hashtag in said]
    for given, hashtag in zip(said, hashtags, strict=True):
        if not re.fullmatch(r"\w+", hashtag):
            raise RequestError(f"corpus.hashtags: {given!r} is no hashtag; say queer, or nonbinary")
    return list(dict.fromkeys(hashtag.casefold() for hashtag in hashtags))


def _post(status: Any) -> Post:
    date = status.get("created_at")
    return Post(
        id=str(status["id"]),
        acct=str(status["account"].get("acct") or ""),
        date=date.isoformat() if hasattr(date, "isoformat") else str(date or ""),
        language=str(status.get("language") or ""),
        content=str(status.get("content") or ""),
    )


def _document(post: Post, host: str) -> Document:
    return Document(
        post.content,
        origin=host,
        key=post.id,
        author=f"{post.acct}@{host}",
        host=host,
        date=post.date,
        language=post.language,
        html=True,
    )


def _daily(store: Store, journals: list[Journal]) -> set[int]:
    """The patterns that one author posted on `rules.DAILY` days or more."""
    days: dict[int, set[str]] = defaultdict(set)
    for journal in journals:
        for post in store.posts(journal):
            if (found := _pattern(journal, post)) is not None:
                days[found].add(post.date[:10])
    return {found for found, on in days.items() if len(on) >= rules.DAILY}


def _pattern(journal: Journal, post: Post) -> int | None:
    pattern = rules.pattern(post.content)
    return hash((journal.host, post.acct, pattern)) if pattern else None


def _noted(notes: Path) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """What an earlier call that was cut short found out: (asked, gone), host and key each."""
    asked: set[tuple[str, str]] = set()
    missing: set[tuple[str, str]] = set()
    if notes.exists():
        content = notes.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]  # a kill may have torn the last line
        if len(whole) < len(content):
            write(notes, whole)
        for line in whole.splitlines():
            note = json.loads(line)
            asked |= {(note["host"], key) for key in note["asked"]}
            missing |= {(note["host"], key) for key in note["gone"]}
    return asked, missing


def _note(notes: Path, host: str, asked: list[str], missing: list[str]) -> None:
    notes.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with notes.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"host": host, "asked": asked, "gone": missing}) + "\n")


__all__ = ["Clock", "Manners", "Store", "gather", "gone", "is_store", "read"]
