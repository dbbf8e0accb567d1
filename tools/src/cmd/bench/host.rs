//! The broker that is measured: one of our own in another process, or one that runs already.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Client, OffsetQuery, TopicSpec};
use tidegate_bench::engine::{self, Outcome, Site};
use tidegate_bench::machine::{self, Device, Process};
use tidegate_bench::series::Live;
use tidegate_bench::stages::{self, Stage as BrokerStage};
use tidegate_bench::workload::{ClientKind, Durability, Workload};
use tokio::runtime::Handle;

use super::super::status::sums;
use super::Stage;
use super::counters::Counters;
use crate::broker::{BrokerProcess, Spawn};
use crate::connect::connect;
use crate::exit::{Code, Failure};
use crate::output::{bytes_text, grouped, note, progress_bar};

/// Bytes a second at which records are stored that a run is to read: far below what any drive does.
const PRELOAD_BYTES_PER_S: f64 = 300.0 * 1024.0 * 1024.0;

/// How our own broker is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Embedded<'a> {
    /// Where its directory is made.
    pub(crate) dir: &'a Path,
    /// Its shards; none: one for each core.
    pub(crate) shards: Option<u16>,
    /// Whether it serves from storage that cannot flush.
    pub(crate) allow_volatile: bool,
    /// Keys of its configuration.
    pub(crate) settings: &'a [(String, String)],
}

/// A broker, and how to talk to it.
pub(crate) struct Host {
    stage: Stage,
    own: Option<Own>,
    pub(crate) site: Site,
    facts: Vec<(String, String)>,
    /// What it had counted at the last look.
    stages: Vec<BrokerStage>,
}

/// A broker of our own; stopped, and its directory removed, when dropped.
struct Own {
    handle: Handle,
    broker: Option<BrokerProcess>,
    data: PathBuf,
    shards: Option<u16>,
    allow_volatile: bool,
    settings: Vec<(String, String)>,
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(broker) = self.broker.take() {
            // Whatever is wrong with it was said before; its directory goes anyway.
            let _ = self.handle.block_on(broker.stop());
        }
        if let Err(error) = std::fs::remove_dir_all(&self.data)
            && self.data.exists()
        {
            note(format!("warning: cannot remove {}: {error}", self.data.display()));
        }
    }
}

impl Host {
    /// Starts one.
    ///
    /// # Errors
    /// It does not serve, with its own words for why.
    pub(crate) fn start(stage: &Stage, embedded: Embedded<'_>) -> Result<Host, Failure> {
        let Embedded { dir, shards, allow_volatile, settings } = embedded;
        let data = dir.join(format!("tidegate-bench-{}", std::process::id()));
        let handle = stage.handle.clone();
        let settings = settings.to_vec();
        let mut own = Own { handle, broker: None, data, shards, allow_volatile, settings };
        let (client, server) = own.start()?;
        let site = Site {
            server,
            client,
            handle: stage.handle.clone(),
            data: Some(own.data.clone()),
            process: own.process(),
        };
        Host { stage: stage.clone(), own: Some(own), site, facts: Vec::new(), stages: Vec::new() }
            .with_facts()
    }

    /// Connects to one that runs.
    ///
    /// # Errors
    /// Nobody answers.
    pub(crate) fn connect(stage: &Stage, server: &str) -> Result<Host, Failure> {
        let client = stage.handle.block_on(connect(server))?;
        let site = Site {
            server: server.to_owned(),
            client,
            handle: stage.handle.clone(),
            data: None,
            process: None,
        };
        let host = Host { stage: stage.clone(), own: None, site, facts: Vec::new(), stages: Vec::new() };
        let mut host = host.with_facts()?;
        host.stages()?;
        // A directory of that name here is the broker's own only if it runs here.
        let data = host.facts.iter().find(|(name, _)| name == "data_dir").map(|(_, dir)| PathBuf::from(dir));
        host.site.data = data.filter(|dir| server.starts_with("127.") && dir.exists());
        Ok(host)
    }

