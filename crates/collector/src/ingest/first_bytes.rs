//! Bounds how many bytes of a gRPC stream are read until its hello is decoded.
//!
//! tonic has one size limit for all messages of a service, and one minute of a large node's logs needs 16 MiB. So this layer below tonic
//! counts bytes until [`FirstBytes::lift`] is called.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use tonic::Status;
use wire::version::HELLO_BYTES_MAX;

/// The value that means: no limit.
const LIFTED: usize = usize::MAX;

/// How many bytes of a request body may still be read. Stored in the extensions of the request.
#[derive(Clone)]
pub(super) struct FirstBytes(Arc<AtomicUsize>);

impl FirstBytes {
    /// Removes the limit.
    pub(super) fn lift(&self) {
        self.0.store(LIFTED, Ordering::Release);
    }

    fn count(&self, bytes: usize) -> Result<(), Status> {
        let left = self.0.load(Ordering::Acquire);
        if left == LIFTED {
            return Ok(());
        }
        let Some(rest) = left.checked_sub(bytes) else {
            return Err(super::hello::too_long());
        };
        // If `lift` runs at the same time, the exchange fails, as it should: the limit stays removed.
        let _lifted = self
            .0
            .compare_exchange(left, rest, Ordering::AcqRel, Ordering::Acquire);
        Ok(())
    }
}

/// The layer below tonic.
pub(super) async fn limit(mut request: Request, next: Next) -> Response {
    let first_bytes = FirstBytes(Arc::new(AtomicUsize::new(HELLO_BYTES_MAX)));
    request.extensions_mut().insert(first_bytes.clone());
    let request = request.map(|body| {
        let data = body
            .into_data_stream()
            .map(move |data| -> Result<Bytes, BoxError> {
                let data = data?;
                first_bytes.count(data.len())?;
                Ok(data)
            });
        Body::from_stream(data)
    });
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_the_limit_is_lifted() {
        let first_bytes = FirstBytes(Arc::new(AtomicUsize::new(10)));
        assert!(first_bytes.count(6).is_ok() && first_bytes.count(4).is_ok());
        assert!(first_bytes.count(1).is_err());
        first_bytes.lift();
        assert!(first_bytes.count(1 << 30).is_ok());
    }
}
