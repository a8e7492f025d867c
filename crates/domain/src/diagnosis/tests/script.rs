//! Parser of the cases. `testdata/diagnosis/README.md` explains their language.

use crate::diagnosis::input::{Phase, ProcessCondition};
use crate::ident::Rank;
use crate::run::ranks::RankSet;
use crate::time::parse_duration_ms;

/// One case.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) ranks: u32,
    pub(super) nodes: Vec<String>,
    pub(super) roles: Vec<(RankSet, String)>,
    pub(super) data_groups: Vec<(RankSet, String)>,
    /// Seconds of data, forward, backward, optimizer, host and sync in a step.
    pub(super) parts: [f64; 6],
    pub(super) noise: f64,
    pub(super) startup_s: f64,
    /// Phase in which ranks start, and phase in which they wait for a rank that does not start.
    pub(super) startup: Phase,
    pub(super) meet: Phase,
    pub(super) has_loader: bool,
    pub(super) first_step_s: f64,
    pub(super) watch_s: f64,
    pub(super) slow: Vec<Slow>,
    pub(super) halts: Vec<Halt>,
    /// Ranks whose process ends while the others go on, and ranks whose process is stopped, for example by a debugger.
    pub(super) ends: Vec<Period>,
    pub(super) stops: Vec<Period>,
    pub(super) silent: Vec<Silence>,
    pub(super) finer_pools: RankSet,
    pub(super) no_pages: RankSet,
    pub(super) has_flight: bool,
    /// Time until Flight Recorders are answered.
    pub(super) flight_takes_s: f64,
    /// True if ranks wait at the end of the backward pass without their page showing it.
    pub(super) waits_in_backward: bool,
    pub(super) backend: String,
    pub(super) flight: Vec<(RankSet, FlightLine)>,
    pub(super) stacks: Vec<(RankSet, String)>,
    pub(super) values: Vec<(String, RankSet, String)>,
    pub(super) node_values: Vec<(String, String, f64)>,
    /// Loss, learning rate and gradient norm of the run over time, interpolated between these points.
    pub(super) curves: [Vec<(f64, f64)>; 3],
    pub(super) loss_noise: f64,
    /// Groups of ranks that hold the same parameters.
    pub(super) replicas: Vec<RankSet>,
    /// Ranks whose parameters differ, and ranks whose checksum does not arrive.
    pub(super) differing: Vec<Period>,
    pub(super) unchecked: Vec<Period>,
    pub(super) expected: Vec<Expected>,
}

/// Some ranks, for some time.
#[derive(Debug, Clone)]
pub(super) struct Period {
    pub(super) ranks: RankSet,
    pub(super) from_s: f64,
    pub(super) until_s: f64,
}

/// A node from which nothing is received for some time.
#[derive(Debug, Clone)]
pub(super) struct Silence {
    pub(super) node: String,
    pub(super) from_s: f64,
    pub(super) until_s: f64,
}

/// A part of the step that takes longer.
#[derive(Debug, Clone)]
pub(super) struct Slow {
    pub(super) ranks: RankSet,
    pub(super) part: usize,
    pub(super) more_s: f64,
    pub(super) from_s: f64,
    pub(super) until_s: f64,
    pub(super) every: Every,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Every {
    Step,
    Steps(u64),
    Seconds(f64),
}

/// Ranks that stop moving.
#[derive(Debug, Clone)]
pub(super) struct Halt {
    pub(super) ranks: RankSet,
    pub(super) at_s: f64,
    pub(super) phase: Phase,
    pub(super) condition: ProcessCondition,
}

/// A group as ranks report it.
#[derive(Debug, Clone, Default)]
pub(super) struct FlightLine {
    pub(super) group: String,
    pub(super) members: RankSet,
    pub(super) enqueued: Option<u64>,
    pub(super) unfinished: Option<u64>,
    pub(super) operation: String,
    pub(super) sizes: String,
    pub(super) dtypes: String,
    pub(super) started: Option<bool>,
    pub(super) is_silent: bool,
    /// The rank does ten operations per second.
    pub(super) is_advancing: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    pub(super) text: String,
    pub(super) kind: String,
    pub(super) who: String,
    pub(super) phase: Option<String>,
    pub(super) cause: Option<String>,
    pub(super) by_s: Option<f64>,
    pub(super) not_before_s: f64,
    /// Time by which the finding must have ended.
    pub(super) until_s: Option<f64>,
    pub(super) since_step: Option<(u64, u64)>,
    pub(super) is_info: bool,
    pub(super) is_suspect: bool,
}

/// Parses the cases of a file.
pub(super) fn parse(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix("case ") {
            cases.push(Case::new(name));
            continue;
        }
        let case = cases.last_mut().expect("a case begins with `case NAME`");
        case.line(line)
            .unwrap_or_else(|| panic!("line {}: cannot be read: {line}", number + 1));
    }
    cases
}

