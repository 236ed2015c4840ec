"""A recipe as typed dataclasses, and the one place where a command line becomes one.

Hydra composes the groups (`recipe`, `model`, `corpus`, `benchmark`, `method`, `launch`); the
values that a user overrides are checked against the dataclasses below, key by key and type
by type, before a weight is read, a tracker starts or a folder is made.
"""

import dataclasses
import difflib
import functools
import math
import re
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corpora import CorpusSettings
from eval.benchmarks import BenchmarkSettings
from eval.errors import RequestError
from eval.inference import CORRECTIONS, InferenceSettings
from eval.instructions import PLAIN, CompletionSettings
from eval.judges.settings import JudgeSettings
from eval.rules import SCORERS, ScoreSettings

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
COUNTERFACTUALS = Path(__file__).resolve().parent / "methods" / "counterfactuals"
PREFIXES = Path(__file__).resolve().parent / "methods" / "self_debias.yaml"
GROUPS = ("recipe", "model", "corpus", "benchmark", "method", "launch")
#: Groups of which several may be chosen at once; their settings stand under their names.
NAMED_GROUPS = ("corpus", "benchmark")


@dataclass
class ModelSettings:
    """Which model, and how it is loaded. Facts (size, licence, paper) go into the manifest."""

    name: str = ""
    hub: str | None = None  # hub id
    path: str | None = None  # a local folder, instead of the hub
    adapter: str | None = None  # a folder with a peft adapter on top
    revision: str | None = None
    kind: str = "auto"  # auto: by the config's architecture; masked; causal
    dtype: str = "auto"  # auto: fp32, the exact one; float32, bfloat16, float16
    device: str = "auto"  # auto: the first accelerator there is, else the CPU
    bits: int | None = None  # 4: weights in NF4 (bitsandbytes, a GPU), before and after
    device_map: str | None = None  # over several devices: auto, balanced, sequential (accelerate)
    max_memory: dict[str, str] = field(default_factory=dict)  # a device: 0, 1, cpu; at most: 70GiB
    trust_remote_code: bool = False
    langs: str | None = None  # XLM's language, whose id goes into every forward pass
    lora_targets: list[str] = field(default_factory=list)  # the architecture's attention inputs
    sample: str | None = None  # built here from the embedded world of de or nl; de_nl: of both
    gguf_package: str | None = None  # an installed package that carries the weights as GGUF
    # Behind an API of OpenAI's kind (docs/remote.md), where `name` is what the server calls it:
    base_url: str | None = None  # its address, up to /v1
    key_env: str | None = "OPENAI_API_KEY"  # the environment variable with the key; null: none
    chats: bool = True  # false: it knows no turns and is asked in plain text
    concurrency: int = 8  # requests at once
    timeout: float = 60.0  # seconds, for a whole answer
    top_logprobs: int | None = None  # likeliest tokens asked for; None: the API's most
    temperature: float | None = None  # of drawn answers; None: the server's own
    price_in: float | None = None  # of a million tokens of prompts, in any currency
    price_out: float | None = None  # of a million tokens of answers
    ceiling: float | None = None  # what all answers of a command may cost; None: no ceiling
    token_counter: str | None = None  # a tokenizer (folder or hub id) for estimates
    size: str = ""
    languages: list[str] = field(default_factory=list)
    licence: str = ""
    gated: bool = False  # the hub asks to accept a licence first
    paper: str = ""


@dataclass
class LoraSettings:
    """LoRA (Hu et al. 2021) through peft."""

    r: int = 8
    alpha: int = 16
    dropout: float = 0.0
    targets: list[str] = field(default_factory=list)  # empty: the model's `lora_targets`
    rslora: bool = False  # scaled by alpha/√r, not alpha/r (Kalajdzievski 2023)
    dora: bool = False  # magnitude and direction apart (Liu et al. 2024)


