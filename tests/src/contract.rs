//! The contract between a shard and its reactor, as programs of turns that every reactor has to run with the same outcome:
//! the glommio reactor, the simulator's, and each later one.
//!
//! A reactor is tested by implementing [`World`] and naming it in [`contract_tests!`](crate::contract_tests).

use std::path::PathBuf;

use tidegate_reactor::buffer::{BLOCK, Buffer, View};
use tidegate_reactor::op::{Event, Letter, Loop, Now, Op, ShardIndex, Socket, Tag, Turn};

mod files;

pub use files::*;

/// Makes a shard's machine on the shard's own thread.
pub type MakeTurn = Box<dyn FnOnce() -> Box<dyn Turn> + Send>;

/// What a peer on the other end of a connection does, in order.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Receives exactly as many bytes; they must be these.
    Expect(Vec<u8>),
    /// Ends its sending side.
    Finish,
    /// Receives whatever comes until the other side has closed or reset.
    DrainToEnd,
    /// Does nothing more and keeps the connection open until all shards have stopped.
    Stay,
}

/// A reactor under test, with its drive and its network.
pub trait World {
    /// An empty directory on its drive.
    fn dir(&self) -> PathBuf;
    /// Runs one machine a shard until all have said [`Loop::Stop`], each of `peers` over a connection of its own that shard 0
    /// accepts, after giving the `orders`. Returns what the shards reported. Panics if a shard or a peer does.
    fn run(
        &mut self,
        shards: Vec<MakeTurn>,
        peers: Vec<Vec<Step>>,
        orders: Vec<(ShardIndex, Letter)>,
    ) -> Vec<Letter>;
}

/// Makes one test of each rule, held against each of the reactors that `$worlds` makes.
#[macro_export]
macro_rules! contract_tests {
    ($worlds:expr) => {
        $crate::contract_tests! { $worlds;
            the_first_turn_comes_at_once_and_without_events
            the_clock_is_read_once_a_turn_and_never_falls
            what_is_sent_comes_back_in_order
            a_receive_fills_only_the_free_part_and_the_buffer_comes_back
            a_peer_that_ends_its_side_is_a_receive_of_zero_bytes
            a_close_ends_each_op_under_way_once_and_comes_last
            a_send_to_a_peer_that_does_not_read_waits_and_loses_nothing
            a_send_of_very_many_views_keeps_their_order
            a_socket_number_is_not_used_again
            a_socket_changes_its_shard_with_the_bytes_already_read
            letters_arrive_in_order_and_each_gives_its_credit_back_once
            timers_end_in_order_of_time_and_never_early
            what_is_written_and_flushed_is_read_back
            many_writes_under_way_end_once_each
            a_range_is_filled_with_zeros_and_its_neighbours_stay
            errors_of_files_are_events
            free_space_is_that_of_the_filesystem
            orders_and_reports_pass_unopened
        }
    };
    ($worlds:expr; $($rule:ident)*) => {
        $(#[test]
        fn $rule() {
            for mut world in $worlds {
                $crate::contract::$rule(&mut world);
            }
        })*
    };
}

/// A machine from a function of one event at a time; the first call of all has none.
struct Machine<F>(F);

impl<F: FnMut(Now, Option<Event>, &mut Vec<Op>) -> Loop> Turn for Machine<F> {
    fn turn(&mut self, now: Now, events: &mut Vec<Event>, ops: &mut Vec<Op>) -> Loop {
        if events.is_empty() {
            return (self.0)(now, None, ops);
        }
        let mut goes_on = Loop::Continue;
        for event in events.drain(..) {
            assert_eq!(goes_on, Loop::Continue, "an event came after the end: {event:?}");
            goes_on = (self.0)(now, Some(event), ops);
        }
        goes_on
    }
}

fn machine(step: impl FnMut(Now, Option<Event>, &mut Vec<Op>) -> Loop + Send + 'static) -> MakeTurn {
    Box::new(move || Box::new(Machine(step)))
}

fn run_one(world: &mut dyn World, shard: MakeTurn, peers: Vec<Vec<Step>>) {
    world.run(vec![shard], peers, Vec::new());
}

/// Some bytes that repeat nowhere soon.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    next.take(len).collect()
}

