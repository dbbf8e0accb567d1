//! Sockets before and beside a reactor's loop: binding, options, sending without waiting, closing so that the last words arrive.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv, sendmsg};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::buffer::View;
use crate::setup::Trouble;

/// Connections that wait in the kernel for being accepted.
const BACKLOG: i32 = 4096;

/// Pieces of one send; the kernel takes 1,024 at most.
const PIECES_MAX: usize = 64;

/// Without a byte from a peer for so long, the kernel asks it whether it is still there ...
const QUIET: Duration = Duration::from_secs(60);
/// ... and again after this time, if it does not answer.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// A connection is gone when its peer has answered nothing, or taken nothing of what was sent, for so long.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// Out of descriptors or memory, connections wait in the kernel for so long before the next is tried to be accepted.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds and listens. Without SO_REUSEPORT, so that a port in use is refused; with SO_REUSEADDR, so that a restart need not
/// wait for old connections to time out. Accepted connections inherit that the kernel ends those whose peer has vanished without a
/// word, or never reads.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(QUIET).with_interval(ASK_AGAIN))?;
    socket.set_tcp_user_timeout(Some(GONE_AFTER))?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Acks must not wait for more to send.
pub(crate) fn set_nodelay(fd: BorrowedFd<'_>) -> io::Result<()> {
    SockRef::from(&fd).set_tcp_nodelay(true)
}

/// Sends what the socket takes now. `WouldBlock`: nothing.
pub(crate) fn send_some(fd: BorrowedFd<'_>, sending: &Sending) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); PIECES_MAX];
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(sending.pieces()) {
        *slice = IoSlice::new(piece);
        count += 1;
    }
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(fd.as_raw_fd(), &slices[..count], &[], flags, None)?)
}

/// Whether an accept failed for one connection alone, so that the next one may be accepted at once.
pub(crate) fn is_of_one_connection(errno: Option<i32>) -> bool {
    matches!(errno, Some(nix::libc::ECONNABORTED | nix::libc::EPROTO))
}

/// What is told, once, when connections have to wait.
pub(crate) fn starved(error: &impl std::fmt::Display) -> Trouble {
    Trouble(format!("no connection can be accepted for now, clients wait: {error}"))
}

/// What is left of a send.
pub(crate) struct Sending {
    views: Vec<View>,
    /// The first view that is not wholly sent, and the bytes of it that are.
    index: usize,
    at: usize,
}

impl Sending {
    pub(crate) fn new(views: Vec<View>) -> Sending {
        let mut sending = Sending { views, index: 0, at: 0 };
        sending.skip_finished();
        sending
    }

    /// What is left, in order, without what is empty.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut at = self.at;
        let pieces = self.views[self.index..].iter().map(move |view| &view[std::mem::take(&mut at)..]);
        pieces.filter(|piece| !piece.is_empty())
    }

    /// `count` more bytes are sent.
    pub(crate) fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let step = count.min(self.views[self.index].len() - self.at);
            self.at += step;
            count -= step;
            self.skip_finished();
        }
    }

    fn skip_finished(&mut self) {
        while self.index < self.views.len() && self.at == self.views[self.index].len() {
            (self.index, self.at) = (self.index + 1, 0);
        }
    }
}

/// Ends our side after what has been sent, and takes unread bytes out of the way: closing over them would reset the connection,
/// and the peer would lose our last frame, which says why.
pub(crate) fn say_goodbye(fd: BorrowedFd<'_>) {
    const UNREAD_MAX: usize = 256 << 10;
    let _ = SockRef::from(&fd).shutdown(Shutdown::Write);
    let (mut scratch, mut done) = ([0; 16 << 10], 0);
    while done < UNREAD_MAX {
        match recv(fd.as_raw_fd(), &mut scratch, MsgFlags::MSG_DONTWAIT) {
            Ok(count) if count > 0 => done += count,
            _ => break,
        }
    }
}

/// A second descriptor of the socket, which outlives the first.
pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    fd.try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_watches_over_every_connection_that_is_accepted() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let _peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().unwrap());
        assert_eq!(
            (socket.tcp_keepalive_time().unwrap(), socket.tcp_user_timeout().unwrap()),
            (QUIET, Some(GONE_AFTER))
        );
    }

    #[test]
    fn a_port_in_use_is_refused() {
        let first = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = listen(first.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
