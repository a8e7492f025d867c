//! `lockstep workspace start [NAME]`

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use domain::container::{Gpus, Runtime};
use domain::run::torchrun::Launch;

use super::container::{PodmanPrivileges, container_name, run_line};
use super::discovery::{self, ExistingWorkspace};
use super::engine::{Engine, RuntimeChoice, RuntimeError};
use super::keys::{Keys, PublicKeys};
use super::settings::{
    self, CODE, DATA, LOGS, MountSource, Settings, SettingsChange, UserIds, gpus_text, url,
};
use super::{image, ready};
use crate::failure::Failure;

const JUPYTER_PORT: u16 = 8888;
const SSH_PORT: u16 = 2222;
/// Name of the user in the image.
const USER: &str = "workspace";

/// Start a workspace and print its address. A running workspace is not changed.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep workspace start --build               the current folder, all GPUs; builds the image first
  lockstep workspace start ann --code ~/llama --data /datasets:ro --gpus 0,1
  lockstep workspace start ben --jupyter-port 8889 --ssh-port 2223
  lockstep workspace start --build --base nvcr.io/nvidia/pytorch:25.06-py3
  lockstep workspace start --gpus none --dry-run

Data and logs are volumes of the runtime, unless you set folders. A stopped workspace keeps its settings when it is started again.")]
pub(super) struct Start {
    /// Name of the workspace. Default: your user name.
    #[arg(value_parser = settings::name)]
    name: Option<String>,
    #[command(flatten)]
    change: SettingsChange,
    /// Build the image first. Fast if nothing has changed.
    #[arg(long)]
    build: bool,
    /// Base image for --build: a Debian or Ubuntu image whose python3 can import torch.
    #[arg(long, value_name = "IMG", requires = "build", value_parser = settings::image)]
    base: Option<String>,
    /// File with the public keys that SSH accepts. Default: ~/.ssh/id_ed25519.pub, id_ecdsa.pub or id_rsa.pub.
    #[arg(long, value_name = "FILE.pub")]
    ssh_key: Option<PathBuf>,
    /// Only print the commands.
    #[arg(long)]
    dry_run: bool,
}

impl Start {
    pub(super) async fn execute(self, choice: RuntimeChoice, state: &Path) -> Result<(), Failure> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => own_name()?,
        };
        let keys = Keys::of(state, &name);
        if self.dry_run {
            let engine = dry_run_engine(choice).await?;
            return self.print_commands(engine, &name, &keys);
        }
        let engines = choice.engines().await?;
        let public = PublicKeys::find(self.ssh_key.as_deref())?;
        let Some(there) = discovery::named(&engines, &name).await? else {
            let settings = self.settings(&name)?;
            let engine = *engines.first().context("no runtime answers")?;
            return self.create(engine, &settings, &keys, public.as_ref()).await;
        };
        let wanted = there.settings.with(&self.change);
        let differences = there.settings.differences(&wanted);
        if !differences.is_empty() {
            return Err(Failure::Failed(anyhow::anyhow!(
                "the workspace {name} exists with other settings ({}); start it without these options, use another name, or run `lockstep workspace stop {name} --remove` first (its folders are kept)",
                differences.join(", ")
            )));
        }
        if self.build {
            eprintln!(
                "{name} already exists and keeps its image; after `lockstep workspace stop {name} --remove`, the next start uses a new image"
            );
        }
        let token = keys.prepare(there.settings.user, public.as_ref())?;
        if !there.runs() {
            check_ports_free(&there.settings)?;
            let line = there.engine.runtime.start(&there.container);
            there.engine.run_without_timeout(&line).await?;
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
        check_ports_free(settings)?;
        let container = container_name(&settings.name);
        if engine.ask(&engine.runtime.inspect(&container)).await.is_ok() {
            return Err(Failure::Failed(anyhow::anyhow!(
                "there is a container {container} that is not a workspace; inspect it with `{0} container inspect {container}`, and use another name or remove it",
                engine.runtime
            )));
        }
        if self.build {
            eprintln!("Building {} …", settings.image);
            image::build(engine, &settings.image, self.base.as_deref(), settings.user).await?;
        }
        image::verify(engine, &settings.image, settings.user).await?;
        let token = keys.prepare(settings.user, public)?;
        let line = run_line(settings, &keys.folder, engine.runtime, PodmanPrivileges::own());
        if let Err(error) = engine.run_without_timeout(&line).await {
            return Err(clean_up(engine, settings, keys, token.is_some(), error).await);
        }
        let there = discovery::named(&[engine], &settings.name).await?;
        let there =
            there.with_context(|| format!("{} started {container} but does not list it", engine.runtime))?;
        finish(&there, keys, token).await
    }

    /// Returns the settings of a new workspace.
    fn settings(&self, name: &str) -> Result<Settings, Failure> {
        let user = match self.change.user {
            Some(user) => user,
            None => own_user()?,
        };
        let code = match &self.change.code {
            Some(code) => code.clone(),
            None => current_folder()?,
        };
        let settings = Settings {
            name: name.to_owned(),
            image: image::of(user),
            gpus: Gpus::All,
            code,
            data: MountSource::volume(name, "data"),
            logs: MountSource::volume(name, "logs"),
            jupyter_port: JUPYTER_PORT,
            ssh_port: SSH_PORT,
            user,
        };
        let settings = settings.with(&self.change);
        if settings.jupyter_port == settings.ssh_port {
            let port = settings.ssh_port;
            return Err(Failure::Usage(format!(
                "Jupyter and SSH cannot both use port {port}"
            )));
        }
        Ok(settings)
    }

    fn print_commands(&self, engine: Engine, name: &str, keys: &Keys) -> Result<(), Failure> {
        let settings = self.settings(name)?;
        if self.build {
            let folder = "lockstep-workspace-image";
            say!("lockstep workspace dockerfile --to {folder}");
            let base = self.base.as_deref();
            let build = image::build_line(engine.runtime, &settings.image, base, settings.user, folder);
            say!("{}", shell_line(build));
        }
        let run = run_line(&settings, &keys.folder, engine.runtime, PodmanPrivileges::own());
        say!("{}", shell_line(run));
        Ok(())
    }
}

