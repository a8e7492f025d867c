//! The OpenAPI document, and the endpoints in docs/api.md.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use collector::http::endpoint_table;
use serde_json::Value;

use crate::harness::Server;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");

#[tokio::test]
async fn the_document_describes_each_endpoint_with_role_and_types() {
    let server = Server::start().await;
    let (status, document) = server.get("/api/openapi.json").await;
    assert_eq!(status, StatusCode::OK, "{document}");
    assert!(
        document["openapi"].as_str().unwrap().starts_with("3."),
        "{document}"
    );
    for (method, path, _) in endpoint_table().iter() {
        let operation = &document["paths"][path][method.to_lowercase()];
        assert!(operation["summary"].is_string(), "{method} {path}: {operation}");
        assert!(operation["security"].is_array(), "{method} {path}: {operation}");
    }
    let log_in = &document["paths"]["/api/session"]["post"];
    let body = &log_in["requestBody"]["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(body, "#/components/schemas/Login", "{log_in}");
    assert!(log_in["security"].is_null(), "needs no token: {log_in}");
    assert!(document["paths"]["/api/session"]["get"].is_object(), "beside it");
    let stream = &document["paths"]["/api/stream"]["get"];
    assert_eq!(stream["parameters"][0]["name"], "lists", "{stream}");
    assert!(stream["responses"]["101"].is_object(), "{stream}");
    let submit = &document["paths"]["/api/runs"]["post"];
    let body = &submit["requestBody"]["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(body, "#/components/schemas/Spec", "{submit}");
    let show = &document["paths"]["/api/runs/{id}"]["get"]["responses"]["200"];
    let answer = &show["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(answer, "#/components/schemas/RunView", "{show}");
    let run = &document["components"]["schemas"]["RunView"]["properties"];
    assert!(run["attempts"]["items"]["$ref"].is_string(), "{run}");
    check_references(&document, &document);
}

/// Checks that each `$ref` has a target.
fn check_references(document: &Value, value: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                let place = reference.trim_start_matches('#');
                assert!(document.pointer(place).is_some(), "{reference}");
            }
            fields
                .values()
                .for_each(|field| check_references(document, field));
        }
        Value::Array(items) => items.iter().for_each(|item| check_references(document, item)),
        _ => {}
    }
}

/// The table of all endpoints is generated. The text below it must not name an endpoint that no longer exists.
#[test]
fn the_documentation_names_no_endpoint_that_does_not_exist() {
    // Open to all, so not in the table; and the document itself.
    let others = ["POST /api/session", "GET /api/openapi.json"];
    let mut known: BTreeSet<String> = others.map(str::to_owned).into();
    let table = endpoint_table();
    known.extend(table.iter().map(|(method, path, _)| format!("{method} {path}")));
    let text = std::fs::read_to_string(DOCS).unwrap();
    let quoted = text.split('`').skip(1).step_by(2);
    let method = |quoted: &str| {
        quoted
            .split(' ')
            .next()
            .is_some_and(|word| matches!(word, "GET" | "POST" | "PUT" | "DELETE"))
    };
    let named = quoted.filter(|quoted| method(quoted) && quoted.contains(" /api/") && !quoted.contains(','));
    let named: BTreeSet<String> = named
        .map(|route| route.split('?').next().unwrap_or(route).to_owned())
        .collect();
    assert!(named.len() > 30, "where are the tables? {named:?}");
    let gone: Vec<_> = named.difference(&known).collect();
    assert!(gone.is_empty(), "docs/api.md names {gone:?}");
}
