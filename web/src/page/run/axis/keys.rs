//! The keys of the time axis: one entry of all lanes can be reached with the tab key, the arrow keys lead to the others.

/// An entry: its id and its left edge in percent.
pub(super) type Stop = (String, f64);

/// Returns the id of the entry that the tab key reaches: the current one if it is still there, else the first.
pub(super) fn current(lanes: &[Vec<Stop>], id: &str) -> String {
    let mut all = lanes.iter().flatten().map(|(id, _)| id);
    let known = all.clone().any(|known| known == id);
    if known {
        id.to_owned()
    } else {
        all.next().cloned().unwrap_or_default()
    }
}

/// Returns the id of the entry to which a key leads from the current one; `None` for other keys and at the ends.
pub(super) fn next(lanes: &[Vec<Stop>], id: &str, key: &str) -> Option<String> {
    let (lane, at) = lanes
        .iter()
        .enumerate()
        .find_map(|(lane, stops)| Some((lane, stops.iter().position(|(known, _)| known == id)?)))?;
    let stops = &lanes[lane];
    let (_, left) = stops[at];
    let stop = match key {
        "ArrowLeft" => stops.get(at.checked_sub(1)?),
        "ArrowRight" => stops.get(at + 1),
        "Home" => stops.first(),
        "End" => stops.last(),
        "ArrowUp" => lanes[..lane].iter().rev().find_map(|stops| nearest(stops, left)),
        "ArrowDown" => lanes[lane + 1..].iter().find_map(|stops| nearest(stops, left)),
        _ => None,
    };
    stop.map(|(id, _)| id.clone())
}

fn nearest(stops: &[Stop], left: f64) -> Option<&Stop> {
    let distance = |stop: &Stop| (stop.1 - left).abs();
    stops.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes() -> Vec<Vec<Stop>> {
        let lane = |stops: &[(&str, f64)]| -> Vec<Stop> {
            stops.iter().map(|(id, left)| ((*id).to_owned(), *left)).collect()
        };
        vec![
            lane(&[("a1", 0.0), ("a2", 60.0)]),
            lane(&[]),
            lane(&[("c1", 10.0), ("c2", 50.0), ("c3", 90.0)]),
        ]
    }

    #[test]
    fn arrows_lead_along_a_lane_and_to_the_nearest_entry_of_the_next_one() {
        for (id, key, expected) in [
            ("a1", "ArrowRight", Some("a2")),
            ("a2", "ArrowRight", None),
            ("a1", "ArrowLeft", None),
            ("a2", "ArrowDown", Some("c2")),
            ("c3", "ArrowUp", Some("a2")),
            ("c1", "ArrowDown", None),
            ("c1", "End", Some("c3")),
            ("c3", "Home", Some("c1")),
            ("c1", "x", None),
            ("gone", "ArrowRight", None),
        ] {
            assert_eq!(next(&lanes(), id, key).as_deref(), expected, "{key} from {id}");
        }
    }

    #[test]
    fn the_tab_key_reaches_an_entry_that_is_there() {
        assert_eq!(current(&lanes(), "c2"), "c2");
        assert_eq!(current(&lanes(), "gone"), "a1");
        assert_eq!(current(&[], "a1"), "");
    }
}
