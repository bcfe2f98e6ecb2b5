use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::super::stats::{Counter, Statistics};
use super::super::{Limits, Store};
use super::*;

fn store(below: &Path) -> (tempfile::TempDir, Store) {
    let temporary = tempfile::tempdir_in(below).expect("a temporary directory");
    let store = Store::open(temporary.path(), Limits::default()).expect("a store");
    (temporary, store)
}

fn statistics(store: &Store) -> Statistics {
    store.create_statistics().expect("made")
}

fn recorder(store: &Store) -> Recorder {
    Recorder::new(b"app", None, Some(store.counting_places()))
}

fn hits(store: &Store) -> u64 {
    let counted = statistics(store).counted().expect("read");
    counted.rows.total().get(Counter::Hits)
}

#[test]
fn a_file_goes_on_where_it_ended_and_is_written_anew_where_it_was_cut() {
    let (_temporary, store) = store(Path::new("/dev/shm"));
    let directory = statistics(&store);
    let directory = directory.directories().next().expect("a directory");
    let events = [Counter::Hits.by(2)];
    recorder(&store).record(Labels::default(), &events);
    let again = recorder(&store);
    again.record(Labels::default(), &events);
    assert_eq!(hits(&store), 4);
    let file = directory.path().join(own_name());
    for length in [0, 8, 1000, 4096] {
        let cut = std::fs::File::options().write(true).open(&file);
        cut.and_then(|file| file.set_len(length)).expect("cut");
        again.record(Labels::default(), &events);
    }
    assert_eq!(hits(&store), 12);
    assert_eq!(directory.names().expect("listed").len(), 1);
}

#[test]
fn what_threads_write_at_once_is_all_in_the_file() {
    let (_temporary, store) = store(Path::new("/dev/shm"));
    let recorder = recorder(&store);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let recorder = &recorder;
            scope.spawn(move || {
                for event in 0..200 {
                    let device = [b'a' + (thread + event) % 3];
                    let place = Labels {
                        driver: "pocl",
                        device: &device,
                    };
                    recorder.record(place, &[Counter::Hits.by(1)]);
                }
            });
        }
    });
    assert_eq!(hits(&store), 4 * 200);
}

#[test]
fn on_a_disk_hits_write_nothing_until_something_else_does_or_the_process_ends() {
    let (temporary, store) = store(Path::new("."));
    assert!(!statistics(&store).is_exact());
    let file = temporary.path().join("v1/stats").join(own_name());
    let recorder = recorder(&store);
    let count = |events: &[CounterEvent]| recorder.record(Labels::default(), events);
    count(&[Counter::Hits.by(1), Counter::LoadNs.by(5)]);
    assert!(!file.exists());
    count(&[Counter::Misses.by(1)]);
    assert_eq!(hits(&store), 1);
    let written = std::fs::read(&file).expect("written");
    count(&[Counter::Hits.by(1)]);
    assert!(std::fs::read(&file).expect("read") == written);
    recorder.at_end();
    assert_eq!(hits(&store), 2);
}

#[test]
fn what_stands_in_the_place_of_the_file_is_left_alone() {
    let (temporary, store) = store(Path::new("/dev/shm"));
    let elsewhere = temporary.path().join("elsewhere");
    std::fs::write(&elsewhere, "something").expect("written");
    let statistics = statistics(&store);
    let directory = statistics.directories().next().expect("a directory");
    let place = directory.path().join(own_name());
    std::os::unix::fs::symlink(&elsewhere, place).expect("linked");
    recorder(&store).record(Labels::default(), &[Counter::Hits.by(1)]);
    assert_eq!(std::fs::read(&elsewhere).expect("read"), b"something");
}

