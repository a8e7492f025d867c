//! What rules ask the evaluator: their expressions, and the queries within their templates.

use std::cell::RefCell;
use std::collections::HashMap;

use domain::rule::instance::{Answer, Instance, Instancing, Surroundings};
use domain::series::Labels;
use domain::time::TimestampMs;
use query::{Params, Query, Value};

use super::engine::Engine;

/// Different queries that the templates of one rule may ask in one evaluation.
const TEMPLATE_QUERIES_MAX: usize = 100;
/// How often a template may ask with what an earlier question of its gave.
const TEMPLATE_ROUNDS_MAX: usize = 5;

/// The series a query gives at a time.
pub(super) async fn samples(engine: &Engine, query: &Query, at_ms: TimestampMs) -> Answer {
    let output = engine
        .evaluator
        .evaluate(query.clone(), Params::instant(at_ms))
        .await
        .map_err(|error| error.to_string())?;
    vector(output.value).ok_or_else(|| "rule result is not a vector or scalar".to_owned())
}

/// A number counts as a series without labels.
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

/// The alerts of an evaluation. Templates are filled in without waiting; a question they have is answered between two tries.
pub(super) async fn instances(
    engine: &Engine,
    instancing: &Instancing,
    found: Vec<(Labels, f64)>,
    limit: usize,
    at_ms: TimestampMs,
) -> Result<Vec<Instance>, String> {
    let url = &engine.external_url;
    let mut answers: HashMap<String, Answer> = HashMap::new();
    for _ in 1..TEMPLATE_ROUNDS_MAX {
        let (instances, questions) = filled(instancing, &found, limit, at_ms, url, &answers)?;
        if questions.is_empty() {
            return Ok(instances);
        }
        for question in questions {
            let answer = if answers.len() < TEMPLATE_QUERIES_MAX {
                answer(engine, &question, at_ms).await
            } else {
                Err(format!(
                    "the templates of this rule ask more than {TEMPLATE_QUERIES_MAX} queries"
                ))
            };
            answers.insert(question, answer);
        }
    }
    filled(instancing, &found, limit, at_ms, url, &answers).map(|(instances, _)| instances)
}

/// One try, and what it could not look up.
fn filled(
    instancing: &Instancing,
    found: &[(Labels, f64)],
    limit: usize,
    now_ms: TimestampMs,
    external_url: &str,
    answers: &HashMap<String, Answer>,
) -> Result<(Vec<Instance>, Vec<String>), String> {
    let questions = RefCell::new(Vec::new());
    let look_up = |text: &str| match answers.get(text) {
        Some(answer) => answer.clone(),
        None => {
            let mut questions = questions.borrow_mut();
            if !questions.iter().any(|asked| asked == text) {
                questions.push(text.to_owned());
            }
            Err("the query is not answered yet".to_owned())
        }
    };
    let surroundings = Surroundings {
        external_labels: &Labels::empty(),
        external_url,
        now_ms,
        query: &look_up,
    };
    let instances = instancing
        .instances(found.to_vec(), limit, &surroundings)
        .map_err(|error| error.to_string())?;
    Ok((instances, questions.into_inner()))
}

async fn answer(engine: &Engine, text: &str, at_ms: TimestampMs) -> Answer {
    let query = query::parse(text).map_err(|error| error.to_string())?;
    samples(engine, &query, at_ms).await
}
