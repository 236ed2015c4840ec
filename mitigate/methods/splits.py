"""Which stereotypes and templates are trained on, and which are left to be evaluated.

A preference that is trained on a stereotype and then measured on it measures memory. So pairs
are split by cluster, and by template where both sides have the same ones. Clusters of several
benchmarks are one where they are known to say the same thing: a translation leaks as much as the
sentence itself (WinoQueer and WinoQueer-NL share their predicates, the embedded worlds theirs).
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eval import benchmarks
from eval.benchmarks import BenchmarkSettings, winoqueer
from eval.errors import RequestError
from eval.pairs import Pairs
from mitigate.settings import RECIPES, PreferenceSettings, Recipe, available, nearest

#: Said in every output of a run whose pairs come from a benchmark that it evaluates.
SAME_BENCHMARK = (
    "This run was trained on the benchmark's distribution (method.preference.same_benchmark=true): "
    "other stereotypes and templates, but the same kind of sentences, so its score on {names} says "
    "less about other text than a score on a benchmark it has not seen."
)
UNKNOWN = (
    "Whether {one} and {other} hold translations of the same stereotypes is not known here: they "
    "are in different languages, and one of them names neither its English predicate nor a "
    "translation group. A stereotype trained on may have been evaluated in translation."
)
#: Benchmarks that nobody may train on, by the name of their recipe: why.
NOT_FOR_TRAINING = {
    "survey_de": "its pairs were given by a community to measure with, as its datasheet says"
}
#: Of the clusters trained on, one in so many only validates.
VALIDATES = 10
#: Benchmarks that are translations of each other, templates included.
FAMILIES = {
    **dict.fromkeys(("winoqueer", "winoqueer_nl", "winoqueer_de"), "winoqueer"),
    **dict.fromkeys(("samples_de", "samples_nl"), "samples"),
}
#: WinoQueer-NL numbers its templates by the form of the predicate that they take, which is one
#: for several of WinoQueer's; within these ranges the two can't be told apart.
WINOQUEER_TEMPLATES = ((1, 4), (5, 10), (11, 11))
#: The ids of the embedded worlds are one English word in every language.
EMBEDDED = "samples_"

Cluster = tuple[str, str]  # benchmark, stereotype_id


@dataclass(frozen=True)
class Split:
    """Pairs to train on and to validate on, and what is left of each evaluated benchmark."""

    train: Pairs
    valid: Pairs
    evaluated: dict[str, Pairs]
    facts: dict[str, Any]  # for the manifest
    notes: list[str]  # for every output

    def sentence(self) -> str:
        """What a run prints of it."""
        left = ", ".join(
            f"{name} {facts['pairs']:,} pairs of {facts['stereotypes']} stereotypes"
            for name, facts in self.facts["evaluated"].items()
        )
        return (
            f"preferences from {self.train.name}: {len(self.train):,} pairs of "
            f"{self.facts['train_stereotypes']} stereotypes to train on, {len(self.valid):,} of "
            f"{self.facts['valid_stereotypes']} to validate on; none of them, and none of their "
            f"templates where they are shared, is left to be evaluated: {left}"
        )


def preferences(recipe: Recipe, evaluated: dict[str, Pairs]) -> Split | None:
    """The preference pairs of a recipe, apart from what it evaluates; None where it has none.

    Raises:
        RequestError: pairs that may not be trained on, or are those of an evaluated benchmark
            without `same_benchmark`; one side would be empty; a stereotype on both sides.
    """
    settings = recipe.method.preference
    if settings is None:
        return None
    source = _source(recipe, settings, evaluated)
    return split(source, evaluated, settings, recipe.seed)


def split(
    source: Pairs, evaluated: dict[str, Pairs], settings: PreferenceSettings, seed: int
) -> Split:
    """Split by stereotype and template, and check that nothing is on both sides.

    Which stereotypes are trained on depends on the seed and their names alone. Clusters of
    several benchmarks that are one by `translation_groups` are on one side together.

    Raises:
        RequestError: as `preferences`.
    """
    if settings.path is None and not settings.pairs and len(evaluated) > 1:
        raise RequestError(
            "method.preference.pairs: several benchmarks are evaluated; say which one the pairs "
            f"come from: {', '.join(evaluated)}"
        )
    same = _same_as(source, evaluated)
    if same and not settings.same_benchmark:
        raise RequestError(
            f"method.preference.pairs={source.name}: this run evaluates {', '.join(same)}, which "
            "has the same pairs; name another benchmark's recipe, or "
            "method.preference.same_benchmark=true (said in every output)"
        )
    if same and not set(evaluated) - set(same):
        # Only a benchmark of other sentences can show whether a preference carries over.
        raise RequestError(
            f"benchmark={','.join(same)}: preferences come from it, so a second benchmark must "
            "show whether they carry over: benchmark=[" + ",".join([*same, "OTHER"]) + "]"
        )
    everything = {source.name: source, **evaluated}
    group_of = translation_groups(everything)
    chosen = _chosen(source, evaluated, settings, seed, group_of)
    templates = _templates(source, evaluated, settings, seed)

    table = source.table
    mine = [group_of[source.name, name] in chosen for name in table["stereotype_id"]]
    kept = table[pd.Series(mine, index=table.index)]
    if templates:
        kept = kept[[template_keys(source.name, t) <= templates for t in kept["template"]]]
    kept = _limited(kept, settings.limit, seed)
    left = {
        name: _without(some, chosen, templates, settings, group_of)
        for name, some in evaluated.items()
    }
    if kept.empty:
        raise RequestError(f"method.preference: no pair of {source.name} is left to train on")
    validates = _validating({group_of[source.name, each] for each in kept["stereotype_id"]}, seed)
    valid = pd.Series(
        [group_of[source.name, each] in validates for each in kept["stereotype_id"]],
        index=kept.index,
    )
    parts = [replace(source, table=kept[which].reset_index(drop=True)) for which in (~valid, valid)]
    check_apart(source.name, kept, left, group_of, templates)
    unknown = _unknown(everything, source.name)
    notes = [SAME_BENCHMARK.format(names=", ".join(same))] if same else []
    notes += [UNKNOWN.format(one=source.name, other=name) for name in unknown]
    facts = {
        "from": source.name,
        "hash": source.hash,
        "same_benchmark": same,
        "train_pairs": len(parts[0]),
        "valid_pairs": len(parts[1]),
        "train_stereotypes": parts[0].table["stereotype_id"].nunique(),
        "valid_stereotypes": parts[1].table["stereotype_id"].nunique(),
        "stereotypes_trained_on": sorted(kept["stereotype_id"].unique()),
        "templates_trained_on": sorted(templates) if templates else "not shared",
        "translations_unknown": unknown,
        "evaluated": {
            name: {
                "pairs": len(some),
                "stereotypes": int(some.table["stereotype_id"].nunique()),
                "pairs_before": len(evaluated[name]),
            }
            for name, some in left.items()
        },
    }
    return Split(parts[0], parts[1], left, facts, notes)


def translation_groups(of: Mapping[str, Pairs]) -> dict[Cluster, str]:
    """The translation group of each cluster of some benchmarks, called by its first member.

    Clusters are one if their ids are the same text, if their column `translation` is, or if
    their English predicates are the same but for number (`predicate`, which WinoQueer and
    WinoQueer-NL have). To merge too much only takes pairs away; to merge too little leaks.
    """
    parent: dict[Cluster, Cluster] = {}

    def root(cluster: Cluster) -> Cluster:
        while parent[cluster] != cluster:
            parent[cluster] = parent[parent[cluster]]
            cluster = parent[cluster]
        return cluster

    owner: dict[tuple[str, str], Cluster] = {}
    english = _english(of.values())
    for name, pairs in of.items():
        columns = [c for c in ("translation", "predicate") if c in pairs.table]
        for row in pairs.table[["stereotype_id", *columns]].drop_duplicates().itertuples():
            cluster = (name, str(row.stereotype_id))
            parent.setdefault(cluster, cluster)
            for sign in _signs(row, columns, english):
                one, other = root(owner.setdefault(sign, cluster)), root(cluster)
                parent[other] = one
    return {cluster: "/".join(root(cluster)) for cluster in parent}


def check_apart(
    source: str,
    trained: pd.DataFrame,
    evaluated: Mapping[str, Pairs],
    group_of: Mapping[Cluster, str],
    templates: Iterable[str],
) -> None:
    """Check that no stereotype, shared template or sentence is trained on and evaluated.

    Raises:
        RequestError: one is; the first is named.
    """
    groups = {group_of[source, name]: name for name in trained["stereotype_id"].unique()}
    sentences = set(trained["sent_more"].str.casefold()) | set(trained["sent_less"].str.casefold())
    for name, pairs in evaluated.items():
        for stereotype in pairs.table["stereotype_id"].unique():
            if (mine := groups.get(group_of[name, stereotype])) is not None:
                as_ = f" as '{mine}'" if mine != stereotype else ""
                raise RequestError(
                    f"stereotype '{stereotype}' of {name} is in the preference split{as_} and in "
                    "the evaluation split; a stereotype may be in one of them "
                    "(method.preference.train_on, evaluate_on)"
                )
        for template in pairs.table["template"].unique():
            if template_keys(name, template) & set(templates):
                raise RequestError(
                    f"template {template} of {name} is trained on and evaluated; "
                    "a template may be in one of the two splits"
                )
        for column in ("sent_more", "sent_less"):
            found = pairs.table[column][pairs.table[column].str.casefold().isin(sentences)]
            if len(found):
                raise RequestError(
                    f"benchmark {name}: pair {pairs.table['pair_id'][found.index[0]]} has a "
                    "sentence that preferences are trained on"
                )


def template_keys(benchmark: str, template: str) -> set[str]:
    """What a template is called across benchmarks; nothing where it is not known.

    The same for translations of one template. A form that several templates take has several.
    """
    family = FAMILIES.get(benchmark, benchmark)
    if family != "winoqueer":
        return {f"{family} {template}"} if template else set()
    numbers = [int(number) for number in re.findall(r"\d+", template)]
    return {
        f"{family} {first}-{last}"
        for first, last in WINOQUEER_TEMPLATES
        if any(first <= number <= last for number in numbers)
    }


def refuse_training(name: str) -> None:
    """Refuse a benchmark that nobody may train on.

    Raises:
        RequestError: it is one.
    """
    if name in NOT_FOR_TRAINING:
        raise RequestError(
            f"method.preference.pairs={name}: not for training ({NOT_FOR_TRAINING[name]}); "
            "evaluate on it, and take pairs from benchmark recipes such as winoqueer or components"
        )


def _source(recipe: Recipe, settings: PreferenceSettings, evaluated: dict[str, Pairs]) -> Pairs:
    """Read the benchmark that preferences come from."""
    if not settings.pairs:
        if len(evaluated) == 1 or settings.path is None:
            name = next(iter(evaluated))
            refuse_training(name)
            return evaluated[name]
        raise RequestError("method.preference.path: say method.preference.pairs=RECIPE too")
    refuse_training(settings.pairs)
    if settings.pairs in evaluated and settings.path is None:
        return evaluated[settings.pairs]
    if settings.pairs not in available("benchmark"):
        raise RequestError(
            f"method.preference.pairs={settings.pairs}: no such benchmark; "
            f"{nearest(settings.pairs, available('benchmark'))}"
        )
    stored = OmegaConf.load(RECIPES / "benchmark" / f"{settings.pairs}.yaml")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(BenchmarkSettings), stored)
    except OmegaConfBaseException as error:
        said = str(error).strip().split("\n")[0]
        raise RequestError(f"benchmark recipe {settings.pairs}: {said}") from error
    found = OmegaConf.to_object(merged)
    assert isinstance(found, BenchmarkSettings)
    if settings.path is not None:
        found.path = settings.path
    for name in NOT_FOR_TRAINING.keys() & recipe.benchmark.keys():
        theirs = recipe.benchmark[name].path
        if theirs and found.path and Path(theirs).resolve() == Path(found.path).resolve():
            refuse_training(name)
    return benchmarks.load(found)


def _same_as(source: Pairs, evaluated: Mapping[str, Pairs]) -> list[str]:
    """The evaluated benchmarks that hold a pair of the source."""
    mine = set(zip(source.table["sent_more"], source.table["sent_less"], strict=True))
    return [
        name
        for name, some in evaluated.items()
        if name == source.name
        or mine & set(zip(some.table["sent_more"], some.table["sent_less"], strict=True))
    ]


def _english(of: Iterable[Pairs]) -> dict[str, str]:
    """Each English predicate's stereotype: the same for forms that differ in number alone."""
    said = {
        predicate
        for pairs in of
        if "predicate" in pairs.table
        for predicate in pairs.table["predicate"].dropna().unique()
        if predicate.strip()
    }
    forms = {winoqueer.Form("1", predicate): {""} for predicate in sorted(said)}
    return {form.predicate: name for form, name in winoqueer.stereotypes(forms)[0].items()}


