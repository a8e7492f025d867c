//! Times PromQL by kind, with the queries of dashboards, rules and people, and verifies the answers.
//!
//! ```text
//! verify   the first questions, not timed: answers are stored for the next server, or compared with stored ones
//! warm up  some more questions, not counted
//! time     one question at a time, each different; dashboards: several clients at once, each requests its panels in sequence
//! ```
//! Timed answers are not parsed: only their bytes and samples are counted as they arrive. So the generator costs almost
//! nothing, and two servers can be compared by how much they answered.

mod answer;
mod question;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use self::answer::{Answer, TOLERANCE};
use self::question::{Catalogue, Question};
use crate::Fleet;
use crate::history::History;
use crate::http::Server;
use crate::latency::{Latencies, Summary};
use crate::process;

pub use self::answer::Comparison;
pub use self::question::Kind;

/// The number of metrics that questions use.
const METRICS_MIN: u32 = 30;
/// The maximum number of a question. Numbers are multiplied by small factors, and the products must fit into `u32`.
const QUESTIONS_MAX: i64 = 10_000_000;
/// How much of a server's error text is shown, in bytes.
const ERROR_BYTES_MAX: usize = 300;

/// The history, the questions, and how many.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    #[command(flatten)]
    history: History,
    /// Kind of the questions.
    #[arg(long, value_enum)]
    kind: Kind,
    /// Number of answers to time. Dashboards: as many whole rounds as this takes.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=QUESTIONS_MAX))]
    repeats: u32,
    /// Number of the first question. To continue an earlier call, use the number that it printed as `next`.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=QUESTIONS_MAX))]
    first: u32,
    /// Number of questions before that are not timed.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=QUESTIONS_MAX))]
    warm_up: u32,
    /// Number of questions whose answers are stored or compared; dashboards: all panels of this many. 0 disables this.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(..=QUESTIONS_MAX))]
    verify: u32,
    /// Prints each latency as well, to combine several calls.
    #[arg(long)]
    latencies: bool,
    /// Number of dashboards that are loaded at once.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Stores the answers in this file.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Compares the answers with those of another server in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "keep")]
    against: Option<PathBuf>,
    /// Tolerated relative difference of rates. Other values may differ by 1e-9.
    #[arg(long, default_value_t = TOLERANCE)]
    rate_tolerance: f64,
    /// The id of a process on this machine whose CPU time is measured.
    #[arg(long)]
    server_pid: Option<u32>,
}

/// The result.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Questions whose answers were stored or compared.
    pub verified: u64,
    /// The number of values in those answers.
    pub values: u64,
    /// The differences from the other server's answers.
    pub comparison: Option<Comparison>,
    /// Samples of all timed answers.
    pub samples: u64,
    /// Bytes of all timed answers.
    pub bytes: u64,
    /// The time from a request to the last byte of its answer.
    pub latency: Summary,
    /// Only for dashboards: the time from the first request to the last answer of a round.
    pub rounds: Option<Summary>,
    /// On request: all latencies that `latency` summarizes, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latencies_us: Vec<u32>,
    /// On request: all latencies that `rounds` summarizes, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rounds_us: Vec<u32>,
    /// The number of the question to continue with.
    pub next: u32,
    /// CPU seconds of the generator during the timed part.
    pub cpu_s: f64,
    /// CPU seconds of the server before the first timed request and after the last answer.
    pub server_cpu_s: Option<(f64, f64)>,
}

impl Outcome {
    /// Returns true if no difference was found.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let found = self.comparison.as_ref();
        found.is_none_or(|found| found.missing + found.extra + found.differing == 0)
    }
}

