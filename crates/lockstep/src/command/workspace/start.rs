//! `lockstep workspace start [NAME]`

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use domain::container::{Gpus, Runtime};
use domain::run::torchrun::Launch;

use super::container::{Rights, container_name, run_line};
use super::engine::{Choice, Engine, Refusal};
use super::found::{self, Found};
use super::keys::{Keys, PublicKeys};
use super::settings::{self, CODE, DATA, LOGS, Person, Place, Settings, Wish, gpus_text, url};
use super::{image, ready};
use crate::failure::Failure;

const JUPYTER_PORT: u16 = 8888;
const SSH_PORT: u16 = 2222;
/// The user in the image.
const USER: &str = "workspace";

/// Start a workspace and say where it is. One that runs already is left as it is.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep workspace start --build               the current folder, all GPUs; builds the image first
  lockstep workspace start ann --code ~/llama --data /datasets:ro --gpus 0,1
  lockstep workspace start ben --jupyter-port 8889 --ssh-port 2223
  lockstep workspace start --build --base nvcr.io/nvidia/pytorch:25.06-py3
  lockstep workspace start --gpus none --dry-run

Data and logs are volumes that the runtime keeps, unless folders are named. A stopped workspace is started as it was.")]
pub(super) struct Start {
    /// Its name. Default: yours.
    #[arg(value_parser = settings::name)]
    name: Option<String>,
    /// The image. Default: lockstep-workspace:uidN, which --build builds.
    #[arg(long, value_name = "IMG", value_parser = image::reference)]
    image: Option<String>,
    /// Build the image first; quick when nothing has changed.
    #[arg(long)]
    build: bool,
    /// What to build it on: an image of Debian or Ubuntu whose python3 imports torch.
    #[arg(long, value_name = "IMG", requires = "build", value_parser = image::reference)]
    base: Option<String>,
    /// all, none, or indices or UUIDs like 0,1. Default: all.
    #[arg(long, value_parser = settings::gpus)]
    gpus: Option<Gpus>,
    /// Folder at /workspace/code. Default: the current one.
    #[arg(long, value_name = "DIR", value_parser = settings::folder)]
    code: Option<Place>,
    /// Folder at /workspace/data; DIR:ro is only read.
    #[arg(long, value_name = "DIR[:ro]", value_parser = settings::folder)]
    data: Option<Place>,
    /// Folder at /workspace/logs.
    #[arg(long, value_name = "DIR", value_parser = settings::folder)]
    logs: Option<Place>,
    /// Port of this machine for Jupyter. Default: 8888.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    jupyter_port: Option<u16>,
    /// Port of this machine for SSH. Default: 2222.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    ssh_port: Option<u16>,
    /// Public keys that SSH lets in. Default: ~/.ssh/id_ed25519.pub, id_ecdsa.pub or id_rsa.pub.
    #[arg(long, value_name = "FILE.pub")]
    ssh_key: Option<PathBuf>,
    /// Whose files it writes. Default: you, under sudo who called it.
    #[arg(long, value_name = "UID:GID", value_parser = settings::person)]
    user: Option<Person>,
    /// Print the commands, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

impl Start {
    pub(super) async fn execute(self, choice: Choice, state: &Path) -> Result<(), Failure> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => own_name()?,
        };
        let keys = Keys::of(state, &name);
        if self.dry_run {
            let engine = engine_untouched(choice).await?;
            return self.tell(engine, &name, &keys);
        }
        let engines = choice.engines().await?;
        let public = PublicKeys::find(self.ssh_key.as_deref())?;
        let Some(there) = found::named(&engines, &name).await? else {
            let settings = self.settings(&name)?;
            let engine = *engines.first().context("no runtime answers")?;
            return self.create(engine, &settings, &keys, public.as_ref()).await;
        };
        let differences = there.settings.differences(&there.settings.with(&self.wish()));
        if !differences.is_empty() {
            return Err(Failure::Failed(anyhow::anyhow!(
                "the workspace {name} is there with other settings ({}); start it without them, take another name, or `lockstep workspace stop {name} --remove` first: its folders stay",
                differences.join(", ")
            )));
        }
        if self.build {
            eprintln!(
                "{name} is there already, and keeps its image; `lockstep workspace stop {name} --remove` lets the next start take a new one"
            );
        }
        let token = keys.prepare(there.settings.person, public.as_ref())?;
        if !there.runs() {
            free_ports(&there.settings)?;
            let line = there.engine.runtime.start(&there.container);
            there.engine.carry_out(&line).await?;
        }
        finish(&there, &keys, token).await
    }

    async fn create(
        &self,
        engine: Engine,
        settings: &Settings,
        keys: &Keys,
        public: Option<&PublicKeys>,
    ) -> Result<(), Failure> {
        free_ports(settings)?;
        let container = container_name(&settings.name);
        if engine.ask(&engine.runtime.inspect(&container)).await.is_ok() {
            return Err(Failure::Failed(anyhow::anyhow!(
                "there is a container {container} that is no workspace; look at it with `{0} container inspect {container}`, and take another name or remove it",
                engine.runtime
            )));
        }
        if self.build {
            eprintln!("Building {} …", settings.image);
            image::build(engine, &settings.image, self.base.as_deref(), settings.person).await?;
        }
        image::verify(engine, &settings.image, settings.person).await?;
        let token = keys.prepare(settings.person, public)?;
        let line = run_line(settings, &keys.folder, engine.runtime, Rights::own());
        if let Err(refusal) = engine.carry_out(&line).await {
            return Err(clean_up(engine, settings, keys, token.is_some(), refusal).await);
        }
        let there = found::named(&[engine], &settings.name).await?;
        let there =
            there.with_context(|| format!("{} started {container} and does not list it", engine.runtime))?;
        finish(&there, keys, token).await
    }

    /// What a new one is made of.
    fn settings(&self, name: &str) -> Result<Settings, Failure> {
        let person = match self.user {
            Some(person) => person,
            None => own_person()?,
        };
        let code = match &self.code {
            Some(code) => code.clone(),
            None => current_folder()?,
        };
        let settings = Settings {
            name: name.to_owned(),
            image: image::of(person),
            gpus: Gpus::All,
            code,
            data: Place::volume(name, "data"),
            logs: Place::volume(name, "logs"),
            jupyter_port: JUPYTER_PORT,
            ssh_port: SSH_PORT,
            person,
        };
        let settings = settings.with(&self.wish());
        if settings.jupyter_port == settings.ssh_port {
            let port = settings.ssh_port;
            return Err(Failure::Usage(format!(
                "Jupyter and SSH cannot both have port {port}"
            )));
        }
        Ok(settings)
    }

    fn wish(&self) -> Wish {
        Wish {
            image: self.image.clone(),
            gpus: self.gpus.clone(),
            code: self.code.clone(),
            data: self.data.clone(),
            logs: self.logs.clone(),
            jupyter_port: self.jupyter_port,
            ssh_port: self.ssh_port,
            person: self.user,
        }
    }

    fn tell(&self, engine: Engine, name: &str, keys: &Keys) -> Result<(), Failure> {
        let settings = self.settings(name)?;
        if self.build {
            let folder = "lockstep-workspace-image";
            say!("lockstep workspace dockerfile --to {folder}");
            let base = self.base.as_deref();
            let build = image::build_line(engine.runtime, &settings.image, base, settings.person, folder);
            say!("{}", shell_line(build));
        }
        let run = run_line(&settings, &keys.folder, engine.runtime, Rights::own());
        say!("{}", shell_line(run));
        Ok(())
    }
}

