use super::*;

fn disk(seed: u64, rule: OneFlush) -> VirtualDisk {
    let mut disk = VirtualDisk::new(Random::new(seed), rule, 1 << 30);
    disk.create_dir(Path::new("/d")).unwrap();
    disk
}

fn new_file(disk: &mut VirtualDisk, name: &str) -> Inode {
    let ticket = disk.begin_open(Path::new(name), OpenHow::New { bytes: 64 * BLOCK as u64 });
    disk.end_open(ticket).unwrap()
}

fn zeroed_file(disk: &mut VirtualDisk, name: &str) -> Inode {
    let inode = new_file(disk, name);
    disk.initialise(inode);
    inode
}

fn write(disk: &mut VirtualDisk, file: Inode, block: usize, blocks: usize, byte: u8) {
    let data = View::copy_of(&vec![byte; blocks * BLOCK]);
    let ticket = disk.begin_write(file, (block * BLOCK) as u64, Data::Bytes(data));
    disk.end_write(ticket).unwrap();
}

fn flush(disk: &mut VirtualDisk, file: Inode) {
    let ticket = disk.begin_flush(file);
    disk.end_flush(ticket).unwrap();
}

fn sector(disk: &mut VirtualDisk, file: Inode, block: usize) -> Vec<u8> {
    disk.read(file, (block * BLOCK) as u64, BLOCK).unwrap().to_vec()
}

#[test]
fn a_flushed_sector_never_changes_at_power_loss() {
    for seed in 0..200 {
        let mut disk = disk(seed, OneFlush::WholeDevice);
        let a = zeroed_file(&mut disk, "/d/a");
        let b = zeroed_file(&mut disk, "/d/b");
        write(&mut disk, a, 0, 8, 1);
        write(&mut disk, b, 0, 8, 2);
        flush(&mut disk, b);
        write(&mut disk, a, 8, 8, 3);
        disk.power_loss();
        for block in 0..8 {
            assert_eq!(sector(&mut disk, a, block), vec![1; BLOCK], "seed {seed}");
            assert_eq!(sector(&mut disk, b, block), vec![2; BLOCK], "seed {seed}");
        }
    }
}

#[test]
fn an_unflushed_sector_becomes_old_new_torn_zero_or_garbage() {
    let mut seen = [0; 5];
    for seed in 0..400 {
        let mut disk = disk(seed, OneFlush::WholeDevice);
        let a = zeroed_file(&mut disk, "/d/a");
        write(&mut disk, a, 0, 16, 1);
        flush(&mut disk, a);
        write(&mut disk, a, 0, 16, 2);
        disk.power_loss();
        for block in 0..16 {
            let now = sector(&mut disk, a, block);
            let kind = match (now.iter().all(|b| *b == 1), now.iter().all(|b| *b == 2)) {
                (true, _) => 0,
                (_, true) => 1,
                _ if now.iter().all(|b| *b == 0) => 2,
                _ if now.iter().all(|b| *b == 1 || *b == 2) => 3,
                _ => 4,
            };
            for piece in now.chunks(PIECE).filter(|_| kind < 4) {
                assert!(piece.iter().all(|b| *b == piece[0]), "a piece of 512 bytes is never torn");
            }
            seen[kind] += 1;
        }
    }
    assert!(seen.iter().all(|n| *n > 20), "old, new, zero, torn, garbage: {seen:?}");
}

#[test]
fn a_flush_of_another_file_does_not_cover_extents_that_are_not_initialised() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut disk = disk(seed, OneFlush::WholeDevice);
        let journal = zeroed_file(&mut disk, "/d/journal");
        let fresh = new_file(&mut disk, "/d/fresh");
        write(&mut disk, fresh, 0, 1, 9);
        flush(&mut disk, journal);
        disk.power_loss();
        lost += u32::from(sector(&mut disk, fresh, 0) == vec![0; BLOCK]);
    }
    assert!(lost > 10, "the write was lost {lost} times of 100");

    let mut disk = disk(1, OneFlush::WholeDevice);
    let journal = zeroed_file(&mut disk, "/d/journal");
    let fresh = new_file(&mut disk, "/d/fresh");
    write(&mut disk, fresh, 0, 1, 9);
    flush(&mut disk, fresh);
    write(&mut disk, fresh, 0, 1, 8);
    flush(&mut disk, journal);
    disk.power_loss();
    assert_eq!(sector(&mut disk, fresh, 0), vec![8; BLOCK], "its own flush has initialised it");
}

#[test]
fn without_the_one_flush_rule_a_flush_covers_its_own_file_alone() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut disk = disk(seed, OneFlush::OwnFileOnly);
        let a = zeroed_file(&mut disk, "/d/a");
        let b = zeroed_file(&mut disk, "/d/b");
        write(&mut disk, a, 0, 1, 9);
        flush(&mut disk, b);
        disk.power_loss();
        lost += u32::from(sector(&mut disk, a, 0) != vec![9; BLOCK]);
    }
    assert!(lost > 10, "the write was lost {lost} times of 100");
}

#[test]
fn a_flush_covers_only_writes_that_completed_before_it_was_submitted() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut disk = disk(seed, OneFlush::WholeDevice);
        let a = zeroed_file(&mut disk, "/d/a");
        let early = disk.begin_write(a, 0, Data::Bytes(View::copy_of(&[1; BLOCK])));
        let ticket = disk.begin_flush(a);
        disk.end_write(early).unwrap();
        disk.end_flush(ticket).unwrap();
        disk.power_loss();
        lost += u32::from(sector(&mut disk, a, 0) != vec![1; BLOCK]);
    }
    assert!(lost > 10, "the write was lost {lost} times of 100");
}

