//! Both reactors keep the contract of `Op` and `Event`, on this machine's drive and loopback.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "all of this file is test code, its helpers too"
)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use tests::contract::{MakeTurn, Step, World};
use tidegate_reactor::mailbox::Order;
use tidegate_reactor::op::{Fault, Letter, ShardIndex, Turn};
use tidegate_reactor::setup::{Setup, setups};
use tidegate_reactor::{glommio, net, ring};

/// A reactor on this machine. Files lie beside the build, because /tmp may be in memory.
struct Machine {
    name: &'static str,
    reactor: fn(Setup, &mut dyn Turn) -> Result<(), Fault>,
    dir: tempfile::TempDir,
}

fn machines() -> [Machine; 2] {
    let dir = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    [
        Machine { name: "glommio", reactor: glommio::run, dir: dir() },
        Machine { name: "ring", reactor: ring::run, dir: dir() },
    ]
}

impl World for Machine {
    fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn run(
        &mut self,
        shards: Vec<MakeTurn>,
        peers: Vec<Vec<Step>>,
        orders: Vec<(ShardIndex, Letter)>,
    ) -> Vec<Letter> {
        println!("on the reactor {}", self.name);
        let reactor = self.reactor;
        let reports = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&reports);
        let count = u16::try_from(shards.len()).unwrap();
        let (setups, doors) = setups(count, 1 << 20, move |letter| sink.lock().unwrap().push(letter));
        let listener = net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr().unwrap();
        doors[0].give(Order::Listen(listener));
        orders.into_iter().for_each(|(to, letter)| doors[usize::from(to.0)].give(Order::Letter(letter)));

        // A shard that ends early keeps its mailboxes until all have ended, as a process does.
        let ended = Arc::new(Barrier::new(shards.len() + 1));
        let stay = Arc::clone(&ended);
        let peers = thread::spawn(move || {
            let streams: Vec<_> =
                peers.into_iter().map(|steps| thread::spawn(move || play(addr, steps))).collect();
            let streams: Vec<_> = streams.into_iter().map(|peer| peer.join().unwrap()).collect();
            stay.wait();
            drop(streams);
        });
        let threads = setups.into_iter().zip(shards).map(|(setup, make)| {
            let ended = Arc::clone(&ended);
            thread::spawn(move || {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    reactor(setup, &mut *make()).unwrap();
                }));
                if done.is_err() {
                    // Nobody else would end.
                    std::process::abort();
                }
                ended.wait();
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        peers.join().unwrap();
        std::mem::take(&mut *reports.lock().unwrap())
    }
}

fn play(addr: std::net::SocketAddr, steps: Vec<Step>) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    for step in steps {
        match step {
            Step::Send(bytes) => stream.write_all(&bytes).unwrap(),
            Step::Expect(bytes) => {
                let mut got = vec![0; bytes.len()];
                stream.read_exact(&mut got).unwrap();
                assert!(got == bytes, "the bytes differ");
            }
            Step::Finish => stream.shutdown(Shutdown::Write).unwrap(),
            Step::DrainToEnd => {
                // A reset is an end too.
                let _ = stream.read_to_end(&mut Vec::new());
            }
            Step::Stay => {}
        }
    }
    stream
}

tests::contract_tests!(machines());
