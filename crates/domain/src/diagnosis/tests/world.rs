//! Simulated ranks that train together, as the analysers see them: pools, positions twice per second, answers to requests.

use std::collections::VecDeque;

use crate::diagnosis::analysis::{Analysis, AnalysisOutput, Measurement, Member, RankRequest, STACK_SAMPLES};
use crate::diagnosis::finding::Finding;
use crate::diagnosis::input::{
    Distribution, FlightAnswer, GpuCondition, Learning, NodeResources, Page, ParametersChecksum, Phase, Pool,
    Position, ProcessCondition, Resources, StackAnswer, StepParts,
};
use crate::ident::{NodeName, Rank};
use crate::run::inspect::{FlightDigest, Frame, GroupDigest, Operation};
use crate::run::ranks::RankSet;

use super::script::{Case, Every, FlightLine, PARTS, Period, holds};

/// Time at which the case begins.
pub(super) const BEGIN_MS: i64 = 1_700_000_000_000;
const TICK_MS: i64 = 500;
/// Time from a measurement to its arrival at the collector.
const LATENCY_MS: i64 = 300;
const SYNC: usize = 5;
/// Steps between two checks of the parameters.
const CHECKED_EVERY: u64 = 16;
/// Number of first steps that are single pools.
const SINGLE_STEPS: u64 = 30;
const PHASES: [Phase; 6] = [
    Phase::Data,
    Phase::Forward,
    Phase::Backward,
    Phase::Optimizer,
    Phase::Host,
    Phase::Collective,
];

/// One step of all ranks: when it begins, and how long each part takes on each rank.
struct Step {
    number: u64,
    begin_s: f64,
    parts: Vec<[f64; 6]>,
    /// When it ends; infinite if a rank halts in it.
    end_s: f64,
}

pub(super) struct World<'a> {
    case: &'a Case,
    analysis: Analysis,
    step: Step,
    random: u64,
    /// Time of the next occurrence of each time-based slowdown.
    strikes: Vec<f64>,
    /// Steps that wait for the end of their pool, by rank.
    pooled: Vec<Vec<[f64; 7]>>,
    pool_steps: u64,
    answers: VecDeque<(f64, RankRequest)>,
    cpu: Vec<f64>,
    pub(super) requests: Vec<RankRequest>,
}

impl<'a> World<'a> {
    pub(super) fn new(case: &'a Case) -> Self {
        let ranks = case.ranks as usize;
        let step_s: f64 = case.parts.iter().sum();
        let exponent = (1.0 / step_s).log2().round().max(0.0) as u32;
        let mut world = Self {
            analysis: Analysis::new(members(case)),
            step: Step {
                number: 0,
                begin_s: 0.0,
                parts: Vec::new(),
                end_s: 0.0,
            },
            random: 7,
            strikes: case.slow.iter().map(|slow| slow.from_s).collect(),
            pooled: vec![Vec::new(); ranks],
            pool_steps: 1 << exponent,
            answers: VecDeque::new(),
            cpu: vec![0.0; ranks],
            requests: Vec::new(),
            case,
        };
        world.begin_step(case.startup_s);
        world
    }

    /// Advances time by half a second. At every second tick the analysers run.
    pub(super) fn tick(&mut self, tick: i64) -> Option<AnalysisOutput> {
        let now_s = (tick * TICK_MS) as f64 / 1e3;
        while self.step.end_s <= now_s {
            self.end_step();
            self.begin_step(self.step.end_s);
        }
        for rank in 0..self.case.ranks {
            if self.is_reporting(rank, now_s) {
                let position = self.position(rank, now_s);
                self.analysis.take(Measurement::Position(position));
            }
        }
        if tick % 2 != 0 {
            return None;
        }
        self.resources(now_s);
        while self.answers.front().is_some_and(|(at_s, _)| *at_s <= now_s) {
            let request = self.answers.pop_front().map(|(_, request)| request);
            self.answer(request, now_s);
        }
        let output = self.analysis.advance(at_ms(now_s) + LATENCY_MS);
        for request in &output.requests {
            let takes_s = match request {
                RankRequest::Flight { .. } => self.case.flight_takes_s,
                RankRequest::Stacks { .. } => 5.0,
            };
            self.answers.push_back((now_s + takes_s, request.clone()));
            self.answers.make_contiguous().sort_by(|a, b| a.0.total_cmp(&b.0));
            self.requests.push(request.clone());
        }
        Some(output)
    }

