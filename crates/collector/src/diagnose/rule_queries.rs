//! The queries of rules: their expressions, and the queries in their templates.

use std::cell::RefCell;
use std::collections::HashMap;

use domain::rule::instance::{AlertInstance, AlertTemplates, Answer, ExpansionContext};
use domain::series::Labels;
use domain::time::TimestampMs;
use query::{Params, Query, Value};

use super::engine::Engine;

/// Maximum number of different template queries of one rule in one evaluation.
const TEMPLATE_QUERIES_MAX: usize = 100;
/// Maximum number of rounds in which a template query depends on the result of an earlier one.
const TEMPLATE_ROUNDS_MAX: usize = 5;

/// Returns the samples of a query at a time.
pub(super) async fn samples(engine: &Engine, query: &Query, at_ms: TimestampMs) -> Answer {
    let output = engine
        .evaluator
        .evaluate(query.clone(), Params::instant(at_ms))
        .await
        .map_err(|error| error.to_string())?;
    vector(output.value).ok_or_else(|| "rule result is not a vector or scalar".to_owned())
}

/// Converts a result to samples. A number counts as a series without labels.
pub(super) fn vector(value: Value) -> Option<Vec<(Labels, f64)>> {
    match value {
        Value::Vector(samples) => Some(
            samples
                .into_iter()
                .map(|(labels, _, value)| (labels, value))
                .collect(),
        ),
        Value::Scalar(_, value) => Some(vec![(Labels::empty(), value)]),
        Value::Matrix(_) | Value::String(..) => None,
    }
}

/// Returns the alerts of an evaluation. Filling in templates never waits: a query in a template is evaluated between two rounds.
pub(super) async fn instances(
    engine: &Engine,
    templates: &AlertTemplates,
    found: Vec<(Labels, f64)>,
    limit: usize,
    at_ms: TimestampMs,
) -> Result<Vec<AlertInstance>, String> {
    let url = &engine.external_url;
    let mut answers: HashMap<String, Answer> = HashMap::new();
    for _ in 1..TEMPLATE_ROUNDS_MAX {
        let (instances, questions) = filled(templates, &found, limit, at_ms, url, &answers)?;
        if questions.is_empty() {
            return Ok(instances);
        }
        for question in questions {
            let answer = if answers.len() < TEMPLATE_QUERIES_MAX {
                answer(engine, &question, at_ms).await
            } else {
                Err(format!(
                    "the templates of this rule contain more than {TEMPLATE_QUERIES_MAX} different queries"
                ))
            };
            answers.insert(question, answer);
        }
    }
    filled(templates, &found, limit, at_ms, url, &answers).map(|(instances, _)| instances)
}

/// Runs one round. Also returns the queries that had no result yet.
fn filled(
    templates: &AlertTemplates,
    found: &[(Labels, f64)],
    limit: usize,
    now_ms: TimestampMs,
    external_url: &str,
    answers: &HashMap<String, Answer>,
) -> Result<(Vec<AlertInstance>, Vec<String>), String> {
    let questions = RefCell::new(Vec::new());
    let look_up = |text: &str| match answers.get(text) {
        Some(answer) => answer.clone(),
        None => {
            let mut questions = questions.borrow_mut();
            if !questions.iter().any(|asked| asked == text) {
                questions.push(text.to_owned());
            }
            Err("the query has no result yet".to_owned())
        }
    };
    let expansion = ExpansionContext {
        external_labels: &Labels::empty(),
        external_url,
        now_ms,
        query: &look_up,
    };
    let instances = templates
        .instances(found.to_vec(), limit, &expansion)
        .map_err(|error| error.to_string())?;
    Ok((instances, questions.into_inner()))
}

async fn answer(engine: &Engine, text: &str, at_ms: TimestampMs) -> Answer {
    let query = query::parse(text).map_err(|error| error.to_string())?;
    samples(engine, &query, at_ms).await
}
