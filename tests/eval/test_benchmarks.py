"""Benchmarks are read whole, from their published form, and bad files get one clear line."""

import codecs
import json
from pathlib import Path

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from eval.benchmarks import BenchmarkSettings, Columns, load
from eval.benchmarks.crows_pairs import mend
from eval.benchmarks.pairs import read_table
from eval.benchmarks.winoqueer_nl import stereotypes
from eval.errors import RequestError
from eval.metrics import scopes
from eval.pairs import COLUMNS, benchmark_hash

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT.parent / "shared" / "reference"
DUTCH_CROWS = REFERENCE / "dutch_crows_pairs" / "crows_dutch.csv"
SAMPLE = REFERENCE / "winoqueer_nl_sample_pairs.csv"
SAMPLE_PREDICATES = REFERENCE / "winoqueer_nl_sample_predicates.csv"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="no ../shared/reference here")

NINE = "lgbtq queer transgender nonbinary bisexual pansexual lesbian asexual gay"
ROWS = [
    {"sent_more": "Ze is lief, zei Zoë.", "sent_less": "Hij is lief, zei Zoë.", "group": "a"},
    {"sent_more": "Ze is boos.", "sent_less": "Hij is boos.", "group": "b"},
    {"sent_more": "Ze is er.", "sent_less": "Hij is er.", "group": "b"},
]


def recipe(name: str, **changes: object) -> BenchmarkSettings:
    """A shipped recipe's settings, as Hydra composes them."""
    with initialize_config_dir(config_dir=str(ROOT / "recipes"), version_base=None):
        composed = compose("config", overrides=["~recipe", f"benchmark={name}"])
    merged = OmegaConf.merge(
        OmegaConf.structured(BenchmarkSettings), composed.benchmark[name], changes
    )
    settings = OmegaConf.to_object(merged)
    assert isinstance(settings, BenchmarkSettings)
    return settings


def pairs_at(path: Path, **changes: object) -> BenchmarkSettings:
    return BenchmarkSettings(name="mine", path=str(path), **changes)  # type: ignore[arg-type]


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def refused(settings: BenchmarkSettings) -> str:
    with pytest.raises(RequestError) as caught:
        load(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- any file of pairs ---------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "bom", "semicolon", "tsv", "jsonl", "parquet", "crlf"])
def test_every_format_gives_the_same_table(tmp_path: Path, form: str) -> None:
    frame = pd.DataFrame(ROWS)
    path = tmp_path / f"pairs.{form if form in ('tsv', 'jsonl', 'parquet') else 'csv'}"
    if form == "parquet":
        frame.to_parquet(path)
    elif form == "jsonl":
        write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))
    else:
        separator = {"semicolon": ";", "tsv": "\t"}.get(form, ",")
        text = frame.to_csv(sep=separator, index=False)
        text = text.replace("\n", "\r\n") if form == "crlf" else text
        write(path, text, "utf-8-sig" if form == "bom" else "utf-8")
    pairs = load(pairs_at(path, language="nl"))
    assert tuple(pairs.table.columns[: len(COLUMNS)]) == COLUMNS
    for column in ("sent_more", "sent_less", "group"):
        assert pairs.table[column].tolist() == [row[column] for row in ROWS]
    assert pairs.source["file"] == path.name
    assert pairs.source["rows_read"] == 3
    assert len(pairs.source["sha256"]) == 64


def test_columns_are_mapped_and_others_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x,y,who,pred,language,note\nZij,Hij,q,p1,frisian,n1\n")
    columns = Columns(sent_more="x", sent_less="y", group="who", stereotype="pred")
    row = load(pairs_at(path, columns=columns, language="nl")).table.iloc[0]
    assert (row["group"], row["stereotype_id"], row["note"]) == ("q", "p1", "n1")
    assert (row["language"], row["language_in_file"]) == ("nl", "frisian")


