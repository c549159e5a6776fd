"""The real lm-evaluation-harness, unmodified, on every family: item by item what `dare_eval.evaluate` gives."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, lively

pytestmark = pytest.mark.harness
pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from dare_eval import Protocol, evaluate  # noqa: E402
from dare_eval.bridges.lm_eval import DareLM  # noqa: E402
from dare_eval.tasks import miniature  # noqa: E402
from dare_models import load  # noqa: E402

PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"
SAMPLER = {"kind": "core", "gen_length": 6, "block_length": 4}
WRITTEN = """
task: mini_gsm8k
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}\\nPlease reason step by step, and put your final answer within \\\\boxed{}."
doc_to_target: "{{answer}}"
generation_kwargs: {until: [], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
"""
CHOSEN = """
task: mini_hellaswag
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{activity_label}}: {{ctx}}"
doc_to_choice: "{{endings}}"
doc_to_target: label
metric_list: [{metric: acc}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> TaskManager:
    folder = tmp_path_factory.mktemp("tasks")
    rows = [json.loads(line) for line in (miniature("hellaswag") / "test.jsonl").read_text().splitlines()]
    for row in rows:  # the harness has no reader of our own: without section marks both read the same
        row["endings"] = [" ".join(one.replace("[substeps]", "").split()) for one in row["endings"]]
        row["label"] = int(row["label"])
    (folder / "hellaswag.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text, data in (
        ("gsm8k", WRITTEN, miniature("gsm8k") / "test.jsonl"),
        ("hellaswag", CHOSEN, folder / "hellaswag.jsonl"),
    ):
        (folder / f"{name}.yaml").write_text(text.replace("DATA", str(data)))
    return TaskManager(include_path=str(folder), include_defaults=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_in_the_harness(family: str, tmp_path: Path, tasks: TaskManager) -> None:
    lively(family, PRINTABLE).save(tmp_path / "model")
    arguments: dict[str, Any] = {
        "path": str(tmp_path / "model"),
        "dtype": "float64",
        "likelihood": "draws:8;replicates:4",
    }
    found = simple_evaluate(
        model="dare",
        model_args=arguments | {"sampler": "kind:core;block_length:4"},
        tasks=["mini_gsm8k", "mini_hellaswag"],
        task_manager=tasks,
        bootstrap_iters=0,
        log_samples=True,
        verbosity=None,
    )
    assert found is not None
    lm = load(tmp_path / "model", dtype="float64")
    record = evaluate(lm, Protocol(task="gsm8k", data=miniature("gsm8k"), sampler=SAMPLER))  # type: ignore[arg-type]
    samples = sorted(found["samples"]["mini_gsm8k"], key=lambda sample: sample["doc_id"])
    assert [sample["resps"][0][0] for sample in samples] == [row.completion for row in record.rows]
    made = Protocol(
        task="hellaswag", data=miniature("hellaswag"), mode="likelihood", likelihood={"draws": 8, "replicates": 4},
        sampler=SAMPLER,
    )  # type: ignore[arg-type]  # fmt: skip
    record = evaluate(lm, made)
    samples = sorted(found["samples"]["mini_hellaswag"], key=lambda sample: sample["doc_id"])
    for sample, row in zip(samples, record.rows, strict=True):
        values = [float(response[0][0]) for response in sample["resps"]]
        assert values == pytest.approx([option.value for option in row.options], abs=1e-9)
    assert found["results"]["mini_hellaswag"]["acc,none"] == record.score


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> DareLM:
    path = tmp_path_factory.mktemp("models") / "llada"
    lively("llada", PRINTABLE).save(path)
    return DareLM(path=str(path), dtype="float64", likelihood="draws:8;replicates:4", sampler={"temperature": 1.0})


def _request(kind: Any, *arguments: Any) -> Instance:
    return Instance(kind, {}, arguments, 0)


def test_repeats_have_noise_of_their_own_and_stops_cut(lm: DareLM) -> None:
    one = _request("generate_until", "1+1=", {"until": [], "max_gen_toks": 8})
    first, second = lm.generate_until([one, one])
    assert first != second
    assert lm.generate_until([one]) == [first]
    stop = first[4]
    cut = _request("generate_until", "1+1=", {"until": [stop], "max_gen_toks": 8})
    assert lm.generate_until([cut]) == [first.partition(stop)[0]]


def test_rolling_covers_every_token_once(lm: DareLM) -> None:
    short, long = (_request("loglikelihood_rolling", text) for text in ("abc", "abcdefgh " * 150))
    values = lm.loglikelihood_rolling([short, long, _request("loglikelihood_rolling", "")])
    assert values[0] == pytest.approx(lm.loglikelihood([_request("loglikelihood", "", "abc")])[0][0])
    assert values[1] < values[0] < 0
    assert values[2] == 0


def test_greedy_is_told(lm: DareLM) -> None:
    cold = DareLM(path=lm.session.model.source, dtype="float64")
    (text,) = cold.generate_until([_request("generate_until", "Say:", {"until": [], "max_gen_toks": 4})])
    pairs = [_request("loglikelihood", "Say:", one) for one in (text, text[:-1] + "~")]
    assert [flag for _, flag in cold.loglikelihood(pairs)] == [len(text) == 4, False]


def test_chats_are_rendered_as_ours(lm: DareLM) -> None:
    history = [{"role": "user", "content": "1+1?"}]
    assert lm.session.model.encode(lm.apply_chat_template(history)) == lm.session.model.encode("1+1?", chat=True)
    assert lm.chat_template()


def test_the_command(lm: DareLM, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "gsm8k.yaml").write_text(WRITTEN.replace("DATA", str(miniature("gsm8k") / "test.jsonl")))
    arguments = ["--model", "dare", "--model_args", f"path={lm.session.model.source}", "--tasks", "mini_gsm8k"]
    arguments += ["--include_path", str(tmp_path / "t"), "--output_path", str(tmp_path / "out"), "--log_samples"]
    done = subprocess.run(
        [sys.executable, "-m", "dare_eval.cli", "lm-eval", *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (samples,) = (tmp_path / "out").rglob("samples_mini_gsm8k*.jsonl")
    assert len(samples.read_text().splitlines()) == 4
