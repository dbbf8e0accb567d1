//! Loopback sockets without a broker: bytes one way and both ways at once by message size, and small messages there and
//! back.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::latency::{Latencies, Summary};

/// Sizes of one message, in bytes.
pub const MESSAGE_BYTES: [usize; 4] = [1 << 10, 16 << 10, 64 << 10, 256 << 10];

/// Connections of the throughput figures of a machine with so many cores: few of them keep a small machine busy, and a large
/// one needs more. Which are best is only known by trying; the best counts.
fn connections_of(cores: usize) -> Vec<usize> {
    const MOST: usize = 64;
    let mut counts = vec![2, cores.clamp(2, MOST), (2 * cores).clamp(2, MOST)];
    counts.dedup();
    counts
}

/// Throughput with messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StreamCell {
    /// Bytes of one write.
    pub message_bytes: usize,
    /// With how many connections it was best, one way.
    pub connections: usize,
    /// MiB in a second, one way.
    pub one_way_mib_per_s: f64,
    /// MiB in a second, both ways at once, both counted; with as many connections as are best for that.
    pub both_ways_mib_per_s: f64,
}

/// Small messages there and back, one under way on each connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundTrips {
    /// Connections.
    pub connections: usize,
    /// Bytes of a message and of its answer.
    pub message_bytes: usize,
    /// Answers in a second.
    pub per_s: f64,
    /// From the message to its answer.
    pub latency: Summary,
}

/// All sizes, `time` for each figure.
///
/// # Errors
/// The sockets fail.
pub fn stream_all(time: Duration) -> io::Result<Vec<StreamCell>> {
    MESSAGE_BYTES.iter().map(|bytes| stream(*bytes, time)).collect()
}

fn stream(message_bytes: usize, time: Duration) -> io::Result<StreamCell> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let best_of = |ways| {
        let mut best = (0.0, 0);
        for connections in connections_of(cores) {
            let mib_per_s = flow(connections, message_bytes, time, ways)?;
            if mib_per_s > best.0 {
                best = (mib_per_s, connections);
            }
        }
        io::Result::Ok(best)
    };
    let (one_way_mib_per_s, connections) = best_of(Ways::One)?;
    let (both_ways_mib_per_s, _) = best_of(Ways::Both)?;
    Ok(StreamCell { message_bytes, connections, one_way_mib_per_s, both_ways_mib_per_s })
}

/// The best one-way figure, in MiB/s; 0 of none.
pub fn best(cells: &[StreamCell]) -> f64 {
    cells.iter().map(|cell| cell.one_way_mib_per_s).fold(0.0, f64::max)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    One,
    Both,
}

fn flow(connections: usize, message_bytes: usize, time: Duration, ways: Ways) -> io::Result<f64> {
    let pairs = pairs(connections)?;
    let begun = Instant::now();
    let received = std::thread::scope(|scope| {
        let mut receivers = Vec::new();
        let mut senders = Vec::new();
        for (near, far) in &pairs {
            senders.push(scope.spawn(move || send(near, message_bytes, begun, time)));
            receivers.push(scope.spawn(move || receive(far)));
            if ways == Ways::Both {
                senders.push(scope.spawn(move || send(far, message_bytes, begun, time)));
                receivers.push(scope.spawn(move || receive(near)));
            }
        }
        for sender in senders {
            sender.join().expect("a sender does not panic")?;
        }
        let mut sum = 0;
        for receiver in receivers {
            sum += receiver.join().expect("a receiver does not panic")?;
        }
        io::Result::Ok(sum)
    })?;
    Ok(received as f64 / begun.elapsed().as_secs_f64() / f64::from(1 << 20))
}

fn send(mut socket: &TcpStream, bytes: usize, begun: Instant, time: Duration) -> io::Result<()> {
    let message = vec![7; bytes];
    while begun.elapsed() < time {
        socket.write_all(&message)?;
    }
    socket.shutdown(std::net::Shutdown::Write)
}

