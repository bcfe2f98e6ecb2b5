use super::*;
use async_trait::async_trait;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Answers with what the test says, and counts.
#[derive(Default)]
struct Scripted {
    errors: Mutex<VecDeque<Option<EngineError>>>,
    calls: Arc<AtomicUsize>,
    hangs: bool,
}

impl Scripted {
    async fn next(&self) -> Outcome<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.hangs {
            std::future::pending::<()>().await;
        }
        match self.errors.lock().unwrap().pop_front().flatten() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Engine for Scripted {
    async fn check(&self) -> Outcome<()> {
        self.next().await
    }
    async fn read(&self, names: &[String], _: u64) -> Outcome<Vec<Option<Vec<u8>>>> {
        self.next().await.map(|()| vec![None; names.len()])
    }
    async fn write(&self, _: &str, _: Vec<u8>) -> Outcome<()> {
        self.next().await
    }
    async fn delete(&self, _: &str) -> Outcome<bool> {
        self.next().await.map(|()| true)
    }
    async fn list(&self, _: &str) -> Outcome<Listing> {
        self.next().await.map(|()| Listing::default())
    }
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Option<Duration>>>);

impl Memory {
    fn get(&self) -> Option<Duration> {
        *self.0.lock().unwrap()
    }
}

impl BreakerFile for Memory {
    fn load(&self) -> Option<Duration> {
        self.get()
    }
    fn store(&self, open: Option<(Duration, &str)>) {
        *self.0.lock().unwrap() = open.map(|(time, _)| time);
    }
}

static CLOCK: AtomicU64 = AtomicU64::new(1_000_000);

fn guarded(errors: Vec<Option<EngineError>>) -> (Guarded, Arc<AtomicUsize>, Memory) {
    let (engine, memory) = (Scripted::default(), Memory::default());
    *engine.errors.lock().unwrap() = errors.into();
    let calls = engine.calls.clone();
    let mut guarded = Guarded::new(Box::new(engine), Box::new(memory.clone()));
    guarded.clock = || CLOCK.load(Ordering::Relaxed);
    (guarded, calls, memory)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(future)
}

fn unreachable() -> Option<EngineError> {
    Some(EngineError::Unreachable("x".to_owned()))
}

#[test]
fn one_failed_connection_opens_the_breaker_and_the_pause_doubles_up_to_its_bound() {
    let (guarded, calls, memory) = guarded(vec![unreachable(); 12]);
    let mut clock = 1_000_000;
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let before = calls.load(Ordering::Relaxed);
        assert!(run(guarded.check()).is_err());
        assert_eq!(calls.load(Ordering::Relaxed), before + 1);
        // Nothing is tried while it is open.
        assert!(run(guarded.read(&["a".to_owned()], 1)).is_err());
        assert!(run(guarded.write("a", Vec::new())).is_err());
        assert_eq!(calls.load(Ordering::Relaxed), before + 1);
        let pause = memory.get().unwrap();
        assert_eq!(guarded.is_open(), Some(pause));
        pauses.push(pause.as_secs());
        clock += pause.as_millis() as u64;
        CLOCK.store(clock, Ordering::Relaxed);
        assert_eq!(guarded.is_open(), None);
    }
    assert_eq!(pauses[..4], [1, 2, 4, 8]);
    assert_eq!(pauses[9..], [300, 300, 300]);
    assert_eq!(run(guarded.check()), Ok(()));
    assert_eq!(memory.get(), None);
}

