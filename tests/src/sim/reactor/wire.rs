//! The side of the loop that is towards the network: sockets of shards, and the peers behind them.

use std::collections::BTreeSet;

use tidegate_reactor::op::{Event, Fault, Letter, Op, ShardIndex, Socket};

use super::{Due, World};
use crate::sim::net::{Link, PeerEvent, PeerOp};

impl World {
    pub(super) fn submit_socket(&mut self, shard: usize, op: Op) {
        let index = ShardIndex(shard as u16);
        match op {
            Op::Receive { socket, buf } => {
                let link = self.net.link_of(index, socket);
                self.net.receive(link, buf);
                self.soon(Due::Look { link });
            }
            Op::Send { socket, views, tag } => {
                let link = self.net.link_of(index, socket);
                let bytes: usize = views.iter().map(|v| v.len()).sum();
                let crc = views.iter().fold(0, |crc, v| crc32c::crc32c_append(crc, v));
                self.note("send", "", &[("socket", socket.0), ("bytes", bytes as u64), ("crc", crc.into())]);
                self.net.send(link, views, tag);
                self.soon(Due::Look { link });
            }
            Op::Close { socket } => {
                self.note("close", "", &[("socket", socket.0)]);
                let (link, events) = self.net.close(index, socket);
                let at = self.clock.now_ns() + self.random.between(1_000, 20_000);
                for event in events {
                    self.at(at, Due::Event { shard, event });
                }
                self.soon(Due::Look { link });
            }
            Op::HandOver { socket, to, letter } => {
                self.note("hand over", "", &[("socket", socket.0), ("to", to.0.into())]);
                let link = self.net.leave(index, socket);
                let from = Some((shard, socket));
                self.soon(Due::Arrive { link, shard: to.0.into(), from, letter: Some(letter) });
            }
            _ => unreachable!("only ops on sockets come here"),
        }
    }

    pub(super) fn arrive(
        &mut self,
        link: Link,
        shard: usize,
        from: Option<(usize, Socket)>,
        letter: Option<Letter>,
    ) {
        let socket = self.net.arrive(link, ShardIndex(shard as u16));
        if let Some((giver, given)) = from {
            let result = socket.map(drop).ok_or(Fault { what: "hand over".to_string(), errno: 32 });
            self.post(giver, Event::HandedOver { socket: given, result });
        }
        let Some(socket) = socket else { return };
        match letter {
            Some(letter) => self.post(shard, Event::Arrived { socket, letter }),
            None => self.post(shard, Event::Accepted { socket }),
        }
        self.look(link);
    }

    pub(super) fn look(&mut self, link: Link) {
        let pumped = self.net.pump(self.clock.now_ns(), link);
        for (shard, event) in pumped.events {
            self.post(shard.0.into(), event);
        }
        for at in pumped.look_at_ns {
            self.at(at, Due::Look { link });
        }
        for (peer, event) in pumped.peer_events {
            self.at(self.clock.now_ns(), Due::Peer { peer, event });
        }
    }

    pub(super) fn peer_acts(&mut self, peer: usize, event: PeerEvent) {
        let now_ns = self.clock.now_ns();
        let word = match &event {
            PeerEvent::Bytes(..) => "peer bytes",
            PeerEvent::Gone(_) => "peer gone",
            PeerEvent::Wake => "peer wakes",
        };
        self.note(word, "", &[("peer", peer as u64)]);
        let mut ops = Vec::new();
        self.peers[peer].act(now_ns, vec![event], &mut ops);
        let mut links = BTreeSet::new();
        for op in ops {
            match op {
                PeerOp::Connect(link) => {
                    if self.seats.is_empty() {
                        self.soon(Due::Peer { peer, event: PeerEvent::Gone(link) });
                    } else {
                        self.net.connect(link, peer);
                        let delay = self.net.delay_ns();
                        self.after(delay, Due::Arrive { link, shard: 0, from: None, letter: None });
                    }
                }
                PeerOp::Send(link, bytes) => {
                    let crc = crc32c::crc32c(&bytes).into();
                    self.note(
                        "peer sends",
                        "",
                        &[("link", link.0), ("bytes", bytes.len() as u64), ("crc", crc)],
                    );
                    self.net.peer_send(now_ns, link, &bytes);
                    links.insert(link);
                }
                PeerOp::Reading(link, reading) => {
                    self.net.set_reading(link, reading);
                    links.insert(link);
                }
                PeerOp::Finish(link) => {
                    self.net.peer_finish(link);
                    links.insert(link);
                }
                PeerOp::Close(link) => {
                    self.net.peer_close(link);
                    links.insert(link);
                }
                PeerOp::WakeAt(at) => self.at(at.max(now_ns), Due::Peer { peer, event: PeerEvent::Wake }),
            }
        }
        for link in links {
            self.at(now_ns, Due::Look { link });
        }
    }
}
