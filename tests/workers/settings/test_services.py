"""Sections of Confluence and Azure DevOps, as the documents write them and as people do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.confluence.options import ConfluenceOptions
from connectors.documents.options import DecisionRules, SourceContext
from connectors.sections import secret_value
from pipeline.documents import SourceType
from workers.settings import Settings, SettingsError, SourceSettings
from workers.settings.rendering import effective

Loaded = Callable[..., Settings]
Lines = Callable[..., list[str]]

DOCUMENTED = """\
rag:
  sources:
    - name: confluence_kb
      type: confluence
      enabled: ${CONFLUENCE_ENABLED:-false}
      baseUrl: ${CONFLUENCE_URL}
      spaceKeys: ${CONFLUENCE_SPACES:-TECH,ARCH}
      auth:
        username: ${CONFLUENCE_USER}
        apiToken: ${CONFLUENCE_TOKEN}
      syncOptions:
        includeAttachments: false
        includeComments: true
        maxPages: 1000
      updateSchedule: '0 2 * * *'
      metadata:
        sourceType: confluence
        category: knowledge_base
    - name: azure_devops
      type: azure_devops
      enabled: ${AZURE_ENABLED:-false}
      organization: ${AZURE_ORG}
      project: ${AZURE_PROJECT}
      auth:
        pat: ${AZURE_PAT}
      workItemTypes: [User Story, Bug, Task, Feature]
      fields:
        - System.Title
        - System.Description
        - Microsoft.VSTS.Common.AcceptanceCriteria
        - System.Tags
      maxItems: 5000
      updateSchedule: '0 3 * * *'
      metadata:
        sourceType: azure_devops
        category: work_items
