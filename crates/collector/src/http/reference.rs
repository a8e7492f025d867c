//! The table of endpoints in docs/api.md, which is generated from the OpenAPI document.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fmt::Write as _;

use serde_json::Value;

use super::endpoints;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
const BEGIN: &str = "<!-- endpoints: written by `cargo xtask generate` -->\n";
const END: &str = "<!-- end of endpoints -->\n";

#[test]
fn the_reference_of_the_api_is_made_from_the_endpoints() {
    let page = std::fs::read_to_string(FILE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let expected = format!("{before}{BEGIN}{}{END}{after}", table());
    if std::env::var_os("LOCKSTEP_GENERATE").is_some() {
        std::fs::write(FILE, &expected).unwrap();
        return;
    }
    assert!(
        page == expected,
        "docs/api.md is not what the endpoints say: run `cargo xtask generate`"
    );
}

fn table() -> String {
    let document = serde_json::to_value(endpoints().1).unwrap();
    let mut table = "| endpoint | role | request | response | |\n|---|---|---|---|---|\n".to_owned();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "delete"] {
            let operation = &item[method];
            if operation.is_object() {
                let (name, role) = (method.to_uppercase(), word(&operation["x-lockstep-role"]));
                let (takes, answers) = (takes(operation), answers(operation));
                let what = what(operation);
                writeln!(
                    table,
                    "| `{name} {path}` | {role} | {takes} | {answers} | {what} |"
                )
                .unwrap();
            }
        }
    }
    table
}

/// Returns the query parameters and the body.
fn takes(operation: &Value) -> String {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let in_query = parameters.filter(|parameter| parameter["in"] == "query");
    let query: Vec<&str> = in_query.map(|parameter| word(&parameter["name"])).collect();
    let query = (!query.is_empty()).then(|| format!("`?{}=`", query.join("=&")));
    let body = &operation["requestBody"];
    let body = body.is_object().then(|| {
        let (of, is_optional) = (content(&body["content"]), body["required"] != true);
        format!("{of}{}", if is_optional { " or nothing" } else { "" })
    });
    query.into_iter().chain(body).collect::<Vec<_>>().join(", ")
}

/// Returns the bodies of successful answers.
fn answers(operation: &Value) -> String {
    let responses = operation["responses"].as_object().into_iter().flatten();
    let good = responses.filter(|(status, _)| status.starts_with('2'));
    let answer = |(status, response): (&String, &Value)| {
        let of = content(&response["content"]);
        let shown = (status != "200").then_some(status.as_str());
        let parts = shown
            .into_iter()
            .chain(Some(of.as_str()).filter(|of| !of.is_empty()));
        parts.collect::<Vec<_>>().join(" ")
    };
    good.map(answer).collect::<Vec<_>>().join(" or ")
}

fn what(operation: &Value) -> String {
    let summary = word(&operation["summary"]);
    match operation["x-lockstep-within-s"].as_u64() {
        Some(seconds) => format!("{summary}; within {} min", seconds / 60),
        None => summary.to_owned(),
    }
}

/// Returns the type of a body, or its media type if it has no type of the API.
fn content(content: &Value) -> String {
    let of = |(media, body): (&String, &Value)| schema(&body["schema"]).unwrap_or_else(|| media.clone());
    let types = content.as_object().into_iter().flatten().map(of);
    let types = types.map(|name| format!("`{name}`")).collect::<Vec<_>>();
    types.join(" or ")
}

fn schema(schema: &Value) -> Option<String> {
    if schema["type"] == "array" {
        return Some(format!("[{}]", self::schema(&schema["items"])?));
    }
    let reference = schema["$ref"].as_str()?;
    Some(reference.rsplit('/').next()?.to_owned())
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
