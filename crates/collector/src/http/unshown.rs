//! docs/api-fields.md: the fields of the API that no page of the dashboard shows.
//!
//! ```text
//! route table, Push ─▶ JSON schemas ───┐
//! web/src ─▶ the names that it reads ──┴▶ from type to type: a field that is read leads to its type, another one is listed
//! ```
//! The search begins at the types that the dashboard requests or gets from the stream. What is below a field that is not read is not listed.
//!
//! It compares names, not types, so it errs in three ways:
//! - A field counts as read if a field with the same name of any type is read: `name` and `id` of every type count as read.
//! - A page may read a field and not show it.
//! - A field that only a function of `domain` reads, such as `Finding::sentence`, counts as not read. [`left_out`] lists these.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod left_out;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use domain::api::stream::Push;
use serde_json::{Value, json};

use super::endpoints;
use left_out::{ENDPOINTS, FIELDS};
use sources::Sources;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api-fields.md");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/src");
const INTRODUCTION: &str = "# Fields that no page shows

`cargo xtask generate` writes this page from the types of the [HTTP API](api.md) and the sources of the [dashboard](dashboard.md). It is for
developers of the dashboard, and for people who need such a field: `curl` can read all of them.

A field counts as shown if the dashboard reads a field with that name, of any type. So some fields are missing here. If a field is not
shown, the fields of its type are not listed.
";

/// JSON schemas by the name of their type.
type Schemas = BTreeMap<String, Value>;

/// A field that the dashboard does not read.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    name: String,
    /// The first sentence of its doc comment.
    meaning: String,
}

#[test]
fn the_page_on_fields_that_no_page_shows_is_made_from_the_types() {
    let (schemas, document) = schemas();
    let sources = Sources::of_folder(Path::new(SOURCES));
    let (roots, unrequested) = answers(&document, &sources);
    let mut search = Search::new(&schemas, &sources);
    roots.iter().for_each(|root| search.visit(root));
    let expected = page(&search.unread, &unrequested);
    if std::env::var_os("LOCKSTEP_GENERATE").is_some() {
        std::fs::write(FILE, &expected).unwrap();
        return;
    }
    let page = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        page == expected,
        "docs/api-fields.md is not what the types and the dashboard say: run `cargo xtask generate`"
    );
}

/// Returns the schemas of all types of the API, and the OpenAPI document.
fn schemas() -> (Schemas, Value) {
    let document = serde_json::to_value(endpoints().1).unwrap();
    let described = document["components"]["schemas"].as_object().unwrap();
    let mut schemas: Schemas = described.clone().into_iter().collect();
    let push = serde_json::to_value(schemars::schema_for!(Push)).unwrap();
    for (name, schema) in push["$defs"].as_object().unwrap() {
        schemas.entry(name.clone()).or_insert_with(|| schema.clone());
    }
    schemas.insert("Push".to_owned(), push);
    (schemas, document)
}

/// Returns the types that the dashboard requests or gets from the stream; and the endpoints that it does not request, each with the types
/// of its answers.
fn answers(document: &Value, sources: &Sources) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let mut roots = BTreeSet::from(["Push".to_owned()]);
    let mut unrequested = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let types = answered_types(operation);
            if sources.requests(path) {
                roots.extend(types);
            } else if !types.is_empty() {
                unrequested.insert(format!("{} {path}", method.to_uppercase()), types.join(", "));
            }
        }
    }
    (roots, unrequested)
}

/// Returns the types in the successful answers of an endpoint.
fn answered_types(operation: &Value) -> Vec<String> {
    let mut types = Vec::new();
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        if status.starts_with('2') {
            add_references(response, &mut types);
        }
    }
    types
}

fn add_references(value: &Value, types: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            types.extend(referenced(value));
            fields.values().for_each(|field| add_references(field, types));
        }
        Value::Array(items) => items.iter().for_each(|item| add_references(item, types)),
        _ => {}
    }
}

/// Returns the name of the type to which a schema refers.
fn referenced(schema: &Value) -> Option<String> {
    let name = schema["$ref"].as_str()?.rsplit('/').next()?;
    Some(name.to_owned())
}

/// The search for fields that are not read.
struct Search<'a> {
    schemas: &'a Schemas,
    sources: &'a Sources,
    visited: BTreeSet<String>,
    /// By the name of the type, ordered by name.
    unread: BTreeMap<String, Vec<Field>>,
}

impl<'a> Search<'a> {
    fn new(schemas: &'a Schemas, sources: &'a Sources) -> Self {
        Self {
            schemas,
            sources,
            visited: BTreeSet::new(),
            unread: BTreeMap::new(),
        }
    }

