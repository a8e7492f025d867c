//! Compares PromQL with a real Prometheus (Debian's package, 2.42): both get the same samples by remote write, then the same random
//! queries, and the answers are compared.
//!
//! ```text
//!  series ─ remote write ─┬─▶ Prometheus ─┐
//!                         └─▶ collector ──┤ /api/v1/query, /api/v1/query_range
//!  grammar ─ queries ─────────────────────┴─▶ answer: labels, times, values within 1e-9, error or not
//! ```
//! PromQL changed intentionally between Prometheus 2.42 and 3; this collector follows 3. Samples lie off the edges of every window, which
//! 2.42 closes on the left, and `grammar` leaves out what changed. The differences that cannot be left out are listed in `exceptions` and
//! explained in docs/promql.md.
//!
//! `LOCKSTEP_DIFFERENTIAL_SEED` and `LOCKSTEP_DIFFERENTIAL_QUERIES` select other and longer runs.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(
    clippy::print_stdout,
    reason = "the share of equal answers is what this test is read for"
)]

mod answer;
mod exceptions;
mod grammar;
mod peers;
mod series;

use std::collections::BTreeMap;

use futures::StreamExt;

use answer::Answer;
use grammar::{Grammar, Question};
use peers::{Ours, Theirs};

const SEED: u64 = 20_231;
const QUERIES: usize = 1_200;
/// Number of queries at the same time: enough to keep both servers busy on a small machine.
const AT_ONCE: usize = 6;
/// The share of answers that must be equal. Explained differences do not count as equal.
const EQUAL_MIN: f64 = 0.995;

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_prometheus() {
    let (seed, queries) = (number("SEED", SEED), number("QUERIES", QUERIES as u64));
    let (ours, theirs) = tokio::join!(Ours::start(), Theirs::start());
    let written = series::written(seed, series::base_ms(collector::clock::now_ms()));
    for request in &written.requests {
        ours.write(request).await;
        theirs.write(request).await;
    }
    let mut grammar = Grammar::new(seed, written.base_ms);
    let questions: Vec<Question> = (0..queries).map(|_| grammar.question()).collect();
    let compared: Vec<Compared> = futures::stream::iter(questions)
        .map(|question| compare(&ours, &theirs, question))
        .buffered(AT_ONCE)
        .collect()
        .await;
    report(seed, &compared);
}

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(format!("LOCKSTEP_DIFFERENTIAL_{name}")).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

struct Compared {
    question: Question,
    ours: Answer,
    theirs: Answer,
}

async fn compare(ours: &Ours, theirs: &Theirs, question: Question) -> Compared {
    let (ours, theirs) = tokio::join!(ours.ask(&question), theirs.ask(&question));
    Compared {
        question,
        ours,
        theirs,
    }
}

impl Compared {
    fn is_equal(&self) -> bool {
        self.ours.equals(&self.theirs, self.question.is_ordered())
    }
}

/// Prints the result.
///
/// # Panics
/// Panics if too few answers are equal, if a difference has no explanation, or if the queries were too easy.
fn report(seed: u64, compared: &[Compared]) {
    let different: Vec<&Compared> = compared.iter().filter(|one| !one.is_equal()).collect();
    let mut explained: BTreeMap<&str, usize> = BTreeMap::new();
    let mut unexplained = 0;
    for one in &different {
        let reason = exceptions::explain(&one.question, &one.ours, &one.theirs);
        match reason {
            Some(reason) => *explained.entry(reason).or_default() += 1,
            None => unexplained += 1,
        }
        println!(
            "differs ({}): {}\n      ours {}\n    theirs {}",
            reason.unwrap_or("not explained"),
            one.question,
            one.ours,
            one.theirs
        );
    }
    let equal = compared.len() - different.len();
    let count = |is: &dyn Fn(&Compared) -> bool| compared.iter().filter(|one| is(one)).count();
    let (errors, empty) = (
        count(&|one| one.theirs.is_error()),
        count(&|one| one.theirs.is_empty()),
    );
    println!(
        "seed {seed}: {equal} / {} answers equal, {} to the bit; {errors} are errors in both, {empty} empty",
        compared.len(),
        count(&|one| one.ours == one.theirs),
    );
    explained
        .iter()
        .for_each(|(reason, count)| println!("  {count} differ: {reason}"));
    assert!(
        equal as f64 >= EQUAL_MIN * compared.len() as f64 && unexplained == 0,
        "{equal} of {} answers are equal to Prometheus', {unexplained} differ without an explanation",
        compared.len()
    );
    // Queries without a result prove nothing.
    assert!(
        5 * (errors + empty) < compared.len(),
        "{errors} errors and {empty} empty answers are too many"
    );
}
