//! `lockstep token create|join|list|revoke`

use clap::{Args, Subcommand, ValueEnum};
use domain::api::session::{CreateToken, NewToken, Role, TokenView};
use domain::time::parse_duration_ms;

use crate::client::Target;
use crate::failure::Failure;
use crate::table;

/// Create, list and revoke tokens for users, programs and agents.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep token create --role viewer --note grafana --expires 90d
  lockstep token join --expires 1h               for LOCKSTEP_JOIN on a new node")]
pub(crate) struct Token {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    target: Target,
}

#[derive(Subcommand)]
enum Action {
    /// Create a token for the API or the dashboard. It is shown only once.
    Create {
        /// Role of the token.
        #[arg(long, value_enum)]
        role: ApiRole,
        /// Description of who or what uses the token.
        #[arg(long, default_value = "")]
        note: String,
        /// Lifetime, for example 12h or 30d. Default: no expiry.
        #[arg(long, value_parser = seconds::<u64>)]
        expires: Option<u64>,
    },
    /// Create a join token for agents. It is shown only once.
    Join {
        /// Lifetime, for example 1h. Agents that have joined stay connected after it expires.
        #[arg(long, default_value = "1h", value_parser = seconds::<u64>)]
        expires: u64,
    },
    /// List tokens. Their secrets are not shown.
    List,
    /// Revoke a token.
    Revoke {
        /// ID of the token, from `list`.
        id: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum ApiRole {
    /// Can read everything.
    Viewer,
    /// Can also start and stop runs.
    Operator,
    /// Can do everything.
    Admin,
    /// Can only read /metrics.
    Scrape,
}

impl Token {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let client = self.target.client()?;
        match self.action {
            Action::Create { role, note, expires } => {
                let role = match role {
                    ApiRole::Viewer => Role::Viewer,
                    ApiRole::Operator => Role::Operator,
                    ApiRole::Admin => Role::Admin,
                    ApiRole::Scrape => Role::Scrape,
                };
                let request = CreateToken {
                    role,
                    note,
                    expires_s: expires,
                };
                let made: NewToken = client.post("/api/tokens", &request).await?;
                say!("{}", made.token);
            }
            Action::Join { expires } => {
                let request = CreateToken {
                    role: Role::Join,
                    note: String::new(),
                    expires_s: Some(expires),
                };
                let made: NewToken = client.post("/api/tokens/join", &request).await?;
                say!("{}", made.token);
            }
            Action::List => list(&client.get::<Vec<TokenView>>("/api/tokens", &[]).await?),
            Action::Revoke { id } => client.delete(&format!("/api/tokens/{}", path_part(&id)?)).await?,
        }
        Ok(())
    }
}

fn list(tokens: &[TokenView]) {
    let time = |ms: Option<i64>| {
        ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
            .map_or("-".to_owned(), |t| t.to_string())
    };
    let rows: Vec<_> = tokens
        .iter()
        .map(|t| {
            vec![
                t.id.clone(),
                format!("{:?}", t.role).to_lowercase(),
                time(Some(t.created_ms)),
                time(t.expires_ms),
                time(t.used_ms),
                t.note.clone(),
            ]
        })
        .collect();
    table::print(&["ID", "ROLE", "CREATED", "EXPIRES", "USED", "NOTE"], &rows);
}

/// Parses a lifetime or another duration of at least one second into whole seconds.
pub(super) fn seconds<T: TryFrom<i64>>(text: &str) -> Result<T, String> {
    let ms = parse_duration_ms(text).map_err(|error| error.to_string())?;
    Some(ms / 1_000)
        .filter(|seconds| *seconds > 0)
        .and_then(|seconds| T::try_from(seconds).ok())
        .ok_or_else(|| "must be at least 1s".to_owned())
}

/// Checks an ID that is inserted into a URL path unchanged.
pub(super) fn path_part(id: &str) -> Result<&str, Failure> {
    domain::ident::RunId::new(id).map_err(|_| Failure::Usage(format!("{id:?} is not a valid ID")))?;
    Ok(id)
}