@dataclass
class PreferenceSettings:
    """Sentence pairs to prefer by, and how strongly (mitigate/methods/preference.py)."""

    loss: str = "dpo"  # dpo: the counter-stereotyped one preferred; indifference: neither
    beta: float = 0.1  # dpo: β (Rafailov et al. 2023); indifference: weight of the old likelihood
    pairs: str = ""  # the benchmark recipe that the pairs come from; empty: the evaluated one
    path: str | None = None  # that benchmark's file or folder, where its recipe names none
    same_benchmark: bool = False  # pairs may come from a benchmark that is evaluated too
    stereotypes: float = 0.5  # share of the pairs' stereotypes that is trained on, not evaluated
    templates: float = 0.5  # share of templates that is trained on, where both sides have them
    train_on: list[str] = field(default_factory=list)  # stereotype ids, instead of the share
    evaluate_on: list[str] = field(default_factory=list)  # and those evaluated; empty: all others
    limit: int | None = None  # so many of the training pairs, spread over stereotypes


@dataclass
class ProjectionSettings:
    """Which directions are taken out of the last hidden state (mitigate/methods/projection.py)."""

    kind: str = "inlp"  # inlp (Ravfogel et al. 2020), sentence_debias (Liang et al. 2020)
    directions: int = 80  # inlp: classifiers, bias-bench's 80; sentence_debias: components
    pairs: int = 2000  # sentences, each with its counterpart, at most


@dataclass
class CdaSettings:
    """Counterfactual augmentation of the corpus (mitigate/methods/cda.py)."""

    sides: str = "two"  # two: beside each text (Zhao et al. 2018); one: in its place
    languages: list[str] = field(default_factory=list)  # of the words; empty: the corpora's own


@dataclass
class DropoutSettings:
    """Dropout while training goes on (Webster et al. 2020, §5; bias-bench's values)."""

    hidden: float = 0.20  # masked models; bias-bench takes 0.15 for causal ones
    attention: float = 0.15


@dataclass
class SelfDebiasSettings:
    """A rule of decoding, nothing trained (mitigate/methods/self_debias.py)."""

    strength: float = 50.0  # λ (Schick et al. 2021): how much less of what a prefix makes likelier
    floor: float = 0.01  # ε: no token's probability is scaled below this share; 0: no bound
    prefixes: list[str] = field(default_factory=list)  # empty: ours, in the corpus's language


@dataclass
class MethodSettings:
    """A mitigation. The defaults are the German paper's settings (2608.30884, §3.4)."""

    name: str = ""
    module: str = "continued"  # the file in mitigate/methods
    lr: float = 2e-5
    epochs: float = 3
    max_steps: int = -1  # -1: as many as the epochs make
    batch: int = 8  # texts a forward pass, over all processes together
    accumulation: int = 10  # forward passes an update
    eval_steps: int = 500
    save_steps: int = 500
    keep: str = "best"  # best (by validation loss) or last
    block: int = 256  # tokens a training row at most
    mask_share: float = 0.15  # masked models: share of tokens that are predicted
    warmup_steps: int = 0
    weight_decay: float = 0.0
    scheduler: str = "linear"
    weights: str = "all"  # what is trained: all, lora, biases (and norms), last_layers
    last_layers: int = 2  # how many of them, counted from the output
    lora: LoraSettings | None = None  # the adapter that weights=lora trains
    whole_words: bool = False  # masked models: all pieces of a word are masked together
    packing: bool = False  # causal: rows are filled with texts, where none sees another
    mixed_precision: str = "none"  # bf16: products in bfloat16; auto: where a GPU does it
    gradient_checkpointing: bool = False  # less memory, about a third slower
    compile: bool = False  # torch.compile
    optimizer: str = "adamw_torch_fused"
    preference: PreferenceSettings | None = None  # methods/preference.py alone
    projection: ProjectionSettings | None = None  # methods/projection.py alone
    dropout: DropoutSettings | None = None  # methods/dropout.py alone
    cda: CdaSettings | None = None  # methods/cda.py alone
    self_debias: SelfDebiasSettings | None = None  # methods/self_debias.py alone


@dataclass
class LaunchSettings:
    """How processes are started; `auto` takes whatever launcher there is as it is."""

    name: str = "auto"
    launcher: str = "none"  # none, torchrun, accelerate
    processes: int | None = None  # on all machines together; None: as many as the launcher made
    machines: int = 1  # with more, the same command starts on each of them (docs/cluster.md)
    strategy: str | None = None  # what accelerate must really make of them: NO, MULTI_GPU, FSDP, …
    cpu: bool = False
    # of the processor, a process; None: as many as there are, unless the environment says another
    threads: int | None = None
    arguments: list[str] = field(default_factory=list)  # for the launcher


