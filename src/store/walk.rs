//! Walks the shards of a large store on a few threads. Only the command does; no application gets a thread of this.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, Builder};

/// A thread for each 16 shards, so that the walk of a very small store starts none, and that of a large one 16.
///
/// With more threads than processors, some wait for the disk while others work: where freed blocks are discarded at once (ext4
/// without a journal, mounted with `discard`), one thread waits for three quarters of the time in which it removes files. On two
/// processors 16 threads removed 200,000 files there in 4.2 to 5.1 s, and 8 in 5.4 to 5.8. 32 were hardly faster.
const SHARDS_OF_A_THREAD: usize = 16;
/// How many results each thread may be ahead: a pager that is not read on must not fill the memory.
const MAX_AHEAD: usize = 2;

/// Calls `work` for each of these shards, and `take` with each result on this thread, in the order of the shards. Ends with the
/// first error of `take`.
///
/// # Errors
/// Those of `take`.
pub fn walk<T: Send, E>(
    shards: &[usize],
    work: impl Fn(usize) -> T + Sync,
    mut take: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    let threads = shards.len() / SHARDS_OF_A_THREAD;
    let work = &work;
    thread::scope(|scope| {
        // Each thread has every N-th shard of N threads, and a channel of its own, which keeps the order.
        let start = |first: usize| -> Option<Receiver<T>> {
            let (sender, receiver) = sync_channel(MAX_AHEAD);
            let own = shards.iter().skip(first).step_by(threads);
            let run = move || {
                for shard in own {
                    if sender.send(work(*shard)).is_err() {
                        return;
                    }
                }
            };
            Builder::new().spawn_scoped(scope, run).ok()?;
            Some(receiver)
        };
        let threads: Vec<_> = (0..threads).map(start).collect();
        for (index, shard) in shards.iter().enumerate() {
            let thread = threads.get(index % threads.len().max(1));
            let done = thread.and_then(|thread| thread.as_ref()?.recv().ok());
            // Where no thread could be started, this one works.
            take(*shard, done.unwrap_or_else(|| work(*shard)))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::fork_safety::Mutex;

    #[test]
    fn all_shards_are_taken_in_order_whichever_thread_is_first() {
        for count in [0, 1, 15, 16, 33, 100, 256] {
            let shards: Vec<usize> = (0..count).map(|number| number * 3).collect();
            let mut taken = Vec::new();
            let workers = Mutex::new(BTreeSet::new());
            let done: Result<(), ()> = walk(
                &shards,
                |shard| {
                    workers
                        .lock()
                        .insert(format!("{:?}", thread::current().id()));
                    if shard % 2 == 0 {
                        thread::yield_now();
                    }
                    shard + 1
                },
                |shard, result| {
                    assert_eq!(result, shard + 1);
                    taken.push(shard);
                    Ok(())
                },
            );
            assert_eq!((done, &taken), (Ok(()), &shards));
            let own = format!("{:?}", thread::current().id());
            let threads = workers.lock().len();
            let is_small = (1..SHARDS_OF_A_THREAD).contains(&count);
            assert_eq!(workers.lock().contains(&own), is_small);
            let most = count.div_ceil(SHARDS_OF_A_THREAD);
            assert!(threads <= most, "{threads} for {count}");
        }
    }

    #[test]
    fn who_takes_no_more_ends_the_walk_and_nobody_is_far_ahead() {
        let worked = AtomicUsize::new(0);
        let shards: Vec<usize> = (0..256).collect();
        let mut taken = 0;
        let done = walk(
            &shards,
            |_| worked.fetch_add(1, Ordering::Relaxed),
            |shard, _| {
                taken += 1;
                if shard == 5 { Err("enough") } else { Ok(()) }
            },
        );
        assert_eq!((done, taken), (Err("enough"), 6));
        let most = 6 + shards.len() / SHARDS_OF_A_THREAD * (MAX_AHEAD + 2);
        let worked = worked.load(Ordering::Relaxed);
        assert!(worked <= most, "{worked}");
    }
}
