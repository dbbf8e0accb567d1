//! One seed from beginning to end, and many of them.
//!
//! A seed is a machine with an empty drive and several lives of a broker on it. Each life ends by a power loss, a kill or a
//! clean stop, and each recovery may be ended in the same ways. The last life is a healed one: no faults, everything has to
//! become durable, the broker has to stop by itself, and what a last recovery finds is read and compared whole.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use tidegate_broker::mutants::{self, Mutant};
use tidegate_reactor::disk::Disk;
use tidegate_reactor::op::Turn;

use super::blocking::{BlockingDisk, Crash};
use super::coverage::Coverage;
use super::disk::{Decay, FaultRates, OneFlush, VirtualDisk};
use super::machine::{self, Rests};
use super::random::Random;
use super::reactor::{Step, World};
use super::shards::ShardsScript;
use super::trace::Trace;
use super::workload::LogsScript;

/// Steps within which a healed broker must have done what is asked.
const PATIENCE_STEPS: u64 = 100_000;

/// Lives of a seed, at most.
const LIVES_MAX: u64 = 100;

/// Kinds of faults beside those of the drive, counted under these names.
pub(super) const FAULTS: [&str; 4] = [CUT_SHORT, RESHAPED, PAUSES, CLOCK_STEPS];

/// Kinds of faults of the network, which whole shards alone have.
pub(super) const NET_FAULTS: [&str; 3] =
    ["connections cut", "connections that were half open", "bits flipped on the way to the broker"];

/// What the logs of a shard alone are put through, or count.
pub(super) const OF_LOGS_ALONE: [&str; 10] = [
    "bits flipped at rest",
    "sectors garbled at rest",
    "sectors zeroed at rest",
    "sectors that fell back to what they held",
    "sectors written in the wrong place",
    DECAY_SERVED,
    "ranges refused as damaged",
    "searches by time",
    "appends refused for want of room",
    "reads refused because many wait",
];

/// Operations, and kinds of faults that are counted as another kind already.
pub(super) const KINDS: [&str; 9] = [
    CUT_AGAIN,
    RESHAPE_CUT,
    SPACE_BACK,
    RESTS,
    DECAY_SERVED,
    "ranges refused as damaged",
    "searches by time",
    "appends refused for want of room",
    "reads refused because many wait",
];
const CUT_SHORT: &str = "recoveries cut short";
const CUT_AGAIN: &str = "recoveries cut short three times running";
const RESHAPED: &str = "starts with another number of shards";
const RESHAPE_CUT: &str = "such starts cut short";
const SPACE_BACK: &str = "times that room came back on a full drive";
const PAUSES: &str = "pauses of the process or a thread";
const CLOCK_STEPS: &str = "steps of the wall clock";
const RESTS: &str = "rests of many seconds";
const DECAY_SERVED: &str = "decays with which the broker starts";
/// Not asked for: most of what can decay stops no start.
const DECAY_REFUSED: &str = "decays that stop a start, and are named";

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The logs of one shard, driven directly.
    Logs,
    /// Whole shards behind the wire protocol.
    Shards,
}

impl Level {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Level::Logs => "logs",
            Level::Shards => "shards",
        }
    }
}

/// The level at which a planted bug shows.
pub fn level_of(mutant: Mutant) -> Level {
    match mutant {
        Mutant::DuplicateAnsweredEarly
        | Mutant::OffsetStoredEarly
        | Mutant::TopicToldEarly
        | Mutant::ProducerIdReused => Level::Shards,
        _ => Level::Logs,
    }
}

/// What a run asks of a broker, and what it holds its answers against.
pub trait Script {
    /// Starts the broker as its own start does: recovers over `disk` and returns the turns of its shards.
    ///
    /// # Errors
    /// As a text: whatever ended it, a crash included.
    fn open(&mut self, disk: &mut dyn Disk) -> Result<Vec<Box<dyn Turn>>, String>;
    /// Whether the drive may fail from now on, so that errors of the drive are answers to be expected.
    fn expect_faults(&mut self, may_fail: bool);
    /// From now on the network is well.
    fn heal_network(&mut self, world: &mut World);
    /// From the next start on the broker has so many shards.
    fn change_shards(&mut self, shard_count: u16);
    /// Something of that file has decayed: what it held may be refused from now on, if the refusal names it.
    fn expect_decay(&mut self, file: &str);
    /// Whether the broker has said that it does no more until it is restarted.
    fn is_halted(&self) -> bool;
    /// What is wanted from now on.
    fn want(&mut self, stage: Stage, world: &mut World);
    /// Whether that has come about.
    fn is_done(&self, stage: Stage) -> bool;
    /// What is still waited for, for a person.
    fn waiting(&self) -> String;
    /// How much was checked, by name.
    fn counts(&self) -> Counts;
}

