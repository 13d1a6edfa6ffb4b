"""What was found in the setting of one base: whose findings they are, after how many epochs, and from where."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from fastmoco.alike import plain
from fastmoco.optim import Schedule, shorten
from fastmoco.recipe import Recipe
from fastmoco.recipes import find
from fastmoco.transfer import carry
from fastmoco.trials.findings import CACHED, KNN, LINEAR, PLAIN, Finding
from fastmoco.trials.tally import Score, score

# What a base decides whatever the row, and the schedule: findings that differ in it are of another setting.
SETTING = ("encoder", "projector", "predictor", "optim", "clip", "batch", "evaluation")
# Likewise where the row has the same kind.
OWN = ("target", "contrast")
# Circumstances that decide how fast a training is; older findings may lack some, and are alike in that.
MEANS = ("hardware", "cores", "precision", "compiled", "recorded", "loader")


@dataclass(frozen=True)
class Evidence:
    """Findings of one setting, and the name of the file that each is from."""

    base: str
    setting: Recipe
    findings: tuple[Finding, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Which images, in whose setting."""
        return f"{self.findings[0].data}, as in {self.base}" if self.findings else self.base

    def of(self, recipe: Recipe, epochs: int | None) -> list[Finding]:
        """The findings of a recipe after so many epochs, by seed; of one warm-up, that of today if any has it."""
        same = [each for each in self.findings if each.recipe.epochs == epochs and _same(each.recipe, recipe)]
        same = [each for each in same if each.recipe.schedule == _usual(each.recipe, self.setting)] or same
        last = {each.seed: each for each in same}
        return [last[seed] for seed in sorted(last)]

    def row(self, name: str, epochs: int | None) -> list[Finding]:
        """The findings of a row of the paper in this setting."""
        return self.of(carry(find(name).recipe, self.setting), epochs)

    def epochs(self, recipes: Iterable[Recipe]) -> dict[int, int]:
        """After how many epochs recipes were judged, and how many of them."""
        after = [{each.recipe.epochs for each in self.findings if _same(each.recipe, recipe)} for recipe in recipes]
        return {number: sum(number in each for each in after) for number in sorted(set().union(*after))}

    def usual(self, recipes: Sequence[Recipe]) -> int | None:
        """The epochs after which most of these recipes were judged: by recipes, by findings, else the fewest."""
        counts = self.epochs(recipes)
        return max(
            counts,
            key=lambda number: (counts[number], sum(len(self.of(each, number)) for each in recipes), -number),
            default=None,
        )

    def origin(self, used: Sequence[Finding]) -> str:
        """Where numbers come from: the records, the card, versions, commits and seeds."""
        pairs = zip(self.files, self.findings, strict=True)
        known = [(file, each) for file, each in pairs if any(each is other for other in used)]  # in the files' order
        files, about = [file for file, _ in known], [each.circumstances for _, each in known]
        seeds = sorted({each.seed for each in used})
        shared = max((each.jobs for each in used), default=1)
        parts = [
            _list(str(each.get("hardware", "a device that was not told")) for each in about),
            f"torch {_list(str(each.get('torch', '?')) for each in about)}",
            f"commit {_list(str(each.get('commit') or '?') for each in about)}",
            f"seed{'s' * (len(seeds) > 1)} {_list(map(str, seeds))}",
        ]
        said = f"{_list(f'`{file}`' for file in files)}: {', '.join(parts)}."
        if shared > 1:
            said += f" Up to {shared} trainings shared the device."
        return said


