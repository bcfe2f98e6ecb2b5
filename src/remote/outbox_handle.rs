//! The outbox of a process that goes on for long.
//!
//! Its directories may be removed meanwhile: by the user, by what removes old files, or by a job that makes those of its state anew. An
//! application may also close their descriptors. What is noted there then is lost, and what others note elsewhere is not seen. So they
//! are opened again.

use once_cell::race::OnceBox;

use super::outbox::Outbox;

/// How often a process opens the directories again. The lost ones stay open, since another thread may be using them.
const MAX_REOPENS: usize = 16;

/// The outbox as it was opened, and its successors if it was lost.
#[derive(Debug)]
pub(super) struct OutboxHandle {
    outbox: Outbox,
    // Without a lock: a child that is forked meanwhile would wait for it. If two threads open the directories, one result is dropped
    // unused.
    again: OnceBox<OutboxHandle>,
}

impl OutboxHandle {
    /// Of an outbox that was just opened.
    pub fn new(outbox: Outbox) -> OutboxHandle {
        OutboxHandle {
            outbox,
            again: OnceBox::new(),
        }
    }

    /// The outbox; what `open` opens if it is lost, and None if that finds none.
    ///
    /// # Errors
    /// For people: it is lost, and is not opened again.
    pub fn get(
        &self,
        open: impl FnOnce() -> Result<Option<Outbox>, String>,
    ) -> Result<Option<&Outbox>, String> {
        let (mut last, mut reopens) = (self, 0);
        while let Some(again) = last.again.get() {
            (last, reopens) = (again, reopens + 1);
        }
        if !last.outbox.is_lost() {
            return Ok(Some(&last.outbox));
        }
        if reopens >= MAX_REOPENS {
            return Err("its directories were removed too often".to_owned());
        }
        let opened = open()?.map(|opened| Box::new(OutboxHandle::new(opened)));
        Ok(opened.map(|opened| &last.again.get_or_init(|| opened).outbox))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::key::ingredients::Key;

    #[test]
    fn it_is_opened_again_wherever_it_is_removed_and_not_without_end() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let variable = |name: &str| matches!(name, "HOME").then(|| home.path().into());
        let config = Config::read_from(&variable, None);
        let outbox = || Outbox::open(&config);
        let handle = OutboxHandle::new(outbox().expect("made"));
        let state = config.state_directory().expect("a directory");
        let key = Key([7; 32]);
        let mut opens = 0;
        for removed in ["", "storing", "outbox", "sent"].iter().cycle() {
            std::fs::remove_dir_all(state.join(removed)).expect("removed");
            let again = handle.get(|| outbox().map(Some));
            let Ok(again) = again else {
                break;
            };
            opens += 1;
            let path = again.expect("opened").path().join(key.hex());
            std::fs::write(path, "").expect("there");
            // It is opened once.
            let same = handle.get(|| Err("opened again".to_owned()));
            let same = same.expect("not lost").expect("opened");
            assert_eq!(same.pending().expect("listed"), [key]);
        }
        assert_eq!(opens, MAX_REOPENS);
    }

    #[test]
    fn who_only_sends_makes_no_directory_of_a_user() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let variable = |name: &str| matches!(name, "HOME").then(|| home.path().into());
        let config = Config::read_from(&variable, None);
        let handle = OutboxHandle::new(Outbox::open(&config).expect("made"));
        let again = || handle.get(|| Outbox::open_again(&config));
        let state = config.state_directory().expect("a directory");
        std::fs::remove_dir_all(&state).expect("removed");
        assert!(again().expect("none").is_none());
        assert!(!state.exists());
        // Another process builds something.
        drop(Outbox::open(&config));
        assert!(again().expect("opened").is_some());
        std::fs::remove_dir(again().expect("there").expect("open").path()).expect("removed");
        assert!(again().expect("opened").is_some());
    }
}
