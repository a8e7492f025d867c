//! `lockstep token create|join|list|revoke`

use clap::{Args, Subcommand, ValueEnum};
use domain::api::session::{CreateToken, NewToken, Role, TokenView};
use domain::time::parse_duration_ms;

use crate::client::Target;
use crate::failure::Failure;
use crate::table;

/// Make, list and revoke tokens for people, programs and agents.
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
    /// Make a token for the API or the dashboard. It is shown once.
    Create {
        /// What it may do.
        #[arg(long, value_enum)]
        role: ApiRole,
        /// Who or what it is for.
        #[arg(long, default_value = "")]
        note: String,
        /// Lifetime, like 12h or 30d; for ever when left out.
        #[arg(long, value_parser = seconds)]
        expires: Option<u64>,
    },
    /// Make a token with which agents join. It is shown once.
    Join {
        /// Lifetime, like 1h. Agents that joined stay.
        #[arg(long, default_value = "1h", value_parser = seconds)]
        expires: u64,
    },
    /// List tokens, never their secrets.
    List,
    /// Make a token useless.
    Revoke {
        /// Its id, from `list`.
        id: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum ApiRole {
    /// Reads everything.
    Viewer,
    /// Also starts and stops runs.
    Operator,
    /// Everything.
    Admin,
    /// Only /metrics.
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
                let made: NewToken = client
                    .post(
                        "/api/tokens",
                        &CreateToken {
                            role,
                            note,
                            expires_s: expires,
                        },
                    )
                    .await?;
                say!("{}", made.token);
            }
            Action::Join { expires } => {
                let wish = CreateToken {
                    role: Role::Join,
                    note: String::new(),
                    expires_s: Some(expires),
                };
                let made: NewToken = client.post("/api/tokens/join", &wish).await?;
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

fn seconds(text: &str) -> Result<u64, String> {
    let ms = parse_duration_ms(text).map_err(|error| error.to_string())?;
    u64::try_from(ms / 1_000)
        .ok()
        .filter(|s| *s > 0)
        .ok_or_else(|| "must be at least 1s".to_owned())
}

/// An id that goes into a path as it is.
pub(super) fn path_part(id: &str) -> Result<&str, Failure> {
    domain::ident::RunId::new(id).map_err(|_| Failure::Usage(format!("{id:?} is not an id")))?;
    Ok(id)
}
