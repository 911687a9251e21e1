from __future__ import annotations

import http.client
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.recorded.answers import apply_blocks, read_request, write_answer
from gpu_forecasters_plugin.recorded.pool import RecordedCandidate, RecordedPool
from gpu_forecasters_plugin.recorded.proposer import ProposalError, ProposalGraph, RecordedProposer, serve
from gpu_forecasters_plugin.recorded.server import ProposerServer

DIFF_TAIL = """
# Task
You MUST use the exact SEARCH/REPLACE diff format shown below to indicate changes:

<<<<<<< SEARCH
# Original code to find and replace (must match exactly)
=======
# New replacement code
>>>>>>> REPLACE
"""
FULL_TAIL = """
# Task
Rewrite the program to improve its FITNESS SCORE.

```python
# Your rewritten program here
```"""


def kernel(block: int, warps: int) -> str:
    return (
        "import triton\n\n\n"
        f"BLOCK = {block}\n\n\n"
        "def kernel(x, y):\n"
        "    a = load(x)\n\n"
        "    a = a + 1\n\n"
        "    a = a + 1\n\n"
        "    store(y, a)\n\n\n"
        "def run(x):\n"
        f"    return launch(kernel, x, BLOCK, num_warps={warps})\n"
    )


def make_pool(times: random.Random | None = None) -> RecordedPool:
    grid = [(block, warps) for block in (32, 64, 128, 256) for warps in (1, 2, 4)]
    blocks, warp_counts = [32, 64, 128, 256], [1, 2, 4]
    candidates = {}
    for block, warps in grid:
        row, column = blocks.index(block), warp_counts.index(warps)
        near = [
            f"k{b}_{w}"
            for b, w in grid
            if abs(blocks.index(b) - row) + abs(warp_counts.index(w) - column) == 1
        ]
        failed = times is not None and times.random() < 0.3 and (block, warps) != (32, 1)
        candidates[f"k{block}_{warps}"] = RecordedCandidate(
            id=f"k{block}_{warps}",
            code=kernel(block, warps),
            language="triton",
            outcome=Outcome.TIMEOUT if failed else Outcome.OK,
            time_us=None if failed else (times.random() + 1.0 if times else 10.0),
            neighbours=tuple(near),
        )
    return RecordedPool("toy", "H100", "toy", "k32_1", {}, candidates)


@pytest.fixture(scope="module")
def graph() -> ProposalGraph:
    return ProposalGraph.from_pool(make_pool())


@pytest.fixture
def server(graph: ProposalGraph) -> Iterator[ProposerServer]:
    with serve(RecordedProposer(graph, seed=3)) as running:
        yield running


def prompt(code: str, tail: str, *, history: str = "", language: str = "python") -> list[dict[str, Any]]:
    user = f"# Program Evolution History\n{history}\n\n# Current Program\n```{language}\n{code}\n```\n{tail}"
    return [{"role": "system", "content": "You are an expert."}, {"role": "user", "content": user}]


def post(server: ProposerServer, body: Any, path: str = "/v1/chat/completions") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


# ---- graph ---------------------------------------------------------------------------------------------


def test_a_step_is_mostly_one_edit_and_never_stays(graph: ProposalGraph) -> None:
    rng = random.Random(0)
    steps = [graph.step("k64_2", rng) for _ in range(2000)]
    near = set(graph.neighbours("k64_2"))
    assert "k64_2" not in steps
    far_share = sum(step not in near for step in steps) / len(steps)
    assert 0.11 < far_share < 0.19
    assert near <= set(steps)
    two_away = {other for name in near for other in graph.neighbours(name)} | near
    assert set(steps) <= two_away


def test_the_graph_finds_sources_by_identity_and_rejects_bad_edges(graph: ProposalGraph) -> None:
    assert graph.find("# note\n" + kernel(64, 2)) == "k64_2"
    assert graph.find("x = 1") is None
    with pytest.raises(KeyError):
        graph.step("nobody", random.Random(0))
    with pytest.raises(ProposalError, match="'a' has no neighbours"):
        ProposalGraph({"a": "x = 1"}, {}).step("a", random.Random(0))
    with pytest.raises(ValueError, match="'z', which has no source"):
        ProposalGraph({"a": "x = 1"}, {"a": ["z"]})
    with pytest.raises(ValueError, match="at least one source"):
        ProposalGraph({}, {})


def test_measurements_have_no_influence(graph: ProposalGraph) -> None:
    plain = RecordedProposer(graph, seed=5)
    scrambled = RecordedProposer(ProposalGraph.from_pool(make_pool(random.Random(9))), seed=5)
    for index in range(60):
        code = kernel((32, 64, 128, 256)[index % 4], (1, 2, 4)[index % 3])
        fmt: Any = ("diff", "full")[index % 2]
        assert plain.propose(code, fmt, index % 5) == scrambled.propose(code, fmt, index % 5)
    assert not {"time", "times", "outcome", "pool"} & {name.strip("_") for name in vars(graph)}


