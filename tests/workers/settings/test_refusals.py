"""Wrong files: every mistake is reported at its line, in words, and all at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import ConfigurationError
from workers.settings import SettingsError, SettingsProblem, load

Lines = Callable[..., list[str]]
Problems = Callable[..., list[SettingsProblem]]

GOOD = "rag:\n  sources:\n    - name: docs\n      type: markdown\n      paths: ['./docs/**/*.md']\n"

WRONG = [
    (GOOD + "  retreival:\n    topK: 5\n", 6, ("retreival: found an unknown key", "did you mean retrieval?")),
    (
        GOOD + "  retrieval:\n    topK: many\n",
        7,
        ("retrieval.topK", "'many'", "a whole number from 1 to 1000"),
    ),
    (
        GOOD + "  monitoring: {metrics: {token: ''}}\n",
        6,
        ("metrics.token: found an empty text, expected a secret",),
    ),
    (
        GOOD + '  monitoring: {metrics: {token: "${LARDER_METRICS_TOKEN:-}"}}\n',
        6,
        ("metrics.token: found an empty text (without quotes an empty variable leaves its key out)",),
    ),
    (GOOD + "  retrieval:\n    topK: 2.5\n", 7, ("found 2.5",)),
    (GOOD + "  retrieval:\n    topK: yes\n", 7, ("found true", "a whole number")),
    (GOOD + "  retrieval:\n    topK: '5.5'\n", 7, ("found '5.5'", "a whole number")),
    (GOOD + "  retrieval:\n    topK: 0\n", 7, ("found 0", "from 1 to 1000")),
    (GOOD + "  retrieval:\n    topk: 3\n", 7, ("unknown key", "did you mean topK?")),
    (GOOD + "  retrieval:\n    minSimilarity: 1.7\n", 7, ("minSimilarity", "auto, or a number from 0 to 1")),
    (GOOD + "  retrieval:\n    minSimilarity: true\n", 7, ("found true",)),
    (GOOD + "  retrieval:\n    maxDistance: 3\n", 7, ("a number from 0 to 2, or nothing",)),
    (GOOD + "  retrieval: 5\n", 6, ("retrieval: found 5, expected a mapping",)),
    (GOOD + "  enabled: 2\n", 6, ("enabled: found 2, expected true or false",)),
    (GOOD + "  rolloutPercentage: 101\n", 6, ("a number from 0 to 100",)),
    (GOOD + "  timezone: Mars/Base\n", 6, ("timezone", "the name of a time zone")),
    (GOOD + "  tenant: 42\n", 6, ("tenant: found 42, expected text",)),
    (GOOD + "  tenant: ''\n", 6, ("tenant: found '', expected text",)),
    (GOOD + "      indexSchedule: '61 * * * *'\n", 6, ("sources[0].indexSchedule", "cron")),
    (GOOD + "      updateSchedule: '0 0 31 2 *'\n", 6, ("updateSchedule", "that day never comes")),
    (GOOD + "      updateSchedule: '* * * *'\n", 6, ("updateSchedule", "five fields")),
    (GOOD + "      indexSchedule: 'H * * * *'\n", 6, ("indexSchedule", "cron")),
    (GOOD + "      indexSchedule: 5\n", 6, ("indexSchedule: found 5",)),
    (GOOD + "      maxBytes: lots\n", 6, ("maxBytes", "a size such as 500k or 10m")),
    (GOOD + "      baseUrl: ftp://example.com\n", 6, ("baseUrl", "https://example.com")),
    (GOOD + "      root: 7\n", 6, ("root: found 7, expected a path",)),
    (GOOD + "      metadata:\n        sourceType: wiki\n", 7, ("sourceType", "documentation, confluence")),
    (GOOD + "      chunking:\n        strategy: magic\n", 7, ("sources[0].chunking.strategy", "semantic")),
    (GOOD + "      pathes: x\n", 6, ("sources[0].pathes", "did you mean paths?", "frontmatterFields")),
    (GOOD + "    - docs\n", 6, ("sources[1]: found 'docs'", "name, type and paths")),
    (
        GOOD + "    - name: docs\n      type: text\n      paths: a\n",
        6,
        ("sources[1].name", "no other source"),
    ),
    (GOOD + "    - name: a b\n      type: text\n      paths: a\n", 6, ("letters, digits and _ . -",)),
    (GOOD.replace("markdown", "sharepoint"), 4, ("'sharepoint'", "markdown, text, pbi_json, json")),
    (GOOD.replace("      type: markdown\n", ""), 3, ("sources[0].type: found nothing", "markdown")),
    (GOOD.replace("['./docs/**/*.md']", "[]"), 5, ("paths: found an empty list", "one pattern or more")),
    (GOOD.replace("['./docs/**/*.md']", "[5]"), 5, ("paths[0]: found 5, expected text",)),
    (GOOD.replace("      paths: ['./docs/**/*.md']\n", ""), 3, ("sources[0].paths: found nothing",)),
    ("rag:\n  sources: {a: b}\n", 2, ("sources: found a mapping, expected a list of sources",)),
    ("rag:\n  chunking:\n    maxSize: 300\n    overlap: 400\n", 4, ("chunking.overlap", "maxSize (300)")),
    ("rag:\n  chunking:\n    maxSize: 150\n", 2, ("chunking.overlap: found the default 200", "(150)")),
    ("rag:\n  chunking:\n    minSize: 2000\n", 3, ("chunking.minSize", "at most maxSize (1000)")),
    ("rag:\n  chunking:\n    splitOn: []\n", 3, ("splitOn",)),
    ("rag:\n  embedding:\n    provider: magic\n", 3, ("one of minilm, hashing",)),
    ("rag:\n  monitoring:\n    logging: {level: loud}\n", 3, ("debug, info, warning",)),
    ("rag:\n  monitoring:\n    logging: {maxSize: -1}\n", 3, ("maxSize: found -1",)),
    ("rag:\n  monitoring:\n    healthCheck: {endpoint: x}\n", 3, ("begins with /",)),
    ("rag:\n  monitoring:\n    alerts:\n      channels:\n        - type: file\n", 5, ("channels[0].path",)),
    (
        "rag:\n  monitoring:\n    alerts:\n      channels: [5]\n",
        4,
        ("channels[0]: found 5, expected a mapping",),
    ),
    ("rag:\n  monitoring:\n    alerts:\n      conditions: [{name: rain}]\n", 4, ("slow_query",)),
    ("rag:\n  storage:\n    database: {url: 'mysql://h/x'}\n", 3, ("database.url", "postgresql://")),
    ("rag:\n  storage:\n    broker: {url: localhost}\n", 3, ("broker.url", "redis://")),
    (
        "rag:\n  storage:\n    broker: {url: 'amqp://u:p@h//'}\n",
        3,
        ("broker.valkeyUrl: found nothing", "a Valkey or Redis beside RabbitMQ", "LARDER_VALKEY_URL"),
    ),
    (
        "rag:\n  storage:\n    broker: {url: 'amqps://u:p@h//', valkeyUrl: 'amqp://u:p@h//'}\n",
        3,
        ("broker.valkeyUrl: found amqp:// and a rest", "redis://"),
    ),
    ("rag:\n  storage:\n    broker: {url: 'pyamqp://u:p@h//'}\n", 3, ("broker.url", "amqp://", "redis://")),
    ("rag:\n  flower: {unprotected: [tasks]}\n", 2, ("unprotected[0]", "'metrics' or 'healthcheck'")),
    ("rag:\n  metadata: {}\n", 2, ("metadata: found an unknown key",)),
    (
        "rag:\n  enabled: true\n  tenant: a\n  enabled: false\n",
        4,
        ("enabled: found the key a second time", "line 2"),
    ),
    ("rag:\n  enabled: !!python/name:os.system x\n", 2, ("the YAML tag",)),
    ("rag:\n  ? [a, b]\n  : 5\n", 2, ("a key that is no text",)),
    ("a: &a {topK: 5}\nrag:\n  retrieval:\n    <<: *a\n", 4, ("a merge key",)),
    ("rag: {}\nrug: {}\n", 2, ("rug: found an unknown key", "one of rag")),
    ("rag: {}\nrag: {}\n", 2, ("rag: found the key a second time",)),
    ("rug: {}\n", 1, ("rag: found nothing, expected a mapping",)),
    ("rag: 5\n", 1, ("rag: found 5, expected a mapping",)),
    ("- rag\n", 1, ("found a list, expected a mapping",)),
    ("", 0, ("rag: found nothing, expected a mapping",)),
]


@pytest.mark.parametrize(("text", "line", "needles"), WRONG)
def test_a_mistake_is_told_once_with_its_line(
    problems: Problems, text: str, line: int, needles: tuple[str, ...]
) -> None:
    here = [p for p in problems(text) if all(needle in str(p) for needle in needles)]
    assert len(here) == 1
    assert here[0].at.line == line
    assert str(here[0]).startswith(f"larder.yaml:{line}: " if line else "larder.yaml: ")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            "rag:\n  sources:\n    - name: docs\n      type: markdown\n     paths: [oops\n",
            "larder.yaml:5:6: ",
        ),
        ("rag:\n\tenabled: true\n", "larder.yaml:2:1: "),
        ("rag:\n  a: 'open\n", "larder.yaml:3:1: "),
        ("rag:\n  a: *nobody\n", "larder.yaml:2:6: "),
        ("rag: {}\n---\nrag: {}\n", "larder.yaml:2:1: "),
        ("rag:\n  tenant: a\x07b\n", "larder.yaml:2: "),
    ],
)
def test_broken_yaml_is_told_with_line_and_column(lines: Lines, text: str, place: str) -> None:
    (line,) = lines(text)
    assert line.startswith(place)


def test_broken_yaml_around_a_variable_has_a_hint(lines: Lines) -> None:
    (line,) = lines("rag:\n  retrieval: {topK: ${K}}\n")
    assert "needs quotes" in line


def test_the_text_of_a_problem_is_one_line_of_place_key_found_and_expected(problems: Problems) -> None:
    (problem,) = problems("rag:\n  retrieval:\n    topK: many\n")
    assert (
        str(problem) == "larder.yaml:3: retrieval.topK: found 'many', expected a whole number from 1 to 1000"
    )


@pytest.mark.req("001-073")
def test_all_problems_are_reported_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    found = problems(
        """\
        rag:
          enabled: perhaps
          storage:
            database: {url: "${NO_SUCH}"}
          chunking: {maxSize: 50, overlap: 60}
          sources:
            - {name: a, type: sharepoint}
            - {name: a, type: text, paths: []}
            - {name: b, type: text, paths: [], watch: never}
          queue: {leaseSeconds: 600, timeLimit: 900}
          flover: {}
        rug: 1
        """
    )
    assert [(p.at.line, p.key) for p in found] == [
        (2, "enabled"),
        (4, "storage.database.url"),
        (5, "chunking.minSize"),
        (5, "chunking.overlap"),
        (7, "sources[0].type"),
        (8, "sources[1].name"),
        (8, "sources[1].paths"),
        (9, "sources[2].paths"),
        (9, "sources[2].watch"),
        (10, "queue.resendSeconds"),
        (10, "queue.timeLimit"),
        (11, "flover"),
        (12, "rug"),
    ]


def test_both_spellings_of_one_key_are_one_too_many(problems: Problems) -> None:
    (problem,) = problems("rag:\n  retrieval:\n    topK: 5\n    top_k: 6\n")
    assert (problem.at.line, problem.key) == (4, "retrieval.top_k")
    assert problem.fix == "did you mean topK?"


def test_a_key_in_snake_case_is_named_as_it_is_written(problems: Problems) -> None:
    (problem,) = problems("rag:\n  chunking:\n    max_size: big\n")
    assert (problem.at.line, problem.key) == (3, "chunking.max_size")


def test_the_error_is_a_configuration_error_with_exit_code_2(here: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(Path("missing.yaml"), {})
    assert isinstance(caught.value, SettingsError)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith("missing.yaml: found a file that cannot be read (No such file")


class TestHostileFiles:
    """A file can be refused, but not exhaust the process."""

    def test_a_bomb_of_aliases(self, lines: Lines) -> None:
        levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
        text = "rag:\n  sources:\n    - metadata:\n" + "".join(f"        {level}\n" for level in levels)
        assert any("too much" in line for line in lines(text))

    def test_an_alias_to_itself(self, lines: Lines) -> None:
        assert any("at most 24 levels" in line for line in lines("rag:\n  sources: &a [*a]\n"))

    def test_nesting_without_end(self, lines: Lines) -> None:
        (line,) = lines("rag: " + "[" * 20_000)
        assert "nested too deeply" in line

    @pytest.mark.usefixtures("here")
    def test_bytes_that_are_no_text(self) -> None:
        Path("larder.yaml").write_bytes(b"rag:\n  tenant: caf\xe9\n")
        with pytest.raises(SettingsError, match=r"larder.yaml:2: found bytes that are not UTF-8"):
            load(None, {})

    def test_a_folder_instead_of_a_file(self, here: Path) -> None:
        with pytest.raises(SettingsError, match="a file that cannot be read"):
            load(here, {})

    def test_small_aliases_are_welcome(self, loaded: Callable[..., object]) -> None:
        loaded("rag:\n  decisions:\n    tags: &words [a, b]\n    headings: *words\n")
