"""The mesh of a script that does not report it."""

import pytest
import recipes
from conftest import SCRIPTS

WORLD = 4


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("named", {rank: [(["replicate", "shard"], [2, 2], [rank // 2, rank % 2])] for rank in range(WORLD)}),
        ("by-hand", {rank: [(None, [4], [rank]), (None, [2, 2, 1], [(3 - rank) // 2, (3 - rank) % 2, 0])] for rank in range(WORLD)}),
        ("part", {}),
    ],
)
def test_a_mesh_over_all_ranks_is_told_by_each_of_them(ranks, tmp_path, kind, told):
    watched = ranks(SCRIPTS / "meshes.py", kind, count=WORLD)
    assert watched.code == 0, watched.output
    found = {}
    for record in watched.of("mesh"):
        found.setdefault(record["rank"], []).append((record.get("axes"), record["sizes"], record["coordinates"]))
    assert found == told
    assert not any("failed inside" in note for bye in watched.of("bye") for note in bye.get("notes", [])), watched.of("bye")
    alone = recipes.run(tmp_path, SCRIPTS / "meshes.py", kind, ranks=WORLD)
    assert alone.code == 0, alone.output
    assert sorted(alone.output.splitlines()) == sorted(watched.output.splitlines())
