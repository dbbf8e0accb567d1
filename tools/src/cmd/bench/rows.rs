//! What each row of the suite does in a round. A round leaves numbers; what they have to be is in the bench crate.
//! [`many`] has the row of very many partitions.

mod many;

use std::time::{Duration, Instant};

use tidegate::{Acks, Compression};
use tidegate_bench::engine::Outcome;
use tidegate_bench::latency::median;
use tidegate_bench::limits::drive::Target;
use tidegate_bench::limits::{Bounds, Meets, loopback};
use tidegate_bench::load::idle::Idle;
use tidegate_bench::machine::{CpuShares, Process, STEAL_SHARE_MAX};
use tidegate_bench::report::json::Run;
use tidegate_bench::series::Series;
use tidegate_bench::suite::{Files, Load, Measured, Row, Work};
use tidegate_bench::workload::{ClientKind, Cores, Durability, LooksAt, ReadFrom, Reading, Workload};

use super::Stage;
use super::counters::FilesSeen;
use super::host::{Embedded, Host};
use super::limits::{make_target, unmeasurable};
use super::run::{beside_flush_loop, client_kind};
use crate::args::SuiteArgs;
use crate::exit::{Code, Failure};

const MIB: f64 = (1 << 20) as f64;

/// Bytes that a partition keeps in the rows where retention runs: what is stored in a second or two.
const STEADY_RETENTION_BYTES: u64 = 256 << 20;

/// MiB stored before the row about records in memory: they fit the memory of a single shard.
const RESIDENT_MIB: u64 = 128;

/// Connections of the row about idle ones; with another number of them it is another row.
const IDLE_CONNECTIONS: usize = 10_000;

/// Runs that say what the highest rate is.
const RATE_RUNS: usize = 3;

/// Runs in which a topic has to come to the point that retention gives back what it holds.
const STEADY_RUNS_MAX: u32 = 10;

/// How long is waited for the drive to stand still before it is measured.
const STILL_TIME_MAX: Duration = Duration::from_secs(30);

/// Runs rows against one broker of its own and one file.
pub(crate) struct Bench<'a> {
    stage: &'a Stage,
    args: &'a SuiteArgs,
    host: Host,
    target: Target,
    /// Topics made so far: each run has a new one.
    topics: u32,
    measured: Measured,
}

