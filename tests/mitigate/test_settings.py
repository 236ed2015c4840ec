"""Recipes: that they compose, whose value wins, and what a slip is answered with."""

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
import yaml

from eval.errors import RequestError
from mitigate.settings import (
    CHOICES,
    GROUPS,
    NAMED_GROUPS,
    RECIPES,
    RENAMED,
    Recipe,
    all_keys,
    available,
    differing_keys,
    from_words,
    from_yaml,
    resolved_yaml,
)


def refused(*words: str, recipe: str | None = "demo") -> str:
    """The line that these words are answered with."""
    with pytest.raises(RequestError) as caught:
        from_words(words, recipe=recipe)
    line = str(caught.value)
    assert "\n" not in line
    return line


def _check_composed(name: str, model: str) -> None:
    facts = yaml.safe_load((RECIPES / "model" / f"{model}.yaml").read_text("utf-8"))
    recipe = from_words([f"recipe={name}", f"model={model}"], recipe=None)
    assert recipe.name == name
    assert recipe.description
    got = dataclasses.asdict(recipe.model)
    assert {key: got[key] for key in facts} == facts  # the model's own, nothing of another
    assert recipe.corpus
    assert recipe.benchmark


@pytest.mark.parametrize("model", available("model"))
def test_every_model_composes(model: str) -> None:
    # Each with another recipe in turn: a composition takes a tenth of a second, all 360 forty.
    recipes = available("recipe")
    _check_composed(recipes[available("model").index(model) % len(recipes)], model)


@pytest.mark.parametrize("name", available("recipe"))
def test_every_recipe_composes_with_a_model_of_each_kind(name: str) -> None:
    for model in ("xlm_mlm_ende", "llama3_8b", "samples_causal_nl"):
        _check_composed(name, model)


@pytest.mark.long
@pytest.mark.parametrize("name", available("recipe"))
def test_every_recipe_composes_with_every_model(name: str) -> None:
    for model in available("model"):
        _check_composed(name, model)


@pytest.mark.parametrize("name", available("recipe"))
def test_a_recipe_round_trips_through_its_yaml(name: str) -> None:
    recipe = from_words([f"recipe={name}"], recipe=None)
    again = from_yaml(resolved_yaml(recipe))
    assert again == recipe
    assert differing_keys(again, recipe) == []


@pytest.mark.parametrize("group", NAMED_GROUPS)
def test_each_file_of_a_named_group_lands_under_its_own_name(group: str) -> None:
    for name in available(group):
        first, *_ = (RECIPES / group / f"{name}.yaml").read_text("utf-8").splitlines()
        assert first == f"# @package {group}.{name}"
        chosen = getattr(from_words([f"{group}={name}"], recipe="demo"), group)
        assert list(chosen) == [name]
        assert chosen[name].name == name


@pytest.mark.parametrize("group", NAMED_GROUPS)
def test_all_files_of_a_named_group_at_once(group: str) -> None:
    names = available(group)
    recipe = from_words([f"{group}=[{','.join(names)}]"], recipe="demo")
    assert sorted(getattr(recipe, group)) == names


@pytest.mark.parametrize("name", sorted(set(available("model")) - {"custom"}))
def test_a_model_begins_with_a_command_that_scores_it(name: str) -> None:
    first, *_ = (RECIPES / "model" / f"{name}.yaml").read_text("utf-8").splitlines()
    said = re.fullmatch(rf"# mitigate score model={name} benchmark=(\w+)( .*)? out=\S+", first)
    assert said, first
    assert said.group(1) in available("benchmark")


@pytest.mark.parametrize("group", NAMED_GROUPS)
def test_a_corpus_or_benchmark_says_the_command_that_takes_it(group: str) -> None:
    for name in available(group):
        lines = (RECIPES / group / f"{name}.yaml").read_text("utf-8").splitlines()
        comments = itertools.takewhile(lambda line: line.startswith("#"), lines)
        said = " ".join(line.lstrip("# ") for line in comments)
        found = re.findall(rf"\b{group}=\[?([\w,]+)", said)
        chosen = [one for several in found for one in several.split(",")]
        for recipe in re.findall(r"recipe=(\w+)", said):
            chosen += list(getattr(from_words([], recipe=recipe), group))
        # The embedded benchmarks need no file, and stand in the models' commands.
        assert name in chosen or name.startswith("samples_"), f"{group}/{name}: {said}"


