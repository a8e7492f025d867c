//! Combines the values of one rank at one time into the input of the analysers.

use std::collections::BTreeMap;

use domain::diagnosis::analysis::Measurement;
use domain::diagnosis::input::{
    GpuCondition, Learning, NodeResources, Page, ParametersChecksum, Phase, Pool, Position, ProcessCondition,
    Resources, StepParts,
};
use domain::ident::{NodeName, Rank, RunId};
use domain::time::TimestampMs;

use super::column::{Field, Part, Subject};
use super::feed::FedFrame;

/// A value of a rank at a time.
struct Reading<'a> {
    run: &'a RunId,
    rank: Rank,
    at_ms: TimestampMs,
    field: &'a Field,
    value: f64,
}

/// The state that is kept between the messages of one node.
#[derive(Debug, Default)]
pub(super) struct NodeMemory {
    /// Which throttle reasons of each GPU are active.
    throttle: BTreeMap<String, BTreeMap<String, bool>>,
    /// PCIe lanes of each GPU.
    pcie: BTreeMap<String, PcieLanes>,
    /// The GPU of each rank.
    gpus: BTreeMap<(RunId, Rank), String>,
}

/// PCIe lanes of a GPU now, and the highest number that GPU and slot both support.
#[derive(Debug, Clone, Copy, Default)]
struct PcieLanes {
    now: Option<f64>,
    max: Option<f64>,
}

impl PcieLanes {
    fn ratio(self) -> Option<f64> {
        let max = self.max.filter(|max| *max > 0.0)?;
        Some(self.now? / max)
    }
}

impl NodeMemory {
    /// Removes the GPUs of runs that have ended.
    pub(super) fn retain(&mut self, is_under_way: impl Fn(&RunId) -> bool) {
        self.gpus.retain(|(run, _), _| is_under_way(run));
    }
}

/// What the values of a rank say.
#[expect(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, never kept"
)]
pub(super) enum RankInput {
    /// A measurement.
    Measurement(Measurement),
    /// The rank waits in pipeline receives, so it is its own pipeline stage.
    PipelineStage,
}

/// Passes on what the frames of one message contain, rank by rank and in the order of time.
pub(super) fn assemble(
    node: &NodeName,
    frames: &[FedFrame],
    memory: &mut NodeMemory,
    mut pass_on: impl FnMut(&RunId, Rank, RankInput),
) -> Option<NodeResources> {
    let (mut readings, mut own) = (Vec::new(), None::<NodeResources>);
    for (column, at_ms, value) in frames.iter().flat_map(FedFrame::values) {
        match (&column.subject, &column.field) {
            (Subject::Rank { run, rank }, Field::Gpu(gpu)) => {
                memory.gpus.insert((run.clone(), *rank), gpu.clone());
            }
            (Subject::Rank { run, rank }, field) => readings.push(Reading {
                run,
                rank: *rank,
                at_ms,
                field,
                value,
            }),
            (Subject::Gpu(gpu), Field::Throttle(reason)) => {
                let reasons = memory.throttle.entry(gpu.clone()).or_default();
                reasons.insert(reason.clone(), value > 0.0);
            }
            (Subject::Gpu(gpu), Field::PcieWidth) => {
                memory.pcie.entry(gpu.clone()).or_default().now = Some(value);
            }
            (Subject::Gpu(gpu), Field::PcieWidthMax) => {
                memory.pcie.entry(gpu.clone()).or_default().max = Some(value);
            }
            (Subject::Node, field) => {
                let own = own.get_or_insert_with(|| NodeResources {
                    node: node.clone(),
                    at_ms,
                    cpus: None,
                    steal_seconds_total: None,
                });
                own.at_ms = own.at_ms.max(at_ms);
                match field {
                    Field::Cpus => own.cpus = Some(value),
                    Field::StealSeconds => own.steal_seconds_total = Some(value),
                    _ => {}
                }
            }
            (Subject::Gpu(_), _) => {}
        }
    }
    readings.sort_by(|a, b| (a.rank, a.at_ms, a.run).cmp(&(b.rank, b.at_ms, b.run)));
    for of_one in readings.chunk_by(|a, b| (a.rank, a.at_ms, a.run) == (b.rank, b.at_ms, b.run)) {
        let Reading { run, rank, at_ms, .. } = of_one[0];
        let mut draft = Draft::default();
        for reading in of_one {
            draft.take(reading.field, reading.value);
        }
        if draft.is_stage {
            pass_on(run, rank, RankInput::PipelineStage);
        }
        let gpu = || {
            let gpu = memory.gpus.get(&(run.clone(), rank))?;
            let reasons = memory.throttle.get(gpu).into_iter().flatten();
            Some(GpuCondition {
                throttle_reasons: reasons
                    .filter(|(_, is)| **is)
                    .map(|(reason, _)| reason.clone())
                    .collect(),
                pcie_width_ratio: memory.pcie.get(gpu).and_then(|lanes| lanes.ratio()),
            })
        };
        let measurements = [
            draft.pool(rank, node, at_ms).map(Measurement::Pool),
            draft.position(rank, node, at_ms).map(Measurement::Position),
            draft.resources(rank, at_ms, gpu).map(Measurement::Resources),
        ];
        for measurement in measurements.into_iter().flatten() {
            pass_on(run, rank, RankInput::Measurement(measurement));
        }
    }
    own
}

