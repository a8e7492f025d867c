//! The stored form of runs, one JSON document each, and of their actions.

use domain::ident::RunId;
use domain::run::spec::Spec;
use domain::run::state::{Action, Machine};
use domain::run::stored::V1;
use rand::RngExt;
use store::state::runs::{RunAction, RunRecord};

use super::error::RunError;

/// Characters of the suffix of a run id: about 29 bits of randomness. There are no vowels, so no words.
const ID_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz23456789";
const ID_LETTERS: usize = 6;

pub(super) fn new_id(spec: &Spec) -> RunId {
    let mut random = rand::rng();
    let letters: String = (0..ID_LETTERS)
        .map(|_| char::from(ID_ALPHABET[random.random_range(0..ID_ALPHABET.len())]))
        .collect();
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
            c
        } else {
            '-'
        }
    };
    let name: String = spec.display_name().chars().take(40).map(allowed).collect();
    let name = name.trim_start_matches(['.', '-']);
    let id = if name.is_empty() {
        format!("run-{letters}")
    } else {
        format!("{name}-{letters}")
    };
    RunId::new(id).expect("letters, digits, '.', '_' and '-' only, beginning with a letter, digit or '_'")
}

pub(super) fn record(machine: &Machine, version: i64) -> Result<RunRecord, RunError> {
    let json = |value: serde_json::Result<serde_json::Value>| {
        value.map_err(|source| RunError::Stored {
            run: machine.id.clone(),
            source,
        })
    };
    Ok(RunRecord {
        id: machine.id.clone(),
        version,
        spec: json(serde_json::to_value(&machine.spec))?,
        machine: json(serde_json::to_value(V1::from(machine)))?,
        summary: machine.into(),
    })
}

pub(super) fn read(record: RunRecord) -> Result<Machine, RunError> {
    let stored: Result<V1<'_>, _> = serde_json::from_value(record.machine);
    stored.map(Machine::from).map_err(|source| RunError::Stored {
        run: record.id,
        source,
    })
}

/// Logs an error and returns `None` for a run whose stored state cannot be read or that does not exist: one run must not stop the others.
pub(super) fn unless_unreadable<T>(result: Result<T, RunError>) -> Result<Option<T>, RunError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ (RunError::Stored { .. } | RunError::Unknown(_))) => {
            tracing::error!(%error, "a run is skipped");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

pub(super) fn stored_actions(actions: &[Action]) -> Vec<RunAction> {
    let stored = |action: &Action| RunAction {
        attempt: action.attempt,
        n: action.n,
        action: serde_json::to_value(&action.task).expect("tasks are plain data"),
    };
    actions.iter().map(stored).collect()
}
