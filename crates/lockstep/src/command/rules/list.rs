//! `lockstep rules list`: one line per rule.

use domain::api::alerts::{RuleKind, RuleView};

use crate::table;

pub(super) fn print(rules: &[RuleView]) {
    let rows: Vec<_> = rules
        .iter()
        .map(|rule| vec![rule.group.clone(), rule.name.clone(), state(rule)])
        .collect();
    table::print(&["GROUP", "RULE", "STATE"], &rows);
}

fn state(rule: &RuleView) -> String {
    let firing = rule
        .alerts
        .iter()
        .filter(|alert| alert.fired_ms.is_some())
        .count();
    match (&rule.error, firing, rule.alerts.len()) {
        (Some(error), ..) => format!("error: {error}"),
        (None, ..) if rule.kind == RuleKind::Recording => "recording".to_owned(),
        (None, 0, 0) => "inactive".to_owned(),
        (None, firing, all) => format!("{firing} firing, {} pending", all - firing),
    }
}