/// Verifies, warms up and times.
///
/// # Errors
/// Fails if a query fails, if all verified answers are empty, or if the series do not have the names of an exporter.
pub async fn run(server: &Server, fleet: Fleet, plan: &Plan) -> Result<Outcome> {
    fleet.check_exporter()?;
    if fleet.metrics < METRICS_MIN {
        bail!(
            "queries use all {METRICS_MIN} metrics, but the fleet has {}; set --metrics",
            fleet.metrics
        );
    }
    let client = Client {
        server: server.clone(),
        catalogue: Catalogue {
            fleet,
            history: plan.history,
        },
    };
    let mut outcome = Outcome::default();
    if plan.verify > 0 {
        client.verify(plan, &mut outcome).await?;
    }
    let first = plan.first + plan.verify;
    let warm_up = Plan {
        repeats: plan.warm_up,
        ..plan.clone()
    };
    let warm = client.time(&warm_up, first).await?;
    let (cpu_before, server_before) = (process::own_cpu_s(), plan.server_pid.and_then(process::cpu_s));
    let timed = client.time(plan, warm.next).await?;
    let server_after = plan.server_pid.and_then(process::cpu_s);
    let listed = |latencies: &Latencies| match plan.latencies {
        true => latencies.micros().to_vec(),
        false => Vec::new(),
    };
    Ok(Outcome {
        latencies_us: listed(&timed.tally.latencies),
        rounds_us: listed(&timed.rounds),
        next: timed.next,
        samples: timed.tally.samples,
        bytes: timed.tally.bytes,
        latency: timed.tally.latencies.summary(),
        rounds: (plan.kind == Kind::Dashboards).then(|| timed.rounds.summary()),
        cpu_s: process::own_cpu_s() - cpu_before,
        server_cpu_s: server_before.zip(server_after),
        ..outcome
    })
}

/// A server, and the source of questions.
#[derive(Debug, Clone)]
struct Client {
    server: Server,
    catalogue: Catalogue,
}

/// The timed answers.
#[derive(Debug, Default)]
struct Timed {
    tally: Tally,
    /// The duration of each round of dashboards.
    rounds: Latencies,
    /// The number of the next question.
    next: u32,
}

/// The totals of timed answers.
#[derive(Debug, Default)]
struct Tally {
    latencies: Latencies,
    samples: u64,
    bytes: u64,
}

impl Client {
    async fn verify(&self, plan: &Plan, outcome: &mut Outcome) -> Result<()> {
        let numbers = plan.first..plan.first + plan.verify;
        let questions: Vec<_> = match plan.kind {
            Kind::Dashboards => numbers.flat_map(|n| self.catalogue.panels(n)).collect(),
            kind => numbers.map(|n| self.catalogue.question(kind, n)).collect(),
        };
        let others = plan.against.as_deref().map(kept).transpose()?;
        if others
            .as_ref()
            .is_some_and(|others| others.len() != questions.len())
        {
            bail!(
                "the other server's answers belong to other questions; use the same --kind, --first and --verify"
            );
        }
        let mut comparison = Comparison::default();
        let mut bodies = Vec::new();
        for (nth, question) in questions.iter().enumerate() {
            let body = self.read(question).await?;
            let parse = |body: &[u8]| {
                Answer::parse(body, question.identity()).with_context(|| question.query.clone())
            };
            let answer = parse(&body)?;
            outcome.verified += 1;
            outcome.values += answer.len() as u64;
            if let Some(others) = &others {
                let tolerance = if question.is_rate() {
                    plan.rate_tolerance
                } else {
                    TOLERANCE
                };
                let other = parse(others[nth].as_bytes())?;
                answer.compare(&other, tolerance, &question.query, &mut comparison);
            }
            bodies.push(body);
        }
        if outcome.values == 0 {
            bail!(
                "all answers are empty, for example the answer to {}",
                questions[0].query
            );
        }
        if let Some(file) = &plan.keep {
            keep(file, &bodies)?;
        }
        outcome.comparison = others.map(|_| comparison);
        Ok(())
    }

    /// Times questions from number `first` on.
    async fn time(&self, plan: &Plan, first: u32) -> Result<Timed> {
        let mut timed = Timed {
            next: first,
            ..Timed::default()
        };
        while timed.tally.latencies.count() < u64::from(plan.repeats) {
            if plan.kind == Kind::Dashboards {
                let begin = Instant::now();
                timed.tally.add(self.round(timed.next, plan.clients).await?);
                timed.rounds.add(begin.elapsed());
                timed.next += plan.clients;
            } else {
                let question = self.catalogue.question(plan.kind, timed.next);
                self.ask(&question, &mut timed.tally).await?;
                timed.next += 1;
            }
        }
        Ok(timed)
    }