/// The event is what this machine waits for, or the test ends here.
fn unexpected(event: Option<Event>) -> ! {
    panic!("not expected here: {event:?}")
}

/// A shard can submit its first ops without waiting for the world.
pub fn the_first_turn_comes_at_once_and_without_events(world: &mut dyn World) {
    let turn = |_: Now, event: Option<Event>, _: &mut Vec<Op>| match event {
        None => Loop::Stop,
        other => unexpected(other),
    };
    run_one(world, machine(turn), vec![]);
}

/// All events of a turn have one time; it never falls; a timer is not early on it.
pub fn the_clock_is_read_once_a_turn_and_never_falls(world: &mut dyn World) {
    let (mut last, mut count) = (0, 0);
    let turn = move |now: Now, event: Option<Event>, ops: &mut Vec<Op>| {
        assert!(now.mono_ns >= last && now.wall_ms >= 0);
        last = now.mono_ns;
        match event {
            None => ops.push(Op::Timer { at_ns: now.mono_ns + 1000, tag: Tag(last + 1000) }),
            Some(Event::Timer { tag }) => {
                assert!(now.mono_ns >= tag.0, "a timer for {} at {}", tag.0, now.mono_ns);
                count += 1;
                ops.push(Op::Timer { at_ns: now.mono_ns + 1000, tag: Tag(last + 1000) });
            }
            other => unexpected(other),
        }
        if count < 20 { Loop::Continue } else { Loop::Stop }
    };
    run_one(world, machine(turn), vec![]);
}

/// Sends back all that it receives, one send at a time; stops when its last peer has gone.
fn echo(mut peers: usize, capacity: usize) -> MakeTurn {
    machine(move |_, event, ops| {
        match event {
            None => {}
            Some(Event::Accepted { socket } | Event::Sent { socket, result: Ok(()), .. }) => {
                ops.push(Op::Receive { socket, buf: Buffer::zeroed(capacity) });
            }
            Some(Event::Received { socket, result: Ok(0), .. }) => ops.push(Op::Close { socket }),
            Some(Event::Received { socket, buf, result: Ok(count) }) => {
                assert_eq!(buf.filled(), count);
                // In two views, of which either may be empty.
                let view = buf.freeze();
                let middle = count / 3;
                let views = vec![view.slice(0..middle), view.slice(middle..count)];
                ops.push(Op::Send { socket, views, tag: Tag(9) });
            }
            Some(Event::Closed { .. }) => peers -= 1,
            other => unexpected(other),
        }
        if peers == 0 { Loop::Stop } else { Loop::Continue }
    })
}

/// Echo to three peers, over buffers smaller and larger than what is sent at once.
pub fn what_is_sent_comes_back_in_order(world: &mut dyn World) {
    for capacity in [BLOCK, 64 * BLOCK] {
        let peers: Vec<Vec<Step>> = (0..3)
            .map(|peer| {
                let sizes = [1, 2, 5000, 200_000, 77];
                let mut steps = Vec::new();
                for (size, n) in sizes.into_iter().zip(0..) {
                    let bytes = pattern(size, peer * 10 + n);
                    // Little enough that the echo fits into the buffers between, however it is cut.
                    for piece in bytes.chunks(20_000) {
                        steps.push(Step::Send(piece.to_vec()));
                        steps.push(Step::Expect(piece.to_vec()));
                    }
                }
                steps.extend([Step::Finish, Step::DrainToEnd]);
                steps
            })
            .collect();
        run_one(world, echo(peers.len(), capacity), peers);
    }
}

