"""The real OpenCompass, unmodified, on every family: item by item what `dare_eval.evaluate` gives."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, lively

pytestmark = pytest.mark.harness
pytest.importorskip("opencompass")

from opencompass.datasets import (  # noqa: E402
    GSM8KDataset,
    Gsm8kEvaluator,
    gsm8k_dataset_postprocess,
    gsm8k_postprocess,
)
from opencompass.openicl.icl_inferencer import GenInferencer  # noqa: E402
from opencompass.openicl.icl_prompt_template import PromptTemplate  # noqa: E402
from opencompass.openicl.icl_retriever import ZeroRetriever  # noqa: E402
from opencompass.tasks import OpenICLEvalTask, OpenICLInferTask  # noqa: E402

from dare_eval import Protocol, evaluate  # noqa: E402
from dare_eval.bridges.configuration import dataset, model  # noqa: E402
from dare_eval.bridges.opencompass import DareModel  # noqa: E402
from dare_eval.engine import Answer, split_pair, weigh  # noqa: E402
from dare_eval.tasks import miniature  # noqa: E402
from dare_models import load  # noqa: E402

PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"
LIKELIHOOD = {"draws": 8, "replicates": 4, "normalisation": "text"}
SAMPLER = {"kind": "core", "gen_length": 6, "block_length": 4}


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / request.param.replace(" ", "_")
    lively(request.param, PRINTABLE).save(path)
    return path


def _run(models: list[Any], datasets: list[Any], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Predictions and results of one model, by dataset."""
    from mmengine.config import ConfigDict

    config = ConfigDict(
        models=models, datasets=[datasets], work_dir=str(folder), eval={"runner": {"task": {"dump_details": True}}}
    )
    OpenICLInferTask(config).run()
    OpenICLEvalTask(config).run()

    def read(kind: str, abbr: str) -> Any:
        return json.loads((folder / kind / models[0]["abbr"] / f"{abbr}.json").read_text())

    names = [one["abbr"] for one in datasets]
    return {name: read("predictions", name) for name in names}, {name: read("results", name) for name in names}


def test_a_family_in_opencompass(checkpoint: Path, tmp_path: Path) -> None:
    data, choices = str(miniature("gsm8k")), str(miniature("arc_challenge"))
    predictions, results = _run(
        [model(str(checkpoint), abbr="tiny", dtype="float64", sampler=SAMPLER, likelihood=LIKELIHOOD)],
        [
            dataset("gsm8k", data=data),
            dataset("gsm8k", data=data, abbr="shots", shots=1),
            dataset("arc_challenge", data=choices),
            dataset("arc_challenge", data=choices, mode="likelihood"),
        ],
        tmp_path,
    )
    lm = load(checkpoint, dtype="float64")
    for name, changes in {
        "gsm8k_generate": {"task": "gsm8k", "data": data},
        "shots": {"task": "gsm8k", "data": data, "shots": 1},
        "arc_challenge_generate": {"task": "arc_challenge", "data": choices},
    }.items():
        record = evaluate(lm, Protocol(sampler=SAMPLER, **changes))  # type: ignore[arg-type]
        found = predictions[name]
        assert [found[str(i)]["prediction"] for i in range(len(found))] == [row.completion for row in record.rows]
        assert results[name]["accuracy"] == pytest.approx(100 * record.score)
        assert results[name]["unparsable"] == pytest.approx(100 * record.unparsable / record.n)
    made = Protocol(task="arc_challenge", data=choices, mode="likelihood", likelihood=LIKELIHOOD, sampler=SAMPLER)  # type: ignore[arg-type]
    record = evaluate(lm, made)
    found = predictions["arc_challenge_likelihood"]
    for i, (row, item) in enumerate(zip(record.rows, made.items(), strict=True)):
        values = [found[str(i)][f"label: {label}"]["PPL"] for label in range(len(item.choices))]
        assert values == pytest.approx([-option.value for option in row.options], abs=1e-9)
        assert item.choices[found[str(i)]["prediction"]].strip() == row.pred
    assert results["arc_challenge_likelihood"]["accuracy"] == pytest.approx(100 * record.score)


