//! The step in a checkpoint's name.

/// Words before the number that mark it as a step, strongest first.
const WORDS: [&str; 6] = ["global_step", "step", "iter", "checkpoint", "ckpt", "it"];

/// Returns the step in a name: 120 for `step-120`, `ckpt_120.pth`, `epoch=3-step=120.ckpt`, `checkpoint-120` and `global_step120`. A bare
/// number counts, the number of an epoch does not.
#[must_use]
pub fn step_of_name(name: &str) -> Option<u64> {
    let name = name.to_ascii_lowercase();
    WORDS
        .iter()
        .find_map(|word| number_behind(&name, word))
        .or_else(|| bare(&name))
}

fn number_behind(name: &str, word: &str) -> Option<u64> {
    let mut found = None;
    for (at, _) in name.match_indices(word) {
        let begins_inside = name[..at].ends_with(|c: char| c.is_ascii_alphabetic());
        let rest = name[at + word.len()..].trim_start_matches(['-', '_', '=', '.', ' ']);
        if !begins_inside && let Some(step) = leading_number(rest) {
            found = Some(step);
        }
    }
    found
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

fn bare(name: &str) -> Option<u64> {
    let stem = name.split('.').next().unwrap_or(name);
    stem.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_names() {
        for (name, step) in [
            ("step-120", Some(120)),
            ("step_000120.pt", Some(120)),
            ("ckpt_120.pth", Some(120)),
            ("epoch=3-step=120.ckpt", Some(120)),
            ("checkpoint-120", Some(120)),
            ("global_step120", Some(120)),
            ("iter_0000120", Some(120)),
            ("checkpoint_step_120_loss_2.5.pt", Some(120)),
            ("step120.pt.tmp", Some(120)),
            ("120.pt", Some(120)),
            ("120", Some(120)),
            ("epoch_3.pt", None),
            ("model.pt", None),
            ("footstep-7", None),
            ("step-", None),
            ("step-99999999999999999999999", None),
            ("", None),
        ] {
            assert_eq!(step_of_name(name), step, "{name}");
        }
    }
}
