"""Asking the fake Azure DevOps, with the real client and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.fakes.azure_devops import FakeAzureDevOps

PAT = "secret-pat"
Client = Any
Open = Callable[..., Client]


def model(name: str, **values: object) -> Any:
    from azure.devops.v7_1.work_item_tracking import models

    return getattr(models, name)(**values)


def refused(call: Callable[[], object]) -> Any:
    """The error of the service itself, as the client raises it."""
    from azure.devops.exceptions import AzureDevOpsServiceError

    with pytest.raises(AzureDevOpsServiceError) as caught:
        call()
    return caught.value


def raw(fake: FakeAzureDevOps, path: str, *, method: str = "GET", **more: Any) -> requests.Response:
    return requests.request(method, fake.url + path, auth=("", PAT), allow_redirects=False, timeout=5, **more)


def batch(client: Client, ids: list[int], **more: object) -> Any:
    return client.get_work_items_batch(model("WorkItemBatchGetRequest", ids=ids, **more))