    /// Searches a type, once. The fields of a type that serde flattens into this one are listed there, not here.
    fn visit(&mut self, name: &str) {
        if !self.visited.insert(name.to_owned()) {
            return;
        }
        let schemas = self.schemas;
        let mut own = schemas[name].clone();
        for inner in flattened_into(name, schemas) {
            self.visit(&inner);
            let inherited = schemas[&inner]["properties"].as_object().unwrap();
            let fields = own["properties"].as_object_mut().unwrap();
            fields.retain(|field, _| !inherited.contains_key(field));
        }
        self.descend(name, &own);
    }

    /// Searches the types to which a schema leads, and its own fields. `of`: the type to which these belong.
    fn descend(&mut self, of: &str, schema: &Value) {
        if let Some(name) = referenced(schema) {
            self.visit(&name);
        }
        for keyword in [
            "items",
            "prefixItems",
            "additionalProperties",
            "oneOf",
            "anyOf",
            "allOf",
        ] {
            match &schema[keyword] {
                Value::Array(all) => all.iter().for_each(|one| self.descend(of, one)),
                one @ Value::Object(_) => self.descend(of, one),
                _ => {}
            }
        }
        let fields = schema["properties"].as_object();
        let is_variant =
            schema["additionalProperties"] == false && fields.is_some_and(|fields| fields.len() == 1);
        for (name, field) in fields.into_iter().flatten() {
            // No source reads the name of a variant as a field.
            if is_variant || is_tag(field) || self.sources.reads(name) {
                self.descend(of, field);
            } else {
                self.add(of, name, field);
            }
        }
    }

