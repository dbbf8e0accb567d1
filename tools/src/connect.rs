//! From the command line to a client, and from the SDK's errors to ours.

use std::future::Future;
use std::time::Duration;

use tidegate::{Client, Error, ErrorCode, ErrorKind};
use tokio::runtime::{Builder, Runtime};

use crate::exit::{Code, Failure};

/// Where the broker listens unless told otherwise.
pub(crate) const SERVER_DEFAULT: &str = "127.0.0.1:7171";

/// Threads for the client's tasks. Two, so that a reader that blocks on a terminal does not stop its connections.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let built = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    built.map_err(|e| Failure::new(Code::Failed, format!("cannot start threads: {e}")))
}

/// Runs one command that needs a broker.
pub(crate) fn with_client<F>(server: &str, work: impl FnOnce(Client) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let runtime = runtime()?;
    let result = runtime.block_on(async { work(connect(server).await?).await });
    // A task that still reads standard input would hold up the end.
    runtime.shutdown_background();
    result
}

/// Connects, or says what to do.
pub(crate) async fn connect(server: &str) -> Result<Client, Failure> {
    let connecting =
        Client::builder().client_id("tg").connect_timeout(Duration::from_secs(5)).connect(server);
    connecting.await.map_err(|error| {
        let failure = Failure::from(error).place(format!("--server {server}"));
        failure.fix("start a broker with `tg dev`, or name another with --server or TIDEGATE_SERVER")
    })
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match error.kind() {
            ErrorKind::Refused(code) => code_of(code),
            ErrorKind::RefusedUnknown(_) => Code::Refused,
            ErrorKind::Unreachable | ErrorKind::Expired => Code::Unreachable,
            ErrorKind::UnknownOutcome => Code::UnknownOutcome,
            ErrorKind::InvalidArgument | ErrorKind::TooLarge => Code::Usage,
            ErrorKind::Damaged => Code::Differs,
            _ => Code::Failed,
        };
        let mut failure = Failure::new(code, error.cause().trim_end_matches('.'));
        if let Some((limited, limit, current)) = error.limit() {
            failure = failure.place(limited).limit(limit).current(current);
        }
        match error.hint() {
            "" => failure.fix(usual_fix(code)),
            hint => failure.fix(hint),
        }
    }
}

/// What to do about an error that does not say so itself.
fn usual_fix(code: Code) -> &'static str {
    match code {
        Code::Usage => "correct what is named; `tg COMMAND --help` shows what can be typed",
        Code::Unreachable => "see whether the broker runs (`tg status`), and try again",
        Code::Refused => "correct what is named, and ask again",
        Code::NotFound => "look at what there is: `tg topic list`, `tg offsets TOPIC`",
        Code::Differs => "keep the data directory as it is; `tg dump DIR` shows what is damaged",
        Code::UnknownOutcome => "read back what is stored before it is done again",
        Code::Failed | Code::BrokerFailed | Code::Interrupted => {
            "see the broker's log; if it happens again, report it with this message"
        }
    }
}

fn code_of(code: ErrorCode) -> Code {
    match code {
        ErrorCode::UnknownTopic | ErrorCode::UnknownPartition | ErrorCode::OffsetOutOfRange => Code::NotFound,
        ErrorCode::DataDamaged | ErrorCode::BatchCorrupt => Code::Differs,
        ErrorCode::UnknownOutcome => Code::UnknownOutcome,
        _ => Code::Refused,
    }
}
