"""The actions where numpy is not installed: a process of its own, in which nothing but the standard library imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.actions.collections import MemoryCollections, entry, numpy_scores, python_scores, vector_of

ROOT = Path(__file__).parents[2]

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class OnlyOurs(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top != "pipeline":
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)

sys.meta_path.insert(0, OnlyOurs())
import json
from types import SimpleNamespace
from pipeline.actions import register_actions
registry = {}
made = register_actions(registry, SimpleNamespace(settings={"rag": {"embedding_provider": "hashing"}}))
"""
VECTORS = [[n % 3, 1.0, n / 10, -0.25] for n in range(20)]
WORK = f"""
stored = registry["vector.store"]({{}}, [f"text {{n}}" for n in range(20)], embeddings={VECTORS},
                                  ids=[str(n) for n in range(20)], metadata=[{{"n": n}} for n in range(20)])
found = registry["vector.query"]({{}}, "", embedding=[1, 1, 1, 1], k=4, filter={{"n_gte": 4}})
text = registry["embedding.create"]({{}}, "a text")
print(json.dumps([stored["stored"], found["results"], text, made.get_state(), "numpy" in sys.modules]))
"""


def alone(code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.req("003-017", "003-033", "003-035", "003-037")
def test_the_store_in_memory_needs_nothing_else() -> None:
    stored, found, text, state, numpy = alone(BLOCKED + WORK)
    assert (stored, numpy) == (20, False)
    here = MemoryCollections()
    here.restore_state(state)
    same = here.query("default", [1.0, 1.0, 1.0, 1.0], k=20)
    assert found == [one.to_json(embedding=False) for one in same if one.metadata["n"] >= 4][:4]
    assert text == {
        "error": "numpy is not installed, which embedding needs (install it, or give vectors: `embeddings` to"
        " vector.store, `embedding` to vector.query)",
        "success": False,
    }


@pytest.mark.req("003-019", "003-029")
def test_inmemory_persistence() -> None:
    """From a process with numpy, through a file's JSON, to one without."""
    here = MemoryCollections()
    here.add(
        "notes", [entry(id="a", text="x", embedding=[0.1, 0.2]), entry(id="b", text="y", embedding=[1, 0])]
    )
    state = json.dumps(here.get_state())
    code = f"""
made.restore_state(json.loads({state!r}))
print(json.dumps([made.get_state(), registry["vector.query"]({{}}, "", embedding=[1, 0], collection="notes")]))
"""
    there, answer = alone(BLOCKED + code)
    assert there == json.loads(state)
    assert [found["id"] for found in answer["results"]] == ["b", "a"]


@pytest.mark.req("003-037")
def test_importing_the_actions_loads_no_other_package() -> None:
    code = (
        "import sys; had = set(sys.modules); import pipeline.actions, json;"
        "new = {n.partition('.')[0] for n in set(sys.modules) - had} - set(sys.stdlib_module_names);"
        "print(json.dumps(sorted(new)))"
    )
    assert alone(code) == ["pipeline"]


@pytest.mark.req("003-018", "003-033")
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 0.0], [5.0, 0.0], 1.0),
        ([1.0, 0.0], [0.0, 2.0], 0.0),
        ([1.0, 1.0], [-2.0, -2.0], -1.0),
        ([3.0, 4.0], [4.0, 3.0], 0.96),
        ([0.0, 0.0], [1.0, 0.0], 0.0),
        ([1.0, 0.0], [0.0, 0.0], 0.0),
        ([1e-30, 0.0], [1e30, 0.0], 1.0),
        ([3e38, 3e38], [3e38, 3e38], 1.0),
    ],
)
def test_cosine_similarity_pure_python(a: list[float], b: list[float], expected: float) -> None:
    for scorer in (python_scores, numpy_scores):
        assert scorer([vector_of(a, "a")], vector_of(b, "b")) == pytest.approx([expected], abs=1e-7)