/// Ten bytes are free behind a prefix: at most ten come at a time, behind the prefix, which stays.
pub fn a_receive_fills_only_the_free_part_and_the_buffer_comes_back(world: &mut dyn World) {
    const FREE: usize = 10;
    let sent = pattern(95, 3);
    let expected = sent.clone();
    let mut got = Vec::new();
    let tight = || {
        let mut buf = Buffer::zeroed(BLOCK);
        buf.extend(&vec![7; BLOCK - FREE]);
        buf
    };
    let turn = move |_: Now, event: Option<Event>, ops: &mut Vec<Op>| {
        match event {
            None => {}
            Some(Event::Accepted { socket }) => ops.push(Op::Receive { socket, buf: tight() }),
            Some(Event::Received { socket, buf, result: Ok(count) }) if count > 0 => {
                assert!(count <= FREE);
                assert_eq!(buf.filled(), BLOCK - FREE + count);
                assert!(buf[..BLOCK - FREE].iter().all(|b| *b == 7), "the prefix stays");
                got.extend_from_slice(&buf[BLOCK - FREE..]);
                ops.push(Op::Receive { socket, buf: tight() });
            }
            Some(Event::Received { socket, result: Ok(_), .. }) => {
                assert_eq!(got, expected);
                ops.push(Op::Close { socket });
            }
            Some(Event::Closed { .. }) => return Loop::Stop,
            other => unexpected(other),
        }
        Loop::Continue
    };
    run_one(world, machine(turn), vec![vec![Step::Send(sent), Step::Finish, Step::DrainToEnd]]);
}

/// The end of a stream is not an error, and can be seen more than once.
pub fn a_peer_that_ends_its_side_is_a_receive_of_zero_bytes(world: &mut dyn World) {
    let mut ends = 0;
    let turn = move |_: Now, event: Option<Event>, ops: &mut Vec<Op>| {
        match event {
            None => {}
            Some(Event::Accepted { socket }) => ops.push(Op::Receive { socket, buf: Buffer::zeroed(1) }),
            Some(Event::Received { socket, buf, result }) => {
                assert_eq!((result, buf.filled()), (Ok(0), 0));
                ends += 1;
                ops.push(if ends < 2 { Op::Receive { socket, buf } } else { Op::Close { socket } });
            }
            Some(Event::Closed { .. }) => return Loop::Stop,
            other => unexpected(other),
        }
        Loop::Continue
    };
    run_one(world, machine(turn), vec![vec![Step::Finish, Step::DrainToEnd]]);
}

/// With a receive and a large send under way, a close brings both back, then its own event, then nothing more.
pub fn a_close_ends_each_op_under_way_once_and_comes_last(world: &mut dyn World) {
    const BYTES: usize = 32 << 20;
    let (mut received, mut sent, mut closed) = (0, 0, 0);
    let turn = move |now: Now, event: Option<Event>, ops: &mut Vec<Op>| {
        match event {
            None => {}
            Some(Event::Accepted { socket }) => {
                let mut buf = Buffer::zeroed(BLOCK);
                buf.extend(b"mine");
                ops.push(Op::Receive { socket, buf });
                let view = Buffer::copy_of(&pattern(1 << 20, 1)).freeze();
                ops.push(Op::Send { socket, views: vec![view; BYTES >> 20], tag: Tag(5) });
                ops.push(Op::Timer { at_ns: now.mono_ns + 5_000_000, tag: Tag(socket.0) });
            }
            Some(Event::Timer { tag: Tag(0) }) => return Loop::Stop,
            Some(Event::Timer { tag: Tag(socket) }) => ops.push(Op::Close { socket: Socket(socket) }),
            Some(Event::Received { buf, result, .. }) => {
                assert!(result.is_err(), "nothing was sent: {result:?}");
                assert_eq!(&*buf, b"mine");
                received += 1;
            }
            // A network with room for all of it has finished it before.
            Some(Event::Sent { tag, .. }) => {
                assert_eq!(tag, Tag(5));
                sent += 1;
            }
            Some(Event::Closed { .. }) => {
                closed += 1;
                // Time for a late event to show itself.
                ops.push(Op::Timer { at_ns: now.mono_ns + 5_000_000, tag: Tag(0) });
            }
            other => unexpected(other),
        }
        if closed > 0 {
            assert_eq!((received, sent, closed), (1, 1, 1));
        }
        Loop::Continue
    };
    run_one(world, machine(turn), vec![vec![Step::Stay]]);
}

