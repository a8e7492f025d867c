//! Times PromQL by kind, as dashboards, rules and people ask, and makes sure that what was fast was also an answer.
//!
//! ```text
//! verify   the first questions, untimed: answers kept for the next server, or compared with those that were kept
//! warm up  some more, not counted
//! time     one at a time, each another question; dashboards: clients at once, each its panels one after the other
//! ```
//! Timed answers are not read: only their bytes and samples are counted, as they arrive, so that the generator costs next to
//! nothing and two servers can be compared by how much they answered.

mod answer;
mod question;

use std::fs;
use std::io::Write as _;
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

/// The metrics that questions name.
const METRICS_MIN: u32 = 30;
/// Their numbers are multiplied by a few.
const QUESTIONS_MAX: i64 = 10_000_000;
/// Of a server's words this much is shown.
const WORDS_BYTES: usize = 300;

/// What was sent before, what to ask, and how often.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    #[command(flatten)]
    history: History,
    /// What to ask.
    #[arg(long, value_enum)]
    kind: Kind,
    /// Answers to time; of dashboards as many whole rounds as it takes.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=QUESTIONS_MAX))]
    repeats: u32,
    /// The number of the first question. Who asks in rounds goes on with the one that the round before printed as `next`.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=QUESTIONS_MAX))]
    first: u32,
    /// Questions before, not timed.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=QUESTIONS_MAX))]
    warm_up: u32,
    /// Questions whose answers are kept or compared; of dashboards all panels of so many. With 0 nothing is.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(..=QUESTIONS_MAX))]
    verify: u32,
    /// Prints each latency too, for who puts several rounds together.
    #[arg(long)]
    latencies: bool,
    /// Dashboards that are drawn at once.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Keeps answers in this file.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Compares answers with those another server gave.
    #[arg(long, value_name = "FILE", conflicts_with = "keep")]
    against: Option<PathBuf>,
    /// How far rates may be apart, as a part of the larger; all else may be 1e-9 apart.
    #[arg(long, default_value_t = TOLERANCE)]
    rate_tolerance: f64,
    /// A process on this machine whose CPU time is read before and after.
    #[arg(long)]
    server_pid: Option<u32>,
}

/// What came back.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Questions whose answers were kept or compared, and the values in them.
    pub verified: u64,
    /// See `verified`.
    pub values: u64,
    /// How they differ from the other server's.
    pub comparison: Option<Comparison>,
    /// Samples and bytes of all timed answers.
    pub samples: u64,
    /// See `samples`.
    pub bytes: u64,
    /// From the request to the last byte of its answer.
    pub latency: Summary,
    /// Dashboards only: from the first request to the last answer of a round.
    pub rounds: Option<Summary>,
    /// When asked for: all that `latency` is made of, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latencies_us: Vec<u32>,
    /// The same of `rounds`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rounds_us: Vec<u32>,
    /// The number of the question to go on with.
    pub next: u32,
    /// CPU seconds of the generator while it timed.
    pub cpu_s: f64,
    /// CPU seconds of the server before the first timed request and after the last answer.
    pub server_cpu_s: Option<(f64, f64)>,
}

impl Outcome {
    /// Whether nothing was found that differs.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let found = self.comparison.as_ref();
        found.is_none_or(|found| found.missing + found.extra + found.differing == 0)
    }
}

/// Verifies, warms up and times.
///
/// # Errors
/// When a query fails, or the answers to a kind of question are all empty.
pub async fn run(server: &Server, fleet: Fleet, plan: &Plan) -> Result<Outcome> {
    if fleet.metrics < METRICS_MIN {
        bail!(
            "queries are about all {METRICS_MIN} metrics; sent were {}",
            fleet.metrics
        );
    }
    let asker = Asker {
        server: server.clone(),
        catalogue: Catalogue {
            fleet,
            history: plan.history,
        },
    };
    let mut outcome = Outcome::default();
    if plan.verify > 0 {
        asker.verify(plan, &mut outcome).await?;
    }
    let first = plan.first + plan.verify;
    let warm_up = Plan {
        repeats: plan.warm_up,
        ..plan.clone()
    };
    let warm = asker.time(&warm_up, first).await?;
    let (cpu_before, server_before) = (process::own_cpu_s(), plan.server_pid.and_then(process::cpu_s));
    let timed = asker.time(plan, warm.next).await?;
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

/// One server, and where questions come from.
#[derive(Debug, Clone)]
struct Asker {
    server: Server,
    catalogue: Catalogue,
}

/// Answers that were timed.
#[derive(Debug, Default)]
struct Timed {
    tally: Tally,
    /// How long each round of dashboards took.
    rounds: Latencies,
    /// The number of the question that comes behind them.
    next: u32,
}

/// What timed answers amount to.
#[derive(Debug, Default)]
struct Tally {
    latencies: Latencies,
    samples: u64,
    bytes: u64,
}

impl Asker {
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
            bail!("the other server's answers are to other questions");
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
            bail!("all answers are empty, such as the one to {}", questions[0].query);
        }
        if let Some(file) = &plan.keep {
            keep(file, &bodies)?;
        }
        outcome.comparison = others.map(|_| comparison);
        Ok(())
    }

    /// Asks from the `first` question on.
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

    /// All clients at once, each with its own connection and dashboard.
    async fn round(&self, first: u32, clients: u32) -> Result<Tally> {
        let mut drawing = JoinSet::new();
        for n in first..first + clients {
            let asker = self.clone();
            drawing.spawn(async move {
                let mut tally = Tally::default();
                for panel in asker.catalogue.panels(n) {
                    asker.ask(&panel, &mut tally).await?;
                }
                anyhow::Ok(tally)
            });
        }
        let mut all = Tally::default();
        while let Some(drawn) = drawing.join_next().await {
            all.add(drawn.context("a client's task broke")??);
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
        while let Some(piece) = answer.chunk().await.context("an answer broke off")? {
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
        Ok(answer.bytes().await.context("an answer broke off")?.into())
    }
}

async fn refused(question: &Question, answer: reqwest::Response) -> anyhow::Error {
    let (status, words) = (answer.status(), answer.bytes().await.unwrap_or_default());
    let words = String::from_utf8_lossy(&words[..words.len().min(WORDS_BYTES)]).into_owned();
    anyhow::anyhow!("{}: {status}: {words}", question.query)
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.latencies.merge(&other.latencies);
        self.samples += other.samples;
        self.bytes += other.bytes;
    }
}

/// Counts samples without reading: in each a time's last digit, a comma and a quote follow each other, and nowhere else in an
/// answer.
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

/// A line an answer.
fn keep(file: &Path, bodies: &[Vec<u8>]) -> Result<()> {
    let mut text = Vec::new();
    for body in bodies {
        text.extend(body.iter().filter(|byte| **byte != b'\n'));
        text.push(b'\n');
    }
    let mut out = fs::File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
    out.write_all(&text)
        .with_context(|| format!("cannot write {}", file.display()))
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