    fn with_facts(mut self) -> Result<Host, Failure> {
        let status = self.stage.handle.block_on(self.site.client.admin().status())?;
        self.facts = status.facts;
        // What a broker knows only once all of it runs, such as its reactor.
        if let Some(broker) = self.own.as_ref().and_then(|own| own.broker.as_ref()) {
            self.facts.extend_from_slice(broker.facts());
        }
        Ok(self)
    }

    /// Stops our own broker and starts it again on its directory: nothing is in its memory then.
    ///
    /// # Errors
    /// It does not stop or start.
    pub(crate) fn restart(&mut self) -> Result<(), Failure> {
        let Some(own) = &mut self.own else { return Ok(()) };
        if let Some(broker) = own.broker.take() {
            self.stage.handle.block_on(broker.stop())?;
        }
        (self.site.client, self.site.server) = own.start()?;
        self.site.process = own.process();
        self.stages.clear();
        Ok(())
    }

    /// Stops our own broker and removes its directory.
    ///
    /// # Errors
    /// It ends with another code than 0.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        match self.own.as_mut().and_then(|own| own.broker.take()) {
            Some(broker) => self.stage.handle.block_on(broker.stop()),
            None => Ok(()),
        }
    }

    /// The process of our own broker.
    pub(crate) fn process(&self) -> Option<Process> {
        self.own.as_ref()?.process()
    }

    /// Shards, as the broker says.
    pub(crate) fn shards(&self) -> u16 {
        self.fact("shards").and_then(|text| text.parse().ok()).unwrap_or(1)
    }

    fn fact(&self, name: &str) -> Option<&str> {
        self.facts.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// What stands beside every figure: the machine, and what the broker says of itself.
    pub(crate) fn facts(&self, dir: &Path) -> Vec<(String, String)> {
        let mut facts = machine::facts(self.site.data.as_deref().unwrap_or(dir));
        for name in ["version", "filesystem", "flush_rule", "reactor", "shards", "cores"] {
            facts.push((name.to_owned(), self.fact(name).unwrap_or("unknown").to_owned()));
        }
        facts
    }

    /// Where its time has gone since the last look; the first was when it was found.
    ///
    /// # Errors
    /// Nobody answers.
    pub(crate) fn stages(&mut self) -> Result<Vec<BrokerStage>, Failure> {
        let status = self.stage.handle.block_on(self.site.client.admin().status())?;
        let now = stages::of(&sums(&status));
        let before = std::mem::replace(&mut self.stages, now.clone());
        Ok(stages::since(&before, now))
    }

    /// What each shard has counted since its start.
    ///
    /// # Errors
    /// Nobody answers.
    pub(crate) fn counters(&self) -> Result<Counters, Failure> {
        Ok(Counters::of(self.stage.handle.block_on(self.site.client.admin().status())?))
    }

    /// How many records retention has taken from the beginnings of a topic's partitions.
    ///
    /// # Errors
    /// It does not exist.
    pub(crate) fn records_given_back(&self, topic: &str) -> Result<i64, Failure> {
        let admin = self.site.client.admin();
        let starts = self.stage.handle.block_on(admin.list_offsets(topic, OffsetQuery::Earliest))?;
        Ok(starts.iter().map(|(_, found)| found.offset.0).sum())
    }

    /// Bytes that the drive of the broker's data has written, whoever wrote them, if that is known.
    pub(crate) fn drive_written_bytes(&self) -> Option<u64> {
        Device::of(self.site.data.as_deref()?)?.written_bytes().ok()
    }

    /// Waits until that drive writes no more, `limit` at the longest. Returns whether it came to that; a drive of which
    /// nothing is known counts as still.
    ///
    /// # Errors
    /// It was asked to end meanwhile.
    pub(crate) fn wait_for_still_drive(&self, limit: Duration) -> Result<bool, Failure> {
        let device = self.site.data.as_deref().and_then(Device::of);
        let still = device.map(|device| device.wait_until_still(limit, &self.stage.stop));
        self.stage.go_on()?;
        Ok(still.is_none_or(|still| still.unwrap_or(true)))
    }

    /// Makes the topic of a workload.
    ///
    /// # Errors
    /// It exists, or a setting makes no sense.
    pub(crate) fn create(&self, workload: &Workload, settings: &[(String, String)]) -> Result<(), Failure> {
        let mut spec = TopicSpec::new(&workload.topic).partitions(workload.partitions);
        if workload.durability == Durability::Relaxed {
            spec = spec.setting("durability", "relaxed");
        }
        for (name, value) in settings {
            spec = spec.setting(name, value);
        }
        self.stage.handle.block_on(self.site.client.admin().create_topic(spec))?;
        Ok(())
    }

    /// Deletes a topic.
    ///
    /// # Errors
    /// It does not exist.
    pub(crate) fn delete(&self, topic: &str) -> Result<(), Failure> {
        Ok(self.stage.handle.block_on(self.site.client.admin().delete_topic(topic))?)
    }

    /// Stores `mib` MiB in the topic of a workload.
    ///
    /// # Errors
    /// A record is refused.
    pub(crate) fn preload(&self, workload: &Workload, mib: u64) -> Result<(), Failure> {
        let seconds = (mib << 20) as f64 / PRELOAD_BYTES_PER_S;
        let preload = Workload {
            name: "preload".into(),
            producers: workload.producers.max(4),
            readings: Vec::new(),
            client: ClientKind::Wire,
            in_flight: 16,
            rate: Some(PRELOAD_BYTES_PER_S / workload.record_bytes as f64),
            warmup: Duration::ZERO,
            time: Duration::from_secs_f64(seconds),
            ..workload.clone()
        };
        let outcome = self.measure(&preload)?;
        match outcome.published.and_then(|published| published.first_error) {
            Some(error) => {
                Err(Failure::new(Code::Refused, format!("cannot store what is to be read: {error}"))
                    .limit(format!("{mib} MiB"))
                    .fix("store less with --preload-mib, or make room"))
            }
            None => Ok(()),
        }
    }

    /// Runs a workload and shows how it goes meanwhile.
    ///
    /// # Errors
    /// The run breaks off, or ctrl-C is typed.
    pub(crate) fn measure(&self, workload: &Workload) -> Result<Outcome, Failure> {
        self.stage.go_on()?;
        let live = Arc::new(Live::default());
        let (over, ended) = std::sync::mpsc::channel();
        let outcome = std::thread::scope(|scope| {
            let watched = live.clone();
            scope.spawn(move || watch(&workload.name, &watched, &ended));
            let outcome = engine::run(&self.site, workload, &live, &self.stage.stop);
            drop(over);
            outcome
        })?;
        self.stage.go_on()?;
        Ok(outcome)
    }
}

