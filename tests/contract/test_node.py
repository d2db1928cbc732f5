"""Contract of every `Node`, whatever connects it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.interface import Node
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import CommandFailedError, DeadlineError, NodeUnreachableError, OrchError

MIB = 1024 * 1024
WORDS = (
    "two words",
    "'single' and \"double\"",
    "a;b",
    "$(touch /nowhere) `id` $HOME ${HOME}",
    "first\nsecond\n",
    "*",
    "~",
    "\\",
    "-n",
    "",
    "a|b & c > d < e # f ! g",
    "ñandú ✓",
)


def test_a_command_gets_these_very_words(node: Node) -> None:
    answer = node.run(["sh", "-c", 'for word in "$@"; do printf "%s\\0" "$word"; done', "sh", *WORDS])
    assert answer.stdout == "".join(f"{word}\0" for word in WORDS)
    assert answer.node == "alpha"


def test_stdout_stderr_and_exit_code_stay_separate(node: Node) -> None:
    answer = node.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (answer.exit_code, answer.stdout, answer.stderr) == (3, "out\n", "err\n")


def test_a_program_that_is_missing_is_an_exit_code(node: Node) -> None:
    answer = node.run(["no-such-program", "x"])
    assert answer.exit_code == 127
    assert "no-such-program" in answer.stderr


def test_stdin_arrives_and_ends(node: Node) -> None:
    content = bytes(range(256)) * 4096
    answer = node.run(["sh", "-c", "cksum; wc -c"], stdin=content)
    assert answer.stdout.split()[1] == str(len(content))
    assert node.run(["cat"]).stdout == ""


def test_stdin_may_come_piece_by_piece(node: Node) -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(50):
            yield f"{number:05d}\n".encode() * 1000

    assert node.run(["wc", "-l"], stdin=pieces()).stdout.strip() == "50000"


def test_a_command_need_not_read_its_stdin(node: Node) -> None:
    assert node.run(["true"], stdin=b"x" * MIB).exit_code == 0
    assert node.run(["true"], stdin=(b"x" * MIB for _ in range(20))).exit_code == 0


def test_closing_a_stream_ends_the_command(node: Node) -> None:
    if isinstance(node, FakeNode):
        pytest.skip("its commands have ended before their output comes")
    chunks = node.stream(["yes", "closed-83621"])
    assert next(chunks).startswith(b"closed-83621\n")
    chunks.close()  # type: ignore[attr-defined]  # a generator
    for _ in range(50):
        if node.run(["pgrep", "-f", "^yes closed-[8]3621"]).exit_code:
            return
        time.sleep(0.1)
    raise AssertionError("it still runs")


def test_much_output_comes_whole(node: Node) -> None:
    answer = node.run(["sh", "-c", f"yes 0123456789abcde | head -c {16 * MIB}; yes err | head -c {MIB} >&2"])
    assert (len(answer.stdout), len(answer.stderr)) == (16 * MIB, MIB)
    assert answer.stdout.endswith("0123456789abcde\n")


def test_what_is_no_text_does_not_break_the_answer(node: Node) -> None:
    assert node.run(["printf", "a\\377b"]).stdout == "a\ufffdb"


def test_what_a_command_writes_comes_piece_by_piece_and_byte_by_byte(node: Node) -> None:
    chunks = list(node.stream(["sh", "-c", f"head -c {4 * MIB} /dev/zero; printf 'a\\377b'"]))
    assert b"".join(chunks) == bytes(4 * MIB) + b"a\xffb"
    assert b"".join(node.stream(["printf", "%s", *WORDS])) == "".join(WORDS).encode()


def test_a_stream_may_be_a_conversation(node: Node) -> None:
    if isinstance(node, FakeNode):
        assert list(node.stream(["cat"], stdin=iter([b"one\n", b"two\n"]))) == [b"one\ntwo\n"]
        return
    pieces: SimpleQueue[bytes] = SimpleQueue()
    chunks = node.stream(["cat"], stdin=iter(pieces.get, b""))
    for piece in (b"one\n", b"two\n"):
        pieces.put(piece)
        assert next(chunks) == piece
    pieces.put(b"")
    assert list(chunks) == []


def test_a_stream_that_ends_badly_says_so_at_its_end(node: Node) -> None:
    came = []
    with pytest.raises(CommandFailedError, match="reading from sh failed: sh exited with 3: why") as raised:
        came.extend(node.stream(["sh", "-c", "echo out; echo why >&2; exit 3"]))
    assert (came, raised.value.node) == ([b"out\n"], "alpha")
    with pytest.raises(CommandFailedError, match="no-such-program"):
        list(node.stream(["no-such-program"]))


def test_a_stream_that_does_not_end_is_given_up(node: Node) -> None:
    with pytest.raises(DeadlineError, match="sh had not ended"):
        list(node.stream(["sh", "-c", "sleep 200"], timeout_s=0.5))  # longer than the test may take


@pytest.mark.parametrize("script", ["sleep 200", "sleep 200 & wait"], ids=["itself", "its child"])
def test_a_command_that_does_not_end_is_given_up(node: Node, script: str) -> None:
    with pytest.raises(DeadlineError, match="sh had not ended") as raised:
        node.run(["sh", "-c", script], timeout_s=0.5)
    assert raised.value.node == "alpha"


@pytest.mark.parametrize("script", ["yes | head -c 20000000", "yes | head -c 20000000 >&2"])
def test_a_command_that_writes_too_much_is_refused(node: Node, script: str) -> None:
    with pytest.raises(CommandFailedError, match="sh wrote more than 16 MiB"):
        node.run(["sh", "-c", script], timeout_s=60)


@pytest.mark.parametrize("node", ["ssh", "local"], indirect=True)
@pytest.mark.parametrize("script", ["yes", "yes >&2", "yes | tr -d '\\n'"])
def test_a_command_that_writes_without_end_is_ended(node: Node, script: str) -> None:
    with pytest.raises(CommandFailedError, match="sh wrote more than 16 MiB"):
        node.run(["sh", "-c", script], timeout_s=60)
    assert node.run(["echo", "still", "there"]).stdout == "still there\n"


def test_a_folder_goes_there_and_back(node: Node, tmp_path: Path) -> None:
    source = _folder(tmp_path / "source")
    there, back = tmp_path / "on the node" / "ñ" / "copy", tmp_path / "back"
    node.put(source, str(there))
    assert _listing(there) == _listing(source)
    node.get(str(there), back)
    assert _listing(back) == _listing(source)


def test_a_part_of_a_folder_goes_there(node: Node, tmp_path: Path) -> None:
    source, there = _folder(tmp_path / "source"), tmp_path / "there"
    node.put(source, str(there), only=["-dash", "inner", "inner/empty folder"])
    assert {str(path.relative_to(there)) for path in there.rglob("*")} == {"-dash", "inner", "inner/empty folder"}
    (source / "to dash").symlink_to("-dash")
    node.put(source, str(there), only=["to dash"])
    node.put(source, str(there), only=["to dash"])
    assert (there / "to dash").readlink() == Path("-dash")
    assert (there / "-dash").is_file()
    node.put(source, str(tmp_path / "nothing"), only=[])
    assert list((tmp_path / "nothing").iterdir()) == []


def test_a_link_that_leads_elsewhere_in_a_copy_becomes_its_file(node: Node, tmp_path: Path) -> None:
    source, there = _folder(tmp_path / "source"), tmp_path / "there"
    (tmp_path / "outside").write_bytes(b"elsewhere" * 300_000)
    (tmp_path / "outside").chmod(0o640)
    links = {"absolute": source / "inner/run", "out": tmp_path / "outside", "inner/up": Path("../../outside"),
             "around": Path("../source/inner/run"), "by two": Path("out"), "folder": tmp_path}  # fmt: skip
    for name, to in links.items():
        (source / name).symlink_to(to)
    node.put(source, str(there))
    node.put(source, str(there))  # over what is there
    listed = _listing(there)
    elsewhere = ("file", 0o640, b"elsewhere" * 300_000)
    assert [listed[name] for name in ("out", "inner/up", "by two")] == [elsewhere] * 3
    assert [listed[name] for name in ("absolute", "around")] == [listed["inner/run"]] * 2
    assert [listed[name] for name in ("link", "broken")] == [("link", 0, "inner/run"), ("link", 0, "nowhere")]
    assert (there / "folder").is_symlink(), "what digests leave out is not followed"
    node.put(source, str(tmp_path / "part"), only=["absolute"])
    assert (tmp_path / "part/absolute").is_symlink(), "a list decides on its own"


def test_a_copy_is_added_to_what_is_there(node: Node, tmp_path: Path) -> None:
    source = _folder(tmp_path / "source")
    target = tmp_path / "target"
    target.mkdir()
    (target / "other").write_text("stays")
    (target / "empty.txt").write_text("is overwritten")
    node.put(source, str(target))
    node.put(source, str(target))
    assert (target / "other").read_text() == "stays"
    assert (target / "empty.txt").read_text() == ""


def test_a_file_goes_there_and_back_under_another_name(node: Node, tmp_path: Path) -> None:
    source = tmp_path / "run me; now"
    source.write_bytes(bytes(range(256)) * 10_000)
    source.chmod(0o751)
    there, back = tmp_path / "new" / "there", tmp_path / "newer" / "back"
    node.put(source, str(there))
    assert (there.read_bytes(), there.stat().st_mode & 0o777) == (source.read_bytes(), 0o751)
    node.get(str(there), back)
    assert (back.read_bytes(), back.stat().st_mode & 0o777) == (source.read_bytes(), 0o751)


def test_a_link_that_is_the_source_is_followed(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    node.put(tmp_path / "link", str(tmp_path / "elsewhere" / "copy"))
    assert not (tmp_path / "elsewhere" / "copy").is_symlink()
    assert (tmp_path / "elsewhere" / "copy").read_text() == "content"


def test_an_empty_folder_goes_there_and_back(node: Node, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    node.put(tmp_path / "empty", str(tmp_path / "there"))
    node.get(str(tmp_path / "there"), tmp_path / "back")
    assert (tmp_path / "back").is_dir()
    assert list((tmp_path / "back").iterdir()) == []


def test_what_is_not_there_is_an_error_that_names_it(node: Node, tmp_path: Path) -> None:
    with pytest.raises(OrchError, match="nothing-here") as raised:
        node.get(str(tmp_path / "nothing-here"), tmp_path / "back")
    assert raised.value.node == "alpha"
    assert not (tmp_path / "back").exists()


def test_a_place_that_cannot_be_written_is_an_error(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OrchError) as raised:
        node.put(tmp_path / "file", str(tmp_path / "file" / "below"))
    assert raised.value.node == "alpha"


def _folder(folder: Path) -> Path:
    (folder / "inner" / "empty folder").mkdir(parents=True)
    (folder / "empty.txt").write_text("")
    (folder / "-dash").write_text("begins like an option")
    (folder / "mañana ✓ ; 'x'").write_text("unicode")
    (folder / "inner" / "run").write_text("#!/bin/sh\n")
    (folder / "inner" / "run").chmod(0o755)
    (folder / "inner" / "secret").write_text("x")
    (folder / "inner" / "secret").chmod(0o600)
    (folder / "link").symlink_to("inner/run")
    (folder / "broken").symlink_to("nowhere")
    (folder / ("long-" + "n" * 180)).write_bytes(b"0" * 3_000_000)
    return folder


def _listing(folder: Path) -> dict[str, tuple[str, int, str | bytes]]:
    found: dict[str, tuple[str, int, str | bytes]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", 0, str(path.readlink()))
        elif path.is_dir():
            found[name] = ("folder", path.stat().st_mode & 0o777, "")
        else:
            found[name] = ("file", path.stat().st_mode & 0o777, path.read_bytes())
    return found


def test_a_name_as_an_address_is_resolved_on_the_controller(node: Node) -> None:
    """`localhost` as MASTER_ADDR would lead every other machine to itself, and not be found to do so."""
    assert node.address == "127.0.0.1"
    local = LocalNode("here", "localhost")
    assert local.address == "127.0.0.1"
    with pytest.raises(NodeUnreachableError, match=r"nowhere\.invalid has no IPv4 address"):
        assert LocalNode("here", "nowhere.invalid").address