impl<'a> Bench<'a> {
    /// Starts the broker and makes the file.
    ///
    /// # Errors
    /// Either is impossible.
    pub(crate) fn start(stage: &'a Stage, args: &'a SuiteArgs) -> Result<Bench<'a>, Failure> {
        let target = make_target(&args.drive)?;
        let host = Host::start(stage, Self::embedded(args))?;
        Ok(Bench { stage, args, host, target, topics: 0, measured: Measured::default() })
    }

    fn embedded(args: &SuiteArgs) -> Embedded<'_> {
        Embedded {
            dir: &args.drive.dir,
            shards: args.shards,
            allow_volatile: args.allow_volatile,
            settings: &args.broker_settings,
        }
    }

    /// What stands beside the figures.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let client = match client_kind(self.args.client) {
            ClientKind::Wire => "prepared batches produce, the SDK consumes",
            ClientKind::Sdk => {
                "the SDK produces and consumes; prepared records where one is under way on each connection"
            }
        };
        let mut facts = self.host.facts(&self.args.drive.dir);
        facts.push(("client".into(), client.into()));
        facts
    }

    /// Stops the broker.
    ///
    /// # Errors
    /// It ends with another code than 0.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        self.host.finish()
    }

    /// All rounds of a row.
    ///
    /// # Errors
    /// A run breaks off.
    pub(crate) fn measure(&mut self, row: &Row) -> Result<Measured, Failure> {
        self.measured = Measured::default();
        match row.work {
            Work::Produce { partitions, durability, files } => self.produce(partitions, durability, files)?,
            Work::ManyPartitions => self.many_partitions()?,
            Work::SmallRecords => self.small_records()?,
            Work::ManyConnections => self.many_connections()?,
            Work::HalfLoad(load) => self.half_load(load)?,
            Work::Tail => self.tail()?,
            Work::Resident => self.resident()?,
            Work::Cold => self.cold()?,
            Work::ColdBesideProducer => self.cold_beside_producer()?,
            Work::IdleConnections => self.idle_connections()?,
            Work::IdleBroker => self.idle_broker()?,
        }
        Ok(std::mem::take(&mut self.measured))
    }

    fn produce(&mut self, partitions: i32, durability: Durability, files: Files) -> Result<(), Failure> {
        let shape = Workload { partitions, producers: partitions as usize, durability, ..self.workload() };
        let retention = [("retention.bytes".to_owned(), STEADY_RETENTION_BYTES.to_string())];
        if files == Files::Steady {
            // One topic for all rounds: by the second its oldest files are given back and used again.
            let workload = self.with_topic(&shape, &retention)?;
            self.warm_up_until_steady(&workload)?;
            for _ in 0..self.args.rounds {
                self.produce_round(&workload, files)?;
            }
            return self.host.delete(&workload.topic);
        }
        for round in 0..=self.args.rounds {
            let workload = self.with_topic(&shape, &[])?;
            // The first one is for warmth: data files of its size come to be, and are there for the next.
            if round == 0 {
                self.warm_up(&workload)?
            } else {
                self.produce_round(&workload, files)?
            }
            self.host.delete(&workload.topic)?;
        }
        Ok(())
    }

    /// Until retention gives back what the topic holds: only from then on files are used again.
    fn warm_up_until_steady(&mut self, workload: &Workload) -> Result<(), Failure> {
        for _ in 0..STEADY_RUNS_MAX {
            self.warm_up(workload)?;
            if self.host.records_given_back(&workload.topic)? > 0 {
                break;
            }
        }
        Ok(())
    }

    fn produce_round(&mut self, workload: &Workload, files: Files) -> Result<(), Failure> {
        let bounds = self.bounds(Meets { writes: true, ..Meets::default() })?;
        self.note("drive_write", bounds.drive_write);
        let (before, start) = (self.host.counters()?, self.host.records_given_back(&workload.topic)?);
        let outcome = self.run(workload)?;
        let records_given_back = self.host.records_given_back(&workload.topic)? - start;
        let seen = FilesSeen { before, after: self.host.counters()?, records_given_back };
        self.note("files_with_own_flush", seen.own_flushes() as f64);
        self.note("files_zero_filled", seen.after.growth(&seen.before, "files_zero_filled") as f64);
        self.note("records_given_back", records_given_back as f64);
        if let Some(why) = seen.shortcoming(files) {
            self.measured.invalidate(why);
        }
        self.note_published(&outcome)
    }

    fn small_records(&mut self) -> Result<(), Failure> {
        let shape = Workload { record_bytes: 100, ..self.workload() };
        for round in 0..=self.args.rounds {
            let workload = self.with_topic(&shape, &[])?;
            if round == 0 {
                self.warm_up(&workload)?;
            } else {
                let outcome = self.run(&workload)?;
                self.note_published(&outcome)?;
            }
            self.host.delete(&workload.topic)?;
        }
        let workload = self.with_topic(&shape, &[])?;
        self.host.preload(&workload, RESIDENT_MIB)?;
        for _ in 0..self.args.rounds {
            let mut workload = reading(&workload, ReadFrom::Again, 4);
            // What an application pays for small records is paid for each of them.
            workload.readings[0].looks_at = LooksAt::Records;
            let consumed = self.run(&workload)?;
            self.note("consumed_per_s", first_consumed(&consumed).records_per_s());
        }
        self.host.delete(&workload.topic)
    }

    fn many_connections(&mut self) -> Result<(), Failure> {
        let workload = self.with_topic(&connections(&self.workload()), &[])?;
        self.warm_up(&workload)?;
        for _ in 0..self.args.rounds {
            let trips = loopback::round_trips(workload.producers, workload.record_bytes, self.cell());
            let trips = trips.map_err(|e| unmeasurable(&self.args.drive.dir, &e))?;
            self.note("round_trips", trips.per_s);
            let outcome = self.run(&workload)?;
            self.note_published(&outcome)?;
        }
        self.host.delete(&workload.topic)
    }

    fn half_load(&mut self, load: Load) -> Result<(), Failure> {
        let shape = match load {
            Load::Batches => self.workload(),
            Load::Connections => connections(&self.workload()),
        };
        let workload = self.with_topic(&shape, &[])?;
        let rate = self.highest_rate(&workload)? / 2.0;
        let workload = Workload { rate: Some(rate), ..reading_too(&workload, 1) };
        for _ in 0..self.args.rounds {
            let (outcome, plain) = beside_flush_loop(self.stage, &self.host, &workload, &self.target)?;
            let (ours, theirs) = (published(&outcome)?.latency.summary(), plain.latency.summary());
            self.note("p99_ratio", ours.p99_us as f64 / theirs.p99_us.max(1) as f64);
            self.note("p999_ratio", ours.p999_us as f64 / theirs.p999_us.max(1) as f64);
            self.note("loop_p99_us", theirs.p99_us as f64);
            self.note("loop_p999_us", theirs.p999_us as f64);
            let arrival = first_consumed(&outcome).latency.summary();
            self.note("arrival_us", arrival.p99_us as f64 - ours.p99_us as f64);
            self.note_published(&outcome)?;
            self.keep(&outcome, Some(&plain))?;
        }
        self.host.delete(&workload.topic)
    }

    fn tail(&mut self) -> Result<(), Failure> {
        const CONSUMERS: usize = 4;
        let workload = self.with_topic(&self.workload(), &[])?;
        let rate = self.highest_rate(&workload)? / 4.0;
        let workload = Workload { rate: Some(rate), ..reading_too(&workload, CONSUMERS) };
        for _ in 0..self.args.rounds {
            let bounds = self.bounds(Meets { sockets: true, ..Meets::default() })?;
            self.note("loopback", bounds.loopback);
            let outcome = self.run(&workload)?;
            let wanted = published(&outcome)?.mib_per_s() * CONSUMERS as f64;
            self.note("wanted_mib_per_s", wanted);
            // Nobody can read more than there is.
            self.note("tail_limit", wanted.min(bounds.loopback));
            self.note("consumed_mib_per_s", first_consumed(&outcome).mib_per_s());
            self.note_published(&outcome)?;
        }
        self.host.delete(&workload.topic)
    }

    fn resident(&mut self) -> Result<(), Failure> {
        let workload = self.with_topic(&self.workload(), &[])?;
        self.host.preload(&workload, RESIDENT_MIB)?;
        for _ in 0..self.args.rounds {
            let bounds = self.bounds(Meets { sockets: true, ..Meets::default() })?;
            self.note("loopback", bounds.loopback);
            let outcome = self.run(&reading(&workload, ReadFrom::Again, 4))?;
            self.note("consumed_mib_per_s", first_consumed(&outcome).mib_per_s());
        }
        self.host.delete(&workload.topic)
    }

    fn cold(&mut self) -> Result<(), Failure> {
        let workload = self.with_topic(&self.workload(), &[])?;
        self.host.preload(&workload, self.args.preload_mib)?;
        for _ in 0..self.args.rounds {
            let bounds = self.bounds(Meets { reads: true, ..Meets::default() })?;
            self.note("drive_read", bounds.drive_read);
            self.host.restart()?;
            let once = Workload { warmup: Duration::ZERO, ..reading(&workload, ReadFrom::Start, 1) };
            let outcome = self.run(&once)?;
            self.note("consumed_mib_per_s", first_consumed(&outcome).mib_per_s());
        }
        self.host.delete(&workload.topic)
    }

    fn cold_beside_producer(&mut self) -> Result<(), Failure> {
        let old = self.with_topic(&self.workload(), &[])?;
        self.host.preload(&old, self.args.preload_mib)?;
        self.host.restart()?;
        let alone = self.with_topic(&self.workload(), &[])?;
        let rate = self.highest_rate(&alone)? / 4.0;
        let alone = Workload { rate: Some(rate), ..alone };
        let cold = Reading { cores: Cores::Half, ..Reading::each("cold", &old.topic, ReadFrom::Again, 1) };
        let beside = Workload { readings: vec![cold], ..alone.clone() };
        for _ in 0..self.args.rounds {
            let (without, with) = (self.run(&alone)?, self.run(&beside)?);
            self.note_ratio(&without, &with)?;
            self.note("cold_mib_per_s", first_consumed(&with).mib_per_s());
        }
        self.host.delete(&alone.topic)?;
        self.host.delete(&old.topic)
    }

    fn idle_connections(&mut self) -> Result<(), Failure> {
        let workload = self.with_topic(&self.workload(), &[])?;
        let rate = self.highest_rate(&workload)? / 4.0;
        let workload = Workload { rate: Some(rate), ..workload };
        let count = self.args.idle_connections as usize;
        for _ in 0..self.args.rounds {
            // A process that has had so many connections before keeps their memory.
            self.host.restart()?;
            self.warm_up(&workload)?;
            let process = self.process()?;
            let without = self.run(&workload)?;
            let before = process.resident_bytes().map_err(|e| unreadable(&e))?;
            let idle = Idle::open(&self.host.site.server, self.host.shards(), count).map_err(|error| {
                Failure::new(Code::Failed, format!("cannot open {count} connections: {error}"))
                    .fix("raise `ulimit -n`, or ask for fewer with --idle-connections")
            })?;
            let after = process.resident_bytes().map_err(|e| unreadable(&e))?;
            self.note("idle_connections", idle.count() as f64);
            if idle.count() != IDLE_CONNECTIONS {
                self.measured
                    .invalidate(format!("{} idle connections, not {IDLE_CONNECTIONS}", idle.count()));
            }
            let with = self.run(&workload)?;
            drop(idle);
            self.note("extra_mib", (after as f64 - before as f64).max(0.0) / MIB);
            self.note_ratio(&without, &with)?;
        }
        self.host.delete(&workload.topic)
    }

    /// A new process each time: one that has worked keeps memory that this one never took.
    fn idle_broker(&mut self) -> Result<(), Failure> {
        let nothing = Workload { producers: 0, ..self.workload() };
        for _ in 0..self.args.rounds {
            self.host.restart()?;
            // A start makes data files ready, which is not idleness.
            self.await_still_drive()?;
            let process = self.process()?;
            let (begun, before) = (Instant::now(), process.cpu_seconds().map_err(|e| unreadable(&e))?);
            self.run(&nothing)?;
            let used = process.cpu_seconds().map_err(|e| unreadable(&e))? - before;
            self.note("core_share", used / begun.elapsed().as_secs_f64());
            self.note("resident_mib", process.resident_bytes().map_err(|e| unreadable(&e))? as f64 / MIB);
        }
        Ok(())
    }

    fn process(&self) -> Result<Process, Failure> {
        let ended = || Failure::new(Code::BrokerFailed, "the broker process has ended").fix("see its log");
        self.host.process().ok_or_else(ended)
    }

    /// Full batches of 1 KiB records into 4 partitions; the rows change what they need.
    fn workload(&self) -> Workload {
        let client = client_kind(self.args.client);
        Workload {
            name: "suite".into(),
            topic: String::new(),
            partitions: 4,
            producers: 4,
            readings: Vec::new(),
            record_bytes: 1024,
            batch_records: 0,
            acks: Acks::Leader,
            durability: Durability::Disk,
            rate: None,
            warmup: Duration::from_secs(1),
            time: Duration::from_secs(self.args.seconds),
            compressible: 0.0,
            compression: Compression::None,
            keys: 0,
            client,
            in_flight: if client == ClientKind::Wire { 16 } else { 4 },
        }
    }

    /// The same with a topic of its own.
    fn with_topic(&mut self, shape: &Workload, settings: &[(String, String)]) -> Result<Workload, Failure> {
        self.topics += 1;
        let workload = Workload { topic: format!("bench-{}", self.topics), ..shape.clone() };
        self.host.create(&workload, settings)?;
        Ok(workload)
    }

    /// A run that does not count.
    fn warm_up(&self, workload: &Workload) -> Result<(), Failure> {
        self.host.measure(&Workload { warmup: Duration::ZERO, ..workload.clone() }).map(drop)
    }

    /// Records a second as fast as it goes: the median of a few runs, for all that follows is a share of it.
    fn highest_rate(&mut self, workload: &Workload) -> Result<f64, Failure> {
        self.warm_up(workload)?;
        let mut rates = Vec::new();
        for _ in 0..RATE_RUNS {
            let outcome = self.run(workload)?;
            let rate = published(&outcome)?.records_per_s();
            self.note("max_per_s", rate);
            rates.push(rate);
        }
        Ok(median(rates))
    }

    /// Waits until the drive has done what it was given: else its limit, or an idle broker, is measured beside the broker's work.
    fn await_still_drive(&mut self) -> Result<(), Failure> {
        if !self.host.wait_for_still_drive(STILL_TIME_MAX)? {
            self.measured.invalidate(format!(
                "the drive was still written to after {} s, when it should have been left alone",
                STILL_TIME_MAX.as_secs()
            ));
        }
        Ok(())
    }

    fn bounds(&mut self, meets: Meets) -> Result<Bounds, Failure> {
        if meets.writes || meets.reads {
            self.await_still_drive()?;
        }
        let bounds = Bounds::default().again(&self.target, meets, self.cell());
        bounds.map_err(|e| unmeasurable(&self.args.drive.dir, &e))
    }

    fn cell(&self) -> Duration {
        Duration::from_millis(self.args.drive.cell_ms)
    }

    /// A run that counts.
    fn run(&mut self, workload: &Workload) -> Result<Outcome, Failure> {
        let outcome = self.host.measure(workload)?;
        self.keep(&outcome, None)?;
        Ok(outcome)
    }

    fn keep(&mut self, outcome: &Outcome, flush_loop: Option<&Series>) -> Result<(), Failure> {
        if let Some(why) = outcome.shortcoming() {
            return Err(unquotable(outcome, why));
        }
        let CpuShares { steal, others, .. } = outcome.cpu;
        if steal > STEAL_SHARE_MAX {
            self.measured.invalidate("too much time was stolen");
        }
        self.measured.disturbed |= outcome.cpu.is_disturbed();
        // The run says itself what produced.
        let facts = self.host.facts(&self.args.drive.dir);
        let stages = self.host.stages()?;
        let run = Run {
            outcome,
            facts: &facts,
            limit: None,
            flush_loop,
            steps: &[],
            p99_us_max: None,
            stages: &stages,
        };
        self.note("steal", steal);
        if let Some(others) = others {
            self.note("others", others);
        }
        self.measured.runs.push(run.to_json());
        Ok(())
    }

    fn note(&mut self, name: &'static str, value: f64) {
        self.measured.note(name, value);
    }

    fn note_published(&mut self, outcome: &Outcome) -> Result<(), Failure> {
        let series = published(outcome)?;
        let latency = series.latency.summary();
        let numbers = [
            ("mib_per_s", series.mib_per_s()),
            ("records_per_s", series.records_per_s()),
            ("p50_us", latency.p50_us as f64),
            ("p99_us", latency.p99_us as f64),
            ("p999_us", latency.p999_us as f64),
            ("errors", series.errors as f64),
        ];
        for (name, value) in numbers {
            self.note(name, value);
        }
        Ok(())
    }

    fn note_ratio(&mut self, without: &Outcome, with: &Outcome) -> Result<(), Failure> {
        let p99_us = |outcome| published(outcome).map(|series| series.latency.at(0.99) as f64);
        let (without, with) = (p99_us(without)?, p99_us(with)?);
        self.note("p99_us_without", without);
        self.note("p99_us_with", with);
        self.note("p99_ratio", with / without.max(1.0));
        Ok(())
    }
}