def test_the_recipes_say_what_a_user_types() -> None:
    for name in available("recipe"):
        lines = (RECIPES / "recipe" / f"{name}.yaml").read_text("utf-8").splitlines()
        assert lines[0] == "# @package _global_"
        assert lines[1].startswith(f"# accelerate launch mitigate/train.py recipe={name}")
        command = [lines[1]]
        for line in lines[2:]:  # what belongs to the command is indented
            if not line.startswith("#     "):
                break
            command.append(line)
        words = " ".join(line.lstrip("# ") for line in command).split()[3:]
        recipe = from_words(words, recipe=None)
        assert recipe.name == name
        missing = [
            key
            for key, some in (*recipe.corpus.items(), *recipe.benchmark.items())
            if some.path is None and some.reader in ("text", "taz", "pairs", "winoqueer_nl")
        ]
        assert missing == [], f"{name}: its command names no path for {missing}"


def test_a_word_wins_over_the_recipe_and_the_recipe_over_the_method() -> None:
    lora = from_words([], recipe="taz_lora")
    assert (lora.method.lr, lora.method.batch, lora.model.name) == (2e-4, 8, "gbert")
    demo = from_words([], recipe="demo")
    assert (demo.method.name, demo.method.lr, demo.method.batch) == ("full", 1e-3, 16)
    words = ["method=lora", "method.batch=4", "model=mbert", "seed=3"]
    changed = from_words(words, recipe="demo")
    assert changed.method.name == "lora"
    assert changed.method.lora is not None
    assert changed.method.lr == 1e-3  # demo's, over that of method=lora
    assert (changed.method.batch, changed.model.name, changed.seed) == (4, "mbert", 3)


def test_the_order_of_words_does_not_matter_and_the_last_value_counts() -> None:
    one = from_words(["method.batch=4", "recipe=taz_lora", "seed=1", "seed=2"], recipe="demo")
    other = from_words(["seed=2", "recipe=taz_lora", "method.batch=4"], recipe="demo")
    assert one == other
    assert one.seed == 2


def test_nothing_leaks_from_a_recipe_that_another_replaces() -> None:
    assert from_words(["recipe=taz_lora"], recipe="demo") == from_words([], recipe="taz_lora")
    replaced = from_words(["corpus=samples_de"], recipe="german_paper")
    assert list(replaced.corpus) == ["samples_de"]  # its years for the taz name nothing any more


def test_own_weights_bring_no_facts_of_the_recipes_model() -> None:
    for word in ("model.path=/somewhere", "model.hub=me/mine"):
        model = from_words([word], recipe="taz_lora").model
        assert (model.name, model.licence, model.lora_targets) == ("custom", "unknown", [])
    kept = from_words(["model=bertje", "model.path=/copy"], recipe="taz_lora").model
    assert (kept.name, kept.path, kept.lora_targets) == ("bertje", "/copy", ["query", "value"])


def test_a_limit_means_every_chosen_benchmark() -> None:
    recipe = from_words(["benchmark.limit=20"], recipe="taz_lora")
    assert {name: some.limit for name, some in recipe.benchmark.items()} == {
        "winoqueer_de": 20,
        "survey_de": 20,
    }
    one = from_words(["benchmark.survey_de.limit=5"], recipe="taz_lora")
    assert (one.benchmark["survey_de"].limit, one.benchmark["winoqueer_de"].limit) == (5, None)