    // === Steps ===

    fn begin_step(&mut self, begin_s: f64) {
        let number = self.step.number + 1;
        let mut parts: Vec<[f64; 6]> = (0..self.case.ranks)
            .map(|_| {
                self.case
                    .parts
                    .map(|part| part * (1.0 + self.case.noise * self.chance()))
            })
            .collect();
        if number == 1 {
            parts
                .iter_mut()
                .for_each(|parts| parts[1] += self.case.first_step_s);
        }
        for (at, slow) in self.case.slow.iter().enumerate() {
            let strikes = begin_s >= slow.from_s
                && begin_s < slow.until_s
                && match slow.every {
                    Every::Step => true,
                    Every::Steps(steps) => number.is_multiple_of(steps),
                    Every::Seconds(every_s) => {
                        let strikes = begin_s >= self.strikes[at];
                        self.strikes[at] += if strikes { every_s } else { 0.0 };
                        strikes
                    }
                };
            for (rank, parts) in parts.iter_mut().enumerate() {
                if strikes && holds(&slow.ranks, rank as u32) {
                    parts[slow.part] += slow.more_s;
                }
            }
        }
        let own = |parts: &[f64; 6]| parts[..SYNC].iter().sum::<f64>();
        let longest = parts.iter().map(own).fold(0.0, f64::max);
        let end_s = begin_s + longest + self.case.parts[SYNC];
        parts
            .iter_mut()
            .for_each(|parts| parts[SYNC] = end_s - begin_s - own(parts));
        let halts = self.case.halts.iter().any(|halt| end_s > halt.at_s);
        self.step = Step {
            number,
            begin_s,
            parts,
            end_s: if halts { f64::INFINITY } else { end_s },
        };
    }

    fn end_step(&mut self) {
        for rank in 0..self.case.ranks {
            let parts = self.step.parts[rank as usize];
            let whole = self.step.end_s - self.step.begin_s;
            let [data, forward, backward, optimizer, host, sync] = parts;
            self.pooled[rank as usize].push([whole, data, forward, backward, optimizer, host, sync]);
            let steps = if holds(&self.case.finer_pools, rank) {
                (self.pool_steps / 2).max(1)
            } else {
                self.pool_steps
            };
            let ends = self.step.number <= SINGLE_STEPS || self.step.number.is_multiple_of(steps);
            let has_ended = self
                .case
                .ends
                .iter()
                .any(|period| period.contains(rank, self.step.end_s));
            if ends && !has_ended && self.is_reporting(rank, self.step.end_s) {
                self.send_pool(rank);
            }
        }
    }

    fn send_pool(&mut self, rank: u32) {
        let steps = std::mem::take(&mut self.pooled[rank as usize]);
        let learning = self.learning(rank, steps.len());
        let mean = |part: usize| Some(steps.iter().map(|step| step[part]).sum::<f64>() / steps.len() as f64);
        let max = |part: usize| Some(steps.iter().map(|step| step[part]).fold(0.0, f64::max));
        let parts = |of: &dyn Fn(usize) -> Option<f64>| StepParts {
            step: of(0),
            data: of(1).filter(|_| self.case.has_loader),
            forward: if self.case.has_loader {
                of(2)
            } else {
                [1, 2, 5].into_iter().map(of).sum()
            },
            backward: of(3),
            optimizer: of(4),
            save: None,
            sync: of(6),
            host: of(5).filter(|_| self.case.has_loader),
        };
        self.analysis.take(Measurement::Pool(Pool {
            rank: Rank(rank),
            node: node_of(self.case, rank),
            first_step: self.step.number + 1 - steps.len() as u64,
            last_step: self.step.number,
            at_ms: at_ms(self.step.end_s),
            mean: parts(&mean),
            max: parts(&max),
            micro_batch: self.value("batch", rank).or(Some(8.0)),
            learning,
            parameters: self.parameters(rank),
        }));
    }