#[test]
fn objects_that_are_kept_from_the_user_keep_nobody_from_others() {
    let denied = || Some(EngineError::Denied("x".to_owned()));
    let (guarded, calls, memory) = guarded(vec![denied(), denied(), None, unreachable()]);
    let delete = || {
        let engine = guarded.engine();
        run(guarded.run_if_allowed(async move { engine.delete("a").await }))
    };
    for expected in [None, None, Some(true)] {
        assert_eq!(delete(), Ok(expected));
        assert_eq!((guarded.is_open(), memory.get()), (None, None));
    }
    assert!(delete().is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    assert!(memory.get().is_some());
}

#[test]
fn an_object_that_cannot_be_written_keeps_nobody_from_others() {
    let obstructed = || Some(EngineError::Obstructed("x".to_owned()));
    let (guarded, calls, memory) = guarded(vec![obstructed(); 4]);
    for _ in 0..4 {
        assert!(run(guarded.write("a", Vec::new())).is_err());
        assert_eq!((guarded.is_open(), memory.get()), (None, None));
    }
    assert_eq!(run(guarded.write("b", Vec::new())), Ok(()));
    assert_eq!(guarded.last_error(), None);
    assert_eq!(calls.load(Ordering::Relaxed), 5);
}

#[test]
fn another_helper_finds_the_breaker_open_but_never_for_longer_than_its_bound() {
    let memory = Memory::default();
    memory.store(Some((Duration::from_secs(3600), "x")));
    let engine = Scripted::default();
    let calls = engine.calls.clone();
    let guarded = Guarded::new(Box::new(engine), Box::new(memory));
    assert!(run(guarded.check()).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let open = guarded.is_open().unwrap();
    assert!(open <= PAUSES.1 && open > PAUSES.1 / 2);
}

#[test]
fn three_errors_open_the_breaker_and_a_success_between_them_does_not() {
    let failed = || Some(EngineError::Failed("x".to_owned()));
    let (guarded, _, memory) =
        guarded(vec![failed(), failed(), None, failed(), failed(), failed()]);
    for _ in 0..5 {
        let _ = run(guarded.check());
        assert_eq!(memory.get(), None);
    }
    let _ = run(guarded.check());
    assert_ne!(memory.get(), None);
}

#[test]
fn a_store_that_takes_nothing_is_read_and_not_written() {
    let full = EngineError::Full("OOM".to_owned());
    for why in [full, EngineError::Unwritable("x".to_owned())] {
        let (guarded, calls, memory) = guarded(vec![Some(why.clone())]);
        let refused = || (guarded.refuses_writes(), guarded.last_error());
        assert_eq!(refused(), (None, None));
        for _ in 0..2 {
            assert_eq!(run(guarded.write("a", Vec::new())), Err(why.clone()));
            assert_eq!(run(guarded.read(&["a".to_owned()], 1)), Ok(vec![None]));
            assert_eq!(refused(), (Some(why.clone()), Some(why.clone())));
        }
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        assert_eq!(memory.get(), None);
    }
}

#[test]
fn a_server_that_does_not_answer_is_left_at_the_deadline() {
    let engine = Scripted {
        hangs: true,
        ..Scripted::default()
    };
    let memory = Memory::default();
    let guarded = Guarded::new(Box::new(engine), Box::new(memory.clone()));
    // The clock of the runtime is paused, so this takes no time.
    assert_eq!(run(guarded.check()), Err(EngineError::TimedOut));
    assert_ne!(memory.get(), None);
}

#[test]
fn after_an_answer_that_was_late_nobody_waits_as_long_until_one_has_come() {
    let failed = Some(EngineError::Failed("x".to_owned()));
    let (guarded, _, _) = guarded(vec![None, failed, None]);
    let [second, minute, hour] = [1, 60, 3600].map(Duration::from_secs);
    // Nothing is known yet.
    assert!(!guarded.is_slower_than(second));
    assert_eq!(run(guarded.check()), Ok(()));
    assert!(!guarded.is_slower_than(second));
    guarded.note_late(minute);
    guarded.note_late(second);
    assert!(guarded.is_slower_than(second) && guarded.is_slower_than(minute));
    assert!(!guarded.is_slower_than(hour));
    assert!(run(guarded.check()).is_err());
    assert!(guarded.is_slower_than(minute));
    assert_eq!(run(guarded.check()), Ok(()));
    assert!(!guarded.is_slower_than(second));
}

#[test]
fn credentials_that_are_refused_are_read_again_once() {
    let denied = || Some(EngineError::Denied("x".to_owned()));
    let (first, second, memory) = (Scripted::default(), Scripted::default(), Memory::default());
    *first.errors.lock().unwrap() = vec![denied()].into();
    *second.errors.lock().unwrap() = vec![None, denied()].into();
    let second = Mutex::new(Some(Box::new(second) as Box<dyn Engine>));
    let reload: Reload = Box::new(move || second.lock().unwrap().take());
    let guarded = Guarded::with_reload(Box::new(first), Box::new(memory.clone()), Some(reload));
    assert!(run(guarded.check()).is_err());
    assert_eq!(memory.get(), None);
    assert_eq!(run(guarded.check()), Ok(()));
    // These are refused as well, and there are no others.
    assert!(run(guarded.check()).is_err());
    assert_ne!(memory.get(), None);
}

#[test]
fn a_clock_that_is_set_back_keeps_the_store_unused_for_no_longer_than_a_pause() {
    static SET_BACK: AtomicU64 = AtomicU64::new(10_000_000);
    let (mut guarded, calls, _) = guarded(vec![unreachable()]);
    guarded.clock = || SET_BACK.load(Ordering::Relaxed);
    assert!(run(guarded.check()).is_err());
    assert!(guarded.is_open().is_some());
    SET_BACK.store(1_000_000, Ordering::Relaxed);
    assert_eq!(run(guarded.check()), Ok(()));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}
