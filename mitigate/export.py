"""`mitigate export lm-eval`: our benchmarks as tasks of lm-evaluation-harness (Gao et al. 2024).

For each benchmark a task file (YAML) and its pairs (JSONL), so that others can score a causal
model on them in the harness. Both sentences of a pair are choices after an empty context, which
is our scorer `full`: every token given those before it, BOS first.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from eval.errors import RequestError
from eval.files import replacing
from eval.pairs import Pairs

#: Of a pair, what stands in the harness's examples beside the two sentences.
FACTS = ("pair_id", "group", "stereotype_id", "language", "counterfactual", "template")
#: Raised when the same pairs would be scored otherwise.
VERSION = "1.0"


def write(
    benchmarks: Mapping[str, Pairs], out: Path, facts: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Write task files, examples and a README into `out`; returns the names of the tasks.

    `facts`: licence and paper of each benchmark, as far as they are known.

    Raises:
        RequestError: the folder is there and holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(f"out={out}: is there and not empty; name a new folder")
    names = []
    for name, pairs in benchmarks.items():
        task = f"mitigate_{name}"
        lines = (json.dumps(_example(row), ensure_ascii=False) for row in _rows(pairs))
        _write(out / f"{task}.jsonl", "\n".join(lines) + "\n")
        _write(out / f"{task}.yaml", _task_file(task, pairs, facts.get(name, {})))
        names.append(task)
    _write(out / "README.md", _readme(names, benchmarks, facts))
    return names


def task(name: str, pairs: Pairs, facts: Mapping[str, str]) -> dict[str, Any]:
    """A task's settings, as the harness takes them."""
    return {
        "task": name,
        "tag": "mitigate",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "",
        "doc_to_choice": "choices",
        "doc_to_target": 0,
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": False}],
        "metadata": {
            "version": VERSION,
            "benchmark_hash": pairs.hash,
            "pairs": len(pairs),
            "licence": facts.get("licence") or "unknown",
            "paper": facts.get("paper") or "",
        },
    }


def _task_file(name: str, pairs: Pairs, facts: Mapping[str, str]) -> str:
    head = (
        "# lm-eval --include_path . --tasks "
        f"{name} --model hf --model_args pretrained=MODEL   (in this folder)\n"
        "# acc: share of pairs of which the stereotyped sentence is the likelier one. It is no\n"
        "# accuracy: 0.5 is the target, and no proof of the absence of bias.\n"
    )
    return head + yaml.safe_dump(task(name, pairs, facts), sort_keys=False, allow_unicode=True)


def _rows(pairs: Pairs) -> list[dict[Any, Any]]:
    return pairs.table.to_dict("records")


def _example(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The stereotyped sentence is the first choice; each is scored alone, so order is nothing."""
    facts = {name: str(row[name]) for name in FACTS}
    return {**facts, "choices": [row["sent_more"], row["sent_less"]]}


def _readme(
    names: list[str], benchmarks: Mapping[str, Pairs], facts: Mapping[str, Mapping[str, str]]
) -> str:
    listed = "\n".join(
        f"| `{task}` | {len(pairs):,} | {pairs.table['stereotype_id'].nunique():,} "
        f"| {facts.get(name, {}).get('licence') or 'unknown'} | `{pairs.hash}` |"
        for task, (name, pairs) in zip(names, benchmarks.items(), strict=True)
    )
    return f"""\
# Pairs as tasks of lm-evaluation-harness

The `.jsonl` files hold sentences that state stereotypes, and slurs; they are for measuring models,
not for training them.

```
lm-eval --include_path . --tasks {names[0]} --model hf --model_args pretrained=MODEL
```

Run it in this folder: the task files name the examples beside them. `--log_samples` keeps every
pair's two log-likelihoods, with `pair_id`, `group` and `stereotype_id`.

| task | pairs | stereotypes | licence | hash |
|---|---|---|---|---|
{listed}

- `acc` is the share of pairs of which the stereotyped sentence is the likelier one: our `bias`
  over 100, on the scorer `full` (`mitigate score … score.scorer=full`), which sums over all tokens.
  The papers' scorer for causal models, `shared`, leaves out the words that differ; the harness has
  no such thing, so the two numbers are not the same measure.
- It is no accuracy. 0.5 says that neither sentence is preferred on the whole, not that a model is
  free of bias. The harness's standard error takes pairs for independent, which those of one
  stereotype are not.
- A tie counts here as the stereotyped sentence, with us as half.
- The harness starts a sentence with the tokenizer's BOS, or EOS where it has none; we take the
  model's own BOS then, or leave the first token out. With most tokenizers that is the same.
"""


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
