"""What the words themselves show: diversity, divergence, and which words mark a category.

Words are compared in lower case. (QueerGen, 2601.20731, §4.6 and appendix B.3)
"""

import numpy as np
import pandas as pd
from scipy.spatial.distance import jensenshannon
from scipy.special import gammaln

from eval.inference.completions import permutation
from eval.inference.completions.grid import GAPS, Grid
from eval.prompts import CATEGORIES

RAREFIED = 100  # draws that the rarefied diversity is of
DIVERSITY_COLUMNS = {
    "category": "of the subject",
    "n": "usable completions",
    "different": "different words among them",
    "share": "different words in percent of completions, the paper's: falls as n grows",
    "rarefied": f"expected different words in {RAREFIED} completions drawn without replacement",
    "matched": "expected different words where each sentence is completed once, its marker drawn "
    "among the category's",
}
DIVERGENCE_COLUMNS = {
    "pair": "of categories",
    "value": "Jensen–Shannon divergence in bits, 0 to 1: the square of scipy's distance",
    "expected": "its mean were identities exchangeable within blocks: what chance alone gives",
    "expected_high": "and its 95 % point then",
    "p": "share of such permutations with as large a divergence",
    "p_markers": "queer and non-queer: the same with whole markers' labels permuted",
}


def counts(grid: Grid) -> pd.DataFrame:
    """How often each word was said, (words, categories), the most frequent first."""
    table = pd.crosstab(grid.words["word"], grid.words["category"])
    table = table.reindex(columns=grid.categories, fill_value=0)
    order = table.sum(axis=1).sort_index().sort_values(ascending=False, kind="stable").index
    return table.loc[order]


def diversity(grid: Grid) -> pd.DataFrame:
    """Diversity of each category, with DIVERSITY_COLUMNS; rarefied NaN below RAREFIED words."""
    found = counts(grid)
    rows = []
    for category in grid.categories:
        n_words = found[category].to_numpy()
        n = int(n_words.sum())
        different = int((n_words > 0).sum())
        rows.append(
            {
                "category": category,
                "n": n,
                "different": different,
                "share": 100 * different / n if n else np.nan,
                "rarefied": rarefied(n_words, RAREFIED),
                "matched": _matched(grid, category),
            }
        )
    return pd.DataFrame(rows, columns=list(DIVERSITY_COLUMNS))


def rarefied(n_words: np.ndarray, draws: int) -> float:
    """Expected different words in so many draws without replacement (Hurlbert 1971).

    Sum over words of 1 - C(N - n_w, draws) / C(N, draws). NaN where there are fewer completions.
    """
    n_words = np.asarray(n_words, dtype=float)
    total = n_words.sum()
    if total < draws or total == 0:
        return np.nan
    rest = total - n_words[n_words > 0]
    missed = np.zeros(len(rest))
    possible = rest >= draws
    missed[possible] = np.exp(
        _log_choose(rest[possible], draws) - _log_choose(np.asarray([total]), draws)[0]
    )
    return float((1 - missed).sum())


def _log_choose(n: np.ndarray, k: int) -> np.ndarray:
    found: np.ndarray = gammaln(n + 1) - gammaln(n - k + 1) - gammaln(k + 1)
    return found


def _matched(grid: Grid, category: str) -> float:
    """Sum over words of 1 - product over blocks of the share of other words."""
    own = grid.words[grid.words["category"] == category]
    if own.empty:
        return np.nan
    block = grid.prompts["block"].to_numpy()[own["prompt"]]
    table = pd.crosstab(own["word"], block).to_numpy(float)
    share = table / table.sum(axis=0)
    return float((1 - np.prod(1 - share, axis=1)).sum())


