//! The settings with which a workspace was started. They are stored as labels on its container.

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use domain::container::{Gpus, LABEL, Mount, check};

/// The label with the workspace's name. The labels of the other settings have names that begin with it.
pub(super) const NAME_LABEL: &str = "lockstep.workspace";
/// The value of Lockstep's own label.
pub(super) const KIND: &str = "workspace";
/// The name is also the container's host name, which may have at most 63 bytes.
const NAME_BYTES_MAX: usize = 40;
/// Mount points inside the container.
pub(super) const CODE: &str = "/workspace/code";
pub(super) const DATA: &str = "/workspace/data";
pub(super) const LOGS: &str = "/workspace/logs";

/// UID and GID of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UserIds {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A folder of the machine, or a volume of the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountSource {
    pub(super) source: String,
    pub(super) read_only: bool,
}

/// All settings of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) gpus: Gpus,
    pub(super) code: MountSource,
    pub(super) data: MountSource,
    pub(super) logs: MountSource,
    pub(super) jupyter_port: u16,
    pub(super) ssh_port: u16,
    pub(super) user: UserIds,
}

/// The settings that the user gave. The others keep their value, or get the default.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct SettingsChange {
    /// Image to start. Default: lockstep-workspace:uidN, which --build builds.
    #[arg(long, value_name = "IMG", value_parser = image)]
    pub(super) image: Option<String>,
    /// GPUs: all, none, or indices or UUIDs, for example 0,1. Default: all.
    #[arg(long, value_parser = gpus)]
    pub(super) gpus: Option<Gpus>,
    /// Folder at /workspace/code. Default: the current folder.
    #[arg(long, value_name = "DIR", value_parser = folder)]
    pub(super) code: Option<MountSource>,
    /// Folder at /workspace/data; DIR:ro mounts it read-only.
    #[arg(long, value_name = "DIR[:ro]", value_parser = folder)]
    pub(super) data: Option<MountSource>,
    /// Folder at /workspace/logs.
    #[arg(long, value_name = "DIR", value_parser = folder)]
    pub(super) logs: Option<MountSource>,
    /// Port of this machine for Jupyter. Default: 8888.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) jupyter_port: Option<u16>,
    /// Port of this machine for SSH. Default: 2222.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) ssh_port: Option<u16>,
    /// User and group of the workspace, which own the files that it writes. Default: yours; under sudo, those of the user who called sudo.
    #[arg(long, value_name = "UID:GID", value_parser = user_ids)]
    pub(super) user: Option<UserIds>,
}

// === impl Settings ===

impl Settings {
    /// Returns the settings as labels of a container.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let named = self.parts().map(|(part, value)| (key(part), value));
        let own = [
            (LABEL.to_owned(), KIND.to_owned()),
            (NAME_LABEL.to_owned(), self.name.clone()),
        ];
        own.into_iter().chain(named).collect()
    }

    /// Reads the settings from labels. `None` if another version wrote the labels in another form.
    pub(super) fn from_labels(labels: &BTreeMap<String, String>) -> Option<Self> {
        let value = |part: &str| labels.get(&key(part));
        Some(Self {
            name: labels.get(NAME_LABEL)?.clone(),
            image: value("image")?.clone(),
            gpus: gpus(value("gpus")?).ok()?,
            code: MountSource::parse(value("code")?),
            data: MountSource::parse(value("data")?),
            logs: MountSource::parse(value("logs")?),
            jupyter_port: value("jupyter_port")?.parse().ok()?,
            ssh_port: value("ssh_port")?.parse().ok()?,
            user: user_ids(value("user")?).ok()?,
        })
    }

    /// Returns the settings with the given ones replaced.
    pub(super) fn with(&self, change: &SettingsChange) -> Self {
        let change = change.clone();
        Self {
            name: self.name.clone(),
            image: change.image.unwrap_or_else(|| self.image.clone()),
            gpus: change.gpus.unwrap_or_else(|| self.gpus.clone()),
            code: change.code.unwrap_or_else(|| self.code.clone()),
            data: change.data.unwrap_or_else(|| self.data.clone()),
            logs: change.logs.unwrap_or_else(|| self.logs.clone()),
            jupyter_port: change.jupyter_port.unwrap_or(self.jupyter_port),
            ssh_port: change.ssh_port.unwrap_or(self.ssh_port),
            user: change.user.unwrap_or(self.user),
        }
    }

    /// Describes the differences from other settings.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        self.parts()
            .zip(other.parts())
            .filter(|((_, here), (_, there))| here != there)
            .map(|((part, here), (_, there))| format!("{part} is {here}, not {there}"))
            .collect()
    }

    fn parts(&self) -> impl Iterator<Item = (&'static str, String)> {
        [
            ("image", self.image.clone()),
            ("gpus", gpus_text(&self.gpus)),
            ("code", self.code.to_string()),
            ("data", self.data.to_string()),
            ("logs", self.logs.to_string()),
            ("jupyter_port", self.jupyter_port.to_string()),
            ("ssh_port", self.ssh_port.to_string()),
            ("user", self.user.to_string()),
        ]
        .into_iter()
    }
}

