//! What waits to be sent to one tab: bounded in messages and in bytes. A tab that fills it is cut off, never waited for.

use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket};
use futures::SinkExt;
use futures::stream::SplitSink;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Messages waiting. A page gets some dozens a second; one that is this far behind is asleep or gone.
const MESSAGES_MAX: usize = 256;
/// Bytes of those messages: some of the largest frames, or a burst of everything a page watches.
const BYTES_MAX: usize = 32 << 20;

/// The tab's end of the queue.
pub(super) struct Outbox {
    sender: mpsc::Sender<Waiting>,
    room: Arc<Semaphore>,
}

/// The socket's end of the queue.
pub(super) struct Outgoing(mpsc::Receiver<Waiting>);

/// A message, and the room it takes until it is sent.
struct Waiting(Message, OwnedSemaphorePermit);

/// The tab does not read.
#[derive(Debug)]
pub(super) struct Full;

pub(super) fn outbox() -> (Outbox, Outgoing) {
    let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
    let room = Arc::new(Semaphore::new(BYTES_MAX));
    (Outbox { sender, room }, Outgoing(receiver))
}

impl Outbox {
    /// Puts a message behind the others.
    pub(super) fn push(&self, message: Message) -> Result<(), Full> {
        let bytes = match &message {
            Message::Text(text) => text.len(),
            _ => 0,
        };
        let bytes = u32::try_from(bytes).map_err(|_| Full)?;
        let room = Arc::clone(&self.room)
            .try_acquire_many_owned(bytes)
            .map_err(|_| Full)?;
        self.sender.try_send(Waiting(message, room)).map_err(|_| Full)
    }
}

impl Outgoing {
    /// Writes until the socket or the tab ends.
    pub(super) async fn write_to(&mut self, sink: &mut SplitSink<WebSocket, Message>) {
        while let Some(Waiting(message, room)) = self.0.recv().await {
            if sink.send(message).await.is_err() {
                return;
            }
            drop(room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_by_messages_and_by_bytes() {
        let (outbox, mut outgoing) = outbox();
        for _ in 0..MESSAGES_MAX {
            outbox
                .push(Message::Ping(Default::default()))
                .expect("there is room");
        }
        assert!(outbox.push(Message::Ping(Default::default())).is_err());
        while outgoing.0.try_recv().is_ok() {}

        let large = || Message::Text("x".repeat(BYTES_MAX / 2).into());
        outbox.push(large()).expect("there is room");
        outbox.push(large()).expect("just enough");
        assert!(outbox.push(Message::text("x")).is_err());
        drop(outgoing.0.try_recv());
        outbox.push(Message::text("x")).expect("what was sent makes room");
    }
}
