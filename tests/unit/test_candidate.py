from __future__ import annotations

import textwrap
import warnings

import pytest

from gpu_forecasters_plugin.candidate import MAX_SOURCE_CHARACTERS, Candidate, decode_source, source_key

PYTHON = "import torch\n\nBLOCK = 64\n\n\ndef run(x):\n    y = x * BLOCK\n    return y\n"
CUDA = "#include <cuda.h>\n__global__ void add(float *x) {\n  x[0] += 1.0f;  // one\n}\n"
IN_STRING = textwrap.dedent('''
    SOURCE = """
    #include <cuda.h>
    __global__ void add(float *x) { x[0] += 1.0f; }
    """
    run = load_inline(SOURCE)
''')
DEFINES = "#define BLOCK 64\n#define WARPS 4\n"


@pytest.mark.parametrize(
    "other",
    [
        PYTHON.replace("y = x * BLOCK", "y = x * BLOCK  # scaled"),
        "# a header\n" + PYTHON,
        PYTHON.replace("\n\n\n", "\n\n\n\n\n"),
        PYTHON.replace("x * BLOCK", "x  *  BLOCK"),
        PYTHON.replace("    ", "  "),
        PYTHON.replace("\n", "\r\n"),
        PYTHON.replace("\n", "\r"),
        "\ufeff" + PYTHON,
        "\ufeff" + PYTHON.replace("\n", "\r\n"),
        PYTHON.rstrip("\n"),
        PYTHON + "\n\n   \n",
    ],
    ids="comment header blank-lines blanks indentation crlf cr bom bom-crlf no-last-line-end tail".split(),
)
def test_layout_and_comments_are_no_difference_in_python(other: str) -> None:
    assert source_key(other) == source_key(PYTHON)


@pytest.mark.parametrize(
    "other",
    [
        PYTHON.replace("64", "128"),
        PYTHON.replace("y = x", "z = x"),
        PYTHON.replace("    return y", "return y"),
        PYTHON.replace("BLOCK = 64", "BLOCK = '64'"),
        PYTHON.replace("import torch\n", ""),
        PYTHON.replace("return y", "return y + 0"),
    ],
)
def test_anything_else_is_a_difference_in_python(other: str) -> None:
    assert source_key(other) != source_key(PYTHON)


def test_text_inside_a_string_is_no_comment() -> None:
    assert source_key('X = "a # b"\n') != source_key('X = "a # c"\n')
    assert source_key('X = "a  b"\n') != source_key('X = "a b"\n')


@pytest.mark.parametrize(
    "other",
    [
        CUDA.replace("// one", "// two"),
        CUDA.replace("// one", "/* over\ntwo lines */"),
        CUDA.replace("\n", "\r\n"),
        CUDA.replace("  x[0]", "\tx[0]"),
        "/* licence */\n" + CUDA,
    ],
)
def test_layout_and_comments_are_no_difference_in_cuda(other: str) -> None:
    assert source_key(other) == source_key(CUDA)


@pytest.mark.parametrize("other", [CUDA.replace("1.0f", "2.0f"), CUDA.replace("float", "double")])
def test_anything_else_is_a_difference_in_cuda(other: str) -> None:
    assert source_key(other) != source_key(CUDA)


def test_comment_marks_inside_a_c_string_are_text() -> None:
    call = '__global__ void f() { puts("http://a"); }\nint x(;'
    assert source_key(call) != source_key(call.replace("//a", "//b"))


def test_the_end_of_a_directive_is_no_layout() -> None:
    joined = DEFINES.replace("64\n", "64 ")
    assert source_key(joined) != source_key(DEFINES)
    continued = DEFINES.replace("BLOCK 64", "BLOCK \\\n 64")
    assert source_key(continued) == source_key(continued.replace("\\\n 64", "\\\n    64"))


def test_python_that_this_interpreter_cannot_read_is_not_taken_for_c() -> None:
    newer = "def run(x: int, *, y=:):\n    if x:\n        y = x // 64\n    return y\n"
    assert source_key(newer) != source_key(newer.replace("64", "128"))
    assert source_key(newer) != source_key(newer.replace("    return", "        return"))
    assert source_key(newer) == source_key(newer.replace("\n    if", "   \n\n    if"))