/// How much happened, by name.
pub type Counts = BTreeMap<&'static str, u64>;

/// The stages of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Everything that a run does; done after some hundred acknowledgements.
    Work,
    /// Nothing: what the broker does then it does because of its timers.
    Rest,
    /// Nothing new; done when everything that was asked for has its answer.
    Drain,
    /// Read everything; done when all of it was compared.
    Verify,
    /// Stop; done when the shards have left their loops.
    Stop,
}

/// What a run of one seed has shown.
#[derive(Debug)]
pub struct Report {
    /// What was simulated.
    pub level: Level,
    /// The seed.
    pub seed: u64,
    /// What went wrong, if anything did.
    pub failure: Option<String>,
    /// The trace's hash and length.
    pub trace: (u64, u64),
    /// What was checked, and what the broker was seen to do.
    pub counts: Counts,
    /// What was tried on the drive.
    pub coverage: Coverage,
    /// Virtual nanoseconds that have passed.
    pub virtual_ns: u64,
    /// The trace's lines, if they were asked for.
    pub history: Vec<String>,
}

impl Report {
    /// Faults that have happened, whatever their kind; sectors are not counted one by one.
    pub fn faults(&self) -> u64 {
        let other = FAULTS.iter().chain(&NET_FAULTS).filter_map(|name| self.counts.get(name));
        self.coverage.faults().iter().map(|(_, count)| count).chain(other).sum()
    }

    /// Why the run proves nothing, if it does not.
    pub fn vacuous(&self) -> Option<String> {
        let count = |name| self.counts.get(name).copied().unwrap_or(0);
        let wanted = u64::from(self.level == Level::Logs);
        let needs = [
            ("acknowledged appends", count("acks"), 200),
            ("power losses that drop a pending write", self.coverage.power_losses_that_drop, 1),
            ("checkpoints", count("checkpoints"), wanted),
            ("wraps of the ring", count("wraps"), wanted),
            ("runs in data files", count("runs"), wanted),
        ];
        let missing: Vec<String> = needs
            .iter()
            .filter(|(_, have, need)| have < need)
            .map(|(what, have, need)| format!("{have} {what} of at least {need}"))
            .collect();
        (!missing.is_empty()).then(|| format!("vacuous: {}", missing.join(", ")))
    }
}

/// Whether a run keeps its readable history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// It does.
    Kept,
    /// It does not.
    Dropped,
}

/// Runs one seed once.
pub fn run(level: Level, seed: u64, mutant: Option<Mutant>, history: History) -> Report {
    mutants::plant(mutant);
    let trace = match history {
        History::Kept => Trace::with_history(),
        History::Dropped => Trace::new(),
    };
    let mut run = Run::new(level, seed, trace);
    quiet_panics(history);
    let result = catch_unwind(AssertUnwindSafe(|| run.lives()));
    let place = PANIC_PLACE.take();
    mutants::plant(None);
    // A checker that failed in the middle of its work may be in no state to be asked.
    let counts = catch_unwind(AssertUnwindSafe(|| run.counts())).unwrap_or_default();
    let report = Report {
        level,
        seed,
        failure: result.err().map(|panic| format!("{} ({place})", message(&*panic))),
        trace: (run.world.trace.hash(), run.world.trace.notes()),
        counts,
        coverage: run.world.disk.coverage(),
        virtual_ns: run.world.clock.now_ns(),
        history: run.world.trace.history().to_vec(),
    };
    // What a panic has left behind may panic again when it is dropped.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(run)));
    IS_QUIET.set(false);
    report
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    static PANIC_PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A failing seed is a panic that is caught: its place is kept, and it is printed only if somebody reads the history.
fn quiet_panics(history: History) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map(|l| format!("{}:{}", l.file(), l.line()));
            PANIC_PLACE.set(place.unwrap_or_default());
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
    IS_QUIET.set(history == History::Dropped);
}

/// Whether a seed is run a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It is, and the two have to do the same.
    Yes,
    /// It is not.
    No,
}

