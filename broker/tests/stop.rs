//! A broker that is stopped the moment it serves ends, whatever its clients do.

use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use tidegate_broker::config::RawConfig;
use tidegate_broker::start::start;

#[test]
fn a_stop_right_after_the_start_ends_with_clients_connecting() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for round in 0..12 {
        let config = RawConfig::new()
            .with("data", place.path().join("data").to_str().unwrap())
            .with("listen", "127.0.0.1:0")
            .with("shards", "2");
        let running = start(config.check().unwrap()).unwrap();
        let address = running.addr;
        let clients = std::thread::spawn(move || {
            // Some come before the listener is closed, some after.
            (0..20).filter_map(|_| TcpStream::connect(address).ok()).collect::<Vec<_>>()
        });
        let (tell, ended) = mpsc::channel();
        std::thread::spawn(move || tell.send(running.stop()));
        let stopped = ended.recv_timeout(Duration::from_secs(60));
        assert!(matches!(stopped, Ok(Ok(()))), "round {round}: {stopped:?}");
        drop(clients.join().unwrap());
    }
}