    /// Each rank has different batches, so its loss and its own gradients vary. The offset from the rank's own data is constant.
    fn learning(&mut self, rank: u32, steps: usize) -> Learning {
        let at_s = self.step.end_s;
        let [loss, rate, gradient] = [0, 1, 2].map(|curve| point(&self.case.curves[curve], at_s));
        let offset = self.value("loss-offset", rank).unwrap_or(0.0);
        let noise = self.case.loss_noise / (steps as f64).sqrt();
        let has_data = loss.is_some();
        let mut data = |what: &str| {
            let offset = self.value(what, rank).unwrap_or(0.0);
            let scatter = 0.7 * self.chance() / (steps as f64).sqrt();
            Distribution {
                mean: has_data.then_some(offset + scatter),
                deviation: has_data.then_some(1.0),
            }
        };
        let (input, label) = (data("input-offset"), data("label-offset"));
        // Not from `chance`, so that cases without these values see the same random numbers as before.
        let varies = [0.4, 0.8, 1.0, 1.5, 2.0][((self.step.number + u64::from(rank)) % 5) as usize];
        let has_classes = self.case.values.iter().any(|(name, ..)| name == "top-class");
        let top_class = self.value("top-class", rank).unwrap_or(0.1) + 0.02 * varies;
        let factor = self.value("gradient-factor", rank).unwrap_or(1.0);
        Learning {
            input,
            label,
            loss: loss.map(|loss| loss * (1.0 + offset + noise * 2.0 * self.chance())),
            rate: rate.map(|rate| rate * self.value("rate-factor", rank).unwrap_or(1.0)),
            gradient,
            own_gradient: gradient.map(|gradient| gradient * factor * varies),
            label_top: has_classes.then_some(top_class),
        }
    }

    /// Replicas have the same checksum, which changes with each step.
    fn parameters(&self, rank: u32) -> Option<ParametersChecksum> {
        let Step { number, end_s, .. } = self.step;
        let applies = |periods: &[Period]| periods.iter().any(|period| period.contains(rank, end_s));
        if !number.is_multiple_of(CHECKED_EVERY) || applies(&self.case.unchecked) {
            return None;
        }
        let replicas = self.case.replicas.iter().find(|ranks| holds(ranks, rank))?;
        let group = replicas.iter().next()?.0;
        let own = if applies(&self.case.differing) {
            1 + rank
        } else {
            0
        };
        Some(ParametersChecksum {
            group,
            checksum: (number << 32) + (u64::from(group) << 16) + u64::from(own),
        })
    }

    // === Positions ===

    fn position(&self, rank: u32, now_s: f64) -> Position {
        let halt = self
            .case
            .halts
            .iter()
            .find(|halt| holds(&halt.ranks, rank) && now_s >= halt.at_s && self.step.end_s.is_infinite());
        let applies = |periods: &[Period]| periods.iter().any(|period| period.contains(rank, now_s));
        let has_ended = applies(&self.case.ends);
        let has_page = !holds(&self.case.no_pages, rank) && !has_ended;
        let page = has_page.then(|| match halt {
            Some(halt) => self.page(halt.phase, now_s - halt.at_s),
            None => self.page_in_step(rank, now_s),
        });
        let process = halt.map_or(ProcessCondition::Alive, |halt| halt.condition);
        Position {
            rank: Rank(rank),
            node: node_of(self.case, rank),
            at_ms: at_ms(now_s),
            process: if has_ended {
                ProcessCondition::Ended
            } else if applies(&self.case.stops) {
                ProcessCondition::Stopped
            } else {
                process
            },
            page,
        }
    }