# ---- seeding -------------------------------------------------------------------------------------------


def test_answers_depend_on_the_parent_and_its_count_not_on_the_order(graph: ProposalGraph) -> None:
    parents = [kernel(32, 1), kernel(64, 2), kernel(256, 4)]
    one, two = RecordedProposer(graph, seed=1), RecordedProposer(graph, seed=1)
    by_parent = {code: [one.propose(code, "full")[0] for _ in range(20)] for code in parents}
    mixed: dict[str, list[str]] = {code: [] for code in parents}
    for _ in range(20):
        for code in reversed(parents):
            mixed[code].append(two.propose(code, "full")[0])
    assert mixed == by_parent
    assert len(set(by_parent[parents[1]])) > 1


def test_each_seed_gives_other_answers(graph: ProposalGraph) -> None:
    def walk(seed: int, request_seed: int | None) -> list[str]:
        proposer = RecordedProposer(graph, seed=seed)
        return [proposer.propose(kernel(64, 2), "diff", request_seed)[0] for _ in range(20)]

    assert walk(0, None) == walk(0, None)
    assert len({tuple(walk(*seeds)) for seeds in ((0, None), (1, None), (0, 7), (0, 8))}) == 4


# ---- answers -------------------------------------------------------------------------------------------


def blocks_of(answer: str) -> list[tuple[str, str]]:
    pattern = r"^<{7} SEARCH\n(.*?)^=======\n(.*?)^>{7} REPLACE$"
    return re.findall(pattern, answer, re.DOTALL | re.MULTILINE)


def test_a_diff_changes_the_right_one_of_several_equal_lines() -> None:
    parent = kernel(64, 2)
    head, _, tail = parent.rpartition("    a = a + 1\n")
    child = head + "    a = a + 2\n" + tail
    answer = write_answer(parent, child, "diff")
    assert answer is not None
    assert apply_blocks(parent, blocks_of(answer)) == child
    # A change of one line is not answered with the whole program.
    assert len(answer) < len(parent)


def test_a_program_without_a_unique_context_is_replaced_as_a_whole() -> None:
    parent = "a()\n" * 60
    child = "a()\n" * 40 + "b()\n" + "a()\n" * 20
    answer = write_answer(parent, child, "diff")
    assert answer is not None
    result = apply_blocks(parent, blocks_of(answer))
    assert result is not None
    assert source_key(result) == source_key(child)


def test_what_cannot_be_said_is_not_said() -> None:
    assert write_answer("x = 1\n=======\n", "x = 2\n", "diff") is None
    assert write_answer("x = 1\n", "x = '''\n```\n'''\n", "full") is None
    graph = ProposalGraph({"a": "x = 1", "b": "x = '```'"}, {"a": ["b"]})
    with pytest.raises(ProposalError, match="no neighbour of 'a' can be written"):
        RecordedProposer(graph).propose("x = 1", "full")


def test_our_reading_of_blocks_is_openevolves() -> None:
    code_utils = pytest.importorskip("openevolve.utils.code_utils")
    lines = st.sampled_from(["a", "b ", "  c", "", "d  # x", "=======x", "e = 1\t"])
    text = st.lists(lines, min_size=1, max_size=14).map("\n".join)

    @settings(max_examples=300)
    @given(parent=text, child=text)
    def check(parent: str, child: str) -> None:
        answer = write_answer(parent, child, "diff")
        if answer is None:
            return
        blocks = code_utils.extract_diffs(answer)
        result, applied = code_utils.apply_diff_blocks(parent, blocks)
        assert source_key(result) == source_key(child)
        assert applied == len(blocks)
        full = write_answer(parent, child, "full")
        assert full is not None
        if child.strip():
            assert source_key(code_utils.parse_full_rewrite(full)) == source_key(child.strip())

    check()


# ---- prompts -------------------------------------------------------------------------------------------


def test_the_parent_is_the_current_program_not_another_one(graph: ProposalGraph) -> None:
    other = f"## Top\n```python\n{kernel(256, 4)}\n```\n"
    for tail, fmt in ((DIFF_TAIL, "diff"), (FULL_TAIL, "full")):
        artifacts = f"\n## Last Execution Output\n```\n{kernel(128, 1)}\n```\n"
        messages = prompt(kernel(64, 2), tail + artifacts, history=other)
        request = read_request(messages, lambda code: graph.find(code) is not None)
        assert (request.parent_code, request.fmt) == (kernel(64, 2), fmt)


def test_without_the_heading_the_last_known_block_is_the_parent(graph: ProposalGraph) -> None:
    text = (
        f"Improve this.\n```cuda\n{kernel(32, 1)}\n```\nand now\n```cuda\n{kernel(64, 2)}\n```\nOutput:\n"
        "```\nerror: expected ';'\n```\nRewrite it."
    )
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    request = read_request(messages, lambda code: graph.find(code) is not None)
    assert request.parent_code == kernel(64, 2)
    assert (request.fmt, request.language) == ("full", "cuda")


