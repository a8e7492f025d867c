//! Runs the cases.

use super::script::{Case, Expected, parse};
use super::world::{BEGIN_MS, World};
use crate::diagnosis::analysis::{AnalysisOutput, Score};
use crate::diagnosis::draft_finding::word;
use crate::diagnosis::finding::{Culprit, Finding, FindingKind};
use crate::event::Severity;

const FILES: &[(&str, &str)] = &[
    (
        "healthy.test",
        include_str!("../../../testdata/diagnosis/healthy.test"),
    ),
    ("hang.test", include_str!("../../../testdata/diagnosis/hang.test")),
    (
        "learning.test",
        include_str!("../../../testdata/diagnosis/learning.test"),
    ),
    (
        "replicas.test",
        include_str!("../../../testdata/diagnosis/replicas.test"),
    ),
    (
        "straggler.test",
        include_str!("../../../testdata/diagnosis/straggler.test"),
    ),
];

#[test]
fn every_case_finds_what_it_expects_and_nothing_else() {
    let mut failures = Vec::new();
    let mut count = 0;
    for (file, text) in FILES {
        for case in parse(text) {
            count += 1;
            let wrong = run(&case);
            if !wrong.is_empty() {
                failures.push(format!("{file}: {}\n  {}", case.name, wrong.join("\n  ")));
            }
        }
    }
    assert!(count >= 30, "only {count} cases");
    assert!(
        failures.is_empty(),
        "{} of {count} cases:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Returns the differences between the findings and the expectations.
fn run(case: &Case) -> Vec<String> {
    let mut world = World::new(case);
    let mut met_s: Vec<Option<f64>> = vec![None; case.expected.len()];
    let mut wrong: Vec<String> = Vec::new();
    for tick in 0..=(case.watch_s * 2.0) as i64 {
        let now_s = tick as f64 / 2.0;
        let Some(output) = world.tick(tick) else {
            continue;
        };
        for finding in &output.findings {
            let expected = case
                .expected
                .iter()
                .position(|expected| matches(expected, finding));
            if let Some(at) = expected {
                met_s[at].get_or_insert(now_s);
                let is_over = case.expected[at].until_s.is_some_and(|until_s| now_s > until_s);
                if is_over && wrong.is_empty() {
                    wrong.push(format!("still at {now_s} s: {}", case.expected[at].text));
                }
            } else if is_sent(finding) && wrong.is_empty() {
                wrong.push(format!("at {now_s} s unexpected: {}", describe(finding)));
            }
        }
        for score in output.scores.iter().filter(|score| is_of_run(score)) {
            let expected = case.expected.iter().position(|expected| {
                expected.kind == score.metric
                    && expected.cause.as_deref() == score.labels.first().map(|(_, cause)| cause.as_str())
            });
            match expected {
                Some(at) => {
                    met_s[at].get_or_insert(now_s);
                    if case.expected[at].until_s.is_some_and(|until_s| now_s > until_s) {
                        wrong.push(format!("still at {now_s} s: {}", case.expected[at].text));
                    }
                }
                None if score.metric == "diagnosis_loss_rise_ratio" && wrong.is_empty() => {
                    wrong.push(format!("at {now_s} s unexpected: {score:?}"));
                }
                None => {}
            }
        }
        wrong.extend(scores_without_findings(&output));
    }
    for (expected, met_s) in case.expected.iter().zip(met_s) {
        match met_s {
            None => wrong.push(format!("never: {}", expected.text)),
            Some(met_s)
                if expected.by_s.is_some_and(|by_s| met_s > by_s) || met_s < expected.not_before_s =>
            {
                wrong.push(format!("at {met_s} s: {}", expected.text));
            }
            Some(_) => {}
        }
    }
    wrong
}

fn is_sent(finding: &Finding) -> bool {
    !finding.is_suspect && !finding.is_symptom && finding.severity >= Severity::Warning
}

fn scores_without_findings(output: &AnalysisOutput) -> Option<String> {
    let mut scores = output.scores.iter().filter(|score| !is_of_run(score));
    let scored = output.findings.iter().any(|finding| !finding.is_symptom);
    (!scored && scores.next().is_some()).then(|| format!("scores without findings: {:?}", output.scores))
}

/// Returns true if the score is about the whole run and belongs to no finding.
fn is_of_run(score: &Score) -> bool {
    score.metric.starts_with("diagnosis_loss_")
}

fn matches(expected: &Expected, finding: &Finding) -> bool {
    let is = |wanted: &Option<String>, had: String| wanted.as_ref().is_none_or(|wanted| *wanted == had);
    let steps = expected.since_step.is_none_or(|(first, last)| {
        finding
            .since_step
            .is_some_and(|step| (first..=last).contains(&step))
    });
    word(&finding.kind) == expected.kind
        && who(finding) == expected.who
        && is(
            &expected.phase,
            finding.phase.map_or_else(String::new, |phase| word(&phase)),
        )
        && is(&expected.cause, word(&finding.cause))
        && finding.is_suspect == expected.is_suspect
        && (finding.severity == Severity::Info) == expected.is_info
        && !finding.is_symptom
        && steps
}

fn who(finding: &Finding) -> String {
    match &finding.culprit {
        Culprit::Ranks { ranks, .. } => ranks.to_string(),
        Culprit::Node { node, .. } => format!("node {node}"),
        Culprit::Sides { sides } => {
            let sides: Vec<String> = sides.iter().map(ToString::to_string).collect();
            sides.join(" | ")
        }
        Culprit::Unknown => "nobody".to_owned(),
    }
}

fn describe(finding: &Finding) -> String {
    let phase = finding.phase.map_or_else(String::new, |phase| word(&phase));
    format!(
        "{} {} phase {phase} cause {} since {} s, step {:?}: {}",
        word(&finding.kind),
        who(finding),
        word(&finding.cause),
        (finding.since_ms - BEGIN_MS) as f64 / 1e3,
        finding.since_step,
        serde_json::to_string(&finding.witnesses).unwrap_or_default()
    )
}

#[test]
fn a_suspicion_makes_each_request_once() {
    let case = parse("case x\nhalt 2 in forward at 20s\nwatch 120s\n").remove(0);
    let mut world = World::new(&case);
    for tick in 0..240 {
        world.tick(tick);
    }
    let mut requested: Vec<&str> = world
        .requests
        .iter()
        .map(|request| match request {
            crate::diagnosis::analysis::RankRequest::Flight { .. } => "flight",
            crate::diagnosis::analysis::RankRequest::Stacks { .. } => "stacks",
        })
        .collect();
    requested.sort_unstable();
    assert_eq!(requested, ["flight", "stacks"]);
}

#[test]
fn a_silent_rank_of_nccl_stays_named_while_operations_are_read_again() {
    let text = "case x\nbackend nccl\nflights take 5s\nhalt 2 in host at 20s\nrank 2 cpu 1.0\nstack 2 none\n\
        flight 0-1,3 group=0 members=0-3 enqueued=41 waits=41\nflight 2 silent\nwatch 60s\n";
    let case = parse(text).remove(0);
    let mut world = World::new(&case);
    let outputs: Vec<AnalysisOutput> = (0..120).filter_map(|tick| world.tick(tick)).collect();
    let is_hang = |finding: &Finding| finding.kind == FindingKind::Hang;
    let named: Vec<bool> = outputs
        .iter()
        .map(|output| output.findings.iter().any(is_hang))
        .collect();
    let first = named.iter().position(|is_named| *is_named).expect("it is named");
    assert!(
        first < 35 && named[first..].iter().all(|is_named| *is_named),
        "{named:?}"
    );
}

/// Returns the causes of the hangs that are found in each second.
fn causes_of_hangs(world: &mut World<'_>, seconds: std::ops::Range<i64>) -> Vec<Vec<String>> {
    let ticks = seconds.start * 2..seconds.end * 2;
    let outputs = ticks.filter_map(|tick| world.tick(tick));
    let causes = outputs.map(|output| {
        let sent = output.findings.iter().filter(|found| is_sent(found));
        let hangs = sent.filter(|found| found.kind == FindingKind::Hang);
        hangs.map(|found| word(&found.cause)).collect::<Vec<String>>()
    });
    causes.collect()
}

#[test]
fn a_hang_stays_as_it_was_found_while_the_agent_of_a_node_restarts() {
    // The node of all ranks, of the culprit, and of ranks that wait; and a hang without a culprit.
    let one_node = "silent a from 40s until 97s\n";
    let culprit = "ranks 4 on a b\nsilent b from 40s until 97s\n";
    let waiters = "ranks 4 on a b\nsilent a from 40s until 97s\n";
    let all_wait =
        "flight 0-3 group=0 members=0-3 enqueued=41 waits=41 op=all_reduce\nhalt 0-3 in collective at 20s\n";
    for (silent, halt, cause) in [
        (one_node, "halt 2 in forward at 20s stopped\n", "stopped"),
        (one_node, "halt 2 in forward at 20s\n", "not_enqueued"),
        (culprit, "halt 3 in forward at 20s stopped\n", "stopped"),
        (culprit, "halt 3 in forward at 20s\n", "not_enqueued"),
        (waiters, "halt 3 in forward at 20s stopped\n", "stopped"),
        (one_node, all_wait, "unknown"),
        (culprit, all_wait, "unknown"),
    ] {
        let case = parse(&format!("case x\n{silent}{halt}watch 120s\n")).remove(0);
        let causes = causes_of_hangs(&mut World::new(&case), 0..120);
        let kept = causes[39..].iter().all(|causes| *causes == [cause]);
        assert!(kept, "{silent}{halt}{:?}", &causes[39..]);
    }
}

#[test]
fn a_hang_ends_a_minute_after_its_node_was_last_heard() {
    let text = "case x\nhalt 2 in forward at 20s stopped\nsilent a from 40s\nwatch 110s\n";
    let case = parse(text).remove(0);
    let causes = causes_of_hangs(&mut World::new(&case), 0..110);
    assert_eq!(causes[98], ["stopped"]);
    assert_eq!(causes[102], [] as [&str; 0]);
}

#[test]
fn a_hang_that_is_kept_ends_when_a_rank_of_another_node_moves() {
    let text = "case x\nranks 4 on a b\nhalt 3 in forward at 20s stopped\nsilent b from 40s\nwatch 60s\n";
    let case = parse(text).remove(0);
    let mut world = World::new(&case);
    let causes = causes_of_hangs(&mut world, 0..50);
    assert_eq!(causes[49], ["stopped"]);
    world.show_move(0, 99);
    assert_eq!(causes_of_hangs(&mut world, 50..51), [[] as [String; 0]]);
}

/// Returns a world of the case after 40 s, and the hang that is found in it.
fn hanging(case: &Case) -> (World<'_>, Finding) {
    let mut world = World::new(case);
    let mut found = Vec::new();
    for tick in 0..80 {
        if let Some(output) = world.tick(tick) {
            found = output.findings;
        }
    }
    let hang = found.into_iter().find(|found| found.kind == FindingKind::Hang);
    (world, hang.expect("a hang"))
}

#[test]
fn a_hang_stays_as_it_was_found_when_the_collector_restarts() {
    for (lines, cause) in [
        ("halt 2 in forward at 20s stopped\n", "stopped"),
        ("halt 2 in forward at 20s\n", "not_enqueued"),
        // After the restart, ranks may be before their first step. There, such a rank would be healthy.
        (
            "halt 2 in forward at 20s\nrank 2 cpu 1.0\nstack 2 loop\n",
            "not_enqueued",
        ),
        (
            "ranks 4 on a b\nsilent b from 40s until 55s\nhalt 3 in forward at 20s\n",
            "not_enqueued",
        ),
        (
            "silent a from 40s until 55s\nhalt 2 in forward at 20s\n",
            "not_enqueued",
        ),
        (
            "flight 0-3 group=0 members=0-3 enqueued=41 waits=41\nhalt 0-3 in collective at 20s\n",
            "unknown",
        ),
    ] {
        let case = parse(&format!("case x\n{lines}watch 130s\n")).remove(0);
        let (mut world, hang) = hanging(&case);
        world.restart(&hang);
        let causes = causes_of_hangs(&mut world, 40..130);
        let stays = causes.iter().all(|causes| *causes == [cause]);
        assert!(stays, "{lines}{causes:?}");
        world.show_move(0, 259);
        world.show_move(2, 259);
        assert_eq!(
            causes_of_hangs(&mut world, 130..131),
            [[] as [String; 0]],
            "{lines}"
        );
    }
}

#[test]
fn a_hang_from_before_a_restart_ends_when_a_rank_has_moved_or_its_node_stays_silent() {
    let text = "case x\nhalt 2 in forward at 20s\nwatch 60s\n";
    let case = parse(text).remove(0);
    let (mut world, mut hang) = hanging(&case);
    hang.since_ms -= 5_000;
    world.restart(&hang);
    assert_eq!(causes_of_hangs(&mut world, 40..42), [[] as [String; 0], []]);
    for nodes in ["silent a from 40s\n", "ranks 4 on a b\nsilent b from 40s\n"] {
        let text = format!("case x\n{nodes}halt 3 in forward at 20s stopped\nwatch 120s\n");
        let case = parse(&text).remove(0);
        let (mut world, hang) = hanging(&case);
        world.restart(&hang);
        let causes = causes_of_hangs(&mut world, 40..110);
        assert_eq!(causes[58], ["stopped"], "{nodes}");
        assert!(
            causes[62].iter().all(|cause| cause != "stopped"),
            "{nodes}{causes:?}"
        );
    }
}

#[test]
fn a_save_of_the_usual_length_is_not_reported_after_a_restart_of_the_collector() {
    let text = "case x\nhalt 0 in save at 30s uninterruptible\nwatch 130s\n";
    let case = parse(text).remove(0);
    for (longest_s, expected) in [(0.0, Severity::Warning), (30.0, Severity::Info)] {
        let mut world = World::new(&case);
        world.set_longest_alone(longest_s);
        let mut severity = None;
        for tick in 0..200 {
            let findings = world.tick(tick).map(|output| output.findings);
            let mut alone = findings.into_iter().flatten();
            let alone = alone.find(|found| found.kind == FindingKind::WorksAlone);
            severity = alone.map(|found| found.severity).or(severity);
        }
        assert_eq!(severity, Some(expected), "after 70 s, before {longest_s} s");
    }
}

#[test]
fn findings_read_back_as_they_were_written() {
    let case = parse("case x\nhalt 2 in forward at 20s stopped\nwatch 40s\n").remove(0);
    let mut world = World::new(&case);
    let findings: Vec<Finding> = (0..80)
        .filter_map(|tick| world.tick(tick))
        .flat_map(|output| output.findings)
        .collect();
    assert!(!findings.is_empty());
    let text = serde_json::to_string(&findings).expect("findings");
    let back: Vec<Finding> = serde_json::from_str(&text).expect("the same");
    assert_eq!(back, findings);
    let newer = text.replace("\"stopped\"", "\"petrified\"");
    let back: Vec<Finding> = serde_json::from_str(&newer).expect("a cause of a newer version");
    assert_eq!(word(&back[0].cause), "petrified");
}