def test_without_stereotypes_each_pair_is_a_cluster(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sent_more,sent_less\nZij,Hij\nZij wel,Hij wel\n")
    table = load(pairs_at(path)).table
    assert table["stereotype_id"].tolist() == table["pair_id"].tolist()
    assert table["group"].tolist() == ["", ""]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sent_more,sent_lesss\nZij,Hij\n")
    said = refused(pairs_at(path))
    assert "no column sent_less in a.csv; there are: sent_more, sent_lesss" in said
    assert said.endswith("benchmark.columns.sent_less=sent_lesss")
    path = write(tmp_path / "b.csv", "sent_more,sent_less\nZij,Hij\n")
    assert "benchmark.columns.group=" in refused(pairs_at(path, columns=Columns(group="who")))


def test_empty_and_identical_sentences_are_left_out_and_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sent_more,sent_less\nZij,Hij\n,Hij\nWij,Wij\nNA,None\n")
    pairs = load(pairs_at(path))
    assert pairs.table["sent_more"].tolist() == ["Zij", "NA"]  # words, not missing values
    assert pairs.left_out[["row", "reason"]].values.tolist() == [
        [1, "empty sentence"],
        [2, "identical sentences"],
    ]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"", "is empty"),
        ("a.jsonl", b"\n\n", "is empty"),
        ("a.parquet", b"", "is empty"),
        ("a.parquet", b"sent_more,sent_less", "not a Parquet file"),
        ("a.jsonl", b'{"sent_more": "a"\n', "line 1: not JSON"),
        ("a.jsonl", b"[1]\n", "line 1: not a JSON object"),
        ("a.csv", b"sent_more,sent_more,sent_less\na,b,c\n", "two columns are called sent_more"),
        ("a.csv", b"sent_more,sent_less\n", "no usable pair (0 rows read)"),
        ("a.csv", b"sent_more,sent_less\na,b\na,b,c\n", "rows don't fit its header"),
        ("a.csv", b"sent_more,sent_less\na,b,c\na,b,c\n", "more fields than the header"),
        ("a.xlsx", b"PK", "benchmark.format="),
        ("a.csv", "sent_more,sent_less\na,b\n".encode("utf-16-le"), "benchmark.encoding=utf-16"),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert says in refused(pairs_at(path))


def test_a_missing_file_says_where_it_comes_from(tmp_path: Path) -> None:
    settings = recipe("crows_pairs_nl")
    for path, says in ((None, "no file given"), (str(tmp_path / "no.csv"), "no file ")):
        settings.path = path
        said = refused(settings)
        assert says in said
        assert "github.com/jerryspan/Dutch-CrowS-Pairs" in said
        assert "benchmark.path=FILE (of several benchmarks, benchmark.NAME.path=FILE)" in said
    assert "is a folder" in refused(pairs_at(tmp_path))


def test_another_encoding_is_never_guessed(tmp_path: Path) -> None:
    text = "sent_more,sent_less\nDe siësta van haar,De siësta van hem\n"
    path = write(tmp_path / "a.csv", text, "mac_roman")
    said = refused(pairs_at(path))
    assert "tried utf-8" in said
    assert "charset-normalizer suggests" in said
    assert "'siësta' in mac_roman" in said
    assert "benchmark.encoding=" in said
    assert load(pairs_at(path, encoding="mac_roman")).table["sent_more"][0] == "De siësta van haar"
    assert "no such encoding" in refused(pairs_at(path, encoding="mac_romance"))
    assert "not ascii" in refused(pairs_at(path, encoding="ascii"))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_as_they_like(tmp_path: Path, end: str) -> None:
    path = write(tmp_path / "a.csv", end.join(["sent_more;sent_less", "Zij;Hij", "Wij;Jij", ""]))
    assert load(pairs_at(path)).table["sent_less"].tolist() == ["Hij", "Jij"]


def test_separator_can_be_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sent_more|sent_less\nZij|Hij\n")
    assert len(load(pairs_at(path, separator="|"))) == 1
    assert "benchmark.separator=" in refused(pairs_at(path, separator="||"))
    # Commas in the header's other names don't make it comma-separated.
    path = write(tmp_path / "b.csv", 'sent_more;sent_less;"a, b, c, d"\nZij;Hij;1\n')
    assert read_table(path, expected=["sent_more", "sent_less"])[1]["separator"] == "semicolon"


def test_several_groups_in_a_cell(tmp_path: Path) -> None:
    rows = ["Zij,Hij,Schwul", 'Zij a,Hij a,"trans*; Lesbisch"', 'Zij b,Hij b,"Agender, Neu"']
    path = write(tmp_path / "a.csv", "sent_x,sent_y,Gender_ID_x\n" + "\n".join(rows) + "\n")
    table = load(recipe("survey_de", path=str(path))).table
    assert table["group"].tolist() == ["gay", "transgender|lesbian", "nonbinary|Neu"]
    assert table["group_label"].tolist() == ["Schwul", "trans*; Lesbisch", "Agender, Neu"]