    fn page_in_step(&self, rank: u32, now_s: f64) -> Page {
        if now_s < self.step.begin_s {
            let halt = self.case.halts.iter().find(|halt| now_s > halt.at_s);
            return match halt {
                Some(halt) => self.page(self.case.meet, now_s - halt.at_s),
                None => self.page(self.case.startup, now_s),
            };
        }
        let mut since_s = self.step.begin_s;
        for (part, seconds) in self.step.parts[rank as usize].iter().enumerate() {
            if now_s < since_s + seconds || part == SYNC {
                return self.page(PHASES[part], now_s - since_s);
            }
            since_s += seconds;
        }
        self.page(Phase::Collective, now_s - since_s)
    }

    fn page(&self, phase: Phase, in_phase_s: f64) -> Page {
        let is_hidden = self.case.waits_in_backward && phase == Phase::Collective;
        let is_script = !self.case.has_loader && matches!(phase, Phase::Data | Phase::Host);
        let phase = match phase {
            _ if is_hidden => Phase::Backward,
            _ if is_script => Phase::Forward,
            phase => phase,
        };
        Page {
            step: self.step.number - 1,
            phase,
            in_phase_s,
            moves: 2 * self.step.number
                + u64::from(phase >= Phase::Forward)
                + u64::from(phase >= Phase::Backward),
        }
    }

    // === Resources ===

    fn resources(&mut self, now_s: f64) {
        let of_gpu = ["throttle", "pcie"];
        let mut values = self.case.values.iter();
        let has_gpus =
            self.case.backend == "nccl" || values.any(|(name, ..)| of_gpu.contains(&name.as_str()));
        for rank in 0..self.case.ranks {
            if !self.is_reporting(rank, now_s) {
                continue;
            }
            let is_halted = self
                .case
                .halts
                .iter()
                .any(|halt| holds(&halt.ranks, rank) && now_s >= halt.at_s);
            let share = self.value("cpu", rank);
            self.cpu[rank as usize] += share.unwrap_or(if is_halted { 0.0 } else { 0.8 });
            let gpu = GpuCondition {
                throttle_reasons: self.word("throttle", rank).into_iter().collect(),
                pcie_width_ratio: Some(self.value("pcie", rank).unwrap_or(1.0)),
            };
            self.analysis.take(Measurement::Resources(Resources {
                rank: Rank(rank),
                at_ms: at_ms(now_s),
                cpu_seconds_total: Some(self.cpu[rank as usize]),
                run_delay_seconds_total: Some(self.value("delay", rank).unwrap_or(0.01) * now_s),
                major_faults_total: Some(self.value("faults", rank).unwrap_or(0.0) * now_s),
                host_memory_bytes: None,
                gpu: has_gpus.then_some(gpu),
            }));
        }
        for node in &self.case.nodes {
            let value = |name: &str| {
                let values = self.case.node_values.iter();
                values
                    .filter(|(of, what, _)| of == node && what == name)
                    .map(|(_, _, value)| *value)
                    .next()
            };
            self.analysis.take(Measurement::Node(NodeResources {
                node: NodeName::new(node.as_str()).expect("a name"),
                at_ms: at_ms(now_s),
                cpus: Some(8.0),
                steal_seconds_total: Some(value("steal").unwrap_or(0.0) * 8.0 * now_s),
            }));
        }
    }

    // === Answers ===

