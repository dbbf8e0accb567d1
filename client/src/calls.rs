//! Requests that are answered once: several at a time over one connection, each found again by its correlation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use tidegate_protocol::frame::Kind;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::connection::{Connection, Received};
use crate::{Error, ErrorKind, Result};

/// Requests that wait for the connection's task; a caller beyond it waits.
const WAITING_MAX: usize = 256;

struct Call {
    correlation: u32,
    request: Bytes,
    answer: oneshot::Sender<Result<Received>>,
}

/// The callers' end of a connection for requests. Ends with its last owner.
#[derive(Debug)]
pub(crate) struct Calls {
    calls: mpsc::Sender<Call>,
    correlation: AtomicU32,
}

impl Calls {
    /// Serves a connection in a task of its own.
    pub(crate) fn start(connection: Connection) -> Calls {
        let (calls, queue) = mpsc::channel(WAITING_MAX);
        tokio::spawn(serve(connection, queue));
        Calls { calls, correlation: AtomicU32::new(1) }
    }

    /// Whether a call could still succeed.
    pub(crate) fn is_open(&self) -> bool {
        !self.calls.is_closed()
    }

    /// Sends a request and waits for its reply; an error frame is an error.
    ///
    /// # Errors
    /// `Unreachable` if it was certainly not sent, `UnknownOutcome` if it may have been; what the broker refused.
    pub(crate) async fn call(&self, encode: &(dyn Fn(u32, &mut Vec<u8>) + Send + Sync)) -> Result<Received> {
        // Half of the numbers, so that pings can have one of the others.
        let correlation = self.correlation.fetch_add(1, Ordering::Relaxed) & 0x7fff_ffff;
        let mut request = Vec::with_capacity(128);
        encode(correlation, &mut request);
        let (answer, answered) = oneshot::channel();
        let call = Call { correlation, request: Bytes::from(request), answer };
        let gone =
            || Error::new(ErrorKind::Unreachable, "the connection was lost before the request was sent");
        self.calls.send(call).await.map_err(|_| gone())?;
        let reply = answered.await.map_err(|_| gone())??;
        match reply.kind() {
            Kind::Error => Err(reply.refusal()),
            Kind::Reply => Ok(reply),
            Kind::Request => Err(Error::new(ErrorKind::Protocol, "the broker answered with a request")),
        }
    }
}

async fn serve(mut connection: Connection, mut queue: mpsc::Receiver<Call>) {
    let mut waiting = HashMap::new();
    let Err(error) = serve_until_lost(&mut connection, &mut queue, &mut waiting).await else {
        return;
    };
    queue.close();
    for (_, answer) in waiting {
        let unknown = Error::new(ErrorKind::UnknownOutcome, error.cause())
            .with_hint("the request may or may not have been done; look before repeating it");
        // Whoever asked may have stopped waiting.
        let _ = answer.send(Err(unknown));
    }
}

async fn serve_until_lost(
    connection: &mut Connection,
    queue: &mut mpsc::Receiver<Call>,
    waiting: &mut HashMap<u32, oneshot::Sender<Result<Received>>>,
) -> Result<()> {
    loop {
        while let Some(frame) = connection.next_frame()? {
            // Frames that nobody waits for: credit, or the answer to a caller that gave up.
            if let Some(answer) = waiting.remove(&frame.correlation) {
                let _ = answer.send(Ok(frame));
            }
        }
        let next_check = connection.keep_alive(Instant::now(), (0, connection.hello().credit_initial))?;
        connection.transmit()?;
        tokio::select! {
            call = queue.recv() => {
                let Some(call) = call else { return Ok(()) };
                waiting.retain(|_, answer: &mut oneshot::Sender<_>| !answer.is_closed());
                connection.send(call.request);
                waiting.insert(call.correlation, call.answer);
            }
            ready = connection.ready() => {
                ready?;
                connection.receive()?;
            }
            () = tokio::time::sleep_until(next_check) => {}
        }
    }
}
