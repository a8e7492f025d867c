//! The texts of the form, and the document that they describe.

use domain::api::runs::SpecProblem;
use domain::run::recipe::RECIPES;
use leptos::prelude::*;

use super::document::Node;
use super::fields::{FIELDS, RECIPE, SCRIPT};
use super::kind::Kind;

/// One signal per field. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Form {
    texts: StoredValue<Vec<RwSignal<String>>>,
    /// What the fields do not show. Changes only together with the texts.
    rest: StoredValue<Node>,
}

impl Form {
    /// Creates a form whose values are a valid run.
    pub(super) fn new() -> Self {
        let signal = |_| RwSignal::new(String::new());
        let form = Self {
            texts: StoredValue::new(FIELDS.iter().map(signal).collect()),
            rest: StoredValue::new(Node::table()),
        };
        form.show(of_a_new_run());
        form
    }

    /// Shows a document in place of the current one.
    pub(super) fn show(self, document: Node) {
        let (texts, rest) = texts_of(document);
        self.rest.set_value(rest);
        let signals = self.texts.get_value();
        signals
            .into_iter()
            .zip(texts)
            .for_each(|(signal, text)| signal.set(text));
    }

    /// Returns the text of a field.
    pub(super) fn text(self, path: &str) -> RwSignal<String> {
        let at = FIELDS.iter().position(|field| field.path == path);
        // Every caller names a field of the table.
        self.texts.with_value(|texts| texts[at.unwrap_or(0)])
    }

    /// Returns true if the user has chosen a script instead of a recipe; tracked.
    pub(super) fn is_own_script(self) -> bool {
        self.text(RECIPE).with(String::is_empty)
    }

    /// Returns the document, and errors for texts without a value; tracked. Secrets have placeholders.
    pub(super) fn document(self) -> (Node, Vec<SpecProblem>) {
        let texts: Vec<String> = self.texts.get_value().iter().map(|signal| signal.get()).collect();
        self.rest.with_value(|rest| document_of(&texts, rest))
    }
}

/// Returns the specification with which an empty form begins.
pub(super) fn of_a_new_run() -> Node {
    let mut document = Node::table();
    document.put(RECIPE, Node::Text(RECIPES[0].name.to_owned()));
    document.put("nodes", Node::Number("1".to_owned()));
    document.put("set.steps", Node::Text("200".to_owned()));
    document
}

/// Returns an error in a field.
pub(super) fn problem(field: &str, message: String) -> SpecProblem {
    SpecProblem {
        field: field.to_owned(),
        message,
        ..SpecProblem::default()
    }
}

/// Returns the text of each field, and the rest of the document.
fn texts_of(mut document: Node) -> (Vec<String>, Node) {
    let texts = FIELDS
        .iter()
        .map(|field| field.kind.take(&mut document, field.path));
    (texts.collect(), document)
}

/// A text without a value is in the document as it is: nothing is lost in the other view.
fn document_of(texts: &[String], rest: &Node) -> (Node, Vec<SpecProblem>) {
    let mut document = Node::table();
    let mut problems = Vec::new();
    let has_recipe = FIELDS
        .iter()
        .zip(texts)
        .any(|(field, text)| field.path == RECIPE && !text.is_empty());
    for (field, text) in FIELDS.iter().zip(texts) {
        // The page hides the path of a script while a recipe is chosen.
        if field.path == SCRIPT && has_recipe {
            continue;
        }
        match field.kind.value(text) {
            Ok(Some(Node::Flag(false))) if field.kind == Kind::Flag => {}
            Ok(Some(value)) => document.put(field.path, value),
            Ok(None) => {}
            Err(message) => {
                problems.push(problem(field.path, message));
                // What was typed among the names of secrets may be a value.
                if field.kind != Kind::Names {
                    document.put(field.path, Node::Text(text.clone()));
                }
            }
        }
    }
    document.fill(rest);
    (document, problems)
}

#[cfg(test)]
mod tests {
    use super::super::fields::Field;
    use super::*;

    const DOCUMENT: &str = r#"{"recipe":"fsdp","args":["--lr","0.1"],"name":"vision","git":{"repository":"https://host/repo","revision":"main"},"nodes":2,"container":{"image":"team/train:24","mounts":["/data"]},"set":{"steps":"7"},"auto_revert":false,"env":{"NCCL_DEBUG":"INFO"},"secrets":{"HF_TOKEN":"[redacted]"},"keep_checkpoints":{"last":3,"best":true},"preflight_bandwidth":{"seconds":0.5},"labels":{"team":"vision"}}"#;

    fn read(text: &str) -> Node {
        serde_json::from_str(text).expect("JSON")
    }

    fn there_and_back(text: &str) -> (String, Vec<SpecProblem>) {
        let (texts, rest) = texts_of(read(text));
        let (document, problems) = document_of(&texts, &rest);
        (document.json(), problems)
    }

    #[test]
    fn the_form_keeps_a_document() {
        assert_eq!(there_and_back(DOCUMENT), (DOCUMENT.to_owned(), Vec::new()));
        assert_eq!(there_and_back(&of_a_new_run().json()).0, of_a_new_run().json());
    }

    #[test]
    fn what_the_form_does_not_show_is_kept() {
        let document =
            r#"{"recipe":"ddp","container":{"image":"a","ulimits":[]},"of_a_newer_collector":{"a":[1]}}"#;
        assert_eq!(there_and_back(document).0, document);
    }

    #[test]
    fn wrong_texts_are_errors_of_their_fields_and_are_kept() {
        let (json, problems) = there_and_back(r#"{"recipe":"ddp","nodes":"two"}"#);
        assert_eq!(json, r#"{"recipe":"ddp","nodes":"two"}"#);
        let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["nodes"]);
    }

    #[test]
    fn a_value_typed_among_the_names_of_secrets_is_not_sent() {
        let text = |field: &Field| match field.path {
            RECIPE => "ddp".to_owned(),
            "secrets" => "HF_TOKEN=hf_0123456789".to_owned(),
            _ => String::new(),
        };
        let texts: Vec<String> = FIELDS.iter().map(text).collect();
        let (document, problems) = document_of(&texts, &Node::table());
        assert!(!document.json().contains("hf_0123456789"), "{}", document.json());
        assert_eq!(problems[0].field, "secrets");
        assert!(!problems[0].message.contains("hf_0123456789"));
    }

    #[test]
    fn the_path_of_a_script_is_left_out_while_a_recipe_is_chosen() {
        let both = r#"{"recipe":"ddp","script":"/srv/train.py"}"#;
        assert_eq!(there_and_back(both).0, r#"{"recipe":"ddp"}"#);
        let script = r#"{"script":"/srv/train.py"}"#;
        assert_eq!(there_and_back(script).0, script);
    }
}