    fn answer(&mut self, request: Option<RankRequest>, now_s: f64) {
        let inspected = |ranks: &RankSet, rank: &u32| holds(ranks, *rank) && self.is_reporting(*rank, now_s);
        let measurement = match request {
            None => return,
            Some(RankRequest::Flight { suspected_ms, ranks }) => {
                let inspected = (0..self.case.ranks).filter(|rank| inspected(&ranks, rank));
                let answers = inspected.map(|rank| FlightAnswer {
                    rank: Rank(rank),
                    at_ms: at_ms(now_s),
                    digest: self.digest(rank, now_s),
                });
                Measurement::Flight {
                    suspected_ms,
                    answers: answers.collect(),
                }
            }
            Some(RankRequest::Stacks { suspected_ms, ranks }) => {
                let inspected = (0..self.case.ranks).filter(|rank| inspected(&ranks, rank));
                Measurement::Stacks {
                    suspected_ms,
                    answers: inspected.map(|rank| self.stacks(rank, now_s)).collect(),
                }
            }
        };
        self.analysis.take(measurement);
    }

    fn digest(&self, rank: u32, now_s: f64) -> Option<FlightDigest> {
        if !self.case.has_flight {
            return None;
        }
        let lines: Vec<&FlightLine> = self
            .case
            .flight
            .iter()
            .filter(|(ranks, _)| holds(ranks, rank))
            .map(|(_, line)| line)
            .collect();
        if lines.iter().any(|line| line.is_silent) {
            return None;
        }
        let groups = if self.case.flight.is_empty() {
            vec![self.usual_group(rank, now_s)]
        } else {
            let lines = lines.into_iter().map(|line| line.at(now_s));
            lines.map(|line| self.group(&line)).collect()
        };
        Some(FlightDigest {
            groups,
            groups_left_out: 0,
        })
    }

    /// If the case has no such lines: all ranks wait in operation 41, and halted ranks have not enqueued it.
    fn usual_group(&self, rank: u32, now_s: f64) -> GroupDigest {
        let page = self
            .position(rank, now_s)
            .page
            .or_else(|| Some(self.page_in_step(rank, now_s)));
        let halts = self.case.halts.iter().any(|halt| holds(&halt.ranks, rank));
        let waits = !halts
            && page.is_some_and(|page| {
                matches!(page.phase, Phase::Collective | Phase::GroupMade)
                    || self.case.waits_in_backward && page.phase == Phase::Backward
            });
        self.group(&FlightLine {
            group: "0".to_owned(),
            members: (0..self.case.ranks).map(Rank).collect(),
            enqueued: Some(if waits { 41 } else { 40 }),
            unfinished: waits.then_some(41),
            operation: "all_reduce".to_owned(),
            sizes: "[[64]]".to_owned(),
            ..FlightLine::default()
        })
    }

    fn group(&self, line: &FlightLine) -> GroupDigest {
        let operation = line.unfinished.map(|sequence| Operation {
            sequence,
            is_point_to_point: line.operation.starts_with("recv") || line.operation.starts_with("send"),
            name: format!(
                "{}:{}",
                self.case.backend,
                line.operation.replace("recv", "recv ")
            ),
            sizes: line.sizes.clone(),
            dtypes: line.dtypes.clone(),
            has_started: line.started,
        });
        GroupDigest {
            name: line.group.clone(),
            description: String::new(),
            backend: self.case.backend.clone(),
            members: line.members.clone(),
            last_enqueued: line.enqueued,
            last_completed: line.unfinished.map(|sequence| sequence - 1).or(line.enqueued),
            oldest_unfinished: operation,
        }
    }

    fn stacks(&self, rank: u32, now_s: f64) -> StackAnswer {
        let how = self.case.stacks.iter().find(|(ranks, _)| holds(ranks, rank));
        let how = how.map_or("same", |(_, how)| how.as_str());
        let sample = |at: u32| {
            // A loop that does nothing is seen at each of its lines.
            let line = if how == "loop" { 10 + at } else { 10 };
            let function = if how == "changes" {
                format!("layer{at}")
            } else {
                "work".to_owned()
            };
            let frame = |function: String, line| Frame {
                file: "train.py".to_owned(),
                line,
                function,
            };
            if how == "shutdown" {
                let frame = frame("_shutdown".to_owned(), 1500);
                return vec![Frame {
                    file: "/usr/lib/python3.12/threading.py".to_owned(),
                    ..frame
                }];
            }
            let mut frames = vec![frame(function, line), frame("main".to_owned(), 80)];
            if how == "compiles" {
                let compiler = Frame {
                    file: "/venv/lib/torch/_dynamo/convert_frame.py".to_owned(),
                    ..frame("_compile".to_owned(), 700)
                };
                frames.insert(1, compiler);
            }
            frames
        };
        StackAnswer {
            rank: Rank(rank),
            at_ms: at_ms(now_s),
            samples: if how == "none" {
                Vec::new()
            } else {
                (0..STACK_SAMPLES).map(sample).collect()
            },
            pipe_without_writer: (how == "pipe").then(|| "/tmp/pipe".to_owned()),
        }
    }