@dataclass
class RetentionSettings:
    """How it is checked that a model is still a language model, and from when it is not."""

    sentences: int = 200  # neutral held-out sentences, and as many of the corpus's own
    max_tokens: int = 64  # a text's first tokens that count
    text: str | None = None  # a file of general text, one a line, measured beside those
    grammar: bool = True  # grammatical minimal pairs, in the run's languages that have them
    places: int = 100  # of neutral text, at which predictions before and after are compared
    untargeted: list[str] = field(default_factory=list)  # chosen benchmarks not aimed at
    lm_eval: list[str] = field(default_factory=list)  # tasks of lm-eval, causal models only
    lm_eval_path: str | None = None  # a folder with further tasks, such as `mitigate export` makes
    lm_eval_limit: int | None = None  # examples of a task at most
    # The gate: a run is degraded from here on, and every output says so. None: no gate.
    max_worse: float | None = None  # per cent more (pseudo-)perplexity, on any text
    max_grammar_loss: float | None = None  # points fewer of the minimal pairs right, any language


@dataclass
class SelectionSettings:
    """Which stereotypes choices may see; what is claimed is measured on the others alone."""

    share: float = 0.0  # of the stereotypes, for curve, sweeps and fronts; 0: no such part
    seed: int = 0  # of the division; not the run's, so that all runs of a sweep share it


@dataclass
class CurveSettings:
    """Scores during training: each checkpoint, on a stratified sample of every benchmark."""

    pairs: int = 0  # of each benchmark; 0: no curve
    seed: int = 0  # of the sample; not the run's, so that runs can be laid over each other


@dataclass
class TrackingSettings:
    """W&B; `auto` is online where a key is found and offline elsewhere, never a prompt."""

    mode: str = "auto"  # auto, online, offline, disabled
    project: str = "mitigate"
    entity: str | None = None
    sentences: bool = False  # send the pairs' sentences too; they stay here otherwise


@dataclass
class ResultSettings:
    """What is kept of the fine-tuned model."""

    merge: bool = False  # beside an adapter, the model with the adapter merged into its weights


@dataclass
class HubSettings:
    """Publishing the result on the hub; nothing leaves this machine unless `push` names where."""

    push: str | None = None  # OWNER/NAME; the token comes from HF_TOKEN alone
    private: bool = True  # a repository that is made is seen by its owner only


@dataclass
class RunSettings:
    """Where the run's folder lies."""

    dir: str | None = None  # this folder; an unfinished run in it goes on
    root: str = "runs"  # else a new one in here


