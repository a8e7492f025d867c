//! Tests the ring with every order in which its threads can run and their writes can become visible, as loom finds them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

/// Loom's atomics, which the model controls.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../src/ring.rs"]
mod ring;

use loom::sync::Arc;
use loom::thread;

use ring::Ring;

#[test]
fn nothing_is_torn_lost_or_doubled() {
    loom::model(|| {
        let ring = Arc::new(Ring::<2>::new(2));
        let pushers = [1, 2].map(|record| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.push([record, record * 10]))
        });
        let mut popped = Vec::new();
        popped.extend(ring.pop());
        let pushed: Vec<bool> = pushers.into_iter().map(|pusher| pusher.join().unwrap()).collect();
        popped.extend(std::iter::from_fn(|| ring.pop()));
        assert_eq!(pushed, [true, true]);
        popped.sort_unstable();
        assert_eq!(popped, [[1, 10], [2, 20]]);
    });
}

#[test]
fn a_full_ring_refuses_and_has_room_again_in_the_next_turn() {
    loom::model(|| {
        let ring = Arc::new(Ring::<1>::new(1));
        assert!(ring.push([1]));
        let pusher = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.push([2]))
        };
        let first = ring.pop();
        let pushed = pusher.join().unwrap();
        assert_eq!(first, Some([1]));
        assert_eq!(ring.pop(), pushed.then_some([2]));
        assert!(ring.push([3]));
        assert!(!ring.push([4]));
    });
}