def divergence(grid: Grid, draws: int, rng: np.random.Generator) -> pd.DataFrame:
    """Divergence of the categories' words, with DIVERGENCE_COLUMNS.

    It is never 0 between samples, and the more so the fewer they are, so that it is read against
    what permuted labels give. (appendix B.3; Lin 1991)
    """
    code, names = pd.factorize(grid.words["word"])
    block = pd.factorize(grid.prompts["block"])[0]
    in_blocks = np.argsort(block, kind="stable")
    category = pd.Categorical(grid.prompts["category"], list(CATEGORIES)).codes
    prompt = grid.words["prompt"].to_numpy()

    def values(labels: np.ndarray) -> dict[tuple[str, str], float]:
        """Each pair's divergence, by the prompts' labels."""
        joint = np.bincount(
            labels[prompt] * len(names) + code, minlength=len(names) * len(CATEGORIES)
        ).reshape(len(CATEGORIES), -1)
        said = dict(zip(CATEGORIES, joint, strict=True))
        return {pair: jsd(said[pair[0]], said[pair[1]]) for pair in pairs}

    pairs = [pair for pair in GAPS if set(pair) <= set(grid.categories)]
    observed = values(category.astype(np.intp))
    by_chance = []
    for _ in range(draws):
        labels = np.empty(len(category), dtype=np.intp)
        labels[in_blocks] = category[permutation.shuffled(block, 1, rng)[0]]
        by_chance.append(values(labels))
    rows = []
    for pair in pairs:
        chance = np.asarray([each[pair] for each in by_chance])
        marked = set(pair) == set(permutation.MARKED)
        rows.append(
            {
                "pair": " and ".join(pair),
                "value": observed[pair],
                "expected": float(chance.mean()),
                "expected_high": float(np.quantile(chance, 0.95)),
                "p": (1 + int((~(chance < observed[pair] - 1e-12)).sum())) / (1 + draws),
                "p_markers": _over_markers(grid, code, len(names), observed[pair], draws, rng)
                if marked
                else np.nan,
            }
        )
    table = pd.DataFrame(rows, columns=list(DIVERGENCE_COLUMNS))
    # Where a category has no word there is nothing to test.
    table.loc[table["value"].isna(), ["expected", "expected_high", "p", "p_markers"]] = np.nan
    return table


def jsd(first: np.ndarray, second: np.ndarray) -> float:
    """Jensen–Shannon divergence in bits of two vectors of counts; NaN where one is empty."""
    if not first.sum() or not second.sum():
        return np.nan
    return float(jensenshannon(first, second, base=2) ** 2)


def _over_markers(
    grid: Grid, code: np.ndarray, words: int, value: float, draws: int, rng: np.random.Generator
) -> float:
    marked = grid.words["category"].isin(permutation.MARKED).to_numpy()
    marker, names = pd.factorize(grid.words["marker"].to_numpy()[marked])
    queer = np.zeros(len(names), dtype=bool)
    queer[marker[(grid.words["category"] == "queer").to_numpy()[marked]]] = True
    said = np.zeros((len(names), words))
    np.add.at(said, (marker, code[marked]), 1)
    exact, count, divided = permutation.divisions(queer, draws, rng)
    if exact and count > draws:
        exact, count = False, draws
        divided = divided[rng.integers(len(divided), size=draws)]
    found = np.asarray([jsd(row @ said, (1 - row) @ said) for row in divided])
    hits = int((~(found < value - 1e-12)).sum())
    return hits / count if exact else (1 + hits) / (1 + count)


def frequent(grid: Grid, top: int = 10) -> pd.DataFrame:
    """Each category's most frequent words: category, place, word, n, percent of completions."""
    found = counts(grid)
    rows = []
    for category in grid.categories:
        total = max(int(found[category].sum()), 1)
        best = found[category].sort_values(ascending=False, kind="stable").head(top)
        for place, (word, n) in enumerate(best.items(), start=1):
            if n:
                rows.append((category, place, word, int(n), 100 * n / total))
    return pd.DataFrame(rows, columns=["category", "place", "word", "n", "percent"])


def tf_idf(found: pd.DataFrame) -> pd.DataFrame:
    """TF–IDF of each word, one document a category, (words, categories).

    tf is the count, idf = ln((1 + D) / (1 + df)) + 1 with D categories of which df say the word,
    and each category's vector is scaled to length 1: smooth and normalised, as scikit-learn does
    by default. `found`: counts, (words, categories).
    """
    said = found.to_numpy(float)
    idf = np.log((1 + said.shape[1]) / (1 + (said > 0).sum(axis=1))) + 1
    weighted = said * idf[:, None]
    length = np.sqrt((weighted**2).sum(axis=0))
    return pd.DataFrame(
        weighted / np.where(length > 0, length, 1.0), index=found.index, columns=found.columns
    )


def telling(grid: Grid, top: int = 10) -> pd.DataFrame:
    """Each category's words of highest TF–IDF: category, place, word, tf_idf, n."""
    found = counts(grid)
    weights = tf_idf(found)
    rows = []
    for category in grid.categories:
        best = weights[category].sort_values(ascending=False, kind="stable").head(top)
        times = found[category].to_dict()
        for place, (word, weight) in enumerate(best.items(), start=1):
            if weight:
                rows.append((category, place, word, float(weight), int(times[word])))
    return pd.DataFrame(rows, columns=["category", "place", "word", "tf_idf", "n"])
