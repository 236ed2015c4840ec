"""HTML to text, with lexbor's parser: paragraphs kept apart, links whole, mentions without names.

The shapes are Mastodon's (posts as its API gives them): links cut into `invisible` and
`ellipsis` spans, mentions as `a.mention`, hashtags as `a.mention.hashtag`; other HTML comes out
as its visible text. What is left to `corpora.clean`: placeholders for links, hashtags, entities
that were escaped twice.
"""

from collections.abc import Iterator, Sequence

from selectolax.lexbor import LexborHTMLParser, LexborNode

from corpora.placeholders import HANDLE, LINK

#: Each document of a batch stands in one of these. Were it closed or left open by a document,
#: the count of them would not be right, and the batch is parsed one by one.
_FENCE = "x-one-document"
_BATCH = 64
_BLOCK_NAMES = (
    "address article aside blockquote body br caption dd details dialog div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol option p pre "
    "section summary table tbody td tfoot th thead tr ul"
)
_UNSEEN_NAMES = (
    "area audio button canvas embed head iframe input link map math meta noscript object rp rt "
    "script select source style svg template textarea title track video -comment !doctype"
)
_BLOCKS, _UNSEEN = frozenset(_BLOCK_NAMES.split()), frozenset(_UNSEEN_NAMES.split())


def to_text(html: str) -> str:
    """The text of one piece of HTML."""
    return texts([html])[0]


def texts(pieces: Sequence[str]) -> list[str]:
    """The text of each piece of HTML, as `to_text`, many to a parse: that is five times faster.

    What stands in one piece has no effect on another, however broken its markup is.
    """
    found: list[str] = []
    for start in range(0, len(pieces), _BATCH):
        batch = pieces[start : start + _BATCH]
        bodies = _parsed(batch)
        if bodies is None:  # unclosed markup somewhere
            bodies = [_alone(piece) for piece in batch]
        found += ["".join(_words(body)) for body in bodies]
    return found


def _parsed(pieces: Sequence[str]) -> list[LexborNode] | None:
    """The node of each piece; None where one of them reaches into its neighbours."""
    fenced = "".join(f"<{_FENCE}>{piece}</{_FENCE}>" for piece in pieces)
    nodes = list(_body(fenced).iter(include_text=True))[1:]
    if len(nodes) != len(pieces) or any(node.tag != _FENCE for node in nodes):
        return None
    return nodes


def _alone(piece: str) -> LexborNode:
    parsed = _parsed([piece])
    return parsed[0] if parsed is not None else _body(piece)


def _body(html: str) -> LexborNode:
    # Something seen comes first, so that a <frameset> cannot take the body's place.
    body = LexborHTMLParser(f"<br>{html}").body
    if body is None:
        raise AssertionError("lexbor gives every document a body")
    return body


def _words(node: LexborNode) -> Iterator[str]:
    child = node.first_child
    while child is not None:
        tag = child.tag
        if tag == "-text":
            # Line breaks of the source are blanks to a browser.
            yield (child.text_content or "").replace("\n", " ").replace("\r", " ")
        elif tag in _UNSEEN or _is_fallback(child):
            pass
        elif tag in _BLOCKS:
            yield "\n"
            yield from _words(child)
            yield "\n"
        elif tag == "a":
            yield _link(child)
        else:
            yield from _words(child)
        child = child.next


def _is_fallback(node: LexborNode) -> bool:
    """Whether this stands for a quoted post, for readers that can't show one: its address."""
    return node.tag in ("p", "span") and "quote-inline" in (node.attributes.get("class") or "")


def _link(node: LexborNode) -> str:
    """A mention without its name, an address as a placeholder, other links as their words."""
    inside = "".join(_words(node))
    shown = inside.strip()
    attributes = node.attributes
    classes = (attributes.get("class") or "").split()
    if "hashtag" in classes or shown.startswith("#"):
        return inside
    if "mention" in classes or "u-url" in classes or shown.startswith("@"):
        return f" {HANDLE} " if shown != inside else HANDLE
    href = (attributes.get("href") or "").strip()
    bare = href.partition("://")[2] or href
    if shown and (
        "://" in shown
        or shown.startswith("www.")
        or bare.removeprefix("www.").startswith(shown.rstrip("…").removeprefix("www."))
    ):
        return LINK
    return inside
