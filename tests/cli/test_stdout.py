"""Standard output is for results: what an environment prints while it is trained goes elsewhere."""

from __future__ import annotations

import os

from sherd.cli.train import prints_to_stderr


def test_prints_are_turned_away_from_the_result(capfd):
    with prints_to_stderr():
        os.write(1, b"HELLO FROM ENV\n")
    os.write(1, b"{}\n")
    out, err = capfd.readouterr()
    assert (out, err) == ("{}\n", "HELLO FROM ENV\n")