def test_translated_german_pairs(tmp_path: Path) -> None:
    labels = ["LGBTQ", "Queer", "Transgender", "Nichtbinär", "Bisexuell", "Pansexuell", "Lesbisch"]
    labels += ["Asexuell", "Schwul"]
    rows = [f"{label} x.,Hetero x.,{label},Hetero,ist x\n" for label in labels]
    header = "sent_x,sent_y,Gender_ID_x,Gender_ID_y,predicate\n"
    settings = recipe("winoqueer_de", path=str(write(tmp_path / "a.csv", header + "".join(rows))))
    settings.columns.stereotype = "predicate"
    table = load(settings).table
    assert " ".join(table["group"]) == NINE
    assert table["group_label"].tolist() == labels
    assert set(table["stereotype_id"]) == {"ist x"}
    assert set(table["counterfactual"]) == {"Hetero"}


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sent_more,sent_more ,sent_less\nZij,Wij,Hij\n")
    assert "two columns are called sent_more" in refused(pairs_at(path))


def test_a_label_with_a_comma_may_be_one_group(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'sent_more,sent_less,group\nZij,Hij,"Race, Color"\n')
    assert load(pairs_at(path)).table["group"][0] == "Race, Color"
    labels = {"race, color": "race"}
    assert load(pairs_at(path, labels=labels)).table["group"][0] == "race"


def test_unknown_reader_names_the_nearest() -> None:
    said = refused(BenchmarkSettings(name="x", reader="winoquer_nl"))
    assert said == "benchmark.reader=winoquer_nl: no such reader; did you mean winoqueer_nl?"


# --- limit -----------------------------------------------------------------------------------


def sampled(tmp_path: Path, limit: int | None, seed: int = 0) -> pd.DataFrame:
    path = tmp_path / "many.csv"
    if not path.exists():
        rows = [f"Zij {i},Hij {i},{'abc'[(i % 10 > 5) + (i == 0)]}" for i in range(100)]
        write(path, "sent_more,sent_less,group\n" + "\n".join(rows) + "\n")
    return load(pairs_at(path, limit=limit, seed=seed)).table


def test_limit_is_stratified_seeded_and_in_order(tmp_path: Path) -> None:
    everything = sampled(tmp_path, None)
    assert everything["group"].value_counts().to_dict() == {"a": 59, "b": 41}
    table = sampled(tmp_path, 20)
    assert table["group"].value_counts().to_dict() == {"a": 12, "b": 8}
    places = [everything["pair_id"].tolist().index(pair) for pair in table["pair_id"]]
    assert places == sorted(set(places))
    assert sampled(tmp_path, 20).equals(table)
    assert benchmark_hash(sampled(tmp_path, 20, seed=1)["pair_id"]) != benchmark_hash(
        table["pair_id"]
    )
    assert sampled(tmp_path, 1000).equals(everything)


@pytest.mark.parametrize("limit", range(1, 40))
def test_limit_gives_exactly_so_many_and_every_group(tmp_path: Path, limit: int) -> None:
    sizes = {"a": 30, "b": 4, "c": 1, "d": 1, "e": 1}
    rows = [f"Zij {g} {i},Hij {g} {i},{g}" for g, n in sizes.items() for i in range(n)]
    path = write(tmp_path / "a.csv", "sent_more,sent_less,group\n" + "\n".join(rows) + "\n")
    table = load(pairs_at(path, limit=limit)).table
    assert len(table) == min(limit, 37)
    if limit >= len(sizes):
        assert set(table["group"]) == set(sizes)


def test_limit_of_nothing_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sent_more,sent_less\nZij,Hij\n")
    assert "benchmark.limit=0" in refused(pairs_at(path, limit=0))


# --- Dutch CrowS-Pairs -------------------------------------------------------------------------


@needs_reference
def test_dutch_crows_pairs_as_published() -> None:
    pairs = load(recipe("crows_pairs_nl", path=str(DUTCH_CROWS)))
    # Table 2 of 2507.16442.
    assert pairs.table["group"].value_counts().to_dict() == {
        "race-color": 475,
        "gender": 262,
        "nationality": 173,
        "socioeconomic": 171,
        "religion": 101,
        "age": 82,
        "sexual-orientation": 78,
        "physical-appearance": 63,
        "disability": 58,
    }
    assert len(pairs) == 1463
    assert pairs.left_out.empty
    assert pairs.source["pairs_by_direction"] == {"antistereo": 214, "stereo": 1249}
    words = set(" ".join(pairs.table["sent_more"] + " " + pairs.table["sent_less"]).split())
    assert {"siësta", "carrière", "financiële", "één", "auto’s"} <= words
    assert not any(sign in word for word in words for sign in "√©�‘\u0091")
    assert pairs.source["cells_mended"] == 1