/// The producers' series. A failure, or nothing at all, ends the suite: a figure with errors is none.
fn published(outcome: &Outcome) -> Result<&Series, Failure> {
    let published = outcome.published.as_ref().expect("the row produces");
    let series = &published.series;
    match outcome.shortcoming() {
        Some(why) => Err(unquotable(outcome, why)),
        None if series.records() == 0 => {
            Err(unquotable(outcome, "nothing was acknowledged while it counted".to_owned()))
        }
        None => Ok(series),
    }
}

fn unquotable(outcome: &Outcome, why: String) -> Failure {
    Failure::new(Code::Failed, why)
        .place(format!("a run on topic {}", outcome.workload.topic))
        .limit(format!("{} s", outcome.workload.time.as_secs_f64()))
        .fix("see the broker's log; measure for longer with --seconds")
}

fn first_consumed(outcome: &Outcome) -> &Series {
    &outcome.consumed.first().expect("the row consumes").series
}

fn reading(workload: &Workload, from: ReadFrom, subscriptions: usize) -> Workload {
    let readings = vec![Reading::each("read", &workload.topic, from, subscriptions)];
    Workload { producers: 0, readings, ..workload.clone() }
}

fn reading_too(workload: &Workload, subscriptions: usize) -> Workload {
    let readings = vec![Reading::each("tail", &workload.topic, ReadFrom::Tail, subscriptions)];
    Workload { readings, ..workload.clone() }
}

/// One record of 200 bytes under way on each of 64 connections, whatever else produces full batches.
fn connections(usual: &Workload) -> Workload {
    Workload {
        producers: 64,
        record_bytes: 200,
        batch_records: 1,
        in_flight: 1,
        client: ClientKind::Wire,
        ..usual.clone()
    }
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::new(Code::Failed, format!("cannot see what the broker process uses: {error}"))
        .fix("run where /proc shows the processes of this user")
}
