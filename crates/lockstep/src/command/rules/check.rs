//! `lockstep rules check`: reports every mistake in every file.

use collector::diagnose::files;
use domain::rule::RuleFile;
use domain::rule::definition::duplicates;

use crate::failure::Failure;

/// Checks all files. Fails at the end if a file is not usable.
pub(super) fn all(patterns: &[String], lint_fatal: bool) -> Result<(), Failure> {
    let mut bad = 0_usize;
    for pattern in patterns {
        let paths = files::matching(pattern).map_err(|mistake| Failure::Failed(anyhow::anyhow!(mistake)))?;
        if paths.is_empty() {
            return Err(Failure::Failed(anyhow::anyhow!("no file matches {pattern}")));
        }
        for path in paths {
            let name = path.display();
            match files::read(&path) {
                Ok(file) => bad += usize::from(report(&name.to_string(), &file) && lint_fatal),
                Err(mistakes) => {
                    bad += 1;
                    for mistake in mistakes {
                        eprintln!("{name}: {mistake}");
                    }
                }
            }
        }
    }
    match bad {
        0 => Ok(()),
        1 => Err(Failure::Failed(anyhow::anyhow!("1 file is invalid"))),
        bad => Err(Failure::Failed(anyhow::anyhow!("{bad} files are invalid"))),
    }
}

/// Prints a summary of a usable file. Returns true if some of its rules have the same name and labels.
fn report(name: &str, file: &RuleFile) -> bool {
    let (recording, alerting) = file.counts();
    say!(
        "{name}: {} rules, all valid ({alerting} alerting, {recording} recording, {} groups)",
        recording + alerting,
        file.groups.len()
    );
    let twice = duplicates(file.groups.iter().flat_map(|group| &group.rules));
    for (rule, count) in &twice {
        let labels: Vec<String> = rule
            .labels
            .iter()
            .map(|(name, value)| format!("{name}={value:?}"))
            .collect();
        let name = &rule.name;
        say!(
            "  warning: {count} rules have the name {name:?} and the labels {{{}}}; their results cannot be told apart",
            labels.join(", ")
        );
    }
    !twice.is_empty()
}
