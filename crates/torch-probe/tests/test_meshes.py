"""The mesh of a script that does not report it. The ranks are forked: a test of the recipes sees a mesh under torchrun."""

import pytest
import recipes
from conftest import SCRIPTS
from knobbed import script

WORLD = 4


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("named", {rank: [(["replicate", "shard"], [2, 2], [rank // 2, rank % 2])] for rank in range(WORLD)}),
        ("by-hand", {rank: [(None, [4], [rank]), (None, [2, 2, 1], [(3 - rank) // 2, (3 - rank) % 2, 0])] for rank in range(WORLD)}),
        ("part", {}),
    ],
)
def test_a_mesh_over_all_ranks_is_told_by_each_of_them(knobbed, tmp_path, kind, told):
    watched = knobbed(script(SCRIPTS / "meshes.py", kind), count=WORLD)
    found = {}
    for record in watched.listener.of("mesh"):
        found.setdefault(record["rank"], []).append((record.get("axes"), record["sizes"], record["coordinates"]))
    assert found == told
    byes = watched.listener.of("bye")
    assert len(byes) == WORLD and not any("failed inside" in note for bye in byes for note in bye.get("notes", [])), byes
    alone = recipes.run(tmp_path / "alone", SCRIPTS / "meshes.py", kind, ranks=WORLD)
    assert alone.code == 0, alone.output
    assert sorted(alone.output.splitlines()) == sorted("".join(watched.results).splitlines())
