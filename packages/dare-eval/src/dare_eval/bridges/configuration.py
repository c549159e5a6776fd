"""Configurations of OpenCompass as plain data. OpenCompass itself is not needed to write one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from dare_eval.tasks import Split, get_task

__all__ = ["dataset", "model"]

_OURS: Final = "dare_eval.bridges.opencompass"
_THEIRS: Final = "opencompass.openicl"


class ModelFields(TypedDict, total=False):
    """Of `DareModel`, any of them."""

    max_seq_len: int | None
    meta_template: Mapping[str, Any]
    generation_kwargs: Mapping[str, Any]
    chat: bool
    device: str
    dtype: str
    sampler: Mapping[str, Any]
    likelihood: Mapping[str, Any]
    eos: str
    seed: int
    rows: int


class DatasetFields(TypedDict, total=False):
    """Of `DareDataset.load`, any of them."""

    options: Mapping[str, Any]
    split: Split
    n: int | None
    seed: int
    shots: int
    template: str
    data: str | None


def model(
    path: str,
    *,
    abbr: str | None = None,
    max_out_len: int = 256,
    batch_size: int = 64,
    **fields: Unpack[ModelFields],
) -> dict[str, Any]:
    """The entry of a model in a configuration.

    Args:
        path: of the checkpoint or adapter, or a hub id.
        abbr: its name in tables; None takes the last part of the path.
        max_out_len: where neither sampler nor dataset says.
        batch_size: prompts per call.
        **fields: of `DareModel`.
    """
    name = Path(path).name if abbr is None else abbr
    common = {"abbr": name, "path": str(path), "max_out_len": max_out_len, "batch_size": batch_size}
    return {
        "type": f"{_OURS}.DareModel",
        **common,
        "run_cfg": {"num_gpus": 0 if fields.get("device", "cpu") == "cpu" else 1},
        **fields,
    }


def dataset(
    task: str,
    *,
    mode: str = "generate",
    abbr: str | None = None,
    max_out_len: int | None = None,
    **fields: Unpack[DatasetFields],
) -> dict[str, Any]:
    """The entry of a task in a configuration.

    Args:
        task: of `dare_eval.tasks.names()`.
        mode: `generate`, or `likelihood` for multiple choice: the text of least perplexity per token.
        abbr: its name in tables.
        max_out_len: None takes the task's.
        **fields: of `DareDataset.load`.

    Raises:
        ValueError: for an unknown task or mode, or a task without answers to choose from in likelihood mode.
    """
    folder = fields.get("data")
    data = None if folder is None else Path(folder)
    known = get_task(task, fields.get("options"), data=data)
    common = {"type": f"{_OURS}.DareDataset", "abbr": abbr or f"{task}_{mode}", "task": task, **fields}
    retriever = {"type": f"{_THEIRS}.icl_retriever.ZeroRetriever"}
    if mode == "generate":
        turns = {"round": [{"role": "HUMAN", "prompt": "{prompt}"}]}
        verifier = {"task": task, "options": fields.get("options"), "data": fields.get("data")}
        return {
            **common,
            "reader_cfg": {"input_columns": ["prompt"], "output_column": "item"},
            "infer_cfg": {
                "prompt_template": {"type": f"{_THEIRS}.icl_prompt_template.PromptTemplate", "template": turns},
                "retriever": retriever,
                "inferencer": {
                    "type": f"{_THEIRS}.icl_inferencer.GenInferencer",
                    "max_out_len": max_out_len or known.gen_length,
                },
            },
            "eval_cfg": {"evaluator": {"type": f"{_OURS}.DareEvaluator", **verifier}},
        }
    if mode != "likelihood":
        raise ValueError(f"`mode`: expected 'generate' or 'likelihood', got {mode!r}")
    items = known.problems(fields.get("split", "test"), fields.get("n"), fields.get("seed", 0), likelihood=True)
    columns = [f"choice_{i}" for i in range(max(len(item.choices) for item in items))]
    return {
        **common,
        "likelihood": True,
        "reader_cfg": {"input_columns": columns, "output_column": "label"},
        "infer_cfg": {
            "prompt_template": {
                "type": f"{_THEIRS}.icl_prompt_template.PromptTemplate",
                "template": {i: f"{{{c}}}" for i, c in enumerate(columns)},
            },
            "retriever": retriever,
            "inferencer": {"type": f"{_THEIRS}.icl_inferencer.PPLInferencer"},
        },
        "eval_cfg": {"evaluator": {"type": f"{_OURS}.LabelEvaluator"}},
    }
