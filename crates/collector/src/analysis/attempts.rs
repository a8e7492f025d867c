//! The active attempts with their ranks: the input of the analysers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::diagnosis::analysis::Member;
use domain::ident::{AttemptNo, Rank, RunId};
use domain::run::mesh::Mesh;
use domain::run::state::{Machine, NodeTask};

/// Names that scripts use for the pipeline axis. Along it, ranks have different layers and so different work.
const PIPELINE_AXES: [&str; 5] = ["pp", "pipe", "pipeline", "stage", "pipeline_parallel"];

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AttemptState {
    no: AttemptNo,
    ranks: usize,
    /// Number of ranks whose pipeline stage is known.
    staged: usize,
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

#[cfg(test)]
mod tests {
    use domain::run::mesh::RankMesh;

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
}
