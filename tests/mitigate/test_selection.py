"""Which stereotypes choices may see: by cluster, stratified, seeded, and said."""

from collections.abc import Sequence

import pandas as pd
import pytest

from eval.errors import RequestError
from eval.pairs import Pairs, build
from mitigate import selection
from mitigate.settings import SelectionSettings

GROUPS = ("gay", "lesbian", "queer")


def made(
    clusters: int = 60, each: int = 3, groups: Sequence[str] = GROUPS, name: str = "made"
) -> Pairs:
    """Stereotypes of one group each, in turn, each with `each` pairs."""
    rows = [
        {
            "sent_more": f"more {cluster} {at}",
            "sent_less": f"less {cluster} {at}",
            "group": groups[cluster % len(groups)],
            "stereotype_id": f"s{cluster}",
        }
        for cluster in range(clusters)
        for at in range(each)
    ]
    return build(pd.DataFrame(rows), name=name, language="de")


def parts(pairs: Pairs, share: float = 0.3, seed: int = 0) -> selection.Parts:
    return selection.divide({pairs.name: pairs}, SelectionSettings(share=share, seed=seed))


def ids(some: Pairs, column: str = "stereotype_id") -> set[str]:
    return set(some.table[column])


@pytest.mark.parametrize("share", [0.1, 0.25, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_sides_share_no_stereotype_and_lose_no_pair(share: float, seed: int) -> None:
    pairs = made()
    found = parts(pairs, share, seed)
    assert found.choose is not None
    choose, claim = found.choose["made"], found.claim["made"]
    assert not ids(choose) & ids(claim)
    assert ids(choose, "pair_id") | ids(claim, "pair_id") == ids(pairs, "pair_id")
    assert len(choose) + len(claim) == len(pairs)
    # the share is met to a stereotype, in the whole and in each group
    assert abs(choose.table["stereotype_id"].nunique() - share * 60) < 1
    for group in GROUPS:
        mine = choose.table[choose.table["group"] == group]["stereotype_id"].nunique()
        assert abs(mine - share * 20) <= 1, group
    assert choose.hash != claim.hash
    assert choose.source["selection"] == "choose"


def test_the_seed_decides_and_the_order_of_rows_does_not() -> None:
    pairs = made()
    shuffled = Pairs(
        pairs.name,
        pairs.table.sample(frac=1, random_state=1).reset_index(drop=True),
        pairs.left_out,
    )

    def chosen(some: Pairs, seed: int) -> set[str]:
        found = parts(some, seed=seed).choose
        assert found is not None
        return ids(found["made"])

    assert chosen(pairs, 0) == chosen(shuffled, 0)
    assert chosen(pairs, 0) != chosen(pairs, 1)


def test_every_stereotype_is_as_likely_over_seeds() -> None:
    pairs = made(clusters=12, each=1)
    times = pd.Series(0, index=sorted(ids(pairs)))
    for seed in range(100):
        found = parts(pairs, 0.25, seed).choose
        assert found is not None
        times[sorted(ids(found["made"]))] += 1
    assert times.sum() == 100 * 3
    assert times.between(6, 44).all(), times.to_dict()  # 25 ± 4.4 standard errors


def test_a_stereotype_of_two_benchmarks_is_on_one_side() -> None:
    both = {"one": made(name="one"), "two": made(clusters=40, groups=("bisexual",), name="two")}
    found = selection.divide(both, SelectionSettings(share=0.4))
    assert found.choose is not None
    choose = ids(found.choose["one"]) | ids(found.choose["two"])
    assert not choose & (ids(found.claim["one"]) | ids(found.claim["two"]))


def test_translations_of_a_stereotype_are_on_one_side() -> None:
    """Other ids, another language, other pairs: known by the English predicate that both name."""
    one, two = made(name="one"), made(clusters=40, name="two")
    english = {f"s{at}": f"are number {at}" for at in range(60)}
    one.table["predicate"] = one.table["stereotype_id"].map(english)
    two.table["predicate"] = two.table["stereotype_id"].map(english)
    two.table["stereotype_id"] = "vertaald " + two.table["stereotype_id"]
    found = selection.divide({"one": one, "two": two}, SelectionSettings(share=0.4))
    assert found.choose is not None
    choose, claim = (
        {name: ids(side[name], "predicate") for name in side}
        for side in (found.choose, found.claim)
    )
    assert len(choose["two"]) > 5
    assert choose["two"] <= choose["one"]
    assert not (choose["one"] | choose["two"]) & (claim["one"] | claim["two"])
    # and the first benchmark is divided as it would be alone
    alone = selection.divide({"one": made(name="one")}, SelectionSettings(share=0.4))
    assert alone.choose is not None
    assert ids(alone.choose["one"]) == ids(found.choose["one"])


def test_nothing_is_set_aside_by_default() -> None:
    pairs = made()
    found = selection.divide({"made": pairs}, SelectionSettings())
    assert found.choose is None
    assert found.claim["made"] is pairs
    assert selection.note(found.facts) == ""


def test_what_is_said() -> None:
    pairs = made(clusters=8, groups=("gay", "gay", "gay", "rare"), each=2)
    found = parts(pairs, 0.25)
    facts = found.facts["benchmarks"]["made"]
    assert facts["choose"]["stereotypes"] + facts["claim"]["stereotypes"] == 8
    said = selection.note(found.facts)
    assert "selection.share=0.25" in said
    assert f"{facts['claim']['stereotypes']} measured here" in said
    lost = facts["groups_on_one_side"]
    assert lost == ["rare"]
    assert "On one side only: rare" in said


def test_too_few_stereotypes() -> None:
    with pytest.raises(RequestError, match=r"of the 1 stereotypes of made none is left"):
        parts(made(clusters=1), 0.5)
