//! What a workspace is: the settings it was started with. They are labels on its container, and read back from there.

use std::collections::BTreeMap;
use std::fmt;

use domain::container::{Gpus, LABEL, Mount, check};

/// The label whose value is a workspace's name; further settings have names that begin like it.
pub(super) const NAME_LABEL: &str = "lockstep.workspace";
/// The value of Lockstep's own label.
pub(super) const KIND: &str = "workspace";
/// Host names end at 63.
const NAME_BYTES_MAX: usize = 40;
/// Where it is inside.
pub(super) const CODE: &str = "/workspace/code";
pub(super) const DATA: &str = "/workspace/data";
pub(super) const LOGS: &str = "/workspace/logs";

/// Numbers of a user and their group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Person {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A folder of the machine, or a volume that the runtime keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) source: String,
    pub(super) read_only: bool,
}

/// All that a workspace was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) gpus: Gpus,
    pub(super) code: Place,
    pub(super) data: Place,
    pub(super) logs: Place,
    pub(super) jupyter_port: u16,
    pub(super) ssh_port: u16,
    pub(super) person: Person,
}

/// What was asked for; the rest stays as it is, or becomes the default.
#[derive(Debug, Clone, Default)]
pub(super) struct Wish {
    pub(super) image: Option<String>,
    pub(super) gpus: Option<Gpus>,
    pub(super) code: Option<Place>,
    pub(super) data: Option<Place>,
    pub(super) logs: Option<Place>,
    pub(super) jupyter_port: Option<u16>,
    pub(super) ssh_port: Option<u16>,
    pub(super) person: Option<Person>,
}

// === impl Settings ===

impl Settings {
    /// As labels of a container.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let named = self.parts().map(|(part, value)| (key(part), value));
        let own = [
            (LABEL.to_owned(), KIND.to_owned()),
            (NAME_LABEL.to_owned(), self.name.clone()),
        ];
        own.into_iter().chain(named).collect()
    }

    /// Read back; `None` for a container that another version labelled in another way.
    pub(super) fn from_labels(labels: &BTreeMap<String, String>) -> Option<Self> {
        let value = |part: &str| labels.get(&key(part));
        Some(Self {
            name: labels.get(NAME_LABEL)?.clone(),
            image: value("image")?.clone(),
            gpus: gpus(value("gpus")?).ok()?,
            code: Place::parse(value("code")?),
            data: Place::parse(value("data")?),
            logs: Place::parse(value("logs")?),
            jupyter_port: value("jupyter_port")?.parse().ok()?,
            ssh_port: value("ssh_port")?.parse().ok()?,
            person: person(value("user")?).ok()?,
        })
    }

    /// With what was wished changed.
    pub(super) fn with(&self, wish: &Wish) -> Self {
        let wish = wish.clone();
        Self {
            name: self.name.clone(),
            image: wish.image.unwrap_or_else(|| self.image.clone()),
            gpus: wish.gpus.unwrap_or_else(|| self.gpus.clone()),
            code: wish.code.unwrap_or_else(|| self.code.clone()),
            data: wish.data.unwrap_or_else(|| self.data.clone()),
            logs: wish.logs.unwrap_or_else(|| self.logs.clone()),
            jupyter_port: wish.jupyter_port.unwrap_or(self.jupyter_port),
            ssh_port: wish.ssh_port.unwrap_or(self.ssh_port),
            person: wish.person.unwrap_or(self.person),
        }
    }

    /// Where others differ, in words.
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
            ("user", self.person.to_string()),
        ]
        .into_iter()
    }
}

fn key(part: &str) -> String {
    format!("{NAME_LABEL}.{part}")
}

// === impl Place ===

impl Place {
    /// A volume of a workspace's own.
    pub(super) fn volume(workspace: &str, what: &str) -> Self {
        Self {
            source: format!("lockstep-workspace-{workspace}-{what}"),
            read_only: false,
        }
    }

    /// In a container.
    pub(super) fn at(&self, target: &str) -> Mount {
        Mount {
            source: self.source.clone(),
            target: target.to_owned(),
            read_only: self.read_only,
        }
    }

    /// Whether the machine has it as a folder.
    pub(super) fn is_folder(&self) -> bool {
        self.source.starts_with('/')
    }

