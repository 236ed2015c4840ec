"""Publishing a result on the hub, where the user asks for it: weights, tokenizer, card, no text.

The token comes from the environment (HF_TOKEN) and from nowhere else, so that no login which
happens to lie on a machine is used unasked. A corpus is never uploaded: only files that are named
below can be.
"""

import os
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from eval.errors import RequestError
from mitigate.console import say
from mitigate.run import Run
from mitigate.settings import Recipe

TOKEN = "HF_TOKEN"
#: The files that may leave this machine. What a tokenizer learned it had before the run.
UPLOADED = (
    "README.md", "config.json", "generation_config.json", "adapter_config.json",
    "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json",
    "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja", "bpe.codes",
)  # fmt: skip


class PushError(RuntimeError):
    """The hub didn't take the result; everything of the run is kept."""


def check(recipe: Recipe) -> None:
    """Refuse a push that can't work, before anything is loaded.

    Raises:
        RequestError: the name is not OWNER/NAME, the hub is switched off, there is no token, or
            the result would be an adapter on a model that the hub doesn't have.
    """
    name = recipe.hub.push
    if name is None:
        return
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise RequestError(f"hub.push={name}: not a name on the hub, OWNER/NAME") from error
    if name.count("/") != 1:
        raise RequestError(f"hub.push={name}: whose? hub.push=OWNER/NAME")
    if constants.HF_HUB_OFFLINE:
        raise RequestError(f"hub.push={name}: HF_HUB_OFFLINE is set; without it, or hub.push=null")
    if not os.environ.get(TOKEN):
        raise RequestError(f"hub.push={name}: no token; set {TOKEN} to one that may write")
    known = recipe.model.hub and not recipe.model.path
    if recipe.method.weights == "lora" and not known and not recipe.result.merge:
        raise RequestError(
            f"hub.push={name}: nobody could load an adapter on a model that is not on the hub; "
            "result.merge=true publishes the merged model"
        )


def push(run: Run, recipe: Recipe, folder: Path) -> str:
    """Upload `folder` (an adapter's or a model's, with its card); returns the page's address.

    A run that was stopped afterwards does not upload again.

    Raises:
        PushError: the hub refused or can't be reached, or what was kept is of no use there.
    """
    name = recipe.hub.push
    assert name is not None
    if folder.name == "adapter" and not recipe.model.hub:
        raise PushError(
            f"hub.push={name}: the adapter could not be merged, and nobody could load it on a "
            "model that is not on the hub; hub.push=null ends the run without"
        )
    done: dict[str, Any] = run.manifest.get("hub", {})
    if done.get("name") == name:
        return str(done["address"])
    api = HfApi(token=os.environ[TOKEN])
    try:
        api.create_repo(name, private=recipe.hub.private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=list(UPLOADED),
            commit_message=f"{recipe.name}: {folder.name} of {run.folder.name}",
        )
    except HfHubHTTPError as error:
        said = error.server_message or str(error).strip().split("\n")[0]
        raise PushError(f"hub.push={name}: the hub refused: {said}") from error
    except (httpx.HTTPError, OSError) as error:
        raise PushError(f"hub.push={name}: the hub can't be reached: {error}") from error
    address = f"{api.endpoint}/{name}"
    run.note(
        hub={
            "name": name,
            "address": address,
            "commit": commit.oid,
            "private": recipe.hub.private,
            "folder": folder.name,
        }
    )
    say(f"{folder.name}/ is on the hub: {address}")
    return address
