"""Enrichments and actions for a Celery app without Larder's package.

Run it with `python docs/examples/plain_celery.py`. It needs the broker's address in LARDER_BROKER_URL, and
`queue: {answerApps: true}` in the configuration of the workers.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

broker = os.environ["LARDER_BROKER_URL"]
app = Celery("pipeline", broker=broker, backend=broker)


def ask(task: str, **request: Any) -> str:
    """Send a task with JSON of at most 8 MB as its request; the id by which any process finds the answer."""
    return str(app.send_task(task, kwargs=request, queue="enrich", priority=0).id)


def answer(ident: str, seconds: float = 120) -> Any:
    """The answer, waiting for it; what went wrong is an answer, too."""
    found = app.AsyncResult(ident).get(timeout=seconds)
    if found.get("success") is False:
        raise RuntimeError(found["error"])
    return found


if __name__ == "__main__":
    asked = ask(
        "larder.enrich",
        pbi={"id": "NEW-1", "title": "Warn of shallow water at the bar"},
        scores={"overall": 7},
    )
    answer(
        ask("larder.vector.store", texts=["The pilot waits for the tide."], ids=["tide"], collection="rules")
    )
    near = answer(ask("larder.vector.query", query="when does the pilot wait", collection="rules", k=1))
    print("rule:", near["results"][0]["text"])
    for work in answer(asked)["similar_work"]:
        print("similar:", work["ref"], work["title"])
