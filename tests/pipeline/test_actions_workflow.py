"""The actions inside a workflow: the example agent of the documents, run by an engine of forty lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.yaml_engine import Engine, Stopped

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "rag-agent.yaml"
STATE: dict[str, Any] = {
    "rules": [
        "The pilot waits for the tide at the bar.",
        "The pilot of a small boat need not wait for the tide.",
        "A vessel longer than ninety metres needs two bollards.",
        "The pilot waited for the tide until 1998.",
    ],
    "about": [
        {"type": "rule", "since": "2024-03-01"},
        {"type": "rule", "since": "2025-01-01"},
        {"type": "rule", "since": "2024-01-01"},
        {"type": "rule", "since": "1998-01-01"},
    ],
    "question": "Does the pilot wait for the tide?",
}


def engine(**flags: Any) -> Engine:
    made = Engine(EXAMPLE, {"OPENAI_API_KEY": "sk-test"}, **flags)
    # The documents name a provider on the network; this one is in the process.
    made.settings["rag"] = {"embedding_provider": "hashing", "embedding_dimensions": 128}
    return made


@pytest.mark.req("003-009", "003-034", "003-036")
def test_rag_pipeline_in_yaml_workflow() -> None:
    state = engine().run(STATE)
    assert state["learned"]["stored"] == 4
    assert {found["text"] for found in state["found"]["results"]} == set(STATE["rules"][:2])
    assert json.loads(json.dumps(state)) == state


@pytest.mark.req("003-034")
def test_embedding_with_llm_call() -> None:
    """The model is asked with the rules that were found, and with no others."""
    asked = engine().run(STATE)["answer"]["content"]
    for shown in (*STATE["rules"][:2], STATE["question"]):
        assert shown in asked
    for left_out in STATE["rules"][2:]:
        assert left_out not in asked


@pytest.mark.req("003-019", "003-031", "003-034")
def test_vector_store_with_checkpoint(tmp_path: Path) -> None:
    """A workflow that is broken off after storing goes on in another engine."""
    first = engine()
    checkpoint = tmp_path / "checkpoint.json"
    state = first.run(STATE, last="learn")
    checkpoint.write_text(json.dumps({"state": state, "collections": first.actions.get_state()}))
    saved = json.loads(checkpoint.read_text())
    second = engine()
    assert second.run(saved["state"], first="find", last="find")["found"]["results"] == []
    second.actions.restore_state(saved["collections"])
    done = second.run(saved["state"], first="find")
    assert done["found"] == first.run(state, first="find")["found"]
    assert {found["id"] for found in done["found"]["results"]} == set(done["learned"]["ids"][:2])


@pytest.mark.req("003-025")
def test_an_error_reaches_the_workflow_as_a_value() -> None:
    broken = engine()
    broken.settings["rag"]["embedding_provider"] = "nobody"
    with pytest.raises(Stopped, match=r"settings\.rag\.embedding_provider is 'nobody'"):
        broken.run(STATE)


@pytest.mark.req("003-039")
def test_an_engine_may_leave_the_actions_out() -> None:
    assert set(engine(enable_rag=False).registry) == {"llm.call"}
