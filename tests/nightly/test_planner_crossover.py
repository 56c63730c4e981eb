"""The picture that shows where each method wins."""

import json

from commsched.cli.main import main


def test_the_picture_is_drawn_and_other_kinds_of_file_are_refused(tmp_path, capsys):
    question = ["price", "1000", "--machine", "p3dn.24xlarge", "--nodes", "2", "--lanes", "1"]
    path = tmp_path / "map.png"
    assert main([*question, "--lossless", "--figure", str(path), "--json"]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    told = json.loads(capsys.readouterr().out)
    assert [len(row) for row in told["names"]] == [len(told["rates"])] * len(told["densities"])
    assert main([*question, "--figure", str(tmp_path / "map.bmp")]) == 2
    assert "cannot draw '.bmp' files" in capsys.readouterr().err
