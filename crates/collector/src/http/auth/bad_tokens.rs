//! Limits how many invalid tokens one address may send.
//!
//! A valid token is never limited, whatever else its address has sent: otherwise one faulty client behind a gateway would lock out all
//! others there. Tokens are 32 random bytes, so no one finds one by guessing. The limit makes guessing visible and keeps it cheap.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use listener::AddressKey;

use crate::http::error::ApiError;

/// Number of invalid tokens that an address may send at once, and per minute after that. A page that is left open with a revoked token
/// sends at most one request per second.
const REQUESTS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(100).expect("it is not zero");
/// Number of failed log-ins at once and per minute: people make mistakes, but few.
const LOG_INS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).expect("it is not zero");
/// Number of addresses that are stored, about 100 bytes each; those without a recent failure are removed. While the store is full, the
/// failures of all other addresses count as one address.
const ADDRESSES_MAX: usize = 10_000;

/// Number of failures between two clean-ups, each of which visits all addresses.
const FORGET_EVERY: u64 = 256;

type Limiter<C> = RateLimiter<
    Option<AddressKey>,
    HashMapStateStore<Option<AddressKey>>,
    C,
    NoOpMiddleware<<C as Clock>::Instant>,
>;

/// Failures by address.
#[derive(Clone)]
pub struct BadTokens(Arc<Limiters<DefaultClock>>);

struct Limiters<C: Clock> {
    requests: Limiter<C>,
    log_ins: Limiter<C>,
    clock: C,
    failures: AtomicU64,
}

/// Where an invalid token was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Attempt {
    /// In a header of a request.
    Request,
    /// In the body of a log-in.
    LogIn,
}

impl Default for BadTokens {
    fn default() -> Self {
        Self(Arc::new(Limiters::new(DefaultClock::default())))
    }
}

impl BadTokens {
    /// Counts an invalid token and returns the error to answer: `refusal`, or 429 if the address has sent too many.
    pub(in crate::http) fn answer(
        &self,
        address: AddressKey,
        attempt: Attempt,
        refusal: ApiError,
    ) -> ApiError {
        self.0.count(address, attempt).err().map_or(refusal, |wait_s| {
            let detail = format!(
                "the token is invalid, and this address has sent too many invalid tokens; try again in {wait_s} s"
            );
            ApiError::too_many(detail, wait_s)
        })
    }
}

impl<C: Clock + Clone> Limiters<C> {
    fn new(clock: C) -> Self {
        let limiter = |per_minute| {
            RateLimiter::new(
                Quota::per_minute(per_minute),
                HashMapStateStore::default(),
                clock.clone(),
            )
        };
        Self {
            requests: limiter(REQUESTS_PER_MINUTE),
            log_ins: limiter(LOG_INS_PER_MINUTE),
            clock,
            failures: AtomicU64::new(0),
        }
    }

    /// Counts a failure. The error is the number of seconds to wait, if there were too many.
    fn count(&self, address: AddressKey, attempt: Attempt) -> Result<(), u64> {
        let limiter = match attempt {
            Attempt::Request => &self.requests,
            Attempt::LogIn => &self.log_ins,
        };
        if self
            .failures
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(FORGET_EVERY)
        {
            self.requests.retain_recent();
            self.log_ins.retain_recent();
        }
        let key = (limiter.len() < ADDRESSES_MAX).then_some(address);
        limiter
            .check_key(&key)
            .map_err(|not_until| not_until.wait_time_from(self.clock.now()).as_secs() + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use governor::clock::FakeRelativeClock;

    use super::*;

    fn address(n: u32) -> AddressKey {
        IpAddr::V4(Ipv4Addr::from_bits(n)).into()
    }

    #[test]
    fn each_address_has_a_hundred_requests_and_ten_log_ins_per_minute() {
        let clock = FakeRelativeClock::default();
        let limiters = Limiters::new(clock.clone());
        for (attempt, allowed) in [(Attempt::Request, 100), (Attempt::LogIn, 10)] {
            let good = (0..allowed).all(|_| limiters.count(address(1), attempt).is_ok());
            assert!(good, "{attempt:?}");
            let wait_s = limiters.count(address(1), attempt).expect_err("one too many");
            assert!((1..=7).contains(&wait_s), "{attempt:?}: {wait_s} s");
            assert_eq!(limiters.count(address(2), attempt), Ok(()), "another address");
        }
        clock.advance(Duration::from_secs(60));
        assert_eq!(limiters.count(address(1), Attempt::LogIn), Ok(()));
    }

    #[test]
    fn a_flood_of_addresses_takes_bounded_memory() {
        let clock = FakeRelativeClock::default();
        let limiters = Limiters::new(clock.clone());
        for n in 0..ADDRESSES_MAX as u32 + 100 {
            assert_eq!(limiters.count(address(n), Attempt::Request), Ok(()), "{n}");
        }
        assert!(
            limiters.count(address(u32::MAX), Attempt::Request).is_err(),
            "they share one limit"
        );
        assert!(limiters.requests.len() <= ADDRESSES_MAX + 1);
        clock.advance(Duration::from_secs(61));
        for n in 0..FORGET_EVERY as u32 {
            let _too_many_without_an_entry = limiters.count(address(n), Attempt::LogIn);
        }
        assert!(limiters.requests.len() < 10, "old ones are forgotten");
        assert_eq!(limiters.count(address(u32::MAX), Attempt::Request), Ok(()));
    }
}