/// The values of one rank at one time.
#[derive(Default)]
struct Draft {
    steps: Option<f64>,
    last_step: Option<f64>,
    mean: StepParts,
    max: StepParts,
    micro_batch: Option<f64>,
    learning: Learning,
    parameters: Option<ParametersChecksum>,
    is_stage: bool,
    phase: Option<f64>,
    phase_age: Option<f64>,
    moves: Option<f64>,
    process: Option<f64>,
    cpu: Option<f64>,
    run_delay: Option<f64>,
    major_faults: Option<f64>,
    memory: Option<f64>,
}

impl Draft {
    fn take(&mut self, field: &Field, value: f64) {
        let place = match field {
            Field::PoolSteps => &mut self.steps,
            Field::LastStep => &mut self.last_step,
            Field::Mean(part) => part.of_parts(&mut self.mean),
            Field::Max(part) => part.of_parts(&mut self.max),
            Field::MicroBatch => &mut self.micro_batch,
            Field::OwnLoss => &mut self.learning.loss,
            Field::LearningRate => &mut self.learning.rate,
            Field::InputMean => &mut self.learning.input.mean,
            Field::InputDeviation => &mut self.learning.input.deviation,
            Field::LabelMean => &mut self.learning.label.mean,
            Field::LabelDeviation => &mut self.learning.label.deviation,
            Field::LabelTopRatio => &mut self.learning.label_top,
            Field::GradientNorm => &mut self.learning.gradient,
            Field::OwnGradientNorm => &mut self.learning.own_gradient,
            Field::GradientSquare => return self.learning.gradient = Some(value.sqrt()),
            Field::ParametersChecksum { group } => {
                let with_group = |checksum| ParametersChecksum {
                    group: *group,
                    checksum,
                };
                return self.parameters = whole(value).map(with_group);
            }
            Field::Phase => &mut self.phase,
            Field::PhaseAge => &mut self.phase_age,
            Field::Moves => &mut self.moves,
            Field::ProcessState => &mut self.process,
            Field::CpuSeconds => &mut self.cpu,
            Field::RunDelaySeconds => &mut self.run_delay,
            Field::MajorFaults => &mut self.major_faults,
            Field::HostMemory => &mut self.memory,
            Field::PipelineBubble => return self.is_stage = true,
            Field::Gpu(_)
            | Field::Throttle(_)
            | Field::PcieWidth
            | Field::PcieWidthMax
            | Field::Cpus
            | Field::StealSeconds => return,
        };
        *place = Some(value);
    }

    fn pool(&self, rank: Rank, node: &NodeName, at_ms: TimestampMs) -> Option<Pool> {
        let (steps, last_step) = (whole(self.steps?)?, whole(self.last_step?)?);
        Some(Pool {
            rank,
            node: node.clone(),
            first_step: (last_step + 1).checked_sub(steps.max(1))?,
            last_step,
            at_ms,
            mean: self.mean,
            max: self.max,
            micro_batch: self.micro_batch,
            learning: self.learning,
            parameters: self.parameters,
        })
    }