/// Returns the engine for a dry run. A named runtime is not probed, because the commands may be for another machine.
async fn dry_run_engine(choice: RuntimeChoice) -> Result<Engine, Failure> {
    let runtime = match choice {
        RuntimeChoice::Docker => Runtime::Docker,
        RuntimeChoice::Podman => Runtime::Podman,
        RuntimeChoice::Auto => return Ok(*choice.engines().await?.first().context("no runtime answers")?),
    };
    Ok(Engine { runtime })
}

/// Removes what a failed start left. Docker leaves a container that it could not start; a new token that was never shown is useless.
async fn clean_up(
    engine: Engine,
    settings: &Settings,
    keys: &Keys,
    new_token: bool,
    error: RuntimeError,
) -> Failure {
    let there = discovery::named(&[engine], &settings.name).await;
    if let Ok(Some(there)) = there
        && let Err(error) = engine
            .run_without_timeout(&engine.runtime.remove(&there.container))
            .await
    {
        eprintln!("the failed container could not be removed: {error}");
    }
    if new_token && let Err(error) = keys.remove() {
        eprintln!("{error:#}");
    }
    error.into()
}

async fn finish(there: &ExistingWorkspace, keys: &Keys, token: Option<String>) -> Result<(), Failure> {
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
    // Show a new token even if Jupyter does not answer yet: it is shown only once.
    let file = keys.token_file();
    match token {
        Some(token) => say!(
            "  token    {token}\n           shown only now; stored in {}",
            file.display()
        ),
        None => say!("  token    in {}", file.display()),
    }
    ready?;
    if keys.has_authorized_keys() {
        say!(
            "  SSH      ssh -p {} -o HostKeyAlias=lockstep-workspace-{name} {USER}@127.0.0.1",
            settings.ssh_port
        );
    } else {
        say!(
            "  SSH      no public key: run `ssh-keygen -t ed25519` or use --ssh-key FILE.pub, then run `lockstep workspace start {name}` again"
        );
    }
    for (inside, source) in [
        (CODE, &settings.code),
        (DATA, &settings.data),
        (LOGS, &settings.logs),
    ] {
        let kind = if source.is_folder() { "" } else { "volume " };
        say!("  {inside:<17} {kind}{source}");
    }
    Ok(())
}

/// Checks that the ports are free. The runtime would find a taken port only after it has created the container, and report it less clearly.
fn check_ports_free(settings: &Settings) -> Result<(), Failure> {
    for (what, option, port) in [
        ("Jupyter", "--jupyter-port", settings.jupyter_port),
        ("SSH", "--ssh-port", settings.ssh_port),
    ] {
        if let Err(error) = TcpListener::bind(("127.0.0.1", port)) {
            return Err(Failure::Failed(anyhow::anyhow!(
                "port {port} of this machine is not available for {what} ({error}); find what uses it with `lockstep workspace list` or `ss -ltnp sport = :{port}`, or choose another with {option}"
            )));
        }
    }
    Ok(())
}

/// Returns the calling user; under sudo, the user who called sudo.
fn own_user() -> Result<UserIds, Failure> {
    let variable = |name: &str| std::env::var(name).ok()?.parse().ok();
    let own = UserIds {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    let called_by = || {
        let (uid, gid) = (variable("SUDO_UID")?, variable("SUDO_GID")?);
        Some(UserIds { uid, gid })
    };
    let user = if own.uid == 0 { called_by() } else { Some(own) };
    user.filter(|user| user.uid != 0).ok_or_else(|| {
        Failure::Usage(
            "a workspace does not run as root; set its user with --user UID:GID (`id -u NAME`, `id -g NAME`)"
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

/// Returns the current folder. Rejects the home folder and `/`: they would put keys and other users' files into the container.
fn current_folder() -> Result<MountSource, Failure> {
    let here = std::env::current_dir()?;
    if here == Path::new("/") || dirs::home_dir().is_some_and(|home| home == here) {
        return Err(Failure::Usage(format!(
            "{} is not a folder of code; choose one with --code DIR",
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