impl Case {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ranks: 4,
            nodes: vec!["a".to_owned()],
            roles: Vec::new(),
            data_groups: Vec::new(),
            parts: [0.010, 0.060, 0.090, 0.020, 0.010, 0.010],
            noise: 0.03,
            startup_s: 2.0,
            startup: Phase::Starting,
            meet: Phase::Rendezvous,
            has_loader: true,
            first_step_s: 1.0,
            watch_s: 60.0,
            slow: Vec::new(),
            halts: Vec::new(),
            ends: Vec::new(),
            stops: Vec::new(),
            silent: Vec::new(),
            finer_pools: RankSet::default(),
            no_pages: RankSet::default(),
            has_flight: true,
            flight_takes_s: 1.0,
            waits_in_backward: false,
            backend: "gloo".to_owned(),
            flight: Vec::new(),
            stacks: Vec::new(),
            values: Vec::new(),
            node_values: Vec::new(),
            curves: Default::default(),
            loss_noise: 0.05,
            replicas: Vec::new(),
            differing: Vec::new(),
            unchecked: Vec::new(),
            expected: Vec::new(),
        }
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["ranks", count] => self.ranks = count.parse().ok()?,
            ["ranks", count, "on", nodes @ ..] => {
                self.ranks = count.parse().ok()?;
                self.nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            }
            ["role", ranks, role] => self.roles.push((set(ranks)?, (*role).to_owned())),
            ["data", "group", ranks, group] => self.data_groups.push((set(ranks)?, (*group).to_owned())),
            ["step", parts @ ..] => {
                for pair in parts.chunks(2) {
                    self.parts[part(pair[0])?] = seconds(pair.get(1)?)?;
                }
            }
            ["replicas", ranks] => self.replicas.push(set(ranks)?),
            ["differs", ranks, rest @ ..] => self.differing.push(period(ranks, rest)?),
            ["unchecked", ranks, rest @ ..] => self.unchecked.push(period(ranks, rest)?),
            ["noise", percent] => self.noise = percent.strip_suffix('%')?.parse::<f64>().ok()? / 100.0,
            ["startup", time] => self.startup_s = seconds(time)?,
            ["startup", "phase", name] => self.startup = phase(name)?,
            ["meet", "in", name] => self.meet = phase(name)?,
            ["no", "loader"] => self.has_loader = false,
            ["first", "step", time] => self.first_step_s = seconds(time)?,
            ["watch", time] => self.watch_s = seconds(time)?,
            ["slow", ranks, name, more, rest @ ..] => self.slow.push(slow(ranks, name, more, rest)?),
            ["halt", ranks, "in", name, "at", time, rest @ ..] => self.halts.push(Halt {
                ranks: set(ranks)?,
                at_s: seconds(time)?,
                phase: phase(name)?,
                condition: condition(rest.first().copied().unwrap_or("alive"))?,
            }),
            ["ends", ranks, rest @ ..] => self.ends.push(period(ranks, rest)?),
            ["stops", ranks, rest @ ..] => self.stops.push(period(ranks, rest)?),
            ["silent", node, rest @ ..] => self.silent.push(silence(node, rest)?),
            ["pools", "finer", ranks] => self.finer_pools = set(ranks)?,
            ["no", "pages", ranks] => self.no_pages = set(ranks)?,
            ["no", "flight"] => self.has_flight = false,
            ["flights", "take", time] => self.flight_takes_s = seconds(time)?,
            ["waits", "in", "backward"] => self.waits_in_backward = true,
            ["backend", name] => self.backend = (*name).to_owned(),
            ["flight", ranks, rest @ ..] => self.flight.push((set(ranks)?, flight(rest)?)),
            ["stack", ranks, how] => self.stacks.push((set(ranks)?, (*how).to_owned())),
            ["loss", "noise", percent] => {
                self.loss_noise = percent.strip_suffix('%')?.parse::<f64>().ok()? / 100.0;
            }
            [name @ ("loss" | "rate" | "gradient"), points @ ..] => {
                let curve = ["loss", "rate", "gradient"]
                    .iter()
                    .position(|known| known == name)?;
                for point in points {
                    let (at, value) = point.split_once('=')?;
                    self.curves[curve].push((seconds(at)?, value.parse().ok()?));
                }
            }
            ["node", node, what, value] => {
                self.node_values
                    .push(((*node).to_owned(), (*what).to_owned(), value.parse().ok()?));
            }
            ["rank", ranks, what, value] => {
                self.values
                    .push(((*what).to_owned(), set(ranks)?, (*value).to_owned()));
            }
            ["expect", "nothing"] => {}
            ["expect", kind, rest @ ..] => self.expected.push(expected(line, kind, rest)?),
            _ => return None,
        }
        Some(())
    }
}

pub(super) const PARTS: [&str; 6] = ["data", "forward", "backward", "optimizer", "host", "sync"];

fn part(name: &str) -> Option<usize> {
    PARTS.iter().position(|known| *known == name)
}