@pytest.fixture(scope="module")
def llada(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llada"
    lively("llada", PRINTABLE).save(path)
    return path


def test_chat_templates_and_several_completions(llada: Path) -> None:
    """Turns are rendered as `evaluate` renders them; samples have noise of their own."""
    warm = SAMPLER | {"temperature": 1.0}
    lm = load(llada, dtype="float64")
    made = Protocol(task="gsm8k", data=miniature("gsm8k"), chat=True, samples=2, sampler=warm)  # type: ignore[arg-type]
    record = evaluate(lm, made)
    dm = DareModel(str(llada), chat=True, dtype="float64", sampler=warm, generation_kwargs={"num_return_sequences": 2})
    turns = [[{"role": "HUMAN", "prompt": item.prompt}] for item in made.items()]
    assert dm.generate(turns, max_out_len=99) == [row.completion for row in record.rows]
    assert dm.get_token_len(turns[0]) == len(lm.encode(made.items()[0].prompt, chat=True))
    system = [{"role": "SYSTEM", "prompt": "Count."}, {"role": "HUMAN", "prompt": "1"}, {"role": "BOT", "prompt": ""}]
    ids = lm.chat([[{"role": "system", "content": "Count."}, {"role": "user", "content": "1"}]])[0]
    assert dm.get_token_len(system) == len(ids)


def test_lengths_and_stops(llada: Path) -> None:
    dm = DareModel(str(llada), dtype="float64")
    (text,) = dm.generate(["1+1="], max_out_len=7)
    assert len(text) <= 7
    longest = max((text.index(one), one) for one in set(text))
    assert dm.generate(["1+1="], max_out_len=7, stopping_criteria=[longest[1]]) == [text[: longest[0]]]
    with pytest.raises(ValueError, match="set `gen_length` of the sampler"):
        dm.generate(["1"], max_out_len=100_000)


def test_likelihoods(llada: Path) -> None:
    dm = DareModel(str(llada), dtype="float64", likelihood={"draws": 8, "replicates": 4})
    lm, settings = dm.session.model, dm.session.likelihood
    whole, own = "Question: why?\nAnswer: rain", " rain"
    (expected,) = weigh(lm, [split_pair(lm, whole[: -len(own)], own)], settings, seed=0)
    assert dm.get_loglikelihood([whole], [own]).tolist() == [expected.value]
    ids = lm.encode(whole)
    (expected,) = weigh(lm, [Answer(ids[:8], ids[8:])], settings, seed=0)
    assert dm.get_ppl([whole], mask_length=[8]).tolist() == [-expected.value / expected.length]
    with pytest.raises(ValueError, match="expected an input that ends with 'snow'"):
        dm.get_loglikelihood([whole], ["snow"])


def test_datasets_of_opencompass(llada: Path, tmp_path: Path) -> None:
    """Its own GSM8K, reader, template, evaluator and all."""
    theirs = {
        "abbr": "theirs",
        "type": GSM8KDataset,
        "path": str(miniature("gsm8k")),
        "reader_cfg": {"input_columns": ["question"], "output_column": "answer"},
        "infer_cfg": {
            "prompt_template": {
                "type": PromptTemplate,
                "template": {"round": [{"role": "HUMAN", "prompt": "{question}"}]},
            },
            "retriever": {"type": ZeroRetriever},
            "inferencer": {"type": GenInferencer, "max_out_len": 6},
        },
        "eval_cfg": {
            "evaluator": {"type": Gsm8kEvaluator},
            "pred_postprocessor": {"type": gsm8k_postprocess},
            "dataset_postprocessor": {"type": gsm8k_dataset_postprocess},
        },
    }
    predictions, results = _run([model(str(llada), abbr="tiny", dtype="float64")], [theirs], tmp_path)
    lm = load(llada, dtype="float64")
    made = Protocol(
        task="gsm8k",
        options={"prompt": "plain"},
        data=miniature("gsm8k"),
        sampler={"kind": "core", "gen_length": 6},  # type: ignore[arg-type]
    )
    rows = [json.loads(line)["question"] for line in (miniature("gsm8k") / "test.jsonl").read_text().splitlines()]
    from dare_eval.engine import Request, complete

    written, _ = complete(lm, [Request(lm.encode(one)) for one in rows], made.sampler.config(lm.spec), seed=0)
    found = predictions["theirs"]
    assert [found[str(i)]["prediction"] for i in range(len(rows))] == [one.text for one in written]
    assert 0 <= results["theirs"]["accuracy"] <= 100


def test_the_command(llada: Path, tmp_path: Path) -> None:
    """`dare-eval opencompass` on a configuration, and on tasks by name: its own runner, one process per task."""
    written = tmp_path / "config.py"
    command = [sys.executable, "-m", "dare_eval.cli", "opencompass"]
    tasks = ["gsm8k", "--model", str(llada), "--data", str(miniature("gsm8k")), "--gen-length", "6"]
    for number, arguments in enumerate(([*tasks, "--save-config", str(written)], [str(written)])):
        folder = tmp_path / str(number)
        done = subprocess.run(
            [*command, *arguments, "--work-dir", str(folder)], capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        (found,) = folder.glob("*/predictions/llada/gsm8k_generate.json")
        lm = load(llada)
        sampler = {"kind": "core", "gen_length": 6}
        record = evaluate(lm, Protocol(task="gsm8k", data=miniature("gsm8k"), sampler=sampler))  # type: ignore[arg-type]
        predictions = json.loads(found.read_text())
        assert [one["prediction"] for one in predictions.values()] == [row.completion for row in record.rows]
