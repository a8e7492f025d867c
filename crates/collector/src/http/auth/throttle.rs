//! Guessing is slowed down: after too many bad tokens from one address, none but those it used well is looked at for a while.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use domain::time::TimestampMs;
use store::state::tokens::SecretHash;

use crate::http::error::ApiError;
use crate::tokens;

/// Failures are counted over this long.
const WINDOW_MS: i64 = 60_000;
/// Bad tokens an address may send in a window. A page left open with a revoked token asks once a second at most.
const FAILURES_MAX: u32 = 100;
/// Bad log-ins an address may make in a window: people type, they do not guess.
const LOGINS_MAX: u32 = 10;
/// Addresses remembered; past this those whose window has passed are dropped, and then new ones are not remembered.
const ADDRESSES_MAX: usize = 10_000;
/// Good tokens remembered an address, so that a neighbour's mistakes lock out nobody who was let in before.
const GOOD_A_ADDRESS: usize = 8;

/// What was tried from where.
#[derive(Clone, Default)]
pub struct Throttle(Arc<Mutex<HashMap<IpAddr, Tries>>>);

#[derive(Default)]
struct Tries {
    since_ms: TimestampMs,
    failures: u32,
    logins: u32,
    good: Vec<SecretHash>,
}

impl Throttle {
    /// Whether a bearer token from this address is looked at.
    ///
    /// # Errors
    /// 429 with the time to wait.
    pub(super) fn check(&self, peer: IpAddr, token: &str, now_ms: TimestampMs) -> Result<(), ApiError> {
        self.with(peer, now_ms, |tries| {
            let slow = tries.failures >= FAILURES_MAX && !tries.good.contains(&tokens::hash(token));
            if slow { Err(tries.refusal(now_ms)) } else { Ok(()) }
        })
    }

    /// Whether a log-in from this address is looked at; each counts until it succeeds.
    ///
    /// # Errors
    /// 429 with the time to wait.
    pub(in crate::http) fn check_login(&self, peer: IpAddr, now_ms: TimestampMs) -> Result<(), ApiError> {
        self.with(peer, now_ms, |tries| {
            if tries.logins >= LOGINS_MAX {
                Err(tries.refusal(now_ms))
            } else {
                Ok(())
            }
        })
    }

    pub(super) fn failed(&self, peer: IpAddr, now_ms: TimestampMs) {
        self.with(peer, now_ms, |tries| tries.failures += 1);
    }

    pub(in crate::http) fn login_failed(&self, peer: IpAddr, now_ms: TimestampMs) {
        self.with(peer, now_ms, |tries| tries.logins += 1);
    }

    /// Remembers a good token while its address is under suspicion.
    pub(super) fn succeeded(&self, peer: IpAddr, token: &str, now_ms: TimestampMs) {
        self.with(peer, now_ms, |tries| {
            let hash = tokens::hash(token);
            if tries.failures > 0 && tries.good.len() < GOOD_A_ADDRESS && !tries.good.contains(&hash) {
                tries.good.push(hash);
            }
        });
    }

    fn with<R>(&self, peer: IpAddr, now_ms: TimestampMs, act: impl FnOnce(&mut Tries) -> R) -> R {
        let mut all = self.0.lock().expect("nothing panics while holding it");
        if all.len() >= ADDRESSES_MAX {
            all.retain(|_, tries| now_ms - tries.since_ms < WINDOW_MS);
        }
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&peer) {
            return act(&mut Tries {
                since_ms: now_ms,
                ..Tries::default()
            });
        }
        let tries = all.entry(peer).or_default();
        if now_ms - tries.since_ms >= WINDOW_MS {
            *tries = Tries {
                since_ms: now_ms,
                good: std::mem::take(&mut tries.good),
                ..Tries::default()
            };
        }
        act(tries)
    }
}

impl Tries {
    fn refusal(&self, now_ms: TimestampMs) -> ApiError {
        let left_s = (self.since_ms + WINDOW_MS - now_ms).max(0) / 1_000 + 1;
        let detail = format!("too many bad tokens from this address; try again in {left_s} s");
        ApiError::too_many(detail, left_s.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn guessing_is_slowed_but_known_tokens_go_on() {
        let throttle = Throttle::default();
        throttle.failed(PEER, 0);
        throttle.succeeded(PEER, "known", 0);
        for _ in 0..FAILURES_MAX {
            throttle.failed(PEER, 1);
        }
        assert!(throttle.check(PEER, "guess", 2).is_err());
        assert!(throttle.check(PEER, "known", 2).is_ok());
        assert!(
            throttle
                .check(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), "guess", 2)
                .is_ok()
        );
        assert!(throttle.check(PEER, "guess", WINDOW_MS).is_ok());
    }

    #[test]
    fn people_get_ten_tries_a_minute() {
        let throttle = Throttle::default();
        for _ in 0..LOGINS_MAX {
            assert!(throttle.check_login(PEER, 5).is_ok());
            throttle.login_failed(PEER, 5);
        }
        assert!(throttle.check_login(PEER, 6).is_err());
        assert!(throttle.check_login(PEER, 5 + WINDOW_MS).is_ok());
    }
}