    fn position(&self, rank: Rank, node: &NodeName, at_ms: TimestampMs) -> Option<Position> {
        let process = ProcessCondition::from_value(self.process?)?;
        let page = || {
            Some(Page {
                // The step arrives at other times than the position, and before the first step not at all.
                step: self.last_step.and_then(whole).unwrap_or_default(),
                phase: Phase::from_value(self.phase?)?,
                in_phase_s: self.phase_age?,
                moves: whole(self.moves?)?,
            })
        };
        Some(Position {
            rank,
            node: node.clone(),
            at_ms,
            process,
            page: page(),
        })
    }

    fn resources(
        &self,
        rank: Rank,
        at_ms: TimestampMs,
        gpu: impl FnOnce() -> Option<GpuCondition>,
    ) -> Option<Resources> {
        self.cpu?;
        Some(Resources {
            rank,
            at_ms,
            cpu_seconds_total: self.cpu,
            run_delay_seconds_total: self.run_delay,
            major_faults_total: self.major_faults,
            host_memory_bytes: self.memory,
            gpu: gpu(),
        })
    }
}

impl Part {
    fn of_parts(self, parts: &mut StepParts) -> &mut Option<f64> {
        match self {
            Self::Step => &mut parts.step,
            Self::Data => &mut parts.data,
            Self::Forward => &mut parts.forward,
            Self::Backward => &mut parts.backward,
            Self::Optimizer => &mut parts.optimizer,
            Self::Save => &mut parts.save,
            Self::Sync => &mut parts.sync,
            Self::Host => &mut parts.host,
        }
    }
}