/// One that was named is not asked whether it is there: the commands may be for another machine.
async fn engine_untouched(choice: Choice) -> Result<Engine, Failure> {
    let runtime = match choice {
        Choice::Docker => Runtime::Docker,
        Choice::Podman => Runtime::Podman,
        Choice::Auto => return Ok(*choice.engines().await?.first().context("no runtime answers")?),
    };
    Ok(Engine { runtime })
}

/// Docker leaves a container behind that it could not start. A token that nobody was told is of no use.
async fn clean_up(
    engine: Engine,
    settings: &Settings,
    keys: &Keys,
    new_token: bool,
    refusal: Refusal,
) -> Failure {
    let there = found::named(&[engine], &settings.name).await;
    if let Ok(Some(there)) = there
        && let Err(error) = engine.carry_out(&engine.runtime.remove(&there.container)).await
    {
        eprintln!("what is left of it could not be removed: {error}");
    }
    if new_token && let Err(error) = keys.remove() {
        eprintln!("{error:#}");
    }
    refusal.into()
}

async fn finish(there: &Found, keys: &Keys, token: Option<String>) -> Result<(), Failure> {
    let settings = &there.settings;
    eprintln!("Waiting for Jupyter to answer …");
    let ready = ready::wait(there).await;
    let name = &settings.name;
    if ready.is_ok() {
        say!(
            "{name} runs in the {} container {}, GPUs: {}",
            there.engine.runtime,
            there.container,
            gpus_text(&settings.gpus)
        );
        say!("  Jupyter  {}", url(settings.jupyter_port));
    }
    // A new token is told even if nothing answers yet: it is told once.
    let file = keys.token_file();
    match token {
        Some(token) => say!(
            "  token    {token}\n           shown only now; kept in {}",
            file.display()
        ),
        None => say!("  token    in {}", file.display()),
    }
    ready?;
    if keys.lets_in() {
        say!(
            "  SSH      ssh -p {} -o HostKeyAlias=lockstep-workspace-{name} {USER}@127.0.0.1",
            settings.ssh_port
        );
    } else {
        say!(
            "  SSH      lets nobody in: `ssh-keygen -t ed25519`, or --ssh-key FILE.pub, and `lockstep workspace start {name}` again"
        );
    }
    for (inside, place) in [
        (CODE, &settings.code),
        (DATA, &settings.data),
        (LOGS, &settings.logs),
    ] {
        let kind = if place.is_folder() { "" } else { "volume " };
        say!("  {inside:<17} {kind}{place}");
    }
    Ok(())
}

