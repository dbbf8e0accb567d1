//! What runs on a shard's thread: recovery of its logs, then its turns.

use std::io;
use std::path::Path;

use tidegate_control::{Log, Severity};
use tidegate_protocol::disk::frame::JournalIdentity;
use tidegate_protocol::ids::{Incarnation, JournalId, ShardId};
use tidegate_reactor::disk::{Disk, StdDisk};
use tidegate_reactor::op::{Fault, Letter, Turn};
use tidegate_reactor::setup::Trouble;

use crate::config::{Config, Volatile};
use crate::datadir::Wanted;
use crate::limits::Limits;
use crate::log::flush_rule::FlushRule;
use crate::log::{Logs, OpenError, ShardBoot, journal};
use crate::problem::Problem;
use crate::shard::{Order, Report, Shard, ShardLimits, ShardParts, Storage};
use crate::site::{Site, explain_io};

/// All that a shard's thread needs to begin.
#[derive(Debug)]
pub struct UnitPlan {
    boot: ShardBoot,
    count: u16,
    seed: u64,
    storage: Storage,
    advertise: String,
    facts: Vec<(String, String)>,
    connections_max: usize,
    log: Log,
}

/// What a shard's report says.
#[derive(Debug)]
pub enum Told {
    /// The shard has its topics and serves.
    Serving,
    /// The shard cannot serve.
    Failed(Problem),
    /// Something that an operator should know.
    Trouble(String),
    /// Something is in order again.
    Relief(String),
}

/// A plan for each shard.
pub fn plans(config: &Config, site: &Site, log: &Log) -> Vec<UnitPlan> {
    let (cluster, node) = site.identity();
    let count = u16::try_from(site.journals().len()).expect("the superblock bounds the shards");
    let plans = site.journals().iter().zip(0..).map(|(journal, shard)| {
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        log.line(Severity::Info, &format!("shard {shard}: journal {:08x}, seed {seed:016x}", journal.0));
        UnitPlan {
            boot: ShardBoot {
                root: site.root().to_owned(),
                identity: JournalIdentity { cluster, node, journal: *journal },
                incarnation: site.incarnation(),
                shard: ShardId(shard),
                limits: config.limits,
                flush_rule: site.flush_rule().clone(),
            },
            count,
            seed,
            storage: storage(config, site.flush_rule()),
            advertise: config.advertise.clone(),
            facts: site.facts(),
            connections_max: config.connections_max,
            log: log.clone(),
        }
    });
    plans.collect()
}

impl UnitPlan {
    /// The number of shards.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Recovers the shard's logs and makes the shard, on its own thread.
    ///
    /// # Errors
    /// If what lies there cannot be served.
    pub fn recover(self) -> Result<Box<dyn Turn>, Problem> {
        let mut disk = StdDisk::new();
        let (shard, identity, incarnation) = (self.boot.shard, self.boot.identity, self.boot.incarnation);
        let mut limits = ShardLimits { connections_max: self.connections_max, ..ShardLimits::default() };
        // Partitions are spread evenly, but not perfectly: no shard may get more than it can have logs.
        let logs_max = self.boot.limits.logs_max as usize * 3 / 4;
        limits.topics.partitions_max = logs_max * usize::from(self.count);
        let logs = Logs::open(&mut disk, self.boot).map_err(|e| recovery_problem(shard, &e))?;
        for note in logs.notes() {
            self.log.line(Severity::Warn, &format!("shard {shard}: {note}"));
        }
        Ok(Box::new(Shard::new(ShardParts {
            shard,
            shard_count: self.count,
            node: identity.node,
            cluster: identity.cluster,
            incarnation,
            seed: self.seed,
            limits,
            facts: self.facts,
            advertised: vec![self.advertise; usize::from(self.count)],
            storage: self.storage,
            logs,
        })))
    }
}

fn storage(config: &Config, rule: &FlushRule) -> Storage {
    match rule {
        FlushRule::OneFlush | FlushRule::OwnFlush { .. } => Storage::Durable,
        FlushRule::MemoryOnly { .. } => Storage::Volatile { allowed: config.volatile == Volatile::Allowed },
    }
}

/// Makes the files of one journal of a new data directory.
pub fn make_journal(
    disk: &mut dyn Disk,
    root: &Path,
    wanted: &Wanted,
    journal: JournalId,
    limits: &Limits,
) -> Result<(), Fault> {
    let cluster = wanted.cluster.unwrap_or(wanted.cluster_if_new);
    let identity = JournalIdentity { cluster, node: wanted.node, journal };
    journal::create(disk, root, identity, Incarnation(0), limits)
}

/// The order by which a shard drains and ends.
pub fn stop_letter() -> Letter {
    Box::new(Order::Stop)
}

/// What a report means for the start.
pub fn understand(letter: Letter) -> Told {
    let report = match letter.downcast::<Report>() {
        Ok(report) => *report,
        Err(letter) => match letter.downcast::<Trouble>() {
            Ok(trouble) => return Told::Trouble(trouble.0),
            Err(letter) => panic!("a report of no known kind: {letter:?}"),
        },
    };
    match report {
        Report::Serving { .. } => Told::Serving,
        Report::Notice { shard, notice } => {
            let text = format!("shard {shard}: {notice}");
            if notice.is_trouble() { Told::Trouble(text) } else { Told::Relief(text) }
        }
        Report::Damaged { shard, what } => Told::Trouble(format!("shard {shard}: {what}")),
        Report::Failed { shard, cause } => Told::Failed(
            Problem::new(cause, "nothing was changed; look at the directory with `tg dump`")
                .at(format!("shard {shard}")),
        ),
    }
}

fn recovery_problem(shard: ShardId, error: &OpenError) -> Problem {
    let place = format!("shard {shard}");
    match error {
        OpenError::Fault(fault) if fault.errno != 0 => {
            let error = io::Error::from_raw_os_error(fault.errno);
            explain_io(format!("shard {shard} cannot be recovered: {}", fault.what), place, &error)
        }
        OpenError::Fault(fault) => Problem::new(
            format!("shard {shard} cannot be recovered: {fault}"),
            "see what the kernel says about the drive (`dmesg`); nothing acknowledged is lost by trying again",
        )
        .at(place),
        OpenError::Refused { file, cause } => Problem::new(
            format!("shard {shard} refuses its journal: {cause}"),
            "nothing stored was changed; look at it with `tg dump`, and restore the directory from a backup if the drive is at fault",
        )
        .at(file.display().to_string()),
    }
}
