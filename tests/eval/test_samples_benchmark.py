"""The embedded benchmark: a balanced grid of pairs that differ in the identity alone."""

import os
from pathlib import Path

import pandas as pd
import pytest
import yaml

import eval as package
from eval.benchmarks import BenchmarkSettings, load
from eval.errors import RequestError
from eval.pairs import COLUMNS, Pairs

ROOT = Path(package.__file__).resolve().parents[1]
RECIPES = ROOT / "recipes" / "benchmark"


def settings(language: str, **changes: str) -> BenchmarkSettings:
    recipe = yaml.safe_load((RECIPES / f"samples_{language}.yaml").read_text("utf-8"))
    return BenchmarkSettings(**{**recipe, **changes})


@pytest.fixture(params=["de", "nl"], scope="module")
def language(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def pairs(language: str) -> Pairs:
    return load(settings(language))


@pytest.fixture(scope="module")
def world(language: str) -> dict:
    return yaml.safe_load((ROOT / "corpora/samples" / f"{language}.yaml").read_text("utf-8"))


def test_recipes_have_their_header(language: str) -> None:
    said = (RECIPES / f"samples_{language}.yaml").read_text("utf-8")
    assert said.startswith(f"# @package benchmark.samples_{language}\n# ")


def test_it_is_large_whole_and_the_same_each_time(language: str, pairs: Pairs) -> None:
    assert len(pairs) >= 2_000
    assert pairs.left_out.empty
    assert list(pairs.table.columns) == [*COLUMNS, "slice", "name"]
    assert pairs.table["pair_id"].is_unique
    assert not pairs.table.duplicated(["sent_more", "sent_less"]).any()
    assert (pairs.table["language"] == language).all()
    assert load(settings(language)).hash == pairs.hash
    pd.testing.assert_frame_equal(load(settings(language)).table, pairs.table)


def test_the_grid_is_balanced(pairs: Pairs, world: dict) -> None:
    table = pairs.table
    assert table["group"].nunique() == 9
    for column in ("group", "stereotype_id", "template"):
        assert table[column].value_counts().nunique() == 1, column
    assert not table.duplicated(["group", "stereotype_id", "template"]).any()
    # Each counterpart of a group is as frequent as the other, over all and in every template.
    for keys in (["group"], ["group", "template"]):
        counts = table.groupby([*keys, "counterfactual"]).size().groupby(keys).agg(["min", "max"])
        assert (counts["max"] - counts["min"] <= 1).all()
    named = {
        str(at)
        for at, template in enumerate(world["benchmark_templates"], 1)
        if "{name}" in template
    }
    used = pd.Series(
        [
            next(name for name in world["names"] if name in sentence.replace(",", "").split())
            for sentence in table[table["template"].isin(named)]["sent_more"].str.replace(":", "")
        ]
    ).value_counts()
    assert len(used) == 30
    assert used.min() > 0.8 * used.mean()


def test_the_slices_are_the_predicates_of_the_grammar(pairs: Pairs, world: dict) -> None:
    for kind in ("planted", "control"):
        rows = pairs.table[pairs.table["slice"] == kind]
        assert set(rows["stereotype_id"]) == set(world[kind])
    assert set(pairs.table["slice"]) == {"planted", "control"}
    assert (pairs.table["slice"] == "control").mean() == pytest.approx(0.25, abs=0.03)


def test_a_pair_differs_in_the_identity_alone(pairs: Pairs, world: dict) -> None:
    words = {**world["planted"], **world["control"]}
    for row in pairs.table.itertuples():
        form, others = world["identities"][row.group]
        assert row.group_label == form
        assert row.counterfactual in others
        more, less = str(row.sent_more), str(row.sent_less)
        assert more.count(form) == less.count(str(row.counterfactual)) == 1
        assert more.replace(form, str(row.counterfactual)) == less
        assert words[row.stereotype_id] in more


def test_a_recipe_finds_its_file_from_anywhere(
    language: str, pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(settings(language)).hash == pairs.hash
    path = ROOT / "corpora/samples" / f"{language}.yaml"
    assert load(settings(language, path=str(path))).hash == pairs.hash
    here = os.path.relpath(path, tmp_path)
    assert load(settings(language, path=here)).hash == pairs.hash
    assert len(pairs.source["sha256"]) == 64


GRAMMAR = {
    "language": "de",
    "identities": {"gay": ["schwul", ["hetero"]]},
    "planted": {"loud": "laut"},
    "control": {"kind": "lieb"},
    "names": ["Kim"],
    "benchmark_templates": ["{name} ist {identity} oder {predicate}."],
}


def test_any_grammar_of_that_form_will_do(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(GRAMMAR), "utf-8")
    table = load(settings("de", path=str(tmp_path / "w.yaml"))).table
    assert table["sent_more"].tolist() == ["Kim ist schwul oder laut.", "Kim ist schwul oder lieb."]
    assert table["sent_less"].tolist() == ["Kim ist hetero oder laut.", "Kim ist hetero oder lieb."]
    assert table["slice"].tolist() == ["planted", "control"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"no file .*w\.yaml; the embedded grammars are pkg:corpora/samples/de\.yaml"),
        ("", r"is no world's grammar; it needs language, identities, planted"),
        ("[1, 2]", r"is no world's grammar; it needs language"),
        ("a: [1", r"is no YAML file: "),
        (b"\xff\xfe\xfa", r"is no YAML file: "),
        ({**GRAMMAR, "names": []}, r"'names' must be a list .*; there are: .*planted"),
        ({**GRAMMAR, "planted": ["laut"]}, r"'planted' must be a dict"),
        ({**GRAMMAR, "identities": {"gay": "schwul"}}, r"identity 'gay' must be \[form, "),
        ({**GRAMMAR, "identities": {"gay": ["schwul", []]}}, r"identity 'gay' must be"),
        (
            {**GRAMMAR, "benchmark_templates": ["{name} {who}."]},
            r"template 1 .*filled \(.who.\); it takes",
        ),
        ({**GRAMMAR, "benchmark_templates": ["{name"]}, r"template 1 '\{name'"),
    ],
)
def test_bad_grammars_are_said_in_one_line(
    tmp_path: Path, content: str | bytes | dict | None, said: str
) -> None:
    path = tmp_path / "w.yaml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), "utf-8")
    with pytest.raises(RequestError, match=said) as raised:
        load(settings("de", path=str(path)))
    assert "\n" not in str(raised.value)
    assert "samples_de" in str(raised.value)


def test_no_path_names_the_embedded_ones() -> None:
    with pytest.raises(RequestError, match=r"pkg:corpora/samples/de\.yaml and nl\.yaml"):
        load(BenchmarkSettings(name="mine", reader="samples"))