fn receive(mut socket: &TcpStream) -> io::Result<u64> {
    let mut buffer = vec![0; 256 << 10];
    let mut sum = 0;
    loop {
        match socket.read(&mut buffer)? {
            0 => return Ok(sum),
            count => sum += count as u64,
        }
    }
}

/// Both ends of some connections.
fn pairs(count: usize) -> io::Result<Vec<(TcpStream, TcpStream)>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        pairs.push((near, far));
    }
    Ok(pairs)
}

/// One message of `message_bytes` under way on each of `connections`, for `time`: one thread on each side, as an event loop
/// without a broker's work would do it.
///
/// # Errors
/// The sockets fail.
pub fn round_trips(connections: usize, message_bytes: usize, time: Duration) -> io::Result<RoundTrips> {
    let (mut near, far): (Vec<_>, Vec<_>) = pairs(connections)?.into_iter().unzip();
    let message = vec![7; message_bytes];
    let mut latencies = Latencies::new();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| echo(far, message_bytes));
        let mut sent: Vec<Instant> = Vec::new();
        for socket in &mut near {
            sent.push(Instant::now());
            socket.write_all(&message)?;
        }
        let mut answer = vec![0; message_bytes];
        while begun.elapsed() < time {
            for index in readable(&near)? {
                near[index].read_exact(&mut answer)?;
                latencies.record(sent[index].elapsed().as_micros() as u64);
                sent[index] = Instant::now();
                near[index].write_all(&message)?;
            }
        }
        drop(near);
        echo.join().expect("the echo does not panic")
    })?;
    let per_s = latencies.count() as f64 / begun.elapsed().as_secs_f64();
    Ok(RoundTrips { connections, message_bytes, per_s, latency: latencies.summary() })
}

/// Sends back whatever comes, until all connections are closed.
fn echo(mut sockets: Vec<TcpStream>, message_bytes: usize) -> io::Result<()> {
    let mut message = vec![0; message_bytes];
    while !sockets.is_empty() {
        let mut closed = Vec::new();
        for index in readable(&sockets)? {
            // The other side may close with an answer on its way to it.
            let answered =
                sockets[index].read_exact(&mut message).and_then(|()| sockets[index].write_all(&message));
            if answered.is_err() {
                closed.push(index);
            }
        }
        for index in closed.into_iter().rev() {
            sockets.swap_remove(index);
        }
    }
    Ok(())
}

fn readable(sockets: &[TcpStream]) -> io::Result<Vec<usize>> {
    let mut fds: Vec<PollFd<'_>> =
        sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
    poll(&mut fds, PollTimeout::from(100u8))?;
    let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|revents| !revents.is_empty());
    Ok(fds.iter().enumerate().filter(|(_, fd)| happened(fd)).map(|(index, _)| index).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_round_trips_are_counted() {
        let cell = stream(16 << 10, Duration::from_millis(20)).unwrap();
        assert!(cell.one_way_mib_per_s > 0.0 && cell.both_ways_mib_per_s > 0.0);
        let trips = round_trips(3, 200, Duration::from_millis(20)).unwrap();
        assert!(trips.latency.count > 3 && trips.per_s > 0.0, "{trips:?}");
    }

    #[test]
    fn the_best_size_is_the_limit() {
        let cell = |one_way_mib_per_s| StreamCell {
            message_bytes: 1,
            connections: 2,
            one_way_mib_per_s,
            both_ways_mib_per_s: 9e9,
        };
        assert_eq!(best(&[cell(1.0), cell(3.0), cell(2.0)]), 3.0);
        assert_eq!(best(&[]), 0.0);
    }

    #[test]
    fn a_machine_is_tried_with_few_connections_and_with_as_many_as_it_can_serve() {
        assert_eq!(connections_of(1), [2]);
        assert_eq!(connections_of(2), [2, 4]);
        assert_eq!(connections_of(16), [2, 16, 32]);
        assert_eq!(connections_of(128), [2, 64]);
    }
}
