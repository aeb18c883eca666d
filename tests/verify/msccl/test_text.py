"""The tokenizer: what the runtimes' own one accepts, and where each thing stands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taccl_py.verify.msccl.findings import Findings
from taccl_py.verify.msccl.text import Element, read_document


def read(text: str) -> tuple[list[Element], list[str]]:
    findings = Findings()
    document = read_document(text, findings)
    return list(document.algorithms), [violation.rule for violation in findings.violations()]


def test_elements_keep_their_lines_and_attributes() -> None:
    (algo,), rules = read('<!-- a\n b -->\n<algo a="1" b="x>y/z">\n  <gpu id="0"/><gpu id="1">\n</gpu>\n</algo>')
    assert rules == []
    assert (algo.line, algo.attributes) == (3, {"a": "1", "b": "x>y/z"})
    assert [(gpu.line, gpu.attributes["id"]) for gpu in algo.children] == [(4, "0"), (4, "1")]


def test_names_of_end_tags_are_compared_only_where_they_matter() -> None:
    (algo,), rules = read('<algo><copy><a></b><c/></d><gpu id="0"></gpu></algo>')
    assert rules == []
    assert [gpu.name for gpu in algo.children] == ["gpu"]
    assert read("<algo><gpu></tb></algo>")[1] == ["tag-mismatch"]


def test_an_element_counts_only_inside_the_right_parent() -> None:
    (algo,), _ = read('<algo><gpu id="0"><step s="0"/><tb><gpu/><step s="1"/></tb></gpu><tb/></algo>')
    (gpu,) = algo.children
    (tb,) = gpu.children
    assert [step.attributes for step in tb.children] == [{"s": "1"}]


def test_of_two_equal_attributes_the_first_counts() -> None:
    (algo,), _ = read('<algo a="1" a="2"/>')
    assert algo.attributes == {"a": "1"}


def test_empty_attributes_take_places() -> None:
    blanks = " " * 10
    (algo,), rules = read(f'<algo{blanks} a="1" b="2" c="3" d="4" e="5" f="6" g="7"/>')
    assert rules == ["attribute-limit"]
    assert list(algo.attributes) == ["a", "b", "c", "d", "e", "f"]


def test_reading_goes_on_after_mistakes_that_hide_nothing() -> None:
    algorithms, rules = read('\ufeff<?xml version="1.0"?>\n\t<algo\n a="1"\tb="2">\n\t</algo>')
    assert sorted(set(rules)) == ["byte-order-mark", "tag-blanks", "text-between-elements", "text-declaration"]
    assert algorithms[0].attributes == {"a": "1", "b": "2"}


def test_comments_end_at_the_first_arrow_only() -> None:
    assert read("<!--><algo/>-->")[0] == []
    assert len(read("<!----><algo/>")[0]) == 1
    assert len(read("<!-- <algo a='1'> - -- > --><algo/>")[0]) == 1


def test_deep_nesting_is_no_problem() -> None:
    assert read("<algo>" + "<x>" * 20000 + "</x>" * 20000 + "</algo>")[1] == []


NAME = st.text(alphabet="abcXYZ_09.-", min_size=1, max_size=8)
VALUE = st.text(alphabet="ab 09<>/='&;-é", max_size=12)


@given(st.dictionaries(NAME, VALUE, max_size=16))
def test_what_is_written_plainly_is_read_back(attributes: dict[str, str]) -> None:
    (algo,), rules = read("<algo" + "".join(f' {name}="{value}"' for name, value in attributes.items()) + "></algo>\n")
    assert rules == []
    assert algo.attributes == attributes
