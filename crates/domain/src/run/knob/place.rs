//! Where the value of a knob goes: to the script's own setting, to the environment, or to the probe.
//!
//! A flag of the script is changed at its position in the arguments, so that a revert restores the original command line.

use std::collections::BTreeMap;

use crate::run::knob::change::How;
use crate::run::knob::{Knob, Mechanism, known};
use crate::run::recipe::Recipe;
use crate::run::spec::{Backend, Spec};

/// The variable that tells the probe what to change: a JSON object from names to values, both strings.
pub const LOCKSTEP_KNOBS: &str = "LOCKSTEP_KNOBS";

/// Returns how a knob is applied in a run.
///
/// # Errors
/// Returns a message with advice if the knob cannot be applied.
pub fn place(spec: &Spec, name: &str) -> Result<How, String> {
    let knob = known(name)?;
    if let Some(target) = spec.knobs.get(name) {
        return target.how();
    }
    let recipe = spec.recipe.as_deref().and_then(Recipe::named);
    if let Some(flag) = recipe.and_then(|recipe| recipe.flag(name)) {
        return Ok(How::Flag { flag: flag.into() });
    }
    match knob.mechanism {
        Mechanism::Environment { nccl, gloo } => environment(spec, name, nccl, gloo),
        Mechanism::Injection if spec.env.get("LOCKSTEP_PROBE").is_some_and(|probe| probe == "off") => {
            Err(format!(
                "the probe sets {name}, but this run turns the probe off (LOCKSTEP_PROBE=off): {}",
                declare(name)
            ))
        }
        Mechanism::Injection => Ok(How::Injected),
    }
}

fn environment(spec: &Spec, name: &str, nccl: &[&str], gloo: &[&str]) -> Result<How, String> {
    if spec.backend == Backend::Gloo && gloo.is_empty() {
        return Err(format!(
            "{name} has no effect: the run uses Gloo, which trains on CPUs and reads no {}. Submit it with backend = \"nccl\" on \
             nodes with GPUs",
            nccl.join(" or ")
        ));
    }
    let gloo = gloo.iter().filter(|_| spec.backend != Backend::Nccl);
    let variables: Vec<String> = nccl.iter().chain(gloo).map(|&name| name.to_owned()).collect();
    if let Some(secret) = variables
        .iter()
        .find(|variable| spec.secrets.contains_key(*variable))
    {
        return Err(format!(
            "{secret} is a secret of the run, so {name} cannot set it"
        ));
    }
    Ok(How::Environment { variables })
}

fn declare(name: &str) -> String {
    format!(
        "give the script a setting for it and declare that in the run, [knobs] {name} = \"--FLAG\" or {name} = {{ env = \"VARIABLE\" }}"
    )
}

/// Returns the current value of a knob in the run: as Lockstep set it, otherwise from the spec's arguments, settings and variables.
#[must_use]
pub fn current(spec: &Spec, knobs: &BTreeMap<String, String>, name: &str) -> Option<String> {
    let turned = knobs.get(name).cloned();
    turned.or_else(|| match place(spec, name).ok()? {
        How::Flag { flag } => Arguments(&spec.args)
            .value(&flag)
            .or_else(|| spec.set.get(&setting(spec, &flag)?).cloned()),
        How::Environment { variables } => variables.iter().find_map(|name| spec.env.get(name).cloned()),
        How::Variable { env } => spec.env.get(&env).cloned(),
        How::Injected => None,
    })
}

impl Spec {
    /// Returns the knobs that are set by name, with their canonical values.
    #[must_use]
    pub fn knobs_set(&self) -> BTreeMap<String, String> {
        let of_knob = |(name, value): (&String, &String)| {
            let knob = known(name).ok()?;
            place(self, name).ok()?;
            Some((name.clone(), knob.values.parse(value).ok()?))
        };
        self.set.iter().filter_map(of_knob).collect()
    }
}

/// Returns the spec for the nodes: every knob is in its place, and nodes need not know about knobs and labels.
#[must_use]
pub fn spec_with(spec: &Spec, knobs: &BTreeMap<String, String>) -> Spec {
    let mut placed = spec.clone();
    placed.labels.clear();
    placed.knobs.clear();
    placed.auto_revert = None;
    placed.try_larger_batch = None;
    let mut injected = BTreeMap::new();
    for (name, value) in knobs {
        // The setting was given under the name of the knob; its value is now in its place.
        placed.set.remove(name);
        // A knob that had a place when it was stored still has one: newer versions only add places.
        match place(spec, name) {
            Ok(How::Flag { flag }) => put_flag(&mut placed, &flag, value),
            Ok(How::Environment { variables }) => {
                let fits = |variable: &String| known(name).is_ok_and(|knob| knob.fits(variable, value));
                for variable in variables.into_iter().filter(fits) {
                    placed.env.insert(variable, value.clone());
                }
            }
            Ok(How::Variable { env }) => {
                placed.env.insert(env, value.clone());
            }
            Ok(How::Injected) => {
                injected.insert(name, value);
            }
            Err(_) => {}
        }
    }
    if !injected.is_empty() {
        let json = serde_json::to_string(&injected).expect("texts are plain data");
        placed.env.insert(LOCKSTEP_KNOBS.into(), json);
    }
    placed
}