def _signs(
    row: Any, columns: Sequence[str], english: Mapping[str, str]
) -> Iterable[tuple[str, str]]:
    """What makes a cluster one with others that have the same."""
    yield "id", " ".join(str(row.stereotype_id).casefold().split())
    for column in columns:
        value = getattr(row, column)
        if not isinstance(value, str) or not value.strip():
            continue
        yield column, english[value] if column == "predicate" else value.strip().casefold()


def _chosen(
    source: Pairs,
    evaluated: Mapping[str, Pairs],
    settings: PreferenceSettings,
    seed: int,
    group_of: Mapping[Cluster, str],
) -> set[str]:
    """The translation groups that are trained on."""
    names = list(dict.fromkeys(source.table["stereotype_id"]))
    if settings.train_on:
        for name in settings.train_on:
            if name not in names:
                raise RequestError(
                    f"method.preference.train_on: {source.name} has no stereotype {name}; "
                    f"{nearest(name, names)}"
                )
        return {group_of[source.name, name] for name in settings.train_on}
    fixed = {
        group_of[name, stereotype]
        for name, pairs in evaluated.items()
        for stereotype in set(pairs.table["stereotype_id"]) & set(settings.evaluate_on)
    }
    groups = sorted({group_of[source.name, name] for name in names} - fixed)
    if len(groups) < 2 and not fixed:
        raise RequestError(
            f"benchmark {source.name} has one stereotype only; preferences need several"
        )
    count = max(1, round(settings.stereotypes * len(groups)))
    if not fixed:
        count = min(count, len(groups) - 1)
    return set(sorted(groups, key=lambda group: _rank(seed, "stereotype", group))[:count])