#[test]
fn a_kill_keeps_completed_writes_readable_but_not_durable() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut disk = disk(seed, OneFlush::WholeDevice);
        let a = zeroed_file(&mut disk, "/d/a");
        write(&mut disk, a, 0, 1, 1);
        disk.kill();
        assert_eq!(sector(&mut disk, a, 0), vec![1; BLOCK]);
        disk.power_loss();
        lost += u32::from(sector(&mut disk, a, 0) != vec![1; BLOCK]);
    }
    assert!(lost > 10, "the write was lost {lost} times of 100");
}

#[test]
fn after_a_failed_flush_the_next_one_says_ok_although_data_is_gone() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut disk = disk(seed, OneFlush::WholeDevice);
        let a = zeroed_file(&mut disk, "/d/a");
        write(&mut disk, a, 0, 4, 1);
        disk.faults.flush_error = 1_000_000;
        let ticket = disk.begin_flush(a);
        assert_eq!(disk.end_flush(ticket).unwrap_err().errno, EIO);
        disk.faults.flush_error = 0;
        flush(&mut disk, a);
        lost += u32::from((0..4).any(|block| sector(&mut disk, a, block) != vec![1; BLOCK]));
    }
    assert!(lost > 10, "a sector was lost {lost} times of 100");
}

#[test]
fn every_fault_kind_occurs_when_its_rate_says_so() {
    let mut disk = disk(3, OneFlush::WholeDevice);
    let a = zeroed_file(&mut disk, "/d/a");
    disk.faults = FaultRates {
        write_error: 200_000,
        short_write: 200_000,
        flush_error: 200_000,
        read_error: 200_000,
        full: 1_000_000,
        low_space: 200_000,
        sticky: 0,
    };
    for _ in 0..100 {
        let space = disk.free_space();
        assert!(space.free_bytes <= space.total_bytes);
        let ticket = disk.begin_write(a, 0, Data::Bytes(View::copy_of(&[7; 4 * BLOCK])));
        if let Ok(done) = disk.end_write(ticket) {
            assert!(done.is_multiple_of(BLOCK) && done > 0);
        }
        let ticket = disk.begin_flush(a);
        let _ = disk.end_flush(ticket);
        let _ = disk.read(a, 0, BLOCK);
    }
    let ticket = disk.begin_open(Path::new("/d/b"), OpenHow::New { bytes: 4096 });
    assert!(disk.end_open(ticket).unwrap_err().is_full());
    let seen = disk.coverage();
    assert!(seen.write_errors > 5 && seen.short_writes > 5 && seen.flush_errors > 5 && seen.read_errors > 5);
    assert_eq!(seen.full, 1);
    assert!(seen.low_space > 5);
}

#[test]
fn a_file_that_goes_on_failing_does_so_until_the_broker_is_started_again() {
    let mut disk = disk(3, OneFlush::WholeDevice);
    let (a, b) = (zeroed_file(&mut disk, "/d/a"), zeroed_file(&mut disk, "/d/b"));
    disk.faults = FaultRates { read_error: 1_000_000, sticky: 1_000_000, ..FaultRates::default() };
    assert!(disk.read(a, 0, BLOCK).is_err());
    disk.faults.read_error = 0;
    assert!(disk.read(a, 0, BLOCK).is_err(), "the same op on the same file");
    assert!(disk.read(b, 0, BLOCK).is_ok());
    write(&mut disk, a, 0, 1, 1);
    disk.kill();
    assert!(disk.read(a, 0, BLOCK).is_ok());
    assert_eq!(disk.coverage().sticky, 1);
}

#[test]
fn what_decays_is_what_its_kind_says() {
    for how in Decay::ALL {
        let mut changed = 0;
        for seed in 0..50 {
            let mut disk = disk(seed, OneFlush::WholeDevice);
            let a = zeroed_file(&mut disk, "/d/a");
            for byte in [1, 2] {
                write(&mut disk, a, 0, 8, byte);
                flush(&mut disk, a);
            }
            write(&mut disk, a, 8, 8, 3);
            flush(&mut disk, a);
            let before: Vec<Vec<u8>> = (0..16).map(|block| sector(&mut disk, a, block)).collect();
            let Some(path) = disk.decay_somewhere(&mut Random::new(seed), how, "") else { continue };
            assert_eq!(path, Path::new("/d/a"));
            for (block, was) in before.iter().enumerate() {
                let is = sector(&mut disk, a, block);
                if is == *was {
                    continue;
                }
                changed += 1;
                let same = is.iter().zip(was).filter(|(is, was)| is == was).count();
                let as_said = match how {
                    Decay::Bit => same == BLOCK - 1,
                    Decay::Garbage => same < BLOCK / 8,
                    Decay::Zeros => is == vec![0; BLOCK],
                    Decay::Stale => block < 8 && is == vec![1; BLOCK],
                    Decay::Misplaced => before.contains(&is),
                };
                assert!(as_said, "{how:?} of block {block}: {:?} has become {:?}", was[0], is[0]);
            }
        }
        assert!(changed >= 10, "{how:?} has changed {changed} sectors");
    }
}