impl Knob {
    /// Gloo accepts only complete names: a value that only NCCL understands would end every rank.
    fn fits(&self, variable: &str, value: &str) -> bool {
        let is_gloo =
            matches!(self.mechanism, Mechanism::Environment { gloo, .. } if gloo.contains(&variable));
        !is_gloo || !value.starts_with(['^', '='])
    }
}

/// Sets the flag where it already is, otherwise among a recipe's settings, otherwise at the end.
fn put_flag(spec: &mut Spec, flag: &str, value: &str) {
    if Arguments(&spec.args).value(flag).is_some() {
        spec.args = Arguments(&spec.args).with(flag, value);
    } else if let Some(name) = setting(spec, flag).or_else(|| recipe_setting(spec, flag)) {
        spec.set.insert(name, value.to_owned());
    } else if flag.ends_with('=') {
        spec.args.push(format!("{flag}{value}"));
    } else {
        spec.args.extend([flag.to_owned(), value.to_owned()]);
    }
}

/// Returns the name under which the settings already contain the flag.
fn setting(spec: &Spec, flag: &str) -> Option<String> {
    let same = |name: &&String| format!("--{}", name.replace('_', "-")) == flag;
    spec.set.keys().find(same).cloned()
}

fn recipe_setting(spec: &Spec, flag: &str) -> Option<String> {
    spec.recipe.as_ref()?;
    flag.strip_prefix("--").map(|name| name.replace('-', "_"))
}

/// The arguments of a script, searched for one flag. Words after `--` are not flags.
struct Arguments<'a>(&'a [String]);