/// A port that somebody has would be found by the runtime as well, in words of its own and after the container was made.
fn free_ports(settings: &Settings) -> Result<(), Failure> {
    for (what, option, port) in [
        ("Jupyter", "--jupyter-port", settings.jupyter_port),
        ("SSH", "--ssh-port", settings.ssh_port),
    ] {
        if let Err(error) = TcpListener::bind(("127.0.0.1", port)) {
            return Err(Failure::Failed(anyhow::anyhow!(
                "port {port} of this machine cannot be had for {what} ({error}); see who has it with `lockstep workspace list` or `ss -ltnp sport = :{port}`, or choose another with {option}"
            )));
        }
    }
    Ok(())
}

/// Whoever calls it; under sudo, who called sudo.
fn own_person() -> Result<Person, Failure> {
    let variable = |name: &str| std::env::var(name).ok()?.parse().ok();
    let own = Person {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    let called_by = || {
        let (uid, gid) = (variable("SUDO_UID")?, variable("SUDO_GID")?);
        Some(Person { uid, gid })
    };
    let person = if own.uid == 0 { called_by() } else { Some(own) };
    person.filter(|person| person.uid != 0).ok_or_else(|| {
        Failure::Usage(
            "a workspace does not run as root; say whose it is with --user UID:GID (`id -u NAME`, `id -g NAME`)"
                .to_owned(),
        )
    })
}

fn own_name() -> Result<String, Failure> {
    let variables = ["SUDO_USER", "USER", "LOGNAME"];
    let name = variables.iter().find_map(|variable| std::env::var(variable).ok());
    let unusable = || Failure::Usage("give the workspace a name: lockstep workspace start NAME".to_owned());
    settings::name(&name.ok_or_else(unusable)?).map_err(|_| unusable())
}

/// A home folder or / would put keys and everybody's files into the container.
fn current_folder() -> Result<Place, Failure> {
    let here = std::env::current_dir()?;
    if here == Path::new("/") || dirs::home_dir().is_some_and(|home| home == here) {
        return Err(Failure::Usage(format!(
            "{} is no folder of code; name one with --code DIR",
            here.display()
        )));
    }
    settings::folder(&here.to_string_lossy()).map_err(Failure::Usage)
}

fn shell_line(argv: Vec<String>) -> String {
    let launch = Launch {
        argv,
        ..Launch::default()
    };
    launch.shell_line()
}
