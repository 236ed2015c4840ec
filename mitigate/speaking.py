"""A model behind an API, as a recipe names it."""

from pathlib import Path

from eval.errors import RequestError
from eval.speakers.remote import RemoteSpeaker
from eval.speakers.remote.client import Manners
from eval.speakers.remote.cost import Prices, rule_of_thumb
from eval.speakers.remote.settings import RemoteSettings
from mitigate import models
from mitigate.console import cache_folder, say, world_size
from mitigate.settings import ModelSettings

#: The recipe that stands for all models behind an API; a server has none of that name.
RECIPE = "openai_compatible"


def remote(model: ModelSettings, *, reuse: bool = True) -> RemoteSpeaker:
    """A model behind an API, without any weights; its answers are kept in the cache.

    Raises:
        RequestError: no address, name or key, or several processes.
    """
    if world_size() > 1:
        raise RequestError(
            f"a model behind an API is asked by one process, not by {world_size()}; "
            "model.concurrency=N makes N requests at once"
        )
    settings = RemoteSettings(
        base_url=model.base_url or "",
        name="" if model.name == RECIPE else model.name,
        key_env=model.key_env,
        chats=model.chats,
        concurrency=model.concurrency,
        top_logprobs=model.top_logprobs,
        temperature=model.temperature,
        prices=Prices(model.price_in, model.price_out),
        ceiling=model.ceiling,
        manners=Manners(timeout=model.timeout),
    )
    count = rule_of_thumb
    if model.token_counter is not None:
        given = model.token_counter
        local = Path(given).expanduser().is_dir()
        named = ModelSettings(path=given) if local else ModelSettings(hub=given)
        tokenizer = models.load_tokenizer(named)

        def count(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    folder = cache_folder() / "answers"
    return RemoteSpeaker(settings, folder, reuse=reuse, count=count, say=say)
