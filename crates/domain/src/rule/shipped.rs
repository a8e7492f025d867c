//! Rule files that are part of Lockstep: `crates/domain/rules/*.yaml`.

use super::{Rule, RuleFile};

/// `(file name, contents)`.
pub const FILES: &[(&str, &str)] = &[
    ("indicators.yaml", include_str!("../../rules/indicators.yaml")),
    ("training.yaml", include_str!("../../rules/training.yaml")),
    ("learning.yaml", include_str!("../../rules/learning.yaml")),
    ("memory.yaml", include_str!("../../rules/memory.yaml")),
    ("runs.yaml", include_str!("../../rules/runs.yaml")),
    ("collectives.yaml", include_str!("../../rules/collectives.yaml")),
    ("network.yaml", include_str!("../../rules/network.yaml")),
    ("diagnosis.yaml", include_str!("../../rules/diagnosis.yaml")),
    ("hardware.yaml", include_str!("../../rules/hardware.yaml")),
    ("run_hardware.yaml", include_str!("../../rules/run_hardware.yaml")),
    ("lockstep.yaml", include_str!("../../rules/lockstep.yaml")),
];

/// Returns the alerting rules of all files, in the order of [`FILES`].
///
/// # Panics
/// Panics if a file cannot be parsed. A test parses all of them.
pub fn alerts() -> impl Iterator<Item = Rule> {
    let files = FILES
        .iter()
        .map(|(name, text)| RuleFile::parse(text).unwrap_or_else(|error| panic!("{name}: {error:?}")));
    let rules = files.flat_map(|file| file.groups).flat_map(|group| group.rules);
    rules.filter(Rule::is_alert)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::clock_reasons;
    use crate::event::Severity;
    use crate::incident::action::{ACTIONS_ANNOTATION, Hint};

    #[test]
    fn each_shipped_alert_has_a_severity_texts_evidence_and_valid_actions() {
        let mut names = std::collections::BTreeSet::new();
        for rule in alerts() {
            let severity = rule.labels.get("severity").map(|text| format!("{text:?}"));
            let severity: Result<Severity, _> = serde_json::from_str(&severity.unwrap_or_default());
            assert!(severity.is_ok(), "{}: severity", rule.name);
            for needed in ["summary", "cause", "advice"] {
                assert!(rule.annotations.contains_key(needed), "{}: {needed}", rule.name);
            }
            assert!(rule.evidence().next().is_some(), "{}: evidence", rule.name);
            let actions = rule.annotations.get(ACTIONS_ANNOTATION);
            let read = Hint::read(actions.map_or("", String::as_str));
            assert!(read.is_ok(), "{}: {read:?}", rule.name);
            assert!(names.insert(rule.name.clone()), "{} twice", rule.name);
        }
    }

    #[test]
    fn a_throttled_gpu_has_the_same_words_for_its_reason_as_a_finding() {
        let rule = alerts()
            .find(|rule| rule.name == "GpuThrottled")
            .expect("shipped");
        let reasons = [
            "hw_thermal_slowdown",
            "sw_thermal_slowdown",
            "hw_power_brake",
            "hw_slowdown",
        ];
        for reason in reasons {
            assert!(rule.expr.contains(reason), "{reason}");
            let written = format!("\"{reason}\" }}}}{}{{{{", clock_reasons::words(reason));
            assert!(rule.annotations["summary"].contains(&written), "{written}");
        }
    }
}