/// Runs one seed. A run that proves nothing is a failure, and so is a difference between two.
pub fn run_fully(level: Level, seed: u64, repeat: Repeat) -> Report {
    let mut first = run(level, seed, None, History::Dropped);
    if first.failure.is_some() {
        return first;
    }
    first.failure = first.vacuous();
    if repeat == Repeat::Yes {
        let second = run(level, seed, None, History::Dropped);
        if first.trace != second.trace {
            let traces = (first.trace, second.trace);
            first.failure = Some(format!("NOT REPEATABLE: traces {traces:x?}"));
        }
    }
    first
}

/// A seed under way.
struct Run {
    level: Level,
    world: World,
    random: Random,
    script: Box<dyn Script>,
    faults: FaultRates,
    swarm: Swarm,
    shard_count: Option<u16>,
    /// Since the last start that came to its end the number of shards has changed.
    is_reshaping: bool,
    happened: Counts,
}

/// Which kinds of lives a seed has beside those that all have. It draws from a sequence of its own, so that a kind more does
/// not change the others.
struct Swarm {
    random: Random,
    /// The number of shards changes between lives.
    reshapes: bool,
    /// The drive has few bytes left, for a while.
    fills_up: bool,
    /// In the end something decays at rest.
    decays: bool,
    /// How long the broker stands idle now and then.
    rests: Rests,
    /// The wall clock is set forward and back.
    steps_clock: bool,
    /// How many steps in a million stop the process or a thread for a while.
    pause: u32,
}

impl Swarm {
    fn draw(seed: u64, level: Level) -> Swarm {
        let mut random = Random::new(!seed);
        let (reshapes, fills_up) = (random.chance(200_000), random.chance(150_000));
        let decays = random.chance(300_000) && level == Level::Logs;
        let rests = if random.chance(400_000) { Rests::Long } else { Rests::Short };
        let steps_clock = random.chance(200_000);
        let pause = if random.chance(200_000) { 1_000 } else { 0 };
        Swarm { random, reshapes, fills_up, decays, rests, steps_clock, pause }
    }
}

impl Run {
    fn new(level: Level, seed: u64, trace: Trace) -> Run {
        let mut random = Random::new(seed);
        let one_flush = if random.chance(800_000) { OneFlush::WholeDevice } else { OneFlush::OwnFileOnly };
        let disk = VirtualDisk::new(random.fork(), one_flush, 1 << 30);
        let mut world = World::new(random.fork(), disk, trace);
        world.disk.create_dir(machine::ROOT.as_ref()).expect("the drive is empty");
        let mut swarm = Swarm::draw(seed, level);
        let sticky = if swarm.random.chance(500_000) { 300_000 } else { 0 };
        let faults = FaultRates { sticky, ..faults(&mut random) };
        let script: Box<dyn Script> = match level {
            Level::Logs => Box::new(LogsScript::new(random.fork(), one_flush, swarm.rests)),
            Level::Shards => Box::new(ShardsScript::new(random.fork(), one_flush, swarm.rests)),
        };
        Run {
            level,
            world,
            random,
            script,
            faults,
            swarm,
            shard_count: None,
            is_reshaping: false,
            happened: Counts::new(),
        }
    }

    fn lives(&mut self) {
        let lives = self.random.between(3, 6);
        for life in 0..LIVES_MAX {
            // A few more, should the power have been lost only when nothing was pending.
            if life >= lives && self.world.disk.coverage().power_losses_that_drop > 0 {
                break;
            }
            self.world.disk.faults = FaultRates::default();
            if self.swarm.reshapes && self.swarm.random.chance(400_000) {
                self.change_shards();
            }
            self.start();
            self.world.disk.faults = self.faults;
            let fills_up = self.swarm.fills_up && self.swarm.random.chance(500_000);
            self.script.expect_faults(self.faults.any() || fills_up);
            self.life(fills_up);
        }
        self.last_life();
        if self.swarm.decays {
            self.decay();
        }
    }

    fn happens(&mut self, what: &'static str) {
        *self.happened.entry(what).or_default() += 1;
    }

    /// From the next start on there is another number of shards.
    fn change_shards(&mut self) {
        let count = self.swarm.random.between(1, 3) as u16;
        self.script.change_shards(count);
        let before = self.shard_count.replace(count);
        if before.is_some_and(|before| before != count) {
            self.happens(RESHAPED);
            self.is_reshaping = true;
        }
    }