def gather(records: Mapping[str, Sequence[Finding]], base: str, setting: Recipe | None = None) -> Evidence:
    """The findings in the setting of a base, or of one that flags changed, from files by name.

    Of a training that is told twice, the last counts.
    """
    setting = setting or find(base).recipe
    inside = [(file, each) for file, findings in records.items() for each in findings if _inside(each.recipe, setting)]
    sets: list[Finding] = []
    for _, each in sorted(inside, key=lambda pair: not pair[1].pixels):  # those without would join any set
        if not any(each.on(other.images, other.names, other.pixels) for other in sets):
            sets.append(each)
    if len(sets) > 1:
        told = " and ".join(f"{each.data} of {each.images:,} images" for each in sets)
        named = len({each.data for each in sets}) == len(sets)
        way = "choose one by --data" if named else "give the records of one set only"
        raise ValueError(f"trained in the setting of {base}: {told}; {way}")
    last: dict[tuple[Recipe, int], tuple[str, Finding]] = {}
    for file, each in inside:
        last.pop((plain(each.recipe), each.seed), None)  # it stands where it was told last
        last[plain(each.recipe), each.seed] = file, each
    return Evidence(
        base,
        setting,
        tuple(each for _, each in last.values()),
        tuple(file for file, _ in last.values()),
    )


def _inside(recipe: Recipe, setting: Recipe) -> bool:
    """Whether a recipe is in a setting, perhaps for fewer epochs; how it crops may be the row's own."""
    both = {name: (getattr(recipe, name), getattr(setting, name)) for name in (*SETTING, *OWN)}
    return _scheduled(recipe, setting) and all(
        one == other or (name in OWN and type(one) is not type(other)) for name, (one, other) in both.items()
    )


def _scheduled(recipe: Recipe, setting: Recipe) -> bool:
    """By the schedule of a setting, which a training that is shorter has shortened unless it was told not to."""
    return recipe.schedule in (setting.schedule, _usual(recipe, setting))


def _usual(recipe: Recipe, setting: Recipe) -> Schedule:
    """What a training as long as that of a recipe has in a setting, unless it is told another."""
    return shorten(setting.schedule, recipe.epochs, setting.epochs)


def minutes(run: Finding, others: Iterable[Finding]) -> float | None:
    """How long the images of a training take, once it is compiled, on a device that it has to itself.

    The rate is its own, or if it shared the device that of others of its method that did not, by the same means.
    """
    alike = [run] if run.jobs == 1 else [each for each in others if _means(each) == _means(run)]
    rate = score(each.images_per_second for each in alike if each.jobs == 1)
    return None if rate is None else run.seen / rate.mean / 60


def comparable(findings: Iterable[Finding]) -> bool:
    """Whether times can be compared: all trainings that had the device to themselves were by the same means."""
    # Those that shared it had a part of the cores, so that their threads say nothing.
    means = [[*_means(each), each.circumstances.get("threads")] for each in findings if each.jobs == 1]
    return all(each == means[0] for each in means)


def _means(finding: Finding) -> list[object]:
    return [finding.circumstances.get(name) for name in MEANS]


def linear(findings: Sequence[Finding]) -> str | None:
    """The linear evaluation that all have: the full protocol, else the cached one where any has it."""
    if findings and all(each.score(LINEAR) is not None for each in findings):
        return LINEAR
    return CACHED if any(each.score(CACHED) is not None for each in findings) else None


def measures(findings: Sequence[Finding]) -> list[str]:
    """The numbers to compare by, the first of which decides an order."""
    knn = KNN if any(each.score(KNN) is not None for each in findings) else None
    return [name for name in (linear(findings), knn) if name]


def average(findings: Iterable[Finding], name: str, encoder: str = PLAIN) -> Score | None:
    """A number over seeds."""
    return score(each.score(name, encoder) for each in findings)


def cell(found: Score | None, seeds: int, digits: int = 1, sign: bool = False) -> str:
    """A number in a table, whose row tells how many seeds it has."""
    return "" if found is None else found.text(digits, sign, seeds)


def _same(one: Recipe, other: Recipe) -> bool:
    """What computes the same but for its epochs, and the warm-up that goes with them."""
    names = [each.name for each in fields(Recipe) if each.name not in ("epochs", "schedule")]
    if any(getattr(plain(one), name) != getattr(plain(other), name) for name in names):
        return False
    return replace(one.schedule, warmup=0.0) == replace(other.schedule, warmup=0.0)


def _list(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