@needs_reference
def test_dutch_crows_pairs_without_its_encoding_is_refused() -> None:
    said = refused(recipe("crows_pairs_nl", path=str(DUTCH_CROWS), encoding="auto"))
    assert "'siësta' in mac_roman" in said


@pytest.mark.parametrize("name", ["crows_pairs", "crows_pairs_fr", "crows_pairs_nl"])
@pytest.mark.parametrize("separator", [",", "\t"])
def test_both_directions_keep_their_roles(tmp_path: Path, name: str, separator: str) -> None:
    rows = [
        # A stereotype of the group itself; then one that it goes against.
        ["0", "Old people are slow.", "Young people are slow.", "stereo", "age"],
        ["1", "Young people are quick.", "Old people are quick.", "antistereo", "age"],
    ]
    header = ["", "sent_more", "sent_less", "stereo_antistereo", "bias_type"]
    text = "".join(separator.join(row) + "\n" for row in [header, *rows])
    table = load(recipe(name, path=str(write(tmp_path / "a.csv", text)))).table
    # In both it's the first sentence that stereotypes more, and that scores as bias.
    assert table["sent_more"].tolist() == [row[1] for row in rows]
    assert table["sent_less"].tolist() == [row[2] for row in rows]
    about = [row[row["disadvantaged"]] for _, row in table.iterrows()]
    assert about == ["Old people are slow.", "Old people are quick."]
    assert table["group"].tolist() == ["age", "age"]
    assert table["row_in_file"].tolist() == ["0", "1"]
    assert table["stereotype_id"].tolist() == table["pair_id"].tolist()


def test_a_pair_without_direction_is_refused(tmp_path: Path) -> None:
    header = "sent_more,sent_less,stereo_antistereo,bias_type\n"
    path = write(tmp_path / "a.csv", header + "a,b,Stereo ,age\nc,d,neither,age\n")
    said = refused(recipe("crows_pairs", path=str(path)))
    assert said.endswith("row 2: stereo_antistereo is 'neither'; it must be stereo or antistereo")
    path = write(tmp_path / "b.csv", "sent_more,sent_less,bias_type\na,b,age\n")
    assert "no column stereo_antistereo" in refused(recipe("crows_pairs", path=str(path)))


def test_every_accented_letter_in_utf8_is_mended() -> None:
    letters = "".join(chr(code) for code in range(0xC0, 0x100))
    assert mend(letters.encode().decode("mac_roman")) == letters
    assert mend("één café, √2 en auto’s") == "één café, √2 en auto’s"
    assert codecs.lookup("mac_roman").name == "mac-roman"


# --- WinoQueer-NL ------------------------------------------------------------------------------


@needs_reference
def test_winoqueer_nl_by_tier_origin_and_group() -> None:
    settings = recipe("winoqueer_nl", path=str(SAMPLE), predicates_path=str(SAMPLE_PREDICATES))
    settings.tiers = [1, 2]
    assert len(load(settings)) == 4798 + 3002
    settings.origin, settings.groups = "survey", ["lgbtq", "queer"]
    table = load(settings).table
    assert set(table["group"]) <= {"lgbtq", "queer"}
    assert set(table["origin"]) == {"survey"}
    settings.where = "harm_mean <= 0"
    assert "leaves none of the" in refused(settings)


@needs_reference
def test_winoqueer_nl_in_its_published_form() -> None:
    settings = recipe("winoqueer_nl", path=str(SAMPLE), predicates_path=str(SAMPLE_PREDICATES))
    pairs = load(settings)
    table = pairs.table
    assert len(table) == 8336
    assert pairs.left_out.empty
    assert set(table["group"]) == set(NINE.split())
    labels = table.drop_duplicates("group_label").set_index("group_label")["group"]
    assert (labels["LHBTI"], labels["Homo"]) == ("lgbtq", "gay")
    assert set(table["counterfactual"]) == {"Hetero", "Heteroseksueel", "Cis", "Cisgender"}
    # 15 stereotypes, two of them added from the survey, which have no tier in the file.
    assert table["stereotype_id"].nunique() == 15
    assert table["tier"].value_counts().to_dict() == {1: 4798, 2: 3002, 3: 536}
    added = table[table["origin"] == "survey"]
    assert added["stereotype_id"].nunique() == 2
    assert set(added["tier"]) == {1}
    # Every form of a stereotype is in its cluster, template 11's wording too.
    abnormal = table[table["stereotype_id"] == "zijn abnormaal"]
    assert len(abnormal) == 402
    assert set(abnormal["template"]) == {"1", "3", "5", "11"}
    assert set(abnormal["harm_mean"]) == {2.78}
    # Stereotypes that the community finds not harmful are a slice that reports cut by themselves.
    mild = table[table["slice"] == "not harmful"]
    assert len(mild) == 670
    assert mild["harm_mean"].max() <= 0 < table.loc[table["slice"] == "harmful", "harm_mean"].min()
    scope = {scope.name: scope.rows for scope in scopes(table)}["slice:not harmful"]
    assert scope.tolist() == mild.index.tolist()
    assert pairs.source["pairs_without_predicate"] == 0
    assert pairs.source["pairs_with_doubled_spaces"] == 120


