"""What goes before a text is cut, and what stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chunking.prose import prose_of
from tests.complexity import assert_linear

ASF = """Licensed to the Apache Software Foundation (ASF) under one or more
contributor license agreements.  See the NOTICE file distributed with
this work for additional information regarding copyright ownership.

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS.
"""
MIT = """Copyright (c) 2024 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND.
"""
HASHED = "".join(f"# {line}\n" if line else "#\n" for line in ASF.splitlines())


def lines(text: str) -> list[str]:
    """What is left, without blank lines."""
    return [line.strip() for line in prose_of(text).splitlines() if line.strip()]


@pytest.mark.parametrize(
    "licence", [ASF, MIT, HASHED, f"<!--\n{ASF}-->\n", "// SPDX-License-Identifier: MIT\n"]
)
def test_a_licence_at_the_head_goes(licence: str) -> None:
    assert lines(f"{licence}\n# Guide\n\nRead on.\n") == ["# Guide", "Read on."]
    assert lines(f"# Guide\n\n{licence}\nRead on.\n") == ["# Guide", "Read on."]


def test_what_is_said_about_licences_stays() -> None:
    text = f"# Licences\n\nWe choose the Apache License, Version 2.0.\n\n{ASF}"
    assert "Unless required by applicable law" in prose_of(text)
    assert "We choose the Apache License" in prose_of(text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Hi <!-- a --> there", ["Hi  there"]),
        ("One.\n<!-- a\n\n```\nb\n```\n-->\nTwo.", ["One.", "Two."]),
        ("<!-- a <!-- b --> c", ["c"]),
        ("It stays: `<!--` and `-->`.", ["It stays: `<!--` and `-->`."]),
        ("<!-- never closed\n\nWords.", ["<!-- never closed", "Words."]),
        ("![shot](a.png)\n\nWords.", ["Words."]),
        ("![How a request reaches the store](a_(1).png)", ["How a request reaches the store"]),
        ('<img\n  src="a.png"\n  alt="How a request reaches the store">', ["How a request reaches the store"]),
        ("!image-2020-1.png|width=9!\nWords.", ["Words."]),
        ("[![Build](b.svg)](https://ci) [![Docs][d]][e]\n\nWords.", ["Words."]),
        ("+++ This bug was initially created as a clone of Bug #12 +++\nWords.", ["Words."]),
        ("*** This bug has been marked as a duplicate of bug 7 ***", []),
        ("Reproducible: Always\nWords.", ["Words."]),
        ("https://a.b/c\n\n- https://a.b\n* <https://a.b>\n- Words.\n\nUser-Agent: Mozilla/5.0", ["- Words.", "User-Agent: Mozilla/5.0"]),
        ("See https://a.b for more.\n- [Guide](https://a.b)", ["See https://a.b for more.", "- [Guide](https://a.b)"]),
        ("The form, see\n[Two](#two)\nhas two fields.", ["The form, see", "[Two](#two)", "has two fields."]),
        ("# Upgrade it\n\nhttps://a.b/advisory", ["# Upgrade it", "https://a.b/advisory"]),
        ("Words.\nhttps://a.b/HADOOP-7?focus=HADOOP-7 https://a.b/detail/CVE-2020-9492\nhttps://a.b/GHSA-gwcr-j4wh-j3cq]", ["Words.", "HADOOP-7, CVE-2020-9492.", "GHSA-gwcr-j4wh-j3cq."]),
        ("Words.\nhttps://a.b/a-7/UTF-x/rev/5406B6", ["Words."]),
        ("## Contents\n\n- [One](#one)\n  - [Two](#two)\n\n## One\n\nWords.", ["## One", "Words."]),
        ("## Logs\n\n_No response_\n\n## Cause\n\nWords.", ["## Cause", "Words."]),
        ("# Title\n\n## Risks\n\nN/A\n\n### Costs\n- TBD\n", ["# Title"]),
        ("Words.\n\n***\n\n=-=-=-=-=-=\n\nMore.", ["Words.", "More."]),
        ("Heading\n-------\n\nWords.", ["Heading", "-------", "Words."]),
        ("H<sub>2</sub>O<br>in the tank", ["H<sub>2</sub>O<br>in the tank"]),
        ("The <div> element and a List<String> stay.", ["The <div> element and a List<String> stay."]),
        (":::note[Mind]\nWords.\n:::\n\n> [!TIP]\n> More.", ["Mind", "Words.", "> More."]),
        ('{{< note >}}\nA {{< tooltip text="Pod" id="pod" >}} runs.\n{{% /note %}}', ["A Pod runs."]),
        ("## Types {#types}\n\nWords.\n{: .no_toc}", ["## Types {#types}", "Words."]),
        ("import Tabs from '@theme/Tabs';\n<Tabs>\nWords.\n</Tabs>\nimport os", ["Words.", "import os"]),
        ("h2. Why\nbq. Words.\n\n[image1]: <data:image/png;base64,Zm9v>", ["Why", "Words."]),
        ("1.\n- \n- [ ] \n- [ ] Do it.", ["- [ ] Do it."]),
    ],
)  # fmt: skip
def test_what_nobody_reads_goes_and_words_stay(text: str, left: list[str]) -> None:
    assert lines(text) == left
    assert lines(text.replace("\n", "\r\n")) == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Steps to reproduce:\n\nActual results:\n\nIt broke.", ["Actual results:", "It broke."]),
        ("It broke.\n\n**Notes:**\n", ["It broke."]),
        ("## A\n\nSteps:\n\n## B\n\nWords.", ["## B", "Words."]),
        ("Steps:\n- one\n- two", ["Steps:", "- one", "- two"]),
        ("Options:\n\n### One\n\nWords.", ["Options:", "### One", "Words."]),
        ("Output:\n\n```\na:\nb:\n```", ["Output:", "```", "a:", "b:", "```"]),
        ("**Checks:**\n\nThese are done:\n- a", ["**Checks:**", "These are done:", "- a"]),
        ("a:\n  b:\n    c: d", ["a:", "b:", "c: d"]),
    ],
)
def test_a_label_goes_only_if_nothing_follows(text: str, left: list[str]) -> None:
    assert lines(text) == left


@pytest.mark.parametrize("fence", ["```{}```", "~~~~sh\n{}~~~~", "- ```\n  {}  ```", "> ```\n{}> ```"])
def test_code_stays_as_it_is(fence: str) -> None:
    code = fence.format("\n<!-- a -->\n![b](c.png)\n<br>\nN/A\n[c](#c)\n-----\nLabel:\n")
    text = f"Words.\n\n{code}\n\nMore."
    assert prose_of(text) == text


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("{code:java|title=a}", "{code}"), ("{noformat}", "{noformat}"), ("<pre class='x'>", "</pre>"),
        ("{{< highlight sh >}}", "{{< /highlight >}}"),
    ],
)  # fmt: skip
def test_code_of_other_markup_is_fenced(begin: str, end: str) -> None:
    found = lines(f"It says {begin}\na <!-- b -->\n{end} and ends.\n\n{begin} It stays open.")
    assert found[:5] == ["It says", "~~~~~~", "a <!-- b -->", "~~~~~~", "and ends."]
    assert found[5].endswith("It stays open.")


def test_code_on_one_line_does_not_begin_a_block() -> None:
    text = "Use {code}a{code} or {code}b{code}.\n"
    assert lines(f"{text}<!-- x -->") == lines(text) == [text.strip()]


@given(
    st.lists(
        st.sampled_from(["<!--", "-->", "`", "```\n", "{code}", "<pre>", "\n", "N/A", "a:", "# ", "b", "\r"])
    )
)
@settings(max_examples=200, deadline=None)
def test_code_fences_and_words_survive_whatever_stands_around(parts: list[str]) -> None:
    assert prose_of("".join(parts) + "\n\n-->\n{code}\n</pre>\n```\n\nThe end.").rstrip().endswith("The end.")


HOSTILE: dict[str, tuple[Callable[[int], str], int]] = {
    "unclosed comments": (lambda n: "<!--" * n, 200_000),
    "unclosed comments on lines": (lambda n: "<!--\n" * n, 40_000),
    "comments on one line": (lambda n: "a<!---->" * n, 100_000),
    "nested comments": (lambda n: "<!-- " * n + "-->" * n, 100_000),
    "quoted comments": (lambda n: "`<!--" * n, 100_000),
    "code that never ends": (lambda n: "{code:a}\n<pre>\n" * n, 20_000),
    "code on one line": (lambda n: "{code}" * n, 100_000),
    "code and its end": (lambda n: "{code}\n{noformat}\n" * n, 20_000),
    "images": (lambda n: "![" * n, 200_000),
    "images with targets": (lambda n: "![a](" * n, 100_000),
    "badges": (lambda n: "[![a](" * n, 100_000),
    "pictures of trackers": (lambda n: "!a" * n, 200_000),
    "tags": (lambda n: "<div " * n, 100_000),
    "a tag that never ends": (lambda n: "<img " + "a " * n, 200_000),
    "shortcodes": (lambda n: "{{< " * n, 100_000),
    "links": (lambda n: "https://a.b " * n + "c", 40_000),
    "one long link": (lambda n: "https://" * n + " c", 60_000),
    "rules": (lambda n: "- " * n + "x", 200_000),
    "labels": (lambda n: "a:\n" * n, 10_000),
    "empty headings": (lambda n: "## a\nN/A\n" * n, 10_000),
    "a licence without end": (lambda n: "permission is hereby granted, " * n, 40_000),
    "many licences": (lambda n: f"{ASF}\n" * n, 400),
    "alternative texts": (lambda n: f"![{'screenshot ' * n}](a)", 100_000),
    "imports": (lambda n: "import " + "a from " * n, 100_000),
    "emphasis": (lambda n: "*_" * n, 200_000),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_the_time_grows_with_the_text_and_no_faster(name: str) -> None:
    make, size = HOSTILE[name]
    assert_linear(make, size, prose_of)
