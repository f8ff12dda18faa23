"""Pipelines on disk: files that cannot be read, and functions of steps that do not exist."""

from pathlib import Path

import pytest

from barnabas.net.programs.pipeline.files import MAX_FILE_BYTES, PipelineFileError, read_pipeline

TEXT = """\
name = "p"
[source]
topics = ["t"]
value = { format = "text" }
[[steps]]
python = "my_steps:only_errors"
[sink]
console = true
"""


def problem_of(path: Path) -> str:
    with pytest.raises(PipelineFileError) as caught:
        read_pipeline(path)
    (problem,) = caught.value.problems
    return problem


def test_a_function_beside_the_file_is_found_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(TEXT)
    (tmp_path / "my_steps.py").write_text("raise SystemExit(3)\ndef only_errors(rows): ...\n")
    found = read_pipeline(tmp_path / "p.toml")
    assert found.base == tmp_path.resolve() and found.state_folder().path == tmp_path / "barnabas-pipelines/p"


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (None, "there is no module my_steps: write my_steps.py beside the pipeline"),
        ("def only_eror(rows): ...", "my_steps.py has no function only_errors (did you mean only_eror?)"),
        ("def (", "my_steps.py cannot be read as Python: invalid syntax"),
    ],
)
def test_a_function_that_does_not_exist(tmp_path: Path, module: str | None, told: str) -> None:
    (tmp_path / "p.toml").write_text(TEXT)
    if module is not None:
        (tmp_path / "my_steps.py").write_text(module)
    problem = problem_of(tmp_path / "p.toml")
    assert problem.startswith(f"{tmp_path / 'p.toml'}:6:1: steps[1].python: {told}")


def test_an_imported_function_is_found(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(TEXT)
    (tmp_path / "my_steps.py").write_text("from elsewhere import f as only_errors\n")
    assert len(read_pipeline(tmp_path / "p.toml").spec.steps) == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert problem_of(tmp_path / "none.toml").endswith("none.toml: cannot be read: No such file or directory")
    assert "cannot be read: Is a directory" in problem_of(tmp_path)
    (tmp_path / "b.toml").write_bytes(b"\xff")
    assert "is not UTF-8 text" in problem_of(tmp_path / "b.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    assert "larger than" in problem_of(tmp_path / "large.toml")