fn phase(name: &str) -> Option<Phase> {
    serde_json::from_value(name.into()).ok()
}

fn set(text: &str) -> Option<RankSet> {
    RankSet::try_from(text.to_owned()).ok()
}

fn seconds(text: &str) -> Option<f64> {
    parse_duration_ms(text).ok().map(|ms| ms as f64 / 1e3)
}

fn condition(word: &str) -> Option<ProcessCondition> {
    Some(match word {
        "alive" => ProcessCondition::Alive,
        "stopped" => ProcessCondition::Stopped,
        "uninterruptible" => ProcessCondition::Uninterruptible,
        "ended" => ProcessCondition::Ended,
        _ => return None,
    })
}

fn period(ranks: &str, rest: &[&str]) -> Option<Period> {
    let (from_s, until_s) = from_until(rest)?;
    let ranks = set(ranks)?;
    Some(Period {
        ranks,
        from_s,
        until_s,
    })
}

fn silence(node: &str, rest: &[&str]) -> Option<Silence> {
    let (from_s, until_s) = from_until(rest)?;
    Some(Silence {
        node: node.to_owned(),
        from_s,
        until_s,
    })
}

fn from_until(words: &[&str]) -> Option<(f64, f64)> {
    match words {
        ["from", from] => Some((seconds(from)?, f64::INFINITY)),
        ["from", from, "until", until] => Some((seconds(from)?, seconds(until)?)),
        _ => None,
    }
}

fn slow(ranks: &str, name: &str, more: &str, rest: &[&str]) -> Option<Slow> {
    let mut slow = Slow {
        ranks: set(ranks)?,
        part: part(name)?,
        more_s: seconds(more.strip_prefix('+')?)?,
        from_s: 0.0,
        until_s: f64::INFINITY,
        every: Every::Step,
    };
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let value = words.next()?;
        match *word {
            "from" => slow.from_s = seconds(value)?,
            "until" => slow.until_s = seconds(value)?,
            "every" => {
                slow.every = match value.parse() {
                    Ok(steps) => {
                        words.next().filter(|word| **word == "steps")?;
                        Every::Steps(steps)
                    }
                    Err(_) => Every::Seconds(seconds(value)?),
                };
            }
            _ => return None,
        }
    }
    Some(slow)
}

fn flight(words: &[&str]) -> Option<FlightLine> {
    let mut line = FlightLine::default();
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "group" => value.clone_into(&mut line.group),
            "members" => line.members = set(value)?,
            "enqueued" => line.enqueued = Some(value.parse().ok()?),
            "waits" => line.unfinished = Some(value.parse().ok()?),
            "op" => value.clone_into(&mut line.operation),
            "sizes" => value.clone_into(&mut line.sizes),
            "dtype" => value.clone_into(&mut line.dtypes),
            "started" => line.started = Some(value == "yes"),
            "silent" => line.is_silent = true,
            "advances" => line.is_advancing = true,
            _ => return None,
        }
    }
    Some(line)
}

fn expected(text: &str, kind: &str, words: &[&str]) -> Option<Expected> {
    let mut expected = Expected {
        text: text.to_owned(),
        kind: kind.to_owned(),
        ..Expected::default()
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "info" => expected.is_info = true,
            "suspect" => expected.is_suspect = true,
            "nobody" => "nobody".clone_into(&mut expected.who),
            "rank" | "ranks" => expected.who = set(words.next()?)?.to_string(),
            "node" => expected.who = format!("node {}", words.next()?),
            "sides" => expected.who = format!("{} | {}", words.next()?, words.next()?),
            "phase" => expected.phase = Some((*words.next()?).to_owned()),
            "cause" => expected.cause = Some((*words.next()?).to_owned()),
            "by" => expected.by_s = Some(seconds(words.next()?)?),
            "until" => expected.until_s = Some(seconds(words.next()?)?),
            "not-before" => expected.not_before_s = seconds(words.next()?)?,
            "since-step" => {
                let (first, last) = words.next()?.split_once('-')?;
                expected.since_step = Some((first.parse().ok()?, last.parse().ok()?));
            }
            _ => return None,
        }
    }
    Some(expected)
}

impl FlightLine {
    /// Returns the group as it is at a time.
    pub(super) fn at(&self, now_s: f64) -> Self {
        let more = if self.is_advancing {
            (now_s * 10.0) as u64
        } else {
            0
        };
        let later = |sequence: Option<u64>| sequence.map(|sequence| sequence + more);
        Self {
            enqueued: later(self.enqueued),
            unfinished: later(self.unfinished),
            ..self.clone()
        }
    }
}

impl Period {
    pub(super) fn contains(&self, rank: u32, at_s: f64) -> bool {
        holds(&self.ranks, rank) && (self.from_s..self.until_s).contains(&at_s)
    }
}

pub(super) fn holds(ranks: &RankSet, rank: u32) -> bool {
    ranks.contains(Rank(rank))
}