def test_a_path_belongs_to_one_benchmark() -> None:
    assert refused("benchmark.path=x.csv", recipe="taz_lora") == (
        "benchmark.path: there are several; say which: "
        "benchmark.winoqueer_de.path, benchmark.survey_de.path"
    )
    one = from_words(["benchmark.path=x.csv"], recipe="winoqueer_nl_lora")
    assert one.benchmark["winoqueer_nl"].path == "x.csv"
    assert "corpus.taz.path" in refused("corpus.path=x", recipe="german_paper")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("recipe=taz_lroa", "no recipe named taz_lroa; did you mean taz_lora or"),
        ("model=bertj", "no model named bertj; did you mean bertje"),
        ("corpus=smaples_de", "no corpus named smaples_de; did you mean samples_de"),
        ("benchmark=[samples_de,survey]", "no benchmark named survey; did you mean survey_de?"),
        ("launch=zzz", "no launch named zzz; there are: auto, cpu, ddp"),
        ("modle=bertje", "no key modle; did you mean model?"),
        ("method.lrr=1", "no key method.lrr; did you mean method.lr?"),
        ("lr=1", "no key lr; did you mean method.lr?"),
        ("method.lora.rank=1", "no key method.lora.rank; there are: method.lora.r, "),
        ("benchmark.columns.sent_moer=x", "did you mean benchmark.columns.sent_more"),
        ("benchmark.samples_de.pth=x", "did you mean benchmark.samples_de.path?"),
        ("benchmark.survey_de.path=x", "this run has benchmark=samples_de, not survey_de"),
        ("corpus.pth=x", "no key corpus.pth; did you mean corpus.path?"),
        ("model.path.deeper=1", "model.path is a single value"),
        ("hydra.run.dir=x", "did you mean run.dir?"),
    ],
)
def test_a_slip_is_answered_with_the_nearest_right_name(word: str, line: str) -> None:
    assert line in refused(word)


def test_the_key_of_a_slip_in_a_long_group_is_not_drowned_by_its_prefix() -> None:
    # "benchmark.foo" is near every name that begins with "benchmark.".
    assert "did you mean" not in refused("benchmark.foo.path=x")


@pytest.mark.parametrize("word", ["benchmark.samples_de=null", "benchmark.columns=x", "score=1"])
def test_a_group_of_keys_takes_no_value(word: str) -> None:
    key = word.partition("=")[0]
    assert refused(word).startswith(f"{key} is a group of keys: {key}.")


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_keys_of_other_tools_name_their_replacement(old: str) -> None:
    assert refused(f"{old}=1") == f"no key {old}; here it is {RENAMED[old]}"


def test_the_replacements_are_there() -> None:
    keys = {target.partition("=")[0] for target in RENAMED.values() if ":" not in target}
    assert keys <= set(all_keys())


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("seed=x", "seed: Value 'x' of type 'str' could not be converted to Integer"),
        ("seed=1.5", "seed: Value '1.5'"),
        ("seed=-1", "seed=-1: must lie between"),
        ("method.lr=fast", "method.lr: Value 'fast'"),
        ("method.lr=0", "method.lr=0.0: must be more than 0"),
        ("method.lr=nan", "method.lr=nan: must be more than 0"),
        ("method.epochs=0", "method.epochs=0.0: must be more than 0"),
        ("method.lora.r=0", "method.lora.r=0: must be more than 0"),
        ("method.lora=5", "method.lora: "),
        ("method.lora.targets=query", "method.lora.targets: a list, written method.lora.targets=["),
        ("method.mask_share=1", "method.mask_share=1.0: must lie between 0 and 1"),
        ("method.max_steps=0", "method.max_steps=0: more than 0, or -1"),
        ("method.keep=first", "method.keep=first: there are: best, last"),
        ("method.save_steps=150", "method.save_steps=150 must be a multiple of method.eval_steps"),
        ("method.eval_steps=0", "method.eval_steps=0: must be more than 0"),
        ("benchmark.limit=ten", "benchmark.samples_de.limit: Value 'ten'"),
        ("launch.processes=0", "launch.processes=0: must be more than 0"),
        ("model.trust_remote_code=maybe", "model.trust_remote_code: Value 'maybe'"),
        ("model.dtype=fp16", "model.dtype=fp16: there are: auto, float32"),
        ("retention.sentences=0", "retention.sentences=0: must be more than 0"),
    ],
)
def test_a_value_of_a_wrong_type_or_range_names_its_key(word: str, says: str) -> None:
    assert refused(word, "method=lora").startswith(says)


