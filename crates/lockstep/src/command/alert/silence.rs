//! `lockstep alert silence|silences|unsilence`.

use clap::Args;
use domain::api::silences::{CreateSilence, SilenceView};
use domain::incident::{SilenceMatcher, SilenceState};
use domain::series::Matcher;

use super::diagnosis_path;
use super::list::time;
use crate::client::Client;
use crate::command::token::{path_part, seconds};
use crate::failure::Failure;
use crate::table;

/// Arguments of `silence`.
#[derive(Args)]
pub(super) struct CreateArgs {
    /// ID of a diagnosis, to silence alerts with all its labels; or label matchers that must all match, for example node=n1, node!=n1,
    /// node=~"rack1-.*" or node!~"rack1-.*".
    #[arg(required = true, value_name = "ID|LABEL=VALUE")]
    what: Vec<String>,
    /// Duration of the silence, for example 30m, 2h or 7d.
    #[arg(long = "for", value_name = "DURATION", value_parser = seconds::<u32>)]
    for_s: u32,
    /// Reason for the silence, shown to other users.
    #[arg(long)]
    comment: String,
}

impl CreateArgs {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let asked = |matchers| CreateSilence {
            matchers,
            for_s: Some(self.for_s),
            comment: self.comment.clone(),
            ..CreateSilence::default()
        };
        let made: SilenceView = match self.what.as_slice() {
            [id] if !id.contains(['=', '~']) => {
                let path = format!("{}/silence", diagnosis_path(id)?);
                client.post(&path, &asked(Vec::new())).await?
            }
            conditions => {
                let matchers = conditions.iter().map(|text| matcher(text));
                let matchers = matchers.collect::<Result<_, _>>()?;
                client.post("/api/silences", &asked(matchers)).await?
            }
        };
        say!("{}", made.id);
        eprintln!(
            "active until {}; matches {} of the diagnoses that are firing",
            time(made.ends_ms),
            made.matches_now.len()
        );
        Ok(())
    }
}

pub(super) async fn list(client: &Client) -> Result<(), Failure> {
    let all: Vec<SilenceView> = client.get("/api/silences", &[]).await?;
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    table::print(
        &["ID", "STATE", "ENDS", "BY", "FIRING", "MATCHERS", "COMMENT"],
        &rows,
    );
    Ok(())
}

fn row(silence: &SilenceView) -> Vec<String> {
    let state = match silence.state {
        SilenceState::Pending => "pending",
        SilenceState::Active => "active",
        SilenceState::Expired => "expired",
    };
    let matchers = silence.matchers.iter().map(|one| Matcher::from(one).to_string());
    vec![
        silence.id.clone(),
        state.to_owned(),
        time(silence.ends_ms),
        silence.created_by.clone(),
        silence.matches_now.len().to_string(),
        matchers.collect::<Vec<_>>().join(" "),
        silence.comment.clone(),
    ]
}

pub(super) async fn end(client: &Client, id: &str) -> Result<(), Failure> {
    client.delete(&format!("/api/silences/{}", path_part(id)?)).await
}

/// Parses `node=n1`, `node!=n1`, `node=~RE` or `node!~RE`. The value may be in double quotes, as in PromQL.
fn matcher(text: &str) -> Result<SilenceMatcher, Failure> {
    let wrong = || {
        Failure::Usage(format!(
            "{text:?} is not a label matcher; use LABEL=VALUE, or one of !=, =~ and !~"
        ))
    };
    let at = text.find(['=', '!']).filter(|at| *at > 0).ok_or_else(wrong)?;
    let (name, rest) = text.split_at(at);
    let operators = [
        ("=~", true, true),
        ("!~", true, false),
        ("!=", false, false),
        ("=", false, true),
    ];
    let found = operators
        .into_iter()
        .find_map(|(word, is_regex, is_equal)| Some((rest.strip_prefix(word)?, is_regex, is_equal)));
    let (value, is_regex, is_equal) = found.ok_or_else(wrong)?;
    let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    Ok(SilenceMatcher {
        name: name.to_owned(),
        value: quoted.unwrap_or(value).to_owned(),
        is_regex,
        is_equal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_as_in_promql() {
        for (text, expected) in [
            ("node=n1", r#"node="n1""#),
            ("node!=n1", r#"node!="n1""#),
            ("node=~rack1-.*", r#"node=~"rack1-.*""#),
            (r#"node!~"a|b""#, r#"node!~"a|b""#),
            ("x==y", r#"x="=y""#),
        ] {
            let read = matcher(text).expect("a condition");
            assert_eq!(Matcher::from(&read).to_string(), expected);
        }
        for bad in ["node", "=n1", "node!n1", ""] {
            assert!(matcher(bad).is_err(), "{bad}");
        }
    }
}