    fn parse(text: &str) -> Self {
        match text.strip_suffix(":ro") {
            Some(source) => Self {
                source: source.to_owned(),
                read_only: true,
            },
            None => Self {
                source: text.to_owned(),
                read_only: false,
            },
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.read_only { ":ro" } else { "" };
        write!(f, "{}{mode}", self.source)
    }
}

impl fmt::Display for Person {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

// === What is typed ===

/// A workspace's name.
pub(super) fn name(text: &str) -> Result<String, String> {
    check::name(text)?;
    if text.len() > NAME_BYTES_MAX {
        return Err(format!("is longer than {NAME_BYTES_MAX} bytes"));
    }
    Ok(text.to_owned())
}

/// `all`, `none`, or GPUs by index or UUID.
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

/// The same as it is typed.
pub(super) fn gpus_text(gpus: &Gpus) -> String {
    match gpus {
        Gpus::All => "all".to_owned(),
        Gpus::None => "none".to_owned(),
        Gpus::Devices(devices) => devices.join(","),
    }
}

/// Where a browser finds Jupyter on this machine.
pub(super) fn url(jupyter_port: u16) -> String {
    format!("http://127.0.0.1:{jupyter_port}/lab")
}

/// A folder that is there, with `:ro` behind it if it is only read.
pub(super) fn folder(text: &str) -> Result<Place, String> {
    let Place { source, read_only } = Place::parse(text);
    let path = std::fs::canonicalize(&source).map_err(|error| {
        format!("{source} cannot be used ({error}); it must be a folder: mkdir -p {source}")
    })?;
    if !path.is_dir() {
        return Err(format!("{source} is no folder"));
    }
    let source = path
        .to_str()
        .ok_or_else(|| format!("{} is not UTF-8", path.display()))?;
    check::path(source)?;
    Ok(Place {
        source: source.to_owned(),
        read_only,
    })
}

/// `UID:GID`.
pub(super) fn person(text: &str) -> Result<Person, String> {
    let parsed = text.split_once(':').and_then(|(uid, gid)| {
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        Some(Person { uid, gid })
    });
    match parsed {
        Some(Person { uid: 0, .. }) => Err("a workspace does not run as root".to_owned()),
        Some(person) => Ok(person),
        None => Err(format!("{text:?} are no ids; write UID:GID, like 1000:1000")),
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
            code: Place::parse("/home/ann/llama"),
            data: Place::parse("/datasets:ro"),
            logs: Place::volume("ann", "logs"),
            jupyter_port: 8888,
            ssh_port: 2222,
            person: Person { uid: 1000, gid: 100 },
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
    fn what_is_not_wished_stays_and_what_differs_is_named() {
        let here = settings();
        assert_eq!(here.with(&Wish::default()), here);
        let wish = Wish {
            gpus: Some(Gpus::All),
            ssh_port: Some(2223),
            ..Wish::default()
        };
        assert_eq!(
            here.differences(&here.with(&wish)),
            ["gpus is 0,1, not all", "ssh_port is 2222, not 2223"]
        );
    }

    #[test]
    fn what_is_typed_is_taken_or_refused_with_a_reason() {
        assert_eq!(
            gpus("GPU-1,3").unwrap(),
            Gpus::Devices(vec!["GPU-1".into(), "3".into()])
        );
        for bad in ["", "0,", "0;1", "some"] {
            assert!(gpus(bad).unwrap_err().contains("`all`"), "{bad:?}");
        }
        assert_eq!(person("7:8").unwrap(), Person { uid: 7, gid: 8 });
        assert!(person("0:0").unwrap_err().contains("root"));
        for bad in ["7", "a:b", "7:", "-1:1"] {
            assert!(person(bad).unwrap_err().contains("UID:GID"), "{bad:?}");
        }
        let here = tempfile::tempdir().unwrap();
        let path = here.path().canonicalize().unwrap().display().to_string();
        assert_eq!(
            folder(&format!("{path}:ro")).unwrap(),
            Place::parse(&format!("{path}:ro"))
        );
        assert!(folder(&format!("{path}/none")).unwrap_err().contains("mkdir -p"));
        std::fs::create_dir(here.path().join("a:b")).unwrap();
        assert!(
            folder(&format!("{path}/a:b"))
                .unwrap_err()
                .contains("cannot carry")
        );
        name("ann_2.x").unwrap();
        for bad in ["", "-a", "a b", &"x".repeat(41)] {
            name(bad).unwrap_err();
        }
    }
}