    fn add(&mut self, of: &str, name: &str, field: &Value) {
        // Of several types with the same name, all but one have a number behind it.
        let of = of.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let fields = self.unread.entry(of.to_owned()).or_default();
        // Variants of an enum may have fields with the same name.
        if fields.iter().any(|known| known.name == name) {
            return;
        }
        fields.push(Field {
            name: name.to_owned(),
            meaning: first_sentence(field["description"].as_str().unwrap_or_default()),
        });
        fields.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

/// Returns true if the field contains the name of the variant of an enum.
fn is_tag(field: &Value) -> bool {
    let words = field["enum"].as_array();
    !field["const"].is_null() || words.is_some_and(|words| words.len() == 1)
}

/// Returns the types whose fields are all in this type too, with the same schemas: serde flattens them.
fn flattened_into(name: &str, schemas: &Schemas) -> Vec<String> {
    let Some(fields) = schemas[name]["properties"].as_object() else {
        return Vec::new();
    };
    let is_flattened = |schema: &Value| {
        let inner = schema["properties"].as_object();
        inner.is_some_and(|inner| {
            let is_part = (2..fields.len()).contains(&inner.len());
            is_part
                && inner
                    .iter()
                    .all(|(field, schema)| fields.get(field) == Some(schema))
        })
    };
    let inner = schemas.iter().filter(|(_, schema)| is_flattened(schema));
    inner.map(|(name, _)| name.clone()).collect()
}

/// Returns the first sentence of a doc comment, for the cell of a table. Links of Rust become code.
fn first_sentence(comment: &str) -> String {
    let comment = comment.replace('\n', " ").replace("[`", "`");
    let mut parts = comment.split("`](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // The target of the link ends with a parenthesis.
        text += "`";
        text += part.split_once(')').map_or(part, |(_, after)| after);
    }
    let text = text.replace("`]", "`");
    let end = text.find(". ").map_or(text.len(), |end| end + 1);
    text[..end].replace('|', "\\|")
}

/// Returns the page. Panics if an entry of the tables in [`left_out`] is not needed any more.
fn page(unread: &BTreeMap<String, Vec<Field>>, unrequested: &BTreeMap<String, String>) -> String {
    let mut page = INTRODUCTION.to_owned();
    add_endpoints(&mut page, unrequested);
    page += "\n## Fields\n";
    for (of, fields) in unread {
        let listed: Vec<&Field> = fields
            .iter()
            .filter(|field| !is_left_out(of, &field.name))
            .collect();
        if listed.is_empty() {
            continue;
        }
        write!(page, "\n### `{of}`\n\n| field | meaning |\n|---|---|\n").unwrap();
        for Field { name, meaning } in listed {
            writeln!(page, "| `{name}` | {meaning} |").unwrap();
        }
    }
    add_left_out(&mut page, unread);
    page
}

fn add_endpoints(page: &mut String, unrequested: &BTreeMap<String, String>) {
    for entry in &ENDPOINTS {
        let is_needed = unrequested.contains_key(entry.endpoint);
        assert!(is_needed, "{} is requested now, or gone", entry.endpoint);
    }
    *page += "\n## Endpoints that no page requests\n\n| endpoint | answers | why not |\n|---|---|---|\n";
    for (endpoint, types) in unrequested {
        let entry = ENDPOINTS.iter().find(|entry| entry.endpoint == endpoint);
        let reason = entry.map_or_else(|| "no page yet".to_owned(), |entry| entry.reason.to_string());
        writeln!(page, "| `{endpoint}` | `{types}` | {reason} |").unwrap();
    }
}

fn add_left_out(page: &mut String, unread: &BTreeMap<String, Vec<Field>>) {
    *page += "\n## Left out on purpose\n\n| type | fields | why |\n|---|---|---|\n";
    for entry in &FIELDS {
        for name in entry.fields {
            let mut fields = unread.get(entry.of).into_iter().flatten();
            let is_needed = fields.any(|field| field.name == *name);
            assert!(is_needed, "`{name}` of {} is read now, or gone", entry.of);
        }
        let fields = entry.fields.join("`, `");
        writeln!(page, "| `{}` | `{fields}` | {} |", entry.of, entry.reason).unwrap();
    }
}

fn is_left_out(of: &str, field: &str) -> bool {
    FIELDS
        .iter()
        .any(|entry| entry.of == of && entry.fields.contains(&field))
}

fn found(schemas: &Value, root: &str, source: &str) -> Vec<(String, Vec<String>)> {
    let schemas: Schemas = schemas.as_object().unwrap().clone().into_iter().collect();
    let sources = Sources::of_texts(&[source.to_owned()]);
    let mut search = Search::new(&schemas, &sources);
    search.visit(root);
    let names = |fields: Vec<Field>| fields.into_iter().map(|field| field.name).collect();
    let unread = search.unread.into_iter();
    unread.map(|(of, fields)| (of, names(fields))).collect()
}

fn expected(unread: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let unread = unread.iter();
    unread
        .map(|(of, names)| ((*of).to_owned(), owned(names)))
        .collect()
}

#[test]
fn a_field_that_is_read_leads_to_its_type_and_another_one_is_listed() {
    let schemas = json!({
        "Run": {"properties": {
            "id": {"type": "string"},
            "attempts": {"type": "array", "items": {"$ref": "#/components/schemas/Attempt2"}},
            "spec": {"$ref": "#/components/schemas/Spec"},
        }},
        "Attempt2": {"properties": {"cause": {}, "knobs": {}}},
        "Spec": {"properties": {"git": {}}},
    });
    let source = "run.id; run.attempts.iter().map(|attempt| attempt.cause)";
    let unread = expected(&[("Attempt", &["knobs"]), ("Run", &["spec"])]);
    assert_eq!(found(&schemas, "Run", source), unread);
}

#[test]
fn fields_of_variants_and_of_optional_types_are_found() {
    let schemas = json!({
        "Push": {"oneOf": [
            {"properties": {"type": {"const": "frame"}, "series": {"anyOf": [{"$ref": "#/$defs/Column"}, {"type": "null"}]}}},
            {"properties": {"acted": {"properties": {"title": {}}}}, "additionalProperties": false},
        ]},
        "Column": {"properties": {"labels": {}}},
    });
    let unread = expected(&[("Column", &["labels"]), ("Push", &["title"])]);
    assert_eq!(found(&schemas, "Push", "Frame { series, .. } => series"), unread);
}

#[test]
fn the_fields_of_a_flattened_type_are_listed_there() {
    let schemas = json!({
        "View": {"properties": {"rule": {"type": "string"}, "state": {"type": "string"}, "cause": {}}},
        "Alert": {"properties": {"rule": {"type": "string"}, "state": {"type": "string"}}},
        "Other": {"properties": {"rule": {"type": "string"}, "state": {"type": "integer"}}},
    });
    let unread = expected(&[("Alert", &["rule", "state"]), ("View", &["cause"])]);
    assert_eq!(found(&schemas, "View", ""), unread);
}

#[test]
fn a_meaning_is_one_sentence() {
    for (comment, meaning) in [
        ("Name of the\nnode. More.", "Name of the node."),
        ("At most [`MAX`]", "At most `MAX`"),
        ("See [`up`](crate::up).", "See `up`."),
        ("`a|b`", "`a\\|b`"),
        ("", ""),
    ] {
        assert_eq!(first_sentence(comment), meaning);
    }
}
