"""How a model behind an API is asked, and the one place where its key is read."""

import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from eval.errors import RequestError
from eval.speakers.remote.client import Manners
from eval.speakers.remote.cost import Prices, Used

#: A name of an environment variable. Keys have small letters or hyphens, so that a key that is
#: given in place of the name is refused, and not repeated.
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True)
class RemoteSettings:
    """Which model at which address, how it is asked, and what that may cost.

    `key_env` names the environment variable that holds the key; None where the server wants none.
    """

    base_url: str
    name: str
    key_env: str | None = "OPENAI_API_KEY"
    chats: bool = True  # False: plain text only, at /completions
    concurrency: int = 8  # requests at once
    top_logprobs: int | None = None  # likeliest tokens asked for; None: the API's most
    temperature: float | None = None  # of drawn answers; None: the server's own
    prices: Prices = field(default_factory=Prices)
    ceiling: float | None = None  # of what all answers cost, in the currency of the prices
    manners: Manners = field(default_factory=Manners)


def address(settings: RemoteSettings) -> str:
    """The address without a slash at its end, the settings found to be usable.

    Raises:
        RequestError: says which setting is wrong.
    """
    said = settings.base_url.strip().rstrip("/")
    if set("@?#") & set(said):  # not repeated: it may hold a key
        raise RequestError(
            "model.base_url: an address alone, without user, password, ? or #; a key comes from "
            "the environment (model.key_env)"
        )
    try:
        parts = urlsplit(said)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise RequestError(
            f"model.base_url={said}: an address such as https://api.openai.com/v1 is wanted"
        )
    for ending in ("/chat/completions", "/completions"):
        if said.endswith(ending):
            raise RequestError(f"model.base_url={said}: without {ending}, which is added")
    if not settings.name:
        raise RequestError("which model? model.name=… as the server calls it")
    numbers: dict[str, float | None] = {}
    numbers |= {"concurrency": settings.concurrency, "timeout": settings.manners.timeout}
    numbers |= {"price_in": settings.prices.prompt, "price_out": settings.prices.answer}
    numbers |= {"ceiling": settings.ceiling, "top_logprobs": settings.top_logprobs}
    for name, value in numbers.items():
        free = name.startswith("price")
        if value is not None and not (value >= 0 if free else value > 0):
            what = "must not be less than 0" if free else "must be more than 0"
            raise RequestError(f"model.{name}={value}: {what}")
    if settings.ceiling is not None and settings.prices.of(Used()) is None:
        raise RequestError(
            "model.ceiling needs prices: model.price_in and model.price_out, for a million tokens"
        )
    return said


def key(settings: RemoteSettings) -> str | None:
    """The key, from the environment alone; no error says what it is.

    Raises:
        RequestError: there is none, or its variable's name is none.
    """
    name = settings.key_env
    if name is None:
        return None
    if not _VARIABLE.fullmatch(name):
        raise RequestError(
            "model.key_env names an environment variable (capital letters, digits and _), such as "
            "OPENAI_API_KEY; the key itself is never taken from the command line"
        )
    found = os.environ.get(name, "").strip()
    if not found:
        raise RequestError(
            f"no key: the environment variable {name} is not set; model.key_env=NAME names "
            "another, model.key_env=null is for a server that wants none"
        )
    if not found.isascii() or not found.isprintable() or " " in found:
        raise RequestError(f"the environment variable {name} holds something that is no key")
    return found
