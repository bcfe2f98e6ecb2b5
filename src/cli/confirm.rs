//! Asks for confirmation.

use std::io::{self, BufRead, IsTerminal, Write};

/// The answer to a question; None if there is no terminal to ask on. Standard output may be redirected.
pub fn confirm(question: &str) -> Option<bool> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return None;
    }
    let asked = io::stderr()
        .lock()
        .write_all(format!("{question} [y/N] ").as_bytes());
    let mut answer = String::new();
    let read = asked.and_then(|()| io::stdin().lock().read_line(&mut answer));
    Some(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}
