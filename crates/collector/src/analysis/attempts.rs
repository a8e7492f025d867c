//! The active attempts with their ranks: the input of the analysers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::diagnosis::analysis::Member;
use domain::ident::{AttemptNo, Rank, RunId};
use domain::run::mesh::Mesh;
use domain::run::state::{Machine, NodeTask};

/// Names that scripts use for the pipeline axis. Along it, ranks have different layers and so different work.
const PIPELINE_AXES: [&str; 5] = ["pp", "pipe", "pipeline", "stage", "pipeline_parallel"];
/// Names that scripts and frameworks use for the axes along which the data are divided: ranks have the same layers and other samples.
const DATA_AXES: [&str; 11] = [
    "dp",
    "ddp",
    "data",
    "data_parallel",
    "batch",
    "replicate",
    "shard",
    "fsdp",
    "hsdp",
    "dp_replicate",
    "dp_shard",
];

/// The active attempts, by run.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<BTreeMap<RunId, Attempt>>);

/// An attempt whose ranks are running.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attempt {
    pub(super) no: AttemptNo,
    /// The members, ordered by rank.
    pub(super) members: Arc<[Member]>,
    state: AttemptState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AttemptState {
    no: AttemptNo,
    ranks: usize,
    /// Number of ranks whose pipeline stage is known.
    staged: usize,
    /// Names and sizes of the axes of the mesh, if it is known, and whether all ranks have reported it. A script may replace its mesh by
    /// another one, and all reports about the other one may arrive before the next update.
    axes: Option<(Vec<String>, Vec<u32>)>,
    is_mesh_complete: bool,
}

impl Attempts {
    /// Updates a run. This is called at each change of a run, so it is cheap if nothing has changed for the analysers.
    pub(crate) fn set_run(&self, run: &Machine) {
        let Some(state) = state(run) else {
            self.lock().remove(&run.id);
            return;
        };
        let is_known = |attempt: &Attempt| attempt.state == state;
        if self.lock().get(&run.id).is_some_and(is_known) {
            return;
        }
        let attempt = Attempt {
            no: state.no,
            members: members(run).into(),
            state,
        };
        self.lock().insert(run.id.clone(), attempt);
    }

    /// Returns all active attempts.
    pub(super) fn all(&self) -> BTreeMap<RunId, Attempt> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RunId, Attempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the parts of the current attempt that decide who its members are. `None` until all its ranks have started, and when it ends.
fn state(run: &Machine) -> Option<AttemptState> {
    let current = run.current();
    if !run.is_live(current.no) || current.progress.failing_since_ms.is_some() {
        return None;
    }
    let has_started = |task: &NodeTask| task.ranks.values().filter(|rank| rank.pid.is_some()).count();
    let ranks: usize = current.nodes.iter().map(has_started).sum();
    let expected = current
        .nproc(&run.spec)
        .map_or(1, |each| each as usize * current.nodes.len());
    let mesh = current.findings.mesh.as_ref();
    (ranks > 0 && ranks >= expected).then(|| AttemptState {
        no: current.no,
        ranks,
        staged: mesh
            .filter(|mesh| pipeline_axis(mesh).is_some())
            .map_or(0, |mesh| mesh.ranks.len()),
        axes: mesh.map(|mesh| (mesh.axes.clone(), mesh.sizes.clone())),
        is_mesh_complete: mesh.is_some_and(|mesh| mesh.ranks.len() >= ranks),
    })
}

fn members(run: &Machine) -> Vec<Member> {
    let current = run.current();
    let mesh = current.findings.mesh.as_ref();
    let mut members: Vec<Member> = current
        .nodes
        .iter()
        .flat_map(|task| {
            let started = task.ranks.iter().filter(|(_, rank)| rank.pid.is_some());
            started.map(|(local, _)| {
                let rank = Rank(task.first_rank + local);
                Member {
                    rank,
                    node: task.node.clone(),
                    role: mesh.and_then(|mesh| stage(mesh, rank)),
                    data_group: mesh.and_then(|mesh| data_group(mesh, rank)),
                }
            })
        })
        .collect();
    members.sort_by_key(|member| member.rank);
    members
}

/// Returns the pipeline stage of a rank, if the mesh has a pipeline axis: ranks of different stages have different work.
fn stage(mesh: &Mesh, rank: Rank) -> Option<String> {
    let at = mesh.position(rank)?.coordinates.get(pipeline_axis(mesh)?)?;
    Some(format!("stage {at}"))
}

fn pipeline_axis(mesh: &Mesh) -> Option<usize> {
    mesh.axes
        .iter()
        .position(|axis| PIPELINE_AXES.contains(&axis.to_lowercase().as_str()))
}

/// Returns the position of a rank on the axes along which the data are not divided, or `None` if there are no such axes. A rank that has not
/// reported its position is compared with no other.
fn data_group(mesh: &Mesh, rank: Rank) -> Option<String> {
    let axes = || mesh.axes.iter().enumerate();
    if axes().all(|(_, axis)| divides_data(mesh, axis)) {
        return None;
    }
    let Some(position) = mesh.position(rank) else {
        return Some(format!("rank {}", rank.0));
    };
    let beside = axes().filter(|(_, axis)| !divides_data(mesh, axis));
    let at: Vec<String> = beside
        .filter_map(|(at, axis)| Some(format!("{axis} {}", position.coordinates.get(at)?)))
        .collect();
    Some(at.join(", "))
}

/// Returns true if ranks along this axis have other samples. An axis with an unknown name may divide a sample, as context parallelism does.
/// The only axis of a mesh without names is the one of plain data parallelism.
fn divides_data(mesh: &Mesh, axis: &str) -> bool {
    DATA_AXES.contains(&axis.to_lowercase().as_str()) || (mesh.axes.len() == 1 && axis == "axis 0")
}

#[cfg(test)]
mod tests {
    use domain::ident::NodeName;
    use domain::run::mesh::RankMesh;
    use domain::run::state::{Event, NodeReport, Watched};