"""
ENVIRON = {
    "CONFLUENCE_ENABLED": "true",
    "CONFLUENCE_URL": "https://example.atlassian.net/wiki/",
    "CONFLUENCE_USER": "ann@example.com",
    "CONFLUENCE_TOKEN": "sesame",
    "AZURE_ENABLED": "true",
    "AZURE_ORG": "example",
    "AZURE_PROJECT": "Shop",
    "AZURE_PAT": "sesame",
}
CONFLUENCE = "name: a, type: confluence, baseUrl: 'https://h/wiki'"
AZURE = "name: a, type: azure_devops, organization: o"


def written(keys: str) -> str:
    return f"rag:\n  sources:\n    - {{{keys}}}\n"


@pytest.fixture
def one(loaded: Loaded) -> Callable[[str], SourceSettings]:
    def read(keys: str) -> SourceSettings:
        return loaded(written(keys)).rag.sources[0]

    return read


@pytest.mark.req("001-051", "001-052", "001-053")
def test_the_documented_confluence_source(loaded: Loaded) -> None:
    wiki = loaded(DOCUMENTED, ENVIRON).rag.sources[0]
    assert isinstance(wiki, ConfluenceOptions)
    assert (wiki.enabled, wiki.base_url, wiki.space_keys) == (
        True,
        "https://example.atlassian.net/wiki",
        ("TECH", "ARCH"),
    )
    assert (wiki.username, secret_value(wiki.api_token)) == ("ann@example.com", "sesame")
    assert (wiki.include_attachments, wiki.include_comments, wiki.max_pages) == (False, True, 1000)
    assert (wiki.include_archived, wiki.include_restricted, wiki.include_blog_posts) == (False, True, False)
    assert (wiki.schedule, wiki.deployment, wiki.max_concurrency) == ("0 2 * * *", "auto", 4)
    assert wiki.metadata.source_type is SourceType.CONFLUENCE
    assert wiki.metadata.fixed() == {"category": "knowledge_base"}


@pytest.mark.req("001-054", "001-055", "001-056", "001-057")
def test_the_documented_azure_devops_source(loaded: Loaded) -> None:
    boards = loaded(DOCUMENTED, ENVIRON).rag.sources[1]
    assert isinstance(boards, AzureDevOpsOptions)
    assert (boards.organization, boards.projects, boards.project) == (
        "https://dev.azure.com/example",
        ("Shop",),
        None,
    )
    assert secret_value(boards.pat) == "sesame"
    assert boards.work_item_types == ("User Story", "Bug", "Task", "Feature")
    assert boards.fields[2] == "Microsoft.VSTS.Common.AcceptanceCriteria"
    assert (boards.max_items, boards.schedule) == (5000, "0 3 * * *")
    assert boards.metadata.fixed() == {"category": "work_items"}


@pytest.mark.parametrize("name", ["sources[0]", "sources[1]"])
def test_secrets_are_shown_nowhere(loaded: Loaded, name: str) -> None:
    assert "sesame" not in str(effective(loaded(DOCUMENTED, ENVIRON))), name
    assert "sesame" not in repr(loaded(DOCUMENTED, ENVIRON)), name


class TestSwitchedOff:
    def test_its_variables_need_no_value(self, loaded: Loaded) -> None:
        found = loaded(DOCUMENTED).rag.sources
        assert [(s.name, s.type, s.enabled) for s in found] == [
            ("confluence_kb", "confluence", False),
            ("azure_devops", "azure_devops", False),
        ]

    def test_its_other_mistakes_are_told_all_the_same(self, lines: Lines) -> None:
        (line,) = lines(
            written(CONFLUENCE + ", enabled: false, spaceKey: X, auth: {username: '${NOT_THERE}'}")
        )
        assert "sources[0].spaceKey: found an unknown key" in line

    @pytest.mark.parametrize("missing", sorted(set(ENVIRON) - {"CONFLUENCE_ENABLED", "AZURE_ENABLED"}))
    def test_switched_on_every_variable_counts(self, loaded: Loaded, missing: str) -> None:
        environ: Mapping[str, str] = {k: v for k, v in ENVIRON.items() if k != missing}
        with pytest.raises(SettingsError, match=missing):
            loaded(DOCUMENTED, environ)

    def test_what_it_shows_can_be_loaded_again(self, loaded: Loaded) -> None:
        from workers.settings.rendering import show

        assert [s.enabled for s in loaded(show(loaded(DOCUMENTED))).rag.sources] == [False, False]


@pytest.mark.parametrize(
    "keys",
    [
        "syncOptions: {pageSize: 20, includeBlogPosts: true}",
        "pageSize: 20, includeBlogPosts: true",
        "page_size: 20, sync_options: {include_blog_posts: true}",
    ],
)
def test_sync_options_may_stand_one_level_higher(one: Callable[[str], ConfluenceOptions], keys: str) -> None:
    source = one(f"{CONFLUENCE}, {keys}")
    assert (source.page_size, source.include_blog_posts) == (20, True)


@pytest.mark.parametrize(
    ("written_as", "read"), [("All", ("All",)), ("'A, B'", ("A", "B")), ("[A, B]", ("A", "B"))]
)
def test_projects_are_one_or_many(
    one: Callable[[str], AzureDevOpsOptions], written_as: str, read: tuple[str, ...]
) -> None:
    assert one(f"{AZURE}, project: {written_as}").projects == read
    assert getattr(one(f"{AZURE}, projects: {written_as}, project: larder"), "project", "") == "larder"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            CONFLUENCE + ", auth: {username: a}",
            "sources[0].apiToken: found nothing, expected the token of that user",
        ),
        (CONFLUENCE + ", auth: {apiToken: a}", "sources[0].username: found nothing"),
        (
            CONFLUENCE + ", auth: {token: t, username: a, apiToken: b}",
            "either token, or username and apiToken",
        ),
        (
            CONFLUENCE + ", pageSize: 20, syncOptions: {pageSize: 30}",
            "pageSize: found 30, expected each key once; it is in syncOptions and beside it",
        ),
        (CONFLUENCE + ", deployment: onprem", "deployment"),
        (CONFLUENCE + ", maxPages: 0", "a whole number, 1 or more"),
        (CONFLUENCE + ", pageSize: 51", "a whole number from 1 to 50"),
        (CONFLUENCE + ", syncOptions: 5", "syncOptions: found 5, expected a mapping"),
        (
            CONFLUENCE + ", syncOptions: {maxPagez: 5}",
            "sources[0].syncOptions.maxPagez: found an unknown key",
        ),
        (CONFLUENCE + ", syncOptions: {max_pages: x}", "sources[0].syncOptions.max_pages: found 'x'"),
        (CONFLUENCE + ", syncOption: {}", "did you mean syncOptions?"),
        ("name: a, type: confluence, baseUrl: 'ftp://h'", "an address such as"),
        ("name: a, type: confluence", "baseUrl: found nothing"),
        (AZURE, "projects: found nothing"),
        (AZURE + ", project: []", "a project or a list of them"),
        (AZURE + ", project: p, requestsPerMinute: many", "a whole number, 1 or more"),
    ],
)
def test_mistakes_are_named_with_the_way_out(lines: Lines, keys: str, says: str) -> None:
    found = lines(written(keys))
    assert len(found) == 1
    assert says in found[0]
    assert found[0].startswith("larder.yaml:3: sources[0]")


@pytest.mark.parametrize("keys", [CONFLUENCE, AZURE + ", projects: p"])
def test_a_cursor_holds_for_what_it_was_made_with_only(one: Callable[[str], Any], keys: str) -> None:
    """Whatever decides what becomes of a document makes another selection."""
    contexts = (
        SourceContext(),
        SourceContext(metadata={"search_language": "german"}),
        SourceContext(decisions=DecisionRules(tags=("x",))),
        SourceContext(decisions=DecisionRules(frontmatter_types=())),
    )
    found = [one(keys).with_context(context).selection_hash for context in contexts]
    found += [
        one(f"{keys}, metadata: {{{more}}}").selection_hash for more in ("category: c", "sourceType: text")
    ]
    found += [one(f"{keys}, {more}").selection_hash for more in ("includeComments: false", "timezone: UTC")]
    assert len(set(found)) == len(found) - 1, "the time zone of a schedule alone decides nothing"
    assert found[-1] == found[0] == one(keys).selection_hash
