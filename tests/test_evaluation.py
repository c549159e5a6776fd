"""Evaluation through every family, entry and executor: the same items, the same answers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, lively

import dare_models
from dare_eval import LikelihoodSettings, Protocol, Record, Row, evaluate, evaluate_on_ray
from dare_eval.engine import Answer, Request, complete, weigh
from dare_eval.tasks import miniature

ROOT = Path(__file__).parents[1]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "likelihood.json").read_text(encoding="utf-8"))
PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"
CHOICE = {"draws": 8, "replicates": 4}


def _answers(record: Record) -> dict[str, Any]:
    """All that must not depend on how it was computed."""
    return record.model_dump(exclude={"seconds", "forwards", "batch_size", "model"})


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["case"])
def test_likelihoods_of_the_reference(case: dict[str, Any]) -> None:
    """LLaDA's estimator on its checkpoint, guidance included: the expectation exactly, its draws within their error."""
    checkpoint = ROOT / "packages" / "dare-models" / "tests" / "golden" / "llada"
    lm = dare_models.load(checkpoint, dtype="float64", mask_token_id=case["mask_token_id"])
    settings = LikelihoodSettings(guidance=case["settings"]["cfg_scale"])
    answer = Answer(case["prompt"], case["answer"])
    (found,) = weigh(lm, [answer], settings, seed=0)
    assert found.exact
    assert found.value == pytest.approx(case["exact_uniform_count"], abs=case["tolerance"])
    assert abs(found.value - case["reference_mean"]) < 4 * case["reference_standard_error"]
    (found,) = weigh(lm, [answer, answer][:1], settings.model_copy(update={"draws": 4, "replicates": 4}), seed=0)
    assert found.exact is (len(case["answer"]) < 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_scored_in_both_modes(name: str) -> None:
    lm = lively(name, PRINTABLE)
    written = Protocol.preset("dare-core", "gsm8k", data=miniature("gsm8k"), n=3, chat=False, **_short(6))
    record = evaluate(lm, written)
    assert (record.n, record.tokens_per_forward) == (3, 1.0)
    assert all(row.picture for row in record.rows)
    assert _answers(evaluate(lm, written, batch_size=1)) == _answers(record)
    weighed = Protocol.preset(
        "dare-core", "arc_challenge", data=miniature("arc_challenge"), chat=False, mode="likelihood", likelihood=CHOICE
    )
    record = evaluate(lm, weighed)
    alone = evaluate(lm, weighed, batch_size=1)
    for row, other in zip(record.rows, alone.rows, strict=True):
        assert row.pred == other.pred
        assert [o.value for o in row.options] == pytest.approx([o.value for o in other.options], abs=1e-8)
    family = Protocol(task="gsm8k", data=miniature("gsm8k"), n=2, sampler={"kind": "family", "gen_length": 8})  # type: ignore[arg-type]
    assert evaluate(lm, family).decoding != ""


def _short(length: int) -> dict[str, Any]:
    return {"sampler": {"kind": "core", "gen_length": length, "block_length": 4}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    lively("llada", PRINTABLE).save(path)
    return path


def test_prompts_get_the_same_answer_wherever_they_are_put(checkpoint: Path) -> None:
    """Noise is a hash of (seed, prompt, sample): neither order nor neighbours nor the task matter."""
    lm = dare_models.load(checkpoint, dtype="float64")
    made = Protocol.preset(
        "dare-core",
        "gsm8k",
        data=miniature("gsm8k"),
        chat=False,
        samples=3,
        sampler=_short(6)["sampler"] | {"temperature": 1.0},
    )
    record = evaluate(lm, made, batch_size=5)
    assert len({row.completion for row in record.rows}) > 4
    item = made.items()[2]
    requests = [Request(lm.encode(item.prompt), sample) for sample in (2, 0)]
    written, _ = complete(lm, requests, made.sampler.config(lm.spec), seed=made.seed)
    assert [one.text for one in written] == [record.by_problem()[item.uid][sample].completion for sample in (2, 0)]
    assert record.n == 4
    assert len(record.rows) == 12
    assert 0 <= record.pass_at(1) == record.score <= record.pass_at(3)


def test_demonstrations_are_lost_before_the_question(checkpoint: Path) -> None:
    """User case P10 in an evaluation: what is left is the prompt with fewer demonstrations, and the record says so."""
    lm = dare_models.load(checkpoint, dtype="float64")
    room = lm.spec.max_positions
    common: dict[str, Any] = {"data": miniature("gsm8k"), "chat": False, "template": "x" * (room // 4) + "{prompt}"}
    wanted = evaluate(lm, Protocol.preset("dare-core", "gsm8k", shots=3, **common, **_short(6)))
    fewer = evaluate(lm, Protocol.preset("dare-core", "gsm8k", shots=1, **common, **_short(6)))
    assert {row.dropped for row in wanted.rows} == {2}
    assert {row.dropped for row in fewer.rows} == {0}
    assert wanted.prompts == fewer.prompts
    assert [row.completion for row in wanted.rows] == [row.completion for row in fewer.rows]
    with pytest.raises(ValueError, match="expected a question of at most"):
        evaluate(
            lm, Protocol.preset("dare-core", "gsm8k", **common | {"template": "x" * room + "{prompt}"}, **_short(6))
        )


def test_stop_texts_cut(checkpoint: Path) -> None:
    lm = dare_models.load(checkpoint, dtype="float64")
    whole = Protocol.preset("dare-core", "gsm8k", data=miniature("gsm8k"), chat=False, **_short(8))
    texts = [row.completion for row in evaluate(lm, whole).rows]
    stop = texts[0][2]
    cut = Protocol.preset("dare-core", "gsm8k", data=miniature("gsm8k"), chat=False, stop=(stop,), **_short(8))
    assert [row.completion for row in evaluate(lm, cut).rows] == [text.partition(stop)[0] for text in texts]


def test_adapters_by_path(checkpoint: Path, tmp_path: Path) -> None:
    lora = pytest.importorskip("dare_models.lora")
    lm = dare_models.load(checkpoint, dtype="float64")
    base = _protocol()
    before = evaluate(lm, base)
    lora.attach(lm, rank=2)
    with torch.no_grad():
        for name, parameter in lm.module.named_parameters():
            if "lora_B" in name:
                parameter.add_(torch.linspace(-1, 1, parameter.numel(), dtype=parameter.dtype).view_as(parameter))
    lora.save(lm, tmp_path / "adapter")
    by_path = evaluate(dare_models.load(tmp_path / "adapter", dtype="float64"), base)
    assert by_path.rows == evaluate(lm, base).rows
    assert by_path.rows != before.rows
    assert by_path.checkpoint != before.checkpoint


def _protocol() -> Protocol:
    return Protocol.preset("dare-core", "gsm8k", data=miniature("gsm8k"), chat=False, **_short(6))


DYING = """
import os
from dataclasses import dataclass
from pathlib import Path
from dare_eval.tasks.sort import Sort
@dataclass(frozen=True)
class Dying(Sort):
    def verify(self, item, completion):
        flag = Path(os.environ["DYING"])
        if not flag.exists():
            flag.touch()
            os._exit(1)
        return super().verify(item, completion)
"""


def test_ray_gives_the_rows_of_one_process(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the cache was torn, and where a worker dies on the way."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "dying.py").write_text(DYING)
    variables = {"PYTHONPATH": str(tmp_path), "DYING": str(tmp_path / "flag"), "OMP_NUM_THREADS": "1"}
    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(num_cpus=2, runtime_env={"env_vars": variables}, **quiet)
    options: dict[str, Any] = {"workers": 2, "batch_size": 2, "timeout": 120, "cache": tmp_path / "cache"}
    lm, seen = dare_models.load(checkpoint), list[int]()
    try:
        made = _protocol().model_copy(update={"samples": 2})
        here = evaluate(lm, made, batch_size=2)
        there = evaluate_on_ray(checkpoint, made, on_progress=lambda progress: seen.append(progress.done), **options)
        assert _answers(there) == _answers(here)
        assert sorted(seen) == [2, 4, 6, 8]
        (file,) = (tmp_path / "cache").glob("*.jsonl")
        lines = file.read_text().splitlines()
        file.write_text("\n".join(lines[:2]) + '\n{"row": {"uid')
        monkeypatch.setenv("DYING", str(tmp_path / "no"))
        assert _answers(evaluate_on_ray(checkpoint, made, **options)) == _answers(here)
        (tmp_path / "no").touch()
        dying = Protocol(task="dying:Dying", n=4, sampler=made.sampler)
        again = evaluate_on_ray(checkpoint, dying, **options | {"workers": 1})
        assert (tmp_path / "flag").exists()
        assert _answers(again) == _answers(evaluate(lm, dying, batch_size=2))
        with pytest.raises(ValueError, match="expected a question of at most"):
            evaluate_on_ray(checkpoint, made.model_copy(update={"template": "a" * 5_000 + "{prompt}"}), **options)
        with pytest.raises(TimeoutError, match="no worker was ready within 3 s"):
            evaluate_on_ray(checkpoint, made, **options | {"cpus": 64, "timeout": 3})
    finally:
        ray.shutdown()
    with pytest.raises(ValueError, match="`batch_size`: expected at least 1, got 0"):
        evaluate_on_ray(checkpoint, made, **options | {"batch_size": 0})


SCRIPT = """
import sys, time
import dare_eval.runner.worker as worker
run = worker.Worker.run
def slow(self, units, batch_size):
    print("batch", *[f"{unit.item}.{unit.sample}" for unit in units], flush=True)
    time.sleep(0.3)
    return run(self, units, batch_size)
worker.Worker.run = slow
from dare_eval.cli import app
app(sys.argv[1:])
"""


def test_killed_half_way_it_goes_on(checkpoint: Path, tmp_path: Path) -> None:
    """No finished item is computed again, and the record is that of an undisturbed run."""
    arguments = ["run", "gsm8k", "--model", checkpoint, "--data", miniature("gsm8k"), "--no-chat", "--gen-length", 6]
    arguments += [
        "--samples",
        3,
        "--sampler",
        "core",
        "--temperature",
        1,
        "--batch-size",
        2,
        "--cache",
        tmp_path / "cache",
    ]
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments), "--out", str(tmp_path / "killed.json")]
    single = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=single) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    (file,) = (tmp_path / "cache").glob("*.jsonl")
    finished = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(first) == 3
    assert len(finished) == 4
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    again = [line for line in done.stdout.splitlines() if line.startswith("batch")]
    assert len(again) == 4
    assert not set(" ".join(again).split()[1:]) & set(" ".join(first[:2]).split()[1:]) - {"batch"}
    lm = dare_models.load(checkpoint)
    resumed = Record.load(tmp_path / "killed.json")
    undisturbed = evaluate(lm, resumed.protocol.model_copy(update={"data": miniature("gsm8k")}), batch_size=2)
    assert _answers(resumed) == _answers(undisturbed)
    assert resumed.forwards == undisturbed.forwards


def test_a_cache_is_of_one_protocol_and_model(checkpoint: Path, tmp_path: Path) -> None:
    lm, made = dare_models.load(checkpoint), _protocol()
    evaluate(lm, made, cache=tmp_path)
    evaluate(lm, made.model_copy(update={"seed": 1}), cache=tmp_path)
    with torch.no_grad():
        next(lm.module.parameters()).mul_(1.5)
    evaluate(lm, made, cache=tmp_path)
    assert len(list(tmp_path.glob("*.jsonl"))) == 3


def test_another_engine_completes(checkpoint: Path) -> None:
    """Whatever has the interface: here dare-samplers with the rows in reverse."""
    lm = dare_models.load(checkpoint)
    calls: list[int] = []

    def backwards(requests: Any, config: Any, *, seed: int, stop: Any) -> Any:
        calls.append(len(requests))
        written, forwards = complete(lm, list(reversed(requests)), config, seed=seed, stop=stop)
        return list(reversed(written)), forwards

    assert _answers(evaluate(lm, _protocol(), backend=backwards)) == _answers(evaluate(lm, _protocol()))
    assert calls == [4]


@pytest.mark.parametrize("eos", ["off", "never", "last"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_end_token_policies(eos: str, temperature: float) -> None:
    """User case P3 through evaluation: a model that is sure of the end everywhere and less sure of everything else."""
    lm = lively("llada", PRINTABLE)
    head = lm.module.get_output_embeddings()

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*inputs.shape[:-1], lm.vocab_size, dtype=inputs.dtype)
        logits[..., list(lm.eos_ids)] = 9.0
        logits[..., 40] = 5.0
        return logits

    head.forward = forward
    settings = {"eos": eos, "temperature": temperature, "block_length": 8}
    sampler = {"kind": "preset", "name": "llada", "gen_length": 8, "settings": settings}
    record = evaluate(lm, Protocol(task="gsm8k", data=miniature("gsm8k"), sampler=sampler))  # type: ignore[arg-type]
    sizes = {row.tokens for row in record.rows}
    if eos == "never":
        assert sizes == {8}
        assert record.truncated == 4
    else:
        assert max(sizes) < 8
        assert record.truncated == 0
    if eos == "off" and temperature == 0:
        assert sizes == {0}
        assert record.unparsable == 4
        assert all(isinstance(row, Row) and row.reason for row in record.rows)