PREDICATES_HEADER = "template,predicate,nl_predicate_altered,gender_ID,harmfulness_mean,tier\n"


def winoqueer(tmp_path: Path, predicates: str, pairs: str) -> BenchmarkSettings:
    write(tmp_path / "final_predicates.csv", PREDICATES_HEADER + predicates)
    header = "sent_x,sent_y,Gender_ID_x,Gender_ID_y,nl_predicate_altered\n"
    return recipe("winoqueer_nl", path=str(write(tmp_path / "pairs.csv", header + pairs)))


def test_winoqueer_nl_quirks(tmp_path: Path) -> None:
    predicates = (
        "1,are odd,zijn vreemd,Homo,2,2\n"
        "1,are odd,zijn vreemd,Homo,2,2\n"  # rows that stand twice
        "3,are odd,vreemd zijn ,Homo,2,2\n"
        "11,odd,vreemd,Homo,2,2\n"
        "1,,dragen sokken,Homo,1,\n"  # from the survey: no predicate, no tier
        "3,,sokken dragen,Homo,1,\n"
        "1,are strange,zijn vreemd,Homo,3,-1\n"  # another predicate, the same Dutch form
        "3,are strange,vreemd doen,Homo,3,-1\n"
    )
    pairs = (
        "Homo's zijn vreemd.,Hetero's zijn vreemd.,Homo,Hetero,zijn vreemd\n"
        "Omdat Homo's vreemd zijn.,Omdat Hetero's vreemd zijn.,Homo,Hetero,vreemd zijn\n"
        "Omdat Homo's vreemd doen.,Omdat Hetero's vreemd doen.,Homo,Hetero,vreemd doen\n"
        "Homo's dragen sokken.,Hetero's dragen sokken.,Homo,Hetero,dragen sokken\n"
        "Homo's zijn nieuw.,Hetero's zijn nieuw.,Homo,Hetero,zijn nieuw\n"
    )
    read = load(winoqueer(tmp_path, predicates, pairs))
    table = read.table
    odd, socks, new = "zijn vreemd", "dragen sokken", "zijn nieuw"
    assert table["stereotype_id"].tolist() == [odd, odd, odd, socks, new]
    assert table["tier"].tolist()[:4] == [2, 2, -1, 1]
    assert pd.isna(table["tier"][4])
    assert table["slice"].tolist() == ["harmful"] * 4 + [""]
    assert table["origin"].fillna("").tolist() == ["translated"] * 3 + ["survey", ""]
    assert read.source["pairs_without_predicate"] == 1
    assert read.source["predicates_not_found"] == ["zijn nieuw"]
    assert read.source["predicates"]["forms_with_several_tiers"] == ["zijn vreemd"]


def test_blocks_that_share_a_form_are_one_stereotype() -> None:
    templates = [1, 3, 5, 11, 1, 3, 1, 3, 11, 1]
    forms = ["a1", "a3", "a5", "a11", "b1", "b3", "c1", "b3", "a11", "d1"]
    assert stereotypes(templates, forms) == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert stereotypes([1, 3, 1, 3], ["a", "a", "b", "b"]) == [0, 0, 1, 1]


def test_winoqueer_nl_needs_its_predicates(tmp_path: Path) -> None:
    settings = winoqueer(tmp_path, "x,are odd,zijn vreemd,Homo,2,2\n", "a,b,Homo,Hetero,c\n")
    assert "row 1: template 'x' is not a number" in refused(settings)
    write(tmp_path / "final_predicates.csv", "template,predicate\n1,are odd\n")
    assert "no column nl_predicate_altered" in refused(settings)
    (tmp_path / "final_predicates.csv").unlink()
    assert "benchmark.predicates_path=FILE" in refused(settings)


# --- recipes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (ROOT / "recipes" / "benchmark").glob("*.yaml"))
)
def test_every_recipe_is_typed_and_named(name: str) -> None:
    settings = recipe(name)
    assert settings.name == name
    assert settings.licence
