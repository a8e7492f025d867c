//! Reads a specification from JSON, field by field, so that one wrong field does not hide the others.

use domain::run::spec::Spec;
use serde_json::{Map, Value};

use super::{Read, at_field, shortened};

/// Returns the fields that can be read, and an error for each other one.
pub(super) fn read(document: &Value) -> Read {
    let Some(fields) = document.as_object() else {
        let message = "a specification is an object".to_owned();
        return Read {
            spec: Spec::default(),
            problems: vec![at_field(String::new(), message)],
        };
    };
    let mut readable = Map::new();
    let mut problems = Vec::new();
    // Every field has a default, so each can be read alone.
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let alone: Map<String, Value> = [(name.clone(), value.clone())].into_iter().collect();
        match serde_json::from_value::<Spec>(Value::Object(alone)) {
            Ok(_) => _ = readable.insert(name.clone(), value.clone()),
            Err(error) => problems.push(at_field(name.clone(), message(name, &error.to_string()))),
        }
    }
    let spec = serde_json::from_value(Value::Object(readable)).unwrap_or_default();
    Read { spec, problems }
}

/// serde's errors contain the value.
fn message(field: &str, error: &str) -> String {
    if field == "secrets" {
        "each name needs a text as its value".to_owned()
    } else {
        shortened(error)
    }
}