/// More than any socket buffer holds: the send ends only when the peer has made room, and every byte arrives.
pub fn a_send_to_a_peer_that_does_not_read_waits_and_loses_nothing(world: &mut dyn World) {
    let all = pattern(12 << 20, 4);
    let views: Vec<Vec<u8>> = all.chunks(700_001).map(<[u8]>::to_vec).collect();
    let turn = move |_: Now, event: Option<Event>, ops: &mut Vec<Op>| {
        match event {
            None => {}
            Some(Event::Accepted { socket }) => {
                let views = views.iter().map(|bytes| View::copy_of(bytes)).collect();
                ops.push(Op::Send { socket, views, tag: Tag(1) });
            }
            Some(Event::Sent { socket, result, .. }) => {
                assert_eq!(result, Ok(()));
                ops.push(Op::Close { socket });
            }
            Some(Event::Closed { .. }) => return Loop::Stop,
            other => unexpected(other),
        }
        Loop::Continue
    };
    run_one(world, machine(turn), vec![vec![Step::Expect(all), Step::DrainToEnd]]);
}

/// More pieces than a kernel takes at once, some of them empty, to two peers at a time; and a send of nothing at all.
pub fn a_send_of_very_many_views_keeps_their_order(world: &mut dyn World) {
    const VIEWS: usize = 3000;
    let all = pattern(VIEWS * 7, 6);
    let bytes = all.clone();
    let mut closed = 0;
    let turn = move |_: Now, event: Option<Event>, ops: &mut Vec<Op>| {
        match event {
            None => {}
            Some(Event::Accepted { socket }) => {
                let whole = View::copy_of(&bytes);
                let piece = |n: usize| [whole.slice(n * 7..n * 7 + 7), whole.slice(n..n)];
                let views = (0..VIEWS).flat_map(piece).collect();
                ops.push(Op::Send { socket, views, tag: Tag(1) });
            }
            Some(Event::Sent { socket, tag: Tag(1), result }) => {
                assert_eq!(result, Ok(()));
                ops.push(Op::Send { socket, views: Vec::new(), tag: Tag(2) });
            }
            Some(Event::Sent { socket, tag, result }) => {
                assert_eq!((tag, result), (Tag(2), Ok(())));
                ops.push(Op::Close { socket });
            }
            Some(Event::Closed { .. }) => closed += 1,
            other => unexpected(other),
        }
        if closed == 2 { Loop::Stop } else { Loop::Continue }
    };
    run_one(world, machine(turn), vec![vec![Step::Expect(all), Step::DrainToEnd]; 2]);
}

/// Four connections, some after another's close, have different numbers.
pub fn a_socket_number_is_not_used_again(world: &mut dyn World) {
    let (mut seen, mut closed) = (Vec::new(), 0);
    let turn = move |_: Now, event: Option<Event>, ops: &mut Vec<Op>| {
        match event {
            None => {}
            Some(Event::Accepted { socket }) => {
                assert!(!seen.contains(&socket), "{socket:?} again");
                seen.push(socket);
                ops.push(Op::Close { socket });
            }
            Some(Event::Closed { .. }) => closed += 1,
            other => unexpected(other),
        }
        if closed == 4 { Loop::Stop } else { Loop::Continue }
    };
    run_one(world, machine(turn), vec![vec![Step::DrainToEnd]; 4]);
}

/// Shard 0 reads the first bytes and gives socket and bytes to shard 1, which echoes all of them.
pub fn a_socket_changes_its_shard_with_the_bytes_already_read(world: &mut dyn World) {
    let giver = machine(|_, event, ops| {
        match event {
            None => {}
            Some(Event::Accepted { socket }) => ops.push(Op::Receive { socket, buf: Buffer::zeroed(1) }),
            Some(Event::Received { socket, buf, result: Ok(_) }) => {
                let letter: Letter = Box::new(buf.to_vec());
                ops.push(Op::HandOver { socket, to: ShardIndex(1), letter });
            }
            Some(Event::HandedOver { result, .. }) => {
                assert_eq!(result, Ok(()));
                return Loop::Stop;
            }
            other => unexpected(other),
        }
        Loop::Continue
    });
    let mut rest = echo(1, BLOCK);
    rest = {
        let inner = rest;
        Box::new(move || {
            let mut inner = inner();
            Box::new(Machine(move |now: Now, event: Option<Event>, ops: &mut Vec<Op>| {
                let event = match event {
                    Some(Event::Arrived { socket, letter }) => {
                        let early = *letter.downcast::<Vec<u8>>().expect("as it was given");
                        ops.push(Op::Send { socket, views: vec![View::copy_of(&early)], tag: Tag(0) });
                        return Loop::Continue;
                    }
                    other => other,
                };
                inner.turn(now, &mut event.into_iter().collect(), ops)
            }))
        })
    };
    let (first, second) = (pattern(3000, 1), pattern(3000, 2));
    let steps = vec![
        Step::Send(first.clone()),
        Step::Expect(first),
        Step::Send(second.clone()),
        Step::Expect(second),
        Step::Finish,
        Step::DrainToEnd,
    ];
    world.run(vec![giver, rest], vec![steps], Vec::new());
}

