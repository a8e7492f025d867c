//! Recipes on two nodes with two ranks each: a recipe succeeds, its loss falls, every series exists, and its checkpoints are complete.

mod table;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;
use std::time::Instant;

use domain::run::recipe::RECIPES;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::Cluster;

/// Series that every training has.
const EVERY: &[&str] = &["train_step", "train_step_seconds", "train_loss"];

/// A recipe, and `[test]` of its `recipe.toml`: settings other than the defaults, and expected results.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recipe {
    #[serde(skip)]
    name: &'static str,
    settings: Vec<String>,
    /// How it saves: through `torch.distributed.checkpoint`, except the recipe that shows `torch.save`.
    #[serde(default = "dcp")]
    format: String,
    /// Series of this recipe, in addition to those of every training.
    #[serde(default)]
    series: Vec<String>,
    /// The expected mesh of its four ranks: axes and sizes.
    #[serde(default)]
    mesh: Vec<(String, u32)>,
    /// True if it is trained for every change, and not only in `cargo xtask lab recipes`. These are the recipes whose ranks and checkpoints
    /// differ most: a mesh of two axes that saves through DCP, pipeline stages, a parameter server. The tests of torch-probe train every
    /// recipe with each change.
    #[serde(default)]
    every_change: bool,
}

fn dcp() -> String {
    "dcp".to_owned()
}

/// The result of a training.
#[derive(Debug, Default)]
struct Trained {
    state: String,
    /// The PyTorch release that the ranks report.
    torch: String,
    /// Losses of the first and the last step.
    losses: Option<(f64, f64)>,
    /// Number of complete checkpoints, and of all checkpoints.
    checkpoints: (usize, usize),
    /// Number of required series that exist.
    series: usize,
    seconds: f64,
    problems: Vec<String>,
}

fn all_recipes() -> Vec<Recipe> {
    RECIPES.iter().map(|recipe| Recipe::read(recipe.name)).collect()
}