fn key(part: &str) -> String {
    format!("{NAME_LABEL}.{part}")
}

// === impl MountSource ===

impl MountSource {
    /// Returns the default volume of a workspace.
    pub(super) fn volume(workspace: &str, what: &str) -> Self {
        Self {
            source: format!("lockstep-workspace-{workspace}-{what}"),
            read_only: false,
        }
    }

    /// Returns the mount at `target` in the container.
    pub(super) fn at(&self, target: &str) -> Mount {
        Mount {
            source: self.source.clone(),
            target: target.to_owned(),
            read_only: self.read_only,
        }
    }

    /// Returns true if this is a folder of the machine and not a volume.
    pub(super) fn is_folder(&self) -> bool {
        self.source.starts_with('/')
    }

    fn parse(text: &str) -> Self {
        let without_mode = text.strip_suffix(":ro");
        Self {
            source: without_mode.unwrap_or(text).to_owned(),
            read_only: without_mode.is_some(),
        }
    }
}

impl fmt::Display for MountSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.read_only { ":ro" } else { "" };
        write!(f, "{}{mode}", self.source)
    }
}

impl fmt::Display for UserIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

// === What is typed ===

/// Parses the name of a workspace.
pub(super) fn name(text: &str) -> Result<String, String> {
    check::name(text)?;
    if text.len() > NAME_BYTES_MAX {
        return Err(format!("is longer than {NAME_BYTES_MAX} bytes"));
    }
    Ok(text.to_owned())
}

/// Parses an image reference.
pub(super) fn image(text: &str) -> Result<String, String> {
    check::image(text).map(|()| text.to_owned())
}

/// Parses `all`, `none`, or GPUs by index or UUID.
pub(super) fn gpus(text: &str) -> Result<Gpus, String> {
    match text {
        "all" => Ok(Gpus::All),
        "none" => Ok(Gpus::None),
        list => {
            let devices: Vec<String> = list.split(',').map(str::to_owned).collect();
            for device in &devices {
                check::gpu(device).map_err(|error| format!("{error}; or `all` or `none`"))?;
            }
            Ok(Gpus::Devices(devices))
        }
    }
}

/// Formats GPUs as they are typed.
pub(super) fn gpus_text(gpus: &Gpus) -> String {
    match gpus {
        Gpus::All => "all".to_owned(),
        Gpus::None => "none".to_owned(),
        Gpus::Devices(devices) => devices.join(","),
    }
}

/// Returns the URL of Jupyter on this machine.
pub(super) fn url(jupyter_port: u16) -> String {
    format!("http://127.0.0.1:{jupyter_port}/lab")
}