impl Own {
    fn process(&self) -> Option<Process> {
        self.broker.as_ref()?.pid().map(|pid| Process { pid })
    }

    fn start(&mut self) -> Result<(Client, String), Failure> {
        let spawn = Spawn {
            data: &self.data,
            shards: self.shards,
            allow_volatile: self.allow_volatile,
            settings: &self.settings,
        };
        let broker = self.handle.block_on(BrokerProcess::start(spawn))?;
        let client = self.handle.block_on(broker.client())?;
        let server = broker.addr().to_owned();
        self.broker = Some(broker);
        Ok((client, server))
    }
}

/// A line that shows the rates of the last second, until the other side of `ended` is dropped.
fn watch(name: &str, live: &Live, ended: &std::sync::mpsc::Receiver<()>) {
    let bar = progress_bar(None, "records");
    let mut before = [0; 4];
    while ended.recv_timeout(Duration::from_secs(1)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let now =
            [&live.published, &live.published_bytes, &live.consumed, &live.consumed_bytes].map(Live::of);
        let [published, published_bytes, consumed, consumed_bytes] =
            std::array::from_fn(|index| now[index] - before[index]);
        before = now;
        bar.set_position(now[0].max(now[2]));
        bar.set_message(format!(
            "{name}: acknowledged {}/s ({}/s), consumed {}/s ({}/s), errors {}",
            grouped(published),
            bytes_text(published_bytes),
            grouped(consumed),
            bytes_text(consumed_bytes),
            grouped(Live::of(&live.errors)),
        ));
    }
    bar.finish_and_clear();
}