def test_cuda_inside_a_python_string_is_compared_as_cuda() -> None:
    noted = IN_STRING.replace("x[0] += 1.0f;", "x[0]  +=  1.0f; /* one */")
    assert source_key(noted) == source_key(IN_STRING)
    assert source_key(IN_STRING.replace("1.0f", "2.0f")) != source_key(IN_STRING)


def test_preprocessor_lines_alone_are_a_source_and_no_comments() -> None:
    assert Candidate("a", DEFINES).problem is None
    assert source_key(DEFINES) != source_key(DEFINES.replace("64", "128"))
    assert source_key(DEFINES) == source_key(DEFINES.replace("BLOCK 64", "BLOCK   64 // wide"))


def test_what_does_not_parse_still_has_an_identity() -> None:
    broken = "def run(x:\n    return ((x\n"
    assert source_key(broken) == source_key(broken.replace("\n", "\n\n"))
    assert source_key(broken) != source_key(broken.replace("x", "y"))
    assert Candidate("a", broken).problem is None  # whether it compiles, the evaluator says


@pytest.mark.parametrize(
    "code", ["x = 1\n\x00", "(" * 5000, "if x:\n\ty\n        z\n", "'''open", '"open\n', "\\", "x = 0777\n"]
)
def test_texts_that_upset_parsers_have_an_identity(code: str) -> None:
    assert len(source_key(code)) == 32


def test_a_candidates_own_syntax_warnings_stay_with_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source_key('if x is "text":\n    pass\n')


@pytest.mark.parametrize(
    "code", ["", "  \n\t\n", "# nothing but\n# comments\n", "// nothing\n/* at all */", "\ufeff"]
)
def test_an_empty_source_is_a_problem(code: str) -> None:
    assert "empty" in (Candidate("a", code).problem or "")


def test_a_source_of_a_megabyte_is_a_problem_and_is_told_from_others() -> None:
    longest = "x = 1\n" * (MAX_SOURCE_CHARACTERS // 6)
    assert Candidate("a", longest).problem is None
    long = "x" * 1_000_000
    problem = Candidate("a", long).problem or ""
    assert "1,000,000" in problem and f"{MAX_SOURCE_CHARACTERS:,}" in problem
    assert Candidate("a", long).key != Candidate("a", long[:-1] + "y").key


def test_bytes_that_are_not_utf8_are_a_problem_and_lose_nothing() -> None:
    data = b"x = '\xff\xfe'\n"
    code = decode_source(data)
    assert code.encode("utf-8", "surrogateescape") == data
    assert "UTF-8" in (Candidate("a", code).problem or "")
    assert Candidate("a", code).key != Candidate("a", decode_source(b"x = '\xff\xfd'\n")).key


def test_a_lone_surrogate_is_a_problem() -> None:
    found = Candidate("a", "x = '\ud800'\n")
    assert "UTF-8" in (found.problem or "") and len(found.key) == 32


def test_decoding_drops_the_byte_order_mark_and_nothing_else() -> None:
    assert decode_source(b"\xef\xbb\xbfx = 1\r\n") == "x = 1\r\n"
    assert decode_source("x = 'ä'\n".encode()) == "x = 'ä'\n"


def test_a_candidate_needs_an_id() -> None:
    with pytest.raises(ValueError, match="id"):
        Candidate("", PYTHON)


def test_candidates_are_equal_by_id_and_code() -> None:
    assert Candidate("a", PYTHON) != Candidate("b", PYTHON)


@pytest.mark.parametrize(
    ("code", "key"),
    [
        (
            "import triton\nx = f\"a{1+1!r:>{10}}b\" f'''{x}\n  multi {y:%Y} '''\n"
            'def g():\n    return rf"{x}\\n{{}}" # c\n',
            "cfb8aeddd87b252acaee7ad103fff421",
        ),
        (
            'n = 3\nsrc = f"""\n#include <x>\n__global__ void k() {{ // hi\n  int a = {n}; /* c */\n}}"""\n',
            "46edacdbd9706f5497f1d6fe7b253c4a",
        ),
        ('x = f"é{1}ü"; y = "ß"\nif x:\n    # c\n\n    pass\n# end', "5d1619ce0113aa95006ac3d0dc112992"),
    ],
)
def test_a_ledger_is_resumed_under_another_python(code: str, key: str) -> None:
    assert source_key(code) == key
