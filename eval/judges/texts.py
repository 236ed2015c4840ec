"""What a judge reads: the word, the sentence, or the sentence with its subject masked."""

import pandas as pd

from eval.errors import RequestError
from eval.judges.settings import MASK


def seen(table: pd.DataFrame, view: str) -> pd.Series:
    """What a judge is given for each completion, empty where there is no usable word. (rows,)

    Args:
        table: a Completion table
        view: word, sentence or masked (eval.judges.settings.VIEWS)

    Raises:
        RequestError: `identity` does not stand in `text`, so that it can't be masked.
    """
    word = table["word"].fillna("").astype(str)
    if view == "word":
        return word
    text = table["text"].astype(str)
    if view == "masked":
        text = _masked(table)
    whole = text + " " + word + table["after"].fillna("").astype(str)
    return whole.where(word != "", "")


def _masked(table: pd.DataFrame) -> pd.Series:
    pairs = list(zip(table["text"].astype(str), table["identity"].astype(str), strict=True))
    bad = [
        str(prompt)
        for prompt, (text, identity) in zip(table["prompt_id"], pairs, strict=True)
        if not identity or identity not in text
    ]
    if bad:
        raise RequestError(
            f"{len(bad):,} prompts don't hold the words of their column `identity`, which judges "
            f"are to be kept from; the first: {bad[0]}"
        )
    return pd.Series(
        [text.replace(identity, MASK, 1) for text, identity in pairs], index=table.index
    )
