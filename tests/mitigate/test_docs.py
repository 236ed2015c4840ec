"""What the documents tell a user to type is understood."""

import re
import shlex

import pytest

from mitigate import settings
from tests.conftest import ROOT


def overrides() -> list[str]:
    """The code of the first column of docs/overrides.md, as a shell hands it on."""
    text = (ROOT / "docs" / "overrides.md").read_text("utf-8")
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    code = [some for row in rows for some in re.findall(r"`([^`]+=[^`]+)`", row)]
    return [" ".join(shlex.split(some)) for some in code]


@pytest.mark.parametrize("said", overrides())
def test_overrides_are_understood(said: str) -> None:
    given = re.split(r" (?=[a-z_.]+=)", said.replace("OWNER/NAME", "a/b"))
    words = [] if "benchmark=" in said else ["benchmark=winoqueer_nl"]
    settings.from_words([*words, *given], recipe="demo_causal")


def test_there_are_overrides_to_try() -> None:
    assert len(overrides()) > 25
