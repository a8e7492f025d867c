//! `gpu_assignment_info`: the run, rank, Slurm job, container and pod that use a GPU.
//!
//! There are two sources: the probe inside a rank provides the run and the rank, and NVML's process list with `/proc` also provides the
//! rest. Joins on (node, gpu) need one series per use, so only the series with more labels is kept.

use domain::series::Labels;
use domain::time::TimestampMs;

use super::process::Identity;
use super::series::series;
use crate::sample::Samples;

const NAME: &str = "gpu_assignment_info";

/// Returns the series of a use, or `None` if nothing is known about the process.
pub(crate) fn of(gpu: &str, identity: &Identity) -> Option<Labels> {
    let labels = [
        ("run", &identity.run),
        ("rank", &identity.rank),
        ("slurm_job", &identity.slurm_job),
        ("container", &identity.container),
        ("pod", &identity.pod),
        ("pod_name", &identity.pod_name),
        ("namespace", &identity.namespace),
    ];
    let known = labels
        .iter()
        .filter_map(|(name, value)| Some((*name, value.as_deref()?)));
    let labels: Vec<(&str, &str)> = std::iter::once(("gpu", gpu)).chain(known).collect();
    (labels.len() > 1).then(|| series(NAME, &labels))
}

/// Writes a use, unless another series has more labels for it. Ends the series that have fewer.
pub(crate) fn put(samples: &Samples, assignment: &Labels, at_ms: TimestampMs) {
    let said = samples.living_where(|other| is_same_use(assignment, other));
    if said
        .iter()
        .any(|other| other.iter().count() > assignment.iter().count())
    {
        return samples.end(assignment, at_ms);
    }
    said.iter()
        .filter(|other| *other != assignment)
        .for_each(|other| samples.end(other, at_ms));
    samples.push(assignment, at_ms, 1.0);
}

fn is_same_use(a: &Labels, b: &Labels) -> bool {
    let same = |name| a.get(name) == b.get(name);
    b.metric_name() == Some(NAME) && same("gpu") && same("run") && same("rank")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_use_is_one_series_with_the_most_labels() {
        let some = |text: &str| Some(text.to_owned());
        let poor = Identity {
            run: some("ddp-1"),
            rank: some("0"),
            ..Identity::default()
        };
        let rich = Identity {
            slurm_job: some("42"),
            container: some("0123456789ab"),
            ..poor.clone()
        };
        let neighbour = Identity {
            rank: some("1"),
            ..poor.clone()
        };
        let samples = Samples::new();
        let [poor, rich, neighbour] =
            [poor, rich, neighbour].map(|identity| of("3", &identity).expect("it is known"));
        let living = || {
            let mut names: Vec<String> = samples
                .latest()
                .iter()
                .map(|sample| sample.series.to_string())
                .collect();
            names.sort();
            names
        };
        put(&samples, &poor, 1_000);
        put(&samples, &neighbour, 1_000);
        assert_eq!(living().len(), 2);
        put(&samples, &rich, 2_000);
        put(&samples, &poor, 3_000);
        let mut expected = vec![rich.to_string(), neighbour.to_string()];
        expected.sort();
        assert_eq!(living(), expected);
        samples.end(&rich, 4_000);
        put(&samples, &poor, 5_000);
        assert!(
            living().contains(&poor.to_string()),
            "the rest of what is known comes back"
        );
    }

    #[test]
    fn an_unknown_use_is_no_series() {
        assert_eq!(of("0", &Identity::default()), None);
        let only_pod = Identity {
            pod: Some("0af1c9de-1b2c-4d5e-8f90-a1b2c3d4e5f6".to_owned()),
            ..Identity::default()
        };
        let name = |identity: &Identity| of("0", identity).map(|labels| labels.to_string());
        assert_eq!(
            name(&only_pod).as_deref(),
            Some(r#"gpu_assignment_info{gpu="0", pod="0af1c9de-1b2c-4d5e-8f90-a1b2c3d4e5f6"}"#)
        );
        let named = Identity {
            pod_name: Some("trainer-0".to_owned()),
            namespace: Some("ml".to_owned()),
            ..only_pod
        };
        assert_eq!(
            name(&named).as_deref(),
            Some(
                r#"gpu_assignment_info{gpu="0", namespace="ml", pod="0af1c9de-1b2c-4d5e-8f90-a1b2c3d4e5f6", pod_name="trainer-0"}"#
            )
        );
    }
}
