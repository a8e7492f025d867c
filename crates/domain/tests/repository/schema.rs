//! Implements the part of JSON Schema that `grafana/dashboard.schema.json` uses. An unknown keyword is an error, so that every part of the
//! schema is checked.

use serde_json::Value;

/// Returns the violations of the schema in `value`, each with its position.
pub(crate) fn mistakes(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, value, "", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    for (keyword, wanted) in schema.as_object().unwrap() {
        let holds = match keyword.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" | "properties" => true,
            "$ref" => {
                let target = wanted.as_str().unwrap().trim_start_matches('#');
                check(root, root.pointer(target).unwrap(), value, at, found);
                true
            }
            "type" => is_of_type(wanted.as_str().unwrap(), value),
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "minimum" => value.as_f64() >= wanted.as_f64(),
            "maximum" => value.as_f64() <= wanted.as_f64(),
            "minItems" => value.as_array().map(Vec::len) >= wanted.as_u64().map(|least| least as usize),
            "minLength" => value.as_str().map(str::len) >= wanted.as_u64().map(|least| least as usize),
            "required" => {
                let mut names = wanted
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|name| name.as_str().unwrap());
                names.all(|name| value.get(name).is_some())
            }
            "additionalProperties" => {
                assert_eq!(wanted, false, "only `false` is known here");
                let mut names = value.as_object().into_iter().flatten().map(|(name, _)| name);
                names.all(|name| schema["properties"].get(name).is_some())
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, wanted, item, &format!("{at}/{n}"), found);
                }
                true
            }
            "oneOf" => {
                let kinds = wanted.as_array().unwrap().iter();
                let fits = |kind: &&Value| {
                    let mut wrong = Vec::new();
                    check(root, kind, value, at, &mut wrong);
                    wrong.is_empty()
                };
                kinds.filter(fits).count() == 1
            }
            unknown => panic!("the schema's {unknown:?} is not known here"),
        };
        if !holds {
            found.push(format!("{at}: {keyword} {wanted} does not hold for {value}"));
        }
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(name) {
            check(root, schema, value, &format!("{at}/{name}"), found);
        }
    }
}

fn is_of_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        unknown => panic!("the schema's type {unknown:?} is not known here"),
    }
}

#[test]
fn mistakes_are_found() {
    let schema: Value = serde_json::from_str(
        r##"{"type":"object","required":["a"],"additionalProperties":false,"properties":{"a":{"$ref":"#/$defs/n"},"b":{"items":{"enum":["x"]}}},
        "$defs":{"n":{"type":"integer","minimum":2}}}"##,
    )
    .unwrap();
    for (value, count) in [
        (r#"{"a":2,"b":["x"]}"#, 0),
        (r#"{"a":1}"#, 1),
        (r#"{"a":"x"}"#, 2),
        (r#"{"b":["y","x","z"]}"#, 3),
        (r#"{"a":2,"c":1}"#, 1),
    ] {
        let value: Value = serde_json::from_str(value).unwrap();
        assert_eq!(mistakes(&schema, &value).len(), count, "{value}");
    }
}
