from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from sweeper.core.text import escape_markdown, printable

BAIT = """
[here](http://evil)
![x](http://evil/x.png)
<http://evil>
<a href='http://evil'>x</a>
[x]: http://evil
see http://evil.com/x
HTTPS://evil.com
ftp://evil.com
www.evil.com
(WWW.evil.com)
me@evil.com
mailto:me@evil.com
\\[x](http://evil)
\\\\[x](http://evil)
&lt;http://evil.com&gt;
`x` [y](z)
"""


@pytest.mark.parametrize("text", BAIT.split("\n")[1:-1])
def test_no_text_becomes_a_link_in_markdown(text: str) -> None:
    """With the reader of rich, and where its part for bare addresses is installed, with that
    too.
    """
    html = MarkdownIt("commonmark").render(f"| {escape_markdown(text)} |")
    assert not {"<a ", "<img", "<code"} & {
        html[at : at + length] for at in range(len(html)) for length in (3, 4, 5)
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see http://evil.com", "see http\\://evil.com"),
        ("see www.evil.com", "see www\\.evil.com"),
        ("@team me@evil.com", "\\@team me\\@evil.com"),
        ("mailto:x", "mailto\\:x"),
        ("1 @ 2, 3:4, a.b", "1 @ 2, 3:4, a.b"),
    ],
)
def test_bare_addresses_and_names_are_no_links_either(text: str, expected: str) -> None:
    """GitHub makes links of them: https://github.github.com/gfm/#autolinks-extension-."""
    assert escape_markdown(text) == expected
    assert MarkdownIt("commonmark").render(escape_markdown(text)) == f"<p>{text}</p>\n"


def test_text_for_one_line_has_a_space_for_each_control_character() -> None:
    assert printable(" a\nb\x1b[0m\ud800 ") == "a b [0m"
    assert printable("é ü") == "é ü"