    /// One life from its first turn to its end.
    fn life(&mut self, fills_up: bool) {
        self.want(Stage::Work);
        let steps = self.random.pick(&[20, 200, 1_000, 3_000]);
        let steps = self.random.between(1, steps);
        let size = self.world.disk.capacity;
        let refused = self.world.disk.coverage().full_at_byte;
        if fills_up {
            self.world.disk.capacity = self.world.disk.used() + self.swarm.random.below(2 << 20);
        }
        let back_at = if fills_up { self.swarm.random.below(2 * steps) } else { 0 };
        let rest_at = self.swarm.random.below(2 * steps);
        self.world.pace.pause = self.swarm.pause;
        for step in 0..steps {
            if step == rest_at {
                self.rest();
            }
            if fills_up && step == back_at {
                self.world.disk.capacity = size;
                if self.world.disk.coverage().full_at_byte > refused {
                    self.happens(SPACE_BACK);
                }
            }
            self.world.step();
            // With outcomes unknown a shard serves reads until it is restarted; a while of that is enough.
            if self.script.is_halted() && self.random.chance(20_000) {
                break;
            }
        }
        self.world.disk.capacity = size;
        self.world.pace.pause = 0;
        let halted = self.script.is_halted();
        match self.random.below(100) {
            0..60 => self.world.crash(Crash::PowerLoss),
            60..85 => self.world.crash(Crash::Kill),
            _ if halted => self.world.crash(Crash::Kill),
            _ => {
                self.world.disk.faults = FaultRates::default();
                self.stop();
            }
        }
    }

    /// Nobody asks for anything for a while. The wall clock may be set to another time before it.
    fn rest(&mut self) {
        if self.swarm.steps_clock {
            let ms = self.swarm.random.pick(&[1_000, 600_000, 86_400_000]);
            let is_back = self.swarm.random.chance(500_000);
            self.world.clock.jump_wall(if is_back { -ms } else { ms });
            self.happens(CLOCK_STEPS);
        }
        if self.swarm.rests == Rests::Short {
            return;
        }
        let seconds = self.swarm.random.pick(&[20, 60, 200]);
        self.want(Stage::Rest);
        self.pass(seconds * 1_000_000_000);
        self.want(Stage::Work);
        self.happens(RESTS);
    }

    fn pass(&mut self, ns: u64) {
        let until_ns = self.world.clock.now_ns() + ns;
        while self.world.clock.now_ns() < until_ns && self.world.step() == Step::Progress {}
    }

    /// The healed life: everything has to come to its end.
    fn last_life(&mut self) {
        self.world.disk.faults = FaultRates::default();
        self.script.expect_faults(false);
        self.script.heal_network(&mut self.world);
        self.start();
        self.want(Stage::Work);
        self.until(Stage::Work);
        self.rest();
        for stage in [Stage::Drain, Stage::Verify] {
            self.want(stage);
            self.until(stage);
        }
        self.stop();
        self.start_without_crash();
        self.want(Stage::Verify);
        self.until(Stage::Verify);
        self.stop();
    }

    /// Something decays after a clean stop, or before a crash in a quiet moment (within the second after an acknowledgement, rot
    /// in the last frames looks like a tear). The broker starts and serves everything but ranges that it refuses by the name of that
    /// file, or it refuses to start and names the file.
    fn decay(&mut self) {
        let crash = self.swarm.random.pick(&[None, Some(Crash::PowerLoss), Some(Crash::Kill)]);
        if crash.is_some() {
            if self.swarm.random.chance(500_000) {
                self.change_shards();
            }
            self.start_without_crash();
            self.want(Stage::Work);
            for _ in 0..self.swarm.random.between(1, 1_000) {
                self.world.step();
            }
            self.want(Stage::Rest);
            self.pass(3_000_000_000);
        }
        let how = self.swarm.random.pick(&Decay::ALL);
        // Of a large directory the journal is a small part, and the one that recovery depends on.
        let part = self.swarm.random.pick(&["", "-ring-"]);
        let decayed = self.world.disk.decay_somewhere(&mut self.swarm.random, how, part);
        if let Some(crash) = crash {
            self.world.crash(crash);
        }
        let Some(path) = decayed else { return };
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.world.trace.note(self.world.clock.now_ns(), "DECAY", &name, &[("how", how as u64)]);
        self.script.expect_decay(&name);
        let World { disk, clock, trace, .. } = &mut self.world;
        let opened = self.script.open(&mut BlockingDisk::new(disk, clock, trace, None));
        match opened {
            Ok(turns) => {
                self.world.boot(turns);
                self.want(Stage::Verify);
                self.until(Stage::Verify);
                self.happens(DECAY_SERVED);
            }
            Err(why) => {
                assert!(why.contains(&name), "DECAY: {name} is {how:?}, and the start is refused: {why}");
                self.happens(DECAY_REFUSED);
            }
        }
    }

