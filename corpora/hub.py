"""Datasets of the hub, and folders that the `datasets` library reads, as a stream of records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpora import CorpusSettings
from corpora.errors import RequestError

#: What `save_to_disk` leaves in a folder of splits, and in that of one.
SAVED = ("dataset_dict.json", "state.json")


def is_saved(path: Path) -> bool:
    """Whether a folder is one that `save_to_disk` of the `datasets` library made."""
    return any((path / name).is_file() for name in SAVED)


def rows(settings: CorpusSettings) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of `settings.hub`: ('', record), one at a time, nothing downloaded ahead.

    A folder is read from disk, whether `save_to_disk` made it or it holds files that `datasets`
    understands; anything else is a repository on the hub.

    Raises:
        RequestError: no such folder, repository, configuration or split, or no way to the hub.
    """
    yield from (("", record) for record in _open(settings))


def _open(settings: CorpusSettings) -> Any:
    import datasets  # a second to import, and most corpora don't need it

    said = str(settings.hub)
    folder = Path(said).expanduser()
    asked = f"corpus.hub={said}"
    if not folder.is_dir() and (said.startswith((".", "/", "~")) or said.count("/") > 1):
        raise RequestError(f"{asked}: no such folder; a repository is OWNER/NAME")
    try:
        if is_saved(folder):
            found = datasets.load_from_disk(str(folder))
            if isinstance(found, datasets.Dataset):
                return found
            _check(settings.hub_split, list(found), f"{asked} corpus.hub_split")
            return found[settings.hub_split]
        name = str(folder) if folder.is_dir() else said
        return datasets.load_dataset(
            name, settings.hub_config, split=settings.hub_split, streaming=True
        )
    except (datasets.exceptions.DatasetNotFoundError, FileNotFoundError) as error:
        raise RequestError(
            f"{asked}: no such dataset, or it is not open to you; a repository is OWNER/NAME"
        ) from error
    except ConnectionError as error:
        raise RequestError(
            f"{asked}: the hub can't be reached, or HF_HUB_OFFLINE is set; give a folder with the "
            "data as corpus.hub=DIR, or files as corpus.path="
        ) from error
    except ValueError as error:  # an unknown split or configuration, with those there are
        said = " ".join(str(error).split())
        raise RequestError(f"{asked}: {said} (corpus.hub_split=, corpus.hub_config=)") from error


def _check(split: str, there: list[str], key: str) -> None:
    if split not in there:
        raise RequestError(f"{key}={split}: there are: {', '.join(there)}")