@dataclass
class Recipe:
    """Everything that decides a run."""

    name: str = ""
    description: str = ""
    placebo: bool = False  # trained on text with the same tilt: what a run's own noise does
    seed: int = 0
    allow_contaminated: bool = False  # go on although the corpus holds benchmark sentences
    model: ModelSettings = field(default_factory=ModelSettings)
    corpus: dict[str, CorpusSettings] = field(default_factory=dict)
    benchmark: dict[str, BenchmarkSettings] = field(default_factory=dict)
    method: MethodSettings = field(default_factory=MethodSettings)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    score: ScoreSettings = field(default_factory=ScoreSettings)
    completion: CompletionSettings = field(default_factory=CompletionSettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    judges: JudgeSettings = field(default_factory=JudgeSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    selection: SelectionSettings = field(default_factory=SelectionSettings)
    curve: CurveSettings = field(default_factory=CurveSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    result: ResultSettings = field(default_factory=ResultSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    run: RunSettings = field(default_factory=RunSettings)


#: Keys whose values come from a short list.
CHOICES: dict[str, tuple[str | int | None, ...]] = {
    "model.kind": ("auto", "masked", "causal"),
    "model.dtype": ("auto", "float32", "bfloat16", "float16"),
    "model.bits": (None, 4),
    "model.device_map": (None, "auto", "balanced", "balanced_low_0", "sequential"),
    "method.keep": ("best", "last"),
    "method.weights": ("all", "lora", "biases", "last_layers"),
    "method.mixed_precision": ("none", "bf16", "auto"),
    "method.optimizer": ("adamw_torch_fused", "adamw_torch", "adafactor"),
    "method.scheduler": ("linear", "cosine", "constant", "constant_with_warmup"),
    "launch.launcher": ("none", "torchrun", "accelerate"),
    "launch.strategy": (None, "NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED"),
    "score.scorer": ("auto", *SCORERS),
    "score.alignment": ("tokens", "words"),
    "score.lowercase": ("auto", "true", "false"),
    "score.overlong": ("error", "skip", "truncate"),
    "score.answer": ("log_probs", "generate"),
    "completion.wording": ("auto", PLAIN, "1", "2", "3", "4"),
    "completion.decoding": ("auto", "greedy", "samples"),
    "inference.correction": CORRECTIONS,
    "inference.ties": ("half", "exclude", "reference"),
    "tracking.mode": ("auto", "online", "offline", "disabled"),
}

#: Keys that say where one benchmark or corpus comes from, beside every path.
OF_ONE = ("url", "sha256", "hub", "split", "revision", "predicates_url", "predicates_sha256")

#: Keys of older transformers, or of its own arguments, and what to write here.
RENAMED = {
    "learning_rate": "method.lr",
    "num_train_epochs": "method.epochs",
    "per_device_train_batch_size": "method.batch",
    "gradient_accumulation_steps": "method.accumulation",
    "warmup_ratio": "method.warmup_steps",
    "overwrite_output_dir": "run.dir",
    "output_dir": "run.dir",
    "logging_dir": "run.dir",
    "save_safetensors": "nothing: weights are always safetensors",
    "no_cuda": "model.device=cpu",
    "group_by_length": "nothing: batches are made by the method",
    "tokenizer": "model.path",
    "api_key": "nothing: a key comes from the environment alone (model.key_env names the variable)",
}


def from_words(words: Sequence[str], *, recipe: str | None) -> Recipe:
    """Turn a command's `key=value` words into a checked recipe.

    `recipe`: the one to take when the words name none; None for none at all.

    Raises:
        RequestError: an unknown group, choice or key, or a value of a wrong type.
    """
    choices, values = _split(words)
    if "recipe" not in choices:
        choices["recipe"] = recipe
    if "model" not in choices and any(key in ("model.path", "model.hub") for key, _ in values):
        # The facts of the recipe's own model are not those of the one that is given.
        choices["model"] = "custom"
    if "model" not in choices and any(key == "model.base_url" for key, _ in values):
        choices["model"] = "openai_compatible"
    composed = _compose(choices)
    for group in NAMED_GROUPS:
        # A recipe's values for a corpus that the user has replaced name nothing any more.
        chosen = composed.get(group) or {}
        composed[group] = {name: node for name, node in chosen.items() if node.get("name")}
    unknown = _unknown_key(composed, Recipe)
    if unknown:
        raise RequestError(f"recipe {choices['recipe']}: {unknown}")
    for key, value in values:
        for target in _targets(key, composed):
            OmegaConf.update(composed, target, value, force_add=True)
    return _typed(composed)


def resolved_yaml(recipe: Recipe) -> str:
    """The recipe with everything filled in, as YAML; `from_yaml` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.structured(recipe))


def from_yaml(text: str) -> Recipe:
    """Read what `resolved_yaml` wrote.

    Raises:
        RequestError: it is something else, or has keys that this version doesn't know.
    """
    try:
        stored = OmegaConf.create(text)
    except yaml.YAMLError as error:
        raise RequestError(f"not a stored recipe: {_first_line(error)}") from error
    if not isinstance(stored, DictConfig):
        raise RequestError("not a stored recipe: no keys in it")
    recipe = stored
    method = recipe.get("method") or {}
    if method.get("lora") and "weights" not in method:
        method["weights"] = "lora"  # older runs: an adapter wherever there were settings for one
    return _typed(recipe)


def differing_keys(ours: Recipe, theirs: Recipe, ignore: Iterable[str] = ()) -> list[str]:
    """The dotted keys in which two recipes differ, but for those under the prefixes `ignore`."""
    left, right = _flat(dataclasses.asdict(ours)), _flat(dataclasses.asdict(theirs))
    return sorted(
        key
        for key in left.keys() | right.keys()
        if left.get(key) != right.get(key) and not key.startswith(tuple(ignore))
    )


def available(group: str) -> list[str]:
    """The names that a group offers, sorted."""
    return sorted(path.stem for path in (RECIPES / group).glob("*.yaml"))


def nearest(word: str, names: Iterable[str], prefix: str = "") -> str:
    """'did you mean X?' where something is near, else the list, to end an error with.

    `prefix` stands before every name that is shown, and doesn't count in what is near.
    """
    names = list(names)
    close = difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(prefix + name for name in close)}?"
    return f"there are: {', '.join(prefix + name for name in names)}"


def _split(words: Sequence[str]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Sort words into choices of groups and values of keys, with the keys checked."""
    parser = OverridesParser.create()
    choices: dict[str, Any] = {}
    values: list[tuple[str, Any]] = []
    for word in words:
        override = _parse(parser, word)
        key, value = override.key_or_group, _plain(override.value())
        if key in GROUPS:
            names = value if isinstance(value, list) else [value]
            if len(names) > 1 and key not in NAMED_GROUPS:
                raise RequestError(f"{word}: one {key} at a time")
            for name in names:
                if str(name) not in available(key):
                    hint = nearest(str(name), available(key))
                    raise RequestError(f"no {key} named {name}; {hint}")
            choices[key] = value
        else:
            values.append((key, value))
    return choices, values


def _parse(parser: OverridesParser, word: str) -> Override:
    """Parse one word; what Hydra's grammar can't read is answered with its quoted form."""
    key, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[+~]*[\w./@-]+", key):
        raise RequestError(f"'{word}' is not key=value")
    try:
        override = parser.parse_override(word)
    except HydraException as error:
        raise RequestError(
            f"{key}: this value needs quotes: {key}='{_quoted(value)}' (quotes inside quotes)"
        ) from error
    if override.type is not OverrideType.CHANGE:
        raise RequestError(f"'{word}': write {key.lstrip('+~')}=… without + or ~")
    if override.is_sweep_override():
        raise RequestError(
            f"{key}: commas mean a sweep; a list is {key}=[{value}], "
            f"a text with commas {key}='\"{value}\"'"
        )
    return override


def _quoted(value: str) -> str:
    """A value with the quotes that Hydra wants: each text of a list has its own."""
    if value.startswith("[") and value.endswith("]"):
        items = [item.strip().strip("\"'") for item in value[1:-1].split(",")]
        return "[" + ",".join(f'"{item}"' for item in items) + "]"
    return f'"{value}"'


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value


def _compose(choices: dict[str, Any]) -> DictConfig:
    """Let Hydra compose the groups, without touching folder, logging or working directory."""
    overrides = []
    for group, choice in choices.items():
        if choice is None:
            overrides.append(f"~{group}")  # Hydra takes no null for a group
            continue
        said = f"[{','.join(choice)}]" if isinstance(choice, list) else choice
        overrides.append(f"{group}={said}")
    try:
        with initialize_config_dir(config_dir=str(RECIPES), version_base=None):
            composed = compose("config", overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise RequestError(f"recipe {choices['recipe']}: {_first_line(error)}") from error
    OmegaConf.set_struct(composed, False)
    return composed


def _targets(key: str, composed: DictConfig) -> list[str]:
    """The full keys that a user's key means.

    `benchmark.limit` means the limit of every chosen benchmark; a path belongs to one, so
    with several chosen it must say which (`benchmark.survey_de.path`).
    """
    group, _, rest = key.partition(".")
    if group in NAMED_GROUPS and rest:
        names = list(composed[group])
        first, _, inner = rest.partition(".")
        if first in names:
            _check_key(key, inner, _item_type(group))
            return [key]
        if inner and first in available(group):
            raise RequestError(f"{key}: this run has {group}={','.join(names)}, not {first}")
        _check_key(key, rest, _item_type(group), also=names)
        if len(names) > 1 and ("path" in rest or rest in OF_ONE):
            raise RequestError(
                f"{key}: there are several; say which: "
                + ", ".join(f"{group}.{name}.{rest}" for name in names)
            )
        return [f"{group}.{name}.{rest}" for name in names]
    _check_key(key, key, Recipe)
    return [key]


def _item_type(group: str) -> type:
    return {"corpus": CorpusSettings, "benchmark": BenchmarkSettings}[group]


@functools.cache
def _fields(schema: type) -> dict[str, Any]:
    hints = typing.get_type_hints(schema)
    return {item.name: hints[item.name] for item in dataclasses.fields(schema)}


def _dataclass_of(hint: Any) -> type | None:
    """The dataclass in a type such as `LoraSettings | None`, if there is one."""
    for candidate in (hint, *typing.get_args(hint)):
        if dataclasses.is_dataclass(candidate):
            return typing.cast(type, candidate)
    return None


def _check_key(said: str, key: str, schema: type, also: Iterable[str] = ()) -> None:
    """Raise unless the dotted `key` is one of `schema`, with the nearest that is."""
    if not key:
        names = [f"{said}.{name}" for name in _fields(schema)]
        raise RequestError(f"{said} is a group of keys: {', '.join(names)}")
    first, _, rest = key.partition(".")
    fields = _fields(schema)
    if first not in fields:
        if first in RENAMED:
            raise RequestError(f"no key {said}; here it is {RENAMED[first]}")
        prefix = said[: len(said) - len(key)]
        # A key that is right elsewhere (`lr` for `method.lr`) is the likeliest slip of all.
        deep = [name for name in all_keys() if name.rpartition(".")[2] == first]
        if deep and not prefix:
            raise RequestError(f"no key {said}; did you mean {' or '.join(deep)}?")
        if not prefix:
            names = [*all_keys(), *GROUPS]
            if not difflib.get_close_matches(said, names, n=1):
                names = list(fields)  # eighty keys are no help
            raise RequestError(f"no key {said}; {nearest(said, names)}")
        raise RequestError(f"no key {said}; {nearest(first, [*fields, *also], prefix)}")
    inner = _dataclass_of(fields[first])
    if rest and inner is not None:
        _check_key(said, rest, inner)
    elif rest and typing.get_origin(fields[first]) is not dict:
        raise RequestError(f"no key {said}; {said[: -len(rest) - 1]} is a single value")
    elif not rest and inner is not None and type(None) not in typing.get_args(fields[first]):
        _check_key(said, "", inner)


@functools.cache
def all_keys() -> tuple[str, ...]:
    """Every dotted key a user may override."""

    def walk(prefix: str, schema: type) -> Iterable[str]:
        for name, hint in _fields(schema).items():
            inner = _dataclass_of(hint)
            if inner is None:
                yield prefix + name
            else:
                yield from walk(f"{prefix}{name}.", inner)

    return tuple(walk("", Recipe))


def _unknown_key(node: Any, schema: type, prefix: str = "") -> str:
    """What a composed tree has that the schema has not, said in one line; '' for nothing."""
    fields = _fields(schema)
    for name, value in ((str(key), value) for key, value in node.items()):
        if name not in fields:
            return f"no key {prefix}{name}; {nearest(name, fields, prefix)}"
        if not isinstance(value, DictConfig):
            continue
        inner = _dataclass_of(fields[name])
        if typing.get_origin(fields[name]) is dict:
            if inner is None:
                continue
            for item, content in value.items():
                found = _unknown_key(content, inner, f"{prefix}{name}.{item!s}.")
                if found:
                    return found
        elif inner is not None:
            found = _unknown_key(value, inner, f"{prefix}{name}.")
            if found:
                return found
    return ""


def _typed(composed: DictConfig) -> Recipe:
    """Merge into the schema, which checks the types, and check the values' ranges."""
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Recipe), composed)
        recipe = typing.cast(Recipe, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "recipe"
        said = _first_line(error)
        if "ListConfig" in said:
            said = f"a list, written {key}=[…]"
        raise RequestError(f"{key}: {said}") from error
    # YAML and Hydra read `true` as a truth value, and OmegaConf spells that `True`.
    recipe.score.lowercase = recipe.score.lowercase.lower()
    flat = _flat(dataclasses.asdict(recipe))
    for key, allowed in CHOICES.items():
        if flat[key] not in allowed:
            names = [str(name) for name in allowed if name is not None]
            raise RequestError(f"{key}={flat[key]}: {nearest(str(flat[key]), names)}")
    _check_ranges(recipe)
    return recipe


def _check_ranges(recipe: Recipe) -> None:
    method = recipe.method
    weights = recipe.model.hub or recipe.model.path or recipe.model.sample
    if recipe.model.base_url is not None and weights:
        raise RequestError(
            f"model.base_url: {recipe.model.name} has weights ({weights}); "
            "model=openai_compatible is asked behind an API"
        )
    positive = {
        "method.lr": method.lr,
        "method.batch": method.batch,
        "method.accumulation": method.accumulation,
        "method.eval_steps": method.eval_steps,
        "method.save_steps": method.save_steps,
        "method.block": method.block,
        "method.last_layers": method.last_layers,
        "inference.resamples": recipe.inference.resamples,
        "retention.sentences": recipe.retention.sentences,
        "retention.max_tokens": recipe.retention.max_tokens,
        "completion.top": recipe.completion.top,
        "completion.tokens": recipe.completion.tokens,
    }
    if method.max_steps == -1:
        positive["method.epochs"] = method.epochs
    if method.lora is not None:
        positive |= {"method.lora.r": method.lora.r, "method.lora.alpha": method.lora.alpha}
    if recipe.score.batch_tokens is not None:
        positive["score.batch_tokens"] = recipe.score.batch_tokens
    personas = recipe.score.personas
    if not personas or len({*personas}) < len(personas):
        raise RequestError("score.personas: name at least one, and each once: [none,bad,good]")
    if recipe.launch.processes is not None:
        positive["launch.processes"] = recipe.launch.processes
    positive["launch.machines"] = recipe.launch.machines
    if recipe.launch.threads is not None:
        positive["launch.threads"] = recipe.launch.threads
    for key, value in positive.items():
        if not value > 0:
            raise RequestError(f"{key}={value}: must be more than 0")
    for key in ("places", "lm_eval_limit", "max_worse", "max_grammar_loss"):
        limit = getattr(recipe.retention, key)
        if limit is not None and limit < (1 if key == "lm_eval_limit" else 0):
            raise RequestError(f"retention.{key}={limit}: must not be less than 0, or leave it out")
    if not 0 <= recipe.selection.share < 1:
        raise RequestError(
            f"selection.share={recipe.selection.share}: 0 for no selection part, or less than 1"
        )
    if not 0 <= recipe.seed < 2**32:
        raise RequestError(f"seed={recipe.seed}: must lie between 0 and {2**32 - 1}")
    if recipe.completion.trial < 0:
        raise RequestError(f"completion.trial={recipe.completion.trial}: 0 for no trial, or more")
    if recipe.curve.pairs < 0:
        raise RequestError(f"curve.pairs={recipe.curve.pairs}: 0 for no curve, or more")
    if not 0 < method.mask_share < 1:
        raise RequestError(f"method.mask_share={method.mask_share}: must lie between 0 and 1")
    _check_methods(method)
    if method.module == "cda":
        _check_counterfactuals(recipe)
    if method.module == "self_debias":
        _check_decoding(recipe)
    if method.lora is not None and method.weights != "lora":
        raise RequestError(
            f"method.lora: this recipe trains method.weights={method.weights}; method=lora trains "
            "an adapter"
        )
    if method.max_steps == 0 or method.max_steps < -1:
        raise RequestError(f"method.max_steps={method.max_steps}: more than 0, or -1 for no limit")
    if method.keep == "best" and method.save_steps % method.eval_steps:
        raise RequestError(
            f"method.save_steps={method.save_steps} must be a multiple of "
            f"method.eval_steps={method.eval_steps} to keep the best; or method.keep=last"
        )


def _check_methods(method: MethodSettings) -> None:
    """The ranges of keys that only some methods have."""
    if (preference := method.preference) is not None:
        if preference.loss not in ("dpo", "indifference"):
            hint = nearest(preference.loss, ("dpo", "indifference"))
            raise RequestError(f"method.preference.loss={preference.loss}: {hint}")
        if not preference.beta > 0:
            raise RequestError(f"method.preference.beta={preference.beta}: must be more than 0")
        for key in ("stereotypes", "templates"):
            share = getattr(preference, key)
            if not 0 < share < 1:
                raise RequestError(
                    f"method.preference.{key}={share}: must lie between 0 and 1, so that both "
                    "sides have some"
                )
    if (projection := method.projection) is not None:
        if projection.kind not in ("inlp", "sentence_debias"):
            hint = nearest(projection.kind, ("inlp", "sentence_debias"))
            raise RequestError(f"method.projection.kind={projection.kind}: {hint}")
        for key in ("directions", "pairs"):
            if getattr(projection, key) < 1:
                raise RequestError(f"method.projection.{key}: must be 1 at least")
    if (dropout := method.dropout) is not None:
        for key in ("hidden", "attention"):
            if not 0 <= getattr(dropout, key) < 1:
                raise RequestError(
                    f"method.dropout.{key}={getattr(dropout, key)}: must lie between 0 and 1"
                )


def _check_decoding(recipe: Recipe) -> None:
    """What needs a result that is weights, where it is a rule of decoding around the old ones."""
    given = recipe.method.self_debias or SelfDebiasSettings()
    if not 0 < given.strength < math.inf:
        raise RequestError(
            f"method.self_debias.strength={given.strength:g}: must be more than 0, or nothing "
            "changes"
        )
    if not 0 <= given.floor < 1:
        raise RequestError(
            f"method.self_debias.floor={given.floor:g}: 0 for no bound, or less than 1"
        )
    if not all(prefix.strip() for prefix in given.prefixes):
        raise RequestError("method.self_debias.prefixes: one of them is empty")
    there = list(yaml.safe_load(PREFIXES.read_text("utf-8")))
    for name, some in ({} if given.prefixes else recipe.corpus).items():
        if some.language not in there:
            raise RequestError(
                f"corpus.{name}.language={some.language}: Self-Debias has prefixes in "
                f"{', '.join(there)}; others go into method.self_debias.prefixes=[…]"
            )
    why = "the weights are the model's own, and Self-Debias works through this package alone"
    if recipe.result.merge:
        raise RequestError(f"result.merge=true: there is nothing to merge: {why}")
    if recipe.hub.push:
        raise RequestError(f"hub.push={recipe.hub.push}: there is nothing to publish: {why}")
    if recipe.retention.lm_eval:
        raise RequestError(f"retention.lm_eval: the harness would read the model without it: {why}")
    if recipe.curve.pairs:
        raise RequestError(
            f"curve.pairs={recipe.curve.pairs}: method={recipe.method.name} has no checkpoints"
        )


def _check_counterfactuals(recipe: Recipe) -> None:
    """Whether there are words to exchange in the languages of the corpora."""
    cda = recipe.method.cda or CdaSettings()
    if cda.sides not in ("two", "one"):
        raise RequestError(f"method.cda.sides={cda.sides}: {nearest(cda.sides, ('two', 'one'))}")
    there = sorted(path.stem for path in COUNTERFACTUALS.glob("*.yaml"))
    if unknown := next((code for code in cda.languages if code not in there), None):
        raise RequestError(f"method.cda.languages={unknown}: {nearest(unknown, there)}")
    said = {f"corpus.{name}.language": some.language for name, some in recipe.corpus.items()}
    for key, language in () if cda.languages else said.items():
        if language not in there:
            raise RequestError(
                f"{key}={language}: counterfactuals need a language that they are known in; "
                f"there are: {', '.join(there)} (method.cda.languages)"
            )
    if not cda.languages and len(set(said.values())) > 1:
        raise RequestError(
            "method.cda.languages: the corpora are in several languages; say "
            f"method.cda.languages=[{','.join(sorted(set(said.values())))}]"
        )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
