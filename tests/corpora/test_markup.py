"""HTML to text: the shapes that Mastodon sends, and markup that is broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.clean import clean
from corpora.markup import texts, to_text

MENTION = (
    '<span class="h-card" translate="no"><a href="https://chaos.social/@alex" '
    'class="u-url mention">@<span>alex</span></a></span>'
)
LINK = (
    '<a href="https://taz.de/abc-def" target="_blank" rel="nofollow noopener">'
    '<span class="invisible">https://</span><span class="ellipsis">taz.de/abc</span>'
    '<span class="invisible">-def</span></a>'
)
TAG = (
    '<a href="https://chaos.social/tags/queer" class="mention hashtag" rel="tag">'
    "#<span>queer</span></a>"
)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>eins</p><p>zwei</p>", "eins\nzwei"),
        ("eins<br>zwei<br />drei", "eins\nzwei\ndrei"),
        (f"<p>Hallo {MENTION}, sieh {LINK}!</p>", "Hallo @user, sieh http!"),
        (f"<p>Das {TAG}e Leben</p>", "Das queere Leben"),
        (f"<p>Schön.</p><p>{TAG} {TAG}</p>", "Schön."),
        ('<a href="https://www.taz.de/x">taz.de/x</a>', "http"),
        ('Die <a href="https://taz.de/x">Studie</a> sagt', "Die Studie sagt"),
        ('<p class="quote-inline">RE: <a href="https://a.b/1">a.b/1</a></p><p>Ja</p>', "Ja"),
        ("<p>Schüler*innen &amp; Kolleg_innen&nbsp;da</p>", "Schüler*innen & Kolleg_innen da"),
        ("<script>x()</script><style>p{}</style>Text<!-- nie -->", "Text"),
        ("<ul><li>a<li>b</ul>c", "a\nb\nc"),
        ("<em>u</em>n<b>d</b>", "und"),
        ("", ""),
    ],
)
def test_each_shape(html: str, text: str) -> None:
    assert clean(to_text(html)) == text


SIGNS = (
    "<p> </p> <b> </b> <a> </a> <!-- --> <table> <td> <select> <x-one-document> wort "
    "</x-one-document> <script> </script> <textarea> <plaintext> <svg> <title> <body> "
    "<frameset> <template> </body> </html> &lt; <option> <form> <i"
)
PIECES = st.lists(st.sampled_from(SIGNS.split(" ")), max_size=5).map("".join)


@given(st.lists(PIECES, max_size=4))
def test_a_piece_reads_the_same_whatever_stands_beside_it(pieces: list[str]) -> None:
    assert texts(pieces) == [to_text(piece) for piece in pieces]