    /// Loads the dashboards of all clients at once. Each client has its own connection and dashboard.
    async fn round(&self, first: u32, clients: u32) -> Result<Tally> {
        let mut drawing = JoinSet::new();
        for n in first..first + clients {
            let client = self.clone();
            drawing.spawn(async move {
                let mut tally = Tally::default();
                for panel in client.catalogue.panels(n) {
                    client.ask(&panel, &mut tally).await?;
                }
                anyhow::Ok(tally)
            });
        }
        let mut all = Tally::default();
        while let Some(drawn) = drawing.join_next().await {
            all.add(drawn.context("a client's task failed")??);
        }
        Ok(all)
    }

    async fn ask(&self, question: &Question, tally: &mut Tally) -> Result<()> {
        let (path, form) = question.request();
        let request = self.server.post(path)?.form(&form);
        let begin = Instant::now();
        let mut answer = request.send().await.context("cannot ask")?;
        if !answer.status().is_success() {
            return Err(refused(question, answer).await);
        }
        let mut counter = Counter::default();
        while let Some(piece) = answer.chunk().await.context("the answer ended early")? {
            counter.count(&piece);
        }
        tally.latencies.add(begin.elapsed());
        tally.samples += counter.samples;
        tally.bytes += counter.bytes;
        Ok(())
    }

    async fn read(&self, question: &Question) -> Result<Vec<u8>> {
        let (path, form) = question.request();
        let answer = self.server.post(path)?.form(&form).send().await;
        let answer = answer.context("cannot ask")?;
        if !answer.status().is_success() {
            return Err(refused(question, answer).await);
        }
        Ok(answer.bytes().await.context("the answer ended early")?.into())
    }
}

async fn refused(question: &Question, answer: reqwest::Response) -> anyhow::Error {
    let (status, words) = (answer.status(), answer.bytes().await.unwrap_or_default());
    let words = String::from_utf8_lossy(&words[..words.len().min(ERROR_BYTES_MAX)]).into_owned();
    anyhow::anyhow!("{}: {status}: {words}", question.query)
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.latencies.merge(&other.latencies);
        self.samples += other.samples;
        self.bytes += other.bytes;
    }
}

/// Counts samples without parsing: in each sample the last digit of the time, a comma and a quote follow each other, and
/// nowhere else in an answer.
#[derive(Debug, Default)]
struct Counter {
    samples: u64,
    bytes: u64,
    last: [u8; 2],
}

impl Counter {
    fn count(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        for byte in piece {
            let [digit, comma] = self.last;
            self.samples += u64::from(*byte == b'"' && comma == b',' && digit.is_ascii_digit());
            self.last = [comma, *byte];
        }
    }
}

/// Writes one answer per line.
fn keep(file: &Path, bodies: &[Vec<u8>]) -> Result<()> {
    let mut text = Vec::new();
    for body in bodies {
        text.extend(body.iter().filter(|byte| **byte != b'\n'));
        text.push(b'\n');
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn kept(file: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn samples_are_counted_across_pieces() {
        let body = br#"{"data":{"result":[{"metric":{"a":"x"},"values":[[1,"2"],[3,"4"]]},{"metric":{"b":"1","c":"2"},"value":[1.5,"NaN"]}]},"infos":["no counter"]}"#;
        for cut in 0..body.len() {
            let mut counter = Counter::default();
            counter.count(&body[..cut]);
            counter.count(&body[cut..]);
            assert_eq!((counter.samples, counter.bytes), (3, body.len() as u64), "{cut}");
        }
    }

    #[test]
    fn answers_are_kept_a_line_each() {
        let file = std::env::temp_dir().join(format!("loadgen-answers-{}", std::process::id()));
        keep(&file, &[b"{\"a\":\n1}\n".to_vec(), b"{}".to_vec()]).unwrap();
        assert_eq!(kept(&file).unwrap(), ["{\"a\":1}", "{}"]);
        fs::remove_file(file).unwrap();
    }
}
