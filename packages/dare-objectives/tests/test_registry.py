"""Objectives of other distributions, which are faked as folders on sys.path."""

import inspect
import sys
from pathlib import Path

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import ToyWorld, objective_conformance, template, toy_batch


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Put a distribution of some modules and entry points on sys.path; nothing is installed."""

    def add(name: str, entries: dict[str, str], modules: dict[str, str], version: str = "1.2") -> None:
        folder = tmp_path / name
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"{entry} = {value}" for entry, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[dare_objectives]", *lines]) + "\n")
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(str(folder))

    before = set(sys.modules)
    yield add
    for module in set(sys.modules) - before:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[module]


ACME = "import dare_objectives as do\n\ndef ours(*, streams: int = 1):\n    return do.masked_sft(streams=streams)\n"


@pytest.mark.wheel
def test_a_distribution_announces_an_objective(distribution):
    own = do.names()
    distribution("acme-objectives", {"ours": "acme_rl:ours"}, {"acme_rl": ACME})
    assert do.names() == (*own, "ours")
    assert "acme_rl" not in sys.modules
    assert do.get("ours", {"streams": 3}).plan(toy_batch()).streams == 3
    with pytest.raises(ValueError, match="unknown option of ours 'stream'; did you mean 'streams'"):
        do.get("ours", {"stream": 3})
    with pytest.raises(ValueError, match="unknown objective 'our'; did you mean 'ours'"):
        do.get("our")


def test_one_distribution_found_twice_is_one(distribution, monkeypatch):
    distribution("acme-objectives", {"ours": "acme_rl:ours"}, {"acme_rl": ACME})
    monkeypatch.syspath_prepend(sys.path[0])
    assert do.names().count("ours") == 1
    assert do.get("ours").name == "masked_sft"


def test_two_distributions_with_one_name_are_an_error_naming_both(distribution):
    distribution("acme-objectives", {"ours": "acme_rl:ours"}, {"acme_rl": ACME})
    distribution("umbrella", {"ours": "umbrella_rl:ours", "theirs": "umbrella_rl:ours"}, {"umbrella_rl": ACME})
    for ask in (do.names, lambda: do.get("ours")):
        with pytest.raises(ValueError, match=r"got (acme-objectives 1\.2 and umb|umbrella 1\.2 and acme)"):
            ask()
    assert do.get("theirs").name == do.get("acme_rl:ours").name == do.get("masked_sft").name


def test_a_name_of_this_package_is_taken(distribution):
    distribution("acme-objectives", {"vrpo": "acme_rl:ours"}, {"acme_rl": ACME})
    for ask in (do.names, lambda: do.get("vrpo")):
        with pytest.raises(ValueError, match=r"got dare-objectives and acme-objectives 1\.2; uninstall one"):
            ask()
    assert do.get("masked_sft").name == "masked_sft"


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("missing_rl:ours", ImportError, "'bad' of acme 1.2: .*ModuleNotFoundError: No module named 'missing_rl'"),
        ("acme_rl:other", ImportError, "expected a factory at 'acme_rl:other', got AttributeError"),
        ("broken_rl:ours", ImportError, "got ZeroDivisionError: division by zero; correct or uninstall"),
        ("acme_rl:number", TypeError, "expected a factory at 'acme_rl:number', got a int"),
        ("acme_rl:nothing", TypeError, "bad: expected a factory that returns an Objective, got NoneType"),
    ],
)
def test_a_broken_entry_is_an_error_only_when_used(distribution, value, error, message):
    more = "\nnumber = 3\n\ndef nothing():\n    return None\n"
    modules = {"acme_rl": ACME + more, "broken_rl": "1 / 0\n"}
    distribution("acme", {"bad": value, "good": "acme_rl:ours"}, modules)
    assert {"bad", "good"} <= set(do.names())
    assert do.get("good").name == do.get("masked_sft").name
    with pytest.raises(error, match=message):
        do.get("bad")


@pytest.mark.wheel
def test_the_template_is_a_new_objective_in_one_file_and_one_line(distribution):
    """Copied as it is, announced by one line: it conforms, and two steps raise the rewarded answers."""
    text = Path(inspect.getsourcefile(template)).read_text()
    distribution("newcomer", {"newcomer": "newcomer_rl:reinforce"}, {"newcomer_rl": text})
    objective = do.get("newcomer", {"prompt_mask": 0.1})
    assert objective.loss.__module__ == "newcomer_rl"
    objective_conformance(objective)
    objective_conformance(do.get("newcomer"))
    world, batch = ToyWorld.random(7, 5), toy_batch()
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    optimiser = torch.optim.SGD(world.parameters, lr=1.0)
    rewarded = []
    for _ in range(2):
        plan = objective.plan(batch)
        coefficients = objective.prepare(batch, plan, rewards)
        optimiser.zero_grad()
        for rows in torch.arange(6).split(4):
            scored = do.evaluate(world.score, plan[rows])
            loss, metrics = objective.loss(scored, plan[rows], coefficients[rows])
            loss.backward()
        optimiser.step()
        rewarded.append(float(objective.estimator(do.evaluate(world.score, plan).logp, plan)[[0, 3]].detach().sum()))
        assert metrics["score"].value < 0
    before = objective.estimator(do.evaluate(ToyWorld.random(7, 5).score, plan).logp, plan)[[0, 3]].detach().sum()
    assert float(before) < rewarded[0] < rewarded[1]
    with pytest.raises(ValueError, match="`rewards`: expected one number per row, got None"):
        objective.prepare(batch, plan)