def test_save_steps_may_differ_where_the_last_is_kept() -> None:
    recipe = from_words(["method.save_steps=150", "method.keep=last"], recipe="demo")
    assert (recipe.method.save_steps, recipe.method.eval_steps) == (150, 100)


@pytest.mark.parametrize("said", ["auto", "true", "false", "'true'"])
def test_lowercase_takes_what_hydra_reads_as_a_truth_value(said: str) -> None:
    recipe = from_words([f"score.lowercase={said}"], recipe="demo")
    assert recipe.score.lowercase == said.strip("'")
    assert from_yaml(resolved_yaml(recipe)).score.lowercase == said.strip("'")


@pytest.mark.parametrize("value", ["a=b", "Schüler*innen", "/data/#1/korpus", "~/x.csv"])
def test_what_hydra_cannot_read_is_answered_with_its_quoted_form(value: str) -> None:
    line = refused(f"model.path={value}")
    quoted = f"model.path='\"{value}\"'"
    assert quoted in line
    word = quoted.replace("'\"", '"').replace("\"'", '"')  # what is left behind a shell
    assert from_words([word], recipe="demo").model.path == value


@pytest.mark.parametrize("value", ["[nicht-binär]", "[schwul, nicht-binär]"])
def test_of_a_list_each_text_is_quoted(value: str) -> None:
    line = refused(f"corpus.keywords={value}")
    word = line.partition("quotes: ")[2].partition(" (")[0].replace("'", "")  # behind a shell
    (corpus,) = from_words([word], recipe="demo").corpus.values()
    wanted = [item.strip(" []") for item in value.split(",")]
    assert corpus.keywords == wanted


@pytest.mark.parametrize("value", ["/data/a b.csv", "../x.csv", "s3:x.csv", "x-y_z.csv"])
def test_usual_paths_need_no_quotes(value: str) -> None:
    recipe = from_words(["benchmark=pairs", f"benchmark.path={value}"], recipe="demo")
    assert recipe.benchmark["pairs"].path == value


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("bertje", "'bertje' is not key=value"),
        ("=x", "'=x' is not key=value"),
        ("a b=1", "'a b=1' is not key=value"),
        ("", "'' is not key=value"),
        ("+seed=1", "write seed=… without + or ~"),
        ("~model", "'~model' is not key=value"),
        ("seed=1,2", "seed: commas mean a sweep"),
        ("benchmark=a,b", "a list is benchmark=[a,b]"),
        ("model=[bertje,gbert]", "one model at a time"),
    ],
)
def test_a_word_of_another_form_says_the_right_one(word: str, says: str) -> None:
    assert says in refused(word)


def test_lists_and_mappings_come_through() -> None:
    words = ["method=lora", "method.lora.targets=[query,value]", "benchmark.labels.Schwul=gay"]
    recipe = from_words(words, recipe="demo")
    assert recipe.method.lora is not None
    assert recipe.method.lora.targets == ["query", "value"]
    assert recipe.benchmark["samples_de"].labels == {"Schwul": "gay"}


def test_a_stored_recipe_that_is_none_is_said_in_one_line() -> None:
    for text in ("a: [", "unknown_key: 1", "seed: x"):
        with pytest.raises(RequestError) as caught:
            from_yaml(text)
        assert "\n" not in str(caught.value)


def test_differing_keys_are_named_and_prefixes_left_out() -> None:
    one = from_words(["seed=1", "run.dir=a"], recipe="demo")
    other = from_words(["seed=2", "run.dir=b", "method.batch=4"], recipe="demo")
    assert differing_keys(one, other) == ["method.batch", "run.dir", "seed"]
    assert differing_keys(one, other, ignore=("run.",)) == ["method.batch", "seed"]


def test_it_works_from_any_folder_and_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = from_words([], recipe="taz_lora")
    monkeypatch.chdir(tmp_path)
    assert from_words([], recipe="taz_lora") == here
    assert list(tmp_path.iterdir()) == []


def test_choices_and_groups_are_keys() -> None:
    assert set(CHOICES) <= set(all_keys())
    assert {item.name for item in dataclasses.fields(Recipe)} >= set(GROUPS) - {"recipe"}
