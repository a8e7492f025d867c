//! A scenario file: what happens to a node, one incident per line, at times counted from the start of the simulation.
//!
//! ```text
//! # A comment, to the end of the line.
//! AT   SCENARIO   [KEY=VALUE …]
//!
//! 30s  throttle   gpu=3 for=2m          GPU 3 is too hot for two minutes
//! 1m   link-down  gpu=1 link=5          its sixth NVLink goes down and stays down
//! 90s  xid        gpu=1 code=74
//! 2m   idle       for=30s               the job is not running for half a minute
//! ```
//!
//! Scenarios and keys are those of a one-line specification (`spec.rs`), except those of the machine. `idle` is a pause of the job.
//! `node=K` limits a line to one node of a cluster. Lines may overlap and may be in any order, but the same part of the same GPU cannot
//! fail twice at the same time.

use super::incident::Incident;
use super::options::{Options, parse_duration};
use super::profile::Profile;
use super::spec::{NODES_MAX, SpecError};

const KEYS: [&str; 13] = [
    "gpu",
    "for",
    "code",
    "link",
    "rate",
    "delay",
    "reason",
    "where",
    "width",
    "generation",
    "to",
    "instances",
    "node",
];

/// The maximum number of incidents, more than a hand-written file has. Each is compared with each other one.
const INCIDENTS_MAX: usize = 1_000;

/// Parses the text of a scenario file. An error names the file and the line.
pub(crate) fn parse(
    path: &str,
    text: &str,
    profile: &'static Profile,
    count: u32,
) -> Result<Vec<Incident>, SpecError> {
    let mut found: Vec<(usize, Incident)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let refused = |why: String| SpecError::Line {
            path: path.to_owned(),
            line: number,
            why,
        };
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(at) = words.next() else { continue };
        let incident = parse_line(at, words, profile, count).map_err(|error| refused(error.to_string()))?;
        if let Some((earlier, _)) = found.iter().find(|(_, other)| incident.clashes_with(other)) {
            return Err(refused(format!(
                "it overlaps with the same incident of the same GPU, started by line {earlier}; end that one with for=, or start this one later"
            )));
        }
        if found.len() == INCIDENTS_MAX {
            return Err(refused(format!(
                "a scenario has at most {INCIDENTS_MAX} incidents; leave some out"
            )));
        }
        found.push((number, incident));
    }
    Ok(found.into_iter().map(|(_, incident)| incident).collect())
}

fn parse_line<'a>(
    at: &str,
    mut words: impl Iterator<Item = &'a str>,
    profile: &'static Profile,
    count: u32,
) -> Result<Incident, SpecError> {
    let start = parse_duration(at).ok_or_else(|| SpecError::Value {
        key: "AT",
        value: at.to_owned(),
        expected: "a line to begin with the time since the start, such as 0s, 500ms, 30s or 2m".to_owned(),
    })?;
    let name = words.next().unwrap_or_default();
    let mut options = Options::collect(words, &KEYS)?;
    let node = options.number("node", 0, NODES_MAX)?;
    let incident = Incident::parse(name, start, profile, count, &mut options)?;
    options.must_be_empty(name)?;
    Ok(Incident { node, ..incident })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::engine::fault::{FaultKind, Slowdown, Window};
    use crate::engine::incident::IncidentKind;

    fn read(text: &str) -> Result<Vec<Incident>, SpecError> {
        parse("day.scenario", text, Profile::named("h100").unwrap(), 8)
    }

    #[test]
    fn lines_are_incidents() {
        let text = "\n# A day.\n30s throttle gpu=3 for=2m # hot\n\n\t500ms  xid   code=31 gpu=0-1 node=2\n10s idle for=1s";
        let incidents = read(text).unwrap();
        let expected = [
            (
                IncidentKind::Fault(FaultKind::Throttle(Slowdown::Thermal)),
                30.0,
                150.0,
                vec![3],
                None,
            ),
            (
                IncidentKind::Fault(FaultKind::Xid(31)),
                0.5,
                f64::INFINITY,
                vec![0, 1],
                Some(2),
            ),
            (IncidentKind::Pause, 10.0, 11.0, (0..8).collect(), None),
        ];
        for (incident, (kind, start, end, gpus, node)) in incidents.iter().zip(expected) {
            let window = Window { start, end };
            assert_eq!(
                *incident,
                Incident {
                    kind,
                    window,
                    gpus,
                    node
                }
            );
        }
        assert_eq!(incidents.len(), 3);
        assert!(incidents[1].is_on(2) && !incidents[1].is_on(0) && incidents[0].is_on(0));
        assert_eq!(read("# nothing\n").unwrap(), []);
    }

    #[test]
    fn refusals_name_the_line_and_what_is_allowed() {
        for (text, line, expected) in [
            ("throttle gpu=3", 1, "a line to begin with the time"),
            ("\n\n30 throttle", 3, "such as 0s, 500ms"),
            ("5s", 1, "no scenario \"\"; use one of"),
            ("5s healthy", 1, "no scenario \"healthy\""),
            ("5s lost\n6s burn", 2, "no scenario \"burn\""),
            ("5s lost gpu", 1, "\"gpu\" is not KEY=VALUE"),
            ("5s lost after=3s", 1, "no key \"after\"; the keys are gpu, for"),
            ("5s lost gpu=8", 1, "a number from 0 to 7"),
            ("5s lost code=3", 1, "means nothing for scenario \"lost\""),
            ("5s lost gpu=1\n9s hang gpu=1\n9s lost gpu=0-3", 3, "by line 1"),
            ("5s throttle for=5s\n9s throttle reason=power", 2, "by line 1"),
            ("5s driver-reload for=9s\n9s driver-mismatch", 2, "by line 1"),
            ("5s idle\n9s idle for=1s", 2, "by line 1"),
        ] {
            let message = read(text).expect_err(text).to_string();
            assert!(
                message.starts_with(&format!("day.scenario, line {line}: ")),
                "{message}"
            );
            assert!(
                message.contains(expected),
                "{text:?} gave {message:?}, without {expected:?}"
            );
        }
    }

    #[test]
    fn what_does_not_touch_is_allowed() {
        for text in [
            "5s throttle for=5s\n10s throttle",
            "5s lost gpu=1\n5s lost gpu=2",
            "5s lost node=0\n5s lost node=1",
            "5s link-down link=1\n5s link-down link=2",
            "5s xid code=31\n5s xid code=31",
            "5s hang\n5s throttle",
        ] {
            assert_eq!(read(text).unwrap().len(), 2, "{text:?}");
        }
    }

    #[test]
    fn a_file_has_an_end() {
        let text = "1s xid code=31\n".repeat(INCIDENTS_MAX);
        assert_eq!(read(&text).unwrap().len(), INCIDENTS_MAX);
        let error = read(&format!("{text}1s xid code=31")).unwrap_err().to_string();
        assert!(
            error.contains("line 1001: a scenario has at most 1000"),
            "{error}"
        );
    }
}