/// Returns a sample as a count, or `None` if it is not one.
fn whole(value: f64) -> Option<u64> {
    let fits = (0.0..9e15).contains(&value);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is within the range"
    )]
    fits.then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use domain::series::{ABSENT, Frame, Labels};

    use super::*;
    use crate::analysis::{Column, FedColumn};

    /// Metric, labels and values of one series.
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [f64]);

    fn frame(times_ms: &[TimestampMs], rows: &[Row<'_>]) -> FedFrame {
        let columns: Vec<FedColumn> = rows
            .iter()
            .enumerate()
            .map(|(row, (metric, labels, _))| {
                let all = [("__name__", *metric)].into_iter().chain(labels.iter().copied());
                let labels = Labels::new(all).expect("well-formed labels");
                FedColumn {
                    row,
                    column: Column::of(&labels).expect("a series of the analysers"),
                }
            })
            .collect();
        let frame = Frame {
            series: vec![0; rows.len()],
            times_ms: times_ms.to_vec(),
            values: rows
                .iter()
                .flat_map(|(_, _, values)| values.iter().copied())
                .collect(),
        };
        FedFrame::of(&Arc::from(columns), &frame, times_ms[0]).expect("it is not old")
    }

    fn assembled(memory: &mut NodeMemory, frames: &[FedFrame]) -> Vec<Measurement> {
        let (node, mut measurements) = (NodeName::new("a").expect("a good name"), vec![]);
        assemble(&node, frames, memory, |_, _, input| {
            if let RankInput::Measurement(measurement) = input {
                measurements.push(measurement);
            }
        });
        measurements
    }

    #[test]
    fn readings_of_one_rank_and_time_become_one_measurement_from_any_frames() {
        let rank: &[(&str, &str)] = &[("run", "r"), ("rank", "1")];
        let in_group: &[(&str, &str)] = &[("run", "r"), ("rank", "1"), ("replica_group", "0")];
        let frames = [
            frame(
                &[1_000, 2_000],
                &[
                    ("train_pool_steps", rank, &[4.0, 8.0]),
                    ("train_step", rank, &[4.0, 12.0]),
                    ("train_sync_seconds", rank, &[ABSENT, 0.25]),
                ],
            ),
            frame(&[2_000], &[("train_sync_seconds_max", rank, &[0.5])]),
            frame(
                &[2_000],
                &[("train_parameters_checksum", in_group, &[4_503_599_627_370_495.0])],
            ),
        ];
        let measurements = assembled(&mut NodeMemory::default(), &frames);
        let pools: Vec<_> = measurements
            .iter()
            .filter_map(|measurement| match measurement {
                Measurement::Pool(pool) => Some((
                    pool.at_ms,
                    pool.first_step,
                    pool.last_step,
                    pool.mean.sync,
                    pool.max.sync,
                    pool.parameters.map(|parameters| parameters.checksum),
                )),
                _ => None,
            })
            .collect();
        assert_eq!(
            pools,
            [
                (1_000, 1, 4, None, None, None),
                (2_000, 5, 12, Some(0.25), Some(0.5), Some(4_503_599_627_370_495))
            ]
        );
    }

    #[test]
    fn a_position_without_a_page_still_describes_the_process() {
        let rank: &[(&str, &str)] = &[("run", "r"), ("rank", "0")];
        let stopped = frame(&[1_000], &[("train_process_state", rank, &[1.0])]);
        let with_page = frame(
            &[2_000],
            &[
                ("train_process_state", rank, &[0.0]),
                ("train_phase", rank, &[10.0]),
                ("train_phase_age_seconds", rank, &[3.5]),
                ("train_moves_total", rank, &[15.0]),
            ],
        );
        let measurements = assembled(&mut NodeMemory::default(), &[stopped, with_page]);
        let [Measurement::Position(first), Measurement::Position(second)] = measurements.as_slice() else {
            panic!("two positions: {measurements:?}");
        };
        assert_eq!((first.process, first.page), (ProcessCondition::Stopped, None));
        assert_eq!(
            second.page,
            Some(Page {
                step: 0,
                phase: Phase::Collective,
                in_phase_s: 3.5,
                moves: 15
            })
        );
    }

    #[test]
    fn a_gpu_is_reported_with_its_rank() {
        let mut memory = NodeMemory::default();
        let assignment: &[(&str, &str)] = &[("gpu", "G1"), ("run", "r"), ("rank", "0")];
        let gpu: &[(&str, &str)] = &[("gpu", "G1")];
        let throttle: &[(&str, &str)] = &[("gpu", "G1"), ("reason", "hw_thermal_slowdown")];
        let rank: &[(&str, &str)] = &[("run", "r"), ("rank", "0")];
        let frames = [
            frame(&[1_000], &[("gpu_assignment_info", assignment, &[1.0])]),
            frame(&[1_000], &[("gpu_throttle", throttle, &[1.0])]),
            frame(
                &[1_000],
                &[
                    ("gpu_pcie_width", gpu, &[4.0]),
                    ("gpu_pcie_width_max", gpu, &[16.0]),
                ],
            ),
        ];
        assert_eq!(assembled(&mut memory, &frames), []);
        let used = frame(&[2_000], &[("train_cpu_seconds_total", rank, &[5.0])]);
        let measurements = assembled(&mut memory, &[used]);
        let [Measurement::Resources(resources)] = measurements.as_slice() else {
            panic!("one reading of resources: {measurements:?}");
        };
        let reasons = resources.gpu.as_ref().map(|gpu| gpu.throttle_reasons.clone());
        assert_eq!(reasons, Some(vec!["hw_thermal_slowdown".to_owned()]));
        let lanes = resources.gpu.as_ref().and_then(|gpu| gpu.pcie_width_ratio);
        assert_eq!(lanes, Some(0.25));
    }

    #[test]
    fn a_gpu_whose_driver_gives_no_throttle_reasons_is_reported_too() {
        let assignment: &[(&str, &str)] = &[("gpu", "G1"), ("run", "r"), ("rank", "0")];
        let rank: &[(&str, &str)] = &[("run", "r"), ("rank", "0")];
        let frames = [
            frame(&[1_000], &[("gpu_assignment_info", assignment, &[1.0])]),
            frame(&[1_000], &[("train_cpu_seconds_total", rank, &[5.0])]),
        ];
        let measurements = assembled(&mut NodeMemory::default(), &frames);
        let [Measurement::Resources(resources)] = measurements.as_slice() else {
            panic!("one reading of resources: {measurements:?}");
        };
        assert_eq!(resources.gpu, Some(GpuCondition::default()));
    }
}
