//! The table of endpoints, the OpenAPI document that is made of it, and docs/api.md say the same.

use std::collections::BTreeMap;

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

/// Each `$ref` leads somewhere.
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

#[test]
fn the_documentation_names_each_endpoint_with_its_role() {
    let table = endpoint_table();
    let expected: BTreeMap<String, String> = table
        .iter()
        // Those of Prometheus have its own documentation, and a table of their own here.
        .filter(|(_, path, _)| !path.starts_with("/api/v1/") && *path != "/-/reload" && *path != "/metrics")
        .map(|(method, path, endpoint)| {
            let role = format!("{:?}", endpoint.role).to_lowercase();
            (format!("{method} {path}"), role)
        })
        .collect();
    let text = std::fs::read_to_string(DOCS).unwrap();
    let mut documented = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = line.split(" | ");
        let (Some(routes), Some(role)) = (cells.next(), cells.next()) else {
            continue;
        };
        let routes = routes.split('`').skip(1).step_by(2);
        for route in routes.filter(|route| route.contains(" /api/")) {
            let route = route.split('?').next().unwrap_or(route);
            documented.insert(route.to_owned(), role.trim().to_owned());
        }
    }
    // Open to all, so not in the table; and the one that is a stream.
    documented
        .retain(|route, role| role != "none" && route != "GET /api/stream" && !route.contains("/api/v1/"));
    assert_eq!(
        documented, expected,
        "docs/api.md differs from the table of endpoints"
    );
}
