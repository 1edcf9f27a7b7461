"""YAML text is parsed to plain values with line numbers."""

import pytest

from quiver.errors import PipelineError
from quiver.pipeline.config.parse import (
    DOCUMENT_BYTES_MAX,
    PLACEHOLDER_FILE_BYTES_MAX,
    load_document,
    nearest,
)


def load(text, **values):
    return load_document(text, source="p.yaml", values=values)


def refused(text, **values):
    with pytest.raises(PipelineError) as caught:
        load(text, **values)
    assert caught.value.path == "p.yaml"
    return caught.value.line, caught.value.reason


def test_values_have_lines():
    """Every key and list item has a line; a missing path has the line of its parent."""
    document = load("a:\n  b: 1\n  c:\n    - x\n    - 2.5\nd: off\n")

    assert document.value == {"a": {"b": 1, "c": ["x", 2.5]}, "d": False}
    assert [document.line(path) for path in [("a",), ("a", "b"), ("a", "c", 1), ("d",)]] == [1, 2, 5, 6]
    assert document.line(("a", "c", 7)) == 3
    assert document.line(("nothing",)) == 1


def test_a_duplicate_key_is_refused():
    """The error names the key and the line of its first occurrence."""
    assert refused("a:\n  b: 1\n  c: 2\n  b: 3\n") == (4, "duplicate key b, first on line 2")


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("a: [1,\nb: 2\n", 3), ("a:\n\t- 1\n", 2), ("a: *nobody\n", 1), ("a: 1\n---\nb: 2\n", 2), ("a: 'x\n", 2)],
)
def test_invalid_yaml_is_refused_with_its_line(text, line):
    """The line at which the parser stopped."""
    assert refused(text)[0] == line


@pytest.mark.parametrize("text", ["a: !!python/object:os.system x\n", "a: !thing 1\n"])
def test_tags_create_no_objects(text):
    """Only plain values are created, for any tag."""
    assert refused(text)[0] == 1


@pytest.mark.parametrize("text", ["a: " + "[" * 900, "a: " + "{a: " * 900 + "}" * 900])
def test_a_deeply_nested_file_is_refused(text):
    """At any depth, with an error instead of a crash."""
    assert "nested deeper" in refused(text)[1]


@pytest.mark.parametrize("tag", ["float", "int", "bool", "timestamp"])
def test_an_invalid_value_for_a_tag_is_refused(tag):
    """Each tag of YAML is used with a value that it cannot parse."""
    line, reason = refused(f"a: 1\nb: !!{tag} ü\n")
    assert (line, reason) == (2, f"not valid YAML: not a valid {tag}; write quotes around a string")


def test_an_invalid_date_is_refused():
    """An unquoted placeholder is parsed like YAML; a quoted one is a string."""
    assert "not a valid timestamp" in refused("a: ${DAY}\n", DAY="2020-99-99")[1]
    assert load('a: "${DAY}"\n', DAY="2020-99-99").value == {"a": "2020-99-99"}


def test_a_character_outside_yaml_is_refused_with_its_line():
    """It is found before parsing, which reports no line for it."""
    assert refused("a: 1\nb: \x00\n") == (2, "not valid YAML: special characters are not allowed")


@pytest.mark.parametrize("text", ['a: "x\\0"\n', 'a: "{{x}}\\0"\n'])
def test_a_null_byte_is_refused(text):
    """No path, address or name may contain one; system calls raise an error for it."""
    assert refused(text, x="y") == (1, "a value contains a zero byte, which no name may contain")


def test_aliases_are_expanded_within_limits():
    """An alias has the value of its anchor; exponential aliases of aliases are refused."""
    assert load("a: &x [1]\nb: *x\n").value == {"a": [1], "b": [1]}
    assert "too far" in refused("a: &x [*x]\n")[1]
    laughs = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    assert "too far" in refused(laughs)[1]


def test_a_large_file_is_refused():
    """The size is checked before parsing."""
    assert "larger than" in refused("#" * (DOCUMENT_BYTES_MAX + 1))[1]