def _templates(
    source: Pairs, evaluated: Mapping[str, Pairs], settings: PreferenceSettings, seed: int
) -> set[str]:
    """The keys of templates trained on; empty where no evaluated benchmark shares any."""

    def keys(pairs: Pairs) -> set[str]:
        each = pairs.table["template"].unique()
        return set().union(*(template_keys(pairs.name, template) for template in each))

    mine = sorted(keys(source))
    if len(mine) < 2 or not any(keys(some) & set(mine) for some in evaluated.values()):
        return set()
    count = min(max(1, round(settings.templates * len(mine))), len(mine) - 1)
    return set(sorted(mine, key=lambda name: _rank(seed, "template", name))[:count])


def _without(
    pairs: Pairs,
    chosen: set[str],
    templates: set[str],
    settings: PreferenceSettings,
    group_of: Mapping[Cluster, str],
) -> Pairs:
    """What is evaluated of a benchmark: other stereotypes, and other templates than the source's.

    With `evaluate_on` exactly those it names, which the check of both sides then sees.
    """
    table = pairs.table
    if settings.evaluate_on:
        unknown = [name for name in settings.evaluate_on if name not in set(table["stereotype_id"])]
        if len(unknown) == len(settings.evaluate_on):
            raise RequestError(
                f"method.preference.evaluate_on: {pairs.name} has no stereotype {unknown[0]}; "
                f"{nearest(unknown[0], sorted(set(table['stereotype_id'])))}"
            )
        table = table[table["stereotype_id"].isin(settings.evaluate_on)]
    else:
        gone = [group_of[pairs.name, name] in chosen for name in table["stereotype_id"]]
        table = table[~pd.Series(gone, index=table.index, dtype=bool)]
    table = table[[not template_keys(pairs.name, t) & templates for t in table["template"]]]
    if table.empty:
        raise RequestError(
            f"benchmark {pairs.name}: no pair is left to evaluate, all its stereotypes or "
            "templates are trained on; a smaller method.preference.stereotypes leaves some"
        )
    removed = {"preference_pairs_left_out": len(pairs) - len(table)}
    return replace(pairs, table=table.reset_index(drop=True), source={**pairs.source, **removed})