impl Arguments<'_> {
    fn value(&self, flag: &str) -> Option<String> {
        let (at, inline) = self.find(flag)?;
        inline.or_else(|| self.0.get(at + 1).cloned())
    }

    fn with(&self, flag: &str, value: &str) -> Vec<String> {
        let mut args = self.0.to_vec();
        match self.find(flag) {
            Some((at, Some(_))) => args[at] = format!("{}={value}", flag.trim_end_matches('=')),
            Some((at, None)) if at + 1 < args.len() => value.clone_into(&mut args[at + 1]),
            _ => {}
        }
        args
    }

    /// Returns the position of the last occurrence, which takes precedence, and the value if it is in the same word.
    fn find(&self, flag: &str) -> Option<(usize, Option<String>)> {
        let bare = flag.trim_end_matches('=');
        let flags = self.0.iter().take_while(|arg| *arg != "--");
        let found = |arg: &String| match arg.strip_prefix(bare)? {
            "" => Some(None),
            rest => Some(Some(rest.strip_prefix('=')?.to_owned())),
        };
        let all = flags.enumerate().filter_map(|(at, arg)| Some((at, found(arg)?)));
        all.last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(args: &[&str]) -> Spec {
        Spec {
            script: Some("/x.py".into()),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            ..Spec::default()
        }
    }

    fn declared(knob: &str, target: &str, args: &[&str]) -> Spec {
        let target = serde_json::from_str(target).expect("a target");
        Spec {
            knobs: BTreeMap::from([(knob.to_owned(), target)]),
            ..script(args)
        }
    }

    fn with(spec: &Spec, knob: &str, value: &str) -> Spec {
        spec_with(spec, &BTreeMap::from([(knob.to_owned(), value.to_owned())]))
    }

    #[test]
    fn a_declared_knob_is_the_scripts_own_flag_where_it_stands() {
        for (target, args, was, becomes) in [
            (r#""--workers""#, "--lr 1", None, "--lr 1 --workers 4"),
            (
                r#""--workers""#,
                "--workers 2 --lr 1",
                Some("2"),
                "--workers 4 --lr 1",
            ),
            (
                r#""--workers""#,
                "--workers=2 --lr 1",
                Some("2"),
                "--workers=4 --lr 1",
            ),
            (r#"{"flag":"--workers="}"#, "--lr 1", None, "--lr 1 --workers=4"),
            (
                r#"{"flag":"data.workers="}"#,
                "data.workers=2",
                Some("2"),
                "data.workers=4",
            ),
            (
                r#""--workers""#,
                "--workers 1 --workers 2",
                Some("2"),
                "--workers 1 --workers 4",
            ),
            (
                r#""--workers""#,
                "-- --workers 2",
                None,
                "-- --workers 2 --workers 4",
            ),
            (
                r#""--workers""#,
                "--workers-max 9",
                None,
                "--workers-max 9 --workers 4",
            ),
        ] {
            let args: Vec<&str> = args.split(' ').collect();
            let spec = declared("num_workers", target, &args);
            assert_eq!(
                current(&spec, &BTreeMap::new(), "num_workers").as_deref(),
                was,
                "{args:?}"
            );
            let placed = with(&spec, "num_workers", "4");
            assert_eq!(placed.args.join(" "), becomes);
            assert!(placed.knobs.is_empty() && !placed.env.contains_key(LOCKSTEP_KNOBS));
            if let Some(was) = was {
                assert_eq!(with(&spec, "num_workers", was).args, spec.args, "taken back");
            }
        }
    }

    #[test]
    fn nodes_get_no_labels() {
        let spec = Spec {
            labels: BTreeMap::from([("team".to_owned(), "vision".to_owned())]),
            ..script(&[])
        };
        assert_eq!(spec_with(&spec, &BTreeMap::new()), script(&[]));
    }

    #[test]
    fn a_declared_variable_is_the_scripts_environment() {
        for target in [r#""WORKERS""#, r#"{"env":"WORKERS"}"#] {
            let spec = declared("num_workers", target, &[]);
            let placed = with(&spec, "num_workers", "4");
            assert_eq!(placed.env["WORKERS"], "4");
            assert_eq!(
                current(&placed, &BTreeMap::new(), "num_workers"),
                None,
                "declared no more"
            );
        }
    }

    #[test]
    fn a_recipes_settings_are_its_flags() {
        let ddp = |set: &[(&str, &str)]| Spec {
            recipe: Some("ddp".into()),
            set: set
                .iter()
                .map(|&(name, value)| (name.into(), value.into()))
                .collect(),
            ..Spec::default()
        };
        let placed = with(&ddp(&[("steps", "9")]), "grad_clip_norm", "0.5");
        assert_eq!(placed.set, ddp(&[("grad_clip", "0.5"), ("steps", "9")]).set);
        let given = ddp(&[("num-workers", "2")]);
        assert_eq!(
            current(&given, &BTreeMap::new(), "num_workers").as_deref(),
            Some("2")
        );
        assert_eq!(
            with(&given, "num_workers", "3").set,
            ddp(&[("num-workers", "3")]).set
        );
        let by_knob = ddp(&[("grad_clip_norm", "1")]);
        assert_eq!(
            with(&by_knob, "grad_clip_norm", "1").set,
            ddp(&[("grad_clip", "1")]).set
        );
    }

    #[test]
    fn what_no_one_declares_goes_to_the_environment_or_to_the_probe() {
        let placed = with(&script(&[]), "nccl_ib_timeout", "20");
        assert_eq!(
            placed.env,
            BTreeMap::from([("NCCL_IB_TIMEOUT".to_owned(), "20".to_owned())])
        );
        let auto = with(&script(&[]), "nccl_socket_ifname", "eth0");
        assert_eq!(
            auto.env.keys().collect::<Vec<_>>(),
            ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
        );
        let others = with(&script(&[]), "nccl_socket_ifname", "^lo");
        assert_eq!(others.env.keys().collect::<Vec<_>>(), ["NCCL_SOCKET_IFNAME"]);
        let knobs = [("lr_scale", "0.5"), ("activation_checkpointing", "block")];
        let knobs = knobs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert_eq!(
            spec_with(&script(&[]), &knobs).env[LOCKSTEP_KNOBS],
            r#"{"activation_checkpointing":"block","lr_scale":"0.5"}"#
        );
    }

    #[test]
    fn what_can_be_done_in_no_way_is_refused_with_advice() {
        let gloo = Spec {
            backend: Backend::Gloo,
            ..script(&[])
        };
        assert!(place(&gloo, "nccl_ib_timeout").is_err_and(|words| words.contains("backend = \"nccl\"")));
        assert!(place(&gloo, "nccl_socket_ifname").is_ok());
        let unwatched = Spec {
            env: BTreeMap::from([("LOCKSTEP_PROBE".to_owned(), "off".to_owned())]),
            ..script(&[])
        };
        assert!(place(&unwatched, "lr_scale").is_err_and(|words| words.contains("[knobs] lr_scale")));
        assert!(place(&script(&[]), "momentum").is_err_and(|words| words.contains("lr_scale")));
        for target in [
            r#""two words""#,
            r#""--""#,
            r#"{"env":"1X"}"#,
            r#"{"flag":"--a b"}"#,
        ] {
            assert!(
                place(&declared("num_workers", target, &[]), "num_workers").is_err(),
                "{target}"
            );
        }
    }
}
