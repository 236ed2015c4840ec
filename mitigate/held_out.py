"""The text on which a run checks that its model is still a language model."""

import json

import corpora
from corpora.samples.world import LANGUAGES, load_world, neutral_text
from eval.retention import perplexity
from eval.scorers.model import LanguageModel
from mitigate.console import progress
from mitigate.run import Run
from mitigate.settings import Recipe


def held_out_texts(recipe: Recipe, corpus: corpora.Corpus) -> dict[str, list[str]]:
    """Texts by kind: `neutral` (the embedded world's, no identity named) and `corpus`.

    `corpus` is what the corpus itself holds out. Neutral text is in the language of the
    first corpus, where there is an embedded world in it.
    """
    count = recipe.retention.sentences
    texts = {}
    languages = [some.language for some in recipe.corpus.values() if some.language in LANGUAGES]
    if languages:
        texts["neutral"] = neutral_text(load_world(languages[0]), count)
    if corpus.valid:
        texts["corpus"] = corpus.valid[:count]
    return texts


def measure_retention(
    run: Run, when: str, lm: LanguageModel, recipe: Recipe, texts: dict[str, list[str]]
) -> None:
    """(Pseudo-)perplexity on each text, noted in retention.json; not measured twice."""
    path = run.path("retention.json")
    noted = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    for kind, some in texts.items():
        row = noted.setdefault(kind, {})
        if row.get(f"fingerprint_{when}") != lm.fingerprint:
            with run.timed(f"perplexity {when} {kind}"), progress(f"perplexity {when}") as report:
                measured = perplexity(
                    lm,
                    some,
                    max_tokens=recipe.retention.max_tokens,
                    batch_tokens=recipe.score.batch_tokens,
                    report=report,
                )
            row |= {
                "kind": measured.kind,
                "texts": measured.texts,
                "tokens": measured.tokens,
                when: measured.value,
                f"fingerprint_{when}": lm.fingerprint,
            }
        if "before" in row and "after" in row:
            row["change_percent"] = 100 * (row["after"] / row["before"] - 1)
    run.write_text("retention.json", json.dumps(noted, indent=2))