    /// Forgets all measurements, as a restart of the collector does, but not this hang.
    pub(super) fn restart(&mut self, hang: &Finding) {
        self.analysis = Analysis::new(members(self.case));
        self.analysis.keep_hang(hang);
        self.answers.clear();
    }

    /// Passes on how long a rank worked alone before a restart of the collector.
    pub(super) fn set_longest_alone(&mut self, seconds: f64) {
        self.analysis.set_longest_alone(seconds);
    }

    /// Passes on that a rank has moved, whatever the case says.
    pub(super) fn show_move(&mut self, rank: u32, tick: i64) {
        let now_s = (tick * TICK_MS) as f64 / 1e3;
        self.analysis.take(Measurement::Position(Position {
            rank: Rank(rank),
            node: node_of(self.case, rank),
            at_ms: at_ms(now_s),
            process: ProcessCondition::Alive,
            page: Some(self.page(Phase::Optimizer, 0.0)),
        }));
    }

    // === Values ===

    fn word(&self, what: &str, rank: u32) -> Option<String> {
        let mut values = self.case.values.iter();
        let found = values.find(|(name, ranks, _)| name == what && holds(ranks, rank));
        found.map(|(_, _, value)| value.clone())
    }

    fn value(&self, what: &str, rank: u32) -> Option<f64> {
        self.word(what, rank)?.parse().ok()
    }

    fn is_reporting(&self, rank: u32, now_s: f64) -> bool {
        let node = node_of(self.case, rank);
        let mut silent = self.case.silent.iter();
        !silent.any(|silence| {
            silence.node == node.as_str() && (silence.from_s..silence.until_s).contains(&now_s)
        })
    }

    /// Returns a random number between -1 and 1.
    fn chance(&mut self) -> f64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
    }
}

/// Returns the value of a curve at a time; `None` if there is no such curve.
fn point(curve: &[(f64, f64)], at_s: f64) -> Option<f64> {
    let next = curve.iter().position(|(to_s, _)| *to_s > at_s);
    Some(match next {
        None => curve.last()?.1,
        Some(0) => curve[0].1,
        Some(next) => {
            let ((from_s, from), (to_s, to)) = (curve[next - 1], curve[next]);
            from + (to - from) * (at_s - from_s) / (to_s - from_s)
        }
    })
}

fn at_ms(seconds: f64) -> i64 {
    BEGIN_MS + (seconds * 1e3) as i64
}

fn members(case: &Case) -> Vec<Member> {
    let member = |rank| Member {
        rank: Rank(rank),
        node: node_of(case, rank),
        role: case
            .roles
            .iter()
            .find(|(ranks, _)| holds(ranks, rank))
            .map(|(_, role)| role.clone()),
        data_group: case
            .data_groups
            .iter()
            .find(|(ranks, _)| holds(ranks, rank))
            .map(|(_, group)| group.clone()),
    };
    (0..case.ranks).map(member).collect()
}

fn node_of(case: &Case, rank: u32) -> NodeName {
    let per_node = case.ranks.div_ceil(case.nodes.len() as u32);
    NodeName::new(case.nodes[(rank / per_node) as usize].as_str()).expect("a name")
}

#[test]
fn parts_of_the_language_are_the_phases_of_the_world() {
    assert_eq!(PARTS.len(), PHASES.len());
}