    fn want(&mut self, stage: Stage) {
        self.script.want(stage, &mut self.world);
    }

    fn until(&mut self, stage: Stage) {
        for _ in 0..PATIENCE_STEPS {
            if self.script.is_done(stage) && (stage != Stage::Work || self.has_seen_all()) {
                return;
            }
            if self.world.step() != Step::Progress {
                panic!("STUCK: nothing is due before the end of {stage:?}: {}", self.script.waiting());
            }
        }
        panic!("STUCK: {PATIENCE_STEPS} steps before the end of {stage:?}: {}", self.script.waiting());
    }

    /// The ring has wrapped, a checkpoint was written, and a run; bytes that come in small pieces would take too long for it.
    fn has_seen_all(&self) -> bool {
        if self.level == Level::Shards {
            return true;
        }
        let writes = |part| self.world.written_to(part).writes;
        writes("-checkpoint-") > 0 && self.world.written_to("-ring-").laps > 0 && writes("/files/") > 0
    }

    fn stop(&mut self) {
        self.want(Stage::Stop);
        for _ in 0..PATIENCE_STEPS {
            match self.world.step() {
                Step::Progress => {}
                Step::Stopped => return self.world.clear_stopped(),
                Step::Idle => break,
            }
        }
        panic!("STUCK: the broker does not stop");
    }

    /// Recovers, perhaps through several crashes, and starts the broker.
    fn start(&mut self) {
        let mut cut = 0;
        for _ in 0..self.random.pick(&[0, 0, 0, 1, 1, 2, 4]) {
            let how = if self.random.chance(700_000) { Crash::PowerLoss } else { Crash::Kill };
            let calls = self.random.pick(&[10, 60, 400]);
            let crash = Some((self.random.below(calls), how));
            if self.boot(crash) {
                // The recovery was shorter than that: it ends right after it.
                self.world.crash(how);
            } else {
                cut += 1;
                self.happens(CUT_SHORT);
                if self.is_reshaping {
                    self.happens(RESHAPE_CUT);
                }
            }
        }
        if cut >= 3 {
            self.happens(CUT_AGAIN);
        }
        self.start_without_crash();
    }

    fn start_without_crash(&mut self) {
        assert!(self.boot(None), "recovery ended without a crash and without success");
        self.is_reshaping = false;
    }

    /// Recovers and gives the broker its first turn; false if the crash came before.
    fn boot(&mut self, crash: Option<(u64, Crash)>) -> bool {
        let World { disk, clock, trace, .. } = &mut self.world;
        let mut blocking = BlockingDisk::new(disk, clock, trace, crash);
        match self.script.open(&mut blocking) {
            // It may have had nothing more to ask of the drive when the crash came, and not know of it.
            Ok(_) if blocking.crashed() => false,
            Ok(turns) => {
                self.world.boot(turns);
                true
            }
            Err(_) if blocking.crashed() => false,
            Err(why) => panic!("recovery failed: {why}"),
        }
    }

    fn counts(&self) -> Counts {
        let mut counts = self.script.counts();
        counts.insert("checkpoints", self.world.written_to("-checkpoint-").writes);
        counts.insert("wraps", self.world.written_to("-ring-").laps);
        counts.insert("runs", self.world.written_to("/files/").writes);
        counts.insert(PAUSES, self.world.pauses());
        let net = self.world.net.faults();
        let of_net = [net.cuts, net.half_open, net.flips];
        counts.extend(NET_FAULTS.into_iter().zip(of_net));
        counts.extend(&self.happened);
        counts
    }
}

impl FaultRates {
    fn any(&self) -> bool {
        let of_ops = self.write_error + self.short_write + self.flush_error + self.read_error;
        of_ops + self.full + self.low_space > 0
    }
}

/// Most seeds have no faults but crashes; the others have some kinds.
fn faults(random: &mut Random) -> FaultRates {
    let mut rate = |per_million| if random.chance(80_000) { per_million } else { 0 };
    FaultRates {
        write_error: rate(2_000),
        short_write: rate(50_000),
        flush_error: rate(2_000),
        read_error: rate(10_000),
        full: rate(300_000),
        low_space: rate(300_000),
        sticky: 0,
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_string()
}
