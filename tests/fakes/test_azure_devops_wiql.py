"""The pretended Azure DevOps reads WIQL as the service does, with its traps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.fakes.azure_devops import FakeAzureDevOps

PAT = "secret-pat"


@pytest.fixture
def fake() -> Iterator[FakeAzureDevOps]:
    with FakeAzureDevOps(pat=PAT) as made:
        made.add_project("Web")
        yield made


def ask(
    fake: FakeAzureDevOps, where: str, *, project: str = "", body: dict[str, Any] | None = None, **query: Any
) -> requests.Response:
    text = f"SELECT [System.Id] FROM WorkItems WHERE {where}"
    return requests.post(
        f"{fake.url}{project and '/' + project}/_apis/wit/wiql",
        params={"api-version": "7.1", **{k.replace("_", "$"): v for k, v in query.items()}},
        json={"query": text, **(body or {})},
        auth=("", PAT),
        timeout=30,
    )


def ids(fake: FakeAzureDevOps, where: str, **more: Any) -> list[int]:
    answer = ask(fake, where, **more)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["workItems"]]


def refusal(fake: FakeAzureDevOps, where: str, **more: Any) -> str:
    answer = ask(fake, where, **more)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["message"])


@pytest.fixture
def four(fake: FakeAzureDevOps) -> FakeAzureDevOps:
    """Four items that differ in what queries look at; ids 1 to 4."""
    fake.add_item("Web", "Bug", "Crash in Bob's cart", area="Shop\\Cart", tags=["ui", "hot fix"], priority=1)
    fake.add_item("Web", "Task", "Write it down", area="Shop", state="Active", description="a crash report")
    fake.add_item("Web", "Epic", "Everything", area="Shopping", assigned_to="Ann Lee <ann@acme.example>")
    fake.add_item("Web", "User Story", "crash less", story_points=2.5, tags=["ui"])
    return fake


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("[System.WorkItemType] = 'bug'", {1}),
        ("[System.WorkItemType] <> 'Bug'", {2, 3, 4}),
        ("[System.WorkItemType] IN ('Bug', 'Epic')", {1, 3}),
        ("[System.WorkItemType] NOT IN ('Bug', 'Epic')", {2, 4}),
        ("[Work Item Type] = 'Bug'", {1}),
        ("[System.Id] > 1 AND [System.Id] <= 3", {2, 3}),
        ("[System.Id] IN (4, 2, 99)", {2, 4}),
        ("[System.Id] >= '2' and [System.Id] < 3", {2}),
        ("[System.AreaPath] UNDER 'Web\\Shop'", {1, 2}),
        ("[System.AreaPath] = 'Web\\Shop'", {2}),
        ("NOT [System.AreaPath] UNDER 'Web\\Shop'", {3, 4}),
        ("[System.AreaPath] NOT UNDER 'Web\\Shop'", {3, 4}),
        ("[System.Title] CONTAINS 'CRASH'", {1, 4}),
        ("[System.Title] = 'Crash in Bob''s cart'", {1}),
        ("[System.Description] CONTAINS WORDS 'report crash'", {2}),
        ("[System.Description] CONTAINS WORDS 'rep'", set()),
        ("[System.Description] CONTAINS 'rep'", {2}),
        ("[System.Tags] CONTAINS 'ui'", {1, 4}),
        ("[System.Tags] CONTAINS 'fix'", set()),
        ("[System.Tags] NOT CONTAINS 'hot fix'", {2, 3, 4}),
        ("[System.AssignedTo] = 'Ann Lee'", {3}),
        ("[System.AssignedTo] = 'ann@acme.example'", {3}),
        ("[System.AssignedTo] <> 'Ann Lee'", {1, 2, 4}),
        ("[System.AssignedTo] IS EMPTY", {1, 2, 4}),
        ("[System.AssignedTo] IS NOT EMPTY", {3}),
        ("[Microsoft.VSTS.Scheduling.StoryPoints] > 2", {4}),
        ("[Microsoft.VSTS.Common.Priority] <> 1", {2, 3, 4}),
        ("[System.State] = 'New' AND [System.Id] = 2 OR [System.Id] = 3", {3}),
        ("[System.State] = 'New' AND ([System.Id] = 2 OR [System.Id] = 3)", {3}),
        ("[System.Id] = 3 OR [System.State] = 'New' AND [System.Id] = 1", {1, 3}),
        ("([System.Id] = 3 OR [System.Id] = 2) AND [System.State] = 'New'", {3}),
        ("[System.CreatedDate] >= @today - 1", {1, 2, 3, 4}),
        ("[System.CreatedDate] >= @today + 1", set()),
    ],
)
def test_conditions_find_what_they_say(four: FakeAzureDevOps, where: str, expected: set[int]) -> None:
    assert set(ids(four, where)) == expected


@pytest.mark.parametrize(
    ("where", "word"),
    [
        ("System.Id > 1", "TF51005"),
        ("[ChangedDate] > '2025-01-01'", "TF51005"),
        ("[System.Nothing] = 1", "TF51005"),
        ("[System.Description] = 'x'", "TF51010"),
        ("[System.Tags] = 'x'", "TF51010"),
        ("[System.WorkItemType] UNDER 'Web'", "TF51012"),
        ("[System.AreaPath] UNDER 'Web\\None'", "area path does not exist"),
        ("[System.Id] = 'x'", "TF51009"),
        ("[System.Title] = 'Bob's'", "TF51"),
        ("([System.Id] = 1", "TF51008"),
        ("[System.Id] = 1 [System.Id] = 2", "TF51011"),
        ("[System.CreatedDate] > 'soon'", "TF51009"),
        ("[System.TeamProject] = @project", "TF51009"),
    ],
)
def test_what_is_wrong_is_refused_in_words(four: FakeAzureDevOps, where: str, word: str) -> None:
    assert word in refusal(four, where)


def test_a_time_needs_time_precision_on_the_query_string(four: FakeAzureDevOps) -> None:
    where = f"[System.ChangedDate] >= '{four.now:%Y-%m-%dT%H:%M:%S}Z'"
    four.edit(2, title="edited")

    assert "using date precision" in refusal(four, where)
    assert "«[System.ChangedDate] >= '2025-" in refusal(four, where)
    assert "using date precision" in refusal(four, where, body={"timePrecision": True})
    assert "using date precision" in refusal(four, where, _timePrecision="true")
    assert 2 in ids(four, where, timePrecision="true")


def test_dates_are_days_in_the_zone_of_the_account_and_z_is_utc() -> None:
    with FakeAzureDevOps(pat=PAT, zone="Pacific/Auckland") as fake:  # UTC+13 in March
        fake.add_project("Web")
        fake.now = fake.now.replace(hour=10, minute=30)
        fake.add_item("Web", "Bug", "before midnight in Auckland")
        fake.now = fake.now.replace(hour=11, minute=30)
        fake.add_item("Web", "Bug", "after it")

        assert ids(fake, "[System.ChangedDate] >= '2025-03-05'") == [2]
        assert ids(fake, "[System.ChangedDate] = '3/4/2025'") == [1]
        assert ids(fake, "[System.ChangedDate] > '2025-03-04'") == [2]
        precise = {"timePrecision": "true"}
        assert ids(fake, "[System.ChangedDate] >= '2025-03-05'", **precise) == [2]
        assert ids(fake, "[System.ChangedDate] >= '2025-03-05T00:00:00'", **precise) == [2]
        assert ids(fake, "[System.ChangedDate] >= '2025-03-04T11:00:00Z'", **precise) == [2]
        assert ids(fake, "[System.ChangedDate] < '2025-03-04T11:00:00.1234567Z'", **precise) == [1]


def test_the_project_in_the_path_only_means_the_macro(fake: FakeAzureDevOps) -> None:
    fake.add_project("Other")
    mine = fake.add_item("Web", "Bug", "x")
    theirs = fake.add_item("Other", "Bug", "x")

    assert set(ids(fake, "[System.Id] > 0", project="Web")) == {mine, theirs}
    assert ids(fake, "[System.TeamProject] = @project", project="Web") == [mine]
    assert ids(fake, "[System.TeamProject] = @Project", project="Other/Some Team") == [theirs]
    fake.hide_project("Other")
    assert ids(fake, "[System.Id] > 0") == [mine]
    assert ask(fake, "[System.Id] > 0", project="Other").status_code == 404


def test_deleted_items_never_appear_and_forbidden_ones_as_told(fake: FakeAzureDevOps) -> None:
    a, b, c, d, e = fake.bulk("Web", 5)
    fake.delete(a)
    fake.destroy(b)
    fake.forbid(c)
    fake.forbid(d, listed=False)

    assert set(ids(fake, "[System.Id] > 0")) == {c, e}
    fake.restore(a)
    fake.allow(d)
    assert set(ids(fake, "[System.Id] > 0")) == {a, c, d, e}


def test_order_is_what_was_asked_for_and_else_none_to_rely_on(four: FakeAzureDevOps) -> None:
    four.edit(2, title="newest")

    assert ids(four, "[System.Id] > 0") == [2, 4, 3, 1]
    assert ids(four, "[System.Id] > 0 ORDER BY [System.Id]") == [1, 2, 3, 4]
    assert ids(four, "[System.Id] > 0 ORDER BY [System.State] ASC, [System.Id] DESC") == [2, 4, 3, 1]


def test_too_many_hits_are_an_error_and_top_hides_what_it_cut(fake: FakeAzureDevOps) -> None:
    fake.limits.hits = 5
    fake.bulk("Web", 6)

    for top in ("", "2"):
        answer = ask(fake, "[System.Id] > 0", _top=top)
        assert answer.status_code == 400
        assert answer.json()["typeKey"] == "WorkItemTrackingQueryResultSizeLimitExceededException"
    cut = ask(fake, "[System.Id] > 1 ORDER BY [System.Id]", _top="2").json()
    assert [w["id"] for w in cut.pop("workItems")] == [2, 3]
    whole = ask(fake, "[System.Id] > 1 ORDER BY [System.Id]").json()
    assert len(whole.pop("workItems")) == 5
    assert cut == whole, "nothing says that it was cut"


def test_20_500_items_are_more_than_a_query_gives(fake: FakeAzureDevOps) -> None:
    fake.bulk("Web", 20_500)

    assert "VS402337" in refusal(fake, "[System.TeamProject] = 'Web'")
    halves = [
        ids(fake, f"[System.TeamProject] = 'Web' AND [System.Id] {sign} 12000 ORDER BY [System.Id]")
        for sign in ("<=", ">")
    ]

    assert [len(half) for half in halves] == [12_000, 8_500]


def test_the_answer_says_as_of_when_and_only_ids(four: FakeAzureDevOps) -> None:
    answer = ask(four, "[System.Id] = 1").json()

    assert answer["asOf"] == "2025-03-04T09:30:00.177Z"
    assert [list(item) for item in answer["workItems"]] == [["id", "url"]]
    assert [column["referenceName"] for column in answer["columns"]] == ["System.Id"]