impl Recipe {
    fn read(name: &'static str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../torch-probe/recipes");
        let text = std::fs::read_to_string(folder.join(name).join("recipe.toml")).unwrap();
        let mut whole: toml::Table = text.parse().unwrap();
        let test = whole.remove("test").expect("a recipe says how it is tested");
        let recipe: Self = test.try_into().unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name, ..recipe }
    }

    /// Trains the recipe to its end and checks the results.
    fn train(&self, cluster: &Cluster) -> Trained {
        let begun = Instant::now();
        let output = self.submit(cluster);
        let mut trained = Trained {
            seconds: begun.elapsed().as_secs_f64(),
            ..Trained::default()
        };
        let run = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        trained.state = cluster.state_of(&run);
        if output.status.success() {
            self.look_at_series(cluster, &run, &mut trained);
            self.look_at_losses(cluster, &run, &mut trained);
            self.look_at_checkpoints(cluster, &run, &mut trained);
            self.look_at_mesh(cluster, &run, &mut trained);
        } else {
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let words = self.last_log_lines(cluster, &run);
            trained.problems.push(format!("{stderr}\n{words}"));
        }
        trained
    }

    fn submit(&self, cluster: &Cluster) -> Output {
        let checkpoints = cluster.data_dir().join("checkpoints").join(self.name);
        let spec = std::collections::BTreeMap::from([
            ("recipe", Value::from(self.name)),
            ("nodes", 2.into()),
            ("nproc_per_node", 2.into()),
            ("backend", "gloo".into()),
            ("checkpoint_dir", checkpoints.display().to_string().into()),
            (
                "env",
                serde_json::json!({ "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1" }),
            ),
        ]);
        let file = cluster.data_dir().join(format!("{}.json", self.name));
        std::fs::write(&file, serde_json::to_vec(&spec).unwrap()).unwrap();
        let mut arguments = vec!["run", "submit", file.to_str().unwrap(), "--wait"];
        arguments.extend(
            self.settings
                .iter()
                .flat_map(|setting| ["--set", setting.as_str()]),
        );
        cluster.lockstep(&arguments)
    }

    /// Waits for the series, because samples come every second and may arrive shortly after the end of the run.
    fn look_at_series(&self, cluster: &Cluster, run: &str, trained: &mut Trained) {
        let wanted = || {
            EVERY
                .iter()
                .copied()
                .chain(self.series.iter().map(String::as_str))
        };
        let selector = format!("{{__name__=~\"train_.+\",run={run:?}}}[10m]");
        let mut seen = BTreeSet::new();
        let _whether_all = cluster.poll_for(|| {
            let series = cluster.query(&selector);
            let names = series.iter().filter_map(|one| one["metric"]["__name__"].as_str());
            seen = names.map(str::to_owned).collect();
            let torch = series.iter().find_map(|one| one["metric"]["torch"].as_str());
            trained.torch = torch.unwrap_or_default().to_owned();
            wanted().all(|name| seen.contains(name)).then_some(())
        });
        let (there, missing): (Vec<&str>, Vec<&str>) = wanted().partition(|name| seen.contains(*name));
        trained.series = there.len();
        if !missing.is_empty() {
            let seen = seen.into_iter().collect::<Vec<_>>().join(", ");
            let missing = missing.join(", ");
            trained
                .problems
                .push(format!("no series {missing}; there are {seen}"));
        }
    }

    /// Checks the ranks that have a loss: the first stages of a pipeline and a parameter server have none.
    fn look_at_losses(&self, cluster: &Cluster, run: &str, trained: &mut Trained) {
        let selector = format!("train_loss{{run={run:?}}}[10m]");
        let mean =
            |losses: &[(i64, f64)]| losses.iter().map(|(_, loss)| loss).sum::<f64>() / losses.len() as f64;
        for curve in cluster.curves(&selector) {
            let (early, late) = curve.split_at(curve.len() / 2);
            if early.is_empty() || mean(late).partial_cmp(&mean(early)) != Some(Ordering::Less) {
                trained
                    .problems
                    .push(format!("the loss does not fall: {curve:?}"));
            }
            let ends = curve.first().zip(curve.last());
            trained.losses = trained.losses.or(ends.map(|(first, last)| (first.1, last.1)));
        }
    }

    /// Checks that all checkpoints are complete, whatever their kind. The last one may be reported after the end of the run.
    fn look_at_checkpoints(&self, cluster: &Cluster, run: &str, trained: &mut Trained) {
        let mut list = Value::Null;
        let as_expected = cluster.poll_for(|| {
            list = cluster.get(&format!("/api/runs/{run}/checkpoints"));
            let all = list["checkpoints"].as_array()?;
            let whole = all.iter().filter(|one| one["complete"] == true);
            let own = whole.clone().any(|one| one["format"] == self.format);
            trained.checkpoints = (whole.count(), all.len());
            (own && trained.checkpoints.0 == all.len()).then_some(())
        });
        if as_expected.is_none() {
            trained
                .problems
                .push(format!("checkpoints that are not whole, or none: {list}"));
        }
    }

    /// Checks the mesh. Ranks are numbered along the last axis first.
    fn look_at_mesh(&self, cluster: &Cluster, run: &str, trained: &mut Trained) {
        let Some((_, last)) = self.mesh.last() else {
            return;
        };
        let (axes, sizes): (Vec<String>, Vec<u32>) = self.mesh.iter().cloned().unzip();
        let at = |rank: u32| match sizes.len() {
            1 => vec![rank],
            _ => vec![rank / last, rank % last],
        };
        let ranks: Vec<Value> = (0..4)
            .map(|rank| serde_json::json!({ "rank": rank, "coordinates": at(rank) }))
            .collect();
        let expected = serde_json::json!({ "axes": axes, "sizes": sizes, "ranks": ranks });
        let mut reported = Value::Null;
        let as_expected = cluster.poll_for(|| {
            reported = cluster.get(&format!("/api/runs/{run}"))["attempts"][0]["mesh"].clone();
            (reported == expected).then_some(())
        });
        if as_expected.is_none() {
            trained.problems.push(format!("its mesh is {reported}"));
        }
    }

    fn last_log_lines(&self, cluster: &Cluster, run: &str) -> String {
        let arguments = [
            "run",
            "logs",
            run,
            "--all-ranks",
            "--stream",
            "stderr",
            "--tail",
            "20",
        ];
        String::from_utf8_lossy(&cluster.lockstep(&arguments).stdout).into_owned()
    }
}

fn two_nodes() -> Cluster {
    let mut cluster = Cluster::start_without_gpus();
    cluster.add_node("second");
    cluster
}

#[test]
fn recipes_train_on_two_nodes() {
    let cluster = two_nodes();
    for recipe in all_recipes().iter().filter(|recipe| recipe.every_change) {
        let trained = recipe.train(&cluster);
        assert!(trained.problems.is_empty(), "{}: {trained:#?}", recipe.name);
        assert_eq!(trained.state, "succeeded", "{}", recipe.name);
        assert!(trained.losses.is_some(), "{}", recipe.name);
    }
}
