//! Rule files that are part of Lockstep: `crates/domain/rules/*.yaml`.

/// `(file name, contents)`.
pub const FILES: &[(&str, &str)] = &[
    ("indicators.yaml", include_str!("../../rules/indicators.yaml")),
    ("training.yaml", include_str!("../../rules/training.yaml")),
    ("learning.yaml", include_str!("../../rules/learning.yaml")),
    ("memory.yaml", include_str!("../../rules/memory.yaml")),
    ("runs.yaml", include_str!("../../rules/runs.yaml")),
    ("collectives.yaml", include_str!("../../rules/collectives.yaml")),
    ("diagnosis.yaml", include_str!("../../rules/diagnosis.yaml")),
    ("hardware.yaml", include_str!("../../rules/hardware.yaml")),
    ("run_hardware.yaml", include_str!("../../rules/run_hardware.yaml")),
    ("lockstep.yaml", include_str!("../../rules/lockstep.yaml")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Severity;
    use crate::incident::action::{ACTIONS_ANNOTATION, Hint};
    use crate::rule::RuleFile;

    #[test]
    fn every_shipped_rule_says_what_why_and_what_to_do() {
        let mut names = std::collections::BTreeSet::new();
        for (file, text) in FILES {
            let rules = RuleFile::parse(text).unwrap_or_else(|error| panic!("{file}: {error:?}"));
            for rule in rules.groups.iter().flat_map(|group| &group.rules) {
                if !rule.is_alert() {
                    continue;
                }
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
    }
}
