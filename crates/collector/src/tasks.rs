//! Background tasks of the collector, and the signal that ends them.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns background tasks and waits for them at the end. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    stopping: CancellationToken,
    tracker: TaskTracker,
}

impl Tasks {
    /// Runs `task` in the background until the collector stops. Then the task is dropped at its next await.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Runs `task` to its own end. The collector waits for it when it stops.
    pub fn spawn_to_end<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.tracker.spawn(task)
    }

    /// Wraps a future, wherever it runs, so that the collector waits for it when it stops.
    pub fn track<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        self.tracker.track_future(task)
    }

    /// A token that is cancelled when the collector stops.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Ends all tasks at their next await.
    pub(crate) fn cancel(&self) {
        self.stopping.cancel();
    }

    /// Waits for all tasks.
    pub(crate) async fn join(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