def test_placeholders_are_replaced():
    """A quoted scalar stays a string; an unquoted one is parsed like a literal value."""
    text = 'a: "{{dir}}/x"\nb: "{{size}}"\nc: http://{{host}}:1\nd: x{{word}}\ne: 1{{word}}\n'
    document = load(text, dir="/v", size="3", host="h", word="5")

    assert document.value == {"a": "/v/x", "b": "3", "c": "http://h:1", "d": "x5", "e": 15}
    assert document.placeholders == {"dir", "size", "host", "word"}


def test_a_placeholder_may_have_a_default():
    """The text after `:-` replaces a missing value; it may contain colons."""
    assert load('a: "{{addr:-127.0.0.1:1}}"\n').value == {"a": "127.0.0.1:1"}
    assert load('a: "{{addr:-127.0.0.1:1}}"\n', addr="h:2").value == {"a": "h:2"}
    assert load('a: "{{addr:-}}"\n').value == {"a": ""}


def test_a_value_cannot_change_the_structure():
    """An inserted value is never parsed as YAML structure."""
    assert load('a: "{{x}}"\nb: 1\n', x='"\nb: 2\n- [{').value == {"a": '"\nb: 2\n- [{', "b": 1}
    assert load("a: y{{x}}\n", x=": {").value == {"a": "y: {"}


def test_a_placeholder_without_a_value_is_refused():
    """The error explains how to set one."""
    assert refused('a: 1\nb: "{{host}}"\n') == (
        2,
        "{{host}} has no value; give --set host=… or set the environment variable",
    )


@pytest.mark.parametrize("text", ["a: 1\nb: {{host}}\n", "a: 1\nb: {{host}}/x\n"])
def test_an_unquoted_placeholder_is_explained(text):
    """Braces start a mapping in YAML; the error asks for quotes."""
    line, reason = refused(text, host="h")

    assert line == 2
    assert "quotes" in reason


def test_the_nearest_name_is_suggested():
    """One similar name, or a list of all."""
    assert nearest("persistance", ["persistence", "x"]) == "; did you mean persistence?"
    assert nearest("zzz", ["b", "a"]) == "; known are a, b"


def test_a_placeholder_may_name_a_file(tmp_path):
    """Its text, without the line end that an editor adds; nothing in it is replaced or parsed as structure."""
    token = tmp_path / "token"
    token.write_text("s3cret: ${HOME}\n")

    document = load(f'a: "${{file:{token}}}"\nb: Bearer ${{file:{token}}}\n', HOME="/root")
    assert document.value == {"a": "s3cret: ${HOME}", "b": "Bearer s3cret: ${HOME}"}
    assert document.placeholders == frozenset()


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    """Missing, a directory, too large, or not text: with the line of the placeholder."""
    (tmp_path / "large").write_bytes(b"x" * (PLACEHOLDER_FILE_BYTES_MAX + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, reason in (
        ("none", "cannot be read: No such file or directory"),
        (".", "cannot be read: Is a directory"),
        ("large", f"is larger than {PLACEHOLDER_FILE_BYTES_MAX} bytes"),
        ("binary", "is not UTF-8 text"),
    ):
        place = f"${{file:{tmp_path}/{name}}}"
        assert refused(f'a: 1\nb: "{place}"\n') == (2, f"{place} {reason}")


@pytest.mark.parametrize("text", ["${vault:secret/token}", "${my-token}", "${}", "${NAME", "${file:}", "${env:}"])
def test_an_unknown_placeholder_is_refused(text):
    """Otherwise it would be the value: a bearer token, a path, an address."""
    line, reason = refused(f'a: 1\nb: "Bearer {text}"\n', NAME="x")
    assert line == 2
    assert reason.startswith(f"{text} is not a placeholder; write ${{NAME}}, ${{env:NAME}} or ${{file:/path}}")


def test_a_second_dollar_sign_makes_it_text():
    """Of any form, known or not."""
    assert load('a: "$${NAME} $${word:x} $5 ${NAME}"\n', NAME="v").value == {"a": "${NAME} ${word:x} $5 v"}
