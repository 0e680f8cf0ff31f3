//! A check that waits: the connection is watched, so that nobody waits, and
//! nothing is taken, for a caller who has hung up.
//!
//! Nothing else tells of a hang-up: the server lets a connection that is closed
//! on one side alone be answered on the other, so that no handler is cut off in
//! the middle of a write. Whoever waits has to keep both sides open.

use std::any::Any;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use actix_web::dev::Extensions;
use tokio::sync::oneshot;

use super::call::Call;
use super::metrics::Waiting;
use super::problem::{Kind, Problem};
use crate::domain::decision::Code;
use crate::service::waiting::{Presence, Waited};
use crate::service::{CheckCommand, CheckReply, ServiceError, Tenant};
use crate::traces;

/// The other side of a connection, as far as it can be told without reading.
#[derive(Clone)]
struct Peer(Arc<TcpStream>);

impl Peer {
    /// What has been sent and not read says nothing of what comes after it.
    fn is_gone(&self) -> bool {
        match self.0.peek(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// Keeps a connection in view for the calls that come over it.
pub fn connected(connection: &dyn Any, data: &mut Extensions) {
    let stream = connection.downcast_ref::<actix_web::rt::net::TcpStream>();
    // Without it, a hang-up is noticed when the answer is written.
    let copy = stream.and_then(|stream| stream.as_fd().try_clone_to_owned().ok());
    if let Some(copy) = copy.map(TcpStream::from) {
        data.insert(Peer(Arc::new(copy)));
    }
}

/// Who waits for an answer.
struct Asking {
    answer: oneshot::Sender<Result<Waited, ServiceError>>,
    peer: Option<Peer>,
}

impl Presence for Asking {
    fn is_gone(&self) -> bool {
        self.answer.is_closed() || self.peer.as_ref().is_some_and(Peer::is_gone)
    }
}

/// Decides a check that may wait. The work goes on by itself, so that it ends
/// properly whatever becomes of the connection.
pub async fn check(call: &Call, tenant: &Arc<Tenant>, command: CheckCommand) -> Result<CheckReply, Problem> {
    let (answer, answered) = oneshot::channel();
    let peer = call.head.connection::<Peer>().cloned();
    let (service, tenant, bulk) = (Arc::clone(&call.state.service), Arc::clone(tenant), command.bulk);
    let _span = traces::span("queue");
    let work = async move {
        let asking = Asking { answer, peer };
        let waited = service.check_waiting(&tenant, command, &asking).await;
        if let Err(Ok(Waited::Answered(reply, _))) = asking.answer.send(waited)
            && let Err(error) = service.take_back(&tenant, &reply).await
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what nobody heard of was not taken back"
            );
        }
    };
    actix_web::rt::spawn(traces::within(traces::current().as_ref(), work));
    let waited =
        answered.await.map_err(|_| Problem::new(Kind::Internal, "The service met a fault of its own."))??;
    match waited {
        Waited::Answered(reply, waited) => {
            if let Some(waited) = waited {
                let outcome = match &reply {
                    CheckReply::Allowed(_) => Waiting::Admitted,
                    CheckReply::Refused(refusal) => match refusal.code {
                        Code::QueueFull => Waiting::Full,
                        Code::QueueTimeout => Waiting::TimedOut,
                        _ => Waiting::Refused,
                    },
                };
                call.state.metrics.waited(bulk, outcome, waited);
            }
            Ok(reply)
        }
        Waited::Gone(waited) => {
            call.state.metrics.waited(bulk, Waiting::HungUp, waited);
            // Nobody reads this.
            Err(Problem::new(Kind::RequestTimeout, "The caller hung up while it waited."))
        }
    }
}
