//! Every recipe that ships, on two nodes with two ranks each: it succeeds, its loss falls, every series is there, and what it saves
//! is whole.

use domain::run::spec::RECIPES;
use serde_json::Value;

use crate::cluster::Cluster;

/// A recipe, what it is told beyond its defaults, and what must come of it.
struct Recipe {
    name: &'static str,
    settings: &'static [&'static str],
    /// It shards, so it saves with `torch.distributed.checkpoint`.
    saves_dcp: bool,
    /// Series of its own, beside those of every training.
    own: &'static [&'static str],
    /// The mesh it makes of its four ranks: axes and sizes.
    mesh: &'static [(&'static str, u32)],
}

const ALL: [Recipe; 9] = [
    Recipe::new("ddp", &["steps=40"]),
    Recipe::new("fsdp", &["steps=30"])
        .saving()
        .meshed(&[("shard", 4)]),
    Recipe::new("hsdp", &["steps=30"])
        .saving()
        .meshed(&[("replicate", 2), ("shard", 2)]),
    Recipe::new("device-mesh", &["steps=30"])
        .saving()
        .meshed(&[("data", 2), ("tensor", 2)]),
    Recipe::new("amp", &["steps=30"]),
    Recipe::new("activation-checkpointing", &["steps=30"]),
    Recipe::new("rpc-parameter-server", &["steps=60"]).with(&[
        "train_rpc_seconds",
        "train_rpc_buffer_depth",
        "train_gradient_staleness_steps",
    ]),
    Recipe::new("model-parallel", &["steps=40"])
        .saving()
        .with(&["train_pipeline_bubble_ratio"]),
    Recipe::new("resume", &["steps=40"]).saving(),
];

impl Recipe {
    const fn new(name: &'static str, settings: &'static [&'static str]) -> Self {
        Self {
            name,
            settings,
            saves_dcp: false,
            own: &[],
            mesh: &[],
        }
    }

    const fn saving(self) -> Self {
        Self {
            saves_dcp: true,
            ..self
        }
    }

    const fn with(self, own: &'static [&'static str]) -> Self {
        Self { own, ..self }
    }

    const fn meshed(self, mesh: &'static [(&'static str, u32)]) -> Self {
        Self { mesh, ..self }
    }

    fn check(&self, cluster: &Cluster) {
        let checkpoints = cluster.data_dir().join("checkpoints").join(self.name);
        let mut spec = std::collections::BTreeMap::from([
            ("recipe", Value::from(self.name)),
            ("nodes", 2.into()),
            ("nproc_per_node", 2.into()),
            ("backend", "gloo".into()),
            (
                "env",
                serde_json::json!({ "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1" }),
            ),
        ]);
        if self.saves_dcp {
            spec.insert("checkpoint_dir", checkpoints.display().to_string().into());
        }
        let file = cluster.data_dir().join(format!("{}.json", self.name));
        std::fs::write(&file, serde_json::to_vec(&spec).unwrap()).unwrap();
        let mut arguments = vec!["run", "submit", file.to_str().unwrap(), "--wait"];
        arguments.extend(self.settings.iter().flat_map(|setting| ["--set", setting]));
        let output = cluster.lockstep(&arguments);
        let run = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(
            output.status.success(),
            "{}: {output:?}\n{}",
            self.name,
            self.last_words(cluster, &run)
        );
        self.loss_falls(cluster, &run);
        let every = ["train_step", "train_step_seconds"];
        for metric in every.iter().chain(self.own) {
            let selector = format!("{metric}{{run={run:?}}}[10m]");
            cluster.wait_for(&format!("{metric} of {}", self.name), || {
                (!cluster.samples(&selector).is_empty()).then_some(())
            });
        }
        if !self.mesh.is_empty() {
            self.tells_its_mesh(cluster, &run);
        }
        if self.saves_dcp {
            let list = cluster.get(&format!("/api/runs/{run}/checkpoints"));
            let all = list["checkpoints"].as_array().cloned().unwrap_or_default();
            assert!(
                all.iter()
                    .any(|one| one["format"] == "dcp" && one["complete"] == true),
                "{}: {list}",
                self.name
            );
            let torn = all.iter().find(|one| one["complete"] != true);
            assert!(torn.is_none(), "{}: {torn:?}", self.name);
        }
    }

    /// Ranks stand in the mesh in their order, the last axis first.
    fn tells_its_mesh(&self, cluster: &Cluster, run: &str) {
        let axes: Vec<&str> = self.mesh.iter().map(|(axis, _)| *axis).collect();
        let sizes: Vec<u32> = self.mesh.iter().map(|(_, size)| *size).collect();
        let last = sizes.last().copied().unwrap_or(1);
        let at = |rank: u32| {
            if sizes.len() == 1 {
                vec![rank]
            } else {
                vec![rank / last, rank % last]
            }
        };
        let ranks: Vec<Value> = (0..4)
            .map(|rank| serde_json::json!({ "rank": rank, "coordinates": at(rank) }))
            .collect();
        let expected = serde_json::json!({ "axes": axes, "sizes": sizes, "ranks": ranks });
        cluster.wait_for(&format!("the mesh of {}", self.name), || {
            let view = cluster.get(&format!("/api/runs/{run}"));
            (view["attempts"][0]["mesh"] == expected).then_some(())
        });
    }

    /// Of a rank that has one: a pipeline's first stage and a parameter server see none.
    fn loss_falls(&self, cluster: &Cluster, run: &str) {
        let selector = format!("train_loss{{run={run:?}}}[10m]");
        let fell = cluster.wait_for(&format!("the losses of {}", self.name), || {
            let curves = cluster.curves(&selector);
            (!curves.is_empty()).then_some(curves)
        });
        let mean =
            |losses: &[(i64, f64)]| losses.iter().map(|(_, loss)| loss).sum::<f64>() / losses.len() as f64;
        for curve in &fell {
            let (early, late) = curve.split_at(curve.len() / 2);
            assert!(
                !early.is_empty() && mean(late) < mean(early),
                "{}: the loss does not fall: {curve:?}",
                self.name
            );
        }
    }

    fn last_words(&self, cluster: &Cluster, run: &str) -> String {
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

#[test]
fn every_recipe_that_ships_is_tried_here() {
    let mut shipped: Vec<&str> = RECIPES.iter().map(|(name, _)| *name).collect();
    let mut tried: Vec<&str> = ALL.iter().map(|recipe| recipe.name).collect();
    shipped.sort_unstable();
    tried.sort_unstable();
    assert_eq!(tried, shipped);
}

/// Three tests, so that none takes minutes.
fn check(recipes: &[Recipe]) {
    let mut cluster = Cluster::start_without_gpus();
    cluster.add_node("second");
    recipes.iter().for_each(|recipe| recipe.check(&cluster));
}

#[test]
fn recipes_that_share_a_model_among_ranks_train_on_two_nodes() {
    check(&ALL[..4]);
}

#[test]
fn recipes_that_save_memory_train_on_two_nodes() {
    check(&ALL[4..6]);
}

#[test]
fn recipes_of_unlike_ranks_train_on_two_nodes() {
    check(&ALL[6..]);
}