    use super::*;

    #[test]
    fn only_the_pipeline_axis_of_a_mesh_makes_roles() {
        let mut mesh = Mesh::default();
        for rank in 0..4 {
            mesh.take(&RankMesh {
                rank: Rank(rank),
                axes: vec!["dp".into(), "PP".into()],
                sizes: vec![2, 2],
                coordinates: vec![rank / 2, rank % 2],
            });
        }
        let stages: Vec<_> = (0..5).map(|rank| stage(&mesh, Rank(rank))).collect();
        let (first, second) = (Some("stage 0".to_owned()), Some("stage 1".to_owned()));
        assert_eq!(stages, [first.clone(), second.clone(), first, second, None]);
        let mut flat = Mesh::default();
        flat.take(&RankMesh {
            rank: Rank(0),
            axes: vec!["dp".into()],
            sizes: vec![1],
            coordinates: vec![0],
        });
        assert_eq!(stage(&flat, Rank(0)), None);
    }

    /// Returns the data groups of ranks 0 to 4 on a mesh of 2 × 2, of which rank 4 is no member.
    fn data_groups(axes: [&str; 2]) -> Vec<Option<String>> {
        let mut mesh = Mesh::default();
        for rank in 0..4 {
            mesh.take(&RankMesh {
                rank: Rank(rank),
                axes: axes.map(str::to_owned).to_vec(),
                sizes: vec![2, 2],
                coordinates: vec![rank / 2, rank % 2],
            });
        }
        (0..5).map(|rank| data_group(&mesh, Rank(rank))).collect()
    }

    #[test]
    fn losses_are_compared_along_the_axes_that_divide_the_data() {
        let names = |groups: [&str; 5]| groups.map(|group| Some(group.to_owned())).to_vec();
        assert_eq!(data_groups(["replicate", "Shard"]), vec![None::<String>; 5]);
        assert_eq!(
            data_groups(["dp", "cp"]),
            names(["cp 0", "cp 1", "cp 0", "cp 1", "rank 4"])
        );
        let apart = names(["a 0, b 0", "a 0, b 1", "a 1, b 0", "a 1, b 1", "rank 4"]);
        assert_eq!(data_groups(["a", "b"]), apart, "unknown axes");
        for (axis, expected) in [("", None), ("dp", None), ("cp", Some("cp 0".to_owned()))] {
            let mut mesh = Mesh::default();
            mesh.take(&RankMesh {
                rank: Rank(0),
                axes: vec![axis.to_owned()],
                sizes: vec![2],
                coordinates: vec![0],
            });
            assert_eq!(data_group(&mesh, Rank(0)), expected, "{axis:?}");
        }
    }

    #[test]
    fn a_mesh_that_replaces_another_one_at_once_changes_the_data_groups() {
        let (watched, no) = (Watched::default(), AttemptNo(1));
        let mut run = Machine::watch(RunId::new("r").expect("an id"), no, &watched, 0);
        let report = |run: &mut Machine, report: NodeReport| {
            let event = Event::Reported {
                attempt: no,
                node: NodeName::new("n1").expect("a name"),
                report,
            };
            let _no_actions = run.advance(&event, 0);
        };
        report(&mut run, NodeReport::Watched(watched));
        for rank in 0..2 {
            let started = NodeReport::RankStarted {
                rank: Rank(rank),
                local_rank: rank,
                pid: 100 + rank,
            };
            report(&mut run, started);
        }
        let attempts = Attempts::default();
        for (axes, expected) in [(["dp", "cp"], ["cp 0", "cp 1"]), (["cp", "dp"], ["cp 0", "cp 0"])] {
            for rank in 0..2 {
                let mesh = RankMesh {
                    rank: Rank(rank),
                    axes: axes.map(str::to_owned).to_vec(),
                    sizes: vec![1, 2],
                    coordinates: vec![0, rank],
                };
                report(&mut run, NodeReport::RankMesh(mesh));
            }
            attempts.set_run(&run);
            let all = attempts.all();
            let members = all[&run.id].members.iter();
            let groups: Vec<_> = members.map(|member| member.data_group.as_deref()).collect();
            assert_eq!(groups, expected.map(Some), "{axes:?}");
        }
    }
}