/// Parses an existing folder, with the suffix `:ro` for read-only.
pub(super) fn folder(text: &str) -> Result<MountSource, String> {
    let MountSource { source, read_only } = MountSource::parse(text);
    let path = std::fs::canonicalize(&source).map_err(|error| {
        format!("{source} cannot be used ({error}); it must be a folder: mkdir -p {source}")
    })?;
    if !path.is_dir() {
        return Err(format!("{source} is not a folder"));
    }
    let source = path
        .to_str()
        .ok_or_else(|| format!("{} is not UTF-8", path.display()))?;
    check::path(source)?;
    Ok(MountSource {
        source: source.to_owned(),
        read_only,
    })
}

/// Parses `UID:GID`.
fn user_ids(text: &str) -> Result<UserIds, String> {
    let parsed = text.split_once(':').and_then(|(uid, gid)| {
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        Some(UserIds { uid, gid })
    });
    match parsed {
        Some(UserIds { uid: 0, .. }) => Err("a workspace does not run as root".to_owned()),
        Some(user) => Ok(user),
        None => Err(format!("{text:?} is not UID:GID, for example 1000:1000")),
    }
}

#[cfg(test)]
pub(super) use self::tests::settings as example;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    pub(in crate::command::workspace) fn settings() -> Settings {
        Settings {
            name: "ann".into(),
            image: "lockstep-workspace:uid1000".into(),
            gpus: Gpus::Devices(vec!["0".into(), "1".into()]),
            code: MountSource::parse("/home/ann/llama"),
            data: MountSource::parse("/datasets:ro"),
            logs: MountSource::volume("ann", "logs"),
            jupyter_port: 8888,
            ssh_port: 2222,
            user: UserIds { uid: 1000, gid: 100 },
        }
    }

    #[test]
    fn settings_are_read_back_from_labels() {
        for gpus in [Gpus::All, Gpus::None, settings().gpus] {
            let settings = Settings { gpus, ..settings() };
            assert_eq!(Settings::from_labels(&settings.labels()), Some(settings));
        }
        let mut labels = settings().labels();
        assert_eq!(labels["lockstep"], "workspace");
        assert_eq!(labels["lockstep.workspace.data"], "/datasets:ro");
        labels.remove("lockstep.workspace.gpus");
        assert_eq!(Settings::from_labels(&labels), None);
    }

    #[test]
    fn settings_that_are_not_given_stay_and_what_differs_is_named() {
        let here = settings();
        assert_eq!(here.with(&SettingsChange::default()), here);
        let change = SettingsChange {
            gpus: Some(Gpus::All),
            ssh_port: Some(2223),
            ..SettingsChange::default()
        };
        assert_eq!(
            here.differences(&here.with(&change)),
            ["gpus is 0,1, not all", "ssh_port is 2222, not 2223"]
        );
    }

    #[test]
    fn input_is_accepted_or_refused_with_a_reason() {
        assert_eq!(
            gpus("GPU-1,3").unwrap(),
            Gpus::Devices(vec!["GPU-1".into(), "3".into()])
        );
        for bad in ["", "0,", "0;1", "some"] {
            assert!(gpus(bad).unwrap_err().contains("`all`"), "{bad:?}");
        }
        assert_eq!(user_ids("7:8").unwrap(), UserIds { uid: 7, gid: 8 });
        assert!(user_ids("0:0").unwrap_err().contains("root"));
        for bad in ["7", "a:b", "7:", "-1:1"] {
            assert!(user_ids(bad).unwrap_err().contains("UID:GID"), "{bad:?}");
        }
        let here = tempfile::tempdir().unwrap();
        let path = here.path().canonicalize().unwrap().display().to_string();
        assert_eq!(
            folder(&format!("{path}:ro")).unwrap(),
            MountSource::parse(&format!("{path}:ro"))
        );
        assert!(folder(&format!("{path}/none")).unwrap_err().contains("mkdir -p"));
        std::fs::create_dir(here.path().join("a:b")).unwrap();
        assert!(
            folder(&format!("{path}/a:b"))
                .unwrap_err()
                .contains("mounts do not allow")
        );
        name("ann_2.x").unwrap();
        for bad in ["", "-a", "a b", &"x".repeat(41)] {
            name(bad).unwrap_err();
        }
    }
}
