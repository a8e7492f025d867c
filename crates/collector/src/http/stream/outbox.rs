//! The queue of messages to one tab: bounded in messages and in bytes. A tab that fills it is disconnected; nothing waits for it.

use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket};
use futures::SinkExt;
use futures::stream::SplitSink;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Maximum number of queued messages. A page gets some dozens per second; a tab that is this far behind is suspended or gone.
const MESSAGES_MAX: usize = 256;
/// Maximum number of bytes of these messages: some of the largest frames, or a burst of everything that a page watches.
const BYTES_MAX: usize = 32 << 20;

/// The tab's end of the queue.
pub(super) struct Outbox {
    sender: mpsc::Sender<Waiting>,
    room: Arc<Semaphore>,
}

/// The WebSocket's end of the queue.
pub(super) struct Outgoing(mpsc::Receiver<Waiting>);

/// A message, and the room that it takes until it is sent.
struct Waiting(Message, OwnedSemaphorePermit);

/// The queue is full: the tab does not read.
#[derive(Debug)]
pub(super) struct Full;

pub(super) fn outbox() -> (Outbox, Outgoing) {
    let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
    let room = Arc::new(Semaphore::new(BYTES_MAX));
    (Outbox { sender, room }, Outgoing(receiver))
}

impl Outbox {
    /// Adds a message to the queue.
    pub(super) fn push(&self, message: Message) -> Result<(), Full> {
        let bytes = match &message {
            Message::Text(text) => text.len(),
            Message::Binary(bytes) => bytes.len(),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => 0,
        };
        let bytes = u32::try_from(bytes).map_err(|_| Full)?;
        let room = Arc::clone(&self.room)
            .try_acquire_many_owned(bytes)
            .map_err(|_| Full)?;
        self.sender.try_send(Waiting(message, room)).map_err(|_| Full)
    }
}

impl Outgoing {
    /// Sends messages until the WebSocket or the tab ends.
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

        let (text, bytes) = ("x".repeat(BYTES_MAX / 2), vec![0_u8; BYTES_MAX / 2]);
        outbox.push(Message::text(text)).expect("there is room");
        outbox.push(Message::binary(bytes)).expect("just enough");
        assert!(outbox.push(Message::text("x")).is_err());
        assert!(outbox.push(Message::binary(vec![0_u8])).is_err());
        drop(outgoing.0.try_recv());
        outbox.push(Message::text("x")).expect("what was sent makes room");
    }
}
