//! 8,000 ranks in one attempt: tests that the cost is bounded.

use super::script::parse;
use super::world::World;

#[test]
fn one_of_many_ranks_is_found() {
    let case = parse("case x\nranks 1000 on a b c d\nslow 377 forward +60ms from 5s\nwatch 40s\n").remove(0);
    let mut world = World::new(&case);
    let last = (0..80)
        .filter_map(|tick| world.tick(tick))
        .last()
        .expect("output");
    let named: Vec<_> = last.scores.iter().filter_map(|score| score.rank).collect();
    assert!(
        !named.is_empty() && named.iter().all(|rank| rank.0 == 377),
        "{named:?}"
    );
}
