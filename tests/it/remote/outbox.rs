//! What a program notes of the entries that are to be sent.

use std::fs;

use super::lab::Lab;
use super::markers;
use crate::counting::Turns;
use crate::support::{Way, example};

const STATE: &str = "home/.local/state/oclcache";

#[test]
fn a_program_whose_outbox_is_removed_notes_what_it_builds_then_in_a_new_one() {
    let Some(lab) = Lab::bare("an outbox that is removed") else {
        return;
    };
    let mut turns = Turns::begin(&lab.sandbox);
    turns.turn("build 0 2", "built 2");
    assert_eq!(markers(&lab.sandbox).len(), 2);
    let state = lab.sandbox.path(STATE);
    // What removes old files takes the directory that is empty most of the time.
    for (number, removed) in [(2, state.clone()), (4, state.join("storing"))] {
        let before = match removed == state {
            true => 0,
            false => markers(&lab.sandbox).len(),
        };
        fs::remove_dir_all(removed).expect("removed");
        turns.turn(&format!("build {number} {}", number + 2), "built 2");
        assert_eq!(markers(&lab.sandbox).len(), before + 2);
    }
    assert!(turns.end(None).success());
}

#[test]
fn that_nothing_can_be_noted_is_said_once() {
    let Some(mut lab) = Lab::bare("an outbox that cannot be written") else {
        return;
    };
    let build = |lab: &Lab| {
        let mut command = lab.sandbox.command(Way::Cached, example("client"));
        command.args(["many", "--keys", "3"]);
        lab.sandbox.run(&mut command).ok().stderr
    };
    build(&lab);
    let noted = markers(&lab.sandbox);
    assert_eq!(noted.len(), 3);
    for marker in noted {
        let cache = marker.parent().and_then(|cache| cache.file_name());
        let storing = lab.sandbox.path(STATE).join("storing");
        let storing = storing.join(cache.expect("a name"));
        fs::create_dir(storing.join(marker.file_name().expect("a key"))).expect("made");
    }
    fs::remove_dir_all(lab.sandbox.path("cache")).expect("removed");
    lab.sandbox.set("OCLCACHE_LOG", "warn");
    let said = build(&lab);
    let words = "not sent to other machines";
    assert_eq!(said.matches(words).count(), 1, "{said}");
}