def test_a_program_with_fences_of_its_own_is_read_to_its_end() -> None:
    code = 'def run(x):\n    """Use it.\n\n```\nrun(x)\n```\n    """\n    return x\n'
    known = ProposalGraph({"a": code, "b": "x = 1"}, {"a": ["b"]})
    request = read_request(prompt(code, DIFF_TAIL), lambda text: known.find(text) is not None)
    assert request.parent_code == code


def test_a_prompt_without_a_known_program_is_refused(graph: ProposalGraph) -> None:
    for messages in (prompt("x = 1", DIFF_TAIL), [], [{"role": "user", "content": None}]):
        with pytest.raises(ProposalError, match="no program of this recorded task"):
            read_request(messages, lambda code: graph.find(code) is not None)


# ---- server --------------------------------------------------------------------------------------------


def test_the_server_answers_as_openai_does(server: ProposerServer, graph: ProposalGraph) -> None:
    body = {"model": "any", "messages": prompt(kernel(64, 2), DIFF_TAIL), "seed": 4, "temperature": 0.7}
    status, answer = post(server, body)
    assert status == 200
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["message"]["role"]) == ("stop", "assistant")
    child = apply_blocks(kernel(64, 2), blocks_of(choice["message"]["content"]))
    assert child is not None
    assert [graph.find(child)] == answer["recorded"]["child_ids"]
    usage = answer["usage"]
    assert usage["prompt_tokens"] > 100
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert "estimated" in answer["recorded"]["usage"]


def test_any_prefix_and_several_choices(server: ProposerServer) -> None:
    body = {"messages": prompt(kernel(64, 2), FULL_TAIL), "n": 5}
    status, answer = post(server, body, "/api/x/v1/chat/completions")
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4]
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    connection.request("GET", "/v1/models")
    models = json.loads(connection.getresponse().read())
    assert [model["id"] for model in models["data"]] == ["recorded-proposer"]
    connection.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{oops", "not JSON"),
        ([1], "must be a JSON object, got list"),
        ({"messages": "hello"}, "'messages' must be a list"),
        ({"messages": prompt("x = 1", DIFF_TAIL)}, "no program of this recorded task"),
        ({"messages": prompt(kernel(32, 1), DIFF_TAIL), "stream": True}, "streaming is not supported"),
        ({"messages": prompt(kernel(32, 1), DIFF_TAIL), "n": 0}, "'n' must be between"),
        ({"messages": prompt(kernel(32, 1), DIFF_TAIL), "seed": "x"}, "'seed' must be an integer"),
    ],
)
def test_a_bad_request_is_an_openai_error(server: ProposerServer, body: Any, message: str) -> None:
    status, answer = post(server, body)
    assert status == 400
    assert message in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


def test_unknown_paths_are_not_found(server: ProposerServer) -> None:
    assert post(server, {}, "/v1/embeddings")[0] == 404


def test_concurrent_requests_give_the_answers_of_sequential_ones(graph: ProposalGraph) -> None:
    parents = [kernel(block, warps) for block in (32, 64, 128, 256) for warps in (1, 2, 4)]

    def ask(server: ProposerServer, code: str) -> list[str]:
        body = {"messages": prompt(code, FULL_TAIL)}
        return [post(server, body)[1]["recorded"]["child_ids"][0] for _ in range(6)]

    with serve(RecordedProposer(graph, seed=2)) as server, ThreadPoolExecutor(8) as pool:
        concurrent = list(pool.map(lambda code: ask(server, code), parents))
    with serve(RecordedProposer(graph, seed=2)) as server:
        sequential = [ask(server, code) for code in parents]
    assert concurrent == sequential


def test_the_real_client_understands_it(server: ProposerServer) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        messages = prompt(kernel(64, 2), FULL_TAIL)
        answer = client.chat.completions.create(model="m", messages=messages, seed=1)
        assert "```python" in answer.choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="no program of this recorded task"):
            client.chat.completions.create(model="m", messages=prompt("x = 1", FULL_TAIL))


def test_it_is_a_command(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"pool": {"task": "toy", "device": "H100", "reference_id": "k32_1"}}]
    for candidate in make_pool().candidates.values():
        fields = vars(replace(candidate))
        rows.append({name: fields[name] for name in ("id", "code", "language", "outcome", "time_us")})
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "gpu_forecasters_plugin.recorded.proposer"]
    with subprocess.Popen([*command, "--pool", str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert re.match(r"toy: 12 kernels at http://127\.0\.0\.1:\d+/v1$", line.strip())
    failed = subprocess.run([*command, "--task", "no-such-task"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert failed.stderr.startswith("error: no recorded task 'no-such-task'")