#[test]
fn threads_that_begin_to_count_at_once_lose_nothing() {
    const THREADS: u8 = 4;
    for _ in 0..200 {
        let (_temporary, store) = store(Path::new("/dev/shm"));
        let recorder = recorder(&store);
        let barrier = std::sync::Barrier::new(THREADS.into());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (recorder, barrier) = (&recorder, &barrier);
                scope.spawn(move || {
                    let place = Labels {
                        driver: "pocl",
                        device: &[b'a' + thread],
                    };
                    barrier.wait();
                    recorder.record(place, &[Counter::Hits.by(1)]);
                });
            }
        });
        let counted = statistics(&store).counted().expect("read").rows;
        let devices = counted.by(|tag| tag.device.clone());
        let devices = devices
            .into_iter()
            .map(|(device, row)| (device, row.get(Counter::Hits)));
        let expected = ["a", "b", "c", "d"].map(|device| (device.to_owned(), 1));
        assert_eq!(devices.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn processes_that_only_hit_leave_no_more_files_the_more_there_are() {
    let (_temporary, store) = store(Path::new("/dev/shm"));
    let own = own_name();
    let (host, _) = own.rsplit_once('-').expect("a time");
    let (host, _) = host.rsplit_once('-').expect("a process");
    let statistics = statistics(&store);
    let directory = statistics.directories().next().expect("a directory");
    let path = directory.path().to_owned();
    let mut files = 0;
    for dead in 1..=2000 {
        std::fs::write(path.join(format!("{host}-4194999-{dead}")), MAGIC).expect("written");
        let recorder = recorder(&store);
        recorder.record(Labels::default(), &[Counter::Hits.by(1)]);
        recorder.at_end();
        std::thread::sleep(std::time::Duration::from_micros(500));
        files = directory.names().expect("listed").len();
        if files < dead / 2 {
            break;
        }
    }
    assert!(files < 1000, "{files}");
    assert!(hits(&store) > 0);
}

/// The median of some times in nanoseconds, with what a tenth is below and a tenth above.
fn spread(mut times: Vec<u64>) -> String {
    times.sort_unstable();
    let part = |tenths: usize| times[times.len() * tenths / 10];
    format!("{} ns ({} to {})", part(5), part(1), part(9))
}

fn measured(rounds: usize, each: u64, mut body: impl FnMut()) -> String {
    let times = (0..rounds).map(|_| {
        let started = Instant::now();
        for _ in 0..each {
            body();
        }
        started.elapsed().as_nanos() as u64 / each
    });
    spread(times.collect())
}

#[test]
#[ignore = "a measurement, by `ci/bench event`"]
fn what_an_event_costs() {
    // A hit.
    let events = [
        Counter::Hits.by(1),
        Counter::LoadNs.by(1000),
        Counter::SavedNs.by(100_000),
    ];
    let place = Labels {
        driver: "intel-cpu",
        device: b"Intel(R) Xeon(R) Processor @ 2.10GHz",
    };
    println!("\nAn event (a hit, three counters), median (a tenth is below, a tenth above)\n");
    for below in ["/dev/shm", "."] {
        let (_temporary, store) = store(Path::new(below));
        let file_system = store.root().file_system();
        let recorder = recorder(&store);
        let started = Instant::now();
        recorder.announce();
        let first = started.elapsed().as_nanos();
        println!("{file_system}, the first of a process: {first} ns");
        let time = measured(1000, 1000, || recorder.record(place, &events));
        println!("{file_system}: {time}");
        let (goes_on, turns) = (AtomicBool::new(true), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while goes_on.load(Ordering::Relaxed) {
                    recorder.record(place, &events);
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
            std::thread::sleep(Duration::from_millis(100)); // it gets a processor of its own
            let before = turns.load(Ordering::Relaxed);
            let time = measured(1000, 1000, || recorder.record(place, &events));
            let share = (turns.load(Ordering::Relaxed) - before) / 10_000;
            println!("{file_system}, while another thread counts {share} % as much: {time}");
            goes_on.store(false, Ordering::Relaxed);
        });
        assert!(hits(&store) >= 2_000_000);
    }
}