def _limited(table: pd.DataFrame, limit: int | None, seed: int) -> pd.DataFrame:
    """At most `limit` pairs, as many of each stereotype as of the others, as far as it has them."""
    if limit is None or limit >= len(table):
        return table
    order = table["pair_id"].map(lambda pair: _rank(seed, "pair", pair)).sort_values(kind="stable")
    turn = order.groupby(table["stereotype_id"].reindex(order.index)).cumcount()
    taken = pd.DataFrame({"turn": turn, "rank": order}).sort_values(["turn", "rank"]).index[:limit]
    return table.loc[sorted(taken)]


def _validating(groups: set[str], seed: int) -> set[str]:
    """The groups that only validate: one in ten, none of fewer than two."""
    count = min(max(1, round(len(groups) / VALIDATES)), len(groups) - 1)
    return set(sorted(groups, key=lambda group: _rank(seed, "valid", group))[:count])


def _unknown(of: Mapping[str, Pairs], source: str) -> list[str]:
    """Evaluated benchmarks of other languages with which nothing links the source's clusters."""
    mine = of[source]
    return [
        name
        for name, some in of.items()
        if some.table["language"].iloc[0] != mine.table["language"].iloc[0]
        and not (_linked(mine) & _linked(some))
    ]


def _linked(pairs: Pairs) -> set[str]:
    """By what a benchmark's clusters can be found in another language."""
    ways = {c for c in ("translation", "predicate") if c in pairs.table}
    return ways | ({"id"} if pairs.name.startswith(EMBEDDED) else set())


def _rank(seed: int, what: str, name: str) -> str:
    text = f"{seed}\x1f{what}\x1f{name}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
