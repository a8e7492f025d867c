//! The tournament of pairs, and who is named as culprit.

use std::collections::BTreeSet;

use super::*;

/// All pairs of this many nodes, each with its bandwidth.
fn figures(nodes: u32, mib_s: impl Fn(u32, u32) -> f64) -> Vec<PairMeasurement> {
    let all = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
        .map(|(from, to)| PairMeasurement {
            from,
            to,
            mib_s: Some(mib_s(from, to)),
            ..PairMeasurement::default()
        })
        .collect()
}

fn rate(from: u32, to: u32, mib_s: f64) -> PairRate {
    PairRate { from, to, mib_s }
}

fn on() -> BandwidthOptions {
    BandwidthOptions {
        seconds: 1.0,
        ..BandwidthOptions::default()
    }
}

#[test]
fn every_node_meets_every_other_once_and_none_twice_in_a_round() {
    for nodes in 2..=64 {
        let mut met = BTreeSet::new();
        for round in 0..rounds(nodes) {
            let mut busy = BTreeSet::new();
            for (a, b) in pairs(nodes, round) {
                assert!(a < b && b < nodes, "{a}–{b} of {nodes}");
                assert!(busy.insert(a) && busy.insert(b), "{nodes} nodes, round {round}");
                assert!(met.insert((a, b)), "{a}–{b} met before");
            }
        }
        assert_eq!(met.len() as u32, nodes * (nodes - 1) / 2);
    }
}

#[test]
fn many_nodes_meet_as_many_others_as_can_be_kept() {
    assert_eq!((rounds(0), rounds(1), pairs(1, 0)), (0, 0, vec![]));
    for nodes in [65, 200, 1_024] {
        let kept: usize = (0..rounds(nodes))
            .map(|round| 2 * pairs(nodes, round).len())
            .sum();
        assert!(
            kept <= FIGURES_MAX as usize && rounds(nodes) >= 4,
            "{nodes}: {kept}"
        );
    }
}

#[test]
fn a_node_that_is_slow_with_everybody_is_the_culprit_however_few_there_are() {
    for nodes in [3, 4, 5, 16] {
        for bad in 0..nodes {
            let judged = judge(
                &figures(
                    nodes,
                    |from, to| if from == bad || to == bad { 20.0 } else { 1_000.0 },
                ),
                &on(),
            );
            let culprit = Culprit {
                node: bad,
                best_mib_s: 20.0,
                ways: (true, true),
            };
            assert_eq!(judged.culprits, [culprit], "of {nodes}");
            assert_eq!((judged.slow, judged.usual_mib_s), (vec![], Some(1_000.0)));
        }
    }
}

#[test]
fn a_node_that_only_sends_slowly_is_told_apart_and_so_is_a_single_pair() {
    let sender = judge(&figures(4, |from, _| if from == 2 { 5.0 } else { 900.0 }), &on());
    assert_eq!(sender.culprits.len(), 1);
    assert_eq!(
        (sender.culprits[0].node, sender.culprits[0].ways),
        (2, (true, false))
    );
    let pair = judge(
        &figures(4, |from, to| if (from, to) == (1, 3) { 5.0 } else { 900.0 }),
        &on(),
    );
    assert_eq!((pair.culprits.len(), pair.slow), (0, vec![rate(1, 3, 5.0)]));
    assert_eq!(pair.slowest, Some(rate(1, 3, 5.0)));
}

#[test]
fn two_nodes_have_no_culprit_but_the_configured_minimum_applies() {
    let even = figures(2, |_, _| 100.0);
    assert_eq!(judge(&even, &on()).slow, []);
    let options = BandwidthOptions {
        min_mib_s: Some(200.0),
        ..on()
    };
    let judged = judge(&even, &options);
    assert_eq!((judged.slow.len(), judged.culprits.len()), (2, 0));
    let one_way = judge(&figures(2, |from, _| if from == 0 { 10.0 } else { 100.0 }), &on());
    assert_eq!(one_way.slow, [rate(0, 1, 10.0)]);
}

#[test]
fn just_below_a_quarter_is_slow_and_a_quarter_is_not() {
    let with = |mib_s: f64| {
        judge(
            &figures(5, |from, to| if (from, to) == (0, 1) { mib_s } else { 400.0 }),
            &on(),
        )
    };
    assert_eq!((with(100.0).slow.len(), with(99.0).slow.len()), (0, 1));
    assert_eq!(judge(&[], &on()), Judgement::default());
}

#[test]
fn a_missing_measurement_is_no_figure_and_a_blocked_connection_is_zero() {
    let mut figures = figures(3, |_, _| 100.0);
    figures[0].mib_s = None;
    assert_eq!(judge(&figures, &on()).slow, []);
    figures[0].mib_s = Some(0.0);
    assert_eq!(judge(&figures, &on()).slow, [rate(0, 1, 0.0)]);
}

#[test]
fn the_options_are_a_word_a_number_or_a_table() {
    let read = |text: &str| serde_json::from_str::<BandwidthOptions>(text).expect("options");
    assert!(read("false").is_off() && BandwidthOptions::default().is_off());
    assert_eq!(read("true").one_way_ms(), 500);
    assert_eq!(read("0.5").one_way_ms(), 250);
    let table = read(r#"{"min_mib_s": 900, "refuse": true}"#);
    assert_eq!(
        (table.seconds, table.min_mib_s, table.refuse),
        (1.0, Some(900.0), true)
    );
    let again = serde_json::to_string(&table).expect("JSON");
    assert_eq!(read(&again), table, "as it is sent on");
    for (text, wrong) in [
        ("1", false),
        ("31", true),
        ("-1", true),
        (r#"{"min_mib_s": 0}"#, true),
    ] {
        assert_eq!(read(text).problem().is_some(), wrong, "{text}");
    }
    assert!(serde_json::from_str::<BandwidthOptions>(r#"{"second": 1}"#).is_err());
}
