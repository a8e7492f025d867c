//! Checks of the collector: it answers, it accepts the token, and its clock agrees with this machine's.

use std::time::Duration;

use domain::api::session::Session;

use super::check::Check;
use crate::client::{Target, last_cause};
use crate::failure::Failure;

const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Rank lateness is computed from clocks. Beyond this offset, even rules with a resolution of one second give wrong results.
const CLOCK_OFFSET_MS_MAX: i64 = 500;

pub(super) async fn checks(target: &Target) -> Vec<Check> {
    let url = target.url();
    if let Err(why) = ready(target).await {
        let next =
            "start one with `lockstep up`, or set its address with --url or LOCKSTEP_URL (and --tls-ca)";
        let found = format!("{url}: {why}");
        // If the user named no collector, none is required.
        return vec![if target.is_configured() {
            Check::fails("collector", found, next)
        } else {
            Check::absent("collector", found, next)
        }];
    }
    let mut checks = vec![Check::works("collector", format!("{url} answers"))];
    checks.extend(session(target).await);
    checks
}

async fn ready(target: &Target) -> Result<(), String> {
    let url = target.url();
    let http = target
        .http(url, ANSWER_WITHIN)
        .map_err(|failure| failure.message())?;
    let answer = http.get(format!("{url}/-/ready")).send().await;
    let answer = answer.map_err(|error| last_cause(&error))?;
    if answer.status().is_success() {
        Ok(())
    } else {
        Err(format!("answered {}", answer.status()))
    }
}

/// Checks the token's role and the collector's clock.
async fn session(target: &Target) -> Vec<Check> {
    let before_ms = jiff::Timestamp::now().as_millisecond();
    let session: Result<Session, Failure> = match target.client() {
        Ok(client) => client.get("/api/session", &[]).await,
        Err(failure) => Err(failure),
    };
    let now_ms = i64::midpoint(before_ms, jiff::Timestamp::now().as_millisecond());
    match session {
        Ok(session) => vec![
            Check::works(
                "token",
                format!(
                    "accepted with the role {}",
                    format!("{:?}", session.role).to_lowercase()
                ),
            ),
            clock(now_ms - session.now_ms),
        ],
        Err(failure) => {
            let next = "create one with `lockstep token create --role viewer` on the collector's machine, and set LOCKSTEP_TOKEN";
            vec![Check::fails("token", failure.message(), next)]
        }
    }
}

fn clock(offset_ms: i64) -> Check {
    let found = format!("{offset_ms} ms from the collector's clock");
    if offset_ms.abs() <= CLOCK_OFFSET_MS_MAX {
        return Check::works("clock", found);
    }
    Check::fails(
        "clock",
        found,
        "synchronise the clocks of all nodes with chrony or systemd-timesyncd",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::doctor::check::State;

    #[test]
    fn clocks_may_differ_by_half_a_second() {
        assert_eq!(
            [clock(500).state, clock(-501).state],
            [State::Works, State::Fails]
        );
    }
}