/// Far more letters at once than a mailbox holds.
pub fn letters_arrive_in_order_and_each_gives_its_credit_back_once(world: &mut dyn World) {
    const LETTERS: u32 = 5000;
    let mut taken = 0;
    let sender = machine(move |_, event, ops| {
        match event {
            None => ops.extend((0..LETTERS).map(|n| Op::Mail { to: ShardIndex(1), letter: Box::new(n) })),
            Some(Event::MailTaken { to: ShardIndex(1) }) => taken += 1,
            Some(Event::Mail { from: ShardIndex(1), letter }) => {
                // The answer to the last letter; after all credits, or before the last of them.
                assert!(letter.is::<&str>());
            }
            other => unexpected(other),
        }
        if taken == LETTERS { Loop::Stop } else { Loop::Continue }
    });
    let mut next = 0;
    let receiver = machine(move |_, event, ops| {
        match event {
            None => {}
            Some(Event::Mail { from: ShardIndex(0), letter }) => {
                assert_eq!(letter.downcast_ref(), Some(&next));
                next += 1;
                if next == LETTERS {
                    ops.push(Op::Mail { to: ShardIndex(0), letter: Box::new("all") });
                    return Loop::Stop;
                }
            }
            Some(Event::MailTaken { .. }) => {}
            other => unexpected(other),
        }
        Loop::Continue
    });
    world.run(vec![sender, receiver], Vec::new(), Vec::new());
}

/// Two in the past, three of one instant, one later, asked for out of order.
pub fn timers_end_in_order_of_time_and_never_early(world: &mut dyn World) {
    let mut ended = Vec::new();
    let mut start = 0;
    let turn = move |now: Now, event: Option<Event>, ops: &mut Vec<Op>| {
        match event {
            None => {
                start = now.mono_ns;
                let soon = start + 2_000_000;
                let times = [start + 4_000_000, soon, soon, 0, start, soon];
                ops.extend(times.into_iter().zip(0..).map(|(at_ns, n)| Op::Timer { at_ns, tag: Tag(n) }));
            }
            Some(Event::Timer { tag }) => {
                let due = start + [4_000_000, 2_000_000, 2_000_000, 0, 0, 2_000_000][tag.0 as usize];
                assert!(now.mono_ns >= due, "{tag:?} at {} instead of {due}", now.mono_ns);
                ended.push(tag.0);
            }
            other => unexpected(other),
        }
        if ended.len() < 6 {
            return Loop::Continue;
        }
        assert_eq!(ended, [3, 4, 1, 2, 5, 0]);
        Loop::Stop
    };
    run_one(world, machine(turn), vec![]);
}

/// Orders reach the shard that they are for, in order; what a shard reports comes out.
pub fn orders_and_reports_pass_unopened(world: &mut dyn World) {
    let shard = |number: u32| {
        let (mut begun, mut next) = (false, 0);
        machine(move |_, event, ops| {
            match event {
                None => begun = true,
                Some(Event::Order { letter }) => {
                    assert!(begun, "the first turn is without events, although orders wait");
                    assert_eq!(letter.downcast_ref(), Some(&(number, next)));
                    next += 1;
                }
                other => unexpected(other),
            }
            if next < 3 {
                return Loop::Continue;
            }
            ops.push(Op::Report { letter: Box::new(number) });
            Loop::Stop
        })
    };
    let orders = (0..3).flat_map(|n| (0..2u16).map(move |s| (s, n)));
    let orders = orders.map(|(s, n)| (ShardIndex(s), Box::new((u32::from(s), n)) as Letter)).collect();
    let reports = world.run(vec![shard(0), shard(1)], Vec::new(), orders);
    let mut reports: Vec<u32> = reports.iter().filter_map(|letter| letter.downcast_ref().copied()).collect();
    reports.sort_unstable();
    assert_eq!(reports, [0, 1]);
}
